//! The search layer: a B-tree of separators that leads from a key to its leaf.
//!
//! # Contract
//! [`SearchLayer`] maps *low fences*, the lower bounds of leaves, to the addresses of leaves. It
//! treats addresses as opaque and never reads a leaf. [`SearchLayer::find`] may run concurrently
//! with all other methods. [`SearchLayer::insert`] and [`SearchLayer::remove`] exclude each other
//! by a lock. A search that overlaps a change returns the address of the state before or after it.
//! A search never returns an address that was removed before it began, so callers may retire a leaf
//! after its removal returns.
//!
//! # Invariants
//! 1. Separators of a node are strictly ascending. Child *i* covers the keys from separator *i* − 1
//!    (the node's lower bound for *i* = 0) up to separator *i*.
//! 2. All paths from the root have the same length. A node has at least one child.
//! 3. All separators of a node begin with the node's prefix. A *head* holds the eight bytes of its
//!    separator after the prefix, big-endian; a *second* holds the eight bytes after the head.
//!    Heads ascend, not necessarily strictly, and so do the seconds of equal heads. Unused ones are
//!    `u64::MAX`.
//! 4. Integers: a *fingerprint* is the difference between the separator and the node's first one,
//!    without its low bits, in 16 bits. Fingerprints ascend, not necessarily strictly.
//!
//! # Protocol
//! Readers couple versions: they read the child's version, then validate the parent, so a child is
//! entered only while the parent still leads to it. A reader that restarts [`RETRIES`] times
//! searches under the writers' lock. Writers lock all nodes of a change and unlock them at its end.
//!
//! [`SearchLayer::find_fenced`] reads a leaf's version between two validations of the lowest node.
//! Its callers change leaves and low fences together under the leaf's lock. So at an unlocked
//! version, the leaf's high fence is the separator after its address, if the node holds that
//! separator. If the leaf is the last of its node, a higher node holds its high fence, which may
//! concurrently become lower.
//!
//! # Why a B-tree
//! A node compares 64 heads with eight vector instructions, whose cache misses overlap, and 64
//! fingerprints with two. Separators are as short as their neighbours allow, so the few bytes after
//! a common prefix usually decide.
//!
//! Source: the search layer of HydraList (§4.2), which lags; here splits update the layer before
//! they return. Heads after a prefix follow prefix B-trees (Bayer, Unterauer 1977) with normalized
//! keys.

#![expect(unsafe_code, reason = "nodes are followed by address")]

mod contents;
mod counts;
mod group;
mod inspect;
mod node;
pub mod ranks;
mod shrink;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

use std::num::NonZero;
use std::ptr;

use contents::{Contents, Separator, SeparatorEntry};
pub use counts::{ChildCount, LeafCount};
pub use node::FANOUT;
use node::Node;
use ordna_base::Key;
use ordna_base::reclaim::Guard;
use ordna_base::simd::{InstructionSet, prefetch};
use ordna_base::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use ordna_base::sync::{Lock, MutexGuard};
use ordna_base::sync::{Obsolete, Version, WriteGuard, check, fault, point};

/// Number of restarts of a search before it takes the writers' lock.
const RETRIES: usize = 16;
/// Maximum number of keys that descend together in [`SearchLayer::find_many`]. A core overlaps some
/// sixteen cache misses; with more keys, it waits less often for the last of them.
pub const GROUP: usize = 64;

/// The address of a leaf. The search layer never dereferences it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeafAddress(NonZero<usize>);

impl LeafAddress {
    /// Creates the address with this number.
    #[inline]
    pub fn new(address: NonZero<usize>) -> Self {
        Self(address)
    }

    /// Returns the number.
    #[inline]
    pub fn get(self) -> NonZero<usize> {
        self.0
    }

    /// Returns the address that a lowest node holds. The read was validated.
    #[inline]
    fn of_child(child: usize) -> Self {
        Self(NonZero::new(child).expect("no leaf is at address 0"))
    }
}

/// Maps low fences to addresses; see the [module](self).
pub struct SearchLayer<K: Key + ?Sized> {
    root: AtomicPtr<Node<K>>,
    /// Excludes other writers. A writer that panics has changed nothing, because everything that
    /// may panic runs before its first store.
    writers: Lock<()>,
    /// Number of threads that wait for `writers` to change the layer. Counts give way to them.
    changing: AtomicUsize,
    /// Maximum number of children of a node. Tests use a smaller one.
    fanout: usize,
    simd: InstructionSet,
    bytes: AtomicUsize,
    /// Whether nodes may have counts. Protected by the writers' lock.
    counts: AtomicBool,
}

// SAFETY: nodes consist of atomics, and the contract says who may free them.
unsafe impl<K: Key + ?Sized> Send for SearchLayer<K> {}
// SAFETY: as above.
unsafe impl<K: Key + ?Sized> Sync for SearchLayer<K> {}

/// The nodes of a descent, each with the position of the child that was taken.
type Path<K> = Vec<(*mut Node<K>, usize)>;

impl<K: Key + ?Sized> SearchLayer<K> {
    /// Creates a layer that leads every key to `first`. Nodes have at most `fanout` children, from
    /// 3 to [`FANOUT`].
    pub fn new(first: LeafAddress, fanout: usize) -> Self {
        let contents = Contents { children: vec![first.0.get()], ..Contents::default() };
        let root = Node::boxed(0, &contents);
        Self {
            root: AtomicPtr::new(root),
            writers: Lock::new(()),
            changing: AtomicUsize::new(0),
            fanout: fanout.clamp(3, FANOUT),
            simd: InstructionSet::widest(),
            // SAFETY: created above.
            bytes: AtomicUsize::new(unsafe { &*root }.size()),
            counts: AtomicBool::new(false),
        }
    }

    /// Returns the address of the leaf that covers `key` or, if `strict`, of the leaf that covers
    /// the keys just below it. The caller holds a guard of the collector to which writers retire.
    /// O(log n).
    #[inline]
    pub fn find(&self, key: &K, strict: bool, guard: &Guard<'_>) -> LeafAddress {
        for _ in 0..RETRIES {
            if let Ok(address) = self.try_find(key, strict, guard) {
                return address;
            }
        }
        let _writers = self.writers.lock();
        let (node, at) = *self.path(key, strict).last().expect("a path has a node");
        // SAFETY: no thread changes the layer while the writers' lock is held.
        LeafAddress::of_child(unsafe { (*node).child(at) })
    }

    #[inline]
    fn try_find(&self, key: &K, strict: bool, _: &Guard<'_>) -> Result<LeafAddress, Obsolete> {
        let (mut node, mut version) = self.enter()?;
        loop {
            let at = node.route(key, strict, self.simd).ok_or(Obsolete)?;
            if node.height == 0 {
                point("search.find.routed");
            }
            let child = node.child(at);
            if node.height == 0 {
                return node.checked(version).map(|()| LeafAddress::of_child(child));
            }
            (node, version) = self.step(node, version, child)?;
        }
    }

    /// Works like [`SearchLayer::find`], for a caller that needs the leaf's high fence. Calls
    /// `look`, which returns the leaf's version, with the address while the layer leads there.
    /// Returns the version if the fence is a separator of the same node; the leaf then covered the
    /// key at that version. O(log n).
    #[inline]
    pub fn find_fenced(
        &self,
        key: &K,
        look: impl Fn(LeafAddress) -> Option<Version>,
        guard: &Guard<'_>,
    ) -> (LeafAddress, Option<Version>) {
        let bottom = self.try_bottom(|node| node.route(key, false, self.simd));
        if let Ok((node, version, at)) = bottom {
            let (child, inner) = (node.child(at), at + 1 < node.len());
            // An address from a torn read is not used.
            if node.checked(version).is_ok() {
                let address = LeafAddress::of_child(child);
                point("search.find.before_look");
                let seen = look(address);
                point("search.find.looked");
                if check!("search.fence.validate", node.checked(version).is_ok()) {
                    let inner = check!("search.fence.inner", inner);
                    return (address, seen.filter(|_| inner));
                }
            }
        }
        (self.find(key, false, guard), None)
    }

    /// Returns the address of the last leaf. O(log n).
    pub fn last(&self, _: &Guard<'_>) -> LeafAddress {
        let last = |node: &Node<K>| node.len().checked_sub(1);
        for _ in 0..RETRIES {
            if let Ok((node, version, at)) = self.try_bottom(last) {
                let child = node.child(at);
                if node.checked(version).is_ok() {
                    return LeafAddress::of_child(child);
                }
            }
        }
        let _writers = self.writers.lock();
        let mut node = self.root.load(Ordering::Relaxed);
        loop {
            // SAFETY: no thread changes the layer while the writers' lock is held.
            let here = unsafe { &*node };
            let child = here.child(here.len() - 1);
            if here.height == 0 {
                return LeafAddress::of_child(child);
            }
            node = ptr::with_exposed_provenance_mut(child);
        }
    }

    /// Prefetches the first cache lines of the leaf that covers `key` and of the leaves that follow
    /// it in its node. Returns the number of leaves. O(log n).
    pub fn prefetch_from(&self, key: &K, _: &Guard<'_>) -> usize {
        let Ok((node, _, at)) = self.try_bottom(|node| node.route(key, false, self.simd)) else {
            return 1;
        };
        // Addresses from a torn read are only prefetched.
        let len = node.len();
        for child in at..len {
            prefetch(ptr::with_exposed_provenance::<u8>(node.child(child)));
        }
        len.saturating_sub(at).max(1)
    }

    /// Descends along `route` to a lowest node. Returns the node, its version, and the child there.
    fn try_bottom(
        &self,
        route: impl Fn(&Node<K>) -> Option<usize>,
    ) -> Result<(&Node<K>, Version, usize), Obsolete> {
        let (mut node, mut version) = self.enter()?;
        loop {
            let at = route(node).ok_or(Obsolete)?;
            if node.height == 0 {
                return Ok((node, version, at));
            }
            (node, version) = self.step(node, version, node.child(at))?;
        }
    }

    /// Returns the root and its version.
    #[inline]
    fn enter(&self) -> Result<(&Node<K>, Version), Obsolete> {
        let root = self.root.load(Ordering::Acquire);
        // SAFETY: the caller's guard keeps a retired root alive.
        let node = unsafe { &*root };
        let version = node.lock.read()?;
        // A root that was split covers only its left part afterwards. Without this check, a search
        // would arrive at a leaf too far to the left and follow the list to the right one, which is
        // slow but correct.
        let current = self.root.load(Ordering::Acquire) == root;
        if current { Ok((node, version)) } else { Err(Obsolete) }
    }

    /// Moves from a node to its child, whose version is read before the parent is validated.
    #[inline]
    fn step<'a>(
        &'a self,
        node: &Node<K>,
        version: Version,
        child: usize,
    ) -> Result<(&'a Node<K>, Version), Obsolete> {
        // An address from a torn read is not followed.
        node.checked(version)?;
        // SAFETY: the node was a child at a moment of this guard.
        let below = unsafe { &*ptr::with_exposed_provenance::<Node<K>>(child) };
        if node.height == 1 {
            // The nearest caches do not hold the lowest level: its addresses are fetched with its
            // heads.
            below.prefetch();
            below.prefetch_children();
        }
        point(if node.height > 1 { "search.step.down" } else { "search.step.to_the_bottom" });
        let next = below.lock.read()?;
        if !fault!("search.step.second_validation") {
            node.checked(version)?;
        }
        Ok((below, next))
    }

    /// Returns the descent to `key`. The caller holds the writers' lock.
    fn path(&self, key: &K, strict: bool) -> Path<K> {
        let mut path = Vec::with_capacity(8);
        let mut node = self.root.load(Ordering::Relaxed);
        loop {
            // SAFETY: no thread changes the layer while the writers' lock is held.
            let here = unsafe { &*node };
            let at = here.route(key, strict, self.simd).expect("nothing changes");
            path.push((node, at));
            if here.height == 0 {
                return path;
            }
            node = ptr::with_exposed_provenance_mut(here.child(at));
        }
    }

    /// Takes the writers' lock for a change of the layer.
    fn lock_to_change(&self) -> MutexGuard<'_, ()> {
        // Relaxed: only a hint for counts.
        self.changing.fetch_add(1, Ordering::Relaxed);
        let writers = self.writers.lock();
        self.changing.fetch_sub(1, Ordering::Relaxed);
        writers
    }

    /// Maps the keys from `low_fence` on to `address`. O(log n).
    pub fn insert(&self, low_fence: &K, address: LeafAddress) {
        let _writers = self.lock_to_change();
        self.insert_child(low_fence, address);
        self.mark_around(low_fence);
    }

    fn insert_child(&self, low_fence: &K, address: LeafAddress) {
        let mut path = self.path(low_fence, false);
        let mut held: Vec<WriteGuard<'_>> = Vec::new();
        let (mut boundary, mut child) = (SeparatorEntry::new(low_fence), address.0.get());
        let separator = boundary.separator.map_or(0, Self::size_of);
        self.bytes.fetch_add(separator, Ordering::Relaxed);
        while let Some((node, at)) = path.pop() {
            // SAFETY: the writers' lock keeps the node alive.
            let node = unsafe { &*node };
            held.push(node.lock.enter_owned());
            point("search.insert.locked");
            if node.len() < self.fanout {
                return node.put(at, &boundary, child);
            }
            let mut contents = node.contents();
            contents.put(at, &boundary, child);
            // If low fences are inserted in ascending order, full nodes are left behind.
            let ascending = at + 1 == node.len()
                && path.iter().all(|(up, at)| {
                    // SAFETY: as above.
                    *at + 1 == unsafe { (**up).len() }
                });
            let all = contents.children.len();
            let stay = if ascending { all - 1 } else { all / 2 };
            let (left, middle, right) = contents.split(stay);
            node.fill(&left);
            let right = Node::boxed(node.height, &right);
            // SAFETY: created above.
            self.bytes.fetch_add(unsafe { &*right }.size(), Ordering::Relaxed);
            (boundary, child) = (middle, right.expose_provenance());
        }
        let root = self.root.load(Ordering::Relaxed);
        let mut contents =
            Contents { children: vec![root.expose_provenance()], ..Contents::default() };
        contents.put(0, &boundary, child);
        // SAFETY: as above.
        let above = Node::boxed(unsafe { (*root).height } + 1, &contents);
        // SAFETY: created above.
        self.bytes.fetch_add(unsafe { &*above }.size(), Ordering::Relaxed);
        self.root.store(above, Ordering::Release);
    }

    /// Lowers the low fence `old` of an address to `new`, which is above the previous low fence.
    /// O(log n).
    ///
    /// A concurrent search that uses the old separator may end at the address on the left.
    pub fn lower(&self, old: &K, new: &K, guard: &Guard<'_>) {
        let _writers = self.lock_to_change();
        let path = self.path(old, false);
        // The separator is the one before the last child of the descent that is not the first of
        // its node.
        let found = path.iter().rfind(|(_, at)| *at > 0);
        let Some((node, at)) = found else { unreachable!("the first leaf has no low_fence") };
        // SAFETY: the writers' lock keeps the node alive.
        let node = unsafe { &**node };
        let _held = node.lock.enter_owned();
        point("search.lower.locked");
        let boundary = SeparatorEntry::new(new);
        let separator = boundary.separator.map_or(0, Self::size_of);
        self.bytes.fetch_add(separator, Ordering::Relaxed);
        self.retire(node.replace(at - 1, &boundary), guard);
        self.mark_around(new);
    }

    /// Removes `low_fence`, which was inserted: its keys are mapped to where the keys below it are.
    /// O(log n).
    pub fn remove(&self, low_fence: &K, guard: &Guard<'_>) {
        let _writers = self.lock_to_change();
        let mut path = self.path(low_fence, false);
        let mut held: Vec<WriteGuard<'_>> = Vec::new();
        let mut gone: Vec<*mut Node<K>> = Vec::new();
        let mut raised = None;
        while let Some((pointer, at)) = path.pop() {
            // SAFETY: the writers' lock keeps the node alive.
            let node = unsafe { &*pointer };
            if node.len() == 1 {
                // The node is removed with its only child.
                debug_assert!(!path.is_empty(), "the first leaf is never removed");
                gone.push(pointer);
                continue;
            }
            held.push(node.lock.enter_owned());
            let boundary = node.take(at);
            if at > 0 {
                self.retire(boundary.separator, guard);
                break;
            }
            // The node's lower bound rises; an ancestor holds that bound. The nodes between get new
            // versions, so that a reader that followed the old bound does not enter the node.
            let above = path.iter().rposition(|(_, at)| *at > 0);
            if let Some(position) = above {
                if !fault!("search.remove.between") {
                    for (between, _) in path[position + 1..].iter().rev() {
                        // SAFETY: as above.
                        held.push(unsafe { &**between }.lock.enter_owned());
                    }
                }
                let (above, at) = path[position];
                // SAFETY: as above.
                let above = unsafe { &*above };
                held.push(above.lock.enter_owned());
                self.retire(above.replace(at - 1, &boundary), guard);
            }
            raised = Some(boundary);
            break;
        }
        for node in gone {
            self.retire_node(node, guard);
        }
        drop(held);
        // The descent to the node that shrank, by its new lower bound.
        let shrunk = raised.as_ref().and_then(SeparatorEntry::key).unwrap_or(low_fence);
        self.merge_sparse(shrunk, guard);
        self.lower_root(guard);
        self.mark_around(shrunk);
        self.mark_around(low_fence);
    }

    /// Removes roots that have a single child.
    fn lower_root(&self, guard: &Guard<'_>) {
        loop {
            let root = self.root.load(Ordering::Relaxed);
            // SAFETY: the writers' lock keeps the node alive.
            let node = unsafe { &*root };
            if node.height == 0 || node.len() > 1 {
                return;
            }
            self.root.store(ptr::with_exposed_provenance_mut(node.child(0)), Ordering::Release);
            self.retire_node(root, guard);
        }
    }

    fn retire_node(&self, node: *mut Node<K>, guard: &Guard<'_>) {
        // SAFETY: unlinked by the caller under the writers' lock; concurrent readers hold guards.
        unsafe {
            self.bytes.fetch_sub((*node).size(), Ordering::Relaxed);
            (*node).lock.enter_owned().unlock_obsolete();
            guard.retire(node);
        }
    }

    fn retire(&self, separator: Option<Separator<K>>, guard: &Guard<'_>) {
        if let Some(separator) = separator {
            self.bytes.fetch_sub(Self::size_of(separator), Ordering::Relaxed);
            // SAFETY: removed from its node under the writers' lock.
            unsafe { separator.retire(guard) };
        }
    }

    fn size_of(separator: Separator<K>) -> usize {
        // SAFETY: the separator belongs to this writer.
        unsafe { separator.size() }
    }

    /// Maps the keys from `low_fence` on to `address` instead of their former address. `low_fence`
    /// was inserted. O(log n).
    pub fn replace(&self, low_fence: &K, address: LeafAddress) {
        let _writers = self.lock_to_change();
        if let Some((node, at)) = self.path(low_fence, false).pop() {
            // SAFETY: the writers' lock keeps the node alive.
            let node = unsafe { &*node };
            let _held = node.lock.enter_owned();
            node.set_child(at, address.0.get());
        }
        self.mark_around(low_fence);
    }

    /// Returns the bytes of the nodes and their separators.
    pub fn memory_usage(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }
}

impl<K: Key + ?Sized> Drop for SearchLayer<K> {
    fn drop(&mut self) {
        let mut stack = vec![self.root.load(Ordering::Relaxed)];
        while let Some(node) = stack.pop() {
            // SAFETY: no other thread uses the layer, and each node is reached once.
            let node = unsafe { Box::from_raw(node) };
            for at in 0..node.len() {
                if node.height > 0 {
                    stack.push(ptr::with_exposed_provenance_mut(node.child(at)));
                }
                if at + 1 < node.len()
                    && let Some(separator) = node.separator(at)
                {
                    // SAFETY: as above.
                    unsafe { separator.free() };
                }
            }
        }
    }
}
