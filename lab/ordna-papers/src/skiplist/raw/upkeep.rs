//! The maintenance of shortcuts. The top of [`super::shortcuts`] describes the protocol.

#![expect(unsafe_code, reason = "nodes and tables are retired")]

use std::ptr::{self, NonNull};

use super::list::List;
use super::node::{Link, NodeRef, is_marked, prefetch, unmarked};
use super::shortcuts::{BLOCK, Dead, LEVEL, Shortcut, ShortcutTable, Shortcuts, Upkeep, pop};
use crate::skiplist::item::Item;
use ordna_base::reclaim::Guard;
use ordna_base::sync::atomic::Ordering;
use ordna_base::sync::{fault, notice, point};

/// Number of changes of tall nodes after which even the smallest table is rebuilt.
const FEW: usize = 8;

/// Size in bytes above which a table is freed without waiting for other garbage.
const LARGE: usize = 64 << 10;

/// Number of nodes that are collected or retired with each recorded change, so that the table
/// overtakes the changes.
const PIECE: usize = 32;

impl<I: Item> ShortcutTable<I> {
    /// Collects the next few nodes on [`LEVEL`] that are not being removed. Returns `false` at the
    /// end.
    fn collect(&mut self, list: &List<I>, guard: &Guard<'_>) -> bool {
        let last = self.entries.last().map(|last| last.node);
        // The last node is in memory, removed or not, because it was collected after the stack was
        // taken.
        let mut at = match last {
            None => list.head().load(LEVEL),
            Some(last) => match last.tower().load(LEVEL) {
                next if !is_marked(next) => next,
                _ => list.link_behind(last.rank(), LEVEL, guard),
            },
        };
        for _ in 0..PIECE {
            let Some(node) = NonNull::new(at).map(NodeRef) else { return false };
            let next = node.tower().load(LEVEL);
            at = unmarked(next);
            prefetch(at);
            ordna_base::simd::prefetch(at.cast::<Link<I>>().wrapping_sub(LEVEL + 1));
            let is_behind = |last: NodeRef<I>| I::compare(last.rank(), node.rank()).is_lt();
            if !is_marked(next) && last.is_none_or(is_behind) {
                let head = I::head(node.rank());
                if self.entries.len().is_multiple_of(BLOCK) {
                    self.firsts.push(head);
                }
                self.entries.push(Shortcut { head, node });
            }
        }
        true
    }
}

impl<I: Item> List<I> {
    /// Retires a node that is removed and unlinked, or leaves it to the thread that builds the next
    /// table.
    ///
    /// # Safety
    /// As for [`Guard::retire`].
    pub(super) unsafe fn retire(&self, node: NodeRef<I>, guard: &Guard<'_>) {
        if self.options.shortcuts && may_stand_in_table(node) {
            self.shortcuts.hold(node);
            self.tall_changed(guard);
        } else {
            // SAFETY: no new search reaches the node, and no table contains it.
            unsafe { guard.retire(node.0.as_ptr()) };
        }
    }

    /// Records that a node above [`LEVEL`] was added or removed. Builds a piece of the next table
    /// if it is due.
    pub(super) fn tall_changed(&self, guard: &Guard<'_>) {
        if !self.options.shortcuts {
            return;
        }
        self.shortcuts.changes.fetch_add(1, Ordering::Relaxed);
        // A thread that holds the lock is already building a piece.
        if let Ok(mut upkeep) = self.shortcuts.upkeep.try_lock() {
            self.keep_up(&mut upkeep, guard);
        }
    }

    /// Builds a new table, due or not, and retires the nodes that the former ones kept. O(n / 16).
    /// Waits for a thread that is building a piece.
    pub fn renew_shortcuts(&self, guard: &Guard<'_>) {
        if !self.options.shortcuts {
            return;
        }
        let Ok(mut upkeep) = self.shortcuts.upkeep.lock() else { return };
        let finish = |upkeep: &mut Upkeep<I>| {
            while upkeep.next.is_some() || !upkeep.taken.is_null() {
                self.keep_up(upkeep, guard);
            }
        };
        finish(&mut upkeep);
        self.shortcuts.changes.store(usize::MAX / 2, Ordering::Relaxed);
        self.keep_up(&mut upkeep, guard);
        finish(&mut upkeep);
    }

    /// Does a piece of the maintenance: begins a table, continues it, or retires the nodes that
    /// were taken.
    fn keep_up(&self, upkeep: &mut Upkeep<I>, guard: &Guard<'_>) {
        let shortcuts = &self.shortcuts;
        let length = shortcuts.table(guard).map_or(0, |table| table.entries.len());
        let is_due = shortcuts.changes.load(Ordering::Relaxed) >= FEW + length / 4;
        if is_due && upkeep.next.is_none() && upkeep.taken.is_null() {
            shortcuts.changes.store(0, Ordering::Relaxed);
            upkeep.taken = taken_first(shortcuts);
            upkeep.next = Some(ShortcutTable::with_room_for(length + length / 2));
        }
        if let Some(next) = &mut upkeep.next {
            if next.collect(self, guard) {
                return;
            }
            point("skiplist.shortcuts.collected");
            if fault!("skiplist.shortcuts.taken_late") {
                upkeep.taken = shortcuts.take();
            }
            let Some(mut next) = upkeep.next.take() else { return };
            next.firsts.shrink_to_fit();
            next.entries.shrink_to_fit();
            // Release: a thread that loads the table sees its entries.
            let old = shortcuts.table.swap(Box::into_raw(Box::new(next)), Ordering::AcqRel);
            // SAFETY: a thread that pins from now on finds the new table, and the guard keeps the
            // old one alive.
            unsafe {
                match old.as_ref().map(ShortcutTable::bytes) {
                    Some(LARGE..) => guard.retire_at_once(old),
                    Some(_) => guard.retire(old),
                    None => {}
                }
            }
        }
        for _ in 0..PIECE {
            let Some(node) = pop(&mut upkeep.taken) else { return };
            shortcuts.held.fetch_sub(node.size(), Ordering::Relaxed);
            // SAFETY: the published table does not contain the node (invariant 1), and a search
            // that begins from now on cannot reach it in another way.
            unsafe { guard.retire(node.0.as_ptr()) };
        }
    }
}

/// Returns whether a table may contain the node, which is removed. If so, it must not be retired
/// yet.
fn may_stand_in_table<I: Item>(node: NodeRef<I>) -> bool {
    notice!("skiplist.shortcuts.retired_at_once", node.height() > LEVEL)
}

/// Takes the stack before the first node of a table is collected (invariant 1).
fn taken_first<I: Item>(shortcuts: &Shortcuts<I>) -> *mut Dead<I> {
    if fault!("skiplist.shortcuts.taken_late") { ptr::null_mut() } else { shortcuts.take() }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::cell::Cell;
    use std::cmp::Ordering as Order;

    use super::*;
    use crate::skiplist::item::Pair;
    use ordna_base::Key;
    use ordna_base::reclaim::Collector;

    fn insert(list: &List<Pair<u64, u64>>, key: u64, guard: &Guard<'_>) -> bool {
        let mut place = list.find(&key, guard);
        list.insert(&mut place, &(&key, &key), guard)
    }

    /// Holds whatever the height of the node to be inserted.
    #[test]
    fn a_place_is_as_it_was_found_or_refused() {
        let collector = Collector::new();
        let list = List::new();
        let guard = collector.pin();
        assert!((0..2_000).all(|key| insert(&list, key * 8, &guard)));
        let mut tall = 0;
        for key in (0..2_000).map(|n| n * 8 + 4) {
            let mut place = list.find(&key, &guard);
            tall += usize::from(place.levels == LEVEL + 1);
            assert!(insert(&list, key + 1, &guard));
            assert!(
                !list.insert(&mut place, &(&key, &key), &guard),
                "a key came in front of {key}"
            );
            let mut place = list.find(&key, &guard);
            assert!(insert(&list, key, &guard));
            assert!(!list.insert(&mut place, &(&key, &key), &guard), "{key} came");
        }
        assert!(tall > 1_000, "searches begin at shortcuts");
        drop(guard);
        assert_eq!(list.check_invariants().map(|(entries, _)| entries), Ok(6_000));
    }

    /// A place of a group is known only on the lowest levels, whatever height was drawn for it.
    #[test]
    fn a_node_is_put_where_a_group_of_searches_found_its_place() {
        let collector = Collector::new();
        let list = List::new();
        let guard = collector.pin();
        assert!((0..2_000).all(|key| insert(&list, key * 8, &guard)));
        let keys: Vec<u64> = (0..2_000).map(|n| n * 8 + 4).collect();
        let mut put = keys.iter();
        list.find_many(keys.iter(), &guard, |place| {
            let key = put.next().expect("as many as were asked for");
            assert!(place.height <= place.levels, "{} levels of a place", place.levels);
            assert!(list.insert(place, &(key, key), &guard));
        });
        drop(guard);
        assert_eq!(list.check_invariants().map(|(entries, _)| entries), Ok(4_000));
    }

    /// A removed node that is still linked is in no table that is built concurrently.
    #[cfg(debug_assertions)]
    #[test]
    fn no_table_has_a_node_that_is_being_removed() {
        let collector = Collector::new();
        let list = List::new();
        let guard = collector.pin();
        assert!((0..2_000).all(|key| insert(&list, key, &guard)));
        list.renew_shortcuts(&guard);
        let key = {
            let table = list.shortcuts.table(&guard).expect("there are thousands");
            *table.entries[table.entries.len() / 2].node.rank()
        };
        let remove = || {
            let guard = collector.pin();
            let mut place = list.find(&key, &guard);
            place.found.is_some_and(|node| list.remove(&mut place, node, &guard))
        };
        let held = ordna_base::sync::schedule::held::<bool, _>;
        let removed = held("skiplist.remove.after_mark", remove).meanwhile(|| {
            list.renew_shortcuts(&guard);
            let table = list.shortcuts.table(&guard).expect("it was made anew");
            assert!(table.entries.iter().all(|entry| entry.node.is_live()));
        });
        assert!(removed);
        drop(guard);
        assert_eq!(list.check_invariants().map(|(entries, _)| entries), Ok(1_999));
    }

    /// The table has about one of sixteen nodes, and follows the list as it grows and shrinks.
    #[test]
    fn tables_follow_the_list() {
        let collector = Collector::new();
        let list = List::new();
        let entries = || {
            let guard = collector.pin();
            list.shortcuts.table(&guard).map_or(0, |table| table.entries.len())
        };
        let keys = 40_000_u64;
        for key in 0..keys {
            let guard = collector.pin();
            assert!(insert(&list, key.reverse_bits(), &guard));
        }
        // A quarter of its nodes may have been added since its construction began, and some during
        // it.
        assert!((1_600..3_000).contains(&entries()), "{}", entries());
        for key in 0..keys - 200 {
            let guard = collector.pin();
            let mut place = list.find(&key.reverse_bits(), &guard);
            let node = place.found.expect("the key is there");
            assert!(list.remove(&mut place, node, &guard));
        }
        assert!(entries() < 100, "{}", entries());
        let (_, held) = list.overhead(&collector.pin());
        assert!(held < 100 * 96, "{held} bytes");
        assert_eq!(list.check_invariants().map(|(entries, _)| entries), Ok(200));
    }

    /// Keys with equal heads are distinguished by their whole contents.
    #[test]
    fn a_search_begins_just_below_among_equal_heads() {
        let collector = Collector::new();
        let list: List<Pair<[u8], u64>> = List::new();
        let guard = collector.pin();
        let key = |n: u64| [&b"the same for all "[..], &n.to_be_bytes()].concat();
        for n in 0..5_000 {
            let mut place = list.find(&key(n), &guard);
            assert!(list.insert(&mut place, &(&key(n), &n), &guard));
        }
        let table = list.shortcuts.table(&guard).expect("there are thousands");
        for n in (0..5_001).step_by(7) {
            let key = key(n);
            let below = table.below(table.block(key[..].head()), &key);
            assert!(table.entries[..below].iter().all(|entry| entry.node.rank() < &key[..]));
            assert!(table.entries[below..].iter().all(|entry| entry.node.rank() >= &key[..]));
        }
    }

    thread_local! {
        static COMPARED: Cell<usize> = const { Cell::new(0) };
    }

    /// Counts the comparisons of keys.
    struct Counted;

    // SAFETY: as `Pair`.
    unsafe impl Item for Counted {
        type First = <Pair<u64, u64> as Item>::First;
        type Second = <Pair<u64, u64> as Item>::Second;
        type Rank<'a> = &'a u64;
        type New<'a> = (&'a u64, &'a u64);

        fn parts<'a>(item: &'a Self::New<'_>) -> (Self::First, Self::Second, [&'a [u8]; 2]) {
            Pair::parts(item)
        }

        fn compare(one: &u64, other: &u64) -> Order {
            COMPARED.set(COMPARED.get() + 1);
            one.cmp(other)
        }

        fn head(rank: &u64) -> u64 {
            rank.head()
        }

        fn tail_len(_: &Self::First, _: &Self::Second) -> usize {
            0
        }

        unsafe fn rank<'a>(
            first: *const Self::First,
            second: *const Self::Second,
            tail: *const u8,
        ) -> &'a u64 {
            // SAFETY: the caller upholds the contract.
            unsafe { Pair::<u64, u64>::rank(first, second, tail) }
        }
    }

    /// All nodes that the table lacks may be after a single entry, the last one or another.
    #[test]
    fn ascending_keys_take_no_more_steps_than_others() {
        const KEYS: u64 = 30_000;
        // The bound holds for most sequences of heights, but not for all.
        super::super::node::HEIGHTS.set(1);
        let collector = Collector::new();
        let list: List<Counted> = List::new();
        let insert = |key: u64| {
            let guard = collector.pin();
            let mut place = list.find(&key, &guard);
            assert!(list.insert(&mut place, &(&key, &key), &guard));
        };
        let per_key = |what: &str, each: &dyn Fn(u64)| {
            COMPARED.set(0);
            (0..KEYS).for_each(each);
            let compared = COMPARED.get() / KEYS as usize;
            assert!(compared < 100, "{what}: {compared} comparisons");
        };
        per_key("insert at the end", &|key| insert(key));
        (0..KEYS).for_each(|key| insert((key << 32) + (1 << 60)));
        per_key("insert in the middle", &|key| {
            insert(key + KEYS);
            let guard = collector.pin();
            let found = list.get(&(key + KEYS), &guard);
            assert!(found.is_some());
        });
        let guard = collector.pin();
        list.renew_shortcuts(&guard);
        // About as many tall nodes as the table may lack.
        let lacking = list.shortcuts.table(&guard).map_or(0, |table| table.entries.len()) * 3;
        let keys: Vec<u64> = (0..lacking as u64).map(|key| key + 2 * KEYS).collect();
        keys.iter().for_each(|key| insert(*key));
        let at = |key: u64| keys[key as usize % keys.len()];
        per_key("locate", &|key| {
            let key = at(key);
            assert!(list.locate(Some((&key, true)), &guard).is_some_and(|at| *at.rank() == key));
        });
        per_key("get", &|key| assert!(list.get(&at(key), &guard).is_some()));
        per_key("stretch_before", &|key| {
            assert!(list.stretch_before(Some(&at(key)), LEVEL, &guard).is_some());
        });
        let mut found = 0;
        COMPARED.set(0);
        list.get_many(keys.iter(), &guard, |_, node| found += usize::from(node.is_some()));
        list.find_many(keys.iter(), &guard, |place| found += usize::from(place.found.is_some()));
        assert_eq!(found, 2 * keys.len());
        let compared = COMPARED.get() / found;
        assert!(compared < 100, "of groups: {compared} comparisons");
    }
}
