//! The lock-free skip list.
//!
//! A module is named after the area of the planted faults that its tests look for (`cargo xtask
//! faults`).

ordna_testkit::count_memory!();

mod skiplist;
#[cfg(debug_assertions)]
mod skiplist_interleavings;
#[cfg(debug_assertions)]
mod skiplist_shortcuts;
