//! Batches: searches, inserts, deletes and range queries, mixed.
//!
//! # Semantics
//! The answers are as if the queries had been applied one after the other in the order of
//! submission, and so is the content afterwards. Batches are admitted one after the other: no other
//! batch and no other write comes between two queries of one. Single reads do not wait for batches,
//! and may see some of a batch's writes before others.
//!
//! # Ranges
//! A range query is split at the borders between pieces; each piece's owner answers its part and the
//! parts are joined (§3.2.5). An owner answers the parts before it executes its point queries, and
//! lays over what it finds in the list those inserts and deletes of the batch that lie in the
//! range and were submitted earlier: the sorted batch itself is the overlay. So a range sees what
//! was submitted before it and nothing of what came after, with no barrier between threads.

use std::ops::{Bound, ControlFlow};
use std::sync::{Mutex, PoisonError};

use super::Pi;
use super::execute::Piece;
use super::sort::{Item, sorted};
use super::storage::Owner;
use crate::index::{Change, bounds_cross, is_above, is_below};
use crate::sync::fault;
use crate::{Entries, Error, Key, Value};

/// One query of a batch.
#[derive(Debug)]
pub enum Query<'a, K: Key + ?Sized, V: Value + ?Sized> {
    /// The value of a key.
    Search(&'a K),
    /// Sets the value of a key.
    Insert(&'a K, &'a V),
    /// Removes a key.
    Delete(&'a K),
    /// The first `limit` entries within bounds, in ascending order.
    Range {
        /// Where it begins.
        lower: Bound<&'a K>,
        /// Where it ends.
        upper: Bound<&'a K>,
        /// At most so many entries.
        limit: usize,
    },
}

/// The answer to a query.
pub enum Answer<K: Key + ?Sized, V: Value + ?Sized> {
    /// To a search: the value. To an insert or a delete: the value before it.
    Value(Option<V::Owned>),
    /// To a range query.
    Entries(Entries<K, V>),
}

impl<K: Key + ?Sized, V: Value + ?Sized> std::fmt::Debug for Answer<K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Value(value) => f.debug_tuple("Value").field(value).finish(),
            Self::Entries(entries) => f.debug_tuple("Entries").field(entries).finish(),
        }
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> Query<'_, K, V> {
    fn check(&self) -> Result<(), Error> {
        match self {
            Self::Insert(key, value) => {
                key.check()?;
                value.check()
            }
            // Too long a key is not there: nothing is written for it.
            _ => Ok(()),
        }
    }
}

/// By what a query is sorted: its key, or where its range begins.
fn key_of<'q, K: Key + ?Sized, V: Value + ?Sized>(
    batch: &[Query<'q, K, V>],
    at: u32,
    least: &'q K,
) -> &'q K {
    match &batch[at as usize] {
        Query::Search(key) | Query::Insert(key, _) | Query::Delete(key) => key,
        Query::Range { lower, .. } => match lower {
            Bound::Included(key) | Bound::Excluded(key) => key,
            Bound::Unbounded => least,
        },
    }
}

/// What a piece answered: to queries by position, and parts of ranges in the order of the pieces.
type Answers<K, V> = Mutex<Vec<(u32, Answer<K, V>)>>;

/// A part of a range query: its position, and the piece whose stretch it is in.
struct Part {
    query: u32,
    piece: usize,
}

impl<K: Key + ?Sized, V: Value + ?Sized> Pi<K, V> {
    /// Executes a batch; the answers are in the order of the queries.
    ///
    /// The answers, and the content afterwards, are as if the queries had been applied one after the
    /// other in the order of the batch. Batches are admitted one after the other: no other batch and
    /// no other write comes between two queries of one, so a range query sees one moment. Single
    /// reads do not wait for batches, and may see some of a batch's writes before others.
    ///
    /// O(n log n) for the sort, O(log N) for each query, overlapped. Linearization point of each write:
    /// the end of the write section of its data node, or the store of its value. Source: the PI
    /// paper, §3.2.
    ///
    /// # Errors
    /// A key or value to be inserted is too long: nothing of the batch is executed.
    pub fn execute(&self, batch: &[Query<'_, K, V>]) -> Result<Vec<Answer<K, V>>, Error> {
        batch.iter().try_for_each(Query::check)?;
        let least = self.shared.storage.least();
        let key = |at: u32| key_of(batch, at, least);
        let items = sorted(batch.len(), |at| key(at as u32));
        let mut answers: Vec<Option<Answer<K, V>>> = Vec::new();
        answers.resize_with(batch.len(), || None);
        self.in_turn(
            &items,
            key,
            |pieces| {
                let parts = parts(batch, &items, pieces);
                let done: Vec<Answers<K, V>> = pieces.iter().map(|_| Mutex::default()).collect();
                (done, parts)
            },
            |(done, parts), piece, number, owner| {
                let mut found = Vec::with_capacity(piece.to - piece.from);
                let items = &items[piece.from..piece.to];
                let own = parts.partition_point(|part| part.piece < number)
                    ..parts.partition_point(|part| part.piece <= number);
                for part in &parts[own] {
                    found.push((part.query, self.answer_part(batch, part.query, piece, items)));
                }
                self.in_groups(owner, items, key, |owner, at, place| {
                    if let Some(value) = answer_point(&batch[at as usize], owner, place) {
                        found.push((at, Answer::Value(value)));
                    }
                });
                *done[number].lock().unwrap_or_else(PoisonError::into_inner) = found;
            },
            |(done, _)| {
                for (at, answer) in done
                    .into_iter()
                    .flat_map(|done| done.into_inner().unwrap_or_else(PoisonError::into_inner))
                {
                    join(&mut answers[at as usize], answer, &batch[at as usize]);
                }
            },
        );
        let empty = |query: &Query<'_, K, V>| match query {
            Query::Range { .. } => Answer::Entries(Entries::new()),
            _ => Answer::Value(None),
        };
        Ok(answers
            .into_iter()
            .zip(batch)
            .map(|(a, query)| a.unwrap_or_else(|| empty(query)))
            .collect())
    }

    /// The part of a range query that lies in a piece's stretch, as of the query's turn in the batch.
    fn answer_part(
        &self,
        batch: &[Query<'_, K, V>],
        query: u32,
        piece: &Piece<'_, K>,
        items: &[Item],
    ) -> Answer<K, V> {
        let mut out = Entries::new();
        let Query::Range { lower, upper, limit } = &batch[query as usize] else {
            return Answer::Entries(out);
        };
        // Within the stretch of this piece.
        let from = match piece.lower {
            Some(first) if is_below(first, *lower) => *lower,
            Some(first) => Bound::Included(first),
            None => *lower,
        };
        let to = match piece.upper {
            Some(end) if is_above(end, *upper) => *upper,
            Some(end) => Bound::Excluded(end),
            None => *upper,
        };
        if *limit == 0 || bounds_cross(from, to) {
            return Answer::Entries(out);
        }
        let storage = &self.shared.storage;
        let least = storage.least();
        let next = items.partition_point(|item| is_below(key_of(batch, item.at, least), from));
        let mut writes = Writes { batch, items, query, next };
        let guard = storage.collector.pin();
        storage.ascend(from, to, &guard, |key, value| {
            // Keys of the batch in front of this one that are not in the list.
            while let Some((written, put)) = writes.peek(to).filter(|(w, _)| *w < key) {
                writes.skip(written);
                if let Some(put) = put {
                    out.push(written, put);
                }
                if out.len() == *limit {
                    return ControlFlow::Break(());
                }
            }
            match writes.peek(to).filter(|(written, _)| *written == key) {
                Some((written, put)) => {
                    writes.skip(written);
                    if let Some(put) = put {
                        out.push(key, put);
                    }
                }
                None => out.push(key, value),
            }
            if out.len() == *limit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        while let Some((written, put)) = writes.peek(to).filter(|_| out.len() < *limit) {
            writes.skip(written);
            if let Some(put) = put {
                out.push(written, put);
            }
        }
        Answer::Entries(out)
    }
}

/// The writes of a sorted batch that were submitted before a query, by key: the last one of each
/// key, in ascending order.
struct Writes<'b, 'q, K: Key + ?Sized, V: Value + ?Sized> {
    batch: &'b [Query<'q, K, V>],
    items: &'b [Item],
    query: u32,
    next: usize,
}

impl<'q, K: Key + ?Sized, V: Value + ?Sized> Writes<'_, 'q, K, V> {
    /// The key of the next point query, and what it is set to if this is a write that counts.
    fn point(&self, at: usize) -> Option<(&'q K, Option<Option<&'q V>>)> {
        self.items.get(at..)?.iter().find_map(|item| {
            let counts = item.at < self.query || fault!("pi.range.sees_later_writes");
            Some(match &self.batch[item.at as usize] {
                Query::Insert(key, value) => (*key, counts.then_some(Some(*value))),
                Query::Delete(key) => (*key, counts.then_some(None)),
                Query::Search(key) => (*key, None),
                Query::Range { .. } => return None,
            })
        })
    }

    /// The next key up to `to` that was written, and what it was set to last.
    fn peek(&mut self, to: Bound<&K>) -> Option<(&'q K, Option<&'q V>)> {
        while let Some((key, written)) = self.point(self.next) {
            if is_above(key, to) {
                return None;
            }
            let Some(mut put) = written else {
                self.next += 1;
                continue;
            };
            let mut at = self.next + 1;
            while let Some((_, again)) = self.point(at).filter(|(other, _)| *other == key) {
                put = again.unwrap_or(put);
                at += 1;
            }
            return Some((key, put));
        }
        None
    }

    /// Goes past a key.
    fn skip(&mut self, key: &K) {
        while self.point(self.next).is_some_and(|(other, _)| other <= key) {
            self.next += 1;
        }
    }
}

/// The parts of all ranges, by piece.
fn parts<K: Key + ?Sized, V: Value + ?Sized>(
    batch: &[Query<'_, K, V>],
    items: &[Item],
    pieces: &[Piece<'_, K>],
) -> Vec<Part> {
    let mut parts = Vec::new();
    for (number, piece) in pieces.iter().enumerate() {
        for item in &items[piece.from..piece.to] {
            let Query::Range { upper, .. } = &batch[item.at as usize] else { continue };
            let reaches =
                |piece: &Piece<'_, K>| piece.lower.is_none_or(|lower| !is_above(lower, *upper));
            let others = (number + 1..pieces.len()).take_while(|other| reaches(&pieces[*other]));
            let all = std::iter::once(number).chain(others);
            parts.extend(all.map(|piece| Part { query: item.at, piece }));
        }
    }
    parts.sort_by_key(|part| part.piece);
    parts
}

/// Answers a point query; `None` if it is a range.
fn answer_point<K: Key + ?Sized, V: Value + ?Sized>(
    query: &Query<'_, K, V>,
    owner: &mut Owner<'_, K, V>,
    place: usize,
) -> Option<Option<V::Owned>> {
    let mut old = None;
    match query {
        Query::Search(key) => return Some(owner.get(key, place, ToOwned::to_owned)),
        Query::Insert(key, value) => {
            let done = owner.modify(key, place, |current| {
                old = current.map(ToOwned::to_owned);
                Change::Put(*value)
            });
            debug_assert!(done.is_ok(), "checked before the batch began");
        }
        Query::Delete(key) => {
            let done = owner.modify::<&V, _>(key, place, |current| {
                old = current.map(ToOwned::to_owned);
                Change::Remove
            });
            debug_assert!(done.is_ok(), "nothing is put");
        }
        Query::Range { .. } => return None,
    }
    Some(old)
}

/// Takes an answer, or one more part of a range's.
fn join<K: Key + ?Sized, V: Value + ?Sized>(
    to: &mut Option<Answer<K, V>>,
    answer: Answer<K, V>,
    query: &Query<'_, K, V>,
) {
    let limit = if let Query::Range { limit, .. } = query { *limit } else { 0 };
    match (to, answer) {
        (Some(Answer::Entries(all)), Answer::Entries(more)) => {
            all.extend(more.iter().take(limit - all.len()));
        }
        (to, answer) => *to = Some(answer),
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> Pi<K, V> {
    /// Takes the turn, cuts the sorted queries, and does the pieces. `prepare` sees the pieces,
    /// `work` does one of them, and `finish` gets what was prepared back.
    pub(super) fn in_turn<'k, P: Sync>(
        &self,
        items: &[Item],
        key: impl Fn(u32) -> &'k K + Sync + Copy,
        prepare: impl FnOnce(&[Piece<'_, K>]) -> P,
        work: impl Fn(&P, &Piece<'_, K>, usize, &mut Owner<'_, K, V>) + Sync,
        finish: impl FnOnce(P),
    ) {
        let storage = &self.shared.storage;
        let turn = self.crew.enter();
        let guard = storage.collector.pin();
        let layer = storage.layer(&guard);
        let pieces =
            storage.cut(layer, items, (self.how.pieces(items.len()), self.crew.nodes()), key);
        let prepared = prepare(&pieces);
        storage.in_pieces(&turn, layer, &pieces, &|number, owner| {
            work(&prepared, &pieces[number], number, owner);
        });
        drop(turn);
        drop(guard);
        finish(prepared);
        self.shared.rebuild_if_due();
    }

    /// Goes through the queries of a piece in groups.
    #[inline]
    pub(super) fn in_groups<'k>(
        &self,
        owner: &mut Owner<'_, K, V>,
        items: &[Item],
        key: impl Fn(u32) -> &'k K,
        mut each: impl FnMut(&mut Owner<'_, K, V>, u32, usize),
    ) {
        let layer = owner.layer();
        self.shared.storage.in_groups(layer, self.how, items, key, |at, place| {
            each(owner, at, place);
        });
    }

    /// Changes many keys; returns for how many `counts` said yes. All have passed their checks.
    pub(super) fn change_many<'k, 'v>(
        &self,
        count: usize,
        key: impl Fn(u32) -> &'k K + Sync + Copy,
        value: impl Fn(u32) -> Option<&'v V> + Sync,
        counts: impl Fn(bool) -> bool + Sync,
    ) -> usize {
        let items = sorted(count, |at| key(at as u32));
        let mut all = 0;
        self.in_turn(
            &items,
            key,
            |pieces| pieces.iter().map(|_| Mutex::new(0_usize)).collect::<Vec<_>>(),
            |counted, piece, number, owner| {
                let mut here = 0;
                self.in_groups(owner, &items[piece.from..piece.to], key, |owner, at, place| {
                    let mut present = false;
                    let done = owner.modify(key(at), place, |current| {
                        present = current.is_some();
                        value(at).map_or(Change::Remove, Change::Put)
                    });
                    here += usize::from(done.is_ok() && counts(present));
                });
                *counted[number].lock().unwrap_or_else(PoisonError::into_inner) = here;
            },
            |counted| {
                let counted = counted.into_iter().map(Mutex::into_inner);
                all = counted.map(|count| count.unwrap_or_else(PoisonError::into_inner)).sum();
            },
        );
        all
    }
}
