//! The arguments of a command with many options, one after the other.

use crate::wire::request::{Arguments, number};

/// Arguments that are still to be read.
#[derive(Debug, Clone)]
pub struct Words<'a> {
    arguments: Arguments<'a>,
    at: usize,
}

impl<'a> Words<'a> {
    /// The arguments from a position on.
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

    /// Takes a word, in any case, if it is next.
    pub fn take(&mut self, word: &str) -> bool {
        let found = self.peek().is_some_and(|next| next.eq_ignore_ascii_case(word.as_bytes()));
        self.at += usize::from(found);
        found
    }

    /// The argument of an option.
    ///
    /// # Errors
    /// There is none.
    pub fn of(&mut self, option: &str) -> Result<&'a [u8], String> {
        self.next().ok_or_else(|| format!("ERR {option} lacks an argument"))
    }

    /// The same as text.
    ///
    /// # Errors
    /// There is none, or it is not UTF-8.
    pub fn text_of(&mut self, option: &str) -> Result<&'a str, String> {
        text(self.of(option)?, option)
    }

    /// The same as a number from 0 to `most`.
    ///
    /// # Errors
    /// There is none, or it is out of range.
    pub fn count_of(&mut self, option: &str, most: usize) -> Result<usize, String> {
        let word = self.of(option)?;
        let count = number(word).and_then(|count| usize::try_from(count).ok());
        count.filter(|count| *count <= most).ok_or_else(|| {
            let shown = String::from_utf8_lossy(word);
            format!("ERR {option}: '{shown:.40}' is no number from 0 to {most}")
        })
    }

    /// The refusal of the next word.
    pub fn unsupported(&self, command: &str) -> String {
        let word = String::from_utf8_lossy(self.peek().unwrap_or_default());
        format!("ERR {command}: '{word:.100}' is not supported by Ordna")
    }
}

/// A name that may be kept: not empty, and without the byte that separates names.
///
/// # Errors
/// It is neither.
pub fn checked<'a>(name: &'a str, what: &str) -> Result<&'a str, String> {
    match name {
        "" => Err(format!("ERR {what} is empty")),
        _ if name.contains('\0') => Err(format!("ERR {what} has a byte 0: {name:.40?}")),
        _ => Ok(name),
    }
}

/// An argument as text.
///
/// # Errors
/// It is not UTF-8.
pub fn text<'a>(word: &'a [u8], what: &str) -> Result<&'a str, String> {
    std::str::from_utf8(word).map_err(|_| format!("ERR {what} is not UTF-8"))
}
