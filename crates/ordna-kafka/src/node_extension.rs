//! The part of the server that belongs to an index node: its commands, its section of `INFO`, its
//! metrics, and its tables on the console.

use std::fmt::{Display, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ordna_server::{Answer, Extension};
use serde_json::{Value, json};

use crate::index_node::{IndexNode, PartitionInfo};
use crate::node::{HeldPartition, LocalNode, Member, OwnerTable, Role};
use crate::query::{GroupQueries, QueryCounters};

/// Maximum number of poison records in a reply.
const SHOWN: usize = 100;

/// The commands and figures of an index node.
pub struct NodeExtension {
    node: Arc<IndexNode>,
    nodes: Arc<GroupQueries>,
}

impl std::fmt::Debug for NodeExtension {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Front").field("node", &self.node).finish_non_exhaustive()
    }
}

fn bulk(text: impl ToString) -> Answer {
    Answer::Bulk(text.to_string().into_bytes())
}

fn count(number: impl TryInto<i64>) -> Answer {
    Answer::Integer(number.try_into().unwrap_or(i64::MAX))
}

fn role(role: Role) -> &'static str {
    match role {
        Role::Owner => "owner",
        Role::Standby => "standby",
    }
}

/// Returns a time in milliseconds; -1 stands for never.
fn millis(time: Duration) -> i64 {
    if time == Duration::MAX { -1 } else { i64::try_from(time.as_millis()).unwrap_or(i64::MAX) }
}

/// Returns the number of records up to the end; -1 if the brokers have not reported it.
fn lag(info: &PartitionInfo) -> i64 {
    info.held.lag.map_or(-1, |lag| i64::try_from(lag).unwrap_or(i64::MAX))
}

/// Returns the partitions of a member, separated by spaces.
fn listed(member: &Member) -> String {
    let partitions: Vec<String> = member.partitions.iter().map(ToString::to_string).collect();
    partitions.join(" ")
}

/// Returns the counters of queries: name, help text, value.
fn counts(counters: &QueryCounters) -> [(&'static str, &'static str, u64); 6] {
    let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    [
        ("queries", "Queries over all nodes that began here.", load(&counters.queries)),
        ("queries_failed", "Of these, queries that ended in an error.", load(&counters.failed)),
        ("queries_partial", "Of these, results without some partitions.", load(&counters.partial)),
        ("questions", "Questions to other nodes.", load(&counters.asked)),
        ("questions_failed", "Of these, questions without an answer.", load(&counters.troubles)),
        ("answers", "Questions of other nodes that were answered.", load(&counters.answered)),
    ]
}

/// Families of metrics in the text format.
#[derive(Default)]
struct Families(String);

impl Families {
    fn add(&mut self, name: &str, help: &str, samples: &[(String, i64)]) {
        let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
        // Writing to a String cannot fail.
        let _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        for (labels, value) in samples {
            let _ = writeln!(self.0, "{name}{labels} {value}");
        }
    }

    fn one(&mut self, name: &str, help: &str, value: impl TryInto<i64>) {
        self.add(name, help, &[(String::new(), value.try_into().unwrap_or(i64::MAX))]);
    }
}

/// Escapes a label's value for the text format.
fn label(text: &str) -> String {
    text.replace('\\', r"\\").replace('"', r#"\""#).replace('\n', r"\n")
}

/// Returns a sample with the value 1 for each partition, which names its owner.
fn owner_samples(owners: &OwnerTable) -> Vec<(String, i64)> {
    let of = |member: &Member| {
        let address = label(&member.address);
        let sample = |at: &u32| (format!("{{partition=\"{at}\",owner=\"{address}\"}}"), 1);
        member.partitions.iter().map(sample).collect::<Vec<_>>()
    };
    owners.members.iter().flat_map(of).collect()
}

impl NodeExtension {
    /// Creates the extension for a node and for the queries that start on it.
    pub fn new(node: Arc<IndexNode>, nodes: Arc<GroupQueries>) -> Self {
        Self { node, nodes }
    }

    /// `PARTITIONS`: lists each partition that the node holds.
    fn partitions(&self) -> Answer {
        let one = |info: PartitionInfo| {
            Answer::Map(vec![
                ("partition", count(info.held.partition)),
                ("role", bulk(role(info.held.role))),
                ("ready", count(u8::from(info.held.ready))),
                ("position", bulk(info.held.position.seq)),
                ("lag", Answer::Integer(lag(&info))),
                ("age-ms", Answer::Integer(millis(info.age))),
                ("restored", count(info.restored.0)),
                ("to-restore", count(info.restored.1)),
                ("entries", count(info.size.0)),
                ("bytes", count(info.size.1)),
                ("poison", count(info.poison)),
                ("left-out", count(info.left_out)),
                ("rebuilds", count(info.rebuilds)),
            ])
        };
        Answer::Array(self.node.info().into_iter().map(one).collect())
    }

    /// `OWNERS`: lists each member with its partitions.
    fn owners(&self) -> Answer {
        let members = self.node.owners().members.into_iter();
        let one = |member: Member| {
            let partitions = member.partitions.into_iter().map(count).collect();
            Answer::Array(vec![bulk(member.address), Answer::Array(partitions)])
        };
        Answer::Array(members.map(one).collect())
    }

    /// `POISON [count]`: returns the number of poison records, and the newest ones.
    fn poison(&self, most: Option<&[u8]>) -> Result<Answer, String> {
        let most = match most {
            None => SHOWN,
            Some(word) => (std::str::from_utf8(word).ok().and_then(|word| word.parse().ok()))
                .ok_or("ERR POISON takes a number")?,
        };
        let (all, list) = self.node.poison(most);
        let one = |poison: crate::poison_records::PoisonRecord| {
            Answer::Map(vec![
                ("partition", count(poison.partition)),
                ("offset", count(poison.offset)),
                ("key", Answer::Bulk(poison.key)),
                ("reason", bulk(poison.reason)),
            ])
        };
        Ok(Answer::Array(vec![count(all), Answer::Array(list.into_iter().map(one).collect())]))
    }
}

impl Extension for NodeExtension {
    fn execute(&self, arguments: &[&[u8]]) -> Result<Answer, String> {
        if let Some(done) = self.nodes.execute(arguments) {
            return done;
        }
        let word = |at: usize| arguments.get(at).map(|word| word.to_ascii_lowercase());
        match (word(0).as_deref(), word(1).as_deref()) {
            (Some(b"ordna.node"), Some(b"partitions")) => Ok(self.partitions()),
            (Some(b"ordna.node"), Some(b"owners")) => Ok(self.owners()),
            (Some(b"ordna.node"), Some(b"poison")) => self.poison(arguments.get(2).copied()),
            (_, sub) => {
                let sub = String::from_utf8_lossy(sub.unwrap_or_default()).into_owned();
                Err(format!("ERR an index node has no subcommand '{sub:.40}'"))
            }
        }
    }

    fn info(&self) -> String {
        let node = &self.node;
        let options = node.options();
        let (rebalances, lost) = node.rebalances();
        let mut text = String::new();
        // Writing to a String cannot fail.
        let mut line = |name: &str, value: &dyn Display| {
            let _ = write!(text, "{name}:{value}\r\n");
        };
        line("node_address", &options.address);
        line("node_group", &options.group);
        line("node_topic", &options.topic);
        line("node_partitions", &node.partitions());
        line("node_rebalances", &rebalances);
        line("node_sessions_lost", &lost);
        line("node_poison", &node.poison(0).0);
        let (memory, is_paused) = node.memory();
        line("node_memory", &memory);
        line("node_memory_limit", &options.memory_limit.unwrap_or(0));
        line("node_paused_by_memory", &u8::from(is_paused));
        for (name, _, value) in counts(self.nodes.counters()) {
            line(&format!("node_{name}"), &value);
        }
        match node.trouble() {
            None => line("node_brokers", &"ok"),
            Some((since, error)) => {
                line("node_brokers", &error);
                line("node_brokers_away_ms", &since.as_millis());
            }
        }
        for (partition, why) in node.failures() {
            line(&format!("failure_{partition}"), &why);
        }
        for info in node.info() {
            let HeldPartition { partition, ready, .. } = info.held;
            let (read, all) = info.restored;
            let value = format!(
                "role={},ready={},position={},lag={},age_ms={},restored={read}/{all},entries={},bytes={},poison={},left_out={},rebuilds={}",
                role(info.held.role),
                u8::from(ready),
                info.held.position.seq,
                lag(&info),
                millis(info.age),
                info.size.0,
                info.size.1,
                info.poison,
                info.left_out,
                info.rebuilds
            );
            line(&format!("partition_{partition}"), &value);
        }
        for (number, member) in node.owners().members.iter().enumerate() {
            let value = format!("address={},owns={}", member.address, listed(member));
            line(&format!("member_{number}"), &value);
        }
        text
    }

    fn metrics(&self) -> String {
        let node = &self.node;
        let mut all = Families::default();
        let (rebalances, lost) = node.rebalances();
        all.one("ordna_node_rebalances_total", "Assignments and revocations.", rebalances);
        all.one("ordna_node_sessions_lost_total", "Sessions that the group ended.", lost);
        let away = node.trouble().map_or(0, |(since, _)| since.as_secs().max(1));
        all.one("ordna_node_brokers_away_seconds", "For how long no broker answers.", away);
        let (name, help) = ("ordna_node_unopened_partitions", "Partitions that cannot be opened.");
        all.one(name, help, node.failures().len());
        all.one("ordna_node_poison_total", "Records that are not documents.", node.poison(0).0);
        let (memory, is_paused) = node.memory();
        all.one("ordna_node_memory_bytes", "Bytes of all indexes.", memory);
        let limit = node.options().memory_limit.unwrap_or(0);
        all.one("ordna_node_memory_limit_bytes", "Limit of these bytes; 0: none.", limit);
        let (name, help) = ("ordna_node_paused", "1 while no records are read, at the limit.");
        all.one(name, help, u8::from(is_paused));
        for (name, help, value) in counts(self.nodes.counters()) {
            all.one(&format!("ordna_node_{name}_total"), help, value);
        }
        all.one("ordna_topic_partitions", "Partitions of the topic.", node.partitions());
        let owners = node.owners();
        all.one("ordna_group_members", "Members of the group.", owners.members.len());
        let (name, help) = ("ordna_partition_owner", "The owner of each partition; 1.");
        all.add(name, help, &owner_samples(&owners));
        let infos = node.info();
        let mut each = |name: &str, help: &str, value: fn(&PartitionInfo) -> i64| {
            let labels = |info: &PartitionInfo| {
                let (partition, role) = (info.held.partition, role(info.held.role));
                format!("{{partition=\"{partition}\",role=\"{role}\"}}")
            };
            let samples: Vec<_> = infos.iter().map(|info| (labels(info), value(info))).collect();
            all.add(name, help, &samples);
        };
        each("ordna_partition_lag", "Records behind the end; -1: unknown.", lag);
        let (name, help) = ("ordna_partition_age_milliseconds", "Since it was at its end.");
        each(name, help, |info| millis(info.age));
        let (name, help) = ("ordna_partition_ready", "Whether it answers queries.");
        each(name, help, |info| i64::from(info.held.ready));
        let (name, help) = ("ordna_partition_restored", "Records read since it was opened.");
        each(name, help, |info| info.restored.0 as i64);
        let (name, help) = ("ordna_partition_to_restore", "Records to read when it was opened.");
        each(name, help, |info| info.restored.1 as i64);
        each("ordna_partition_entries", "Entries of all indexes.", |info| info.size.0 as i64);
        each("ordna_partition_bytes", "Bytes of all indexes.", |info| info.size.1 as i64);
        let (name, help) = ("ordna_partition_poison_total", "Records that are not documents.");
        each(name, help, |info| info.poison as i64);
        let (name, help) = ("ordna_partition_left_out", "Documents that an index left out.");
        each(name, help, |info| info.left_out as i64);
        let (name, help) =
            ("ordna_partition_rebuilds_total", "Number of times that it was opened again.");
        each(name, help, |info| info.rebuilds as i64);
        all.0
    }

    fn failure(&self) -> Option<String> {
        self.node.failure()
    }

    fn console(&self) -> Value {
        let node = &self.node;
        let row = |info: PartitionInfo| {
            json!([
                info.held.partition.to_string(),
                role(info.held.role),
                if info.held.ready { "yes" } else { "no" },
                info.held.position.seq.to_string(),
                lag(&info).to_string(),
                format!("{}/{}", info.restored.0, info.restored.1),
                info.size.0.to_string(),
                info.poison.to_string(),
            ])
        };
        let rows: Vec<Value> = node.info().into_iter().map(row).collect();
        let head = [
            ">partition",
            "role",
            "ready",
            ">position",
            ">lag",
            ">restored",
            ">entries",
            ">poison",
        ];
        let partitions = json!({"title": "Partitions here", "head": head, "rows": rows});
        let members = node.owners().members;
        let rows: Vec<Value> =
            members.iter().map(|member| json!([member.address, listed(member)])).collect();
        let head = ["node", "owns partitions"];
        let members = json!({"title": "Owners", "head": head, "rows": rows});
        let (rebalances, lost) = node.rebalances();
        let brokers = match node.trouble() {
            None => "ok".to_owned(),
            Some((since, error)) => format!("away for {:.0?}: {error}", since),
        };
        let mut rows = vec![
            json!(["brokers", brokers]),
            json!(["rebalances", rebalances.to_string()]),
            json!(["sessions lost", lost.to_string()]),
        ];
        let failed = node.failures().into_iter();
        rows.extend(failed.map(|(at, why)| json!([format!("partition {at}"), why])));
        for (name, _, value) in counts(self.nodes.counters()) {
            rows.push(json!([name.replace('_', " "), value.to_string()]));
        }
        let node = json!({"title": "Node", "head": ["what", "state"], "rows": rows});
        json!([partitions, members, node])
    }
}
