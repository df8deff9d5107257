//! Queries of one index at one snapshot point: [`Query`], [`Page`], [`Cursor`].

use std::fmt;
use std::ops::{Bound, ControlFlow};
use std::str::FromStr;

use ordna::index::Direction;
use ordna::key::prefix_end;
use ordna::tuple::{Reader, Value, encode};
use ordna::{Snapshot, tuple};

use crate::define::{IndexDefinition, Order, Part, id_of};
use crate::error::Error;
use crate::values::{Kind, between, coerce};

/// Bounds of the part that follows a query's prefix.
///
/// A range with a single bound contains only values of that bound's class: numbers, texts,
/// booleans, and so on.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Range {
    /// All values, including missing and null.
    #[default]
    All,
    /// Values between two bounds. The lower bound comes first, in descending parts, too.
    Between(Bound<Value>, Bound<Value>),
    /// Texts that begin with this string.
    StartsWith(String),
}

/// A query of an index.
///
/// ```
/// use std::ops::Bound;
/// use ordna_secondary::{Query, Range};
/// use ordna::tuple::{Number, Value};
///
/// let large = Bound::Included(Value::Number(Number::Int(100_000)));
/// let query = Query::new()
///     .prefix([Value::String("SE".into())])
///     .range(Range::Between(large, Bound::Unbounded))
///     .limit(10);
/// assert_eq!(query.limit, 10);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Query {
    /// Values of the index's first parts.
    pub prefix: Vec<Value>,
    /// Bounds of the next part.
    pub range: Range,
    /// Whether entries are returned in descending order.
    pub reverse: bool,
    /// Number of entries to skip. O(offset).
    pub offset: usize,
    /// Maximum number of entries.
    pub limit: usize,
    /// The end of the former page of this query. With a cursor, `offset` is ignored.
    pub cursor: Option<Cursor>,
    /// Number of leading parts that must differ: of all entries that agree in these parts, only the
    /// first is returned. O(log n) for each entry.
    pub distinct: Option<usize>,
    /// Whether entries contain the values of all parts.
    pub covering: bool,
    /// Maximum total size in bytes of the entries' keys, which consist of parts and ids. The page
    /// ends before the entry that would exceed it, but has at least one entry.
    pub max_bytes: usize,
}

impl Default for Query {
    fn default() -> Self {
        Self {
            prefix: Vec::new(),
            range: Range::All,
            reverse: false,
            offset: 0,
            limit: 100,
            cursor: None,
            distinct: None,
            covering: false,
            max_bytes: usize::MAX,
        }
    }
}

impl Query {
    /// Creates a query that returns the first 100 entries of the index.
    pub fn new() -> Self {
        Self::default()
    }

    /// Restricts the query to these values of the first parts.
    #[must_use]
    pub fn prefix(self, values: impl IntoIterator<Item = Value>) -> Self {
        Self { prefix: values.into_iter().collect(), ..self }
    }

    /// Restricts the part after the prefix to `range`.
    #[must_use]
    pub fn range(self, range: Range) -> Self {
        Self { range, ..self }
    }

    /// Returns the entries in descending order.
    #[must_use]
    pub fn reverse(self) -> Self {
        Self { reverse: true, ..self }
    }

    /// Skips the first `offset` entries.
    #[must_use]
    pub fn offset(self, offset: usize) -> Self {
        Self { offset, ..self }
    }

    /// Returns at most `limit` entries.
    #[must_use]
    pub fn limit(self, limit: usize) -> Self {
        Self { limit, ..self }
    }

    /// Continues where a former page ended.
    #[must_use]
    pub fn cursor(self, cursor: Cursor) -> Self {
        Self { cursor: Some(cursor), ..self }
    }

    /// Returns one entry for each combination of values of the first `parts` parts.
    #[must_use]
    pub fn distinct(self, parts: usize) -> Self {
        Self { distinct: Some(parts), ..self }
    }

    /// Returns the values of all parts with each entry.
    #[must_use]
    pub fn covering(self) -> Self {
        Self { covering: true, ..self }
    }

    /// Limits the size of a page's keys to `max_bytes` bytes. A page has at least one entry.
    #[must_use]
    pub fn max_bytes(self, max_bytes: usize) -> Self {
        Self { max_bytes, ..self }
    }
}

/// The position where a page ended, as opaque bytes. The next page begins after the last entry of
/// the former one, even if the index has changed or a service with backups was restarted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cursor(Vec<u8>);

/// Number of bytes before the key: checksum, index and direction.
const HEAD: usize = 13;

impl Cursor {
    fn new(uid: u64, reverse: bool, key: &[u8]) -> Self {
        let mut bytes = vec![0; 4];
        bytes.extend_from_slice(&uid.to_be_bytes());
        bytes.push(u8::from(reverse));
        bytes.extend_from_slice(key);
        let sum = ordna::checksum::crc32(&bytes[4..]);
        bytes[..4].copy_from_slice(&sum.to_be_bytes());
        Self(bytes)
    }

    /// Returns the bytes, for example to store them.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Restores a cursor from the bytes that [`as_bytes`](Self::as_bytes) returned.
    ///
    /// # Errors
    /// [`Error::BadCursor`] if the bytes are not a cursor.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Error> {
        let (sum, rest) = bytes.split_first_chunk().ok_or(Error::BadCursor("it is too short"))?;
        if bytes.len() < HEAD || u32::from_be_bytes(*sum) != ordna::checksum::crc32(rest) {
            return Err(Error::BadCursor("its checksum differs"));
        }
        Ok(Self(bytes.to_vec()))
    }

    /// Returns the number of the cursor's index.
    pub fn index(&self) -> u64 {
        self.0[4..].first_chunk().map_or(0, |uid| u64::from_be_bytes(*uid))
    }

    fn key(&self) -> &[u8] {
        &self.0[HEAD..]
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for Cursor {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let digit = |byte: u8| (byte as char).to_digit(16);
        let pair = |pair: &[u8]| Some((digit(pair[0])? * 16 + digit(*pair.get(1)?)?) as u8);
        let bytes: Option<Vec<u8>> = text.as_bytes().chunks(2).map(pair).collect();
        Self::from_bytes(&bytes.ok_or(Error::BadCursor("it is not hex"))?)
    }
}

/// An entry of an index.
#[derive(Debug, Clone, PartialEq)]
pub struct IndexEntry {
    /// The document's id.
    pub id: Vec<u8>,
    /// The values of all parts, if the query is covering.
    pub parts: Vec<Value>,
}

/// The result of a query.
#[derive(Debug, Clone, PartialEq)]
pub struct Page {
    /// The entries, in the query's order.
    pub entries: Vec<IndexEntry>,
    /// Where the next page begins; `None` if this is the last one.
    pub cursor: Option<Cursor>,
}

/// The lower and the upper bound of a query's keys.
pub type KeyBounds = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// One index at one snapshot point.
#[derive(Clone)]
pub(crate) struct IndexReader<'a> {
    pub definition: &'a IndexDefinition,
    pub uid: u64,
    pub snapshot: &'a Snapshot<[u8], u64>,
}

impl IndexDefinition {
    fn bad(&self, reason: impl Into<String>) -> Error {
        Error::BadQuery { index: self.name.clone(), reason: reason.into() }
    }

    /// Encodes a value as the part stores it, in ascending order.
    fn bytes(&self, part: &Part, value: &Value) -> Result<Vec<u8>, Error> {
        let stored = coerce(value, part.kind).ok_or_else(|| {
            self.bad(format!("{value:?} is not a value of the part {:?}", part.field))
        })?;
        Ok(encode(&*stored))
    }

    /// Returns the bounds of the keys of a query. They are the same in all services with this
    /// definition, so that the entries of several services can be merged by key.
    ///
    /// # Errors
    /// [`Error::BadQuery`] if the values do not fit the parts.
    pub fn bounds(&self, prefix: &[Value], range: &Range) -> Result<KeyBounds, Error> {
        let parts = &self.parts;
        if prefix.len() > parts.len() || prefix.len() == parts.len() && *range != Range::All {
            return Err(self.bad(format!("it has {} parts only", parts.len())));
        }
        let mut start = Vec::new();
        for (part, value) in parts.iter().zip(prefix) {
            let stored = coerce(value, part.kind).ok_or_else(|| {
                self.bad(format!("{value:?} is not a value of the part {:?}", part.field))
            })?;
            part.encode(&stored, &mut start);
        }
        let Some(part) = parts.get(prefix.len()) else { return Ok(all_of(start)) };
        let (lower, upper) = match range {
            Range::All => return Ok(all_of(start)),
            Range::StartsWith(text) => {
                let text = Value::String(text.clone());
                // A prefix of texts that looks like a number is still a text.
                let mut bytes = match part.kind {
                    Kind::Natural => encode(&text),
                    _ => self.bytes(part, &text)?,
                };
                if !matches!(bytes.first(), Some(&tuple::code::STRING | &tuple::code::BYTES)) {
                    return Err(self.bad(format!("the part {:?} has no texts", part.field)));
                }
                // Remove the terminator of the text.
                bytes.pop();
                (Bound::Included(bytes.clone()), Bound::Included(bytes))
            }
            Range::Between(lower, upper) => {
                let bytes = |bound: &Bound<Value>| match bound {
                    Bound::Included(value) => self.bytes(part, value).map(Bound::Included),
                    Bound::Excluded(value) => self.bytes(part, value).map(Bound::Excluded),
                    Bound::Unbounded => Ok(Bound::Unbounded),
                };
                between(bytes(lower)?, bytes(upper)?)
            }
        };
        let place = |bytes: Vec<u8>| {
            let flip = if part.order == Order::Descending { 0xFF } else { 0 };
            let mut whole = start.clone();
            whole.extend(bytes.iter().map(|byte| byte ^ flip));
            whole
        };
        let (lower, upper) =
            if part.order == Order::Descending { (upper, lower) } else { (lower, upper) };
        // A bound includes all keys that begin with the encoded value.
        let behind = |bytes: Vec<u8>| prefix_end(&bytes).map_or(Bound::Unbounded, Bound::Included);
        let before = |bytes: Vec<u8>| prefix_end(&bytes).map_or(Bound::Unbounded, Bound::Excluded);
        let first = match lower {
            Bound::Included(bytes) => Bound::Included(place(bytes)),
            Bound::Excluded(bytes) => behind(place(bytes)),
            Bound::Unbounded => Bound::Included(start.clone()),
        };
        let last = match upper {
            Bound::Included(bytes) => before(place(bytes)),
            Bound::Excluded(bytes) => Bound::Excluded(place(bytes)),
            Bound::Unbounded => all_of(start).1,
        };
        Ok((first, last))
    }

    /// Returns the length in bytes of the first `parts` parts of a key. Keys that agree in these
    /// bytes belong to one group. O(length).
    pub fn length_of(&self, key: &[u8], parts: usize) -> usize {
        let mut reader = Reader::new(key);
        for _ in 0..parts {
            if <Value as tuple::Decode>::decode(&mut reader).is_err() {
                return key.len();
            }
        }
        reader.position()
    }

    /// Decodes the entry of a key whose last `id` bytes are the document's id. O(length).
    pub fn entry(&self, key: &[u8], id: usize, covering: bool) -> IndexEntry {
        let id = key[key.len().saturating_sub(id)..].to_vec();
        let mut reader = Reader::new(key);
        let parts = if covering { &self.parts[..] } else { &[] };
        let decode = |_| match <Value as tuple::Decode>::decode(&mut reader) {
            Ok(Value::Descending(value)) => *value,
            Ok(value) => value,
            Err(_) => Value::Missing,
        };
        IndexEntry { id, parts: parts.iter().map(decode).collect() }
    }
}

impl IndexReader<'_> {
    fn bad(&self, reason: impl Into<String>) -> Error {
        self.definition.bad(reason)
    }

    fn range(&self, prefix: &[Value], range: &Range) -> Result<KeyBounds, Error> {
        self.definition.bounds(prefix, range)
    }

    /// Returns the number of entries. O(1) for the whole index; otherwise O(log n + l), where l is
    /// the number of the store's leaves in the range.
    pub fn count(&self, prefix: &[Value], range: &Range) -> Result<usize, Error> {
        if prefix.is_empty() && *range == Range::All {
            return Ok(self.snapshot.len());
        }
        let (lower, upper) = self.range(prefix, range)?;
        Ok(self.snapshot.count(lower.as_ref().map(|b| &b[..]), upper.as_ref().map(|b| &b[..])))
    }

    /// Returns the number of entries if it is at most `most`, and otherwise some number above
    /// `most`.
    pub fn count_up_to(
        &self,
        prefix: &[Value],
        range: &Range,
        most: usize,
    ) -> Result<usize, Error> {
        /// Number of entries up to which a visit of each costs less than counting all leaves of the
        /// range.
        const FEW: usize = 4096;
        if most > FEW || prefix.is_empty() && *range == Range::All {
            return self.count(prefix, range);
        }
        let (lower, upper) = self.range(prefix, range)?;
        let mut count = 0;
        self.visit(&lower, &upper, Direction::Ascending, |_, _| {
            count += 1;
            if count > most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        Ok(count)
    }

    pub fn visit(
        &self,
        lower: &Bound<Vec<u8>>,
        upper: &Bound<Vec<u8>>,
        direction: Direction,
        mut each: impl FnMut(&[u8], u64) -> ControlFlow<()>,
    ) {
        let (lower, upper) = (lower.as_ref().map(|b| &b[..]), upper.as_ref().map(|b| &b[..]));
        self.snapshot.visit(lower, upper, direction, |key, value| each(key, *value));
    }

    pub fn page(&self, query: &Query) -> Result<Page, Error> {
        let (mut lower, mut upper) = self.range(&query.prefix, &query.range)?;
        if query.distinct.is_some_and(|parts| parts == 0 || parts > self.definition.parts.len()) {
            let most = self.definition.parts.len();
            return Err(self.bad(format!("distinct takes 1 to {most} parts")));
        }
        let direction = if query.reverse { Direction::Descending } else { Direction::Ascending };
        // Continues after a key, or after all keys that agree with it in the distinct parts.
        let go_behind = |lower: &mut Bound<Vec<u8>>, upper: &mut Bound<Vec<u8>>, key: &[u8]| {
            let group =
                query.distinct.map(|parts| key[..self.definition.length_of(key, parts)].to_vec());
            match (query.reverse, group) {
                (true, group) => *upper = Bound::Excluded(group.unwrap_or_else(|| key.to_vec())),
                (false, None) => *lower = Bound::Excluded(key.to_vec()),
                (false, Some(group)) => match prefix_end(&group) {
                    Some(next) => *lower = Bound::Included(next),
                    None => return false,
                },
            }
            true
        };
        let mut page = Page { entries: Vec::new(), cursor: None };
        let mut bytes = 0_usize;
        let mut offset = query.offset;
        if let Some(cursor) = &query.cursor {
            if cursor.index() != self.uid {
                return Err(Error::BadCursor("it is of another index"));
            }
            let key = cursor.key();
            if (cursor.0[HEAD - 1] == 1) != query.reverse || !is_within(key, &lower, &upper) {
                return Err(Error::BadCursor("it is of another query"));
            }
            offset = 0;
            if !go_behind(&mut lower, &mut upper, key) {
                return Ok(page);
            }
        }
        if query.limit == 0 {
            return Ok(page);
        }
        let (mut last, mut more) = (Vec::new(), true);
        while std::mem::take(&mut more) {
            let mut is_cut = false;
            self.visit(&lower, &upper, direction, |key, value| {
                if page.entries.len() == query.limit {
                    is_cut = true;
                    return ControlFlow::Break(());
                }
                if offset > 0 {
                    offset -= 1;
                } else {
                    bytes = bytes.saturating_add(key.len());
                    if bytes > query.max_bytes && !page.entries.is_empty() {
                        is_cut = true;
                        return ControlFlow::Break(());
                    }
                    page.entries.push(self.definition.entry(
                        key,
                        id_of(key, value).len(),
                        query.covering,
                    ));
                }
                let may_be_last = page.entries.len() == query.limit || query.max_bytes < usize::MAX;
                if query.distinct.is_some() || may_be_last {
                    last.clear();
                    last.extend_from_slice(key);
                }
                more = query.distinct.is_some();
                if more { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            if is_cut {
                page.cursor = Some(Cursor::new(self.uid, query.reverse, &last));
                break;
            }
            more = more && go_behind(&mut lower, &mut upper, &last);
        }
        Ok(page)
    }
}

/// Returns the bounds of all keys that begin with `start`.
fn all_of(start: Vec<u8>) -> KeyBounds {
    let end = prefix_end(&start).map_or(Bound::Unbounded, Bound::Excluded);
    (Bound::Included(start), end)
}

fn is_within(key: &[u8], lower: &Bound<Vec<u8>>, upper: &Bound<Vec<u8>>) -> bool {
    let above = match lower {
        Bound::Included(bound) => key >= &bound[..],
        Bound::Excluded(bound) => key > &bound[..],
        Bound::Unbounded => true,
    };
    above
        && match upper {
            Bound::Included(bound) => key <= &bound[..],
            Bound::Excluded(bound) => key < &bound[..],
            Bound::Unbounded => true,
        }
}
