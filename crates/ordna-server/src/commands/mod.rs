//! The commands: a table, and one module per family.

mod admin;
mod expiry;
mod keys;
mod ordered;
mod snapshots;
mod strings;
mod transactions;

use crate::connection::Session;
use crate::reply::Replies;
use crate::request::Arguments;
use crate::state::{Freeing, Keys, State};
use crate::walk::Walk;

pub use transactions::{Transaction, Watched};

/// What a command works with.
pub struct Context<'a> {
    pub state: &'a State,
    pub session: &'a mut Session,
    pub keys: Keys<'a>,
}

impl Context<'_> {
    /// Tells those who watch these keys that they were written, and so may be new. Every command
    /// that has written a key which was absent must call this: it still holds the keyspace, so no
    /// `EXEC` comes between.
    fn report<'k>(&self, written: impl IntoIterator<Item = &'k [u8]>) {
        self.state.watches.written(written.into_iter());
    }
}

/// What remains to be done after a command was executed.
pub enum Outcome {
    /// Nothing: the reply is written.
    Done,
    /// Close the connection behind the reply.
    Close,
    /// A walk; its reply is written at its end.
    Walk(Box<Walk>),
    /// The reply is written; it is sent once memory is freed that counts against the limit.
    Freeing(Freeing),
}

/// How a command ends: an error is a reply like any other.
type Result = std::result::Result<Outcome, String>;

type Execute = fn(&mut Context<'_>, Arguments<'_>, &mut Replies) -> Result;

/// A line of the table.
pub struct Command {
    /// Lower case.
    pub name: &'static str,
    /// As Redis counts: the name included; negative: at least so many.
    pub arity: i64,
    pub flags: &'static [&'static str],
    /// Positions of the first and last key (negative: from the end), and the step between keys.
    pub keys: (i64, i64, i64),
    pub summary: &'static str,
    /// Must be one step for every other client.
    alone: bool,
    /// Is executed at once inside MULTI too.
    at_once: bool,
    execute: Execute,
}

impl Command {
    const fn alone(self) -> Self {
        Self { alone: true, ..self }
    }

    const fn at_once(self) -> Self {
        Self { at_once: true, ..self }
    }
}

const fn command(
    name: &'static str,
    arity: i64,
    flags: &'static [&'static str],
    keys: (i64, i64, i64),
    summary: &'static str,
    execute: Execute,
) -> Command {
    Command { name, arity, flags, keys, summary, alone: false, at_once: false, execute }
}

const READ: &[&str] = &["readonly", "fast"];
const WALK: &[&str] = &["readonly"];
/// Redis' flag of commands that may need memory.
const NEEDS_MEMORY: &str = "denyoom";
const WRITE: &[&str] = &["write", NEEDS_MEMORY, "fast"];
const CHANGE: &[&str] = &["write", "fast"];
const REMOVE: &[&str] = &["write"];
const ADMIN: &[&str] = &["loading", "stale", "fast"];
const BEFORE_AUTH: &[&str] = &["loading", "stale", "fast", "no_auth"];
const ONE: (i64, i64, i64) = (1, 1, 1);
const ALL: (i64, i64, i64) = (1, -1, 1);
const PAIRS: (i64, i64, i64) = (1, -1, 2);
const NONE: (i64, i64, i64) = (0, 0, 0);

/// All commands, sorted by name.
pub static TABLE: &[Command] = &[
    command(
        "append",
        3,
        WRITE,
        ONE,
        "Appends to the value of a key, creating it if it is absent.",
        strings::append,
    ),
    command("auth", -2, BEFORE_AUTH, NONE, "Authenticates the connection.", admin::auth),
    command(
        "client",
        -2,
        ADMIN,
        NONE,
        "Tells of connections: ID, GETNAME, SETNAME, SETINFO, LIST.",
        admin::client,
    ),
    command(
        "command",
        -1,
        ADMIN,
        NONE,
        "Tells of commands: COUNT, INFO, DOCS, LIST.",
        admin::command,
    ),
    command("config", -2, ADMIN, NONE, "Reads and sets configuration: GET, SET.", admin::config),
    command("dbsize", 1, READ, NONE, "Returns the number of keys.", keys::dbsize),
    command("decr", 2, WRITE, ONE, "Decrements the integer value of a key by one.", strings::decr),
    command(
        "decrby",
        3,
        WRITE,
        ONE,
        "Decrements the integer value of a key by a number.",
        strings::decrby,
    ),
    command("del", -2, REMOVE, ALL, "Removes keys; returns how many there were.", keys::del),
    command(
        "discard",
        1,
        ADMIN,
        NONE,
        "Forgets what was queued since MULTI.",
        transactions::discard,
    )
    .at_once(),
    command("echo", 2, ADMIN, NONE, "Returns its argument.", admin::echo),
    command(
        "exec",
        1,
        ADMIN,
        NONE,
        "Executes what was queued since MULTI, as one step.",
        transactions::exec,
    )
    .alone()
    .at_once(),
    command("exists", -2, READ, ALL, "Counts how many of the keys exist.", keys::exists),
    command(
        "expire",
        -3,
        CHANGE,
        ONE,
        "Has a key expire in some seconds; NX, XX, GT and LT as in Redis.",
        expiry::expire,
    ),
    command(
        "expireat",
        -3,
        CHANGE,
        ONE,
        "Has a key expire at a second since 1970.",
        expiry::expireat,
    ),
    command(
        "expiretime",
        2,
        READ,
        ONE,
        "Returns the second since 1970 at which a key expires.",
        expiry::expiretime,
    ),
    command("flushall", -1, REMOVE, NONE, "Removes all keys.", keys::flush).alone(),
    command("flushdb", -1, REMOVE, NONE, "Removes all keys.", keys::flush).alone(),
    command("get", 2, READ, ONE, "Returns the value of a key.", strings::get),
    command(
        "getdel",
        2,
        CHANGE,
        ONE,
        "Returns the value of a key and removes it.",
        strings::getdel,
    ),
    command(
        "getex",
        -2,
        CHANGE,
        ONE,
        "Returns the value of a key and sets or lifts its expiry.",
        expiry::getex,
    ),
    command(
        "getset",
        3,
        WRITE,
        ONE,
        "Sets the value of a key and returns the old one.",
        strings::getset,
    ),
    command(
        "hello",
        -1,
        BEFORE_AUTH,
        NONE,
        "Chooses the protocol version, and may authenticate.",
        admin::hello,
    ),
    command("incr", 2, WRITE, ONE, "Increments the integer value of a key by one.", strings::incr),
    command(
        "incrby",
        3,
        WRITE,
        ONE,
        "Increments the integer value of a key by a number.",
        strings::incrby,
    ),
    command("info", -1, ADMIN, NONE, "Returns the state of the server, by sections.", admin::info),
    command("keys", 2, WALK, NONE, "Returns the keys that match a pattern, in order.", keys::keys),
    command("mget", -2, READ, ALL, "Returns the values of several keys.", strings::mget),
    command("mset", -3, WRITE, PAIRS, "Sets several keys as one step.", strings::mset).alone(),
    command(
        "msetnx",
        -3,
        WRITE,
        PAIRS,
        "Sets several keys as one step, if none of them exists.",
        strings::msetnx,
    )
    .alone(),
    command("multi", 1, ADMIN, NONE, "Begins to queue commands for EXEC.", transactions::multi)
        .at_once(),
    command(
        "ordna.ceil",
        2,
        READ,
        ONE,
        "Returns the first key that is not below the one given, and its value.",
        ordered::ceil,
    ),
    command("ordna.count", 3, WALK, NONE, "Counts the keys between two bounds.", ordered::count),
    command(
        "ordna.delrange",
        3,
        REMOVE,
        NONE,
        "Removes the keys between two bounds; returns how many there were.",
        ordered::delrange,
    ),
    command("ordna.first", 1, READ, NONE, "Returns the first key and its value.", ordered::first),
    command(
        "ordna.floor",
        2,
        READ,
        ONE,
        "Returns the last key that is not above the one given, and its value.",
        ordered::floor,
    ),
    command("ordna.last", 1, READ, NONE, "Returns the last key and its value.", ordered::last),
    command(
        "ordna.prefix",
        -2,
        WALK,
        NONE,
        "Returns the keys with a prefix and their values, in order.",
        ordered::prefix,
    ),
    command(
        "ordna.range",
        -3,
        WALK,
        NONE,
        "Returns the keys between two bounds and their values, in order.",
        ordered::range,
    ),
    command(
        "ordna.snapshot",
        -2,
        READ,
        NONE,
        "A stable state that several commands read: CREATE, GET, RANGE, DROP, LIST.",
        snapshots::snapshot,
    ),
    command("persist", 2, CHANGE, ONE, "Lifts the expiry of a key.", expiry::persist),
    command("pexpire", -3, CHANGE, ONE, "Has a key expire in some milliseconds.", expiry::pexpire),
    command(
        "pexpireat",
        -3,
        CHANGE,
        ONE,
        "Has a key expire at a millisecond since 1970.",
        expiry::pexpireat,
    ),
    command(
        "pexpiretime",
        2,
        READ,
        ONE,
        "Returns the millisecond since 1970 at which a key expires.",
        expiry::pexpiretime,
    ),
    command("ping", -1, ADMIN, NONE, "Answers PONG, or its argument.", admin::ping),
    command(
        "psetex",
        4,
        WRITE,
        ONE,
        "Sets the value of a key, to expire in some milliseconds.",
        strings::psetex,
    ),
    command("pttl", 2, READ, ONE, "Returns the milliseconds until a key expires.", expiry::pttl),
    command("quit", -1, BEFORE_AUTH, NONE, "Closes the connection.", admin::quit).at_once(),
    command("reset", 1, BEFORE_AUTH, NONE, "Resets the connection.", admin::reset).at_once(),
    command(
        "scan",
        -2,
        WALK,
        NONE,
        "Walks over the keys, in order, a cursor at a time.",
        keys::scan,
    ),
    command(
        "select",
        2,
        ADMIN,
        NONE,
        "Chooses the database; there is one, number 0.",
        admin::select,
    ),
    command(
        "set",
        -3,
        WRITE,
        ONE,
        "Sets the value of a key; NX, XX, GET, EX, PX, EXAT, PXAT and KEEPTTL as in Redis.",
        strings::set,
    ),
    command(
        "setex",
        4,
        WRITE,
        ONE,
        "Sets the value of a key, to expire in some seconds.",
        strings::setex,
    ),
    command("setnx", 3, WRITE, ONE, "Sets the value of a key if it is absent.", strings::setnx),
    command("strlen", 2, READ, ONE, "Returns the length of the value of a key.", strings::strlen),
    command("ttl", 2, READ, ONE, "Returns the seconds until a key expires.", expiry::ttl),
    command(
        "type",
        2,
        READ,
        ONE,
        "Returns the type of the value of a key: string, or none.",
        keys::type_of,
    ),
    command("unlink", -2, REMOVE, ALL, "Removes keys; returns how many there were.", keys::del),
    command("unwatch", 1, ADMIN, NONE, "Forgets all watched keys.", transactions::unwatch),
    command(
        "watch",
        -2,
        ADMIN,
        ALL,
        "Has EXEC do nothing if one of the keys is changed before it.",
        transactions::watch,
    )
    .at_once(),
];

/// The table's line of a name in any case.
pub fn find(name: &[u8]) -> Option<&'static Command> {
    const LONGEST: usize = 16;
    let mut lower = [0; LONGEST];
    let lower = lower.get_mut(..name.len())?;
    lower.copy_from_slice(name);
    lower.make_ascii_lowercase();
    let at = TABLE.binary_search_by(|command| command.name.as_bytes().cmp(lower)).ok()?;
    Some(&TABLE[at])
}

/// Whether so many arguments, the name included, suit the command.
fn suits(arity: i64, arguments: usize) -> bool {
    let arguments = arguments as i64;
    if arity < 0 { arguments >= -arity } else { arguments == arity }
}

/// Executes one command and writes its reply, or says what remains to be done for it.
pub fn execute(
    state: &State,
    session: &mut Session,
    arguments: Arguments<'_>,
    out: &mut Replies,
) -> Outcome {
    let result = match permitted(session, arguments) {
        Ok(command) => match session.transaction.as_mut().filter(|_| !command.at_once) {
            Some(transaction) => transaction.queue(command, arguments, state).map(|()| {
                out.simple("QUEUED");
                Outcome::Done
            }),
            None => {
                let keys = if command.alone { state.keys_alone() } else { state.keys() };
                (command.execute)(&mut Context { state, session, keys }, arguments, out)
            }
        },
        Err(error) if arguments.get(0).eq_ignore_ascii_case(b"exec") => {
            session.transaction = None;
            session.watched.clear();
            let reason = error.strip_prefix("ERR ").unwrap_or(&error);
            Err(format!("EXECABORT Transaction discarded because of: {reason}"))
        }
        Err(error) => {
            if let Some(transaction) = &mut session.transaction {
                transaction.broken = true;
            }
            Err(error)
        }
    };
    result.unwrap_or_else(|error| {
        out.error(&error);
        Outcome::Done
    })
}

/// The command that the arguments call, if the client may call it so.
fn permitted(
    session: &Session,
    arguments: Arguments<'_>,
) -> std::result::Result<&'static Command, String> {
    match find(arguments.get(0)) {
        None => Err(unknown(arguments)),
        Some(command) if !suits(command.arity, arguments.len()) => Err(wrong_arity(command.name)),
        Some(command) if !session.authenticated && !command.flags.contains(&"no_auth") => {
            Err("NOAUTH Authentication required.".to_owned())
        }
        Some(command) => Ok(command),
    }
}

fn unknown(arguments: Arguments<'_>) -> String {
    // Redis shows at most 128 bytes of the name, and of the arguments together.
    const SHOWN: usize = 128;
    let show = |bytes: &[u8], limit: usize| {
        String::from_utf8_lossy(&bytes[..bytes.len().min(limit)]).into_owned()
    };
    let name = show(arguments.get(0), SHOWN);
    let mut shown = String::new();
    for argument in arguments.iter_from(1) {
        if shown.len() >= SHOWN {
            break;
        }
        shown.push_str(&format!("'{}' ", show(argument, SHOWN - shown.len())));
    }
    format!("ERR unknown command '{name}', with args beginning with: {shown}")
}

fn wrong_arity(name: &str) -> String {
    format!("ERR wrong number of arguments for '{name}' command")
}

const SYNTAX: &str = "ERR syntax error";
const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";

/// The table of a command's subcommands: name, arity with both names counted, what it does.
type Subcommands = [(&'static str, i64, Execute)];

fn subcommand(
    of: &str,
    table: &Subcommands,
    context: &mut Context<'_>,
    arguments: Arguments<'_>,
    out: &mut Replies,
) -> Result {
    let name = arguments.get(1);
    let Some((name, arity, execute)) =
        table.iter().find(|(known, ..)| name.eq_ignore_ascii_case(known.as_bytes()))
    else {
        let shown = String::from_utf8_lossy(&name[..name.len().min(128)]);
        let upper = of.to_ascii_uppercase();
        return Err(format!("ERR unknown subcommand '{shown}'. Try {upper} HELP."));
    };
    if !suits(*arity, arguments.len()) {
        return Err(wrong_arity(&format!("{of}|{name}")));
    }
    execute(context, arguments, out)
}

/// An error of the index, in the form of a reply.
fn refused(error: ordna::Error) -> String {
    match error {
        ordna::Error::MemoryLimit { .. } => {
            "OOM command not allowed when used memory > 'maxmemory'.".to_owned()
        }
        other => format!("ERR {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_so_that_it_can_be_searched() {
        assert!(TABLE.is_sorted_by(|a, b| a.name < b.name));
        assert!(TABLE.iter().all(|command| find(command.name.as_bytes()).is_some()));
        assert!(find(b"GeT").is_some() && find(b"").is_none() && find(&[b'x'; 99]).is_none());
    }
}
