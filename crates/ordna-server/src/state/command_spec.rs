//! Descriptions of commands, without the functions that execute them: the source of `COMMAND`, of
//! ACL categories and of counters.

use std::collections::HashMap;
use std::ops::Bound;

use crate::wire::request::{Arguments, number};

/// Positions of the first and last key (negative: from the end), and the step between keys.
pub type KeyPositions = (i64, i64, i64);

pub const NO_KEY: KeyPositions = (0, 0, 0);
pub const ONE_KEY: KeyPositions = (1, 1, 1);
pub const TWO_KEYS: KeyPositions = (1, 2, 1);
pub const ALL_KEYS: KeyPositions = (1, -1, 1);
pub const PAIRS: KeyPositions = (1, -1, 2);

/// The access to a key that a command needs from ACL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyAccess {
    pub read: bool,
    pub write: bool,
}

impl KeyAccess {
    /// Access to neither: the command only shows that the key exists, or the type, length or
    /// encoding of its value. A pattern with any access permits this.
    pub const METADATA: Self = Self { read: false, write: false };
    pub const READ: Self = Self { read: true, write: false };
    pub const WRITE: Self = Self { read: false, write: true };
    pub const READ_WRITE: Self = Self { read: true, write: true };
}

/// The access to each key of a command.
#[derive(Debug, Clone, Copy)]
pub enum KeyAccesses {
    /// Derived from the flags: the command reads unless it only writes, and writes if it is a
    /// write.
    OfFlags,
    /// The same access to all keys.
    All(KeyAccess),
    /// The first key, and the others.
    FirstAndRest(KeyAccess, KeyAccess),
    /// Depends on the arguments, but not on the key.
    OfArguments(fn(Arguments<'_>) -> KeyAccess),
}

/// The arguments that name channels, for ACL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChannelAccess {
    /// None, or channels that every user may name.
    None,
    /// The first argument.
    First,
    /// All arguments.
    Names,
    /// All arguments. A pattern must itself be allowed; a more general pattern that matches it is
    /// not enough.
    Patterns,
}

/// The lower and upper bound of the keys that a call may read or remove without naming them.
pub type KeyRange = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// The indexes that a command reads. A user may read an index if it may read all keys with the
/// index's prefixes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadIndexes {
    /// The index of `ORDNA.INDEX` named by the argument at this position.
    Composite(usize),
    /// The index of `FT.CREATE` named by the argument at this position.
    Search(usize),
    /// The definitions of all indexes. The reply leaves out those that the user may not read.
    Listed,
}

/// How a command locks the keyspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockMode {
    /// None: the command accesses no key, and is executed even while a script holds the keyspace.
    None,
    /// Shared: the command runs concurrently with others.
    Shared,
    /// Exclusive: the command is one step for all other clients.
    Exclusive,
    /// Exclusive if the command names several keys, and shared otherwise.
    ExclusiveIfSeveralKeys,
}

/// The length that a value may have after a command.
#[derive(Debug, Clone, Copy)]
pub enum Growth {
    /// At most the length of the former value and the arguments together.
    Arguments,
    /// As computed from the arguments, whatever their own length is.
    Declared(fn(Arguments<'_>) -> usize),
    /// The length of another value.
    Copies,
}

/// The flags of a command, one bit each.
///
/// The first eighteen are Redis' own, and `COMMAND` shows their names. The others are internal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommandFlags(u32);

impl CommandFlags {
    /// Writes to the keyspace.
    pub const WRITE: Self = Self(1 << 0);
    /// Reads the keyspace and never writes to it.
    pub const READONLY: Self = Self(1 << 1);
    /// May need memory, and is therefore refused at the memory limit.
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
    /// Refused inside `MULTI`.
    pub const NO_MULTI: Self = Self(1 << 9);
    /// Allowed while a script runs.
    pub const ALLOW_BUSY: Self = Self(1 << 10);
    /// Not allowed while the server loads in the background.
    pub const NO_ASYNC_LOADING: Self = Self(1 << 11);
    /// Runs a script. `MONITOR` shows this command before the commands that the script calls.
    pub const SKIP_MONITOR: Self = Self(1 << 12);
    /// Not in the slow log, which has the commands that it executes instead.
    pub const SKIP_SLOWLOG: Self = Self(1 << 13);
    /// May be called without a key.
    pub const NO_MANDATORY_KEYS: Self = Self(1 << 14);
    /// An argument gives the number of keys.
    pub const MOVABLEKEYS: Self = Self(1 << 15);

    /// Publishes, or changes or shows subscriptions.
    pub const PUBSUB: Self = Self(1 << 16);
    /// May wait for another client.
    pub const BLOCKING: Self = Self(1 << 17);

    /// A write that also returns the old value: it needs read access to its keys.
    pub const RETURNS_OLD_VALUE: Self = Self(1 << 18);
    /// Names no keys and may access all of them.
    pub const EVERY_KEY: Self = Self(1 << 19);
    /// In the ACL category `@dangerous` without being [`ADMIN`](Self::ADMIN).
    pub const DANGEROUS: Self = Self(1 << 20);
    /// Executed inside `MULTI` instead of being queued.
    pub const NOT_QUEUED: Self = Self(1 << 21);
    /// Executes the queued commands of a transaction, and writes if one of them does.
    pub const EXECUTES_QUEUE: Self = Self(1 << 22);
    /// Only reads if it is called with a single key and no other arguments.
    pub const READS_WITHOUT_OPTIONS: Self = Self(1 << 23);
    /// The arguments are kept out of logs, because they may contain passwords.
    pub const SECRET: Self = Self(1 << 24);
    /// Executed while clients are paused, because it can end the pause.
    pub const IGNORES_PAUSE: Self = Self(1 << 25);
    /// Executes a script, which may write.
    pub const SCRIPT: Self = Self(1 << 26);

    /// Allowed to a client that speaks RESP2 and has subscriptions.
    pub const WHILE_SUBSCRIBED: Self = Self(1 << 27);

    /// May hold the keyspace for a long time, because it executes a script.
    pub const RUNS_LONG: Self = Self(1 << 28);
    /// Ends the running script.
    pub const KILLS_SCRIPT: Self = Self(1 << 29);
    /// Accesses no key, but still waits for a script until that counts as busy.
    pub const WAITS_FOR_SCRIPT: Self = Self(1 << 30);
    /// Changes a deadline, so that a snapshot may need a copy of the value.
    pub const CHANGES_DEADLINE: Self = Self(1 << 31);

    /// Names of Redis' flags, by bit.
    const NAMES: [&str; 18] = [
        "write",
        "readonly",
        "denyoom",
        "admin",
        "noscript",
        "loading",
        "stale",
        "fast",
        "no_auth",
        "no_multi",
        "allow_busy",
        "no_async_loading",
        "skip_monitor",
        "skip_slowlog",
        "no_mandatory_keys",
        "movablekeys",
        "pubsub",
        "blocking",
    ];

    /// Returns the flags of both.
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// No flags.
    pub const NONE: Self = Self(0);

    /// Returns whether all flags of `other` are set.
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

/// The description of a command or subcommand.
#[derive(Debug, Clone, Copy)]
pub struct CommandSpec {
    /// The name in lower case. A subcommand's name includes that of its command: `config|get`.
    pub name: &'static str,
    /// The number of arguments as Redis counts it, with the name; a negative number is a minimum.
    pub arity: i64,
    pub flags: CommandFlags,
    pub keys: KeyPositions,
    /// Position of the argument that gives the number of the following keys; 0 if there is none.
    pub key_count_at: usize,
    /// Finds the position of a last key that an option names.
    pub last_key: Option<fn(Arguments<'_>) -> Option<usize>>,
    pub access: KeyAccesses,
    pub channels: ChannelAccess,
    /// For a command that names no keys and may access all of them: returns the keys that a call
    /// accesses, or `None` for all keys.
    pub range: Option<fn(Arguments<'_>) -> Option<KeyRange>>,
    /// For a command that names no keys and reads indexes: the indexes.
    pub indexes: Option<ReadIndexes>,
    pub summary: &'static str,
    pub group: &'static str,
    /// ACL categories in addition to those that follow from flags and group.
    pub also_in: &'static [&'static str],
    pub lock: LockMode,
    pub growth: Growth,
    /// Subcommands, each with its own flags. A command with subcommands can only be called with
    /// their names.
    pub subcommands: &'static [CommandSpec],
    /// Number among all commands and subcommands; ACL has one bit for each.
    pub id: usize,
}

/// Redis' ACL categories in its order, without their `@`, and Ordna's own.
pub const CATEGORIES: &[&str] = &[
    "keyspace",
    "read",
    "write",
    "set",
    "sortedset",
    "list",
    "hash",
    "string",
    "bitmap",
    "hyperloglog",
    "geo",
    "stream",
    "pubsub",
    "admin",
    "fast",
    "slow",
    "blocking",
    "dangerous",
    "connection",
    "transaction",
    "scripting",
    "ordna",
];

impl CommandSpec {
    /// Returns whether all of these flags are set.
    #[inline]
    pub const fn has(&self, flags: CommandFlags) -> bool {
        self.flags.has(flags)
    }

    /// Returns whether a call may write.
    pub fn is_write(&self) -> bool {
        self.has(CommandFlags::WRITE) || self.has(CommandFlags::SCRIPT)
    }

    /// Returns the last part of the name: `get` of `config|get`.
    pub fn word(&self) -> &'static str {
        self.name.rsplit('|').next().unwrap_or(self.name)
    }

    /// Returns the subcommand of this name, in any case.
    pub fn subcommand(&self, word: &[u8]) -> Option<&'static Self> {
        self.subcommands.iter().find(|sub| word.eq_ignore_ascii_case(sub.word().as_bytes()))
    }

    /// Returns the specification for these arguments: that of the subcommand, if they name one.
    pub fn of_call(&'static self, arguments: Arguments<'_>) -> &'static Self {
        if self.subcommands.is_empty() || arguments.len() < 2 {
            return self;
        }
        self.subcommand(arguments.get(1)).unwrap_or(self)
    }

    /// Returns whether the command is of an ACL category, named without its `@`.
    pub fn is_in(&self, category: &str) -> bool {
        let by_nature = match category {
            "all" => true,
            // As in Redis, this excludes the commands that run read-only scripts.
            "read" => self.has(CommandFlags::READONLY) && !self.has(CommandFlags::RUNS_LONG),
            "write" => self.has(CommandFlags::WRITE),
            "fast" => self.has(CommandFlags::FAST),
            "slow" => !self.has(CommandFlags::FAST),
            // In Redis, commands that only contain subcommands belong to no category of their
            // group.
            _ if !self.subcommands.is_empty() => false,
            "hash" | "string" | "bitmap" | "connection" | "scripting" | "set" | "list" => {
                self.group == category
            }
            "sortedset" => self.group == "sorted-set",
            "keyspace" => {
                // As in Redis, SORT belongs only to the categories of the types that it sorts.
                self.group == "generic"
                    && !self.name.starts_with("sort")
                    && (self.has(CommandFlags::WRITE) || self.has(CommandFlags::READONLY))
            }
            "transaction" => self.group == "transactions",
            "ordna" => ["ordna", "search"].contains(&self.group),
            "admin" => self.has(CommandFlags::ADMIN),
            "pubsub" => self.has(CommandFlags::PUBSUB),
            "blocking" => self.has(CommandFlags::BLOCKING),
            "dangerous" => self.has(CommandFlags::ADMIN) || self.has(CommandFlags::DANGEROUS),
            _ => false,
        };
        by_nature || self.also_in.contains(&category)
    }

    /// Returns the categories of the command, without their `@`.
    pub fn categories(&self) -> impl Iterator<Item = &'static str> {
        CATEGORIES.iter().copied().filter(|category| self.is_in(category))
    }

    /// Returns whether the command accepts this number of arguments, including the name.
    pub fn suits(&self, arguments: usize) -> bool {
        suits(self.arity, arguments)
    }

    /// Positions of the keys among the arguments.
    pub fn key_positions(&self, arguments: Arguments<'_>) -> impl Iterator<Item = usize> + use<> {
        let count = arguments.len() as i64;
        let (first, last, step) = self.keys;
        let last = if last < 0 { count + last } else { last };
        let last = last.min(count - 1);
        let range = if first == 0 { 1..1 } else { first..last + 1 };
        let (range, counted) = match self.key_count_at {
            0 => (range, 1..1),
            // A call with an impossible number of keys is rejected by the command itself.
            at => match number(arguments.get(at)) {
                Some(keys) if keys > 0 && keys < count - at as i64 => {
                    let first = at as i64 + 1;
                    (range, first..first + keys)
                }
                _ => (1..1, 1..1),
            },
        };
        let last = self.last_key.and_then(|last| last(arguments));
        range.step_by(step.max(1) as usize).chain(counted).map(|at| at as usize).chain(last)
    }

    /// Positions of the channels among the arguments.
    pub fn channel_positions(&self, arguments: Arguments<'_>) -> std::ops::Range<usize> {
        match self.channels {
            ChannelAccess::None => 0..0,
            ChannelAccess::First => 1..arguments.len().min(2),
            ChannelAccess::Names | ChannelAccess::Patterns => 1..arguments.len().max(1),
        }
    }

    /// Returns the access to the key at place `nth` among the keys of these arguments.
    pub fn access(&self, nth: usize, arguments: Arguments<'_>) -> KeyAccess {
        match self.access {
            KeyAccesses::OfFlags => {
                let write = self.has(CommandFlags::WRITE);
                KeyAccess { read: !write || self.has(CommandFlags::RETURNS_OLD_VALUE), write }
            }
            KeyAccesses::All(access) => access,
            KeyAccesses::FirstAndRest(first, rest) => {
                if nth == 0 {
                    first
                } else {
                    rest
                }
            }
            KeyAccesses::OfArguments(access) => access(arguments),
        }
    }
}

/// Returns whether an arity, as Redis counts it, permits this number of arguments.
pub fn suits(arity: i64, arguments: usize) -> bool {
    let arguments = arguments as i64;
    if arity < 0 { arguments >= -arity } else { arguments == arity }
}

/// The specifications of all commands, by name and by number.
#[derive(Debug, Default)]
pub struct Catalog {
    /// Sorted by name.
    specs: Vec<CommandSpec>,
    /// Names of commands and subcommands, by [`CommandSpec::id`].
    names: Vec<&'static str>,
    numbers: HashMap<&'static str, usize>,
}

impl Catalog {
    pub fn new(mut specs: Vec<CommandSpec>) -> Self {
        specs.sort_by_key(|spec| spec.name);
        let numbers = specs.iter().enumerate().map(|(number, spec)| (spec.name, number)).collect();
        let mut all: Vec<_> = specs
            .iter()
            .flat_map(|spec| std::iter::once(spec).chain(spec.subcommands))
            .map(|spec| (spec.id, spec.name))
            .collect();
        all.sort_unstable();
        let names = all.into_iter().map(|(_, name)| name).collect();
        Self { specs, names, numbers }
    }

    pub fn all(&self) -> &[CommandSpec] {
        &self.specs
    }

    /// Returns all commands, each followed by its subcommands.
    pub fn with_subcommands(&self) -> impl Iterator<Item = &CommandSpec> {
        self.specs.iter().flat_map(|spec| std::iter::once(spec).chain(spec.subcommands))
    }

    /// Returns the name of the command or subcommand with this [`id`](CommandSpec::id).
    pub fn name_of(&self, id: usize) -> Option<&'static str> {
        self.names.get(id).copied()
    }

    /// Returns the command or subcommand of a name such as `get` or `config|get`, in any case.
    pub fn by_full_name(&self, name: &str) -> Option<&CommandSpec> {
        match name.split_once('|') {
            None => self.find(name.as_bytes()),
            Some((command, word)) => self.find(command.as_bytes())?.subcommand(word.as_bytes()),
        }
    }

    /// Returns the number of a command, its name in any case.
    pub fn number_of(&self, name: &[u8]) -> Option<usize> {
        const LONGEST: usize = 24;
        let mut lower = [0; LONGEST];
        let lower = lower.get_mut(..name.len())?;
        lower.copy_from_slice(name);
        lower.make_ascii_lowercase();
        self.numbers.get(std::str::from_utf8(lower).ok()?).copied()
    }

    /// Works like [`number_of`](Self::number_of), for a client whose last command had this number,
    /// because most clients repeat it.
    #[inline]
    pub fn number_after(&self, last: usize, name: &[u8]) -> Option<usize> {
        let same = |spec: &CommandSpec| spec.name.as_bytes().eq_ignore_ascii_case(name);
        if self.specs.get(last).is_some_and(same) { Some(last) } else { self.number_of(name) }
    }

    pub fn find(&self, name: &[u8]) -> Option<&CommandSpec> {
        self.number_of(name).and_then(|number| self.specs.get(number))
    }
}
