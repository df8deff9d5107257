//! Scans of the list in both directions.
//!
//! A scan copies the entries that it needs from a leaf under a ticket, and then calls the visitor
//! without a lock. If the ticket was not valid at the end of the copy, the scan finds the same
//! place again. It goes from leaf to leaf by anchors: what is at or above the next leaf's anchor
//! (or below this one's) remains to be scanned, wherever it is by then. So a split after the
//! position of the scan repeats nothing, and a merge skips nothing.
//!
//! Entries are in a leaf by hash, so that a few dozen of them are on nearly all of its cache lines.
//! Therefore all lines are prefetched at once. While entries are visited, the following records are
//! prefetched and, towards the end of the leaf, the cache lines of the next leaf.

#![expect(unsafe_code, reason = "calls the visitor with entries that the section keeps")]

use std::mem::MaybeUninit;
use std::ops::{Bound, ControlFlow};

use super::leaf::{Leaf, Order, Stale, Words};
use super::list::{LeafList, RETRIES, Side};
use super::mode::Mode;
use super::section::Section;
use ordna_base::index::{Direction, is_above, is_below};
use ordna_base::sync::{check, point};
use ordna_base::{Key, Value};

/// Number of records that a scan prefetches ahead of the visitor.
const RECORDS_AHEAD: usize = 16;
/// Number of entries up to which a scan does not prefetch all cache lines of a leaf.
const FEW: usize = 8;

/// The place at which a scan continues. Nothing from there on has been returned yet.
#[derive(Clone, Copy)]
enum Resume<'s, K: ?Sized> {
    /// A bound of the caller, with the tag of its key.
    Bound(Bound<&'s K>, u16),
    /// Entries from this anchor on upwards, or below it downwards.
    Anchor(&'s [u8]),
}

/// Entries that were copied from a leaf, in the direction of the scan.
struct Run<const LEAF: usize> {
    /// The first `len` of them are initialized.
    words: [MaybeUninit<Words>; LEAF],
    len: usize,
}

impl<const LEAF: usize> Run<LEAF> {
    #[inline]
    fn words(&self) -> &[Words] {
        // SAFETY: the first `len` words were written before `len` was set.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr().cast(), self.len) }
    }
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
}

impl<K: Key + ?Sized, V: Value + ?Sized, S: Mode, const LEAF: usize> LeafList<K, V, S, LEAF> {
    /// Calls `visit` with the first `want` entries within the bounds, until it breaks. See
    /// [`ordna_base::OrderedIndex::visit`].
    pub fn scan_with(
        &self,
        (lower, upper): (Bound<&K>, Bound<&K>),
        direction: Direction,
        mut want: usize,
        mut visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) {
        let section = self.enter();
        let up = direction == Direction::Ascending;
        let bound = if up { lower } else { upper };
        let mut right = None;
        let (mut leaf, mut place) = match bound {
            Bound::Unbounded if up => (self.first(), Resume::Bound(bound, 0)),
            Bound::Unbounded => (self.table(&section).last(), Resume::Bound(bound, 0)),
            Bound::Included(key) | Bound::Excluded(key) => {
                let radix = key.radix();
                let target = self.search(radix.as_ref(), &section);
                target.leaf.prefetch_order();
                if want > FEW {
                    (0..Leaf::<K, V, S, LEAF>::LINES).for_each(|at| target.leaf.prefetch_line(at));
                }
                self.try_sort(target.leaf, &section);
                let (leaf, ticket) = self.cover(&target, key, radix.as_ref(), &section);
                right = Some(Right::Ticket(ticket));
                (leaf, Resume::Bound(bound, target.tag))
            }
        };
        let mut run = Run { words: [MaybeUninit::uninit(); LEAF], len: 0 };
        let mut tail = match bound {
            Bound::Included(key) | Bound::Excluded(key) => key.tail().len(),
            Bound::Unbounded => 0,
        };
        let mut tries = 0;
        while want > 0 {
            let held = right.take().unwrap_or_else(|| {
                self.try_sort(leaf, &section);
                let regained = self.regain(leaf, &place, up, tries >= RETRIES, &section);
                leaf = regained.0;
                regained.1
            });
            let Ok(beside) = Self::copy(leaf, held, &place, up, want, &mut run) else {
                tries += 1;
                continue;
            };
            tries = 0;
            want -= run.len;
            let ahead = beside.filter(|_| want > 0);
            // SAFETY: the run was copied under a right that was valid afterwards, within the
            // section.
            let flow = unsafe {
                Self::visit_run(&run, ahead, &mut tail, |key, value| {
                    if if up { is_above(key, upper) } else { is_below(key, lower) } {
                        return ControlFlow::Break(());
                    }
                    visit(key, value)
                })
            };
            let Some(beside) = beside.filter(|_| flow.is_continue()) else { return };
            let anchor = if up { beside.anchor_bytes() } else { leaf.anchor_bytes() };
            let none_left = match if up { upper } else { lower } {
                Bound::Unbounded => false,
                Bound::Included(key) | Bound::Excluded(key) => {
                    let radix = key.radix();
                    if up { anchor > radix.as_ref() } else { anchor <= radix.as_ref() }
                }
            };
            if none_left {
                return;
            }
            (leaf, place) = (beside, Resume::Anchor(anchor));
        }
    }

    /// Returns the leaf of the place, starting from any leaf, and the right to read it.
    fn regain<'s>(
        &self,
        leaf: Leaf<K, V, S, LEAF>,
        place: &Resume<'_, K>,
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
            // Upwards, nothing is below the first leaf; downwards, nothing is above the last.
            Resume::Bound(Bound::Unbounded, _) if up => settle(&[], Side::From),
            Resume::Bound(Bound::Unbounded, _) => settle(&[], Side::Last),
            Resume::Bound(Bound::Included(key), _) => settle(key.radix().as_ref(), Side::From),
            Resume::Bound(Bound::Excluded(key), _) => settle(key.radix().as_ref(), key_side),
            Resume::Anchor(anchor) => settle(anchor, key_side),
        }
    }

    /// Copies up to `want` entries of a leaf, which covers the place, from there on. Returns the
    /// next leaf in the direction of the scan. The right ends here: the visitor may read the index,
    /// so it must not hold anything for which other threads wait.
    #[inline]
    fn copy(
        leaf: Leaf<K, V, S, LEAF>,
        right: Right<'_, S>,
        place: &Resume<'_, K>,
        up: bool,
        want: usize,
        run: &mut Run<LEAF>,
    ) -> Result<Option<Leaf<K, V, S, LEAF>>, Stale> {
        // SAFETY: the right belongs to the caller, within a section.
        let (order, at) = unsafe {
            let order = leaf.order(|| right.is_valid())?;
            let at = Self::rank_of(leaf, &order, place, up, || right.is_valid())?;
            (order, at)
        };
        point("wormhole.scan.ordered");
        let len = want.min(if up { order.len() - at } else { at });
        for (step, words) in run.words[..len].iter_mut().enumerate() {
            words.write(leaf.words(order.position(if up { at + step } else { at - 1 - step })));
        }
        run.len = len;
        let beside = if up { leaf.next() } else { leaf.prev() };
        let counts = check!("wormhole.scan.unvalidated", right.is_valid());
        if counts { Ok(beside) } else { Err(Stale) }
    }

    /// Calls `visit` with the entries of the run until it breaks, and meanwhile prefetches the leaf
    /// `ahead`. Records are assumed to be as long as the last one, whose key has a tail of `tail`
    /// bytes.
    ///
    /// # Safety
    /// The entries were copied under a right that was valid afterwards, within a section that is
    /// still held.
    #[inline]
    unsafe fn visit_run(
        run: &Run<LEAF>,
        ahead: Option<Leaf<K, V, S, LEAF>>,
        tail: &mut usize,
        mut visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let words = run.words();
        words[..words.len().min(RECORDS_AHEAD)]
            .iter()
            .for_each(|words| Leaf::<K, V, S, LEAF>::prefetch_words(words, *tail));
        let mut lines = 0..Leaf::<K, V, S, LEAF>::LINES;
        for (at, entry) in words.iter().enumerate() {
            if let Some(later) = words.get(at + RECORDS_AHEAD) {
                Leaf::<K, V, S, LEAF>::prefetch_words(later, *tail);
            }
            // One cache line with each entry, so that all are prefetched at the end of the run. A
            // scan that ends before has prefetched little in vain.
            if let Some(ahead) = ahead {
                while lines.len() >= words.len() - at {
                    lines.next().into_iter().for_each(|line| ahead.prefetch_line(line));
                }
            }
            // SAFETY: the caller upholds the contract.
            unsafe {
                Leaf::<K, V, S, LEAF>::with_key(*entry, |key| {
                    *tail = key.tail().len();
                    Leaf::<K, V, S, LEAF>::with_value(*entry, |value| visit(key, value))
                })?;
            }
        }
        if let Some(ahead) = ahead {
            lines.for_each(|line| ahead.prefetch_line(line));
        }
        ControlFlow::Continue(())
    }

    /// Returns how many entries of the leaf are before the place (upwards), or are still to be
    /// scanned from it (downwards).
    ///
    /// # Safety
    /// As for [`Leaf::find`].
    unsafe fn rank_of(
        leaf: Leaf<K, V, S, LEAF>,
        order: &Order<LEAF>,
        place: &Resume<'_, K>,
        up: bool,
        valid: impl Fn() -> bool,
    ) -> Result<usize, Stale> {
        // SAFETY: the caller upholds the contract.
        unsafe {
            match place {
                Resume::Bound(Bound::Unbounded, _) => Ok(if up { 0 } else { order.len() }),
                Resume::Bound(Bound::Included(key), tag)
                | Resume::Bound(Bound::Excluded(key), tag) => {
                    let included = matches!(place, Resume::Bound(Bound::Included(_), _));
                    // Whether the key itself counts as below.
                    let with = up != included;
                    match leaf.find(key, *tag, &valid)? {
                        Some((position, _)) => {
                            let rank = order.rank_of(position).ok_or(Stale)?;
                            Ok(rank + usize::from(with))
                        }
                        None => leaf.rank(order, valid, |other| other < *key),
                    }
                }
                Resume::Anchor(anchor) if up && leaf.anchor_bytes() == *anchor => Ok(0),
                Resume::Anchor(anchor) => {
                    leaf.rank(order, valid, |other| other.radix().as_ref() < *anchor)
                }
            }
        }
    }
}
