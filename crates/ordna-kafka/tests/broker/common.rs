//! Topics, documents and nodes of the tests, and the recomputation with which nodes are compared.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use ordna::tuple::{Number, Value};
use ordna_kafka::{IndexNode, LocalNode, NodeError, NodeOptions, RequestedState, Role};
use ordna_secondary::{IndexDefinition, Part, Query};
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::producer::{BaseRecord, Producer, ThreadedProducer};
use rdkafka::{ClientConfig, Message, Offset, TopicPartitionList};

/// Maximum duration of any step.
pub const PATIENCE: Duration = Duration::from_secs(60);

static BROKER: RwLock<()> = RwLock::new(());

/// Returns a guard for tests that need the broker all the time.
pub fn beside_others() -> RwLockReadGuard<'static, ()> {
    BROKER.read().unwrap_or_else(PoisonError::into_inner)
}

/// A guard for a test that stops the broker. On drop, it starts the broker again, even if the test
/// has failed.
pub struct Alone {
    _others: RwLockWriteGuard<'static, ()>,
}

pub fn alone() -> Alone {
    Alone { _others: BROKER.write().unwrap_or_else(PoisonError::into_inner) }
}

impl Alone {
    /// Starts or kills the broker.
    pub fn control(&self, word: &str) {
        let xtask = std::env::var("ORDNA_XTASK").expect("`cargo xtask kafka test` sets it");
        let done = Command::new(&xtask).args(["kafka", word]).status().unwrap();
        assert!(done.success(), "kafka {word}: {done}");
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.control("start");
        }
    }
}

pub fn broker() -> String {
    std::env::var("ORDNA_BROKER").expect("these tests need a broker: `cargo xtask kafka test`")
}

pub fn settings() -> ClientConfig {
    let mut settings = ClientConfig::new();
    settings.set("bootstrap.servers", broker());
    settings
}

pub fn admin<R>(
    run: impl AsyncFnOnce(&AdminClient<DefaultClientContext>, &AdminOptions) -> R,
) -> R {
    let admin: AdminClient<DefaultClientContext> = settings().create().unwrap();
    let options = AdminOptions::new().operation_timeout(Some(Duration::from_secs(20)));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(run(&admin, &options))
}

pub fn create(topic: &str, partitions: i32, config: &[(&str, &str)]) {
    let new = NewTopic::new(topic, partitions, TopicReplication::Fixed(1));
    let new = config.iter().fold(new, |new, (name, value)| new.set(name, value));
    let made = admin(async |admin, options| admin.create_topics([&new], options).await).unwrap();
    made[0].as_ref().unwrap();
    // The metadata reaches the broker a little later.
    let asker: BaseConsumer = settings().create().unwrap();
    until("the topic is there", || {
        let metadata = asker.fetch_metadata(Some(topic), PATIENCE).unwrap();
        metadata.topics()[0].partitions().len() == partitions as usize
            && metadata.topics()[0].partitions().iter().all(|one| one.leader() >= 0)
    });
}

/// Creates a topic for a test, with this number of partitions.
pub fn topic(partitions: i32) -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let topic = format!("t{}-{number}", std::process::id());
    create(&topic, partitions, &[("cleanup.policy", "compact")]);
    topic
}

/// Creates a topic with documents for a test. Returns its name and a writer.
pub fn filled(partitions: i32, documents: i64) -> (String, Writer) {
    let topic = topic(partitions);
    let writer = Writer::new(&topic);
    writer.fill(0..documents, "SE");
    (topic, writer)
}

pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Returns a document of the index, whose order is by country ascending and people descending.
pub fn document(country: &str, people: i64) -> String {
    format!(r#"{{"country":"{country}","people":{people}}}"#)
}

pub struct Writer(pub ThreadedProducer<rdkafka::producer::DefaultProducerContext>, pub String);

impl Writer {
    pub fn new(topic: &str) -> Self {
        let mut settings = settings();
        settings.set("linger.ms", "2").set("partitioner", "murmur2_random");
        Self(settings.create().unwrap(), topic.to_owned())
    }

    pub fn put(&self, partition: Option<i32>, key: Option<&str>, value: Option<&str>) {
        let mut record = BaseRecord::to(&self.1);
        record.partition = partition;
        record.key = key;
        record.payload = value;
        loop {
            match self.0.send(record) {
                Ok(()) => return,
                Err((KafkaError::MessageProduction(_), back)) => record = back,
                Err((error, _)) => panic!("{error}"),
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn set(&self, id: &str, value: &str) {
        self.put(None, Some(id), Some(value));
    }

    pub fn delete(&self, id: &str) {
        self.put(None, Some(id), None);
    }

    /// Writes a document for each of these numbers, and flushes.
    pub fn fill(&self, numbers: Range<i64>, country: &str) {
        numbers.for_each(|number| self.set(&format!("d{number}"), &document(country, number)));
        self.flush();
    }

    pub fn flush(&self) {
        self.0.flush(PATIENCE).unwrap();
    }
}

pub fn definition() -> IndexDefinition {
    IndexDefinition::new("by_size", "")
        .part(Part::new("country"))
        .part(Part::new("people").descending())
}

/// Returns options for a node of a group, at an address that is not in use.
pub fn options(group: &str, topic: &str, number: u32) -> NodeOptions {
    let address = format!("127.0.0.1:{}", 50_000 + number);
    let options = NodeOptions::new(broker(), group, topic, address);
    let session_timeout = Duration::from_secs(6);
    NodeOptions { indexes: vec![definition()], session_timeout, ..options }
}

pub fn node(group: &str, topic: &str, number: u32) -> IndexNode {
    IndexNode::start(options(group, topic, number)).unwrap()
}

/// Adds backups in a directory to the options.
pub fn backed_up(dir: &Path, options: NodeOptions) -> NodeOptions {
    NodeOptions { backups: Some(dir.to_owned()), backup_on_revoke: true, ..options }
}

/// Returns an empty directory for a test.
pub fn directory(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("ordna-kafka-{}-{name}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    dir
}

/// Returns the partitions that nodes own and return entries of, in order.
pub fn owned(nodes: &[&IndexNode]) -> Vec<u32> {
    let held = nodes.iter().flat_map(|node| node.held());
    let ready = held.filter(|held| held.role == Role::Owner && held.ready);
    let mut all: Vec<u32> = ready.map(|held| held.partition).collect();
    all.sort_unstable();
    all
}

/// An entry: its parts and its id.
pub type Entry = (String, Reverse<i64>, String);

pub fn entry(id: &[u8], parts: &[Value]) -> Entry {
    let [Value::String(country), Value::Number(Number::Int(people))] = parts else {
        panic!("{parts:?}")
    };
    let id = String::from_utf8(id.to_vec()).unwrap();
    (country.clone(), Reverse(i64::try_from(*people).unwrap()), id)
}

/// Returns the entries of a partition of a node, in order, when it contains everything that the
/// partition has now.
pub fn entries_of(node: &IndexNode, partition: u32) -> Vec<Entry> {
    let until = Instant::now() + PATIENCE;
    let shown = loop {
        match node.view(partition, RequestedState::RequestPlus, until) {
            Ok(shown) => break shown,
            // The group assigns the partition shortly after the start.
            Err(NodeError::NotHeld { .. }) if Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(error) => panic!("partition {partition}: {error}"),
        }
    };
    let query = Query::new().covering().limit(usize::MAX);
    let page = shown.view.query("by_size", &query).unwrap();
    page.entries.iter().map(|found| entry(&found.id, &found.parts)).collect()
}

/// Returns the entries of all partitions, which the nodes own together.
pub fn entries(nodes: &[&IndexNode], partitions: u32) -> Vec<Entry> {
    let mut all = Vec::new();
    for partition in 0..partitions {
        let mut owner = None;
        until("each partition has an owner", || {
            let held = |node: &&&IndexNode| {
                node.held().iter().any(|held| held.partition == partition && held.ready)
            };
            owner = nodes.iter().find(held).copied();
            owner.is_some()
        });
        all.extend(entries_of(owner.unwrap(), partition));
    }
    all.sort();
    all
}

/// Computes the entries of the topic's current contents, with a separate consumer.
pub fn recomputed(topic: &str) -> Vec<Entry> {
    let mut settings = settings();
    settings
        .set("group.id", "recompute")
        .set("isolation.level", "read_committed")
        .set("enable.partition.eof", "true")
        .set("auto.offset.reset", "error")
        .set("enable.auto.commit", "false");
    let consumer: BaseConsumer = settings.create().unwrap();
    let metadata = consumer.fetch_metadata(Some(topic), PATIENCE).unwrap();
    let partitions = metadata.topics()[0].partitions().len();
    let mut list = TopicPartitionList::new();
    list.add_partition_range(topic, 0, partitions as i32 - 1);
    list.set_all_offsets(Offset::Beginning).unwrap();
    consumer.assign(&list).unwrap();
    let mut documents: BTreeMap<Vec<u8>, serde_json::Value> = BTreeMap::new();
    let mut ended = 0;
    let began = Instant::now();
    while ended < partitions {
        assert!(began.elapsed() < PATIENCE, "the recomputation does not end");
        match consumer.poll(Duration::from_millis(100)) {
            None => {}
            Some(Err(KafkaError::PartitionEOF(_))) => ended += 1,
            Some(Err(error)) => panic!("{error}"),
            Some(Ok(message)) => {
                let Some(key) = message.key() else { continue };
                let json = message.payload().map(serde_json::from_slice::<serde_json::Value>);
                match json {
                    None => drop(documents.remove(key)),
                    Some(Ok(json)) if json.is_object() => {
                        documents.insert(key.to_vec(), json);
                    }
                    Some(_) => {}
                }
            }
        }
    }
    let entry = |(id, json): (Vec<u8>, serde_json::Value)| {
        let country = json["country"].as_str().unwrap().to_owned();
        let people = json["people"].as_i64().unwrap();
        (country, Reverse(people), String::from_utf8(id).unwrap())
    };
    let mut all: Vec<Entry> = documents.into_iter().map(entry).collect();
    all.sort();
    all
}
