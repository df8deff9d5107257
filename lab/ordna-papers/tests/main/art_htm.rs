//! The tree under hardware transactions, or under their fallback lock where there are none.

use ordna_papers::art::ArtHtm;

ordna_testkit::conformance! {
    mod u64_words: ArtHtm<u64, u64> = ArtHtm::new();
    mod bytes_bytes: ArtHtm<[u8], [u8]> = ArtHtm::new();
}
