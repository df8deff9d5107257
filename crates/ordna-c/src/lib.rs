//! Ordna's store as a C library.
//!
//! # Contract
//! Every exported function checks its pointers for null, catches panics, and answers a status. The
//! text of a handle's last error stands in the handle, under a lock. Callbacks run outside of the
//! store: they may use it, and may take as long as they like.

mod batch;
mod scan;
mod snapshot;
mod status;
mod store;

pub use batch::*;
pub use scan::*;
pub use snapshot::*;
pub use status::*;
pub use store::*;
