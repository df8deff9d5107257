//! The layouts of the four kinds of nodes, and the positions of entries.

#![expect(unsafe_code, reason = "nodes come from boxes")]

use crate::art::prefix::AtomicPrefix;
use crate::art::protocol::Protocol;
use crate::art::word::{Slot, Word};
use ordna_base::reclaim::Retire;
use ordna_base::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};
use ordna_base::sync::point;

#[derive(Debug)]
#[repr(C)]
pub(super) struct Header<L> {
    pub(super) lock: L,
    pub(super) prefix: AtomicPrefix,
    pub(super) terminal: Slot,
    pub(super) level: u16,
    /// Number of live children in the low [`ALIVE_BITS`] bits, and of slots ever used in the others
    /// (Node4, 16 and 48).
    pub(super) counts: AtomicU16,
    /// Key bytes of a Node4.
    pub(super) keys: AtomicU32,
}

pub(super) const ALIVE_BITS: u32 = 10;

#[derive(Debug)]
#[repr(C)]
pub(super) struct Node4<L> {
    pub(super) header: Header<L>,
    pub(super) children: [Slot; 4],
}

#[derive(Debug)]
#[repr(C)]
pub(super) struct Node16<L> {
    pub(super) header: Header<L>,
    pub(super) keys: [AtomicU64; 2],
    pub(super) children: [Slot; 16],
}

#[derive(Debug)]
#[repr(C)]
pub(super) struct Node48<L> {
    pub(super) header: Header<L>,
    /// Slot of each byte plus one, with eight bytes per word. The slot of the lowest byte is in the
    /// lowest bits, so that a scan skips eight unused ones at once.
    pub(super) index: [AtomicU64; 32],
    pub(super) children: [Slot; 48],
}

impl<L> Node48<L> {
    /// Returns the slot of the byte, plus one.
    #[inline]
    pub(super) fn slot_of(&self, byte: u8) -> usize {
        // Relaxed: a slot that is not yet seen as filled is empty for this reader.
        let word = self.index[usize::from(byte) / 8].load(Ordering::Relaxed);
        usize::from((word >> (byte % 8 * 8)) as u8)
    }

    /// Sets the slot of the byte, plus one. The caller holds the lock.
    pub(super) fn set_slot_of(&self, byte: u8, slot: usize) {
        let word = &self.index[usize::from(byte) / 8];
        let shift = byte % 8 * 8;
        let others = word.load(Ordering::Relaxed) & !(0xFF << shift);
        word.store(others | (slot as u64) << shift, Ordering::Relaxed);
    }
}

#[derive(Debug)]
#[repr(C)]
pub(super) struct Node256<L> {
    pub(super) header: Header<L>,
    pub(super) children: [Slot; 256],
}

pub(super) enum View<'g, L> {
    Linear(Linear<'g>),
    Node48(&'g Node48<L>),
    Node256(&'g Node256<L>),
}

/// A Node4 or Node16, for everything except the frequent search.
#[derive(Clone, Copy)]
pub(super) struct Linear<'g> {
    pub(super) keys: Keys<'g>,
    pub(super) children: &'g [Slot],
}

#[derive(Clone, Copy)]
pub(super) enum Keys<'g> {
    Four(&'g AtomicU32),
    Sixteen(&'g [AtomicU64; 2]),
}

impl Keys<'_> {
    /// Returns the key bytes, with that of slot 0 in the lowest bits.
    #[inline]
    pub(super) fn load(self) -> u128 {
        match self {
            Self::Four(keys) => u128::from(keys.load(Ordering::Relaxed)),
            Self::Sixteen([low, high]) => {
                u128::from(high.load(Ordering::Relaxed)) << 64
                    | u128::from(low.load(Ordering::Relaxed))
            }
        }
    }

    pub(super) fn store(self, keys: u128) {
        match self {
            Self::Four(word) => word.store(keys as u32, Ordering::Relaxed),
            Self::Sixteen([low, high]) => {
                low.store(keys as u64, Ordering::Relaxed);
                high.store((keys >> 64) as u64, Ordering::Relaxed);
            }
        }
    }
}

pub(super) fn byte_at(keys: u128, slot: usize) -> u8 {
    (keys >> (slot * 8)) as u8
}

/// Returns the bytes before `slot`, and those from it on.
fn split_at(keys: u128, slot: usize) -> (u128, u128) {
    let low = keys & !u128::MAX.checked_shl(slot as u32 * 8).unwrap_or(0);
    (low, keys & !low)
}

impl Linear<'_> {
    /// Returns the slot of `byte` among the first `used`.
    pub(super) fn find(self, byte: u8, used: usize) -> Option<usize> {
        let keys = self.keys.load();
        (0..used).find(|slot| byte_at(keys, *slot) == byte)
    }

    pub(super) fn insert_sorted<P>(self, byte: u8, word: Word<'_, P>, used: usize) {
        let keys = self.keys.load();
        let at = (0..used).find(|slot| byte_at(keys, *slot) > byte).unwrap_or(used);
        for slot in (at..used).rev() {
            self.children[slot + 1].store(self.children[slot].load::<P>());
        }
        point("art.add.shifted");
        self.children[at].store(word);
        let (low, high) = split_at(keys, at);
        self.keys.store(low | u128::from(byte) << (at * 8) | high << 8);
    }

    pub(super) fn remove_sorted<P: Protocol>(self, at: usize, used: usize) {
        let (low, high) = split_at(self.keys.load(), at);
        for slot in at..used - 1 {
            self.children[slot].store(self.children[slot + 1].load::<P>());
        }
        self.children[used - 1].store(Word::<P>::EMPTY);
        point("art.remove.shifted");
        let (_, behind) = split_at(high, at + 1);
        self.keys.store(low | behind >> 8);
    }
}

/// Size of a cache line in bytes.
pub(super) const LINE: usize = 64;
/// Number of bytes of a Node256 that are prefetched before a scan reaches it.
pub(super) const AHEAD: usize = 5 * LINE;

/// Position of an entry in a node, in the order of keys: 0 for the terminal slot, otherwise the
/// byte plus one.
pub type Position = u16;

/// Position of the key that ends at the node.
pub const TERMINAL: Position = 0;
pub(super) const LAST: Position = 256;

/// Returns the position of a byte.
#[inline]
pub fn position(byte: u8) -> Position {
    Position::from(byte) + 1
}

macro_rules! boxed {
    ($($node:ident),+) => {$(
        impl<L> Retire for $node<L> {
            unsafe fn free(memory: *mut Self) {
                // SAFETY: nodes come from boxes, and this one belongs to the caller alone.
                drop(unsafe { Box::from_raw(memory) });
            }
        }
    )+};
}
boxed!(Node4, Node16, Node48, Node256);
