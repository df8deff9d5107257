//! Commands that read many elements, which are executed a second time, on a snapshot.
//!
//! # Contract
//! A command that is about to read many elements calls [`Context::check_work`], which fails with
//! [`CommandError::NeedsSnapshot`] before the command has written anything. The connection then
//! executes the command again on a snapshot, without a lock of the keyspace or of a key, on a
//! thread for which no other client waits.
//!
//! For a command with one key, the snapshot is taken at that time. It holds every write of the key
//! that ended earlier, because writes of a large collection exclude each other. A command with
//! several keys has locked the keyspace exclusively, and its snapshot is taken immediately, while
//! no write is in progress.
//!
//! Commands that write much are [prepared](super::prepared_writes) in the same way.
//!
//! Commands of transactions and scripts are executed in place, because their step excludes other
//! commands anyway.

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

/// Number of elements from which on a command is executed on a snapshot: about a millisecond of
/// work, compared with about ten microseconds for the snapshot and the change of threads.
const MUCH: usize = 4096;
/// Number of bytes from which on a command is executed on a snapshot, for collections with few long
/// elements.
const MUCH_BYTES: usize = 1 << 20;

/// Maximum size in bytes of the members of a result that is stored, because it is built in memory.
pub const MOST_STORED: usize = 1 << 30;

/// Returns the error of a result that is too large.
pub fn too_large(most: usize) -> CommandError {
    format!("ERR the members of the result would exceed {most} bytes; ask for less").into()
}

/// Executes a command on a snapshot and writes its reply, or returns the remaining work for its
/// connection.
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
        // A change of users before this attempt must be noticed, too.
        if context.session.acl_version != version {
            if !context.session.refresh_user(&state.acl) {
                return CommandOutcome::Close;
            }
            context.session.acl_version = version;
        }
        match context.call(&read.spec, arguments, out) {
            // A write whose keys have changed in the meantime.
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
    /// Returns an error if a command is about to read this many elements and should do so on a
    /// snapshot.
    ///
    /// # Errors
    /// [`CommandError::NeedsSnapshot`]
    pub fn check_work(&self, elements: usize) -> Result<()> {
        let is_in_step = self.session.executing
            || self.keys.snapshot().is_some()
            || matches!(self.execution, Execution::InPlace);
        if elements < MUCH || is_in_step { Ok(()) } else { Err(CommandError::NeedsSnapshot) }
    }

    /// Returns the number of elements that a command may read in place.
    pub fn most_work(&self) -> usize {
        if self.check_work(usize::MAX).is_ok() { usize::MAX } else { MUCH }
    }

    /// Works like [`check_work`](Self::check_work), for a whole collection.
    pub fn check_whole(&self, body: &Body<'_>) -> Result<()> {
        match body {
            Body::Packed(_) => Ok(()),
            Body::Large(large) => self.check_whole_large(large),
        }
    }

    /// Works like [`check_work`](Self::check_work), for a whole hash.
    pub fn check_whole_hash(&self, hash: &HashView<'_>) -> Result<()> {
        match hash {
            HashView::Record(..) => Ok(()),
            HashView::Large(large) => self.check_whole_large(large),
        }
    }

    /// Works like [`check_work`](Self::check_work), for a copy of a key, whose value is given in
    /// its stored form.
    pub fn check_copy(&self, key: &[u8], value: &[u8]) -> Result<()> {
        let Some(head) = Head::read(value) else { return Ok(()) };
        let is_long = self.keys.bytes_of(key, 0).is_some_and(|bytes| bytes >= MUCH_BYTES);
        self.check_work(if is_long { MUCH } else { head.len() })
    }

    /// Works like [`check_work`](Self::check_work), for whole collections by their size in bytes,
    /// because few elements may be long.
    pub fn check_bytes(&self, keys: &[&[u8]]) -> Result<()> {
        if self.check_work(MUCH).is_ok() {
            return Ok(());
        }
        let bytes = keys.iter().filter_map(|key| self.keys.bytes_of(key, 0));
        self.check_work(if bytes.sum::<usize>() >= MUCH_BYTES { MUCH } else { 0 })
    }

    fn check_whole_large(&self, large: &Large<'_>) -> Result<()> {
        /// Number of entries from which the size is estimated.
        const SAMPLE: usize = 16;
        let is_long = large.estimated_bytes(SAMPLE, 0) >= MUCH_BYTES;
        self.check_work(if is_long { MUCH } else { large.head.len() })
    }

    /// Checks that the reply that begins at `start` does not exceed the limit of replies.
    ///
    /// # Errors
    /// The reply is longer. It is removed from `out`.
    pub fn check_reply(&self, out: &mut Replies, start: usize) -> Result<()> {
        let most = self.state.settings.reply_limit();
        if out.bytes.len() - start <= most {
            return Ok(());
        }
        out.bytes.truncate(start);
        Err(format!("ERR the reply would exceed {most} bytes; ask for less").into())
    }

    /// Checks the reply that begins at `start` and has all or some elements of a collection: it
    /// must not exceed the limit of replies, and must have as many elements as its header and the
    /// head of the collection say. Otherwise a client would wait for the missing ones.
    ///
    /// # Errors
    /// One of these conditions is violated. The reply is removed from `out`.
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
        // While a snapshot is read, nothing is locked, and the keyspace may have been replaced.
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

    /// Calls `read` with the stored form of a key's value, in the state that the command reads.
    pub fn stored<R>(&self, key: &[u8], read: impl FnOnce(&[u8]) -> R) -> Option<R> {
        match self.keys.snapshot() {
            Some(snapshot) => snapshot.get_with(key, read),
            None => self.keys.get_with(key, read),
        }
    }

    /// Calls `read` with the collection of a key, in the state that the command reads. Returns
    /// `None` if the key is absent.
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
