//! Runs each fuzz target for some seconds, with the stable compiler.

use std::process::Command;

use crate::tools::{Outcome, cargo, must, root, target};

/// The flags that cargo-fuzz passes to the compiler: counters at each edge and comparison,
/// AddressSanitizer.
const FLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares \
    -Cdebug-assertions --cfg fuzzing -Zsanitizer=address";

/// The sanitizer needs an explicit target. Without one, cargo would also use it for build scripts.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Runs each target of `fuzz/` for this number of seconds.
pub fn run(seconds: &str) -> Outcome {
    let seconds: u32 = seconds.parse().map_err(|_| format!("{seconds:?} is not a number"))?;
    let folder = root().join("fuzz");
    must(
        cargo()
            .args(["build", "--release", "--target", TARGET, "--manifest-path"])
            .arg(folder.join("Cargo.toml"))
            .arg("--target-dir")
            .arg(target("fuzz"))
            .env("RUSTC_BOOTSTRAP", "1")
            .env("RUSTFLAGS", FLAGS),
    )?;
    let sources = std::fs::read_dir(folder.join("fuzz_targets")).map_err(|e| e.to_string())?;
    // All targets run concurrently, because each uses only one core.
    let mut running = Vec::new();
    for source in sources.flatten().map(|source| source.path()) {
        let Some(name) = source.file_stem() else { continue };
        println!("{} for {seconds} s", name.display());
        let corpus = folder.join("corpus").join(name);
        std::fs::create_dir_all(&corpus).map_err(|error| error.to_string())?;
        let program = target("fuzz").join(TARGET).join("release").join(name);
        let child = Command::new(&program)
            .args([format!("-max_total_time={seconds}"), "-print_final_stats=1".to_owned()])
            .arg(corpus)
            .current_dir(&folder)
            .spawn()
            .map_err(|error| format!("{}: {error}", program.display()))?;
        running.push((program, child));
    }
    let mut failed = Vec::new();
    for (program, mut child) in running {
        let status = child.wait().map_err(|error| error.to_string())?;
        if !status.success() {
            failed.push(format!("{} failed: {status}", program.display()));
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(failed.join("\n")) }
}
