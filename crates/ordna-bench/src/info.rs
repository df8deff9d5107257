//! What is told about a run with its results.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::dram::Dram;

/// What the binary allocates with; `memory::allocated` asks it.
pub const ALLOCATOR: &str = "jemalloc";

/// Where and when a run was, and on what.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RunInfo {
    /// The processor and its cores.
    pub machine: String,
    /// The allocator of the whole program.
    pub allocator: String,
    /// When it began, in UTC.
    #[serde(default)]
    pub started: String,
    /// The version of the program, and the commit of the checkout that it stands in.
    #[serde(default)]
    pub version: String,
    /// Threads that wanted to run in the minute before it began.
    #[serde(default)]
    pub load_average: Option<f64>,
    /// As it was called.
    #[serde(default)]
    pub command: String,
    /// The machine's memory latency, where it was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dram: Option<Dram>,
}

impl RunInfo {
    /// Of the run that begins now.
    pub fn now() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            machine: machine(),
            allocator: ALLOCATOR.to_owned(),
            started: date(since.as_secs()),
            version: version(),
            load_average: load_average(),
            command: command(std::env::args()),
            dram: None,
        }
    }

    /// Whether something else ran on the machine just before.
    pub fn was_busy(&self) -> Option<bool> {
        self.load_average.map(|load| load > 0.5)
    }
}

/// The processor and its cores.
fn machine() -> String {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or("unknown processor", |(_, model)| model);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let memory = crate::memory::total().map(|bytes| bytes as f64 / f64::from(1 << 30));
    let memory = memory.map(|gib| format!(", {gib:.0} GiB")).unwrap_or_default();
    format!("{model}, {cores} cores{memory}")
}

fn load_average() -> Option<f64> {
    std::fs::read_to_string("/proc/loadavg").ok()?.split(' ').next()?.parse().ok()
}

/// The version of the package, and what git says of the folder that the program lies in.
fn version() -> String {
    let version = env!("CARGO_PKG_VERSION");
    let commit = || {
        let program = std::env::current_exe().ok()?;
        let git = std::process::Command::new("git")
            .arg("-C")
            .arg(program.parent()?)
            .args(["describe", "--always", "--dirty"])
            .output()
            .ok()
            .filter(|output| output.status.success())?;
        Some(String::from_utf8_lossy(&git.stdout).trim().to_owned())
    };
    commit().map_or_else(|| version.to_owned(), |commit| format!("{version}, commit {commit}"))
}

/// The program without its folder, and its arguments.
fn command(arguments: impl Iterator<Item = String>) -> String {
    let mut arguments: Vec<String> = arguments.collect();
    if let Some(program) = arguments.first_mut() {
        *program = program.rsplit('/').next().unwrap_or_default().to_owned();
    }
    arguments.join(" ")
}

/// Days and time of so many seconds after 1970, as `2026-11-21 09:30 UTC`.
fn date(seconds: u64) -> String {
    let (days, minutes) = (seconds / 86_400, seconds % 86_400 / 60);
    // Counted from 1 March of the year 0, so that a leap day is the last of its year.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    format!("{year}-{month:02}-{day:02} {:02}:{:02} UTC", minutes / 60, minutes % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_of_the_calendar() {
        assert_eq!(date(0), "1970-01-01 00:00 UTC");
        assert_eq!(date(951_782_400), "2000-02-29 00:00 UTC");
        assert_eq!(date(951_868_800 - 60), "2000-02-29 23:59 UTC");
        assert_eq!(date(1_795_255_800), "2026-11-21 10:10 UTC");
        assert_eq!(date(4_107_542_400), "2100-03-01 00:00 UTC");
    }

    #[test]
    fn a_run_knows_where_it_is() {
        let info = RunInfo::now();
        assert!(info.machine.contains("cores") && info.version.starts_with(char::is_numeric));
        let arguments = ["/a/b/ordna", "bench", "run"].map(str::to_owned);
        assert_eq!(command(arguments.into_iter()), "ordna bench run");
        assert_eq!(RunInfo { load_average: Some(2.0), ..info }.was_busy(), Some(true));
    }
}
