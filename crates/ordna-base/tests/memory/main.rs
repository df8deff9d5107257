//! Tests of memory management.

#![cfg(not(any(loom, shuttle)))]
#![expect(unsafe_code, reason = "tests of memory management")]

mod reclaim;
