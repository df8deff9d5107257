//! `ORDNA.SNAPSHOT`: a state that does not change, for several commands to read.

use std::time::Duration;

use super::ordered::range_of;
use super::sorted_set_ranges::Query;
use crate::execution::command::{
    Command, CommandOutcome, Context, READ_ALL, READ_SLOW, Result, SERVER_INFO, help,
};
use crate::execution::long_scan::LongScan;
use crate::keyspace::named_snapshots::MOST;
use crate::keyspace::snapshot::KeyspaceSnapshot;
use crate::keyspace::sorted_set::SortedSet;
use crate::keyspace::stored_value;
use crate::keyspace::value_kind::ValueKind;
use crate::wire::error::CommandError;
use crate::wire::reply::Replies;
use crate::wire::request::{Arguments, number};

// CREATE excludes other commands, so that no write is in progress when the snapshot is taken.
pub const COMMANDS: &[Command] = &[Command::container(
    "ordna.snapshot",
    "A stable state that several commands read: CREATE, GET, PEXPIRETIME, RANGE, ZRANGE, DROP, LIST.",
    SNAPSHOT,
)];

const SNAPSHOT: &[Command] = &[
    Command::sub("ordna.snapshot|create", -2, READ_ALL, create).exclusive(),
    Command::sub("ordna.snapshot|get", 4, READ_SLOW, |context, arguments, out| {
        let snapshot = held(context, arguments)?;
        // As in ORDNA.RANGE, the value of a hash is null.
        let found = snapshot.get_with(arguments.get(3), |stored| {
            stored_value::string(stored).map(|value| out.bulk(value))
        });
        if found.flatten().is_none() {
            out.null();
        }
        Ok(CommandOutcome::Done)
    })
    .keys((3, 3, 1)),
    Command::sub("ordna.snapshot|pexpiretime", -4, READ_SLOW, |context, arguments, out| {
        let snapshot = held(context, arguments)?;
        out.array(arguments.len() - 3);
        for key in arguments.iter_from(3) {
            let deadline = snapshot.expires_at(key);
            out.integer(deadline.map_or(-2, |deadline| deadline.map_or(-1, u64::cast_signed)));
        }
        Ok(CommandOutcome::Done)
    })
    .keys((3, -1, 1)),
    Command::sub("ordna.snapshot|range", -5, READ_ALL, |context, arguments, _| {
        let snapshot = held(context, arguments)?;
        let mut scan = range_of(arguments, 3)?;
        scan.snapshot = Some(snapshot);
        Ok(CommandOutcome::LongScan(Box::new(scan)))
    })
    .range(|arguments| range_of(arguments, 3).ok().map(LongScan::into_bounds)),
    Command::sub("ordna.snapshot|zrange", -6, READ_SLOW, |context, arguments, out| {
        let snapshot = held(context, arguments)?;
        let query = Query::read(arguments, 4, None, None, false)?;
        let key = arguments.get(3);
        let read = |read: &mut dyn FnMut(SortedSet<'_, '_>)| {
            snapshot.read_collection(key, ValueKind::ZSet, |body| read(SortedSet(body)))
        };
        query.reply(context, read, out)
    })
    .keys((3, 3, 1)),
    Command::sub("ordna.snapshot|drop", 3, READ_ALL, |context, arguments, out| {
        let ended = context.state.snapshots.end(id(arguments)?);
        out.integer(i64::from(ended.is_some()));
        Ok(ended.flatten().map_or(CommandOutcome::Done, CommandOutcome::Freeing))
    }),
    Command::sub("ordna.snapshot|list", 2, READ_ALL, list),
    Command::sub("ordna.snapshot|help", 2, SERVER_INFO, |_, _, out| {
        help(
            out,
            "ORDNA.SNAPSHOT",
            &[
                "CREATE [EX <seconds>] [KEEP]",
                "    Keep the present state. It ends with this connection unless KEEP is said.",
                "DROP <id>",
                "GET <id> <key>",
                "LIST",
                "PEXPIRETIME <id> <key> [<key> ...]",
                "    The deadlines of keys, in milliseconds since 1970; -1: none, -2: no such key.",
                "RANGE <id> <start> <end> [REV] [LIMIT [<offset>] <count>] [KEYS|WITHVALUES]",
                "ZRANGE <id> <key> <start> <stop> [BYSCORE|BYLEX] [REV] [LIMIT <offset> <count>] [WITHSCORES]",
            ],
        )
    }),
];

/// Parses the id after the name of a subcommand.
pub fn id(arguments: Arguments<'_>) -> Result<u64> {
    let id = number(arguments.get(2)).and_then(|id| u64::try_from(id).ok());
    id.ok_or(CommandError::NotAnInteger)
}

fn held(context: &Context<'_>, arguments: Arguments<'_>) -> Result<KeyspaceSnapshot> {
    let id = id(arguments)?;
    context.state.snapshots.get(id).ok_or_else(|| {
        format!("ERR there is no snapshot {id}: it was dropped, or its time is over").into()
    })
}

/// `CREATE [EX seconds] [KEEP]`: the snapshot ends when its time is over and, without KEEP, with
/// the connection.
fn create(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let (mut lease, mut keep) = (None, false);
    let mut options = arguments.iter_from(2);
    while let Some(option) = options.next() {
        match option.to_ascii_lowercase().as_slice() {
            b"keep" => keep = true,
            b"ex" => {
                let seconds = number(options.next().ok_or(CommandError::Syntax)?)
                    .ok_or(CommandError::NotAnInteger)?;
                let seconds = u64::try_from(seconds).ok().filter(|seconds| *seconds > 0);
                let seconds =
                    seconds.ok_or("ERR invalid expire time in 'ordna.snapshot|create' command")?;
                lease = Some(Duration::from_secs(seconds));
            }
            _ => return Err(CommandError::Syntax),
        }
    }
    let snapshot = KeyspaceSnapshot::of(&context.keys);
    let owner = (!keep).then_some(context.session.client.id);
    let id = context.state.snapshots.keep(snapshot, lease, owner);
    let id = id.ok_or_else(|| {
        format!("ERR there are {MOST} snapshots already; drop one with ORDNA.SNAPSHOT DROP")
    })?;
    out.integer(id as i64);
    Ok(CommandOutcome::Done)
}

/// Lists for each snapshot: number, age, remaining time in milliseconds (-1 if there is no end),
/// and the client with which it ends (-1 if there is none).
fn list(context: &mut Context<'_>, _: Arguments<'_>, out: &mut Replies) -> Result {
    let list = context.state.snapshots.list();
    let milliseconds = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
    out.array(list.len());
    for snapshot in list {
        out.map(4);
        for (field, value) in [
            ("id", snapshot.id as i64),
            ("age", milliseconds(snapshot.age)),
            ("ttl", snapshot.lease.map_or(-1, milliseconds)),
            ("client", snapshot.owner.map_or(-1, |client| client as i64)),
        ] {
            out.bulk(field.as_bytes());
            out.integer(value);
        }
    }
    Ok(CommandOutcome::Done)
}
