//! Random sequences of operations with up to eight snapshots. After every step, each snapshot is
//! compared in full with a persistent map.

use std::borrow::Borrow;
use std::fmt::Debug;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use imbl::OrdMap;
use ordna::{Options, Put, Snapshot, Store, Write};
use ordna_base::{Change, OrderedIndex};
use ordna_testkit::kinds::{TestKey, TestValue};
use ordna_testkit::snapshots::check_reads;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

const KEYS: u64 = 40;
const SNAPSHOTS: usize = 8;

#[derive(Debug, Clone)]
enum Op {
    Insert(u64, u64),
    InsertUntil(u64, u64, u64),
    SetExpiry(u64, Option<u64>),
    InsertIfAbsent(u64, u64),
    Remove(u64),
    Update(u64),
    CompareExchange(u64, Option<u64>, Option<u64>),
    RemoveRange(u64, u64),
    Batch(Vec<(u64, Option<u64>)>),
    Snapshot,
    Clone(usize),
    Drop(usize),
    Tick(i64),
    Collect,
}

fn ops(keys: u64) -> impl Strategy<Value = Vec<Op>> {
    let key = 0..keys;
    let word = prop_oneof![0..4_u64, 0..1_u64 << 40];
    let small = prop_oneof![Just(None), (0..4_u64).prop_map(Some)];
    let op = prop_oneof![
        8 => (key.clone(), word.clone()).prop_map(|(k, v)| Op::Insert(k, v)),
        3 => (key.clone(), word.clone(), 0..60_u64).prop_map(|(k, v, t)| Op::InsertUntil(k, v, t)),
        1 => (key.clone(), prop::option::of(0..60_u64)).prop_map(|(k, t)| Op::SetExpiry(k, t)),
        2 => (key.clone(), word.clone()).prop_map(|(k, v)| Op::InsertIfAbsent(k, v)),
        6 => key.clone().prop_map(Op::Remove),
        2 => key.clone().prop_map(Op::Update),
        2 => (key.clone(), small.clone(), small.clone())
            .prop_map(|(k, a, b)| Op::CompareExchange(k, a, b)),
        1 => (key.clone(), key.clone()).prop_map(|(a, b)| Op::RemoveRange(a, b)),
        2 => prop::collection::vec((key, prop::option::of(word)), 0..12).prop_map(Op::Batch),
        6 => Just(Op::Snapshot),
        1 => (0..SNAPSHOTS).prop_map(Op::Clone),
        4 => (0..SNAPSHOTS).prop_map(Op::Drop),
        2 => (-40..40_i64).prop_map(Op::Tick),
        1 => Just(Op::Collect),
    ];
    prop::collection::vec(op, 1..120)
}

/// For each key its value and its deadline.
type State<K> = OrdMap<<K as ToOwned>::Owned, (u64, Option<u64>)>;

struct Machine<K: TestKey + ?Sized, V: TestValue + ?Sized>
where
    K::Owned: Clone,
{
    store: Store<K, V>,
    clock: Arc<AtomicU64>,
    /// The latest time that the clock has returned.
    time: u64,
    state: State<K>,
    snapshots: Vec<(Snapshot<K, V>, State<K>)>,
}

impl<K: TestKey + ?Sized, V: TestValue + ?Sized> Machine<K, V> {
    fn new(options: Options) -> Self {
        let clock = Arc::new(AtomicU64::new(1000));
        let hands = Arc::clone(&clock);
        let options = options.clock(move || hands.load(Ordering::Relaxed));
        let store = Store::with_options(options);
        assert_eq!(store.now(), 1000);
        Self { store, clock, time: 1000, state: OrdMap::new(), snapshots: Vec::new() }
    }

    fn key(n: u64) -> K::Owned {
        K::number(n)
    }

    /// Returns what the model holds for a key now.
    fn now(&self, key: &K::Owned) -> Option<(u64, Option<u64>)> {
        let found = self.state.get(key).copied();
        found.filter(|(_, deadline)| deadline.is_none_or(|deadline| deadline > self.time))
    }

    fn put(&mut self, key: K::Owned, word: u64, deadline: Option<u64>) {
        self.state.insert(key, (word, deadline));
    }

    /// Applies the operation to store and model, and returns both results.
    fn step(&mut self, op: &Op) -> (String, String) {
        match op {
            Op::Insert(k, v) => {
                let key = Self::key(*k);
                let before = self.now(&key).map(|(word, _)| V::dress(word));
                self.put(key.clone(), *v, None);
                show(
                    self.store.insert(key.borrow(), V::dress(*v).borrow()),
                    Ok::<_, ordna_base::Error>(before),
                )
            }
            Op::InsertUntil(k, v, t) => {
                let (key, deadline) = (Self::key(*k), self.time + t);
                self.put(key.clone(), *v, Some(deadline));
                let done = self.store.insert_until(key.borrow(), V::dress(*v).borrow(), deadline);
                show(done, Ok::<_, ordna_base::Error>(()))
            }
            Op::SetExpiry(k, t) => {
                let (key, deadline) = (Self::key(*k), t.map(|t| self.time + t));
                let before = self.now(&key);
                if let Some((word, _)) = before {
                    self.put(key.clone(), word, deadline);
                }
                let done = self.store.set_expiry(key.borrow(), deadline);
                show(done, Ok::<_, ordna_base::Error>(before.is_some()))
            }
            Op::InsertIfAbsent(k, v) => {
                let key = Self::key(*k);
                let before = self.now(&key).map(|(word, _)| V::dress(word));
                if before.is_none() {
                    self.put(key.clone(), *v, None);
                }
                let done = self.store.insert_if_absent(key.borrow(), V::dress(*v).borrow());
                show(done, Ok::<_, ordna_base::Error>(before))
            }
            Op::Remove(k) => {
                let key = Self::key(*k);
                let before = self.now(&key).map(|(word, _)| V::dress(word));
                self.state.remove(&key);
                show(self.store.remove(key.borrow()), Ok::<_, ordna_base::Error>(before))
            }
            Op::Update(k) => {
                let key = Self::key(*k);
                let after = self.now(&key).map(|(word, deadline)| (word + 1, deadline));
                if let Some((word, deadline)) = after {
                    self.put(key.clone(), word, deadline);
                }
                let done = self.store.update(key.borrow(), |value| V::dress(value.word() + 1));
                show(done, Ok::<_, ordna_base::Error>(after.map(|(word, _)| V::dress(word))))
            }
            Op::CompareExchange(k, expected, new) => {
                let key = Self::key(*k);
                let found = self.now(&key);
                let before = found.map(|(word, _)| word);
                if before == *expected {
                    match new {
                        Some(word) => {
                            self.put(key.clone(), *word, found.and_then(|(_, deadline)| deadline));
                        }
                        None => drop(self.state.remove(&key)),
                    }
                }
                let right = if before == *expected { Ok(()) } else { Err(before.map(V::dress)) };
                let (expected, new) = (expected.map(V::dress), new.map(V::dress));
                let done = self.store.compare_exchange(
                    key.borrow(),
                    expected.as_ref().map(Borrow::borrow),
                    new.as_ref().map(Borrow::borrow),
                );
                show(done, Ok::<_, ordna_base::Error>(right))
            }
            Op::RemoveRange(a, b) => {
                let (low, high) = (Self::key(*a), Self::key(*b));
                let within: Vec<_> =
                    self.state.keys().filter(|k| **k >= low && **k < high).cloned().collect();
                let present = within.iter().filter(|key| self.now(key).is_some()).count();
                // Expired keys may remain in the store, but are not visible.
                for key in &within {
                    self.state.remove(key);
                }
                let (low, high) = (Bound::Included(low.borrow()), Bound::Excluded(high.borrow()));
                show(self.store.remove_range((low, high)).unwrap(), present)
            }
            Op::Batch(writes) => {
                let owned: Vec<_> =
                    writes.iter().map(|(k, v)| (Self::key(*k), v.map(V::dress))).collect();
                let batch: Vec<_> = owned
                    .iter()
                    .map(|(key, value)| match value {
                        Some(value) => Write::Put(key.borrow(), Put::forever(value.borrow())),
                        None => Write::Remove(key.borrow()),
                    })
                    .collect();
                let done = self.store.write_batch(&batch);
                for (key, word) in writes {
                    match word {
                        Some(word) => self.put(Self::key(*key), *word, None),
                        None => drop(self.state.remove(&Self::key(*key))),
                    }
                }
                show(done, Ok::<_, ordna_base::Error>(()))
            }
            Op::Snapshot => {
                if self.snapshots.len() < SNAPSHOTS {
                    let snapshot = self.store.snapshot_with(self.time.to_le_bytes());
                    let state = self.visible();
                    self.snapshots.push((snapshot, state));
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
            Op::Tick(ms) => {
                // The clock may be set back; the store's time never goes back.
                let told = self.clock.load(Ordering::Relaxed).saturating_add_signed(*ms);
                self.clock.store(told, Ordering::Relaxed);
                self.time = self.time.max(told);
                show(self.store.now(), self.time)
            }
            Op::Collect => {
                self.store.collect_garbage();
                let due =
                    |(_, deadline): &(u64, Option<u64>)| deadline.is_some_and(|d| d <= self.time);
                self.state = self
                    .state
                    .iter()
                    .filter(|(_, e)| !due(e))
                    .map(|(k, e)| (k.clone(), *e))
                    .collect();
                let items = self.store.statistics().items;
                show(items, self.state.len())
            }
        }
    }

    fn visible(&self) -> State<K> {
        let shown = self.state.keys().filter_map(|key| Some((key.clone(), self.now(key)?)));
        shown.collect()
    }

    /// Checks that every snapshot is unchanged, and that the latest state equals the model.
    fn check(&self) -> Result<(), TestCaseError> {
        let keys: Vec<K::Owned> = (0..KEYS).map(K::number).collect();
        for (snapshot, state) in &self.snapshots {
            let right: Vec<_> =
                state.iter().map(|(k, (word, _))| (k.clone(), V::dress(*word))).collect();
            check_reads(snapshot, right, &keys)
                .map_err(|error| TestCaseError::fail(format!("{error}: {}", snapshot.epoch())))?;
        }
        let right: Vec<_> =
            self.visible().iter().map(|(k, (word, _))| (k.clone(), V::dress(*word))).collect();
        let all: Vec<_> =
            OrderedIndex::range(&self.store, (Bound::<&K>::Unbounded, Bound::Unbounded)).collect();
        prop_assert_eq!(all, right);
        for n in 0..KEYS {
            let key = K::number(n);
            let (found, right) = (self.store.get(key.borrow()), self.now(&key));
            prop_assert_eq!(found, right.map(|(word, _)| V::dress(word)), "get {:?}", key);
            prop_assert_eq!(self.store.expiry(key.borrow()), right.map(|(_, deadline)| deadline));
        }
        Ok(())
    }
}

fn show(got: impl Debug, right: impl Debug) -> (String, String) {
    (format!("{got:?}"), format!("{right:?}"))
}

fn run<K: TestKey + ?Sized, V: TestValue + ?Sized>(options: impl Fn() -> Options, cases: u32) {
    run_keys::<K, V>(options, cases, KEYS);
}

fn run_keys<K: TestKey + ?Sized, V: TestValue + ?Sized>(
    options: impl Fn() -> Options,
    cases: u32,
    keys: u64,
) {
    // With a sanitizer a case takes ten times as long.
    let cases = if std::env::var_os("ORDNA_SANITIZED").is_some() { cases / 4 } else { cases };
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[8; 32]);
    TestRunner::new_with_rng(config, rng)
        .run(&ops(keys), |ops| {
            let mut machine = Machine::<K, V>::new(options());
            for (at, op) in ops.iter().enumerate() {
                let (got, right) = machine.step(op);
                prop_assert_eq!(got, right, "step {}: {:?}", at, op);
                machine
                    .check()
                    .map_err(|error| TestCaseError::fail(format!("step {at}: {op:?}: {error}")))?;
            }
            machine.store.collect_garbage();
            let broken = |broken: ordna_base::Violation| TestCaseError::fail(broken.to_string());
            machine.store.check_invariants().map_err(broken)?;
            let kept = machine.store.statistics().dead;
            prop_assert!(!machine.snapshots.is_empty() || kept == 0, "{} undo records", kept);
            // The store is dropped first. What the snapshots keep is freed with the last of them.
            let Machine { store, snapshots, .. } = machine;
            drop(store);
            for (snapshot, state) in snapshots {
                prop_assert_eq!(snapshot.iter().count(), state.len());
            }
            Ok(())
        })
        .unwrap_or_else(|failure| panic!("{failure}"));
}

/// Nodes of the usual sizes, and tiny ones, which split, merge and prune on nearly every write.
const SIZES: [(usize, usize); 4] = [(56, 64), (2, 3), (3, 3), (4, 3)];

fn run_sizes<K: TestKey + ?Sized, V: TestValue + ?Sized>(
    options: impl Fn() -> Options,
    cases: u32,
) {
    for (slots, fanout) in SIZES {
        run::<K, V>(|| options().sizes(slots, fanout), cases);
    }
}

#[test]
fn words_collected_by_the_caller() {
    run_sizes::<u64, u64>(|| Options::new().background_collector(false), 100);
}

#[test]
fn words_to_bytes_collected_by_the_caller() {
    run_sizes::<u64, [u8]>(|| Options::new().background_collector(false), 60);
}

#[test]
fn bytes_collected_in_the_background() {
    run_sizes::<[u8], [u8]>(|| Options::new().background_collector(true), 60);
}

#[test]
fn bytes_to_words_collected_by_the_caller() {
    run_sizes::<[u8], u64>(|| Options::new().background_collector(false), 60);
}

/// A single leaf, whose undo list is pruned frequently.
#[test]
fn undo_lists_are_pruned_under_snapshots() {
    run_keys::<u64, u64>(|| Options::new().background_collector(false).sizes(2, 3), 200, 3);
    run_keys::<[u8], [u8]>(|| Options::new().background_collector(false).sizes(2, 3), 200, 3);
}

/// The store keeps what an old snapshot sees, and hardly anything that only ended snapshots saw.
#[test]
fn one_old_snapshot_keeps_what_it_sees_and_little_else() {
    let store: Store<u64, u64> = Store::with_options(Options::new().background_collector(false));
    store.insert(&1, &0).unwrap();
    let old = store.snapshot();
    for round in 1..1000 {
        store.insert(&1, &round).unwrap();
        drop(store.snapshot());
    }
    store.collect_garbage();
    let dead = store.statistics().dead;
    assert!(dead < 40, "{dead} undo records for one key and one snapshot");
    assert_eq!((old.get(&1), store.get(&1)), (Some(0), Some(999)));
    drop(old);
    store.collect_garbage();
    assert_eq!(store.statistics().dead, 0);
    store.check_invariants().unwrap();
}

/// A record that marks the key as absent is kept, while a younger record above it is freed.
#[test]
fn a_key_absent_in_the_oldest_snapshot_stays_absent_there() {
    let options = Options::new().background_collector(false).sizes(2, 3);
    let store: Store<u64, u64> = Store::with_options(options);
    let old = store.snapshot();
    store.insert(&1, &10).unwrap();
    store.remove(&1).unwrap();
    let middle = store.snapshot();
    store.insert(&1, &11).unwrap();
    drop(middle);
    for round in 0..20 {
        store.insert(&2, &round).unwrap();
        let _young = store.snapshot();
        store.insert(&2, &round).unwrap();
        assert_eq!((old.get(&1), old.len(), old.iter().count()), (None, 0, 0), "round {round}");
    }
}

/// The closure of a conditional write is told the deadline, too.
#[test]
fn a_conditional_write_keeps_the_deadline() {
    let store: Store<[u8], [u8]> = Store::with_options(Options::new().clock(|| 5));
    store.insert_until(b"k", b"v", 10).unwrap();
    store
        .modify_entry(b"k", |found| {
            let found = found.unwrap();
            Change::Put(Put { value: b"w".to_vec(), expires_at: found.expires_at })
        })
        .unwrap();
    assert_eq!(store.expiry(b"k"), Some(Some(10)));
    assert_eq!(store.get(b"k"), Some(b"w".to_vec()));
}

/// A store that is built bottom-up from parts equals one into which everything was inserted.
#[test]
fn a_store_from_sorted_parts() {
    let key = |n: u64| (n * 3).to_be_bytes().to_vec();
    let part = |from: u64, to: u64| (from..to).map(|n| (key(n), value_of(n))).collect::<Vec<_>>();
    fn value_of(n: u64) -> Vec<u8> {
        <[u8] as TestValue>::dress(n)
    }
    let parts = vec![part(0, 1000), Vec::new(), part(1000, 1001), part(1001, 5000)];
    let store = Store::<[u8], [u8]>::from_sorted(Options::new(), parts).unwrap();
    assert_eq!(store.check_invariants().unwrap().entries, 5000);
    let snapshot = store.snapshot();
    assert_eq!(snapshot.len(), 5000);
    for n in 0..5000 {
        assert_eq!(store.get(&key(n)), Some(value_of(n)));
        assert_eq!(store.remove(&key(n)), Ok(Some(value_of(n))));
        store.insert(&key(n + 7000), b"new").unwrap();
    }
    assert!(snapshot.iter().eq((0..5000).map(|n| (key(n), value_of(n)))));
    drop(snapshot);
    store.collect_garbage();
    assert_eq!((store.check_invariants().unwrap().entries, store.statistics().dead), (5000, 0));
    // Entries that are not sorted, or need too much memory, are refused and freed.
    let refused = |parts| Store::<[u8], [u8]>::from_sorted(Options::new(), parts).err();
    let twice = vec![(key(1), value_of(1)), (key(1), value_of(1))];
    let not_sorted = |part, at| Some(ordna_base::Error::NotSorted { part, at });
    assert_eq!(refused(vec![twice]), not_sorted(0, 1));
    assert_eq!(refused(vec![part(0, 9), part(8, 12)]), not_sorted(1, 0));
    let limit = Options::new().memory_limit(1000);
    let exceeded = Store::<[u8], [u8]>::from_sorted(limit, vec![part(0, 100)]).err();
    assert_eq!(exceeded, Some(ordna_base::Error::MemoryLimit { limit: 1000 }));
    let empty = Store::<u64, u64>::from_sorted(Options::new(), Vec::<Vec<(u64, u64)>>::new());
    assert_eq!(empty.unwrap().check_invariants().unwrap().entries, 0);
}

/// If parts exceed the limit, they are not read to their ends.
#[test]
fn a_store_from_sorted_parts_stops_at_its_limit() {
    use std::sync::atomic::{AtomicU64, Ordering};
    let read = AtomicU64::new(0);
    let count = |key: u64| {
        read.fetch_add(1, Ordering::Relaxed);
        (key, key)
    };
    let parts = (0..8).map(|part| (part * 100_000..(part + 1) * 100_000).map(count)).collect();
    let limit = Options::new().memory_limit(1 << 20);
    let refused = Store::<u64, u64>::from_sorted(limit, parts).err();
    assert_eq!(refused, Some(ordna_base::Error::MemoryLimit { limit: 1 << 20 }));
    // An entry takes at least 16 bytes.
    let read = read.into_inner();
    assert!(read < (1 << 20) / 16 + 1000, "{read} were read");
}

/// Even a large number of parts is built with no more threads than the machine can run at once.
#[test]
fn a_store_from_many_sorted_parts_starts_few_threads() {
    use std::collections::HashSet;
    use std::sync::Mutex;
    let threads = Mutex::new(HashSet::new());
    let note = |key: u64| {
        threads.lock().unwrap().insert(std::thread::current().id());
        (key, key)
    };
    let parts = (0..1000_u64).map(|part| (part * 10..(part + 1) * 10).map(note)).collect();
    let store = Store::<u64, u64>::from_sorted(Options::new(), parts).unwrap();
    assert_eq!(store.check_invariants().unwrap().entries, 10_000);
    assert!(store.range(..).map(|(key, _)| key).eq(0..10_000));
    let most = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = threads.into_inner().unwrap().len();
    assert!(threads <= most, "{threads} threads");
}

/// Data that is attached to a snapshot stays with it and its clones.
#[test]
fn a_snapshot_carries_what_its_taker_gave_it() {
    let store: Store<u64, u64> = Store::new();
    store.insert(&1, &10).unwrap();
    let plain = store.snapshot();
    let marked = store.snapshot_with(b"position 7".as_slice());
    store.insert(&1, &11).unwrap();
    let clone = marked.clone();
    drop(marked);
    assert_eq!((plain.metadata(), clone.metadata()), (b"".as_slice(), b"position 7".as_slice()));
    assert_eq!(clone.get(&1), Some(10));
    assert!(plain.taken() <= clone.taken());
}

/// A state that only an ended snapshot saw is not kept for a later snapshot.
#[test]
fn a_state_goes_with_the_last_snapshot_that_sees_it() {
    let store: Store<u64, u64> = Store::with_options(Options::new().background_collector(false));
    store.insert(&1, &1).unwrap();
    let first = store.snapshot();
    store.insert(&1, &2).unwrap();
    let second = store.snapshot();
    assert_eq!((first.get(&1), second.get(&1)), (Some(1), Some(2)));
    drop(first);
    store.collect_garbage();
    assert_eq!(store.statistics().dead, 0);
    assert_eq!(second.get(&1), Some(2));
}

/// When an entry is removed, its deadline is removed from the list, even if a snapshot still sees
/// the entry.
#[test]
fn a_deadline_is_forgotten_with_its_entry() {
    let store: Store<u64, u64> =
        Store::with_options(Options::new().background_collector(false).clock(|| 5));
    for under_a_snapshot in [false, true] {
        store.insert_until(&1, &1, 10).unwrap();
        store.insert_until(&2, &1, 10).unwrap();
        assert_eq!(store.statistics().expiring.0, 2);
        let snapshot = under_a_snapshot.then(|| store.snapshot());
        store.insert(&1, &2).unwrap();
        store.remove(&2).unwrap();
        assert_eq!(store.statistics().expiring, (0, 0), "snapshot: {under_a_snapshot}");
        drop(snapshot);
    }
}
