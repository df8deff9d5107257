//! Tests of the server over the wire. The folders mirror those of `src`.

mod bounds;
mod commands;
mod common;
mod execution;
mod fuzz_against_redis;
mod indexes;
mod listen;
mod state;
mod statistics;

// The same allocator as in the program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
