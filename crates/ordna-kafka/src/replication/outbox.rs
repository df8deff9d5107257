//! Groups of the primary's log that wait for their commit.
//!
//! # Contract
//! [`Outbox::take`](LogSink::take) copies a group and returns. One thread, in [`Outbox::run`],
//! sends the waiting groups in one transaction after the other, in the order of the log. A position
//! is acknowledged when the transaction with its last record is committed.
//!
//! # Failure
//! - A transaction that was not committed, and may be retried, is sent again unchanged.
//! - A fenced or failed transport ends the outbox: what is not acknowledged never will be, and the
//!   store refuses writes before they change its memory.
//! - After a lost write ([`LogSink::lose`]), the outbox takes no further groups. Those that it has
//!   taken are still sent.
//!
//! # Bounds
//! The store refuses writes while more than [`Limits::most_bytes`] bytes are not acknowledged. A
//! single group may exceed this limit.

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

/// Maximum size of a transaction in bytes: its commit takes milliseconds, and a fence aborts
/// little.
const MOST_TRANSACTION: usize = 8 << 20;
/// First delay before a transaction is retried. It doubles up to [`LONGEST_RETRY`].
const FIRST_RETRY: Duration = Duration::from_millis(10);
const LONGEST_RETRY: Duration = Duration::from_secs(1);
/// Maximum time between the moment at which a write reads the clock and that at which its records
/// are taken. Keys on followers expire later by this time.
const DECIDED: Duration = Duration::from_secs(1);

/// Commits messages.
pub trait Transport {
    /// Commits these messages in order, all or none.
    ///
    /// # Errors
    /// Returns a [`TransportError`] if this fails. Unless it is [`TransportError::Retry`], it is
    /// unknown whether the messages are committed.
    fn commit(&mut self, messages: &[Vec<u8>]) -> Result<(), TransportError>;
}

/// The reason why messages were not committed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TransportError {
    /// None of the messages is committed, and they may be sent again.
    #[error("{0}")]
    Retry(String),
    /// Another primary writes, so nothing of this one is committed any more.
    #[error("another primary has taken over: {0}")]
    Fenced(String),
    /// Nothing can be sent any more.
    #[error("{0}")]
    Failed(String),
}

/// Limits of the groups that wait for their commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Number of bytes above which writes are refused.
    pub most_bytes: usize,
    /// Age of the oldest group above which even writes without a wait for their commit have to
    /// wait.
    pub most_lag: Duration,
    /// Time after which a message without groups is sent, which contains the current time.
    pub idle: Duration,
}

impl Default for Limits {
    /// Returns the default limits: 64 MiB, one second, and one second.
    fn default() -> Self {
        let second = Duration::from_secs(1);
        Self { most_bytes: 64 << 20, most_lag: second, idle: second }
    }
}

/// The body of a message: several groups, or one that is larger than a message.
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
    /// Total size of all bodies in bytes, including those of the transaction in progress.
    bytes: usize,
    /// Time at which the oldest group of the transaction in progress was taken.
    oldest_sent: Option<Instant>,
    /// Position after the last group taken.
    taken: u64,
    acknowledged: u64,
    /// The reason why the brokers have not taken the transaction in progress.
    last_error: Option<String>,
    /// The reason why no further group is taken.
    refusal: Option<Arc<str>>,
    /// Whether the outbox has ended, so that unacknowledged groups never will be acknowledged.
    has_ended: bool,
    is_closing: bool,
    wakers: Vec<Waker>,
}

/// Returns the messages of a body that begins at a position: one, or the parts of a group.
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
    /// Notified when the acknowledged position has changed, or the outbox has ended.
    settled: Condvar,
    /// Whether `check` returns an error. Changes under the lock.
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
    /// Creates an outbox for the groups of a run.
    pub fn new(run: Run, limits: Limits) -> Self {
        let (waiting, work, settled) = (Mutex::default(), Condvar::new(), Condvar::new());
        Self { run, limits, waiting, work, settled, refuses: AtomicBool::new(false) }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the position up to which everything is committed.
    pub fn acknowledged(&self) -> u64 {
        self.lock().acknowledged
    }

    /// Returns the term of the run.
    pub fn term(&self) -> u64 {
        self.run.term
    }

    /// Returns the position after the last group taken.
    pub fn taken(&self) -> u64 {
        self.lock().taken
    }

    /// Waits until everything up to a position is committed, the time is over, or the outbox has
    /// ended. Returns whether it is committed.
    pub fn wait_for(&self, position: u64, time: Duration) -> bool {
        let is_pending =
            |waiting: &mut Waiting| waiting.acknowledged < position && !waiting.has_ended;
        let waited = self.settled.wait_timeout_while(self.lock(), time, is_pending);
        waited.unwrap_or_else(PoisonError::into_inner).0.acknowledged >= position
    }

    /// Returns the reason why writes are permanently refused, or `None` if they are not.
    pub fn failure(&self) -> Option<Arc<str>> {
        self.lock().refusal.clone()
    }

    /// Describes what the oldest group waits for, if it has waited for longer than `least`.
    pub fn delay(&self, least: Duration) -> Option<String> {
        let waiting = self.lock();
        let first = waiting.bodies.front().map(|body| body.taken);
        let age = waiting.oldest_sent.or(first)?.elapsed();
        (age > least).then(|| {
            let why = waiting.last_error.as_deref().unwrap_or("the brokers do not answer");
            format!("nothing was acknowledged for {} s: {why}", age.as_secs())
        })
    }

    /// Lets [`run`](Self::run) end when everything that was taken is committed. From then on, the
    /// store accepts no writes. A transaction that fails in the meantime is not retried.
    pub fn close(&self) {
        self.lock().is_closing = true;
        self.work.notify_all();
    }

    /// Sends the groups that are taken until the outbox is [closed](Self::close) or has failed.
    ///
    /// # Errors
    /// Returns the failure.
    pub fn run(&self, transport: &mut impl Transport) -> Result<(), TransportError> {
        while let Some(bodies) = self.next() {
            let messages: Vec<Vec<u8>> = bodies.iter().flat_map(|body| self.encode(body)).collect();
            let mut delay = FIRST_RETRY;
            loop {
                match transport.commit(&messages) {
                    Ok(()) => break,
                    Err(TransportError::Retry(reason)) if !self.lock().is_closing => {
                        tracing::warn!(reason, "replication: a transaction is sent again");
                        self.lock().last_error = Some(reason);
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

    /// Returns the bodies of the next transaction, or `None` if the outbox is closed and empty.
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
        waiting.last_error = None;
        if let Some(last) = bodies.last() {
            waiting.acknowledged = waiting.acknowledged.max(last.end);
        }
        self.settle(waiting);
    }

    /// Ends the outbox, which sends nothing any more.
    fn end(&self, reason: &str) {
        let mut waiting = self.lock();
        waiting.refusal.get_or_insert_with(|| reason.into());
        waiting.has_ended = true;
        waiting.bodies.clear();
        self.settle(waiting);
    }

    /// Updates what depends on the state, and wakes all waiting threads and tasks.
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
        // Relaxed: the reason is read under the lock.
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
