//! Commands for developers: `cargo xtask <command>`.

mod asan;
mod faults;
mod fuzz;
mod kafka;
mod licences;
mod models;
mod mutants;
mod porcupine;
mod record;
mod tools;

use std::process::ExitCode;

use tools::{Outcome, cargo, must};

const HELP: &str = "\
cargo xtask asan [PART]       run the library's tests (those whose name contains PART) under AddressSanitizer, with leak check
cargo xtask asan --share      run only this commit's share of them, and those of the areas that it touches
cargo xtask faults [PART]     switch on each planted fault (whose name contains PART) and print the test that notices it
cargo xtask faults --share    do so only for this commit's share (a tenth) and the areas that it touches
cargo xtask kills [N]         kill a process that writes and backs up N times (1,000), and check its data
cargo xtask kafka [start]     start a Kafka broker on 127.0.0.1:19092; stop or kill ends it, wipe also removes its data
cargo xtask kafka sample      start the broker and fill the topic `places` with sample documents
cargo xtask kafka test        start a separate broker and run the tests that need one
cargo xtask kafka-kills [N]   kill and stop index nodes and the broker N times (20), and check every answer
cargo xtask kafka-kills N --dev  do so with a debug build
cargo xtask loom              run the loom models without faults, and print how many executions each has
cargo xtask mutants SEED N [M...]  plant N random mutants (or only those numbered M) and print the test that notices each
cargo xtask shuttle           race PI's rebuilds with batches, and index nodes with queries, under a random scheduler
cargo xtask fuzz SECONDS      run each fuzz target for this time under AddressSanitizer
cargo xtask porcupine         check recorded histories with porcupine, too (needs go); both verdicts must agree
cargo xtask wire SECONDS      check histories of clients over the network, and a server under misbehaving clients
cargo xtask licences          check the licences of all dependencies, and the dependencies between the crates";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        ["asan"] => asan::run(""),
        ["asan", "--share"] => asan::run_share(),
        ["asan", part] => asan::run(part),
        ["faults"] => faults::run(""),
        ["faults", "--share"] => faults::run_share(),
        ["faults", part] => faults::run(part),
        ["kills"] => kills("1000"),
        ["kills", number] => kills(number),
        ["kafka", rest @ ..] => kafka::run(rest),
        ["kafka-kills"] => kafka::kills("20", "release"),
        ["kafka-kills", number] => kafka::kills(number, "release"),
        ["kafka-kills", number, "--dev"] => kafka::kills(number, "dev"),
        ["loom"] => models::run(),
        ["mutants", seed, count, only @ ..] => mutants(seed, count, only),
        ["shuttle"] => shuttle(),
        ["porcupine"] => porcupine::run(),
        ["fuzz", seconds] => fuzz::run(seconds),
        ["wire", seconds] => wire(seconds),
        ["licences"] => licences::run(),
        _ => Err(HELP.to_owned()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

/// Parses the numbers and runs mutants.
fn mutants(seed: &str, count: &str, only: &[&str]) -> Outcome {
    let number = |word: &str| word.parse::<u64>().map_err(|_| format!("{word:?} is not a number"));
    let only = only.iter().map(|word| Ok(number(word)? as usize)).collect::<Result<Vec<_>, _>>();
    mutants::run(number(seed)?, number(count)? as usize, &only.map_err(|error: String| error)?)
}

/// Runs the test that kills a process this number of times.
fn kills(number: &str) -> Outcome {
    must(
        cargo()
            .args(["test", "--release", "-p", "ordna", "--test", "durability", "kill", "--"])
            .arg("--nocapture")
            .env("ORDNA_KILLS", number),
    )
}

/// Runs the tests of the server whose duration is unlimited: linearizability, broken requests, bad
/// clients.
fn wire(seconds: &str) -> Outcome {
    must(
        cargo()
            .args(["test", "--release", "-p", "ordna-server", "--test", "main", "--"])
            .args(["histories::", "hostile::", "--nocapture", "--test-threads", "1"])
            .env("ORDNA_SECONDS", seconds),
    )
}

/// Runs the tests that use threads of shuttle.
fn shuttle() -> Outcome {
    must(
        cargo()
            .args(["test", "--profile=model", "-p", "ordna-papers", "--test", "models"])
            .arg("--target-dir")
            .arg(tools::target("shuttle"))
            .env("RUSTFLAGS", "--cfg faults --cfg shuttle"),
    )?;
    // A model of nodes, whose code itself has no threads.
    must(
        cargo()
            .args(["test", "-p", "ordna-kafka", "--test", "model"])
            .env("ORDNA_SCHEDULES", "20000"),
    )
}
