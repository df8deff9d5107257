//! The encoding of a message of the replicated log.
//!
//! All numbers are little-endian.
//!
//! | bytes | field | content |
//! |---|---|---|
//! | 0–3 | magic | `ORDR` |
//! | 4 | version | 1 |
//! | 5 | kind | 0: complete groups, or none; 1: a part of a group; 2: its last part |
//! | 6–7 | | 0 |
//! | 8–15 | run | random id of the run |
//! | 16–23 | term | order of the run among all runs |
//! | 24–31 | position | of the first record in the run's log; of a part, where its group begins |
//! | 32–39 | time | of the primary in milliseconds since 1970, not after the first record |
//! | 40–43 | checksum | CRC32C of bytes 0–39 and of the body |
//! | 44– | body | groups: number of records (8), their length in bytes (8), the records |
//!
//! The joined bodies of the parts of a group are the body of one group.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;

use ordna::checksum::{crc32c, crc32c_append};
use ordna::durability::LogGroup;

const MAGIC: [u8; 4] = *b"ORDR";
const VERSION: u8 = 1;
/// Length in bytes of everything before the body.
const HEADER: usize = 44;
/// Maximum size of a body in bytes: half of what a broker accepts by default.
pub(super) const MOST_BODY: usize = 512 << 10;
/// Length in bytes of what precedes the records of a group.
pub(super) const GROUP_HEADER: usize = 16;

/// Everything that one primary writes, from its promotion to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Run {
    /// A random number that identifies the run.
    pub id: u64,
    /// The term of the previous run plus one.
    pub term: u64,
}

impl Run {
    /// Returns a new run after this one.
    pub fn next(self) -> Self {
        // The system seeds each state.
        let id = RandomState::new().hash_one(self.term);
        Self { id, term: self.term + 1 }
    }
}

/// The reason why bytes are not a message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MessageError {
    /// The message is shorter than its header.
    #[error("a message of {len} bytes is shorter than its header of {HEADER}")]
    Short {
        /// Length of the message in bytes.
        len: usize,
    },
    /// The bytes are not a message of a replicated log, or belong to a later version.
    #[error("the message begins with {0:?}: it is not a message of a replicated log of version 1")]
    Foreign([u8; 5]),
    /// The kind is unknown.
    #[error("unknown kind {0} of a message")]
    Kind(u8),
    /// The checksum does not match.
    #[error("the checksum of the message is {found:08x}, not {expected:08x}")]
    Checksum {
        /// Checksum in the message.
        expected: u32,
        /// Checksum of its bytes.
        found: u32,
    },
    /// The body ends within a group.
    #[error("the body of {len} bytes holds no whole group at byte {at}")]
    Body {
        /// Offset at which the group begins.
        at: usize,
        /// Length of the body in bytes.
        len: usize,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Whole,
    Part,
    LastPart,
}

/// The fields before the body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub kind: Kind,
    pub run: Run,
    pub position: u64,
    pub time: u64,
}

fn word<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

impl Header {
    /// Appends a message with this body.
    pub fn encode(&self, body: &[u8]) -> Vec<u8> {
        let mut message = Vec::with_capacity(HEADER + body.len());
        message.extend_from_slice(&MAGIC);
        message.extend_from_slice(&[VERSION, self.kind as u8, 0, 0]);
        for number in [self.run.id, self.run.term, self.position, self.time] {
            message.extend_from_slice(&number.to_le_bytes());
        }
        let checksum = crc32c_append(crc32c(&message), body);
        message.extend_from_slice(&checksum.to_le_bytes());
        message.extend_from_slice(body);
        message
    }

    /// Returns the header and the body of a message.
    pub fn decode(message: &[u8]) -> Result<(Self, &[u8]), MessageError> {
        let short = MessageError::Short { len: message.len() };
        let (head, body) = message.split_at_checked(HEADER).ok_or(short.clone())?;
        let (covered, _) = head.split_at(HEADER - 4);
        let begin: [u8; 5] = word(head, 0).ok_or(short.clone())?;
        if begin != [b'O', b'R', b'D', b'R', VERSION] {
            return Err(MessageError::Foreign(begin));
        }
        let number = |at| word(head, at).map(u64::from_le_bytes).ok_or(short.clone());
        let expected = word(head, HEADER - 4).map(u32::from_le_bytes).ok_or(short.clone())?;
        let found = crc32c_append(crc32c(covered), body);
        if found != expected {
            return Err(MessageError::Checksum { expected, found });
        }
        let kind = match head.get(5).copied().unwrap_or_default() {
            0 => Kind::Whole,
            1 => Kind::Part,
            2 => Kind::LastPart,
            other => return Err(MessageError::Kind(other)),
        };
        let run = Run { id: number(8)?, term: number(16)? };
        Ok((Self { kind, run, position: number(24)?, time: number(32)? }, body))
    }
}

/// Appends a group to a body.
pub(super) fn add_group(body: &mut Vec<u8>, group: LogGroup<'_>) {
    body.extend_from_slice(&group.count.to_le_bytes());
    body.extend_from_slice(&(group.records.len() as u64).to_le_bytes());
    body.extend_from_slice(group.records);
}

/// Returns the groups of a body, the first of which begins at `position`.
pub(super) fn groups(body: &[u8], mut position: u64) -> Result<Vec<LogGroup<'_>>, MessageError> {
    let (mut at, mut all) = (0, Vec::new());
    while at < body.len() {
        let group = word(body, at).zip(word(body, at + 8)).and_then(|(count, len)| {
            let len = usize::try_from(u64::from_le_bytes(len)).ok()?;
            let records = body.get(at + GROUP_HEADER..)?.get(..len)?;
            Some(LogGroup { start: position, records, count: u64::from_le_bytes(count) })
        });
        let group = group.ok_or(MessageError::Body { at, len: body.len() })?;
        at += GROUP_HEADER + group.records.len();
        // A sum that wraps is detected as a gap.
        position = position.wrapping_add(group.records.len() as u64);
        all.push(group);
    }
    Ok(all)
}
