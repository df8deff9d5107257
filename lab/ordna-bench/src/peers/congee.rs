//! `congee::Congee`: an ART with 8-byte keys and values, and optimistic lock coupling.

use crate::target::{Session, Shared};

pub struct Congee(congee::Congee<usize, usize>);

pub fn new() -> Shared<Congee> {
    Shared(Congee(congee::Congee::default()))
}

impl Session<u64> for &Congee {
    fn put(&mut self, key: &u64, value: u64) -> Option<bool> {
        let guard = self.0.pin();
        let old = self.0.insert(*key as usize, value as usize, &guard);
        Some(old.is_ok_and(|old| old.is_none()))
    }

    fn get(&mut self, key: &u64) -> Option<u64> {
        self.0.get(&(*key as usize), &self.0.pin()).map(|value| value as u64)
    }

    fn remove(&mut self, key: &u64) -> bool {
        self.0.remove(&(*key as usize), &self.0.pin()).is_some()
    }

    fn scan(&mut self, from: &u64, limit: usize, each: &mut dyn FnMut(&u64, u64)) {
        let mut found = vec![(0, 0); limit];
        let guard = self.0.pin();
        let count = self.0.range(&(*from as usize), &usize::MAX, &mut found, &guard);
        for (key, value) in &found[..count] {
            each(&(*key as u64), *value as u64);
        }
    }
}
