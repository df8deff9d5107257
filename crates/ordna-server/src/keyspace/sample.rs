//! Random numbers and random samples of collections.

use std::collections::HashSet;

use crate::keyspace::collections::names::Named;

/// Elements that a sample with repetitions has at most: some tenths of a second, in which the connection
/// serves nobody else.
pub const MOST_DRAWN: usize = 1 << 20;

/// A random number, good enough to choose a key.
pub fn random() -> u64 {
    let mut bytes = [0; 8];
    // Without a source of random numbers any key will do.
    let _ = getrandom::fill(&mut bytes);
    u64::from_ne_bytes(bytes)
}

/// Random numbers from one seed (SplitMix64): a draw from the system for each would take a call.
#[derive(Debug)]
pub struct Draws(u64);

impl Draws {
    pub fn new() -> Self {
        Self(random())
    }

    /// A number below `end`, or 0.
    pub fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((u128::from(mixed ^ mixed >> 31) * end as u128) >> 64) as usize
    }
}

/// A collection from which a sample is drawn.
pub trait Sampled {
    /// Number of elements.
    fn len(&self) -> usize;

    /// All elements.
    fn all(&self) -> Vec<Named>;

    /// A random element, without a look at all of them; `None` if that is not possible.
    fn one(&self, draws: &mut Draws) -> Option<Named>;
}

/// Random elements: `count` different ones or, if it is negative, as many that may come again. `None` if
/// the names and values have more than `most` bytes.
pub fn sample(of: &impl Sampled, count: i64, most: usize) -> Option<Vec<Named>> {
    let (wanted, len) = (usize::try_from(count.unsigned_abs()).unwrap_or(usize::MAX), of.len());
    let mut draws = Draws::new();
    let mut left = most;
    let mut fits = |(name, value): &Named| {
        let bytes = name.len() + value.len() + 6;
        let fits = bytes <= left;
        left -= bytes.min(left);
        fits
    };
    if len == 0 || wanted == 0 {
        return Some(Vec::new());
    }
    if wanted.min(if count < 0 { wanted } else { len }) > most / 6 {
        return None;
    }
    // Few of many are drawn one by one. All are read if that takes less.
    let is_few = wanted < len / 64;
    let mut found = Vec::new();
    if is_few && let Some(first) = of.one(&mut draws) {
        let mut met = HashSet::new();
        let mut next = Some(first);
        // Of elements between wide gaps few are drawn twice.
        for _ in 0..wanted.saturating_mul(8) {
            let Some(drawn) = next.take().or_else(|| of.one(&mut draws)) else { break };
            if count < 0 || met.insert(drawn.0.clone()) {
                if !fits(&drawn) {
                    return None;
                }
                found.push(drawn);
            }
            if found.len() == wanted {
                return Some(found);
            }
        }
        found.clear();
        left = most;
    }
    let mut all = of.all();
    let len = all.len();
    let mut fits = |(name, value): &Named| {
        let bytes = name.len() + value.len() + 6;
        let fits = bytes <= left;
        left -= bytes.min(left);
        fits
    };
    if count < 0 {
        for _ in 0..wanted {
            let drawn = all.get(draws.below(len))?.clone();
            if !fits(&drawn) {
                return None;
            }
            found.push(drawn);
        }
        return Some(found);
    }
    if wanted < len {
        for at in 0..wanted {
            let other = at + draws.below(len - at);
            all.swap(at, other);
        }
        all.truncate(wanted);
    }
    all.iter().all(&mut fits).then_some(all)
}
