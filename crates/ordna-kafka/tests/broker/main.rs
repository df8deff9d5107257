//! Index nodes against a real broker: `cargo xtask kafka test`.

mod bad_input;
mod common;
mod moving;
mod records;
