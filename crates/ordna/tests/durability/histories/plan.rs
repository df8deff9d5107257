//! Random plans of histories.

use ordna::durability::{Mode, SyncPolicy};
use ordna_testkit::random::Random;

use super::super::disk::Fault;

/// Number of keys among which most operations choose.
const KEYS: u64 = 12;
/// Number of keys of [`Op::Fill`], more than fit into a leaf.
pub const FILL: u64 = 150;
/// Points of the code at which the log's thread may be held.
pub const POINTS: [&str; 3] = ["log.run.before_drain", "log.sync.begun", "log.sync.targeted"];

/// An operation. The number of a write makes its value unique.
#[derive(Debug, Clone, PartialEq)]
pub enum Op {
    Put(String, u64, Option<u64>),
    Remove(String),
    Expire(String, Option<u64>),
    Append(String, u64),
    /// Writes bytes at a position of a value.
    Splice(String, usize, u64),
    Batch(Vec<(String, Option<u64>)>),
    /// Operations that form one group of the log, like those of `MULTI`: writes, flushes, and
    /// operations that concern the disk.
    Group(Vec<Op>),
    /// A write without a wait.
    Later(Box<Op>),
    /// A write with a wait until it is written, but not until it is durable.
    Written(Box<Op>),
    Fill(u64),
    RemoveRange(String, String),
    /// Replaces the store by a successor, like `FLUSHALL`.
    Flush,
    /// Backs up the store, like `SAVE`.
    Backup(Mode, usize),
    /// Begins a backup, like `BGSAVE`: the handle is cloned now, and the thread stops before its
    /// nth file operation.
    BeginBackup(Mode, usize, u64),
    /// Waits for the backup in the background.
    EndBackup,
    Sync,
    /// Advances the clock.
    Tick(u64),
    /// Limits the free space of the disk to this many bytes.
    Full(usize),
    /// Limits the free space for a number of file operations.
    FullFor(usize, u64),
    Room,
    /// Makes the nth file operation of a kind from now on fail.
    Fail(&'static str, u64),
    /// Makes the nth file operation after the next one of a kind fail.
    FailAfter(&'static str, u64),
    /// Cuts the power at the nth file operation.
    PowerCut(u64),
    /// Stops the log's thread before its nth file operation from now on, for a short time.
    PauseLog(u64),
    /// Stops the log's thread at this point of the code only, for a short time.
    HoldLog(&'static str),
    /// Lets the log's thread continue.
    ReleaseLog,
    /// Gives the log's thread this number of microseconds.
    Wait(u64),
    /// Gives a failed log time to recover.
    Heal,
    /// Ends all faults. If the log does not recover by itself, a backup must succeed, and the log
    /// must work after it.
    Recover,
}

/// The end of a session.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum End {
    /// The store is closed.
    Close,
    /// The process is killed.
    Kill,
    /// The power fails; the seed decides what is lost.
    PowerFailure(u64),
    /// The store is closed, then the power fails.
    CloseAndPowerFailure(u64),
}

/// A session: the time from an opening to an end.
#[derive(Debug, Clone)]
pub struct Session {
    pub sync: SyncPolicy,
    pub segment_bytes: u64,
    /// Size in bytes of the reserved disk space.
    pub reserve: u64,
    /// Whether writes themselves wait for the log. Otherwise the caller does, as in the server.
    pub waits: bool,
    /// File operations, counted from the opening, with their faults.
    pub faults: Vec<(u64, Fault)>,
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

fn group(random: &mut Random, number: &mut u64) -> Op {
    let op = |(key, number)| match number {
        Some(number) => Op::Put(key, number, None),
        None => Op::Remove(key),
    };
    let mut ops: Vec<Op> = writes(random, number).into_iter().map(op).collect();
    if random.below(4) == 0 {
        ops.insert(random.below(ops.len() as u64 + 1) as usize, Op::Flush);
    }
    Op::Group(ops)
}

/// Returns a write, a backup, or an advance of the clock.
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
        49..55 => group(random, number),
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

fn put(random: &mut Random, number: &mut u64) -> Op {
    *number += 1;
    Op::Put(key(random), *number, None)
}

/// Returns a fault of the disk, or an operation that concerns the log's thread.
fn trouble(random: &mut Random) -> Op {
    match random.below(20) {
        0..3 => Op::Full(random.below(400) as usize),
        3..5 => Op::FullFor(random.below(300) as usize, 1 + random.below(12)),
        5..8 => Op::Room,
        8..11 => {
            let kinds =
                ["write", "write", "sync", "sync", "create", "rename", "sync_dir", "remove"];
            let kind = kinds[random.below(kinds.len() as u64) as usize];
            Op::Fail(kind, 1 + random.below(4))
        }
        11 => Op::FailAfter("rename", 1 + random.below(3)),
        12..15 => Op::PauseLog(random.below(10)),
        15 | 16 => Op::HoldLog(POINTS[random.below(3) as usize]),
        17 => Op::ReleaseLog,
        _ => Op::Wait(random.below(3000)),
    }
}

/// Returns a write with a random kind of wait.
fn some_put(random: &mut Random, number: &mut u64) -> Op {
    let put = put(random, number);
    match random.below(4) {
        0 | 1 => put,
        2 => Op::Later(Box::new(put)),
        _ => Op::Written(Box::new(put)),
    }
}

/// Returns operations during which the log fails, usually because the disk is full, and the disk
/// then gets space again, with other operations in between. Each operation may be missing or
/// replaced by another one.
fn episode(random: &mut Random, number: &mut u64, now: u64) -> Vec<Op> {
    let later = |random: &mut Random, number: &mut u64| Op::Later(Box::new(put(random, number)));
    let full = Op::Full([0, 0, 40, 150][random.below(4) as usize]);
    let mut ops = Vec::new();
    let in_group = random.below(4) == 0;
    match random.below(6) {
        // A write by the log's thread fails.
        0 | 1 => {
            ops.push(Op::HoldLog(POINTS[random.below(3) as usize]));
            ops.push(later(random, number));
            if in_group {
                let mut inner = vec![full, Op::ReleaseLog, Op::Wait(2000)];
                inner.push(Op::PauseLog(random.below(9)));
                inner.extend([Op::Room, Op::Wait(4000), Op::Flush, put(random, number)]);
                for _ in 0..random.below(3) {
                    let at = random.below(inner.len() as u64) as usize;
                    inner[at] =
                        if random.below(2) == 0 { trouble(random) } else { put(random, number) };
                }
                ops.push(Op::Group(inner));
            } else {
                ops.extend([full, Op::ReleaseLog, Op::Wait(1500)]);
            }
        }
        // A write fails that a sync has started.
        2 => {
            ops.extend([Op::HoldLog("log.sync.begun"), later(random, number)]);
            ops.extend([Op::Wait(2500), Op::Written(Box::new(put(random, number)))]);
            ops.extend([Op::HoldLog("log.sync.targeted"), Op::Wait(1000), full]);
            ops.extend([later(random, number), Op::ReleaseLog, Op::Wait(1000)]);
        }
        3 => {
            let kind = ["write", "sync", "create"][random.below(3) as usize];
            ops.extend([Op::Fail(kind, 1 + random.below(3)), some_put(random, number)]);
        }
        _ => ops.extend([full, put(random, number)]),
    }
    if random.below(2) == 0 {
        ops.push(trouble(random));
    }
    match random.below(6) {
        0 | 1 => ops.push(Op::FailAfter("rename", 1 + random.below(2))),
        2 => ops.push(Op::PowerCut(1 + random.below(12))),
        _ => {}
    }
    ops.push(match random.below(3) {
        0 => Op::FullFor(0, 1 + random.below(20)),
        _ => Op::Room,
    });
    let keep = 1 + random.below(3) as usize;
    match random.below(6) {
        0 | 1 => ops.push(Op::Backup(mode(random), keep)),
        2 | 3 => {
            ops.push(Op::BeginBackup(mode(random), keep, random.below(40)));
            ops.extend((0..random.below(3)).map(|_| some_put(random, number)));
        }
        4 => ops.push(op(random, number, now)),
        _ => {}
    }
    ops.push([Op::Heal, Op::Wait(3000), Op::Room][random.below(3) as usize].clone());
    ops.extend((0..random.below(4)).map(|_| some_put(random, number)));
    for _ in 0..random.below(3) {
        let at = random.below(ops.len() as u64) as usize;
        match random.below(4) {
            0 => drop(ops.remove(at)),
            1 => ops[at] = op(random, number, now),
            _ => ops.insert(at, trouble(random)),
        }
    }
    ops
}

/// Returns the operations of a session during which the disk fails repeatedly.
fn troubled(random: &mut Random, number: &mut u64, now: u64) -> Vec<Op> {
    match random.below(12) {
        0..4 => episode(random, number, now),
        4 | 5 => vec![some_put(random, number)],
        6 => vec![trouble(random)],
        7 => vec![Op::Heal],
        8 => vec![Op::EndBackup],
        9 if random.below(3) == 0 => vec![Op::Recover],
        _ => vec![op(random, number, now)],
    }
}

/// Returns the plan for a seed.
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
        let is_troubled = random.below(2) == 0;
        let mut faults = Vec::new();
        if random.below(3) == 0 {
            let fault = if random.below(3) == 0 { Fault::Fails } else { Fault::PowerCut };
            // Some faults hit the opening.
            let most = if random.below(2) == 0 { 16 } else { 100 };
            faults.push((1 + random.below(most), fault));
        }
        if is_troubled {
            let count = random.below(3);
            faults.extend((0..count).map(|_| (8 + random.below(120), Fault::Fails)));
        }
        let most = if is_troubled { 8 } else { 14 };
        let count = if random.below(4) == 0 { 0 } else { 1 + random.below(most) };
        let mut ops = Vec::new();
        for _ in 0..count {
            let more = match is_troubled {
                true => troubled(random, &mut number, now),
                false => vec![op(random, &mut number, now)],
            };
            for op in more {
                if let Op::Tick(by) = op {
                    now += by;
                }
                ops.push(op);
            }
        }
        if !faults.is_empty() && random.below(3) == 0 {
            ops.push(Op::Heal);
            ops.extend((0..3).map(|_| op(random, &mut number, now)));
        }
        if random.below(8) == 0 {
            ops.push(Op::Recover);
            ops.extend((0..3).map(|_| op(random, &mut number, now)));
        }
        let end = match random.below(20) {
            0..9 => End::Kill,
            9..16 => End::PowerFailure(random.next_u64()),
            16..19 => End::Close,
            _ => End::CloseAndPowerFailure(random.next_u64()),
        };
        let waits = random.below(2) == 0;
        Session { sync, segment_bytes, reserve, waits, faults, ops, end }
    };
    let count = 1 + random.below(5);
    (0..count).map(|_| session(random)).collect()
}
