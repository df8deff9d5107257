//! The contract of search layers: indexes that determine at which node of the data list an
//! operation begins.
//!
//! # Contract
//! A search layer maps each anchor to its *anchor address*: the address in the node at which the
//! anchor is stored. A layer may treat the address as a number, or read the anchor there instead of
//! storing a copy. Any number of threads call [`SearchLayer::jump`] at any time. One thread at a
//! time calls [`SearchLayer::apply`] and [`SearchLayer::publish`], which ends a run of steps. A
//! jump returns any address that the layer holds at some moment of the call, or none; the operation
//! then follows the list from that node. The distance decides the operation's cost, never its result.
//!
//! Layers: [`ArtLayer`](crate::hydralist::layer::ArtLayer), the default, and Wormhole's table,
//! [`TableLayer`](crate::wormhole::layer::TableLayer).
//!
//! Source: HydraList §4.2.1, §4.6.1.

#![expect(unsafe_code, reason = "a layer promises which addresses it returns")]

use std::borrow::Borrow;

use ordna_base::Key;

/// The address at which a node stores its anchor.
pub type AnchorAddress = usize;

/// A change of a search layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerStep {
    /// Maps the anchor to this address.
    Insert(AnchorAddress),
    /// Removes the anchor if it is mapped to this address.
    Remove(AnchorAddress),
}

/// A map from anchors to anchor addresses; see the [module](self).
///
/// # Safety
/// Operations follow the addresses. [`SearchLayer::jump`] and [`SearchLayer::jump_many`] return
/// only an address that a [`LayerStep::Insert`] has inserted and that was not yet released when the call
/// began. [`SearchLayer::apply`] or [`SearchLayer::publish`] releases each address that the layer
/// drops, exactly once, and no other address.
pub unsafe trait SearchLayer<K: Key + ?Sized>: Default + Send + Sync + 'static {
    /// Returns an address near `key`: best that of the largest anchor not above the key.
    fn jump(&self, key: &K) -> Option<AnchorAddress>;

    /// Jumps for each key. A layer may overlap the memory accesses of the jumps.
    fn jump_many<Q: Borrow<K>>(&self, keys: &[Q], addresses: &mut [Option<AnchorAddress>]) {
        for (key, address) in keys.iter().zip(addresses) {
            *address = self.jump(key.borrow());
        }
    }

    /// Applies one update and returns the address that the layer releases because of it. A layer
    /// that collects updates leaves both to [`SearchLayer::publish`].
    ///
    /// # Safety
    /// An inserted address holds the anchor: a [`Key::cell`] followed by its [`Key::tail`], with
    /// exposed provenance. The anchor never changes. Its memory is not freed before the layer has
    /// released the address and all calls of that moment have returned.
    unsafe fn apply(&self, anchor: &K, step: LayerStep) -> Option<AnchorAddress>;

    /// Ends a run of steps: later jumps see all of them. Calls `released` with each address that
    /// the layer releases because of them and that [`SearchLayer::apply`] has not returned. The
    /// thread that applies calls it.
    fn publish(&self, released: impl FnMut(AnchorAddress)) {
        let _ = released;
    }

    /// Calls `each` with all anchors and addresses, while no step is applied.
    fn for_each(&self, each: impl FnMut(&K, AnchorAddress));

    /// Returns the number of bytes that the layer uses.
    fn memory_usage(&self) -> usize;

    /// Checks the layer's own invariants, while no update is applied.
    ///
    /// # Errors
    /// Returns the first invariant that is broken.
    fn check_invariants(&self) -> Result<(), String> {
        Ok(())
    }
}
