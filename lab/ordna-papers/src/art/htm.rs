//! The tree with hardware transactional memory, and an elided lock as the fallback.
//!
//! Some Intel server processors support it; on others firmware has disabled it, and AMD and Arm
//! processors lack it. It is included because the paper compares with it (§5). Without it, every
//! operation takes the fallback lock; [`ArtHtm::has_transactions`] reports whether it is available.
//!
//! # Contract
//! One lock protects the whole tree, whose nodes have no locks. An operation first runs as a
//! transaction that reads the lock word and finds it free: the processor makes all of its reads and
//! writes atomic, or none of them happens. After [`TRANSACTIONS`] aborts, or on processors without
//! RTM, the operation takes the lock, which aborts every transaction in progress. So each
//! operation, including a scan, is atomic. Memory that leaves the tree is freed at once: a
//! transaction that still reads it conflicts and is rolled back.
//!
//! Source: "The ART of Practical Synchronization" (Leis et al., DaMoN 2016), §5: 20 restarts, then
//! a global, elided lock.

use std::borrow::Borrow;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

use super::protocol::Unsynchronized;
use super::tree::{Sole, Tree};
use super::write::Effect;
use ordna_base::index::{Bounds, Change, Direction, InvariantReport, MemoryUsage, OrderedIndex};
use ordna_base::reclaim::Guard;
use ordna_base::sync::{Backoff, StripedCounter};
use ordna_base::{Error, Key, Value, Violation};

/// Number of attempts as a transaction before an operation takes the lock.
const TRANSACTIONS: u32 = 20;

/// An adaptive radix tree with hardware transactions.
pub struct ArtHtm<K: Key + ?Sized, V: Value + ?Sized> {
    tree: Tree<K, V, Unsynchronized>,
    lock: ElidedLock,
    len: StripedCounter,
}

#[expect(unsafe_code, reason = "the elided lock is what makes sharing sound")]
// SAFETY: nodes contain atomics, and records contain plain data of types that are Send + Sync.
unsafe impl<K: Key + ?Sized, V: Value + ?Sized> Send for ArtHtm<K, V> {}
#[expect(unsafe_code, reason = "the elided lock is what makes sharing sound")]
// SAFETY: every operation runs in a section of the lock, so the operations are serialized.
unsafe impl<K: Key + ?Sized, V: Value + ?Sized> Sync for ArtHtm<K, V> {}

crate::shell!("ArtHtm" [K: Key + ?Sized, V: Value + ?Sized] ArtHtm<K, V>);

impl<K: Key + ?Sized, V: Value + ?Sized> ArtHtm<K, V> {
    /// Creates an empty index.
    pub fn new() -> Self {
        Self::with_transactions(rtm::is_there())
    }

    /// Creates an empty index whose operations all take the fallback lock, as on a processor
    /// without transactions.
    pub fn without_transactions() -> Self {
        Self::with_transactions(false)
    }

    fn with_transactions(transactions: bool) -> Self {
        let lock = ElidedLock { taken: AtomicBool::new(false), transactions };
        Self { tree: Tree::new(), lock, len: StripedCounter::new() }
    }

    /// Returns whether operations first run as hardware transactions.
    pub fn has_transactions(&self) -> bool {
        self.lock.transactions
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> OrderedIndex for ArtHtm<K, V> {
    type Key = K;
    type Value = V;

    fn get_with<R>(&self, key: &K, read: impl FnOnce(&V) -> R) -> Option<R> {
        let _section = self.lock.enter();
        self.tree.get(key, &Sole).map(|leaf| Tree::<K, V, Unsynchronized>::with_value(leaf, read))
    }

    fn modify<T, F>(&self, key: &K, change: F) -> Result<(), Error>
    where
        T: Borrow<V>,
        F: FnMut(Option<&V>) -> Change<T>,
    {
        let section = self.lock.enter();
        let effect = self.tree.modify(key, change, &Sole)?;
        drop(section);
        match effect {
            Effect::Same => {}
            Effect::Inserted => self.len.add(1),
            Effect::Removed => self.len.add(-1),
        }
        Ok(())
    }

    fn scan_with(
        &self,
        (lower, upper): Bounds<'_, K>,
        direction: Direction,
        limit: usize,
        visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) {
        let _section = self.lock.enter();
        self.tree.scan_with(lower, upper, direction, limit, &Sole, visit);
    }

    fn pin(&self) -> Option<Guard<'_>> {
        None
    }

    fn approximate_len(&self) -> usize {
        self.len.sum()
    }

    fn memory_usage(&self) -> MemoryUsage {
        let _section = self.lock.enter();
        self.tree.memory_usage(&Sole)
    }

    fn check_invariants(&self) -> Result<InvariantReport, Violation> {
        let _section = self.lock.enter();
        self.tree.check_invariants(&Sole)
    }

    fn get_many_with<Q: Borrow<K>>(&self, keys: &[Q], mut each: impl FnMut(usize, Option<&V>)) {
        let _section = self.lock.enter();
        self.tree.get_many(keys, &Sole, |at, leaf| match leaf {
            Some(leaf) => {
                Tree::<K, V, Unsynchronized>::with_value(leaf, |value| each(at, Some(value)));
            }
            None => each(at, None),
        });
    }
}

/// A spin lock that is taken only if transactions fail.
#[derive(Debug)]
struct ElidedLock {
    taken: AtomicBool,
    /// Whether the processor supports transactions and they are enabled.
    transactions: bool,
}

/// A critical section: either a transaction, or the lock.
struct Section<'a> {
    lock: &'a ElidedLock,
    in_transaction: bool,
}

impl ElidedLock {
    fn enter(&self) -> Section<'_> {
        let mut backoff = Backoff::new();
        if self.transactions {
            for _ in 0..TRANSACTIONS {
                while self.taken.load(Ordering::Relaxed) {
                    backoff.wait();
                }
                if rtm::begin() {
                    // The word is read in the transaction, so a thread that takes the lock aborts
                    // it.
                    if !self.taken.load(Ordering::Relaxed) {
                        return Section { lock: self, in_transaction: true };
                    }
                    rtm::abort();
                }
            }
        }
        while self.taken.swap(true, Ordering::Acquire) {
            while self.taken.load(Ordering::Relaxed) {
                backoff.wait();
            }
        }
        Section { lock: self, in_transaction: false }
    }
}

impl Drop for Section<'_> {
    fn drop(&mut self) {
        if self.in_transaction {
            rtm::end();
        } else {
            self.lock.taken.store(false, Ordering::Release);
        }
    }
}

/// Functions for restricted transactional memory.
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "instructions without a stable intrinsic")]
mod rtm {
    use std::arch::asm;

    const STARTED: u32 = u32::MAX;

    pub fn is_there() -> bool {
        std::arch::is_x86_feature_detected!("rtm")
    }

    /// Starts a transaction. Returns `false` if it could not be started, or was aborted. An abort
    /// undoes everything done in the transaction, so that this call returns a second time.
    pub fn begin() -> bool {
        let mut status = STARTED;
        // SAFETY: only called if the processor has RTM. On an abort, the processor restores
        // registers and memory to their state at this instruction, and sets EAX. To the compiler,
        // this is a block that returns.
        unsafe { asm!("xbegin 2f", "2:", inout("eax") status, options(nostack)) };
        status == STARTED
    }

    pub fn end() {
        // SAFETY: called within a transaction.
        unsafe { asm!("xend", options(nostack)) };
    }

    pub fn abort() {
        // SAFETY: called within a transaction; control returns to `begin`.
        unsafe { asm!("xabort 0xff", options(nostack)) };
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod rtm {
    pub fn is_there() -> bool {
        false
    }
    pub fn begin() -> bool {
        false
    }
    pub fn end() {}
    pub fn abort() {}
}
