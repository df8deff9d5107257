//! Closures that use their own store while it has a log, whose locks come before those of the tree.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use ordna::{BackupOptions, Change, Options, SyncPolicy};

use super::disk::Model;
use super::steps::{Bytes, DIR, options};

/// If the closure of a write writes to its own store, it panics instead of waiting for the log's
/// lock of its own key. Nothing is changed, and the log works.
#[test]
fn a_closure_that_uses_its_own_logged_store_panics() {
    let disk = Model::new();
    let store = Arc::new(Bytes::open(DIR, options(&disk, SyncPolicy::Never)).unwrap());
    store.put("a", "1").unwrap();
    type Use = fn(&Bytes);
    let uses: [(&str, Use); 8] = [
        ("close", |store| _ = store.close_log()),
        ("put", |store| store.put("a", "2").unwrap()),
        ("remove", |store| _ = store.remove("a").unwrap()),
        ("batch", |store| store.write_batch(&[]).unwrap()),
        ("transaction", |store| store.transaction(|tx| tx.put("a", "2")).unwrap()),
        ("group", |store| store.log_group(|| ()).unwrap()),
        ("backup", |store| _ = store.backup(&BackupOptions::new())),
        ("successor", |store| _ = store.successor(Options::new())),
    ];
    for (name, run) in uses {
        let (tell, told) = channel();
        let used = Arc::clone(&store);
        // A separate thread, so that the test does not wait for it after a failure.
        let writer = thread::spawn(move || {
            let write = || {
                used.modify("a", |_| {
                    run(&used);
                    Change::Put(b"3".to_vec())
                })
            };
            tell.send(catch_unwind(AssertUnwindSafe(write)).is_err()).unwrap();
        });
        let panics = told.recv_timeout(Duration::from_secs(10));
        assert!(panics.unwrap_or_else(|_| panic!("{name} waits for itself")), "{name}");
        writer.join().unwrap();
    }
    assert_eq!(store.get("a"), Some(b"1".to_vec()));
    store.put("b", "1").unwrap();
    drop(store);
    let again = Bytes::open(DIR, options(&disk, SyncPolicy::Never)).unwrap();
    assert_eq!(again.len(), 2);
}
