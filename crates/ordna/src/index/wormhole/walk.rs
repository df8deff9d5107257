//! Walks along the list, in both directions.
//!
//! A walk copies a run of a leaf's entries under a ticket, and then calls the visitor, without any lock.
//! If the ticket is not valid any more for the next run, the walk finds its place again by the last key
//! it returned. From leaf to leaf it goes by anchors: what is at or above the next leaf's anchor (or
//! below this one's) is all that is left, wherever it stands by then. So a split behind the walk repeats
//! nothing, and a merge skips nothing.

#![expect(unsafe_code, reason = "calls the visitor with entries that the section keeps")]

use std::ops::{Bound, ControlFlow};

use super::leaf::{Leaf, Order, Stale, Words};
use super::list::{List, RETRIES, Section, Side};
use super::mode::Mode;
use crate::index::{Direction, is_above, is_below};
use crate::sync::{fault, point};
use crate::{Key, Value};

/// Entries of a first run, and of the longest.
const FIRST_RUN: usize = 8;
const LAST_RUN: usize = 32;

/// Where a walk goes on: nothing from there on was returned yet.
#[derive(Clone, Copy)]
enum Place<'s, K: ?Sized> {
    /// At a bound of the caller; the tag of its key.
    Bound(Bound<&'s K>, u16),
    /// Beyond the last key that was returned.
    Beyond(Words),
    /// At this anchor, upwards, or below it, downwards.
    Anchor(&'s [u8]),
}

/// How the walk of a leaf ended.
enum End<'s, K: ?Sized, L> {
    /// The walk is over.
    Done,
    /// A writer came between: find this place again.
    Again(Place<'s, K>),
    /// The leaf is done; the next one is near this one.
    Leaf(L, &'s [u8]),
}

/// The right to read a leaf: a ticket, or its lock.
enum Right<'s, S: Mode> {
    Ticket(S::Ticket<'s>),
    Held { _held: S::Held<'s> },
}

impl<'s, S: Mode> Right<'s, S> {
    #[inline]
    fn is_valid(&self) -> bool {
        match self {
            Self::Ticket(ticket) => S::is_valid(ticket),
            Self::Held { .. } => true,
        }
    }

    /// What of it may be kept while the visitor runs.
    #[inline]
    fn keep(self) -> Option<Self> {
        match self {
            Self::Ticket(ticket) => S::keep(ticket).map(Self::Ticket),
            Self::Held { .. } => None,
        }
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized, S: Mode, const LEAF: usize> List<K, V, S, LEAF> {
    /// Calls `visit` with the entries within the bounds; see [`crate::OrderedIndex::visit`].
    pub fn walk(
        &self,
        bounds: (Bound<&K>, Bound<&K>),
        direction: Direction,
        mut visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) {
        let section = self.enter();
        let up = direction == Direction::Ascending;
        let bound = if up { bounds.0 } else { bounds.1 };
        let mut right = None;
        let (mut leaf, mut place) = match bound {
            Bound::Unbounded if up => (self.first(), Place::Bound(bound, 0)),
            Bound::Unbounded => (self.table(&section).last(), Place::Bound(bound, 0)),
            Bound::Included(key) | Bound::Excluded(key) => {
                let radix = key.radix();
                let target = self.search(radix.as_ref(), &section);
                target.leaf.prefetch_order();
                self.try_sort(target.leaf, &section);
                let (leaf, ticket) = self.cover(&target, key, radix.as_ref(), &section);
                right = Some(Right::Ticket(ticket));
                (leaf, Place::Bound(bound, target.tag))
            }
        };
        let mut tries = 0;
        loop {
            let held = right.take().unwrap_or_else(|| {
                self.try_sort(leaf, &section);
                let regained = self.regain(leaf, &place, up, tries >= RETRIES, &section);
                leaf = regained.0;
                regained.1
            });
            match Self::walk_leaf(leaf, held, place, bounds, up, &mut visit) {
                End::Done => return,
                End::Again(again) => (place, tries) = (again, tries + 1),
                End::Leaf(next, anchor) => (leaf, place, tries) = (next, Place::Anchor(anchor), 0),
            }
        }
    }

    /// The leaf at the place, from a leaf anywhere, and the right to read it.
    fn regain<'s>(
        &self,
        leaf: Leaf<K, V, S, LEAF>,
        place: &Place<'_, K>,
        up: bool,
        locked: bool,
        section: &'s Section<'_>,
    ) -> (Leaf<K, V, S, LEAF>, Right<'s, S>) {
        let settle = |point: &[u8], side| {
            if locked {
                let (leaf, held) = self.settle_locked(leaf, point, side, section);
                (leaf, Right::Held { _held: held })
            } else {
                let (leaf, ticket) = self.settle(leaf, point, side, section);
                (leaf, Right::Ticket(ticket))
            }
        };
        let key_side = if up { Side::From } else { Side::Below };
        match place {
            // Upwards there is nothing below the first leaf, downwards nothing above the last.
            Place::Bound(Bound::Unbounded, _) if up => settle(&[], Side::From),
            Place::Bound(Bound::Unbounded, _) => settle(&[], Side::Last),
            Place::Bound(Bound::Included(key), _) => settle(key.radix().as_ref(), Side::From),
            Place::Bound(Bound::Excluded(key), _) => settle(key.radix().as_ref(), key_side),
            // SAFETY: the words were read under a ticket found valid, within the section.
            Place::Beyond(words) => unsafe {
                Leaf::<K, V, S, LEAF>::with_key(*words, |key| {
                    settle(key.radix().as_ref(), key_side)
                })
            },
            Place::Anchor(anchor) => settle(anchor, key_side),
        }
    }

    /// Visits the entries of a leaf from the place on. The leaf covers it.
    #[inline]
    fn walk_leaf<'s>(
        leaf: Leaf<K, V, S, LEAF>,
        mut right: Right<'_, S>,
        mut place: Place<'s, K>,
        (lower, upper): (Bound<&K>, Bound<&K>),
        up: bool,
        visit: &mut impl FnMut(&K, &V) -> ControlFlow<()>,
    ) -> End<'s, K, Leaf<K, V, S, LEAF>> {
        // SAFETY: the right is the caller's, within a section.
        let ranked = unsafe {
            leaf.order(|| right.is_valid()).and_then(|order| {
                let at = Self::rank_of(leaf, &order, &place, up, || right.is_valid())?;
                Ok((order, at))
            })
        };
        let Ok((order, mut at)) = ranked else { return End::Again(place) };
        point("wormhole.walk.ordered");
        let mut length = FIRST_RUN;
        loop {
            let left = if up { order.len() - at } else { at };
            let run = left.min(length);
            let ranks = |at: usize, run: usize| {
                (0..run).map(move |step| if up { at + step } else { at - 1 - step })
            };
            let mut words = [Words::default(); LAST_RUN];
            for (words, rank) in words.iter_mut().zip(ranks(at, run)) {
                *words = leaf.words(order.position(rank));
            }
            let beside = if up { leaf.next() } else { leaf.prev() };
            if !(fault!("wormhole.walk.unvalidated") || right.is_valid()) {
                return End::Again(place);
            }
            // From here on the words and the link count.
            at = if up { at + run } else { at - run };
            words[..run].iter().for_each(Leaf::<K, V, S, LEAF>::prefetch_words);
            if left - run <= LAST_RUN {
                beside.into_iter().for_each(Leaf::prefetch_order);
            }
            length = (length * 2).min(LAST_RUN);
            ranks(at, (left - run).min(length))
                .for_each(|r| leaf.prefetch_entry(order.position(r)));
            // Whatever holds others up ends here, after the last run of a leaf too: the visitor may read.
            let kept = right.keep();
            for words in &words[..run] {
                // SAFETY: they were read under a right found valid, within a section.
                let flow = unsafe {
                    Leaf::<K, V, S, LEAF>::with_key(*words, |key| {
                        if if up { is_above(key, upper) } else { is_below(key, lower) } {
                            return ControlFlow::Break(());
                        }
                        Leaf::<K, V, S, LEAF>::with_value(*words, |value| visit(key, value))
                    })
                };
                if flow.is_break() {
                    return End::Done;
                }
                place = Place::Beyond(*words);
            }
            if run == left {
                return Self::leave(leaf, beside, (lower, upper), up);
            }
            match kept {
                Some(kept) => right = kept,
                None => return End::Again(place),
            }
        }
    }

    /// Goes on to the leaf beside, if keys within the bounds can be there.
    fn leave<'s>(
        leaf: Leaf<K, V, S, LEAF>,
        beside: Option<Leaf<K, V, S, LEAF>>,
        (lower, upper): (Bound<&K>, Bound<&K>),
        up: bool,
    ) -> End<'s, K, Leaf<K, V, S, LEAF>> {
        let Some(beside) = beside else { return End::Done };
        let anchor = if up { beside.anchor_bytes() } else { leaf.anchor_bytes() };
        let none_left = match if up { upper } else { lower } {
            Bound::Unbounded => false,
            Bound::Included(key) | Bound::Excluded(key) => {
                let radix = key.radix();
                if up { anchor > radix.as_ref() } else { anchor <= radix.as_ref() }
            }
        };
        if none_left { End::Done } else { End::Leaf(beside, anchor) }
    }

    /// Upwards, how many entries of the leaf are before the place; downwards, how many are not yet.
    ///
    /// # Safety
    /// As for [`Leaf::find`].
    unsafe fn rank_of(
        leaf: Leaf<K, V, S, LEAF>,
        order: &Order<LEAF>,
        place: &Place<'_, K>,
        up: bool,
        valid: impl Fn() -> bool,
    ) -> Result<usize, Stale> {
        // SAFETY: handed on from the caller; the words of the last key were read under a right found
        // valid, within the section.
        unsafe {
            match place {
                Place::Bound(Bound::Unbounded, _) => Ok(if up { 0 } else { order.len() }),
                Place::Bound(Bound::Included(key), tag)
                | Place::Bound(Bound::Excluded(key), tag) => {
                    let included = matches!(place, Place::Bound(Bound::Included(_), _));
                    // Whether the key itself counts among those below.
                    let with = up != included;
                    match leaf.find(key, *tag, &valid)? {
                        Some((position, _)) => {
                            let rank = order.rank_of(position).ok_or(Stale)?;
                            Ok(rank + usize::from(with))
                        }
                        None => leaf.rank(order, valid, |other| other < *key),
                    }
                }
                Place::Beyond(words) => Leaf::<K, V, S, LEAF>::with_key(*words, |last| {
                    leaf.rank(order, valid, |other| if up { other <= last } else { other < last })
                }),
                Place::Anchor(anchor) if up && leaf.anchor_bytes() == *anchor => Ok(0),
                Place::Anchor(anchor) => {
                    leaf.rank(order, valid, |other| other.radix().as_ref() < *anchor)
                }
            }
        }
    }
}
