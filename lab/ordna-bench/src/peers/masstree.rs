//! `masstree::MassTree`: a trie of B+-trees over byte strings of at most 256 bytes. Integers are
//! stored as their eight bytes, big-endian.

use masstree::{MAX_KEY_LENGTH, MassTree, RangeBound};
use ordna_base::Key;
use ordna_base::entries::Sequence;

use crate::job::Job;
use crate::target::{Session, Shared};

pub struct Masstree(MassTree<u64>);

pub fn new() -> Shared<Masstree> {
    Shared(Masstree(MassTree::new()))
}

impl Masstree {
    fn remove<K: Key + ?Sized>(&self, key: &K) -> bool {
        self.0.remove(key.radix().as_ref()).is_ok_and(|old| old.is_some())
    }

    fn scan(&self, from: &[u8], limit: usize, mut each: impl FnMut(&[u8], u64)) {
        let guard = self.0.guard();
        let mut left = limit;
        let visit = |key: &[u8], value: u64| {
            each(key, value);
            left -= 1;
            left > 0
        };
        self.0.scan(RangeBound::Included(from), RangeBound::Unbounded, visit, &guard);
    }
}

impl Session<u64> for &Masstree {
    fn put(&mut self, key: &u64, value: u64) -> Option<bool> {
        Some(self.0.insert(&key.to_be_bytes(), value).is_none())
    }
    fn get(&mut self, key: &u64) -> Option<u64> {
        self.0.get(&key.to_be_bytes())
    }
    fn remove(&mut self, key: &u64) -> bool {
        Masstree::remove(self, key)
    }
    fn scan(&mut self, from: &u64, limit: usize, each: &mut dyn FnMut(&u64, u64)) {
        Masstree::scan(self, &from.to_be_bytes(), limit, |key, value| {
            // A key of another length was never inserted; it is shown as a key that cannot be
            // right.
            let key = <[u8; 8]>::try_from(key).map_or(u64::MAX, u64::from_be_bytes);
            each(&key, value);
        });
    }
}

impl Session<[u8]> for &Masstree {
    fn put(&mut self, key: &[u8], value: u64) -> Option<bool> {
        Some(self.0.insert(key, value).is_none())
    }
    fn get(&mut self, key: &[u8]) -> Option<u64> {
        self.0.get(key)
    }
    fn remove(&mut self, key: &[u8]) -> bool {
        Masstree::remove(self, key)
    }
    fn scan(&mut self, from: &[u8], limit: usize, each: &mut dyn FnMut(&[u8], u64)) {
        Masstree::scan(self, from, limit, each);
    }
    fn refuses(job: &Job<'_, [u8]>) -> Option<String> {
        let longest = (0..job.keys.len()).filter_map(|at| job.keys.get(at)).map(<[u8]>::len).max();
        longest
            .filter(|longest| *longest > MAX_KEY_LENGTH)
            .map(|longest| format!("keys have at most {MAX_KEY_LENGTH} bytes, not {longest}"))
    }
}
