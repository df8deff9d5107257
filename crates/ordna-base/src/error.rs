//! Why an operation failed, and the limits that it exceeded.

/// The longest byte-string key, in bytes: its length is stored in two bytes.
pub const MAX_KEY_LEN: usize = u16::MAX as usize;

/// The longest byte-string value, in bytes: 512 MiB, the limit of Redis.
pub const MAX_VALUE_LEN: usize = 512 << 20;

/// Why a write was refused. Nothing was written, unless the variant says otherwise.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The key is longer than [`MAX_KEY_LEN`].
    #[error("the key has {len} bytes; at most {} are allowed", MAX_KEY_LEN)]
    KeyTooLong {
        /// Length of the refused key, in bytes.
        len: usize,
    },
    /// The value is longer than [`MAX_VALUE_LEN`].
    #[error("the value has {len} bytes; at most {} are allowed", MAX_VALUE_LEN)]
    ValueTooLong {
        /// Length of the refused value, in bytes.
        len: usize,
    },
    /// The items of a sorted build are not in ascending order.
    #[error("item {at} of part {part} is not above the one before it")]
    NotSorted {
        /// Number of the part.
        part: usize,
        /// Number of the item in it.
        at: usize,
    },
    /// The store holds as much as it may.
    #[error("the memory limit of {limit} bytes is reached")]
    MemoryLimit {
        /// The limit, in bytes.
        limit: usize,
    },
    /// The store's log cannot record writes. Writes are refused until a backup succeeds. A write
    /// that was under way may be in memory; after a crash it may be there or not.
    #[error("the log cannot be written: {reason}; writes are refused until a backup succeeds")]
    LogFailed {
        /// The first failure.
        reason: std::sync::Arc<str>,
    },
}

/// The first invariant that an audit ([`crate::OrderedIndex::validate`]) found broken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invariant broken: {0}")]
pub struct Violation(pub String);
