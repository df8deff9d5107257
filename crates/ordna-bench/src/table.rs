//! Results, for people and for programs.

use serde::{Deserialize, Serialize};

/// Lowest, middle and highest of several rounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The middle round; of an even number, the lower of the two in the middle.
    pub median: f64,
    /// The slowest round.
    pub min: f64,
    /// The fastest round.
    pub max: f64,
}

impl Spread {
    /// Of at least one figure.
    pub fn of(figures: &[f64]) -> Option<Self> {
        let mut sorted = figures.to_vec();
        sorted.sort_by(f64::total_cmp);
        let median = *sorted.get(sorted.len().checked_sub(1)? / 2)?;
        Some(Self { median, min: *sorted.first()?, max: *sorted.last()? })
    }
}

/// One cell of the results: an index on a key set under a workload.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Cell {
    /// Name and switches of the index.
    pub index: String,
    /// The key set.
    pub keys: String,
    /// The workload.
    pub workload: String,
    /// Threads.
    pub threads: usize,
    /// Keys per call.
    pub batch: usize,
    /// Keys loaded.
    pub n: usize,
    /// Operations measured.
    pub ops: usize,
    /// Million operations per second.
    pub mops: Option<Spread>,
    /// Latency percentiles in nanoseconds, from a pass of its own.
    pub p50_ns: Option<u64>,
    /// See `p50_ns`.
    pub p99_ns: Option<u64>,
    /// See `p50_ns`.
    pub p999_ns: Option<u64>,
    /// The slowest operation.
    pub max_ns: Option<u64>,
    /// Bytes per loaded key, from the allocator.
    pub bytes_per_key: Option<f64>,
    /// Whether every answer was checked and right.
    pub checked: bool,
    /// Why there is no figure.
    pub note: Option<String>,
    /// Whether the index is of this workspace, and not a peer.
    pub ours: bool,
    /// Rounds behind `mops`.
    pub rounds: usize,
    /// Seed of keys and operations.
    pub seed: u64,
    /// The processor and its cores.
    pub machine: String,
    /// The allocator of the whole program.
    pub allocator: String,
}

/// The cells as a table; ratios are against `baseline` in the same group of rows.
pub fn render(cells: &[Cell], baseline: &str) -> String {
    let mut rows = vec![
        [
            "keys",
            "workload",
            "threads",
            "batch",
            "index",
            "Mops/s",
            "min",
            "max",
            "ratio",
            "bytes/key",
            "p50 ns",
            "p99 ns",
            "p99.9 ns",
            "max us",
        ]
        .map(str::to_owned)
        .to_vec(),
    ];
    let group = |cell: &Cell| (cell.keys.clone(), cell.workload.clone(), cell.threads, cell.batch);
    let dash = || "-".to_owned();
    for (at, cell) in cells.iter().enumerate() {
        let first = at == 0 || group(&cells[at - 1]) != group(cell);
        if first && at > 0 {
            rows.push(Vec::new());
        }
        let base =
            cells.iter().find(|other| group(other) == group(cell) && other.index == baseline);
        let base = base.and_then(|base| base.mops).map(|mops| mops.median);
        let mut row = if first {
            vec![
                cell.keys.clone(),
                cell.workload.clone(),
                cell.threads.to_string(),
                cell.batch.to_string(),
            ]
        } else {
            vec![String::new(); 4]
        };
        row.push(cell.index.clone());
        match cell.mops {
            Some(mops) => {
                row.extend([mops.median, mops.min, mops.max].map(|mops| format!("{mops:.3}")));
                let ratio = base.map(|base| format!("{:.2}x", mops.median / base));
                row.push(ratio.unwrap_or_else(dash));
            }
            None => row.push(cell.note.clone().unwrap_or_else(dash)),
        }
        if cell.mops.is_some() {
            row.push(cell.bytes_per_key.map_or_else(dash, |bytes| format!("{bytes:.1}")));
            for nanoseconds in [cell.p50_ns, cell.p99_ns, cell.p999_ns] {
                row.push(nanoseconds.map_or_else(dash, |nanoseconds| nanoseconds.to_string()));
            }
            row.push(cell.max_ns.map_or_else(dash, |nanoseconds| (nanoseconds / 1000).to_string()));
        }
        rows.push(row);
    }
    align(&rows)
}

/// Columns as wide as their widest cell; a note may run over the columns behind it.
fn align(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| {
        let cells =
            rows.iter().filter(|row| row.len() == columns).filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            // Figures to the right, names to the left.
            let width = widths[column];
            line += &if column >= 5 && row.len() == columns {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spread_is_of_the_rounds() {
        let spread = Spread::of(&[3.0, 1.0, 2.0]).unwrap();
        assert_eq!((spread.median, spread.min, spread.max), (2.0, 1.0, 3.0));
        assert_eq!(Spread::of(&[]), None);
    }

    #[test]
    fn ratios_are_against_the_baseline_of_the_group() {
        let cell = |index: &str, mops: Option<f64>| Cell {
            index: index.to_owned(),
            keys: "int".to_owned(),
            workload: "c".to_owned(),
            threads: 1,
            batch: 1,
            n: 10,
            ops: 10,
            mops: mops.and_then(|mops| Spread::of(&[mops])),
            p50_ns: None,
            p99_ns: None,
            p999_ns: None,
            max_ns: None,
            bytes_per_key: Some(44.0),
            checked: true,
            note: Some("n/a: no order".to_owned()).filter(|_| mops.is_none()),
            ours: true,
            rounds: 1,
            seed: 1,
            machine: "m".to_owned(),
            allocator: "jemalloc".to_owned(),
        };
        let text = render(&[cell("a", Some(2.0)), cell("b", Some(3.0)), cell("c", None)], "a");
        assert!(text.contains("1.50x") && text.contains("n/a: no order"), "{text}");
    }
}
