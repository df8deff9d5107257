//! Random numbers, which are the same for all candidates of a round.

/// SplitMix64 (Steele, Lea, Flood 2014).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Returns a number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }

    /// Returns a number in [0, 1).
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Spreads a number over all bits.
pub fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// Draws keys: uniformly, or by Zipf's law with exponent .99, with the popular ones spread over the
/// key space.
pub enum Keys {
    Uniform(u64),
    /// Sums of the frequencies up to each rank.
    Zipf(Vec<f64>),
}

impl Keys {
    pub fn zipf(entries: u64) -> Self {
        let mut sum = 0.0;
        let sums = (1..=entries).map(|rank| {
            sum += (rank as f64).powf(-0.99);
            sum
        });
        Self::Zipf(sums.collect())
    }

    pub fn draw(&self, random: &mut Random) -> u64 {
        match self {
            Self::Uniform(entries) => random.below(*entries),
            Self::Zipf(sums) => {
                let at = random.unit() * sums.last().copied().unwrap_or(0.0);
                let rank = sums.partition_point(|sum| *sum <= at) as u64;
                mix(rank) % sums.len() as u64
            }
        }
    }
}
