//! Large collections that change while they expire, and starts after their expiry.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use ordna::durability::OpenOptions;
use ordna::sync::schedule::held;
use ordna::{Change, Options, Put, Store};

use crate::keyspace::Keyspace;
use crate::keyspace::edits::hash::HashView;
use crate::keyspace::value_kind::ValueKind;

/// A clock that a test sets.
#[derive(Debug, Clone)]
struct Hands(Arc<AtomicU64>);

impl Hands {
    fn new(now: u64) -> Self {
        Self(Arc::new(AtomicU64::new(now)))
    }

    fn set(&self, now: u64) {
        self.0.store(now, Ordering::SeqCst);
    }

    fn options(&self) -> Options {
        let hands = Arc::clone(&self.0);
        Options::new().clock(move || hands.load(Ordering::SeqCst)).background_collector(false)
    }
}

/// A directory that is removed at the end of the test.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("ordna-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        Self(path)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn open(dir: &Path, hands: &Hands) -> Keyspace {
    let options = OpenOptions::new().store(hands.options());
    Keyspace::of_opened(Store::open(dir, options).unwrap()).unwrap()
}

/// Creates a hash of 600 fields, all with this value.
fn fill(keyspace: &Keyspace, key: &[u8], value: &[u8]) {
    let fields = (0..600).map(|at| format!("f{at}")).collect::<Vec<_>>();
    let done = keyspace.edit_hash(key, true, |hash| {
        fields.iter().try_for_each(|field| hash.set(field.as_bytes(), value).map(drop))
    });
    done.unwrap();
}

fn expire(keyspace: &Keyspace, key: &[u8], at: u64) {
    keyspace.modify_expiry(key, |_| Change::Put(Some(at))).unwrap();
}

/// Returns the number of fields according to the head, and the number of present fields with this
/// value.
fn fields(keyspace: &Keyspace, key: &[u8], value: &[u8]) -> Option<(usize, usize)> {
    let count = |hash: &HashView<'_>| {
        let mut same = 0;
        hash.for_each(|_, found| same += usize::from(found == value));
        (hash.len(), same)
    };
    keyspace.read_hash(key, count).unwrap()
}

fn clean(keyspace: &Keyspace) {
    while keyspace.remove_expired(|_, _| {}).unwrap() {}
    while keyspace.remove_elements().unwrap() > 0 {}
}

fn set(keyspace: &Keyspace, key: &[u8]) {
    keyspace.modify_entry(key, |_| Change::Put(Put::forever(&b"text"[..]))).unwrap();
}

/// A value that is set after the collection has expired is not overwritten by a change, or a change
/// of the deadline, that began earlier.
#[test]
fn a_value_set_after_the_expiry_stays() {
    let hset = |keyspace: &Keyspace| {
        drop(keyspace.edit_hash(b"k", false, |hash| hash.set(b"f1", b"new")));
    };
    for name in ["HSET", "EXPIRE"] {
        let hands = Hands::new(1000);
        let keyspace = &Keyspace::with_options(hands.options());
        fill(keyspace, b"k", b"v");
        expire(keyspace, b"k", 2000);
        let change = held("collections.head.read", || match name {
            "HSET" => hset(keyspace),
            _ => expire(keyspace, b"k", 9000),
        });
        let (done, told) = channel();
        std::thread::scope(|scope| {
            change.meanwhile(|| {
                hands.set(3000);
                scope.spawn(move || {
                    set(keyspace, b"k");
                    done.send(())
                });
                // The other thread may wait for the end of the change.
                let _ = told.recv_timeout(Duration::from_millis(200));
            });
        });
        let found = keyspace.get_with(b"k", <[u8]>::to_vec);
        assert_eq!(found.as_deref(), Some(&b"text"[..]), "beside {name}");
        clean(keyspace);
        assert_eq!((keyspace.count_reserved(), keyspace.approximate_len()), (0, 1), "{name}");
    }
}

/// A start whose clock is behind that of the former process finds an expired collection completely
/// or not at all, and assigns its id to no other collection.
#[test]
fn a_clock_behind_brings_back_no_part_of_a_collection() {
    for cleans in [false, true] {
        let (dir, hands) = (Dir::new("clock-behind"), Hands::new(1000));
        {
            let keyspace = open(&dir.0, &hands);
            fill(&keyspace, b"k", b"v");
            expire(&keyspace, b"k", 2000);
            hands.set(3000);
            if cleans {
                clean(&keyspace);
                assert_eq!(keyspace.count_reserved(), 1, "the layout");
            }
        }
        hands.set(1500);
        let keyspace = open(&dir.0, &hands);
        let whole = [None, Some((600, 600))];
        let found = fields(&keyspace, b"k", b"v");
        assert!(whole.contains(&found), "{found:?}, cleaned: {cleans}");
        fill(&keyspace, b"other", b"w");
        assert!(whole.contains(&fields(&keyspace, b"k", b"v")), "beside another one");
        hands.set(3000);
        clean(&keyspace);
        keyspace.modify_entry::<&[u8]>(b"k", |_| Change::Remove).unwrap();
        clean(&keyspace);
        assert_eq!(fields(&keyspace, b"other", b"w"), Some((600, 600)), "cleaned: {cleans}");
        assert_eq!(
            ValueKind::of(&keyspace.get_with(b"other", <[u8]>::to_vec).unwrap()),
            ValueKind::Hash
        );
    }
}

/// The keys of an older server are converted even if the memory limit is reached.
#[test]
fn the_memory_limit_refuses_no_start() {
    let (dir, hands) = (Dir::new("full-start"), Hands::new(1000));
    let value = vec![b'v'; 10_000];
    {
        let store =
            Store::<[u8], [u8]>::open(&dir.0, OpenOptions::new().store(hands.options())).unwrap();
        for number in 0..100_u8 {
            ordna::OrderedIndex::insert(&store, &[0xFF, number], &value).unwrap();
        }
    }
    let options = OpenOptions::new().store(hands.options().memory_limit(1_200_000));
    let keyspace = Keyspace::of_opened(Store::open(&dir.0, options).unwrap()).unwrap();
    assert_eq!(keyspace.approximate_len(), 100);
    assert_eq!(keyspace.get_with(&[0xFF, 7], <[u8]>::to_vec), Some(value));
}

/// The number of user keys is exact while elements are removed.
#[test]
fn elements_that_are_being_removed_are_no_keys() {
    let keyspace = &Keyspace::with_options(Options::new().background_collector(false));
    (0..9_u8).for_each(|at| set(keyspace, &[b'k', at]));
    fill(keyspace, b"large", b"v");
    assert_eq!(keyspace.approximate_len(), 10);
    keyspace.modify_entry::<&[u8]>(b"large", |_| Change::Remove).unwrap();
    let removed = held("tree.range.leaf_done", || keyspace.remove_elements()).meanwhile(|| {
        assert_eq!((keyspace.approximate_len(), keyspace.statistics().items), (9, 9))
    });
    assert!(removed.unwrap() > 0);
    assert_eq!(keyspace.approximate_len(), 9);
}
