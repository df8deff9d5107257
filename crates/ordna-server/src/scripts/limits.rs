//! The memory limit of scripts.

/// Maximum size in bytes of everything that scripts hold. Tables of some million entries fit. A
/// script that needs more fails with "not enough memory".
pub const MOST_MEMORY: usize = 256 << 20;
