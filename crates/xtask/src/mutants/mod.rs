//! Sampled mutants: small changes of the product's code, each of which tests should detect.
//!
//! The candidates are those of cargo-mutants. A build for each of them would take hours, so one
//! build contains all mutants of the sample ([`plant`]), and the environment variable
//! `ORDNA_MUTANT` selects one when a test starts. Each test first runs once without a mutant and
//! records which mutants it reaches ([`programs`]), because only those tests can detect it.

mod plant;
mod programs;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::Value;

use crate::tools::{Outcome, cargo, must, root, target};
use plant::{Mutant, Planted};
use programs::{End, Test};

/// The crates that are changed.
const CRATES: [&str; 4] = ["ordna-base", "ordna", "ordna-secondary", "ordna-server"];

/// The packages whose tests may detect mutants.
const TESTED: [&str; 5] =
    ["ordna-base", "ordna", "ordna-secondary", "ordna-server", "ordna-testkit"];

/// Kinds of mutants that one build can contain together: a function that returns a constant, and
/// another operator.
const GENRES: [&str; 3] = ["FnValue", "BinaryOperator", "UnaryOperator"];

/// Sources that are compiled only for a model checker or another processor.
const NOT_BUILT: [&str; 4] = ["loom", "schedule.rs", "neon.rs", "scalar.rs"];

/// Number of mutants that are examined for each requested one, because some do not compile.
const SPARE: f64 = 1.7;

/// Number of mutants that run concurrently.
const WORKERS: usize = 2;

/// Plants `count` random mutants in turn, and fails if a test notices fewer than 95 % of them.
pub fn run(seed: u64, count: usize, only: &[usize]) -> Outcome {
    let tree = tree()?;
    let candidates = candidates(&tree)?;
    println!("{} candidates", candidates.len());
    let mut sample = sample(&candidates, seed, (count as f64 * SPARE) as usize);
    build_all(&tree, &mut sample)?;
    // The first mutants of each crate, as many as its share.
    let mut left = shares(count)?;
    sample.retain(|mutant| {
        let left = left.get_mut(mutant.package.as_str()).expect("a share for each crate");
        let is_wanted = *left > 0;
        *left = left.saturating_sub(1);
        is_wanted
    });
    sample.retain(|mutant| only.is_empty() || only.contains(&mutant.number));
    let tests = programs::build(&tree, &TESTED)?;
    println!("{} mutants, {} tests", sample.len(), tests.len());
    let traced = programs::trace(&tests, WORKERS)?;
    judge_all(&sample, &traced)
}

/// Returns a copy of the last commit, into which the mutants are planted.
fn tree() -> Result<PathBuf, String> {
    let tree = target("mutants").join("tree");
    if !tree.exists() {
        must(std::process::Command::new("git").arg("clone").arg("-q").arg(root()).arg(&tree))?;
    }
    let git = |arguments: &[&str]| {
        must(std::process::Command::new("git").args(arguments).current_dir(&tree))
    };
    git(&["fetch", "-q", "origin", "HEAD"])?;
    git(&["checkout", "-q", "--force", "--detach", "FETCH_HEAD"])?;
    Ok(tree)
}

/// Returns all mutants of cargo-mutants that can be planted.
fn candidates(tree: &Path) -> Result<Vec<Mutant>, String> {
    let mut command = cargo();
    command.current_dir(tree).args(["mutants", "--list", "--json"]);
    command.args(CRATES.iter().flat_map(|package| ["-p", package]));
    let output = command.output().map_err(|error| format!("cargo mutants: {error}"))?;
    let list: Vec<Value> = serde_json::from_slice(&output.stdout).map_err(|error| {
        let printed = String::from_utf8_lossy(&output.stderr);
        format!("cargo mutants (`cargo install cargo-mutants`): {error}\n{printed}")
    })?;
    let read = |value: &Value| -> Option<Mutant> {
        let start = &value["span"]["start"];
        let place = (start["line"].as_u64()? as usize, start["column"].as_u64()? as usize);
        let [package, file, genre, replacement] =
            ["package", "file", "genre", "replacement"].map(|name| value[name].as_str());
        let function = value["function"]["function_name"].as_str().unwrap_or("?").to_owned();
        let replacement = replacement?.to_owned();
        Some(Mutant {
            number: 0,
            package: package?.to_owned(),
            file: file?.to_owned(),
            start: place,
            genre: genre?.to_owned(),
            what: format!("{function}: {replacement:?}"),
            replacement,
        })
    };
    let mut mutants = Vec::new();
    for value in &list {
        let mutant = read(value).ok_or_else(|| format!("cargo mutants lists {value}"))?;
        let is_built = !NOT_BUILT.iter().any(|part| mutant.file.contains(part));
        if is_built && GENRES.contains(&mutant.genre.as_str()) {
            mutants.push(mutant);
        }
    }
    for (at, mutant) in mutants.iter_mut().enumerate() {
        mutant.number = at + 1;
    }
    Ok(mutants)
}

/// Returns how many of `count` mutants belong to each crate, in proportion to the lines of its
/// sources.
fn shares(count: usize) -> Result<BTreeMap<&'static str, usize>, String> {
    let mut lines = BTreeMap::new();
    for name in CRATES {
        let files = crate::faults::rust_files(&root().join("crates").join(name).join("src"))?;
        let read = |path: &PathBuf| std::fs::read_to_string(path).unwrap_or_default();
        lines.insert(name, files.iter().map(|path| read(path).lines().count()).sum::<usize>());
    }
    let all: usize = lines.values().sum();
    let mut shares: BTreeMap<_, _> =
        lines.iter().map(|(name, lines)| (*name, count * lines / all)).collect();
    // The remainder after rounding belongs to the largest crate.
    let missing = count - shares.values().sum::<usize>();
    let largest = *lines.iter().max_by_key(|(_, lines)| **lines).expect("four crates").0;
    *shares.get_mut(largest).expect("one of them") += missing;
    Ok(shares)
}

/// Returns random candidates of each crate, `count` in total, in an order that the seed determines.
fn sample(candidates: &[Mutant], seed: u64, count: usize) -> Vec<Mutant> {
    let mut state = seed;
    // SplitMix64.
    let mut random = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    };
    let mut sample = Vec::new();
    for (name, share) in shares(count).unwrap_or_default() {
        let mut own: Vec<&Mutant> =
            candidates.iter().filter(|mutant| mutant.package == name).collect();
        for at in 0..share.min(own.len()) {
            let other = at + (random() % (own.len() - at) as u64) as usize;
            own.swap(at, other);
            sample.push(own[at].clone());
        }
    }
    sample
}

/// Plants the sample, and omits mutants that do not compile.
fn build_all(tree: &Path, sample: &mut Vec<Mutant>) -> Outcome {
    // If all mutants of a file fail to compile, the file gets its original text.
    let files: BTreeSet<String> = sample.iter().map(|mutant| mutant.file.clone()).collect();
    loop {
        let mut planted: BTreeMap<String, Planted> = BTreeMap::new();
        let mut unviable = BTreeMap::new();
        for file in &files {
            let own: Vec<&Mutant> = sample.iter().filter(|mutant| mutant.file == *file).collect();
            // Uses the committed text, because the file may contain mutants that were planted
            // before.
            let text = std::fs::read_to_string(root().join(file))
                .map_err(|error| format!("{file}: {error}"))?;
            let result = plant::plant(&text, &own).map_err(|error| format!("{file}: {error}"))?;
            unviable.extend(result.refused.iter().map(|(number, why)| (*number, why.clone())));
            planted.insert(file.clone(), result);
        }
        for (file, planted) in &planted {
            write(&tree.join(file), &planted.text)?;
        }
        for name in ["ordna-base", "ordna"] {
            let path = format!("crates/{name}/src/lib.rs");
            let text = planted.get(&path).map(|planted| planted.text.clone());
            let text = text
                .map_or_else(|| std::fs::read_to_string(root().join(&path)), Ok)
                .map_err(|error| format!("{path}: {error}"))?;
            let switch = if name == "ordna" { plant::SWITCH_AGAIN } else { plant::SWITCH };
            write(&tree.join(&path), &format!("{text}\n{switch}"))?;
        }
        let mut errors = programs::errors(tree, &CRATES)?;
        errors.retain(|error| {
            let found = planted.get(&error.file).and_then(|planted| planted.at(&error.bytes));
            if let Some(number) = found {
                unviable.entry(number).or_insert_with(|| error.text.clone());
            }
            found.is_none()
        });
        if unviable.is_empty()
            && let Some(error) = errors.first()
        {
            // The compiler may report a mutant at code that contradicts it.
            let near = planted.get(&error.file).and_then(|it| it.nearest(error.bytes.start));
            let text = &error.text;
            let near = near.ok_or_else(|| format!("no mutant in {}: {text}", error.file))?;
            unviable.insert(near, text.clone());
        }
        if unviable.is_empty() {
            return Ok(());
        }
        for mutant in sample.iter() {
            if let Some(why) = unviable.get(&mutant.number) {
                println!("{} not planted: {why}", mutant.describe());
            }
        }
        sample.retain(|mutant| !unviable.contains_key(&mutant.number));
    }
}

/// Writes a file unless it already has this text, because a write would cause a build.
fn write(path: &Path, text: &str) -> Outcome {
    if std::fs::read_to_string(path).is_ok_and(|old| old == text) {
        return Ok(());
    }
    std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

/// The result of the tests with a mutant.
enum Verdict {
    /// The test that failed.
    Caught(String),
    /// Number of tests that passed.
    Survived(usize),
}

fn judge_all(sample: &[Mutant], traced: &[Test]) -> Outcome {
    let next = AtomicUsize::new(0);
    let survivors = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                while let Some(mutant) = sample.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let (verdict, took) = judge(mutant, traced);
                    let verdict = match verdict {
                        Verdict::Caught(test) => format!("caught by {test}"),
                        Verdict::Survived(tests) => {
                            survivors.lock().expect("no panic above").push(mutant.describe());
                            format!("SURVIVED {tests} tests")
                        }
                    };
                    println!("{} | {verdict} | {:.1} s", mutant.describe(), took.as_secs_f64());
                }
            });
        }
    });
    let survivors = survivors.into_inner().expect("no panic above");
    let caught = sample.len() - survivors.len();
    println!("{caught} of {} mutants are caught", sample.len());
    if caught * 100 >= sample.len() * 95 { Ok(()) } else { Err(survivors.join("\n")) }
}

/// Runs the tests that reach a mutant, the shortest first, until one detects it.
fn judge(mutant: &Mutant, traced: &[Test]) -> (Verdict, Duration) {
    let own = traced.iter().filter(|test| test.reaches.contains(&mutant.number));
    let (mut took, mut passed) = (Duration::ZERO, 0);
    for test in own {
        let mut run = |number| {
            let (end, time) = programs::run(test, number);
            took += time;
            end
        };
        // On a busy machine, a test may fail once even without a mutant.
        let notices = run(Some(mutant.number)) != End::Passed
            && (run(Some(mutant.number)) != End::Passed
                || (0..3).all(|_| run(None) == End::Passed));
        if notices {
            return (Verdict::Caught(test.name.clone()), took);
        }
        passed += 1;
    }
    (Verdict::Survived(passed), took)
}
