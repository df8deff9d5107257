//! The facts of a run that its results repeat.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use ordna_base::simd::InstructionSet;
use ordna_papers::ArtHtm;
use ordna_papers::topology::Topology;

use crate::dram::Dram;

/// The allocator of the binary; `memory::allocated` asks it.
pub const ALLOCATOR: &str = "jemalloc";

/// Threads read the keys at random places of the key set. The index is charged with the cache miss.
pub const IN_PLACE: &str = "read at random places of the key set";

/// Threads read copies of the keys, made before the clock starts.
pub const COPIED: &str = "copied into the order of use before the clock starts";

/// Loads take memory as the system gives it.
pub const FRESH: &str = "into memory that the system has just given";

/// Loads take memory that an earlier load of the same process has used.
pub const HAD: &str = "into memory that the process has had: an index whose load counts is loaded \
                       twice, and the second time counts";

/// The loads of all indexes share one process.
pub const SHARED: &str = "into memory as this process finds it";

fn fresh() -> String {
    FRESH.to_owned()
}

fn in_place() -> String {
    IN_PLACE.to_owned()
}

/// Date, machine, version and settings of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RunInfo {
    /// The processor and its cores.
    pub machine: String,
    /// The allocator of the whole program.
    pub allocator: String,
    /// When it began, in UTC.
    #[serde(default)]
    pub started: String,
    /// The version of the program, and the commit that it was built from.
    #[serde(default)]
    pub version: String,
    /// Number of runnable threads in the minute before the run.
    #[serde(default)]
    pub load_average: Option<f64>,
    /// Shares of processor time of this process and of others during the run; known at its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shares: Option<Shares>,
    /// The command line.
    #[serde(default)]
    pub command: String,
    /// Place from which threads read the keys of their operations; [`IN_PLACE`] in results without
    /// this field.
    #[serde(default = "in_place")]
    pub key_order: String,
    /// Kind of memory into which indexes are loaded; [`FRESH`] in results without this field.
    #[serde(default = "fresh")]
    pub loads: String,
    /// Features that the indexes or the papers' experiments can use and this machine lacks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<String>,
    /// The machine's memory latency, if it was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dram: Option<Dram>,
}

impl RunInfo {
    /// Collects the facts of the run that begins now.
    pub fn now() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            machine: machine(),
            allocator: ALLOCATOR.to_owned(),
            started: date(since.as_secs()),
            version: version(),
            load_average: load_average(),
            shares: None,
            key_order: COPIED.to_owned(),
            loads: FRESH.to_owned(),
            command: command(std::env::args()),
            limits: limits(),
            dram: None,
        }
    }

    /// Returns whether other programs ran during the run or, if that is not known, just before it.
    pub fn was_busy(&self) -> Option<bool> {
        let shares = self.shares.map(|shares| shares.others + shares.stolen > 0.05);
        shares.or(self.load_average.map(|load| load > 0.5))
    }
}

/// Returns the features that the indexes or the papers' experiments can use and this machine lacks,
/// each with the substitute.
pub fn limits() -> Vec<String> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut limits = vec![format!("{cores} cores: figures over threads end there")];
    let nodes = Topology::system().nodes();
    if nodes == 1 {
        limits.push("one NUMA node: replicas and partitions by node are one".to_owned());
    } else if !Topology::may_place_memory() {
        limits.push("memory cannot be bound to a NUMA node: first touch decides".to_owned());
    }
    let widest = InstructionSet::widest().name();
    if widest != "avx512" {
        limits.push(format!("no AVX-512: keys and fingerprints are compared by {widest}"));
    }
    if !ArtHtm::<u64, u64>::new().has_transactions() {
        limits.push(
            "no hardware transactions: every operation of art-htm takes its fallback lock"
                .to_owned(),
        );
    }
    let pages = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    if pages.is_ok_and(|modes| modes.contains("[never]")) {
        limits.push("no huge pages: slabs are on small pages".to_owned());
    }
    limits
}

/// Shares of the processors' time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Shares {
    /// Share of other processes and the system.
    pub others: f64,
    /// Share of other machines on the same host.
    pub stolen: f64,
}

/// Clock ticks since the start of the machine, and since the start of this process.
#[derive(Debug, Clone, Copy)]
pub struct Ticks {
    all: u64,
    idle: u64,
    stolen: u64,
    own: u64,
}

impl Ticks {
    /// Reads the current ticks, if the system reports them. Child processes count once they have
    /// been waited for.
    pub fn now() -> Option<Self> {
        let numbers = |text: &str| -> Vec<u64> {
            text.split_whitespace().map_while(|field| field.parse().ok()).collect()
        };
        // user nice system idle iowait irq softirq steal; guests are in user.
        let stat = std::fs::read_to_string("/proc/stat").ok()?;
        let machine = numbers(stat.lines().next()?.strip_prefix("cpu ")?);
        // The fields after the name in brackets and ten more fields: utime stime cutime cstime.
        let own = std::fs::read_to_string("/proc/self/stat").ok()?;
        let fields: Vec<&str> = own.rsplit_once(") ")?.1.split(' ').collect();
        let own = fields.get(11..15)?.iter().map(|field| field.parse::<u64>().unwrap_or(0)).sum();
        let machine = machine.get(..8)?;
        Some(Self {
            all: machine.iter().sum(),
            idle: machine[3] + machine[4],
            stolen: machine[7],
            own,
        })
    }

    /// Returns the shares of processor time since `then`, or `None` if no time has passed.
    pub fn since(&self, then: &Self) -> Option<Shares> {
        let all = self.all.checked_sub(then.all).filter(|all| *all > 0)? as f64;
        let stolen = self.stolen.saturating_sub(then.stolen);
        let used = (self.all - self.idle).saturating_sub(then.all - then.idle + stolen);
        let others = used.saturating_sub(self.own - then.own);
        Some(Shares { others: others as f64 / all, stolen: stolen as f64 / all })
    }
}

/// Returns the processor and its number of cores.
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

/// Returns the version of the package and the commit of the build, which `build.rs` asks git for.
fn version() -> String {
    format!("{}, commit {}", env!("CARGO_PKG_VERSION"), env!("ORDNA_COMMIT"))
}

/// Returns the command line, with the program's name without its folder.
fn command(arguments: impl Iterator<Item = String>) -> String {
    let mut arguments: Vec<String> = arguments.collect();
    if let Some(program) = arguments.first_mut() {
        *program = program.rsplit('/').next().unwrap_or_default().to_owned();
    }
    arguments.join(" ")
}

/// Formats seconds since 1970 as `2026-11-21 09:30 UTC`.
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
        let commit = info.version.split_once(", commit ").unwrap().1;
        assert!(!commit.is_empty() && !commit.contains(char::is_whitespace), "{commit:?}");
        let arguments = ["/a/b/ordna-bench", "run"].map(str::to_owned);
        assert_eq!(command(arguments.into_iter()), "ordna-bench run");
        let loaded = RunInfo { load_average: Some(2.0), ..info };
        assert_eq!(loaded.was_busy(), Some(true));
        // The processor time during the run takes precedence, if it is known.
        let shares = Some(Shares { others: 0.01, stolen: 0.0 });
        assert_eq!(RunInfo { shares, ..loaded }.was_busy(), Some(false));
    }

    #[test]
    fn what_others_took_is_what_is_left() {
        let then = Ticks { all: 1000, idle: 400, stolen: 10, own: 100 };
        let now = Ticks { all: 1200, idle: 450, stolen: 20, own: 200 };
        // Of 200 ticks, 50 are idle, 10 stolen and 100 of this process.
        assert_eq!(now.since(&then), Some(Shares { others: 0.2, stolen: 0.05 }));
        assert_eq!(then.since(&then), None);
        let ticks = Ticks::now().unwrap();
        assert!(ticks.all >= ticks.idle && ticks.all > 0, "{ticks:?}");
    }
}
