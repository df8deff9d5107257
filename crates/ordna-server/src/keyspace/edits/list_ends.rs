//! Pushes and pops at the ends of large lists that write the head alone: most of them.

use ordna::{Change, Error, Found, Put};

use crate::keyspace::KeyspaceStore;
use crate::keyspace::collections::ends::{pop_from_head, push_into_head};
use crate::keyspace::list::End;
use crate::keyspace::stored_key::stored;

/// Decides what a head becomes, if it is changed.
type Decide<'a> = dyn FnMut(&[u8]) -> Option<Vec<u8>> + 'a;

impl KeyspaceStore {
    /// Adds a value at an end of a large list, if the head has room for it. Returns the number of values; `None`
    /// if nothing is done, which another kind of write may do.
    ///
    /// # Errors
    /// The memory limit is reached, or the log has failed.
    pub fn push_at_end(&self, key: &[u8], value: &[u8], end: End) -> Result<Option<usize>, Error> {
        let mut len = None;
        self.modify_head_of_list(key, &mut |head| {
            let (pushed, count) = push_into_head(head, value, end)?;
            len = Some(count);
            Some(pushed)
        })
        .map(|is_done| len.filter(|_| is_done))
    }

    /// Removes the value at an end of a large list, if it is in the head and not the last one, and returns it.
    /// `None` if nothing is done, which another kind of write may do.
    ///
    /// # Errors
    /// The log has failed.
    pub fn pop_at_end(&self, key: &[u8], end: End) -> Result<Option<Vec<u8>>, Error> {
        let mut value = None;
        let done = self.modify_head_of_list(key, &mut |head| {
            let (popped, found) = pop_from_head(head, end)?;
            value = Some(found);
            Some(popped)
        });
        match done {
            // A removal is done all the same, elsewhere.
            Err(Error::MemoryLimit { .. }) => Ok(None),
            done => done.map(|is_done| value.filter(|_| is_done)),
        }
    }

    /// Changes the head of a large list, under the lock of its key. Returns whether it was changed.
    fn modify_head_of_list(&self, key: &[u8], decide: &mut Decide<'_>) -> Result<bool, Error> {
        if !self.collections.may_hold_list(key) {
            return Ok(false);
        }
        let _locked = self.collections.lock(key);
        let mut is_done = false;
        self.store.modify_entry(&stored(key), |found: Option<Found<'_, [u8]>>| {
            let put = found.and_then(|found| {
                Some(Put { value: decide(found.value)?, expires_at: found.expires_at })
            });
            is_done = put.is_some();
            put.map_or(Change::Keep, Change::Put)
        })?;
        Ok(is_done)
    }
}
