//! Checks the licences of all dependencies, and the dependencies between the crates.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;

use crate::tools::{LIBRARY, Outcome, cargo};

/// The licences that a dependency may have. `deny.toml` has the same list for cargo-deny.
const ALLOWED: [&str; 8] =
    ["MIT", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "Zlib", "ISC", "MPL-2.0", "Unicode-3.0"];

/// The crates of the workspace on which each of them may depend, in a build or a build script.
const ARROWS: [(&str, &[&str]); 12] = [
    ("ordna-base", &[]),
    ("ordna-derive", &[]),
    ("ordna", &["ordna-base", "ordna-derive"]),
    ("ordna-c", &["ordna"]),
    ("ordna-secondary", &["ordna"]),
    ("ordna-server", &["ordna", "ordna-secondary"]),
    ("ordna-kafka", &["ordna", "ordna-secondary", "ordna-server"]),
    ("ordna-cli", &["ordna", "ordna-kafka", "ordna-secondary", "ordna-server"]),
    ("ordna-papers", &["ordna", "ordna-base"]),
    ("ordna-bench", &["ordna", "ordna-base", "ordna-papers", "ordna-secondary"]),
    ("ordna-testkit", &["ordna-base"]),
    ("xtask", &[]),
];

/// The crate on which tests, examples and benchmarks of all crates may depend in addition, unless
/// it depends on them.
const OF_TESTS: &str = "ordna-testkit";

/// Crates on which the library must never depend, because it has no asynchronous code and no
/// network.
const NOT_IN_THE_LIBRARY: [&str; 3] = ["tokio", "mio", "clap"];

pub fn run() -> Outcome {
    let output = cargo()
        .args(["metadata", "--format-version", "1", "--locked"])
        .output()
        .map_err(|error| error.to_string())?;
    let metadata: Value =
        serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())?;
    let packages = metadata["packages"].as_array().ok_or("cargo metadata lists no packages")?;
    let mut wrong = wrong_arrows(packages);
    for package in packages {
        let licence = package["license"].as_str().unwrap_or("none stated");
        if !allowed(licence) {
            wrong.push(format!("{} {}: {licence}", package["name"], package["version"]));
        }
    }
    let in_wheel = wheel(&mut wrong)?;
    if wrong.is_empty() {
        let all = packages.len();
        println!(
            "{all} packages, {in_wheel} in the wheel, all licences allowed, all arrows as drawn"
        );
        Ok(())
    } else {
        Err(wrong.join("\n"))
    }
}

/// Returns the dependencies between crates that violate a rule, as texts:
///
/// 1. A crate depends only on those of its line in [`ARROWS`]; its tests may depend on
///    [`OF_TESTS`], too.
/// 2. No crate of the product depends on one of the laboratory, not even in its tests.
/// 3. There are no cycles, including dependencies of tests.
/// 4. The library has none of [`NOT_IN_THE_LIBRARY`].
fn wrong_arrows(packages: &[Value]) -> Vec<String> {
    let ours: Vec<&Value> = packages.iter().filter(|package| package["source"].is_null()).collect();
    let name_of = |package: &Value| package["name"].as_str().unwrap_or_default().to_owned();
    let is_of_lab = |package: &Value| {
        let manifest = package["manifest_path"].as_str().unwrap_or_default();
        Path::new(manifest).ancestors().nth(2).is_some_and(|folder| folder.ends_with("lab"))
    };
    let names: BTreeSet<String> = ours.iter().map(|package| name_of(package)).collect();
    let lab: BTreeSet<String> =
        ours.iter().filter(|package| is_of_lab(package)).map(|package| name_of(package)).collect();
    let mut wrong = Vec::new();
    let mut all: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for package in ours {
        let name = name_of(package);
        let Some((_, arrows)) = ARROWS.iter().find(|(of, _)| *of == name) else {
            wrong.push(format!("the arrows of {name} are not listed"));
            continue;
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let to = name_of(dependency);
            let is_dev = dependency["kind"] == "dev";
            if !is_dev && LIBRARY.contains(&&*name) && NOT_IN_THE_LIBRARY.contains(&&*to) {
                wrong.push(format!("{name} must not depend on {to}"));
            }
            if !names.contains(&to) {
                continue;
            }
            if !(arrows.contains(&&*to) || is_dev && to == OF_TESTS) {
                let whose = if is_dev { "tests of " } else { "" };
                wrong.push(format!("{whose}{name} must not depend on {to}"));
            }
            if lab.contains(&to) && !lab.contains(&name) {
                wrong.push(format!("{name} is of the product, {to} of the laboratory"));
            }
            all.entry(name.clone()).or_default().insert(to);
        }
    }
    for name in all.keys() {
        let (mut reached, mut open) = (BTreeSet::new(), vec![name]);
        while let Some(from) = open.pop() {
            open.extend(all.get(from).into_iter().flatten().filter(|to| reached.insert(*to)));
        }
        if reached.contains(name) {
            wrong.push(format!("{name} depends on itself, by way of others"));
        }
    }
    wrong
}

/// Checks the dependencies of the Python package, which is not in the workspace. `cargo tree` omits
/// dependencies for other targets; `cargo metadata` does not.
fn wheel(wrong: &mut Vec<String>) -> Result<usize, String> {
    let output = cargo()
        .args([
            "tree",
            "--manifest-path",
            "crates/ordna-python/Cargo.toml",
            "--edges",
            "normal,build",
        ])
        .args(["--prefix", "none", "--format", "{p}\t{l}"])
        .output()
        .map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines.dedup();
    for line in &lines {
        let (package, licence) = line.split_once('\t').unwrap_or((line, ""));
        // Our crates are listed with their folders.
        if package.contains("/lab/") {
            wrong.push(format!("the wheel contains a crate of the laboratory: {package}"));
        }
        if !allowed(licence.trim_end_matches(" (*)")) {
            wrong.push(format!("{package}: {licence}"));
        }
    }
    if lines.is_empty() { Err("cargo tree lists no packages".to_owned()) } else { Ok(lines.len()) }
}

/// Returns whether the expression has an alternative of which all parts are allowed.
fn allowed(expression: &str) -> bool {
    expression.replace('/', " OR ").split(" AND ").all(|part| {
        part.split(" OR ").any(|licence| {
            let licence = licence.trim().trim_matches(['(', ')']);
            let licence = licence.split(" WITH ").next().unwrap_or(licence);
            // "Or any later version" includes this version.
            ALLOWED.contains(&licence.strip_suffix('+').unwrap_or(licence))
        })
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{allowed, wrong_arrows};

    /// Returns the description of a package in a folder, with its dependencies and their kinds.
    fn package(folder: &str, name: &str, dependencies: &[(&str, Option<&str>)]) -> Value {
        let dependencies: Vec<_> =
            dependencies.iter().map(|(name, kind)| json!({ "name": name, "kind": kind })).collect();
        json!({
            "name": name,
            "source": null,
            "manifest_path": format!("/ordna/{folder}/{name}/Cargo.toml"),
            "dependencies": dependencies,
        })
    }

    #[test]
    fn arrows_of_tests_and_build_scripts_count() {
        let dev = Some("dev");
        let good = [
            package("crates", "ordna-base", &[("seize", None)]),
            package("crates", "ordna-testkit", &[("ordna-base", None)]),
            package("crates", "ordna", &[("ordna-base", None), ("ordna-testkit", dev)]),
            package("lab", "ordna-papers", &[("ordna", None), ("ordna-testkit", dev)]),
        ];
        assert_eq!(wrong_arrows(&good), [""; 0]);
        let with = |at: usize, package: Value| {
            let mut packages = good.clone();
            packages[at] = package;
            wrong_arrows(&packages).join("\n")
        };
        let circle = with(0, package("crates", "ordna-base", &[("ordna-testkit", dev)]));
        assert!(circle.contains("ordna-base depends on itself"), "{circle}");
        let lab = with(2, package("crates", "ordna", &[("ordna-papers", dev)]));
        assert!(lab.contains("tests of ordna must not depend on ordna-papers"), "{lab}");
        assert!(lab.contains("ordna is of the product, ordna-papers of the laboratory"), "{lab}");
        for kind in [None, Some("build")] {
            let testkit = with(2, package("crates", "ordna", &[("ordna-testkit", kind)]));
            assert_eq!(testkit, "ordna must not depend on ordna-testkit");
        }
        let unlisted = with(3, package("lab", "ordna-other", &[]));
        assert_eq!(unlisted, "the arrows of ordna-other are not listed");
        let tokio = with(2, package("crates", "ordna", &[("tokio", None)]));
        assert_eq!(tokio, "ordna must not depend on tokio");
    }

    #[test]
    fn every_part_needs_an_allowed_choice() {
        assert!(allowed("MIT OR Apache-2.0") && allowed("(MIT OR GPL-3.0) AND Unicode-3.0"));
        assert!(allowed("Apache-2.0 WITH LLVM-exception") && allowed("MIT/Apache-2.0"));
        assert!(allowed("MPL-2.0+"));
        assert!(!allowed("GPL-3.0") && !allowed("MIT AND GPL-3.0-only"));
    }
}
