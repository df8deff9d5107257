//! Commands on the server: CONFIG, MEMORY, SHUTDOWN, TIME, …

use ordna::OrderedIndex;
use ordna::durability::SyncPolicy;

use super::info::human;
use crate::execution::backups::NO_DIRECTORY;
use crate::execution::command::{
    ADMIN, CONNECTION, Command, CommandOutcome, Context, READ, READ_SLOW, Result, SERVER_INFO,
    help, ok,
};
use crate::keyspace::glob::Pattern;
use crate::state::ServerState;
use crate::state::command_spec::{CommandFlags, KeyAccess, KeyPositions, NO_KEY};
use crate::statistics::process;
use crate::wire::error::CommandError;
use crate::wire::reply::Replies;
use crate::wire::request::{Arguments, number};

const SECOND: KeyPositions = (2, 2, 1);

pub const COMMANDS: &[Command] = &[
    Command::container("config", "Reads and sets configuration: GET, SET.", CONFIG),
    Command::container("memory", "Where memory goes: USAGE, STATS, DOCTOR.", MEMORY),
    Command::new("shutdown", -1, ADMIN, NO_KEY, "Stops the server.", shutdown)
        .with(CommandFlags::NO_MULTI.or(CommandFlags::ALLOW_BUSY)),
    Command::new("time", 1, SERVER_INFO.or(CommandFlags::FAST), NO_KEY, "Returns the time.", time),
    Command::new("role", 1, CONNECTION, NO_KEY, "Answers that this is a master.", |_, _, out| {
        out.array(3);
        out.bulk(b"master");
        out.integer(0);
        out.array(0);
        Ok(CommandOutcome::Done)
    })
    .also_in(&["admin", "dangerous"]),
    Command::new("lolwut", -1, READ, NO_KEY, "Returns the version.", |_, _, out| {
        out.text(concat!("Ordna ver. ", env!("CARGO_PKG_VERSION"), "\n"));
        Ok(CommandOutcome::Done)
    }),
];

/// The configuration that clients ask for: each as it is, and none that has no effect here.
fn settings(state: &ServerState) -> Vec<(&'static str, String)> {
    let config = &state.config;
    let data = state.data_directory.as_ref().map(|persistence| &persistence.data);
    let policy = match data.map(|data| data.log) {
        Some(SyncPolicy::Always) => "always",
        Some(SyncPolicy::Never) => "no",
        _ => "everysec",
    };
    let mut all = vec![
        ("appendonly", if data.is_some() { "yes" } else { "no" }.to_owned()),
        ("appendfsync", policy.to_owned()),
        ("dir", data.map_or(String::new(), |data| data.dir.display().to_string())),
        ("bind", state.address.ip().to_string()),
        ("collectors", config.collectors.to_string()),
        ("databases", "1".to_owned()),
        ("maxmemory", config.max_memory.unwrap_or(0).to_string()),
        ("maxmemory-policy", "noeviction".to_owned()),
        ("port", state.address.port().to_string()),
        ("proto-max-bulk-len", ordna::value::MAX_LEN.to_string()),
        ("requirepass", state.acl.password()),
        ("save", String::new()),
    ];
    for setting in state.settings.all() {
        let value = match setting.name {
            // Redis' form: class, hard limit, soft limit, seconds.
            "client-output-buffer-limit" => {
                format!("normal {} 0 0 slave 0 0 0 pubsub 0 0 0", setting.get())
            }
            _ => setting.get().to_string(),
        };
        all.push((setting.name, value));
    }
    all.sort();
    all
}

const CONFIG: &[Command] = &[
    Command::sub("config|get", -3, ADMIN, |context, arguments, out| {
        let (mut wanted, mut others) = (Vec::new(), settings(context.state));
        for text in arguments.iter_from(2) {
            // One pattern at a time is compiled, and none if all settings are found.
            if others.is_empty() {
                break;
            }
            let pattern = Pattern::new(&text.to_ascii_lowercase());
            wanted.extend(others.extract_if(.., |(name, _)| pattern.matches(name.as_bytes())));
        }
        wanted.sort();
        out.map(wanted.len());
        for (name, value) in wanted {
            out.bulk(name.as_bytes());
            out.bulk(value.as_bytes());
        }
        Ok(CommandOutcome::Done)
    }),
    Command::sub("config|set", -4, ADMIN, config_set).with(CommandFlags::SECRET),
    Command::sub("config|resetstat", 2, ADMIN, |context, _, out| {
        context.state.stats.reset();
        context.state.errors.reset();
        ok(out)
    }),
    Command::sub("config|rewrite", 2, ADMIN, |_, _, _| {
        Err("ERR The server is running without a config file".into())
    }),
    Command::sub("config|help", 2, SERVER_INFO, |_, _, out| {
        help(
            out,
            "CONFIG",
            &[
                "GET <pattern> [<pattern> ...]",
                "RESETSTAT",
                "SET <setting> <value> [<setting> <value> ...]",
            ],
        )
    }),
];

fn config_set(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let state = context.state;
    if !arguments.len().is_multiple_of(2) {
        return Err(CommandError::Syntax);
    }
    let failed = |name: &str, why: &str| {
        format!("ERR CONFIG SET failed (possibly related to argument '{name}') - {why}")
    };
    let pairs = arguments.iter_from(2).step_by(2).zip(arguments.iter_from(3).step_by(2));
    let mut values = Vec::new();
    // All of them are read before the first is set.
    for (name, value) in pairs {
        let shown = String::from_utf8_lossy(name).into_owned();
        if name.eq_ignore_ascii_case(b"requirepass") {
            let password = std::str::from_utf8(value);
            let password = password.map_err(|_| failed(&shown, "the password must be UTF-8"))?;
            state.acl.check_password(password).map_err(|why| failed(&shown, &why.to_string()))?;
            values.push((None, 0, password));
            continue;
        }
        let Some(setting) = state.settings.find(&shown) else {
            let known = settings(state).iter().any(|(known, _)| known.eq_ignore_ascii_case(&shown));
            return Err(match known {
                true => failed(&shown, "can't set immutable config"),
                false => {
                    format!("ERR Unknown option or number of arguments for CONFIG SET - '{shown}'")
                }
            }
            .into());
        };
        let words = String::from_utf8_lossy(value);
        let mut words = words.split_whitespace();
        let value = match (setting.name, words.next(), words.next()) {
            ("client-output-buffer-limit", Some("normal"), Some(hard)) => hard.as_bytes(),
            _ => value,
        };
        let value = match (setting.name, value.strip_suffix(b"%").and_then(number)) {
            // As in Redis, a share of maxmemory; without that there is no limit.
            ("maxmemory-clients", Some(percent @ 0..=100)) => {
                let all = i64::try_from(state.config.max_memory.unwrap_or(0)).unwrap_or(i64::MAX);
                all / 100 * percent + all % 100 * percent / 100
            }
            _ => setting.parse(value).map_err(|why| failed(&shown, &why))?,
        };
        values.push((Some(setting), value, ""));
    }
    for (setting, value, password) in values {
        match setting {
            Some(setting) => setting.set(value),
            None => state.acl.set_password(password).map_err(|why| format!("ERR {why}"))?,
        }
    }
    ok(out)
}

/// Estimated bytes of an entry beyond key and value: leaf, record, deadline.
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
        match context.keys.get_with(key, <[u8]>::len) {
            Some(value) => out.count(key.len() + value + OVERHEAD),
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
        out.text("Ordna shows no statistics of its allocator; INFO memory tells of its memory");
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

/// Advice to operators about the memory.
fn doctor(context: &Context<'_>) -> String {
    /// Age in seconds from which a snapshot is old.
    const OLD: u64 = 600;
    let state = context.state;
    let counts = state.with_flushed(context.keys.statistics());
    let mut found = Vec::new();
    if counts.dead > counts.items / 2 && counts.dead > 1000 {
        let (dead, items) = (counts.dead, counts.items);
        found.push(format!("Snapshots keep {dead} old versions beside {items} keys."));
    }
    let oldest = counts.snapshots.iter().map(|snapshot| snapshot.age.as_secs()).max().unwrap_or(0);
    if oldest > OLD {
        found.push(format!(
            "A snapshot is {oldest} seconds old; ORDNA.SNAPSHOT LIST and INFO snapshots tell which."
        ));
    }
    let limit = state.config.max_memory.unwrap_or(0);
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
    for option in arguments.iter_from(1) {
        match option.to_ascii_lowercase().as_slice() {
            b"nosave" | b"now" | b"force" => {}
            // The log has everything, and is synced before the server ends.
            b"save" if context.state.data_directory.is_some() => {}
            b"save" => return Err(NO_DIRECTORY.into()),
            b"abort" => return Err("ERR No shutdown in progress.".into()),
            _ => return Err(CommandError::Syntax),
        }
    }
    tracing::info!(peer = %context.session.client.peer, "SHUTDOWN");
    context.state.shutdown.notify_one();
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
