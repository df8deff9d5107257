//! Workloads: the operations of every thread with their expected results, generated before the
//! measurement.

mod groups;
mod operation;
mod write;

use std::str::FromStr;

pub use self::operation::{Action, Call, Operation};
use crate::suggest::unknown;

/// A mix of operations, as named on the command line.
#[derive(Debug, Clone, PartialEq)]
pub enum Workload {
    /// Inserts all keys. It is always measured; as a separate workload, nothing follows it.
    Load,
    /// Half reads, half updates, scrambled Zipf 0.99 (YCSB A).
    A,
    /// 95 % reads, 5 % updates (YCSB B).
    B,
    /// Reads (YCSB C).
    C,
    /// 95 % reads of the keys that any thread inserted last, 5 % inserts (YCSB D).
    D,
    /// 95 % scans of up to 100 entries, 5 % inserts (YCSB E).
    E,
    /// Half reads, half read-modify-writes (YCSB F).
    F,
    /// Reads of uniformly drawn keys.
    CUniform,
    /// 15 % inserts, 15 % deletes, 70 % reads of existing keys (HydraList §6.2.7). Every thread has
    /// its own keys, some of which are absent at first, so the size of the index stays about the
    /// same.
    Delmix,
    /// Removes, each of a different key (ART Fig. 5).
    Remove,
    /// This percentage of inserts, the rest reads (Wormhole Fig. 17).
    Mix(u32),
    /// Scans of this number of entries.
    Scan(usize),
    /// Reads with this Zipf theta.
    Skew(f64),
    /// One thread reads, and one removes keys and inserts them again, with this Zipf theta (ART
    /// Fig. 6).
    Contend(f64),
}

/// The values of `--workload`.
pub const KNOWN: [&str; 16] = [
    "load",
    "a",
    "b",
    "c",
    "d",
    "e",
    "f",
    "c-uniform",
    "delmix",
    "remove",
    "mix:PERCENT",
    "scan:N",
    "skew:THETA",
    "contend",
    "contend:THETA",
    "all",
];

/// The workloads of `all`.
pub const STANDARD: [&str; 9] = ["load", "c-uniform", "a", "b", "c", "d", "e", "f", "delmix"];

/// The thetas of plain `contend`: from uniform to one key in 83 % of all operations.
const CONTENDED: [f64; 6] = [0.0, 0.6, 0.99, 1.2, 2.0, 3.0];

/// A single workload, or the series with this name.
#[derive(Debug, Clone, PartialEq)]
pub struct Series(pub Vec<Workload>);

impl FromStr for Series {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "contend" => return Ok(Self(CONTENDED.map(Workload::Contend).to_vec())),
            "all" => {
                let all = STANDARD.iter().map(|name| name.parse());
                return all.collect::<Result<_, _>>().map(Self);
            }
            _ => {}
        }
        text.parse().map(|workload| Self(vec![workload]))
    }
}

impl FromStr for Workload {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        fn parse<T: FromStr>(text: &str, good: impl Fn(&T) -> bool) -> Result<T, String> {
            let value = text.parse().ok().filter(good);
            value.ok_or_else(|| {
                format!("{text:?} is not a suitable number; known are {}", KNOWN.join(", "))
            })
        }
        Ok(match text.split_once(':') {
            None => match text {
                "load" => Self::Load,
                "a" => Self::A,
                "b" => Self::B,
                "c" => Self::C,
                "d" => Self::D,
                "e" => Self::E,
                "f" => Self::F,
                "c-uniform" => Self::CUniform,
                "delmix" => Self::Delmix,
                "remove" => Self::Remove,
                _ => return Err(unknown("workload", text, KNOWN)),
            },
            Some(("mix", rest)) => Self::Mix(parse(rest, |percent| *percent <= 100)?),
            Some(("scan", rest)) => Self::Scan(parse(rest, |n| (1..=65_535).contains(n))?),
            Some(("skew", rest)) => Self::Skew(parse(rest, |theta| (0.0..=5.0).contains(theta))?),
            Some(("contend", rest)) => {
                Self::Contend(parse(rest, |theta| (0.0..=5.0).contains(theta))?)
            }
            _ => return Err(unknown("workload", text, KNOWN)),
        })
    }
}

impl std::fmt::Display for Workload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Load => f.write_str("load"),
            Self::A => f.write_str("a"),
            Self::B => f.write_str("b"),
            Self::C => f.write_str("c"),
            Self::D => f.write_str("d"),
            Self::E => f.write_str("e"),
            Self::F => f.write_str("f"),
            Self::CUniform => f.write_str("c-uniform"),
            Self::Delmix => f.write_str("delmix"),
            Self::Remove => f.write_str("remove"),
            Self::Mix(percent) => write!(f, "mix:{percent}"),
            Self::Scan(n) => write!(f, "scan:{n}"),
            Self::Skew(theta) => write!(f, "skew:{theta}"),
            Self::Contend(theta) => write!(f, "contend:{theta}"),
        }
    }
}

/// The operations of a workload, for each thread.
#[derive(Debug, Clone, Default)]
pub struct Written {
    /// The measured operations, for each thread.
    pub operations: Vec<Vec<Operation>>,
    /// Number of operations of the workload. In groups, a read-update is written as two operations.
    pub counted: Vec<usize>,
    /// One operation of each kind that occurs.
    pub actions: Vec<Action>,
    /// The first of the keys that each thread inserts. It inserts the following ones in order.
    pub first: Vec<u32>,
}

impl Written {
    /// Creates a written workload with these operations.
    pub fn new(operations: Vec<Vec<Operation>>, first: Vec<u32>) -> Self {
        let mut actions: Vec<Action> = Vec::new();
        for operation in operations.iter().flatten() {
            let same =
                |a: &Action| std::mem::discriminant(a) == std::mem::discriminant(&operation.action);
            if !actions.iter().any(same) {
                actions.push(operation.action);
            }
        }
        let counted = operations.iter().map(Vec::len).collect();
        Self { operations, counted, actions, first }
    }

    /// Returns the operations in another order, in which those of one call, up to `batch`, are
    /// neighbours. See `groups`.
    #[must_use]
    pub fn grouped(self, batch: usize) -> Self {
        if batch < 2 {
            return self;
        }
        let operations = self.operations.iter().map(|all| groups::grouped(all, batch)).collect();
        Self { counted: self.counted, ..Self::new(operations, self.first) }
    }
}

impl Workload {
    /// Returns the roles of the threads, if they have different ones. The workload then has this
    /// number of threads.
    pub fn roles(&self) -> &'static [&'static str] {
        if matches!(self, Self::Contend(_)) { &["lookup", "insert+remove"] } else { &[] }
    }

    /// Returns whether the workload scans.
    pub fn scans(&self) -> bool {
        matches!(self, Self::E | Self::Scan(_))
    }

    /// Returns whether the workload changes the contents of the index.
    pub fn writes(&self) -> bool {
        !matches!(self, Self::C | Self::CUniform | Self::Scan(_) | Self::Skew(_) | Self::Mix(0))
    }

    /// Returns the reason why the workload cannot be run in groups, or `None` if it can.
    pub fn ungroupable(&self) -> Option<&'static str> {
        self.scans().then_some("there is no call for groups of scans")
    }

    /// Returns whether the keys that it has inserted in addition to the loaded ones are removed
    /// after it.
    pub fn returns(&self) -> bool {
        *self == Self::Delmix
    }

    /// Returns the number of keys that the workload inserts in addition to the loaded ones, for
    /// `operations` operations.
    pub fn extra_keys(&self, operations: usize, threads: usize) -> usize {
        // Much more than random deviations from the mean.
        let spread = 8 * ((operations.saturating_mul(threads)) as f64).sqrt() as usize;
        let percent = match self {
            Self::D | Self::E => 5,
            Self::Delmix => 0,
            Self::Mix(percent) if *percent > 0 => *percent as usize,
            _ => return 0,
        };
        (operations as f64 * percent as f64 / 100.0) as usize + spread + 16 * threads
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_unknown_ones_list_the_known() {
        for name in "load a e c-uniform delmix mix:25 scan:100 skew:1.2 contend:3 remove".split(' ')
        {
            assert_eq!(name.parse::<Workload>().unwrap().to_string(), name);
        }
        assert!("g".parse::<Workload>().unwrap_err().contains("c-uniform"));
        assert!("skwe:1".parse::<Workload>().unwrap_err().contains("did you mean \"skew:THETA\"?"));
        assert!("mix:101".parse::<Workload>().is_err());
        assert_eq!("contend".parse::<Series>().unwrap().0.len(), CONTENDED.len());
    }

    #[test]
    fn workloads_that_write_say_so() {
        for name in KNOWN.iter().filter(|name| !["all", "contend:THETA"].contains(name)) {
            let name = name.replace("PERCENT", "9").replace(":N", ":9").replace("THETA", "1");
            for workload in name.parse::<Series>().unwrap().0 {
                if workload == Workload::Load {
                    continue;
                }
                let written = workload.operations(100, 100, 900, 2000, 2, 1);
                let reads =
                    |a: &Action| matches!(a, Action::Scan(_)) || a.call() == Some(Call::Get);
                assert_eq!(workload.writes(), !written.actions.iter().all(reads), "{workload}");
            }
        }
    }
}
