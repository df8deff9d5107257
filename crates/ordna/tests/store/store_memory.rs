//! Tests that memory is given back: sparse leaves are merged after removals, and their slabs are
//! freed.

use std::borrow::Borrow;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ordna::store::{OwnedStore, Owner, Wanted};
use ordna::{Options, Store};
#[cfg(debug_assertions)]
use ordna_base::sync::schedule::held;
use ordna_testkit::random::Random;

/// Nine of ten keys are removed at random. The store then needs at most twice the memory of a store
/// with just the remaining keys.
#[test]
fn random_removals_give_memory_back() {
    check_random_removals(1_500_000, filled_by_inserts);
}

/// The same in a store that was built from sorted entries, as a restored one is.
#[test]
fn random_removals_give_the_memory_of_a_built_store_back() {
    check_random_removals(1_200_000, |keys| {
        let mut keys = keys.to_vec();
        keys.sort_unstable();
        let parts = keys.chunks(keys.len() / 8 + 1);
        let parts = parts.map(|part| part.iter().map(|key| (*key, *key)).collect::<Vec<_>>());
        Store::from_sorted(Options::new(), parts.collect()).unwrap()
    });
}

fn filled_by_inserts(keys: &[u64]) -> Store<u64, u64> {
    let store: Store<u64, u64> = Store::new();
    keys.iter().for_each(|key| _ = store.insert(key, key).unwrap());
    store
}

fn check_random_removals(count: u64, filled: impl Fn(&[u64]) -> Store<u64, u64>) {
    let mut random = Random::new(7);
    let mut keys: Vec<u64> = (0..count).map(|_| random.below(u64::MAX)).collect();
    keys.sort_unstable();
    keys.dedup();
    random.shuffle(&mut keys);
    let (gone, rest) = keys.split_at(keys.len() / 10 * 9);
    let store = filled(&keys);
    let full = store.memory_usage();
    // Many leaves are in slabs.
    let is_spare = |(name, bytes): &&(&str, usize)| *name == "slabs without a leaf" && *bytes > 0;
    assert!(full.parts.iter().any(|part| is_spare(&part)), "{full:?}");
    let full = full.total();
    for key in gone {
        assert_eq!(store.remove(key), Ok(Some(*key)));
    }
    let live = filled_by_inserts(rest).memory_usage().total();
    // The slab that new leaves are put into may be nearly empty.
    let most = 2 * live + (2 << 20);
    let started = Instant::now();
    while store.memory_usage().total() > most {
        let left = store.memory_usage();
        let waited = started.elapsed();
        assert!(waited < Duration::from_secs(20), "{full} bytes fell to {left:?}, {live} are live");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(store.check_invariants().unwrap().entries, rest.len());
    assert!(rest.iter().all(|key| store.get(key) == Some(*key)));
}

/// The same with byte strings, whose records leave slabs sparse. The thread that writes and the one
/// that compacts may each hold one slab more. Values have 8 bytes, or up to 100.
#[test]
fn removals_of_byte_strings_give_memory_back() {
    const KEYS: u64 = 500_000;
    const OPEN: usize = 2 * (2 << 20);
    fn give_back<V: ordna_base::Value + ?Sized>(value: impl Fn(u64) -> V::Owned) {
        let mut random = Random::new(8);
        let mut keys: Vec<u64> = (0..KEYS).collect();
        random.shuffle(&mut keys);
        let text = |key: &u64| format!("{key:020} of the keys").into_bytes();
        let filled = |keys: &[u64]| {
            let store: Store<[u8], V> = Store::new();
            for key in keys {
                store.insert(text(key).as_slice(), value(*key).borrow()).unwrap();
            }
            store
        };
        let (gone, rest) = keys.split_at(keys.len() / 10 * 9);
        let store = filled(&keys);
        let full = store.memory_usage().total();
        for key in gone {
            assert!(store.remove(text(key)).unwrap().is_some());
        }
        let live = filled(rest).memory_usage().total();
        let started = Instant::now();
        while store.memory_usage().total() > 2 * live + OPEN {
            let left = store.memory_usage();
            let waited = started.elapsed();
            assert!(waited < Duration::from_secs(20), "{full} fell to {left:?}, {live} are live");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(store.check_invariants().unwrap().entries, rest.len());
        assert!(rest.iter().all(|key| store.get(text(key).as_slice()) == Some(value(*key))));
    }
    give_back::<u64>(|key| key);
    give_back::<[u8]>(|key| vec![key as u8; key as usize % 100]);
}

/// A thread that overwrites a record's word waits until the record has been moved.
#[cfg(debug_assertions)]
#[test]
fn a_record_that_moves_is_not_overwritten_in_its_old_place() {
    const KEYS: u64 = 200_000;
    let store: Store<[u8], u64> = Store::with_options(Options::new().background_collector(false));
    let text = |key: u64| format!("{key:020} of the keys").into_bytes();
    (0..KEYS).for_each(|key| _ = store.insert(text(key).as_slice(), &key).unwrap());
    let stays = |key: &u64| key.is_multiple_of(4);
    (0..KEYS).filter(|key| !stays(key)).for_each(|key| _ = store.remove(text(key).as_slice()));
    std::thread::scope(|scope| {
        let compacts = held("tree.compact.copied", || store.collect_garbage());
        let mut waited = None;
        compacts.meanwhile(|| {
            let overwrite = |key| store.insert(text(key).as_slice(), &(key + KEYS)).unwrap();
            let all = move || (0..KEYS).filter(stays).for_each(|key| _ = overwrite(key));
            let overwrites = scope.spawn(all);
            std::thread::sleep(Duration::from_millis(200));
            waited = Some(!overwrites.is_finished());
        });
        assert_eq!(waited, Some(true), "the leaf was not locked");
    });
    for key in (0..KEYS).filter(stays) {
        assert_eq!(store.get(text(key).as_slice()), Some(key + KEYS), "an overwrite is lost");
    }
}

/// Owners hold pointers to the records of their entries, which must not be moved.
#[test]
fn records_of_owners_stay() {
    const KEYS: usize = 200_000;
    let store = Arc::new(OwnedStore::new(Options::new().background_collector(false)));
    let number = |key: &[u8]| u64::from_str(std::str::from_utf8(key).unwrap()).unwrap();
    let mut owner = Owner::new(&store, Arc::new(move |key: &[u8], _| number(key)));
    let keys: Vec<Vec<u8>> = (0..KEYS).map(|key| format!("{key:040}").into_bytes()).collect();
    let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    let one = |at: usize| Wanted { id: b"", hash: at as u64, value: 7, keys: at..at + 1 };
    let all: Vec<_> = (0..KEYS).map(one).collect();
    let is_of = |subject: &Wanted<'_>, key: &[u8], _: u64| number(key) == subject.hash;
    assert!(owner.is_empty());
    assert_eq!(owner.set_many(&all, &keys, is_of), Ok(KEYS));
    assert_eq!((owner.len(), owner.is_empty()), (KEYS, false));
    let memory = owner.memory();
    assert!((8 * KEYS..64 * KEYS).contains(&memory), "{memory} bytes for {KEYS} addresses");
    assert_eq!(owner.retain(|key, _| number(key).is_multiple_of(4)), KEYS / 4 * 3);
    store.collect_garbage();
    store.collect_garbage();
    assert_eq!(owner.set_many(&all, &keys, is_of), Ok(KEYS / 4 * 3), "the others are there");
    assert_eq!(owner.retain(|_, value| value != 7), KEYS);
    owner.forget();
    assert_eq!((owner.is_empty(), owner.memory()), (true, 0));
    assert_eq!(store.snapshot().len(), 0);
}

/// A compaction has merged and moved leaves. Before it ends, removals make other leaves sparse. The
/// next compaction finds them.
#[cfg(debug_assertions)]
#[test]
fn removals_beside_a_compaction_call_for_the_next_one() {
    const KEYS: u64 = 1_500_000;
    let filled = |keys: &mut dyn Iterator<Item = u64>| {
        let store: Store<u64, u64> =
            Store::with_options(Options::new().background_collector(false));
        keys.for_each(|key| _ = store.insert(&key, &key).unwrap());
        store
    };
    let stays = |key: &u64| key.is_multiple_of(10);
    let store = filled(&mut (0..KEYS));
    let remove =
        |from, to| (from..to).filter(|key| !stays(key)).for_each(|key| _ = store.remove(&key));
    remove(0, KEYS / 2);
    held("tree.compact.moved", || store.collect_garbage()).meanwhile(|| remove(KEYS / 2, KEYS));
    store.collect_garbage();
    let live = filled(&mut (0..KEYS).filter(stays)).memory_usage().total();
    let left = store.memory_usage();
    assert!(left.total() <= 2 * live, "{left:?} for {live} bytes that are live");
    assert_eq!(store.check_invariants().unwrap().entries as u64, KEYS / 10);
}

/// A full leaf first moves entries to its neighbour. Splits alone would leave more unused room in
/// leaves.
#[test]
fn random_inserts_leave_little_room_in_leaves() {
    const KEYS: usize = 100_000;
    let mut random = Random::new(3);
    let keys: Vec<u64> = (0..KEYS).map(|_| random.next_u64()).collect();
    let store = filled_by_inserts(&keys);
    let report = store.check_invariants().unwrap();
    // 42.6 on average, and 40.2 with splits alone.
    let filled = report.entries as f64 / report.nodes as f64;
    assert!(filled > 41.5, "{filled} entries in a leaf");
}
