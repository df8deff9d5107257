//! The rows of a scan.

use std::ops::{Bound, ControlFlow, RangeBounds};

use ordna::key::prefix_end;
use ordna::tuple::Value;
use ordna_secondary::{Error, IndexDefinition, KeyBounds, Range, View};

/// The part of an index that a query reads.
#[derive(Debug, Clone, PartialEq)]
pub struct Selection {
    /// Name of the index.
    pub index: String,
    /// Values that the first parts must have.
    pub prefix: Vec<Value>,
    /// Bounds for the values of the next part.
    pub range: Range,
}

/// A scan of some partitions.
#[derive(Debug, Clone, PartialEq)]
pub struct Scan {
    /// The entries to read.
    pub selection: Selection,
    /// Whether to read backwards.
    pub reverse: bool,
    /// If given, only the first of all entries that agree in this number of leading parts is read.
    pub distinct: Option<usize>,
    /// Only entries after this key, in the direction of the scan, are read. With `distinct`, these
    /// are the entries after all those that agree with the key in the leading parts.
    pub after: Option<Vec<u8>>,
    /// Maximum number of rows.
    pub limit: usize,
    /// Maximum number of bytes of all keys. The first row is read whatever its length.
    pub bytes: usize,
}

/// Rows, stored in one buffer. A key consists of the encoded parts (those of descending parts are
/// complemented) and the id. Keys of several partitions and nodes compare bytewise in the order of
/// the index.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rows {
    pub(crate) keys: Vec<u8>,
    /// For each key, where it ends, and the length of its id.
    pub(crate) ends: Vec<(u32, u16)>,
}

impl Rows {
    /// Appends a row. A key may have at most 65,535 bytes.
    pub fn push(&mut self, key: &[u8], id_len: usize) {
        self.keys.extend_from_slice(key);
        self.ends.push((self.keys.len() as u32, id_len.min(key.len()) as u16));
    }

    /// Returns the number of rows.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Returns the key of a row.
    pub fn key(&self, row: usize) -> &[u8] {
        let start = if row == 0 { 0 } else { self.ends[row - 1].0 };
        &self.keys[start as usize..self.ends[row].0 as usize]
    }

    /// Returns the length of the id at the end of a row's key.
    pub fn id_len(&self, row: usize) -> usize {
        usize::from(self.ends[row].1)
    }

    /// Returns the number of bytes of all keys.
    pub fn bytes(&self) -> usize {
        self.keys.len()
    }
}

/// The first rows of a scan, in the order of the scan.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Run {
    /// The rows.
    pub rows: Rows,
    /// Whether further rows follow.
    pub more: bool,
}

/// Returns the bounds of the keys that a scan reads: those of its selection, cut at `after`.
/// Returns `None` if there can be no such keys.
///
/// # Errors
/// [`Error::BadQuery`] if the selection does not fit the index, [`Error::BadCursor`] if `after` is
/// outside the selection.
pub fn bounds(definition: &IndexDefinition, scan: &Scan) -> Result<Option<KeyBounds>, Error> {
    let most = definition.parts.len();
    if scan.distinct.is_some_and(|parts| parts == 0 || parts > most) {
        let reason = format!("distinct takes 1 to {most} parts");
        return Err(Error::BadQuery { index: definition.name.clone(), reason });
    }
    let mut bounds = definition.bounds(&scan.selection.prefix, &scan.selection.range)?;
    let follows = match &scan.after {
        Some(key) if !contains(&bounds, key) => {
            return Err(Error::BadCursor("it is of another query"));
        }
        Some(key) => go_behind(definition, scan, &mut bounds, key),
        None => true,
    };
    Ok(follows.then_some(bounds))
}

/// Returns whether a key is within bounds.
pub fn contains((lower, upper): &KeyBounds, key: &[u8]) -> bool {
    let bounds = (lower.as_ref().map(|key| &key[..]), upper.as_ref().map(|key| &key[..]));
    RangeBounds::<[u8]>::contains(&bounds, key)
}

/// Moves the bounds past a key, or past all keys of its group. Returns `false` if no keys remain.
fn go_behind(
    definition: &IndexDefinition,
    scan: &Scan,
    bounds: &mut KeyBounds,
    key: &[u8],
) -> bool {
    let group = group(definition, scan.distinct, key);
    if scan.reverse {
        bounds.1 = Bound::Excluded(group.to_vec());
    } else if scan.distinct.is_none() {
        bounds.0 = Bound::Excluded(key.to_vec());
    } else {
        match prefix_end(group) {
            Some(next) => bounds.0 = Bound::Included(next),
            None => return false,
        }
    }
    true
}

/// Returns the bytes that all keys of a group share. Without `distinct`, each key is a group of its
/// own.
pub fn group<'k>(definition: &IndexDefinition, distinct: Option<usize>, key: &'k [u8]) -> &'k [u8] {
    distinct.map_or(key, |parts| &key[..definition.length_of(key, parts)])
}

/// Reads the rows of a scan, up to its limits, and whether further rows follow. O(log n + rows), or
/// O(rows · log n) with `distinct`.
///
/// # Errors
/// The index does not exist, is not built or is incomplete, or the scan does not fit it.
pub fn read(view: &View, definition: &IndexDefinition, scan: &Scan) -> Result<Run, Error> {
    let (mut rows, mut more) = (Rows::default(), false);
    let mut next = bounds(definition, scan)?;
    while let Some(mut bounds) = next.take() {
        let before = rows.len();
        view.visit(&definition.name, &bounds, scan.reverse, |key, id_len| {
            // The first row is read whatever its length; otherwise a scan might never end.
            more = rows.len() == scan.limit
                || !rows.is_empty() && rows.bytes() + key.len() > scan.bytes;
            if more {
                return ControlFlow::Break(());
            }
            rows.push(key, id_len);
            if scan.distinct.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        if scan.distinct.is_some()
            && rows.len() > before
            && go_behind(definition, scan, &mut bounds, rows.key(before))
        {
            next = Some(bounds);
        }
    }
    Ok(Run { rows, more })
}
