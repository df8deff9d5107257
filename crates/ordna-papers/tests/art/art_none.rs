//! The tree for one thread keeps the same contract, put behind a lock.

use ordna_base::{Key, Value};
use ordna_papers::art::{ArtNone, Minimal, Protocol, Unsynchronized};

ordna_testkit::alone!(Alone [P: Protocol] [P] ArtNone);

fn alone<K: Key + ?Sized, V: Value + ?Sized>() -> Alone<K, V, Unsynchronized> {
    Alone::new(ArtNone::new())
}

ordna_testkit::conformance! {
    mod u64_words: Alone<u64, u64, Unsynchronized> = alone();
    mod u64_bytes: Alone<u64, [u8], Unsynchronized> = alone();
    mod bytes_words: Alone<[u8], u64, Unsynchronized> = alone();
    mod bytes_bytes: Alone<[u8], [u8], Unsynchronized> = alone();
    mod minimal_words: Alone<u64, u64, Minimal<Unsynchronized>> = Alone::new(ArtNone::minimal());
    mod minimal_bytes: Alone<[u8], [u8], Minimal<Unsynchronized>> = Alone::new(ArtNone::minimal());
}
