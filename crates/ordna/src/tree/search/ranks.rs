//! Counts of entries in the nodes of the search layer: how many lie between two low fences.
//!
//! # Contract
//! [`SearchLayer::skip`] adds up the entries of the leaves from a low fence on. The layer reads no
//! leaf: its caller counts one when asked. Each leaf counts as it was at one moment of the call, and
//! no low fence changes during the call. So every key that is present throughout counts once, and
//! no absent key counts.
//!
//! Counts are kept lazily. A node gets them when a call passes it for the first time. A writer that
//! changes the number of entries of a *counted* leaf reports the leaf ([`SearchLayer::report`]) before
//! the change, under the leaf's lock. The next call counts that leaf again; after a split it looks at the
//! leaves of the whole node. A writer thus pays for the first change of a leaf after a count, and stores that never count pay
//! for a look at a bit of the leaf.
//!
//! # Invariants
//! A child is *stale* if its bit in the node's mask is set, or if the node has no counts.
//! 1. The entries of a child that is not stale are the sum of those of its own children, or, of a
//!    leaf that is not locked, the number of its entries.
//! 2. If a leaf is not counted and not locked, it is stale, and so are the nodes on the way to it.
//!    A stale leaf may be counted: then the number that its node holds is right.
//! 3. The entries that a node holds of a counted leaf are those within the leaf's fences in the search
//!    layer. A writer that moves entries between leaves forgets that they are counted, while it
//!    holds their locks, before it changes the layer; the change marks them as stale.
//!
//! # Protocol
//! Counts and changes of the layer exclude each other by the writers' lock. Reports take no lock:
//!
//! | report, under the leaf's lock | count, from above |
//! |---|---|
//! | clears the leaf's bit | clears the child's bit in the node's mask |
//! | sets the leaf's bit in the mask of its node | looks at that child: at its mask, or at the leaf's bit |
//! | sets that node's bit in the mask of the node above, and so on up to the root | sets the leaf's bit, looks at the leaf's lock, reads the leaf |
//!
//! Between any two of these steps is a sequentially consistent fence. At each level, either the
//! count sees what the report has set below, or the report sees that the count has cleared the bit,
//! and sets it. A bit that a report finds set is not written again, so writers share lines only
//! for their first change after a count. The report then validates the way: if a change of the layer
//! has moved a child, it starts again. The bits that it has set by mistake only cost a look at a leaf.
//!
//! A count never waits for a leaf: it stops before a leaf that is locked and neither known nor
//! readable, marks the way as stale again, and returns how far it has come. A writer that holds the
//! lock may wait for the writers' lock meanwhile.
//!
//! # Progress
//! A call counts at most [`WORK`] leaves anew, and then returns how far it has come; the writers'
//! lock is free between two calls. Splits and merges wait for a call in progress, and calls let those
//! that wait go first. A report that fails [`RETRIES`] times takes the writers' lock.

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

/// Leaves that one call counts anew at most: some microseconds under the writers' lock.
const WORK: usize = 128;

/// How often a call lets threads go first that wait to change the layer: a split holds a leaf that
/// other writers wait for.
const YIELDS: usize = 64;

/// The leaves that [`SearchLayer::skip`] has passed.
#[derive(Debug, Clone, Copy)]
pub struct Skipped {
    /// Entries of these leaves.
    pub entries: usize,
    /// The leaf that follows, and the word of its low fence; `None` if no leaf follows.
    pub next: Option<(LeafAddress, u64)>,
    /// Whether another call may pass the leaf that follows.
    pub more: bool,
}

/// What a call may still count anew.
struct Recount<C> {
    count: C,
    /// Number of leaves.
    work: usize,
}

impl<K: Key + ?Sized> Node<K> {
    /// Whether separator `at` is this low fence. The caller holds the writers' lock.
    fn has_low_fence(&self, at: usize, low_fence: &K) -> bool {
        if K::HEAD_IS_KEY {
            return self.head(at) == low_fence.head();
        }
        // SAFETY: under the writers' lock.
        self.separator(at).is_some_and(|separator| unsafe { separator.key::<'_>() } == low_fence)
    }

    /// Separator `at`, or the address of its record. The caller holds the writers' lock.
    fn low_fence_word(&self, at: usize) -> Option<u64> {
        if K::HEAD_IS_KEY {
            return Some(self.head(at));
        }
        self.separator(at).map(|separator| separator.as_ptr().expose_provenance() as u64)
    }

    /// What the node holds of a child, and whether it is not stale.
    pub(super) fn known_count(&self, at: usize) -> (ChildCount, bool) {
        let counts = self.counts.get();
        counts.map(|counts| (counts.get(at), !counts.is_stale(at))).unwrap_or_default()
    }

    /// What the node knows of its children; empty if it has no counts.
    pub(super) fn child_counts(&self) -> Vec<ChildCount> {
        let counts = self.counts.get();
        counts.map_or_else(Vec::new, |own| (0..self.len()).map(|at| own.get(at)).collect())
    }

    /// Overwrites what the node knows of its children; nothing if `counts` is empty. The caller
    /// holds the lock, or nobody else knows the node.
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
    /// Passes leaves from the one with the low fence `from` on (the smallest key for the first
    /// leaf), whose entries all lie within `upper` and are `most` at most, and none of which has
    /// entries with deadlines. `count` is called for leaves that are not known to be counted. `None`
    /// if no leaf was passed, or no leaf has this low fence. O(log n), and O(1) for each leaf that
    /// has changed since the last call that has passed it.
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
            // Relaxed: a hint.
            if self.changing.load(Ordering::Relaxed) == 0 {
                break;
            }
            std::thread::yield_now();
        }
        let _writers = self.writers.lock();
        self.counts.store(true, Ordering::Relaxed);
        let mut path = self.path(from, false);
        let is_low_fence = match path.iter().rfind(|(_, at)| *at > 0) {
            // SAFETY: the writers' lock keeps the node.
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
                // The next child of a node above.
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

    /// The counts of a node, made if there are none. The caller holds the writers' lock.
    fn counts_of<'a>(&self, node: &'a Node<K>) -> &'a Counts {
        node.counts.get_or_init(|| {
            self.bytes.fetch_add(size_of::<Counts>(), Ordering::Relaxed);
            Box::new(Counts::new())
        })
    }

    /// Counts what is stale below a child. Returns whether the node's count of it is right now.
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
            // SAFETY: the writers' lock keeps the child.
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

    /// Counts what is stale below a node. Returns the sum, if all is known now.
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

    /// Marks a leaf that is about to change, and all nodes on the way to it. The caller holds the
    /// lock of the leaf, which covers the key, and has cleared its bit. O(log n).
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
            (node, version) = self.step(node, version, node.child(at), true)?;
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

    /// Marks the children on the way to `key` as stale. The caller holds the writers' lock.
    pub(super) fn mark_path(&self, key: &K, strict: bool) {
        let path: Path<K> = self.path(key, strict);
        for (node, at) in path {
            // SAFETY: the writers' lock keeps the node.
            if let Some(counts) = unsafe { &*node }.counts.get() {
                counts.mark(at);
            }
        }
    }

    /// Marks the leaves on both sides of a low fence that has changed. The caller holds the
    /// writers' lock.
    pub(super) fn mark_around(&self, low_fence: &K) {
        if notice!("search.count.marks_changes", self.counts.load(Ordering::Relaxed)) {
            self.mark_path(low_fence, false);
            self.mark_path(low_fence, true);
        }
    }
}
