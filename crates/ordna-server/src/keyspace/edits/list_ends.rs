//! Pushes and pops at the ends of large lists that change only the head; most of them do.

use ordna::{Change, Error, Found, Put};

use crate::keyspace::KeyspaceStore;
use crate::keyspace::collections::ends::{pop_from_head, push_into_head};
use crate::keyspace::list::End;
use crate::keyspace::stored_key::stored;

/// Returns the new head, or `None` to leave it unchanged.
type Decide<'a> = dyn FnMut(&[u8]) -> Option<Vec<u8>> + 'a;

impl KeyspaceStore {
    /// Adds a value at an end of a large list if the head has room for it, and returns the number
    /// of values. Returns `None` if nothing was done; the caller then uses a general write.
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

    /// Removes and returns the value at an end of a large list if it is stored in the head and is
    /// not the list's last value. Returns `None` if nothing was done; the caller then uses a
    /// general write.
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
            // The general write can remove the value in spite of the limit.
            Err(Error::MemoryLimit { .. }) => Ok(None),
            done => done.map(|is_done| value.filter(|_| is_done)),
        }
    }

    /// Changes the head of a large list under the lock of its key. Returns whether `decide` changed
    /// it.
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
