//! Ordered timestamps: a hardware counter where its order is sufficient, and a logical clock
//! otherwise.
//!
//! # Guarantees
//! [`Clock::after`] returns a time that is greater than each time that it receives. So if one of
//! two events saw the other's time, they are ordered as they happened, on whatever cores they ran:
//! a thread that takes a time under a lock passes the last time of what the lock protects.
//! Independent events are ordered by the counter, which is correct up to the skew between cores.
//!
//! ORDO (Kashyap et al., EuroSys 2018), which HydraList uses, orders *all* pairs, by waiting for
//! the largest skew measured between any two cores. The pairs whose order matters here always share
//! a lock. For these, Lamport's rule (greater than all times seen) is exact, without measurements
//! or waiting, and with any skew of the counters.

use ordna_base::sync::atomic::{AtomicU64, Ordering};

/// A source of times.
#[derive(Debug, Default)]
pub struct Clock {
    /// A counter for machines without a counter that runs at one rate on all cores.
    shared: Option<AtomicU64>,
}

impl Clock {
    /// Uses the processor's time-stamp counter if it is invariant, and otherwise a shared counter.
    pub fn new() -> Self {
        Self { shared: (!has_invariant_counter()).then(|| AtomicU64::new(0)) }
    }

    /// Creates a clock that counts calls.
    #[cfg(test)]
    fn counting() -> Self {
        Self { shared: Some(AtomicU64::new(0)) }
    }

    /// Returns the current time, which is later than `seen`. Wait-free.
    pub fn after(&self, seen: u64) -> u64 {
        let now = match &self.shared {
            None => counter(),
            // The increments of a single word are ordered by themselves.
            Some(shared) => shared.fetch_add(1, Ordering::Relaxed),
        };
        now.max(seen.saturating_add(1))
    }
}

#[cfg(target_arch = "x86_64")]
fn has_invariant_counter() -> bool {
    use std::arch::x86_64::__cpuid;
    const INVARIANT: u32 = 1 << 8;
    // Model checkers require that every run of a schedule is the same.
    !cfg!(any(loom, shuttle))
        && __cpuid(0x8000_0000).eax >= 0x8000_0007
        && __cpuid(0x8000_0007).edx & INVARIANT != 0
}

#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "an instruction without a safe name")]
fn counter() -> u64 {
    // SAFETY: every x86-64 processor has the instruction.
    unsafe { std::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
fn has_invariant_counter() -> bool {
    false
}

#[cfg(not(target_arch = "x86_64"))]
fn counter() -> u64 {
    0
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_later_than_any_it_has_seen() {
        for clock in [Clock::new(), Clock::counting()] {
            let first = clock.after(0);
            assert!(clock.after(first) > first);
            // If the counter of a core is far ahead, later times follow it.
            let ahead = first + (1 << 60);
            assert_eq!(clock.after(ahead), ahead + 1);
        }
    }
}
