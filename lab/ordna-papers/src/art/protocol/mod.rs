//! The interface between the tree and its synchronization protocol.
//!
//! The descents, the changes and the scans are written once. A protocol states the lock of a node,
//! the [`Mode`]s in which readers and writers go through nodes, and whether readers notice a change
//! that is under way ([`Protocol::READERS_NOTICE`]).
//!
//! | protocol | lock of a node | readers | writers |
//! |---|---|---|---|
//! | [`Unsynchronized`] | none | [`Free`] | [`Free`] |
//! | [`Coupling`] | read-write spin lock | shared | shared, then upgrade |
//! | [`Olc`] | version lock | optimistic | optimistic, then upgrade |
//! | [`Rowex`] | version lock | [`Free`] | optimistic, then upgrade |
//!
//! An operation that restarts too often continues in mode [`Exclusive`]: coupled locks from the
//! root down. All blocking waits go from a node to one of its descendants, and upgrades never wait:
//! no deadlock.

mod coupling;
mod none;
mod olc;
mod rowex;

pub use coupling::Coupling;
pub use none::Unsynchronized;
pub use olc::Olc;
pub use rowex::Rowex;

/// The words read may be of several moments, or the node is unlinked: the operation restarts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Restart;

/// The lock of a node.
pub trait Latch: Default + 'static {
    /// The lock, held exclusively. Unlocks on drop.
    type Held<'a>;

    /// Takes the lock; waits for its holder.
    ///
    /// # Errors
    /// The node is unlinked.
    fn lock(&self) -> Result<Self::Held<'_>, Restart>;

    /// Unlocks the lock of a node that was unlinked meanwhile: no thread may come in any more.
    fn unlock_obsolete(held: Self::Held<'_>);

    /// Whether no thread is inside and the node is not unlinked. For audits.
    fn is_idle(&self) -> bool;
}

/// How a descent goes through nodes.
pub trait Mode<L: Latch> {
    /// Whether tokens are locks: they must not be kept while the caller's code runs.
    const HOLDS_LOCKS: bool;

    /// Stands for having entered a node. Leaves it on drop.
    type Token<'a>;

    /// Enters a node.
    ///
    /// # Errors
    /// The node is unlinked.
    fn enter(lock: &L) -> Result<Self::Token<'_>, Restart>;

    /// Whether all that was read of the node since it was entered is of one moment.
    fn holds(token: &Self::Token<'_>) -> bool;
}

/// How a descent goes through nodes that it may change.
pub trait WriteMode<L: Latch>: Mode<L> {
    /// Takes the lock exclusively, if the node is as it was when it was entered. Never waits.
    ///
    /// # Errors
    /// It may have changed.
    fn upgrade<'a>(lock: &'a L, token: Self::Token<'a>) -> Result<L::Held<'a>, Restart>;
}

/// A synchronization protocol.
pub trait Protocol: 'static {
    /// The lock in the header of each node.
    type Lock: Latch;
    /// How lookups and scans go through nodes.
    type Read: Mode<Self::Lock>;
    /// How changes do.
    type Write: WriteMode<Self::Lock>;

    /// Whether a reader is kept out of, or notices, a change under way. Then nodes are changed in
    /// place: Node4 and Node16 are sorted, free slots are used again, and the depth of a node is
    /// the sum of the prefixes above. Otherwise a slot is filled once for one byte, and a node's
    /// immutable level says its depth.
    const READERS_NOTICE: bool;

    /// How many children Node4, Node16 and Node48 take.
    const CAPACITY: [usize; 3] = [4, 16, 48];

    /// Whether the leaves are keys in the memory of another structure; see `leaf.rs`.
    const LENT: bool = false;
}

/// A protocol that serves many threads.
///
/// # Safety
/// Under [`Protocol::Write`] at most one thread holds a node's lock, and readers in mode
/// [`Protocol::Read`] get right answers while it does.
#[expect(unsafe_code, reason = "what makes a tree Sync")]
pub unsafe trait Concurrent: Protocol {
    /// As it stands in audits.
    const NAME: &'static str;
}

/// No thread is kept out and nothing is checked.
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

/// Exclusive locks, coupled: the way out when optimism has failed too often.
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

/// The same protocol over nodes that take few children, so that tests grow and shrink nodes often.
#[derive(Debug)]
pub struct Minimal<P>(P);

impl<P: Protocol> Protocol for Minimal<P> {
    type Lock = P::Lock;
    type Read = P::Read;
    type Write = P::Write;
    const READERS_NOTICE: bool = P::READERS_NOTICE;
    const CAPACITY: [usize; 3] = [2, 3, 4];
}

// SAFETY: capacities are no matter of synchronization; the rest is the other protocol's.
#[expect(unsafe_code, reason = "see the trait")]
unsafe impl<P: Concurrent> Concurrent for Minimal<P> {
    const NAME: &'static str = P::NAME;
}

/// The same protocol over leaves that another structure owns; see `leaf.rs`. Only for callers
/// in this crate: each value that they insert must be the address of its key.
#[derive(Debug)]
pub struct Lent<P>(P);

impl<P: Protocol> Protocol for Lent<P> {
    type Lock = P::Lock;
    type Read = P::Read;
    type Write = P::Write;
    const READERS_NOTICE: bool = P::READERS_NOTICE;
    const LENT: bool = true;
}

// SAFETY: the owner of leaves is no matter of synchronization; the rest is the other protocol's.
#[expect(unsafe_code, reason = "see the trait")]
unsafe impl<P: Concurrent> Concurrent for Lent<P> {
    const NAME: &'static str = P::NAME;
}
