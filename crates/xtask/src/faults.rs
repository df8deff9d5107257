//! Planted faults: each fence, validation and recheck is taken out, and a test must notice.
//!
//! The names stand in the sources, in `fault!("area.what")` and its kin. One build with `--cfg
//! faults` holds them all, and `ORDNA_FAULT=name` plants one when a test starts: a build for each
//! would take two cores an hour. Faults of areas in [`MODELLED`] are invisible to tests on x86-64,
//! whose hardware orders more than the language does; a loom model has to notice them.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::page;
use crate::tools::{Outcome, cargo, must, root};

/// Areas whose faults a loom model looks for: area, crate, test program, and the module in it.
const MODELLED: [(&str, &str, &str, &str); 7] = [
    ("version_lock", "ordna-base", "loom_version_lock", ""),
    ("twin", "ordna-papers", "models", "loom_twin::"),
    ("mvcc_terms", "ordna", "loom_mvcc_terms", ""),
    ("undo_order", "ordna", "loom_undo_order", ""),
    ("nitro_barrier", "ordna-papers", "models", "loom_nitro_barrier::"),
    ("art_prefix", "ordna-papers", "models", "loom_art_prefix::"),
    ("hydralist_updates", "ordna-papers", "models", "loom_hydralist_updates::"),
];

/// The crates that have faults.
const CRATES: [&str; 5] = ["ordna-base", "ordna-papers", "ordna", "ordna-secondary", "ordna-kafka"];

/// Parts of the store, whose tests look for their faults.
const OF_THE_STORE: [&str; 4] = ["buffer", "search", "tree", "undo"];

/// The shares of this many commits in a row hold all faults.
const SHARES: usize = 7;

/// How long no test of a suite without a fault may end.
const CLEAN_LIMIT: Duration = Duration::from_secs(120);

/// A suite of which no test ends for so much longer than three times the longest such time without
/// a fault hangs because of the fault.
const HANG: Duration = Duration::from_secs(20);

/// How often a running suite is looked at.
const LOOK: Duration = Duration::from_secs(1);

/// How often a suite looks for a fault: some show in some interleavings only, which threads come
/// upon sooner or later.
const TRIES: u32 = 5;

/// Which way the suite noticed, and how soon.
pub enum Verdict {
    Test(String),
    Crash,
    Hang,
    Nothing,
}

impl Verdict {
    /// The test that noticed, if one did.
    pub fn name(self) -> Option<String> {
        match self {
            Self::Test(test) => Some(test),
            Self::Crash => Some("a crash".to_owned()),
            Self::Hang => Some("a hang".to_owned()),
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
    let git = |arguments: &[&str]| -> Result<String, String> {
        let output = Command::new("git").args(arguments).current_dir(root()).output();
        let output = output.map_err(|error| format!("git: {error}"))?;
        let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        if output.status.success() { Ok(text) } else { Err(format!("git {arguments:?} failed")) }
    };
    let number = git(&["rev-list", "--count", "HEAD"])?;
    let number: usize = number.parse().map_err(|_| format!("{number:?} is no number"))?;
    // A checkout without history has no parent: its share has to do.
    let changed = git(&["diff", "--name-only", "HEAD~1"]).unwrap_or_default();
    let mut touched = Vec::new();
    for path in changed.lines().filter(|path| path.ends_with(".rs") && path.contains("/src/")) {
        let text = std::fs::read_to_string(root().join(path)).unwrap_or_default();
        touched.extend(named(&text).map(|name| area_of(name).to_owned()));
    }
    let all = names()?.into_iter().enumerate();
    let mine = all.filter(|(at, name)| {
        at % SHARES == number % SHARES || touched.iter().any(|area| area == area_of(name))
    });
    let mine: Vec<String> = mine.map(|(_, name)| name).collect();
    println!("share {} of {SHARES}, areas touched: {touched:?}", number % SHARES);
    plant(&mine)
}

fn plant(names: &[String]) -> Outcome {
    let modelled = |name: &str| MODELLED.iter().find(|(area, ..)| *area == area_of(name));
    let mut models = BTreeMap::new();
    for (area, package, test, filter) in MODELLED {
        if names.iter().any(|name| area_of(name) == area) {
            let built = build("--cfg faults --cfg loom", "target/loom", &[package], &[test])?;
            let part = |program: Program| Part { program: program.path, filter: filter.to_owned() };
            models.insert(area, built.into_iter().map(part).collect::<Vec<_>>());
        }
    }
    let tests = if names.iter().any(|name| modelled(name).is_none()) {
        build("--cfg faults", "target/faults", &CRATES, &tests_for(names)?)?
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
    let mut suites: Vec<Vec<Part>> = names.iter().map(|n| suite_of(n)).collect::<Result<_, _>>()?;
    suites.sort();
    suites.dedup();
    let mut limits = BTreeMap::new();
    for suite in suites {
        // Whatever the suite does without a fault says nothing about one.
        let clean = judge(&suite, ("ORDNA_FAULT", ""), CLEAN_LIMIT)?;
        let limit = clean.limit();
        if let Some(what) = clean.verdict.name() {
            return Err(format!("without any fault already: {what} of {suite:?}"));
        }
        limits.insert(suite, limit);
    }
    println!("{:<44} {:>8}  caught by", "fault", "seconds");
    let mut missed = Vec::new();
    let known = self::names()?;
    for name in names {
        let suite = suite_of(name)?;
        let (mut verdict, mut took) = (Verdict::Nothing, Duration::ZERO);
        for _ in 0..TRIES {
            let run = judge(&suite, ("ORDNA_FAULT", name), limits[&suite])?;
            (verdict, took) = (run.verdict, took + run.took);
            if !matches!(verdict, Verdict::Nothing) {
                break;
            }
        }
        let caught = verdict.name().unwrap_or_else(|| {
            missed.push(name.as_str());
            "NOTHING".to_owned()
        });
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

/// Runs the loom models with nothing taken out.
pub fn loom_clean() -> Outcome {
    let programs: BTreeSet<_> = MODELLED.map(|(_, package, test, _)| (package, test)).into();
    for (package, test) in programs {
        must(
            cargo()
                .args(["test", "--profile=model", "-p", package, "--test", test])
                .args(["--target-dir", "target/loom"])
                .env("RUSTFLAGS", "--cfg faults --cfg loom"),
        )?;
    }
    Ok(())
}

fn area_of(name: &str) -> &str {
    name.split('.').next().unwrap_or(name)
}

/// Whether a test file is one of those named after `area`.
fn is_of(stem: &str, area: &str) -> bool {
    let area = if OF_THE_STORE.contains(&area) { "store" } else { area };
    stem.strip_prefix(area).is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
}

/// The names in `fault!("…")`, `check!("…", …)` and `notice!("…", …)` of a source text.
fn named(text: &str) -> impl Iterator<Item = &str> {
    let calls = ["fault!(", "check!(", "notice!("].into_iter();
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

/// Builds these test programs of these packages.
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
        .args([
            "test",
            "--no-run",
            "--message-format=json-render-diagnostics",
            "--target-dir",
            target,
        ])
        .args(packages.iter().flat_map(|package| ["-p", package]))
        .args(tests.iter().flat_map(|test| ["--test", test.as_ref()]))
        .args(if flags.contains("loom") { &["--profile=model"][..] } else { &[] })
        .env("RUSTFLAGS", flags)
        .stderr(Stdio::inherit());
    let output = command.output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(format!("{command:?} failed"));
    }
    let mut programs = Vec::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let Ok(message) = serde_json::from_str::<serde_json::Value>(line) else { continue };
        let source = message["target"]["src_path"].as_str().map(Path::new);
        let (Some(path), Some(source)) = (message["executable"].as_str(), source) else { continue };
        if message["target"]["kind"][0] == "test" {
            programs.push(Program { path: PathBuf::from(path), stems: stems(source)? });
        }
    }
    Ok(programs)
}

/// The test programs that look for faults of these names.
fn tests_for(names: &[String]) -> Result<Vec<String>, String> {
    let mut tests = Vec::new();
    for package in CRATES {
        let folder = root().join("crates").join(package).join("tests");
        let entries =
            std::fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        for path in entries.flatten().map(|entry| entry.path()) {
            let source = if path.is_dir() { path.join("main.rs") } else { path.clone() };
            let stems = if source.exists() { stems(&source)? } else { Vec::new() };
            let is_wanted = |name: &String| stems.iter().any(|stem| is_of(stem, area_of(name)));
            if names.iter().any(is_wanted) {
                tests.extend(path.file_stem().map(|stem| stem.to_string_lossy().into_owned()));
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
                if let Some(test) =
                    line.strip_prefix("test ").and_then(|line| line.strip_suffix(" ... FAILED"))
                {
                    break Verdict::Test(test.to_owned());
                }
            }
            Err(mpsc::RecvTimeoutError::Timeout) if since < limit => {}
            Err(mpsc::RecvTimeoutError::Timeout) => break Verdict::Hang,
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
