//! When removed memory may be freed.
//!
//! # Contract
//! A reader of an index holds a [`Guard`] of its [`Collector`]. A writer *retires* the memory that
//! it has unlinked. The collector reclaims retired memory once every guard of that moment is gone.
//! A guard that is held for long delays reclamation, never correctness. Guards nest; an inner one
//! costs about a fifth of the outer. Each index owns its collector: dropping the index frees all
//! retired memory, and a stalled reader of one index does not delay another index.
//!
//! Pointers inside an index are loaded with `Acquire` or stronger while a guard is held.
//!
//! # The library behind the façade
//! `seize` 0.5 (Hyaline, with `membarrier` on Linux so that entering needs no fence), measured
//! against `crossbeam-epoch` 0.9 on one virtual AMD EPYC server with two cores
//! (`docs/benchmarks/nitro.md` has the figures, the access barrier's too): entering costs the same
//! within the noise, some 8 ns, and 1 to 2 ns within a guard; `crossbeam-epoch` retires for less
//! (29 ns with the allocation, 34 ns here, without the lists below, which came later).
//!
//! A stalled reader costs the same in both: all that is retired meanwhile. The difference is
//! afterwards. `seize` leaves the stalled reader's garbage to that reader, which frees it when it
//! leaves (its leaving takes that long); `crossbeam-epoch` frees a few bags at a time as later
//! traffic comes by. A collector per index needs no registration of threads here, and dropping it
//! frees everything. `crossbeam-epoch` can have a collector per index too, but then every thread
//! registers with each and keeps a handle.

#![expect(unsafe_code, reason = "façade over manual reclamation")]

use std::mem;
use std::sync::atomic::fence;
use std::sync::{Mutex, PoisonError};

use seize::Guard as _;

use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Shared, fault, stripe_of_this_thread};

/// Owns what an index has retired, and knows which threads may still read it.
///
/// A thread's retired memory waits in the list of its stripe until it is worth a batch of the
/// library's. The library's own lists belong to one thread each: a thread that goes idle would keep
/// what is in its list.
#[derive(Debug)]
pub struct Collector {
    library: seize::Collector,
    /// Entries of a batch.
    batch: usize,
    retired: [RetiredList; STRIPES],
}

const STRIPES: usize = 16;

#[derive(Debug, Default)]
#[repr(align(128))]
struct RetiredList(Mutex<Vec<RetiredMemory>>);

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
    /// As for [`Guard::retire`].
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
    /// A collector with no garbage and no guards.
    pub fn new() -> Self {
        Self::default()
    }

    /// A collector whose threads pass their retired list on once it has `batch` entries (32 by
    /// default), for an index that retires often. On Linux each pass is a
    /// `membarrier`: an interrupt of every processor that runs a thread of this process.
    pub fn with_batches_of(batch: usize) -> Self {
        let library = seize::Collector::new().batch_size(batch);
        Self { library, batch, retired: Default::default() }
    }

    /// What threads of this one's stripe have retired.
    fn list(&self) -> &RetiredList {
        &self.retired[stripe_of_this_thread() % STRIPES]
    }

    /// Enters a reading section: nothing retired from now on is freed before the guard is dropped.
    ///
    /// Wait-free. Nested guards are cheap.
    #[inline]
    pub fn pin(&self) -> Guard<'_> {
        let guard = self.library.enter();
        // On Linux the retiring thread runs `membarrier` in our stead. Elsewhere the announcement
        // above must be ordered before our loads: without this fence a reader's store of "I am
        // here" and a writer's unlink may both pass unseen.
        if !cfg!(target_os = "linux") {
            fence(Ordering::SeqCst);
        }
        Guard { library: guard, collector: self }
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        for stripe in &mut self.retired {
            for retired in mem::take(stripe.0.get_mut().unwrap_or_else(PoisonError::into_inner)) {
                // SAFETY: no guard is left.
                unsafe { (retired.free)(retired.memory, &self.library) };
            }
        }
    }
}

impl RetiredList {
    /// Takes the list if it has so many entries.
    #[inline]
    fn take(&self, from: usize, last: Option<RetiredMemory>) -> Vec<RetiredMemory> {
        let mut list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        list.extend(last);
        if list.len() < from {
            return Vec::new();
        }
        let fresh = Vec::with_capacity(list.capacity());
        mem::replace(&mut *list, fresh)
    }
}

/// A reading section. Not `Send`: it belongs to the thread that entered.
pub struct Guard<'a> {
    library: seize::LocalGuard<'a>,
    collector: &'a Collector,
}

impl Guard<'_> {
    /// Hands over memory that no new reader can reach. [`Retire::free`] is called with it once no
    /// guard of today is left, by any thread that uses the collector, or when the collector is
    /// dropped.
    ///
    /// # Safety
    /// `memory` is unlinked: no thread that pins after this call can reach it. It is retired once,
    /// and freeing it touches nothing of the index.
    #[inline]
    pub unsafe fn retire<T: Retire>(&self, memory: *mut T) {
        // SAFETY: the caller's promise, handed on.
        let retired = unsafe { RetiredMemory::new(memory) };
        let full = self.collector.list().take(self.collector.batch, Some(retired));
        if !full.is_empty() {
            self.hand_over(full);
        }
    }

    /// Passes entries to the library, whose own list of this thread grows to a batch at least.
    fn hand_over(&self, entries: Vec<RetiredMemory>) {
        for RetiredMemory { memory, free } in entries {
            // SAFETY: as those who retired it promised.
            unsafe { self.library.defer_retire(memory, free) };
        }
    }

    /// Sets `watch`, with release ordering, once every guard that is held now is gone, this one
    /// included. For callers that reuse memory instead of freeing it.
    pub fn watch(&self, watch: Shared<AtomicBool>) {
        let watcher = Box::into_raw(Box::new(Watcher(watch)));
        // SAFETY: no thread but the collector knows the box.
        unsafe { self.retire_at_once(watcher) };
    }

    /// [`retire`](Self::retire) for what is large: it does not wait for more to come, nor does what
    /// this thread has retired before. Costs a `membarrier`.
    ///
    /// # Safety
    /// As for [`retire`](Self::retire).
    pub unsafe fn retire_at_once<T: Retire>(&self, memory: *mut T) {
        // SAFETY: the caller's promise, handed on.
        let retired = unsafe { RetiredMemory::new(memory) };
        self.pass_on(self.collector.list().take(1, Some(retired)));
    }

    /// Passes entries to the library for freeing now. The library hands a batch over only when it
    /// has an entry for every thread that is inside.
    fn pass_on(&self, mut entries: Vec<RetiredMemory>) {
        if !entries.is_empty() {
            // SAFETY: there is nothing to free, and `free` does nothing.
            let filler = || unsafe { RetiredMemory::new(std::ptr::dangling_mut::<Nothing>()) };
            entries.resize_with(entries.len().max(FILLERS), filler);
            self.hand_over(entries);
        }
        self.library.flush();
    }

    /// Offers this thread's share of the garbage for freeing now instead of when a batch is full.
    pub fn flush(&self) {
        self.pass_on(self.collector.list().take(1, None));
    }

    /// Offers the garbage of all threads for freeing now.
    pub fn flush_all(&self) {
        if fault!("reclaim.flush_all.of_others") {
            return self.flush();
        }
        let all = self.collector.retired.iter();
        self.pass_on(all.flat_map(|stripe| stripe.take(1, None)).collect());
    }
}

/// With more threads inside than this, what is retired at once waits for the next full batch.
const FILLERS: usize = 32;

struct Watcher(Shared<AtomicBool>);

impl Retire for Watcher {
    unsafe fn free(memory: *mut Self) {
        // SAFETY: boxed by `watch`, exclusively the collector's.
        let watcher = unsafe { Box::from_raw(memory) };
        // Release: what was done under the guards that are gone happened before.
        watcher.0.store(true, Ordering::Release);
    }
}

struct Nothing;

impl Retire for Nothing {
    unsafe fn free(_: *mut Self) {}
}

/// Memory that can be retired, and how it is freed.
pub trait Retire {
    /// Frees the memory.
    ///
    /// # Safety
    /// `memory` is exclusively the caller's and not used afterwards.
    unsafe fn free(memory: *mut Self);
}
