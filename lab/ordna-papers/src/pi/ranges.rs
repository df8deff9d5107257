//! Range queries of a batch, which are split at the borders between pieces and joined again
//! (§3.2.5).
//!
//! # Protocol
//! All ranges of a batch are answered before its first write is executed, while no thread writes.
//! The *overlay* separates queries that were submitted before a range from later ones: it adds to
//! the entries of the list those inserts and deletes of the batch that are in the range and were
//! submitted earlier. They are easy to find, because the batch is sorted.
//!
//! The owner of a piece answers the parts of ranges that belong to it. Pieces are queried in order,
//! starting with the one in which the range begins. If the range ends there, or has as many entries
//! as its limit, no other piece is queried. Otherwise it continues in the next two pieces at once,
//! then in four, and so on. So the number of unnecessary pieces after the one that reaches a limit
//! is less than the number of pieces up to it. For a range over the whole index, all threads work
//! after a few rounds.
//!
//! Source: the PI paper, §3.2.5. The rounds and the overlay are our own.

use std::ops::{Bound, ControlFlow};

use super::execute::{Admitted, GROUP, Piece};
use super::query::{Query, key_of};
use super::sort::Item;
use super::storage::Owner;
use ordna_base::index::{bounds_cross, is_above, is_below};
use ordna_base::sync::check;
use ordna_base::{Entries, Key, Value};

/// Number of entries for which memory is reserved in advance.
const ROOM: usize = 128;

/// A range query in progress.
struct Open<'q, K: Key + ?Sized, V: Value + ?Sized> {
    /// Position of the query in the batch.
    query: usize,
    lower: Bound<&'q K>,
    upper: Bound<&'q K>,
    limit: usize,
    /// The next piece to query, and the end of the pieces.
    next: usize,
    end: usize,
    found: Entries<K, V>,
}

/// Answers the range queries of a batch, including empty ones. Returns the answers by position.
pub fn answer<K: Key + ?Sized, V: Value + ?Sized>(
    admitted: &Admitted<'_, K, V>,
    batch: &[Query<'_, K, V>],
    items: &[Item],
) -> Vec<(usize, Entries<K, V>)> {
    let pieces = &admitted.pieces;
    let mut ranges: Vec<Open<'_, K, V>> = Vec::new();
    for piece in pieces {
        for item in &items[piece.from..piece.to] {
            let Query::Range { lower, upper, limit } = &batch[item.at] else { continue };
            let (lower, upper, limit) = (*lower, *upper, *limit);
            let next = piece.number;
            let end = if limit == 0 || bounds_cross(lower, upper) {
                next
            } else {
                let reaches = |p: &Piece<'_, K>| p.lower.is_none_or(|low| !is_above(low, upper));
                next + 1 + pieces[next + 1..].partition_point(reaches)
            };
            let found = Entries::new();
            ranges.push(Open { query: item.at, lower, upper, limit, next, end, found });
        }
    }
    if ranges.is_empty() {
        return Vec::new();
    }
    let counts = |query: &Query<'_, K, V>| matches!(query, Query::Insert(..) | Query::Delete(_));
    let has_writes = batch.iter().any(counts);
    // The writes of a piece, in order.
    let writes = |piece: &Piece<'_, K>| -> Vec<Item> {
        let own = if has_writes { &items[piece.from..piece.to] } else { &[] };
        own.iter().copied().filter(|item| counts(&batch[item.at])).collect()
    };
    let mut width = 1;
    loop {
        // For each piece, the ranges that query it in this round, in the order of their keys.
        let mut asked: Vec<Vec<usize>> = pieces.iter().map(|_| Vec::new()).collect();
        for (number, range) in ranges.iter_mut().enumerate() {
            if range.found.len() < range.limit {
                let to = range.end.min(range.next + width);
                asked[range.next.min(to)..to].iter_mut().for_each(|asked| asked.push(number));
                range.next = to;
            }
        }
        let busy = || pieces.iter().filter(|piece| !asked[piece.number].is_empty());
        if busy().next().is_none() {
            break;
        }
        let parts = admitted.do_pieces(busy(), |piece, owner| {
            let (asked, writes) = (&asked[piece.number], writes(piece));
            let mut parts = Vec::with_capacity(asked.len());
            in_groups(admitted, piece, &ranges, asked, |range, place| {
                parts.push(part(range, piece, place, owner, (batch, &writes)));
            });
            parts
        });
        for (piece, parts) in busy().zip(parts) {
            for (number, part) in asked[piece.number].iter().zip(parts) {
                let Open { found, limit, .. } = &mut ranges[*number];
                if found.is_empty() {
                    *found = part;
                } else {
                    found.extend(part.iter().take(*limit - found.len()));
                }
            }
        }
        width *= 2;
    }
    ranges.into_iter().map(|range| (range.query, range.found)).collect()
}

/// Returns where the part of a range begins that belongs to a piece.
fn begin<'a, K: Key + ?Sized, V: Value + ?Sized>(
    range: &Open<'a, K, V>,
    piece: &Piece<'a, K>,
) -> Bound<&'a K> {
    match piece.lower {
        Some(first) if !is_below(first, range.lower) => Bound::Included(first),
        _ => range.lower,
    }
}

/// Routes the lower bounds of parts in groups. `each` receives them one by one with their places.
fn in_groups<'a, K: Key + ?Sized, V: Value + ?Sized>(
    admitted: &Admitted<'a, K, V>,
    piece: &Piece<'a, K>,
    ranges: &[Open<'_, K, V>],
    asked: &[usize],
    mut each: impl FnMut(&Open<'_, K, V>, usize),
) {
    let (storage, layer) = (admitted.storage, admitted.layer);
    let mut places = [0; GROUP];
    for group in asked.chunks(admitted.how.group) {
        let places = &mut places[..group.len()];
        let key = |at: usize| first_key(begin(&ranges[group[at]], piece), storage.least());
        storage.route_group(layer, admitted.how, places, key);
        if admitted.how.prefetch {
            for (number, place) in group.iter().zip(&*places) {
                layer.node(*place).prefetch_all(ranges[*number].limit);
            }
        }
        group.iter().zip(places).for_each(|(number, place)| each(&ranges[*number], *place));
    }
}

fn first_key<'a, K: Key + ?Sized>(lower: Bound<&'a K>, least: &'a K) -> &'a K {
    match lower {
        Bound::Included(key) | Bound::Excluded(key) => key,
        Bound::Unbounded => least,
    }
}

/// Returns the part of a range that belongs to a piece, as of the query's turn in the batch.
/// `writes` are those of the piece.
fn part<K: Key + ?Sized, V: Value + ?Sized>(
    range: &Open<'_, K, V>,
    piece: &Piece<'_, K>,
    place: usize,
    owner: &mut Owner<'_, K, V>,
    (batch, items): (&[Query<'_, K, V>], &[Item]),
) -> Entries<K, V> {
    let from = begin(range, piece);
    let to = match piece.upper {
        Some(end) if !is_above(end, range.upper) => Bound::Excluded(end),
        _ => range.upper,
    };
    let limit = range.limit - range.found.len();
    let mut out = Entries::with_room(limit.min(ROOM));
    if bounds_cross(from, to) {
        return out;
    }
    let least = owner.least();
    let next = items.partition_point(|item| is_below(key_of(batch, item.at, least), from));
    let mut writes = Writes { batch, items, query: range.query, next, ahead: None };
    owner.scan(from, place, limit, |key, value| {
        if is_above(key, to) {
            return ControlFlow::Break(());
        }
        // Keys of the batch before this one that are not in the list.
        while let Some((written, put)) = writes.peek(to).filter(|(written, _)| *written < key) {
            writes.skip();
            if let Some(put) = put {
                out.push(written, put);
            }
            if out.len() == limit {
                return ControlFlow::Break(());
            }
        }
        match writes.peek(to).filter(|(written, _)| *written == key) {
            Some((_, put)) => {
                writes.skip();
                if let Some(put) = put {
                    out.push(key, put);
                }
            }
            None => out.push(key, value),
        }
        if out.len() == limit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    while let Some((written, put)) = writes.peek(to).filter(|_| out.len() < limit) {
        writes.skip();
        if let Some(put) = put {
            out.push(written, put);
        }
    }
    out
}

/// The writes of a piece that were submitted before a query: the last one of each key, in ascending
/// order of the keys.
struct Writes<'b, 'q, K: Key + ?Sized, V: Value + ?Sized> {
    batch: &'b [Query<'q, K, V>],
    /// Inserts and deletes.
    items: &'b [Item],
    query: usize,
    /// The first item that has not been examined.
    next: usize,
    /// The key before it, and the value to which it was set. The writes of each key are examined
    /// once.
    ahead: Option<(&'q K, Option<&'q V>)>,
}

impl<'q, K: Key + ?Sized, V: Value + ?Sized> Writes<'_, 'q, K, V> {
    /// Returns the key of a write, and the value to which it is set if the write counts.
    #[inline]
    fn point(&self, at: usize) -> Option<(&'q K, Option<Option<&'q V>>)> {
        let item = self.items.get(at)?;
        let counts = check!("pi.range.sees_later_writes", item.at < self.query);
        match &self.batch[item.at] {
            Query::Insert(key, value) => Some((*key, counts.then_some(Some(*value)))),
            Query::Delete(key) => Some((*key, counts.then_some(None))),
            Query::Search(_) | Query::Range { .. } => None,
        }
    }

    /// Returns the next written key up to `to`, and the value to which it was last set.
    #[inline]
    fn peek(&mut self, to: Bound<&K>) -> Option<(&'q K, Option<&'q V>)> {
        while self.ahead.is_none() {
            let (key, mut put) = self.point(self.next).filter(|(key, _)| !is_above(*key, to))?;
            self.next += 1;
            while let Some((_, again)) = self.point(self.next).filter(|(other, _)| *other == key) {
                put = again.or(put);
                self.next += 1;
            }
            self.ahead = put.map(|put| (key, put));
        }
        self.ahead
    }

    /// Skips the key that `peek` has returned.
    fn skip(&mut self) {
        self.ahead = None;
    }
}
