//! Commands of replication: REPLICAOF, ROLE, WAIT, ORDNA.OFFSET, ORDNA.AFTER.

use std::time::{Duration, Instant};

use crate::execution::command::{
    Awaited, AwaitedReply, CONNECTION, Command, CommandOutcome, Context, Result, SERVER_INFO, Task,
};
use crate::keyspace::Keyspace;
use crate::state::ServerState;
use crate::state::command_spec::{CommandFlags, NO_KEY};
use crate::state::replication::{Progress, ReplicationRole, ReplicationStatus};
use crate::wire::error::CommandError;
use crate::wire::reply::Replies;
use crate::wire::request::{Arguments, number};

const REPLICA_OF: CommandFlags = CommandFlags::ADMIN
    .or(CommandFlags::NOSCRIPT)
    .or(CommandFlags::STALE)
    .or(CommandFlags::NO_ASYNC_LOADING);

pub const OF_SERVERS: &[Command] = &[
    Command::new(
        "replicaof",
        3,
        REPLICA_OF,
        NO_KEY,
        "Makes a follower the primary. Only NO ONE is supported.",
        replica_of,
    ),
    Command::new(
        "slaveof",
        3,
        REPLICA_OF,
        NO_KEY,
        "Makes a follower the primary. Only NO ONE is supported.",
        replica_of,
    ),
    Command::new(
        "role",
        1,
        CONNECTION,
        NO_KEY,
        "Returns the role of the server in the replication, and its position.",
        role,
    )
    .also_in(&["admin", "dangerous"]),
];

pub const OF_KEYS: &[Command] = &[Command::new(
    "wait",
    3,
    CommandFlags::NOSCRIPT,
    NO_KEY,
    "Waits until all earlier writes are replicated.",
    wait,
)
.also_in(&["connection"])];

pub const ORDERED: &[Command] = &[
    Command::new(
        "ordna.after",
        3,
        SERVER_INFO.or(CommandFlags::NOSCRIPT),
        NO_KEY,
        "Waits on a follower until its state includes an offset that ORDNA.OFFSET has returned.",
        after,
    ),
    Command::new(
        "ordna.offset",
        1,
        SERVER_INFO,
        NO_KEY,
        "Returns the offset of this server's state, for ORDNA.AFTER.",
        offset,
    ),
];

/// Returns the state of the replication, if the keyspace is replicated.
pub fn status(state: &ServerState) -> Option<ReplicationStatus> {
    state.config.replication.as_ref().map(|replication| replication.status())
}

/// Returns whether the server is replicated and is not the primary, so that it refuses writes.
pub fn is_replica(state: &ServerState) -> bool {
    status(state).is_some_and(|status| status.role != ReplicationRole::Primary)
}

fn role(context: &mut Context<'_>, _: Arguments<'_>, out: &mut Replies) -> Result {
    let status = status(context.state);
    let position = |it: &ReplicationStatus| i64::try_from(it.position).unwrap_or(i64::MAX);
    match status.filter(|status| status.role != ReplicationRole::Primary) {
        Some(status) => {
            out.array(5);
            out.bulk(b"slave");
            out.bulk(status.log.as_bytes());
            out.integer(0);
            out.bulk(if status.failure.is_some() { b"connect" } else { b"connected" });
            out.integer(position(&status));
        }
        None => {
            let written = self::status(context.state).map_or(0, |status| position(&status));
            out.array(3);
            out.bulk(b"master");
            out.integer(written);
            out.array(0);
        }
    }
    Ok(CommandOutcome::Done)
}

fn replica_of(_: &mut Context<'_>, arguments: Arguments<'_>, _: &mut Replies) -> Result {
    let is = |at: usize, word: &str| arguments.get(at).eq_ignore_ascii_case(word.as_bytes());
    if !is(1, "no") || !is(2, "one") {
        return Err("ERR only REPLICAOF NO ONE; a follower is started with --follow".into());
    }
    Ok(CommandOutcome::Task(Task::new(arguments, promote)))
}

fn promote(
    state: &ServerState,
    held: Option<&Keyspace>,
    _: Arguments<'_>,
    out: &mut Replies,
) -> Result<()> {
    if held.is_some() {
        return Err("ERR REPLICAOF NO ONE is not allowed in a transaction".into());
    }
    if let Some(replication) = &state.config.replication {
        replication.promote().map_err(|why| format!("ERR not promoted: {why}"))?;
    }
    out.simple("OK");
    Ok(())
}

fn milliseconds(argument: &[u8]) -> Result<u64> {
    let timeout = number(argument).ok_or("ERR timeout is not an integer or out of range")?;
    u64::try_from(timeout).map_err(|_| "ERR timeout is negative".into())
}

fn wait(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    number(arguments.get(1)).ok_or(CommandError::NotAnInteger)?;
    milliseconds(arguments.get(2))?;
    if is_replica(context.state) {
        return Err("ERR WAIT cannot be used with replica instances. Please also note that since Redis 4.0 if a replica is configured to be writable (which is not the default) writes to replicas are just local and are not propagated.".into());
    }
    let written = status(context.state).map(|status| (status.term, written(&status)));
    let Some(state) = written else {
        out.integer(0);
        return Ok(CommandOutcome::Done);
    };
    Ok(awaits(state, milliseconds(arguments.get(2))?, |_, _, progress, out| {
        out.integer(i64::from(progress == Progress::Reached));
        Ok(())
    }))
}

/// Returns the position after everything that a primary has written.
fn written(status: &ReplicationStatus) -> u64 {
    status.position.saturating_add(status.waiting)
}

/// Waits for a state. 0 milliseconds have no end.
fn awaits((term, position): (u64, u64), millis: u64, reply: AwaitedReply) -> CommandOutcome {
    let time = (millis > 0).then(|| Duration::from_millis(millis));
    let deadline = time.and_then(|time| Instant::now().checked_add(time));
    CommandOutcome::Awaits(Awaited { term, position, deadline, reply })
}

fn offset(context: &mut Context<'_>, _: Arguments<'_>, out: &mut Replies) -> Result {
    let status = status(context.state).ok_or(NOT_REPLICATED)?;
    out.text(&format!("{}-{}", status.term, written(&status)));
    Ok(CommandOutcome::Done)
}

const NOT_REPLICATED: &str = "ERR this server is not replicated";

fn after(context: &mut Context<'_>, arguments: Arguments<'_>, _: &mut Replies) -> Result {
    let place = parse(arguments.get(1))?;
    let millis = milliseconds(arguments.get(2))?;
    if context.state.config.replication.is_none() {
        return Err(NOT_REPLICATED.into());
    }
    Ok(awaits(place, millis, |state, awaited, progress, out| {
        let Awaited { term, position, .. } = awaited;
        let why = match progress {
            Progress::Reached => {
                out.simple("OK");
                return Ok(());
            }
            Progress::Pending => {
                let (term, position) = status(state).map_or((0, 0), |it| (it.term, it.position));
                format!("ERR the state of this server is that of offset {term}-{position}")
            }
            Progress::Lost(end) => format!(
                "ERR offset {term}-{position} is lost: another primary has taken over after \
                 {term}-{end}"
            ),
            Progress::Unknown => format!(
                "ERR run {term} ended before this server started: whether its state includes \
                 {term}-{position} is unknown"
            ),
        };
        Err(why.into())
    }))
}

/// Parses an offset into its term and its position.
fn parse(offset: &[u8]) -> Result<(u64, u64)> {
    let text = std::str::from_utf8(offset).ok();
    let parts = text.and_then(|text| text.split_once('-'));
    let parsed = parts.and_then(|(term, at)| Some((term.parse().ok()?, at.parse().ok()?)));
    parsed.ok_or_else(|| "ERR an offset is what ORDNA.OFFSET returns".into())
}
