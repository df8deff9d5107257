//! Methods of nodes: lookups, changes, growing and shrinking.

#![expect(unsafe_code, reason = "nodes behind tagged pointers")]

use std::marker::PhantomData;
use std::ptr::NonNull;

use super::layout::{
    AHEAD, ALIVE_BITS, Header, Keys, LAST, LINE, Linear, Node4, Node16, Node48, Node256, Position,
    TERMINAL, View, byte_at, position,
};
use crate::art::prefix::{AtomicPrefix, Prefix};
use crate::art::protocol::Protocol;
use crate::art::search;
use crate::art::word::{Child, Kind, NodeRef, RecordRef, Slot, Word};
use ordna_base::index::Direction;
use ordna_base::reclaim::Retire;
use ordna_base::simd::prefetch;
use ordna_base::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};
use ordna_base::sync::{check, fault, point};

impl<P: Protocol> Word<'_, P> {
    /// Prefetches the node, if it is a small one.
    #[inline]
    pub fn prefetch_small(self) {
        if let Child::Node(node) = self.child()
            && node.is_small()
        {
            node.prefetch_whole(Direction::Ascending);
        }
    }
}

/// Returns the word to follow from a slot that was loaded once. The slot must not be loaded a
/// second time.
#[inline]
fn word_to_follow<'g, P: Protocol>(slot: &'g Slot, word: Word<'g, P>) -> Word<'g, P> {
    if fault!("art.some_leaf.one_look") { slot.load() } else { word }
}

impl<'g, P: Protocol> NodeRef<'g, P> {
    /// Creates a node without entries, which no other thread knows.
    pub fn new(kind: Kind, level: usize, prefix: Prefix) -> Self {
        let header = || Header {
            lock: P::Lock::default(),
            prefix: AtomicPrefix::new(prefix),
            terminal: Slot::default(),
            level: level as u16,
            counts: AtomicU16::new(0),
            keys: AtomicU32::new(0),
        };
        fn leak<T>(node: T) -> NonNull<u8> {
            NonNull::from(Box::leak(Box::new(node))).cast()
        }
        fn slots<const N: usize>() -> [Slot; N] {
            std::array::from_fn(|_| Slot::default())
        }
        let address = match kind {
            Kind::Node4 => leak(Node4 { header: header(), children: slots() }),
            Kind::Node16 => {
                let keys = [AtomicU64::new(0), AtomicU64::new(0)];
                leak(Node16 { header: header(), keys, children: slots() })
            }
            Kind::Node48 => {
                let index = std::array::from_fn(|_| AtomicU64::new(0));
                leak(Node48 { header: header(), index, children: slots() })
            }
            Kind::Node256 => leak(Node256 { header: header(), children: slots() }),
        };
        Self { word: Word::node(address, kind), protocol: PhantomData }
    }

    #[inline]
    pub fn word(self) -> Word<'g, P> {
        self.word
    }

    #[inline]
    pub fn kind(self) -> Kind {
        self.word.kind()
    }

    #[inline]
    pub(super) fn header(self) -> &'g Header<P::Lock> {
        // SAFETY: the node is alive for 'g, and every layout starts with a header.
        unsafe { &*self.word.address().cast() }
    }

    #[inline]
    pub(super) fn node4(self) -> &'g Node4<P::Lock> {
        debug_assert_eq!(self.kind(), Kind::Node4);
        // SAFETY: the node is alive for 'g, and the kind in the word is that of the allocation.
        unsafe { &*self.word.address().cast() }
    }

    #[inline]
    pub(super) fn node16(self) -> &'g Node16<P::Lock> {
        debug_assert_eq!(self.kind(), Kind::Node16);
        // SAFETY: as in `node4`.
        unsafe { &*self.word.address().cast() }
    }

    #[inline]
    pub(super) fn node48(self) -> &'g Node48<P::Lock> {
        debug_assert_eq!(self.kind(), Kind::Node48);
        // SAFETY: as in `node4`.
        unsafe { &*self.word.address().cast() }
    }

    #[inline]
    pub(super) fn node256(self) -> &'g Node256<P::Lock> {
        debug_assert_eq!(self.kind(), Kind::Node256);
        // SAFETY: as in `node4`.
        unsafe { &*self.word.address().cast() }
    }

    pub(super) fn view(self) -> View<'g, P::Lock> {
        match self.kind() {
            Kind::Node4 => {
                let node = self.node4();
                let keys = Keys::Four(&node.header.keys);
                View::Linear(Linear { keys, children: &node.children })
            }
            Kind::Node16 => {
                let node = self.node16();
                View::Linear(Linear { keys: Keys::Sixteen(&node.keys), children: &node.children })
            }
            Kind::Node48 => View::Node48(self.node48()),
            Kind::Node256 => View::Node256(self.node256()),
        }
    }

    #[inline]
    pub fn lock(self) -> &'g P::Lock {
        &self.header().lock
    }

    #[inline]
    pub fn prefix(self) -> Prefix {
        self.header().prefix.load()
    }

    pub fn set_prefix(self, prefix: Prefix) {
        self.header().prefix.store(prefix);
    }

    /// Returns the number of bytes that all keys below share, which never changes.
    #[inline]
    pub fn level(self) -> usize {
        usize::from(self.header().level)
    }

    /// Returns the level, for a descent that has passed `depth` bytes when it reaches the node.
    #[inline]
    pub fn level_from(self, depth: usize) -> usize {
        if check!("art.rowex.level", P::READERS_NOTICE) {
            depth + self.prefix().len()
        } else {
            self.level()
        }
    }

    #[inline]
    pub fn terminal(self) -> Word<'g, P> {
        self.header().terminal.load()
    }

    /// Returns the child for `byte`.
    #[inline]
    pub fn child(self, byte: u8) -> Word<'g, P> {
        match self.kind() {
            Kind::Node4 => {
                let node = self.node4();
                let keys = || node.header.keys.load(Ordering::Relaxed);
                let slot = search::find4(keys(), byte);
                point("art.child.before_slot");
                let Some(child) = node.children.get(slot) else { return Word::EMPTY };
                let word = child.load();
                let still = || byte_at(u128::from(keys()), slot) == byte;
                if Self::is_sure_of(byte, word) || still() { word } else { Word::EMPTY }
            }
            Kind::Node16 => {
                let node = self.node16();
                let keys = || node.keys.each_ref().map(|half| half.load(Ordering::Relaxed));
                let slot = search::find16(keys(), byte);
                let Some(child) = node.children.get(slot) else { return Word::EMPTY };
                let word = child.load();
                let still = || byte_at(Keys::Sixteen(&node.keys).load(), slot) == byte;
                if Self::is_sure_of(byte, word) || still() { word } else { Word::EMPTY }
            }
            Kind::Node48 => {
                let node = self.node48();
                // Slot 0 minus one is out of bounds.
                let child = node.children.get(node.slot_of(byte).wrapping_sub(1));
                child.map_or(Word::EMPTY, Slot::load)
            }
            Kind::Node256 => self.node256().children[usize::from(byte)].load(),
        }
    }

    /// Returns whether a slot that was found by `byte` in a Node4 or Node16 belongs to `byte`.
    /// Slots that were never used have byte 0, and may be filled for another byte after the search.
    #[inline]
    pub(super) fn is_sure_of(byte: u8, word: Word<'g, P>) -> bool {
        check!("art.child.zero_byte", P::READERS_NOTICE || byte != 0 || word.is_empty())
    }

    /// Returns the word in the slot at a position.
    pub fn at(self, position: Position) -> Word<'g, P> {
        match position.checked_sub(1) {
            None => self.terminal(),
            Some(byte) => self.child(byte as u8),
        }
    }

    /// Prefetches what a descent reads next: the header, and the cache line of the slot of `byte`.
    /// If the node has no prefix, as most large nodes, that is the byte of the lookup. Finding out
    /// whether it has a prefix requires the header, which would lead to two misses, one after the
    /// other.
    #[inline]
    pub fn prefetch(self, byte: Option<&u8>) {
        let start = self.word.address();
        prefetch(start);
        let Some(byte) = byte.map(|byte| usize::from(*byte)) else { return };
        let offset = match self.kind() {
            Kind::Node4 => return,
            Kind::Node16 => 64,
            Kind::Node48 => std::mem::offset_of!(Node48<P::Lock>, index) + byte,
            Kind::Node256 => {
                std::mem::offset_of!(Node256<P::Lock>, children) + byte * size_of::<Slot>()
            }
        };
        prefetch(start.wrapping_add(offset));
    }

    /// Returns whether the node is of one of the two small kinds.
    #[inline]
    pub fn is_small(self) -> bool {
        self.kind() <= Kind::Node16
    }

    /// Prefetches everything that a scan through the node reads. In a Node256, this is the header
    /// and the cache lines of the first slots.
    #[inline]
    pub fn prefetch_whole(self, direction: Direction) {
        let start = self.word.address();
        let lines = |from: usize, to: usize| {
            (from..to).step_by(LINE).for_each(|offset| prefetch(start.wrapping_add(offset)));
        };
        let size = self.size();
        match (self.kind(), direction) {
            (Kind::Node256, Direction::Ascending) => lines(0, AHEAD),
            (Kind::Node256, Direction::Descending) => {
                lines(0, 1);
                lines((size - AHEAD) / LINE * LINE, size);
            }
            _ => lines(0, size),
        }
    }

    pub(super) fn counts(self) -> (usize, usize) {
        let counts = self.header().counts.load(Ordering::Relaxed);
        (usize::from(counts & ((1 << ALIVE_BITS) - 1)), usize::from(counts >> ALIVE_BITS))
    }

    pub(super) fn set_counts(self, alive: usize, used: usize) {
        let counts = alive | used << ALIVE_BITS;
        self.header().counts.store(counts as u16, Ordering::Relaxed);
    }

    /// Returns the number of children, without the terminal entry.
    pub fn children(self) -> usize {
        self.counts().0
    }

    /// Returns the number of entries, including the terminal one.
    pub fn entries(self) -> usize {
        self.children() + usize::from(!self.terminal().is_empty())
    }

    pub fn is_underfull_with(self, children: usize) -> bool {
        self.kind().is_underfull::<P>(children)
    }

    /// Returns whether there is room for a child for `byte`, which has none yet.
    pub fn has_room_for(self, byte: u8) -> bool {
        let (alive, used) = self.counts();
        let capacity = self.kind().capacity::<P>();
        match self.view() {
            View::Node256(_) => true,
            _ if P::READERS_NOTICE => alive < capacity,
            View::Linear(linear) => used < capacity || linear.find(byte, used).is_some(),
            View::Node48(node) => used < capacity || node.slot_of(byte) != 0,
        }
    }

    /// Adds a child for `byte`, which has none yet. There must be room for it.
    pub fn add(self, byte: u8, word: Word<'_, P>) {
        let (alive, used) = self.counts();
        let used = match self.view() {
            View::Node256(node) => {
                node.children[usize::from(byte)].store(word);
                0
            }
            View::Linear(linear) if P::READERS_NOTICE => {
                linear.insert_sorted(byte, word, used);
                used + 1
            }
            View::Linear(linear) => {
                let own = linear.find(byte, used);
                let slot = own.unwrap_or(used);
                if own.is_none() {
                    let keys = linear.keys.load();
                    linear.keys.store(keys | u128::from(byte) << (slot * 8));
                }
                // Release: a reader that finds the slot filled sees its byte.
                linear.children[slot].store(word);
                used + usize::from(own.is_none())
            }
            View::Node48(node) => {
                let own = node.slot_of(byte).checked_sub(1);
                let is_free = |slot: &usize| node.children[*slot].load::<P>().is_empty();
                let slot = own.unwrap_or_else(|| {
                    if P::READERS_NOTICE { (0..48).find(is_free).unwrap_or(used) } else { used }
                });
                node.children[slot].store(word);
                node.set_slot_of(byte, slot + 1);
                used + usize::from(own.is_none())
            }
        };
        self.set_counts(alive + 1, used);
    }

    /// Replaces the word at a position that is not empty, or in the terminal slot.
    pub fn replace(self, position: Position, word: Word<'_, P>) {
        let Some(byte) = position.checked_sub(1).map(usize::from) else {
            return self.header().terminal.store(word);
        };
        match self.view() {
            View::Linear(linear) => {
                if let Some(slot) = linear.find(byte as u8, self.counts().1) {
                    linear.children[slot].store(word);
                }
            }
            View::Node48(node) => {
                if let Some(child) = node.children.get(node.slot_of(byte as u8).wrapping_sub(1)) {
                    child.store(word);
                }
            }
            View::Node256(node) => node.children[byte].store(word),
        }
    }

    /// Empties the slot at a position that is not empty.
    pub fn remove(self, position: Position) {
        let Some(byte) = position.checked_sub(1).map(usize::from) else {
            return self.header().terminal.store(Word::<P>::EMPTY);
        };
        let (alive, used) = self.counts();
        if !P::READERS_NOTICE {
            // The slot keeps its byte.
            self.replace(position, Word::EMPTY);
            return self.set_counts(alive - 1, used);
        }
        let used = match self.view() {
            View::Linear(linear) => {
                if let Some(slot) = linear.find(byte as u8, used) {
                    linear.remove_sorted::<P>(slot, used);
                }
                used - 1
            }
            View::Node48(node) => {
                self.replace(position, Word::EMPTY);
                node.set_slot_of(byte as u8, 0);
                used - 1
            }
            View::Node256(node) => {
                node.children[byte].store(Word::<P>::EMPTY);
                0
            }
        };
        self.set_counts(alive - 1, used);
    }

    /// Returns a copy of the smallest kind with room for `room` more children, without the entry at
    /// `without`.
    pub fn copy(self, room: usize, without: Option<Position>) -> Self {
        let gone = usize::from(without.is_some_and(|position| position != TERMINAL));
        let kind = Kind::holding::<P>(self.children() - gone + room);
        let copy = Self::new(kind, self.level(), self.prefix());
        self.each(|position, word| {
            if without != Some(position) {
                match position.checked_sub(1) {
                    None => copy.replace(TERMINAL, word),
                    Some(byte) => copy.add(byte as u8, word),
                }
            }
        });
        copy
    }

    /// Calls `each` with every entry. The caller holds the lock, or no thread writes.
    pub fn each(self, mut each: impl FnMut(Position, Word<'g, P>)) {
        let mut offer = |position, word: Word<'g, P>| {
            if !word.is_empty() {
                each(position, word);
            }
        };
        offer(TERMINAL, self.terminal());
        if let View::Linear(linear) = self.view() {
            for (slot, child) in linear.children.iter().enumerate() {
                offer(position(byte_at(linear.keys.load(), slot)), child.load());
            }
        } else {
            (0..=u8::MAX).for_each(|byte| offer(position(byte), self.child(byte)));
        }
    }

    /// Returns the other entry of a node that has two, one of them at `position`.
    pub fn other_than(self, position: Position) -> Option<(Position, Word<'g, P>)> {
        let mut other = None;
        self.each(|at, word| {
            if at != position {
                other = Some((at, word));
            }
        });
        other
    }

    /// Returns the position at which a scan through the whole node starts.
    pub fn start(direction: Direction) -> Position {
        match direction {
            Direction::Ascending => TERMINAL,
            Direction::Descending => LAST,
        }
    }

    /// Returns any record below the node. It is suitable if only the bytes that all of the records
    /// share are needed. It may then be read at any time, because everything in a slot of a node
    /// shares them.
    ///
    /// Returns `None` if writers emptied slots and filled others during the search, so that it
    /// found no record.
    pub fn some_leaf(self) -> Option<RecordRef<'g>> {
        let mut node = self;
        loop {
            #[cfg(debug_assertions)]
            crate::art::probes::steps::add(1);
            let mut words = [Word::EMPTY; 2];
            words[0] = node.terminal();
            // Each slot is loaded once, so even a record that is then removed is valid.
            let filled = |slot: &'g Slot| {
                let word = slot.load::<P>();
                if word.is_empty() {
                    point("art.some_leaf.empty_slot");
                    return None;
                }
                point("art.some_leaf.filled_slot");
                Some(word_to_follow(slot, word))
            };
            words[1] = match node.view() {
                View::Linear(linear) => linear.children.iter().find_map(filled),
                View::Node48(inner) => inner.children.iter().find_map(filled),
                View::Node256(inner) => inner.children.iter().find_map(filled),
            }
            .unwrap_or(Word::EMPTY);
            match words.into_iter().find(|word| !word.is_empty())?.child() {
                Child::Record(leaf) => return Some(leaf),
                Child::Node(below) => node = below,
                Child::Empty => return None,
            }
        }
    }

    /// Returns the number of allocated bytes.
    pub fn size(self) -> usize {
        match self.kind() {
            Kind::Node4 => size_of::<Node4<P::Lock>>(),
            Kind::Node16 => size_of::<Node16<P::Lock>>(),
            Kind::Node48 => size_of::<Node48<P::Lock>>(),
            Kind::Node256 => size_of::<Node256<P::Lock>>(),
        }
    }

    /// Passes the allocation to the disposer with its actual type.
    ///
    /// # Safety
    /// As for the disposer.
    pub unsafe fn dispose(self, with: &impl Dispose) {
        let address = self.word.address();
        // SAFETY: the kind in the word is that of the allocation; the caller upholds the rest of
        // the contract.
        unsafe {
            match self.kind() {
                Kind::Node4 => with.dispose(address.cast::<Node4<P::Lock>>()),
                Kind::Node16 => with.dispose(address.cast::<Node16<P::Lock>>()),
                Kind::Node48 => with.dispose(address.cast::<Node48<P::Lock>>()),
                Kind::Node256 => with.dispose(address.cast::<Node256<P::Lock>>()),
            }
        }
    }
}

/// The disposer of memory that left the tree.
pub trait Dispose {
    /// # Safety
    /// No thread can reach the memory any more, or the disposer waits for the threads that can.
    unsafe fn dispose<T: Retire>(&self, memory: *mut T);
}
