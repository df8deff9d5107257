//! The tree and its lookups.
//!
//! # Contract
//! [`Tree`] is shared by as many threads as its protocol allows. Each call takes a value that keeps
//! the memory alive during the call: a guard of the collector, under which everything that leaves
//! the tree is retired, or [`Sole`] if a single thread has borrowed the tree. Lookups write
//! nothing, except with lock coupling.
//!
//! # Lookups do not compare prefixes
//! A descent only needs to know on which byte a node branches. Whether the bytes in between match
//! is decided by comparing the whole key with that of the record at the end. So a lookup reads the
//! level of each node, one slot, and one record. If the key is in the tree, its bytes lead to its
//! record; otherwise, they lead to a record with another key, or nowhere.
//!
//! # The root
//! The root is a Node256 of level 0 without a prefix, which is never replaced. So every other node
//! has a parent.
//!
//! # Progress
//! A lookup that has restarted [`LIMIT`] times continues with exclusive locks. In mode [`Free`], no
//! lookup restarts or waits.
//!
//! [`Free`]: super::protocol::Free

#![expect(unsafe_code, reason = "records behind tagged pointers")]

use std::borrow::Borrow;
use std::marker::PhantomData;

use super::node::{Dispose, Kind, NodeRef};
use super::prefix::Prefix;
use super::protocol::{Exclusive, Mode, Protocol, Restart};
use super::word::{Child, RecordRef};
use ordna_base::reclaim::{Guard, Retire};
use ordna_base::record::Record;
use ordna_base::simd::prefetch;
use ordna_base::sync::{Backoff, check, fault, notice, point};
use ordna_base::{Key, Value};

/// Number of restarts of an operation before it takes exclusive locks.
pub const LIMIT: u32 = 16;

/// Number of interleaved descents of a batch.
const LANES: usize = 16;

/// A guard that keeps the memory of a tree alive, including memory that leaves the tree from now
/// on.
///
/// # Safety
/// As long as the value lives, memory that was retired through another value of its type is not
/// freed.
pub unsafe trait Keep: Dispose {
    /// Retires a record.
    ///
    /// # Safety
    /// The record has left the tree, is retired once, and is not used by the caller any more.
    unsafe fn retire_record<K: Key + ?Sized, V: Value + ?Sized>(&self, record: Record<K, V>);
}

impl Dispose for Guard<'_> {
    unsafe fn dispose<T: Retire>(&self, memory: *mut T) {
        // SAFETY: the caller upholds the contract.
        unsafe { self.retire(memory) }
    }
}

// SAFETY: guards of a collector have this property.
unsafe impl Keep for Guard<'_> {
    unsafe fn retire_record<K: Key + ?Sized, V: Value + ?Sized>(&self, record: Record<K, V>) {
        if fault!("art.retire.at_once") {
            // SAFETY: none: the planted fault frees memory that readers may use.
            unsafe { record.free() }
        } else {
            // SAFETY: the caller upholds the contract.
            unsafe { record.retire(self) }
        }
    }
}

/// No other thread is in the tree, so memory that leaves it is freed at once.
#[derive(Debug)]
pub struct Sole;

impl Dispose for Sole {
    unsafe fn dispose<T: Retire>(&self, memory: *mut T) {
        // SAFETY: no other thread can use the memory, and the caller does not use it any more.
        unsafe { T::free(memory) }
    }
}

// SAFETY: only the borrower removes memory from the tree, and does not use it afterwards.
unsafe impl Keep for Sole {
    unsafe fn retire_record<K: Key + ?Sized, V: Value + ?Sized>(&self, record: Record<K, V>) {
        // SAFETY: as above.
        unsafe { record.free() }
    }
}

/// An adaptive radix tree of records.
pub struct Tree<K: Key + ?Sized, V: Value + ?Sized, P: Protocol> {
    root: NodeRef<'static, P>,
    kinds: PhantomData<(Box<K>, Box<V>)>,
}

impl<K: Key + ?Sized, V: Value + ?Sized, P: Protocol> Tree<K, V, P> {
    pub fn new() -> Self {
        Self { root: NodeRef::new(Kind::Node256, 0, Prefix::new(&[])), kinds: PhantomData }
    }

    #[inline]
    pub fn root<'g>(&'g self, _keep: &'g impl Keep) -> NodeRef<'g, P> {
        self.root
    }

    /// Returns the record of `key`. O(length of the key).
    ///
    /// Linearizes where the last node was validated. For mode `Free`, see the protocol.
    #[inline]
    pub fn get<'g>(&'g self, key: &K, keep: &'g impl Keep) -> Option<RecordRef<'g>> {
        let bytes = key.radix();
        let bytes = bytes.as_ref();
        let mut attempts = Attempts::default();
        let leaf = loop {
            match self.try_get::<P::Read>(bytes, keep) {
                Ok(leaf) => break leaf,
                Err(Restart) => attempts.again(),
            }
            if attempts.are_too_many()
                && let Ok(leaf) = self.try_get::<Exclusive>(bytes, keep)
            {
                break leaf;
            }
        };
        point("art.get.before_record");
        leaf.filter(|leaf| Self::key(*leaf) == key)
    }

    #[inline]
    fn try_get<'g, M: Mode<P::Lock>>(
        &'g self,
        bytes: &[u8],
        keep: &'g impl Keep,
    ) -> Result<Option<RecordRef<'g>>, Restart> {
        let mut descent = Descent::<P, M>::new(self.root(keep));
        loop {
            if let DescentStep::End(leaf) = descent.step(bytes)? {
                return Ok(leaf);
            }
        }
    }

    /// Calls `each` with the record of every key, in the order of `keys`. Sixteen descents run
    /// interleaved, so that their cache misses overlap.
    pub fn get_many<'g, Q: Borrow<K>>(
        &'g self,
        keys: &[Q],
        keep: &'g impl Keep,
        mut each: impl FnMut(usize, Option<RecordRef<'g>>),
    ) {
        // A thread must not wait for a lock while it holds others in no defined order.
        if <P::Read as Mode<P::Lock>>::HOLDS_LOCKS {
            for (at, key) in keys.iter().enumerate() {
                each(at, self.get(key.borrow(), keep));
            }
            return;
        }
        let root = self.root(keep);
        let mut lanes: [Lane<'g, P>; LANES] = std::array::from_fn(|_| Lane::Done(None));
        for (group, keys) in keys.chunks(LANES).enumerate() {
            for lane in &mut lanes[..keys.len()] {
                *lane = Lane::Descends(Descent::new(root));
            }
            let mut running = keys.len();
            while running > 0 {
                for (lane, key) in lanes.iter_mut().zip(keys) {
                    let Lane::Descends(descent) = lane else { continue };
                    let key: &K = key.borrow();
                    let bytes = key.radix();
                    let bytes = bytes.as_ref();
                    match descent.step(bytes) {
                        Ok(DescentStep::On) => continue,
                        Ok(DescentStep::End(leaf)) => {
                            if let Some(leaf) = leaf {
                                prefetch(leaf.as_ptr());
                            }
                            *lane = Lane::Done(leaf);
                        }
                        // A writer interfered, so this lookup runs separately, with its own count
                        // of restarts.
                        Err(Restart) => *lane = Lane::Done(self.get(key, keep)),
                    }
                    running -= 1;
                }
            }
            for (at, (lane, key)) in lanes.iter().zip(keys).enumerate() {
                let Lane::Done(leaf) = lane else { continue };
                let leaf = leaf.filter(|leaf| Self::key(*leaf) == key.borrow());
                each(group * LANES + at, leaf);
            }
        }
    }
}

/// A descent, which advances by one node at a time.
struct Descent<'g, P: Protocol, M: Mode<P::Lock>> {
    node: NodeRef<'g, P>,
    /// The parent, from which the link was read.
    above: Option<M::Token<'g>>,
    /// Number of bytes of the key that have been passed.
    depth: usize,
}

enum DescentStep<'g> {
    On,
    /// The record at the end, if there is one. Its key must still be compared.
    End(Option<RecordRef<'g>>),
}

enum Lane<'g, P: Protocol> {
    Descends(Descent<'g, P, P::Read>),
    Done(Option<RecordRef<'g>>),
}

impl<'g, P: Protocol, M: Mode<P::Lock>> Descent<'g, P, M> {
    #[inline]
    fn new(root: NodeRef<'g, P>) -> Self {
        Self { node: root, above: None, depth: 0 }
    }

    /// Passes through one node.
    #[inline]
    fn step(&mut self, bytes: &[u8]) -> Result<DescentStep<'g>, Restart> {
        let node = self.node;
        let below_root = self.above.is_some();
        if below_root {
            point("art.descend.before_child");
        }
        let token = M::enter(node.lock())?;
        // Validated after the child's version was sampled. At this moment the child was linked
        // here, so its prefix starts at our depth. From now on, reads from it are checked by its
        // own version.
        if let Some(above) = self.above.take()
            && !check!("art.descend.validate_parent", M::holds(&above))
        {
            return Err(Restart);
        }
        if below_root {
            point("art.descend.entered_child");
        }
        let level = node.level_from(self.depth);
        let word = match bytes.get(level) {
            Some(byte) => node.child(*byte),
            None if level == bytes.len() => node.terminal(),
            // Every key below is longer.
            None => super::word::Word::EMPTY,
        };
        let leaf = match word.child() {
            Child::Node(child) => {
                *self = Self { node: child, above: Some(token), depth: level + 1 };
                child.prefetch(bytes.get(level + 1));
                return Ok(DescentStep::On);
            }
            Child::Record(leaf) => Some(leaf),
            Child::Empty => None,
        };
        if !check!("art.descend.validate_end", M::holds(&token)) {
            return Err(Restart);
        }
        Ok(DescentStep::End(leaf))
    }
}

/// Counts the restarts of one operation, and waits between them.
#[derive(Debug, Default)]
pub struct Attempts {
    restarts: u32,
    backoff: Backoff,
}

impl Attempts {
    /// Counts a restart.
    #[cold]
    pub fn again(&mut self) {
        self.restarts += 1;
        #[cfg(debug_assertions)]
        super::probes::restarts::note();
        self.backoff.wait();
    }

    pub fn are_too_many(&self) -> bool {
        notice!("art.attempts.limit", self.restarts >= LIMIT)
    }
}
