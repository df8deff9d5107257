//! Runs the library's tests with AddressSanitizer, which detects use after free, double free, and
//! leaks.

use crate::tools::{LIBRARY, Outcome, SHARES, cargo, must, programs, share, target};

/// The sanitizer needs an explicit target. Without one, cargo would also use it for build scripts.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// The crates of the store.
const STORE: [&str; 2] = ["ordna-base", "ordna"];

/// Memory that is never freed on purpose.
const KEPT: &str =
    concat!("suppressions=", env!("CARGO_MANIFEST_DIR"), "/src/asan.leaks:print_suppressions=0");

/// Runs all tests of the library whose name contains `part`.
pub fn run(part: &str) -> Outcome {
    let packages = LIBRARY.into_iter().flat_map(|name| ["-p", name]);
    test(packages.chain(["--lib", "--tests", part]))
}

/// The published structures: folders of the sources, and prefixes of the test modules.
const STRUCTURES: [&str; 6] = ["art", "hydralist", "nitro", "pi", "skiplist", "wormhole"];

/// Runs the share of this commit: half of the store's test programs, alternating, and the tests of
/// some published structures. Tests of areas that the commit touches always run.
pub fn run_share() -> Outcome {
    let (share, changed) = share()?;
    let is_touched = |structure: &str| {
        let source = format!("lab/ordna-papers/src/{structure}/");
        changed.iter().any(|path| path.starts_with(&source))
    };
    let structures = STRUCTURES.into_iter().enumerate();
    let structures = structures.filter(|(at, name)| at % SHARES == share || is_touched(name));
    let structures: Vec<&str> = structures.map(|(_, name)| name).collect();
    let is_store =
        |path: &String| STORE.iter().any(|name| path.starts_with(&format!("crates/{name}/")));
    let all = changed.iter().any(is_store);
    let mut chosen = Vec::new();
    for package in STORE {
        let programs = programs(package)?.into_iter().enumerate();
        let mine = programs.filter(|(at, _)| all || at % 2 == share % 2).map(|(_, name)| name);
        chosen.extend(mine);
    }
    println!("tests of the store: {chosen:?}, of published structures: {structures:?}");
    let packages = STORE.into_iter().flat_map(|name| ["-p", name]);
    let chosen = chosen.iter().flat_map(|name| ["--test", name]);
    test(packages.chain(["--lib"]).chain(chosen))?;
    test(["-p", "ordna-papers", "--lib"].into_iter())?;
    if structures.is_empty() {
        return Ok(());
    }
    let main = ["-p", "ordna-papers", "--test", "main", "--"];
    test(main.into_iter().chain(structures))
}

fn test<'a>(what: impl Iterator<Item = &'a str>) -> Outcome {
    must(
        cargo()
            .args(["test", "--no-fail-fast", "--locked", "--target", TARGET, "--target-dir"])
            .arg(target("asan"))
            .args(what)
            .env("ORDNA_SANITIZED", "1")
            // The flag is unstable, and this variable makes the stable compiler accept it.
            .env("LSAN_OPTIONS", KEPT)
            .env("RUSTC_BOOTSTRAP", "1")
            .env("RUSTFLAGS", "-Zsanitizer=address"),
    )
}
