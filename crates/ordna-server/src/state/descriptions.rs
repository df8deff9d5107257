//! Documentation of commands, for `COMMAND DOCS` and for generators of test commands.
//!
//! [`DescriptionTable::parse`] reads a text with one line for each command, fields separated by `; `:
//!
//! ```text
//! name; group; since; complexity; arguments
//!   subcommand; since; complexity; arguments or -; summary
//! ```
//!
//! `since` is the version of Redis (of Ordna, if Redis does not have the command), followed by `~` and
//! the version that deprecated the command, and by another `~` and its replacement. Arguments are
//! separated by blanks:
//!
//! | form | argument |
//! |---|---|
//! | `value` | a string; `value:int`, `:double`, `:time` and `:pattern` have other types |
//! | `key:key`, `to:key1` | a key, with the number of its key specification; `:pattern1`: a pattern of keys |
//! | `NX`, `name=NX` | a literal word |
//! | `EX/seconds:int` | an argument after a word |
//! | `name(A \| B)` | one of the arguments |
//! | `name{a b}` | all of the arguments, in this order |
//! | `[a]` | optional |
//! | `a...`, `A/a*...` | once or more; `*`: the word is repeated, too |
//! | `a@6.2.0`, `a~2.8.12` | the versions that introduced and deprecated the argument |

use std::borrow::Cow;
use std::collections::BTreeMap;

/// The type of an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArgumentKind {
    String,
    Integer,
    Double,
    Pattern,
    UnixTime,
    /// A key, with the number of its key specification.
    Key(u8),
    /// A pattern of keys, with the number of their key specification.
    KeyPattern(u8),
    /// A literal word.
    PureToken,
    /// Exactly one of the nested arguments.
    OneOf,
    /// All nested arguments.
    Block,
}

impl ArgumentKind {
    /// Returns the name that `COMMAND DOCS` uses.
    pub const fn name(self) -> &'static str {
        match self {
            Self::String => "string",
            Self::Integer => "integer",
            Self::Double => "double",
            Self::Pattern | Self::KeyPattern(_) => "pattern",
            Self::UnixTime => "unix-time",
            Self::Key(_) => "key",
            Self::PureToken => "pure-token",
            Self::OneOf => "oneof",
            Self::Block => "block",
        }
    }
}

/// An argument of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Argument {
    pub name: Cow<'static, str>,
    pub kind: ArgumentKind,
    /// The word before the argument.
    pub token: Option<&'static str>,
    pub since: Option<&'static str>,
    pub deprecated_since: Option<&'static str>,
    pub optional: bool,
    pub multiple: bool,
    /// Whether the word precedes each repetition.
    pub multiple_token: bool,
    /// Arguments of a [`OneOf`](ArgumentKind::OneOf) or a [`Block`](ArgumentKind::Block).
    pub nested: Vec<Argument>,
}

/// The documentation of a command or a subcommand.
#[derive(Debug, Clone, Default)]
pub struct Description {
    pub group: &'static str,
    pub since: &'static str,
    pub deprecated_since: Option<&'static str>,
    pub replaced_by: Option<&'static str>,
    pub complexity: &'static str,
    pub arguments: Vec<Argument>,
    /// The summary of a subcommand; the table of commands has those of commands.
    pub summary: &'static str,
    /// The subcommands by name.
    pub subcommands: BTreeMap<&'static str, Description>,
}

/// The documentation of all commands, by name.
#[derive(Debug, Default)]
pub struct DescriptionTable(BTreeMap<&'static str, Description>);

impl DescriptionTable {
    /// Parses a text of descriptions.
    ///
    /// # Errors
    /// The first line that is malformed.
    pub fn parse(text: &'static str) -> Result<Self, String> {
        let mut table = BTreeMap::<_, Description>::new();
        let mut last = None;
        for line in text.lines().filter(|line| !line.is_empty()) {
            let malformed = |why: &str| format!("{why}: {line}");
            let fields: Vec<&str> = line.trim_start().split("; ").collect();
            let is_subcommand = line.starts_with(' ');
            let (name, group, versions, complexity, arguments, summary) =
                match (is_subcommand, fields.as_slice()) {
                    (true, [name, versions, complexity, arguments, summary]) => {
                        (*name, "", *versions, *complexity, *arguments, *summary)
                    }
                    (false, [name, group, versions, complexity, arguments @ ..])
                        if arguments.len() <= 1 =>
                    {
                        let arguments = arguments.first().copied().unwrap_or_default();
                        (*name, *group, *versions, *complexity, arguments, "")
                    }
                    _ => return Err(malformed("wrong number of fields")),
                };
            let mut versions = versions.splitn(3, '~');
            let mut description = Description {
                group,
                since: versions.next().unwrap_or_default(),
                deprecated_since: versions.next(),
                replaced_by: versions.next(),
                complexity,
                arguments: Vec::new(),
                summary,
                subcommands: BTreeMap::new(),
            };
            let mut parser = Parser { rest: if arguments == "-" { "" } else { arguments } };
            description.arguments = parser.sequence().map_err(malformed)?;
            if !parser.rest.is_empty() {
                return Err(malformed("unexpected bracket"));
            }
            let former = if is_subcommand {
                let command = last.and_then(|last| table.get_mut(last));
                let command = command.ok_or_else(|| malformed("subcommand without command"))?;
                description.group = command.group;
                command.subcommands.insert(name, description)
            } else {
                last = Some(name);
                table.insert(name, description)
            };
            if former.is_some() {
                return Err(malformed("described twice"));
            }
        }
        Ok(Self(table))
    }

    /// Returns the description of a command, its name in lower case.
    pub fn get(&self, command: &str) -> Option<&Description> {
        self.0.get(command)
    }

    #[cfg(test)]
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.0.keys().copied()
    }
}

/// Parses arguments.
struct Parser {
    rest: &'static str,
}

impl Parser {
    fn take(&mut self, text: &str) -> bool {
        let rest = self.rest.strip_prefix(text);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    /// Takes characters up to one of `ends`.
    fn until(&mut self, ends: &[char]) -> &'static str {
        let end = self.rest.find(ends).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        word
    }

    /// Parses arguments up to a closing bracket or a bar.
    fn sequence(&mut self) -> Result<Vec<Argument>, &'static str> {
        let mut all = Vec::new();
        loop {
            self.take(" ");
            if self.rest.is_empty() || self.rest.starts_with([')', '}', ']', '|']) {
                return Ok(all);
            }
            all.push(self.argument()?);
        }
    }

    fn argument(&mut self) -> Result<Argument, &'static str> {
        if self.take("[") {
            let mut argument = self.argument()?;
            argument.optional = true;
            if !self.take("]") {
                return Err("\"]\" expected");
            }
            self.suffixes(&mut argument);
            return Ok(argument);
        }
        let word = self.until(&[' ', '(', ')', '{', '}', '[', ']', '|', '@', '~', '.', '*']);
        // A star may be the word itself.
        let word = if word.ends_with('=') && self.take("*") { "all=*" } else { word };
        let is_token = |word: &str| {
            let mut bytes = word.bytes();
            bytes.all(|byte| !byte.is_ascii_lowercase()) && !word.is_empty()
        };
        let (token, name) = match word.split_once('/') {
            Some((token, name)) if is_token(token) => (Some(token), name),
            _ => (None, word),
        };
        let mut argument = Argument {
            name: name.into(),
            kind: ArgumentKind::String,
            token,
            since: None,
            deprecated_since: None,
            optional: false,
            multiple: false,
            multiple_token: false,
            nested: Vec::new(),
        };
        if self.take("(") {
            argument.kind = ArgumentKind::OneOf;
            loop {
                self.take(" ");
                argument.nested.push(self.argument()?);
                self.take(" ");
                if self.take(")") {
                    break;
                }
                if !self.take("|") {
                    return Err("\"|\" or \")\" expected");
                }
            }
        } else if self.take("{") {
            argument.kind = ArgumentKind::Block;
            argument.nested = self.sequence()?;
            if !self.take("}") {
                return Err("\"}\" expected");
            }
        } else if let Some((name, token)) = name.split_once('=') {
            argument.kind = ArgumentKind::PureToken;
            (argument.name, argument.token) = (name.into(), Some(token));
        } else if token.is_none() && is_token(name) {
            argument.kind = ArgumentKind::PureToken;
            (argument.name, argument.token) = (name.to_ascii_lowercase().into(), Some(name));
        } else if let Some((name, kind)) = name.rsplit_once(':')
            && let Some(kind) = Self::kind(kind)
        {
            (argument.name, argument.kind) = (name.into(), kind);
        }
        if argument.name.is_empty() {
            return Err("an argument has no name");
        }
        self.suffixes(&mut argument);
        Ok(argument)
    }

    fn kind(name: &str) -> Option<ArgumentKind> {
        Some(match name {
            "int" => ArgumentKind::Integer,
            "double" => ArgumentKind::Double,
            "pattern" => ArgumentKind::Pattern,
            "time" => ArgumentKind::UnixTime,
            "key" => ArgumentKind::Key(0),
            "key1" => ArgumentKind::Key(1),
            "key2" => ArgumentKind::Key(2),
            "pattern1" => ArgumentKind::KeyPattern(1),
            _ => return None,
        })
    }

    fn suffixes(&mut self, argument: &mut Argument) {
        argument.multiple_token |= self.take("*");
        argument.multiple |= self.take("...");
        for (mark, version) in [("@", &mut argument.since), ("~", &mut argument.deprecated_since)] {
            if self.take(mark) {
                *version = Some(self.until(&[' ', '~', ')', '}', ']', '|']));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(text: &str) -> Result<Vec<Argument>, String> {
        let text: &'static str = format!("x; g; 1.0.0; O(1); {text}").leak();
        Ok(DescriptionTable::parse(text)?.0["x"].arguments.clone())
    }

    #[test]
    fn each_form_of_an_argument_is_parsed() {
        let all = arguments(
            "key:key [EX/seconds:int@2.6.0] kind(NX | xx=IFX@7.0.0)... [pair{field value}...] [ADDR/ip:port~2.8.12] [GET/g{a}*...] all=*",
        )
        .unwrap();
        let kinds: Vec<_> = all.iter().map(|argument| argument.kind).collect();
        use ArgumentKind::*;
        assert_eq!(kinds, [Key(0), Integer, OneOf, Block, String, Block, PureToken]);
        assert_eq!(
            (all[1].token, all[1].since, all[1].optional),
            (Some("EX"), Some("2.6.0"), true)
        );
        assert!(all[2].multiple && !all[2].optional && all[3].multiple && all[3].optional);
        assert_eq!((&*all[2].nested[1].name, all[2].nested[1].token), ("xx", Some("IFX")));
        assert_eq!(all[2].nested[1].since, Some("7.0.0"));
        assert_eq!((&*all[4].name, all[4].deprecated_since), ("ip:port", Some("2.8.12")));
        assert!(all[5].multiple_token && all[5].multiple);
        assert_eq!(all[6].token, Some("*"));
    }

    #[test]
    fn a_malformed_line_is_refused() {
        for text in ["a(b", "a(b c)", "a{b", "[a", "a]", "a)", "(a)", "EX/:int", "a | b"] {
            assert!(arguments(text).is_err(), "{text}");
        }
        for text in [
            "x",
            "x; g; 1.0.0; O(1); a; b",
            "  x; 1.0.0; O(1); -; s",
            "x; g; 1; O(1)\nx; g; 1; O(1)",
        ] {
            assert!(DescriptionTable::parse(text).is_err(), "{text}");
        }
    }
}
