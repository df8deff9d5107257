//! Tests of the store and its tree: the contract of an index, random sequences of operations,
//! consistent snapshots, forced interleavings.

ordna_testkit::count_memory!();

mod store_counts;
mod store_cuts;
mod store_expiry;
mod store_held_writers;
mod store_index;
mod store_interleavings;
mod store_limit;
mod store_machine;
mod store_memory;
mod store_moves;
mod store_ranks;
mod store_robust;
mod store_scans;
mod store_searches;
mod store_splice;
mod store_states;
mod store_undo;
