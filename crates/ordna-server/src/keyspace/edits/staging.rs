//! Large collections whose elements are stored in several steps before a key holds them.
//!
//! # Contract
//! The id of the elements is in the list of removals from before the first element is stored until
//! the batch that assigns the collection to a key. So elements that a crash or an error leaves
//! behind are removed like those of a deleted collection. The removal skips an id while its
//! [`Staged`] exists.
//!
//! # Concurrency
//! No command reads elements of an id without a head, so they need no lock. An id is added to the
//! set of unfinished ids before it is added to the list of removals, and removed from the set after
//! it has left the list. The removal locks the set while it chooses an id: an id that is in the
//! list but not in the set must be removed.

use ordna::sync::point;
use ordna::{Error, Write};

use crate::keyspace::Keyspace;
use crate::keyspace::collections::head::Head;
use crate::keyspace::stored_key::removal;

/// Maximum number of elements of one batch, which takes some tenths of a millisecond.
const STRETCH: usize = 256;
/// Size in bytes after which a batch ends.
const STRETCH_BYTES: usize = 128 << 10;

/// A large collection that is not yet assigned to a key. If it is dropped before that, its elements
/// are removed.
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
    /// Begins to store the elements of a new collection. The caller holds the keyspace in shared
    /// mode.
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
    /// Stores some elements: keys in their stored form, with their values. Returns `false` if there
    /// were none left. The caller holds the keyspace in shared mode.
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
