//! Writes at a position of a byte string. Writes at its end cost, amortized, only the written
//! bytes.
//!
//! # Contract
//! The contract is that of [`Tree::apply`]. A value that grows to [`SHARED_FROM`] bytes or more
//! moves to a buffer with spare room after it ([`ordna_base::buffer`]). The next write at its end
//! claims some of that room under the leaf's lock, and publishes a new small record. Undo records
//! and readers keep the old record, which has a shorter length in the same buffer. A write inside
//! the value copies it, because bytes that a record shows never change. An entry counts with its
//! whole buffer against the memory limit, and so does an undo record that shares the buffer.
//!
//! # Shares
//! If an undo record keeps the old record, both records own a share of the buffer. Otherwise the
//! new record takes over the share of the old one, and only the old record's own memory is retired.

#![expect(unsafe_code, reason = "the records of a locked entry")]

use ordna_base::buffer::Buffer;
use ordna_base::record::Record;
use ordna_base::sync::point;
use ordna_base::value::MAX_LEN;
use ordna_base::{Error, Key};

use super::leaf::{Leaf, Probe};
use super::undo::{LiveEpochs, OldState};
use super::{Tree, WriteCost, WriteOutcome, WriteScope};

/// Length from which values get spare room when they grow. Below it, a copy costs no more than the
/// allocation of a record.
const SHARED_FROM: usize = 256;
/// Maximum spare room of a value in bytes. Shorter values get as much room as their length.
const MOST_ROOM: usize = 1 << 20;

/// A write at a position of the value.
pub struct Splice<T> {
    pub at: usize,
    pub bytes: T,
}

/// The result of a splice.
pub struct Spliced<T> {
    pub splice: Splice<T>,
    /// The new length of the value.
    pub len: usize,
    pub outcome: WriteOutcome,
}

impl<K: Key + ?Sized> Tree<K, [u8]> {
    /// Calls `decide` with value and deadline of the key and writes what it returns. Returns
    /// `None`, without a change, if the key is absent or `decide` returns `None`. `prepare` and
    /// `live` are those of [`Tree::apply`].
    ///
    /// # Errors
    /// Those of `prepare`, and an error if the value becomes too long. Nothing is changed.
    pub fn splice<T: AsRef<[u8]>>(
        &self,
        probe: &Probe<'_, K>,
        scope: &WriteScope<'_>,
        decide: impl FnOnce(&[u8], u64) -> Option<Splice<T>>,
        mut prepare: impl FnMut(WriteCost) -> Result<(), Error>,
        live: impl Fn() -> Option<LiveEpochs>,
    ) -> Result<Option<Spliced<T>>, Error> {
        let leaf = self.lock(probe, None, scope.guard);
        let entry = leaf.find(probe, self.simd).map(|slot| (slot, leaf.entry(slot)));
        let decided = entry.and_then(|(slot, old)| {
            let record = Leaf::<K, [u8]>::record(old.word)?;
            let decide = |value: &[u8]| Some((decide(value, old.deadline)?, value.len()));
            // SAFETY: the entry's record; its leaf is locked.
            let (splice, len) = unsafe { record.with_value(decide) }?;
            Some((slot, old, record, splice, len))
        });
        let Some((slot, old, record, splice, len)) = decided else {
            leaf.unlock_unchanged();
            return Ok(None);
        };
        let (at, bytes) = (splice.at, splice.bytes.as_ref());
        let end = at.saturating_add(bytes.len());
        let new_len = len.max(end);
        if new_len > MAX_LEN {
            leaf.unlock_unchanged();
            return Err(Error::ValueTooLong { len: new_len });
        }
        // SAFETY: as above.
        let claim = unsafe { record.buffer() }.and_then(|buffer| buffer.claim(at.min(len), end));
        let mut capacity = (end > len && new_len >= SHARED_FROM)
            .then(|| (new_len + new_len.min(MOST_ROOM)).min(MAX_LEN));
        let shrinks = Self::cost_of(old.word, old.deadline);
        let grows = match (&claim, capacity) {
            (Some(_), _) => shrinks,
            (None, Some(capacity)) => {
                let stored = size_of::<usize>() + Buffer::size_of(capacity);
                Self::cost_of_len(probe.key, stored, old.deadline)
            }
            (None, None) => Self::cost_of_len(probe.key, new_len, old.deadline),
        };
        let undo = self.needs_undo(leaf.leaf(), probe, scope);
        let mut step = WriteCost {
            grows,
            shrinks,
            undo: if undo { self.log.next_push() + shrinks } else { 0 },
            deadline: old.deadline,
            room: claim.is_none() && capacity.is_some(),
        };
        let mut prepared = prepare(step);
        if prepared.is_err() && claim.is_none() && capacity.take().is_some() {
            // It may fit without spare room.
            step.room = false;
            step.grows = Self::cost_of_len(probe.key, new_len, old.deadline);
            prepared = prepare(step);
        }
        if let Err(refused) = prepared {
            if let Some(claim) = claim {
                claim.give_back();
            }
            leaf.unlock_unchanged();
            return Err(refused);
        }
        let mut outcome = WriteOutcome {
            before: Some(old.deadline),
            after: Some(old.deadline),
            shrinks,
            ..WriteOutcome::default()
        };
        if undo {
            let state = OldState::Present { word: old.word, deadline: old.deadline };
            outcome.undo.0 = self.log.push(&leaf, probe, state, scope.epoch, scope.seen_by());
            point("tree.splice.pushed");
        }
        let extends = claim.is_some();
        let new = match claim {
            Some(claim) => {
                let buffer = claim.fill(bytes);
                if undo {
                    buffer.share();
                }
                point("tree.splice.filled");
                Record::of_buffer(self.arena_if_large(), probe.key, buffer, new_len)
            }
            // SAFETY: as above; an undo record that now keeps the old record does not end while the
            // lock is held.
            None => unsafe {
                record.with_value(|value| self.copied(probe.key, value, at, bytes, capacity))
            },
        };
        // The deadline stays, so a reader may see the old or the new word without a new version.
        outcome.word = Leaf::word_of(probe, new);
        leaf.set_word(slot, outcome.word);
        match (undo, extends) {
            (true, _) => {}
            // SAFETY: unlinked under the leaf's lock; the new record has taken over the share.
            (false, true) => unsafe { record.retire_without_share(scope.guard) },
            (false, false) => Self::retire(old.word, scope.guard),
        }
        self.prune_and_unlock(leaf, true, live, scope.guard, &mut outcome);
        Ok(Some(Spliced { splice, len: new_len, outcome }))
    }

    /// Creates a record of the value with bytes written over it, and with spare room if there is a
    /// capacity.
    fn copied(
        &self,
        key: &K,
        value: &[u8],
        at: usize,
        bytes: &[u8],
        capacity: Option<usize>,
    ) -> Record<K, [u8]> {
        let zeros = vec![0; at.saturating_sub(value.len())];
        let rest = value.get(at + bytes.len()..).unwrap_or_default();
        let arena = self.arena_if_large();
        let pieces = [&value[..at.min(value.len())], &zeros, bytes, rest];
        match capacity {
            None => Record::new_in(arena, key, pieces.concat().as_slice()),
            Some(capacity) => {
                let len = pieces.iter().map(|piece| piece.len()).sum();
                Record::of_buffer(arena, key, Buffer::new(&pieces, capacity), len)
            }
        }
    }
}
