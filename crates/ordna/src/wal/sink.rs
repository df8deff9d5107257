//! A second destination of a store's log, for replication.
//!
//! # Contract
//! A [`LogSink`] receives every group of records that the log accepts, in the order of the log and
//! without a gap, from the position where it was attached. The queue calls [`LogSink::take`] under
//! its own lock, so no second lock is needed for the order.
//!
//! # Failure
//! If a write is in memory but the log could not take it, the sink does not receive its records.
//! The queue reports this through [`LogSink::lose`] and gives the sink no later group. So a copy
//! that was built from the earlier groups remains a state that the store once had.

use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use crate::Error;

/// The records that a store's log took in one step. A copy must hold all of them or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogGroup<'a> {
    /// Position of the log at which the records begin. They end [`records.len()`](slice::len) later.
    pub start: u64,
    /// The encoded records, as `docs/FORMAT.md` describes them.
    pub records: &'a [u8],
    /// Number of records.
    pub count: u64,
}

impl LogGroup<'_> {
    /// Returns the position after the records.
    pub fn end(&self) -> u64 {
        self.start + self.records.len() as u64
    }
}

/// A second destination of a store's log. See
/// [`Store::attach_log_sink`](crate::Store::attach_log_sink).
///
/// The methods must not use the store.
pub trait LogSink: Send + Sync {
    /// Receives the position at which the first group begins. Called once, before all other
    /// methods.
    fn begin(&self, position: u64);

    /// Takes a group. Called for one group at a time, in the order of the log, while other writers
    /// wait. It should only copy the records and return. It cannot fail, because the memory has
    /// already changed; a sink that has failed drops the group.
    fn take(&self, group: LogGroup<'_>);

    /// Reports that a write is in memory but in no group. No further group follows.
    fn lose(&self, reason: &str);

    /// Checks whether the store may write. Called before the memory changes, so that the store
    /// stays as it is if the sink has failed or holds too many groups.
    ///
    /// # Errors
    /// The reason why writes must fail, usually [`Error::LogFailed`].
    fn check(&self) -> Result<(), Error>;

    /// Returns `Ready` when everything up to a position is acknowledged. Writes under
    /// [`SyncPolicy::Always`](crate::SyncPolicy::Always) wait for this after their fsync.
    ///
    /// # Errors
    /// The position will never be acknowledged. For a position that is already acknowledged, there
    /// is no error.
    fn poll_acknowledged(
        &self,
        position: u64,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Error>>;

    /// Returns `Ready` when the number of groups that are not acknowledged is within the sink's
    /// limit. Writes under the other policies wait for this.
    ///
    /// # Errors
    /// The sink has failed.
    fn poll_room(&self, context: &mut Context<'_>) -> Poll<Result<(), Error>>;
}

/// Wakes a thread that waits in [`block_on`].
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for a poll function of a sink on this thread.
pub(super) fn block_on(
    mut poll: impl FnMut(&mut Context<'_>) -> Poll<Result<(), Error>>,
) -> Result<(), Error> {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        match poll(&mut context) {
            Poll::Ready(done) => return done,
            // A spurious wake-up only makes it poll once more.
            Poll::Pending => thread::park(),
        }
    }
}
