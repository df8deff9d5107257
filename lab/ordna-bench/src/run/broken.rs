//! An index with one fault at a time, which shows that the checks detect it.

use std::ops::ControlFlow;

use ordna_base::Locked;
use ordna_base::{Direction, OrderedIndex};

use crate::target::Session;

/// An index with the fault of this name.
pub struct Broken(pub Locked<u64, u64>, pub &'static str);

impl Broken {
    fn bad(&self, fault: &str, key: u64) -> bool {
        self.1 == fault && key.is_multiple_of(101)
    }
}

impl Session<u64> for &Broken {
    fn put(&mut self, key: &u64, value: u64) -> Option<bool> {
        assert!(!self.bad("panics at a put", *key), "as planned");
        // The value contains the position.
        let loaded = value & 0xFFFF_FFFF < 2000;
        if self.bad("loses", *key) || self.1 == "loses what is not loaded" && !loaded {
            return Some(true);
        }
        if self.1 == "ignores overwrites" && self.0.get(key).is_some() {
            return Some(false);
        }
        if self.1 == "overwrites with what was there"
            && let Some(old) = self.0.get(key)
        {
            // Right except for the version.
            self.0.insert(key, &(old ^ 1 << 39)).unwrap();
            return Some(false);
        }
        let value = if self.1 == "mixes up fingerprints" { value ^ 1 << 50 } else { value };
        Some(self.0.insert(key, &value).unwrap().is_none())
    }
    fn get(&mut self, key: &u64) -> Option<u64> {
        assert!(!self.bad("panics at a get", *key), "as planned");
        let value = self.0.get(key)?;
        Some(if self.bad("mixes up", *key) { value ^ 1 } else { value })
    }
    fn remove(&mut self, key: &u64) -> bool {
        assert!(!self.bad("panics at a remove", *key), "as planned");
        if self.bad("loses deletes", *key) {
            return true;
        }
        self.1 == "keeps" || self.0.remove(key).is_some()
    }
    fn get_group(&mut self, keys: &[&u64], each: &mut dyn FnMut(usize, Option<u64>)) {
        let keys = if self.1 == "forgets in a group" { &keys[1..] } else { keys };
        for (at, key) in keys.iter().enumerate() {
            each(at, self.0.get(key));
        }
    }
    fn scan(&mut self, from: &u64, limit: usize, each: &mut dyn FnMut(&u64, u64)) {
        // The scan of the whole index would detect most of these faults, so it is not affected.
        let fault = if limit < 1000 { self.1 } else { "" };
        let bad = |name: &str, key: u64| fault == name && key.is_multiple_of(101);
        assert!(!bad("panics in a scan", *from), "as planned");
        let backwards = fault == "turns around";
        let direction = if backwards { Direction::Descending } else { Direction::Ascending };
        use std::ops::Bound::{Excluded, Included, Unbounded};
        let (low, high) = match fault {
            "turns around" => (Unbounded, Included(from)),
            "starts behind" => (Excluded(from), Unbounded),
            _ => (Included(from), Unbounded),
        };
        let mut left = match fault {
            "stops short" => limit - 1,
            "goes on" => limit + 1,
            _ => limit,
        };
        self.0.visit(low, high, direction, |key, value| {
            if bad("skips", *key) || (self.1 == "skips always" && key.is_multiple_of(101)) {
                return ControlFlow::Continue(());
            }
            let value = if bad("mixes up values", *key) { value ^ 1 << 50 } else { *value };
            let again = bad("repeats", *key)
                || self.bad("repeats always", *key)
                || self.bad("repeats what is not loaded", *key) && value & 0xFFFF_FFFF >= 2000;
            for _ in 0..1 + u64::from(again) {
                each(key, value);
            }
            left -= 1;
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
    }
}

impl Drop for Broken {
    fn drop(&mut self) {
        assert!(self.1 != "panics when dropped", "as planned");
    }
}
