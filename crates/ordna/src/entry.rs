//! Entries, as conditional writes see and put them, and as the log and backups read them.

use std::ops::{Bound, ControlFlow};

use crate::tree::FOREVER;

/// The current entry of a key, as a conditional write sees it.
///
/// ```
/// use ordna::{Change, Put};
///
/// let names: ordna::Store<u64, [u8]> = ordna::Store::new();
/// names.put(1, "Lund")?;
/// names.put(2, "Uppsala")?;
/// names.modify_entry(&1, |found| {
///     assert_eq!(found.unwrap().value, b"Lund");
///     Change::<Put<&[u8]>>::Keep
/// })?;
/// # Ok::<(), ordna::Error>(())
/// ```
#[derive(Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Found<'a, V: ?Sized> {
    /// The value.
    pub value: &'a V,
    /// The time at which the entry expires, in milliseconds of the store's clock.
    pub expires_at: Option<u64>,
}

impl<V: ?Sized> Clone for Found<'_, V> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<V: ?Sized> Copy for Found<'_, V> {}

/// The value and deadline that a conditional write puts.
///
/// ```
/// use ordna::Put;
///
/// let put = Put { value: "ann", expires_at: Some(60_000) };
/// assert_eq!(Put::forever("ann").expires_at, None);
/// # let _ = put;
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Put<T> {
    /// The value.
    pub value: T,
    /// The time at which the entry expires, in milliseconds of the store's clock. `u64::MAX` means
    /// never, as `None` does.
    pub expires_at: Option<u64>,
}

impl<T> Put<T> {
    /// Returns a value that does not expire.
    ///
    /// ```
    /// assert_eq!(ordna::Put::forever(1).expires_at, None);
    /// ```
    pub fn forever(value: T) -> Self {
        Self { value, expires_at: None }
    }

    /// Returns the deadline in the form in which the tree stores it.
    #[inline]
    pub(crate) fn deadline(&self) -> u64 {
        self.expires_at.unwrap_or(FOREVER)
    }
}

/// A store or a snapshot that the log and backups read.
pub(crate) trait EntrySource<K: ?Sized, V: ?Sized>: Sync {
    /// Calls `read` with the entry of `key`.
    fn read(&self, key: &K, read: &mut dyn FnMut(Option<Put<&V>>));

    /// Calls `visit` with the entries within the bounds, in order, until it breaks.
    fn scan_with(
        &self,
        lower: Bound<&K>,
        upper: Bound<&K>,
        visit: &mut dyn FnMut(&K, Put<&V>) -> ControlFlow<()>,
    );
}
