//! Producers and queries that run while nodes and the broker are disturbed.

use std::cmp::Reverse;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::producer::{BaseRecord, Producer, ThreadedProducer};

use crate::client::{Client, Reply};
use crate::clock::Moment;
use crate::history::{Answered, Entry, country, name, number};
use crate::{COUNTRIES, PARTITIONS, Random, SETTLE, needed};

/// Number of rows of a page, which is the maximum that a node sends.
const PAGE: usize = 20_000;

/// Returns a row of a reply with `VALUES`: id, country and people.
fn row(pair: &[Reply]) -> Entry {
    let parts = pair[1].items();
    let people = parts[1].text().parse().unwrap();
    (country(&parts[0].text()), Reverse(people), number(&pair[0].text()))
}

/// Returns the sequence numbers of a vector as the nodes write it. The identity of a missing
/// partition is 0.
fn positions(vector: &str) -> Vec<u64> {
    let vector: ordna_secondary::VersionVector = vector.parse().unwrap();
    let lacks = vector.positions().iter().position(|position| position.identity == 0);
    assert_eq!(lacks, None, "a partition that is missing without a word: {vector}");
    vector.positions().iter().map(|position| position.seq).collect()
}

/// Runs a scan. Returns the rows and the cursor after them, or an error if there is no answer or
/// the reply is an error.
pub fn scan(
    client: &mut Client,
    port: u16,
    country: Option<u8>,
    limit: usize,
    more: &[&str],
) -> Result<(Answered, String), String> {
    let limit_text = limit.to_string();
    let mut words = vec!["ORDNA.INDEX", "SCAN", "by_size"];
    words.extend(country.iter().flat_map(|at| ["EQ", COUNTRIES[usize::from(*at)]]));
    words.extend(["LIMIT", &limit_text, "VALUES"]);
    words.extend(more);
    let reply = client.ask(&words).map_err(|error| format!("client: {error}"))?;
    if let Reply::Error(text) = reply {
        return Err(text);
    }
    let items = reply.items();
    let rows: Vec<Entry> = items[1].items().chunks(2).map(row).collect();
    assert!(rows.is_sorted_by(|a, b| a < b), "an order broken, or a row twice, at {port}");
    assert!(items[3].items().is_empty(), "missing partitions without PARTIAL: {:?}", items[3]);
    let vector = positions(&items[2].text());
    assert_eq!(vector.len(), PARTITIONS as usize);
    Ok((Answered { port, country, limit, vector, rows }, items[0].text()))
}

/// Returns the first rows of the current state, page by page, while the producers pause.
pub fn scan_all(port: u16, limit: usize) -> Result<Answered, String> {
    let timeout = Duration::from_secs(20);
    let mut client = Client::connect(port, timeout).map_err(|error| error.to_string())?;
    let (mut rows, mut cursor) = (Vec::new(), "0".to_owned());
    loop {
        let more = ["TIMEOUT", "10000", "CURSOR", &cursor];
        let most = PAGE.min(limit - rows.len());
        let (mut page, next) = scan(&mut client, port, None, most, &more)?;
        rows.append(&mut page.rows);
        if next == "0" || rows.len() == limit {
            return Ok(Answered { limit, rows, ..page });
        }
        cursor = next;
    }
}

pub fn settings() -> ClientConfig {
    let mut settings = ClientConfig::new();
    settings.set("bootstrap.servers", needed("ORDNA_BROKER")).set("log_level", "0");
    settings
}

pub fn create(topic: &str) {
    let admin: AdminClient<DefaultClientContext> = settings().create().unwrap();
    let new = NewTopic::new(topic, PARTITIONS, TopicReplication::Fixed(1));
    // Without compaction, so that the answers can be checked with the whole history.
    let new = new.set("cleanup.policy", "delete").set("retention.ms", "-1");
    let options = AdminOptions::new().operation_timeout(Some(Duration::from_secs(20)));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(admin.create_topics([&new], &options)).unwrap()[0].as_ref().unwrap();
}

/// The state that producers, readers and the test share.
#[derive(Default)]
pub struct Shared {
    pub over: AtomicBool,
    /// Whether producers must wait. Those that are `idle` have flushed.
    pub pause: AtomicBool,
    pub idle: AtomicU64,
    pub refused: AtomicU64,
    pub answers: Mutex<Vec<Answered>>,
    pub answered: AtomicU64,
}

fn flush(producer: &impl Producer) {
    let began = Moment::now();
    while let Err(error) = producer.flush(Duration::from_secs(10)) {
        assert!(began.elapsed() < SETTLE, "records are not delivered: {error}");
    }
}

/// Writes updates and deletions of the producer's own documents. A fifth of the records are
/// deletions.
pub fn produce(shared: &Shared, topic: &str, writer: u32, documents: u32) {
    let mut settings = settings();
    settings.set("linger.ms", "5").set("enable.idempotence", "true");
    settings.set("partitioner", "murmur2_random").set("message.timeout.ms", "0");
    let producer: ThreadedProducer<_> = settings.create().unwrap();
    let mut random = Random(0x9E37_79B9 + u64::from(writer));
    let write = |random: &mut Random, at: u32| {
        let id = name(writer * documents + at);
        let country = COUNTRIES[random.below(4) as usize];
        let value = format!(r#"{{"country":"{country}","people":{}}}"#, random.below(1_000_000));
        let is_deletion = random.below(5) == 0;
        let mut record = BaseRecord::<str, str>::to(topic).key(&id);
        if !is_deletion {
            record = record.payload(&value);
        }
        while let Err((_, back)) = producer.send(record) {
            record = back;
            thread::sleep(Duration::from_millis(20));
        }
    };
    (0..documents).for_each(|at| write(&mut random, at));
    while !shared.over.load(Ordering::Relaxed) {
        if shared.pause.load(Ordering::SeqCst) {
            flush(&producer);
            shared.idle.fetch_add(1, Ordering::SeqCst);
            while shared.pause.load(Ordering::SeqCst) && !shared.over.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(5));
            }
            shared.idle.fetch_sub(1, Ordering::SeqCst);
        }
        for _ in 0..10 {
            let at = random.below(u64::from(documents)) as u32;
            write(&mut random, at);
        }
        thread::sleep(Duration::from_millis(20));
    }
    flush(&producer);
}

/// Sends queries to one node after the other, and keeps some of the answers for a check.
pub fn query(shared: &Shared, first_port: u16, nodes: u16, reader: u64) {
    let mut random = Random(0xC0FF_EE00 + reader);
    let mut clients: Vec<Option<Client>> = (0..nodes).map(|_| None).collect();
    while !shared.over.load(Ordering::Relaxed) {
        let number = random.below(u64::from(nodes)) as usize;
        let port = first_port + number as u16;
        let connect = || Client::connect(port, Duration::from_secs(8));
        let client = match clients[number].take().map_or_else(connect, Ok) {
            Ok(client) => clients[number].insert(client),
            Err(_) => {
                shared.refused.fetch_add(1, Ordering::Relaxed);
                thread::sleep(Duration::from_millis(50));
                continue;
            }
        };
        // The query reads one country or all of them.
        let country = Some(random.below(5) as u8).filter(|at| usize::from(*at) < COUNTRIES.len());
        let any = if random.below(2) == 0 { &["ANY"][..] } else { &[] };
        let more = [&["TIMEOUT", "5000"], any].concat();
        match scan(client, port, country, 1 + random.below(200) as usize, &more) {
            Ok((answer, _)) => {
                shared.answered.fetch_add(1, Ordering::Relaxed);
                let mut answers = shared.answers.lock().unwrap();
                if answers.len() < 400 {
                    answers.push(answer);
                }
            }
            Err(why) => {
                shared.refused.fetch_add(1, Ordering::Relaxed);
                if why.starts_with("client") {
                    clients[number] = None;
                }
            }
        }
        thread::sleep(Duration::from_millis(10));
    }
}
