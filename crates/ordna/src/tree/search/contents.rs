//! A copy of a search-layer node's contents, in which a writer rearranges them.
//!
//! # Contract
//! The copy belongs to one writer. Its separators are the node's, which the writers' lock keeps
//! alive.

use super::counts::ChildCount;
use ordna_base::Key;
use ordna_base::key::{common_prefix, head_at};
use ordna_base::record::Record;

/// A separator: a record with a copy of its bytes. Integers have none, because their heads are the
/// keys.
pub(super) type Separator<K> = Record<K, u64>;

/// A separator that is about to be put into a node.
pub(super) struct SeparatorEntry<K: Key + ?Sized> {
    pub(super) head: u64,
    pub(super) separator: Option<Separator<K>>,
}

/// Returns the bytes of a byte-string key. Not called for integers.
pub(super) fn bytes_of<K: Key + ?Sized>(key: &K) -> &[u8] {
    key.tail()
}

impl<K: Key + ?Sized> SeparatorEntry<K> {
    pub(super) fn new(low_fence: &K) -> Self {
        let separator = (!K::HEAD_IS_KEY).then(|| Separator::new(low_fence, &0));
        Self { head: low_fence.head(), separator }
    }

    pub(super) fn key(&self) -> Option<&K> {
        // SAFETY: the separator belongs to the writer, or the writers' lock keeps it alive.
        let key = self.separator.as_ref().map(|separator| unsafe { separator.key() });
        key.or_else(|| K::from_head(&self.head))
    }
}

/// The contents of a node while a writer rearranges them.
pub(super) struct Contents<K: Key + ?Sized> {
    pub(super) heads: Vec<u64>,
    pub(super) separators: Vec<Option<Separator<K>>>,
    pub(super) children: Vec<usize>,
    /// The counts of the node's children, or empty if it has none.
    pub(super) counts: Vec<ChildCount>,
}

impl<K: Key + ?Sized> Default for Contents<K> {
    fn default() -> Self {
        Self { heads: Vec::new(), separators: Vec::new(), children: Vec::new(), counts: Vec::new() }
    }
}

impl<K: Key + ?Sized> Contents<K> {
    pub(super) fn put(&mut self, at: usize, boundary: &SeparatorEntry<K>, child: usize) {
        self.heads.insert(at, boundary.head);
        self.separators.insert(at, boundary.separator);
        self.children.insert(at + 1, child);
        if !self.counts.is_empty() {
            self.counts.insert(at + 1, ChildCount::default());
        }
    }

    pub(super) fn take(&mut self, at: usize) -> SeparatorEntry<K> {
        let below = at.saturating_sub(1);
        self.children.remove(at);
        if !self.counts.is_empty() {
            self.counts.remove(at);
        }
        SeparatorEntry { head: self.heads.remove(below), separator: self.separators.remove(below) }
    }

    /// Splits after `children`. Returns what stays, the separator in between, and what moves to the
    /// right.
    pub(super) fn split(mut self, children: usize) -> (Self, SeparatorEntry<K>, Self) {
        let right = Self {
            heads: self.heads.split_off(children),
            separators: self.separators.split_off(children),
            children: self.children.split_off(children),
            counts: self.counts.split_off(children.min(self.counts.len())),
        };
        let boundary = SeparatorEntry {
            head: self.heads.pop().unwrap_or(0),
            separator: self.separators.pop().flatten(),
        };
        (self, boundary, right)
    }

    /// Appends the contents of the right neighbour. `boundary` is the separator between both nodes.
    pub(super) fn append(&mut self, boundary: &SeparatorEntry<K>, mut right: Self) {
        if !self.counts.is_empty() || !right.counts.is_empty() {
            self.counts.resize(self.children.len(), ChildCount::default());
            right.counts.resize(right.children.len(), ChildCount::default());
        }
        self.heads.push(boundary.head);
        self.separators.push(boundary.separator);
        self.heads.extend(right.heads);
        self.separators.extend(right.separators);
        self.children.extend(right.children);
        self.counts.extend(right.counts);
    }

    /// Returns the length of the separators' common prefix, their heads after the prefix, and the
    /// eight bytes after the heads.
    pub(super) fn normalized(&self) -> (usize, Vec<u64>, Vec<u64>) {
        // SAFETY: separators of the node, under the writers' lock.
        let bytes = |separator: &Separator<K>| bytes_of(unsafe { separator.key::<'_>() });
        let (Some(Some(first)), Some(Some(last))) =
            (self.separators.first(), self.separators.last())
        else {
            return (0, self.heads.clone(), Vec::new());
        };
        // Separators ascend, so what the first and the last share is common to all.
        let prefix = common_prefix(bytes(first), bytes(last));
        let at = |at| self.separators.iter().flatten().map(move |one| head_at(bytes(one), at));
        (prefix, at(prefix).collect(), at(prefix + 8).collect())
    }
}
