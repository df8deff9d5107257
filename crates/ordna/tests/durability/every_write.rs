//! Every operation that changes a store is logged as it was applied, even if it was refused.
//!
//! Random operations of all kinds run on a store with a small memory limit, so that some are
//! refused completely and others (`insert_many`) partially. After every few operations, the disk is
//! copied as a crash of the process would leave it, and a store opened from the copy must have the
//! same entries.

use std::ops::Bound;

use ordna::durability::{BackupOptions, Mode, SyncPolicy};
use ordna::{Change, Direction, Options, Put, Write};
use ordna_testkit::random::Random;

use super::disk::Model;
use super::steps::{Bytes, DIR, flush, options, state_of};

/// Memory limit in bytes, which is less than the size of all values.
const LIMIT: usize = 8 << 10;

fn limited() -> Options {
    Options::new().clock(|| 1000).background_collector(false).memory_limit(LIMIT)
}

fn key(random: &mut Random) -> Vec<u8> {
    format!("key {:02}", random.below(24)).into_bytes()
}

fn value(random: &mut Random) -> Vec<u8> {
    let len = if random.below(4) == 0 { 2000 } else { random.below(300) as usize };
    vec![random.below(256) as u8; len]
}

fn deadline(random: &mut Random) -> Option<u64> {
    (random.below(2) == 0).then(|| 2000 + random.below(7000))
}

/// Runs one operation. Returns whether a part of it was refused.
fn operate(store: &Bytes, random: &mut Random) -> (&'static str, bool) {
    let (a, b, c) = (key(random), key(random), key(random));
    let (v, w) = (value(random), value(random));
    let until = deadline(random);
    match random.below(17) {
        0 => ("insert", store.insert(&a, &v).is_err()),
        1 => ("insert_if_absent", store.insert_if_absent(&a, &v).is_err()),
        2 => ("remove", store.remove(&a).is_err()),
        3 => {
            let current = store.get(&a);
            let expected = current.as_deref().filter(|_| random.below(5) > 0);
            let new = (random.below(3) > 0).then_some(v.as_slice());
            ("compare_exchange", store.compare_exchange(&a, expected, new).is_err())
        }
        4 => ("insert_until", store.insert_until(&a, &v, 2000 + random.below(7000)).is_err()),
        5 => ("set_expiry", store.set_expiry(&a, until).is_err()),
        6 => {
            let change = random.below(3);
            let done = store.modify_expiry(&a, |_| match change {
                0 => Change::Put(until),
                1 => Change::Remove,
                _ => Change::Keep,
            });
            ("modify_expiry", done.is_err())
        }
        7 => {
            let change = random.below(3);
            let done = store.modify_entry(&a, |_| match change {
                0 => Change::Put(Put { value: v.as_slice(), expires_at: until }),
                1 => Change::Remove,
                _ => Change::Keep,
            });
            ("modify_entry", done.is_err())
        }
        8 => {
            let writes: [Write<'_, [u8], [u8]>; 3] =
                [Write::put(&a, &v), Write::Remove(&b), Write::put(&c, &w)];
            ("write_batch", store.write_batch(&writes).is_err())
        }
        9 => {
            let pairs: Vec<(Vec<u8>, Vec<u8>)> =
                (0..1 + random.below(40)).map(|_| (key(random), value(random))).collect();
            ("insert_many", store.insert_many(&pairs).is_err())
        }
        10 => ("remove_many", store.remove_many(&[a, b, c]).is_err()),
        11 => {
            let bounds = (Bound::Included(&a), Bound::Excluded(&b));
            ("remove_range", store.remove_range(bounds).is_err())
        }
        12 => ("append", store.append(&a, &v).is_err()),
        13 => {
            let at = random.below(400) as usize;
            ("splice", store.splice(&a, |_| Some((at, &v))).is_err())
        }
        14 => {
            let refused = store.log_group(|| {
                let refused = store.insert(&a, &v).is_err();
                let refused = store.remove(&b).is_err() || refused;
                store.append(&c, &w).is_err() || refused
            });
            ("log_group", refused.unwrap())
        }
        15 => {
            let done = store.update(&a, |old| [old, b"+"].concat());
            ("update", done.is_err())
        }
        _ => {
            let mode = if random.below(2) == 0 { Mode::Live } else { Mode::Snapshot };
            store.backup(&BackupOptions::new().workers(1).mode(mode)).unwrap();
            ("backup", false)
        }
    }
}

#[test]
fn memory_and_log_agree_after_every_operation() {
    let mut refusals = 0;
    for seed in 0..6 {
        let mut random = Random::new(seed);
        let disk = Model::new();
        let open = options(&disk, SyncPolicy::Never).store(limited());
        let mut store = Bytes::open(DIR, open).unwrap();
        let mut snapshot = None;
        for round in 0..120 {
            let mut done = Vec::new();
            for _ in 0..1 + random.below(5) {
                let (operation, refused) = operate(&store, &mut random);
                refusals += usize::from(refused);
                done.push(operation);
            }
            match random.below(30) {
                0 => {
                    snapshot = None;
                    store = store.successor(limited()).unwrap();
                    done.push("successor");
                }
                1..4 => snapshot = Some(store.snapshot()),
                4..8 => snapshot = None,
                _ => {}
            }
            flush(&store);
            let copy = disk.after_exit();
            let again = Bytes::open(DIR, options(&copy, SyncPolicy::Never)).unwrap();
            assert!(
                state_of(&again) == state_of(&store),
                "seed {seed}, round {round}: the log differs from memory after {done:?}"
            );
        }
        if let Some(snapshot) = snapshot {
            snapshot.visit(Bound::Unbounded, Bound::Unbounded, Direction::Ascending, |_, _| {
                std::ops::ControlFlow::Continue(())
            });
        }
        store.check_invariants().unwrap();
    }
    assert!(refusals > 100, "only {refusals} operations were refused: the limit is never met");
}
