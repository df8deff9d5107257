//! The double-ended iterator over any index.
//!
//! Reads ahead in chunks that double from 16 to 1,024 entries, of 256 KiB at most, and resumes each side by the last
//! key it returned. So it holds nothing of the index between calls; each chunk is one live scan,
//! and the whole is one too: every chunk covers exactly the keys beyond the last one returned.

use std::borrow::Borrow;
use std::ops::{Bound, ControlFlow};

use crate::bounds::{Direction, is_above, is_below};
use crate::{Entries, Key, Value};

const FIRST_CHUNK: usize = 16;
const LAST_CHUNK: usize = 1024;

/// Bytes of keys and values after which a chunk ends: 256 KiB, as of 1,024 entries of 256 bytes. A scan
/// of large values holds one of them at a time, whatever the number of entries.
pub const READ_AHEAD_BYTES: usize = 256 << 10;

/// The source of a [`Range`]: every index and every snapshot.
pub trait Source {
    /// `u64` or `[u8]`.
    type Key: Key + ?Sized;
    /// `u64` or `[u8]`.
    type Value: Value + ?Sized;

    /// Appends the first `limit` entries (at least one) within the bounds to `out`, in the given
    /// direction, or fewer whose bytes reach [`READ_AHEAD_BYTES`]. Returns whether one of these limits
    /// ended the read, so that more entries may follow.
    fn read_ahead(
        &self,
        lower: Bound<&Self::Key>,
        upper: Bound<&Self::Key>,
        direction: Direction,
        limit: usize,
        out: &mut Entries<Self::Key, Self::Value>,
    ) -> bool;
}

/// Entries as they are read ahead, until a limit is reached.
pub struct Chunk<'a, K: Key + ?Sized, V: Value + ?Sized> {
    out: &'a mut Entries<K, V>,
    /// The buffer is full at this number of entries, or of bytes.
    len: usize,
    bytes: usize,
    is_full: bool,
}

impl<'a, K: Key + ?Sized, V: Value + ?Sized> Chunk<'a, K, V> {
    /// Returns a chunk of at most `limit` entries behind those of `out`.
    pub fn new(out: &'a mut Entries<K, V>, limit: usize) -> Self {
        let (len, bytes) = (out.len().saturating_add(limit), out.byte_len() + READ_AHEAD_BYTES);
        Self { out, len, bytes, is_full: limit == 0 }
    }

    /// Appends an entry; breaks once the chunk is full.
    #[inline]
    pub fn push(&mut self, key: &K, value: &V) -> ControlFlow<()> {
        self.out.push(key, value);
        self.is_full = self.out.len() >= self.len || self.out.byte_len() >= self.bytes;
        if self.is_full { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Whether a limit was reached.
    pub fn is_full(&self) -> bool {
        self.is_full
    }
}

type Limit<S> = Bound<<<S as Source>::Key as ToOwned>::Owned>;
type Entry<S> = (<<S as Source>::Key as ToOwned>::Owned, <<S as Source>::Value as ToOwned>::Owned);

/// One end of the range: what it has read ahead, and how much of that is returned.
struct Side<I: Source> {
    ahead: Entries<I::Key, I::Value>,
    next: usize,
    chunk: usize,
}

impl<I: Source> Side<I> {
    fn new() -> Self {
        Self { ahead: Entries::new(), next: 0, chunk: FIRST_CHUNK }
    }
}

/// The entries of an index within bounds, in order, from both ends.
///
/// Made by [`OrderedIndex::range`](crate::OrderedIndex::range) and
/// [`OrderedIndex::prefix`](crate::OrderedIndex::prefix). Amortized O(1) per entry plus one
/// seek per chunk.
pub struct Range<'a, I: Source> {
    index: &'a I,
    /// The entries that neither side has returned lie between these two.
    lower: Limit<I>,
    upper: Limit<I>,
    front: Side<I>,
    back: Side<I>,
}

impl<'a, I: Source> Range<'a, I> {
    /// Returns an iterator over the entries of `index` within the bounds.
    pub fn new(index: &'a I, lower: Limit<I>, upper: Limit<I>) -> Self {
        Self { index, lower, upper, front: Side::new(), back: Side::new() }
    }

    /// The next entry of one side. Moves that side's bound to it, so that the other side, and the
    /// next chunk of this one, stay clear of what was returned.
    fn advance(&mut self, direction: Direction) -> Option<Entry<I>> {
        let side = match direction {
            Direction::Ascending => &mut self.front,
            Direction::Descending => &mut self.back,
        };
        if side.next == side.ahead.len() {
            side.ahead.clear();
            side.next = 0;
            let lower = self.lower.as_ref().map(Borrow::borrow);
            let upper = self.upper.as_ref().map(Borrow::borrow);
            self.index.read_ahead(lower, upper, direction, side.chunk, &mut side.ahead);
            side.chunk = (side.chunk * 2).min(LAST_CHUNK);
        }
        let (key, value) = side.ahead.get(side.next)?;
        // The other side may have come past this entry since it was read ahead.
        let taken = match direction {
            Direction::Ascending => is_above(key, self.upper.as_ref().map(Borrow::borrow)),
            Direction::Descending => is_below(key, self.lower.as_ref().map(Borrow::borrow)),
        };
        if taken {
            return None;
        }
        side.next += 1;
        let entry = (key.to_owned(), value.to_owned());
        match direction {
            Direction::Ascending => self.lower = Bound::Excluded(entry.0.clone()),
            Direction::Descending => self.upper = Bound::Excluded(entry.0.clone()),
        }
        Some(entry)
    }
}

impl<I: Source> Iterator for Range<'_, I> {
    type Item = Entry<I>;

    fn next(&mut self) -> Option<Self::Item> {
        self.advance(Direction::Ascending)
    }
}

impl<I: Source> DoubleEndedIterator for Range<'_, I> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.advance(Direction::Descending)
    }
}
