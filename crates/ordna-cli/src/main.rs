//! The `ordna` program: starts a server, loads files into it and prints its entries.

mod allocator;
mod backup;
mod client;
mod directory;
mod export;
#[cfg(feature = "kafka")]
mod index_node;
mod load;
mod query;
mod serve;
mod shell;
mod text;
mod top;

use std::io::Write;
use std::process::ExitCode;

use anyhow::Context;
use clap::{CommandFactory, Parser, Subcommand};

use crate::text::with_causes;

/// Ordered in-memory key-value store that speaks the Redis protocol.
///
/// Without a command, starts the server on 127.0.0.1:6380.
#[derive(Debug, Parser)]
#[command(name = "ordna", version, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

const EXAMPLES: &str = "\
Examples:
  ordna serve --port 6380
  ordna load data/places.tsv.gz --key country,name,id
  ordna scan SE:Upp --limit 5
  ordna get SE:Uppsala:2666199
  redis-cli -p 6380 ORDNA.PREFIX SE: REV LIMIT 10 KEYS

Exit codes:
  0  success; a server was stopped by SIGTERM, SIGINT or SHUTDOWN
  1  failure, with the reason on standard error. This includes an absent key (get), an
     invalid line (load) and damage (verify)
  2  the command line is invalid; nothing was done
  3  no server answers at the address, or the connection to it was lost";

#[derive(Debug, Subcommand)]
enum Command {
    /// Start the server
    Serve(Box<serve::ServeOptions>),
    /// Index the partitions of a Kafka topic, as one node of a group
    #[cfg(feature = "kafka")]
    IndexNode(Box<index_node::IndexNodeOptions>),
    /// Load a file into a running server
    Load(load::LoadOptions),
    /// Print the value of a key
    Get(query::GetOptions),
    /// Print entries in key order
    Scan(query::ScanOptions),
    /// Write the entries of a server or a directory to a file
    Export(export::ExportOptions),
    /// Run commands interactively on a server or a directory
    Shell(shell::ShellOptions),
    /// Show the operations, memory and log of a server, updated every second
    Top(top::TopOptions),
    /// Make a running server write a backup, wait until it is complete, and optionally copy it
    ///
    /// The server must have a data directory (`ordna serve --dir`).
    Backup(backup::BackupOptions),
    /// Copy a backup into a new data directory
    Restore(backup::RestoreOptions),
    /// Read and check a backup or a data directory
    Verify(backup::VerifyOptions),
    /// Print the completion script of a shell: `source <(ordna completions bash)`
    Completions {
        /// Name of the shell
        shell: clap_complete::Shell,
    },
    /// Print the man page, as in `ordna man >ordna.1`, or write a page for each command
    Man {
        /// Directory to which the pages of all commands are written: ordna.1, ordna-serve.1 and so on
        #[arg(long, value_name = "DIR")]
        dir: Option<std::path::PathBuf>,
    },
}

fn main() -> ExitCode {
    allocator::configure();
    let done = match Cli::parse().command {
        None => serve::start(serve::ServeOptions::parse_from(["ordna"]), true),
        Some(Command::Serve(options)) => serve::start(*options, false),
        #[cfg(feature = "kafka")]
        Some(Command::IndexNode(options)) => index_node::run(*options),
        Some(Command::Load(options)) => load::run(&options),
        Some(Command::Get(options)) => query::get(&options),
        Some(Command::Scan(options)) => query::scan(&options),
        Some(Command::Export(options)) => export::run(&options),
        Some(Command::Shell(options)) => shell::run(&options),
        Some(Command::Top(options)) => top::run(&options),
        Some(Command::Backup(options)) => backup::run_backup(&options),
        Some(Command::Restore(options)) => backup::run_restore(&options),
        Some(Command::Verify(options)) => backup::run_verify(&options),
        Some(Command::Completions { shell }) => completions(shell),
        Some(Command::Man { dir }) => man(dir.as_deref()),
    };
    match done {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ordna: {}", with_causes(&error));
            exit_code(&error)
        }
    }
}

/// Returns the exit code for the error of a command.
fn exit_code(error: &anyhow::Error) -> ExitCode {
    let is_lost = error.downcast_ref::<client::Unreachable>().is_some();
    if is_lost { ExitCode::from(3) } else { ExitCode::FAILURE }
}

/// Prints the script that makes a shell complete commands and options.
fn completions(shell: clap_complete::Shell) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "ordna", &mut script);
    print(&script)
}

/// Prints the man page, or writes one for each command.
fn man(dir: Option<&std::path::Path>) -> anyhow::Result<ExitCode> {
    let Some(dir) = dir else {
        let mut page = Vec::new();
        clap_mangen::Man::new(Cli::command()).render(&mut page)?;
        return print(&page);
    };
    std::fs::create_dir_all(dir)
        .and_then(|()| clap_mangen::generate_to(Cli::command(), dir))
        .with_context(|| format!("cannot write the pages to {}", dir.display()))?;
    Ok(ExitCode::SUCCESS)
}

fn print(text: &[u8]) -> anyhow::Result<ExitCode> {
    std::io::stdout().lock().write_all(text).map_err(query::OutputClosed)?;
    Ok(ExitCode::SUCCESS)
}

/// Returns whether the error is that the reader of standard output closed it, as in `ordna scan |
/// head`.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<query::OutputClosed>()
        .is_some_and(|query::OutputClosed(error)| error.kind() == std::io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::Cli;

    #[test]
    fn the_command_line_has_no_contradictions() {
        Cli::command().debug_assert();
    }
}
