//! Messages of a replicated log, repeated on a store.
//!
//! # Invariants
//! 1. The store's state is that of the primary after one group: between two messages, after the
//!    last group of the first.
//! 2. Terms do not fall. Within a run, each message begins where the one before it ended.
//! 3. The clock of the store never runs ahead of the primary's time of the last message, so a key
//!    does not expire before a record that lifts its deadline.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ordna::durability::{BackupOptions, Manifest};
use ordna::sync::{check, notice};
use ordna::{BackupError, Key, OpenOptions, Options, Store, Value};

use super::message::{Header, Kind, MOST_BODY, MessageError, Run, groups};

/// Begin of the metadata of a backup.
const MAGIC: &[u8; 8] = b"ORDPLACE";
/// Most bytes of one group that comes in parts: 16 values of the largest size.
const MOST_GROUP: usize = 8 << 30;

/// A place in a replicated log: what a state holds, and where to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Place {
    /// The next offset of the partition.
    pub offset: u64,
    /// The run of the last message.
    pub run: Run,
    /// Position in the run's log after the last group.
    pub position: u64,
    /// The primary's time of the last message, in milliseconds since 1970.
    pub time: u64,
}

impl Place {
    fn numbers(self) -> [u64; 5] {
        [self.offset, self.run.id, self.run.term, self.position, self.time]
    }

    fn encode(self) -> Vec<u8> {
        let numbers = self.numbers().into_iter().flat_map(u64::to_le_bytes);
        MAGIC.iter().copied().chain(numbers).collect()
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (words, []) = bytes.strip_prefix(MAGIC)?.as_chunks() else { return None };
        let numbers: Vec<u64> = words.iter().copied().map(u64::from_le_bytes).collect();
        let [offset, id, term, position, time] = *numbers.as_slice() else { return None };
        Some(Self { offset, run: Run { id, term }, position, time })
    }
}

/// Why a message was not applied. The store must be restored, unless nothing of it was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ApplyError {
    /// The bytes are no message. Nothing is changed.
    #[error("offset {offset}: {error}")]
    Message {
        /// Offset of the message.
        offset: u64,
        /// What is wrong.
        error: MessageError,
    },
    /// Messages are missing, or their order is wrong. Nothing is changed.
    #[error(
        "offset {offset}: the message continues run {:x} of term {} at {}, after run {:x} of term \
         {} at {}",
        found.id, found.term, at, expected.run.id, expected.run.term, expected.position
    )]
    Gap {
        /// Offset of the message.
        offset: u64,
        /// The run of the message.
        found: Run,
        /// Where the message begins.
        at: u64,
        /// Where the store is.
        expected: Place,
    },
    /// A backup is not one of a replicated keyspace.
    #[error("the backup {path} does not name a place in a replicated log")]
    NoPlace {
        /// The backup.
        path: String,
    },
    /// A record could not be repeated, or a backup failed. A part of the message may be applied.
    #[error(transparent)]
    Store(#[from] BackupError),
}

/// A group of which parts have come.
struct Parts {
    run: Run,
    start: u64,
    bytes: Vec<u8>,
}

/// The store of a follower, which only the applier writes.
pub struct Applier<K: Key + ?Sized, V: Value + ?Sized> {
    store: Arc<Store<K, V>>,
    place: Place,
    parts: Option<Parts>,
    clock: Arc<AtomicU64>,
}

impl<K: Key + ?Sized, V: Value + ?Sized> Applier<K, V> {
    /// An empty store, for a partition that is read from its beginning.
    pub fn new(options: Options) -> Self {
        let clock = Arc::new(AtomicU64::new(0));
        let store = Store::with_options(with_clock(options, &clock));
        Self { store: Arc::new(store), place: Place::default(), parts: None, clock }
    }

    /// The state of a backup that [`back_up`](Self::back_up) wrote. O(n).
    ///
    /// # Errors
    /// The backup is damaged, or names no place.
    pub fn restore(backup: &Path, options: Options) -> Result<Self, ApplyError> {
        let manifest = Manifest::read(&ordna::durability::Disk, backup)?;
        let place = Place::decode(&manifest.metadata(backup)?)
            .ok_or_else(|| ApplyError::NoPlace { path: backup.display().to_string() })?;
        let clock = Arc::new(AtomicU64::new(place.time));
        let options = OpenOptions::new().store(with_clock(options, &clock));
        let store = Store::restore(backup, options)?;
        Ok(Self { store: Arc::new(store), place, parts: None, clock })
    }

    /// Writes a backup of the state with its place, into a directory that does not exist. O(n).
    ///
    /// # Errors
    /// [`ApplyError::Store`].
    pub fn back_up(&mut self, target: &Path) -> Result<(), ApplyError> {
        // Parts of a group are not in the state: a restart reads them again.
        let place = self.place.encode();
        let options = BackupOptions::new().metadata(move || place.clone());
        self.store.backup_to(target, &options)?;
        Ok(())
    }

    /// The store, to read.
    pub fn store(&self) -> &Arc<Store<K, V>> {
        &self.store
    }

    /// The place of the state.
    pub fn place(&self) -> Place {
        self.place
    }

    /// Applies the message at an offset; one before the [place](Self::place) was applied before.
    ///
    /// # Errors
    /// [`ApplyError`].
    pub fn apply(&mut self, offset: u64, message: &[u8]) -> Result<(), ApplyError> {
        if notice!("replication.offset.is_applied_once", offset < self.place.offset) {
            return Ok(());
        }
        let malformed = |error| ApplyError::Message { offset, error };
        let (header, body) = Header::decode(message).map_err(malformed)?;
        self.check_order(offset, &header)?;
        let joined;
        let body = match (header.kind, self.parts.take()) {
            (Kind::Whole, _) => body,
            (kind, parts) => {
                let (run, start) = (header.run, header.position);
                let mut parts = parts.unwrap_or(Parts { run, start, bytes: Vec::new() });
                if body.len() > MOST_BODY || parts.bytes.len() > MOST_GROUP {
                    let len = parts.bytes.len();
                    return Err(malformed(MessageError::Body { at: 0, len }));
                }
                parts.bytes.extend_from_slice(body);
                if kind == Kind::Part {
                    self.parts = Some(parts);
                    return Ok(());
                }
                joined = parts.bytes;
                joined.as_slice()
            }
        };
        let all = groups(body, header.position).map_err(malformed)?;
        let time = self.place.time.max(header.time);
        // Relaxed: a reader that sees an earlier time sees an earlier state.
        self.clock.store(time, Ordering::Relaxed);
        let mut position = header.position;
        for group in all {
            self.store.repeat_log_group(group.records, group.count)?;
            position = group.end();
        }
        self.place = Place { offset: offset + 1, run: header.run, position, time };
        Ok(())
    }

    fn check_order(&self, offset: u64, header: &Header) -> Result<(), ApplyError> {
        let Place { run, position, .. } = self.place;
        let continues = match &self.parts {
            Some(parts) => {
                let is_next = (parts.run, parts.start) == (header.run, header.position);
                is_next && header.kind != Kind::Whole
            }
            None if header.run == run => {
                check!("replication.position.has_no_gap", header.position == position)
            }
            None => check!("replication.term.grows", header.run.term > run.term),
        };
        if continues {
            return Ok(());
        }
        let (found, at, expected) = (header.run, header.position, self.place);
        Err(ApplyError::Gap { offset, found, at, expected })
    }
}

fn with_clock(options: Options, clock: &Arc<AtomicU64>) -> Options {
    let clock = Arc::clone(clock);
    options.clock(move || clock.load(Ordering::Relaxed))
}
