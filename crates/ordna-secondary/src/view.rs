//! Views: the state of all indexes at one version vector.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use ordna::Snapshot;
use ordna::index::Direction;
use ordna::tuple::Value;

use crate::define::id_of;
use crate::error::Error;
use crate::index::{Index, IndexInfo, IndexState};
use crate::query::{IndexReader, KeyBounds, Page, Query, Range};
use crate::version_vector::VersionVector;

/// An index in a snapshot point; `snapshot` is `None` until the index is built.
pub(crate) struct IndexSnapshot {
    pub index: Arc<Index>,
    pub snapshot: Option<Snapshot<[u8], u64>>,
}

/// The state of all indexes at one version vector.
pub(crate) struct SnapshotPoint {
    pub number: u64,
    pub vector: VersionVector,
    /// Number of changes that were fed before the snapshot point.
    pub fed: u64,
    pub taken: Instant,
    pub indexes: BTreeMap<String, IndexSnapshot>,
}

/// A view of all indexes at a snapshot point, which contains exactly the changes up to its
/// [`vector`](Self::vector).
///
/// A view never changes. As long as it exists, the entries that it shows stay in memory.
#[derive(Clone)]
pub struct View(pub(crate) Arc<SnapshotPoint>);

impl std::fmt::Debug for View {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("View").field("vector", &self.0.vector).finish_non_exhaustive()
    }
}

impl View {
    /// Returns the positions up to which the view contains changes.
    pub fn vector(&self) -> &VersionVector {
        &self.0.vector
    }

    /// Returns when the snapshot point was taken.
    pub fn taken(&self) -> Instant {
        self.0.taken
    }

    /// Returns the number of the snapshot point. Later snapshot points have larger numbers.
    pub fn number(&self) -> u64 {
        self.0.number
    }

    /// Returns the names of the indexes, sorted.
    pub fn indexes(&self) -> impl Iterator<Item = &str> {
        self.0.indexes.keys().map(String::as_str)
    }

    /// Runs a query. O(log n + offset + limit).
    ///
    /// # Errors
    /// The index does not exist, is not built or is incomplete, or the query does not fit it.
    pub fn query(&self, index: &str, query: &Query) -> Result<Page, Error> {
        self.of(index)?.page(query)
    }

    /// Returns the number of entries in a range of the part that follows `prefix`. O(1) for the
    /// whole index, otherwise O(log n + l) for l leaves in the range, with some 40 entries each. If
    /// this is the latest state, l only includes leaves that have changed since the last count.
    ///
    /// # Errors
    /// The same as [`query`](Self::query).
    pub fn count(&self, index: &str, prefix: &[Value], range: &Range) -> Result<usize, Error> {
        self.of(index)?.count(prefix, range)
    }

    /// Works like [`count`](Self::count), but exact only up to `most`. If there are more entries,
    /// returns some number above `most`. At most O(log n + `most`).
    ///
    /// # Errors
    /// The same as [`query`](Self::query).
    pub fn count_up_to(
        &self,
        index: &str,
        prefix: &[Value],
        range: &Range,
        most: usize,
    ) -> Result<usize, Error> {
        self.of(index)?.count_up_to(prefix, range, most)
    }

    /// Calls `each` with every key between two bounds, and with the length of the id at its end,
    /// until `each` breaks. [`IndexDefinition::bounds`](crate::IndexDefinition::bounds) computes
    /// the bounds. O(log n + entries visited).
    ///
    /// # Errors
    /// The index does not exist, is not built or is incomplete.
    pub fn visit(
        &self,
        index: &str,
        (lower, upper): &KeyBounds,
        reverse: bool,
        mut each: impl FnMut(&[u8], usize) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        let direction = if reverse { Direction::Descending } else { Direction::Ascending };
        let at = self.of(index)?;
        at.visit(lower, upper, direction, |key, value| each(key, id_of(key, value).len()));
        Ok(())
    }

    fn of(&self, name: &str) -> Result<IndexReader<'_>, Error> {
        let found = self.0.indexes.get(name);
        let found = found.ok_or_else(|| Error::UnknownIndex(name.to_owned()))?;
        let index = &*found.index;
        if let Some(reason) = index.failure.get() {
            return Err(Error::Failed { index: name.to_owned(), reason: reason.clone() });
        }
        let building = || Error::Building {
            index: name.to_owned(),
            done: index.built.load(Ordering::Relaxed),
        };
        let snapshot = found.snapshot.as_ref().ok_or_else(building)?;
        Ok(IndexReader { definition: &index.definition, uid: index.uid, snapshot })
    }
}

/// Describes an index as of the snapshot point `point`.
pub(crate) fn info(index: &Index, point: &SnapshotPoint) -> IndexInfo {
    let snapshot = point.indexes.get(&index.definition.name);
    let snapshot = snapshot.filter(|found| found.index.uid == index.uid);
    let snapshot = snapshot.and_then(|found| found.snapshot.as_ref());
    IndexInfo {
        definition: index.definition.clone(),
        uid: index.uid,
        state: match (index.failure.get(), snapshot) {
            (Some(reason), _) => IndexState::Failed(reason.clone()),
            (None, Some(_)) => IndexState::Ready,
            (None, None) => IndexState::Building,
        },
        built: index.built.load(Ordering::Relaxed),
        entries: snapshot.map_or(0, Snapshot::len),
        bytes: index.entries.memory(),
        reverse_bytes: index.reverse_bytes.iter().map(|bytes| bytes.load(Ordering::Relaxed)).sum(),
        writes: index.writes.load(Ordering::Relaxed),
        wrong_type: index.wrong_type.load(Ordering::Relaxed),
        too_large: index.too_large.load(Ordering::Relaxed),
    }
}
