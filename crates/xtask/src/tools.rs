//! Tools of all commands: cargo, run from the top of the checkout.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

/// The crates whose tests look for planted faults and run under a sanitizer.
pub const LIBRARY: [&str; 4] = ["ordna-base", "ordna-papers", "ordna", "ordna-secondary"];

/// The error, for a person.
pub type Outcome = Result<(), String>;

/// The top of the checkout.
pub fn root() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).expect("crates/xtask lies two below the top").to_owned()
}

/// A folder of the target directory, for builds with flags of their own.
pub fn target(name: &str) -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    root().join(target).join(name)
}

/// Cargo, from the top of the checkout.
///
/// It does not get the variables of this package: build scripts that look at them, as ring's does,
/// would run again, and all crates behind them would be built again.
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

/// The shares of this many commits in a row hold everything that is shared out.
pub const SHARES: usize = 10;

/// Which share is this commit's, and the files that it and the working tree change.
pub fn share() -> Result<(usize, Vec<String>), String> {
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
    Ok((number % SHARES, changed.lines().map(str::to_owned).collect()))
}

/// A package of the workspace.
pub struct Package {
    pub name: String,
    /// The folder of its manifest.
    pub folder: PathBuf,
    /// Its test programs that need no cargo feature, ordered by name.
    pub tests: Vec<Test>,
}

/// A test program in a package's `tests` folder.
pub struct Test {
    pub name: String,
    /// The file of its root module.
    pub source: PathBuf,
}

/// All packages of the workspace, as cargo reports them.
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

/// The names of a package's test programs that need no cargo feature, in order.
pub fn programs(package: &str) -> Result<Vec<String>, String> {
    let package = packages()?.into_iter().find(|found| found.name == package);
    let package = package.ok_or("cargo metadata lacks a package")?;
    Ok(package.tests.into_iter().map(|test| test.name).collect())
}

/// Runs a command whose failure is an error.
pub fn must(command: &mut Command) -> Outcome {
    let status = command.status().map_err(|error| format!("cannot start {command:?}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{command:?} failed: {status}")) }
}
