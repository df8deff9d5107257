//! The table of commands in `docs/server.md`, and the page `docs/commands.md`, which are generated
//! from the command descriptions.
//!
//! `ORDNA_WRITE_DOCS=1 cargo test -p ordna-server --lib docs_table` writes both.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::table;
use crate::state::acl::redis_commands;
use crate::state::command_spec::{CommandFlags, CommandSpec, LockMode};
use crate::state::descriptions::{Argument, ArgumentKind, Description};

const BEGIN: &str =
    "<!-- commands: written by a test, see crates/ordna-server/src/commands/docs_table.rs -->\n";
const END: &str = "<!-- end of commands -->\n";
const HOW: &str = "ORDNA_WRITE_DOCS=1 cargo test -p ordna-server --lib docs_table";

/// The beginning of `docs/commands.md`.
const REFERENCE: &str = "# Commands

Each command with its arguments, what it does, and its cost. [Operating the server](server.md) explains the ordered commands,
indexes, scripts and messages, and lists what of Redis is missing. A test writes this page from the descriptions that
`COMMAND DOCS` returns; `help NAME` in `ordna shell` shows the same.

- `[a]` is optional, `(a | b)` is one of the arguments, `a [a …]` is once or more.
- *Write* and *read* say what ACL needs. *Alone*: no other command runs at the same time, so it is one step for all clients.
  Commands on one key are one step without that.
- *Since* is a version of Redis. Without it the command is Ordna's, or one of RediSearch's or Valkey's.
";

/// The groups in the order of the table, with their titles.
const GROUPS: &[(&str, &str)] = &[
    ("string", "strings"),
    ("bitmap", "bits of strings"),
    ("hash", "hashes"),
    ("list", "lists"),
    ("set", "sets"),
    ("sorted-set", "sorted sets"),
    ("generic", "keys of any type"),
    ("ordna", "the order of keys, snapshots, indexes"),
    ("search", "queries of RediSearch"),
    ("pubsub", "messages"),
    ("scripting", "scripts"),
    ("transactions", "transactions"),
    ("connection", "connection"),
    ("server", "server"),
];

/// Commands of Redis 7.2 to 8.6 and of Valkey 8 and 9.1 that Ordna lacks, with subcommands as in
/// [`redis_commands`]. Subcommands of commands that it lacks completely are left out, and so are
/// those of Redis' modules.
const NEWER: &str = "
    client|capa,import-source clusterscan commandlog delex digest hotkeys msetex script|show vadd vcard
    vdim vemb vgetattr vinfo vismember vlinks vrandmember vrange vrem vsetattr vsim waitaof xackdel xcfgset
    xdelex";

/// Options of the same versions that Ordna lacks.
const NEWER_OPTIONS: &[(&str, &[&str])] = &[
    ("bitop", &["DIFF", "DIFF1", "ANDOR", "ONE"]),
    (
        "client|kill",
        &["MAXAGE", "FLAGS", "NAME", "IDLE", "LIB-NAME", "LIB-VER", "DB", "CAPA", "IP", "NOT-…"],
    ),
    (
        "client|list",
        &[
            "USER", "ADDR", "MAXAGE", "FLAGS", "NAME", "IDLE", "LIB-NAME", "LIB-VER", "DB", "CAPA",
            "IP", "NOT-…",
        ],
    ),
    ("hsetex", &["NX", "XX"]),
    ("set", &["IFNE", "IFDEQ", "IFDNE"]),
    ("shutdown", &["SAFE"]),
];

/// Returns the commands with their subcommands, as [`NEWER`] names them.
fn newer() -> BTreeMap<String, BTreeSet<String>> {
    let names = NEWER.split_whitespace().map(|name| match name.split_once('|') {
        Some((name, words)) => (name.to_owned(), words.split(',').map(str::to_owned).collect()),
        None => (name.to_owned(), BTreeSet::new()),
    });
    names.collect()
}

/// Formats names as `A`, `B`, and those with subcommands as `C X`, `Y`.
fn listed(names: &BTreeMap<String, BTreeSet<String>>) -> String {
    let shown = names.iter().map(|(name, words)| {
        let words: Vec<String> = words.iter().map(|word| word.to_ascii_uppercase()).collect();
        let name = name.to_ascii_uppercase();
        match words.as_slice() {
            [] => format!("`{name}`"),
            words => format!("`{name}` ({})", words.join(", ")),
        }
    });
    shown.collect::<Vec<_>>().join(", ")
}

/// Returns the table, and the list of missing commands of Redis.
fn text() -> String {
    let (catalog, descriptions) = (&table().catalog, &table().descriptions);
    let mut groups: BTreeMap<&str, BTreeMap<String, BTreeSet<String>>> = BTreeMap::new();
    for spec in catalog.all() {
        let group = descriptions.get(spec.name).map_or(spec.group, |described| described.group);
        let words = spec.subcommands.iter().map(|sub| sub.word().to_owned()).collect();
        groups.entry(group).or_default().insert(spec.name.to_owned(), words);
    }
    let mut text = "| | commands |\n|---|---|\n".to_owned();
    for (group, name) in GROUPS {
        let commands = groups.remove(group).unwrap_or_default();
        text.push_str(&format!("| {name} | {} |\n", listed(&commands)));
    }
    assert!(groups.is_empty(), "groups without a name: {groups:?}");
    let mut missing: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (command, words) in redis_commands::all() {
        let missing = missing.entry(command.to_owned()).or_default();
        // For a command that is missing completely, subcommands are not listed.
        if catalog.find(command.as_bytes()).is_some() {
            missing.extend(words.iter().map(|word| (*word).to_owned()));
        }
    }
    text.push_str(&format!("\nCommands of Redis 7.0 that Ordna lacks: {}.\n", listed(&missing)));
    let options = NEWER_OPTIONS.iter().map(|(name, words)| {
        let name = name.to_ascii_uppercase().replace('|', " ");
        format!("`{name}` ({})", words.join(", "))
    });
    let options = options.collect::<Vec<_>>().join(", ");
    text.push_str(&format!(
        "\nNewer ones, of Redis 7.2 to 8.6 and Valkey 8 to 9.1: {}. Options: {options}.\nOf Redis' modules there is a part of `FT`, and no `JSON`, `TS`, `BF`, `CF`, `CMS`, `TOPK` or `TDIGEST`.\n",
        listed(&newer())
    ));
    text
}

/// Returns the usage of an argument.
fn usage(argument: &Argument) -> String {
    let nested = |between| argument.nested.iter().map(usage).collect::<Vec<_>>().join(between);
    let body = match argument.kind {
        ArgumentKind::PureToken => String::new(),
        ArgumentKind::OneOf => nested(" | "),
        ArgumentKind::Block => nested(" "),
        _ => argument.name.clone().into_owned(),
    };
    let is_choice = argument.kind == ArgumentKind::OneOf && argument.nested.len() > 1;
    let is_bracketed = argument.optional && argument.token.is_none() && !argument.multiple;
    let body = if is_choice && !is_bracketed { format!("({body})") } else { body };
    let before = argument.token.filter(|token| !token.is_empty());
    let with_token = [before.unwrap_or_default(), &body];
    let with_token = with_token.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>();
    let with_token = with_token.join(" ");
    let text = match (argument.multiple, argument.multiple_token) {
        (false, _) => with_token,
        (true, true) => format!("{with_token} [{with_token} …]"),
        (true, false) => format!("{with_token} [{body} …]"),
    };
    if argument.optional { format!("[{text}]") } else { text }
}

/// Returns the entry of a command or subcommand in `docs/commands.md`.
fn entry(spec: &CommandSpec, description: &Description, summary: &str) -> String {
    let name = spec.name.to_ascii_uppercase().replace('|', " ");
    let words = description.arguments.iter().map(usage);
    let line = std::iter::once(name.clone()).chain(words).collect::<Vec<_>>().join(" ");
    let mut facts = Vec::new();
    if spec.is_write() {
        facts.push("write".to_owned());
    } else if spec.has(CommandFlags::READONLY) {
        facts.push("read".to_owned());
    }
    facts.push(description.complexity.to_owned());
    match spec.lock {
        LockMode::Exclusive => facts.push("alone".to_owned()),
        LockMode::ExclusiveIfSeveralKeys => {
            facts.push("alone, if it names several keys".to_owned())
        }
        LockMode::None | LockMode::Shared => {}
    }
    // Ordna's own versions begin with 0.
    if !description.since.starts_with("0.") {
        facts.push(format!("since {}", description.since));
    }
    if let Some(version) = description.deprecated_since {
        let instead = description.replaced_by.map_or(String::new(), |by| format!(": {by}"));
        facts.push(format!("deprecated since {version}{instead}"));
    }
    format!("### {name}\n\n```text\n{line}\n```\n\n{summary} *{}*\n\n", facts.join("; "))
}

/// Returns the page `docs/commands.md`.
fn reference() -> String {
    let (catalog, descriptions) = (&table().catalog, &table().descriptions);
    let mut groups: BTreeMap<&str, BTreeMap<&str, String>> = BTreeMap::new();
    for spec in catalog.all() {
        let description = descriptions.get(spec.name).expect("each command is described");
        let text = match spec.subcommands {
            [] => entry(spec, description, spec.summary),
            subcommands => {
                let entries = subcommands.iter().map(|sub| {
                    let description = &description.subcommands[sub.word()];
                    (sub.word(), entry(sub, description, description.summary))
                });
                entries.collect::<BTreeMap<_, _>>().into_values().collect()
            }
        };
        groups.entry(description.group).or_default().insert(spec.name, text);
    }
    let mut page = REFERENCE.to_owned();
    for (group, name) in GROUPS {
        let commands = groups.remove(group).unwrap_or_default();
        let name = format!("{}{}", name[..1].to_ascii_uppercase(), &name[1..]);
        page.push_str(&format!("\n## {name}\n\n"));
        page.extend(commands.into_values());
        page.truncate(page.trim_end().len());
        page.push('\n');
    }
    page
}

#[test]
fn the_page_of_commands_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/commands.md");
    let page = reference();
    if std::env::var_os("ORDNA_WRITE_DOCS").is_some() {
        std::fs::write(&path, page).unwrap();
        return;
    }
    let found = std::fs::read_to_string(&path).unwrap();
    assert!(found == page, "docs/commands.md is stale; update it with {HOW}");
}

/// Checks that commands and options that are listed as missing are missing.
#[test]
fn newer_commands_and_options_are_missing() {
    let (catalog, descriptions) = (&table().catalog, &table().descriptions);
    for (name, words) in newer() {
        let found = catalog.find(name.as_bytes());
        if words.is_empty() {
            assert!(found.is_none(), "{name}");
            continue;
        }
        let known = &found.unwrap_or_else(|| panic!("no {name}")).subcommands;
        for word in words {
            assert!(known.iter().all(|sub| sub.word() != word), "{name}|{word}");
        }
    }
    for (name, options) in NEWER_OPTIONS {
        let (of, word) = name.split_once('|').map_or((*name, None), |(of, word)| (of, Some(word)));
        let described = descriptions.get(of).unwrap_or_else(|| panic!("no {name}"));
        let described = word.map_or(described, |word| &described.subcommands[word]);
        let described = format!("{:?}", described.arguments);
        for option in *options {
            assert!(!described.contains(&format!("\"{option}\"")), "{name} {option}");
        }
    }
}

#[test]
fn the_table_of_commands_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/server.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once(BEGIN).expect("the table begins");
    let (found, after) = rest.split_once(END).expect("the table ends");
    let text = text();
    if std::env::var_os("ORDNA_WRITE_DOCS").is_some() {
        std::fs::write(&path, format!("{before}{BEGIN}{text}{END}{after}")).unwrap();
        return;
    }
    assert_eq!(found, text, "docs/server.md is stale; update it with {HOW}");
}

/// The programs of which docs/how-to/from-redis.md says that they work, or do not, are those that
/// are tested, in these versions.
#[test]
fn the_table_of_programs_is_what_is_tested() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap();
    let page = read("../../docs/how-to/from-redis.md");
    let (_, table) = page.split_once("| program | works |").expect("the table of programs");
    let table = table.lines().take_while(|line| line.is_empty() || line.starts_with('|'));
    let table = table.collect::<Vec<_>>().join("\n").to_lowercase();
    let versions = read("tests/clients/applications.txt");
    let mut tested = 0;
    for line in versions.lines() {
        let (name, version) = line.split_once("==").unwrap();
        let name = name.split('[').next().unwrap().to_lowercase();
        // The client of the others.
        if name == "redis" {
            continue;
        }
        let is_there = table.contains(&format!("{name} {version}"))
            || table.contains(&format!("| {name} | {version}"));
        assert!(is_there, "docs/how-to/from-redis.md lacks {name} {version}");
        tested += 1;
    }
    let script = read("tests/clients/applications.sh");
    for package in ["bee-queue", "bull", "bullmq"] {
        let (_, rest) = script.split_once(&format!(" {package}@")).expect(package);
        let version: String =
            rest.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
        assert!(table.contains(&format!("{package} {version}")), "{package} {version}");
        tested += 1;
    }
    // Each version of the table is one of these, but that from which on rq does not work.
    let is_version = |word: &&str| {
        word.split('.').count() == 3 && word.starts_with(|c: char| c.is_ascii_digit())
    };
    let words =
        table.split(|c: char| !(c.is_ascii_digit() || c == '.')).map(|word| word.trim_matches('.'));
    assert_eq!(words.filter(is_version).count(), tested);
}
