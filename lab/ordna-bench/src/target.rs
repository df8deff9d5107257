//! The interface by which the benchmark measures an index; indexes of this workspace behind it.
//!
//! A [`Target`] is one built index; a [`Session`] is what one thread of the run uses of it. The run
//! calls both through pointers; the indirect call costs every index the same. Most indexes are used
//! by reference: implement [`Session`] for `&Index` and wrap the index in [`Shared`]. An index
//! without synchronization implements [`Session`] itself and is wrapped in [`Alone`], which refuses
//! more than one thread.

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
    /// To a search.
    Found(Option<u64>),
    /// To an insert: whether the key was new, if the index can say.
    New(Option<bool>),
    /// To a delete: whether the key was there.
    Removed(bool),
    /// One entry of a range; each has a reply of its own, in order.
    Entry(&'a K, u64),
}

impl<K: ?Sized> Clone for Reply<'_, K> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<K: ?Sized> Copy for Reply<'_, K> {}

/// The executor of an index without a call for such batches.
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
            // The driver makes no others.
            Query::Range { .. } => {}
        }
        at += 1;
    }
}

/// One thread's way into a map from keys to words. Every call is one operation of a workload.
pub trait Session<K: Key + ?Sized> {
    /// Sets the value of a key; returns whether the key was new, if the index can say.
    fn put(&mut self, key: &K, value: u64) -> Option<bool>;
    /// The value of a key.
    fn get(&mut self, key: &K) -> Option<u64>;
    /// Removes a key; returns whether it was there.
    fn remove(&mut self, key: &K) -> bool;
    /// Calls `each` with up to `limit` entries from `from` on, in order.
    fn scan(&mut self, from: &K, limit: usize, each: &mut dyn FnMut(&K, u64));
    /// Looks up a group of keys.
    fn get_group(&mut self, keys: &[&K], each: &mut dyn FnMut(usize, Option<u64>)) {
        for (at, key) in keys.iter().enumerate() {
            each(at, self.get(key));
        }
    }
    /// Sets the values of a group of keys, later ones over earlier ones; returns how many keys were
    /// new, if the index can say.
    fn put_group(&mut self, pairs: &[(&K, u64)]) -> Option<usize> {
        let new = |all: Option<usize>, (key, value): &(&K, u64)| {
            let new = self.put(key, *value);
            Some(all? + usize::from(new?))
        };
        pairs.iter().fold(Some(0), new)
    }
    /// Removes a group of keys; returns how many were there.
    fn remove_group(&mut self, keys: &[&K]) -> usize {
        keys.iter().filter(|key| self.remove(key)).count()
    }
    /// Executes queries of all sorts in the order of the batch; replies come in that order.
    fn batch(&mut self, batch: &[Query<'_, K, u64>], each: &mut dyn FnMut(usize, Reply<'_, K>)) {
        one_by_one(self, batch, each);
    }
    /// Why the index cannot do the job at all; `None` if it can.
    fn refuses(_: &Job<'_, K>) -> Option<String>
    where
        Self: Sized,
    {
        None
    }
    /// Why the index has no such operation; `None` if it has.
    fn lacks(_: Action) -> Option<String>
    where
        Self: Sized,
    {
        None
    }
}

/// One built index under measurement.
pub trait Target<K: Key + ?Sized>: Sync {
    /// The session of one thread. Called on each of so many threads before its clock starts;
    /// dropped after it stopped.
    fn session(&self, thread: usize, threads: usize) -> Box<dyn Session<K> + '_>;

    /// Why the index cannot do the job at all; `None` if it can.
    fn refuses(&self, _: &Job<'_, K>) -> Option<String> {
        None
    }

    /// Why the index has no such operation; `None` if it has.
    fn lacks(&self, _: Action) -> Option<String> {
        None
    }

    /// How many threads it bears; `None` if any number.
    fn most_threads(&self) -> Option<usize> {
        None
    }

    /// Whether one caller gives it the operations of all threads of a run, in calls as many times
    /// as large: the index has threads of its own to share them.
    fn one_caller(&self) -> bool {
        false
    }

    /// The index's own counts so far, if it counts.
    fn counts(&self) -> Option<String> {
        None
    }

    /// Whether its memory is from the allocator whose statistics are read.
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

/// An index of ours that counts what it does.
pub struct Counting<I> {
    /// The index.
    pub index: Shared<Ours<I>>,
    /// Tells its counts.
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

/// An index without synchronization: one thread at a time, and a run on one thread only.
pub struct Alone<T>(Mutex<T>);

impl<T> Alone<T> {
    /// Wraps it.
    pub fn new(index: T) -> Self {
        Self(Mutex::new(index))
    }
}

/// The one session of an [`Alone`] index. The lock is taken once, not per operation.
pub struct Only<'a, T>(MutexGuard<'a, T>);

impl<K, T> Target<K> for Alone<T>
where
    K: Key + ?Sized,
    T: Session<K> + Send + 'static,
{
    fn session(&self, _: usize, _: usize) -> Box<dyn Session<K> + '_> {
        // A panic with the lock held ends the measurement of this instance.
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

/// The single operations of a session over an index of ours.
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
        // More than any group has: never the right answer.
        Some(self.0.insert_many(pairs).unwrap_or(usize::MAX))
    }

    fn remove_group(&mut self, keys: &[&I::Key]) -> usize {
        self.0.remove_many(keys)
    }
}

/// An index of ours for one thread.
pub struct Sole<I>(pub I);

impl<I: Unshared<Value = u64>> Session<I::Key> for Sole<I> {
    singles!(I);
}

/// The standard library's B-tree on one thread, without a lock: what synchronization costs.
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
