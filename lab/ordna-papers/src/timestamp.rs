//! Ordered timestamps: a hardware counter where its order is enough, a logical clock where it is
//! not.
//!
//! # What is promised
//! [`Clock::after`] gives a time that is greater than each time it is given. So two events of which
//! one saw the other's time are ordered as they happened, on whatever cores they ran: a thread that
//! stamps under a lock passes the last time of what the lock protects. Events that know nothing of
//! each other are ordered by the counter, which is right up to the skew between cores.
//!
//! ORDO (Kashyap et al., EuroSys 2018), which HydraList uses, orders *all* pairs, by waiting out
//! the largest skew measured between any two cores. The pairs whose order matters here always share
//! a lock. For these Lamport's rule (greater than all one has seen) is exact: without a
//! measurement, without waiting, on counters with any skew.

use ordna_base::sync::atomic::{AtomicU64, Ordering};

/// A source of times.
#[derive(Debug, Default)]
pub struct Clock {
    /// Counts where there is no counter that runs at one rate on all cores.
    shared: Option<AtomicU64>,
}

impl Clock {
    /// Takes the processor's time-stamp counter if it is invariant, otherwise a shared counter.
    pub fn new() -> Self {
        Self { shared: (!has_invariant_counter()).then(|| AtomicU64::new(0)) }
    }

    /// A clock that counts calls.
    #[cfg(test)]
    fn counting() -> Self {
        Self { shared: Some(AtomicU64::new(0)) }
    }

    /// Now, and later than `seen`. Wait-free.
    pub fn after(&self, seen: u64) -> u64 {
        let now = match &self.shared {
            None => counter(),
            // The increments of one word are ordered without anything else.
            Some(shared) => shared.fetch_add(1, Ordering::Relaxed),
        };
        now.max(seen.saturating_add(1))
    }
}

#[cfg(target_arch = "x86_64")]
fn has_invariant_counter() -> bool {
    use std::arch::x86_64::__cpuid;
    const INVARIANT: u32 = 1 << 8;
    // Model checkers need every run of a schedule to be the same.
    !cfg!(any(loom, shuttle))
        && __cpuid(0x8000_0000).eax >= 0x8000_0007
        && __cpuid(0x8000_0007).edx & INVARIANT != 0
}

#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "an instruction without a safe name")]
fn counter() -> u64 {
    // SAFETY: every x86-64 has the instruction.
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
            // A core whose counter runs far ahead is followed, not contradicted.
            let ahead = first + (1 << 60);
            assert_eq!(clock.after(ahead), ahead + 1);
        }
    }
}
