//! Where a search begins.
//!
//! How long the longest prefix of a key is differs by where the key stands: among few neighbours it
//! is short, among many long. So the table keeps a length for each beginning of keys: the first
//! `depth` bytes, as many as tell some leaves from others. Lengths are samples, of the last split
//! or merge there; two beginnings may share one. A wrong one costs a search a step or two.
//!
//! Source: ours; the paper begins in the middle (§2.3).

use crate::wormhole::hash;

/// How many samples the mean goes back.
const SAMPLES: usize = 32;
/// Leaves that one beginning has, at most, where anchors are long enough.
const LEAVES: usize = 4;
/// Up to this length all lengths are so few that the mean is as good.
const SHORT: usize = 8;

/// Where searches ended of late.
#[derive(Debug, Clone, Default)]
pub struct Hints {
    /// This many bytes of a key select its length; 0: none, the mean serves all.
    pub depth: usize,
    /// By the hash of these bytes; 0: not known.
    lengths: Vec<u16>,
    shift: u32,
    /// The moving mean of those that have no place in `lengths`, in bytes, times 256.
    mean: usize,
}

impl Hints {
    /// Chooses the depth from how many prefixes of each length there are, and forgets all lengths.
    pub fn choose(&mut self, prefixes: &[u32], leaves: usize) {
        self.depth = if prefixes.len() <= SHORT + 1 {
            0
        } else {
            let most = *prefixes.iter().max().unwrap_or(&0) as usize;
            let enough = leaves.div_ceil(LEAVES).min(most);
            prefixes.iter().position(|count| *count as usize >= enough).unwrap_or(0)
        };
        let beginnings = if self.depth == 0 { 0 } else { prefixes[self.depth] as usize };
        let places = if beginnings == 0 { 0 } else { (beginnings * 2).next_power_of_two().max(2) };
        self.shift = 64 - places.max(2).ilog2();
        self.lengths = vec![0; places];
    }

    #[inline]
    fn place(&self, hash: u32) -> usize {
        (hash::spread(hash) >> self.shift) as usize
    }

    /// Where to begin the search of a key, and a hash of how many of its bytes is known by that.
    #[inline]
    pub fn first(&self, key: &[u8]) -> (usize, usize, u32) {
        let mean = (self.mean + 128) / 256;
        if self.depth == 0 || key.len() < self.depth {
            return (mean, 0, hash::EMPTY);
        }
        let hash = hash::extend(hash::EMPTY, &key[..self.depth]);
        let known = self.lengths.get(self.place(hash)).copied().unwrap_or(0);
        (if known == 0 { mean } else { usize::from(known) }, self.depth, hash)
    }

    /// Keys that begin like this anchor end at this length.
    pub fn sample(&mut self, anchor: &[u8], length: usize) {
        if self.depth == 0 || anchor.len() < self.depth {
            self.mean = (self.mean * (SAMPLES - 1) + length * 256) / SAMPLES;
        } else {
            let place = self.place(hash::extend(hash::EMPTY, &anchor[..self.depth]));
            if let Some(known) = self.lengths.get_mut(place) {
                *known = u16::try_from(length).unwrap_or(u16::MAX);
            }
        }
    }

    pub fn bytes(&self) -> usize {
        self.lengths.capacity() * size_of::<u16>()
    }
}
