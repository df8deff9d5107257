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
    /// Returns the state of the log and the backups, or `None` for a store without a directory.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("ordna-doc-x4-{}", std::process::id()));
    /// let towns: ordna::Store<[u8], u64> = ordna::Store::open(&dir, ordna::OpenOptions::new())?;
    /// towns.put("Lund", 94_393)?;
    /// assert!(towns.durability().unwrap().appended > 0);
    /// # drop(towns);
    /// # std::fs::remove_dir_all(dir)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn durability(&self) -> Option<Durability> {
        self.durable().map(|durable| durable.report())
    }

    /// Returns an error if the log has failed, because a write would fail too. O(1).
    ///
    /// # Errors
    /// [`Error::LogFailed`] if the log has failed.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("ordna-doc-x5-{}", std::process::id()));
    /// let towns: ordna::Store<[u8], u64> = ordna::Store::open(&dir, ordna::OpenOptions::new())?;
    /// assert!(towns.check_log().is_ok());
    /// # drop(towns);
    /// # std::fs::remove_dir_all(dir)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn check_log(&self) -> Result<(), Error> {
        self.durable().map_or(Ok(()), |durable| durable.wal.queue.check())
    }

    /// Returns the position after the last record of the log, or 0 for a store without a directory.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("ordna-doc-x6-{}", std::process::id()));
    /// let towns: ordna::Store<[u8], u64> = ordna::Store::open(&dir, ordna::OpenOptions::new())?;
    /// let before = towns.log_position();
    /// towns.put("Lund", 94_393)?;
    /// assert!(towns.log_position() > before);
    /// # drop(towns);
    /// # std::fs::remove_dir_all(dir)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn log_position(&self) -> u64 {
        self.durable().map_or(0, |durable| durable.wal.queue.appended())
    }

    /// Returns `Ready` once everything up to a [`log_position`](Self::log_position) is written to
    /// the operating system, so that a crash of the process loses none of it. Does not wait for a
    /// write of another thread.
    ///
    /// ```
    /// use std::task::{Context, Waker};
    ///
    /// let store: ordna::Store<u64, u64> = ordna::Store::new();
    /// let mut context = Context::from_waker(Waker::noop());
    /// // Always ready for a store without a directory.
    /// assert!(store.poll_flushed(store.log_position(), &mut context).is_ready());
    /// ```
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

    /// Changes when the log is made durable, and makes everything durable that was logged so far.
    /// Writes that begin later follow the new policy. Does nothing for a store without a directory.
    ///
    /// # Errors
    /// [`Error::LogFailed`] if the log has failed. The policy is changed nevertheless.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("ordna-doc-x7-{}", std::process::id()));
    /// let towns: ordna::Store<[u8], u64> = ordna::Store::open(&dir, ordna::OpenOptions::new())?;
    /// towns.set_sync_policy(ordna::SyncPolicy::Always)?;
    /// towns.put("Lund", 94_393)?; // Durable when the call returns.
    /// # drop(towns);
    /// # std::fs::remove_dir_all(dir)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_sync_policy(&self, policy: SyncPolicy) -> Result<(), Error> {
        self.durable().map_or(Ok(()), |durable| durable.wal.queue.set_policy(policy))
    }

    /// Makes everything logged so far durable.
    ///
    /// # Errors
    /// [`Error::LogFailed`] if the log has failed.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("ordna-doc-x8-{}", std::process::id()));
    /// let towns: ordna::Store<[u8], u64> = ordna::Store::open(&dir, ordna::OpenOptions::new())?;
    /// towns.put("Lund", 94_393)?;
    /// towns.sync_log()?; // From now on a crash of the machine does not lose the entry.
    /// # drop(towns);
    /// # std::fs::remove_dir_all(dir)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn sync_log(&self) -> Result<(), Error> {
        let Some(durable) = self.durable() else { return Ok(()) };
        durable.wal.queue.drain()?;
        durable.wal.queue.sync()
    }

    /// Returns `Ready` once the log is durable up to a [`log_position`](Self::log_position). Under
    /// [`SyncPolicy::Always`](super::SyncPolicy::Always) this is soon, otherwise after the next
    /// sync.
    ///
    /// ```
    /// use std::task::{Context, Waker};
    ///
    /// let store: ordna::Store<u64, u64> = ordna::Store::new();
    /// let mut context = Context::from_waker(Waker::noop());
    /// // Always ready for a store without a directory.
    /// assert!(store.poll_durable(store.log_position(), &mut context).is_ready());
    /// ```
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
    /// blocking the thread. See [`durability`](crate::durability) for an example. For a store
    /// without a directory, returns at once.
    ///
    /// # Errors
    /// [`Error::LogFailed`] if the log has failed.
    pub async fn until_durable(&self, position: u64) -> Result<(), Error> {
        std::future::poll_fn(|context| self.poll_durable(position, context)).await
    }

    /// Passes every group of records that is logged from now on to `sink` as well. Returns the
    /// position at which the first of them begins. No write is in progress at that time, so the
    /// position corresponds to the state of the store. Waits for writes in progress. Returns `None`
    /// for a store without a directory, or if the log already has a sink, which cannot be replaced.
    ///
    /// Writes wait for the sink as [`LogSink`] describes. The files of the log do not wait: after a
    /// crash they may contain groups that the sink has not acknowledged, and the sink may have
    /// groups that the files lack.
    pub fn attach_log_sink(&self, sink: Arc<dyn LogSink>) -> Option<u64> {
        self.check_reentry();
        let durable = self.durable()?;
        durable.wal.stop_writers(|_| durable.wal.queue.attach_sink(sink))
    }

    /// Repeats a group of records that the [`LogSink`] of another store has received. If this store
    /// has a log, the records are one group of it. Concurrent reads may see a part of the group.
    /// Groups must be repeated in the order of their positions; repeating all groups from an
    /// earlier position leads to the same state. O(records).
    ///
    /// Keys expire by the clock of this store. If that clock is ahead of the original writes, a key
    /// may expire before a later record removes its deadline.
    ///
    /// # Errors
    /// [`BackupError::Damaged`] if the bytes are not exactly `count` records with this store's
    /// types; nothing is changed. Otherwise the error of a write; a part of the group may then be
    /// in memory.
    pub fn repeat_log_group(&self, records: &[u8], count: u64) -> Result<(), BackupError> {
        let decoded = decode_group::<K, V>(records, count)?;
        let mut all = decoded.into_iter();
        let work = || all.try_for_each(|record| repeat(self, records, record));
        Ok(self.log_group(work)??)
    }

    /// Closes the log durably. Later writes fail, even after a [backup](Store::backup). A
    /// concurrent write either is in the log or fails. Dropping the store does the same and
    /// releases the directory, but cannot report a failure.
    ///
    /// # Errors
    /// [`Error::LogFailed`] if the log has failed.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("ordna-doc-x9-{}", std::process::id()));
    /// let towns: ordna::Store<[u8], u64> = ordna::Store::open(&dir, ordna::OpenOptions::new())?;
    /// towns.put("Lund", 94_393)?;
    /// towns.close_log()?;
    /// assert!(towns.put("Uppsala", 177_074).is_err());
    /// # drop(towns);
    /// # std::fs::remove_dir_all(dir)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn close_log(&self) -> Result<(), Error> {
        self.check_reentry();
        // A checkpoint may be waiting for this thread's group, so it can end only after the group.
        let in_group = self.durable().is_some_and(|durable| durable.wal.in_group());
        if let Some(thread) = self.checkpoint_thread()
            && !in_group
        {
            thread.end();
        }
        self.durable().map_or(Ok(()), |durable| durable.wal.close())
    }
}
