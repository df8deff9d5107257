//! [`ValueRef`]: values that are read without a copy, where they are stored.
//!
//! # Contract
//! The contract is that of [the tree](super). The guard in a borrowed value keeps the value's
//! memory alive: a record that is replaced, removed or moved is retired, not freed, and its bytes
//! never change.

use std::borrow::Borrow;
use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;

use ordna_base::reclaim::Guard;
use ordna_base::{Key, Value};

use super::Tree;
use super::leaf::Probe;
use crate::epoch::Epoch;

/// The value of a key, borrowed from a [`Store`](crate::Store) or [`Snapshot`](crate::Snapshot)
/// without a copy.
///
/// The borrowed value stays as it is when the key is changed or removed. While it lives, memory
/// that any thread retires in this store is not freed, so hold it only briefly;
/// [`to_owned`](ToOwned::to_owned) copies the value. It holds no lock and cannot be sent to another
/// thread.
///
/// ```
/// let names: ordna::Store<u64, [u8]> = ordna::Store::new();
/// names.put(1, "Lund")?;
/// names.put(2, "Uppsala")?;
/// let name = names.get_ref(2).unwrap();
/// assert_eq!((name.len(), &name[..2]), (7, &b"Up"[..]));
/// # Ok::<(), ordna::Error>(())
/// ```
pub struct ValueRef<'a, V: Value + ?Sized> {
    value: Place<V>,
    _guard: Guard<'a>,
}

enum Place<V: Value + ?Sized> {
    /// A copy of a word, because words are overwritten in place.
    Word(V::Owned),
    /// A pointer into the entry's record, or into the buffer that the record shares.
    Record(NonNull<V>),
}

impl<V: Value + ?Sized> Deref for ValueRef<'_, V> {
    type Target = V;

    #[inline]
    fn deref(&self) -> &V {
        match &self.value {
            Place::Word(value) => value.borrow(),
            #[expect(unsafe_code, reason = "a borrow as long as the guard")]
            // SAFETY: the value was reachable while `_guard` was held, so its record is not freed
            // before the guard is dropped; the bytes of a value never change.
            Place::Record(value) => unsafe { value.as_ref() },
        }
    }
}

impl<V: Value + ?Sized> AsRef<V> for ValueRef<'_, V> {
    fn as_ref(&self) -> &V {
        self
    }
}

impl<V: Value + ?Sized> fmt::Debug for ValueRef<'_, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> Tree<K, V> {
    /// Borrows the value of the key if `shows` returns `true` for its deadline. O(log n).
    #[inline]
    pub fn get_ref<'a>(
        &self,
        probe: &Probe<'_, K>,
        snapshot: Option<Epoch>,
        guard: Guard<'a>,
        shows: impl FnOnce(u64) -> bool,
    ) -> Option<ValueRef<'a, V>> {
        let place = self.get(probe, snapshot, &guard, |value, deadline| {
            shows(deadline).then(|| match V::IN_PLACE {
                true => Place::Word(value.to_owned()),
                false => Place::Record(NonNull::from(value)),
            })
        })??;
        Some(ValueRef { value: place, _guard: guard })
    }
}
