//! Keys that temporarily only one command may write.
//!
//! # Contract
//! If other clients keep writing the keys of a command that is prepared on a snapshot, the command
//! reserves them. Commands that write such a key and begin afterwards wait before they begin,
//! without a lock or a thread. Commands in progress continue, so the command may still find its
//! keys changed.
//!
//! # Concurrency
//! A client checks the keys under their lock. It registers for the end of a reservation first, so
//! that it does not miss one.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// The reserved keys of all commands.
#[derive(Debug, Default)]
pub struct ReservedKeys {
    /// The reserved keys, each with the number of commands that have reserved it.
    keys: Mutex<BTreeMap<Vec<u8>, usize>>,
    /// Number of keys.
    count: AtomicUsize,
    ended: Notify,
}

impl ReservedKeys {
    fn keys(&self) -> MutexGuard<'_, BTreeMap<Vec<u8>, usize>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves keys until the result is dropped.
    pub fn reserve(&self, keys: Vec<Vec<u8>>) -> Reserved<'_> {
        let mut reserved = self.keys();
        keys.iter().for_each(|key| *reserved.entry(key.clone()).or_default() += 1);
        self.count.store(reserved.len(), Ordering::Relaxed);
        drop(reserved);
        Reserved { all: self, keys }
    }

    /// Returns whether any key is reserved. One relaxed load.
    #[inline]
    pub fn are_any(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    /// Waits until none of these keys is reserved.
    pub async fn wait(&self, keys: &[&[u8]]) {
        loop {
            let mut ended = std::pin::pin!(self.ended.notified());
            ended.as_mut().enable();
            let are_free = {
                let reserved = self.keys();
                keys.iter().all(|key| !reserved.contains_key(*key))
            };
            if are_free {
                return;
            }
            ended.await;
        }
    }
}

/// Keys that a command has reserved.
#[derive(Debug)]
pub struct Reserved<'a> {
    all: &'a ReservedKeys,
    keys: Vec<Vec<u8>>,
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        let mut reserved = self.all.keys();
        for key in &self.keys {
            if let Some(commands) = reserved.get_mut(key) {
                *commands -= 1;
                if *commands == 0 {
                    reserved.remove(key);
                }
            }
        }
        self.all.count.store(reserved.len(), Ordering::Relaxed);
        drop(reserved);
        self.all.ended.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_client_waits_for_each_reservation_of_its_keys() {
        let keys = ReservedKeys::default();
        let key = |name: &str| vec![name.as_bytes().to_vec()];
        let waits = |names: &'static [&'static [u8]]| {
            tokio::time::timeout(Duration::from_millis(20), keys.wait(names))
        };
        let (first, second) = (keys.reserve(key("a")), keys.reserve(key("a")));
        assert!(keys.are_any() && waits(&[b"b"]).await.is_ok() && waits(&[]).await.is_ok());
        drop(first);
        assert!(waits(&[b"b", b"a"]).await.is_err());
        let (woken, ()) = tokio::join!(waits(&[b"a"]), async { drop(second) });
        assert!(woken.is_ok() && !keys.are_any());
    }
}
