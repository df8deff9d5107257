//! The conformance suite for HydraList, with a search layer that is updated immediately.

use ordna_papers::HydraList;
use ordna_papers::hydralist::layer::ArtLayer;
use ordna_papers::hydralist::{HydraOptions, Update};

type Small<K, V> = HydraList<K, V, ArtLayer<K>, 4>;

fn at_once() -> HydraOptions {
    HydraOptions { update: Update::Synchronous, ..HydraOptions::default() }
}

fn sorted() -> HydraOptions {
    HydraOptions { sorted: true, ..at_once() }
}

/// Options with which the search layer is updated in the critical section and fingerprints are
/// compared byte by byte.
fn before_the_steps() -> HydraOptions {
    HydraOptions { update: Update::Inside, simd: false, ..HydraOptions::default() }
}

ordna_testkit::conformance! {
    mod inside_u64_words: Small<u64, u64> = HydraList::with(&before_the_steps());
    mod inside_bytes_bytes: HydraList<[u8], [u8]> = HydraList::with(&before_the_steps());
    mod small_u64_words: Small<u64, u64> = HydraList::with(&at_once());
    mod small_u64_bytes: Small<u64, [u8]> = HydraList::with(&at_once());
    mod small_bytes_words: Small<[u8], u64> = HydraList::with(&at_once());
    mod small_bytes_bytes: Small<[u8], [u8]> = HydraList::with(&at_once());
    mod u64_words: HydraList<u64, u64> = HydraList::with(&at_once());
    mod bytes_bytes: HydraList<[u8], [u8]> = HydraList::with(&at_once());
    mod sorted_u64_words: Small<u64, u64> = HydraList::with(&sorted());
    mod sorted_bytes_words: Small<[u8], u64> = HydraList::with(&sorted());
}

/// If inserts update the search layer in the critical section, no replica lags behind.
#[test]
fn updates_inside_the_critical_section_leave_no_lag() {
    use ordna_base::OrderedIndex;
    use ordna_papers::topology::Topology;
    let options = HydraOptions { topology: Topology::declared(2), ..before_the_steps() };
    let index: Small<u64, u64> = HydraList::with(&options);
    std::thread::scope(|scope| {
        for thread in 0..2_u64 {
            let index = &index;
            scope.spawn(move || {
                for key in 0..2000 {
                    index.insert(&(key * 2 + thread), &key).unwrap();
                }
                for key in 0..1000 {
                    index.remove(&(key * 2 + thread));
                }
            });
        }
    });
    let statistics = index.statistics();
    assert_eq!(statistics.lag, 0);
    assert!(statistics.splits > 100 && statistics.merges > 0, "{statistics:?}");
    index.check_invariants().unwrap();
}
