//! The table of commands in `docs/server.md`, which is made from the command descriptions.
//!
//! `ORDNA_WRITE_DOCS=1 cargo test -p ordna-server --lib docs_table` writes it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::table;
use crate::state::acl::redis_commands;

const BEGIN: &str =
    "<!-- commands: written by a test, see crates/ordna-server/src/commands/docs_table.rs -->\n";
const END: &str = "<!-- end of commands -->\n";

/// Groups in the order of the table, with their names in it.
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

/// Names as `A`, `B`, and those with subcommands as `C X`, `Y`.
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

/// The table, and what of Redis is missing.
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
        // Of a command that is absent as a whole the subcommands say nothing.
        if catalog.find(command.as_bytes()).is_some() {
            missing.extend(words.iter().map(|word| (*word).to_owned()));
        }
    }
    text.push_str(&format!("\nCommands of Redis 7.0 that Ordna lacks: {}.\n", listed(&missing)));
    text
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
