//! The records of the log with which a store is built. An opening sorts them and merges them with
//! the entries of the backup, which takes a fifth of the time of replaying them one by one.
//!
//! # Contract
//! Accepts complete blocks of puts and removals, up to [`MOST`] bytes, or fewer under a memory
//! limit. The module `replay_threads` replays the rest of the log. The last record of a key counts.

use std::borrow::Borrow;
use std::marker::PhantomData;
use std::thread;

use ordna_base::encoding::ByteRange;
use ordna_base::key::{common_prefix, head_at};
use ordna_base::simd::prefetch;
use ordna_base::sync::fault;
use ordna_base::{Key, Value};

use super::replay::Reading;
use crate::files::codec::Record;
use crate::files::error::BackupError;
use crate::store::SortedPart;
use crate::wal::reports::WalReplay;
use crate::{Error, Options, Put, Store};

/// Maximum size in bytes of the blocks and places that are held in memory.
const MOST: usize = 256 << 20;
/// Number of records ahead of the current one for which the memory is prefetched.
const AHEAD: usize = 8;
/// Maximum size of a group of keys with equal heads that is sorted by comparison. Groups that still
/// have equal heads after several prefixes are sorted by comparison, too.
const SMALL: usize = 32;
const PREFIXES: usize = 8;

/// The start of a record. Places are ordered by their heads, and with equal heads by their order in
/// the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    /// Eight bytes of the key, as a number.
    head: u64,
    block: u32,
    at: u32,
}

/// The first records of a log, divided in the same way as the shards of its backup.
pub(crate) struct LogRecords<K: Key + ?Sized> {
    blocks: Vec<Vec<u8>>,
    /// Size in bytes of the blocks and of the places of their records.
    held: usize,
    /// Maximum of `held`.
    most: usize,
    /// Lower bounds of all parts except the first.
    bounds: Vec<Option<K::Owned>>,
    parts: Vec<Vec<Place>>,
}

impl<K: Key + ?Sized> LogRecords<K> {
    /// Creates an empty collection. `bounds` are the lower bounds of all parts except the first.
    pub fn new(bounds: Vec<Option<K::Owned>>) -> Self {
        let parts = vec![Vec::new(); bounds.len() + 1];
        Self { blocks: Vec::new(), held: 0, most: MOST, bounds, parts }
    }

    /// Limits the size in bytes of the blocks and places, if `most` is less than [`MOST`].
    pub fn within(self, most: usize) -> Self {
        Self { most: most.min(MOST), ..self }
    }

    /// Returns the size in bytes of a block and of the places of its records.
    fn size(payload: &[u8], records: &[Record]) -> usize {
        payload.len() + records.len() * size_of::<Place>()
    }

    /// Reads the log, and for each block calls `tell` and takes the block, up to the first that is
    /// not accepted. Changes no file. Returns the result of the reading if nothing is left to do:
    /// all blocks are taken, and no file must be truncated.
    ///
    /// # Errors
    /// Errors of [`Reading::run`].
    pub fn read<V: Value + ?Sized>(
        &mut self,
        reading: &Reading<'_>,
        mut tell: impl FnMut(&[u8], &[Record]),
    ) -> Result<Option<WalReplay>, BackupError> {
        let mut is_refused = false;
        let read = reading.run::<K, V>(|payload, records| {
            if !self.accepts(&payload, &records) {
                is_refused = true;
                // Any error ends the reading.
                return Err(Error::OtherStore);
            }
            tell(&payload, &records);
            self.push(payload, &records);
            Ok(())
        });
        if is_refused {
            return Ok(None);
        }
        // A segment that was being created at the crash may be missing from the count without a
        // cut.
        let is_whole =
            |read: &WalReplay| read.cuts.is_empty() && read.segments == reading.segments.len();
        read.map(|read| Some(read).filter(is_whole))
    }

    /// Returns the number of blocks taken.
    pub fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Returns whether a block can be taken.
    fn accepts(&self, payload: &[u8], records: &[Record]) -> bool {
        let is_merged = |it: &Record| matches!(it, Record::Put { .. } | Record::Remove { .. });
        let held = self.held + Self::size(payload, records);
        held <= self.most && records.iter().all(is_merged)
    }

    /// Takes a block, which must be accepted.
    fn push(&mut self, payload: Vec<u8>, records: &[Record]) {
        let (block, mut at) = (self.blocks.len() as u32, 0);
        self.held += Self::size(&payload, records);
        for record in records {
            let (key, end) = match record {
                Record::Put { key, value, .. } => (key, value.end),
                Record::Remove { key } => (key, key.end),
                _ => return,
            };
            let view = K::decode(&payload, key.clone());
            let key: &K = view.borrow();
            let is_below =
                |bound: &Option<K::Owned>| bound.as_ref().is_none_or(|it| it.borrow() <= key);
            let part = self.bounds.partition_point(is_below);
            if let Some(part) = self.parts.get_mut(part) {
                part.push(Place { head: key.head(), block, at: at as u32 });
            }
            at = end;
        }
        self.blocks.push(payload);
    }

    /// Returns the records of each part, which are not sorted yet.
    pub fn parts<V: Value + ?Sized>(&mut self) -> Vec<LogPart<'_, K, V>> {
        let Self { blocks, parts, .. } = self;
        let parts = std::mem::take(parts).into_iter();
        parts.map(|places| LogPart { blocks, places, kinds: PhantomData }).collect()
    }

    /// Builds a store from these records, which have a single part.
    pub fn into_store<V: Value + ?Sized>(mut self, options: Options) -> Result<Store<K, V>, Error> {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let parts = self.parts::<V>().into_iter();
        let parts = parts.flat_map(|part| part.sorted().split(4 * threads)).collect();
        Store::from_parts(options, parts)
    }
}

/// Marker for the types of keys and values. It may be sent to other threads.
type Kinds<K, V> = PhantomData<(fn(&K), fn(&V))>;

/// The records of a part, in the order of the log.
pub(crate) struct LogPart<'a, K: ?Sized, V: ?Sized> {
    blocks: &'a [Vec<u8>],
    places: Vec<Place>,
    kinds: Kinds<K, V>,
}

impl<'a, K: Key + ?Sized, V: Value + ?Sized> LogPart<'a, K, V> {
    /// Sorts the records by their keys. The records of one key keep the order of the log.
    pub fn sorted(mut self) -> LogCursor<'a, K, V> {
        let mut places = std::mem::take(&mut self.places);
        places.sort_unstable();
        self.sort_groups(&mut places, 0, PREFIXES);
        LogCursor { part: Self { places, ..self }, next: 0, ahead: None, front: None }.begun()
    }

    fn read(&self, place: Place) -> Option<Logged<'a>> {
        let payload = self.blocks.get(place.block as usize)?;
        match Record::decode::<K, V>(payload, &mut (place.at as usize))? {
            Record::Put { key, value, expires_at } => {
                Some(Logged { payload, key, put: Some((value, expires_at)) })
            }
            Record::Remove { key } => Some(Logged { payload, key, put: None }),
            _ => None,
        }
    }

    /// Returns the bytes of a record's key.
    fn key(&self, place: Place) -> &'a [u8] {
        self.read(place).map(|logged| logged.key()).unwrap_or_default()
    }

    /// Sorts the groups of places with equal heads. The keys of a group share their first `known`
    /// bytes, except for keys that are shorter.
    fn sort_groups(&self, places: &mut [Place], known: usize, prefixes: usize) {
        if K::HEAD_IS_KEY {
            return;
        }
        for group in places.chunk_by_mut(|one, other| one.head == other.head) {
            if group.len() > 1 {
                self.sort_group(group, known + 8, prefixes);
            }
        }
    }

    /// Sorts keys that have equal heads, by the eight bytes after their common prefix.
    fn sort_group(&self, group: &mut [Place], known: usize, prefixes: usize) {
        let Some((first, rest)) = group.split_first() else { return };
        let first = self.key(*first);
        let (mut shared, mut equal) = (first.len(), true);
        for place in rest {
            let key = self.key(*place);
            equal &= key == first;
            shared = shared.min(common_prefix(first, key));
        }
        if equal {
            return;
        }
        // The head of a key that ends within it does not determine the order.
        if group.len() <= SMALL || shared < known || prefixes == 0 {
            let place = |it: &Place| (it.block, it.at);
            group.sort_unstable_by(|one, other| {
                let by_key = self.key(*one).cmp(self.key(*other));
                by_key.then_with(|| place(one).cmp(&place(other)))
            });
            return;
        }
        for place in &mut *group {
            place.head = head_at(self.key(*place), shared);
        }
        group.sort_unstable();
        self.sort_groups(group, shared, prefixes - 1);
    }
}

/// A record: a put with its deadline, or a removal.
pub(crate) struct Logged<'a> {
    pub payload: &'a [u8],
    pub key: ByteRange,
    pub put: Option<(ByteRange, Option<u64>)>,
}

impl<'a> Logged<'a> {
    /// Returns the bytes of the key. No other key has the same bytes.
    fn key(&self) -> &'a [u8] {
        self.payload.get(self.key.clone()).unwrap_or_default()
    }
}

/// A cursor over the records of a part in the order of their keys. It visits the last record of
/// each.
pub(crate) struct LogCursor<'a, K: ?Sized, V: ?Sized> {
    part: LogPart<'a, K, V>,
    next: usize,
    /// The record after `front`.
    ahead: Option<Logged<'a>>,
    front: Option<Logged<'a>>,
}

impl<'a, K: Key + ?Sized, V: Value + ?Sized> LogCursor<'a, K, V> {
    fn begun(mut self) -> Self {
        self.ahead = self.read();
        self.advance();
        self
    }

    /// Returns the record with the smallest key.
    pub fn front(&self) -> Option<&Logged<'a>> {
        self.front.as_ref()
    }

    /// Moves to the next key.
    pub fn advance(&mut self) {
        self.front = self.ahead.take();
        loop {
            let later = self.read();
            let Some(front) = &self.front else { return };
            let is_same = later.as_ref().is_some_and(|later| later.key() == front.key());
            if !is_same {
                self.ahead = later;
                return;
            }
            if !fault!("order.merge.last_record") {
                self.front = later;
            }
        }
    }

    fn read(&mut self) -> Option<Logged<'a>> {
        let place = *self.part.places.get(self.next)?;
        self.next += 1;
        if let Some(place) = self.part.places.get(self.next + AHEAD)
            && let Some(payload) = self.part.blocks.get(place.block as usize)
        {
            let record = payload.as_ptr().wrapping_add(place.at as usize);
            (0..3).for_each(|line| prefetch(record.wrapping_add(64 * line)));
        }
        self.part.read(place)
    }

    /// Splits the cursor into up to `most` cursors, which together visit the same records.
    fn split(mut self, most: usize) -> Vec<Self> {
        let mut places = std::mem::take(&mut self.part.places);
        let fill = places.len().div_ceil(most.max(1)).max(1);
        let mut cursors = Vec::new();
        while !places.is_empty() {
            let is_new = |at: usize| match (places.get(at - 1), places.get(at)) {
                (Some(last), Some(first)) => self.part.key(*last) != self.part.key(*first),
                _ => true,
            };
            let end = (fill..places.len()).find(|at| is_new(*at)).unwrap_or(places.len());
            let rest = places.split_off(end);
            let part = LogPart { blocks: self.part.blocks, places, kinds: PhantomData };
            cursors.push(Self { part, next: 0, ahead: None, front: None }.begun());
            places = rest;
        }
        cursors
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> SortedPart<K, V> for LogCursor<'_, K, V> {
    fn each(mut self, mut push: impl FnMut(&K, Put<&V>) -> Result<(), Error>) -> Result<(), Error> {
        while let Some(logged) = &self.front {
            if let Some((value, expires_at)) = &logged.put {
                let key = K::decode(logged.payload, logged.key.clone());
                let value = V::decode(logged.payload, value.clone());
                push(key.borrow(), Put { value: value.borrow(), expires_at: *expires_at })?;
            }
            self.advance();
        }
        Ok(())
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_held_than_allowed() {
        let payload = [[2_u8; 9], [2; 9]].concat();
        let records = [Record::Remove { key: 1..9 }, Record::Remove { key: 10..18 }];
        let one = payload.len() + 2 * size_of::<Place>();
        for (most, count) in [(0, 0), (one - 1, 0), (one, 1), (2 * one, 2), (usize::MAX, 3)] {
            let mut log = LogRecords::<u64>::new(Vec::new()).within(most);
            for _ in 0..3 {
                if log.accepts(&payload, &records) {
                    log.push(payload.clone(), &records);
                }
            }
            assert_eq!((log.blocks(), log.held), (count, count * one), "{most}");
        }
    }
}
