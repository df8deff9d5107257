//! The `ordna-bench` program; see [`ordna_bench`].

use std::error::Error;
use std::process::ExitCode;

use clap::Parser;
use ordna_bench::cli::{Bench, run};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Settings of the allocator, which looks them up by this symbol. The string ends with a zero byte.
///
/// One arena, so that memory freed by one thread can be reused by all others. Large per-thread
/// caches, because records are freed in batches of 256, which would overflow small ones.
#[expect(unsafe_code, reason = "the allocator looks its settings up by name")]
#[unsafe(export_name = "_rjem_malloc_conf")]
static ALLOCATOR_SETTINGS: &[u8; 62] =
    b"narenas:1,tcache_nslots_small_max:2000,lg_tcache_nslots_mul:4\0";

fn main() -> ExitCode {
    match run(&Bench::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprint!("ordna-bench: {error}");
            let mut cause = error.source();
            while let Some(error) = cause {
                eprint!(": {error}");
                cause = error.source();
            }
            eprintln!();
            ExitCode::FAILURE
        }
    }
}
