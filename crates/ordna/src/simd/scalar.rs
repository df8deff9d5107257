//! The specification: one relaxed load per word.

use super::Line;
use crate::sync::atomic::Ordering;

#[inline]
pub fn at_most(line: &Line, word: u64) -> u32 {
    line.0.iter().enumerate().fold(0, |mask, (lane, other)| {
        mask | u32::from(other.load(Ordering::Relaxed) <= word) << lane
    })
}
