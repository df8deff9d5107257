//! Wormhole: lookups in O(log L), where L is the length of the key, independently of the number of
//! keys.
//!
//! ```
//! use ordna_papers::{OrderedIndex, Wormhole};
//!
//! let index: Wormhole<[u8], u64> = Wormhole::new();
//! index.insert(b"Lund", &94_393)?;
//! index.insert(b"Uppsala", &177_074)?;
//! assert_eq!(index.get(b"Lund"), Some(94_393));
//! assert_eq!(index.range(..).rev().next(), Some((b"Uppsala".to_vec(), 177_074)));
//! # Ok::<(), ordna_papers::Error>(())
//! ```
//!
//! The index is a list of leaves in order, and a trie of short separators (*anchors*), which is
//! stored in a hash table with all their prefixes. A lookup finds its longest prefix in the table
//! by binary search on the length, and from there its leaf in constant time. In the leaf, the hash
//! of the key determines the position.
//!
//! | type | how leaves are shared | purpose |
//! |---|---|---|
//! | [`Wormhole`] | versions that readers validate | use |
//! | [`WormholeFaithful`] | reader-writer locks, as in the paper | comparison |
//! | [`WormholeUnsafe`] | a single thread | the cost of synchronization |
//!
//! Point operations take O(log L) and are linearizable: a read where its leaf was last found valid,
//! a write where it unlocks the leaf. Scans are live; they copy what they need from a leaf, and
//! continue by anchors. Readers do not write shared memory, except that a scan sorts a leaf that is
//! not sorted if no thread holds its lock. Splits and merges wait neither for readers nor for each
//! other.
//!
//! | file | contents |
//! |---|---|
//! | `hash` | incremental CRC32C |
//! | `table` | the MetaTrieHT |
//! | `twin`, `upkeep` | two tables, and how steps of the list are applied to them |
//! | `leaf`, `mode` | a leaf, and how it is shared |
//! | `list` | search, split, merge |
//! | [`layer`] | the table as a search layer of HydraList |
//!
//! Source: "Wormhole: A Fast Ordered Index for In-memory Data Management" (Wu, Ni, Jiang, EuroSys
//! 2019), §2 and §3. The top of each file describes what differs from it.

mod batch;
mod hash;
pub mod layer;
mod leaf;
mod leaf_scan;
mod list;
mod mode;
mod section;
mod single;
mod switches;
pub mod table;
#[doc(hidden)]
pub mod twin;
mod upkeep;

use std::borrow::Borrow;
use std::ops::ControlFlow;

use self::leaf::Leaf;
use self::list::LeafList;
pub use self::mode::{Faithful, Mode, Optimistic, Single};
pub use self::single::WormholeUnsafe;
pub use self::switches::Switches;
use ordna_base::index::{Bounds, Change, Direction, InvariantReport, MemoryUsage, OrderedIndex};
use ordna_base::reclaim::Guard;
use ordna_base::sync::StripedCounter;
use ordna_base::{Error, Key, Value, Violation};

/// An ordered map whose lookups take O(log L); see the [module](self).
pub type Wormhole<K, V, const LEAF: usize = 128> = Index<K, V, Optimistic, LEAF>;

/// The same index with the paper's lock per leaf; see the [module](self).
pub type WormholeFaithful<K, V, const LEAF: usize = 128> = Index<K, V, Faithful, LEAF>;

/// The index in one of the [modes](Mode), with leaves of up to `LEAF` entries (4 to 200).
pub struct Index<K: Key + ?Sized, V: Value + ?Sized, S: Mode, const LEAF: usize = 128> {
    list: LeafList<K, V, S, LEAF>,
    len: StripedCounter,
}

impl<K: Key + ?Sized, V: Value + ?Sized, S: Mode, const LEAF: usize> std::fmt::Debug
    for Index<K, V, S, LEAF>
{
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wormhole").field("approximate_len", &self.len.sum()).finish_non_exhaustive()
    }
}

macro_rules! constructors {
    ($mode:ty) => {
        impl<K: Key + ?Sized, V: Value + ?Sized, const LEAF: usize> Default
            for Index<K, V, $mode, LEAF>
        {
            fn default() -> Self {
                Self::new()
            }
        }

        impl<K: Key + ?Sized, V: Value + ?Sized, const LEAF: usize> Index<K, V, $mode, LEAF> {
            /// Creates an empty index.
            pub fn new() -> Self {
                Self::with_switches(Switches::default())
            }

            /// Creates an empty index with some of the optimizations turned off.
            pub fn with_switches(switches: Switches) -> Self {
                Self::create(switches)
            }
        }
    };
}

constructors!(Optimistic);
constructors!(Faithful);

impl<K: Key + ?Sized, V: Value + ?Sized, S: Mode, const LEAF: usize> Index<K, V, S, LEAF> {
    fn create(switches: Switches) -> Self {
        Self { list: LeafList::new(switches), len: StripedCounter::new() }
    }

    /// Returns how many splits and merges the published table does not contain yet. Lookups in the
    /// affected leaves examine one or two more leaves. For observation.
    pub fn table_lag(&self) -> u64 {
        self.list.lag()
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized, S: Mode, const LEAF: usize> OrderedIndex
    for Index<K, V, S, LEAF>
{
    type Key = K;
    type Value = V;

    #[inline]
    fn get_with<R>(&self, key: &K, read: impl FnOnce(&V) -> R) -> Option<R> {
        key.check().ok()?;
        let section = self.list.enter();
        let radix = key.radix();
        let target = self.list.search(radix.as_ref(), &section);
        let words = self.list.get(&target, key, radix.as_ref(), &section)?;
        Some(Leaf::<K, V, S, LEAF>::read(words, &section, read))
    }

    fn modify<T, F>(&self, key: &K, mut change: F) -> Result<(), Error>
    where
        T: Borrow<V>,
        F: FnMut(Option<&V>) -> Change<T>,
    {
        key.check()?;
        let section = self.list.enter();
        let radix = key.radix();
        let bytes = radix.as_ref();
        let target = self.list.search(bytes, &section);
        target.leaf.prefetch_order();
        let (leaf, held) = self.list.lock(&target, key, bytes, &section);
        let found = self.list.find(leaf, key, target.tag, || true).ok().flatten();
        let Some(entry) = found else {
            if let Change::Put(value) = change(None) {
                let value = value.borrow();
                value.check()?;
                let words = Leaf::<K, V, S, LEAF>::entry(key, value);
                self.list.insert(leaf, bytes, &target, words);
                drop(held);
                self.len.add(1);
                self.list.maintain(&section);
            }
            return Ok(());
        };
        match Leaf::<K, V, S, LEAF>::read(entry.1, &section, |value| change(Some(value))) {
            Change::Keep => {}
            Change::Put(value) => {
                let value = value.borrow();
                value.check()?;
                self.list.set_value(leaf, entry, key, value, &section);
            }
            Change::Remove => {
                self.list.remove(leaf, entry, &section);
                self.len.add(-1);
                if leaf.len() <= LEAF / 4 {
                    self.list.merge(leaf, held, &target);
                    self.list.maintain(&section);
                }
            }
        }
        Ok(())
    }

    fn scan_with(
        &self,
        bounds: Bounds<'_, K>,
        direction: Direction,
        limit: usize,
        visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) {
        self.list.scan_with(bounds, direction, limit, visit);
    }

    fn pin(&self) -> Option<Guard<'_>> {
        self.list.enter().0
    }

    fn approximate_len(&self) -> usize {
        self.len.sum()
    }

    fn memory_usage(&self) -> MemoryUsage {
        let [leaves, free, records, tables] = self.list.bytes(&self.list.enter());
        let parts =
            [("leaves", leaves), ("free leaves", free), ("records", records), ("tables", tables)];
        MemoryUsage { parts: parts.to_vec() }
    }

    fn check_invariants(&self) -> Result<InvariantReport, Violation> {
        let (entries, nodes) = self.list.check_invariants()?;
        if entries != self.approximate_len() {
            let counted = self.approximate_len();
            return Err(Violation(format!("wormhole: {entries} entries, {counted} counted")));
        }
        Ok(InvariantReport { entries, nodes })
    }

    fn get_many_with<Q: Borrow<K>>(&self, keys: &[Q], each: impl FnMut(usize, Option<&V>)) {
        self.list.get_many(keys, each);
    }
}
