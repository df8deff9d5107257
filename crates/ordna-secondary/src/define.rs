//! Definitions of indexes: parts, order, filter; and the keys that a document has in one.
//!
//! # Missing, null, wrong types
//! Every document of the prefix that passes the filter has at least one entry. A field that is not
//! there is `Value::Missing`, which lies below `Value::Null`, and both below all other values. An
//! exploded array without elements counts as missing. [`OnWrongType`] says what becomes of a value
//! of another kind.
//!
//! # Keys
//! A key is the encoded parts (`docs/TUPLE.md`), one after the other, then the bytes of the
//! document's id. The value of the entry holds the partition (above bit 16) and the length of the
//! id.

use serde::{Deserialize, Serialize};

use ordna::tuple::{Encode, Number, Value};

use crate::document::Document;
use crate::error::Error;
use crate::filter::Filter;
use crate::values::{Kind, coerce};

/// Entries of one document in one index at most.
pub const MAX_ENTRIES: usize = 1024;
/// Parts of an index at most.
pub const MAX_PARTS: usize = 32;

/// The order of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Order {
    /// Small values first.
    #[default]
    Ascending,
    /// Large values first.
    Descending,
}

/// Whether a value makes one entry, or several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Explode {
    /// One entry; an array is one value.
    #[default]
    No,
    /// An entry for each element of an array.
    Array,
    /// An entry for each piece of a text between separators, without the blanks around it.
    Split(char),
}

/// The treatment of a value whose type is not the part's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum OnWrongType {
    /// It is indexed as null.
    #[default]
    Null,
    /// The document stays out of the index, and is counted.
    Count,
    /// [`Service::check`](crate::Service::check) refuses the document. If it comes through a stream
    /// nevertheless, it is treated as under `Count`.
    Refuse,
}

/// A part of an index: a field in some order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Name of the field; dots lead into nested objects.
    pub field: String,
    /// Order of the values.
    pub order: Order,
    /// Type of the values.
    pub kind: Kind,
    /// Whether an array makes several entries. One part of an index may.
    pub explode: Explode,
}

impl Part {
    /// A field's values of any type, in ascending order.
    pub fn new(field: impl Into<String>) -> Self {
        let (order, kind, explode) = Default::default();
        Self { field: field.into(), order, kind, explode }
    }

    /// In descending order.
    #[must_use]
    pub fn descending(self) -> Self {
        Self { order: Order::Descending, ..self }
    }

    /// With values of this kind only.
    #[must_use]
    pub fn kind(self, kind: Kind) -> Self {
        Self { kind, ..self }
    }

    /// With several entries for a document.
    #[must_use]
    pub fn explode(self, explode: Explode) -> Self {
        Self { explode, ..self }
    }
}

/// The definition of an index.
///
/// ```
/// use ordna_secondary::{Filter, IndexDefinition, Kind, Part};
///
/// let definition = IndexDefinition::new("by_size", "town:")
///     .part(Part::new("country"))
///     .part(Part::new("people").kind(Kind::Number).descending())
///     .filter(Filter::parse("people >= 1000")?);
/// assert_eq!(definition.parts.len(), 2);
/// # Ok::<(), ordna_secondary::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct IndexDefinition {
    /// Its name.
    pub name: String,
    /// How the ids of its documents begin.
    pub prefixes: Vec<Vec<u8>>,
    /// The parts that order its entries, before the id.
    pub parts: Vec<Part>,
    /// The condition for documents to have entries; `None`: all have.
    pub filter: Option<Filter>,
    /// The treatment of values of other types.
    pub on_wrong_type: OnWrongType,
}

impl IndexDefinition {
    /// An index without parts yet, over the documents whose ids begin so.
    pub fn new(name: impl Into<String>, prefix: impl Into<Vec<u8>>) -> Self {
        Self {
            name: name.into(),
            prefixes: vec![prefix.into()],
            parts: Vec::new(),
            filter: None,
            on_wrong_type: OnWrongType::default(),
        }
    }

    /// With one more part.
    #[must_use]
    pub fn part(mut self, part: Part) -> Self {
        self.parts.push(part);
        self
    }

    /// With documents that pass the filter only.
    #[must_use]
    pub fn filter(self, filter: Filter) -> Self {
        Self { filter: Some(filter), ..self }
    }

    /// With another treatment of values of other types.
    #[must_use]
    pub fn on_wrong_type(self, on_wrong_type: OnWrongType) -> Self {
        Self { on_wrong_type, ..self }
    }

    /// Whether it can be used.
    ///
    /// # Errors
    /// [`Error::BadDefinition`].
    pub fn check(&self) -> Result<(), Error> {
        let exploded = self.parts.iter().filter(|part| part.explode != Explode::No).count();
        let reason = if self.name.is_empty() {
            "the name is empty".to_owned()
        } else if self.parts.is_empty() || self.parts.len() > MAX_PARTS {
            format!("{} parts; an index has 1 to {MAX_PARTS}", self.parts.len())
        } else if exploded > 1 {
            format!("{exploded} parts are exploded; one may be")
        } else {
            return Ok(());
        };
        Err(Error::BadDefinition { name: self.name.clone(), reason })
    }

    /// Whether the index is over documents with such an id.
    pub fn covers(&self, id: &[u8]) -> bool {
        self.prefixes.iter().any(|prefix| id.starts_with(prefix))
    }

    /// Writes the keys of a document into `keys`. O(bytes).
    ///
    /// # Errors
    /// [`Error::WrongType`] or [`Error::DocumentTooLarge`]; `keys` is then empty.
    pub fn keys(&self, id: &[u8], document: &Document, keys: &mut Keys) -> Result<(), Error> {
        keys.clear();
        self.append_keys(id, document, keys)
    }

    /// Appends the keys of a document to `keys`; none of them on an error.
    pub(crate) fn append_keys(
        &self,
        id: &[u8],
        document: &Document,
        keys: &mut Keys,
    ) -> Result<(), Error> {
        let before = (keys.bytes.len(), keys.ends.len());
        let done = self.try_append(id, document, keys);
        if done.is_err() {
            keys.bytes.truncate(before.0);
            keys.ends.truncate(before.1);
        }
        done
    }

    fn try_append(&self, id: &[u8], document: &Document, keys: &mut Keys) -> Result<(), Error> {
        if !self.covers(id) || self.filter.as_ref().is_some_and(|filter| !filter.passes(document)) {
            return Ok(());
        }
        let too_large = |reason| Error::DocumentTooLarge { index: self.name.clone(), reason };
        let several = self.parts.iter().find(|part| part.explode != Explode::No);
        let elements = several.map(|part| part.elements(document.get(&part.field)));
        let count = elements.as_ref().map_or(1, |elements| elements.len().max(1));
        if count > MAX_ENTRIES {
            return Err(too_large(format!("{count} elements; at most {MAX_ENTRIES} are indexed")));
        }
        for number in 0..count {
            for part in &self.parts {
                let value = match (&elements, part.explode) {
                    (Some(elements), Explode::Array | Explode::Split(_)) => elements.get(number),
                    _ => document.get(&part.field),
                };
                let value = value.unwrap_or(&Value::Missing);
                match coerce(value, part.kind) {
                    Some(value) => part.encode(&value, &mut keys.bytes),
                    None if self.on_wrong_type == OnWrongType::Null => {
                        part.encode(&Value::Null, &mut keys.bytes);
                    }
                    None => {
                        let (index, field) = (self.name.clone(), part.field.clone());
                        return Err(Error::WrongType { index, field });
                    }
                }
            }
            keys.bytes.extend_from_slice(id);
            let start = keys.ends.last().copied().unwrap_or(0);
            keys.ends.push(keys.bytes.len());
            let length = keys.bytes.len() - start;
            if length > ordna::key::MAX_LEN {
                let most = ordna::key::MAX_LEN;
                return Err(too_large(format!("a key of {length} bytes; at most {most} are")));
            }
        }
        Ok(())
    }
}

impl Part {
    /// Appends a value in the part's order.
    pub(crate) fn encode(&self, value: &Value, out: &mut Vec<u8>) {
        let start = out.len();
        value.encode(out);
        if self.order == Order::Descending {
            out[start..].iter_mut().for_each(|byte| *byte = !*byte);
        }
    }

    /// The elements of an exploded part.
    fn elements(&self, value: Option<&Value>) -> Vec<Value> {
        match (self.explode, value) {
            (_, None) => Vec::new(),
            (Explode::Array, Some(Value::Tuple(items))) => items.clone(),
            (Explode::Split(separator), Some(Value::String(text))) => {
                let pieces = text.split(separator).map(str::trim).filter(|text| !text.is_empty());
                pieces.map(|text| Value::String(text.to_owned())).collect()
            }
            (Explode::Split(_), Some(Value::Bytes(bytes))) => match str::from_utf8(bytes) {
                Ok(text) => self.elements(Some(&Value::String(text.to_owned()))),
                Err(_) => vec![Value::Bytes(bytes.clone())],
            },
            (_, Some(value)) => vec![value.clone()],
        }
    }
}

/// Keys of a document in an index, or of several documents.
#[derive(Debug, Default)]
pub struct Keys {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Keys {
    /// No keys.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    /// Appends a key.
    pub(crate) fn push(&mut self, key: &[u8]) {
        self.bytes.extend_from_slice(key);
        self.ends.push(self.bytes.len());
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The keys, in the order of the documents and of their elements.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| &self.bytes[start..*end])
    }
}

/// The value of an entry.
pub(crate) fn entry_value(partition: u32, id: &[u8]) -> u64 {
    u64::from(partition) << 16 | id.len() as u64 & 0xFFFF
}

/// The partition of an entry's document.
pub(crate) fn partition_of(value: u64) -> u32 {
    (value >> 16) as u32
}

/// The id of an entry's document.
pub(crate) fn id_of(key: &[u8], value: u64) -> &[u8] {
    &key[key.len().saturating_sub((value & 0xFFFF) as usize)..]
}

/// The number that a text is; `None` if it is none.
pub fn number_of(text: &str) -> Option<Number> {
    crate::values::parse_number(text)
}
