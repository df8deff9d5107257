//! Planted faults: each fence, validation and recheck is taken out, and a test must notice.
//!
//! The names stand in the sources, in `fault!("area.what")`. One build with `--cfg faults` holds
//! them all, and `ORDNA_FAULT=name` plants one when a test starts: a build for each would take two
//! cores an hour. Faults of areas in [`MODELLED`] are invisible to tests on x86-64, whose hardware
//! orders more than the language does; a loom model has to notice them.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::tools::{LIBRARY, Outcome, cargo, library, must, root};

/// Areas whose faults a loom model looks for: area and test file.
const MODELLED: [(&str, &str); 6] = [
    ("version_lock", "loom_version_lock"),
    ("twin", "loom_twin"),
    ("mvcc_terms", "loom_mvcc_terms"),
    ("mvcc_barrier", "loom_mvcc_barrier"),
    ("art_prefix", "loom_art_prefix"),
    ("hydralist_updates", "loom_hydralist_updates"),
];

/// How long a suite without a fault may take.
const CLEAN_LIMIT: Duration = Duration::from_secs(180);

/// A suite that takes this much longer than without a fault, and three times as long, hangs because
/// of the fault.
const HANG: Duration = Duration::from_secs(30);

/// How often a suite looks for a fault: some show in some interleavings only, which threads come upon
/// sooner or later.
const TRIES: u32 = 5;

/// Which way the suite noticed, and how soon.
enum Verdict {
    Test(String),
    Crash,
    Hang,
    Nothing,
}

impl Verdict {
    /// What noticed, if anything did.
    fn name(self) -> Option<String> {
        match self {
            Self::Test(test) => Some(test),
            Self::Crash => Some("a crash".to_owned()),
            Self::Hang => Some("a hang".to_owned()),
            Self::Nothing => None,
        }
    }
}

pub fn run(part: &str) -> Outcome {
    let folders = LIBRARY.map(|name| root().join("crates").join(name).join("src"));
    let names: Vec<String> =
        names(folders.to_vec())?.into_iter().filter(|name| name.contains(part)).collect();
    if names.is_empty() {
        return Err(format!("no fault has {part:?} in its name"));
    }
    let tests = build("--cfg faults", "target/faults", &test_files(&names)?)?;
    let mut models = BTreeMap::new();
    for (area, file) in MODELLED {
        if names.iter().any(|name| area_of(name) == area) {
            let built = build("--cfg faults --cfg loom", "target/loom", &[file.to_owned()])?;
            models.insert(area, built);
        }
    }
    let suite_of = |name: &str| -> Result<Vec<PathBuf>, String> {
        let area = area_of(name);
        let suite = models.get(area).unwrap_or(&tests);
        let file = MODELLED.iter().find(|(a, _)| *a == area).map_or(area, |(_, file)| file);
        let own = suite.iter().filter(|(stem, _)| is_of(stem, file));
        let mut own: Vec<_> = own.collect();
        // Forced interleavings notice soonest.
        own.sort_by_key(|(stem, _)| (!stem.ends_with("interleavings"), stem.as_str()));
        let own: Vec<_> = own.into_iter().map(|(_, path)| path.clone()).collect();
        if own.is_empty() { Err(format!("no test file {file}*.rs for {name}")) } else { Ok(own) }
    };
    let mut suites: Vec<Vec<PathBuf>> =
        names.iter().map(|n| suite_of(n)).collect::<Result<_, _>>()?;
    suites.sort();
    suites.dedup();
    let mut limits = BTreeMap::new();
    for suite in suites {
        // Whatever the suite does without a fault says nothing about one.
        let (verdict, took) = judge(&suite, "", CLEAN_LIMIT)?;
        if let Some(what) = verdict.name() {
            return Err(format!("without any fault already: {what}"));
        }
        limits.insert(suite, took * 3 + HANG);
    }
    println!("{:<44} {:>8}  caught by", "fault", "seconds");
    let mut missed = Vec::new();
    for name in &names {
        let suite = suite_of(name)?;
        let (mut verdict, mut took) = (Verdict::Nothing, Duration::ZERO);
        for _ in 0..TRIES {
            let (found, more) = judge(&suite, name, limits[&suite])?;
            (verdict, took) = (found, took + more);
            if !matches!(verdict, Verdict::Nothing) {
                break;
            }
        }
        let caught = verdict.name().unwrap_or_else(|| {
            missed.push(name.as_str());
            "NOTHING".to_owned()
        });
        println!("{name:<44} {:>8.1}  {caught}", took.as_secs_f64());
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
    for (_, file) in MODELLED {
        must(
            cargo()
                .args(["test", "--release", "--test", file])
                .args(library())
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
    stem.strip_prefix(area).is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
}

/// The test files that look for the faults of these names, models aside.
fn test_files(names: &[String]) -> Result<Vec<String>, String> {
    let mut stems = Vec::new();
    for name in LIBRARY {
        let folder = root().join("crates").join(name).join("tests");
        let files = std::fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        let sources = files.flatten().map(|file| file.path());
        let sources = sources.filter(|path| path.extension().is_some_and(|end| end == "rs"));
        stems.extend(sources.filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned())));
    }
    let areas = || names.iter().map(|name| area_of(name));
    let is_modelled = |area: &str| MODELLED.iter().any(|(modelled, _)| *modelled == area);
    stems.retain(|stem| areas().any(|area| !is_modelled(area) && is_of(stem, area)));
    Ok(stems)
}

/// All names in `fault!("…")` below these folders, in order.
fn names(mut folders: Vec<PathBuf>) -> Result<Vec<String>, String> {
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        let entries =
            std::fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        for path in entries.flatten().map(|entry| entry.path()) {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).map_err(|error| error.to_string())?;
                let named = text.split("fault!(\"").skip(1);
                found.extend(named.filter_map(|rest| rest.split('"').next()).map(str::to_owned));
            }
        }
    }
    found.retain(|name| name.contains('.'));
    found.sort();
    found.dedup();
    Ok(found)
}

/// Builds these test files of the library; returns the programs by file stem.
fn build(flags: &str, target: &str, files: &[String]) -> Result<Vec<(String, PathBuf)>, String> {
    if files.is_empty() {
        return Ok(Vec::new());
    }
    let mut command = cargo();
    command
        .args(["test", "--no-run", "--message-format=json", "--target-dir", target])
        .args(library())
        .args(files.iter().flat_map(|file| ["--test", file]))
        .args(if flags.contains("loom") { &["--release"][..] } else { &[] })
        .env("RUSTFLAGS", flags)
        .stderr(Stdio::inherit());
    let output = command.output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(format!("{command:?} failed"));
    }
    let mut tests = Vec::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let Ok(message) = serde_json::from_str::<serde_json::Value>(line) else { continue };
        if let (Some(path), Some(name)) =
            (message["executable"].as_str(), message["target"]["name"].as_str())
        {
            tests.push((name.to_owned(), PathBuf::from(path)));
        }
    }
    Ok(tests)
}

/// Runs test programs with a fault planted until one test fails.
fn judge(suite: &[PathBuf], fault: &str, limit: Duration) -> Result<(Verdict, Duration), String> {
    let start = Instant::now();
    for program in suite {
        let verdict = judge_one(program, fault, limit.saturating_sub(start.elapsed()))?;
        if !matches!(verdict, Verdict::Nothing) {
            return Ok((verdict, start.elapsed()));
        }
    }
    Ok((Verdict::Nothing, start.elapsed()))
}

fn judge_one(program: &Path, fault: &str, limit: Duration) -> Result<Verdict, String> {
    let start = Instant::now();
    let mut child = Command::new(program)
        .env("ORDNA_FAULT", fault)
        .current_dir(root())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("{}: {error}", program.display()))?;
    let stdout = child.stdout.take().expect("piped above");
    let (lines, incoming) = mpsc::channel();
    std::thread::spawn(move || {
        BufReader::new(stdout).lines().map_while(Result::ok).for_each(|line| {
            // Nobody listens any more once the verdict is out.
            let _ = lines.send(line);
        });
    });
    let verdict = loop {
        let left = limit.saturating_sub(start.elapsed());
        match incoming.recv_timeout(left) {
            Ok(line) => {
                if let Some(test) =
                    line.strip_prefix("test ").and_then(|line| line.strip_suffix(" ... FAILED"))
                {
                    break Verdict::Test(test.to_owned());
                }
            }
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
    Ok(verdict)
}
