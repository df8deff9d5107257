//! Searches for the live node of a key, and for the place to which the key belongs.
//!
//! Both advance one node at a time, so that those of a group can be interleaved: each prefetches
//! its next node before the others continue, so that their cache misses overlap.

use std::cmp::Ordering as Order;
use std::ptr::{self, NonNull};

use super::list::List;
use super::node::{MAX_HEIGHT, Node, NodeRef, Tower, is_marked, prefetch, random_height, unmarked};
use super::shortcuts::{FAR, LEVEL, Start};
use crate::skiplist::item::Item;
use ordna_base::reclaim::Guard;
use ordna_base::sync::{fault, point};

/// Number of interleaved searches of a group.
const GROUP: usize = 16;

/// Number of lower levels that a search prefetches.
const FETCHED_LEVELS: usize = 3;

/// Prefetches the nodes that a search may access next: the next node, and those some levels below.
/// All of them are known before the key of the current node, which is being loaded, has been
/// compared. If the search descends, it finds them in the cache, where otherwise there would be one
/// miss after the other.
#[inline]
fn prefetch_ways<I: Item>(behind: *mut Node<I>, before: Tower<I>, level: usize) {
    prefetch(behind);
    for down in 1..=FETCHED_LEVELS {
        if level >= down {
            prefetch(before.load(level - down));
        }
    }
}

/// The place to which a key belongs: its predecessor and successor on the lowest levels, or on all
/// of them.
pub struct Place<I: Item> {
    /// Number of known levels.
    pub(super) levels: usize,
    /// Height of the node to be inserted here, which is not above the known levels.
    pub(super) height: usize,
    pub(super) before: [Tower<I>; MAX_HEIGHT],
    pub(super) after: [*mut Node<I>; MAX_HEIGHT],
    /// The last node before the place, which was live when it was passed. `None` means the head.
    pub last: Option<NodeRef<I>>,
    /// The live node with this rank, if there is one.
    pub found: Option<NodeRef<I>>,
}

impl<I: Item> Place<I> {
    /// Creates a place before the search, when nothing is known.
    fn new(list: &List<I>) -> Self {
        Self {
            levels: 0,
            height: random_height(list.options.fanout),
            before: [list.head(); MAX_HEIGHT],
            after: [ptr::null_mut(); MAX_HEIGHT],
            last: None,
            found: None,
        }
    }

    /// Returns whether the two nodes around the place are still neighbours and the first one is
    /// live.
    pub fn is_current(&self) -> bool {
        self.before[0].load(0) == self.after[0]
    }
}

impl<I: Item> List<I> {
    /// Returns the place to which `rank` belongs. Unlinks every marked node on the path. O(log n).
    /// A small share of the searches begins at the head, so that a tall node can be inserted.
    #[inline]
    pub fn find(&self, rank: I::Rank<'_>, guard: &Guard<'_>) -> Place<I> {
        let mut place = Place::new(self);
        let is_low = place.height <= LEVEL + 1;
        let start = if is_low { self.shortcuts.start(rank, guard) } else { None };
        self.follow(Descent::new(self, rank, start), &mut place);
        place
    }

    /// Works like [`find`](Self::find), on all levels.
    pub(super) fn find_all(&self, rank: I::Rank<'_>, guard: &Guard<'_>) -> Place<I> {
        let mut place = Place::new(self);
        self.follow(Descent::new(self, rank, self.start_at_head(rank, guard)), &mut place);
        place
    }

    /// Returns the start of a search on all levels, which is the head.
    fn start_at_head(&self, rank: I::Rank<'_>, guard: &Guard<'_>) -> Option<Start<I>> {
        if fault!("skiplist.find_all.begins_low") {
            self.shortcuts.start(rank, guard)
        } else {
            None
        }
    }

    #[inline]
    fn follow(&self, mut descent: Descent<'_, I>, place: &mut Place<I>) {
        loop {
            match descent.step(self, place) {
                Way::On => {}
                Way::Over => return,
                Way::Restart => descent = Descent::new(self, descent.rank, None),
            }
        }
    }

    /// Visits the place of each rank, in order. The searches of a group overlap, and end before its
    /// first visit, so places may have changed since. Not for inserts, because all new nodes would
    /// be low.
    pub fn find_many<'k>(
        &self,
        mut ranks: impl Iterator<Item = I::Rank<'k>>,
        guard: &Guard<'_>,
        mut visit: impl FnMut(&mut Place<I>),
    ) {
        let mut group: Vec<I::Rank<'k>> = Vec::with_capacity(GROUP);
        let mut lanes: Vec<(Descent<'k, I>, Place<I>)> = Vec::with_capacity(GROUP);
        loop {
            group.clear();
            group.extend(ranks.by_ref().take(GROUP));
            if group.is_empty() {
                return;
            }
            lanes.clear();
            self.shortcuts.starts::<GROUP>(&group, guard, |at, start| {
                lanes.push((Descent::new(self, group[at], start), Place::new(self)));
            });
            let mut running: [usize; GROUP] = std::array::from_fn(|lane| lane);
            let mut left = lanes.len();
            while left > 0 {
                let mut lane = 0;
                while lane < left {
                    let (descent, place) = &mut lanes[running[lane]];
                    match descent.step(self, place) {
                        Way::On => prefetch(descent.at),
                        Way::Restart => *descent = Descent::new(self, descent.rank, None),
                        Way::Over => {
                            left -= 1;
                            running.swap(lane, left);
                            continue;
                        }
                    }
                    lane += 1;
                }
            }
            lanes.iter_mut().for_each(|(_, place)| visit(place));
        }
    }

    /// Returns the live node with `key`. Writes nothing, and restarts at most once, at the head.
    /// O(log n).
    ///
    /// Linearizes at the load that saw a link of the node unmarked. If there is no such node,
    /// linearizes at the moment at which the last link that was followed was current.
    pub fn get(&self, rank: I::Rank<'_>, guard: &Guard<'_>) -> Option<NodeRef<I>> {
        let mut search = ListSearch::new(self, self.shortcuts.start(rank, guard));
        loop {
            match search.step(rank) {
                SearchStep::On => {}
                SearchStep::Restart => search = ListSearch::new(self, None),
                SearchStep::Found(node) => return Some(node),
                SearchStep::Absent => return None,
            }
        }
    }

    /// Calls `each` with the live node of every key. The searches of a group overlap.
    pub fn get_many<'k>(
        &self,
        mut ranks: impl ExactSizeIterator<Item = I::Rank<'k>>,
        guard: &Guard<'_>,
        mut each: impl FnMut(usize, Option<NodeRef<I>>),
    ) {
        struct Lane<'k, I: Item> {
            rank: I::Rank<'k>,
            search: ListSearch<I>,
            end: Option<SearchStep<I>>,
        }
        let mut group: Vec<I::Rank<'k>> = Vec::with_capacity(GROUP);
        let mut lanes: Vec<Lane<'_, I>> = Vec::with_capacity(GROUP);
        for from in (0..ranks.len()).step_by(GROUP) {
            group.clear();
            group.extend(ranks.by_ref().take(GROUP));
            lanes.clear();
            self.shortcuts.starts::<GROUP>(&group, guard, |at, start| {
                lanes.push(Lane {
                    rank: group[at],
                    search: ListSearch::new(self, start),
                    end: None,
                });
            });
            let mut running = lanes.len();
            while running > 0 {
                for lane in lanes.iter_mut().filter(|lane| lane.end.is_none()) {
                    match lane.search.step(lane.rank) {
                        SearchStep::On => prefetch(lane.search.at),
                        SearchStep::Restart => lane.search = ListSearch::new(self, None),
                        end => {
                            lane.end = Some(end);
                            running -= 1;
                        }
                    }
                }
            }
            for (at, lane) in lanes.iter().enumerate() {
                let found =
                    if let Some(SearchStep::Found(node)) = lane.end { Some(node) } else { None };
                each(from + at, found);
            }
        }
    }
}

/// A search for a place.
struct Descent<'k, I: Item> {
    rank: I::Rank<'k>,
    /// Number of levels that the search has passed at its end.
    levels: usize,
    before: Tower<I>,
    level: usize,
    at: *mut Node<I>,
    left: usize,
}

impl<'k, I: Item> Descent<'k, I> {
    fn new(list: &List<I>, rank: I::Rank<'k>, start: Option<Start<I>>) -> Self {
        let levels = if start.is_some() { LEVEL + 1 } else { MAX_HEIGHT };
        // Links of the head are never marked.
        let ListSearch { before, level, at, left } = ListSearch::new(list, start);
        Self { rank, levels, before, level, at, left }
    }

    /// Examines one node.
    #[inline(always)]
    fn step(&mut self, list: &List<I>, place: &mut Place<I>) -> Way {
        let Self { level, before, at, .. } = *self;
        if let Some(node) = NonNull::new(at).map(NodeRef) {
            let next = node.tower().load(level);
            prefetch_ways(next, before, level);
            if is_marked(next) {
                point("skiplist.find.before_unlink");
                if !before.relink(level, at, unmarked(next)) {
                    return Way::Restart;
                }
                self.at = unmarked(next);
                return Way::On;
            }
            match I::compare(node.rank(), self.rank) {
                Order::Less => {
                    self.before = node.tower();
                    self.at = next;
                    if level == LEVEL {
                        self.left -= 1;
                        return if self.left == 0 { Way::Restart } else { Way::On };
                    }
                    return Way::On;
                }
                Order::Equal if level == 0 => place.found = Some(node),
                Order::Equal | Order::Greater => {}
            }
        }
        place.before[level] = before;
        place.after[level] = at;
        point("skiplist.find.below");
        if level == 0 {
            place.last = (before != list.head()).then(|| before.node());
            place.levels = self.levels;
            place.height = place.height.min(self.levels);
            return Way::Over;
        }
        self.level = level - 1;
        self.at = before.load(level - 1);
        // If it is marked, `before` was removed since it was seen unmarked on the level above.
        if is_marked(self.at) { Way::Restart } else { Way::On }
    }
}

/// The way in which a descent continues.
enum Way {
    On,
    Over,
    /// Restart at the head: the list has changed on the path, or the rank is too [`FAR`] from the
    /// start.
    Restart,
}

/// A lookup, which advances one step at a time so that several can be interleaved.
struct ListSearch<I: Item> {
    before: Tower<I>,
    level: usize,
    at: *mut Node<I>,
    /// Number of nodes on [`LEVEL`] after which the lookup restarts at the head.
    left: usize,
}

enum SearchStep<I: Item> {
    On,
    /// Restart at the head: the rank is too [`FAR`] from the start.
    Restart,
    Found(NodeRef<I>),
    Absent,
}

impl<I: Item> ListSearch<I> {
    fn new(list: &List<I>, start: Option<Start<I>>) -> Self {
        match start {
            Some(start) => {
                Self { before: start.before.tower(), level: LEVEL, at: start.at, left: FAR }
            }
            None => {
                let (before, level) = (list.head(), list.height() - 1);
                Self { before, level, at: before.load(level), left: usize::MAX }
            }
        }
    }

    /// Examines one node.
    #[inline]
    fn step(&mut self, rank: I::Rank<'_>) -> SearchStep<I> {
        if let Some(node) = NonNull::new(self.at).map(NodeRef) {
            let next = node.tower().load(self.level);
            prefetch_ways(next, self.before, self.level);
            if is_marked(next) {
                self.at = unmarked(next);
                return SearchStep::On;
            }
            match I::compare(node.rank(), rank) {
                Order::Less => {
                    self.before = node.tower();
                    self.at = next;
                    if self.level == LEVEL {
                        self.left -= 1;
                        return if self.left == 0 { SearchStep::Restart } else { SearchStep::On };
                    }
                    return SearchStep::On;
                }
                // The link was seen unmarked, so the node was in the list at that moment, whatever
                // the level (invariant 2), and its value never changes.
                Order::Equal => return SearchStep::Found(node),
                Order::Greater => {}
            }
        }
        if self.level == 0 {
            return SearchStep::Absent;
        }
        self.level -= 1;
        self.at = unmarked(self.before.load(self.level));
        SearchStep::On
    }
}
