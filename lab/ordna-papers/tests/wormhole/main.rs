//! Wormhole.
//!
//! A module is named after the area of the planted faults that its tests look for (`cargo xtask
//! faults`). Tests that count the memory of the whole process have programs of their own.

ordna_testkit::count_memory!();

#[path = "../common/alone.rs"]
mod alone;
mod wormhole;
mod wormhole_unsafe;
