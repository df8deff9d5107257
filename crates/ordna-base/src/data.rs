//! Arguments of a store's methods: [`AsData`], keys and values in the forms that callers have, and
//! [`KeyRange`], ranges of keys.

use std::borrow::Cow;
use std::ops::{
    Bound, Range, RangeBounds, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive,
};
use std::sync::Arc;

use crate::bounds::Bounds;

/// A key or value of the kind `T` (`u64` or `[u8]`), owned or borrowed.
///
/// Implemented by `u64`; by slices, arrays and vectors of bytes and by strings, which are byte
/// strings here; and by references to all of them.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a key or value of the kind `{T}`",
    label = "not `{T}`, and no other form of it",
    note = "a `Store` has keys and values of the kinds `u64` and `[u8]` (bytes, strings)",
    note = "for keys and values of other types use `ordna::Map<K, V>`"
)]
pub trait AsData<T: ?Sized> {
    /// Returns the key or value.
    fn as_data(&self) -> &T;
}

impl AsData<Self> for u64 {
    #[inline]
    fn as_data(&self) -> &Self {
        self
    }
}

macro_rules! bytes {
    ($([$($generics:tt)*] $type:ty),* $(,)?) => { $(
        impl<$($generics)*> AsData<[u8]> for $type {
            #[inline]
            fn as_data(&self) -> &[u8] {
                self.as_ref()
            }
        }
    )* };
}
bytes!([] [u8], [const N: usize] [u8; N], [] Vec<u8>, [] Box<[u8]>, [] Arc<[u8]>, [] str, [] String);

impl AsData<[u8]> for Cow<'_, [u8]> {
    #[inline]
    fn as_data(&self) -> &[u8] {
        self
    }
}

impl<K: ?Sized, T: AsData<K> + ?Sized> AsData<K> for &T {
    #[inline]
    fn as_data(&self) -> &K {
        (**self).as_data()
    }
}

impl<K: ?Sized, T: AsData<K> + ?Sized> AsData<K> for &mut T {
    #[inline]
    fn as_data(&self) -> &K {
        (**self).as_data()
    }
}

/// A range of keys of the kind `K`: `a..b`, `a..=b`, `a..`, `..b`, `..=b`, `..`, or a pair of
/// [`Bound`]s, where the ends are any [`AsData`]: integers, byte strings, strings, references.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a range of keys of the kind `{K}`",
    label = "not a range of `{K}`",
    note = "write `a..b`, `a..=b`, `a..`, `..b`, `..=b`, `..` or `(Bound, Bound)` with ends that are keys"
)]
pub trait KeyRange<K: ?Sized> {
    /// Returns both ends.
    fn ends(&self) -> Bounds<'_, K>;
}

impl<K: ?Sized> KeyRange<K> for RangeFull {
    fn ends(&self) -> Bounds<'_, K> {
        (Bound::Unbounded, Bound::Unbounded)
    }
}

macro_rules! ranges {
    ($($range:ident),*) => { $(
        impl<K: ?Sized, T: AsData<K>> KeyRange<K> for $range<T> {
            fn ends(&self) -> Bounds<'_, K> {
                (self.start_bound().map(T::as_data), self.end_bound().map(T::as_data))
            }
        }
    )* };
}
ranges!(Range, RangeFrom, RangeInclusive, RangeTo, RangeToInclusive);

impl<K: ?Sized, T: AsData<K>> KeyRange<K> for (Bound<T>, Bound<T>) {
    fn ends(&self) -> Bounds<'_, K> {
        (self.0.as_ref().map(T::as_data), self.1.as_ref().map(T::as_data))
    }
}

impl<K: ?Sized, R: KeyRange<K> + ?Sized> KeyRange<K> for &R {
    fn ends(&self) -> Bounds<'_, K> {
        (**self).ends()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends<K: ToOwned + ?Sized>(range: impl KeyRange<K>) -> (Bound<K::Owned>, Bound<K::Owned>) {
        let (lower, upper) = range.ends();
        (lower.map(ToOwned::to_owned), upper.map(ToOwned::to_owned))
    }

    #[test]
    fn ranges_of_any_form_have_their_ends() {
        let (a, b): (&[u8], &[u8]) = (b"a", b"b");
        let want = (Bound::Included(b"a".to_vec()), Bound::Excluded(b"b".to_vec()));
        assert_eq!(ends::<[u8]>(a..b), want);
        assert_eq!(ends::<[u8]>(b"a"..b"b"), want);
        assert_eq!(ends::<[u8]>("a".."b"), want);
        assert_eq!(ends::<[u8]>(vec![b'a']..vec![b'b']), want);
        assert_eq!(ends::<[u8]>((Bound::Included(a), Bound::Excluded(b))), want);
        assert_eq!(ends::<u64>(1..=2), (Bound::Included(1), Bound::Included(2)));
        assert_eq!(ends::<u64>(&1..), (Bound::Included(1), Bound::Unbounded));
        assert_eq!(ends::<u64>(..2), (Bound::Unbounded, Bound::Excluded(2)));
        assert_eq!(ends::<[u8]>(..="a").1, Bound::Included(b"a".to_vec()));
        assert_eq!(ends::<u64>(..), (Bound::Unbounded, Bound::Unbounded));
    }
}
