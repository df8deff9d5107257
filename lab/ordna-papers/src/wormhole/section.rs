//! The reading section of a leaf list.

#![expect(unsafe_code, reason = "retires records")]

use ordna_base::reclaim::Guard;
use ordna_base::record::Record;
use ordna_base::{Key, Value};

/// A reading section: a guard of the collector, or nothing if there is a single thread.
pub struct Section<'a>(pub Option<Guard<'a>>);

impl Section<'_> {
    /// Retires a record that has left its leaf.
    pub fn retire_record<K: Key + ?Sized, V: Value + ?Sized>(&self, record: Record<K, V>) {
        // SAFETY: callers have removed the record from its leaf, under the lock. Without a guard,
        // the caller is the only thread.
        unsafe {
            match &self.0 {
                Some(guard) => record.retire(guard),
                None => record.free(),
            }
        }
    }
}
