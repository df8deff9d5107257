//! Changes: a single read-modify-write operation for all protocols.
//!
//! # Protocol
//! A writer descends to the slot of its key and keeps the tokens of the node and of its parent. The
//! caller decides, and the writer prepares a record. Only then does it take the locks that it
//! needs: the node's, and before it the parent's if the node is to be replaced. An upgrade succeeds
//! only if its node has not changed since it was entered, so the basis of the decision still holds.
//! In particular, the parent still links to the node: if a level was inserted in between, the
//! parent has changed, so it is not overwritten.
//!
//! A change of two nodes is written so that each step is safe for readers without versions. The
//! protocol [`Rowex`](super::protocol::Rowex) lists what they rely on.
//!
//! # Prefixes
//! Only [`STORED`] bytes of a prefix are in the node. During the descent, a writer assumes that the
//! rest matches. At the end it compares with a record below the last node, usually the one that it
//! was looking for. If that record differs further up, the writer descends once more, to the node
//! whose prefix has that byte. If the tree has changed in between so that this is not the right
//! node either, the writer restarts.

#![expect(unsafe_code, reason = "retires what left the tree")]

use std::borrow::Borrow;
use std::marker::PhantomData;

use super::node::{Kind, NodeRef, Position, TERMINAL, position};
use super::prefix::{Prefix, STORED};
use super::protocol::{Exclusive, Latch, Mode, Protocol, Restart, WriteMode};
use super::tree::{Attempts, Keep, Tree};
use super::word::{Child, RecordRef, Word};
use ordna_base::index::Change;
use ordna_base::sync::{check, fault, point};
use ordna_base::{Error, Key, Value};

/// The effect of a change on the number of entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    Same,
    Inserted,
    Removed,
}

type HeldLatch<'g, P> = <<P as Protocol>::Lock as Latch>::Held<'g>;

/// A node on the path, and the token that shows whether it has changed.
struct Entered<'g, P: Protocol, M: Mode<P::Lock>> {
    node: NodeRef<'g, P>,
    token: M::Token<'g>,
}

/// Locks a node whose prefix is about to change.
fn lock_for_prefix<'g, P: Protocol>(
    node: NodeRef<'g, P>,
) -> Result<Option<<P::Lock as Latch>::Held<'g>>, Restart> {
    if fault!("art.merge.lock_below") { Ok(None) } else { node.lock().lock().map(Some) }
}

/// The place of a key, and the nodes on the path that a change may lock.
struct WritePath<'g, P: Protocol, M: Mode<P::Lock>> {
    /// The parent and the byte of the slot that links to `inner`. The root has none.
    above: Option<(Entered<'g, P, M>, u8)>,
    inner: Entered<'g, P, M>,
    /// The depth at which the prefix of `inner` starts.
    depth: usize,
    spot: Spot<'g>,
    /// Number of bytes up to which every prefix was compared completely.
    compared: usize,
}

/// The result of the descent in the last node.
#[derive(Clone, Copy)]
enum Spot<'g> {
    /// The key differs from the node's prefix at this byte.
    Diverges(usize),
    /// The slot at this position belongs to the key, and contains this record or none.
    Slot(Position, Option<RecordRef<'g>>),
}

/// A leaf that is not in the tree yet. It is freed on drop, unless it was linked.
struct Prepared<'g, K: Key + ?Sized, V: Value + ?Sized, P: Protocol> {
    leaf: RecordRef<'g>,
    tree: PhantomData<Tree<K, V, P>>,
}

impl<K: Key + ?Sized, V: Value + ?Sized, P: Protocol> Prepared<'_, K, V, P> {
    fn new(key: &K, value: &V) -> Self {
        Self { leaf: Tree::<K, V, P>::leaf(key, value), tree: PhantomData }
    }

    /// Passes the ownership of the leaf to the tree.
    fn linked(self) {
        std::mem::forget(self);
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized, P: Protocol> Drop for Prepared<'_, K, V, P> {
    fn drop(&mut self) {
        // SAFETY: the leaf was not linked, so no other thread knows it.
        unsafe { Tree::<K, V, P>::free(self.leaf) }
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized, P: Protocol> Tree<K, V, P> {
    /// Calls `change` with the entry of `key`, and applies its decision.
    ///
    /// Linearizes at the store under the node's lock that links or unlinks the record or overwrites
    /// its word. If nothing is changed, linearizes where the node was validated.
    pub fn modify<T, F>(&self, key: &K, mut change: F, keep: &impl Keep) -> Result<Effect, Error>
    where
        T: Borrow<V>,
        F: FnMut(Option<&V>) -> Change<T>,
    {
        key.check()?;
        let mut attempts = Attempts::default();
        loop {
            let done = if attempts.are_too_many() {
                self.try_modify::<Exclusive, T, F>(key, &mut change, keep)
            } else {
                self.try_modify::<P::Write, T, F>(key, &mut change, keep)
            };
            match done {
                Ok(done) => return done,
                Err(Restart) => attempts.again(),
            }
        }
    }

    fn try_modify<M: WriteMode<P::Lock>, T, F>(
        &self,
        key: &K,
        change: &mut F,
        keep: &impl Keep,
    ) -> Result<Result<Effect, Error>, Restart>
    where
        T: Borrow<V>,
        F: FnMut(Option<&V>) -> Change<T>,
    {
        let bytes = key.radix();
        let bytes = bytes.as_ref();
        let mut place = self.locate::<M>(bytes, None, keep)?;
        if let Some(at) = self.misled_at(&place, bytes)? {
            drop(place);
            point("art.modify.misled");
            place = self.locate::<M>(bytes, Some(at), keep)?;
            if self.misled_at(&place, bytes)?.is_some() {
                return Err(Restart);
            }
        }
        let present = match place.spot {
            Spot::Slot(at, Some(leaf)) if Self::key(leaf) == key => Some((at, leaf)),
            _ => None,
        };
        let change = match present {
            Some((_, leaf)) => Self::with_value(leaf, |value| change(Some(value))),
            None => change(None),
        };
        point("art.modify.decided");
        // Borrowed once, so that the checked value is the one that is written.
        let change = match &change {
            Change::Keep => Change::Keep,
            Change::Put(value) => Change::Put(value.borrow()),
            Change::Remove => Change::Remove,
        };
        if let Change::Put(value) = change
            && let Err(error) = V::check(value)
        {
            return Ok(Err(error));
        }
        let effect = match (change, present) {
            (Change::Keep, Some(_)) => {
                // The value may have been overwritten after the slot was validated.
                if !check!("art.modify.validate_keep", M::holds(&place.inner.token)) {
                    return Err(Restart);
                }
                Effect::Same
            }
            (Change::Keep | Change::Remove, None) => Effect::Same,
            (Change::Put(value), Some((at, leaf))) => {
                self.set::<M>(place.inner, at, leaf, key, value, keep)?;
                Effect::Same
            }
            (Change::Put(value), None) => {
                let record = Prepared::<K, V, P>::new(key, value);
                self.link::<M>(place, bytes, record.leaf, keep)?;
                record.linked();
                Effect::Inserted
            }
            (Change::Remove, Some((at, leaf))) => {
                self.unlink::<M>(place, at, keep)?;
                // SAFETY: this thread has unlinked the leaf, once.
                unsafe { Self::retire(leaf, keep) };
                Effect::Removed
            }
        };
        Ok(Ok(effect))
    }

    /// Returns the validated place of a key. `known` is the byte at which the key differs from a
    /// prefix, if that is known.
    fn locate<'g, M: WriteMode<P::Lock>>(
        &'g self,
        bytes: &[u8],
        known: Option<usize>,
        keep: &'g impl Keep,
    ) -> Result<WritePath<'g, P, M>, Restart> {
        let node = self.root(keep);
        let mut place = WritePath {
            above: None,
            inner: Entered { node, token: M::enter(node.lock())? },
            depth: 0,
            spot: Spot::Slot(TERMINAL, None),
            compared: 0,
        };
        loop {
            let node = place.inner.node;
            let prefix = node.prefix();
            let level = place.depth + prefix.len();
            let diverges = match (diverges(prefix, place.depth, bytes), known) {
                (Some(at), _) => Some(at),
                // The bytes matched in the first descent, so the tree has changed.
                (None, Some(at)) if at < place.depth + prefix.stored().1 => return Err(Restart),
                (None, Some(at)) if at < level => Some(at),
                (None, _) => (level > bytes.len()).then_some(bytes.len()),
            };
            if prefix.is_whole() && place.compared == place.depth {
                place.compared = level;
            }
            if let Some(at) = diverges {
                place.spot = Spot::Diverges(at);
            } else if level == bytes.len() {
                place.spot = Spot::Slot(TERMINAL, leaf_of(node.terminal()));
            } else {
                let byte = bytes[level];
                let word = node.child(byte);
                if let Child::Node(child) = word.child() {
                    child.prefetch(bytes.get(level + 1));
                    point("art.locate.before_child");
                    let token = M::enter(child.lock())?;
                    // As in a lookup, after the child's version was sampled.
                    if !check!("art.locate.validate_parent", M::holds(&place.inner.token)) {
                        return Err(Restart);
                    }
                    point("art.locate.entered_child");
                    if place.compared == level {
                        place.compared += 1;
                    }
                    let above = std::mem::replace(&mut place.inner, Entered { node: child, token });
                    place.above = Some((above, byte));
                    place.depth = level + 1;
                    continue;
                }
                place.spot = Spot::Slot(position(byte), leaf_of(word));
            }
            if !check!("art.locate.validate_end", M::holds(&place.inner.token)) {
                return Err(Restart);
            }
            return Ok(place);
        }
    }

    /// Returns where the key differs from a prefix that the descent assumed to match, or would have
    /// differed from the expected one. Returns `None` if the descent reached the right place.
    fn misled_at<M: Mode<P::Lock>>(
        &self,
        place: &WritePath<'_, P, M>,
        bytes: &[u8],
    ) -> Result<Option<usize>, Restart> {
        let (shared, is_exact) = match place.spot {
            // The difference is at a stored byte.
            Spot::Diverges(at) if at < place.depth + STORED => (place.depth, false),
            Spot::Diverges(at) => (at, true),
            Spot::Slot(..) => (place.depth + place.inner.node.prefix().len(), false),
        };
        if check!("art.locate.complete_prefix", place.compared >= shared) {
            return Ok(None);
        }
        let leaf = match place.spot {
            Spot::Slot(_, Some(leaf)) => leaf,
            _ => place.inner.node.some_leaf().ok_or(Restart)?,
        };
        let other = Self::key(leaf).radix();
        let at = first_difference(bytes, other.as_ref()).unwrap_or(usize::MAX);
        let is_right = if is_exact { at == shared } else { at >= shared };
        Ok((!is_right).then_some(at))
    }

    /// Replaces the value of an existing entry.
    fn set<'g, M: WriteMode<P::Lock>>(
        &self,
        inner: Entered<'g, P, M>,
        at: Position,
        leaf: RecordRef<'g>,
        key: &K,
        value: &V,
        keep: &impl Keep,
    ) -> Result<(), Restart> {
        if V::IN_PLACE && !P::LENT {
            let _held = inner.upgrade(fault!("art.upgrade.set"))?;
            // SAFETY: this thread holds the lock of the leaf's node.
            unsafe { Self::overwrite(leaf, value) };
            return Ok(());
        }
        let record = Prepared::<K, V, P>::new(key, value);
        let node = inner.node;
        let held = inner.upgrade(fault!("art.upgrade.set"))?;
        node.replace(at, Word::leaf(record.leaf));
        drop(held);
        record.linked();
        // SAFETY: the slot contained the record when the lock was taken, and no longer does.
        unsafe { Self::retire(leaf, keep) };
        Ok(())
    }

    /// Links a record whose key is absent.
    fn link<'g, M: WriteMode<P::Lock>>(
        &'g self,
        place: WritePath<'g, P, M>,
        bytes: &[u8],
        new: RecordRef<'g>,
        keep: &impl Keep,
    ) -> Result<(), Restart> {
        let WritePath { above, inner, depth, spot, .. } = place;
        let node = inner.node;
        let new = Word::leaf(new);
        match spot {
            Spot::Slot(TERMINAL, _) => {
                let _held = inner.upgrade(fault!("art.upgrade.add"))?;
                node.replace(TERMINAL, new);
            }
            Spot::Slot(at, Some(other)) => {
                let _held = inner.upgrade(fault!("art.upgrade.expand"))?;
                point("art.expand.locked");
                let other_key = Self::key(other).radix();
                let other_key = other_key.as_ref();
                let level = first_difference(bytes, other_key).ok_or(Restart)?;
                let start = depth + node.prefix().len() + 1;
                let below = NodeRef::new(Kind::Node4, level, Prefix::new(&bytes[start..level]));
                put(below, bytes.get(level), new);
                put(below, other_key.get(level), Word::leaf(other));
                node.replace(at, below.word());
            }
            Spot::Slot(at, None) => {
                let byte = (at - 1) as u8;
                let Some((above, slot)) = above.filter(|_| !node.has_room_for(byte)) else {
                    let _held = inner.upgrade(fault!("art.upgrade.add"))?;
                    node.add(byte, new);
                    return Ok(());
                };
                let (outer, _outer, held) = take_both(above, inner, fault!("art.grow.unchanged"))?;
                let larger = node.copy(1, None);
                larger.add(byte, new);
                outer.replace(position(slot), larger.word());
                leave::<P>(node, held, keep);
            }
            Spot::Diverges(level) => {
                // The root has no prefix.
                let (above, slot) = above.ok_or(Restart)?;
                let unchecked = fault!("art.split.unchanged");
                let (outer, _outer, _held) = take_both(above, inner, unchecked)?;
                let (byte, rest) = self.cut(node, depth, level)?;
                let between = NodeRef::new(Kind::Node4, level, Prefix::new(&bytes[depth..level]));
                put(between, bytes.get(level), new);
                between.add(byte, node.word());
                outer.replace(position(slot), between.word());
                point("art.split.before_prefix");
                node.set_prefix(rest);
            }
        }
        Ok(())
    }

    /// Returns the byte of the node's prefix at `level`, and the rest of the prefix. The node is
    /// locked.
    fn cut(
        &self,
        node: NodeRef<'_, P>,
        depth: usize,
        level: usize,
    ) -> Result<(u8, Prefix), Restart> {
        let prefix = node.prefix();
        if prefix.is_whole() {
            let (stored, _) = prefix.stored();
            return Ok((stored[level - depth], prefix.without_first(level - depth + 1)));
        }
        let leaf = node.some_leaf().ok_or(Restart)?;
        let key = Self::key(leaf).radix();
        let key = key.as_ref();
        Ok((key[level], Prefix::new(&key[level + 1..depth + prefix.len()])))
    }

    /// Removes the entry at a position from the tree.
    fn unlink<'g, M: WriteMode<P::Lock>>(
        &'g self,
        place: WritePath<'g, P, M>,
        at: Position,
        keep: &impl Keep,
    ) -> Result<(), Restart> {
        let WritePath { above, inner, .. } = place;
        let node = inner.node;
        let children = node.children() - usize::from(at != TERMINAL).min(node.children());
        let shrinks = at != TERMINAL && node.is_underfull_with(children);
        let merges = node.entries() <= 2;
        let Some((above, slot)) = above.filter(|_| shrinks || merges) else {
            let _held = inner.upgrade(fault!("art.upgrade.remove"))?;
            node.remove(at);
            return Ok(());
        };
        let unchecked = fault!("art.unlink.unchanged");
        let (outer, _outer, held) = take_both(above, inner, unchecked)?;
        if !merges {
            let smaller = node.copy(0, Some(at));
            outer.replace(position(slot), smaller.word());
            leave::<P>(node, held, keep);
            return Ok(());
        }
        let (byte, last) = node.other_than(at).ok_or(Restart)?;
        if let Child::Node(below) = last.child() {
            // Waits, but only downwards. `below` cannot leave the tree while its parent is locked.
            let _below = lock_for_prefix(below)?;
            let byte = (byte - 1) as u8;
            below.set_prefix(node.prefix().joined(byte, below.prefix()));
            point("art.merge.before_link");
            outer.replace(position(slot), last);
        } else {
            outer.replace(position(slot), last);
        }
        leave::<P>(node, held, keep);
        Ok(())
    }
}

impl<'g, P: Protocol, M: WriteMode<P::Lock>> Entered<'g, P, M> {
    /// Takes the lock, if the node has not changed since it was entered.
    ///
    /// With `unchecked`, a planted fault, takes the lock without that check.
    fn upgrade(self, unchecked: bool) -> Result<HeldLatch<'g, P>, Restart> {
        if unchecked {
            drop(self.token);
            return self.node.lock().lock();
        }
        M::upgrade(self.node.lock(), self.token)
    }
}

/// Takes the locks of the parent and then of the node. Returns the parent, too.
#[expect(clippy::type_complexity, reason = "both locks, in the order in which they are taken")]
fn take_both<'g, P: Protocol, M: WriteMode<P::Lock>>(
    above: Entered<'g, P, M>,
    inner: Entered<'g, P, M>,
    unchecked: bool,
) -> Result<(NodeRef<'g, P>, HeldLatch<'g, P>, HeldLatch<'g, P>), Restart> {
    let outer = above.node;
    let outer_held = above.upgrade(unchecked)?;
    let held = inner.upgrade(unchecked)?;
    Ok((outer, outer_held, held))
}

/// Retires a node that was just unlinked.
fn leave<'g, P: Protocol>(node: NodeRef<'g, P>, held: HeldLatch<'g, P>, keep: &impl Keep) {
    P::Lock::unlock_obsolete(held);
    // SAFETY: the node was unlinked under its parent's and its own lock, so only once.
    unsafe { node.dispose(keep) };
}

/// Adds an entry to a new node: under its byte or, if its key ends there, in the terminal slot.
fn put<P: Protocol>(node: NodeRef<'_, P>, byte: Option<&u8>, word: Word<'_, P>) {
    match byte {
        Some(byte) => node.add(*byte, word),
        None => node.replace(TERMINAL, word),
    }
}

/// Returns where the key differs from a prefix that starts at `depth`, as far as the bytes of the
/// prefix are stored.
fn diverges(prefix: Prefix, depth: usize, bytes: &[u8]) -> Option<usize> {
    let (stored, len) = prefix.stored();
    let rest = bytes.get(depth..).unwrap_or(&[]);
    let at = (0..len.min(rest.len())).find(|at| rest[*at] != stored[*at])?;
    Some(depth + at)
}

/// Returns the record to which a word points, if it points to one.
pub fn leaf_of<'g, P: Protocol>(word: Word<'g, P>) -> Option<RecordRef<'g>> {
    match word.child() {
        Child::Record(leaf) => Some(leaf),
        Child::Node(_) | Child::Empty => None,
    }
}

/// Returns where two keys differ. If one is a prefix of the other, this is its end. Returns `None`
/// if they are equal.
pub fn first_difference(one: &[u8], other: &[u8]) -> Option<usize> {
    let shorter = one.len().min(other.len());
    let differs = (0..shorter).find(|at| one[*at] != other[*at]);
    #[cfg(debug_assertions)]
    super::probes::steps::add(differs.unwrap_or(shorter));
    differs.or((one.len() != other.len()).then_some(shorter))
}
