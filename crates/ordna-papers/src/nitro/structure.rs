//! What the engine needs of an ordered structure, and how the skip list gives it.
//!
//! # Contract
//! All calls may run at once, each under a guard of the engine's collector. A version is *linked*
//! from its insertion until it is unlinked or replaced. Walks and searches meet every version that
//! is linked throughout; walking from a version that was unlinked meanwhile leads on to those behind
//! it, a replacement of it included. What is unlinked is retired by the structure, once.

use std::ops::ControlFlow;

use super::raw::{ANY, NewVersion, Node, Rank, Version};
use crate::skiplist::raw::{List, MAX_HEIGHT, Place};
use ordna_base::reclaim::Guard;
use ordna_base::{Key, Value, Violation};

/// An ordered structure of versions.
pub trait Structure<K: Key + ?Sized, V: Value + ?Sized>: Send + Sync {
    /// Where a version belongs.
    type Place;

    /// Where the version of `key` born in `term` belongs.
    fn place(&self, key: &K, term: u64, guard: &Guard<'_>) -> Self::Place;
    /// The same for each, in their order, and what `visit` does there; with overlapping searches.
    fn places<'k>(
        &self,
        wanted: impl Iterator<Item = Rank<'k, K>>,
        guard: &Guard<'_>,
        visit: impl FnMut(&mut Self::Place),
    );
    /// The linked version of exactly that key and term.
    fn found(place: &Self::Place) -> Option<Node<K, V>>;
    /// The last linked version in front of the place.
    fn last(place: &Self::Place) -> Option<Node<K, V>>;
    /// Whether the versions around the place still are neighbours, and linked.
    fn is_current(place: &Self::Place) -> bool;

    /// Links a new version at a place where none was found. `false`, and nothing done, if the
    /// structure changed there.
    fn link(&self, place: &mut Self::Place, new: &NewVersion<'_, K, V>, guard: &Guard<'_>) -> bool;
    /// Puts a new version in the place of the one found there, as one step. `false`, and nothing
    /// done, if that is unlinked already.
    fn exchange(
        &self,
        place: &mut Self::Place,
        old: Node<K, V>,
        new: &NewVersion<'_, K, V>,
        guard: &Guard<'_>,
    ) -> bool;
    /// Unlinks the version found at a place. Exactly one of all that race gets `true`.
    fn unlink(&self, place: &mut Self::Place, version: Node<K, V>, guard: &Guard<'_>) -> bool;

    /// Some linked version of `key`, the one found first.
    fn any(&self, key: &K, guard: &Guard<'_>) -> Option<Node<K, V>>;
    /// The same for many keys, with overlapping searches.
    fn any_of_many<'k>(
        &self,
        keys: impl ExactSizeIterator<Item = &'k K>,
        guard: &Guard<'_>,
        each: impl FnMut(usize, Option<Node<K, V>>),
    );
    /// The last linked version below `bound`.
    fn last_before(&self, bound: Rank<'_, K>, guard: &Guard<'_>) -> Option<Node<K, V>>;
    /// The first version not below `from`, perhaps unlinked meanwhile. O(log n).
    fn first_from(&self, from: Option<Rank<'_, K>>, guard: &Guard<'_>) -> Option<Node<K, V>>;
    /// The version behind, perhaps unlinked meanwhile. O(1).
    fn behind(&self, version: Node<K, V>, guard: &Guard<'_>) -> Option<Node<K, V>>;

    /// Up to `limit` linked versions, in order, about 2^`spacing` versions apart: the first ones
    /// above `from`.
    fn row_behind(
        &self,
        from: Rank<'_, K>,
        spacing: usize,
        limit: usize,
        guard: &Guard<'_>,
    ) -> Vec<Node<K, V>>;
    /// The same, a short way below `to`; `None` is the end. Some, if there are any below it.
    fn row_before(
        &self,
        to: Option<Rank<'_, K>>,
        spacing: usize,
        limit: usize,
        guard: &Guard<'_>,
    ) -> Vec<Node<K, V>>;
    /// Walks from each of the versions `starts`, which are in order, to the next of them, and from
    /// the last one to the first version that is `beyond`, all at once. Each lane gets its versions
    /// for which `keep` held when they were passed.
    fn gather(
        &self,
        starts: &[Node<K, V>],
        beyond: impl Fn(Node<K, V>) -> bool,
        lanes: &mut Vec<Vec<Node<K, V>>>,
        guard: &Guard<'_>,
        keep: impl FnMut(Node<K, V>) -> bool,
    );

    /// Linked versions, in order, that divide the structure evenly: at least `wanted` of them if there are as
    /// many. O(their number).
    fn sample(&self, wanted: usize, guard: &Guard<'_>) -> Vec<Node<K, V>>;

    /// Bytes beside the linked versions: of what serves searches, and of unlinked versions that it holds back.
    fn overhead(&self, guard: &Guard<'_>) -> (usize, usize);

    /// Retires the unlinked versions that it holds back. O(n).
    fn give_back(&self, guard: &Guard<'_>);

    /// Audits the structure; returns the number of linked versions. Nobody else may use it.
    fn validate(&self) -> Result<usize, Violation>;
}

impl<K: Key + ?Sized, V: Value + ?Sized> Structure<K, V> for List<Version<K, V>> {
    type Place = Place<Version<K, V>>;

    fn place(&self, key: &K, term: u64, guard: &Guard<'_>) -> Self::Place {
        self.find(Rank { key, born: term }, guard)
    }

    fn places<'k>(
        &self,
        wanted: impl Iterator<Item = Rank<'k, K>>,
        guard: &Guard<'_>,
        visit: impl FnMut(&mut Self::Place),
    ) {
        self.find_many(wanted, guard, visit);
    }

    fn found(place: &Self::Place) -> Option<Node<K, V>> {
        place.found
    }

    fn last(place: &Self::Place) -> Option<Node<K, V>> {
        place.last
    }

    fn is_current(place: &Self::Place) -> bool {
        place.is_current()
    }

    fn link(&self, place: &mut Self::Place, new: &NewVersion<'_, K, V>, guard: &Guard<'_>) -> bool {
        List::insert(self, place, new, guard)
    }

    fn exchange(
        &self,
        place: &mut Self::Place,
        old: Node<K, V>,
        new: &NewVersion<'_, K, V>,
        guard: &Guard<'_>,
    ) -> bool {
        List::replace(self, place, old, new, guard)
    }

    fn unlink(&self, place: &mut Self::Place, version: Node<K, V>, guard: &Guard<'_>) -> bool {
        self.remove(place, version, guard)
    }

    #[inline]
    fn any(&self, key: &K, guard: &Guard<'_>) -> Option<Node<K, V>> {
        self.get(Rank { key, born: ANY }, guard)
    }

    fn any_of_many<'k>(
        &self,
        keys: impl ExactSizeIterator<Item = &'k K>,
        guard: &Guard<'_>,
        each: impl FnMut(usize, Option<Node<K, V>>),
    ) {
        self.get_many(keys.map(|key| Rank { key, born: ANY }), guard, each);
    }

    fn last_before(&self, bound: Rank<'_, K>, guard: &Guard<'_>) -> Option<Node<K, V>> {
        self.stretch_before(Some(bound), 0, guard)
    }

    fn first_from(&self, from: Option<Rank<'_, K>>, guard: &Guard<'_>) -> Option<Node<K, V>> {
        self.locate(from.map(|rank| (rank, true)), guard)
    }

    #[inline]
    fn behind(&self, version: Node<K, V>, guard: &Guard<'_>) -> Option<Node<K, V>> {
        List::next(self, version, guard)
    }

    fn row_behind(
        &self,
        from: Rank<'_, K>,
        spacing: usize,
        limit: usize,
        guard: &Guard<'_>,
    ) -> Vec<Node<K, V>> {
        self.tall_behind(from, spacing, limit, guard)
    }

    fn row_before(
        &self,
        to: Option<Rank<'_, K>>,
        spacing: usize,
        limit: usize,
        guard: &Guard<'_>,
    ) -> Vec<Node<K, V>> {
        self.tall_before(to, spacing, limit, guard)
    }

    fn gather(
        &self,
        starts: &[Node<K, V>],
        beyond: impl Fn(Node<K, V>) -> bool,
        lanes: &mut Vec<Vec<Node<K, V>>>,
        guard: &Guard<'_>,
        keep: impl FnMut(Node<K, V>) -> bool,
    ) {
        self.walk_lanes(starts, beyond, lanes, guard, keep);
    }

    fn sample(&self, wanted: usize, guard: &Guard<'_>) -> Vec<Node<K, V>> {
        let mut sample = Vec::new();
        // Each level has about twice the nodes of the one above: the first with enough has few more.
        for level in (0..MAX_HEIGHT).rev() {
            sample.clear();
            self.visit_level(level, guard, |node| {
                sample.push(node);
                ControlFlow::Continue(())
            });
            if sample.len() >= wanted {
                break;
            }
        }
        sample
    }

    fn overhead(&self, guard: &Guard<'_>) -> (usize, usize) {
        List::overhead(self, guard)
    }

    fn give_back(&self, guard: &Guard<'_>) {
        if self.overhead(guard).1 > 0 {
            self.renew_shortcuts(guard);
        }
    }

    fn validate(&self) -> Result<usize, Violation> {
        List::validate(self).map(|(versions, _)| versions)
    }
}
