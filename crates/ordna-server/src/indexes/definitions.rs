//! Definitions of the indexes, and the file that stores them.

use std::collections::BTreeMap;
use std::path::Path;

use ordna_secondary::{Error, IndexDefinition};
use serde::{Deserialize, Serialize};

use crate::indexes::schema::Schema;
use crate::indexes::sealed_file;

/// Name of the file in the data directory.
pub(super) const FILE: &str = "indexes.json";
/// Lowest number of an index of `ORDNA.INDEX`. The library assigns lower numbers itself.
pub(super) const FIRST_NUMBER: u64 = 1 << 32;

/// An index of `ORDNA.INDEX`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Composite {
    /// A number that is part of the index's cursors, so that a cursor of a dropped index is
    /// recognized.
    pub number: u64,
    pub definition: IndexDefinition,
}

/// All defined indexes. This is the content of the file, which ends with a line with its checksum.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Definitions {
    /// Indexes of `ORDNA.INDEX`, by name.
    pub composites: BTreeMap<String, Composite>,
    /// Indexes of `FT.CREATE`, by name.
    pub schemas: BTreeMap<String, Schema>,
    /// Number of indexes of `ORDNA.INDEX` that were ever created.
    pub created: u64,
}

impl Definitions {
    /// Reads the file. Returns `None` if it does not exist.
    ///
    /// # Errors
    /// The file cannot be read, it cannot be determined whether it exists, or its content is
    /// damaged.
    pub fn read(file: &Path) -> Result<Option<Self>, String> {
        Ok(sealed_file::read(file)?.map(|(read, _)| read))
    }

    /// Replaces the file. A reader finds either the old or the new content.
    pub fn save(&self, file: &Path) -> Result<(), String> {
        let replaced = serde_json::to_vec_pretty(self)
            .map_err(Into::into)
            .and_then(|json| sealed_file::replace(file, json));
        replaced.map_err(|error| format!("ERR cannot write {}: {error}", file.display()))
    }

    /// Returns the number of indexes of both kinds.
    pub fn len(&self) -> usize {
        self.composites.len() + self.schemas.len()
    }

    /// Returns the total size in bytes of names and prefixes. Each field counts with the name of
    /// its index.
    pub fn bytes(&self) -> usize {
        let lengths = |prefixes: &[Vec<u8>]| prefixes.iter().map(Vec::len).sum::<usize>();
        let composites = self.composites.iter().map(|(name, composite)| {
            let definition = &composite.definition;
            let parts = definition.parts.iter().map(|part| part.field.len());
            let filter = definition.filter.as_ref().map_or(0, |filter| filter.to_string().len());
            name.len() + lengths(&definition.prefixes) + parts.sum::<usize>() + filter
        });
        let schemas = self.schemas.iter().map(|(name, schema)| {
            // Each field is an index of the library, which has the prefixes, too.
            let own = name.len() + lengths(&schema.prefixes);
            let fields = schema.fields.iter();
            own + fields.map(|field| own + field.name.len() + field.path.len()).sum::<usize>()
        });
        composites.chain(schemas).sum()
    }

    /// Returns the prefixes of the keys that the indexes cover, sorted and without duplicates.
    pub fn prefixes(&self) -> Vec<Vec<u8>> {
        let composites = self.composites.values();
        let composites = composites.flat_map(|composite| &composite.definition.prefixes);
        let schemas = self.schemas.values().flat_map(|schema| &schema.prefixes);
        let mut prefixes: Vec<Vec<u8>> = composites.chain(schemas).cloned().collect();
        prefixes.sort();
        prefixes.dedup();
        prefixes
    }

    /// Returns the library's indexes by their names. Only those of `ORDNA.INDEX` have a number.
    pub fn library_indexes(&self) -> BTreeMap<String, (IndexDefinition, Option<u64>)> {
        let composites = self.composites.values();
        let composites = composites.map(|found| (found.definition.clone(), Some(found.number)));
        let schemas = self.schemas.values().flat_map(Schema::library_indexes);
        composites
            .chain(schemas.map(|definition| (definition, None)))
            .map(|index| (index.0.name.clone(), index))
            .collect()
    }
}

/// Returns the error for a directory that has backups of indexes but not the file.
pub(super) fn missing(file: &Path, backups: &Path) -> String {
    format!("{} is missing, but {} exists", file.display(), backups.display())
}

/// Returns the library's name of an index of `ORDNA.INDEX`.
pub fn library_name(name: &str) -> String {
    format!("i\0{name}")
}

/// Returns the text of an error reply for an error of the library, with the names that clients
/// know.
pub fn error_text(error: Error) -> String {
    let text = error.to_string();
    let plain = ["i\\0", "d\\0", "f\\0"]
        .iter()
        .fold(text, |text, part| text.replace(&format!("\"{part}"), "\""));
    format!("ERR {}", plain.replace("\\0", "."))
}
