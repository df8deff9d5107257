//! The interface with which the benchmark measures an index, and its implementations for the
//! indexes of this workspace.
//!
//! A [`Target`] is one built index; a [`Session`] is the part of it that one thread of the run
//! uses. The run calls both through trait objects, and the indirect call costs the same for every
//! index. Most indexes are used by reference: implement [`Session`] for `&Index` and wrap the index
//! in [`Shared`]. An index without synchronization implements [`Session`] itself and is wrapped in
//! [`Alone`], which refuses more than one thread.

use std::ops::{Bound, ControlFlow};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ordna_base::{Direction, Key, OrderedIndex};
use ordna_papers::Unshared;
use ordna_papers::pi::Query;

use crate::job::Job;
use crate::workload::Action;

/// The answer to a query of a batch, or a part of it.
#[derive(Debug)]
pub enum Reply<'a, K: ?Sized> {
    /// The value for a search.
    Found(Option<u64>),
    /// Whether an insert added a new key, if the index reports this.
    New(Option<bool>),
    /// Whether a deleted key was present.
    Removed(bool),
    /// One entry of a range. Each entry has its own reply, in order.
    Entry(&'a K, u64),
}

impl<K: ?Sized> Clone for Reply<'_, K> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<K: ?Sized> Copy for Reply<'_, K> {}

/// Executes a batch for an index without a call for such batches.
fn one_by_one<K: Key + ?Sized, S: Session<K> + ?Sized>(
    session: &mut S,
    batch: &[Query<'_, K, u64>],
    each: &mut dyn FnMut(usize, Reply<'_, K>),
) {
    let mut keys: Vec<&K> = Vec::new();
    let mut at = 0;
    while let Some(query) = batch.get(at) {
        match query {
            Query::Search(_) => {
                keys.clear();
                keys.extend(batch[at..].iter().map_while(|query| match query {
                    Query::Search(key) => Some(*key),
                    _ => None,
                }));
                if let [key] = keys[..] {
                    each(at, Reply::Found(session.get(key)));
                } else {
                    session.get_group(&keys, &mut |place, found| {
                        each(at + place, Reply::Found(found));
                    });
                }
                at += keys.len();
                continue;
            }
            Query::Insert(key, value) => each(at, Reply::New(session.put(key, **value))),
            Query::Delete(key) => each(at, Reply::Removed(session.remove(key))),
            Query::Range { lower: Bound::Included(from), limit, .. } => {
                session.scan(from, *limit, &mut |key, value| each(at, Reply::Entry(key, value)));
            }
            // The driver creates no other ranges.
            Query::Range { .. } => {}
        }
        at += 1;
    }
}

/// The interface of one thread to a map from keys to words. Every call is one operation of a
/// workload.
pub trait Session<K: Key + ?Sized> {
    /// Sets the value of a key. Returns whether the key was new, if the index reports this.
    fn put(&mut self, key: &K, value: u64) -> Option<bool>;
    /// Returns the value of a key.
    fn get(&mut self, key: &K) -> Option<u64>;
    /// Removes a key. Returns whether it was present.
    fn remove(&mut self, key: &K) -> bool;
    /// Calls `each` with up to `limit` entries from `from` on, in order.
    fn scan(&mut self, from: &K, limit: usize, each: &mut dyn FnMut(&K, u64));
    /// Looks up a group of keys.
    fn get_group(&mut self, keys: &[&K], each: &mut dyn FnMut(usize, Option<u64>)) {
        for (at, key) in keys.iter().enumerate() {
            each(at, self.get(key));
        }
    }
    /// Sets the values of a group of keys; later values replace earlier ones. Returns how many keys
    /// were new, if the index reports this.
    fn put_group(&mut self, pairs: &[(&K, u64)]) -> Option<usize> {
        let new = |all: Option<usize>, (key, value): &(&K, u64)| {
            let new = self.put(key, *value);
            Some(all? + usize::from(new?))
        };
        pairs.iter().fold(Some(0), new)
    }
    /// Removes a group of keys. Returns how many were present.
    fn remove_group(&mut self, keys: &[&K]) -> usize {
        keys.iter().filter(|key| self.remove(key)).count()
    }
    /// Executes queries of all kinds in the order of the batch. Replies arrive in that order.
    fn batch(&mut self, batch: &[Query<'_, K, u64>], each: &mut dyn FnMut(usize, Reply<'_, K>)) {
        one_by_one(self, batch, each);
    }
    /// Returns the reason why the index cannot do the job at all, or `None` if it can.
    fn refuses(_: &Job<'_, K>) -> Option<String>
    where
        Self: Sized,
    {
        None
    }
    /// Returns the reason why the index has no such operation, or `None` if it has.
    fn lacks(_: Action) -> Option<String>
    where
        Self: Sized,
    {
        None
    }
}

/// A built index that is being measured.
pub trait Target<K: Key + ?Sized>: Sync {
    /// Creates the session of one thread. Called on each of `threads` threads before the
    /// measurement; the session is dropped after it.
    fn session(&self, thread: usize, threads: usize) -> Box<dyn Session<K> + '_>;

    /// Returns the reason why the index cannot do the job at all, or `None` if it can.
    fn refuses(&self, _: &Job<'_, K>) -> Option<String> {
        None
    }

    /// Returns the reason why the index has no such operation, or `None` if it has.
    fn lacks(&self, _: Action) -> Option<String> {
        None
    }

    /// Returns the maximum number of threads, or `None` if there is no maximum.
    fn most_threads(&self) -> Option<usize> {
        None
    }

    /// Returns whether one caller passes the operations of all threads of a run, in calls that are
    /// larger by the number of threads, because the index shares them among its own threads.
    fn one_caller(&self) -> bool {
        false
    }

    /// Returns the index's own counts so far, if it counts.
    fn counts(&self) -> Option<String> {
        None
    }

    /// Returns whether its memory comes from the allocator whose statistics are read.
    fn on_our_allocator(&self) -> bool {
        true
    }
}

/// An index that threads use by reference.
pub struct Shared<T>(pub T);

impl<K, T> Target<K> for Shared<T>
where
    K: Key + ?Sized,
    T: Sync + 'static,
    for<'a> &'a T: Session<K>,
{
    fn session(&self, _: usize, _: usize) -> Box<dyn Session<K> + '_> {
        Box::new(&self.0)
    }

    fn refuses(&self, job: &Job<'_, K>) -> Option<String> {
        <&T>::refuses(job)
    }

    fn lacks(&self, action: Action) -> Option<String> {
        <&T>::lacks(action)
    }
}

/// An index of this workspace that counts its operations.
pub struct Counting<I> {
    /// The index.
    pub index: Shared<Ours<I>>,
    /// Formats its counts.
    pub counts: fn(&I) -> String,
}

impl<I> Target<I::Key> for Counting<I>
where
    I: OrderedIndex<Value = u64> + Sync + 'static,
{
    fn session(&self, thread: usize, threads: usize) -> Box<dyn Session<I::Key> + '_> {
        self.index.session(thread, threads)
    }

    fn counts(&self) -> Option<String> {
        Some((self.counts)(&self.index.0.0))
    }
}

/// An index without synchronization, which only one thread at a time uses. Runs have a single
/// thread.
pub struct Alone<T>(Mutex<T>);

impl<T> Alone<T> {
    /// Wraps an index.
    pub fn new(index: T) -> Self {
        Self(Mutex::new(index))
    }
}

/// The only session of an [`Alone`] index. The lock is taken once, not per operation.
pub struct Only<'a, T>(MutexGuard<'a, T>);

impl<K, T> Target<K> for Alone<T>
where
    K: Key + ?Sized,
    T: Session<K> + Send + 'static,
{
    fn session(&self, _: usize, _: usize) -> Box<dyn Session<K> + '_> {
        // A panic while the lock is held ends the measurement of this instance.
        Box::new(Only(self.0.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    fn most_threads(&self) -> Option<usize> {
        Some(1)
    }

    fn refuses(&self, job: &Job<'_, K>) -> Option<String> {
        T::refuses(job)
    }

    fn lacks(&self, action: Action) -> Option<String> {
        T::lacks(action)
    }
}

impl<K: Key + ?Sized, T: Session<K>> Session<K> for Only<'_, T> {
    fn put(&mut self, key: &K, value: u64) -> Option<bool> {
        self.0.put(key, value)
    }
    fn get(&mut self, key: &K) -> Option<u64> {
        self.0.get(key)
    }
    fn remove(&mut self, key: &K) -> bool {
        self.0.remove(key)
    }
    fn scan(&mut self, from: &K, limit: usize, each: &mut dyn FnMut(&K, u64)) {
        self.0.scan(from, limit, each);
    }
    fn get_group(&mut self, keys: &[&K], each: &mut dyn FnMut(usize, Option<u64>)) {
        self.0.get_group(keys, each);
    }
    fn put_group(&mut self, pairs: &[(&K, u64)]) -> Option<usize> {
        self.0.put_group(pairs)
    }
    fn remove_group(&mut self, keys: &[&K]) -> usize {
        self.0.remove_group(keys)
    }
    fn batch(&mut self, batch: &[Query<'_, K, u64>], each: &mut dyn FnMut(usize, Reply<'_, K>)) {
        self.0.batch(batch, each);
    }
}

/// Calls `each` with up to `limit` entries.
fn up_to<K: Key + ?Sized>(
    mut limit: usize,
    each: &mut dyn FnMut(&K, u64),
) -> impl FnMut(&K, &u64) -> ControlFlow<()> {
    move |key, value| {
        each(key, *value);
        limit -= 1;
        if limit == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

/// Implements the single operations of a session with an index of this workspace.
macro_rules! singles {
    ($index:ident) => {
        fn put(&mut self, key: &$index::Key, value: u64) -> Option<bool> {
            Some(self.0.insert(key, &value).is_ok_and(|old| old.is_none()))
        }

        fn get(&mut self, key: &$index::Key) -> Option<u64> {
            self.0.get(key)
        }

        fn remove(&mut self, key: &$index::Key) -> bool {
            self.0.remove(key).is_some()
        }

        fn scan(
            &mut self,
            from: &$index::Key,
            limit: usize,
            each: &mut dyn FnMut(&$index::Key, u64),
        ) {
            let visit = up_to(limit, each);
            self.0.visit(Bound::Included(from), Bound::Unbounded, Direction::Ascending, visit);
        }

        fn get_group(&mut self, keys: &[&$index::Key], each: &mut dyn FnMut(usize, Option<u64>)) {
            self.0.get_many_with(keys, |at, value| each(at, value.copied()));
        }
    };
}

/// An index of this workspace.
pub struct Ours<I>(pub I);

impl<I> Session<I::Key> for &Ours<I>
where
    I: OrderedIndex<Value = u64>,
{
    singles!(I);

    fn put_group(&mut self, pairs: &[(&I::Key, u64)]) -> Option<usize> {
        // More than the size of any group, so it is never the right answer.
        Some(self.0.insert_many(pairs).unwrap_or(usize::MAX))
    }

    fn remove_group(&mut self, keys: &[&I::Key]) -> usize {
        self.0.remove_many(keys)
    }
}

/// An index of this workspace for one thread.
pub struct Sole<I>(pub I);

impl<I: Unshared<Value = u64>> Session<I::Key> for Sole<I> {
    singles!(I);
}

/// The standard library's B-tree on one thread, without a lock, which shows the cost of
/// synchronization.
impl<K: Key + ?Sized> Session<K> for std::collections::BTreeMap<K::Owned, u64> {
    fn put(&mut self, key: &K, value: u64) -> Option<bool> {
        Some(self.insert(key.to_owned(), value).is_none())
    }
    fn get(&mut self, key: &K) -> Option<u64> {
        Self::get(self, key).copied()
    }
    fn remove(&mut self, key: &K) -> bool {
        Self::remove(self, key).is_some()
    }
    fn scan(&mut self, from: &K, limit: usize, each: &mut dyn FnMut(&K, u64)) {
        use std::borrow::Borrow;
        let entries = self.range::<K, _>((Bound::Included(from), Bound::Unbounded));
        entries.take(limit).for_each(|(key, value)| each(key.borrow(), *value));
    }
}
