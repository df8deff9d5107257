//! Single queries of concurrent callers, gathered into batches.
//!
//! # Protocol
//! A caller puts its query into the queue and then takes the *lead*, a lock. The leader takes all
//! queries that are queued by then, its own among them unless a leader before took it. It executes
//! them as one batch and writes the answers. While one leads, others queue up; so under contention
//! batches form by themselves. A delay makes a leader wait for company first, at most that long. If
//! a leader panics, so do the callers whose queries it took: whether those have been executed is
//! not known.
//!
//! Each query takes effect while its caller waits for it, so it is linearizable. A caller never
//! waits for more than the batch in front, the delay, and its own batch.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::query::{Answer, Query};
use ordna_base::{Key, Value};

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

/// The leader panicked.
#[derive(Clone, Copy, Debug)]
struct Lost;

struct Waiting<K: Key + ?Sized, V: Value + ?Sized> {
    query: Single<K, V>,
    answer: OnceLock<Result<Option<V::Owned>, Lost>>,
}

/// Queries taken from the queue. Those not answered when it is dropped are lost.
struct Batch<K: Key + ?Sized, V: Value + ?Sized>(Vec<Arc<Waiting<K, V>>>);

impl<K: Key + ?Sized, V: Value + ?Sized> Drop for Batch<K, V> {
    fn drop(&mut self) {
        // Refused by those that have their answer.
        self.0.iter().for_each(|waiting| drop(waiting.answer.set(Err(Lost))));
    }
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

    /// Answers a query, in a batch with those of other callers: the value before it. `execute`: the
    /// answers to a batch, in its order.
    ///
    /// # Panics
    /// If `execute` does, called here or by the leader that took the query.
    pub fn answer(
        &self,
        query: Single<K, V>,
        execute: impl FnOnce(&[Query<'_, K, V>]) -> Vec<Answer<K, V>>,
    ) -> Option<V::Owned> {
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
                batch.0.iter().map(|waiting| waiting.query()).collect();
            for (waiting, answer) in batch.0.iter().zip(execute(&queries)) {
                let Answer::Value(value) = answer else { continue };
                // Each is taken from the queue once, so it is answered once.
                let _ = waiting.answer.set(Ok(value));
            }
        }
        drop(lead);
        let answer = own.answer.get().cloned().unwrap_or(Err(Lost));
        answer.expect("the batch with this query in it was executed")
    }

    /// All that are queued, after the delay.
    fn company(&self) -> Batch<K, V> {
        let begin = Instant::now();
        let mut queue = locked(&self.queue);
        while queue.len() < ENOUGH && !self.delay.is_zero() {
            // Not the moment of its end, which may lie beyond what the clock can tell.
            let left = self.delay.saturating_sub(begin.elapsed());
            if left.is_zero() {
                break;
            }
            let waited = self.enough.wait_timeout(queue, left);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Batch(std::mem::take(&mut *queue))
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Of two queries in one batch whose leader panics neither is answered as if it was executed.
    #[test]
    fn who_waits_for_a_leader_that_panics_panics() {
        let gatherer = Gatherer::<u64, u64>::new(Duration::ZERO);
        let calls = AtomicUsize::new(0);
        let answer = || {
            gatherer.answer(Single::Insert(1, 1), |queries| {
                assert!(calls.fetch_add(1, Ordering::Relaxed) > 0, "the first batch panics");
                queries.iter().map(|_| Answer::Value(None)).collect()
            })
        };
        std::thread::scope(|scope| {
            let lead = locked(&gatherer.lead);
            let caller = || catch_unwind(AssertUnwindSafe(answer));
            let callers = [scope.spawn(caller), scope.spawn(caller)];
            while locked(&gatherer.queue).len() < 2 {
                std::thread::yield_now();
            }
            drop(lead);
            assert!(
                callers.into_iter().all(|caller| caller.join().is_ok_and(|done| done.is_err()))
            );
        });
        assert_eq!(calls.into_inner(), 1);
        // And the next batch is none the worse for it.
        let answer = gatherer.answer(Single::Get(1), |_| vec![Answer::Value(Some(7))]);
        assert_eq!(answer, Some(7));
    }
}
