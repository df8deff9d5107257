//! Secondary indexes over the hashes of the keyspace.
//!
//! # Contract
//! A command reports the keys that it has written while it holds the keyspace. For a key that an
//! index covers, the report reads its present hash under the lock of the key's bucket and queues
//! it. So the last queued change of a key is its last state, in whatever order writers report.
//! Without an index a report costs one load. Definitions change while no command holds the
//! keyspace: the caller holds it alone.
//!
//! # Order of locks
//! Keyspace, `Indexes::expiring`, definitions, bucket, `CoveredKeys::keyspace`. A snapshot of the
//! documents is taken under all buckets; so it must not wait for the keyspace's lock and reads
//! `CoveredKeys::keyspace` instead.
//!
//! # Expiry
//! An expired key reports nothing. The feed notes the deadlines of covered keys; a task reads those
//! keys again when they are due.
//!
//! # Restart
//! Definitions are in a file of the data directory. Entries come from the indexes' backup if it
//! fits the keyspace's (see `resume_file`). Otherwise they are built again from the keyspace.
//!
//! | file | content |
//! |---|---|
//! | `schema` | the schema of an index of `FT.CREATE` |
//! | `definitions` | all definitions, and their file |
//! | `documents` | the hashes that indexes cover, and their deadlines |
//! | `service` | the set of indexes, [`Indexes`], and the library's service |
//! | `define` | creation, change and removal of indexes |
//! | `feed` | reports of written and expired keys |
//! | `snapshot_point` | consistent states for queries |
//! | `sealed_file` | files of JSON with a checksum |
//! | `resume_file`, `recovery` | backups of the indexes, and restarts |

use std::path::Path;

mod define;
mod definitions;
mod documents;
mod feed;
mod recovery;
pub mod resume_file;
pub mod schema;
mod sealed_file;
mod service;
mod snapshot_point;

pub use self::definitions::{error_text, library_name};
pub use self::service::Indexes;
pub use self::snapshot_point::{PATIENCE, patience, read_latest};

/// Checks the files of the indexes in a data directory, but not their backups: a start that finds
/// one of these damaged builds the indexes from the keyspace. Returns what is wrong.
pub fn verify(dir: &Path) -> Vec<String> {
    let (file, backups) = (dir.join(definitions::FILE), dir.join(resume_file::DIRECTORY));
    let defined = definitions::Definitions::read(&file).and_then(|read| {
        let is_missing = read.is_none() && backups.exists();
        if is_missing { Err(definitions::missing(&file, &backups)) } else { Ok(()) }
    });
    [defined, resume_file::check(&backups)].into_iter().filter_map(Result::err).collect()
}
