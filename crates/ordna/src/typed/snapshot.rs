//! [`MapSnapshot`]: the state of a typed map in a snapshot.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Bound, ControlFlow};

use super::cursor::Cursor;
use super::iter::{Iter, Keys, Values};
use super::mode::{Mode, Own, Types};
use super::range::{ByteBounds, MapRange, PrefixRange, from_key, key_of, to_key};
use super::reads::reads;
use super::scratch::with_scratch;
use super::stored::Stored;
use crate::tuple::{Decode, Like, Prefix};
use crate::{Direction, Error, Snapshot};

/// A state of a [`Map`](super::Map) that does not change. Clones share it.
///
/// ```
/// let ages: ordna::Map<String, u32> = [("ann", 31), ("bob", 27)].into_iter().collect();
/// let before = ages.snapshot();
/// ages.clear()?;
/// assert_eq!((before.get("ann"), before.iter().count()), (Some(31), 2));
/// # Ok::<(), ordna::Error>(())
/// ```
pub struct MapSnapshot<K, V, M = Own> {
    snapshot: Snapshot<[u8], [u8]>,
    lead: Box<[u8]>,
    types: Types<K, V, M>,
}

impl<K, V, M> Clone for MapSnapshot<K, V, M> {
    fn clone(&self) -> Self {
        Self::new(self.snapshot.clone(), &self.lead)
    }
}

impl<K, V, M> fmt::Debug for MapSnapshot<K, V, M>
where
    K: Decode + fmt::Debug,
    V: Stored + fmt::Debug,
    M: Mode,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut map = f.debug_map();
        self.iter().for_each(|entry| M::debug::<K, V>(&mut map, entry));
        map.finish()
    }
}

impl<K, V, M> MapSnapshot<K, V, M> {
    pub(super) fn new(snapshot: Snapshot<[u8], [u8]>, lead: &[u8]) -> Self {
        Self { snapshot, lead: lead.into(), types: PhantomData }
    }

    /// Returns the snapshot of the store, in which [`Map::at`](super::Map::at) can read other maps.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use ordna::{Store, Table};
    ///
    /// let store = Arc::new(Store::new());
    /// let ages: Table<String, u32> = Table::named(&store, "ages")?;
    /// ages.put("ann", 31)?;
    /// let teams: Table<String, u32> = Table::named(&store, "teams")?;
    /// let before = ages.snapshot();
    /// teams.put("red", 5)?;
    /// assert!(teams.at(before.snapshot())?.is_empty());
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn snapshot(&self) -> &Snapshot<[u8], [u8]> {
        &self.snapshot
    }
}

impl<K: Decode, V: Stored, M: Mode> MapSnapshot<K, V, M> {
    reads!(snapshot: Snapshot<[u8], [u8]>);

    /// Returns the number of entries. O(1) if the map covers its whole store and no entry ever had
    /// a deadline; otherwise see [`count`](Self::count).
    ///
    /// ```
    /// let ages: ordna::Map<String, u32> = [("ann", 31), ("bob", 27)].into_iter().collect();
    /// let before = ages.snapshot();
    /// ages.clear()?;
    /// assert_eq!(before.len(), 2);
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn len(&self) -> usize {
        if self.lead.is_empty() {
            return self.snapshot.len();
        }
        self.count(..)
    }
}

impl<'a, K: Decode, V: Stored, M: Mode> IntoIterator for &'a MapSnapshot<K, V, M> {
    type Item = M::Read<(K, V)>;
    type IntoIter = Iter<K, V, M, &'a Snapshot<[u8], [u8]>>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// The iterator owns the snapshot and is `Send + 'static`.
impl<K: Decode, V: Stored, M: Mode> IntoIterator for MapSnapshot<K, V, M> {
    type Item = M::Read<(K, V)>;
    type IntoIter = Iter<K, V, M, Snapshot<[u8], [u8]>>;

    fn into_iter(self) -> Self::IntoIter {
        Iter::new(self.snapshot, ByteBounds::with_lead(&self.lead), self.lead.len())
    }
}
