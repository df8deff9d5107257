//! The items that the nodes of a list hold.

#![expect(unsafe_code, reason = "the raw view of a node's bytes")]

use std::cmp::Ordering as Order;
use std::fmt::Debug;
use std::marker::PhantomData;

use ordna_base::{Key, Value};

/// The content of a list's nodes, and their order.
///
/// The items of [`SkipList`](super::SkipList) are pairs of key and value, those of Nitro are
/// versions.
///
/// # Safety
/// [`Item::rank`] and [`Item::tail_len`] give the same answers for the life of a node: they read
/// nothing of the cells that changes.
pub unsafe trait Item: Sized + 'static {
    /// The fixed part that searches do not read.
    type First: Send + Sync;
    /// The fixed part that they do.
    type Second: Send + Sync;
    /// The order of the nodes: unique among those in the list.
    type Rank<'a>: Copy + Debug;
    /// The parts of a new node. They have passed their checks.
    type New<'a>;

    /// The cells and the stretches of bytes that follow each other behind the tower.
    fn parts<'a>(item: &'a Self::New<'_>) -> (Self::First, Self::Second, [&'a [u8]; 2]);

    /// The order of two ranks, which live for different times.
    fn compare(one: Self::Rank<'_>, other: Self::Rank<'_>) -> Order;

    /// Orders ranks as far as it goes: the greater of two ranks has no smaller head.
    fn head(rank: Self::Rank<'_>) -> u64;

    /// Length of all stretches together.
    fn tail_len(first: &Self::First, second: &Self::Second) -> usize;

    /// # Safety
    /// The cells and the bytes at `tail` are those of one node, which lives for `'a`.
    unsafe fn rank<'a>(
        first: *const Self::First,
        second: *const Self::Second,
        tail: *const u8,
    ) -> Self::Rank<'a>;
}

/// A key with its value.
pub struct Pair<K: Key + ?Sized, V: Value + ?Sized>(PhantomData<(Box<K>, Box<V>)>);

// SAFETY: keys and lengths in the cells never change; a word value is not overwritten either.
unsafe impl<K: Key + ?Sized, V: Value + ?Sized> Item for Pair<K, V> {
    type First = V::Cell;
    type Second = K::Cell;
    type Rank<'a> = &'a K;
    type New<'a> = (&'a K, &'a V);

    fn parts<'a>((key, value): &'a (&K, &V)) -> (V::Cell, K::Cell, [&'a [u8]; 2]) {
        (value.cell(), key.cell(), [key.tail(), value.tail()])
    }

    #[inline]
    fn compare(one: &K, other: &K) -> Order {
        one.cmp(other)
    }

    #[inline]
    fn head(key: &K) -> u64 {
        key.head()
    }

    #[inline]
    fn tail_len(value: &V::Cell, key: &K::Cell) -> usize {
        K::tail_len(*key) + V::tail_len(value)
    }

    #[inline]
    unsafe fn rank<'a>(_: *const V::Cell, key: *const K::Cell, tail: *const u8) -> &'a K {
        // SAFETY: handed on from the caller; the key's bytes come first.
        unsafe { K::view(key, tail) }
    }
}
