//! The interface of the keyspace for replication: messages of another server write to a keyspace,
//! or a sink receives the records of its log.
//!
//! # Following
//! Each message is applied under the exclusive lock, together with the *place*, which says where
//! the messages continue. If there is a data directory, both are one group of the log. So commands
//! and restarts always find the state that the other server had after some message, and the place
//! that belongs to this state. Nothing else writes: the server refuses writes of clients, and
//! background tasks are paused.
//!
//! A follower uses the clock of the other server, so that keys expire when they expired there.

use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use ordna::durability::{BackupError, LogGroup, LogSink, Storage, read_log};

use crate::keyspace::lock::KeyspaceLock;
use crate::keyspace::watches::Watches;

/// Upper bound of the usual time between two messages of a primary, in milliseconds.
const CLOCK_STEP: u64 = 2_000;

/// Records whether the keyspace follows another server, and the clock of that server.
#[derive(Debug, Default)]
pub struct Following {
    refuses_writes: AtomicBool,
    is_following: AtomicBool,
    /// The time of the last message by the other server's clock, in milliseconds since 1970.
    time: AtomicU64,
}

impl Following {
    /// Creates the state of a server that starts. `follows` says whether it starts as a follower.
    pub fn new(follows: bool) -> Self {
        let is_following = AtomicBool::new(follows);
        Self { refuses_writes: AtomicBool::new(follows), is_following, time: AtomicU64::new(0) }
    }

    /// Returns whether writes of clients are refused, because this server is a follower or because
    /// another server has taken over.
    #[inline]
    pub fn refuses_writes(&self) -> bool {
        self.refuses_writes.load(Ordering::Relaxed)
    }

    /// Changes the clock of a follower. Returns whether the clock has jumped, that is, whether more
    /// than [`CLOCK_STEP`] has passed. The caller then notifies the collectors, because they sleep
    /// by the clock of this machine.
    fn set_time(&self, time: u64) -> bool {
        // Relaxed: a reader that sees an earlier time sees an earlier state.
        time.saturating_sub(self.time.swap(time, Ordering::Relaxed)) > CLOCK_STEP
    }

    /// Returns the time by which keys expire. It does not decrease when a follower becomes a
    /// primary.
    pub fn now(&self) -> u64 {
        let time = self.time.load(Ordering::Relaxed);
        // Acquire: pairs with the release in `lead`, after which `time` does not change.
        if self.is_following.load(Ordering::Acquire) {
            return time;
        }
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        time.max(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }
}

/// A handle to the keyspace of a server, for the crate that replicates it.
///
/// All methods may block, so threads that serve clients must not call them.
#[derive(Debug, Clone)]
pub struct ReplicatedKeyspace {
    pub(crate) lock: Arc<KeyspaceLock>,
    pub(crate) watches: Arc<Watches>,
    pub(crate) following: Arc<Following>,
    /// The data directory and its storage.
    pub(crate) data: Option<(PathBuf, Arc<dyn Storage>)>,
}

impl ReplicatedKeyspace {
    /// Returns the data directory, if there is one.
    pub fn directory(&self) -> Option<&Path> {
        self.data.as_ref().map(|(dir, _)| dir.as_path())
    }

    /// Returns whether the keyspace contains no keys, and no elements of collections that are being
    /// removed.
    pub fn is_empty(&self) -> bool {
        let keys = self.lock.shared();
        keys.approximate_len() == 0 && !keys.holds_elements()
    }

    /// Returns the position after the last record of the log.
    pub fn log_position(&self) -> u64 {
        self.lock.shared().store().log_position()
    }

    /// Calls `each` with the records of the log from the position `from` on. Returns the position
    /// after the last one, or `None` if the log begins after `from` or ends before it, or if there
    /// is no data directory. See [`read_log`].
    ///
    /// # Errors
    /// Returns an error if the log cannot be read.
    pub fn read_log(
        &self,
        from: u64,
        each: impl FnMut(LogGroup<'_>),
    ) -> Result<Option<u64>, BackupError> {
        // The exclusive lock excludes commands, so nothing is written during the call.
        let keys = self.lock.exclusive();
        let Some((dir, storage)) = &self.data else { return Ok(None) };
        keys.store().sync_log()?;
        read_log::<[u8], [u8]>(&**storage, dir, from, each)
    }

    /// Prepares the keyspace for following another server. Returns the place of its state, if there
    /// is one.
    pub fn follow(&self) -> Option<Vec<u8>> {
        let keys = self.lock.exclusive();
        keys.collections().follow();
        keys.place()
    }

    /// Sets the clock of a follower to `time`, in milliseconds since 1970.
    pub fn set_time(&self, time: u64) {
        if self.following.set_time(time) {
            self.lock.shared().store().clock_was_set();
        }
    }

    /// Applies groups of records. Commands see all of the groups or none of them.
    ///
    /// A follower passes `place`: the place after these groups, which is stored with them, and the
    /// time of the other server, to which the clock is set.
    ///
    /// # Errors
    /// Returns an error if records are damaged or the log has failed. Some of the groups may have
    /// been applied.
    pub fn apply(
        &self,
        groups: &[LogGroup<'_>],
        place: Option<(&[u8], u64)>,
    ) -> Result<(), BackupError> {
        let keys = self.lock.exclusive();
        if let Some((_, time)) = place
            && self.following.set_time(time)
        {
            keys.store().clock_was_set();
        }
        let _lifted = keys.lift_limit();
        let store = keys.store();
        store.log_group(|| {
            for group in groups {
                store.repeat_log_group(group.records, group.count)?;
            }
            if let Some((place, _)) = place {
                keys.store_place(place)?;
            }
            Ok::<_, BackupError>(())
        })??;
        // It is not known which keys were written, so all watched keys count as changed.
        self.watches.removed_within(Bound::Unbounded, Bound::Unbounded);
        Ok(())
    }

    /// Allows clients to write, and attaches `sink` to the log, so that it receives what they
    /// write. Before that, calls `prepare` with the position at which the first group will begin.
    ///
    /// # Errors
    /// Returns the error of `prepare`. Returns an error if the keyspace has no log, if the log has
    /// failed, or if it is replicated already.
    pub fn lead(
        &self,
        sink: Arc<dyn LogSink>,
        prepare: impl FnOnce(u64) -> Result<(), String>,
    ) -> Result<(), String> {
        let keys = self.lock.exclusive();
        if self.data.is_none() {
            return Err("a primary needs a data directory: start the server with --dir".to_owned());
        }
        if self.following.is_following.load(Ordering::Relaxed) {
            keys.lead().map_err(|error| error.to_string())?;
        }
        // `prepare` may store the position. A later start must then find the log up to there.
        keys.store().sync_log().map_err(|error| error.to_string())?;
        let position = keys.store().log_position();
        prepare(position)?;
        match keys.store().attach_log_sink(sink) {
            Some(attached) if attached == position => {}
            Some(_) => return Err("the log was written to while replication began".to_owned()),
            None => return Err("the log is replicated already".to_owned()),
        }
        // Release: pairs with the acquire in `now`.
        self.following.is_following.store(false, Ordering::Release);
        self.following.refuses_writes.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Refuses writes of clients from now on, because another server has taken over.
    pub fn refuse_writes(&self) {
        self.following.refuses_writes.store(true, Ordering::Relaxed);
    }
}
