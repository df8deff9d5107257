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
    /// If one is refused.
    fn put_all(&self, entries: impl IntoIterator<Item = (KeyOf<Self>, ValueOf<Self>)>) {
        for (key, value) in entries {
            self.insert(key.borrow(), value.borrow()).expect("within the limits");
        }
    }

    /// Removes the keys one by one, whether they are present or not.
    fn remove_all(&self, keys: impl IntoIterator<Item = KeyOf<Self>>) {
        keys.into_iter().for_each(|key| drop(self.remove(key.borrow())));
    }

    /// The values of the keys, by one call.
    fn values<Q: Borrow<Self::Key>>(&self, keys: &[Q]) -> Vec<Option<ValueOf<Self>>> {
        let mut values = Vec::new();
        self.get_many(keys, &mut values);
        values
    }

    /// The entries that one scan of the whole index returns.
    fn scanned(&self, direction: Direction) -> Vec<(KeyOf<Self>, ValueOf<Self>)> {
        let mut scanned = Vec::new();
        self.visit(Bound::Unbounded, Bound::Unbounded, direction, |key, value| {
            scanned.push((key.to_owned(), value.to_owned()));
            ControlFlow::Continue(())
        });
        scanned
    }

    /// The keys that one scan of the whole index returns.
    fn scanned_keys(&self, direction: Direction) -> Vec<KeyOf<Self>> {
        self.scanned(direction).into_iter().map(|(key, _)| key).collect()
    }
}

impl<I: OrderedIndex> Shorthand for I {}
