//! Positions from the front: how many entries lie within bounds, and the entry at a position.
//!
//! # Contract
//! Counts add up leaves, each read at one moment, from left to right. Beside writers a count of the
//! latest state is that of a scan: every key that is present throughout counts once, no absent key
//! counts. At a snapshot it is exact.
//!
//! # How
//! A leaf that lies within the bounds as a whole, has no deadline and no undo record above the
//! snapshot counts by its header alone: one cache line for some 40 entries. The search layer tells
//! which headers come next, so their misses overlap. Writers pay nothing; counts in the search
//! layer would make each insert and removal write to a line that all threads share.
//!
//! # Invariants
//! A leaf counts whole only if its anchor is the fence of the leaf before, as both were read. Else
//! entries have moved between the two reads, and the leaf is searched for the first one not yet
//! counted.

use std::borrow::Borrow;
use std::ops::Bound;

use crate::epoch::Epoch;
use ordna_base::index::{is_above, is_below};
use ordna_base::reclaim::{Collector, Guard};
use ordna_base::sync::atomic::Ordering;
use ordna_base::sync::{Obsolete, notice, point};
use ordna_base::{Key, Value};

use super::{Part, Stretch};
use crate::tree::Tree;
use crate::tree::leaf::Leaf;

/// Leaves that a count reads in one reading section.
const SECTION: usize = 1024;

/// Where a count stands: all below is counted.
enum Start<K: Key + ?Sized> {
    Bound(Bound<K::Owned>),
    /// The anchor that a leaf had, see [`Leaf::anchor_word`].
    Anchor(u64),
}

/// The facts of a leaf that its header holds.
struct Whole<K: Key + ?Sized, V: Value + ?Sized> {
    count: usize,
    next: Option<Leaf<K, V>>,
    /// The anchor of `next`.
    fence: u64,
}

/// The entries that a leaf adds to a count.
enum Step<K: Key + ?Sized, V: Value + ?Sized> {
    /// So many entries, all within the bounds, and the leaf that follows.
    Whole(Whole<K, V>),
    /// The entries from one to another position of the stretch that was read.
    Part(usize, usize),
}

impl<K: Key + ?Sized, V: Value + ?Sized> Tree<K, V> {
    /// How many entries lie within the bounds. `shows` tells by deadline which entries count. O(log
    /// n + l) with l leaves within the bounds.
    pub fn count(
        &self,
        snapshot: Option<Epoch>,
        (lower, upper): (Bound<&K>, Bound<&K>),
        collector: &Collector,
        shows: impl Fn(u64) -> bool,
    ) -> usize {
        let mut total = 0;
        self.step_by_leaves(snapshot, (lower, upper), collector, |stretch, step| {
            total += match step {
                Step::Whole(whole) => whole.count,
                Step::Part(begin, end) => {
                    (begin..end).filter(|at| shows(stretch.entry(*at).deadline)).count()
                }
            };
            true
        });
        total
    }

    /// Calls `read` with the entry at this position of all that `shows` tells. O(log n + l) with l
    /// leaves before it.
    pub fn select<R>(
        &self,
        snapshot: Option<Epoch>,
        position: usize,
        collector: &Collector,
        shows: impl Fn(u64) -> bool,
        read: impl FnOnce(&K, &V, u64) -> R,
    ) -> Option<R> {
        let (mut left, mut read, mut found) = (position, Some(read), None);
        let all = (Bound::Unbounded, Bound::Unbounded);
        self.step_by_leaves(snapshot, all, collector, |stretch, step| {
            let (begin, end) = match step {
                Step::Whole(whole) if left >= whole.count => {
                    left -= whole.count;
                    return true;
                }
                // The entry is here: the leaf is to be read.
                Step::Whole(_) => return false,
                Step::Part(begin, end) => (begin, end),
            };
            for at in begin..end {
                let entry = stretch.entry(at);
                if !shows(entry.deadline) {
                    continue;
                }
                if left == 0 {
                    if let Some(read) = read.take() {
                        found = Some(Leaf::<K, V>::with_key(&entry, |key| {
                            Leaf::<K, V>::with_value(entry.word, |value| {
                                read(key, value, entry.deadline)
                            })
                        }));
                    }
                    return false;
                }
                left -= 1;
            }
            true
        });
        found
    }

    /// Calls `each` with what every leaf adds, from left to right, until it returns `false`. If it
    /// refuses a whole leaf it is called once more with the entries.
    fn step_by_leaves(
        &self,
        snapshot: Option<Epoch>,
        (lower, upper): (Bound<&K>, Bound<&K>),
        collector: &Collector,
        mut each: impl FnMut(&Stretch<K, V>, Step<K, V>) -> bool,
    ) {
        let mut from: Start<K> = Start::Bound(lower.map(ToOwned::to_owned));
        let mut stretch = Stretch::empty();
        'section: loop {
            let guard = collector.pin();
            let mut leaf = Self::with_bound(&from, |from| self.leaf_of_lower(from, &guard));
            let mut asked = 0;
            for _ in 0..SECTION {
                if asked == 0 {
                    asked = self.ask_ahead(leaf, &guard);
                }
                asked -= 1;
                let whole = match &from {
                    Start::Bound(_) => Ok(None),
                    Start::Anchor(anchor) => self.whole(leaf, *anchor, snapshot, upper),
                };
                let Ok(whole) = whole else { break };
                if let Some(whole) = whole {
                    let (next, fence) = (whole.next, whole.fence);
                    if each(&stretch, Step::Whole(whole)) {
                        let Some(next) = next else { return };
                        (leaf, from) = (next, Start::Anchor(fence));
                        point("tree.count.counted");
                        continue;
                    }
                }
                let part = Part {
                    ascending: true,
                    wanted: usize::MAX,
                    goes_on: false,
                    lower: Bound::Unbounded,
                };
                if self.read(leaf, snapshot, &part, &mut stretch).is_err() {
                    break;
                }
                let begin =
                    Self::with_bound(&from, |from| stretch.partition(|key| !is_below(key, from)));
                let end = stretch.partition(|key| is_above(key, upper));
                if !each(&stretch, Step::Part(begin, end.max(begin))) || end < stretch.len() {
                    return;
                }
                let Some(next) = stretch.image.next else { return };
                let fence = next.anchor_word();
                // An anchor that has sunk below what was counted leads to entries that were here.
                let last = stretch.len().checked_sub(1).map(|last| stretch.entry(last));
                let sunk = last.and_then(|last| {
                    Leaf::<K, V>::with_key(&last, |last| {
                        Leaf::<K, V>::with_anchor_word(fence, |fence| {
                            (fence.is_none_or(|fence| fence <= last)).then(|| last.to_owned())
                        })
                    })
                });
                from = match sunk {
                    Some(last) => Start::Bound(Bound::Excluded(last)),
                    None => Start::Anchor(fence),
                };
                leaf = next;
                point("tree.count.counted");
            }
            // The next section, or the search for a leaf that was unlinked, begins by key.
            if let Start::Anchor(anchor) = from {
                let key = Leaf::<K, V>::with_anchor_word(anchor, |key| key.map(ToOwned::to_owned));
                let Some(key) = key else { continue 'section };
                from = Start::Bound(Bound::Included(key));
            }
        }
    }

    /// Calls `f` with the bound from which on entries are not counted yet.
    fn with_bound<R>(from: &Start<K>, f: impl FnOnce(Bound<&K>) -> R) -> R {
        match from {
            Start::Bound(bound) => f(bound.as_ref().map(Borrow::borrow)),
            Start::Anchor(anchor) => Leaf::<K, V>::with_anchor_word(*anchor, |key| {
                f(key.map_or(Bound::Unbounded, Bound::Included))
            }),
        }
    }

    /// Asks for the headers of this leaf and those that follow; returns of how many.
    fn ask_ahead(&self, leaf: Leaf<K, V>, guard: &Guard<'_>) -> usize {
        leaf.with_anchor(|anchor| {
            let empty = K::Owned::default();
            let anchor = anchor.unwrap_or_else(|| empty.borrow());
            self.search.prefetch_from(anchor, guard)
        })
    }

    /// The header's facts, if all entries of the leaf count, and its anchor is this one.
    ///
    /// # Errors
    /// The leaf is unlinked.
    fn whole(
        &self,
        leaf: Leaf<K, V>,
        anchor: u64,
        snapshot: Option<Epoch>,
        upper: Bound<&K>,
    ) -> Result<Option<Whole<K, V>>, Obsolete> {
        self.consistent(&leaf, |_| {
            let past = snapshot.is_some_and(|snapshot| {
                let dead = leaf.header().dead.load(Ordering::Acquire);
                notice!("tree.count.sees_undo", dead > snapshot)
            });
            let moved = notice!("tree.count.checks_anchor", leaf.anchor_word() != anchor);
            if past || moved || leaf.has_deadlines() {
                return Some(None);
            }
            let next = leaf.next();
            let fence = next.map_or(0, Leaf::anchor_word);
            let within = match upper {
                Bound::Unbounded => true,
                Bound::Included(key) | Bound::Excluded(key) => {
                    next.is_some()
                        && (leaf.high() < key.head()
                            || leaf.high() == key.head()
                                && Leaf::<K, V>::with_anchor_word(fence, |fence| {
                                    fence.is_some_and(|fence| fence <= key)
                                }))
                }
            };
            Some(within.then(|| Whole { count: leaf.count(), next, fence }))
        })
    }
}
