//! Groups of the primary's log that wait for their commit.
//!
//! # Contract
//! [`Outbox::take`](LogSink::take) copies a group and returns. One thread, in [`Outbox::run`],
//! sends what waits as one transaction after the other, in the order of the log. A position is
//! acknowledged once the transaction with its last record is committed.
//!
//! # Failure
//! - A transaction that was not committed, and may be tried again, is sent again as it was.
//! - A fenced or failed transport ends the outbox: what is not acknowledged never will be, and the
//!   store refuses writes before they change its memory.
//! - A lost write ([`LogSink::lose`]) ends what the outbox takes. What it has taken is still sent.
//!
//! # Bounds
//! The store refuses writes while the bytes that are not acknowledged exceed
//! [`Limits::most_bytes`]; one group may exceed it.

use std::collections::VecDeque;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ordna::Error;
use ordna::durability::{LogGroup, LogSink};
use ordna::sync::fault;

use super::message::{GROUP_HEADER, Header, Kind, MOST_BODY, Run, add_group};

/// Most bytes of one transaction: a commit takes milliseconds, and a fence aborts little.
const MOST_TRANSACTION: usize = 8 << 20;
/// First delay before a transaction is sent again; it doubles up to [`LONGEST_RETRY`].
const FIRST_RETRY: Duration = Duration::from_millis(10);
const LONGEST_RETRY: Duration = Duration::from_secs(1);
/// Longest time between the moment at which a write reads the clock and that at which its records
/// are taken. By the time of a message, keys expire on followers as much later.
const DECIDED: Duration = Duration::from_secs(1);

/// Commits messages.
pub trait Transport {
    /// Commits these messages in their order, all or none.
    ///
    /// # Errors
    /// [`TransportError`]; unless it is [`TransportError::Retry`], whether they are committed is
    /// not known.
    fn commit(&mut self, messages: &[Vec<u8>]) -> Result<(), TransportError>;
}

/// Why messages were not committed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TransportError {
    /// None of them is committed, and they may be sent again.
    #[error("{0}")]
    Retry(String),
    /// Another primary writes: nothing of this one is committed any more.
    #[error("another primary has taken over: {0}")]
    Fenced(String),
    /// Nothing can be sent any more.
    #[error("{0}")]
    Failed(String),
}

/// Limits of what waits for its commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes above which writes are refused.
    pub most_bytes: usize,
    /// Age of the oldest group above which writes that do not wait for their commit wait.
    pub most_lag: Duration,
    /// Time after which a message without groups is sent, which tells the time.
    pub idle: Duration,
}

impl Default for Limits {
    /// 64 MiB; a second; a second.
    fn default() -> Self {
        let second = Duration::from_secs(1);
        Self { most_bytes: 64 << 20, most_lag: second, idle: second }
    }
}

/// The body of a message: some groups, or one that is larger than a message.
struct Body {
    start: u64,
    end: u64,
    bytes: Vec<u8>,
    time: u64,
    taken: Instant,
}

#[derive(Default)]
struct Waiting {
    bodies: VecDeque<Body>,
    /// Bytes of all bodies, those of the transaction in progress included.
    bytes: usize,
    /// When the oldest group of the transaction in progress was taken.
    oldest_sent: Option<Instant>,
    /// Position after the last group taken.
    taken: u64,
    acknowledged: u64,
    /// Why no further group is taken.
    refusal: Option<Arc<str>>,
    /// Whether what is not acknowledged never will be.
    has_ended: bool,
    is_closing: bool,
    wakers: Vec<Waker>,
}

/// The messages of a body that begins at a position: one, or the parts of a group.
pub(super) fn messages_of(run: Run, position: u64, time: u64, body: &[u8]) -> Vec<Vec<u8>> {
    let header = |kind| Header { kind, run, position, time };
    if body.len() <= MOST_BODY {
        return vec![header(Kind::Whole).encode(body)];
    }
    let parts = body.chunks(MOST_BODY);
    let last = parts.len() - 1;
    let kind = |at| if at == last { Kind::LastPart } else { Kind::Part };
    parts.enumerate().map(|(at, part)| header(kind(at)).encode(part)).collect()
}

/// A sink of a store's log that commits what it takes through a [`Transport`].
pub struct Outbox {
    run: Run,
    limits: Limits,
    waiting: Mutex<Waiting>,
    work: Condvar,
    /// What is acknowledged, or whether it ever will be, has changed.
    settled: Condvar,
    /// Whether `check` has something to refuse. Changes under the lock.
    refuses: AtomicBool,
}

/// Returns a time before which no write that is taken from now on has read the clock.
fn time_before_writes() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.saturating_sub(DECIDED).as_millis()).unwrap_or(u64::MAX)
}

fn refused(reason: &Arc<str>) -> Error {
    Error::LogFailed { reason: Arc::clone(reason) }
}

impl Outbox {
    /// An outbox for the groups of a run.
    pub fn new(run: Run, limits: Limits) -> Self {
        let (waiting, work, settled) = (Mutex::default(), Condvar::new(), Condvar::new());
        Self { run, limits, waiting, work, settled, refuses: AtomicBool::new(false) }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Position up to which everything is committed.
    pub fn acknowledged(&self) -> u64 {
        self.lock().acknowledged
    }

    /// The run.
    pub fn term(&self) -> u64 {
        self.run.term
    }

    /// Position after the last group taken.
    pub fn taken(&self) -> u64 {
        self.lock().taken
    }

    /// Waits until everything up to a position is committed, or the time is over, or it never will
    /// be. Returns whether it is.
    pub fn wait_for(&self, position: u64, time: Duration) -> bool {
        let is_pending =
            |waiting: &mut Waiting| waiting.acknowledged < position && !waiting.has_ended;
        let waited = self.settled.wait_timeout_while(self.lock(), time, is_pending);
        waited.unwrap_or_else(PoisonError::into_inner).0.acknowledged >= position
    }

    /// Why writes are refused for good; `None`: they are not.
    pub fn failure(&self) -> Option<Arc<str>> {
        self.lock().refusal.clone()
    }

    /// Lets [`run`](Self::run) end once everything that was taken is committed. The store takes no
    /// writes from then on. A transaction that fails in between is not sent again.
    pub fn close(&self) {
        self.lock().is_closing = true;
        self.work.notify_all();
    }

    /// Sends what is taken until the outbox is [closed](Self::close) or has failed.
    ///
    /// # Errors
    /// The failure.
    pub fn run(&self, transport: &mut impl Transport) -> Result<(), TransportError> {
        while let Some(bodies) = self.next() {
            let messages: Vec<Vec<u8>> = bodies.iter().flat_map(|body| self.encode(body)).collect();
            let mut delay = FIRST_RETRY;
            loop {
                match transport.commit(&messages) {
                    Ok(()) => break,
                    Err(TransportError::Retry(reason)) if !self.lock().is_closing => {
                        tracing::warn!(reason, "replication: a transaction is sent again");
                        std::thread::sleep(delay);
                        delay = (delay * 2).min(LONGEST_RETRY);
                    }
                    Err(error) => {
                        self.end(&error.to_string());
                        return Err(error);
                    }
                }
            }
            self.acknowledge(&bodies);
        }
        Ok(())
    }

    /// The bodies of the next transaction; `None`: the outbox is closed and empty.
    fn next(&self) -> Option<Vec<Body>> {
        let idle_until = Instant::now() + self.limits.idle;
        let mut waiting = self.lock();
        while waiting.bodies.is_empty() {
            if waiting.is_closing {
                drop(waiting);
                self.end("replication was closed");
                return None;
            }
            let left = idle_until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let (start, end) = (waiting.taken, waiting.taken);
                let (time, taken) = (time_before_writes(), Instant::now());
                return Some(vec![Body { start, end, bytes: Vec::new(), time, taken }]);
            }
            let woken = self.work.wait_timeout(waiting, left);
            waiting = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        waiting.oldest_sent = waiting.bodies.front().map(|body| body.taken);
        let (mut bodies, mut bytes) = (Vec::new(), 0);
        while let Some(body) = waiting.bodies.pop_front() {
            bytes += body.bytes.len();
            bodies.push(body);
            if bytes >= MOST_TRANSACTION {
                break;
            }
        }
        Some(bodies)
    }

    fn encode(&self, body: &Body) -> Vec<Vec<u8>> {
        messages_of(self.run, body.start, body.time, &body.bytes)
    }

    fn acknowledge(&self, bodies: &[Body]) {
        let mut waiting = self.lock();
        waiting.bytes -= bodies.iter().map(|body| body.bytes.len()).sum::<usize>();
        waiting.oldest_sent = None;
        if let Some(last) = bodies.last() {
            waiting.acknowledged = waiting.acknowledged.max(last.end);
        }
        self.settle(waiting);
    }

    /// Nothing is sent any more.
    fn end(&self, reason: &str) {
        let mut waiting = self.lock();
        waiting.refusal.get_or_insert_with(|| reason.into());
        waiting.has_ended = true;
        waiting.bodies.clear();
        self.settle(waiting);
    }

    /// Renews what follows from the state, and wakes all that wait.
    fn settle(&self, mut waiting: MutexGuard<'_, Waiting>) {
        self.note_refusal(&waiting);
        let wakers = mem::take(&mut waiting.wakers);
        drop(waiting);
        self.settled.notify_all();
        wakers.into_iter().for_each(Waker::wake);
    }

    fn is_full(&self, waiting: &Waiting) -> bool {
        waiting.bytes > self.limits.most_bytes
    }

    fn note_refusal(&self, waiting: &Waiting) {
        // Relaxed: a reason is read under the lock.
        let refuses = waiting.refusal.is_some() || self.is_full(waiting);
        self.refuses.store(refuses, Ordering::Relaxed);
    }
}

impl LogSink for Outbox {
    fn begin(&self, position: u64) {
        let mut waiting = self.lock();
        (waiting.taken, waiting.acknowledged) = (position, position);
    }

    fn take(&self, group: LogGroup<'_>) {
        let mut waiting = self.lock();
        if waiting.refusal.is_some() {
            return;
        }
        let len = GROUP_HEADER + group.records.len();
        let fits = |body: &Body| body.bytes.len() + len <= MOST_BODY;
        if !waiting.bodies.back().is_some_and(fits) {
            let (start, end) = (group.start, group.start);
            let (time, taken) = (time_before_writes(), Instant::now());
            waiting.bodies.push_back(Body { start, end, bytes: Vec::new(), time, taken });
        }
        if let Some(body) = waiting.bodies.back_mut() {
            add_group(&mut body.bytes, group);
            body.end = group.end();
        }
        waiting.bytes += len;
        waiting.taken = group.end();
        self.note_refusal(&waiting);
        drop(waiting);
        self.work.notify_one();
    }

    fn lose(&self, reason: &str) {
        let mut waiting = self.lock();
        let why = || format!("replication has ended with a write that was not logged: {reason}");
        waiting.refusal.get_or_insert_with(|| why().into());
        self.settle(waiting);
    }

    fn check(&self) -> Result<(), Error> {
        if !self.refuses.load(Ordering::Relaxed) {
            return Ok(());
        }
        let waiting = self.lock();
        match &waiting.refusal {
            Some(reason) => Err(refused(reason)),
            None if self.is_full(&waiting) => {
                let bytes = waiting.bytes;
                let reason = format!("{bytes} bytes of the log wait for their replication");
                Err(refused(&reason.into()))
            }
            None => Ok(()),
        }
    }

    fn poll_acknowledged(
        &self,
        position: u64,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Error>> {
        let mut waiting = self.lock();
        let reached = match fault!("replication.acknowledgement.follows_the_commit") {
            true => waiting.taken,
            false => waiting.acknowledged,
        };
        if reached >= position {
            return Poll::Ready(Ok(()));
        }
        if let Some(reason) = &waiting.refusal
            && (waiting.has_ended || position > waiting.taken)
        {
            return Poll::Ready(Err(refused(reason)));
        }
        waiting.wakers.push(context.waker().clone());
        Poll::Pending
    }

    fn poll_room(&self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let mut waiting = self.lock();
        if let Some(reason) = &waiting.refusal {
            return Poll::Ready(Err(refused(reason)));
        }
        let first = waiting.bodies.front().map(|body| body.taken);
        let oldest = waiting.oldest_sent.or(first);
        if oldest.is_none_or(|oldest| oldest.elapsed() <= self.limits.most_lag) {
            return Poll::Ready(Ok(()));
        }
        waiting.wakers.push(context.waker().clone());
        Poll::Pending
    }
}
