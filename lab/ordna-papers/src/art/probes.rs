//! Counters of a thread for tests: steps and restarts. Compiled with `debug_assertions` only.

/// How many bytes a thread compared with those of records, and through how many nodes it looked for
/// one. For tests.
pub mod steps {
    use std::cell::Cell;

    thread_local! {
        static STEPS: Cell<usize> = const { Cell::new(0) };
    }

    pub(in crate::art) fn add(count: usize) {
        STEPS.set(STEPS.get() + count);
    }

    /// By the calling thread, so far.
    pub fn of_this_thread() -> usize {
        STEPS.get()
    }
}

/// How often operations of a thread restarted, or looked at a node again. For tests.
pub mod restarts {
    use std::cell::Cell;

    thread_local! {
        static RESTARTS: Cell<u64> = const { Cell::new(0) };
    }

    pub(in crate::art) fn note() {
        RESTARTS.set(RESTARTS.get() + 1);
    }

    /// By the calling thread, so far.
    pub fn of_this_thread() -> u64 {
        RESTARTS.get()
    }
}
