//! `EVAL`, as far as locks need it: a few well-known scripts are recognized and executed natively.
//!
//! A script is known by the SHA-1 of its text without white space, in lower case and with `'` for
//! `"`. Every other script is refused.

use std::sync::PoisonError;

use ordna::Change;
use sha1::{Digest, Sha1};

use super::strings::delete_if_equal;
use crate::execution::command::{Command, CommandOutcome, Context, Result, SERVER_INFO, help, ok};
use crate::execution::dispatch::deny;
use crate::keyspace::stored_value;
use crate::state::command_spec::{CommandFlags, KeyAccess, NO_KEY};
use crate::wire::error::CommandError;
use crate::wire::reply::Replies;
use crate::wire::request::{Arguments, OwnedRequest, number};

const EVAL: CommandFlags = CommandFlags::NOSCRIPT
    .or(CommandFlags::STALE)
    .or(CommandFlags::SKIP_MONITOR)
    .or(CommandFlags::NO_MANDATORY_KEYS)
    .or(CommandFlags::MOVABLEKEYS)
    .or(CommandFlags::SCRIPT);

pub const COMMANDS: &[Command] = &[
    Command::new("eval", -3, EVAL, NO_KEY, "Executes the script of a known lock.", eval)
        .key_count_at(2)
        .access(KeyAccess::READ_WRITE),
    Command::new("evalsha", -3, EVAL, NO_KEY, "Executes the script of a known lock.", evalsha)
        .key_count_at(2)
        .access(KeyAccess::READ_WRITE),
    Command::container("script", "LOAD, EXISTS and FLUSH of scripts.", SCRIPT),
];

/// The effect of a known script on a key whose value is its first argument.
#[derive(Clone, Copy)]
enum KnownScript {
    /// Removes it.
    Release,
    /// Adds milliseconds to its deadline, or to the present time if the third argument says so.
    Extend,
    /// Sets its deadline, in milliseconds from now.
    Renew,
}

/// SHA-1 of the normalized text, and the effect.
const KNOWN: [(&str, KnownScript); 5] = [
    // redis-py: release, extend, reacquire.
    ("3ad9a162dace07271ecd3d4fb06ce2c770f0a4f0", KnownScript::Release),
    ("568f251ae144c32659f1faa8c727866b755df9e0", KnownScript::Extend),
    ("7bac02815679914e98a2d3abfc299e10f958a8cd", KnownScript::Renew),
    // Redis' documentation of SET, and the extension that Redlock libraries make of it.
    ("68861aa8724846c4d49fb1b44ff4aa7d57e0fe5c", KnownScript::Release),
    ("9a986bcc6034fd4f6b064f07ab6b02d8bd2631e2", KnownScript::Renew),
];

/// Scripts remembered; they differ in white space only.
const MOST: usize = 1024;

fn hash(text: &[u8]) -> String {
    Sha1::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The number of the known script that a text is.
fn recognize(text: &[u8]) -> Result<usize> {
    let plain = text.iter().filter(|byte| !byte.is_ascii_whitespace());
    let plain: Vec<u8> =
        plain.map(|byte| if *byte == b'"' { b'\'' } else { byte.to_ascii_lowercase() }).collect();
    let hash = hash(&plain);
    KNOWN.iter().position(|(known, _)| *known == hash).ok_or_else(|| {
        "ERR Ordna runs no scripts but those of known locks; MULTI with WATCH, SET with IFEQ, and DELIFEQ do most of that".into()
    })
}

fn remember(context: &Context<'_>, text: &[u8]) -> Result<(String, usize)> {
    let (name, script) = (hash(text), recognize(text)?);
    let mut scripts = context.state.scripts.lock().unwrap_or_else(PoisonError::into_inner);
    if scripts.len() >= MOST {
        scripts.clear();
    }
    scripts.insert(name.clone(), script);
    Ok((name, script))
}

fn eval(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let (_, script) = remember(context, arguments.get(1))?;
    run(context, script, arguments, out)
}

fn evalsha(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let name = String::from_utf8_lossy(arguments.get(1)).to_ascii_lowercase();
    let scripts = context.state.scripts.lock().unwrap_or_else(PoisonError::into_inner);
    let script = scripts.get(&name).copied();
    drop(scripts);
    let script = script.ok_or("NOSCRIPT No matching script. Please use EVAL.")?;
    run(context, script, arguments, out)
}

/// Checks that the user may execute the commands of a script on its key.
fn may_call(context: &Context<'_>, script: KnownScript, key: &[u8]) -> Result<()> {
    let calls: &[&[&[u8]]] = match script {
        KnownScript::Release => &[&[b"get", key], &[b"del", key]],
        KnownScript::Extend => &[&[b"get", key], &[b"pttl", key], &[b"pexpire", key, b"1"]],
        KnownScript::Renew => &[&[b"get", key], &[b"pexpire", key, b"1"]],
    };
    let Some(user) = &context.session.user else { return Err(CommandError::NotAuthenticated) };
    for call in calls {
        let request = OwnedRequest::of(call);
        let spec = context.table.catalog.find(call[0]).ok_or("ERR unknown command")?;
        user.check(spec, request.arguments(), &context.state.indexes)
            .map_err(|refusal| deny(context.state, context.session, refusal, "lua"))?;
    }
    Ok(())
}

fn run(
    context: &Context<'_>,
    script: usize,
    arguments: Arguments<'_>,
    out: &mut Replies,
) -> Result {
    let keys = number(arguments.get(2)).ok_or(CommandError::NotAnInteger)?;
    if keys < 0 {
        return Err("ERR Number of keys can't be negative".into());
    }
    if keys > arguments.len() as i64 - 3 {
        return Err("ERR Number of keys can't be greater than number of args".into());
    }
    if keys != 1 {
        return Err("ERR this script works on one key".into());
    }
    let (key, token) = (arguments.get(3), arguments.get(4));
    let known = KNOWN[script].1;
    may_call(context, known, key)?;
    let done = match known {
        KnownScript::Release => delete_if_equal(context, key, token)?,
        KnownScript::Extend | KnownScript::Renew => {
            let time = number(arguments.get(5)).ok_or(CommandError::NotAnInteger)?;
            let add = matches!(known, KnownScript::Extend) && arguments.get(6) == b"0";
            let now = context.keys.now();
            let (mut done, mut is_string) = (false, true);
            context.modify_expiry(key, |found| {
                let string = found.map(|found| stored_value::string(found.value));
                is_string = string != Some(None);
                let found = found.filter(|_| string == Some(Some(token)));
                let until = found.and_then(|found| found.expires_at);
                // To extend a key that does not expire is refused by redis-py's script.
                done = found.is_some() && (until.is_some() || matches!(known, KnownScript::Renew));
                let from = if add { until.unwrap_or(now) } else { now };
                match from.checked_add_signed(time) {
                    _ if !done => Change::Keep,
                    Some(deadline) if deadline > now => Change::Put(Some(deadline)),
                    _ => Change::Remove,
                }
            })?;
            if !is_string {
                return Err(CommandError::WrongType);
            }
            done
        }
    };
    out.integer(i64::from(done));
    Ok(CommandOutcome::Done)
}

const SCRIPT: &[Command] = &[
    Command::sub(
        "script|load",
        3,
        CommandFlags::NOSCRIPT.or(CommandFlags::STALE),
        |context, arguments, out| {
            let (name, _) = remember(context, arguments.get(2))?;
            out.bulk(name.as_bytes());
            Ok(CommandOutcome::Done)
        },
    ),
    Command::sub("script|exists", -3, CommandFlags::NOSCRIPT, |context, arguments, out| {
        let scripts = context.state.scripts.lock().unwrap_or_else(PoisonError::into_inner);
        out.array(arguments.len() - 2);
        for name in arguments.iter_from(2) {
            let name = String::from_utf8_lossy(name).to_ascii_lowercase();
            out.integer(i64::from(scripts.contains_key(&name)));
        }
        Ok(CommandOutcome::Done)
    }),
    Command::sub("script|flush", -2, CommandFlags::NOSCRIPT, |context, arguments, out| {
        let is_mode =
            |mode: &[u8]| mode.eq_ignore_ascii_case(b"async") || mode.eq_ignore_ascii_case(b"sync");
        if arguments.len() > 3 || arguments.len() == 3 && !is_mode(arguments.get(2)) {
            return Err("ERR SCRIPT FLUSH only support SYNC|ASYNC option".into());
        }
        context.state.scripts.lock().unwrap_or_else(PoisonError::into_inner).clear();
        ok(out)
    }),
    Command::sub(
        "script|kill",
        2,
        CommandFlags::NOSCRIPT.or(CommandFlags::ALLOW_BUSY),
        |_, _, _| Err("NOTBUSY No scripts in execution right now.".into()),
    ),
    Command::sub("script|help", 2, SERVER_INFO, |_, _, out| {
        help(
            out,
            "SCRIPT",
            &[
                "EXISTS <sha1> [<sha1> ...]",
                "FLUSH",
                "LOAD <script>",
                "    Only scripts of known locks.",
            ],
        )
    }),
];
