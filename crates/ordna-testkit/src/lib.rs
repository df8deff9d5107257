//! The tests that every index must pass, as one macro.
//!
//! ```ignore
//! ordna_testkit::count_memory!();
//!
//! ordna_testkit::conformance! {
//!     mod u64_words: SkipList<u64, u64> = SkipList::new();
//!     mod bytes_words: SkipList<[u8], u64> = SkipList::new();
//! }
//! ```
//!
//! Each line becomes a module with one test per property:
//!
//! | test | property | module |
//! |---|---|---|
//! | `state_machine` | every operation answers as the oracle does, on random sequences | [`model`] |
//! | `adversarial_keys` | keys designed to break trees, hashes and tags, in several orders | [`adversarial`] |
//! | `concurrent_owners` | with writers on disjoint keys, the final contents are exact | [`concurrent`] |
//! | `concurrent_scans` | keys present throughout are returned once, in order, in bounds | [`concurrent`] |
//! | `linearizable` | recorded histories on hot keys, checked per key | [`history`] |
//! | `memory_returns` | insert/remove cycles stay at the first cycle's memory; a drop frees all | [`memory`] |
//!
//! Each test ends with the index's own `validate()`. Seeds are fixed, and printed with a failure.
//! With `ORDNA_SOAK=seconds`, each concurrent test runs that long instead of a fraction of a
//! second.

pub mod adversarial;
#[doc(hidden)]
pub mod compiled;
pub mod concurrent;
pub mod erased;
mod forward;
pub mod history;
pub mod kinds;
pub mod memory;
pub mod model;
pub mod random;
pub mod shorthand;
pub mod snapshots;

use std::time::{Duration, Instant};

/// Returns the duration of a concurrent test.
pub fn budget() -> Duration {
    let seconds = std::env::var("ORDNA_SOAK").ok().and_then(|seconds| seconds.parse().ok());
    seconds.map_or(Duration::from_millis(200), Duration::from_secs)
}

/// Maximum time for which a concurrent test waits for its minimum number of rounds.
const PATIENCE: Duration = Duration::from_secs(60);

/// Returns whether a concurrent test continues, until its time is over and its threads have done
/// enough.
fn goes_on(end: Instant, enough: bool) -> bool {
    let now = Instant::now();
    now < end || (!enough && now < end + PATIENCE)
}

/// Runs `body`. Without optimizations, the thread yields at random at the stops of an index.
fn shaken<R>(seed: u64, body: impl FnOnce() -> R) -> R {
    #[cfg(debug_assertions)]
    return ordna_base::sync::schedule::shaken(seed, body);
    #[cfg(not(debug_assertions))]
    {
        let _ = seed;
        body()
    }
}

/// Installs the counting allocator in this program, which `conformance!` requires.
#[macro_export]
macro_rules! count_memory {
    () => {
        #[global_allocator]
        static ALLOCATOR: $crate::memory::Counting = $crate::memory::Counting;
    };
}

/// Creates the tests of one or more index types; see the [crate](self). The program must use
/// `count_memory!()`.
#[macro_export]
macro_rules! conformance {
    ($(mod $name:ident: $index:ty = $new:expr;)+) => {
        $(mod $name {
            #[allow(unused_imports)]
            use super::*;

            fn new() -> $index {
                $new
            }

            $crate::tests!(memory_returns: memory::check);
            $crate::contract!();
        })+
    };
}

/// Works like [`conformance!`] for indexes with their own threads: includes all tests except the
/// one that counts the memory of one thread.
#[macro_export]
macro_rules! conformance_in_background {
    ($(mod $name:ident: $index:ty = $new:expr;)+) => {
        $(mod $name {
            use super::*;

            fn new() -> $index {
                $new
            }

            $crate::contract!();
        })+
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! contract {
    () => {
        $crate::tests!(
            state_machine: model::check,
            adversarial_keys: adversarial::check,
            concurrent_owners: concurrent::check_owners,
            concurrent_scans: concurrent::check_scans,
            linearizable: history::check
        );
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! tests {
    ($($test:ident: $module:ident::$check:ident),+) => {
        $(#[test]
        fn $test() {
            $crate::$module::$check(new);
        })+
    };
}
