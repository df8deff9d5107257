//! PI: the contract.

use ordna_papers::Pi;
use ordna_papers::pi::PiOptions;
use ordna_testkit::erased::Overriding;

/// Small nodes, and the layer rebuilt by the thread that makes it due: splits, merges and rebuilds
/// on every run, and no thread but the test's own.
fn small() -> PiOptions {
    PiOptions { node_entries: 4, rebuild_in_background: false, ..PiOptions::default() }
}

fn alone() -> PiOptions {
    PiOptions { rebuild_in_background: false, ..PiOptions::default() }
}

ordna_testkit::conformance! {
    mod u64_words: Overriding<Pi<u64, u64>> = Overriding(Pi::with(&alone()));
    mod u64_words_small: Overriding<Pi<u64, u64>> = Overriding(Pi::with(&small()));
    mod u64_bytes_small: Overriding<Pi<u64, [u8]>> = Overriding(Pi::with(&small()));
    mod bytes_words: Overriding<Pi<[u8], u64>> = Overriding(Pi::with(&alone()));
    mod bytes_words_small: Overriding<Pi<[u8], u64>> = Overriding(Pi::with(&small()));
    mod bytes_bytes_small: Overriding<Pi<[u8], [u8]>> = Overriding(Pi::with(&small()));
}
