//! `ACL`: users and their permissions.

use crate::execution::command::{
    ADMIN, Command, CommandOutcome, Context, Result, Subcommands, help, ok, subcommand,
};
use crate::state::acl::Refusal;
use crate::state::command_spec::{CATEGORIES, CommandFlags, NO_KEY};
use crate::statistics::event_logs::unix_millis;
use crate::wire::error::CommandError;
use crate::wire::reply::Replies;
use crate::wire::request::{Arguments, number};

pub const COMMANDS: &[Command] = &[Command::new(
    "acl",
    -2,
    ADMIN,
    NO_KEY,
    "Users and what they may do: SETUSER, GETUSER, DELUSER, LIST, USERS, WHOAMI, CAT, LOG, …",
    acl,
)
.with(CommandFlags::SECRET)];

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn acl(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    const COMMANDS: &Subcommands = &[
        ("whoami", 2, |context, _, out| {
            let user = context.session.user.as_ref().map_or("default", |user| user.name.as_str());
            out.bulk(user.as_bytes());
            Ok(CommandOutcome::Done)
        }),
        ("users", 2, |context, _, out| {
            let users = context.state.acl.all();
            out.array(users.len());
            users.iter().for_each(|user| out.bulk(user.name.as_bytes()));
            Ok(CommandOutcome::Done)
        }),
        ("list", 2, |context, _, out| {
            let users = context.state.acl.all();
            out.array(users.len());
            users.iter().for_each(|user| out.bulk(user.line().as_bytes()));
            Ok(CommandOutcome::Done)
        }),
        ("cat", -2, cat),
        ("setuser", -3, |context, arguments, out| {
            let name = text(arguments.get(2));
            if name.contains([' ', '\0']) {
                return Err("ERR Usernames can't contain spaces or null characters".into());
            }
            let rules: Vec<String> = arguments.iter_from(3).map(text).collect();
            let rules = rules.iter().map(String::as_str);
            let done = context.state.acl.set(&name, rules, context.state.catalog);
            done.map_err(|why| format!("ERR {why}"))?;
            ok(out)
        }),
        ("getuser", 3, get_user),
        ("deluser", -3, |context, arguments, out| {
            if arguments.iter_from(2).any(|name| name == b"default") {
                return Err("ERR The 'default' user cannot be removed".into());
            }
            let gone = arguments.iter_from(2).filter(|name| context.state.acl.delete(&text(name)));
            out.count(gone.count());
            for client in context.state.clients.all() {
                let name = client.info().user.clone();
                // Its own connection ends at its next command.
                if client.id != context.session.client.id && context.state.acl.user(&name).is_none()
                {
                    client.end();
                }
            }
            Ok(CommandOutcome::Done)
        }),
        ("genpass", -2, |_, arguments, out| {
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
            getrandom::fill(&mut bytes)
                .map_err(|error| format!("ERR no random numbers: {error}"))?;
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            out.bulk(&hex.as_bytes()[..digits]);
            Ok(CommandOutcome::Done)
        }),
        ("dryrun", -4, dry_run),
        ("log", -2, log),
        ("load", 2, |context, _, out| {
            let acl = &context.state.acl;
            let file = acl.file.as_ref().ok_or(NO_FILE)?;
            let text = std::fs::read_to_string(file);
            let text =
                text.map_err(|error| format!("ERR cannot read {}: {error}", file.display()))?;
            acl.load(&text, context.state.catalog)
                .map_err(|why| format!("ERR {}: {why}", file.display()))?;
            ok(out)
        }),
        ("save", 2, |context, _, out| {
            let acl = &context.state.acl;
            let file = acl.file.as_ref().ok_or(NO_FILE)?;
            let text: String = acl.all().iter().map(|user| user.line() + "\n").collect();
            // A reader never sees half of it.
            let new = file.with_extension("new");
            let written = std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, file));
            written.map_err(|error| format!("ERR cannot write {}: {error}", file.display()))?;
            ok(out)
        }),
        ("help", 2, |_, _, out| {
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
    subcommand("acl", COMMANDS, context, arguments, out)
}

const NO_FILE: &str =
    "ERR This server has no ACL file. Start it with --acl-file to keep users in one";

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
            let all = context.state.catalog.all().iter();
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

fn get_user(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let Some(user) = context.state.acl.user(&text(arguments.get(2))) else {
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
    for (field, value) in
        [("commands", user.commands()), ("keys", user.keys()), ("channels", user.channels())]
    {
        out.bulk(field.as_bytes());
        out.bulk(value.as_bytes());
    }
    out.bulk(b"selectors");
    out.array(0);
    Ok(CommandOutcome::Done)
}

fn dry_run(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let name = text(arguments.get(2));
    let user = context.state.acl.user(&name);
    let user = user.ok_or_else(|| format!("ERR User '{name}' not found"))?;
    let command = arguments.get(3);
    let Some(number) = context.state.catalog.number_of(command) else {
        return Err(format!("ERR Command '{}' not found", text(command)).into());
    };
    let spec = &context.state.catalog.all()[number];
    let request = arguments.tail(3);
    if !spec.suits(request.len()) {
        return Err(CommandError::wrong_arity(spec.name));
    }
    match user.check(number, spec, request) {
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
