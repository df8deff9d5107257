//! Many threads at once: every snapshot is a cut and never changes.

use std::ops::{Bound, ControlFlow};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ordna_base::{Direction, OrderedIndex};
use ordna_papers::Nitro;
use ordna_papers::nitro::{Order, Snapshot};
use ordna_testkit::random::Random;

const WRITERS: u64 = 3;
/// Keys of each writer.
const KEYS: u64 = 400;

/// Ends the other threads when this one ends, by a panic too.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Each writer goes through the rounds 1, 2, 3 …; in round r it writes r to its key number r mod
/// KEYS, or removes it if r is a multiple of 3. After r rounds the state of its keys is known.
fn value_after(rounds: u64, key: u64) -> Option<u64> {
    // The last round up to `rounds` that was about this key.
    let behind = (rounds + KEYS - key) % KEYS;
    let last = rounds.checked_sub(behind).filter(|last| *last > 0)?;
    (!last.is_multiple_of(3)).then_some(last)
}

fn key_of(writer: u64, key: u64) -> u64 {
    key * WRITERS + writer
}

fn write_round(index: &Nitro<u64, u64>, writer: u64, round: u64) {
    let key = key_of(writer, round % KEYS);
    if round.is_multiple_of(3) {
        index.remove(&key);
    } else {
        index.insert(&key, &round).unwrap();
    }
}

/// The state of each writer's keys must be that after some number of rounds, between those that had
/// ended before the snapshot and those that had begun after it.
fn check(snapshot: &Snapshot<u64, u64>, ended: &[u64], begun: &[u64], upwards: bool) -> Vec<u64> {
    let mut content = vec![vec![None; KEYS as usize]; WRITERS as usize];
    let direction = if upwards { Direction::Ascending } else { Direction::Descending };
    let mut count = 0;
    snapshot.visit(Bound::Unbounded, Bound::Unbounded, direction, |key, value| {
        let place = &mut content[(key % WRITERS) as usize][(key / WRITERS) as usize];
        assert!(place.is_none(), "key {key} twice");
        *place = Some(*value);
        count += 1;
        ControlFlow::Continue(())
    });
    assert_eq!(snapshot.len(), count, "the number of items");
    let mut cut = Vec::new();
    for writer in 0..WRITERS as usize {
        let right = |rounds: u64| {
            (0..KEYS).all(|key| content[writer][key as usize] == value_after(rounds, key))
        };
        let (low, high) = (ended[writer], begun[writer]);
        let Some(rounds) = (low..=high).find(|rounds| right(*rounds)) else {
            panic!("writer {writer}: the state after no number of rounds from {low} to {high}")
        };
        cut.push(rounds);
    }
    cut
}

fn cuts(collectors: usize, order: Order) {
    let index: Nitro<u64, u64> = Nitro::with(collectors, order);
    let end = Instant::now() + ordna_testkit::budget();
    let begun: Vec<AtomicU64> = (0..WRITERS).map(|_| AtomicU64::new(0)).collect();
    let ended: Vec<AtomicU64> = (0..WRITERS).map(|_| AtomicU64::new(0)).collect();
    let done = AtomicBool::new(false);
    let look = |counters: &[AtomicU64]| -> Vec<u64> {
        counters.iter().map(|counter| counter.load(Ordering::SeqCst)).collect()
    };
    std::thread::scope(|scope| {
        let _ends = Ends(&done);
        for writer in 0..WRITERS {
            let (index, begun, ended, done) = (&index, &begun, &ended, &done);
            scope.spawn(move || {
                let mut round = 0;
                while !done.load(Ordering::Relaxed) {
                    round += 1;
                    begun[writer as usize].store(round, Ordering::SeqCst);
                    write_round(index, writer, round);
                    ended[writer as usize].store(round, Ordering::SeqCst);
                }
            });
        }
        let mut random = Random::new(3);
        let mut live: Vec<(Snapshot<u64, u64>, Vec<u64>)> = Vec::new();
        let mut snapshots = 0;
        // Writers may have to wait for their turn on a processor.
        let give_up = end + Duration::from_secs(20);
        let is_idle = || index.statistics().collected == 0 && Instant::now() < give_up;
        while Instant::now() < end || snapshots < 12 || is_idle() {
            let before = look(&ended);
            let snapshot = index.snapshot();
            let after = look(&begun);
            let cut = check(&snapshot, &before, &after, snapshots % 2 == 0);
            // Cuts are ordered as the snapshots are.
            if let Some((_, last)) = live.last() {
                assert!(last.iter().zip(&cut).all(|(a, b)| a <= b), "{last:?}, then {cut:?}");
            }
            live.push((snapshot, cut));
            snapshots += 1;
            if live.len() > 6 {
                let (snapshot, cut) = live.remove(random.below(6) as usize);
                assert_eq!(check(&snapshot, &cut, &cut, snapshots % 2 == 1), cut);
            }
        }
        for (snapshot, cut) in &live {
            assert_eq!(check(snapshot, cut, cut, true), *cut);
        }
    });
    index.collect_garbage();
    let audit = index.validate().unwrap();
    assert_eq!(audit.nodes, audit.entries, "no snapshot lives");
    assert!(index.statistics().collected > 0, "rounds begun: {:?}", look(&begun));
}

#[test]
fn every_snapshot_is_a_cut() {
    cuts(2, Order::LiveSet);
}

#[test]
fn every_snapshot_is_a_cut_when_callers_collect() {
    cuts(0, Order::LiveSet);
}

#[test]
fn every_snapshot_is_a_cut_in_the_order_of_terms() {
    cuts(1, Order::Terms);
}

/// Nanoseconds that this thread has run, by the clock that every POSIX system has.
#[cfg(unix)]
#[expect(unsafe_code, reason = "a call of the system")]
fn processor_time() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes to `time` and nothing else.
    let told = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    assert_eq!(told, 0, "{}", std::io::Error::last_os_error());
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The thread that ends a snapshot leaves the versions it kept to the collectors, unsorted.
#[cfg(unix)]
#[test]
fn the_end_of_a_snapshot_is_cheap_for_its_thread() {
    const KEYS: u64 = 200_000;
    fn cost(work: impl FnOnce()) -> u64 {
        let before = processor_time();
        work();
        processor_time() - before
    }
    let key = |n: u64| n.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let index: Nitro<u64, u64> = Nitro::with(1, Order::LiveSet);
    let costs = (0..3).map(|round| {
        (0..KEYS).for_each(|n| drop(index.insert(&key(n), &round)));
        let snapshot = index.snapshot();
        (0..KEYS).for_each(|n| drop(index.insert(&key(n), &round)));
        index.collect_garbage();
        assert_eq!(index.statistics().dead as u64, KEYS);
        let cost = cost(|| drop(snapshot));
        index.collect_garbage();
        cost
    });
    let least = costs.min().unwrap();
    assert_eq!(index.validate().unwrap().nodes as u64, KEYS);
    let mut sorted: Vec<u64> = (0..KEYS).map(key).collect();
    let sorting = cost(|| sorted.sort_unstable());
    assert!(least < sorting / 4, "{least} ns, where sorting takes {sorting} ns");
}
