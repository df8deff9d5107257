//! Parses arbitrary bytes as requests. The parser does not panic, allocates nothing for declared
//! lengths, and returns the same commands and the same error however the bytes arrive.
//!
//! `cargo +nightly fuzz run requests`
#![no_main]

use libfuzzer_sys::fuzz_target;
use ordna_server::wire::request::parse_in_pieces;

fuzz_target!(|input: &[u8]| {
    let Some((&piece, bytes)) = input.split_first() else { return };
    let whole = parse_in_pieces(bytes, bytes.len());
    let pieces = parse_in_pieces(bytes, usize::from(piece) % 40 + 1);
    assert_eq!(whole, pieces);
    let stored: usize = whole.0.iter().flatten().map(Vec::len).sum();
    assert!(stored <= bytes.len());
});
