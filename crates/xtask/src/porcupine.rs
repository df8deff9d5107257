//! Checks recorded histories a second time, with porcupine, a linearizability checker in Go.

use std::process::Command;

use crate::tools::{Outcome, cargo, must, root};

pub fn run() -> Outcome {
    let folder = root().join("target/histories");
    std::fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
    must(
        cargo()
            .args(["run", "--release", "-p", "ordna-papers", "--example", "histories", "--"])
            .arg(&folder),
    )?;
    must(
        Command::new("go")
            .args(["run", "."])
            .arg(&folder)
            .current_dir(root().join("crates/ordna-testkit/porcupine")),
    )
    .map_err(|error| format!("{error}\n(go 1.21 or later is needed)"))
}
