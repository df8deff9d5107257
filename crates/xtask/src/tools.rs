//! Tools of all commands: cargo, run from the top of the checkout.

use std::path::PathBuf;
use std::process::Command;

/// The crates whose tests look for planted faults and run under a sanitizer.
pub const LIBRARY: [&str; 4] = ["ordna-base", "ordna-papers", "ordna", "ordna-secondary"];

/// Tells cargo to take these crates.
pub fn library() -> impl Iterator<Item = &'static str> {
    LIBRARY.into_iter().flat_map(|name| ["-p", name])
}

/// The error, for a person.
pub type Outcome = Result<(), String>;

/// The top of the checkout.
pub fn root() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).expect("crates/xtask lies two below the top").to_owned()
}

/// Cargo, from the top of the checkout.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned()));
    command.current_dir(root());
    command
}

/// Runs a command whose failure is an error.
pub fn must(command: &mut Command) -> Outcome {
    let status = command.status().map_err(|error| format!("cannot start {command:?}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{command:?} failed: {status}")) }
}
