//! The direction of a scan, and comparisons of keys with bounds.

use std::ops::Bound;

/// The order in which entries are visited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From small keys to large ones.
    Ascending,
    /// From large keys to small ones.
    Descending,
}

/// The lower and upper bound of a scan, in the order of keys.
pub type Bounds<'a, K> = (Bound<&'a K>, Bound<&'a K>);

/// Returns whether no key can be within the bounds because they cross.
#[doc(hidden)]
pub fn bounds_cross<K: Ord + ?Sized>(lower: Bound<&K>, upper: Bound<&K>) -> bool {
    match (lower, upper) {
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
        (Bound::Included(lower), Bound::Included(upper)) => lower > upper,
        (
            Bound::Included(lower) | Bound::Excluded(lower),
            Bound::Included(upper) | Bound::Excluded(upper),
        ) => lower >= upper,
    }
}

/// Returns whether `key` is below the lower bound.
#[inline]
#[doc(hidden)]
pub fn is_below<K: Ord + ?Sized>(key: &K, lower: Bound<&K>) -> bool {
    match lower {
        Bound::Unbounded => false,
        Bound::Included(lower) => key < lower,
        Bound::Excluded(lower) => key <= lower,
    }
}

/// Returns whether `key` is above the upper bound.
#[inline]
#[doc(hidden)]
pub fn is_above<K: Ord + ?Sized>(key: &K, upper: Bound<&K>) -> bool {
    match upper {
        Bound::Unbounded => false,
        Bound::Included(upper) => key > upper,
        Bound::Excluded(upper) => key >= upper,
    }
}
