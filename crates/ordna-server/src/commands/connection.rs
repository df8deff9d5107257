//! Commands on the connection.

use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::replication::is_replica;
use crate::execution::command::{
    ADMIN, BEFORE_AUTH, Command, CommandOutcome, Context, Result, SERVER_INFO, SESSION, help, ok,
};
use crate::execution::guesses::{
    LoginError, MOST_GUESSES, check_password, delay_of_guess, too_many, wrong_password,
};
use crate::state::ServerState;
use crate::state::blocked::Answer;
use crate::state::clients::{Client, ClientInfo};
use crate::state::command_spec::{CommandFlags, NO_KEY};
use crate::state::inbox::Kind;
use crate::state::session::ReplyMode;
use crate::wire::error::CommandError;
use crate::wire::reply::Replies;
use crate::wire::request::{Arguments, number};

/// The version of Redis whose behaviour the commands follow. Clients use it to decide what they may
/// send.
pub const REDIS_VERSION: &str = "7.0.15";

const PING: CommandFlags = CommandFlags::FAST.or(CommandFlags::WHILE_SUBSCRIBED);
/// Flags of commands that end the connection or its state.
const LEAVING: CommandFlags = CommandFlags::NOT_QUEUED.or(CommandFlags::WHILE_SUBSCRIBED);
const FAST_INFO: CommandFlags = SERVER_INFO.or(CommandFlags::FAST);

pub const COMMANDS: &[Command] = &[
    Command::new("ping", -1, PING, NO_KEY, "Returns PONG, or the argument.", ping),
    Command::new("echo", 2, FAST_INFO, NO_KEY, "Returns the argument.", |_, arguments, out| {
        out.bulk(arguments.get(1));
        Ok(CommandOutcome::Done)
    }),
    Command::new("quit", -1, BEFORE_AUTH, NO_KEY, "Closes the connection.", |_, _, out| {
        out.simple("OK");
        Ok(CommandOutcome::Close)
    })
    .without_keys()
    .with(LEAVING),
    Command::new("reset", 1, BEFORE_AUTH, NO_KEY, "Resets the connection.", reset)
        .without_keys()
        .with(LEAVING),
    Command::new(
        "select",
        2,
        FAST_INFO,
        NO_KEY,
        "Selects a database. Only number 0 exists.",
        select,
    ),
    Command::new("auth", -2, BEFORE_AUTH, NO_KEY, "Authenticates the connection.", auth)
        .without_keys()
        .with(CommandFlags::SECRET.or(CommandFlags::IGNORES_PAUSE)),
    Command::new(
        "hello",
        -1,
        BEFORE_AUTH,
        NO_KEY,
        "Selects the protocol version. Optionally authenticates and names the connection.",
        hello,
    )
    .without_keys()
    .with(CommandFlags::SECRET.or(CommandFlags::IGNORES_PAUSE)),
    Command::container(
        "client",
        "Lists connections and ends them: ID, INFO, LIST, KILL, PAUSE, REPLY, …",
        CLIENT,
    ),
];

/// Maximum length of a client's name in bytes.
const LONGEST_NAME: usize = 1024;

fn ping(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    if context.session.only_subscribes(out) && arguments.len() <= 2 {
        out.array(2);
        out.bulk(b"pong");
        out.bulk(arguments.get(1));
        return Ok(CommandOutcome::Done);
    }
    match arguments.len() {
        1 => out.simple("PONG"),
        2 => out.bulk(arguments.get(1)),
        _ => return Err(CommandError::wrong_arity("ping")),
    }
    Ok(CommandOutcome::Done)
}

fn reset(context: &mut Context<'_>, _: Arguments<'_>, out: &mut Replies) -> Result {
    let session = &mut *context.session;
    session.end_transaction();
    {
        // The library's name and version stay the same.
        let mut info = session.client.info();
        let (library, library_version) =
            (std::mem::take(&mut info.library), std::mem::take(&mut info.library_version));
        *info = ClientInfo { queued: -1, library, library_version, ..ClientInfo::default() };
    }
    session.become_user(context.state.acl.welcome());
    session.reply_mode = ReplyMode::On;
    session.monitor = None;
    context.state.channels.leave(&session.client);
    session.receives = false;
    session.client.is_monitor.store(false, Ordering::Relaxed);
    session.client.no_evict.store(false, Ordering::Relaxed);
    out.resp3 = false;
    out.simple("RESET");
    Ok(CommandOutcome::Done)
}

/// Default number of databases of a Redis server.
const REDIS_DATABASES: i64 = 16;

/// The error for a database that a Redis server would have. With several databases, each scan of
/// the ordered keyspace would need a prefix in every key.
const ONE_DATABASE: &str = "ERR DB index is out of range: Ordna has one database, number 0. Give keys a prefix, or start another server";

/// Checks that a database exists; there is only number 0.
///
/// # Errors
/// The text is not a number, or is the number of another database.
pub fn check_database(text: &[u8]) -> Result<()> {
    let database = number(text).ok_or(CommandError::NotAnInteger)?;
    if i32::try_from(database).is_err() {
        let (least, most) = (i32::MIN, i32::MAX);
        return Err(
            format!("ERR value is out of range, value must between {least} and {most}").into()
        );
    }
    if database != 0 {
        return Err("ERR DB index is out of range".into());
    }
    Ok(())
}

fn select(_: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    if number(arguments.get(1)).is_some_and(|index| (1..REDIS_DATABASES).contains(&index)) {
        return Err(ONE_DATABASE.into());
    }
    check_database(arguments.get(1))?;
    ok(out)
}

/// Makes the user the session's user if the password is right.
fn log_in(
    context: &mut Context<'_>,
    name: &[u8],
    password: &[u8],
) -> std::result::Result<(), LoginError> {
    let state = context.state;
    // A transaction may continue after the last wrong password; its connection is closed
    // afterwards.
    if context.session.guesses >= MOST_GUESSES {
        return Err(LoginError::Wrong);
    }
    let user = check_password(state, context.session.client.peer, name, password);
    if matches!(user, Err(LoginError::Wrong)) {
        context.session.guesses += 1;
        let client = &context.session.client;
        let described = format!("id={} addr={}", client.id, client.peer);
        wrong_password(state, name, client.peer, "AUTH", described);
    }
    context.session.become_user(Some(user?));
    Ok(())
}

/// Returns the consequence of a wrong password: a reply that is later each time, and finally the
/// end of the connection.
fn after_guess(context: &Context<'_>, error: LoginError, out: &mut Replies) -> CommandOutcome {
    if let LoginError::TooMany(wait) = error {
        out.error(format_args!("ERR {}", too_many(wait)));
        return CommandOutcome::Delayed(wait);
    }
    out.error(CommandError::WrongPassword);
    match delay_of_guess(context.session.guesses) {
        Some(delay) => CommandOutcome::Delayed(delay),
        None => CommandOutcome::Close,
    }
}

fn auth(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let (user, said) = match arguments.len() {
        2 => (b"default".as_slice(), arguments.get(1)),
        3 => (arguments.get(1), arguments.get(2)),
        _ => return Err(CommandError::Syntax),
    };
    if arguments.len() == 2 && context.state.acl.welcome().is_some() {
        return Err("ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?".into());
    }
    if let Err(error) = log_in(context, user, said) {
        return Ok(after_guess(context, error, out));
    }
    ok(out)
}

fn is_name(name: &[u8]) -> bool {
    name.iter().all(|byte| (b'!'..=b'~').contains(byte))
}

const BAD_NAME: &str = "ERR Client names cannot contain spaces, newlines or special characters.";

fn check_name(name: &[u8]) -> Result<()> {
    if !is_name(name) {
        return Err(BAD_NAME.into());
    }
    if name.len() > LONGEST_NAME {
        return Err(format!("ERR Client names have at most {LONGEST_NAME} bytes.").into());
    }
    Ok(())
}

fn hello(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let mut resp3 = out.resp3;
    if arguments.len() > 1 {
        resp3 = match number(arguments.get(1)) {
            None => return Err("ERR Protocol version is not an integer or out of range".into()),
            Some(2) => false,
            Some(3) => true,
            Some(_) => return Err("NOPROTO unsupported protocol version".into()),
        };
    }
    let (mut at, mut name, mut login) = (2, None, None);
    while at < arguments.len() {
        let option = arguments.get(at);
        if option.eq_ignore_ascii_case(b"auth") && at + 2 < arguments.len() {
            login = Some((arguments.get(at + 1), arguments.get(at + 2)));
            at += 3;
        } else if option.eq_ignore_ascii_case(b"setname") && at + 1 < arguments.len() {
            name = Some(arguments.get(at + 1));
            check_name(arguments.get(at + 1))?;
            at += 2;
        } else {
            let shown = String::from_utf8_lossy(option).into_owned();
            return Err(format!("ERR Syntax error in HELLO option '{shown}'").into());
        }
    }
    if let Some((user, said)) = login
        && let Err(error) = log_in(context, user, said)
    {
        return Ok(after_guess(context, error, out));
    }
    if context.session.user.is_none() {
        return Err("NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the same time".into());
    }
    out.resp3 = resp3;
    {
        let mut told = context.session.client.info();
        told.resp3 = resp3;
        if let Some(name) = name {
            told.name = name.to_vec();
        }
    }
    out.map(7);
    for (field, value) in [("server", "redis"), ("version", REDIS_VERSION)] {
        out.bulk(field.as_bytes());
        out.bulk(value.as_bytes());
    }
    out.bulk(b"proto");
    out.integer(if resp3 { 3 } else { 2 });
    out.bulk(b"id");
    out.integer(context.session.client.id as i64);
    let role = if is_replica(context.state) { "replica" } else { "master" };
    for (field, value) in [("mode", "standalone"), ("role", role)] {
        out.bulk(field.as_bytes());
        out.bulk(value.as_bytes());
    }
    out.bulk(b"modules");
    out.array(0);
    Ok(CommandOutcome::Done)
}

const CLIENT: &[Command] = &[
    Command::sub("client|id", 2, SESSION, |context, _, out| {
        out.integer(context.session.client.id as i64);
        Ok(CommandOutcome::Done)
    })
    .with(CommandFlags::IGNORES_PAUSE),
    Command::sub("client|getname", 2, SESSION, |context, _, out| {
        let name = context.session.client.info().name.clone();
        out.bulk_or_null(Some(name.as_slice()).filter(|name| !name.is_empty()));
        Ok(CommandOutcome::Done)
    })
    .with(CommandFlags::IGNORES_PAUSE),
    Command::sub("client|setname", 3, SESSION, |context, arguments, out| {
        check_name(arguments.get(2))?;
        context.session.client.info().name = arguments.get(2).to_vec();
        ok(out)
    })
    .with(CommandFlags::IGNORES_PAUSE),
    Command::sub("client|setinfo", 4, SESSION, set_info).with(CommandFlags::IGNORES_PAUSE),
    Command::sub("client|info", 2, SESSION, |context, _, out| {
        let line = line_of(&context.session.client, context.state);
        out.text(&line);
        Ok(CommandOutcome::Done)
    })
    .with(CommandFlags::IGNORES_PAUSE),
    Command::sub("client|list", -2, ADMIN, list).with(CommandFlags::IGNORES_PAUSE),
    // Exclusive, so that no command of the closed clients is executed after the reply.
    Command::sub("client|kill", -3, ADMIN, kill).with(CommandFlags::IGNORES_PAUSE).exclusive(),
    Command::sub("client|pause", -3, ADMIN, |context, arguments, out| {
        let time = number(arguments.get(2));
        let time = time.ok_or("ERR timeout is not an integer or out of range")?;
        let time = u64::try_from(time).map_err(|_| "ERR timeout is negative")?;
        let only_writes = match arguments.len() {
            3 => false,
            4 if arguments.get(3).eq_ignore_ascii_case(b"write") => true,
            4 if arguments.get(3).eq_ignore_ascii_case(b"all") => false,
            _ => return Err("ERR CLIENT PAUSE mode must be WRITE or ALL".into()),
        };
        context.state.pause(Duration::from_millis(time), only_writes);
        ok(out)
    })
    .with(CommandFlags::IGNORES_PAUSE)
    // So that no command that the pause delays is executed after the reply.
    .exclusive(),
    Command::sub("client|unpause", 2, ADMIN, |context, _, out| {
        context.state.unpause();
        ok(out)
    })
    .with(CommandFlags::IGNORES_PAUSE),
    Command::sub("client|reply", 3, SESSION, |context, arguments, out| {
        let mode = match arguments.get(2).to_ascii_lowercase().as_slice() {
            b"on" => ReplyMode::On,
            b"off" => ReplyMode::Off,
            b"skip" if context.session.reply_mode == ReplyMode::Off => ReplyMode::Off,
            b"skip" => ReplyMode::SkipNext,
            _ => return Err(CommandError::Syntax),
        };
        context.session.reply_mode = mode;
        ok(out)
    })
    .with(CommandFlags::IGNORES_PAUSE),
    Command::sub("client|no-evict", 3, ADMIN, |context, arguments, out| {
        let on = switch(arguments.get(2))?;
        context.session.client.no_evict.store(on, Ordering::Relaxed);
        ok(out)
    })
    .with(CommandFlags::IGNORES_PAUSE),
    Command::sub("client|no-touch", 3, SESSION, |_, arguments, out| {
        switch(arguments.get(2))?;
        ok(out)
    })
    .with(CommandFlags::IGNORES_PAUSE),
    Command::sub("client|tracking", -3, SESSION, |_, arguments, out| match arguments.get(2) {
        off if off.eq_ignore_ascii_case(b"off") => ok(out),
        _ => Err(
            "ERR Ordna does not notify clients of changed keys: CLIENT TRACKING is not supported"
                .into(),
        ),
    })
    .with(CommandFlags::IGNORES_PAUSE),
    Command::sub("client|trackinginfo", 2, SESSION, |_, _, out| {
        out.map(3);
        out.bulk(b"flags");
        out.set(1);
        out.bulk(b"off");
        out.bulk(b"redirect");
        out.integer(-1);
        out.bulk(b"prefixes");
        out.array(0);
        Ok(CommandOutcome::Done)
    })
    .with(CommandFlags::IGNORES_PAUSE),
    Command::sub("client|getredir", 2, SESSION, |_, _, out| {
        out.integer(-1);
        Ok(CommandOutcome::Done)
    })
    .with(CommandFlags::IGNORES_PAUSE),
    Command::sub("client|unblock", -3, ADMIN, unblock).with(CommandFlags::IGNORES_PAUSE),
    Command::sub("client|help", 2, SERVER_INFO, |_, _, out| {
        help(
            out,
            "CLIENT",
            &[
                "GETNAME",
                "ID",
                "INFO",
                "KILL <ip:port>",
                "KILL <ID|TYPE|USER|ADDR|LADDR|SKIPME> <value> [<option> <value> ...]",
                "LIST [TYPE <type>] [ID <id> [<id> ...]]",
                "NO-EVICT <ON|OFF>",
                "PAUSE <milliseconds> [WRITE|ALL]",
                "REPLY <ON|OFF|SKIP>",
                "SETINFO <LIB-NAME|LIB-VER> <value>",
                "SETNAME <name>",
                "UNBLOCK <clientid> [TIMEOUT|ERROR]",
                "UNPAUSE",
            ],
        )
    })
    .with(CommandFlags::IGNORES_PAUSE),
];

/// `CLIENT UNBLOCK id [TIMEOUT | ERROR]`
fn unblock(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let is_error = match arguments.len() {
        3 => false,
        4 if arguments.get(3).eq_ignore_ascii_case(b"timeout") => false,
        4 if arguments.get(3).eq_ignore_ascii_case(b"error") => true,
        4 => return Err("ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR".into()),
        _ => return Err(CommandError::subcommand_syntax(arguments)),
    };
    let id = number(arguments.get(2)).ok_or(CommandError::NotAnInteger)?;
    let waiter = u64::try_from(id).ok().and_then(|id| context.state.blocked.leave(id));
    out.count(usize::from(waiter.is_some()));
    if let Some(waiter) = waiter {
        let answer = match is_error {
            true => Answer::error("UNBLOCKED client unblocked via CLIENT UNBLOCK"),
            false => Answer::nothing(waiter.resp3),
        };
        waiter.answer(answer);
    }
    Ok(CommandOutcome::Done)
}

fn switch(word: &[u8]) -> Result<bool> {
    match word.to_ascii_lowercase().as_slice() {
        b"on" => Ok(true),
        b"off" => Ok(false),
        _ => Err(CommandError::Syntax),
    }
}

fn set_info(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let (field, value) = (arguments.get(2), arguments.get(3));
    if !is_name(value) || value.len() > LONGEST_NAME {
        return Err("ERR lib-name cannot contain spaces, newlines or special characters.".into());
    }
    let mut told = context.session.client.info();
    if field.eq_ignore_ascii_case(b"lib-name") {
        told.library = value.to_vec();
    } else if field.eq_ignore_ascii_case(b"lib-ver") {
        told.library_version = value.to_vec();
    } else {
        let shown = String::from_utf8_lossy(field).into_owned();
        return Err(format!("ERR Unrecognized option '{shown}'").into());
    }
    ok(out)
}

/// Keeps the clients of this type: those with subscriptions or those without. There are no other
/// types.
fn retain_type(clients: &mut Vec<Arc<Client>>, kind: &[u8]) -> Result<()> {
    match kind.to_ascii_lowercase().as_slice() {
        b"normal" => clients.retain(|client| !client.inbox.is_subscribed()),
        b"pubsub" => clients.retain(|client| client.inbox.is_subscribed()),
        b"master" | b"slave" | b"replica" => clients.clear(),
        _ => {
            let kind = String::from_utf8_lossy(kind);
            return Err(format!("ERR Unknown client type '{kind}'").into());
        }
    }
    Ok(())
}

fn list(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let mut all = context.state.clients.all();
    match arguments.len() {
        2 => {}
        4 if arguments.get(2).eq_ignore_ascii_case(b"type") => {
            retain_type(&mut all, arguments.get(3))?;
        }
        4.. if arguments.get(2).eq_ignore_ascii_case(b"id") => {
            let ids: Option<Vec<i64>> = arguments.iter_from(3).map(number).collect();
            let ids = ids.ok_or("ERR Invalid client ID")?;
            all.retain(|client| ids.contains(&(client.id as i64)));
        }
        _ => return Err(CommandError::Syntax),
    }
    let lines: String = all.iter().map(|client| line_of(client, context.state)).collect();
    out.text(&lines);
    Ok(CommandOutcome::Done)
}

/// Returns a client's line in `CLIENT LIST`, with Redis' names.
pub fn line_of(client: &Client, state: &ServerState) -> String {
    let told = client.info().clone();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (name, library, version) =
        (text(&told.name), text(&told.library), text(&told.library_version));
    let command = client.last_command.load(Ordering::Relaxed);
    let command = state.catalog.name_of(command).unwrap_or("NULL");
    let load = |part: &std::sync::atomic::AtomicUsize| part.load(Ordering::Relaxed);
    let mut flags = String::new();
    for (flag, is_set) in [
        ('O', client.is_monitor.load(Ordering::Relaxed)),
        ('P', client.inbox.is_subscribed()),
        ('x', told.queued >= 0),
        ('b', load(&client.blocked) > 0),
    ] {
        flags.extend(is_set.then_some(flag));
    }
    if flags.is_empty() {
        flags.push('N');
    }
    let inbox = &client.inbox;
    /// Size in bytes up to which a reply buffer does not count as unsent replies, because it is
    /// kept for later replies.
    const REPLY_BUFFER: usize = 16 << 10;
    let output = load(&client.output);
    let mut line = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(
        line,
        "id={} addr={} laddr={} fd={} name={name} age={} idle={} flags={flags} db=0 sub={} psub={} ssub={} multi={} qbuf={} qbuf-free={} argv-mem=0 multi-mem={} rbs={} rbp=0 obl=0 oll={} omem={} tot-mem={} events=r cmd={command} user={} redir=-1 resp={} lib-name={library} lib-ver={version} watch={}",
        client.id,
        client.peer,
        client.local,
        client.descriptor,
        client.since.elapsed().as_secs(),
        client.idle().as_secs(),
        inbox.count(Kind::Channel),
        inbox.count(Kind::Pattern),
        inbox.count(Kind::Shard),
        told.queued,
        load(&client.unread),
        load(&client.input).saturating_sub(load(&client.unread)),
        load(&client.queued),
        output.min(REPLY_BUFFER),
        inbox.len(),
        output.saturating_sub(REPLY_BUFFER) + inbox.waiting(),
        client.memory() + inbox.waiting(),
        told.user,
        if told.resp3 { 3 } else { 2 },
        told.watched,
    );
    line
}

fn kill(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let own = context.session.client.id;
    let address =
        |text: &[u8]| -> Option<SocketAddr> { std::str::from_utf8(text).ok()?.parse().ok() };
    let mut clients = context.state.clients.all();
    clients.retain(|client| !client.is_ended());
    if arguments.len() == 3 {
        let address = address(arguments.get(2));
        let client = clients.iter().find(|client| Some(client.peer) == address);
        let client = client.ok_or("ERR No such client")?;
        out.simple("OK");
        if client.id == own {
            return Ok(CommandOutcome::Close);
        }
        client.end();
        return Ok(CommandOutcome::Done);
    }
    if !arguments.len().is_multiple_of(2) {
        return Err(CommandError::Syntax);
    }
    let mut skip_me = true;
    let options = arguments.iter_from(2).step_by(2).zip(arguments.iter_from(3).step_by(2));
    for (option, value) in options {
        match option.to_ascii_lowercase().as_slice() {
            b"id" => {
                let id = number(value).filter(|id| *id > 0);
                let id = id.ok_or("ERR client-id should be greater than 0")?;
                clients.retain(|client| client.id == id as u64);
            }
            b"type" => retain_type(&mut clients, value)?,
            b"addr" => clients.retain(|client| Some(client.peer) == address(value)),
            b"laddr" => clients.retain(|client| Some(client.local) == address(value)),
            b"user" => {
                let name = String::from_utf8_lossy(value);
                if context.state.acl.user(&name).is_none() {
                    return Err(format!("ERR No such user '{name}'").into());
                }
                clients.retain(|client| client.info().user == name);
            }
            b"skipme" => {
                skip_me = match value.to_ascii_lowercase().as_slice() {
                    b"yes" => true,
                    b"no" => false,
                    _ => return Err(CommandError::Syntax),
                };
            }
            _ => return Err(CommandError::Syntax),
        }
    }
    clients.retain(|client| !skip_me || client.id != own);
    out.count(clients.len());
    let mut outcome = CommandOutcome::Done;
    for client in clients {
        if client.id == own {
            // Closed after the reply.
            outcome = CommandOutcome::Close;
        } else {
            client.end();
        }
    }
    Ok(outcome)
}
