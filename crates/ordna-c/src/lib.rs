//! Ordna's store as a C library.
//!
//! # Contract
//! Every exported function checks its pointers for null, catches panics, and returns a status. The
//! text of the last error is kept per thread, with the handle that it belongs to. Callbacks run outside
//! of the store, so they may use it, and may be slow. A handle cannot be used in a child of the
//! process that created it.

mod batch;
mod cursor;
mod many;
mod modify;
mod scan;
mod snapshot;
mod statistics;
mod status;
mod store;
mod transaction;

pub use batch::*;
pub use cursor::*;
pub use many::*;
pub use modify::*;
pub use scan::*;
pub use snapshot::*;
pub use statistics::*;
pub use status::*;
pub use store::*;
pub use transaction::*;
