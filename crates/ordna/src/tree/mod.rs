//! The store's tree: a search layer above a list of slotted leaves, with undo records for
//! snapshots.
//!
//! # Contract
//! Any number of threads read and write concurrently, each under a guard of one collector. A write
//! is one step: the store of its slot, or the release of its leaf's lock. Every write belongs to an
//! epoch in which the caller has registered (see [`crate::store::epochs`]). A read at a snapshot's
//! epoch requires that the snapshot is alive and its epoch is quiesced.
//!
//! # Protocol
//! A search leads to a leaf that covers the key, or to one on its left. The reader takes the leaf's
//! version, looks for the key, and validates. A leaf that does not cover the key leads to the next
//! leaf. An unlinked leaf sends the search back to the search layer. After [`RETRIES`] failed
//! validations a reader takes the leaf's lock. Writers lock their leaf. A split or merge locks two
//! neighbours, the left one first.
//!
//! # Invariants
//! 1. Keys move to the right only, or with a leaf that is unlinked. So a leaf that once covered a
//!    key leads to it along the list.
//! 2. The first leaf is never unlinked.
//! 3. A leaf and its low fence enter and leave the search layer under the lock of the leaf on its
//!    left.
//!
//! # Progress
//! Readers are obstruction-free up to the retry bound, then blocking per leaf. Writers block per
//! leaf.
//!
//! Sources: HydraList (§4.2, a data list that is always correct below a search layer), Wormhole
//! (§2.3), Nitro (§3, versions), OLC (Leis et al., DaMoN 2016). `docs/design/store.md` has the full
//! argument.
//!
//! | module | what it holds |
//! |---|---|
//! | `search` | the search from a key to its leaf; counts of entries |
//! | `leaf` | slots, buckets, fences |
//! | `undo` | former states that snapshots need |
//! | `range_versions` | undo records of all keys of a range |
//! | `states` | states of keys before a change |
//! | `chunks` | the memory of undo records |
//! | `point` | reads and writes of single keys |
//! | `borrowed` | values that are read where they are stored |
//! | `splice` | writes at a position of a byte string |
//! | `reshape` | splits, shifts, merges, removal of ranges |
//! | `scan` | ordered scans; counts and positions |
//! | `many` | groups of keys |
//! | `count` | positions from the front |
//! | `compact` | merges sparse leaves, empties sparse slabs |
//! | `build` | a tree from sorted entries |
//! | `invariants` | checks at rest |

mod borrowed;
mod build;
mod compact;
mod invariants;
mod leaf;
mod many;
mod point;
mod reshape;
mod scan;
mod search;
mod splice;
mod undo;

use crate::epoch::Epoch;
use ordna_base::arena::Arena;
use ordna_base::reclaim::Guard;
use ordna_base::simd::InstructionSet;
use ordna_base::slabs::Pool;
use ordna_base::sync::atomic::{AtomicBool, AtomicUsize};
use ordna_base::{Key, Value};

pub use borrowed::ValueRef;
pub use build::Run;
use leaf::Leaf;
pub use leaf::{FOREVER, Probe, SLOTS};
pub use many::SCAN_GROUP;
pub use point::WriteStep;
pub use reshape::RemovedEntries;
pub use scan::ScanRequest;
use search::SearchLayer;
pub use search::{FANOUT, GROUP, LeafAddress};
pub use splice::{Splice, Spliced};
pub use undo::LiveEpochs;
use undo::{OldState, UndoLog};

/// The parts of a leaf's undo list, for its loom model.
#[cfg(loom)]
pub mod models {
    pub use super::leaf::{FOREVER, Leaf, LeafEntry, LeafMut, LockedLeaf, Probe};
    pub use super::undo::{LeafReading, LiveEpochs, Lookup, OldState, UndoLog};
    pub use crate::epoch::Epoch;
}

/// Number of slots of all leaves above which new records are allocated in slabs. Small trees use
/// less memory without slabs.
const LARGE: usize = 1024 * SLOTS;

/// Number of failed validations of a read before it takes the leaf's lock.
const RETRIES: usize = 64;

/// Sizes of nodes; tests shrink them so that rare paths run on every run.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    /// Maximum number of entries of a leaf, up to [`SLOTS`].
    pub slots: usize,
    /// Maximum number of children of a node of the search layer, up to [`FANOUT`].
    pub fanout: usize,
}

impl Default for Sizes {
    fn default() -> Self {
        Self { slots: SLOTS, fanout: FANOUT }
    }
}

/// The memory from which a tree allocates its leaves and small records.
#[derive(Clone)]
pub struct TreeMemory {
    pool: Pool,
    /// The arena of records; `None` if records must not move or if there are none.
    arena: Option<Arena>,
}

/// An ordered map whose past states live snapshots can read.
pub struct Tree<K: Key + ?Sized, V: Value + ?Sized> {
    search: SearchLayer<K>,
    log: UndoLog<K, V>,
    first: Leaf<K, V>,
    pool: Pool,
    /// The arena of small records; `None` if records must not move or if there are none.
    arena: Option<Arena>,
    /// Maximum number of entries of a leaf.
    slots: usize,
    simd: InstructionSet,
    leaves: AtomicUsize,
    /// Whether slabs have much unused room; see `compact`.
    sparse: AtomicBool,
    /// Whether a thread is compacting.
    compacting: AtomicBool,
}

// SAFETY: leaves consist of atomics, changed under their locks; records are Send + Sync.
#[expect(unsafe_code, reason = "the tree owns what its handles lead to")]
unsafe impl<K: Key + ?Sized, V: Value + ?Sized> Send for Tree<K, V> {}
// SAFETY: as above.
#[expect(unsafe_code, reason = "the tree owns what its handles lead to")]
unsafe impl<K: Key + ?Sized, V: Value + ?Sized> Sync for Tree<K, V> {}

/// The epoch in which a writer is registered, and what it read after the registration.
pub struct WriteScope<'a> {
    pub epoch: Epoch,
    /// The epoch of the youngest live snapshot, or [`Epoch::ZERO`].
    pub youngest: Epoch,
    pub guard: &'a Guard<'a>,
}

impl WriteScope<'_> {
    /// Returns the epoch of the youngest snapshot that does not see the writer's writes.
    fn seen_by(&self) -> Epoch {
        self.youngest.min(self.epoch.previous())
    }
}

/// The cost of a write that is about to happen, in bytes of the memory limit.
#[derive(Debug, Clone, Copy)]
pub struct WriteCost {
    /// Bytes of the new entry.
    pub grows: usize,
    /// Bytes of the replaced entry.
    pub shrinks: usize,
    /// Bytes that the undo record takes from the limit.
    pub undo: usize,
    /// The deadline of the new entry; [`FOREVER`] if it has none.
    pub deadline: u64,
    /// Whether the new entry has spare room. If that is refused, the write is tried without it.
    pub room: bool,
}

/// The effect of a write that changed an entry.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WriteOutcome {
    /// The deadline of the former entry, if there was one.
    pub before: Option<u64>,
    /// The deadline of the new entry, if there is one.
    pub after: Option<u64>,
    /// Bytes of the removed entry.
    pub shrinks: usize,
    /// Bytes that undo records took and gave back.
    pub undo: (usize, usize),
    /// The word of the new entry, or 0 if there is none.
    pub word: u64,
}
