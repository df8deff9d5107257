//! Scans through the data list, in either direction.
//!
//! A node is copied a few entries at a time, under one version. A scan whose version is no longer
//! valid continues by key. It continues from a node with the boundary that was seen with the
//! entries. Memory is prefetched: that of the next node, and of the following records.

use std::ops::{Bound, ControlFlow};

use super::{DataList, Goal};
use crate::hydralist::node::{CHUNK, Node, Run, Token};
use crate::search_layer::SearchLayer;
use ordna_base::index::{Direction, is_above, is_below};
use ordna_base::sync::atomic::Ordering;
use ordna_base::sync::{check, point};
use ordna_base::{Key, Value};

impl<K: Key + ?Sized, V: Value + ?Sized, L: SearchLayer<K>, const N: usize> DataList<K, V, L, N> {
    /// Calls `visit` with the entries within the bounds, in order, until it breaks. The caller
    /// expects to need about `want` of them.
    pub fn visit(
        &self,
        lower: Bound<&K>,
        upper: Bound<&K>,
        direction: Direction,
        mut want: usize,
        mut visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) {
        let guard = self.collector.pin();
        let mut run = Run::new();
        let (start, end) = match direction {
            Direction::Ascending => (lower, upper),
            Direction::Descending => (upper, lower),
        };
        let mut from = start;
        let mut node = match (direction, start) {
            (_, Bound::Included(key) | Bound::Excluded(key)) => self.jump(key, &guard),
            (Direction::Ascending, Bound::Unbounded) => self.first(&guard),
            // SAFETY: the last node is alive when the pointer is read.
            (Direction::Descending, Bound::Unbounded) => unsafe {
                &*self.last.load(Ordering::Acquire)
            },
        };
        let mut last;
        let mut is_first = true;
        Node::prefetch(node);
        if want > 1 {
            Node::prefetch_scan(node);
        }
        'nodes: loop {
            let goal = match (direction, from) {
                (Direction::Ascending, Bound::Unbounded) => {
                    Goal::At(0, self.first(&guard).anchor())
                }
                (Direction::Descending, Bound::Unbounded) => Goal::Last,
                (Direction::Descending, Bound::Excluded(key)) => Goal::Before(key.head(), key),
                (_, Bound::Included(key) | Bound::Excluded(key)) => Goal::At(key.head(), key),
            };
            let mut parts = 0..0;
            // The node at which the scan probably continues. The pointer is used only for
            // prefetching.
            let mut ahead = std::ptr::null();
            let (read, next, token) = self.read_at(node, goal, &guard, |node, next, token| {
                ahead = match direction {
                    Direction::Ascending => next.map_or(std::ptr::null(), std::ptr::from_ref),
                    Direction::Descending => node.prev.load(Ordering::Acquire).cast_const(),
                };
                parts = 0..Node::<K, V, N>::PARTS;
                if is_first && want > 1 && !ahead.is_null() {
                    // No other prefetches are in progress yet.
                    parts.by_ref().for_each(|part| Node::prefetch_part(ahead, part));
                }
                // A node that begins where the last one ended is copied from its start.
                let from = match (direction, from) {
                    (Direction::Ascending, Bound::Included(key))
                        if check!("hydralist.visit.resume", std::ptr::eq(key, node.anchor())) =>
                    {
                        Bound::Unbounded
                    }
                    _ => from,
                };
                node.copy(from, direction, want, self.leaf, token, &mut run)?;
                Ok((node, next, token))
            });
            is_first = false;
            run.entries().iter().for_each(|entry| entry.prefetch());
            loop {
                point("hydralist.visit.copied");
                // The next records are prefetched at once, because misses wait for each other's
                // page tables unless they are close together.
                read.prefetch_records(&run);
                if want > run.entries().len() + run.left() && !ahead.is_null() {
                    let some = parts.by_ref().take(Node::<K, V, N>::AT_ONCE);
                    some.for_each(|part| Node::prefetch_part(ahead, part));
                }
                for (at, entry) in run.entries().iter().enumerate() {
                    // The cache lines of the next node were prefetched some entries ago.
                    if run.left() == 0 && at == CHUNK / 2 && want > run.entries().len() {
                        // SAFETY: as where the scan continues.
                        let ahead = unsafe { Self::node(ahead, &guard) };
                        ahead.inspect(|ahead| ahead.prefetch_first(direction));
                    }
                    // SAFETY: the entry was in the list during the guard.
                    let visited = unsafe {
                        entry.with_key(|key| {
                            let beyond = match direction {
                                Direction::Ascending => is_above(key, end),
                                Direction::Descending => is_below(key, end),
                            };
                            if beyond {
                                return ControlFlow::Break(());
                            }
                            entry.with_value(|value| visit(key, value))
                        })
                    };
                    if visited.is_break() {
                        return;
                    }
                }
                want = want.saturating_sub(run.entries().len()).max(1);
                if run.left() == 0 {
                    break;
                }
                last = run.entries()[run.entries().len() - 1];
                let copied = read.copy_on(want, &mut run);
                // Later copies are from the same moment; otherwise the scan continues by key.
                let holds = matches!(token, Token::Version(..)) && token.holds();
                let goes_on = check!("hydralist.visit.validate", holds);
                if copied.is_err() || !goes_on {
                    // SAFETY: the entry was in the list during the guard.
                    (from, node) = (Bound::Excluded(unsafe { last.key() }), read);
                    continue 'nodes;
                }
            }
            // Continues by key from the boundary that was seen with the entries, wherever that is
            // now.
            match direction {
                Direction::Ascending => {
                    let Some(next) = next else { return };
                    if is_above(next.anchor(), end) {
                        return;
                    }
                    (from, node) = (Bound::Included(next.anchor()), next);
                }
                Direction::Descending => {
                    let anchor = read.anchor();
                    let reached = match end {
                        Bound::Unbounded => false,
                        Bound::Included(end) | Bound::Excluded(end) => anchor <= end,
                    };
                    // SAFETY: as in `scan`.
                    let prev = unsafe { Self::node(read.prev.load(Ordering::Acquire), &guard) };
                    let (Some(prev), false) = (prev, reached) else { return };
                    (from, node) = (Bound::Excluded(anchor), prev);
                }
            }
        }
    }
}
