//! The tree for one thread.
//!
//! # Contract
//! Changes take `&mut self`, lookups and scans take `&self`, and the type is not `Sync`. So no
//! thread reads while a thread writes, nodes have no locks, and memory that leaves the tree is
//! freed at once.

use std::borrow::Borrow;
use std::ops::{Bound, ControlFlow};

use super::protocol::{Minimal, Protocol, Unsynchronized};
use super::tree::{Sole, Tree};
use super::write::Effect;
use crate::Unshared;
use ordna_base::index::{Change, Direction, InvariantReport, MemoryUsage, bounds_cross};
use ordna_base::{Error, Key, Value, Violation};

/// An adaptive radix tree without synchronization.
///
/// ```
/// use ordna_papers::{ArtNone, Unshared as _};
///
/// let mut towns = ArtNone::<[u8], u64>::new();
/// towns.insert(b"Lund", &94_393)?;
/// assert_eq!(towns.get(b"Lund"), Some(94_393));
/// # Ok::<(), ordna_papers::Error>(())
/// ```
pub struct ArtNone<K: Key + ?Sized, V: Value + ?Sized, P: Protocol = Unsynchronized> {
    tree: Tree<K, V, P>,
    len: usize,
}

#[expect(unsafe_code, reason = "owned data")]
// SAFETY: the tree owns its nodes and records, which are plain data of types that are Send.
unsafe impl<K: Key + ?Sized, V: Value + ?Sized, P: Protocol> Send for ArtNone<K, V, P> {}

impl<K: Key + ?Sized, V: Value + ?Sized, P: Protocol> std::fmt::Debug for ArtNone<K, V, P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ArtNone").field("len", &self.len).finish_non_exhaustive()
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> Default for ArtNone<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> ArtNone<K, V> {
    /// Creates an empty map.
    pub fn new() -> Self {
        Self { tree: Tree::new(), len: 0 }
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> ArtNone<K, V, Minimal<Unsynchronized>> {
    /// Creates an empty map whose nodes have room for few children, for tests.
    pub fn minimal() -> Self {
        Self { tree: Tree::new(), len: 0 }
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized, P: Protocol> Unshared for ArtNone<K, V, P> {
    type Key = K;
    type Value = V;

    fn len(&self) -> usize {
        self.len
    }

    #[inline]
    fn get_with<R>(&self, key: &K, read: impl FnOnce(&V) -> R) -> Option<R> {
        self.tree.get(key, &Sole).map(|leaf| Tree::<K, V, P>::with_value(leaf, read))
    }

    fn get_many_with<Q: Borrow<K>>(&self, keys: &[Q], mut each: impl FnMut(usize, Option<&V>)) {
        self.tree.get_many(keys, &Sole, |at, leaf| match leaf {
            Some(leaf) => Tree::<K, V, P>::with_value(leaf, |value| each(at, Some(value))),
            None => each(at, None),
        });
    }

    fn modify<T, F>(&mut self, key: &K, change: F) -> Result<(), Error>
    where
        T: Borrow<V>,
        F: FnMut(Option<&V>) -> Change<T>,
    {
        match self.tree.modify(key, change, &Sole)? {
            Effect::Same => {}
            Effect::Inserted => self.len += 1,
            Effect::Removed => self.len -= 1,
        }
        Ok(())
    }

    fn visit(
        &self,
        lower: Bound<&K>,
        upper: Bound<&K>,
        direction: Direction,
        visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) {
        if !bounds_cross(lower, upper) {
            self.tree.scan_with(lower, upper, direction, usize::MAX, &Sole, visit);
        }
    }

    fn memory_usage(&self) -> MemoryUsage {
        self.tree.memory_usage(&Sole)
    }

    fn check_invariants(&self) -> Result<InvariantReport, Violation> {
        let report = self.tree.check_invariants(&Sole)?;
        if report.entries != self.len {
            return Err(Violation(format!(
                "art: {} entries, {} counted",
                report.entries, self.len
            )));
        }
        Ok(report)
    }
}
