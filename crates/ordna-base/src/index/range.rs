//! [`Range`]: the double-ended iterator over any index.
//!
//! The iterator reads ahead in chunks that double from 16 to 1,024 entries, at most 256 KiB, and
//! resumes each side after the last key it returned. So it holds no part of the index between
//! calls. Each chunk is a live scan, and so is the whole: every chunk covers exactly the keys
//! beyond the last one returned.

use std::borrow::Borrow;
use std::iter::FusedIterator;
use std::ops::{Bound, ControlFlow};

use crate::bounds::{Direction, is_above, is_below};
use crate::{Entries, Key, Value};

const LAST_CHUNK: usize = 1024;

/// Size of keys and values in bytes after which a chunk ends: 256 KiB, the size of 1,024 entries of
/// 256 bytes. So a scan of large values holds few of them at a time.
pub const READ_AHEAD_BYTES: usize = 256 << 10;

/// The source of a [`Range`]: every index and every snapshot.
pub trait Source {
    /// `u64` or `[u8]`.
    type Key: Key + ?Sized;
    /// `u64` or `[u8]`.
    type Value: Value + ?Sized;

    /// Maximum number of entries in the first chunk of an iterator. Each chunk is twice as long as
    /// the previous one.
    const FIRST_CHUNK: usize = 16;

    /// Appends the first `limit` entries (at least one) within the bounds to `out`, in the given
    /// direction, but stops early when their bytes reach [`READ_AHEAD_BYTES`]. Returns whether one
    /// of these limits ended the read, so that more entries may follow.
    fn read_ahead(
        &self,
        lower: Bound<&Self::Key>,
        upper: Bound<&Self::Key>,
        direction: Direction,
        limit: usize,
        out: &mut Entries<Self::Key, Self::Value>,
    ) -> bool;
}

/// A buffer for entries that are read ahead, until a limit is reached.
pub struct Chunk<'a, K: Key + ?Sized, V: Value + ?Sized> {
    out: &'a mut Entries<K, V>,
    /// Number of entries at which the buffer is full.
    len: usize,
    bytes: usize,
    is_full: bool,
}

impl<'a, K: Key + ?Sized, V: Value + ?Sized> Chunk<'a, K, V> {
    /// Creates a chunk of at most `limit` entries, which are appended to those of `out`.
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

    /// Returns whether a limit was reached.
    pub fn is_full(&self) -> bool {
        self.is_full
    }
}

type Limit<S> = Bound<<<S as Source>::Key as ToOwned>::Owned>;
type Entry<S> = (<<S as Source>::Key as ToOwned>::Owned, <<S as Source>::Value as ToOwned>::Owned);
type Lent<'a, S> = (&'a <S as Source>::Key, &'a <S as Source>::Value);

/// One end of the range: the entries read ahead, and how many of them have been returned.
struct Side<I: Source> {
    ahead: Entries<I::Key, I::Value>,
    next: usize,
    chunk: usize,
    /// Whether this side has read ahead.
    is_used: bool,
}

impl<I: Source> Side<I> {
    fn new() -> Self {
        Self { ahead: Entries::new(), next: 0, chunk: I::FIRST_CHUNK, is_used: false }
    }

    /// Returns the key that was returned last if it is still in the buffer.
    fn last(&self) -> Option<&I::Key> {
        self.ahead.get(self.next.checked_sub(1)?).map(|(key, _)| key)
    }
}

/// The position of an iterator over a source that it does not own: both ends of the remaining
/// range.
pub struct Ends<I: Source> {
    /// Lower bound of the entries that neither side had returned when it last read ahead.
    lower: Limit<I>,
    upper: Limit<I>,
    front: Side<I>,
    back: Side<I>,
    is_done: bool,
}

impl<I: Source> Ends<I> {
    /// Creates the position of an iterator over the entries within the bounds.
    pub fn new(lower: Limit<I>, upper: Limit<I>) -> Self {
        Self { lower, upper, front: Side::new(), back: Side::new(), is_done: false }
    }

    /// Returns the next entry of one side, borrowed from the buffer of that side. `index` must be
    /// the same in each call. After the last entry it always returns `None`.
    pub fn advance(&mut self, index: &I, direction: Direction) -> Option<Lent<'_, I>> {
        if self.is_done {
            return None;
        }
        let (side, other) = match direction {
            Direction::Ascending => (&mut self.front, &self.back),
            Direction::Descending => (&mut self.back, &self.front),
        };
        // The bounds exclude everything that either side has returned.
        let (own, others) = match direction {
            Direction::Ascending => (&mut self.lower, &self.upper),
            Direction::Descending => (&mut self.upper, &self.lower),
        };
        let others = other.last().map_or(others.as_ref().map(Borrow::borrow), Bound::Excluded);
        if side.next == side.ahead.len() {
            if let Some(last) = side.last() {
                *own = Bound::Excluded(last.to_owned());
            }
            side.ahead.clear();
            side.next = 0;
            let own = own.as_ref().map(Borrow::borrow);
            let (lower, upper) = match direction {
                Direction::Ascending => (own, others),
                Direction::Descending => (others, own),
            };
            index.read_ahead(lower, upper, direction, side.chunk, &mut side.ahead);
            side.chunk = (side.chunk * 2).min(LAST_CHUNK);
            side.is_used = true;
        }
        let at = side.next;
        // The other side may have passed this entry after it was read ahead.
        let is_left = side.ahead.get(at).is_some_and(|(key, _)| match direction {
            _ if !other.is_used => true,
            Direction::Ascending => !is_above(key, others),
            Direction::Descending => !is_below(key, others),
        });
        if !is_left {
            self.is_done = true;
            return None;
        }
        side.next += 1;
        side.ahead.get(at)
    }
}

/// The entries of an index within bounds, in order, from both ends.
///
/// Created by [`OrderedIndex::range`](crate::OrderedIndex::range) and
/// [`OrderedIndex::prefix`](crate::OrderedIndex::prefix). Amortized O(1) per entry plus one search
/// per chunk. As an [`Iterator`] it copies each key and value; [`next_ref`](Self::next_ref) lends
/// them.
pub struct Range<'a, I: Source> {
    index: &'a I,
    ends: Ends<I>,
}

impl<'a, I: Source> Range<'a, I> {
    /// Creates an iterator over the entries of `index` within the bounds.
    pub fn new(index: &'a I, lower: Limit<I>, upper: Limit<I>) -> Self {
        Self { index, ends: Ends::new(lower, upper) }
    }

    /// Returns the next entry from the front, without copying it: it is lent until the next call.
    /// Amortized O(1).
    pub fn next_ref(&mut self) -> Option<Lent<'_, I>> {
        self.ends.advance(self.index, Direction::Ascending)
    }

    /// Returns the next entry from the back, without copying it: it is lent until the next call.
    /// Amortized O(1).
    pub fn next_back_ref(&mut self) -> Option<Lent<'_, I>> {
        self.ends.advance(self.index, Direction::Descending)
    }
}

fn copy<I: Source>((key, value): Lent<'_, I>) -> Entry<I> {
    (key.to_owned(), value.to_owned())
}

impl<I: Source> Iterator for Range<'_, I> {
    type Item = Entry<I>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_ref().map(copy::<I>)
    }
}

impl<I: Source> DoubleEndedIterator for Range<'_, I> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.next_back_ref().map(copy::<I>)
    }
}

impl<I: Source> FusedIterator for Range<'_, I> {}
