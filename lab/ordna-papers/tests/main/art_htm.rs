//! The tree with hardware transactions, if the processor supports them, and with the fallback lock.

use ordna_papers::art::ArtHtm;

ordna_testkit::conformance! {
    mod u64_words: ArtHtm<u64, u64> = ArtHtm::new();
    mod bytes_bytes: ArtHtm<[u8], [u8]> = ArtHtm::new();
    mod fallback: ArtHtm<u64, u64> = ArtHtm::without_transactions();
}

#[test]
fn the_fallback_has_no_transactions() {
    assert!(!ArtHtm::<u64, u64>::without_transactions().has_transactions());
}
