//! The library's tests under AddressSanitizer: use after free, double free, leaks.

use crate::tools::{Outcome, cargo, library, must};

/// The sanitizer needs an explicit target; without one cargo builds build scripts with it too.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Memory that is never freed on purpose.
const KEPT: &str =
    concat!("suppressions=", env!("CARGO_MANIFEST_DIR"), "/src/asan.leaks:print_suppressions=0");

pub fn run(part: &str) -> Outcome {
    must(
        cargo()
            .args(["test", "--lib", "--tests", "--no-fail-fast", "--locked"])
            .args(library())
            .args(["--target", TARGET, "--target-dir", "target/asan"])
            .arg(part)
            // The flag is an unstable one; this lets the stable compiler take it.
            .env("LSAN_OPTIONS", KEPT)
            .env("RUSTC_BOOTSTRAP", "1")
            .env("RUSTFLAGS", "-Zsanitizer=address"),
    )
}
