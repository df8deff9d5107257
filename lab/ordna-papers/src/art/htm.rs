//! The tree under hardware transactional memory, with an elided lock to fall back to.
//!
//! Some Intel server processors have it; on others firmware has turned it off, and AMD and Arm
//! processors lack it. It is here because the paper compares with it (§5). Without it every operation
//! takes the fallback lock; [`ArtHtm::has_transactions`] tells.
//!
//! # Contract
//! One lock stands for the whole tree, whose nodes have none. An operation first runs as a
//! transaction that reads the lock word and finds it free: the processor makes its reads and writes
//! one step, or none. After [`TRANSACTIONS`] aborts, or on processors without RTM, it takes the
//! lock, which aborts every transaction under way. So each operation is atomic, scans included, and
//! memory that leaves the tree is freed at once: a transaction that still reads it conflicts, and
//! is rolled back.
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

/// How often an operation runs as a transaction before it takes the lock.
const TRANSACTIONS: u32 = 20;

/// An adaptive radix tree under hardware transactions.
pub struct ArtHtm<K: Key + ?Sized, V: Value + ?Sized> {
    tree: Tree<K, V, Unsynchronized>,
    lock: ElidedLock,
    len: StripedCounter,
}

#[expect(unsafe_code, reason = "the elided lock is what makes sharing sound")]
// SAFETY: nodes hold atomics, records plain data of Send + Sync kinds.
unsafe impl<K: Key + ?Sized, V: Value + ?Sized> Send for ArtHtm<K, V> {}
#[expect(unsafe_code, reason = "the elided lock is what makes sharing sound")]
// SAFETY: every operation runs in a section of the lock, so they are as if one after the other.
unsafe impl<K: Key + ?Sized, V: Value + ?Sized> Sync for ArtHtm<K, V> {}

crate::shell!("ArtHtm" [K: Key + ?Sized, V: Value + ?Sized] ArtHtm<K, V>);

impl<K: Key + ?Sized, V: Value + ?Sized> ArtHtm<K, V> {
    /// An empty index.
    pub fn new() -> Self {
        Self::with_transactions(rtm::is_there())
    }

    /// An empty index whose operations all take the fallback lock, as on a processor without
    /// transactions.
    pub fn without_transactions() -> Self {
        Self::with_transactions(false)
    }

    fn with_transactions(transactions: bool) -> Self {
        let lock = ElidedLock { taken: AtomicBool::new(false), transactions };
        Self { tree: Tree::new(), lock, len: StripedCounter::new() }
    }

    /// Whether operations run as hardware transactions first.
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

/// A spin lock that is only taken when transactions do not get through.
#[derive(Debug)]
struct ElidedLock {
    taken: AtomicBool,
    /// Whether the processor has transactions and they are wanted.
    transactions: bool,
}

/// Within the lock, or within a transaction.
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
                    // Read within the transaction: taking the lock aborts it.
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

/// Restricted transactional memory.
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "instructions without a stable intrinsic")]
mod rtm {
    use std::arch::asm;

    const STARTED: u32 = u32::MAX;

    pub fn is_there() -> bool {
        std::arch::is_x86_feature_detected!("rtm")
    }

    /// Starts a transaction. `false`: it was not started, or was aborted, and all that was done in
    /// it is undone, so that this call returns once more.
    pub fn begin() -> bool {
        let mut status = STARTED;
        // SAFETY: only called if the processor has RTM. On an abort the processor restores
        // registers and memory to what they were here, and sets EAX: for the compiler, a block that
        // returns.
        unsafe { asm!("xbegin 2f", "2:", inout("eax") status, options(nostack)) };
        status == STARTED
    }

    pub fn end() {
        // SAFETY: within a transaction.
        unsafe { asm!("xend", options(nostack)) };
    }

    pub fn abort() {
        // SAFETY: within a transaction; goes back to `begin`.
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
