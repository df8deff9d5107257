//! The tree for one thread, wrapped in a lock, conforms to the same contract.

use crate::alone::Alone;
use ordna_papers::art::{ArtNone, Minimal, Unsynchronized};

type Small<K, V> = ArtNone<K, V, Minimal<Unsynchronized>>;

ordna_testkit::conformance! {
    mod u64_words: Alone<ArtNone<u64, u64>> = Alone::new(ArtNone::new());
    mod bytes_words: Alone<ArtNone<[u8], u64>> = Alone::new(ArtNone::new());
    mod minimal_u64_bytes: Alone<Small<u64, [u8]>> = Alone::new(ArtNone::minimal());
    mod minimal_bytes_bytes: Alone<Small<[u8], [u8]>> = Alone::new(ArtNone::minimal());
}
