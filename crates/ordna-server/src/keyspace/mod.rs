//! The keys and values of the server: the store, and a handle that frees it on a separate thread.

pub mod access_table;
pub mod collections;
pub mod edits;
pub mod expiring_hash;
pub mod float;
pub mod glob;
pub mod hash;
pub mod lease;
pub mod list;
pub mod listpack;
pub mod lock;
pub mod members;
pub mod multi_get;
pub mod named_snapshots;
pub mod replicated;
pub mod sample;
pub mod scan_cursors;
pub mod set;
pub mod snapshot;
pub mod sorted_set;
pub mod stored_key;
pub mod stored_value;
pub mod user_keys;
pub mod value_kind;
pub mod watches;

use std::ops::{Bound, ControlFlow, Deref};
use std::path::Path;
use std::sync::{Arc, Weak};
use std::{io, thread};

use ordna::durability::BackupError;
use ordna::sync::notice;
use ordna::{Direction, HeldTime, Lifted, Options, OrderedIndex, Put, Statistics, Store, Write};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use self::collections::Collections;

/// The keys and values of users, and the elements of large collections, in one store.
#[derive(Debug)]
pub struct KeyspaceStore {
    /// Holds keys as `stored_key` and values as `stored_value` encode them.
    store: Store<[u8], [u8]>,
    collections: Collections,
    /// Whether the store has a directory.
    is_durable: bool,
}

impl KeyspaceStore {
    /// Returns the store, whose keys and values are in their stored form: for logs and backups.
    pub fn store(&self) -> &Store<[u8], [u8]> {
        &self.store
    }

    /// Returns the state that the collections share.
    pub fn collections(&self) -> &Collections {
        &self.collections
    }

    /// Returns the current time of the store's clock, in milliseconds since 1970.
    pub fn now(&self) -> u64 {
        self.store.now()
    }

    /// Returns the statistics of the store. Its items are those of users.
    pub fn statistics(&self) -> Statistics {
        let mut statistics = self.store.statistics();
        statistics.items = self.approximate_len();
        statistics
    }

    /// [`Store::check_room`].
    pub fn check_room(&self, bytes: usize) -> Result<(), ordna::Error> {
        self.store.check_room(bytes)
    }

    /// [`Store::hold_time`].
    pub fn hold_time(&self) -> HeldTime {
        self.store.hold_time()
    }

    /// Returns whether snapshots exist, which keep overwritten values.
    pub fn has_snapshots(&self) -> bool {
        !self.store.statistics().snapshots.is_empty()
    }

    /// [`Store::lift_limit`].
    pub fn lift_limit(&self) -> Lifted {
        self.store.lift_limit()
    }

    /// [`Store::collect_garbage`].
    pub fn collect_garbage(&self) {
        self.store.collect_garbage();
    }

    /// [`Store::collect_some`].
    pub fn collect_some(&self) {
        self.store.collect_some();
    }

    /// Adopts the entries of a directory: converts keys that an older server has stored, and
    /// restores the state of collections.
    fn adopt(&self) -> Result<(), AdoptError> {
        let found = self.store.get(stored_key::LAYOUT_KEY).unwrap_or_default();
        match stored_key::layout_version(&found) {
            None => self.escape_keys()?,
            Some(stored_key::LAYOUT_VERSION) => self.collections.layout_is_stored(),
            Some(found) if found > stored_key::LAYOUT_VERSION => {
                return Err(AdoptError::Newer { found });
            }
            // Everything that an older version of the layout may hold is valid in this one.
            Some(_) => {
                let layout = stored_key::layout(stored_key::LAYOUT_VERSION);
                let _lifted = self.store.lift_limit();
                self.store.insert(stored_key::LAYOUT_KEY, &layout)?;
                self.collections.layout_is_stored();
            }
        }
        let last = |bounds: (Bound<&[u8]>, Bound<&[u8]>), id: fn(&[u8]) -> Option<u64>| {
            let mut last = None;
            self.store.scan_with(bounds, Direction::Descending, 1, |key, _| {
                last = id(key);
                ControlFlow::Break(())
            });
            last.unwrap_or(0)
        };
        let of_elements = last(stored_key::ELEMENTS, stored_key::id_of_element);
        let of_removals = last(stored_key::REMOVALS, stored_key::of_removal);
        // A small hash with fields that expire has an id, but no separate elements.
        let mut of_deadlines = 0;
        self.store.scan_with(stored_key::DEADLINES, Direction::Ascending, usize::MAX, |key, _| {
            of_deadlines = of_deadlines.max(stored_key::of_deadline(key).map_or(0, |(_, id)| id));
            ControlFlow::Continue(())
        });
        let mut last_id = of_elements.max(of_removals);
        if notice!("field_expiry.ids_stay_taken", of_deadlines > last_id) {
            last_id = of_deadlines;
        }
        let (lower, upper) = stored_key::REMOVALS;
        let removals = self.store.count(lower, upper);
        if of_deadlines > 0 {
            self.collections.will_expire();
        }
        self.collections.resume(last_id, self.count_reserved(), removals);
        Ok(())
    }

    /// Escapes, in one step, the keys of a server that had no reserved key space and stored keys as
    /// they are, and records that this is done.
    fn escape_keys(&self) -> Result<(), ordna::Error> {
        let mut entries = Vec::new();
        let lower = Bound::Included(&[0xFE][..]);
        self.store.visit_entries(lower, Bound::Unbounded, Direction::Ascending, |key, put| {
            entries.push((key.to_vec(), put.value.to_vec(), put.expires_at));
            ControlFlow::Continue(())
        });
        if entries.is_empty() {
            return Ok(());
        }
        let keys: Vec<_> = entries.iter().map(|(key, ..)| stored_key::stored(key)).collect();
        // A key may equal the stored form of another one, so all are removed first.
        let removals = entries.iter().map(|(key, ..)| Write::Remove(key.as_slice()));
        let puts = entries.iter().zip(&keys).map(|((_, value, expires_at), key)| {
            Write::Put(&**key, Put { value: value.as_slice(), expires_at: *expires_at })
        });
        let layout = stored_key::layout(stored_key::LAYOUT_VERSION);
        let layout = Write::put(stored_key::LAYOUT_KEY, layout.as_slice());
        // The memory use is the same afterwards.
        let _lifted = self.store.lift_limit();
        self.store.write_batch(&removals.chain(puts).chain([layout]).collect::<Vec<_>>())?;
        self.collections.layout_is_stored();
        Ok(())
    }

    /// Returns whether there are entries of collections.
    pub fn holds_elements(&self) -> bool {
        let (lower, upper) = (stored_key::ELEMENTS.0, stored_key::REMOVALS.1);
        self.store.count(lower, upper) > 0
    }

    /// Returns the place in the log of another server that this one follows.
    pub fn place(&self) -> Option<Vec<u8>> {
        self.store.get(stored_key::PLACE_KEY)
    }

    /// Stores the place, if the store has a directory, and with it the version of the layout.
    fn store_place(&self, place: &[u8]) -> Result<(), ordna::Error> {
        if !self.is_durable {
            return Ok(());
        }
        if !self.store.contains(stored_key::LAYOUT_KEY) {
            let layout = stored_key::layout(stored_key::LAYOUT_VERSION);
            self.store.insert(stored_key::LAYOUT_KEY, &layout)?;
        }
        self.store.insert(stored_key::PLACE_KEY, place).map(drop)
    }

    /// Removes the place. Returns whether there was one.
    pub fn remove_place(&self) -> Result<bool, ordna::Error> {
        Ok(self.store.contains(stored_key::PLACE_KEY)
            && self.store.remove(stored_key::PLACE_KEY)?.is_some())
    }

    /// Lets commands write after another server's messages have.
    fn lead(&self) -> Result<(), AdoptError> {
        self.adopt()?;
        self.collections.lead();
        Ok(())
    }

    /// Stores the version of the layout before the first entry that needs it, if the store has a
    /// directory.
    fn store_layout(&self) -> Result<(), ordna::Error> {
        let _one = self.collections.storing_layout.lock();
        if self.is_durable && !self.store.contains(stored_key::LAYOUT_KEY) {
            let layout = stored_key::layout(stored_key::LAYOUT_VERSION);
            // The memory limit must not refuse it, because a removal may need it, too.
            let _lifted = self.store.lift_limit();
            self.store.insert(stored_key::LAYOUT_KEY, &layout)?;
            self.collections.reserved.add(1);
        }
        self.collections.layout_is_stored();
        Ok(())
    }
}

/// The reason why the entries of a directory cannot become a keyspace.
#[derive(Debug, thiserror::Error)]
pub enum AdoptError {
    /// The entries were written by a newer server.
    #[error(
        "the layout of the keys has version {found}; this server knows version {}",
        stored_key::LAYOUT_VERSION
    )]
    Newer { found: u32 },
    #[error(transparent)]
    Store(#[from] ordna::Error),
}

impl AdoptError {
    /// Converts this into the error of opening `directory`.
    pub fn in_directory(self, directory: &Path) -> BackupError {
        let path = directory.to_owned();
        match self {
            Self::Newer { found } => {
                BackupError::NewerFormat { path, found, known: stored_key::LAYOUT_VERSION }
            }
            Self::Store(error) => BackupError::Io {
                path,
                doing: "write the layout of the keys",
                source: io::Error::other(error.to_string()),
            },
        }
    }
}

/// Resolves when a keyspace has been freed.
pub type Freeing = oneshot::Receiver<()>;

/// A shared handle of the keys and values. The server, snapshots and counters hold one each.
///
/// After a flush, dropping the last handle frees all keys, perhaps millions. The thread that drops
/// it may be one that serves clients, so a new thread frees them.
#[derive(Debug)]
pub struct Keyspace(Option<Arc<KeyspaceStore>>);

impl Keyspace {
    pub fn with_options(options: Options) -> Self {
        Self::of(Store::with_options(options))
    }

    fn of(store: Store<[u8], [u8]>) -> Self {
        store.count_below(stored_key::USER_END);
        let is_durable = store.durability().is_some();
        let collections = Collections::default();
        Self(Some(Arc::new(KeyspaceStore { store, collections, is_durable })))
    }

    /// Creates the keyspace of a store that was opened in a directory.
    ///
    /// # Errors
    /// A newer server wrote the directory, or the log has failed.
    pub fn of_opened(store: Store<[u8], [u8]>) -> Result<Self, AdoptError> {
        let keyspace = Self::of(store);
        keyspace.adopt()?;
        Ok(keyspace)
    }

    /// Creates an empty keyspace that replaces this one, also in its directory if it has one.
    ///
    /// # Errors
    /// The log has failed.
    pub fn successor(&self, options: Options) -> Result<Self, ordna::Error> {
        self.store.successor(options).map(Self::of)
    }

    /// Returns whether two handles have the same keys, because no flush came between them.
    pub fn is(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }

    /// Returns a handle that does not keep the keys alive.
    pub fn downgrade(&self) -> Weak<KeyspaceStore> {
        self.0.as_ref().map_or_else(Weak::new, Arc::downgrade)
    }

    /// Returns a handle if the keys are still alive.
    pub fn upgrade(weak: &Weak<KeyspaceStore>) -> Option<Self> {
        weak.upgrade().map(|entries| Self(Some(entries)))
    }

    /// Drops the handle. If it was the last one, the result resolves when the keys are freed.
    pub fn release(mut self) -> Option<Freeing> {
        self.let_go()
    }

    fn let_go(&mut self) -> Option<Freeing> {
        let last = self.0.take().and_then(Arc::into_inner)?;
        // Without a runtime, no thread serves clients.
        Handle::try_current().ok()?;
        let (tell, freeing) = oneshot::channel();
        let free = move || {
            drop(last);
            // Most callers do not wait for the end.
            let _ = tell.send(());
        };
        // If the system cannot create a thread, the closure is dropped here, and the keys with it.
        // The runtime's own thread pool would panic.
        let _ = thread::Builder::new().name("ordna flush".to_owned()).spawn(free);
        Some(freeing)
    }
}

impl Clone for Keyspace {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl Drop for Keyspace {
    fn drop(&mut self) {
        drop(self.let_go());
    }
}

impl Deref for Keyspace {
    type Target = KeyspaceStore;

    fn deref(&self) -> &KeyspaceStore {
        self.0.as_deref().expect("only release and drop take the handle")
    }
}
