//! Tests of the memory limit: what counts towards it, what it refuses, and what makes room again.

use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};

use ordna::{Change, MemoryBudget, Options, Put, Store, Write};
use ordna_base::Error;

/// At the limit, writes are refused and nothing else. Memory that is freed is available at once.
#[test]
fn the_memory_limit_refuses_writes_and_is_lifted_by_removals() {
    let store: Store<[u8], [u8]> =
        Store::with_options(Options::new().memory_limit(1 << 20).background_collector(false));
    let value = [7; 1000];
    let key = |n: u32| n.to_be_bytes();
    let filled = (0..).find(|n| store.insert(&key(*n), &value).is_err()).unwrap();
    let limit = Err(Error::MemoryLimit { limit: 1 << 20 });
    assert!((900..1050).contains(&filled), "{filled} values of 1,000 bytes in 1 MiB");
    assert!(store.statistics().bytes <= 1 << 20);
    assert_eq!(store.insert(&key(filled), &value), limit);
    // Other threads can use up the credit of this thread.
    std::thread::scope(|scope| {
        scope.spawn(|| assert!(store.insert(&key(filled), &value).is_err()));
    });
    assert_eq!(store.get(&key(3)), Some(value.to_vec()));
    // There is room for half of the batch only, so none of it is applied.
    assert_eq!(store.remove(&key(0)), Ok(Some(value.to_vec())));
    let keys = [key(0), key(filled)];
    let batch = keys.each_ref().map(|key| Write::put(&key[..], &value[..]));
    assert_eq!(store.write_batch(&batch), Err(Error::MemoryLimit { limit: 1 << 20 }));
    assert_eq!((store.get(&key(0)), store.get(&key(filled))), (None, None));
    store.write_batch(&batch[..1]).unwrap();
    // The first change is refused, and therefore the second one, too. The second one alone is
    // accepted.
    let change = Change::Put(Put::forever(&value[..]));
    let full = key(filled);
    let two = |first, keys: [&[u8]; 2]| {
        let mut found = None;
        let done = store.modify_two(keys, |shown| {
            found = shown.map(|shown| shown.value.len());
            [first, change]
        });
        done.map(|()| found)
    };
    assert_eq!(two(change, [&full, b"x"]), Err(Error::MemoryLimit { limit: 1 << 20 }));
    assert!(!store.contains_key(b"x"));
    assert_eq!(two(Change::Keep, [&full, b"x"]), Ok(None));
    assert_eq!(two(Change::Remove, [b"x", b"y"]), Ok(Some(1000)));
    assert_eq!((store.contains_key(b"x"), store.remove(b"y").unwrap().is_some()), (false, true));
    // Removals do not free what a snapshot keeps. Reads and removals still work.
    let snapshot = store.snapshot();
    assert_eq!(store.remove_range((Bound::Unbounded, Bound::Excluded(&key(100)))).unwrap(), 100);
    assert!(store.insert(&key(0), &value).is_err());
    assert_eq!(snapshot.len(), filled as usize);
    drop(snapshot);
    store.insert(&key(0), &value).unwrap();
    store.check_invariants().unwrap();
    // Another thread frees memory and keeps it as credit. This thread can still use it.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(store.remove_range(..).unwrap(), filled as usize - 99);
        });
    });
    assert_eq!(
        (0..filled).filter(|n| store.insert(&key(*n), &value).is_ok()).count(),
        filled as usize
    );
    store.check_invariants().unwrap();
}

/// When a store that shares a budget is dropped, the other stores can use its bytes.
#[test]
fn a_dropped_store_leaves_its_bytes_to_the_others_of_its_budget() {
    let budget = MemoryBudget::new(1 << 20);
    let new = || {
        let options = Options::new().memory_budget(&budget).background_collector(false);
        Store::<u64, [u8]>::with_options(options)
    };
    let (one, other) = (new(), new());
    let fill = |store: &Store<u64, [u8]>| {
        let full = |key: &u64| store.insert(key, &[7; 1000]).is_err();
        (0..).find(full).unwrap()
    };
    let all = fill(&one);
    assert!(all > 500 && fill(&other) < 10);
    drop(one);
    assert!(fill(&other) + 10 > all);
}

/// A write that replaces a version needs only the additional bytes. A deadline can always be set;
/// if it exceeds the limit, the next writes must make up for it first.
#[test]
fn at_the_memory_limit_values_are_replaced_and_deadlines_set() {
    let limit = 100 << 10;
    let store: Store<[u8], [u8]> = Store::with_options(
        Options::new().memory_limit(limit).background_collector(false).clock(|| 5),
    );
    let value = [7; 1000];
    let key = |n: u32| n.to_be_bytes();
    let filled = (0..).find(|n| store.insert(&key(*n), &value).is_err()).unwrap();
    for n in 0..filled {
        store.insert(&key(n), &[8; 1000]).unwrap();
    }
    let longer = [7; 2100];
    assert_eq!(store.insert(&key(0), &longer), Err(Error::MemoryLimit { limit }));
    store.insert(&key(0), b"short").unwrap();
    store.insert(&key(0), &value).unwrap();
    store.check_invariants().unwrap();
    let snapshot = store.snapshot();
    for n in 0..filled {
        assert_eq!(store.set_expiry(&key(n), Some(10 + u64::from(n))), Ok(true));
        assert_eq!(store.expiry(&key(n)), Some(Some(10 + u64::from(n))));
    }
    assert_eq!(store.set_expiry(b"absent", None), Ok(false));
    assert!(store.statistics().bytes > 2 * (limit - 2000));
    // Another thread removes entries, but still far too much memory is in use.
    std::thread::scope(|scope| {
        scope.spawn(|| (0..9).for_each(|n| drop(store.remove(&key(n)))));
    });
    assert_eq!(store.insert(b"more", b""), Err(Error::MemoryLimit { limit }));
    store.check_invariants().unwrap();
    drop(snapshot);
    while store.insert(&store.statistics().bytes.to_be_bytes(), &value).is_ok() {}
    assert!(store.statistics().bytes <= limit);
    store.check_invariants().unwrap();
}

/// A change of a deadline copies the entry if a snapshot keeps the old one. With many snapshots,
/// these copies must not exceed the limit.
#[test]
fn at_the_memory_limit_no_deadline_copies_a_large_value() {
    let limit = 1 << 20;
    let store: Store<[u8], [u8]> = Store::with_options(
        Options::new().memory_limit(limit).background_collector(false).clock(|| 5),
    );
    store.insert(b"large", &[7; 100_000]).unwrap();
    store.insert(b"small", &[7; 1000]).unwrap();
    let mut snapshots = Vec::new();
    let mut is_set = |key: &[u8], at| {
        snapshots.push(store.snapshot());
        let done = store.set_expiry(key, Some(at));
        assert!(done == Ok(true) || done == Err(Error::MemoryLimit { limit }), "{done:?}");
        assert_eq!(store.expiry(key) == Some(Some(at)), done.is_ok());
        done.is_ok()
    };
    let set = (0..30).filter(|n| is_set(b"large", 100 + n)).count();
    assert!((5..10).contains(&set), "{set} versions of 100,000 bytes");
    assert!((0..30).all(|n| is_set(b"small", 100 + n)));
    let bytes = store.statistics().bytes;
    assert!(bytes <= limit + (100 << 10), "{bytes}");
    // Without a snapshot nothing is copied.
    drop(snapshots);
    assert_eq!(store.set_expiry(b"large", None), Ok(true));
    store.check_invariants().unwrap();
}

/// Nor do many small entries, of which each change of a deadline makes a copy.
#[test]
fn at_the_memory_limit_deadlines_copy_a_bounded_number_of_bytes() {
    let (limit, excess) = (1 << 20, 256 << 10);
    let store: Store<[u8], [u8]> = Store::with_options(
        Options::new().memory_limit(limit).background_collector(false).clock(|| 5),
    );
    let refused = Err(Error::MemoryLimit { limit });
    let filled = (0..).find(|n: &u32| store.insert(&n.to_be_bytes(), &[7; 1000]).is_err());
    let keys = || (0..filled.unwrap()).map(u32::to_be_bytes);
    let snapshot = store.snapshot();
    let set: Vec<_> = keys().map(|key| store.set_expiry(&key, Some(100))).collect();
    let copied = set.iter().filter(|done| **done == Ok(true)).count();
    assert!((200..260).contains(&copied), "{copied} copies of 1,000 bytes");
    assert!(set[copied..].iter().all(|done| *done == refused), "only the last ones are refused");
    let bytes = store.statistics().bytes;
    assert!(bytes <= limit + excess, "{bytes}");
    assert_eq!(store.check_room_for_deadline(2000), refused.map(|_: bool| ()));
    // What a snapshot does not need again is not copied again; keys are removed in any case.
    assert_eq!(store.set_expiry(&0_u32.to_be_bytes(), Some(200)), Ok(true));
    for key in keys().skip(copied) {
        let removed = store.modify_expiry(&key, |_| Change::Remove);
        assert_eq!(removed, Ok(()));
    }
    drop(snapshot);
    assert!(keys().take(copied).all(|key| store.set_expiry(&key, None) == Ok(true)));
    store.check_invariants().unwrap();
}

/// The limit does not refuse a write that fits after a collection.
#[test]
fn the_limit_collects_before_it_refuses() {
    let clock = std::sync::Arc::new(AtomicU64::new(0));
    let hands = clock.clone();
    let options = Options::new().memory_limit(100 << 10).background_collector(false);
    let store: Store<[u8], [u8]> =
        Store::with_options(options.clock(move || hands.load(Ordering::Relaxed)));
    let value = [7; 1000];
    let filled =
        (0_u32..).find(|n| store.insert_until(&n.to_be_bytes(), &value, 10).is_err()).unwrap();
    assert!(store.insert(b"more", &value).is_err());
    clock.store(10, Ordering::Relaxed);
    for n in 0..filled {
        store.insert(&(1000 + n).to_be_bytes(), &value).unwrap();
    }
    assert_eq!(store.statistics().expiring.0, 0);
    store.check_invariants().unwrap();
}

/// The remaining expired keys are left to the regular collection.
#[test]
fn a_write_at_the_limit_collects_no_more_than_it_needs() {
    /// Number of expired keys that are removed at once.
    const DUE: u64 = 256;
    let clock = std::sync::Arc::new(AtomicU64::new(0));
    let hands = clock.clone();
    let options = Options::new().memory_limit(1 << 20).background_collector(false);
    let store: Store<[u8], [u8]> =
        Store::with_options(options.clock(move || hands.load(Ordering::Relaxed)));
    let filled = (0_u32..).find(|n| store.insert_until(&n.to_be_bytes(), &[7; 100], 10).is_err());
    let filled = u64::from(filled.unwrap());
    assert!(filled > 10 * DUE, "{filled}");
    clock.store(10, Ordering::Relaxed);
    store.insert(b"more", &[7; 100]).unwrap();
    let left = || store.statistics().expiring.0 as u64;
    assert!((filled - 2 * DUE..filled).contains(&left()), "{} of {filled}", left());
    let before = left();
    assert!(store.collect_some());
    assert!((before - DUE..before).contains(&left()), "{} of {before}", left());
    // A write that needs the room of many keys gets it.
    store.insert(b"long", &vec![7; 900 << 10]).unwrap();
    store.collect_garbage();
    assert_eq!((left(), store.collect_some()), (0, false));
    store.check_invariants().unwrap();
}

/// A record with a short key is as large as its fixed part. Exactly this much is counted and given
/// back.
#[test]
fn short_keys_take_what_they_give_back() {
    let store: Store<[u8], u64> =
        Store::with_options(Options::new().memory_limit(1 << 20).background_collector(false));
    store.insert(b"long enough", &0).unwrap();
    let before = store.statistics().bytes;
    for round in 0..100 {
        store.insert(b"a", &round).unwrap();
        store.write_batch(&[Write::put(b"a", &round), Write::put(b"", &round)]).unwrap();
        assert_eq!(store.remove(b""), Ok(Some(round)));
        assert_eq!(store.remove(b"a"), Ok(Some(round)));
    }
    assert_eq!(store.statistics().bytes, before);
}

/// A batch that has begun is completed, even if the limit has no room for the version of its second
/// key that a snapshot keeps.
#[test]
fn a_batch_under_a_snapshot_is_whole_at_the_limit() {
    const LIMIT: usize = 1 << 20;
    let options = Options::new().memory_limit(LIMIT).background_collector(false);
    let store: Store<[u8], [u8]> = Store::with_options(options);
    store.insert(b"a", b"old").unwrap();
    store.insert(b"b", &vec![1; 200 << 10]).unwrap();
    let fill = LIMIT - store.statistics().bytes - (100 << 10);
    store.insert(b"c", &vec![2; fill]).unwrap();
    let snapshot = store.snapshot();
    let done = store.write_batch(&[Write::put(b"a", b"new"), Write::put(b"b", b"new")]);
    let is_new = |key: &[u8]| store.get(key) == Some(b"new".to_vec());
    assert_eq!((is_new(b"a"), is_new(b"b")), (done.is_ok(), done.is_ok()));
    drop(snapshot);
    store.remove_range(..).unwrap();
    store.collect_garbage();
    assert_eq!(store.statistics().bytes, 0, "bytes of a refused batch are given back");
}

/// A batch during which the caller's clock panics counts what it wrote and gives back the rest.
#[test]
fn a_batch_that_panics_gives_back_what_it_did_not_use() {
    let looks = std::sync::Arc::new(AtomicU64::new(u64::MAX));
    let left = looks.clone();
    let clock = move || {
        let left = left.fetch_sub(1, Ordering::Relaxed);
        assert!(left > 0, "a clock that panics");
        5
    };
    let options = Options::new().memory_limit(1 << 20).background_collector(false).clock(clock);
    let store: Store<u64, [u8]> = Store::with_options(options);
    let value = [7; 100];
    (0..4).for_each(|key| store.insert_until(&key, &value, 10).unwrap());
    let keys = [0, 1, 2, 3];
    let batch = keys.each_ref().map(|key| Write::put(key, &value[..]));
    looks.store(2, Ordering::Relaxed);
    let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| store.write_batch(&batch)));
    assert!(done.is_err());
    looks.store(u64::MAX, Ordering::Relaxed);
    store.remove_range(..).unwrap();
    store.collect_garbage();
    assert_eq!(store.statistics().bytes, 0);
}

/// The deadline `u64::MAX` means never. It takes no memory and is not kept in the list.
#[test]
fn the_largest_deadline_is_none() {
    let options = || Options::new().memory_limit(1 << 20).background_collector(false);
    let store: Store<u64, u64> = Store::with_options(options());
    let put = Put { value: &1, expires_at: Some(u64::MAX) };
    store.write_batch(&[Write::Put(&1, put)]).unwrap();
    let sorted = vec![vec![(2_u64, Put { value: 2_u64, expires_at: Some(u64::MAX) })]];
    let built: Store<u64, u64> = Store::from_sorted_entries(options(), sorted).unwrap();
    for store in [store, built] {
        assert_eq!(store.statistics().expiring, (0, 0));
        store.remove_range(..).unwrap();
        assert_eq!(store.statistics().bytes, 0);
    }
}
