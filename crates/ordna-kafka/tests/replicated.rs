//! Tests of a replicated store over librdkafka: a primary and a follower, on librdkafka's mock
//! cluster. With the broker of `ORDNA_BROKER`, there is also a promotion while the old primary
//! still runs, because the mock cluster does not fence.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use ordna::{Error, OpenOptions, Options, Store, SyncPolicy, Write};
use ordna_kafka::replication::{
    Applier, Follower, Limits, Outbox, Producer, Run, Step, TransportError,
};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::mocking::MockCluster;

type Bytes = Store<[u8], [u8]>;
type Copy = Applier<[u8], [u8]>;

const PATIENCE: Duration = Duration::from_secs(30);

/// Locked by each test, because one of them kills the broker.
static BROKER: Mutex<()> = Mutex::new(());

/// Brokers with a topic that has one partition.
struct Brokers {
    address: String,
    topic: String,
    mock: Option<MockCluster<'static, rdkafka::producer::DefaultProducerContext>>,
}

impl Brokers {
    fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let topic = format!("log-{}-{number}", std::process::id());
        if let Ok(address) = std::env::var("ORDNA_BROKER") {
            let mut settings = ClientConfig::new();
            settings.set("bootstrap.servers", &address);
            let admin: AdminClient<DefaultClientContext> = settings.create().unwrap();
            let new = NewTopic::new(&topic, 1, TopicReplication::Fixed(1));
            let options = AdminOptions::new().operation_timeout(Some(PATIENCE));
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let made = runtime.block_on(admin.create_topics([&new], &options)).unwrap();
            made[0].as_ref().unwrap();
            return Self { address, topic, mock: None };
        }
        let mock = MockCluster::new(3).unwrap();
        mock.create_topic(&topic, 1, 3).unwrap();
        Self { address: mock.bootstrap_servers(), topic, mock: Some(mock) }
    }

    fn producer(&self) -> Producer {
        let opened = Producer::open(&self.address, &self.topic, "keyspace", &[], PATIENCE);
        opened.unwrap_or_else(|error| panic!("{error}"))
    }

    fn follow(&self, copy: &Copy) -> Follower {
        Follower::start(&self.address, &self.topic, copy.place().offset, &[]).unwrap()
    }
}

/// Applies messages to the end of the partition, and at least up to a position.
fn catch_up(follower: &Follower, copy: &mut Copy, position: u64) {
    let began = Instant::now();
    loop {
        let step = follower.step(copy, Duration::from_millis(100)).unwrap();
        if step == Step::End && copy.place().position >= position {
            return;
        }
        assert!(began.elapsed() < PATIENCE, "at {:?}, not at {position}", copy.place());
    }
}

fn entries(store: &Bytes) -> Vec<(Vec<u8>, Vec<u8>)> {
    store.range(..).collect()
}

struct Primary {
    store: Bytes,
    outbox: Arc<Outbox>,
    sender: thread::JoinHandle<Result<(), TransportError>>,
    dir: PathBuf,
}

impl Primary {
    fn start(name: &str, run: Run, mut producer: Producer) -> Self {
        let dir = std::env::temp_dir().join(format!("ordna-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        let store = Bytes::open(&dir, OpenOptions::new().sync(SyncPolicy::Always)).unwrap();
        let outbox = Arc::new(Outbox::new(run, Limits::default()));
        store.attach_log_sink(outbox.clone()).unwrap();
        let sends = outbox.clone();
        let sender = thread::spawn(move || sends.run(&mut producer));
        Self { store, outbox, sender, dir }
    }

    fn end(self) -> Result<(), TransportError> {
        self.outbox.close();
        let sent = self.sender.join().unwrap();
        drop(self.store);
        let _ = std::fs::remove_dir_all(&self.dir);
        sent
    }
}

#[test]
fn a_promotion_fences_the_old_primary_and_loses_nothing_acknowledged() {
    let _alone = BROKER.lock().unwrap_or_else(PoisonError::into_inner);
    let brokers = Brokers::new();
    let old = Primary::start("old", Run::default().next(), brokers.producer());
    for number in 0..20_u32 {
        old.store.insert(&number.to_be_bytes()[..], b"old").unwrap();
    }
    let large = vec![b'x'; 2 << 20];
    old.store.write_batch(&[Write::put(b"l1", &*large), Write::put(b"l2", &*large)]).unwrap();
    let mut copy = Copy::new(Options::new());
    let follower = brokers.follow(&copy);
    catch_up(&follower, &mut copy, old.store.log_position());
    assert_eq!(entries(copy.store()), entries(&old.store));

    // The follower writes a backup, with which another follower starts.
    let backup = std::env::temp_dir().join(format!("ordna-copy-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&backup);
    copy.back_up(&backup).unwrap();
    old.store.insert(b"after the backup", b"1").unwrap();
    let mut copy = Copy::restore(&backup, Options::new()).unwrap();
    let follower = brokers.follow(&copy);
    catch_up(&follower, &mut copy, old.store.log_position());
    assert_eq!(entries(copy.store()), entries(&old.store));
    std::fs::remove_dir_all(&backup).unwrap();

    if brokers.mock.is_some() {
        return old.end().unwrap();
    }
    // The old primary continues to run.
    let acknowledged = entries(&old.store);
    let producer = brokers.producer();
    let late = old.store.insert(b"late", b"1");
    assert!(matches!(&late, Err(Error::LogFailed { .. })), "{late:?}");
    assert!(old.store.insert(b"later", b"1").is_err());
    follower.catch_up(&mut copy, PATIENCE).unwrap();
    assert_eq!(entries(copy.store()), acknowledged);
    let ended = old.end();
    assert!(matches!(ended, Err(TransportError::Fenced(_))), "{ended:?}");

    let new = Primary::start("new", copy.place().run.next(), producer);
    new.store.insert(b"new", b"1").unwrap();
    let position = new.store.log_position();
    new.end().unwrap();
    let began = Instant::now();
    while copy.place().run.term < 2 && began.elapsed() < PATIENCE {
        follower.step(&mut copy, Duration::from_millis(100)).unwrap();
    }
    assert_eq!((copy.place().run.term, copy.place().position), (2, position));
    assert_eq!(copy.store().get(b"new".as_slice()), Some(b"1".to_vec()));
    assert_eq!(copy.store().len(), acknowledged.len() + 1);
}

/// Kills or starts the broker of `cargo xtask kafka test`.
fn control(xtask: &str, word: &str) {
    let done = Command::new(xtask).args(["kafka", word]).status().unwrap();
    assert!(done.success(), "kafka {word}: {done}");
}

#[test]
fn what_is_written_while_the_broker_is_killed_is_applied_once() {
    let Ok(xtask) = std::env::var("ORDNA_XTASK") else { return };
    let _alone = BROKER.lock().unwrap_or_else(PoisonError::into_inner);
    let brokers = Brokers::new();
    let primary = Primary::start("killed", Run::default().next(), brokers.producer());
    let written = AtomicU32::new(0);
    let is_over = || written.load(Ordering::Relaxed) > 300;
    thread::scope(|scope| {
        let store = &primary.store;
        for thread in 0..4_u8 {
            let (written, is_over) = (&written, &is_over);
            scope.spawn(move || {
                while !is_over() {
                    // Appends, so that a record that is applied twice would be visible.
                    store.append(&[thread], b"+").unwrap();
                    written.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        while written.load(Ordering::Relaxed) < 50 {
            thread::yield_now();
        }
        control(&xtask, "kill");
        thread::sleep(Duration::from_millis(500));
        let stopped = written.load(Ordering::Relaxed);
        thread::sleep(Duration::from_millis(500));
        assert_eq!(written.load(Ordering::Relaxed), stopped, "acknowledged without a broker");
        control(&xtask, "start");
    });
    let mut copy = Copy::new(Options::new());
    brokers.follow(&copy).catch_up(&mut copy, PATIENCE).unwrap();
    assert_eq!(entries(copy.store()), entries(&primary.store));
    let bytes: usize = entries(copy.store()).iter().map(|(_, value)| value.len()).sum();
    assert_eq!(bytes, written.load(Ordering::Relaxed) as usize);
    primary.end().unwrap();
}
