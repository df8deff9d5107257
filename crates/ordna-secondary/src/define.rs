//! Definitions of indexes, and the keys under which an index holds a document.
//!
//! # Missing, null, wrong types
//! Every document that an index covers and that passes its filter has at least one entry. A missing
//! field has the value `Value::Missing`, which sorts below `Value::Null`, and both sort below all
//! other values. An exploded array without elements counts as a missing field. [`OnWrongType`]
//! determines what happens to a value of a type other than the part's.
//!
//! # Keys
//! The key of an entry consists of the encoded parts (`docs/TUPLE.md`), followed by the id of the
//! document. The value of the entry holds the document's partition (from bit 16 on) and the length
//! of the id (below).

use serde::{Deserialize, Serialize};

use ordna::tuple::{Encode, Number, Value};

use crate::document::Document;
use crate::error::Error;
use crate::filter::Filter;
use crate::values::{Kind, coerce};

/// Maximum number of entries of one document in one index.
pub const MAX_ENTRIES: usize = 1024;
/// Maximum number of parts of an index.
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

/// Whether one field of a document can have several entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Explode {
    /// The field has one entry; an array is a single value.
    #[default]
    No,
    /// Each element of an array has an entry.
    Array,
    /// Each piece of a text between separators has an entry. Blanks around a piece are removed.
    Split(char),
}

/// What to do with a value whose type is not that of the part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum OnWrongType {
    /// Indexes the value as null.
    #[default]
    Null,
    /// Leaves the document out of the index, and counts it.
    Count,
    /// [`Service::check`](crate::Service::check) refuses the document. If the document is fed to
    /// the service nevertheless, it is treated as with `Count`.
    Refuse,
}

/// A part of an index: a field and the order of its values.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Name of the field. Dots lead into nested objects.
    pub field: String,
    /// Order of the values.
    pub order: Order,
    /// Type of the values.
    pub kind: Kind,
    /// Whether an array has several entries. At most one part of an index can be exploded.
    pub explode: Explode,
}

impl Part {
    /// Creates a part for a field with values of any type, in ascending order.
    pub fn new(field: impl Into<String>) -> Self {
        let (order, kind, explode) = Default::default();
        Self { field: field.into(), order, kind, explode }
    }

    /// Sorts the values in descending order.
    #[must_use]
    pub fn descending(self) -> Self {
        Self { order: Order::Descending, ..self }
    }

    /// Accepts only values of this kind.
    #[must_use]
    pub fn kind(self, kind: Kind) -> Self {
        Self { kind, ..self }
    }

    /// Gives a document several entries, one for each element of the field.
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
    /// Prefixes of document ids: the index covers documents whose id has one of them.
    pub prefixes: Vec<Vec<u8>>,
    /// The parts that make the keys of the entries, in order.
    pub parts: Vec<Part>,
    /// The condition that a document must meet to have entries; `None`: every document has entries.
    pub filter: Option<Filter>,
    /// What to do with values of other types.
    pub on_wrong_type: OnWrongType,
}

impl IndexDefinition {
    /// Creates a definition without parts, which covers the documents whose ids begin with
    /// `prefix`.
    pub fn new(name: impl Into<String>, prefix: impl Into<Vec<u8>>) -> Self {
        Self {
            name: name.into(),
            prefixes: vec![prefix.into()],
            parts: Vec::new(),
            filter: None,
            on_wrong_type: OnWrongType::default(),
        }
    }

    /// Adds a part.
    #[must_use]
    pub fn part(mut self, part: Part) -> Self {
        self.parts.push(part);
        self
    }

    /// Indexes only documents that pass the filter.
    #[must_use]
    pub fn filter(self, filter: Filter) -> Self {
        Self { filter: Some(filter), ..self }
    }

    /// Sets what to do with values of other types.
    #[must_use]
    pub fn on_wrong_type(self, on_wrong_type: OnWrongType) -> Self {
        Self { on_wrong_type, ..self }
    }

    /// Checks that the definition can be used.
    ///
    /// # Errors
    /// [`Error::BadDefinition`] if it cannot be used.
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

    /// Returns whether the index covers documents with this id.
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

    /// Appends the keys of a document to `keys`; appends nothing on an error.
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
    /// Appends the encoding of a value, in the order of the part.
    pub(crate) fn encode(&self, value: &Value, out: &mut Vec<u8>) {
        let start = out.len();
        value.encode(out);
        if self.order == Order::Descending {
            out[start..].iter_mut().for_each(|byte| *byte = !*byte);
        }
    }

    /// Returns the elements of an exploded field.
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
    /// Removes all keys.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    /// Appends a key.
    pub(crate) fn push(&mut self, key: &[u8]) {
        self.bytes.extend_from_slice(key);
        self.ends.push(self.bytes.len());
    }

    /// Returns the number of keys.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Iterates over the keys, in the order of the documents and of their elements.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| &self.bytes[start..*end])
    }
}

/// Returns the value to store with an entry.
pub(crate) fn entry_value(partition: u32, id: &[u8]) -> u64 {
    u64::from(partition) << 16 | id.len() as u64 & 0xFFFF
}

/// Returns the partition of an entry's document.
pub(crate) fn partition_of(value: u64) -> u32 {
    (value >> 16) as u32
}

/// Returns the id of an entry's document.
pub(crate) fn id_of(key: &[u8], value: u64) -> &[u8] {
    &key[key.len().saturating_sub((value & 0xFFFF) as usize)..]
}

/// Parses a text as a number; `None` if it is not one.
pub fn number_of(text: &str) -> Option<Number> {
    crate::values::parse_number(text)
}
