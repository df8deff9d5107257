//! The schema of an index of `FT.CREATE`.

use ordna_secondary::{Explode, IndexDefinition, Kind, Part, lower};
use serde::{Deserialize, Serialize};

use crate::keyspace::hash::Hash;

/// The field name that stands for a document's key.
pub const KEY: &str = "__key";
/// Maximum number of fields of a schema.
pub const MOST_FIELDS: usize = 128;

/// The type of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FieldKind {
    Tag { separator: char, case_sensitive: bool },
    Numeric,
}

/// A field of a schema.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Field {
    /// Its name in queries.
    pub name: String,
    /// Its name in the hash.
    pub path: String,
    pub kind: FieldKind,
    pub sortable: bool,
    /// Whether queries may only sort and group by the field.
    pub no_index: bool,
}

/// An index over hashes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Schema {
    pub name: String,
    pub prefixes: Vec<Vec<u8>>,
    pub fields: Vec<Field>,
}

impl Schema {
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.fields.iter().find(|field| field.name == name)
    }

    /// Returns the name of the library's index of all documents, in the order of their keys.
    pub fn documents(&self) -> String {
        format!("d\0{}", self.name)
    }

    /// Returns the name of the library's index of a field.
    pub fn index_of(&self, field: &Field) -> String {
        format!("f\0{}\0{}", self.name, field.name)
    }

    /// Returns the definition of [`documents`](Self::documents): its only part is one that no
    /// document has.
    pub fn documents_definition(&self) -> IndexDefinition {
        self.define(self.documents(), Part::new("\0"))
    }

    /// Returns the definition of a field's index.
    pub fn definition_of(&self, field: &Field) -> IndexDefinition {
        let part = Part::new(field.path.as_str());
        let part = match field.kind {
            FieldKind::Numeric => part.kind(Kind::Number),
            FieldKind::Tag { separator, case_sensitive } => part
                .kind(if case_sensitive { Kind::Text } else { Kind::LowerText })
                .explode(Explode::Split(separator)),
        };
        self.define(self.index_of(field), part)
    }

    /// Returns all indexes of the library that belong to the schema.
    pub fn library_indexes(&self) -> Vec<IndexDefinition> {
        let fields = self.fields.iter().map(|field| self.definition_of(field));
        std::iter::once(self.documents_definition()).chain(fields).collect()
    }

    fn define(&self, name: String, part: Part) -> IndexDefinition {
        let mut definition = IndexDefinition::new(name, Vec::new()).part(part);
        definition.prefixes.clone_from(&self.prefixes);
        definition
    }
}

impl Field {
    /// Returns the numeric value of the field in a hash.
    pub fn number(&self, hash: &Hash<'_>) -> Option<f64> {
        let text = std::str::from_utf8(hash.get(self.path.as_bytes())?).ok()?;
        text.parse().ok().filter(|number: &f64| !number.is_nan())
    }

    /// Returns whether `passes` is true for a tag of the field in a hash.
    pub fn any_tag(&self, hash: &Hash<'_>, mut passes: impl FnMut(&str) -> bool) -> bool {
        let FieldKind::Tag { separator, case_sensitive } = self.kind else { return false };
        let Some(value) = hash.get(self.path.as_bytes()) else { return false };
        let Ok(text) = std::str::from_utf8(value) else { return false };
        let mut tags = text.split(separator).map(str::trim).filter(|tag| !tag.is_empty());
        tags.any(|tag| if case_sensitive { passes(tag) } else { passes(&lower(tag)) })
    }
}
