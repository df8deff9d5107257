//! The test that last detected each planted fault: `noticed.txt` in this crate.
//!
//! The file has one line per fault, `fault test`, sorted. [`crate::faults`] tries that test first,
//! and runs the suite of the fault's area if the file has no test or the test no longer detects the
//! fault. The file saves time and proves nothing: each run writes what it has seen. It is committed
//! so that runs in a new clone are short, too.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::tools::{Outcome, root};

/// Tests by the fault that they detected last.
pub type Noticed = BTreeMap<String, String>;

fn path() -> PathBuf {
    root().join("crates/xtask/noticed.txt")
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
