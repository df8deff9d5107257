//! Random sequences of all operations at a memory limit, with snapshots and deadlines. Groups and
//! bounds have the sizes at which the code takes another path. A refused operation must have no
//! effect, and all memory must be given back at the end.

use std::borrow::Borrow;
use std::fmt::Debug;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use imbl::OrdMap;
use ordna::{Options, Put, Snapshot, Store, Write};
use ordna_base::{Change, Direction, Error, Key, OrderedIndex};
use ordna_testkit::kinds::{TestKey, TestValue};
use ordna_testkit::random::Random;

const SNAPSHOTS: usize = 4;
const STEPS: u64 = 60;
/// Sizes of groups: those around the number of keys that are searched for together, and around the
/// number that is recorded together.
const GROUPS: [u64; 12] = [0, 1, 2, 15, 16, 17, 31, 32, 33, 255, 256, 257];
/// Lengths of values: for a small record, one with a buffer, and one that is retired at once.
const LENGTHS: [usize; 8] = [0, 8, 100, 255, 256, 1000, 65_500, 65_536];

/// Makes values of a given length.
trait OfLen: TestValue {
    fn of_len(word: u64, len: usize) -> Self::Owned;
}

impl OfLen for u64 {
    fn of_len(word: u64, _: usize) -> u64 {
        word
    }
}

impl OfLen for [u8] {
    fn of_len(word: u64, len: usize) -> Vec<u8> {
        word.to_le_bytes().iter().copied().cycle().take(len).collect()
    }
}

type Entry<V> = (Arc<<V as ToOwned>::Owned>, Option<u64>);
type State<K, V> = OrdMap<<K as ToOwned>::Owned, Entry<V>>;
type Limits<K> = (Bound<<K as ToOwned>::Owned>, Bound<<K as ToOwned>::Owned>);
/// The value and the deadline of a write.
type New<V> = (<V as ToOwned>::Owned, Option<u64>);
type Pairs<K, V> = Vec<(<K as ToOwned>::Owned, <V as ToOwned>::Owned)>;

struct Machine<K: TestKey + ?Sized, V: OfLen + ?Sized>
where
    K::Owned: Clone,
{
    store: Store<K, V>,
    hands: Arc<AtomicU64>,
    state: State<K, V>,
    snapshots: Vec<(Snapshot<K, V>, State<K, V>)>,
    random: Random,
    keys: u64,
    refused: usize,
}

impl<K, V> Machine<K, V>
where
    K: TestKey + ?Sized,
    V: OfLen + ?Sized,
    K::Owned: Debug,
    V::Owned: Debug,
{
    fn new(seed: u64, limits: &[usize], keys: u64) -> Self {
        let mut random = Random::new(seed);
        let hands = Arc::new(AtomicU64::new(1000));
        let clock = Arc::clone(&hands);
        let slots = [2, 3, 4, 8, 56][random.below(5) as usize];
        let options = Options::new().background_collector(false).sizes(slots, 3);
        let options = options.clock(move || clock.load(Ordering::Relaxed));
        let options = match limits.get(random.below(limits.len() as u64 + 1) as usize) {
            Some(limit) => options.memory_limit(*limit),
            None => options,
        };
        let state = State::<K, V>::new();
        let store = Store::with_options(options.clone());
        let mut machine =
            Self { store, hands, state, snapshots: Vec::new(), random, keys, refused: 0 };
        if machine.random.below(3) == 0 {
            machine.load(options);
        }
        machine
    }

    /// Begins with a store that is built from sorted entries, if there is enough memory for it.
    fn load(&mut self, options: Options) {
        let entries = (0..self.random.below(self.keys)).map(|_| {
            let value = Arc::new(V::of_len(self.random.next_u64(), 8));
            (self.key(), (value, self.deadline()))
        });
        let state: State<K, V> = entries.collect();
        let parts: Vec<_> = state
            .iter()
            .map(|(key, (value, deadline))| {
                (key.clone(), Put { value: V::Owned::clone(value), expires_at: *deadline })
            })
            .collect();
        let cut = self.random.below(parts.len() as u64 + 1) as usize;
        let parts = vec![parts[..cut].to_vec(), parts[cut..].to_vec()];
        if let Ok(store) = Store::from_sorted_entries(options, parts) {
            (self.store, self.state) = (store, state);
        }
    }

    fn now(&self) -> u64 {
        self.store.now()
    }

    fn key(&mut self) -> K::Owned {
        K::number(self.random.below(self.keys))
    }

    fn value(&mut self) -> V::Owned {
        let len = match self.random.below(12) {
            0 => LENGTHS[self.random.below(LENGTHS.len() as u64) as usize],
            1 => 200 << 10,
            _ => self.random.below(40) as usize,
        };
        V::of_len(self.random.below(1 << 40), len)
    }

    fn deadline(&mut self) -> Option<u64> {
        let now = self.now();
        match self.random.below(8) {
            0 => Some(u64::MAX),
            1 => Some(u64::MAX - 1),
            2 => Some(0),
            3 => Some(now),
            4 => Some(now + 1 + self.random.below(20)),
            _ => None,
        }
    }

    fn group(&mut self) -> u64 {
        let most = self.keys * 2;
        GROUPS[self.random.below(GROUPS.len() as u64) as usize].min(most)
    }

    /// Returns a bound at a key, or at a fence, which may lie between two keys: the fence between
    /// two keys is as short as possible.
    fn bound(&mut self) -> Bound<K::Owned> {
        let key = self.key();
        let key = match self.random.below(3) {
            0 => key,
            // The fence between two keys is the shortest prefix of the upper one that is greater
            // than the lower one.
            1 => {
                let below = self.state.range(..key.clone()).next_back();
                below.map_or_else(|| key.clone(), |(below, _)| divider::<K>(below, &key))
            }
            _ => {
                let points = self.store.partition_points(1 + self.random.below(40) as usize);
                let at = self.random.below(points.len() as u64 + 1) as usize;
                points.get(at).cloned().unwrap_or(key)
            }
        };
        match self.random.below(5) {
            0 => Bound::Unbounded,
            1 | 2 => Bound::Included(key),
            _ => Bound::Excluded(key),
        }
    }

    fn limits(&mut self) -> Limits<K> {
        (self.bound(), self.bound())
    }

    /// Returns the entry as readers see it now.
    fn shown(&self, key: &K::Owned) -> Option<Entry<V>> {
        let now = self.now();
        self.state.get(key).cloned().filter(|(_, deadline)| deadline.is_none_or(|at| at > now))
    }

    fn visible(&self) -> State<K, V> {
        let now = self.now();
        let shown =
            |(_, (_, deadline)): &(&K::Owned, &Entry<V>)| deadline.is_none_or(|at| at > now);
        let shown = self.state.iter().filter(shown);
        shown.map(|(key, entry)| (key.clone(), entry.clone())).collect()
    }

    fn put(&mut self, key: K::Owned, value: V::Owned, deadline: Option<u64>) {
        self.state.insert(key, (Arc::new(value), deadline));
    }

    /// Makes a write that the memory limit may refuse. If the store accepts it, it is applied to
    /// the model, too.
    fn write(
        &mut self,
        told: &str,
        write: impl FnOnce(&Store<K, V>) -> Result<(), Error>,
        model: impl FnOnce(&mut Self),
    ) {
        // With a collection before it, a refusal must not change any count.
        let settled = self.random.below(2) == 0;
        if settled {
            self.store.collect_garbage();
        }
        let before = self.store.statistics();
        match write(&self.store) {
            Ok(()) => model(self),
            Err(Error::MemoryLimit { .. }) => {
                self.refused += 1;
                let after = self.store.statistics();
                // Without one, the write may have removed expired keys, which a snapshot may keep.
                if settled {
                    assert_eq!(after.bytes, before.bytes, "{told}: bytes of a refused write");
                    assert_eq!(after.expiring, before.expiring, "{told}: deadlines of a refusal");
                    assert_eq!(after.dead, before.dead, "{told}: undo records of a refused write");
                }
            }
            Err(other) => panic!("{told}: {other}"),
        }
    }

    fn step(&mut self, told: &str) {
        match self.random.below(20) {
            0..4 => {
                let (key, value, deadline) = (self.key(), self.value(), self.deadline());
                let put = Put { value: value.clone(), expires_at: deadline };
                let to = key.clone();
                self.write(
                    &format!("{told}: put"),
                    |store| store.modify_entry(to.borrow(), |_| Change::Put(put.clone())),
                    |model| model.put(key, value, deadline),
                );
            }
            4 => {
                let (key, deadline) = (self.key(), self.deadline());
                let found = self.shown(&key);
                let (to, is_there) = (key.clone(), found.is_some());
                self.write(
                    &format!("{told}: set_expiry"),
                    |store| {
                        let present = store.set_expiry(to.borrow(), deadline)?;
                        assert_eq!(present, is_there, "set_expiry");
                        Ok(())
                    },
                    |model| {
                        if let Some((value, _)) = found {
                            model.state.insert(key, (value, deadline));
                        }
                    },
                );
            }
            5 | 6 => {
                let key = self.key();
                let right = self.shown(&key).map(|(value, _)| V::Owned::clone(&value));
                self.state.remove(&key);
                assert_eq!(self.store.remove(&key), Ok(right), "{told}: remove");
            }
            7 => {
                let limits = self.limits();
                let right = within::<K, V>(&self.visible(), &limits).len();
                self.state = outside::<K, V>(&self.state, &limits);
                let (low, high) = borrowed::<K>(&limits);
                assert_eq!(
                    self.store.remove_range((low, high)).unwrap(),
                    right,
                    "{told}: {limits:?}"
                );
            }
            8..11 => self.batch(told),
            11 => self.insert_many(told),
            12 => {
                let keys: Vec<_> = (0..self.group()).map(|_| self.key()).collect();
                let mut right = 0;
                for key in &keys {
                    right += usize::from(self.shown(key).is_some());
                    self.state.remove(key);
                }
                assert_eq!(self.store.remove_many(&keys), Ok(right), "{told}: remove_many");
            }
            13..15 => {
                if self.snapshots.len() < SNAPSHOTS {
                    let snapshot = self.store.snapshot();
                    self.snapshots.push((snapshot, self.visible()));
                }
            }
            15 => {
                if !self.snapshots.is_empty() {
                    let at = self.random.below(self.snapshots.len() as u64) as usize;
                    self.snapshots.swap_remove(at);
                }
            }
            16 => {
                self.hands.fetch_add(self.random.below(8), Ordering::Relaxed);
            }
            17 => {
                self.store.collect_garbage();
                self.state = self.visible();
                assert_eq!(self.store.statistics().items, self.state.len(), "{told}: items");
            }
            _ => self.read(told),
        }
    }

    /// A batch is applied completely or not at all.
    fn batch(&mut self, told: &str) {
        let writes: Vec<(K::Owned, Option<New<V>>)> = (0..self.group())
            .map(|_| {
                let put = (self.random.below(4) > 0).then(|| (self.value(), self.deadline()));
                (self.key(), put)
            })
            .collect();
        let told = format!("{told}: a batch of {}", writes.len());
        let batch: Vec<Write<'_, K, V>> = writes
            .iter()
            .map(|(key, put)| match put {
                Some((value, expires_at)) => {
                    let put = Put { value: value.borrow(), expires_at: *expires_at };
                    Write::Put(key.borrow(), put)
                }
                None => Write::Remove(key.borrow()),
            })
            .collect();
        self.write(
            &told,
            |store| store.write_batch(&batch),
            |model| {
                for (key, put) in &writes {
                    match put {
                        Some((value, deadline)) => {
                            model.put(key.clone(), value.clone(), *deadline);
                        }
                        None => _ = model.state.remove(key),
                    }
                }
            },
        );
    }

    /// Of a group of inserts, those before the refused one are applied.
    fn insert_many(&mut self, told: &str) {
        let pairs: Pairs<K, V> = (0..self.group()).map(|_| (self.key(), self.value())).collect();
        let before = self.visible();
        match self.store.insert_many(&pairs) {
            Ok(absent) => {
                let mut right = 0;
                for (key, value) in pairs {
                    right += usize::from(self.shown(&key).is_none());
                    self.put(key, value, None);
                }
                assert_eq!(absent, right, "{told}: insert_many of {}", before.len());
            }
            Err(Error::MemoryLimit { .. }) => {
                self.refused += 1;
                let mut pairs = pairs.into_iter();
                // The error does not say how many were applied, so this is determined from the
                // latest state.
                while self.latest() != listed::<K, V>(&self.visible()) {
                    let (key, value) = pairs.next().expect("a prefix of the group is done");
                    self.put(key, value, None);
                }
            }
            Err(other) => panic!("{told}: {other}"),
        }
    }

    fn latest(&self) -> Pairs<K, V> {
        let all = (Bound::<&K>::Unbounded, Bound::Unbounded);
        OrderedIndex::range(&self.store, all).collect()
    }

    /// Reads the latest state and a snapshot: within random bounds, in groups, and by position.
    fn read(&mut self, told: &str) {
        let limits = self.limits();
        let (low, high) = borrowed::<K>(&limits);
        let latest = self.visible();
        let right = within::<K, V>(&latest, &limits);
        let told = format!("{told}: {limits:?}");
        for direction in [Direction::Ascending, Direction::Descending] {
            let limit = match self.random.below(3) {
                0 => usize::MAX,
                1 => self.group() as usize,
                _ => 1 + self.random.below(60) as usize,
            };
            let mut found = Vec::new();
            let entry = |key: &K, value: &V| (key.to_owned(), value.to_owned());
            OrderedIndex::visit(&self.store, low, high, direction, |key, value| {
                found.push(entry(key, value));
                if found.len() < limit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            });
            let mut right = right.clone();
            if direction == Direction::Descending {
                right.reverse();
            }
            right.truncate(limit.max(1));
            assert_eq!(found, right, "{told} {direction:?}");
        }
        assert_eq!(self.store.count(low, high), right.len(), "{told}: count");
        let position = self.random.below(latest.len() as u64 + 1) as usize;
        assert_eq!(
            self.store.select(position),
            listed::<K, V>(&latest).get(position).cloned(),
            "{told}: select"
        );
        let keys: Vec<_> = (0..self.group()).map(|_| self.key()).collect();
        let mut found = Vec::new();
        self.store.get_many(&keys, &mut found);
        let right = |key: &K::Owned| latest.get(key).map(|(value, _)| V::Owned::clone(value));
        assert_eq!(found, keys.iter().map(right).collect::<Vec<_>>(), "{told}: get_many");
        for key in &keys {
            let right = self.shown(key).map(|(_, deadline)| deadline.filter(|at| *at < u64::MAX));
            assert_eq!(self.store.expiry(key.borrow()), right, "{told}: {key:?}");
        }
    }

    /// Checks that every snapshot is unchanged, and that the latest state equals the model.
    fn check(&self, told: &str) {
        assert_eq!(self.latest(), listed::<K, V>(&self.visible()), "{told}: the latest state");
        for (at, (snapshot, state)) in self.snapshots.iter().enumerate() {
            let right = listed::<K, V>(state);
            assert!(snapshot.iter().eq(right.iter().cloned()), "{told}: snapshot {at}");
            assert!(snapshot.iter().rev().eq(right.iter().rev().cloned()), "{told}: {at} down");
            assert_eq!(snapshot.len(), right.len(), "{told}: snapshot {at}");
        }
    }

    /// Checks that all memory is given back.
    fn end(mut self, told: &str) {
        self.store.check_invariants().unwrap_or_else(|broken| panic!("{told}: {broken}"));
        self.snapshots.clear();
        self.store.remove_range(..).unwrap();
        self.store.collect_garbage();
        let left = self.store.statistics();
        assert_eq!((left.bytes, left.dead, left.items, left.expiring), (0, 0, 0, (0, 0)), "{told}");
        self.store.check_invariants().unwrap_or_else(|broken| panic!("{told}: {broken}"));
    }
}

/// Returns the shortest key that is greater than `below` and at most `above`.
fn divider<K: Key + ?Sized>(below: &K::Owned, above: &K::Owned) -> K::Owned {
    let (below, above): (&K, &K) = (below.borrow(), above.borrow());
    let common = below.tail().iter().zip(above.tail()).take_while(|(one, other)| one == other);
    if K::HEAD_IS_KEY { above.to_owned() } else { above.prefix(common.count() + 1) }
}

fn borrowed<K: Key + ?Sized>(limits: &Limits<K>) -> (Bound<&K>, Bound<&K>) {
    (limits.0.as_ref().map(Borrow::borrow), limits.1.as_ref().map(Borrow::borrow))
}

fn is_within<K: Key + ?Sized>(key: &K::Owned, limits: &Limits<K>) -> bool {
    let above = match &limits.0 {
        Bound::Included(low) => key >= low,
        Bound::Excluded(low) => key > low,
        Bound::Unbounded => true,
    };
    above
        && match &limits.1 {
            Bound::Included(high) => key <= high,
            Bound::Excluded(high) => key < high,
            Bound::Unbounded => true,
        }
}

fn within<K, V>(state: &State<K, V>, limits: &Limits<K>) -> Pairs<K, V>
where
    K: Key + ?Sized,
    V: OfLen + ?Sized,
{
    let entries = state.iter().filter(|(key, _)| is_within::<K>(key, limits));
    entries.map(|(key, (value, _))| (key.clone(), V::Owned::clone(value))).collect()
}

fn outside<K, V>(state: &State<K, V>, limits: &Limits<K>) -> State<K, V>
where
    K: Key + ?Sized,
    V: OfLen + ?Sized,
{
    let entries = state.iter().filter(|(key, _)| !is_within::<K>(key, limits));
    entries.map(|(key, entry)| (key.clone(), entry.clone())).collect()
}

fn listed<K, V>(state: &State<K, V>) -> Pairs<K, V>
where
    K: Key + ?Sized,
    V: OfLen + ?Sized,
{
    within::<K, V>(state, &(Bound::Unbounded, Bound::Unbounded))
}

fn run<K, V>(limits: &[usize], keys: u64)
where
    K: TestKey + ?Sized,
    V: OfLen + ?Sized,
    K::Owned: Debug,
    V::Owned: Debug,
{
    // With a sanitizer a sequence takes ten times as long.
    let cases = if std::env::var_os("ORDNA_SANITIZED").is_some() { 15 } else { CASES };
    let mut refused = 0;
    for seed in 0..cases {
        let mut machine = Machine::<K, V>::new(seed, limits, keys);
        for step in 0..STEPS {
            let told = format!("seed {seed}, step {step}");
            machine.step(&told);
            machine.check(&told);
        }
        refused += machine.refused;
        machine.end(&format!("seed {seed}, at the end"));
    }
    assert!(refused > cases as usize / 4, "the limit refused {refused} operations");
}

/// Number of sequences of each kind.
const CASES: u64 = 60;

#[test]
fn words_at_a_limit() {
    run::<u64, u64>(&[1 << 10, 18 << 10, 20 << 10, 24 << 10], 150);
}

#[test]
fn bytes_at_a_limit() {
    run::<[u8], [u8]>(&[20 << 10, 40 << 10, 300 << 10, 1 << 20], 100);
}

#[test]
fn mixed_kinds_at_a_limit() {
    run::<[u8], u64>(&[2 << 10, 18 << 10, 24 << 10], 120);
    run::<u64, [u8]>(&[20 << 10, 300 << 10, 1 << 20], 100);
}
