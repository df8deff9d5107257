//! Lock coupling with read-write spin locks.
//!
//! # Contract
//! A descent holds at most two locks: it takes the child's before it leaves the parent's. A scan
//! holds those of the way from the root to where it stands, while it gathers records. Readers take
//! them shared. Writers do too, and upgrade the one or two they need at the end; if another reader
//! is in the way they restart, and after some restarts go down with exclusive locks. Each lookup
//! writes to the lock of every node on its way: that is what the paper measures.
//!
//! Source: "The ART of Practical Synchronization" (Leis et al., DaMoN 2016), §3.

use super::{Concurrent, Latch, Mode, Protocol, Restart, WriteMode};
use ordna_base::sync::Backoff;
use ordna_base::sync::atomic::{AtomicU32, Ordering};

/// Lock coupling.
#[derive(Debug)]
pub struct Coupling;

impl Protocol for Coupling {
    type Lock = SpinLock;
    type Read = Shared;
    type Write = Shared;
    const READERS_NOTICE: bool = true;
}

// SAFETY: the lock keeps readers and writers of a node apart.
#[expect(unsafe_code, reason = "see the trait")]
unsafe impl Concurrent for Coupling {
    const NAME: &'static str = "art-coupling";
}

const WRITER: u32 = 1;
/// A writer waits: no new readers.
const WAITING: u32 = 2;
const READER: u32 = 4;

/// A read-write spin lock in one word. A waiting writer keeps new readers out.
#[derive(Debug, Default)]
pub struct SpinLock(AtomicU32);

impl SpinLock {
    fn share(&self) {
        let mut backoff = Backoff::new();
        loop {
            let word = self.0.load(Ordering::Relaxed);
            // Acquire: pairs with the release of the last writer.
            if word & (WRITER | WAITING) == 0
                && self
                    .0
                    .compare_exchange_weak(
                        word,
                        word + READER,
                        Ordering::Acquire,
                        Ordering::Relaxed,
                    )
                    .is_ok()
            {
                return;
            }
            backoff.wait();
        }
    }

    fn exclude(&self) {
        let mut backoff = Backoff::new();
        loop {
            let word = self.0.load(Ordering::Relaxed);
            if word & !WAITING == 0 {
                // Acquire: pairs with the releases of earlier holders. Clears WAITING: other
                // writers that wait set it again.
                if self
                    .0
                    .compare_exchange_weak(word, WRITER, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
                {
                    return;
                }
            } else if word & WAITING == 0 {
                self.0.fetch_or(WAITING, Ordering::Relaxed);
            }
            backoff.wait();
        }
    }

    /// From the only reader to the writer, or not at all.
    fn try_upgrade(&self) -> bool {
        let alone = self.0.load(Ordering::Relaxed) & WAITING | READER;
        self.0
            .compare_exchange(alone, alone & WAITING | WRITER, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }
}

/// The lock, held by this reader among others.
#[derive(Debug)]
pub struct Sharing<'a>(&'a SpinLock);

impl Drop for Sharing<'_> {
    fn drop(&mut self) {
        // Release: what this reader read was read before a writer comes in.
        self.0.0.fetch_sub(READER, Ordering::Release);
    }
}

/// The lock, held by a writer.
#[derive(Debug)]
pub struct Excluding<'a>(&'a SpinLock);

impl Drop for Excluding<'_> {
    fn drop(&mut self) {
        // Release: the next holder sees the writes.
        self.0.0.fetch_and(!WRITER, Ordering::Release);
    }
}

impl Latch for SpinLock {
    type Held<'a> = Excluding<'a>;

    fn lock(&self) -> Result<Excluding<'_>, Restart> {
        self.exclude();
        Ok(Excluding(self))
    }

    /// No thread waits for the lock of a node that leaves the tree: one would have to hold its
    /// parent's, which the remover does.
    fn unlock_obsolete(held: Excluding<'_>) {
        drop(held);
    }

    fn is_idle(&self) -> bool {
        self.0.load(Ordering::Relaxed) & !WAITING == 0
    }
}

/// Shared locks, coupled.
#[derive(Debug)]
pub struct Shared;

impl Mode<SpinLock> for Shared {
    const HOLDS_LOCKS: bool = true;
    type Token<'a> = Sharing<'a>;

    #[inline]
    fn enter(lock: &SpinLock) -> Result<Sharing<'_>, Restart> {
        lock.share();
        Ok(Sharing(lock))
    }
    #[inline]
    fn holds(_: &Sharing<'_>) -> bool {
        true
    }
}

impl WriteMode<SpinLock> for Shared {
    fn upgrade<'a>(lock: &'a SpinLock, sharing: Sharing<'a>) -> Result<Excluding<'a>, Restart> {
        if !lock.try_upgrade() {
            return Err(Restart);
        }
        // The reader has become the writer: its share is gone already.
        std::mem::forget(sharing);
        Ok(Excluding(lock))
    }
}
