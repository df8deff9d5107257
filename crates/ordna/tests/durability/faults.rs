//! Each operation on the disk fails once, claims success once, and is the last one once.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use ordna::durability::{BackupOptions, Progress, SyncPolicy, verify};
#[cfg(debug_assertions)]
use ordna_base::sync::schedule::Schedule;
use ordna_testkit::random::Random;

use super::disk::{Fault, Model};
use super::steps::{Bytes, DIR, check, flush, live, live_with, options, script, state_of};

/// Returns the number of operations of a run without faults.
fn operations(sync: SyncPolicy) -> u64 {
    let disk = Model::new();
    let left = live(&disk, sync, &script()).unwrap();
    assert!(left.errors.is_empty(), "{:?}", left.errors);
    let last = left.allowed.last().unwrap().clone();
    let recovery = check(&disk.after_exit(), &left, "no fault");
    assert_eq!(left.allowed.last(), Some(&last));
    assert!(recovery.backup.is_some() && recovery.log.closed && recovery.log.cuts.is_empty());
    disk.operations()
}

#[test]
fn each_operation_fails_once_and_nothing_acknowledged_is_lost() {
    let mut hits = 0;
    let mut healed = 0;
    for number in 1..=operations(SyncPolicy::Always) {
        let disk = Model::new().fault(number, Fault::Fails);
        let Ok(left) = live(&disk, SyncPolicy::Always, &script()) else {
            // The opening has failed with an error, and no write was acknowledged.
            assert!(disk.hit().is_some());
            hits += 1;
            continue;
        };
        let Some(hit) = disk.hit() else { continue };
        hits += 1;
        healed += usize::from(left.errors.len() > 1 && left.allowed.len() == 1);
        check(&disk.after_exit(), &left, &format!("{hit}, then exit"));
        for seed in 0..4 {
            let after = disk.after_power_cut(&mut Random::new(seed));
            check(&after, &left, &format!("{hit}, then a power cut {seed}"));
        }
    }
    assert!(hits > 50, "{hits} faults");
    assert!(healed > 0, "a backup heals a failed log");
}

/// Segments have one block each, so the log's thread continually begins new ones.
#[test]
fn each_operation_fails_once_while_segments_rotate() {
    let mut most = 0;
    for (fault, cuts) in [(Fault::Fails, 2), (Fault::PowerCut, 2), (Fault::Lies, 0)] {
        // The other numbers reach the same places, because threads never interleave in the same way
        // twice.
        for number in (1..).step_by(5) {
            let disk = Model::new().fault(number, fault);
            let opened = options(&disk, SyncPolicy::Always).segment_bytes(1);
            let left = live_with(opened, SyncPolicy::Always, &script());
            let Some(hit) = disk.hit() else {
                if disk.operations() < number {
                    break;
                }
                continue;
            };
            let Ok(left) = left else { continue };
            if fault != Fault::PowerCut {
                let recovery = check(&disk.after_exit(), &left, &format!("{hit}, then exit"));
                most = most.max(recovery.log.segments);
            }
            for seed in 0..cuts {
                let after = disk.after_power_cut(&mut Random::new(number << 8 | seed));
                check(&after, &left, &format!("{hit}, then a power cut {seed}"));
            }
        }
    }
    assert!(most > 2, "{most} segments: nothing rotates");
}

/// Synced records may be in segments that the log has left, or in one that it has not yet begun.
#[test]
fn a_sync_covers_the_segments_before_the_current_one() {
    for round in 0..120 {
        let disk = Model::new();
        let store = Bytes::open(DIR, options(&disk, SyncPolicy::Never).segment_bytes(1)).unwrap();
        for key in [b"a", b"b", b"c"] {
            store.insert(key, b"1").unwrap();
            if round % 2 == 0 {
                flush(&store);
            }
            if round % 3 == 0 {
                // Gives the log's thread time to begin a segment.
                std::thread::sleep(Duration::from_micros(300));
            }
        }
        store.sync_log().unwrap();
        for seed in 0..4 {
            let after = disk.after_power_cut(&mut Random::new(round << 8 | seed));
            let after = Bytes::open(DIR, options(&after, SyncPolicy::Never)).unwrap();
            assert_eq!(state_of(&after), state_of(&store), "round {round}, power cut {seed}");
        }
    }
}

/// A backup makes the log continue in another segment while a sync is in progress. The sync does
/// not cover a record that is written there.
#[test]
#[cfg(debug_assertions)]
fn a_sync_does_not_cover_a_segment_that_began_after_it() {
    let disk = Model::new();
    let schedule = Schedule::new();
    // Otherwise, the waiting writers would sync themselves.
    let opened = options(&disk, SyncPolicy::Always).acknowledge_later();
    // The log's thread gets the role of the thread that starts it.
    let store = schedule.enroll("log", || Bytes::open(DIR, opened)).unwrap();
    schedule.hold("log", "log.run.before_drain");
    schedule.hold("syncer", "log.sync.begun");
    let is_kept = || {
        (0..16).all(|seed| {
            let after = disk.after_power_cut(&mut Random::new(seed));
            let after = Bytes::open(DIR, options(&after, SyncPolicy::Never)).unwrap();
            after.get(b"key".as_slice()).is_some()
        })
    };
    let told = std::thread::scope(|scope| {
        let syncer = scope.spawn(|| schedule.enroll("syncer", || store.sync_log()));
        schedule.wait_held("syncer", "log.sync.begun");
        store.backup(&BackupOptions::new()).unwrap();
        let before = store.log_position();
        let writer = scope.spawn(|| store.insert(b"key", b"value"));
        while store.log_position() == before {
            std::thread::yield_now();
        }
        schedule.release("syncer", "log.sync.begun");
        syncer.join().unwrap().unwrap();
        let told = store.durability().unwrap();
        let is_true = told.synced < told.appended || is_kept();
        schedule.release("log", "log.run.before_drain");
        writer.join().unwrap().unwrap();
        store.sync_log().unwrap();
        is_true
    });
    assert!(told, "a record was durable, and was lost");
    assert!(is_kept(), "an acknowledged write is lost");
}

/// A sync writes a record that it does not cover. The log's thread syncs that record without a
/// notification.
#[test]
#[cfg(debug_assertions)]
fn a_record_that_a_sync_has_written_is_synced_too() {
    let disk = Model::new();
    let schedule = Schedule::new();
    let opened = options(&disk, SyncPolicy::Always).acknowledge_later();
    let store = schedule.enroll("log", || Bytes::open(DIR, opened)).unwrap();
    schedule.hold("log", "log.sync.targeted");
    let is_synced = std::thread::scope(|scope| {
        scope.spawn(|| store.insert(b"a", b"1").unwrap());
        schedule.wait_held("log", "log.sync.targeted");
        let before = store.log_position();
        scope.spawn(|| store.insert(b"b", b"2").unwrap());
        while store.log_position() == before {
            std::thread::yield_now();
        }
        schedule.release("log", "log.sync.targeted");
        let begin = Instant::now();
        let is_synced = || store.durability().is_some_and(|told| told.synced == told.appended);
        while !is_synced() && begin.elapsed() < Duration::from_secs(10) {
            std::thread::yield_now();
        }
        let is_synced = is_synced();
        // A further record triggers a sync of everything, so that the writers end.
        store.insert(b"c", b"3").unwrap();
        is_synced
    });
    assert!(is_synced, "a writer waits until another one comes");
}

/// Waiting threads write and sync for each other. Every one of them is served, no matter which one
/// leads.
#[test]
fn threads_that_wait_for_their_records_are_all_served() {
    let disk = Model::new().slow_syncs(Duration::from_micros(100));
    let opened = options(&disk, SyncPolicy::Always).segment_bytes(4096);
    let store = Bytes::open(DIR, opened).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let store = &store;
            scope.spawn(move || {
                for at in 0..200 {
                    store.put(format!("{thread} {at}"), "value").unwrap();
                    let synced = store.durability().unwrap().synced;
                    assert!(synced > 0, "a write returned before it was durable");
                    if at % 50 == thread {
                        // A sync of another thread may serve the thread that was to lead.
                        store.sync_log().unwrap();
                    }
                }
            });
        }
    });
    let after = disk.after_power_cut(&mut Random::new(1));
    let after = Bytes::open(DIR, options(&after, SyncPolicy::Never)).unwrap();
    assert_eq!(state_of(&after), state_of(&store));
    assert!(after.durability().unwrap().recovery.log.segments > 2, "nobody began another segment");
}

/// If the work of a group panics, its writes are in the log, although its thread does not wait for
/// them.
#[test]
fn what_a_group_wrote_before_a_panic_is_synced() {
    let disk = Model::new();
    let store = Bytes::open(DIR, options(&disk, SyncPolicy::Always)).unwrap();
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        store.log_group(|| {
            store.put("key", "value").unwrap();
            panic!("on purpose");
        })
    }));
    assert!(panicked.is_err());
    let begin = Instant::now();
    let is_synced = || store.durability().is_some_and(|told| told.synced == told.appended);
    while !is_synced() && begin.elapsed() < Duration::from_secs(10) {
        std::thread::yield_now();
    }
    assert!(is_synced() && store.durability().unwrap().synced > 0);
}

/// The number of waiting records is bounded even if the log's thread cannot write.
#[test]
#[cfg(debug_assertions)]
fn records_that_wait_for_the_logs_thread_have_a_bound() {
    const MOST: usize = 10 << 20;
    let disk = Model::new();
    let schedule = Schedule::new();
    let store =
        schedule.enroll("log", || Bytes::open(DIR, options(&disk, SyncPolicy::Never))).unwrap();
    schedule.hold("log", "log.run.before_drain");
    let written = || disk.files().iter().map(|path| disk.read(path).len()).sum::<usize>();
    for round in 1..=24 {
        store.insert(b"key", &vec![7; 1 << 20]).unwrap();
        let waiting = (round << 20) - written().min(round << 20);
        assert!(waiting <= MOST, "{waiting} bytes wait after {round} MiB");
    }
    schedule.release("log", "log.run.before_drain");
}

#[test]
fn the_power_is_cut_at_each_operation() {
    for sync in [SyncPolicy::Always, SyncPolicy::EverySecond, SyncPolicy::Never] {
        for number in 1..=operations(sync) {
            let disk = Model::new().fault(number, Fault::PowerCut);
            let left = live(&disk, sync, &script());
            let Some(hit) = disk.hit() else { continue };
            for seed in 0..4 {
                let after = disk.after_power_cut(&mut Random::new(number << 8 | seed));
                let context = format!("{sync:?}: {hit}, cut {seed}");
                match &left {
                    Ok(left) => drop(check(&after, left, &context)),
                    Err(_) => {
                        let left = super::steps::Left {
                            allowed: vec![Default::default()],
                            errors: vec![],
                        };
                        check(&after, &left, &context);
                    }
                }
            }
        }
    }
}

#[test]
fn writes_may_be_short() {
    for most in [1, 7, 60] {
        let disk = Model::new().short_writes(most);
        let left = live(&disk, SyncPolicy::Always, &script()).unwrap();
        assert!(left.errors.is_empty(), "{:?}", left.errors);
        check(&disk.after_exit(), &left, "short writes");
    }
}

#[test]
fn a_sync_that_lies_once_never_gives_another_state_in_silence() {
    for number in 1..=operations(SyncPolicy::Always) {
        let disk = Model::new().fault(number, Fault::Lies);
        let left = live(&disk, SyncPolicy::Always, &script()).unwrap();
        let Some(hit) = disk.hit() else { continue };
        // The next sync of the same file succeeds. Without a power failure, nothing is lost in any
        // case.
        check(&disk.after_exit(), &left, &hit);
    }
}

/// A crash or a failure during the removal of an old backup does not leave a backup that looks
/// damaged.
#[test]
fn a_backup_that_is_removed_in_part_is_no_damage() {
    for number in 1.. {
        let disk = Model::new();
        let store = Bytes::open(DIR, options(&disk, SyncPolicy::Always)).unwrap();
        store.insert(b"a", b"1").unwrap();
        store.backup(&BackupOptions::new()).unwrap();
        store.insert(b"b", b"1").unwrap();
        disk.fail("remove", number);
        store.backup(&BackupOptions::new()).unwrap();
        let Some(hit) = disk.hit() else {
            assert!(number > 2, "{number} files are removed");
            break;
        };
        verify(&disk.after_exit(), DIR, &Progress::default())
            .unwrap_or_else(|error| panic!("{hit}: {error}"));
        // The next backup removes the rest.
        store.backup(&BackupOptions::new()).unwrap();
        let left = |path: &PathBuf| path.to_string_lossy().contains("unfinished");
        assert!(!disk.files().iter().any(left), "{hit}: {:?}", disk.files());
    }
    for number in 1.. {
        let disk = Model::new().fault(number, Fault::PowerCut);
        let run = || {
            let store = Bytes::open(DIR, options(&disk, SyncPolicy::Always)).ok()?;
            for key in [b"a", b"b", b"c"] {
                store.insert(key, b"1").ok()?;
                store.backup(&BackupOptions::new()).ok()?;
            }
            Some(())
        };
        if run().is_some() && disk.hit().is_none() {
            break;
        }
        for seed in 0..4 {
            let after = disk.after_power_cut(&mut Random::new(number << 8 | seed));
            drop(Bytes::open(DIR, options(&after, SyncPolicy::Always)).unwrap());
            verify(&after.after_exit(), DIR, &Progress::default())
                .unwrap_or_else(|error| panic!("{:?}, power cut {seed}: {error}", disk.hit()));
        }
    }
}
