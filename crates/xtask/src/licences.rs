//! Licences of all dependencies, and the arrows between the crates.

use serde_json::Value;

use crate::tools::{LIBRARY, Outcome, cargo};

/// What a dependency may be licensed under. `deny.toml` says the same to cargo-deny.
const ALLOWED: [&str; 8] =
    ["MIT", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "Zlib", "ISC", "MPL-2.0", "Unicode-3.0"];

/// The normal dependencies that each crate of the workspace may have on others of it. A release
/// build takes nothing from the crates that are for development only.
const ARROWS: [(&str, &[&str]); 11] = [
    ("ordna-base", &[]),
    ("ordna-papers", &["ordna", "ordna-base"]),
    ("ordna", &["ordna-base", "ordna-derive"]),
    ("ordna-derive", &[]),
    ("ordna-c", &["ordna"]),
    ("ordna-python", &["ordna"]),
    ("ordna-server", &["ordna"]),
    ("ordna-bench", &["ordna", "ordna-base", "ordna-papers"]),
    ("ordna-cli", &["ordna", "ordna-bench", "ordna-server"]),
    ("ordna-testkit", &["ordna-base", "ordna-papers"]),
    ("xtask", &[]),
];

/// What the library must never depend on: it does no asynchronous work and no network.
const NOT_IN_THE_LIBRARY: [&str; 3] = ["tokio", "mio", "clap"];

/// The packages that a manifest leads to.
fn packages(arguments: &[&str]) -> Result<Vec<Value>, String> {
    let output = cargo()
        .args(["metadata", "--format-version", "1"])
        .args(arguments)
        .output()
        .map_err(|error| error.to_string())?;
    let mut metadata: Value =
        serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())?;
    match metadata["packages"].take() {
        Value::Array(packages) => Ok(packages),
        _ => Err("cargo metadata lists no packages".to_owned()),
    }
}

pub fn run() -> Outcome {
    let mut packages = packages(&["--locked"])?;
    // It stands outside of the workspace. Packages for targets that wheels are not made for stay out.
    let python = "crates/ordna-python/Cargo.toml";
    let target = "x86_64-unknown-linux-gnu";
    packages.extend(self::packages(&["--manifest-path", python, "--filter-platform", target])?);
    let mut wrong = Vec::new();
    for package in &packages {
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
    if wrong.is_empty() {
        println!("{} packages, all licences allowed, all arrows as drawn", packages.len());
        Ok(())
    } else {
        Err(wrong.join("\n"))
    }
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
