//! The interface between the tree and its synchronization protocol.
//!
//! Descents, changes and scans are written once. A protocol defines the lock of a node, the
//! [`Mode`]s in which readers and writers pass through nodes, and whether readers notice a change
//! in progress ([`Protocol::READERS_NOTICE`]).
//!
//! | protocol | lock of a node | readers | writers |
//! |---|---|---|---|
//! | [`Unsynchronized`] | none | [`Free`] | [`Free`] |
//! | [`Coupling`] | read-write spin lock | shared | shared, then upgrade |
//! | [`Olc`] | version lock | optimistic | optimistic, then upgrade |
//! | [`Rowex`] | version lock | [`Free`] | optimistic, then upgrade |
//!
//! An operation that restarts too often continues in mode [`Exclusive`], with coupled locks from
//! the root down. All blocking waits go from a node to one of its descendants, and upgrades never
//! wait, so there are no deadlocks.

mod coupling;
mod none;
mod olc;
mod rowex;

pub use coupling::Coupling;
pub use none::Unsynchronized;
pub use olc::Olc;
pub use rowex::Rowex;

/// The words that were read may be from different moments, or the node is unlinked: the operation
/// restarts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Restart;

/// The lock of a node.
pub trait Latch: Default + 'static {
    /// A guard of the exclusive lock, which unlocks on drop.
    type Held<'a>;

    /// Takes the lock, and waits for its holder if necessary.
    ///
    /// # Errors
    /// Returns [`Restart`] if the node is unlinked.
    fn lock(&self) -> Result<Self::Held<'_>, Restart>;

    /// Unlocks the lock of a node that is now unlinked. No thread may enter it any more.
    fn unlock_obsolete(held: Self::Held<'_>);

    /// Returns whether no thread is inside and the node is not unlinked. For audits.
    fn is_idle(&self) -> bool;
}

/// The way in which a descent passes through nodes.
pub trait Mode<L: Latch> {
    /// Whether tokens are locks, which must not be held while the caller's code runs.
    const HOLDS_LOCKS: bool;

    /// Represents having entered a node. Leaves it on drop.
    type Token<'a>;

    /// Enters a node.
    ///
    /// # Errors
    /// Returns [`Restart`] if the node is unlinked.
    fn enter(lock: &L) -> Result<Self::Token<'_>, Restart>;

    /// Returns whether everything that was read from the node since it was entered is from one
    /// moment.
    fn holds(token: &Self::Token<'_>) -> bool;
}

/// The way in which a descent passes through nodes that it may change.
pub trait WriteMode<L: Latch>: Mode<L> {
    /// Takes the lock exclusively, if the node has not changed since it was entered. Never waits.
    ///
    /// # Errors
    /// Returns [`Restart`] if the node may have changed.
    fn upgrade<'a>(lock: &'a L, token: Self::Token<'a>) -> Result<L::Held<'a>, Restart>;
}

/// A synchronization protocol.
pub trait Protocol: 'static {
    /// The lock in the header of each node.
    type Lock: Latch;
    /// The mode of lookups and scans.
    type Read: Mode<Self::Lock>;
    /// The mode of changes.
    type Write: WriteMode<Self::Lock>;

    /// Whether readers are blocked by, or notice, a change in progress. If so, nodes are changed in
    /// place: Node4 and Node16 are sorted, free slots are reused, and the depth of a node is the
    /// sum of the prefixes above it. Otherwise a slot is only ever filled for one byte, and the
    /// immutable level of a node determines its depth.
    const READERS_NOTICE: bool;

    /// Maximum numbers of children of Node4, Node16 and Node48.
    const CAPACITY: [usize; 3] = [4, 16, 48];

    /// Whether the leaves are keys in the memory of another structure; see `leaf.rs`.
    const LENT: bool = false;
}

/// A protocol that supports several threads.
///
/// # Safety
/// Under [`Protocol::Write`], at most one thread holds a node's lock. In the meantime, readers in
/// mode [`Protocol::Read`] get correct results.
#[expect(unsafe_code, reason = "what makes a tree Sync")]
pub unsafe trait Concurrent: Protocol {
    /// Name of the protocol in audits.
    const NAME: &'static str;
}

/// Does not block any thread, and checks nothing.
#[derive(Debug)]
pub struct Free;

impl<L: Latch> Mode<L> for Free {
    const HOLDS_LOCKS: bool = false;
    type Token<'a> = ();

    #[inline(always)]
    fn enter(_: &L) -> Result<(), Restart> {
        Ok(())
    }
    #[inline(always)]
    fn holds((): &()) -> bool {
        true
    }
}

/// Coupled exclusive locks, for operations whose optimistic attempts have failed too often.
#[derive(Debug)]
pub struct Exclusive;

impl<L: Latch> Mode<L> for Exclusive {
    const HOLDS_LOCKS: bool = true;
    type Token<'a> = L::Held<'a>;

    fn enter(lock: &L) -> Result<L::Held<'_>, Restart> {
        lock.lock()
    }
    fn holds(_: &L::Held<'_>) -> bool {
        true
    }
}

impl<L: Latch> WriteMode<L> for Exclusive {
    fn upgrade<'a>(_: &'a L, token: L::Held<'a>) -> Result<L::Held<'a>, Restart> {
        Ok(token)
    }
}

/// The same protocol with nodes that have room for few children, so that tests often grow and
/// shrink nodes.
#[derive(Debug)]
pub struct Minimal<P>(P);

impl<P: Protocol> Protocol for Minimal<P> {
    type Lock = P::Lock;
    type Read = P::Read;
    type Write = P::Write;
    const READERS_NOTICE: bool = P::READERS_NOTICE;
    const CAPACITY: [usize; 3] = [2, 3, 4];
}

// SAFETY: capacities do not affect synchronization; the rest is the other protocol's.
#[expect(unsafe_code, reason = "see the trait")]
unsafe impl<P: Concurrent> Concurrent for Minimal<P> {
    const NAME: &'static str = P::NAME;
}

/// The same protocol with leaves that another structure owns; see `leaf.rs`. Only for callers in
/// this crate, because each value that they insert must be the address of its key.
#[derive(Debug)]
pub struct Lent<P>(P);

impl<P: Protocol> Protocol for Lent<P> {
    type Lock = P::Lock;
    type Read = P::Read;
    type Write = P::Write;
    const READERS_NOTICE: bool = P::READERS_NOTICE;
    const LENT: bool = true;
}

// SAFETY: the owner of leaves does not affect synchronization; the rest is the other protocol's.
#[expect(unsafe_code, reason = "see the trait")]
unsafe impl<P: Concurrent> Concurrent for Lent<P> {
    const NAME: &'static str = P::NAME;
}
