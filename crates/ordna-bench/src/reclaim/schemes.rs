//! The ways to free removed memory, behind one interface, and the nodes that they free.

#![expect(unsafe_code, reason = "retiring is unsafe by nature")]

use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

use ordna_base::reclaim::{Collector, Retire};
use ordna_papers::barrier::AccessBarrier;

/// Bytes of a node: about those of a skip list's with two words.
pub const NODE: usize = 48;

/// Counts nodes that were made and that were freed.
pub struct Tally {
    made: AtomicUsize,
    /// Boxed; nodes point to it.
    freed: NonNull<AtomicUsize>,
}

// SAFETY: an atomic, which lives until `end`.
unsafe impl Sync for Tally {}

impl Tally {
    pub fn new() -> Self {
        let freed = Box::leak(Box::new(AtomicUsize::new(0)));
        Self { made: AtomicUsize::new(0), freed: NonNull::from(freed) }
    }

    /// A new node.
    #[inline]
    pub fn node(&self) -> Box<Node> {
        self.made.fetch_add(1, Ordering::Relaxed);
        Box::new(Node { freed: self.freed, _filler: [1; FILLER] })
    }

    /// Nodes that are not freed.
    pub fn held(&self) -> usize {
        // SAFETY: freed in `end` only. Acquire: pairs with the end of each node.
        let freed = unsafe { self.freed.as_ref() }.load(Ordering::Acquire);
        self.made.load(Ordering::Relaxed) - freed
    }

    /// Ends; returns whether all nodes were freed. If not, the counter stays for them.
    pub fn end(self) -> bool {
        let none_left = self.held() == 0;
        if none_left {
            // SAFETY: boxed by `new`. Only nodes point to it, and the last thing that each of them did was
            // to count itself.
            drop(unsafe { Box::from_raw(self.freed.as_ptr()) });
        }
        none_left
    }
}

const FILLER: usize = NODE - size_of::<NonNull<AtomicUsize>>();

/// What is retired.
pub struct Node {
    freed: NonNull<AtomicUsize>,
    _filler: [u8; FILLER],
}

const _: () = assert!(size_of::<Node>() == NODE);

// SAFETY: it points to an atomic that outlives it.
unsafe impl Send for Node {}

impl Drop for Node {
    fn drop(&mut self) {
        // SAFETY: the counter lives as long as a node that it has not counted. Release: whoever finds all
        // counted may free it.
        unsafe { self.freed.as_ref() }.fetch_add(1, Ordering::Release);
    }
}

impl Retire for Node {
    unsafe fn free(memory: *mut Self) {
        // SAFETY: made by `Box::into_raw` and retired once.
        drop(unsafe { Box::from_raw(memory) });
    }
}

/// What all of them offer, as far as it is measured.
pub trait Scheme: Sync {
    fn new() -> Self;
    /// Enters, calls, leaves.
    fn within<R>(&self, body: impl FnOnce() -> R) -> R;
    /// Allocates a node and retires it in a section of its own, as a remove does.
    fn retire(&self, tally: &Tally);
    /// After the end of the one that retired: works until all is freed, if it goes on, or gives up.
    fn free_the_rest(_all_is_freed: impl Fn() -> bool) {}
}

pub struct Seize(Collector);

impl Scheme for Seize {
    fn new() -> Self {
        Self(Collector::new())
    }
    #[inline]
    fn within<R>(&self, body: impl FnOnce() -> R) -> R {
        let _guard = self.0.pin();
        body()
    }
    #[inline]
    fn retire(&self, tally: &Tally) {
        let guard = self.0.pin();
        // SAFETY: the node was never shared and is retired once.
        unsafe { guard.retire(Box::into_raw(tally.node())) };
    }
}

pub struct Sessions(AccessBarrier);

impl Scheme for Sessions {
    fn new() -> Self {
        Self(AccessBarrier::new())
    }
    #[inline]
    fn within<R>(&self, body: impl FnOnce() -> R) -> R {
        let _token = self.0.enter();
        body()
    }
    #[inline]
    fn retire(&self, tally: &Tally) {
        let token = self.0.enter();
        // SAFETY: the node was never shared and is retired once.
        unsafe { token.retire(Box::into_raw(tally.node())) };
    }
}

/// With the library's own collector, which most of its users share and which is never dropped.
#[cfg(feature = "peers")]
pub struct Epoch;

#[cfg(feature = "peers")]
impl Scheme for Epoch {
    fn new() -> Self {
        Self
    }
    #[inline]
    fn within<R>(&self, body: impl FnOnce() -> R) -> R {
        let _guard = crossbeam_epoch::pin();
        body()
    }
    #[inline]
    fn retire(&self, tally: &Tally) {
        let guard = crossbeam_epoch::pin();
        let node: crossbeam_epoch::Owned<Node> = tally.node().into();
        let node = node.into_shared(&guard);
        // SAFETY: the node was never shared and is retired once.
        unsafe { guard.defer_destroy(node) };
    }
    fn free_the_rest(all_is_freed: impl Fn() -> bool) {
        let give_up = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while !all_is_freed() && std::time::Instant::now() < give_up {
            // Moves the epoch on and frees a few bags.
            crossbeam_epoch::pin().flush();
        }
    }
}
