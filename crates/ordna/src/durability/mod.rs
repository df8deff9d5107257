//! Durability: backups of a store, restore, and a log of all writes.
//!
//! ```
//! use ordna::durability::{BackupOptions, OpenOptions, SyncPolicy};
//! use ordna::{OrderedIndex, Store};
//!
//! # let dir = std::env::temp_dir().join(format!("ordna-doc-mod-{}", std::process::id()));
//! let options = OpenOptions::new().sync(SyncPolicy::Always);
//! let towns: Store<[u8], u64> = Store::open(&dir, options.clone())?;
//! towns.insert(b"Lund", &94_393)?; // durable when it returns
//! towns.backup(&BackupOptions::new())?; // the log starts anew
//! towns.insert(b"Uppsala", &177_074)?;
//! drop(towns);
//!
//! let towns: Store<[u8], u64> = Store::open(&dir, options)?;
//! assert_eq!(towns.approximate_len(), 2);
//! # drop(towns);
//! # std::fs::remove_dir_all(dir)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What is promised
//! - A backup holds the state of one moment, whole, or it is not there.
//! - After a crash, [`Store::open`](crate::Store::open) finds the newest backup and every write logged
//!   behind it, in the order of the writes of each key. Batches and groups are whole or absent.
//! - Under [`SyncPolicy::Always`] nothing acknowledged is lost. A read may see a write before it is durable.
//! - A log that fails refuses all further writes, until a backup succeeds. The write that learned of
//!   the failure answers an error; it stays in memory, and may be there after a crash or not.
//! - Every changed byte is found, and named by file and offset.
//!
//! | module | holds |
//! |---|---|
//! | `storage` | the operations on files, as a trait |
//! | `codec` | keys, values and records as bytes |
//! | `format` | files as chains of checked blocks |
//! | `manifest` | what a backup's files are |
//! | `write` | a backup by several workers |
//! | `delta` | what a backup without a snapshot may have missed |
//! | `restore`, `verify` | reading a backup |
//! | `log` | stripes, group commit, replay |
//! | `directory`, `open` | a store in a directory |
//! | `owned` | a store that has owners |
//!
//! The format: `docs/FORMAT.md`. Source: the Nitro paper (VLDB 2016), §5; the log is not the
//! paper's.

mod backup;
mod error;
mod files;
#[doc(hidden)]
pub mod fuzzing;
mod open;
mod owned;
mod progress;
mod verify;
mod wal;

pub use backup::manifest::{FileEntry, Manifest};
pub use backup::write::{BackupOptions, Mode, Summary};
pub use error::BackupError;
pub use files::blocks::Compression;
pub use files::storage::{Disk, OutFile, Storage};
pub use open::{Durability, OpenOptions, Recovery};
pub use progress::Progress;
pub use verify::{BackupReport, Report, install, verify};
pub use wal::queue::SyncPolicy;
pub use wal::replay::{LogCut, LogRead};
