//! Random plans of histories.

use ordna::durability::{Mode, SyncPolicy};
use ordna_testkit::random::Random;

use super::super::disk::Fault;

/// Number of keys that most operations choose from.
const KEYS: u64 = 12;
/// Number of keys of [`Op::Fill`]: more than fit into a leaf.
pub const FILL: u64 = 150;

/// An operation. The number of a write makes its value unlike all others.
#[derive(Debug, Clone, PartialEq)]
pub enum Op {
    Put(String, u64, Option<u64>),
    Remove(String),
    Expire(String, Option<u64>),
    Append(String, u64),
    /// Writes at a position.
    Splice(String, usize, u64),
    Batch(Vec<(String, Option<u64>)>),
    /// Writes that are one group of the log, as those of `MULTI`.
    Group(Vec<(String, Option<u64>)>),
    Fill(u64),
    RemoveRange(String, String),
    /// As `FLUSHALL`: a successor replaces the store.
    Flush,
    /// As `SAVE`.
    Backup(Mode, usize),
    /// As `BGSAVE`: the handle is cloned now, and the thread stops before its nth file operation.
    BeginBackup(Mode, usize, u64),
    /// Waits for the backup in the background.
    EndBackup,
    Sync,
    /// Time passes.
    Tick(u64),
    /// The disk has room for so many bytes from now on.
    Full(usize),
    Room,
    /// Time for a log that has failed to work again.
    Heal,
}

/// How a session ends.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum End {
    /// In order.
    Close,
    /// The process is killed.
    Kill,
    /// The power fails; the seed decides what is lost.
    PowerFailure(u64),
    /// In order; then the power fails.
    CloseAndPowerFailure(u64),
}

/// The time from an opening to an end.
#[derive(Debug, Clone)]
pub struct Session {
    pub sync: SyncPolicy,
    pub segment_bytes: u64,
    /// Bytes that are kept for a full disk.
    pub reserve: u64,
    /// The operation on files, counted from the opening, that goes wrong.
    pub fault: Option<(u64, Fault)>,
    pub ops: Vec<Op>,
    pub end: End,
}

fn key(random: &mut Random) -> String {
    match random.below(40) {
        0 => String::new(),
        1 => format!("f{:04}", random.below(FILL)),
        _ => format!("k{:02}", random.below(KEYS)),
    }
}

fn writes(random: &mut Random, number: &mut u64) -> Vec<(String, Option<u64>)> {
    let count = 1 + random.below(5);
    let mut write = || {
        *number += 1;
        (key(random), (random.below(4) > 0).then_some(*number))
    };
    (0..count).map(|_| write()).collect()
}

fn mode(random: &mut Random) -> Mode {
    if random.below(3) == 0 { Mode::Snapshot } else { Mode::Live }
}

fn op(random: &mut Random, number: &mut u64, now: u64) -> Op {
    *number += 1;
    let deadline = |random: &mut Random| (random.below(3) == 0).then(|| now + random.below(3000));
    match random.below(100) {
        0..25 => Op::Put(key(random), *number, deadline(random)),
        25..31 => Op::Remove(key(random)),
        31..35 => Op::Expire(key(random), deadline(random)),
        35..39 => Op::Append(key(random), *number),
        39..42 => Op::Splice(key(random), random.below(40) as usize, *number),
        42..49 => Op::Batch(writes(random, number)),
        49..55 => Op::Group(writes(random, number)),
        55..57 => Op::Fill(*number),
        57..62 => {
            let (from, to) = (random.below(KEYS), random.below(KEYS));
            Op::RemoveRange(format!("k{from:02}"), format!("k{:02}", from.max(to)))
        }
        62..68 => Op::Flush,
        68..72 => Op::Backup(mode(random), 1 + random.below(3) as usize),
        72..80 => {
            let stop = if random.below(3) == 0 { 0 } else { random.below(40) };
            Op::BeginBackup(mode(random), 1 + random.below(3) as usize, stop)
        }
        80..86 => Op::EndBackup,
        86..94 => Op::Sync,
        94..96 => Op::Tick(random.below(2000)),
        96..98 => Op::Full(random.below(1500) as usize),
        _ if random.below(2) == 0 => Op::Room,
        _ => Op::Heal,
    }
}

/// The plan of a seed.
pub fn plan(seed: u64) -> Vec<Session> {
    let random = &mut Random::new(seed);
    let (mut number, mut now) = (0, 1000);
    let mut session = |random: &mut Random| {
        let sync = match random.below(10) {
            0..5 => SyncPolicy::Always,
            5..8 => SyncPolicy::EverySecond,
            _ => SyncPolicy::Never,
        };
        let segment_bytes = [1, 400, 1 << 30, 1 << 30][random.below(4) as usize];
        let reserve = if random.below(3) == 0 { 1000 } else { 0 };
        let fault = (random.below(3) == 0).then(|| {
            let fault = if random.below(3) == 0 { Fault::Fails } else { Fault::PowerCut };
            // Some hit the opening.
            let most = if random.below(2) == 0 { 16 } else { 100 };
            (1 + random.below(most), fault)
        });
        let count = if random.below(4) == 0 { 0 } else { 1 + random.below(14) };
        let mut ops = Vec::new();
        for _ in 0..count {
            let op = op(random, &mut number, now);
            if let Op::Tick(by) = op {
                now += by;
            }
            ops.push(op);
        }
        if matches!(fault, Some((_, Fault::Fails))) && random.below(3) == 0 {
            ops.push(Op::Heal);
            ops.extend((0..3).map(|_| op(random, &mut number, now)));
        }
        let end = match random.below(20) {
            0..9 => End::Kill,
            9..16 => End::PowerFailure(random.next_u64()),
            16..19 => End::Close,
            _ => End::CloseAndPowerFailure(random.next_u64()),
        };
        Session { sync, segment_bytes, reserve, fault, ops, end }
    };
    let count = 1 + random.below(5);
    (0..count).map(|_| session(random)).collect()
}
