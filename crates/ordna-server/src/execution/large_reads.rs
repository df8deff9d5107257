//! Commands that read much: they are executed a second time, on a snapshot.
//!
//! # Contract
//! A command that is about to read many elements asks [`Context::check_work`], which refuses it with
//! [`CommandError::NeedsSnapshot`] before it has written anything. The connection then executes it again on a
//! snapshot, which holds no lock of the keyspace or of a key, in a thread where nobody else waits.
//!
//! A command of one key reads a snapshot that is taken then. It holds every write of the key that ended before,
//! because writes of a large collection exclude each other. A command of several keys has locked the keyspace
//! exclusively: its snapshot is taken at once, while no write is in progress.
//!
//! Commands that write much are [prepared](super::prepared_writes) in the same way.
//!
//! Commands of transactions and scripts are executed where they are: the step that they belong to excludes others.

use std::sync::Arc;

use ordna::sync::notice;

use crate::execution::command::{CommandOutcome, CommandTable, Context, Result};
use crate::execution::prepared_writes;
use crate::execution::snapshot_read::{Execution, Premise, SnapshotRead};
use crate::keyspace::collections::Body;
use crate::keyspace::collections::head::Head;
use crate::keyspace::collections::large::Large;
use crate::keyspace::edits::hash::HashView;
use crate::keyspace::lock::KeyspaceGuard;
use crate::keyspace::snapshot::KeyspaceSnapshot;
use crate::keyspace::value_kind::ValueKind;
use crate::state::ServerState;
use crate::state::command_spec::CommandSpec;
use crate::state::session::Session;
use crate::statistics::event_logs::shown;
use crate::wire::error::CommandError;
use crate::wire::reply::Replies;
use crate::wire::request::Arguments;

/// Elements from which on a command is executed on a snapshot: about a millisecond of work, against some ten
/// microseconds for the snapshot and the change of threads.
const MUCH: usize = 4096;
/// Bytes from which on a command is executed on a snapshot, for collections with few long elements.
const MUCH_BYTES: usize = 1 << 20;

/// Bytes of the members of a result that is stored: a result is built in memory.
pub const MOST_STORED: usize = 1 << 30;

/// The error of a result that is too large.
pub fn too_large(most: usize) -> CommandError {
    format!("ERR the members of the result would exceed {most} bytes; ask for less").into()
}

/// Executes a command on a snapshot and writes its reply, or returns the work that its connection has
/// to do.
pub fn run(
    read: SnapshotRead,
    state: &ServerState,
    table: &'static CommandTable,
    session: &mut Session,
    out: &mut Replies,
) -> CommandOutcome {
    let mut read = read;
    let mut reserved = None;
    for attempt in 0..prepared_writes::ATTEMPTS {
        if read.is_in_place {
            break;
        }
        let arguments = read.request.arguments();
        if read.spec.is_write() && notice!("large_writes.reserves", attempt > 0) {
            let keys = read.spec.key_positions(arguments);
            let keys = || keys.map(|at| arguments.get(at).to_vec()).collect();
            reserved.get_or_insert_with(|| state.reserved.reserve(keys()));
        }
        let (mut premise, mut snapshot) = (read.premise.take(), read.snapshot.take());
        if read.spec.is_write() && premise.is_none() {
            let keys = state.keys_exclusive();
            let taken = Premise::take(&state.watches, &keys, &read.spec, arguments);
            (premise, snapshot) = (Some(taken.0), Some(taken.1));
        }
        let taken = || Arc::new(KeyspaceSnapshot::of(&state.keys()));
        let keys = KeyspaceGuard::Snapshot(snapshot.unwrap_or_else(taken));
        let execution = premise.map_or(Execution::First, Execution::Prepared);
        let mut context = Context { state, session, keys, table, indexed: None, execution };
        let version = state.acl.version();
        if let Err(error) = context.check_changed_rights(arguments) {
            out.error(&error);
            return CommandOutcome::Done;
        }
        // A change of users before this attempt must not end it, too.
        if context.session.acl_version != version {
            if !context.session.refresh_user(&state.acl) {
                return CommandOutcome::Close;
            }
            context.session.acl_version = version;
        }
        match context.call(&read.spec, arguments, out) {
            // A write whose keys have changed.
            CommandOutcome::Read(again) => {
                drop(context);
                read = *again;
            }
            outcome => return outcome,
        }
    }
    prepared_writes::free_staged(state);
    prepared_writes::run_in_place(&read, state, table, session, out)
}

impl Context<'_> {
    /// Refuses a command that is about to read this many elements and should do so on a snapshot.
    ///
    /// # Errors
    /// [`CommandError::NeedsSnapshot`]
    pub fn check_work(&self, elements: usize) -> Result<()> {
        let is_in_step = self.session.executing
            || self.keys.snapshot().is_some()
            || matches!(self.execution, Execution::InPlace);
        if elements < MUCH || is_in_step { Ok(()) } else { Err(CommandError::NeedsSnapshot) }
    }

    /// Number of elements that a command may read where it is executed.
    pub fn most_work(&self) -> usize {
        if self.check_work(usize::MAX).is_ok() { usize::MAX } else { MUCH }
    }

    /// [`check_work`](Self::check_work) of a whole collection.
    pub fn check_whole(&self, body: &Body<'_>) -> Result<()> {
        match body {
            Body::Packed(_) => Ok(()),
            Body::Large(large) => self.check_whole_large(large),
        }
    }

    /// [`check_work`](Self::check_work) of a whole hash.
    pub fn check_whole_hash(&self, hash: &HashView<'_>) -> Result<()> {
        match hash {
            HashView::Record(..) => Ok(()),
            HashView::Large(large) => self.check_whole_large(large),
        }
    }

    /// [`check_work`](Self::check_work) of a copy of a key, whose value in its stored form is
    /// given.
    pub fn check_copy(&self, key: &[u8], value: &[u8]) -> Result<()> {
        let Some(head) = Head::read(value) else { return Ok(()) };
        let is_long = self.keys.bytes_of(key, 0).is_some_and(|bytes| bytes >= MUCH_BYTES);
        self.check_work(if is_long { MUCH } else { head.len() })
    }

    /// [`check_work`](Self::check_work) of whole collections by their bytes: a few elements may be
    /// long.
    pub fn check_bytes(&self, keys: &[&[u8]]) -> Result<()> {
        if self.check_work(MUCH).is_ok() {
            return Ok(());
        }
        let bytes = keys.iter().filter_map(|key| self.keys.bytes_of(key, 0));
        self.check_work(if bytes.sum::<usize>() >= MUCH_BYTES { MUCH } else { 0 })
    }

    fn check_whole_large(&self, large: &Large<'_>) -> Result<()> {
        /// Entries that are looked at.
        const SAMPLE: usize = 16;
        let is_long = large.estimated_bytes(SAMPLE, 0) >= MUCH_BYTES;
        self.check_work(if is_long { MUCH } else { large.head.len() })
    }

    /// Checks that the reply that begins at `start` does not exceed the limit of replies.
    ///
    /// # Errors
    /// It does; it is taken back.
    pub fn check_reply(&self, out: &mut Replies, start: usize) -> Result<()> {
        let most = self.state.settings.reply_limit();
        if out.bytes.len() - start <= most {
            return Ok(());
        }
        out.bytes.truncate(start);
        Err(format!("ERR the reply would exceed {most} bytes; ask for less").into())
    }

    /// Checks the reply that begins at `start`, of all or some elements of a collection: that it does not exceed the
    /// limit of replies, and that as many elements were written as the header of the reply, and the head of the
    /// collection, count. A client would wait for those that are missing.
    ///
    /// # Errors
    /// It is not so; the reply is taken back.
    pub fn check_elements(
        &self,
        key: &[u8],
        [counted, written]: [usize; 2],
        out: &mut Replies,
        start: usize,
    ) -> Result<()> {
        self.check_reply(out, start)?;
        if counted == written {
            return Ok(());
        }
        out.bytes.truncate(start);
        let key = shown(key);
        tracing::error!(key, counted, written, "a collection does not have the elements it counts");
        Err(format!("ERR '{key}' counts {counted} elements in this range, and has {written}")
            .into())
    }

    /// Prepares the execution of a command on a snapshot.
    #[cold]
    pub(super) fn on_snapshot(&self, spec: &CommandSpec, arguments: Arguments<'_>) -> SnapshotRead {
        let request = arguments.to_owned_request();
        let mut read = SnapshotRead {
            spec: *spec,
            request,
            snapshot: None,
            premise: None,
            is_in_place: false,
        };
        // While a snapshot is read, nothing is locked, and the keyspace may be another one.
        let is_locked = self.keys.snapshot().is_none();
        if spec.is_write() && is_locked {
            let (premise, snapshot) =
                Premise::take(&self.state.watches, &self.keys, spec, arguments);
            (read.premise, read.snapshot) = (Some(premise), Some(snapshot));
        } else if self.keys.is_exclusive() {
            read.snapshot = Some(Arc::new(KeyspaceSnapshot::of(&self.keys)));
        }
        read
    }

    /// Calls `read` with the value of a key in its stored form, where the command reads.
    pub fn stored<R>(&self, key: &[u8], read: impl FnOnce(&[u8]) -> R) -> Option<R> {
        match self.keys.snapshot() {
            Some(snapshot) => snapshot.get_with(key, read),
            None => self.keys.get_with(key, read),
        }
    }

    /// Calls `read` with the collection of a key, where the command reads; `None` if the key is absent.
    ///
    /// # Errors
    /// The key holds a value of another type.
    pub fn collection<R>(
        &self,
        key: &[u8],
        kind: ValueKind,
        read: impl FnOnce(&Body<'_>) -> R,
    ) -> Result<Option<R>> {
        match self.keys.snapshot() {
            Some(snapshot) => snapshot.read_collection(key, kind, read),
            None => self.keys.read_collection(key, kind, read),
        }
    }
}
