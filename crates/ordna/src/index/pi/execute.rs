//! The executor: sorted queries, cut at interceptions, traversed in groups.
//!
//! # Protocol
//! A batch is sorted by key, queries of one key in the order of submission. It is cut into pieces of
//! about equal numbers of queries, and each cut is moved down to the *interception* of its first
//! query, the data node to which the layer routes it (Definition 4): all queries from that node's
//! anchor on go to the piece behind (Algorithm 3). So a piece owns the stretch of the list from its
//! first interception up to that of the next piece, and no node is touched by two threads. The
//! paper's threads find all interceptions first and then hand queries to their neighbours by
//! message; here each cut is found by routing one key, before the work is given out, so there is no
//! barrier between traversing and executing.
//!
//! A piece is worked on in groups: all keys of a group go one level down before any goes the next,
//! and what each needs there is fetched meanwhile (§4.3.4).
//!
//! Source: the PI paper, §3.2 and §4.3.4.

#![expect(unsafe_code, reason = "ownership is what `Owner` asks for, and it is made here")]

use std::collections::VecDeque;

use super::crew::Turn;
use super::layer::Layer;
use super::node::NodeRef;
use super::sort::Item;
use super::storage::{Owner, Storage};
use crate::sync::fault;
use crate::{Key, Value};

/// Keys that go down the layer together.
pub const GROUP: usize = 32;
/// Queries below which a piece is not worth another thread.
const PIECE: usize = 512;

/// How to traverse: the switches of Figure 15.
#[derive(Debug, Clone, Copy)]
pub struct Traversal {
    /// Keys that go down together; 1: one after the other.
    pub group: usize,
    /// Whether what the next step needs is fetched ahead.
    pub prefetch: bool,
}

/// A stretch of the sorted batch, and of the list.
pub struct Piece<'a, K: Key + ?Sized> {
    /// Where its queries begin and end.
    pub from: usize,
    pub to: usize,
    /// The anchors of its first node and of the next piece's; `None`: the ends of the list.
    pub lower: Option<&'a K>,
    pub upper: Option<&'a K>,
}

impl<K: Key + ?Sized, V: Value + ?Sized> Storage<K, V> {
    /// Routes a group of keys and fetches what their nodes need. `places` has room for all.
    #[inline]
    pub fn route_group<'k>(
        &self,
        layer: &Layer<K, V>,
        how: Traversal,
        places: &mut [usize],
        key: impl Fn(usize) -> &'k K,
    ) {
        places.fill(0);
        for level in 0..layer.height() {
            for (at, place) in places.iter_mut().enumerate() {
                *place = layer.step(level, *place, key(at), self.set);
                if how.prefetch {
                    layer.prefetch(level + 1, *place);
                }
            }
        }
        if !how.prefetch {
            return;
        }
        places.iter().for_each(|place| layer.node(*place).prefetch());
        let nodes = || places.iter().map(|place| layer.node(*place)).enumerate();
        nodes().for_each(|(at, node)| node.prefetch_block(key(at)));
        if !super::node::Node::<K, V>::INLINE {
            nodes().for_each(|(at, node)| node.prefetch_record(key(at), self.set));
        }
    }

    /// Cuts a sorted batch into at most `count` pieces at interceptions.
    pub fn cut<'g, 'k>(
        &self,
        layer: &'g Layer<K, V>,
        items: &[Item],
        count: usize,
        key: impl Fn(u32) -> &'k K,
    ) -> Vec<Piece<'g, K>> {
        let mut pieces: Vec<Piece<'g, K>> =
            vec![Piece { from: 0, to: items.len(), lower: None, upper: None }];
        for cut in (1..count).map(|cut| cut * items.len() / count) {
            let mut place = layer.route(key(items[cut].at), self.set);
            while layer.node(place).lock.is_obsolete() {
                place = place.saturating_sub(1);
            }
            if place == 0 {
                continue;
            }
            let anchor = anchor_of(layer, place);
            let mut from = items[..cut].partition_point(|item| key(item.at) < anchor);
            if fault!("pi.cut.between_interceptions") {
                from = cut;
            }
            if let Some(last) = pieces.last_mut().filter(|last| last.from < from) {
                (last.to, last.upper) = (from, Some(anchor));
                pieces.push(Piece { from, to: items.len(), lower: Some(anchor), upper: None });
            }
        }
        pieces
    }

    /// Does a sorted batch in pieces, each by one thread: `work` gets the number of the piece, and the
    /// owner of its stretch.
    pub fn in_pieces<'g>(
        &self,
        turn: &Turn<'_>,
        layer: &'g Layer<K, V>,
        pieces: &[Piece<'g, K>],
        home: &(dyn Fn(&K) -> usize + Sync),
        work: &(dyn Fn(usize, &mut Owner<'_, K, V>) + Sync),
    ) {
        let one = |piece: usize| {
            let guard = self.collector.pin();
            // SAFETY: the turn is ours, so all owners are of this batch; its pieces' stretches are
            // apart. `upper` is the anchor of the next piece's first node, which was alive when the
            // batch was cut, and which only the owner of the node in front could absorb: this
            // piece's, which leaves it alone.
            let mut owner = unsafe { Owner::new(self, layer, &guard, pieces[piece].upper) };
            work(piece, &mut owner);
        };
        if let [_] = pieces {
            return one(0);
        }
        let mut homes: Vec<VecDeque<usize>> = Vec::new();
        for (number, piece) in pieces.iter().enumerate() {
            let node = piece.lower.map_or(0, home);
            homes.resize_with(homes.len().max(node + 1), VecDeque::new);
            homes[node].push_back(number);
        }
        turn.run(homes, &one);
    }

    /// Goes through the queries of a piece in groups: `each` gets a query's position and the place
    /// that the layer routes its key to.
    #[inline]
    pub fn in_groups<'k>(
        &self,
        layer: &Layer<K, V>,
        how: Traversal,
        items: &[Item],
        key: impl Fn(u32) -> &'k K,
        mut each: impl FnMut(u32, usize),
    ) {
        let mut places = [0; GROUP];
        for group in items.chunks(how.group.clamp(1, GROUP)) {
            let places = &mut places[..group.len()];
            self.route_group(layer, how, places, |at| key(group[at].at));
            group.iter().zip(places).for_each(|(item, place)| each(item.at, *place));
        }
    }
}

fn anchor_of<'g, K: Key + ?Sized, V: Value + ?Sized>(
    layer: &'g Layer<K, V>,
    place: usize,
) -> &'g K {
    let node: &'g NodeRef<K, V> = &layer.nodes()[place];
    node.anchor()
}

/// Pieces that a batch of this size is worth.
pub fn pieces_for(queries: usize) -> usize {
    (queries / PIECE).clamp(1, 64)
}
