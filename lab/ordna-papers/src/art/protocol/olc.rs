//! Optimistic lock coupling.
//!
//! # Contract
//! A reader samples a node's version, reads, and samples the version of the child to which it
//! descends. Only then does it validate its own node. At that moment, the child was linked there
//! and had the sampled version. A writer descends in the same way, and takes the locks of the one
//! or two nodes that it changes by upgrading the versions that it has seen.
//!
//! # Progress
//! A reader or writer that has restarted 16 times takes exclusive locks from the root down.
//! [`crate::art`] describes what restarts even then.
//!
//! Source: "The ART of Practical Synchronization" (Leis et al., DaMoN 2016), §3, appendices A and
//! B.

use super::{Concurrent, Latch, Mode, Protocol, Restart, WriteMode};
use ordna_base::sync::{Version, VersionLock, WriteGuard};

/// The protocol of optimistic lock coupling.
#[derive(Debug)]
pub struct Olc;

impl Protocol for Olc {
    type Lock = VersionLock;
    type Read = Optimistic;
    type Write = Optimistic;
    const READERS_NOTICE: bool = true;
}

// SAFETY: versions exclude other writers, and show readers that a writer was inside.
#[expect(unsafe_code, reason = "see the trait")]
unsafe impl Concurrent for Olc {
    const NAME: &'static str = "art-olc";
}

impl Latch for VersionLock {
    type Held<'a> = WriteGuard<'a>;

    fn lock(&self) -> Result<WriteGuard<'_>, Restart> {
        self.lock().map_err(|_| Restart)
    }
    fn unlock_obsolete(held: WriteGuard<'_>) {
        held.unlock_obsolete();
    }
    fn is_idle(&self) -> bool {
        matches!(self.try_read(), Ok(Some(_)))
    }
}

/// Samples and compares versions, and writes nothing.
#[derive(Debug)]
pub struct Optimistic;

/// The version that a node had when it was entered.
#[derive(Debug, Clone, Copy)]
pub struct Seen<'a> {
    lock: &'a VersionLock,
    version: Version,
}

impl Mode<VersionLock> for Optimistic {
    const HOLDS_LOCKS: bool = false;
    type Token<'a> = Seen<'a>;

    #[inline]
    fn enter(lock: &VersionLock) -> Result<Seen<'_>, Restart> {
        let version = lock.read().map_err(|_| Restart)?;
        Ok(Seen { lock, version })
    }
    #[inline]
    fn holds(seen: &Seen<'_>) -> bool {
        seen.lock.validate(seen.version)
    }
}

impl WriteMode<VersionLock> for Optimistic {
    #[inline]
    fn upgrade<'a>(lock: &'a VersionLock, seen: Seen<'a>) -> Result<WriteGuard<'a>, Restart> {
        lock.try_upgrade(seen.version).ok_or(Restart)
    }
}
