//! The developers' own commands: `cargo xtask <command>`.

mod asan;
mod faults;
mod licences;
mod porcupine;

use std::path::PathBuf;
use std::process::{Command, ExitCode};

const HELP: &str = "\
cargo xtask asan [PART]       run the library's tests (whose name contains PART) under AddressSanitizer, leaks too
cargo xtask faults [PART]     take out each planted fault (whose name contains PART) and show which test notices
cargo xtask loom              run the loom models as they are
cargo xtask shuttle           race PI's rebuilds with batches under a random scheduler
cargo xtask porcupine         check recorded histories with porcupine too (needs go); verdicts must agree
cargo xtask licences          check the licences of all dependencies, and the arrows between the crates";

/// The crates whose tests look for planted faults and run under a sanitizer.
const LIBRARY: [&str; 3] = ["ordna-base", "ordna-papers", "ordna"];

/// Tells cargo to take these crates.
fn library() -> impl Iterator<Item = &'static str> {
    LIBRARY.into_iter().flat_map(|name| ["-p", name])
}

/// What went wrong, for a person.
type Outcome = Result<(), String>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        ["asan"] => asan::run(""),
        ["asan", part] => asan::run(part),
        ["faults"] => faults::run(""),
        ["faults", part] => faults::run(part),
        ["loom"] => faults::loom_clean(),
        ["shuttle"] => shuttle(),
        ["porcupine"] => porcupine::run(),
        ["licences"] => licences::run(),
        _ => Err(HELP.to_owned()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the tests whose threads are shuttle's.
fn shuttle() -> Outcome {
    must(
        cargo()
            .args(["test", "--release", "-p", "ordna-papers", "--test", "shuttle_pi"])
            .args(["--target-dir", "target/shuttle"])
            .env("RUSTFLAGS", "--cfg faults --cfg shuttle"),
    )
}

/// The top of the checkout.
fn root() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).expect("crates/xtask lies two below the top").to_owned()
}

/// Cargo, from the top of the checkout.
fn cargo() -> Command {
    let mut command = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned()));
    command.current_dir(root());
    command
}

/// Runs a command whose failure is an error.
fn must(command: &mut Command) -> Outcome {
    let status = command.status().map_err(|error| format!("cannot start {command:?}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{command:?} failed: {status}")) }
}
