//! Why an operation failed, and the limits that it exceeded.

use std::fmt;

/// The longest byte-string key, in bytes: its length is stored in two bytes.
pub const MAX_KEY_LEN: usize = u16::MAX as usize;

/// The longest byte-string value, in bytes: 512 MiB, the limit of Redis.
pub const MAX_VALUE_LEN: usize = 512 << 20;

/// Why a write was refused. Nothing was written, unless the variant says otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The key is longer than [`MAX_KEY_LEN`].
    KeyTooLong {
        /// Length of the refused key, in bytes.
        len: usize,
    },
    /// The value is longer than [`MAX_VALUE_LEN`].
    ValueTooLong {
        /// Length of the refused value, in bytes.
        len: usize,
    },
    /// The items of a sorted build are not in ascending order.
    NotSorted {
        /// Number of the part.
        part: usize,
        /// Number of the item in it.
        at: usize,
    },
    /// The store holds as much as it may.
    MemoryLimit {
        /// The limit, in bytes.
        limit: usize,
    },
    /// The store's log cannot record writes. Writes are refused until a backup succeeds. A write
    /// that was under way may be in memory; after a crash it may be there or not.
    LogFailed {
        /// The first failure.
        reason: std::sync::Arc<str>,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::KeyTooLong { len } => {
                write!(f, "the key has {len} bytes; at most {MAX_KEY_LEN} are allowed")
            }
            Self::ValueTooLong { len } => {
                write!(f, "the value has {len} bytes; at most {MAX_VALUE_LEN} are allowed")
            }
            Self::NotSorted { part, at } => {
                write!(f, "item {at} of part {part} is not above the one before it")
            }
            Self::MemoryLimit { limit } => {
                write!(f, "the memory limit of {limit} bytes is reached")
            }
            Self::LogFailed { reason } => write!(
                f,
                "the log cannot be written: {reason}; writes are refused until a backup succeeds"
            ),
        }
    }
}

impl std::error::Error for Error {}

/// The first invariant that an audit ([`crate::OrderedIndex::check_invariants`]) found broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation(pub String);

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invariant broken: {}", self.0)
    }
}

impl std::error::Error for Violation {}
