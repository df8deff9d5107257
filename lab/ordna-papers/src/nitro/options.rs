//! The options of an index.

use super::garbage::Order;
use crate::skiplist::{Fanout, ListOptions};

/// Options of an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NitroOptions {
    /// Number of threads that collect dead versions. With 0, the threads that end snapshots
    /// collect, and so do writers after their writes.
    pub collectors: usize,
    /// The condition under which a dead version is kept.
    pub order: Order,
    /// Options of the skip list of the versions.
    pub list: ListOptions,
}

impl Default for NitroOptions {
    fn default() -> Self {
        Self { collectors: 1, order: Order::LiveSet, list: ListOptions::default() }
    }
}

impl NitroOptions {
    /// Returns the options of the index in the paper: fanout 4, searches from the head, and
    /// collection in the order of snapshots (§2, §4). The access barrier (§6) is in
    /// [`barrier`](super::barrier) and is not used by the index.
    pub fn published() -> Self {
        let list = ListOptions { fanout: Fanout::Four, shortcuts: false };
        Self { order: Order::Epochs, list, ..Self::default() }
    }
}
