//! Counters of a thread for tests: steps and restarts. Compiled with `debug_assertions` only.

/// Number of bytes that a thread compared with those of records, and of nodes in which it searched
/// for a record. For tests.
pub mod steps {
    use std::cell::Cell;

    thread_local! {
        static STEPS: Cell<usize> = const { Cell::new(0) };
    }

    pub(in crate::art) fn add(count: usize) {
        STEPS.set(STEPS.get() + count);
    }

    /// Returns the count of the calling thread.
    pub fn of_this_thread() -> usize {
        STEPS.get()
    }
}

/// Number of times that operations of a thread restarted or looked at a node again. For tests.
pub mod restarts {
    use std::cell::Cell;

    thread_local! {
        static RESTARTS: Cell<u64> = const { Cell::new(0) };
    }

    pub(in crate::art) fn note() {
        RESTARTS.set(RESTARTS.get() + 1);
    }

    /// Returns the count of the calling thread.
    pub fn of_this_thread() -> u64 {
        RESTARTS.get()
    }
}
