//! Results, for people and for programs.

use serde::{Deserialize, Serialize};

use crate::figures::Groups;
use crate::info::RunInfo;

/// Minimum, median and maximum of several rounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The median round; with an even number of rounds, the lower of the two in the middle.
    pub median: f64,
    /// The slowest round.
    pub min: f64,
    /// The fastest round.
    pub max: f64,
}

impl Spread {
    /// Computes the spread of these figures. Returns `None` if there are none.
    pub fn of(figures: &[f64]) -> Option<Self> {
        let mut sorted = figures.to_vec();
        sorted.sort_by(f64::total_cmp);
        let median = *sorted.get(sorted.len().checked_sub(1)? / 2)?;
        Some(Self { median, min: *sorted.first()?, max: *sorted.last()? })
    }
}

/// The throughput of the threads with one role.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Role {
    /// Name of the role.
    pub name: String,
    /// Million operations per second.
    pub mops: Spread,
}

/// The case of a cell. Figures of different cases are not compared.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Case<'a> {
    experiment: Option<&'a str>,
    keys: &'a str,
    workload: &'a str,
    threads: usize,
    batch: usize,
    ordered: bool,
    n: usize,
    ops: usize,
    seed: u64,
    run: &'a RunInfo,
}

impl Cell {
    /// Returns the case of the cell, which consists of the run, the experiment, keys, workload,
    /// threads, batch and sizes.
    pub fn case(&self) -> Case<'_> {
        Case {
            experiment: self.experiment.as_deref(),
            keys: &self.keys,
            workload: &self.workload,
            threads: self.threads,
            batch: self.batch,
            ordered: self.ordered,
            n: self.n,
            ops: self.ops,
            seed: self.seed,
            run: &self.info,
        }
    }

    /// Returns the time in nanoseconds that one thread needs per operation.
    pub fn ns_per_operation(&self) -> Option<f64> {
        self.mops.map(|mops| self.threads as f64 * 1e3 / mops.median)
    }

    /// Returns the spread of the rounds as a share of the median. It is unknown for a single round.
    pub fn noise(&self) -> Option<f64> {
        self.mops.filter(|_| self.rounds > 1).map(|mops| (mops.max - mops.min) / mops.median)
    }
}

/// One cell of the results: an index with a key set and a workload.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Cell {
    /// The experiment of a paper to which the cell belongs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub experiment: Option<String>,
    /// Name and switches of the index.
    pub index: String,
    /// The key set.
    pub keys: String,
    /// The workload.
    pub workload: String,
    /// Number of threads.
    pub threads: usize,
    /// Number of keys per call.
    pub batch: usize,
    /// Whether a call has operations of all kinds, in their order.
    #[serde(default)]
    pub ordered: bool,
    /// Number of keys loaded.
    pub n: usize,
    /// Number of operations measured.
    pub ops: usize,
    /// Million operations per second.
    pub mops: Option<Spread>,
    /// Million operations per second of every round, in order.
    #[serde(default)]
    pub each: Vec<f64>,
    /// Million operations per second of each role, if threads have different roles.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<Role>,
    /// Latency percentiles in nanoseconds, from a separate pass.
    pub p50_ns: Option<u64>,
    /// See `p50_ns`.
    pub p99_ns: Option<u64>,
    /// See `p50_ns`.
    pub p999_ns: Option<u64>,
    /// Duration of the slowest operation in nanoseconds.
    pub max_ns: Option<u64>,
    /// Pairs of a share of the operations and the number of nanoseconds within which they
    /// completed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub latency: Vec<(f64, u64)>,
    /// Bytes per loaded key, from the allocator.
    pub bytes_per_key: Option<f64>,
    /// Growth of the resident set during the load, per key.
    #[serde(default)]
    pub rss_per_key: Option<f64>,
    /// Number of bytes of slabs for which the system uses huge pages after the load, per key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub huge_per_key: Option<f64>,
    /// Whether every answer was checked and correct.
    pub checked: bool,
    /// The reason why there is no figure.
    pub note: Option<String>,
    /// The fault. If there is a figure, the fault of the index in another case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// Average numbers of keys per group call. They are less than `batch` if the key of a delayed
    /// write was read.
    #[serde(default)]
    pub groups: Groups,
    /// The index's own counts since its creation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counts: Option<String>,
    /// Whether the index belongs to this workspace and is not a peer.
    pub ours: bool,
    /// Number of rounds of `mops`.
    pub rounds: usize,
    /// Seed of keys and operations.
    pub seed: u64,
    /// The run to which the cell belongs.
    #[serde(flatten)]
    pub info: RunInfo,
}

/// Number of columns that name the case; the others are figures.
const NAMES: usize = 6;

/// Formats the cells as a table. Ratios are computed with `baseline` in the same group of rows.
pub fn render(cells: &[Cell], baseline: &str) -> String {
    let titles = "keys|n|workload|threads|batch|index|Mops/s|min|max|ratio|bytes/key|RSS/key|huge/key\
                  |p50 ns|p99 ns|p99.9 ns|max us";
    let titles: Vec<String> = titles.split('|').map(str::to_owned).collect();
    let columns = titles.len();
    let mut rows = vec![titles];
    let mut experiment = None;
    for (at, cell) in cells.iter().enumerate() {
        let first = at == 0 || cells[at - 1].case() != cell.case();
        if first && at > 0 {
            rows.push(Vec::new());
        }
        if first && cell.experiment.is_some() && cell.experiment != experiment {
            experiment.clone_from(&cell.experiment);
            rows.push(vec![cell.experiment.clone().unwrap_or_default()]);
        }
        let base =
            cells.iter().find(|other| other.index == baseline && other.case() == cell.case());
        let base = base.and_then(|base| base.mops).map(|mops| mops.median);
        rows.push(row(cell, first, base));
        for role in &cell.roles {
            let Spread { median, min, max } = role.mops;
            let mut row = vec![String::new(); NAMES - 1];
            row.push(format!("  {}", role.name));
            row.extend([median, min, max].map(|mops| format!("{mops:.3}")));
            row.resize(columns, String::new());
            rows.push(row);
        }
    }
    align(&rows)
}

fn row(cell: &Cell, first: bool, base: Option<f64>) -> Vec<String> {
    let mut row = if first {
        let numbers = [cell.threads, cell.batch].map(|number| number.to_string());
        let mut row = vec![cell.keys.clone(), cell.n.to_string(), cell.workload.clone()];
        row.extend(numbers);
        row
    } else {
        vec![String::new(); NAMES - 1]
    };
    row.push(cell.index.clone());
    let Some(mops) = cell.mops else {
        row.push(cell.note.clone().unwrap_or_else(|| "-".to_owned()));
        return row;
    };
    let figure = |figure: Option<f64>, digits: usize| {
        figure.map_or_else(|| "-".to_owned(), |figure| format!("{figure:.digits$}"))
    };
    let whole = |figure: Option<u64>| figure.map_or_else(|| "-".to_owned(), |f| f.to_string());
    row.extend([mops.median, mops.min, mops.max].map(|mops| format!("{mops:.3}")));
    row.push(base.map_or_else(|| "-".to_owned(), |base| format!("{:.2}x", mops.median / base)));
    row.extend(
        [cell.bytes_per_key, cell.rss_per_key, cell.huge_per_key].map(|bytes| figure(bytes, 1)),
    );
    row.extend([cell.p50_ns, cell.p99_ns, cell.p999_ns].map(whole));
    row.push(whole(cell.max_ns.map(|nanoseconds| nanoseconds / 1000)));
    row
}

/// Aligns the columns to their widest cells. A note may extend over the columns after it.
fn align(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| {
        let full = |row: &&Vec<String>| {
            row.len() > NAMES && row.len() > column + usize::from(column >= NAMES)
        };
        let cells = rows.iter().filter(full).filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            // Figures are aligned to the right, names to the left.
            let width = widths[column];
            line += &if column >= NAMES && row.len() == columns {
                format!("{cell:>width$}  ")
            } else {
                format!("{cell:<width$}  ")
            };
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Returns a cell for tests.
#[cfg(test)]
pub fn sample(index: &str) -> Cell {
    Cell {
        experiment: None,
        index: index.to_owned(),
        keys: "int".to_owned(),
        workload: "load".to_owned(),
        threads: 1,
        batch: 1,
        ordered: false,
        n: 10,
        ops: 10,
        mops: Spread::of(&[1.0]),
        each: vec![1.0],
        roles: Vec::new(),
        p50_ns: None,
        p99_ns: None,
        p999_ns: None,
        max_ns: None,
        latency: Vec::new(),
        bytes_per_key: Some(44.0),
        rss_per_key: Some(50.0),
        huge_per_key: None,
        checked: true,
        note: None,
        detail: None,
        groups: Groups::default(),
        counts: None,
        ours: true,
        rounds: 3,
        seed: 7,
        info: RunInfo {
            machine: "a machine".to_owned(),
            allocator: "jemalloc".to_owned(),
            command: "ordna-bench run".to_owned(),
            ..RunInfo::default()
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_back_from_json_also_those_of_before() {
        let mut cell = sample("a");
        cell.latency = vec![(0.5, 100)];
        cell.roles = vec![Role { name: "lookup".to_owned(), mops: cell.mops.unwrap() }];
        let text = serde_json::to_string(&[&cell]).unwrap();
        let back: Vec<Cell> = serde_json::from_str(&text).unwrap();
        assert_eq!(format!("{:?}", back[0]), format!("{cell:?}"));
        let text = text.replace("\"rss_per_key\":50.0,", "");
        let back: Vec<Cell> = serde_json::from_str(&text).unwrap();
        assert_eq!(back[0].rss_per_key, None);
        let table = render(&back, "a");
        assert!(table.contains("\n") && table.contains("  lookup"), "{table}");
    }

    #[test]
    fn the_spread_is_of_the_rounds() {
        let spread = Spread::of(&[3.0, 1.0, 2.0]).unwrap();
        assert_eq!((spread.median, spread.min, spread.max), (2.0, 1.0, 3.0));
        assert_eq!(Spread::of(&[]), None);
    }

    #[test]
    fn ratios_are_against_the_baseline_of_the_group() {
        let cell = |index: &str, mops: Option<f64>| Cell {
            mops: mops.and_then(|mops| Spread::of(&[mops])),
            note: Some("n/a: no order".to_owned()).filter(|_| mops.is_none()),
            ..sample(index)
        };
        let text = render(&[cell("a", Some(2.0)), cell("b", Some(3.0)), cell("c", None)], "a");
        assert!(text.contains("1.50x") && text.contains("n/a: no order"), "{text}");
    }
}
