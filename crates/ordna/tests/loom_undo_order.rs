//! Models of a leaf's undo list: a push, a range version and a prune, each concurrent with a reader
//! at a snapshot.
//!
//! `cargo xtask loom` runs them. `cargo xtask faults undo_order` checks that each of them notices
//! its planted fault.
#![cfg(loom)]
#![allow(unsafe_code, reason = "plays the tree, which owns the leaf")]

use loom::sync::Arc;
use loom::thread;
use ordna::models::{
    Epoch, FOREVER, Leaf, LeafEntry, LeafReading, LiveEpochs, LockedLeaf, Lookup, OldState, Probe,
    UndoLog,
};
use ordna_base::reclaim::Collector;
use ordna_base::simd::InstructionSet;
use ordna_base::sync::explore;

const KEY: u64 = 7;
const OTHER: u64 = 8;

/// A leaf with two entries. The write of epoch t stores 10 t under [`KEY`], so the snapshot of
/// epoch t holds 10 t.
struct Shared {
    leaf: Leaf<u64, u64>,
    slot: usize,
    other: usize,
    log: UndoLog<u64, u64>,
    collector: Collector,
}

// SAFETY: a leaf consists of atomics and a lock, and the model ends before the leaf is freed.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the threads of the model have ended.
        unsafe { self.leaf.free() };
    }
}

impl Shared {
    /// Creates the state after the writes of all epochs up to `epoch`, with a snapshot alive for
    /// each.
    fn new(epoch: u64) -> Arc<Self> {
        let new = Leaf::create(None, &Leaf::<u64, u64>::pool());
        let leaf = new.leaf();
        let [slot, other] = [KEY, OTHER].map(|key| {
            let probe = Probe::new(&key);
            assert!(new.put(&probe, LeafEntry { key, word: 10, deadline: FOREVER }));
            leaf.find(&probe, InstructionSet::widest()).unwrap()
        });
        // The second record above a snapshot is a range version.
        let shared = Self { leaf, slot, other, log: UndoLog::new(2), collector: Collector::new() };
        (2..=epoch).for_each(|epoch| shared.overwrite(epoch));
        Arc::new(shared)
    }

    fn lock(&self) -> LockedLeaf<'_, u64, u64> {
        LockedLeaf::new(self.leaf, self.leaf.header().lock.lock().unwrap())
    }

    /// Does the stores of a write in place: first its undo record, then the slot.
    fn store(&self, leaf: &LockedLeaf<'_, u64, u64>, epoch: u64) {
        self.store_at(leaf, self.slot, &KEY, epoch);
    }

    fn store_at(&self, leaf: &LockedLeaf<'_, u64, u64>, slot: usize, key: &u64, epoch: u64) {
        let LeafEntry { word, deadline, .. } = leaf.entry(slot);
        let state = OldState::Present { word, deadline };
        let end = Epoch::new(epoch);
        self.log.push(leaf, &Probe::new(key), state, end, end.previous());
        leaf.set_word(slot, 10 * epoch);
    }

    fn overwrite(&self, epoch: u64) {
        let leaf = self.lock();
        self.store(&leaf, epoch);
        leaf.unlock_unchanged();
    }

    fn overwrite_and_prune(&self, epoch: u64, live: &[u64]) {
        let leaf = self.lock();
        self.store(&leaf, epoch);
        let epochs = live.iter().map(|epoch| Epoch::new(*epoch)).collect();
        let live = LiveEpochs { epochs, quiesced: Epoch::new(epoch - 1) };
        self.log.prune(&leaf, &live, &|_| true, &self.collector.pin());
        drop(leaf);
    }

    /// Tries once to read the key at a snapshot, directly or by a scan; `None` if the read must be
    /// repeated.
    fn read(&self, snapshot: u64, scans: bool) -> Option<u64> {
        let snapshot = Epoch::new(snapshot);
        let lock = &self.leaf.header().lock;
        let version = lock.try_read().unwrap()?;
        let reading = LeafReading(Some((lock, version)));
        let mut found = Lookup::Slot;
        let at_range_version = scans
            && self.log.whole_at(self.leaf, snapshot, reading, |range| {
                found = Lookup::Old(range.state_of(KEY));
            });
        let word = self.leaf.word(self.slot);
        let found = if at_range_version {
            found
        } else if scans {
            let mut old = Vec::new();
            let slots = [KEY, OTHER];
            let whole = self.log.append_above(self.leaf, snapshot, reading, &slots, &mut old);
            let oldest = old.iter().rfind(|(entry, _)| entry.key == KEY);
            let found = oldest.map_or(Lookup::Slot, |(_, state)| Lookup::Old(*state));
            if whole { found } else { Lookup::Torn }
        } else {
            self.log.at_snapshot(self.leaf, &Probe::new(&KEY), snapshot, reading)
        };
        let word = match found {
            Lookup::Slot => word,
            Lookup::Old(OldState::Present { word, .. }) => word,
            Lookup::Old(OldState::Absent) => 0,
            Lookup::Torn => return None,
        };
        lock.validate(version).then_some(word)
    }
}

/// Reads at each of the snapshots concurrently with `write`, and once more afterwards.
fn model(epochs: u64, snapshots: &[u64], write: fn(&Shared)) {
    let reads = snapshots.iter().flat_map(|snapshot| [(*snapshot, false), (*snapshot, true)]);
    for (snapshot, scans) in reads {
        explore(Some(3), move || {
            let shared = Shared::new(epochs);
            let reader = {
                let shared = shared.clone();
                thread::spawn(move || shared.read(snapshot, scans))
            };
            // The order of these threads matters: loom explores a store before a load only if it
            // has seen the store after it, and not the other way round if the writer loads the word
            // first.
            write(&shared);
            if let Some(word) = reader.join().unwrap() {
                assert_eq!(word, 10 * snapshot, "beside the writer");
            }
            assert_eq!(shared.read(snapshot, scans), Some(10 * snapshot), "behind the writer");
        });
    }
}

#[test]
fn a_push_hides_nothing_from_a_reader() {
    model(2, &[1, 2], |shared| shared.overwrite(3));
}

#[test]
fn a_range_version_hides_nothing_from_a_reader() {
    model(2, &[1, 2], |shared| {
        let leaf = shared.lock();
        shared.store_at(&leaf, shared.other, &OTHER, 3);
        shared.store(&leaf, 3);
        leaf.unlock_unchanged();
    });
}

#[test]
fn a_prune_leaves_what_live_snapshots_need() {
    model(3, &[1, 3], |shared| shared.overwrite_and_prune(4, &[1, 3]));
}
