//! `ORDNA.BACKUP`: reads the files of the newest backup over the protocol.
//!
//! A client requests one part of a file at a time, so neither side needs memory for more than that,
//! and no other client waits.

use super::snapshots::id;
use crate::execution::backups::NO_DIRECTORY;
use crate::execution::command::{
    ADMIN, Command, CommandOutcome, Context, Result, SERVER_INFO, Task, help, ok,
};
use crate::keyspace::Keyspace;
use crate::state::ServerState;
use crate::state::open_backups::{MOST_PART, OpenBackup};
use crate::wire::error::CommandError;
use crate::wire::reply::Replies;
use crate::wire::request::{Arguments, number};

pub const COMMANDS: &[Command] = &[Command::container(
    "ordna.backup",
    "Reads the files of the newest backup: OPEN, READ, CLOSE.",
    BACKUP,
)];

const BACKUP: &[Command] = &[
    Command::sub("ordna.backup|open", 2, ADMIN, |_, arguments, _| {
        Ok(CommandOutcome::Task(Task::new(arguments, open)))
    }),
    Command::sub("ordna.backup|read", 6, ADMIN, |_, arguments, _| {
        Ok(CommandOutcome::Task(Task::new(arguments, read)))
    }),
    Command::sub("ordna.backup|close", 3, ADMIN, |context, arguments, out| {
        close(context, arguments, out)
    }),
    Command::sub("ordna.backup|help", 2, SERVER_INFO, |_, _, out| {
        help(
            out,
            "ORDNA.BACKUP",
            &[
                "CLOSE <id>",
                "OPEN",
                "    Open the files of the newest backup. Return an id, and name and bytes of each.",
                "READ <id> <file> <offset> <count>",
                "    Return bytes of a file, by its position in the reply to OPEN, from 0.",
            ],
        )
    }),
];

fn open(
    state: &ServerState,
    held: Option<&Keyspace>,
    _: Arguments<'_>,
    out: &mut Replies,
) -> Result<()> {
    let told =
        held.map_or_else(|| state.keys().store().durability(), |keys| keys.store().durability());
    let told = told.ok_or(NO_DIRECTORY)?;
    let loaded = told.recovery.backup;
    let path = told.last.map(|(summary, _)| summary.path).or(loaded);
    let path = path.ok_or("ERR there is no backup yet; BGSAVE writes one")?;
    let backup = OpenBackup::open(&path).map_err(|error| {
        CommandError::from(format!("ERR cannot open {}: {error}", path.display()))
    })?;
    let files: Vec<_> = backup.files.iter().map(|file| (file.name.clone(), file.len)).collect();
    let id = state.open_backups.add(backup)?;
    out.array(1 + files.len());
    out.integer(i64::try_from(id).unwrap_or(i64::MAX));
    for (name, len) in files {
        out.array(2);
        out.bulk(name.as_bytes());
        out.integer(i64::try_from(len).unwrap_or(i64::MAX));
    }
    Ok(())
}

fn read(
    state: &ServerState,
    _: Option<&Keyspace>,
    arguments: Arguments<'_>,
    out: &mut Replies,
) -> Result<()> {
    let numbers: Vec<u64> = arguments
        .iter_from(3)
        .map(|text| number(text).and_then(|number| u64::try_from(number).ok()))
        .collect::<Option<_>>()
        .ok_or(CommandError::NotAnInteger)?;
    let [file, offset, count] = numbers[..] else { return Err(CommandError::Syntax) };
    let count = usize::try_from(count).ok().filter(|count| (1..=MOST_PART).contains(count));
    let count = count.ok_or_else(|| format!("ERR count must be between 1 and {MOST_PART}"))?;
    let part = state.open_backups.read(id(arguments)?, file, offset, count)?;
    out.bulk(&part);
    Ok(())
}

fn close(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    context.state.open_backups.close(id(arguments)?)?;
    ok(out)
}
