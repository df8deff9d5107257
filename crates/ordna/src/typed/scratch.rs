//! A buffer that a thread keeps between calls.

use std::cell::Cell;

thread_local! {
    static SCRATCH: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Maximum capacity in bytes of a buffer that is kept for the next call: the longest key.
const KEPT: usize = 64 << 10;

/// Calls `f` with an empty buffer that the thread reuses. A nested call gets a new one.
pub(super) fn with_scratch<R>(f: impl FnOnce(&mut Vec<u8>) -> R) -> R {
    SCRATCH.with(|scratch| {
        let mut buffer = scratch.take();
        buffer.clear();
        let done = f(&mut buffer);
        if buffer.capacity() <= KEPT {
            scratch.set(buffer);
        }
        done
    })
}
