//! Slots of a data node: two words each, for all kinds of keys and values.
//!
//! | key | value | first word | second word |
//! |---|---|---|---|
//! | `u64` | `u64` | the key | the value |
//! | otherwise | | head of the key | address of a [`Record`] with key and value |
//!
//! Both words are atomics. A slot is written under its node's lock. [`super::node`] argues why a
//! reader without the lock may follow the second word before it validates.

#![expect(unsafe_code, reason = "records behind words")]

use std::cmp::Ordering as Order;
use std::marker::PhantomData;
use std::ptr;

use ordna_base::order;
use ordna_base::reclaim::Guard;
use ordna_base::record::Record;
use ordna_base::simd::InstructionSet;
use ordna_base::sync::atomic::{AtomicU64, Ordering};
use ordna_base::sync::fault;
use ordna_base::{Key, Value};

/// Two atomic words of a node that hold an entry.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Slot {
    head: AtomicU64,
    word: AtomicU64,
}

impl Slot {
    /// Returns the head of the key.
    #[inline]
    pub fn head(&self) -> u64 {
        self.head.load(Ordering::Relaxed)
    }

    /// Loads the entry. Acquire: a thread that reads a record's address also sees the record.
    #[inline]
    pub fn load<K: Key + ?Sized, V: Value + ?Sized>(&self) -> NodeEntry<K, V> {
        NodeEntry {
            head: self.head.load(Ordering::Relaxed),
            word: self.word.load(Ordering::Acquire),
            kinds: PhantomData,
        }
    }

    /// Sets the entry. The caller holds the lock of the slot's node.
    #[inline]
    pub fn store<K: Key + ?Sized, V: Value + ?Sized>(&self, entry: NodeEntry<K, V>) {
        self.head.store(entry.head, Ordering::Relaxed);
        // Pairs with the acquire load.
        self.word.store(entry.word, Ordering::Release);
    }
}

/// A copy of a slot.
pub struct NodeEntry<K: Key + ?Sized, V: Value + ?Sized> {
    head: u64,
    word: u64,
    kinds: PhantomData<(*const K, *const V)>,
}

impl<K: Key + ?Sized, V: Value + ?Sized> Clone for NodeEntry<K, V> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<K: Key + ?Sized, V: Value + ?Sized> Copy for NodeEntry<K, V> {}

impl<K: Key + ?Sized, V: Value + ?Sized> NodeEntry<K, V> {
    /// Whether the two words are the key and the value themselves, without a record.
    pub const INLINE: bool = K::HEAD_IS_KEY && V::IN_PLACE;

    /// A placeholder without an entry, which is never read.
    pub const EMPTY: Self = Self { head: 0, word: 0, kinds: PhantomData };

    /// Creates an entry. Key and value have been validated by `check`.
    pub fn new(key: &K, value: &V) -> Self {
        let word = if Self::INLINE {
            word_of(value)
        } else {
            Record::<K, V>::new(key, value).as_ptr().expose_provenance() as u64
        };
        Self { head: key.head(), word, kinds: PhantomData }
    }

    #[inline]
    pub fn head(self) -> u64 {
        self.head
    }

    /// # Safety
    /// The entry has a record, and the record is not freed while the result is used.
    #[inline]
    unsafe fn record(self) -> Record<K, V> {
        let address = ptr::with_exposed_provenance_mut(self.word as usize);
        // SAFETY: `new` made the word from a record of these kinds.
        let record = unsafe { Record::from_ptr(address) };
        record.expect("a record's address is not null")
    }

    /// Prefetches the memory of the entry's record.
    #[inline]
    pub fn prefetch(self) {
        if !Self::INLINE {
            let record = ptr::with_exposed_provenance::<u8>(self.word as usize);
            ordna_base::simd::prefetch(record);
            if !K::HEAD_IS_KEY {
                // The second cache line, which holds the end of a key of usual length.
                ordna_base::simd::prefetch(record.wrapping_add(40));
            }
        }
    }

    /// Calls `f` with the key.
    ///
    /// # Safety
    /// The entry was in a slot at some moment, and its record is not freed during the call.
    #[inline]
    pub unsafe fn with_key<R>(self, f: impl FnOnce(&K) -> R) -> R {
        if K::HEAD_IS_KEY {
            // SAFETY: for this kind the cell is the key itself, the head, and there is no tail.
            f(unsafe { K::view((&raw const self.head).cast(), ptr::null()) })
        } else {
            // SAFETY: the caller keeps the record alive; keys never change.
            f(unsafe { self.record().key() })
        }
    }

    /// Returns the key.
    ///
    /// # Safety
    /// As for [`NodeEntry::with_key`]; the record is not freed while the result is used.
    #[inline]
    pub unsafe fn key(&self) -> &K {
        if K::HEAD_IS_KEY {
            // SAFETY: as in `with_key`.
            unsafe { K::view((&raw const self.head).cast(), ptr::null()) }
        } else {
            // SAFETY: the caller keeps the record alive; keys never change.
            unsafe { self.record().key() }
        }
    }

    /// Compares the entry's key with `key`, whose head is `head`.
    ///
    /// # Safety
    /// As for [`NodeEntry::with_key`].
    #[inline]
    pub unsafe fn compare(self, head: u64, key: &K) -> Order {
        let order = self.head.cmp(&head);
        if K::HEAD_IS_KEY || order != Order::Equal {
            return order;
        }
        // SAFETY: the caller upholds the contract.
        unsafe { self.with_key(|own| own.cmp(key)) }
    }

    /// Compares the keys of two entries.
    ///
    /// # Safety
    /// As for [`NodeEntry::with_key`], of both.
    #[inline]
    pub unsafe fn order(self, other: Self) -> Order {
        let order = self.head.cmp(&other.head);
        if K::HEAD_IS_KEY || order != Order::Equal {
            return order;
        }
        // SAFETY: the caller upholds the contract.
        unsafe { self.with_key(|own| other.with_key(|other| own.cmp(other))) }
    }

    /// Returns the positions of the entries in the order of their keys.
    ///
    /// # Safety
    /// As for [`NodeEntry::with_key`], of all entries.
    pub unsafe fn sorted(entries: &[Self], simd: InstructionSet) -> [u8; order::MOST] {
        let entry = |at: u8| &entries[usize::from(at)];
        if K::HEAD_IS_KEY {
            let mut heads = [0; order::MOST];
            heads.iter_mut().zip(entries).for_each(|(head, entry)| *head = entry.head());
            return order::of_integers(&heads[..entries.len()], simd);
        }
        // SAFETY: the caller upholds the contract.
        let key = |at| unsafe { entry(at).key() }.tail();
        let (head, prefetch) = (|at| entry(at).head(), |at| entry(at).prefetch());
        order::of_strings(entries.len(), head, prefetch, key, simd)
    }

    /// Calls `f` with the value. A word in a record is loaded once, with acquire ordering.
    ///
    /// # Safety
    /// As for [`NodeEntry::with_key`].
    #[inline]
    pub unsafe fn with_value<R>(self, f: impl FnOnce(&V) -> R) -> R {
        if Self::INLINE {
            let cell = AtomicU64::new(self.word);
            // SAFETY: the cell of the kind that is kept inline is an AtomicU64, and has no tail.
            unsafe { V::with(&*(&raw const cell).cast::<V::Cell>(), ptr::null(), f) }
        } else {
            // SAFETY: the caller keeps the record alive.
            unsafe { self.record().with_value(f) }
        }
    }

    /// Replaces the value of the entry in `slot`. Returns whether this put another record into the
    /// slot, in which case the caller has to [`retire`](NodeEntry::retire) this entry. That may
    /// free a batch of records, so do it without the node's lock.
    ///
    /// # Safety
    /// This entry is in `slot`, whose node's lock the caller holds; `key` is its key.
    #[must_use]
    pub unsafe fn replace(self, slot: &Slot, key: &K, value: &V) -> bool {
        if Self::INLINE {
            slot.word.store(word_of(value), Ordering::Release);
            return false;
        }
        // SAFETY: an entry in a slot is alive; the lock of its node is the lock on the entry.
        if unsafe { self.record().overwrite(value) } {
            return false;
        }
        slot.store(Self::new(key, value));
        true
    }

    /// Retires the record of the entry, if it has one.
    ///
    /// # Safety
    /// The entry has left its only slot, and this method is called once.
    pub unsafe fn retire(self, guard: &Guard<'_>) {
        if Self::INLINE {
            return;
        }
        // SAFETY: unlinked by the caller. The planted fault breaks that promise.
        unsafe {
            if fault!("hydralist.retire.record_at_once") {
                self.record().free();
            } else {
                self.record().retire(guard);
            }
        }
    }

    /// Frees the record of the entry, if it has one.
    ///
    /// # Safety
    /// No other thread can reach it, and no thread uses it afterwards.
    pub unsafe fn free(self) {
        if !Self::INLINE {
            // SAFETY: the caller upholds the contract.
            unsafe { self.record().free() }
        }
    }

    /// Returns the number of bytes allocated for the entry's record.
    ///
    /// # Safety
    /// As for [`NodeEntry::with_key`].
    pub unsafe fn size(self) -> usize {
        // SAFETY: the caller upholds the contract.
        if Self::INLINE { 0 } else { unsafe { self.record().size() } }
    }
}

/// Returns the word of a `u64` value.
fn word_of<V: Value + ?Sized>(value: &V) -> u64 {
    let cell = value.cell();
    // SAFETY: called for inline entries only, whose kind of value has an AtomicU64 for a cell.
    unsafe { (*(&raw const cell).cast::<AtomicU64>()).load(Ordering::Relaxed) }
}

/// Returns one byte of the key's hash, to distinguish keys quickly.
#[inline]
pub fn fingerprint<K: Key + ?Sized>(key: &K, head: u64) -> u8 {
    const ODD: u64 = 0x9E37_79B9_7F4A_7C15;
    let mut hash = head.wrapping_mul(ODD);
    if !K::HEAD_IS_KEY {
        let bytes = key.radix();
        let bytes = bytes.as_ref();
        let (words, rest) = bytes.split_at(bytes.len() & !7);
        for word in words.chunks_exact(8).skip(1) {
            let word = u64::from_le_bytes(word.try_into().expect("eight bytes"));
            hash = (hash ^ hash >> 32 ^ word).wrapping_mul(ODD);
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        // The length distinguishes a key from the same key followed by zero bytes.
        let last = u64::from_le_bytes(last) ^ (bytes.len() as u64) << 56;
        hash = (hash ^ hash >> 32 ^ last).wrapping_mul(ODD);
    }
    (hash >> 56) as u8
}

/// Prefetches a key that is compared soon, because the caller's keys may be anywhere in memory.
#[inline]
pub fn prefetch_key<K: Key + ?Sized>(key: &K) {
    ordna_base::simd::prefetch(std::ptr::from_ref(key).cast::<u8>());
    if let Some(last) = key.tail().last() {
        ordna_base::simd::prefetch(last);
    }
}
