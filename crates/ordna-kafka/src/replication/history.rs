//! The end of a partition, with which a restarted primary compares its own log.

use std::time::Duration;

use super::assembler::ApplyError;
use super::follower::{FollowError, Follower};
use super::message::{Header, Kind, Run, groups};

/// Number of messages that are read first. If they do not go back far enough, 16 times as many are
/// read.
const FIRST_WINDOW: u64 = 256;

/// The groups of one or more messages.
pub struct Piece {
    /// Position of the first group.
    pub start: u64,
    /// Groups, encoded as in a message.
    pub body: Vec<u8>,
}

/// The end of a partition.
#[derive(Default)]
pub struct History {
    /// Run of the last message, or the default run if there is no message.
    pub last: Run,
    /// Position after the last message.
    pub end: u64,
    /// The primary's time of the last message.
    pub time: u64,
    /// Messages of the requested run after the requested position, in order.
    pub later: Vec<Piece>,
    /// Whether nothing of this is missing.
    pub is_whole: bool,
}

/// Reads the end of a partition to which nothing is written, with the messages after a position of
/// a run.
///
/// # Errors
/// Returns an error if the brokers do not answer in time, or a message is malformed.
pub fn read_end(
    follower: &Follower,
    run: Run,
    position: u64,
    timeout: Duration,
) -> Result<History, FollowError> {
    let (low, high) = follower.ends(timeout)?;
    let mut window = FIRST_WINDOW;
    loop {
        let from = high.saturating_sub(window).max(low);
        let mut reading =
            Reading { run, position, parts: None, first: None, found: <_>::default() };
        follower.catch_up_with(from, timeout, |offset, message| {
            let taken = reading.take(message);
            taken.map_err(|error| ApplyError::Message { offset, error })
        })?;
        let Reading { first, mut found, .. } = reading;
        let reaches = match first {
            Some((first, start)) => first != run || start <= position,
            None => false,
        };
        found.is_whole = found.last != run || reaches;
        // There is nothing before the beginning of the partition.
        if from == low || reaches && found.last != Run::default() {
            return Ok(found);
        }
        window *= 16;
    }
}

struct Reading {
    run: Run,
    position: u64,
    /// Parts of a group that have been read so far.
    parts: Option<Vec<u8>>,
    /// First complete message.
    first: Option<(Run, u64)>,
    found: History,
}

impl Reading {
    fn take(&mut self, message: &[u8]) -> Result<(), super::message::MessageError> {
        let (header, body) = Header::decode(message)?;
        let body = match header.kind {
            Kind::Whole => {
                self.parts = None;
                body.to_vec()
            }
            kind => {
                let mut joined = self.parts.take().unwrap_or_default();
                joined.extend_from_slice(body);
                if kind == Kind::Part {
                    self.parts = Some(joined);
                    return Ok(());
                }
                joined
            }
        };
        let end = match groups(&body, header.position) {
            Ok(all) => all.last().map_or(header.position, |group| group.end()),
            // The window began within the parts of a group.
            Err(_) if self.first.is_none() && header.kind == Kind::LastPart => return Ok(()),
            Err(error) => return Err(error),
        };
        self.first.get_or_insert((header.run, header.position));
        let History { last, end: found, time, later, .. } = &mut self.found;
        (*last, *found, *time) = (header.run, end, header.time);
        if header.run == self.run && end > self.position {
            later.push(Piece { start: header.position, body });
        }
        Ok(())
    }
}
