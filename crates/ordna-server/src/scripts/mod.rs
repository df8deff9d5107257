//! Lua scripts: the sandbox, its libraries, and the conversion of replies.
//!
//! The server passes a [`engine::Host`] to the [`engine::Engine`]; the host executes the commands
//! of the script.

mod bits;
mod cjson;
mod cmsgpack;
pub mod control;
mod conversion;
pub mod engine;
mod limits;
mod long_numbers;
mod numbers;
mod patterns;
mod structs;
