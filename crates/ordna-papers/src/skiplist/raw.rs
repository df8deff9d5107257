//! Nodes, links and the protocol of the lock-free skip list.
//!
//! # Contract
//! Any number of threads call [`List::find`], [`List::locate`] and the three changes (insert,
//! replace, remove) at once, each under a guard of the list's collector. Everything but the links
//! of a node is written before the node is published and never again.
//!
//! # Layout
//! One allocation: the links, the highest level first, then the cells of the item, then its bytes.
//! A pointer to a node points between link 0 and the cells, so neither needs the height. Links
//! carry three tags: `MARK`, `TOP` on a node's highest link (which is how its height is known), and
//! `LINKED` on link 0. So a node is its links and its item: 24 bytes for a `u64` pair at level 0.
//!
//! # Invariants
//! 1. Level 0 decides. A node is in the list from the CAS that links it at level 0 until the CAS
//!    that marks its level-0 link. At most one unmarked node per key exists at level 0.
//! 2. A link is marked (low bit) once and then frozen. A node's upper links are all marked before
//!    its level-0 link is: a node whose link at some level was seen unmarked was in the list then.
//! 3. Levels are sorted. New nodes are linked behind an unmarked predecessor with a smaller key
//!    and in front of the first unmarked node with a key not smaller, marked ones between them
//!    having been unlinked. So no live node of a key stands before a dead one of the same key, where
//!    the search that is to unlink the dead one would end too early. A search may see a node above
//!    before it dies and below afterwards: hence the check for a twin in `link_upper`.
//! 4. A node is retired once, after it is unreachable: the later of its inserter (done linking the
//!    upper levels: `LINKED`) and its remover (all links marked: `MARK` on link 0) unlinks it at
//!    every level and then retires it. Both tags are set by exchanges of the same word, link 0, so
//!    exactly one of the two sees the other's.
//!
//! # Replacing
//! A value is replaced by one CAS on the old node's level-0 link, from the successor, unmarked, to
//! the new node, *marked*. That removes the old node and puts the new one in its place in the same
//! step: a reader that stands on the old node, or comes to it, finds the link marked and goes on to
//! the new one. Against a concurrent insert behind the old node, or a removal of it, the CAS on the
//! same word decides.
//!
//! # Where searches begin
//! At the head, or at a node that a table of [`shortcuts`] names. A place found from there is known at the
//! lowest levels only. So the height of a node is drawn before its place is looked for; and who removes a
//! tall node looks for it from the head ([`List::find_all`]).
//!
//! # Progress
//! Lock-free. Reads write nothing, and begin again once at most, at the head. The links are Harris' and the multi-level
//! protocol Fraser's and Herlihy and Shavit's, which the Nitro paper (§2) names. Towers grow with
//! p = 1/2 and not the paper's 1/4: measured with 10 M random `u64` (and nodes eight bytes larger
//! than today's), p = 1/4 saves 6 bytes a key and makes lookups a third slower (a level then has 2.5
//! nodes to look at instead of 1.5, each of them a cache miss on the lowest levels).

#![expect(unsafe_code, reason = "nodes of variable height in one allocation")]

mod build;
mod node;
mod search;
mod shortcuts;
mod walk;

use std::cell::Cell;
use std::marker::PhantomData;
use std::ptr::{self, NonNull};

pub use self::build::Segment;
use self::node::{LINKED, Link, MARK, Tower, is_marked, marked, unmarked};
pub use self::node::{Node, NodeRef};
pub use self::search::Place;
use self::search::prefetch;
use self::shortcuts::{LEVEL, Shortcuts};
use super::item::Item;
use ordna_base::Violation;
use ordna_base::reclaim::Guard;
use ordna_base::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use ordna_base::sync::{fault, point};

/// Highest tower: levels for 2^24 entries, beyond which searches grow slowly.
pub const MAX_HEIGHT: usize = 24;

/// The steps in which a walk goes on: how many lanes, and that their starts have towers above which
/// level, so that they are about 2^level nodes apart. Short walks are over before many lanes run; in
/// long ones the misses of sixteen lanes overlap.
pub const LANES: [(usize, usize); 4] = [(1, 3), (1, 5), (4, 5), (16, 5)];

/// The list itself. Knows nothing of collectors: each call takes a guard of the one that the list
/// is used with.
pub struct List<I: Item> {
    head: Box<[Link<I>; MAX_HEIGHT]>,
    /// No node is higher. Raised before such a node is published.
    height: AtomicUsize,
    shortcuts: Shortcuts<I>,
    kinds: PhantomData<I>,
}

// SAFETY: nodes hold plain data and atomics of Send + Sync kinds.
unsafe impl<I: Item> Send for List<I> {}
// SAFETY: as above; shared access follows the protocol at the top of this file.
unsafe impl<I: Item> Sync for List<I> {}

impl<I: Item> List<I> {
    pub fn new() -> Self {
        Self {
            head: Box::new(std::array::from_fn(|_| AtomicPtr::new(ptr::null_mut()))),
            height: AtomicUsize::new(1),
            shortcuts: Shortcuts::new(),
            kinds: PhantomData,
        }
    }

    fn head(&self) -> Tower<I> {
        // SAFETY: the pointer is to the array's end, and of its provenance.
        Tower(unsafe { NonNull::from(&*self.head).cast::<Link<I>>().add(MAX_HEIGHT) })
    }

    fn height(&self) -> usize {
        // Whoever reaches a node through its links sees the height that its inserter published
        // before it (the CAS that linked it releases).
        self.height.load(Ordering::Relaxed)
    }

    /// Links a new node at `place`, which says that the key is absent. `false` if the list has
    /// changed there: nothing is done.
    pub fn insert(&self, place: &mut Place<I>, item: &I::New<'_>, guard: &Guard<'_>) -> bool {
        let node = self.prepare(place, item);
        point("skiplist.insert.before_link");
        if !place.before[0].swing(0, place.after[0], node.0.as_ptr()) {
            // SAFETY: the node was not published.
            unsafe { node.free() };
            return false;
        }
        self.link_upper(node, place, guard);
        true
    }

    /// Bytes beside the linked nodes: of the shortcuts, and of removed nodes that they hold back.
    pub fn overhead(&self, guard: &Guard<'_>) -> (usize, usize) {
        self.shortcuts.bytes(guard)
    }

    /// Puts a new node in the place of `old`, the node found at `place`. `false` if `old` is
    /// removed already: nothing is done.
    pub fn replace(
        &self,
        place: &mut Place<I>,
        old: NodeRef<I>,
        item: &I::New<'_>,
        guard: &Guard<'_>,
    ) -> bool {
        let node = self.prepare(place, item);
        mark_upper(old);
        point("skiplist.replace.before_swap");
        let replaced = loop {
            let next = old.tower().load(0);
            if is_marked(next) && !fault!("skiplist.replace.ignores_removal") {
                // SAFETY: the node was not published.
                unsafe { node.free() };
                return false;
            }
            node.tower().store(0, unmarked(next));
            // One step for removal and insertion: see the file's top.
            if let Some(word) = old.tower().exchange(0, next, marked(node.0.as_ptr())) {
                break word;
            }
        };
        point("skiplist.replace.after_swap");
        if self.unlink_at(place, old) {
            place.found = Some(node);
        } else {
            *place = self.find_all(old.rank(), guard);
        }
        if replaced.has(LINKED) {
            // SAFETY: the inserter is done, we are the remover, and the node is unlinked.
            unsafe { self.retire(old, guard) };
        }
        self.link_upper(node, place, guard);
        true
    }

    /// Removes `old`, the node found at `place`. `false` if another thread did: exactly one of all
    /// that race gets `true`.
    pub fn remove(&self, place: &mut Place<I>, old: NodeRef<I>, guard: &Guard<'_>) -> bool {
        mark_upper(old);
        point("skiplist.remove.before_mark");
        let before = old.tower().tag(0, MARK);
        if before.has(MARK) && !fault!("skiplist.remove.every_racer_wins") {
            return false;
        }
        point("skiplist.remove.after_mark");
        if before.has(LINKED) || fault!("skiplist.remove.before_linked") {
            if !self.unlink_at(place, old) && !fault!("skiplist.remove.search") {
                self.find_all(old.rank(), guard);
            }
            // SAFETY: the inserter is done, we are the one remover, and the node is unlinked.
            unsafe { self.retire(old, guard) };
        }
        true
    }

    /// Unlinks a node, all of whose links are marked, where it was found. `false` if it may still be
    /// linked somewhere: the list has changed there, and a search must do it.
    ///
    /// If each predecessor's link led, unmarked, to the node, and was swung past it, no link that a
    /// later search can come by leads to it: a link to it from a removed node is frozen, and that
    /// node was unlinked, or is met and passed by without going down through it.
    fn unlink_at(&self, place: &mut Place<I>, old: NodeRef<I>) -> bool {
        let mut all = true;
        for level in (0..old.height()).rev() {
            let next = unmarked(old.tower().load(level));
            all &= level < place.levels && place.before[level].swing(level, old.0.as_ptr(), next);
            place.after[level] = next;
        }
        all
    }

    /// A node for `place`, its links set, not published.
    fn prepare(&self, place: &Place<I>, item: &I::New<'_>) -> NodeRef<I> {
        let height = place.height;
        // Before the node can be found: searches that have to unlink it start high enough.
        if height > self.height() {
            self.height.fetch_max(height, Ordering::Relaxed);
        }
        let node = NodeRef::new(item, height);
        for level in 0..height {
            node.tower().store(level, place.after[level]);
        }
        node
    }

    /// Links a node that is in the list at its upper levels, and says so by `LINKED`.
    ///
    /// If the node is removed meanwhile, the remover may have unlinked it before an upper level was
    /// linked here: it has left the node to us, and we search once no more links to it are made.
    fn link_upper(&self, node: NodeRef<I>, place: &mut Place<I>, guard: &Guard<'_>) {
        let height = node.height();
        if height == 1 {
            return;
        }
        'levels: for level in 1..height {
            loop {
                let after = place.after[level];
                // A twin that the search still saw alive up here (invariant 3): it is dead by now,
                // and the next search unlinks it.
                let is_twin = |after| I::compare(NodeRef::rank(after), node.rank()).is_eq();
                if NonNull::new(after).map(NodeRef).as_ref().is_some_and(is_twin)
                    && !fault!("skiplist.link_upper.twin")
                {
                    *place = self.find_all(node.rank(), guard);
                    if place.found != Some(node) {
                        break 'levels;
                    }
                    continue;
                }
                let planned = node.tower().load(level);
                // A marked link is frozen: the node is being removed, and needs no more levels.
                if is_marked(planned)
                    || (planned != after && !node.tower().swing(level, planned, after))
                {
                    break 'levels;
                }
                point("skiplist.link_upper.before_link");
                if place.before[level].swing(level, after, node.0.as_ptr()) {
                    break;
                }
                *place = self.find_all(node.rank(), guard);
                if place.found != Some(node) {
                    break 'levels;
                }
            }
        }
        if node.tower().tag(0, LINKED).has(MARK) {
            if !fault!("skiplist.link_upper.search") {
                self.find_all(node.rank(), guard);
            }
            // SAFETY: every link of the node is marked, nobody will link it again, and the search
            // has unlinked it at every level; the remover saw it not `LINKED` and left it to us.
            unsafe { self.retire(node, guard) };
        }
        if height > LEVEL {
            self.tall_changed(guard);
        }
    }

    /// Audits order and links; returns entries and nodes. Nobody else may use the list meanwhile.
    pub fn validate(&self) -> Result<(usize, usize), Violation> {
        let broken = |what: String| Err(Violation(format!("skip list: {what}")));
        let mut below: std::collections::HashSet<usize> = std::collections::HashSet::new();
        let mut counts = (0, 0);
        for level in 0..MAX_HEIGHT {
            let mut here = std::collections::HashSet::new();
            let mut last: Option<NodeRef<I>> = None;
            let mut at = self.head().load(level);
            while let Some(node) = NonNull::new(at).map(NodeRef) {
                if is_marked(node.tower().load(level)) {
                    return broken(format!("a removed node is linked at level {level}"));
                }
                if last.is_some_and(|last| I::compare(last.rank(), node.rank()).is_ge()) {
                    return broken(format!("level {level} is out of order at {:?}", node.rank()));
                }
                if node.height() <= level {
                    return broken(format!("a node of height {} at level {level}", node.height()));
                }
                if level > 0 && !below.contains(&node.0.as_ptr().addr()) {
                    return broken(format!("a node of level {level} is not at the level below"));
                }
                if !node.tower().has(0, LINKED) {
                    return broken("a live node's inserter has not ended".to_owned());
                }
                here.insert(node.0.as_ptr().addr());
                last = Some(node);
                at = unmarked(node.tower().load(level));
            }
            if level == 0 {
                counts = (here.len(), here.len());
            }
            if level == LEVEL {
                let is_linked = |node: NodeRef<I>| here.contains(&node.0.as_ptr().addr());
                self.shortcuts.validate(is_linked)?;
            }
            below = here;
        }
        Ok(counts)
    }
}

impl<I: Item> Drop for List<I> {
    fn drop(&mut self) {
        let mut at = unmarked(self.head().load(0));
        while let Some(node) = NonNull::new(at).map(NodeRef) {
            at = unmarked(node.tower().load(0));
            // A removed node that is still linked was not retired: no call is under way, so the
            // later of its inserter and remover, who unlinks before it retires, never existed.
            // SAFETY: `&mut self`: nobody else can reach the nodes, each of which is met once.
            unsafe { node.free() };
        }
    }
}

/// Marks every link above level 0, from the top.
fn mark_upper<I: Item>(node: NodeRef<I>) {
    if fault!("skiplist.mark_upper") {
        return;
    }
    for level in (1..node.height()).rev() {
        node.tower().tag(level, MARK);
    }
}

/// 1 with probability 1/2, 2 with 1/4, and so on.
fn random_height() -> usize {
    thread_local! {
        static STATE: Cell<u64> = const { Cell::new(0) };
    }
    let random = STATE.with(|state| {
        let mut x = state.get();
        if x == 0 {
            // The address of the thread's own cell differs between threads.
            x = (ptr::from_ref(state).addr() as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        }
        // Marsaglia's xorshift64.
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        state.set(x);
        x.wrapping_mul(0x2545_F491_4F6C_DD1D)
    });
    (random.leading_zeros() as usize + 1).min(MAX_HEIGHT)
}
