//! Random numbers, plain and skewed.

/// SplitMix64: small, fast, deterministic by seed.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The sequence of this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A bijection that scatters: the generator's own output function.
    pub fn mix(n: u64) -> u64 {
        let mut x = n.wrapping_add(0x9E37_79B9_7F4A_7C15);
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ (x >> 31)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        Self::mix(self.0)
    }

    /// A number below `limit`, which is not zero.
    pub fn below(&mut self, limit: u64) -> u64 {
        // The high half of a product: no division, and a bias of less than limit / 2^64.
        ((u128::from(self.next_u64()) * u128::from(limit)) >> 64) as u64
    }

    /// A number in `[0, 1)`.
    pub fn fraction(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Puts the items into a random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            items.swap(at, self.below(at as u64 + 1) as usize);
        }
    }
}

/// Ranks `0..n` with probability proportional to `1 / (rank + 1)^theta`.
///
/// Inverts the distribution approximately, in O(1) a draw after O(n) once: "Quickly generating
/// billion-record synthetic databases" (Gray et al., SIGMOD 1994), which is what YCSB uses. Good
/// for `theta` below 1; at and above 1 by rejection-inversion, which is exact (Hörmann and
/// Derflinger, "Rejection-inversion to generate variates from monotone discrete distributions",
/// TOMACS 1996).
#[derive(Debug, Clone)]
pub struct Zipf {
    n: u64,
    theta: f64,
    zeta: f64,
    eta: f64,
}

impl Zipf {
    /// The distribution over `0..n`; `n` is not zero, `theta` not negative.
    pub fn new(n: u64, theta: f64) -> Self {
        let zeta = |n: u64| (1..=n).map(|rank| (rank as f64).powf(-theta)).sum::<f64>();
        let (all, two) = (if theta < 1.0 { zeta(n) } else { 0.0 }, zeta(n.min(2)));
        let eta = (1.0 - (2.0 / n as f64).powf(1.0 - theta)) / (1.0 - two / all);
        Self { n, theta, zeta: all, eta }
    }

    /// A draw; 0 is the most frequent.
    pub fn rank(&self, random: &mut Random) -> u64 {
        if self.theta >= 1.0 {
            return self.rejected(random);
        }
        let u = random.fraction();
        let n = self.n as f64;
        let rank = if u * self.zeta < 1.0 {
            0.0
        } else if u * self.zeta < 1.0 + 0.5_f64.powf(self.theta) {
            1.0
        } else {
            n * (self.eta * u - self.eta + 1.0).powf(1.0 / (1.0 - self.theta))
        };
        (rank as u64).min(self.n - 1)
    }

    /// Inverts the integral of `x^-theta` over `[0.5, n + 0.5)` and rejects what lies above the
    /// bar of the rank: a little over one try each.
    fn rejected(&self, random: &mut Random) -> u64 {
        let power = 1.0 - self.theta;
        let integral = |x: f64| if power == 0.0 { x.ln() } else { x.powf(power) / power };
        let inverse = |y: f64| if power == 0.0 { y.exp() } else { (y * power).powf(1.0 / power) };
        let low = integral(1.5) - 1.0;
        let high = integral(self.n as f64 + 0.5);
        loop {
            let y = high + random.fraction() * (low - high);
            let rank = inverse(y).round().clamp(1.0, self.n as f64);
            if y >= integral(rank + 0.5) - rank.powf(-self.theta) {
                return rank as u64 - 1;
            }
        }
    }

    /// A draw whose popular ranks are scattered over `0..n`.
    pub fn scrambled(&self, random: &mut Random) -> u64 {
        Random::mix(self.rank(random)) % self.n
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_as_frequent_as_they_should_be() {
        let n = 1000;
        for theta in [0.0, 0.5, 0.99, 1.0, 1.2, 3.0] {
            let zipf = Zipf::new(n, theta);
            let mut random = Random::new(5);
            let draws = 400_000;
            let mut low = 0;
            for _ in 0..draws {
                let rank = zipf.rank(&mut random);
                assert!(rank < n);
                low += u32::from(rank < 10);
            }
            let weight = |ranks: u64| (1..=ranks).map(|r| (r as f64).powf(-theta)).sum::<f64>();
            let expected = weight(10) / weight(n);
            let share = f64::from(low) / f64::from(draws);
            assert!((share - expected).abs() < 0.05 * expected, "{theta}: {share} for {expected}");
        }
    }
}
