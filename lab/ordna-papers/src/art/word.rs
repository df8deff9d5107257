//! Child slots and their contents: nothing, an inner node, or a record.
//!
//! A slot is one atomic word. Bit 0 marks a record. Otherwise bits 1 and 2 are the kind of the
//! inner node, so that a reader knows which part of the node to access before it has loaded any of
//! it.
//!
//! # Why following a word is sound
//! `'g` is a time during which a guard is held, or the tree is borrowed exclusively. If a node is
//! alive for `'g`, then so is everything that its slots refer to. The children of a node in the
//! tree are in the tree. A node that has left the tree during `'g` is no longer changed, and its
//! children were in the tree when it left. Whatever leaves the tree during `'g` is freed after
//! `'g`.

#![expect(unsafe_code, reason = "tagged pointers")]

use std::marker::PhantomData;
use std::ptr::{self, NonNull};

use super::protocol::Protocol;
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
    /// Loads the slot. Pairs with the release store, so a reader of the word sees the contents of
    /// the node or record.
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

/// The four layouts of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Node4 = 0,
    Node16 = 1,
    Node48 = 2,
    Node256 = 3,
}

impl Kind {
    const ALL: [Self; 4] = [Self::Node4, Self::Node16, Self::Node48, Self::Node256];

    pub fn capacity<P: Protocol>(self) -> usize {
        P::CAPACITY.get(self as usize).copied().unwrap_or(256)
    }

    /// Returns the smallest kind with room for this number of children.
    pub fn holding<P: Protocol>(children: usize) -> Self {
        Self::ALL.into_iter().find(|kind| kind.capacity::<P>() >= children).unwrap_or(Self::Node256)
    }

    /// Returns whether a node of this kind with `children` children should be replaced by a smaller
    /// one. A quarter of the smaller node's slots stays free, so that the next insert does not grow
    /// it again.
    pub fn is_underfull<P: Protocol>(self, children: usize) -> bool {
        let smaller = (self as usize).checked_sub(1).map(|below| Self::ALL[below]);
        smaller.is_some_and(|smaller| children <= smaller.capacity::<P>() * 3 / 4)
    }
}

/// A node that is alive for `'g`, because a guard keeps it or no other thread knows it.
pub struct NodeRef<'g, P> {
    pub word: Word<'g, P>,
    pub protocol: PhantomData<fn() -> P>,
}

impl<P> Clone for NodeRef<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<P> Copy for NodeRef<'_, P> {}
impl<P> PartialEq for NodeRef<'_, P> {
    fn eq(&self, other: &Self) -> bool {
        self.word == other.word
    }
}

/// The contents of a slot.
pub struct Word<'g, P>(*mut u8, Kinds<'g, P>);

type Kinds<'g, P> = PhantomData<(&'g (), fn() -> P)>;

impl<P> Clone for Word<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<P> Copy for Word<'_, P> {}

/// A decoded word.
pub enum Child<'g, P> {
    Empty,
    Record(RecordRef<'g>),
    Node(NodeRef<'g, P>),
}

impl<'g, P> Word<'g, P> {
    /// A word without a node or record.
    pub const EMPTY: Self = Self(ptr::null_mut(), PhantomData);

    #[inline]
    pub fn leaf(leaf: RecordRef<'g>) -> Self {
        Self(leaf.0.as_ptr().map_addr(|address| address | LEAF), PhantomData)
    }

    /// Creates a word from the address of a node and its kind.
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

impl<'g, P> NodeRef<'g, P> {
    /// # Safety
    /// The word refers to a node, which is alive for `'g`.
    #[inline]
    pub unsafe fn from_word(word: Word<'g, P>) -> Self {
        Self { word, protocol: PhantomData }
    }
}

impl<'g, P: Protocol> Word<'g, P> {
    #[inline]
    pub fn child(self) -> Child<'g, P> {
        if self.is_empty() {
            return Child::Empty;
        }
        if self.is_leaf() {
            // A record's alignment leaves only bit 0 free. SAFETY: the tag is set only on addresses
            // of records, which are not null.
            let address = unsafe { NonNull::new_unchecked(self.0.map_addr(|a| a & !LEAF)) };
            return Child::Record(RecordRef(address, PhantomData));
        }
        // SAFETY: a word that is neither empty nor a leaf was created by `Word::node`. The node is
        // alive for 'g, as argued at the top of this file.
        Child::Node(unsafe { NodeRef::from_word(self) })
    }
}

impl<P> PartialEq for Word<'_, P> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

/// The address of a record that is alive for `'g`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordRef<'g>(NonNull<u8>, PhantomData<&'g ()>);

impl RecordRef<'_> {
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
