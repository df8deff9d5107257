//! Secondary indexes over the hashes of the keyspace.
//!
//! # Contract
//! A command reports the keys that it has written while it holds the keyspace. If an index covers a
//! key, the report reads the key's current hash under the lock of its bucket and queues it. So the
//! last queued change of a key is its latest state, in whatever order writers report. Without an
//! index, a report costs one load. Definitions change only while the caller holds the keyspace
//! exclusively.
//!
//! # Order of locks
//! Keyspace, `Indexes::expiring`, definitions, bucket, `CoveredKeys::keyspace`. A snapshot of the
//! documents is taken under all buckets; so it must not wait for the keyspace's lock and reads
//! `CoveredKeys::keyspace` instead.
//!
//! # Expiry
//! An expired key is not reported. The feed records the deadlines of covered keys, and a task reads
//! these keys again when they are due.
//!
//! # Restart
//! Definitions are stored in a file of the data directory. Entries come from the indexes' backup if
//! it matches the keyspace's backup (see `resume_file`). Otherwise they are rebuilt from the
//! keyspace.
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

/// Checks the files of the indexes in a data directory, except their backups, because a start
/// rebuilds the indexes if a backup is damaged. Returns the errors.
pub fn verify(dir: &Path) -> Vec<String> {
    let (file, backups) = (dir.join(definitions::FILE), dir.join(resume_file::DIRECTORY));
    let defined = definitions::Definitions::read(&file).and_then(|read| {
        let is_missing = read.is_none() && backups.exists();
        if is_missing { Err(definitions::missing(&file, &backups)) } else { Ok(()) }
    });
    [defined, resume_file::check(&backups)].into_iter().filter_map(Result::err).collect()
}
