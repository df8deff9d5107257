//! Dispatch: finds the command of a request, checks whether the client may call it, and executes or
//! queues it.

use std::sync::atomic::Ordering;

use ordna::sync::{fault, notice};

use crate::execution::command::{CommandOutcome, CommandTable, Context};
use crate::execution::snapshot_read::Execution;
use crate::execution::{acknowledgement, eviction};
use crate::keyspace::Keyspace;
use crate::keyspace::lock::KeyspaceGuard;
use crate::state::ServerState;
use crate::state::acl::user::Refusal;
use crate::state::command_spec::{CommandFlags, CommandSpec, Growth, LockMode};
use crate::state::session::Session;
use crate::wire::error::CommandError;
use crate::wire::reply::Replies;
use crate::wire::request::{Arguments, OwnedRequest};

/// Executes one command and writes its reply, or returns the work that its connection has to do.
pub fn execute(
    state: &ServerState,
    table: &'static CommandTable,
    session: &mut Session,
    arguments: Arguments<'_>,
    out: &mut Replies,
) -> CommandOutcome {
    execute_in(state, table, session, None, arguments, out)
}

/// Works like [`execute`] for a command of a run, which has locked the keyspace.
pub fn execute_in(
    state: &ServerState,
    table: &'static CommandTable,
    session: &mut Session,
    run: Option<&Keyspace>,
    arguments: Arguments<'_>,
    out: &mut Replies,
) -> CommandOutcome {
    if session.acl_version != state.acl.version() && !session.refresh_user(&state.acl) {
        return CommandOutcome::Close;
    }
    let Some(number) = table.catalog.number_after(session.last_command, arguments.get(0)) else {
        if is_web_page(arguments.get(0)) {
            tracing::warn!(
                peer = %session.client.peer,
                "possible attack: an HTTP request instead of a command; closed. A web page in a \
                 browser can send those"
            );
            return CommandOutcome::Close;
        }
        return fail(state, session, None, unknown(arguments), out);
    };
    session.last_command = number;
    let command = &table.catalog.all()[number];
    let spec = command.of_call(arguments);
    if arguments.len() > 1 && !spec.subcommands.is_empty() {
        let error = CommandError::unknown_subcommand(arguments);
        return fail(state, session, Some(command), error, out);
    }
    if let Err(error) = permitted(state, session, spec, arguments) {
        state.stats.rejected(spec.id);
        return fail(state, session, Some(spec), error, out);
    }
    if session.only_subscribes(out) && !spec.has(CommandFlags::WHILE_SUBSCRIBED) {
        state.stats.rejected(spec.id);
        let error = format!(
            "ERR Can't execute '{}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context",
            spec.name
        );
        return fail(state, session, Some(spec), error.into(), out);
    }
    if let Some(persistence) = &state.data_directory
        && persistence.is_loading()
        && !spec.has(CommandFlags::LOADING)
    {
        return fail(state, session, Some(spec), CommandError::Loading, out);
    }
    if state.refuses_writes() && writes_itself(spec) {
        state.stats.rejected(spec.id);
        return fail(state, session, Some(spec), CommandError::ReadOnly, out);
    }
    let is_held_long = state.keyspace_lock().is_held_long();
    if spec.has(CommandFlags::KILLS_SCRIPT)
        && (is_held_long || state.scripts.is_preparing.load(Ordering::Relaxed))
    {
        return match state.scripts.kill() {
            Ok(()) => {
                out.simple("OK");
                CommandOutcome::Done
            }
            Err(error) => fail(state, session, Some(spec), error.into(), out),
        };
    }
    if is_held_long && state.is_busy() && spec.lock != LockMode::None {
        return fail(state, session, Some(spec), CommandError::Busy, out);
    }
    if session.transaction.is_some() && !spec.has(CommandFlags::NOT_QUEUED) {
        match queue(state, session, spec, arguments) {
            Ok(()) => out.simple("QUEUED"),
            Err(error) => return fail(state, session, None, error, out),
        }
        return CommandOutcome::Done;
    }
    let several = || spec.key_positions(arguments).nth(1).is_some();
    let is_exclusive = match spec.lock {
        LockMode::None | LockMode::Shared => false,
        LockMode::Exclusive => true,
        LockMode::ExclusiveIfSeveralKeys => several(),
    };
    let runs_long = spec.has(CommandFlags::RUNS_LONG)
        || spec.has(CommandFlags::EXECUTES_QUEUE)
            && session.transaction.as_ref().is_some_and(|transaction| transaction.runs_long);
    let keys = match (is_exclusive, runs_long) {
        (false, false) if run.is_some() => {
            run.map_or(KeyspaceGuard::Released, KeyspaceGuard::OfRun)
        }
        _ if run.is_some() => return CommandOutcome::EndsRun,
        (_, true) => {
            let turn = session.turn.take().or_else(|| state.keyspace_lock().try_turn());
            let Some(turn) = turn else { return CommandOutcome::AwaitsTurn };
            session.script = state.scripts.prepared(spec.name, arguments);
            state.keys_for_long(turn)
        }
        (true, false) => state.keys_exclusive(),
        (false, false) if spec.lock == LockMode::None => KeyspaceGuard::Released,
        (false, false) => state.keys(),
    };
    let execution = Execution::First;
    let mut context = Context { state, session, indexed: None, keys, table, execution };
    // While a run has locked the keyspace, no client begins to wait.
    let is_exclusive = run.is_none() && context.exclude_if_awaited(spec, arguments) || is_exclusive;
    if spec.lock != LockMode::None {
        match context.stopped(spec, arguments) {
            Ok(None) => {}
            Ok(Some(outcome)) => return outcome,
            Err(error) => return fail(state, context.session, Some(spec), error, out),
        }
    }
    let outcome = match state.data_directory {
        Some(_) => acknowledgement::call_logged(&mut context, spec, is_exclusive, arguments, out),
        None => context.call(spec, arguments, out),
    };
    // The command was refused before it was executed.
    context.session.script = None;
    if spec.lock != LockMode::None && run.is_none() {
        context.serve_blocked();
    }
    outcome
}

impl Context<'_> {
    /// Returns what to do with a command that must not continue now that it has locked the keyspace
    /// (possibly again), or `None` if it may continue. The command has not changed anything yet.
    ///
    /// `CLIENT KILL`, `CLIENT PAUSE` and changes of users hold the lock exclusively. So their
    /// effect is visible here, and nothing is written after their reply.
    ///
    /// # Errors
    /// The user may no longer call the command.
    pub fn stopped(
        &self,
        spec: &CommandSpec,
        arguments: Arguments<'_>,
    ) -> Result<Option<CommandOutcome>, CommandError> {
        let (state, session) = (self.state, &*self.session);
        if notice!("concurrent.dispatch.ends_with_client", session.client.is_ended()) {
            return Ok(Some(CommandOutcome::Close));
        }
        let is_paused = state.may_be_paused()
            && !spec.has(CommandFlags::IGNORES_PAUSE)
            && state.is_paused(may_write(self.table, session, spec));
        if notice!("concurrent.dispatch.sees_pause", is_paused) {
            return Ok(Some(CommandOutcome::Paused));
        }
        if !fault!("concurrent.dispatch.sees_rights") {
            self.check_changed_rights(arguments)?;
        }
        Ok(None)
    }
}

/// Returns whether a server that only reads refuses a command. Scripts begin there, and cannot
/// write.
pub fn writes_itself(spec: &CommandSpec) -> bool {
    spec.has(CommandFlags::WRITE)
}

/// Returns whether a command may write, and so has to wait while writes are paused.
pub fn may_write(table: &'static CommandTable, session: &Session, spec: &CommandSpec) -> bool {
    if !spec.has(CommandFlags::EXECUTES_QUEUE) {
        return spec.is_write();
    }
    let writes = |call: Arguments<'_>| {
        let spec = table.catalog.find(call.get(0));
        spec.is_none_or(|spec| spec.of_call(call).is_write())
    };
    let queued = session.transaction.iter().flat_map(|transaction| &transaction.queued);
    queued.map(OwnedRequest::arguments).any(writes)
}

/// Returns whether the request looks like HTTP from a browser, which Redis treats as an attack,
/// too.
fn is_web_page(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"post") || name.eq_ignore_ascii_case(b"host:")
}

/// Writes the error of a command that cannot begin. `spec` is `None` for an unknown command.
fn fail(
    state: &ServerState,
    session: &mut Session,
    spec: Option<&CommandSpec>,
    error: CommandError,
    out: &mut Replies,
) -> CommandOutcome {
    let before = out.bytes.len();
    if spec.is_some_and(|spec| spec.has(CommandFlags::EXECUTES_QUEUE)) {
        session.end_transaction();
        let error = error.to_string();
        let reason = error.strip_prefix("ERR ").unwrap_or(&error);
        out.error(format_args!("EXECABORT Transaction discarded because of: {reason}"));
    } else {
        if let Some(transaction) = &mut session.transaction {
            transaction.broken = true;
        }
        out.error(error);
    }
    state.errors.count(&out.bytes[before..]);
    CommandOutcome::Done
}

/// Checks whether the client may call a command with these arguments.
fn permitted(
    state: &ServerState,
    session: &Session,
    spec: &CommandSpec,
    arguments: Arguments<'_>,
) -> Result<(), CommandError> {
    if !spec.suits(arguments.len()) {
        return Err(CommandError::wrong_arity(spec.name));
    }
    match &session.user {
        None if spec.has(CommandFlags::NO_AUTH) => Ok(()),
        None => Err(CommandError::NotAuthenticated),
        Some(_) if spec.has(CommandFlags::NO_MULTI) && session.transaction.is_some() => {
            Err("ERR Command not allowed inside a transaction".into())
        }
        Some(user) => user.check(spec, arguments, &state.indexes).map_err(|refusal| {
            let context = if session.transaction.is_some() { "multi" } else { "toplevel" };
            deny(state, session, refusal, context)
        }),
    }
}

/// Records a refusal by ACL and returns its error.
pub fn deny(
    state: &ServerState,
    session: &Session,
    refusal: Refusal,
    context: &'static str,
) -> CommandError {
    let user = session.user.as_ref().map_or("", |user| user.name.as_str());
    state.deny(&session.client, user, refusal, context)
}

/// Queues a command for `EXEC`.
fn queue(
    state: &ServerState,
    session: &mut Session,
    spec: &CommandSpec,
    arguments: Arguments<'_>,
) -> Result<(), CommandError> {
    let request = arguments.to_owned_request();
    let most = state.settings.query_limit.size();
    let Some(transaction) = &mut session.transaction else { return Ok(()) };
    if spec.has(CommandFlags::DENYOOM) {
        transaction.needed += request.size();
        match spec.growth {
            Growth::Arguments => {}
            Growth::Declared(length) => {
                transaction.needed = transaction.needed.saturating_add(length(arguments));
            }
            Growth::Copies => transaction.copies += 1,
        }
        if let Err(error) = eviction::make_room_by_calls(state, transaction.needed) {
            transaction.broken = true;
            return Err(error.into());
        }
    }
    transaction.bytes += request.size();
    if transaction.bytes > most {
        transaction.queued = Vec::new();
        transaction.bytes = 0;
        transaction.broken = true;
        return Err(format!("ERR a transaction may hold {most} bytes of commands").into());
    }
    transaction.runs_long |= spec.has(CommandFlags::RUNS_LONG);
    transaction.queued.push(request);
    session.publish_transaction();
    Ok(())
}

fn unknown(arguments: Arguments<'_>) -> CommandError {
    // Redis shows at most 128 bytes of the name, and of the arguments together.
    const SHOWN: usize = 128;
    let show = |bytes: &[u8], limit: usize| {
        String::from_utf8_lossy(&bytes[..bytes.len().min(limit)]).into_owned()
    };
    let name = show(arguments.get(0), SHOWN);
    if let Some(instead) = instead_of(arguments.get(0)) {
        return format!("ERR unknown command '{name}': {instead}").into();
    }
    let mut shown = String::new();
    for argument in arguments.iter_from(1) {
        if shown.len() >= SHOWN {
            break;
        }
        shown.push_str(&format!("'{}' ", show(argument, SHOWN - shown.len())));
    }
    format!("ERR unknown command '{name}', with args beginning with: {shown}").into()
}

/// Returns an alternative to a command of Redis that Ordna lacks, or the reason why there is none.
pub(super) fn instead_of(name: &[u8]) -> Option<&'static str> {
    let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
    let lacking = INSTEAD.iter().find(|(names, _)| names.split(' ').any(is));
    lacking.map(|(_, instead)| *instead)
}

/// Commands of Redis that Ordna lacks, and their alternatives.
const INSTEAD: &[(&str, &str)] = &[
    (
        "xadd xread xrange xrevrange xlen xdel xdelex xackdel xgroup xreadgroup xack xtrim xpending xclaim \
         xautoclaim xinfo xsetid",
        "Ordna has no streams; keys that end in a time or a counter, with ORDNA.RANGE, do that",
    ),
    ("fcall fcall_ro function", "Ordna has no functions; EVAL and EVALSHA run scripts"),
    ("pfadd pfcount pfmerge", "Ordna has no HyperLogLog; SADD and SCARD count exactly"),
    (
        "geoadd geodist geohash geopos georadius georadius_ro georadiusbymember georadiusbymember_ro \
         geosearch geosearchstore",
        "Ordna has no geographic commands",
    ),
    ("cluster asking", "Ordna has no clusters; each server holds all of its keys"),
    ("sync psync replconf failover", "copies of Ordna are fed by Kafka: ordna serve --follow"),
    ("migrate", "Ordna sends no keys to other servers; DUMP and RESTORE copy them"),
    ("module", "Ordna has no modules"),
    ("debug", "Ordna has no DEBUG"),
];
