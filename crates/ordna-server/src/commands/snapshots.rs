//! ORDNA.SNAPSHOT: a stable state that several commands read.

use std::time::Duration;

use super::admin::help;
use super::ordered::range_of;
use super::{Context, NOT_AN_INTEGER, Outcome, Result, SYNTAX, Subcommands, subcommand};
use crate::reply::Replies;
use crate::request::{Arguments, number};
use crate::snapshots::MOST;
use crate::state::Snapshot;

pub fn snapshot(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    const COMMANDS: &Subcommands = &[
        ("create", -2, create),
        ("get", 4, |context, arguments, out| {
            let snapshot = held(context, arguments)?;
            if snapshot.get_with(arguments.get(3), |value| out.bulk(value)).is_none() {
                out.null();
            }
            Ok(Outcome::Done)
        }),
        ("range", -5, |context, arguments, _| {
            let snapshot = held(context, arguments)?;
            let mut walk = range_of(arguments, 3)?;
            walk.snapshot = Some(snapshot);
            Ok(Outcome::Walk(Box::new(walk)))
        }),
        ("drop", 3, |context, arguments, out| {
            let ended = context.state.snapshots.end(id(arguments)?);
            out.integer(i64::from(ended.is_some()));
            Ok(ended.flatten().map_or(Outcome::Done, Outcome::Freeing))
        }),
        ("list", 2, list),
        ("help", 2, |_, _, out| {
            help(
                out,
                "ORDNA.SNAPSHOT",
                &[
                    "CREATE [EX <seconds>]",
                    "DROP <id>",
                    "GET <id> <key>",
                    "LIST",
                    "RANGE <id> <start> <end> [REV] [LIMIT <n>] [KEYS]",
                ],
            )
        }),
    ];
    subcommand("ordna.snapshot", COMMANDS, context, arguments, out)
}

fn id(arguments: Arguments<'_>) -> std::result::Result<u64, String> {
    let id = number(arguments.get(2)).and_then(|id| u64::try_from(id).ok());
    id.ok_or_else(|| NOT_AN_INTEGER.to_owned())
}

fn held(context: &Context<'_>, arguments: Arguments<'_>) -> std::result::Result<Snapshot, String> {
    let id = id(arguments)?;
    context.state.snapshots.get(id).ok_or_else(|| {
        format!("ERR there is no snapshot {id}: it was dropped, or its time is over")
    })
}

/// `CREATE [EX seconds]`: without a time it stays until it is dropped.
fn create(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let lease = match arguments.len() {
        2 => None,
        4 if arguments.get(2).eq_ignore_ascii_case(b"ex") => {
            let seconds = number(arguments.get(3)).ok_or(NOT_AN_INTEGER)?;
            let seconds = u64::try_from(seconds).ok().filter(|seconds| *seconds > 0);
            let seconds =
                seconds.ok_or("ERR invalid expire time in 'ordna.snapshot|create' command")?;
            Some(Duration::from_secs(seconds))
        }
        _ => return Err(SYNTAX.to_owned()),
    };
    let id = context.state.snapshots.keep(context.keys.snapshot(), lease);
    let id = id.ok_or_else(|| {
        format!("ERR there are {MOST} snapshots already; drop one with ORDNA.SNAPSHOT DROP")
    })?;
    out.integer(id as i64);
    Ok(Outcome::Done)
}

/// Each with its number, its age and what is left of its time, in milliseconds (-1: no end).
fn list(context: &mut Context<'_>, _: Arguments<'_>, out: &mut Replies) -> Result {
    let list = context.state.snapshots.list();
    let milliseconds = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
    out.array(list.len());
    for snapshot in list {
        out.map(3);
        for (field, value) in [
            ("id", snapshot.id as i64),
            ("age", milliseconds(snapshot.age)),
            ("ttl", snapshot.lease.map_or(-1, milliseconds)),
        ] {
            out.bulk(field.as_bytes());
            out.integer(value);
        }
    }
    Ok(Outcome::Done)
}
