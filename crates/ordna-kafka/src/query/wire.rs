//! The binary format of requests between nodes and of their answers.
//!
//! # Format
//! A request is a bulk string with the version and the fields of [`Request`], encoded by postcard.
//! An answer is a bulk string with a header, encoded by postcard, followed by the concatenated keys
//! of all rows. The header contains the length of each key and of the id at its end. Values of a
//! selection are encoded as tuples (`docs/TUPLE.md`).
//!
//! Any bytes can be decoded, either to a value or to [`Garbled`]. The memory needed is a small
//! multiple of the input.

use std::ops::Bound;
use std::time::Duration;

use ordna::tuple::{Value, decode, encode};
use ordna_secondary::{Error, IndexDefinition, KeyBounds, Position, Range};
use serde::{Deserialize, Serialize};

use crate::node::{NodeError, RequestedState};
use crate::query::rows::{Rows, Run, Scan, Selection, contains};

/// The first byte of requests and answers. Nodes of other versions refuse them.
const VERSION: u8 = 1;

/// The error for bytes that are not a request or an answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Garbled(pub String);

/// A question from one node to another: a scan of some partitions, or a count of their entries.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// The entries to read or to count.
    pub scan: Scan,
    /// Whether to count the entries instead of returning them.
    pub counts: bool,
    /// Fingerprint of the index's definition.
    pub fingerprint: u32,
    /// The partitions, with the requested state of each.
    pub partitions: Vec<(u32, RequestedState)>,
    /// How long the owner may wait for the states.
    pub time: Duration,
}

/// The state of a partition in an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// The position up to which the rows, or the count, contain changes.
    pub position: Position,
    /// Upper bound of their age.
    pub age: Duration,
    /// Number of entries, if the request counts.
    pub count: u64,
}

/// The reason why a node does not answer for a partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// The node does not hold the partition.
    NotHeld,
    /// The node is restoring the partition.
    Restoring {
        /// Number of records read so far.
        done: u64,
        /// Number of records to read.
        of: u64,
    },
    /// The requested state was not reached in time.
    Late,
    /// No node can answer this query.
    Query(String),
    /// Another failure.
    Failed(String),
}

impl From<NodeError> for Refusal {
    fn from(error: NodeError) -> Self {
        match error {
            NodeError::NotHeld { .. } => Self::NotHeld,
            NodeError::Restoring { done, of, .. } => Self::Restoring { done, of },
            NodeError::Index(Error::Timeout { .. }) => Self::Late,
            NodeError::Index(
                error @ (Error::UnknownIndex(_)
                | Error::BadQuery { .. }
                | Error::BadCursor(_)
                | Error::CursorOfDroppedIndex
                | Error::PartitionCount { .. }),
            ) => Self::Query(error.to_string()),
            other => Self::Failed(other.to_string()),
        }
    }
}

/// The answer to a [`Request`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answer {
    /// For each requested partition, its state, or why there is none.
    pub parts: Vec<(u32, Result<Part, Refusal>)>,
    /// The first rows of the partitions that have a state, in the order of the scan.
    pub run: Run,
}

#[derive(Serialize, Deserialize)]
enum WireRange {
    All,
    Between(Bound<Vec<u8>>, Bound<Vec<u8>>),
    StartsWith(String),
}

#[derive(Serialize, Deserialize)]
struct WireRequest {
    version: u8,
    index: String,
    prefix: Vec<Vec<u8>>,
    range: WireRange,
    reverse: bool,
    distinct: Option<u32>,
    after: Option<Vec<u8>>,
    limit: u32,
    bytes: u32,
    counts: bool,
    fingerprint: u32,
    partitions: Vec<(u32, WireAsked)>,
    millis: u32,
}

#[derive(Serialize, Deserialize)]
enum WireAsked {
    Any,
    AtPlus(u64, u64),
    RequestPlus,
}

#[derive(Serialize, Deserialize)]
struct WirePart {
    identity: u64,
    seq: u64,
    age_millis: u64,
    count: u64,
}

#[derive(Serialize, Deserialize)]
struct WireHead {
    version: u8,
    parts: Vec<(u32, Result<WirePart, Refusal>)>,
    more: bool,
    /// For each row, the length of the key and that of the id.
    lengths: Vec<(u16, u16)>,
}

fn small(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn encoded<T: Serialize>(value: &T) -> Vec<u8> {
    // The encoding of these types into a growing buffer cannot fail.
    postcard::to_allocvec(value).unwrap_or_default()
}

fn garbled(what: &'static str) -> impl Fn(postcard::Error) -> Garbled {
    move |error| Garbled(format!("{what}: {error}"))
}

impl Request {
    /// Encodes the request.
    pub fn encode(&self) -> Vec<u8> {
        let Scan { selection, reverse, distinct, after, limit, bytes } = &self.scan;
        let bound = |bound: &Bound<Value>| bound.as_ref().map(encode);
        let asked = |asked: &RequestedState| match asked {
            RequestedState::Any => WireAsked::Any,
            RequestedState::AtPlus(position) => WireAsked::AtPlus(position.identity, position.seq),
            RequestedState::RequestPlus => WireAsked::RequestPlus,
        };
        encoded(&WireRequest {
            version: VERSION,
            index: selection.index.clone(),
            prefix: selection.prefix.iter().map(encode).collect(),
            range: match &selection.range {
                Range::All => WireRange::All,
                Range::Between(lower, upper) => WireRange::Between(bound(lower), bound(upper)),
                Range::StartsWith(text) => WireRange::StartsWith(text.clone()),
            },
            reverse: *reverse,
            distinct: distinct.map(small),
            after: after.clone(),
            limit: small(*limit),
            bytes: small(*bytes),
            counts: self.counts,
            fingerprint: self.fingerprint,
            partitions: self.partitions.iter().map(|(p, state)| (*p, asked(state))).collect(),
            millis: u32::try_from(self.time.as_millis()).unwrap_or(u32::MAX),
        })
    }

    /// Decodes a request.
    ///
    /// # Errors
    /// [`Garbled`].
    pub fn decode(bytes: &[u8]) -> Result<Self, Garbled> {
        check_version(bytes)?;
        let wire: WireRequest = postcard::from_bytes(bytes).map_err(garbled("the request"))?;
        let value = |bytes: &Vec<u8>| {
            decode::<Value>(bytes).map_err(|error| Garbled(format!("a value: {error}")))
        };
        let bound = |bound: &Bound<Vec<u8>>| match bound {
            Bound::Included(bytes) => value(bytes).map(Bound::Included),
            Bound::Excluded(bytes) => value(bytes).map(Bound::Excluded),
            Bound::Unbounded => Ok(Bound::Unbounded),
        };
        let asked = |(partition, asked): (u32, WireAsked)| match asked {
            WireAsked::Any => (partition, RequestedState::Any),
            WireAsked::AtPlus(identity, seq) => {
                (partition, RequestedState::AtPlus(Position { identity, seq }))
            }
            WireAsked::RequestPlus => (partition, RequestedState::RequestPlus),
        };
        let selection = Selection {
            index: wire.index,
            prefix: wire.prefix.iter().map(value).collect::<Result<_, _>>()?,
            range: match &wire.range {
                WireRange::All => Range::All,
                WireRange::Between(lower, upper) => Range::Between(bound(lower)?, bound(upper)?),
                WireRange::StartsWith(text) => Range::StartsWith(text.clone()),
            },
        };
        let scan = Scan {
            selection,
            reverse: wire.reverse,
            distinct: wire.distinct.map(|parts| parts as usize),
            after: wire.after,
            limit: wire.limit as usize,
            bytes: wire.bytes as usize,
        };
        Ok(Self {
            scan,
            counts: wire.counts,
            fingerprint: wire.fingerprint,
            partitions: wire.partitions.into_iter().map(asked).collect(),
            time: Duration::from_millis(u64::from(wire.millis)),
        })
    }
}

fn check_version(bytes: &[u8]) -> Result<(), Garbled> {
    match bytes.first() {
        Some(&VERSION) => Ok(()),
        Some(other) => Err(Garbled(format!("version {other}, not {VERSION}"))),
        None => Err(Garbled("nothing".to_owned())),
    }
}

impl Answer {
    /// Encodes the answer.
    pub fn encode(&self) -> Vec<u8> {
        let part = |part: &Part| WirePart {
            identity: part.position.identity,
            seq: part.position.seq,
            age_millis: u64::try_from(part.age.as_millis()).unwrap_or(u64::MAX),
            count: part.count,
        };
        let parts = self.parts.iter();
        let rows = 0..self.run.rows.len();
        let mut bytes = encoded(&WireHead {
            version: VERSION,
            parts: parts
                .map(|(p, state)| (*p, state.as_ref().map(part).map_err(Clone::clone)))
                .collect(),
            more: self.run.more,
            lengths: rows
                .map(|row| (self.run.rows.key(row).len() as u16, self.run.rows.id_len(row) as u16))
                .collect(),
        });
        bytes.extend_from_slice(&self.run.rows.keys);
        bytes
    }

    /// Decodes an answer.
    ///
    /// # Errors
    /// [`Garbled`].
    pub fn decode(bytes: &[u8]) -> Result<Self, Garbled> {
        check_version(bytes)?;
        let (head, keys) =
            postcard::take_from_bytes::<WireHead>(bytes).map_err(garbled("the answer"))?;
        let mut ends = Vec::with_capacity(head.lengths.len());
        let mut end = 0_usize;
        for (key, id) in head.lengths {
            if id > key {
                return Err(Garbled(format!("an id of {id} bytes in a key of {key}")));
            }
            end += usize::from(key);
            ends.push((small(end), id));
        }
        if end != keys.len() {
            return Err(Garbled(format!("{} bytes of keys, not {end}", keys.len())));
        }
        let part = |part: WirePart| Part {
            position: Position { identity: part.identity, seq: part.seq },
            age: Duration::from_millis(part.age_millis),
            count: part.count,
        };
        let parts = head.parts.into_iter().map(|(p, state)| (p, state.map(part))).collect();
        let run = Run { rows: Rows { keys: keys.to_vec(), ends }, more: head.more };
        Ok(Self { parts, run })
    }

    /// Checks that this is a possible answer to a request whose rows are within `bounds`.
    ///
    /// # Errors
    /// [`Garbled`] describes the first contradiction. An answer with one must not be used.
    pub fn check(&self, request: &Request, bounds: &KeyBounds) -> Result<(), Garbled> {
        let bad = |what: String| Err(Garbled(what));
        let named = self.parts.iter().map(|(partition, _)| partition);
        let asked = request.partitions.iter().map(|(partition, _)| partition);
        if !named.eq(asked) {
            return bad("other partitions than those asked for".to_owned());
        }
        for ((partition, state), (_, asked)) in self.parts.iter().zip(&request.partitions) {
            let Ok(part) = state else { continue };
            let reaches = match asked {
                RequestedState::AtPlus(least) => {
                    least.seq == 0
                        || part.position.identity == least.identity
                            && part.position.seq >= least.seq
                }
                RequestedState::Any | RequestedState::RequestPlus => true,
            };
            if !reaches || part.position.identity == 0 {
                return bad(format!("partition {partition} at {:?}", part.position));
            }
        }
        let (rows, most) = (self.run.rows.len(), request.scan.limit);
        if rows > most || request.counts && rows > 0 {
            return bad(format!("{rows} rows, not {most} at most"));
        }
        if self.run.rows.bytes() > request.scan.bytes && rows > 1 {
            return bad(format!("{} bytes of keys", self.run.rows.bytes()));
        }
        if self.run.more && rows == 0 && most > 0 {
            return bad("rows follow, but there is none".to_owned());
        }
        for row in 0..rows {
            let key = self.run.rows.key(row);
            if !contains(bounds, key) {
                return bad(format!("row {row} lies outside of the bounds"));
            }
            if row > 0 && (self.run.rows.key(row - 1) < key) == request.scan.reverse {
                return bad(format!("row {row} is out of order"));
            }
            if row > 0 && self.run.rows.key(row - 1) == key {
                return bad(format!("row {row} comes twice"));
            }
        }
        Ok(())
    }
}

/// Returns a hash of an index's definition. Nodes with different definitions must not merge their
/// rows.
pub fn fingerprint(definition: &IndexDefinition) -> u32 {
    ordna::checksum::crc32(&serde_json::to_vec(definition).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> Request {
        let upper = Bound::Excluded(Value::Bool(true));
        let selection = Selection {
            index: "by_size".to_owned(),
            prefix: vec![Value::String("SE".to_owned()), Value::Null],
            range: Range::Between(Bound::Unbounded, upper),
        };
        let after = Some(b"key".to_vec());
        let scan =
            Scan { selection, reverse: true, distinct: Some(2), after, limit: 3, bytes: 1000 };
        let at = RequestedState::AtPlus(Position { identity: 7, seq: 9 });
        let partitions = vec![(0, RequestedState::Any), (4, at), (5, RequestedState::RequestPlus)];
        let time = Duration::from_millis(250);
        Request { scan, counts: false, fingerprint: 77, partitions, time }
    }

    fn answer() -> Answer {
        let part = |seq| {
            let position = Position { identity: 7, seq };
            Ok(Part { position, age: Duration::from_millis(5), count: 0 })
        };
        let parts = vec![(0, part(1)), (4, part(9)), (5, Err(Refusal::NotHeld))];
        let mut rows = Rows::default();
        ["cid", "bid", "aid"].iter().for_each(|key| rows.push(key.as_bytes(), 2));
        Answer { parts, run: Run { rows, more: true } }
    }

    fn all() -> KeyBounds {
        (Bound::Unbounded, Bound::Unbounded)
    }

    #[test]
    fn requests_and_answers_come_back_as_they_were() {
        assert_eq!(Request::decode(&request().encode()), Ok(request()));
        assert_eq!(Answer::decode(&answer().encode()), Ok(answer()));
        assert_eq!(answer().check(&request(), &all()), Ok(()));
    }

    #[test]
    fn bytes_cut_short_or_changed_are_refused_or_decode_to_something_else() {
        for whole in [request().encode(), answer().encode()] {
            for length in 0..whole.len() {
                assert!(Answer::decode(&whole[..length]).is_err(), "{length}");
            }
            for at in 0..whole.len() {
                for bit in 0..8 {
                    let mut bytes = whole.clone();
                    bytes[at] ^= 1 << bit;
                    // Decoding neither panics nor uses much more memory than the input.
                    let _ = Request::decode(&bytes);
                    let _ = Answer::decode(&bytes).map(|answer| answer.check(&request(), &all()));
                }
            }
        }
        let whole = request().encode();
        assert!((0..whole.len()).all(|length| Request::decode(&whole[..length]).is_err()));
    }

    #[test]
    fn an_answer_that_does_not_fit_its_request_is_refused() {
        let says = |change: fn(&mut Answer), bounds: KeyBounds| {
            let mut answer = answer();
            change(&mut answer);
            answer.check(&request(), &bounds).map_or_else(|garbled| garbled.0, |()| String::new())
        };
        assert!(says(|a| a.parts[1].0 = 3, all()).contains("other partitions"));
        assert!(says(|a| drop(a.parts.pop()), all()).contains("other partitions"));
        let behind = |a: &mut Answer| {
            let position = Position { identity: 7, seq: 8 };
            a.parts[1].1 = Ok(Part { position, age: Duration::ZERO, count: 0 });
        };
        assert!(says(behind, all()).contains("partition 4 at"));
        assert!(says(|a| a.run.rows.push(b"a", 1), all()).contains("4 rows"));
        assert!(says(|a| a.run.rows = Rows::default(), all()).contains("there is none"));
        let order = |a: &mut Answer| {
            a.run.rows = Rows::default();
            ["b", "c"].iter().for_each(|key| a.run.rows.push(key.as_bytes(), 1));
        };
        assert!(says(order, all()).contains("row 1 is out of order"));
        let twice = |a: &mut Answer| {
            a.run.rows = Rows::default();
            ["b", "b"].iter().for_each(|key| a.run.rows.push(key.as_bytes(), 1));
        };
        assert!(says(twice, all()).contains("row 1 "));
        let bounds = (Bound::Excluded(b"aid".to_vec()), Bound::Unbounded);
        assert!(says(|_| (), bounds).contains("row 2 lies outside"));
        let long = |a: &mut Answer| {
            a.run.rows = Rows::default();
            [b'b', b'a'].iter().for_each(|byte| a.run.rows.push(&[*byte; 600], 1));
        };
        assert!(says(long, all()).contains("1200 bytes"));
    }
}
