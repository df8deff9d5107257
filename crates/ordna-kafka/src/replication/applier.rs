//! Repeats the messages of a replicated log on a store.
//!
//! # Invariants
//! 1. The state of the store is that of the primary after one group. Between two messages, it is
//!    the state after the last group of the first one.
//! 2. The clock of the store is never ahead of the primary's time of the last message, so a key
//!    does not expire before a record that removes its deadline.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ordna::durability::{BackupOptions, Manifest};
use ordna::{Key, OpenOptions, Options, Store, Value};

use super::assembler::{ApplyError, Assembler, Place};

/// The store of a follower, to which only the applier writes.
pub struct Applier<K: Key + ?Sized, V: Value + ?Sized> {
    store: Arc<Store<K, V>>,
    messages: Assembler,
    clock: Arc<AtomicU64>,
}

impl<K: Key + ?Sized, V: Value + ?Sized> Applier<K, V> {
    /// Creates an empty store, for a partition that is read from its beginning.
    pub fn new(options: Options) -> Self {
        let clock = Arc::new(AtomicU64::new(0));
        let store = Store::with_options(with_clock(options, &clock));
        Self { store: Arc::new(store), messages: Assembler::default(), clock }
    }

    /// Restores the state of a backup that [`back_up`](Self::back_up) has written. O(n).
    ///
    /// # Errors
    /// Returns an error if the backup is damaged or has no place.
    pub fn restore(backup: &Path, options: Options) -> Result<Self, ApplyError> {
        let manifest = Manifest::read(&ordna::durability::Disk, backup)?;
        let place = Place::decode(&manifest.metadata(backup)?)
            .ok_or_else(|| ApplyError::NoPlace { path: backup.display().to_string() })?;
        let clock = Arc::new(AtomicU64::new(place.time));
        let options = OpenOptions::new().store(with_clock(options, &clock));
        let store = Store::restore(backup, options)?;
        Ok(Self { store: Arc::new(store), messages: Assembler::at(place), clock })
    }

    /// Writes a backup of the state and its place into a directory, which must not exist. O(n).
    ///
    /// # Errors
    /// [`ApplyError::Store`] if the backup fails.
    pub fn back_up(&mut self, target: &Path) -> Result<(), ApplyError> {
        // Parts of an incomplete group are not in the state, so they are read again after a
        // restart.
        let place = self.place().encode();
        let options = BackupOptions::new().metadata(move || place.clone());
        self.store.backup_to(target, &options)?;
        Ok(())
    }

    /// Returns the store, for reads.
    pub fn store(&self) -> &Arc<Store<K, V>> {
        &self.store
    }

    /// Returns the place of the state.
    pub fn place(&self) -> Place {
        self.messages.place()
    }

    /// Applies the message at an offset. Skips it if the offset is before the [place](Self::place),
    /// because it was already applied.
    ///
    /// # Errors
    /// Returns an [`ApplyError`] if the message cannot be applied.
    pub fn apply(&mut self, offset: u64, message: &[u8]) -> Result<(), ApplyError> {
        let Some(ready) = self.messages.take(offset, message)? else { return Ok(()) };
        // Relaxed: a reader that sees an earlier time sees an earlier state.
        self.clock.store(ready.place.time, Ordering::Relaxed);
        for group in ready.groups() {
            self.store.repeat_log_group(group.records, group.count)?;
        }
        self.messages.applied(ready.place);
        Ok(())
    }
}

fn with_clock(options: Options, clock: &Arc<AtomicU64>) -> Options {
    let clock = Arc::clone(clock);
    options.clock(move || clock.load(Ordering::Relaxed))
}
