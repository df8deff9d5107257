//! Safe memory reclamation: when memory that was removed from an index may be freed.
//!
//! # Contract
//! A reader of an index holds a [`Guard`] of its [`Collector`]. A writer *retires* the memory that
//! it has unlinked. The collector reclaims retired memory when every guard of that moment has been
//! dropped. A guard that is held for long delays reclamation, but never affects correctness. Guards
//! nest; an inner one costs about a fifth of the outer one. Each index owns its collector: dropping
//! the index frees all retired memory, and a stalled reader of one index does not delay another
//! index.
//!
//! Pointers inside an index are loaded with `Acquire` or stronger while a guard is held.
//!
//! # The library behind the façade
//! `seize` 0.5 (Hyaline, with `membarrier` on Linux so that entering needs no fence), measured
//! against `crossbeam-epoch` 0.9 on one virtual AMD EPYC server with two cores
//! (`docs/papers/nitro.md` has the figures, the access barrier's too): entering costs the same
//! within the noise, some 8 ns, and 1 to 2 ns within a guard; `crossbeam-epoch` retires for less
//! (29 ns with the allocation, 34 ns here, without the lists below, which came later).
//!
//! A stalled reader costs the same in both libraries: all memory that is retired in the meantime.
//! They differ in what follows. `seize` leaves the stalled reader's garbage to that reader, which
//! frees it when it leaves, and then takes that long to leave. `crossbeam-epoch` frees a few bags
//! at a time during later operations. Here, a collector per index needs no registration of threads,
//! and dropping it frees everything. `crossbeam-epoch` can have a collector per index, too, but
//! then every thread registers with each collector and keeps a handle.

#![expect(unsafe_code, reason = "façade over manual reclamation")]

use std::cell::Cell;
use std::mem;
use std::sync::atomic::fence;
use std::sync::{Mutex, PoisonError};

use seize::Guard as _;

use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Shared, fault, notice, stripe_of_this_thread};

/// Owns the memory that an index has retired, and knows which threads may still read it.
///
/// Memory that a thread retires waits in the list of its stripe until there is a batch for the
/// library. The library's own lists belong to one thread each, and a thread that becomes idle would
/// keep the contents of its list.
#[derive(Debug)]
pub struct Collector {
    library: seize::Collector,
    /// Number of entries in a batch.
    batch: usize,
    retired: [RetiredList; STRIPES],
}

const STRIPES: usize = 16;

#[derive(Debug, Default)]
#[repr(align(128))]
struct RetiredList(Mutex<Retirements>);

/// Memory that the threads of a stripe have retired and not yet passed on.
#[derive(Debug, Default)]
struct Retirements {
    entries: Vec<RetiredMemory>,
    /// Total size in bytes of entries with a known size.
    bytes: usize,
}

/// Approximate maximum number of bytes of retired memory that wait in one stripe. Each pass costs a
/// `membarrier`, some microseconds, in which less than a mebibyte is usually retired.
const MOST_BYTES: usize = 1 << 20;

/// Capacity that an emptied list keeps, in entries: that of a full batch.
const SPARE: usize = 256;

/// The work of a guard at its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Due {
    Nothing,
    /// Passes on a full batch.
    Batch,
    /// Passes on large memory immediately, with everything retired before it.
    AtOnce,
}

/// Retired memory, and how the library frees it.
#[derive(Debug)]
struct RetiredMemory {
    memory: *mut (),
    free: unsafe fn(*mut (), &seize::Collector),
}

// SAFETY: any thread that uses the collector may free it.
unsafe impl Send for RetiredMemory {}

impl RetiredMemory {
    /// # Safety
    /// The contract is that of [`Guard::retire`].
    unsafe fn new<T: Retire>(memory: *mut T) -> Self {
        // SAFETY: by the caller; the memory is a `T`.
        Self { memory: memory.cast(), free: |memory, _| unsafe { T::free(memory.cast()) } }
    }
}

impl Default for Collector {
    fn default() -> Self {
        Self::with_batches_of(32)
    }
}

impl Collector {
    /// Creates a collector without garbage and guards.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a collector whose threads pass on their list of retired memory when it has `batch`
    /// entries (32 by default), for an index that retires often. On Linux each pass is a
    /// `membarrier`, an interrupt of every processor that runs a thread of this process.
    pub fn with_batches_of(batch: usize) -> Self {
        let library = seize::Collector::new().batch_size(batch);
        Self { library, batch, retired: Default::default() }
    }

    /// Returns the list of this thread's stripe.
    fn list(&self) -> &RetiredList {
        &self.retired[stripe_of_this_thread() % STRIPES]
    }

    /// Enters a reading section: memory that is retired from now on is not freed before the guard
    /// is dropped.
    ///
    /// Wait-free. Nested guards are cheap.
    #[inline]
    pub fn pin(&self) -> Guard<'_> {
        let guard = self.library.enter();
        // The announcement above must be ordered before this thread's loads. Otherwise the reader's
        // announcement and a writer's unlinking might not see each other. On Linux, the retiring
        // thread runs `membarrier` instead. If a sandbox forbids that call, the library falls back
        // to stronger accesses of its own; but the loads here are acquire loads, which only x86-64
        // keeps after the announcement whatever the compiler emits.
        if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
            fence(Ordering::SeqCst);
        }
        Guard { library: guard, collector: self, due: Cell::new(Due::Nothing) }
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        for stripe in &mut self.retired {
            let list = stripe.0.get_mut().unwrap_or_else(PoisonError::into_inner);
            for retired in mem::take(&mut list.entries) {
                // SAFETY: no guard is left.
                unsafe { (retired.free)(retired.memory, &self.library) };
            }
        }
    }
}

impl RetiredList {
    /// Adds an entry. Returns the resulting number of entries and bytes.
    #[inline]
    fn push(&self, retired: RetiredMemory, bytes: usize) -> (usize, usize) {
        let mut list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        list.entries.push(retired);
        list.bytes += bytes;
        (list.entries.len(), list.bytes)
    }

    /// Takes the list if it has at least `from` entries.
    fn take(&self, from: usize) -> Vec<RetiredMemory> {
        let mut list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if list.entries.len() < from {
            return Vec::new();
        }
        list.bytes = 0;
        // A list that grew under one long guard does not keep its capacity.
        let fresh = Vec::with_capacity(list.entries.capacity().min(SPARE));
        mem::replace(&mut list.entries, fresh)
    }
}

/// A reading section. Not `Send`: it belongs to the thread that entered.
pub struct Guard<'a> {
    library: seize::LocalGuard<'a>,
    collector: &'a Collector,
    due: Cell<Due>,
}

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        // Passed on here, not when it is retired, because the caller may then hold a lock for which
        // others wait. Nothing can be freed before this guard ends anyway.
        if self.due.get() != Due::Nothing {
            self.end();
        }
    }
}

impl Guard<'_> {
    /// Passes memory that no new reader can reach to the collector. [`Retire::free`] is called when
    /// all current guards have been dropped, by any thread that uses the collector, or when the
    /// collector is dropped.
    ///
    /// # Safety
    /// `memory` is unlinked: no thread that pins after this call can reach it. It is retired once,
    /// and freeing it accesses no part of the index.
    #[inline]
    pub unsafe fn retire<T: Retire>(&self, memory: *mut T) {
        // SAFETY: the caller upholds the contract.
        unsafe { self.retire_sized(memory, 0) };
    }

    /// Works like [`retire`](Self::retire), for memory of a known size, so that the waiting memory
    /// is also limited by its size in bytes.
    ///
    /// # Safety
    /// The contract is that of [`retire`](Self::retire).
    #[inline]
    pub unsafe fn retire_sized<T: Retire>(&self, memory: *mut T, bytes: usize) {
        // SAFETY: the caller upholds the contract.
        let retired = unsafe { RetiredMemory::new(memory) };
        let (entries, bytes) = self.collector.list().push(retired, bytes);
        if notice!("store.retire.bounds_bytes", bytes >= MOST_BYTES) {
            self.due.set(Due::AtOnce);
        } else if entries >= self.collector.batch && self.due.get() == Due::Nothing {
            self.due.set(Due::Batch);
        }
    }

    /// Passes on the memory that is due.
    #[cold]
    fn end(&self) {
        match self.due.replace(Due::Nothing) {
            Due::Nothing => {}
            Due::Batch => self.hand_over(self.collector.list().take(self.collector.batch)),
            Due::AtOnce => self.pass_on(self.collector.list().take(1)),
        }
    }

    /// Passes entries to the library, whose own list for this thread grows at least to a batch.
    fn hand_over(&self, entries: Vec<RetiredMemory>) {
        for RetiredMemory { memory, free } in entries {
            // SAFETY: the threads that retired the entries uphold the contract.
            unsafe { self.library.defer_retire(memory, free) };
        }
    }

    /// Sets `watch`, with release ordering, when every guard that is held now has been dropped,
    /// including this one. For callers that reuse memory instead of freeing it.
    pub fn watch(&self, watch: Shared<AtomicBool>) {
        let watcher = Box::into_raw(Box::new(Watcher(watch)));
        // SAFETY: only the collector knows the box.
        unsafe { self.retire_at_once(watcher) };
    }

    /// Works like [`retire`](Self::retire), for large memory: it and everything that this thread
    /// has retired before are passed on at the end of this guard, without waiting for a full batch.
    /// Costs a `membarrier`.
    ///
    /// # Safety
    /// The contract is that of [`retire`](Self::retire).
    pub unsafe fn retire_at_once<T: Retire>(&self, memory: *mut T) {
        // SAFETY: the caller upholds the contract.
        let retired = unsafe { RetiredMemory::new(memory) };
        self.collector.list().push(retired, 0);
        self.due.set(Due::AtOnce);
    }

    /// Passes entries to the library, to be freed now. The library processes a batch only when it
    /// has an entry for every thread that is in a reading section.
    fn pass_on(&self, mut entries: Vec<RetiredMemory>) {
        if !entries.is_empty() {
            // SAFETY: there is nothing to free, and `free` does nothing.
            let filler = || unsafe { RetiredMemory::new(std::ptr::dangling_mut::<Nothing>()) };
            entries.resize_with(entries.len().max(FILLERS), filler);
            self.hand_over(entries);
        }
        self.library.flush();
    }

    /// Passes on this thread's garbage now instead of when a batch is full.
    pub fn flush(&self) {
        self.pass_on(self.collector.list().take(1));
    }

    /// Passes on the garbage of all threads now.
    pub fn flush_all(&self) {
        if fault!("reclaim.flush_all.of_others") {
            return self.flush();
        }
        let all = self.collector.retired.iter();
        self.pass_on(all.flat_map(|stripe| stripe.take(1)).collect());
    }
}

/// Number of threads in reading sections above which large memory waits for the next full batch,
/// too.
const FILLERS: usize = 32;

struct Watcher(Shared<AtomicBool>);

impl Retire for Watcher {
    unsafe fn free(memory: *mut Self) {
        // SAFETY: boxed by `watch`, exclusively the collector's.
        let watcher = unsafe { Box::from_raw(memory) };
        // Release: everything done under the dropped guards happens before.
        watcher.0.store(true, Ordering::Release);
    }
}

struct Nothing;

impl Retire for Nothing {
    unsafe fn free(_: *mut Self) {}
}

/// Memory that can be retired, with the function that frees it.
pub trait Retire {
    /// Frees the memory.
    ///
    /// # Safety
    /// `memory` belongs to the caller exclusively and is not used afterwards.
    unsafe fn free(memory: *mut Self);
}
