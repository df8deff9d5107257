//! Runs the loom models without faults. Each prints the number of its executions.

use std::collections::BTreeSet;

use crate::faults::MODELLED;
use crate::tools::{Outcome, cargo, must, target};

/// Runs all models.
pub fn run() -> Outcome {
    let programs: BTreeSet<_> = MODELLED.map(|(_, package, test, _)| (package, test)).into();
    for (package, program) in programs {
        must(
            cargo()
                .args(["test", "--profile=model", "-p", package, "--test", program])
                .arg("--target-dir")
                .arg(target("loom"))
                .args(["--", "--nocapture"])
                .env("RUSTFLAGS", "--cfg faults --cfg loom"),
        )?;
    }
    Ok(())
}
