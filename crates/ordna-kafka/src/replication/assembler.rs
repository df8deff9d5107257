//! Messages of a replicated log in their order, as whole groups.
//!
//! # Invariants
//! 1. Terms do not fall. Within a run, each message begins where the one before it ended.
//! 2. A [`Place`] is between two messages, and never within the parts of a group.

use std::borrow::Cow;

use ordna::BackupError;
use ordna::durability::LogGroup;
use ordna::sync::{check, notice};

use super::message::{Header, Kind, MOST_BODY, MessageError, Run, groups};

/// Begin of an encoded place.
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

    /// Returns the place as bytes.
    pub fn encode(self) -> Vec<u8> {
        let numbers = self.numbers().into_iter().flat_map(u64::to_le_bytes);
        MAGIC.iter().copied().chain(numbers).collect()
    }

    /// Reads what [`encode`](Self::encode) returned; `None` if it is something else.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
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

/// Records of whole groups, and the place after them.
#[derive(Debug)]
pub struct Assembled<'a> {
    /// The groups: for each the number of records, their length in bytes, and the records.
    pub(super) body: Cow<'a, [u8]>,
    /// Position of the first group.
    pub start: u64,
    /// The place after the groups.
    pub place: Place,
}

/// Brings the messages of a partition into whole groups, and checks their order.
#[derive(Default)]
pub struct Assembler {
    place: Place,
    parts: Option<Parts>,
}

impl Assembler {
    /// Continues at a place.
    pub fn at(place: Place) -> Self {
        Self { place, parts: None }
    }

    /// The place of what was [applied](Self::applied).
    pub fn place(&self) -> Place {
        self.place
    }

    /// Takes the message at an offset; returns groups that are complete. They must be applied, and
    /// then [`applied`](Self::applied) called, before the next message is taken. Messages before
    /// the place are skipped.
    ///
    /// # Errors
    /// [`ApplyError`].
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

    /// Notes that groups were applied.
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
    /// The groups in their order.
    pub fn groups(&self) -> Vec<LogGroup<'_>> {
        groups(&self.body, self.start).unwrap_or_default()
    }
}
