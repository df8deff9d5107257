//! Data nodes of the storage layer: up to [`CAPACITY`] entries in order, protected by a version.
//!
//! # Contract
//! A node has one writer at a time, its *owner*, which the executor's distribution of work
//! determines ([`super::storage`]). Readers are optimistic: they take a version of the node, read
//! its fields (all of which are atomics) and validate. Functions with "owner" in their names or
//! docs are only for the owner, and read without validation.
//!
//! # Invariants
//! 1. A node contains the keys from its anchor (inclusive, never changes) up to the anchor of the
//!    next node (exclusive). All keys of that range share their first `skip` bytes.
//! 2. `heads[i]` is the head of entry i's key after `skip` bytes, and heads ascend. Entries with
//!    equal heads are ordered by their whole keys. For `u64` keys, the head is the key.
//! 3. `slots[i]` is entry i's value if both types are words, and otherwise the address of its
//!    record.
//! 4. `upper` is the head, after `skip` bytes, of the next node's anchor, so that a reader knows
//!    whether to continue without accessing the next node. `splits[i]` is the head of entry 8(i +
//!    1), or the maximum, so that a reader knows from the first cache line which eight entries to
//!    examine.
//! 5. A node that was absorbed by its predecessor stays obsolete. Its `next` does not change.
//!
//! # Layout
//! The paper's data node contains one entry (Definition 1). Dependent misses are the largest cost
//! of a lookup, so here 32 entries share a node: a lookup accesses the first cache line, one line
//! of heads and one of slots, and the index layer has a twentieth of the size. This also allows a
//! delete to remove its entry instead of marking it. The memory of a record is reclaimed at once,
//! and "clear the mark and set the value" is a plain insert in one write section.

#![expect(unsafe_code, reason = "records behind words, and words that are values")]

use std::borrow::Borrow;
use std::cmp::Ordering as Order;
use std::marker::PhantomData;
use std::mem::offset_of;
use std::ptr::{self, NonNull};

use super::bytes::{common, head_beyond, starts_alike};
use ordna_base::record::Record;
use ordna_base::simd::{InstructionSet, LANES, Line, prefetch};
use ordna_base::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use ordna_base::sync::{VersionLock, fault, point};
use ordna_base::{Key, Value};

/// Maximum number of entries of a node.
pub const CAPACITY: usize = 32;
const BLOCKS: usize = CAPACITY / LANES;

/// A data node.
#[repr(C, align(64))]
pub struct Node<K: Key + ?Sized, V: Value + ?Sized> {
    pub lock: VersionLock,
    next: AtomicPtr<Node<K, V>>,
    upper: AtomicU64,
    len: AtomicU32,
    skip: AtomicU32,
    splits: [AtomicU64; BLOCKS - 1],
    anchor: K::Owned,
    heads: [Line; BLOCKS],
    slots: [Line; BLOCKS],
    kinds: PhantomData<(Box<K>, Box<V>)>,
}

/// A node that the current guard, or the layer in use, keeps alive.
pub struct NodeRef<K: Key + ?Sized, V: Value + ?Sized>(NonNull<Node<K, V>>);

impl<K: Key + ?Sized, V: Value + ?Sized> Clone for NodeRef<K, V> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<K: Key + ?Sized, V: Value + ?Sized> Copy for NodeRef<K, V> {}
impl<K: Key + ?Sized, V: Value + ?Sized> PartialEq for NodeRef<K, V> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}
impl<K: Key + ?Sized, V: Value + ?Sized> std::ops::Deref for NodeRef<K, V> {
    type Target = Node<K, V>;

    #[inline]
    fn deref(&self) -> &Node<K, V> {
        // SAFETY: the node is alive, as the type guarantees. Everything that changes in a node is
        // atomic.
        unsafe { self.0.as_ref() }
    }
}

// SAFETY: nodes contain atomics, and keys and records of types that are Send + Sync.
unsafe impl<K: Key + ?Sized, V: Value + ?Sized> Send for NodeRef<K, V> {}
// SAFETY: as above.
unsafe impl<K: Key + ?Sized, V: Value + ?Sized> Sync for NodeRef<K, V> {}

impl<K: Key + ?Sized, V: Value + ?Sized> NodeRef<K, V> {
    /// Creates an empty node that no other thread knows.
    pub fn new(anchor: K::Owned) -> Self {
        let node = Box::new(Node {
            lock: VersionLock::new(),
            next: AtomicPtr::new(ptr::null_mut()),
            upper: AtomicU64::new(0),
            len: AtomicU32::new(0),
            skip: AtomicU32::new(0),
            splits: std::array::from_fn(|_| AtomicU64::new(u64::MAX)),
            anchor,
            heads: std::array::from_fn(|_| Line::filled(0)),
            slots: std::array::from_fn(|_| Line::filled(0)),
            kinds: PhantomData,
        });
        Self(NonNull::from(Box::leak(node)))
    }

    /// # Safety
    /// No other thread can reach the node, no thread uses it afterwards, and its records are freed
    /// or have moved to another node.
    pub unsafe fn free(self) {
        // SAFETY: created by `NodeRef::new`, and it belongs to the caller alone.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }

    /// Prefetches the cache line with which every access begins.
    #[inline]
    pub fn prefetch(self) {
        prefetch(self.0.as_ptr().cast_const());
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> NodeRef<K, V> {
    /// Prefetches the cache lines that a scan over about `entries` entries reads.
    #[inline]
    pub fn prefetch_all(self, entries: usize) {
        self.prefetch();
        let node = self.0.as_ptr().cast_const().cast::<u8>();
        for block in 0..entries.div_ceil(LANES).min(BLOCKS) {
            for lines in [offset_of!(Node<K, V>, heads), offset_of!(Node<K, V>, slots)] {
                prefetch(node.wrapping_add(lines + block * size_of::<Line>()));
            }
        }
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> Node<K, V> {
    /// Whether slots are values instead of addresses of records.
    pub const INLINE: bool = K::HEAD_IS_KEY && V::IN_PLACE;

    /// Returns the smallest key that the node may contain.
    #[inline]
    pub fn anchor(&self) -> &K {
        self.anchor.borrow()
    }

    /// Returns the number of entries, which never exceeds the capacity, even if it is stale.
    /// Acquire: pairs with the release store after each entry. So everything in the slots below
    /// this number has been an entry since the caller took its guard.
    #[inline]
    pub fn len(&self) -> usize {
        self.len.load(Ordering::Acquire) as usize
    }

    /// Returns the number of bytes that all keys of the node's range share.
    #[inline]
    pub fn skip(&self) -> usize {
        self.skip.load(Ordering::Relaxed) as usize
    }

    /// Returns the next node. Acquire: pairs with the release store of the owner that linked it, so
    /// its contents are visible.
    #[inline]
    pub fn next(&self) -> Option<NodeRef<K, V>> {
        NonNull::new(self.next.load(Ordering::Acquire)).map(NodeRef)
    }

    #[inline]
    fn head(&self, at: usize) -> u64 {
        self.heads[at / LANES].get(at % LANES)
    }

    #[inline]
    fn slot(&self, at: usize) -> u64 {
        self.slots[at / LANES].get(at % LANES)
    }

    /// Returns the next node if the key, which is not below the anchor, is in its range or after
    /// it. `shared` is the number of first bytes that the key is known to share with the anchor.
    ///
    /// For readers: the node was not obsolete after the guard was taken, and the result counts once
    /// it is validated.
    #[inline]
    pub fn beyond(&self, key: &K, shared: usize) -> Option<NodeRef<K, V>> {
        let next = self.next()?;
        point("pi.beyond.after_next");
        let skip = self.skip();
        if !K::HEAD_IS_KEY && skip > shared && !starts_alike(key, self.anchor(), skip) {
            // The key is not below the anchor and does not have the prefix, so it is above every
            // key with the prefix.
            return Some(next);
        }
        let is_beyond = match head_beyond(key, skip).cmp(&self.upper.load(Ordering::Relaxed)) {
            Order::Less => false,
            Order::Greater => true,
            // The next node is alive: it was linked when this node was seen alive under the guard,
            // so it is not retired before the guard is dropped.
            Order::Equal => K::HEAD_IS_KEY || key >= next.anchor(),
        };
        is_beyond.then_some(next)
    }

    /// Returns how many of the first `len` heads satisfy a comparison that holds for a prefix of
    /// them.
    #[inline]
    fn rank(&self, len: usize, holds: impl Fn(u64) -> bool, mask: impl Fn(&Line) -> u32) -> usize {
        let block = self.splits.iter().filter(|split| holds(split.load(Ordering::Relaxed))).count();
        let block = block.min(len.saturating_sub(1) / LANES);
        let within = len - block * LANES;
        let valid = if within >= LANES { 0xFF } else { (1_u32 << within) - 1 };
        block * LANES + (mask(&self.heads[block]) & valid).count_ones() as usize
    }

    /// Returns the position of the key (`Ok`), or where it would have to be inserted (`Err`). For
    /// readers, the result counts once they have validated.
    #[inline]
    pub fn find(&self, key: &K, set: InstructionSet) -> Result<usize, usize> {
        let len = self.len();
        let head = head_beyond(key, self.skip());
        let above = self.rank(len, |split| split <= head, |line| set.at_most(line, head));
        if K::HEAD_IS_KEY {
            let found = above > 0 && self.head(above - 1) == head;
            return if found { Ok(above - 1) } else { Err(above) };
        }
        let mut from = self.rank(len, |split| split < head, |line| set.below(line, head));
        let mut to = above;
        while from < to {
            let middle = from.midpoint(to);
            let Some(record) = self.record(middle) else { return Err(from) };
            // The position is below the length that was read under the guard, or by the owner, and
            // only the owner removes entries. SAFETY: the address in such a slot belonged to an
            // entry at that moment or later, so its record is not freed before the guard is
            // dropped.
            match unsafe { record.key() }.cmp(key) {
                Order::Less => from = middle + 1,
                Order::Equal => return Ok(middle),
                Order::Greater => to = middle,
            }
        }
        Err(from)
    }

    /// Returns the record at a position, or `None` for a slot that never contained one. Acquire:
    /// pairs with the release stores of `write` and `set`, so its contents are visible.
    #[inline]
    fn record(&self, at: usize) -> Option<Record<K, V>> {
        let address = self.slots[at / LANES].0[at % LANES].load(Ordering::Acquire) as usize;
        // SAFETY: without inline values, slots contain addresses from `Record::as_ptr`, or zero.
        unsafe { Record::from_ptr(ptr::with_exposed_provenance_mut(address)) }
    }

    /// Prefetches what a lookup of the key accesses. Nothing is validated.
    #[inline]
    pub fn prefetch_block(&self, key: &K) {
        let head = head_beyond(key, self.skip());
        let before = self.splits.iter().filter(|split| split.load(Ordering::Relaxed) <= head);
        let block = before.count();
        prefetch(&raw const self.heads[block]);
        prefetch(&raw const self.slots[block]);
    }

    /// Prefetches the record that a lookup of the key accesses. Nothing is validated.
    #[inline]
    pub fn prefetch_record(&self, key: &K, set: InstructionSet) {
        if !Self::INLINE {
            let head = head_beyond(key, self.skip());
            let above = self.rank(self.len(), |s| s <= head, |line| set.at_most(line, head));
            let slot = self.slot(above.saturating_sub(1)) as usize;
            prefetch(ptr::without_provenance::<u8>(slot));
        }
    }

    /// Returns the entry at a position. Readers may use it once they have validated.
    #[inline]
    pub fn entry(&self, at: usize) -> DataEntry<K, V> {
        DataEntry { head: self.head(at), slot: self.slot(at), kinds: PhantomData }
    }

    /// Calls `read` with the key at a position. Only for the owner.
    fn key_at<R>(&self, at: usize, read: impl FnOnce(&K) -> R) -> R {
        // SAFETY: the caller is the owner, and only the owner removes entries.
        unsafe { self.entry(at).with_key(read) }
    }

    /// Overwrites the value at a position. Returns the record that was replaced. Only for the
    /// owner.
    pub fn set(&self, at: usize, key: &K, value: &V) -> Option<Record<K, V>> {
        let slot = &self.slots[at / LANES].0[at % LANES];
        if Self::INLINE {
            // A single atomic word, so readers see the old or the new value. Release: together with
            // earlier stores of its writer.
            slot.store(word_of(value), Ordering::Release);
            return None;
        }
        let old = self.record(at)?;
        // SAFETY: only the owner removes and overwrites records, so this one is alive.
        if unsafe { old.overwrite(value) } {
            return None;
        }
        // Release: a reader of the address sees the contents of the record.
        slot.store(slot_of(key, value), Ordering::Release);
        Some(old)
    }

    /// Inserts an entry at a position that [`Node::find`] returned. There must be room. Only for
    /// the owner.
    /// room.
    pub fn insert(&self, at: usize, key: &K, value: &V) {
        let len = self.len();
        let slot = slot_of(key, value);
        let head = head_beyond(key, self.skip());
        let _section = self.lock.enter_owned();
        for to in (at + 1..=len).rev() {
            self.write(to, self.head(to - 1), self.slot(to - 1));
        }
        self.write(at, head, slot);
        self.set_len(len + 1);
    }

    /// Removes the entry at a position. Returns its record, which must be retired. Only for the
    /// owner.
    pub fn remove(&self, at: usize) -> Option<Record<K, V>> {
        let len = self.len();
        let record = if Self::INLINE { None } else { self.record(at) };
        let _section = self.lock.enter_owned();
        for to in at..len - 1 {
            self.write(to, self.head(to + 1), self.slot(to + 1));
        }
        self.set_len(len - 1);
        record
    }

    #[inline]
    fn write(&self, at: usize, head: u64, slot: u64) {
        self.heads[at / LANES].set(at % LANES, head);
        // Release: see `record`.
        self.slots[at / LANES].0[at % LANES].store(slot, Ordering::Release);
    }

    /// Sets the length, and the splits that depend on it.
    fn set_len(&self, len: usize) {
        // Release, as for every store of a length that readers can see: see `len`. Slots after the
        // last entry may contain addresses of freed records. A reader that saw this length, but not
        // the earlier stores to the slots, could follow such an address.
        self.len.store(len as u32, Ordering::Release);
        for (block, split) in self.splits.iter().enumerate() {
            let first = (block + 1) * LANES;
            let head = if first < len { self.head(first) } else { u64::MAX };
            split.store(head, Ordering::Relaxed);
        }
    }

    /// Sets what depends on the node's range, which ends at the anchor of `next`, for its `len`
    /// entries.
    fn set_range(&self, next: Option<NodeRef<K, V>>, len: usize) {
        let (mut skip, mut upper) = (0, 0);
        if let Some(next) = next {
            skip = common(self.anchor(), next.anchor());
            upper = head_beyond(next.anchor(), skip);
        }
        if skip != self.skip() {
            for at in 0..len {
                let head = self.key_at(at, |key| head_beyond(key, skip));
                self.heads[at / LANES].set(at % LANES, head);
            }
            self.skip.store(skip as u32, Ordering::Relaxed);
        }
        self.upper.store(upper, Ordering::Relaxed);
        let next = next.map_or(ptr::null_mut(), |next| next.0.as_ptr());
        // Release: a reader of the link sees the node, which was built before.
        self.next.store(next, Ordering::Release);
    }

    /// Moves the entries from position `from` on into a new node, and links that node after this
    /// one. `anchor` is the anchor of the new node if no entry moves. Only for the owner.
    pub fn split(&self, from: usize, anchor: Option<&K>) -> NodeRef<K, V> {
        let len = self.len();
        let anchor = match anchor {
            Some(anchor) => anchor.to_owned(),
            None => self.key_at(from, ToOwned::to_owned),
        };
        let right = NodeRef::new(anchor);
        // Heads are computed for the same `skip` until the range is set.
        right.skip.store(self.skip() as u32, Ordering::Relaxed);
        for at in from..len {
            right.write(at - from, self.head(at), self.slot(at));
        }
        right.set_range(self.next(), len - from);
        right.set_len(len - from);
        let _section = (!fault!("pi.split.unversioned")).then(|| self.lock.enter_owned());
        self.set_range(Some(right), from);
        self.set_len(from);
        right
    }

    /// Takes over the entries and the range of the next node, which becomes obsolete. The entries
    /// must fit. Only for the owner of both.
    pub fn absorb(&self, next: NodeRef<K, V>) {
        let (own, other) = (self.len(), next.len());
        let section = self.lock.enter_owned();
        let emptied = next.lock.enter_owned();
        for at in 0..other {
            self.write(own + at, next.head(at), next.slot(at));
        }
        if !K::HEAD_IS_KEY {
            // The heads of the two nodes are for different prefixes, so all are computed again.
            self.skip.store(u32::MAX, Ordering::Relaxed);
        }
        self.set_range(next.next(), own + other);
        self.set_len(own + other);
        // Both nodes are locked at once: a reader of the absorbed node finds it obsolete, and its
        // entries here.
        if fault!("pi.absorb.not_obsolete") {
            drop(emptied);
        } else {
            emptied.unlock_obsolete();
        }
        drop(section);
    }

    /// Calls `each` with every record. Only for the owner.
    pub fn records(&self, mut each: impl FnMut(Record<K, V>)) {
        if !Self::INLINE {
            (0..self.len()).filter_map(|at| self.record(at)).for_each(&mut each);
        }
    }

    /// Checks the invariants of the node. Only for the owner.
    pub fn check_invariants(&self) -> Result<(), String> {
        let (len, next) = (self.len(), self.next());
        let mut last: Option<K::Owned> = None;
        for at in 0..len {
            self.key_at(at, |key| {
                let order = last.as_ref().is_none_or(|last| last.borrow() < key);
                let within = key >= self.anchor() && next.is_none_or(|next| key < next.anchor());
                let head = self.head(at) == head_beyond(key, self.skip());
                last = Some(key.to_owned());
                if order && within && head {
                    return Ok(());
                }
                Err(format!(
                    "entry {at}: {key:?} is in order {order}, in range {within}, head {head}"
                ))
            })?;
        }
        for (block, split) in self.splits.iter().enumerate() {
            let first = (block + 1) * LANES;
            let head = if first < len { self.head(first) } else { u64::MAX };
            if split.load(Ordering::Relaxed) != head {
                return Err(format!("split {block} is not the head of entry {first}"));
            }
        }
        if let Some(next) = next {
            let skip = common(self.anchor(), next.anchor());
            if next.anchor() <= self.anchor() {
                return Err(format!("the next anchor {:?} is not above", next.anchor()));
            }
            if skip != self.skip()
                || head_beyond(next.anchor(), skip) != self.upper.load(Ordering::Relaxed)
            {
                return Err("the upper end is not the next anchor's".to_owned());
            }
        }
        if self.lock.is_obsolete() { Err("it is obsolete".to_owned()) } else { Ok(()) }
    }
}

/// An entry as read from a node: its head and slot.
pub struct DataEntry<K: Key + ?Sized, V: Value + ?Sized> {
    head: u64,
    slot: u64,
    kinds: PhantomData<(Box<K>, Box<V>)>,
}

impl<K: Key + ?Sized, V: Value + ?Sized> Clone for DataEntry<K, V> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<K: Key + ?Sized, V: Value + ?Sized> Copy for DataEntry<K, V> {}

impl<K: Key + ?Sized, V: Value + ?Sized> DataEntry<K, V> {
    #[inline]
    fn record(self) -> Option<Record<K, V>> {
        // SAFETY: as in `Node::record`.
        unsafe { Record::from_ptr(ptr::with_exposed_provenance_mut(self.slot as usize)) }
    }

    /// # Safety
    /// The entry was read by the owner, or from a node that was validated afterwards, under a guard
    /// that is still held.
    #[inline]
    pub unsafe fn with_key<R>(&self, read: impl FnOnce(&K) -> R) -> R {
        if K::HEAD_IS_KEY {
            // SAFETY: the type is `u64`, whose cell is a word, and the head is the key.
            return read(unsafe { K::view((&raw const self.head).cast(), ptr::null()) });
        }
        let record = self.record().expect("a validated slot holds a record");
        // SAFETY: the caller keeps the record alive.
        read(unsafe { record.key() })
    }

    /// # Safety
    /// As for [`DataEntry::with_key`].
    #[inline]
    pub unsafe fn with_value<R>(&self, read: impl FnOnce(&V) -> R) -> R {
        if Node::<K, V>::INLINE {
            let word = AtomicU64::new(self.slot);
            // SAFETY: the type is `u64`, whose cell is an atomic word and which has no tail.
            return unsafe { V::with(&*(&raw const word).cast::<V::Cell>(), ptr::null(), read) };
        }
        let record = self.record().expect("a validated slot holds a record");
        // SAFETY: the caller keeps the record alive.
        unsafe { record.with_value(read) }
    }
}

/// Returns the word of an inline value.
#[inline]
fn word_of<V: Value + ?Sized>(value: &V) -> u64 {
    const { assert!(size_of::<u64>() == 8) };
    let cell = AtomicU64::new(0);
    // SAFETY: only called for the type `u64`, whose cell is an atomic word.
    value.overwrite(unsafe { &*(&raw const cell).cast::<V::Cell>() });
    cell.load(Ordering::Relaxed)
}

/// Returns the slot of a new entry: its value, or the address of a new record.
fn slot_of<K: Key + ?Sized, V: Value + ?Sized>(key: &K, value: &V) -> u64 {
    if Node::<K, V>::INLINE {
        return word_of(value);
    }
    Record::new(key, value).as_ptr().expose_provenance() as u64
}
