//! The contract of indexes for one thread.

use std::borrow::Borrow;
use std::ops::{Bound, ControlFlow};

use ordna_base::index::{Change, Direction, InvariantReport, MemoryUsage};
use ordna_base::{Error, Key, Value, Violation};

/// An ordered map for one thread: changes take `&mut self`, and its types are not `Sync`.
///
/// The docs of [`OrderedIndex`](ordna_base::OrderedIndex)'s methods apply to the methods with the
/// same names. [`ArtNone`](crate::ArtNone) has an example.
#[expect(missing_docs, reason = "see above")]
pub trait Unshared {
    type Key: Key + ?Sized;
    type Value: Value + ?Sized;

    /// Returns the number of entries. O(1).
    fn len(&self) -> usize;

    fn get_with<R>(&self, key: &Self::Key, read: impl FnOnce(&Self::Value) -> R) -> Option<R>;

    fn get_many_with<Q: Borrow<Self::Key>>(
        &self,
        keys: &[Q],
        each: impl FnMut(usize, Option<&Self::Value>),
    );

    fn modify<T, F>(&mut self, key: &Self::Key, change: F) -> Result<(), Error>
    where
        T: Borrow<Self::Value>,
        F: FnMut(Option<&Self::Value>) -> Change<T>;

    fn visit(
        &self,
        lower: Bound<&Self::Key>,
        upper: Bound<&Self::Key>,
        direction: Direction,
        visit: impl FnMut(&Self::Key, &Self::Value) -> ControlFlow<()>,
    );

    fn memory_usage(&self) -> MemoryUsage;

    fn check_invariants(&self) -> Result<InvariantReport, Violation>;

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline]
    fn get(&self, key: &Self::Key) -> Option<<Self::Value as ToOwned>::Owned> {
        self.get_with(key, ToOwned::to_owned)
    }

    fn insert(
        &mut self,
        key: &Self::Key,
        value: &Self::Value,
    ) -> Result<Option<<Self::Value as ToOwned>::Owned>, Error> {
        let mut old = None;
        self.modify(key, |current| {
            old = current.map(ToOwned::to_owned);
            Change::Put(value)
        })?;
        Ok(old)
    }

    fn remove(&mut self, key: &Self::Key) -> Option<<Self::Value as ToOwned>::Owned> {
        let mut old = None;
        let done = self.modify::<&Self::Value, _>(key, |current| {
            old = current.map(ToOwned::to_owned);
            Change::Remove
        });
        done.ok().and(old)
    }
}
