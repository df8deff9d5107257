//! Commands on the connection and the server.

use std::fmt::Write;
use std::sync::atomic::Ordering;

use super::{
    Command, Context, NOT_AN_INTEGER, Outcome, Result, SYNTAX, Subcommands, TABLE, find,
    subcommand, wrong_arity,
};
use crate::clients::Told;
use crate::glob;
use crate::reply::Replies;
use crate::request::{Arguments, number};
use crate::state::State;

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The Redis whose behaviour the commands follow; clients decide by it what they may send.
const REDIS_VERSION: &str = "7.0.15";

pub fn ping(_: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    match arguments.len() {
        1 => out.simple("PONG"),
        2 => out.bulk(arguments.get(1)),
        _ => return Err(wrong_arity("ping")),
    }
    Ok(Outcome::Done)
}

pub fn echo(_: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    out.bulk(arguments.get(1));
    Ok(Outcome::Done)
}

pub fn quit(_: &mut Context<'_>, _: Arguments<'_>, out: &mut Replies) -> Result {
    out.simple("OK");
    Ok(Outcome::Close)
}

pub fn reset(context: &mut Context<'_>, _: Arguments<'_>, out: &mut Replies) -> Result {
    *context.session.client.told() = Told::default();
    context.session.authenticated = context.state.password().is_none();
    context.session.transaction = None;
    context.session.watched.clear();
    out.resp3 = false;
    out.simple("RESET");
    Ok(Outcome::Done)
}

pub fn select(_: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let database = number(arguments.get(1)).ok_or(NOT_AN_INTEGER)?;
    if i32::try_from(database).is_err() {
        let (least, most) = (i32::MIN, i32::MAX);
        return Err(format!("ERR value is out of range, value must between {least} and {most}"));
    }
    if database != 0 {
        return Err("ERR DB index is out of range".to_owned());
    }
    out.simple("OK");
    Ok(Outcome::Done)
}

/// Whether user and password are right. Takes as long for any wrong password.
fn is_welcome(password: &str, user: &[u8], said: &[u8]) -> bool {
    let mut different = password.len() ^ said.len();
    for (at, byte) in said.iter().enumerate() {
        different |= usize::from(byte ^ password.as_bytes().get(at).unwrap_or(&0));
    }
    user == b"default" && different == 0
}

const WRONG_PASSWORD: &str = "WRONGPASS invalid username-password pair or user is disabled.";

pub fn auth(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let (user, said) = match arguments.len() {
        2 => (b"default".as_slice(), arguments.get(1)),
        3 => (arguments.get(1), arguments.get(2)),
        _ => return Err(SYNTAX.to_owned()),
    };
    match context.state.password() {
        None if arguments.len() == 2 => {
            return Err("ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?".to_owned());
        }
        // Without a password the default user is welcome with any.
        None if user == b"default" => {}
        Some(password) if is_welcome(&password, user, said) => {}
        _ => return Err(WRONG_PASSWORD.to_owned()),
    }
    context.session.authenticated = true;
    out.simple("OK");
    Ok(Outcome::Done)
}

fn is_name(name: &[u8]) -> bool {
    name.iter().all(|byte| (b'!'..=b'~').contains(byte))
}

const BAD_NAME: &str = "ERR Client names cannot contain spaces, newlines or special characters.";

pub fn hello(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let mut resp3 = out.resp3;
    if arguments.len() > 1 {
        resp3 = match number(arguments.get(1)) {
            None => return Err("ERR Protocol version is not an integer or out of range".to_owned()),
            Some(2) => false,
            Some(3) => true,
            Some(_) => return Err("NOPROTO unsupported protocol version".to_owned()),
        };
    }
    let (mut at, mut name) = (2, None);
    while at < arguments.len() {
        let option = arguments.get(at);
        if option.eq_ignore_ascii_case(b"auth") && at + 2 < arguments.len() {
            let (user, said) = (arguments.get(at + 1), arguments.get(at + 2));
            let welcome = match context.state.password() {
                None => user == b"default",
                Some(password) => is_welcome(&password, user, said),
            };
            if !welcome {
                return Err(WRONG_PASSWORD.to_owned());
            }
            context.session.authenticated = true;
            at += 3;
        } else if option.eq_ignore_ascii_case(b"setname") && at + 1 < arguments.len() {
            name = Some(arguments.get(at + 1));
            if !is_name(arguments.get(at + 1)) {
                return Err(BAD_NAME.to_owned());
            }
            at += 2;
        } else {
            let shown = String::from_utf8_lossy(option).into_owned();
            return Err(format!("ERR Syntax error in HELLO option '{shown}'"));
        }
    }
    if !context.session.authenticated {
        return Err("NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the same time".to_owned());
    }
    out.resp3 = resp3;
    {
        let mut told = context.session.client.told();
        told.resp3 = resp3;
        if let Some(name) = name {
            told.name = name.to_vec();
        }
    }
    out.map(7);
    for (field, value) in [
        ("server", "redis"),
        ("version", REDIS_VERSION),
        ("mode", "standalone"),
        ("role", "master"),
    ] {
        out.bulk(field.as_bytes());
        out.bulk(value.as_bytes());
    }
    out.bulk(b"proto");
    out.integer(if resp3 { 3 } else { 2 });
    out.bulk(b"id");
    out.integer(context.session.client.id as i64);
    out.bulk(b"modules");
    out.array(0);
    Ok(Outcome::Done)
}

pub fn client(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    const COMMANDS: &Subcommands = &[
        ("id", 2, |context, _, out| {
            out.integer(context.session.client.id as i64);
            Ok(Outcome::Done)
        }),
        ("getname", 2, |context, _, out| {
            let name = context.session.client.told().name.clone();
            out.bulk_or_null(Some(name.as_slice()).filter(|name| !name.is_empty()));
            Ok(Outcome::Done)
        }),
        ("setname", 3, |context, arguments, out| {
            if !is_name(arguments.get(2)) {
                return Err(BAD_NAME.to_owned());
            }
            context.session.client.told().name = arguments.get(2).to_vec();
            out.simple("OK");
            Ok(Outcome::Done)
        }),
        ("setinfo", 4, |context, arguments, out| {
            let (field, value) = (arguments.get(2), arguments.get(3));
            if !is_name(value) {
                return Err("ERR lib-name cannot contain spaces, newlines or special characters."
                    .to_owned());
            }
            let mut told = context.session.client.told();
            if field.eq_ignore_ascii_case(b"lib-name") {
                told.library = value.to_vec();
            } else if field.eq_ignore_ascii_case(b"lib-ver") {
                told.library_version = value.to_vec();
            } else {
                let shown = String::from_utf8_lossy(field).into_owned();
                return Err(format!("ERR Unrecognized option '{shown}'"));
            }
            out.simple("OK");
            Ok(Outcome::Done)
        }),
        ("list", -2, |context, arguments, out| {
            if arguments.len() > 2 {
                return Err(SYNTAX.to_owned());
            }
            out.text(&client_list(context.state));
            Ok(Outcome::Done)
        }),
        ("help", 2, |_, _, out| {
            help(
                out,
                "CLIENT",
                &["GETNAME", "ID", "LIST", "SETINFO <LIB-NAME|LIB-VER> <value>", "SETNAME <name>"],
            )
        }),
    ];
    subcommand("client", COMMANDS, context, arguments, out)
}

pub fn help(out: &mut Replies, command: &str, subcommands: &[&str]) -> Result {
    out.array(subcommands.len() + 2);
    out.simple(&format!("{command} <subcommand> [<arg> ...]. Subcommands are:"));
    subcommands.iter().for_each(|line| out.simple(line));
    out.simple("HELP");
    Ok(Outcome::Done)
}

fn client_list(state: &State) -> String {
    let mut list = String::new();
    for client in state.clients.all() {
        let told = client.told().clone();
        let name = String::from_utf8_lossy(&told.name).into_owned();
        let library = String::from_utf8_lossy(&told.library).into_owned();
        let version = String::from_utf8_lossy(&told.library_version).into_owned();
        let (id, peer, age) = (client.id, client.peer, client.since.elapsed().as_secs());
        let resp = if told.resp3 { 3 } else { 2 };
        // Writing to a String cannot fail.
        let _ = writeln!(
            list,
            "id={id} addr={peer} laddr={} name={name} age={age} db=0 resp={resp} lib-name={library} lib-ver={version}",
            state.address
        );
    }
    list
}

pub fn command(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    const COMMANDS: &Subcommands = &[
        ("count", 2, |_, _, out| {
            out.count(TABLE.len());
            Ok(Outcome::Done)
        }),
        ("info", -2, |_, arguments, out| {
            if arguments.len() == 2 {
                return all_infos(out);
            }
            out.array(arguments.len() - 2);
            for name in arguments.iter_from(2) {
                match find(name) {
                    Some(command) => command_info(command, out),
                    None => out.null(),
                }
            }
            Ok(Outcome::Done)
        }),
        ("docs", -2, |_, arguments, out| {
            let known: Vec<&Command> = if arguments.len() == 2 {
                TABLE.iter().collect()
            } else {
                arguments.iter_from(2).filter_map(find).collect()
            };
            out.map(known.len());
            for command in known {
                out.bulk(command.name.as_bytes());
                out.map(2);
                out.bulk(b"summary");
                out.bulk(command.summary.as_bytes());
                out.bulk(b"group");
                out.bulk(if command.name.starts_with("ordna.") { b"ordna" } else { b"generic" });
            }
            Ok(Outcome::Done)
        }),
        ("list", -2, |_, arguments, out| {
            let mut names: Vec<&str> = TABLE.iter().map(|command| command.name).collect();
            if arguments.len() == 5
                && arguments.get(2).eq_ignore_ascii_case(b"filterby")
                && arguments.get(3).eq_ignore_ascii_case(b"pattern")
            {
                names.retain(|name| glob::matches(arguments.get(4), name.as_bytes()));
            } else if arguments.len() > 2 {
                return Err(SYNTAX.to_owned());
            }
            out.array(names.len());
            names.iter().for_each(|name| out.bulk(name.as_bytes()));
            Ok(Outcome::Done)
        }),
        ("help", 2, |_, _, out| {
            help(
                out,
                "COMMAND",
                &[
                    "COUNT",
                    "DOCS [<command> ...]",
                    "INFO [<command> ...]",
                    "LIST [FILTERBY PATTERN <pattern>]",
                ],
            )
        }),
    ];
    if arguments.len() == 1 {
        return all_infos(out);
    }
    subcommand("command", COMMANDS, context, arguments, out)
}

fn all_infos(out: &mut Replies) -> Result {
    out.array(TABLE.len());
    TABLE.iter().for_each(|command| command_info(command, out));
    Ok(Outcome::Done)
}

/// One line of COMMAND INFO, in the ten parts that Redis 7 gives.
fn command_info(command: &Command, out: &mut Replies) {
    let (first, last, step) = command.keys;
    out.array(10);
    out.bulk(command.name.as_bytes());
    out.integer(command.arity);
    out.set(command.flags.len());
    command.flags.iter().for_each(|flag| out.simple(flag));
    out.integer(first);
    out.integer(last);
    out.integer(step);
    // ACL categories, tips, key specifications, subcommands: none.
    out.set(0);
    out.array(0);
    out.array(0);
    out.array(0);
}

/// The configuration that clients ask for: each as it is, and none that has no effect here.
fn settings(state: &State) -> Vec<(&'static str, String)> {
    vec![
        ("appendonly", "no".to_owned()),
        ("bind", state.address.ip().to_string()),
        ("collectors", state.config.collectors.to_string()),
        ("databases", "1".to_owned()),
        ("maxclients", state.config.max_clients.to_string()),
        ("maxmemory", state.config.max_memory.unwrap_or(0).to_string()),
        ("port", state.address.port().to_string()),
        ("proto-max-bulk-len", ordna::value::MAX_LEN.to_string()),
        ("requirepass", state.password().unwrap_or_default()),
        ("save", String::new()),
        ("timeout", "0".to_owned()),
    ]
}

pub fn config(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    const COMMANDS: &Subcommands = &[
        ("get", -3, |context, arguments, out| {
            let mut wanted = settings(context.state);
            wanted.retain(|(name, _)| {
                let asked =
                    |pattern: &[u8]| glob::matches(&pattern.to_ascii_lowercase(), name.as_bytes());
                arguments.iter_from(2).any(asked)
            });
            out.map(wanted.len());
            for (name, value) in wanted {
                out.bulk(name.as_bytes());
                out.bulk(value.as_bytes());
            }
            Ok(Outcome::Done)
        }),
        ("set", -4, |context, arguments, out| {
            let (name, value) = (arguments.get(2), arguments.get(3));
            let shown = String::from_utf8_lossy(name).into_owned();
            if arguments.len() != 4 {
                return Err(wrong_arity("config|set"));
            }
            if !name.eq_ignore_ascii_case(b"requirepass") {
                let known = settings(context.state).iter().any(|(known, _)| *known == shown);
                return Err(if known {
                    format!(
                        "ERR CONFIG SET failed (possibly related to argument '{shown}') - can't set immutable config"
                    )
                } else {
                    format!("ERR Unknown option or number of arguments for CONFIG SET - '{shown}'")
                });
            }
            let Ok(password) = std::str::from_utf8(value) else {
                return Err("ERR the password must be UTF-8".to_owned());
            };
            if password.is_empty() && !context.state.address.ip().is_loopback() {
                return Err("ERR others can reach this server: it needs a password".to_owned());
            }
            context.state.set_password(password);
            out.simple("OK");
            Ok(Outcome::Done)
        }),
        ("help", 2, |_, _, out| {
            help(out, "CONFIG", &["GET <pattern> [<pattern> ...]", "SET requirepass <password>"])
        }),
    ];
    subcommand("config", COMMANDS, context, arguments, out)
}

pub fn info(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let state = context.state;
    let wanted = |section: &str| {
        arguments.len() == 1
            || arguments.iter_from(1).any(|asked| {
                [section, "all", "default", "everything"]
                    .iter()
                    .any(|name| asked.eq_ignore_ascii_case(name.as_bytes()))
            })
    };
    let mut counts = context.keys.statistics();
    let (keys, expires) = (counts.items, counts.expiring.0);
    for flushed in state.flushed() {
        counts.bytes += flushed.bytes;
        counts.versions += flushed.versions;
        counts.dead += flushed.dead;
        counts.walks += flushed.walks;
        counts.snapshots.extend(flushed.snapshots);
    }
    let used = counts.bytes;
    let limit = state.config.max_memory.unwrap_or(0);
    let (scans, leases_ended) = state.cursors.leases();
    let held = state.snapshots.list();
    let (walks, walk_age) = state.walks.count();
    let oldest = counts.snapshots.iter().map(|snapshot| snapshot.age.as_secs()).max().unwrap_or(0);
    let uptime = state.started.elapsed().as_secs();
    let (port, process) = (state.address.port(), std::process::id());
    let (clients, most) = (state.clients.len(), state.config.max_clients);
    let resident = resident_bytes();
    let connections = state.connections.load(Ordering::Relaxed);
    let (refused, commands) = (state.refused.load(Ordering::Relaxed), state.commands.sum());
    let mut sections = vec![
        (
            "Server",
            format!(
                "redis_version:{REDIS_VERSION}\r\nordna_version:{VERSION}\r\nredis_mode:standalone\r\nprocess_id:{process}\r\ntcp_port:{port}\r\nuptime_in_seconds:{uptime}\r\n"
            ),
        ),
        ("Clients", format!("connected_clients:{clients}\r\nmaxclients:{most}\r\n")),
        (
            "Memory",
            format!("used_memory:{used}\r\nused_memory_rss:{resident}\r\nmaxmemory:{limit}\r\n"),
        ),
        ("Persistence", "loading:0\r\nrdb_bgsave_in_progress:0\r\naof_enabled:0\r\n".to_owned()),
        (
            "Stats",
            format!(
                "total_connections_received:{connections}\r\ntotal_commands_processed:{commands}\r\nrejected_connections:{refused}\r\n"
            ),
        ),
        (
            "Snapshots",
            format!(
                "snapshots_held:{}\r\nscans_under_way:{scans}\r\nscan_leases_ended:{leases_ended}\r\nsnapshots_alive:{}\r\noldest_snapshot_seconds:{oldest}\r\nwalks_under_way:{walks}\r\noldest_walk_seconds:{}\r\nwalks_reading:{}\r\nversions:{}\r\ndead_versions:{}\r\ncollected_versions:{}\r\n",
                held.len(),
                counts.snapshots.len(),
                walk_age.as_secs(),
                counts.walks,
                counts.versions,
                counts.dead,
                counts.collected
            ),
        ),
        ("Replication", "role:master\r\nconnected_slaves:0\r\n".to_owned()),
        (
            "Keyspace",
            if keys > 0 {
                format!("db0:keys={keys},expires={expires},avg_ttl=0\r\n")
            } else {
                String::new()
            },
        ),
    ];
    sections.retain(|(name, _)| wanted(name));
    let text: Vec<String> =
        sections.into_iter().map(|(name, lines)| format!("# {name}\r\n{lines}")).collect();
    out.text(&text.join("\r\n"));
    Ok(Outcome::Done)
}

/// Memory that the system gives the process; 0 where it does not say.
fn resident_bytes() -> u64 {
    const PAGE: u64 = 4096;
    let pages = std::fs::read_to_string("/proc/self/statm").ok();
    let pages = pages.and_then(|text| text.split_whitespace().nth(1)?.parse::<u64>().ok());
    pages.map_or(0, |pages| pages * PAGE)
}
