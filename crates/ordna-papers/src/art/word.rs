//! Child slots and what stands in them: nothing, an inner node, or a record.
//!
//! A slot is one atomic word. Bit 0 marks a record; otherwise bits 1 and 2 tell the kind of the inner
//! node, so that a reader knows where in the node to look before it has fetched any of it.
//!
//! # What makes following a word sound
//! `'g` is a time during which a guard is held, or the tree is borrowed exclusively. Whatever a slot
//! of a node that is alive for `'g` holds is alive for `'g`: a node in the tree has only living
//! children, and a node that has left the tree is frozen, with children that were in the tree when it
//! left, which was during `'g`; what leaves the tree during `'g` is freed after it.

#![expect(unsafe_code, reason = "tagged pointers")]

use std::marker::PhantomData;
use std::ptr::{self, NonNull};

use super::node::{Kind, NodeRef};
use super::protocol::Protocol;
use ordna_base::index::Direction;
use ordna_base::sync::atomic::{AtomicPtr, Ordering};

const LEAF: usize = 1;
const KIND_SHIFT: u32 = 1;

/// A child slot of a node.
#[derive(Debug)]
pub struct Slot(AtomicPtr<u8>);

impl Default for Slot {
    fn default() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }
}

impl Slot {
    /// Pairs with the release store: who sees a node or a record sees its contents.
    #[inline]
    pub fn load<'g, P>(&'g self) -> Word<'g, P> {
        Word(self.0.load(Ordering::Acquire), PhantomData)
    }

    /// Sets the slot. The caller holds the lock of its node.
    #[inline]
    pub fn store<P>(&self, word: Word<'_, P>) {
        self.0.store(word.0, Ordering::Release);
    }
}

/// What stood in a slot.
pub struct Word<'g, P>(*mut u8, Kinds<'g, P>);

type Kinds<'g, P> = PhantomData<(&'g (), fn() -> P)>;

impl<P> Clone for Word<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<P> Copy for Word<'_, P> {}

/// A word, taken apart.
pub enum Child<'g, P> {
    Empty,
    Leaf(Leaf<'g>),
    Node(NodeRef<'g, P>),
}

impl<'g, P> Word<'g, P> {
    /// Nothing.
    pub const EMPTY: Self = Self(ptr::null_mut(), PhantomData);

    #[inline]
    pub fn leaf(leaf: Leaf<'g>) -> Self {
        Self(leaf.0.as_ptr().map_addr(|address| address | LEAF), PhantomData)
    }

    /// The address of a node with its kind.
    #[inline]
    pub fn node(node: NonNull<u8>, kind: Kind) -> Self {
        let tag = (kind as usize) << KIND_SHIFT;
        Self(node.as_ptr().map_addr(|address| address | tag), PhantomData)
    }

    #[inline]
    pub fn is_empty(self) -> bool {
        self.0.is_null()
    }

    #[inline]
    pub fn is_leaf(self) -> bool {
        self.0.addr() & LEAF != 0
    }

    #[inline]
    pub fn address(self) -> *mut u8 {
        self.0.map_addr(|address| address & !((3 << KIND_SHIFT) | LEAF))
    }

    #[inline]
    pub fn kind(self) -> Kind {
        match (self.0.addr() >> KIND_SHIFT) & 3 {
            0 => Kind::Node4,
            1 => Kind::Node16,
            2 => Kind::Node48,
            _ => Kind::Node256,
        }
    }
}

impl<'g, P: Protocol> Word<'g, P> {
    #[inline]
    pub fn child(self) -> Child<'g, P> {
        if self.is_empty() {
            return Child::Empty;
        }
        if self.is_leaf() {
            // A record's alignment leaves only bit 0 free.
            // SAFETY: the tag is set on addresses of records only, which are not null.
            let address = unsafe { NonNull::new_unchecked(self.0.map_addr(|a| a & !LEAF)) };
            return Child::Leaf(Leaf(address, PhantomData));
        }
        // SAFETY: a word that is neither empty nor a leaf was made by `Word::node`; what it points
        // to is alive for 'g, as the top of this file argues.
        Child::Node(unsafe { NodeRef::from_word(self) })
    }
}

impl<P: Protocol> Word<'_, P> {
    /// Fetches the node, if it is a small one.
    #[inline]
    pub fn prefetch_small(self) {
        if let Child::Node(node) = self.child()
            && node.is_small()
        {
            node.prefetch_whole(Direction::Ascending);
        }
    }
}

impl<P> PartialEq for Word<'_, P> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

/// The address of a record that is alive for `'g`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leaf<'g>(NonNull<u8>, PhantomData<&'g ()>);

impl Leaf<'_> {
    /// # Safety
    /// The record is alive for the lifetime of the result.
    pub unsafe fn new(record: NonNull<u8>) -> Self {
        Self(record, PhantomData)
    }

    #[inline]
    pub fn as_ptr(self) -> *mut u8 {
        self.0.as_ptr()
    }
}

/// Asks the processor to fetch the cache line.
#[inline]
pub fn prefetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch faults on no address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}
