//! Random sequences of all operations, in which each answer is compared with the oracle's.

use std::borrow::Borrow;
use std::fmt::Debug;
use std::ops::{Bound, ControlFlow};

use ordna_base::Locked;
use ordna_base::{Change, Direction, Entries, OrderedIndex};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use crate::erased::{Erased, Subject};
use crate::kinds::{TestKey, TestValue, borrow};

/// Number of different keys: few enough for repetitions, many enough for several nodes.
const KEYS: u64 = 160;
const CASES: u32 = 48;
const STEPS: usize = 220;

/// A bound of key numbers.
#[derive(Debug, Clone)]
pub enum End {
    /// No bound.
    Open,
    /// The key itself is within the bounds.
    Included(u64),
    /// The key itself is outside.
    Excluded(u64),
}

/// An operation, with keys as numbers.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "named as the methods of the contract")]
pub enum Op {
    Get(u64),
    Insert(u64, u64),
    InsertIfAbsent(u64, u64),
    Remove(u64),
    CompareExchange(u64, Option<u64>, Option<u64>),
    Update(u64, u64),
    Modify(u64, Option<u64>, bool),
    GetMany(Vec<u64>),
    InsertMany(Vec<(u64, u64)>),
    RemoveMany(Vec<u64>),
    Floor(u64),
    Ceiling(u64),
    Ends,
    Scan(u64, usize),
    Collect(End, End, bool, usize),
    Range(End, End, Vec<bool>),
    TooLong,
    FillUp(u64),
    Clear,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let key = 0..KEYS;
    let value = 0..1_u64 << 40;
    let end = prop_oneof![
        Just(End::Open),
        (0..KEYS).prop_map(End::Included),
        (0..KEYS).prop_map(End::Excluded),
    ];
    let small = prop_oneof![Just(None), (0..4_u64).prop_map(Some)];
    let op = prop_oneof![
        4 => key.clone().prop_map(Op::Get),
        14 => (key.clone(), value.clone()).prop_map(|(k, v)| Op::Insert(k, v)),
        3 => (key.clone(), 0..4_u64).prop_map(|(k, v)| Op::Insert(k, v)),
        3 => (key.clone(), value.clone()).prop_map(|(k, v)| Op::InsertIfAbsent(k, v)),
        7 => key.clone().prop_map(Op::Remove),
        3 => (key.clone(), small.clone(), small.clone())
            .prop_map(|(k, a, b)| Op::CompareExchange(k, a, b)),
        2 => (key.clone(), value.clone()).prop_map(|(k, v)| Op::Update(k, v)),
        2 => (key.clone(), small, any::<bool>()).prop_map(|(k, v, r)| Op::Modify(k, v, r)),
        1 => prop::collection::vec(key.clone(), 0..40).prop_map(Op::GetMany),
        1 => prop::collection::vec((key.clone(), value), 0..40).prop_map(Op::InsertMany),
        1 => prop::collection::vec(key.clone(), 0..40).prop_map(Op::RemoveMany),
        2 => key.clone().prop_map(Op::Floor),
        2 => key.clone().prop_map(Op::Ceiling),
        1 => Just(Op::Ends),
        1 => (key.clone(), 0..30_usize).prop_map(|(k, n)| Op::Scan(k, n)),
        3 => (end.clone(), end.clone(), any::<bool>(), 0..200_usize)
            .prop_map(|(a, b, d, n)| Op::Collect(a, b, d, n)),
        2 => (end.clone(), end, prop::collection::vec(any::<bool>(), 0..80))
            .prop_map(|(a, b, sides)| Op::Range(a, b, sides)),
        1 => Just(Op::TooLong),
        1 => key.prop_map(Op::FillUp),
        1 => Just(Op::Clear),
    ];
    prop::collection::vec(op, 1..STEPS)
}

/// Executes random sequences of operations and compares them with the oracle. A failing one is
/// shrunk and printed.
pub fn check<S: Subject<Key: TestKey, Value: TestValue>>(new: impl Fn() -> S) {
    run(&|| new().erase());
}

pub(crate) fn run<K: TestKey + ?Sized, V: TestValue + ?Sized>(new: &dyn Fn() -> Erased<K, V>) {
    let config = Config { cases: CASES, failure_persistence: None, ..Config::default() };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]);
    TestRunner::new_with_rng(config, rng)
        .run(&ops(), |ops| {
            let index = new();
            let oracle = Locked::<K, V>::new().erase();
            for (step, op) in ops.iter().enumerate() {
                let (got, expected) = (apply(&index, op), apply(&oracle, op));
                prop_assert_eq!(got, expected, "step {}: {:?}", step, op);
            }
            let report = index
                .check_invariants()
                .map_err(|broken| TestCaseError::fail(broken.to_string()))?;
            prop_assert_eq!(report.entries, oracle.approximate_len());
            prop_assert_eq!(index.approximate_len(), oracle.approximate_len());
            Ok(())
        })
        .unwrap_or_else(|failure| panic!("{failure}"));
}

/// Executes the operation and formats everything that it returned.
fn apply<K, V>(index: &Erased<K, V>, op: &Op) -> String
where
    K: TestKey + ?Sized,
    V: TestValue + ?Sized,
{
    let key = |n: &u64| K::number(*n);
    let value = |word: &u64| V::dress(*word);
    match op {
        Op::Get(k) => show((index.get(key(k).borrow()), index.contains(key(k).borrow()))),
        Op::Insert(k, v) => show(index.insert(key(k).borrow(), value(v).borrow())),
        Op::InsertIfAbsent(k, v) => {
            show(index.insert_if_absent(key(k).borrow(), value(v).borrow()))
        }
        Op::Remove(k) => show(index.remove(key(k).borrow())),
        Op::CompareExchange(k, expected, new) => {
            let (expected, new) = (expected.as_ref().map(value), new.as_ref().map(value));
            show(index.compare_exchange(
                key(k).borrow(),
                expected.as_ref().map(Borrow::borrow),
                new.as_ref().map(Borrow::borrow),
            ))
        }
        Op::Update(k, add) => {
            let next = |old: &V| value(&(old.word().wrapping_add(*add) % (1 << 40)));
            show(index.update(key(k).borrow(), next))
        }
        Op::Modify(k, put, remove) => {
            let mut seen = None;
            let done = index.modify(key(k).borrow(), |old| {
                seen = old.map(ToOwned::to_owned);
                match put {
                    Some(word) => Change::Put(value(word)),
                    None if *remove => Change::Remove,
                    None => Change::Keep,
                }
            });
            show((done, seen))
        }
        Op::GetMany(keys) => {
            let keys: Vec<_> = keys.iter().map(key).collect();
            let mut found = Vec::new();
            index.get_many(&keys, &mut found);
            show(found)
        }
        Op::InsertMany(pairs) => {
            let pairs: Vec<_> = pairs.iter().map(|(k, v)| (key(k), value(v))).collect();
            show(index.insert_many(&pairs))
        }
        Op::RemoveMany(keys) => {
            let keys: Vec<_> = keys.iter().map(key).collect();
            show(index.remove_many(&keys))
        }
        Op::Floor(k) => show(index.floor(key(k).borrow())),
        Op::Ceiling(k) => show(index.ceiling(key(k).borrow())),
        Op::Ends => show((index.first(), index.last())),
        Op::Scan(k, limit) => {
            let mut out = Entries::new();
            let count = index.scan(key(k).borrow(), *limit, &mut out);
            show((count, out))
        }
        Op::Collect(lower, upper, ascending, limit) => {
            let direction = if *ascending { Direction::Ascending } else { Direction::Descending };
            let (lower, upper) = (bound::<K>(lower), bound::<K>(upper));
            let mut out = Entries::new();
            let (lower, upper) = (as_ref::<K>(&lower), as_ref::<K>(&upper));
            let count = index.collect(lower, upper, direction, *limit, &mut out);
            show((count, out))
        }
        Op::Range(lower, upper, sides) => {
            let (lower, upper) = (bound::<K>(lower), bound::<K>(upper));
            let bounds = (as_ref::<K>(&lower), as_ref::<K>(&upper));
            let mut range = index.range(bounds);
            let mut out: Vec<_> = sides
                .iter()
                .map(|front| if *front { range.next() } else { range.next_back() })
                .collect();
            out.extend(range.map(Some));
            show(out)
        }
        Op::TooLong => {
            let Some(long) = K::too_long() else { return String::new() };
            let long = borrow::<K>(&long);
            show((
                index.insert(long, value(&1).borrow()),
                index.get(long),
                index.remove(long),
                index.ceiling(long),
                index.insert_many(&[
                    (key(&0).borrow(), value(&1).borrow()),
                    (long, value(&1).borrow()),
                ]),
            ))
        }
        Op::FillUp(from) => {
            let numbers = (*from..from + KEYS).step_by(3);
            show(
                numbers
                    .map(|n| index.insert(key(&n).borrow(), value(&n).borrow()))
                    .collect::<Vec<_>>(),
            )
        }
        Op::Clear => {
            let mut keys = Vec::new();
            index.visit(Bound::Unbounded, Bound::Unbounded, Direction::Ascending, |key, _| {
                keys.push(key.to_owned());
                ControlFlow::Continue(())
            });
            show(index.remove_many(&keys))
        }
    }
}

fn show(answer: impl Debug) -> String {
    format!("{answer:?}")
}

fn bound<K: TestKey + ?Sized>(end: &End) -> Bound<K::Owned> {
    match end {
        End::Open => Bound::Unbounded,
        End::Included(n) => Bound::Included(K::number(*n)),
        End::Excluded(n) => Bound::Excluded(K::number(*n)),
    }
}

fn as_ref<K: TestKey + ?Sized>(bound: &Bound<K::Owned>) -> Bound<&K> {
    bound.as_ref().map(Borrow::borrow)
}
