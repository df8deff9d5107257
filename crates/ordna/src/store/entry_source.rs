//! Access to entries with their deadlines, for the log and for backups.

use std::ops::{Bound, ControlFlow};

use super::entry::Put;

/// A store or a snapshot, as the log and backups read it.
pub(crate) trait EntrySource<K: ?Sized, V: ?Sized>: Sync {
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
