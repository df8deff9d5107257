//! The topic as a list of records, and what queries must have seen at their vectors.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::{ClientConfig, Message, Offset, TopicPartitionList};

/// How long the brokers may be away.
const PATIENCE: Duration = Duration::from_secs(120);

/// An entry in the order of the index: country, people descending, id.
pub type Entry = (String, Reverse<i64>, String);

/// A query that was answered: the positions of its vector, and its rows.
#[derive(Debug)]
pub struct Answered {
    pub port: u16,
    pub country: Option<String>,
    pub limit: usize,
    pub vector: Vec<u64>,
    pub rows: Vec<Entry>,
}

struct Change {
    /// One above its offset.
    seq: u64,
    id: String,
    document: Option<(String, i64)>,
}

/// All records of the topic so far.
pub struct History {
    consumer: BaseConsumer,
    partitions: Vec<Vec<Change>>,
}

impl History {
    pub fn new(settings: &ClientConfig, topic: &str, partitions: i32) -> Self {
        let mut settings = settings.clone();
        settings
            .set("group.id", "history")
            .set("isolation.level", "read_committed")
            .set("enable.partition.eof", "true")
            .set("auto.offset.reset", "error")
            .set("enable.auto.commit", "false");
        let consumer: BaseConsumer = settings.create().unwrap();
        let mut list = TopicPartitionList::new();
        list.add_partition_range(topic, 0, partitions - 1);
        list.set_all_offsets(Offset::Beginning).unwrap();
        consumer.assign(&list).unwrap();
        Self { consumer, partitions: (0..partitions).map(|_| Vec::new()).collect() }
    }

    /// Reads until each partition holds these positions. Producers have flushed before.
    pub fn read_to(&mut self, ends: &[u64]) {
        let began = Instant::now();
        let behind = |all: &[Vec<Change>]| {
            let seq = |changes: &Vec<Change>| changes.last().map_or(0, |change| change.seq);
            all.iter().zip(ends).any(|(changes, end)| seq(changes) < *end)
        };
        while behind(&self.partitions) {
            assert!(began.elapsed() < PATIENCE, "the history does not reach {ends:?}");
            match self.consumer.poll(Duration::from_millis(100)) {
                None | Some(Err(KafkaError::PartitionEOF(_))) => {}
                Some(Err(error)) => eprintln!("history: {error}"),
                Some(Ok(message)) => {
                    let id = String::from_utf8(message.key().unwrap().to_vec()).unwrap();
                    let document = message.payload().map(|bytes| {
                        let json: serde_json::Value = serde_json::from_slice(bytes).unwrap();
                        let country = json["country"].as_str().unwrap().to_owned();
                        (country, json["people"].as_i64().unwrap())
                    });
                    let seq = message.offset() as u64 + 1;
                    self.partitions[message.partition() as usize].push(Change {
                        seq,
                        id,
                        document,
                    });
                }
            }
        }
    }

    /// Checks that each answer holds the first rows of the state at its vector, in order.
    pub fn check(&self, answers: &[Answered]) {
        let mut expected: Vec<Vec<Entry>> = answers.iter().map(|_| Vec::new()).collect();
        for (partition, changes) in self.partitions.iter().enumerate() {
            let mut order: Vec<usize> = (0..answers.len()).collect();
            order.sort_by_key(|at| answers[*at].vector[partition]);
            let (mut of, mut entries) = (HashMap::new(), BTreeSet::new());
            let mut next = changes.iter().peekable();
            for at in order {
                let answer = &answers[at];
                while let Some(change) = next.next_if(|one| one.seq <= answer.vector[partition]) {
                    if let Some(old) = of.remove(&change.id) {
                        entries.remove(&old);
                    }
                    if let Some((country, people)) = &change.document {
                        let entry = (country.clone(), Reverse(*people), change.id.clone());
                        entries.insert(entry.clone());
                        of.insert(change.id.clone(), entry);
                    }
                }
                let fits = |entry: &&Entry| answer.country.as_ref().is_none_or(|c| *c == entry.0);
                expected[at].extend(entries.iter().filter(fits).take(answer.limit).cloned());
            }
        }
        for (answer, mut expected) in answers.iter().zip(expected) {
            expected.sort();
            expected.truncate(answer.limit);
            let differs = expected.iter().zip(&answer.rows).position(|(a, b)| a != b);
            assert!(
                expected == answer.rows,
                "the node at {} answered {} rows at {:?}; {} are right; first difference at {:?}",
                answer.port,
                answer.rows.len(),
                answer.vector,
                expected.len(),
                differs
            );
        }
    }

    /// Records and live documents.
    pub fn size(&self) -> (usize, usize) {
        let live = |changes: &Vec<Change>| {
            let last: BTreeMap<&str, bool> =
                changes.iter().map(|one| (&one.id[..], one.document.is_some())).collect();
            last.values().filter(|is_there| **is_there).count()
        };
        (self.partitions.iter().map(Vec::len).sum(), self.partitions.iter().map(live).sum())
    }
}
