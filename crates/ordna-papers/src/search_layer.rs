//! Search layers: what tells a reader where in the data list to begin.
//!
//! # Contract
//! A search layer maps anchors to *places*: the addresses at which the anchors themselves stand, in
//! the nodes that have them. A layer may take a place for a number, or read the anchor there instead of
//! keeping a copy. [`SearchLayer::jump`] runs beside everything; [`SearchLayer::apply`] and
//! [`SearchLayer::publish`], which ends a run of steps, have one caller at a time. A jump may answer with
//! any place that is in the layer at some moment of the call, or none: the list is walked from there.
//! How near it is decides how fast an operation is, never what it finds.
//!
//! Layers: [`ArtLayer`](crate::hydralist::layer::ArtLayer), the default,
//! [`LockedLayer`](crate::hydralist::layer::LockedLayer), and Wormhole's table,
//! [`TableLayer`](crate::wormhole::layer::TableLayer).
//!
//! Source: HydraList §4.2.1, §4.6.1.

#![expect(unsafe_code, reason = "layers promise what places they tell")]

use std::borrow::Borrow;

use ordna_base::Key;

/// What has an anchor.
pub type Place = usize;

/// A change of a search layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The anchor leads to this place from now on.
    Insert(Place),
    /// The anchor leads nowhere, if it led to this place.
    Remove(Place),
}

/// Maps anchors to places; see the [module](self).
///
/// # Safety
/// Places are followed. [`SearchLayer::jump`] and [`SearchLayer::jump_many`] answer only with a place
/// that an [`Step::Insert`] has brought and whose departure has not been told, by the return of
/// [`SearchLayer::apply`] or by [`SearchLayer::publish`], before the call began. Each departure is told
/// once, and of no other place.
pub unsafe trait SearchLayer<K: Key + ?Sized>: Default + Send + Sync + 'static {
    /// A place near `key`: best the one of the largest anchor not above it.
    fn jump(&self, key: &K) -> Option<Place>;

    /// A place for each key. An index may overlap their memory accesses.
    fn jump_many<Q: Borrow<K>>(&self, keys: &[Q], places: &mut [Option<Place>]) {
        for (key, place) in keys.iter().zip(places) {
            *place = self.jump(key.borrow());
        }
    }

    /// Carries out one step; returns the place that the layer no longer leads to because of it. A layer
    /// that gathers steps leaves both to [`SearchLayer::publish`].
    ///
    /// # Safety
    /// At the place of an insertion there is the anchor: a [`Key::cell`] with its [`Key::tail`] behind it,
    /// its provenance exposed. It never changes, and is not freed before the layer has told the place's
    /// departure and all calls on the layer have returned that were under way then.
    unsafe fn apply(&self, anchor: &K, step: Step) -> Option<Place>;

    /// Ends a run of steps: jumps see them all. Calls `left` with the places that the layer no longer
    /// leads to because of them, if [`SearchLayer::apply`] has not returned them. Called by who applies.
    fn publish(&self, left: impl FnMut(Place)) {
        let _ = left;
    }

    /// Calls `each` with all anchors and places, while nothing is applied.
    fn for_each(&self, each: impl FnMut(&K, Place));

    /// Bytes held.
    fn memory_usage(&self) -> usize;

    /// Audits what the layer promises itself, while nothing is applied.
    ///
    /// # Errors
    /// What is broken first.
    fn audit(&self) -> Result<(), String> {
        Ok(())
    }
}
