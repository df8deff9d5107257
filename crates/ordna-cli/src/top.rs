//! `ordna top`: shows the activity of a server, updated periodically.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use clap::Parser;
use indicatif::{HumanBytes, HumanCount, HumanDuration};
use tokio::signal::unix::{SignalKind, signal};

use crate::client::{Client, ServerAddress, bytes_of};
use crate::query::OutputClosed;
use crate::text::{print_table, readable};

/// Options of `ordna top`.
#[derive(Debug, Parser)]
pub struct TopOptions {
    /// Print the statistics of one interval and exit
    #[arg(long)]
    once: bool,
    /// Seconds between two updates
    #[arg(long, default_value_t = 1.0, value_parser = seconds)]
    interval: f64,
    #[command(flatten)]
    server: ServerAddress,
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    seconds.ok_or_else(|| "must be a number from 0.1 to 3600".into())
}

/// Terminal sequences that switch to the alternate screen and hide the cursor, and that undo both.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
/// Terminal sequences that start to draw over the previous picture, and that end a line and the
/// picture.
const HOME: &str = "\x1b[H";
const LINE_END: &str = "\x1b[K\n";
const REST: &str = "\x1b[J";

/// Shows the figures until a signal arrives, or once.
pub fn run(options: &TopOptions) -> anyhow::Result<ExitCode> {
    let mut client = options.server.connect()?;
    let interval = Duration::from_secs_f64(options.interval);
    let stop = stop_signals()?;
    let mut before = Sample::take(&mut client)?;
    let is_live = !options.once && std::io::stdout().is_terminal();
    let screen = is_live.then(Screen::enter).transpose()?;
    loop {
        match stop.recv_timeout(interval) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(RecvTimeoutError::Disconnected) => return Ok(ExitCode::SUCCESS),
        }
        let now = Sample::take(&mut client)?;
        let mut text = Vec::new();
        let size = screen.as_ref().map(|_| console::Term::stdout().size());
        let width = size.map(|(_, columns)| usize::from(columns));
        let place = options.server.place();
        picture(&mut text, &before, &now, place, width).map_err(OutputClosed)?;
        let mut out = std::io::stdout().lock();
        match size {
            None => out.write_all(&text),
            Some((rows, _)) => {
                let text = String::from_utf8_lossy(&text);
                let lines: Vec<_> = text.lines().take(usize::from(rows).max(2) - 1).collect();
                write!(out, "{HOME}{}{LINE_END}{REST}", lines.join(LINE_END))
            }
        }
        .and_then(|()| out.flush())
        .map_err(OutputClosed)?;
        if options.once {
            return Ok(ExitCode::SUCCESS);
        }
        before = now;
    }
}

/// Switches to the alternate screen of the terminal; its drop switches back.
struct Screen;

impl Screen {
    fn enter() -> anyhow::Result<Self> {
        print!("{ENTER}");
        std::io::stdout().flush().map_err(OutputClosed)?;
        Ok(Self)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // If the terminal is gone, nothing needs to be restored.
        let _ = write!(std::io::stdout(), "{LEAVE}");
        let _ = std::io::stdout().flush();
    }
}

/// Returns a channel that receives a message on Ctrl-C, SIGTERM or SIGHUP.
fn stop_signals() -> anyhow::Result<Receiver<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (sender, stop) = channel();
    let entered = runtime.enter();
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    drop(entered);
    std::thread::spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
                _ = hangup.recv() => {}
            }
        });
        let _ = sender.send(());
    });
    Ok(stop)
}

/// The fields of `INFO`, and when they were read.
#[derive(Debug)]
struct Sample {
    taken: Instant,
    fields: BTreeMap<String, String>,
}

impl Sample {
    fn take(client: &mut Client) -> anyhow::Result<Self> {
        let info = bytes_of(client.call(&[b"INFO", b"everything"])?)?;
        Ok(Self::of(&String::from_utf8_lossy(&info)))
    }

    fn of(info: &str) -> Self {
        let fields = info.lines().filter_map(|line| line.split_once(':'));
        let fields =
            fields.map(|(name, value)| (readable(name.as_bytes(), false), value.to_owned()));
        Self { taken: Instant::now(), fields: fields.collect() }
    }

    /// Returns a field as text; empty if it is absent.
    fn text(&self, name: &str) -> String {
        readable(self.fields.get(name).map_or(&[], |value| value.as_bytes()), false)
    }

    /// Returns a field as a number; 0 if it is absent.
    fn number(&self, name: &str) -> u64 {
        self.fields.get(name).and_then(|value| value.parse().ok()).unwrap_or(0)
    }

    /// Returns a part of a field such as `calls=1,usec=2`.
    fn part(&self, name: &str, part: &str) -> u64 {
        let value = self.fields.get(name).map_or("", String::as_str);
        let mut parts = value.split(',').filter_map(|part| part.split_once('='));
        parts.find(|(name, _)| *name == part).and_then(|(_, value)| value.parse().ok()).unwrap_or(0)
    }
}

/// Writes the figures for the time between two samples: a table of the server's state, and one of
/// its commands.
fn picture(
    out: &mut dyn Write,
    before: &Sample,
    now: &Sample,
    (host, port): (&str, u16),
    width: Option<usize>,
) -> std::io::Result<()> {
    let seconds = now.taken.duration_since(before.taken).as_secs_f64().max(0.001);
    // A server that was restarted counts from 0 again.
    let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
    let per_second = |name: &str| rate(now.number(name), before.number(name));
    let (count, bytes) = (|name| HumanCount(now.number(name)), |name| HumanBytes(now.number(name)));
    let traffic = |name| HumanBytes(per_second(name) as u64);
    let up = HumanDuration(Duration::from_secs(now.number("uptime_in_seconds")));
    let limit = match now.number("maxmemory") {
        0 => "no limit".to_owned(),
        limit => format!("limit {}", HumanBytes(limit)),
    };
    let log = match now.number("aof_enabled") {
        0 => "none".to_owned(),
        _ => format!("last write {}", now.text("aof_last_write_status")),
    };
    let backup = match now.number("rdb_last_save_time") {
        _ if now.number("rdb_bgsave_in_progress") == 1 => "in progress".to_owned(),
        0 => "none".to_owned(),
        time => {
            let at = Duration::from_secs(now.number("server_time_usec") / 1_000_000);
            let age = HumanDuration(at.saturating_sub(Duration::from_secs(time)));
            format!("{}, {age} ago", now.text("rdb_last_bgsave_status"))
        }
    };
    let facts = [
        ("server", format!("{} at {host}:{port}, up {up}", now.text("ordna_version"))),
        ("operations per second", format!("{:.0}", per_second("total_commands_processed"))),
        (
            "traffic per second",
            format!(
                "{} in, {} out",
                traffic("total_net_input_bytes"),
                traffic("total_net_output_bytes")
            ),
        ),
        ("errors per second", format!("{:.0}", per_second("total_error_replies"))),
        (
            "clients",
            format!("{}, {} blocked", count("connected_clients"), count("blocked_clients")),
        ),
        (
            "keys",
            format!(
                "{}, {} expire; {:.0} expired and {:.0} evicted per second",
                HumanCount(now.part("db0", "keys")),
                HumanCount(now.part("db0", "expires")),
                per_second("expired_keys"),
                per_second("evicted_keys"),
            ),
        ),
        (
            "memory",
            format!("{}, {limit}; resident {}", bytes("used_memory"), bytes("used_memory_rss")),
        ),
        (
            "snapshots",
            format!(
                "{}, oldest {} s; {} undo records, {} long scans",
                count("snapshots_alive"),
                count("oldest_snapshot_seconds"),
                count("dead_versions"),
                count("long_scans"),
            ),
        ),
        ("log", log),
        ("backup", format!("{backup}; {} changes since", count("rdb_changes_since_last_save"))),
        (
            "indexes",
            format!(
                "{}, {} building, {} failed; {} changes behind",
                count("indexes"),
                count("indexes_building"),
                count("indexes_failed"),
                count("index_lag_changes"),
            ),
        ),
    ];
    let facts = facts.map(|(name, value)| vec![name.to_owned(), value]);
    print_table(out, &["what", "value"], &facts, width)?;
    writeln!(out)?;

    let names = now.fields.keys().filter_map(|name| Some((name, name.strip_prefix("cmdstat_")?)));
    let mut rows: Vec<(f64, Vec<String>)> = names
        .map(|(field, name)| {
            let calls = rate(now.part(field, "calls"), before.part(field, "calls"));
            let time = rate(now.part(field, "usec"), before.part(field, "usec"));
            let failed = rate(now.part(field, "failed_calls"), before.part(field, "failed_calls"));
            let each = if calls > 0.0 { time / calls } else { 0.0 };
            let row = vec![
                name.replace('|', " "),
                format!("{calls:.0}"),
                format!("{each:.1}"),
                format!("{:.1}", time / 10_000.0),
                format!("{failed:.0}"),
                now.part(field, "calls").to_string(),
            ];
            (calls, row)
        })
        .collect();
    rows.sort_by(|a, b| b.0.total_cmp(&a.0));
    let rows: Vec<_> = rows.into_iter().map(|(_, row)| row).collect();
    let names = ["command", "calls/s", "µs each", "% of a core", "failed/s", "calls"];
    if width.is_none() {
        writeln!(out, "{}", names.join("\t"))?;
    }
    print_table(out, &names, &rows, width)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_those_of_the_interval() {
        let sample = |calls: u64, gets: u64| {
            Sample::of(&format!(
                "# Server\r\nordna_version:0.1.0\r\ntotal_commands_processed:{calls}\r\n\
                 db0:keys=5,expires=1,avg_ttl=0\r\nused_memory:2048\r\nsnapshots_alive:2\r\n\
                 cmdstat_get:calls={gets},usec={gets},failed_calls=0\r\n\
                 cmdstat_config|set:calls=1,usec=9,failed_calls=1\r\n"
            ))
        };
        let before = sample(100, 50);
        let mut now = sample(300, 250);
        now.taken = before.taken + Duration::from_secs(2);
        let mut out = Vec::new();
        picture(&mut out, &before, &now, ("::1", 1), None).unwrap();
        let text = String::from_utf8(out).unwrap();
        for line in [
            "operations per second\t100",
            "keys\t5, 1 expire; 0 expired and 0 evicted per second",
            "memory\t2.00 KiB, no limit; resident 0 B",
            "snapshots\t2, oldest 0 s; 0 undo records, 0 long scans",
            "log\tnone",
            "get\t100\t1.0\t0.0\t0\t250",
            "config set\t0\t0.0\t0.0\t0\t1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
        // A restarted server.
        let mut out = Vec::new();
        picture(&mut out, &now, &before, ("::1", 1), Some(60)).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("operations per second  0\n"), "{text}");
        assert!(text.lines().all(|line| console::measure_text_width(line) <= 60), "{text}");
    }
}
