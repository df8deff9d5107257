//! Versions: the items of Nitro's skip list.

#![expect(unsafe_code, reason = "the list's node layout holds versions")]

use std::cmp::Ordering as Order;
use std::fmt;
use std::marker::PhantomData;

use crate::skiplist::item::Item;
use crate::skiplist::raw::NodeRef;
use ordna_base::reclaim::Guard;
use ordna_base::sync::atomic::{AtomicU64, Ordering};
use ordna_base::{Key, Value};

/// Death epoch of a version that is still alive: later than every epoch.
pub const LIVE: u64 = u64::MAX;
/// Death epoch of a version while its writer inserts the next version after it; see
/// [`super::write`].
pub const CLAIMED: u64 = u64::MAX - 1;

/// Value of [`Rank::born`] that stands for any version of the key. A search returns the first
/// version that it meets.
pub const ANY: u64 = u64::MAX;
/// Value of [`Rank::born`] that orders after all versions of the key. The first epoch is 1, so 0
/// orders before all.
pub const BEHIND: u64 = u64::MAX - 1;

/// A key's value between the epochs `born` (inclusive) and `dead` (exclusive).
pub struct Version<K: Key + ?Sized, V: Value + ?Sized>(PhantomData<(Box<K>, Box<V>)>);

/// The fixed part of a version.
pub struct Life<V: Value + ?Sized> {
    dead: AtomicU64,
    born: u64,
    value: V::Cell,
}

/// The order of versions: by key, and the versions of one key from oldest to youngest.
pub struct Rank<'a, K: ?Sized> {
    pub key: &'a K,
    pub born: u64,
}

impl<K: ?Sized> Clone for Rank<'_, K> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<K: ?Sized> Copy for Rank<'_, K> {}
impl<K: fmt::Debug + ?Sized> fmt::Debug for Rank<'_, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} born {}", self.key, self.born)
    }
}

/// The parts of a version that is not linked yet. Key and value have been validated.
pub struct NewVersion<'a, K: ?Sized, V: ?Sized> {
    pub key: &'a K,
    pub value: &'a V,
    pub born: u64,
}

// SAFETY: key, birth and lengths never change. The death changes, but neither `rank` nor `tail_len`
// reads it. A word value is not overwritten either.
unsafe impl<K: Key + ?Sized, V: Value + ?Sized> Item for Version<K, V> {
    type First = Life<V>;
    type Second = K::Cell;
    type Rank<'a> = Rank<'a, K>;
    type New<'a> = NewVersion<'a, K, V>;

    fn parts<'a>(new: &'a NewVersion<'_, K, V>) -> (Life<V>, K::Cell, [&'a [u8]; 2]) {
        let life = Life { dead: AtomicU64::new(LIVE), born: new.born, value: new.value.cell() };
        (life, new.key.cell(), [new.key.tail(), new.value.tail()])
    }

    #[inline]
    fn compare(one: Rank<'_, K>, other: Rank<'_, K>) -> Order {
        match one.key.cmp(other.key) {
            Order::Equal if one.born == ANY || other.born == ANY => Order::Equal,
            Order::Equal => one.born.cmp(&other.born),
            order => order,
        }
    }

    #[inline]
    fn head(rank: Rank<'_, K>) -> u64 {
        rank.key.head()
    }

    #[inline]
    fn tail_len(life: &Life<V>, key: &K::Cell) -> usize {
        K::tail_len(*key) + V::tail_len(&life.value)
    }

    #[inline]
    unsafe fn rank<'a>(life: *const Life<V>, key: *const K::Cell, tail: *const u8) -> Rank<'a, K> {
        // SAFETY: the caller upholds the contract of `rank`; the key's bytes come first in the
        // tail.
        unsafe { Rank { key: K::view(key, tail), born: (*life).born } }
    }
}

/// A version that the current guard keeps in memory.
pub type Node<K, V> = NodeRef<Version<K, V>>;

impl<K: Key + ?Sized, V: Value + ?Sized> Node<K, V> {
    /// Returns the key, which lives as long as the guard.
    #[inline]
    pub fn key<'g>(&self, guard: &'g Guard<'_>) -> &'g K {
        self.rank_under(guard).key
    }

    /// Returns the epoch of birth.
    #[inline]
    pub fn born(&self) -> u64 {
        self.with_parts(|life, _, _| life.born)
    }

    #[inline]
    pub fn with_value<R>(&self, read: impl FnOnce(&V) -> R) -> R {
        self.with_parts(|life, key, tail| {
            let tail = tail.wrapping_add(K::tail_len(*key));
            // SAFETY: cell and tail were written from one value, and are never overwritten.
            unsafe { V::with(&life.value, tail, read) }
        })
    }

    /// Returns the epoch of death, [`LIVE`] or [`CLAIMED`].
    #[inline]
    pub fn dead(&self) -> u64 {
        // Acquire: a thread that loads the death also sees the next version, which the writer
        // inserted first.
        self.with_parts(|life, _, _| life.dead.load(Ordering::Acquire))
    }

    /// Sets the death to `to` if it is `from`. Returns whether it was.
    #[inline]
    pub fn end(&self, from: u64, to: u64) -> bool {
        let order = (Ordering::AcqRel, Ordering::Acquire);
        self.with_parts(|life, _, _| life.dead.compare_exchange(from, to, order.0, order.1).is_ok())
    }
}

/// A version that has died and waits to be unlinked.
pub struct DeadVersion<K: Key + ?Sized, V: Value + ?Sized> {
    node: Node<K, V>,
    /// Head of the key, so that sorting dead versions does not read their keys.
    pub head: u64,
    pub born: u64,
    pub dead: u64,
}

// SAFETY: nodes are plain data and atomics of Send + Sync kinds.
unsafe impl<K: Key + ?Sized, V: Value + ?Sized> Send for DeadVersion<K, V> {}
// SAFETY: as above; a shared reference gives access to plain words only.
unsafe impl<K: Key + ?Sized, V: Value + ?Sized> Sync for DeadVersion<K, V> {}

impl<K: Key + ?Sized, V: Value + ?Sized> DeadVersion<K, V> {
    /// Records that `node` died in the epoch `dead`, by the caller's own exchange. This happens
    /// once for each node, so each node has one dead version, whose owner alone unlinks the node. A
    /// linked node is in memory, so no guard is needed until then.
    pub fn new(node: Node<K, V>, dead: u64) -> Self {
        Self { node, head: node.rank().key.head(), born: node.born(), dead }
    }

    /// Returns the rank. The node is linked, and therefore in memory while the guard is held.
    pub fn rank<'g>(&self, guard: &'g Guard<'_>) -> Rank<'g, K> {
        self.node.rank_under(guard)
    }

    /// Returns the node, so that it can be removed from the list.
    pub fn into_node(self) -> Node<K, V> {
        self.node
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> fmt::Debug for DeadVersion<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeadVersion({}..{})", self.born, self.dead)
    }
}
