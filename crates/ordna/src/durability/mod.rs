//! Durability: a write-ahead log, backups and recovery.
//!
//! ```
//! use ordna::{BackupOptions, OpenOptions, Store, SyncPolicy};
//!
//! # let dir = std::env::temp_dir().join(format!("ordna-doc-mod-{}", std::process::id()));
//! let options = OpenOptions::new().sync(SyncPolicy::Always);
//! let towns: Store<[u8], u64> = Store::open(&dir, options.clone())?;
//! towns.insert(b"Lund", &94_393)?; // durable when it returns
//! towns.backup(&BackupOptions::new())?; // the log starts again
//! towns.insert(b"Uppsala", &177_074)?;
//! drop(towns);
//!
//! let towns: Store<[u8], u64> = Store::open(&dir, options)?;
//! assert_eq!(towns.len(), 2);
//! # drop(towns);
//! # std::fs::remove_dir_all(dir)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Durable writes in async programs
//! Under [`SyncPolicy::Always`] a write blocks its thread until it is durable. With
//! [`OpenOptions::acknowledge_later`] it returns at once, and the future
//! [`Store::until_durable`](crate::Store::until_durable) waits instead. So one fsync serves the
//! tasks of all threads:
//!
//! ```
//! use ordna::{Error, OpenOptions, Store, SyncPolicy};
//!
//! async fn put_durably(store: &Store<[u8], [u8]>, key: &str, value: &str) -> Result<(), Error> {
//!     store.put(key, value)?;
//!     store.until_durable(store.log_position()).await
//! }
//!
//! # let dir = std::env::temp_dir().join(format!("ordna-doc-async-{}", std::process::id()));
//! let options = OpenOptions::new().sync(SyncPolicy::Always).acknowledge_later();
//! let store = Store::open(&dir, options)?;
//! // Usually a runtime polls the future; here a loop does.
//! let mut write = Box::pin(put_durably(&store, "a", "1"));
//! let mut context = std::task::Context::from_waker(std::task::Waker::noop());
//! while write.as_mut().poll(&mut context)?.is_pending() {
//!     std::thread::yield_now();
//! }
//! # drop(write);
//! # drop(store);
//! # std::fs::remove_dir_all(dir).unwrap();
//! # Ok::<(), Error>(())
//! ```
//!
//! # Guarantees
//! - A backup is complete and holds the state of one moment, or it does not exist.
//! - After a crash, [`Store::open`](crate::Store::open) reads the newest backup and all writes that
//!   were logged after it, in the order of the writes of each key. Batches and groups are present
//!   as a whole or not at all.
//! - Under [`SyncPolicy::Always`], no acknowledged write is lost. A read may see a write before it
//!   is durable.
//! - Under the other policies, a crash of the process loses no acknowledged write either if
//!   [`Durability::survives_kill`] is true: on Linux with ext2 to ext4, XFS or tmpfs.
//! - If the log fails, it refuses all further writes. The write during which it failed returns an
//!   error, but stays in memory, and may or may not survive a crash. If a write to the log failed
//!   (for example because the disk is full), the log retries by itself. If a sync failed, the log
//!   works again after a backup.
//! - Every changed byte is detected, and reported with its file and offset.
//!
//! | module | holds |
//! |---|---|
//! | `open`, `open_options` | opening a store in a directory |
//! | `replay`, `read_ahead`, `replay_threads` | reading the log and repeating its records |
//! | `merge` | building a store from a backup and the first records of the log |
//! | `log` | state and control of the log |
//! | `checkpoint` | backups that a store takes by itself |
//! | `backup` | backups of a store, live or of a snapshot, and restore |
//! | `verify` | checks of a backup or directory |
//! | `owned` | backups of a store that has owners |
//!
//! The write-ahead log itself (`wal`) and the files (`files`) are separate modules of the crate, in
//! a layer below the store: every write of a store passes through the log. This module uses the
//! store.
//!
//! `docs/FORMAT.md` describes the file format. The backups follow the Nitro paper (VLDB 2016), §5;
//! the log is not described there.

mod backup;
mod checkpoint;
#[doc(hidden)]
pub mod fuzzing;
mod log;
mod merge;
mod open;
mod open_options;
mod owned;
mod read_ahead;
mod read_log;
mod replay;
mod replay_threads;
mod verify;

pub use backup::write::{BackupOptions, Mode};
pub use open_options::{LoggedKeys, OpenOptions};
pub use read_log::read_log;
pub use verify::{BackupReport, Report, install, verify};

pub use crate::files::blocks::Compression;
pub use crate::files::error::BackupError;
pub use crate::files::manifest::{FileEntry, Manifest};
pub use crate::files::progress::Progress;
pub use crate::files::storage::{Disk, OutFile, SharedFile, Storage};
pub use crate::wal::reports::{Durability, Recovery, Summary, WalReplay, WalTruncation};
pub use crate::wal::sink::{LogGroup, LogSink};
pub use crate::wal::sync_policy::SyncPolicy;
pub use crate::wal::sync_times::SyncCounts;
