//! Runs: successive commands of a pipeline that change the same large set or sorted set.
//!
//! # Concurrency
//! A run locks the keyspace in shared mode and the key of the collection, once for all of its
//! commands. If each command locked the key, pipelines of several clients on one key would wake
//! each other after each command. A run has few commands and ends after a short time: other clients
//! of the key wait about half as long again as without runs, and not much longer at worst. Each
//! command is checked, executed, reported and counted as outside of a run. Writes of hashes and
//! lists take the lock for so short a time that others wait for it without sleeping; they have no
//! runs.
//!
//! Commands of a run must not wait for other threads, and must lock no other key. So there are no
//! runs while keys are evicted, while indexes exist, or while clients wait for elements. A command
//! that needs the exclusive lock ends the run and is executed again.

use std::time::Instant;

use ordna::sync::point;

use crate::execution::command::{CommandOutcome, CommandTable};
use crate::execution::dispatch;
use crate::state::ServerState;
use crate::state::command_spec::{CommandFlags, LockMode, ONE_KEY};
use crate::state::session::{ReplyMode, Session};
use crate::wire::reply::Replies;
use crate::wire::request::{ProtocolError, Requests};

/// What a run has done.
pub struct Run {
    /// The outcome of the last command, whose arguments are still in the buffer unless it is
    /// `Done`. With `EndsRun` this command was not executed.
    pub outcome: CommandOutcome,
    /// Number of commands before that one, which all are `Done`.
    pub before: usize,
    /// The error of the request after the last command.
    pub error: Option<ProtocolError>,
}

/// Limits of a run.
pub struct Limits {
    pub commands: usize,
    /// Size of the replies in bytes.
    pub replies: usize,
    pub time: Option<Instant>,
}

/// Number of commands whose elements are prefetched together.
const AHEAD: usize = 16;
/// Minimum number of commands of a run. Shorter ones gain nothing.
const FEWEST: usize = 3;

/// The position of the name of the member that a command changes, if its elements are prefetched.
/// Writes of hashes and sets change fewer entries, and do not gain from it.
fn position_of_member(command: &str) -> Option<usize> {
    matches!(command, "zadd" | "zincrby").then_some(3)
}

/// Executes the command that was last taken from `requests`, and those that follow with the same
/// name and key. Returns `None` if the command does not begin a run; nothing is done then.
pub fn execute(
    state: &ServerState,
    table: &'static CommandTable,
    session: &mut Session,
    requests: &mut Requests,
    out: &mut Replies,
    limits: &Limits,
) -> Option<Run> {
    let call = requests.current();
    let number = table.catalog.number_after(session.last_command, call.get(0))?;
    let spec = &table.catalog.all()[number];
    let suits = spec.lock == LockMode::Shared
        && spec.keys == ONE_KEY
        && spec.has(CommandFlags::WRITE)
        && spec.has(CommandFlags::FAST)
        && matches!(spec.group, "set" | "sorted-set")
        && !spec.has(CommandFlags::RUNS_LONG)
        && session.transaction.is_none()
        && matches!(session.reply_mode, ReplyMode::On)
        && call.len() > 1
        && requests.repeats();
    if !suits || state.settings.evicts() {
        return None;
    }
    let commands = 1 + requests.repetitions(limits.commands - 1);
    if commands < FEWEST {
        return None;
    }
    let keys = state.keyspace_lock().try_shared()?;
    if state.blocked.are_any() || state.indexes.are_active() || state.may_be_paused() {
        return None;
    }
    let held = keys.collections().hold(call.get(1), commands)?;
    point("key_run.held");
    if let Some(at) = position_of_member(spec.name) {
        let mut members = [&[][..]; AHEAD];
        members[0] = call.get(at);
        let found = requests.ahead_at(at, session.user.is_some(), &mut members[1..]);
        keys.fetch_members(call.get(1), &members[..=found]);
    }
    let mut run = Run { outcome: CommandOutcome::Done, before: 0, error: None };
    loop {
        let call = requests.current();
        run.outcome = dispatch::execute_in(state, table, session, Some(&keys), call, out);
        session.pushed = false;
        let is_over = !matches!(run.outcome, CommandOutcome::Done)
            || run.before + 1 >= limits.commands
            || out.bytes.len() > limits.replies
            || session.now.zip(limits.time).is_none_or(|(now, end)| now > end)
            || !requests.repeats();
        if is_over {
            break;
        }
        match requests.next(session.user.is_some()) {
            Ok(Some(_)) => run.before += 1,
            Ok(None) => break,
            Err(error) => {
                run.error = Some(error);
                break;
            }
        }
        session.deliver(out);
    }
    drop(held);
    Some(run)
}
