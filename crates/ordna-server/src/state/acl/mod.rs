//! Users and their permissions: Redis' ACL, as far as its commands exist here.
//!
//! A user is immutable. A change replaces the user and increments the version, and each session
//! reloads its user when the version has changed. Rules may name commands and categories that only
//! Redis has.

pub mod redis_commands;
pub mod selector;
pub mod user;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ordna::durability::Storage;
use ordna::sync::Lock;

use crate::state::acl::selector::{RuleError, has_blanks};
use crate::state::acl::user::{User, hash, words};
use crate::state::command_spec::Catalog;
use crate::state::config::Config;
use crate::state::durable_file;
use crate::statistics::event_logs::Denials;

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
    /// The words of a line or of `ACL SETUSER` end inside of a selector.
    #[error("Unmatched parenthesis in acl selector starting at '{start}'.")]
    Unmatched { start: String },
    /// The name could not be stored in a file of users.
    #[error("Usernames can't contain spaces or null characters")]
    BlankInName,
    #[error("Usernames can't be empty, and must be UTF-8: '{name}'")]
    Name { name: String },
    /// Other machines can reach the server, and this user could log in without a password.
    #[error(
        "other machines can reach this server: user '{name}' needs a password, or must be off (--insecure allows users without a password)"
    )]
    NoPassword { name: String },
}

/// The reason why the file of users cannot be read again.
#[derive(Debug, thiserror::Error)]
pub enum UsersFileError {
    #[error("This server has no ACL file. Start it with --acl-file to keep users in one")]
    NoFile,
    #[error("cannot read {file}: {source}")]
    Read { file: PathBuf, source: io::Error },
    #[error("{file}: {source}")]
    Content { file: PathBuf, source: AclError },
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Checks that a file of users can hold the name.
fn check_name(name: &[u8]) -> Result<&str, AclError> {
    if has_blanks(name) {
        return Err(AclError::BlankInName);
    }
    let valid = str::from_utf8(name).ok().filter(|name| !name.is_empty());
    valid.ok_or_else(|| AclError::Name { name: text(name) })
}

/// Joins the words of each selector, from the word that begins with `(` to the one that ends with
/// `)`.
fn join_selectors<'a>(words: impl Iterator<Item = &'a [u8]>) -> Result<Vec<Vec<u8>>, AclError> {
    let mut rules: Vec<Vec<u8>> = Vec::new();
    let mut begun: Option<(Vec<u8>, &[u8])> = None;
    for word in words {
        let ends = word.ends_with(b")");
        match &mut begun {
            Some((rule, _)) => {
                rule.push(b' ');
                rule.extend_from_slice(word);
                if ends {
                    rules.extend(begun.take().map(|(rule, _)| rule));
                }
            }
            None if word.starts_with(b"(") && !ends => begun = Some((word.to_vec(), word)),
            None => rules.push(word.to_vec()),
        }
    }
    match begun {
        Some((_, start)) => Err(AclError::Unmatched { start: text(start) }),
        None => Ok(rules),
    }
}

/// All users.
#[derive(Debug)]
pub struct Acl {
    users: Lock<BTreeMap<String, Arc<User>>>,
    version: AtomicU64,
    /// The value of `CONFIG GET requirepass`.
    requirepass: Lock<String>,
    pub file: Option<PathBuf>,
    /// Whether every active user must have a password, because other machines can reach the server.
    needs_passwords: bool,
    saving: Lock<()>,
    pub denials: Denials,
    /// Numbers of wrong passwords, refused commands, refused keys and refused channels.
    pub denied: [AtomicU64; 4],
    /// Whether new users may receive the messages of all channels (`acl-pubsub-default`).
    pub all_channels: AtomicBool,
}

impl Acl {
    /// Creates only the default user, with the password of the configuration if there is one. The
    /// users of the file are not loaded yet.
    pub fn new(config: &Config, catalog: &Catalog) -> Self {
        let default = User::unlimited("default", catalog);
        let users = BTreeMap::from([("default".to_owned(), Arc::new(default))]);
        let acl = Self {
            users: Lock::new(users),
            version: AtomicU64::new(0),
            requirepass: Lock::default(),
            file: config.acl_file.clone(),
            needs_passwords: config.exposed().is_some() && !config.insecure,
            saving: Lock::default(),
            denials: Denials::default(),
            denied: Default::default(),
            all_channels: AtomicBool::new(false),
        };
        if let Some(password) = config.password.as_deref().filter(|password| !password.is_empty()) {
            // A user with a password is never rejected.
            let _ = acl.set_password(password);
        }
        acl
    }

    /// Checks that no user can log in without a password if other machines can reach the server.
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

    /// Returns the version of the users. Every change increments it.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Relaxed)
    }

    pub fn user(&self, name: &str) -> Option<Arc<User>> {
        self.users.lock().get(name).cloned()
    }

    /// Returns the user with the name that a client sent.
    pub fn named(&self, name: &[u8]) -> Option<Arc<User>> {
        self.user(str::from_utf8(name).ok()?)
    }

    pub fn all(&self) -> Vec<Arc<User>> {
        self.users.lock().values().cloned().collect()
    }

    /// Returns the user of new connections, if it needs no password.
    pub fn welcome(&self) -> Option<Arc<User>> {
        self.user("default").filter(|user| user.needs_no_password())
    }

    /// Applies all rules to a user, or none. Creates the user if it is absent.
    ///
    /// # Errors
    /// [`AclError`]; nothing is changed.
    pub fn set<'a>(
        &self,
        name: &[u8],
        rules: impl Iterator<Item = &'a [u8]>,
        catalog: &Catalog,
    ) -> Result<(), AclError> {
        let name = check_name(name)?;
        let rules = join_selectors(rules)?;
        let all_channels = self.all_channels.load(Ordering::Relaxed);
        let mut users = self.users.lock();
        let mut user = match users.get(name) {
            Some(user) => User::clone(user).with_all_channels(all_channels),
            None => User::new(name, catalog, all_channels),
        };
        for rule in rules {
            user.apply(&rule, catalog)
                .map_err(|error| AclError::Rule { rule: text(&rule), error })?;
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

    /// Removes a user; returns whether it existed.
    pub fn delete(&self, name: &[u8]) -> bool {
        let Ok(name) = str::from_utf8(name) else { return false };
        let gone = self.users.lock().remove(name).is_some();
        self.version.fetch_add(1, Ordering::Relaxed);
        gone
    }

    /// Returns `requirepass`, or an empty string if there is none.
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

    /// Sets the password of the default user. With an empty one, clients need no password.
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
                user.passwords.push(hash(password.as_bytes()));
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
    /// The first line that does not describe a user, with the reason, or [`AclError::NoPassword`];
    /// nothing is changed.
    pub fn load(&self, file: &[u8], catalog: &Catalog) -> Result<(), AclError> {
        let mut users = BTreeMap::new();
        let all_channels = self.all_channels.load(Ordering::Relaxed);
        for (at, content) in file.split(|byte| *byte == b'\n').enumerate() {
            let line = at + 1;
            let mut words = words(content);
            let name = match (words.next(), words.next()) {
                (None, _) => continue,
                (Some(word), _) if word.starts_with(b"#") => continue,
                (Some(b"user"), Some(name)) => check_name(name)?,
                _ => return Err(AclError::NotAUser { line }),
            };
            let mut user = User::new(name, catalog, all_channels);
            for rule in join_selectors(words)? {
                user.apply(&rule, catalog).map_err(|error| AclError::RuleOfLine {
                    line,
                    rule: text(&rule),
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

    /// Replaces all users by those of the file.
    ///
    /// # Errors
    /// [`UsersFileError`]; nothing is changed.
    pub fn reload(&self, catalog: &Catalog) -> Result<(), UsersFileError> {
        let file = self.file.as_ref().ok_or(UsersFileError::NoFile)?;
        let content = std::fs::read(file)
            .map_err(|source| UsersFileError::Read { file: file.clone(), source })?;
        let loaded = self.load(&content, catalog);
        loaded.map_err(|source| UsersFileError::Content { file: file.clone(), source })
    }

    /// Writes all users to the file, so that they survive a power failure.
    ///
    /// # Errors
    /// The former file is kept.
    pub fn save(&self, storage: &dyn Storage, file: &Path) -> io::Result<()> {
        // Two concurrent calls would write to the same temporary file.
        let _saving = self.saving.lock();
        let lines = self.all().iter().map(|user| user.line()).collect::<Vec<_>>();
        let mut content = lines.join(&b'\n');
        content.push(b'\n');
        durable_file::replace(storage, file, &content)
    }
}
