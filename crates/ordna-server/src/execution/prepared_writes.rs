//! Commands that write many elements: they are prepared on a snapshot and committed in one short
//! step.
//!
//! # Contract
//! A command that is about to copy or create many elements calls [`Context::check_work`], as
//! commands that read many elements do (see [`large_reads`](super::large_reads)). When it is
//! executed again, it reads the snapshot, and writes once, with [`Context::put_value`] or
//! [`Context::commit`]. The elements of a large collection are stored earlier, in several steps
//! ([`staging`](crate::keyspace::edits::staging)). Nothing is locked between two steps.
//!
//! # Protocol
//! The commit excludes other commands. If a key of the command was written, has expired or was
//! flushed since the snapshot, nothing is written, and the command starts again with a new
//! snapshot. So the command's linearization point is its commit: its keys are then as it has read
//! them. When it starts again, it reserves its keys
//! ([`reserved_keys`](crate::state::reserved_keys)), and commands that write them wait before they
//! begin. Keys may still expire, and scripts may write keys that they did not name. So after
//! [`ATTEMPTS`] attempts the command is executed in place while all others wait, so that it ends.
//! The same happens if there is no room to prepare it.
//!
//! A commit waits for the end of a pause of clients. Nothing is committed for a client that was
//! closed, or whose user may no longer call the command.
//!
//! The commit is one batch and one group of the log: after a crash, all or none of it is present.

use std::time::{Duration, Instant};

use ordna::sync::{notice, point};

use crate::execution::acknowledgement;
use crate::execution::command::{CommandOutcome, CommandTable, Context, Result};
use crate::execution::snapshot_read::{Execution, SnapshotRead};
use crate::keyspace::Keyspace;
use crate::keyspace::collections::head::Head;
use crate::keyspace::collections::large::Large;
use crate::keyspace::edits::build::NewValue;
use crate::keyspace::edits::staging::Staged;
use crate::keyspace::lock::KeyspaceGuard;
use crate::state::ServerState;
use crate::state::clients::Client;
use crate::state::events::Wrote;
use crate::state::session::Session;
use crate::wire::error::CommandError;
use crate::wire::reply::Replies;

/// Number of times that a command is prepared on a snapshot before it is executed while all others
/// wait.
pub const ATTEMPTS: usize = 3;

/// Duration of a step, during which the keyspace is locked in shared mode.
const HELD: Duration = Duration::from_millis(1);
/// Maximum number of elements that are read in a step.
const STRETCH: usize = 1024;
/// Pause between two steps. A thread that waits for the lock is woken when the step ends, and would
/// be too late if the next step began immediately.
const PAUSE: Duration = Duration::from_micros(200);

/// Number of entries of a collection from which on they are stored in several steps before the
/// commit.
const MUCH: usize = 1024;
/// Size in bytes of the values from which on they are stored in several steps before the commit.
const MUCH_BYTES: usize = 1 << 20;

/// Interval at which a write checks whether a pause of clients is over.
const PAUSE_LOOK: Duration = Duration::from_millis(5);

/// Locks the keyspace exclusively for a write, after the end of a pause of writes.
///
/// # Errors
/// The client was closed. The client that closed it relies on nothing being written afterwards.
fn exclude_others<'a>(state: &'a ServerState, client: &Client) -> Result<KeyspaceGuard<'a>> {
    let are_paused = || notice!("concurrent.commit.sees_pause", state.are_writes_paused());
    loop {
        // Checked without the lock first, because otherwise the lock would be taken repeatedly
        // during a pause.
        if !are_paused() || client.is_ended() {
            let keys = state.keys_exclusive();
            if notice!("concurrent.commit.ends_with_client", client.is_ended()) {
                return Err("ERR the connection was closed by another client".into());
            }
            if !are_paused() {
                return Ok(keys);
            }
        }
        std::thread::sleep(PAUSE_LOOK);
    }
}

/// Frees the elements of failed attempts, so that the command finds room without evicting keys.
pub fn free_staged(state: &ServerState) {
    // The command itself will report an error of the log.
    while state.keys().remove_elements().is_ok_and(|removed| removed > 0) {}
    state.keys().collect_garbage();
}

/// Executes a command on the present state while all others wait.
pub fn run_in_place(
    read: &SnapshotRead,
    state: &ServerState,
    table: &'static CommandTable,
    session: &mut Session,
    out: &mut Replies,
) -> CommandOutcome {
    let keys = match exclude_others(state, &session.client) {
        Ok(keys) => keys,
        Err(error) => {
            out.error(&error);
            return CommandOutcome::Done;
        }
    };
    let execution = Execution::InPlace;
    let mut context = Context { state, session, keys, table, indexed: None, execution };
    let arguments = read.request.arguments();
    if let Err(error) = context.check_changed_rights(arguments) {
        out.error(&error);
        return CommandOutcome::Done;
    }
    let outcome = match state.data_directory {
        Some(_) => acknowledgement::call_logged(&mut context, &read.spec, true, arguments, out),
        None => context.call(&read.spec, arguments, out),
    };
    context.serve_blocked();
    outcome
}

impl Context<'_> {
    /// Calls `write` to write what the command has prepared on a snapshot, as one step while no
    /// other command runs. Without a snapshot, `write` is called directly.
    ///
    /// # Errors
    /// Those of `write`, which is called at most once, and [`CommandError::NeedsSnapshot`] if the
    /// command has to start again.
    pub fn commit<R>(&mut self, write: impl FnOnce(&Self) -> Result<R>) -> Result<R> {
        let Execution::Prepared(premise) = &self.execution else { return write(self) };
        point("prepared_writes.commit");
        let state = self.state;
        let keys = exclude_others(state, &self.session.client)?;
        let read = std::mem::replace(&mut self.keys, keys);
        if notice!("concurrent.commit.sees_rights", self.session.acl_version != state.acl.version())
        {
            return Err(CommandError::NeedsSnapshot);
        }
        let is_same = read.snapshot().is_some_and(|read| read.keyspace().is(&self.keys));
        if notice!("large_writes.begins_again", !is_same || !premise.holds(&self.keys)) {
            return Err(CommandError::NeedsSnapshot);
        }
        let keys = Keyspace::clone(&self.keys);
        let step = || {
            let done = write(self);
            // The writes for waiting clients belong to the group.
            self.serve_blocked();
            done
        };
        let done = keys.store().log_group(step);
        // The command frees its memory without delaying other clients.
        self.keys = read;
        done.unwrap_or_else(|error| Err(error.into()))
    }

    /// Sets a key to a value.
    ///
    /// # Errors
    /// [`CommandError::NeedsExclusive`] if the value is a large collection and other commands run;
    /// [`CommandError::NeedsSnapshot`] if the command has to start again; the memory limit is
    /// reached, or the log has failed.
    pub fn put_value(
        &mut self,
        key: &[u8],
        value: &NewValue,
        expires_at: Option<u64>,
    ) -> Result<()> {
        let staged = self.stage(value)?;
        self.commit(|context| context.put_new(key, value, staged.as_ref(), expires_at))
    }

    /// Removes a key, because the result is empty.
    ///
    /// # Errors
    /// Those of [`put_value`](Self::put_value).
    pub fn put_nothing(&mut self, key: &[u8]) -> Result<()> {
        self.commit(|context| context.remove(key).map(drop))
    }

    /// Stores the elements of a large collection, if the command is executed on a snapshot.
    ///
    /// # Errors
    /// Those of [`put_value`](Self::put_value).
    pub fn stage(&self, value: &NewValue) -> Result<Option<Staged>> {
        match value {
            NewValue::Large(large) => self.stage_large(large),
            NewValue::Record(_) => Ok(None),
        }
    }

    /// Works like [`stage`](Self::stage), for a large collection.
    ///
    /// # Errors
    /// Those of [`put_value`](Self::put_value).
    pub fn stage_large(&self, large: &Large<'_>) -> Result<Option<Staged>> {
        if self.keys.snapshot().is_none() {
            return Ok(None);
        }
        let mut bytes = 0;
        let is_much = |(at, (_, value)): (usize, (&[u8], &[u8]))| {
            bytes += value.len();
            at >= MUCH || bytes >= MUCH_BYTES
        };
        if !large.elements().enumerate().any(is_much) {
            return Ok(None);
        }
        let mut elements = large.elements();
        let next = || elements.by_ref().take(STRETCH).collect::<Vec<_>>();
        self.stage_stretches(&large.head, next)
    }

    /// Stores the elements of a collection with this head, if the command is executed on a
    /// snapshot. `next` returns the next elements, about a millisecond of work, or none.
    ///
    /// # Errors
    /// Those of [`put_value`](Self::put_value).
    pub fn stage_stretches<T: AsRef<[u8]>>(
        &self,
        head: &Head,
        mut next: impl FnMut() -> Vec<(T, T)>,
    ) -> Result<Option<Staged>> {
        let Some(read) = self.keys.snapshot() else { return Ok(None) };
        let mut staged: Option<Staged> = None;
        loop {
            let stretch = next();
            let mut elements =
                stretch.iter().map(|(key, value)| (key.as_ref(), value.as_ref())).peekable();
            if elements.peek().is_none() {
                return Ok(staged);
            }
            while elements.peek().is_some() {
                let keys = self.state.keys();
                // After a flush, the elements would not be in any log.
                if !keys.is(read.keyspace()) {
                    return Err(CommandError::NeedsSnapshot);
                }
                let staged = match &staged {
                    Some(staged) => staged,
                    None => staged.insert(keys.stage(head)?),
                };
                let begin = Instant::now();
                while begin.elapsed() < HELD && staged.add(&mut elements)? {}
                drop(keys);
                std::thread::sleep(PAUSE);
            }
        }
    }

    /// Sets a key to a value, whose elements may already be stored, and reports the key.
    ///
    /// # Errors
    /// [`CommandError::NeedsExclusive`] if the value is a large collection and other commands run;
    /// the memory limit is reached, or the log has failed.
    pub fn put_new(
        &self,
        key: &[u8],
        value: &NewValue,
        staged: Option<&Staged>,
        expires_at: Option<u64>,
    ) -> Result<()> {
        match value {
            NewValue::Record(value) => self.modify_stored(key, |_| {
                ordna::Change::Put(ordna::Put { value: value.as_slice(), expires_at })
            }),
            NewValue::Large(_) if !self.keys.is_exclusive() => Err(CommandError::NeedsExclusive),
            NewValue::Large(large) => {
                let is_new = !self.keys.contains(key);
                self.settle([key], self.keys.put_large(key, large, expires_at, staged))?;
                self.report([key]);
                self.notify(key, Wrote::Value { is_new, new_deadline: false });
                Ok(())
            }
        }
    }
}
