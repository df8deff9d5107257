//! The seam between the writes of a store and a journal of them.
//!
//! # Contract
//! Every public write of the store passes here once. A store without a journal pays one load and
//! one branch. With a journal, [`Journal::write`] runs the write in memory inside the journal's
//! critical section of the keys, so that a key's records have the order of its writes. Removals of
//! expired keys by collectors do not pass: deadlines are absolute, and a reader of the journal
//! applies them itself.
//!
//! # Failure
//! A journal that cannot record refuses a write before the memory changes. If it learns of the
//! failure later, it answers an error for a write that stays in memory. It refuses all writes that
//! follow.

use std::any::Any;
use std::ops::{Bound, ControlFlow};

use super::entry::Put;
use ordna_base::Error;

/// The keys that a write may change.
pub(crate) enum Scope<'a, K: ?Sized> {
    Key(&'a K),
    Keys(&'a [&'a K]),
    Range(Bound<&'a K>, Bound<&'a K>),
}

/// Entries as a journal reads them.
pub(crate) trait Entries<K: ?Sized, V: ?Sized>: Sync {
    /// Calls `read` with the entry of `key`.
    fn read(&self, key: &K, read: &mut dyn FnMut(Option<Put<&V>>));

    /// Calls `visit` with the entries within the bounds, in order, until it breaks.
    fn scan_with(
        &self,
        lower: Bound<&K>,
        upper: Bound<&K>,
        visit: &mut dyn FnMut(&K, Put<&V>) -> ControlFlow<()>,
    );
}

/// The notes of a write for its journal: the state in which it leaves its keys.
pub(crate) trait Notes<K: ?Sized, V: ?Sized> {
    /// Drops the notes of this write, but for [`was`](Self::was).
    fn start_over(&mut self);
    /// The state of the write's one key just before it changes.
    fn was(&mut self, key: &K, old: Option<Put<&V>>);
    fn put(&mut self, key: &K, put: Put<&V>);
    /// Bytes were written at a position of the value, which is there.
    fn splice(&mut self, key: &K, at: usize, bytes: &[u8]);
    fn expire(&mut self, key: &K, expires_at: Option<u64>);
    fn remove(&mut self, key: &K);
    fn remove_range(&mut self, lower: Bound<&K>, upper: Bound<&K>);
}

/// A write as a journal runs it.
pub(crate) type Run<'a, K, V> = dyn FnMut(&mut dyn Notes<K, V>) -> Result<(), Error> + 'a;

/// A record of all writes.
pub(crate) trait Journal<K: ?Sized, V: ?Sized>: Send + Sync {
    /// Runs `write` while no other write of the scope's keys runs, and records what it notes, as
    /// one.
    fn write(
        &self,
        scope: Scope<'_, K>,
        store: &dyn Entries<K, V>,
        write: &mut Run<'_, K, V>,
    ) -> Result<(), Error>;

    /// Runs `work` while no other thread writes, and records all that this thread writes in it as
    /// one.
    fn group(&self, work: &mut dyn FnMut()) -> Result<(), Error>;

    fn as_any(&self) -> &dyn Any;
}
