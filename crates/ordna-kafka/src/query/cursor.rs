//! Cursors of queries over all nodes.
//!
//! A cursor contains all that is needed for the next page, so it can be used on any node: the last
//! key, the direction, the rest of the offset, and the version vector of the page. For the next
//! page, each partition is read at this vector or later; if a node is behind, the query waits for
//! it.

use ordna_secondary::{Error, Position};
use serde::{Deserialize, Serialize};

/// The place where a page ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor {
    /// Fingerprint of the index's definition.
    pub fingerprint: u32,
    /// The direction of the query.
    pub reverse: bool,
    /// Number of parts given to `distinct`.
    pub distinct: Option<u32>,
    /// Number of rows to skip before the next page begins.
    pub skip: u32,
    /// The key of the last row; `None` before the first row.
    pub key: Option<Vec<u8>>,
    /// The position of the page in each partition: identity and sequence number.
    pub vector: Vec<(u64, u64)>,
}

impl Cursor {
    /// Returns the position in a partition.
    pub fn position(&self, partition: u32) -> Option<Position> {
        let (identity, seq) = *self.vector.get(partition as usize)?;
        (identity != 0).then_some(Position { identity, seq })
    }
}

impl std::fmt::Display for Cursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let body = postcard::to_allocvec(self).map_err(|_| std::fmt::Error)?;
        let sum = ordna::checksum::crc32(&body).to_be_bytes();
        sum.iter().chain(&body).try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl std::str::FromStr for Cursor {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let digit = |byte: u8| (byte as char).to_digit(16);
        let pair = |pair: &[u8]| Some((digit(pair[0])? * 16 + digit(*pair.get(1)?)?) as u8);
        let bytes: Option<Vec<u8>> = text.as_bytes().chunks(2).map(pair).collect();
        let bytes = bytes.ok_or(Error::BadCursor("it is not hex"))?;
        let (sum, body) = bytes.split_first_chunk().ok_or(Error::BadCursor("it is too short"))?;
        if u32::from_be_bytes(*sum) != ordna::checksum::crc32(body) {
            return Err(Error::BadCursor("its checksum differs"));
        }
        postcard::from_bytes(body).map_err(|_| Error::BadCursor("it has another format"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_survives_as_text_and_a_changed_one_is_refused() {
        let key = Some(b"\x00key\xff".to_vec());
        let vector = vec![(7, 9), (0, 0)];
        let (fingerprint, reverse, distinct, skip) = (77, true, Some(2), 5);
        let cursor = Cursor { fingerprint, reverse, distinct, skip, key, vector };
        let text = cursor.to_string();
        assert_eq!(text.parse::<Cursor>().unwrap(), cursor);
        assert_eq!(cursor.position(0), Some(Position { identity: 7, seq: 9 }));
        assert_eq!((cursor.position(1), cursor.position(2)), (None, None));
        for at in 0..text.len() {
            let mut other = text.clone().into_bytes();
            other[at] = if other[at] == b'0' { b'1' } else { b'0' };
            assert!(String::from_utf8(other).unwrap().parse::<Cursor>().is_err(), "{at}");
            assert!(text[..at].parse::<Cursor>().is_err(), "{at}");
        }
        assert!("g0".parse::<Cursor>().is_err() && "é".parse::<Cursor>().is_err());
    }
}
