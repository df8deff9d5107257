//! Leaves that contain objects in order. Objects are found by key or by position.
//!
//! # Contract
//! The caller holds one lock during every call, and no call runs code of Python's users. Keys are
//! compared here only if all have one native type. Objects that are removed are returned to the
//! caller, which drops them after it has released the lock.

use pyo3::prelude::*;

use super::head::Kind;

/// Number of entries of a leaf after a split. A leaf with twice as many is split, and two leaves
/// that have fewer together are merged. The 512 words of a leaf fit into the first-level cache.
pub const LOAD: usize = 256;

pub type Object = Py<PyAny>;

/// A leaf, which consists of columns of equal length.
#[derive(Default)]
pub struct Leaf {
    /// Empty if Python compares the keys.
    heads: Vec<u64>,
    /// The keys that the key function returned for the items. Empty without a key function.
    keys: Vec<Object>,
    items: Vec<Object>,
}

impl Leaf {
    fn split_off(&mut self, at: usize) -> Self {
        let heads = self.heads.split_off(at.min(self.heads.len()));
        let keys = self.keys.split_off(at.min(self.keys.len()));
        Self { heads, keys, items: self.items.split_off(at) }
    }

    fn append(&mut self, mut other: Self) {
        self.heads.append(&mut other.heads);
        self.keys.append(&mut other.keys);
        self.items.append(&mut other.items);
    }

    fn key(&self, at: usize) -> &Object {
        self.keys.get(at).unwrap_or(&self.items[at])
    }
}

/// An item, with its key if there is a key function.
pub struct Entry {
    pub head: u64,
    pub key: Option<Object>,
    pub item: Object,
}

/// A leaf and an offset in it, which are valid as long as the version is this one.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub leaf: usize,
    pub offset: usize,
    pub version: u64,
}

/// A key to search for.
pub struct Probe<'a, 'py> {
    pub kind: Kind,
    pub head: u64,
    pub key: &'a Bound<'py, PyAny>,
}

/// The leaves of one list.
pub struct Leaves {
    leaves: Vec<Leaf>,
    /// The last head of each leaf. Empty if Python compares the keys.
    tops: Vec<u64>,
    /// A Fenwick tree of the lengths of the leaves. Node `i` contains the sum of consecutive
    /// leaves, the last of which is leaf `i - 1`. Their number is the lowest set bit of `i`.
    sums: Vec<usize>,
    len: usize,
    pub kind: Kind,
    pub load: usize,
    /// Number of changes that were made.
    pub version: u64,
}

impl Leaves {
    pub fn new() -> Self {
        let (leaves, tops, sums) = (Vec::new(), Vec::new(), vec![0]);
        Self { leaves, tops, sums, len: 0, kind: Kind::Any, load: LOAD, version: 0 }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn leaf_count(&self) -> usize {
        self.leaves.len()
    }

    pub fn leaf_len(&self, leaf: usize) -> usize {
        self.leaves[leaf].items.len()
    }

    /// Replaces all entries by sorted ones, and returns the old leaves.
    pub fn fill(&mut self, kind: Kind, entries: Vec<Entry>) -> Vec<Leaf> {
        self.version += 1;
        let old = std::mem::take(&mut self.leaves);
        (self.kind, self.len) = (kind, entries.len());
        // Leaves of one and a half `load` accept many inserts before they are split.
        let size = (self.load + self.load / 2).max(1);
        let mut entries = entries.into_iter();
        while entries.len() > 0 {
            let count = size.min(entries.len());
            let mut leaf = Leaf { items: Vec::with_capacity(count), ..Leaf::default() };
            if kind != Kind::Any {
                leaf.heads.reserve_exact(count);
            }
            for Entry { head, key, item } in entries.by_ref().take(count) {
                if kind != Kind::Any {
                    leaf.heads.push(head);
                }
                leaf.keys.extend(key);
                leaf.items.push(item);
            }
            self.leaves.push(leaf);
        }
        self.rebuild();
        old
    }

    /// Removes and returns all leaves.
    pub fn take(&mut self) -> Vec<Leaf> {
        self.fill(Kind::Any, Vec::new())
    }

    /// Lets Python compare the keys from now on.
    pub fn degrade(&mut self) {
        self.kind = Kind::Any;
        self.tops = Vec::new();
        self.leaves.iter_mut().for_each(|leaf| leaf.heads = Vec::new());
    }

    fn rebuild(&mut self) {
        self.tops.clear();
        if self.kind != Kind::Any {
            self.tops.extend(self.leaves.iter().filter_map(|leaf| leaf.heads.last()));
        }
        self.sums.clear();
        self.sums.push(0);
        self.sums.extend(self.leaves.iter().map(|leaf| leaf.items.len()));
        for at in 1..self.sums.len() {
            let above = at + (at & at.wrapping_neg());
            if above < self.sums.len() {
                self.sums[above] += self.sums[at];
            }
        }
    }

    /// Returns the number of entries before a leaf.
    fn before(&self, mut leaf: usize) -> usize {
        let mut sum = 0;
        while leaf > 0 {
            sum += self.sums[leaf];
            leaf &= leaf - 1;
        }
        sum
    }

    pub fn position(&self, place: Place) -> usize {
        self.before(place.leaf) + place.offset
    }

    /// Returns the place of a position, which must not be greater than `len`.
    pub fn locate(&self, position: usize) -> Place {
        let (mut leaf, mut offset) = (0, position);
        let mut step = self.sums.len().next_power_of_two() / 2;
        while step > 0 {
            if let Some(sum) = self.sums.get(leaf + step)
                && *sum <= offset
            {
                (leaf, offset) = (leaf + step, offset - sum);
            }
            step /= 2;
        }
        Place { leaf, offset, version: self.version }
    }

    /// Returns the key at a place.
    pub fn key(&self, leaf: usize, offset: usize) -> &Object {
        self.leaves[leaf].key(offset)
    }

    /// Finds the first entry whose key is at least the probe or, if `right`, greater than it.
    /// Returns `None` if only Python can compare them.
    pub fn find(&self, probe: &Probe<'_, '_>, right: bool) -> Option<Place> {
        if self.kind == Kind::Any || self.kind != probe.kind {
            return (self.len == 0).then_some(Place { leaf: 0, offset: 0, version: self.version });
        }
        let py = probe.key.py();
        let is_before = |head: u64, key: &Object| {
            if head != probe.head {
                return head < probe.head;
            }
            let key = key.bind(py);
            // These are objects of native types, so comparing them neither fails nor runs other
            // code.
            if right {
                key.is(probe.key) || !probe.key.lt(key).unwrap_or(false)
            } else {
                !key.is(probe.key) && key.lt(probe.key).unwrap_or(false)
            }
        };
        let leaf = first(self.tops.len(), |leaf| {
            let last = &self.leaves[leaf];
            is_before(self.tops[leaf], last.key(last.items.len() - 1))
        });
        let offset = match self.leaves.get(leaf) {
            Some(at) => first(at.heads.len(), |offset| is_before(at.heads[offset], at.key(offset))),
            None => 0,
        };
        Some(Place { leaf, offset, version: self.version })
    }

    /// Inserts an entry at a place, which must be of this version and must keep the order.
    pub fn insert(&mut self, place: Place, kind: Kind, entry: Entry) {
        self.version += 1;
        if self.len == 0 {
            self.leaves = vec![Leaf::default()];
            self.kind = kind;
        } else if self.kind != kind && self.kind != Kind::Any {
            self.degrade();
        }
        let Place { mut leaf, mut offset, .. } = place;
        if leaf == self.leaves.len() {
            leaf -= 1;
            offset = self.leaf_len(leaf);
        }
        let at = &mut self.leaves[leaf];
        if self.kind != Kind::Any {
            at.heads.insert(offset, entry.head);
        }
        if let Some(key) = entry.key {
            at.keys.insert(offset, key);
        }
        at.items.insert(offset, entry.item);
        self.len += 1;
        if at.items.len() >= self.load * 2 && at.items.len() > 1 {
            let upper = at.split_off(at.items.len() / 2);
            self.leaves.insert(leaf + 1, upper);
            self.rebuild();
        } else if self.len == 1 {
            self.rebuild();
        } else {
            self.resized(leaf, 1);
        }
    }

    /// Removes the entry at a place.
    pub fn remove(&mut self, leaf: usize, offset: usize) -> (Option<Object>, Object) {
        self.version += 1;
        let at = &mut self.leaves[leaf];
        if !at.heads.is_empty() {
            at.heads.remove(offset);
        }
        let key = (!at.keys.is_empty()).then(|| at.keys.remove(offset));
        let item = at.items.remove(offset);
        self.len -= 1;
        let left = at.items.len();
        if left == 0 {
            self.leaves.remove(leaf);
            self.rebuild();
        } else if left * 2 < self.load && self.merge(leaf) {
            self.rebuild();
        } else {
            self.resized(leaf, -1);
        }
        (key, item)
    }

    /// Removes the entries from position `begin` to before `end`, and returns them.
    pub fn remove_all(&mut self, begin: usize, end: usize) -> Vec<Leaf> {
        self.version += 1;
        let mut gone = Vec::new();
        let (low, high) = (self.locate(begin), self.locate(end));
        if high.offset > 0 {
            let rest = self.leaves[high.leaf].split_off(high.offset);
            self.leaves.insert(high.leaf + 1, rest);
        }
        let last = high.leaf + usize::from(high.offset > 0);
        let mut from = low.leaf;
        if low.offset > 0 {
            gone.push(self.leaves[low.leaf].split_off(low.offset));
            from += 1;
        }
        // If both positions are in the same leaf, its entries were removed above.
        if from <= last {
            gone.extend(self.leaves.drain(from..last));
        }
        self.len -= end - begin;
        self.leaves.retain(|leaf| !leaf.items.is_empty());
        self.merge(low.leaf);
        self.rebuild();
        gone
    }

    /// Merges a leaf with one of its neighbours, if they are small.
    fn merge(&mut self, leaf: usize) -> bool {
        for (low, high) in [(leaf, leaf + 1), (leaf.wrapping_sub(1), leaf)] {
            let [Some(a), Some(b)] = [low, high].map(|at| self.leaves.get(at)) else { continue };
            if a.items.len() + b.items.len() < self.load {
                let upper = self.leaves.remove(high);
                self.leaves[low].append(upper);
                return true;
            }
        }
        false
    }

    /// Updates the tops and the sums after the length of a leaf has changed by `change`.
    fn resized(&mut self, leaf: usize, change: isize) {
        if let Some(top) = self.leaves[leaf].heads.last() {
            self.tops[leaf] = *top;
        }
        let mut at = leaf + 1;
        while at < self.sums.len() {
            self.sums[at] = self.sums[at].wrapping_add_signed(change);
            at += at & at.wrapping_neg();
        }
    }

    /// Calls `each` with the key and the item at each position from `begin` to before `end`, in
    /// order.
    pub fn each(&self, begin: usize, end: usize, mut each: impl FnMut(&Object, &Object)) {
        let Place { mut leaf, mut offset, .. } = self.locate(begin);
        let mut left = end.saturating_sub(begin);
        while left > 0 {
            let at = &self.leaves[leaf];
            let stop = (offset + left).min(at.items.len());
            for index in offset..stop {
                each(at.key(index), &at.items[index]);
            }
            left -= stop - offset;
            (leaf, offset) = (leaf + 1, 0);
        }
    }

    /// Checks the structure, except for the order of keys that Python compares.
    pub fn check(&self, py: Python<'_>, has_keys: bool) -> Result<(), &'static str> {
        let mut sum = 0;
        for (number, leaf) in self.leaves.iter().enumerate() {
            let len = leaf.items.len();
            let heads = if self.kind == Kind::Any { 0 } else { len };
            if len == 0 || leaf.heads.len() != heads || self.before(number) != sum {
                return Err("a leaf is empty, or its columns or sums are wrong");
            }
            if leaf.keys.len() != if has_keys { len } else { 0 } {
                return Err("a leaf has no column of keys, or one too many");
            }
            if len >= self.load * 2 && len > 1 {
                return Err("a leaf is too long");
            }
            if self.kind != Kind::Any && leaf.heads.last() != self.tops.get(number) {
                return Err("the last word of a leaf is not known");
            }
            if (0..heads).any(|at| super::head::head(leaf.key(at).bind(py)).1 != leaf.heads[at]) {
                return Err("a word is not that of its key");
            }
            sum += len;
        }
        if sum == self.len { Ok(()) } else { Err("the length is not the sum of the leaves") }
    }
}

/// Returns the first of `len` positions for which `is_before` is false, or `len` if there is none.
pub fn first(len: usize, is_before: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, len);
    while low < high {
        let middle = low + (high - low) / 2;
        if is_before(middle) { low = middle + 1 } else { high = middle }
    }
    low
}
