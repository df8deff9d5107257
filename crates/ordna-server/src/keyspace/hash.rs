//! Fields and values of a small hash in one record.
//!
//! # Why one record
//! The store can change, copy, rename, expire, back up and remove one record atomically. The price
//! is that a write copies the record, so it costs O(bytes of the hash), in memory and in the log.
//! So a table has at most [`TABLE_BYTES`]; the fields of a larger hash are separate entries, see
//! [`collections`](super::collections).
//!
//! # Layout
//! All integers are little-endian, lengths are LEB128.
//!
//! | encoding | bytes after the mark and the number of the encoding |
//! |---|---|
//! | [`LIST`] | number of fields (2 bytes); fields and values in the order of their insertion |
//! | [`TABLE`] | number of fields (4 bytes); for each field, ordered by CRC and name, the CRC-32 of its name and the offset of its entry (4 bytes each); fields and values |
//!
//! A search takes O(fields) in a list and O(log fields) in a table. As in Redis, a list becomes a
//! table, and stays one, when a name or value exceeds 64 bytes. With more than 512 fields there is
//! no record. Tables of older servers may have more fields and bytes; a write converts them to
//! entries.
//!
//! Decoding arbitrary bytes never panics: a damaged record has fewer fields.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;

use ordna::checksum::crc32c;

pub use crate::keyspace::value_kind::{LIST, MARK, TABLE};

/// Maximum number of fields of a list: Redis' default of `hash-max-listpack-entries`.
pub const LIST_FIELDS: usize = 512;
/// Maximum bytes of a name or value in a list: Redis' default of `hash-max-listpack-value`.
pub const LIST_BYTES: usize = 64;

/// Maximum size of a table in bytes. A write copies the record, and so does the log, so a larger
/// hash is cheaper with one entry for each field.
pub const TABLE_BYTES: usize = 4 << 10;

/// Bytes of a row of the offset table: CRC and offset.
const ROW: usize = 8;

/// A field and its value.
pub type FieldEntry<'a> = (&'a [u8], &'a [u8]);

/// A stored hash.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Hash<'a> {
    is_table: bool,
    count: usize,
    /// The offset table; empty in the list encoding.
    rows: &'a [u8],
    entries: &'a [u8],
}

/// Takes a length, and that number of bytes, off the front.
pub fn take<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (mut len, mut shift) = (0_usize, 0);
    loop {
        let (byte, left) = rest.split_first()?;
        *rest = left;
        len |= usize::from(byte & 0x7F) << shift;
        shift += 7;
        if byte & 0x80 == 0 {
            break;
        }
        if shift > 28 {
            return None;
        }
    }
    let (taken, left) = rest.split_at_checked(len)?;
    *rest = left;
    Some(taken)
}

pub fn put(bytes: &mut Vec<u8>, text: &[u8]) {
    let mut len = text.len();
    while len >= 0x80 {
        bytes.push(len as u8 | 0x80);
        len >>= 7;
    }
    bytes.push(len as u8);
    bytes.extend_from_slice(text);
}

/// Returns the beginning and end of the byte string whose length is stored at a position, or `None`
/// if it is damaged.
#[inline]
fn text_at(bytes: &[u8], at: usize) -> Option<(usize, usize)> {
    let len = *bytes.get(at)?;
    if len < 0x80 {
        let (start, end) = (at + 1, at + 1 + usize::from(len));
        return (end <= bytes.len()).then_some((start, end));
    }
    let mut rest = &bytes[at..];
    let len = take(&mut rest)?.len();
    let end = bytes.len() - rest.len();
    Some((end - len, end))
}

/// The position of a field in the entries of a list.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Place {
    /// Position of the length of the name.
    start: usize,
    /// Position of the length of the value.
    value: usize,
    value_start: usize,
    end: usize,
}

/// Searches the first `count` entries of a list for a field, without decoding the others. If it is
/// absent, returns the end of the last entry and the number of entries, which is smaller than
/// `count` in a damaged record.
fn find(entries: &[u8], count: usize, field: &[u8]) -> Result<Place, (usize, usize)> {
    let (mut start, mut first) = (0, 0);
    // The fast path for lengths of one byte, which servers write. It compares the last byte first,
    // because names often differ only there: `field:1`, `field:2`.
    if let (Some(last), Ok(len)) = (field.last(), u8::try_from(field.len())) {
        while first < count
            && let Some(&name_len) = entries.get(start)
            && let value = start + 1 + usize::from(name_len)
            && let Some(&value_len) = entries.get(value)
            && let end = value + 1 + usize::from(value_len)
            && (name_len | value_len) < 0x80
            && end <= entries.len()
        {
            if name_len == len && entries[value - 1] == *last && entries[start + 1..value] == *field
            {
                return Ok(Place { start, value, value_start: value + 1, end });
            }
            (start, first) = (end, first + 1);
        }
    }
    // Handles the remaining bytes: none, or a damaged entry.
    for passed in first..count {
        let name = text_at(entries, start);
        let value = name.and_then(|(_, value)| text_at(entries, value));
        let (Some((name_start, value)), Some((value_start, end))) = (name, value) else {
            return Err((start, passed));
        };
        let name = &entries[name_start..value];
        if name == field {
            return Ok(Place { start, value, value_start, end });
        }
        start = end;
    }
    Err((start, count))
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..at + 4).and_then(|word| word.try_into().ok());
    word.map_or(0, u32::from_le_bytes)
}

impl<'a> Hash<'a> {
    /// Parses a hash. `encoding` is its type byte, and `body` the bytes that follow.
    pub fn new(encoding: u8, body: &'a [u8]) -> Self {
        let is_table = encoding == TABLE;
        let (count, rest) = match body {
            [a, b, rest @ ..] if !is_table => (usize::from(u16::from_le_bytes([*a, *b])), rest),
            [_, _, _, _, rest @ ..] if is_table => (word(body, 0) as usize, rest),
            _ => (0, &[][..]),
        };
        let rows = if is_table { count.saturating_mul(ROW) } else { 0 };
        let (rows, entries) = rest.split_at_checked(rows).unwrap_or_default();
        let count = if is_table { rows.len() / ROW } else { count };
        Self { is_table, count, rows, entries }
    }

    /// Returns the number of fields. O(1).
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns Redis' name of the encoding.
    pub fn encoding(&self) -> &'static str {
        if self.is_table { "hashtable" } else { "listpack" }
    }

    pub fn is_table(&self) -> bool {
        self.is_table
    }

    /// Returns CRC, field and value of a row of the table.
    fn row(&self, row: usize) -> (u32, &'a [u8], &'a [u8]) {
        let at = word(self.rows, row * ROW + 4) as usize;
        let mut rest = self.entries.get(at..).unwrap_or(&[]);
        let field = take(&mut rest).unwrap_or(&[]);
        (word(self.rows, row * ROW), field, take(&mut rest).unwrap_or(&[]))
    }

    /// Returns the first row in `within` whose CRC and name are at or after the given ones.
    fn search(&self, within: Range<usize>, crc: u32, field: &[u8]) -> usize {
        let (mut lower, mut upper) = (within.start, within.end);
        while lower < upper {
            let middle = lower.midpoint(upper);
            let found = word(self.rows, middle * ROW);
            if found < crc || found == crc && self.row(middle).1 < field {
                lower = middle + 1;
            } else {
                upper = middle;
            }
        }
        lower
    }

    /// Returns the value of a field. O(log n) in a table, O(n) in a list.
    pub fn get(&self, field: &[u8]) -> Option<&'a [u8]> {
        if self.is_table {
            let row = self.search(0..self.count, crc32c(field), field);
            let found = (row < self.count).then(|| self.row(row));
            return found.filter(|(_, found, _)| *found == field).map(|(_, _, value)| value);
        }
        let place = find(self.entries, self.count, field).ok()?;
        self.entries.get(place.value_start..place.end)
    }

    /// Returns an iterator over fields and values. A list yields them in the order of insertion.
    pub fn iter(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + use<'a> {
        let (hash, mut rest) = (*self, self.entries);
        (0..self.count).map_while(move |row| {
            if hash.is_table {
                let (_, field, value) = hash.row(row);
                return Some((field, value));
            }
            Some((take(&mut rest)?, take(&mut rest)?))
        })
    }

    /// Returns about `count` fields of a table from a cursor on, and the next cursor, or 0 at the
    /// end.
    ///
    /// A cursor is a CRC, and fields with the same CRC are returned together. So a scan returns
    /// every field that is present throughout, whatever other fields are added or removed.
    pub fn scan(&self, cursor: u64, count: usize) -> (u64, Vec<FieldEntry<'a>>) {
        let Ok(from) = u32::try_from(cursor) else { return (0, Vec::new()) };
        let mut found = Vec::new();
        let mut last = None;
        for row in self.search(0..self.count, from, b"")..self.count {
            let (crc, field, value) = self.row(row);
            if found.len() >= count && last != Some(crc) {
                return (u64::from(crc), found);
            }
            last = Some(crc);
            found.push((field, value));
        }
        (0, found)
    }
}

/// A name or value, borrowed from the former record or copied.
type Text<'a> = Cow<'a, [u8]>;

/// Bytes of the record of a list before its entries.
const LIST_HEADER: usize = 4;

/// Changes to a list in its encoded form: overwriting a value costs a search and one copy of the
/// record.
#[derive(Debug)]
pub struct ListEdit<'a> {
    count: usize,
    /// The entries before the first change.
    base: &'a [u8],
    /// The record with the changes so far, except for the number of fields; `None` before the first
    /// change.
    changed: Option<Vec<u8>>,
}

impl<'a> ListEdit<'a> {
    fn of(hash: Option<Hash<'a>>) -> Self {
        let (count, base) = hash.map_or((0, &[][..]), |hash| (hash.count, hash.entries));
        Self { count, base, changed: None }
    }

    fn entries(&self) -> &[u8] {
        match &self.changed {
            Some(record) => record.get(LIST_HEADER..).unwrap_or_default(),
            None => self.base,
        }
    }

    fn hash(&self) -> Hash<'_> {
        Hash { is_table: false, count: self.count, rows: &[], entries: self.entries() }
    }

    fn find(&self, field: &[u8]) -> Result<Place, (usize, usize)> {
        find(self.entries(), self.count, field)
    }

    /// Replaces the bytes of the entries from `start` to `end` by `new`.
    fn replace(&mut self, start: usize, end: usize, new: &[&[u8]]) {
        let new_len: usize = new.iter().map(|piece| piece.len()).sum();
        if let Some(record) = &mut self.changed {
            let (start, end) = (LIST_HEADER + start, LIST_HEADER + end);
            if end == record.len() {
                record.truncate(start);
                new.iter().for_each(|piece| record.extend_from_slice(piece));
            } else {
                record.splice(start..end, new.concat());
            }
            return;
        }
        let (front, back) = (&self.base[..start], &self.base[end..]);
        let mut record = Vec::with_capacity(LIST_HEADER + front.len() + new_len + back.len());
        record.extend_from_slice(&[MARK, LIST, 0, 0]);
        record.extend_from_slice(front);
        new.iter().for_each(|piece| record.extend_from_slice(piece));
        record.extend_from_slice(back);
        self.changed = Some(record);
    }

    /// Sets a field, whose name and value have at most [`LIST_BYTES`]. Returns whether it is new.
    fn set(&mut self, field: &[u8], value: &[u8]) -> bool {
        let value_len = [value.len() as u8];
        match self.find(field) {
            Ok(place) => {
                self.replace(place.value, place.end, &[&value_len, value]);
                false
            }
            Err((end, count)) => {
                let field_len = [field.len() as u8];
                // Bytes that may follow the entries belong to a damaged one.
                let rest = self.entries().len();
                self.replace(end, rest, &[&field_len, field, &value_len, value]);
                self.count = count + 1;
                true
            }
        }
    }

    /// Removes a field. Returns whether it existed.
    fn remove(&mut self, field: &[u8]) -> bool {
        let place = self.find(field);
        if let Ok(place) = place {
            self.replace(place.start, place.end, &[]);
            self.count -= 1;
        }
        place.is_ok()
    }

    fn finish(mut self) -> Vec<u8> {
        if self.changed.is_none() {
            self.replace(0, 0, &[]);
        }
        let mut record = self.changed.unwrap_or_default();
        if let Some(count) = record.get_mut(2..LIST_HEADER) {
            count.copy_from_slice(&(self.count as u16).to_le_bytes());
        }
        record
    }
}

/// Changes to a hash, from which [`finish`](Self::finish) creates a new record.
#[derive(Debug)]
pub enum Edit<'a> {
    List(ListEdit<'a>),
    Table {
        /// The table before the changes.
        base: Option<Hash<'a>>,
        /// Fields that were set or, with `None`, removed.
        changed: HashMap<Text<'a>, Option<Text<'a>>>,
        count: usize,
    },
}

impl<'a> Edit<'a> {
    pub fn of(hash: Option<Hash<'a>>) -> Self {
        match hash {
            Some(hash) if hash.is_table => {
                Self::Table { base: Some(hash), changed: HashMap::new(), count: hash.count }
            }
            list => Self::List(ListEdit::of(list)),
        }
    }

    /// Converts a list to a table.
    fn convert_to_table(&mut self) {
        if let Self::List(list) = self {
            let copy = |text: &[u8]| Cow::Owned(text.to_vec());
            let entries = list.hash();
            let entries = entries.iter().map(|(field, value)| (copy(field), Some(copy(value))));
            let changed: HashMap<Text<'a>, _> = entries.collect();
            let count = changed.len();
            *self = Self::Table { base: None, changed, count };
        }
    }

    /// Returns the number of fields.
    pub fn len(&self) -> usize {
        match self {
            Self::List(list) => list.count,
            Self::Table { count, .. } => *count,
        }
    }

    /// Returns the value of a field, with the changes so far.
    pub fn get(&self, field: &[u8]) -> Option<&[u8]> {
        match self {
            Self::List(list) => list.hash().get(field),
            Self::Table { base, changed, .. } => match changed.get(field) {
                Some(changed) => changed.as_deref(),
                None => base.as_ref().and_then(|base| base.get(field)),
            },
        }
    }

    /// Calls `each` with all fields and values, in no particular order.
    pub fn for_each(&self, mut each: impl FnMut(&[u8], &[u8])) {
        match self {
            Self::List(list) => list.hash().iter().for_each(|(field, value)| each(field, value)),
            Self::Table { base, changed, .. } => {
                let kept = base.iter().flat_map(Hash::iter);
                let kept = kept.filter(|(field, _)| !changed.contains_key(*field));
                kept.for_each(|(field, value)| each(field, value));
                for (field, value) in changed {
                    if let Some(value) = value {
                        each(field, value);
                    }
                }
            }
        }
    }

    /// Sets a field. Returns whether it is new.
    pub fn set(&mut self, field: &[u8], value: &[u8]) -> bool {
        if field.len() > LIST_BYTES || value.len() > LIST_BYTES {
            self.convert_to_table();
        }
        match self {
            Self::List(list) => {
                let is_new = list.set(field, value);
                if list.count > LIST_FIELDS {
                    self.convert_to_table();
                }
                is_new
            }
            Self::Table { base, changed, count } => {
                let value = Some(Cow::Owned(value.to_vec()));
                let before = changed.insert(Cow::Owned(field.to_vec()), value);
                let was_there = before.map_or_else(
                    || base.is_some_and(|base| base.get(field).is_some()),
                    |before| before.is_some(),
                );
                *count += usize::from(!was_there);
                !was_there
            }
        }
    }

    /// Removes a field. Returns whether it existed.
    pub fn remove(&mut self, field: &[u8]) -> bool {
        match self {
            Self::List(list) => list.remove(field),
            Self::Table { base, changed, count } => {
                let was_there = match changed.get(field) {
                    Some(changed) => changed.is_some(),
                    None => base.is_some_and(|base| base.get(field).is_some()),
                };
                if was_there {
                    changed.insert(Cow::Owned(field.to_vec()), None);
                    *count -= 1;
                }
                was_there
            }
        }
    }

    /// Returns the new record, of any size.
    pub fn finish(self) -> Vec<u8> {
        match self {
            Self::List(list) => list.finish(),
            Self::Table { base, changed, .. } => merged_table(base, &changed),
        }
    }

    /// Returns the new record, or the edit itself if the record would be so large that the fields
    /// must become separate entries.
    ///
    /// # Errors
    /// The record would be too large.
    pub fn finish_small(self) -> Result<Vec<u8>, Self> {
        match self {
            Self::List(list) => Ok(list.finish()),
            Self::Table { count, .. } if count > LIST_FIELDS => Err(self),
            Self::Table { base, ref changed, .. } => {
                let record = merged_table(base, changed);
                if record.len() > TABLE_BYTES { Err(self) } else { Ok(record) }
            }
        }
    }
}

/// Returns the record of a table with changes.
fn merged_table(base: Option<Hash<'_>>, changed: &HashMap<Text<'_>, Option<Text<'_>>>) -> Vec<u8> {
    let before = base.map_or(0, |base| base.count);
    let kept = (0..before).filter_map(|row| base.map(|base| base.row(row)));
    let kept = kept.filter(|(_, field, _)| !changed.contains_key(*field));
    let mut rows: Vec<(u32, &[u8], &[u8])> = kept.collect();
    let set = changed
        .iter()
        .filter_map(|(field, value)| Some((crc32c(field), &**field, value.as_deref()?)));
    rows.extend(set);
    // The sort benefits from the sorted first run, the kept rows.
    rows.sort_by_key(|(crc, field, _)| (*crc, *field));
    table(&rows)
}

/// Returns the record of a table with the given rows, which are sorted by CRC and name.
fn table(rows: &[(u32, &[u8], &[u8])]) -> Vec<u8> {
    let size: usize = rows.iter().map(|(_, f, v)| f.len() + v.len() + ROW + 6).sum();
    let mut bytes = Vec::with_capacity(size + 6);
    bytes.extend([MARK, TABLE]);
    bytes.extend((rows.len() as u32).to_le_bytes());
    bytes.resize(bytes.len() + rows.len() * ROW, 0);
    let start = bytes.len();
    for (at, (crc, field, value)) in rows.iter().enumerate() {
        let offset = (bytes.len() - start) as u32;
        let row = 6 + at * ROW;
        bytes[row..row + 4].copy_from_slice(&crc.to_le_bytes());
        bytes[row + 4..row + ROW].copy_from_slice(&offset.to_le_bytes());
        put(&mut bytes, field);
        put(&mut bytes, value);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(record: &[u8]) -> Hash<'_> {
        Hash::new(record[1], &record[2..])
    }

    #[derive(Debug, Clone)]
    enum HashEdit {
        Set(Vec<u8>, Vec<u8>),
        Remove(Vec<u8>),
        /// Writes the record and reads it again.
        Store,
    }

    fn steps() -> impl Strategy<Value = Vec<HashEdit>> {
        let field = prop_oneof!["[a-d]{0,2}".prop_map(String::into_bytes), Just(vec![b'x'; 65])];
        let value = prop_oneof![Just(vec![]), Just(vec![7; 64]), Just(vec![9; 200])];
        let step = prop_oneof![
            4 => (field.clone(), value).prop_map(|(field, value)| HashEdit::Set(field, value)),
            2 => field.prop_map(HashEdit::Remove),
            1 => Just(HashEdit::Store),
        ];
        proptest::collection::vec(step, 0..40)
    }

    proptest! {
        #[test]
        fn a_hash_is_what_was_set(steps in steps()) {
            let mut model: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
            let (mut record, mut was_table) = (Edit::of(None).finish(), false);
            for group in steps.split(|step| matches!(step, HashEdit::Store)) {
                let mut edit = Edit::of(Some(read(&record)));
                for step in group {
                    match step {
                        HashEdit::Set(field, value) => {
                            was_table |= field.len() > LIST_BYTES || value.len() > LIST_BYTES;
                            let old = model.iter_mut().find(|(found, _)| found == field);
                            prop_assert_eq!(edit.set(field, value), old.is_none());
                            match old {
                                Some(old) => old.1.clone_from(value),
                                None => model.push((field.clone(), value.clone())),
                            }
                        }
                        HashEdit::Remove(field) => {
                            let before = model.len();
                            model.retain(|(found, _)| found != field);
                            prop_assert_eq!(edit.remove(field), model.len() < before);
                        }
                        HashEdit::Store => {}
                    }
                }
                prop_assert_eq!(edit.len(), model.len());
                record = edit.finish();
                let hash = read(&record);
                prop_assert_eq!(hash.is_table(), was_table);
                prop_assert_eq!(hash.len(), model.len());
                let mut found: Vec<_> =
                    hash.iter().map(|(f, v)| (f.to_vec(), v.to_vec())).collect();
                let mut expected = model.clone();
                if was_table {
                    found.sort();
                    expected.sort();
                }
                prop_assert_eq!(found, expected);
                for (field, value) in &model {
                    prop_assert_eq!(hash.get(field), Some(value.as_slice()));
                }
                prop_assert_eq!(hash.get(b"absent"), None);
            }
        }

        /// A list of arbitrary bytes, even damaged ones, is edited as the fields that can be
        /// decoded.
        #[test]
        fn any_list_is_edited(
            mut body in proptest::collection::vec(prop_oneof![0..4_u8, any::<u8>()], 2..64),
            changes in proptest::collection::vec(("[\\x00-\\x03]{0,2}", proptest::option::of("[a-c]{0,3}")), 0..4),
        ) {
            (body[0], body[1]) = (body[0] % 32, 0);
            let hash = Hash::new(LIST, &body);
            let pair = |(field, value): (&[u8], &[u8])| (field.to_vec(), value.to_vec());
            let mut model: Vec<_> = hash.iter().map(pair).collect();
            let mut edit = Edit::of(Some(hash));
            for (field, value) in &changes {
                let field = field.as_bytes();
                let at = model.iter().position(|(found, _)| found == field);
                prop_assert_eq!(edit.get(field), at.map(|at| &*model[at].1));
                match (value, at) {
                    (None, _) => prop_assert_eq!(edit.remove(field), at.is_some()),
                    (Some(value), _) => prop_assert_eq!(edit.set(field, value.as_bytes()), at.is_none()),
                }
                match (value, at) {
                    (None, None) => {}
                    (None, Some(at)) => drop(model.remove(at)),
                    (Some(value), Some(at)) => model[at].1 = value.clone().into_bytes(),
                    (Some(value), None) => model.push((field.to_vec(), value.clone().into_bytes())),
                }
            }
            let record = edit.finish();
            let found: Vec<_> = read(&record).iter().map(pair).collect();
            prop_assert_eq!(found, model);
        }

        #[test]
        fn any_bytes_are_read(body in proptest::collection::vec(any::<u8>(), 0..64)) {
            for encoding in [LIST, TABLE] {
                let hash = Hash::new(encoding, &body);
                prop_assert!(hash.iter().count() <= hash.len());
                hash.get(b"field");
                hash.scan(0, 10);
            }
        }
    }

    #[test]
    fn a_list_becomes_a_table_where_that_of_redis_does_and_stays_one() {
        let names: Vec<String> = (0..LIST_FIELDS + 1).map(|n| n.to_string()).collect();
        let mut edit = Edit::of(None);
        names[..LIST_FIELDS].iter().for_each(|name| assert!(edit.set(name.as_bytes(), b"v")));
        let list = edit.finish();
        assert_eq!(read(&list).encoding(), "listpack");
        let mut edit = Edit::of(Some(read(&list)));
        assert!(edit.set(names[LIST_FIELDS].as_bytes(), b"v"));
        let table = edit.finish();
        let mut edit = Edit::of(Some(read(&table)));
        assert!(edit.remove(b"0") && !edit.remove(b"0"));
        let table = edit.finish();
        let hash = read(&table);
        assert_eq!((hash.encoding(), hash.len()), ("hashtable", LIST_FIELDS));
    }

    #[test]
    fn a_scan_returns_each_field_that_stays_once() {
        let names: Vec<String> = (0..2000).map(|n| format!("field:{n}")).collect();
        let mut edit = Edit::of(None);
        names.iter().for_each(|name| assert!(edit.set(name.as_bytes(), b"v")));
        let mut record = edit.finish();
        let (mut cursor, mut met) = (0, HashMap::new());
        loop {
            let (next, found) = read(&record).scan(cursor, 7);
            for (field, _) in found {
                *met.entry(field.to_vec()).or_insert(0) += 1;
            }
            // Other fields are added and removed during the scan.
            let other = format!("other:{cursor}").into_bytes();
            let mut edit = Edit::of(Some(read(&record)));
            if cursor % 3 == 0 {
                edit.remove(names[cursor as usize % 1000].as_bytes());
            }
            edit.set(&other, b"");
            record = edit.finish();
            cursor = next;
            if cursor == 0 {
                break;
            }
        }
        assert!(names[1000..].iter().all(|name| met.get(name.as_bytes()) == Some(&1)));
    }
}
