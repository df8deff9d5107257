//! Keys that are designed to break trees, hashes and tags: they are inserted and removed in several
//! orders.

use std::borrow::Borrow;
use std::collections::{BTreeMap, HashMap};
use std::ops::{Bound, ControlFlow};

use ordna_base::{Direction, OrderedIndex};

use crate::erased::{Erased, Subject};
use crate::kinds::{TestKey, TestValue};
use crate::random::Random;

/// Inserts, finds, scans and removes the adversarial keys of a type: ascending, descending,
/// shuffled.
pub fn check<S: Subject<Key: TestKey, Value: TestValue>>(new: impl Fn() -> S) {
    run(&|| new().erase());
}

pub(crate) fn run<K: TestKey + ?Sized, V: TestValue + ?Sized>(new: &dyn Fn() -> Erased<K, V>) {
    run_keys(new, K::adversarial());
}

/// Works like [`check`] with the caller's keys, such as [`collisions`] of the index's own hash.
pub fn check_keys<S>(new: impl Fn() -> S, keys: Vec<<S::Key as ToOwned>::Owned>)
where
    S: Subject<Key: TestKey, Value: TestValue>,
{
    run_keys(&|| new().erase(), keys);
}

fn run_keys<K, V>(new: &dyn Fn() -> Erased<K, V>, mut keys: Vec<K::Owned>)
where
    K: TestKey + ?Sized,
    V: TestValue + ?Sized,
{
    keys.sort();
    keys.dedup();
    let sorted = keys.clone();
    for order in ["ascending", "descending", "shuffled"] {
        match order {
            "descending" => keys.reverse(),
            "shuffled" => Random::new(3).shuffle(&mut keys),
            _ => {}
        }
        life_and_death(&new(), &keys, &sorted, order);
    }
}

fn life_and_death<K, V>(index: &Erased<K, V>, keys: &[K::Owned], sorted: &[K::Owned], order: &str)
where
    K: TestKey + ?Sized,
    V: TestValue + ?Sized,
{
    let word: BTreeMap<_, u64> = sorted.iter().zip(0..).collect();
    for (at, key) in keys.iter().enumerate() {
        assert_eq!(index.get(key.borrow()), None, "{order}: absent before its insert: {key:?}");
        let value = V::dress(word[key]);
        assert_eq!(index.insert(key.borrow(), value.borrow()), Ok(None), "{order}: {key:?}");
        assert_eq!(index.approximate_len(), at + 1);
    }
    index.check_invariants().unwrap_or_else(|broken| panic!("{order}: {broken}"));
    for direction in [Direction::Ascending, Direction::Descending] {
        let mut scanned = Vec::new();
        index.visit(Bound::Unbounded, Bound::Unbounded, direction, |key, value| {
            scanned.push((key.to_owned(), value.word()));
            ControlFlow::Continue(())
        });
        if direction == Direction::Descending {
            scanned.reverse();
        }
        let expected: Vec<_> = sorted.iter().cloned().zip(0..).collect();
        assert!(scanned == expected, "{order}: a {direction:?} scan differs from the sorted keys");
    }
    for (at, key) in sorted.iter().enumerate() {
        let found = index.get(key.borrow()).map(|value| value.borrow().word());
        assert_eq!(found, Some(at as u64), "{order}: {key:?}");
        let below =
            index.nearest(Bound::Unbounded, Bound::Excluded(key.borrow()), Direction::Descending);
        assert_eq!(below.map(|(key, _)| key).as_ref(), at.checked_sub(1).map(|at| &sorted[at]));
        let above =
            index.nearest(Bound::Excluded(key.borrow()), Bound::Unbounded, Direction::Ascending);
        assert_eq!(above.map(|(key, _)| key).as_ref(), sorted.get(at + 1), "{order}: {key:?}");
    }
    // Removes every other key, in the order of insertion; the rest must stay.
    for key in keys.iter().step_by(2) {
        let removed = index.remove(key.borrow()).map(|value| value.borrow().word());
        assert_eq!(removed, Some(word[key]), "{order}: {key:?}");
        assert_eq!(index.remove(key.borrow()), None, "{order}: removed twice: {key:?}");
    }
    index.check_invariants().unwrap_or_else(|broken| panic!("{order}: {broken}"));
    for (at, key) in keys.iter().enumerate() {
        assert_eq!(index.contains(key.borrow()), at % 2 == 1, "{order}: {key:?}");
    }
    for key in keys.iter().skip(1).step_by(2) {
        assert!(index.remove(key.borrow()).is_some(), "{order}: {key:?}");
    }
    let report = index.check_invariants().unwrap_or_else(|broken| panic!("{order}: {broken}"));
    assert_eq!((report.entries, index.first()), (0, None), "{order}: empty at the end");
}

/// Returns `count` different byte strings whose `hash` has the same low `bits`.
///
/// Searches about `count << bits` strings, so `bits` should be small.
pub fn collisions(hash: impl Fn(&[u8]) -> u64, bits: u32, count: usize) -> Vec<Vec<u8>> {
    let mask = (1_u64 << bits) - 1;
    let mut by_hash: HashMap<u64, Vec<Vec<u8>>> = HashMap::new();
    let mut random = Random::new(u64::from(bits));
    loop {
        let key = format!("key {:x}", random.next_u64()).into_bytes();
        let alike = by_hash.entry(hash(&key) & mask).or_default();
        alike.push(key);
        if alike.len() == count {
            return std::mem::take(alike);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collisions_agree_in_the_bits_asked_for() {
        let hash = |key: &[u8]| {
            key.iter().fold(7_u64, |hash, byte| hash.wrapping_mul(31) + u64::from(*byte))
        };
        let keys = collisions(hash, 8, 20);
        assert_eq!(keys.len(), 20);
        assert!(keys.iter().all(|key| hash(key) & 0xFF == hash(&keys[0]) & 0xFF));
    }
}
