//! Version vectors: positions in the streams of all partitions.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::error::Error;

/// A position in the stream of a partition: all changes up to `seq` of the history `identity`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Position {
    /// Identity of the partition's history; 0 if there is nothing of the partition.
    pub identity: u64,
    /// The last sequence number; 0 if there is none yet.
    pub seq: u64,
}

/// The positions of all partitions, which tell what changes an index contains.
///
/// The text form consists of `identity-seq` in hexadecimal for each partition, separated by commas.
/// `*n` after a position means that n partitions in a row have this position.
///
/// ```
/// use ordna_secondary::{Position, VersionVector};
///
/// let vector = VersionVector::new(vec![Position { identity: 7, seq: 255 }; 3]);
/// assert_eq!(vector.to_string(), "7-ff*3");
/// assert_eq!("7-ff*3".parse::<VersionVector>()?, vector);
/// # Ok::<(), ordna_secondary::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VersionVector(Arc<[Position]>);

/// Maximum number of partitions in a vector.
const MAX_PARTITIONS: usize = 1 << 20;

impl VersionVector {
    /// Creates a vector from the positions of all partitions.
    pub fn new(positions: Vec<Position>) -> Self {
        Self(positions.into())
    }

    /// Returns the positions, in the order of the partitions.
    pub fn positions(&self) -> &[Position] {
        &self.0
    }

    /// Returns whether this vector includes all changes up to `other`.
    ///
    /// # Errors
    /// The vectors have different numbers of partitions, or `other` belongs to another history.
    pub fn reaches(&self, other: &Self) -> Result<bool, Error> {
        let (expected, found) = (self.0.len(), other.0.len());
        if expected != found {
            return Err(Error::PartitionCount { found, expected });
        }
        let mut reaches = true;
        for (partition, (mine, theirs)) in self.0.iter().zip(other.0.iter()).enumerate() {
            if mine.identity != theirs.identity && theirs.seq > 0 && mine.identity != 0 {
                let (found, expected) = (theirs.identity, mine.identity);
                return Err(Error::OtherHistory { partition, found, expected });
            }
            reaches &= mine.seq >= theirs.seq;
        }
        Ok(reaches)
    }
}

impl fmt::Display for VersionVector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let runs = self.0.chunk_by(|a, b| a == b);
        for (number, run) in runs.enumerate() {
            let comma = if number > 0 { "," } else { "" };
            write!(f, "{comma}{:x}-{:x}", run[0].identity, run[0].seq)?;
            if run.len() > 1 {
                write!(f, "*{}", run.len())?;
            }
        }
        Ok(())
    }
}

impl FromStr for VersionVector {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let bad = || Error::BadVector(text.chars().take(100).collect());
        let mut positions = Vec::new();
        for run in text.split(',') {
            let (position, times) = run.split_once('*').unwrap_or((run, "1"));
            let (identity, seq) = position.split_once('-').ok_or_else(bad)?;
            let hex = |text| u64::from_str_radix(text, 16).map_err(|_| bad());
            let position = Position { identity: hex(identity)?, seq: hex(seq)? };
            let times: usize = times.parse().map_err(|_| bad())?;
            if times == 0 || times > MAX_PARTITIONS - positions.len() {
                return Err(bad());
            }
            positions.extend(std::iter::repeat_n(position, times));
        }
        Ok(Self::new(positions))
    }
}
