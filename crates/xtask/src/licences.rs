//! Licences of all dependencies, and the arrows between the crates.

use serde_json::Value;

use crate::tools::{LIBRARY, Outcome, cargo};

/// The licences that a dependency may have. `deny.toml` says the same to cargo-deny.
const ALLOWED: [&str; 8] =
    ["MIT", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "Zlib", "ISC", "MPL-2.0", "Unicode-3.0"];

/// The normal dependencies that each crate of the workspace may have on others of it. A release
/// build takes nothing from the crates that are for development only.
const ARROWS: [(&str, &[&str]); 12] = [
    ("ordna-base", &[]),
    ("ordna-papers", &["ordna", "ordna-base"]),
    ("ordna", &["ordna-base", "ordna-derive"]),
    ("ordna-derive", &[]),
    ("ordna-c", &["ordna"]),
    ("ordna-secondary", &["ordna"]),
    ("ordna-server", &["ordna", "ordna-secondary"]),
    ("ordna-kafka", &["ordna", "ordna-secondary", "ordna-server"]),
    ("ordna-bench", &["ordna", "ordna-base", "ordna-papers", "ordna-secondary"]),
    ("ordna-cli", &["ordna", "ordna-kafka", "ordna-secondary", "ordna-server"]),
    ("ordna-testkit", &["ordna-base", "ordna-papers"]),
    ("xtask", &[]),
];

/// Crates that the library must never depend on: it has no asynchronous code and no network.
const NOT_IN_THE_LIBRARY: [&str; 3] = ["tokio", "mio", "clap"];

pub fn run() -> Outcome {
    let output = cargo()
        .args(["metadata", "--format-version", "1", "--locked"])
        .output()
        .map_err(|error| error.to_string())?;
    let metadata: Value =
        serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())?;
    let packages = metadata["packages"].as_array().ok_or("cargo metadata lists no packages")?;
    let mut wrong = Vec::new();
    for package in packages {
        let licence = package["license"].as_str().unwrap_or("none stated");
        if !allowed(licence) {
            wrong.push(format!("{} {}: {licence}", package["name"], package["version"]));
        }
        let Some(name) = package["name"].as_str() else { continue };
        let Some((_, arrows)) = ARROWS.iter().find(|(of, _)| *of == name) else {
            if package["source"].is_null() {
                wrong.push(format!("the arrows of {name} are not listed"));
            }
            continue;
        };
        let dependencies = package["dependencies"].as_array().into_iter().flatten();
        let normal = dependencies.filter(|dependency| dependency["kind"].is_null());
        for dependency in normal.filter_map(|dependency| dependency["name"].as_str()) {
            let is_ours = ARROWS.iter().any(|(ours, _)| *ours == dependency);
            let is_refused = LIBRARY.contains(&name) && NOT_IN_THE_LIBRARY.contains(&dependency);
            if is_refused || is_ours && !arrows.contains(&dependency) {
                wrong.push(format!("{name} must not depend on {dependency}"));
            }
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

/// Checks the dependencies of the Python package, which stands outside of the workspace. `cargo
/// tree` leaves out dependencies of other targets; `cargo metadata` does not.
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
        if !allowed(licence.trim_end_matches(" (*)")) {
            wrong.push(format!("{package}: {licence}"));
        }
    }
    if lines.is_empty() { Err("cargo tree lists no packages".to_owned()) } else { Ok(lines.len()) }
}

/// Whether some choice that the expression offers is allowed in each of its parts.
fn allowed(expression: &str) -> bool {
    expression.replace('/', " OR ").split(" AND ").all(|part| {
        part.split(" OR ").any(|licence| {
            let licence = licence.trim().trim_matches(['(', ')']);
            let licence = licence.split(" WITH ").next().unwrap_or(licence);
            // "Or any later version" offers this one.
            ALLOWED.contains(&licence.strip_suffix('+').unwrap_or(licence))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::allowed;

    #[test]
    fn every_part_needs_an_allowed_choice() {
        assert!(allowed("MIT OR Apache-2.0") && allowed("(MIT OR GPL-3.0) AND Unicode-3.0"));
        assert!(allowed("Apache-2.0 WITH LLVM-exception") && allowed("MIT/Apache-2.0"));
        assert!(allowed("MPL-2.0+"));
        assert!(!allowed("GPL-3.0") && !allowed("MIT AND GPL-3.0-only"));
    }
}
