//! MULTI, EXEC, DISCARD, WATCH, UNWATCH.
//!
//! EXEC locks the keyspace exclusively, so no other client and no snapshot sees part of its writes.
//! It is not a batch of the store, for two reasons. All writes of a batch must be known before the
//! first one is made, while the writes and replies of INCR or SETNX depend on the commands before
//! them. And a batch is atomic for snapshots only: a GET of another client, which reads the latest
//! state, may come between two of its writes. (The writes of MSET and MSETNX are known, so these
//! commands are batches. They lock the keyspace exclusively because of such a GET.)
//!
//! The memory limit does not interrupt a transaction either. As in Redis, a command that needs
//! memory is refused when it is queued if the limit is already reached, and so is EXEC. Once EXEC
//! has begun, it runs to its end. Each command counts as if it set new keys, and EXEC begins only
//! if there is room for all of them. Copies of older values that snapshots keep may exceed the
//! limit. The need of two kinds of commands cannot be computed in advance: scripts, whose writes
//! the limit refuses as it does outside of a transaction, and commands that copy values, which are
//! refused once the limit is exceeded. So a transaction exceeds the limit by at most the copy of
//! one command, and those older values.
//!
//! The indexes do not show part of a transaction, unless a command of the transaction queries them:
//! the query has to see the writes before it, and then other clients see them, too.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use crate::execution::atomic::{Aftermath, Atomic};
use crate::execution::command::{
    CONNECTION, Command, CommandOutcome, Context, Result, SESSION, ok,
};
use crate::execution::dispatch::deny;
use crate::execution::eviction;
use crate::state::acl::user::Refusal;
use crate::state::command_spec::{ALL_KEYS, CommandFlags, Growth, KeyAccess, NO_KEY};
use crate::state::session::{Transaction, Watched};
use crate::wire::error::CommandError;
use crate::wire::reply::Replies;
use crate::wire::request::{Arguments, OwnedRequest};

const TRANSACTION: CommandFlags = CONNECTION.or(CommandFlags::ALLOW_BUSY);

pub const COMMANDS: &[Command] = &[
    Command::new(
        "multi",
        1,
        TRANSACTION,
        NO_KEY,
        "Begins a transaction: the following commands are queued for EXEC.",
        multi,
    )
    .without_keys()
    .with(CommandFlags::NOT_QUEUED),
    Command::new(
        "exec",
        1,
        SESSION.or(CommandFlags::SKIP_SLOWLOG),
        NO_KEY,
        "Executes the commands queued since MULTI, as one step.",
        exec,
    )
    .exclusive()
    .with(CommandFlags::NOT_QUEUED.or(CommandFlags::EXECUTES_QUEUE)),
    Command::new(
        "discard",
        1,
        TRANSACTION,
        NO_KEY,
        "Discards the commands queued since MULTI.",
        discard,
    )
    .without_keys()
    .with(CommandFlags::NOT_QUEUED),
    Command::new(
        "watch",
        -2,
        TRANSACTION,
        ALL_KEYS,
        "Watches keys: if one of them changes before EXEC, EXEC executes nothing.",
        watch,
    )
    .access(KeyAccess::METADATA)
    .with(CommandFlags::NOT_QUEUED),
    Command::new("unwatch", 1, TRANSACTION, NO_KEY, "Stops watching keys.", unwatch).without_keys(),
];

fn multi(context: &mut Context<'_>, _: Arguments<'_>, out: &mut Replies) -> Result {
    if context.session.transaction.is_some() {
        return Err("ERR MULTI calls can not be nested".into());
    }
    context.session.transaction = Some(Transaction::default());
    context.session.publish_transaction();
    ok(out)
}

fn discard(context: &mut Context<'_>, _: Arguments<'_>, out: &mut Replies) -> Result {
    // Outside of a transaction, DISCARD is an error and the keys stay watched.
    if context.session.transaction.is_none() {
        return Err("ERR DISCARD without MULTI".into());
    }
    context.session.end_transaction();
    ok(out)
}

/// Memory that a watched key takes in addition to its bytes: entries in two tables.
const WATCH_BYTES: usize = 160;

fn watch(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    if context.session.transaction.is_some() {
        return Err("ERR WATCH inside MULTI is not allowed".into());
    }
    let most = context.state.settings.query_limit.size();
    let watched = &context.session.watched;
    let bytes = |key: &[u8]| key.len() + WATCH_BYTES;
    let of_all: usize = arguments.iter_from(1).map(bytes).sum();
    // Keys that are already watched take no more memory.
    let of_new = || -> usize {
        arguments.iter_from(1).filter(|key| !watched.contains_key(*key)).map(bytes).sum()
    };
    let room = most.saturating_sub(context.session.watched_bytes);
    if of_all > room && of_new() > room {
        return Err(format!("ERR a client may watch {most} bytes of keys").into());
    }
    for key in arguments.iter_from(1) {
        if !context.session.watched.contains_key(key) {
            // The key is watched before its state is read, so that no write in between is missed.
            let watch = context.state.watches.watch(key);
            let was_present = context.keys.contains(key);
            context.session.watched_bytes += bytes(key);
            context.session.watched.insert(Arc::clone(watch.key()), Watched { watch, was_present });
        }
    }
    context.session.publish_transaction();
    ok(out)
}

fn unwatch(context: &mut Context<'_>, _: Arguments<'_>, out: &mut Replies) -> Result {
    context.session.unwatch();
    context.session.publish_transaction();
    ok(out)
}

/// Returns the size of the records that snapshots keep because of the transaction's writes: each
/// key's record once, and once more for each snapshot that the transaction takes. Even a write of
/// one byte may keep a long value.
fn kept(context: &Context<'_>, transaction: &Transaction) -> usize {
    let calls = || transaction.queued.iter().map(OwnedRequest::arguments);
    let taken = calls().filter(|call| call.get(0).eq_ignore_ascii_case(b"ordna.snapshot")).count();
    if taken == 0 && !context.keys.has_snapshots() {
        return 0;
    }
    let grows = |call: Arguments<'_>| {
        let spec = context.table.catalog.find(call.get(0))?;
        spec.has(CommandFlags::DENYOOM).then(|| spec.key_positions(call))
    };
    let mut keys = HashSet::new();
    for call in calls() {
        keys.extend(grows(call).into_iter().flatten().map(|at| call.get(at)));
    }
    let records = keys.into_iter().filter_map(|key| context.keys.get_with(key, <[u8]>::len));
    records.sum::<usize>().saturating_mul(1 + taken)
}

/// Returns the number of bytes that the writes of a transaction may need. A command that copies a
/// value is assumed to copy the longest one that the transaction names, with everything that the
/// transaction adds to it.
fn needed(context: &Context<'_>, transaction: &Transaction) -> usize {
    let kept = kept(context, transaction);
    if transaction.copies == 0 {
        return transaction.needed.saturating_add(kept);
    }
    let length = |request: &OwnedRequest| {
        let arguments = request.arguments();
        let spec = context.table.catalog.find(arguments.get(0));
        let keys = spec.into_iter().flat_map(|spec| spec.key_positions(arguments));
        let length = |at| context.keys.bytes_of(arguments.get(at), 0);
        keys.filter_map(length).max().unwrap_or(0)
    };
    let longest = transaction.queued.iter().map(length).max().unwrap_or(0);
    let copied = transaction.copies.saturating_mul(longest + transaction.needed);
    transaction.needed.saturating_add(copied).saturating_add(kept)
}

fn exec(context: &mut Context<'_>, _: Arguments<'_>, out: &mut Replies) -> Result {
    // Outside of a transaction, EXEC is an error and the keys stay watched.
    if context.session.transaction.is_none() {
        return Err("ERR EXEC without MULTI".into());
    }
    let watched = std::mem::take(&mut context.session.watched);
    let transaction = context.session.end_transaction().unwrap_or_default();
    if transaction.broken {
        return Err("EXECABORT Transaction discarded because of previous errors.".into());
    }
    let needed = needed(context, &transaction);
    eviction::make_room(context.state, &context.keys, needed).map_err(|error| {
        format!("EXECABORT Transaction discarded because of: {}", CommandError::from(error))
    })?;
    // A key that one command of the transaction finds does not expire before the next command.
    let _held = context.keys.hold_time();
    // A key that has expired or was flushed counts as changed, although no client wrote it.
    let is_unchanged = |watched: &Watched| {
        let key = watched.watch.key();
        !watched.watch.was_written()
            && (!watched.was_present || context.keys.contains(key))
            && !context.keys.has_expired_fields(key)
    };
    // Checked after the evictions that make room, because they may remove a watched key.
    let unchanged = watched.values().all(is_unchanged);
    drop(watched);
    if !unchanged {
        out.null_array();
        return Ok(CommandOutcome::Done);
    }
    context.session.executing = true;
    let most = context.state.settings.reply_limit();
    let start = out.bytes.len();
    out.array(transaction.queued.len());
    let mut atomic = Atomic::new(context);
    let (mut delayed, mut closes) = (Duration::ZERO, false);
    for request in &transaction.queued {
        let before = out.bytes.len();
        let (arguments, end) = (request.arguments(), start + most);
        match execute_queued(context, &mut atomic, arguments, end, out) {
            Ok(Aftermath::None) => {}
            Ok(Aftermath::Delay(delay)) => delayed += delay,
            Ok(Aftermath::Close) => closes = true,
            Err(error) => {
                out.bytes.truncate(before);
                out.error(&error);
            }
        }
        let is_error = out.bytes.get(before) == Some(&b'-');
        if out.bytes.len() - start > most && !is_error {
            out.bytes.truncate(before);
            out.error(format!(
                "ERR the replies of the transaction would exceed {most} bytes; this command was executed"
            ));
        }
    }
    atomic.end(context);
    context.session.executing = false;
    Ok(match (closes, delayed) {
        (true, _) => CommandOutcome::Close,
        (false, Duration::ZERO) => CommandOutcome::Done,
        (false, delay) => CommandOutcome::Delayed(delay),
    })
}

/// Executes a command, and immediately afterwards the work that the command leaves to its
/// connection. The replies must not grow beyond position `end`.
fn execute_queued(
    context: &mut Context<'_>,
    atomic: &mut Atomic,
    arguments: Arguments<'_>,
    end: usize,
    out: &mut Replies,
) -> Result<Aftermath> {
    // Only known commands are queued.
    let spec = context.table.catalog.find(arguments.get(0)).ok_or("ERR unknown command")?;
    let spec = spec.of_call(arguments);
    if let Some(user) = &context.session.user {
        // The user's rights may have changed since the command was queued.
        if let Err(refusal) = user.check(spec, arguments, &context.state.indexes) {
            let reason = match &refusal {
                Refusal::Command(_) => "no permission to execute the command or subcommand",
                Refusal::Key(_) => "no permission to touch the specified keys",
                Refusal::Channel(_) => {
                    "no permission to access one of the channels used as arguments to the command"
                }
            };
            deny(context.state, context.session, refusal, "multi");
            return Err(format!("NOPERM ACLs rules changed between the moment the transaction was accumulated and the EXEC call. This command is no longer allowed for the following reason: {reason}").into());
        }
    }
    if matches!(spec.growth, Growth::Copies) && context.state.exceeds_max_memory() {
        return Err(CommandError::OutOfMemory);
    }
    if spec.has(CommandFlags::CHANGES_DEADLINE) && context.state.exceeds_max_memory() {
        // Each snapshot may keep a copy of the value.
        context.state.cursors.end_leases();
        if !context.keys.statistics().snapshots.is_empty() {
            return Err(CommandError::OutOfMemory);
        }
    }
    let _lifted = (!spec.has(CommandFlags::SCRIPT)).then(|| context.keys.lift_limit());
    let outcome = context.call(spec, arguments, out);
    atomic.finish(context, spec, outcome, end, out)
}
