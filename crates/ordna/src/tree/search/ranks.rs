//! Counts in the nodes of the search layer: the number of entries between two low fences.
//!
//! # Contract
//! [`SearchLayer::skip`] adds up the entries of the leaves from a low fence on. The layer reads no
//! leaf: its caller counts a leaf when asked. Each leaf counts as it was at one moment of the call,
//! and no low fence changes during the call. So every key that is present throughout counts once,
//! and no absent key counts.
//!
//! Counts are maintained lazily. A node gets them when a call passes it for the first time. Before
//! a writer changes the number of entries of a *counted* leaf, it reports the leaf
//! ([`SearchLayer::report`]) under the leaf's lock. The next call counts that leaf again; after a
//! split it examines all leaves of the node. So a writer pays only for the first change of a leaf
//! after a count, and stores that never count pay only for the test of one bit of the leaf.
//!
//! # Invariants
//! A child is *stale* if its bit in the node's mask is set, or if the node has no counts.
//! 1. The count of a child that is not stale is the sum of the counts of its own children or, for a
//!    leaf that is not locked, the number of its entries.
//! 2. If a leaf is neither counted nor locked, it is stale, and so are the nodes on the path to it.
//!    A stale leaf may be counted; the number in its node is then right.
//! 3. The count that a node holds of a counted leaf is that of the entries within the leaf's fences
//!    in the search layer. A writer that moves entries between leaves clears their counted bits,
//!    while it holds their locks, before it changes the layer; the change of the layer marks them
//!    as stale.
//!
//! # Protocol
//! Counts and changes of the layer exclude each other by the writers' lock. Reports take no lock:
//!
//! | report, under the leaf's lock | count, from top to bottom |
//! |---|---|
//! | clears the leaf's bit | clears the child's bit in the node's mask |
//! | sets the leaf's bit in the mask of its node | reads that child: its mask, or the leaf's bit |
//! | sets that node's bit in the mask of its parent, and so on up to the root | sets the leaf's bit, loads the leaf's lock, reads the leaf |
//!
//! Between any two of these steps is a sequentially consistent fence. At each level, either the
//! count sees what the report has set below, or the report sees that the count has cleared the bit,
//! and sets it. A report does not write a bit that is already set, so writers write to shared lines
//! only for their first change after a count. The report then validates the path. If a change of
//! the layer has moved a child, it starts again. Bits that it has set by mistake only cost a look
//! at a leaf.
//!
//! A count never waits for a leaf. It stops before a leaf that is locked and neither known nor
//! readable, marks the path as stale again, and returns how far it has come. The writer that holds
//! the leaf's lock may at the same time wait for the writers' lock.
//!
//! # Progress
//! A call recounts at most [`WORK`] leaves and then returns how far it has come; the writers' lock
//! is free between two calls. Splits and merges wait for a call in progress, and calls give way to
//! those that wait. A report that fails [`RETRIES`] times takes the writers' lock.

use std::ops::Bound;
use std::ptr;

use ordna_base::Key;
use ordna_base::index::is_above;
use ordna_base::reclaim::Guard;
use ordna_base::simd::prefetch;
use ordna_base::sync::atomic::{Ordering, fence};
use ordna_base::sync::{Obsolete, fault, notice, point};

use super::counts::{ChildCount, Counts, LeafCount};
use super::{FANOUT, LeafAddress, Node, Path, RETRIES, SearchLayer};

/// Maximum number of leaves that one call recounts: some microseconds under the writers' lock.
const WORK: usize = 128;

/// Maximum number of times that a call gives way to threads that wait to change the layer. A split
/// holds a leaf for which other writers wait.
const YIELDS: usize = 64;

/// The leaves that [`SearchLayer::skip`] has passed.
#[derive(Debug, Clone, Copy)]
pub struct Skipped {
    /// Number of entries of these leaves.
    pub entries: usize,
    /// The next leaf and the word of its low fence, or `None` if there is no next leaf.
    pub next: Option<(LeafAddress, u64)>,
    /// Whether another call may pass the next leaf.
    pub more: bool,
}

/// The remaining work of a call.
struct Recount<C> {
    count: C,
    /// Number of leaves that may still be recounted.
    work: usize,
}

impl<K: Key + ?Sized> Node<K> {
    /// Returns whether separator `at` is this low fence. The caller holds the writers' lock.
    fn has_low_fence(&self, at: usize, low_fence: &K) -> bool {
        if K::HEAD_IS_KEY {
            return self.head(at) == low_fence.head();
        }
        // SAFETY: the writers' lock is held.
        self.separator(at).is_some_and(|separator| unsafe { separator.key::<'_>() } == low_fence)
    }

    /// Returns separator `at`, or the address of its record. The caller holds the writers' lock.
    fn low_fence_word(&self, at: usize) -> Option<u64> {
        if K::HEAD_IS_KEY {
            return Some(self.head(at));
        }
        self.separator(at).map(|separator| separator.as_ptr().expose_provenance() as u64)
    }

    /// Returns the count of a child, and whether it is valid, that is, not stale.
    pub(super) fn known_count(&self, at: usize) -> (ChildCount, bool) {
        let counts = self.counts.get();
        counts.map(|counts| (counts.get(at), !counts.is_stale(at))).unwrap_or_default()
    }

    /// Returns the counts of the children, or an empty vector if the node has none.
    pub(super) fn child_counts(&self) -> Vec<ChildCount> {
        let counts = self.counts.get();
        counts.map_or_else(Vec::new, |own| (0..self.len()).map(|at| own.get(at)).collect())
    }

    /// Overwrites the counts of the children, unless `counts` is empty. The caller holds the lock,
    /// or no other thread knows the node.
    pub(super) fn set_child_counts(&self, counts: &[ChildCount]) {
        if counts.is_empty() && self.counts.get().is_none() {
            return;
        }
        let own = self.counts.get_or_init(|| Box::new(Counts::new()));
        for (at, count) in counts.iter().enumerate() {
            own.set(at, *count);
        }
        own.mark_all();
    }

    /// Makes room for a child at this position. The caller holds the lock.
    pub(super) fn put_child_count(&self, at: usize) {
        if let Some(counts) = self.counts.get() {
            for to in (at + 1..=self.len().min(FANOUT - 1)).rev() {
                counts.set(to, counts.get(to - 1));
            }
            counts.set(at, ChildCount::default());
            counts.mark_all();
        }
    }
}

impl<K: Key + ?Sized> SearchLayer<K> {
    /// Passes leaves, beginning with the leaf with the low fence `from` (for the first leaf, the
    /// smallest key). All entries of these leaves are within `upper`, there are at most `most`, and
    /// none has a deadline. `count` is called for leaves that are not known to be counted. Returns
    /// `None` if no leaf was passed, or if no leaf has this low fence. O(log n), and O(1) for each
    /// leaf that has changed since the last call that passed it.
    pub fn skip(
        &self,
        from: &K,
        upper: Bound<&K>,
        most: usize,
        count: impl FnMut(LeafAddress) -> LeafCount,
        _: &Guard<'_>,
    ) -> Option<Skipped> {
        if is_above(from, upper) {
            return None;
        }
        for _ in 0..YIELDS {
            // Relaxed: only a hint.
            if self.changing.load(Ordering::Relaxed) == 0 {
                break;
            }
            std::thread::yield_now();
        }
        let _writers = self.writers.lock();
        self.counts.store(true, Ordering::Relaxed);
        let mut path = self.path(from, false);
        let is_low_fence = match path.iter().rfind(|(_, at)| *at > 0) {
            // SAFETY: the writers' lock keeps the node alive.
            Some((node, at)) => unsafe { &**node }.has_low_fence(at - 1, from),
            None => from.head() == 0 && from.tail().is_empty(),
        };
        if !is_low_fence {
            return None;
        }
        let end = match upper {
            Bound::Unbounded => Vec::new(),
            Bound::Included(key) | Bound::Excluded(key) => self.path(key, false),
        };
        let mut recount = Recount { count, work: WORK };
        let (mut entries, mut passed) = (0, false);
        let mut level = path.len() - 1;
        loop {
            let (pointer, from) = path[level];
            // SAFETY: as above.
            let node = unsafe { &*pointer };
            let own_end = end.get(level).filter(|(end, _)| *end == pointer).map(|(_, at)| *at);
            let mut at = from;
            let mut stuck = false;
            while at < own_end.unwrap_or(node.len()) {
                if !self.refresh(node, at, &mut recount) {
                    stuck = true;
                    break;
                }
                let child = self.counts_of(node).get(at);
                if child.timed || entries + child.entries as usize > most {
                    break;
                }
                entries += child.entries as usize;
                passed = true;
                at += 1;
            }
            if at == node.len() {
                // Continues with the next child of a higher node.
                path.pop();
                let Some((_, above)) = path.last_mut() else {
                    return Some(Skipped { entries, next: None, more: false });
                };
                *above += 1;
                level -= 1;
                continue;
            }
            path[level].1 = at;
            if node.height == 0 {
                if !passed {
                    return None;
                }
                let (holder, above) = path.iter().rfind(|(_, at)| *at > 0)?;
                // SAFETY: as above.
                let low_fence = unsafe { &**holder }.low_fence_word(above - 1)?;
                let address = LeafAddress::of_child(node.child(at));
                let more = stuck && recount.work == 0;
                return Some(Skipped { entries, next: Some((address, low_fence)), more });
            }
            path.push((ptr::with_exposed_provenance_mut(node.child(at)), 0));
            level += 1;
        }
    }

    /// Returns the counts of a node, and creates them if necessary. The caller holds the writers'
    /// lock.
    fn counts_of<'a>(&self, node: &'a Node<K>) -> &'a Counts {
        node.counts.get_or_init(|| {
            self.bytes.fetch_add(size_of::<Counts>(), Ordering::Relaxed);
            Box::new(Counts::new())
        })
    }

    /// Recounts what is stale below a child. Returns whether the node's count of the child is now
    /// right.
    fn refresh<C: FnMut(LeafAddress) -> LeafCount>(
        &self,
        node: &Node<K>,
        at: usize,
        recount: &mut Recount<C>,
    ) -> bool {
        let counts = self.counts_of(node);
        if !counts.is_stale(at) {
            return true;
        }
        if node.height == 0 && recount.work == 0 {
            return false;
        }
        let unmarks_first = !fault!("search.count.unmarks_first");
        if unmarks_first {
            counts.unmark(at);
        }
        point("search.count.unmarked");
        let known = if node.height == 0 {
            recount.work -= 1;
            match (recount.count)(LeafAddress::of_child(node.child(at))) {
                LeafCount::Known => true,
                LeafCount::Busy => false,
                LeafCount::Counted(entries) => {
                    counts.set(at, entries);
                    true
                }
            }
        } else {
            // SAFETY: the writers' lock keeps the child alive.
            let child = unsafe { &*ptr::with_exposed_provenance::<Node<K>>(node.child(at)) };
            let sum = self.refresh_all(child, recount);
            if let Some(sum) = sum {
                counts.set(at, sum);
            }
            sum.is_some()
        };
        point("search.count.refreshed");
        if !unmarks_first {
            counts.unmark(at);
        }
        if !known {
            counts.mark(at);
        }
        known
    }

    /// Recounts what is stale below a node. Returns the sum if all counts are now right.
    fn refresh_all<C: FnMut(LeafAddress) -> LeafCount>(
        &self,
        node: &Node<K>,
        recount: &mut Recount<C>,
    ) -> Option<ChildCount> {
        let counts = self.counts_of(node);
        let len = node.len();
        if node.height == 0 {
            let stale = counts.stale();
            for at in (0..len).filter(|at| stale >> at & 1 == 1) {
                prefetch(ptr::with_exposed_provenance::<u8>(node.child(at)));
            }
        }
        let mut sum = ChildCount::default();
        let mut known = true;
        for at in 0..len {
            known &= self.refresh(node, at, recount);
            sum.add(counts.get(at));
            if !known && recount.work == 0 {
                break;
            }
        }
        known.then_some(sum)
    }

    /// Marks a leaf that is about to change, and all nodes on the path to it, as stale. The caller
    /// holds the lock of the leaf, which covers the key, and has cleared its counted bit. O(log n).
    pub fn report(&self, key: &K, address: LeafAddress, guard: &Guard<'_>) {
        for _ in 0..RETRIES {
            if self.try_report(key, address, guard).is_ok() {
                return;
            }
        }
        let _writers = self.writers.lock();
        self.mark_path(key, false);
    }

    fn try_report(&self, key: &K, address: LeafAddress, _: &Guard<'_>) -> Result<(), Obsolete> {
        fence(Ordering::SeqCst);
        let mut path = Vec::with_capacity(8);
        let (mut node, mut version) = self.enter()?;
        loop {
            let at = node.route(key, false, self.simd).ok_or(Obsolete)?;
            path.push((node, version, at));
            if node.height == 0 {
                break;
            }
            (node, version) = self.step(node, version, node.child(at))?;
        }
        point("search.report.found");
        for (node, _, at) in path.iter().rev() {
            if let Some(counts) = node.counts.get() {
                counts.mark(*at);
                point("search.report.marked");
                if fault!("search.report.stops_early") {
                    break;
                }
            }
        }
        for (node, version, _) in &path {
            if !fault!("search.report.validates") {
                node.checked(*version)?;
            }
        }
        debug_assert!(
            path.last().is_some_and(|(node, version, at)| {
                node.child(*at) == address.get().get() || node.checked(*version).is_err()
            }),
            "the layer leads to a leaf that is locked"
        );
        Ok(())
    }

    /// Marks the children on the path to `key` as stale. The caller holds the writers' lock.
    pub(super) fn mark_path(&self, key: &K, strict: bool) {
        let path: Path<K> = self.path(key, strict);
        for (node, at) in path {
            // SAFETY: the writers' lock keeps the node alive.
            if let Some(counts) = unsafe { &*node }.counts.get() {
                counts.mark(at);
            }
        }
    }

    /// Marks the leaves on both sides of a changed low fence as stale. The caller holds the
    /// writers' lock.
    pub(super) fn mark_around(&self, low_fence: &K) {
        if notice!("search.count.marks_changes", self.counts.load(Ordering::Relaxed)) {
            self.mark_path(low_fence, false);
            self.mark_path(low_fence, true);
        }
    }
}
