//! Secondary indexes over a stream of documents, with ordered composite keys and consistent reads.
//! After a restart they continue where they stopped.
//!
//! A [`ChangeSource`] reports changes of documents. A [`Service`] follows a source and keeps the
//! indexes up to date with several workers, each of which applies the changes of its share of the
//! documents to all indexes. Every 20 ms the service publishes a snapshot point: a snapshot of all
//! indexes, together with the positions in the source's stream up to which it contains changes.
//! Queries read a snapshot point.
//!
//! ```
//! use std::collections::BTreeMap;
//! use std::sync::{Arc, Mutex};
//! use ordna::tuple::{Number, Value};
//! use ordna_secondary::*;
//!
//! /// Where the documents are.
//! #[derive(Default)]
//! struct Towns(Mutex<BTreeMap<Box<[u8]>, Document>>);
//!
//! impl DocumentStore for Towns {
//!     fn get(&self, id: &[u8]) -> Option<Document> {
//!         self.0.lock().unwrap().get(id).cloned()
//!     }
//!     fn snapshot(&self, _: usize) -> Vec<Box<dyn Iterator<Item = Named> + Send>> {
//!         vec![Box::new(self.0.lock().unwrap().clone().into_iter())]
//!     }
//! }
//!
//! let towns = Arc::new(Towns::default());
//! let source = Arc::new(Embedded::new(64, 1, towns.clone()));
//! let service = Service::start(ServiceOptions::new(), source.clone())?;
//! let by_size = IndexDefinition::new("by_size", "town:")
//!     .part(Part::new("country"))
//!     .part(Part::new("people").descending());
//! service.create(by_size)?;
//! for (id, country, people) in [("town:1", "SE", 94_393), ("town:2", "SE", 177_074)] {
//!     let town = Document::new()
//!         .with("country", Value::String(country.into()))
//!         .with("people", Value::Number(Number::Int(people)));
//!     source.write(id.as_bytes(), || {
//!         towns.0.lock().unwrap().insert(id.as_bytes().into(), town.clone());
//!         ((), Some(Some(town)))
//!     })?;
//! }
//! let swedish = Query::new().prefix([Value::String("SE".into())]).limit(10);
//! let read = Read::request_plus().wait_for_build();
//! let page = service.query("by_size", &swedish, &read)?;
//! let ids: Vec<_> = page.entries.iter().map(|entry| &entry.id[..]).collect();
//! assert_eq!(ids, [b"town:2", b"town:1"]);
//! # Ok::<(), ordna_secondary::Error>(())
//! ```
//!
//! | module | holds |
//! |---|---|
//! | `document`, `values` | documents, changes, types of values |
//! | `define`, `filter` | what an index is of, and the keys of a document |
//! | `version_vector`, `source` | positions, streams of changes |
//! | `shard_queues`, `worker` | one queue for each shard of the documents, and the threads that empty them |
//! | `reverse`, `index` | the way back from documents to entries; an index |
//! | `view`, `query` | the state of all indexes at a snapshot point; ranges, pages, cursors |
//! | `service`, `service_options`, `recover` | all of it together; backups |
//! | `embedded`, `file` | sources |
//!
//! Sources: the Nitro paper (VLDB 2016), §8 to §10; `docs/design/secondary.md`.

mod define;
mod document;
mod embedded;
mod error;
mod file;
mod filter;
mod index;
mod query;
mod recover;
mod reverse;
mod service;
mod service_options;
mod shard_queues;
mod source;
mod values;
mod version_vector;
mod view;
mod worker;

pub use define::{
    Explode, IndexDefinition, Keys, MAX_ENTRIES, MAX_PARTS, OnWrongType, Order, Part, number_of,
};
pub use document::{Document, Mutation};
pub use embedded::{Changed, DocumentStore, Embedded, Named, Transaction};
pub use error::{Error, SourceError};
pub use file::NdjsonFile;
pub use filter::Filter;
pub use index::{IndexInfo, IndexState};
pub use query::{Cursor, IndexEntry, KeyBounds, Page, Query, Range};
pub use recover::Backup;
pub use reverse::Reverse;
pub use service::Service;
pub use service_options::{Consistency, Read, ServiceOptions};
pub use source::{ChangeSource, Documents, Feed};
pub use values::{Kind, lower};
pub use version_vector::{Position, VersionVector};
pub use view::View;
