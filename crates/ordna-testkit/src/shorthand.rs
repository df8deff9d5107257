//! Operations that tests repeat on an index.

use std::borrow::Borrow;
use std::ops::{Bound, ControlFlow};

use ordna_base::{Direction, OrderedIndex};

type KeyOf<I> = <<I as OrderedIndex>::Key as ToOwned>::Owned;
type ValueOf<I> = <<I as OrderedIndex>::Value as ToOwned>::Owned;

/// Shorthands for tests of any index.
pub trait Shorthand: OrderedIndex {
    /// Inserts the entries one by one.
    ///
    /// # Panics
    /// Panics if one is refused.
    fn put_all(&self, entries: impl IntoIterator<Item = (KeyOf<Self>, ValueOf<Self>)>) {
        for (key, value) in entries {
            self.insert(key.borrow(), value.borrow()).expect("within the limits");
        }
    }

    /// Removes the keys one by one, whether they are present or not.
    fn remove_all(&self, keys: impl IntoIterator<Item = KeyOf<Self>>) {
        keys.into_iter().for_each(|key| drop(self.remove(key.borrow())));
    }

    /// Returns the values of the keys, with one call.
    fn values<Q: Borrow<Self::Key>>(&self, keys: &[Q]) -> Vec<Option<ValueOf<Self>>> {
        let mut values = Vec::new();
        self.get_many(keys, &mut values);
        values
    }

    /// Returns the entries of one scan of the whole index.
    fn scanned(&self, direction: Direction) -> Vec<(KeyOf<Self>, ValueOf<Self>)> {
        let mut scanned = Vec::new();
        self.visit(Bound::Unbounded, Bound::Unbounded, direction, |key, value| {
            scanned.push((key.to_owned(), value.to_owned()));
            ControlFlow::Continue(())
        });
        scanned
    }

    /// Returns the keys of one scan of the whole index.
    fn scanned_keys(&self, direction: Direction) -> Vec<KeyOf<Self>> {
        self.scanned(direction).into_iter().map(|(key, _)| key).collect()
    }
}

impl<I: OrderedIndex> Shorthand for I {}
