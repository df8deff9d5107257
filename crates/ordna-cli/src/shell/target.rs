//! What the shell's commands work on.

use std::io::Write;

use crate::query::OutputClosed;
use crate::text::print_table;

/// A command, for help and completion.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Description {
    /// The name in lower case; with its container, if it has one.
    pub name: String,
    /// What follows the name.
    pub arguments: String,
    pub summary: String,
    /// Words that are options.
    pub options: Vec<String>,
}

/// Where output goes.
pub struct Screen<'a> {
    pub out: &'a mut dyn Write,
    /// Columns of the terminal; `None` if it is no terminal.
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

/// What the commands work on.
pub trait Target {
    /// The name, for the prompt.
    fn name(&self) -> String;
    /// All commands.
    fn commands(&self) -> &[Description];
    /// Runs a command and prints its result.
    ///
    /// # Errors
    /// The command was refused; the text says what to do. [`Unreachable`](crate::client::Unreachable): the server is gone.
    fn run(&mut self, words: &[Vec<u8>], screen: &mut Screen<'_>) -> anyhow::Result<()>;
}
