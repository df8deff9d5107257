//! The order of results: sorts by fields and keeps a limited number of the first ones.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::indexes::schema::{Field, FieldKind};
use crate::keyspace::hash::Hash;

/// A value to sort by. Numbers come before texts, and missing values last.
#[derive(Debug, Clone, PartialEq)]
pub enum Key {
    Number(f64),
    Text(String),
    Missing,
}

impl Key {
    /// Returns the value of a field in a hash. Texts are compared without regard to case.
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

    /// Returns the value of a text, which is a number if it can be parsed as one.
    pub fn of_text(text: Option<&[u8]>) -> Self {
        let Some(text) = text else { return Self::Missing };
        let text = String::from_utf8_lossy(text);
        match text.parse::<f64>() {
            Ok(number) if !number.is_nan() => Self::Number(number),
            _ => Self::Text(text.into_owned()),
        }
    }

    /// Returns the value of a text as a field of this type has it.
    pub fn of_cell(kind: Option<FieldKind>, text: Option<&[u8]>) -> Self {
        match (kind, Self::of_text(text)) {
            (Some(FieldKind::Numeric), Self::Text(_)) => Self::Missing,
            (Some(FieldKind::Tag { .. }), _) => text.map_or(Self::Missing, |text| {
                Self::Text(String::from_utf8_lossy(text).to_lowercase())
            }),
            (_, key) => key,
        }
    }

    /// Compares two keys. A missing one is last in either direction.
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

impl Ranked {
    /// Returns the memory of the key in bytes.
    fn bytes(&self) -> usize {
        let text = if let Key::Text(text) = &self.key { text.capacity() } else { 0 };
        size_of::<Self>() + text + self.id.capacity()
    }
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

/// Maximum size in bytes of the keys and ids of a sorted search: that of the rows of an
/// aggregation.
const MOST_BYTES: usize = 64 << 20;

/// Keeps the first ids in an order, up to a limit. O(log n) for each id offered. Equal keys are in
/// the order of ids.
#[derive(Debug)]
pub struct First {
    heap: BinaryHeap<Ranked>,
    most: usize,
    descending: bool,
    /// Memory of the keys and ids, in bytes.
    bytes: usize,
}

impl First {
    pub fn new(most: usize, descending: bool) -> Self {
        Self { heap: BinaryHeap::new(), most, descending, bytes: 0 }
    }

    pub fn offer(&mut self, key: Key, id: &[u8]) {
        let descending = self.descending;
        if self.is_too_large() {
            return;
        }
        if self.heap.len() == self.most {
            let Some(last) = self.heap.peek() else { return };
            if key.compare(&last.key, descending).then_with(|| id.cmp(&last.id)) != Ordering::Less {
                return;
            }
            self.bytes -= self.heap.pop().map_or(0, |ranked| ranked.bytes());
        }
        let ranked = Ranked { key, descending, id: id.to_vec() };
        self.bytes += ranked.bytes();
        self.heap.push(ranked);
    }

    fn is_too_large(&self) -> bool {
        self.bytes > MOST_BYTES
    }

    /// Returns the ids in order.
    ///
    /// # Errors
    /// Keys and ids take too much memory.
    pub fn finish(self) -> Result<Vec<Vec<u8>>, String> {
        if self.is_too_large() {
            return Err(format!(
                "ERR the keys of SORTBY take more than {MOST_BYTES} bytes; narrow the query or LIMIT it"
            ));
        }
        Ok(self.heap.into_sorted_vec().into_iter().map(|ranked| ranked.id).collect())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn keys_of_a_sort_are_bounded() {
        let key = |letter: u8| Key::Text(char::from(letter).to_string().repeat(1 << 20));
        let offered = |most: usize| {
            let mut first = First::new(most, false);
            for letter in 0..100 {
                first.offer(key(b'z' - letter % 20), &[letter]);
                assert!(first.bytes <= MOST_BYTES + (2 << 20), "{} bytes", first.bytes);
            }
            first.finish()
        };
        let error = offered(100).unwrap_err();
        assert!(error.starts_with("ERR the keys of SORTBY take more than"), "{error}");
        assert_eq!(offered(3), Ok(vec![vec![19], vec![39], vec![59]]));
    }

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
            prop_assert_eq!(first.finish(), Ok(expected));
        }
    }
}
