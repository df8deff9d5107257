//! Messages of a replicated log, repeated on a store.
//!
//! # Invariants
//! 1. The store's state is that of the primary after one group: between two messages, after the
//!    last group of the first.
//! 2. The clock of the store never runs ahead of the primary's time of the last message, so a key
//!    does not expire before a record that lifts its deadline.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ordna::durability::{BackupOptions, Manifest};
use ordna::{Key, OpenOptions, Options, Store, Value};

use super::assembler::{ApplyError, Assembler, Place};

/// The store of a follower, which only the applier writes.
pub struct Applier<K: Key + ?Sized, V: Value + ?Sized> {
    store: Arc<Store<K, V>>,
    messages: Assembler,
    clock: Arc<AtomicU64>,
}

impl<K: Key + ?Sized, V: Value + ?Sized> Applier<K, V> {
    /// An empty store, for a partition that is read from its beginning.
    pub fn new(options: Options) -> Self {
        let clock = Arc::new(AtomicU64::new(0));
        let store = Store::with_options(with_clock(options, &clock));
        Self { store: Arc::new(store), messages: Assembler::default(), clock }
    }

    /// The state of a backup that [`back_up`](Self::back_up) wrote. O(n).
    ///
    /// # Errors
    /// The backup is damaged, or names no place.
    pub fn restore(backup: &Path, options: Options) -> Result<Self, ApplyError> {
        let manifest = Manifest::read(&ordna::durability::Disk, backup)?;
        let place = Place::decode(&manifest.metadata(backup)?)
            .ok_or_else(|| ApplyError::NoPlace { path: backup.display().to_string() })?;
        let clock = Arc::new(AtomicU64::new(place.time));
        let options = OpenOptions::new().store(with_clock(options, &clock));
        let store = Store::restore(backup, options)?;
        Ok(Self { store: Arc::new(store), messages: Assembler::at(place), clock })
    }

    /// Writes a backup of the state with its place, into a directory that does not exist. O(n).
    ///
    /// # Errors
    /// [`ApplyError::Store`].
    pub fn back_up(&mut self, target: &Path) -> Result<(), ApplyError> {
        // Parts of a group are not in the state: a restart reads them again.
        let place = self.place().encode();
        let options = BackupOptions::new().metadata(move || place.clone());
        self.store.backup_to(target, &options)?;
        Ok(())
    }

    /// The store, to read.
    pub fn store(&self) -> &Arc<Store<K, V>> {
        &self.store
    }

    /// The place of the state.
    pub fn place(&self) -> Place {
        self.messages.place()
    }

    /// Applies the message at an offset; one before the [place](Self::place) was applied before.
    ///
    /// # Errors
    /// [`ApplyError`].
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
