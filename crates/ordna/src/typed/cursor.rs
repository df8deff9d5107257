//! [`Cursor`]: a position between two entries that can move in both directions.

use std::marker::PhantomData;
use std::ops::Bound;

use super::iter::Holds;
use super::mode::{Mode, Types};
use super::range::{ByteBounds, key_of};
use super::stored::Stored;
use crate::Error;
use crate::index::{Direction, Ends};
use crate::tuple::Decode;

/// A position between two entries of a map or snapshot, created by
/// [`Map::lower_bound`](super::Map::lower_bound) or [`Map::upper_bound`](super::Map::upper_bound).
///
/// [`next`](Self::next) and [`prev`](Self::prev) move past the entry after or before the position
/// and return it. A cursor of a map is live: it sees entries that are inserted ahead of it. A step
/// costs O(log n) where the direction changes, and otherwise amortized O(1).
///
/// ```
/// use std::ops::Bound;
///
/// let map: ordna::Map<u64, char> = [(1, 'a'), (3, 'c'), (5, 'e')].into_iter().collect();
/// let mut cursor = map.lower_bound(Bound::Included(3));
/// assert_eq!(cursor.next(), Some((3, 'c')));
/// assert_eq!(cursor.next(), Some((5, 'e')));
/// assert_eq!(cursor.next(), None);
/// assert_eq!(cursor.prev(), Some((5, 'e')));
/// assert_eq!(cursor.peek_prev(), Some((3, 'c')));
/// ```
pub struct Cursor<K, V, M, H: Holds> {
    /// A handle of the whole map, which decodes the entries.
    source: H,
    all: ByteBounds,
    lead: usize,
    /// The bounds of the entries after and before the position.
    after: Bound<Vec<u8>>,
    before: Bound<Vec<u8>>,
    /// Entries that were read ahead in one direction.
    ahead: Option<(Direction, Ends<H::Source>)>,
    types: Types<K, V, M>,
}

impl<K: Decode, V: Stored, M: Mode, H: Holds> Cursor<K, V, M, H> {
    /// Creates a cursor before the first entry within the bound `after`.
    pub(super) fn new(source: H, lead: &[u8], after: Bound<Vec<u8>>) -> Self {
        let all = ByteBounds::with_lead(lead);
        let after = match after {
            Bound::Unbounded => all.0.clone(),
            bound => bound,
        };
        let before = opposite(after.clone());
        let types = PhantomData;
        Self { source, all, lead: lead.len(), after, before, ahead: None, types }
    }

    /// Creates a cursor after the last entry within the bound `before`.
    pub(super) fn new_after(source: H, lead: &[u8], before: Bound<Vec<u8>>) -> Self {
        let all = ByteBounds::with_lead(lead);
        let last = match before {
            Bound::Unbounded => {
                let mut all = Ends::<H::Source>::new(all.0, all.1);
                let last = all.advance(source.source(), Direction::Descending);
                last.map(|(key, _)| Bound::Included(key.to_vec()))
            }
            bound => Some(bound),
        };
        let Some(before) = last else { return Self::new(source, lead, Bound::Unbounded) };
        Self::new(source, lead, opposite(before))
    }

    /// Returns the entry after the position and moves past it.
    ///
    /// ```
    /// let ages: ordna::Map<String, u32> = [("ann", 31), ("bob", 27)].into_iter().collect();
    /// let mut cursor = ages.lower_bound(std::ops::Bound::<&str>::Unbounded);
    /// assert_eq!(cursor.next(), Some(("ann".to_owned(), 31)));
    /// ```
    #[allow(clippy::should_implement_trait, reason = "the name of std's cursors")]
    pub fn next(&mut self) -> Option<M::Read<(K, V)>> {
        self.step(Direction::Ascending, true)
    }

    /// Returns the entry before the position and moves in front of it.
    ///
    /// ```
    /// let ages: ordna::Map<String, u32> = [("ann", 31), ("bob", 27)].into_iter().collect();
    /// let mut cursor = ages.upper_bound(std::ops::Bound::<&str>::Unbounded);
    /// assert_eq!(cursor.prev(), Some(("bob".to_owned(), 27)));
    /// ```
    pub fn prev(&mut self) -> Option<M::Read<(K, V)>> {
        self.step(Direction::Descending, true)
    }

    /// Returns the entry after the position. O(log n).
    ///
    /// ```
    /// let ages: ordna::Map<String, u32> = [("ann", 31), ("bob", 27)].into_iter().collect();
    /// let mut cursor = ages.lower_bound(std::ops::Bound::Included("b"));
    /// assert_eq!(cursor.peek_next(), cursor.next());
    /// ```
    pub fn peek_next(&mut self) -> Option<M::Read<(K, V)>> {
        self.step(Direction::Ascending, false)
    }

    /// Returns the entry before the position. O(log n).
    ///
    /// ```
    /// let ages: ordna::Map<String, u32> = [("ann", 31), ("bob", 27)].into_iter().collect();
    /// let mut cursor = ages.lower_bound(std::ops::Bound::Included("b"));
    /// assert_eq!(cursor.peek_prev(), Some(("ann".to_owned(), 31)));
    /// ```
    pub fn peek_prev(&mut self) -> Option<M::Read<(K, V)>> {
        self.step(Direction::Descending, false)
    }

    fn step(&mut self, direction: Direction, moves: bool) -> Option<M::Read<(K, V)>> {
        let ahead = match self.ahead.take() {
            Some((same, ahead)) if same == direction => ahead,
            _ => match direction {
                Direction::Ascending => Ends::new(self.after.clone(), self.all.1.clone()),
                Direction::Descending => Ends::new(self.all.0.clone(), self.before.clone()),
            },
        };
        let (_, ahead) = self.ahead.insert((direction, ahead));
        let found = ahead.advance(self.source.source(), direction);
        let Some((key, value)) = found else {
            // Entries may still be inserted there.
            self.ahead = None;
            return None;
        };
        let entry = key_of(key, self.lead).and_then(|key| Ok::<_, Error>((key, V::load(value)?)));
        if moves {
            let key = key.to_vec();
            (self.after, self.before) = match direction {
                Direction::Ascending => (Bound::Excluded(key.clone()), Bound::Included(key)),
                Direction::Descending => (Bound::Included(key.clone()), Bound::Excluded(key)),
            };
        } else {
            self.ahead = None;
        }
        Some(M::read(entry))
    }
}

/// Returns the bound of the entries on the other side of a position.
fn opposite(bound: Bound<Vec<u8>>) -> Bound<Vec<u8>> {
    match bound {
        Bound::Included(key) => Bound::Excluded(key),
        Bound::Excluded(key) => Bound::Included(key),
        Bound::Unbounded => Bound::Unbounded,
    }
}
