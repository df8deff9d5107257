//! The oracle passes its own suite.

use ordna_base::Locked;

ordna_testkit::count_memory!();

ordna_testkit::conformance! {
    mod u64_words: Locked<u64, u64> = Locked::new();
    mod u64_bytes: Locked<u64, [u8]> = Locked::new();
    mod bytes_words: Locked<[u8], u64> = Locked::new();
    mod bytes_bytes: Locked<[u8], [u8]> = Locked::new();
}
