//! A child process that opens a store, writes and backs up is killed at random times.
//!
//! The parent keeps the expected state. Each writer of the child owns a range of keys and follows a
//! script that its seed determines. It reports each acknowledged step to the parent through a pipe.
//! So after a kill, each range must be in the state after its last acknowledged step or after the
//! following one.
//!
//! `ORDNA_KILLS` sets the number of kills; `cargo xtask kills 1000` runs many.

use std::collections::BTreeMap;
use std::io::{Read, Write as _};
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use ordna::Write;
use ordna::durability::{BackupOptions, Mode, OpenOptions, SyncPolicy};
use ordna_testkit::random::Random;

use super::steps::{Bytes, compressions, flush};

const WRITERS: u64 = 3;
const KEYS: u64 = 400;
/// Number of records in the log above which the parent backs up the store.
const LONG_LOG: u64 = 10_000;
/// Message of the child that the store is open.
const OPENED: u8 = 254;
/// Message of the child that a backup is complete.
const BACKED_UP: u8 = 255;

type Range = BTreeMap<Vec<u8>, Vec<u8>>;

/// A step of a writer: several writes that belong together, or the removal of a range.
enum Step {
    Writes { group: bool, writes: Vec<(Vec<u8>, Option<Vec<u8>>)> },
    Remove { from: Vec<u8>, to: Vec<u8> },
}

fn key(writer: u64, number: u64) -> Vec<u8> {
    format!("w{writer}:{number:04}").into_bytes()
}

/// Returns the `number`th step of a writer.
fn step(writer: u64, number: u64) -> Step {
    let mut random = Random::new(writer << 40 | number);
    let kind = random.below(20);
    if kind == 0 {
        let from = random.below(KEYS);
        return Step::Remove { from: key(writer, from), to: key(writer, from + 8) };
    }
    let count = if kind < 12 { 1 } else { 2 + random.below(6) };
    let mut write = || {
        let own = key(writer, random.below(KEYS));
        let length = random.below(300) as usize;
        let value = [format!("{number}:").into_bytes(), vec![b'x'; length]].concat();
        (own, (random.below(5) > 0).then_some(value))
    };
    let writes = (0..count).map(|_| write()).collect();
    Step::Writes { group: kind > 15, writes }
}

fn apply(step: &Step, range: &mut Range) {
    match step {
        Step::Writes { writes, .. } => {
            for (key, value) in writes {
                match value {
                    Some(value) => drop(range.insert(key.clone(), value.clone())),
                    None => drop(range.remove(key)),
                }
            }
        }
        Step::Remove { from, to } => range.retain(|key, _| key < from || key >= to),
    }
}

fn run(step: &Step, store: &Bytes) {
    match step {
        Step::Remove { from, to } => {
            store.remove_range((Bound::Included(from), Bound::Excluded(to))).unwrap();
        }
        Step::Writes { group: true, writes } => {
            let work = || {
                for (key, value) in writes {
                    match value {
                        Some(value) => drop(store.insert(key, value).unwrap()),
                        None => drop(store.remove(key)),
                    }
                }
            };
            store.log_group(work).unwrap();
        }
        Step::Writes { group: false, writes } => {
            let write = |(key, value): &'_ (Vec<u8>, Option<Vec<u8>>)| match value {
                Some(value) => drop(store.insert(key, value).unwrap()),
                None => drop(store.remove(key)),
            };
            match writes.as_slice() {
                [single] => write(single),
                writes => {
                    let writes: Vec<Write<'_, [u8], [u8]>> = writes
                        .iter()
                        .map(|(key, value)| match value {
                            Some(value) => Write::put(key.as_slice(), value.as_slice()),
                            None => Write::Remove(key.as_slice()),
                        })
                        .collect();
                    store.write_batch(&writes).unwrap();
                }
            }
        }
    }
}

fn tell(kind: u8, number: u64) {
    let mut message = [kind; 9];
    message[1..].copy_from_slice(&number.to_le_bytes());
    // One call with at most `PIPE_BUF` bytes, so that messages of two threads do not mix. The test
    // harness would capture the output of `print!`.
    std::io::stdout().lock().write_all(&message).unwrap();
    std::io::stdout().lock().flush().unwrap();
}

fn options(seed: u64) -> OpenOptions {
    let sync = if seed.is_multiple_of(3) { SyncPolicy::EverySecond } else { SyncPolicy::Always };
    // A third of the seeds takes checkpoints all the time. Half of them rotate the log.
    let checkpoints = if seed % 3 == 1 { 16 << 10 } else { u64::MAX };
    // Half of the seeds have a tail that is often full.
    let tail = if seed % 4 < 2 { 2 << 10 } else { 1 << 20 };
    OpenOptions::new()
        .sync(sync)
        .checkpoint_after(checkpoints)
        .tail_bytes(tail)
        .segment_bytes(if seed.is_multiple_of(2) { 64 << 10 } else { 1 << 30 })
}

/// Runs the child. Its arguments are in the environment; without them, the test does nothing.
#[test]
#[ignore = "the child of the test below"]
fn child() {
    let Ok(dir) = std::env::var("ORDNA_KILL_DIR") else { return };
    let variable = |name: &str| std::env::var(name).unwrap();
    let seed: u64 = variable("ORDNA_KILL_SEED").parse().unwrap();
    let done: Vec<u64> =
        variable("ORDNA_KILL_STEPS").split(',').map(|steps| steps.parse().unwrap()).collect();
    let store = &Bytes::open(dir, options(seed)).unwrap();
    tell(OPENED, 0);
    thread::scope(|scope| {
        for writer in 0..WRITERS {
            let first = done[writer as usize];
            scope.spawn(move || {
                for number in first.. {
                    run(&step(writer, number), store);
                    if seed.is_multiple_of(3) && !store.durability().unwrap().survives_kill {
                        // What is written to the system outlives the process.
                        flush(store);
                    }
                    tell(writer as u8, number + 1);
                }
            });
        }
        let mut random = Random::new(seed);
        loop {
            thread::sleep(Duration::from_millis(random.below(10)));
            let mode = if random.below(3) == 0 { Mode::Snapshot } else { Mode::Live };
            let all = compressions();
            let compression = all[random.below(all.len() as u64) as usize];
            let backup = BackupOptions::new().workers(2).mode(mode).compression(compression);
            store.backup(&backup).unwrap();
            tell(BACKED_UP, 0);
        }
    });
}

/// Kills a child that continues after `steps`. Returns the total numbers of acknowledged steps,
/// whether the child had opened the store, and how many backups it completed.
fn kill(dir: &Path, seed: u64, steps: &[u64]) -> (Vec<u64>, bool, u64) {
    let numbers: Vec<String> = steps.iter().map(u64::to_string).collect();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["kill::child", "--exact", "--ignored", "--nocapture", "-q"])
        .env("ORDNA_KILL_DIR", dir)
        .env("ORDNA_KILL_SEED", seed.to_string())
        .env("ORDNA_KILL_STEPS", numbers.join(","))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut pipe = child.stdout.take().unwrap();
    let reader = thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).unwrap();
        bytes
    });
    let mut random = Random::new(seed);
    // Some children are killed while they open the store.
    let most = if random.below(4) == 0 { 15 } else { 120 };
    thread::sleep(Duration::from_micros(random.below(most * 1000)));
    // `kill` sends SIGKILL.
    child.kill().unwrap();
    let status = child.wait().unwrap();
    let bytes = reader.join().unwrap();
    // The test harness prints text before the first message.
    let start = bytes.iter().position(|byte| *byte == OPENED).unwrap_or(bytes.len());
    let text = String::from_utf8_lossy(&bytes[..start]);
    assert!(status.code().is_none(), "the child ended by itself: {status}, {text}");
    let (mut steps, mut opened, mut backups) = (steps.to_vec(), false, 0);
    for message in bytes[start..].chunks_exact(9) {
        let number = u64::from_le_bytes(message[1..].try_into().unwrap());
        match message[0] {
            OPENED => opened = true,
            BACKED_UP => backups += 1,
            writer => steps[usize::from(writer)] = number,
        }
    }
    (steps, opened, backups)
}

/// Returns the options of the child that puts. Half of the seeds have a tail that is often full.
fn put_options(seed: u64) -> OpenOptions {
    let tail = if seed.is_multiple_of(2) { 512 } else { 1 << 20 };
    let sync = if seed % 3 == 2 { SyncPolicy::Never } else { SyncPolicy::EverySecond };
    OpenOptions::new().sync(sync).tail_bytes(tail)
}

/// Runs a child that puts from two threads, and reports each put that has returned.
#[test]
#[ignore = "the child of the test below"]
fn putting_child() {
    let Ok(dir) = std::env::var("ORDNA_KILL_DIR") else { return };
    let seed: u64 = std::env::var("ORDNA_KILL_SEED").unwrap().parse().unwrap();
    let store = &Bytes::open(dir, put_options(seed)).unwrap();
    if !store.durability().unwrap().survives_kill {
        // The parent waits for the first message of this kind.
        tell(BACKED_UP, 0);
    }
    tell(OPENED, 0);
    let begin = store.len() as u64;
    thread::scope(|scope| {
        for writer in 0..2 {
            scope.spawn(move || {
                for number in begin.. {
                    store.put(&key(writer, number), &number.to_le_bytes()).unwrap();
                    tell(writer as u8, number + 1);
                }
            });
        }
    });
}

#[test]
fn puts_outlive_the_process() {
    const KILLS: u64 = 30;
    let dir: PathBuf = std::env::temp_dir().join(format!("ordna-kill-puts-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    let (mut all, mut from_tail) = (0, 0);
    for seed in 0..KILLS {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["kill::putting_child", "--exact", "--ignored", "--nocapture", "-q"])
            .env("ORDNA_KILL_DIR", &dir)
            .env("ORDNA_KILL_SEED", seed.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut pipe = child.stdout.take().unwrap();
        let mut bytes = Vec::new();
        let wanted = 9 * (50 + 97 * (seed % 7)) as usize;
        // Kills the child in the middle of its puts, after this number of reports.
        let mut piece = [0; 9];
        while bytes.len() < wanted && pipe.read_exact(&mut piece[..1]).is_ok() {
            bytes.push(piece[0]);
        }
        child.kill().unwrap();
        child.wait().unwrap();
        pipe.read_to_end(&mut bytes).unwrap();
        let start = bytes.iter().position(|byte| *byte >= OPENED).unwrap();
        if bytes[start] == BACKED_UP {
            println!("this file system has no files that outlive the process in memory");
            break;
        }
        let store = Bytes::open(&dir, put_options(seed)).unwrap();
        for message in bytes[start + 9..].chunks_exact(9) {
            let number = u64::from_le_bytes(message[1..].try_into().unwrap()) - 1;
            let key = key(message[0].into(), number);
            assert!(store.get(&key).is_some(), "kill {seed}: lost put {number}");
            all += 1;
        }
        from_tail += store.durability().unwrap().recovery.log.tail;
    }
    println!("{all} puts acknowledged, {from_tail} records read from the tail");
    std::fs::remove_dir_all(&dir).unwrap();
}

fn range_of(store: &Bytes, writer: u64) -> Range {
    store.prefix(format!("w{writer}:").as_bytes()).collect()
}

#[test]
fn nothing_acknowledged_is_lost_when_the_process_is_killed() {
    let kills: u64 =
        std::env::var("ORDNA_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(15);
    let dir: PathBuf = std::env::temp_dir().join(format!("ordna-kill-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    let mut steps = vec![0; WRITERS as usize];
    let mut ranges = vec![Range::new(); WRITERS as usize];
    let (mut unacknowledged, mut torn, mut while_opening, mut backups, mut replayed) =
        (0_u64, 0, 0, 0, 0);
    for seed in 0.. {
        // On a busy machine, most kills come before the first backup.
        if seed >= kills && (backups > 0 || seed >= 8 * kills) {
            break;
        }
        let (told, opened, finished) = kill(&dir, seed, &steps);
        while_opening += u64::from(!opened);
        backups += finished;
        let store = Bytes::open(&dir, options(seed)).unwrap();
        for writer in 0..WRITERS {
            let at = writer as usize;
            let found = range_of(&store, writer);
            for number in steps[at]..told[at] {
                apply(&step(writer, number), &mut ranges[at]);
            }
            steps[at] = told[at];
            if found != ranges[at] {
                // The step in progress may be present as a whole.
                apply(&step(writer, told[at]), &mut ranges[at]);
                steps[at] += 1;
                unacknowledged += 1;
                assert!(
                    found == ranges[at],
                    "kill {seed}: writer {writer} acknowledged {} steps, and finds another state",
                    told[at]
                );
            }
        }
        let recovery = store.durability().unwrap().recovery;
        torn += recovery.log.cuts.len();
        replayed += recovery.log.records;
        if recovery.log.records > LONG_LOG {
            // Otherwise the openings would take longer and longer, and the children would be killed
            // in them.
            store.backup(&BackupOptions::new()).unwrap();
        }
        drop(store);
    }
    let total: u64 = steps.iter().sum();
    println!(
        "{kills} kills, {while_opening} of them while opening; {total} steps acknowledged or found, \
         {unacknowledged} found unacknowledged; {backups} backups finished; {replayed} records \
         replayed; {torn} torn tails cut"
    );
    assert!(total > 0 && backups > 0);
    std::fs::remove_dir_all(&dir).unwrap();
}
