//! Batches: several writes that are applied as one step.

use super::budget::Budget;
use super::engine::Payment;
use super::handle::Store;
use crate::entry::Put;
use crate::tree::{GROUP, Probe, Tree, WriteScope};
use crate::wal::buffer::StripeBuffer;
use ordna_base::index::Change;
use ordna_base::sync::{fault, point};
use ordna_base::{Error, Key, Value};

/// Number of writes up to which a batch descends to its leaves one after the other. With more
/// writes, overlapped cache misses save more than a descent as a group costs.
const FEW: usize = 3;

/// Bytes reserved for the remaining writes of a batch. They are given back on drop.
struct ReservedBytes<'a> {
    budget: &'a Budget,
    left: usize,
}

impl ReservedBytes<'_> {
    /// Passes bytes on to a write that was made.
    fn spend(&mut self, bytes: usize) {
        self.left = self.left.saturating_sub(bytes);
    }
}

impl Drop for ReservedBytes<'_> {
    fn drop(&mut self) {
        self.budget.release(self.left);
    }
}

/// One write of a batch.
///
/// ```
/// use ordna::{Put, Store, Write};
///
/// let store: Store<u64, u64> = Store::new();
/// let put = Write::Put(&1, Put { value: &10, expires_at: Some(store.now() + 60_000) });
/// store.write_batch(&[put, Write::Remove(&2)])?;
/// assert_eq!(store.len(), 1);
/// # Ok::<(), ordna::Error>(())
/// ```
#[derive(Debug)]
pub enum Write<'a, K: ?Sized, V: ?Sized> {
    /// Sets the value of the key.
    Put(&'a K, Put<&'a V>),
    /// Removes the key if it is present.
    Remove(&'a K),
}

impl<K: ?Sized, V: ?Sized> Clone for Write<'_, K, V> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<K: ?Sized, V: ?Sized> Copy for Write<'_, K, V> {}

impl<'a, K: ?Sized, V: ?Sized> Write<'a, K, V> {
    /// Returns the key.
    ///
    /// ```
    /// let write = ordna::Write::<u64, u64>::Remove(&7);
    /// assert_eq!(write.key(), &7);
    /// ```
    pub fn key(&self) -> &'a K {
        match self {
            Self::Put(key, _) | Self::Remove(key) => key,
        }
    }

    pub(super) fn change(&self) -> Change<Put<&'a V>> {
        match *self {
            Self::Put(_, put) => Change::Put(put),
            Self::Remove(_) => Change::Remove,
        }
    }

    /// Creates a write that sets the value of the key, without a deadline.
    ///
    /// ```
    /// let store: ordna::Store<u64, u64> = ordna::Store::new();
    /// store.write_batch(&[ordna::Write::put(&1, &10)])?;
    /// assert_eq!(store.get(1), Some(10));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn put(key: &'a K, value: &'a V) -> Self {
        Self::Put(key, Put::forever(value))
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> Write<'_, K, V> {
    /// Checks the lengths of key and value.
    pub(super) fn check(&self) -> Result<(), Error> {
        match self {
            Self::Put(key, put) => key.check().and_then(|()| put.value.check()),
            Self::Remove(key) => key.check(),
        }
    }

    /// Returns the number of bytes that the write's entry takes of the memory limit.
    fn cost(&self) -> usize {
        match self {
            Self::Put(key, put) => Tree::<K, V>::cost(key, put.value, put.deadline()),
            Self::Remove(_) => 0,
        }
    }

    /// Appends the log record of this write to `buffer`.
    pub(super) fn record(&self, buffer: &mut StripeBuffer<K>) {
        match *self {
            Self::Put(key, put) => buffer.put(key, put),
            Self::Remove(key) => buffer.remove(key),
        }
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> Store<K, V> {
    /// [`write_batch`](Self::write_batch) without the log.
    pub(super) fn write_batch_unlogged(&self, writes: &[Write<'_, K, V>]) -> Result<(), Error> {
        let engine = self.engine();
        self.write_paid(writes, |payment, reserved| {
            engine.writing(|scope| self.apply_writes(writes, scope, payment, reserved))
        })
    }

    /// Applies the writes if `is_valid` returns `true`. No other writer writes during the call.
    ///
    /// # Errors
    /// [`Error::Conflict`] if `is_valid` returns `false`, and those of
    /// [`write_batch`](Self::write_batch).
    pub(super) fn write_batch_if(
        &self,
        writes: &[Write<'_, K, V>],
        is_valid: impl FnOnce() -> bool,
    ) -> Result<(), Error> {
        let engine = self.engine();
        self.write_paid(writes, |payment, reserved| {
            engine.writing_alone(|scope| match is_valid() {
                true => self.apply_writes(writes, scope, payment, reserved),
                false => Err(Error::Conflict { attempts: 1 }),
            })
        })
    }

    /// Runs `write` after the bytes of all writes have been reserved.
    fn write_paid(
        &self,
        writes: &[Write<'_, K, V>],
        write: impl FnOnce(Payment, &mut ReservedBytes<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut bytes = 0_usize;
        for write in writes {
            write.check()?;
            bytes = bytes.saturating_add(write.cost());
        }
        let payment = if fault!("store.batch.reserves_first") {
            Payment::Due
        } else {
            self.within_limit(|engine| engine.budget.reserve(bytes))?;
            Payment::Done
        };
        let left = if payment == Payment::Done { bytes } else { 0 };
        let mut reserved = ReservedBytes { budget: &self.engine().budget, left };
        write(payment, &mut reserved)
    }

    fn apply_writes(
        &self,
        writes: &[Write<'_, K, V>],
        scope: &WriteScope<'_>,
        payment: Payment,
        reserved: &mut ReservedBytes<'_>,
    ) -> Result<(), Error> {
        let engine = self.engine();
        if writes.len() <= FEW {
            for write in writes {
                engine.apply(write.key(), scope, payment, |_| write.change())?;
                reserved.spend(write.cost());
                point("store.batch.between_writes");
            }
            return Ok(());
        }
        let mut probes = Vec::with_capacity(writes.len().min(GROUP));
        for group in writes.chunks(GROUP) {
            probes.clear();
            probes.extend(group.iter().map(|write| Probe::new(write.key())));
            let addresses = engine.tree.locate_many(&probes, scope.guard);
            for ((write, probe), address) in group.iter().zip(&probes).zip(addresses) {
                engine.apply_from(probe, Some(address), scope, payment, |_| write.change())?;
                reserved.spend(write.cost());
                point("store.batch.between_writes");
            }
        }
        Ok(())
    }
}
