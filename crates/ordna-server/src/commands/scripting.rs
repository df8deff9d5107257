//! `EVAL` and similar commands, and `SCRIPT`.
//!
//! A script is one step for all other clients, like `EXEC`. Its commands are executed for its
//! caller, whose rights are checked for each.

#[cfg(feature = "scripts")]
use std::sync::atomic::Ordering;

use crate::execution::command::{Command, CommandOutcome, Context, Result, SERVER_INFO, help, ok};
#[cfg(feature = "scripts")]
use crate::execution::script_host;
use crate::state::command_spec::{CommandFlags, KeyAccess, NO_KEY};
use crate::state::scripts::Script;
use crate::wire::error::CommandError;
use crate::wire::reply::Replies;
use crate::wire::request::{Arguments, number};

const EVAL_RO: CommandFlags = CommandFlags::NOSCRIPT
    .or(CommandFlags::STALE)
    .or(CommandFlags::SKIP_MONITOR)
    .or(CommandFlags::NO_MANDATORY_KEYS)
    .or(CommandFlags::MOVABLEKEYS)
    .or(CommandFlags::RUNS_LONG);
/// Not executed while a script is being compiled.
const FLUSH: CommandFlags = CommandFlags::NOSCRIPT.or(CommandFlags::RUNS_LONG);
const EVAL: CommandFlags = EVAL_RO.or(CommandFlags::SCRIPT);

pub const COMMANDS: &[Command] = &[
    Command::new("eval", -3, EVAL, NO_KEY, "Executes a script.", |context, arguments, out| {
        evaluate(context, false, arguments, out)
    })
    .key_count_at(2)
    .access(KeyAccess::READ_WRITE)
    .exclusive(),
    Command::new(
        "evalsha",
        -3,
        EVAL,
        NO_KEY,
        "Executes a cached script.",
        |context, arguments, out| {
            run(context, &*cached(context, arguments)?, false, arguments, out)
        },
    )
    .key_count_at(2)
    .access(KeyAccess::READ_WRITE)
    .exclusive(),
    Command::new(
        "eval_ro",
        -3,
        EVAL_RO.or(CommandFlags::READONLY),
        NO_KEY,
        "Executes a script that does not write.",
        |context, arguments, out| evaluate(context, true, arguments, out),
    )
    .key_count_at(2)
    .exclusive(),
    Command::new(
        "evalsha_ro",
        -3,
        EVAL_RO.or(CommandFlags::READONLY),
        NO_KEY,
        "Executes a cached script that does not write.",
        |context, arguments, out| run(context, &*cached(context, arguments)?, true, arguments, out),
    )
    .key_count_at(2)
    .exclusive(),
    Command::container("script", "LOAD, EXISTS, FLUSH and KILL of scripts.", SCRIPT),
];

fn cached(context: &Context<'_>, arguments: Arguments<'_>) -> Result<std::sync::Arc<Script>> {
    let script = context.state.scripts.find(arguments.get(1));
    script.ok_or_else(|| "NOSCRIPT No matching script. Please use EVAL.".into())
}

/// Returns the number of keys of a call.
fn key_count(arguments: Arguments<'_>) -> Result<usize> {
    let keys = number(arguments.get(2)).ok_or(CommandError::NotAnInteger)?;
    if keys > arguments.len() as i64 - 3 {
        return Err("ERR Number of keys can't be greater than number of args".into());
    }
    usize::try_from(keys).map_err(|_| "ERR Number of keys can't be negative".into())
}

fn evaluate(
    context: &mut Context<'_>,
    read_only: bool,
    arguments: Arguments<'_>,
    out: &mut Replies,
) -> Result {
    key_count(arguments)?;
    let script = match context.session.script.take() {
        Some(prepared) => prepared?,
        None => context.state.scripts.add(arguments.get(1), false)?,
    };
    run(context, &script, read_only, arguments, out)
}

fn run(
    context: &mut Context<'_>,
    script: &Script,
    read_only: bool,
    arguments: Arguments<'_>,
    out: &mut Replies,
) -> Result {
    let keys = key_count(arguments)?;
    let all: Vec<&[u8]> = arguments.iter_from(3).collect();
    let (keys, values) = all.split_at(keys);
    execute(context, script, keys, values, read_only, out)?;
    Ok(CommandOutcome::Done)
}

#[cfg(feature = "scripts")]
use script_host::run as execute;

#[cfg(not(feature = "scripts"))]
const NO_SCRIPTS: &str =
    "ERR this program was built without scripts; build it with the cargo feature 'scripts'";

#[cfg(not(feature = "scripts"))]
fn execute(
    _: &mut Context<'_>,
    _: &Script,
    _: &[&[u8]],
    _: &[&[u8]],
    _: bool,
    _: &mut Replies,
) -> Result<()> {
    Err(NO_SCRIPTS.into())
}

const SCRIPT: &[Command] = &[
    Command::sub(
        "script|load",
        3,
        CommandFlags::NOSCRIPT.or(CommandFlags::STALE).or(CommandFlags::RUNS_LONG),
        |context, arguments, out| {
            let script = match context.session.script.take() {
                Some(prepared) => prepared?,
                None => {
                    let script = context.state.scripts.add(arguments.get(2), true)?;
                    #[cfg(feature = "scripts")]
                    script_host::check(context, &script)?;
                    script
                }
            };
            #[cfg(not(feature = "scripts"))]
            if !script.sha.is_empty() {
                return Err(NO_SCRIPTS.into());
            }
            out.bulk(script.sha.as_bytes());
            Ok(CommandOutcome::Done)
        },
    ),
    Command::sub("script|exists", -3, CommandFlags::NOSCRIPT, |context, arguments, out| {
        let start = out.bytes.len();
        out.array(arguments.len() - 2);
        for sha in arguments.iter_from(2) {
            out.integer(i64::from(context.state.scripts.find(sha).is_some()));
            context.check_reply(out, start)?;
        }
        Ok(CommandOutcome::Done)
    }),
    Command::sub("script|flush", -2, FLUSH, |context, arguments, out| {
        let is_mode =
            |mode: &[u8]| mode.eq_ignore_ascii_case(b"async") || mode.eq_ignore_ascii_case(b"sync");
        if arguments.len() > 3 || arguments.len() == 3 && !is_mode(arguments.get(2)) {
            return Err("ERR SCRIPT FLUSH only support SYNC|ASYNC option".into());
        }
        context.state.scripts.flush();
        #[cfg(feature = "scripts")]
        if let Some(engine) = context.state.scripts.engine.lock().as_mut() {
            engine.clear();
            context.state.scripts.memory.store(engine.memory(), Ordering::Relaxed);
        }
        ok(out)
    }),
    // Dispatch executes this command while a script runs.
    Command::sub(
        "script|kill",
        2,
        CommandFlags::NOSCRIPT.or(CommandFlags::ALLOW_BUSY).or(CommandFlags::KILLS_SCRIPT),
        |_, _, _| Err("NOTBUSY No scripts in execution right now.".into()),
    ),
    Command::sub("script|help", 2, SERVER_INFO, |_, _, out| {
        help(
            out,
            "SCRIPT",
            &[
                "EXISTS <sha1> [<sha1> ...]",
                "    Return information about the existence of the scripts in the script cache.",
                "FLUSH [ASYNC|SYNC]",
                "    Flush the Lua scripts cache. Very dangerous on replicas.",
                "KILL",
                "    Kill the currently executing Lua script.",
                "LOAD <script>",
                "    Load a script into the scripts cache without executing it.",
            ],
        )
    }),
];
