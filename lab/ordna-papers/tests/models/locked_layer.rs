//! A minimal search layer, for models and tests of the updates of layers. It never follows an
//! address.

#![expect(unsafe_code, reason = "layers promise which addresses they return")]

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::RwLock;

use ordna_base::Key;
use ordna_papers::search_layer::{AnchorAddress, LayerStep, SearchLayer};

/// A B-tree protected by a reader-writer lock.
#[derive(Debug)]
pub struct LockedLayer<K: Key + ?Sized>(RwLock<BTreeMap<K::Owned, AnchorAddress>>);

impl<K: Key + ?Sized> Default for LockedLayer<K> {
    fn default() -> Self {
        Self(RwLock::new(BTreeMap::new()))
    }
}

// SAFETY: jumps return addresses in the single map under the lock, and `apply` returns each address
// that is removed from it.
unsafe impl<K: Key + ?Sized> SearchLayer<K> for LockedLayer<K> {
    fn jump(&self, key: &K) -> Option<AnchorAddress> {
        let map = self.0.read().unwrap();
        let below = map.range::<K, _>((Bound::Unbounded, Bound::Included(key))).next_back();
        below.or_else(|| map.first_key_value()).map(|(_, address)| *address)
    }

    unsafe fn apply(&self, anchor: &K, step: LayerStep) -> Option<AnchorAddress> {
        let mut map = self.0.write().unwrap();
        match step {
            LayerStep::Insert(address) => map.insert(anchor.to_owned(), address),
            LayerStep::Remove(address) if map.get(anchor) == Some(&address) => map.remove(anchor),
            LayerStep::Remove(_) => None,
        }
    }

    fn for_each(&self, mut each: impl FnMut(&K, AnchorAddress)) {
        let map = self.0.read().unwrap();
        for (anchor, address) in &*map {
            each(anchor.borrow(), *address);
        }
    }

    fn memory_usage(&self) -> usize {
        let map = self.0.read().unwrap();
        let heap: usize = map.keys().map(|anchor| anchor.borrow().tail().len()).sum();
        heap + map.len() * (size_of::<K::Owned>() + size_of::<AnchorAddress>()) * 10 / 7
    }
}
