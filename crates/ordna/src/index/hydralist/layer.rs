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
//! Layers here: [`ArtLayer`], the default, and [`LockedLayer`]. Wormhole's table is a third
//! ([`TableLayer`](crate::index::wormhole::layer::TableLayer)).
//!
//! Source: HydraList §4.2.1, §4.6.1.

#![expect(unsafe_code, reason = "layers promise what places they tell")]

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::sync::{PoisonError, RwLock};

use crate::Key;
use crate::index::art::ArtRowex;
use crate::index::{Direction, OrderedIndex};
use crate::value::Lent;

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

/// A B-tree under a reader-writer lock: the layer that others are compared with.
#[derive(Debug)]
pub struct LockedLayer<K: Key + ?Sized>(RwLock<BTreeMap<K::Owned, Place>>);

impl<K: Key + ?Sized> Default for LockedLayer<K> {
    fn default() -> Self {
        Self(RwLock::new(BTreeMap::new()))
    }
}

// SAFETY: jumps and departures are of the one map behind the lock.
unsafe impl<K: Key + ?Sized> SearchLayer<K> for LockedLayer<K> {
    fn jump(&self, key: &K) -> Option<Place> {
        let map = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let below = map.range::<K, _>((Bound::Unbounded, Bound::Included(key))).next_back();
        below.or_else(|| map.first_key_value()).map(|(_, place)| *place)
    }

    unsafe fn apply(&self, anchor: &K, step: Step) -> Option<Place> {
        let mut map = self.0.write().unwrap_or_else(PoisonError::into_inner);
        match step {
            Step::Insert(place) => map.insert(anchor.to_owned(), place),
            Step::Remove(place) if map.get(anchor) == Some(&place) => map.remove(anchor),
            Step::Remove(_) => None,
        }
    }

    fn for_each(&self, mut each: impl FnMut(&K, Place)) {
        let map = self.0.read().unwrap_or_else(PoisonError::into_inner);
        for (anchor, place) in &*map {
            each(anchor.borrow(), *place);
        }
    }

    fn memory_usage(&self) -> usize {
        let map = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let heap: usize = map.keys().map(|anchor| anchor.borrow().tail().len()).sum();
        heap + map.len() * (size_of::<K::Owned>() + size_of::<Place>()) * 10 / 7
    }
}

/// The adaptive radix tree under ROWEX: jumps look at no lock. Its records are the anchors in the nodes,
/// so that a jump that has compared an anchor has fetched what a lookup reads of the node first.
#[derive(Debug)]
pub struct ArtLayer<K: Key + ?Sized>(ArtRowex<K, Lent>);

impl<K: Key + ?Sized> Default for ArtLayer<K> {
    fn default() -> Self {
        Self(ArtRowex::new())
    }
}

// SAFETY: jumps find records of the tree; what a record led to is told when it has been replaced or
// removed there.
unsafe impl<K: Key + ?Sized> SearchLayer<K> for ArtLayer<K> {
    #[inline]
    fn jump(&self, key: &K) -> Option<Place> {
        self.0.jump(key, |_, place| place.address())
    }

    fn jump_many<Q: Borrow<K>>(&self, keys: &[Q], places: &mut [Option<Place>]) {
        self.0.jump_many(keys, |at, found| {
            if let Some(place) = places.get_mut(at) {
                *place = found.map(|(_, place)| place.address());
            }
        });
    }

    unsafe fn apply(&self, anchor: &K, step: Step) -> Option<Place> {
        let (Step::Insert(place) | Step::Remove(place)) = step;
        // SAFETY: the caller's promise. What is to be removed is compared by its address.
        let place = unsafe { Lent::new(place) };
        let outcome = match step {
            Step::Insert(_) => self.0.insert(anchor, &place),
            Step::Remove(_) => {
                let removed = self.0.compare_exchange(anchor, Some(&place), None);
                removed.map(|done| done.ok().map(|()| place))
            }
        };
        // An anchor is a key that was stored, so its length has passed.
        outcome.unwrap_or_default().map(Lent::address)
    }

    fn for_each(&self, mut each: impl FnMut(&K, Place)) {
        self.0.visit(Bound::Unbounded, Bound::Unbounded, Direction::Ascending, |anchor, place| {
            each(anchor, place.address());
            ControlFlow::Continue(())
        });
    }

    fn memory_usage(&self) -> usize {
        self.0.memory_usage().total()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::index::wormhole::layer::TableLayer;

    /// An anchor as a node has it.
    fn stored(anchor: &[u8]) -> Vec<u16> {
        let cell = (anchor.len() as u16).to_ne_bytes();
        // In words, as a cell is aligned.
        let bytes: Vec<u8> = [&cell, anchor, &[0]].concat();
        let (words, _) = bytes.as_chunks::<2>();
        words.iter().map(|word| u16::from_ne_bytes(*word)).collect()
    }

    fn check<L: SearchLayer<[u8]>>() {
        let anchors = [&b"m"[..], b"", b"mm\0", b"m"].map(stored);
        let [m, empty, mm, later] =
            anchors.each_ref().map(|anchor| anchor.as_ptr().expose_provenance());
        let layer = L::default();
        let apply = |anchor: &[u8], step| {
            // SAFETY: the anchors outlive the layer, which is dropped before them.
            let mut left = unsafe { layer.apply(anchor, step) };
            layer.publish(|place| assert_eq!(left.replace(place), None, "two places left"));
            left
        };
        assert_eq!(layer.jump(b"x"), None);
        assert_eq!(apply(b"m", Step::Insert(m)), None);
        assert_eq!(apply(b"", Step::Insert(empty)), None);
        assert_eq!(apply(b"mm\0", Step::Insert(mm)), None);
        // The anchor itself, or one of its neighbours.
        let jumps: [(&[u8], [Place; 2]); 5] = [
            (b"", [empty, empty]),
            (b"a", [empty, m]),
            (b"m", [m, m]),
            (b"mm", [m, mm]),
            (b"zz", [mm, mm]),
        ];
        for (key, near) in jumps {
            assert!(layer.jump(key).is_some_and(|place| near.contains(&place)), "{key:?}");
        }
        // A later node of the same anchor; then the late removal of the earlier one.
        assert_eq!(apply(b"m", Step::Insert(later)), Some(m));
        assert_eq!(apply(b"m", Step::Remove(m)), None);
        assert_eq!(layer.jump(b"m"), Some(later));
        assert_eq!(apply(b"m", Step::Remove(later)), Some(later));
        assert_eq!(apply(b"m", Step::Remove(later)), None);
        let mut left = Vec::new();
        layer.for_each(|anchor, place| left.push((anchor.to_vec(), place)));
        assert_eq!(left, [(b"".to_vec(), empty), (b"mm\0".to_vec(), mm)]);
        assert!(layer.memory_usage() > 0);
    }

    #[test]
    fn every_layer_keeps_the_contract() {
        check::<LockedLayer<[u8]>>();
        check::<ArtLayer<[u8]>>();
        check::<TableLayer<[u8]>>();
    }
}
