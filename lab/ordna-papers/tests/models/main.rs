//! Models of the protocols for loom (`cargo xtask loom`), and of PI's rebuilds for shuttle
//! (`cargo xtask shuttle`). Without these cfgs, the program is empty.

#[cfg(loom)]
mod locked_layer;
#[cfg(loom)]
mod loom_art_prefix;
#[cfg(loom)]
mod loom_hydralist_updates;
#[cfg(loom)]
mod loom_nitro_barrier;
#[cfg(loom)]
mod loom_twin;
#[cfg(shuttle)]
mod shuttle_pi;
