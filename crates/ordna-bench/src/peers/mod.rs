//! The public peers, each behind the same trait, with what it cannot do.

use std::ops::Bound;

use ordna::Key;

use crate::registry::{Entry, refuse};
use crate::run::measure;
use crate::target::Target;

/// All peers of this build.
pub fn all() -> Vec<Entry> {
    vec![
        Entry {
            name: "crossbeam-skiplist",
            ours: false,
            integers: Ok(|job, switches| {
                refuse("crossbeam-skiplist", switches, || measure(job, Crossbeam::<u64>::default))
            }),
            bytes: Ok(|job, switches| {
                refuse("crossbeam-skiplist", switches, || measure(job, Crossbeam::<[u8]>::default))
            }),
        },
        Entry {
            name: "scc",
            ours: false,
            integers: Ok(|job, switches| {
                refuse("scc", switches, || measure(job, || Scc::<u64>(scc::TreeIndex::new())))
            }),
            bytes: Ok(|job, switches| {
                refuse("scc", switches, || measure(job, || Scc::<[u8]>(scc::TreeIndex::new())))
            }),
        },
        Entry {
            name: "congee",
            ours: false,
            integers: Ok(|job, switches| {
                refuse("congee", switches, || measure(job, || Congee(congee::Congee::default())))
            }),
            bytes: Err("takes 8-byte keys only"),
        },
        Entry {
            name: "dashmap",
            ours: false,
            integers: Ok(|job, switches| {
                refuse("dashmap", switches, || {
                    measure(job, || Dash::<u64>(dashmap::DashMap::new()))
                })
            }),
            bytes: Ok(|job, switches| {
                refuse("dashmap", switches, || {
                    measure(job, || Dash::<[u8]>(dashmap::DashMap::new()))
                })
            }),
        },
    ]
}

/// `crossbeam_skiplist::SkipMap`. Its insert does not say whether the key was new.
struct Crossbeam<K: Key + ?Sized>(crossbeam_skiplist::SkipMap<K::Owned, u64>);

impl<K: Key + ?Sized> Default for Crossbeam<K> {
    fn default() -> Self {
        Self(crossbeam_skiplist::SkipMap::new())
    }
}

impl<K: Key + ?Sized> Target<K> for Crossbeam<K> {
    fn put(&self, key: &K, value: u64) -> Option<bool> {
        self.0.insert(key.to_owned(), value);
        None
    }

    fn get(&self, key: &K) -> Option<u64> {
        self.0.get(key).map(|entry| *entry.value())
    }

    fn remove(&self, key: &K) -> bool {
        self.0.remove(key).is_some()
    }

    fn scan(&self, from: &K, limit: usize, each: &mut dyn FnMut(&K, u64)) {
        use std::borrow::Borrow;
        let range = self.0.range::<K, _>((Bound::Included(from), Bound::Unbounded));
        for entry in range.take(limit) {
            each(entry.key().borrow(), *entry.value());
        }
    }
}

/// `scc::TreeIndex`: a B+-tree for reading; an overwritten value is a new entry.
struct Scc<K: Key + ?Sized>(scc::TreeIndex<K::Owned, u64>);

impl<K: Key + ?Sized> Target<K> for Scc<K> {
    fn put(&self, key: &K, value: u64) -> Option<bool> {
        self.0.upsert_sync(key.to_owned(), value);
        None
    }

    fn get(&self, key: &K) -> Option<u64> {
        self.0.peek_with(&key.to_owned(), |_, value| *value)
    }

    fn remove(&self, key: &K) -> bool {
        self.0.remove_sync(&key.to_owned())
    }

    fn scan(&self, from: &K, limit: usize, each: &mut dyn FnMut(&K, u64)) {
        use std::borrow::Borrow;
        let guard = scc::Guard::new();
        for (key, value) in self.0.range(from.to_owned().., &guard).take(limit) {
            each(key.borrow(), *value);
        }
    }
}

/// `congee::Congee`: an ART with 8-byte keys and values.
struct Congee(congee::Congee<usize, usize>);

impl Target<u64> for Congee {
    fn put(&self, key: &u64, value: u64) -> Option<bool> {
        let guard = self.0.pin();
        let old = self.0.insert(*key as usize, value as usize, &guard);
        Some(old.is_ok_and(|old| old.is_none()))
    }

    fn get(&self, key: &u64) -> Option<u64> {
        self.0.get(&(*key as usize), &self.0.pin()).map(|value| value as u64)
    }

    fn remove(&self, key: &u64) -> bool {
        self.0.remove(&(*key as usize), &self.0.pin()).is_some()
    }

    fn scan(&self, from: &u64, limit: usize, each: &mut dyn FnMut(&u64, u64)) {
        let mut found = vec![(0, 0); limit];
        let guard = self.0.pin();
        let count = self.0.range(&(*from as usize), &usize::MAX, &mut found, &guard);
        for (key, value) in &found[..count] {
            each(&(*key as u64), *value as u64);
        }
    }
}

/// `dashmap::DashMap`: no order; the upper bound for point operations.
struct Dash<K: Key + ?Sized>(dashmap::DashMap<K::Owned, u64>);

impl<K: Key + ?Sized> Target<K> for Dash<K> {
    const SCANS: bool = false;

    fn put(&self, key: &K, value: u64) -> Option<bool> {
        Some(self.0.insert(key.to_owned(), value).is_none())
    }

    fn get(&self, key: &K) -> Option<u64> {
        self.0.get(key).map(|value| *value)
    }

    fn remove(&self, key: &K) -> bool {
        self.0.remove(key).is_some()
    }

    fn scan(&self, _: &K, _: usize, _: &mut dyn FnMut(&K, u64)) {}
}
