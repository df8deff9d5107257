//! State and control of an opened store's log.

use std::sync::Arc;
use std::task::{Context, Poll};

use ordna_base::{Key, Value};

use super::replay::{decode_group, repeat};
use crate::wal::reports::Durability;
use crate::wal::sink::LogSink;
use crate::wal::sync_policy::SyncPolicy;
use crate::{BackupError, Error, Store};

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

    /// Passes every group of records that is logged from now on to `sink`, too; returns the position
    /// where the first one begins. No write is in progress at that moment, so the state of the store
    /// is that of the position. `None` for a store without a directory, and if there is a sink: a
    /// log has one for its whole life. Waits for writes in progress.
    ///
    /// Writes wait for the sink as [`LogSink`] describes. The log's own files do not: after a crash
    /// they may hold groups that the sink has not acknowledged, and the other way round.
    pub fn attach_log_sink(&self, sink: Arc<dyn LogSink>) -> Option<u64> {
        self.check_reentry();
        let durable = self.durable()?;
        durable.wal.stop_writers(|_| durable.wal.queue.attach_sink(sink))
    }

    /// Repeats a group of records that another store's [`LogSink`] has received, as one group of
    /// this store's log if it has one. Concurrent reads may see a part of it. Groups must be
    /// repeated in the order of their positions; repeating all groups from an earlier position on
    /// leads to the same state. O(records).
    ///
    /// Keys expire by the clock of this store. A copy whose clock runs ahead of the time of the
    /// writes may drop a key whose deadline a later record lifts.
    ///
    /// # Errors
    /// [`BackupError::Damaged`] if the bytes are not `count` whole records of this store's kinds;
    /// nothing is changed. Otherwise an error of a write: then a part of the group may be in memory.
    pub fn repeat_log_group(&self, records: &[u8], count: u64) -> Result<(), BackupError> {
        let decoded = decode_group::<K, V>(records, count)?;
        let mut all = decoded.into_iter();
        let work = || all.try_for_each(|record| repeat(self, records, record));
        Ok(self.log_group(work)??)
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
