//! `INFO`. Fields that Redis has, too, have Redis' names.

use std::sync::atomic::Ordering;

use ordna::Statistics;
use ordna_secondary::IndexState;

use super::connection::REDIS_VERSION;
use super::replication::status;
use crate::execution::command::{Command, CommandOutcome, Context, Result, SERVER_INFO};
use crate::keyspace::Keyspace;
use crate::state::ServerState;
use crate::state::command_spec::{CommandFlags, NO_KEY};
use crate::state::inbox::Kind;
use crate::state::replication::ReplicationRole;
use crate::statistics::event_logs::unix_millis;
use crate::statistics::process;
use crate::wire::reply::Replies;
use crate::wire::request::Arguments;

const VERSION: &str = env!("CARGO_PKG_VERSION");

pub const COMMANDS: &[Command] = &[Command::new(
    "info",
    -1,
    SERVER_INFO,
    NO_KEY,
    "Returns information about the server, by section.",
    info,
)
.with(CommandFlags::DANGEROUS)];

/// A section: its name, whether `INFO` without arguments shows it, and its lines.
type Section = (&'static str, bool, fn(&Facts<'_>) -> String);

/// The figures that the sections read.
struct Facts<'a> {
    state: &'a ServerState,
    keyspace: &'a Keyspace,
    counts: Statistics,
    keys: usize,
    expires: usize,
}

const SECTIONS: &[Section] = &[
    ("Server", true, server),
    ("Clients", true, clients),
    ("Memory", true, memory),
    ("Persistence", true, |facts| super::persistence::section(facts.state, facts.keyspace)),
    ("Stats", true, stats),
    ("Replication", true, replication),
    ("CPU", true, |_| {
        let (user, system) = process::cpu_seconds();
        format!("used_cpu_sys:{system:.6}\r\nused_cpu_user:{user:.6}\r\n")
    }),
    ("Modules", true, |_| String::new()),
    ("Snapshots", true, snapshots),
    ("Indexes", true, indexes),
    ("Commandstats", false, command_stats),
    ("Latencystats", false, latency_stats),
    ("Errorstats", true, error_stats),
    ("Nodes", true, |facts| {
        facts.state.config.extension.as_ref().map_or_else(String::new, |nodes| nodes.info())
    }),
    ("Cluster", true, |_| "cluster_enabled:0\r\n".to_owned()),
    ("Keyspace", true, |facts| match facts.keys {
        0 => String::new(),
        keys => format!("db0:keys={keys},expires={},avg_ttl=0\r\n", facts.expires),
    }),
];

fn info(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let state = context.state;
    let is_wanted = |(name, usual, _): &&Section| {
        let by = |asked: &[u8]| match asked.to_ascii_lowercase().as_slice() {
            b"all" | b"everything" => true,
            b"default" => *usual,
            asked => asked.eq_ignore_ascii_case(name.as_bytes()),
        };
        arguments.len() == 1 && *usual || arguments.iter_from(1).any(by)
    };
    let current = context.keys.statistics();
    let (keys, expires) = (current.items, current.expiring.0);
    let keyspace = &*context.keys;
    let facts = Facts { state, keyspace, counts: state.with_flushed(current), keys, expires };
    let texts: Vec<String> = SECTIONS
        .iter()
        .filter(is_wanted)
        .map(|(name, _, lines)| format!("# {name}\r\n{}", lines(&facts)))
        .collect();
    out.text(&texts.join("\r\n"));
    Ok(CommandOutcome::Done)
}

/// Formats lines of fields and values.
fn lines(fields: &[(&str, &dyn std::fmt::Display)]) -> String {
    fields.iter().map(|(field, value)| format!("{field}:{value}\r\n")).collect()
}

fn server(facts: &Facts<'_>) -> String {
    let state = facts.state;
    let uptime = state.started.elapsed().as_secs();
    lines(&[
        ("redis_version", &REDIS_VERSION),
        ("ordna_version", &VERSION),
        // Fields that exporters expect.
        ("redis_git_sha1", &"00000000"),
        ("redis_git_dirty", &0),
        ("redis_build_id", &VERSION),
        ("redis_mode", &"standalone"),
        ("os", &std::env::consts::OS),
        ("arch_bits", &usize::BITS),
        ("process_id", &std::process::id()),
        ("run_id", &state.run_id),
        ("tcp_port", &state.address.port()),
        ("server_time_usec", &(unix_millis() * 1000)),
        ("uptime_in_seconds", &uptime),
        ("uptime_in_days", &(uptime / 86_400)),
        ("hz", &1),
    ])
}

fn clients(facts: &Facts<'_>) -> String {
    let state = facts.state;
    let all = state.clients.all();
    let largest = |part: fn(&crate::state::clients::Client) -> &std::sync::atomic::AtomicUsize| {
        all.iter().map(|client| part(client).load(Ordering::Relaxed)).max().unwrap_or(0)
    };
    lines(&[
        ("connected_clients", &all.len()),
        ("cluster_connections", &0),
        ("maxclients", &state.settings.max_clients.get()),
        ("client_recent_max_input_buffer", &largest(|client| &client.input)),
        ("client_recent_max_output_buffer", &largest(|client| &client.output)),
        ("blocked_clients", &(state.paused_clients() + state.blocked.len())),
        ("tracking_clients", &0),
        ("clients_in_timeout_table", &state.blocked.with_deadline()),
        ("total_blocking_keys", &state.blocked.keys()),
        ("watched_keys", &state.watches.len()),
    ])
}

fn memory(facts: &Facts<'_>) -> String {
    let state = facts.state;
    let clients = state.clients.memory();
    let used = facts.counts.bytes;
    let peak = state.peak_memory.fetch_max(used, Ordering::Relaxed).max(used);
    let resident = process::resident_bytes();
    let ratio = resident as f64 / used.max(1) as f64;
    let lua = state.scripts.memory.load(Ordering::Relaxed);
    let (scripts, script_bytes) = state.scripts.counts();
    lines(&[
        ("used_memory", &used),
        ("used_memory_human", &human(used)),
        ("used_memory_rss", &resident),
        ("used_memory_rss_human", &human(resident as usize)),
        ("used_memory_peak", &peak),
        ("used_memory_peak_human", &human(peak)),
        ("used_memory_overhead", &clients),
        ("used_memory_startup", &0),
        ("used_memory_dataset", &facts.counts.bytes),
        ("total_system_memory", &process::system_memory()),
        ("used_memory_vm_eval", &lua),
        ("used_memory_vm_total", &lua),
        ("used_memory_scripts_eval", &script_bytes),
        ("used_memory_scripts", &(lua + script_bytes)),
        ("number_of_cached_scripts", &scripts),
        ("maxmemory", &state.settings.max_memory.get()),
        ("maxmemory_human", &human(state.settings.max_memory.size())),
        ("maxmemory_policy", &state.settings.policy().name()),
        ("mem_fragmentation_ratio", &format!("{ratio:.2}")),
        ("mem_clients_normal", &clients),
        ("mem_clients_limit", &state.settings.clients_memory.get()),
        ("mem_search_cursors", &state.results.bytes()),
        ("mem_allocator", &"mimalloc"),
        ("active_defrag_running", &0),
        (
            "lazyfree_pending_objects",
            &(state.flushed().len() + facts.keyspace.collections().removals.sum()),
        ),
        ("lazyfreed_objects", &0),
        ("ordna_reserved_entries", &facts.keyspace.collections().reserved.sum()),
    ])
}

/// Formats a number of bytes as Redis does for people.
pub fn human(bytes: usize) -> String {
    let units = [(1_usize << 40, "T"), (1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")];
    match units.into_iter().find(|(unit, _)| bytes >= *unit) {
        Some((unit, name)) => format!("{:.2}{name}", bytes as f64 / unit as f64),
        None => format!("{bytes}B"),
    }
}

fn stats(facts: &Facts<'_>) -> String {
    let state = facts.state;
    let load = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    let last = state.samples.last();
    let kilobytes = |bytes: u64| format!("{:.2}", bytes as f64 / 1024.0);
    lines(&[
        ("total_connections_received", &state.clients.accepted()),
        ("total_commands_processed", &state.stats.calls()),
        ("instantaneous_ops_per_sec", &last.commands),
        ("total_net_input_bytes", &state.stats.input_bytes()),
        ("total_net_output_bytes", &state.stats.output_bytes()),
        ("instantaneous_input_kbps", &kilobytes(last.input_bytes)),
        ("instantaneous_output_kbps", &kilobytes(last.output_bytes)),
        ("rejected_connections", &load(&state.clients.refused)),
        ("expired_keys", &state.expired(&facts.counts)),
        ("expired_subkeys", &state.expired_fields.load(Ordering::Relaxed)),
        ("evicted_keys", &state.evictions.sum()),
        ("evicted_clients", &load(&state.clients.evicted)),
        ("total_error_replies", &state.errors.counts().total),
        ("keyspace_hits", &state.hits.sum()),
        ("keyspace_misses", &state.misses.sum()),
        ("pubsub_channels", &state.channels.count(Kind::Channel)),
        ("pubsub_patterns", &state.channels.count(Kind::Pattern)),
        ("pubsubshard_channels", &state.channels.count(Kind::Shard)),
        ("latest_fork_usec", &0),
        ("client_query_buffer_limit_disconnections", &load(&state.clients.closed_for_input)),
        ("client_output_buffer_limit_disconnections", &load(&state.clients.closed_for_output)),
        ("acl_access_denied_auth", &load(&state.acl.denied[0])),
        ("acl_access_denied_cmd", &load(&state.acl.denied[1])),
        ("acl_access_denied_key", &load(&state.acl.denied[2])),
        ("acl_access_denied_channel", &load(&state.acl.denied[3])),
    ])
}

fn snapshots(facts: &Facts<'_>) -> String {
    let (state, counts) = (facts.state, &facts.counts);
    let (scans, leases_ended) = state.cursors.leases();
    let (long_scans, scan_age) = state.scans.count();
    let ages = counts.snapshots.iter().map(|snapshot| snapshot.age.as_secs());
    lines(&[
        ("snapshots_held", &state.snapshots.list().len()),
        ("scans_under_way", &scans),
        ("scan_leases_ended", &leases_ended),
        ("snapshots_alive", &counts.snapshots.len()),
        ("oldest_snapshot_seconds", &ages.max().unwrap_or(0)),
        ("long_scans", &long_scans),
        ("oldest_long_scan_seconds", &scan_age.as_secs()),
        ("scans_reading", &counts.scans),
        ("versions", &counts.versions),
        ("dead_versions", &counts.dead),
        ("collected_versions", &counts.collected),
        ("flushed_keyspaces", &state.flushed().len()),
    ])
}

fn indexes(facts: &Facts<'_>) -> String {
    let (all, lag) = facts.state.indexes.report();
    let count = |is: fn(&IndexState) -> bool| all.iter().filter(|index| is(&index.state)).count();
    lines(&[
        ("indexes", &all.len()),
        ("indexes_building", &count(|state| matches!(state, IndexState::Building))),
        ("indexes_failed", &count(|state| matches!(state, IndexState::Failed(_)))),
        ("index_entries", &all.iter().map(|index| index.entries).sum::<usize>()),
        ("index_lag_changes", &lag),
    ])
}

fn command_stats(facts: &Facts<'_>) -> String {
    let state = facts.state;
    let mut text = String::new();
    for spec in state.catalog.with_subcommands() {
        let counts = state.stats.of(spec.id);
        if counts.calls + counts.rejected > 0 {
            let micros = counts.time.as_micros();
            let each = micros as f64 / counts.calls.max(1) as f64;
            text.push_str(&format!(
                "cmdstat_{}:calls={},usec={micros},usec_per_call={each:.2},rejected_calls={},failed_calls={}\r\n",
                spec.name, counts.calls, counts.rejected, counts.failed
            ));
        }
    }
    text
}

/// Returns the fields of Redis. Without replication they are those of a Redis without replicas.
fn replication(facts: &Facts<'_>) -> String {
    let status = status(facts.state);
    let (mut position, mut own) = (0, String::new());
    let mut role = "master";
    if let Some(status) = &status {
        position = status.position;
        let text =
            |it: &Option<String>| it.as_deref().unwrap_or_default().replace(['\r', '\n'], " ");
        own = lines(&[
            ("ordna_replicated_log", &status.log),
            ("ordna_replication_term", &status.term),
            ("ordna_replication_waiting_bytes", &status.waiting),
            ("ordna_replication_is_fenced", &u8::from(status.role == ReplicationRole::Fenced)),
            ("ordna_replication_failure", &text(&status.failure)),
            ("ordna_replication_delay", &text(&status.delay)),
        ]);
        if status.role != ReplicationRole::Primary {
            role = "slave";
            let link = if status.failure.is_some() { "down" } else { "up" };
            let lag = status.lag.unwrap_or_default();
            own += &lines(&[
                ("master_host", &status.log),
                ("master_port", &0),
                ("master_link_status", &link),
                ("master_last_io_seconds_ago", &lag.as_secs()),
                ("master_sync_in_progress", &0),
                ("slave_read_repl_offset", &position),
                ("slave_repl_offset", &position),
                ("slave_priority", &100),
                ("slave_read_only", &1),
                ("ordna_replication_lag_ms", &lag.as_millis()),
            ]);
        }
    }
    let head = lines(&[("role", &role)]);
    let tail = lines(&[
        ("connected_slaves", &0),
        ("master_failover_state", &"no-failover"),
        ("master_replid", &facts.state.run_id),
        ("master_replid2", &"0".repeat(40)),
        ("master_repl_offset", &position),
        ("second_repl_offset", &-1),
        ("repl_backlog_active", &0),
        ("repl_backlog_size", &0),
        ("repl_backlog_first_byte_offset", &0),
        ("repl_backlog_histlen", &0),
    ]);
    head + &own + &tail
}

fn error_stats(facts: &Facts<'_>) -> String {
    let counts = facts.state.errors.counts().by_code;
    counts.iter().map(|(code, count)| format!("errorstat_{code}:count={count}\r\n")).collect()
}

fn latency_stats(facts: &Facts<'_>) -> String {
    let state = facts.state;
    let mut text = String::new();
    for spec in state.catalog.with_subcommands() {
        let counts = state.stats.of(spec.id);
        if counts.calls > 0 {
            let [half, most, nearly] = [0.5, 0.99, 0.999].map(|share| counts.percentile(share));
            text.push_str(&format!(
                "latency_percentiles_usec_{}:p50={half}.000,p99={most}.000,p99.9={nearly}.000\r\n",
                spec.name
            ));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_for_people_have_the_unit_that_fits() {
        let cases = [0, 1, 1023, 1024, 1536, (1 << 20) - 1, 1 << 20, 5 << 29, 1 << 40];
        let told = cases.map(human);
        let expected =
            ["0B", "1B", "1023B", "1.00K", "1.50K", "1024.00K", "1.00M", "2.50G", "1.00T"];
        assert_eq!(told, expected);
    }
}
