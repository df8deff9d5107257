//! Tools for all commands: cargo, which is run in the top folder of the checkout.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

/// The crates whose tests must detect planted faults and run with a sanitizer.
pub const LIBRARY: [&str; 4] = ["ordna-base", "ordna-papers", "ordna", "ordna-secondary"];

/// The result of a command. The error is a text for the developer.
pub type Outcome = Result<(), String>;

/// Returns the top folder of the checkout.
pub fn root() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).expect("crates/xtask lies two below the top").to_owned()
}

/// Returns a folder of the target directory, for builds with separate flags.
pub fn target(name: &str) -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    root().join(target).join(name)
}

/// Returns a command that runs cargo in the top folder of the checkout.
///
/// The command does not get the variables of this package: build scripts that read them, such as
/// ring's, would run again, and all crates that depend on them would be built again.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned()));
    let is_ours = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST");
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(is_ours) {
            command.env_remove(name);
        }
    }
    command.current_dir(root());
    command
}

/// Number of successive commits whose shares together contain everything.
pub const SHARES: usize = 10;

/// Returns the number of this commit's share, and the files that it and the working tree change.
pub fn share() -> Result<(usize, Vec<String>), String> {
    let git = |arguments: &[&str]| -> Result<String, String> {
        let output = Command::new("git").args(arguments).current_dir(root()).output();
        let output = output.map_err(|error| format!("git: {error}"))?;
        let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        if output.status.success() { Ok(text) } else { Err(format!("git {arguments:?} failed")) }
    };
    let number = git(&["rev-list", "--count", "HEAD"])?;
    let number: usize = number.parse().map_err(|_| format!("{number:?} is not a number"))?;
    // A checkout without history has no parent, so only the share runs.
    let changed = git(&["diff", "--name-only", "HEAD~1"]).unwrap_or_default();
    Ok((number % SHARES, changed.lines().map(str::to_owned).collect()))
}

/// A package of the workspace.
pub struct Package {
    pub name: String,
    /// Folder of the manifest.
    pub folder: PathBuf,
    /// Test programs that need no cargo feature, ordered by name.
    pub tests: Vec<Test>,
}

/// A test program in a package's `tests` folder.
pub struct Test {
    pub name: String,
    /// File of the root module.
    pub source: PathBuf,
}

/// Returns all packages of the workspace, as reported by cargo.
pub fn packages() -> Result<Vec<Package>, String> {
    let output = cargo().args(["metadata", "--no-deps", "--format-version", "1"]).output();
    let output = output.map_err(|error| format!("cargo metadata: {error}"))?;
    let metadata: Value = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("cargo metadata: {error}"))?;
    let packages = metadata["packages"].as_array().ok_or("cargo metadata lists no packages")?;
    let read = |package: &Value| -> Option<Package> {
        let manifest = PathBuf::from(package["manifest_path"].as_str()?);
        let targets = package["targets"].as_array()?.iter();
        let tests = targets
            .filter(|target| target["kind"][0] == "test" && target["required-features"].is_null());
        let mut tests: Vec<Test> = tests
            .filter_map(|target| {
                let source = PathBuf::from(target["src_path"].as_str()?);
                Some(Test { name: target["name"].as_str()?.to_owned(), source })
            })
            .collect();
        tests.sort_by(|one, other| one.name.cmp(&other.name));
        let folder = manifest.parent()?.to_owned();
        Some(Package { name: package["name"].as_str()?.to_owned(), folder, tests })
    };
    packages.iter().map(|package| read(package).ok_or_else(|| format!("{package}?"))).collect()
}

/// Returns the names of a package's test programs that need no cargo feature, in order.
pub fn programs(package: &str) -> Result<Vec<String>, String> {
    let package = packages()?.into_iter().find(|found| found.name == package);
    let package = package.ok_or("cargo metadata lacks a package")?;
    Ok(package.tests.into_iter().map(|test| test.name).collect())
}

/// Runs a command and returns an error if it fails.
pub fn must(command: &mut Command) -> Outcome {
    let status = command.status().map_err(|error| format!("cannot start {command:?}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{command:?} failed: {status}")) }
}
