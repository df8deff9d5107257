//! Writers and readers at once, with keys and values that verify themselves.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::ops::{Bound, ControlFlow};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use ordna_base::{Direction, OrderedIndex};

use crate::kinds::{TestKey, TestValue, is_stamped_for, stamp};
use crate::random::Random;

const WRITERS: u64 = 3;
const READERS: u64 = 1;

/// Each writer owns the keys of one residue class, so it knows what they hold at any moment, and
/// all of them together know the final content. Readers check that what they find belongs there.
///
/// # Panics
/// If an answer is wrong.
pub fn check_owners<I>(new: impl Fn() -> I)
where
    I: OrderedIndex<Key: TestKey, Value: TestValue>,
{
    // Few keys for conflicts on the same nodes; more for structure changes.
    for keys in [12, 600] {
        owners(&new(), keys);
    }
}

fn owners<I>(index: &I, keys: u64)
where
    I: OrderedIndex<Key: TestKey, Value: TestValue>,
{
    let end = Instant::now() + crate::budget() / 2;
    let numbers: HashMap<_, u64> = (0..keys).map(|n| (I::Key::number(n), n)).collect();
    let done = AtomicBool::new(false);
    let contents: Vec<HashMap<u64, u64>> = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| scope.spawn(move || write_own(index, keys, writer, end)))
            .collect();
        for reader in 0..READERS {
            let (numbers, done) = (&numbers, &done);
            scope.spawn(move || read_all(index, keys, reader, numbers, done));
        }
        let contents = writers.into_iter().map(|writer| writer.join());
        let contents: Vec<_> = contents.collect();
        done.store(true, Ordering::Relaxed);
        contents.into_iter().map(|content| content.expect("a writer failed")).collect()
    });
    let audit = index.validate().unwrap_or_else(|broken| panic!("{broken}"));
    let expected: HashMap<u64, u64> = contents.into_iter().flatten().collect();
    let mut found = HashMap::new();
    index.visit(Bound::Unbounded, Bound::Unbounded, Direction::Ascending, |key, value| {
        found.insert(numbers[key], value.word());
        ControlFlow::Continue(())
    });
    assert_eq!(found, expected, "final content, {keys} keys");
    assert_eq!(audit.entries, expected.len());
    assert_eq!(index.approximate_len(), expected.len());
}

fn write_own<I>(index: &I, keys: u64, writer: u64, end: Instant) -> HashMap<u64, u64>
where
    I: OrderedIndex<Key: TestKey, Value: TestValue>,
{
    let mut random = Random::new(writer);
    let mut content: HashMap<u64, u64> = HashMap::new();
    let mut sequence = 0;
    while Instant::now() < end {
        for _ in 0..64 {
            sequence += 1;
            let n = random.below(keys / WRITERS) * WRITERS + writer;
            let key = I::Key::number(n);
            let key: &I::Key = key.borrow();
            let word = stamp(n, writer, sequence);
            let value = I::Value::dress(word);
            let before = content.get(&n).copied();
            let old = match random.below(8) {
                0..=2 => {
                    content.insert(n, word);
                    index.insert(key, value.borrow()).expect("within the limits")
                }
                3..=4 => {
                    content.remove(&n);
                    index.remove(key)
                }
                5 => {
                    content.entry(n).or_insert(word);
                    index.insert_if_absent(key, value.borrow()).expect("within the limits")
                }
                6 => {
                    if before.is_some() {
                        content.insert(n, word);
                    }
                    let mut seen = None;
                    let update = |old: &I::Value| {
                        seen = Some(old.to_owned());
                        value.clone()
                    };
                    index.update(key, update).expect("within the limits");
                    seen
                }
                _ => index.get(key),
            };
            let old = old.map(|old| old.borrow().word());
            assert_eq!(old, before, "writer {writer}, step {sequence}: own key {key:?}");
        }
    }
    content
}

fn read_all<I>(
    index: &I,
    keys: u64,
    reader: u64,
    numbers: &HashMap<<I::Key as ToOwned>::Owned, u64>,
    done: &AtomicBool,
) where
    I: OrderedIndex<Key: TestKey, Value: TestValue>,
{
    let mut random = Random::new(1000 + reader);
    while !done.load(Ordering::Relaxed) {
        let many: Vec<_> = (0..20).map(|_| random.below(keys)).collect();
        let dressed: Vec<_> = many.iter().map(|n| I::Key::number(*n)).collect();
        index.get_many_with(&dressed, |at, value| {
            if let Some(value) = value {
                let word = value.word();
                assert!(is_stamped_for(word, many[at]), "{:?} holds {word:#x}", dressed[at]);
            }
        });
        for (n, key) in many.iter().zip(&dressed) {
            if let Some(value) = index.get(key.borrow()) {
                let word = value.borrow().word();
                assert!(is_stamped_for(word, *n), "{key:?} holds {word:#x}");
            }
        }
        let from = I::Key::number(random.below(keys));
        let mut last: Option<<I::Key as ToOwned>::Owned> = None;
        let from: &I::Key = from.borrow();
        index.visit(Bound::Included(from), Bound::Unbounded, Direction::Ascending, |key, value| {
            let owned = key.to_owned();
            assert!(key >= from, "{key:?} is below the bound {from:?}");
            assert!(last.as_ref().is_none_or(|last| *last < owned), "{key:?} after {last:?}");
            let n = numbers.get(key).unwrap_or_else(|| panic!("{key:?} was never written"));
            assert!(is_stamped_for(value.word(), *n), "{key:?} holds a foreign value");
            last = Some(owned);
            ControlFlow::Continue(())
        });
    }
}

/// Every third key stays; writers insert and remove the others. Every walk, in both directions and
/// within bounds, must return each staying key once, in order.
///
/// # Panics
/// If a walk loses, repeats or invents a key.
pub fn check_walks<I>(new: impl Fn() -> I)
where
    I: OrderedIndex<Key: TestKey, Value: TestValue>,
{
    for keys in [24, 900] {
        walks(&new(), keys);
    }
}

fn walks<I>(index: &I, keys: u64)
where
    I: OrderedIndex<Key: TestKey, Value: TestValue>,
{
    let end = Instant::now() + crate::budget() / 2;
    let mut staying: Vec<_> = (0..keys).step_by(3).map(|n| (I::Key::number(n), n)).collect();
    staying.sort();
    for (key, n) in &staying {
        let value = I::Value::dress(stamp(*n, 0, 0));
        index.insert(key.borrow(), value.borrow()).expect("within the limits");
    }
    std::thread::scope(|scope| {
        for writer in 0..2_u64 {
            scope.spawn(move || churn(index, keys, writer, end));
        }
        let staying = &staying;
        for walker in 0..2_u64 {
            scope.spawn(move || {
                let mut random = Random::new(77 + walker);
                while Instant::now() < end {
                    walk(index, keys, staying, &mut random);
                }
            });
        }
    });
    index.validate().unwrap_or_else(|broken| panic!("{broken}"));
}

/// Inserts and removes the keys that do not stay, and overwrites those that do.
fn churn<I>(index: &I, keys: u64, writer: u64, end: Instant)
where
    I: OrderedIndex<Key: TestKey, Value: TestValue>,
{
    let mut random = Random::new(writer);
    while Instant::now() < end {
        for _ in 0..64 {
            let n = random.below(keys);
            let key = I::Key::number(n);
            let value = I::Value::dress(stamp(n, writer, random.below(1 << 20)));
            if n.is_multiple_of(3) || random.below(2) == 0 {
                index.insert(key.borrow(), value.borrow()).expect("within the limits");
            } else {
                index.remove(key.borrow());
            }
        }
    }
}

fn walk<I>(index: &I, keys: u64, staying: &[(<I::Key as ToOwned>::Owned, u64)], random: &mut Random)
where
    I: OrderedIndex<Key: TestKey, Value: TestValue>,
{
    let mut ends = [I::Key::number(random.below(keys)), I::Key::number(random.below(keys))];
    ends.sort();
    let [low, high] = &ends;
    let (low, high): (&I::Key, &I::Key) = (low.borrow(), high.borrow());
    let bounds = (Bound::Included(low), Bound::Excluded(high));
    let way = random.below(4);
    let mut walked = Vec::new();
    match way {
        0 | 1 => {
            let direction = if way == 0 { Direction::Ascending } else { Direction::Descending };
            index.visit(bounds.0, bounds.1, direction, |key, value| {
                walked.push((key.to_owned(), value.word()));
                ControlFlow::Continue(())
            });
        }
        2 => walked.extend(index.range(bounds).map(|(k, v)| (k, v.borrow().word()))),
        _ => walked.extend(index.range(bounds).rev().map(|(k, v)| (k, v.borrow().word()))),
    }
    if way % 2 == 1 {
        walked.reverse();
    }
    let in_order = walked.windows(2).all(|pair| pair[0].0 < pair[1].0);
    assert!(in_order, "way {way}: out of order or repeated: {walked:?}");
    let within = walked.iter().all(|(key, _)| (low..high).contains(&key.borrow()));
    assert!(within, "way {way}: outside [{low:?}, {high:?}): {walked:?}");
    for (key, n) in staying.iter().filter(|(key, _)| (low..high).contains(&key.borrow())) {
        let Ok(at) = walked.binary_search_by(|(walked, _)| walked.cmp(key)) else {
            panic!("way {way}: {key:?} was there all the time, and is missing in {walked:?}")
        };
        let word = walked[at].1;
        assert!(is_stamped_for(word, *n), "way {way}: {key:?} holds {word:#x}");
    }
}
