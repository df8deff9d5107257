//! A memtable for LSM engines: versions of keys in memory, until they are flushed to a table on disk.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ordna::tuple::{Decode, DecodeError, Encode, Reader};
use ordna::{Direction, Error, Store};

/// The result of a lookup in a memtable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Version {
    Value(Vec<u8>),
    /// The key was removed, so older tables must not be searched.
    Removed,
}

/// First byte of a stored version.
const VALUE: u8 = 1;
const REMOVED: u8 = 0;

/// A memtable. Its keys are pairs of a user key and a sequence number, newest version first. So the
/// version that a reader at a sequence number sees is the first one at or after a bound. All
/// methods take `&self`, so that writers and readers can share it.
#[derive(Debug)]
pub struct Memtable {
    versions: Store<[u8], [u8]>,
    bytes: AtomicU64,
    newest: AtomicU64,
}

thread_local! {
    /// Encoded bound and stored value, reused by each operation of a thread.
    static SCRATCH: RefCell<(Vec<u8>, Vec<u8>)> = const { RefCell::new((Vec::new(), Vec::new())) };
}

/// Encodes the key of a version, so that keys order as `(user_key, Reverse(sequence))`. Returns the
/// length of the part that all versions of the user key share. No encoded value is a prefix of
/// another one.
fn encode(user_key: &[u8], sequence: u64, out: &mut Vec<u8>) -> usize {
    out.clear();
    user_key.encode(out);
    let shared = out.len();
    Reverse(sequence).encode(out);
    shared
}

fn decode(key: &[u8]) -> Result<(Vec<u8>, u64), DecodeError> {
    let mut reader = Reader::new(key);
    let user_key = Vec::decode(&mut reader)?;
    let Reverse(sequence) = Reverse::decode(&mut reader)?;
    reader.finish()?;
    Ok((user_key, sequence))
}

impl Memtable {
    pub fn new() -> Self {
        Self { versions: Store::new(), bytes: AtomicU64::new(0), newest: AtomicU64::new(0) }
    }

    /// Adds a version; `None` removes the key. The engine assigns the sequence numbers, which are
    /// unique for each key. O(log n).
    pub fn put(&self, user_key: &[u8], sequence: u64, value: Option<&[u8]>) -> Result<(), Error> {
        SCRATCH.with_borrow_mut(|(key, stored)| {
            encode(user_key, sequence, key);
            stored.clear();
            stored.push(if value.is_some() { VALUE } else { REMOVED });
            stored.extend_from_slice(value.unwrap_or_default());
            self.versions.put(key.as_slice(), stored.as_slice())?;
            self.bytes.fetch_add((key.len() + stored.len()) as u64, Ordering::Relaxed);
            self.newest.fetch_max(sequence, Ordering::Release);
            Ok(())
        })
    }

    /// Returns the newest version of a key that is not newer than `at`, or `None` if older tables
    /// must be searched. O(log n).
    pub fn get(&self, user_key: &[u8], at: u64) -> Option<Version> {
        SCRATCH.with_borrow_mut(|(bound, _)| {
            let shared = encode(user_key, at, bound);
            let mut found = None;
            self.versions.visit(
                Bound::Included(bound),
                Bound::Unbounded,
                Direction::Ascending,
                |key, stored| {
                    if key.get(..shared) == bound.get(..shared) {
                        found = Some(version(stored));
                    }
                    ControlFlow::Break(())
                },
            );
            found
        })
    }

    /// Returns the size of all versions in bytes. The engine freezes a memtable that has become
    /// large.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Freezes a memtable that no writer uses any longer.
    pub fn freeze(self: Arc<Self>) -> Frozen {
        Frozen(self)
    }
}

fn version(stored: &[u8]) -> Version {
    match stored.split_first() {
        Some((&VALUE, value)) => Version::Value(value.to_vec()),
        _ => Version::Removed,
    }
}

/// A memtable that is only read until its table is on disk.
#[derive(Debug)]
pub struct Frozen(Arc<Memtable>);

impl Frozen {
    /// Calls `write` with all versions in order: by key, newest first. O(n), without a copy of the values.
    pub fn flush<E>(
        &self,
        mut write: impl FnMut(&[u8], u64, Option<&[u8]>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut done = Ok(());
        let all = (Bound::Unbounded, Bound::Unbounded);
        self.0.versions.visit(all.0, all.1, Direction::Ascending, |key, stored| {
            let (user_key, sequence) = decode(key).expect("`put` encodes all keys");
            let value = stored.strip_prefix(&[VALUE]);
            done = write(&user_key, sequence, value);
            if done.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        done
    }

    /// Returns the newest version that is not newer than `at`; see [`Memtable::get`].
    pub fn get(&self, user_key: &[u8], at: u64) -> Option<Version> {
        self.0.get(user_key, at)
    }

    /// Returns the largest sequence number. When the table is on disk, the engine needs its log
    /// only from there on.
    pub fn newest(&self) -> u64 {
        self.0.newest.load(Ordering::Acquire)
    }
}
