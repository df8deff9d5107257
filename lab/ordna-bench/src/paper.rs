//! `ordna-bench paper NAME`: the papers' experiments, scaled to the machine.
//!
//! `papers.json` says which runs make up a figure. What a figure needs beyond that (counters of an
//! index, several NUMA nodes, a network) it says instead of showing something else.

use std::sync::LazyLock;

use serde::Deserialize;

/// The parameters of the runs of a figure.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Runs {
    /// Key sets that stand for the paper's.
    pub keys: Vec<String>,
    /// The paper's numbers of keys, in thousands.
    pub thousands: Vec<usize>,
    /// Workloads.
    pub workloads: Vec<String>,
    /// Keys per call.
    #[serde(default = "single")]
    pub batches: Vec<usize>,
    /// Whether the number of threads goes from one to all cores; otherwise all cores, or one.
    pub threads: Threads,
}

fn single() -> Vec<usize> {
    vec![1]
}

/// Numbers of threads of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Threads {
    /// One.
    One,
    /// As many as there are cores.
    All,
    /// From one to all, doubling.
    Growing,
}

impl Threads {
    /// On a machine with so many cores.
    pub fn on(self, cores: usize) -> Vec<usize> {
        match self {
            Self::One => vec![1],
            Self::All => vec![cores],
            Self::Growing => {
                let doubling = std::iter::successors(Some(1), |threads| Some(threads * 2));
                let mut all: Vec<usize> = doubling.take_while(|threads| *threads < cores).collect();
                all.push(cores);
                all
            }
        }
    }
}

/// A figure of a paper.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    /// Its number, as in `--figure`.
    pub name: String,
    /// Its title.
    pub title: String,
    /// The indexes that it compares, by the names of this benchmark.
    pub indexes: Vec<String>,
    /// Its runs; none if it cannot be run.
    pub runs: Option<Runs>,
    /// The differences from the paper, or the reason why nothing is run.
    #[serde(default)]
    pub note: String,
}

/// A paper.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Paper {
    /// As on the command line.
    pub name: String,
    /// As people cite it.
    pub title: String,
    /// Its figures.
    pub figures: Vec<Figure>,
}

/// All papers.
pub static PAPERS: LazyLock<Vec<Paper>> = LazyLock::new(|| {
    let text = include_str!("../papers.json");
    serde_json::from_str(text).expect("a test reads the same file")
});

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::KeySet;
    use crate::registry::{Registry, missing};
    use crate::workload::Series;

    #[test]
    fn every_name_in_the_table_is_known() {
        let registry = Registry::new();
        for paper in &*PAPERS {
            for figure in &paper.figures {
                assert!(figure.runs.is_some() || !figure.note.is_empty(), "{}", figure.title);
                for index in &figure.indexes {
                    assert!(registry.find(index).is_ok() || missing(index).is_some(), "{index}");
                }
                let Some(runs) = &figure.runs else { continue };
                for keys in &runs.keys {
                    keys.parse::<KeySet>().unwrap();
                }
                for workload in &runs.workloads {
                    workload.parse::<Series>().unwrap();
                }
            }
        }
    }

    #[test]
    fn the_figures_of_the_issue_are_there() {
        let names = |at: usize| PAPERS[at].figures.iter().map(|f| &*f.name).collect::<Vec<_>>();
        assert_eq!(names(0), ["6", "7", "8", "9", "11", "12", "13"]);
        assert_eq!(names(1), ["9", "10", "11", "13", "14", "15", "16", "17", "18"]);
        assert_eq!(names(2), ["6", "7", "8", "9", "10", "11", "13", "14", "15"]);
        assert_eq!(names(3), ["5", "counters", "6", "7"]);
        assert_eq!(names(4), ["6", "7", "8", "9"]);
    }

    #[test]
    fn threads_grow_to_the_cores() {
        assert_eq!(Threads::Growing.on(1), [1]);
        assert_eq!(Threads::Growing.on(2), [1, 2]);
        assert_eq!(Threads::Growing.on(12), [1, 2, 4, 8, 12]);
    }
}
