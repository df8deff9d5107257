//! The search layer: a B-tree of separators that leads from a key to its leaf.
//!
//! # Contract
//! [`SearchLayer`] maps *low fences*, the lower bounds of leaves, to the addresses of leaves. A
//! address is opaque here: no leaf is read. [`SearchLayer::find`] runs beside everything.
//! [`SearchLayer::insert`] and [`SearchLayer::remove`] exclude each other by a lock. A search that
//! overlaps a change returns the address of the state before or after it. An address that was
//! removed before the search began is never returned, so callers may retire a leaf after its
//! removal returns.
//!
//! # Invariants
//! 1. Separators of a node ascend strictly. Child *i* covers the keys from separator *i* − 1 (the
//!    node's lower bound for *i* = 0) up to separator *i*.
//! 2. All paths from the root have the same length. A node has at least one child.
//! 3. A *head* is eight bytes of its separator, big-endian, behind the node's prefix, which all
//!    separators of the node share; a *second* is the eight bytes behind the head. Heads ascend,
//!    and seconds of equal heads do, perhaps not strictly. Unused ones are `u64::MAX`.
//! 4. Integers: a *fingerprint* is what the separator is above the node's first one, without its
//!    low bits, in 16 bits. Fingerprints ascend, perhaps not strictly.
//!
//! # Protocol
//! Readers couple versions: they read the child's version, then validate the parent, so a child is
//! entered only while the parent still leads to it. A reader that restarts [`RETRIES`] times
//! searches under the lock of the writers. Writers lock all nodes of a change and unlock them at
//! its end.
//!
//! [`SearchLayer::find_fenced`] reads a leaf's version between two validations of the lowest node.
//! Its callers change leaves and low fences together under the leaf's lock. So at an unlocked
//! version the leaf's high fence is the separator above its address, if the node holds that. A leaf
//! at the end of its node has its fence in a node above, which may sink meanwhile.
//!
//! # Why a B-tree
//! A node compares 64 heads in eight vector instructions whose misses overlap, and 64 fingerprints
//! in two. Separators are as short as their neighbours allow: few bytes behind a common prefix
//! decide.
//!
//! Source: the search layer of HydraList (§4.2), whose layer lags; here splits update it before
//! they return. Heads behind a prefix are prefix B-trees (Bayer, Unterauer 1977) with normalized
//! keys.

#![expect(unsafe_code, reason = "nodes are followed by address")]

mod contents;
mod counts;
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

/// Restarts of a search before it takes the writers' lock.
const RETRIES: usize = 16;
/// Keys that descend together in [`SearchLayer::find_many`]: as many misses as a core overlaps.
pub const GROUP: usize = 16;

/// The address of a leaf. The search layer does not follow it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeafAddress(NonZero<usize>);

impl LeafAddress {
    /// The address with this number.
    #[inline]
    pub fn new(address: NonZero<usize>) -> Self {
        Self(address)
    }

    /// Returns the number.
    #[inline]
    pub fn get(self) -> NonZero<usize> {
        self.0
    }

    /// The address in a lowest node, which was validated.
    #[inline]
    fn of_child(child: usize) -> Self {
        Self(NonZero::new(child).expect("no leaf is at address 0"))
    }
}

/// Maps low fences to addresses; see the [module](self).
pub struct SearchLayer<K: Key + ?Sized> {
    root: AtomicPtr<Node<K>>,
    /// Excludes other writers. A writer that panics has changed nothing: what may panic runs before
    /// its first store.
    writers: Lock<()>,
    /// Number of threads that wait for `writers` to change the layer: counts let them go first.
    changing: AtomicUsize,
    /// Children of a node at most; tests shrink it.
    fanout: usize,
    simd: InstructionSet,
    bytes: AtomicUsize,
    /// Whether nodes may have counts; under the writers' lock.
    counts: AtomicBool,
}

// SAFETY: nodes are atomics; who frees what follows from the contract.
unsafe impl<K: Key + ?Sized> Send for SearchLayer<K> {}
// SAFETY: as above.
unsafe impl<K: Key + ?Sized> Sync for SearchLayer<K> {}

/// A node on the way down and the child taken there.
type Path<K> = Vec<(*mut Node<K>, usize)>;

impl<K: Key + ?Sized> SearchLayer<K> {
    /// A layer that leads every key to `first`. Nodes have at most `fanout` children, 3 to
    /// [`FANOUT`].
    pub fn new(first: LeafAddress, fanout: usize) -> Self {
        let contents = Contents { children: vec![first.0.get()], ..Contents::default() };
        let root = Node::boxed(0, &contents);
        Self {
            root: AtomicPtr::new(root),
            writers: Lock::new(()),
            changing: AtomicUsize::new(0),
            fanout: fanout.clamp(3, FANOUT),
            simd: InstructionSet::widest(),
            // SAFETY: just made.
            bytes: AtomicUsize::new(unsafe { &*root }.size()),
            counts: AtomicBool::new(false),
        }
    }

    /// The address of the leaf that covers `key`; if `strict`, of the leaf that covers the keys
    /// just below it. The caller holds a guard of the collector that writers retire to. O(log n).
    #[inline]
    pub fn find(&self, key: &K, strict: bool, guard: &Guard<'_>) -> LeafAddress {
        for _ in 0..RETRIES {
            if let Ok(address) = self.try_find(key, strict, guard) {
                return address;
            }
        }
        let _writers = self.writers.lock();
        let (node, at) = *self.path(key, strict).last().expect("a path has a node");
        // SAFETY: nothing changes under the writers' lock.
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
            (node, version) = self.step(node, version, child, true)?;
        }
    }

    /// [`SearchLayer::find`] for a caller that needs the leaf's high fence. `look` runs with the
    /// address while the layer leads there, and tells the leaf's version. It comes back if the
    /// fence is a separator of the same node: then the leaf covered the key at that version. O(log
    /// n).
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
            // An address of a torn read is not followed.
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

    /// The address of the last leaf. O(log n).
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
            // SAFETY: nothing changes under the writers' lock.
            let here = unsafe { &*node };
            let child = here.child(here.len() - 1);
            if here.height == 0 {
                return LeafAddress::of_child(child);
            }
            node = ptr::with_exposed_provenance_mut(child);
        }
    }

    /// Asks for the first lines of the leaf that covers `key` and of those that follow it in its
    /// node.
    /// Returns how many. O(log n).
    pub fn prefetch_from(&self, key: &K, _: &Guard<'_>) -> usize {
        let Ok((node, _, at)) = self.try_bottom(|node| node.route(key, false, self.simd)) else {
            return 1;
        };
        // Addresses of a torn read are only asked for.
        let len = node.len();
        for child in at..len {
            prefetch(ptr::with_exposed_provenance::<u8>(node.child(child)));
        }
        len.saturating_sub(at).max(1)
    }

    /// Goes down by `route` to a lowest node: the node, its version, and the child there.
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
            (node, version) = self.step(node, version, node.child(at), true)?;
        }
    }

    /// The root and its version.
    #[inline]
    fn enter(&self) -> Result<(&Node<K>, Version), Obsolete> {
        let root = self.root.load(Ordering::Acquire);
        // SAFETY: alive under the caller's guard, or never retired.
        let node = unsafe { &*root };
        let version = node.lock.read()?;
        // A root that was split covers only its left part from then on. Without this check a search
        // would lead to a leaf further on the left, and the list from there to the right one: slow,
        // not wrong.
        let current = self.root.load(Ordering::Acquire) == root;
        if current { Ok((node, version)) } else { Err(Obsolete) }
    }

    /// From a node to its child: the parent is validated after the child's version was read. A
    /// search that is `alone` asks for all of a lowest node; a group asks for what it needs.
    #[inline]
    fn step<'a>(
        &'a self,
        node: &Node<K>,
        version: Version,
        child: usize,
        alone: bool,
    ) -> Result<(&'a Node<K>, Version), Obsolete> {
        // An address of a torn read is not followed.
        node.checked(version)?;
        // SAFETY: a child at a moment of this guard.
        let below = unsafe { &*ptr::with_exposed_provenance::<Node<K>>(child) };
        if alone && node.height == 1 {
            // The nearest caches do not hold the lowest level: its addresses come with its heads.
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

    /// The addresses of up to [`GROUP`] keys: all descend together, so that their misses overlap.
    pub fn find_many(&self, keys: &[&K], addresses: &mut [LeafAddress; GROUP], guard: &Guard<'_>) {
        let mut children = [0; GROUP];
        let found = self.try_find_many(keys, &mut children);
        for ((key, child), address) in keys.iter().zip(children).zip(addresses) {
            *address = match found {
                Ok(()) => LeafAddress::of_child(child),
                Err(Obsolete) => self.find(key, false, guard),
            };
        }
    }

    /// Finds the children of lowest nodes that lead to the keys.
    fn try_find_many(&self, keys: &[&K], children: &mut [usize; GROUP]) -> Result<(), Obsolete> {
        let (root, version) = self.enter()?;
        let mut at = [(root, version); GROUP];
        let mut spans = [(0, 0); GROUP];
        for height in (0..=root.height).rev() {
            // The nearest caches hold the upper levels; of the lowest each step waits.
            for ((key, span), (node, _)) in keys.iter().zip(&mut spans).zip(&at) {
                *span = node.narrow(key, self.simd).ok_or(Obsolete)?;
                node.prefetch_span(*span);
            }
            for (((key, span), child), (node, version)) in
                keys.iter().zip(&spans).zip(children.iter_mut()).zip(&at)
            {
                let to = if span.0 == span.1 {
                    span.0
                } else {
                    node.decide(key, false, *span, self.simd).ok_or(Obsolete)?
                };
                *child = node.child(to);
                node.checked(*version)?;
                if height > 0 {
                    // SAFETY: a child at a moment of this guard.
                    unsafe { &*ptr::with_exposed_provenance::<Node<K>>(*child) }.prefetch();
                }
            }
            if height > 0 {
                for (child, (node, version)) in children.iter().zip(&mut at).take(keys.len()) {
                    (*node, *version) = self.step(node, *version, *child, false)?;
                }
            }
        }
        Ok(())
    }

    /// The way down, under the writers' lock.
    fn path(&self, key: &K, strict: bool) -> Path<K> {
        let mut path = Vec::with_capacity(8);
        let mut node = self.root.load(Ordering::Relaxed);
        loop {
            // SAFETY: nothing changes under the writers' lock.
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

    /// Leads the keys from `low_fence` on to `address`. O(log n).
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
            // SAFETY: the writers' lock keeps the node.
            let node = unsafe { &*node };
            held.push(node.lock.enter_owned());
            point("search.insert.locked");
            if node.len() < self.fanout {
                return node.put(at, &boundary, child);
            }
            let mut contents = node.contents();
            contents.put(at, &boundary, child);
            // Ascending low fences leave full nodes behind.
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
            // SAFETY: just made.
            self.bytes.fetch_add(unsafe { &*right }.size(), Ordering::Relaxed);
            (boundary, child) = (middle, right.expose_provenance());
        }
        let root = self.root.load(Ordering::Relaxed);
        let mut contents =
            Contents { children: vec![root.expose_provenance()], ..Contents::default() };
        contents.put(0, &boundary, child);
        // SAFETY: as above.
        let above = Node::boxed(unsafe { (*root).height } + 1, &contents);
        // SAFETY: just made.
        self.bytes.fetch_add(unsafe { &*above }.size(), Ordering::Relaxed);
        self.root.store(above, Ordering::Release);
    }

    /// Lowers the low fence `old` of an address to `new`, which lies above the low fence before it.
    /// O(log n).
    ///
    /// A search that comes by the old separator ends at the address on the left.
    pub fn lower(&self, old: &K, new: &K, guard: &Guard<'_>) {
        let _writers = self.lock_to_change();
        let path = self.path(old, false);
        // The separator is the one before the last child that is not the first of its node.
        let found = path.iter().rfind(|(_, at)| *at > 0);
        let Some((node, at)) = found else { unreachable!("the first leaf has no low_fence") };
        // SAFETY: the writers' lock keeps the node.
        let node = unsafe { &**node };
        let _held = node.lock.enter_owned();
        point("search.lower.locked");
        let boundary = SeparatorEntry::new(new);
        let separator = boundary.separator.map_or(0, Self::size_of);
        self.bytes.fetch_add(separator, Ordering::Relaxed);
        self.retire(node.replace(at - 1, &boundary), guard);
        self.mark_around(new);
    }

    /// Has the keys from `low_fence` on lead where those below it lead. `low_fence` was inserted.
    /// O(log n).
    pub fn remove(&self, low_fence: &K, guard: &Guard<'_>) {
        let _writers = self.lock_to_change();
        let mut path = self.path(low_fence, false);
        let mut held: Vec<WriteGuard<'_>> = Vec::new();
        let mut gone: Vec<*mut Node<K>> = Vec::new();
        let mut raised = None;
        while let Some((pointer, at)) = path.pop() {
            // SAFETY: the writers' lock keeps the node.
            let node = unsafe { &*pointer };
            if node.len() == 1 {
                // The node goes with its only child.
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
            // The node's lower bound rises: an ancestor holds it. The nodes between get new
            // versions: a
            // reader that came by the old bound must not enter the node any more.
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
        // The way to the node that shrank: from its lower bound on.
        let shrunk = raised.as_ref().and_then(SeparatorEntry::key).unwrap_or(low_fence);
        self.merge_sparse(shrunk, guard);
        self.lower_root(guard);
        self.mark_around(shrunk);
        self.mark_around(low_fence);
    }

    /// Roots with one child hand over to it.
    fn lower_root(&self, guard: &Guard<'_>) {
        loop {
            let root = self.root.load(Ordering::Relaxed);
            // SAFETY: the writers' lock keeps the node.
            let node = unsafe { &*root };
            if node.height == 0 || node.len() > 1 {
                return;
            }
            self.root.store(ptr::with_exposed_provenance_mut(node.child(0)), Ordering::Release);
            self.retire_node(root, guard);
        }
    }

    fn retire_node(&self, node: *mut Node<K>, guard: &Guard<'_>) {
        // SAFETY: unlinked by the caller under the writers' lock; readers inside hold guards.
        unsafe {
            self.bytes.fetch_sub((*node).size(), Ordering::Relaxed);
            (*node).lock.enter_owned().unlock_obsolete();
            guard.retire(node);
        }
    }

    fn retire(&self, separator: Option<Separator<K>>, guard: &Guard<'_>) {
        if let Some(separator) = separator {
            self.bytes.fetch_sub(Self::size_of(separator), Ordering::Relaxed);
            // SAFETY: taken out of its node under the writers' lock.
            unsafe { separator.retire(guard) };
        }
    }

    fn size_of(separator: Separator<K>) -> usize {
        // SAFETY: a separator of the writer's own.
        unsafe { separator.size() }
    }

    /// Leads the keys from `low_fence` on to `address`, and no more to where they led. `low_fence`
    /// was inserted. O(log n).
    pub fn replace(&self, low_fence: &K, address: LeafAddress) {
        let _writers = self.lock_to_change();
        if let Some((node, at)) = self.path(low_fence, false).pop() {
            // SAFETY: the writers' lock keeps the node.
            let node = unsafe { &*node };
            let _held = node.lock.enter_owned();
            node.set_child(at, address.0.get());
        }
        self.mark_around(low_fence);
    }

    /// Bytes of the nodes and their separators.
    pub fn memory_usage(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }
}

impl<K: Key + ?Sized> Drop for SearchLayer<K> {
    fn drop(&mut self) {
        let mut stack = vec![self.root.load(Ordering::Relaxed)];
        while let Some(node) = stack.pop() {
            // SAFETY: nobody else uses the layer; each node is reached once.
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
