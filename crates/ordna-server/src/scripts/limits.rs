//! The limit of the memory of scripts.

/// Memory of all that scripts hold, in bytes: tables of some million entries fit. A script that needs more
/// fails with "not enough memory".
pub const MOST_MEMORY: usize = 256 << 20;
