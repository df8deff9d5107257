//! `COMMAND`: the table of commands.

use crate::execution::command::{
    Command, CommandOutcome, CommandTable, Context, Execute, Result, SERVER_INFO, help,
};
use crate::keyspace::glob::Pattern;
use crate::state::command_spec::{
    Catalog, ChannelAccess, CommandFlags, CommandSpec, KeyAccess, KeyAccesses, NO_KEY,
};
use crate::state::descriptions::{Argument, ArgumentKind, Description};
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

/// Creates a subcommand of `COMMAND`.
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
        let start = out.bytes.len();
        out.array(arguments.len() - 2);
        for name in arguments.iter_from(2) {
            let spec = std::str::from_utf8(name).ok();
            match spec.and_then(|name| context.state.catalog.by_full_name(name)) {
                Some(spec) => info_of(spec, out),
                None => out.null(),
            }
            context.check_reply(out, start)?;
        }
        Ok(CommandOutcome::Done)
    }),
    described("command|docs", -2, docs),
    described("command|list", -2, list),
    described("command|getkeys", -4, |context, arguments, out| {
        let (_, keys) = keys_of(context.state.catalog, arguments)?;
        let start = out.bytes.len();
        out.array(keys.len());
        for at in keys {
            out.bulk(arguments.get(at + 2));
            context.check_reply(out, start)?;
        }
        Ok(CommandOutcome::Done)
    }),
    described("command|getkeysandflags", -4, |context, arguments, out| {
        let (spec, keys) = keys_of(context.state.catalog, arguments)?;
        let start = out.bytes.len();
        out.array(keys.len());
        for (nth, at) in keys.into_iter().enumerate() {
            out.array(2);
            out.bulk(arguments.get(at + 2));
            let access = spec.access(nth, arguments.tail(2));
            let flags = key_flags(spec, nth, access);
            out.set(flags.len());
            flags.iter().for_each(|flag| out.simple(flag));
            context.check_reply(out, start)?;
        }
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
                "GETKEYSANDFLAGS <full-command>",
                "INFO [<command> ...]",
                "LIST [FILTERBY <MODULE <name>|PATTERN <pattern>|ACLCAT <category>>]",
            ],
        )
    }),
];

/// Returns the command that begins at argument 2, and the positions of its keys counted from there.
fn keys_of(
    catalog: &'static Catalog,
    arguments: Arguments<'_>,
) -> Result<(&'static CommandSpec, Vec<usize>)> {
    let call = arguments.tail(2);
    let spec = catalog.find(call.get(0)).map(|spec| spec.of_call(call));
    let spec = spec.filter(|spec| spec.subcommands.is_empty() || call.len() == 1);
    let spec = spec.ok_or("ERR Invalid command specified")?;
    if spec.keys == NO_KEY && spec.key_count_at == 0 {
        return Err("ERR The command has no key arguments".into());
    }
    if !spec.suits(call.len()) {
        return Err("ERR Invalid number of arguments specified for command".into());
    }
    let keys: Vec<usize> = spec.key_positions(call).collect();
    // Commands such as EVAL may have no keys.
    if keys.len() <= usize::from(spec.keys != NO_KEY && spec.key_count_at > 0)
        && !spec.has(CommandFlags::SCRIPT)
    {
        return Err("ERR Invalid arguments specified for command".into());
    }
    Ok((spec, keys))
}

/// The key flags of commands in Redis, where they are not just read, or read and update: those of
/// the first key and those of the others.
const WRITES: &[(&str, [&[&str]; 2])] = &[
    ("append hsetnx", [&["RW", "insert"]; 2]),
    ("setnx msetnx", [&["OW", "insert"]; 2]),
    ("set setex psetex restore mset bitop copy sort", [&["OW", "update"]; 2]),
    ("del unlink", [&["RM", "delete"]; 2]),
    ("hdel getdel", [&["RW", "delete"]; 2]),
    ("rename", [&["RW", "delete"], &["OW", "update"]]),
    ("renamenx", [&["RW", "delete"], &["OW", "insert"]]),
    ("lpush rpush lpushx rpushx linsert sadd", [&["RW", "insert"]; 2]),
    ("lmove rpoplpush blmove brpoplpush smove", [&["RW", "delete"], &["RW", "insert"]]),
    (
        "lpop rpop lmpop blpop brpop blmpop lrem ltrim spop srem zpopmin zpopmax zmpop bzpopmin \
         bzpopmax bzmpop zrem zremrangebyrank zremrangebyscore zremrangebylex",
        [&["RW", "delete"]; 2],
    ),
    (
        "sunionstore sdiffstore zrangestore zunionstore zinterstore zdiffstore",
        [&["OW", "update"]; 2],
    ),
];

/// Returns the flags that Redis gives to the `nth` key of a command.
fn key_flags(spec: &CommandSpec, nth: usize, access: KeyAccess) -> Vec<&'static str> {
    if !access.write {
        return if access.read { vec!["RO", "access"] } else { vec!["RO"] };
    }
    let is_named = |(names, _): &&(&str, _)| names.split(' ').any(|name| name == spec.name);
    let flags = WRITES.iter().find(is_named).map(|(_, flags)| flags[nth.min(1)]);
    let mut flags = flags.unwrap_or(&["RW", "update"]).to_vec();
    if access.read {
        // SET with GET also reads the value that it overwrites.
        flags[0] = "RW";
        flags.insert(1, "access");
    }
    flags
}

/// Returns the ranges of a command's keys in the form of `COMMAND INFO`: the access to the keys,
/// the position of the first, that of the last relative to it (negative: from the end), and the
/// step.
fn key_ranges(spec: &CommandSpec) -> Vec<(KeyAccess, i64, i64, i64)> {
    let (first, last, step) = spec.keys;
    let access = |nth| spec.access(nth, Arguments::default());
    match spec.access {
        _ if first == 0 => Vec::new(),
        // The number of the other keys is an argument.
        _ if spec.key_count_at > 0 => vec![(access(0), first, 0, 1)],
        // The position of a key that an option names is not known.
        _ if spec.last_key.is_some() => vec![(access(0), first, 0, 1)],
        KeyAccesses::FirstAndRest(..) => {
            let rest = if last < 0 { last } else { last - first - 1 };
            vec![(access(0), first, 0, 1), (access(1), first + 1, rest, step)]
        }
        _ => vec![(access(0), first, if last < 0 { last } else { last - first }, step)],
    }
}

fn docs(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let table = context.table;
    if arguments.len() == 2 {
        let documents = || {
            let specs = table.catalog.all().iter();
            specs.filter_map(|spec| Document::of(table, spec.name))
        };
        return write_documents(context, documents, out);
    }
    let documents = || {
        let names = arguments.iter_from(2).map(|name| String::from_utf8_lossy(name));
        names.filter_map(|name| Document::of(table, &name.to_ascii_lowercase()))
    };
    write_documents(context, documents, out)
}

/// Writes documents one by one, because a request may name a command ten million times.
fn write_documents<'a, D: Iterator<Item = Document<'a>>>(
    context: &Context<'_>,
    documents: impl Fn() -> D,
    out: &mut Replies,
) -> Result {
    let start = out.bytes.len();
    out.map(documents().count());
    for document in documents() {
        document.write(out);
        context.check_reply(out, start)?;
    }
    Ok(CommandOutcome::Done)
}

/// The documentation of a command or a subcommand.
struct Document<'a> {
    /// `command` or `command|subcommand`.
    name: String,
    summary: &'a str,
    description: &'a Description,
}

impl<'a> Document<'a> {
    /// Returns the document for a name in lower case.
    fn of(table: &'a CommandTable, name: &str) -> Option<Self> {
        let (command, subcommand) = match name.split_once('|') {
            Some((command, subcommand)) => (command, Some(subcommand)),
            None => (name, None),
        };
        let summary = table.catalog.find(command.as_bytes())?.summary;
        let description = table.descriptions.get(command)?;
        let (summary, description) = match subcommand {
            None => (summary, description),
            Some(subcommand) => {
                let description = description.subcommands.get(subcommand)?;
                (description.summary, description)
            }
        };
        Some(Self { name: name.to_owned(), summary, description })
    }

    /// Writes the name, and the map of Redis 7.
    fn write(&self, out: &mut Replies) {
        let description = self.description;
        let mut texts = vec![
            ("summary", self.summary),
            ("since", description.since),
            ("group", description.group),
            ("complexity", description.complexity),
        ];
        texts.extend(description.deprecated_since.map(|since| ("deprecated_since", since)));
        texts.extend(description.replaced_by.map(|instead| ("replaced_by", instead)));
        let is_deprecated = description.deprecated_since.is_some();
        let (arguments, subcommands) = (&description.arguments, &description.subcommands);
        let parts = [is_deprecated, !arguments.is_empty(), !subcommands.is_empty()];
        out.bulk(self.name.as_bytes());
        out.map(texts.len() + parts.into_iter().filter(|is_present| *is_present).count());
        for (field, text) in texts {
            out.bulk(field.as_bytes());
            out.bulk(text.as_bytes());
        }
        if is_deprecated {
            out.bulk(b"doc_flags");
            out.set(1);
            out.simple("deprecated");
        }
        if !arguments.is_empty() {
            out.bulk(b"arguments");
            write_arguments(arguments, out);
        }
        if !subcommands.is_empty() {
            out.bulk(b"subcommands");
            out.map(subcommands.len());
            for (name, description) in subcommands {
                let name = format!("{}|{name}", self.name);
                Document { name, summary: description.summary, description }.write(out);
            }
        }
    }
}

fn write_arguments(arguments: &[Argument], out: &mut Replies) {
    out.array(arguments.len());
    for argument in arguments {
        let mut texts = vec![("name", &*argument.name), ("type", argument.kind.name())];
        texts.extend(argument.token.map(|token| ("token", token)));
        texts.extend(argument.since.map(|since| ("since", since)));
        texts.extend(argument.deprecated_since.map(|since| ("deprecated_since", since)));
        let flags = [
            (argument.optional, "optional"),
            (argument.multiple, "multiple"),
            (argument.multiple_token, "multiple_token"),
        ];
        let flags: Vec<&str> = flags.iter().filter(|flag| flag.0).map(|flag| flag.1).collect();
        let key = match argument.kind {
            ArgumentKind::Key(specification) | ArgumentKind::KeyPattern(specification) => {
                Some(specification)
            }
            _ => None,
        };
        let parts = [key.is_some(), !flags.is_empty(), !argument.nested.is_empty()];
        out.map(texts.len() + parts.into_iter().filter(|is_present| *is_present).count());
        for (at, (field, text)) in texts.into_iter().enumerate() {
            out.bulk(field.as_bytes());
            out.bulk(text.as_bytes());
            // Redis' order: after the type.
            if let Some(specification) = key.filter(|_| at == 1) {
                out.bulk(b"key_spec_index");
                out.integer(i64::from(specification));
            }
        }
        if !flags.is_empty() {
            out.bulk(b"flags");
            out.set(flags.len());
            flags.iter().for_each(|flag| out.simple(flag));
        }
        if !argument.nested.is_empty() {
            out.bulk(b"arguments");
            write_arguments(&argument.nested, out);
        }
    }
}

fn list(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let commands = context.state.catalog.all().iter();
    let mut specs: Vec<&CommandSpec> =
        commands.flat_map(|spec| std::iter::once(spec).chain(spec.subcommands)).collect();
    if arguments.len() == 5 && arguments.get(2).eq_ignore_ascii_case(b"filterby") {
        let value = arguments.get(4);
        match arguments.get(3).to_ascii_lowercase().as_slice() {
            b"pattern" => {
                let pattern = Pattern::new(&value.to_ascii_lowercase());
                specs.retain(|spec| pattern.matches(spec.name.as_bytes()));
            }
            b"aclcat" => {
                let category = String::from_utf8_lossy(value).to_ascii_lowercase();
                specs.retain(|spec| spec.is_in(&category));
            }
            // No module is loaded.
            b"module" => specs.clear(),
            _ => return Err(CommandError::Syntax),
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

/// Writes one line of COMMAND INFO, with the ten parts of Redis 7.
fn info_of(spec: &CommandSpec, out: &mut Replies) {
    // As in Redis, shard channels are treated as keys.
    let channels = match (spec.name.starts_with('s') && spec.name != "subscribe", spec.channels) {
        (true, ChannelAccess::First) => (1, 1, 1),
        (true, ChannelAccess::Names) => (1, -1, 1),
        _ if spec.name == "sunsubscribe" => (1, -1, 1),
        _ => NO_KEY,
    };
    let (first, last, step) = if channels == NO_KEY { spec.keys } else { channels };
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
    // There are no tips.
    out.array(0);
    let ranges = key_ranges(spec);
    let of_channels = usize::from(channels != NO_KEY);
    let unknown = if spec.name.starts_with("sort") { &UNKNOWN_KEYS[..] } else { &[] };
    let unknown = &unknown[..unknown.len().min(if spec.is_write() { 2 } else { 1 })];
    let counted = usize::from(spec.key_count_at > 0);
    out.array(ranges.len() + counted + of_channels + unknown.len());
    if channels != NO_KEY {
        let last = if last < 0 { last } else { last - first };
        let fields = [("lastkey", last), ("keystep", step), ("limit", 0)];
        write_keys(&["not_key"], first, "range", &fields, out);
    }
    let ranges_before = ranges.len();
    for (nth, (access, first, last, step)) in ranges.into_iter().enumerate() {
        let flags = match spec.access {
            KeyAccesses::OfArguments(_) => vec!["RW", "access", "update", "variable_flags"],
            _ => key_flags(spec, nth, access),
        };
        let fields = [("lastkey", last), ("keystep", step), ("limit", 0)];
        write_keys(&flags, first, "range", &fields, out);
    }
    if let Ok(at @ 1..) = i64::try_from(spec.key_count_at) {
        let nth = ranges_before;
        let flags = key_flags(spec, nth, spec.access(nth, Arguments::default()));
        let fields = [("keynumidx", 0), ("firstkey", 1), ("keystep", 1)];
        write_keys(&flags, at, "keynum", &fields, out);
    }
    for (note, flags) in unknown {
        out.map(4);
        out.bulk(b"notes");
        out.bulk(note.as_bytes());
        out.bulk(b"flags");
        out.set(flags.len());
        flags.iter().for_each(|flag| out.simple(flag));
        for part in ["begin_search", "find_keys"] {
            out.bulk(part.as_bytes());
            out.map(2);
            out.bulk(b"type");
            out.bulk(b"unknown");
            out.bulk(b"spec");
            out.map(0);
        }
    }
    out.array(spec.subcommands.len());
    spec.subcommands.iter().for_each(|subcommand| info_of(subcommand, out));
}

/// Keys of `SORT` whose positions Redis does not describe, with Redis' words for them and the
/// access.
const UNKNOWN_KEYS: [(&str, [&str; 2]); 2] = [
    (
        "For the optional BY/GET keyword. It is marked 'unknown' because the key names derive from the content of the key we sort",
        ["RO", "access"],
    ),
    (
        "For the optional STORE keyword. It is marked 'unknown' because the keyword can appear anywhere in the argument array",
        ["OW", "update"],
    ),
];

/// Writes a key specification of `COMMAND INFO`.
fn write_keys(flags: &[&str], first: i64, kind: &str, fields: &[(&str, i64)], out: &mut Replies) {
    out.map(3);
    out.bulk(b"flags");
    out.set(flags.len());
    flags.iter().for_each(|flag| out.simple(flag));
    for (part, kind, fields) in
        [("begin_search", "index", &[("index", first)][..]), ("find_keys", kind, fields)]
    {
        out.bulk(part.as_bytes());
        out.map(2);
        out.bulk(b"type");
        out.bulk(kind.as_bytes());
        out.bulk(b"spec");
        out.map(fields.len());
        for (field, value) in fields {
            out.bulk(field.as_bytes());
            out.integer(*value);
        }
    }
}
