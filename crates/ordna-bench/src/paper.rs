//! `ordna bench paper NAME`: the papers' experiments, scaled to the machine.
//!
//! The table says which runs make up a figure. What a figure needs beyond that (counters of an
//! index, several NUMA nodes, a network) it says instead of showing something else.

/// What the runs of a figure vary.
pub struct Runs {
    /// Key sets that stand for the paper's.
    pub keys: &'static [&'static str],
    /// The paper's numbers of keys, in thousands.
    pub thousands: &'static [usize],
    /// Workloads.
    pub workloads: &'static [&'static str],
    /// Keys per call.
    pub batches: &'static [usize],
    /// Whether the number of threads goes from one to all cores; otherwise all cores, or one.
    pub threads: Threads,
}

/// Numbers of threads of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
pub struct Figure {
    /// Its number, as in `--figure`.
    pub name: &'static str,
    /// What it shows.
    pub title: &'static str,
    /// The indexes that it compares, by the names of this benchmark.
    pub indexes: &'static [&'static str],
    /// What is run; nothing if it cannot be.
    pub runs: Option<Runs>,
    /// What differs from the paper, or why nothing is run.
    pub note: &'static str,
}

/// A paper.
pub struct Paper {
    /// As on the command line.
    pub name: &'static str,
    /// As people cite it.
    pub title: &'static str,
    /// Its figures.
    pub figures: &'static [Figure],
}

const HYDRALIST: &[&str] =
    &["locked", "art-olc", "art-rowex", "wormhole-faithful", "masstree", "dashmap", "hydralist"];
const WORMHOLE: &[&str] = &[
    "locked",
    "skiplist",
    "art-none",
    "masstree",
    "wormhole-faithful",
    "wormhole",
    "wormhole-unsafe",
];
const PI: &[&str] = &["skiplist", "masstree", "pi"];
const ART: &[&str] = &["art-none", "art-coupling", "art-olc", "art-rowex", "masstree"];
const NITRO: &[&str] = &["skiplist", "crossbeam-skiplist", "nitro"];

const YCSB: &[&str] = &["load", "a", "b", "c", "d", "e"];
const KEYSETS: &[&str] =
    &["az", "url", "fixed:8", "fixed:16", "fixed:64", "fixed:256", "fixed:1024"];
const LENGTHS: &[&str] = &[
    "fixed:8",
    "filled:8",
    "fixed:16",
    "filled:16",
    "fixed:32",
    "filled:32",
    "fixed:64",
    "filled:64",
    "fixed:128",
    "filled:128",
    "fixed:256",
    "filled:256",
    "fixed:512",
    "filled:512",
];
const NO_AZ2: &str = "the paper's Az2 (user first) has no key set here; each set has as many keys \
                      as --n allows, not the paper's 10 M to 500 M";

const fn runs(
    keys: &'static [&'static str],
    thousands: &'static [usize],
    workloads: &'static [&'static str],
    threads: Threads,
) -> Option<Runs> {
    Some(Runs { keys, thousands, workloads, batches: &[1], threads })
}

const fn in_batches(
    thousands: &'static [usize],
    workloads: &'static [&'static str],
    batches: &'static [usize],
    threads: Threads,
) -> Option<Runs> {
    Some(Runs { keys: &["int"], thousands, workloads, batches, threads })
}

/// All papers.
pub const PAPERS: [Paper; 5] = [
    Paper {
        name: "hydralist",
        title: "HydraList (VLDB 2020)",
        figures: &[
            Figure {
                name: "6",
                title: "YCSB, string keys",
                indexes: HYDRALIST,
                runs: runs(&["email"], &[89_000], YCSB, Threads::Growing),
                note: "",
            },
            Figure {
                name: "7",
                title: "YCSB, integer keys",
                indexes: HYDRALIST,
                runs: runs(&["int"], &[100_000], YCSB, Threads::Growing),
                note: "",
            },
            Figure {
                name: "8",
                title: "15 % insert, 15 % delete, 70 % lookup",
                indexes: HYDRALIST,
                runs: runs(&["email", "int"], &[89_000], &["delmix"], Threads::Growing),
                note: "",
            },
            Figure {
                name: "9",
                title: "factor analysis",
                indexes: &[
                    "art-rowex",
                    "hydralist+leaf=sorted+simd=off+update=synchronous+backoff=off",
                    "hydralist+simd=off+update=synchronous+backoff=off",
                    "hydralist+update=synchronous+backoff=off",
                    "hydralist+backoff=off",
                    "hydralist+replicas=2+backoff=off",
                    "hydralist+replicas=2",
                ],
                runs: runs(&["email"], &[89_000], YCSB, Threads::All),
                note: "from ART on, each with one part more: slotted leaves, fingerprints, SIMD, the \
                       search layer apart, two of them, backoff",
            },
            Figure {
                name: "11",
                title: "memory",
                indexes: HYDRALIST,
                runs: runs(&["int", "email"], &[100_000], &["load"], Threads::All),
                note: "see the columns bytes/key and RSS/key",
            },
            Figure {
                name: "12",
                title: "key set size, YCSB B",
                indexes: HYDRALIST,
                runs: runs(&["email"], &[100, 1000, 89_000], &["b"], Threads::All),
                note: "",
            },
            Figure {
                name: "13",
                title: "distance from jump node to target node",
                indexes: &["hydralist"],
                runs: runs(&["int", "email"], &[100_000], &["load", "delmix"], Threads::Growing),
                note: "counted by the index, in \"counts\" of the JSON",
            },
        ],
    },
    Paper {
        name: "wormhole",
        title: "Wormhole (EuroSys 2019)",
        figures: &[
            Figure {
                name: "9",
                title: "lookups by threads, Az1",
                indexes: WORMHOLE,
                runs: runs(&["az"], &[142_000], &["c-uniform"], Threads::Growing),
                note: "",
            },
            Figure {
                name: "10",
                title: "lookups by key set",
                indexes: WORMHOLE,
                runs: runs(KEYSETS, &[142_000], &["c-uniform"], Threads::All),
                note: NO_AZ2,
            },
            Figure {
                name: "11",
                title: "factor analysis",
                indexes: &[
                    "wormhole+tag-matching=off+incremental-hashing=off+sort-by-tag=off+direct-position=off",
                    "wormhole+incremental-hashing=off+sort-by-tag=off+direct-position=off",
                    "wormhole+sort-by-tag=off+direct-position=off",
                    "wormhole+direct-position=off",
                    "wormhole",
                ],
                runs: runs(KEYSETS, &[142_000], &["c-uniform"], Threads::All),
                note: NO_AZ2,
            },
            Figure {
                name: "13",
                title: "lookups beside a hash table",
                indexes: &["wormhole", "dashmap"],
                runs: runs(KEYSETS, &[142_000], &["c-uniform"], Threads::All),
                note: NO_AZ2,
            },
            Figure {
                name: "14",
                title: "short and long common prefixes",
                indexes: &["wormhole", "dashmap"],
                runs: runs(LENGTHS, &[10_000], &["c-uniform"], Threads::All),
                note: "",
            },
            Figure {
                name: "15",
                title: "continuous insertions",
                indexes: WORMHOLE,
                runs: runs(KEYSETS, &[142_000], &["load"], Threads::One),
                note: NO_AZ2,
            },
            Figure {
                name: "16",
                title: "memory",
                indexes: WORMHOLE,
                runs: runs(KEYSETS, &[142_000], &["load"], Threads::One),
                note: NO_AZ2,
            },
            Figure {
                name: "17",
                title: "mixed lookups and insertions",
                indexes: &["masstree", "wormhole", "wormhole-faithful"],
                runs: runs(KEYSETS, &[142_000], &["mix:5", "mix:50", "mix:95"], Threads::All),
                note: NO_AZ2,
            },
            Figure {
                name: "18",
                title: "ranges of 100",
                indexes: &["locked", "skiplist", "masstree", "wormhole", "wormhole-faithful"],
                runs: runs(KEYSETS, &[142_000], &["scan:100"], Threads::All),
                note: NO_AZ2,
            },
        ],
    },
    Paper {
        name: "pi",
        title: "PI (2016)",
        figures: &[
            Figure {
                name: "6",
                title: "dataset size, search and insert",
                indexes: PI,
                runs: in_batches(
                    &[2000, 4000, 8000, 16_000, 32_000, 64_000, 128_000, 256_000],
                    &["c-uniform", "mix:100"],
                    &[8192],
                    Threads::All,
                ),
                note: "8-byte keys, the paper's have 4",
            },
            Figure {
                name: "7",
                title: "batch size",
                indexes: PI,
                runs: in_batches(
                    &[2000, 16_000, 128_000],
                    &["c-uniform", "mix:100"],
                    &[2048, 4096, 8192, 16_384, 32_768],
                    Threads::All,
                ),
                note: "8-byte keys, the paper's have 4",
            },
            Figure {
                name: "8",
                title: "threads",
                indexes: PI,
                runs: in_batches(
                    &[2000, 16_000, 128_000],
                    &["c-uniform", "mix:100"],
                    &[8192],
                    Threads::Growing,
                ),
                note: "8-byte keys, the paper's have 4",
            },
            Figure {
                name: "9",
                title: "mixed workloads",
                indexes: PI,
                runs: in_batches(
                    &[2000, 16_000, 128_000],
                    &["mix:0", "mix:20", "mix:40", "mix:60", "mix:80", "mix:100"],
                    &[8192],
                    Threads::All,
                ),
                note: "8-byte keys, the paper's have 4",
            },
            Figure {
                name: "10",
                title: "skew",
                indexes: PI,
                runs: in_batches(
                    &[2000, 16_000, 128_000],
                    &["c-uniform", "skew:0.5", "skew:0.9"],
                    &[8192],
                    Threads::All,
                ),
                note: "searches only",
            },
            Figure {
                name: "11",
                title: "skew, without self-adjusted threading",
                indexes: &["pi"],
                runs: None,
                note: "compares with Fig. 10 on four NUMA nodes, and needs a switch of pi",
            },
            Figure {
                name: "13",
                title: "YCSB by skew",
                indexes: PI,
                runs: in_batches(
                    &[2000, 16_000, 128_000],
                    &["skew:0", "skew:0.3", "skew:0.6", "skew:0.9"],
                    &[8192],
                    Threads::All,
                ),
                note: "the paper's ratio of updates 0; for 0.05 and 0.5 at theta 0.99 run workloads \
                       b and a",
            },
            Figure {
                name: "14",
                title: "ranges",
                indexes: PI,
                runs: in_batches(
                    &[2000, 16_000, 128_000],
                    &["c-uniform", "scan:10", "scan:100", "scan:1000"],
                    &[1],
                    Threads::All,
                ),
                note: "ranges are single calls; in batches of 8192, as the paper's: ordna bench pi \
                       --part ranges",
            },
            Figure {
                name: "15",
                title: "factor analysis",
                indexes: &[
                    "pi+simd=off+group=1+prefetch=off",
                    "pi+group=1+prefetch=off",
                    "pi+prefetch=off",
                    "pi",
                ],
                runs: in_batches(&[16_000], &["c-uniform", "mix:100"], &[8192], Threads::All),
                note: "8-byte keys, the paper's have 4; its NUMA partitions are left out: one node",
            },
        ],
    },
    Paper {
        name: "art",
        title: "The ART of Practical Synchronization (DaMoN 2016)",
        figures: &[
            Figure {
                name: "5",
                title: "scalability: lookup, insert, remove",
                indexes: ART,
                runs: runs(&["int"], &[50_000], &["load", "c-uniform", "remove"], Threads::Growing),
                note: "",
            },
            Figure {
                name: "counters",
                title: "cycles, instructions and misses per lookup",
                indexes: ART,
                runs: None,
                note: "needs the processor's counters, which this program does not read",
            },
            Figure {
                name: "6",
                title: "one lookup and one insert+remove thread",
                indexes: ART,
                runs: runs(&["int-dense"], &[10_000], &["contend"], Threads::All),
                note: "",
            },
            Figure {
                name: "7",
                title: "strings: lookup and insert",
                indexes: ART,
                runs: runs(
                    &["fixed:10", "email", "url"],
                    &[16_000],
                    &["load", "c-uniform"],
                    Threads::All,
                ),
                note: "random bytes of 10 for the genomes, email for the titles",
            },
        ],
    },
    Paper {
        name: "nitro",
        title: "Nitro (VLDB 2016)",
        figures: &[
            Figure {
                name: "6",
                title: "inserts by threads and key size",
                indexes: NITRO,
                runs: runs(
                    &["fixed:8", "fixed:16", "fixed:32", "fixed:64", "fixed:128"],
                    &[20_000],
                    &["load"],
                    Threads::Growing,
                ),
                note: "",
            },
            Figure {
                name: "7",
                title: "gets by threads",
                indexes: NITRO,
                runs: runs(&["fixed:8", "fixed:128"], &[20_000], &["c-uniform"], Threads::Growing),
                note: "",
            },
            Figure {
                name: "8",
                title: "gets with as many inserts",
                indexes: NITRO,
                runs: runs(&["fixed:8", "fixed:128"], &[20_000], &["mix:50"], Threads::Growing),
                note: "every thread does both, half and half; the paper has threads of either sort",
            },
            Figure {
                name: "9",
                title: "partitions",
                indexes: &["nitro"],
                runs: None,
                note: "needs nitro's partitions",
            },
        ],
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::KeySet;
    use crate::registry::{Registry, missing};
    use crate::workload::Series;

    #[test]
    fn every_name_in_the_table_is_known() {
        let registry = Registry::new();
        for paper in &PAPERS {
            for figure in paper.figures {
                assert!(figure.runs.is_some() || !figure.note.is_empty(), "{}", figure.title);
                for index in figure.indexes {
                    assert!(registry.find(index).is_ok() || missing(index).is_some(), "{index}");
                }
                let Some(runs) = &figure.runs else { continue };
                for keys in runs.keys {
                    keys.parse::<KeySet>().unwrap();
                }
                for workload in runs.workloads {
                    workload.parse::<Series>().unwrap();
                }
            }
        }
    }

    #[test]
    fn the_figures_of_the_issue_are_there() {
        let names = |at: usize| PAPERS[at].figures.iter().map(|f| f.name).collect::<Vec<_>>();
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
