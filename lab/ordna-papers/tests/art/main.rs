//! The radix trees.
//!
//! A module is named after the area of the planted faults that its tests look for (`cargo xtask
//! faults`). Tests that count the memory of the whole process have programs of their own.

ordna_testkit::count_memory!();

#[path = "../common/alone.rs"]
mod alone;
mod art;
#[cfg(feature = "htm")]
mod art_htm;
#[cfg(debug_assertions)]
mod art_interleavings;
mod art_jump;
mod art_keys;
mod art_none;
#[cfg(debug_assertions)]
mod art_rowex_interleavings;
mod art_trees;
