//! Measures `ordna::reclaim` (over `seize`) against `crossbeam-epoch` and the access barrier: what entering and retiring
//! cost, and what stays unfreed while a reader stalls.
//!
//! `cargo run --release -p ordna --example reclaim_peers`

#![allow(unsafe_code, reason = "retiring is unsafe by nature")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Barrier, mpsc};
use std::time::Instant;

use ordna::reclaim::barrier::AccessBarrier;
use ordna::reclaim::{Collector, Retire};

const PINS: u32 = 20_000_000;
const RETIRES: usize = 1_000_000;
const ROUNDS: usize = 5;
/// About a skip list node of two words.
const NODE: usize = 48;

static FREED: AtomicUsize = AtomicUsize::new(0);

struct Node([u8; NODE]);

impl Drop for Node {
    fn drop(&mut self) {
        std::hint::black_box(self.0[0]);
        FREED.fetch_add(1, Ordering::Relaxed);
    }
}

impl Retire for Node {
    unsafe fn free(memory: *mut Self) {
        // SAFETY: made by `Box::into_raw` and retired once.
        drop(unsafe { Box::from_raw(memory) });
    }
}

/// What both libraries offer, as far as it is measured.
trait Scheme: Sync {
    const NAME: &'static str;
    fn new() -> Self;
    /// Enters, calls, leaves.
    fn within<R>(&self, body: impl FnOnce() -> R) -> R;
    /// Allocates and retires a node in a section of its own, as a remove does.
    fn retire(&self);
}

struct Seize(Collector);

impl Scheme for Seize {
    const NAME: &'static str = "ordna::reclaim (seize)";
    fn new() -> Self {
        Self(Collector::new())
    }
    #[inline]
    fn within<R>(&self, body: impl FnOnce() -> R) -> R {
        let _guard = self.0.pin();
        body()
    }
    #[inline]
    fn retire(&self) {
        let guard = self.0.pin();
        // SAFETY: the node was never shared and is retired once.
        unsafe { guard.retire(Box::into_raw(Box::new(Node([1; NODE])))) };
    }
}

struct Sessions(AccessBarrier);

impl Scheme for Sessions {
    const NAME: &'static str = "access barrier";
    fn new() -> Self {
        Self(AccessBarrier::new())
    }
    #[inline]
    fn within<R>(&self, body: impl FnOnce() -> R) -> R {
        let _token = self.0.enter();
        body()
    }
    #[inline]
    fn retire(&self) {
        let token = self.0.enter();
        // SAFETY: the node was never shared and is retired once.
        unsafe { token.retire(Box::into_raw(Box::new(Node([1; NODE])))) };
    }
}

struct Epoch;

impl Scheme for Epoch {
    const NAME: &'static str = "crossbeam-epoch";
    fn new() -> Self {
        Self
    }
    #[inline]
    fn within<R>(&self, body: impl FnOnce() -> R) -> R {
        let _guard = crossbeam_epoch::pin();
        body()
    }
    #[inline]
    fn retire(&self) {
        let guard = crossbeam_epoch::pin();
        let node = crossbeam_epoch::Owned::new(Node([1; NODE])).into_shared(&guard);
        // SAFETY: the node was never shared and is retired once.
        unsafe { guard.defer_destroy(node) };
    }
}

fn nanos(times: u32, body: impl FnOnce()) -> f64 {
    let start = Instant::now();
    body();
    start.elapsed().as_nanos() as f64 / f64::from(times)
}

struct Figures {
    outer: f64,
    nested: f64,
    retire: f64,
    held_stalled: usize,
    held_after: usize,
    held_dropped: usize,
}

fn measure<S: Scheme>() -> Figures {
    let scheme = S::new();
    scheme.within(|| ());
    let outer = nanos(PINS, || (0..PINS).for_each(|_| scheme.within(|| ())));
    let nested = scheme.within(|| nanos(PINS, || (0..PINS).for_each(|_| scheme.within(|| ()))));
    let retire = nanos(RETIRES as u32, || (0..RETIRES).for_each(|_| scheme.retire()));
    // One reader stalls inside while this thread retires.
    let before = FREED.load(Ordering::Relaxed);
    let (inside, (leave, left)) = (Barrier::new(2), mpsc::channel::<()>());
    let (held_stalled, held_after) = std::thread::scope(|scope| {
        let (scheme, inside) = (&scheme, &inside);
        let reader = scope.spawn(move || {
            scheme.within(|| {
                inside.wait();
                left.recv().expect("told to leave");
            });
        });
        inside.wait();
        (0..RETIRES).for_each(|_| scheme.retire());
        let held = |retired: usize| retired - (FREED.load(Ordering::Relaxed) - before);
        let stalled = held(RETIRES);
        leave.send(()).expect("the reader waits");
        reader.join().expect("the reader left");
        // Some more traffic, so that whoever frees late has its chance.
        (0..1000).for_each(|_| scheme.retire());
        (stalled, held(RETIRES + 1000))
    });
    let made = before + RETIRES + 1000;
    drop(scheme);
    let held_dropped = made.saturating_sub(FREED.load(Ordering::Relaxed));
    Figures { outer, nested, retire, held_stalled, held_after, held_dropped }
}

fn report<S: Scheme>(rounds: &mut [Figures]) {
    let mut median = |of: fn(&Figures) -> f64| {
        rounds.sort_by(|a, b| of(a).total_cmp(&of(b)));
        of(&rounds[rounds.len() / 2])
    };
    println!(
        "{:<24} {:>9.1} {:>9.1} {:>9.1} {:>14.1} {:>14.3} {:>14.3}",
        S::NAME,
        median(|f| f.outer),
        median(|f| f.nested),
        median(|f| f.retire),
        median(|f| (f.held_stalled * NODE) as f64 / 1e6),
        median(|f| (f.held_after * NODE) as f64 / 1e6),
        median(|f| (f.held_dropped * NODE) as f64 / 1e6),
    );
}

fn main() {
    let mut rounds = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        rounds.0.push(measure::<Seize>());
        rounds.1.push(measure::<Epoch>());
        rounds.2.push(measure::<Sessions>());
    }
    println!("medians of {ROUNDS} interleaved rounds; {RETIRES} retires of {NODE} bytes");
    println!(
        "{:<24} {:>9} {:>9} {:>9} {:>14} {:>14} {:>14}",
        "", "pin, ns", "nested", "retire", "MB: stalled", "reader gone", "all dropped"
    );
    report::<Seize>(&mut rounds.0);
    report::<Epoch>(&mut rounds.1);
    report::<Sessions>(&mut rounds.2);
}
