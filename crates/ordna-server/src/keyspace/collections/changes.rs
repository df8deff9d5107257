//! The changes that a command makes to a large collection.
//!
//! Most commands change one to three entries. The first changes are stored inline, and so are short
//! keys and values, so these commands allocate nothing.

use std::collections::BTreeMap;
use std::ops::Bound;

use ordna::index::{is_above, is_below};
use smallvec::SmallVec;

/// Number of changes that are kept in a sorted inline array. One more moves all of them to a map.
const FEW: usize = 4;

/// The key of an entry in its stored form.
pub type EntryKey = SmallVec<[u8; 40]>;
/// The value of an entry.
pub type EntryValue = SmallVec<[u8; 24]>;
/// The new value of an entry, or `None` if it is removed, and the change of the number of entries:
/// 1, -1 or 0.
pub type EntryChange = (Option<EntryValue>, i64);

/// Joins the pieces of an entry's key.
pub fn key_of(pieces: &[&[u8]]) -> EntryKey {
    let mut key = EntryKey::new();
    pieces.iter().for_each(|piece| key.extend_from_slice(piece));
    key
}

/// Changed entries by key, in order.
#[derive(Debug, Default)]
pub struct Changes {
    /// Empty if `many` is used.
    few: SmallVec<[(EntryKey, EntryChange); FEW]>,
    many: BTreeMap<EntryKey, EntryChange>,
}

impl Changes {
    pub fn len(&self) -> usize {
        self.few.len() + self.many.len()
    }

    pub fn is_empty(&self) -> bool {
        self.few.is_empty() && self.many.is_empty()
    }

    fn search(&self, key: &[u8]) -> Result<usize, usize> {
        // Compares one by one, because there are few.
        for (at, (found, _)) in self.few.iter().enumerate() {
            match found.as_slice().cmp(key) {
                std::cmp::Ordering::Less => {}
                std::cmp::Ordering::Equal => return Ok(at),
                std::cmp::Ordering::Greater => return Err(at),
            }
        }
        Err(self.few.len())
    }

    /// Returns the change of a key, if it was changed.
    pub fn get(&self, key: &[u8]) -> Option<&EntryChange> {
        match self.search(key) {
            Ok(at) => self.few.get(at).map(|(_, change)| change),
            Err(_) => self.many.get(key),
        }
    }

    /// Records a change: the new value, and the change of the number of entries.
    pub fn note(&mut self, key: EntryKey, value: Option<EntryValue>, by: i64) {
        let place = self.search(&key);
        if let Some((_, change)) = place.ok().and_then(|at| self.few.get_mut(at)) {
            *change = (value, change.1 + by);
            return;
        }
        if self.many.is_empty() && self.few.len() < FEW {
            let at = place.unwrap_or_else(|at| at);
            return self.few.insert(at, (key, (value, by)));
        }
        self.many.extend(self.few.drain(..));
        let change = self.many.entry(key).or_default();
        *change = (value, change.1 + by);
    }

    /// Returns the changes of the keys within bounds, which must not cross, in order.
    pub fn range(
        &self,
        (lower, upper): (Bound<&[u8]>, Bound<&[u8]>),
    ) -> impl DoubleEndedIterator<Item = (&[u8], &EntryChange)> {
        let start = self.few.partition_point(|(key, _)| is_below(key.as_slice(), lower));
        let end = self.few.partition_point(|(key, _)| !is_above(key.as_slice(), upper));
        let few = self.few.get(start..end).unwrap_or_default();
        let many = self.many.range::<[u8], _>((lower, upper));
        let few = few.iter().map(|(key, change)| (key.as_slice(), change));
        few.chain(many.map(|(key, change)| (key.as_slice(), change)))
    }

    /// Returns all changes, in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&[u8], &EntryChange)> {
        let few = self.few.iter().map(|(key, change)| (key.as_slice(), change));
        few.chain(self.many.iter().map(|(key, change)| (key.as_slice(), change)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn changes_are_those_of_a_map(
            noted in proptest::collection::vec((0..9_u8, any::<Option<u8>>(), -1..2_i64), 0..12),
            bounds in (0..9_u8, 0..9_u8),
        ) {
            let (mut changes, mut model) = (Changes::default(), BTreeMap::new());
            let text = |byte: u8| vec![byte; 1 + usize::from(byte) * 10];
            for (key, value, by) in noted {
                let value = value.map(|value| EntryValue::from_vec(text(value % 9)));
                let change: &mut EntryChange = model.entry(text(key)).or_default();
                *change = (value.clone(), change.1 + by);
                changes.note(key_of(&[&text(key)]), value, by);
            }
            prop_assert_eq!((changes.len(), changes.is_empty()), (model.len(), model.is_empty()));
            for key in 0..9 {
                prop_assert_eq!(changes.get(&text(key)), model.get(&text(key)));
            }
            let expected = || model.iter().map(|(key, change)| (key.as_slice(), change));
            prop_assert!(changes.iter().eq(expected()));
            let (low, high) = (text(bounds.0.min(bounds.1)), text(bounds.0.max(bounds.1)));
            let within = |key: &[u8]| low.as_slice() <= key && key < high.as_slice();
            let found = changes.range((Bound::Included(&low), Bound::Excluded(&high)));
            prop_assert!(found.rev().eq(expected().filter(|(key, _)| within(key)).rev()));
            let found = changes.range((Bound::Excluded(&low), Bound::Unbounded));
            prop_assert!(found.eq(expected().filter(|(key, _)| *key > low.as_slice())));
        }
    }
}
