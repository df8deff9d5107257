//! Runs the loom models with no fault, and tells how many executions each has.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::process::Stdio;

use crate::faults::MODELLED;
use crate::page;
use crate::tools::{Outcome, cargo, target};

/// All models.
pub fn run() -> Outcome {
    let programs: BTreeSet<_> = MODELLED.map(|(_, package, test, _)| (package, test)).into();
    let mut rows: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (package, program) in programs {
        let mut command = cargo();
        command
            .args(["test", "--profile=model", "-p", package, "--test", program])
            .arg("--target-dir")
            .arg(target("loom"))
            .args(["--", "--nocapture"])
            .env("RUSTFLAGS", "--cfg faults --cfg loom")
            .stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| format!("{command:?}: {error}"))?;
        let stdout = child.stdout.take().expect("piped above");
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            println!("{line}");
            // `explore` of `ordna_base::sync` writes such a line.
            let explored = line.strip_prefix("explored ").and_then(|rest| rest.rsplit_once(' '));
            if let Some((test, executions)) = explored {
                let is_module = test.contains("::");
                let name = if is_module { test.to_owned() } else { format!("{program}::{test}") };
                rows.entry(name).or_default().push(executions.to_owned());
            }
        }
        let status = child.wait().map_err(|error| format!("{command:?}: {error}"))?;
        if !status.success() {
            return Err(format!("{command:?} failed: {status}"));
        }
    }
    // A model that runs once for each of several cases has a number for each.
    let rows = rows.into_iter().map(|(name, numbers)| (name, vec![numbers.join(", ")]));
    page::update("models", rows.collect(), |_| false)
}
