//! The values that are stored, and the checks of every answer during a measurement.
//!
//! A value identifies its key: it consists of the position in the key set (lowest bits), a version,
//! and a fingerprint of the key's bytes (highest bits). A point read knows the position, and
//! compares it and the fingerprint. A scan has the key that the index returned, and compares the
//! fingerprint, without reading the key set: this would cost a cache miss per entry, which would be
//! measured. Versions are compared after the run ([`crate::sweep`]), because a read may find any of
//! several while threads write.

use std::borrow::Borrow;
use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::atomic::{AtomicU32, Ordering};

use ordna_base::Key;
use ordna_base::entries::Sequence;
use ordna_base::simd::prefetch;
use ordna_papers::pi::Query;

use crate::job::Job;
use crate::target::{Reply, Session};
use crate::workload::{Action, Call, Operation};
use crate::zipf::Random;

/// Returns 24 bits that depend on the first 8 and the last 24 bytes of a key and on its length, at
/// their place in a value.
fn fingerprint<K: Key + ?Sized>(key: &K) -> u64 {
    let bytes = key.tail();
    let end = &bytes[bytes.len().saturating_sub(24)..];
    let word = end.chunks(8).fold(key.head() ^ bytes.len() as u64, |word, chunk| {
        let mut next = [0; 8];
        next[..chunk.len()].copy_from_slice(chunk);
        word.rotate_left(23) ^ u64::from_le_bytes(next)
    });
    Random::mix(word) >> 40 << 40
}

/// The bits of a value that are its version.
const VERSION: u64 = 0xFF << 32;
/// Number of scans whose comparison is delayed while the ranks are being loaded.
const UNSETTLED: usize = 4;

/// Returns the value of the key at a position, in one of 256 versions.
pub fn value<K: Key + ?Sized>(key: &K, position: usize, version: u8) -> u64 {
    fingerprint(key) | u64::from(version) << 32 | position as u64
}

/// Returns the version that a thread writes with the operation at this position of its stream.
pub fn version(base: u8, at: usize) -> u8 {
    base.wrapping_add(at as u8)
}

/// Returns the position that a value contains.
pub fn position_of(value: u64) -> usize {
    (value & 0xFFFF_FFFF) as usize
}

/// Returns whether this is a value of this key, in any version.
fn belongs<K: Key + ?Sized>(found: u64, key: &K, position: usize) -> bool {
    found & !VERSION == value(key, position, 0)
}

/// Returns the key at a position of the key set.
pub fn key_at<'a, K: Key + ?Sized>(job: &Job<'a, K>, position: usize) -> Result<&'a K, String> {
    job.keys.get(position).ok_or_else(|| format!("the workload has no key {position}"))
}

/// Returns the keys of a thread's operations, copied in the order of their use, so that the
/// processor prefetches them. In the key set, each of them is a cache miss that is charged to the
/// index. Returns `None` if they are already in that order.
pub fn in_order<K: Key + ?Sized>(
    keys: &K::Sequence,
    operations: &[Operation],
) -> Option<K::Sequence> {
    let first = operations.first()?.key as usize;
    let latest = |operation: &Operation| operation.action == Action::Latest;
    let mut places = operations.iter().enumerate();
    if places.all(|(at, operation)| !latest(operation) && operation.key as usize == first + at) {
        return None;
    }
    let mut copies = K::Sequence::default();
    copies.reserve(operations.len());
    for operation in operations {
        // The latest key is not known yet, so some key takes its place.
        let key = if latest(operation) { keys.get(0) } else { keys.get(operation.key as usize) };
        copies.push(key?);
    }
    Some(copies)
}

/// Formats a wrong answer.
pub fn wrong<K: Key + ?Sized>(what: &str, key: &K, found: impl std::fmt::Debug) -> String {
    let key = if K::HEAD_IS_KEY {
        key.head().to_string()
    } else {
        format!("\"{}\"", key.tail().escape_ascii())
    };
    // The text is escaped, so every character is one byte.
    let shown = key.get(..200).unwrap_or(&key);
    format!("{what} of {shown}: {found:?}")
}

/// Returns the ranks of the first `loaded` keys: `ranks[position]` is the rank in key order.
pub fn ranks<K: Key + ?Sized>(keys: &K::Sequence, loaded: usize) -> Vec<u32> {
    // Heads decide almost every comparison, so the key set is rarely read.
    let mut order: Vec<(u64, u32)> =
        (0..loaded).filter_map(|at| Some((keys.get(at)?.head(), at as u32))).collect();
    order.sort_unstable_by(|a, b| {
        a.0.cmp(&b.0).then_with(|| keys.get(a.1 as usize).cmp(&keys.get(b.1 as usize)))
    });
    let mut ranks = vec![0; loaded];
    for (rank, (_, at)) in order.into_iter().enumerate() {
        ranks[at as usize] = rank as u32;
    }
    ranks
}

/// The progress of the threads with inserting their keys, for reads of the latest ones.
pub struct Latest {
    /// The first key of each thread, and the number of keys that the thread has inserted.
    threads: Vec<(u32, CheckProgress)>,
    /// Number of keys that were loaded before.
    loaded: usize,
}

/// Aligned to a cache line, so that the thread that counts and those that read share no other data.
#[repr(align(128))]
struct CheckProgress(AtomicU32);

impl Latest {
    /// Creates the progress of threads with these first keys, before the first insert.
    pub fn new(first: &[u32], loaded: usize) -> Self {
        let threads =
            first.iter().map(|first| (*first, CheckProgress(AtomicU32::new(0)))).collect();
        Self { threads, loaded }
    }

    /// Returns the position of a key that was inserted about `back` inserts of all threads ago,
    /// counted from the last insert of thread `from`. Before the inserted keys come the loaded
    /// ones, the last one first. The key is present, because its insert has returned.
    fn key(&self, back: usize, from: usize) -> usize {
        let count = self.threads.len().max(1);
        let Some((first, done)) = self.threads.get((from + back) % count) else { return 0 };
        // Acquire: the counted insert happened before. Pairs with `count`.
        let (done, turns) = (done.0.load(Ordering::Acquire) as usize, back / count);
        if turns < done {
            *first as usize + done - 1 - turns
        } else {
            let behind = back - (done * count).min(back);
            self.loaded.saturating_sub(1 + behind.min(self.loaded.saturating_sub(1)))
        }
    }

    /// Counts inserts of a thread that have returned.
    fn count(&self, thread: usize, inserts: u32) {
        if let Some((_, done)) = self.threads.get(thread) {
            // Only this thread writes the counter.
            done.0.store(done.0.load(Ordering::Relaxed) + inserts, Ordering::Release);
        }
    }
}

/// Counts of the group calls of one kind, and of their keys.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Calls {
    /// Number of calls.
    pub calls: u64,
    /// Total number of keys of these calls.
    pub keys: u64,
}

impl std::ops::AddAssign for Calls {
    fn add_assign(&mut self, other: Self) {
        self.calls += other.calls;
        self.keys += other.keys;
    }
}

/// A scan whose answer has not been compared with the ranks of the keys, which are being
/// prefetched.
#[derive(Debug, Clone, Copy)]
struct Scanned {
    /// Position of the key at which it began.
    start: usize,
    limit: usize,
    /// Number of entries that it returned.
    count: usize,
    /// Number of loaded keys among them, and the position of the last one.
    of_loaded: usize,
    furthest: usize,
}

/// The entries that a scan in progress has returned.
struct ScanTally<'k, K: Key + ?Sized> {
    from: &'k K,
    scanned: Scanned,
    broken: Option<String>,
}

impl<'k, K: Key + ?Sized> ScanTally<'k, K> {
    fn new(from: &'k K, start: usize, limit: usize) -> Self {
        let scanned = Scanned { start, limit, count: 0, of_loaded: 0, furthest: start };
        Self { from, scanned, broken: None }
    }

    /// Checks an entry. `last` keeps its key for the next one.
    #[inline]
    fn entry(&mut self, job: &Job<'_, K>, last: &mut Option<K::Owned>, key: &K, value: u64) {
        let Self { from, scanned, broken } = self;
        let position = position_of(value);
        let follows = match last {
            Some(last) if scanned.count > 0 => (*last).borrow() < key,
            _ => key == *from,
        };
        if !follows || value >> 40 << 40 != fingerprint(key) || position >= job.keys.len() {
            broken.get_or_insert_with(|| wrong("a scan", key, value));
        }
        if position < job.loaded {
            (scanned.of_loaded, scanned.furthest) = (scanned.of_loaded + 1, position);
        }
        match last {
            // Reuses the buffer of the previous key.
            Some(last) => key.clone_into(last),
            None => *last = Some(key.to_owned()),
        }
        scanned.count += 1;
    }
}

/// The state that one thread keeps between its operations.
pub struct Checker<'j, 'a, K: Key + ?Sized> {
    job: &'j Job<'a, K>,
    /// The keys of its operations, in order, or `None` to read them from the key set.
    copies: Option<&'j K::Sequence>,
    /// The version of its first write.
    base: u8,
    thread: usize,
    /// Set if operations read the latest keys.
    latest: Option<&'j Latest>,
    /// Number of reads of the latest keys so far.
    turn: usize,
    /// The last key that the scan returned.
    last: Option<K::Owned>,
    scanned: VecDeque<Scanned>,
    positions: Vec<usize>,
    keys: Vec<&'j K>,
    pairs: Vec<(&'j K, u64)>,
    /// Counts for gets, puts and removes.
    pub calls: [Calls; 3],
}

impl<'j, 'a, K: Key + ?Sized> Checker<'j, 'a, K> {
    /// Creates the checker of a thread whose writes have versions from `base` on. `copies` are the
    /// result of [`in_order`].
    pub fn new(
        job: &'j Job<'a, K>,
        copies: Option<&'j K::Sequence>,
        thread: usize,
        base: u8,
        latest: Option<&'j Latest>,
    ) -> Self {
        Self {
            job,
            copies,
            base,
            thread,
            latest,
            turn: 0,
            last: None,
            scanned: VecDeque::with_capacity(UNSETTLED + 1),
            positions: Vec::new(),
            keys: Vec::new(),
            pairs: Vec::new(),
            calls: [Calls::default(); 3],
        }
    }

    /// Returns the position of the key of an operation.
    #[inline]
    fn position(&mut self, operation: Operation) -> usize {
        match self.latest {
            Some(latest) if operation.action == Action::Latest => {
                self.turn += 1;
                latest.key(operation.key as usize, self.turn)
            }
            _ => operation.key as usize,
        }
    }

    /// Returns the key of the operation at a position of the stream, given its position in the key
    /// set.
    #[inline]
    fn key(&self, operation: Operation, at: usize, position: usize) -> Result<&'j K, String> {
        match self.copies {
            Some(copies) if operation.action != Action::Latest => {
                copies.get(at).ok_or_else(|| format!("the workload has no operation {at}"))
            }
            _ => key_at(self.job, position),
        }
    }

    /// Records that further keys of this thread are present.
    #[inline]
    fn inserted(&self, count: usize) {
        if let Some(latest) = self.latest {
            latest.count(self.thread, count as u32);
        }
    }

    /// Executes the operation at a position of the stream and checks its answer.
    #[inline]
    pub fn perform(
        &mut self,
        session: &mut dyn Session<K>,
        operation: Operation,
        at: usize,
    ) -> Result<(), String> {
        let version = version(self.base, at);
        let position = self.position(operation);
        let key = self.key(operation, at, position)?;
        match operation.action {
            Action::Read | Action::Latest => {
                let found = session.get(key);
                if !found.is_some_and(|found| belongs(found, key, position)) {
                    return Err(wrong("a read", key, found));
                }
            }
            Action::Look => {
                let found = session.get(key);
                if found.is_some_and(|found| !belongs(found, key, position)) {
                    return Err(wrong("a read", key, found));
                }
            }
            Action::Update => {
                if session.put(key, value(key, position, version)) == Some(true) {
                    return Err(wrong("an update", key, "the key was absent"));
                }
            }
            Action::ReadUpdate => {
                let found = session.get(key);
                if !found.is_some_and(|found| belongs(found, key, position)) {
                    return Err(wrong("a read", key, found));
                }
                if session.put(key, value(key, position, version)) == Some(true) {
                    return Err(wrong("an update", key, "the key was absent"));
                }
            }
            Action::Insert => {
                if session.put(key, value(key, position, version)) == Some(false) {
                    return Err(wrong("an insert", key, "the key was there"));
                }
                self.inserted(1);
            }
            Action::Delete => {
                if !session.remove(key) {
                    return Err(wrong("a delete", key, "the key was absent"));
                }
            }
            Action::Scan(limit) => {
                return self.scan(session, key, position, usize::from(limit));
            }
        }
        Ok(())
    }

    /// Scans from a loaded key. The scan must begin there and go strictly upwards, with values that
    /// belong to their keys. No loaded key in that range may be missing, and the scan may return
    /// fewer entries than its limit only at the end of the keys. Keys that threads insert
    /// concurrently may or may not be returned.
    fn scan(
        &mut self,
        session: &mut dyn Session<K>,
        from: &K,
        start: usize,
        limit: usize,
    ) -> Result<(), String> {
        let Self { job, last, .. } = self;
        let mut tally = ScanTally::new(from, start, limit);
        session.scan(from, limit, &mut |key, value| tally.entry(job, last, key, value));
        self.end_scan(tally)
    }

    /// Checks what a scan returned, except for the comparison with the ranks.
    fn end_scan(&mut self, tally: ScanTally<'_, K>) -> Result<(), String> {
        let Self { job, .. } = self;
        let ScanTally { from, scanned, broken } = tally;
        broken.map_or(Ok(()), Err)?;
        let Scanned { start, limit, count, furthest, .. } = scanned;
        if count == 0 || count > limit {
            return Err(wrong("a scan", from, format!("{count} entries for {limit}")));
        }
        for position in [start, furthest] {
            let rank = job.ranks.and_then(|ranks| ranks.get(position));
            prefetch(rank.map_or(std::ptr::null(), std::ptr::from_ref));
        }
        self.scanned.push_back(scanned);
        self.settle(UNSETTLED)
    }

    /// Compares the answers of scans, except for the last `but` ones, with the ranks of the keys.
    pub fn settle(&mut self, but: usize) -> Result<(), String> {
        while self.scanned.len() > but {
            self.scanned.pop_front().map_or(Ok(()), |scanned| self.compare(scanned))?;
        }
        Ok(())
    }

    fn compare(&self, scanned: Scanned) -> Result<(), String> {
        let Scanned { start, limit, count, of_loaded, furthest } = scanned;
        let wrong = |what: String| Err(wrong("a scan", key_at(self.job, start)?, what));
        let rank = |position: usize| self.job.ranks.and_then(|ranks| ranks.get(position)).copied();
        let (Some(first), Some(end)) = (rank(start), rank(furthest)) else {
            return Err("the order of the keys is not known".to_owned());
        };
        let (first, end) = (first as usize, end as usize);
        // The keys are in order from rank `first` to rank `end`. Their number is right, so none was
        // skipped.
        let expected = (end + 1).saturating_sub(first);
        if of_loaded != expected {
            return wrong(format!("{of_loaded} of {expected} keys"));
        }
        if count < limit && end + 1 != self.job.loaded {
            return wrong(format!("ended after {count} of {limit}"));
        }
        Ok(())
    }

    /// Executes the operations from a position of the stream on that belong to one group call of up
    /// to `batch` operations. Returns the position after them.
    pub fn step(
        &mut self,
        session: &mut dyn Session<K>,
        operations: &[Operation],
        at: usize,
        batch: usize,
    ) -> Result<usize, String> {
        let rest = operations.get(at..).unwrap_or_default();
        let Some(first) = rest.first() else { return Ok(operations.len()) };
        let call = first.action.call();
        let Some(call) = call.filter(|_| batch > 1) else {
            return self.perform(session, *first, at).map(|()| at + 1);
        };
        let same = rest.iter().take(batch).take_while(|o| o.action.call() == Some(call));
        let group = &rest[..same.count()];
        match call {
            Call::Get => self.gets(session, group, at),
            Call::Put => self.puts(session, group, at),
            Call::Remove => self.removes(session, group, at),
        }?;
        self.calls[call as usize] += Calls { calls: 1, keys: group.len() as u64 };
        Ok(at + group.len())
    }

    /// Executes the operations of the next call of a task. Returns the position after them.
    pub fn call(
        &mut self,
        session: &mut dyn Session<K>,
        operations: &[Operation],
        at: usize,
        (batch, ordered): (usize, bool),
    ) -> Result<usize, String> {
        if ordered {
            self.ordered(session, operations, at, batch)
        } else {
            self.step(session, operations, at, batch)
        }
    }

    /// Executes the next `batch` operations, of any kind, in one call that keeps their order.
    /// Returns the position after them.
    pub fn ordered(
        &mut self,
        session: &mut dyn Session<K>,
        operations: &[Operation],
        at: usize,
        batch: usize,
    ) -> Result<usize, String> {
        let end = (at + batch).min(operations.len());
        let group = operations.get(at..end).unwrap_or_default();
        // A read-update consists of two queries.
        let mut due: Vec<(Action, usize, &K)> = Vec::with_capacity(group.len());
        let mut values: Vec<u64> = Vec::with_capacity(group.len());
        let mut inserts = 0;
        for (at, operation) in (at..).zip(group) {
            let position = self.position(*operation);
            let key = self.key(*operation, at, position)?;
            let value = value(key, position, version(self.base, at));
            match operation.action {
                Action::ReadUpdate => {
                    due.extend([(Action::Read, position, key), (Action::Update, position, key)]);
                    values.extend([value, value]);
                }
                action => {
                    due.push((action, position, key));
                    values.push(value);
                }
            }
            inserts += usize::from(operation.action == Action::Insert);
        }
        let queries = due.iter().zip(&values).map(|(&(action, _, key), value)| match action {
            Action::Read | Action::Latest | Action::Look => Query::Search(key),
            Action::Update | Action::ReadUpdate | Action::Insert => Query::Insert(key, value),
            Action::Delete => Query::Delete(key),
            Action::Scan(limit) => Query::Range {
                lower: Bound::Included(key),
                upper: Bound::Unbounded,
                limit: usize::from(limit),
            },
        });
        let queries: Vec<Query<'_, K, u64>> = queries.collect();
        let mut replies =
            Replies { due: &due, next: 0, scan: None, ended: Vec::new(), broken: None };
        let Self { job, last, .. } = self;
        session.batch(&queries, &mut |at, reply| replies.take(job, last, at, reply));
        replies.end_scan();
        let Replies { next, ended, broken, .. } = replies;
        broken.map_or(Ok(()), Err)?;
        if next != due.len() {
            return Err(format!("{next} answers to a batch of {}", due.len()));
        }
        ended.into_iter().try_for_each(|tally| self.end_scan(tally))?;
        self.inserted(inserts);
        Ok(end)
    }

    fn gets(
        &mut self,
        session: &mut dyn Session<K>,
        group: &[Operation],
        at: usize,
    ) -> Result<(), String> {
        self.keys.clear();
        self.positions.clear();
        for (at, operation) in (at..).zip(group) {
            let position = self.position(*operation);
            self.positions.push(position);
            self.keys.push(self.key(*operation, at, position)?);
        }
        let (keys, positions) = (&self.keys, &self.positions);
        let (mut broken, mut answers) = (None, 0);
        session.get_group(keys, &mut |at, found| {
            if at != answers {
                broken.get_or_insert_with(|| format!("answer {at} where {answers} was due"));
            }
            answers += 1;
            let right = match found {
                Some(found) => belongs(found, keys[at], positions[at]),
                None => group[at].action == Action::Look,
            };
            if !right {
                broken.get_or_insert_with(|| wrong("a read in a group", keys[at], found));
            }
        });
        if answers != group.len() {
            return Err(format!("{answers} answers to a group of {}", group.len()));
        }
        broken.map_or(Ok(()), Err)
    }

    fn puts(
        &mut self,
        session: &mut dyn Session<K>,
        group: &[Operation],
        at: usize,
    ) -> Result<(), String> {
        self.pairs.clear();
        let mut inserts = 0;
        for (at, operation) in (at..).zip(group) {
            let position = operation.key as usize;
            let key = self.key(*operation, at, position)?;
            self.pairs.push((key, value(key, position, version(self.base, at))));
            inserts += usize::from(operation.action == Action::Insert);
        }
        let new = session.put_group(&self.pairs);
        if let Some(new) = new.filter(|new| *new != inserts) {
            return Err(format!("{new} keys were new of a group of puts with {inserts} new ones"));
        }
        self.inserted(inserts);
        Ok(())
    }

    fn removes(
        &mut self,
        session: &mut dyn Session<K>,
        group: &[Operation],
        at: usize,
    ) -> Result<(), String> {
        self.keys.clear();
        for (at, operation) in (at..).zip(group) {
            self.keys.push(self.key(*operation, at, operation.key as usize)?);
        }
        let removed = session.remove_group(&self.keys);
        if removed != group.len() {
            return Err(format!("{removed} keys were there of a group of {} removes", group.len()));
        }
        Ok(())
    }
}

/// The answers to an ordered batch, which are checked as they arrive.
struct Replies<'d, 'k, K: Key + ?Sized> {
    /// The queries: the expected answer of each, the position of its key, and the key.
    due: &'d [(Action, usize, &'k K)],
    /// The first query without an answer.
    next: usize,
    /// The range whose entries are arriving.
    scan: Option<(usize, ScanTally<'k, K>)>,
    ended: Vec<ScanTally<'k, K>>,
    broken: Option<String>,
}

impl<K: Key + ?Sized> Replies<'_, '_, K> {
    fn end_scan(&mut self) {
        self.ended.extend(self.scan.take().map(|(_, tally)| tally));
    }

    fn take(
        &mut self,
        job: &Job<'_, K>,
        last: &mut Option<K::Owned>,
        at: usize,
        reply: Reply<'_, K>,
    ) {
        if let (Reply::Entry(key, value), Some((open, tally))) = (reply, &mut self.scan)
            && *open == at
        {
            return tally.entry(job, last, key, value);
        }
        self.end_scan();
        let query = self.due.get(at).filter(|_| at == self.next);
        let Some(&(action, position, key)) = query else {
            self.broken.get_or_insert_with(|| format!("answer {at} where {} was due", self.next));
            return;
        };
        self.next += 1;
        let fault = match (action, reply) {
            (Action::Scan(limit), Reply::Entry(first, value)) => {
                let mut tally = ScanTally::new(key, position, usize::from(limit));
                tally.entry(job, last, first, value);
                self.scan = Some((at, tally));
                None
            }
            (Action::Look, Reply::Found(None))
            | (Action::Update | Action::ReadUpdate, Reply::New(Some(false) | None))
            | (Action::Insert, Reply::New(Some(true) | None))
            | (Action::Delete, Reply::Removed(true)) => None,
            (Action::Read | Action::Latest | Action::Look, Reply::Found(Some(found)))
                if belongs(found, key, position) =>
            {
                None
            }
            (Action::Update | Action::ReadUpdate, _) => Some("an update in a batch"),
            (Action::Insert, _) => Some("an insert in a batch"),
            (Action::Delete, _) => Some("a delete in a batch"),
            (Action::Scan(_), _) => Some("a scan in a batch"),
            (Action::Read | Action::Latest | Action::Look, _) => Some("a read in a batch"),
        };
        if let Some(what) = fault {
            let found = match reply {
                Reply::Found(found) => format!("{found:?}"),
                Reply::New(new) => format!("new: {new:?}"),
                Reply::Removed(there) => format!("was there: {there}"),
                Reply::Entry(_, value) => format!("an entry with {value}"),
            };
            self.broken.get_or_insert_with(|| wrong(what, key, found));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_keys_are_of_all_threads_and_there() {
        let latest = Latest::new(&[1000, 2000], 500);
        // Nothing is inserted yet, so these are loaded keys, the last one first.
        assert_eq!(latest.key(0, 0), 499);
        assert_eq!((latest.key(498, 0), latest.key(499, 0), latest.key(10_000, 1)), (1, 0, 0));
        latest.count(0, 3);
        latest.count(1, 1);
        assert_eq!((latest.key(0, 0), latest.key(0, 1)), (1002, 2000));
        assert_eq!((latest.key(2, 0), latest.key(4, 0)), (1001, 1000));
        assert_eq!(latest.key(6, 0), 499);
        assert_eq!(latest.key(2, 1), 499);
        let alone = Latest::new(&[1000], 500);
        alone.count(0, 5);
        assert_eq!(
            (0..7).map(|back| alone.key(back, 9)).collect::<Vec<_>>(),
            [1004, 1003, 1002, 1001, 1000, 499, 498]
        );
    }
}
