//! `ordna-bench` measures each index and its public peers with one driver and one set of keys.
//!
//! | module | contents |
//! |---|---|
//! | [`keys`] | the key sets, made once into a flat buffer |
//! | [`zipf`] | skewed random numbers |
//! | [`workload`] | operations with expected results, generated before the clock starts |
//! | [`target`] | the interface of an index that is measured |
//! | [`entry`], [`registry`] | the table of indexes by name, with their switches |
//! | [`plugin`] | indexes from shared libraries behind a C interface |
//! | `check` | the values that are stored, and the checks of each result |
//! | [`sweep`] | the check that an index holds the right entries after a run |
//! | [`job`], [`figures`] | what is measured on an instance, and the figures of that measurement |
//! | [`run`] | one instance of one index: load and workloads, timed |
//! | [`isolate`] | child processes; [`host`]: an instance in a child process or in this one |
//! | [`driver`] | plans: indexes on one key set, in interleaved rounds |
//! | [`paper`] | the papers' experiments as a table of runs |
//! | [`dram`] | the machine's memory latency |
//! | [`memory`] | memory use as the allocator and the system report it |
//! | [`info`] | date, machine and version of a run |
//! | [`noise`] | how far the figures of a run can be relied on |
//! | [`table`] | the results for people and for programs |
//! | `paper_page` | the generated part of `docs/papers` |
//! | [`page`] | `docs/benchmarks.md`, generated from the results |
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
