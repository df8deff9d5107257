//! The order of results: by fields, the first so many of them.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::indexes::schema::{Field, FieldKind};
use crate::keyspace::hash::Hash;

/// A value to sort by. Numbers come before texts, and what is not there last.
#[derive(Debug, Clone, PartialEq)]
pub enum Key {
    Number(f64),
    Text(String),
    Missing,
}

impl Key {
    /// The value of a field in a hash: texts without a difference between upper and lower case.
    pub fn of_field(field: &Field, hash: &Hash<'_>) -> Self {
        match field.kind {
            FieldKind::Numeric => field.number(hash).map_or(Self::Missing, Self::Number),
            FieldKind::Tag { .. } => {
                hash.get(field.path.as_bytes()).map_or(Self::Missing, |text| {
                    Self::Text(String::from_utf8_lossy(text).to_lowercase())
                })
            }
        }
    }

    /// The value of a text: a number if it is one.
    pub fn of_text(text: Option<&[u8]>) -> Self {
        let Some(text) = text else { return Self::Missing };
        let text = String::from_utf8_lossy(text);
        match text.parse::<f64>() {
            Ok(number) if !number.is_nan() => Self::Number(number),
            _ => Self::Text(text.into_owned()),
        }
    }

    /// The value of a text, as a field of this type has it.
    pub fn of_cell(kind: Option<FieldKind>, text: Option<&[u8]>) -> Self {
        match (kind, Self::of_text(text)) {
            (Some(FieldKind::Numeric), Self::Text(_)) => Self::Missing,
            (Some(FieldKind::Tag { .. }), _) => text.map_or(Self::Missing, |text| {
                Self::Text(String::from_utf8_lossy(text).to_lowercase())
            }),
            (_, key) => key,
        }
    }

    /// The order of two keys; a missing one is last in either direction.
    pub fn compare(&self, other: &Self, descending: bool) -> Ordering {
        let order = match (self, other) {
            (Self::Missing, Self::Missing) => return Ordering::Equal,
            (Self::Missing, _) => return Ordering::Greater,
            (_, Self::Missing) => return Ordering::Less,
            (Self::Number(a), Self::Number(b)) => a.total_cmp(b),
            (Self::Text(a), Self::Text(b)) => a.cmp(b),
            (Self::Number(_), Self::Text(_)) => Ordering::Less,
            (Self::Text(_), Self::Number(_)) => Ordering::Greater,
        };
        if descending { order.reverse() } else { order }
    }
}

#[derive(Debug)]
struct Ranked {
    key: Key,
    descending: bool,
    id: Vec<u8>,
}

impl Ord for Ranked {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key.compare(&other.key, self.descending).then_with(|| self.id.cmp(&other.id))
    }
}

impl PartialOrd for Ranked {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Ranked {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Ranked {}

/// The first so many ids in an order. O(log n) for each id offered; equal keys are in the order of
/// ids.
#[derive(Debug)]
pub struct First {
    heap: BinaryHeap<Ranked>,
    most: usize,
    descending: bool,
}

impl First {
    pub fn new(most: usize, descending: bool) -> Self {
        Self { heap: BinaryHeap::new(), most, descending }
    }

    pub fn offer(&mut self, key: Key, id: &[u8]) {
        let descending = self.descending;
        if self.heap.len() == self.most {
            let Some(last) = self.heap.peek() else { return };
            if key.compare(&last.key, descending).then_with(|| id.cmp(&last.id)) != Ordering::Less {
                return;
            }
            self.heap.pop();
        }
        self.heap.push(Ranked { key, descending, id: id.to_vec() });
    }

    /// The ids, in order.
    pub fn finish(self) -> Vec<Vec<u8>> {
        self.heap.into_sorted_vec().into_iter().map(|ranked| ranked.id).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_first_are_those_of_a_sort(
            numbers in proptest::collection::vec(proptest::option::of(-5..5_i32), 0..60),
            most in 0_usize..20,
            descending in any::<bool>(),
        ) {
            let mut first = First::new(most, descending);
            let mut all = Vec::new();
            for (at, number) in numbers.iter().enumerate() {
                let id = vec![(at * 37 % 256) as u8];
                let key = number.map_or(Key::Missing, |n| Key::Number(f64::from(n)));
                first.offer(key.clone(), &id);
                all.push((key, id));
            }
            all.sort_by(|a, b| a.0.compare(&b.0, descending).then_with(|| a.1.cmp(&b.1)));
            let expected: Vec<_> = all.into_iter().take(most).map(|(_, id)| id).collect();
            prop_assert_eq!(first.finish(), expected);
        }
    }
}
