//! Planted faults: each fence, validation and recheck is taken out, and a test must notice.
//!
//! The names stand in the sources, in `fault!("area.what")` and its kin. The build of `cargo test
//! --workspace` holds them all, and `ORDNA_FAULT=name` plants one when a test starts: a build for
//! each would take two cores an hour. Faults of areas in [`MODELLED`] are invisible to tests on
//! x86-64, whose hardware orders more than the language does; a loom model has to notice them.
//!
//! The test that noticed a fault last, which the page names, runs first; the whole suite of the
//! area runs only if that test passes. So a fault takes about a second.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::page;
use crate::tools::{Outcome, SHARES, cargo, root, share, target};

/// Areas whose faults a loom model looks for: area, crate, test program, and the module in it.
pub const MODELLED: [(&str, &str, &str, &str); 7] = [
    ("version_lock", "ordna-base", "loom_version_lock", ""),
    ("twin", "ordna-papers", "models", "loom_twin::"),
    ("epochs", "ordna", "loom_epochs", ""),
    ("undo_order", "ordna", "loom_undo_order", ""),
    ("nitro_barrier", "ordna-papers", "models", "loom_nitro_barrier::"),
    ("art_prefix", "ordna-papers", "models", "loom_art_prefix::"),
    ("hydralist_updates", "ordna-papers", "models", "loom_hydralist_updates::"),
];

/// The crates that have faults.
const CRATES: [&str; 5] = ["ordna-base", "ordna-papers", "ordna", "ordna-secondary", "ordna-kafka"];

/// Parts of the store, whose tests look for their faults.
const OF_THE_STORE: [&str; 4] = ["buffer", "search", "tree", "undo"];

/// How long no test of a suite without a fault may end.
const CLEAN_LIMIT: Duration = Duration::from_secs(120);

/// A suite of which no test ends for so much longer than three times the longest such time without
/// a fault hangs because of the fault.
const HANG: Duration = Duration::from_secs(8);

/// What stands in front of the name of a test that did not end.
const HANG_OF: &str = "a hang of ";

/// Stands for the program of a package's unit tests.
pub const LIB: &str = "lib";

/// How often a running suite is looked at.
const LOOK: Duration = Duration::from_secs(1);

/// How often a suite looks for a fault: some show in some interleavings only, which threads come
/// upon sooner or later.
const TRIES: u32 = 5;

/// Which way the suite noticed.
pub enum Verdict {
    Test(String),
    Crash,
    /// A test did not end, if one such is known.
    Hang(Option<String>),
    Nothing,
}

impl Verdict {
    /// The test that noticed, if one did.
    pub fn name(self) -> Option<String> {
        match self {
            Self::Test(test) => Some(test),
            Self::Crash => Some("a crash".to_owned()),
            Self::Hang(None) => Some("a hang".to_owned()),
            Self::Hang(Some(test)) => Some(format!("{HANG_OF}{test}")),
            Self::Nothing => None,
        }
    }
}

/// Tests of a program that look for a fault: those with the filter in their names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Part {
    pub program: PathBuf,
    pub filter: String,
}

/// A built test program.
pub struct Program {
    pub path: PathBuf,
    /// The names of its source file, or of its modules if it has any.
    stems: Vec<String>,
}

/// All faults whose name contains `part`.
pub fn run(part: &str) -> Outcome {
    let names: Vec<String> = names()?.into_iter().filter(|name| name.contains(part)).collect();
    if names.is_empty() {
        return Err(format!("no fault has {part:?} in its name"));
    }
    plant(&names)
}

/// The share of this commit, and all faults of the areas that it touches.
pub fn run_share() -> Outcome {
    let (share, changed) = share()?;
    let mut touched = Vec::new();
    for path in changed.iter().filter(|path| path.ends_with(".rs") && path.contains("/src/")) {
        let text = std::fs::read_to_string(root().join(path)).unwrap_or_default();
        touched.extend(named(&text).map(|name| area_of(name).to_owned()));
    }
    let all = names()?.into_iter().enumerate();
    let mine = all.filter(|(at, name)| {
        at % SHARES == share || touched.iter().any(|area| area == area_of(name))
    });
    let mine: Vec<String> = mine.map(|(_, name)| name).collect();
    println!("share {share} of {SHARES}, areas touched: {touched:?}");
    plant(&mine)
}

fn plant(names: &[String]) -> Outcome {
    let modelled = |name: &str| MODELLED.iter().find(|(area, ..)| *area == area_of(name));
    let mut models = BTreeMap::new();
    for (area, package, test, filter) in MODELLED {
        if names.iter().any(|name| area_of(name) == area) {
            let folder = target("loom").display().to_string();
            let built = build("--cfg faults --cfg loom", &folder, &[package], &[test])?;
            let part = |program: Program| Part { program: program.path, filter: filter.to_owned() };
            models.insert(area, built.into_iter().map(part).collect::<Vec<_>>());
        }
    }
    let tests = if names.iter().any(|name| modelled(name).is_none()) {
        // The target, features and flags of `cargo test --workspace`: nothing is built twice.
        build("", "", &[], &tests_for(names)?)?
    } else {
        Vec::new()
    };
    let suite_of = |name: &str| -> Result<Vec<Part>, String> {
        let area = area_of(name);
        if let Some(models) = models.get(area) {
            return Ok(models.clone());
        }
        let mut own: Vec<(bool, &str, Part)> = Vec::new();
        for program in &tests {
            for stem in program.stems.iter().filter(|stem| is_of(stem, area)) {
                let is_one_of_many = program.stems.len() > 1;
                let filter = if is_one_of_many { format!("{stem}::") } else { String::new() };
                // Forced interleavings notice soonest.
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
    let last_noticed = page::rows("planted faults")?;
    let mut clean = Clean::default();
    for name in names {
        let suite = suite_of(name)?;
        let (verdict, took) = match last_noticed.get(name).map(|cells| noticer(cells, &suite)) {
            Some(Some(test)) => clean.judge(&[test], name)?,
            _ => (Verdict::Nothing, Duration::ZERO),
        };
        let (mut verdict, mut took, mut runs) = (verdict, took, 0);
        while matches!(verdict, Verdict::Nothing) && runs < TRIES {
            let run = clean.judge(&suite, name)?;
            (verdict, took, runs) = (run.0, took + run.1, runs + 1);
        }
        let mut caught = verdict.name().unwrap_or_else(|| {
            missed.push(name.as_str());
            "NOTHING".to_owned()
        });
        if runs > 1 {
            caught += &format!(" (in run {runs})");
        }
        println!("{name:<44} {:>8.1}  {caught}", took.as_secs_f64());
        // At once: what stands there stays if a later suite breaks off.
        let row = BTreeMap::from([(name.clone(), vec![caught])]);
        page::update("planted faults", row, |name| known.iter().any(|known| known == name))?;
    }
    if missed.is_empty() {
        println!("all {} faults are caught", names.len());
        Ok(())
    } else {
        Err(format!("nothing catches {}", missed.join(", ")))
    }
}

/// The test that a row of the page names, as a part of the suite.
fn noticer(cells: &str, suite: &[Part]) -> Option<Part> {
    let name = cells.strip_prefix(HANG_OF).unwrap_or(cells).split(' ').next()?;
    let part = suite.iter().find(|part| name.contains("::") && name.starts_with(&part.filter))?;
    Some(Part { filter: name.to_owned(), ..part.clone() })
}

/// What suites do without a fault, each found out once.
#[derive(Default)]
struct Clean(BTreeMap<Vec<Part>, Duration>);

impl Clean {
    /// Whether and how a suite notices a fault, and how long that took.
    fn judge(&mut self, suite: &[Part], fault: &str) -> Result<(Verdict, Duration), String> {
        let variable = "ORDNA_FAULT";
        let limit = if let Some(limit) = self.0.get(suite) {
            *limit
        } else {
            // Whatever the suite does without a fault says nothing about one.
            let run = judge(suite, (variable, ""), CLEAN_LIMIT)?;
            let limit = run.limit();
            if let Some(what) = run.verdict.name() {
                return Err(format!("without any fault already: {what} of {suite:?}"));
            }
            *self.0.entry(suite.to_vec()).or_insert(limit)
        };
        let run = judge(suite, (variable, fault), limit)?;
        Ok((run.verdict, run.took))
    }
}

fn area_of(name: &str) -> &str {
    name.split('.').next().unwrap_or(name)
}

/// Whether a test file is one of those named after `area`.
fn is_of(stem: &str, area: &str) -> bool {
    let area = if OF_THE_STORE.contains(&area) { "store" } else { area };
    stem.strip_prefix(area).is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
}

/// The names in `fault!("…")`, and in `check!`, `notice!` and `order!` of a source text.
fn named(text: &str) -> impl Iterator<Item = &str> {
    let calls = ["fault!(", "check!(", "notice!(", "order!("].into_iter();
    let after = calls.flat_map(|call| text.split(call).skip(1));
    let named = after.filter_map(|rest| rest.trim_start().strip_prefix('"')?.split('"').next());
    // The documentation of the switches shows a name that is none.
    named.filter(|name| name.contains('.') && *name != "area.what")
}

/// The names of all faults of the library, in order.
fn names() -> Result<Vec<String>, String> {
    let mut found = BTreeSet::new();
    let mut folders = CRATES.map(|name| root().join("crates").join(name).join("src")).to_vec();
    while let Some(folder) = folders.pop() {
        let entries =
            std::fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        for path in entries.flatten().map(|entry| entry.path()) {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).map_err(|error| error.to_string())?;
                found.extend(named(&text).map(str::to_owned));
            }
        }
    }
    Ok(found.into_iter().collect())
}

/// Builds these test programs of these packages, or of all if none is named.
fn build(
    flags: &str,
    target: &str,
    packages: &[&str],
    tests: &[impl AsRef<str>],
) -> Result<Vec<Program>, String> {
    build_in(&root(), flags, target, packages, tests)
}

/// The same in another checkout.
pub fn build_in(
    top: &Path,
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
        .current_dir(top)
        .args(["test", "--no-run", "--message-format=json-render-diagnostics"])
        .args(if target.is_empty() { vec![] } else { vec!["--target-dir", target] })
        .args(if packages.is_empty() { &["--workspace"][..] } else { &[] })
        .args(packages.iter().flat_map(|package| ["-p", package]))
        .args(tests.iter().flat_map(|test| match test.as_ref() {
            LIB => vec!["--lib"],
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
            programs.push(Program { path: PathBuf::from(path), stems: stems(source)? });
        }
    }
    Ok(programs)
}

/// The test programs that look for faults of these names.
fn tests_for(names: &[String]) -> Result<Vec<String>, String> {
    let mut tests = Vec::new();
    for package in CRATES {
        let package = root().join("crates").join(package);
        let (folder, manifest) = (package.join("tests"), package.join("Cargo.toml"));
        let manifest = std::fs::read_to_string(&manifest)
            .map_err(|error| format!("{}: {error}", manifest.display()))?;
        let entries =
            std::fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        for path in entries.flatten().map(|entry| entry.path()) {
            // `cargo test --workspace` does not build programs that need a feature.
            let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            if manifest.contains(&format!("\"tests/{stem}/main.rs\"\nrequired-features")) {
                continue;
            }
            let source = if path.is_dir() { path.join("main.rs") } else { path.clone() };
            let stems = if source.exists() { stems(&source)? } else { Vec::new() };
            let is_wanted = |name: &String| stems.iter().any(|stem| is_of(stem, area_of(name)));
            if names.iter().any(is_wanted) {
                tests.push(stem);
            }
        }
    }
    Ok(tests)
}

/// The name of a test program's file; of its modules, if it is a folder's `main.rs`.
fn stems(source: &Path) -> Result<Vec<String>, String> {
    let stem = |path: &Path| path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    let Some(folder) = source.parent().filter(|_| source.ends_with("main.rs")) else {
        return Ok(stem(source).into_iter().collect());
    };
    let entries = std::fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    Ok(entries.flatten().filter_map(|entry| stem(&entry.path())).collect())
}

/// What a run of a suite came to.
pub struct Run {
    pub verdict: Verdict,
    pub took: Duration,
    /// The longest time without a test that ended.
    pub silence: Duration,
}

impl Run {
    /// The silence after which another run of the suite counts as hanging.
    pub fn limit(&self) -> Duration {
        self.silence * 3 + HANG
    }
}

/// Runs test programs until one test fails, or none ends for as long as `limit`. The variable
/// picks a fault.
pub fn judge(suite: &[Part], variable: (&str, &str), limit: Duration) -> Result<Run, String> {
    let mut all = Run { verdict: Verdict::Nothing, took: Duration::ZERO, silence: Duration::ZERO };
    for part in suite {
        let run = judge_one(part, variable, limit)?;
        all.took += run.took;
        all.silence = all.silence.max(run.silence);
        if !matches!(run.verdict, Verdict::Nothing) {
            return Ok(Run { verdict: run.verdict, ..all });
        }
    }
    Ok(all)
}

fn judge_one(part: &Part, (variable, value): (&str, &str), limit: Duration) -> Result<Run, String> {
    let mut child = Command::new(&part.program)
        .arg(&part.filter)
        .env(variable, value)
        .current_dir(root())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("{}: {error}", part.program.display()))?;
    let stdout = child.stdout.take().expect("piped above");
    let (lines, incoming) = mpsc::channel();
    std::thread::spawn(move || {
        BufReader::new(stdout).lines().map_while(Result::ok).for_each(|line| {
            // No thread listens any more once the verdict is out.
            let _ = lines.send(line);
        });
    });
    let (mut took, mut silence, mut since) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
    let mut ended = BTreeSet::new();
    let verdict = loop {
        let begin = Instant::now();
        let received = incoming.recv_timeout(LOOK);
        // A process that was suspended meanwhile did not use that time.
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
    // It may have ended by itself.
    let _ = child.kill();
    let _ = child.wait();
    Ok(Run { verdict, took, silence })
}

/// The first test of a program that did not end.
fn not_in(ended: &BTreeSet<String>, part: &Part) -> Result<Option<String>, String> {
    let output = Command::new(&part.program).arg(&part.filter).arg("--list").output();
    let output = output.map_err(|error| format!("{}: {error}", part.program.display()))?;
    let listed = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut tests = listed.lines().filter_map(|line| line.strip_suffix(": test"));
    Ok(tests.find(|test| !ended.contains(*test)).map(str::to_owned))
}
