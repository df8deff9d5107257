//! A topic in memory, and nodes that index it. Everything except Kafka is real.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::{Duration, Instant};

use ordna::tuple::{Number, Value};
use ordna_kafka::query::{GroupQueries, GroupQuery, Link, QueryLimits};
use ordna_kafka::{
    HeldPartition, LocalNode, Member, NodeError, OwnerTable, PartitionView, RequestedState, Role,
};
use ordna_secondary::{
    ChangeSource, Consistency, Document, Documents, Feed, IndexDefinition, Kind, Mutation, Part,
    Position, Query, Read, Service, ServiceOptions, SourceError, VersionVector,
};
use ordna_server::{Answer, Config, Extension, Server, TlsConfig};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

type Record = (Vec<u8>, Option<Document>);

/// The records of a partition.
#[derive(Debug, Default)]
pub struct Log(Mutex<Vec<Record>>, Condvar);

impl Log {
    fn len(&self) -> u64 {
        self.0.lock().unwrap().len() as u64
    }

    fn mutation(&self, seq: u64) -> Option<Mutation> {
        let (id, document) = self.0.lock().unwrap().get(seq as usize - 1)?.clone();
        Some(Mutation { partition: 0, seq, id: id.into(), document })
    }
}

/// Identity of the partitions of the topic.
pub const IDENTITY: u64 = 7;

/// The reading position of a node in a partition.
struct Source {
    log: Arc<Log>,
    /// Number of records that the node can read. After them, the broker is unavailable.
    most: Arc<AtomicU64>,
}

impl ChangeSource for Source {
    fn partitions(&self) -> u32 {
        1
    }

    fn newest(&self, _: u32) -> Result<Position, SourceError> {
        Ok(Position { identity: IDENTITY, seq: self.log.len() })
    }

    fn continues(&self, _: u32, from: Position) -> Result<bool, SourceError> {
        Ok(from.identity == IDENTITY && from.seq <= self.log.len())
    }

    fn documents(&self, at: &VersionVector, _: usize) -> Result<Vec<Documents>, SourceError> {
        let log = Arc::clone(&self.log);
        let end = at.positions()[0].seq;
        Ok(vec![Box::new((1..=end).filter_map(move |seq| log.mutation(seq).map(Ok)))])
    }

    fn run(&self, feed: &Feed, from: &VersionVector) -> Result<(), SourceError> {
        let mut seq = from.positions()[0].seq;
        if seq == 0 {
            feed.reset(0, IDENTITY);
        }
        while !feed.is_stopped() {
            let most = self.most.load(Ordering::SeqCst).min(self.log.len());
            while seq < most {
                seq += 1;
                feed.push(self.log.mutation(seq).unwrap())?;
            }
            let records = self.log.0.lock().unwrap();
            drop(self.log.1.wait_timeout(records, Duration::from_millis(5)));
        }
        Ok(())
    }
}

/// The topic and the owner table, which all nodes share.
#[derive(Debug)]
pub struct Group {
    pub logs: Vec<Arc<Log>>,
    pub table: Mutex<OwnerTable>,
    pub definitions: Vec<IndexDefinition>,
    /// The addresses of the nodes, by number.
    pub addresses: Mutex<Vec<String>>,
}

impl Group {
    pub fn new(partitions: u32) -> Arc<Self> {
        let by_size = IndexDefinition::new("by_size", "town:")
            .part(Part::new("country"))
            .part(Part::new("people").kind(Kind::Number).descending());
        let logs = (0..partitions).map(|_| Arc::default()).collect();
        let table = Mutex::new(OwnerTable { partitions, members: Vec::new(), version: 1 });
        Arc::new(Self { logs, table, definitions: vec![by_size], addresses: Mutex::default() })
    }

    /// Returns another group over the same topic.
    pub fn twin(&self) -> Arc<Self> {
        let mut twin = Self::new(self.logs.len() as u32);
        Arc::get_mut(&mut twin).unwrap().logs = self.logs.clone();
        twin
    }

    pub fn partition_of(&self, id: &[u8]) -> u32 {
        ordna::checksum::crc32(id) % self.logs.len() as u32
    }

    /// Appends a record.
    pub fn write(&self, id: &str, document: Option<(&str, i64)>) {
        let log = &self.logs[self.partition_of(id.as_bytes()) as usize];
        let document = document.map(|(country, people)| {
            Document::new()
                .with("country", Value::String(country.to_owned()))
                .with("people", Value::Number(Number::Int(people.into())))
        });
        log.0.lock().unwrap().push((id.into(), document));
        log.1.notify_all();
    }

    /// Writes towns of three countries.
    pub fn fill(&self, towns: std::ops::Range<i64>) {
        for n in towns {
            let country = ["SE", "FI", "NO"][n as usize % 3];
            self.write(&format!("town:{n:05}"), Some((country, n * 7919 % 1000)));
        }
    }

    pub fn ends(&self) -> VersionVector {
        let position = |log: &Arc<Log>| Position { identity: IDENTITY, seq: log.len() };
        VersionVector::new(self.logs.iter().map(position).collect())
    }

    /// Returns the ids of all entries at a vector, in the order of the index.
    pub fn oracle(&self, vector: &VersionVector, is_wanted: impl Fn(u32) -> bool) -> Vec<String> {
        let mut keys = Vec::new();
        for (partition, position) in vector.positions().iter().enumerate() {
            let mut documents = BTreeMap::new();
            for seq in 1..=position.seq {
                let mutation = self.logs[partition].mutation(seq).unwrap();
                documents.insert(mutation.id.to_vec(), mutation.document);
            }
            let mut made = ordna_secondary::Keys::default();
            for (id, document) in documents {
                let Some(document) = document.filter(|_| is_wanted(partition as u32)) else {
                    continue;
                };
                self.definitions[0].keys(&id, &document, &mut made).unwrap();
                keys.extend(
                    made.iter().map(|key| (key.to_vec(), String::from_utf8(id.clone()).unwrap())),
                );
            }
        }
        keys.sort();
        keys.into_iter().map(|(_, id)| id).collect()
    }

    /// Assigns these partitions to each node, by number.
    pub fn assign(&self, partitions: &[&[u32]]) {
        let addresses = self.addresses.lock().unwrap();
        let member = |(n, partitions): (usize, &&[u32])| Member {
            address: addresses[n].clone(),
            partitions: partitions.to_vec(),
        };
        let mut table = self.table.lock().unwrap();
        table.members = partitions.iter().enumerate().map(member).collect();
        table.version += 1;
    }
}

/// Returns a service that has indexed a partition to its end, with backups, for
/// `examples/scale.rs`.
#[allow(dead_code)]
pub fn indexed(group: &Group, partition: u32, dir: &std::path::Path) -> Service {
    let log = Arc::clone(&group.logs[partition as usize]);
    let most = Arc::new(AtomicU64::new(u64::MAX));
    let source = Arc::new(Source { log: Arc::clone(&log), most });
    let service = Service::start(ServiceOptions::new().backups(dir), source).unwrap();
    for definition in &group.definitions {
        if service.info(&definition.name).is_err() {
            service.create(definition.clone()).unwrap();
        }
        service.wait_until_built(&definition.name, Duration::from_secs(600)).unwrap();
    }
    let target = VersionVector::new(vec![group.ends().positions()[partition as usize]]);
    service.view(&Read::at_plus(target).timeout(Duration::from_secs(600))).unwrap();
    service
}

/// A partition that a node holds.
#[derive(Debug)]
struct Copy {
    service: Service,
    most: Arc<AtomicU64>,
}

/// The part of a group that belongs to one node.
#[derive(Debug)]
pub struct Fake {
    pub group: Arc<Group>,
    address: OnceLock<String>,
    copies: Mutex<BTreeMap<u32, Arc<Copy>>>,
    /// Duration of each call.
    pub delay: Mutex<Duration>,
    /// Age that the node reports for its rows.
    pub age: Mutex<Duration>,
    /// Number of calls of `view`.
    pub calls: AtomicU64,
}

impl Fake {
    pub fn new(group: &Arc<Group>) -> Arc<Self> {
        Arc::new(Self {
            group: Arc::clone(group),
            address: OnceLock::new(),
            copies: Mutex::default(),
            delay: Mutex::default(),
            age: Mutex::default(),
            calls: AtomicU64::new(0),
        })
    }

    /// Indexes a partition, up to `most` records.
    pub fn restore(&self, partition: u32, most: u64) {
        let most = Arc::new(AtomicU64::new(most));
        let log = Arc::clone(&self.group.logs[partition as usize]);
        let source = Arc::new(Source { log: Arc::clone(&log), most: Arc::clone(&most) });
        let options = ServiceOptions::new().workers(1).interval(Duration::from_millis(2));
        let service = Service::start(options, source).unwrap();
        for definition in &self.group.definitions {
            service.create(definition.clone()).unwrap();
            service.wait_until_built(&definition.name, Duration::from_secs(20)).unwrap();
        }
        let seq = log.len().min(most.load(Ordering::SeqCst));
        let target = VersionVector::new(vec![Position { identity: IDENTITY, seq }]);
        service.view(&Read::at_plus(target)).unwrap();
        self.copies.lock().unwrap().insert(partition, Arc::new(Copy { service, most }));
    }

    /// Continues to read a partition, up to `most` records.
    pub fn go_on(&self, partition: u32, most: u64) {
        self.copies.lock().unwrap()[&partition].most.store(most, Ordering::SeqCst);
    }

    pub fn lose(&self, partition: u32) {
        let copy = self.copies.lock().unwrap().remove(&partition);
        drop(copy);
    }
}

impl LocalNode for Fake {
    fn address(&self) -> &str {
        self.address.get().map_or("nowhere:0", String::as_str)
    }

    fn indexes(&self) -> &[IndexDefinition] {
        &self.group.definitions
    }

    fn owners(&self) -> OwnerTable {
        self.group.table.lock().unwrap().clone()
    }

    fn refresh(&self, _: Instant) -> Result<OwnerTable, NodeError> {
        Ok(self.owners())
    }

    fn held(&self) -> Vec<HeldPartition> {
        let held = |partition: &u32| {
            let (role, position) = (Role::Owner, Position::default());
            HeldPartition { partition: *partition, role, position, ready: true, lag: None }
        };
        self.copies.lock().unwrap().keys().map(held).collect()
    }

    fn newest(&self, _: Instant) -> Result<Vec<Position>, NodeError> {
        Ok(self.group.ends().positions().to_vec())
    }

    fn view(
        &self,
        partition: u32,
        asked: RequestedState,
        until: Instant,
    ) -> Result<PartitionView, NodeError> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        let delay = *self.delay.lock().unwrap();
        std::thread::sleep(delay);
        let copy = self.copies.lock().unwrap().get(&partition).cloned();
        let copy = copy.ok_or(NodeError::NotHeld { partition })?;
        let consistency = match asked {
            RequestedState::Any => Consistency::Any,
            RequestedState::AtPlus(position) => {
                Consistency::AtPlus(VersionVector::new(vec![position]))
            }
            RequestedState::RequestPlus => Consistency::RequestPlus,
        };
        let timeout = until.saturating_duration_since(Instant::now());
        let read = Read { consistency, timeout, wait_for_build: true };
        let view = copy.service.view(&read)?;
        Ok(PartitionView { view, age: *self.age.lock().unwrap() })
    }
}

/// The commands that a node's server executes.
#[derive(Debug)]
struct Commands(Arc<GroupQueries>);

impl Extension for Commands {
    fn execute(&self, arguments: &[&[u8]]) -> Result<Answer, String> {
        self.0.execute(arguments).unwrap_or_else(|| Err("ERR unknown".to_owned()))
    }

    fn info(&self) -> String {
        String::new()
    }

    fn metrics(&self) -> String {
        String::new()
    }

    fn console(&self) -> serde_json::Value {
        serde_json::Value::Null
    }
}

/// A node with a server on the loopback interface.
pub struct Node {
    pub fake: Arc<Fake>,
    pub nodes: Arc<GroupQueries>,
    pub address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    runtime: Option<Runtime>,
}

/// Options of the nodes of a test.
#[derive(Default, Clone)]
pub struct Setup {
    pub link: Link,
    pub limits: QueryLimits,
    /// The password that the servers require.
    pub password: Option<String>,
    pub tls: Option<TlsConfig>,
}

impl Node {
    pub fn start(group: &Arc<Group>, setup: &Setup) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let fake = Fake::new(group);
        let local: Arc<dyn LocalNode> = fake.clone();
        let handle = runtime.handle().clone();
        let nodes = GroupQueries::new(local, setup.link.clone(), setup.limits.clone(), handle);
        let nodes = Arc::new(nodes.unwrap());
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let config = Config {
            bind: if setup.tls.is_some() { Vec::new() } else { vec![any] },
            tls: setup.tls.clone(),
            password: setup.password.clone(),
            extension: Some(Arc::new(Commands(Arc::clone(&nodes)))),
            ..Config::default()
        };
        let server = runtime.block_on(Server::bind(config)).unwrap();
        let address = server.tls_address().unwrap_or_else(|| server.address());
        fake.address.set(address.to_string()).unwrap();
        group.addresses.lock().unwrap().push(address.to_string());
        let (stop, stopped) = oneshot::channel();
        runtime.spawn(async move {
            let _ = server.run(async { drop(stopped.await) }).await;
        });
        Self { fake, nodes, address, stop: Some(stop), runtime: Some(runtime) }
    }

    /// Ends the node. For the other nodes, this looks like a kill.
    pub fn kill(&mut self) {
        drop(self.stop.take());
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_millis(100));
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Starts nodes that hold these partitions with all of their records.
pub fn nodes(group: &Arc<Group>, setup: &Setup, partitions: &[&[u32]]) -> Vec<Node> {
    let nodes: Vec<Node> = partitions.iter().map(|_| Node::start(group, setup)).collect();
    for (node, partitions) in nodes.iter().zip(partitions) {
        partitions.iter().for_each(|partition| node.fake.restore(*partition, u64::MAX));
    }
    group.assign(partitions);
    nodes
}

/// Returns a query for all entries, in the newest state.
pub fn ask() -> GroupQuery {
    GroupQuery {
        index: "by_size".to_owned(),
        query: Query::new().limit(10_000),
        consistency: Consistency::RequestPlus,
        timeout: Duration::from_secs(20),
        ..GroupQuery::default()
    }
}

pub fn ids(found: &ordna_kafka::query::GroupResult) -> Vec<String> {
    found.entries.iter().map(|entry| String::from_utf8(entry.id.clone()).unwrap()).collect()
}
