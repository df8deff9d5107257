//! A cache line of 64-bit words, which vector instructions compare together.

use crate::sync::atomic::{AtomicU64, Ordering};

/// Number of words in a [`Line`].
pub const LANES: usize = 8;

/// A cache line of [`LANES`] words, each read and written atomically.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Line(pub [AtomicU64; LANES]);

impl Line {
    /// Creates a line with `word` in every lane.
    pub fn filled(word: u64) -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(word)))
    }

    /// Returns the word of a lane, with a relaxed load.
    #[inline]
    pub fn get(&self, lane: usize) -> u64 {
        self.0[lane].load(Ordering::Relaxed)
    }

    /// Stores the word of a lane, with a relaxed store.
    #[inline]
    pub fn set(&self, lane: usize, word: u64) {
        self.0[lane].store(word, Ordering::Relaxed);
    }
}
