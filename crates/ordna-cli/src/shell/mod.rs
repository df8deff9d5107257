//! `ordna shell`: reads commands for a directory or a server, and runs them line by line.

use std::io::{BufRead, IsTerminal};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Parser;

use crate::client::{ServerAddress, Unreachable};
use crate::query::OutputClosed;
use crate::text::{split_words, with_causes};

mod directory;
mod editor;
mod remote;
mod target;

use directory::Directory;
use remote::Remote;
use target::{Description, Screen, Target};

/// Options of `ordna shell`.
#[derive(Debug, Parser)]
pub struct ShellOptions {
    /// Directory of the store to open; without it, the commands are sent to a server
    dir: Option<PathBuf>,
    /// Create the directory if it does not exist
    #[arg(long, requires = "dir")]
    create: bool,
    #[command(flatten)]
    server: ServerAddress,
}

/// Whether the shell reads another line.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    Continue,
    Exit,
}

/// Runs the commands that a user types on a terminal, or those read from standard input.
pub fn run(options: &ShellOptions) -> anyhow::Result<ExitCode> {
    let mut target: Box<dyn Target> = match &options.dir {
        Some(dir) => Box::new(Directory::open(dir, options.create)?),
        None => Box::new(Remote::connect(&options.server)?),
    };
    let stdout = std::io::stdout();
    let width = stdout.is_terminal().then(|| usize::from(console::Term::stdout().size().1));
    let mut screen = Screen { out: &mut stdout.lock(), width };
    if std::io::stdin().is_terminal() {
        interact(&mut *target, &mut screen)?;
    } else {
        run_lines(&mut *target, std::io::stdin().lock(), &mut screen)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads lines with the editor and runs them. Errors are printed, and the shell continues.
fn interact(target: &mut dyn Target, screen: &mut Screen<'_>) -> anyhow::Result<()> {
    let mut editor = editor::Editor::new(target.commands())?;
    let prompt = target.name();
    screen.line("`help` lists the commands, Tab completes them, Ctrl-D ends the shell")?;
    while let Some(line) = editor.read(&prompt)? {
        match run_line(target, &line, screen) {
            Ok(Next::Continue) => {}
            Ok(Next::Exit) => break,
            Err(error) if error.downcast_ref::<OutputClosed>().is_some() => return Err(error),
            Err(error) if error.downcast_ref::<Unreachable>().is_some() => {
                let hint = "the next command connects again";
                eprintln!("error: {}; {hint}", with_causes(&error));
            }
            Err(error) => eprintln!("error: {}", with_causes(&error)),
        }
        screen.out.flush().map_err(OutputClosed)?;
    }
    Ok(())
}

/// Runs lines without a prompt. Stops at the first error.
fn run_lines(
    target: &mut dyn Target,
    input: impl BufRead,
    screen: &mut Screen<'_>,
) -> anyhow::Result<()> {
    for (at, line) in input.lines().enumerate() {
        let line = line.with_context(|| format!("line {} is not readable", at + 1))?;
        let next = run_line(target, &line, screen).with_context(|| format!("line {}", at + 1))?;
        if next == Next::Exit {
            break;
        }
    }
    screen.out.flush().map_err(OutputClosed)?;
    Ok(())
}

/// Runs one line. Empty lines and lines that begin with `#` are ignored.
fn run_line(target: &mut dyn Target, line: &str, screen: &mut Screen<'_>) -> anyhow::Result<Next> {
    if line.trim_start().starts_with('#') {
        return Ok(Next::Continue);
    }
    let words = split_words(line).map_err(anyhow::Error::msg)?;
    let Some(first) = words.first() else { return Ok(Next::Continue) };
    match first.to_ascii_lowercase().as_slice() {
        b"exit" | b"quit" => return Ok(Next::Exit),
        b"help" | b"?" => {
            let name = words[1..].join(&b' ').to_ascii_lowercase();
            help(target.commands(), &String::from_utf8_lossy(&name), screen)?;
        }
        _ => target.run(&words, screen)?,
    }
    Ok(Next::Continue)
}

/// Prints the commands whose name begins with `name`: several with their summaries, a single one
/// with its arguments.
fn help(commands: &[Description], name: &str, screen: &mut Screen<'_>) -> anyhow::Result<()> {
    let found = commands.iter().filter(|command| command.name.starts_with(name));
    let found: Vec<_> = found.collect();
    let exact = found.iter().find(|command| command.name == name);
    if let Some(command) = exact.or(found.first().filter(|_| found.len() == 1)) {
        screen.line(format!("{} {}", command.name, command.arguments).trim_end())?;
        return screen.line(&command.summary);
    }
    if found.is_empty() {
        bail!("no command begins with `{name}`; `help` lists all");
    }
    let rows = found.iter().map(|command| vec![command.name.clone(), command.summary.clone()]);
    screen.table(&["command", "summary"], &rows.collect::<Vec<_>>())
}
