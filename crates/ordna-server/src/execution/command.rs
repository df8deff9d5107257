//! The context and the outcome of a command.
//!
//! A [`Command`] is a [`CommandSpec`] and a function. Each file in `commands/` exports the
//! commands of one group as `COMMANDS`.

use std::borrow::Borrow;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ordna::Change;
use ordna::sync::{notice, point};
use ordna::{Found, Put};
use ordna_secondary::Transaction as IndexTransaction;

use crate::execution::eviction;
use crate::execution::long_scan::LongScan;
use crate::execution::snapshot_read::{Execution, SnapshotRead};
use crate::keyspace::hash::MARK;
use crate::keyspace::lock::KeyspaceGuard;
use crate::keyspace::multi_get::MultiGet;
use crate::keyspace::stored_value::{self, Packed};
use crate::keyspace::{Freeing, Keyspace};
use crate::state::ServerState;
use crate::state::blocked::Waiting;
use crate::state::command_spec::{
    Catalog, ChannelAccess, CommandFlags, CommandSpec, Growth, KeyAccess, KeyAccesses,
    KeyPositions, KeyRange, LockMode, NO_KEY, ReadIndexes,
};
use crate::state::descriptions::DescriptionTable;
use crate::state::events::Wrote;
use crate::state::replication::Progress;
use crate::state::session::Session;
use crate::statistics::event_logs::{SlowCommand, SlowLog, unix_millis};
use crate::wire::error::CommandError;
use crate::wire::reply::Replies;
use crate::wire::request::{self, Arguments};

/// The context in which a command is executed: server, session, keyspace.
pub struct Context<'a> {
    pub state: &'a ServerState,
    pub session: &'a mut Session,
    /// The transaction of the indexes while several commands are executed as one step. A thread
    /// must not hold two.
    pub indexed: Option<IndexTransaction<'a>>,
    pub keys: KeyspaceGuard<'a>,
    pub table: &'static CommandTable,
    pub execution: Execution,
}

/// The work that remains for the connection after a command was executed.
pub enum CommandOutcome {
    /// None: the reply is written.
    Done,
    /// Closes the connection after the reply.
    Close,
    /// A scan that continues in several steps and writes the reply.
    LongScan(Box<LongScan>),
    /// Keys to look up in a snapshot.
    Lookup(Box<MultiGet>),
    /// The reply is written, but is sent only after memory that counts against the limit was freed.
    Freeing(Freeing),
    /// The client waits for elements of lists or sorted sets.
    Blocked(Box<Waiting>),
    /// The client waits for a state of the replication.
    Awaits(Awaited),
    /// The reply is sent after this delay, because a password was wrong.
    Delayed(Duration),
    /// A command that needs no keyspace.
    Task(Task),
    /// Nothing was done: the command is executed when the session has its turn among the commands
    /// that run long.
    AwaitsTurn,
    /// Nothing was done: the command is executed again, outside of its [run](super::key_run).
    EndsRun,
    /// Nothing was done: clients are paused, and the command is executed after the pause.
    Paused,
    /// A command that is executed again, on a snapshot.
    Read(Box<SnapshotRead>),
}

/// A function that writes the reply of a command that has waited for a state.
pub type AwaitedReply = fn(&ServerState, &Awaited, Progress, &mut Replies) -> Result<()>;

/// A state of the replication for which a command waits, without occupying a thread.
pub struct Awaited {
    pub term: u64,
    pub position: u64,
    /// The end of the wait; `None` without a time limit.
    pub deadline: Option<Instant>,
    pub reply: AwaitedReply,
}

impl Awaited {
    /// Returns whether the state was reached, may still be reached, or never will be.
    pub fn progress(&self, state: &ServerState) -> Progress {
        let replication = state.config.replication.as_ref();
        replication.map_or(Progress::Pending, |it| it.progress(self.term, self.position))
    }

    /// Writes the reply for the current state of the replication.
    pub fn finish(self, state: &ServerState, out: &mut Replies) {
        let start = out.bytes.len();
        if let Err(error) = (self.reply)(state, &self, self.progress(state), out) {
            out.error(&error);
            state.errors.count(&out.bytes[start..]);
        }
    }
}

/// The function of a [`Task`].
pub type TaskFunction =
    fn(&ServerState, Option<&Keyspace>, Arguments<'_>, &mut Replies) -> Result<()>;

/// A command that may take long and runs without the lock of the keyspace. `EXEC`, which has locked
/// the keyspace exclusively, passes it as `held`; the task must not lock it again.
pub struct Task {
    request: request::OwnedRequest,
    work: TaskFunction,
    /// [`CommandSpec::id`] of the command; [`Context::call`] sets it.
    command: usize,
    /// The version of the indexes' definitions for which the user's rights were checked, if the
    /// rights depend on them.
    version: Option<u64>,
}

impl Task {
    pub fn new(arguments: Arguments<'_>, work: TaskFunction) -> Self {
        Self { request: arguments.to_owned_request(), work, command: 0, version: None }
    }

    /// Makes the reply of the task an error if the definitions of the indexes have another version
    /// at its end.
    pub fn of_indexes(self, version: u64) -> Self {
        Self { version: Some(version), ..self }
    }

    /// Executes the task and writes the reply.
    pub fn run(self, state: &ServerState, held: Option<&Keyspace>, out: &mut Replies) {
        let (start, begin) = (out.bytes.len(), Instant::now());
        let mut done = (self.work)(state, held, self.request.arguments(), out);
        if self.version.is_some_and(|version| version != state.indexes.version()) {
            // The task may have read a new index with the same name, which the user may not read.
            let changed =
                "ERR an index was created, altered or dropped during the command; try again";
            done = Err(changed.into());
        }
        if let Err(error) = &done {
            out.bytes.truncate(start);
            out.error(error);
            state.errors.count(&out.bytes[start..]);
        }
        state.stats.continued(self.command, begin.elapsed(), done.is_err());
    }
}

/// The result of a command. An error is a reply like any other.
pub type Result<T = CommandOutcome> = std::result::Result<T, CommandError>;

pub type Execute = fn(&mut Context<'_>, Arguments<'_>, &mut Replies) -> Result;

/// A command or subcommand: its description and the function that executes it.
#[derive(Clone, Copy)]
pub struct Command {
    pub spec: CommandSpec,
    pub execute: Execute,
    /// The subcommands. Their functions get all arguments, beginning with the name of the command.
    pub subcommands: &'static [Command],
}

impl Command {
    pub const fn new(
        name: &'static str,
        arity: i64,
        flags: CommandFlags,
        keys: KeyPositions,
        summary: &'static str,
        execute: Execute,
    ) -> Self {
        let spec = CommandSpec {
            name,
            arity,
            flags,
            keys,
            key_count_at: 0,
            last_key: None,
            access: KeyAccesses::OfFlags,
            channels: ChannelAccess::None,
            range: None,
            indexes: None,
            summary,
            group: "generic",
            also_in: &[],
            lock: LockMode::Shared,
            growth: Growth::Arguments,
            subcommands: &[],
            id: 0,
        };
        Self { spec, execute, subcommands: &[] }
    }

    /// Creates a command that can only be called with a subcommand.
    pub const fn container(
        name: &'static str,
        summary: &'static str,
        subcommands: &'static [Command],
    ) -> Self {
        let command = Self::new(name, -2, CommandFlags::NONE, NO_KEY, summary, no_subcommand);
        Self { subcommands, ..command }
    }

    /// Adds subcommands to a command that can also be called without one.
    pub const fn with_subcommands(self, subcommands: &'static [Command]) -> Self {
        Self { subcommands, ..self }
    }

    /// Creates a subcommand, whose name includes that of its command: `config|get`.
    pub const fn sub(
        name: &'static str,
        arity: i64,
        flags: CommandFlags,
        execute: Execute,
    ) -> Self {
        Self::new(name, arity, flags, NO_KEY, "", execute)
    }

    /// Makes the command run without the lock of the keyspace; it must not access any key.
    pub const fn without_keys(mut self) -> Self {
        self.spec.lock = LockMode::None;
        self
    }

    /// Locks the keyspace exclusively, so that the command is one step for all other clients.
    pub const fn exclusive(mut self) -> Self {
        self.spec.lock = LockMode::Exclusive;
        self
    }

    /// Locks the keyspace exclusively if the command names several keys.
    pub const fn exclusive_if_several_keys(mut self) -> Self {
        self.spec.lock = LockMode::ExclusiveIfSeveralKeys;
        self
    }

    /// Sets the positions of the keys.
    pub const fn keys(mut self, keys: KeyPositions) -> Self {
        self.spec.keys = keys;
        self
    }

    /// Sets the position of the argument that gives the number of the following keys.
    pub const fn key_count_at(mut self, at: usize) -> Self {
        self.spec.key_count_at = at;
        self
    }

    /// Sets the function that finds the position of a last key that an option names.
    pub const fn last_key(mut self, last: fn(Arguments<'_>) -> Option<usize>) -> Self {
        self.spec.last_key = Some(last);
        self
    }

    /// Sets the access to all keys.
    pub const fn access(mut self, access: KeyAccess) -> Self {
        self.spec.access = KeyAccesses::All(access);
        self
    }

    /// Sets the access to the first key and the access to the others.
    pub const fn accesses(mut self, first: KeyAccess, rest: KeyAccess) -> Self {
        self.spec.access = KeyAccesses::FirstAndRest(first, rest);
        self
    }

    /// Sets a function that returns the access to all keys, depending on the other arguments.
    pub const fn access_of(mut self, access: fn(Arguments<'_>) -> KeyAccess) -> Self {
        self.spec.access = KeyAccesses::OfArguments(access);
        self
    }

    /// Sets the arguments that name channels.
    pub const fn channels(mut self, channels: ChannelAccess) -> Self {
        self.spec.channels = channels;
        self
    }

    /// Sets the function that returns the range of keys that a call accesses, or `None` if the
    /// arguments are invalid.
    pub const fn range(mut self, range: fn(Arguments<'_>) -> Option<KeyRange>) -> Self {
        self.spec.range = Some(range);
        self
    }

    /// Sets the indexes that the command reads. Its function must use
    /// [`read_index`](crate::execution::index_access::read_index).
    pub const fn reads(mut self, indexes: ReadIndexes) -> Self {
        self.spec.indexes = Some(indexes);
        self
    }

    /// Adds ACL categories that follow from neither the flags nor the group.
    pub const fn also_in(mut self, categories: &'static [&'static str]) -> Self {
        self.spec.also_in = categories;
        self
    }

    /// Sets how long the values may be that the command creates, if they may be longer than its
    /// arguments.
    pub const fn grows(mut self, growth: Growth) -> Self {
        self.spec.growth = growth;
        self
    }

    /// Adds flags.
    pub const fn with(mut self, flags: CommandFlags) -> Self {
        self.spec.flags = self.spec.flags.or(flags);
        self
    }
}

/// The function of a command that can only be called with a subcommand. Never called, because
/// dispatch refuses calls without one.
fn no_subcommand(_: &mut Context<'_>, arguments: Arguments<'_>, _: &mut Replies) -> Result {
    Err(CommandError::unknown_subcommand(arguments))
}

/// Flags of reads in constant or logarithmic time.
pub const READ: CommandFlags = READ_SLOW.or(CommandFlags::FAST);
pub const READ_SLOW: CommandFlags = CommandFlags::READONLY;
/// Flags of reads that name no keys.
pub const READ_ALL: CommandFlags = READ_SLOW.or(CommandFlags::EVERY_KEY);
/// Flags of commands that define or drop an index, which covers keys of all patterns.
pub const DEFINE: CommandFlags = REMOVE_ALL.or(CommandFlags::DENYOOM);
pub const REMOVE_ALL: CommandFlags = REMOVE.or(CommandFlags::EVERY_KEY);
/// Flags of writes that may need memory.
pub const WRITE: CommandFlags = WRITE_SLOW.or(CommandFlags::FAST);
pub const WRITE_SLOW: CommandFlags = CommandFlags::WRITE.or(CommandFlags::DENYOOM);
/// Flags of writes that may need memory and return the old value.
pub const UPDATE: CommandFlags = WRITE.or(CommandFlags::RETURNS_OLD_VALUE);
pub const UPDATE_SLOW: CommandFlags = WRITE_SLOW.or(CommandFlags::RETURNS_OLD_VALUE);
/// Flags of writes that need no memory.
pub const CHANGE: CommandFlags = REMOVE.or(CommandFlags::FAST);
pub const TAKE: CommandFlags = CHANGE.or(CommandFlags::RETURNS_OLD_VALUE);
pub const REMOVE: CommandFlags = CommandFlags::WRITE;
/// Flags of commands on the connection.
pub const CONNECTION: CommandFlags = SERVER_INFO.or(CommandFlags::NOSCRIPT).or(CommandFlags::FAST);
pub const BEFORE_AUTH: CommandFlags =
    CONNECTION.or(CommandFlags::NO_AUTH).or(CommandFlags::ALLOW_BUSY);
/// Flags of commands that report on the server and change nothing.
pub const SERVER_INFO: CommandFlags = CommandFlags::LOADING.or(CommandFlags::STALE);
/// Flags of such commands that scripts may not call.
pub const SESSION: CommandFlags = SERVER_INFO.or(CommandFlags::NOSCRIPT);
pub const ADMIN: CommandFlags = SESSION.or(CommandFlags::ADMIN);

/// All commands, by name and by number.
pub struct CommandTable {
    pub catalog: Catalog,
    pub descriptions: DescriptionTable,
    /// The functions, by [`CommandSpec::id`].
    executes: Vec<Execute>,
}

impl CommandTable {
    /// Creates the table from these groups, each with its name. Its descriptions of subcommands are
    /// never freed, because there is one table, which lives as long as the program.
    pub fn new(groups: &[(&'static str, &[Command])], descriptions: DescriptionTable) -> Self {
        let named = |(group, commands): &(&'static str, &[Command])| {
            let group = *group;
            let with = |command: &Command| Command {
                spec: CommandSpec { group, ..command.spec },
                ..*command
            };
            commands.iter().map(with).collect::<Vec<_>>()
        };
        let mut commands: Vec<Command> = groups.iter().flat_map(named).collect();
        commands.sort_by_key(|command| command.spec.name);
        let mut executes = Vec::new();
        for command in &mut commands {
            let group = command.spec.group;
            let mut numbered = |command: &Command| {
                executes.push(command.execute);
                CommandSpec { group, id: executes.len() - 1, ..command.spec }
            };
            let spec = numbered(command);
            let subcommands: Vec<CommandSpec> = command.subcommands.iter().map(numbered).collect();
            command.spec = CommandSpec { subcommands: subcommands.leak(), ..spec };
        }
        let catalog = Catalog::new(commands.into_iter().map(|command| command.spec).collect());
        Self { catalog, descriptions, executes }
    }
}

impl Context<'_> {
    /// Reports written keys to their watchers, to the clients that wait for them, and to the
    /// indexes. Every command that writes must call this or [`modify`](Self::modify) while it holds
    /// the keyspace.
    pub fn report<'k>(&self, written: impl IntoIterator<Item = &'k [u8], IntoIter: Clone>) {
        let written = written.into_iter();
        if self.state.blocked.are_any() {
            written.clone().for_each(|key| self.signal(key));
        }
        self.state.watches.written(written.clone());
        self.state.indexes.written(&self.keys, written);
    }

    /// Returns the result of a write. If the log has failed, the write may still be in memory, and
    /// the log may accept it later, so its keys are reported.
    pub fn settle<'k, T>(
        &self,
        written: impl IntoIterator<Item = &'k [u8], IntoIter: Clone>,
        done: std::result::Result<T, impl Into<CommandError>>,
    ) -> Result<T> {
        done.map_err(Into::into).inspect_err(|error| {
            if notice!(
                "concurrent.log_failure.is_reported",
                matches!(error, CommandError::LogFailed { .. })
            ) {
                self.report(written);
            }
        })
    }

    /// Changes a string with [`Store::modify_entry`](ordna::Store::modify_entry), and reports the
    /// key if it was written.
    ///
    /// # Errors
    /// The key holds a value that is not a string.
    pub fn modify<T: Borrow<[u8]>>(
        &self,
        key: &[u8],
        mut change: impl FnMut(Option<Found<'_, [u8]>>) -> Change<Put<T>>,
    ) -> Result<()> {
        let mut is_string = true;
        self.modify_stored(key, |found| {
            let string = found.map(|found| stored_value::string(found.value));
            is_string = string != Some(None);
            if !is_string {
                return Change::Keep;
            }
            let found = found.zip(string.flatten());
            let found = found.map(|(mut found, value)| {
                found.value = value;
                found
            });
            match change(found) {
                Change::Keep => Change::Keep,
                Change::Remove => Change::Remove,
                Change::Put(Put { value, expires_at }) => {
                    Change::Put(Put { value: Packed::new(value), expires_at })
                }
            }
        })?;
        if is_string { Ok(()) } else { Err(CommandError::WrongType) }
    }

    /// Changes a value of any type in its stored form.
    pub fn modify_stored<T: Borrow<[u8]>>(
        &self,
        key: &[u8],
        change: impl FnMut(Option<Found<'_, [u8]>>) -> Change<Put<T>>,
    ) -> Result<()> {
        self.modify_stored_with(key, false, change)
    }

    /// Works like [`modify_stored`](Self::modify_stored). If `keeps_deadline`, no event reports the
    /// deadline.
    pub fn modify_stored_with<T: Borrow<[u8]>>(
        &self,
        key: &[u8],
        keeps_deadline: bool,
        mut change: impl FnMut(Option<Found<'_, [u8]>>) -> Change<Put<T>>,
    ) -> Result<()> {
        let mut written = None;
        let done = self.keys.modify_entry(key, |found| {
            let change = change(found);
            written = match &change {
                Change::Keep => None,
                Change::Put(put) => {
                    let new_deadline = put.expires_at.is_some() && !keeps_deadline;
                    Some(Wrote::Value { is_new: found.is_none(), new_deadline })
                }
                Change::Remove => found.map(|_| Wrote::Removal),
            };
            change
        });
        self.settle([key], done)?;
        if let Some(wrote) = written {
            self.report([key]);
            self.notify(key, wrote);
        }
        Ok(())
    }

    /// Changes the deadline of a key. `change` is called with the value in its stored form.
    pub fn modify_expiry(
        &self,
        key: &[u8],
        mut change: impl FnMut(Option<Found<'_, [u8]>>) -> Change<Option<u64>>,
    ) -> Result<()> {
        let mut written = None;
        let done = self.keys.modify_expiry(key, |found| {
            let change = change(found);
            written = found.and(match change {
                Change::Keep => None,
                Change::Put(deadline) => Some(Wrote::Deadline(deadline.is_some())),
                Change::Remove => Some(Wrote::Removal),
            });
            change
        });
        self.settle([key], done)?;
        if let Some(wrote) = written {
            self.report([key]);
            self.notify(key, wrote);
        }
        Ok(())
    }

    /// Writes bytes at a position of a string with [`Store::splice`](ordna::Store::splice), and
    /// reports the key. `decide` is called with the string and may run several times. Returns the
    /// new length.
    ///
    /// # Errors
    /// The key holds a value that is not a string.
    pub fn splice<T: AsRef<[u8]>>(
        &self,
        key: &[u8],
        mut decide: impl FnMut(&[u8]) -> (usize, T),
    ) -> Result<usize> {
        let mut front = 0;
        let spliced = self.keys.splice(key, |found| {
            // The first byte is part of the stored form, which must stay valid.
            let value = found.map(|found| found.value).filter(|value| !value.is_empty())?;
            let string = stored_value::string(value)?;
            front = value.len() - string.len();
            if front == 0 && value[0] == MARK {
                return None;
            }
            let (at, bytes) = decide(string);
            let first = bytes.as_ref().first();
            let stays = at > 0 || first.is_some_and(|first| (*first == MARK) == (front > 0));
            stays.then_some((front + at, bytes))
        });
        if let Some(length) = self.settle([key], spliced)? {
            self.report([key]);
            self.notify(key, Wrote::Value { is_new: false, new_deadline: false });
            return Ok(length - front);
        }
        let mut length = 0;
        self.modify(key, |found| {
            let (at, bytes) = decide(found.map_or(&[], |found| found.value));
            let mut value = found.map_or_else(Vec::new, |found| found.value.to_vec());
            let end = at + bytes.as_ref().len();
            value.resize(value.len().max(end), 0);
            value[at..end].copy_from_slice(bytes.as_ref());
            length = value.len();
            Change::Put(Put { value, expires_at: found.and_then(|found| found.expires_at) })
        })?;
        Ok(length)
    }

    /// Checks whether the memory limit has room for a value of `len` bytes, before the value is
    /// created. The store later checks the exact number of bytes.
    ///
    /// # Errors
    /// [`CommandError::OutOfMemory`].
    pub fn check_growth(&self, key: &[u8], len: usize) -> Result<()> {
        /// Size in bytes of a value that is created without this check, and may briefly exceed the
        /// limit.
        const UNASKED: usize = 64 << 10;
        if len > UNASKED {
            let present = self.keys.get_with(key, <[u8]>::len).unwrap_or(0);
            self.keys.check_room(len.saturating_sub(present))?;
        }
        Ok(())
    }

    /// Removes a key; returns whether it was present.
    ///
    /// # Errors
    /// The log has failed.
    pub fn remove(&self, key: &[u8]) -> Result<bool> {
        let mut was_there = false;
        let done = self.modify_stored::<&[u8]>(key, |found| {
            was_there = found.is_some();
            Change::Remove
        });
        match done {
            Ok(()) => Ok(was_there),
            Err(error @ CommandError::LogFailed { .. }) => Err(error),
            // A key that is too long cannot be present.
            Err(_) => Ok(false),
        }
    }

    /// Calls `read` with the string of a key.
    ///
    /// # Errors
    /// The key holds a value that is not a string.
    #[inline]
    pub fn string<R>(&self, key: &[u8], read: impl FnOnce(&[u8]) -> R) -> Result<Option<R>> {
        match self.keys.get_with(key, |stored| stored_value::string(stored).map(read)) {
            Some(None) => Err(CommandError::WrongType),
            None if self.state.events.are_on() => {
                self.notify_miss(key);
                Ok(None)
            }
            found => Ok(found.flatten()),
        }
    }

    /// Returns a copy of the string of a key.
    ///
    /// # Errors
    /// The key holds a value that is not a string.
    pub fn value(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.string(key, <[u8]>::to_vec)
    }
}

/// Writes `+OK`.
pub fn ok(out: &mut Replies) -> Result {
    out.simple("OK");
    Ok(CommandOutcome::Done)
}

/// Writes the reply to `HELP`.
pub fn help(out: &mut Replies, command: &str, subcommands: &[&str]) -> Result {
    out.array(subcommands.len() + 3);
    out.simple(&format!("{command} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"));
    subcommands.iter().for_each(|line| out.simple(line));
    out.simple("HELP");
    out.simple("    Prints this help.");
    Ok(CommandOutcome::Done)
}

impl<'a> Context<'a> {
    /// Executes a command, counts it, and adds it to the slow log if it was slow. The caller has
    /// checked that the client may call it. Errors are written to `out`.
    pub fn call(
        &mut self,
        spec: &CommandSpec,
        arguments: Arguments<'_>,
        out: &mut Replies,
    ) -> CommandOutcome {
        let state = self.state;
        self.session.client.last_command.store(spec.id, Ordering::Relaxed);
        state.stats.end_run_before(&mut self.session.calls, spec.id);
        // In a pipeline a command begins when the previous one ends.
        let begin = self.session.now.take().unwrap_or_else(Instant::now);
        let before = out.bytes.len();
        let is_monitored = state.was_monitored.load(Ordering::Relaxed)
            && state.monitors.receiver_count() > 0
            && !spec.has(CommandFlags::ADMIN);
        // A script is shown before the commands that it calls, and EXEC after those that it
        // executes.
        if is_monitored && spec.has(CommandFlags::SKIP_MONITOR) {
            self.show_monitors(spec, arguments);
        }
        let (evicts, mut has_room) = (state.settings.evicts(), true);
        if evicts && self.keys.is_of_run() {
            self.session.now = Some(begin);
            return CommandOutcome::EndsRun;
        }
        if evicts && spec.lock != LockMode::None {
            state.record_use(&self.keys, spec, arguments);
            // A transaction, which excludes others, has got room for all of its commands, and must
            // not lose keys that it has just written to evictions. On a snapshot nothing is locked.
            let is_alone =
                matches!(self.keys, KeyspaceGuard::Exclusive(..) | KeyspaceGuard::Snapshot(_));
            if spec.has(CommandFlags::DENYOOM) && !is_alone && state.indexes.are_active() {
                has_room = eviction::keep_index_room(state, &self.keys);
            }
        }
        let mut outcome = match has_room {
            true => self.execute(spec, arguments, out),
            false => Err(CommandError::OutOfMemory),
        };
        let is_full = matches!(outcome, Err(CommandError::OutOfMemory));
        if is_full && matches!(self.execution, Execution::Prepared(_)) {
            out.bytes.truncate(before);
            let again = self.on_snapshot(spec, arguments);
            return CommandOutcome::Read(Box::new(SnapshotRead { is_in_place: true, ..again }));
        }
        if evicts && is_full && has_room && !spec.has(CommandFlags::EXECUTES_QUEUE) {
            outcome = self.call_after_eviction(spec, arguments, out);
        }
        if matches!(outcome, Err(CommandError::NeedsExclusive)) && self.keys.is_of_run() {
            out.bytes.truncate(before);
            self.session.now = Some(begin);
            return CommandOutcome::EndsRun;
        }
        // A command that starts again is counted when it is executed.
        if matches!(outcome, Err(CommandError::NeedsSnapshot)) {
            out.bytes.truncate(before);
            return CommandOutcome::Read(Box::new(self.on_snapshot(spec, arguments)));
        }
        if matches!(outcome, Ok(CommandOutcome::Paused)) {
            return CommandOutcome::Paused;
        }
        let mut outcome = outcome.unwrap_or_else(|error| {
            out.error(&error);
            CommandOutcome::Done
        });
        let end = Instant::now();
        let took = end.saturating_duration_since(begin);
        self.session.now = Some(end);
        let failed = out.bytes.get(before) == Some(&b'-');
        if spec.keys == NO_KEY {
            // Counted before the reply is sent, because the command may be one that reads the
            // counters.
            state.stats.executed(spec.id, took, failed);
        } else {
            state.stats.executed_in_run(&mut self.session.calls, spec.id, took, failed);
        }
        if failed && !std::mem::take(&mut self.session.error_is_counted) {
            state.errors.count(&out.bytes[before..]);
        }
        if let CommandOutcome::Task(task) = &mut outcome {
            task.command = spec.id;
        }
        if is_monitored && !spec.has(CommandFlags::SKIP_MONITOR) {
            self.show_monitors(spec, arguments);
        }
        let settings = &state.settings;
        if settings.slow.is_reached_by(took.as_micros())
            || settings.latency_threshold.get() > 0
                && settings.latency_threshold.is_reached_by(took.as_millis())
        {
            self.note_time(spec, arguments, took);
        }
        outcome
    }

    /// Executes a command. If it asks for the exclusive lock, executes it again with that lock.
    #[inline]
    pub fn execute(
        &mut self,
        spec: &CommandSpec,
        arguments: Arguments<'_>,
        out: &mut Replies,
    ) -> Result {
        let before = out.bytes.len();
        let outcome = self.table.executes[spec.id](self, arguments, out);
        if !matches!(outcome, Err(CommandError::NeedsExclusive)) || self.keys.is_of_run() {
            return outcome;
        }
        // The first attempt has changed nothing.
        out.bytes.truncate(before);
        let state = self.state;
        let was_shared = matches!(self.keys, KeyspaceGuard::Shared(..));
        self.keys.make_exclusive(|| {
            point("command.execute.released");
            state.keys_exclusive()
        });
        if was_shared && let Some(stopped) = self.stopped(spec, arguments)? {
            return Ok(stopped);
        }
        self.table.executes[spec.id](self, arguments, out)
    }

    #[cold]
    fn note_time(&self, spec: &CommandSpec, arguments: Arguments<'_>, took: Duration) {
        let settings = &self.state.settings;
        let micros = i64::try_from(took.as_micros()).unwrap_or(i64::MAX);
        if settings.slow.get() >= 0
            && micros >= settings.slow.get()
            && !spec.has(CommandFlags::EXECUTES_QUEUE)
        {
            let shown = match spec.has(CommandFlags::SECRET) {
                true => {
                    let mut shown: Vec<_> = spec.name.split('|').map(|word| word.into()).collect();
                    shown.push(b"(redacted)".to_vec());
                    shown
                }
                false => SlowLog::shorten(arguments.iter_from(0)),
            };
            let client = &self.session.client;
            let slow = SlowCommand {
                id: 0,
                at: unix_millis() / 1000,
                took,
                arguments: shown,
                peer: client.peer.to_string(),
                client: client.info().name.clone(),
            };
            self.state.slow_log.push(slow, settings.slow_log_len.size());
        }
        let threshold = settings.latency_threshold.get();
        if threshold > 0 && micros / 1000 >= threshold {
            let event = if spec.has(CommandFlags::FAST) { "fast-command" } else { "command" };
            self.state.latencies.add(event, (micros / 1000) as u64);
        }
    }
}
