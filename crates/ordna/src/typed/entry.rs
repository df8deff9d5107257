//! [`Entry`]: operations on a key that may be present or absent.

use super::map::Map;
use super::mode::Mode;
use super::stored::{StoreAs, Stored};
use crate::tuple::{Decode, Like};
use crate::{Change, Error};

/// A key of a [`Map`], present or absent, returned by [`Map::entry`]. Nothing is locked: each
/// method that consumes the entry is one step.
///
/// ```
/// let counts: ordna::Map<String, u64> = ordna::Map::new();
/// counts.entry("a").or_insert(0)?;
/// counts.entry("a").and_modify(|count| *count += 1).or_insert(1)?;
/// assert_eq!(counts.get("a"), Some(1));
/// # Ok::<(), ordna::Error>(())
/// ```
#[must_use = "an entry changes nothing before `or_insert`, `or_insert_with` or `or_default`"]
pub struct Entry<'a, K, V, M, F = fn(&mut V)> {
    map: &'a Map<K, V, M>,
    /// The key in its encoded form.
    key: Vec<u8>,
    modify: Option<F>,
}

impl<K: Decode, V: Stored, M: Mode> Map<K, V, M> {
    /// Returns the entry of a key, to insert a value or change the present one in one step.
    ///
    /// ```
    /// let words: ordna::Map<String, u64> = ordna::Map::new();
    /// for word in "a rose is a rose".split(' ') {
    ///     words.entry(word).and_modify(|count| *count += 1).or_insert(1)?;
    /// }
    /// assert_eq!(words.get("rose"), Some(2));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn entry(&self, key: impl Like<K>) -> Entry<'_, K, V, M> {
        Entry::new(self, self.with_key(key, <[u8]>::to_vec))
    }
}

impl<'a, K: Decode, V: Stored, M: Mode> Entry<'a, K, V, M> {
    fn new(map: &'a Map<K, V, M>, key: Vec<u8>) -> Self {
        Self { map, key, modify: None }
    }

    /// Changes the value with `modify` if the key is present. `modify` may run several times, each
    /// time on an unmodified value; the rules of [`Map::modify`] apply.
    ///
    /// ```
    /// let ages: ordna::Map<String, u32> = [("ann", 31), ("bob", 27)].into_iter().collect();
    /// assert_eq!(ages.entry("ann").and_modify(|age| *age += 1).or_insert(0)?, 32);
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn and_modify<F: FnMut(&mut V)>(self, modify: F) -> Entry<'a, K, V, M, F> {
        Entry { map: self.map, key: self.key, modify: Some(modify) }
    }
}

impl<K: Decode, V: Stored, M: Mode, F: FnMut(&mut V)> Entry<'_, K, V, M, F> {
    /// Inserts `value` if the key is absent. Returns a copy of the resulting value. O(log n).
    ///
    /// # Errors
    /// See [errors](Map#errors).
    ///
    /// ```
    /// let ages: ordna::Map<String, u32> = [("ann", 31), ("bob", 27)].into_iter().collect();
    /// assert_eq!((ages.entry("eve").or_insert(40)?, ages.entry("ann").or_insert(40)?), (40, 31));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn or_insert(self, value: impl StoreAs<V>) -> Result<V, Error>
    where
        V: StoreAs<V>,
    {
        let made = value.with_bytes(V::load)??;
        self.or_insert_with(|| made)
    }

    /// Inserts the default value if the key is absent. Returns a copy of the resulting value. O(log
    /// n).
    ///
    /// # Errors
    /// See [errors](Map#errors).
    ///
    /// ```
    /// let ages: ordna::Map<String, u32> = [("ann", 31), ("bob", 27)].into_iter().collect();
    /// assert_eq!(ages.entry("eve").or_default()?, 0);
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn or_default(self) -> Result<V, Error>
    where
        V: StoreAs<V> + Default,
    {
        self.or_insert_with(V::default)
    }

    /// Inserts the value that `make` returns if the key is absent. Returns a copy of the resulting
    /// value. `make` may use the map. O(log n).
    ///
    /// # Errors
    /// See [errors](Map#errors).
    ///
    /// ```
    /// let ages: ordna::Map<String, u32> = [("ann", 31), ("bob", 27)].into_iter().collect();
    /// assert_eq!(ages.entry("eve").or_insert_with(|| ages.len() as u32)?, 2);
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn or_insert_with(mut self, make: impl FnOnce() -> V) -> Result<V, Error>
    where
        V: StoreAs<V>,
    {
        if let Some(value) = self.change(None)? {
            return Ok(value);
        }
        let made = make().with_bytes(<[u8]>::to_vec)?;
        match self.change(Some(&made))? {
            Some(value) => Ok(value),
            None => Ok(V::load(&made)?),
        }
    }

    /// Changes the value if the key is present, and otherwise inserts `made`, if it is given.
    /// Returns the resulting value if the key was present.
    fn change(&mut self, made: Option<&[u8]>) -> Result<Option<V>, Error>
    where
        V: StoreAs<V>,
    {
        let mut present: Result<Option<V>, Error> = Ok(None);
        self.map.store.modify(self.key.as_slice(), |current| {
            let Some(current) = current else {
                present = Ok(None);
                return made.map_or(Change::Keep, |made| Change::Put(made.to_vec()));
            };
            let changed = V::load(current).and_then(|mut value| {
                let Some(modify) = &mut self.modify else { return Ok((value, Change::Keep)) };
                modify(&mut value);
                let bytes = value.with_bytes(<[u8]>::to_vec)?;
                Ok((value, Change::Put(bytes)))
            });
            match changed {
                Ok((value, change)) => {
                    present = Ok(Some(value));
                    change
                }
                Err(error) => {
                    present = Err(error.into());
                    Change::Keep
                }
            }
        })?;
        present
    }
}
