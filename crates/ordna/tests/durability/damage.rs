//! Every changed byte is detected. Errors name missing files and files of newer versions.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ordna::Put;
use ordna::durability::{
    BackupError, BackupOptions, Compression, Progress, SyncPolicy, install, verify,
};

use super::disk::Model;
use super::steps::{Bytes, DIR, State, compressions, options, script, state_of};

/// Returns a disk with a small backup that has shards and a delta file, and the state in the
/// backup.
fn small_backup(compression: Compression) -> (Model, State) {
    let disk = Model::new();
    let store = Bytes::new();
    for key in 0..40 {
        let value = format!("value {key} {key} {key}").into_bytes();
        let expires_at = (key % 3 == 0).then_some(9000 + key);
        let put = Put { value: value.as_slice(), expires_at };
        let key = format!("k{key:02}");
        store.modify_entry(key.as_bytes(), |_| ordna::Change::Put(put)).unwrap();
    }
    let backup = BackupOptions::new()
        .workers(1)
        .compression(compression)
        .metadata(|| b"position".to_vec())
        .storage(Arc::new(disk.clone()));
    store.backup_to("/b", &backup).unwrap();
    (disk, state_of(&store))
}

/// Returns a disk with a log of several segments that was closed, and the state after it.
fn small_log(sync: SyncPolicy) -> (Model, State) {
    let disk = Model::new();
    let store = Bytes::open(DIR, options(&disk, sync)).unwrap();
    script().iter().for_each(|step| step.run(&store).unwrap());
    let state = state_of(&store);
    drop(store);
    let store = Bytes::open(DIR, options(&disk, sync)).unwrap();
    store.insert(b"second", b"opening").unwrap();
    store.insert(b"third", b"write").unwrap();
    assert_eq!(state.len() + 2, state_of(&store).len());
    let state = state_of(&store);
    drop(store);
    (disk, state)
}

/// Calls `each` with copies of the disk in which one byte is changed.
fn with_each_byte_changed(disk: &Model, mut each: impl FnMut(&Model, &Path, usize, u8)) -> usize {
    let mut changes = 0;
    for path in disk.files() {
        let content = disk.read(&path);
        for at in 0..content.len() {
            // Flips one bit, the bit that distinguishes lower from upper case, and all bits.
            for mask in [0x01, 0x20, 0xFF] {
                let mut changed = content.clone();
                changed[at] ^= mask;
                let copy = disk.after_exit();
                copy.replace(&path, changed);
                each(&copy, &path, at, mask);
                changes += 1;
            }
        }
    }
    changes
}

#[test]
fn each_changed_byte_of_a_backup_is_found_and_located() {
    for compression in compressions() {
        let (disk, _) = small_backup(compression);
        let changes = with_each_byte_changed(&disk, |copy, path, at, mask| {
            let context = format!("byte {at} of {} ^ {mask:#x}", path.display());
            let error = Bytes::restore("/b", options(copy, SyncPolicy::Never)).expect_err(&context);
            assert!(matches!(error, BackupError::Damaged { .. }), "{context}: {error}");
            verify(copy, "/b", &Progress::default()).expect_err(&context);
        });
        assert!(changes > 5000, "{changes}");
    }
}

#[test]
fn each_changed_byte_of_a_log_is_found_and_never_gives_another_state_in_silence() {
    let (disk, state) = small_log(SyncPolicy::Always);
    let (mut refused, mut cut) = (0, 0);
    with_each_byte_changed(&disk, |copy, path, at, mask| {
        let context = format!("byte {at} of {} ^ {mask:#x}", path.display());
        match Bytes::open(DIR, options(copy, SyncPolicy::Always)) {
            Err(BackupError::Damaged { path: named, .. }) => {
                assert!(named.starts_with(path.parent().unwrap()), "{context}");
                refused += 1;
            }
            Err(error) => panic!("{context}: {error}"),
            Ok(store) => {
                // Only the marker at a segment's end is damaged: all acknowledged writes are
                // present.
                let log = store.durability().unwrap().recovery.log;
                assert!(!log.cuts.is_empty(), "{context}: not told");
                assert_eq!(state_of(&store), state, "{context}");
                cut += 1;
            }
        }
    });
    assert!(refused > 1000 && cut > 100, "{refused} refused, {cut} told");
}

/// Returns the last segment of the log and its content.
pub fn last_segment(disk: &Model) -> (PathBuf, Vec<u8>) {
    let path = disk.files().into_iter().rfind(|path| path.to_str().unwrap().contains("/log-"));
    let path = path.unwrap();
    let content = disk.read(&path);
    (path, content)
}

#[test]
fn a_log_is_cut_at_any_length_and_told() {
    let disk = Model::new();
    let store = Bytes::open(DIR, options(&disk, SyncPolicy::Always)).unwrap();
    let mut states = vec![State::new()];
    for step in &script()[..4] {
        step.run(&store).unwrap();
        states.push(state_of(&store));
    }
    // Without its end, as after a crash.
    let (path, content) = last_segment(&disk);
    for len in 0..content.len() {
        let copy = disk.after_exit();
        copy.replace(&path, content[..len].to_vec());
        if len < 48 {
            // The file header was durable before any records were written.
            let error = Bytes::open(DIR, options(&copy, SyncPolicy::Always)).unwrap_err();
            assert!(matches!(error, BackupError::Damaged { offset: 0, .. }), "{len}: {error}");
            continue;
        }
        let store = Bytes::open(DIR, options(&copy, SyncPolicy::Always)).unwrap();
        let state = state_of(&store);
        let log = store.durability().unwrap().recovery.log;
        let whole = states.iter().position(|known| *known == state);
        assert!(whole.is_some(), "{len}: {state:?}");
        assert_eq!(whole, Some(log.blocks as usize), "{len}");
        let dropped: u64 = log.cuts.iter().map(|cut| cut.dropped).sum();
        let kept = copy.read(&path.with_file_name("log-0000000001"));
        if let Some(cut) = log.cuts.first() {
            assert_eq!((cut.offset + dropped) as usize, len);
            assert!(cut.offset == 0 || kept.len() as u64 == cut.offset);
        }
    }
}

#[test]
fn damage_in_the_middle_stops_the_start_and_a_repair_goes_on_without_the_rest() {
    let disk = Model::new();
    let store = Bytes::open(DIR, options(&disk, SyncPolicy::Always)).unwrap();
    let mut states = Vec::new();
    for step in &script()[..4] {
        step.run(&store).unwrap();
        states.push(state_of(&store));
    }
    drop(store);
    let (path, mut content) = last_segment(&disk);
    // The change is in the second of four blocks.
    content[48 + (56 + 5) + 56 + 2] ^= 1;
    disk.replace(&path, content);
    let error = Bytes::open(DIR, options(&disk.after_exit(), SyncPolicy::Always)).unwrap_err();
    let BackupError::Damaged { path: named, offset, .. } = &error else { panic!("{error}") };
    assert_eq!(*named, path);
    let repair = options(&disk, SyncPolicy::Always).repair(true);
    let store = Bytes::open(DIR, repair).unwrap();
    let log = store.durability().unwrap().recovery.log;
    assert_eq!((log.cuts.len(), log.cuts[0].offset), (1, *offset));
    assert!(log.cuts[0].was_durable);
    assert_eq!(state_of(&store), states[0]);
    drop(store);
    // The second opening has nothing to repair.
    let store = Bytes::open(DIR, options(&disk, SyncPolicy::Always)).unwrap();
    assert!(store.durability().unwrap().recovery.log.cuts.is_empty());
    assert_eq!(state_of(&store), states[0]);
}

#[test]
fn missing_files_are_named() {
    use ordna::durability::Storage;
    let (disk, _) = small_log(SyncPolicy::Always);
    for path in disk.files() {
        let name = path.to_str().unwrap();
        // A mark may be missing, because it is removed before its segment.
        if name.contains("LOCK") || name.contains("/newest-") {
            continue;
        }
        let copy = disk.after_exit();
        copy.remove(&path).unwrap();
        let opened = Bytes::open(DIR, options(&copy, SyncPolicy::Always));
        match opened {
            Err(BackupError::Missing { path: missing, .. }) => assert_eq!(missing, path),
            other => panic!("{name}: {other:?}"),
        }
    }
    // The log is left without the backup before it.
    let backup = disk.files().into_iter().find(|path| path.ends_with("MANIFEST")).unwrap();
    disk.remove(backup.parent().unwrap()).unwrap();
    let error = Bytes::open(DIR, options(&disk, SyncPolicy::Always)).unwrap_err();
    assert!(matches!(error, BackupError::Missing { .. }), "{error}");
    let error = verify(&Model::new(), "/", &Progress::default()).unwrap_err();
    assert!(matches!(error, BackupError::Missing { .. }), "{error}");
}

/// A segment that a manifest names was durable, so records are lost if it is missing.
#[test]
fn a_segment_that_the_manifest_names_is_there_with_its_header() {
    let disk = Model::new();
    let store = Bytes::open(DIR, options(&disk, SyncPolicy::Always)).unwrap();
    store.insert(b"backed", b"up").unwrap();
    store.backup(&BackupOptions::new()).unwrap();
    let saved = state_of(&store);
    store.insert(b"acknowledged", b"and durable").unwrap();
    let crashed = disk.after_exit();
    let (path, content) = last_segment(&crashed);
    for len in [None, Some(0), Some(20), Some(47)] {
        let copy = crashed.after_exit();
        match len {
            None => ordna::durability::Storage::remove(&copy, &path).unwrap(),
            Some(len) => copy.replace(&path, content[..len].to_vec()),
        }
        let opened = Bytes::open(DIR, options(&copy.after_exit(), SyncPolicy::Always)).map(|_| ());
        for refused in [opened, verify(&copy, DIR, &Progress::default()).map(|_| ())] {
            match (len, refused) {
                (None, Err(BackupError::Missing { path: named, needed_by })) => {
                    assert_eq!(named, path);
                    assert!(needed_by.to_str().unwrap().contains("/backup-"), "{needed_by:?}");
                }
                (Some(_), Err(BackupError::Damaged { path: named, offset: 0, .. })) => {
                    assert_eq!(named, path);
                }
                (_, other) => panic!("{len:?}: {other:?}"),
            }
        }
        let store = Bytes::open(DIR, options(&copy, SyncPolicy::Always).repair(true)).unwrap();
        let cuts = store.durability().unwrap().recovery.log.cuts;
        assert!(cuts.len() == 1 && cuts[0].was_durable, "{len:?}: {cuts:?}");
        assert_eq!(state_of(&store), saved);
        drop(store);
        // The second opening has nothing to repair.
        let store = Bytes::open(DIR, options(&copy, SyncPolicy::Always)).unwrap();
        assert_eq!(store.durability().unwrap().recovery.log.cuts, []);
    }
}

/// A copy of a backup does not include the log that its manifest names.
#[test]
fn a_backup_of_a_directory_is_installed_without_its_log() {
    let disk = Model::new();
    let store = Bytes::open(DIR, options(&disk, SyncPolicy::Always)).unwrap();
    store.insert(b"key", b"value").unwrap();
    let summary = store.backup(&BackupOptions::new()).unwrap();
    let state = state_of(&store);
    drop(store);
    install(&disk, &summary.path, "/copy", &Progress::default()).unwrap();
    verify(&disk, "/copy", &Progress::default()).unwrap();
    let store = Bytes::open("/copy", options(&disk, SyncPolicy::Always)).unwrap();
    assert_eq!(state_of(&store), state);
}

#[test]
fn a_newer_format_is_refused_as_such() {
    let crc = |bytes: &[u8]| ordna::checksum::crc32c(bytes);
    let (disk, _) = small_backup(Compression::None);
    let path = Path::new("/b/shard-0000");
    let mut content = disk.read(path);
    content[8] = 3;
    let sum = crc(&content[..44]).to_le_bytes();
    content[44..48].copy_from_slice(&sum);
    disk.replace(path, content);
    let error = Bytes::restore("/b", options(&disk, SyncPolicy::Never)).unwrap_err();
    assert!(matches!(error, BackupError::NewerFormat { found: 3, known: 2, .. }), "{error}");
    let (disk, _) = small_backup(Compression::None);
    let path = Path::new("/b/MANIFEST");
    let text = String::from_utf8(disk.read(path)).unwrap();
    let (_, json) = text.split_once('\n').unwrap();
    let sum = crc(format!("ORDNA-MANIFEST 3 {json}").as_bytes());
    disk.replace(path, format!("ORDNA-MANIFEST 3 {sum:08x}\n{json}").into_bytes());
    let error = Bytes::restore("/b", options(&disk, SyncPolicy::Never)).unwrap_err();
    assert!(matches!(error, BackupError::NewerFormat { found: 3, known: 2, .. }), "{error}");
}

#[test]
fn bytes_behind_the_end_and_swapped_files_are_found() {
    let (disk, _) = small_backup(Compression::None);
    let path = Path::new("/b/shard-0000");
    let whole = disk.read(path);
    for longer in [[whole.clone(), vec![0]].concat(), [whole.clone(), whole.clone()].concat()] {
        disk.replace(path, longer);
        let error = Bytes::restore("/b", options(&disk, SyncPolicy::Never)).unwrap_err();
        assert!(matches!(error, BackupError::Damaged { .. }), "{error}");
    }
    // The same shard of another backup has valid checksums, but not those of the manifest.
    let (other, _) = small_backup(Compression::None);
    disk.replace(path, other.read(path));
    let error = Bytes::restore("/b", options(&disk, SyncPolicy::Never)).unwrap_err();
    assert!(matches!(error, BackupError::Damaged { .. }), "{error}");
}

/// A shard whose last block is missing is detected, even if the manifest has the shorter length, as
/// if the writer had stopped early.
#[test]
fn a_shard_without_its_end_is_found() {
    const END: usize = 56;
    let (disk, _) = small_backup(Compression::None);
    let (path, manifest) = (Path::new("/b/shard-0000"), Path::new("/b/MANIFEST"));
    let content = disk.read(path);
    let text = String::from_utf8(disk.read(manifest)).unwrap();
    let (_, json) = text.split_once('\n').unwrap();
    let shorter = content.len() - END;
    let json = json.replacen(&content.len().to_string(), &shorter.to_string(), 1);
    let sum = ordna::checksum::crc32c(format!("ORDNA-MANIFEST 2 {json}").as_bytes());
    disk.replace(manifest, format!("ORDNA-MANIFEST 2 {sum:08x}\n{json}").into_bytes());
    disk.replace(path, content[..shorter].to_vec());
    let error = Bytes::restore("/b", options(&disk, SyncPolicy::Never)).unwrap_err();
    assert!(error.to_string().contains("its last block is missing"), "{error}");
}

/// Returns a disk with a log whose segments have one block each, as after a crash.
fn rotated_log() -> Model {
    let disk = Model::new();
    let store = Bytes::open(DIR, options(&disk, SyncPolicy::Always).segment_bytes(1)).unwrap();
    script()[..4].iter().for_each(|step| step.run(&store).unwrap());
    // The log's thread may still be creating a segment that its predecessor does not name yet.
    let mut before = 0;
    while disk.operations() != before {
        before = disk.operations();
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    disk.after_exit()
}

/// The end of a segment that is continued records this. So a missing next segment is detected even
/// if the mark that names it is missing, too.
#[test]
fn a_segment_that_is_continued_misses_the_next() {
    use ordna::durability::Storage;
    for without_mark in [false, true] {
        let disk = rotated_log();
        let (last, _) = last_segment(&disk);
        disk.remove(&last).unwrap();
        let names = disk.list(Path::new(DIR)).unwrap();
        let marks: Vec<_> = names.iter().filter(|name| name.starts_with("newest-")).collect();
        assert!(!marks.is_empty(), "{names:?}");
        if without_mark {
            marks.iter().for_each(|mark| disk.remove(&Path::new(DIR).join(mark)).unwrap());
        }
        match Bytes::open(DIR, options(&disk, SyncPolicy::Always)) {
            Err(BackupError::Missing { path, .. }) => assert_eq!(path, last),
            other => panic!("{without_mark}: {other:?}"),
        }
    }
}

#[test]
fn a_segment_under_the_name_of_another_is_found() {
    let disk = rotated_log();
    let (last, _) = last_segment(&disk);
    let first = last.with_file_name("log-0000000001");
    assert_ne!(first, last);
    disk.replace(&last, disk.read(&first));
    let error = Bytes::open(DIR, options(&disk, SyncPolicy::Always)).unwrap_err();
    assert!(error.to_string().contains("is segment 1, not"), "{error}");
}

/// A short version of the fuzz targets: changed bytes of records with valid checksums.
#[test]
fn arbitrary_records_with_right_checksums_never_panic() {
    use ordna::durability::{Storage, fuzzing};
    use ordna_testkit::random::Random;
    let mut random = Random::new(7);
    let (mut restored, mut opened) = (0, 0);
    for _ in 0..4000 {
        let mut records = |kinds: &[u8]| {
            let (mut bytes, count) = (Vec::new(), random.below(6));
            for _ in 0..count {
                bytes.push(kinds[random.below(kinds.len() as u64) as usize]);
                let words = random.below(3);
                (0..words).for_each(|_| bytes.extend(random.below(3).to_le_bytes()));
                for _ in 0..random.below(3) {
                    let length = random.below(3) as u8;
                    bytes.push(length);
                    bytes.extend((0..length).map(|_| random.below(3) as u8));
                }
            }
            (bytes, count)
        };
        let (shard, delta) = (records(&[0, 0, 0, 1, 2]), records(&[7, 8, 9, 9, 9, 0]));
        let log = records(&[0, 1, 2, 3, 4, 5, 6, 7]);
        let disk = Model::new();
        disk.create_dir(Path::new("/b")).unwrap();
        let dir = Path::new("/b");
        fuzzing::write_backup(&disk, dir, (&shard.0, shard.1), (&delta.0, delta.1)).unwrap();
        let store = Bytes::restore("/b", options(&disk, SyncPolicy::Never));
        assert_eq!(store.is_ok(), verify(&disk, "/b", &Progress::default()).is_ok());
        if let Ok(store) = store {
            store.check_invariants().unwrap();
            restored += 1;
        }
        disk.create_dir(Path::new(DIR)).unwrap();
        fuzzing::write_segment(&disk, Path::new(DIR), &log.0, log.1).unwrap();
        if let Ok(store) = Bytes::open(DIR, options(&disk, SyncPolicy::Never)) {
            store.check_invariants().unwrap();
            opened += 1;
        }
    }
    assert!(restored > 100 && opened > 100, "{restored} restored, {opened} opened");
}
