//! The entries that an index must contain, and the checks of them outside of the measurement.
//!
//! During a measurement, an answer can only be compared with what is allowed at any moment. After a
//! run, when no thread works, everything is known: which keys are present, and for each the version
//! of the value or, if several threads have written the key, the last version of each of them.
//! [`Contents`] follows the operations, [`check_writes`] looks up every key that was written, and
//! [`check_whole`] scans the whole index.

use std::borrow::Borrow;

use ordna_base::Key;
use ordna_base::entries::Sequence;

use crate::check::{key_at, position_of, value, version, wrong};
use crate::job::Job;
use crate::target::Session;
use crate::workload::{Action, Operation};

/// The state of a key: absent, or a version of its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct ValueState(u16);

impl ValueState {
    const ABSENT: Self = Self(0);

    fn of(version: u8) -> Self {
        Self(0x100 | u16::from(version))
    }

    /// Returns the value of a key in this state.
    fn value<K: Key + ?Sized>(self, key: &K, position: usize) -> Option<u64> {
        (self != Self::ABSENT).then(|| value(key, position, self.0 as u8))
    }
}

/// The entries that an index must contain.
pub struct Contents {
    /// States by position of the key.
    states: Vec<ValueState>,
    /// Number of keys that are present.
    count: usize,
}

/// The last write of a key by a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Write {
    key: u32,
    thread: u16,
    state: ValueState,
}

/// The last writes of every thread of a run, by key and thread.
pub struct Writes(Vec<Write>);

impl Writes {
    /// Returns the last writes of threads that executed these operations, with versions from these
    /// bases on.
    pub fn of<'o>(threads: impl Iterator<Item = (&'o [Operation], u8)>) -> Self {
        let mut writes = Vec::new();
        for (thread, (operations, base)) in threads.enumerate() {
            let written = operations.iter().enumerate().filter_map(|(at, operation)| {
                let state = match operation.action {
                    Action::Update | Action::ReadUpdate | Action::Insert => {
                        ValueState::of(version(base, at))
                    }
                    Action::Delete => ValueState::ABSENT,
                    Action::Read | Action::Latest | Action::Look | Action::Scan(_) => return None,
                };
                Some(Write { key: operation.key, thread: thread as u16, state })
            });
            writes.extend(written);
        }
        // A stable sort, so that the last write of a key by a thread stays after the thread's other
        // ones.
        writes.sort_by_key(|write| (write.key, write.thread));
        let mut last: Vec<Write> = Vec::with_capacity(writes.len());
        for write in writes {
            match last.last_mut() {
                Some(known) if (known.key, known.thread) == (write.key, write.thread) => {
                    *known = write;
                }
                _ => last.push(write),
            }
        }
        Self(last)
    }
}

impl Contents {
    /// Creates the contents of an empty index, for this number of keys.
    pub fn nothing(keys: usize) -> Self {
        Self { states: vec![ValueState::ABSENT; keys], count: 0 }
    }

    fn set(&mut self, position: usize, state: ValueState) {
        let Some(known) = self.states.get_mut(position) else { return };
        self.count += usize::from(state != ValueState::ABSENT);
        self.count -= usize::from(*known != ValueState::ABSENT);
        *known = state;
    }

    /// Records keys that one thread has inserted, in order, with versions from `base` on.
    pub fn load(&mut self, keys: std::ops::Range<usize>, base: u8) {
        for (at, position) in keys.enumerate() {
            self.set(position, ValueState::of(version(base, at)));
        }
    }

    /// Returns the operations that restore the index: missing loaded keys are inserted and, if
    /// `remove` is set, other keys are removed.
    pub fn restore(&self, writes: &Writes, loaded: usize, remove: bool) -> Vec<Operation> {
        let mut keys: Vec<u32> = writes.0.iter().map(|write| write.key).collect();
        keys.dedup();
        let needed = |key: u32| {
            let there = *self.states.get(key as usize)? != ValueState::ABSENT;
            match (key as usize) < loaded {
                true if !there => Some(Operation { action: Action::Insert, key }),
                false if there && remove => Some(Operation { action: Action::Delete, key }),
                _ => None,
            }
        };
        keys.into_iter().filter_map(needed).collect()
    }
}

fn expected(states: &[Option<u64>], found: Option<u64>) -> String {
    let one =
        |state: &Option<u64>| state.map_or("nothing".to_owned(), |value| format!("{value:#x}"));
    let all: Vec<String> = states.iter().map(one).collect();
    format!("{} instead of {}", one(&found), all.join(" or "))
}

/// Looks up every key that was written. Its state must be the result of the last write of one of
/// the threads.
///
/// # Errors
/// Returns the first wrong answer.
pub fn check_writes<K: Key + ?Sized>(
    job: &Job<'_, K>,
    session: &mut dyn Session<K>,
    held: &mut Contents,
    writes: &Writes,
) -> Result<(), String> {
    for writes in writes.0.chunk_by(|a, b| a.key == b.key) {
        let Some(first) = writes.first() else { continue };
        let position = first.key as usize;
        let key = key_at(job, position)?;
        let found = session.get(key);
        let Some(write) = writes.iter().find(|write| write.state.value(key, position) == found)
        else {
            let states: Vec<_> = writes.iter().map(|w| w.state.value(key, position)).collect();
            return Err(wrong("after the run, a read", key, expected(&states, found)));
        };
        held.set(position, write.state);
    }
    Ok(())
}

/// Looks up one of every `step` loaded keys.
///
/// # Errors
/// Returns the first wrong answer.
pub fn check_loaded<K: Key + ?Sized>(
    job: &Job<'_, K>,
    session: &mut dyn Session<K>,
    held: &Contents,
    step: usize,
) -> Result<(), String> {
    for position in (0..job.loaded).step_by(step.max(1)) {
        let key = key_at(job, position)?;
        let found = session.get(key);
        let state = held.states.get(position).copied().unwrap_or(ValueState::ABSENT);
        let state = state.value(key, position);
        if found != state {
            return Err(wrong("a read", key, expected(&[state], found)));
        }
    }
    Ok(())
}

/// Number of entries of one scan of [`check_whole`].
const STRETCH: usize = 100_000;

/// Scans the whole index, stretch by stretch. Every entry must be above the previous one, appear
/// once, and have the right value, and none may be missing.
///
/// # Errors
/// Returns the first wrong answer.
pub fn check_whole<K: Key + ?Sized>(
    job: &Job<'_, K>,
    session: &mut dyn Session<K>,
    held: &Contents,
) -> Result<(), String> {
    // Any key with the smallest head works, because the scan begins at or before all keys.
    let least = (0..job.keys.len()).filter_map(|at| job.keys.get(at)).min();
    let Some(least) = least else { return Ok(()) };
    let mut last: Option<K::Owned> = None;
    let (mut count, mut broken) = (0, None);
    loop {
        let from = last.clone();
        let from: &K = from.as_ref().map_or(least, Borrow::borrow);
        let mut entries = 0;
        session.scan(from, STRETCH, &mut |key, found| {
            entries += 1;
            let above = last.as_ref().map(|last| Borrow::<K>::borrow(last).cmp(key));
            if entries == 1
                && let Some(above) = above
            {
                // The end of the previous stretch.
                if above.is_ne() {
                    let text = "it does not go on where it ended";
                    broken.get_or_insert_with(|| wrong("a scan of the whole index", key, text));
                }
                return;
            }
            let position = position_of(found);
            let state = held.states.get(position).copied().unwrap_or(ValueState::ABSENT);
            let state = state.value(key, position);
            if above.is_some_and(|above| above.is_ge()) {
                let text = "it is not above the one before";
                broken.get_or_insert_with(|| wrong("a scan of the whole index", key, text));
            } else if state != Some(found) || job.keys.get(position) != Some(key) {
                let text = expected(&[state], Some(found));
                broken.get_or_insert_with(|| wrong("a scan of the whole index", key, text));
            }
            match &mut last {
                // Reuses the buffer of the previous key.
                Some(last) => key.clone_into(last),
                None => last = Some(key.to_owned()),
            }
            count += 1;
        });
        if let Some(broken) = broken.take() {
            return Err(broken);
        }
        if entries > STRETCH {
            return Err(wrong("a scan", from, format!("{entries} entries for {STRETCH}")));
        }
        if entries < STRETCH {
            break;
        }
    }
    if count == held.count {
        return Ok(());
    }
    Err(format!("a scan of the whole index: {count} entries of {}", held.count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_write_of_each_thread_counts() {
        let update = |key| Operation { action: Action::Update, key };
        let delete = |key| Operation { action: Action::Delete, key };
        let insert = |key| Operation { action: Action::Insert, key };
        let read = Operation { action: Action::Read, key: 9 };
        let first = [update(7), read, update(7), delete(3)];
        let second = [update(7), insert(12), delete(12), insert(12)];
        let writes = Writes::of([(&first[..], 10), (&second[..], 255)].into_iter());
        let found: Vec<_> = writes.0.iter().map(|w| (w.key, w.thread, w.state)).collect();
        let versions =
            [(3, 0, ValueState::ABSENT), (7, 0, ValueState::of(12)), (7, 1, ValueState::of(255))];
        assert_eq!(found[..3], versions);
        assert_eq!(found[3..], [(12, 1, ValueState::of(2))]);
        let mut held = Contents::nothing(20);
        held.load(0..10, 0);
        assert_eq!(held.count, 10);
        held.set(3, ValueState::ABSENT);
        held.set(12, ValueState::of(2));
        assert_eq!(held.count, 10);
        assert_eq!(held.restore(&writes, 10, false), [insert(3)]);
        assert_eq!(held.restore(&writes, 10, true), [insert(3), delete(12)]);
    }
}
