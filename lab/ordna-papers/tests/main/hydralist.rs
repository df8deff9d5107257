//! HydraList whose search layer follows at once.

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

ordna_testkit::conformance! {
    mod small_u64_words: Small<u64, u64> = HydraList::with(&at_once());
    mod small_u64_bytes: Small<u64, [u8]> = HydraList::with(&at_once());
    mod small_bytes_words: Small<[u8], u64> = HydraList::with(&at_once());
    mod small_bytes_bytes: Small<[u8], [u8]> = HydraList::with(&at_once());
    mod u64_words: HydraList<u64, u64> = HydraList::with(&at_once());
    mod bytes_bytes: HydraList<[u8], [u8]> = HydraList::with(&at_once());
    mod sorted_u64_words: Small<u64, u64> = HydraList::with(&sorted());
    mod sorted_bytes_words: Small<[u8], u64> = HydraList::with(&sorted());
}
