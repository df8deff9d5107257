//! Random histories. The last operation is held at each named stop within a structural change while
//! a reader runs. Snapshots must contain all of an operation or nothing.
#![cfg(debug_assertions)]

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ordna::{Options, Put, Snapshot, Store, Write};
use ordna_base::sync::schedule::Schedule;
use ordna_base::{Direction, OrderedIndex};
use ordna_testkit::kinds::{TestKey, TestValue};
use ordna_testkit::random::Random;

/// The stops at which the last operation is held. Each is within a change of several leaves, lists
/// or nodes.
const STOPS: [&str; 17] = [
    "tree.split.linked",
    "tree.shift.before_lower",
    "tree.merge.before_remove",
    "tree.range.leaf_done",
    "tree.write.before_push",
    "tree.write.pushed",
    "search.insert.locked",
    "search.lower.locked",
    "search.merge.locked",
    "undo.collect.horizon_read",
    "undo.prune.relinked",
    "undo.push.before_dead",
    "undo.range_version.stored",
    "undo.range_version.linked",
    "undo.free.before_chunks",
    "undo.free.chunks_gone",
    "store.batch.between_writes",
];

const KEYS: u64 = 90;
/// A reader that waits for neither a lock nor an epoch has finished after this time. If not, it
/// waits for a mutex.
const A_MOMENT: Duration = Duration::from_millis(5);

type Entry = (u64, Option<u64>);
/// Values by the rank of the key.
type State = BTreeMap<usize, Entry>;

#[derive(Debug, Clone)]
enum Operation {
    Put(usize, u64, Option<u64>),
    Remove(usize),
    RemoveRange(usize, usize),
    Batch(Vec<(usize, Option<u64>)>),
    Collect,
}

#[derive(Debug, Clone, Copy)]
enum Read {
    Up,
    Down,
    Count,
    Select(usize),
    Get(usize),
}

/// Rank and value of each entry that a reader sees, in order.
type Shown = Vec<(usize, u64)>;
type Limits = (Bound<usize>, Bound<usize>);

struct Case<K: TestKey + ?Sized, V: TestValue + ?Sized> {
    store: Store<K, V>,
    keys: Vec<K::Owned>,
    time: Arc<AtomicU64>,
    state: State,
    snapshots: Vec<(Snapshot<K, V>, Shown)>,
    random: Random,
}

impl<K, V> Case<K, V>
where
    K: TestKey + ?Sized,
    V: TestValue + ?Sized,
{
    /// Creates a store with a random history.
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let time = Arc::new(AtomicU64::new(1000));
        let clock = Arc::clone(&time);
        let slots = [2, 3, 4, 8][random.below(4) as usize];
        let options = Options::new().background_collector(false).sizes(slots, 3);
        let store = Store::with_options(options.clock(move || clock.load(Ordering::Relaxed)));
        let mut keys: Vec<K::Owned> = (0..KEYS).map(K::number).collect();
        keys.sort();
        let state = State::new();
        let mut case = Self { store, keys, time, state, snapshots: Vec::new(), random };
        // Leaves that are filled in ascending order stay full, and the last one is appended to.
        let filled = case.random.below(KEYS - 10) as usize;
        for rank in (0..filled).step_by(2) {
            case.apply(&Operation::Put(rank, rank as u64, None));
        }
        for _ in 0..case.random.below(30) {
            if case.random.below(6) == 0 && case.snapshots.len() < 4 {
                let snapshot = case.store.snapshot();
                case.snapshots.push((snapshot, visible(&case.state, case.now())));
            } else if case.random.below(12) == 0 && !case.snapshots.is_empty() {
                let at = case.random.below(case.snapshots.len() as u64) as usize;
                case.snapshots.swap_remove(at);
            } else {
                let operation = case.operation();
                case.apply(&operation);
            }
        }
        if case.random.below(4) > 0 {
            case.shorten();
        }
        case
    }

    /// Removes the last keys while a snapshot exists, and fills their leaf with others.
    fn shorten(&mut self) {
        self.snapshots.push((self.store.snapshot(), visible(&self.state, self.now())));
        for _ in 0..=self.random.below(3) {
            let last = self.last();
            self.apply(&Operation::Remove(last));
        }
        for _ in 0..self.random.below(4) {
            let below = self.last().saturating_sub(1 + self.rank() % 4 * 2);
            self.apply(&Operation::Put(below, 7, None));
        }
    }

    /// Returns the largest rank in use.
    fn last(&self) -> usize {
        self.state.last_key_value().map_or(0, |(rank, _)| *rank)
    }

    fn now(&self) -> u64 {
        self.time.load(Ordering::Relaxed)
    }

    fn rank(&mut self) -> usize {
        self.random.below(KEYS) as usize
    }

    /// Returns an operation that may reach the stop.
    fn operation_for(&mut self, stop: &str) -> Operation {
        loop {
            let operation = self.operation();
            let may = match stop {
                // A new last leaf is linked before other threads know it.
                "tree.split.linked" => {
                    matches!(operation, Operation::Put(rank, ..) if rank > self.last())
                }
                "tree.range.leaf_done" | "search.merge.locked" => {
                    matches!(operation, Operation::RemoveRange(..))
                }
                "store.batch.between_writes" => matches!(operation, Operation::Batch(_)),
                "tree.merge.before_remove" => {
                    !matches!(operation, Operation::Put(..) | Operation::Collect)
                }
                "undo.free.before_chunks" | "undo.free.chunks_gone" => {
                    matches!(operation, Operation::Collect)
                }
                _ => matches!(operation, Operation::Put(..) | Operation::Batch(_)),
            };
            if may || self.random.below(16) == 0 {
                return operation;
            }
        }
    }

    fn operation(&mut self) -> Operation {
        let last = self.last();
        let deadline = match self.random.below(8) {
            0 => Some(self.now() + self.random.below(3)),
            1 => Some(u64::MAX),
            _ => None,
        };
        let word = self.random.below(1 << 40);
        match self.random.below(13) {
            // Keys are removed from the end, and others appended there.
            0 | 1 => Operation::Remove(last),
            2..5 => Operation::Put((last + 1).min(KEYS as usize - 1), word, deadline),
            5 => Operation::Put(last.saturating_sub(1 + self.rank() % 4), word, deadline),
            6 | 7 => Operation::Put(self.rank(), word, deadline),
            8 => Operation::Remove(self.rank()),
            9 => {
                let (one, other) = (self.rank(), self.rank());
                Operation::RemoveRange(one.min(other), one.max(other))
            }
            10 | 11 => {
                let count = [1, 2, 5, 15, 16, 17, 33][self.random.below(7) as usize];
                let write = |random: &mut Random| {
                    let word = (random.below(3) > 0).then(|| random.below(1 << 40));
                    (random.below(KEYS) as usize, word)
                };
                Operation::Batch((0..count).map(|_| write(&mut self.random)).collect())
            }
            _ => Operation::Collect,
        }
    }

    /// Applies the operation to the store and the model.
    fn apply(&mut self, operation: &Operation) {
        run(&self.store, &self.keys, operation);
        change(&mut self.state, operation);
    }

    fn limits(&mut self) -> Limits {
        let (one, other) = (self.rank(), self.rank());
        let bound = |random: &mut Random, rank| match random.below(4) {
            0 => Bound::Included(rank),
            1 => Bound::Excluded(rank),
            _ => Bound::Unbounded,
        };
        (bound(&mut self.random, one.min(other)), bound(&mut self.random, one.max(other) + 1))
    }

    fn read(&mut self) -> (Read, Limits) {
        let read = match self.random.below(8) {
            0 => Read::Up,
            1 => Read::Count,
            2 => Read::Select(self.rank()),
            3 => Read::Get(self.rank()),
            _ => Read::Down,
        };
        (read, self.limits())
    }

    /// Holds a random operation at the stop while a snapshot is read. Returns whether the operation
    /// reached the stop.
    fn meet(mut self, stop: &'static str, told: &str) -> bool {
        let operation = self.operation_for(stop);
        let passes = self.random.below(6).saturating_sub(3) as usize;
        let (read, limits) = self.read();
        let before = visible(&self.state, self.now());
        change(&mut self.state, &operation);
        let after = visible(&self.state, self.now());
        // In half of the cases this is the youngest snapshot. An index past the last snapshot
        // stands for the latest state.
        let youngest = self.snapshots.len().saturating_sub(1);
        let at = match self.random.below(2) {
            0 => youngest,
            _ => self.random.below(self.snapshots.len() as u64 + 1) as usize,
        };
        let told = format!("{told}, {stop} after {passes}: {operation:?}, {read:?} {limits:?}");
        let schedule = Schedule::new();
        schedule.hold_after("writer", stop, passes);
        schedule.hold("reader", "sync.waits");
        let (store, keys) = (&self.store, &self.keys);
        let snapshot = self.snapshots.get(at).map(|(snapshot, _)| snapshot);
        let (met, fresh, found) = std::thread::scope(|scope| {
            let writer = scope.spawn(|| schedule.enroll("writer", || run(store, keys, &operation)));
            while !writer.is_finished() && !schedule.is_held("writer", stop) {
                std::thread::yield_now();
            }
            let met = schedule.is_held("writer", stop);
            // A snapshot taken now must contain all of the operation or nothing.
            let fresh = store.snapshot();
            let reader = scope.spawn(|| {
                schedule.enroll("reader", || match snapshot {
                    Some(snapshot) => of_snapshot(snapshot, keys, read, limits),
                    None => of_latest(store, keys, read, limits),
                })
            });
            let end = Instant::now() + A_MOMENT;
            while met
                && !reader.is_finished()
                && !schedule.is_held("reader", "sync.waits")
                && Instant::now() < end
            {
                std::thread::yield_now();
            }
            schedule.release("writer", stop);
            schedule.release("reader", "sync.waits");
            writer.join().unwrap();
            (met, fresh, reader.join().unwrap())
        });
        match self.snapshots.get(at) {
            Some((_, right)) => assert_eq!(found, of_model(right, read, limits), "{told}"),
            None => {
                let (one, other) =
                    (of_model(&before, read, limits), of_model(&after, read, limits));
                check_latest(read, &found, &one, &other, &told);
            }
        }
        let held = of_snapshot(&fresh, keys, Read::Up, (Bound::Unbounded, Bound::Unbounded));
        assert!(held == before || held == after, "{told}: {held:?}, {before:?} or {after:?}");
        self.snapshots.push((fresh, held));
        self.check(&told);
        met
    }

    /// Checks that all reads return the right entries, and that all memory is given back at the
    /// end.
    fn check(self, told: &str) {
        let all = (Bound::Unbounded, Bound::Unbounded);
        for (snapshot, right) in &self.snapshots {
            for read in [Read::Up, Read::Down, Read::Count] {
                let found = of_snapshot(snapshot, &self.keys, read, all);
                assert_eq!(found, of_model(right, read, all), "{told}: {read:?}");
            }
            for rank in 0..KEYS as usize {
                let found = of_snapshot(snapshot, &self.keys, Read::Get(rank), all);
                assert_eq!(found, of_model(right, Read::Get(rank), all), "{told}: get {rank}");
            }
        }
        let latest = visible(&self.state, self.now());
        for read in [Read::Up, Read::Down, Read::Count] {
            let found = of_latest(&self.store, &self.keys, read, all);
            assert_eq!(found, of_model(&latest, read, all), "{told}: {read:?} of the latest");
        }
        self.store.check_invariants().unwrap_or_else(|broken| panic!("{told}: {broken}"));
        drop(self.snapshots);
        self.store.remove_range(..).unwrap();
        self.store.collect_garbage();
        let left = self.store.statistics();
        assert_eq!((left.bytes, left.dead, left.items, left.expiring), (0, 0, 0, (0, 0)), "{told}");
    }
}

/// Returns the entries that have not expired.
fn visible(state: &State, now: u64) -> Shown {
    let shown = |(_, (_, deadline)): &(&usize, &Entry)| deadline.is_none_or(|at| at > now);
    state.iter().filter(shown).map(|(rank, (word, _))| (*rank, *word)).collect()
}

fn change(state: &mut State, operation: &Operation) {
    match operation {
        Operation::Put(rank, word, deadline) => _ = state.insert(*rank, (*word, *deadline)),
        Operation::Remove(rank) => _ = state.remove(rank),
        Operation::RemoveRange(low, high) => state.retain(|rank, _| rank < low || rank >= high),
        Operation::Batch(writes) => {
            for (rank, word) in writes {
                match word {
                    Some(word) => _ = state.insert(*rank, (*word, None)),
                    None => _ = state.remove(rank),
                }
            }
        }
        Operation::Collect => {}
    }
}

fn run<K, V>(store: &Store<K, V>, keys: &[K::Owned], operation: &Operation)
where
    K: TestKey + ?Sized,
    V: TestValue + ?Sized,
{
    let key = |rank: usize| -> &K { keys[rank].borrow() };
    match operation {
        Operation::Put(rank, word, deadline) => {
            let value = V::dress(*word);
            let put = Put { value: value.borrow(), expires_at: *deadline };
            store.write_batch(&[Write::Put(key(*rank), put)]).unwrap();
        }
        Operation::Remove(rank) => _ = store.remove(key(*rank)),
        Operation::RemoveRange(low, high) => {
            _ = store.remove_range((Bound::Included(key(*low)), Bound::Excluded(key(*high))));
        }
        Operation::Batch(writes) => {
            let values: Vec<_> = writes.iter().map(|(_, word)| word.map(V::dress)).collect();
            let write = |((rank, _), value): (&(usize, _), _)| match value {
                Some(value) => Write::put(key(*rank), Borrow::<V>::borrow(value)),
                None => Write::Remove(key(*rank)),
            };
            let batch: Vec<Write<'_, K, V>> =
                writes.iter().zip(values.iter().map(Option::as_ref)).map(write).collect();
            store.write_batch(&batch).unwrap();
        }
        Operation::Collect => store.collect_garbage(),
    }
}

fn bounds_of<K: TestKey + ?Sized>(
    keys: &[K::Owned],
    limits: Limits,
) -> Option<(Bound<&K>, Bound<&K>)> {
    let key = |bound: Bound<usize>| match bound {
        Bound::Unbounded => Some(Bound::Unbounded),
        Bound::Included(rank) => Some(Bound::Included(keys.get(rank)?.borrow())),
        Bound::Excluded(rank) => Some(Bound::Excluded(keys.get(rank)?.borrow())),
    };
    let upper = key(limits.1).unwrap_or(Bound::Unbounded);
    Some((key(limits.0)?, upper))
}

/// Returns what a read of a snapshot finds.
fn of_snapshot<K, V>(
    snapshot: &Snapshot<K, V>,
    keys: &[K::Owned],
    read: Read,
    limits: Limits,
) -> Shown
where
    K: TestKey + ?Sized,
    V: TestValue + ?Sized,
{
    let Some((low, high)) = bounds_of::<K>(keys, limits) else { return Vec::new() };
    let rank = |key: &K| keys.binary_search_by(|own| Borrow::<K>::borrow(own).cmp(key)).unwrap();
    let mut found = Vec::new();
    let mut note = |key: &K, value: &V| found.push((rank(key), value.word()));
    match read {
        Read::Up | Read::Down => {
            let direction =
                if matches!(read, Read::Up) { Direction::Ascending } else { Direction::Descending };
            snapshot.visit(low, high, direction, |key, value| {
                note(key, value);
                ControlFlow::Continue(())
            });
        }
        Read::Count => found.push((snapshot.count(low, high), 0)),
        Read::Select(position) => _ = snapshot.select_with(position, note),
        Read::Get(at) => {
            found.extend(snapshot.get_with(keys[at].borrow(), |value| (at, value.word())));
        }
    }
    found
}

/// Returns what a read of the latest state finds.
fn of_latest<K, V>(store: &Store<K, V>, keys: &[K::Owned], read: Read, limits: Limits) -> Shown
where
    K: TestKey + ?Sized,
    V: TestValue + ?Sized,
{
    let Some((low, high)) = bounds_of::<K>(keys, limits) else { return Vec::new() };
    let rank = |key: &K| keys.binary_search_by(|own| Borrow::<K>::borrow(own).cmp(key)).unwrap();
    let mut found = Vec::new();
    let mut note = |key: &K, value: &V| found.push((rank(key), value.word()));
    match read {
        Read::Up | Read::Down => {
            let direction =
                if matches!(read, Read::Up) { Direction::Ascending } else { Direction::Descending };
            OrderedIndex::visit(store, low, high, direction, |key, value| {
                note(key, value);
                ControlFlow::Continue(())
            });
        }
        Read::Count => found.push((store.count(low, high), 0)),
        Read::Select(position) => {
            found.extend(
                store
                    .select(position)
                    .map(|(key, value)| (rank(key.borrow()), Borrow::<V>::borrow(&value).word())),
            );
        }
        Read::Get(at) => {
            found.extend(store.get_with(keys[at].borrow(), |value| (at, value.word())));
        }
    }
    found
}

/// Returns what the read must find.
fn of_model(entries: &[(usize, u64)], read: Read, limits: Limits) -> Shown {
    let above = |rank: usize| match limits.0 {
        Bound::Included(low) => rank >= low,
        Bound::Excluded(low) => rank > low,
        Bound::Unbounded => true,
    };
    let below = |rank: usize| match limits.1 {
        Bound::Included(high) => rank <= high,
        Bound::Excluded(high) => rank < high,
        Bound::Unbounded => true,
    };
    let within = entries.iter().copied().filter(|(rank, _)| above(*rank) && below(*rank));
    match read {
        Read::Up => within.collect(),
        Read::Down => within.rev().collect(),
        Read::Count => vec![(within.count(), 0)],
        Read::Select(position) => entries.get(position).copied().into_iter().collect(),
        Read::Get(at) => entries.iter().copied().filter(|(rank, _)| *rank == at).collect(),
    }
}

/// A scan of the latest state must return all entries that exist throughout, in order. Of the
/// others it may return those that existed at some time during the scan.
fn check_latest(
    read: Read,
    found: &[(usize, u64)],
    before: &[(usize, u64)],
    after: &[(usize, u64)],
    told: &str,
) {
    if matches!(read, Read::Count | Read::Select(_)) {
        return;
    }
    let ordered = match read {
        Read::Down => found.is_sorted_by(|one, other| one.0 > other.0),
        _ => found.is_sorted_by(|one, other| one.0 < other.0),
    };
    assert!(ordered, "{told}: {found:?}");
    for entry in before.iter().filter(|entry| after.contains(entry)) {
        assert!(found.contains(entry), "{told}: {entry:?} is missing in {found:?}");
    }
}

fn check<K: TestKey + ?Sized, V: TestValue + ?Sized>(seeds: std::ops::Range<u64>) {
    let mut met = [0; STOPS.len()];
    for seed in seeds {
        for (stop, met) in STOPS.iter().zip(&mut met) {
            // Only few histories end with a full last leaf.
            for round in 0..if *stop == "tree.split.linked" { 4 } else { 1 } {
                let seed = seed << 8 | round;
                let told = format!("seed {seed}");
                *met += usize::from(Case::<K, V>::new(seed).meet(stop, &told));
            }
        }
    }
    // Only integer values have range versions.
    let all = STOPS.iter().zip(met);
    for (stop, met) in all.filter(|(stop, _)| !stop.starts_with("undo.range_version")) {
        assert!(met > 0, "no operation came to {stop}");
    }
}

/// A reverse scan at a snapshot reaches a new last leaf.
#[test]
fn a_walk_downwards_meets_a_new_last_leaf() {
    let store: Store<u64, u64> =
        Store::with_options(Options::new().background_collector(false).sizes(4, 3));
    [10, 20, 30, 40].iter().for_each(|n| _ = store.insert(n, n).unwrap());
    let snapshot = store.snapshot();
    store.remove(&40).unwrap();
    store.insert(&15, &15).unwrap();
    let schedule = Schedule::new();
    schedule.hold("writer", "tree.split.linked");
    schedule.hold("reader", "sync.waits");
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| schedule.enroll("writer", || store.insert(&35, &35)));
        schedule.wait_held("writer", "tree.split.linked");
        let down = || snapshot.iter().rev().map(|(key, _)| key).collect::<Vec<u64>>();
        let schedule = &schedule;
        let reader = scope.spawn(move || schedule.enroll("reader", down));
        schedule.wait_held("reader", "sync.waits");
        schedule.release("writer", "tree.split.linked");
        schedule.release("reader", "sync.waits");
        writer.join().unwrap().unwrap();
        assert_eq!(reader.join().unwrap(), [40, 30, 20, 10]);
    });
}

/// Number of histories in a test.
const HISTORIES: u64 = 80;

#[test]
fn words_are_read_while_writers_stand() {
    check::<u64, u64>(0..HISTORIES);
}

#[test]
fn bytes_are_read_while_writers_stand() {
    check::<[u8], [u8]>(0..HISTORIES);
}

#[test]
fn mixed_kinds_are_read_while_writers_stand() {
    check::<[u8], u64>(0..HISTORIES / 2);
    check::<u64, [u8]>(0..HISTORIES / 2);
}
