//! Reports written and expired keys to the indexes.

use std::sync::atomic::Ordering;

use ordna_secondary::Transaction;

use crate::indexes::service::Indexes;
use crate::keyspace::Keyspace;

impl Indexes {
    /// Returns whether an index covers the key.
    pub fn covers(&self, key: &[u8]) -> bool {
        self.are_active() && self.covered.contain(key)
    }

    /// Reports keys that were written, set, removed or expired. The caller holds the keyspace.
    #[inline]
    pub fn written<'k>(&self, keyspace: &Keyspace, keys: impl IntoIterator<Item = &'k [u8]>) {
        if self.are_active() {
            self.feed(keyspace, keys.into_iter().filter(|key| self.covered.contain(key)).collect());
        }
    }

    #[inline(never)]
    fn feed(&self, keyspace: &Keyspace, keys: Vec<&[u8]>) {
        let Some(running) = self.running.get().filter(|_| !keys.is_empty()) else { return };
        let present = || keys.iter().map(|key| Some(self.covered.present(keyspace, key))).collect();
        // Fails only if the service has stopped together with the server.
        let _ = running.source.write_many(&keys, || ((), present()));
    }

    /// Begins a transaction: until the result is dropped, the indexes show none of its writes, and
    /// afterwards all of them. The caller has locked the keyspace exclusively.
    pub fn transaction(&self) -> Option<Transaction<'_>> {
        // Ordered by the lock of the keyspace.
        self.transactions.fetch_add(1, Ordering::Relaxed);
        self.running.get().map(|running| running.source.transaction())
    }

    /// Reads the keys again whose deadline has passed. The caller holds the keyspace.
    pub fn expire(&self, keyspace: &Keyspace) {
        if self.are_active() {
            // Keys that another thread has taken are reported when this lock is free.
            let _one = self.expiring.lock();
            let due = self.covered.deadlines.lock().take_due(keyspace.now());
            self.feed(keyspace, due.iter().map(|key| &**key).collect());
        }
    }

    /// Works like [`expire`](Self::expire), for a query. `held` is the keyspace if the caller holds
    /// it.
    pub fn expire_now(&self, held: Option<&Keyspace>) {
        match held {
            Some(keyspace) => self.expire(keyspace),
            None => self.expire(&self.commands.shared()),
        }
    }

    /// Returns the current keyspace, or `None` while the server is loading.
    pub fn current_keyspace(&self) -> Option<Keyspace> {
        self.covered.keyspace.lock().clone()
    }

    /// Replaces the keyspace from which documents are read, after a load or a flush. The caller has
    /// locked the keyspace exclusively.
    pub fn replaced(&self, keyspace: &Keyspace) {
        let replace = || *self.covered.keyspace.lock() = Some(keyspace.clone());
        match self.running.get() {
            Some(running) => running.source.clear(replace),
            None => replace(),
        }
    }
}
