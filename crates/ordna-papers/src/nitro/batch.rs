//! Writes that belong together.

use super::handle::Store;
use super::payment::Payment;
use super::raw::cost;
use super::write::Put;
use ordna_base::index::Change;
use ordna_base::sync::{fault, point};
use ordna_base::{Error, Key, Value};

/// One write of a batch.
#[derive(Debug)]
pub enum Write<'a, K: ?Sized, V: ?Sized> {
    /// Sets the value of the key.
    Put(&'a K, Put<&'a V>),
    /// Removes the key if it is there.
    Remove(&'a K),
}

impl<K: ?Sized, V: ?Sized> Clone for Write<'_, K, V> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<K: ?Sized, V: ?Sized> Copy for Write<'_, K, V> {}

impl<'a, K: ?Sized, V: ?Sized> Write<'a, K, V> {
    /// Sets the value of the key, for good.
    pub fn put(key: &'a K, value: &'a V) -> Self {
        Self::Put(key, Put::forever(value))
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> Store<K, V> {
    /// Applies the writes in order. Every snapshot holds all of them or none. Readers of the latest
    /// state may see some before the others. O(log n) each; snapshots taken meanwhile are readable
    /// when it is done.
    ///
    /// # Errors
    /// A key or value is too long, or the batch would exceed the memory limit (what it overwrites
    /// does not count against what it adds): nothing is applied.
    pub fn write_batch(&self, writes: &[Write<'_, K, V>]) -> Result<(), Error> {
        let mut bytes = 0_usize;
        for write in writes {
            match write {
                Write::Put(key, put) => {
                    key.check()?;
                    put.value.check()?;
                    let cost = cost::<K, V>(key, put.value, put.expires_at.is_some());
                    bytes = bytes.saturating_add(cost);
                }
                Write::Remove(key) => key.check()?,
            }
        }
        let payment = if fault!("mvcc.batch.reserves_first") {
            Payment::Due
        } else {
            self.within_limit(|engine| engine.budget.reserve(bytes))?;
            Payment::Done
        };
        self.writing(|engine, term, guard| {
            for write in writes {
                let (key, change) = match *write {
                    Write::Put(key, put) => (key, Change::Put(put)),
                    Write::Remove(key) => (key, Change::Remove),
                };
                engine.apply(key, term, guard, payment, |_| change)?;
                point("mvcc.batch.between_writes");
            }
            Ok(())
        })
    }
}
