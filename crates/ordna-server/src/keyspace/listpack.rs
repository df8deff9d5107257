//! Redis' listpack: a compact list of texts that stores integers as numbers.
//!
//! A listpack consists of its length in bytes (4 bytes), its number of entries (2 bytes; 65,535
//! means "not known"), the entries and the byte `0xFF`. An entry is a number or a text with its
//! length, followed by the entry's own length in a form that can be read backwards. Numbers are
//! little-endian, except lengths of 12 bits and integers of 13 bits.

use crate::wire::request::number;

const END: u8 = 0xFF;

/// Returns the number of bytes of an entry's trailing length, which has 7 bits in each byte.
fn back_len(len: usize) -> usize {
    match len {
        ..=127 => 1,
        128..=16_382 => 2,
        16_383..=2_097_150 => 3,
        2_097_151..=268_435_454 => 4,
        _ => 5,
    }
}

fn put(list: &mut Vec<u8>, text: &[u8]) {
    let start = list.len();
    match number(text) {
        Some(n @ 0..=127) => list.push(n as u8),
        Some(n @ -4096..=4095) => list.extend([0xC0 | (n >> 8 & 0x1F) as u8, n as u8]),
        Some(n) => {
            let (mark, width) = match n {
                -0x8000..=0x7FFF => (0xF1, 2),
                -0x80_0000..=0x7F_FFFF => (0xF2, 3),
                -0x8000_0000..=0x7FFF_FFFF => (0xF3, 4),
                _ => (0xF4, 8),
            };
            list.push(mark);
            list.extend(&n.to_le_bytes()[..width]);
        }
        None => {
            match text.len() {
                len @ ..64 => list.push(0x80 | len as u8),
                len @ ..4096 => list.extend([0xE0 | (len >> 8) as u8, len as u8]),
                len => {
                    list.push(0xF0);
                    list.extend((len as u32).to_le_bytes());
                }
            }
            list.extend(text);
        }
    }
    let len = list.len() - start;
    let width = back_len(len);
    for at in (0..width).rev() {
        let more = if at + 1 < width { 0x80 } else { 0 };
        list.push((len >> (7 * at) & 0x7F) as u8 | more);
    }
}

/// Encodes texts as a listpack.
pub fn encode<'a>(texts: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut list = vec![0; 6];
    let mut count = 0;
    for text in texts {
        put(&mut list, text);
        count += 1;
    }
    list.push(END);
    let len = list.len() as u32;
    list[..4].copy_from_slice(&len.to_le_bytes());
    list[4..6].copy_from_slice(&u16::try_from(count).unwrap_or(u16::MAX).to_le_bytes());
    list
}

/// Decodes a listpack. Returns `None` if the bytes are not valid or hold more than `most` texts.
pub fn decode(list: &[u8], most: usize) -> Option<Vec<Vec<u8>>> {
    let (header, mut rest) = list.split_at_checked(6)?;
    let (len, count) = header.split_at(4);
    if u32::from_le_bytes(len.try_into().ok()?) as usize != list.len() {
        return None;
    }
    let mut texts = Vec::new();
    loop {
        let first = *rest.first()?;
        if first == END {
            break;
        }
        if texts.len() == most {
            return None;
        }
        let byte = |at: usize| rest.get(at).map(|byte| usize::from(*byte));
        let integer = |width: usize| {
            let bytes = rest.get(1..=width)?;
            let fill = if bytes[width - 1] & 0x80 == 0 { 0 } else { 0xFF };
            let mut wide = [fill; 8];
            wide[..width].copy_from_slice(bytes);
            Some((1 + width, 0, Some(i64::from_le_bytes(wide))))
        };
        // Number of header bytes, number of text bytes, and the integer if the entry is one.
        let (head, len, n) = match first {
            0x00..=0x7F => (1, 0, Some(i64::from(first))),
            0x80..=0xBF => (1, usize::from(first & 0x3F), None),
            0xC0..=0xDF => {
                let bits = i64::from(first & 0x1F) << 8 | byte(1)? as i64;
                (2, 0, Some(if bits >= 4096 { bits - 8192 } else { bits }))
            }
            0xE0..=0xEF => (2, usize::from(first & 0x0F) << 8 | byte(1)?, None),
            0xF0 => {
                let len = u32::from_le_bytes(rest.get(1..5)?.try_into().ok()?);
                (5, len as usize, None)
            }
            0xF1..=0xF3 => integer(usize::from(first) - 0xEF)?,
            0xF4 => integer(8)?,
            _ => return None,
        };
        let text = rest.get(head..head.checked_add(len)?)?;
        texts.push(n.map_or_else(|| text.to_vec(), |n| n.to_string().into_bytes()));
        rest = rest.get(head + len + back_len(head + len)..)?;
    }
    let count = u16::from_le_bytes(count.try_into().ok()?);
    let whole = rest.len() == 1 && (count == u16::MAX || usize::from(count) == texts.len());
    whole.then_some(texts)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let mut list = bytes;
            let len = list.len() as u32;
            if let Some(header) = list.get_mut(..4) {
                header.copy_from_slice(&len.to_le_bytes());
            }
            decode(&list, usize::MAX);
        }

        #[test]
        fn what_is_written_is_read(numbers in proptest::collection::vec(any::<i64>(), 0..20)) {
            let texts: Vec<String> =
                numbers.iter().enumerate().map(|(at, n)| (n >> (at * 3)).to_string()).collect();
            let list = encode(texts.iter().map(String::as_bytes));
            let read = decode(&list, numbers.len());
            prop_assert_eq!(read, Some(texts.into_iter().map(String::into_bytes).collect()));
        }
    }

    #[test]
    fn texts_of_any_length_come_back() {
        for len in [0, 1, 63, 64, 126, 127, 128, 4095, 4096, 20_000, 3_000_000] {
            let texts = vec![vec![b'x'; len], b"-1".to_vec(), b"01".to_vec()];
            let list = encode(texts.iter().map(Vec::as_slice));
            assert_eq!(decode(&list, 2), None);
            assert_eq!(decode(&list, 3), Some(texts));
        }
    }
}
