//! Assembles the messages of a replicated log, in order, into complete groups.
//!
//! # Invariants
//! 1. Terms never decrease. Within a run, each message begins where the previous one ended.
//! 2. A [`Place`] is between two messages, and never within the parts of a group.

use std::borrow::Cow;

use ordna::BackupError;
use ordna::durability::LogGroup;
use ordna::sync::{check, notice};

use super::message::{Header, Kind, MOST_BODY, MessageError, Run, groups};

/// First bytes of an encoded place.
const MAGIC: &[u8; 8] = b"ORDPLACE";
/// Maximum size in bytes of a group that is split into parts: 16 values of the maximum size.
const MOST_GROUP: usize = 8 << 30;

/// A place in a replicated log: what a state contains, and where to continue.
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

    /// Returns the place as bytes.
    pub fn encode(self) -> Vec<u8> {
        let numbers = self.numbers().into_iter().flat_map(u64::to_le_bytes);
        MAGIC.iter().copied().chain(numbers).collect()
    }

    /// Decodes the result of [`encode`](Self::encode). Returns `None` for other bytes.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (words, []) = bytes.strip_prefix(MAGIC)?.as_chunks() else { return None };
        let numbers: Vec<u64> = words.iter().copied().map(u64::from_le_bytes).collect();
        let [offset, id, term, position, time] = *numbers.as_slice() else { return None };
        Some(Self { offset, run: Run { id, term }, position, time })
    }
}

/// The reason why a message was not applied. The store must be restored, unless it is unchanged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ApplyError {
    /// The bytes are not a message. The store is unchanged.
    #[error("offset {offset}: {error}")]
    Message {
        /// Offset of the message.
        offset: u64,
        /// Reason of the failure.
        error: MessageError,
    },
    /// Messages are missing, or their order is wrong. The store is unchanged.
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
        /// Position at which the message begins.
        at: u64,
        /// Place of the store.
        expected: Place,
    },
    /// The backup is not that of a replicated keyspace.
    #[error("the backup {path} does not name a place in a replicated log")]
    NoPlace {
        /// The backup.
        path: String,
    },
    /// A record could not be repeated, or a backup failed. A part of the message may have been
    /// applied.
    #[error(transparent)]
    Store(#[from] BackupError),
}

/// A group of which some parts have arrived.
struct Parts {
    run: Run,
    start: u64,
    bytes: Vec<u8>,
}

/// Records of complete groups, and the place after them.
#[derive(Debug)]
pub struct Assembled<'a> {
    /// The groups, each with its number of records, their length in bytes, and the records.
    pub(super) body: Cow<'a, [u8]>,
    /// Position of the first group.
    pub start: u64,
    /// The place after the groups.
    pub place: Place,
}

/// Assembles the messages of a partition into complete groups, and checks their order.
#[derive(Default)]
pub struct Assembler {
    place: Place,
    parts: Option<Parts>,
}

impl Assembler {
    /// Creates an assembler that continues at a place.
    pub fn at(place: Place) -> Self {
        Self { place, parts: None }
    }

    /// Returns the place after what was [applied](Self::applied).
    pub fn place(&self) -> Place {
        self.place
    }

    /// Takes the message at an offset. Returns the groups that are complete. They must be applied,
    /// and [`applied`](Self::applied) must be called, before the next message is taken. Messages
    /// before the place are skipped.
    ///
    /// # Errors
    /// Returns an [`ApplyError`] if the message is malformed or out of order.
    pub fn take<'a>(
        &mut self,
        offset: u64,
        message: &'a [u8],
    ) -> Result<Option<Assembled<'a>>, ApplyError> {
        if notice!("replication.offset.is_applied_once", offset < self.place.offset) {
            return Ok(None);
        }
        let malformed = |error| ApplyError::Message { offset, error };
        let (header, body) = Header::decode(message).map_err(malformed)?;
        self.check_order(offset, &header)?;
        let body = match (header.kind, self.parts.take()) {
            (Kind::Whole, _) => Cow::Borrowed(body),
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
                    return Ok(None);
                }
                Cow::Owned(parts.bytes)
            }
        };
        let time = self.place.time.max(header.time);
        let all = groups(&body, header.position).map_err(malformed)?;
        let position = all.last().map_or(header.position, |group| group.end());
        let place = Place { offset: offset + 1, run: header.run, position, time };
        Ok(Some(Assembled { body, start: header.position, place }))
    }

    /// Records that groups were applied.
    pub fn applied(&mut self, place: Place) {
        self.place = place;
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

impl Assembled<'_> {
    /// Returns the groups in order.
    pub fn groups(&self) -> Vec<LogGroup<'_>> {
        groups(&self.body, self.start).unwrap_or_default()
    }
}
