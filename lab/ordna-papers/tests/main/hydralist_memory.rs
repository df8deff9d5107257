//! Memory that background threads allocate and free, counted for the whole process.

use std::time::{Duration, Instant};

use ordna_base::OrderedIndex;
use ordna_papers::HydraList;
use ordna_papers::hydralist::HydraOptions;
use ordna_papers::hydralist::layer::ArtLayer;
use ordna_papers::search_layer::SearchLayer;
use ordna_papers::topology::Topology;
use ordna_papers::wormhole::layer::TableLayer;
use ordna_testkit::memory::live_everywhere;
use ordna_testkit::shorthand::Shorthand as _;

use crate::own_process::in_own_process;

/// Number of bytes that threads may keep for a batch of frees; a data node has 1,280 bytes.
const SLACK: i64 = 1 << 20;

/// Returns the remaining bytes, after waiting up to ten seconds for background threads: one that
/// was suspended while it read frees the garbage of that time later.
fn settled(left: impl Fn() -> i64) -> i64 {
    let until = Instant::now() + Duration::from_secs(10);
    while left().abs() >= SLACK && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
    left()
}

fn check<L: SearchLayer<[u8]>>() {
    const KEYS: u64 = 30_000;
    let cycle = |index: &HydraList<[u8], [u8], L>| {
        for n in 0..KEYS {
            index.insert(&n.to_be_bytes(), &[7; 50]).unwrap();
        }
        let full = live_everywhere();
        for n in 0..KEYS {
            assert!(index.remove(&n.to_be_bytes()).is_some());
        }
        index.check_invariants().unwrap();
        full
    };
    let options = HydraOptions { topology: Topology::declared(2), ..HydraOptions::default() };
    // The first index fills the caches of the threads.
    cycle(&HydraList::with(&options));
    let before = live_everywhere();
    let index = HydraList::with(&options);
    let full: Vec<i64> = (0..5).map(|_| cycle(&index) - before).collect();
    let empty = settled(|| live_everywhere() - before);
    assert!(full.iter().all(|bytes| *bytes < full[0] + full[0] / 5 + SLACK), "{full:?}");
    assert!(empty < SLACK, "{empty} bytes of {full:?} stay");
    let statistics = index.statistics();
    assert!(statistics.merges > 1000, "{statistics:?}");
    drop((index, full));
    let left = live_everywhere() - before;
    assert!(left.abs() < 4096, "{left} bytes are left after the drop");
}

/// Enough keys for nodes in slabs. Freed nodes are reused, and slabs are freed.
fn check_slabs() {
    const KEYS: u64 = 600_000;
    let before = live_everywhere();
    let cycle = |index: &HydraList<u64, u64>| {
        let key = |n: u64| n.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        index.put_all((0..KEYS).map(|n| (key(n), n)));
        let full = live_everywhere();
        let told = index.memory_usage().total() as i64;
        assert!((full - before - told).abs() < SLACK, "{} bytes, and {told} told", full - before);
        assert!((0..KEYS).all(|n| index.get(&key(n)) == Some(n)));
        for n in 0..KEYS {
            assert_eq!(index.remove(&key(n)), Some(n));
        }
        index.check_invariants().unwrap();
        full
    };
    let index = HydraList::new();
    let full: Vec<i64> = (0..3).map(|_| cycle(&index) - before).collect();
    // Dead nodes that are not freed yet keep slabs, which the index must report.
    let told = || index.memory_usage().total() as i64;
    let more = settled(|| live_everywhere() - before - told());
    assert!(more.abs() < SLACK, "{more} bytes more than the {} told", told());
    assert!(full.iter().all(|bytes| *bytes < full[0] + full[0] / 5 + SLACK), "{full:?}");
    drop((index, full));
    let left = live_everywhere() - before;
    assert!(left.abs() < 4096, "{left} bytes are left after the drop");
}

#[test]
fn nodes_and_records_come_back_in_the_background_and_on_drop() {
    let test = "hydralist_memory::nodes_and_records_come_back_in_the_background_and_on_drop";
    in_own_process(test, || {
        check::<ArtLayer<[u8]>>();
        check::<TableLayer<[u8]>>();
        check_slabs();
    });
}
