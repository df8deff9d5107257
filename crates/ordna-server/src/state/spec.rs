//! The description of a command, without the function that executes it: the source of `COMMAND`, of
//! ACL categories and of counters.

use std::collections::HashMap;

use crate::wire::request::Arguments;

/// Positions of the first and last key (negative: from the end), and the step between keys.
pub type KeyPositions = (i64, i64, i64);

pub const NO_KEY: KeyPositions = (0, 0, 0);
pub const ONE_KEY: KeyPositions = (1, 1, 1);
pub const TWO_KEYS: KeyPositions = (1, 2, 1);
pub const ALL_KEYS: KeyPositions = (1, -1, 1);
pub const PAIRS: KeyPositions = (1, -1, 2);

/// How a command holds the keyspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// Beside other commands.
    Shared,
    /// Alone: the command is one step for every other client.
    Alone,
    /// Alone if it names several keys.
    AloneIfSeveral,
    /// Alone for this subcommand.
    AloneFor(&'static str),
}

/// A line of the table of commands.
#[derive(Debug, Clone, Copy)]
pub struct Spec {
    /// Lower case.
    pub name: &'static str,
    /// As Redis counts: the name included; a negative number is a minimum.
    pub arity: i64,
    /// Redis' flags, and Redis' ACL categories with their `@`.
    pub flags: &'static [&'static str],
    pub keys: KeyPositions,
    pub summary: &'static str,
    pub group: &'static str,
    pub hold: Hold,
    /// `MULTI` does not queue it.
    pub at_once: bool,
    /// Subcommands with flags of their own.
    pub subcommands: &'static [(&'static str, Spec)],
}

/// Redis' flag of commands that may need memory.
pub const NEEDS_MEMORY: &str = "denyoom";

/// ACL categories that exist, without their `@`.
pub const CATEGORIES: &[&str] = &[
    "keyspace",
    "read",
    "write",
    "hash",
    "string",
    "bitmap",
    "admin",
    "fast",
    "slow",
    "dangerous",
    "connection",
    "transaction",
    "scripting",
    "ordna",
];

impl Spec {
    pub fn has(&self, flag: &str) -> bool {
        self.flags.contains(&flag)
    }

    pub fn is_write(&self) -> bool {
        self.has("write")
    }

    /// The specification that holds for these arguments.
    pub fn of_call(&self, arguments: Arguments<'_>) -> &Self {
        let is_called = |(sub, _): &&(&str, Self)| {
            arguments.len() > 1 && arguments.get(1).eq_ignore_ascii_case(sub.as_bytes())
        };
        self.subcommands.iter().find(is_called).map_or(self, |(_, spec)| spec)
    }

    /// Whether the command is of an ACL category, named without its `@`.
    pub fn is_in(&self, category: &str) -> bool {
        match category {
            "all" => true,
            "read" => self.has("readonly"),
            "write" => self.is_write(),
            "fast" => self.has("fast"),
            "slow" => !self.has("fast"),
            "hash" | "string" => self.group == category,
            "keyspace" => self.group == "generic" && (self.is_write() || self.has("readonly")),
            "bitmap" => self.group == "bitmap",
            "connection" => self.group == "connection",
            "transaction" => self.group == "transactions",
            "scripting" => self.group == "scripting",
            "ordna" => ["ordna", "search"].contains(&self.group),
            "admin" => self.has("admin"),
            "dangerous" => self.has("admin") || self.has("@dangerous"),
            _ => false,
        }
    }

    /// The categories of the command, without their `@`.
    pub fn categories(&self) -> impl Iterator<Item = &'static str> {
        CATEGORIES.iter().copied().filter(|category| self.is_in(category))
    }

    /// Whether this number of arguments, the name included, suits the command.
    pub fn suits(&self, arguments: usize) -> bool {
        suits(self.arity, arguments)
    }

    /// Positions of the keys among this number of arguments.
    pub fn key_positions(&self, arguments: usize) -> impl Iterator<Item = usize> + use<> {
        let (first, last, step) = self.keys;
        let last = if last < 0 { arguments as i64 + last } else { last };
        let last = last.min(arguments as i64 - 1);
        let range = if first == 0 { 1..1 } else { first..last + 1 };
        range.step_by(step.max(1) as usize).map(|at| at as usize)
    }
}

/// Whether this number of arguments suits an arity as Redis counts it.
pub fn suits(arity: i64, arguments: usize) -> bool {
    let arguments = arguments as i64;
    if arity < 0 { arguments >= -arity } else { arguments == arity }
}

/// The specifications of all commands, by name and by number.
#[derive(Debug, Default)]
pub struct Catalog {
    /// Sorted by name.
    specs: Vec<Spec>,
    numbers: HashMap<&'static str, usize>,
}

impl Catalog {
    pub fn new(mut specs: Vec<Spec>) -> Self {
        specs.sort_by_key(|spec| spec.name);
        let numbers = specs.iter().enumerate().map(|(number, spec)| (spec.name, number)).collect();
        Self { specs, numbers }
    }

    pub fn all(&self) -> &[Spec] {
        &self.specs
    }

    /// The number of a command, its name in any case.
    pub fn number_of(&self, name: &[u8]) -> Option<usize> {
        const LONGEST: usize = 24;
        let mut lower = [0; LONGEST];
        let lower = lower.get_mut(..name.len())?;
        lower.copy_from_slice(name);
        lower.make_ascii_lowercase();
        self.numbers.get(std::str::from_utf8(lower).ok()?).copied()
    }

    /// The same for a client whose last command had this number: most repeat it.
    #[inline]
    pub fn number_after(&self, last: usize, name: &[u8]) -> Option<usize> {
        let same = |spec: &Spec| spec.name.as_bytes().eq_ignore_ascii_case(name);
        if self.specs.get(last).is_some_and(same) { Some(last) } else { self.number_of(name) }
    }

    pub fn find(&self, name: &[u8]) -> Option<&Spec> {
        self.number_of(name).and_then(|number| self.specs.get(number))
    }
}
