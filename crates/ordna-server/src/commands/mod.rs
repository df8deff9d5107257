//! The commands, one file for each group.
//!
//! A new command needs a function and a line of `COMMANDS` in the file of its group, and a line of
//! `descriptions.txt`. A new group needs a file and a line here.

mod acl;
mod backup_transfer;
mod bitfield;
mod bits;
mod blocking;
mod channels;
#[cfg(all(test, debug_assertions))]
mod concurrent_tests;
mod config;
mod connection;
#[cfg(test)]
mod docs_table;
mod elements;
mod expiry;
mod hash;
mod hash_expiry;
mod index;
mod info;
mod introspection;
mod keys;
mod list;
mod logs;
mod migration;
mod ordered;
mod persistence;
mod replication;
mod scripting;
mod search;
mod server;
mod set;
mod snapshots;
mod sort;
mod sorted_set;
mod sorted_set_algebra;
mod sorted_set_ranges;
mod strings;
mod substrings;
mod transactions;

pub use config::set_all as set_settings;
pub use index::{parse_definition, parse_query};

use std::sync::LazyLock;

use crate::execution::command::{Command, CommandTable};
use crate::state::descriptions::DescriptionTable;

/// The documentation of all commands, in the notation of [`DescriptionTable`].
const DESCRIPTIONS: &str = include_str!("descriptions.txt");

/// Returns the table of all commands.
pub fn table() -> &'static CommandTable {
    static TABLE: LazyLock<CommandTable> = LazyLock::new(|| {
        // A test checks that the text can be parsed.
        let descriptions = DescriptionTable::parse(DESCRIPTIONS).unwrap_or_default();
        let groups: &[(&str, &[Command])] = &[
            ("server", acl::COMMANDS),
            ("ordna", backup_transfer::COMMANDS),
            ("bitmap", bitfield::COMMANDS),
            ("bitmap", bits::COMMANDS),
            ("list", blocking::OF_LISTS),
            ("sorted-set", blocking::OF_SORTED_SETS),
            ("pubsub", channels::COMMANDS),
            ("server", config::COMMANDS),
            ("connection", connection::COMMANDS),
            ("generic", expiry::COMMANDS),
            ("hash", hash::COMMANDS),
            ("hash", hash_expiry::COMMANDS),
            ("ordna", index::COMMANDS),
            ("server", info::COMMANDS),
            ("server", introspection::COMMANDS),
            ("generic", keys::COMMANDS),
            ("list", list::COMMANDS),
            ("server", logs::COMMANDS),
            ("generic", migration::COMMANDS),
            ("ordna", ordered::COMMANDS),
            ("server", persistence::COMMANDS),
            ("server", replication::OF_SERVERS),
            ("generic", replication::OF_KEYS),
            ("ordna", replication::ORDERED),
            ("scripting", scripting::COMMANDS),
            ("search", search::COMMANDS),
            ("server", server::COMMANDS),
            ("set", set::COMMANDS),
            ("ordna", snapshots::COMMANDS),
            ("generic", sort::COMMANDS),
            ("sorted-set", sorted_set::COMMANDS),
            ("sorted-set", sorted_set_algebra::COMMANDS),
            ("sorted-set", sorted_set_ranges::COMMANDS),
            ("string", strings::COMMANDS),
            ("string", substrings::COMMANDS),
            ("transactions", transactions::COMMANDS),
        ];
        CommandTable::new(groups, descriptions)
    });
    &TABLE
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::command_spec::{LockMode, NO_KEY};

    #[test]
    fn every_command_is_found_by_its_name_and_only_once() {
        let catalog = &table().catalog;
        assert!(catalog.all().is_sorted_by(|a, b| a.name < b.name), "two have one name");
        for (number, spec) in catalog.all().iter().enumerate() {
            assert_eq!(catalog.number_of(spec.name.to_ascii_uppercase().as_bytes()), Some(number));
            // ACL needs the positions of keys.
            assert!(
                spec.lock != LockMode::ExclusiveIfSeveralKeys || spec.keys != NO_KEY,
                "{}",
                spec.name
            );
            let accesses = spec.keys != NO_KEY || spec.is_write() || !spec.subcommands.is_empty();
            assert!(spec.lock != LockMode::None || !accesses, "{}", spec.name);
        }
        assert!(catalog.find(b"").is_none() && catalog.find(&[b'x'; 99]).is_none());
    }

    #[test]
    fn every_command_is_described() {
        let described = DescriptionTable::parse(DESCRIPTIONS).expect("the text is well-formed");
        let specs = table().catalog.all();
        let names: Vec<_> = specs.iter().map(|spec| spec.name).collect();
        assert_eq!(described.names().collect::<Vec<_>>(), names);
        for spec in specs {
            let mut words: Vec<_> = spec.subcommands.iter().map(|sub| sub.word()).collect();
            words.sort_unstable();
            let described = described.get(spec.name).expect("all are described");
            let subcommands: Vec<_> = described.subcommands.keys().copied().collect();
            assert_eq!(subcommands, words, "{}", spec.name);
        }
    }
}
