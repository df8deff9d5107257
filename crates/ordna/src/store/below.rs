//! The number of items below a key.
//!
//! A caller that stores its own items above those of its users counts the users' items with it.
//! Subtracting the number of its own items from the number of all items gives a wrong result while
//! either number changes.

use ordna_base::Key;
use ordna_base::sync::StripedCounter;

/// The items below a key.
#[derive(Debug)]
pub struct Below<K: Key + ?Sized> {
    pub end: K::Owned,
    pub items: StripedCounter,
}
