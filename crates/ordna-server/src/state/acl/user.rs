//! A user: passwords and permissions.

use sha2::{Digest, Sha256};

use crate::indexes::Indexes;
use crate::state::acl::selector::{Denied, RuleError, Selector, has_blanks};
use crate::state::command_spec::{Catalog, CommandSpec};
use crate::wire::request::Arguments;

/// A user.
#[derive(Debug, Clone)]
pub struct User {
    pub name: String,
    pub enabled: bool,
    pub(super) nopass: bool,
    /// SHA-256 hashes in hexadecimal digits, in the order in which they were added.
    pub(super) passwords: Vec<String>,
    /// A flag of Redis that has no effect here, because the data that `RESTORE` reads is always
    /// checked.
    sanitizes: Option<&'static str>,
    /// Whether the user has all permissions.
    is_unlimited: bool,
    root: Selector,
    /// Further sets of permissions, `(…)`.
    selectors: Vec<Selector>,
    /// Whether new selectors allow all channels.
    all_channels: bool,
}

/// The reason why a call is refused to a user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    Command(String),
    Key(Vec<u8>),
    Channel(Vec<u8>),
}

/// Returns the SHA-256 of a password in hexadecimal digits.
pub(super) fn hash(password: &[u8]) -> String {
    Sha256::digest(password).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn is_hash(text: &[u8]) -> bool {
    text.len() == 64 && text.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

impl User {
    /// Creates a user as `ACL SETUSER` does: off, and with no permission except, if `all_channels`,
    /// messages.
    pub(super) fn new(name: &str, catalog: &Catalog, all_channels: bool) -> Self {
        Self {
            name: name.to_owned(),
            enabled: false,
            nopass: false,
            passwords: Vec::new(),
            sanitizes: None,
            is_unlimited: false,
            root: Selector::new(catalog, all_channels),
            selectors: Vec::new(),
            all_channels,
        }
    }

    /// Creates a user with all permissions, like the default user at the start of the server.
    pub(super) fn unlimited(name: &str, catalog: &Catalog) -> Self {
        Self {
            enabled: true,
            nopass: true,
            is_unlimited: true,
            root: Selector::unlimited(catalog),
            ..Self::new(name, catalog, false)
        }
    }

    /// Returns whether a client needs no password for this user.
    pub fn needs_no_password(&self) -> bool {
        self.enabled && self.nopass
    }

    /// Returns whether a password is right. The time does not depend on the position where a wrong
    /// one differs.
    pub fn accepts(&self, password: &[u8]) -> bool {
        let said = hash(password);
        let mut right = self.nopass;
        for known in &self.passwords {
            let differ = known.bytes().zip(said.bytes()).fold(0, |differ, (a, b)| differ | a ^ b);
            right |= differ == 0;
        }
        self.enabled && right
    }

    /// Checks whether the user may execute a command with these arguments.
    #[inline]
    pub fn check(
        &self,
        spec: &CommandSpec,
        arguments: Arguments<'_>,
        indexes: &Indexes,
    ) -> Result<(), Refusal> {
        if self.is_unlimited { Ok(()) } else { self.check_selectors(spec, arguments, indexes) }
    }

    /// Returns whether the user may execute a command and with it read all keys with these
    /// prefixes.
    pub fn reads_prefixes(&self, spec: &CommandSpec, prefixes: &[Vec<u8>]) -> bool {
        let mut all = std::iter::once(&self.root).chain(&self.selectors);
        self.is_unlimited || all.any(|selector| selector.reads_prefixes(spec, prefixes))
    }

    fn check_selectors(
        &self,
        spec: &CommandSpec,
        arguments: Arguments<'_>,
        indexes: &Indexes,
    ) -> Result<(), Refusal> {
        let mut worst = Denied::Command;
        for selector in std::iter::once(&self.root).chain(&self.selectors) {
            match selector.check(spec, arguments, indexes) {
                Ok(()) => return Ok(()),
                Err(denied) => worst = worst.max(denied),
            }
        }
        Err(match worst {
            Denied::Command => Refusal::Command(spec.name.to_owned()),
            Denied::Key(0) => Refusal::Key(b"*".to_vec()),
            Denied::Key(at) => Refusal::Key(arguments.get(at).to_vec()),
            Denied::Channel(at) => Refusal::Channel(arguments.get(at).to_vec()),
        })
    }

    /// Returns whether the user may make a call and with it read all keys.
    pub fn reads_all_keys(
        &self,
        spec: &CommandSpec,
        arguments: Arguments<'_>,
        indexes: &Indexes,
    ) -> bool {
        let mut all = std::iter::once(&self.root).chain(&self.selectors);
        self.is_unlimited
            || all.any(|it| it.reads_all_keys() && it.check(spec, arguments, indexes).is_ok())
    }

    /// Returns whether the user may receive the messages of a channel, or of all channels that
    /// match a pattern.
    pub fn may_receive(&self, channel: &[u8], is_pattern: bool) -> bool {
        let mut all = std::iter::once(&self.root).chain(&self.selectors);
        self.is_unlimited || all.any(|selector| selector.allows_channel(channel, is_pattern))
    }

    /// Sets whether selectors that are added later, and a reset, allow all channels.
    pub(super) fn with_all_channels(self, all_channels: bool) -> Self {
        Self { all_channels, ..self }
    }

    /// Changes the user by one rule.
    ///
    /// # Errors
    /// [`RuleError`]
    pub(super) fn apply(&mut self, rule: &[u8], catalog: &Catalog) -> Result<(), RuleError> {
        match rule.to_ascii_lowercase().as_slice() {
            b"" => {}
            b"sanitize-payload" => self.sanitizes = Some("sanitize-payload"),
            b"skip-sanitize-payload" => self.sanitizes = Some("skip-sanitize-payload"),
            b"on" => self.enabled = true,
            b"off" => self.enabled = false,
            b"nopass" => {
                self.nopass = true;
                self.passwords.clear();
            }
            b"resetpass" => {
                self.nopass = false;
                self.passwords.clear();
            }
            b"reset" => {
                let sanitizes = Some("sanitize-payload");
                *self = Self { sanitizes, ..Self::new(&self.name, catalog, self.all_channels) };
            }
            b"clearselectors" => self.selectors.clear(),
            [b'(', .., b')'] => {
                let rules = &rule[1..rule.len() - 1];
                self.selectors.push(selector(rules, catalog, self.all_channels)?);
            }
            [b'>' | b'<' | b'#' | b'!', ..] => self.apply_password(rule[0], &rule[1..])?,
            _ => self.root.apply(rule, catalog)?,
        }
        let mut all = std::iter::once(&self.root).chain(&self.selectors);
        self.is_unlimited = all.any(Selector::is_unlimited);
        Ok(())
    }

    fn apply_password(&mut self, sign: u8, text: &[u8]) -> Result<(), RuleError> {
        let hash = match sign {
            b'>' | b'<' => hash(text),
            _ if is_hash(text) => String::from_utf8_lossy(text).into_owned(),
            _ => return Err(RuleError::BadHash),
        };
        let known = self.passwords.iter().position(|known| *known == hash);
        match (sign, known) {
            (b'>' | b'#', known) => {
                if known.is_none() {
                    self.passwords.push(hash);
                }
                self.nopass = false;
            }
            (_, Some(at)) => drop(self.passwords.remove(at)),
            (_, None) => return Err(RuleError::NoSuchPassword),
        }
        Ok(())
    }

    pub fn flags(&self) -> Vec<&'static str> {
        let mut flags = vec![if self.enabled { "on" } else { "off" }];
        if self.nopass {
            flags.push("nopass");
        }
        flags.extend(self.sanitizes);
        flags
    }

    pub fn passwords(&self) -> impl ExactSizeIterator<Item = &str> {
        self.passwords.iter().map(String::as_str)
    }

    /// Returns the permissions outside of parentheses.
    pub fn root(&self) -> &Selector {
        &self.root
    }

    pub fn selectors(&self) -> &[Selector] {
        &self.selectors
    }

    /// Returns the user as `ACL LIST` and the file show it.
    pub fn line(&self) -> Vec<u8> {
        let mut words = vec![b"user".to_vec(), self.name.clone().into_bytes()];
        words.extend(self.flags().into_iter().map(|flag| flag.into()));
        words.extend(self.passwords.iter().map(|hash| format!("#{hash}").into_bytes()));
        words.push(self.root.line());
        let selectors = self.selectors.iter();
        words.extend(selectors.map(|selector| [b"(", &*selector.line(), b")"].concat()));
        words.join(&b' ')
    }
}

/// Parses the rules between the parentheses of a selector.
fn selector(rules: &[u8], catalog: &Catalog, all_channels: bool) -> Result<Selector, RuleError> {
    // Redis takes quotes literally. They are rejected here, so that they are never interpreted
    // differently.
    if rules.iter().any(|byte| matches!(byte, b'"' | b'\'')) {
        return Err(RuleError::Syntax);
    }
    // A file of users would end the selector there when it is loaded.
    if words(rules).any(|rule| rule.ends_with(b")")) {
        return Err(RuleError::Syntax);
    }
    let mut selector = Selector::new(catalog, all_channels);
    for rule in words(rules) {
        selector.apply(rule, catalog)?;
    }
    Ok(selector)
}

/// Splits text into words at the bytes for which [`has_blanks`] looks.
pub(super) fn words(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|byte| has_blanks(&[*byte])).filter(|word| !word.is_empty())
}
