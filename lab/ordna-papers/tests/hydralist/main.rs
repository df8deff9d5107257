//! HydraList and its search layers.
//!
//! A module is named after the area of the planted faults that its tests look for (`cargo xtask
//! faults`). Tests that count the memory of the whole process have programs of their own.

ordna_testkit::count_memory!();

mod hydralist;
mod hydralist_background;
#[cfg(debug_assertions)]
mod hydralist_interleavings;
mod wormhole_layer;
