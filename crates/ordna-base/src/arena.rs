//! Memory for small records: slabs of 2 MiB, shared by records of all sizes.
//!
//! Records are in memory in the order of their insertion, so a read by key usually begins with a
//! walk through page tables. Slabs ask the system for huge pages, see [`crate::slabs`].
//!
//! # Contract
//! Any number of threads allocate and free concurrently. A thread takes the lock of its stripe. A
//! small arena has one stripe, a large one eight. Memory stays valid after its [`Arena`] was
//! dropped, until it is freed. While the last handle is dropped, no other thread may free.
//!
//! # Protocol
//! A stripe fills its *open* slab from front to back. Freed memory enters the list of its size in
//! the stripe of the thread that freed it, and is allocated again first. Before a stripe opens a
//! slab, it takes over another stripe's list if it finds that stripe unlocked. So overwrites with
//! values of the same size usually need no more memory.
//!
//! After removals, or overwrites with other sizes, much of a slab may be dead.
//! [`Arena::choose_sparse`] declares the emptiest slabs *sparse*. No more memory is allocated in
//! these, and the owner of the records moves their contents. A sparse slab is freed with its last
//! record. At most an eighth of the slabs is sparse at a time, because the moved records need room.
//!
//! # Invariants
//! 1. The address of a slab is a multiple of its size. Its bit in `SLABS` is set while it exists.
//! 2. `live` is the number of allocated bytes in a slab. While the slab is open, bytes that were
//!    never used count, too.
//! 3. A sparse slab is not open and has no memory in a list: `sparse` is set under the locks of all
//!    stripes, which then begin new lists. The memory in the former lists stays dead.
//! 4. A sparse slab stays sparse.
//!
//! A thread that allocates takes a slab for its stripe, so an index should use an arena only when
//! it is large. If the system has no huge pages, a slab is ordinary memory.

#![expect(unsafe_code, reason = "an allocator")]

use std::alloc::{alloc, dealloc};
use std::mem;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::simd::prefetch;
use crate::slabs::{LAYOUT, SLAB, ask_for_huge_pages};
use crate::sync::{notice, stripe_of_this_thread};

/// Maximum size in bytes of a record in a slab. Reading a larger record costs more than a page
/// walk.
pub const MOST: usize = 512;

/// Sizes are rounded up to a multiple of this.
const GRAIN: usize = 8;
/// Number of threads that can allocate concurrently without waiting for each other.
const STRIPES: usize = 8;
/// Number of bytes at the front of a slab for its head. If the heads of all slabs were at the same
/// offset, they would compete for one set of the processor's caches.
const FRONT: usize = 4096;
/// Number of bytes of a slab that can be allocated.
const ROOM: usize = SLAB - FRONT;
/// Number of freed bytes after which a stripe checks the state of the slabs, or this share of the
/// slabs if that is more.
const LOOK: usize = SLAB / 8;
const LOOK_SHARE: usize = 64;

/// The inverse of the share of slabs that may be sparse at a time; a few are always allowed.
const SPARSE_SHARE: usize = 8;
const SPARSE_FEW: usize = 4;
/// Number of slabs for each stripe that may open one.
const SLABS_OF_A_STRIPE: usize = 8;

/// Bits of an address. Linux and macOS give programs 47 or 48.
const ADDRESS_BITS: u32 = 48;

/// One bit for each multiple of [`SLAB`], which says whether there is a slab of an arena. The
/// system only backs the parts that are used.
static SLABS: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];
const WORDS: usize = 1 << (ADDRESS_BITS - SLAB.ilog2() - u64::BITS.ilog2());

/// Memory for the records of one index.
#[derive(Clone)]
pub struct Arena(Arc<Owner>);

/// Frees the slabs with the last handle.
struct Owner(Arc<ArenaState>);

struct ArenaState {
    stripes: [PaddedStripe; STRIPES],
    /// Number of stripes in use.
    active: AtomicUsize,
    slabs: Mutex<Slabs>,
    /// Held by the thread that chooses sparse slabs.
    choosing: Mutex<()>,
    has_much_room: AtomicBool,
    /// Whether more slabs would have been chosen if fewer were sparse.
    waits: AtomicBool,
    look_after: AtomicUsize,
}

#[repr(align(128))]
struct PaddedStripe(Mutex<SlabStripe>);

struct SlabStripe {
    /// The open slab, and its memory that was never used.
    open: *mut ArenaSlab,
    fresh: *mut u8,
    rest: usize,
    /// Freed memory by size; each piece holds the address of the next.
    free: [*mut u8; MOST / GRAIN],
    /// Number of bytes freed since the last check.
    freed: usize,
}

struct Slabs(Vec<*mut ArenaSlab>);

// SAFETY: the slabs belong to the arena; lists and open slab are used under the stripe's lock.
unsafe impl Send for SlabStripe {}
// SAFETY: as above; the vector is used under its lock.
unsafe impl Send for Slabs {}

/// The head of a slab.
struct ArenaSlab {
    shared: Arc<ArenaState>,
    live: AtomicUsize,
    sparse: AtomicBool,
    open: AtomicBool,
    /// Index of the slab in the list, protected by the list's lock.
    number: AtomicUsize,
}

impl Default for Arena {
    fn default() -> Self {
        Self::new()
    }
}

impl Arena {
    /// Creates an arena without slabs.
    pub fn new() -> Self {
        let stripe = || SlabStripe {
            open: ptr::null_mut(),
            fresh: ptr::null_mut(),
            rest: 0,
            free: [ptr::null_mut(); MOST / GRAIN],
            freed: 0,
        };
        let shared = ArenaState {
            stripes: std::array::from_fn(|_| PaddedStripe(Mutex::new(stripe()))),
            active: AtomicUsize::new(1),
            slabs: Mutex::new(Slabs(Vec::new())),
            choosing: Mutex::new(()),
            has_much_room: AtomicBool::new(false),
            waits: AtomicBool::new(false),
            look_after: AtomicUsize::new(LOOK),
        };
        Self(Arc::new(Owner(Arc::new(shared))))
    }

    /// Allocates memory aligned to 8 bytes, to be freed with [`Arena::free`] if [`Arena::owns`] it.
    /// Returns `None` if the caller has to allocate it elsewhere. O(1).
    #[inline]
    pub fn allocate(&self, size: usize) -> Option<NonNull<u8>> {
        if size > MOST {
            return None;
        }
        let size = size.max(1).next_multiple_of(GRAIN);
        let shared = &self.0.0;
        let mut stripe = shared.stripe();
        if let Some(memory) = stripe.take(size) {
            return Some(memory);
        }
        if stripe.rest < size {
            stripe.take_list(shared, size);
            if let Some(memory) = stripe.take(size) {
                return Some(memory);
            }
            stripe.open_slab(shared)?;
        }
        let memory = stripe.fresh;
        stripe.fresh = memory.wrapping_add(size);
        stripe.rest -= size;
        // The next record is probably about as large.
        for line in (0..size).step_by(64) {
            prefetch(stripe.fresh.wrapping_add(size - 1 - line));
        }
        NonNull::new(memory)
    }

    /// Returns whether the memory is in a slab of some arena.
    #[inline]
    pub fn owns(memory: *const u8) -> bool {
        let (word, bit) = ArenaSlab::bit(memory.addr());
        SLABS.get(word).is_some_and(|word| word.load(Ordering::Relaxed) & bit != 0)
    }

    /// Frees memory of this size. O(1).
    ///
    /// # Safety
    /// The memory was allocated with [`Arena::allocate`] of some arena, and no thread uses it any
    /// longer. The arena's last handle is not dropped concurrently.
    pub unsafe fn free(memory: NonNull<u8>, size: usize) {
        let size = size.max(1).next_multiple_of(GRAIN);
        // SAFETY: the memory keeps its slab alive until its bytes are subtracted; a slab that is
        // not sparse stays alive under the stripe's lock.
        unsafe {
            let slab = ArenaSlab::of(memory);
            let shared = &(*slab).shared;
            let mut stripe = shared.stripe();
            if notice!("arena.free.sparse", (*slab).is_sparse()) {
                drop(stripe);
                return ArenaSlab::subtract(slab, size);
            }
            let free = &mut stripe.free[size / GRAIN - 1];
            memory.cast::<*mut u8>().write(*free);
            *free = memory.as_ptr();
            stripe.freed += size;
            (*slab).live.fetch_sub(size, Ordering::Relaxed);
            if stripe.freed >= shared.look_after.load(Ordering::Relaxed) {
                stripe.freed = 0;
                let shared = shared.clone();
                drop(stripe);
                shared.look();
            }
        }
    }

    /// Returns whether more than a third of the slabs' bytes was dead at the last check and some
    /// slabs may be declared sparse, so that a compaction is worthwhile. Open and sparse slabs do
    /// not count.
    #[inline]
    pub fn has_much_room(&self) -> bool {
        self.0.0.has_much_room.load(Ordering::Relaxed)
    }

    /// Declares slabs sparse that are at least a quarter dead: the emptiest ones, up to an eighth
    /// of all, or every slab if `all`. Returns whether a sparse slab may hold a record. O(s log s)
    /// with s slabs.
    pub fn choose_sparse(&self, all: bool) -> bool {
        self.0.0.choose_sparse(all)
    }

    /// Recomputes whether the slabs have [much room](Self::has_much_room). O(slabs).
    pub fn look(&self) {
        self.0.0.look();
    }

    /// Returns whether the memory is in a sparse slab.
    ///
    /// # Safety
    /// The memory is not freed concurrently.
    #[inline]
    pub unsafe fn is_in_sparse_slab(memory: NonNull<u8>) -> bool {
        // SAFETY: the memory keeps its slab.
        Self::owns(memory.as_ptr()) && unsafe { (*ArenaSlab::of(memory)).is_sparse() }
    }

    /// Returns the number of slabs.
    pub fn slabs(&self) -> usize {
        lock(&self.0.0.slabs).0.len()
    }

    /// Returns the number of bytes in slabs that are not allocated.
    pub fn spare(&self) -> usize {
        let rest: usize = self.0.0.stripes.iter().map(|stripe| lock(&stripe.0).rest).sum();
        let slabs = lock(&self.0.0.slabs);
        // SAFETY: listed slabs are there.
        let live = |slab: &*mut ArenaSlab| unsafe { (**slab).live.load(Ordering::Relaxed) };
        rest + slabs.0.iter().map(|slab| SLAB - live(slab)).sum::<usize>()
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        // No handle is left that could allocate.
        self.0.choose_sparse(true);
    }
}

impl ArenaState {
    fn stripe(&self) -> MutexGuard<'_, SlabStripe> {
        let stripes = self.active.load(Ordering::Relaxed);
        lock(&self.stripes[stripe_of_this_thread() % stripes].0)
    }

    /// Records whether many bytes are dead, so that some slab can be chosen.
    #[cold]
    fn look(&self) {
        let slabs = lock(&self.slabs);
        let (mut closed, mut dead, mut sparse) = (0, 0, 0);
        for slab in &slabs.0 {
            // SAFETY: listed slabs are there.
            let slab = unsafe { &**slab };
            if slab.is_sparse() {
                sparse += 1;
            } else if !slab.open.load(Ordering::Relaxed) {
                (closed, dead) = (closed + 1, dead + ROOM - slab.live.load(Ordering::Relaxed));
            }
        }
        self.look_after.store(LOOK.max(closed * SLAB / LOOK_SHARE), Ordering::Relaxed);
        let many = dead > closed * ROOM / 3;
        let may = sparse < Self::most_sparse(slabs.0.len());
        self.waits.store(many && !may, Ordering::Relaxed);
        self.has_much_room.store(many && may, Ordering::Relaxed);
    }

    fn most_sparse(slabs: usize) -> usize {
        SPARSE_FEW.max(slabs / SPARSE_SHARE)
    }

    fn choose_sparse(&self, all: bool) -> bool {
        let _turn = lock(&self.choosing);
        // Candidates stay alive, because only this choice frees them, and only one thread chooses.
        let (mut candidates, sparse) = {
            let slabs = lock(&self.slabs);
            // SAFETY: listed slabs are there.
            let is_sparse = |slab: &*mut ArenaSlab| unsafe { (**slab).is_sparse() };
            let (sparse, others) = slabs.0.iter().copied().partition::<Vec<_>, _>(is_sparse);
            (others, sparse.len())
        };
        // SAFETY: candidates are there.
        let used = |slab: &*mut ArenaSlab| unsafe { (**slab).live.load(Ordering::Relaxed) };
        // SAFETY: as above.
        let is_open = |slab: &*mut ArenaSlab| unsafe { (**slab).open.load(Ordering::Relaxed) };
        if notice!("arena.choose.some", !all) {
            let most = Self::most_sparse(candidates.len() + sparse).saturating_sub(sparse);
            // A slab that is not open is never opened again.
            candidates.retain(|slab| {
                !notice!("arena.choose.open", is_open(slab)) && used(slab) < ROOM / 4 * 3
            });
            candidates.sort_by_cached_key(used);
            candidates.truncate(most);
        }
        let mut stripes: Vec<_> = self.stripes.iter().map(|stripe| lock(&stripe.0)).collect();
        if all {
            stripes.iter_mut().for_each(|stripe| stripe.close_slab());
        }
        for slab in &candidates {
            // SAFETY: as above.
            unsafe { (**slab).sparse.store(true, Ordering::Relaxed) };
        }
        if notice!("arena.choose.empties_lists", !candidates.is_empty()) {
            for stripe in &mut stripes {
                stripe.free.fill(ptr::null_mut());
            }
        }
        // After this, the last record of a slab may be freed, and the slab with it.
        let (empty, full): (Vec<_>, Vec<_>) =
            candidates.into_iter().partition(|slab| used(slab) == 0);
        drop(stripes);
        for slab in empty {
            // SAFETY: the slab is empty, and nothing is allocated in it any more.
            unsafe { ArenaSlab::release(slab) };
        }
        self.has_much_room.store(false, Ordering::Relaxed);
        sparse > 0 || !full.is_empty()
    }
}

impl SlabStripe {
    /// Takes memory from the list of its size.
    #[inline]
    fn take(&mut self, size: usize) -> Option<NonNull<u8>> {
        let free = &mut self.free[size / GRAIN - 1];
        let memory = NonNull::new(*free)?;
        // SAFETY: freed memory leads to the next; its slab is there while it is in the list.
        unsafe {
            *free = memory.cast::<*mut u8>().read();
            prefetch(*free);
            (*ArenaSlab::of(memory)).live.fetch_add(size, Ordering::Relaxed);
        }
        Some(memory)
    }

    /// Takes over the list of this size from another stripe. Skips locked stripes, because their
    /// threads may be doing the same.
    #[cold]
    fn take_list(&mut self, shared: &ArenaState, size: usize) {
        let list = size / GRAIN - 1;
        // This thread has locked its own stripe, too.
        for mut other in shared.stripes.iter().filter_map(|other| other.0.try_lock().ok()) {
            if !other.free[list].is_null() {
                self.free[list] = mem::replace(&mut other.free[list], ptr::null_mut());
                return;
            }
        }
    }

    /// Opens a slab to replace the full one.
    #[cold]
    fn open_slab(&mut self, shared: &Arc<ArenaState>) -> Option<()> {
        self.close_slab();
        let (slab, fresh) = ArenaSlab::new(shared)?;
        (self.open, self.fresh, self.rest) = (slab.as_ptr(), fresh, ROOM);
        Some(())
    }

    /// Closes the open slab; its memory that was never used is dead from now on.
    fn close_slab(&mut self) {
        // SAFETY: an open slab is there.
        if let Some(slab) = unsafe { self.open.as_ref() } {
            slab.live.fetch_sub(self.rest, Ordering::Relaxed);
            slab.open.store(false, Ordering::Relaxed);
        }
        (self.open, self.fresh, self.rest) = (ptr::null_mut(), ptr::null_mut(), 0);
    }
}

// Heads are a cache line apart.
const _: () = assert!(size_of::<ArenaSlab>() <= 64);

impl ArenaSlab {
    fn is_sparse(&self) -> bool {
        self.sparse.load(Ordering::Relaxed)
    }

    /// Creates a slab. Returns it and its first free byte.
    fn new(shared: &Arc<ArenaState>) -> Option<(NonNull<Self>, *mut u8)> {
        // SAFETY: the layout is not empty.
        let memory = NonNull::new(unsafe { alloc(LAYOUT) })?;
        let address = memory.as_ptr().expose_provenance();
        let (word, bit) = Self::bit(address);
        let Some(word) = SLABS.get(word) else {
            // SAFETY: just allocated.
            unsafe { dealloc(memory.as_ptr(), LAYOUT) };
            return None;
        };
        ask_for_huge_pages(memory);
        let head = Self {
            shared: shared.clone(),
            live: AtomicUsize::new(ROOM),
            sparse: AtomicBool::new(false),
            open: AtomicBool::new(true),
            number: AtomicUsize::new(0),
        };
        let slab = Self::head_at(address);
        // SAFETY: new memory, in bounds, aligned.
        unsafe { slab.write(head) };
        word.fetch_or(bit, Ordering::Relaxed);
        let mut slabs = lock(&shared.slabs);
        // SAFETY: as above.
        unsafe { (*slab).number.store(slabs.0.len(), Ordering::Relaxed) };
        slabs.0.push(slab);
        let active = (1 + slabs.0.len() / SLABS_OF_A_STRIPE).min(STRIPES);
        shared.active.fetch_max(active, Ordering::Relaxed);
        // SAFETY: in bounds.
        Some((NonNull::new(slab)?, unsafe { memory.as_ptr().add(FRONT) }))
    }

    fn bit(address: usize) -> (usize, u64) {
        let slab = address / SLAB;
        (slab / 64, 1 << (slab % 64))
    }

    /// Returns the head of the slab at an address.
    #[inline]
    fn head_at(slab: usize) -> *mut Self {
        let line = slab / SLAB % (FRONT / 64);
        ptr::with_exposed_provenance_mut(slab + line * 64)
    }

    /// Returns the head of the slab that contains the memory.
    #[inline]
    fn of(memory: NonNull<u8>) -> *mut Self {
        Self::head_at(memory.as_ptr().addr() & !(SLAB - 1))
    }

    /// Subtracts bytes of a sparse slab, which is freed with the last ones.
    ///
    /// # Safety
    /// The bytes belong to the caller and are not used afterwards.
    unsafe fn subtract(slab: *mut Self, size: usize) {
        // SAFETY: the bytes keep the slab alive. AcqRel: everything that all threads did with it
        // happens before its end.
        unsafe {
            if (*slab).live.fetch_sub(size, Ordering::AcqRel) == size {
                let shared = (*slab).shared.clone();
                Self::release(slab);
                if notice!("arena.release.looks", shared.waits.swap(false, Ordering::Relaxed)) {
                    shared.look();
                }
            }
        }
    }

    /// Frees a slab.
    ///
    /// # Safety
    /// The slab is sparse, listed and empty.
    unsafe fn release(slab: *mut Self) {
        // SAFETY: by the caller; listed slabs are there.
        unsafe {
            let shared = (*slab).shared.clone();
            let mut slabs = lock(&shared.slabs);
            let number = (*slab).number.load(Ordering::Relaxed);
            slabs.0.swap_remove(number);
            if let Some(moved) = slabs.0.get(number) {
                (**moved).number.store(number, Ordering::Relaxed);
            }
            drop(slabs);
            let memory = slab.expose_provenance() & !(SLAB - 1);
            let (word, bit) = Self::bit(memory);
            SLABS[word].fetch_and(!bit, Ordering::Relaxed);
            slab.drop_in_place();
            dealloc(ptr::with_exposed_provenance_mut(memory), LAYOUT);
        }
    }
}

/// Takes a lock. No thread panics while it holds one.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
