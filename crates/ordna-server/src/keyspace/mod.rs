//! The keys and values, and a handle that frees them on a thread that serves no client.

pub mod access_table;
pub mod float;
pub mod glob;
pub mod hash;
pub mod lease;
pub mod listpack;
pub mod lock;
pub mod multi_get;
pub mod named_snapshots;
pub mod scan_cursors;
pub mod snapshot;
pub mod stored_value;
pub mod watches;

use std::ops::Deref;
use std::sync::{Arc, Weak};
use std::thread;

use ordna::{Options, Store};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// The store of the keyspace: keys, and values as `stored_value` encodes them.
pub type KeyspaceStore = Store<[u8], [u8]>;

/// Resolves once a keyspace is freed.
pub type Freeing = oneshot::Receiver<()>;

/// A shared handle of the keys and values. The server, snapshots and counters hold one each.
///
/// After a flush, dropping the last handle frees all keys, perhaps millions. A thread that serves
/// clients may be the one that drops it, so a new thread frees them.
#[derive(Debug)]
pub struct Keyspace(Option<Arc<KeyspaceStore>>);

impl Keyspace {
    pub fn with_options(options: Options) -> Self {
        Self(Some(Arc::new(Store::with_options(options))))
    }

    pub fn of(entries: KeyspaceStore) -> Self {
        Self(Some(Arc::new(entries)))
    }

    /// Creates an empty keyspace that replaces this one, also in its directory if it has one.
    ///
    /// # Errors
    /// The log has failed.
    pub fn successor(&self, options: Options) -> Result<Self, ordna::Error> {
        KeyspaceStore::successor(self, options).map(Self::of)
    }

    /// Returns a handle that does not keep the keys alive.
    pub fn downgrade(&self) -> Weak<KeyspaceStore> {
        self.0.as_ref().map_or_else(Weak::new, Arc::downgrade)
    }

    /// Returns a handle if the keys are still alive.
    pub fn upgrade(weak: &Weak<KeyspaceStore>) -> Option<Self> {
        weak.upgrade().map(|entries| Self(Some(entries)))
    }

    /// Drops the handle. If it was the last one, the result resolves once the keys are freed.
    pub fn release(mut self) -> Option<Freeing> {
        self.let_go()
    }

    fn let_go(&mut self) -> Option<Freeing> {
        let last = self.0.take().and_then(Arc::into_inner)?;
        // Without a runtime no thread serves.
        Handle::try_current().ok()?;
        let (tell, freeing) = oneshot::channel();
        let free = move || {
            drop(last);
            // Most callers do not wait for it.
            let _ = tell.send(());
        };
        // If the system refuses a thread, the closure is dropped here, and the keys with it. The
        // runtime's own pool would panic.
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
