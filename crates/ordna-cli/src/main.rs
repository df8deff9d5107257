//! The `ordna` program: starts a server, loads files into it and prints its entries.

mod allocator;
mod backup;
mod client;
#[cfg(feature = "kafka")]
mod index_node;
mod load;
mod query;
mod serve;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Ordered in-memory store that speaks the Redis protocol.
///
/// Without a command it starts the server on 127.0.0.1:6380.
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
  0  done; a server was stopped by SIGTERM, SIGINT or SHUTDOWN
  1  failed, with the reason on standard error: also a key that is absent (get), a bad
     line (load), damage (verify)
  2  the command line is wrong; nothing was done";

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
    /// Make a running server (`serve --dir`) write a backup, wait for its end, and perhaps copy it
    Backup(backup::BackupOptions),
    /// Copy a backup into a new data directory
    Restore(backup::RestoreOptions),
    /// Read and check a backup or a data directory
    Verify(backup::VerifyOptions),
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
        Some(Command::Backup(options)) => backup::run_backup(&options),
        Some(Command::Restore(options)) => backup::run_restore(&options),
        Some(Command::Verify(options)) => backup::run_verify(&options),
    };
    match done {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ordna: {}", with_causes(&error));
            ExitCode::FAILURE
        }
    }
}

/// Whether the reader of standard output closed it, as in `ordna scan | head`.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<query::OutputClosed>()
        .is_some_and(|query::OutputClosed(error)| error.kind() == std::io::ErrorKind::BrokenPipe)
}

/// An error and its causes. A cause that the error's own text contains is not repeated.
fn with_causes(error: &anyhow::Error) -> String {
    let causes = error.chain().skip(1).map(ToString::to_string);
    causes.fold(error.to_string(), |text, cause| {
        if text.contains(&cause) { text } else { format!("{text}: {cause}") }
    })
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
