//! Sorted sets: members ordered by score.
//!
//! # Layout
//! An *entry* consists of a score in an order-preserving form (8 bytes) and the member. A small
//! sorted set is one record with its entries in order. A large one has two elements for each
//! member: one with the part `m` and the member, whose value is the score (see
//! [`names`](super::collections::names)), and one with the part `s` and the entry, without a value.
//! The scores -0 and 0 are equal.

use std::ops::{Bound, ControlFlow};

use ordna::Direction;

use crate::keyspace::collections::Body;
use crate::keyspace::collections::large::Large;
use crate::keyspace::collections::names::{MOST_NAME, Named, too_long};
use crate::keyspace::hash::LIST_BYTES;
use crate::keyspace::sample::{Draws, Sampled, Visit};
use crate::wire::error::CommandError;

/// Bytes of a score in its order-preserving form.
const SCORE: usize = 8;
/// The byte before the entries of a large sorted set.
pub const ENTRY: u8 = b's';
const ENTRIES: &[u8] = &[ENTRY];
/// Number of entries up to which a position is reached by passing entries one by one, without
/// looking for a nearer entry to begin with.
const NEAR: usize = 128;
/// The part after all entries.
const ENTRIES_END: &[u8] = b"t";

/// A member and its score.
pub type Scored = (Vec<u8>, f64);

/// Returns the order-preserving form of a score, which is a number.
pub fn ordered(score: f64) -> [u8; SCORE] {
    let bits = (score + 0.0).to_bits();
    let ordered = if bits >> 63 == 1 { !bits } else { bits | 1 << 63 };
    ordered.to_be_bytes()
}

/// Returns the score of an order-preserving form.
pub fn score_of(ordered: &[u8]) -> f64 {
    let bytes = ordered.first_chunk::<SCORE>().copied().unwrap_or_default();
    let bits = u64::from_be_bytes(bytes);
    f64::from_bits(if bits >> 63 == 1 { bits ^ 1 << 63 } else { !bits })
}

/// Returns an entry.
fn entry(score: f64, member: &[u8]) -> Vec<u8> {
    [&ordered(score), member].concat()
}

/// Returns the member and the score of an entry.
fn scored(entry: &[u8]) -> (&[u8], f64) {
    let (score, member) = entry.split_at_checked(SCORE).unwrap_or_default();
    (member, score_of(score))
}

/// Puts an entry into a large sorted set.
pub fn spread(entry: &[u8], into: &mut Large<'_>) {
    if let Some((score, member)) = entry.split_at_checked(SCORE) {
        into.put_named(member, score, true);
        into.put(&[ENTRIES, entry], &[], true);
    }
}

/// Bounds of entries.
#[derive(Debug, Clone)]
pub struct EntryBounds {
    pub lower: Bound<Vec<u8>>,
    pub upper: Bound<Vec<u8>>,
}

impl EntryBounds {
    /// All entries.
    pub const ALL: Self = Self { lower: Bound::Unbounded, upper: Bound::Unbounded };

    /// Returns the entries with scores within bounds.
    pub fn of_scores(min: Bound<f64>, max: Bound<f64>) -> Self {
        // No entry lies between the last one of a score and the encoding of the next score.
        let next = |score: f64| (u64::from_be_bytes(ordered(score)) + 1).to_be_bytes().to_vec();
        let lower = match min {
            Bound::Unbounded => Bound::Unbounded,
            Bound::Included(score) => Bound::Included(ordered(score).to_vec()),
            Bound::Excluded(score) => Bound::Included(next(score)),
        };
        let upper = match max {
            Bound::Unbounded => Bound::Unbounded,
            Bound::Included(score) => Bound::Excluded(next(score)),
            Bound::Excluded(score) => Bound::Excluded(ordered(score).to_vec()),
        };
        Self { lower, upper }
    }

    /// Returns the entries with this score and members within bounds.
    pub fn of_members(score: f64, min: Bound<&[u8]>, max: Bound<&[u8]>) -> Self {
        let (lower, upper) =
            (min.map(|member| entry(score, member)), max.map(|member| entry(score, member)));
        let whole = Self::of_scores(Bound::Included(score), Bound::Included(score));
        Self {
            lower: if lower == Bound::Unbounded { whole.lower } else { lower },
            upper: if upper == Bound::Unbounded { whole.upper } else { upper },
        }
    }

    fn borrowed(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        (self.lower.as_ref().map(Vec::as_slice), self.upper.as_ref().map(Vec::as_slice))
    }

    /// Returns the bounds of the parts of a large sorted set.
    fn parts(&self) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
        let part = |entry: &Vec<u8>| [ENTRIES, entry].concat();
        let lower = match &self.lower {
            Bound::Unbounded => Bound::Included(ENTRIES.to_vec()),
            bound => bound.as_ref().map(part),
        };
        let upper = match &self.upper {
            Bound::Unbounded => Bound::Excluded(ENTRIES_END.to_vec()),
            bound => bound.as_ref().map(part),
        };
        (lower, upper)
    }
}

/// A sorted set that a command reads.
#[derive(Debug, Clone, Copy)]
pub struct SortedSet<'b, 'a>(pub &'b Body<'a>);

impl SortedSet<'_, '_> {
    /// Returns the number of members.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the score of a member.
    pub fn score(&self, member: &[u8]) -> Option<f64> {
        match self.0 {
            Body::Packed(packed) => {
                let mut entries = packed.iter().map(scored);
                entries.find(|(found, _)| *found == member).map(|(_, score)| score)
            }
            Body::Large(large) => large.get_named(member, score_of),
        }
    }

    /// Visits members and scores within bounds, until `visit` breaks.
    pub fn visit(
        &self,
        bounds: &EntryBounds,
        direction: Direction,
        visit: impl FnMut(&[u8], f64) -> ControlFlow<()>,
    ) {
        self.visit_some(bounds, direction, usize::MAX, visit);
    }

    /// Works like [`visit`](Self::visit), with the number of members that the caller needs.
    fn visit_some(
        &self,
        bounds: &EntryBounds,
        direction: Direction,
        limit: usize,
        mut visit: impl FnMut(&[u8], f64) -> ControlFlow<()>,
    ) {
        match self.0 {
            Body::Packed(packed) => {
                let (start, end) = self.places(bounds);
                for step in 0..end.saturating_sub(start) {
                    let at = match direction {
                        Direction::Ascending => start + step,
                        Direction::Descending => end - 1 - step,
                    };
                    let (member, score) = scored(packed.get(at).unwrap_or_default());
                    if visit(member, score).is_break() {
                        break;
                    }
                }
            }
            Body::Large(large) => {
                let (lower, upper) = bounds.parts();
                let bounds = (lower.as_ref().map(Vec::as_slice), upper.as_ref().map(Vec::as_slice));
                large.visit_some(bounds, direction, limit, |part, _| {
                    let (member, score) = scored(part.get(1..).unwrap_or_default());
                    visit(member, score)
                });
            }
        }
    }

    /// Returns the positions of the entries of a small sorted set within bounds.
    fn places(&self, bounds: &EntryBounds) -> (usize, usize) {
        let Body::Packed(packed) = self.0 else { return (0, 0) };
        let (lower, upper) = bounds.borrowed();
        let start = packed.partition(|entry| ordna::index::is_below(entry, lower));
        let end = packed.partition(|entry| !ordna::index::is_above(entry, upper));
        (start, end)
    }

    /// Returns the number of members within bounds.
    pub fn count(&self, bounds: &EntryBounds) -> usize {
        match self.0 {
            Body::Packed(_) => {
                let (start, end) = self.places(bounds);
                end.saturating_sub(start)
            }
            Body::Large(large) => {
                // The first part that is within the bounds, and the first one beyond them.
                let first = |bound: Bound<Vec<u8>>, is_beyond: bool| match bound {
                    Bound::Included(mut part) | Bound::Excluded(mut part) if is_beyond => {
                        part.push(0);
                        part
                    }
                    Bound::Included(part) | Bound::Excluded(part) => part,
                    Bound::Unbounded => ENTRIES_END.to_vec(),
                };
                let (lower, upper) = bounds.parts();
                let (after, through) =
                    (matches!(lower, Bound::Excluded(_)), matches!(upper, Bound::Included(_)));
                let (start, end) = (first(lower, after), first(upper, through));
                let position = |part: &[u8]| match part == ENTRIES {
                    true => 0,
                    false => large.position(ENTRIES, ENTRIES_END, part),
                };
                if start < end { position(&end) - position(&start) } else { 0 }
            }
        }
    }

    /// Returns the number of members before one with this score, and the score.
    pub fn rank(&self, member: &[u8], direction: Direction) -> Option<(usize, f64)> {
        let number = self.score(member)?;
        let score = ordered(number);
        let before = match self.0 {
            Body::Packed(packed) => {
                let entry = [&score, member].concat();
                packed.partition(|found| found < entry.as_slice())
            }
            Body::Large(large) => {
                let part = [ENTRIES, &score, member].concat();
                large.position(ENTRIES, ENTRIES_END, &part)
            }
        };
        let rank = match direction {
            Direction::Ascending => before,
            Direction::Descending => self.len().saturating_sub(1 + before),
        };
        Some((rank, number))
    }

    /// Visits at most `len` members from the position `start` on, counted in this direction.
    pub fn visit_positions(
        &self,
        start: usize,
        len: usize,
        direction: Direction,
        mut visit: impl FnMut(&[u8], f64),
    ) {
        self.visit_positions_while(start, len, direction, |member, score| {
            visit(member, score);
            ControlFlow::Continue(())
        });
    }

    /// Works like [`visit_positions`](Self::visit_positions), until `visit` breaks.
    pub fn visit_positions_while(
        &self,
        start: usize,
        len: usize,
        direction: Direction,
        mut visit: impl FnMut(&[u8], f64) -> ControlFlow<()>,
    ) {
        let (mut skip, mut left) = (start, len);
        if left == 0 || skip >= self.len() {
            return;
        }
        let mut bounds = EntryBounds::ALL;
        if let Body::Large(large) = self.0
            && start > NEAR
        {
            let position = match direction {
                Direction::Ascending => start,
                Direction::Descending => self.len() - 1 - start,
            };
            if let Some(block) = large.block_at(ENTRIES, ENTRIES_END, position) {
                // Entries are parts without their first byte.
                match direction {
                    Direction::Ascending => {
                        skip = position - block.before;
                        bounds.lower = Bound::Included(block.start[1..].to_vec());
                    }
                    Direction::Descending => {
                        skip = block.before + block.count - 1 - position;
                        bounds.upper = match block.end == ENTRIES_END {
                            true => Bound::Unbounded,
                            false => Bound::Excluded(block.end[1..].to_vec()),
                        };
                    }
                }
            }
        }
        let limit = skip.saturating_add(left);
        self.visit_some(&bounds, direction, limit, |member, score| {
            if skip > 0 {
                skip -= 1;
                return ControlFlow::Continue(());
            }
            visit(member, score)?;
            left -= 1;
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
    }

    /// Returns the bounds of the entries whose members are within bounds, or `None` if these
    /// entries are not contiguous because scores differ.
    pub fn lex_bounds(&self, min: Bound<&[u8]>, max: Bound<&[u8]>) -> Option<EntryBounds> {
        if (min, max) == (Bound::Unbounded, Bound::Unbounded) {
            return Some(EntryBounds::ALL);
        }
        let [first, last] = [Direction::Ascending, Direction::Descending].map(|direction| {
            let mut end = 0.0;
            self.visit_positions(0, 1, direction, |_, score| end = score);
            end
        });
        (first == last).then(|| EntryBounds::of_members(first, min, max))
    }
}

impl Sampled for SortedSet<'_, '_> {
    fn len(&self) -> usize {
        SortedSet::len(self)
    }

    fn visit(&self, visit: &mut Visit<'_>) {
        SortedSet::visit(self, &EntryBounds::ALL, Direction::Ascending, |member, score| {
            visit(member, &ordered(score))
        });
    }

    fn one(&self, draws: &mut Draws) -> Option<Named> {
        match self.0 {
            Body::Packed(_) => None,
            Body::Large(large) => large.random_named(&mut |end| draws.below(end)),
        }
    }
}

/// Sets the score of a member. `former` is its present score, or `None` if it is new.
///
/// # Errors
/// The member is too long.
pub fn set_score(
    body: &mut Body<'_>,
    member: &[u8],
    former: Option<f64>,
    score: f64,
) -> Result<(), CommandError> {
    if member.len() > MOST_NAME {
        return Err(too_long(member.len()));
    }
    match body {
        Body::Packed(packed) => {
            let former = former.and_then(|score| packed.search(&entry(score, member)).ok());
            if let Some(at) = former {
                packed.remove(at);
            }
            if member.len() > LIST_BYTES {
                packed.convert();
            }
            let entry = entry(score, member);
            if let Err(at) = packed.search(&entry) {
                packed.insert(at, &entry);
            }
        }
        Body::Large(large) => {
            if let Some(former) = former {
                large.remove(&[ENTRIES, &ordered(former), member]);
            }
            large.put_named(member, &ordered(score), former.is_none());
            large.put(&[ENTRIES, &ordered(score), member], &[], true);
            large.head.count += u64::from(former.is_none());
        }
    }
    Ok(())
}

/// Removes a member with this score.
pub fn remove(body: &mut Body<'_>, member: &[u8], score: f64) {
    match body {
        Body::Packed(packed) => {
            if let Ok(at) = packed.search(&entry(score, member)) {
                packed.remove(at);
            }
        }
        Body::Large(large) => {
            large.remove(&[ENTRIES, &ordered(score), member]);
            large.remove_named(member);
            large.head.count -= 1;
        }
    }
}

/// Removes at most `count` members at an end and returns them in order, beginning at that end.
/// Returns `None`, and removes nothing, if they have more than `most` bytes.
pub fn pop(
    body: &mut Body<'_>,
    count: usize,
    direction: Direction,
    most: usize,
) -> Option<Vec<Scored>> {
    let (mut found, mut left): (Vec<Scored>, _) = (Vec::new(), Some(most));
    SortedSet(body).visit_positions(0, count, direction, |member, score| {
        left = left.and_then(|left| left.checked_sub(member.len() + size_of::<Scored>()));
        if left.is_some() {
            found.push((member.to_vec(), score));
        }
    });
    left?;
    found.iter().for_each(|(member, score)| remove(body, member, *score));
    Some(found)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn scores_keep_their_order(a: f64, b: f64) {
            if !a.is_nan() && !b.is_nan() {
                let expected = a.partial_cmp(&b).unwrap();
                prop_assert_eq!(ordered(a).cmp(&ordered(b)), expected);
                prop_assert_eq!(score_of(&ordered(a)), a);
            }
        }
    }

    #[test]
    fn zeros_are_one_and_infinities_have_a_next() {
        assert_eq!(ordered(-0.0), ordered(0.0));
        let all = EntryBounds::of_scores(
            Bound::Excluded(f64::NEG_INFINITY),
            Bound::Included(f64::INFINITY),
        );
        assert!(
            matches!(all.upper, Bound::Excluded(end) if end.as_slice() > &ordered(f64::INFINITY)[..])
        );
    }
}
