//! The number of items below a key.
//!
//! Whoever keeps items of its own behind those of its users counts the latter by it: the count of all items less
//! those of its own would be wrong while one of the two is written.

use ordna_base::Key;
use ordna_base::sync::StripedCounter;

/// The items below a key.
#[derive(Debug)]
pub struct Below<K: Key + ?Sized> {
    pub end: K::Owned,
    pub items: StripedCounter,
}
