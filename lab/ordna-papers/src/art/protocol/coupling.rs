//! Lock coupling with read-write spin locks.
//!
//! # Contract
//! A descent holds at most two locks: it takes the child's lock before it releases the parent's.
//! While a scan gathers records, it holds the locks of the path from the root to its current node.
//! Readers take shared locks. Writers do the same, and upgrade the one or two locks that they need
//! at the end. If another reader prevents this, they restart, and after some restarts they descend
//! with exclusive locks. Each lookup writes to the lock of every node on its path, which is what
//! the paper measures.
//!
//! Source: "The ART of Practical Synchronization" (Leis et al., DaMoN 2016), §3.

use super::{Concurrent, Latch, Mode, Protocol, Restart, WriteMode};
use ordna_base::sync::Backoff;
use ordna_base::sync::atomic::{AtomicU32, Ordering};

/// The protocol of lock coupling.
#[derive(Debug)]
pub struct Coupling;

impl Protocol for Coupling {
    type Lock = SpinLock;
    type Read = Shared;
    type Write = Shared;
    const READERS_NOTICE: bool = true;
}

// SAFETY: the lock excludes readers of a node while a writer changes it.
#[expect(unsafe_code, reason = "see the trait")]
unsafe impl Concurrent for Coupling {
    const NAME: &'static str = "art-coupling";
}

const WRITER: u32 = 1;
/// A writer waits, so no new readers are admitted.
const WAITING: u32 = 2;
const READER: u32 = 4;

/// A read-write spin lock in one word. A waiting writer blocks new readers.
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
                // Acquire: pairs with the releases of earlier holders. Clears WAITING; other
                // waiting writers set it again.
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

    /// Turns the only reader into the writer. Returns `false` if there are other readers.
    fn try_upgrade(&self) -> bool {
        let alone = self.0.load(Ordering::Relaxed) & WAITING | READER;
        self.0
            .compare_exchange(alone, alone & WAITING | WRITER, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }
}

/// The lock, held by a reader.
#[derive(Debug)]
pub struct Sharing<'a>(&'a SpinLock);

impl Drop for Sharing<'_> {
    fn drop(&mut self) {
        // Release: this reader's loads happen before a writer enters.
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

    /// Unlocks the lock. No thread waits for the lock of a node that leaves the tree, because a
    /// waiting thread would have to hold its parent's lock, which the remover holds.
    fn unlock_obsolete(held: Excluding<'_>) {
        drop(held);
    }

    fn is_idle(&self) -> bool {
        self.0.load(Ordering::Relaxed) & !WAITING == 0
    }
}

/// Descends with coupled shared locks.
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
        // The reader has become the writer, so it has no share to release.
        std::mem::forget(sharing);
        Ok(Excluding(lock))
    }
}
