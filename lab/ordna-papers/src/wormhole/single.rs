//! Wormhole for a single thread: without locks, without a collector, with one table.
//!
//! Reads take `&self` and the type is not `Sync`; writes take `&mut self`. So no entry is removed
//! while it is read, and removed memory is freed immediately. Scans sort leaves through `&self`:
//! the order is stored in atomics, and a scan follows a copy of it.

use std::borrow::Borrow;
use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::{Bound, ControlFlow};

use super::switches::Switches;
use super::{Index, Single};
use crate::Unshared;
use ordna_base::{
    Change, Direction, Error, InvariantReport, Key, MemoryUsage, OrderedIndex, Value, Violation,
};

/// The paper's Wormhole-unsafe: it shows the cost of synchronization by comparison.
///
/// ```
/// use ordna_papers::{Unshared as _, WormholeUnsafe};
///
/// let mut towns = WormholeUnsafe::<[u8], u64>::new();
/// towns.insert(b"Lund", &94_393)?;
/// assert_eq!(towns.get(b"Lund"), Some(94_393));
/// # Ok::<(), ordna_papers::Error>(())
/// ```
#[derive(Debug)]
pub struct WormholeUnsafe<K: Key + ?Sized, V: Value + ?Sized, const LEAF: usize = 128> {
    index: Index<K, V, Single, LEAF>,
    not_sync: PhantomData<Cell<()>>,
}

impl<K: Key + ?Sized, V: Value + ?Sized, const LEAF: usize> Default for WormholeUnsafe<K, V, LEAF> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized, const LEAF: usize> WormholeUnsafe<K, V, LEAF> {
    /// Creates an empty map.
    pub fn new() -> Self {
        Self::with_switches(Switches::default())
    }

    /// Creates an empty map with some of the optimizations turned off.
    pub fn with_switches(switches: Switches) -> Self {
        Self { index: Index::create(switches), not_sync: PhantomData }
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized, const LEAF: usize> Unshared
    for WormholeUnsafe<K, V, LEAF>
{
    type Key = K;
    type Value = V;

    fn len(&self) -> usize {
        self.index.approximate_len()
    }

    #[inline]
    fn get_with<R>(&self, key: &K, read: impl FnOnce(&V) -> R) -> Option<R> {
        self.index.get_with(key, read)
    }

    fn get_many_with<Q: Borrow<K>>(&self, keys: &[Q], each: impl FnMut(usize, Option<&V>)) {
        self.index.get_many_with(keys, each);
    }

    fn modify<T, F>(&mut self, key: &K, change: F) -> Result<(), Error>
    where
        T: Borrow<V>,
        F: FnMut(Option<&V>) -> Change<T>,
    {
        self.index.modify(key, change)
    }

    fn visit(
        &self,
        lower: Bound<&K>,
        upper: Bound<&K>,
        direction: Direction,
        visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) {
        self.index.visit(lower, upper, direction, visit);
    }

    fn memory_usage(&self) -> MemoryUsage {
        self.index.memory_usage()
    }

    fn check_invariants(&self) -> Result<InvariantReport, Violation> {
        self.index.check_invariants()
    }
}
