//! The commit of a transaction: validation and application as one step.
//!
//! # Contract
//! Commits, single writes, batches and range removals may run concurrently on any threads. While a
//! commit validates and applies, no other writer writes; readers and snapshots continue.
//!
//! # Protocol
//! 1. In a store with a log, lock the stripes of all keys that were read or written, or all stripes
//!    if ranges were read.
//! 2. Reserve memory for the writes.
//! 3. Wait for the turn among commits. Register in the current epoch *t*, end it, and wait until no
//!    other writer of *t* is left ([`Epochs::enter_alone`](super::epochs::Epochs::enter_alone)).
//!    Writers of *t* + 1 wait until *t* is quiesced, that is, until the end of step 5.
//! 4. Compare everything that was read in the latest state and in the transaction's snapshot *s*.
//! 5. If both are equal, apply the writes. Leave the epoch.
//! 6. Append the writes to the log as one record group, and unlock the stripes.
//!
//! Other writers have no extra work: they pass the barrier that snapshots need anyway.
//!
//! # Why it is serializable
//! Order all operations by epoch. Within an epoch *t*, order the single writes and batches first,
//! by their linearization points, then the commit of *t* (there is at most one, because the next
//! one registers after *t* has ended), then the reads at a snapshot of *t*. Each operation sees the
//! state that this order gives it:
//!
//! - A snapshot of *t* holds what the writes of epochs up to *t* wrote, and nothing else
//!   (`epochs`). The same is true of transactions that write nothing, because they only read their
//!   snapshot.
//! - A committed transaction has read, at *s*, what it would read at its place in the order. At
//!   step 4 all earlier writers of *t* have finished, so the latest state is the one after their
//!   writes, and it equals *s* in everything that was read, including absent keys and ranges. The
//!   transaction's own writes, which it has read too, are the same in both places. Values and
//!   deadlines are compared, not versions: a key that was changed and changed back counts as
//!   unchanged.
//! - Its writes are in epoch *t*, so they are in all snapshots from *t* on and in no earlier one.
//!
//! An operation that began after another had ended is not ordered before it, because epochs never
//! decrease.
//!
//! # Why a crash leaves a prefix
//! If a transaction read or overwrote what another operation wrote, or overwrote what it read, they
//! share a key or a range. The later one waits for the stripe that the earlier one holds until it
//! has appended its record. So the log has conflicting operations in the order above, and each
//! prefix of the log is a state of a serializable history.
//!
//! # Progress
//! Blocking for a short time: other writers wait for steps 3 to 5, and commits wait for each other.

use std::borrow::Borrow;

use super::batch::Write;
use super::engine::View;
use super::handle::Store;
use super::snapshot::Snapshot;
use super::transaction::{Footprint, ReadSet};
use crate::entry::{Found, Put};
use crate::wal::buffer::WrittenKeys;
use ordna_base::index::Bounds;
use ordna_base::sync::{check, fault, point};
use ordna_base::{Error, Key, Value};

impl<K: Key + ?Sized, V: Value + ?Sized> Store<K, V> {
    /// Commits a transaction that writes.
    pub(super) fn commit(
        &self,
        snapshot: &Snapshot<K, V>,
        footprint: &Footprint<K, V>,
    ) -> Result<(), Error> {
        let Footprint { reads, writes, .. } = footprint;
        let writes: Vec<Write<'_, K, V>> = writes
            .iter()
            .map(|(key, put)| match put {
                Some(put) => {
                    let (value, expires_at) = (put.value.borrow(), put.expires_at);
                    Write::Put(key.borrow(), Put { value, expires_at })
                }
                None => Write::Remove(key.borrow()),
            })
            .collect();
        let Some(wal) = self.wal() else { return self.commit_unlogged(snapshot, reads, &writes) };
        let written: Vec<&K> = writes.iter().map(Write::key).collect();
        let read: Vec<&K> = match fault!("transaction.log.locks_reads") {
            true => Vec::new(),
            false => reads.keys.iter().map(Borrow::borrow).collect(),
        };
        let any = check!("transaction.log.locks_ranges", reads.ranges.is_empty());
        let keys = WrittenKeys::Transaction { written: &written, read: &read, reads_any: !any };
        wal.write(&keys, self, &mut |buffer| {
            self.commit_unlogged(snapshot, reads, &writes)?;
            writes.iter().for_each(|write| write.record(buffer));
            Ok(())
        })
    }

    /// Works like [`commit`](Self::commit), without the log.
    fn commit_unlogged(
        &self,
        snapshot: &Snapshot<K, V>,
        reads: &ReadSet<K>,
        writes: &[Write<'_, K, V>],
    ) -> Result<(), Error> {
        self.write_batch_if(writes, || {
            let is_valid = self.is_as_read(snapshot, reads);
            point("transaction.commit.validated");
            is_valid
        })
    }

    /// Returns whether everything that was read at the snapshot is unchanged. No other writer
    /// writes.
    fn is_as_read(&self, snapshot: &Snapshot<K, V>, reads: &ReadSet<K>) -> bool {
        reads.keys.iter().all(|key| self.is_key_as_read(snapshot, key.borrow()))
            && check!(
                "transaction.validate.ranges",
                reads.ranges.iter().all(|(lower, upper)| {
                    let lower = lower.as_ref().map(Borrow::borrow);
                    let upper = upper.as_ref().map(Borrow::borrow);
                    self.is_range_as_read(snapshot, (lower, upper))
                })
            )
    }

    fn is_key_as_read(&self, snapshot: &Snapshot<K, V>, key: &K) -> bool {
        let engine = self.engine();
        let same = snapshot.get_entry_with(key, |then| {
            let is_same = |now: Found<'_, V>| {
                now.value == then.value
                    && check!("transaction.validate.deadlines", now.expires_at == then.expires_at)
            };
            engine.get(View::Latest, key, is_same) == Some(true)
        });
        match same {
            Some(same) => check!("transaction.validate.keys", same),
            None => check!("transaction.validate.absent", !self.contains_key(key)),
        }
    }

    fn is_range_as_read(&self, snapshot: &Snapshot<K, V>, (lower, upper): Bounds<'_, K>) -> bool {
        if self.engine().is_unchanged(snapshot.quiesced_epoch(), (lower, upper)) {
            return true;
        }
        // Something near the range has changed, so its entries are compared.
        let (mut then, mut now) = (snapshot.range((lower, upper)), self.range((lower, upper)));
        loop {
            match (then.next_ref(), now.next_ref()) {
                (None, None) => return true,
                (Some(then), Some(now)) if then == now => {}
                _ => return false,
            }
        }
    }
}
