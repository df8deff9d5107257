//! Tests of what the server reports about itself.

mod counters;
mod info;
