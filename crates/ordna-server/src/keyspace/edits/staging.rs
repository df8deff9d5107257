//! Large collections whose elements are stored in stretches, before a key has them.
//!
//! # Contract
//! The id of the elements is in the list of removals from before the first element is stored until
//! the batch that gives the collection to a key. So elements that a crash or an error leaves behind
//! are removed like those of a deleted collection. The removal passes over an id while its
//! [`Staged`] exists.
//!
//! # Concurrency
//! Nobody reads elements of an id without a head, so they need no lock. An id is added to the set
//! of unfinished ids before it is added to the list, and removed from the set after it has left the
//! list. The removal chooses an id while it has the set locked: an id that it finds in the list,
//! but not in the set, is to be removed.

use ordna::sync::point;
use ordna::{Error, Write};

use crate::keyspace::Keyspace;
use crate::keyspace::collections::head::Head;
use crate::keyspace::stored_key::removal;

/// Most elements of one batch: some tenths of a millisecond.
const STRETCH: usize = 256;
/// Bytes from which on a batch has enough elements.
const STRETCH_BYTES: usize = 128 << 10;

/// A large collection that no key has yet. If it is dropped before a key gets it, its elements are
/// removed.
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
    /// Begins to store the elements of a collection, which is new. The caller holds the keyspace in
    /// shared mode.
    ///
    /// # Errors
    /// The memory limit is reached, or the log has failed.
    pub fn stage(&self, head: &Head) -> Result<Staged, Error> {
        let id = head.id;
        self.collections.unfinished().insert(id);
        let staged = Staged { keyspace: self.clone(), id };
        self.write_elements(&[Write::put(&removal(id), &[][..])], 1, 1, false)?;
        Ok(staged)
    }
}

impl Staged {
    /// Stores some elements: keys in their stored form, with their values. Returns
    /// `false` if there was none left. The caller holds the keyspace in shared mode.
    ///
    /// # Errors
    /// The memory limit is reached, or the log has failed.
    pub fn add<'e>(
        &self,
        elements: &mut impl Iterator<Item = (&'e [u8], &'e [u8])>,
    ) -> Result<bool, Error> {
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while batch.len() < STRETCH && bytes < STRETCH_BYTES {
            let Some((key, value)) = elements.next() else { break };
            bytes += key.len() + value.len();
            batch.push(Write::put(key, value));
        }
        if batch.is_empty() {
            return Ok(false);
        }
        point("collections.staging.stretch");
        self.keyspace.write_elements(&batch, batch.len() as i64, 0, false)?;
        Ok(true)
    }
}
