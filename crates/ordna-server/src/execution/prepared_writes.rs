//! Commands that write much: they are prepared on a snapshot and committed in one short step.
//!
//! # Contract
//! A command that is about to copy or make many elements asks [`Context::check_work`], as commands
//! that read much do (see [`large_reads`](super::large_reads)). Executed again, it reads the
//! snapshot, and writes once, by [`Context::put_value`] or [`Context::commit`]. The elements of a
//! large collection are stored before that, in stretches
//! ([`staging`](crate::keyspace::edits::staging)). Between two stretches nothing is locked.
//!
//! # Protocol
//! The commit excludes other commands. If a key of the command was written since the snapshot, has
//! expired or was flushed, nothing is written, and the command begins again with a new snapshot. So
//! the command is linearized at its commit: its keys are then as it has read them. When it begins
//! again, it reserves its keys ([`reserved_keys`](crate::state::reserved_keys)): commands that write
//! them wait before they begin. After [`ATTEMPTS`], as keys expire and scripts write what they did
//! not name, it is executed where it is, while all others wait, so that it ends. The same is done if
//! there is no room to prepare it.
//!
//! A commit waits until a pause of clients is over. Nothing is committed for a client that was
//! closed, or whose user may not call the command any more.
//!
//! The commit is one batch and one group of the log: a crash leaves all or nothing of it.

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

/// How often a command is prepared on a snapshot, before it is executed while all others wait.
pub const ATTEMPTS: usize = 3;

/// Duration of a stretch, during which the keyspace is locked in shared mode.
const HELD: Duration = Duration::from_millis(1);
/// Most elements that are read for a stretch.
const STRETCH: usize = 1024;
/// Pause between two stretches. A thread that waits for the lock is woken when the stretch ends; it
/// would come too late if the next stretch began at once.
const PAUSE: Duration = Duration::from_micros(200);

/// Entries of a collection from which on they are stored in stretches before the commit.
const MUCH: usize = 1024;
/// The same in bytes of their values.
const MUCH_BYTES: usize = 1 << 20;

/// How often a write looks whether a pause of clients is over.
const PAUSE_LOOK: Duration = Duration::from_millis(5);

/// Locks the keyspace exclusively for a write, once writes are not paused.
///
/// # Errors
/// The client was closed. Whoever closed it relies on nothing being written for it afterwards.
fn exclude_others<'a>(state: &'a ServerState, client: &Client) -> Result<KeyspaceGuard<'a>> {
    let are_paused = || notice!("concurrent.commit.sees_pause", state.are_writes_paused());
    loop {
        // First without the lock, which would otherwise be taken again and again during a pause.
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

/// Frees the elements of failed attempts, so that the command finds room without evicting keys for
/// them.
pub fn free_staged(state: &ServerState) {
    // An error of the log is found by the command.
    while state.keys().remove_elements().is_ok_and(|removed| removed > 0) {}
    state.keys().collect_garbage();
}

/// Executes a command on the present state, while all others wait.
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
    /// Calls `write` to write what the command has prepared on a snapshot, as one step, while no
    /// other command runs. Without a snapshot `write` is called as it is.
    ///
    /// # Errors
    /// Those of `write`, which is called at most once. [`CommandError::NeedsSnapshot`] if the
    /// command has to begin again.
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
            // What is taken for clients that waited is in the group.
            self.serve_blocked();
            done
        };
        let done = keys.store().log_group(step);
        // What the command still has to free holds nobody up.
        self.keys = read;
        done.unwrap_or_else(|error| Err(error.into()))
    }

    /// Sets a key to a value.
    ///
    /// # Errors
    /// [`CommandError::NeedsExclusive`] if the value is a large collection and other commands run;
    /// [`CommandError::NeedsSnapshot`] if the command has to begin again; the memory limit is
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

    /// Removes a key, for a result that is empty.
    ///
    /// # Errors
    /// As of [`put_value`](Self::put_value).
    pub fn put_nothing(&mut self, key: &[u8]) -> Result<()> {
        self.commit(|context| context.remove(key).map(drop))
    }

    /// Stores the elements of a large collection, if the command is executed on a snapshot.
    ///
    /// # Errors
    /// As of [`put_value`](Self::put_value).
    pub fn stage(&self, value: &NewValue) -> Result<Option<Staged>> {
        match value {
            NewValue::Large(large) => self.stage_large(large),
            NewValue::Record(_) => Ok(None),
        }
    }

    /// [`stage`](Self::stage) of a large collection.
    ///
    /// # Errors
    /// As there.
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
    /// snapshot. `next` returns the next ones, of about a millisecond, or none.
    ///
    /// # Errors
    /// As of [`put_value`](Self::put_value).
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
                // After a flush the elements would be in nobody's log.
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

    /// Sets a key to a value, whose elements may be stored already, and reports it.
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
