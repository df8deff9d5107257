//! Commands on the server: MEMORY, SHUTDOWN, TIME, …

use super::info::human;
use crate::execution::backups::NO_DIRECTORY;
use crate::execution::command::{
    ADMIN, Command, CommandOutcome, Context, READ, READ_SLOW, Result, SERVER_INFO, help, ok,
};
use crate::state::command_spec::{CommandFlags, KeyAccess, KeyPositions, NO_KEY};
use crate::statistics::process;
use crate::wire::error::CommandError;
use crate::wire::reply::Replies;
use crate::wire::request::{Arguments, number};

const SHUTDOWN: CommandFlags =
    CommandFlags::NO_MULTI.or(CommandFlags::ALLOW_BUSY).or(CommandFlags::WAITS_FOR_SCRIPT);

const SECOND: KeyPositions = (2, 2, 1);

pub const COMMANDS: &[Command] = &[
    Command::container("memory", "Where memory goes: USAGE, STATS, DOCTOR.", MEMORY),
    Command::new("shutdown", -1, ADMIN, NO_KEY, "Stops the server.", shutdown)
        .without_keys()
        .with(SHUTDOWN),
    Command::new(
        "time",
        1,
        SERVER_INFO.or(CommandFlags::FAST),
        NO_KEY,
        "Returns the server's Unix time in seconds and microseconds.",
        time,
    ),
    Command::new("lolwut", -1, READ, NO_KEY, "Returns the version of the server.", |_, _, out| {
        out.text(concat!("Ordna ver. ", env!("CARGO_PKG_VERSION"), "\n"));
        Ok(CommandOutcome::Done)
    }),
];

/// Estimated bytes of an entry in addition to key and value: leaf, record, deadline.
const OVERHEAD: usize = 48;

const MEMORY: &[Command] = &[
    Command::sub("memory|usage", -3, READ_SLOW, |context, arguments, out| {
        match arguments.len() {
            3 => {}
            5 if arguments.get(3).eq_ignore_ascii_case(b"samples") => {
                let samples = number(arguments.get(4)).ok_or(CommandError::NotAnInteger)?;
                if samples < 0 {
                    return Err(CommandError::Syntax);
                }
            }
            _ => return Err(CommandError::Syntax),
        }
        let key = arguments.get(2);
        match context.keys.bytes_of(key, OVERHEAD) {
            Some(bytes) => out.count(bytes),
            None => out.null(),
        }
        Ok(CommandOutcome::Done)
    })
    .keys(SECOND)
    .access(KeyAccess::METADATA),
    Command::sub("memory|stats", 2, CommandFlags::NONE, |context, _, out| {
        let state = context.state;
        let counts = state.with_flushed(context.keys.statistics());
        let clients = state.clients.memory();
        let fields = [
            ("peak.allocated", state.peak_memory.load(std::sync::atomic::Ordering::Relaxed)),
            ("total.allocated", counts.bytes + clients),
            ("clients.slaves", 0),
            ("clients.normal", clients),
            ("aof.buffer", 0),
            ("keys.count", counts.items),
            ("keys.bytes-per-key", counts.bytes / counts.items.max(1)),
            ("dataset.bytes", counts.bytes),
            ("versions.dead", counts.dead),
            ("allocator.resident", process::resident_bytes() as usize),
        ];
        out.map(fields.len());
        for (field, value) in fields {
            out.bulk(field.as_bytes());
            out.count(value);
        }
        Ok(CommandOutcome::Done)
    }),
    Command::sub("memory|doctor", 2, CommandFlags::NONE, |context, _, out| {
        let text = doctor(context);
        out.text(&text);
        Ok(CommandOutcome::Done)
    }),
    Command::sub("memory|malloc-stats", 2, CommandFlags::NONE, |_, _, out| {
        out.text("Ordna has no statistics of its allocator; INFO memory describes its memory use");
        Ok(CommandOutcome::Done)
    }),
    Command::sub("memory|purge", 2, CommandFlags::NONE, |context, _, out| {
        context.keys.collect_garbage();
        ok(out)
    }),
    Command::sub("memory|help", 2, SERVER_INFO, |_, _, out| {
        help(
            out,
            "MEMORY",
            &[
                "DOCTOR",
                "    Return memory problems reports.",
                "MALLOC-STATS",
                "    Return internal statistics of the allocator.",
                "PURGE",
                "    Collect what no snapshot sees any more.",
                "STATS",
                "    Return information about the memory usage of the server.",
                "USAGE <key> [SAMPLES <count>]",
                "    Return memory in bytes used by <key> and its value, about.",
            ],
        )
    }),
];

/// Returns advice about the memory for operators.
fn doctor(context: &Context<'_>) -> String {
    /// Age in seconds from which on a snapshot counts as old.
    const OLD: u64 = 600;
    let state = context.state;
    let counts = state.with_flushed(context.keys.statistics());
    let mut found = Vec::new();
    if counts.dead > counts.items / 2 && counts.dead > 1000 {
        let (dead, items) = (counts.dead, counts.items);
        found.push(format!("Snapshots keep {dead} old versions in addition to {items} keys."));
    }
    let oldest = counts.snapshots.iter().map(|snapshot| snapshot.age.as_secs()).max().unwrap_or(0);
    if oldest > OLD {
        found.push(format!(
            "A snapshot is {oldest} seconds old; ORDNA.SNAPSHOT LIST and INFO snapshots describe it."
        ));
    }
    let limit = state.settings.max_memory.size();
    if limit > 0 && counts.bytes > limit / 10 * 9 {
        found.push(format!("Keys and values take {} of {}.", human(counts.bytes), human(limit)));
    }
    let clients = state.clients.memory();
    let most = state.settings.clients_memory.size();
    if most > 0 && clients > most / 2 {
        found.push(format!("Clients' buffers take {} of {}.", human(clients), human(most)));
    }
    match found.is_empty() {
        true => "Nothing looks wrong with the memory.".to_owned(),
        false => found.join("\n"),
    }
}

fn shutdown(context: &mut Context<'_>, arguments: Arguments<'_>, _: &mut Replies) -> Result {
    let state = context.state;
    let mut saves = true;
    for option in arguments.iter_from(1) {
        match option.to_ascii_lowercase().as_slice() {
            b"nosave" => saves = false,
            b"now" | b"force" => {}
            // The log contains everything, and is synced before the server ends.
            b"save" if state.data_directory.is_some() => {}
            b"save" => return Err(NO_DIRECTORY.into()),
            b"abort" => return Err("ERR No shutdown in progress.".into()),
            _ => return Err(CommandError::Syntax),
        }
    }
    if state.is_busy() {
        if saves {
            return Err(CommandError::Busy);
        }
        state.scripts.cut();
    }
    tracing::info!(peer = %context.session.client.peer, "SHUTDOWN");
    state.shutdown.notify_one();
    Ok(CommandOutcome::Close)
}

fn time(_: &mut Context<'_>, _: Arguments<'_>, out: &mut Replies) -> Result {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now = now.unwrap_or_default();
    out.array(2);
    out.bulk(now.as_secs().to_string().as_bytes());
    out.bulk(now.subsec_micros().to_string().as_bytes());
    Ok(CommandOutcome::Done)
}
