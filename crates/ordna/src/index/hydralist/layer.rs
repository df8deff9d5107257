//! Search layers: what tells a reader where in the data list to begin.
//!
//! # Contract
//! A search layer maps anchors to *places*, the addresses of the nodes that have them. To it a place is
//! a number. [`SearchLayer::jump`] runs beside everything; [`SearchLayer::apply`] and
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
    fn apply(&self, anchor: &K, step: Step) -> Option<Place>;

    /// Ends a run of steps: jumps see them all. Calls `left` with the places that the layer no longer
    /// leads to because of them, if [`SearchLayer::apply`] has not returned them. Called by who applies.
    fn publish(&self, left: impl FnMut(Place)) {
        let _ = left;
    }

    /// Calls `each` with all anchors and places, while nothing is applied.
    fn for_each(&self, each: impl FnMut(&K, Place));

    /// Bytes held.
    fn memory_usage(&self) -> usize;
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

    fn apply(&self, anchor: &K, step: Step) -> Option<Place> {
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

/// The adaptive radix tree under ROWEX: jumps look at no lock.
#[derive(Debug)]
pub struct ArtLayer<K: Key + ?Sized>(ArtRowex<K, u64>);

impl<K: Key + ?Sized> Default for ArtLayer<K> {
    fn default() -> Self {
        Self(ArtRowex::new())
    }
}

// SAFETY: jumps find records of the tree; what a record led to is told when it has been replaced or
// removed there.
unsafe impl<K: Key + ?Sized> SearchLayer<K> for ArtLayer<K> {
    fn jump(&self, key: &K) -> Option<Place> {
        self.0.jump(key, |_, place| *place as Place)
    }

    fn jump_many<Q: Borrow<K>>(&self, keys: &[Q], places: &mut [Option<Place>]) {
        self.0.jump_many(keys, |at, found| {
            if let Some(place) = places.get_mut(at) {
                *place = found.map(|(_, place)| *place as Place);
            }
        });
    }

    fn apply(&self, anchor: &K, step: Step) -> Option<Place> {
        let outcome = match step {
            Step::Insert(place) => self.0.insert(anchor, &(place as u64)),
            Step::Remove(place) => {
                let removed = self.0.compare_exchange(anchor, Some(&(place as u64)), None);
                removed.map(|done| done.ok().map(|()| place as u64))
            }
        };
        // An anchor is a key that was stored, so its length has passed.
        outcome.unwrap_or_default().map(|place| place as Place)
    }

    fn for_each(&self, mut each: impl FnMut(&K, Place)) {
        self.0.visit(Bound::Unbounded, Bound::Unbounded, Direction::Ascending, |anchor, place| {
            each(anchor, *place as Place);
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

    fn check<L: SearchLayer<[u8]>>() {
        let layer = L::default();
        let apply = |anchor: &[u8], step| {
            let mut left = layer.apply(anchor, step);
            layer.publish(|place| assert_eq!(left.replace(place), None, "two places left"));
            left
        };
        assert_eq!(layer.jump(b"x"), None);
        assert_eq!(apply(b"m", Step::Insert(1)), None);
        assert_eq!(apply(b"", Step::Insert(2)), None);
        assert_eq!(apply(b"mm\0", Step::Insert(3)), None);
        // The anchor itself, or one of its neighbours.
        let jumps: [(&[u8], [Place; 2]); 5] =
            [(b"", [2, 2]), (b"a", [2, 1]), (b"m", [1, 1]), (b"mm", [1, 3]), (b"zz", [3, 3])];
        for (key, near) in jumps {
            assert!(layer.jump(key).is_some_and(|place| near.contains(&place)), "{key:?}");
        }
        // A later node of the same anchor; then the late removal of the earlier one.
        assert_eq!(apply(b"m", Step::Insert(4)), Some(1));
        assert_eq!(apply(b"m", Step::Remove(1)), None);
        assert_eq!(layer.jump(b"m"), Some(4));
        assert_eq!(apply(b"m", Step::Remove(4)), Some(4));
        assert_eq!(apply(b"m", Step::Remove(4)), None);
        let mut left = Vec::new();
        layer.for_each(|anchor, place| left.push((anchor.to_vec(), place)));
        assert_eq!(left, [(b"".to_vec(), 2), (b"mm\0".to_vec(), 3)]);
        assert!(layer.memory_usage() > 0);
    }

    #[test]
    fn every_layer_keeps_the_contract() {
        check::<LockedLayer<[u8]>>();
        check::<ArtLayer<[u8]>>();
        check::<TableLayer<[u8]>>();
    }
}
