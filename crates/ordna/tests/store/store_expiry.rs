//! Tests of expiry, and of the thread that removes expired keys and frees undo records.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ordna::{Change, Options, Store};
#[cfg(debug_assertions)]
use ordna_base::sync::schedule::{Schedule, held};

/// Expired keys are removed in the background when their time comes.
#[test]
fn expired_keys_are_collected_in_the_background() {
    let store: Store<[u8], u64> = Store::new();
    let (soon, later) = (store.now() + 30, store.now() + 60_000);
    for n in 0..1000_u32 {
        let deadline = if n < 2 { later } else { soon + u64::from(n % 20) };
        store.insert_until(&n.to_be_bytes(), &1, deadline).unwrap();
        store.insert(&(n + 5000).to_be_bytes(), &2).unwrap();
    }
    // A key that is overwritten by one without a deadline, and a deadline in the distant future.
    store.insert(&0_u32.to_be_bytes(), &3).unwrap();
    assert!(store.set_expiry(&1_u32.to_be_bytes(), Some(later + 1_000_000)).unwrap());
    let give_up = Instant::now() + Duration::from_secs(20);
    while store.statistics().items > 1002 {
        assert!(Instant::now() < give_up, "{:?}", store.statistics());
        std::thread::yield_now();
    }
    // The collector has counted the last entry, but may not have removed its deadline from the list
    // yet.
    store.collect_garbage();
    assert_eq!(store.get(&0_u32.to_be_bytes()), Some(3));
    assert_eq!(store.get(&1_u32.to_be_bytes()), Some(1));
    assert_eq!(store.statistics().expiring.0, 1);
    store.check_invariants().unwrap();
}

/// Writes that change a value keep its deadline. Writes that insert an entry do not.
#[test]
fn changes_of_a_value_keep_its_deadline() {
    let options = Options::new().background_collector(false).clock(|| 1000);
    let store: Store<u64, u64> = Store::with_options(options);
    store.insert_for(1, 1, Duration::from_millis(500)).unwrap();
    assert_eq!(store.expiry(&1), Some(Some(1500)));
    store.modify(1, |value| Change::Put(value.copied().unwrap() + 1)).unwrap();
    store.update(1, |value| value + 1).unwrap();
    store.compare_exchange(1, Some(&3), Some(&4)).unwrap().unwrap();
    ordna::OrderedIndex::modify(&store, &1, |_| Change::Put(5)).unwrap();
    assert_eq!((store.get(1), store.expiry(&1)), (Some(5), Some(Some(1500))));
    assert_eq!(store.expires_in(1), Some(Some(Duration::from_millis(500))));
    assert!(store.expire_in(1, Duration::from_micros(1_000_001)).unwrap());
    assert_eq!(store.expiry(&1), Some(Some(2001)), "rounded up");
    store.insert(1, 6).unwrap();
    assert_eq!(store.expiry(&1), Some(None));
    store.modify(2, |_| Change::Put(7)).unwrap();
    assert_eq!(store.expiry(&2), Some(None));
    assert_eq!(store.expires_in(3), None);
}

/// While the clock is behind the store's time, deadlines do not come closer. The collectors wait
/// for the clock and do not check it every millisecond.
#[test]
fn collectors_sleep_while_a_clock_that_was_set_back_catches_up() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    let (time, looks) = (Arc::new(AtomicU64::new(1_000_000)), Arc::new(AtomicU64::new(0)));
    let (clock, looked) = (Arc::clone(&time), Arc::clone(&looks));
    let options = Options::new().background_collector(true).clock(move || {
        if std::thread::current().name() == Some("ordna collector") {
            looked.fetch_add(1, Ordering::SeqCst);
        }
        clock.load(Ordering::SeqCst)
    });
    let store: Store<u64, u64> = Store::with_options(options);
    assert_eq!(store.now(), 1_000_000);
    time.store(400_000, Ordering::SeqCst);
    store.insert_until(&1, &1, 1_000_001).unwrap();
    let give_up = Instant::now() + Duration::from_secs(20);
    while looks.load(Ordering::SeqCst) == 0 {
        assert!(Instant::now() < give_up, "the collector never looked at the clock");
        std::thread::yield_now();
    }
    std::thread::sleep(Duration::from_millis(300));
    let looks = looks.load(Ordering::SeqCst);
    assert!(looks < 20, "{looks} looks at the clock in 300 ms");
    time.store(1_000_001, Ordering::SeqCst);
    store.collect_garbage();
    assert_eq!(store.check_invariants().unwrap().entries, 0);
}

/// If the clock panics in the collector, its thread ends. Callers then do its work.
#[test]
fn a_clock_that_panics_in_the_collector_leaves_the_work_to_callers() {
    let panicked = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let panics = std::sync::Arc::clone(&panicked);
    let options = Options::new().background_collector(true).clock(move || {
        if std::thread::current().name() == Some("ordna collector") {
            panics.store(true, std::sync::atomic::Ordering::SeqCst);
            std::panic::resume_unwind(Box::new("in a clock"));
        }
        0
    });
    let store: Store<u64, u64> = Store::with_options(options);
    store.insert_until(&1, &1, 1_000_000).unwrap();
    let give_up = Instant::now() + Duration::from_secs(20);
    while !panicked.load(std::sync::atomic::Ordering::SeqCst) {
        assert!(Instant::now() < give_up, "the collector never looked at the clock");
        std::thread::yield_now();
    }
    // The collector may still do its last steps, so this is tried several times.
    while store.statistics().collected == 0 {
        assert!(Instant::now() < give_up, "{:?}", store.statistics());
        store.insert(&2, &2).unwrap();
        let snapshot = store.snapshot();
        store.remove(&2).unwrap();
        drop(snapshot);
        // Slow enough that the queue does not grow so long that writers would have to help.
        std::thread::sleep(Duration::from_millis(1));
    }
    store.collect_garbage();
    assert_eq!(store.check_invariants().unwrap().entries, 1);
}

/// A collector that waits for the next deadline is woken to free undo records.
#[test]
fn the_collector_watches_the_deadlines_and_frees() {
    use std::collections::BTreeSet;
    use std::sync::{Arc, Mutex};
    const FAR: u64 = 1 << 50;
    let time = Arc::new(AtomicU64::new(1000));
    let lookers: Arc<Mutex<BTreeSet<String>>> = Arc::default();
    let (clock, looked) = (Arc::clone(&time), Arc::clone(&lookers));
    let options = Options::new().background_collector(true).clock(move || {
        let thread = std::thread::current();
        if thread.name() == Some("ordna collector") {
            looked.lock().unwrap().insert(format!("{:?}", thread.id()));
        }
        clock.load(Ordering::SeqCst)
    });
    let store: Store<u64, u64> = Store::with_options(options);
    let patience = Instant::now() + Duration::from_secs(20);
    let wait_until = |what: &str, done: &dyn Fn() -> bool| {
        while !done() {
            assert!(Instant::now() < patience, "not {what}");
            std::thread::yield_now();
        }
    };
    store.insert_until(&0, &0, FAR).unwrap();
    wait_until("watched", &|| !lookers.lock().unwrap().is_empty());
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(lookers.lock().unwrap().len(), 1, "one thread looks");
    for round in 0..50 {
        (1..100).for_each(|key| drop(store.insert(&key, &round)));
        let snapshot = store.snapshot();
        (1..100).for_each(|key| drop(store.insert(&key, &round)));
        drop(snapshot);
        wait_until("collected", &|| store.statistics().dead == 0);
        if round % 10 == 0 {
            // This deadline is earlier than the one that the collector waits for.
            store.insert_until(&500, &1, 1010 + round).unwrap();
            time.store(1010 + round, Ordering::SeqCst);
            wait_until("expired", &|| store.statistics().items == 100);
        }
    }
    drop(store);
}

/// If the clock panics while expired keys are removed, the next attempt still finds all of them.
#[test]
fn a_clock_that_panics_leaves_what_is_due_to_the_next_look() {
    use std::sync::Arc;
    /// Number of clock readings after which the clock panics once.
    const PANICS: u64 = 7;
    let time = Arc::new(AtomicU64::new(0));
    let left = Arc::new(AtomicU64::new(u64::MAX));
    let (hands, looks) = (Arc::clone(&time), Arc::clone(&left));
    let options = Options::new().background_collector(false).clock(move || {
        if looks.fetch_sub(1, Ordering::SeqCst) == 1 {
            std::panic::resume_unwind(Box::new("the clock"));
        }
        hands.load(Ordering::SeqCst)
    });
    let store: Store<u64, u64> = Store::with_options(options);
    (0..100).for_each(|key| store.insert_until(&key, &key, 10).unwrap());
    time.store(20, Ordering::SeqCst);
    left.store(PANICS, Ordering::SeqCst);
    let collect = std::panic::AssertUnwindSafe(|| store.collect_garbage());
    assert!(std::panic::catch_unwind(collect).is_err());
    let items = store.statistics().items;
    assert!((1..100).contains(&items), "{items} are left");
    left.store(u64::MAX, Ordering::SeqCst);
    store.collect_garbage();
    assert_eq!(store.statistics().items, 0);
    assert_eq!(store.check_invariants().unwrap().entries, 0);
}

/// A clock that a test sets, and how often collectors have read it.
#[cfg(debug_assertions)]
#[derive(Default)]
struct Hands {
    now: AtomicU64,
    looks: AtomicU64,
}

/// Creates a store with this clock.
#[cfg(debug_assertions)]
fn with_hands(hands: &std::sync::Arc<Hands>, collector: bool) -> Store<u64, u64> {
    let hands = std::sync::Arc::clone(hands);
    let clock = move || {
        let now = hands.now.load(Ordering::SeqCst);
        if std::thread::current().name() == Some("ordna collector") {
            hands.looks.fetch_add(1, Ordering::SeqCst);
        }
        now
    };
    Store::with_options(Options::new().background_collector(collector).clock(clock))
}

/// A collection ends only when no expired key is left, even if another thread removes the last one.
#[test]
#[cfg(debug_assertions)]
fn a_collection_waits_for_the_thread_that_removes_expired_keys() {
    use std::sync::atomic::AtomicBool;
    const BEGINS: &str = "store.expire.begins";
    let hands = std::sync::Arc::<Hands>::default();
    let store = with_hands(&hands, false);
    store.insert_until(&1, &1, 10).unwrap();
    hands.now.store(10, Ordering::SeqCst);
    let (schedule, released) = (Schedule::new(), AtomicBool::new(false));
    schedule.hold("first", "store.expire.due");
    schedule.hold("second", BEGINS);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| schedule.enroll("first", || store.collect_garbage()));
        schedule.wait_held("first", "store.expire.due");
        let second = scope.spawn(|| {
            schedule.enroll("second", || {
                store.collect_garbage();
                released.load(Ordering::SeqCst)
            })
        });
        schedule.wait_held("second", BEGINS);
        schedule.release("second", BEGINS);
        std::thread::sleep(Duration::from_millis(30));
        released.store(true, Ordering::SeqCst);
        schedule.release("first", "store.expire.due");
        first.join().unwrap();
        assert!(second.join().unwrap(), "an expired key was left behind a collection");
    });
    assert_eq!(store.statistics().items, 0);
}

/// A collector that sleeps while another thread searches for expired keys is told of the next
/// deadline.
#[test]
#[cfg(debug_assertions)]
fn a_collector_that_found_no_deadline_beside_a_look_is_woken() {
    let hands = std::sync::Arc::<Hands>::default();
    let wait_until = |what: &str, done: &dyn Fn() -> bool| {
        let begun = Instant::now();
        while !done() {
            assert!(begun.elapsed() < Duration::from_secs(10), "not {what}");
            std::thread::yield_now();
        }
    };
    let store = with_hands(&hands, true);
    store.insert_until(&1, &1, 60_000).unwrap();
    store.insert_until(&2, &2, 60_010).unwrap();
    // The collector then sleeps for the minute until the first deadline. Nobody tells it that the
    // clock has reached it.
    wait_until("looked", &|| hands.looks.load(Ordering::SeqCst) > 0);
    hands.now.store(60_000, Ordering::SeqCst);
    held("store.due.looks", || store.collect_garbage()).meanwhile(|| {
        // Wakes the collector, which frees the undo record and finds no expired key.
        let snapshot = store.snapshot();
        store.insert(&3, &3).unwrap();
        drop(snapshot);
        wait_until("freed", &|| store.statistics().dead == 0);
        std::thread::sleep(Duration::from_millis(50));
    });
    hands.now.store(60_010, Ordering::SeqCst);
    wait_until("expired", &|| store.statistics().items == 1);
}

#[cfg(unix)]
#[test]
fn the_end_of_a_snapshot_is_cheap_for_its_thread() {
    let store = Store::with_options(Options::new().background_collector(true));
    ordna_testkit::snapshots::check_cost_of_the_end(&store);
}

/// While the time is held, no thread sees a key expire. Afterwards all expired keys are removed.
#[test]
fn held_time_stands_still_for_all() {
    static CLOCK: AtomicU64 = AtomicU64::new(1000);
    let store: Store<u64, u64> =
        Store::with_options(Options::new().clock(|| CLOCK.load(Ordering::SeqCst)));
    store.insert_until(&1, &1, 1500).unwrap();
    let first = store.hold_time();
    CLOCK.store(2000, Ordering::SeqCst);
    let second = store.hold_time();
    drop(first);
    assert_eq!((store.now(), store.get(&1)), (1000, Some(1)));
    // The collector searches and finds nothing.
    store.insert_until(&2, &2, 1001).unwrap();
    std::thread::sleep(Duration::from_millis(60));
    store.collect_garbage();
    assert_eq!(store.statistics().items, 2);
    assert_eq!(store.snapshot().get(&2), Some(2));
    drop(second);
    assert_eq!((store.now(), store.get(&1), store.get(&2)), (2000, None, None));
    let give_up = Instant::now() + Duration::from_secs(20);
    while store.statistics().items > 0 {
        assert!(Instant::now() < give_up, "{:?}", store.statistics());
        std::thread::sleep(Duration::from_millis(1));
    }
}
