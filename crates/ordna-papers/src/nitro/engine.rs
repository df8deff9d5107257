//! What a store and its snapshots share: the versions, and how one is found.
//!
//! # Contract
//! All methods may run at once. What is found is alive as long as the guard it was found under.
//!
//! # Invariants
//! 1. The versions of a key stand from the oldest to the youngest. At most one was born in the
//!    current term. All but the last are dead, or claimed by the writer of the last.
//! 2. A version whose death is [`LIVE`] and that is linked is the last one of its key: the next one
//!    is inserted only after a claim. So who sees a version linked, and then live, saw the latest
//!    state of the key, at whatever level of the structure it was met.
//! 3. Younger versions are inserted behind older ones, and an older one is unlinked only after
//!    that. So who walks on from a version that is no longer current comes to the current one.
//!
//! # Reading the latest state
//! A search returns any version of the key. If it is live, that is the one (invariant 2). If not,
//! the last one is looked for, and from there the walk goes on to the end of the key's versions
//! (invariant 3). A claimed version is the latest state if nothing of the key stands behind it and
//! it is claimed even then: a successor that was removed has had it ended before. At the end of the
//! walk the last version passed was dead or unlinked and had none behind it: a moment within the call
//! at which the key was absent.
//!
//! # Reading at a term
//! At most one version of a key was alive at the end of a settled term, and while a snapshot of the
//! term lives it stays linked. It is the last one born up to the term, if it did not die by then.

use std::borrow::Borrow;
use std::ops::{Bound, ControlFlow};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{PoisonError, RwLock, Weak};

use super::graves::Graves;
use super::options::Options;
use super::raw::{BEHIND, CLAIMED, Corpse, LIVE, Node, Rank, Version};
use super::structure::Structure;
use crate::skiplist::item::Item;
use crate::skiplist::raw::{LANES, List};
use ordna::store::budget::Budget;
use ordna::store::terms::Terms;
use ordna::store::ttl::{Deadlines, Timekeeper};
use ordna::store::walks::{Walk, Walks};
use ordna_base::index::{Direction, is_above, is_below};
use ordna_base::reclaim::{Collector, Guard};
use ordna_base::sync::{StripedCounter, fault, point};
use ordna_base::{Key, Value, Violation};

/// Walks leave and enter their reading section again after so many versions.
const REFRESH: usize = 512;
/// The first section of a walk: many end in it.
const FIRST_SECTION: usize = 64;
/// A walk upwards that goes on after so many sections is a long one: some 600 versions.
const SHORT_ASCENT: usize = 2;
/// The same downwards, where the first sections are shorter.
const SHORT_DESCENT: usize = LANES.len();
/// A thread hands over so many unlinked versions at once for freeing.
const RETIRED: usize = 256;
/// Announcements of writers are spread over so many cache lines.
const WRITER_STRIPES: usize = 32;

/// The structure that the engine runs on.
pub(super) type Versions<K, V> = List<Version<K, V>>;
pub(super) type Place<K, V> = <Versions<K, V> as Structure<K, V>>::Place;

/// A removed version, as [`super::Store::on_removal`] hands it over.
#[derive(Debug)]
#[non_exhaustive]
pub struct Removed<'a, K: ?Sized, V: ?Sized> {
    /// The key.
    pub key: &'a K,
    /// Its value.
    pub value: &'a V,
    /// The first term that saw it.
    pub born: u64,
    /// The first term that saw it no more.
    pub dead: u64,
    /// When it would expire, or has.
    pub expires_at: Option<u64>,
}

pub(super) type Hook<K, V> = Box<dyn Fn(&Removed<'_, K, V>) + Send + Sync>;

pub(super) struct Engine<K: Key + ?Sized, V: Value + ?Sized> {
    // Before the collector: dropping the structure frees what is linked, the collector the rest.
    pub versions: Versions<K, V>,
    pub collector: Collector,
    pub terms: Terms<Vec<Corpse<K, V>>>,
    pub graves: Graves<K, V>,
    pub budget: Budget,
    pub time: Timekeeper,
    pub deadlines: Deadlines<K>,
    pub hook: RwLock<Option<Hook<K, V>>>,
    /// Rounds of writes beyond the first.
    pub retries: StripedCounter,
    pub walks: Walks,
    pub me: Weak<Self>,
}

/// Which state a reader sees.
#[derive(Debug, Clone, Copy)]
pub(super) enum View {
    /// The latest.
    Latest,
    /// That at the end of a settled term, of which the reader holds a snapshot, and at a time.
    At { term: u64, time: u64 },
}

impl<K: Key + ?Sized, V: Value + ?Sized> Engine<K, V> {
    pub fn new(options: Options, budget: Budget, versions: Versions<K, V>, me: Weak<Self>) -> Self {
        Self {
            versions,
            collector: Collector::with_batches_of(RETIRED),
            terms: Terms::new(WRITER_STRIPES),
            graves: Graves::new(options.collectors, options.order),
            budget,
            time: Timekeeper::new(options.clock),
            deadlines: Deadlines::new(),
            hook: RwLock::new(None),
            retries: StripedCounter::new(),
            walks: Walks::default(),
            me,
        }
    }

    pub fn is_expired(&self, node: Node<K, V>) -> bool {
        node.expires_at().is_some_and(|deadline| deadline <= self.time.now())
    }

    /// Whether the view shows this version.
    #[inline]
    fn shows(&self, view: View, node: Node<K, V>, guard: &Guard<'_>) -> bool {
        // Linked before live, for invariant 2.
        if !node.is_live() {
            return false;
        }
        match view {
            View::At { term, time } => {
                node.born() <= term
                    && node.dead() > term
                    && node.expires_at().is_none_or(|deadline| deadline > time)
            }
            View::Latest => {
                let dead = node.dead();
                (dead == LIVE || (dead == CLAIMED && self.is_unsucceeded(node, guard)))
                    && !self.is_expired(node)
            }
        }
    }

    /// Whether the next version of the key was not there yet, at some moment of this call, given that
    /// this one was claimed when it began.
    fn is_unsucceeded(&self, node: Node<K, V>, guard: &Guard<'_>) -> bool {
        point("mvcc.read.claimed");
        // The next one may have come and gone. Who removes it ends this one first.
        self.is_last(node, guard) && (node.dead() == CLAIMED || fault!("mvcc.read.still_claimed"))
    }

    /// Whether no version of the key stands behind this one.
    fn is_last(&self, node: Node<K, V>, guard: &Guard<'_>) -> bool {
        fault!("mvcc.read.claimed_is_last")
            || self
                .versions
                .behind(node, guard)
                .is_none_or(|next| next.key(guard) != node.key(guard))
    }

    /// The version of `key` that the view shows. O(log n).
    #[inline]
    pub fn get(&self, view: View, key: &K, guard: &Guard<'_>) -> Option<Node<K, V>> {
        let met = self.versions.any(key, guard)?;
        self.resolve(view, key, met, guard)
    }

    /// The version of `key` that the view shows, given some version of it.
    #[inline]
    pub fn resolve(
        &self,
        view: View,
        key: &K,
        met: Node<K, V>,
        guard: &Guard<'_>,
    ) -> Option<Node<K, V>> {
        let sure = match view {
            View::Latest => met.dead() == LIVE,
            View::At { .. } => self.shows(view, met, guard),
        };
        if sure {
            return Some(met).filter(|met| self.has_not_expired(view, *met));
        }
        point("mvcc.get.met_another");
        let born = match view {
            View::Latest => BEHIND,
            View::At { term, .. } => term + 1,
        };
        let mut at = self.versions.last_before(Rank { key, born }, guard);
        point("mvcc.get.found_last");
        while let Some(node) = at.filter(|node| node.key(guard) == key) {
            if self.shows(view, node, guard) {
                return Some(node);
            }
            if matches!(view, View::At { .. }) || fault!("mvcc.get.walks_on") {
                return None;
            }
            at = self.versions.behind(node, guard);
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
        self.versions.any_of_many(keys.iter().map(Borrow::borrow), &guard, |at, met| {
            let found = met.and_then(|met| self.resolve(view, keys[at].borrow(), met, &guard));
            match found {
                Some(node) => node.with_value(|value| each(at, Some(value))),
                None => each(at, None),
            }
        });
    }

    fn has_not_expired(&self, view: View, node: Node<K, V>) -> bool {
        matches!(view, View::At { .. }) || !self.is_expired(node)
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
        let mut walk = self.walks.begin();
        let mut each = |node: Node<K, V>, key: &K| node.with_value(|value| visit(key, value));
        match direction {
            Direction::Ascending => self.ascend(view, lower, upper, &mut walk, &mut each),
            Direction::Descending => self.descend(view, lower, upper, &mut walk, &mut each),
        }
    }

    fn ascend(
        &self,
        view: View,
        lower: Bound<&K>,
        upper: Bound<&K>,
        walk: &mut Walk<'_>,
        each: &mut impl FnMut(Node<K, V>, &K) -> ControlFlow<()>,
    ) {
        // Where to go on, and whether that key was visited.
        let mut resume: Option<(K::Owned, u64, bool)> = None;
        let mut lanes: Vec<Vec<Node<K, V>>> = Vec::new();
        let mut sections = 0;
        loop {
            let guard = self.collector.pin();
            let from = match (&resume, lower) {
                (Some((key, born, _)), _) => {
                    let born = if fault!("mvcc.refresh.by_key_and_birth") { 0 } else { *born };
                    Some(Rank { key: key.borrow(), born })
                }
                (None, Bound::Unbounded) => None,
                (None, Bound::Included(key)) => Some(Rank { key, born: 0 }),
                (None, Bound::Excluded(key)) => Some(Rank { key, born: BEHIND }),
            };
            let mut visited = match &resume {
                Some((key, _, true)) if !fault!("mvcc.refresh.by_key_and_birth") => {
                    Some(key.borrow())
                }
                _ => None,
            };
            let Some(first) = self.versions.first_from(from, &guard) else { return };
            let mut pass = |node: Node<K, V>, shown: bool| {
                let key = node.key(&guard);
                if is_above(key, upper) {
                    return ControlFlow::Break(());
                }
                // In the latest state a version may be inserted behind one that was just visited.
                let repeated = matches!(view, View::Latest) && visited == Some(key);
                if shown && !repeated && !is_below(key, lower) {
                    each(node, key)?;
                    visited = Some(key);
                }
                ControlFlow::Continue(())
            };
            let next = match sections {
                0 => self.pass_section(view, first, FIRST_SECTION, &guard, &mut pass),
                _ => self.pass_lanes(view, first, upper, &mut lanes, &guard, &mut pass),
            };
            sections += 1;
            if sections == SHORT_ASCENT {
                walk.note_as_long();
            }
            let Some((next, behind)) = next else { return };
            let key = next.key(&guard);
            let key_visited = visited == Some(key);
            resume = Some((key.to_owned(), next.born() + behind, key_visited));
            drop(guard);
            point("mvcc.walk.refreshes");
        }
    }

    /// Passes so many versions one after the other. Returns where to go on: at a version, or (1)
    /// behind it.
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
            let shown = self.shows(view, node, guard) || fault!("mvcc.walk.filters");
            if pass(node, shown).is_break() {
                return None;
            }
            if left == 0 {
                // Not behind a version that was not shown: it may have been exchanged, and what
                // came in its place has the same rank and stands behind it.
                return Some((node, u64::from(shown || fault!("mvcc.refresh.meets_exchanged"))));
            }
            node = self.versions.behind(node, guard)?;
        }
        None
    }

    /// Passes some [`REFRESH`] versions, walking them in several lanes at once, each from one of a
    /// row of versions to the next, so that their cache misses overlap. What a lane shows it decides
    /// as it comes by; the caller sees it in order.
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
        let mut row = self.versions.row_behind(first.rank_under(guard), spacing, count, guard);
        row.truncate(row.iter().take_while(|next| !is_above(next.key(guard), upper)).count());
        let Some(last) = row.pop() else {
            return self.pass_section(view, first, REFRESH, guard, pass);
        };
        row.insert(0, first);
        let shows = |node| self.shows(view, node, guard) || fault!("mvcc.walk.filters");
        let beyond = |node: Node<K, V>| Version::<K, V>::compare(node.rank(), last.rank()).is_ge();
        self.versions.gather(&row, beyond, lanes, guard, shows);
        let ended = lanes.iter().flatten().any(|node| pass(*node, true).is_break());
        (!ended).then_some((last, 0))
    }

    /// Goes back by sections, each walked forwards in lanes. A section begins behind the versions of
    /// a key, which are the last ones of the next section.
    fn descend(
        &self,
        view: View,
        lower: Bound<&K>,
        upper: Bound<&K>,
        walk: &mut Walk<'_>,
        each: &mut impl FnMut(Node<K, V>, &K) -> ControlFlow<()>,
    ) {
        let mut lanes: Vec<Vec<Node<K, V>>> = Vec::new();
        // Behind which key the last section began: all keys above it were visited.
        let mut resume: Option<K::Owned> = None;
        for section in 0.. {
            if section == SHORT_DESCENT {
                walk.note_as_long();
            }
            let guard = self.collector.pin();
            let upper = resume.as_ref().map_or(upper, |key| Bound::Included(key.borrow()));
            let to = match upper {
                Bound::Unbounded => None,
                Bound::Included(key) | Bound::Excluded(key) => Some(Rank { key, born: 0 }),
            };
            let (count, spacing) = LANES[section.min(LANES.len() - 1)];
            let mut row = self.versions.row_before(to, spacing, count, &guard);
            // All of the row but the first that are below the bound are of no use.
            let below = row.iter().take_while(|node| is_below(node.key(&guard), lower)).count();
            row.drain(..below.saturating_sub(1));
            let start = row.first().copied();
            if start.is_none() {
                row.extend(self.versions.first_from(None, &guard));
            }
            let begins_behind = start.map(|start| start.key(&guard));
            let beyond = |node: Node<K, V>| is_above(node.key(&guard), upper);
            let shows = |node| self.shows(view, node, &guard) || fault!("mvcc.walk.filters");
            self.versions.gather(&row, beyond, &mut lanes, &guard, shows);
            let mut last: Option<&K> = None;
            for node in lanes.iter().rev().flat_map(|lane| lane.iter().rev()) {
                let key = node.key(&guard);
                if is_below(key, lower) || begins_behind.is_some_and(|start| key <= start) {
                    break;
                }
                // Of a key that was overwritten meanwhile two versions may have been met.
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
            point("mvcc.walk.refreshes");
        }
    }

    /// Bytes held by the structure: live versions, and dead ones. O(n).
    pub fn bytes(&self) -> (usize, usize) {
        let mut bytes = (0, 0);
        let guard = self.collector.pin();
        let mut at = self.versions.first_from(None, &guard);
        while let Some(node) = at {
            let part = if node.dead() >= CLAIMED { &mut bytes.0 } else { &mut bytes.1 };
            *part += node.size();
            at = self.versions.behind(node, &guard);
        }
        bytes
    }

    /// [`Structure::overhead`].
    pub fn overhead(&self) -> (usize, usize) {
        Structure::overhead(&self.versions, &self.collector.pin())
    }

    /// Audits structure and counts; returns live versions and all. Nobody else may use the store; its
    /// own collectors wait.
    pub fn validate(&self) -> Result<(usize, usize), Violation> {
        self.while_at_rest(|| self.audit())
    }

    fn audit(&self) -> Result<(usize, usize), Violation> {
        let broken = |what: String| Err(Violation(format!("store: {what}")));
        let all = Structure::validate(&self.versions)?;
        let guard = self.collector.pin();
        let (mut live, mut bytes) = (0, 0);
        let mut last: Option<Node<K, V>> = None;
        let mut at = self.versions.first_from(None, &guard);
        while let Some(node) = at {
            let of_last = last.is_some_and(|last| last.key(&guard) == node.key(&guard));
            let overlaps = last.is_some_and(|last| last.dead() > node.born());
            if of_last && overlaps {
                return broken(format!("{:?} lived while the next version did", node.rank()));
            }
            match node.dead() {
                LIVE => live += 1,
                CLAIMED => return broken(format!("{:?} is still claimed", node.rank())),
                dead if dead <= node.born() => {
                    return broken(format!("{:?} died in {dead}", node.rank()));
                }
                _ => {}
            }
            bytes += node.cost();
            last = Some(node);
            at = self.versions.behind(node, &guard);
        }
        let counted = (self.terms.items.sum(), self.corpses(), self.budget.used());
        if (live, all - live, bytes) != counted {
            let found = (live, all - live, bytes);
            return broken(format!("live, dead, bytes: {found:?}, counted {counted:?}"));
        }
        Ok((live, all))
    }

    /// Dead versions that await a collection, wherever they stand.
    pub fn corpses(&self) -> usize {
        let kept: usize = self
            .terms
            .live()
            .values()
            .map(|live| live.keeps.iter().map(Vec::len).sum::<usize>())
            .sum();
        kept + self.graves.waiting()
    }

    /// Calls the hook, if there is one. A panic in it ends here: whoever removes a version, a
    /// collector or a writer, has more to do, and others wait for that.
    pub fn announce_removal(&self, node: Node<K, V>, dead: u64, guard: &Guard<'_>) {
        let hook = self.hook.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(hook) = &*hook {
            let (key, born, expires_at) = (node.key(guard), node.born(), node.expires_at());
            // Nothing of ours is changed while the hook runs, so nothing is seen half done.
            let called = catch_unwind(AssertUnwindSafe(|| {
                node.with_value(|value| hook(&Removed { key, value, born, dead, expires_at }));
            }));
            // What a hook panics with may panic itself when it is dropped, and so on.
            if let Err(panic) = called
                && let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(panic)))
            {
                std::mem::forget(again);
            }
        }
    }
}
