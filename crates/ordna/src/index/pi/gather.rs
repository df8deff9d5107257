//! Single queries of concurrent callers, gathered into batches.
//!
//! # Protocol
//! A caller puts its query into the queue and then takes the *lead*, a lock. Whoever leads takes all
//! queries that are queued by then, its own among them unless a leader before took it, executes
//! them as one batch and writes the answers. While one leads, others queue up; so under contention
//! batches form by themselves. A delay makes a leader wait for company first, at most that long.
//!
//! Each query takes effect while its caller waits for it, so it is linearizable. A caller never waits
//! for more than the batch in front, the delay, and its own batch.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::Pi;
use super::batch::{Answer, Query};
use crate::{Key, Value};

/// Queries that a leader waits for no longer than its delay.
const ENOUGH: usize = 64;

/// A single query.
pub enum Single<K: Key + ?Sized, V: Value + ?Sized> {
    /// The value of the key.
    Get(K::Owned),
    /// Sets it.
    Insert(K::Owned, V::Owned),
    /// Removes it.
    Remove(K::Owned),
}

struct Waiting<K: Key + ?Sized, V: Value + ?Sized> {
    query: Single<K, V>,
    answer: OnceLock<Option<V::Owned>>,
}

/// The queue and the lead.
pub struct Gatherer<K: Key + ?Sized, V: Value + ?Sized> {
    delay: Duration,
    queue: Mutex<Vec<Arc<Waiting<K, V>>>>,
    enough: Condvar,
    lead: Mutex<()>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<K: Key + ?Sized, V: Value + ?Sized> Gatherer<K, V> {
    pub fn new(delay: Duration) -> Self {
        let (queue, enough, lead) = (Mutex::new(Vec::new()), Condvar::new(), Mutex::new(()));
        Self { delay, queue, enough, lead }
    }

    /// Answers a query, in a batch with those of other callers: the value before it. Its key and
    /// value have passed their checks.
    pub fn answer(&self, index: &Pi<K, V>, query: Single<K, V>) -> Option<V::Owned> {
        let own = Arc::new(Waiting { query, answer: OnceLock::new() });
        {
            let mut queue = locked(&self.queue);
            queue.push(own.clone());
            if queue.len() >= ENOUGH {
                self.enough.notify_all();
            }
        }
        let lead = locked(&self.lead);
        if own.answer.get().is_none() {
            let batch = self.company();
            let queries: Vec<Query<'_, K, V>> =
                batch.iter().map(|waiting| waiting.query()).collect();
            // All have passed their checks: there is nothing to refuse.
            let answers = index.execute(&queries).unwrap_or_default();
            for (waiting, answer) in batch.iter().zip(answers) {
                let Answer::Value(value) = answer else { continue };
                // Each is taken from the queue once, so it is answered once.
                let _ = waiting.answer.set(value);
            }
        }
        drop(lead);
        own.answer.get().cloned().flatten()
    }

    /// All that are queued, after the delay.
    fn company(&self) -> Vec<Arc<Waiting<K, V>>> {
        let end = Instant::now() + self.delay;
        let mut queue = locked(&self.queue);
        while queue.len() < ENOUGH && !self.delay.is_zero() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.enough.wait_timeout(queue, left);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        std::mem::take(&mut *queue)
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> Waiting<K, V> {
    fn query(&self) -> Query<'_, K, V> {
        use std::borrow::Borrow;
        match &self.query {
            Single::Get(key) => Query::Search(key.borrow()),
            Single::Insert(key, value) => Query::Insert(key.borrow(), value.borrow()),
            Single::Remove(key) => Query::Delete(key.borrow()),
        }
    }
}
