//! Descriptions of commands, without the functions that execute them: the source of `COMMAND`, of
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

/// How a command locks the keyspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockMode {
    /// Runs concurrently with other commands.
    Shared,
    /// Excludes other commands: the command is one step for every other client.
    Exclusive,
    /// Excludes other commands if it names several keys.
    ExclusiveIfSeveralKeys,
    /// Excludes other commands if this is its subcommand.
    ExclusiveFor(&'static str),
}

/// The flags of a command, one bit each.
///
/// The first nine are Redis' own, and `COMMAND` shows their names. The others stay inside the
/// server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommandFlags(u32);

impl CommandFlags {
    /// Writes to the keyspace.
    pub const WRITE: Self = Self(1 << 0);
    /// Reads the keyspace and never writes to it.
    pub const READONLY: Self = Self(1 << 1);
    /// May need memory: refused when the memory limit is reached.
    pub const DENYOOM: Self = Self(1 << 2);
    /// Administers the server.
    pub const ADMIN: Self = Self(1 << 3);
    /// Not allowed in scripts.
    pub const NOSCRIPT: Self = Self(1 << 4);
    /// Allowed while the server loads its directory.
    pub const LOADING: Self = Self(1 << 5);
    /// Allowed on a stale replica.
    pub const STALE: Self = Self(1 << 6);
    /// Takes constant or logarithmic time.
    pub const FAST: Self = Self(1 << 7);
    /// Allowed before the client has authenticated, and for every user.
    pub const NO_AUTH: Self = Self(1 << 8);

    /// A write that also returns the old value: it needs read access to its keys.
    pub const RETURNS_OLD_VALUE: Self = Self(1 << 9);
    /// Names no keys and may access all of them.
    pub const EVERY_KEY: Self = Self(1 << 10);
    /// In the ACL category `@dangerous` without being [`ADMIN`](Self::ADMIN).
    pub const DANGEROUS: Self = Self(1 << 11);
    /// Executed inside `MULTI` instead of being queued.
    pub const NOT_QUEUED: Self = Self(1 << 12);
    /// Executes the queued commands of a transaction, and writes if one of them does.
    pub const EXECUTES_QUEUE: Self = Self(1 << 13);
    /// Only reads if it is called with a key and nothing else.
    pub const READS_WITHOUT_OPTIONS: Self = Self(1 << 14);
    /// The arguments are kept out of logs, because they may contain passwords.
    pub const SECRET: Self = Self(1 << 15);
    /// Executed while clients are paused: it is able to end the pause.
    pub const IGNORES_PAUSE: Self = Self(1 << 16);

    /// Names of Redis' flags, by bit.
    const NAMES: [&str; 9] = [
        "write", "readonly", "denyoom", "admin", "noscript", "loading", "stale", "fast", "no_auth",
    ];

    /// The flags of both.
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all flags of `other` are set.
    #[inline]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Names of the flags that Redis has.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        let is_set = move |bit: usize| self.0 >> bit & 1 == 1;
        Self::NAMES
            .into_iter()
            .enumerate()
            .filter(move |(bit, _)| is_set(*bit))
            .map(|(_, name)| name)
    }
}

/// The description of a command.
#[derive(Debug, Clone, Copy)]
pub struct CommandSpec {
    /// The name in lower case.
    pub name: &'static str,
    /// The number of arguments as Redis counts it, with the name; a negative number is a minimum.
    pub arity: i64,
    pub flags: CommandFlags,
    pub keys: KeyPositions,
    pub summary: &'static str,
    pub group: &'static str,
    pub lock: LockMode,
    /// Subcommands with flags of their own.
    pub subcommands: &'static [(&'static str, CommandSpec)],
}

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

impl CommandSpec {
    /// Whether all of these flags are set.
    #[inline]
    pub const fn has(&self, flags: CommandFlags) -> bool {
        self.flags.has(flags)
    }

    pub fn is_write(&self) -> bool {
        self.has(CommandFlags::WRITE)
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
            "read" => self.has(CommandFlags::READONLY),
            "write" => self.is_write(),
            "fast" => self.has(CommandFlags::FAST),
            "slow" => !self.has(CommandFlags::FAST),
            "hash" | "string" => self.group == category,
            "keyspace" => {
                self.group == "generic" && (self.is_write() || self.has(CommandFlags::READONLY))
            }
            "bitmap" => self.group == "bitmap",
            "connection" => self.group == "connection",
            "transaction" => self.group == "transactions",
            "scripting" => self.group == "scripting",
            "ordna" => ["ordna", "search"].contains(&self.group),
            "admin" => self.has(CommandFlags::ADMIN),
            "dangerous" => self.has(CommandFlags::ADMIN) || self.has(CommandFlags::DANGEROUS),
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
    specs: Vec<CommandSpec>,
    numbers: HashMap<&'static str, usize>,
}

impl Catalog {
    pub fn new(mut specs: Vec<CommandSpec>) -> Self {
        specs.sort_by_key(|spec| spec.name);
        let numbers = specs.iter().enumerate().map(|(number, spec)| (spec.name, number)).collect();
        Self { specs, numbers }
    }

    pub fn all(&self) -> &[CommandSpec] {
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
        let same = |spec: &CommandSpec| spec.name.as_bytes().eq_ignore_ascii_case(name);
        if self.specs.get(last).is_some_and(same) { Some(last) } else { self.number_of(name) }
    }

    pub fn find(&self, name: &[u8]) -> Option<&CommandSpec> {
        self.number_of(name).and_then(|number| self.specs.get(number))
    }
}
