//! PI.
//!
//! A module is named after the area of the planted faults that its tests look for (`cargo xtask
//! faults`). Tests that count the memory of the whole process have programs of their own.

ordna_testkit::count_memory!();

mod pi;
mod pi_batches;
#[cfg(debug_assertions)]
mod pi_interleavings;
