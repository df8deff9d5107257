//! Positions in large sorted sets: how many entries lie before one, and the entry at a position.
//!
//! # Structure
//! The entries of a sorted set are divided into blocks of some hundred. Of each block there is the key
//! where it begins, and the number of its entries. A position is the sum of the counts of the blocks
//! before, plus a count within one block. Blocks are built at the first question about a position, and
//! live in memory only: 1/1000 of the set. Snapshots do without them.
//!
//! # Synchronization
//! Blocks are read under the shared lock of the key, and changed under the exclusive one, after the batch of
//! the store. So what they count is what the store holds.

use std::collections::HashMap;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

use ordna::sync::Lock;
use ordna::{Direction, OrderedIndex, Store};

/// Entries of a block when it is made. A block with more than twice as many is divided.
const BLOCK: usize = 256;
/// Entries of a sorted set that has no blocks: a count over its leaves takes some microseconds.
pub const FEWEST: u64 = 2048;

/// A block of entries.
#[derive(Debug)]
struct Block {
    /// The key from which on entries belong to it.
    start: Vec<u8>,
    count: usize,
}

/// The blocks of a sorted set, whose entries lie between two keys of the store.
#[derive(Debug)]
pub struct Blocks {
    blocks: Vec<Block>,
    end: Vec<u8>,
}

impl Blocks {
    /// Counts the entries from `start` up to `end`. O(n).
    fn build(store: &Store<[u8], [u8]>, start: &[u8], end: &[u8]) -> Self {
        let mut blocks = vec![Block { start: start.to_vec(), count: 0 }];
        let bounds = (Bound::Included(start), Bound::Excluded(end));
        store.scan_with(bounds, Direction::Ascending, usize::MAX, |key, _| {
            if blocks.last().is_some_and(|block| block.count == BLOCK) {
                blocks.push(Block { start: key.to_vec(), count: 0 });
            }
            if let Some(block) = blocks.last_mut() {
                block.count += 1;
            }
            ControlFlow::Continue(())
        });
        Self { blocks, end: end.to_vec() }
    }

    /// The block of a key.
    fn block_of(&self, key: &[u8]) -> usize {
        self.blocks.partition_point(|block| block.start.as_slice() <= key).saturating_sub(1)
    }

    /// Notes that a key came (1) or went (-1).
    fn change(&mut self, key: &[u8], by: i64) {
        let at = self.block_of(key);
        if let Some(block) = self.blocks.get_mut(at) {
            block.count = block.count.saturating_add_signed(by as isize);
        }
    }

    /// The end of a block.
    fn end_of(&self, at: usize) -> &[u8] {
        self.blocks.get(at + 1).map_or(&self.end, |next| &next.start)
    }

    /// Divides a block that has grown.
    fn divide(&mut self, store: &Store<[u8], [u8]>, at: usize) {
        if self.blocks[at].count <= 2 * BLOCK {
            return;
        }
        let (start, end) = (self.blocks[at].start.clone(), self.end_of(at).to_vec());
        let parts = Self::build(store, &start, &end);
        self.blocks.splice(at..=at, parts.blocks);
    }

    /// Number of entries below a key.
    pub fn below(&mut self, store: &Store<[u8], [u8]>, key: &[u8]) -> usize {
        let at = self.block_of(key);
        self.divide(store, at);
        let at = self.block_of(key);
        let before: usize = self.blocks[..at].iter().map(|block| block.count).sum();
        let start = self.blocks[at].start.as_slice();
        if start >= key {
            return before;
        }
        before + store.count(Bound::Included(start), Bound::Excluded(key))
    }

    /// The bounds of the block with the entry at a position, and the number of entries before the block
    /// and in it; `None` if there are fewer entries.
    pub fn find(&mut self, store: &Store<[u8], [u8]>, position: usize) -> Option<FoundBlock> {
        let place = |blocks: &[Block]| {
            let mut before = 0;
            for (at, block) in blocks.iter().enumerate() {
                if position < before + block.count {
                    return Some((at, before));
                }
                before += block.count;
            }
            None
        };
        let (at, _) = place(&self.blocks)?;
        self.divide(store, at);
        let (at, before) = place(&self.blocks)?;
        let (start, end) = (self.blocks[at].start.clone(), self.end_of(at).to_vec());
        Some(FoundBlock { start, end, before, count: self.blocks[at].count })
    }
}

/// A block with an entry that was asked for.
#[derive(Debug)]
pub struct FoundBlock {
    pub start: Vec<u8>,
    pub end: Vec<u8>,
    /// Number of entries before the block.
    pub before: usize,
    /// Number of entries in the block.
    pub count: usize,
}

/// The blocks of one sorted set, once they are built.
type Shared = Arc<Lock<Option<Blocks>>>;

/// The blocks of all sorted sets that were asked for positions, by id.
#[derive(Debug, Default)]
pub struct Positions(Lock<HashMap<u64, Shared>>);

impl Positions {
    /// Calls `ask` with the blocks of a sorted set, whose entries lie between two keys.
    pub fn with<R>(
        &self,
        store: &Store<[u8], [u8]>,
        id: u64,
        (start, end): (&[u8], &[u8]),
        ask: impl FnOnce(&mut Blocks) -> R,
    ) -> R {
        let shared = Arc::clone(self.0.lock().entry(id).or_default());
        let mut blocks = shared.lock();
        ask(blocks.get_or_insert_with(|| Blocks::build(store, start, end)))
    }

    /// Notes the keys that came or went, of a sorted set whose key is locked exclusively.
    pub fn change<'k>(&self, id: u64, changes: impl Iterator<Item = (&'k [u8], i64)>) {
        let Some(shared) = self.0.lock().get(&id).map(Arc::clone) else { return };
        if let Some(blocks) = &mut *shared.lock() {
            changes.for_each(|(key, by)| blocks.change(key, by));
        }
    }

    /// Drops the blocks of a sorted set that is removed.
    pub fn forget(&self, id: u64) {
        self.0.lock().remove(&id);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]
        #[test]
        fn positions_are_those_of_the_keys(
            first in proptest::collection::vec(0..5000_u32, 0..2000),
            changes in proptest::collection::vec((0..5000_u32, any::<bool>()), 0..4000),
            asked in proptest::collection::vec(0..5000_u32, 20),
        ) {
            let store = Store::<[u8], [u8]>::new();
            let mut model: BTreeSet<u32> = first.into_iter().collect();
            let key = |number: u32| format!("s{number:05}").into_bytes();
            model.iter().for_each(|number| drop(store.insert(&key(*number), b"").unwrap()));
            let positions = Positions::default();
            let bounds = (&b"s"[..], &b"t"[..]);
            positions.with(&store, 1, bounds, |_| ());
            for (number, adds) in changes {
                let changed = if adds { model.insert(number) } else { model.remove(&number) };
                if changed {
                    match adds {
                        true => drop(store.insert(&key(number), b"").unwrap()),
                        false => drop(store.remove(&key(number))),
                    }
                    positions.change(1, std::iter::once((&key(number)[..], if adds { 1 } else { -1 })));
                }
            }
            for number in asked {
                let below = positions.with(&store, 1, bounds, |blocks| blocks.below(&store, &key(number)));
                prop_assert_eq!(below, model.range(..number).count());
                let position = number as usize % (model.len() + 5);
                let found = positions.with(&store, 1, bounds, |blocks| blocks.find(&store, position));
                match model.iter().nth(position) {
                    None => prop_assert!(found.is_none()),
                    Some(number) => {
                        let found = found.unwrap();
                        prop_assert!(found.start <= key(*number) && key(*number) < found.end);
                        prop_assert!(found.before <= position && position < found.before + found.count);
                    }
                }
            }
            let all: usize = positions.with(&store, 1, bounds, |blocks| blocks.below(&store, b"t"));
            prop_assert_eq!(all, model.len());
        }
    }
}
