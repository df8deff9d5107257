//! `COMMAND`: the table of commands.

use crate::execution::command::{
    Command, CommandOutcome, Context, Execute, Result, SERVER_INFO, help,
};
use crate::keyspace::glob;
use crate::state::command_spec::{Catalog, CommandSpec, NO_KEY};
use crate::wire::error::CommandError;
use crate::wire::reply::Replies;
use crate::wire::request::Arguments;

pub const COMMANDS: &[Command] = &[Command::new(
    "command",
    -1,
    SERVER_INFO,
    NO_KEY,
    "Tells of commands: COUNT, INFO, DOCS, LIST, GETKEYS.",
    |context, _, out| all_infos(context.state.catalog, out),
)
.also_in(&["connection"])
.with_subcommands(COMMAND)];

/// A subcommand of `COMMAND`.
const fn described(name: &'static str, arity: i64, execute: Execute) -> Command {
    Command::sub(name, arity, SERVER_INFO, execute).also_in(&["connection"])
}

const COMMAND: &[Command] = &[
    described("command|count", 2, |context, _, out| {
        out.count(context.state.catalog.all().len());
        Ok(CommandOutcome::Done)
    }),
    described("command|info", -2, |context, arguments, out| {
        if arguments.len() == 2 {
            return all_infos(context.state.catalog, out);
        }
        out.array(arguments.len() - 2);
        for name in arguments.iter_from(2) {
            let spec = str::from_utf8(name).ok();
            match spec.and_then(|name| context.state.catalog.by_full_name(name)) {
                Some(spec) => info_of(spec, out),
                None => out.null(),
            }
        }
        Ok(CommandOutcome::Done)
    }),
    described("command|docs", -2, docs),
    described("command|list", -2, list),
    described("command|getkeys", -4, |context, arguments, out| {
        let Some(spec) = context.state.catalog.find(arguments.get(2)) else {
            return Err("ERR Invalid command specified".into());
        };
        if !spec.suits(arguments.len() - 2) {
            return Err("ERR Invalid number of arguments specified for command".into());
        }
        let keys: Vec<usize> = spec.key_positions(arguments.tail(2)).collect();
        if keys.is_empty() {
            return Err("ERR The command has no key arguments".into());
        }
        out.array(keys.len());
        keys.into_iter().for_each(|at| out.bulk(arguments.get(at + 2)));
        Ok(CommandOutcome::Done)
    }),
    described("command|help", 2, |_, _, out| {
        help(
            out,
            "COMMAND",
            &[
                "COUNT",
                "DOCS [<command> ...]",
                "GETKEYS <full-command>",
                "INFO [<command> ...]",
                "LIST [FILTERBY <PATTERN <pattern>|ACLCAT <category>>]",
            ],
        )
    }),
];

fn docs(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let catalog = context.state.catalog;
    let known: Vec<&CommandSpec> = if arguments.len() == 2 {
        catalog.all().iter().collect()
    } else {
        arguments.iter_from(2).filter_map(|name| catalog.find(name)).collect()
    };
    out.map(known.len());
    for spec in known {
        out.bulk(spec.name.as_bytes());
        out.map(2);
        out.bulk(b"summary");
        out.bulk(spec.summary.as_bytes());
        out.bulk(b"group");
        out.bulk(spec.group.as_bytes());
    }
    Ok(CommandOutcome::Done)
}

fn list(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let mut specs: Vec<&CommandSpec> = context.state.catalog.all().iter().collect();
    if arguments.len() == 5 && arguments.get(2).eq_ignore_ascii_case(b"filterby") {
        let value = arguments.get(4);
        if arguments.get(3).eq_ignore_ascii_case(b"pattern") {
            specs.retain(|spec| glob::matches(value, spec.name.as_bytes()));
        } else if arguments.get(3).eq_ignore_ascii_case(b"aclcat") {
            let category = String::from_utf8_lossy(value).to_ascii_lowercase();
            specs.retain(|spec| spec.is_in(&category));
        } else {
            return Err(CommandError::Syntax);
        }
    } else if arguments.len() > 2 {
        return Err(CommandError::Syntax);
    }
    out.array(specs.len());
    specs.iter().for_each(|spec| out.bulk(spec.name.as_bytes()));
    Ok(CommandOutcome::Done)
}

fn all_infos(catalog: &Catalog, out: &mut Replies) -> Result {
    out.array(catalog.all().len());
    catalog.all().iter().for_each(|spec| info_of(spec, out));
    Ok(CommandOutcome::Done)
}

/// One line of COMMAND INFO, in the ten parts that Redis 7 gives.
fn info_of(spec: &CommandSpec, out: &mut Replies) {
    let (first, last, step) = spec.keys;
    out.array(10);
    out.bulk(spec.name.as_bytes());
    out.integer(spec.arity);
    out.set(spec.flags.names().count());
    spec.flags.names().for_each(|flag| out.simple(flag));
    out.integer(first);
    out.integer(last);
    out.integer(step);
    out.set(spec.categories().count());
    spec.categories().for_each(|category| out.simple(&format!("@{category}")));
    // Tips and key specifications: none.
    out.array(0);
    out.array(0);
    out.array(spec.subcommands.len());
    spec.subcommands.iter().for_each(|sub| info_of(sub, out));
}
