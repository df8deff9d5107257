//! Iteration over the entries of a typed map.

use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};

use super::{MapError, Stored};
use crate::index::{Range, Source};
use crate::key::prefix_end;
use crate::tuple::{Decode, Like, Reader};

/// Bounds in the bytes of the store.
pub(super) type ByteBounds = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// The bounds of a whole map whose keys start with `lead`.
pub(super) fn all_with_lead(lead: &[u8]) -> ByteBounds {
    let end = prefix_end(lead).map_or(Bound::Unbounded, Bound::Excluded);
    (Bound::Included(lead.to_vec()), end)
}

/// The bounds in the bytes of the store.
pub(super) fn byte_bounds<K, Q, R>(lead: &[u8], bounds: &R) -> ByteBounds
where
    Q: Like<K> + ?Sized,
    R: RangeBounds<Q>,
{
    let encode = |key: &Q| {
        let mut out = lead.to_vec();
        key.encode(&mut out);
        out
    };
    let (first, end) = all_with_lead(lead);
    let lower = match bounds.start_bound() {
        Bound::Unbounded => first,
        bound => bound.map(encode),
    };
    let upper = match bounds.end_bound() {
        Bound::Unbounded => end,
        bound => bound.map(encode),
    };
    (lower, upper)
}

/// Both bounds, borrowed.
pub(super) fn by_ref(byte_bounds: &ByteBounds) -> (Bound<&[u8]>, Bound<&[u8]>) {
    (byte_bounds.0.as_ref().map(Vec::as_slice), byte_bounds.1.as_ref().map(Vec::as_slice))
}

/// Reads a key whose first `lead` bytes name the map.
pub(super) fn key_of<K: Decode>(key: &[u8], lead: usize) -> Result<K, MapError> {
    let mut reader = Reader::new(key.get(lead..).unwrap_or_default());
    let decoded = K::decode(&mut reader).and_then(|decoded| reader.finish().map(|()| decoded));
    decoded.map_err(|source| MapError::Key { key: key.to_vec(), source })
}

/// The entries of a map, of a snapshot, or of a range of them, in order, from both ends.
///
/// Reads ahead in chunks and holds no lock and no reading section between calls. O(log n), then
/// amortized O(1) per entry and the decoding.
pub struct Iter<'a, K, V, S: Source<Key = [u8], Value = [u8]>> {
    entries: Range<'a, S>,
    lead: usize,
    types: PhantomData<fn() -> (K, V)>,
}

impl<'a, K, V, S: Source<Key = [u8], Value = [u8]>> Iter<'a, K, V, S> {
    pub(super) fn new(entries: Range<'a, S>, lead: usize) -> Self {
        Self { entries, lead, types: PhantomData }
    }
}

impl<K: Decode, V: Stored, S: Source<Key = [u8], Value = [u8]>> Iter<'_, K, V, S> {
    fn decode(&self, (key, value): (Vec<u8>, Vec<u8>)) -> Result<(K, V), MapError> {
        Ok((key_of(&key, self.lead)?, V::load(&value)?))
    }
}

impl<K: Decode, V: Stored, S: Source<Key = [u8], Value = [u8]>> Iterator for Iter<'_, K, V, S> {
    type Item = Result<(K, V), MapError>;

    fn next(&mut self) -> Option<Self::Item> {
        let entry = self.entries.next()?;
        Some(self.decode(entry))
    }
}

impl<K, V, S> DoubleEndedIterator for Iter<'_, K, V, S>
where
    K: Decode,
    V: Stored,
    S: Source<Key = [u8], Value = [u8]>,
{
    fn next_back(&mut self) -> Option<Self::Item> {
        let entry = self.entries.next_back()?;
        Some(self.decode(entry))
    }
}

/// The reading half of a typed map, once for maps and once for snapshots.
///
/// The type has the fields `lead` (what starts its keys) and the named one, the store or snapshot.
macro_rules! reads {
    ($source:ident: $type:ty) => {
        /// Calls `f` with the bytes of a key.
        #[inline]
        fn with_key<Q: Like<K> + ?Sized, R>(&self, key: &Q, f: impl FnOnce(&[u8]) -> R) -> R {
            with_scratch(|buffer| {
                buffer.extend_from_slice(&self.lead);
                key.encode(buffer);
                f(buffer)
            })
        }

        fn iter_over(&self, byte_bounds: &ByteBounds) -> Iter<'_, K, V, $type> {
            Iter::new(self.$source.range(by_ref(byte_bounds)), self.lead.len())
        }

        /// The value of `key`. O(log n).
        ///
        /// # Errors
        /// The value is of another type.
        pub fn get<Q: Like<K> + ?Sized>(&self, key: &Q) -> Result<Option<V>, MapError> {
            let value = self.with_key(key, |key| self.$source.get_with(key, V::load));
            Ok(value.transpose()?)
        }

        /// Whether `key` is present. O(log n).
        pub fn contains_key<Q: Like<K> + ?Sized>(&self, key: &Q) -> bool {
            self.with_key(key, |key| self.$source.contains(key))
        }

        /// All entries, in order, from both ends.
        pub fn iter(&self) -> Iter<'_, K, V, $type> {
            self.iter_over(&all_with_lead(&self.lead))
        }

        /// All keys, in order, from both ends. Reads the values too.
        pub fn keys(&self) -> impl DoubleEndedIterator<Item = Result<K, MapError>> + Send + '_ {
            self.iter().map(|entry| entry.map(|(key, _)| key))
        }

        /// All values in the order of their keys, from both ends.
        pub fn values(&self) -> impl DoubleEndedIterator<Item = Result<V, MapError>> + Send + '_ {
            self.iter().map(|entry| entry.map(|(_, value)| value))
        }

        /// The entries within `bounds`, in order, from both ends. Bounds that cross hold nothing.
        pub fn range<Q, R>(&self, bounds: R) -> Iter<'_, K, V, $type>
        where
            Q: Like<K> + ?Sized,
            R: RangeBounds<Q>,
        {
            self.iter_over(&byte_bounds(&self.lead, &bounds))
        }

        /// The entries whose keys begin with `prefix`: with the first elements of a tuple or
        /// struct, with the beginning of a string. In order, from both ends.
        pub fn prefix<P: Prefix<K> + ?Sized>(&self, prefix: &P) -> Iter<'_, K, V, $type> {
            let mut start = self.lead.to_vec();
            prefix.encode_prefix(&mut start);
            self.iter_over(&all_with_lead(&start))
        }

        /// The entry with the smallest key. O(log n).
        ///
        /// # Errors
        /// It is of other types.
        pub fn first_key_value(&self) -> Result<Option<(K, V)>, MapError> {
            self.nearest(&all_with_lead(&self.lead), Direction::Ascending)
        }

        /// The entry with the largest key. O(log n).
        ///
        /// # Errors
        /// It is of other types.
        pub fn last_key_value(&self) -> Result<Option<(K, V)>, MapError> {
            self.nearest(&all_with_lead(&self.lead), Direction::Descending)
        }

        /// The entry with the largest key that is at most `key`. O(log n).
        ///
        /// # Errors
        /// It is of other types.
        pub fn floor<Q: Like<K> + ?Sized>(&self, key: &Q) -> Result<Option<(K, V)>, MapError> {
            let bounds = (Bound::Unbounded, Bound::Included(key));
            self.nearest(&byte_bounds::<K, Q, _>(&self.lead, &bounds), Direction::Descending)
        }

        /// The entry with the smallest key that is at least `key`. O(log n).
        ///
        /// # Errors
        /// It is of other types.
        pub fn ceiling<Q: Like<K> + ?Sized>(&self, key: &Q) -> Result<Option<(K, V)>, MapError> {
            let bounds = (Bound::Included(key), Bound::Unbounded);
            self.nearest(&byte_bounds::<K, Q, _>(&self.lead, &bounds), Direction::Ascending)
        }

        fn nearest(
            &self,
            byte_bounds: &ByteBounds,
            direction: Direction,
        ) -> Result<Option<(K, V)>, MapError> {
            let (mut found, (lower, upper)) = (None, by_ref(byte_bounds));
            self.$source.visit(lower, upper, direction, |key, value| {
                let decoded = key_of(key, self.lead.len());
                found = Some(decoded.and_then(|key| Ok((key, V::load(value)?))));
                ControlFlow::Break(())
            });
            found.transpose()
        }

        /// How many keys are below `key`: its position from the front, if it is there. 40 entries
        /// at a time.
        pub fn rank<Q: Like<K> + ?Sized>(&self, key: &Q) -> usize {
            self.count(&byte_bounds::<K, Q, _>(
                &self.lead,
                &(Bound::Unbounded, Bound::Excluded(key)),
            ))
        }

        /// The entry at this position from the front, the first one at 0. 40 entries at a time.
        ///
        /// # Errors
        /// It is of other types.
        pub fn select(&self, position: usize) -> Result<Option<(K, V)>, MapError> {
            let before = match self.lead.is_empty() {
                true => 0,
                false => self.$source.rank(&self.lead),
            };
            let found = self.$source.select_with(before + position, |key, value| {
                // The entries of other maps follow.
                key.starts_with(&self.lead).then(|| {
                    key_of(key, self.lead.len()).and_then(|key| Ok((key, V::load(value)?)))
                })
            });
            found.flatten().transpose()
        }

        /// Counts the entries within the bounds.
        fn count(&self, byte_bounds: &ByteBounds) -> usize {
            let (lower, upper) = by_ref(byte_bounds);
            self.$source.count(lower, upper)
        }
    };
}
pub(super) use reads;
