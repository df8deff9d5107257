//! Tests of the primary's outbox and the follower's applier, over a transport that fails, delays
//! and fences.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use ordna::durability::{LogGroup, LogSink};
use ordna::{Error, OpenOptions, Options, Store, SyncPolicy, Write};
use ordna_kafka::replication::{
    Applier, ApplyError, Limits, MessageError, Outbox, Run, Transport, TransportError,
};

type Bytes = Store<[u8], [u8]>;
type Entries = Vec<(Vec<u8>, Vec<u8>)>;

/// A partition in memory. Only the newest of its transports may commit.
#[derive(Default)]
struct Partition {
    state: Mutex<State>,
    moved: Condvar,
}

#[derive(Default)]
struct State {
    messages: Vec<Vec<u8>>,
    transactions: usize,
    owner: u64,
    /// Errors that the next commits return.
    errors: VecDeque<TransportError>,
    is_away: bool,
}

impl Partition {
    fn open(self: &Arc<Self>) -> Link {
        let mut state = self.state.lock().unwrap();
        state.owner += 1;
        Link { partition: Arc::clone(self), number: state.owner }
    }

    fn set_away(&self, is_away: bool) {
        self.state.lock().unwrap().is_away = is_away;
        self.moved.notify_all();
    }
}

struct Link {
    partition: Arc<Partition>,
    number: u64,
}

impl Transport for Link {
    fn commit(&mut self, messages: &[Vec<u8>]) -> Result<(), TransportError> {
        let mut state = self.partition.state.lock().unwrap();
        while state.is_away {
            state = self.partition.moved.wait(state).unwrap();
        }
        if let Some(error) = state.errors.pop_front() {
            return Err(error);
        }
        if state.owner != self.number {
            return Err(TransportError::Fenced(format!("owner {}", state.owner)));
        }
        state.messages.extend_from_slice(messages);
        state.transactions += 1;
        Ok(())
    }
}

/// A directory that is removed on drop.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("ordna-repl-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        Self(dir)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A primary with its sender thread.
struct Primary {
    store: Arc<Bytes>,
    outbox: Arc<Outbox>,
    sender: Option<thread::JoinHandle<Result<(), TransportError>>>,
    _dir: Dir,
}

impl Primary {
    fn start(name: &str, sync: SyncPolicy, limits: Limits, run: Run, mut link: Link) -> Self {
        let dir = Dir::new(name);
        let store = Arc::new(Bytes::open(&dir.0, OpenOptions::new().sync(sync)).unwrap());
        let outbox = Arc::new(Outbox::new(run, limits));
        store.attach_log_sink(outbox.clone()).unwrap();
        let sends = outbox.clone();
        let sender = Some(thread::spawn(move || sends.run(&mut link)));
        Self { store, outbox, sender, _dir: dir }
    }

    /// Ends the sender and returns its result.
    fn end(&mut self) -> Result<(), TransportError> {
        self.outbox.close();
        self.sender.take().unwrap().join().unwrap()
    }
}

fn entries(store: &Bytes) -> Entries {
    store.range(..).collect()
}

fn apply_all(applier: &mut Applier<[u8], [u8]>, partition: &Partition) -> Result<(), ApplyError> {
    let messages = partition.state.lock().unwrap().messages.clone();
    for (offset, message) in messages.iter().enumerate() {
        applier.apply(offset as u64, message)?;
    }
    Ok(())
}

fn first_run() -> Run {
    Run::default().next()
}

#[test]
fn a_follower_gets_the_primarys_state_through_retries_and_from_a_backup() {
    let partition = Arc::new(Partition::default());
    let link = partition.open();
    let again = TransportError::Retry("not enough replicas".into());
    partition.state.lock().unwrap().errors.extend([again.clone(), again]);
    let always = SyncPolicy::Always;
    let mut primary = Primary::start("state", always, Limits::default(), first_run(), link);
    thread::scope(|scope| {
        for thread in 0..4_u32 {
            let store = &primary.store;
            scope.spawn(move || {
                for number in 0..60_u32 {
                    let key = format!("k{}", number % 20);
                    let value = format!("{thread}:{number}");
                    match number % 3 {
                        0 => drop(store.append(key.as_bytes(), value.as_bytes()).unwrap()),
                        1 => drop(store.remove(key.as_bytes()).unwrap()),
                        _ => drop(store.insert(key.as_bytes(), value.as_bytes()).unwrap()),
                    }
                }
            });
        }
    });
    assert_eq!(primary.outbox.acknowledged(), primary.store.log_position());
    let mut applier = Applier::<[u8], [u8]>::new(Options::new());
    apply_all(&mut applier, &partition).unwrap();
    assert_eq!(entries(applier.store()), entries(&primary.store));
    let copy = Dir::new("state-backup");
    applier.back_up(&copy.0).unwrap();
    let place = applier.place();
    assert_eq!(place.position, primary.store.log_position());

    // A group that is larger than a message, and one that is repeated after a restart.
    let large = vec![b'x'; 3 << 20];
    primary.store.write_batch(&[Write::put(b"l1", &*large), Write::put(b"l2", &*large)]).unwrap();
    primary.end().unwrap();
    let mut restored = Applier::<[u8], [u8]>::restore(&copy.0, Options::new()).unwrap();
    assert_eq!(restored.place(), place);
    // Messages before the position of the backup are skipped.
    apply_all(&mut restored, &partition).unwrap();
    assert_eq!(entries(restored.store()), entries(&primary.store));
    assert_eq!(restored.place().position, primary.store.log_position());
}

#[test]
fn a_fenced_primary_acknowledges_nothing_and_the_next_run_continues() {
    let partition = Arc::new(Partition::default());
    let (always, limits) = (SyncPolicy::Always, Limits::default());
    let mut old = Primary::start("old", always, limits, first_run(), partition.open());
    old.store.insert(b"a", b"1").unwrap();
    let mut follower = Applier::<[u8], [u8]>::new(Options::new());
    // A promotion fences first, and then applies what is committed.
    let link = partition.open();
    apply_all(&mut follower, &partition).unwrap();
    let late = old.store.insert(b"a", b"2");
    assert!(matches!(&late, Err(Error::LogFailed { reason }) if reason.contains("taken over")));
    assert!(old.store.insert(b"b", b"1").is_err());
    assert_eq!(old.store.get(b"b".as_slice()), None, "refused, and in memory");
    assert!(matches!(old.end(), Err(TransportError::Fenced(_))));

    let run = follower.place().run.next();
    assert_eq!(run.term, 2);
    let mut new = Primary::start("new", always, limits, run, link);
    new.store.insert(b"c", b"3").unwrap();
    new.end().unwrap();
    apply_all(&mut follower, &partition).unwrap();
    let expected = [(b"a".to_vec(), b"1".to_vec()), (b"c".to_vec(), b"3".to_vec())];
    assert_eq!(entries(follower.store()), expected);
}

#[test]
fn while_the_brokers_are_away_writes_are_bounded_and_later_committed() {
    let partition = Arc::new(Partition::default());
    partition.set_away(true);
    let lag = Duration::from_secs(3600);
    let limits = Limits { most_bytes: 1 << 20, most_lag: lag, idle: lag };
    let every = SyncPolicy::EverySecond;
    let mut primary = Primary::start("away", every, limits, first_run(), partition.open());
    let value = vec![b'v'; 10_000];
    let taken = (0..1000_u32)
        .take_while(|number| primary.store.insert(&number.to_be_bytes()[..], &*value).is_ok());
    let taken = taken.count();
    assert!((100..120).contains(&taken), "{taken} writes of 10 kB before 1 MiB wait");
    assert_eq!(primary.store.len(), taken, "a refused write is in memory");
    assert!(primary.outbox.failure().is_none(), "this passes");
    let delay = primary.outbox.delay(Duration::ZERO).unwrap();
    assert!(delay.ends_with("the brokers do not answer"), "{delay}");
    assert_eq!(primary.outbox.delay(lag), None);
    partition.set_away(false);
    while primary.store.insert(b"again", b"1").is_err() {
        thread::sleep(Duration::from_millis(1));
    }
    primary.end().unwrap();
    let mut follower = Applier::<[u8], [u8]>::new(Options::new());
    apply_all(&mut follower, &partition).unwrap();
    assert_eq!(entries(follower.store()), entries(&primary.store));
}

#[test]
fn a_delay_names_the_reason_for_which_a_transaction_is_sent_again() {
    let partition = Arc::new(Partition::default());
    let error = || TransportError::Retry("too large".to_owned());
    partition.state.lock().unwrap().errors = (0..8).map(|_| error()).collect();
    let (every, limits) = (SyncPolicy::EverySecond, Limits::default());
    let mut primary = Primary::start("delay", every, limits, first_run(), partition.open());
    primary.store.insert(b"a", b"1").unwrap();
    let delay = loop {
        let delay = primary.outbox.delay(Duration::ZERO).expect("it waits");
        if delay.contains("too large") {
            break delay;
        }
        thread::sleep(Duration::from_millis(1));
    };
    assert_eq!(delay, "nothing was acknowledged for 0 s: too large");
    primary.outbox.wait_for(primary.store.log_position(), Duration::from_secs(60));
    assert_eq!(primary.outbox.delay(Duration::ZERO), None);
    primary.end().unwrap();
}

/// Returns messages of a run that put these keys, with one group per message.
fn messages(run: Run, begin: u64, keys: &[&str]) -> Vec<Vec<u8>> {
    let partition = Arc::new(Partition::default());
    let mut link = partition.open();
    let hour = Duration::from_secs(3600);
    let outbox = Arc::new(Outbox::new(run, Limits { idle: hour, ..Limits::default() }));
    outbox.begin(begin);
    let sends = outbox.clone();
    let sender = thread::spawn(move || sends.run(&mut link));
    let mut start = begin;
    for key in keys {
        let mut records = vec![0, key.len() as u8];
        records.extend_from_slice(key.as_bytes());
        records.extend_from_slice(&[1, b'v']);
        outbox.take(LogGroup { start, records: &records, count: 1 });
        start += records.len() as u64;
        while outbox.acknowledged() < start {
            thread::yield_now();
        }
    }
    outbox.close();
    sender.join().unwrap().unwrap();
    let messages = partition.state.lock().unwrap().messages.clone();
    assert_eq!(messages.len(), keys.len());
    messages
}

#[test]
fn a_follower_refuses_gaps_older_runs_and_damage() {
    let (one, two) = (first_run(), first_run().next());
    let first = messages(one, 100, &["a", "b", "c"]);
    let second = messages(two, 7, &["d"]);
    let mut follower = Applier::<[u8], [u8]>::new(Options::new());
    follower.apply(0, &first[0]).unwrap();
    let is_gap = |done| matches!(done, Err(ApplyError::Gap { .. }));
    assert!(is_gap(follower.apply(1, &first[2])), "a message is missing");
    assert!(is_gap(follower.apply(1, &first[0])), "a message comes again at a later offset");
    for at in 0..first[1].len() {
        let mut damaged = first[1].clone();
        damaged[at] ^= 1;
        let refused = follower.apply(1, &damaged);
        assert!(matches!(refused, Err(ApplyError::Message { .. })), "byte {at}: {refused:?}");
        let cut = follower.apply(1, &first[1][..at]);
        assert!(matches!(cut, Err(ApplyError::Message { .. })), "{at} bytes: {cut:?}");
    }
    let short = follower.apply(1, b"");
    let expected = MessageError::Short { len: 0 };
    assert!(matches!(short, Err(ApplyError::Message { error, .. }) if error == expected));
    assert_eq!(follower.store().len(), 1, "nothing of these is applied");
    // A message whose offset was already applied is skipped. Markers leave gaps in the offsets.
    follower.apply(0, &first[0]).unwrap();
    follower.apply(5, &first[1]).unwrap();
    follower.apply(8, &second[0]).unwrap();
    assert_eq!(follower.place().offset, 9);
    assert!(is_gap(follower.apply(9, &first[2])), "an older run");
    assert!(
        is_gap(follower.apply(9, &messages(first_run().next(), 14, &["e"])[0])),
        "two of a term"
    );
    assert_eq!(follower.store().len(), 3);
}
