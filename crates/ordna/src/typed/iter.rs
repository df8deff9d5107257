//! Iteration over the entries of a typed map.

use std::iter::FusedIterator;
use std::marker::PhantomData;
use std::sync::Arc;

use super::mode::{Mode, Types};
use super::range::{ByteBounds, key_of};
use super::stored::Stored;
use crate::index::{Direction, Ends, Source};
use crate::store::Transaction;
use crate::tuple::Decode;
use crate::{Error, Snapshot, Store};

type Bytes = [u8];

/// A store of byte strings.
pub type ByteStore = Store<[u8], [u8]>;

/// A source from which a map's entries are read: a store or a snapshot.
pub trait MapSource: Source<Key = Bytes, Value = Bytes> {}
impl MapSource for Store<Bytes, Bytes> {}
impl MapSource for Snapshot<Bytes, Bytes> {}
impl MapSource for Transaction<'_, Bytes, Bytes> {}

/// The way in which an iterator holds its source: by reference or as a handle.
pub trait Holds {
    #[doc(hidden)]
    type Source: MapSource;
    #[doc(hidden)]
    fn source(&self) -> &Self::Source;
}

impl<S: MapSource> Holds for &S {
    type Source = S;
    fn source(&self) -> &S {
        self
    }
}

impl Holds for Arc<Store<Bytes, Bytes>> {
    type Source = Store<Bytes, Bytes>;
    fn source(&self) -> &Self::Source {
        self
    }
}

impl Holds for Snapshot<Bytes, Bytes> {
    type Source = Self;
    fn source(&self) -> &Self {
        self
    }
}

/// The entries of a map, of a snapshot, or of a range of them, in order, from both ends.
///
/// Reads ahead in chunks and holds no lock and no reading section between calls. O(log n), then
/// amortized O(1) per entry, plus the decoding. An iterator that was created by value
/// ([`Map::into_iter`](super::Map), [`Map::into_range`](super::Map::into_range)) owns a handle of
/// its map and is `Send + 'static`, so that tasks and threads may own it.
///
/// ```
/// let ages: ordna::Map<String, u32> = [("ann", 31), ("bob", 27)].into_iter().collect();
/// let mut entries = ages.iter();
/// assert_eq!(entries.next_back(), Some(("bob".to_owned(), 27)));
/// assert_eq!(entries.next(), Some(("ann".to_owned(), 31)));
/// assert_eq!(entries.next(), None);
/// ```
pub struct Iter<K, V, M, H: Holds> {
    source: H,
    ends: Ends<H::Source>,
    lead: usize,
    types: Types<K, V, M>,
}

impl<K, V, M, H: Holds> Iter<K, V, M, H> {
    pub(super) fn new(source: H, ByteBounds(lower, upper): ByteBounds, lead: usize) -> Self {
        Self { source, ends: Ends::new(lower, upper), lead, types: PhantomData }
    }
}

impl<K: Decode, V: Stored, M: Mode, H: Holds> Iter<K, V, M, H> {
    /// Returns the next entry of one side, in encoded form.
    fn advance(&mut self, direction: Direction) -> Option<(&[u8], &[u8])> {
        let (key, value) = self.ends.advance(self.source.source(), direction)?;
        Some((key.get(self.lead..).unwrap_or_default(), value))
    }

    fn step<T>(
        &mut self,
        direction: Direction,
        read: impl FnOnce(&[u8], &[u8]) -> Result<T, Error>,
    ) -> Option<M::Read<T>> {
        self.advance(direction).map(|(key, value)| M::read(read(key, value)))
    }

    /// Calls `read` with the next key and its value, which is borrowed without a copy.
    ///
    /// ```
    /// let names: ordna::Map<u64, String> = [(1, "Lund"), (2, "Uppsala")].into_iter().collect();
    /// let (mut all, mut longest) = (names.iter(), 0);
    /// while let Some(len) = all.next_with(|_, name| name.len()) {
    ///     longest = longest.max(len);
    /// }
    /// assert_eq!(longest, 7);
    /// ```
    pub fn next_with<R>(&mut self, read: impl FnOnce(K, &V::Ref) -> R) -> Option<M::Read<R>> {
        self.step(Direction::Ascending, |key, value| {
            let key = key_of(key, 0)?;
            Ok(V::lend(value, |value| read(key, value))?)
        })
    }
}

fn entry<K: Decode, V: Stored>(key: &[u8], value: &[u8]) -> Result<(K, V), Error> {
    Ok((key_of(key, 0)?, V::load(value)?))
}

impl<K: Decode, V: Stored, M: Mode, H: Holds> Iterator for Iter<K, V, M, H> {
    type Item = M::Read<(K, V)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step(Direction::Ascending, entry)
    }
}

impl<K: Decode, V: Stored, M: Mode, H: Holds> DoubleEndedIterator for Iter<K, V, M, H> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.step(Direction::Descending, entry)
    }
}

impl<K: Decode, V: Stored, M: Mode, H: Holds> FusedIterator for Iter<K, V, M, H> {}

macro_rules! halves {
    ($($name:ident, $item:ident, $doc:literal, $read:expr;)*) => { $(
        #[doc = $doc]
        pub struct $name<K, V, M, H: Holds>(pub(super) Iter<K, V, M, H>);

        impl<K: Decode, V: Stored, M: Mode, H: Holds> Iterator for $name<K, V, M, H> {
            type Item = M::Read<$item>;

            fn next(&mut self) -> Option<Self::Item> {
                self.0.step(Direction::Ascending, $read)
            }
        }

        impl<K: Decode, V: Stored, M: Mode, H: Holds> DoubleEndedIterator for $name<K, V, M, H> {
            fn next_back(&mut self) -> Option<Self::Item> {
                self.0.step(Direction::Descending, $read)
            }
        }

        impl<K: Decode, V: Stored, M: Mode, H: Holds> FusedIterator for $name<K, V, M, H> {}
    )* };
}
halves! {
    Keys, K, "The keys of a map or snapshot, in order, from both ends; see [`Iter`].",
        |key, _| key_of(key, 0);
    Values, V, "The values of a map or snapshot, in the order of their keys; see [`Iter`].",
        |_, value| Ok(V::load(value)?);
}
