//! Several fields in one byte-string key, ordered field by field.
//!
//! Definition: the fields one after the other; within a field `00` becomes `00 FF`; between two
//! fields stands `00 01`. The last field has no end mark.
//!
//! Invariants, for tuples of any fields:
//! 1. [`decode`] of [`encode`] gives the fields back.
//! 2. Among tuples with equally many fields, the keys' byte order is the order of the tuples.
//! 3. The key of the first fields, followed by `00 01`, is a prefix of exactly the keys that begin
//!    with these fields and have more.

const SEPARATOR: [u8; 2] = [0, 1];
const ESCAPED_ZERO: [u8; 2] = [0, 0xFF];

/// The key of these fields. O(bytes).
pub fn encode<I>(fields: I) -> Vec<u8>
where
    I: IntoIterator,
    I::Item: AsRef<[u8]>,
{
    let mut key = Vec::new();
    for (at, field) in fields.into_iter().enumerate() {
        if at > 0 {
            key.extend_from_slice(&SEPARATOR);
        }
        for &byte in field.as_ref() {
            if byte == 0 { key.extend_from_slice(&ESCAPED_ZERO) } else { key.push(byte) }
        }
    }
    key
}

/// The fields of a key made by [`encode`]; `None` if it was not. O(bytes).
pub fn decode(key: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut fields = vec![];
    let mut field = Vec::new();
    let mut bytes = key.iter();
    while let Some(&byte) = bytes.next() {
        if byte != 0 {
            field.push(byte);
            continue;
        }
        match bytes.next() {
            Some(0xFF) => field.push(0),
            Some(1) => fields.push(std::mem::take(&mut field)),
            _ => return None,
        }
    }
    fields.push(field);
    Some(fields)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All strings up to two bytes over the bytes that matter.
    fn fields() -> Vec<Vec<u8>> {
        let bytes = [0, 1, 2, b'a', 0xFE, 0xFF];
        let mut all = vec![vec![]];
        for a in bytes {
            all.push(vec![a]);
            all.extend(bytes.map(|b| vec![a, b]));
        }
        all
    }

    #[test]
    fn pairs_keep_their_order_and_come_back() {
        let fields = fields();
        let mut pairs: Vec<_> = fields
            .iter()
            .flat_map(|a| fields.iter().map(move |b| [a.clone(), b.clone()]))
            .collect();
        pairs.sort();
        for pair in &pairs {
            assert_eq!(decode(&encode(pair)).as_deref(), Some(&pair[..]));
        }
        for two in pairs.windows(2) {
            assert!(encode(&two[0]) < encode(&two[1]), "{two:?}");
        }
    }

    #[test]
    fn the_first_field_is_a_prefix_of_its_own_tuples_only() {
        for first in fields() {
            let prefix = encode([first.as_slice(), b""]);
            for other in fields() {
                let key = encode([other.as_slice(), b"x"]);
                assert_eq!(key.starts_with(&prefix), first == other);
            }
        }
    }

    #[test]
    fn what_encode_never_makes_is_refused() {
        for bad in [&b"\0"[..], b"a\0\x02", b"\0\0"] {
            assert_eq!(decode(bad), None);
        }
        assert_eq!(decode(b""), Some(vec![vec![]]));
    }
}
