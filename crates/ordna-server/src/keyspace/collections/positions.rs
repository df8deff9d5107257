//! Positions in large sorted sets: the number of entries before an entry, and the entry at a
//! position.
//!
//! # Structure
//! The entries of a sorted set are divided into *blocks* of about [`BLOCK`] entries. A block has
//! the key with which it begins and the number of its entries. Up to [`GROUP`] blocks form a
//! *group*, which has the total number of their entries. A position is the sum of the preceding
//! groups and blocks plus a count within one block. Blocks are built when a position is requested
//! for the first time, and exist in memory only: about 1.5 bytes for each entry. Snapshots have
//! none.
//!
//! A search compares *heads*: the eight bytes after the common prefix of all keys of the set, which
//! are the score. Keys are compared only if their heads are equal.
//!
//! # Synchronization
//! Blocks are read under the shared lock of the key, and changed under the exclusive one, after the
//! batch of the store. So their counts agree with the store, and readers do not exclude each other.

use std::collections::HashMap;
use std::ops::{Bound, ControlFlow};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use ordna::{Direction, OrderedIndex, Store};

/// Number of entries of a new block. A block with more than twice as many is divided, and two
/// neighbours with at most half as many are joined, so that blocks do not accumulate if entries are
/// added at one end and removed at the other.
const BLOCK: usize = 64;
/// Number of blocks of a new group. A group with more than twice as many is divided.
const GROUP: usize = 64;
/// Number of entries below which a sorted set has no blocks: a count over its leaves takes some
/// microseconds.
pub const FEWEST: u64 = 2048;

/// Consecutive blocks, as parallel lists.
#[derive(Debug, Default)]
struct Group {
    heads: Vec<u64>,
    /// The key with which each block begins.
    starts: Vec<Box<[u8]>>,
    counts: Vec<u32>,
}

impl Group {
    fn push(&mut self, head: u64, start: Box<[u8]>, count: usize) {
        self.heads.push(head);
        self.starts.push(start);
        self.counts.push(u32::try_from(count).unwrap_or(u32::MAX));
    }

    fn len(&self) -> usize {
        self.starts.len()
    }

    fn remove(&mut self, at: usize) {
        self.heads.remove(at);
        self.starts.remove(at);
        self.counts.remove(at);
    }

    fn total(&self) -> usize {
        self.counts.iter().map(|count| *count as usize).sum()
    }
}

/// The position of a block: its group, and its index there.
type Place = (usize, usize);

/// The blocks of a sorted set, whose entries are between two keys of the store. There is at least
/// one.
#[derive(Debug)]
pub struct Blocks {
    groups: Vec<Group>,
    /// The head of the first block of each group.
    heads: Vec<u64>,
    /// The number of entries of each group.
    totals: Vec<usize>,
    /// Length of the common prefix of all keys.
    shared: usize,
    end: Vec<u8>,
}

/// Returns the last of some ascending keys, given with their heads, that is at or before `key`, or
/// the first key.
fn last_before<'k>(
    heads: &[u64],
    start: impl Fn(usize) -> &'k [u8],
    head: u64,
    key: &[u8],
) -> usize {
    let (mut low, mut high) = (0, heads.len());
    while low < high {
        let middle = low.midpoint(high);
        let order = heads[middle].cmp(&head).then_with(|| start(middle).cmp(key));
        if order.is_le() { low = middle + 1 } else { high = middle }
    }
    low.saturating_sub(1)
}

impl Blocks {
    /// Counts the entries from `start` up to `end`, which all begin with `start`. O(n).
    fn build(store: &Store<[u8], [u8]>, start: &[u8], end: &[u8]) -> Self {
        let mut blocks = Self {
            groups: Vec::new(),
            heads: Vec::new(),
            totals: Vec::new(),
            shared: start.len(),
            end: end.to_vec(),
        };
        let all = blocks.counted(store, start, end);
        blocks.insert_groups(0, all);
        blocks
    }

    fn head(&self, key: &[u8]) -> u64 {
        let rest = key.get(self.shared..).unwrap_or_default();
        match rest.first_chunk() {
            Some(head) => u64::from_be_bytes(*head),
            None => rest.iter().rev().fold(0, |head, byte| head >> 8 | u64::from(*byte) << 56),
        }
    }

    /// Creates new blocks of the entries from `start` up to `end`.
    fn counted(&self, store: &Store<[u8], [u8]>, start: &[u8], end: &[u8]) -> Group {
        let mut blocks = Group::default();
        blocks.push(self.head(start), start.into(), 0);
        let bounds = (Bound::Included(start), Bound::Excluded(end));
        store.scan_with(bounds, Direction::Ascending, usize::MAX, |key, _| {
            match blocks.counts.last_mut() {
                Some(count) if (*count as usize) < BLOCK => *count += 1,
                _ => blocks.push(self.head(key), key.into(), 1),
            }
            ControlFlow::Continue(())
        });
        blocks
    }

    /// Inserts blocks as groups at a place.
    fn insert_groups(&mut self, at: usize, blocks: Group) {
        let mut blocks = blocks.heads.into_iter().zip(blocks.starts).zip(blocks.counts).peekable();
        let mut groups = Vec::new();
        while blocks.peek().is_some() {
            let mut group = Group::default();
            for ((head, start), count) in blocks.by_ref().take(GROUP) {
                group.push(head, start, count as usize);
            }
            groups.push(group);
        }
        self.heads.splice(at..at, groups.iter().map(|group| group.heads[0]));
        self.totals.splice(at..at, groups.iter().map(Group::total));
        self.groups.splice(at..at, groups);
    }

    /// Returns the block of a key.
    fn block_of(&self, key: &[u8]) -> Place {
        let head = self.head(key);
        let group = last_before(&self.heads, |at| &self.groups[at].starts[0], head, key);
        let blocks = &self.groups[group];
        (group, last_before(&blocks.heads, |at| &blocks.starts[at], head, key))
    }

    /// Records which keys were added (1) or removed (-1).
    fn change<'k>(
        &mut self,
        store: &Store<[u8], [u8]>,
        changes: impl Iterator<Item = (&'k [u8], i64)>,
    ) {
        let mut grown = Vec::new();
        for (key, by) in changes {
            let (group, at) = self.block_of(key);
            let count = &mut self.groups[group].counts[at];
            *count = count.saturating_add_signed(by as i32);
            self.totals[group] = self.totals[group].saturating_add_signed(by as isize);
            if by < 0 {
                self.join(group, at);
            } else if *count as usize > 2 * BLOCK {
                grown.push(key);
            }
        }
        // Divided only now: the store already has all of the changes and is counted again.
        for key in grown {
            self.divide(store, key);
        }
    }

    /// Returns the end of a block.
    fn end_of(&self, (group, at): Place) -> &[u8] {
        let next = || self.groups.get(group + 1)?.starts.first();
        let next = self.groups[group].starts.get(at + 1).or_else(next);
        next.map_or(&self.end, |next| next)
    }

    /// Divides the block of a key, if it has grown.
    fn divide(&mut self, store: &Store<[u8], [u8]>, key: &[u8]) {
        let place @ (group, at) = self.block_of(key);
        let blocks = &self.groups[group];
        if blocks.counts[at] as usize <= 2 * BLOCK {
            return;
        }
        let parts = self.counted(store, &blocks.starts[at], self.end_of(place));
        let blocks = &mut self.groups[group];
        blocks.heads.splice(at..=at, parts.heads);
        blocks.starts.splice(at..=at, parts.starts);
        blocks.counts.splice(at..=at, parts.counts);
        self.totals[group] = blocks.total();
        if blocks.len() > 2 * GROUP {
            self.heads.remove(group);
            self.totals.remove(group);
            let blocks = self.groups.remove(group);
            self.insert_groups(group, blocks);
        }
    }

    /// Joins a block that has shrunk with a neighbour, if both are small.
    fn join(&mut self, group: usize, at: usize) {
        let blocks = &mut self.groups[group];
        let (shrunk, before) = (blocks.counts[at], at.checked_sub(1));
        let is_small = |count: u32| (count + shrunk) as usize <= BLOCK / 2;
        if let Some(before) = before.filter(|before| is_small(blocks.counts[*before])) {
            blocks.counts[before] += shrunk;
            blocks.remove(at);
        } else if blocks.counts.get(at + 1).is_some_and(|after| is_small(*after)) {
            blocks.counts[at] += blocks.counts[at + 1];
            blocks.remove(at + 1);
        } else if shrunk == 0 && blocks.len() == 1 && self.groups.len() > 1 {
            let mut gone = self.groups.remove(group);
            self.totals.remove(group);
            // Everything before the first block belongs to it.
            let (head, start) = (self.heads.remove(group), gone.starts.remove(0));
            if group == 0 {
                self.heads[0] = head;
                self.groups[0].heads[0] = head;
                self.groups[0].starts[0] = start;
            }
        }
    }

    /// Returns the number of entries below a key.
    pub fn below(&self, store: &Store<[u8], [u8]>, key: &[u8]) -> usize {
        if key >= self.end.as_slice() {
            return self.totals.iter().sum();
        }
        let (group, at) = self.block_of(key);
        let blocks = &self.groups[group];
        let before: usize = self.totals[..group].iter().sum();
        let before =
            before + blocks.counts[..at].iter().map(|count| *count as usize).sum::<usize>();
        let start = &*blocks.starts[at];
        if start >= key {
            return before;
        }
        before + store.count(Bound::Included(start), Bound::Excluded(key))
    }

    /// Returns the block with the entry at a position: its bounds, the number of entries before it
    /// and in it. Returns `None` if there are fewer entries.
    pub fn find(&self, position: usize) -> Option<FoundBlock> {
        let mut before = 0;
        let group = self.totals.iter().position(|total| {
            let is_before = before + total <= position;
            before += if is_before { *total } else { 0 };
            !is_before
        })?;
        let blocks = &self.groups[group];
        for (at, count) in blocks.counts.iter().map(|count| *count as usize).enumerate() {
            if position < before + count {
                let (start, end) = (blocks.starts[at].to_vec(), self.end_of((group, at)).to_vec());
                return Some(FoundBlock { start, end, before, count });
            }
            before += count;
        }
        None
    }
}

/// The block with the requested entry.
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
type Shared = Arc<RwLock<Option<Blocks>>>;

/// The blocks, by id, of all sorted sets whose positions were requested.
#[derive(Debug, Default)]
pub struct Positions {
    blocks: RwLock<HashMap<u64, Shared>>,
    /// Whether sorted sets may change without a call of [`change`](Self::change), so that no blocks
    /// are kept.
    has_stopped: AtomicBool,
}

impl Positions {
    /// Returns whether blocks are kept up to date and may be used.
    pub fn are_kept(&self) -> bool {
        !self.has_stopped.load(Ordering::Relaxed)
    }

    /// Drops all blocks and keeps none from now on. The caller excludes commands.
    pub fn stop(&self) {
        self.has_stopped.store(true, Ordering::Relaxed);
        self.blocks.write().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Allows blocks to be built again.
    pub fn resume(&self) {
        self.has_stopped.store(false, Ordering::Relaxed);
    }

    fn of(&self, id: u64) -> Option<Shared> {
        self.blocks.read().unwrap_or_else(PoisonError::into_inner).get(&id).map(Arc::clone)
    }

    /// Calls `ask` with the blocks of a sorted set, whose entries are between two keys and begin
    /// with the first one.
    pub fn with<R>(
        &self,
        store: &Store<[u8], [u8]>,
        id: u64,
        bounds: impl FnOnce() -> (Vec<u8>, Vec<u8>),
        ask: impl FnOnce(&Blocks) -> R,
    ) -> R {
        let shared = self.of(id).unwrap_or_else(|| {
            let mut all = self.blocks.write().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(all.entry(id).or_default())
        });
        if let Some(blocks) = &*shared.read().unwrap_or_else(PoisonError::into_inner) {
            return ask(blocks);
        }
        let mut blocks = shared.write().unwrap_or_else(PoisonError::into_inner);
        ask(blocks.get_or_insert_with(|| {
            let (start, end) = bounds();
            Blocks::build(store, &start, &end)
        }))
    }

    /// Records the keys that were added to or removed from a sorted set whose key is locked
    /// exclusively.
    pub fn change<'k>(
        &self,
        store: &Store<[u8], [u8]>,
        id: u64,
        changes: impl Iterator<Item = (&'k [u8], i64)>,
    ) {
        let Some(shared) = self.of(id) else { return };
        if let Some(blocks) = &mut *shared.write().unwrap_or_else(PoisonError::into_inner) {
            blocks.change(store, changes);
        }
    }

    /// Drops the blocks of a sorted set that is removed.
    pub fn forget(&self, id: u64) {
        self.blocks.write().unwrap_or_else(PoisonError::into_inner).remove(&id);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// Asserts that the blocks are consistent.
    fn assert_intact(blocks: &Blocks) {
        let starts: Vec<&[u8]> = blocks
            .groups
            .iter()
            .flat_map(|group| group.starts.iter().map(|start| &**start))
            .collect();
        assert!(starts.is_sorted_by(|a, b| a < b) && starts[0] == b"s");
        for (at, group) in blocks.groups.iter().enumerate() {
            assert_eq!((blocks.heads[at], blocks.totals[at]), (group.heads[0], group.total()));
            assert!(
                group
                    .heads
                    .iter()
                    .zip(&group.starts)
                    .all(|(head, start)| *head == blocks.head(start))
            );
            assert!(group.counts.iter().all(|count| *count as usize <= 2 * BLOCK));
            assert!((1..=2 * GROUP).contains(&group.len()));
        }
    }

    /// Sorted sets whose entries are added at the end and removed at the front, and one that grows
    /// by one batch.
    #[test]
    fn blocks_go_with_their_entries() {
        let (store, positions) = (Store::<[u8], [u8]>::new(), Positions::default());
        let key = |number: u32| [b"s", &number.to_be_bytes()[..]].concat();
        let bounds = || (b"s".to_vec(), b"t".to_vec());
        let blocks = || {
            positions.with(&store, 1, bounds, |blocks| {
                assert_intact(blocks);
                blocks.groups.iter().map(Group::len).sum::<usize>()
            })
        };
        assert_eq!(blocks(), 1);
        let batch: Vec<Vec<u8>> = (0..20_000).map(key).collect();
        batch.iter().for_each(|key| drop(store.insert(key, b"").unwrap()));
        positions.change(&store, 1, batch.iter().map(|key| (key.as_slice(), 1)));
        let many = blocks();
        assert!((150..=320).contains(&many), "{many} blocks");
        for number in 0..40_000 {
            let (comes, goes) = (key(number + 20_000), key(number));
            store.insert(&comes, b"").unwrap();
            drop(store.remove(&goes));
            positions.change(&store, 1, [(&comes[..], 1), (&goes[..], -1)].into_iter());
        }
        assert!(blocks() <= many + 320, "{} blocks", blocks());
        for (number, below) in [(0, 0), (40_000, 0), (50_123, 10_123), (60_000, 20_000)] {
            let found =
                positions.with(&store, 1, bounds, |blocks| blocks.below(&store, &key(number)));
            assert_eq!(found, below, "{number}");
        }
        for number in 40_000..60_000 {
            drop(store.remove(&key(number)));
            positions.change(&store, 1, std::iter::once((&key(number)[..], -1)));
        }
        assert!(blocks() <= 3, "{} blocks", blocks());
        assert!(positions.with(&store, 1, bounds, |blocks| blocks.find(0)).is_none());
    }

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
            let bounds = || (b"s".to_vec(), b"t".to_vec());
            positions.with(&store, 1, bounds, |_| ());
            for (number, adds) in changes {
                let changed = if adds { model.insert(number) } else { model.remove(&number) };
                if changed {
                    match adds {
                        true => drop(store.insert(&key(number), b"").unwrap()),
                        false => drop(store.remove(&key(number))),
                    }
                    let change = (&key(number)[..], if adds { 1 } else { -1 });
                    positions.change(&store, 1, std::iter::once(change));
                }
            }
            for number in asked {
                let below = positions.with(&store, 1, bounds, |blocks| blocks.below(&store, &key(number)));
                prop_assert_eq!(below, model.range(..number).count());
                let position = number as usize % (model.len() + 5);
                let found = positions.with(&store, 1, bounds, |blocks| blocks.find(position));
                match model.iter().nth(position) {
                    None => prop_assert!(found.is_none()),
                    Some(number) => {
                        let found = found.unwrap();
                        prop_assert!(found.start <= key(*number) && key(*number) < found.end);
                        prop_assert!(found.before <= position && position < found.before + found.count);
                    }
                }
            }
            positions.with(&store, 1, bounds, assert_intact);
            let all: usize = positions.with(&store, 1, bounds, |blocks| blocks.below(&store, b"t"));
            prop_assert_eq!(all, model.len());
        }
    }
}
