//! Errors of commands, in the form that clients receive.

use std::borrow::Cow;

use crate::wire::request::Arguments;

/// The reason why a command failed. Its text is the error reply, which begins with the code.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CommandError {
    #[error("ERR syntax error")]
    Syntax,
    #[error("ERR value is not an integer or out of range")]
    NotAnInteger,
    #[error("ERR no such key")]
    NoSuchKey,
    /// The key holds a value of another type.
    #[error("WRONGTYPE Operation against a key holding the wrong kind of value")]
    WrongType,
    /// The value would be longer than [`ordna::value::MAX_LEN`].
    #[error("ERR string exceeds maximum allowed size (proto-max-bulk-len)")]
    ValueTooLong,
    /// The memory limit is reached.
    #[error("OOM command not allowed when used memory > 'maxmemory'.")]
    OutOfMemory,
    /// The log cannot be written, so writes fail until a backup succeeds.
    #[error(
        "MISCONF Errors writing to the log: {reason}. A backup that succeeds (BGSAVE) has writes accepted again."
    )]
    LogFailed { reason: String },
    /// The server is a follower, or another one has taken over.
    #[error("READONLY You can't write against a read only replica.")]
    ReadOnly,
    /// A small collection becomes large, so the command is executed again while it excludes others.
    #[error("ERR the command has to be executed alone")]
    NeedsExclusive,
    /// The command reads many elements, so it is executed again on a snapshot.
    #[error("ERR the command has to be executed on a snapshot")]
    NeedsSnapshot,
    /// The client has not authenticated.
    #[error("NOAUTH Authentication required.")]
    NotAuthenticated,
    #[error("WRONGPASS invalid username-password pair or user is disabled.")]
    WrongPassword,
    /// The user may not execute this command.
    #[error("NOPERM this user has no permissions to run the '{command}' command")]
    CommandDenied { command: String },
    /// The user may not access one of the keys.
    #[error("NOPERM this user has no permissions to access one of the keys used as arguments")]
    KeyDenied,
    /// The user may not access one of the channels.
    #[error("NOPERM this user has no permissions to access one of the channels used as arguments")]
    ChannelDenied,
    /// A script is running.
    #[error(
        "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE."
    )]
    Busy,
    /// The server is reading its directory.
    #[error("LOADING Ordna is loading the dataset in memory")]
    Loading,
    #[error("ERR wrong number of arguments for '{command}' command")]
    WrongArity { command: Cow<'static, str> },
    /// An error with its own text, which begins with its code.
    #[error("{0}")]
    Other(Cow<'static, str>),
}

impl CommandError {
    /// Returns the error of a call with a wrong number of arguments.
    pub fn wrong_arity(command: impl Into<Cow<'static, str>>) -> Self {
        Self::WrongArity { command: command.into() }
    }
}

impl CommandError {
    /// Returns the error of a call whose first argument is not a subcommand of its command.
    pub fn unknown_subcommand(arguments: Arguments<'_>) -> Self {
        Self::about_subcommand("unknown subcommand", arguments)
    }

    /// Returns the error of a subcommand with a number of arguments that none of its forms has.
    pub fn subcommand_syntax(arguments: Arguments<'_>) -> Self {
        Self::about_subcommand("unknown subcommand or wrong number of arguments for", arguments)
    }

    fn about_subcommand(problem: &str, arguments: Arguments<'_>) -> Self {
        const SHOWN: usize = 128;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let name = if arguments.len() > 1 { arguments.get(1) } else { b"" };
        let shown = text(&name[..name.len().min(SHOWN)]);
        let command = text(arguments.get(0)).to_ascii_uppercase();
        format!("ERR {problem} '{shown}'. Try {command} HELP.").into()
    }
}

impl From<&'static str> for CommandError {
    fn from(text: &'static str) -> Self {
        Self::Other(text.into())
    }
}

impl From<String> for CommandError {
    fn from(text: String) -> Self {
        Self::Other(text.into())
    }
}

impl From<ordna::Error> for CommandError {
    fn from(error: ordna::Error) -> Self {
        match error {
            ordna::Error::MemoryLimit { .. } => Self::OutOfMemory,
            ordna::Error::ValueTooLong { .. } => Self::ValueTooLong,
            ordna::Error::LogFailed { reason } => Self::LogFailed { reason: reason.to_string() },
            other => Self::Other(format!("ERR {other}").into()),
        }
    }
}
