//! Counts of the entries within bounds, and the entry at a position.
//!
//! # Contract
//! A count adds up leaves from left to right, each read at one moment. If writers are active, a
//! count of the latest state is that of a scan: every key that is present throughout counts once,
//! and no absent key counts. At a snapshot it is exact.
//!
//! # Method
//! In the latest state, runs of leaves without deadlines are counted together: the search layer
//! knows how many entries are below each of its nodes, see `search::ranks`. So a count reads only
//! the leaves around its bounds and those that have changed since the last count.
//!
//! Other leaves are counted one by one: those of short ranges, for which the search layer does not
//! keep counts, leaves with deadlines, leaves that a writer has locked, and all leaves at a
//! snapshot. A leaf that is completely within the bounds and has neither a deadline nor an undo
//! record above the snapshot is counted by its header alone: one cache line for about 40 entries.
//! The search layer returns the next headers in advance, so that their cache misses overlap.
//!
//! # Invariants
//! A leaf is counted as a whole only if its low fence equals the high fence of the previous leaf,
//! as both were read. Otherwise entries have moved between the two reads, and the leaf is searched
//! for the first entry that is not yet counted. A run in the search layer begins at such a low
//! fence, too. It ends at a low fence that the layer has at that moment, with which the next leaf
//! is compared.

use std::borrow::Borrow;
use std::cell::Cell;
use std::ops::Bound;

use crate::epoch::Epoch;
use ordna_base::reclaim::{Collector, Guard};
use ordna_base::sync::atomic::Ordering;
use ordna_base::sync::{Obsolete, check, notice, point};
use ordna_base::{Key, Value};

use super::{LeafRequest, ScanBatch};
use crate::tree::Tree;
use crate::tree::leaf::{FOREVER, Leaf, LeafEntry};
use crate::tree::search::ranks::Skipped;

/// Number of leaves that a count reads in one reading section.
const SECTION: usize = 1024;

/// Number of leaves that a count passes before it prefetches the following ones. Most counts end
/// sooner.
const NEAR: usize = 4;

/// Maximum number of leaves between two attempts to count a run of leaves together.
const FAR: usize = 64;

/// The position of a count: everything below it is counted.
enum CountStart<K: Key + ?Sized> {
    Bound(Bound<K::Owned>),
    /// The low fence of a leaf, see [`Leaf::low_fence_word`].
    LowFence(u64),
}

/// The facts about a leaf that its header holds.
struct WholeLeaf<K: Key + ?Sized, V: Value + ?Sized> {
    count: usize,
    next: Option<Leaf<K, V>>,
    /// The low fence of `next`.
    fence: u64,
}

/// The number of entries that a leaf or a run adds to a count.
enum CountStep<K: Key + ?Sized, V: Value + ?Sized> {
    /// The number of all entries of a run of leaves within the bounds.
    Run(usize),
    /// All entries of a leaf within the bounds, and the next leaf.
    Leaf(WholeLeaf<K, V>),
    /// The entries between two positions of the batch that was read.
    Entries(usize, usize),
}

impl<K: Key + ?Sized, V: Value + ?Sized> Tree<K, V> {
    /// Returns how many entries are within the bounds. `shows` returns, by deadline, whether an
    /// entry counts. O(log n + l), where l is the number of leaves within the bounds that have
    /// deadlines or have changed since the last count; at a snapshot, l is the number of all leaves
    /// within the bounds.
    pub fn count(
        &self,
        snapshot: Option<Epoch>,
        (lower, upper): (Bound<&K>, Bound<&K>),
        collector: &Collector,
        shows: impl Fn(u64) -> bool,
    ) -> usize {
        let mut total = 0;
        let most = Cell::new(usize::MAX);
        let most = snapshot.is_none().then_some(&most);
        self.step_by_leaves(snapshot, (lower, upper), most, collector, |batch, step| {
            total += match step {
                CountStep::Run(entries) => entries,
                CountStep::Leaf(whole) => whole.count,
                CountStep::Entries(begin, end) => {
                    (begin..end).filter(|at| shows(batch.entry(*at).deadline)).count()
                }
            };
            true
        });
        total
    }

    /// Returns whether the entries within the bounds certainly equal those at the snapshot and have
    /// no deadline: none of their leaves has a record of a later change. The result may be `false`
    /// because of a change near the bounds. O(log n + l) with l leaves within the bounds.
    pub fn is_unchanged(
        &self,
        snapshot: Epoch,
        bounds: (Bound<&K>, Bound<&K>),
        collector: &Collector,
    ) -> bool {
        let mut unchanged = true;
        self.step_by_leaves(Some(snapshot), bounds, None, collector, |batch, step| {
            if let CountStep::Entries(begin, end) = step {
                let lasts = |at| batch.entry(at).deadline == FOREVER;
                unchanged = batch.is_latest && (begin..end).all(lasts);
            }
            unchanged
        });
        unchanged
    }

    /// Calls `read` with the entry at this position among those for which `shows` returns `true`.
    /// O(log n + l), where l is the number of leaves before it that have deadlines or have changed
    /// since the last count; at a snapshot, l is the number of all leaves before it.
    pub fn select<R>(
        &self,
        snapshot: Option<Epoch>,
        position: usize,
        collector: &Collector,
        shows: impl Fn(u64) -> bool,
        read: impl FnOnce(&K, &V, u64) -> R,
    ) -> Option<R> {
        let (left, mut read, mut found) = (Cell::new(position), Some(read), None);
        let all = (Bound::Unbounded, Bound::Unbounded);
        let most = snapshot.is_none().then_some(&left);
        self.step_by_leaves(snapshot, all, most, collector, |batch, step| {
            let (begin, end) = match step {
                CountStep::Run(entries) => {
                    left.set(left.get() - entries);
                    return true;
                }
                CountStep::Leaf(whole) if left.get() >= whole.count => {
                    left.set(left.get() - whole.count);
                    return true;
                }
                // The entry is in this leaf, which must be read.
                CountStep::Leaf(_) => return false,
                CountStep::Entries(begin, end) => (begin, end),
            };
            for at in begin..end {
                let entry = batch.entry(at);
                if !shows(entry.deadline) {
                    continue;
                }
                if left.get() == 0 {
                    if let Some(read) = read.take() {
                        found = Some(Leaf::<K, V>::with_key(&entry, |key| {
                            Leaf::<K, V>::with_value(entry.word, |value| {
                                read(key, value, entry.deadline)
                            })
                        }));
                    }
                    return false;
                }
                left.set(left.get() - 1);
            }
            true
        });
        found
    }

    /// Calls `each` with the count of every leaf, from left to right, until it returns `false`. If
    /// it refuses a whole leaf, it is called once more with the entries. If `most` is given, runs
    /// of leaves are counted together if they have no more entries than that.
    fn step_by_leaves(
        &self,
        snapshot: Option<Epoch>,
        (lower, upper): (Bound<&K>, Bound<&K>),
        most: Option<&Cell<usize>>,
        collector: &Collector,
        mut each: impl FnMut(&ScanBatch<K, V>, CountStep<K, V>) -> bool,
    ) {
        let mut from: CountStart<K> = CountStart::Bound(lower.map(ToOwned::to_owned));
        let mut batch = ScanBatch::empty();
        let mut passed = 0;
        // Number of leaves to pass before the next attempt of a run, and after that one if it
        // fails.
        let (mut before_run, mut retry_after) =
            (if lower == Bound::Unbounded { 0 } else { NEAR }, 1);
        'section: loop {
            let guard = collector.pin();
            let mut leaf = Self::with_bound(&from, |from| self.leaf_of_lower(from, &guard));
            let mut asked = 0;
            for _ in 0..SECTION {
                if let Some(most) = most
                    && before_run == 0
                {
                    if let Some(run) = self.run(&from, upper, most.get(), &guard) {
                        let more = each(&batch, CountStep::Run(run.entries));
                        let Some((next, fence)) = run.next.filter(|_| more) else { return };
                        (leaf, from) = (Self::leaf_at(next), CountStart::LowFence(fence));
                        point("tree.count.run_counted");
                        (passed, asked, retry_after) = (0, 0, 1);
                        if run.more {
                            // The run has passed many leaves: a new section allows retired memory
                            // to be freed.
                            continue 'section;
                        }
                    }
                    before_run = retry_after;
                    retry_after = (2 * retry_after).min(FAR);
                }
                before_run = before_run.saturating_sub(1);
                passed += 1;
                if passed > NEAR {
                    if asked == 0 {
                        asked = self.ask_ahead(leaf, &guard);
                    }
                    asked -= 1;
                }
                let whole = match &from {
                    CountStart::Bound(_) => Ok(None),
                    CountStart::LowFence(low_fence) => {
                        self.whole(leaf, *low_fence, snapshot, upper)
                    }
                };
                let Ok(whole) = whole else { break };
                if let Some(whole) = whole {
                    let (next, fence) = (whole.next, whole.fence);
                    if each(&batch, CountStep::Leaf(whole)) {
                        let Some(next) = next else { return };
                        (leaf, from) = (next, CountStart::LowFence(fence));
                        point("tree.count.counted");
                        continue;
                    }
                }
                // A short count reads only the records around the bounds, so none is prefetched.
                let wanted = if K::HEAD_IS_KEY || passed > NEAR { usize::MAX } else { 1 };
                let read = Self::with_bound(&from, |from| {
                    let lower = if K::HEAD_IS_KEY { Bound::Unbounded } else { from };
                    let part = LeafRequest {
                        ascending: true,
                        wanted,
                        only_one: false,
                        goes_on: false,
                        lower,
                        upper: Bound::Unbounded,
                    };
                    self.read(leaf, snapshot, &part, &mut batch)?;
                    Ok::<_, Obsolete>(batch.begin(from))
                });
                let Ok(begin) = read else { break };
                let end = Self::end(leaf, &batch, upper);
                if !each(&batch, CountStep::Entries(begin, end.max(begin))) || end < batch.len() {
                    return;
                }
                let Some(next) = batch.copy.next else { return };
                point("tree.count.read");
                let fence = next.low_fence_word();
                let last = (begin < batch.len()).then(|| batch.entry(batch.len() - 1));
                if let Some(goes_on) = Self::after_entries(&from, last.as_ref(), fence) {
                    from = goes_on;
                }
                leaf = next;
                point("tree.count.counted");
            }
            // The next section, or the search after an unlinked leaf, begins by key.
            if let CountStart::LowFence(low_fence) = from {
                let key =
                    Leaf::<K, V>::with_fence_word(low_fence, |key| key.map(ToOwned::to_owned));
                let Some(key) = key else { continue 'section };
                from = CountStart::Bound(Bound::Included(key));
            }
        }
    }

    /// Returns where a count continues after the entries of a leaf from `from` on; `None` means at
    /// `from`. `last` is the last of these entries, if there were any, and `low_fence` is that of
    /// the next leaf.
    ///
    /// The low fence was read after the entries and may have become lower than `from` or `last` in
    /// the meantime. Then some entries of the next leaf are counted already or are below the
    /// bounds, so that leaf is not counted as a whole.
    fn after_entries(
        from: &CountStart<K>,
        last: Option<&LeafEntry>,
        low_fence: u64,
    ) -> Option<CountStart<K>> {
        Leaf::<K, V>::with_fence_word(low_fence, |fence| {
            if let Some(last) = last {
                return Leaf::<K, V>::with_key(last, |last| {
                    Some(match fence.is_some_and(|fence| fence > last) {
                        true => CountStart::LowFence(low_fence),
                        false => CountStart::Bound(Bound::Excluded(last.to_owned())),
                    })
                });
            }
            let is_beyond = Self::with_bound(from, |from| match (from, fence) {
                (Bound::Unbounded, _) => true,
                (_, None) => false,
                (Bound::Included(from), Some(fence)) => fence >= from,
                (Bound::Excluded(from), Some(fence)) => fence > from,
            });
            check!("tree.count.keeps_start", is_beyond).then_some(CountStart::LowFence(low_fence))
        })
    }

    /// Counts a run of leaves that begins at a low fence, see [`SearchLayer::skip`].
    ///
    /// [`SearchLayer::skip`]: crate::tree::search::SearchLayer::skip
    fn run(
        &self,
        from: &CountStart<K>,
        upper: Bound<&K>,
        most: usize,
        guard: &Guard<'_>,
    ) -> Option<Skipped> {
        let smallest = K::Owned::default();
        let count = |address| Self::leaf_at(address).count_once();
        Self::with_bound(from, |bound| {
            let from = match bound {
                Bound::Included(key) => key,
                Bound::Unbounded => smallest.borrow(),
                Bound::Excluded(_) => return None,
            };
            self.search.skip(from, upper, most, count, guard)
        })
    }

    /// Calls `f` with the bound of the entries that are not counted yet.
    fn with_bound<R>(from: &CountStart<K>, f: impl FnOnce(Bound<&K>) -> R) -> R {
        match from {
            CountStart::Bound(bound) => f(bound.as_ref().map(Borrow::borrow)),
            CountStart::LowFence(low_fence) => Leaf::<K, V>::with_fence_word(*low_fence, |key| {
                f(key.map_or(Bound::Unbounded, Bound::Included))
            }),
        }
    }

    /// Prefetches the headers of this leaf and the following ones. Returns their number.
    fn ask_ahead(&self, leaf: Leaf<K, V>, guard: &Guard<'_>) -> usize {
        leaf.with_low_fence(|low_fence| {
            let empty = K::Owned::default();
            let low_fence = low_fence.unwrap_or_else(|| empty.borrow());
            self.search.prefetch_from(low_fence, guard)
        })
    }

    /// Returns the header's facts if all entries of the leaf count and its low fence is `from`.
    ///
    /// # Errors
    /// The leaf is unlinked.
    fn whole(
        &self,
        leaf: Leaf<K, V>,
        low_fence: u64,
        snapshot: Option<Epoch>,
        upper: Bound<&K>,
    ) -> Result<Option<WholeLeaf<K, V>>, Obsolete> {
        self.consistent(&leaf, |_| {
            let past = snapshot.is_some_and(|snapshot| {
                let dead = leaf.header().newest_end.load(Ordering::Acquire);
                notice!("tree.count.sees_undo", dead > snapshot)
            });
            let moved = notice!("tree.count.checks_low_fence", leaf.low_fence_word() != low_fence);
            if past || moved || leaf.has_deadlines() {
                return Some(None);
            }
            let next = leaf.next();
            let fence = next.map_or(0, Leaf::low_fence_word);
            let within = match upper {
                Bound::Unbounded => true,
                Bound::Included(key) | Bound::Excluded(key) => {
                    next.is_some()
                        && (leaf.high_fence() < key.head()
                            || leaf.high_fence() == key.head()
                                && Leaf::<K, V>::with_fence_word(fence, |fence| {
                                    fence.is_some_and(|fence| fence <= key)
                                }))
                }
            };
            Some(within.then(|| WholeLeaf { count: leaf.count(), next, fence }))
        })
    }
}
