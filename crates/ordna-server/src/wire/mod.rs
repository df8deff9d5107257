//! The Redis protocol: parses requests and encodes replies.

pub(crate) mod argument_reader;
pub(crate) mod decimal;
pub(crate) mod double;
pub(crate) mod error;
pub(crate) mod reply;
pub mod request;
pub(crate) mod stream;
