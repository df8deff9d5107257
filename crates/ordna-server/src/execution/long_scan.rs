//! Scans over many keys in several steps, between which other clients are served.
//!
//! A scan reads one snapshot from its first step to its last; a removal reads the present state.
//! The first step of a scan that wants few entries reads the present state while it excludes other
//! commands, which is also one consistent state. If the scan has to continue, it takes a snapshot
//! of the same moment. The length of a step is measured in work, not in entries: matching, copying
//! and skipping an entry all count.
//!
//! # Protocol of a long reply
//! An array begins with its length. So a scan collects entries until its end or until [`GATHERED`]
//! bytes. In the second case it continues, but only counts. Then it sends the length and the
//! collected entries, and scans the rest of the snapshot again, one step at a time. So a reply
//! takes at most [`GATHERED`] bytes of memory, whatever its length.

use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

use ordna::Direction;
use ordna::index::bounds_cross;
use ordna::sync::{fault, notice, point};

use crate::keyspace::Keyspace;
use crate::keyspace::glob::Pattern;
use crate::keyspace::scan_cursors::Position;
use crate::keyspace::snapshot::KeyspaceSnapshot;
use crate::keyspace::stored_value;
use crate::keyspace::value_kind::ValueKind;
use crate::state::ServerState;
use crate::state::clients::Client;
use crate::wire::error::CommandError;
use crate::wire::reply::Replies;
use crate::wire::request::OwnedRequest;

/// Work of one step, in units of about ten nanoseconds: about a third of a millisecond.
const STRETCH: usize = 32 << 10;
/// Work of passing an entry.
const ENTRY: usize = 16;
/// Number of bytes copied for one unit of work.
const COPIED: usize = 64;
/// Number of entries that a scan reads under the exclusive lock; a longer scan takes a snapshot.
const SHORT_SCAN: usize = 256;
/// Size in bytes of the collected part of a reply. Beyond it, the scan only counts.
const GATHERED: usize = 256 << 10;

/// The lower and upper bound of a scan.
pub type ScanBounds = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// The purpose of a scan.
#[derive(Debug, Clone)]
pub enum ScanPurpose {
    /// Returns keys, with their values if asked for.
    Return { values: bool },
    /// Returns the keys that match, of one type if it is given. Without a pattern there are none.
    Matching { pattern: Option<Arc<Pattern>>, kind: Option<ValueKind> },
    /// Counts the keys.
    Count,
    /// Removes the keys.
    Delete,
}

/// The form of a scan's reply.
#[derive(Debug)]
pub enum ReplyForm {
    /// An array, or a number if the purpose is to count.
    Plain,
    /// A cursor of `SCAN` and an array.
    ScanCursor { client: u64, position: Option<Position> },
    /// A cursor of `ORDNA.SCAN` and an array.
    Token,
}

/// The phase of a long reply.
#[derive(Debug)]
enum ReplyPhase {
    Gather,
    /// Counts the entries after the collected ones, then returns to these bounds and this limit.
    Count(ScanBounds, usize),
    Send,
}

/// The client on whose behalf a removal continues.
#[derive(Debug)]
pub struct Caller {
    pub client: Arc<Client>,
    pub user: Option<String>,
    pub request: OwnedRequest,
    /// The version of the users for which the rights were checked.
    pub acl_version: u64,
}

impl Caller {
    /// Checks whether the removal may continue. The keyspace is locked; see [`Context::stopped`].
    ///
    /// [`Context::stopped`]: crate::execution::command::Context::stopped
    fn check(&mut self, state: &ServerState) -> Result<(), CommandError> {
        if self.client.is_ended() {
            return Err("ERR the connection was closed by another client".into());
        }
        let version = state.acl.version();
        if version != self.acl_version
            && let Some(user) = &self.user
        {
            state.check_rights(&self.client, user, self.request.arguments())?;
        }
        self.acl_version = version;
        Ok(())
    }
}

/// A scan in progress.
#[derive(Debug)]
pub struct LongScan {
    pub lower: Bound<Vec<u8>>,
    pub upper: Bound<Vec<u8>>,
    pub direction: Direction,
    /// Number of entries still to skip.
    pub skip: usize,
    /// Number of entries still wanted.
    pub limit: usize,
    pub purpose: ScanPurpose,
    pub form: ReplyForm,
    /// The snapshot to read. Taken before the first stretch unless the caller provides one.
    pub snapshot: Option<KeyspaceSnapshot>,
    /// The client that has requested a removal.
    pub caller: Option<Caller>,
    phase: ReplyPhase,
    found: Replies,
    /// Number of entries found so far, or found but not sent yet.
    count: usize,
    unsent: usize,
    /// The last key visited, if more may follow.
    last: Option<Vec<u8>>,
}

impl LongScan {
    pub fn new(lower: Bound<Vec<u8>>, upper: Bound<Vec<u8>>, purpose: ScanPurpose) -> Self {
        Self {
            lower,
            upper,
            direction: Direction::Ascending,
            skip: 0,
            limit: usize::MAX,
            purpose,
            form: ReplyForm::Plain,
            snapshot: None,
            caller: None,
            phase: ReplyPhase::Gather,
            found: Replies::default(),
            count: 0,
            unsent: 0,
            last: None,
        }
    }

    /// Returns the bounds of the keys that it visits.
    pub fn into_bounds(self) -> ScanBounds {
        (self.lower, self.upper)
    }

    /// Returns whether the scan changes the keyspace.
    pub fn writes(&self) -> bool {
        matches!(self.purpose, ScanPurpose::Delete)
    }

    /// Does one step and writes the finished part of the reply. Returns `Ok(true)` at the end.
    /// `held` is the keyspace if the caller has locked it exclusively.
    ///
    /// # Errors
    /// The snapshot was not stable, which is a defect of the store. The connection cannot continue.
    pub fn step(
        &mut self,
        state: &ServerState,
        held: Option<&Keyspace>,
        out: &mut Replies,
    ) -> Result<bool, CommandError> {
        if self.writes() {
            let removed = match held {
                Some(keys) => self.remove(keys, state),
                None => self.remove_alone(state),
            };
            match removed {
                Ok(false) => return Ok(false),
                Ok(true) => out.count(self.count),
                Err(error) => out.error(&error),
            }
            return Ok(true);
        }
        self.found.resp3 = out.resp3;
        let snapshot = match self.snapshot.clone() {
            Some(snapshot) => snapshot,
            None => {
                // A snapshot that is taken during writes could contain a write and miss one that
                // ended before it began. Under the exclusive lock no write is in progress.
                let exclusive = held.is_none().then(|| state.keys_exclusive());
                let Some(keys) = held.or(exclusive.as_deref()) else { return Ok(true) };
                let is_short = self.skip.saturating_add(self.limit) <= SHORT_SCAN;
                if is_short && matches!(self.form, ReplyForm::Plain) {
                    self.found.bytes.reserve(self.limit * 32);
                    if self.read_stretch(&ScanSource::Live(keys), None) {
                        drop(exclusive);
                        self.finish(state, out);
                        return Ok(true);
                    }
                }
                let snapshot = KeyspaceSnapshot::of(keys);
                self.snapshot = Some(snapshot.clone());
                snapshot
            }
        };
        let source = ScanSource::Snapshot(&snapshot);
        let over = match self.phase {
            ReplyPhase::Gather | ReplyPhase::Count(..) => self.read_stretch(&source, None),
            ReplyPhase::Send => self.read_stretch(&source, Some(out)),
        };
        match &self.phase {
            ReplyPhase::Gather if over => {
                self.finish(state, out);
                return Ok(true);
            }
            ReplyPhase::Gather if self.found.bytes.len() > GATHERED => {
                if matches!(self.form, ReplyForm::Plain) {
                    let bounds = (self.lower.clone(), self.upper.clone());
                    self.phase = ReplyPhase::Count(bounds, self.limit);
                } else {
                    // The cursor holds the position for the next call.
                    self.finish(state, out);
                    return Ok(true);
                }
            }
            ReplyPhase::Count((lower, upper), limit) if over => {
                (self.lower, self.upper, self.limit) = (lower.clone(), upper.clone(), *limit);
                self.header(out);
                out.bytes.append(&mut self.found.bytes);
                self.found = Replies::default();
                self.phase = ReplyPhase::Send;
            }
            ReplyPhase::Send if over && self.unsent > 0 => {
                return Err("ERR the snapshot changed under a scan".into());
            }
            ReplyPhase::Send => return Ok(over),
            ReplyPhase::Gather | ReplyPhase::Count(..) => {}
        }
        Ok(false)
    }

    /// Scans for one step and returns whether the scan is at its end. Entries are written to `out`
    /// if it is given, and otherwise added to `found`.
    fn read_stretch(&mut self, source: &ScanSource<'_>, out: Option<&mut Replies>) -> bool {
        let Self { lower, upper, direction, skip, limit, purpose, phase, .. } = self;
        let Self { found, count, unsent, last, .. } = self;
        if *limit == 0 {
            return true;
        }
        let only_counts = matches!(phase, ReplyPhase::Count(..));
        let is_sent = out.is_some();
        let out = out.unwrap_or(found);
        let mut work = 0;
        *last = None;
        let most = skip.saturating_add(*limit);
        source.visit(borrow(lower), borrow(upper), *direction, most, |key, value| {
            work += ENTRY;
            if *skip > 0 {
                *skip -= 1;
            } else {
                *limit -= 1;
                let before = out.bytes.len();
                let is_found = match purpose {
                    ScanPurpose::Return { values } if !only_counts => {
                        entry(key, values.then_some(value), out);
                        true
                    }
                    ScanPurpose::Matching { pattern, kind } => {
                        work += pattern.as_ref().map_or(0, |pattern| pattern.work(key.len()));
                        let matches = kind.is_none_or(|kind| ValueKind::of(value) == kind)
                            && pattern.as_ref().is_some_and(|pattern| pattern.matches(key));
                        if matches && !only_counts {
                            out.bulk(key);
                        }
                        matches
                    }
                    ScanPurpose::Return { .. } | ScanPurpose::Count | ScanPurpose::Delete => true,
                };
                work += (out.bytes.len() - before) / COPIED;
                match (is_found, is_sent) {
                    (true, true) => *unsent = unsent.saturating_sub(1),
                    (true, false) => {
                        *count += 1;
                        *unsent += usize::from(only_counts);
                    }
                    (false, _) => {}
                }
            }
            let full = !only_counts && out.bytes.len() > GATHERED;
            if *limit > 0 && work < STRETCH && !full {
                return ControlFlow::Continue(());
            }
            *last = Some(key.to_vec());
            ControlFlow::Break(())
        });
        let Some(last) = last.clone() else { return true };
        match direction {
            Direction::Ascending => *lower = Bound::Excluded(last),
            Direction::Descending => *upper = Bound::Excluded(last),
        }
        *limit == 0
    }

    /// Removes the keys of one step from a keyspace that is not locked. Nothing is removed while
    /// writes are paused.
    fn remove_alone(&mut self, state: &ServerState) -> Result<bool, CommandError> {
        let mut keys = state.keys();
        if notice!("long_scan.remove.excludes", state.indexes.are_active()) {
            // Excludes other commands: a hash that another client sets during the step would be
            // removed, but not from the indexes.
            keys.make_exclusive(|| state.keys_exclusive());
        }
        if let Some(caller) = &mut self.caller
            && !fault!("concurrent.removal.asks_again")
        {
            caller.check(state)?;
            if state.are_writes_paused() {
                return Ok(false);
            }
        }
        self.remove(&keys, state)
    }

    /// Removes the keys of one step and returns whether the scan is at its end.
    fn remove(&mut self, keys: &Keyspace, state: &ServerState) -> Result<bool, CommandError> {
        let mut met = 0;
        let (mut last, mut covered) = (None, Vec::new());
        keys.visit(borrow(&self.lower), borrow(&self.upper), Direction::Ascending, |key, _| {
            met += 1;
            if state.indexes.covers(key) {
                covered.push(key.to_vec());
            }
            if met < STRETCH / ENTRY / 4 {
                return ControlFlow::Continue(());
            }
            last = Some(key.to_vec());
            ControlFlow::Break(())
        });
        point("long_scan.remove");
        if met > 0 {
            let upper = last.as_deref().map_or(borrow(&self.upper), Bound::Included);
            let removed = keys.try_remove_range(borrow(&self.lower), upper);
            // The bounds do not cross, because there was a key between them.
            state.watches.removed_within(borrow(&self.lower), upper);
            state.indexes.written(keys, covered.iter().map(Vec::as_slice));
            self.count += removed?;
        }
        let Some(last) = last else { return Ok(true) };
        self.lower = Bound::Excluded(last);
        Ok(false)
    }

    /// Writes the length of an array reply.
    fn header(&self, out: &mut Replies) {
        let pairs = matches!(self.purpose, ScanPurpose::Return { values: true });
        out.array(if pairs && !out.resp3 { self.count * 2 } else { self.count });
    }

    /// Writes the reply of a scan that has collected all its entries.
    fn finish(&mut self, state: &ServerState, out: &mut Replies) {
        match &self.form {
            ReplyForm::Plain if matches!(self.purpose, ScanPurpose::Count) => {
                return out.count(self.count);
            }
            ReplyForm::Plain => {}
            ReplyForm::ScanCursor { client, position } => {
                let cursor = match (self.last.take(), self.snapshot.take()) {
                    (Some(key), Some(snapshot)) => {
                        state.cursors.remember(*client, key, position.as_ref(), snapshot)
                    }
                    _ => {
                        state.cursors.finish(position.as_ref());
                        0
                    }
                };
                out.array(2);
                out.bulk(cursor.to_string().as_bytes());
            }
            ReplyForm::Token => {
                out.array(2);
                match &self.last {
                    Some(key) => {
                        let digits = key.iter().map(|byte| format!("{byte:02x}"));
                        out.bulk(format!("k{}", digits.collect::<String>()).as_bytes());
                    }
                    None => out.bulk(b"0"),
                }
            }
        }
        self.header(out);
        out.bytes.append(&mut self.found.bytes);
    }
}

/// The state that a step reads.
enum ScanSource<'a> {
    /// The present state of a keyspace that is locked exclusively.
    Live(&'a Keyspace),
    Snapshot(&'a KeyspaceSnapshot),
}

impl ScanSource<'_> {
    /// Visits entries within the bounds. `most` is the number that the caller needs.
    fn visit(
        &self,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        direction: Direction,
        most: usize,
        visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) {
        match self {
            Self::Live(_) if bounds_cross(lower, upper) => {}
            Self::Live(keys) => keys.scan_with((lower, upper), direction, most, visit),
            Self::Snapshot(snapshot) => snapshot.visit(lower, upper, direction, visit),
        }
    }
}

/// Returns the key that a cursor of `ORDNA.SCAN` names.
pub fn key_of_token(token: &[u8]) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let byte = |pair: &[u8]| match pair {
        [high, low] => u8::try_from(digit(*high)? * 16 + digit(*low)?).ok(),
        _ => None,
    };
    token.strip_prefix(b"k")?.chunks(2).map(byte).collect()
}

/// Writes an entry: a key, or a key and its value, which form a pair in RESP3. The value of a hash
/// is written as null.
fn entry(key: &[u8], value: Option<&[u8]>, out: &mut Replies) {
    if value.is_some() && out.resp3 {
        out.array(2);
    }
    out.bulk(key);
    if let Some(value) = value {
        out.bulk_or_null(stored_value::string(value));
    }
}

fn borrow(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use ordna::sync::schedule::held;
    use ordna::{Change, Put};
    use ordna_secondary::{IndexDefinition, Part, Range};

    use super::*;
    use crate::indexes::{library_name, read_latest};
    use crate::keyspace::hash::Edit;
    use crate::state::acl::Acl;
    use crate::state::command_spec::Catalog;
    use crate::state::config::Config;

    /// A hash that is written between the two steps of a removal, which would remove it without a
    /// report, waits or is reported.
    #[test]
    fn a_removal_leaves_no_entry_of_a_hash_that_comes_meanwhile() {
        let catalog = Box::leak(Box::new(Catalog::new(Vec::new())));
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        let config = Config::default();
        let acl = Acl::new(&config, catalog);
        let state = &ServerState::new(config, address, catalog, acl);
        let definition = IndexDefinition::new("i", b"d:").part(Part::new("n"));
        {
            let _exclusive = state.keys_exclusive();
            state.indexes.create("i", definition).unwrap();
        }
        let write = |key: &[u8]| {
            let keys = state.keys();
            let mut edit = Edit::of(None);
            edit.set(b"n", b"1");
            let put = Put::forever(edit.finish());
            keys.modify_entry(key, |_| Change::Put(put.clone())).unwrap();
            state.indexes.written(&keys, [key]);
        };
        write(b"d:1");
        let removal = held("long_scan.remove", || {
            let mut scan = LongScan::new(Bound::Unbounded, Bound::Unbounded, ScanPurpose::Delete);
            while !scan.step(state, None, &mut Replies::default()).unwrap() {}
        });
        std::thread::scope(|scope| {
            let (done, told) = channel();
            removal.meanwhile(|| {
                scope.spawn(move || {
                    write(b"d:2");
                    done.send(())
                });
                // The write is not done yet if the removal excludes it.
                let _ = told.recv_timeout(Duration::from_millis(200));
            });
        });
        let service = state.indexes.service().unwrap();
        let read = read_latest(Duration::from_secs(20));
        let entries = service.count(&library_name("i"), &[], &Range::All, &read).unwrap();
        assert_eq!(entries, state.keys().approximate_len(), "entries and hashes");
    }
}
