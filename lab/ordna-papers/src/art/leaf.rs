//! The leaves of a tree: its own records, or keys in the memory of another structure.
//!
//! Under a protocol with [`Protocol::LENT`], a leaf is the address of a key that another structure
//! stores: a [`Key::cell`], followed by its [`Key::tail`]. The value is that address as a word. The
//! tree neither copies nor frees such a leaf. HydraList's search layer uses this.

#![expect(unsafe_code, reason = "leaves are addresses")]

use std::ptr::{self, NonNull};

use super::protocol::Protocol;
use super::tree::{Keep, Tree};
use super::word::RecordRef;
use ordna_base::record::Record;
use ordna_base::simd::prefetch;
use ordna_base::{Key, Value};

impl<K: Key + ?Sized, V: Value + ?Sized, P: Protocol> Tree<K, V, P> {
    /// Returns the record of a leaf that the tree owns.
    fn record(leaf: RecordRef<'_>) -> Record<K, V> {
        // SAFETY: the leaves of this tree are records of these types.
        let record = unsafe { Record::from_ptr(leaf.as_ptr()) };
        record.expect("a leaf is not null")
    }

    #[inline]
    pub fn key(leaf: RecordRef<'_>) -> &K {
        if P::LENT {
            let start = leaf.as_ptr().cast_const();
            let tail = start.wrapping_add(size_of::<K::Cell>());
            // SAFETY: the key is stored there unchanged for as long as the leaf is in the tree.
            return unsafe { K::view(start.cast(), tail) };
        }
        // SAFETY: the record is alive as long as the leaf is.
        unsafe { Self::record(leaf).key() }
    }

    #[inline]
    pub fn with_value<R>(leaf: RecordRef<'_>, read: impl FnOnce(&V) -> R) -> R {
        if P::LENT {
            let word = leaf.as_ptr().addr() as u64;
            return V::from_word(&word).map(read).expect("the values of lent keys are words");
        }
        // SAFETY: the record is alive as long as the leaf is.
        unsafe { Self::record(leaf).with_value(read) }
    }

    /// Prefetches the leaf. A lent key is stored in the node that its reader accesses next.
    #[inline]
    pub fn prefetch(leaf: RecordRef<'_>) {
        let start = leaf.as_ptr().cast_const();
        prefetch(start);
        if P::LENT {
            prefetch(start.wrapping_sub(64));
            if !K::HEAD_IS_KEY {
                prefetch(start.wrapping_sub(128));
            }
        }
    }

    /// Overwrites the word of a leaf. Returns `false` if a new value needs a new leaf.
    ///
    /// # Safety
    /// The caller holds the lock of the leaf's node.
    pub unsafe fn overwrite(leaf: RecordRef<'_>, value: &V) -> bool {
        // SAFETY: the record is alive, and the caller upholds the contract.
        !P::LENT && unsafe { Self::record(leaf).overwrite(value) }
    }

    /// Returns the number of bytes of the leaf that the tree owns.
    pub fn size(leaf: RecordRef<'_>) -> usize {
        // SAFETY: the record is alive as long as the leaf is.
        if P::LENT { 0 } else { unsafe { Self::record(leaf).size() } }
    }

    /// Retires a leaf.
    ///
    /// # Safety
    /// As for [`Keep::retire_record`].
    pub unsafe fn retire(leaf: RecordRef<'_>, keep: &impl Keep) {
        if !P::LENT {
            // SAFETY: the caller upholds the contract.
            unsafe { keep.retire_record(Self::record(leaf)) }
        }
    }

    /// Frees a leaf.
    ///
    /// # Safety
    /// No other thread can reach the leaf, and no thread uses it afterwards.
    pub unsafe fn free(leaf: RecordRef<'_>) {
        if !P::LENT {
            // SAFETY: the caller upholds the contract.
            unsafe { Self::record(leaf).free() }
        }
    }

    /// Creates a leaf that is not in the tree yet. It must be linked or freed.
    pub fn leaf<'g>(key: &K, value: &V) -> RecordRef<'g> {
        let start = match value.to_word() {
            Some(word) if P::LENT => ptr::with_exposed_provenance_mut(word as usize),
            _ => Record::new(key, value).as_ptr(),
        };
        let start = NonNull::new(start).expect("a leaf is not null");
        // SAFETY: a slot that receives this leaf belongs to a node that is alive for 'g.
        unsafe { RecordRef::new(start) }
    }
}
