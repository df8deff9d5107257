//! Tests of indexes with snapshots.

use std::borrow::Borrow;
use std::collections::VecDeque;
use std::fmt::Debug;
use std::ops::{Bound, ControlFlow};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ordna_base::index::{Range, Source};
use ordna_base::index::{ReadSnapshot, Versioned};
use ordna_base::{Change, Direction, Error, InvariantReport, OrderedIndex, Violation};
use proptest::prelude::{TestCaseError, prop_assert_eq};

use crate::memory::live_everywhere;
use crate::random::Random;

type KeyOf<S> = <<S as Source>::Key as ToOwned>::Owned;
type ValueOf<S> = <<S as Source>::Value as ToOwned>::Owned;

const WRITERS: u64 = 3;
/// Number of keys of each writer.
const KEYS: u64 = 400;

/// An index in which every third write is followed by a snapshot. A few snapshots are kept, and
/// dropped in another order, so that keys have several versions and the epoch changes continually.
pub struct Snapped<I: Versioned> {
    index: I,
    live: Mutex<VecDeque<I::Snapshot>>,
    writes: AtomicUsize,
}

impl<I: Versioned> Snapped<I> {
    /// Wraps an index on which the calling threads collect, because `memory_returns` counts what
    /// they free.
    pub fn new(index: I) -> Self {
        Self { index, live: Mutex::default(), writes: AtomicUsize::new(0) }
    }
}

impl<I: Versioned> OrderedIndex for Snapped<I> {
    type Key = I::Key;
    type Value = I::Value;

    fn modify<T, F>(&self, key: &I::Key, change: F) -> Result<(), Error>
    where
        T: Borrow<I::Value>,
        F: FnMut(Option<&I::Value>) -> Change<T>,
    {
        self.index.modify(key, change)?;
        let writes = self.writes.fetch_add(1, Ordering::Relaxed);
        if writes.is_multiple_of(3) {
            let snapshot = self.index.snapshot();
            let mut live = self.live.lock().unwrap();
            live.push_back(snapshot);
            let dropped = if live.len() > 4 { live.remove(writes % 5) } else { None };
            drop(live);
            drop(dropped);
        }
        Ok(())
    }

    fn check_invariants(&self) -> Result<InvariantReport, Violation> {
        self.index.check_invariants()?;
        self.live.lock().unwrap().clear();
        check_settled(&self.index)
    }

    crate::forward!(self, &self.index; get_with, scan_with, get_many_with, pin);
    crate::forward!(self, &self.index; approximate_len, memory_usage);
}

/// Collects and checks an index without live snapshots, which must contain nothing but its entries.
fn check_settled<I: Versioned>(index: &I) -> Result<InvariantReport, Violation> {
    index.collect_garbage();
    let report = index.check_invariants()?;
    let (dead, entries) = (index.garbage().0, index.approximate_len());
    if dead > 0 || report.entries != entries {
        let text = format!("no snapshot lives, {dead} dead versions do: {report:?} of {entries}");
        return Err(Violation(text));
    }
    Ok(report)
}

/// Ends the other threads when this one ends, even by a panic.
pub struct Ends<'a>(pub &'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Returns the value of a key after a number of rounds. Each writer executes the rounds 1, 2, 3, ….
/// In round r, it writes r to its key number r mod KEYS, or removes that key if r is a multiple of
/// 3. So after r rounds the state of its keys is known.
fn value_after(rounds: u64, key: u64) -> Option<u64> {
    // The last round up to `rounds` that used this key.
    let behind = (rounds + KEYS - key) % KEYS;
    let last = rounds.checked_sub(behind).filter(|last| *last > 0)?;
    (!last.is_multiple_of(3)).then_some(last)
}

fn write_round(index: &impl OrderedIndex<Key = u64, Value = u64>, writer: u64, round: u64) {
    let key = round % KEYS * WRITERS + writer;
    if round.is_multiple_of(3) {
        index.remove(&key);
    } else {
        index.insert(&key, &round).unwrap();
    }
}

/// Checks that the state of each writer's keys is that after some number of rounds, between those
/// that had ended before the snapshot and those that had begun after it.
fn check_cut(
    snapshot: &impl ReadSnapshot<Key = u64, Value = u64>,
    ended: &[u64],
    begun: &[u64],
    upwards: bool,
) -> Vec<u64> {
    let mut content = vec![vec![None; KEYS as usize]; WRITERS as usize];
    let direction = if upwards { Direction::Ascending } else { Direction::Descending };
    let mut count = 0;
    snapshot.visit_all(direction, |key, value| {
        let slot = &mut content[(key % WRITERS) as usize][(key / WRITERS) as usize];
        assert!(slot.is_none(), "key {key} twice");
        *slot = Some(*value);
        count += 1;
        ControlFlow::Continue(())
    });
    assert_eq!(snapshot.len(), count, "the number of items");
    let mut cut = Vec::new();
    for writer in 0..WRITERS as usize {
        let right = |rounds: u64| {
            (0..KEYS).all(|key| content[writer][key as usize] == value_after(rounds, key))
        };
        let (low, high) = (ended[writer], begun[writer]);
        let Some(rounds) = (low..=high).find(|rounds| right(*rounds)) else {
            panic!("writer {writer}: the state after no number of rounds from {low} to {high}")
        };
        cut.push(rounds);
    }
    cut
}

/// Checks, with many threads, that every snapshot is a cut and never changes.
///
/// # Panics
/// Panics if a snapshot is not a cut or changes, or if garbage remains.
pub fn check_cuts<I: Versioned<Key = u64, Value = u64>>(index: &I) {
    let end = Instant::now() + crate::budget();
    let begun: Vec<AtomicU64> = (0..WRITERS).map(|_| AtomicU64::new(0)).collect();
    let ended: Vec<AtomicU64> = (0..WRITERS).map(|_| AtomicU64::new(0)).collect();
    let done = AtomicBool::new(false);
    let look = |counters: &[AtomicU64]| -> Vec<u64> {
        counters.iter().map(|counter| counter.load(Ordering::SeqCst)).collect()
    };
    std::thread::scope(|scope| {
        let _ends = Ends(&done);
        for writer in 0..WRITERS {
            let (begun, ended, done) = (&begun, &ended, &done);
            scope.spawn(move || {
                let mut round = 0;
                while !done.load(Ordering::Relaxed) {
                    round += 1;
                    begun[writer as usize].store(round, Ordering::SeqCst);
                    write_round(index, writer, round);
                    ended[writer as usize].store(round, Ordering::SeqCst);
                }
            });
        }
        let mut random = Random::new(3);
        let mut live: Vec<(I::Snapshot, Vec<u64>)> = Vec::new();
        let mut snapshots = 0;
        // Writers may have to wait for a processor.
        let give_up = end + Duration::from_secs(20);
        let is_idle = || index.garbage().1 == 0 && Instant::now() < give_up;
        while Instant::now() < end || snapshots < 12 || is_idle() {
            let before = look(&ended);
            let snapshot = index.snapshot();
            let after = look(&begun);
            let cut = check_cut(&snapshot, &before, &after, snapshots % 2 == 0);
            // Cuts are in the order of the snapshots.
            if let Some((_, last)) = live.last() {
                assert!(last.iter().zip(&cut).all(|(a, b)| a <= b), "{last:?}, then {cut:?}");
            }
            live.push((snapshot, cut));
            snapshots += 1;
            if live.len() > 6 {
                let (snapshot, cut) = live.remove(random.below(6) as usize);
                assert_eq!(check_cut(&snapshot, &cut, &cut, snapshots % 2 == 1), cut);
            }
        }
        for (snapshot, cut) in &live {
            assert_eq!(check_cut(snapshot, cut, cut, true), *cut);
        }
    });
    check_settled(index).unwrap();
    assert!(index.garbage().1 > 0, "rounds begun: {:?}", look(&begun));
}

/// Compares all reads of a snapshot with its sorted entries, for the given keys.
///
/// # Errors
/// Returns the first read that differs.
pub fn check_reads<S>(
    snapshot: &S,
    entries: Vec<(KeyOf<S>, ValueOf<S>)>,
    keys: &[KeyOf<S>],
) -> Result<(), TestCaseError>
where
    S: ReadSnapshot<Key: ToOwned<Owned: Debug>, Value: ToOwned<Owned: Debug>>,
{
    let mut scanned = Vec::new();
    snapshot.visit_all(Direction::Ascending, |key, value| {
        scanned.push((key.to_owned(), value.to_owned()));
        ControlFlow::Continue(())
    });
    prop_assert_eq!(&scanned, &entries, "ascending");
    let mut back: Vec<_> = Range::new(snapshot, Bound::Unbounded, Bound::Unbounded).rev().collect();
    back.reverse();
    prop_assert_eq!(&back, &entries, "descending");
    prop_assert_eq!(snapshot.len(), entries.len());
    let mut many = Vec::new();
    snapshot.get_many(keys, &mut many);
    for (key, found) in keys.iter().zip(many) {
        let right = entries.iter().find(|entry| entry.0 == *key).map(|entry| entry.1.clone());
        prop_assert_eq!(&found, &right, "get_many {:?}", key);
        prop_assert_eq!(snapshot.get(key.borrow()), right, "get {:?}", key);
    }
    let (low, high) = (&keys[3], &keys[20]);
    let (low, high) = (low.min(high), low.max(high));
    let bounds = (Bound::Excluded(low.clone()), Bound::Included(high.clone()));
    let within: Vec<_> = Range::new(snapshot, bounds.0, bounds.1).collect();
    let right = entries.into_iter().filter(|(key, _)| key > low && key <= high);
    prop_assert_eq!(within, right.collect::<Vec<_>>());
    Ok(())
}

/// Returns the processor time of this thread in nanoseconds, from a clock that every POSIX system
/// has.
#[cfg(unix)]
#[expect(unsafe_code, reason = "a call of the system")]
fn processor_time() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes only to `time`.
    let told = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    assert_eq!(told, 0, "{}", std::io::Error::last_os_error());
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Checks that the thread that ends a snapshot leaves the versions that it kept to the collector,
/// without sorting them. The index has its own collector.
///
/// # Panics
/// Panics if the end takes a quarter of the time that sorting the keys takes.
#[cfg(unix)]
pub fn check_cost_of_the_end(index: &impl Versioned<Key = u64, Value = u64>) {
    const KEYS: u64 = 200_000;
    fn cost(work: impl FnOnce()) -> u64 {
        let before = processor_time();
        work();
        processor_time() - before
    }
    let key = |n: u64| n.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let costs = (0..3).map(|round| {
        (0..KEYS).for_each(|n| drop(index.insert(&key(n), &round)));
        let snapshot = index.snapshot();
        (0..KEYS).for_each(|n| drop(index.insert(&key(n), &round)));
        index.collect_garbage();
        // A range version keeps up to 56 keys.
        let kept = index.garbage().0 as u64;
        assert!(kept >= KEYS / 56, "the snapshot keeps what it sees, not {kept}");
        let cost = cost(|| drop(snapshot));
        index.collect_garbage();
        cost
    });
    let least = costs.min().unwrap();
    assert_eq!(check_settled(index).unwrap().entries as u64, KEYS);
    let mut sorted: Vec<u64> = (0..KEYS).map(key).collect();
    let sorting = cost(|| sorted.sort_unstable());
    assert!(least < sorting / 4, "{least} ns, where sorting takes {sorting} ns");
}

/// Returns the number of bytes of the process when no thread frees memory of an earlier index any
/// more.
fn quiesced_bytes() -> i64 {
    let mut before = live_everywhere();
    loop {
        std::thread::sleep(Duration::from_millis(50));
        let now = live_everywhere();
        if now == before {
            return now;
        }
        before = now;
    }
}

/// Checks that after churn with snapshots, the process uses the same memory, within 5 %, as an
/// index that was filled once with the live entries. No other test runs concurrently. Half of the 5
/// % are buffers of the collector, about 250 KiB whatever the number of entries and rounds.
///
/// # Panics
/// Panics if it uses more.
pub fn check_memory_after_churn<I: Versioned<Key = u64, Value = u64>>(new: impl Fn() -> I) {
    const ITEMS: u64 = 200_000;
    let spread = |n: u64| n.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let start = quiesced_bytes();
    let fresh = new();
    (0..ITEMS).for_each(|n| drop(fresh.insert(&spread(n), &n)));
    fresh.collect_garbage();
    let live = live_everywhere() - start;
    drop(fresh);
    let start = quiesced_bytes();
    let index = new();
    for round in 0..6 {
        let mut alive = VecDeque::new();
        std::thread::scope(|scope| {
            for writer in 0..2 {
                let index = &index;
                scope.spawn(move || {
                    for n in (writer..ITEMS).step_by(2) {
                        index.insert(&spread(n), &(n + round)).unwrap();
                        // This key is inserted and removed.
                        index.insert(&spread(n + ITEMS), &n).unwrap();
                        if n % 3 == 0 {
                            index.remove(&spread(n));
                        }
                        index.remove(&spread(n + ITEMS));
                        index.insert(&spread(n), &n).unwrap();
                    }
                });
            }
            for _ in 0..30 {
                alive.push_back(index.snapshot());
                if alive.len() > 10 {
                    alive.pop_front();
                }
                std::thread::sleep(Duration::from_millis(2));
            }
        });
    }
    assert_eq!(check_settled(&index).unwrap().entries as u64, ITEMS);
    let after = live_everywhere() - start;
    println!("{live} bytes of live data, {after} after churn: {:.4}", after as f64 / live as f64);
    assert!(after <= live + live / 20, "{after} bytes after churn, {live} of live data");
}
