//! [`ArgumentReader`]: reads the arguments of a command with many options, one after the other.

use crate::wire::error::CommandError;
use crate::wire::request::{Arguments, number};

/// The arguments that are still to be read.
#[derive(Debug, Clone)]
pub struct ArgumentReader<'a> {
    arguments: Arguments<'a>,
    at: usize,
}

impl<'a> ArgumentReader<'a> {
    /// Returns the arguments from a position on.
    pub fn new(arguments: Arguments<'a>, from: usize) -> Self {
        Self { arguments, at: from }
    }

    pub fn peek(&self) -> Option<&'a [u8]> {
        (self.at < self.arguments.len()).then(|| self.arguments.get(self.at))
    }

    pub fn next(&mut self) -> Option<&'a [u8]> {
        let word = self.peek()?;
        self.at += 1;
        Some(word)
    }

    /// Takes a word, in any case, if it comes next.
    pub fn take(&mut self, word: &str) -> bool {
        let found = self.peek().is_some_and(|next| next.eq_ignore_ascii_case(word.as_bytes()));
        self.at += usize::from(found);
        found
    }

    /// Returns the argument of an option.
    ///
    /// # Errors
    /// No argument follows.
    pub fn of(&mut self, option: &str) -> Result<&'a [u8], CommandError> {
        self.next().ok_or_else(|| format!("ERR {option} lacks an argument").into())
    }

    /// Returns the argument of an option as text.
    ///
    /// # Errors
    /// No argument follows, or it is not UTF-8.
    pub fn text_of(&mut self, option: &str) -> Result<&'a str, CommandError> {
        text(self.of(option)?, option)
    }

    /// Returns the argument of an option as a number from 0 to `most`.
    ///
    /// # Errors
    /// No argument follows, or it is not a number in that range.
    pub fn count_of(&mut self, option: &str, most: usize) -> Result<usize, CommandError> {
        let word = self.of(option)?;
        let count = number(word).and_then(|count| usize::try_from(count).ok());
        count.filter(|count| *count <= most).ok_or_else(|| {
            let shown = String::from_utf8_lossy(word);
            format!("ERR {option}: '{shown:.40}' is not a number from 0 to {most}").into()
        })
    }

    /// Returns the error for the next word, an option that the command does not support.
    pub fn unsupported(&self, command: &str) -> CommandError {
        let word = String::from_utf8_lossy(self.peek().unwrap_or_default());
        format!("ERR {command}: '{word:.100}' is not supported by Ordna").into()
    }
}

/// Returns the name if it can be stored: not empty, and without the byte 0, which separates names.
///
/// # Errors
/// The name is empty or contains the byte 0.
pub fn checked<'a>(name: &'a str, what: &str) -> Result<&'a str, CommandError> {
    match name {
        "" => Err(format!("ERR {what} is empty").into()),
        _ if name.contains('\0') => Err(format!("ERR {what} has a byte 0: {name:.40?}").into()),
        _ => Ok(name),
    }
}

/// Returns an argument as text.
///
/// # Errors
/// The argument is not UTF-8.
pub fn text<'a>(word: &'a [u8], what: &str) -> Result<&'a str, CommandError> {
    std::str::from_utf8(word).map_err(|_| format!("ERR {what} is not UTF-8").into())
}
