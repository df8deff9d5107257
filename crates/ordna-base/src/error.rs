use crate::{key, value};

/// Why a write was refused. Nothing was written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The key is longer than [`key::MAX_LEN`].
    #[error("the key has {len} bytes; at most {} are allowed", key::MAX_LEN)]
    KeyTooLong {
        /// Length of the refused key, in bytes.
        len: usize,
    },
    /// The value is longer than [`value::MAX_LEN`].
    #[error("the value has {len} bytes; at most {} are allowed", value::MAX_LEN)]
    ValueTooLong {
        /// Length of the refused value, in bytes.
        len: usize,
    },
    /// What should be sorted is not.
    #[error("item {at} of part {part} is not above the one before it")]
    NotSorted {
        /// Which part.
        part: usize,
        /// Which item of it.
        at: usize,
    },
    /// The store holds as much as it may.
    #[error("the memory limit of {limit} bytes is reached")]
    MemoryLimit {
        /// The limit, in bytes.
        limit: usize,
    },
}

/// What a structural audit ([`crate::OrderedIndex::validate`]) found to be broken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invariant broken: {0}")]
pub struct Violation(pub String);
