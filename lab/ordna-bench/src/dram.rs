//! Measures the machine's memory latency: of dependent cache misses, and of 16 misses in flight.
//!
//! Cache misses dominate the cost of a lookup in a large index. The two figures bound that cost.

use std::hint::black_box;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::zipf::Random;

/// Nanoseconds per cache line that is read at random from a table far larger than the caches.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Dram {
    /// Latency if each address is known only after the previous line has arrived.
    pub dependent_ns: f64,
    /// Latency per line if 16 independent chains are followed concurrently.
    pub in_flight_16_ns: f64,
}

/// One cache line, which holds the index of the next line of the chain.
#[repr(align(64))]
#[derive(Clone, Copy)]
struct Line(u32);

/// Measures on a table of `bytes` bytes. Half a gibibyte is larger than the caches of today's
/// machines.
pub fn measure(bytes: usize) -> Dram {
    let lines = (bytes / size_of::<Line>()).clamp(1024, u32::MAX as usize);
    let mut random = Random::new(1);
    let mut order: Vec<u32> = (0..lines as u32).collect();
    random.shuffle(&mut order);
    // One cycle through all lines in random order: no prefetcher can predict it, and no line is
    // read twice.
    let mut table = vec![Line(0); lines];
    for at in 0..lines {
        table[order[at] as usize] = Line(order[(at + 1) % lines]);
    }
    // The dependent chain reads the first `steps` lines of the cycle and the 16 chains read others,
    // so neither finds lines that the other has brought into the caches.
    let steps = (lines / 2).min(2_000_000);
    let first = order[0];
    let mut chains = [0_u32; 16];
    for (chain, at) in chains.iter_mut().enumerate() {
        *at = order[steps + (lines - steps) / 16 * chain];
    }
    drop(order);
    let begin = Instant::now();
    let mut at = first;
    for _ in 0..steps {
        at = table[at as usize].0;
    }
    black_box(at);
    let dependent_ns = begin.elapsed().as_nanos() as f64 / steps as f64;
    let begin = Instant::now();
    for _ in 0..steps / 16 {
        for at in &mut chains {
            *at = table[*at as usize].0;
        }
    }
    black_box(chains);
    let in_flight_16_ns = begin.elapsed().as_nanos() as f64 / (steps / 16 * 16) as f64;
    Dram { dependent_ns, in_flight_16_ns }
}

impl std::fmt::Display for Dram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{:.0} ns a dependent miss, {:.1} ns with 16 in flight",
            self.dependent_ns, self.in_flight_16_ns
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misses_overlap() {
        // The second measurement is short, so another process may preempt most of it.
        let overlap = (0..5).any(|_| {
            let dram = measure(64 << 20);
            assert!(dram.dependent_ns > 1.0 && dram.in_flight_16_ns > 0.0, "{dram}");
            dram.in_flight_16_ns < dram.dependent_ns
        });
        assert!(overlap);
    }
}
