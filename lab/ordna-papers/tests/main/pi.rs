//! The conformance suite for PI.

use ordna_papers::Pi;
use ordna_papers::pi::PiOptions;
use ordna_testkit::erased::Overriding;

/// Small nodes, and a layer that is rebuilt by the thread that makes this due. So there are splits,
/// merges and rebuilds in every run, and no threads except the test's own.
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
