//! `ACL`: users and their permissions.

use crate::execution::command::{
    ADMIN, Command, CommandOutcome, Context, Result, SERVER_INFO, SESSION, Task, help, ok,
};
use crate::keyspace::Keyspace;
use crate::state::ServerState;
use crate::state::acl::UsersFileError;
use crate::state::acl::selector::Selector;
use crate::state::acl::user::Refusal;
use crate::state::command_spec::{CATEGORIES, CommandFlags};
use crate::statistics::event_logs::unix_millis;
use crate::wire::error::CommandError;
use crate::wire::reply::Replies;
use crate::wire::request::{Arguments, number};

pub const COMMANDS: &[Command] = &[Command::container(
    "acl",
    "Users and what they may do: SETUSER, GETUSER, DELUSER, LIST, USERS, WHOAMI, CAT, LOG, …",
    ACL,
)];

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

const ACL: &[Command] = &[
    Command::sub("acl|whoami", 2, SESSION, |context, _, out| {
        let user = context.session.user.as_ref().map_or("default", |user| user.name.as_str());
        out.bulk(user.as_bytes());
        Ok(CommandOutcome::Done)
    }),
    Command::sub("acl|users", 2, ADMIN, |context, _, out| {
        let users = context.state.acl.all();
        out.array(users.len());
        users.iter().for_each(|user| out.bulk(user.name.as_bytes()));
        Ok(CommandOutcome::Done)
    }),
    Command::sub("acl|list", 2, ADMIN, |context, _, out| {
        let users = context.state.acl.all();
        out.array(users.len());
        users.iter().for_each(|user| out.bulk(&user.line()));
        Ok(CommandOutcome::Done)
    }),
    Command::sub("acl|cat", -2, SESSION, cat),
    Command::sub("acl|setuser", -3, ADMIN, |context, arguments, out| {
        let rules = arguments.iter_from(3);
        let done = context.state.acl.set(arguments.get(2), rules, context.state.catalog);
        done.map_err(|why| format!("ERR {why}"))?;
        context.state.end_clients_without_rights(Some(context.session.client.id));
        ok(out)
    })
    .with(CommandFlags::SECRET)
    .exclusive(),
    Command::sub("acl|getuser", 3, ADMIN, get_user),
    Command::sub("acl|deluser", -3, ADMIN, |context, arguments, out| {
        if arguments.iter_from(2).any(|name| name == b"default") {
            return Err("ERR The 'default' user cannot be removed".into());
        }
        let gone = arguments.iter_from(2).filter(|name| context.state.acl.delete(name));
        out.count(gone.count());
        context.state.end_clients_without_rights(Some(context.session.client.id));
        Ok(CommandOutcome::Done)
    })
    .exclusive(),
    Command::sub("acl|genpass", -2, SESSION, |_, arguments, out| {
        const MOST: i64 = 4096;
        let bits = match arguments.len() {
            2 => 256,
            3 => number(arguments.get(2)).ok_or(CommandError::NotAnInteger)?,
            _ => return Err(CommandError::wrong_arity("acl|genpass")),
        };
        if !(1..=MOST).contains(&bits) {
            return Err(format!(
                    "ERR ACL GENPASS argument must be the number of bits for the output password, a positive number up to {MOST}"
                ).into());
        }
        let digits = (bits as usize).div_ceil(4);
        let mut bytes = vec![0; digits.div_ceil(2)];
        getrandom::fill(&mut bytes).map_err(|error| format!("ERR no random numbers: {error}"))?;
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        out.bulk(&hex.as_bytes()[..digits]);
        Ok(CommandOutcome::Done)
    }),
    Command::sub("acl|dryrun", -4, ADMIN, dry_run),
    Command::sub("acl|log", -2, ADMIN, log),
    Command::sub("acl|load", 2, ADMIN, |context, _, out| {
        let loaded = context.state.acl.reload(context.state.catalog);
        loaded.map_err(|why| format!("ERR {why}"))?;
        context.state.end_clients_without_rights(Some(context.session.client.id));
        ok(out)
    })
    .exclusive(),
    Command::sub("acl|save", 2, ADMIN, |_, arguments, _| {
        Ok(CommandOutcome::Task(Task::new(arguments, save)))
    }),
    Command::sub("acl|help", 2, SERVER_INFO, |_, _, out| {
        help(
            out,
            "ACL",
            &[
                "CAT [<category>]",
                "DELUSER <username> [<username> ...]",
                "DRYRUN <username> <command> [<arg> ...]",
                "GENPASS [<bits>]",
                "GETUSER <username>",
                "LIST",
                "LOAD",
                "LOG [<count> | RESET]",
                "SAVE",
                "SETUSER <username> <attribute> [<attribute> ...]",
                "USERS",
                "WHOAMI",
            ],
        )
    }),
];

fn cat(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    match arguments.len() {
        2 => {
            out.array(CATEGORIES.len());
            CATEGORIES.iter().for_each(|category| out.bulk(category.as_bytes()));
        }
        3 => {
            let category = text(arguments.get(2)).to_ascii_lowercase();
            if !CATEGORIES.contains(&category.as_str()) {
                return Err(format!("ERR Unknown category '{}'", text(arguments.get(2))).into());
            }
            // As in Redis, a command with subcommands is listed by their names.
            let all = context.state.catalog.with_subcommands();
            let names: Vec<&str> =
                all.filter(|spec| spec.is_in(&category)).map(|spec| spec.name).collect();
            out.array(names.len());
            names.iter().for_each(|name| out.bulk(name.as_bytes()));
        }
        _ => {
            return Err(
                "ERR unknown subcommand or wrong number of arguments for 'CAT'. Try ACL HELP."
                    .into(),
            );
        }
    }
    Ok(CommandOutcome::Done)
}

fn save(
    state: &ServerState,
    _: Option<&Keyspace>,
    _: Arguments<'_>,
    out: &mut Replies,
) -> Result<()> {
    let file = state.acl.file.as_ref();
    let file = file.ok_or_else(|| format!("ERR {}", UsersFileError::NoFile))?;
    let saved = state.acl.save(state.config.storage(), file);
    saved.map_err(|error| format!("ERR cannot write {}: {error}", file.display()))?;
    out.simple("OK");
    Ok(())
}

/// Writes the fields of `ACL GETUSER` that describe a selector.
fn permissions(selector: &Selector, out: &mut Replies) {
    let commands = selector.commands().into_bytes();
    for (field, value) in
        [("commands", commands), ("keys", selector.keys()), ("channels", selector.channels())]
    {
        out.bulk(field.as_bytes());
        out.bulk(&value);
    }
}

fn get_user(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let Some(user) = context.state.acl.named(arguments.get(2)) else {
        out.null();
        return Ok(CommandOutcome::Done);
    };
    out.map(6);
    out.bulk(b"flags");
    let flags = user.flags();
    out.set(flags.len());
    flags.iter().for_each(|flag| out.bulk(flag.as_bytes()));
    out.bulk(b"passwords");
    out.array(user.passwords().len());
    user.passwords().for_each(|hash| out.bulk(hash.as_bytes()));
    permissions(user.root(), out);
    out.bulk(b"selectors");
    out.array(user.selectors().len());
    for selector in user.selectors() {
        out.map(3);
        permissions(selector, out);
    }
    Ok(CommandOutcome::Done)
}

fn dry_run(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let name = text(arguments.get(2));
    let user = context.state.acl.named(arguments.get(2));
    let user = user.ok_or_else(|| format!("ERR User '{name}' not found"))?;
    let command = arguments.get(3);
    let request = arguments.tail(3);
    let found = context.state.catalog.find(command).map(|spec| spec.of_call(request));
    let Some(spec) = found.filter(|spec| spec.subcommands.is_empty() || request.len() == 1) else {
        return Err(format!("ERR Command '{}' not found", text(command)).into());
    };
    if !spec.suits(request.len()) {
        return Err(CommandError::wrong_arity(spec.name));
    }
    match user.check(spec, request, &context.state.indexes) {
        Ok(()) => out.simple("OK"),
        Err(Refusal::Command(name)) => {
            out.bulk(
                format!("This user has no permissions to run the '{name}' command").as_bytes(),
            );
        }
        Err(Refusal::Key(key)) => {
            let key = text(&key);
            out.bulk(format!("This user has no permissions to access the '{key}' key").as_bytes());
        }
        Err(Refusal::Channel(name)) => {
            let name = text(&name);
            let why = format!("This user has no permissions to access the '{name}' channel");
            out.bulk(why.as_bytes());
        }
    }
    Ok(CommandOutcome::Done)
}

fn log(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    const USUAL: usize = 10;
    let denials = &context.state.acl.denials;
    let count = match arguments.len() {
        2 => USUAL,
        3 if arguments.get(2).eq_ignore_ascii_case(b"reset") => {
            denials.clear();
            return ok(out);
        }
        3 => {
            let count = number(arguments.get(2)).ok_or(CommandError::NotAnInteger)?;
            usize::try_from(count).unwrap_or(0)
        }
        _ => return Err(CommandError::wrong_arity("acl|log")),
    };
    let list = denials.list(count);
    let now = unix_millis();
    out.array(list.len());
    for denial in list {
        out.map(10);
        out.bulk(b"count");
        out.integer(denial.count as i64);
        let age = now.saturating_sub(denial.created) as f64 / 1000.0;
        for (field, value) in [
            ("reason", denial.reason),
            ("context", denial.context),
            ("object", &denial.object),
            ("username", &denial.user),
            ("age-seconds", &format!("{age:.3}")),
            ("client-info", &denial.client),
        ] {
            out.bulk(field.as_bytes());
            out.bulk(value.as_bytes());
        }
        for (field, value) in [
            ("entry-id", denial.id),
            ("timestamp-created", denial.created),
            ("timestamp-last-updated", denial.updated),
        ] {
            out.bulk(field.as_bytes());
            out.integer(value as i64);
        }
    }
    Ok(CommandOutcome::Done)
}
