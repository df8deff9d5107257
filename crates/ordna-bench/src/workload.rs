//! Workloads: the operations of every thread, written down before the clock starts, each with what
//! it must find.

use std::str::FromStr;

use crate::suggest::unknown;
use crate::zipf::{Random, Zipf};

/// A mix of operations, as named on the command line.
#[derive(Debug, Clone, PartialEq)]
pub enum Workload {
    /// Inserts all keys. Always measured; as a workload of its own nothing follows it.
    Load,
    /// Half reads, half updates, scrambled Zipf 0.99 (YCSB A).
    A,
    /// 95 % reads, 5 % updates (YCSB B).
    B,
    /// Reads (YCSB C).
    C,
    /// 95 % reads of recent keys, 5 % inserts (YCSB D).
    D,
    /// 95 % scans of up to 100 entries, 5 % inserts (YCSB E).
    E,
    /// Half reads, half read-modify-writes (YCSB F).
    F,
    /// Reads of uniformly drawn keys.
    CUniform,
    /// 15 % inserts, 15 % deletes, 70 % reads (HydraList §6.2.7).
    Delmix,
    /// Removes, each of another key (ART Fig. 5).
    Remove,
    /// This percentage of inserts, the rest reads (Wormhole Fig. 17).
    Mix(u32),
    /// Scans of so many entries.
    Scan(usize),
    /// Reads with this Zipf theta.
    Skew(f64),
    /// One thread reads, one removes keys and inserts them again, with this Zipf theta (ART Fig. 6).
    Contend(f64),
}

/// What `--workload` takes.
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

/// What `all` stands for.
pub const STANDARD: [&str; 9] = ["load", "c-uniform", "a", "b", "c", "d", "e", "f", "delmix"];

/// The thetas of plain `contend`: from uniform to one key in 83 % of all operations.
const CONTENDED: [f64; 6] = [0.0, 0.6, 0.99, 1.2, 2.0, 3.0];

/// One workload, or the series that a name stands for.
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

/// What to do with the key at a position of the key set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Must find the key.
    Read,
    /// Must not find the key: it is not inserted yet, or deleted.
    Miss,
    /// May find the key: another thread removes and inserts it meanwhile.
    Look,
    /// Overwrites a key that is there.
    Update,
    /// Reads a key that is there and overwrites it.
    ReadUpdate,
    /// Inserts a key that is not there.
    Insert,
    /// Removes a key that is there.
    Delete,
    /// Scans so many entries from the key on, which is there.
    Scan(u16),
}

/// The operations of a workload, for each thread.
#[derive(Debug, Clone, Default)]
pub struct Written {
    /// What is measured.
    pub operations: Vec<Vec<Operation>>,
    /// What brings back the loaded keys that are missing then: not measured.
    pub restore: Vec<Vec<Operation>>,
}

/// One operation: 8 bytes, read in sequence.
#[derive(Debug, Clone, Copy)]
pub struct Operation {
    /// What to do.
    pub action: Action,
    /// Position of the key in the key set.
    pub key: u32,
}

impl Workload {
    /// The threads by what they do, if they do different things: the workload then has so many.
    pub fn roles(&self) -> &'static [&'static str] {
        if matches!(self, Self::Contend(_)) { &["lookup", "insert+remove"] } else { &[] }
    }

    /// Whether it scans.
    pub fn scans(&self) -> bool {
        matches!(self, Self::E | Self::Scan(_))
    }

    /// Keys that the workload inserts beyond the loaded ones, for `operations` operations.
    pub fn extra_keys(&self, operations: usize) -> usize {
        let share = match self {
            Self::D | Self::E => 7,
            Self::Delmix => 0,
            Self::Mix(percent) => *percent as usize + 2,
            _ => return 0,
        };
        operations * share / 100 + 1000
    }

    /// The operations of each thread on `loaded` keys and `extra` more from position `fresh` on. Threads insert and delete
    /// disjoint keys, so that what each operation finds is known.
    pub fn operations(
        &self,
        loaded: usize,
        fresh: usize,
        extra: usize,
        total: usize,
        threads: usize,
        seed: u64,
    ) -> Written {
        let zipf = match self {
            Self::Skew(theta) | Self::Contend(theta) => Some(Zipf::new(loaded as u64, *theta)),
            Self::CUniform
            | Self::Delmix
            | Self::Remove
            | Self::Mix(_)
            | Self::Scan(_)
            | Self::Load => None,
            _ => Some(Zipf::new(loaded as u64, 0.99)),
        };
        let (operations, restore) = (0..threads)
            .map(|thread| {
                let mut writer = Writer {
                    workload: self,
                    zipf: zipf.as_ref(),
                    loaded: loaded as u64,
                    random: Random::new(seed ^ Random::mix(thread as u64)),
                    fresh: fresh + extra * thread / threads,
                    first: fresh + extra * thread / threads,
                    end: fresh + extra * (thread + 1) / threads,
                    present: Vec::new(),
                    thread,
                    threads,
                };
                let operations = writer.write(total / threads);
                (operations, writer.restore())
            })
            .unzip();
        Written { operations, restore }
    }
}

/// Writes the operations of one thread.
struct Writer<'a> {
    workload: &'a Workload,
    zipf: Option<&'a Zipf>,
    loaded: u64,
    random: Random,
    /// The thread's next key to insert, the first of them, and their end.
    fresh: usize,
    first: usize,
    end: usize,
    /// For delmix: which of the thread's own loaded keys are there.
    present: Vec<bool>,
    thread: usize,
    threads: usize,
}

impl Writer<'_> {
    fn write(&mut self, count: usize) -> Vec<Operation> {
        if matches!(self.workload, Workload::Delmix | Workload::Remove) {
            self.present = vec![true; self.loaded as usize / self.threads];
        }
        match self.workload {
            Workload::Contend(_) => return self.contend(count),
            Workload::Remove => return self.remove(count),
            _ => {}
        }
        (0..count).map(|_| self.next()).collect()
    }

    /// The key at a place among the thread's own.
    fn own(&self, at: usize) -> u32 {
        (at * self.threads + self.thread) as u32
    }

    /// Inserts what the thread's operations leave missing.
    fn restore(&self) -> Vec<Operation> {
        let gaps = self.present.iter().enumerate().filter(|(_, present)| !**present);
        gaps.map(|(at, _)| Operation { action: Action::Insert, key: self.own(at) }).collect()
    }

    /// Each of the thread's own keys once, at most.
    fn remove(&mut self, count: usize) -> Vec<Operation> {
        let count = count.min(self.present.len());
        self.present[..count].fill(false);
        (0..count).map(|at| Operation { action: Action::Delete, key: self.own(at) }).collect()
    }

    /// The first thread looks, the second removes and inserts again.
    fn contend(&mut self, count: usize) -> Vec<Operation> {
        if self.thread == 0 {
            return (0..count)
                .map(|_| Operation { action: Action::Look, key: self.drawn() })
                .collect();
        }
        let pair = |key| [Action::Delete, Action::Insert].map(|action| Operation { action, key });
        (0..count / 2).flat_map(|_| pair(self.drawn())).collect()
    }

    fn drawn(&mut self) -> u32 {
        let key = match self.zipf {
            Some(zipf) => zipf.scrambled(&mut self.random),
            None => self.random.below(self.loaded),
        };
        key as u32
    }

    /// An insert of the next key of one's own; a read when they are used up.
    fn insert(&mut self) -> Operation {
        if self.fresh == self.end {
            return Operation { action: Action::Read, key: self.drawn() };
        }
        self.fresh += 1;
        Operation { action: Action::Insert, key: self.fresh as u32 - 1 }
    }

    fn next(&mut self) -> Operation {
        let percent = self.random.below(100);
        let action = match self.workload {
            Workload::A if percent < 50 => Action::Update,
            Workload::B if percent < 5 => Action::Update,
            Workload::F if percent < 50 => Action::ReadUpdate,
            Workload::D | Workload::E if percent < 5 => return self.insert(),
            Workload::Mix(inserts) if percent < u64::from(*inserts) => return self.insert(),
            Workload::D => return self.latest(),
            Workload::E => Action::Scan(1 + self.random.below(100) as u16),
            Workload::Scan(n) => Action::Scan(*n as u16),
            Workload::Delmix => return self.delmix(percent),
            _ => Action::Read,
        };
        Operation { action, key: self.drawn() }
    }

    /// A read of a recent key: of the thread's own inserts, and behind them the loaded keys.
    fn latest(&mut self) -> Operation {
        let back = self.zipf.map_or(0, |zipf| zipf.rank(&mut self.random)) as usize;
        let own = self.fresh - self.first;
        let key = if back < own {
            self.fresh - 1 - back
        } else {
            self.loaded as usize - 1 - (back - own).min(self.loaded as usize - 1)
        };
        Operation { action: Action::Read, key: key as u32 }
    }

    /// On the thread's own loaded keys: what is there is read or deleted, what is not is missed or
    /// inserted again.
    fn delmix(&mut self, percent: u64) -> Operation {
        let at = self.random.below(self.present.len() as u64) as usize;
        let key = self.own(at);
        let there = self.present[at];
        let action = match percent {
            0..30 if there => Action::Delete,
            0..30 => Action::Insert,
            _ if there => Action::Read,
            _ => Action::Miss,
        };
        self.present[at] = match action {
            Action::Delete => false,
            Action::Insert => true,
            _ => there,
        };
        Operation { action, key }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mixes_are_as_they_say() {
        let share = |workload: &str, wanted: fn(&Action) -> bool| {
            let workload: Workload = workload.parse().unwrap();
            let extra = workload.extra_keys(40_000);
            let threads = workload.operations(10_000, 10_000, extra, 40_000, 2, 1);
            let all: Vec<_> = threads.operations.into_iter().flatten().collect();
            assert_eq!(all.len(), 40_000);
            assert!(all.iter().all(|operation| (operation.key as usize) < 10_000 + extra));
            all.iter().filter(|operation| wanted(&operation.action)).count() as f64 / 40_000.0
        };
        let near = |share: f64, expected: f64| assert!((share - expected).abs() < 0.02, "{share}");
        near(share("a", |action| *action == Action::Update), 0.5);
        near(share("b", |action| *action == Action::Update), 0.05);
        near(share("c", |action| *action == Action::Read), 1.0);
        near(share("d", |action| *action == Action::Insert), 0.05);
        near(share("e", |action| matches!(action, Action::Scan(1..=100))), 0.95);
        near(share("f", |action| *action == Action::ReadUpdate), 0.5);
        near(share("mix:30", |action| *action == Action::Insert), 0.3);
        near(share("delmix", |action| matches!(action, Action::Insert | Action::Delete)), 0.3);
        near(share("scan:7", |action| *action == Action::Scan(7)), 1.0);
        near(share("contend:2", |action| *action == Action::Look), 0.5);
        near(share("contend:2", |action| *action == Action::Delete), 0.25);
    }

    #[test]
    fn threads_insert_disjoint_keys_once() {
        let threads = Workload::Mix(50).operations(100, 100, 5000, 8000, 2, 3);
        let mut keys: Vec<u32> = threads
            .operations
            .iter()
            .flatten()
            .filter(|operation| operation.action == Action::Insert)
            .map(|operation| operation.key)
            .collect();
        let count = keys.len();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), count);
        let removed = Workload::Remove.operations(100, 100, 0, 8000, 2, 3);
        for all in [&removed.operations, &removed.restore] {
            let mut keys: Vec<u32> = all.iter().flatten().map(|operation| operation.key).collect();
            keys.sort_unstable();
            assert_eq!(keys, (0..100).collect::<Vec<_>>());
        }
    }

    #[test]
    fn names_round_trip_and_unknown_ones_list_the_known() {
        for name in [
            "load",
            "a",
            "e",
            "c-uniform",
            "delmix",
            "mix:25",
            "scan:100",
            "skew:1.2",
            "contend:3",
            "remove",
        ] {
            assert_eq!(name.parse::<Workload>().unwrap().to_string(), name);
        }
        assert!("g".parse::<Workload>().unwrap_err().contains("c-uniform"));
        assert!("skwe:1".parse::<Workload>().unwrap_err().contains("did you mean \"skew:THETA\"?"));
        assert!("mix:101".parse::<Workload>().is_err());
        assert_eq!("contend".parse::<Series>().unwrap().0.len(), CONTENDED.len());
    }
}
