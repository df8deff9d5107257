//! The audit of the whole structure, for tests.

#![expect(unsafe_code, reason = "looks into entries")]

use std::collections::HashMap;

use super::list::DataList;
use super::node::{Node, NodeSearch};
use crate::search_layer::{AnchorAddress, SearchLayer};
use ordna_base::index::InvariantReport;
use ordna_base::{Key, Value, Violation};

/// Checks nodes, links, bounds, references and counts. Every replica of the search layer must
/// contain exactly the anchors of the live nodes, except that of the first one.
pub fn check_invariants<K, V, L, const N: usize>(
    list: &DataList<K, V, L, N>,
) -> Result<InvariantReport, Violation>
where
    K: Key + ?Sized,
    V: Value + ?Sized,
    L: SearchLayer<K>,
{
    list.settle();
    let guard = list.collector.pin();
    let broken = |at: usize, what: String| Violation(format!("node {at}: {what}"));
    let mut entries = 0;
    let mut live: HashMap<AnchorAddress, &Node<K, V, N>> = HashMap::new();
    let mut before: Option<&Node<K, V, N>> = None;
    for (at, node) in list.nodes(&guard).enumerate() {
        inside(node, list.leaf).map_err(|what| broken(at, what))?;
        if node.prev.load(std::sync::atomic::Ordering::Relaxed).cast_const()
            != before.map_or(std::ptr::null(), std::ptr::from_ref)
        {
            return Err(broken(at, "`prev` is not the predecessor".to_owned()));
        }
        if before.is_some_and(|before| {
            before.anchor() >= node.anchor() || before.upper_head() != node.anchor_head()
        }) {
            return Err(broken(at, "the anchor does not follow its predecessor's".to_owned()));
        }
        let replicas = if before.is_some() { list.updates.replicas() } else { 0 };
        // Dead nodes that are being removed may refer to this one.
        if node.references() < 1 + replicas {
            return Err(broken(at, format!("{} references", node.references())));
        }
        if before.is_some() {
            live.insert(node.place(), node);
        }
        entries += node.len();
        before = Some(node);
    }
    if !before.is_some_and(|last| std::ptr::eq(last, list.last(&guard))) {
        return Err(Violation("the last node is another one".to_owned()));
    }
    for (replica, layer) in list.updates.layers().enumerate() {
        layer.check_invariants().map_err(|why| Violation(format!("replica {replica}: {why}")))?;
        let mut seen = 0;
        let mut wrong = None;
        layer.for_each(|anchor, place| {
            seen += 1;
            if live.get(&place).is_none_or(|node| node.anchor() != anchor) {
                wrong = Some(anchor.to_owned());
            }
        });
        if let Some(anchor) = wrong {
            return Err(Violation(format!("replica {replica} leads {anchor:?} to no live node")));
        }
        if seen != live.len() {
            let nodes = live.len();
            return Err(Violation(format!("replica {replica}: {seen} anchors of {nodes} nodes")));
        }
    }
    let counted = list.len.sum();
    if entries != counted {
        return Err(Violation(format!("{entries} entries, {counted} counted")));
    }
    Ok(InvariantReport { entries, nodes: live.len() + 1 })
}

/// Checks the contents of one node.
fn inside<K, V, const N: usize>(node: &Node<K, V, N>, leaf: NodeSearch) -> Result<(), String>
where
    K: Key + ?Sized,
    V: Value + ?Sized,
{
    if node.is_dead() {
        return Err("dead, and in the list".to_owned());
    }
    // SAFETY: the caller has a guard, and no thread writes, so the successor of a live node is
    // alive.
    let next = unsafe { node.next.load(std::sync::atomic::Ordering::Acquire).as_ref() };
    let mut wrong = None;
    let mut before: Option<(super::entry::NodeEntry<K, V>, usize)> = None;
    node.for_each(leaf, |at, entry| {
        // SAFETY: entries of live nodes are alive.
        let (inside, print) = unsafe {
            entry.with_key(|key| {
                let head = key.head();
                let inside = node.compare_anchor(head, key).is_ge()
                    && next.is_none_or(|next| node.compare_upper(head, key, next).is_lt());
                (inside && head == entry.head(), super::entry::fingerprint(key, head))
            })
        };
        if !inside {
            wrong = Some(format!("slot {at} holds a key outside of the range"));
        }
        if leaf != NodeSearch::Sorted && node.fingerprint_at(at) != print {
            wrong = Some(format!("slot {at} has another key's fingerprint"));
        }
        if let Some((before, before_at)) = before {
            // SAFETY: as above.
            if !unsafe { before.order(entry) }.is_lt() {
                wrong = Some(format!("slot {at} holds a key that is there twice"));
            }
            if leaf == NodeSearch::Sorted && before_at > at {
                wrong = Some(format!("slot {at} is out of order"));
            }
        }
        before = Some((entry, at));
    });
    wrong.map_or(Ok(()), Err)
}
