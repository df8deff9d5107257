//! The executor: queries are sorted, cut at interceptions, and traversed in groups.
//!
//! # Protocol
//! A batch is sorted by key, with queries of the same key in the order of submission. It is cut
//! into pieces with about the same number of queries. Each cut is moved down to the *interception*
//! of its first query, which is the data node to which the layer routes it (Definition 4): all
//! queries from that node's anchor on belong to the following piece (Algorithm 3). So a piece owns
//! the part of the list from its first interception to that of the next piece, and no two threads
//! access the same node. The paper's threads find all interceptions first and then send queries to
//! their neighbours. Here, each cut is found by routing one key before the work is distributed, so
//! there is no barrier between traversal and execution.
//!
//! A piece is processed in groups: all keys of a group descend one level before any of them
//! descends to the next, and what each of them needs there is prefetched in the meantime (§4.3.4).
//!
//! Source: the PI paper, §3.2 and §4.3.4.

#![expect(unsafe_code, reason = "ownership is what `Owner` asks for, and it is made here")]

use std::collections::VecDeque;
use std::sync::PoisonError;

use super::crew::Turn;
use super::layer::Layer;
use super::node::NodeRef;
use super::sort::Item;
use super::storage::{Owner, Storage};
use ordna_base::sync::fault;
use ordna_base::sync::lock::Mutex;
use ordna_base::{Key, Value};

/// Number of keys that descend the layer together.
pub const GROUP: usize = 32;
/// Minimum number of queries for which a piece is worth another thread.
pub const PIECE: usize = 512;
/// Maximum number of pieces of a batch.
const PIECES: usize = 64;

/// Options of the traversal: the switches of Figure 15.
#[derive(Debug, Clone, Copy)]
pub struct Traversal {
    /// Number of keys that descend together, up to [`GROUP`]. With 1, they descend one after the
    /// other.
    pub group: usize,
    /// Whether the memory for the next step is prefetched.
    pub prefetch: bool,
    /// Minimum number of queries of a piece.
    pub piece: usize,
}

impl Traversal {
    /// Returns the number of pieces for a batch of this size.
    pub fn pieces(&self, queries: usize) -> usize {
        (queries / self.piece.max(1)).clamp(1, PIECES)
    }
}

/// A part of the sorted batch, and of the list.
pub struct Piece<'a, K: Key + ?Sized> {
    /// Number of the piece, beginning with the lowest keys.
    pub number: usize,
    /// Positions at which its queries begin and end.
    pub from: usize,
    pub to: usize,
    /// The anchors of its first node and of the next piece's first node. `None` means the start or
    /// the end of the list.
    pub lower: Option<&'a K>,
    pub upper: Option<&'a K>,
    /// The NUMA node to which the piece belongs.
    pub numa_node: usize,
}

/// Moves a cut down to the first query of its interception.
fn moved_to_interception(cut: usize, interception: usize) -> usize {
    if fault!("pi.cut.between_interceptions") { cut } else { interception }
}

impl<K: Key + ?Sized, V: Value + ?Sized> Storage<K, V> {
    /// Routes a group of keys and prefetches what their nodes need. `places` has room for all of
    /// them.
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

    /// Cuts a sorted batch at interceptions: into about `count` pieces, and at the ends of the key
    /// ranges of the `nodes` NUMA nodes. Each NUMA node has the same number of data nodes (§4.3.1).
    pub fn cut<'g, 'k>(
        &self,
        layer: &'g Layer<K, V>,
        items: &[Item],
        (count, nodes): (usize, usize),
        key: impl Fn(usize) -> &'k K,
    ) -> Vec<Piece<'g, K>> {
        let live = |mut place: usize| {
            while layer.node(place).lock.is_obsolete() {
                place = place.saturating_sub(1);
            }
            place
        };
        // Possible cuts: the place of a live node, and the first query from its anchor on.
        let begin = |place: usize| {
            let anchor = anchor_of(layer, place);
            (place, items.partition_point(|item| key(item.at) < anchor))
        };
        let mut cuts: Vec<(usize, usize)> = (1..count)
            .map(|cut| cut * items.len() / count)
            .map(|cut| {
                let (place, from) = begin(live(layer.route(key(items[cut].at), self.set)));
                (place, moved_to_interception(cut, from))
            })
            .collect();
        let borders = (1..nodes).map(|node| live(node * layer.len() / nodes));
        let borders: Vec<usize> = borders.collect();
        if items.len() > 1 {
            cuts.extend(borders.iter().map(|place| begin(*place)));
            cuts.sort_unstable();
        }
        let numa_node = |place: usize| borders.partition_point(|border| *border <= place);
        let mut pieces: Vec<Piece<'g, K>> = vec![Piece {
            number: 0,
            from: 0,
            to: items.len(),
            lower: None,
            upper: None,
            numa_node: 0,
        }];
        for (place, from) in cuts.into_iter().filter(|(place, _)| *place > 0) {
            let anchor = anchor_of(layer, place);
            let Some(last) = pieces.last_mut() else { continue };
            if from == 0 {
                last.numa_node = numa_node(place);
            } else if last.from < from && from < items.len() {
                (last.to, last.upper) = (from, Some(anchor));
                let (number, lower, numa_node) = (last.number + 1, Some(anchor), numa_node(place));
                pieces.push(Piece { number, from, to: items.len(), lower, upper: None, numa_node });
            }
        }
        pieces
    }

    /// Passes through the queries of a piece in groups. `each` receives the position of a query and
    /// the place to which the layer routes its key.
    #[inline]
    pub fn in_groups<'k>(
        &self,
        layer: &Layer<K, V>,
        how: Traversal,
        items: &[Item],
        key: impl Fn(usize) -> &'k K,
        mut each: impl FnMut(usize, usize),
    ) {
        let mut places = [0; GROUP];
        for group in items.chunks(how.group) {
            let places = &mut places[..group.len()];
            self.route_group(layer, how, places, |at| key(group[at].at));
            group.iter().zip(places).for_each(|(item, place)| each(item.at, *place));
        }
    }
}

/// A sorted batch that has the turn, cut into pieces.
pub struct Admitted<'a, K: Key + ?Sized, V: Value + ?Sized> {
    pub storage: &'a Storage<K, V>,
    pub how: Traversal,
    pub turn: &'a Turn<'a>,
    pub layer: &'a Layer<K, V>,
    pub pieces: Vec<Piece<'a, K>>,
}

impl<'a, K: Key + ?Sized, V: Value + ?Sized> Admitted<'a, K, V> {
    /// Calls `work` for each piece, on one thread that owns its part of the list. Returns the
    /// results by piece.
    pub fn each_piece<R: Send>(
        &self,
        work: impl Fn(&Piece<'a, K>, &mut Owner<'_, K, V>) -> R + Sync,
    ) -> Vec<R> {
        self.do_pieces(self.pieces.iter(), work)
    }

    /// Works like `each_piece` for some of the pieces.
    pub fn do_pieces<'p, R: Send>(
        &self,
        pieces: impl Iterator<Item = &'p Piece<'a, K>>,
        work: impl Fn(&Piece<'a, K>, &mut Owner<'_, K, V>) -> R + Sync,
    ) -> Vec<R>
    where
        'a: 'p,
    {
        let done: Vec<_> = pieces.map(|piece| (piece, Mutex::new(None))).collect();
        let one = |number: usize| {
            let (piece, result) = &done[number];
            let guard = self.storage.collector.pin();
            let stretch = (piece.lower, piece.upper);
            // A part begins at a node that was alive when the batch was cut. Only the owner of the
            // preceding node could absorb it, and does not. SAFETY: this thread has the turn, so
            // all owners belong to this batch, whose pieces have disjoint parts.
            let mut owner = unsafe { Owner::new(self.storage, self.layer, &guard, stretch) };
            *result.lock().unwrap_or_else(PoisonError::into_inner) = Some(work(piece, &mut owner));
        };
        if let [_] = &done[..] {
            one(0);
        } else {
            let mut by_node: Vec<VecDeque<usize>> = Vec::new();
            for (number, (piece, _)) in done.iter().enumerate() {
                by_node.resize_with(by_node.len().max(piece.numa_node + 1), VecDeque::new);
                by_node[piece.numa_node].push_back(number);
            }
            self.turn.run(by_node, &one);
        }
        let results = done.into_iter().map(|(_, result)| result.into_inner());
        results.filter_map(|result| result.unwrap_or_else(PoisonError::into_inner)).collect()
    }
}

fn anchor_of<'g, K: Key + ?Sized, V: Value + ?Sized>(
    layer: &'g Layer<K, V>,
    place: usize,
) -> &'g K {
    let node: &'g NodeRef<K, V> = &layer.nodes()[place];
    node.anchor()
}
