//! Random histories of crashes, power failures and damages.
//!
//! A history is a list of sessions, which a seed determines. A session is an opening, followed by
//! all kinds of writes, flushes, backups (also in the background), failing operations and full
//! disks, and then by an exit, a kill or a power failure. Each opening must succeed and find a
//! state that the history allows. The files that remain at the end are then damaged: an opening
//! must report the damage, or find exactly the state that it would find without it.
//!
//! `ORDNA_SOAK=seconds` sets the duration. `ORDNA_HISTORIES` and `ORDNA_DAMAGES` set the numbers
//! instead, and `ORDNA_HISTORY_FROM` the first seed. `ORDNA_HISTORY_SEED` runs a single history
//! `ORDNA_HISTORIES` times, because its threads interleave differently each time.

mod damage;
mod life;
mod plan;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use ordna_testkit::random::Random;

use damage::{Counts, Hit, check, random_hit, undamaged};
use life::Life;
use plan::{Session, plan};

/// Number of damages per history.
const DAMAGES: u64 = 8;
/// Minimum number of histories.
const LEAST: u64 = 40;
/// Number of runs of a failing history in search of a shorter one that fails, too.
const SHRINKING: usize = 300;

/// Number of threads that run histories. Most of the time, each waits for the threads of its store.
const THREADS: usize = 6;

/// The results of all histories.
#[derive(Default)]
struct All {
    histories: u64,
    counts: Counts,
    /// Failures by kind, each with the first seed that has it, the number of seeds, and a text.
    failures: BTreeMap<String, (u64, u64, String)>,
}

/// A failure, and the damage that leads to it.
struct Failure {
    text: String,
    hit: Option<Hit>,
}

fn caught<R>(work: impl FnOnce() -> Result<R, String>) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(format!("panic: {}", text.unwrap_or("?")))
    })
}

fn lives(sessions: &[Session]) -> Result<Life, String> {
    let mut life = Life::new();
    for (number, session) in sessions.iter().enumerate() {
        let done = caught(|| life.session(session));
        done.map_err(|error| format!("session {number}: {error}"))?;
    }
    Ok(life)
}

/// Runs a history and its damages.
fn run(sessions: &[Session], seed: u64, damages: u64, counts: &mut Counts) -> Result<(), Failure> {
    let began = Instant::now();
    let life = lives(sessions).map_err(|text| Failure { text, hit: None })?;
    let lived = began.elapsed();
    counts.living += lived;
    let damaged = run_damages(&life, seed, damages, counts);
    counts.damaging += began.elapsed() - lived;
    damaged
}

fn run_damages(life: &Life, seed: u64, damages: u64, counts: &mut Counts) -> Result<(), Failure> {
    let whole = caught(|| undamaged(life)).map_err(|text| Failure { text, hit: None })?;
    let random = &mut Random::new(!seed);
    for _ in 0..damages {
        let Some(hit) = random_hit(&life.disk, random) else { break };
        let done = caught(|| check(life, &whole, &hit, random, counts));
        done.map_err(|text| Failure { text, hit: Some(hit) })?;
    }
    Ok(())
}

/// Returns the kind of a failure, which is its text without numbers, paths and what follows them.
fn class(text: &str) -> String {
    let text = text
        .split_once(": ")
        .filter(|(head, _)| head.starts_with("session"))
        .map_or(text, |it| it.1);
    let text = text.split(['{', '[']).next().unwrap_or(text);
    let text: String = text.chars().filter(|char| !char.is_ascii_digit()).collect();
    text.chars().take(110).collect()
}

/// Finds a shorter history that fails in the same way.
fn shrink(
    mut sessions: Vec<Session>,
    seed: u64,
    damages: u64,
    text: &str,
) -> (Vec<Session>, Failure) {
    let wanted: String = class(text).chars().take(24).collect();
    let mut runs = 0;
    let mut fails = |sessions: &[Session]| {
        // Threads interleave differently each time, and other files lead to other damages.
        for attempt in 0..3 {
            runs += 1;
            let failed = run(sessions, seed ^ attempt, damages, &mut Counts::default()).err();
            if let Some(failure) =
                failed.filter(|failure| class(&failure.text).starts_with(&wanted))
            {
                return Some(failure);
            }
        }
        None
    };
    let mut found = Failure { text: text.to_owned(), hit: None };
    let mut shrunk = true;
    let mut tried = 0;
    while std::mem::take(&mut shrunk) && tried < SHRINKING {
        let mut at = 0;
        while at < sessions.len() && sessions.len() > 1 {
            let mut shorter = sessions.clone();
            shorter.remove(at);
            tried += 1;
            match fails(&shorter) {
                Some(failure) => (sessions, found, shrunk) = (shorter, failure, true),
                None => at += 1,
            }
        }
        for at in 0..sessions.len() {
            let mut op = 0;
            while op < sessions[at].ops.len() && tried < SHRINKING {
                let mut shorter = sessions.clone();
                shorter[at].ops.remove(op);
                tried += 1;
                match fails(&shorter) {
                    Some(failure) => (sessions, found, shrunk) = (shorter, failure, true),
                    None => op += 1,
                }
            }
            let mut fault = 0;
            while fault < sessions[at].faults.len() && tried < SHRINKING {
                let mut shorter = sessions.clone();
                shorter[at].faults.remove(fault);
                tried += 1;
                match fails(&shorter) {
                    Some(failure) => (sessions, found, shrunk) = (shorter, failure, true),
                    None => fault += 1,
                }
            }
        }
    }
    (sessions, found)
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn no_history_loses_what_was_acknowledged_and_no_damage_passes_in_silence() {
    let began = Instant::now();
    let one = variable("ORDNA_HISTORY_SEED");
    let (least, damages) = (variable("ORDNA_HISTORIES"), variable("ORDNA_DAMAGES"));
    let each = match (least, damages) {
        (Some(histories), Some(damages)) => damages.div_ceil(histories.max(1)),
        _ => DAMAGES,
    };
    let first = variable("ORDNA_HISTORY_FROM").unwrap_or(0);
    let goes_on = |histories: u64| match (one, least) {
        (Some(_), least) => histories < least.unwrap_or(1),
        (None, Some(least)) => histories < least,
        (None, None) => histories < LEAST || began.elapsed() < ordna_testkit::budget(),
    };
    let (begun, all) = (AtomicU64::new(0), Mutex::new(All::default()));
    let work = || {
        let mut counts = Counts::default();
        let mut histories = 0;
        loop {
            let number = begun.fetch_add(1, Ordering::Relaxed);
            if !goes_on(number) {
                break;
            }
            let seed = one.unwrap_or(first + number);
            histories += 1;
            if let Err(failure) = run(&plan(seed), seed, each, &mut counts) {
                let told = match &failure.hit {
                    Some(hit) => format!("{hit:?}: {}", failure.text),
                    None => failure.text.clone(),
                };
                let failures = &mut all.lock().unwrap().failures;
                failures.entry(class(&failure.text)).or_insert((seed, 0, told)).1 += 1;
            }
        }
        let mut all = all.lock().unwrap();
        all.histories += histories;
        all.counts.add(&counts);
    };
    std::thread::scope(|scope| (0..THREADS).for_each(|_| drop(scope.spawn(work))));
    let All { histories, counts, failures } = all.into_inner().unwrap();
    println!("{histories} histories, {counts:?}, {:?}", began.elapsed());
    for (kind, (seed, count, told)) in &failures {
        println!("{count} times, first by seed {seed}: {kind}\n    {told}");
    }
    let Some((seed, _, text)) = failures.into_values().min_by_key(|(seed, ..)| *seed) else {
        return;
    };
    let wanted = run(&plan(seed), seed, each, &mut Counts::default()).err();
    let wanted = wanted.map_or(text, |failure| failure.text);
    let (sessions, failure) = shrink(plan(seed), seed, each, &wanted);
    panic!(
        "seed {seed}, made shorter: {sessions:#?}\n{}{}\n\nTo run it again, 100 times:\n    \
         ORDNA_HISTORY_SEED={seed} ORDNA_HISTORIES=100 ORDNA_DAMAGES={} cargo test -p ordna --test \
         durability -- histories",
        failure.hit.map_or(String::new(), |hit| format!("{hit:?}: ")),
        failure.text,
        100 * each,
    );
}
