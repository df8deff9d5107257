//! The access barrier of the Nitro paper (§6): another way to determine when removed memory may be
//! freed.
//!
//! # Contract
//! A reader holds a [`Token`] of the barrier. A remover *retires* the memory that it unlinked.
//! Retired memory is freed once every token held at that moment is dropped. Dropping the barrier,
//! which no token outlives, frees all of it.
//!
//! # Protocol
//! Threads enter the current *session* by counting themselves in one of its shards, and leave it by
//! counting down the same shard. Retired memory is collected in bags. A full bag closes the
//! session: a new one is opened and made the current one, and then the old one is closed by adding
//! `CLOSED` to each shard. A session whose shards are all drained is *terminated*. A bag is freed
//! when its session and all before it are.
//!
//! # Invariants
//! 1. *Entering.* The increment that enters also returns whether the shard was already closed. Both
//!    are in one word, so no fence and no second read is needed. A late thread undoes its increment
//!    and enters the current session instead.
//! 2. *Draining.* A closed shard becomes drained by a single exchange from `CLOSED` (no thread
//!    inside) to `DRAINED`. The thread that brings the shard to `CLOSED` tries this: the closer, a
//!    thread that leaves, or a late thread. Afterwards the word is never `CLOSED` again in this use
//!    of the session.
//! 3. *The bag before the session.* A bag is complete before the next session is opened. A thread
//!    that enters that session acquires what its opener did, so it cannot reach the memory in the
//!    bag.
//! 4. *Order.* Readers of any session up to the one that a bag closed may hold its memory, so the
//!    bag waits for all of them.
//! 5. *Type-stable sessions.* A session is reused and not freed before the barrier is. So a late
//!    increment or decrement hits a live word and leaves no trace.
//!
//! # Progress
//! Entering is lock-free: it is repeated only if a session was closed concurrently. Leaving is
//! wait-free, except that the last thread of a session takes a lock to free memory.
//!
//! Source: the Nitro paper, §6. There, a session has one counter that all accessors change twice,
//! which does not scale; the shards are our own. `tests/models/loom_nitro_barrier.rs` is the model,
//! and `docs/papers/nitro.md` compares the barrier with the collector that the indexes use.

#![expect(unsafe_code, reason = "manual reclamation")]

use std::collections::VecDeque;
use std::ptr::{self, NonNull};
use std::sync::PoisonError;

use ordna_base::reclaim::Retire;
use ordna_base::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use ordna_base::sync::{Mutex, MutexGuard, check, fault, notice, order, stripe_of_this_thread};

/// Added to each shard of a session that is closed.
const CLOSED: usize = 1 << 40;
/// State of a closed shard without threads, after its emptiness was noticed.
const DRAINED: usize = 2 * CLOSED;

const SHARDS: usize = 16;
/// Number of retired allocations in a full bag, which closes the session.
const BAG: usize = 128;

#[repr(align(128))]
struct Shard(AtomicUsize);

struct Session {
    shards: Box<[Shard]>,
    /// Number of shards that are not drained.
    undrained: AtomicUsize,
}

/// A retired allocation, and the function that frees it.
struct Retired {
    memory: *mut (),
    free: unsafe fn(*mut ()),
}

// SAFETY: the memory is unlinked, and the freeing thread is its only user.
unsafe impl Send for Retired {}

type Bag = Vec<Retired>;

/// A bag that frees its contents when dropped.
struct Freeing(Bag);

impl Drop for Freeing {
    fn drop(&mut self) {
        for retired in self.0.drain(..) {
            // SAFETY: the memory is retired once, and no token of that time is held any longer.
            unsafe { (retired.free)(retired.memory) };
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
struct SessionRef(NonNull<Session>);

// SAFETY: sessions are shared by all threads, live as long as the barrier, and hold atomics.
unsafe impl Send for SessionRef {}

impl SessionRef {
    fn new(shards: usize) -> Self {
        let shards: Box<[Shard]> = (0..shards).map(|_| Shard(AtomicUsize::new(DRAINED))).collect();
        let session = Session { shards, undrained: AtomicUsize::new(0) };
        Self(NonNull::from(Box::leak(Box::new(session))))
    }

    fn get(&self) -> &Session {
        // SAFETY: freed by the barrier's drop only, and references do not outlive the barrier.
        unsafe { self.0.as_ref() }
    }
}

struct Waiting {
    session: SessionRef,
    bag: Freeing,
    terminated: bool,
}

#[derive(Default)]
struct Sessions {
    /// Closed sessions, in order, that are not terminated or that wait for an earlier one.
    closed: VecDeque<Waiting>,
    /// Sessions that can be reused.
    free: Vec<SessionRef>,
    all: Vec<SessionRef>,
}

/// An access barrier; see the [module](self).
pub struct AccessBarrier {
    current: AtomicPtr<Session>,
    sessions: Mutex<Sessions>,
    bags: Box<[Mutex<Bag>]>,
}

impl Default for AccessBarrier {
    fn default() -> Self {
        Self::new()
    }
}

// SAFETY: the pointer is to a session of its own; everything else is shared under locks.
unsafe impl Sync for AccessBarrier {}
// SAFETY: as above.
unsafe impl Send for AccessBarrier {}

impl AccessBarrier {
    /// Creates a barrier. The last thread that leaves a session frees its bag.
    pub fn new() -> Self {
        Self::with_shards(SHARDS)
    }

    /// Creates a barrier with `shards` counters in each session.
    pub fn with_shards(shards: usize) -> Self {
        let first = SessionRef::new(shards.max(1));
        open(first);
        let sessions = Sessions { all: vec![first], ..Sessions::default() };
        Self {
            current: AtomicPtr::new(first.0.as_ptr()),
            sessions: Mutex::new(sessions),
            bags: (0..shards.max(1)).map(|_| Mutex::new(Vec::new())).collect(),
        }
    }

    /// Enters the barrier: memory that is retired from now on is not freed before the token is
    /// dropped.
    #[inline]
    pub fn enter(&self) -> Token<'_> {
        self.enter_shard(stripe_of_this_thread())
    }

    /// Enters the barrier and is counted in the given shard.
    #[inline]
    pub fn enter_shard(&self, shard: usize) -> Token<'_> {
        loop {
            let current = self.current.load(Ordering::Acquire);
            let session = SessionRef(NonNull::new(current).expect("a session is always current"));
            let shards = &session.get().shards;
            let shard = shard % shards.len();
            // Acquire: pairs with `open`; memory unlinked before is out of reach (invariant 3).
            let order = order!("nitro_barrier.enter.acquire", Acquire);
            let inside = shards[shard].0.fetch_add(1, order);
            let token = Token { barrier: self, session, shard };
            if is_open(inside) {
                return token;
            }
            // A late thread drops the token, which undoes the increment.
        }
    }

    /// Closes the current session. The contents of all bags are freed once that is safe.
    pub fn close(&self) {
        let bag = self.bags.iter().flat_map(|bag| std::mem::take(&mut *lock(bag))).collect();
        self.close_with(bag);
    }

    fn close_with(&self, bag: Bag) {
        let old = {
            let mut sessions = lock(&self.sessions);
            let new = sessions.free.pop().unwrap_or_else(|| {
                let new = SessionRef::new(self.bags.len());
                sessions.all.push(new);
                new
            });
            open(new);
            // Under the lock, so that the sessions are listed in the order in which they were
            // current.
            let old = self.current.swap(new.0.as_ptr(), Ordering::AcqRel);
            let session = SessionRef(NonNull::new(old).expect("a session is always current"));
            sessions.closed.push_back(Waiting { session, bag: Freeing(bag), terminated: false });
            session
        };
        for shard in &old.get().shards {
            // AcqRel: the reads of threads inside happen before the bag is freed.
            if shard.0.fetch_add(CLOSED, order!("nitro_barrier.close.order", AcqRel)) == 0 {
                self.drain(old, shard);
            }
        }
    }

    /// Tries to drain a closed shard that was seen empty.
    fn drain(&self, session: SessionRef, shard: &Shard) {
        let (from, to) = (CLOSED, DRAINED);
        let drained = shard.0.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed);
        let order = order!("nitro_barrier.drain.last", AcqRel);
        if drained.is_ok() && session.get().undrained.fetch_sub(1, order) == 1 {
            self.terminate(session);
        }
    }

    fn terminate(&self, session: SessionRef) {
        let mut freed = Vec::new();
        {
            let mut sessions = lock(&self.sessions);
            let any_order = fault!("nitro_barrier.terminate.in_order");
            for waiting in &mut sessions.closed {
                if waiting.session == session && !waiting.terminated {
                    waiting.terminated = true;
                    if any_order {
                        freed.push(std::mem::replace(&mut waiting.bag, Freeing(Vec::new())));
                    }
                }
            }
            while sessions.closed.front().is_some_and(|waiting| waiting.terminated) {
                if let Some(waiting) = sessions.closed.pop_front() {
                    sessions.free.push(waiting.session);
                    freed.push(waiting.bag);
                }
            }
        }
        // Outside of the lock: freeing may take long.
        drop(freed);
    }

    /// Returns the numbers of sessions, of closed sessions that wait for an earlier one, and of
    /// retired allocations of the latter.
    pub fn sessions(&self) -> (usize, usize, usize) {
        let sessions = lock(&self.sessions);
        let held = sessions.closed.iter().map(|waiting| waiting.bag.0.len()).sum();
        (sessions.all.len(), sessions.closed.len(), held)
    }
}

/// Reopens a drained session, which only late threads still change.
fn open(session: SessionRef) {
    let session = session.get();
    session.undrained.store(session.shards.len(), Ordering::Relaxed);
    for shard in &session.shards {
        // Release: pairs with the increment in `enter_shard`. A subtraction and not a store,
        // because late threads may be changing the counter.
        shard.0.fetch_sub(DRAINED, order!("nitro_barrier.open.release", Release));
    }
}

impl Drop for AccessBarrier {
    fn drop(&mut self) {
        for bag in &self.bags {
            drop(Freeing(std::mem::take(&mut *lock(bag))));
        }
        let sessions = std::mem::take(&mut *lock(&self.sessions));
        drop(sessions.closed);
        for session in sessions.all {
            // SAFETY: made by `Box::leak`, listed once, and no token is left.
            drop(unsafe { Box::from_raw(session.0.as_ptr()) });
        }
        self.current = AtomicPtr::new(ptr::null_mut());
    }
}

/// A reading section of an [`AccessBarrier`].
pub struct Token<'a> {
    barrier: &'a AccessBarrier,
    session: SessionRef,
    shard: usize,
}

impl Token<'_> {
    /// Passes memory that no new reader can reach to the barrier.
    ///
    /// # Safety
    /// `memory` is unlinked: no thread that enters after this call can reach it. It is retired
    /// once, and freeing it accesses nothing that the barrier protects.
    pub unsafe fn retire<T: Retire>(&self, memory: *mut T) {
        unsafe fn free<T: Retire>(memory: *mut ()) {
            // SAFETY: the caller upholds the contract; the pointer was one to `T`.
            unsafe { T::free(memory.cast()) }
        }
        let retired = Retired { memory: memory.cast(), free: free::<T> };
        let full = {
            let mut bag = lock(&self.barrier.bags[self.shard]);
            bag.push(retired);
            if bag.len() < BAG { Vec::new() } else { std::mem::take(&mut *bag) }
        };
        if !full.is_empty() {
            self.barrier.close_with(full);
        }
    }
}

impl Drop for Token<'_> {
    #[inline]
    fn drop(&mut self) {
        let shard = &self.session.get().shards[self.shard];
        if was_last(shard.0.fetch_sub(1, order_of_leaving())) {
            self.barrier.drain(self.session, shard);
        }
    }
}

/// Returns whether a shard whose counter was `inside` was open.
fn is_open(inside: usize) -> bool {
    check!("nitro_barrier.enter.late", inside < CLOSED)
}

/// Returns whether the thread that left was the last one in a closed shard.
fn was_last(inside: usize) -> bool {
    notice!("nitro_barrier.leave.drains", inside == CLOSED + 1)
}

/// Returns the ordering for leaving. Release: the thread's reads happen before the memory is freed.
/// Acquire: this thread may free it.
fn order_of_leaving() -> Ordering {
    if fault!("nitro_barrier.leave.release") { Ordering::Relaxed } else { Ordering::AcqRel }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
