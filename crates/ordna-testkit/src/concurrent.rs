//! Concurrent writers and readers, with keys and values that verify themselves.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::ops::{Bound, ControlFlow};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ordna_base::{Direction, OrderedIndex};

use crate::erased::{Erased, Subject};
use crate::kinds::{TestKey, TestValue, is_stamped_for, stamp};
use crate::random::Random;

const WRITERS: u64 = 3;
const READERS: u64 = 1;

/// Minimum number of rounds of a reader or scanner, each with at least as many concurrent rounds of
/// a writer. On a busy machine, a thread may get no time before the test's time is over.
const ROUNDS: u64 = 16;

/// Checks writers each of which owns the keys of one residue class. So it knows their values at any
/// moment, and all writers together know the final contents. Readers check that what they find
/// belongs to the key.
///
/// # Panics
/// Panics if an answer is wrong.
pub fn check_owners<S: Subject<Key: TestKey, Value: TestValue>>(new: impl Fn() -> S) {
    run_owners(&|| new().erase());
}

pub(crate) fn run_owners<K, V>(new: &dyn Fn() -> Erased<K, V>)
where
    K: TestKey + ?Sized,
    V: TestValue + ?Sized,
{
    // Few keys lead to conflicts in the same nodes, more keys to structural changes.
    for keys in [12, 600] {
        owners(&new(), keys);
    }
}

fn owners<K, V>(index: &Erased<K, V>, keys: u64)
where
    K: TestKey + ?Sized,
    V: TestValue + ?Sized,
{
    let end = Instant::now() + crate::budget() / 2;
    let numbers: HashMap<_, u64> = (0..keys).map(|n| (K::number(n), n)).collect();
    let done = AtomicBool::new(false);
    let reads = AtomicU64::new(0);
    let contents: Vec<HashMap<u64, u64>> = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let reads = &reads;
                scope.spawn(move || {
                    crate::shaken(writer + 1, || write_own(index, keys, writer, end, reads))
                })
            })
            .collect();
        for reader in 0..READERS {
            let (numbers, done, reads) = (&numbers, &done, &reads);
            scope.spawn(move || read_all(index, keys, reader, numbers, done, reads));
        }
        let contents = writers.into_iter().map(|writer| writer.join());
        let contents: Vec<_> = contents.collect();
        done.store(true, Ordering::Relaxed);
        contents.into_iter().map(|content| content.expect("a writer failed")).collect()
    });
    let reads = reads.into_inner();
    assert!(reads >= ROUNDS, "only {reads} rounds of reads beside the writers");
    let report = index.check_invariants().unwrap_or_else(|broken| panic!("{broken}"));
    let expected: HashMap<u64, u64> = contents.into_iter().flatten().collect();
    let mut found = HashMap::new();
    index.visit(Bound::Unbounded, Bound::Unbounded, Direction::Ascending, |key, value| {
        found.insert(numbers[key], value.word());
        ControlFlow::Continue(())
    });
    assert_eq!(found, expected, "final content, {keys} keys");
    assert_eq!(report.entries, expected.len());
    assert_eq!(index.approximate_len(), expected.len());
}

fn write_own<K, V>(
    index: &Erased<K, V>,
    keys: u64,
    writer: u64,
    end: Instant,
    reads: &AtomicU64,
) -> HashMap<u64, u64>
where
    K: TestKey + ?Sized,
    V: TestValue + ?Sized,
{
    let mut random = Random::new(writer);
    let mut content: HashMap<u64, u64> = HashMap::new();
    let mut sequence = 0;
    while crate::goes_on(end, sequence >= 64 * ROUNDS && reads.load(Ordering::Relaxed) >= ROUNDS) {
        if sequence >= 64 * ROUNDS {
            make_room(end);
        }
        for _ in 0..64 {
            sequence += 1;
            let n = random.below(keys / WRITERS) * WRITERS + writer;
            let key = K::number(n);
            let key: &K = key.borrow();
            let word = stamp(n, writer, sequence);
            let value = V::dress(word);
            let before = content.get(&n).copied();
            let old = match random.below(8) {
                0..=2 => {
                    content.insert(n, word);
                    index.insert(key, value.borrow()).expect("within the limits")
                }
                3..=4 => {
                    content.remove(&n);
                    index.remove(key)
                }
                5 => {
                    content.entry(n).or_insert(word);
                    index.insert_if_absent(key, value.borrow()).expect("within the limits")
                }
                6 => {
                    if before.is_some() {
                        content.insert(n, word);
                    }
                    let mut seen = None;
                    let update = |old: &V| {
                        seen = Some(old.to_owned());
                        value.clone()
                    };
                    index.update(key, update).expect("within the limits");
                    seen
                }
                _ => index.get(key),
            };
            let old = old.map(|old| old.borrow().word());
            assert_eq!(old, before, "writer {writer}, step {sequence}: own key {key:?}");
        }
    }
    content
}

/// Pauses a writer when the time is over, because then only readers lack rounds. Without the pause,
/// three writers on two cores would slow the readers down several times.
fn make_room(end: Instant) {
    if Instant::now() >= end {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn read_all<K, V>(
    index: &Erased<K, V>,
    keys: u64,
    reader: u64,
    numbers: &HashMap<K::Owned, u64>,
    done: &AtomicBool,
    reads: &AtomicU64,
) where
    K: TestKey + ?Sized,
    V: TestValue + ?Sized,
{
    let mut random = Random::new(1000 + reader);
    while !done.load(Ordering::Relaxed) {
        let many: Vec<_> = (0..20).map(|_| random.below(keys)).collect();
        let dressed: Vec<_> = many.iter().map(|n| K::number(*n)).collect();
        index.get_many_with(&dressed, |at, value| {
            if let Some(value) = value {
                let word = value.word();
                assert!(is_stamped_for(word, many[at]), "{:?} holds {word:#x}", dressed[at]);
            }
        });
        for (n, key) in many.iter().zip(&dressed) {
            if let Some(value) = index.get(key.borrow()) {
                let word = value.borrow().word();
                assert!(is_stamped_for(word, *n), "{key:?} holds {word:#x}");
            }
        }
        let from = K::number(random.below(keys));
        let mut last: Option<K::Owned> = None;
        let from: &K = from.borrow();
        index.visit(Bound::Included(from), Bound::Unbounded, Direction::Ascending, |key, value| {
            let owned = key.to_owned();
            assert!(key >= from, "{key:?} is below the bound {from:?}");
            assert!(last.as_ref().is_none_or(|last| *last < owned), "{key:?} after {last:?}");
            let n = numbers.get(key).unwrap_or_else(|| panic!("{key:?} was never written"));
            assert!(is_stamped_for(value.word(), *n), "{key:?} holds a foreign value");
            last = Some(owned);
            ControlFlow::Continue(())
        });
        reads.fetch_add(1, Ordering::Relaxed);
    }
}

/// Checks scans while writers insert and remove two thirds of the keys. Every scan, in both
/// directions and within bounds, must return each other key once, in order.
///
/// # Panics
/// Panics if a scan misses, repeats or invents a key.
pub fn check_scans<S: Subject<Key: TestKey, Value: TestValue>>(new: impl Fn() -> S) {
    run_scans(&|| new().erase());
}

pub(crate) fn run_scans<K, V>(new: &dyn Fn() -> Erased<K, V>)
where
    K: TestKey + ?Sized,
    V: TestValue + ?Sized,
{
    for keys in [24, 900] {
        scans(&new(), keys);
    }
}

fn scans<K, V>(index: &Erased<K, V>, keys: u64)
where
    K: TestKey + ?Sized,
    V: TestValue + ?Sized,
{
    let end = Instant::now() + crate::budget() / 2;
    let mut staying: Vec<_> = (0..keys).step_by(3).map(|n| (K::number(n), n)).collect();
    staying.sort();
    for (key, n) in &staying {
        let value = V::dress(stamp(*n, 0, 0));
        index.insert(key.borrow(), value.borrow()).expect("within the limits");
    }
    let (scanning, churned) = (AtomicU64::new(2), AtomicU64::new(0));
    let fewest = std::thread::scope(|scope| {
        let (staying, scanning, churned) = (&staying, &scanning, &churned);
        for writer in 0..2_u64 {
            scope.spawn(move || {
                crate::shaken(writer + 1, || churn(index, keys, writer, end, scanning, churned))
            });
        }
        let scanners = [0, 1_u64].map(|scanner| {
            scope.spawn(move || {
                let _leaves = Leaves(scanning);
                let (mut random, mut rounds) = (Random::new(77 + scanner), 0);
                let enough = |rounds: u64| rounds.min(churned.load(Ordering::Relaxed)) >= ROUNDS;
                while crate::goes_on(end, enough(rounds)) {
                    crate::shaken(random.next_u64(), || scan(index, keys, staying, &mut random));
                    rounds += 1;
                }
                rounds
            })
        });
        scanners.map(|scanner| scanner.join().expect("a scanner failed")).into_iter().min()
    });
    let beside = fewest.min(Some(churned.into_inner()));
    assert!(beside >= Some(ROUNDS), "only {beside:?} scans beside the writers");
    index.check_invariants().unwrap_or_else(|broken| panic!("{broken}"));
}

/// Counts a scanner as ended on drop, even after a panic.
struct Leaves<'a>(&'a AtomicU64);

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Inserts and removes the keys that do not stay, and overwrites the others, while scanners scan.
fn churn<K, V>(
    index: &Erased<K, V>,
    keys: u64,
    writer: u64,
    end: Instant,
    scanning: &AtomicU64,
    rounds: &AtomicU64,
) where
    K: TestKey + ?Sized,
    V: TestValue + ?Sized,
{
    let mut random = Random::new(writer);
    while scanning.load(Ordering::Relaxed) > 0 {
        if rounds.fetch_add(1, Ordering::Relaxed) >= ROUNDS {
            make_room(end);
        }
        for _ in 0..64 {
            let n = random.below(keys);
            let key = K::number(n);
            let value = V::dress(stamp(n, writer, random.below(1 << 20)));
            if n.is_multiple_of(3) || random.below(2) == 0 {
                index.insert(key.borrow(), value.borrow()).expect("within the limits");
            } else {
                index.remove(key.borrow());
            }
        }
    }
}

fn scan<K, V>(index: &Erased<K, V>, keys: u64, staying: &[(K::Owned, u64)], random: &mut Random)
where
    K: TestKey + ?Sized,
    V: TestValue + ?Sized,
{
    let mut ends = [K::number(random.below(keys)), K::number(random.below(keys))];
    ends.sort();
    let [low, high] = &ends;
    let (low, high): (&K, &K) = (low.borrow(), high.borrow());
    let bounds = (Bound::Included(low), Bound::Excluded(high));
    let way = random.below(4);
    let mut scanned = Vec::new();
    match way {
        0 | 1 => {
            let direction = if way == 0 { Direction::Ascending } else { Direction::Descending };
            index.visit(bounds.0, bounds.1, direction, |key, value| {
                scanned.push((key.to_owned(), value.word()));
                ControlFlow::Continue(())
            });
        }
        2 => scanned.extend(index.range(bounds).map(|(k, v)| (k, v.borrow().word()))),
        _ => scanned.extend(index.range(bounds).rev().map(|(k, v)| (k, v.borrow().word()))),
    }
    if way % 2 == 1 {
        scanned.reverse();
    }
    let in_order = scanned.windows(2).all(|pair| pair[0].0 < pair[1].0);
    assert!(in_order, "way {way}: out of order or repeated: {scanned:?}");
    let within = scanned.iter().all(|(key, _)| (low..high).contains(&key.borrow()));
    assert!(within, "way {way}: outside [{low:?}, {high:?}): {scanned:?}");
    for (key, n) in staying.iter().filter(|(key, _)| (low..high).contains(&key.borrow())) {
        let Ok(at) = scanned.binary_search_by(|(scanned, _)| scanned.cmp(key)) else {
            panic!("way {way}: {key:?} was there all the time, and is missing in {scanned:?}")
        };
        let word = scanned[at].1;
        assert!(is_stamped_for(word, *n), "way {way}: {key:?} holds {word:#x}");
    }
}
