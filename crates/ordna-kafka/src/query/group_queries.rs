//! Queries over all nodes of a group, on the node that received them: the request to the owners,
//! the rounds of questions, the result.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use ordna::sync::{fault, notice};
use ordna_secondary::{
    Consistency, Error, IndexDefinition, IndexEntry, KeyBounds, Position, Query, VersionVector,
};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::node::{LocalNode, OwnerTable, RequestedState};
use crate::query::cursor::Cursor;
use crate::query::gather::{Gather, MissingPartition, QuestionError};
use crate::query::merge::merge;
use crate::query::owner::{self, MOST_BYTES, MOST_ROWS};
use crate::query::peer::{Link, Peers};
use crate::query::rows::{Run, Scan, Selection, bounds, group};
use crate::query::wire::{Answer, Refusal, Request, fingerprint};

/// The command with which nodes send questions to each other.
const COMMAND: [&[u8]; 2] = [b"ORDNA.NODE", b"ASK"];
/// Interval at which the owner table is read again while partitions are missing.
const REFRESH: Duration = Duration::from_millis(250);

/// Limits of the work and memory of queries.
#[derive(Debug, Clone)]
pub struct QueryLimits {
    /// Number of concurrent queries. Further queries wait.
    pub queries: usize,
    /// Total size in bytes of the keys in all answers of a query.
    pub bytes: usize,
    /// Time to wait for the answer of an owner before other nodes are asked, too.
    pub patience: Duration,
}

impl Default for QueryLimits {
    fn default() -> Self {
        Self { queries: 64, bytes: 16 << 20, patience: Duration::from_secs(1) }
    }
}

/// A query over all nodes.
#[derive(Debug, Clone, Default)]
pub struct GroupQuery {
    /// Name of the index.
    pub index: String,
    /// The query. Its own cursor is not used.
    pub query: Query,
    /// Where a former page ended.
    pub cursor: Option<Cursor>,
    /// The state that the query must see.
    pub consistency: Consistency,
    /// How long to wait for that state, and for partitions that are being moved.
    pub timeout: Duration,
    /// Whether to return the partitions that have answered when the time is over.
    pub partial: bool,
    /// Maximum age of rows; `None` allows any age.
    pub max_age: Option<Duration>,
}

/// The result of a query over all nodes.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupResult {
    /// The entries, in the query's order.
    pub entries: Vec<IndexEntry>,
    /// Where the next page begins; `None` if this is the last page.
    pub cursor: Option<Cursor>,
    /// Number of entries, if the query counts.
    pub count: u64,
    /// The entries contain exactly the changes up to here. Missing partitions have identity 0.
    pub vector: VersionVector,
    /// The partitions that are not in the result. Empty unless the query is partial.
    pub missing: Vec<MissingPartition>,
    /// Upper bound of the rows' age.
    pub age: Duration,
}

/// The reason why a query over all nodes failed.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum QueryError {
    /// Partitions did not answer in time.
    #[error("{} of {of} partitions are missing after {waited:.1?}: {}", missing.len(), shown(missing))]
    Missing {
        /// The partitions, with the reasons.
        missing: Vec<MissingPartition>,
        /// Partitions of the topic.
        of: u32,
        /// How long the query waited.
        waited: Duration,
    },
    /// The query, its cursor or its vector does not fit the index.
    #[error(transparent)]
    Index(#[from] Error),
    /// A node rejected the query for a reason that holds on each node.
    #[error("{0}")]
    Refused(String),
    /// The owner table has not been read yet.
    #[error("the owners of the partitions are not known yet")]
    NoTable,
    /// The ends of the partitions, which `request_plus` waits for, could not be read.
    #[error("the ends of the partitions are not known: {0}")]
    NoEnds(String),
    /// Too many queries are in progress.
    #[error("{0} queries are in progress, and none ended in time; try again later")]
    Busy(usize),
}

/// Formats the first few missing partitions for an error text.
fn shown(missing: &[MissingPartition]) -> String {
    const SHOWN: usize = 8;
    let mut text: Vec<String> = missing.iter().take(SHOWN).map(ToString::to_string).collect();
    if missing.len() > SHOWN {
        let others = missing[SHOWN..].iter().map(|missing| missing.partition.to_string());
        text.push(format!("and partitions {}", others.collect::<Vec<_>>().join(" ")));
    }
    text.join("; ")
}

/// Counters of queries since the start.
#[derive(Debug, Default)]
pub struct QueryCounters {
    /// Number of queries.
    pub queries: AtomicU64,
    /// Number of queries that failed.
    pub failed: AtomicU64,
    /// Number of results that lacked partitions.
    pub partial: AtomicU64,
    /// Number of questions to other nodes.
    pub asked: AtomicU64,
    /// Number of questions to other nodes without a usable answer.
    pub troubles: AtomicU64,
    /// Number of questions of other nodes that were answered.
    pub answered: AtomicU64,
}

/// Queries over all nodes of a group, as received by one of the nodes.
#[derive(Debug)]
pub struct GroupQueries {
    pub(super) local: Arc<dyn LocalNode>,
    peers: Arc<Peers>,
    runtime: Handle,
    pub(super) limits: QueryLimits,
    slots: Semaphore,
    pub(super) answering: AtomicUsize,
    table: AtomicU64,
    pub(super) counters: QueryCounters,
}

/// The answers, and the partitions without one.
struct Gathered {
    answers: Vec<Answer>,
    missing: Vec<MissingPartition>,
}

impl GroupQueries {
    /// Creates the queries of this node. `runtime` does the network's work. A worker of that
    /// runtime may run a query only inside `block_in_place`.
    ///
    /// # Errors
    /// Certificates or keys for the connections cannot be read; the text names the file.
    pub fn new(
        local: Arc<dyn LocalNode>,
        link: Link,
        limits: QueryLimits,
        runtime: Handle,
    ) -> Result<Self, String> {
        Ok(Self {
            local,
            peers: Arc::new(Peers::new(link)?),
            runtime,
            slots: Semaphore::new(limits.queries),
            limits,
            answering: AtomicUsize::new(0),
            table: AtomicU64::new(0),
            counters: QueryCounters::default(),
        })
    }

    /// Returns the counters.
    pub fn counters(&self) -> &QueryCounters {
        &self.counters
    }

    /// Returns the definition of an index.
    ///
    /// # Errors
    /// The index does not exist.
    pub fn definition(&self, name: &str) -> Result<&IndexDefinition, Error> {
        let found = self.local.indexes().iter().find(|definition| definition.name == name);
        found.ok_or_else(|| Error::UnknownIndex(name.to_owned()))
    }

    /// Runs a query. Memory is proportional to the answers. About twice the limit in rows is sent
    /// over the network, and at most the limit by each node.
    ///
    /// # Errors
    /// [`QueryError`].
    pub fn scan(&self, ask: &GroupQuery) -> Result<GroupResult, QueryError> {
        self.counted(self.runtime.block_on(self.run(ask, false)))
    }

    /// Counts the entries of a query's range.
    ///
    /// # Errors
    /// [`QueryError`].
    pub fn count(&self, ask: &GroupQuery) -> Result<GroupResult, QueryError> {
        self.counted(self.runtime.block_on(self.run(ask, true)))
    }

    fn counted(&self, found: Result<GroupResult, QueryError>) -> Result<GroupResult, QueryError> {
        self.counters.queries.fetch_add(1, Ordering::Relaxed);
        match &found {
            Err(_) => self.counters.failed.fetch_add(1, Ordering::Relaxed),
            Ok(found) => {
                let partial = u64::from(!found.missing.is_empty());
                self.counters.partial.fetch_add(partial, Ordering::Relaxed)
            }
        };
        found
    }

    /// Returns the owner table, and waits until there is one.
    async fn owners(&self, until: Instant) -> Result<OwnerTable, QueryError> {
        loop {
            let owners = self.local.owners();
            if owners.partitions > 0 {
                if self.table.swap(owners.version, Ordering::Relaxed) != owners.version {
                    self.peers.keep(&owners);
                }
                return Ok(owners);
            }
            if Instant::now() >= until {
                return Err(QueryError::NoTable);
            }
            sleep_until(until.min(Instant::now() + Duration::from_millis(20))).await;
        }
    }

    /// Returns the positions that `request_plus` waits for.
    async fn newest(&self, until: Instant) -> Result<Vec<Position>, QueryError> {
        let local = Arc::clone(&self.local);
        let asked = tokio::task::spawn_blocking(move || local.newest(until.into_std()));
        let newest = timeout_at(until, asked).await;
        let newest = newest.map_err(|_| QueryError::NoEnds("no answer in time".to_owned()))?;
        let newest = newest.map_err(|error| QueryError::NoEnds(error.to_string()))?;
        newest.map_err(|error| QueryError::NoEnds(error.to_string()))
    }

    async fn run(&self, ask: &GroupQuery, counts: bool) -> Result<GroupResult, QueryError> {
        let began = Instant::now();
        let until = began + ask.timeout;
        let busy = || QueryError::Busy(self.limits.queries);
        let _slot = timeout_at(until, self.slots.acquire()).await.map_err(|_| busy())?;
        let definition = self.definition(&ask.index)?;
        let mut owners = self.owners(until).await?;
        let newest = match &ask.consistency {
            Consistency::RequestPlus => {
                let newest = self.newest(until).await?;
                // Partitions may have been added after the table was read.
                owners.partitions = u32::try_from(newest.len()).unwrap_or(u32::MAX);
                Some(newest)
            }
            Consistency::AtPlus(vector) => Some(vector.positions().to_vec()),
            Consistency::Any => None,
        };
        let (mut request, skip) = self.request(ask, definition, (&owners, newest), counts)?;
        let Some(bounds) = bounds(definition, &request.scan)? else {
            // The cursor is positioned after the last possible group.
            let vector = VersionVector::new(vec![Position::default(); owners.partitions as usize]);
            let (entries, missing) = (Vec::new(), Vec::new());
            let age = Duration::ZERO;
            return Ok(GroupResult { entries, cursor: None, count: 0, vector, missing, age });
        };
        let Scan { reverse, distinct, limit, .. } = request.scan;
        let group = |key: &'_ [u8]| group(definition, distinct, key).len();
        if distinct.is_none() {
            request.scan.limit = share(limit, owners.members.len());
        }
        let (Gathered { answers, missing }, merged) = loop {
            let gathered = self.gather(ask, &request, &bounds, until).await?;
            let inputs: Vec<&Run> = gathered.answers.iter().map(|answer| &answer.run).collect();
            let most = (limit, self.limits.bytes);
            let merged = merge(&inputs, reverse, most, |key| &key[..group(key)]);
            let is_cut = |run: &&Run| run.more && run.rows.len() == request.scan.limit;
            let is_short = merged.more && merged.rows.len() < limit && inputs.iter().any(is_cut);
            // If a partition is missing, no time is left: the page ends early, with a cursor.
            let may_ask = gathered.missing.is_empty() && request.scan.limit < limit;
            if !notice!("queries.share_runs_out", is_short && may_ask) {
                break (gathered, merged);
            }
            // One owner has more than its share of these rows, so all owners are asked for the
            // whole limit.
            request.scan.limit = limit;
        };
        if !missing.is_empty() && (!ask.partial || answers.is_empty()) {
            let (of, waited) = (owners.partitions, began.elapsed());
            return Err(QueryError::Missing { missing, of, waited });
        }
        let mut positions = vec![Position::default(); owners.partitions as usize];
        let (mut age, mut count) = (Duration::ZERO, 0);
        for (partition, state) in answers.iter().flat_map(|answer| &answer.parts) {
            if let (Ok(part), Some(position)) = (state, positions.get_mut(*partition as usize)) {
                *position = part.position;
                (age, count) = (age.max(part.age), count + part.count);
            }
        }
        let inputs: Vec<&Run> = answers.iter().map(|answer| &answer.run).collect();
        let skipped = skip.min(merged.rows.len());
        let entry = |(input, row): &(usize, usize)| {
            let rows = &inputs[*input].rows;
            definition.entry(rows.key(*row), rows.id_len(*row), ask.query.covering)
        };
        let entries = merged.rows[skipped..].iter().map(entry).collect();
        let vector = VersionVector::new(positions);
        let cursor = merged.more.then(|| Cursor {
            fingerprint: request.fingerprint,
            reverse,
            distinct: distinct.map(|parts| parts as u32),
            skip: (skip - skipped) as u32,
            key: merged.rows.last().map(|(input, row)| inputs[*input].rows.key(*row).to_vec()),
            vector: vector.positions().iter().map(|at| (at.identity, at.seq)).collect(),
        });
        Ok(GroupResult { entries, cursor, count, vector, missing, age })
    }

    /// Returns the question to all owners, and the number of rows to skip.
    fn request(
        &self,
        ask: &GroupQuery,
        definition: &IndexDefinition,
        (owners, least): (&OwnerTable, Option<Vec<Position>>),
        counts: bool,
    ) -> Result<(Request, usize), QueryError> {
        let (query, fingerprint) = (&ask.query, fingerprint(definition));
        let bad = |reason: String| Error::BadQuery { index: ask.index.clone(), reason };
        let skip = ask.cursor.as_ref().map_or(query.offset, |cursor| cursor.skip as usize);
        let limit = skip.saturating_add(query.limit);
        if limit > MOST_ROWS {
            let why =
                format!("offset and limit add up to {limit}; the maximum is {MOST_ROWS} rows");
            return Err(bad(why).into());
        }
        if let Some(cursor) = &ask.cursor {
            if cursor.fingerprint != fingerprint {
                return Err(Error::BadCursor("it is of another index").into());
            }
            let distinct = query.distinct.map(|parts| parts as u32);
            if cursor.reverse != query.reverse || cursor.distinct != distinct {
                return Err(Error::BadCursor("it is of another query").into());
            }
        }
        let partitions = owners.partitions;
        // A vector from before partitions were added is shorter and requires nothing of the new
        // partitions.
        if let Some(least) = least.as_ref().filter(|least| least.len() > partitions as usize) {
            let (found, expected) = (least.len(), partitions as usize);
            return Err(Error::PartitionCount { found, expected }.into());
        }
        let asked = |partition: u32| {
            let shown = ask.cursor.as_ref().and_then(|cursor| cursor.position(partition));
            let shown = shown.filter(|_| !fault!("moves.cursor_has_vector"));
            let least = least.as_ref().and_then(|least| least.get(partition as usize)).copied();
            let least = least.filter(|least| least.seq > 0);
            // A page must not be older than the page before it.
            match (least, shown) {
                (None, None) => RequestedState::Any,
                (Some(one), None) | (None, Some(one)) => RequestedState::AtPlus(one),
                (Some(one), Some(two)) if two.identity == one.identity && two.seq > one.seq => {
                    RequestedState::AtPlus(two)
                }
                (Some(one), Some(_)) => RequestedState::AtPlus(one),
            }
        };
        // The number of bytes that each node may send, so that all together stay within the limit.
        let share = self.limits.bytes / owners.members.len().max(1);
        let selection = Selection {
            index: ask.index.clone(),
            prefix: query.prefix.clone(),
            range: query.range.clone(),
        };
        let scan = Scan {
            selection,
            reverse: query.reverse,
            distinct: query.distinct,
            after: ask.cursor.as_ref().and_then(|cursor| cursor.key.clone()),
            limit: if counts { 0 } else { limit },
            bytes: share.clamp(1, MOST_BYTES),
        };
        let partitions = (0..partitions).map(|partition| (partition, asked(partition))).collect();
        let request = Request { scan, counts, fingerprint, partitions, time: ask.timeout };
        Ok((request, skip))
    }

    /// Asks until each partition has an answer or the time is over.
    async fn gather(
        &self,
        ask: &GroupQuery,
        request: &Request,
        bounds: &KeyBounds,
        until: Instant,
    ) -> Result<Gathered, QueryError> {
        let began = Instant::now();
        let states: BTreeMap<u32, RequestedState> = request.partitions.iter().copied().collect();
        let mut gather = Gather::new(states.keys().copied(), self.limits.patience);
        let mut answers: BTreeMap<u64, (Answer, Instant)> = BTreeMap::new();
        let mut asked: BTreeMap<u64, Instant> = BTreeMap::new();
        let mut flights: JoinSet<(u64, Arc<Request>, Result<Answer, QuestionError>)> =
            JoinSet::new();
        let mut refreshed = began;
        loop {
            let owners = self.local.owners();
            let mut mine = None;
            for question in gather.ask(&owners, began.elapsed()) {
                let partitions = question.partitions.iter().map(|p| (*p, states[p])).collect();
                let time = wait(until.saturating_duration_since(Instant::now()));
                let part = Arc::new(Request { partitions, time, ..request.clone() });
                let number = question.number;
                asked.insert(number, Instant::now());
                if question.member == self.local.address() {
                    mine = Some((number, part));
                } else {
                    self.counters.asked.fetch_add(1, Ordering::Relaxed);
                    let peers = Arc::clone(&self.peers);
                    flights.spawn(async move {
                        let answer = remote(&peers, &question.member, &part).await;
                        (number, part, answer)
                    });
                }
            }
            let mut arrived = None;
            if let Some((number, part)) = mine {
                // An answer that waits for no state takes less time than a switch of threads. The
                // only possible wait is for a partition of this node that is being restored.
                if part.partitions.iter().all(|(_, asked)| *asked == RequestedState::Any) {
                    let answer = owner::answer(&*self.local, &part);
                    arrived = Some((number, part, Ok(answer)));
                } else {
                    let local = Arc::clone(&self.local);
                    flights.spawn_blocking(move || {
                        let answer = owner::answer(&*local, &part);
                        (number, part, Ok(answer))
                    });
                }
            }
            if arrived.is_none() {
                if gather.is_over() || notice!("faulty.deadline", Instant::now() >= until) {
                    break;
                }
                let wake = until.min(began + gather.wake(began.elapsed()));
                tokio::select! {
                    Some(landed) = flights.join_next(), if !flights.is_empty() => {
                        arrived = landed.ok();
                    }
                    () = sleep_until(wake) => {}
                }
            }
            let now = began.elapsed();
            if let Some((number, part, answer)) = arrived {
                let answer = answer.and_then(|answer| {
                    let checked = answer.check(&part, bounds);
                    let checked = if fault!("faulty.checked") { Ok(()) } else { checked };
                    checked.map(|()| answer).map_err(|garbled| QuestionError::Garbled(garbled.0))
                });
                match answer {
                    Ok(answer) => {
                        // An age refers to the time of the answer, which is later than the
                        // question.
                        let sent = asked.remove(&number).unwrap_or_else(Instant::now);
                        let parts = accepted(&answer, ask.max_age, sent.elapsed())?;
                        let (counts, replaced) = gather.answered(number, &parts, now);
                        replaced.iter().for_each(|old| drop(answers.remove(old)));
                        if counts {
                            answers.insert(number, (answer, sent));
                        }
                        if !counts || parts.iter().any(|(_, state)| state.is_err()) {
                            self.counters.troubles.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                    Err(trouble) => {
                        self.counters.troubles.fetch_add(1, Ordering::Relaxed);
                        gather.failed(number, &trouble, now);
                    }
                }
            }
            if !gather.is_over() && refreshed.elapsed() > REFRESH {
                refreshed = Instant::now();
                let local = Arc::clone(&self.local);
                let soon = std::time::Instant::now() + REFRESH;
                // The table is read again later anyway, so a failure can be ignored.
                tokio::task::spawn_blocking(move || drop(local.refresh(soon)));
            }
        }
        let aged = |(mut answer, sent): (Answer, Instant)| {
            let parts = answer.parts.iter_mut().filter_map(|(_, state)| state.as_mut().ok());
            parts.for_each(|part| part.age = part.age.saturating_add(sent.elapsed()));
            answer
        };
        let answers = answers.into_values().map(aged).collect();
        Ok(Gathered { answers, missing: gather.missing() })
    }
}

/// The partitions of an answer, each with the reason if its rows are not used.
type Accepted = Vec<(u32, Result<(), QuestionError>)>;

/// Returns which partitions of an answer are used: all whose rows are young enough, or none. The
/// rows are older than the answer says by at most `sent`, the time since the question was sent.
///
/// # Errors
/// The query is one that no node can answer.
fn accepted(
    answer: &Answer,
    max_age: Option<Duration>,
    sent: Duration,
) -> Result<Accepted, QueryError> {
    let mut parts = Vec::with_capacity(answer.parts.len());
    for (partition, state) in &answer.parts {
        parts.push((
            *partition,
            match state {
                Err(Refusal::Query(why)) => return Err(QueryError::Refused(why.clone())),
                Err(_) if fault!("moves.refused_is_empty") => Ok(()),
                Err(refusal) => Err(QuestionError::Refused(refusal.clone())),
                Ok(part) => {
                    let age = part.age.saturating_add(sent);
                    let most = max_age.unwrap_or(Duration::MAX);
                    match notice!("moves.max_age", age > most) {
                        true => Err(QuestionError::TooOld { age, most }),
                        false => Ok(()),
                    }
                }
            },
        ));
    }
    // The rows of one answer cannot be told apart: if one partition is too old, all are unusable.
    let is_old = |trouble: &&QuestionError| matches!(trouble, QuestionError::TooOld { .. });
    let oldest = parts.iter().find_map(|(_, state)| state.as_ref().err().filter(is_old).cloned());
    if let Some(trouble) = oldest {
        let young = parts.iter_mut().filter(|(_, state)| state.is_ok());
        young.for_each(|(_, state)| *state = Err(trouble.clone()));
    }
    Ok(parts)
}

/// Returns the number of rows to ask of each owner at first: the limit or, with many owners,
/// somewhat more than twice what an even distribution needs. By the bound of the binomial tail a
/// second round is rare.
fn share(limit: usize, owners: usize) -> usize {
    const MORE: usize = 16;
    limit.min(limit * 2 / owners.max(1) + MORE)
}

/// Returns how long an owner may wait for the states of its partitions: three quarters of the time
/// that is left. The last quarter is for the answer, which has the partitions whose state was
/// reached in time. The query asks again for the others.
fn wait(left: Duration) -> Duration {
    left * 3 / 4
}

/// Sends a question to another node.
async fn remote(peers: &Peers, member: &str, request: &Request) -> Result<Answer, QuestionError> {
    let bytes = request.encode();
    let words = [COMMAND[0], COMMAND[1], &bytes];
    // Room for lengths and states in addition to the keys.
    let heads = request.scan.limit * 8 + request.partitions.len() * 256;
    let most = request.scan.bytes + usize::from(u16::MAX) + heads;
    let reply = peers.call(member, &words, most).await?;
    Answer::decode(&reply).map_err(|garbled| QuestionError::Garbled(garbled.0))
}
