//! Scans of the storage layer in both directions, concurrent with owners that change it.
//!
//! The entries of a node are copied in one validated section and visited afterwards. Ascending
//! scans continue at the node that was next in that section or, if it has been absorbed since, by
//! key at its anchor. Descending scans collect the nodes from the layer's place up to the bound.
//! They visit the last one only if it still reaches the bound; otherwise the nodes that were split
//! off are scanned first. So each key is returned at most once, and no key that stays is skipped.

#![expect(unsafe_code, reason = "entries of validated nodes")]

use std::ops::{Bound, ControlFlow};

use super::node::{CAPACITY, DataEntry, NodeRef};
use super::storage::{Contended, Storage};
use ordna_base::index::{is_above, is_below};
use ordna_base::reclaim::Guard;
use ordna_base::sync::{Backoff, check, notice, point, yield_now};
use ordna_base::{Key, Value};

/// The entries of a node at one moment, and its successor at that time.
struct Section<K: Key + ?Sized, V: Value + ?Sized> {
    entries: Vec<DataEntry<K, V>>,
    next: Option<NodeRef<K, V>>,
}

impl<K: Key + ?Sized, V: Value + ?Sized> Section<K, V> {
    fn new() -> Self {
        Self { entries: Vec::with_capacity(CAPACITY), next: None }
    }

    /// Copies the node. Returns `false` if it was absorbed.
    fn copy(&mut self, node: NodeRef<K, V>) -> bool {
        let mut backoff = Backoff::new();
        loop {
            match node.lock.try_read() {
                Err(_) => return false,
                Ok(None) => backoff.wait(),
                Ok(Some(version)) => {
                    self.entries.clear();
                    self.entries.extend((0..node.len()).map(|at| node.entry(at)));
                    point("pi.scan.before_link");
                    self.next = node.next();
                    if check!("pi.scan.unvalidated", node.lock.validate(version)) {
                        return true;
                    }
                    backoff.wait();
                }
            }
        }
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> Storage<K, V> {
    /// Visits the entries within the bounds in ascending order.
    pub fn ascend(
        &self,
        lower: Bound<&K>,
        upper: Bound<&K>,
        guard: &Guard<'_>,
        mut visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) {
        let mut section = Section::new();
        let mut node = match lower {
            Bound::Unbounded => self.first(),
            Bound::Included(key) | Bound::Excluded(key) => self.covering(key, guard),
        };
        // Everything below this anchor has been visited. It only increases.
        let mut from: Option<NodeRef<K, V>> = None;
        loop {
            if !section.copy(node) {
                // Everything below its anchor is done, or it is the node that the lower bound led
                // to.
                node = self.covering(node.anchor(), guard);
                point("pi.scan.found_again");
                continue;
            }
            let mut ended = false;
            for entry in &section.entries {
                // SAFETY: the section was validated under the guard.
                let flow = unsafe {
                    entry.with_key(|key| {
                        let done = from.is_some_and(|from| key < from.anchor());
                        if is_below(key, lower) || notice!("pi.scan.repeats", done) {
                            return ControlFlow::Continue(());
                        }
                        if is_above(key, upper) {
                            return ControlFlow::Break(());
                        }
                        entry.with_value(|value| visit(key, value))
                    })
                };
                ended |= flow.is_break();
                if ended {
                    return;
                }
            }
            node = match section.next {
                Some(next) if !is_above(next.anchor(), upper) => next,
                _ => return,
            };
            // If a node was split after `covering` returned it, its successor may be before the
            // position of the scan.
            let is_ahead = from.is_none_or(|from| from.anchor() < node.anchor());
            if check!("pi.scan.goes_back", is_ahead) {
                from = Some(node);
            }
            if let Some(behind) = node.next() {
                behind.prefetch();
            }
            point("pi.scan.before_next");
        }
    }

    /// Visits the entries within the bounds in descending order.
    pub fn descend(
        &self,
        lower: Bound<&K>,
        upper: Bound<&K>,
        guard: &Guard<'_>,
        mut visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) {
        let mut section = Section::new();
        // The remaining entries are below this node's anchor or, if it is `None`, below the upper
        // bound.
        let mut limit: Option<NodeRef<K, V>> = None;
        let layer = self.layer(guard);
        let mut chain: Vec<NodeRef<K, V>> = Vec::new();
        loop {
            let is_left = |anchor: &K| match limit {
                Some(limit) => anchor < limit.anchor(),
                None => !is_above(anchor, upper),
            };
            if chain.is_empty() {
                let mut place = match (limit, upper) {
                    (Some(limit), _) => layer.route(limit.anchor(), self.set),
                    (None, Bound::Included(key) | Bound::Excluded(key)) => {
                        layer.route(key, self.set)
                    }
                    (None, Bound::Unbounded) => layer.len() - 1,
                };
                while place > 0
                    && (layer.node(place).lock.is_obsolete()
                        || !is_left(layer.node(place).anchor()))
                {
                    place -= 1;
                }
                chain.push(layer.node(place));
            }
            let Some(&node) = chain.last() else { return };
            if !section.copy(node) {
                chain.clear();
                continue;
            }
            if let Some(next) = section.next
                && notice!("pi.scan.skips_split", is_left(next.anchor()))
            {
                chain.push(next);
                continue;
            }
            for entry in section.entries.iter().rev() {
                // SAFETY: the section was validated under the guard.
                let flow = unsafe {
                    entry.with_key(|key| {
                        if is_above(key, upper) || limit.is_some_and(|end| key >= end.anchor()) {
                            return ControlFlow::Continue(());
                        }
                        if is_below(key, lower) {
                            return ControlFlow::Break(());
                        }
                        entry.with_value(|value| visit(key, value))
                    })
                };
                if flow.is_break() {
                    return;
                }
            }
            if node == self.first() || is_below(node.anchor(), lower) {
                return;
            }
            limit = Some(node);
            chain.pop();
            point("pi.scan.before_next");
        }
    }

    /// Returns the live node whose range contains the key, or contained it a moment ago.
    fn covering(&self, key: &K, guard: &Guard<'_>) -> NodeRef<K, V> {
        loop {
            // Uses the current layer, because a newer one leads to shorter scans.
            let layer = self.layer(guard);
            let place = layer.route(key, self.set);
            // Without validation, because a scan may begin at any live node whose anchor is not
            // above the key.
            match self.read_at(key, layer, place, |node, _| Some(node)) {
                Ok(node) => return node,
                // Writers make progress: their sections are short. A scan cannot take a turn,
                // because its closure might be blocking the current one.
                Err(Contended) => yield_now(),
            }
        }
    }
}
