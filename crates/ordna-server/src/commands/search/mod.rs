//! The commands of RediSearch for hashes with TAG and NUMERIC fields, in the form that its clients
//! use.
//!
//! An option that is not supported is rejected by an error that names it. All commands run without
//! the keyspace's lock.

mod aggregate;
mod common;
mod define;
mod find;

use crate::execution::command::{Command, CommandOutcome, DEFINE, READ_ALL, Task};
use crate::execution::index_access::read_index;
use crate::state::command_spec::{CommandFlags, NO_KEY, ReadIndexes};

const DROP: CommandFlags =
    CommandFlags::WRITE.or(CommandFlags::DANGEROUS).or(CommandFlags::EVERY_KEY);

pub const COMMANDS: &[Command] = &[
    Command::new(
        "ft._list",
        1,
        READ_ALL,
        NO_KEY,
        "Lists the names of the search indexes.",
        define::list,
    )
    .reads(ReadIndexes::Listed),
    Command::new(
        "ft.aggregate",
        -3,
        READ_ALL,
        NO_KEY,
        "Groups the hashes that match a query, and computes counts and sums of the groups.",
        |context, arguments, _| read_index(context, arguments, aggregate::aggregate),
    )
    .reads(ReadIndexes::Search(1)),
    Command::new("ft.alter", -6, DEFINE, NO_KEY, "Adds fields to a search index.", |_, a, _| {
        Ok(CommandOutcome::Task(Task::new(a, define::alter)))
    }),
    Command::new("ft.create", -4, DEFINE, NO_KEY, "Creates a search index.", |_, a, _| {
        Ok(CommandOutcome::Task(Task::new(a, define::create)))
    }),
    Command::new(
        "ft.cursor",
        -4,
        READ_ALL,
        NO_KEY,
        "Reads more results of an aggregation, or drops its cursor.",
        |context, arguments, _| read_index(context, arguments, aggregate::cursor),
    )
    .reads(ReadIndexes::Search(2)),
    Command::new(
        "ft.dropindex",
        -2,
        DROP,
        NO_KEY,
        "Drops a search index. With DD, also removes its hashes.",
        |_, a, _| Ok(CommandOutcome::Task(Task::new(a, define::drop_index))),
    ),
    Command::new(
        "ft.explain",
        -3,
        READ_ALL,
        NO_KEY,
        "Returns the index and the bounds that a query scans.",
        |context, arguments, _| read_index(context, arguments, find::explain),
    )
    .reads(ReadIndexes::Search(1)),
    Command::new(
        "ft.info",
        2,
        READ_ALL,
        NO_KEY,
        "Describes a search index.",
        |context, arguments, _| read_index(context, arguments, define::info),
    )
    .reads(ReadIndexes::Search(1)),
    Command::new(
        "ft.search",
        -3,
        READ_ALL,
        NO_KEY,
        "Finds the hashes that match a query.",
        |context, arguments, _| read_index(context, arguments, find::search),
    )
    .reads(ReadIndexes::Search(1)),
];
