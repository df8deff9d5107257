//! The leaf list: the leaf of a key, and splits and merges of leaves.
//!
//! # Contract
//! Any number of threads may call the operations concurrently, each within a [`Section`] of the
//! index. A leaf covers the keys from its anchor to the next leaf's. The list is the authority on
//! that; the table (`table`, `upkeep`) only leads near the right leaf. The first leaf, whose anchor
//! is empty, is never merged into another.
//!
//! # Writers of each field
//! - entries, order and `next` of a leaf: the holder of its lock;
//! - `prev` of a leaf: the holder of the preceding leaf's lock;
//! - the number of the last split and all links: within a step ([`Tables::step`]), under the locks
//!   of the leaves concerned. Anchors never change.
//!
//! Two locks are taken only from a leaf to a neighbour, and only by trying, so there is no
//! deadlock.
//!
//! # The path of a reader
//! A reader uses the table to find a leaf. If the leaf's last split is in the table, the leaf has
//! everything that the table promised (merges only add to it), and no anchor is read. Otherwise,
//! and from obsolete leaves, the reader follows the list by the anchors ([`LeafList::settle`]). All
//! of this happens under a ticket of the leaf that is valid until the end of the read; otherwise it
//! is repeated.
//!
//! # Progress
//! If a writer interferes, readers retry up to [`RETRIES`] times; then they take the lock.
//!
//! Source: the Wormhole paper, §2.2, §2.5.

#![expect(unsafe_code, reason = "follows pointers between leaves and records that guards keep")]

use super::leaf::{Leaf, Order, Pools, Stale, Words};
use super::mode::Mode;
use super::section::Section;
use super::switches::Switches;
use super::table::{Table, TableHit, TableStep};
use super::upkeep::Tables;
use ordna_base::key::common_prefix;
use ordna_base::reclaim::Collector;
use ordna_base::sync::{Obsolete, check, fault, point};
use ordna_base::{Key, Value, Violation};

/// Number of attempts of a reader before it takes the leaf's lock.
pub const RETRIES: usize = 16;

/// Leaves in order, the tables that lead to them, and the collector of retired ones.
pub struct LeafList<K: Key + ?Sized, V: Value + ?Sized, S: Mode, const LEAF: usize> {
    first: Leaf<K, V, S, LEAF>,
    tables: Tables<Leaf<K, V, S, LEAF>>,
    pub switches: Switches,
    pools: Pools,
    // Declared last, so that the collector frees retired memory after everything else is dropped.
    collector: Collector,
}

/// A leaf with a ticket under which it was found to cover the key.
pub type Covered<'s, K, V, S, const LEAF: usize> = (Leaf<K, V, S, LEAF>, <S as Mode>::Ticket<'s>);

/// The leaf to which the table leads for a key.
pub struct Target<K: Key + ?Sized, V: Value + ?Sized, S: Mode, const LEAF: usize> {
    pub leaf: Leaf<K, V, S, LEAF>,
    /// Tag of the key.
    pub tag: u16,
    /// Number of the last step that the table contains.
    version: u64,
    /// The result of the table's search, which must still be compared.
    found: TableHit<Leaf<K, V, S, LEAF>>,
}

impl<K: Key + ?Sized, V: Value + ?Sized, S: Mode, const LEAF: usize> Target<K, V, S, LEAF> {
    /// Prefetches the anchor that may have to be compared.
    #[inline]
    pub fn prefetch_anchor(&self) {
        if !K::HEAD_IS_KEY {
            self.found.witness().prefetch_anchor();
        }
    }
}

/// Selects the leaf of a point that may be an anchor itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The leaf of that anchor: the point is a key.
    From,
    /// The preceding leaf, because keys below the point are needed.
    Below,
    /// The last leaf, whatever the point.
    Last,
}

impl Side {
    /// Returns whether a leaf with this anchor is after the point.
    #[inline]
    fn is_beyond(self, anchor: &[u8], point: &[u8]) -> bool {
        match self {
            Self::From => anchor > point,
            // The first leaf has no predecessor.
            Self::Below => anchor >= point && !anchor.is_empty(),
            Self::Last => false,
        }
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized, S: Mode, const LEAF: usize> LeafList<K, V, S, LEAF> {
    pub fn new(switches: Switches) -> Self {
        let pools = Leaf::<K, V, S, LEAF>::pools();
        let first = Leaf::new(&[], &pools);
        let tables = Tables::new(first, switches);
        Self { first, tables, switches, pools, collector: Collector::new() }
    }

    #[inline]
    pub fn enter(&self) -> Section<'_> {
        Section(S::SHARED.then(|| self.collector.pin()))
    }

    /// Returns the table that is currently published.
    #[inline]
    pub fn table<'s>(&self, _section: &'s Section<'_>) -> &'s Table<Leaf<K, V, S, LEAF>> {
        // SAFETY: the section was entered before, or this is the only thread, which makes no step
        // while it holds the reference.
        unsafe { self.tables.read() }
    }

    /// Returns the leaf to which the table leads for the key.
    #[inline]
    pub fn search(&self, key: &[u8], section: &Section<'_>) -> Target<K, V, S, LEAF> {
        let table = self.table(section);
        point("wormhole.search.table");
        let target = self.target(table, table.search(key), key);
        point("wormhole.search.done");
        target
    }

    /// Returns the target of a search in the table by tags. Prefetches the leaf.
    #[inline]
    pub fn target(
        &self,
        table: &Table<Leaf<K, V, S, LEAF>>,
        found: Option<TableHit<Leaf<K, V, S, LEAF>>>,
        key: &[u8],
    ) -> Target<K, V, S, LEAF> {
        let found = found.unwrap_or_else(|| self.compare(table, key));
        let tag = Leaf::<K, V, S, LEAF>::tag(found.key_hash(key, &self.switches));
        found.place.prefetch(tag);
        Target { leaf: found.place, tag, version: table.version(), found }
    }

    /// Searches without tags.
    #[cold]
    fn compare(
        &self,
        table: &Table<Leaf<K, V, S, LEAF>>,
        key: &[u8],
    ) -> TableHit<Leaf<K, V, S, LEAF>> {
        // In an intact table it finds a leaf. The list is correct whatever the table returns.
        table.search_by_comparing(key).unwrap_or(TableHit::of(self.first))
    }

    /// Returns whether the target's leaf, for which the caller has a ticket or the lock, covers its
    /// key: the heads show it, or the table was right and the leaf has not been split since.
    #[inline]
    fn is_right(&self, target: &Target<K, V, S, LEAF>, key: &K, bytes: &[u8]) -> bool {
        let current = || check!("wormhole.any_version", target.leaf.last_split() <= target.version);
        let agrees = || check!("wormhole.search.uncompared", target.found.agrees(bytes));
        target.leaf.heads_cover(key) || (current() && agrees())
    }

    /// Returns where to start scanning if the target is not right.
    #[cold]
    fn near(
        &self,
        target: &Target<K, V, S, LEAF>,
        bytes: &[u8],
        section: &Section<'_>,
    ) -> Leaf<K, V, S, LEAF> {
        if target.found.agrees(bytes) {
            target.leaf
        } else {
            self.compare(self.table(section), bytes).place
        }
    }

    /// Returns a ticket of the leaf that covers the target's key.
    #[inline]
    pub fn cover<'s>(
        &self,
        target: &Target<K, V, S, LEAF>,
        key: &K,
        bytes: &[u8],
        section: &'s Section<'_>,
    ) -> Covered<'s, K, V, S, LEAF> {
        if let Ok(ticket) = S::read(target.leaf.lock())
            && self.is_right(target, key, bytes)
        {
            return (target.leaf, ticket);
        }
        self.settle(self.near(target, bytes, section), bytes, Side::From, section)
    }

    /// Follows the links of the list, from any leaf, to the one that covers the point.
    #[cold]
    pub fn settle<'s>(
        &self,
        mut leaf: Leaf<K, V, S, LEAF>,
        point: &[u8],
        side: Side,
        _section: &'s Section<'_>,
    ) -> Covered<'s, K, V, S, LEAF> {
        loop {
            let back = side.is_beyond(leaf.anchor_bytes(), point);
            let ticket = if back { Err(Obsolete) } else { S::read(leaf.lock()) };
            let Ok(ticket) = ticket else {
                // Only the first leaf has no predecessor. It is never obsolete, and no point is
                // below its anchor.
                leaf = leaf.prev().unwrap_or(self.first);
                continue;
            };
            // If this link is stale, so is the ticket. It refers to a leaf nevertheless, which the
            // section keeps alive.
            match leaf.next() {
                Some(next) if !side.is_beyond(next.anchor_bytes(), point) => leaf = next,
                _ => return (leaf, ticket),
            }
        }
    }

    /// Works like [`settle`](Self::settle), and locks the leaf.
    pub fn settle_locked<'s>(
        &self,
        mut leaf: Leaf<K, V, S, LEAF>,
        point: &[u8],
        side: Side,
        section: &'s Section<'_>,
    ) -> (Leaf<K, V, S, LEAF>, S::Held<'s>) {
        loop {
            leaf = self.settle(leaf, point, side, section).0;
            ordna_base::sync::point("wormhole.list.settled");
            if let Ok(held) = S::lock(leaf.lock())
                && leaf.next().is_none_or(|next| side.is_beyond(next.anchor_bytes(), point))
            {
                return (leaf, held);
            }
        }
    }

    /// Returns the leaf that covers the key, locked.
    #[inline]
    pub fn lock<'s>(
        &self,
        target: &Target<K, V, S, LEAF>,
        key: &K,
        bytes: &[u8],
        section: &'s Section<'_>,
    ) -> (Leaf<K, V, S, LEAF>, S::Held<'s>) {
        if let Ok(held) = S::lock(target.leaf.lock())
            && self.is_right(target, key, bytes)
        {
            return (target.leaf, held);
        }
        self.settle_locked(self.near(target, bytes, section), bytes, Side::From, section)
    }

    /// Returns whether the leaf covers the key. Under the lock, or while no thread writes.
    fn covers(leaf: Leaf<K, V, S, LEAF>, key: &[u8]) -> bool {
        leaf.anchor_bytes() <= key && leaf.next().is_none_or(|next| key < next.anchor_bytes())
    }

    /// Searches for the key in a leaf under a ticket, depending on the switches of the paper's
    /// factor analysis.
    #[inline]
    pub fn find(
        &self,
        leaf: Leaf<K, V, S, LEAF>,
        key: &K,
        tag: u16,
        valid: impl Fn() -> bool + Copy,
    ) -> Result<Option<(usize, Words)>, Stale> {
        // SAFETY: callers hold the lock and pass `valid` that is always `true`, or pass the
        // validity of their ticket.
        unsafe {
            if !self.switches.sort_by_tag {
                leaf.find_by_key(key, valid)
            } else if !self.switches.direct_position {
                leaf.find_by_all_tags(key, tag, valid)
            } else {
                leaf.find(key, tag, valid)
            }
        }
    }

    /// Returns the entry of the target's key. Its record is alive as long as the section is held.
    #[inline]
    pub fn get(
        &self,
        target: &Target<K, V, S, LEAF>,
        key: &K,
        bytes: &[u8],
        section: &Section<'_>,
    ) -> Option<Words> {
        for _ in 0..RETRIES {
            let (leaf, ticket) = self.cover(target, key, bytes, section);
            point("wormhole.get.covered");
            let valid = || check!("wormhole.get.unvalidated", S::is_valid(&ticket));
            match self.find(leaf, key, target.tag, valid) {
                Ok(found) if valid() => return found.map(|(_, words)| words),
                _ => {}
            }
        }
        let (leaf, _held) = self.lock(target, key, bytes, section);
        self.find(leaf, key, target.tag, || true).ok().flatten().map(|(_, words)| words)
    }

    /// Adds an entry to a leaf that is locked and covers the key. Splits the leaf first if it is
    /// full.
    pub fn insert(
        &self,
        leaf: Leaf<K, V, S, LEAF>,
        key: &[u8],
        target: &Target<K, V, S, LEAF>,
        words: Words,
    ) {
        let tag = target.tag;
        if leaf.len() < LEAF {
            leaf.insert(tag, words);
            if !self.switches.sort_by_tag {
                // SAFETY: the lock is held, by the caller within a section.
                unsafe { leaf.sort() };
            }
            return;
        }
        // SAFETY: the caller holds the lock within a section, so everything that is read counts.
        let (right, at, order) = unsafe {
            let Ok(order) = leaf.order(|| true) else { return };
            let (at, length) = Self::split_point(leaf, &order);
            let anchor = Leaf::<K, V, S, LEAF>::with_key(leaf.words(order.position(at)), |key| {
                key.radix().as_ref()[..length].to_vec()
            });
            (Leaf::new(&anchor, &self.pools), at, order)
        };
        // SAFETY: as above; the new leaf belongs to this thread alone.
        unsafe { leaf.move_from(&order, at, right) };
        let half = if key >= right.anchor_bytes() { right } else { leaf };
        half.insert(tag, words);
        if !self.switches.sort_by_tag {
            // SAFETY: as above.
            unsafe { half.sort() };
        }
        point("wormhole.split.before_step");
        self.tables.step(|number| {
            let next = leaf.next();
            right.set_split(number);
            if !fault!("wormhole.split.unmarked") {
                leaf.set_split(number);
            }
            right.set_next(next);
            right.set_prev(Some(leaf));
            if let Some(next) = next {
                next.set_prev(Some(right));
            }
            leaf.set_next(Some(right));
            let (outer, ended) = (leaf.prev(), target.found.item_length());
            TableStep { place: right, came: true, left: leaf, right: next, outer, ended }
        });
    }

    /// Returns where to split a full leaf, and the length of the right half's anchor: near the
    /// middle, where the anchor is short.
    ///
    /// # Safety
    /// The lock is held, within a guard, and the order is the leaf's.
    unsafe fn split_point(leaf: Leaf<K, V, S, LEAF>, order: &Order<LEAF>) -> (usize, usize) {
        let shared = |at: usize| {
            let [left, right] = [at - 1, at].map(|at| leaf.words(order.position(at)));
            // SAFETY: the caller upholds the contract.
            unsafe {
                Leaf::<K, V, S, LEAF>::with_key(left, |left| {
                    Leaf::<K, V, S, LEAF>::with_key(right, |right| {
                        common_prefix(left.radix().as_ref(), right.radix().as_ref())
                    })
                })
            }
        };
        let middle = LEAF / 2;
        let mut best = (middle, shared(middle) + 1);
        for away in 1..=LEAF / 16 {
            for at in [middle - away, middle + away] {
                let length = shared(at) + 1;
                if length < best.1 {
                    best = (at, length);
                }
            }
        }
        best
    }

    /// Merges a small leaf, which is locked, with a neighbour if its lock is free and both fit into
    /// one leaf. Drops the lock.
    pub fn merge(
        &self,
        leaf: Leaf<K, V, S, LEAF>,
        held: S::Held<'_>,
        target: &Target<K, V, S, LEAF>,
    ) {
        let ended = target.found.item_length();
        let fits = |other: Leaf<K, V, S, LEAF>| leaf.len() + other.len() <= LEAF / 4 * 3;
        if let Some(right) = leaf.next().filter(|right| fits(*right)) {
            // This thread's lock keeps it the next leaf, and alive.
            point("wormhole.merge.before_right");
            let still = || check!("wormhole.merge.unrechecked", fits(right));
            if let Some(right_held) = S::try_lock(right.lock()).filter(|_| still()) {
                self.absorb((leaf, right), right_held, ended);
                drop(held);
                return;
            }
        }
        // Only a guess until it is locked. Then it is certain to be the predecessor, and not
        // obsolete.
        if let Some(left) = leaf.prev().filter(|left| fits(*left)) {
            let adjacent = || check!("wormhole.merge.any_left", left.next() == Some(leaf));
            point("wormhole.merge.before_left");
            let left_held = S::try_lock(left.lock());
            if let Some(left_held) = left_held.filter(|_| fits(left) && adjacent()) {
                self.absorb((left, leaf), held, ended);
                drop(left_held);
            }
        }
    }

    /// Moves all entries of `gone` into the preceding leaf and removes it from the list. Both locks
    /// are held; that of `gone` ends.
    fn absorb(
        &self,
        (left, gone): (Leaf<K, V, S, LEAF>, Leaf<K, V, S, LEAF>),
        held: S::Held<'_>,
        ended: usize,
    ) {
        gone.move_all(left);
        gone.forget(&self.pools);
        self.tables.step(|_| {
            let next = gone.next();
            left.set_next(next);
            if let Some(next) = next {
                next.set_prev(Some(left));
            }
            TableStep { place: gone, came: false, left, right: next, outer: left.prev(), ended }
        });
        if !self.switches.sort_by_tag {
            // SAFETY: the caller holds the lock within a section, and the leaf has its new range.
            unsafe { left.sort() };
        }
        S::unlock_obsolete(held);
    }

    /// Applies steps to the tables, if there are enough. No leaf may be locked.
    #[inline]
    pub fn maintain(&self, section: &Section<'_>) {
        if let Some(guard) = &section.0 {
            // SAFETY: the leaf is neither in a table nor in the list, so no new thread can reach
            // it.
            self.tables.maintain(guard, |leaf| unsafe { guard.retire(leaf.retired()) });
        } else {
            // SAFETY: without a guard, this is the only thread, and it does not use the table. The
            // leaf is neither in a table nor in the list.
            unsafe { self.tables.maintain_alone(|leaf| leaf.free()) }
        }
    }

    /// Sets the value of an entry of a locked leaf. A word is overwritten; bytes need a new record,
    /// and the old one is retired.
    #[inline]
    pub fn set_value(
        &self,
        leaf: Leaf<K, V, S, LEAF>,
        (position, words): (usize, Words),
        key: &K,
        value: &V,
        section: &Section<'_>,
    ) {
        if let Some(record) = Leaf::<K, V, S, LEAF>::record(words) {
            // SAFETY: the lock is held, so the record belongs to the entry and is alive.
            if unsafe { record.overwrite(value) } {
                return;
            }
            leaf.set_words(position, Leaf::<K, V, S, LEAF>::entry(key, value));
            section.retire_record(record);
        } else {
            leaf.set_words(position, Leaf::<K, V, S, LEAF>::entry(key, value));
        }
    }

    /// Removes an entry from a locked leaf.
    pub fn remove(
        &self,
        leaf: Leaf<K, V, S, LEAF>,
        (position, words): (usize, Words),
        section: &Section<'_>,
    ) {
        leaf.remove(position);
        if let Some(record) = Leaf::<K, V, S, LEAF>::record(words) {
            section.retire_record(record);
        }
    }

    /// Sorts the order of a leaf if it is not sorted and no thread holds the lock.
    #[inline]
    pub fn try_sort(&self, leaf: Leaf<K, V, S, LEAF>, _section: &Section<'_>) {
        if !leaf.is_sorted()
            && let Some(_held) = S::try_lock(leaf.lock())
        {
            // SAFETY: the lock is held, within a section.
            unsafe { leaf.sort() };
        }
    }

    /// Returns how many splits and merges the published table does not contain yet.
    pub fn lag(&self) -> u64 {
        self.tables.lag()
    }

    /// Returns the first leaf.
    pub fn first(&self) -> Leaf<K, V, S, LEAF> {
        self.first
    }

    /// Returns all leaves, from the first on.
    fn leaves(&self) -> impl Iterator<Item = Leaf<K, V, S, LEAF>> {
        std::iter::successors(Some(self.first), |leaf| leaf.next())
    }

    /// Returns the sizes in bytes of leaves, of slabs without a leaf, of records and of tables.
    /// They are exact while no thread writes.
    pub fn bytes(&self, section: &Section<'_>) -> [usize; 4] {
        let (mut leaves, mut records) = (0, 0);
        let mut at = Some(self.first);
        while let Some(leaf) = at {
            leaves += leaf.bytes();
            // The lock keeps the records and the next leaf in place.
            let held = S::lock(leaf.lock());
            for (_, words) in leaf.entries() {
                if let Some(record) = Leaf::<K, V, S, LEAF>::record(words) {
                    // SAFETY: the lock is held, so the record belongs to the entry and is alive.
                    records += unsafe { record.size() };
                }
            }
            at = leaf.next();
            drop(held);
        }
        let _ = section;
        [leaves, self.pools.spare(), records, self.tables.bytes()]
    }

    /// Checks leaves, links and tables. Returns the numbers of entries and of leaves.
    pub fn check_invariants(&self) -> Result<(usize, usize), Violation> {
        let leaves: Vec<_> = self.leaves().collect();
        let mut entries = 0;
        for (at, leaf) in leaves.iter().enumerate() {
            let broken = |why: &str| Err(Violation(format!("wormhole: leaf {at}: {why}")));
            if let Err(why) = leaf.check_invariants() {
                return broken(&why);
            }
            let next = leaves.get(at + 1).map(|next| next.anchor_bytes());
            if leaf.prev() != at.checked_sub(1).map(|before| leaves[before]) {
                return broken("the link back is wrong");
            }
            if next.is_some_and(|next| leaf.anchor_bytes() >= next) {
                return broken("the anchors do not ascend");
            }
            for (_, words) in leaf.entries() {
                // SAFETY: no thread writes, as the caller guarantees.
                let covered = unsafe {
                    Leaf::<K, V, S, LEAF>::with_key(words, |key| {
                        Self::covers(*leaf, key.radix().as_ref())
                    })
                };
                if !covered {
                    return broken("a key is out of its range");
                }
            }
            entries += leaf.len();
        }
        self.tables
            .check_invariants(&leaves)
            .map_err(|why| Violation(format!("wormhole: table: {why}")))?;
        Ok((entries, leaves.len()))
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized, S: Mode, const LEAF: usize> Drop
    for LeafList<K, V, S, LEAF>
{
    fn drop(&mut self) {
        // SAFETY: the index belongs to this thread alone, and no reader is left. A leaf that is not
        // in the list but waits in the log is in no other place. Records of merged leaves have
        // moved.
        unsafe {
            self.tables.free(|leaf| leaf.free());
            let mut at = Some(self.first);
            while let Some(leaf) = at {
                for (_, words) in leaf.entries() {
                    if let Some(record) = Leaf::<K, V, S, LEAF>::record(words) {
                        record.free();
                    }
                }
                at = leaf.next();
                leaf.free();
            }
        }
    }
}
