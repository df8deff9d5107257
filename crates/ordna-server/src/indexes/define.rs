//! Creation, change, removal and listing of indexes.

use std::cell::Cell;
use std::sync::atomic::Ordering;

use ordna_secondary::{Error, IndexDefinition, Service};

use crate::indexes::definitions::{Composite, Definitions, FIRST_NUMBER, error_text, library_name};
use crate::indexes::schema::Schema;
use crate::indexes::service::Indexes;

/// Maximum number of indexes of both kinds. Each has its own tree and reverse map.
const MOST_INDEXES: usize = 1024;

/// Maximum total size in bytes of the names and prefixes of all indexes. They are stored several
/// times and written as a whole with each change. Those of a thousand ordinary indexes take a tenth
/// of this.
const MOST_BYTES: usize = 4 << 20;

impl Indexes {
    /// Changes the definitions and the service's indexes. If the indexes or the file cannot be
    /// changed, restores the former definitions.
    fn change(
        &self,
        change: impl FnOnce(&mut Definitions) -> Result<(), String>,
        apply: impl FnOnce(&Service) -> Result<(), Error>,
    ) -> Result<(), String> {
        if let Some(reason) = self.broken.get() {
            return Err(format!("ERR the indexes of this directory were not read: {reason}"));
        }
        let mut definitions = self.definitions.lock();
        let mut changed = definitions.clone();
        change(&mut changed)?;
        if changed.len() > MOST_INDEXES {
            return Err(format!("ERR there are {MOST_INDEXES} indexes already"));
        }
        // A removal is always possible.
        let bytes = changed.bytes();
        if bytes > MOST_BYTES && bytes > definitions.bytes() {
            return Err(format!(
                "ERR names and prefixes of all indexes would take {bytes} bytes, more than {MOST_BYTES}"
            ));
        }
        let service = self.start()?;
        self.version.fetch_add(1, Ordering::AcqRel);
        let save = |definitions: &Definitions| match &self.file {
            Some(file) => definitions.save(file),
            None => Ok(()),
        };
        save(&changed)?;
        self.announce(&changed);
        if let Err(error) = apply(service) {
            self.announce(&definitions);
            save(&definitions)?;
            return Err(error_text(error));
        }
        *definitions = changed;
        Ok(())
    }

    /// Creates an index of `ORDNA.INDEX`.
    ///
    /// # Errors
    /// The text of the error reply.
    pub fn create(&self, name: &str, mut definition: IndexDefinition) -> Result<(), String> {
        definition.name = library_name(name);
        let kept = definition.clone();
        let number = Cell::new(FIRST_NUMBER);
        self.change(
            |definitions| {
                number.set(FIRST_NUMBER + definitions.created);
                definitions.created += 1;
                let kept = Composite { number: number.get(), definition: kept };
                match definitions.composites.insert(name.to_owned(), kept) {
                    Some(_) => Err(format!("ERR an index named '{name}' exists")),
                    None => Ok(()),
                }
            },
            |service| service.create_numbered(definition, Some(number.get())),
        )
    }

    /// Drops an index of `ORDNA.INDEX`.
    ///
    /// # Errors
    /// The text of the error reply.
    pub fn drop_index(&self, name: &str) -> Result<(), String> {
        self.change(
            |definitions| match definitions.composites.remove(name) {
                Some(_) => Ok(()),
                None => Err(unknown_index(name)),
            },
            |service| service.drop_index(&library_name(name)),
        )
    }

    /// Returns the names of the indexes of `ORDNA.INDEX`, each with the prefixes of its keys.
    pub fn composites(&self) -> Vec<(String, Vec<Vec<u8>>)> {
        let definitions = self.definitions.lock();
        let all = definitions.composites.iter();
        all.map(|(name, found)| (name.clone(), found.definition.prefixes.clone())).collect()
    }

    /// Returns the definition of an index of `ORDNA.INDEX`.
    ///
    /// # Errors
    /// `ORDNA.INDEX` has no index of this name.
    pub fn definition(&self, name: &str) -> Result<IndexDefinition, String> {
        let definitions = self.definitions.lock();
        let found = definitions.composites.get(name);
        found.map(|composite| composite.definition.clone()).ok_or_else(|| unknown_index(name))
    }

    /// Returns the prefixes of the keys of an index of `ORDNA.INDEX`.
    pub fn prefixes_of_composite(&self, name: &str) -> Option<Vec<Vec<u8>>> {
        let definitions = self.definitions.lock();
        definitions.composites.get(name).map(|found| found.definition.prefixes.clone())
    }

    /// Returns the prefixes of the keys of an index of `FT.CREATE`.
    pub fn prefixes_of_schema(&self, name: &str) -> Option<Vec<Vec<u8>>> {
        self.definitions.lock().schemas.get(name).map(|schema| schema.prefixes.clone())
    }

    /// Creates an index of `FT.CREATE`.
    ///
    /// # Errors
    /// The text of the error reply.
    pub fn create_schema(&self, schema: &Schema) -> Result<(), String> {
        self.change(
            |definitions| {
                let old = definitions.schemas.insert(schema.name.clone(), schema.clone());
                old.map_or(Ok(()), |_| Err("ERR Index already exists".to_owned()))
            },
            |service| create_all(service, &schema.library_indexes()),
        )
    }

    /// Adds fields to an index of `FT.CREATE`: the last `added` fields of `altered`.
    ///
    /// # Errors
    /// The text of the error reply.
    pub fn alter_schema(&self, altered: &Schema, added: usize) -> Result<(), String> {
        self.change(
            |definitions| {
                let schema = definitions.schemas.get_mut(&altered.name);
                let schema = schema.ok_or_else(|| unknown_schema(&altered.name))?;
                if schema.fields.len() + added != altered.fields.len() {
                    return Err("ERR another client altered the index".to_owned());
                }
                schema.clone_from(altered);
                Ok(())
            },
            |service| {
                let new = &altered.fields[altered.fields.len() - added..];
                let new: Vec<_> = new.iter().map(|field| altered.definition_of(field)).collect();
                create_all(service, &new)
            },
        )
    }

    /// Drops an index of `FT.CREATE` and returns its schema.
    ///
    /// # Errors
    /// The text of the error reply.
    pub fn drop_schema(&self, name: &str) -> Result<Schema, String> {
        let schema = self.schema(name)?;
        self.change(
            |definitions| match definitions.schemas.remove(name) {
                Some(_) => Ok(()),
                None => Err(unknown_schema(name)),
            },
            |service| {
                let indexes = schema.library_indexes();
                indexes.iter().try_for_each(|index| service.drop_index(&index.name))
            },
        )?;
        Ok(schema)
    }

    /// Returns the names of the indexes of `FT.CREATE`, each with the prefixes of its keys.
    pub fn schemas(&self) -> Vec<(String, Vec<Vec<u8>>)> {
        let definitions = self.definitions.lock();
        let all = definitions.schemas.iter();
        all.map(|(name, schema)| (name.clone(), schema.prefixes.clone())).collect()
    }

    /// Returns the schema of an index of `FT.CREATE`.
    ///
    /// # Errors
    /// `FT.CREATE` has no index of this name.
    pub fn schema(&self, name: &str) -> Result<Schema, String> {
        let found = self.definitions.lock().schemas.get(name).cloned();
        found.ok_or_else(|| unknown_schema(name))
    }
}

/// Creates all of these indexes of the library, or none if there is an error.
fn create_all(service: &Service, definitions: &[IndexDefinition]) -> Result<(), Error> {
    for (at, definition) in definitions.iter().enumerate() {
        if let Err(error) = service.create(definition.clone()) {
            for definition in &definitions[..at] {
                service.drop_index(&definition.name)?;
            }
            return Err(error);
        }
    }
    Ok(())
}

fn unknown_index(name: &str) -> String {
    format!("ERR no index is named '{name}'")
}

fn unknown_schema(name: &str) -> String {
    format!("ERR {name}: no such index")
}
