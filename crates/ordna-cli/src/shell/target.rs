//! The interface between the shell and what its commands work on.

use std::io::Write;

use crate::query::OutputClosed;
use crate::text::print_table;

/// Description of a command, for help and completion.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Description {
    /// The name in lower case; for a subcommand, after the name of its command.
    pub name: String,
    /// The usage text that follows the name.
    pub arguments: String,
    pub summary: String,
    /// Words that are options of the command, for completion.
    pub options: Vec<String>,
}

/// Output of the shell.
pub struct Screen<'a> {
    pub out: &'a mut dyn Write,
    /// Number of columns of the terminal; `None` if output does not go to a terminal.
    pub width: Option<usize>,
}

impl Screen<'_> {
    /// Prints a line.
    pub fn line(&mut self, text: &str) -> anyhow::Result<()> {
        writeln!(self.out, "{text}").map_err(OutputClosed)?;
        Ok(())
    }

    /// Prints a table, see [`print_table`].
    pub fn table(&mut self, names: &[&str], rows: &[Vec<String>]) -> anyhow::Result<()> {
        print_table(self.out, names, rows, self.width).map_err(OutputClosed)?;
        Ok(())
    }
}

/// A server or a directory that the commands work on.
pub trait Target {
    /// Returns the name to show in the prompt.
    fn name(&self) -> String;
    /// Returns the descriptions of all commands.
    fn commands(&self) -> &[Description];
    /// Runs a command and prints its result.
    ///
    /// # Errors
    /// The command was refused. The text says what to do.
    /// [`Unreachable`](crate::client::Unreachable) means that the connection was lost.
    fn run(&mut self, words: &[Vec<u8>], screen: &mut Screen<'_>) -> anyhow::Result<()>;
}
