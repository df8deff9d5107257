//! Shortcuts: where searches begin.
//!
//! The upper levels of a large list cost a search a third of its time or more, and are much the same for
//! all searches. So the nodes with towers above [`LEVEL`], one of sixteen, are listed in a sorted table
//! of their keys' heads. A search looks up the last of them below what it seeks and goes on from there.
//! It is PI's index layer (§3.1), packed and made anew behind the updates, over the list that Nitro has.
//!
//! # Contract
//! Any number of threads search and note changes at once, each under a guard of the list's collector. A
//! table in use never changes. It may lag: a node that is missing costs a step, too many of them a search
//! from the head, and one that was removed is not begun from.
//!
//! # Invariants
//! 1. A node of the table is in memory as long as a guard is that was there before the table was
//!    replaced. Removed nodes that may stand in a table are not retired by who removed them but put on a
//!    stack. Who makes a table takes the stack first, then collects nodes that are not marked, puts the
//!    table in place, and only then retires what was taken. What was taken was marked before the first
//!    node was collected: the new table does not have it. What is removed later is on the stack for the
//!    next one to take; so the table that is being made outlives guards.
//! 2. A search begins at a node whose link at `LEVEL` it saw unmarked under its own guard. The node was
//!    in the list then (invariant 2 of [`super`]), as if the search had come to it from above.
//!
//! # Progress
//! A table is due when a quarter of its nodes have come or gone. Who notes a change makes a piece of it,
//! some microseconds, or goes on if another is at it: nobody waits. Removed nodes that are held back are
//! a fiftieth of the list's at most, and a handful.

use std::cmp::Ordering as Order;
use std::collections::HashSet;
use std::ptr::{self, NonNull};
use std::sync::PoisonError;

use super::node::{Link, is_marked, unmarked};
use super::search::prefetch;
use super::{List, Node, NodeRef};
use crate::skiplist::item::Item;
use ordna_base::Violation;
use ordna_base::reclaim::{Guard, Retire};
use ordna_base::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use ordna_base::sync::{Mutex, fault, point};

/// Nodes with a link at this level are in the table; searches begin there.
pub(super) const LEVEL: usize = 4;

/// Entries that are fetched together.
const BLOCK: usize = 32;

/// Changes of tall nodes after which even the smallest table is made anew.
const FEW: usize = 8;

/// A table of so many bytes does not wait for other garbage before it is freed.
const LARGE: usize = 64 << 10;

/// How many removed nodes a search steps over before it begins at the head.
const TRIES: usize = 4;

/// A search that passed so many nodes at [`LEVEL`] begins again at the head. The table lags, by a quarter of
/// its nodes perhaps, and where keys ascend all of them are behind one entry.
pub(super) const FAR: usize = 16;

/// So many nodes are collected, or retired, by each who notes that one came or went: the table overtakes
/// the changes.
const PIECE: usize = 32;

/// A list's shortcuts.
pub(super) struct Shortcuts<I: Item> {
    /// Null: no table yet.
    table: AtomicPtr<Table<I>>,
    /// Removed nodes that may stand in the table, or in the next one.
    dead: AtomicPtr<Dead<I>>,
    /// Their bytes.
    held: AtomicUsize,
    /// Tall nodes that came or went since the last table was begun.
    changes: AtomicUsize,
    upkeep: Mutex<Upkeep<I>>,
}

struct Upkeep<I: Item> {
    /// The next table, as far as it is made.
    next: Option<Table<I>>,
    /// What was taken from the stack, to be retired when that is in place.
    taken: *mut Dead<I>,
}

// SAFETY: what was taken is in no other hands, and nodes are plain data and atomics.
unsafe impl<I: Item> Send for Upkeep<I> {}

struct Dead<I: Item> {
    node: NodeRef<I>,
    next: *mut Self,
}

struct Table<I: Item> {
    /// The heads of the first entries of all blocks.
    firsts: Vec<u64>,
    /// In the order of the nodes.
    entries: Vec<Entry<I>>,
}

struct Entry<I: Item> {
    /// [`Item::head`] of the node.
    head: u64,
    node: NodeRef<I>,
}

/// Where a search begins, at [`LEVEL`]: a node below what is sought, and what it leads to.
pub(super) struct Start<I: Item> {
    pub before: NodeRef<I>,
    pub at: *mut Node<I>,
}

impl<I: Item> Table<I> {
    fn with_room_for(entries: usize) -> Self {
        Self {
            firsts: Vec::with_capacity(entries.div_ceil(BLOCK)),
            entries: Vec::with_capacity(entries),
        }
    }

    /// Collects the next few nodes at [`LEVEL`] that are not being removed; `false` at the end.
    fn collect(&mut self, list: &List<I>, guard: &Guard<'_>) -> bool {
        let last = self.entries.last().map(|last| last.node);
        // The last one is in memory, removed or not: it was collected after the stack was taken.
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
                self.entries.push(Entry { head, node });
            }
        }
        true
    }

    /// The block where heads cease to be below `head`; it is fetched.
    fn block(&self, head: u64) -> usize {
        let block = self.firsts.partition_point(|first| *first < head).saturating_sub(1);
        let start = self.entries.as_ptr().wrapping_add(block * BLOCK);
        for line in 0..BLOCK * size_of::<Entry<I>>() / 64 {
            ordna_base::simd::prefetch(start.cast::<u8>().wrapping_add(line * 64));
        }
        block
    }

    /// How many entries are below the rank, whose head is in this block. O(log n).
    fn below(&self, block: usize, rank: I::Rank<'_>) -> usize {
        let head = I::head(rank);
        let block = block * BLOCK;
        let rest = self.entries.get(block..).unwrap_or_default();
        let from = block + rest[..rest.len().min(BLOCK)].partition_point(|entry| entry.head < head);
        // Mostly no entry has the very same head, and rarely many have.
        let rest = &self.entries[from..];
        let mut reach = 1;
        while rest.get(reach - 1).is_some_and(|entry| entry.head == head) {
            reach *= 2;
        }
        let is_below = |entry: &Entry<I>| {
            entry.head == head && I::compare(entry.node.rank(), rank) == Order::Less
        };
        from + rest[..rest.len().min(reach - 1)].partition_point(is_below)
    }

    /// A place to begin from, of so many entries. Behind the last of them are, where keys ascend, all
    /// nodes that the table lacks.
    fn start(&self, below: usize) -> Option<Start<I>> {
        if below == self.entries.len() {
            return None;
        }
        self.entries[..below].iter().rev().take(TRIES).find_map(|entry| {
            let at = entry.node.tower().load(LEVEL);
            let is_live = !is_marked(at) || fault!("skiplist.shortcuts.dead_start");
            is_live.then_some(Start { before: entry.node, at: unmarked(at) })
        })
    }

    fn bytes(&self) -> usize {
        self.firsts.capacity() * size_of::<u64>() + self.entries.capacity() * size_of::<Entry<I>>()
    }
}

impl<I: Item> Retire for Table<I> {
    unsafe fn free(memory: *mut Self) {
        // SAFETY: boxed by `keep_up`, and exclusively the caller's.
        drop(unsafe { Box::from_raw(memory) });
    }
}

impl<I: Item> Shortcuts<I> {
    pub fn new() -> Self {
        Self {
            table: AtomicPtr::new(ptr::null_mut()),
            dead: AtomicPtr::new(ptr::null_mut()),
            held: AtomicUsize::new(0),
            changes: AtomicUsize::new(0),
            upkeep: Mutex::new(Upkeep { next: None, taken: ptr::null_mut() }),
        }
    }

    fn table<'g>(&self, _guard: &'g Guard<'_>) -> Option<&'g Table<I>> {
        // Acquire: the table was written before. SAFETY: it is retired once it is replaced, and the
        // guard was there before it was loaded.
        unsafe { self.table.load(Ordering::Acquire).as_ref() }
    }

    /// Where a search for the rank begins; `None`: at the head. O(log n), with few cache misses.
    #[inline]
    pub fn start(&self, rank: I::Rank<'_>, guard: &Guard<'_>) -> Option<Start<I>> {
        let table = self.table(guard)?;
        table.start(table.below(table.block(I::head(rank)), rank))
    }

    /// The same for several, with overlapping misses; `each` gets them in order.
    pub fn starts<const N: usize>(
        &self,
        ranks: &[I::Rank<'_>],
        guard: &Guard<'_>,
        mut each: impl FnMut(usize, Option<Start<I>>),
    ) {
        let Some(table) = self.table(guard) else {
            return (0..ranks.len()).for_each(|at| each(at, None));
        };
        for (group, ranks) in ranks.chunks(N).enumerate() {
            let mut at = [0; N];
            for (at, rank) in at.iter_mut().zip(ranks) {
                *at = table.block(I::head(*rank));
            }
            for (at, rank) in at.iter_mut().zip(ranks) {
                *at = table.below(*at, *rank);
                if let Some(entry) = table.entries[..*at].last() {
                    let links = entry.node.tower().0.as_ptr();
                    ordna_base::simd::prefetch(links.wrapping_sub(LEVEL + 1));
                }
            }
            for (lane, at) in at.into_iter().take(ranks.len()).enumerate() {
                each(group * N + lane, table.start(at));
            }
        }
    }

    /// Bytes of the table, and of removed nodes that are held back.
    pub fn bytes(&self, guard: &Guard<'_>) -> (usize, usize) {
        (self.table(guard).map_or(0, Table::bytes), self.held.load(Ordering::Relaxed))
    }

    /// The entries as they should be, if there is a table: in order, and each node linked at
    /// [`LEVEL`] (`is_linked`) or held back. Nobody else may use the list meanwhile.
    pub fn validate(&self, is_linked: impl Fn(NodeRef<I>) -> bool) -> Result<(), Violation> {
        let broken = |what: &str, entry: &Entry<I>| {
            Err(Violation(format!("shortcuts: {what} at head {:#x}", entry.head)))
        };
        let upkeep = self.upkeep.lock().unwrap_or_else(PoisonError::into_inner);
        // What was taken is retired once the next table is in place; then the table has none of it.
        let taken = if upkeep.next.is_some() { upkeep.taken } else { ptr::null_mut() };
        let mut held = HashSet::new();
        for mut at in [self.dead.load(Ordering::Acquire), taken] {
            // SAFETY: nobody else uses the list, so the stacks stay as they are.
            while let Some(top) = unsafe { at.as_ref() } {
                held.insert(top.node.0.as_ptr().addr());
                at = top.next;
            }
        }
        // SAFETY: as above.
        let Some(table) = (unsafe { self.table.load(Ordering::Acquire).as_ref() }) else {
            return Ok(());
        };
        let in_memory = |entry: &&Entry<I>| {
            is_linked(entry.node) || held.contains(&entry.node.0.as_ptr().addr())
        };
        if let Some(entry) = table.entries.iter().find(|entry| !in_memory(entry)) {
            return broken("a node that may be freed", entry);
        }
        for pair in table.entries.windows(2) {
            if I::compare(pair[0].node.rank(), pair[1].node.rank()).is_ge() {
                return broken("out of order", &pair[1]);
            }
        }
        for (at, entry) in table.entries.iter().enumerate() {
            let first = table.firsts.get(at / BLOCK);
            if entry.head != I::head(entry.node.rank())
                || at.is_multiple_of(BLOCK) && first != Some(&entry.head)
            {
                return broken("a wrong head", entry);
            }
        }
        Ok(())
    }

    /// Puts a removed node on the stack.
    fn hold(&self, node: NodeRef<I>) {
        self.held.fetch_add(node.size(), Ordering::Relaxed);
        let dead = Box::into_raw(Box::new(Dead { node, next: ptr::null_mut() }));
        let mut top = self.dead.load(Ordering::Relaxed);
        loop {
            // SAFETY: not published, so this thread's own.
            unsafe { (*dead).next = top };
            // Release: who takes it sees the node's marks.
            match self.dead.compare_exchange_weak(top, dead, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => top = now,
            }
        }
    }

    /// Takes what is on the stack.
    fn take(&self) -> *mut Dead<I> {
        // Acquire: see `hold`.
        self.dead.swap(ptr::null_mut(), Ordering::Acquire)
    }
}

/// Pops a node from a stack that is the caller's own.
fn pop<I: Item>(stack: &mut *mut Dead<I>) -> Option<NodeRef<I>> {
    let top = NonNull::new(*stack)?;
    // SAFETY: boxed by `hold`; the stack is the caller's own, so nobody else has what is on it.
    let top = unsafe { Box::from_raw(top.as_ptr()) };
    *stack = top.next;
    Some(top.node)
}

impl<I: Item> List<I> {
    /// Retires a node that is removed and unlinked, or leaves it to who makes the next table.
    ///
    /// # Safety
    /// As for [`Guard::retire`].
    pub(super) unsafe fn retire(&self, node: NodeRef<I>, guard: &Guard<'_>) {
        if node.height() > LEVEL && !fault!("skiplist.shortcuts.retired_at_once") {
            self.shortcuts.hold(node);
            self.tall_changed(guard);
        } else {
            // SAFETY: no new search comes to the node, and no table has it.
            unsafe { guard.retire(node.0.as_ptr()) };
        }
    }

    /// Notes that a node above [`LEVEL`] has come or gone. Makes a piece of the next table if it is due.
    pub(super) fn tall_changed(&self, guard: &Guard<'_>) {
        self.shortcuts.changes.fetch_add(1, Ordering::Relaxed);
        // Another is at it. (Nothing panics that holds the lock but for want of memory.)
        if let Ok(mut upkeep) = self.shortcuts.upkeep.try_lock() {
            self.keep_up(&mut upkeep, guard);
        }
    }

    /// Makes a new table, whether it is due or not, and gives back what the ones before held.
    /// O(n / 16); waits for who is at it.
    pub fn renew_shortcuts(&self, guard: &Guard<'_>) {
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

    /// A piece of what there is to do: to begin a table, to go on with it, to retire what was taken.
    fn keep_up(&self, upkeep: &mut Upkeep<I>, guard: &Guard<'_>) {
        let shortcuts = &self.shortcuts;
        let length = shortcuts.table(guard).map_or(0, |table| table.entries.len());
        let is_due = shortcuts.changes.load(Ordering::Relaxed) >= FEW + length / 4;
        if is_due && upkeep.next.is_none() && upkeep.taken.is_null() {
            shortcuts.changes.store(0, Ordering::Relaxed);
            if !fault!("skiplist.shortcuts.taken_late") {
                upkeep.taken = shortcuts.take();
            }
            upkeep.next = Some(Table::with_room_for(length + length / 2));
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
            // Release: who loads the table sees what it holds.
            let old = shortcuts.table.swap(Box::into_raw(Box::new(next)), Ordering::AcqRel);
            // SAFETY: whoever pins from now on finds the new table; the guard keeps the old one.
            unsafe {
                match old.as_ref().map(Table::bytes) {
                    Some(LARGE..) => guard.retire_at_once(old),
                    Some(_) => guard.retire(old),
                    None => {}
                }
            }
        }
        for _ in 0..PIECE {
            let Some(node) = pop(&mut upkeep.taken) else { return };
            shortcuts.held.fetch_sub(node.size(), Ordering::Relaxed);
            // SAFETY: the table in place does not have the node (invariant 1), nor can a search that
            // begins from now on come to it otherwise.
            unsafe { guard.retire(node.0.as_ptr()) };
        }
    }
}

impl<I: Item> Drop for Shortcuts<I> {
    fn drop(&mut self) {
        let table = self.table.load(Ordering::Acquire);
        if !table.is_null() {
            // SAFETY: `&mut self`: nobody uses the list.
            drop(unsafe { Box::from_raw(table) });
        }
        let taken = self.upkeep.lock().map_or(ptr::null_mut(), |upkeep| upkeep.taken);
        for mut stack in [self.take(), taken] {
            while let Some(node) = pop(&mut stack) {
                // SAFETY: as above, and the node is linked nowhere.
                unsafe { node.free() };
            }
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::skiplist::item::Pair;
    use ordna_base::Key;
    use ordna_base::reclaim::Collector;

    fn insert(list: &List<Pair<u64, u64>>, key: u64, guard: &Guard<'_>) -> bool {
        let mut place = list.find(&key, guard);
        list.insert(&mut place, &(&key, &key), guard)
    }

    /// Whatever the height of the node that is to be put there.
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
        assert_eq!(list.validate().map(|(entries, _)| entries), Ok(6_000));
    }

    /// The table has one node of about sixteen, and follows the list as it grows and shrinks.
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
        // A quarter of its nodes may have come since it was begun, and some while it was made.
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
        assert_eq!(list.validate().map(|(entries, _)| entries), Ok(200));
    }

    /// Keys that begin alike are told apart by the whole of them.
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

    /// Counts how often keys are compared.
    struct Counted;

    // SAFETY: as `Pair`.
    unsafe impl Item for Counted {
        type First = <Pair<u64, u64> as Item>::First;
        type Second = <Pair<u64, u64> as Item>::Second;
        type Rank<'a> = &'a u64;
        type New<'a> = (&'a u64, &'a u64);

        fn parts<'a>(item: &'a Self::New<'_>) -> (Self::First, Self::Second, [&'a [u8]; 3]) {
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
            // SAFETY: handed on from the caller.
            unsafe { Pair::<u64, u64>::rank(first, second, tail) }
        }
    }

    /// All nodes that the table lacks may stand behind one entry, the last one or another.
    #[test]
    fn ascending_keys_take_no_more_steps_than_others() {
        const KEYS: u64 = 30_000;
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
        // As many tall nodes as the table may lack, but for a few.
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
