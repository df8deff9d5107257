//! The server's counts in the text format of Prometheus.

use std::fmt::{Display, Write};
use std::sync::atomic::Ordering;

use crate::state::ServerState;
use crate::statistics::command_stats::BUCKETS;
use crate::statistics::process;

/// Lines of the text format.
#[derive(Default)]
struct Lines(String);

impl Lines {
    /// The head of a family of samples.
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

    fn counter(&mut self, name: &str, help: &str, value: impl Display) {
        self.one(name, "counter", help, value);
    }
}

/// All metrics.
pub fn text(state: &ServerState) -> String {
    let mut lines = Lines::default();
    let counts = state.statistics();
    let load = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    let version = env!("CARGO_PKG_VERSION");
    lines.head("ordna_info", "gauge", "The version, as a label.");
    let _ = writeln!(lines.0, "ordna_info{{version=\"{version}\"}} 1");
    let uptime = state.started.elapsed().as_secs_f64();
    lines.gauge("ordna_uptime_seconds", "Seconds since the start.", uptime);
    lines.gauge("ordna_keys", "Keys.", counts.items);
    lines.gauge("ordna_expiring_keys", "Keys that expire.", counts.expiring.0);
    lines.gauge("ordna_memory_bytes", "Bytes of keys and values, with their order.", counts.bytes);
    let limit = state.config.max_memory.unwrap_or(0);
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
    commands(state, &mut lines);
    lines.0
}

/// Counters and a histogram for each command that was called.
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
        let mut sum = 0;
        for at in 0..BUCKETS - 1 {
            sum += counts.buckets[at];
            let bound = (1_u64 << at) as f64 / 1e6;
            let _ =
                writeln!(lines.0, "{name}_bucket{{command=\"{command}\",le=\"{bound}\"}} {sum}");
        }
        let total: u64 = counts.buckets.iter().sum();
        let seconds = counts.time.as_secs_f64();
        let _ = writeln!(
            lines.0,
            "{name}_bucket{{command=\"{command}\",le=\"+Inf\"}} {total}\n{name}_sum{{command=\"{command}\"}} {seconds}\n{name}_count{{command=\"{command}\"}} {total}"
        );
    }
}
