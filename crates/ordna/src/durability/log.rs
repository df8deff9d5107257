//! State and control of an opened store's log.

use std::task::{Context, Poll};

use ordna_base::{Key, Value};

use crate::wal::reports::Durability;
use crate::wal::sync_policy::SyncPolicy;
use crate::{Error, Store};

impl<K: Key + ?Sized, V: Value + ?Sized> Store<K, V> {
    /// Returns the state of the log and the backups; `None` for a store without a directory.
    pub fn durability(&self) -> Option<Durability> {
        self.durable().map(|durable| durable.report())
    }

    /// Returns an error if the log has failed: a write would fail too. O(1).
    ///
    /// # Errors
    /// [`Error::LogFailed`].
    pub fn check_log(&self) -> Result<(), Error> {
        self.durable().map_or(Ok(()), |durable| durable.wal.queue.check())
    }

    /// Returns the position after the last record of the log; 0 without a directory.
    pub fn log_position(&self) -> u64 {
        self.durable().map_or(0, |durable| durable.wal.queue.appended())
    }

    /// Returns `Ready` once everything up to a [`log_position`](Self::log_position) is written to
    /// the operating system: a crash of the process then loses none of it. Does not wait for a
    /// write of another thread.
    pub fn poll_flushed(
        &self,
        position: u64,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Error>> {
        match self.durable() {
            None => Poll::Ready(Ok(())),
            Some(durable) => durable.wal.queue.poll_written(position, context),
        }
    }

    /// Changes when the log is made durable, and makes durable what is logged so far. Writes that
    /// begin later follow the new policy. Does nothing without a directory.
    ///
    /// # Errors
    /// [`Error::LogFailed`]; the policy is changed.
    pub fn set_sync_policy(&self, policy: SyncPolicy) -> Result<(), Error> {
        self.durable().map_or(Ok(()), |durable| durable.wal.queue.set_policy(policy))
    }

    /// Makes everything logged so far durable.
    ///
    /// # Errors
    /// [`Error::LogFailed`].
    pub fn sync_log(&self) -> Result<(), Error> {
        let Some(durable) = self.durable() else { return Ok(()) };
        durable.wal.queue.drain()?;
        durable.wal.queue.sync()
    }

    /// Returns `Ready` once the log is durable up to a [`log_position`](Self::log_position). Under
    /// [`SyncPolicy::Always`](super::SyncPolicy::Always) that is soon, otherwise after the next
    /// sync.
    pub fn poll_durable(
        &self,
        position: u64,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Error>> {
        match self.durable() {
            None => Poll::Ready(Ok(())),
            Some(durable) => durable.wal.queue.poll(position, context),
        }
    }

    /// Waits until the log is durable up to a [`log_position`](Self::log_position), without
    /// blocking the thread; see [`durability`](crate::durability) for an example. At once in a
    /// store without a directory.
    ///
    /// # Errors
    /// [`Error::LogFailed`].
    pub async fn until_durable(&self, position: u64) -> Result<(), Error> {
        std::future::poll_fn(|context| self.poll_durable(position, context)).await
    }

    /// Closes the log durably; later writes fail, also after a [backup](Store::backup). A write of
    /// another thread meanwhile is kept or fails. Dropping the store does the same and releases the
    /// directory, but cannot report a failure.
    ///
    /// # Errors
    /// [`Error::LogFailed`].
    pub fn close_log(&self) -> Result<(), Error> {
        self.check_reentry();
        // A checkpoint may wait for the group of this thread: it ends once the group has.
        let in_group = self.durable().is_some_and(|durable| durable.wal.in_group());
        if let Some(thread) = self.checkpoint_thread()
            && !in_group
        {
            thread.end();
        }
        self.durable().map_or(Ok(()), |durable| durable.wal.close())
    }
}
