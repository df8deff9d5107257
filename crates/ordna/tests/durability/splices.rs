//! Writes at a position are logged as the bytes that they write, not as the whole value.

use std::path::Path;

use ordna::durability::{BackupOptions, SyncPolicy};

use super::disk::Model;
use super::steps::{Bytes, DIR, options, state_of};

#[test]
fn the_log_has_the_bytes_that_were_appended_and_repeats_them() {
    let disk = Model::new();
    let store = Bytes::open(DIR, options(&disk, SyncPolicy::Never)).unwrap();
    store.insert(b"large", &vec![1; 1 << 20]).unwrap();
    let before = store.durability().unwrap().appended;
    for round in 0..1000_usize {
        store.append(b"large", &round.to_be_bytes()).unwrap();
        store.append(b"new", &round.to_be_bytes()).unwrap();
        store.splice(b"large", |_| Some((round * 3, [2; 3]))).unwrap();
        if round == 400 {
            store
                .splice(b"large", |found| Some((found.map_or(0, |f| f.value.len()) + 9, b"far")))
                .unwrap();
            // The later records of the log are applied to the values in the backup.
            store.backup(&BackupOptions::new()).unwrap();
        }
        if round == 700 {
            store.remove(b"new").unwrap();
        }
    }
    // Each record takes a few words, and none contains the whole value.
    let appended = store.durability().unwrap().appended - before;
    assert!(appended < 3 * 1000 * 40, "{appended} bytes of records");
    let (state, path) = (state_of(&store), Path::new(DIR));
    drop(store);
    for _ in 0..2 {
        let store = Bytes::open(path, options(&disk, SyncPolicy::Never)).unwrap();
        assert!(state_of(&store) == state, "not what it was");
    }
}
