//! Entries that are backed up or logged are restored unchanged.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ordna::durability::{
    BackupError, BackupOptions, Disk, Mode, OpenOptions, Progress, SyncPolicy, install, verify,
};
use ordna::{MemoryBudget, Options, OrderedIndex, Put, Store, Write};
use ordna_testkit::random::Random;

use super::disk::Model;
use super::steps::{Bytes, DIR, compressions, options, state_of};

fn filled(entries: u64) -> Bytes {
    let store = Bytes::with_options(Options::new().clock(|| 1000));
    let mut random = Random::new(entries);
    for _ in 0..entries {
        let key = format!("key:{}", random.below(entries * 4));
        let value = vec![b'v'; random.below(200) as usize];
        let expires_at = (random.below(3) == 0).then(|| 2000 + random.below(1000));
        let put = Put { value: value.as_slice(), expires_at };
        store.modify_entry(key.as_bytes(), |_| ordna::Change::Put(put)).unwrap();
    }
    store
}

#[test]
fn a_backup_restores_to_the_same_entries_and_deadlines() {
    for compression in compressions() {
        for entries in [0, 1, 2, 5000, 60_000] {
            let disk = Model::new();
            let store = filled(entries);
            let backup = BackupOptions::new()
                .workers(2)
                .compression(compression)
                .metadata(|| b"stream 7".to_vec())
                .storage(Arc::new(disk.clone()));
            let summary = store.backup_to("/b", &backup).unwrap();
            assert_eq!(summary.entries, store.approximate_len() as u64);
            let restored = Bytes::restore("/b", options(&disk, SyncPolicy::Never)).unwrap();
            assert_eq!(state_of(&restored), state_of(&store));
            restored.check_invariants().unwrap();
            let report = verify(&disk, "/b", &Progress::default()).unwrap();
            assert_eq!(report.backups[0].entries, summary.entries);
            assert_eq!(
                report.backups[0].bytes + disk.read("/b/MANIFEST".as_ref()).len() as u64,
                summary.bytes
            );
            assert!(matches!(store.backup_to("/b", &backup), Err(BackupError::Exists { .. })));
        }
    }
}

#[test]
fn words_restore_too_and_other_kinds_are_refused() {
    let disk = Model::new();
    let store: Store<u64, u64> = Store::new();
    for key in 0..10_000 {
        store.insert(&(key * 7), &key).unwrap();
    }
    let backup = BackupOptions::new().storage(Arc::new(disk.clone()));
    store.backup_to("/b", &backup).unwrap();
    let open = || options(&disk, SyncPolicy::Never);
    let restored: Store<u64, u64> = Store::restore("/b", open()).unwrap();
    assert!(restored.range(..).eq(store.range(..)));
    let error = Store::<[u8], u64>::restore("/b", open()).unwrap_err();
    assert!(matches!(error, BackupError::OtherKind { .. }), "{error}");
    let error = Store::<u64, [u8]>::restore("/b", open()).unwrap_err();
    assert_eq!(error.to_string(), "/b/MANIFEST: holds u64 by u64, the store byte strings by u64");
}

#[test]
fn a_memory_limit_below_the_backup_is_told() {
    let disk = Model::new();
    let backup = BackupOptions::new().storage(Arc::new(disk.clone()));
    filled(5000).backup_to("/b", &backup).unwrap();
    let limited = options(&disk, SyncPolicy::Never).store(Options::new().memory_limit(10_000));
    let error = Bytes::restore("/b", limited).unwrap_err();
    assert!(matches!(error, BackupError::Store(ordna::Error::MemoryLimit { .. })), "{error}");
}

#[test]
fn a_store_above_its_memory_limit_is_opened() {
    const LIMIT: usize = 200_000;
    let disk = Model::new();
    let open = |limited: Options| {
        let limited = limited.clock(|| 1000).background_collector(false);
        Bytes::open(DIR, options(&disk, SyncPolicy::Never).store(limited)).unwrap()
    };
    let store = open(Options::new().memory_limit(LIMIT));
    let keys = (0_u64..).map(u64::to_be_bytes);
    let keys: Vec<_> = keys.take_while(|key| store.insert(key, b"v").is_ok()).collect();
    for key in &keys {
        assert!(store.set_expiry(key, Some(2000)).unwrap());
    }
    store.backup(&BackupOptions::new()).unwrap();
    let expected = state_of(&store);
    assert!(keys.len() > 1000 && expected.len() == keys.len(), "{} keys", keys.len());
    drop(store);
    let budget = |bytes| Options::new().memory_budget(&MemoryBudget::new(bytes));
    for (limit, limited) in [
        (LIMIT, Options::new().memory_limit(LIMIT)),
        (LIMIT / 2, Options::new().memory_limit(LIMIT / 2)),
        (LIMIT, budget(LIMIT)),
        (LIMIT / 2, budget(LIMIT / 2)),
    ] {
        let store = open(limited);
        assert_eq!(state_of(&store), expected);
        let refused = store.insert(b"new", b"v").unwrap_err();
        assert!(matches!(refused, ordna::Error::MemoryLimit { limit: told } if told == limit));
    }
    let store = open(budget(LIMIT / 2));
    store.remove_many(&keys).unwrap();
    store.collect_garbage();
    store.insert(b"new", b"v").unwrap();
}

#[test]
fn a_backup_becomes_the_directory_of_a_store() {
    let disk = Model::new();
    let store = filled(3000);
    let backup = BackupOptions::new().storage(Arc::new(disk.clone()));
    let progress = Progress::default();
    let summary = store.backup_to("/b", &backup.progress(&progress)).unwrap();
    let entries = store.range(..).count() as u64;
    assert_eq!(progress.entries(), entries);
    assert!((1..=summary.bytes).contains(&progress.bytes()), "{progress:?}, {summary:?}");
    let progress = Progress::default();
    let restored = Bytes::restore("/b", options(&disk, SyncPolicy::Never).progress(&progress));
    assert_eq!(state_of(&restored.unwrap()), state_of(&store));
    assert_eq!((progress.entries(), progress.expected_entries()), (entries, entries));
    let expected = progress.expected_bytes();
    assert!(
        (1..=expected).contains(&progress.bytes()) && expected <= summary.bytes,
        "{progress:?}"
    );
    install(&disk, "/b", DIR, &Progress::default()).unwrap();
    let opened = Bytes::open(DIR, options(&disk, SyncPolicy::Always)).unwrap();
    assert_eq!(state_of(&opened), state_of(&store));
    opened.insert(b"new", b"1").unwrap();
    drop(opened);
    let again = Bytes::open(DIR, options(&disk, SyncPolicy::Always)).unwrap();
    assert_eq!(again.get(b"new".as_slice()), Some(b"1".to_vec()));
    drop(again);
    let error = install(&disk, "/b", DIR, &Progress::default()).unwrap_err();
    assert!(matches!(error, BackupError::Exists { .. }), "{error}");
}

#[test]
fn older_backups_are_kept_as_asked_and_needless_segments_go() {
    let disk = Model::new();
    let store = Bytes::open(DIR, options(&disk, SyncPolicy::Never)).unwrap();
    for round in 0_u64..5 {
        store.insert(b"round", &round.to_be_bytes()).unwrap();
        store.backup(&BackupOptions::new().workers(1).keep(2)).unwrap();
    }
    let mut names: Vec<String> =
        disk.files().iter().map(|path| path.display().to_string()).collect();
    names.retain(|name| name.ends_with("MANIFEST") || name.contains("/log-"));
    assert_eq!(
        names,
        [
            "/data/backup-0000000005/MANIFEST",
            "/data/backup-0000000006/MANIFEST",
            "/data/log-0000000006"
        ]
    );
}

#[test]
fn two_stores_cannot_have_one_directory_on_the_disk() {
    let dir = std::env::temp_dir().join(format!("ordna-two-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    let first = Bytes::open(&dir, OpenOptions::new()).unwrap();
    let error = Bytes::open(&dir, OpenOptions::new()).unwrap_err();
    assert!(matches!(&error, BackupError::InUse { dir: named } if *named == dir), "{error}");
    first.insert(b"k", b"v").unwrap();
    first.backup(&BackupOptions::new()).unwrap();
    assert!(verify(&Disk, &dir, &Progress::default()).unwrap().log.is_some());
    drop(first);
    assert_eq!(
        Bytes::open(&dir, OpenOptions::new()).unwrap().get(b"k".as_slice()),
        Some(b"v".to_vec())
    );
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn a_store_without_a_directory_says_so() {
    let store = Bytes::new();
    assert!(matches!(store.backup(&BackupOptions::new()), Err(BackupError::NoDirectory)));
    assert!(store.durability().is_none() && store.log_position() == 0);
    assert_eq!(store.log_group(|| 7), Ok(7));
    store.sync_log().unwrap();
}

#[test]
fn a_lifted_deadline_outlives_a_restart_after_it() {
    use std::sync::atomic::{AtomicU64, Ordering};
    let disk = Model::new();
    let time = Arc::new(AtomicU64::new(1000));
    let opened = || {
        let time = Arc::clone(&time);
        let store = Options::new().clock(move || time.load(Ordering::SeqCst));
        let options = OpenOptions::new().storage(Arc::new(disk.clone())).store(store);
        Bytes::open(DIR, options).unwrap()
    };
    let store = opened();
    store.insert_until(b"lifted", b"1", 2000).unwrap();
    store.insert_until(b"gone", b"1", 2000).unwrap();
    assert_eq!(store.set_expiry(b"lifted", None), Ok(true));
    drop(store);
    time.store(3000, Ordering::SeqCst);
    let store = opened();
    assert_eq!(store.get(b"lifted".as_slice()), Some(b"1".to_vec()));
    assert_eq!(store.get(b"gone".as_slice()), None);
    assert_eq!(store.approximate_len(), 1);
}

#[test]
fn a_successor_begins_empty_and_the_log_says_so() {
    let disk = Model::new();
    let store = Bytes::open(DIR, options(&disk, SyncPolicy::Always)).unwrap();
    store.write_batch(&[Write::put(b"a", b"1"), Write::put(b"b", b"2")]).unwrap();
    let next = store.successor(Options::new()).unwrap();
    next.insert(b"c", b"3").unwrap();
    drop(store);
    next.backup(&BackupOptions::new().mode(Mode::Snapshot)).unwrap();
    next.insert(b"d", b"4").unwrap();
    drop(next);
    let store = Bytes::open(DIR, options(&disk, SyncPolicy::Always)).unwrap();
    let keys: Vec<_> = store.range(..).map(|(key, _)| key).collect();
    assert_eq!(keys, [b"c", b"d"]);
}

#[test]
fn a_drop_ends_the_log_and_releases_the_directory_whatever_lives_on() {
    let dir = std::env::temp_dir().join(format!("ordna-drop-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    let mut kept = Vec::new();
    for round in 0..100_u64 {
        // Collectors run, so one of them may hold the store's memory when the store is dropped.
        let store: Store<u64, u64> = Store::open(&dir, OpenOptions::new()).unwrap();
        let recovery = store.durability().unwrap().recovery;
        assert!(recovery.log.cuts.is_empty(), "round {round}: {:?}", recovery.log.cuts);
        assert_eq!(store.approximate_len(), round as usize);
        for value in 0..50 {
            drop(store.snapshot());
            store.insert(&round, &value).unwrap();
        }
        kept.push(store.snapshot());
        let successor = (round == 50).then(|| store.successor(Options::new()).unwrap());
        drop(store);
        if let Some(successor) = successor {
            // The directory belongs to the successor, which is empty.
            for key in 0..=round {
                successor.insert(&key, &49).unwrap();
            }
            let refused = Store::<u64, u64>::open(&dir, OpenOptions::new());
            assert!(matches!(refused, Err(BackupError::InUse { .. })));
        }
    }
    assert!(kept.iter().zip(0..).all(|(snapshot, round)| snapshot.get(&round) == Some(49)));
    std::fs::remove_dir_all(&dir).unwrap();
}

/// At the end of the log, its deadlines may have passed or been removed. The collector must be
/// awake for the deadlines of later writes.
#[test]
fn keys_expire_in_time_after_a_start() {
    let disk = Model::new();
    let options = || OpenOptions::new().sync(SyncPolicy::Never).storage(Arc::new(disk.clone()));
    for _ in 0..5 {
        let store = Bytes::open(DIR, options()).unwrap();
        store.insert_until(b"short", b"1", store.now() + 20).unwrap();
        store.remove(b"short").unwrap();
        drop(store);
        let store = Bytes::open(DIR, options()).unwrap();
        std::thread::sleep(Duration::from_millis(100));
        store.insert_until(b"later", b"1", store.now() + 50).unwrap();
        let begin = Instant::now();
        while store.statistics().expiring.0 > 0 {
            assert!(begin.elapsed() < Duration::from_secs(20), "the key is there still");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
