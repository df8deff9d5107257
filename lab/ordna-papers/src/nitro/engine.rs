//! The versions, and how a read finds one.
//!
//! # Contract
//! All methods may be called concurrently. A version that was found stays in memory as long as the
//! guard under which it was found is held.
//!
//! # Invariants
//! 1. The versions of a key are ordered from the oldest to the youngest. At most one was born in
//!    the current epoch. All except the last are dead, or claimed by the writer of the last one.
//! 2. A linked version whose death is [`LIVE`] is the last one of its key, because the next one is
//!    inserted only after a claim. A reader that observes a version first as linked and then as
//!    live has observed the key's latest state, on whatever level of the list it found the version.
//! 3. Younger versions are inserted after older ones, and an older one is unlinked only after that.
//!    A reader that continues from a version that is no longer current reaches the current one.
//!
//! # Reading the latest state
//! A search returns any version of the key. If it is live, it is the result (invariant 2).
//! Otherwise the reader looks for the last one, and scans from there to the end of the key's
//! versions (invariant 3). A claimed version is the latest state if no version of the key follows
//! it and it is still claimed afterwards: whoever removes a successor ends the claimed version
//! first. If the scan reaches the end, the last version was dead or unlinked and had no successor,
//! so at that moment the key was absent.
//!
//! # Reading at an epoch
//! At most one version of a key was alive at the end of a quiesced epoch. It stays linked while a
//! snapshot of the epoch lives. It is the last one that was born up to that epoch, unless it had
//! died by then.

use std::borrow::Borrow;
use std::ops::{Bound, ControlFlow};
use std::sync::Weak;

use super::garbage::Garbage;
use super::options::NitroOptions;
use super::version::{ANY, BEHIND, CLAIMED, LIVE, Node, Rank, Version};
use crate::skiplist::item::Item;
use crate::skiplist::raw::{LANES, List, Place};
use ordna::store::epochs::Epochs;
use ordna_base::index::{Direction, is_above, is_below};
use ordna_base::reclaim::{Collector, Guard};
use ordna_base::sync::{check, fault, notice, point};
use ordna_base::{Key, Value, Violation};

/// Number of versions after which a scan leaves its reading section and enters it again.
const REFRESH: usize = 512;
/// Number of versions in the first section of a scan, because many scans end in it.
const FIRST_SECTION: usize = 64;
/// Number of retired versions at which a thread passes them to the collector.
const RETIRED: usize = 256;
/// Number of cache lines over which the announcements of writers are spread.
const WRITER_STRIPES: usize = 32;

pub type Versions<K, V> = List<Version<K, V>>;
pub type VersionPlace<K, V> = Place<Version<K, V>>;

pub struct Engine<K: Key + ?Sized, V: Value + ?Sized> {
    // Declared before the collector: dropping the list frees linked versions, and the collector
    // frees the others.
    pub versions: Versions<K, V>,
    pub collector: Collector,
    pub epochs: Epochs,
    pub garbage: Garbage<K, V>,
    pub me: Weak<Self>,
}

/// The state that a reader sees.
#[derive(Debug, Clone, Copy)]
pub enum View {
    /// The latest state.
    Latest,
    /// The state at the end of a quiesced epoch, of which the reader holds a snapshot.
    At(u64),
}

impl<K: Key + ?Sized, V: Value + ?Sized> Engine<K, V> {
    pub fn new(options: NitroOptions, me: Weak<Self>) -> Self {
        let NitroOptions { collectors, order, list } = options;
        Self {
            versions: Versions::with(list),
            collector: Collector::with_batches_of(RETIRED),
            epochs: Epochs::new(WRITER_STRIPES),
            garbage: Garbage::new(collectors, order),
            me,
        }
    }

    /// Returns whether the view shows this version.
    #[inline]
    fn shows(&self, view: View, node: Node<K, V>, guard: &Guard<'_>) -> bool {
        // Linked is checked before live, for invariant 2.
        if !node.is_live() {
            return false;
        }
        match view {
            View::At(epoch) => node.born() <= epoch && node.dead() > epoch,
            View::Latest => match node.dead() {
                LIVE => true,
                CLAIMED => self.is_unsucceeded(node, guard),
                _ => false,
            },
        }
    }

    fn scan_shows(&self, view: View, node: Node<K, V>, guard: &Guard<'_>) -> bool {
        check!("nitro.scan.filters", self.shows(view, node, guard))
    }

    /// Returns whether the key had no later version at some moment of this call. The version was
    /// claimed when the call began.
    fn is_unsucceeded(&self, node: Node<K, V>, guard: &Guard<'_>) -> bool {
        point("nitro.read.claimed");
        self.is_last(node, guard) && is_still_claimed(node)
    }

    /// Returns whether no version of the key follows this one.
    fn is_last(&self, node: Node<K, V>, guard: &Guard<'_>) -> bool {
        if fault!("nitro.read.claimed_is_last") {
            return true;
        }
        let next = self.versions.next(node, guard);
        next.is_none_or(|next| next.key(guard) != node.key(guard))
    }

    /// Returns the version of `key` that the view shows. O(log n).
    #[inline]
    pub fn get(&self, view: View, key: &K, guard: &Guard<'_>) -> Option<Node<K, V>> {
        let met = self.versions.get(Rank { key, born: ANY }, guard)?;
        self.resolve(view, key, met, guard)
    }

    /// Returns the version of `key` that the view shows, given any version of it.
    #[inline]
    fn resolve(
        &self,
        view: View,
        key: &K,
        met: Node<K, V>,
        guard: &Guard<'_>,
    ) -> Option<Node<K, V>> {
        let is_shown = match view {
            View::Latest => met.dead() == LIVE,
            View::At(_) => self.shows(view, met, guard),
        };
        if is_shown {
            return Some(met);
        }
        let born = match view {
            View::Latest => BEHIND,
            View::At(epoch) => epoch + 1,
        };
        let mut at = self.versions.stretch_before(Some(Rank { key, born }), 0, guard);
        point("nitro.get.found_last");
        while let Some(node) = at.filter(|node| node.key(guard) == key) {
            if self.shows(view, node, guard) {
                return Some(node);
            }
            if !scans_on(view) {
                return None;
            }
            at = self.versions.next(node, guard);
        }
        None
    }

    /// Calls `each` with the position and value of every key.
    pub fn get_many<Q: Borrow<K>>(
        &self,
        view: View,
        keys: &[Q],
        mut each: impl FnMut(usize, Option<&V>),
    ) {
        let guard = self.collector.pin();
        let ranks = keys.iter().map(|key| Rank { key: key.borrow(), born: ANY });
        self.versions.get_many(ranks, &guard, |at, met| {
            let found = met.and_then(|met| self.resolve(view, keys[at].borrow(), met, &guard));
            match found {
                Some(node) => node.with_value(|value| each(at, Some(value))),
                None => each(at, None),
            }
        });
    }

    /// Calls `visit` with the entries within the bounds that the view shows, in order, until it
    /// breaks. Holds its reading section for [`REFRESH`] versions at a time.
    pub fn visit(
        &self,
        view: View,
        lower: Bound<&K>,
        upper: Bound<&K>,
        direction: Direction,
        mut visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) {
        let mut each = |node: Node<K, V>, key: &K| node.with_value(|value| visit(key, value));
        match direction {
            Direction::Ascending => self.ascend(view, lower, upper, &mut each),
            Direction::Descending => self.descend(view, lower, upper, &mut each),
        }
    }

    fn ascend(
        &self,
        view: View,
        lower: Bound<&K>,
        upper: Bound<&K>,
        each: &mut impl FnMut(Node<K, V>, &K) -> ControlFlow<()>,
    ) {
        let mut resume: Option<Resume<K>> = None;
        let mut lanes: Vec<Vec<Node<K, V>>> = Vec::new();
        for section in 0.. {
            let guard = self.collector.pin();
            let resumed = resume.as_ref().map(Resume::rank);
            let from = match (resumed, lower) {
                (Some((rank, _)), _) => Some(rank),
                (None, Bound::Unbounded) => None,
                (None, Bound::Included(key)) => Some(Rank { key, born: 0 }),
                (None, Bound::Excluded(key)) => Some(Rank { key, born: BEHIND }),
            };
            let mut visited = resumed.and_then(|(_, visited)| visited);
            let from = from.map(|rank| (rank, true));
            let Some(first) = self.versions.locate(from, &guard) else { return };
            let mut pass = |node: Node<K, V>, shown: bool| {
                let key = node.key(&guard);
                if is_above(key, upper) {
                    return ControlFlow::Break(());
                }
                // In the latest state, a writer may insert a version after one that was just
                // visited.
                let repeated = matches!(view, View::Latest) && visited == Some(key);
                if shown && !repeated && !is_below(key, lower) {
                    each(node, key)?;
                    visited = Some(key);
                }
                ControlFlow::Continue(())
            };
            let next = match section {
                0 => self.pass_section(view, first, FIRST_SECTION, &guard, &mut pass),
                _ => self.pass_lanes(view, first, upper, &mut lanes, &guard, &mut pass),
            };
            let Some((next, behind)) = next else { return };
            let key = next.key(&guard);
            let born = next.born() + behind;
            resume = Some(Resume { key: key.to_owned(), born, visited: visited == Some(key) });
            drop(guard);
            point("nitro.scan.refreshes");
        }
    }

    /// Passes `length` versions one after the other. Returns the version at which the next section
    /// begins, or (1) after which it begins.
    fn pass_section(
        &self,
        view: View,
        first: Node<K, V>,
        length: usize,
        guard: &Guard<'_>,
        pass: &mut impl FnMut(Node<K, V>, bool) -> ControlFlow<()>,
    ) -> Option<(Node<K, V>, u64)> {
        let mut node = first;
        for left in (0..length).rev() {
            let shown = self.scan_shows(view, node, guard);
            if pass(node, shown).is_break() {
                return None;
            }
            if left == 0 {
                return Some((node, behind_if(shown)));
            }
            node = self.versions.next(node, guard)?;
        }
        None
    }

    /// Passes about [`REFRESH`] versions in several concurrent lanes, so that their cache misses
    /// overlap. The lanes begin at the versions of a row. A lane decides whether a version is shown
    /// when it reaches it. The caller sees the versions in order.
    fn pass_lanes(
        &self,
        view: View,
        first: Node<K, V>,
        upper: Bound<&K>,
        lanes: &mut Vec<Vec<Node<K, V>>>,
        guard: &Guard<'_>,
        pass: &mut impl FnMut(Node<K, V>, bool) -> ControlFlow<()>,
    ) -> Option<(Node<K, V>, u64)> {
        let (count, spacing) = LANES[LANES.len() - 1];
        let mut row = self.versions.tall_behind(first.rank_under(guard), spacing, count, guard);
        row.truncate(row.iter().take_while(|next| !is_above(next.key(guard), upper)).count());
        let Some(last) = row.pop() else {
            return self.pass_section(view, first, REFRESH, guard, pass);
        };
        row.insert(0, first);
        let shows = |node| self.scan_shows(view, node, guard);
        let beyond = |node: Node<K, V>| Version::<K, V>::compare(node.rank(), last.rank()).is_ge();
        self.versions.scan_lanes(&row, beyond, lanes, guard, shows);
        let ended = lanes.iter().flatten().any(|node| pass(*node, true).is_break());
        (!ended).then_some((last, 0))
    }

    /// Scans backwards by sections, each of which is scanned forwards in lanes. A section begins
    /// after the versions of a key, which are the last ones of the next section.
    fn descend(
        &self,
        view: View,
        lower: Bound<&K>,
        upper: Bound<&K>,
        each: &mut impl FnMut(Node<K, V>, &K) -> ControlFlow<()>,
    ) {
        let mut lanes: Vec<Vec<Node<K, V>>> = Vec::new();
        // The last section began after this key, so all keys above it were visited.
        let mut resume: Option<K::Owned> = None;
        for section in 0.. {
            let guard = self.collector.pin();
            let upper = resume.as_ref().map_or(upper, |key| Bound::Included(key.borrow()));
            let to = match upper {
                Bound::Unbounded => None,
                Bound::Included(key) | Bound::Excluded(key) => Some(Rank { key, born: 0 }),
            };
            let (count, spacing) = LANES[section.min(LANES.len() - 1)];
            let mut row = self.versions.tall_before(to, spacing, count, &guard);
            // Of the nodes below the bound, the row needs only the last one.
            let below = row.iter().take_while(|node| is_below(node.key(&guard), lower)).count();
            row.drain(..below.saturating_sub(1));
            let start = row.first().copied();
            if start.is_none() {
                row.extend(self.versions.locate(None, &guard));
            }
            let begins_behind = start.map(|start| start.key(&guard));
            let beyond = |node: Node<K, V>| is_above(node.key(&guard), upper);
            let shows = |node| self.scan_shows(view, node, &guard);
            self.versions.scan_lanes(&row, beyond, &mut lanes, &guard, shows);
            let mut last: Option<&K> = None;
            for node in lanes.iter().rev().flat_map(|lane| lane.iter().rev()) {
                let key = node.key(&guard);
                if is_below(key, lower) || begins_behind.is_some_and(|start| key <= start) {
                    break;
                }
                // The lanes may have found two versions of a key that was overwritten concurrently.
                if last != Some(key) && each(*node, key).is_break() {
                    return;
                }
                last = Some(key);
            }
            match begins_behind {
                Some(start) if !is_below(start, lower) => resume = Some(start.to_owned()),
                _ => return,
            }
            drop(guard);
            point("nitro.scan.refreshes");
        }
    }

    /// Returns the sizes in bytes of live versions and of dead ones. O(n).
    pub fn bytes(&self) -> (usize, usize) {
        let mut bytes = (0, 0);
        let guard = self.collector.pin();
        let mut at = self.versions.locate(None, &guard);
        while let Some(node) = at {
            let part = if node.dead() >= CLAIMED { &mut bytes.0 } else { &mut bytes.1 };
            *part += node.size();
            at = self.versions.next(node, &guard);
        }
        bytes
    }

    /// Checks the list and the counts. Returns the numbers of live versions and of all versions. No
    /// other thread may use the index; its collectors wait.
    pub fn check_invariants(&self) -> Result<(usize, usize), Violation> {
        let _queue = self.garbage.at_rest();
        let broken = |what: String| Err(Violation(format!("nitro: {what}")));
        let (all, _) = self.versions.check_invariants()?;
        let guard = self.collector.pin();
        let mut live = 0;
        let mut last: Option<Node<K, V>> = None;
        let mut at = self.versions.locate(None, &guard);
        while let Some(node) = at {
            let of_last = last.is_some_and(|last| last.key(&guard) == node.key(&guard));
            let overlaps = last.is_some_and(|last| last.dead() > node.born());
            if of_last && overlaps {
                return broken(format!("the version before {:?} outlives its birth", node.rank()));
            }
            match node.dead() {
                LIVE => live += 1,
                CLAIMED => return broken(format!("{:?} is still claimed", node.rank())),
                dead if dead <= node.born() => {
                    return broken(format!("{:?} died in {dead}", node.rank()));
                }
                _ => {}
            }
            last = Some(node);
            at = self.versions.next(node, &guard);
        }
        let (found, counted) = ((live, all - live), (self.epochs.items.sum(), self.dead()));
        if found != counted {
            return broken(format!("live and dead versions: {found:?}, counted {counted:?}"));
        }
        Ok((live, all))
    }

    /// Returns the number of dead versions that wait for collection.
    pub fn dead(&self) -> usize {
        self.garbage.waiting()
    }
}

/// Returns whether a claimed version stayed claimed while a reader looked for the next one. Another
/// writer that removes the next one ends the claimed version first.
fn is_still_claimed<K: Key + ?Sized, V: Value + ?Sized>(node: Node<K, V>) -> bool {
    check!("nitro.read.still_claimed", node.dead() == CLAIMED)
}

/// Returns whether a version that the view does not show leads to one that it may show (invariant
/// 3).
fn scans_on(view: View) -> bool {
    notice!("nitro.get.scans_on", matches!(view, View::Latest))
}

/// The position at which a scan enters its next section.
struct Resume<K: Key + ?Sized> {
    key: K::Owned,
    born: u64,
    /// Whether the scan has returned this key.
    visited: bool,
}

impl<K: Key + ?Sized> Resume<K> {
    /// Returns the rank, and the key if it was visited.
    fn rank(&self) -> (Rank<'_, K>, Option<&K>) {
        let key = self.key.borrow();
        if fault!("nitro.refresh.by_key_and_birth") {
            return (Rank { key, born: 0 }, None);
        }
        (Rank { key, born: self.born }, self.visited.then_some(key))
    }
}

/// Returns the offset in births at which a section continues: after a version that was shown, but
/// at one that was not. The latter may have been replaced by a version with the same rank, which
/// follows it.
fn behind_if(shown: bool) -> u64 {
    u64::from(check!("nitro.refresh.meets_exchanged", shown))
}
