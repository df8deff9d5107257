//! Tests of writes at a position within a value: they must behave like those of a vector, whatever
//! snapshots keep.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ordna::{Found, Options, Snapshot, Store};
use ordna_base::{Error, value};
use ordna_testkit::memory::live_here;
use ordna_testkit::random::Random;

type Strings = Store<[u8], [u8]>;

/// Random writes on a few keys are compared with writes on vectors, and so is every snapshot, until
/// it ends. Splits, merges and prunes occur often.
#[test]
fn splices_are_those_of_vectors_and_snapshots_keep_the_bytes_of_before() {
    type Model = std::collections::BTreeMap<Vec<u8>, Vec<u8>>;
    type Held = Vec<(Snapshot<[u8], [u8]>, Model)>;
    fn check(snapshot: &Snapshot<[u8], [u8]>, model: &Model) {
        let held: Vec<_> = snapshot.iter().collect();
        let wanted: Vec<_> = model.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
        assert!(held == wanted, "a snapshot has changed");
    }
    let before = live_here();
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let store = Strings::with_options(Options::new().background_collector(false).sizes(3, 3));
        let mut model = Model::new();
        let mut snapshots = Held::new();
        for step in 0..400_u64 {
            let key = vec![b'k', random.below(6) as u8];
            let bytes = vec![step as u8; random.below(200) as usize];
            match random.below(10) {
                0..=4 => {
                    let value = model.entry(key.clone()).or_default();
                    value.extend(&bytes);
                    assert_eq!(store.append(&key, &bytes), Ok(value.len()));
                }
                5 | 6 => {
                    let value = model.entry(key.clone()).or_default();
                    let at = random.below(value.len() as u64 + 100) as usize;
                    let end = at + bytes.len();
                    value.resize(value.len().max(end).max(at), 0);
                    value[at..end].copy_from_slice(&bytes);
                    let write = |_: Option<Found<'_, [u8]>>| Some((at, &bytes));
                    assert_eq!(store.splice(&key, write), Ok(Some(value.len())));
                }
                7 => {
                    store.insert(&key, &bytes).unwrap();
                    model.insert(key, bytes);
                }
                8 => {
                    assert_eq!(store.remove(&key), Ok(model.remove(&key)));
                }
                _ if snapshots.len() < 5 => snapshots.push((store.snapshot(), model.clone())),
                _ => {
                    let gone = snapshots.swap_remove(random.below(5) as usize);
                    check(&gone.0, &gone.1);
                }
            }
        }
        check(&store.snapshot(), &model);
        snapshots.iter().for_each(|(snapshot, model)| check(snapshot, model));
        store.check_invariants().unwrap();
        snapshots.clear();
        store.collect_garbage();
        store.remove_range(..).unwrap();
        assert_eq!(store.statistics().bytes, 0, "seed {seed}");
    }
    let left = live_here() - before;
    assert!(left < 64 << 10, "{left} bytes are not freed");
}

/// Appends to a large value neither copy it nor leave garbage of its size. Its removal gives
/// everything back.
#[test]
fn appends_to_a_large_value_leave_no_garbage_of_its_size() {
    const LARGE: usize = 12 << 20;
    let store = Strings::with_options(Options::new().background_collector(false));
    let before = live_here();
    store.insert(b"large", &vec![7; LARGE]).unwrap();
    let (mut most, mut len) = (0, LARGE);
    for _ in 0..1200 {
        len = store.append(b"large", &[8; 1000]).unwrap();
        most = most.max(live_here() - before);
    }
    assert_eq!(len, LARGE + 1_200_000);
    let room = 2 << 20;
    // When the value outgrew its room, its previous buffer could only be freed after this thread's
    // guard had ended.
    assert!(most < 2 * (len + room) as i64, "{most} bytes for a value of {len}");
    assert!(store.statistics().bytes < len + room);
    assert_eq!(store.remove(b"large").unwrap().map(|value| value.len()), Some(len));
    assert_eq!(store.statistics().bytes, 0);
    let left = live_here() - before;
    assert!(left < 1 << 20, "{left} bytes are held after the removal");
}

/// Spare room counts towards the limit. At the limit an append is refused without any effect, and
/// removals free all memory.
#[test]
fn room_counts_against_the_limit() {
    let store =
        Strings::with_options(Options::new().memory_limit(10_000).background_collector(false));
    let mut len = 0;
    let refused = loop {
        match store.append(b"key", &[1; 100]) {
            Ok(longer) => len = longer,
            Err(error) => break error,
        }
    };
    assert_eq!(refused, Error::MemoryLimit { limit: 10_000 });
    // If no spare room was counted, the value would reach the limit.
    assert!((9_500..10_000).contains(&len), "{len}");
    assert_eq!(store.get(b"key".as_slice()).map(|value| value.len()), Some(len));
    assert!(store.statistics().bytes <= 10_000);
    let room = store.statistics().bytes;
    let snapshot = store.snapshot();
    assert!(store.append(b"key", b"x").is_err(), "the snapshot would keep the entry");
    drop(snapshot);
    store.collect_garbage();
    assert_eq!(store.statistics().bytes, room);
    store.remove(b"key").unwrap();
    assert_eq!(store.statistics().bytes, 0);
    let far = |_: Option<Found<'_, [u8]>>| Some((value::MAX_LEN, b"x"));
    assert_eq!(store.splice(b"key", far), Err(Error::ValueTooLong { len: value::MAX_LEN + 1 }));
    assert_eq!(store.splice(b"key", |_| None::<(usize, &[u8])>), Ok(None));
    assert_eq!(store.get(b"key".as_slice()), None);
}

/// An expired value counts as absent. Writes at a position keep the deadline.
#[test]
fn deadlines_stay_and_what_has_expired_is_begun_anew() {
    let now = Arc::new(AtomicU64::new(0));
    let clock = Arc::clone(&now);
    let clock = move || clock.load(Ordering::SeqCst);
    let store = Strings::with_options(Options::new().background_collector(false).clock(clock));
    store.insert_until(b"key", &[1; 300], 10).unwrap();
    assert_eq!(store.append(b"key", &[2; 300]), Ok(600));
    assert_eq!(store.append(b"key", &[3; 10]), Ok(610));
    assert_eq!(store.expiry(b"key"), Some(Some(10)));
    now.store(11, Ordering::SeqCst);
    assert_eq!(store.append(b"key", b"new"), Ok(3));
    assert_eq!(store.expiry(b"key"), Some(None));
    store.collect_garbage();
    assert_eq!(store.get(b"key".as_slice()).as_deref(), Some(b"new".as_slice()));
    store.remove(b"key").unwrap();
    assert_eq!((store.statistics().bytes, store.statistics().expiring.0), (0, 0));
}

/// Threads append to the same keys while others read them, take snapshots and remove them. A value
/// always consists of whole appends, and a snapshot's value never changes.
#[test]
fn readers_and_snapshots_see_whole_appends() {
    const PIECE: usize = 40;
    let rounds = 4000;
    let store = Strings::with_options(Options::new().sizes(3, 3));
    let (stop, torn) = (AtomicBool::new(false), AtomicU64::new(0));
    let check = |value: &[u8]| {
        let whole = value.chunks(PIECE).all(|piece| {
            piece.len() == PIECE && piece.iter().all(|byte| *byte == piece[0] && *byte != 0)
        });
        if !whole {
            torn.fetch_add(1, Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| {
        let writers: Vec<_> = (1..=2_u8)
            .map(|writer| {
                let store = &store;
                scope.spawn(move || {
                    let mut random = Random::new(u64::from(writer));
                    for round in 0..rounds {
                        let key = [random.below(5) as u8];
                        store.append(&key, &[writer; PIECE]).unwrap();
                        if round % 200 == 0 {
                            store.remove(&key).unwrap();
                        }
                    }
                })
            })
            .collect();
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let snapshot = store.snapshot();
                    let held: Vec<_> = snapshot.iter().collect();
                    (0..5).for_each(|key| _ = store.get_with(&[key], check));
                    held.iter().for_each(|(_, value)| check(value));
                    assert!(held == snapshot.iter().collect::<Vec<_>>(), "a snapshot changed");
                }
            });
        }
        for writer in writers {
            writer.join().unwrap();
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(torn.load(Ordering::Relaxed), 0);
    store.collect_garbage();
    store.remove_range(..).unwrap();
    store.collect_garbage();
    assert_eq!(store.statistics().bytes, 0);
    store.check_invariants().unwrap();
}
