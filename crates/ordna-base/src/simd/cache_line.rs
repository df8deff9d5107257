//! One cache line of words.

use crate::sync::atomic::{AtomicU64, Ordering};

/// Words in a [`Line`].
pub const LANES: usize = 8;

/// One cache line of words.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Line(pub [AtomicU64; LANES]);

impl Line {
    /// Every word the same.
    pub fn filled(word: u64) -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(word)))
    }

    /// One word, relaxed.
    #[inline]
    pub fn get(&self, lane: usize) -> u64 {
        self.0[lane].load(Ordering::Relaxed)
    }

    /// Overwrites one word, relaxed.
    #[inline]
    pub fn set(&self, lane: usize, word: u64) {
        self.0[lane].store(word, Ordering::Relaxed);
    }
}
