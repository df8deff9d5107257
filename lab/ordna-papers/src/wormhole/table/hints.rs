//! Hints that tell a search of the hash table at which prefix length to begin.
//!
//! A search looks for the longest prefix of its key that the table has. How long that is depends on
//! the region of the key space: short where anchors are sparse, long where they are dense. So the
//! table keeps a length for each *beginning*: the first `depth` bytes of a key, where `depth` is
//! large enough to tell most leaves apart. A length is a sample taken at the last split or merge in
//! that region, and two beginnings may share one. A wrong hint costs a search one or two extra
//! steps.
//!
//! Source: our own; the paper begins with half of the key's length (§2.3).

use crate::wormhole::hash;

/// Number of samples over which the moving mean extends.
const SAMPLES: usize = 32;
/// Target number of leaves per beginning, if the anchors are long enough to reach it.
const LEAVES: usize = 4;
/// Prefix length up to which the mean is as good as separate lengths, because few lengths exist.
const SHORT: usize = 8;

/// The prefix lengths at which recent searches would have ended.
#[derive(Debug, Clone, Default)]
pub struct Hints {
    /// Number of key bytes that select a length. With 0, the mean is used for all keys.
    pub depth: usize,
    /// Lengths, indexed by the hash of a beginning; 0 if not known.
    lengths: Vec<u16>,
    shift: u32,
    /// Moving mean, in bytes times 256, of the samples that have no place in `lengths`.
    mean: usize,
}

impl Hints {
    /// Chooses the depth, given the number of prefixes of each length, and clears all lengths.
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

    /// Returns the prefix length at which to begin the search of `key`, and a hash of the key's
    /// first bytes with the number of bytes it covers.
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

    /// Records that searches of keys that begin like `anchor` end at `length`.
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
