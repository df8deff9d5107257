//! The table of commands in `docs/server.md`, which is generated from the command descriptions.
//!
//! `ORDNA_WRITE_DOCS=1 cargo test -p ordna-server --lib docs_table` writes it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::table;
use crate::state::acl::redis_commands;

const BEGIN: &str =
    "<!-- commands: written by a test, see crates/ordna-server/src/commands/docs_table.rs -->\n";
const END: &str = "<!-- end of commands -->\n";

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
    let how = "ORDNA_WRITE_DOCS=1 cargo test -p ordna-server --lib docs_table";
    assert_eq!(found, text, "docs/server.md is stale; write it anew: {how}");
}
