//! One leaf with one key, for the loom models of `tests/loom_tree.rs`.

use ordna_base::reclaim::Collector;

use super::leaf::{Entry, FOREVER, Leaf, Probe};
use super::order;
use super::undo::{LiveTerms, Log, Lookup, Reading, State};

const KEY: u64 = 7;

/// A leaf, its undo records, and what the tree would do with them.
pub struct OneLeaf {
    leaf: Leaf<u64, u64>,
    slot: usize,
    log: Log<u64, u64>,
    collector: Collector,
}

#[expect(unsafe_code, reason = "the model owns its leaf")]
// SAFETY: a leaf is atomics under its lock.
unsafe impl Send for OneLeaf {}
#[expect(unsafe_code, reason = "the model owns its leaf")]
// SAFETY: as above.
unsafe impl Sync for OneLeaf {}

impl OneLeaf {
    /// The key with this value.
    pub fn new(value: u64) -> Self {
        let leaf = Leaf::new(None, &Leaf::<u64, u64>::pool());
        let probe = Probe::new(&KEY);
        leaf.put(&probe, Entry { key: KEY, word: value, deadline: FOREVER });
        let slot = leaf.find(&probe, ordna_base::simd::InstructionSet::SCALAR);
        let slot = slot.expect("just put");
        Self { leaf, slot, log: Log::new(4), collector: Collector::new() }
    }

    /// Overwrites in `term`, as `Tree::apply` does. Prunes by the live snapshots if they are given.
    pub fn write(&self, term: u64, youngest: u64, value: u64, live: Option<LiveTerms>) {
        let guard = self.collector.pin();
        let probe = Probe::new(&KEY);
        let lock = self.leaf.header().lock.lock().expect("the leaf stays");
        let seen_by = youngest.min(term - 1);
        if seen_by > 0 && !self.log.covers(self.leaf, &probe, seen_by) {
            let word = self.leaf.word(self.slot);
            let state = State::Present { word, deadline: FOREVER };
            self.log.push(self.leaf, &probe, state, term);
        }
        self.leaf.set_word(self.slot, value);
        match live {
            Some(live) => {
                self.log.prune(self.leaf, &live, |_| true, &guard);
                drop(lock);
            }
            None => lock.unlock_unchanged(),
        }
    }

    /// The value at a snapshot, as `Tree::seek` and `Tree::consistent` read it.
    pub fn read(&self, snapshot: u64) -> u64 {
        let _guard = self.collector.pin();
        let lock = &self.leaf.header().lock;
        loop {
            let version = lock.read().expect("the leaf stays");
            let word = self.leaf.word(self.slot);
            let reading = Reading(Some((lock, version)));
            let probe = Probe::new(&KEY);
            let found = match self.log.at_snapshot(self.leaf, &probe, snapshot, reading) {
                Lookup::Slot => word,
                Lookup::Old(State::Present { word, .. }) => word,
                Lookup::Old(State::Absent) | Lookup::Torn => continue,
            };
            if lock.validate(version) {
                return found;
            }
        }
    }

    /// Frees the records that died up to the horizon.
    pub fn free(&self, horizon: u64) {
        let guard = self.collector.pin();
        self.log.free(horizon, &guard);
    }

    /// Publishes an order whose places are all this one.
    pub fn publish(&self, number: u64, place: u8) {
        self.leaf.publish_order(&[place; order::MOST], number);
    }

    /// The places of the order with this number, if it is published.
    pub fn order(&self, number: u64) -> Option<Vec<u8>> {
        // The last eight belong to no bucket.
        self.leaf.published_order(number).map(|places| places[..super::SLOTS].to_vec())
    }
}

impl Drop for OneLeaf {
    fn drop(&mut self) {
        #[expect(unsafe_code, reason = "the model owns its leaf")]
        // SAFETY: no other thread uses the model any more.
        unsafe {
            self.leaf.free()
        };
    }
}
