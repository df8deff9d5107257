//! Tests of memory: records of an arena, and retired memory.

#![cfg(not(any(loom, shuttle)))]
#![expect(unsafe_code, reason = "tests of memory management")]

mod arena;
mod reclaim;
