//! Errors of operations, and the limits of keys and values.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The longest byte-string key, in bytes: its length is stored in two bytes.
pub const MAX_KEY_LEN: usize = u16::MAX as usize;

/// The longest byte-string value, in bytes: 512 MiB, the limit of Redis.
pub const MAX_VALUE_LEN: usize = 512 << 20;

/// The reason why an operation of a store, a map or a transaction failed. Nothing was written,
/// unless the variant says otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The key is longer than [`MAX_KEY_LEN`].
    KeyTooLong {
        /// Length of the rejected key in bytes.
        len: usize,
    },
    /// The value is longer than [`MAX_VALUE_LEN`].
    ValueTooLong {
        /// Length of the rejected value in bytes.
        len: usize,
    },
    /// The items of a bulk construction are not in ascending order.
    NotSorted {
        /// Number of the part that has the item.
        part: usize,
        /// Number of the item in its part.
        at: usize,
    },
    /// The store has reached its memory limit.
    MemoryLimit {
        /// The limit, in bytes.
        limit: usize,
    },
    /// The store's log cannot record writes. Writes fail until a backup succeeds. A write in
    /// progress may be in memory, and after a crash it may be present or not.
    LogFailed {
        /// The first failure.
        reason: std::sync::Arc<str>,
    },
    /// The store holds a key of another type than the map's.
    WrongKey(Box<WrongKey>),
    /// A value has another type than the map's, or cannot be encoded.
    WrongValue(Box<ValueError>),
    /// A map, a snapshot, a batch or a transaction belongs to another store.
    OtherStore,
    /// All numbers of maps in the store are used up.
    TooManyMaps,
    /// Other writes changed what the transaction had read before it could commit, in each attempt.
    Conflict {
        /// Number of attempts.
        attempts: u32,
    },
    /// The transaction is older than its age limit.
    TransactionTooOld {
        /// The age limit.
        limit: Duration,
    },
    /// Opening, a backup or a restore failed.
    Durability(Cause),
}

/// Bytes that are not an encoded value of the requested type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecodeError {
    /// Position in the key at which the value should begin.
    pub at: usize,
    /// Description of the expected value.
    pub expected: &'static str,
    /// The byte at that position, or `None` at the end of the key.
    pub found: Option<u8>,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at byte {}: expected {}, found ", self.at, self.expected)?;
        match self.found {
            Some(byte) => write!(f, "{byte:#04x}"),
            None => f.write_str("the end"),
        }
    }
}

impl std::error::Error for DecodeError {}

/// A key that is not of the map's type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrongKey {
    /// The bytes of the key.
    pub key: Vec<u8>,
    /// The reason why they are not a key of the map.
    pub source: DecodeError,
}

/// Bytes that are not a value of the requested type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValueError {
    /// Length of the value.
    pub len: usize,
    /// The requested type.
    pub expected: &'static str,
    /// The decoder's own text, if it has one.
    pub reason: String,
}

impl fmt::Display for ValueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { len, expected, reason } = self;
        write!(f, "a value of {len} bytes is not a value of the type {expected}{reason}")
    }
}

impl std::error::Error for ValueError {}

/// The cause of an [`Error`], shared by its clones. Two causes are equal if their texts are.
#[derive(Debug, Clone)]
pub struct Cause(pub Arc<dyn std::error::Error + Send + Sync>);

impl PartialEq for Cause {
    fn eq(&self, other: &Self) -> bool {
        self.0.to_string() == other.0.to_string()
    }
}

impl Eq for Cause {}

impl From<ValueError> for Error {
    fn from(error: ValueError) -> Self {
        Self::WrongValue(Box::new(error))
    }
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
            Self::WrongKey(wrong) => {
                let WrongKey { key, source } = &**wrong;
                write!(f, "the key {key:02x?} is not a key of the map: {source}")
            }
            Self::WrongValue(error) => error.fmt(f),
            Self::OtherStore => f.write_str(
                "the map, snapshot or transaction belongs to another store than the one it is used with",
            ),
            Self::TooManyMaps => {
                write!(f, "the store has {} maps, which are the most", u32::MAX)
            }
            Self::Conflict { attempts } => write!(
                f,
                "the transaction conflicted with other writes in each of {attempts} attempts"
            ),
            Self::TransactionTooOld { limit } => {
                write!(f, "the transaction is older than its age limit of {limit:?}")
            }
            Self::Durability(cause) => cause.0.fmt(f),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::WrongKey(wrong) => Some(&wrong.source),
            // The other variants have no cause; their text says everything.
            Self::Durability(cause) => cause.0.source(),
            _ => None,
        }
    }
}

/// The first violated invariant that an audit ([`crate::OrderedIndex::check_invariants`]) has
/// found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation(pub String);

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invariant broken: {}", self.0)
    }
}

impl std::error::Error for Violation {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_no_larger_than_a_string() {
        // Results of writes are returned through several calls.
        assert!(size_of::<Error>() <= size_of::<String>());
    }
}
