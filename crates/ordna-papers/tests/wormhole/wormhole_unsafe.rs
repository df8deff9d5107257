//! The index for one thread keeps the same contract, put behind a lock.

use ordna_papers::WormholeUnsafe;

ordna_testkit::alone!(Alone [const LEAF: usize] [LEAF] WormholeUnsafe);

ordna_testkit::conformance! {
    mod u64_words: Alone<u64, u64, 128> = Alone::new(WormholeUnsafe::new());
    mod small_bytes_bytes: Alone<[u8], [u8], 4> = Alone::new(WormholeUnsafe::new());
    mod small_bytes_words: Alone<[u8], u64, 4> = Alone::new(WormholeUnsafe::new());
}
