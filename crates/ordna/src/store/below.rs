//! The number of items with keys below a given key.
//!
//! A program that stores its own items above those of its users uses this to count the users'
//! items. The difference between the number of all items and the number of its own items would be
//! wrong while either number changes.

use ordna_base::Key;
use ordna_base::sync::StripedCounter;

/// The number of items with keys below a given key.
#[derive(Debug)]
pub struct Below<K: Key + ?Sized> {
    pub end: K::Owned,
    pub items: StripedCounter,
}
