//! Typed maps over a store of byte strings.
//!
//! Keys are written in the [tuple encoding](crate::tuple), so their byte order is their own order;
//! values as [`StoreAs`] says. A call costs its untyped twin plus the encoding.
//!
//! ```
//! use ordna::Map;
//!
//! let towns: Map<(String, String), u64> = Map::new();
//! towns.insert(&("SE", "Uppsala"), &177_074)?;
//! towns.insert(&("SE", "Lund"), &94_393)?;
//! towns.insert(&("NO", "Oslo"), &709_037)?;
//! assert_eq!(towns.get(&("SE", "Lund"))?, Some(94_393));
//!
//! let before = towns.snapshot();
//! towns.remove(&("SE", "Lund"))?;
//! let names = |entry: Result<((String, String), u64), _>| entry.map(|((_, name), _)| name);
//! assert_eq!(towns.prefix(&("SE",)).map(names).collect::<Result<Vec<_>, _>>()?, ["Uppsala"]);
//! assert_eq!(before.prefix(&("SE",)).count(), 2);
//! # Ok::<(), ordna::typed::MapError>(())
//! ```
//!
//! # Several maps in one store
//! [`Map::named`] gives each map of a store a number, which starts its keys. A [`Batch`] writes to
//! several of them, and [`Map::at`] reads them at one snapshot.
//!
//! | entry of the store | key | value |
//! |---|---|---|
//! | last number given | `00` | 4 bytes, little-endian |
//! | a map's number | `00 01`, the name | 4 bytes, little-endian |
//! | a map's entry | the number in the tuple encoding, the key | the value |

mod batch;
mod iter;
mod map;
mod snapshot;
mod stored;

pub use batch::Batch;
pub use iter::Iter;
pub use map::Map;
pub use snapshot::MapSnapshot;
use std::fmt;
#[cfg(feature = "serde")]
pub use stored::Serde;

pub use stored::{StoreAs, Stored, ValueError};

use crate::tuple::DecodeError;

/// Why a call on a typed map failed. A write that failed has changed nothing.
#[derive(Debug)]
#[non_exhaustive]
pub enum MapError {
    /// The store refused the write.
    Store(crate::Error),
    /// The store holds a key of another type.
    Key {
        /// The bytes of the key.
        key: Vec<u8>,
        /// Why they are no key of this map.
        source: DecodeError,
    },
    /// The store holds a value of another type.
    Value(ValueError),
    /// A map and a batch belong to two stores.
    OtherStore,
    /// The store has given all numbers of maps.
    TooManyMaps,
}

impl fmt::Display for MapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Store(error) => error.fmt(f),
            Self::Key { key, source } => {
                write!(f, "the key {key:02x?} is of another type: {source}")
            }
            Self::Value(error) => error.fmt(f),
            Self::OtherStore => f.write_str("the map belongs to another store than the batch"),
            Self::TooManyMaps => {
                write!(f, "the store has {} maps, which are the most", u32::MAX)
            }
        }
    }
}

impl std::error::Error for MapError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            // Their texts are this error's own.
            Self::Store(error) => error.source(),
            Self::Value(error) => error.source(),
            Self::Key { source, .. } => Some(source),
            Self::OtherStore | Self::TooManyMaps => None,
        }
    }
}

impl From<crate::Error> for MapError {
    fn from(error: crate::Error) -> Self {
        Self::Store(error)
    }
}

impl From<ValueError> for MapError {
    fn from(error: ValueError) -> Self {
        Self::Value(error)
    }
}

use std::cell::Cell;

thread_local! {
    static SCRATCH: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// A buffer beyond this many bytes is not kept for the next call.
const KEPT: usize = 64 << 10;

/// Calls `f` with an empty buffer that the thread keeps; a nested call gets a new one.
fn with_scratch<R>(f: impl FnOnce(&mut Vec<u8>) -> R) -> R {
    SCRATCH.with(|scratch| {
        let mut buffer = scratch.take();
        buffer.clear();
        let done = f(&mut buffer);
        if buffer.capacity() <= KEPT {
            scratch.set(buffer);
        }
        done
    })
}
