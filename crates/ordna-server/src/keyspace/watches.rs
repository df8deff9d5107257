//! The keys that clients watch.
//!
//! # Contract
//! `WATCH` registers each key, present or absent. A command that has written a key reports it while
//! it still holds the keyspace, so no `EXEC` runs between the write and the report. An expiry or a
//! flush does not write keys, so `EXEC` also checks whether a key that was present still is.
//!
//! # Protocol
//! Writers skip the lock while no key is watched. Two fences order the two sides: either the writer
//! reads a count above zero, or the watcher's next read of the key returns the write.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A watched key: the number of its watchers, and of its writes since the first of them.
#[derive(Debug, Default)]
struct Interest {
    watchers: usize,
    writes: u64,
}

/// The watched keys of all clients.
#[derive(Debug, Default)]
pub struct Watches {
    keys: Mutex<BTreeMap<Arc<[u8]>, Interest>>,
    /// Number of keys.
    count: AtomicUsize,
}

impl Watches {
    fn keys(&self) -> MutexGuard<'_, BTreeMap<Arc<[u8]>, Interest>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts to watch a key.
    pub fn watch(self: &Arc<Self>, key: &[u8]) -> Watch {
        let mut keys = self.keys();
        // All watchers of a key share one copy of its name.
        let entry = keys.entry(Arc::from(key));
        let key = Arc::clone(entry.key());
        let interest = entry.or_default();
        interest.watchers += 1;
        let seen = interest.writes;
        self.count.store(keys.len(), Ordering::Relaxed);
        drop(keys);
        // Pairs with the fence in `are_watched`.
        fence(Ordering::SeqCst);
        Watch { watches: Arc::clone(self), key, seen }
    }

    /// Returns whether any key is watched.
    #[inline]
    fn are_watched(&self) -> bool {
        fence(Ordering::SeqCst);
        self.count.load(Ordering::Relaxed) > 0
    }

    /// Reports that these keys were written.
    #[inline]
    pub fn written<'k>(&self, written: impl IntoIterator<Item = &'k [u8]>) {
        if self.are_watched() {
            let mut keys = self.keys();
            for key in written {
                if let Some(interest) = keys.get_mut(key) {
                    interest.writes += 1;
                }
            }
        }
    }

    /// Reports that keys within the bounds, which must not cross, were removed.
    pub fn removed_within(&self, lower: Bound<&[u8]>, upper: Bound<&[u8]>) {
        if self.are_watched() {
            let mut keys = self.keys();
            let within = keys.range_mut::<[u8], _>((lower, upper));
            within.for_each(|(_, interest)| interest.writes += 1);
        }
    }

    /// Returns the number of watched keys.
    pub fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }
}

/// A key that one client watches until this is dropped.
#[derive(Debug)]
pub struct Watch {
    watches: Arc<Watches>,
    key: Arc<[u8]>,
    seen: u64,
}

impl Watch {
    /// Returns whether the key was written since [`Watches::watch`].
    pub fn was_written(&self) -> bool {
        self.watches.keys().get(&self.key).is_none_or(|interest| interest.writes != self.seen)
    }

    pub fn key(&self) -> &Arc<[u8]> {
        &self.key
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut keys = self.watches.keys();
        debug_assert!(keys.contains_key(&self.key), "a watched key is listed");
        if let Some(interest) = keys.get_mut(&self.key) {
            debug_assert!(interest.watchers > 0, "a key without watchers is not listed");
            interest.watchers -= 1;
            if interest.watchers == 0 {
                keys.remove(&self.key);
            }
        }
        self.watches.count.store(keys.len(), Ordering::Relaxed);
    }
}
