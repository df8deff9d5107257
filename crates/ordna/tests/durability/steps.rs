//! A scripted sequence of operations on a store, and the states that a crash may leave.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::task::{Context, Waker};

use ordna::durability::{
    BackupError, BackupOptions, Compression, Mode, OpenOptions, Recovery, SyncPolicy,
};
use ordna::{Error, Options, Put, Store, Write};

use super::disk::Model;

pub type Bytes = Store<[u8], [u8]>;
/// Values and deadlines, by key.
pub type State = BTreeMap<Vec<u8>, (Vec<u8>, Option<u64>)>;

pub const DIR: &str = "/data";

/// Returns all compressions of this build.
pub fn compressions() -> Vec<Compression> {
    let mut all = vec![Compression::None, Compression::Lz4];
    all.extend(cfg!(feature = "zstd").then_some(Compression::Zstd));
    all
}

pub fn options(disk: &Model, sync: SyncPolicy) -> OpenOptions {
    // The clock does not advance, so that no deadline passes.
    let store = Options::new().clock(|| 1000).background_collector(false);
    OpenOptions::new().storage(Arc::new(disk.clone())).sync(sync).store(store)
}

/// Waits until everything logged so far is written to the operating system.
pub fn flush(store: &Bytes) {
    let (position, mut context) = (store.log_position(), Context::from_waker(Waker::noop()));
    while store.poll_flushed(position, &mut context).map(Result::unwrap).is_pending() {
        std::thread::yield_now();
    }
}

pub fn state_of(store: &Bytes) -> State {
    let mut state = State::new();
    let all = (Bound::Unbounded, Bound::Unbounded);
    store.visit_entries(all.0, all.1, ordna::Direction::Ascending, |key, put| {
        state.insert(key.to_vec(), (put.value.to_vec(), put.expires_at));
        std::ops::ControlFlow::Continue(())
    });
    state
}

/// One step. After a crash, it has happened completely or not at all.
#[derive(Debug, Clone)]
pub enum Step {
    Put(&'static str, &'static str, Option<u64>),
    Remove(&'static str),
    Expire(&'static str, Option<u64>),
    Batch(Vec<(&'static str, Option<&'static str>)>),
    Group(Vec<(&'static str, Option<&'static str>)>),
    RemoveRange(&'static str, &'static str),
    Backup(Mode),
}

impl Step {
    pub fn apply(&self, state: &mut State) {
        let mut set = |key: &str, value: Option<&str>, deadline| match value {
            Some(value) => {
                state.insert(key.into(), (value.into(), deadline));
            }
            None => {
                state.remove(key.as_bytes());
            }
        };
        match self {
            Self::Put(key, value, deadline) => set(key, Some(value), *deadline),
            Self::Remove(key) => set(key, None, None),
            Self::Expire(key, deadline) => {
                if let Some(entry) = state.get_mut(key.as_bytes()) {
                    entry.1 = *deadline;
                }
            }
            Self::Batch(writes) | Self::Group(writes) => {
                writes.iter().for_each(|(key, value)| set(key, *value, None));
            }
            Self::RemoveRange(from, to) => {
                state.retain(|key, _| {
                    key.as_slice() < from.as_bytes() || key.as_slice() >= to.as_bytes()
                });
            }
            Self::Backup(_) => {}
        }
    }

    pub fn run(&self, store: &Bytes) -> Result<(), String> {
        let text = |error: Error| error.to_string();
        match self {
            Self::Put(key, value, deadline) => {
                let put = Put { value: value.as_bytes(), expires_at: *deadline };
                store.modify_entry(key.as_bytes(), |_| ordna::Change::Put(put)).map_err(text)
            }
            Self::Remove(key) => store
                .modify_entry(key.as_bytes(), |_| ordna::Change::<Put<&[u8]>>::Remove)
                .map_err(text),
            Self::Expire(key, deadline) => {
                store.set_expiry(key.as_bytes(), *deadline).map(|_| ()).map_err(text)
            }
            Self::Batch(writes) => {
                let write = |(key, value): &(&'static str, Option<&'static str>)| match value {
                    Some(value) => Write::put(key.as_bytes(), value.as_bytes()),
                    None => Write::Remove(key.as_bytes()),
                };
                let writes: Vec<_> = writes.iter().map(write).collect();
                store.write_batch(&writes).map_err(text)
            }
            Self::Group(writes) => {
                let work = || {
                    for (key, value) in writes {
                        match value {
                            Some(value) => {
                                store.insert(key.as_bytes(), value.as_bytes()).unwrap();
                            }
                            None => {
                                store.remove(key.as_bytes()).unwrap();
                            }
                        }
                    }
                };
                store.log_group(work).map_err(text)
            }
            Self::RemoveRange(from, to) => {
                let bounds = (Bound::Included(from.as_bytes()), Bound::Excluded(to.as_bytes()));
                store.remove_range(bounds).map(|_| ()).map_err(text)
            }
            Self::Backup(mode) => {
                let options = BackupOptions::new().workers(2).mode(*mode);
                store.backup(&options).map(|_| ()).map_err(|error| error.to_string())
            }
        }
    }
}

/// Returns a sequence with all kinds of writes, and backups between them.
pub fn script() -> Vec<Step> {
    use Step::*;
    vec![
        Put("a", "1", None),
        Put("b", "2", Some(5000)),
        Batch(vec![("c", Some("3")), ("d", Some("4")), ("a", None)]),
        Put("", "the empty key", None),
        Backup(Mode::Live),
        Expire("b", None),
        Group(vec![("e", Some("5")), ("f", Some("6")), ("c", None)]),
        Put("a", "7", None),
        Backup(Mode::Snapshot),
        RemoveRange("c", "f"),
        Put("g", "8", Some(9000)),
        Expire("g", Some(7000)),
        Remove("f"),
        Backup(Mode::Live),
        Batch(vec![("h", Some("9")), ("", None), ("h", Some("10"))]),
        Put("i", "11", None),
    ]
}

/// The result of a sequence: the states that are allowed afterwards.
pub struct Left {
    pub allowed: Vec<State>,
    pub errors: Vec<String>,
}

/// Opens a store and runs the steps. Steps may fail without ending the sequence.
pub fn live(disk: &Model, sync: SyncPolicy, steps: &[Step]) -> Result<Left, BackupError> {
    live_with(options(disk, sync), sync, steps)
}

/// Works like [`live`], with a given way to open the store.
pub fn live_with(
    options: OpenOptions,
    sync: SyncPolicy,
    steps: &[Step],
) -> Result<Left, BackupError> {
    let store = Bytes::open(DIR, options)?;
    let mut left = Left { allowed: vec![state_of(&store)], errors: Vec::new() };
    for step in steps {
        let refused = store.check_log().is_err();
        let before = state_of(&store);
        let done = step.run(&store);
        let mut now = before.clone();
        step.apply(&mut now);
        match done {
            Ok(()) if sync == SyncPolicy::Always || matches!(step, Step::Backup(_)) => {
                let memory = state_of(&store);
                assert_eq!(memory, now, "memory after {step:?}");
                // A backup contains everything in memory, including writes that were never
                // acknowledged.
                left.allowed = vec![memory];
            }
            Ok(()) => left.allowed.push(now),
            Err(error) => {
                left.errors.push(format!("{step:?}: {error}"));
                let memory = state_of(&store);
                // The log's thread may notice a failure just before the step.
                if memory == before {
                    continue;
                }
                assert!(!refused, "{step:?} was refused, and changed the memory");
                if !matches!(step, Step::Backup(_)) {
                    assert_eq!(memory, now, "{step:?} stays in memory");
                    let with: Vec<State> = left
                        .allowed
                        .iter()
                        .cloned()
                        .map(|mut state| {
                            step.apply(&mut state);
                            state
                        })
                        .collect();
                    left.allowed.extend(with);
                }
            }
        }
    }
    Ok(left)
}

/// Opens the disk afterwards, and checks that the store has one of the allowed states.
pub fn check(disk: &Model, left: &Left, context: &str) -> Recovery {
    let store = match Bytes::open(DIR, options(disk, SyncPolicy::Always)) {
        Ok(store) => store,
        Err(error) => panic!("{context}: {error}; errors before: {:?}", left.errors),
    };
    let found = state_of(&store);
    assert!(
        left.allowed.contains(&found),
        "{context}: found {found:?}, allowed {:?}; errors before: {:?}",
        left.allowed,
        left.errors
    );
    store.check_invariants().unwrap();
    // The opened store accepts writes.
    store.insert(b"after", b"x").unwrap();
    let recovery = store.durability().unwrap().recovery;
    drop(store);
    let again = Bytes::open(DIR, options(disk, SyncPolicy::Always)).unwrap();
    assert_eq!(again.get(b"after".as_slice()), Some(b"x".to_vec()), "{context}");
    recovery
}
