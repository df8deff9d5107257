//! The Adaptive Radix Tree under five synchronization protocols.
//!
//! ```
//! use ordna_papers::{ArtRowex, OrderedIndex};
//!
//! let index: ArtRowex<[u8], u64> = ArtRowex::new();
//! index.insert(b"Lund", &94_393)?;
//! index.insert(b"Uppsala", &177_074)?;
//! assert_eq!(index.get(b"Lund"), Some(94_393));
//! assert_eq!(index.range(..).rev().next(), Some((b"Uppsala".to_vec(), 177_074)));
//! # Ok::<(), ordna_papers::Error>(())
//! ```
//!
//! | type | protocol | readers | restarts of readers |
//! |---|---|---|---|
//! | [`ArtNone`] | none: one writer or many readers | write nothing | never |
//! | [`ArtCoupling`] | lock coupling, read-write spin locks | write each lock on the path | never |
//! | [`ArtOlc`] | optimistic lock coupling | write nothing, validate | up to 16, then locks |
//! | [`ArtRowex`] | read-optimized write exclusion | write nothing, ignore locks | never |
//! | [`ArtHtm`] | hardware transactions, or a lock | write nothing, or take the lock | up to 20 |
//!
//! The table is about a lookup, or each run of records that a scan gathers. Concurrent writers
//! restart if the state on which they based their decision has changed, and after 16 restarts they
//! take locks from the root down. With these locks they restart, without a limit, in one case only:
//! if a prefix is longer than nodes store, a writer descends twice, and another writer may change
//! the path in between.
//!
//! A node branches on one byte of the key and has 4, 16, 48 or 256 slots. Chains of nodes with one
//! child are compressed into the prefix of the node below, and a subtree with a single key is the
//! key's record. Point operations are O(length of the key), whatever the number of entries, and
//! linearizable: a change at its store under the node's lock, a lookup as its protocol defines.
//! Scans are live, as [`OrderedIndex`] defines, and start in O(length of the key). With ten million
//! random `u64` pairs, each takes about 46 bytes.
//!
//! Records contain keys and values; a slot of the tree points to a record. Keys may have any
//! content: a key that is a prefix of another is in a separate slot, without a terminator byte.
//!
//! Source: "The ART of Practical Synchronization" (Leis et al., DaMoN 2016).

mod htm;
mod invariants;
mod jump;
mod leaf;
mod node;
mod none;
mod prefix;
#[cfg(debug_assertions)]
mod probes;
mod protocol;
mod search;
mod tree;
mod tree_scan;
mod word;
mod write;

use std::borrow::Borrow;
use std::ops::ControlFlow;

pub use self::htm::ArtHtm;
pub use self::none::ArtNone;
#[doc(hidden)]
pub use self::prefix::{AtomicPrefix, Prefix};
#[cfg(debug_assertions)]
#[doc(hidden)]
pub use self::probes::{restarts, steps};
use self::protocol::Free;
pub(crate) use self::protocol::Lent;
pub use self::protocol::{Concurrent, Coupling, Minimal, Olc, Protocol, Rowex, Unsynchronized};
use self::tree::Tree;
use self::write::Effect;
use ordna_base::index::{Bounds, Change, Direction, InvariantReport, MemoryUsage, OrderedIndex};
use ordna_base::reclaim::{Collector, Guard};
use ordna_base::sync::StripedCounter;
use ordna_base::{Error, Key, Value, Violation};

/// An adaptive radix tree for many threads; see the [module](self).
pub struct Art<K: Key + ?Sized, V: Value + ?Sized, P: Concurrent> {
    // Declared before the collector: dropping the tree frees what is linked, and the collector
    // frees the rest.
    tree: Tree<K, V, P>,
    collector: Collector,
    len: StripedCounter,
}

/// The tree with lock coupling.
pub type ArtCoupling<K, V> = Art<K, V, Coupling>;
/// The tree with optimistic lock coupling.
pub type ArtOlc<K, V> = Art<K, V, Olc>;
/// The tree with read-optimized write exclusion.
pub type ArtRowex<K, V> = Art<K, V, Rowex>;

#[expect(unsafe_code, reason = "the protocol is what makes sharing sound")]
// SAFETY: nodes contain atomics, and records contain plain data of types that are Send + Sync.
unsafe impl<K: Key + ?Sized, V: Value + ?Sized, P: Concurrent> Send for Art<K, V, P> {}
#[expect(unsafe_code, reason = "the protocol is what makes sharing sound")]
// SAFETY: shared access follows a `Concurrent` protocol, under guards of the collector.
unsafe impl<K: Key + ?Sized, V: Value + ?Sized, P: Concurrent> Sync for Art<K, V, P> {}

crate::shell!("Art" [K: Key + ?Sized, V: Value + ?Sized, P: Concurrent] Art<K, V, P>);

impl<K: Key + ?Sized, V: Value + ?Sized, P: Concurrent> Art<K, V, P> {
    /// Creates an empty index.
    pub fn new() -> Self {
        Self { tree: Tree::new(), collector: Collector::new(), len: StripedCounter::new() }
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized, P: Concurrent + Protocol<Read = Free>> Art<K, V, P> {
    /// Calls `read` with the entry of `key` or, if it is absent, with one of its two neighbours in
    /// the order of keys. Returns `None` if the index is empty, or contained no entry at some time
    /// during the call.
    ///
    /// This takes one descent, O(length of the key), which waits for no lock and never restarts. A
    /// second descent follows if the key differs from a prefix whose bytes are not all stored. The
    /// search looks at a node again if each slot was empty when it was visited. Writers have then
    /// filled a slot that the search had passed, and emptied one before the search reached it, so
    /// this happens at most once for two concurrent changes of that node. The method is meant for
    /// search layers that lead to a position near a key, from which a data layer continues. If
    /// there are concurrent writes, the entry is a neighbour among the entries that stay: none of
    /// these lies between it and the key.
    ///
    /// Source: the HydraList paper (VLDB 2020), §4.2.1.
    pub fn jump<R>(&self, key: &K, read: impl FnOnce(&K, &V) -> R) -> Option<R> {
        let guard = self.collector.pin();
        let leaf = self.tree.jump(key, &guard)?;
        let found = Tree::<K, V, P>::key(leaf);
        Some(Tree::<K, V, P>::with_value(leaf, |value| read(found, value)))
    }

    /// Works like [`Art::jump`] for many keys, in the order of `keys`, with overlapping memory
    /// accesses.
    pub fn jump_many<Q: Borrow<K>>(
        &self,
        keys: &[Q],
        mut each: impl FnMut(usize, Option<(&K, &V)>),
    ) {
        let guard = self.collector.pin();
        self.tree.jump_many(keys, &guard, |at, leaf| match leaf {
            Some(leaf) => {
                let found = Tree::<K, V, P>::key(leaf);
                Tree::<K, V, P>::with_value(leaf, |value| each(at, Some((found, value))));
            }
            None => each(at, None),
        });
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized, P: Concurrent> OrderedIndex for Art<K, V, P> {
    type Key = K;
    type Value = V;

    #[inline]
    fn get_with<R>(&self, key: &K, read: impl FnOnce(&V) -> R) -> Option<R> {
        let guard = self.collector.pin();
        self.tree.get(key, &guard).map(|leaf| Tree::<K, V, P>::with_value(leaf, read))
    }

    fn modify<T, F>(&self, key: &K, change: F) -> Result<(), Error>
    where
        T: Borrow<V>,
        F: FnMut(Option<&V>) -> Change<T>,
    {
        let guard = self.collector.pin();
        match self.tree.modify(key, change, &guard)? {
            Effect::Same => {}
            Effect::Inserted => self.len.add(1),
            Effect::Removed => self.len.add(-1),
        }
        Ok(())
    }

    fn scan_with(
        &self,
        (lower, upper): Bounds<'_, K>,
        direction: Direction,
        limit: usize,
        visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) {
        let guard = self.collector.pin();
        self.tree.scan_with(lower, upper, direction, limit, &guard, visit);
    }

    fn pin(&self) -> Option<Guard<'_>> {
        Some(self.collector.pin())
    }

    fn approximate_len(&self) -> usize {
        self.len.sum()
    }

    fn memory_usage(&self) -> MemoryUsage {
        self.tree.memory_usage(&self.collector.pin())
    }

    fn check_invariants(&self) -> Result<InvariantReport, Violation> {
        let report = self.tree.check_invariants(&self.collector.pin())?;
        let (entries, counted) = (report.entries, self.approximate_len());
        if entries != counted {
            return Err(Violation(format!("{}: {entries} entries, {counted} counted", P::NAME)));
        }
        Ok(report)
    }

    fn get_many_with<Q: Borrow<K>>(&self, keys: &[Q], mut each: impl FnMut(usize, Option<&V>)) {
        let guard = self.collector.pin();
        self.tree.get_many(keys, &guard, |at, leaf| match leaf {
            Some(leaf) => Tree::<K, V, P>::with_value(leaf, |value| each(at, Some(value))),
            None => each(at, None),
        });
    }
}
