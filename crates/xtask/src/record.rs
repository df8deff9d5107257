//! The test that last noticed each planted fault: `faults.txt` in the target directory.
//!
//! One line per fault, `fault test`, sorted. [`crate::faults`] tries that test first. Without the
//! file it runs the whole suite of the fault's area.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::tools::{Outcome, target};

/// Tests by the fault that they noticed last.
pub type Noticed = BTreeMap<String, String>;

fn path() -> PathBuf {
    target("faults.txt")
}

/// Reads the record; it is empty if no run has written one.
pub fn read() -> Noticed {
    let text = std::fs::read_to_string(path()).unwrap_or_default();
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    lines.map(|(fault, test)| (fault.to_owned(), test.to_owned())).collect()
}

/// Replaces the record.
pub fn write(noticed: &Noticed) -> Outcome {
    let lines: Vec<String> =
        noticed.iter().map(|(fault, test)| format!("{fault} {test}\n")).collect();
    let path = path();
    std::fs::write(&path, lines.concat()).map_err(|error| format!("{}: {error}", path.display()))
}
