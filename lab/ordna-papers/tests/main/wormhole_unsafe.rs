//! The index for one thread, wrapped in a lock, conforms to the same contract.

use crate::alone::Alone;
use ordna_papers::WormholeUnsafe;

ordna_testkit::conformance! {
    mod u64_words: Alone<WormholeUnsafe<u64, u64>> = Alone::new(WormholeUnsafe::new());
    mod small_bytes_bytes: Alone<WormholeUnsafe<[u8], [u8], 4>> = Alone::new(WormholeUnsafe::new());
    mod small_bytes_words: Alone<WormholeUnsafe<[u8], u64, 4>> = Alone::new(WormholeUnsafe::new());
}
