//! Planted faults: turns off each fence, validation and recheck, and expects that a test detects
//! this.
//!
//! The sources name them in `fault!("area.what")` and its kin. The build of `cargo test
//! --workspace` contains all of them, and `ORDNA_FAULT=name` plants one when a test starts: a build
//! per fault would take hours. Faults of the areas in [`MODELLED`] are invisible to tests on
//! x86-64, whose hardware orders more than the language does; a loom model has to notice them.
//!
//! The test that last detected a fault runs first, if [`record`] knows it. The suite of the area
//! runs only if that test passes.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::record;
use crate::tools::{Outcome, SHARES, cargo, packages, root, share, target};

/// Areas whose faults a loom model must detect: area, crate, test program, and the module in it.
pub const MODELLED: [(&str, &str, &str, &str); 7] = [
    ("version_lock", "ordna-base", "loom_version_lock", ""),
    ("twin", "ordna-papers", "models", "loom_twin::"),
    ("epochs", "ordna", "loom_epochs", ""),
    ("undo_order", "ordna", "loom_undo_order", ""),
    ("nitro_barrier", "ordna-papers", "models", "loom_nitro_barrier::"),
    ("art_prefix", "ordna-papers", "models", "loom_art_prefix::"),
    ("hydralist_updates", "ordna-papers", "models", "loom_hydralist_updates::"),
];

/// Parts of the store, whose tests must detect their faults.
const OF_THE_STORE: [&str; 4] = ["buffer", "search", "tree", "undo"];

/// Option that builds the unit tests of all libraries.
const LIBRARIES: &str = "--lib";

/// Maximum time without the end of a test, in a suite without a fault.
const CLEAN_LIMIT: Duration = Duration::from_secs(120);

/// Time that is added to three times the longest time without the end of a test, in a suite without
/// a fault. A suite with a fault that exceeds this blocks because of the fault.
const HANG: Duration = Duration::from_secs(8);

/// Interval between two checks of a running suite.
const LOOK: Duration = Duration::from_secs(1);

/// Number of runs of a suite with a fault, because some faults have an effect only in some
/// interleavings, which occur sooner or later.
const TRIES: u32 = 5;

/// The way in which the suite detected a fault.
enum Verdict {
    Test(String),
    Crash,
    /// A test did not end. Its name, if it is known.
    Hang(Option<String>),
    Nothing,
}

impl Verdict {
    /// Returns the name of the test that detected the fault, if there is one.
    fn name(self) -> Option<String> {
        match self {
            Self::Test(test) => Some(test),
            Self::Crash => Some("a crash".to_owned()),
            Self::Hang(None) => Some("a hang".to_owned()),
            Self::Hang(Some(test)) => Some(format!("a hang of {test}")),
            Self::Nothing => None,
        }
    }

    /// Returns the name of the test that failed or blocked, if it is known.
    fn test(&self) -> Option<&str> {
        match self {
            Self::Test(test) | Self::Hang(Some(test)) => Some(test),
            Self::Crash | Self::Hang(None) | Self::Nothing => None,
        }
    }
}

/// Tests of a program that may detect a fault: those with the filter in their names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Part {
    program: PathBuf,
    filter: String,
}

/// A built test program.
struct Program {
    path: PathBuf,
    /// Name of its source file, or names of its modules if it has any.
    stems: Vec<String>,
    has_modules: bool,
}

/// Plants all faults whose name contains `part`.
pub fn run(part: &str) -> Outcome {
    let names: Vec<String> = names()?.into_iter().filter(|name| name.contains(part)).collect();
    if names.is_empty() {
        return Err(format!("no fault has {part:?} in its name"));
    }
    plant(&names, &[])
}

/// Maximum time that [`run_share`] spends on the areas that a commit touches. A commit that changes
/// comments of many files touches most areas.
const TOUCHED: Duration = Duration::from_secs(240);

/// Plants the share of this commit, and then faults of the areas that it touches, until [`TOUCHED`]
/// has passed. Prints the names of those for which there was no time.
pub fn run_share() -> Outcome {
    let (share, changed) = share()?;
    let mut touched = Vec::new();
    for path in changed.iter().filter(|path| path.ends_with(".rs") && path.contains("/src/")) {
        let text = std::fs::read_to_string(root().join(path)).unwrap_or_default();
        touched.extend(named(&text).map(|name| area_of(name).to_owned()));
    }
    println!("share {share} of {SHARES}, areas touched: {touched:?}");
    let is_mine = |(at, _): &(usize, String)| at % SHARES == share;
    let (mine, others): (Vec<_>, Vec<_>) = names()?.into_iter().enumerate().partition(is_mine);
    let is_touched = |name: &String| touched.iter().any(|area| area == area_of(name));
    let mine: Vec<String> = mine.into_iter().map(|(_, name)| name).collect();
    let touched: Vec<String> =
        others.into_iter().map(|(_, name)| name).filter(is_touched).collect();
    plant(&mine, &touched)
}

/// Plants the faults `names`, and then those of `more` until [`TOUCHED`] has passed.
fn plant(names: &[String], more: &[String]) -> Outcome {
    let all: Vec<String> = names.iter().chain(more).cloned().collect();
    let modelled = |name: &str| MODELLED.iter().find(|(area, ..)| *area == area_of(name));
    let mut models = BTreeMap::new();
    for (area, package, test, filter) in MODELLED {
        if all.iter().any(|name| area_of(name) == area) {
            let folder = target("loom").display().to_string();
            let built = build("--cfg faults --cfg loom", &folder, &[package], &[test])?;
            let part = |program: Program| Part { program: program.path, filter: filter.to_owned() };
            models.insert(area, built.into_iter().map(part).collect::<Vec<_>>());
        }
    }
    // The same target, features and flags as `cargo test --workspace`, so that nothing is built
    // twice.
    let others: Vec<String> = all.iter().filter(|name| modelled(name).is_none()).cloned().collect();
    let mut tests = build("", "", &[], &tests_for(&others)?)?;
    let has_test = |area: &str, tests: &[Program]| {
        tests.iter().any(|program| program.stems.iter().any(|stem| is_of(stem, area)))
    };
    // Unit tests for areas without other tests.
    if others.iter().any(|name| !has_test(area_of(name), &tests)) {
        let mut libraries = build("", "", &[], &[LIBRARIES])?;
        let is_wanted = |stem: &String| {
            others.iter().any(|name| is_of(stem, area_of(name)) && !has_test(area_of(name), &tests))
        };
        libraries.iter_mut().for_each(|program| program.stems.retain(is_wanted));
        tests.append(&mut libraries);
    }
    let suite_of = |name: &str| -> Result<Vec<Part>, String> {
        let area = area_of(name);
        if let Some(models) = models.get(area) {
            return Ok(models.clone());
        }
        let mut own: Vec<(bool, &str, Part)> = Vec::new();
        for program in &tests {
            for stem in program.stems.iter().filter(|stem| is_of(stem, area)) {
                let filter = if program.has_modules { format!("{stem}::") } else { String::new() };
                // Forced interleavings detect faults soonest.
                let is_late = !stem.ends_with("interleavings");
                own.push((is_late, stem, Part { program: program.path.clone(), filter }));
            }
        }
        own.sort();
        if own.is_empty() {
            return Err(format!("no test file or module {area}* for {name}"));
        }
        Ok(own.into_iter().map(|(.., part)| part).collect())
    };
    println!("{:<44} {:>8}  caught by", "fault", "seconds");
    let mut missed = Vec::new();
    let known = self::names()?;
    let mut noticed = record::read();
    noticed.retain(|fault, _| known.contains(fault));
    let mut clean = Clean::default();
    let mut begun_more = None;
    let mut planted = 0;
    for (at, name) in all.iter().enumerate() {
        if at >= names.len() && begun_more.get_or_insert_with(Instant::now).elapsed() > TOUCHED {
            break;
        }
        planted += 1;
        let suite = suite_of(name)?;
        let (verdict, took) = match noticed.get(name).and_then(|test| noticer(test, &suite)) {
            Some(test) => clean.judge(&[test], name)?,
            None => (Verdict::Nothing, Duration::ZERO),
        };
        let (mut verdict, mut took, mut runs) = (verdict, took, 0);
        while matches!(verdict, Verdict::Nothing) && runs < TRIES {
            let run = clean.judge(&suite, name)?;
            (verdict, took, runs) = (run.0, took + run.1, runs + 1);
        }
        match verdict.test() {
            Some(test) => drop(noticed.insert(name.clone(), test.to_owned())),
            None => drop(noticed.remove(name)),
        }
        let mut caught = verdict.name().unwrap_or_else(|| {
            missed.push(name.as_str());
            "NOTHING".to_owned()
        });
        if runs > 1 {
            caught += &format!(" (in run {runs})");
        }
        println!("{name:<44} {:>8.1}  {caught}", took.as_secs_f64());
        // Written after each fault, because a run of all faults takes long and may be interrupted.
        record::write(&noticed)?;
    }
    let left = &all[planted..];
    if !left.is_empty() {
        println!("no time was left for {} of the areas touched: {}", left.len(), left.join(", "));
    }
    if missed.is_empty() {
        println!("all {planted} planted faults are caught");
        Ok(())
    } else {
        Err(format!("nothing catches {}", missed.join(", ")))
    }
}

/// Returns a recorded test as a part of the suite, or `None` if the suite has no module with that
/// name.
fn noticer(test: &str, suite: &[Part]) -> Option<Part> {
    let part = suite.iter().find(|part| test.contains("::") && test.contains(&part.filter))?;
    Some(Part { filter: test.to_owned(), ..part.clone() })
}

/// Results of suites without a fault, each determined once.
#[derive(Default)]
struct Clean(BTreeMap<Vec<Part>, Duration>);

impl Clean {
    /// Returns whether and how a suite detects a fault, and how long that took.
    fn judge(&mut self, suite: &[Part], fault: &str) -> Result<(Verdict, Duration), String> {
        let limit = if let Some(limit) = self.0.get(suite) {
            *limit
        } else {
            // A suite that fails without a fault shows nothing about a fault.
            let run = judge(suite, "", CLEAN_LIMIT)?;
            let limit = run.limit();
            if let Some(what) = run.verdict.name() {
                return Err(format!("without any fault already: {what} of {suite:?}"));
            }
            *self.0.entry(suite.to_vec()).or_insert(limit)
        };
        let run = judge(suite, fault, limit)?;
        Ok((run.verdict, run.took))
    }
}

fn area_of(name: &str) -> &str {
    name.split('.').next().unwrap_or(name)
}

/// Returns whether a test file is named after `area`.
fn is_of(stem: &str, area: &str) -> bool {
    let area = if OF_THE_STORE.contains(&area) { "store" } else { area };
    stem.strip_prefix(area).is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
}

/// Returns the names in `fault!("…")`, and in `check!`, `notice!` and `order!` of a source text.
fn named(text: &str) -> impl Iterator<Item = &str> {
    let calls = ["fault!(", "check!(", "notice!(", "order!("].into_iter();
    let after = calls.flat_map(|call| text.split(call).skip(1));
    let named = after.filter_map(|rest| rest.trim_start().strip_prefix('"')?.split('"').next());
    let is_part =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_.".contains(&byte);
    let is_name = move |name: &str| name.contains('.') && name.bytes().all(is_part);
    // The documentation of the switches shows a name that is none. This file has other text there.
    named.filter(move |name| is_name(name) && *name != "area.what")
}

/// Returns the names of all faults of the workspace, in order.
fn names() -> Result<Vec<String>, String> {
    let mut found = BTreeSet::new();
    for package in packages()? {
        for path in rust_files(&package.folder.join("src"))? {
            let text = std::fs::read_to_string(&path)
                .map_err(|error| format!("{}: {error}", path.display()))?;
            found.extend(named(&text).map(str::to_owned));
        }
    }
    Ok(found.into_iter().collect())
}

/// Returns all Rust files below a folder.
pub fn rust_files(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let entries =
        std::fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut files = Vec::new();
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            files.extend(rust_files(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(files)
}

/// Builds these test programs of these packages, or of all packages if none is named.
fn build(
    flags: &str,
    target: &str,
    packages: &[&str],
    tests: &[impl AsRef<str>],
) -> Result<Vec<Program>, String> {
    if tests.is_empty() {
        return Ok(Vec::new());
    }
    let mut command = cargo();
    command
        .args(["test", "--no-run", "--message-format=json-render-diagnostics"])
        .args(if target.is_empty() { vec![] } else { vec!["--target-dir", target] })
        .args(if packages.is_empty() { &["--workspace"][..] } else { &[] })
        .args(packages.iter().flat_map(|package| ["-p", package]))
        .args(tests.iter().flat_map(|test| match test.as_ref() {
            LIBRARIES => vec![LIBRARIES],
            test => vec!["--test", test],
        }))
        .args(if flags.contains("loom") { &["--profile=model"][..] } else { &[] })
        .stderr(Stdio::inherit());
    if !flags.is_empty() {
        command.env("RUSTFLAGS", flags);
    }
    let output = command.output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(format!("{command:?} failed"));
    }
    let mut programs = Vec::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let Ok(message) = serde_json::from_str::<serde_json::Value>(line) else { continue };
        let source = message["target"]["src_path"].as_str().map(Path::new);
        let (Some(path), Some(source)) = (message["executable"].as_str(), source) else { continue };
        if message["profile"]["test"] == true {
            let stems = stems(source)?;
            let has_modules = stems.len() > 1;
            programs.push(Program { path: PathBuf::from(path), stems, has_modules });
        }
    }
    Ok(programs)
}

/// Returns the test programs of `cargo test --workspace` that may detect faults with these names.
fn tests_for(names: &[String]) -> Result<Vec<String>, String> {
    let mut tests = Vec::new();
    for test in packages()?.into_iter().flat_map(|package| package.tests) {
        let stems = stems(&test.source)?;
        let is_wanted = |name: &String| stems.iter().any(|stem| is_of(stem, area_of(name)));
        if names.iter().any(is_wanted) {
            tests.push(test.name);
        }
    }
    Ok(tests)
}

/// Returns the name of a test program's file or, for a library or a folder's `main.rs`, the names
/// of all its modules.
fn stems(source: &Path) -> Result<Vec<String>, String> {
    let stem = |path: &Path| path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    let is_folder = source.ends_with("main.rs") || source.ends_with("lib.rs");
    match source.parent().filter(|_| is_folder) {
        Some(folder) => Ok(rust_files(folder)?.iter().filter_map(|path| stem(path)).collect()),
        None => Ok(stem(source).into_iter().collect()),
    }
}

/// The result of a run of a suite.
struct Run {
    verdict: Verdict,
    took: Duration,
    /// Longest time without the end of a test.
    silence: Duration,
}

impl Run {
    /// Returns the time without the end of a test after which another run of the suite counts as
    /// blocked.
    fn limit(&self) -> Duration {
        self.silence * 3 + HANG
    }
}

/// Runs test programs with a planted fault until a test fails, or no test ends for as long as
/// `limit`.
fn judge(suite: &[Part], fault: &str, limit: Duration) -> Result<Run, String> {
    let mut all = Run { verdict: Verdict::Nothing, took: Duration::ZERO, silence: Duration::ZERO };
    for part in suite {
        let run = judge_one(part, fault, limit)?;
        all.took += run.took;
        all.silence = all.silence.max(run.silence);
        if !matches!(run.verdict, Verdict::Nothing) {
            return Ok(Run { verdict: run.verdict, ..all });
        }
    }
    Ok(all)
}

fn judge_one(part: &Part, fault: &str, limit: Duration) -> Result<Run, String> {
    let mut child = Command::new(&part.program)
        .arg(&part.filter)
        .env("ORDNA_FAULT", fault)
        .current_dir(root())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        // Processes that tests have started are ended together with the tests.
        .process_group(0)
        .spawn()
        .map_err(|error| format!("{}: {error}", part.program.display()))?;
    let stdout = child.stdout.take().expect("piped above");
    let (lines, incoming) = mpsc::channel();
    std::thread::spawn(move || {
        BufReader::new(stdout).lines().map_while(Result::ok).for_each(|line| {
            // After the verdict, the receiver no longer exists.
            let _ = lines.send(line);
        });
    });
    let (mut took, mut silence, mut since) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
    let mut ended = BTreeSet::new();
    let verdict = loop {
        let begin = Instant::now();
        let received = incoming.recv_timeout(LOOK);
        // The time of a suspension of the process does not count.
        let passed = begin.elapsed().min(LOOK * 2);
        took += passed;
        since += passed;
        silence = silence.max(since);
        match received {
            Ok(line) => {
                since = Duration::ZERO;
                let test = line.strip_prefix("test ").and_then(|line| line.split_once(" ... "));
                match test {
                    Some((test, "FAILED")) => break Verdict::Test(test.to_owned()),
                    Some((test, _)) => drop(ended.insert(test.to_owned())),
                    None => {}
                }
            }
            Err(mpsc::RecvTimeoutError::Timeout) if since < limit => {}
            Err(mpsc::RecvTimeoutError::Timeout) => break Verdict::Hang(not_in(&ended, part)?),
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                let status = child.wait().map_err(|error| error.to_string())?;
                break if status.success() { Verdict::Nothing } else { Verdict::Crash };
            }
        }
    };
    // The process may have ended by itself.
    let group = format!("-{}", child.id());
    let _ = Command::new("kill").args(["-9", "--", &group]).stderr(Stdio::null()).status();
    let _ = child.wait();
    Ok(Run { verdict, took, silence })
}

/// Returns the first test of a program that did not end.
fn not_in(ended: &BTreeSet<String>, part: &Part) -> Result<Option<String>, String> {
    let output = Command::new(&part.program).arg(&part.filter).arg("--list").output();
    let output = output.map_err(|error| format!("{}: {error}", part.program.display()))?;
    let listed = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut tests = listed.lines().filter_map(|line| line.strip_suffix(": test"));
    Ok(tests.find(|test| !ended.contains(*test)).map(str::to_owned))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fault_has_tests_that_look_for_it() {
        let mut stems: Vec<String> = MODELLED.map(|(area, ..)| area.to_owned()).to_vec();
        for package in packages().unwrap() {
            for test in package.tests {
                stems.extend(self::stems(&test.source).unwrap());
            }
            let library = package.folder.join("src/lib.rs");
            if library.exists() {
                stems.extend(self::stems(&library).unwrap());
            }
        }
        let mut names = names().unwrap();
        names.retain(|name| !stems.iter().any(|stem| is_of(stem, area_of(name))));
        assert!(names.is_empty(), "no test file or module of the area of {names:?}");
    }
}
