//! What memory does: records of an arena, and what is retired.

#![cfg(not(any(loom, shuttle)))]
#![expect(unsafe_code, reason = "tests of memory management")]

mod arena;
mod reclaim;
