//! HydraList, with search layers that follow at once.

use ordna_papers::HydraList;
use ordna_papers::hydralist::layer::{ArtLayer, LockedLayer};
use ordna_papers::hydralist::{Options, Update};

type Small<K, V> = HydraList<K, V, LockedLayer<K>, 4>;
type Plain<K, V> = HydraList<K, V, LockedLayer<K>, 64>;
type SmallArt<K, V> = HydraList<K, V, ArtLayer<K>, 4>;

fn at_once() -> Options {
    Options { update: Update::Synchronous, ..Options::default() }
}

fn sorted() -> Options {
    Options { sorted: true, ..at_once() }
}

ordna_testkit::conformance! {
    mod small_u64_words: Small<u64, u64> = HydraList::with(&at_once());
    mod small_u64_bytes: Small<u64, [u8]> = HydraList::with(&at_once());
    mod small_bytes_words: Small<[u8], u64> = HydraList::with(&at_once());
    mod small_bytes_bytes: Small<[u8], [u8]> = HydraList::with(&at_once());
    mod u64_words: Plain<u64, u64> = HydraList::with(&at_once());
    mod u64_bytes: Plain<u64, [u8]> = HydraList::with(&at_once());
    mod bytes_words: Plain<[u8], u64> = HydraList::with(&at_once());
    mod bytes_bytes: Plain<[u8], [u8]> = HydraList::with(&at_once());
    mod sorted_u64_words: Small<u64, u64> = HydraList::with(&sorted());
    mod sorted_bytes_words: Small<[u8], u64> = HydraList::with(&sorted());
    mod art_u64_words: SmallArt<u64, u64> = HydraList::with(&at_once());
    mod art_bytes_words: SmallArt<[u8], u64> = HydraList::with(&at_once());
}
