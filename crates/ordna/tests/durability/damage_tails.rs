//! Tests of the ends of segments after crashes and damage: lost tails, segments without records,
//! missing segments, and repairs.

use std::path::{Path, PathBuf};

use ordna::durability::{BackupError, BackupOptions, Progress, Storage, SyncPolicy, verify};
use ordna_testkit::random::Random;

use super::damage::last_segment;
use super::disk::{Fault, Model};
use super::steps::{Bytes, DIR, State, flush, options, script, state_of};

fn open(disk: &Model, sync: SyncPolicy) -> Result<Bytes, BackupError> {
    Bytes::open(DIR, options(disk, sync))
}

/// Opens a store, inserts the keys, and ends the process without closing the store.
fn run(disk: &Model, sync: SyncPolicy, keys: &[&str]) -> Model {
    let store = open(disk, sync).unwrap();
    keys.iter().for_each(|key| _ = store.insert(key.as_bytes(), b"1").unwrap());
    flush(&store);
    disk.after_exit()
}

fn segment(number: u64) -> PathBuf {
    Path::new(DIR).join(format!("log-{number:010}"))
}

/// Returns the paths of the log's segments.
fn segments(disk: &Model) -> Vec<PathBuf> {
    let is_segment = |path: &PathBuf| path.to_str().unwrap().contains("/log-");
    disk.files().into_iter().filter(is_segment).collect()
}

/// A server that starts, writes nothing and is killed leaves a segment without records.
#[test]
fn damage_before_a_segment_without_records_is_found() {
    let disk = run(&Model::new(), SyncPolicy::Always, &["a", "b", "c", "d"]);
    let disk = run(&disk, SyncPolicy::Always, &[]);
    let state = state_of(&open(&disk.after_exit(), SyncPolicy::Always).unwrap());
    assert_eq!(state.len(), 4);
    let whole = disk.read(&segment(1));
    let mut damages = Vec::new();
    for at in 0..whole.len() {
        let mut changed = whole.clone();
        changed[at] ^= 1;
        damages.push((format!("byte {at} changed"), changed));
        damages.push((format!("cut to {at} bytes"), whole[..at].to_vec()));
    }
    for (what, content) in damages {
        let copy = disk.after_exit();
        copy.replace(&segment(1), content);
        let found = verify(&copy, DIR, &Progress::default());
        assert!(matches!(found, Err(BackupError::Damaged { .. })), "{what}: {found:?}");
        let found = open(&copy, SyncPolicy::Always).map(|store| state_of(&store));
        assert!(matches!(found, Err(BackupError::Damaged { .. })), "{what}: {found:?}");
    }
}

/// Segments of older versions begin without a block.
#[test]
fn damage_before_a_segment_that_is_only_a_header_is_found() {
    let disk = run(&Model::new(), SyncPolicy::Always, &["a", "b", "c", "d"]);
    let disk = run(&disk, SyncPolicy::Always, &[]);
    let (last, content) = last_segment(&disk);
    disk.replace(&last, content[..48].to_vec());
    let mut content = disk.read(&segment(1));
    // The damage is in the first of several blocks.
    let len = content.len();
    content[len / 3] ^= 1;
    disk.replace(&segment(1), content);
    let found = open(&disk, SyncPolicy::Always).map(|store| state_of(&store));
    assert!(matches!(found, Err(BackupError::Damaged { .. })), "{found:?}");
}

/// A failed write leaves a part of a block before the segment in which the write is retried. If an
/// opening cannot read that segment, it does not know that the segment continues the log, so it
/// must not remove it.
#[test]
fn a_start_that_cannot_read_a_segment_loses_nothing() {
    let disk = run(&Model::new(), SyncPolicy::Always, &["a", "b"]);
    let disk = run(&disk, SyncPolicy::Always, &["c"]);
    let mut content = disk.read(&segment(1));
    content.extend([7; 20]);
    disk.replace(&segment(1), content);
    let mut failed = 0;
    for number in 1.. {
        let disk = disk.after_exit().fault(number, Fault::Fails);
        let opened = open(&disk, SyncPolicy::Always).map(|store| state_of(&store).len());
        if disk.hit().is_none() {
            break;
        }
        failed += usize::from(opened.is_err());
        assert!(matches!(opened, Err(_) | Ok(3)), "operation {number}: {opened:?}");
        let again = open(&disk.after_exit(), SyncPolicy::Always).unwrap();
        assert_eq!(state_of(&again).len(), 3, "after {opened:?} at operation {number}");
    }
    assert!(failed > 3, "{failed} starts failed");
}

/// Records that a killed process left in the system's cache must not become durable later than
/// those of the next process.
#[test]
fn a_start_makes_durable_what_it_has_read() {
    for (starts, sync) in [(1, SyncPolicy::Always), (3, SyncPolicy::EverySecond)] {
        let mut disk = run(&Model::new(), SyncPolicy::Never, &["a", "b", "c"]);
        for _ in 1..starts {
            disk = run(&disk, SyncPolicy::Never, &[]);
        }
        let store = open(&disk, sync).unwrap();
        store.insert(b"d", b"1").unwrap();
        store.sync_log().unwrap();
        for seed in 0..32 {
            let after = disk.after_power_cut(&mut Random::new(seed));
            let found = open(&after, sync).map(|store| state_of(&store).len()).unwrap();
            assert_eq!(found, 4, "{sync:?}, power cut {seed}");
        }
    }
}

/// Number of entries in a segment that is long enough to be read ahead by a separate thread.
const LONG: u32 = 1500;

/// Returns a disk with such a segment. The first blocks were durable when the last one was written.
fn long_segment() -> Model {
    let disk = Model::new();
    let store = open(&disk, SyncPolicy::Never).unwrap();
    for key in 0..LONG {
        store.insert(&key.to_be_bytes(), &[key as u8; 1000]).unwrap();
        if key % 100 == 99 {
            flush(&store);
        }
        if key == LONG * 3 / 4 {
            store.sync_log().unwrap();
        }
    }
    flush(&store);
    disk.after_exit()
}

#[test]
fn damage_in_a_long_segment_is_found_and_its_torn_end_cut() {
    let disk = long_segment();
    let whole = disk.read(&segment(1));
    assert!(whole.len() > 1 << 20);
    let mut changed = whole.clone();
    changed[whole.len() / 2] ^= 1;
    disk.replace(&segment(1), changed);
    let found = open(&disk.after_exit(), SyncPolicy::Never).map(|store| state_of(&store).len());
    let Err(BackupError::Damaged { path, offset, .. }) = found else { panic!("{found:?}") };
    assert_eq!(path, segment(1));
    let begins = whole.get(offset as usize..).is_some_and(|block| block.starts_with(b"OBLK"));
    assert!(begins && offset <= whole.len() as u64 / 2, "{offset}");
    disk.replace(&segment(1), whole[..whole.len() - 5].to_vec());
    let store = open(&disk, SyncPolicy::Never).unwrap();
    let (state, recovery) = (state_of(&store), store.durability().unwrap().recovery);
    assert!(state.len() >= LONG as usize * 3 / 4 && state.len() < LONG as usize);
    let [cut] = &recovery.log.cuts[..] else { panic!("{recovery:?}") };
    assert!(!cut.was_durable && whole[cut.offset as usize..].starts_with(b"OBLK"), "{cut:?}");
    assert_eq!(cut.dropped, whole.len() as u64 - 5 - cut.offset);
    let again = open(&disk.after_exit(), SyncPolicy::Never).unwrap();
    assert!(state_of(&again) == state);
    assert!(again.durability().unwrap().recovery.log.cuts.is_empty());
}

/// A long segment is synced while it is read. The system reports a failure of this sync only once.
#[test]
fn a_start_that_cannot_sync_a_long_segment_fails() {
    let disk = long_segment();
    let mut syncs = 0;
    // The order of the operations of two threads varies, so a round may miss the syncs.
    for _ in 0..20 {
        for number in 1.. {
            let disk = disk.after_exit().fault(number, Fault::Fails);
            let opened = open(&disk, SyncPolicy::Never).map(|store| state_of(&store).len());
            let Some(hit) = disk.hit() else { break };
            // Truncating a segment to its length also makes it durable.
            let is_sync = hit.contains(": truncate ");
            syncs += usize::from(is_sync);
            let is_right = if is_sync {
                opened.is_err()
            } else {
                opened.unwrap_or(LONG as usize) == LONG as usize
            };
            assert!(is_right, "operation {number}, {hit}");
        }
        if syncs >= 2 {
            return;
        }
    }
    panic!("{syncs} syncs failed");
}

/// Runs several processes. Each element of `ends` says whether that process closes its store.
fn runs(ends: &[bool]) -> Model {
    let mut disk = Model::new();
    for (number, in_order) in ends.iter().enumerate() {
        let store = open(&disk, SyncPolicy::Always).unwrap();
        store.insert(format!("k{number}").as_bytes(), b"1").unwrap();
        if !in_order {
            disk = disk.after_exit();
        }
        drop(store);
    }
    disk.after_exit()
}

#[test]
fn the_newest_segment_is_missed() {
    for ends in [&[true][..], &[false], &[true, true], &[false, false], &[true, false, true]] {
        let disk = runs(ends);
        let (last, _) = last_segment(&disk);
        assert_eq!(last, segment(ends.len() as u64));
        disk.remove(&last).unwrap();
        let verified = verify(&disk, DIR, &Progress::default()).map(|_| ());
        let opened = open(&disk, SyncPolicy::Always).map(|_| ());
        for found in [verified, opened] {
            match found {
                Err(BackupError::Missing { path, .. }) => assert_eq!(path, last, "{ends:?}"),
                other => panic!("{ends:?}: {other:?}"),
            }
        }
        let repaired = Bytes::open(DIR, options(&disk, SyncPolicy::Always).repair(true)).unwrap();
        assert_eq!(state_of(&repaired).len(), ends.len() - 1);
        let cuts = repaired.durability().unwrap().recovery.log.cuts;
        assert!(cuts.len() == 1 && cuts[0].was_durable, "{cuts:?}");
        drop(repaired);
        let again = open(&disk, SyncPolicy::Always).unwrap();
        assert_eq!(again.durability().unwrap().recovery.log.cuts, []);
    }
}

/// The newest segment is missing, and the one before it has a torn end.
#[test]
fn a_repair_reports_a_missing_segment_after_a_torn_one() {
    let disk = run(&Model::new(), SyncPolicy::Always, &["a", "b"]);
    let disk = run(&disk, SyncPolicy::Always, &["c"]);
    let mut content = disk.read(&segment(1));
    content.pop();
    disk.replace(&segment(1), content);
    disk.remove(&segment(2)).unwrap();
    let found = open(&disk, SyncPolicy::Always).map(|store| state_of(&store));
    assert!(matches!(found, Err(BackupError::Missing { .. })), "{found:?}");
    let repaired = Bytes::open(DIR, options(&disk, SyncPolicy::Always).repair(true)).unwrap();
    let cuts = repaired.durability().unwrap().recovery.log.cuts;
    assert!(cuts.iter().any(|cut| cut.was_durable), "{cuts:?}");
}

/// Each segment is damaged or removed. The opening fails, or nothing is lost. A repair keeps the
/// records before the damage.
#[test]
fn a_repair_continues_after_any_damage() {
    let store_of = |disk: &Model| -> (Vec<State>, Model) {
        let mut states = vec![State::new()];
        let mut disk = disk.clone();
        for (number, in_order) in [true, false, true, false].into_iter().enumerate() {
            let store = open(&disk, SyncPolicy::Always).unwrap();
            for half in ["a", "b"] {
                store.insert(format!("k{number}{half}").as_bytes(), b"1").unwrap();
                states.push(state_of(&store));
            }
            if !in_order {
                disk = disk.after_exit();
            }
            drop(store);
        }
        (states, disk.after_exit())
    };
    let (states, disk) = store_of(&Model::new());
    let whole = states.last().unwrap();
    for path in segments(&disk) {
        let content = disk.read(&path);
        let flipped = |at: usize| {
            let mut content = content.clone();
            content[at] ^= 1;
            Some(content)
        };
        let mut damages = vec![("removed".to_owned(), None)];
        damages.extend((0..content.len()).map(|at| (format!("byte {at}"), flipped(at))));
        damages.extend((0..48).map(|at| (format!("cut at {at}"), Some(content[..at].to_vec()))));
        damages.push(("zeroed".to_owned(), Some(vec![0; content.len()])));
        let swapped = segments(&disk).into_iter().find(|other| *other != path).unwrap();
        damages.push(("swapped".to_owned(), Some(disk.read(&swapped))));
        for (what, content) in damages {
            let context = format!("{}: {what}", path.display());
            let copy = disk.after_exit();
            match content {
                None => copy.remove(&path).unwrap(),
                Some(content) => copy.replace(&path, content),
            }
            let opened = open(&copy.after_exit(), SyncPolicy::Always);
            let refused = opened.is_err();
            if let Ok(store) = opened {
                let cuts = store.durability().unwrap().recovery.log.cuts;
                assert!(!cuts.is_empty(), "{context}: not told");
                // A tail of the last segment may look as if it was never synced.
                let is_last = path == segment(4);
                assert!(state_of(&store) == *whole || is_last, "{context}: lost in silence");
            }
            let repair = options(&copy, SyncPolicy::Always).repair(true);
            let store =
                Bytes::open(DIR, repair).unwrap_or_else(|error| panic!("{context}: {error}"));
            let state = state_of(&store);
            assert!(states.contains(&state), "{context}: {state:?}");
            let cuts = store.durability().unwrap().recovery.log.cuts;
            assert!(!refused || cuts.iter().any(|cut| cut.was_durable), "{context}: {cuts:?}");
            store.insert(b"after", b"1").unwrap();
            let state = state_of(&store);
            drop(store);
            let store = open(&copy, SyncPolicy::Always).unwrap();
            assert_eq!(state_of(&store), state, "{context}");
        }
    }
}

/// A file system may keep the length of a file that was never synced, but not its content.
#[test]
fn a_segment_of_zeros_that_nobody_names_was_being_created() {
    for before in [true, false] {
        let disk = runs(&[before]);
        for len in [1, 47, 48, 60, 104] {
            let copy = disk.after_exit();
            copy.create(&segment(2)).unwrap().write(&vec![0; len]).unwrap();
            assert!(!verify(&copy, DIR, &Progress::default()).unwrap().is_whole());
            let store = open(&copy, SyncPolicy::Always).unwrap();
            assert_eq!(state_of(&store).len(), 1);
            assert_eq!(store.durability().unwrap().recovery.log.cuts.len(), 1);
        }
    }
}

/// The power fails after each operation of a restart.
#[test]
fn the_power_fails_at_each_operation_of_several_starts() {
    use super::disk::Fault;
    for number in 1.. {
        let mut disk = Model::new().fault(number, Fault::PowerCut);
        let mut acknowledged = Vec::new();
        let mut last_hit = None;
        for start in 0..3 {
            let Ok(store) = open(&disk, SyncPolicy::Always) else { break };
            let key = format!("k{start}");
            if store.insert(key.as_bytes(), b"1").is_ok() {
                acknowledged.push(key);
            }
            if start == 1 && store.backup(&BackupOptions::new()).is_err() {
                break;
            }
            if start == 2 {
                drop(store);
            }
            last_hit = disk.hit();
            if last_hit.is_none() && start < 2 {
                let operations = disk.operations();
                if operations >= number {
                    break;
                }
                disk = disk.after_exit().fault(number - operations, Fault::PowerCut);
            }
        }
        let hit = last_hit.or(disk.hit());
        for seed in 0..4 {
            let after = disk.after_power_cut(&mut Random::new(number << 8 | seed));
            let store = open(&after, SyncPolicy::Always)
                .unwrap_or_else(|error| panic!("{hit:?}, power cut {seed}: {error}"));
            for key in &acknowledged {
                assert!(store.get(key.as_bytes()).is_some(), "{hit:?}, power cut {seed}: {key}");
            }
        }
        if hit.is_none() {
            assert!(number > 30, "{number} operations");
            break;
        }
    }
}

/// Replaces a part of a backup's manifest, and updates the checksum.
fn change_manifest(disk: &Model, from: &str, to: &str) {
    let path = Path::new("/b/MANIFEST");
    let text = String::from_utf8(disk.read(path)).unwrap();
    let (first, json) = text.split_once('\n').unwrap();
    assert!(json.contains(from));
    let json = json.replacen(from, to, 1);
    let title = &first[..first.len() - 8];
    let sum = ordna::checksum::crc32c(format!("{title}{json}").as_bytes());
    disk.replace(path, format!("{title}{sum:08x}\n{json}").into_bytes());
}

#[test]
fn a_manifest_names_files_of_its_directory_only() {
    use ordna::durability::install;
    use std::sync::Arc;
    for name in ["../evil", "/evil", "shard-0000/../../evil", "MANIFEST", "", "shard-", "shard-x"] {
        let disk = Model::new();
        let store = Bytes::new();
        script()[..4].iter().for_each(|step| step.run(&store).unwrap());
        let backup = BackupOptions::new().workers(1).storage(Arc::new(disk.clone()));
        store.backup_to("/b", &backup).unwrap();
        disk.create(Path::new("/evil"))
            .unwrap()
            .write(&disk.read(Path::new("/b/shard-0000")))
            .unwrap();
        change_manifest(&disk, "\"shard-0000\"", &format!("{name:?}"));
        let files = disk.files();
        let refused = [
            install(&disk, "/b", "/copy", &Progress::default()).map(|_| ()),
            verify(&disk, "/b", &Progress::default()).map(|_| ()),
            Bytes::restore("/b", options(&disk, SyncPolicy::Never)).map(|_| ()),
        ];
        for found in refused {
            match found {
                Err(BackupError::Damaged { path, what, .. }) => {
                    assert!(path.ends_with("MANIFEST"), "{name}: {path:?}");
                    assert!(what.contains(&format!("{name:?}")), "{name}: {what}");
                }
                other => panic!("{name}: {other:?}"),
            }
        }
        assert_eq!(disk.files(), files, "{name}");
    }
}

#[test]
fn what_is_not_a_stores_is_not_removed() {
    use std::sync::Arc;
    let disk = runs(&[true]);
    let foreign = [
        Path::new(DIR).join("unfinished-novel"),
        Path::new(DIR).join("unfinished-backup-2nd"),
        Path::new(DIR).join("unfinished-backup-0000000009"),
        PathBuf::from("/unfinished-b"),
    ];
    for dir in &foreign {
        disk.create_dir(dir).unwrap();
        disk.create(&dir.join("chapter")).unwrap();
    }
    // An unfinished backup that a crash has left.
    let own = Path::new(DIR).join("unfinished-backup-0000000002");
    disk.create_dir(&own).unwrap();
    disk.create(&own.join("shard-0000")).unwrap();
    let store = open(&disk, SyncPolicy::Always).unwrap();
    assert!(disk.list(&own).is_err(), "it was not removed");
    let backup = BackupOptions::new().storage(Arc::new(disk.clone()));
    let error = store.backup_to("/b", &backup).unwrap_err();
    assert!(matches!(&error, BackupError::Exists { path } if *path == foreign[3]), "{error}");
    store.backup(&BackupOptions::new()).unwrap();
    for dir in &foreign {
        assert_eq!(disk.list(dir).unwrap(), ["chapter"], "{}", dir.display());
    }
}

#[test]
fn a_directory_with_other_directories_is_refused() {
    let disk = Model::new();
    disk.create_dir(Path::new("/home/photos")).unwrap();
    disk.create(Path::new("/home/photos/1")).unwrap();
    let before = disk.files();
    let error = Bytes::open("/home", options(&disk, SyncPolicy::Always)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "/home: holds `photos`, which is not Ordna's: use an empty directory"
    );
    assert_eq!(disk.files(), before);
    // The directory may contain files of users or settings, and what a file system has in its root.
    disk.create_dir(Path::new("/mount/lost+found")).unwrap();
    disk.create(Path::new("/mount/users")).unwrap();
    drop(Bytes::open("/mount", options(&disk, SyncPolicy::Always)).unwrap());
    // After a store was opened in it, the directory may contain other directories.
    disk.create_dir(Path::new("/mount/indexes")).unwrap();
    disk.create(Path::new("/mount/indexes/1")).unwrap();
    drop(Bytes::open("/mount", options(&disk, SyncPolicy::Always)).unwrap());
}

/// The end of a segment and the header of the next one are damaged. The records of the next segment
/// were durable, so they must not be dropped silently.
#[test]
fn a_damaged_end_before_a_damaged_header_is_no_torn_tail() {
    let disk = run(&Model::new(), SyncPolicy::Always, &["a"]);
    let disk = run(&disk, SyncPolicy::Always, &["b"]);
    let mut first = disk.read(&segment(1));
    *first.last_mut().unwrap() ^= 1;
    disk.replace(&segment(1), first);
    let mut second = disk.read(&segment(2));
    second[..48].fill(0);
    disk.replace(&segment(2), second);
    let error = open(&disk, SyncPolicy::Always).unwrap_err();
    assert!(matches!(error, BackupError::Damaged { .. }), "{error}");
    let repaired = Bytes::open(DIR, options(&disk, SyncPolicy::Always).repair(true)).unwrap();
    let cuts = repaired.durability().unwrap().recovery.log.cuts;
    assert!(cuts.iter().any(|cut| cut.was_durable), "{cuts:?}");
}
