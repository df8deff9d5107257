//! Users and their permissions: Redis' ACL, as far as its commands exist here.
//!
//! A user is immutable. A change replaces it and raises the version, and each session reloads its
//! user when the version has changed. Selectors (`(…)`) are refused;
//! channel patterns are kept and have no effect.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ordna::sync::Lock;
use sha2::{Digest, Sha256};

use crate::keyspace::glob::Pattern;
use crate::state::command_spec::{CATEGORIES, Catalog, CommandFlags, CommandSpec};
use crate::state::config::Config;
use crate::statistics::event_logs::Denials;
use crate::wire::request::Arguments;

/// A pattern of keys and the access that it allows.
#[derive(Debug, Clone)]
struct KeyRule {
    text: String,
    pattern: Arc<Pattern>,
    read: bool,
    write: bool,
}

/// A user.
#[derive(Debug, Clone)]
pub struct User {
    pub name: String,
    pub enabled: bool,
    nopass: bool,
    /// SHA-256 in hexadecimal digits.
    passwords: BTreeSet<String>,
    /// Whether each command is allowed, indexed by its number.
    allowed: Vec<bool>,
    /// Subcommands with a rule of their own.
    subcommands: BTreeMap<(usize, String), bool>,
    /// The rules of commands in their original order, after `-@all` or `+@all`.
    all_commands: bool,
    rules: Vec<String>,
    all_keys: bool,
    keys: Vec<KeyRule>,
    all_channels: bool,
    channels: Vec<String>,
}

/// Why a command is refused to a user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    Command(String),
    Key(Vec<u8>),
}

/// The reason why a rule cannot be applied to a user, in Redis' words.
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
    #[error("Unknown command or category name in ACL")]
    UnknownCommand,
}

/// The reason why users cannot be changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AclError {
    /// A rule of `ACL SETUSER`.
    #[error("Error in ACL SETUSER modifier '{rule}': {error}")]
    Rule { rule: String, error: RuleError },
    #[error("line {line} does not begin with 'user <name>'")]
    NotAUser { line: usize },
    /// A rule in the file of users.
    #[error("line {line}: '{rule}': {error}")]
    RuleOfLine { line: usize, rule: String, error: RuleError },
    #[error("line {line}: user '{name}' is there twice")]
    Duplicate { line: usize, name: String },
    /// Other machines can reach the server, and this user could log in without a password.
    #[error(
        "other machines can reach this server: user '{name}' needs a password, or must be off (--insecure allows users without a password)"
    )]
    NoPassword { name: String },
}

/// The SHA-256 of a password in hexadecimal digits.
fn hash(password: &[u8]) -> String {
    Sha256::digest(password).iter().map(|byte| format!("{byte:02x}")).collect()
}

impl User {
    /// A user as `ACL SETUSER` creates it: off, and allowed nothing.
    fn new(name: &str, catalog: &Catalog) -> Self {
        Self {
            name: name.to_owned(),
            enabled: false,
            nopass: false,
            passwords: BTreeSet::new(),
            allowed: vec![false; catalog.all().len()],
            subcommands: BTreeMap::new(),
            all_commands: false,
            rules: Vec::new(),
            all_keys: false,
            keys: Vec::new(),
            all_channels: false,
            channels: Vec::new(),
        }
    }

    /// The user with all permissions: the default user when the server starts.
    fn unlimited(name: &str, catalog: &Catalog) -> Self {
        Self {
            enabled: true,
            nopass: true,
            allowed: vec![true; catalog.all().len()],
            all_commands: true,
            all_keys: true,
            all_channels: true,
            ..Self::new(name, catalog)
        }
    }

    /// Whether a client needs no password for this user.
    pub fn needs_no_password(&self) -> bool {
        self.enabled && self.nopass
    }

    /// Whether a password is right. The time does not depend on where a wrong one differs.
    pub fn accepts(&self, password: &[u8]) -> bool {
        let said = hash(password);
        let mut right = self.nopass;
        for known in &self.passwords {
            let differ = known.bytes().zip(said.bytes()).fold(0, |differ, (a, b)| differ | a ^ b);
            right |= differ == 0;
        }
        self.enabled && right
    }

    /// Whether the user may execute the command of this number with these arguments.
    #[inline]
    pub fn check(
        &self,
        number: usize,
        spec: &CommandSpec,
        arguments: Arguments<'_>,
    ) -> Result<(), Refusal> {
        if self.all_commands && self.all_keys && self.rules.is_empty() {
            return Ok(());
        }
        self.check_rules(number, spec, arguments)
    }

    fn check_rules(
        &self,
        number: usize,
        spec: &CommandSpec,
        arguments: Arguments<'_>,
    ) -> Result<(), Refusal> {
        let spec = spec.of_call(arguments);
        let mut allowed = self.allowed.get(number).copied().unwrap_or(false);
        let mut name = spec.name.to_owned();
        if arguments.len() > 1 && !self.subcommands.is_empty() {
            let sub = String::from_utf8_lossy(arguments.get(1)).to_ascii_lowercase();
            if let Some(rule) = self.subcommands.get(&(number, sub.clone())) {
                allowed = *rule;
                name = format!("{name}|{sub}");
            }
        }
        // Redis lets every user authenticate and leave.
        if !allowed && !spec.has(CommandFlags::NO_AUTH) {
            return Err(Refusal::Command(name));
        }
        if self.all_keys {
            return Ok(());
        }
        let writes = spec.is_write();
        let reads = !writes || spec.has(CommandFlags::RETURNS_OLD_VALUE);
        let refused = |key: &[u8]| {
            let permits = |rule: &KeyRule| {
                (rule.read || !reads) && (rule.write || !writes) && rule.pattern.matches(key)
            };
            !self.keys.iter().any(permits)
        };
        let keys = spec.key_positions(arguments.len()).map(|at| arguments.get(at));
        match keys.into_iter().find(|key| refused(key)) {
            Some(key) => Err(Refusal::Key(key.to_vec())),
            // A command that names no keys and reads all of them shows keys that are not allowed.
            None if spec.has(CommandFlags::EVERY_KEY) => Err(Refusal::Key(b"*".to_vec())),
            None => Ok(()),
        }
    }

    /// Changes the user by one rule.
    ///
    /// # Errors
    /// [`RuleError`]
    fn apply(&mut self, rule: &str, catalog: &Catalog) -> Result<(), RuleError> {
        let lower = rule.to_ascii_lowercase();
        match lower.as_str() {
            "on" => self.enabled = true,
            "off" => self.enabled = false,
            "nopass" => {
                self.nopass = true;
                self.passwords.clear();
            }
            "resetpass" => {
                self.nopass = false;
                self.passwords.clear();
            }
            "allkeys" | "~*" => {
                self.all_keys = true;
                self.keys.clear();
            }
            "resetkeys" => {
                self.all_keys = false;
                self.keys.clear();
            }
            "allchannels" | "&*" => {
                self.all_channels = true;
                self.channels.clear();
            }
            "resetchannels" => {
                self.all_channels = false;
                self.channels.clear();
            }
            "allcommands" | "+@all" | "nocommands" | "-@all" => {
                self.all_commands = lower.starts_with(['a', '+']);
                self.allowed.fill(self.all_commands);
                self.subcommands.clear();
                self.rules.clear();
            }
            "reset" => *self = Self::new(&self.name, catalog),
            "clearselectors" | "sanitize-payload" | "skip-sanitize-payload" => {}
            _ => return self.apply_sign(rule, catalog),
        }
        Ok(())
    }

    fn apply_sign(&mut self, rule: &str, catalog: &Catalog) -> Result<(), RuleError> {
        let Some(sign) = rule.chars().next() else { return Err(RuleError::Syntax) };
        let rest = &rule[sign.len_utf8()..];
        match sign {
            '>' => {
                self.passwords.insert(hash(rest.as_bytes()));
                self.nopass = false;
            }
            '<' if !self.passwords.remove(&hash(rest.as_bytes())) => {
                return Err(RuleError::NoSuchPassword);
            }
            '#' if is_hash(rest) => {
                self.passwords.insert(rest.to_owned());
                self.nopass = false;
            }
            '#' | '!' if !is_hash(rest) => {
                return Err(RuleError::BadHash);
            }
            '!' if !self.passwords.remove(rest) => return Err(RuleError::NoSuchPassword),
            '<' | '!' => {}
            '~' => self.add_keys(rule, rest, true, true)?,
            '%' => {
                let Some((kinds, pattern)) = rest.split_once('~') else {
                    return Err(RuleError::Syntax);
                };
                let kinds = kinds.to_ascii_uppercase();
                if kinds.is_empty() || kinds.contains(|kind| kind != 'R' && kind != 'W') {
                    return Err(RuleError::Syntax);
                }
                let (read, write) = (kinds.contains('R'), kinds.contains('W'));
                let text = if read && write {
                    format!("~{pattern}")
                } else {
                    format!("%{kinds}~{pattern}")
                };
                self.add_keys(&text, pattern, read, write)?;
            }
            '&' => self.channels.push(rest.to_owned()),
            '+' | '-' => self.add_command(sign == '+', rest, catalog)?,
            _ => return Err(RuleError::Syntax),
        }
        Ok(())
    }

    fn add_keys(
        &mut self,
        text: &str,
        pattern: &str,
        read: bool,
        write: bool,
    ) -> Result<(), RuleError> {
        if self.all_keys {
            return Err(RuleError::PatternAfterAllKeys);
        }
        if self.keys.iter().all(|rule| rule.text != text) {
            let pattern = Arc::new(Pattern::new(pattern.as_bytes()));
            self.keys.push(KeyRule { text: text.to_owned(), pattern, read, write });
        }
        Ok(())
    }

    fn add_command(&mut self, allow: bool, name: &str, catalog: &Catalog) -> Result<(), RuleError> {
        let name = name.to_ascii_lowercase();
        if let Some(category) = name.strip_prefix('@') {
            if !CATEGORIES.contains(&category) {
                return Err(RuleError::UnknownCommand);
            }
            for (number, spec) in catalog.all().iter().enumerate() {
                // Subcommands of another category stay as they are.
                let before = self.allowed[number];
                let others = spec.subcommands.iter().map(|(sub, own)| {
                    let known = self.subcommands.get(&(number, (*sub).to_owned()));
                    let is_allowed = known.copied().unwrap_or(before);
                    let is_allowed = if own.is_in(category) { allow } else { is_allowed };
                    ((number, (*sub).to_owned()), is_allowed)
                });
                let others: Vec<_> = others.collect();
                if spec.is_in(category) {
                    self.allowed[number] = allow;
                    self.subcommands.retain(|(of, _), _| *of != number);
                }
                self.subcommands.extend(others);
            }
            let overruled = |rule: &String| {
                let command = rule[1..].split('|').next().unwrap_or_default();
                let is_in = |spec: &CommandSpec| {
                    spec.is_in(category)
                        && spec.subcommands.iter().all(|(_, own)| own.is_in(category))
                };
                catalog.find(command.as_bytes()).is_some_and(is_in) || rule[1..] == name
            };
            self.rules.retain(|rule| !overruled(rule));
        } else if let Some((command, sub)) = name.split_once('|') {
            let number = catalog.number_of(command.as_bytes()).ok_or(RuleError::UnknownCommand)?;
            self.subcommands.insert((number, sub.to_owned()), allow);
            self.rules.retain(|rule| rule[1..] != name);
        } else {
            let number = catalog.number_of(name.as_bytes()).ok_or(RuleError::UnknownCommand)?;
            self.allowed[number] = allow;
            self.subcommands.retain(|(of, _), _| *of != number);
            self.rules.retain(|rule| rule[1..].split('|').next() != Some(&name));
        }
        self.rules.push(format!("{}{name}", if allow { '+' } else { '-' }));
        Ok(())
    }

    pub fn flags(&self) -> Vec<&'static str> {
        let mut flags = vec![if self.enabled { "on" } else { "off" }];
        if self.nopass {
            flags.push("nopass");
        }
        flags
    }

    pub fn passwords(&self) -> impl ExactSizeIterator<Item = &str> {
        self.passwords.iter().map(String::as_str)
    }

    pub fn commands(&self) -> String {
        let mut text = if self.all_commands { "+@all" } else { "-@all" }.to_owned();
        self.rules.iter().for_each(|rule| text.extend([" ", rule]));
        text
    }

    pub fn keys(&self) -> String {
        if self.all_keys {
            return "~*".to_owned();
        }
        let texts: Vec<&str> = self.keys.iter().map(|rule| rule.text.as_str()).collect();
        texts.join(" ")
    }

    pub fn channels(&self) -> String {
        if self.all_channels {
            return "&*".to_owned();
        }
        let texts: Vec<String> = self.channels.iter().map(|text| format!("&{text}")).collect();
        texts.join(" ")
    }

    /// The user as `ACL LIST` and the file show it.
    pub fn line(&self) -> String {
        let mut words = vec!["user".to_owned(), self.name.clone()];
        words.extend(self.flags().into_iter().map(str::to_owned));
        words.extend(self.passwords.iter().map(|hash| format!("#{hash}")));
        words.extend([self.keys()].into_iter().filter(|keys| !keys.is_empty()));
        let channels = self.channels();
        words.push(if channels.is_empty() { "resetchannels".to_owned() } else { channels });
        words.push(self.commands());
        words.join(" ")
    }
}

fn is_hash(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// All users.
#[derive(Debug)]
pub struct Acl {
    users: Lock<BTreeMap<String, Arc<User>>>,
    version: AtomicU64,
    /// The value of `CONFIG GET requirepass`.
    requirepass: Lock<String>,
    pub file: Option<PathBuf>,
    /// Whether every user that is on must have a password: other machines can reach the server.
    needs_passwords: bool,
    pub denials: Denials,
    /// Wrong passwords, refused commands, refused keys.
    pub denied: [AtomicU64; 3],
}

impl Acl {
    /// Creates the default user only, with the password of the configuration if there is one. The
    /// users of the file are not loaded.
    pub fn new(config: &Config, catalog: &Catalog) -> Self {
        let default = User::unlimited("default", catalog);
        let users = BTreeMap::from([("default".to_owned(), Arc::new(default))]);
        let acl = Self {
            users: Lock::new(users),
            version: AtomicU64::new(0),
            requirepass: Lock::default(),
            file: config.acl_file.clone(),
            needs_passwords: config.exposed().is_some() && !config.insecure,
            denials: Denials::default(),
            denied: Default::default(),
        };
        if let Some(password) = config.password.as_deref().filter(|password| !password.is_empty()) {
            // A user with a password is never refused.
            let _ = acl.set_password(password);
        }
        acl
    }

    /// Checks that nobody gets in without a password if other machines can reach the server.
    ///
    /// # Errors
    /// [`AclError::NoPassword`]
    pub fn check_passwords(&self) -> Result<(), AclError> {
        self.check_passwords_of(self.users.lock().values())
    }

    fn check_passwords_of<'a>(
        &self,
        users: impl IntoIterator<Item = &'a Arc<User>>,
    ) -> Result<(), AclError> {
        let open = users.into_iter().find(|user| user.needs_no_password());
        match open.filter(|_| self.needs_passwords) {
            Some(user) => Err(AclError::NoPassword { name: user.name.clone() }),
            None => Ok(()),
        }
    }

    /// Version of the users; every change increments it.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Relaxed)
    }

    pub fn user(&self, name: &str) -> Option<Arc<User>> {
        self.users.lock().get(name).cloned()
    }

    pub fn all(&self) -> Vec<Arc<User>> {
        self.users.lock().values().cloned().collect()
    }

    /// The user of new connections, if it needs no password.
    pub fn welcome(&self) -> Option<Arc<User>> {
        self.user("default").filter(|user| user.needs_no_password())
    }

    /// Applies rules to a user, creating it if it is absent: all of them or none.
    ///
    /// # Errors
    /// [`AclError::Rule`] and [`AclError::NoPassword`]; nothing is changed.
    pub fn set<'a>(
        &self,
        name: &str,
        rules: impl Iterator<Item = &'a str>,
        catalog: &Catalog,
    ) -> Result<(), AclError> {
        let mut users = self.users.lock();
        let mut user = match users.get(name) {
            Some(user) => User::clone(user),
            None => User::new(name, catalog),
        };
        for rule in rules {
            user.apply(rule, catalog)
                .map_err(|error| AclError::Rule { rule: rule.to_owned(), error })?;
        }
        let user = Arc::new(user);
        self.check_passwords_of([&user])?;
        if name == "default" {
            // Redis forgets the former `requirepass`, too.
            self.requirepass.lock().clear();
        }
        users.insert(name.to_owned(), user);
        self.version.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    pub fn delete(&self, name: &str) -> bool {
        let gone = self.users.lock().remove(name).is_some();
        self.version.fetch_add(1, Ordering::Relaxed);
        gone
    }

    /// `requirepass`; empty: none.
    pub fn password(&self) -> String {
        self.requirepass.lock().clone()
    }

    /// Checks whether [`set_password`](Self::set_password) accepts a password.
    ///
    /// # Errors
    /// [`AclError::NoPassword`]
    pub fn check_password(&self, password: &str) -> Result<(), AclError> {
        let mut user = self.user("default");
        if let Some(user) = &mut user {
            Arc::make_mut(user).nopass = password.is_empty();
        }
        self.check_passwords_of(user.iter())
    }

    /// Sets the password of the default user; an empty one lets clients in without a password.
    ///
    /// # Errors
    /// [`AclError::NoPassword`]
    pub fn set_password(&self, password: &str) -> Result<(), AclError> {
        let mut users = self.users.lock();
        if let Some(default) = users.get("default") {
            let mut user = User::clone(default);
            user.nopass = password.is_empty();
            user.passwords.clear();
            if !password.is_empty() {
                user.passwords.insert(hash(password.as_bytes()));
            }
            let user = Arc::new(user);
            self.check_passwords_of([&user])?;
            users.insert("default".to_owned(), user);
        }
        password.clone_into(&mut self.requirepass.lock());
        self.version.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Replaces all users by those of a file's text.
    ///
    /// # Errors
    /// The first line that is no user, and why, or [`AclError::NoPassword`]; nothing is changed.
    pub fn load(&self, text: &str, catalog: &Catalog) -> Result<(), AclError> {
        let mut users = BTreeMap::new();
        for (at, text) in text.lines().enumerate() {
            let line = at + 1;
            let mut words = text.split_whitespace();
            let name = match (words.next(), words.next()) {
                (None, _) => continue,
                (Some(word), _) if word.starts_with('#') => continue,
                (Some("user"), Some(name)) => name,
                _ => return Err(AclError::NotAUser { line }),
            };
            let mut user = User::new(name, catalog);
            for rule in words {
                user.apply(rule, catalog).map_err(|error| AclError::RuleOfLine {
                    line,
                    rule: rule.to_owned(),
                    error,
                })?;
            }
            if users.insert(name.to_owned(), Arc::new(user)).is_some() {
                return Err(AclError::Duplicate { line, name: name.to_owned() });
            }
        }
        let mut all = self.users.lock();
        let default = all.get("default").cloned();
        if let Some(default) = default {
            users.entry("default".to_owned()).or_insert(default);
        }
        self.check_passwords_of(users.values())?;
        *all = users;
        self.version.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}
