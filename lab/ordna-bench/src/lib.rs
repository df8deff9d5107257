//! `ordna-bench`: one driver, one set of keys, every index and its public peers in one run.
//!
//! | module | holds |
//! |---|---|
//! | [`keys`] | the key sets, made once into a flat buffer |
//! | [`zipf`] | skewed draws |
//! | [`workload`] | operations, written down before the clock starts, with what each must find |
//! | [`target`] | what an index must offer to be measured |
//! | [`entry`], [`registry`] | the indexes by name: one line each; their switches |
//! | [`plugin`] | indexes from shared libraries behind a C interface |
//! | `check` | the values that are stored, and the checks of every answer |
//! | [`sweep`] | what an index must hold after a run, and the checks of that |
//! | [`job`], [`figures`] | what is measured on an instance, and what comes of it |
//! | [`run`] | one instance of one index: load and workloads, timed |
//! | [`isolate`] | child processes; [`host`]: an instance in one, or here |
//! | [`driver`] | plans: indexes on one key set, in interleaved rounds |
//! | [`paper`] | the papers' experiments as a table of runs |
//! | [`dram`] | the machine's memory latency |
//! | [`memory`] | bytes as the allocator and the system count them |
//! | [`info`] | where, when and on what a run was |
//! | [`noise`] | how far its figures can be relied on |
//! | [`table`] | the results for people and for programs |
//! | `paper_page` | the generated part of `docs/papers` |
//! | [`page`] | `docs/benchmarks.md`, made from the results |
//! | [`report`] | the results as plots on one HTML page |
//! | [`cli`] | the command line |
//!
//! The binary must use jemalloc: bytes per key come from its statistics.

pub mod batches;
mod check;
pub mod cli;
pub mod dram;
pub mod driver;
pub mod entry;
pub mod figures;
pub mod host;
pub mod info;
pub mod isolate;
pub mod job;
pub mod keys;
pub mod memory;
pub mod noise;
pub mod page;
pub mod paper;
mod paper_page;
pub mod partitions;
#[cfg(feature = "peers")]
mod peers;
pub mod plugin;
pub mod progress;
pub mod registry;
pub mod report;
pub mod run;
pub mod suggest;
pub mod sweep;
pub mod table;
pub mod target;
pub mod workload;
pub mod zipf;
