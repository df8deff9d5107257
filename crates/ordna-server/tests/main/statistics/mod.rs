//! What the server reports of itself.

mod counters;
mod info;
