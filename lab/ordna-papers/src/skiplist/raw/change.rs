//! The three changes of the list: insert, replace, remove. The top of [`super`] describes the
//! protocol.

#![expect(unsafe_code, reason = "changes free nodes that were not published, and retire others")]

use std::ptr::NonNull;

use super::list::List;
use super::node::{LINKED, MARK, Node, NodeRef, Word, is_marked, marked, unmarked};
use super::search::Place;
use super::shortcuts::LEVEL;
use crate::skiplist::item::Item;
use ordna_base::reclaim::Guard;
use ordna_base::sync::atomic::Ordering;
use ordna_base::sync::{check, fault, notice, point};

impl<I: Item> List<I> {
    /// Links a new node at `place`, at which the key is absent. Returns `false` without an effect
    /// if the list has changed there.
    pub fn insert(&self, place: &mut Place<I>, item: &I::New<'_>, guard: &Guard<'_>) -> bool {
        let node = self.prepare(place, item);
        point("skiplist.insert.before_link");
        if !place.before[0].relink(0, place.after[0], node.0.as_ptr()) {
            // SAFETY: the node was not published.
            unsafe { node.free() };
            return false;
        }
        self.link_upper(node, place, guard);
        true
    }

    /// Replaces `old`, the node found at `place`, by a new node. Returns `false` without an effect
    /// if `old` is already removed.
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
            if is_removed(next) {
                // SAFETY: the node was not published.
                unsafe { node.free() };
                return false;
            }
            node.tower().store(0, unmarked(next));
            // One step for removal and insertion: see the top of the module.
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
            // SAFETY: the inserter is done, this thread is the remover, and the node is unlinked.
            unsafe { self.retire(old, guard) };
        }
        self.link_upper(node, place, guard);
        true
    }

    /// Removes `old`, the node found at `place`. Exactly one of several concurrent calls returns
    /// `true`.
    pub fn remove(&self, place: &mut Place<I>, old: NodeRef<I>, guard: &Guard<'_>) -> bool {
        mark_upper(old);
        point("skiplist.remove.before_mark");
        let before = old.tower().tag(0, MARK);
        if was_removed(before) {
            return false;
        }
        point("skiplist.remove.after_mark");
        if inserter_is_done(before) {
            self.unlink_everywhere(place, old, guard);
            // SAFETY: the inserter is done, this thread is the only remover, and the node is
            // unlinked.
            unsafe { self.retire(old, guard) };
        }
        true
    }

    /// Unlinks a node, all of whose links are marked, where it was found. Returns `false` if it may
    /// still be linked somewhere, because the list has changed there. A search must then unlink it.
    ///
    /// Each predecessor's link was unmarked, led to the node, and was changed to skip it.
    /// Afterwards, no link that a later search follows leads to it: a link from a removed node is
    /// frozen, and a search passes such a node without descending through it.
    fn unlink_at(&self, place: &mut Place<I>, old: NodeRef<I>) -> bool {
        let mut all = true;
        for level in (0..old.height()).rev() {
            let next = unmarked(old.tower().load(level));
            all &= level < place.levels && place.before[level].relink(level, old.0.as_ptr(), next);
            place.after[level] = next;
        }
        all
    }

    /// Unlinks a node, all of whose links are marked, on every level.
    fn unlink_everywhere(&self, place: &mut Place<I>, old: NodeRef<I>, guard: &Guard<'_>) {
        if !check!("skiplist.remove.search", self.unlink_at(place, old)) {
            self.find_all(old.rank(), guard);
        }
    }

    /// Unlinks a node that was removed while its upper levels were linked.
    fn unlink_late(&self, node: NodeRef<I>, guard: &Guard<'_>) {
        if !fault!("skiplist.link_upper.search") {
            self.find_all(node.rank(), guard);
        }
    }

    /// Creates a node for `place` and sets its links. It is not published yet.
    fn prepare(&self, place: &Place<I>, item: &I::New<'_>) -> NodeRef<I> {
        let height = place.height;
        // Raised before the node can be found, so that searches that have to unlink it start high
        // enough.
        if height > self.height() {
            self.height.fetch_max(height, Ordering::Relaxed);
        }
        debug_assert!(height <= place.levels, "a node is put at levels that its search came by");
        let node = NodeRef::new(item, height);
        for level in 0..height {
            node.tower().store(level, place.after[level]);
        }
        node
    }

    /// Links a node that is in the list on its upper levels, and sets `LINKED`.
    ///
    /// If the node is removed concurrently, the remover may have unlinked it before an upper level
    /// was linked here. It then leaves the node to this thread, which searches again when no more
    /// links to the node are made.
    fn link_upper(&self, node: NodeRef<I>, place: &mut Place<I>, guard: &Guard<'_>) {
        let height = node.height();
        if height == 1 {
            return;
        }
        'levels: for level in 1..height {
            loop {
                let after = place.after[level];
                // A twin that the search still saw alive on this level (invariant 3). It is dead
                // now, and the next search unlinks it.
                if NonNull::new(after).map(NodeRef).is_some_and(|after| is_twin(after, node)) {
                    *place = self.find_all(node.rank(), guard);
                    if place.found != Some(node) {
                        break 'levels;
                    }
                    continue;
                }
                let planned = node.tower().load(level);
                // A marked link is frozen: the node is being removed, and needs no further levels.
                if is_marked(planned)
                    || (planned != after && !node.tower().relink(level, planned, after))
                {
                    break 'levels;
                }
                point("skiplist.link_upper.before_link");
                if place.before[level].relink(level, after, node.0.as_ptr()) {
                    break;
                }
                *place = self.find_all(node.rank(), guard);
                if place.found != Some(node) {
                    break 'levels;
                }
            }
        }
        if node.tower().tag(0, LINKED).has(MARK) {
            self.unlink_late(node, guard);
            // SAFETY: every link of the node is marked, no thread links it again, and the search
            // has unlinked it on every level. The remover did not see `LINKED`, so it has left the
            // node to this thread.
            unsafe { self.retire(node, guard) };
        }
        if height > LEVEL {
            self.tall_changed(guard);
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

/// Returns whether link 0 of a node shows that the node was removed.
fn is_removed<I: Item>(link: *mut Node<I>) -> bool {
    notice!("skiplist.replace.ignores_removal", is_marked(link))
}

/// Returns whether another remover had already marked link 0. Exactly one of several concurrent
/// removers gets `false`.
fn was_removed(before: Word) -> bool {
    notice!("skiplist.remove.every_racer_wins", before.has(MARK))
}

/// Returns whether the inserter had linked the upper levels before link 0 was marked.
fn inserter_is_done(before: Word) -> bool {
    check!("skiplist.remove.before_linked", before.has(LINKED))
}

/// Returns whether `after` has the node's rank. If so, it is a dead node that the search saw alive
/// (invariant 3).
fn is_twin<I: Item>(after: NodeRef<I>, node: NodeRef<I>) -> bool {
    notice!("skiplist.link_upper.twin", I::compare(after.rank(), node.rank()).is_eq())
}
