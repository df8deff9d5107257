//! Keys that are watched while they are absent.
//!
//! A key that is there has a version, which is another one after every write. One that is absent, is
//! written and is removed again is as absent as before, and the store keeps nothing of it: whoever
//! watches such a key registers here, and commands report the keys they have written, if those may
//! have been absent.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How many watch a key, and how often it was written since the first of them came.
#[derive(Debug, Default)]
struct Interest {
    watchers: usize,
    writes: u64,
}

/// The watched keys.
#[derive(Debug, Default)]
pub struct Watches {
    keys: Mutex<HashMap<Vec<u8>, Interest>>,
    /// Number of keys: without any, writers pass by the lock.
    count: AtomicUsize,
}

impl Watches {
    fn keys(&self) -> MutexGuard<'_, HashMap<Vec<u8>, Interest>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches a key from now on.
    pub fn watch(self: &Arc<Self>, key: &[u8]) -> Watch {
        let mut keys = self.keys();
        let interest = keys.entry(key.to_owned()).or_default();
        interest.watchers += 1;
        let seen = interest.writes;
        self.count.store(keys.len(), Ordering::Relaxed);
        drop(keys);
        // Pairs with the fence in `written`: either the writer finds us, or we find what it wrote.
        fence(Ordering::SeqCst);
        Watch { watches: Arc::clone(self), key: key.to_owned(), seen }
    }

    /// These keys were written.
    pub fn written<'k>(&self, written: impl Iterator<Item = &'k [u8]>) {
        fence(Ordering::SeqCst);
        if self.count.load(Ordering::Relaxed) > 0 {
            let mut keys = self.keys();
            for key in written {
                if let Some(interest) = keys.get_mut(key) {
                    interest.writes += 1;
                }
            }
        }
    }
}

/// A watched key; until it is dropped.
#[derive(Debug)]
pub struct Watch {
    watches: Arc<Watches>,
    key: Vec<u8>,
    seen: u64,
}

impl Watch {
    /// Whether the key was written since.
    pub fn was_written(&self) -> bool {
        self.watches.keys().get(&self.key).is_none_or(|interest| interest.writes != self.seen)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut keys = self.watches.keys();
        if let Some(interest) = keys.get_mut(&self.key) {
            interest.watchers -= 1;
            if interest.watchers == 0 {
                keys.remove(&self.key);
            }
        }
        self.watches.count.store(keys.len(), Ordering::Relaxed);
    }
}
