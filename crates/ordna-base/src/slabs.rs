//! Memory for nodes of one size: slabs of 2 MiB that ask the system for huge pages.
//!
//! Neighbours in a list may be anywhere in memory. With pages of 4 KiB, nearly every step to
//! another node begins with a walk through page tables that are not in a cache. A prefetch waits
//! for that walk as a load does.
//!
//! # Contract
//! Any number of threads allocate and free concurrently, ordered by a lock for each pool. It is
//! held for a few instructions, or until the system has answered if a slab is allocated or freed.
//! About one node is created in twenty insertions. Memory stays valid after its [`Pool`] was
//! dropped, until it is freed.
//!
//! # Invariants
//! 1. The address of a slab is a multiple of its size, so the address of a node determines its
//!    slab.
//! 2. The list that begins at `open` holds exactly the slabs that have room and were not chosen to
//!    become empty. An empty slab is freed immediately.
//!
//! The first `PLAIN` bytes of a pool's nodes are not in slabs, so that small indexes stay small. If
//! the system has no huge pages, a slab is ordinary memory.
//!
//! One live node, or one dead node that is not yet freed, keeps its whole slab alive.
//! [`Pool::spare`] counts the unused bytes. The owner of the nodes may move those in sparse slabs,
//! see [`Pool::begin_compaction`].

#![expect(unsafe_code, reason = "an allocator")]

use std::alloc::{Layout, alloc, dealloc};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use crate::sync::Lock;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::lock::MutexGuard;

/// Size and alignment of a slab in bytes: a huge page of x86-64 and, usually, of AArch64.
pub(crate) const SLAB: usize = 2 << 20;

/// Number of bytes of live nodes up to which nodes are allocated one by one. The second-level TLBs
/// of current processors cover this much with small pages.
const PLAIN: usize = 8 << 20;

pub(crate) const LAYOUT: Layout = match Layout::from_size_align(SLAB, SLAB) {
    Ok(layout) => layout,
    Err(_) => panic!("a power of two"),
};

/// Memory for nodes of one size. Clones refer to the same pool.
#[derive(Clone)]
pub struct Pool(Arc<PoolShared>);

struct PoolShared {
    /// Distance in bytes from one node to the next, which is also their alignment.
    size: usize,
    align: usize,
    state: Lock<PoolState>,
}

struct PoolState {
    /// Number of live nodes.
    nodes: usize,
    /// The first slab in the list of those with room.
    open: *mut PoolSlab,
    slabs: Vec<*mut PoolSlab>,
    /// Number of nodes in slabs.
    used: usize,
}

// SAFETY: the slabs belong to the pool; what is in their heads is used under the lock of the state.
unsafe impl Send for PoolState {}

/// The head of a slab. All fields except `shared` and `sparse` are used under the lock of the
/// pool's state. `shared` is read without it, to get at the lock. So there must never be a `&mut`
/// to the whole head, only to single fields.
struct PoolSlab {
    shared: Arc<PoolShared>,
    /// Number of nodes in use.
    used: usize,
    /// Offset of the memory that has never been used.
    fresh: usize,
    /// Freed nodes, each of which holds the address of the next.
    free: *mut u8,
    /// Its neighbours in the list of slabs with room, if it is in that list.
    next: *mut Self,
    prev: *mut Self,
    /// Whether it is in that list.
    listed: bool,
    /// Whether its nodes should be moved elsewhere. Read without the lock.
    sparse: AtomicBool,
}

impl Pool {
    /// Creates a pool for nodes of this layout.
    pub fn new(layout: Layout) -> Self {
        let layout = layout.pad_to_align();
        let (size, align) = (layout.size().max(size_of::<*mut u8>()), layout.align());
        let state = PoolState { nodes: 0, open: ptr::null_mut(), slabs: Vec::new(), used: 0 };
        Self(Arc::new(PoolShared { size, align, state: Lock::new(state) }))
    }

    /// Allocates memory for another node, to be freed with [`Pool::free`]. Returns `None` if the
    /// caller has to allocate it elsewhere.
    pub fn allocate(&self) -> Option<NonNull<u8>> {
        let mut state = self.0.lock();
        state.nodes += 1;
        if state.nodes * self.0.size <= PLAIN {
            return None;
        }
        // SAFETY: a new slab is in no list, an open one is there, and the lock is held.
        unsafe {
            if state.open.is_null() {
                let slab = PoolSlab::new(&self.0)?.as_ptr();
                state.open(slab);
                state.slabs.push(slab);
            }
            state.used += 1;
            let slab = state.open;
            let memory = PoolSlab::take(slab, &self.0);
            if !PoolSlab::has_room(slab, &self.0) {
                state.close(slab);
            }
            Some(memory)
        }
    }

    /// Counts one live node less. Its memory may be freed later.
    pub fn forget(&self) {
        let mut state = self.0.lock();
        state.nodes = state.nodes.saturating_sub(1);
    }

    /// Returns whether more than a quarter of the slabs' room is without a live node, so that
    /// [`Pool::begin_compaction`] is worthwhile.
    pub fn has_much_room(&self) -> bool {
        let state = self.0.lock();
        let slabs = state.slabs.len() * SLAB;
        slabs >= PLAIN && state.nodes * self.0.size < slabs / 4 * 3
    }

    /// Chooses the slabs with the fewest nodes, as many as the others have room for, or all slabs
    /// if there are so few nodes that new ones would not use slabs. No memory is allocated in the
    /// chosen slabs until [`Pool::end_compaction`]. [`Pool::is_sparse`] identifies their nodes,
    /// which the owner moves. Returns whether there are any. O(s log s) with s slabs. One caller at
    /// a time.
    pub fn begin_compaction(&self) -> bool {
        let mut state = self.0.lock();
        // SAFETY: listed slabs are there, and the lock is held.
        let used = |slab: &*mut PoolSlab| unsafe { (**slab).used };
        let mut slabs = state.slabs.clone();
        slabs.sort_unstable_by_key(used);
        let capacity = (SLAB - self.0.start()) / self.0.size;
        let mut room: usize = slabs.iter().map(|slab| capacity - used(slab)).sum();
        let (mut moving, mut any) = (0, false);
        let without_slabs = state.nodes * self.0.size < PLAIN;
        for slab in slabs {
            // The room of a chosen slab no longer counts.
            room -= capacity - used(&slab);
            moving += used(&slab);
            if moving > room && !without_slabs {
                break;
            }
            any = true;
            // SAFETY: as above.
            unsafe {
                (*slab).sparse.store(true, Ordering::Relaxed);
                if (*slab).listed {
                    state.close(slab);
                }
            }
        }
        any
    }

    /// Returns whether the node's slab was chosen to become empty.
    ///
    /// # Safety
    /// The memory was allocated with [`Pool::allocate`] of some pool and is not freed.
    pub unsafe fn is_sparse(memory: NonNull<u8>) -> bool {
        let slab = memory.as_ptr().addr() & !(SLAB - 1);
        let slab = ptr::with_exposed_provenance_mut::<PoolSlab>(slab);
        // SAFETY: the slab contains this node, so it exists.
        unsafe { (*slab).sparse.load(Ordering::Relaxed) }
    }

    /// Ends a compaction: memory may be allocated again in chosen slabs that still hold nodes.
    pub fn end_compaction(&self) {
        let mut state = self.0.lock();
        for slab in state.slabs.clone() {
            // SAFETY: listed slabs are there, and the lock is held.
            unsafe {
                if (*slab).sparse.swap(false, Ordering::Relaxed)
                    && PoolSlab::has_room(slab, &self.0)
                {
                    state.open(slab);
                }
            }
        }
    }

    /// Frees a node's memory.
    ///
    /// # Safety
    /// The memory was allocated with [`Pool::allocate`] of some pool, and no thread uses it any
    /// longer.
    pub unsafe fn free(memory: NonNull<u8>) {
        let slab = memory.as_ptr().addr() & !(SLAB - 1);
        let slab = ptr::with_exposed_provenance_mut::<PoolSlab>(slab);
        // SAFETY: the slab contains this node, so it exists.
        let shared = unsafe { (*slab).shared.clone() };
        let mut state = shared.lock();
        state.used -= 1;
        // SAFETY: the node belongs to the caller and has room for an aligned pointer; the lock is
        // held.
        unsafe {
            memory.as_ptr().cast::<*mut u8>().write((*slab).free);
            let had_room = PoolSlab::has_room(slab, &shared);
            (*slab).free = memory.as_ptr();
            (*slab).used -= 1;
            if !had_room && !(*slab).sparse.load(Ordering::Relaxed) {
                state.open(slab);
            }
            if (*slab).used == 0 {
                if (*slab).listed {
                    state.close(slab);
                }
                state.slabs.retain(|other| *other != slab);
                slab.drop_in_place();
                dealloc(slab.cast(), LAYOUT);
            }
        }
    }

    /// Returns the number of bytes in slabs that no node uses.
    pub fn spare(&self) -> usize {
        let state = self.0.lock();
        state.slabs.len() * SLAB - state.used * self.0.size
    }
}

impl PoolShared {
    fn lock(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock()
    }

    /// Returns the offset of the first node in a slab.
    fn start(&self) -> usize {
        size_of::<PoolSlab>().next_multiple_of(self.align)
    }
}

impl PoolState {
    /// Puts a slab at the front of the list of slabs with room.
    ///
    /// # Safety
    /// The slab is there and not in the list, and the lock is held.
    unsafe fn open(&mut self, slab: *mut PoolSlab) {
        // SAFETY: by the caller; slabs in the list are there.
        unsafe {
            (*slab).listed = true;
            (*slab).prev = ptr::null_mut();
            (*slab).next = self.open;
            if !self.open.is_null() {
                (*self.open).prev = slab;
            }
        }
        self.open = slab;
    }

    /// Removes a slab from that list.
    ///
    /// # Safety
    /// The slab is in the list, and the lock is held.
    unsafe fn close(&mut self, slab: *mut PoolSlab) {
        // SAFETY: by the caller; slabs in the list are there.
        unsafe {
            (*slab).listed = false;
            let (next, prev) = ((*slab).next, (*slab).prev);
            if !next.is_null() {
                (*next).prev = prev;
            }
            if prev.is_null() {
                self.open = next;
            } else {
                (*prev).next = next;
            }
        }
    }
}

impl PoolSlab {
    fn new(shared: &Arc<PoolShared>) -> Option<NonNull<Self>> {
        // SAFETY: the layout is not empty.
        let slab = NonNull::new(unsafe { alloc(LAYOUT) })?;
        ask_for_huge_pages(slab);
        let _ = slab.as_ptr().expose_provenance();
        let head = Self {
            shared: shared.clone(),
            used: 0,
            fresh: shared.start(),
            free: ptr::null_mut(),
            next: ptr::null_mut(),
            prev: ptr::null_mut(),
            listed: false,
            sparse: AtomicBool::new(false),
        };
        // SAFETY: new memory, large enough, aligned to its size.
        unsafe { slab.cast::<Self>().write(head) };
        Some(slab.cast())
    }

    /// # Safety
    /// The slab is there, and the lock of its pool is held.
    unsafe fn has_room(slab: *const Self, shared: &PoolShared) -> bool {
        // SAFETY: by the caller.
        unsafe { !(*slab).free.is_null() || (*slab).fresh + shared.size <= SLAB }
    }

    /// Returns the memory of a node.
    ///
    /// # Safety
    /// The slab is there and has room, and the lock of its pool is held.
    unsafe fn take(slab: *mut Self, shared: &PoolShared) -> NonNull<u8> {
        // SAFETY: the caller upholds the contract. A freed node holds the address of the next;
        // memory that was never used is in bounds.
        unsafe {
            (*slab).used += 1;
            match NonNull::new((*slab).free) {
                Some(memory) => {
                    (*slab).free = memory.cast::<*mut u8>().read();
                    memory
                }
                None => {
                    let memory = NonNull::new_unchecked(slab).cast::<u8>().add((*slab).fresh);
                    (*slab).fresh += shared.size;
                    memory
                }
            }
        }
    }
}

/// Returns the number of bytes in huge pages that back the memory for which this process has
/// requested them, that is, the slabs. Returns `None` if the system does not report it. Reads
/// `/proc/self/smaps`, which takes milliseconds: O(mappings).
pub fn huge_bytes() -> Option<usize> {
    let maps = std::fs::read_to_string("/proc/self/smaps").ok()?;
    let (mut total, mut here) = (0, 0);
    for line in maps.lines() {
        if let Some(size) = line.strip_prefix("AnonHugePages:") {
            here = size.trim().strip_suffix(" kB")?.parse().ok()?;
        }
        // The last line of a mapping; "hg" is the effect of `ask_for_huge_pages`.
        if line.starts_with("VmFlags:") && line.split_whitespace().any(|flag| flag == "hg") {
            total += here << 10;
        }
    }
    Some(total)
}

/// Asks the system to back the slab with a huge page. A refusal does not matter.
#[inline]
pub(crate) fn ask_for_huge_pages(slab: NonNull<u8>) {
    #[cfg(target_os = "linux")]
    // SAFETY: the memory belongs to this process, and the advice does not change its contents.
    let _ = unsafe { libc::madvise(slab.as_ptr().cast(), SLAB, libc::MADV_HUGEPAGE) };
    #[cfg(not(target_os = "linux"))]
    let _ = slab;
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const NODE: Layout = match Layout::from_size_align(1280, 64) {
        Ok(layout) => layout,
        Err(_) => panic!(),
    };
    const A_SLAB: usize = SLAB / 1280;

    /// Returns how many slabs have room, and checks their list.
    fn open(state: &PoolState) -> usize {
        let (mut count, mut before, mut slab) = (0, ptr::null_mut(), state.open);
        // SAFETY: slabs in the list are there, and the caller holds the lock.
        while let Some(head) = unsafe { slab.as_ref() } {
            assert_eq!(head.prev, before);
            assert!(!head.free.is_null() || head.fresh + 1280 <= SLAB);
            (count, before, slab) = (count + 1, slab, head.next);
        }
        count
    }

    fn past_the_plain_ones() -> Pool {
        let pool = Pool::new(NODE);
        assert!((0..PLAIN / 1280).all(|_| pool.allocate().is_none()));
        pool
    }

    #[test]
    fn memory_is_aligned_disjoint_and_used_again() {
        let pool = past_the_plain_ones();
        let take =
            |count| -> Vec<NonNull<u8>> { (0..count).map(|_| pool.allocate().unwrap()).collect() };
        let mut nodes = take(A_SLAB * 3);
        let places: HashSet<usize> = nodes.iter().map(|node| node.as_ptr().addr()).collect();
        assert_eq!(places.len(), nodes.len());
        for node in &nodes {
            let place = node.as_ptr().addr();
            assert!(place.is_multiple_of(64));
            assert!(place % SLAB >= size_of::<PoolSlab>() && place % SLAB + 1280 <= SLAB);
            assert!((1..1280).all(|byte| !places.contains(&(place + byte))));
            // SAFETY: 1280 bytes of this test's own.
            unsafe { node.write_bytes(0xA5, 1280) };
        }
        let slabs = |pool: &Pool| pool.0.lock().slabs.len();
        let before = slabs(&pool);
        let gone: Vec<_> = nodes.iter().copied().step_by(2).collect();
        nodes.retain(|node| !gone.contains(node));
        for node in &gone {
            // SAFETY: used by no thread.
            unsafe { Pool::free(*node) };
        }
        assert_eq!(open(&pool.0.lock()), before, "each has room");
        let again = take(gone.len());
        assert_eq!(slabs(&pool), before, "freed memory is used first");
        assert_eq!(open(&pool.0.lock()), 0);
        nodes.extend(again);
        let all: HashSet<_> = nodes.iter().map(|node| node.as_ptr().addr()).collect();
        assert_eq!(all, places);
        for node in nodes {
            // SAFETY: as above.
            unsafe { Pool::free(node) };
        }
        assert_eq!((slabs(&pool), pool.spare(), open(&pool.0.lock())), (0, 0, 0));
    }

    #[test]
    fn memory_outlives_its_pool_and_small_pools_have_no_slab() {
        let pool = past_the_plain_ones();
        let node = pool.allocate().unwrap();
        assert_eq!(pool.spare(), SLAB - 1280);
        pool.forget();
        pool.forget();
        assert!(pool.allocate().is_none(), "as many as before the first slab");
        drop(pool);
        // SAFETY: used by no thread.
        unsafe { Pool::free(node) };
    }

    /// Each thread writes its own number into its nodes, which the next thread finds when it frees
    /// them. One node is freed when the pool no longer exists.
    #[test]
    fn threads_free_the_memory_of_others() {
        const ROUNDS: usize = 500;
        const BATCH: usize = 200;
        const WORDS: [usize; 2] = [0, 1280 / size_of::<usize>() - 1];
        struct Node(NonNull<u8>, usize);
        // SAFETY: the memory belongs to the thread that holds it.
        unsafe impl Send for Node {}
        let make = |pool: &Pool, number| {
            let memory = pool.allocate().unwrap();
            // SAFETY: 1280 bytes at an alignment of 64, this test's own.
            WORDS.iter().for_each(|at| unsafe { memory.cast::<usize>().add(*at).write(number) });
            Node(memory, number)
        };
        let free = |Node(memory, number): Node| {
            for at in WORDS {
                // SAFETY: written by `make`.
                assert_eq!(unsafe { memory.cast::<usize>().add(at).read() }, number);
            }
            // SAFETY: used by no thread.
            unsafe { Pool::free(memory) };
        };
        let pool = past_the_plain_ones();
        let last = make(&pool, usize::MAX);
        let (mut senders, receivers): (Vec<_>, Vec<_>) =
            (0..4).map(|_| std::sync::mpsc::channel::<Vec<Node>>()).unzip();
        senders.rotate_left(1);
        std::thread::scope(|scope| {
            for (thread, (next, own)) in senders.into_iter().zip(receivers).enumerate() {
                let pool = &pool;
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        let first = (round * 4 + thread) * BATCH;
                        // A thread that has ended receives no more nodes; they are then freed here.
                        let made = (0..BATCH).map(|at| make(pool, first + at)).collect();
                        if let Err(back) = next.send(made) {
                            back.0.into_iter().for_each(free);
                        }
                        // Done now and then, so that there is more than one slab.
                        if round % 8 == 7 {
                            own.try_iter().flatten().for_each(free);
                        }
                    }
                    drop(next);
                    own.into_iter().flatten().for_each(free);
                });
            }
        });
        let shared = pool.0.clone();
        drop(pool);
        let left = || {
            let state = shared.lock();
            (state.slabs.len(), state.used, open(&state))
        };
        assert_eq!(left(), (1, 1, 1));
        free(last);
        assert_eq!(left(), (0, 0, 0));
        assert_eq!(Arc::strong_count(&shared), 1, "a slab that is gone has let go");
    }
}
