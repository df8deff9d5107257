//! Replicates a server's keyspace through a topic: as primary or as follower, including the
//! promotion of a follower.
//!
//! # Contract
//! A follower has one thread, which reads and applies. A primary has one thread, which commits. One
//! lock protects the state that both change, and is not held during requests to brokers. A
//! promotion first ends the follower's thread. Promotions exclude each other.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ordna::durability::LogGroup;
use ordna_server::{Progress, ReplicatedKeyspace, Replication, ReplicationRole, ReplicationStatus};

use super::assembler::{ApplyError, Assembler, Place};
use super::follower::Follower;
use super::history::{History, read_end};
use super::message::{Run, add_group, groups};
use super::noted_run::NotedRun;
use super::outbox::{Limits, Outbox, Transport, TransportError, messages_of};
use super::producer::Producer;
use super::topic::create_topic;

/// Maximum time for which the brokers may not answer at a start and at a promotion.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time for which a follower waits for a message before it checks whether it must end.
const LOOK: Duration = Duration::from_millis(100);
/// Maximum time for which the end of a primary waits until its messages are acknowledged.
const LAST_COMMIT: Duration = Duration::from_secs(2);
/// Age of the oldest message that is not acknowledged above which the status reports a delay.
const DELAY: Duration = Duration::from_secs(5);
/// Maximum number of runs whose ends are remembered.
const MOST_ENDS: usize = 10_000;
/// Maximum size in bytes of a transaction that sends what the brokers lack.
const MOST_TRANSACTION: usize = 8 << 20;
/// Duration by which the time of a message is earlier than that of its writes.
const DECIDED: Duration = Duration::from_secs(1);

/// Error text if a thread has ended without a known reason.
const PANICKED: &str = "a thread of the replication has panicked: restart the server";

/// A topic with one partition that contains the log of one keyspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogTopic {
    /// Addresses of brokers, separated by commas.
    pub brokers: String,
    /// Name of the topic.
    pub topic: String,
    /// Settings of librdkafka, which override the defaults.
    pub settings: Vec<(String, String)>,
}

impl LogTopic {
    /// Parses `kafka://HOST:PORT,…/TOPIC`.
    ///
    /// # Errors
    /// Returns a text that says what is missing.
    pub fn parse(text: &str) -> Result<Self, String> {
        let rest = text.strip_prefix("kafka://");
        let parts = rest.and_then(|rest| rest.split_once('/'));
        match parts {
            Some((brokers, topic)) if ![brokers, topic].contains(&"") && !topic.contains('/') => {
                let (brokers, topic) = (brokers.to_owned(), topic.to_owned());
                Ok(Self { brokers, topic, settings: Vec::new() })
            }
            _ => Err(format!("{text:?} is not kafka://HOST:PORT/TOPIC")),
        }
    }

    /// Returns the transactional id, which all primaries of the keyspace share.
    fn transactional_id(&self) -> String {
        format!("ordna-keyspace-{}", self.topic)
    }
}

/// The role of the server, and its threads.
struct State {
    role: ReplicationRole,
    keyspace: Option<ReplicatedKeyspace>,
    /// The place of a follower's state.
    place: Place,
    /// For the term of each run that has ended since the start: the position after its last
    /// message.
    ends: BTreeMap<u64, u64>,
    outbox: Option<Arc<Outbox>>,
    following: Option<JoinHandle<Option<(Follower, Assembler)>>>,
    sending: Option<JoinHandle<()>>,
    failure: Option<String>,
}

struct Shared {
    topic: LogTopic,
    state: Mutex<State>,
    /// Whether the follower's thread must end.
    ends: AtomicBool,
    /// Whether the server stops, so that a promotion must end.
    stops: AtomicBool,
    /// Locked by a promotion.
    promoting: Mutex<()>,
}

/// The replication of a server's keyspace through a topic.
#[derive(Clone)]
pub struct KafkaReplication {
    shared: Arc<Shared>,
    follows: bool,
}

impl fmt::Debug for KafkaReplication {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaReplication")
            .field("topic", &self.shared.topic)
            .finish_non_exhaustive()
    }
}

fn millis_now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

impl KafkaReplication {
    /// Creates the replication of a server that writes to the topic.
    pub fn primary(topic: LogTopic) -> Self {
        Self::new(topic, false)
    }

    /// Creates the replication of a server that applies the topic.
    pub fn follower(topic: LogTopic) -> Self {
        Self::new(topic, true)
    }

    fn new(topic: LogTopic, follows: bool) -> Self {
        let role = if follows { ReplicationRole::Follower } else { ReplicationRole::Primary };
        let state = Mutex::new(State {
            role,
            keyspace: None,
            place: Place::default(),
            ends: BTreeMap::new(),
            outbox: None,
            following: None,
            sending: None,
            failure: None,
        });
        let (ends, stops) = (AtomicBool::new(false), AtomicBool::new(false));
        let promoting = Mutex::default();
        Self { shared: Arc::new(Shared { topic, state, ends, stops, promoting }), follows }
    }
}

impl Replication for KafkaReplication {
    fn follows(&self) -> bool {
        self.follows
    }

    fn start(&self, keyspace: ReplicatedKeyspace) -> Result<(), String> {
        let shared = &self.shared;
        shared.lock().keyspace = Some(keyspace.clone());
        if self.follows { shared.follow(&keyspace) } else { shared.lead_again(&keyspace) }
    }

    fn status(&self) -> ReplicationStatus {
        let state = self.shared.lock();
        let LogTopic { brokers, topic, .. } = &self.shared.topic;
        let log = format!("kafka://{brokers}/{topic}");
        let failure = state.failure.clone();
        let failure = failure.or_else(|| Some(state.outbox.as_ref()?.failure()?.to_string()));
        // A thread that ends by itself has recorded the reason, unless it has panicked.
        let has_panicked = state.following.as_ref().is_some_and(JoinHandle::is_finished)
            || state.sending.as_ref().is_some_and(JoinHandle::is_finished);
        let failure = failure.or_else(|| has_panicked.then(|| PANICKED.to_owned()));
        let status = ReplicationStatus {
            role: state.role,
            log,
            term: state.place.run.term,
            position: state.place.position,
            waiting: 0,
            lag: None,
            failure,
            delay: None,
        };
        match &state.outbox {
            Some(outbox) => {
                let (position, taken) = (outbox.acknowledged(), outbox.taken());
                let waiting = taken.saturating_sub(position);
                let (term, delay) = (outbox.term(), outbox.delay(DELAY));
                ReplicationStatus { term, position, waiting, delay, ..status }
            }
            None => {
                let written = state.place.time.saturating_add(DECIDED.as_millis() as u64);
                let lag = Duration::from_millis(millis_now().saturating_sub(written));
                ReplicationStatus { lag: Some(lag), ..status }
            }
        }
    }

    fn promote(&self) -> Result<(), String> {
        self.shared.promote()
    }

    fn progress(&self, term: u64, position: u64) -> Progress {
        let state = self.shared.lock();
        let (now, reached) = match &state.outbox {
            Some(outbox) => (outbox.term(), outbox.acknowledged()),
            None => (state.place.run.term, state.place.position),
        };
        match state.ends.get(&term) {
            _ if term == now && position <= reached => Progress::Reached,
            _ if term >= now => Progress::Pending,
            Some(&end) if position <= end => Progress::Reached,
            Some(&end) => Progress::Lost(end),
            None => Progress::Unknown,
        }
    }

    fn stop(&self) {
        let shared = &self.shared;
        shared.stops.store(true, Ordering::Relaxed);
        // A promotion in progress ends first.
        let _one = shared.promoting.lock().unwrap_or_else(PoisonError::into_inner);
        shared.ends.store(true, Ordering::Relaxed);
        let (following, sending, outbox) = {
            let mut state = shared.lock();
            (state.following.take(), state.sending.take(), state.outbox.clone())
        };
        if let Some(thread) = following {
            let _ = thread.join();
        }
        if let (Some(thread), Some(outbox)) = (sending, outbox) {
            let written = outbox.taken();
            outbox.close();
            if outbox.wait_for(written, LAST_COMMIT) {
                let _ = thread.join();
            } else {
                // The thread may wait for unavailable brokers indefinitely.
                tracing::warn!(
                    "replication: the latest writes are not acknowledged; a restart sends them"
                );
            }
        }
    }
}

impl State {
    /// Remembers where a run ended, for offsets of clients.
    fn note_end(&mut self, run: Run, position: u64) {
        self.ends.insert(run.term, position);
        if self.ends.len() > MOST_ENDS {
            self.ends.pop_first();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open_producer(&self) -> Result<Producer, String> {
        let LogTopic { brokers, topic, settings } = &self.topic;
        let until = Instant::now() + PATIENCE;
        let gives_up = || self.stops.load(Ordering::Relaxed) || Instant::now() > until;
        let id = self.topic.transactional_id();
        let opened = Producer::open_until(brokers, topic, &id, settings, gives_up);
        opened.map_err(|error| format!("the producer of {topic} cannot be opened: {error}"))
    }

    fn read_from(&self, offset: u64) -> Result<Follower, String> {
        let LogTopic { brokers, topic, settings } = &self.topic;
        Follower::start(brokers, topic, offset, settings).map_err(|error| error.to_string())
    }

    /// Starts to follow from the place of the keyspace.
    fn follow(self: &Arc<Self>, keyspace: &ReplicatedKeyspace) -> Result<(), String> {
        if let Some(dir) = keyspace.directory()
            && noted(dir)?.is_some()
        {
            return Err(format!(
                "{} was a primary's directory, and may hold writes that nobody acknowledged: \
                 continue with --replicate, or start with --follow in an empty directory",
                dir.display()
            ));
        }
        let LogTopic { brokers, settings, .. } = &self.topic;
        create_topic(brokers, &self.topic.topic, settings, PATIENCE)?;
        let place = match keyspace.follow() {
            Some(bytes) => Place::decode(&bytes).ok_or("the place in the log is malformed")?,
            None if keyspace.is_empty() => Place::default(),
            None => {
                return Err("the directory holds keys of another history: start with --follow in \
                            an empty directory"
                    .to_owned());
            }
        };
        let reader = self.read_from(place.offset)?;
        let (first, end) = reader.ends(PATIENCE).map_err(|error| error.to_string())?;
        if !(first..=end).contains(&place.offset) {
            return Err(format!(
                "the topic {} holds offsets {first} to {end}, and this directory continues at {}: \
                 start with --follow in an empty directory, if the topic still begins at 0",
                self.topic.topic, place.offset
            ));
        }
        keyspace.set_time(place.time);
        self.lock().place = place;
        self.follow_with(keyspace.clone(), reader, Assembler::at(place))
    }

    fn follow_with(
        self: &Arc<Self>,
        keyspace: ReplicatedKeyspace,
        reader: Follower,
        messages: Assembler,
    ) -> Result<(), String> {
        let shared = Arc::clone(self);
        let work = move || shared.apply_all(&keyspace, reader, messages);
        let thread = thread::Builder::new().name("ordna follower".to_owned()).spawn(work);
        self.lock().following = Some(thread.map_err(|error| error.to_string())?);
        Ok(())
    }

    /// Runs the follower's thread. Returns what a promotion needs to continue.
    fn apply_all(
        &self,
        keyspace: &ReplicatedKeyspace,
        reader: Follower,
        mut messages: Assembler,
    ) -> Option<(Follower, Assembler)> {
        while !self.ends.load(Ordering::Relaxed) {
            let next = messages.place().offset;
            let step = reader.step_with(next, LOOK, |offset, message| {
                self.apply(keyspace, &mut messages, offset, message)
            });
            if let Err(error) = step {
                tracing::error!(%error, "replication: the follower has stopped");
                self.lock().failure = Some(error.to_string());
                return None;
            }
        }
        Some((reader, messages))
    }

    fn apply(
        &self,
        keyspace: &ReplicatedKeyspace,
        messages: &mut Assembler,
        offset: u64,
        message: &[u8],
    ) -> Result<(), ApplyError> {
        let Some(ready) = messages.take(offset, message)? else { return Ok(()) };
        let (place, groups) = (ready.place, ready.groups());
        if groups.is_empty() {
            keyspace.set_time(place.time);
        } else {
            keyspace.apply(&groups, Some((&place.encode(), place.time)))?;
        }
        let before = messages.place();
        messages.applied(place);
        let mut state = self.lock();
        if before.run != place.run {
            state.note_end(before.run, before.position);
        }
        state.place = place;
        Ok(())
    }

    fn promote(self: &Arc<Self>) -> Result<(), String> {
        let _one = self.promoting.lock().unwrap_or_else(PoisonError::into_inner);
        let (keyspace, thread) = {
            let mut state = self.lock();
            match state.role {
                ReplicationRole::Primary => return Ok(()),
                ReplicationRole::Fenced => {
                    return Err("another server has taken over from this one: start it with \
                                --follow in an empty directory"
                        .to_owned());
                }
                ReplicationRole::Follower => {}
            }
            let keyspace = state.keyspace.clone().ok_or("the server is starting")?;
            if keyspace.directory().is_none() {
                return Err(
                    "a primary needs a data directory: start the follower with --dir".into()
                );
            }
            if let Some(failure) = &state.failure {
                return Err(format!("the follower has stopped: {failure}"));
            }
            (keyspace, state.following.take())
        };
        self.ends.store(true, Ordering::Relaxed);
        let stopped = thread.and_then(|thread| thread.join().ok().flatten());
        self.ends.store(false, Ordering::Relaxed);
        let (reader, mut messages) = stopped.ok_or("the follower has stopped")?;
        let promoted = self.take_over(&keyspace, &reader, &mut messages);
        if promoted.is_err() && self.lock().outbox.is_none() {
            // From the place of the messages, because the reader may be ahead of it.
            let reader = self.read_from(messages.place().offset)?;
            self.follow_with(keyspace, reader, Assembler::at(messages.place()))?;
        }
        promoted
    }

    fn take_over(
        self: &Arc<Self>,
        keyspace: &ReplicatedKeyspace,
        reader: &Follower,
        messages: &mut Assembler,
    ) -> Result<(), String> {
        // What is likely to fail is tried before the former primary is fenced.
        let dir = keyspace.directory().ok_or("a primary needs a data directory: --dir")?;
        NotedRun::check(dir).map_err(|error| format!("the run cannot be noted: {error}"))?;
        self.catch_up(keyspace, reader, messages)?;
        // This fences: from now on, nothing of a former primary is committed.
        let producer = self.open_producer()?;
        self.catch_up(keyspace, reader, messages)?;
        let place = messages.place();
        self.lead(keyspace, (place.run, place.position), place.run.next(), producer)?;
        tracing::info!(offset = place.offset, "replication: this server is the primary now");
        Ok(())
    }

    /// Applies everything that the partition contains now.
    fn catch_up(
        &self,
        keyspace: &ReplicatedKeyspace,
        reader: &Follower,
        messages: &mut Assembler,
    ) -> Result<(), String> {
        let (from, until) = (messages.place().offset, Instant::now() + PATIENCE);
        reader
            .catch_up_until(
                from,
                || self.stops.load(Ordering::Relaxed) || Instant::now() > until,
                |offset, message| self.apply(keyspace, messages, offset, message),
            )
            .map_err(|error| error.to_string())
    }

    /// Begins a run after the last one of the partition, which has ended at a position.
    fn lead(
        self: &Arc<Self>,
        keyspace: &ReplicatedKeyspace,
        (after, end): (Run, u64),
        run: Run,
        mut producer: Producer,
    ) -> Result<(), String> {
        let dir = keyspace.directory().ok_or("a primary needs a data directory: --dir")?;
        let outbox = Arc::new(Outbox::new(run, Limits::default()));
        keyspace.lead(outbox.clone(), |position| {
            let noted = NotedRun::new(&self.topic.topic, run, after, position);
            noted.write(dir).map_err(|error| format!("the run cannot be noted: {error}"))
        })?;
        let (shared, sends, keyspace) = (Arc::clone(self), outbox.clone(), keyspace.clone());
        let send = move || {
            let Err(error) = sends.run(&mut producer) else { return };
            tracing::error!(%error, "replication: nothing is written any more");
            if matches!(error, TransportError::Fenced(_)) {
                keyspace.refuse_writes();
                shared.lock().role = ReplicationRole::Fenced;
            }
            shared.lock().failure = Some(error.to_string());
        };
        let thread = thread::Builder::new().name("ordna primary".to_owned()).spawn(send);
        let mut state = self.lock();
        state.note_end(after, end);
        state.role = ReplicationRole::Primary;
        state.outbox = Some(outbox);
        state.sending = Some(thread.map_err(|error| error.to_string())?);
        Ok(())
    }

    /// Starts as a primary: continues the history of the directory, or begins one.
    fn lead_again(self: &Arc<Self>, keyspace: &ReplicatedKeyspace) -> Result<(), String> {
        let dir = keyspace.directory().ok_or("--replicate needs a data directory: --dir")?;
        let noted = noted(dir)?;
        if let Some(noted) = &noted
            && noted.topic != self.topic.topic
        {
            return Err(format!("{} is replicated to {:?}", dir.display(), noted.topic));
        }
        let LogTopic { brokers, settings, .. } = &self.topic;
        create_topic(brokers, &self.topic.topic, settings, PATIENCE)?;
        let own = keyspace.log_position();
        // A server that is refused must not fence the primary first.
        self.end_of_topic(keyspace, noted.as_ref(), own)?;
        // Fences a process that still runs: the end of the partition cannot move any more.
        let mut producer = self.open_producer()?;
        let end = self.end_of_topic(keyspace, noted.as_ref(), own)?;
        let after = match noted {
            Some(noted) if self.join(keyspace, &noted, &end, own, &mut producer)? => {
                (noted.run(), own)
            }
            _ => (end.last, end.end),
        };
        self.lead(keyspace, after, after.0.next(), producer)
    }

    /// Returns the end of the partition, if it belongs to the history of the directory. `own` is the
    /// end of the log.
    fn end_of_topic(
        &self,
        keyspace: &ReplicatedKeyspace,
        noted: Option<&NotedRun>,
        own: u64,
    ) -> Result<History, String> {
        let topic = &self.topic.topic;
        let run = noted.map_or(Run::default(), NotedRun::run);
        let reader = self.read_from(0)?;
        let end = read_end(&reader, run, own, PATIENCE).map_err(|error| error.to_string())?;
        match noted {
            Some(noted) if [noted.run(), noted.after()].contains(&end.last) => Ok(end),
            None if end.last == Run::default() && keyspace.is_empty() => Ok(end),
            None if end.last == Run::default() => Err(format!(
                "the directory holds keys and the topic {topic} does not: start with \
                 --replicate in an empty directory, and load the keys through the server"
            )),
            _ => Err(format!(
                "the topic {topic} was last written by another primary (term {}), so this \
                 directory may lack acknowledged writes and hold others: start with --follow in \
                 an empty directory",
                end.last.term
            )),
        }
    }

    /// Makes the directory's log and the partition one history. `own`: the end of the log. Returns
    /// whether anything was sent.
    fn join(
        &self,
        keyspace: &ReplicatedKeyspace,
        noted: &NotedRun,
        end: &History,
        own: u64,
        producer: &mut Producer,
    ) -> Result<bool, String> {
        const GAP: &str = "the directory's log and the topic do not fit together: start with \
                           --follow in an empty directory";
        if own < noted.position {
            return Err(GAP.to_owned());
        }
        let has_begun = end.last == noted.run();
        let sent = if has_begun { end.end } else { noted.position };
        if sent > own {
            if !end.is_whole {
                return Err(GAP.to_owned());
            }
            for piece in &end.later {
                let all = groups(&piece.body, piece.start).map_err(|error| error.to_string())?;
                let lacking: Vec<_> = all.into_iter().filter(|it| it.end() > own).collect();
                if lacking.first().is_some_and(|group| group.start < own) {
                    return Err(GAP.to_owned());
                }
                keyspace.apply(&lacking, None).map_err(|error| error.to_string())?;
            }
            tracing::info!(bytes = sent - own, "replication: applied what only the topic had");
            return Ok(false);
        }
        if sent == own {
            return Ok(false);
        }
        let time = if has_begun { end.time } else { 0 };
        let (mut messages, mut bytes, mut failure) = (Vec::new(), 0, None);
        let read = keyspace.read_log(sent, |group: LogGroup<'_>| {
            let mut body = Vec::new();
            add_group(&mut body, group);
            bytes += body.len();
            messages.extend(messages_of(noted.run(), group.start, time, &body));
            if bytes > MOST_TRANSACTION && failure.is_none() {
                failure = send(producer, &messages).err();
                (messages, bytes) = (Vec::new(), 0);
            }
        });
        match read {
            Ok(Some(position)) if position == own => {}
            Ok(_) => return Err(GAP.to_owned()),
            Err(error) => return Err(error.to_string()),
        }
        if let Some(failure) = failure {
            return Err(failure);
        }
        send(producer, &messages)?;
        tracing::info!(bytes = own - sent, "replication: sent what only the log had");
        Ok(true)
    }
}

/// Returns the run that a directory has recorded.
fn noted(dir: &Path) -> Result<Option<NotedRun>, String> {
    NotedRun::read(dir).map_err(|error| format!("REPLICA.json cannot be read: {error}"))
}

/// Commits messages before the run begins.
fn send(producer: &mut Producer, messages: &[Vec<u8>]) -> Result<(), String> {
    let until = Instant::now() + PATIENCE;
    while !messages.is_empty() {
        match producer.commit(messages) {
            Ok(()) => break,
            Err(TransportError::Retry(_)) if Instant::now() < until => thread::sleep(LOOK),
            Err(error) => return Err(error.to_string()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_names_brokers_and_a_topic() {
        let parsed = LogTopic::parse("kafka://a:9092,b:9092/keys").unwrap();
        assert_eq!((parsed.brokers.as_str(), parsed.topic.as_str()), ("a:9092,b:9092", "keys"));
        for text in
            ["a:9092/keys", "kafka://a:9092", "kafka:///keys", "kafka://a/", "kafka://a/b/c"]
        {
            assert!(LogTopic::parse(text).is_err(), "{text}");
        }
    }
}
