//! Wormhole, in its three modes.

use ordna::index::wormhole::{Wormhole, WormholeFaithful};

ordna_testkit::conformance! {
    mod u64_words: Wormhole<u64, u64> = Wormhole::new();
    mod u64_bytes: Wormhole<u64, [u8]> = Wormhole::new();
    mod bytes_words: Wormhole<[u8], u64> = Wormhole::new();
    mod bytes_bytes: Wormhole<[u8], [u8]> = Wormhole::new();
    mod small_u64_words: Wormhole<u64, u64, 4> = Wormhole::new();
    mod small_u64_bytes: Wormhole<u64, [u8], 4> = Wormhole::new();
    mod small_bytes_words: Wormhole<[u8], u64, 4> = Wormhole::new();
    mod small_bytes_bytes: Wormhole<[u8], [u8], 4> = Wormhole::new();
    mod faithful_u64_words: WormholeFaithful<u64, u64, 4> = WormholeFaithful::new();
    mod faithful_bytes_bytes: WormholeFaithful<[u8], [u8], 4> = WormholeFaithful::new();
}
