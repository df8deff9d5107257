//! Compares the memtable of Ordna's example with one based on crossbeam-skiplist: versions put by
//! one and two threads, reads of present keys, and a flush.

use std::cmp::Reverse;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use crossbeam_skiplist::SkipMap;

use crate::random::{Random, mix};
use crate::{Failure, median};

#[allow(dead_code, reason = "the example uses all of it")]
#[path = "../../../crates/ordna/examples/memtable/versions.rs"]
mod versions;
use versions::{Memtable, Version};

/// Writes and reads of versions by threads.
trait Versions: Send + Sync {
    fn put(&self, key: &[u8], sequence: u64, value: &[u8]) -> Result<(), Failure>;
    fn get(&self, key: &[u8], at: u64) -> Option<Vec<u8>>;
    /// Reads all versions in order. Returns their number and a checksum.
    fn flush(self: Box<Self>) -> Result<(u64, u64), Failure>;
}

/// Returns a sum that depends on the order.
fn add(sum: u64, key: &[u8], sequence: u64, value: &[u8]) -> u64 {
    let word = |bytes: &[u8]| bytes.iter().fold(0_u64, |sum, byte| sum * 31 + u64::from(*byte));
    mix(sum ^ word(key).wrapping_add(sequence)).wrapping_add(word(value))
}

struct Ordna(Arc<Memtable>);

impl Versions for Ordna {
    fn put(&self, key: &[u8], sequence: u64, value: &[u8]) -> Result<(), Failure> {
        Ok(self.0.put(key, sequence, Some(value))?)
    }

    fn get(&self, key: &[u8], at: u64) -> Option<Vec<u8>> {
        match self.0.get(key, at)? {
            Version::Value(value) => Some(value),
            Version::Removed => None,
        }
    }

    fn flush(self: Box<Self>) -> Result<(u64, u64), Failure> {
        let (mut count, mut sum) = (0, 0);
        self.0.freeze().flush(|key, sequence, value| {
            count += 1;
            sum = add(sum, key, sequence, value.ok_or("a version is of no key")?);
            Ok::<(), Failure>(())
        })?;
        Ok((count, sum))
    }
}

#[derive(Default)]
struct Crossbeam(SkipMap<(Vec<u8>, Reverse<u64>), Vec<u8>>);

impl Versions for Crossbeam {
    fn put(&self, key: &[u8], sequence: u64, value: &[u8]) -> Result<(), Failure> {
        self.0.insert((key.to_vec(), Reverse(sequence)), value.to_vec());
        Ok(())
    }

    fn get(&self, key: &[u8], at: u64) -> Option<Vec<u8>> {
        let entry = self.0.range((key.to_vec(), Reverse(at))..).next()?;
        (entry.key().0 == key).then(|| entry.value().clone())
    }

    fn flush(self: Box<Self>) -> Result<(u64, u64), Failure> {
        let (mut count, mut sum) = (0, 0);
        for entry in self.0.iter() {
            count += 1;
            sum = add(sum, &entry.key().0, entry.key().1.0, entry.value());
        }
        Ok((count, sum))
    }
}

/// Returns a key of 16 bytes. Each key has four versions.
fn key(at: u64, entries: u64) -> [u8; 16] {
    let mut key = *b"user000000000000";
    key[8..].copy_from_slice(&mix(at % (entries / 4).max(1)).to_be_bytes());
    key
}

fn value(at: u64) -> [u8; 100] {
    let mut value = [7; 100];
    value[..8].copy_from_slice(&at.to_be_bytes());
    value
}

/// Returns millions per second of puts, gets, and flushed versions.
fn measure(
    table: Box<dyn Versions>,
    entries: u64,
    threads: u64,
) -> Result<([f64; 3], u64), Failure> {
    let rate = |began: Instant| entries as f64 / began.elapsed().as_secs_f64() / 1e6;
    let sequence = AtomicU64::new(1);
    let shared = &*table;
    let began = Instant::now();
    in_threads(threads, |thread| {
        let mine = (0..entries).skip(thread as usize).step_by(threads as usize);
        mine.map(|at| (at, &sequence)).try_for_each(|(at, sequence)| {
            // With one thread, all candidates get the same numbers, so their sums are equal.
            let number = sequence.fetch_add(1, Ordering::Relaxed);
            shared.put(&key(at, entries), number, &value(at))
        })
    })?;
    let puts = rate(began);
    let began = Instant::now();
    in_threads(threads, |thread| {
        let mut random = Random::new(thread);
        for _ in 0..entries / threads {
            let key = key(random.below(entries), entries);
            let found = shared.get(&key, u64::MAX).ok_or("a key is absent")?;
            let at = u64::from_be_bytes(found.get(..8).ok_or("a value is short")?.try_into()?);
            if self::key(at, entries) != key {
                return Err(format!("{key:?} has the value of another key").into());
            }
        }
        Ok(())
    })?;
    let gets = rate(began);
    let began = Instant::now();
    let (count, sum) = table.flush()?;
    if count != entries {
        return Err(format!("{count} versions were flushed, {entries} put").into());
    }
    Ok(([puts, gets, rate(began)], sum))
}

fn in_threads(
    threads: u64,
    work: impl Fn(u64) -> Result<(), Failure> + Sync,
) -> Result<(), Failure> {
    thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> =
            (0..threads).map(|thread| scope.spawn(move || work(thread))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no thread panics"))
    })
}

pub fn run(entries: u64, rounds: u64) -> Result<(), Failure> {
    println!(
        "{entries} versions of 16 + 100 bytes, four of each key; {rounds} rounds, million a second"
    );
    println!("| | threads | puts | gets | flush |");
    println!("|---|---|---|---|---|");
    for threads in [1, 2] {
        let mut figures = vec![[const { Vec::new() }; 3]; 2];
        for _ in 0..rounds {
            let tables: [Box<dyn Versions>; 2] =
                [Box::new(Ordna(Arc::new(Memtable::new()))), Box::new(Crossbeam::default())];
            let mut sums = Vec::new();
            for (table, figures) in tables.into_iter().zip(&mut figures) {
                let (rates, sum) = measure(table, entries, threads)?;
                figures.iter_mut().zip(rates).for_each(|(all, rate)| all.push(rate));
                sums.push(sum);
            }
            if threads == 1 && sums[0] != sums[1] {
                return Err("the tables were flushed in different orders".into());
            }
        }
        for (name, figures) in ["ordna", "crossbeam-skiplist"].iter().zip(figures) {
            let [puts, gets, flush] = figures.map(median);
            println!("| {name} | {threads} | {puts:.2} | {gets:.2} | {flush:.1} |");
        }
    }
    Ok(())
}
