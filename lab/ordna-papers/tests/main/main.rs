//! Tests of all structures, in one program, so that shared instantiations are compiled once.
//!
//! A module is named after the area of planted faults that its tests detect (`cargo xtask faults`).
//! The models of the protocols are a separate program, because they need another build.

ordna_testkit::count_memory!();

mod alone;
mod art;
mod art_htm;
#[cfg(debug_assertions)]
mod art_interleavings;
mod art_jump;
mod art_keys;
mod art_none;
#[cfg(debug_assertions)]
mod art_rowex_interleavings;
mod art_trees;
mod fixed_costs;
mod hydralist;
mod hydralist_background;
#[cfg(debug_assertions)]
mod hydralist_interleavings;
mod hydralist_memory;
#[cfg(debug_assertions)]
#[path = "../models/locked_layer.rs"]
mod locked_layer;
mod nitro;
mod nitro_barrier;
mod nitro_cuts;
#[cfg(debug_assertions)]
mod nitro_interleavings;
mod nitro_memory;
mod nitro_states;
mod own_process;
mod pi;
mod pi_batches;
#[cfg(debug_assertions)]
mod pi_interleavings;
mod skiplist;
#[cfg(debug_assertions)]
mod skiplist_interleavings;
#[cfg(debug_assertions)]
mod skiplist_shortcuts;
mod wormhole;
mod wormhole_layer;
mod wormhole_memory;
mod wormhole_unsafe;
