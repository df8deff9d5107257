//! Runs writers, removals of ranges, long scans and a snapshot every ten milliseconds concurrently.
//! Every snapshot must equal the state that a model computes for it, whenever it is read, and all
//! temporary memory must be given back. `ORDNA_SOAK=seconds` sets how long the test runs; a soak
//! test takes minutes.

use std::collections::VecDeque;
use std::ops::{Bound, ControlFlow};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use ordna::{Options, Snapshot, Store};
use ordna_base::Direction;
use ordna_testkit::random::Random;
use ordna_testkit::snapshots::{Ends, check_memory_after_churn};

ordna_testkit::count_memory!();

/// The tests run one after the other, as one of them counts the memory of all threads.
static TURN: Mutex<()> = Mutex::new(());

const WRITERS: u64 = 2;
/// Number of keys of each writer.
const KEYS: u64 = 20_000;
/// Number of rounds from one removal of a range to the next.
const WIPE: u64 = 3 * KEYS;
const ALIVE: usize = 10;

type Words = Store<u64, u64>;
/// A snapshot, and the round of each writer after which it was taken.
type Cut = (Snapshot<u64, u64>, Vec<u64>);

fn key_of(writer: u64, key: u64) -> u64 {
    (writer << 32) | key
}

/// Makes the write of a round. If `round` is a multiple of [`WIPE`], it removes the lower half of
/// the writer's keys. Otherwise it writes `round` to the key `round` mod [`KEYS`], or removes this
/// key if `round` is a multiple of 3.
fn write_round(store: &Words, writer: u64, round: u64) {
    let key = key_of(writer, round % KEYS);
    if round.is_multiple_of(WIPE) {
        let end = key_of(writer, KEYS / 2);
        store.remove_range((Bound::Included(&key_of(writer, 0)), Bound::Excluded(&end))).unwrap();
    } else if round.is_multiple_of(3) {
        store.remove(&key).unwrap();
    } else {
        store.insert(&key, &round).unwrap();
    }
}

/// Computes the value of a key after this number of rounds.
fn value_after(rounds: u64, key: u64) -> Option<u64> {
    let last = rounds.checked_sub((rounds + KEYS - key) % KEYS).filter(|last| *last > 0)?;
    let wiped = rounds / WIPE * WIPE;
    let is_gone = last.is_multiple_of(3) || (key < KEYS / 2 && last <= wiped);
    (!is_gone).then_some(last)
}

/// Reads a snapshot in full and returns the round of each writer after which it was taken, which
/// must be one of `low..=high`.
fn cut_of(
    snapshot: &Snapshot<u64, u64>,
    low: &[u64],
    high: &[u64],
    direction: Direction,
) -> Vec<u64> {
    let mut content = vec![vec![None; KEYS as usize]; WRITERS as usize];
    let (mut count, mut before) = (0, None);
    snapshot.visit(Bound::Unbounded, Bound::Unbounded, direction, |key, value| {
        let in_order = match direction {
            Direction::Ascending => before < Some(*key),
            Direction::Descending => before.is_none_or(|before| before > *key),
        };
        assert!(in_order, "{key} behind {before:?}");
        before = Some(*key);
        content[(key >> 32) as usize][(key & u64::from(u32::MAX)) as usize] = Some(*value);
        count += 1;
        ControlFlow::Continue(())
    });
    assert_eq!(snapshot.len(), count, "the number of items");
    let cut = (0..WRITERS as usize).map(|writer| {
        let is_right = |rounds: &u64| {
            (0..KEYS).all(|key| content[writer][key as usize] == value_after(*rounds, key))
        };
        let (low, high) = (low[writer], high[writer]);
        let cut = (low..=high).find(is_right);
        cut.unwrap_or_else(|| {
            panic!("writer {writer}: the state after none of {low}..={high} rounds")
        })
    });
    cut.collect()
}

#[test]
fn every_snapshot_is_what_the_oracle_says_of_its_cut() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let store = Words::with_options(Options::new().background_collector(true));
    let counters = || (0..WRITERS).map(|_| AtomicU64::new(0)).collect::<Vec<_>>();
    let (begun, ended) = (counters(), counters());
    let look = |counters: &[AtomicU64]| -> Vec<u64> {
        counters.iter().map(|counter| counter.load(Ordering::SeqCst)).collect()
    };
    let done = AtomicBool::new(false);
    let alive: Mutex<VecDeque<Cut>> = Mutex::default();
    let end = Instant::now() + ordna_testkit::budget();
    let (taken, read_again) = std::thread::scope(|scope| {
        let ends = Ends(&done);
        for writer in 0..WRITERS {
            let (store, begun, ended, done) = (&store, &begun, &ended, &done);
            scope.spawn(move || {
                let _ends = Ends(done);
                let mut round = 0;
                while !done.load(Ordering::Relaxed) {
                    round += 1;
                    begun[writer as usize].store(round, Ordering::SeqCst);
                    write_round(store, writer, round);
                    ended[writer as usize].store(round, Ordering::SeqCst);
                }
            });
        }
        // Reads snapshots repeatedly: while they are young, when they are old, and when no other
        // thread has them any more.
        let scanner = scope.spawn(|| {
            let _ends = Ends(&done);
            let mut random = Random::new(7);
            let mut scans = 0_u64;
            while !done.load(Ordering::Relaxed) {
                let chosen = {
                    let alive = alive.lock().unwrap_or_else(PoisonError::into_inner);
                    let at = random.below(ALIVE as u64) as usize;
                    alive.get(at).map(|(snapshot, cut)| (snapshot.clone(), cut.clone()))
                };
                let Some((snapshot, cut)) = chosen else { continue };
                let directions = [Direction::Ascending, Direction::Descending];
                cut_of(&snapshot, &cut, &cut, directions[(scans % 2) as usize]);
                scans += 1;
            }
            scans
        });
        let (mut taken, mut last) = (0, vec![0; WRITERS as usize]);
        while !done.load(Ordering::Relaxed) && (Instant::now() < end || taken < 12) {
            let before = look(&ended);
            let snapshot = store.snapshot();
            let after = look(&begun);
            let cut = cut_of(&snapshot, &before, &after, Direction::Ascending);
            assert!(last.iter().zip(&cut).all(|(last, now)| last <= now), "{last:?}, then {cut:?}");
            last.clone_from(&cut);
            let oldest = {
                let mut alive = alive.lock().unwrap_or_else(PoisonError::into_inner);
                alive.push_back((snapshot, cut));
                if alive.len() > ALIVE { alive.pop_front() } else { None }
            };
            drop(oldest);
            taken += 1;
            std::thread::sleep(Duration::from_millis(10));
        }
        drop(ends);
        (taken, scanner.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    println!("{taken} snapshots, read again {read_again} times, up to round {:?}", look(&ended));
    alive.lock().unwrap_or_else(PoisonError::into_inner).clear();
    store.collect_garbage();
    let report = store.check_invariants().unwrap();
    assert_eq!((report.entries, store.statistics().dead), (store.statistics().items, 0));
}

#[test]
fn memory_after_churn_is_that_of_the_live_data() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    check_memory_after_churn(|| Words::with_options(Options::new().background_collector(true)));
}
