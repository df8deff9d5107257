//! Generates the operations of a workload.

use super::{Action, Operation, Workload, Written};
use crate::zipf::{Random, Scrambled, Zipf};

/// The distribution of the keys of reads, updates and scans among the loaded ones.
enum Draw {
    Uniform,
    /// The distribution of YCSB, whatever the number of keys.
    Scrambled(Scrambled),
    /// A distribution over the ranks of the loaded keys.
    Zipf(Zipf),
}

impl Workload {
    /// Returns the operations of each thread on `loaded` keys and `extra` further ones from
    /// position `fresh` on. Threads insert and delete disjoint keys, so that the expected result of
    /// each operation is known.
    pub fn operations(
        &self,
        loaded: usize,
        fresh: usize,
        extra: usize,
        total: usize,
        threads: usize,
        seed: u64,
    ) -> Written {
        let draw = match self {
            Self::A | Self::B | Self::C | Self::E | Self::F => {
                Draw::Scrambled(Scrambled::new(loaded as u64))
            }
            Self::D => Draw::Zipf(Zipf::new(loaded as u64, 0.99)),
            Self::Skew(theta) | Self::Contend(theta) => {
                Draw::Zipf(Zipf::new(loaded as u64, *theta))
            }
            Self::CUniform
            | Self::Delmix
            | Self::Remove
            | Self::Mix(_)
            | Self::Scan(_)
            | Self::Load => Draw::Uniform,
        };
        let part =
            |all: usize, thread: usize| (all as u128 * thread as u128 / threads as u128) as usize;
        let (operations, first) = (0..threads)
            .map(|thread| {
                let first = fresh + part(extra, thread);
                let writer = Writer {
                    workload: self,
                    draw: &draw,
                    loaded: loaded as u64,
                    random: Random::new(Random::mix(seed) ^ Random::mix(thread as u64)),
                    fresh: first,
                    end: fresh + part(extra, thread + 1),
                    thread,
                    threads,
                };
                let count = part(total, thread + 1) - part(total, thread);
                (writer.write(count, total), first as u32)
            })
            .unzip();
        Written::new(operations, first)
    }
}

/// Generates the operations of one thread.
struct Writer<'a> {
    workload: &'a Workload,
    draw: &'a Draw,
    loaded: u64,
    random: Random,
    /// The thread's next key to insert, and the end of its keys.
    fresh: usize,
    end: usize,
    thread: usize,
    threads: usize,
}

impl Writer<'_> {
    /// Generates `count` operations, of `total` operations of all threads.
    fn write(mut self, count: usize, total: usize) -> Vec<Operation> {
        match self.workload {
            Workload::Contend(_) => self.contend(count),
            Workload::Remove => self.remove(total),
            Workload::Delmix => self.delmix(count),
            _ => (0..count).map(|_| self.next()).collect(),
        }
    }

    /// Returns the loaded keys that no other thread removes or inserts.
    fn own(&self) -> impl Iterator<Item = u32> + use<> {
        (self.thread..self.loaded as usize).step_by(self.threads).map(|key| key as u32)
    }

    /// Generates removes of the first `total` keys, each once, by one of the threads.
    fn remove(&self, total: usize) -> Vec<Operation> {
        let keys = self.own().take_while(|key| (*key as usize) < total);
        keys.map(|key| Operation { action: Action::Delete, key }).collect()
    }

    /// Generates reads for the first thread, and removes followed by inserts for the second.
    fn contend(&mut self, count: usize) -> Vec<Operation> {
        if self.thread == 0 {
            return (0..count)
                .map(|_| Operation { action: Action::Look, key: self.drawn() })
                .collect();
        }
        let pair = |key| [Action::Delete, Action::Insert].map(|action| Operation { action, key });
        (0..count.div_ceil(2)).flat_map(|_| pair(self.drawn())).collect()
    }

    fn drawn(&mut self) -> u32 {
        let key = match self.draw {
            Draw::Uniform => self.random.below(self.loaded),
            Draw::Scrambled(scrambled) => scrambled.draw(&mut self.random),
            Draw::Zipf(zipf) => zipf.scattered(&mut self.random),
        };
        key as u32
    }

    /// Generates an insert of the thread's next key. Returns `None` when they are used up.
    fn insert(&mut self) -> Option<Operation> {
        if self.fresh == self.end {
            return None;
        }
        self.fresh += 1;
        Some(Operation { action: Action::Insert, key: self.fresh as u32 - 1 })
    }

    fn next(&mut self) -> Operation {
        let percent = self.random.below(100);
        let inserts = match self.workload {
            Workload::D | Workload::E => 5,
            Workload::Mix(inserts) => u64::from(*inserts),
            _ => 0,
        };
        if percent < inserts
            && let Some(insert) = self.insert()
        {
            return insert;
        }
        let action = match self.workload {
            Workload::A if percent < 50 => Action::Update,
            Workload::B if percent < 5 => Action::Update,
            Workload::F if percent < 50 => Action::ReadUpdate,
            Workload::D => return self.latest(),
            Workload::E => Action::Scan(1 + self.random.below(100) as u16),
            Workload::Scan(n) => Action::Scan(*n as u16),
            _ => Action::Read,
        };
        Operation { action, key: self.drawn() }
    }

    /// Generates a read of a recent key. Which key this is depends on the progress of all threads
    /// during the run.
    fn latest(&mut self) -> Operation {
        let back = match self.draw {
            Draw::Zipf(zipf) => zipf.rank(&mut self.random),
            Draw::Uniform | Draw::Scrambled(_) => 0,
        };
        Operation { action: Action::Latest, key: back as u32 }
    }

    /// Generates operations on the thread's own keys: existing keys are read or deleted, and absent
    /// ones are inserted. Which of the three is drawn does not depend on the key.
    fn delmix(&mut self, count: usize) -> Vec<Operation> {
        let mut present: Vec<u32> = self.own().collect();
        let mut absent: Vec<u32> = (self.fresh as u32..self.end as u32).collect();
        let mut operations = Vec::with_capacity(count);
        for _ in 0..count {
            let percent = self.random.below(100);
            // A thread with few keys runs out of existing or of absent ones.
            let action = match percent {
                0..15 if !absent.is_empty() => Action::Insert,
                _ if present.is_empty() => Action::Insert,
                0..15 | 30.. => Action::Read,
                _ => Action::Delete,
            };
            let from = if action == Action::Insert { &mut absent } else { &mut present };
            if from.is_empty() {
                break;
            }
            let at = self.random.below(from.len() as u64) as usize;
            let key = from[at];
            match action {
                Action::Insert => present.push(absent.swap_remove(at)),
                Action::Delete => absent.push(present.swap_remove(at)),
                _ => {}
            }
            operations.push(Operation { action, key });
        }
        operations
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn all(workload: &str, loaded: usize, total: usize, threads: usize) -> Vec<Operation> {
        let workload: Workload = workload.parse().unwrap();
        let extra = workload.extra_keys(total, threads);
        let written = workload.operations(loaded, loaded, extra, total, threads, 1);
        let all: Vec<_> = written.operations.into_iter().flatten().collect();
        assert_eq!(all.len(), total, "{workload}");
        assert!(all.iter().all(|operation| (operation.key as usize) < loaded + extra));
        all
    }

    #[test]
    fn mixes_are_as_they_say() {
        let share = |workload: &str, wanted: fn(&Action) -> bool| {
            let all = all(workload, 10_000, 40_000, 2);
            all.iter().filter(|operation| wanted(&operation.action)).count() as f64 / 40_000.0
        };
        let near = |share: f64, expected: f64| assert!((share - expected).abs() < 0.01, "{share}");
        near(share("a", |action| *action == Action::Update), 0.5);
        near(share("b", |action| *action == Action::Update), 0.05);
        near(share("c", |action| *action == Action::Read), 1.0);
        near(share("d", |action| *action == Action::Insert), 0.05);
        near(share("d", |action| *action == Action::Latest), 0.95);
        near(share("e", |action| matches!(action, Action::Scan(1..=100))), 0.95);
        near(share("f", |action| *action == Action::ReadUpdate), 0.5);
        near(share("mix:30", |action| *action == Action::Insert), 0.3);
        near(share("mix:100", |action| *action == Action::Insert), 1.0);
        near(share("delmix", |action| *action == Action::Insert), 0.15);
        near(share("delmix", |action| *action == Action::Delete), 0.15);
        near(share("delmix", |action| *action == Action::Read), 0.7);
        near(share("scan:7", |action| *action == Action::Scan(7)), 1.0);
        near(share("contend:2", |action| *action == Action::Look), 0.5);
        near(share("contend:2", |action| *action == Action::Delete), 0.25);
    }

    /// Every insert of `delmix` uses an absent key, every delete and read an existing one, and the
    /// number of keys stays about the same.
    #[test]
    fn delmix_applies_what_it_says_and_keeps_the_size() {
        let (loaded, total) = (20_000, 400_000);
        for threads in [1, 3] {
            let mut there: BTreeSet<u32> = (0..loaded as u32).collect();
            let (mut inserted, mut deleted, mut hits) = (0, 0, 0);
            let (mut least, mut most) = (loaded, loaded);
            for Operation { action, key } in all("delmix", loaded, total, threads) {
                match action {
                    Action::Insert => inserted += usize::from(there.insert(key)),
                    Action::Delete => deleted += usize::from(there.remove(&key)),
                    Action::Read => hits += usize::from(there.contains(&key)),
                    other => panic!("{other:?}"),
                }
                (least, most) = (least.min(there.len()), most.max(there.len()));
            }
            let near = |count: usize, share: f64| {
                let found = count as f64 / total as f64;
                assert!((found - share).abs() < 0.005, "{found} for {share}");
            };
            near(inserted, 0.15);
            near(deleted, 0.15);
            near(hits, 0.70);
            assert!(least > loaded * 9 / 10 && most < loaded * 11 / 10, "{least} to {most}");
        }
    }

    #[test]
    fn few_keys_and_many_threads_are_no_trouble() {
        for loaded in [1, 2, 5] {
            for threads in [1, 2, 7] {
                for workload in ["delmix", "d", "a", "contend:1", "mix:100", "skew:5", "e"] {
                    let workload: Workload = workload.parse().unwrap();
                    let total = 100.max(threads);
                    let extra = workload.extra_keys(total, threads);
                    let written = workload.operations(loaded, loaded, extra, total, threads, 1);
                    assert!(written.operations.iter().all(|operations| !operations.is_empty()));
                }
                // There are so few keys that not every thread has one to remove.
                let removed = Workload::Remove.operations(loaded, loaded, 0, 100, threads, 1);
                assert_eq!(removed.operations.iter().map(Vec::len).sum::<usize>(), loaded);
            }
        }
    }

    #[test]
    fn threads_insert_and_remove_disjoint_keys_once() {
        let keys = |workload: Workload, wanted: Action| {
            let threads = workload.operations(101, 101, 5000, 8001, 2, 3);
            let all = threads.operations.iter().flatten();
            let all = all.filter(|operation| operation.action == wanted);
            let mut keys: Vec<u32> = all.map(|operation| operation.key).collect();
            let count = keys.len();
            keys.sort_unstable();
            keys.dedup();
            assert_eq!(keys.len(), count);
            keys
        };
        assert!(keys(Workload::Mix(50), Action::Insert).len() > 3900);
        assert_eq!(keys(Workload::Remove, Action::Delete), (0..101).collect::<Vec<_>>());
    }
}
