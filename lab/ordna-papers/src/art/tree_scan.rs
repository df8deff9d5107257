//! Scans in both directions.
//!
//! # Protocol
//! A [`Cursor`] is a stack of the nodes from the root down to the position of the scan. It takes
//! entries from a node in chunks, and validates the node after each chunk. It descends from a chunk
//! to a child if the child is still in the tree, even if it is now below another node, because
//! everything that the scan has to return from the child's slot is below the child. A seek compares
//! the stored bytes of prefixes, for which the depth has to be right, and assumes that the others
//! match. It validates the parent after it has entered the child, as a lookup does. At its end, it
//! checks all assumed prefixes with a single record, and goes back to the first one that does not
//! match: O(length of the key). If a validation fails, the scan seeks again, after the last key
//! that it has taken. Records are gathered in *runs*: they are prefetched while they are gathered,
//! and passed to the caller when no lock is held. Only then is the record in the slot of the start
//! compared with it, while others are being loaded from memory. When a scan takes the last chunk of
//! a node, it prefetches the whole next large node.
//!
//! # Why each key that stays is returned once
//! Entries are taken in the order of keys. All entries below a slot always share the bytes that
//! lead to it, so no key is returned twice or out of order. A key that stays for the whole scan is
//! below a node from the moment at which the scan reaches the node, and is in the chunk that covers
//! its byte. If the node is replaced in the meantime, validation notices this. In mode `Free`, the
//! scan continues in the old node, which is no longer changed and has the key.
//!
//! # Progress
//! A run that has restarted [`LIMIT`](super::tree::LIMIT) times is gathered with exclusive locks.
//! In mode `Free`, nothing restarts. There, a seek that needs any record below a node searches
//! again if each slot was empty when it was visited (`NodeRef::some_leaf`). A node always has two
//! entries, so each time writers have filled a slot that the search had passed and emptied one
//! before it. The number of searches is not limited, but there is at most one more for two
//! concurrent changes of that node.

use std::cmp::Ordering as Order;
use std::ops::{Bound, ControlFlow};

use super::node::{CHUNK, Chunk, Kind, NodeRef, Position, TERMINAL, position};
#[cfg(debug_assertions)]
use super::probes::restarts;
use super::protocol::{Exclusive, Mode, Protocol, Restart};
use super::tree::{Attempts, Keep, Tree};
use super::word::{Child, RecordRef, Word};
use super::write::{first_difference, leaf_of};
use ordna_base::index::{Direction, is_above, is_below};
use ordna_base::simd::prefetch;
use ordna_base::sync::{check, point};
use ordna_base::{Key, Value};

/// Maximum number of records that a scan prefetches, so that they are loaded when the caller needs
/// them.
const AHEAD: usize = 24;
/// Minimum number of prefetched records, except at the end.
const STAYING: usize = 16;
/// Maximum number of records that are gathered while locks are held.
const LAST_RUN: usize = 128;

/// A node on the path, and the part of it that has not been scanned.
struct Frame<'g, P: Protocol, M: Mode<P::Lock>> {
    node: NodeRef<'g, P>,
    token: M::Token<'g>,
    chunk: Chunk<'g, P>,
    /// The position of the next chunk.
    next: Option<Position>,
}

/// The position of a scan.
struct Cursor<'g, P: Protocol, M: Mode<P::Lock>> {
    direction: Direction,
    /// Number of entries that are taken from a node at once.
    step: usize,
    stack: Vec<Frame<'g, P, M>>,
}

impl<P: Protocol, M: Mode<P::Lock>> Cursor<'_, P, M> {
    /// Ends a seek that has assumed prefixes to match: goes back to the first node in whose prefix
    /// the key differs, if there is one. As elsewhere in a seek, a node that is skipped is not
    /// validated.
    fn turn_back(&mut self, (at, order): (usize, Order)) {
        let Some(first) = self.stack.iter().position(|frame| frame.node.level() > at) else {
            return;
        };
        self.stack.truncate(first + 1);
        let ahead = match self.direction {
            Direction::Ascending => order == Order::Less,
            Direction::Descending => order == Order::Greater,
        };
        if let Some(frame) = self.stack.last_mut().filter(|_| ahead) {
            (frame.chunk, frame.next) = (Chunk::new(), Some(NodeRef::<P>::start(self.direction)));
        } else {
            self.stack.pop();
        }
    }

    /// Prefetches the node after the last one on the stack, if it is a large one.
    fn prefetch_next_large(&mut self) -> Result<(), Restart> {
        let Some(above) = self.stack.len().checked_sub(2) else { return Ok(()) };
        let frame = &mut self.stack[above];
        if frame.chunk.words().is_empty()
            && let Some(from) = frame.next
        {
            frame.next = frame.node.collect(from, self.direction, self.step, &mut frame.chunk);
            if !check!("art.scan.validate_chunk", M::holds(&frame.token)) {
                return Err(Restart);
            }
        }
        if let Some(Child::Node(node)) = frame.chunk.words().first().map(|word| word.child())
            && !node.is_small()
        {
            node.prefetch_whole(self.direction);
        }
        Ok(())
    }
}

/// Returns whether a scan from `start` on reaches this key.
fn is_ahead<K: Key + ?Sized>(key: &K, start: &K, inclusive: bool, direction: Direction) -> bool {
    match (direction, key.cmp(start)) {
        (_, Order::Equal) => inclusive,
        (Direction::Ascending, order) => order == Order::Greater,
        (Direction::Descending, order) => order == Order::Less,
    }
}

/// The start of a scan: the key, and whether it is included.
type Start<'k, K> = Option<(&'k K, bool)>;

impl<K: Key + ?Sized, V: Value + ?Sized, P: Protocol> Tree<K, V, P> {
    /// Calls `visit` with the first `limit` entries within the bounds.
    pub fn scan_with<'g>(
        &'g self,
        lower: Bound<&K>,
        upper: Bound<&K>,
        direction: Direction,
        limit: usize,
        keep: &'g impl Keep,
        mut visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) {
        let first = match direction {
            Direction::Ascending => lower,
            Direction::Descending => upper,
        };
        let mut start: Start<'_, K> = match first {
            Bound::Unbounded => None,
            Bound::Included(key) => Some((key, true)),
            Bound::Excluded(key) => Some((key, false)),
        };
        let mut size = limit.clamp(1, AHEAD);
        let mut run: Vec<RecordRef<'g>> = Vec::with_capacity(size + CHUNK);
        let step = limit.clamp(2, CHUNK);
        let mut cursor = Cursor::<P, P::Read> { direction, step, stack: Vec::new() };
        let mut seek = true;
        let mut left = limit;
        loop {
            let was_empty = run.is_empty();
            let more = self.gather(&mut cursor, &mut seek, start, &mut run, size.min(left), keep);
            if was_empty
                && let Some((key, inclusive)) = start
                && let Some(first) = run.first()
                && !is_ahead(Self::key(*first), key, inclusive, direction)
            {
                run.remove(0);
            }
            // The other records stay in the run, and are loaded from memory while these are
            // visited.
            let are_some_left = more && !seek && run.len() < left;
            let staying = if are_some_left { STAYING.min(run.len() * 2 / 3) } else { 0 };
            let visited = (run.len() - staying).max(run.len().min(1));
            for leaf in &run[..visited] {
                let key = Self::key(*leaf);
                let beyond = match direction {
                    Direction::Ascending => is_above(key, upper),
                    Direction::Descending => is_below(key, lower),
                };
                if beyond || Self::with_value(*leaf, |value| visit(key, value)).is_break() {
                    return;
                }
            }
            let (Some(last), true) = (visited.checked_sub(1), more) else { return };
            start = Some((Self::key(run[last]), false));
            run.drain(..visited);
            left = left.saturating_sub(visited).max(1);
            if seek {
                // Each run needs a seek, so runs become longer with the length of the scan.
                size = (size * 2).min(LAST_RUN);
            }
        }
    }

    /// Fills `run` with up to `size` records. Returns whether there may be more. Seeks first if
    /// `seek` is set, and sets it if the next run has to seek.
    fn gather<'g>(
        &'g self,
        cursor: &mut Cursor<'g, P, P::Read>,
        seek: &mut bool,
        start: Start<'_, K>,
        run: &mut Vec<RecordRef<'g>>,
        size: usize,
        keep: &'g impl Keep,
    ) -> bool {
        let mut attempts = Attempts::default();
        let more = loop {
            match self.try_gather(cursor, *seek, start, run, size, keep) {
                Ok(more) => {
                    *seek = <P::Read as Mode<P::Lock>>::HOLDS_LOCKS;
                    break more;
                }
                Err(Restart) => {
                    // A failed seek may have left locks there, and no thread may wait while it
                    // holds them.
                    cursor.stack.clear();
                    attempts.again();
                }
            }
            *seek = true;
            if attempts.are_too_many() {
                let (direction, step) = (cursor.direction, cursor.step);
                let mut slow = Cursor::<P, Exclusive> { direction, step, stack: Vec::new() };
                if let Ok(more) = self.try_gather(&mut slow, true, start, run, size, keep) {
                    break more;
                }
            }
        };
        if *seek {
            cursor.stack.clear();
        }
        more
    }

    fn try_gather<'g, M: Mode<P::Lock>>(
        &'g self,
        cursor: &mut Cursor<'g, P, M>,
        seek: bool,
        start: Start<'_, K>,
        run: &mut Vec<RecordRef<'g>>,
        size: usize,
        keep: &'g impl Keep,
    ) -> Result<bool, Restart> {
        if seek {
            // An entry that was taken without a comparison may be before the start. Others may now
            // be in between.
            if let (Some(last), Some((key, inclusive))) = (run.last(), start)
                && !check!(
                    "art.scan.seek_behind_start",
                    is_ahead(Self::key(*last), key, inclusive, cursor.direction)
                )
            {
                run.clear();
            }
            let behind = run.last().map(|last| (Self::key(*last), false));
            let is_lazy = run.is_empty() && size > 1;
            self.seek(cursor, behind.or(start), is_lazy, keep)?;
        }
        while run.len() < size {
            let Some(top) = cursor.stack.last_mut() else { return Ok(false) };
            let Some(word) = top.chunk.next() else {
                let Some(from) = top.next else {
                    cursor.stack.pop();
                    continue;
                };
                top.next = top.node.collect(from, cursor.direction, cursor.step, &mut top.chunk);
                if !check!("art.scan.validate_chunk", M::holds(&top.token)) {
                    return Err(Restart);
                }
                top.chunk.words().iter().for_each(|word| word.prefetch_small());
                if cursor.step == CHUNK {
                    match top.next {
                        Some(from) => top.node.prefetch_chunk(from, cursor.direction),
                        None => cursor.prefetch_next_large()?,
                    }
                }
                continue;
            };
            match word.child() {
                Child::Empty => {}
                Child::Record(leaf) => {
                    prefetch(leaf.as_ptr());
                    run.push(leaf);
                }
                Child::Node(child) => {
                    let token = M::enter(child.lock())?;
                    point("art.scan.before_inner_chunk");
                    let start = NodeRef::<P>::start(cursor.direction);
                    let mut chunk = Chunk::new();
                    let next = child.collect(start, cursor.direction, cursor.step, &mut chunk);
                    if !check!("art.scan.validate_chunk", M::holds(&token)) {
                        return Err(Restart);
                    }
                    let words = chunk.words();
                    // Most nodes are small ones at the bottom, which need not be pushed on the
                    // stack.
                    if next.is_none() && words.iter().all(|word| word.is_leaf()) {
                        let leaves = words.iter().filter_map(|word| leaf_of(*word));
                        run.extend(leaves.inspect(|leaf| prefetch(leaf.as_ptr())));
                    } else {
                        words.iter().for_each(|word| word.prefetch_small());
                        if let Some(from) = next {
                            child.prefetch_chunk(from, cursor.direction);
                        }
                        cursor.stack.push(Frame { node: child, token, chunk, next });
                    }
                }
            }
        }
        Ok(true)
    }

    /// Moves the cursor before the first entry at `start`, in its direction. With `is_lazy`, the
    /// entry in the slot of the start is taken without a comparison; the caller compares its key.
    fn seek<'g, M: Mode<P::Lock>>(
        &'g self,
        cursor: &mut Cursor<'g, P, M>,
        start: Start<'_, K>,
        is_lazy: bool,
        keep: &'g impl Keep,
    ) -> Result<(), Restart> {
        cursor.stack.clear();
        let direction = cursor.direction;
        // Whether every prefix so far was compared completely.
        let mut is_sure = true;
        let mut node = self.root(keep);
        let mut token = M::enter(node.lock())?;
        let mut depth = 0;
        loop {
            let level = node.level_from(depth);
            let whole = Some(NodeRef::<P>::start(direction));
            let mut frame = Frame { node, token, chunk: Chunk::new(), next: whole };
            let Some((key, inclusive)) = start else {
                cursor.stack.push(frame);
                return Ok(());
            };
            let bytes = key.radix();
            let bytes = bytes.as_ref();
            let (side, in_full) = side_of_stored(node, depth, level, bytes);
            is_sure &= in_full;
            if side != Order::Equal && !is_sure {
                cursor.stack.push(frame);
                cursor.turn_back(Self::difference(node, None, bytes)?);
                return Ok(());
            }
            if side != Order::Equal {
                // Not validated here. If the node is scanned, its chunks are validated. If it is
                // skipped, the next chunk is one of its parent, and whatever changes a prefix
                // changes the parent, too.
                let ahead = match direction {
                    Direction::Ascending => side == Order::Less,
                    Direction::Descending => side == Order::Greater,
                };
                if ahead {
                    cursor.stack.push(frame);
                }
                return Ok(());
            }
            let at = bytes.get(level).map_or(TERMINAL, |byte| position(*byte));
            frame.next = match direction {
                Direction::Ascending => Some(at + 1),
                Direction::Descending => at.checked_sub(1),
            };
            if let Some(from) = frame.next {
                node.prefetch_slots(from, direction);
            }
            let mut last = None;
            match node.at(at).child() {
                Child::Node(child) => {
                    child.prefetch(bytes.get(level + 1));
                    if cursor.step == CHUNK && child.kind() == Kind::Node48 {
                        child.prefetch_whole(direction);
                    }
                    point("art.scan.before_child");
                    token = M::enter(child.lock())?;
                    if !check!("art.scan.validate_parent", M::holds(&frame.token)) {
                        return Err(Restart);
                    }
                    point("art.scan.entered_child");
                    cursor.stack.push(frame);
                    (node, depth) = (child, level + 1);
                    continue;
                }
                Child::Record(leaf) => {
                    last = Some(leaf);
                    prefetch(leaf.as_ptr());
                    let ahead = is_lazy || is_ahead(Self::key(leaf), key, inclusive, direction);
                    if ahead {
                        frame.chunk.push(Word::leaf(leaf));
                    }
                }
                Child::Empty => {}
            }
            if !check!("art.scan.validate_slot", M::holds(&frame.token)) {
                return Err(Restart);
            }
            cursor.stack.push(frame);
            if !is_sure {
                cursor.turn_back(Self::difference(node, last, bytes)?);
            }
            return Ok(());
        }
    }

    /// Returns where a key first differs from a record below `node`, and how it compares there. The
    /// record is `leaf` if the caller has one. All nodes on the path to `node` are above the
    /// record, too, so the record shares the bytes up to their levels. A single comparison checks
    /// all of their prefixes.
    pub fn difference(
        node: NodeRef<'_, P>,
        leaf: Option<RecordRef<'_>>,
        bytes: &[u8],
    ) -> Result<(usize, Order), Restart> {
        let leaf = loop {
            if let Some(leaf) = leaf.or_else(|| node.some_leaf()) {
                break leaf;
            }
            if P::READERS_NOTICE {
                return Err(Restart);
            }
            #[cfg(debug_assertions)]
            restarts::note();
        };
        point("art.scan.before_record");
        let other = Self::key(leaf).radix();
        let other = other.as_ref();
        let at = first_difference(bytes, other).unwrap_or(usize::MAX);
        Ok((at, bytes.get(at).cmp(&other.get(at))))
    }
}

/// Compares a key with all keys below a node, as far as the stored bytes of its prefix go, and
/// returns whether the prefix is compared completely. It is not if the prefix is longer, or belongs
/// to another depth because a node above is being split or merged.
pub fn side_of_stored<P: Protocol>(
    node: NodeRef<'_, P>,
    depth: usize,
    level: usize,
    bytes: &[u8],
) -> (Order, bool) {
    let prefix = node.prefix();
    if !prefix.fits(depth, level) {
        return (Order::Equal, false);
    }
    let (stored, len) = prefix.stored();
    if len == 0 {
        return (Order::Equal, true);
    }
    let rest = bytes.get(depth..).unwrap_or(&[]);
    let compared = len.min(rest.len());
    let order = rest[..compared].cmp(&stored[..compared]);
    if order.is_ne() || compared < len {
        return (order.then(Order::Less), true);
    }
    (Order::Equal, prefix.is_whole())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::cell::Cell;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::super::protocol::{Coupling, Latch};
    use super::super::tree::Sole;
    use super::*;
    use ordna_base::index::Change;

    type Lock = <Coupling as Protocol>::Lock;
    type Shared = <Coupling as Protocol>::Read;

    /// Lock coupling in which every second validation fails.
    struct Foiled;

    thread_local! {
        static VALIDATIONS: Cell<u32> = const { Cell::new(0) };
    }

    impl Protocol for Foiled {
        type Lock = Lock;
        type Read = Self;
        type Write = Shared;
        const READERS_NOTICE: bool = true;
    }

    impl Mode<Lock> for Foiled {
        const HOLDS_LOCKS: bool = true;
        type Token<'a> = <Shared as Mode<Lock>>::Token<'a>;

        fn enter(lock: &Lock) -> Result<Self::Token<'_>, Restart> {
            <Shared as Mode<Lock>>::enter(lock)
        }
        fn holds(_: &Self::Token<'_>) -> bool {
            VALIDATIONS.replace(VALIDATIONS.get() + 1).is_multiple_of(2)
        }
    }

    /// Each time, the seek fails when the root is already on the stack; then the root is locked.
    #[test]
    fn a_failed_seek_leaves_no_lock_behind() {
        let (done, ended) = channel();
        std::thread::spawn(move || {
            let tree = Tree::<[u8], u64, Foiled>::new();
            for key in [b"ab1", b"ab2", b"ac1"] {
                tree.modify(key.as_slice(), |_| Change::Put(&1), &Sole).unwrap();
            }
            let mut found = 0;
            let from = Bound::Included(b"ab2".as_slice());
            tree.scan_with(
                from,
                Bound::Unbounded,
                Direction::Ascending,
                usize::MAX,
                &Sole,
                |_, _| {
                    found += 1;
                    ControlFlow::Continue(())
                },
            );
            done.send((found, tree.root(&Sole).lock().is_idle())).unwrap();
        });
        let found = ended.recv_timeout(Duration::from_secs(10));
        assert_eq!(found, Ok((2, true)), "waits for its own lock");
    }
}
