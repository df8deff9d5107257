//! A typed map at a snapshot.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Bound, ControlFlow, RangeBounds};

use super::iter::{ByteBounds, all_with_lead, by_ref, byte_bounds, key_of, reads};
use super::{Iter, MapError, Stored, with_scratch};
use crate::tuple::{Decode, Like, Prefix};
use crate::{Direction, Snapshot};

/// A state of a [`Map`](super::Map) that does not change.
pub struct MapSnapshot<K, V> {
    snapshot: Snapshot<[u8], [u8]>,
    lead: Box<[u8]>,
    types: PhantomData<fn() -> (K, V)>,
}

impl<K, V> Clone for MapSnapshot<K, V> {
    fn clone(&self) -> Self {
        Self::new(self.snapshot.clone(), &self.lead)
    }
}

impl<K, V> fmt::Debug for MapSnapshot<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MapSnapshot").field("snapshot", &self.snapshot).finish_non_exhaustive()
    }
}

impl<K, V> MapSnapshot<K, V> {
    pub(super) fn new(snapshot: Snapshot<[u8], [u8]>, lead: &[u8]) -> Self {
        Self { snapshot, lead: lead.into(), types: PhantomData }
    }

    /// The snapshot of the store; [`Map::at`](super::Map::at) reads other maps there.
    pub fn snapshot(&self) -> &Snapshot<[u8], [u8]> {
        &self.snapshot
    }
}

impl<K: Decode, V: Stored> MapSnapshot<K, V> {
    reads!(snapshot: Snapshot<[u8], [u8]>);

    /// Number of entries. O(1) if the map is all of its store and no entry ever expired; otherwise
    /// they are counted, O(n).
    pub fn len(&self) -> usize {
        if self.lead.is_empty() {
            return self.snapshot.len();
        }
        self.count(&all_with_lead(&self.lead))
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }
}

impl<'a, K: Decode, V: Stored> IntoIterator for &'a MapSnapshot<K, V> {
    type Item = Result<(K, V), MapError>;
    type IntoIter = Iter<'a, K, V, Snapshot<[u8], [u8]>>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}
