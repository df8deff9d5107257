//! Nitro: the contract of an index, state machines, cuts, forced interleavings.
//!
//! A module is named after the area of the planted faults that its tests look for (`cargo xtask
//! faults`). Tests that count the memory of the whole process have programs of their own.

ordna_testkit::count_memory!();

mod nitro;
mod nitro_barrier;
mod nitro_cuts;
#[cfg(debug_assertions)]
mod nitro_interleavings;
mod nitro_states;
