//! The server's counts in the text format of Prometheus.

use std::fmt::{Display, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ordna_secondary::IndexState;

use crate::execution::backups::last_backup_ms;
use crate::state::ServerState;
use crate::state::replication::ReplicationRole;
use crate::statistics::event_logs::unix_millis;
use crate::statistics::process;

/// Lines of the text format.
#[derive(Default)]
struct Lines(String);

impl Lines {
    /// Writes the header of a family of samples.
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a String cannot fail.
        let _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    fn one(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.head(name, kind, help);
        let _ = writeln!(self.0, "{name} {value}");
    }

    fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.one(name, "gauge", help, value);
    }

    /// Writes a histogram whose buckets reach up to 1 µs, 2 µs, 4 µs and so on. The last bucket has
    /// all longer times.
    fn histogram(&mut self, name: &str, labels: &str, buckets: &[u64], total: Duration) {
        let (comma, braces) = match labels {
            "" => ("", String::new()),
            labels => (",", format!("{{{labels}}}")),
        };
        let mut sum = 0;
        for (at, count) in buckets.iter().take(buckets.len().saturating_sub(1)).enumerate() {
            sum += count;
            let bound = (1_u64 << at) as f64 / 1e6;
            let _ = writeln!(self.0, "{name}_bucket{{{labels}{comma}le=\"{bound}\"}} {sum}");
        }
        let count: u64 = buckets.iter().sum();
        let seconds = total.as_secs_f64();
        let _ = writeln!(
            self.0,
            "{name}_bucket{{{labels}{comma}le=\"+Inf\"}} {count}\n{name}_sum{braces} {seconds}\n{name}_count{braces} {count}"
        );
    }

    fn counter(&mut self, name: &str, help: &str, value: impl Display) {
        self.one(name, "counter", help, value);
    }
}

fn replication(state: &ServerState, lines: &mut Lines) {
    let Some(replication) = &state.config.replication else { return };
    let status = replication.status();
    let is_primary = u8::from(status.role == ReplicationRole::Primary);
    lines.gauge("ordna_replication_primary", "1 on a primary, else 0.", is_primary);
    let help = "Position in the primary's log: acknowledged, or applied.";
    lines.gauge("ordna_replication_position", help, status.position);
    let help = "Number of the primary's run; each promotion adds one.";
    lines.gauge("ordna_replication_term", help, status.term);
    let help = "Bytes that are written and not acknowledged by the brokers.";
    lines.gauge("ordna_replication_waiting_bytes", help, status.waiting);
    if let Some(lag) = status.lag {
        let help = "Age of a follower's state.";
        lines.gauge("ordna_replication_lag_seconds", help, lag.as_secs_f64());
    }
    let has_failed = u8::from(status.failure.is_some());
    lines.gauge("ordna_replication_failed", "1 once the replication has ended.", has_failed);
    let is_delayed = u8::from(status.delay.is_some());
    let help = "1 while writes have waited for the brokers for seconds.";
    lines.gauge("ordna_replication_delayed", help, is_delayed);
}

/// Returns all metrics as text.
pub fn text(state: &ServerState) -> String {
    let mut lines = Lines::default();
    let counts = state.statistics();
    let version = env!("CARGO_PKG_VERSION");
    lines.head("ordna_info", "gauge", "The version, as a label.");
    let _ = writeln!(lines.0, "ordna_info{{version=\"{version}\"}} 1");
    let uptime = state.started.elapsed().as_secs_f64();
    lines.gauge("ordna_uptime_seconds", "Seconds since the start.", uptime);
    lines.gauge("ordna_keys", "Keys.", counts.items);
    lines.gauge("ordna_expiring_keys", "Keys that expire.", counts.expiring.0);
    lines.gauge("ordna_memory_bytes", "Bytes of keys and values, with their order.", counts.bytes);
    let limit = state.settings.max_memory.get();
    lines.gauge("ordna_memory_limit_bytes", "The limit of these; 0: none.", limit);
    let clients = state.clients.memory();
    lines.gauge("ordna_client_memory_bytes", "Bytes of clients' buffers.", clients);
    let resident = process::resident_bytes();
    lines.gauge("process_resident_memory_bytes", "Resident memory.", resident);
    let (user, system) = process::cpu_seconds();
    lines.counter("process_cpu_seconds_total", "Processor time.", user + system);
    lines.gauge("ordna_dead_versions", "Versions that only snapshots see.", counts.dead);
    lines.gauge("ordna_snapshots", "Live snapshots.", counts.snapshots.len());
    let ages = counts.snapshots.iter().map(|snapshot| snapshot.age.as_secs());
    let oldest = ages.max().unwrap_or(0);
    lines.gauge("ordna_oldest_snapshot_seconds", "Age of the oldest snapshot.", oldest);
    lines.gauge("ordna_long_scans", "Scans of more than one stretch.", state.scans.count().0);
    lines.gauge("ordna_connected_clients", "Connections.", state.clients.len());
    let accepted = state.clients.accepted();
    lines.counter("ordna_connections_total", "Connections accepted.", accepted);
    let refused = load(&state.clients.refused);
    lines.counter("ordna_connections_refused_total", "Connections beyond the limit.", refused);
    let evicted = load(&state.clients.evicted);
    lines.counter("ordna_evicted_clients_total", "Clients closed for their memory.", evicted);
    let evictions = state.evictions.sum();
    lines.counter("ordna_evicted_keys_total", "Keys evicted for their memory.", evictions);
    lines.counter("ordna_expired_keys_total", "Keys removed by expiry.", state.expired(&counts));
    let input = state.stats.input_bytes();
    lines.counter("ordna_input_bytes_total", "Bytes received.", input);
    let output = state.stats.output_bytes();
    lines.counter("ordna_output_bytes_total", "Bytes sent.", output);
    lines.counter("ordna_keyspace_hits_total", "GETs of present keys.", state.hits.sum());
    lines.counter("ordna_keyspace_misses_total", "GETs of absent keys.", state.misses.sum());
    let denied = "Wrong passwords and refusals by ACL.";
    lines.head("ordna_denied_total", "counter", denied);
    for (reason, count) in ["auth", "command", "key"].into_iter().zip(&state.acl.denied) {
        let _ = writeln!(lines.0, "ordna_denied_total{{reason=\"{reason}\"}} {}", load(count));
    }
    if let Some(extension) = &state.config.extension {
        lines.0.push_str(&extension.metrics());
    }
    replication(state, &mut lines);
    durability(state, &mut lines);
    indexes(state, &mut lines);
    commands(state, &mut lines);
    lines.0
}

/// Writes the metrics of the log and the backups of a data directory.
fn durability(state: &ServerState, lines: &mut Lines) {
    let Some(persistence) = &state.data_directory else { return };
    let loading = u8::from(persistence.is_loading());
    lines.gauge("ordna_loading", "1 while the data directory is read.", loading);
    let Some(told) = state.keys().store().durability() else { return };
    let failed = u8::from(told.failure.is_some());
    lines.gauge("ordna_log_failed", "1 while writes are refused because the log failed.", failed);
    lines.counter("ordna_log_failures_total", "Failures of the log.", told.failures);
    let since = told.since_backup;
    lines.gauge("ordna_log_bytes_since_backup", "Bytes that a start would replay.", since);
    let unsynced = told.appended.saturating_sub(told.synced);
    lines.gauge("ordna_log_unsynced_bytes", "Bytes that are not yet durable.", unsynced);
    let name = "ordna_log_sync_duration_seconds";
    lines.head(name, "histogram", "Time of fsyncs of the log.");
    let buckets = &told.sync_times.buckets;
    lines.histogram(name, "", buckets, told.sync_times.total);
    let cuts = &told.recovery.log.cuts;
    let help = "Places at which the start cut or repaired the log.";
    lines.gauge("ordna_log_truncations", help, cuts.len());
    let dropped: u64 = cuts.iter().map(|cut| cut.dropped).sum();
    lines.gauge("ordna_log_truncated_bytes", "Bytes that the start dropped there.", dropped);
    let saves = load(&persistence.saves);
    lines.counter("ordna_backups_total", "Backups that succeeded.", saves);
    let saving = u8::from(persistence.saving.load(Ordering::Relaxed));
    lines.gauge("ordna_backup_in_progress", "1 while a backup is written.", saving);
    let failed = u8::from(told.last_error.is_some());
    lines.gauge("ordna_backup_last_failed", "1 if the last backup failed.", failed);
    if let Some(ended) = last_backup_ms(&told) {
        let age = unix_millis().saturating_sub(ended) as f64 / 1000.0;
        lines.gauge("ordna_backup_age_seconds", "Age of the last backup.", age);
    }
    if let Some((summary, _)) = &told.last {
        let took = summary.took.as_secs_f64();
        lines.gauge("ordna_backup_last_duration_seconds", "Time of the last backup.", took);
        lines.gauge("ordna_backup_last_bytes", "Bytes of the last backup.", summary.bytes);
    }
}

/// Writes the state of each index.
fn indexes(state: &ServerState, lines: &mut Lines) {
    let (all, lag) = state.indexes.report();
    let help = "Changes of hashes that are not yet in the indexes.";
    lines.gauge("ordna_index_lag_changes", help, lag);
    lines.head("ordna_index_entries", "gauge", "Entries of an index.");
    for index in &all {
        let name = label(&index.definition.name);
        let _ = writeln!(lines.0, "ordna_index_entries{{index=\"{name}\"}} {}", index.entries);
    }
    lines.head("ordna_index_state", "gauge", "1 for the state that an index has.");
    for index in &all {
        let state = match index.state {
            IndexState::Building => "building",
            IndexState::Failed(_) => "failed",
            _ => "ready",
        };
        let name = label(&index.definition.name);
        let _ = writeln!(lines.0, "ordna_index_state{{index=\"{name}\",state=\"{state}\"}} 1");
    }
}

/// Escapes the value of a label.
fn label(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn load(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// Writes counters and a histogram for each command that has been called.
fn commands(state: &ServerState, lines: &mut Lines) {
    let all = state.catalog.with_subcommands();
    let counts = all.map(|spec| (spec.name, state.stats.of(spec.id)));
    let counts: Vec<_> = counts.filter(|(_, counts)| counts.calls + counts.rejected > 0).collect();
    lines.head("ordna_command_failures_total", "counter", "Commands that ended in an error.");
    for (name, counts) in &counts {
        let _ = writeln!(
            lines.0,
            "ordna_command_failures_total{{command=\"{name}\"}} {}",
            counts.failed + counts.rejected
        );
    }
    let name = "ordna_command_duration_seconds";
    lines.head(name, "histogram", "Time of executed commands, without the network.");
    for (command, counts) in &counts {
        let labels = format!("command=\"{command}\"");
        lines.histogram(name, &labels, &counts.buckets, counts.time);
    }
}
