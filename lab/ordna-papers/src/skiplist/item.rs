//! [`Item`]: what the nodes of a skip list hold.

#![expect(unsafe_code, reason = "the raw view of a node's bytes")]

use std::cmp::Ordering as Order;
use std::fmt::Debug;
use std::marker::PhantomData;

use ordna_base::{Key, Value};

/// The content of a list's nodes, and the order of the nodes.
///
/// The items of [`SkipList`](super::SkipList) are pairs of key and value; those of Nitro are
/// versions.
///
/// # Safety
/// [`Item::rank`] and [`Item::tail_len`] return the same result throughout the life of a node: they
/// do not read any part of the cells that changes.
pub unsafe trait Item: Sized + 'static {
    /// The fixed-size part that searches do not read.
    type First: Send + Sync;
    /// The fixed-size part that searches read.
    type Second: Send + Sync;
    /// The position of a node in the list's order; unique among the nodes of the list.
    type Rank<'a>: Copy + Debug;
    /// The parts of a new node, already validated.
    type New<'a>;

    /// Returns the two cells and the byte strings that are stored one after the other after the
    /// tower.
    fn parts<'a>(item: &'a Self::New<'_>) -> (Self::First, Self::Second, [&'a [u8]; 2]);

    /// Compares two ranks, which may have different lifetimes.
    fn compare(one: Self::Rank<'_>, other: Self::Rank<'_>) -> Order;

    /// Returns a number that orders as ranks do, except that different ranks may have the same
    /// number.
    fn head(rank: Self::Rank<'_>) -> u64;

    /// Returns the total length of the byte strings after the tower.
    fn tail_len(first: &Self::First, second: &Self::Second) -> usize;

    /// # Safety
    /// The cells and the bytes at `tail` belong to one node, which lives for `'a`.
    unsafe fn rank<'a>(
        first: *const Self::First,
        second: *const Self::Second,
        tail: *const u8,
    ) -> Self::Rank<'a>;
}

/// A key with its value.
pub struct Pair<K: Key + ?Sized, V: Value + ?Sized>(PhantomData<(Box<K>, Box<V>)>);

// SAFETY: the key and the lengths in the cells never change, and neither does a word value.
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
        // SAFETY: the caller upholds the contract of `rank`; the key's bytes come first in the
        // tail.
        unsafe { K::view(key, tail) }
    }
}
