//! Test programs with mutants: builds them, and runs one test at a time.

use std::collections::BTreeSet;
use std::ops::Range;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::tools::{cargo, target};

/// Maximum duration of a test without a mutant.
const CLEAN_LIMIT: Duration = Duration::from_secs(180);

/// Time that is added to four times the duration of a test without a mutant. A test that exceeds
/// this counts as blocked.
const HANG: Duration = Duration::from_secs(20);

/// Interval between two checks of a running test.
const LOOK: Duration = Duration::from_millis(3);

/// One test of a program.
#[derive(Debug, Clone)]
pub struct Test {
    pub name: String,
    program: PathBuf,
    /// The folder of its package.
    folder: PathBuf,
    /// The numbers of the mutants that it reaches.
    pub reaches: BTreeSet<usize>,
    /// Duration of the test without a mutant.
    took: Duration,
}

/// The end of a run of a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Passed,
    Failed,
    Hung,
}

/// An error of the compiler.
pub struct CompileError {
    /// Path relative to the top of the checkout.
    pub file: String,
    pub bytes: Range<usize>,
    pub text: String,
}

fn messages(command: &mut Command) -> Result<(bool, Vec<Value>), String> {
    command.arg("--message-format=json").stderr(Stdio::null());
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines = text.lines().filter_map(|line| serde_json::from_str(line).ok());
    Ok((output.status.success(), lines.collect()))
}

fn build_folder() -> PathBuf {
    target("mutants").join("build")
}

/// Returns the compile errors of the libraries of these packages.
pub fn errors(tree: &Path, packages: &[&str]) -> Result<Vec<CompileError>, String> {
    let mut command = cargo();
    // Not `cargo check`, because the build of the tests could not use its results.
    command.current_dir(tree).arg("build").arg("--target-dir").arg(build_folder());
    command.args(["--lib", "--keep-going"]).args(packages.iter().flat_map(|name| ["-p", name]));
    let (is_whole, messages) = messages(&mut command)?;
    let mut errors = Vec::new();
    for message in messages {
        let message = &message["message"];
        if message["level"] != "error" {
            continue;
        }
        let spans = message["spans"].as_array().map(Vec::as_slice).unwrap_or_default();
        let read = |span: &Value| -> Option<CompileError> {
            let byte = |name: &str| span[name].as_u64().map(|byte| byte as usize);
            Some(CompileError {
                file: span["file_name"].as_str()?.to_owned(),
                bytes: byte("byte_start")?..byte("byte_end")?,
                text: message["message"].as_str()?.to_owned(),
            })
        };
        let first = spans.iter().filter(|span| span["is_primary"] == true);
        errors.extend(first.filter_map(read));
    }
    if errors.is_empty() && !is_whole {
        return Err(format!("{command:?} failed"));
    }
    Ok(errors)
}

/// Builds the tests of these packages.
pub fn build(tree: &Path, packages: &[&str]) -> Result<Vec<Test>, String> {
    let mut command = cargo();
    command.current_dir(tree).args(["test", "--no-run", "--target-dir"]).arg(build_folder());
    command.args(packages.iter().flat_map(|name| ["-p", name]));
    let (is_whole, messages) = messages(&mut command)?;
    if !is_whole {
        return Err(format!("{command:?} failed"));
    }
    let mut tests = Vec::new();
    for message in messages {
        let manifest = message["manifest_path"].as_str().map(Path::new).and_then(Path::parent);
        let (Some(program), Some(folder)) = (message["executable"].as_str(), manifest) else {
            continue;
        };
        if message["profile"]["test"] == true {
            tests.extend(list(Path::new(program), folder)?);
        }
    }
    Ok(tests)
}

/// Returns the tests of a program. Of the ignored ones, only those are included that compare with
/// Redis.
fn list(program: &Path, folder: &Path) -> Result<Vec<Test>, String> {
    let names = |more: &[&str]| -> Result<BTreeSet<String>, String> {
        let output = Command::new(program).args(["--list", "--format=terse"]).args(more).output();
        let output = output.map_err(|error| format!("{}: {error}", program.display()))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let names = text.lines().filter_map(|line| line.strip_suffix(": test"));
        Ok(names.map(str::to_owned).collect())
    };
    let ignored = names(&["--ignored"])?;
    let is_wanted = |name: &String| !ignored.contains(name) || name.contains("against_redis");
    let all = names(&[])?.into_iter().filter(is_wanted);
    let test = |name: String| Test {
        name,
        program: program.to_owned(),
        folder: folder.to_owned(),
        reaches: BTreeSet::new(),
        took: CLEAN_LIMIT,
    };
    Ok(all.map(test).collect())
}

/// Runs each test without a mutant. Returns those that pass, the shortest first.
pub fn trace(tests: &[Test], workers: usize) -> Result<Vec<Test>, String> {
    let next = AtomicUsize::new(0);
    let traced = Mutex::new(Vec::new());
    let folder = target("mutants").join("trace");
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(test) = tests.get(at) else { break };
                    let path = folder.join(at.to_string());
                    let _ = std::fs::remove_file(&path);
                    let run = || run_with(test, "ORDNA_MUTANT_TRACE", path.as_os_str());
                    let (mut end, mut took) = run();
                    if end == End::Failed {
                        (end, took) = run();
                    }
                    if end != End::Passed {
                        println!("{} {end:?} without a mutant: left out", test.name);
                        continue;
                    }
                    let text = std::fs::read_to_string(&path).unwrap_or_default();
                    let reaches = text.lines().filter_map(|line| line.parse().ok()).collect();
                    let test = Test { reaches, took, ..test.clone() };
                    traced.lock().expect("no panic above").push(test);
                }
            });
        }
    });
    let mut traced = traced.into_inner().expect("no panic above");
    traced.sort_by_key(|test: &Test| test.took);
    Ok(traced)
}

/// Runs a test, with a mutant if one is given.
pub fn run(test: &Test, mutant: Option<usize>) -> (End, Duration) {
    run_with(test, "ORDNA_MUTANT", mutant.unwrap_or(0).to_string().as_ref())
}

fn run_with(test: &Test, name: &str, value: &std::ffi::OsStr) -> (End, Duration) {
    let limit = (test.took * 4 + HANG).min(CLEAN_LIMIT);
    let begin = Instant::now();
    let child = Command::new(&test.program)
        .args(["--exact", &test.name, "--include-ignored"])
        .env(name, value)
        .current_dir(&test.folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // Processes that tests have started are ended together with the tests.
        .process_group(0)
        .spawn();
    let Ok(mut child) = child else { return (End::Failed, begin.elapsed()) };
    let end = loop {
        match child.try_wait() {
            Ok(None) if begin.elapsed() < limit => std::thread::sleep(LOOK),
            Ok(None) => break End::Hung,
            Ok(Some(status)) if status.success() => break End::Passed,
            _ => break End::Failed,
        }
    };
    // Ends the processes that remain.
    let group = format!("-{}", child.id());
    let _ = Command::new("kill").args(["-9", "--", &group]).stderr(Stdio::null()).status();
    let _ = child.wait();
    (end, begin.elapsed())
}
