//! The MetaTrieHT as a search layer of HydraList.
//!
//! # Contract
//! That of [`SearchLayer`]: any number of threads jump, and one at a time applies and publishes,
//! which a lock ensures. A jump takes O(log L), does not write shared memory, and waits for no
//! thread.
//!
//! # Protocol
//! There are two tables (`twin`). [`apply`](SearchLayer::apply) applies its update to the standby
//! table, and [`publish`](SearchLayer::publish) swaps the tables. The next `apply` first waits
//! until no jump uses the new standby, and brings it up to date. A jump is short and calls no code
//! of the caller. If a jump nevertheless stalls, the standby is replaced by a copy of the published
//! table.
//!
//! # Signposts
//! A *signpost* is an anchor address with its anchor. The tables do not contain the whole anchor,
//! but its shortest prefix above the preceding anchor, and one more byte; otherwise each byte of
//! the anchor would need an item. A jump for a key between that prefix and the anchor ends one node
//! too far to the right, which HydraList detects. If a new anchor is in such a gap, the prefix of
//! the next signpost becomes longer. The first signpost has the empty prefix. It always exists, and
//! has no address unless there is an empty anchor.
//!
//! # Memory
//! A removed signpost is retired when it is in neither table. Its address is released by the
//! `publish` that removes it from the published table: a reader that already has the address holds
//! a guard of the list.

#![expect(unsafe_code, reason = "signposts are shared by two tables and by readers")]

use std::borrow::Borrow;
use std::ptr::{self, NonNull};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::switches::Switches;
use super::table::{Table, TableHit, TableLeaf, TableStep};
use super::twin::{Standby, Twin};
use crate::search_layer::{AnchorAddress, LayerStep, SearchLayer};
use ordna_base::Key;
use ordna_base::key::common_prefix;
use ordna_base::reclaim::{Collector, Guard, Retire};
use ordna_base::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use ordna_base::sync::{check, point};

/// Number of checks of a busy standby before it is replaced, because a copy costs as much as there
/// are anchors.
const PATIENCE: usize = 1000;

/// The radix bytes of an anchor, stored in the signpost if they are few.
enum Bytes {
    Few(u8, [u8; 23]),
    Many(Box<[u8]>),
}

impl Bytes {
    fn new(bytes: &[u8]) -> Self {
        let mut few = [0; 23];
        match few.get_mut(..bytes.len()) {
            Some(start) => {
                start.copy_from_slice(bytes);
                Self::Few(bytes.len() as u8, few)
            }
            None => Self::Many(bytes.into()),
        }
    }

    #[inline]
    fn get(&self) -> &[u8] {
        match self {
            Self::Few(length, bytes) => &bytes[..usize::from(*length)],
            Self::Many(bytes) => bytes,
        }
    }
}

/// An anchor address with its anchor, in one cache line.
#[repr(align(64))]
struct Signpost<K: Key + ?Sized> {
    /// The address, or 0 if there is none.
    place: AtomicUsize,
    /// The neighbours, which only the updater uses.
    next: AtomicPtr<Self>,
    prev: AtomicPtr<Self>,
    /// Number of bytes of the anchor that are in the tables.
    length: u16,
    cell: K::Cell,
    bytes: Bytes,
}

impl<K: Key + ?Sized> Retire for Signpost<K> {
    unsafe fn free(memory: *mut Self) {
        // SAFETY: boxed by `Post::new`, and it belongs to the caller alone.
        drop(unsafe { Box::from_raw(memory) });
    }
}

/// A live signpost: it is in a table that the caller may read, or belongs to the updater.
struct Post<K: Key + ?Sized>(NonNull<Signpost<K>>);

impl<K: Key + ?Sized> Clone for Post<K> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<K: Key + ?Sized> Copy for Post<K> {}
impl<K: Key + ?Sized> PartialEq for Post<K> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}
impl<K: Key + ?Sized> std::fmt::Debug for Post<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Post").field(&self.0).finish()
    }
}
// SAFETY: a signpost consists of atomics, and of bytes that never change.
unsafe impl<K: Key + ?Sized> Send for Post<K> {}
// SAFETY: as above.
unsafe impl<K: Key + ?Sized> Sync for Post<K> {}

impl<K: Key + ?Sized> TableLeaf for Post<K> {
    #[inline]
    fn word(self) -> u64 {
        self.0.as_ptr().expose_provenance() as u64
    }
    #[inline]
    unsafe fn from_word(word: u64) -> Self {
        // SAFETY: the caller guarantees that this is the word of a signpost, which is not 0.
        Self(unsafe { NonNull::new_unchecked(ptr::with_exposed_provenance_mut(word as usize)) })
    }
    #[inline]
    fn anchor(&self) -> &[u8] {
        &self.whole()[..usize::from(self.get().length)]
    }
}

impl<K: Key + ?Sized> Post<K> {
    fn new(key: &K, length: usize, place: AnchorAddress) -> Self {
        let post = Self(NonNull::from(Box::leak(Box::new(Signpost {
            place: AtomicUsize::new(place),
            next: AtomicPtr::default(),
            prev: AtomicPtr::default(),
            length: length as u16,
            cell: key.cell(),
            bytes: Bytes::new(key.radix().as_ref()),
        }))));
        // The table stores 48 bits of an address, which is the size of user-space addresses.
        assert!(TableLeaf::word(post) >> 48 == 0, "a signpost at {post:?}, beyond 48 bits");
        post
    }

    #[inline]
    fn get<'a>(self) -> &'a Signpost<K> {
        // SAFETY: the signpost is alive, as the type guarantees.
        unsafe { self.0.as_ref() }
    }

    /// Returns the radix bytes of the whole anchor.
    #[inline]
    fn whole<'a>(self) -> &'a [u8] {
        self.get().bytes.get()
    }

    fn key<'a>(self) -> &'a K {
        // SAFETY: cell and bytes were stored from one key, and never change. The bytes of a key
        // without a tail are not read; for other keys, radix bytes and tail are the same.
        unsafe { K::view(&raw const self.get().cell, self.whole().as_ptr()) }
    }

    #[inline]
    fn place(self) -> Option<AnchorAddress> {
        // Acquire: pairs with the release of `LayerState::insert`, so the contents of the node are
        // visible.
        Some(self.get().place.load(Ordering::Acquire)).filter(|place| *place != 0)
    }

    fn next(self) -> Option<Self> {
        NonNull::new(self.get().next.load(Ordering::Relaxed)).map(Self)
    }

    fn prev(self) -> Option<Self> {
        NonNull::new(self.get().prev.load(Ordering::Relaxed)).map(Self)
    }

    fn link(left: Self, right: Option<Self>) {
        let next = right.map_or(ptr::null_mut(), |right| right.0.as_ptr());
        left.get().next.store(next, Ordering::Relaxed);
        if let Some(right) = right {
            right.get().prev.store(left.0.as_ptr(), Ordering::Relaxed);
        }
    }
}

/// The state that only the updater uses.
struct LayerState<K: Key + ?Sized> {
    first: Post<K>,
    standby: Standby<Table<Post<K>>>,
    /// Updates that the published table has and the standby lacks. They are applied when the
    /// standby is quiet.
    behind: Vec<TableStep<Post<K>>>,
    /// Updates that the standby has and the published table lacks.
    ahead: Vec<TableStep<Post<K>>>,
    /// Addresses that are removed when `ahead` is published.
    leaving: Vec<AnchorAddress>,
    version: u64,
}

/// A search layer of HydraList that uses hashing; see the [module](self).
pub struct TableLayer<K: Key + ?Sized> {
    twin: Twin<Table<Post<K>>>,
    state: Mutex<LayerState<K>>,
    // Declared last, so that it frees retired memory after everything else is dropped.
    collector: Collector,
}

impl<K: Key + ?Sized> std::fmt::Debug for TableLayer<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TableLayer").finish_non_exhaustive()
    }
}

impl<K: Key + ?Sized> Default for TableLayer<K> {
    fn default() -> Self {
        let first = Post::new(K::Owned::default().borrow(), 0, 0);
        let (twin, standby) = Twin::new(Table::new(first, Switches::default()));
        let state = LayerState {
            first,
            standby,
            behind: Vec::new(),
            ahead: Vec::new(),
            leaving: Vec::new(),
            version: 0,
        };
        Self { twin, state: Mutex::new(state), collector: Collector::new() }
    }
}

impl<K: Key + ?Sized> LayerState<K> {
    /// Returns the last signpost whose anchor is not above the key. The standby is up to date.
    fn at_or_before(&self, bytes: &[u8]) -> Post<K> {
        let found = self.standby.peek().search_by_comparing(bytes);
        let mut post = found.map_or(self.first, |found| found.place);
        // The prefix in the table is not above the key, but the anchor may be. Only the first
        // anchor is empty.
        while post.whole() > bytes && post != self.first {
            post = post.prev().unwrap_or(self.first);
        }
        post
    }

    fn step(&mut self, place: Post<K>, came: bool, left: Post<K>, right: Option<Post<K>>) {
        // Usually one byte less than the whole anchor: see `length`.
        let ended = TableLeaf::anchor(&place).len().saturating_sub(1);
        let step = TableStep { place, came, left, right, outer: left.prev(), ended };
        self.version += 1;
        // SAFETY: `TableLayer::begin` has seen that the standby is quiet, and it was not published
        // since.
        unsafe { self.standby.table() }.apply(&step, self.version);
        self.ahead.push(step);
    }

    fn come(&mut self, post: Post<K>, left: Post<K>) {
        let right = left.next();
        self.step(post, true, left, right);
        Post::link(post, right);
        Post::link(left, Some(post));
    }

    fn go(&mut self, post: Post<K>) {
        let Some(left) = post.prev() else { return };
        let right = post.next();
        self.step(post, false, left, right);
        Post::link(left, right);
    }

    /// Returns the number of bytes of an anchor in the tables: one more than distinguish it from
    /// the preceding anchor.
    fn length(left: &[u8], anchor: &[u8]) -> usize {
        (common_prefix(left, anchor) + 2).min(anchor.len())
    }

    fn insert(&mut self, key: &K, place: AnchorAddress) {
        let radix = key.radix();
        let bytes = radix.as_ref();
        let left = self.at_or_before(bytes);
        if left.whole() == bytes && (left != self.first || bytes.is_empty()) {
            // Release: a reader of the address sees the node.
            let before = left.get().place.swap(place, Ordering::AcqRel);
            // Not released at once, because the published table may have the same anchor in an
            // earlier signpost.
            self.leaving.extend(Some(before).filter(|before| *before != 0));
            return;
        }
        let right = left.next();
        // The prefix of the next signpost may be too short to follow this anchor.
        let short = right.filter(|right| TableLeaf::anchor(right) <= bytes);
        if let Some(short) = short {
            self.go(short);
        }
        let before: &[u8] = if left == self.first { &[] } else { left.whole() };
        let post = Post::new(key, Self::length(before, bytes), place);
        self.come(post, left);
        if let Some(short) = short {
            let length = Self::length(bytes, short.whole());
            let place = short.get().place.load(Ordering::Relaxed);
            self.come(Post::new(short.key(), length, place), post);
        }
    }

    fn remove(&mut self, key: &K, place: AnchorAddress) {
        let radix = key.radix();
        let bytes = radix.as_ref();
        let post = self.at_or_before(bytes);
        if post.place() != Some(place) || post.whole() != bytes {
            return;
        }
        if post == self.first {
            post.get().place.store(0, Ordering::Release);
        } else {
            self.go(post);
        }
        self.leaving.push(place);
    }
}

impl<K: Key + ?Sized> TableLayer<K> {
    fn state(&self) -> MutexGuard<'_, LayerState<K>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the standby is quiet, and brings it up to date.
    fn begin(&self, state: &mut LayerState<K>) {
        if !state.ahead.is_empty() {
            return;
        }
        for _ in 0..PATIENCE {
            if state.standby.is_quiet() {
                break;
            }
            // A thread that leaves its section reclaims its share of the garbage, which sets the
            // watch.
            drop(self.collector.pin());
            std::thread::yield_now();
        }
        let guard = self.collector.pin();
        if state.standby.is_quiet() {
            let mut version = state.version - state.behind.len() as u64;
            for step in &state.behind {
                version += 1;
                // SAFETY: the standby is quiet.
                unsafe { state.standby.table() }.apply(step, version);
            }
        } else {
            // The copy is up to date.
            self.twin.renew(&mut state.standby, &guard);
        }
        for step in state.behind.drain(..).filter(|step| !step.came) {
            // SAFETY: the signpost is neither in a table nor in the list, and is retired once, by
            // the update that removed it.
            unsafe { guard.retire(step.place.0.as_ptr()) };
        }
    }

    /// Searches by tags, and again without tags if a tag was wrong.
    #[inline]
    fn settle(
        table: &Table<Post<K>>,
        found: Option<TableHit<Post<K>>>,
        bytes: &[u8],
    ) -> Option<AnchorAddress> {
        let agrees =
            |found: &TableHit<Post<K>>| check!("wormhole.layer.uncompared", found.agrees(bytes));
        let found = found.filter(agrees).or_else(|| table.search_by_comparing(bytes))?;
        found.place.place()
    }
}

// SAFETY: jumps find addresses in the published table. `publish` releases an address when no
// published table has it, and the guards of jumps in the older table are still held.
unsafe impl<K: Key + ?Sized> SearchLayer<K> for TableLayer<K> {
    fn jump(&self, key: &K) -> Option<AnchorAddress> {
        let _guard: Guard<'_> = self.collector.pin();
        // SAFETY: the guard was taken before, and is still held.
        let table = unsafe { self.twin.read() };
        point("wormhole.layer.table");
        let radix = key.radix();
        Self::settle(table, table.search(radix.as_ref()), radix.as_ref())
    }

    fn jump_many<Q: Borrow<K>>(&self, keys: &[Q], places: &mut [Option<AnchorAddress>]) {
        const GROUP: usize = 16;
        let _guard: Guard<'_> = self.collector.pin();
        // SAFETY: the guard was taken before, and is still held.
        let table = unsafe { self.twin.read() };
        for (keys, places) in keys.chunks(GROUP).zip(places.chunks_mut(GROUP)) {
            let mut radixes: [Option<K::Radix<'_>>; GROUP] = [None; GROUP];
            for (radix, key) in radixes.iter_mut().zip(keys) {
                *radix = Some(key.borrow().radix());
            }
            let bytes = radixes.each_ref().map(|radix| radix.as_ref().map(AsRef::as_ref));
            let found = table.search_many(bytes);
            for (found, bytes) in found.iter().zip(&bytes) {
                if let (Some(found), Some(_)) = (found, bytes) {
                    ordna_base::simd::prefetch(found.place.0.as_ptr());
                    ordna_base::simd::prefetch(found.witness().0.as_ptr());
                }
            }
            for ((place, found), bytes) in places.iter_mut().zip(found).zip(bytes) {
                *place = bytes.and_then(|bytes| Self::settle(table, found, bytes));
            }
        }
    }

    unsafe fn apply(&self, anchor: &K, step: LayerStep) -> Option<AnchorAddress> {
        let mut state = self.state();
        self.begin(&mut state);
        match step {
            LayerStep::Insert(place) => state.insert(anchor, place),
            LayerStep::Remove(place) => state.remove(anchor, place),
        }
        None
    }

    fn publish(&self, mut left: impl FnMut(AnchorAddress)) {
        let mut state = self.state();
        let state = &mut *state;
        if !check!("wormhole.layer.unpublished", state.ahead.is_empty()) {
            self.twin.publish(&mut state.standby, &self.collector.pin());
            std::mem::swap(&mut state.ahead, &mut state.behind);
        }
        state.leaving.drain(..).for_each(&mut left);
    }

    fn for_each(&self, mut each: impl FnMut(&K, AnchorAddress)) {
        let state = self.state();
        for post in std::iter::successors(Some(state.first), |post| post.next()) {
            if let Some(place) = post.place() {
                each(post.key(), place);
            }
        }
    }

    fn memory_usage(&self) -> usize {
        let state = self.state();
        let posts = std::iter::successors(Some(state.first), |post| post.next()).map(|post| {
            let apart = if let Bytes::Many(bytes) = &post.get().bytes { bytes.len() } else { 0 };
            size_of::<Signpost<K>>() + apart
        });
        let _guard = self.collector.pin();
        // SAFETY: the guard was taken before, and is still held.
        let published = unsafe { self.twin.read() };
        posts.sum::<usize>() + published.bytes() + state.standby.peek().bytes()
    }

    /// Compares both tables with the signposts, each of them up to the last update that it has.
    fn check_invariants(&self) -> Result<(), String> {
        let state = self.state();
        let posts: Vec<_> = std::iter::successors(Some(state.first), |post| post.next()).collect();
        for pair in posts.windows(2) {
            let [left, post] = [pair[0], pair[1]];
            let anchor = TableLeaf::anchor(&post);
            if post.prev() != Some(left) {
                return Err(format!("the link back of {anchor:?} is wrong"));
            }
            // The first signpost represents all keys below the second.
            if left != state.first && anchor <= left.whole() || anchor.is_empty() {
                return Err(format!("{anchor:?} is not above the anchor before it"));
            }
        }
        let _guard = self.collector.pin();
        // SAFETY: the guard was taken before, and is still held.
        let published = unsafe { self.twin.read() };
        let tables = [(published, &state.ahead), (state.standby.peek(), &state.behind)];
        for (table, lacks) in tables {
            let (mut table, version) = (table.clone(), state.version - lacks.len() as u64);
            for (step, number) in lacks.iter().zip(version + 1..) {
                table.apply(step, number);
            }
            table.check_invariants(&posts)?;
        }
        Ok(())
    }
}

impl<K: Key + ?Sized> Drop for TableLayer<K> {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let gone = state.behind.drain(..).chain(state.ahead.drain(..));
        let mut posts: Vec<_> = gone.filter(|step| !step.came).map(|step| step.place).collect();
        posts.extend(std::iter::successors(Some(state.first), |post| post.next()));
        // SAFETY: no thread jumps any more. A signpost is in the list, or once in the updates that
        // removed it, unless it already belongs to the collector.
        unsafe {
            self.twin.free(&state.standby);
            posts.into_iter().for_each(|post| Signpost::free(post.0.as_ptr()));
        }
    }
}
