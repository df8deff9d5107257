//! Large collections whose elements are stored in stretches, before a key has them.
//!
//! # Contract
//! The id of the elements is in the list of removals from before the first of them is stored, up to the batch that gives
//! the collection to a key. So elements that a crash, a restart or an error leaves behind are removed as those of a
//! collection that is gone. While its [`Staged`] exists, an id of this list is left alone.
//!
//! # Concurrency
//! Nobody reads elements of an id without a head, so they need no lock. The removal chooses an id while it holds the
//! set of unfinished ones. An id is added to the set before the list, and removed from it after: one that the removal
//! finds in the list is in the set, or is to be removed.

use ordna::sync::point;
use ordna::{Error, Write};

use crate::keyspace::Keyspace;
use crate::keyspace::collections::large::Large;
use crate::keyspace::stored_key::removal;

/// Elements that are stored in one batch: some tenths of a millisecond.
const STRETCH: usize = 256;

/// A large collection that no key has yet. If it is dropped before a key has it, its elements are removed.
#[derive(Debug)]
pub struct Staged {
    keyspace: Keyspace,
    pub(super) id: u64,
}

impl Drop for Staged {
    fn drop(&mut self) {
        self.keyspace.collections.unfinished().remove(&self.id);
    }
}

impl Keyspace {
    /// Begins to store the elements of a collection, which is new. The caller shares the keyspace.
    ///
    /// # Errors
    /// The memory limit is reached, or the log has failed.
    pub fn stage(&self, large: &Large<'static>) -> Result<Staged, Error> {
        let id = large.head.id;
        self.collections.unfinished().insert(id);
        let staged = Staged { keyspace: self.clone(), id };
        self.write_elements(&[Write::put(&removal(id), &[][..])], 1, 1, false)?;
        Ok(staged)
    }
}

impl Staged {
    /// Stores some of the elements, which are keys in their stored form and values. Returns whether there may be more.
    /// The caller shares the keyspace.
    ///
    /// # Errors
    /// The memory limit is reached, or the log has failed.
    pub fn add<'e>(
        &self,
        elements: &mut impl Iterator<Item = (&'e [u8], &'e [u8])>,
    ) -> Result<bool, Error> {
        let batch: Vec<Write<'_, [u8], [u8]>> =
            elements.take(STRETCH).map(|(key, value)| Write::put(key, value)).collect();
        if batch.is_empty() {
            return Ok(false);
        }
        point("collections.staging.stretch");
        self.keyspace.write_elements(&batch, batch.len() as i64, 0, false)?;
        Ok(true)
    }
}
