//! An index node behind the Redis protocol: its commands, its section of `INFO`, its metrics, and
//! its table on the console.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use ordna_server::{Answer, Extension};
use serde_json::{Value, json};

use crate::index_node::{IndexNode, PartitionInfo};
use crate::node::{Held, Local, Role};

/// Executes commands over all nodes; `None`: the command is another one.
pub type Queries = dyn Fn(&[&[u8]]) -> Option<Result<Answer, String>> + Send + Sync;

/// Poison records of one reply.
const SHOWN: usize = 100;

/// The commands and figures of an index node.
pub struct Front {
    node: Arc<IndexNode>,
    queries: Box<Queries>,
}

impl std::fmt::Debug for Front {
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

/// A time in milliseconds; -1: never.
fn millis(time: Duration) -> i64 {
    if time == Duration::MAX { -1 } else { i64::try_from(time.as_millis()).unwrap_or(i64::MAX) }
}

/// Records behind the end; -1: the brokers do not tell.
fn lag(info: &PartitionInfo) -> i64 {
    info.held.lag.map_or(-1, |lag| i64::try_from(lag).unwrap_or(i64::MAX))
}

impl Front {
    /// The front of a node. `queries` comes first.
    pub fn new(node: Arc<IndexNode>, queries: Box<Queries>) -> Self {
        Self { node, queries }
    }

    /// `PARTITIONS`: each partition that is here.
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

    /// `OWNERS`: each member with its partitions.
    fn owners(&self) -> Answer {
        let members = self.node.owners().members.into_iter();
        let one = |member: crate::node::Member| {
            let partitions = member.partitions.into_iter().map(count).collect();
            Answer::Array(vec![bulk(member.address), Answer::Array(partitions)])
        };
        Answer::Array(members.map(one).collect())
    }

    /// `POISON [count]`: how many there were, and the newest ones.
    fn poison(&self, most: Option<&[u8]>) -> Result<Answer, String> {
        let most = match most {
            None => SHOWN,
            Some(word) => (std::str::from_utf8(word).ok().and_then(|word| word.parse().ok()))
                .ok_or("ERR POISON takes a number")?,
        };
        let (all, list) = self.node.poison(most);
        let one = |poison: crate::poison::Poison| {
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

impl Extension for Front {
    fn execute(&self, arguments: &[&[u8]]) -> Result<Answer, String> {
        if let Some(done) = (self.queries)(arguments) {
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
        let mut line = |name: &str, value: &dyn std::fmt::Display| {
            let _ = write!(text, "{name}:{value}\r\n");
        };
        line("node_address", &options.address);
        line("node_group", &options.group);
        line("node_topic", &options.topic);
        line("node_partitions", &node.partitions());
        line("node_rebalances", &rebalances);
        line("node_sessions_lost", &lost);
        line("node_poison", &node.poison(0).0);
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
            let Held { partition, ready, .. } = info.held;
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
        for member in node.owners().members {
            let partitions: Vec<String> =
                member.partitions.iter().map(ToString::to_string).collect();
            line(&format!("owner_{}", member.address), &partitions.join(","));
        }
        text
    }

    fn metrics(&self) -> String {
        let (rebalances, lost) = self.node.rebalances();
        let mut text = String::new();
        let mut head = |name: &str, kind: &str, help: &str, samples: &[(String, i64)]| {
            let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
            for (labels, value) in samples {
                let _ = writeln!(text, "{name}{labels} {value}");
            }
        };
        let one = |value: u64| vec![(String::new(), i64::try_from(value).unwrap_or(i64::MAX))];
        let (name, help) = ("ordna_node_rebalances_total", "Assignments and revocations.");
        head(name, "counter", help, &one(rebalances));
        let (name, help) = ("ordna_node_sessions_lost_total", "Sessions that the group ended.");
        head(name, "counter", help, &one(lost));
        let away = self.node.trouble().map_or(0, |(since, _)| since.as_secs().max(1));
        let (name, help) = ("ordna_node_brokers_away_seconds", "For how long no broker answers.");
        head(name, "gauge", help, &one(away));
        let infos = self.node.info();
        let each = |value: fn(&PartitionInfo) -> i64| -> Vec<(String, i64)> {
            let labels = |info: &PartitionInfo| {
                let (partition, role) = (info.held.partition, role(info.held.role));
                format!("{{partition=\"{partition}\",role=\"{role}\"}}")
            };
            infos.iter().map(|info| (labels(info), value(info))).collect()
        };
        head("ordna_partition_lag", "gauge", "Records behind the end; -1: unknown.", &each(lag));
        let (name, help) = ("ordna_partition_age_milliseconds", "Since it was at its end.");
        head(name, "gauge", help, &each(|info| millis(info.age)));
        let (name, help) = ("ordna_partition_ready", "Whether it answers queries.");
        head(name, "gauge", help, &each(|info| i64::from(info.held.ready)));
        let (name, help) = ("ordna_partition_entries", "Entries of all indexes.");
        head(name, "gauge", help, &each(|info| info.size.0 as i64));
        let (name, help) = ("ordna_partition_bytes", "Bytes of all indexes.");
        head(name, "gauge", help, &each(|info| info.size.1 as i64));
        let (name, help) = ("ordna_partition_poison_total", "Records that are no documents.");
        head(name, "counter", help, &each(|info| info.poison as i64));
        let (name, help) = ("ordna_partition_rebuilds_total", "Times that it was told anew.");
        head(name, "counter", help, &each(|info| info.rebuilds as i64));
        text
    }

    fn console(&self) -> Value {
        let owners = self.node.owners();
        let row = |info: PartitionInfo| {
            let partition = info.held.partition;
            let owner = owners.owner(partition).map(|member| member.address.clone());
            json!([
                partition.to_string(),
                role(info.held.role),
                owner,
                info.held.position.seq.to_string(),
                lag(&info).to_string(),
                format!("{}/{}", info.restored.0, info.restored.1),
                info.size.0.to_string(),
                info.poison.to_string(),
            ])
        };
        let rows: Vec<Value> = self.node.info().into_iter().map(row).collect();
        let head = [
            ">partition",
            "here",
            "owner",
            ">position",
            ">lag",
            ">restored",
            ">entries",
            ">poison",
        ];
        json!({"head": head, "rows": rows})
    }
}
