//! Nodes and their links. The top of [`super`] describes the layout and the protocol.

#![expect(unsafe_code, reason = "nodes of variable height in one allocation")]

use std::alloc::{self, Layout};
use std::cell::Cell;
use std::mem::offset_of;
use std::ptr::{self, NonNull};

use super::options::Fanout;
use crate::skiplist::item::{Item, Pair};
use ordna_base::reclaim::{Guard, Retire};
use ordna_base::sync::atomic::{AtomicPtr, Ordering};
use ordna_base::{Key, Value};

/// Maximum height of a tower: levels for 2^24 entries, above which searches become slower
/// gradually.
pub const MAX_HEIGHT: usize = 24;

/// The link is frozen: its node is removed on this level.
pub(super) const MARK: usize = 1;
/// The link is the highest one of the node.
pub(super) const TOP: usize = 2;
/// On link 0: the inserter will not link the node any more.
pub(super) const LINKED: usize = 4;
/// Tags that a link keeps when its target changes. Callers of [`Tower`] do not see them.
pub(super) const KEPT: usize = TOP | LINKED;

impl<K: Key + ?Sized, V: Value + ?Sized> NodeRef<Pair<K, V>> {
    #[inline]
    pub fn key(&self) -> &K {
        self.rank()
    }

    #[inline]
    pub fn with_value<R>(&self, read: impl FnOnce(&V) -> R) -> R {
        self.with_parts(|value, key, tail| {
            let tail = tail.wrapping_add(K::tail_len(*key));
            // SAFETY: cell and tail were written from one value, and are never overwritten.
            unsafe { V::with(value, tail, read) }
        })
    }
}

/// Represents a node in pointers, and its cells in offsets. It is never read as a whole, because a
/// node may be shorter than this type with its padding.
#[repr(C)]
pub struct Node<I: Item> {
    first: I::First,
    second: I::Second,
}

pub(super) type Link<I> = AtomicPtr<Node<I>>;

pub(super) fn marked<I: Item>(node: *mut Node<I>) -> *mut Node<I> {
    node.map_addr(|address| address | MARK)
}

pub(super) fn is_marked<I: Item>(link: *mut Node<I>) -> bool {
    link.addr() & MARK != 0
}

pub(super) fn unmarked<I: Item>(link: *mut Node<I>) -> *mut Node<I> {
    link.map_addr(|address| address & !MARK)
}

/// A node that the current guard keeps alive.
pub struct NodeRef<I: Item>(pub(super) NonNull<Node<I>>);

impl<I: Item> Clone for NodeRef<I> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<I: Item> Copy for NodeRef<I> {}
impl<I: Item> PartialEq for NodeRef<I> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl<I: Item> NodeRef<I> {
    pub(super) const SECOND: usize = offset_of!(Node<I>, second);
    /// Offset of the bytes: after the cells, without padding.
    pub(super) const TAIL: usize = Self::SECOND + size_of::<I::Second>();

    pub(super) fn layout(height: usize, tail: usize) -> Layout {
        const { assert!(align_of::<Node<I>>() <= align_of::<Link<I>>()) };
        // Addresses must have unused bits for the tags, which they would not have on 32-bit
        // targets.
        const { assert!(align_of::<Link<I>>() > MARK | TOP | LINKED) };
        let size = height * size_of::<Link<I>>() + Self::TAIL + tail;
        Layout::from_size_align(size, align_of::<Link<I>>())
            .expect("checked lengths stay far below isize")
    }

    /// Creates a node that is not published. Key and value must have been checked.
    pub(super) fn new(item: &I::New<'_>, height: usize) -> Self {
        let (first, second, tails) = I::parts(item);
        let layout = Self::layout(height, tails.iter().map(|tail| tail.len()).sum());
        // SAFETY: the size of the layout is not zero; tower, cells and tails are written within it.
        let node = unsafe {
            let Some(start) = NonNull::new(alloc::alloc(layout)) else {
                alloc::handle_alloc_error(layout)
            };
            let node = Self(start.cast::<Link<I>>().add(height).cast());
            for level in 0..height {
                let link = node.0.cast::<Link<I>>().sub(level + 1);
                link.write(AtomicPtr::new(ptr::null_mut()));
            }
            ptr::write(node.first().cast_mut(), first);
            ptr::write(node.second().cast_mut(), second);
            let mut at = node.tail().cast_mut();
            for tail in tails {
                ptr::copy_nonoverlapping(tail.as_ptr(), at, tail.len());
                at = at.add(tail.len());
            }
            node
        };
        node.tower().tag(height - 1, TOP);
        if height == 1 {
            node.tower().tag(0, LINKED);
        }
        node
    }

    /// Returns the height of the node, by following the tags of the links. O(height).
    pub(super) fn height(&self) -> usize {
        let mut height = 1;
        while !self.tower().has(height - 1, TOP) {
            height += 1;
        }
        height
    }

    pub(super) fn tower(&self) -> Tower<I> {
        Tower(self.0.cast())
    }

    pub(super) fn tail(&self) -> *const u8 {
        self.0.as_ptr().cast::<u8>().wrapping_add(Self::TAIL)
    }

    /// Returns the rank, by which the list orders its nodes.
    #[inline]
    pub fn rank(&self) -> I::Rank<'_> {
        // SAFETY: `new` wrote the cells and the tail from one item. What a rank reads from them
        // never changes, and the node is alive, as the type guarantees.
        unsafe { I::rank(self.first(), self.second(), self.tail()) }
    }

    /// Returns the rank, for the lifetime of the guard that keeps the node alive.
    pub fn rank_under<'g>(&self, _guard: &'g Guard<'_>) -> I::Rank<'g> {
        // SAFETY: as in `rank`; the guard was taken before the node was reached.
        unsafe { I::rank(self.first(), self.second(), self.tail()) }
    }

    /// Calls `read` with the two cells and the tail of the item.
    #[inline]
    pub fn with_parts<R>(&self, read: impl FnOnce(&I::First, &I::Second, *const u8) -> R) -> R {
        // SAFETY: the node is alive, as the type guarantees, and was initialized before it was
        // published.
        let (first, second) = unsafe { (&*self.first(), &*self.second()) };
        read(first, second, self.tail())
    }

    #[inline]
    pub(super) fn first(&self) -> *const I::First {
        self.0.as_ptr().cast::<u8>().wrapping_add(offset_of!(Node<I>, first)).cast()
    }

    #[inline]
    pub(super) fn second(&self) -> *const I::Second {
        self.0.as_ptr().cast::<u8>().wrapping_add(Self::SECOND).cast()
    }

    pub(super) fn tail_len(&self) -> usize {
        self.with_parts(|first, second, _| I::tail_len(first, second))
    }

    /// Returns the number of allocated bytes.
    pub fn size(&self) -> usize {
        Self::layout(self.height(), self.tail_len()).size()
    }

    /// Returns whether the node is in the list: its level-0 link is not marked.
    #[inline]
    pub fn is_live(&self) -> bool {
        !is_marked(self.tower().load(0))
    }

    /// # Safety
    /// No other thread can reach the node, and no thread uses it afterwards.
    pub(super) unsafe fn free(self) {
        let height = self.height();
        let layout = Self::layout(height, self.tail_len());
        // SAFETY: the node belongs to this thread alone, as the caller guarantees. `new` allocated
        // it with this layout, which begins with the highest link.
        unsafe { alloc::dealloc(self.0.cast::<Link<I>>().sub(height).as_ptr().cast(), layout) }
    }
}

impl<I: Item> Retire for Node<I> {
    unsafe fn free(memory: *mut Self) {
        if let Some(node) = NonNull::new(memory) {
            // SAFETY: a retired node belongs to the collector alone when it calls this.
            unsafe { NodeRef(node).free() }
        }
    }
}

/// The links of a node, or of the head. Points after link 0, which follows the higher ones.
pub(super) struct Tower<I: Item>(pub(super) NonNull<Link<I>>);

impl<I: Item> Clone for Tower<I> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<I: Item> Copy for Tower<I> {}
impl<I: Item> PartialEq for Tower<I> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl<I: Item> Tower<I> {
    /// Returns the node to which the links belong, if they are not the head's.
    pub(super) fn node(self) -> NodeRef<I> {
        NodeRef(self.0.cast())
    }

    #[inline]
    pub(super) fn link(&self, level: usize) -> &Link<I> {
        // SAFETY: towers are reached only on levels below their height, because a node is linked on
        // that level, and the head has all levels. They live as long as their node or list.
        unsafe { self.0.sub(level + 1).as_ref() }
    }

    /// Returns the link with its mark. Pairs with the release half of every CAS below, so that a
    /// thread that sees a node sees its contents.
    #[inline]
    pub(super) fn load(&self, level: usize) -> *mut Node<I> {
        self.link(level).load(Ordering::Acquire).map_addr(|address| address & !KEPT)
    }

    /// Sets the link and mark of a node that is not published, and keeps its tags.
    pub(super) fn store(&self, level: usize, to: *mut Node<I>) {
        let link = self.link(level);
        let kept = link.load(Ordering::Relaxed).addr() & KEPT;
        link.store(to.map_addr(|address| address | kept), Ordering::Relaxed);
    }

    /// Replaces `from` by `to`, both with their marks. Returns the previous word if it was
    /// replaced. May fail spuriously if the link is tagged concurrently.
    #[inline]
    pub(super) fn exchange(
        &self,
        level: usize,
        from: *mut Node<I>,
        to: *mut Node<I>,
    ) -> Option<Word> {
        let link = self.link(level);
        let word = link.load(Ordering::Relaxed);
        let kept = word.addr() & KEPT;
        if word.addr() & !KEPT != from.addr() {
            return None;
        }
        let to = to.map_addr(|address| address | kept);
        // Release: publishes the target of `to`. Acquire: the tags show other threads' changes.
        link.compare_exchange(word, to, Ordering::AcqRel, Ordering::Relaxed).ok()?;
        Some(Word(word.addr()))
    }

    #[inline]
    pub(super) fn relink(&self, level: usize, from: *mut Node<I>, to: *mut Node<I>) -> bool {
        self.exchange(level, from, to).is_some()
    }

    pub(super) fn has(&self, level: usize, tag: usize) -> bool {
        self.link(level).load(Ordering::Relaxed).addr() & tag != 0
    }

    /// Adds a tag. Returns the previous word.
    pub(super) fn tag(&self, level: usize, tag: usize) -> Word {
        let link = self.link(level);
        let mut word = link.load(Ordering::Relaxed);
        loop {
            let tagged = word.map_addr(|address| address | tag);
            match link.compare_exchange_weak(word, tagged, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Word(word.addr()),
                Err(now) => word = now,
            }
        }
    }
}

/// The previous word of a link after a change.
#[derive(Clone, Copy)]
pub(super) struct Word(usize);

impl Word {
    pub(super) fn has(self, tag: usize) -> bool {
        self.0 & tag != 0
    }
}

thread_local! {
    /// The state of the generator of heights, or zero before its first use.
    pub(super) static HEIGHTS: Cell<u64> = const { Cell::new(0) };
}

/// Returns 1 with probability 1/2, 2 with 1/4, and so on. With a fanout of four, the probabilities
/// are 3/4, 3/16, and so on.
pub(super) fn random_height(fanout: Fanout) -> usize {
    let random = HEIGHTS.with(|state| {
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
    let bits = match fanout {
        Fanout::Two => 1,
        Fanout::Four => 2,
    };
    (random.leading_zeros() as usize / bits + 1).min(MAX_HEIGHT)
}

/// Prefetches the cells that searches read.
pub(super) fn prefetch<I: Item>(node: *mut Node<I>) {
    ordna_base::simd::prefetch(node.cast::<u8>().wrapping_add(NodeRef::<I>::SECOND));
}
