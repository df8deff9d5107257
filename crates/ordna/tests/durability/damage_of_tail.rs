//! Tests of the file `tail`: what it proves about a damaged log, and a tail of another log.

use std::path::{Path, PathBuf};

use ordna::durability::{BackupError, BackupOptions, Progress, Storage, SyncPolicy, verify};
use ordna_testkit::random::Random;

use super::disk::{Fault, Model};
use super::steps::{Bytes, DIR, options, state_of};

const SYNC: SyncPolicy = SyncPolicy::EverySecond;

fn tail() -> PathBuf {
    Path::new(DIR).join("tail")
}

fn first_segment() -> PathBuf {
    Path::new(DIR).join("log-0000000001")
}

/// Returns the files of a store that was killed. The keys of `synced` are durable; those of `later`
/// are in the tail. The second result is the length of the first segment with the durable records,
/// but without those of `later`.
fn killed(synced: &[&str], later: &[&str]) -> (Model, usize) {
    let disk = Model::new().shares();
    let store = Bytes::open(DIR, options(&disk, SYNC)).unwrap();
    assert!(store.durability().unwrap().survives_kill);
    synced.iter().for_each(|key| _ = store.insert(key.as_bytes(), b"1").unwrap());
    store.sync_log().unwrap();
    let len = disk.read(&first_segment()).len();
    later.iter().for_each(|key| _ = store.insert(key.as_bytes(), b"1").unwrap());
    (disk.after_exit(), len)
}

fn keys(disk: &Model) -> Result<Vec<String>, BackupError> {
    let store = Bytes::open(DIR, options(&disk.after_exit(), SYNC))?;
    Ok(state_of(&store).into_keys().map(|key| String::from_utf8(key).unwrap()).collect())
}

/// The segment lacks the block that followed the sync, as after a power failure. Only the tail
/// shows what was durable.
#[test]
fn damage_that_only_the_tail_proves_is_found() {
    let (disk, len) = killed(&["a", "b"], &["c"]);
    let whole = disk.read(&first_segment())[..len].to_vec();
    disk.replace(&first_segment(), whole.clone());
    assert_eq!(keys(&disk).unwrap(), ["a", "b", "c"]);
    let mut damages = vec![("cut to its header".to_owned(), whole[..104].to_vec())];
    for at in 48..len {
        let mut changed = whole.clone();
        changed[at] ^= 0x80;
        damages.push((format!("byte {at} changed"), changed));
        damages.push((format!("cut to {at} bytes"), whole[..at].to_vec()));
    }
    for (what, content) in damages {
        disk.replace(&first_segment(), content);
        let found = verify(&disk, DIR, &Progress::default());
        assert!(matches!(found, Err(BackupError::Damaged { .. })), "{what}: {found:?}");
        let found = keys(&disk);
        assert!(matches!(found, Err(BackupError::Damaged { .. })), "{what}: {found:?}");
        let repaired = Bytes::open(DIR, options(&disk.after_exit(), SYNC).repair(true)).unwrap();
        let cuts = repaired.durability().unwrap().recovery.log.cuts;
        assert!(cuts.iter().any(|cut| cut.was_durable), "{what}: {cuts:?}");
    }
}

#[test]
fn a_tail_of_another_log_is_ignored() {
    // The entry of `c` would continue a log that ends after two keys of one letter.
    let (disk, _) = killed(&["a", "b"], &["c"]);
    let (other, len) = killed(&["x", "y"], &["z"]);
    other.replace(&first_segment(), other.read(&first_segment())[..len].to_vec());
    other.replace(&tail(), disk.read(&tail()));
    assert_eq!(keys(&other).unwrap(), ["x", "y"]);
    let opened = Bytes::open(DIR, options(&other.after_exit(), SYNC)).unwrap();
    let cuts = opened.durability().unwrap().recovery.log.cuts;
    assert_eq!(cuts.iter().map(|cut| cut.path.clone()).collect::<Vec<_>>(), [tail()]);
    // A tail of another log does not determine how long this log must be either.
    let (short, _) = killed(&["x"], &[]);
    short.replace(&tail(), disk.read(&tail()));
    let report = verify(&short, DIR, &Progress::default()).unwrap();
    assert!(!report.is_whole());
    assert_eq!(keys(&short).unwrap(), ["x"]);
    // The opening has removed the tail.
    let store = Bytes::open(DIR, options(&short, SYNC)).unwrap();
    drop(store);
    assert!(short.open(&tail()).is_err());
}

/// The tail names the segments in which the log continues, even after the first ones were removed.
#[test]
fn a_tail_outlives_the_segments_that_it_began_in() {
    for backups in 1..4 {
        let disk = Model::new().shares();
        let store = Bytes::open(DIR, options(&disk, SYNC)).unwrap();
        for number in 0..backups {
            store.insert(format!("a{number}").as_bytes(), b"1").unwrap();
            store.backup(&BackupOptions::default()).unwrap();
        }
        store.insert(b"b", b"1").unwrap();
        assert_eq!(keys(&disk.after_exit()).unwrap().len(), backups + 1);
    }
}

/// An opening writes the records of a tail to a new segment. If the power fails during this, the
/// files are not damaged, and no durable record is lost.
#[test]
fn the_power_fails_at_each_operation_of_a_start_with_a_tail() {
    let (disk, _) = killed(&["a", "b"], &["c", "d"]);
    for number in 1.. {
        let disk = disk.after_exit().fault(number, Fault::PowerCut);
        let opened = Bytes::open(DIR, options(&disk, SYNC));
        drop(opened);
        let Some(hit) = disk.hit() else {
            assert!(number > 10, "{number} operations");
            return;
        };
        for seed in 0..64 {
            let after = disk.after_power_cut(&mut Random::new(number << 8 | seed));
            let found = keys(&after);
            let found = found.unwrap_or_else(|error| panic!("{hit}, power cut {seed}: {error}"));
            assert!(found.starts_with(&["a".into(), "b".into()]), "{hit}: {found:?}");
        }
    }
}
