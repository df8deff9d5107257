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
    /// Values of the first parts.
    pub prefix: Vec<Value>,
    /// Bounds of the next part.
    pub range: Range,
}

/// A scan of some partitions.
#[derive(Debug, Clone, PartialEq)]
pub struct Scan {
    /// The entries to read.
    pub selection: Selection,
    /// Backwards.
    pub reverse: bool,
    /// Only the first entry of those that agree in so many first parts.
    pub distinct: Option<usize>,
    /// Only entries behind this key, in the direction of the scan. With `distinct`, only entries
    /// behind all entries that agree with it in those parts.
    pub after: Option<Vec<u8>>,
    /// Rows at most.
    pub limit: usize,
    /// Bytes of keys at most; a first row has room whatever its length.
    pub bytes: usize,
}

/// Rows in one buffer. A key is the encoded parts (a descending part is complemented) and the id.
/// Keys compare bytewise in the order of the index, across partitions and nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rows {
    pub(crate) keys: Vec<u8>,
    /// Where each key ends, and the length of its id.
    pub(crate) ends: Vec<(u32, u16)>,
}

impl Rows {
    /// Appends a row. Keys have at most 65,535 bytes.
    pub fn push(&mut self, key: &[u8], id_len: usize) {
        self.keys.extend_from_slice(key);
        self.ends.push((self.keys.len() as u32, id_len.min(key.len()) as u16));
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The key of a row.
    pub fn key(&self, row: usize) -> &[u8] {
        let start = if row == 0 { 0 } else { self.ends[row - 1].0 };
        &self.keys[start as usize..self.ends[row].0 as usize]
    }

    /// Bytes of the id at the end of a row's key.
    pub fn id_len(&self, row: usize) -> usize {
        usize::from(self.ends[row].1)
    }

    /// Bytes of all keys.
    pub fn bytes(&self) -> usize {
        self.keys.len()
    }
}

/// The first rows of a scan, in its order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Run {
    /// The rows.
    pub rows: Rows,
    /// Whether rows follow.
    pub more: bool,
}

/// The bounds of the keys that a scan reads: those of its selection, behind `after`. `None`: no key
/// can follow.
///
/// # Errors
/// [`Error::BadQuery`]: the selection does not fit the index. [`Error::BadCursor`]: `after` lies
/// outside of the selection.
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

/// Whether a key lies within bounds.
pub fn contains((lower, upper): &KeyBounds, key: &[u8]) -> bool {
    let bounds = (lower.as_ref().map(|key| &key[..]), upper.as_ref().map(|key| &key[..]));
    RangeBounds::<[u8]>::contains(&bounds, key)
}

/// Moves the bounds behind a key, or behind all keys of its group. `false`: no key can follow.
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

/// The bytes in which all keys of a group agree; without `distinct` a key is its own group.
pub fn group<'k>(definition: &IndexDefinition, distinct: Option<usize>, key: &'k [u8]) -> &'k [u8] {
    distinct.map_or(key, |parts| &key[..definition.length_of(key, parts)])
}

/// Reads the rows of a scan, and whether rows follow beyond its limits. O(log n + rows), with
/// `distinct` O(rows · log n).
///
/// # Errors
/// The index is not there, not built or incomplete; the scan does not fit it.
pub fn read(view: &View, definition: &IndexDefinition, scan: &Scan) -> Result<Run, Error> {
    let (mut rows, mut more) = (Rows::default(), false);
    let mut next = bounds(definition, scan)?;
    while let Some(mut bounds) = next.take() {
        let before = rows.len();
        view.visit(&definition.name, &bounds, scan.reverse, |key, id_len| {
            // A first row has room whatever its length, or a scan would never end.
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
