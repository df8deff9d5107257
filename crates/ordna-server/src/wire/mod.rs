//! Bytes to requests, and replies to bytes.

pub(crate) mod arguments;
pub(crate) mod error;
pub(crate) mod reply;
pub mod request;
pub(crate) mod stream;
