use std::cell::Cell;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};

const STRIPES: usize = 64;

#[derive(Debug, Default)]
#[repr(align(128))]
struct CounterStripe(AtomicI64);

/// A counter that threads update on separate cache lines.
///
/// [`StripedCounter::sum`] is exact while no update runs, and approximate otherwise. No protocol
/// depends on the counter, so it is not replaced in models.
#[derive(Debug)]
pub struct StripedCounter(Box<[CounterStripe]>);

impl Default for StripedCounter {
    fn default() -> Self {
        Self((0..STRIPES).map(|_| CounterStripe::default()).collect())
    }
}

impl StripedCounter {
    /// Creates a counter with the value zero.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds `delta`. Wait-free.
    #[inline]
    pub fn add(&self, delta: i64) {
        self.0[stripe_of_this_thread()].0.fetch_add(delta, Ordering::Relaxed);
    }

    /// Returns the sum of all stripes, or zero if it is negative.
    pub fn sum(&self) -> usize {
        let sum: i64 = self.0.iter().map(|stripe| stripe.0.load(Ordering::Relaxed)).sum();
        usize::try_from(sum).unwrap_or(0)
    }
}

/// Number of stripes over which threads are distributed.
pub const THREAD_STRIPES: usize = STRIPES;

/// Returns a number below 64 that is the same for all calls of a thread. The first 64 threads have
/// different numbers.
pub fn stripe_of_this_thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static STRIPE: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    STRIPE.with(|stripe| {
        if stripe.get() == usize::MAX {
            stripe.set(NEXT.fetch_add(1, Ordering::Relaxed) % STRIPES);
        }
        stripe.get()
    })
}
