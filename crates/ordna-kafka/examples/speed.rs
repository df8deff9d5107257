//! Measures the speed of indexing: `speed BROKERS TOPIC [ROUNDS]`. The documents are those that
//! `produce` writes.
//!
//! Each round reads the whole topic three times: with a plain consumer that parses the documents,
//! with an index node, and with the file source from a file of the same documents. The index is by
//! country and population. The output is the number of documents per second and the ratios of
//! medians.

use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ordna_kafka::{IndexNode, LocalNode, NodeOptions, RequestedState};
use ordna_secondary::{ChangeSource, Document, IndexDefinition, NdjsonFile, Part, Read, Service};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::{ClientConfig, Message, Offset, TopicPartitionList};

const PATIENCE: Duration = Duration::from_secs(300);

fn definition() -> IndexDefinition {
    IndexDefinition::new("by_size", "")
        .part(Part::new("country"))
        .part(Part::new("population").descending())
}

/// Reads the topic to its end, and calls `each` with every key and value.
fn consume(brokers: &str, topic: &str, mut each: impl FnMut(&[u8], &[u8])) -> Duration {
    let mut settings = ClientConfig::new();
    settings
        .set("bootstrap.servers", brokers)
        .set("group.id", "speed")
        .set("isolation.level", "read_committed")
        .set("enable.partition.eof", "true")
        .set("enable.auto.commit", "false")
        .set("auto.offset.reset", "error");
    let consumer: BaseConsumer = settings.create().expect("settings of a consumer");
    let metadata = consumer.fetch_metadata(Some(topic), PATIENCE).expect("the topic");
    let partitions = metadata.topics()[0].partitions().len();
    let mut list = TopicPartitionList::new();
    list.add_partition_range(topic, 0, partitions as i32 - 1);
    list.set_all_offsets(Offset::Beginning).expect("offsets");
    let began = Instant::now();
    consumer.assign(&list).expect("an assignment");
    let mut ended = 0;
    while ended < partitions {
        match consumer.poll(Duration::from_millis(100)) {
            None => {}
            Some(Err(KafkaError::PartitionEOF(_))) => ended += 1,
            Some(Err(error)) => panic!("{error}"),
            Some(Ok(message)) => {
                each(message.key().unwrap_or_default(), message.payload().unwrap_or_default());
            }
        }
    }
    began.elapsed()
}

/// Reads the topic with a node. Returns the duration and the number of entries.
fn node(brokers: &str, topic: &str, round: usize) -> (Duration, usize) {
    let group = format!("speed-{}-{round}", std::process::id());
    let options = NodeOptions::new(brokers, group, topic, "127.0.0.1:1");
    let began = Instant::now();
    let options = NodeOptions { indexes: vec![definition()], ..options };
    let node = IndexNode::start(options).expect("a node");
    let mut entries = 0;
    for partition in 0..node.partitions() {
        let shown = loop {
            // The group assigns the partition shortly after the start.
            match node.view(partition, RequestedState::RequestPlus, Instant::now() + PATIENCE) {
                Ok(shown) => break shown,
                Err(_) if began.elapsed() < PATIENCE => {
                    std::thread::sleep(Duration::from_millis(2));
                }
                Err(error) => panic!("{error}"),
            }
        };
        entries += shown.view.count("by_size", &[], &Default::default()).expect("a count");
    }
    (began.elapsed(), entries)
}

/// Reads the file with the file source.
fn file(path: &std::path::Path) -> (Duration, usize) {
    let began = Instant::now();
    let source = Arc::new(NdjsonFile::new(path));
    let service = Service::start(ordna_secondary::ServiceOptions::new(), source.clone());
    let service = service.expect("a service");
    service.create(definition()).expect("an index");
    let newest = source.newest(0).expect("the end of the file");
    let at = Read::at_plus(ordna_secondary::VersionVector::new(vec![newest]));
    let read = at.timeout(PATIENCE).wait_for_build();
    let count = service.count("by_size", &[], &Default::default(), &read).expect("a count");
    (began.elapsed(), count)
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [brokers, topic, rest @ ..] = &words[..] else { panic!("speed BROKERS TOPIC [ROUNDS]") };
    let rounds = rest.first().map_or(3, |rounds| rounds.parse().expect("a number of rounds"));
    let path = std::env::temp_dir().join(format!("ordna-speed-{}.ndjson", std::process::id()));
    let mut documents = 0;
    {
        let out = std::fs::File::create(&path).expect("a file");
        let mut out = std::io::BufWriter::new(out);
        consume(brokers, topic, |key, value| {
            let (key, value) = (String::from_utf8_lossy(key), String::from_utf8_lossy(value));
            writeln!(out, r#"{{"op":"insert","id":"{key}","doc":{value}}}"#).expect("a line");
            documents += 1;
        });
    }
    let mut times: [Vec<f64>; 3] = Default::default();
    for round in 0..rounds {
        let mut parsed = 0;
        let plain = consume(brokers, topic, |_, value| {
            let json: serde_json::Value = serde_json::from_slice(value).expect("JSON");
            parsed += usize::from(Document::from_json(&json).fields().next().is_some());
        });
        let (indexed, entries) = node(brokers, topic, round);
        let (from_file, same) = file(&path);
        assert_eq!((parsed, entries, same), (documents, documents, documents), "all are there");
        for (times, time) in times.iter_mut().zip([plain, indexed, from_file]) {
            times.push(documents as f64 / time.as_secs_f64());
        }
    }
    std::fs::remove_file(path).expect("the file");
    let names = ["plain consumer, parsing", "index node", "file source"];
    let medians: Vec<f64> = times
        .iter_mut()
        .map(|times| {
            times.sort_by(f64::total_cmp);
            times[times.len() / 2]
        })
        .collect();
    println!("{documents} documents, {rounds} rounds; documents/s: median (least to most)");
    for ((name, times), median) in names.iter().zip(&times).zip(&medians) {
        println!("{name}: {median:.0} ({:.0} to {:.0})", times[0], times[times.len() - 1]);
    }
    println!("index node / plain consumer: {:.2}", medians[1] / medians[0]);
    println!("index node / file source: {:.2}", medians[1] / medians[2]);
}
