//! The double-ended iterator over any index.
//!
//! Reads ahead in chunks that double from 16 to 1,024 entries, and resumes each side by the last
//! key it returned. So it holds nothing of the index between calls; each chunk is one live walk,
//! and the whole is one too: every chunk covers exactly the keys beyond the last one returned.

use std::borrow::Borrow;
use std::ops::Bound;

use super::{Direction, OrderedIndex, Owned};
use crate::Entries;

const FIRST_CHUNK: usize = 16;
const LAST_CHUNK: usize = 1024;

type Limit<I> = Bound<<<I as OrderedIndex>::Key as ToOwned>::Owned>;

/// One end of the range: what it has read ahead, and how much of that is returned.
struct Side<I: OrderedIndex> {
    ahead: Entries<I::Key, I::Value>,
    next: usize,
    chunk: usize,
}

impl<I: OrderedIndex> Side<I> {
    fn new() -> Self {
        Self { ahead: Entries::new(), next: 0, chunk: FIRST_CHUNK }
    }
}

/// The entries of an index within bounds, in order, from both ends.
///
/// Made by [`OrderedIndex::range`] and [`OrderedIndex::prefix`]. Amortized O(1) per entry plus one
/// seek per chunk.
pub struct Range<'a, I: OrderedIndex> {
    index: &'a I,
    /// What neither side has returned yet lies between these two.
    lower: Limit<I>,
    upper: Limit<I>,
    front: Side<I>,
    back: Side<I>,
}

impl<'a, I: OrderedIndex> Range<'a, I> {
    pub(super) fn new(index: &'a I, lower: Limit<I>, upper: Limit<I>) -> Self {
        Self { index, lower, upper, front: Side::new(), back: Side::new() }
    }

    /// The next entry of one side. Moves that side's bound to it, so that the other side, and the
    /// next chunk of this one, stay clear of what was returned.
    fn advance(&mut self, direction: Direction) -> Option<Owned<I>> {
        let side = match direction {
            Direction::Ascending => &mut self.front,
            Direction::Descending => &mut self.back,
        };
        if side.next == side.ahead.len() {
            side.ahead.clear();
            side.next = 0;
            let lower = self.lower.as_ref().map(Borrow::borrow);
            let upper = self.upper.as_ref().map(Borrow::borrow);
            self.index.collect(lower, upper, direction, side.chunk, &mut side.ahead);
            side.chunk = (side.chunk * 2).min(LAST_CHUNK);
        }
        let (key, value) = side.ahead.get(side.next)?;
        // The other side may have come past this entry since it was read ahead.
        let taken = match direction {
            Direction::Ascending => super::is_above(key, self.upper.as_ref().map(Borrow::borrow)),
            Direction::Descending => super::is_below(key, self.lower.as_ref().map(Borrow::borrow)),
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

impl<I: OrderedIndex> Iterator for Range<'_, I> {
    type Item = Owned<I>;

    fn next(&mut self) -> Option<Self::Item> {
        self.advance(Direction::Ascending)
    }
}

impl<I: OrderedIndex> DoubleEndedIterator for Range<'_, I> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.advance(Direction::Descending)
    }
}
