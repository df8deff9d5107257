//! Memory that the end of a snapshot takes: counted for the whole process, so this file has one
//! test.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use ordna_base::OrderedIndex;
use ordna_papers::nitro::{Options, Removed, Store};
use ordna_testkit::memory::{Counting, live_everywhere};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What a snapshot kept is divided into batches when it ends. No batch holds room for those behind.
#[test]
fn the_end_of_a_snapshot_takes_no_memory_to_speak_of() {
    const KEYS: u64 = 100_000;
    // Whoever ends the snapshot collects, when all is queued.
    let store: Store<u64, u64> = Store::with_options(Options::new().collectors(0));
    let write_all = |value: u64| {
        for key in 0..KEYS {
            store.insert(&key, &value).unwrap();
        }
    };
    write_all(1);
    let snapshot = store.snapshot();
    write_all(2);
    let most = Arc::new(AtomicI64::new(0));
    let seen = Arc::clone(&most);
    store.on_removal(Some(move |_: &Removed<'_, u64, u64>| {
        seen.fetch_max(live_everywhere(), Ordering::Relaxed);
    }));
    let before = live_everywhere();
    drop(snapshot);
    let taken = most.load(Ordering::Relaxed) - before;
    assert_eq!(store.validate().unwrap().nodes as u64, KEYS);
    // A version that waits takes four words, here and in the list that it comes from.
    assert!(taken < KEYS as i64 * 64, "{taken} bytes");
}
