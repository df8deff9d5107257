//! [`ArtLayer`], the search layer of HydraList. [`SearchLayer`] is its contract.
//!
//! Source: HydraList §4.2.1, §4.6.1.

#![expect(unsafe_code, reason = "layers promise which addresses they return")]

use std::borrow::Borrow;
use std::ops::{Bound, ControlFlow};

use crate::art::{Art, Lent, Rowex};
use crate::search_layer::{AnchorAddress, LayerStep, SearchLayer};
use ordna_base::Key;
use ordna_base::index::{Direction, OrderedIndex};

/// The adaptive radix tree with ROWEX, whose jumps ignore locks. Its leaves are the anchors in the
/// nodes. A jump that has compared an anchor has loaded the part of the node that a lookup reads
/// first.
#[derive(Debug)]
pub struct ArtLayer<K: Key + ?Sized>(Art<K, u64, Lent<Rowex>>);

impl<K: Key + ?Sized> Default for ArtLayer<K> {
    fn default() -> Self {
        Self(Art::new())
    }
}

// SAFETY: jumps find records of the tree. The layer releases an address after its record has been
// replaced or removed there.
unsafe impl<K: Key + ?Sized> SearchLayer<K> for ArtLayer<K> {
    #[inline]
    fn jump(&self, key: &K) -> Option<AnchorAddress> {
        self.0.jump(key, |_, address| *address as usize)
    }

    fn jump_many<Q: Borrow<K>>(&self, keys: &[Q], addresses: &mut [Option<AnchorAddress>]) {
        self.0.jump_many(keys, |at, found| {
            if let Some(address) = addresses.get_mut(at) {
                *address = found.map(|(_, address)| *address as usize);
            }
        });
    }

    unsafe fn apply(&self, anchor: &K, step: LayerStep) -> Option<AnchorAddress> {
        let (LayerStep::Insert(address) | LayerStep::Remove(address)) = step;
        // The caller promises that an inserted address holds the anchor. A removal compares
        // addresses.
        let address = address as u64;
        let outcome = match step {
            LayerStep::Insert(_) => self.0.insert(anchor, &address),
            LayerStep::Remove(_) => {
                let removed = self.0.compare_exchange(anchor, Some(&address), None);
                removed.map(|done| done.ok().map(|()| address))
            }
        };
        // An anchor is a key that was stored, so its length is valid.
        outcome.unwrap_or_default().map(|address| address as usize)
    }

    fn for_each(&self, mut each: impl FnMut(&K, AnchorAddress)) {
        self.0.visit(
            Bound::Unbounded,
            Bound::Unbounded,
            Direction::Ascending,
            |anchor, address| {
                each(anchor, *address as usize);
                ControlFlow::Continue(())
            },
        );
    }

    fn memory_usage(&self) -> usize {
        self.0.memory_usage().total()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::wormhole::layer::TableLayer;

    /// Returns an anchor in the form in which a node stores it.
    fn stored(anchor: &[u8]) -> Vec<u16> {
        let cell = (anchor.len() as u16).to_ne_bytes();
        // As words, because a cell is aligned.
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
            layer.publish(|address| assert_eq!(left.replace(address), None, "two addresses left"));
            left
        };
        assert_eq!(layer.jump(b"x"), None);
        assert_eq!(apply(b"m", LayerStep::Insert(m)), None);
        assert_eq!(apply(b"", LayerStep::Insert(empty)), None);
        assert_eq!(apply(b"mm\0", LayerStep::Insert(mm)), None);
        // The anchor itself, or one of its neighbours.
        let jumps: [(&[u8], [AnchorAddress; 2]); 5] = [
            (b"", [empty, empty]),
            (b"a", [empty, m]),
            (b"m", [m, m]),
            (b"mm", [m, mm]),
            (b"zz", [mm, mm]),
        ];
        for (key, near) in jumps {
            assert!(layer.jump(key).is_some_and(|address| near.contains(&address)), "{key:?}");
        }
        // A later node with the same anchor; then the late removal of the earlier one.
        assert_eq!(apply(b"m", LayerStep::Insert(later)), Some(m));
        assert_eq!(apply(b"m", LayerStep::Remove(m)), None);
        assert_eq!(layer.jump(b"m"), Some(later));
        assert_eq!(apply(b"m", LayerStep::Remove(later)), Some(later));
        assert_eq!(apply(b"m", LayerStep::Remove(later)), None);
        let mut left = Vec::new();
        layer.for_each(|anchor, address| left.push((anchor.to_vec(), address)));
        assert_eq!(left, [(b"".to_vec(), empty), (b"mm\0".to_vec(), mm)]);
        assert!(layer.memory_usage() > 0);
    }

    #[test]
    fn every_layer_keeps_the_contract() {
        check::<ArtLayer<[u8]>>();
        check::<TableLayer<[u8]>>();
    }
}
