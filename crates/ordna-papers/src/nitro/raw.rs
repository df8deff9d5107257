//! Versions: what the nodes of the engine's list hold.

#![expect(unsafe_code, reason = "versions are laid out by the list's node layout")]

use std::cmp::Ordering as Order;
use std::fmt;
use std::marker::PhantomData;

use crate::skiplist::item::Item;
use crate::skiplist::raw::NodeRef;
use ordna_base::reclaim::Guard;
use ordna_base::sync::atomic::{AtomicU64, Ordering};
use ordna_base::{Key, Value};

/// The death of a version that nobody has ended: later than every term.
pub const LIVE: u64 = u64::MAX;
/// Its death while a writer is about to put the next version behind it; see [`super::write`].
pub const CLAIMED: u64 = u64::MAX - 1;

/// As [`Rank::born`]: any version of the key. For searches that take the first they meet.
pub const ANY: u64 = u64::MAX;
/// As [`Rank::born`]: behind all versions of the key. None is born in term 0, so that is before all.
pub const BEHIND: u64 = u64::MAX - 1;

/// In [`Life::birth`]: eight bytes of expiry stand between key and value.
const EXPIRES: u64 = 1 << 63;
const EXPIRY_LEN: usize = size_of::<u64>();

/// A key's value from the term `born` on, until the term `dead`.
pub struct Version<K: Key + ?Sized, V: Value + ?Sized>(PhantomData<(Box<K>, Box<V>)>);

/// The fixed part of a version.
pub struct Life<V: Value + ?Sized> {
    dead: AtomicU64,
    /// The term of birth, and perhaps [`EXPIRES`]. Never changes.
    birth: u64,
    value: V::Cell,
}

/// Orders by key, and the versions of a key from the oldest to the youngest.
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

/// What a version is made from. Key and value have passed their checks.
pub struct NewVersion<'a, K: ?Sized, V: ?Sized> {
    key: &'a K,
    value: &'a V,
    born: u64,
    expiry: Option<[u8; EXPIRY_LEN]>,
}

impl<'a, K: ?Sized, V: ?Sized> NewVersion<'a, K, V> {
    pub fn new(key: &'a K, value: &'a V, born: u64, expires_at: Option<u64>) -> Self {
        Self { key, value, born, expiry: expires_at.map(u64::to_ne_bytes) }
    }
}

impl<V: Value + ?Sized> Life<V> {
    fn expiry_len(&self) -> usize {
        if self.birth & EXPIRES == 0 { 0 } else { EXPIRY_LEN }
    }
}

// SAFETY: key, birth and lengths never change; death, which does, is not read by `rank` or
// `tail_len`. (A word value is not overwritten either.)
unsafe impl<K: Key + ?Sized, V: Value + ?Sized> Item for Version<K, V> {
    type First = Life<V>;
    type Second = K::Cell;
    type Rank<'a> = Rank<'a, K>;
    type New<'a> = NewVersion<'a, K, V>;

    fn parts<'a>(new: &'a NewVersion<'_, K, V>) -> (Life<V>, K::Cell, [&'a [u8]; 3]) {
        let flag = if new.expiry.is_some() { EXPIRES } else { 0 };
        let life =
            Life { dead: AtomicU64::new(LIVE), birth: new.born | flag, value: new.value.cell() };
        let expiry = new.expiry.as_ref().map_or(&[][..], |bytes| bytes);
        (life, new.key.cell(), [new.key.tail(), expiry, new.value.tail()])
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
        K::tail_len(*key) + life.expiry_len() + V::tail_len(&life.value)
    }

    #[inline]
    unsafe fn rank<'a>(life: *const Life<V>, key: *const K::Cell, tail: *const u8) -> Rank<'a, K> {
        // SAFETY: handed on from the caller; the key's bytes come first.
        unsafe { Rank { key: K::view(key, tail), born: (*life).birth & !EXPIRES } }
    }
}

/// A version that the current guard keeps alive.
pub type Node<K, V> = NodeRef<Version<K, V>>;

impl<K: Key + ?Sized, V: Value + ?Sized> Node<K, V> {
    /// The key, for as long as the guard.
    #[inline]
    pub fn key<'g>(&self, guard: &'g Guard<'_>) -> &'g K {
        self.rank_under(guard).key
    }

    /// The term of birth.
    #[inline]
    pub fn born(&self) -> u64 {
        self.with_parts(|life, _, _| life.birth & !EXPIRES)
    }

    #[inline]
    pub fn with_value<R>(&self, read: impl FnOnce(&V) -> R) -> R {
        self.with_parts(|life, key, tail| {
            let tail = tail.wrapping_add(K::tail_len(*key) + life.expiry_len());
            // SAFETY: cell and tail were written from one value, and are never overwritten.
            unsafe { V::with(&life.value, tail, read) }
        })
    }

    /// When it expires, on the store's clock.
    #[inline]
    pub fn expires_at(&self) -> Option<u64> {
        self.with_parts(|life, key, tail| {
            if life.birth & EXPIRES == 0 {
                return None;
            }
            let expiry = tail.wrapping_add(K::tail_len(*key)).cast::<[u8; EXPIRY_LEN]>();
            // SAFETY: the flag says that these bytes were written with the node. Byte arrays need
            // no alignment.
            Some(u64::from_ne_bytes(unsafe { *expiry }))
        })
    }

    /// The term of death, [`LIVE`] or [`CLAIMED`].
    #[inline]
    pub fn dead(&self) -> u64 {
        // Acquire: who sees the death sees what its writer inserted before.
        self.with_parts(|life, _, _| life.dead.load(Ordering::Acquire))
    }

    /// Sets the death; returns whether it was `from`.
    #[inline]
    pub fn end(&self, from: u64, to: u64) -> bool {
        let order = (Ordering::AcqRel, Ordering::Acquire);
        self.with_parts(|life, _, _| life.dead.compare_exchange(from, to, order.0, order.1).is_ok())
    }

    /// Bytes that the version costs, its tower at the mean height.
    pub fn cost(&self) -> usize {
        self.with_parts(|life, key, _| Self::mean_size(Version::<K, V>::tail_len(life, key)))
    }
}

/// What [`Node::cost`] will be of such a version.
pub fn cost<K: Key + ?Sized, V: Value + ?Sized>(key: &K, value: &V, expires: bool) -> usize {
    let expiry = if expires { EXPIRY_LEN } else { 0 };
    Node::<K, V>::mean_size(key.tail().len() + expiry + value.tail().len())
}

/// A version that a snapshot keeps linked, whoever holds this together with the snapshot.
pub struct Kept<K: Key + ?Sized, V: Value + ?Sized>(pub Node<K, V>);

// SAFETY: nodes are plain data and atomics of Send + Sync kinds.
unsafe impl<K: Key + ?Sized, V: Value + ?Sized> Send for Kept<K, V> {}
// SAFETY: as above.
unsafe impl<K: Key + ?Sized, V: Value + ?Sized> Sync for Kept<K, V> {}

/// A version that died and awaits its unlinking.
pub struct Corpse<K: Key + ?Sized, V: Value + ?Sized> {
    node: Node<K, V>,
    /// The head of its key: so that corpses are sorted without a look at what they are of.
    pub head: u64,
    pub born: u64,
    pub dead: u64,
}

// SAFETY: nodes are plain data and atomics of Send + Sync kinds.
unsafe impl<K: Key + ?Sized, V: Value + ?Sized> Send for Corpse<K, V> {}
// SAFETY: as above; a shared corpse offers two words.
unsafe impl<K: Key + ?Sized, V: Value + ?Sized> Sync for Corpse<K, V> {}

impl<K: Key + ?Sized, V: Value + ?Sized> Corpse<K, V> {
    /// `node` died in the term `dead` by the caller's own exchange: that happens once to a node, so
    /// there is one corpse of it. Only who consumes the corpse unlinks it, and a linked node is
    /// alive: until then no guard is needed to keep it.
    pub fn new(node: Node<K, V>, dead: u64) -> Self {
        Self { node, head: node.rank().key.head(), born: node.born(), dead }
    }

    /// Its rank. The node is linked, and so alive at the time of the guard.
    pub fn rank<'g>(&self, guard: &'g Guard<'_>) -> Rank<'g, K> {
        self.node.rank_under(guard)
    }

    /// The node, to be unlinked.
    pub fn into_node(self) -> Node<K, V> {
        self.node
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> fmt::Debug for Corpse<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Corpse({}..{})", self.born, self.dead)
    }
}
