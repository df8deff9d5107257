//! Tests of unusual callers: audits concurrent with expiry, clocks that panic, values that differ
//! each time they are borrowed, closures that use their own store.

use std::borrow::Borrow;
use std::cell::Cell;
use std::ops::Bound;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
#[cfg(debug_assertions)]
use std::sync::mpsc::channel;
#[cfg(debug_assertions)]
use std::thread;
#[cfg(debug_assertions)]
use std::time::Duration;

use ordna::{Options, Put, Store};
#[cfg(debug_assertions)]
use ordna_base::sync::schedule::{Schedule, held};
use ordna_base::{AsData, Change};

fn by_hand() -> Options {
    Options::new().background_collector(false)
}

fn clock(start: u64) -> (Arc<AtomicU64>, impl Fn() -> u64 + Send + Sync + 'static) {
    let hands = Arc::new(AtomicU64::new(start));
    let clock = Arc::clone(&hands);
    (hands, move || clock.load(Ordering::Relaxed))
}

/// While an audit follows leaves, records and undo lists, no expired keys or undo records are
/// freed.
#[test]
#[cfg(debug_assertions)]
fn an_audit_keeps_expiry_away() {
    let (hands, clock) = clock(5);
    let store: Store<[u8], u64> = Store::with_options(by_hand().sizes(4, 3).clock(clock));
    for key in 0..40_u64 {
        store.insert_until(&key.to_be_bytes(), &key, 10).unwrap();
    }
    hands.store(10, Ordering::Relaxed);
    let schedule = Schedule::new();
    schedule.hold("audit", "tree.check.leaf_read");
    std::thread::scope(|scope| {
        let audit = scope.spawn(|| schedule.enroll("audit", || store.check_invariants()));
        schedule.wait_held("audit", "tree.check.leaf_read");
        let collector = scope.spawn(|| store.collect_garbage());
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(!collector.is_finished(), "keys expired under the audit");
        assert_eq!(store.statistics().items, 40);
        schedule.release("audit", "tree.check.leaf_read");
        assert_eq!(audit.join().unwrap().unwrap().entries, 40);
        collector.join().unwrap();
    });
    assert_eq!(store.statistics().items, 0);
}

/// What an audit of the store reads is not freed during the audit, even if another thread writes.
#[test]
#[cfg(debug_assertions)]
fn an_audit_keeps_the_memory_that_it_reads() {
    use ordna_testkit::memory::live_here;
    const LARGE: i64 = 64 << 20;
    let store: Store<u64, [u8]> = Store::with_options(by_hand());
    store.insert(&1, &vec![7; LARGE as usize]).unwrap();
    let freed = Cell::new(0);
    held("tree.check.leaf_read", || store.check_invariants())
        .meanwhile(|| {
            let before = live_here();
            store.insert(&1, b"small").unwrap();
            freed.set(before - live_here());
        })
        .unwrap();
    assert!(freed.get() < LARGE / 2, "{} bytes were freed under the audit", freed.get());
}

/// If a write of a snapshot's epoch has seen a key as expired, the key is not in the snapshot.
#[test]
#[cfg(debug_assertions)]
fn a_snapshot_hides_what_its_writes_saw_expired() {
    let (hands, clock) = clock(9);
    let store: Store<u64, u64> = Store::with_options(by_hand().clock(clock));
    store.insert_until(&1, &1, 10).unwrap();
    let snapshot = held("store.snapshot.half_taken", || store.snapshot()).meanwhile(|| {
        hands.store(10, Ordering::Relaxed);
        assert_eq!(store.get(&1), None);
        store.insert(&2, &2).unwrap();
    });
    assert!(
        !(snapshot.contains_key(&1) && snapshot.contains_key(&2)),
        "2 was written as 1 had expired"
    );
}

/// If the clock panics while a range is removed, the counts include everything that was removed.
#[test]
fn a_removal_whose_clock_panics_counts_what_it_removed() {
    let looks = Arc::new(AtomicU64::new(u64::MAX));
    let left = Arc::clone(&looks);
    let clock = move || {
        assert!(left.fetch_sub(1, Ordering::Relaxed) > 0, "a clock that panics");
        5
    };
    let options = by_hand().memory_limit(1 << 20).clock(clock);
    let store: Store<u64, [u8]> = Store::with_options(options);
    (0..9).for_each(|key| store.insert_until(&key, b"value", 10).unwrap());
    looks.store(4, Ordering::Relaxed);
    let removal = || store.remove_range(..).unwrap();
    assert!(catch_unwind(AssertUnwindSafe(removal)).is_err());
    looks.store(u64::MAX, Ordering::Relaxed);
    let entries = store.check_invariants().unwrap().entries;
    let told = store.statistics();
    assert_eq!((told.items, told.expiring.0), (entries, entries));
    removal();
    let told = store.statistics();
    assert_eq!((told.items, told.bytes, told.expiring), (0, 0, (0, 0)));
}

/// A value that returns different bytes each time it is borrowed.
struct Fickle {
    values: [Vec<u8>; 3],
    asked: Cell<usize>,
}

impl Fickle {
    fn new(values: [Vec<u8>; 3]) -> Self {
        Self { values, asked: Cell::new(0) }
    }
}

impl Borrow<[u8]> for Fickle {
    fn borrow(&self) -> &[u8] {
        let at = self.asked.replace(self.asked.get() + 1);
        &self.values[at.min(2)]
    }
}

impl AsData<[u8]> for Fickle {
    fn as_data(&self) -> &[u8] {
        self.borrow()
    }
}

/// A value is borrowed only once, so that the bytes that are stored are those that were checked and
/// counted.
#[test]
fn a_value_that_changes_between_two_looks_is_stored_as_it_was_checked() {
    let store: Store<[u8], [u8]> = Store::with_options(by_hand().memory_limit(1 << 20));
    let value = || Fickle::new([vec![1; 10], vec![2; 5000], vec![3; 100]]);
    store.modify(b"key", |_| Change::Put(value())).unwrap();
    assert_eq!(store.get(b"key"), Some(vec![1; 10]));
    assert_eq!(store.insert_many(&[(b"many".to_vec(), value())]), Ok(1));
    store.remove_range(..).unwrap();
    assert_eq!(store.statistics().bytes, 0);
    // The same for keys: one that is longer than the checked one would not fit into its record.
    let key = Fickle::new([b"short".to_vec(), vec![7; 70_000], vec![8; 70_000]]);
    assert_eq!(store.insert_many(&[(key, b"value".to_vec())]), Ok(1));
    assert_eq!(store.get(b"short"), Some(b"value".to_vec()));
    store.check_invariants().unwrap();
}

/// To divide a large store, only some of its leaves are read, and not all keys.
#[test]
fn partition_points_do_not_read_all_keys() {
    let looks = Arc::new(AtomicU64::new(0));
    let told = Arc::clone(&looks);
    let clock = move || told.fetch_add(1, Ordering::Relaxed).min(5);
    let sorted = (0..50_000_u64).map(|key| (key, Put { value: key, expires_at: Some(1000) }));
    let options = by_hand().clock(clock);
    let store: Store<u64, u64> = Store::from_sorted_entries(options, vec![sorted]).unwrap();
    let leaves = 50_000 / 49;
    // There are about 1,000 leaves. The numbers select some 500 of them, every second one, slightly
    // fewer, or all.
    for parts in [2, leaves / 16, leaves / 8 - 10, leaves / 9] {
        let before = looks.load(Ordering::Relaxed);
        let points = store.partition_points(parts);
        assert_eq!(points.len(), parts - 1);
        let read = looks.load(Ordering::Relaxed) - before;
        assert!(read < 1000, "{read} entries were read for {parts} parts");
        let sizes = points.windows(2).map(|two| two[1] - two[0]);
        let (least, most) = (sizes.clone().min(), sizes.max());
        assert!(parts == 2 || most < least.map(|least| 3 * least), "{least:?} to {most:?} keys");
    }
}

/// A closure that uses its own store panics, because it would otherwise wait for itself.
#[test]
fn a_closure_that_uses_its_own_store_is_told() {
    let store: Store<u64, u64> = Store::with_options(by_hand());
    store.insert(&1, &1).unwrap();
    let other: Store<u64, u64> = Store::with_options(by_hand());
    let snapshot = store.snapshot();
    type Use<'a> = &'a dyn Fn();
    let uses: [(&str, Use<'_>); 8] = [
        ("get", &|| _ = store.get(&2)),
        ("insert", &|| _ = store.insert(&2, &2)),
        ("scan", &|| _ = store.range(..).count()),
        ("count", &|| _ = store.count(Bound::Unbounded, Bound::Unbounded)),
        ("snapshot", &|| _ = snapshot.get(&1)),
        ("remove_range", &|| _ = store.remove_range(..)),
        ("transaction", &|| _ = store.transaction(|tx| tx.put(2, 2))),
        ("memory_usage", &|| _ = store.memory_usage()),
    ];
    for (name, run) in uses {
        let write = || {
            store.modify(&1, |_| {
                run();
                Change::Put(7)
            })
        };
        let panic = catch_unwind(AssertUnwindSafe(write)).expect_err(name);
        let told = panic.downcast_ref::<String>().cloned().unwrap_or_default();
        let told = panic.downcast_ref::<&str>().map_or(told, |told| (*told).to_owned());
        assert!(told.contains("closure of a conditional write"), "{name}: {told}");
    }
    // A closure may use another store. After the panics the store is unchanged.
    store
        .modify(&1, |_| {
            other.insert(&1, &1).unwrap();
            Change::Put(other.get(&1).unwrap())
        })
        .unwrap();
    assert_eq!(store.get(&1), Some(1));
    store.check_invariants().unwrap();
}

#[test]
fn a_closure_of_splice_that_uses_its_own_store_is_told() {
    let store: Store<u64, [u8]> = Store::with_options(by_hand());
    store.insert(&1, b"value").unwrap();
    let write = || {
        store.splice(&1, |_| {
            store.get(&2);
            Some((0, b"V"))
        })
    };
    catch_unwind(AssertUnwindSafe(write)).expect_err("the closure uses its store");
    assert_eq!(store.get(&1).as_deref(), Some(&b"value"[..]));
}

/// Without a collector, the thread that ends a snapshot frees what the snapshot kept. If this
/// happens in the closure of a write, it must not wait for a thread that is freeing already, as
/// that thread may wait for the write.
#[test]
#[cfg(debug_assertions)]
fn a_snapshot_may_end_in_the_closure_of_a_write() {
    const BEGINS: &str = "store.collect.begins";
    let store: Arc<Store<u64, u64>> = Arc::new(Store::with_options(by_hand()));
    store.put(1, 1).unwrap();
    let mut snapshot = Some(store.snapshot());
    store.put(1, 2).unwrap();
    let schedule = Arc::new(Schedule::new());
    schedule.hold("collector", BEGINS);
    // If the test fails, it does not wait for these threads.
    let (collected, schedules) = (Arc::clone(&store), Arc::clone(&schedule));
    let collector =
        thread::spawn(move || schedules.enroll("collector", || collected.collect_garbage()));
    schedule.wait_held("collector", BEGINS);
    let (ended, has_ended) = channel();
    let written = Arc::clone(&store);
    thread::spawn(move || {
        let write = |_: Option<&u64>| {
            drop(snapshot.take());
            Change::Put(3)
        };
        ended.send(written.modify(1, write)).unwrap();
    });
    let done = has_ended.recv_timeout(Duration::from_secs(10));
    assert_eq!(done.expect("the write waits for the collector"), Ok(()));
    schedule.release("collector", BEGINS);
    collector.join().unwrap();
    store.put(2, 2).unwrap();
    assert_eq!(store.statistics().dead, 0);
}

/// Borrowed values, in records or in shared buffers, do not change while their keys are written,
/// expire or are removed.
#[test]
fn borrowed_values_do_not_change() {
    let (hands, clock) = clock(5);
    let store: Store<[u8], [u8]> = Store::with_options(by_hand().sizes(4, 3).clock(clock));
    let name = |key: u32| format!("key {key:04}");
    let long = "x".repeat(1000);
    store.append(b"shared", long.as_bytes()).unwrap();
    store.append(b"shared", b"y").unwrap();
    store.insert_until(b"expires", b"soon", 10).unwrap();
    (0..400).for_each(|key| store.put(name(key), name(key)).unwrap());
    let snapshot = store.snapshot();
    let shared = store.get_ref("shared").unwrap();
    let expires = store.get_ref("expires").unwrap();
    let borrowed: Vec<_> = (0..400).map(|key| store.get_ref(name(key)).unwrap()).collect();
    hands.store(10, Ordering::Relaxed);
    assert!(store.get_ref("expires").is_none() && store.get_ref("absent").is_none());
    store.append(b"shared", b"z").unwrap();
    (0..200).for_each(|key| store.put(name(key), "other").unwrap());
    store.remove_range(name(100)..name(300)).unwrap();
    store.remove("shared").unwrap();
    let kept = snapshot.get_ref(name(150)).unwrap();
    assert_eq!(&*kept, name(150).as_bytes());
    assert_eq!(&*snapshot.get_ref("expires").unwrap(), b"soon");
    drop(kept);
    drop(snapshot);
    store.collect_garbage();
    for (key, value) in (0..).zip(&borrowed) {
        assert_eq!(&**value, name(key).as_bytes());
    }
    assert_eq!((shared.len(), &*expires), (1001, &b"soon"[..]));
    // A word is overwritten in place, so a borrowed one is a copy.
    for words in [Store::<[u8], u64>::new(), Store::with_options(by_hand())] {
        words.put("a", 1).unwrap();
        let word = words.get_ref("a").unwrap();
        words.put("a", 2).unwrap();
        assert_eq!(*word, 1);
    }
}

/// The memory that overwrites retire is limited by its size, and not only by the number of values.
#[test]
fn retired_values_do_not_pile_up() {
    use ordna_testkit::memory::live_here;
    let store: Store<u64, [u8]> = Store::with_options(by_hand());
    let value = vec![7; 60_000];
    store.insert(&1, &value).unwrap();
    let before = live_here();
    for _ in 0..200 {
        store.modify(&1, |_| Change::Put(&value[..])).unwrap();
        let kept = live_here() - before;
        assert!(kept < 3 << 20, "{kept} bytes of old values are kept");
    }
}

/// A write at the limit frees garbage that counts towards the limit, but does not compact the
/// store.
#[test]
#[cfg(debug_assertions)]
fn a_refused_write_does_not_compact() {
    let keys = 60_000_u64;
    let limit = 64 << 20;
    let options = by_hand().memory_limit(limit).sizes(4, 64);
    let sorted: Vec<u64> = (0..keys).collect();
    let store: Store<u64, [u8]> = Store::with_options(options);
    sorted.iter().for_each(|key| _ = store.insert(key, b"v").unwrap());
    (0..keys).filter(|key| key % 8 != 0).for_each(|key| _ = store.remove(&key));
    let schedule = Schedule::new();
    schedule.hold("writer", "tree.compact.moved");
    std::thread::scope(|scope| {
        let write = || store.insert(&1, &vec![0; limit]);
        let schedule = &schedule;
        let writer = scope.spawn(move || schedule.enroll("writer", write));
        while !writer.is_finished() && !schedule.is_held("writer", "tree.compact.moved") {
            std::thread::yield_now();
        }
        let compacted = schedule.is_held("writer", "tree.compact.moved");
        schedule.release("writer", "tree.compact.moved");
        assert!(writer.join().unwrap().is_err());
        assert!(!compacted, "the write compacted the store");
    });
}

/// If the clock panics while a snapshot is taken, no snapshot remains that nobody could end.
#[test]
fn a_snapshot_whose_clock_panics_keeps_nothing() {
    let panics = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let is_broken = Arc::clone(&panics);
    let clock = move || match is_broken.load(Ordering::SeqCst) {
        true => std::panic::resume_unwind(Box::new("clock")),
        false => 5,
    };
    let store: Store<u64, u64> = Store::with_options(by_hand().clock(clock));
    for key in 0..1000 {
        store.insert(&key, &key).unwrap();
    }
    let before = store.statistics().bytes;
    panics.store(true, Ordering::SeqCst);
    assert!(catch_unwind(AssertUnwindSafe(|| store.snapshot())).is_err());
    panics.store(false, Ordering::SeqCst);
    assert_eq!(store.statistics().snapshots.len(), 0, "a snapshot that nobody holds");
    for key in 0..1000 {
        store.insert(&key, &(key + 1)).unwrap();
    }
    store.collect_garbage();
    assert_eq!(store.statistics().bytes, before, "undo records of a snapshot that nobody holds");
}
