//! Helpers of the tests of the radix trees.

#![allow(dead_code, unused_imports, unused_macros, reason = "not every file uses all of it")]

use std::ops::{Bound, ControlFlow};

use ordna_base::{Direction, OrderedIndex};
use ordna_papers::art::{Art, Concurrent};

pub type Bytes<P> = Art<[u8], u64, P>;
pub type Pairs = Vec<(Vec<u8>, u64)>;

/// Two leaves below a node with the prefix "bc", below the root's slot "a".
pub const FORK: [&[u8]; 2] = [b"abc1", b"abc2"];

/// Returns a tree of these keys, each with its position as the value.
pub fn with<P: Concurrent>(keys: &[&[u8]]) -> Bytes<P> {
    let index = Bytes::<P>::new();
    for (key, value) in keys.iter().zip(0..) {
        assert_eq!(index.insert(key, &value), Ok(None));
    }
    index
}

pub fn scan<P: Concurrent>(index: &Bytes<P>, from: &[u8], direction: Direction) -> Pairs {
    let (lower, upper) = match direction {
        Direction::Ascending => (Bound::Included(from), Bound::Unbounded),
        Direction::Descending => (Bound::Unbounded, Bound::Included(from)),
    };
    let mut found = Vec::new();
    index.visit(lower, upper, direction, |key, value| {
        found.push((key.to_vec(), *value));
        ControlFlow::Continue(())
    });
    found
}

pub fn keys(pairs: &Pairs) -> Vec<&[u8]> {
    pairs.iter().map(|(key, _)| key.as_slice()).collect()
}

/// Creates a test of a function for each of these protocols.
macro_rules! under {
    ($($test:ident: $($protocol:ident),+;)+) => {
        $(mod $test {
            use super::*;

            $(
                #[test]
                #[expect(non_snake_case, reason = "the name of the protocol")]
                fn $protocol() {
                    super::$test::<$protocol>();
                }
            )+
        })+
    };
}
pub(crate) use under;
