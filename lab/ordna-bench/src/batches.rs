//! Ordered batches: queries of all kinds in one call, which returns the same answers as one query
//! after the other.
//!
//! This is PI's interface ([`Pi::execute`]). Other indexes get *equal calls*
//! (`target::one_by_one`): the same batch, in which consecutive searches become one lookup of many
//! keys, and writes are executed one by one, because each has its own answer.

use ordna_base::Key;
use ordna_papers::Pi;
use ordna_papers::pi::{Answer, Query};

use crate::target::{Ours, Reply, Session, Target};

/// PI, which executes batches itself.
pub struct Batched<K: Key + ?Sized> {
    /// The index, which executes batches itself.
    pub index: Ours<Pi<K, u64>>,
    /// Whether one caller passes the queries of all threads to the index, whose workers share them.
    pub one_caller: bool,
}

impl<K: Key + ?Sized> Target<K> for Batched<K> {
    fn session(&self, _: usize, _: usize) -> Box<dyn Session<K> + '_> {
        Box::new(self)
    }

    fn one_caller(&self) -> bool {
        self.one_caller
    }
}

impl<K: Key + ?Sized> Session<K> for &Batched<K> {
    fn put(&mut self, key: &K, value: u64) -> Option<bool> {
        (&mut &self.index).put(key, value)
    }
    fn get(&mut self, key: &K) -> Option<u64> {
        (&mut &self.index).get(key)
    }
    fn remove(&mut self, key: &K) -> bool {
        (&mut &self.index).remove(key)
    }
    fn scan(&mut self, from: &K, limit: usize, each: &mut dyn FnMut(&K, u64)) {
        (&mut &self.index).scan(from, limit, each);
    }
    fn get_group(&mut self, keys: &[&K], each: &mut dyn FnMut(usize, Option<u64>)) {
        (&mut &self.index).get_group(keys, each);
    }
    fn put_group(&mut self, pairs: &[(&K, u64)]) -> Option<usize> {
        (&mut &self.index).put_group(pairs)
    }
    fn remove_group(&mut self, keys: &[&K]) -> usize {
        (&mut &self.index).remove_group(keys)
    }
    fn batch(&mut self, batch: &[Query<'_, K, u64>], each: &mut dyn FnMut(usize, Reply<'_, K>)) {
        // A refused batch returns no answers, which the check of the answers reports.
        let answers = self.index.0.execute(batch).unwrap_or_default();
        for (at, (query, answer)) in batch.iter().zip(answers).enumerate() {
            match (query, answer) {
                (Query::Search(_), Answer::Value(found)) => each(at, Reply::Found(found)),
                (Query::Insert(..), Answer::Value(old)) => {
                    each(at, Reply::New(Some(old.is_none())));
                }
                (Query::Delete(_), Answer::Value(old)) => each(at, Reply::Removed(old.is_some())),
                (_, Answer::Entries(entries)) => {
                    for (key, value) in entries.iter() {
                        each(at, Reply::Entry(key, *value));
                    }
                }
                (Query::Range { .. }, Answer::Value(_)) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Bound;

    use ordna_base::Locked;

    use super::*;

    /// Both executors return the answers in the order of the batch.
    #[test]
    fn a_batch_is_answered_in_its_order() {
        let pi = Batched { index: Ours(Pi::<u64, u64>::new()), one_caller: false };
        let locked = Ours(Locked::<u64, u64>::new());
        for session in [&mut &pi as &mut dyn Session<u64>, &mut &locked] {
            assert_eq!(session.put(&5, 50), Some(true));
            let range =
                Query::Range { lower: Bound::Included(&5), upper: Bound::Unbounded, limit: 2 };
            let batch = [
                Query::Search(&5),
                Query::Search(&7),
                Query::Insert(&7, &70),
                Query::Search(&7),
                range,
                Query::Delete(&5),
                Query::Search(&5),
                Query::Insert(&7, &71),
                Query::Delete(&9),
            ];
            let mut found = Vec::new();
            session.batch(&batch, &mut |at, reply| {
                found.push((
                    at,
                    match reply {
                        Reply::Entry(key, value) => format!("{key}:{value}"),
                        other => format!("{other:?}"),
                    },
                ));
            });
            let expected = [
                (0, "Found(Some(50))"),
                (1, "Found(None)"),
                (2, "New(Some(true))"),
                (3, "Found(Some(70))"),
                (4, "5:50"),
                (4, "7:70"),
                (5, "Removed(true)"),
                (6, "Found(None)"),
                (7, "New(Some(false))"),
                (8, "Removed(false)"),
            ];
            assert_eq!(found, expected.map(|(at, text)| (at, text.to_owned())));
        }
    }
}
