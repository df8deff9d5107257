//! The keyspace as replication uses it: written by the messages of another server, or read by a
//! sink of its log.
//!
//! # Following
//! Each message is applied under the exclusive lock, as one group of the log if there is a
//! directory, together with the *place*, which says where the messages continue. So a state that a
//! command reads, or that a restart finds, is that of the other server after one message, and the
//! place is the state's. Nothing else writes: commands are refused, and the background tasks rest.
//!
//! The clock is the other server's: keys expire when they did there.

use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use ordna::durability::{BackupError, LogGroup, LogSink, Storage, read_log};

use crate::keyspace::lock::KeyspaceLock;
use crate::keyspace::watches::Watches;

/// Milliseconds between two messages of a primary, with a margin.
const CLOCK_STEP: u64 = 2_000;

/// Whether the keyspace follows another server, and the clock.
#[derive(Debug, Default)]
pub struct Following {
    refuses_writes: AtomicBool,
    is_following: AtomicBool,
    /// The other server's time of the last message, in milliseconds since 1970.
    time: AtomicU64,
}

impl Following {
    /// Of a server that begins as a follower, or not.
    pub fn new(follows: bool) -> Self {
        let is_following = AtomicBool::new(follows);
        Self { refuses_writes: AtomicBool::new(follows), is_following, time: AtomicU64::new(0) }
    }

    /// Whether clients may not write: the keyspace is a follower's, or another server has taken
    /// over.
    #[inline]
    pub fn refuses_writes(&self) -> bool {
        self.refuses_writes.load(Ordering::Relaxed)
    }

    /// Changes the time of a follower. Returns whether it was set, rather than ran: collectors do
    /// not sleep in the other server's time.
    fn set_time(&self, time: u64) -> bool {
        // Relaxed: a reader that sees an earlier time sees an earlier state.
        time.saturating_sub(self.time.swap(time, Ordering::Relaxed)) > CLOCK_STEP
    }

    /// The time by which keys expire. It never goes back when a follower becomes a primary.
    pub fn now(&self) -> u64 {
        let time = self.time.load(Ordering::Relaxed);
        // Acquire: pairs with the release in `lead`, after which the time does not change.
        if self.is_following.load(Ordering::Acquire) {
            return time;
        }
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        time.max(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }
}

/// A server's keyspace, for what replicates it. All methods block; none may be called by a thread
/// that serves clients.
#[derive(Debug, Clone)]
pub struct ReplicatedKeyspace {
    pub(crate) lock: Arc<KeyspaceLock>,
    pub(crate) watches: Arc<Watches>,
    pub(crate) following: Arc<Following>,
    /// The data directory, and what it is stored in.
    pub(crate) data: Option<(PathBuf, Arc<dyn Storage>)>,
}

impl ReplicatedKeyspace {
    /// The data directory.
    pub fn directory(&self) -> Option<&Path> {
        self.data.as_ref().map(|(dir, _)| dir.as_path())
    }

    /// Whether there are no keys, and no elements of collections that are being removed.
    pub fn is_empty(&self) -> bool {
        let keys = self.lock.shared();
        keys.approximate_len() == 0 && !keys.holds_elements()
    }

    /// Position after the last record of the log.
    pub fn log_position(&self) -> u64 {
        self.lock.shared().store().log_position()
    }

    /// Calls `each` with the records of the log from a position on; returns the position after
    /// them, or `None` if the log does not reach from there. See [`read_log`].
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn read_log(
        &self,
        from: u64,
        each: impl FnMut(LogGroup<'_>),
    ) -> Result<Option<u64>, BackupError> {
        // Without commands, nobody writes.
        let keys = self.lock.exclusive();
        let Some((dir, storage)) = &self.data else { return Ok(None) };
        keys.store().sync_log()?;
        read_log::<[u8], [u8]>(&**storage, dir, from, each)
    }

    /// Prepares a follower; returns the place of its state, if there is one.
    pub fn follow(&self) -> Option<Vec<u8>> {
        let keys = self.lock.exclusive();
        keys.collections().follow();
        keys.place()
    }

    /// Changes the clock of a follower.
    pub fn set_time(&self, time: u64) {
        if self.following.set_time(time) {
            self.lock.shared().store().clock_was_set();
        }
    }

    /// Applies groups of records as one step for all commands. Of a follower, at a time and with
    /// the place after them.
    ///
    /// # Errors
    /// Records are damaged, or the log has failed. A part of the groups may be applied.
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
        // Which keys were written is not known.
        self.watches.removed_within(Bound::Unbounded, Bound::Unbounded);
        Ok(())
    }

    /// Lets clients write, and passes what they write to `sink`, too. Before that calls `prepare`
    /// with the position at which the first group begins.
    ///
    /// # Errors
    /// What `prepare` returns; or the keyspace has no log, or it has failed.
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
        // A start that finds the position noted finds the log up to it, too.
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

    /// Refuses writes of clients from now on: another server has taken over.
    pub fn refuse_writes(&self) {
        self.following.refuses_writes.store(true, Ordering::Relaxed);
    }
}
