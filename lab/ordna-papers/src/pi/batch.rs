//! Batches: searches, inserts, deletes and range queries, in any combination.
//!
//! # Semantics
//! The answers and the resulting contents are the same as if the queries had been applied one after
//! the other in the order of submission. Batches are admitted one after the other: no other batch
//! and no other write happens between two queries of one batch. Single reads do not wait for
//! batches, and may see some of a batch's writes before others.
//!
//! All range queries of a batch are answered before the first of its writes ([`super::ranges`]).
//! Then its point queries are executed, piece by piece.

use super::Pi;
use super::execute::Admitted;
use super::query::{Answer, Query, key_of};
use super::ranges;
use super::sort::{Item, sorted};
use super::storage::Owner;
use ordna_base::index::Change;
use ordna_base::{Error, Key, Value};

impl<K: Key + ?Sized, V: Value + ?Sized> Pi<K, V> {
    /// Executes a batch. The answers are in the order of the queries.
    ///
    /// The answers and the resulting contents are the same as if the queries had been applied one
    /// after the other in the order of the batch. Batches are admitted one after the other: no
    /// other batch and no other write happens between two queries of one batch, so a range query
    /// sees one moment. Single reads do not wait for batches, and may see some of a batch's writes
    /// before others.
    ///
    /// O(n log n) for the sort, O(log N) for each query, with overlapping memory accesses, and the
    /// entries of ranges. A write linearizes at the end of the write section of its data node, or
    /// at the store of its value. Source: the PI paper, §3.2.
    ///
    /// # Errors
    /// Returns an error if a key or value to be inserted is too long. In this case, nothing of the
    /// batch is executed.
    pub fn execute(&self, batch: &[Query<'_, K, V>]) -> Result<Vec<Answer<K, V>>, Error> {
        batch.iter().try_for_each(Query::check)?;
        let least = self.shared.storage.least();
        let key = |at: usize| key_of(batch, at, least);
        let items = sorted(batch.len(), |at| key(at));
        let mut answers: Vec<Answer<K, V>> = Vec::new();
        answers.resize_with(batch.len(), || Answer::Value(None));
        self.in_turn(&items, key, |admitted| {
            let ranges = ranges::answer(admitted, batch, &items);
            if ranges.len() == batch.len() {
                return ranges.into_iter().for_each(|(at, all)| answers[at] = Answer::Entries(all));
            }
            let points = admitted.each_piece(|piece, owner| {
                let items = &items[piece.from..piece.to];
                let mut found = Vec::with_capacity(items.len());
                self.in_groups(owner, items, key, |owner, at, place| {
                    found.extend(answer_point(&batch[at], owner, place).map(|v| (at, v)));
                });
                found
            });
            points.into_iter().flatten().for_each(|(at, value)| answers[at] = Answer::Value(value));
            ranges.into_iter().for_each(|(at, all)| answers[at] = Answer::Entries(all));
        });
        Ok(answers)
    }
}

/// Answers a point query. Returns `None` for a range query.
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

impl<K: Key + ?Sized, V: Value + ?Sized> Pi<K, V> {
    /// Takes the turn, cuts the sorted queries at interceptions, and calls `body`, which executes
    /// the pieces.
    fn in_turn<'k>(
        &self,
        items: &[Item],
        key: impl Fn(usize) -> &'k K,
        body: impl FnOnce(&Admitted<'_, K, V>),
    ) {
        let storage = &self.shared.storage;
        let turn = self.crew.enter();
        {
            let guard = storage.collector.pin();
            let layer = storage.layer(&guard);
            let sizes = (self.how.pieces(items.len()), self.crew.nodes());
            let pieces = storage.cut(layer, items, sizes, key);
            body(&Admitted { storage, how: self.how, turn: &turn, layer, pieces });
        }
        drop(turn);
        self.shared.rebuild_if_due();
    }

    /// Passes through the queries of a piece in groups.
    #[inline]
    pub(super) fn in_groups<'k>(
        &self,
        owner: &mut Owner<'_, K, V>,
        items: &[Item],
        key: impl Fn(usize) -> &'k K,
        mut each: impl FnMut(&mut Owner<'_, K, V>, usize, usize),
    ) {
        let layer = owner.layer();
        self.shared.storage.in_groups(layer, self.how, items, key, |at, place| {
            each(owner, at, place);
        });
    }

    /// Changes many keys. Returns for how many of them `counts` returned `true`. All keys must have
    /// been checked.
    pub(super) fn change_many<'k, 'v>(
        &self,
        count: usize,
        key: impl Fn(usize) -> &'k K + Sync + Copy,
        value: impl Fn(usize) -> Option<&'v V> + Sync,
        counts: impl Fn(bool) -> bool + Sync,
    ) -> usize {
        let items = sorted(count, |at| key(at));
        let mut all = 0;
        self.in_turn(&items, key, |admitted| {
            let counted = admitted.each_piece(|piece, owner| {
                let mut here = 0;
                self.in_groups(owner, &items[piece.from..piece.to], key, |owner, at, place| {
                    let mut present = false;
                    let done = owner.modify(key(at), place, |current| {
                        present = current.is_some();
                        value(at).map_or(Change::Remove, Change::Put)
                    });
                    here += usize::from(done.is_ok() && counts(present));
                });
                here
            });
            all = counted.into_iter().sum();
        });
        all
    }
}
