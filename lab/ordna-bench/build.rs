//! Tells the benchmark from which commit it is built, because its figures name the commit.

use std::path::Path;
use std::process::Command;

/// The sources that are measured. The benchmark reports uncommitted changes in them.
const MEASURED: [&str; 11] = [
    "crates/ordna-base/src",
    "crates/ordna-base/Cargo.toml",
    "lab/ordna-papers/src",
    "lab/ordna-papers/Cargo.toml",
    "crates/ordna/src",
    "crates/ordna/Cargo.toml",
    "lab/ordna-bench/src",
    "lab/ordna-bench/build.rs",
    "lab/ordna-bench/Cargo.toml",
    "Cargo.toml",
    "Cargo.lock",
];

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(["-C", "../.."]).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

/// Makes the build script run again when this file changes. Only for existing files, because
/// missing ones would count as changed every time.
fn watch(path: &str) {
    if Path::new(path).exists() {
        println!("cargo::rerun-if-changed={path}");
    }
}

fn main() {
    // The current commit changes with HEAD, or with the branch that HEAD names.
    let branch = git(&["symbolic-ref", "-q", "HEAD"]);
    for name in ["HEAD", "logs/HEAD", "packed-refs"].into_iter().chain(branch.as_deref()) {
        if let Some(path) = git(&["rev-parse", "--path-format=absolute", "--git-path", name]) {
            watch(&path);
        }
    }
    MEASURED.iter().for_each(|path| watch(&format!("../../{path}")));
    // Sources that were copied into a checkout of another project do not belong to its commit.
    let commit = git(&["ls-files", "--error-unmatch", "Cargo.lock"])
        .and_then(|_| git(&["rev-parse", "--short", "HEAD"]))
        .filter(|commit| !commit.is_empty());
    let status: Vec<&str> = ["status", "--porcelain", "--"].into_iter().chain(MEASURED).collect();
    let dirty = git(&status).is_some_and(|changes| !changes.is_empty());
    let commit = match commit {
        Some(commit) if dirty => format!("{commit}-dirty"),
        Some(commit) => commit,
        None => "unknown".to_owned(),
    };
    println!("cargo::rustc-env=ORDNA_COMMIT={commit}");
}
