//! [`Batch`]: typed writes that are applied as one step.

use std::ops::Range;
use std::sync::Arc;

use super::map::Map;
use super::mode::Mode;
use super::stored::{StoreAs, Stored};
use crate::tuple::{Decode, Like};
use crate::{Error, Store, Write};

/// Writes to maps of one store. Every snapshot holds all of them or none.
///
/// ```
/// use std::sync::Arc;
/// use ordna::{Store, Table};
///
/// let store = Arc::new(Store::new());
/// let towns: Table<String, u64> = Table::named(&store, "towns")?;
/// let by_size: Table<(u64, String), ()> = Table::named(&store, "towns by size")?;
/// let mut batch = towns.batch();
/// batch.insert(&towns, "Lund", 94_393)?;
/// batch.insert(&by_size, (94_393, "Lund"), ())?;
/// batch.commit()?;
/// assert_eq!((towns.len(), by_size.len()), (1, 1));
/// # Ok::<(), ordna::Error>(())
/// ```
#[derive(Debug)]
pub struct Batch {
    store: Arc<Store<[u8], [u8]>>,
    /// Keys and values, one after the other.
    bytes: Vec<u8>,
    writes: Vec<(Range<usize>, Option<Range<usize>>)>,
}

impl<K: Decode, V: Stored, M: Mode> Map<K, V, M> {
    /// Creates an empty batch of writes to this map and others of its store.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use ordna::{Store, Table};
    ///
    /// let store = Arc::new(Store::new());
    /// let ages: Table<String, u32> = Table::named(&store, "ages")?;
    /// ages.put("ann", 31)?;
    /// let mut batch = ages.batch();
    /// batch.insert(&ages, "bob", 27)?;
    /// batch.commit()?;
    /// assert_eq!(ages.len(), 2);
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn batch(&self) -> Batch {
        Batch::new(&self.store)
    }
}

impl Batch {
    /// Creates an empty batch for maps of this store.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use ordna::Store;
    /// use ordna::typed::Batch;
    ///
    /// let store = Arc::new(Store::new());
    /// assert!(Batch::new(&store).is_empty());
    /// ```
    pub fn new(store: &Arc<Store<[u8], [u8]>>) -> Self {
        Self { store: Arc::clone(store), bytes: Vec::new(), writes: Vec::new() }
    }

    /// Returns the number of writes.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use ordna::{Store, Table};
    ///
    /// let store = Arc::new(Store::new());
    /// let ages: Table<String, u32> = Table::named(&store, "ages")?;
    /// ages.put("ann", 31)?;
    /// let mut batch = ages.batch();
    /// batch.remove(&ages, "ann")?;
    /// assert_eq!(batch.len(), 1);
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn len(&self) -> usize {
        self.writes.len()
    }

    /// Returns whether there are no writes.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use ordna::{Store, Table};
    ///
    /// let store = Arc::new(Store::new());
    /// let ages: Table<String, u32> = Table::named(&store, "ages")?;
    /// ages.put("ann", 31)?;
    /// assert!(ages.batch().is_empty());
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    /// Adds a write that sets the value of `key` in `map`.
    ///
    /// # Errors
    /// The map belongs to another store, or the value cannot be encoded.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use ordna::{Store, Table};
    ///
    /// let store = Arc::new(Store::new());
    /// let ages: Table<String, u32> = Table::named(&store, "ages")?;
    /// ages.put("ann", 31)?;
    /// let mut batch = ages.batch();
    /// batch.insert(&ages, "bob", 27)?;
    /// assert_eq!(ages.get("bob")?, None); // The batch is not applied yet.
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn insert<K: Decode, V: Stored, M: Mode>(
        &mut self,
        map: &Map<K, V, M>,
        key: impl Like<K>,
        value: impl StoreAs<V>,
    ) -> Result<&mut Self, Error> {
        let key = self.key(map, key)?;
        let start = self.bytes.len();
        value.with_bytes(|value| self.bytes.extend_from_slice(value))?;
        self.writes.push((key, Some(start..self.bytes.len())));
        Ok(self)
    }

    /// Adds a write that removes `key` from `map`. A key that is too long is absent.
    ///
    /// # Errors
    /// The map belongs to another store.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use ordna::{Store, Table};
    ///
    /// let store = Arc::new(Store::new());
    /// let ages: Table<String, u32> = Table::named(&store, "ages")?;
    /// ages.put("ann", 31)?;
    /// let mut batch = ages.batch();
    /// batch.remove(&ages, "ann")?;
    /// batch.commit()?;
    /// assert!(ages.is_empty());
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn remove<K: Decode, V: Stored, M: Mode>(
        &mut self,
        map: &Map<K, V, M>,
        key: impl Like<K>,
    ) -> Result<&mut Self, Error> {
        let key = self.key(map, key)?;
        if key.len() <= crate::key::MAX_LEN {
            self.writes.push((key, None));
        }
        Ok(self)
    }

    fn key<K: Decode, V: Stored, M: Mode>(
        &mut self,
        map: &Map<K, V, M>,
        key: impl Like<K>,
    ) -> Result<Range<usize>, Error> {
        if !Arc::ptr_eq(&map.store, &self.store) {
            return Err(Error::OtherStore);
        }
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&map.lead);
        key.encode(&mut self.bytes);
        Ok(start..self.bytes.len())
    }

    /// Applies the writes in order; see [`Store::write_batch`].
    ///
    /// # Errors
    /// A key or value is too long, or the memory limit is reached; nothing is applied.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use ordna::{Store, Table};
    ///
    /// let store = Arc::new(Store::new());
    /// let ages: Table<String, u32> = Table::named(&store, "ages")?;
    /// ages.put("ann", 31)?;
    /// let mut batch = ages.batch();
    /// batch.insert(&ages, "bob", 27)?;
    /// batch.commit()?;
    /// assert_eq!(ages.get("bob")?, Some(27));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn commit(self) -> Result<(), Error> {
        let writes = self.writes.iter().map(|(key, value)| {
            let key = &self.bytes[key.clone()];
            match value {
                Some(value) => Write::put(key, &self.bytes[value.clone()]),
                None => Write::Remove(key),
            }
        });
        self.store.write_batch(&writes.collect::<Vec<_>>())
    }
}
