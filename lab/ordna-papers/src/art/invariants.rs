//! Passes over the whole tree: audit, memory usage, and the drop.

#![expect(unsafe_code, reason = "frees the tree")]

use super::node::{Kind, NodeRef, TERMINAL};
use super::protocol::{Latch, Protocol};
use super::tree::{Keep, Sole, Tree};
use super::word::Child;
use ordna_base::index::{InvariantReport, MemoryUsage};
use ordna_base::{Key, Value, Violation};

impl<K: Key + ?Sized, V: Value + ?Sized, P: Protocol> Tree<K, V, P> {
    /// Calls `each` with every node, parents first, and the depth at which its prefix starts.
    fn nodes<'g>(&'g self, keep: &'g impl Keep, mut each: impl FnMut(NodeRef<'g, P>, usize)) {
        let mut left = vec![(self.root(keep), 0)];
        while let Some((node, depth)) = left.pop() {
            node.each(|_, word| {
                if let Child::Node(child) = word.child() {
                    left.push((child, node.level() + 1));
                }
            });
            each(node, depth);
        }
    }

    /// Returns the number of allocated bytes. The result is exact if no thread writes concurrently.
    pub fn memory_usage(&self, keep: &impl Keep) -> MemoryUsage {
        let mut by_kind = [("node4", 0), ("node16", 0), ("node48", 0), ("node256", 0)];
        let mut records = 0;
        self.nodes(keep, |node, _| {
            by_kind[node.kind() as usize].1 += node.size();
            node.each(|_, word| {
                if let Child::Record(leaf) = word.child() {
                    records += Self::size(leaf);
                }
            });
        });
        let mut parts = vec![("records", records)];
        parts.extend(by_kind);
        MemoryUsage { parts }
    }

    /// Checks the invariants of the tree. No thread may write concurrently.
    pub fn check_invariants(&self, keep: &impl Keep) -> Result<InvariantReport, Violation> {
        let mut report = InvariantReport::default();
        let mut broken = None;
        let root = self.root(keep);
        self.nodes(keep, |node, depth| {
            report.nodes += usize::from(node != root);
            let outcome = Self::validate_node(node, depth, node == root, &mut report.entries);
            if let Err(what) = outcome
                && broken.is_none()
            {
                let (kind, level) = (node.kind(), node.level());
                broken = Some(Violation(format!("art: {kind:?} of level {level}: {what}")));
            }
        });
        broken.map_or(Ok(report), Err)
    }

    fn validate_node(
        node: NodeRef<'_, P>,
        depth: usize,
        is_root: bool,
        entries: &mut usize,
    ) -> Result<(), String> {
        let level = node.level();
        if !node.lock().is_idle() {
            return Err("locked or obsolete".to_owned());
        }
        let prefix = node.prefix();
        if depth + prefix.len() != level {
            return Err(format!("its prefix of {} bytes starts at {depth}", prefix.len()));
        }
        let mut positions = Vec::new();
        node.each(|position, _| positions.push(position));
        let (total, counted) = (positions.len(), node.entries());
        if total != counted {
            return Err(format!("{total} entries, {counted} counted"));
        }
        if is_root {
            if node.kind() != Kind::Node256 || level != 0 {
                return Err("is the root".to_owned());
            }
        } else if total < 2 {
            return Err(format!("{total} entries"));
        }
        // Sorted if nodes are changed in place. Otherwise any order without repetition.
        if P::READERS_NOTICE && !positions.is_sorted() {
            return Err(format!("out of order: {positions:?}"));
        }
        positions.sort_unstable();
        if positions.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(format!("a byte twice: {positions:?}"));
        }
        let Some(some) = node.some_leaf() else {
            return if is_root { Ok(()) } else { Err("no record below".to_owned()) };
        };
        let shared = Self::key(some).radix();
        let shared = shared.as_ref().get(..level).ok_or("a record with a shorter key")?;
        let (stored, len) = prefix.stored();
        if shared[depth..].get(..len) != Some(&stored[..len]) {
            return Err(format!("stored prefix {:x?} of {:x?}", &stored[..len], &shared[depth..]));
        }
        let mut outcome = Ok(());
        node.each(|position, word| {
            let leaf = match word.child() {
                Child::Record(leaf) => {
                    *entries += 1;
                    Some(leaf)
                }
                Child::Node(below) if position != TERMINAL => below.some_leaf(),
                Child::Node(_) | Child::Empty => None,
            };
            let fits = leaf.is_some_and(|leaf| {
                let key = Self::key(leaf).radix();
                let key = key.as_ref();
                key.get(..level) == Some(shared)
                    && key.get(level).map_or(TERMINAL, |byte| u16::from(*byte) + 1) == position
            });
            if !fits {
                outcome = Err(format!("what stands at position {position} belongs elsewhere"));
            }
        });
        outcome
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized, P: Protocol> Drop for Tree<K, V, P> {
    fn drop(&mut self) {
        let keep = Sole;
        let mut left = vec![self.root(&keep)];
        while let Some(node) = left.pop() {
            node.each(|_, word| match word.child() {
                Child::Node(child) => left.push(child),
                // SAFETY: `&mut self`, so no other thread can reach the record, and it is visited
                // once.
                Child::Record(leaf) => unsafe { Self::free(leaf) },
                Child::Empty => {}
            });
            // SAFETY: as above; the children of the node are already on the stack.
            unsafe { node.dispose(&keep) };
        }
    }
}
