//! The Adaptive Radix Tree for several threads, with normal and minimal node sizes.
//!
//! Each protocol is tested once with every kind of keys and values: words with the normal sizes,
//! bytes with the minimal ones.

use ordna_papers::art::{Art, Coupling, Minimal, Olc, Rowex};
use ordna_papers::{ArtCoupling, ArtOlc, ArtRowex};

ordna_testkit::conformance! {
    mod olc_u64_words: ArtOlc<u64, u64> = ArtOlc::new();
    mod olc_bytes_words: ArtOlc<[u8], u64> = ArtOlc::new();
    mod olc_minimal_u64_bytes: Art<u64, [u8], Minimal<Olc>> = Art::new();
    mod olc_minimal_bytes_bytes: Art<[u8], [u8], Minimal<Olc>> = Art::new();
    mod rowex_u64_words: ArtRowex<u64, u64> = ArtRowex::new();
    mod rowex_bytes_words: ArtRowex<[u8], u64> = ArtRowex::new();
    mod rowex_minimal_u64_bytes: Art<u64, [u8], Minimal<Rowex>> = Art::new();
    mod rowex_minimal_bytes_bytes: Art<[u8], [u8], Minimal<Rowex>> = Art::new();
    mod coupling_u64_words: ArtCoupling<u64, u64> = ArtCoupling::new();
    mod coupling_bytes_words: ArtCoupling<[u8], u64> = ArtCoupling::new();
    mod coupling_minimal_u64_bytes: Art<u64, [u8], Minimal<Coupling>> = Art::new();
    mod coupling_minimal_bytes_bytes: Art<[u8], [u8], Minimal<Coupling>> = Art::new();
}
