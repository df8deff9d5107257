//! A set of permissions: commands, keys and channels.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use ordna::key::prefix_end;

use crate::indexes::Indexes;
use crate::keyspace::glob::{Pattern, literal_prefix};
use crate::state::acl::redis_commands;
use crate::state::command_spec::{
    CATEGORIES, Catalog, ChannelAccess, CommandFlags, CommandSpec, KeyAccess, KeyRange, ReadIndexes,
};
use crate::wire::request::Arguments;

/// The reason why a rule cannot be applied, in Redis' words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    #[error("Syntax error")]
    Syntax,
    #[error("The password you are trying to remove from the user does not exist")]
    NoSuchPassword,
    #[error(
        "The password hash must be exactly 64 characters and contain only lowercase hexadecimal characters"
    )]
    BadHash,
    #[error(
        "Adding a pattern after the * pattern (or the 'allkeys' flag) is not valid and does not have any effect. Try 'resetkeys' to start with an empty list of patterns"
    )]
    PatternAfterAllKeys,
    #[error(
        "Adding a pattern after the * pattern (or the 'allchannels' flag) is not valid and does not have any effect. Try 'resetchannels' to start with an empty list of channels"
    )]
    PatternAfterAllChannels,
    #[error("Unknown command or category name in ACL")]
    UnknownCommand,
    #[error("Allowing first-arg of a subcommand is not supported")]
    ArgumentOfSubcommand,
}

/// The reason why a selector refuses a call. Of the reasons of two selectors, the later variant is
/// the more relevant one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Denied {
    Command,
    /// The position of the key among the arguments; 0 if the command accesses keys without naming them.
    Key(usize),
    /// The position of the channel among the arguments.
    Channel(usize),
}

/// A pattern of channels.
#[derive(Debug, Clone)]
struct ChannelRule {
    text: Vec<u8>,
    pattern: Arc<Pattern>,
}

/// A pattern of keys and the access that it allows.
#[derive(Debug, Clone)]
struct KeyRule {
    text: Vec<u8>,
    pattern: Arc<Pattern>,
    access: KeyAccess,
}

impl KeyRule {
    fn permits(&self, needed: KeyAccess) -> bool {
        (self.access.read || !needed.read) && (self.access.write || !needed.write)
    }

    /// Returns whether the pattern is a prefix followed by `*` and matches all keys of a range.
    fn covers(&self, (lower, upper): &KeyRange) -> bool {
        let prefix = literal_prefix(&self.text);
        if &self.text[prefix.len()..] != b"*" {
            return false;
        }
        let begins_within = match lower {
            Bound::Included(lower) | Bound::Excluded(lower) => lower.as_slice() >= prefix,
            Bound::Unbounded => prefix.is_empty(),
        };
        let ends_within = match (prefix_end(prefix), upper) {
            (None, _) => true,
            (Some(end), Bound::Included(upper)) => *upper < end,
            (Some(end), Bound::Excluded(upper)) => *upper <= end,
            (Some(_), Bound::Unbounded) => false,
        };
        begins_within && ends_within
    }
}

/// A set of permissions. A call is allowed if one selector of the user allows all of it.
#[derive(Debug, Clone)]
pub struct Selector {
    /// Whether each command or subcommand is allowed, by its id.
    allowed: Vec<bool>,
    /// First arguments, in lower case, with which a command is allowed that is not allowed in
    /// general.
    first_arguments: BTreeMap<usize, Vec<Vec<u8>>>,
    /// Whether the rules for commands begin with `+@all` rather than `-@all`.
    all_commands: bool,
    /// The rules for commands after the first one, in the order in which they were added.
    rules: Vec<String>,
    all_keys: bool,
    keys: Vec<KeyRule>,
    all_channels: bool,
    channels: Vec<ChannelRule>,
}

/// Returns whether text contains white space or NUL, which separate the words of a file of users.
pub fn has_blanks(text: &[u8]) -> bool {
    text.iter().any(|byte| matches!(byte, b' ' | b'\t'..=b'\r' | b'\0'))
}

impl Selector {
    /// Creates a selector that allows nothing or, if `all_channels`, only messages.
    pub fn new(catalog: &Catalog, all_channels: bool) -> Self {
        Self {
            allowed: vec![false; catalog.with_subcommands().count()],
            first_arguments: BTreeMap::new(),
            all_commands: false,
            rules: Vec::new(),
            all_keys: false,
            keys: Vec::new(),
            all_channels,
            channels: Vec::new(),
        }
    }

    /// Creates a selector that allows everything.
    pub fn unlimited(catalog: &Catalog) -> Self {
        let mut selector = Self::new(catalog, true);
        selector.allow_all(true);
        selector.all_keys = true;
        selector
    }

    /// Returns whether the selector allows everything.
    pub fn is_unlimited(&self) -> bool {
        self.all_commands && self.rules.is_empty() && self.all_keys && self.all_channels
    }

    fn allow_all(&mut self, allow: bool) {
        self.all_commands = allow;
        self.allowed.fill(allow);
        self.first_arguments.clear();
        self.rules.clear();
    }

    /// Checks whether a call is allowed.
    ///
    /// # Errors
    /// The first part of the call that is not allowed.
    pub fn check(
        &self,
        spec: &CommandSpec,
        arguments: Arguments<'_>,
        indexes: &Indexes,
    ) -> Result<(), Denied> {
        // As in Redis, every user may authenticate and disconnect.
        let is_allowed = self.allowed.get(spec.id).copied().unwrap_or(false)
            || spec.has(CommandFlags::NO_AUTH)
            || self.allows_first_argument(spec, arguments);
        if !is_allowed {
            return Err(Denied::Command);
        }
        if !self.all_keys {
            self.check_keys(spec, arguments, indexes)?;
        }
        if !self.all_channels {
            let is_pattern = spec.channels == ChannelAccess::Patterns;
            let mut channels = spec.channel_positions(arguments);
            let denied = channels.find(|at| !self.allows_channel(arguments.get(*at), is_pattern));
            return denied.map_or(Ok(()), |at| Err(Denied::Channel(at)));
        }
        Ok(())
    }

    /// Returns whether messages of a channel, or of all channels that match a pattern, are allowed.
    pub fn allows_channel(&self, channel: &[u8], is_pattern: bool) -> bool {
        let allows = |rule: &ChannelRule| match is_pattern {
            true => rule.text == channel,
            false => rule.pattern.matches(channel),
        };
        self.all_channels || self.channels.iter().any(allows)
    }

    fn check_keys(
        &self,
        spec: &CommandSpec,
        arguments: Arguments<'_>,
        indexes: &Indexes,
    ) -> Result<(), Denied> {
        for (nth, at) in spec.key_positions(arguments).enumerate() {
            let needed = spec.access(nth, arguments);
            let key = arguments.get(at);
            if !self.keys.iter().any(|rule| rule.permits(needed) && rule.pattern.matches(key)) {
                return Err(Denied::Key(at));
            }
        }
        // A command that names no keys and reads many could show some that are not allowed.
        if let Some(read) = spec.indexes {
            return match may_read(self, read, arguments, indexes) {
                true => Ok(()),
                false => Err(Denied::Key(0)),
            };
        }
        if spec.has(CommandFlags::EVERY_KEY) {
            let needed = spec.access(0, arguments);
            let range = spec.range.and_then(|range| range(arguments));
            let range = range.unwrap_or((Bound::Unbounded, Bound::Unbounded));
            if !self.keys.iter().any(|rule| rule.permits(needed) && rule.covers(&range)) {
                return Err(Denied::Key(0));
            }
        }
        Ok(())
    }

    /// Returns whether all keys may be read.
    pub fn reads_all_keys(&self) -> bool {
        self.all_keys || self.keys.iter().any(|rule| rule.access.read && rule.text == b"*")
    }

    /// Returns whether a command is allowed and may read all keys with these prefixes.
    pub fn reads_prefixes(&self, spec: &CommandSpec, prefixes: &[Vec<u8>]) -> bool {
        self.allowed.get(spec.id).copied().unwrap_or(false) && self.covers(prefixes)
    }

    /// Returns whether all keys with these prefixes may be read.
    fn covers(&self, prefixes: &[Vec<u8>]) -> bool {
        let covers = |prefix: &Vec<u8>| {
            let end = prefix_end(prefix).map_or(Bound::Unbounded, Bound::Excluded);
            let range = (Bound::Included(prefix.clone()), end);
            self.keys.iter().any(|rule| rule.permits(KeyAccess::READ) && rule.covers(&range))
        };
        self.all_keys || prefixes.iter().all(covers)
    }

    fn allows_first_argument(&self, spec: &CommandSpec, arguments: Arguments<'_>) -> bool {
        let Some(allowed) = self.first_arguments.get(&spec.id) else { return false };
        arguments.len() > 1
            && allowed.iter().any(|known| known.eq_ignore_ascii_case(arguments.get(1)))
    }

    /// Changes the selector by one rule.
    ///
    /// # Errors
    /// [`RuleError`]; nothing is changed.
    pub fn apply(&mut self, rule: &[u8], catalog: &Catalog) -> Result<(), RuleError> {
        match rule.to_ascii_lowercase().as_slice() {
            b"allkeys" | b"~*" => {
                self.all_keys = true;
                self.keys.clear();
            }
            b"resetkeys" => {
                self.all_keys = false;
                self.keys.clear();
            }
            b"allchannels" | b"&*" => {
                self.all_channels = true;
                self.channels.clear();
            }
            b"resetchannels" => {
                self.all_channels = false;
                self.channels.clear();
            }
            b"allcommands" | b"+@all" => self.allow_all(true),
            b"nocommands" | b"-@all" => self.allow_all(false),
            _ => match rule.split_first() {
                Some((b'~' | b'%', _)) => self.add_keys(rule)?,
                Some((b'&', _)) if self.all_channels => {
                    return Err(RuleError::PatternAfterAllChannels);
                }
                Some((b'&', pattern)) if !has_blanks(pattern) => {
                    if !self.channels.iter().any(|known| known.text == pattern) {
                        let (text, pattern) = (pattern.to_vec(), Arc::new(Pattern::new(pattern)));
                        self.channels.push(ChannelRule { text, pattern });
                    }
                }
                Some((sign @ (b'+' | b'-'), name)) => {
                    let name = str::from_utf8(name).map_err(|_| RuleError::UnknownCommand)?;
                    self.add_command(*sign == b'+', &name.to_ascii_lowercase(), catalog)?;
                }
                _ => return Err(RuleError::Syntax),
            },
        }
        Ok(())
    }

    /// Adds a rule such as `~pattern` or `%R~pattern`.
    fn add_keys(&mut self, rule: &[u8]) -> Result<(), RuleError> {
        if self.all_keys {
            return Err(RuleError::PatternAfterAllKeys);
        }
        let at = rule.iter().position(|byte| *byte == b'~').ok_or(RuleError::Syntax)?;
        let (kinds, text) = (&rule[..at], &rule[at + 1..]);
        let access = match kinds.to_ascii_uppercase().as_slice() {
            b"" | b"%RW" | b"%WR" => KeyAccess::READ_WRITE,
            b"%R" => KeyAccess::READ,
            b"%W" => KeyAccess::WRITE,
            _ => return Err(RuleError::Syntax),
        };
        if has_blanks(text) {
            return Err(RuleError::Syntax);
        }
        if let Some(known) = self.keys.iter_mut().find(|known| known.text == text) {
            known.access.read |= access.read;
            known.access.write |= access.write;
        } else {
            let pattern = Arc::new(Pattern::new(text));
            self.keys.push(KeyRule { text: text.to_vec(), pattern, access });
        }
        Ok(())
    }

    fn add_command(&mut self, allow: bool, name: &str, catalog: &Catalog) -> Result<(), RuleError> {
        let covered = covered(name, catalog);
        let of_redis = redis_commands::is_known(name);
        if let Some(category) = name.strip_prefix('@') {
            if !CATEGORIES.contains(&category) {
                return Err(RuleError::UnknownCommand);
            }
        } else if covered.is_empty()
            && let Some((command, argument)) = name.rsplit_once('|')
            && !of_redis
        {
            return self.add_first_argument(allow, command, argument, catalog);
        } else if covered.is_empty() && !of_redis {
            return Err(RuleError::UnknownCommand);
        }
        for id in &covered {
            self.allowed[*id] = allow;
            self.first_arguments.remove(id);
        }
        // A former rule about a part of the same commands has no effect any more.
        let is_overruled = |former: &str| {
            if former == name {
                return true;
            }
            let (command, argument) = former.split_once('|').unwrap_or((former, ""));
            let former = match self::covered(former, catalog) {
                own if own.is_empty() && !argument.is_empty() => self::covered(command, catalog),
                own => own,
            };
            !former.is_empty() && former.iter().all(|id| covered.contains(id))
        };
        self.rules.retain(|rule| !is_overruled(&rule[1..]));
        self.rules.push(format!("{}{name}", if allow { '+' } else { '-' }));
        Ok(())
    }

    /// Allows a command only with this first argument.
    fn add_first_argument(
        &mut self,
        allow: bool,
        command: &str,
        argument: &str,
        catalog: &Catalog,
    ) -> Result<(), RuleError> {
        let spec = catalog.by_full_name(command);
        let is_known = spec.is_some() || redis_commands::is_known(command);
        if !allow || !is_known {
            return Err(RuleError::UnknownCommand);
        }
        if command.contains('|') {
            return Err(RuleError::ArgumentOfSubcommand);
        }
        if argument.is_empty() {
            return Err(RuleError::Syntax);
        }
        let has_subcommands = spec.is_some_and(|spec| !spec.subcommands.is_empty())
            || redis_commands::has_subcommands(command);
        if has_subcommands {
            return Err(RuleError::UnknownCommand);
        }
        if has_blanks(argument.as_bytes()) {
            return Err(RuleError::Syntax);
        }
        if let Some(spec) = spec {
            let known = self.first_arguments.entry(spec.id).or_default();
            if !known.iter().any(|known| known == argument.as_bytes()) {
                known.push(argument.as_bytes().to_vec());
            }
        }
        let rule = format!("+{command}|{argument}");
        if !self.rules.contains(&rule) {
            self.rules.push(rule);
        }
        Ok(())
    }

    /// Returns the rules for commands, as `ACL GETUSER` shows them.
    pub fn commands(&self) -> String {
        let mut text = if self.all_commands { "+@all" } else { "-@all" }.to_owned();
        self.rules.iter().for_each(|rule| text.extend([" ", rule]));
        text
    }

    /// Returns the patterns of keys, separated by blanks.
    pub fn keys(&self) -> Vec<u8> {
        if self.all_keys {
            return b"~*".to_vec();
        }
        let texts = self.keys.iter().map(|rule| {
            let kinds: &[u8] = match (rule.access.read, rule.access.write) {
                (true, false) => b"%R~",
                (false, true) => b"%W~",
                _ if rule.text == b"*" => b"%RW~",
                _ => b"~",
            };
            [kinds, &rule.text].concat()
        });
        texts.collect::<Vec<_>>().join(&b' ')
    }

    /// Returns the patterns of channels, separated by blanks.
    pub fn channels(&self) -> Vec<u8> {
        if self.all_channels {
            return b"&*".to_vec();
        }
        let texts = self.channels.iter().map(|rule| [b"&", rule.text.as_slice()].concat());
        texts.collect::<Vec<_>>().join(&b' ')
    }

    /// Returns all rules, as `ACL LIST` and the file show them.
    pub fn line(&self) -> Vec<u8> {
        let (keys, channels) = (self.keys(), self.channels());
        let mut words = Vec::new();
        words.extend(Some(keys).filter(|keys| !keys.is_empty()));
        // Written because new users may have all channels, see `acl-pubsub-default`.
        words.extend((!self.all_channels).then(|| b"resetchannels".to_vec()));
        words.extend(Some(channels).filter(|channels| !channels.is_empty()));
        words.push(self.commands().into_bytes());
        words.join(&b' ')
    }
}

/// Returns whether the keys of the indexes that a call reads may be read. For an index that does
/// not exist the result is `false`, so that a refusal does not reveal which indexes exist.
fn may_read(
    selector: &Selector,
    read: ReadIndexes,
    arguments: Arguments<'_>,
    indexes: &Indexes,
) -> bool {
    let name = |at: usize| match at < arguments.len() {
        true => std::str::from_utf8(arguments.get(at)).ok(),
        false => None,
    };
    let prefixes = match read {
        ReadIndexes::Composite(at) => name(at).and_then(|name| indexes.prefixes_of_composite(name)),
        ReadIndexes::Search(at) => name(at).and_then(|name| indexes.prefixes_of_schema(name)),
        ReadIndexes::Listed => return true,
    };
    prefixes.is_some_and(|prefixes| selector.covers(&prefixes))
}

/// Returns the ids that the name in a rule covers: those of a category, of a command with its
/// subcommands, or of a subcommand. Empty if Ordna has no such command.
fn covered(name: &str, catalog: &Catalog) -> Vec<usize> {
    let with_subcommands = |spec: &CommandSpec| {
        let ids = spec.subcommands.iter().map(|sub| sub.id);
        std::iter::once(spec.id).chain(ids).collect::<Vec<_>>()
    };
    if let Some(category) = name.strip_prefix('@') {
        let mut ids = Vec::new();
        for spec in catalog.with_subcommands().filter(|spec| spec.is_in(category)) {
            ids.extend(with_subcommands(spec));
        }
        return ids;
    }
    catalog.by_full_name(name).map_or(Vec::new(), with_subcommands)
}
