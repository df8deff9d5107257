//! Recorded histories of point operations, which are checked for linearizability key by key.
//!
//! Linearizability is local (Herlihy and Wing): a map is linearizable if each key is. Every point
//! operation is one transition of its key: it *saw* a state and *left* one. The Wing-Gong-Lowe
//! search is that of `todc-utils`. [`to_json`] writes a history for a second check with porcupine
//! (`cargo xtask porcupine`).

use std::borrow::Borrow;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use ordna_base::OrderedIndex;
use serde::{Deserialize, Serialize};
use todc_utils::linearizability::WGLChecker;
use todc_utils::linearizability::history::{Action, History};
use todc_utils::specifications::Specification;

use crate::erased::{Erased, Subject};
use crate::kinds::{TestKey, TestValue};
use crate::random::Random;

/// A completed operation on one key: the state that it saw and the state that it left.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operation {
    /// The calling thread.
    pub thread: usize,
    /// Number of the key.
    pub key: u64,
    /// Value that it found, or `None` if the key was absent.
    pub saw: Option<u64>,
    /// Value that it left.
    pub left: Option<u64>,
    /// Time of the call, from a counter that never returns the same time twice.
    pub called: u64,
    /// Time of the return; see `called`.
    pub returned: u64,
}

struct OneKey;

impl Specification for OneKey {
    type State = Option<u64>;
    type Operation = (Option<u64>, Option<u64>);

    fn init() -> Self::State {
        None
    }

    fn apply((saw, left): &Self::Operation, state: &Self::State) -> (bool, Self::State) {
        (saw == state, *left)
    }
}

/// Returns whether some order of the operations, compatible with their times, explains what each of
/// them saw. Every key is absent at the beginning.
pub fn is_linearizable(history: &[Operation]) -> bool {
    let mut keys: Vec<u64> = history.iter().map(|operation| operation.key).collect();
    keys.sort_unstable();
    keys.dedup();
    keys.into_iter().all(|key| {
        let mut actions = Vec::new();
        for operation in history.iter().filter(|operation| operation.key == key) {
            let step = (operation.saw, operation.left);
            actions.push((operation.called, operation.thread, Action::Call(step)));
            actions.push((operation.returned, operation.thread, Action::Response(step)));
        }
        actions.sort_by_key(|(time, ..)| *time);
        let actions = actions.into_iter().map(|(_, thread, action)| (thread, action)).collect();
        WGLChecker::<OneKey>::is_linearizable(History::from_actions(actions))
    })
}

/// Returns the history as a JSON array, for other checkers.
pub fn to_json(history: &[Operation]) -> String {
    serde_json::to_string(history).expect("plain numbers serialize")
}

/// Runs a few threads on a few hot keys and records what each call saw. Threads yield at random at
/// the stops of an index.
pub fn record<K: TestKey + ?Sized, V: TestValue + ?Sized>(
    index: &Erased<K, V>,
    seed: u64,
    threads: usize,
    steps: usize,
    keys: u64,
) -> Vec<Operation> {
    let clock = AtomicU64::new(0);
    let start = Barrier::new(threads);
    std::thread::scope(|scope| {
        let recorders: Vec<_> = (0..threads)
            .map(|thread| {
                let (clock, start) = (&clock, &start);
                scope.spawn(move || {
                    let mut random = Random::new(seed ^ (thread as u64) << 32);
                    let mut step = |step| {
                        let word = (thread * steps + step + 1) as u64;
                        let key = random.below(keys);
                        let called = clock.fetch_add(1, Ordering::SeqCst);
                        let (saw, left) = act(index, key, word, &mut random);
                        let returned = clock.fetch_add(1, Ordering::SeqCst);
                        Operation { thread, key, saw, left, called, returned }
                    };
                    start.wait();
                    crate::shaken(seed + thread as u64, || {
                        (0..steps).map(&mut step).collect::<Vec<_>>()
                    })
                })
            })
            .collect();
        recorders
            .into_iter()
            .flat_map(|recorder| recorder.join().expect("a thread failed"))
            .collect()
    })
}

/// Executes one random operation. Returns what it saw and left.
fn act<K, V>(
    index: &Erased<K, V>,
    key: u64,
    word: u64,
    random: &mut Random,
) -> (Option<u64>, Option<u64>)
where
    K: TestKey + ?Sized,
    V: TestValue + ?Sized,
{
    let number = key;
    let key = K::number(key);
    let key: &K = key.borrow();
    let value = V::dress(word);
    let plain = |value: V::Owned| value.borrow().word();
    const FITS: &str = "within the limits";
    match random.below(9) {
        0 | 1 => {
            let saw = index.get(key).map(plain);
            (saw, saw)
        }
        2 | 3 => (index.insert(key, value.borrow()).expect(FITS).map(plain), Some(word)),
        4 | 5 => (index.remove(key).map(plain), None),
        6 => {
            let saw = index.insert_if_absent(key, value.borrow()).expect(FITS).map(plain);
            (saw, saw.or(Some(word)))
        }
        7 => {
            let guess = index.get(key);
            let expected = guess.as_ref().map(Borrow::borrow);
            let new = random.below(2) == 0;
            match index.compare_exchange(key, expected, new.then(|| value.borrow())).expect(FITS) {
                Ok(()) => (guess.map(plain), new.then_some(word)),
                Err(actual) => {
                    let saw = actual.map(plain);
                    (saw, saw)
                }
            }
        }
        _ => {
            // A scan of a single key also sees its state at some moment of the call.
            let found = index.ceiling(key).filter(|(found, _)| *found == K::number(number));
            let saw = found.map(|(_, value)| plain(value));
            (saw, saw)
        }
    }
}

/// Minimum number of histories that a check records.
const HISTORIES: u64 = 64;

/// Returns whether calls of two threads on one key overlapped, because a history without such calls
/// shows nothing.
fn has_overlap(history: &[Operation]) -> bool {
    history.iter().any(|one| {
        let overlaps = |other: &Operation| {
            other.key == one.key && other.called > one.called && other.called < one.returned
        };
        history.iter().any(overlaps)
    })
}

/// Records short histories until the time is over, and checks each of them.
///
/// # Panics
/// Panics if a history has no explanation, after printing it with its seed. Panics if no calls
/// overlapped.
pub fn check<S: Subject<Key: TestKey, Value: TestValue>>(new: impl Fn() -> S) {
    run(&|| new().erase());
}

pub(crate) fn run<K: TestKey + ?Sized, V: TestValue + ?Sized>(new: &dyn Fn() -> Erased<K, V>) {
    let end = Instant::now() + crate::budget();
    let (mut seed, mut overlapping) = (0, 0);
    while crate::goes_on(end, seed >= HISTORIES && overlapping > 0) {
        let index = new();
        let keys = 1 + seed % 3;
        let history = record(&index, seed, 3, 24, keys);
        assert!(
            is_linearizable(&history),
            "no order explains this history (seed {seed}): {}",
            to_json(&history)
        );
        index.check_invariants().unwrap_or_else(|broken| panic!("seed {seed}: {broken}"));
        overlapping += u64::from(has_overlap(&history));
        seed += 1;
    }
    assert!(seed >= HISTORIES, "only {seed} histories");
    assert!(overlapping > 0, "no calls overlapped in {seed} histories");
}

#[cfg(test)]
mod tests {
    use ordna_base::Locked;

    use super::*;

    fn operation(
        thread: usize,
        saw: Option<u64>,
        left: Option<u64>,
        (called, returned): (u64, u64),
    ) -> Operation {
        Operation { thread, key: 0, saw, left, called, returned }
    }

    #[test]
    fn overlapping_operations_may_take_either_order() {
        let history = [
            operation(0, None, Some(1), (0, 3)),
            operation(1, None, None, (1, 2)),
            operation(1, Some(1), Some(1), (4, 5)),
        ];
        assert!(is_linearizable(&history));
    }

    #[test]
    fn a_stale_read_a_lost_insert_and_two_winners_are_rejected() {
        let stale = [operation(0, None, Some(1), (0, 1)), operation(1, None, None, (2, 3))];
        assert!(!is_linearizable(&stale));
        let lost = [
            operation(0, None, Some(1), (0, 1)),
            operation(1, None, Some(2), (2, 5)),
            operation(0, Some(2), Some(2), (6, 7)),
        ];
        assert!(!is_linearizable(&lost));
        let two_winners = [
            operation(0, None, Some(1), (0, 1)),
            operation(0, Some(1), None, (2, 5)),
            operation(1, Some(1), None, (3, 4)),
        ];
        assert!(!is_linearizable(&two_winners));
    }

    #[test]
    fn a_recorded_history_of_the_oracle_passes_and_a_corrupted_one_does_not() {
        let mut history = record(&Locked::<u64, u64>::new().erase(), 1, 3, 30, 2);
        assert!(is_linearizable(&history));
        let read = history.iter_mut().find(|operation| operation.saw.is_some()).unwrap();
        read.saw = Some(999_999);
        assert!(!is_linearizable(&history));
    }
}
