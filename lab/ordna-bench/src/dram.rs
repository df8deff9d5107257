//! The machine's memory latency, measured: dependent misses, and with 16 in flight.
//!
//! Cache misses dominate a lookup in a large index; this figure bounds their number.

use std::hint::black_box;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::zipf::Random;

/// Nanoseconds per cache line fetched at random from a table far larger than the caches.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Dram {
    /// Each address is known only when the line before has come.
    pub dependent_ns: f64,
    /// 16 chains side by side.
    pub in_flight_16_ns: f64,
}

/// One cache line: the place of the next.
#[repr(align(64))]
#[derive(Clone, Copy)]
struct Line(u32);

/// Measures on a table of so many bytes: half a gibibyte is beyond every cache of today.
pub fn measure(bytes: usize) -> Dram {
    let lines = (bytes / size_of::<Line>()).clamp(1024, u32::MAX as usize);
    let mut random = Random::new(1);
    let mut order: Vec<u32> = (0..lines as u32).collect();
    random.shuffle(&mut order);
    // One cycle over all lines, in random order: no prefetcher can follow, no line comes twice.
    let mut table = vec![Line(0); lines];
    for at in 0..lines {
        table[order[at] as usize] = Line(order[(at + 1) % lines]);
    }
    // The dependent scan takes the first `steps` lines of the cycle, the 16 chains share others:
    // none finds what another brought to the caches.
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
        // Another process may preempt the second part, which is short.
        let overlap = (0..5).any(|_| {
            let dram = measure(64 << 20);
            assert!(dram.dependent_ns > 1.0 && dram.in_flight_16_ns > 0.0, "{dram}");
            dram.in_flight_16_ns < dram.dependent_ns
        });
        assert!(overlap);
    }
}
