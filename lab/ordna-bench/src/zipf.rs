//! Random numbers, uniform and skewed.

/// SplitMix64: small, fast, deterministic by seed.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// Creates the sequence of this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns a bijection that scatters numbers: the generator's own output function.
    pub fn mix(n: u64) -> u64 {
        let mut x = n.wrapping_add(0x9E37_79B9_7F4A_7C15);
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ (x >> 31)
    }

    /// Returns the next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        Self::mix(self.0)
    }

    /// Returns a number below `limit`, which is not zero.
    pub fn below(&mut self, limit: u64) -> u64 {
        // The high half of a product: this needs no division, and has a bias of less than limit /
        // 2^64.
        ((u128::from(self.next_u64()) * u128::from(limit)) >> 64) as u64
    }

    /// Returns a number in `[0, 1)`.
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

/// Returns the sum of the weights of the first `n` ranks.
fn zeta(n: u64, theta: f64) -> f64 {
    (1..=n).map(|rank| (rank as f64).powf(-theta)).sum()
}

/// Ranks `0..n` with probability proportional to `1 / (rank + 1)^theta`.
///
/// The distribution is inverted approximately, in O(1) per draw after O(n) once: "Quickly
/// generating billion-record synthetic databases" (Gray et al., SIGMOD 1994), which is what YCSB
/// uses. This works for `theta` below 1. At and above 1, rejection-inversion is used, which is
/// exact (Hörmann and Derflinger, "Rejection-inversion to generate variates from monotone discrete
/// distributions", TOMACS 1996).
#[derive(Debug, Clone)]
pub struct Zipf {
    n: u64,
    theta: f64,
    zeta: f64,
    eta: f64,
}

impl Zipf {
    /// Creates the distribution over `0..n`. `n` is not zero, and `theta` is not negative.
    pub fn new(n: u64, theta: f64) -> Self {
        let all = if theta < 1.0 { zeta(n, theta) } else { 0.0 };
        Self::of_zeta(n, theta, all)
    }

    /// Creates the distribution with a known sum of all weights.
    fn of_zeta(n: u64, theta: f64, all: f64) -> Self {
        let two = zeta(n.min(2), theta);
        let eta = (1.0 - (2.0 / n as f64).powf(1.0 - theta)) / (1.0 - two / all);
        Self { n, theta, zeta: all, eta }
    }

    /// Draws a rank; 0 is the most frequent.
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

    /// Inverts the integral of `x^-theta` over `[0.5, n + 0.5)` and rejects what is above the bar
    /// of the rank, with slightly more than one attempt on average.
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

    /// Draws a number; the frequent ones are scattered over `0..n`.
    pub fn scattered(&self, random: &mut Random) -> u64 {
        Random::mix(self.rank(random)) % self.n
    }
}

/// YCSB's scrambled Zipf: ranks over ten billion items with theta 0.99, whatever the number of
/// keys, hashed to `0..n`. So the most popular key has 3.8 % of the draws for any `n`.
#[derive(Debug, Clone)]
pub struct Scrambled {
    ranks: Zipf,
    n: u64,
}

impl Scrambled {
    /// YCSB's `ScrambledZipfianGenerator.ITEM_COUNT`.
    const ITEMS: u64 = 10_000_000_000;
    /// The sum of `rank^-0.99` over all items, as in YCSB, because there are too many items to add
    /// up.
    const ZETA: f64 = 26.469_028_201_783_02;

    /// Creates the distribution over `0..n`, where `n` is not zero.
    pub fn new(n: u64) -> Self {
        Self { ranks: Zipf::of_zeta(Self::ITEMS, 0.99, Self::ZETA), n }
    }

    /// Draws a number.
    pub fn draw(&self, random: &mut Random) -> u64 {
        fnv(self.ranks.rank(random)) % self.n
    }
}

/// Returns FNV-1a of the eight bytes, the lowest first, without its sign, as in YCSB.
fn fnv(number: u64) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(1_099_511_628_211);
    let hash = number.to_le_bytes().into_iter().fold(0xCBF2_9CE4_8422_2325, step);
    hash.cast_signed().unsigned_abs()
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
    #[test]
    fn scrambled_draws_are_those_of_ycsb() {
        // The sum according to Euler and Maclaurin: the first ranks, an integral, half of either
        // end, and the first derivatives.
        let (first, last, power): (f64, f64, f64) = (1000.0, Scrambled::ITEMS as f64, 0.01);
        let weight = |x: f64| x.powf(-0.99);
        let tail = (last.powf(power) - first.powf(power)) / power
            + (weight(first) + weight(last)) / 2.0
            + 0.99 / 12.0 * first.powf(-1.99);
        let sum = zeta(999, 0.99) + tail;
        assert!((sum - Scrambled::ZETA).abs() < 1e-6, "{sum}");
        // FNV-1a of eight zero bytes and of the number one, in Java's signed 64 bits, made
        // positive.
        assert_eq!(fnv(0), 0xA8C7_F832_281A_39C5_u64.cast_signed().unsigned_abs());
        assert_eq!(fnv(1), 0x89CD_3129_1D2A_EFA4_u64.cast_signed().unsigned_abs());
        let share = |n: u64| {
            let (scrambled, mut random) = (Scrambled::new(n), Random::new(1));
            let hottest = fnv(0) % n;
            let draws = 200_000;
            let hits = (0..draws).filter(|_| scrambled.draw(&mut random) == hottest).count();
            hits as f64 / f64::from(draws)
        };
        // As popular among many keys as among few, except for other ranks that are hashed to it.
        let alone = 1.0 / Scrambled::ZETA;
        for n in [5000, 100_000, 10_000_000] {
            let expected = alone + (1.0 - alone) / n as f64;
            assert!((share(n) - expected).abs() < 0.003, "{n}: {} for {expected}", share(n));
        }
    }
}
