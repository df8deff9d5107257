//! Random sequences of operations with up to eight live snapshots. After every step, each snapshot
//! is compared completely with a persistent map.

use std::borrow::Borrow;
use std::fmt::Debug;
use std::ops::Bound;

use imbl::OrdMap;
use ordna_base::{Error, OrderedIndex};
use ordna_papers::Nitro;
use ordna_papers::nitro::{Order, Snapshot};
use ordna_testkit::kinds::{TestKey, TestValue};
use ordna_testkit::snapshots::check_reads;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

const KEYS: u64 = 40;
const SNAPSHOTS: usize = 8;

#[derive(Debug, Clone)]
enum Op {
    Insert(u64, u64),
    Remove(u64),
    Update(u64),
    CompareExchange(u64, Option<u64>, Option<u64>),
    Snapshot,
    Clone(usize),
    Drop(usize),
    Collect,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let key = 0..KEYS;
    let word = prop_oneof![0..4_u64, 0..1_u64 << 40];
    let small = prop_oneof![Just(None), (0..4_u64).prop_map(Some)];
    let op = prop_oneof![
        10 => (key.clone(), word).prop_map(|(k, v)| Op::Insert(k, v)),
        6 => key.clone().prop_map(Op::Remove),
        2 => key.clone().prop_map(Op::Update),
        2 => (key, small.clone(), small).prop_map(|(k, a, b)| Op::CompareExchange(k, a, b)),
        6 => Just(Op::Snapshot),
        1 => (0..SNAPSHOTS).prop_map(Op::Clone),
        4 => (0..SNAPSHOTS).prop_map(Op::Drop),
        1 => Just(Op::Collect),
    ];
    prop::collection::vec(op, 1..120)
}

type OracleState<K> = OrdMap<<K as ToOwned>::Owned, u64>;

struct Machine<K: TestKey + ?Sized, V: TestValue + ?Sized>
where
    K::Owned: Clone,
{
    index: Nitro<K, V>,
    state: OracleState<K>,
    snapshots: Vec<(Snapshot<K, V>, OracleState<K>)>,
}

impl<K: TestKey + ?Sized, V: TestValue + ?Sized> Machine<K, V> {
    fn new(index: Nitro<K, V>) -> Self {
        Self { index, state: OrdMap::new(), snapshots: Vec::new() }
    }

    /// Sets or removes a key of the oracle. Returns its old value.
    fn put(&mut self, key: &K::Owned, word: Option<u64>) -> Option<V::Owned> {
        let old = match word {
            Some(word) => self.state.insert(key.clone(), word),
            None => self.state.remove(key),
        };
        old.map(V::dress)
    }

    /// Executes the operation on both. Returns both results.
    fn step(&mut self, op: &Op) -> (String, String) {
        match op {
            Op::Insert(k, v) => {
                let key = K::number(*k);
                let done = self.index.insert(key.borrow(), V::dress(*v).borrow());
                show(done, Ok::<_, Error>(self.put(&key, Some(*v))))
            }
            Op::Remove(k) => {
                let key = K::number(*k);
                show(self.index.remove(key.borrow()), self.put(&key, None))
            }
            Op::Update(k) => {
                let key = K::number(*k);
                let after = self.state.get(&key).map(|word| word + 1);
                if after.is_some() {
                    self.put(&key, after);
                }
                let done = self.index.update(key.borrow(), |value| V::dress(value.word() + 1));
                show(done, Ok::<_, Error>(after.map(V::dress)))
            }
            Op::CompareExchange(k, expected, new) => {
                let key = K::number(*k);
                let before = self.state.get(&key).copied();
                if before == *expected {
                    self.put(&key, *new);
                }
                let right = if before == *expected { Ok(()) } else { Err(before.map(V::dress)) };
                let (expected, new) = (expected.map(V::dress), new.map(V::dress));
                let done = self.index.compare_exchange(
                    key.borrow(),
                    expected.as_ref().map(Borrow::borrow),
                    new.as_ref().map(Borrow::borrow),
                );
                show(done, Ok::<_, Error>(right))
            }
            Op::Snapshot => {
                if self.snapshots.len() < SNAPSHOTS {
                    self.snapshots.push((self.index.snapshot(), self.state.clone()));
                }
                show((), ())
            }
            Op::Clone(at) => {
                if let Some((snapshot, state)) = self.snapshots.get(*at).cloned()
                    && self.snapshots.len() < SNAPSHOTS
                {
                    self.snapshots.push((snapshot, state));
                }
                show((), ())
            }
            Op::Drop(at) => {
                if *at < self.snapshots.len() {
                    self.snapshots.swap_remove(*at);
                }
                show((), ())
            }
            Op::Collect => {
                self.index.collect_garbage();
                show(self.index.statistics().items, self.state.len())
            }
        }
    }

    /// Checks that every live snapshot is unchanged and that the latest state equals the oracle's.
    fn check(&self) -> Result<(), TestCaseError> {
        let dressed = |state: &OracleState<K>| -> Vec<_> {
            state.iter().map(|(k, word)| (k.clone(), V::dress(*word))).collect()
        };
        let keys: Vec<K::Owned> = (0..KEYS).map(K::number).collect();
        for (snapshot, state) in &self.snapshots {
            check_reads(snapshot, dressed(state), &keys)
                .map_err(|error| TestCaseError::fail(format!("{error}: {}", snapshot.epoch())))?;
        }
        let all: Vec<_> =
            OrderedIndex::range(&self.index, (Bound::<&K>::Unbounded, Bound::Unbounded)).collect();
        prop_assert_eq!(all, dressed(&self.state));
        for key in &keys {
            let right = self.state.get(key).map(|word| V::dress(*word));
            prop_assert_eq!(self.index.get(key.borrow()), right, "get {:?}", key);
        }
        Ok(())
    }
}

fn show(got: impl Debug, right: impl Debug) -> (String, String) {
    (format!("{got:?}"), format!("{right:?}"))
}

fn run<K: TestKey + ?Sized, V: TestValue + ?Sized>(collectors: usize, order: Order, cases: u32) {
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[8; 32]);
    TestRunner::new_with_rng(config, rng)
        .run(&ops(), |ops| {
            let mut machine = Machine::<K, V>::new(Nitro::with(collectors, order));
            for (at, op) in ops.iter().enumerate() {
                let (got, right) = machine.step(op);
                prop_assert_eq!(got, right, "step {}: {:?}", at, op);
                machine
                    .check()
                    .map_err(|error| TestCaseError::fail(format!("step {at}: {op:?}: {error}")))?;
            }
            machine.index.collect_garbage();
            let broken = |broken: ordna_base::Violation| TestCaseError::fail(broken.to_string());
            machine.index.check_invariants().map_err(broken)?;
            // The index is dropped first; the last snapshot frees the versions that the snapshots
            // keep.
            let Machine { index, snapshots, .. } = machine;
            drop(index);
            for (snapshot, state) in snapshots {
                prop_assert_eq!(snapshot.iter().count(), state.len());
            }
            Ok(())
        })
        .unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn words_collected_by_the_caller() {
    run::<u64, u64>(0, Order::LiveSet, 200);
}

#[test]
fn bytes_collected_in_the_background() {
    run::<[u8], [u8]>(2, Order::LiveSet, 120);
}

#[test]
fn bytes_collected_in_the_order_of_terms() {
    run::<[u8], u64>(0, Order::Epochs, 120);
}

/// A version is unlinked with the last snapshot that sees it. A snapshot with the epoch of its
/// death does not see it.
#[test]
fn each_version_goes_with_the_youngest_snapshot_that_sees_it() {
    for order in [Order::LiveSet, Order::Epochs] {
        let index: Nitro<u64, u64> = Nitro::with(0, order);
        let put = |key: u64, value: u64| assert!(index.insert(&key, &value).is_ok());
        put(1, 0);
        let first = index.snapshot();
        put(1, 1);
        put(2, 0);
        let second = index.snapshot();
        put(2, 1);
        // The end of a third snapshot starts the examination of both dead versions.
        drop(index.snapshot());
        assert_eq!(index.statistics().dead, 2, "{order:?}");
        assert_eq!((first.get(&1), second.get(&2)), (Some(0), Some(0)));
        // In the order of epochs, the first snapshot keeps both versions.
        let is_by_terms = matches!(order, Order::Epochs);
        let (one, other) = if is_by_terms { (first, second) } else { (second, first) };
        drop(one);
        assert_eq!(index.statistics().dead, 1, "{order:?}");
        drop(other);
        assert_eq!(index.statistics().dead, 0, "{order:?}");
        put(1, 2);
        let last = index.snapshot();
        put(1, 3);
        let newer = index.snapshot();
        drop(last);
        index.collect_garbage();
        assert_eq!(index.statistics().dead, 0, "kept by a snapshot that does not see it");
        assert_eq!(newer.get(&1), Some(3));
        drop(newer);
        index.check_invariants().unwrap();
    }
}

#[test]
fn one_old_snapshot_keeps_the_versions_it_sees_and_no_others() {
    for (order, kept) in [(Order::LiveSet, 1), (Order::Epochs, 9)] {
        let index: Nitro<u64, u64> = Nitro::with(0, order);
        index.insert(&1, &0).unwrap();
        let old = index.snapshot();
        for round in 1..10 {
            index.insert(&1, &round).unwrap();
            drop(index.snapshot());
        }
        index.collect_garbage();
        assert_eq!(index.statistics().dead, kept, "{order:?}");
        assert_eq!((old.get(&1), index.get(&1)), (Some(0), Some(9)));
        drop(old);
        index.collect_garbage();
        assert_eq!(index.statistics().dead, 0, "{order:?}");
        index.check_invariants().unwrap();
    }
}
