//! The topic as a list of records, and the results that queries must have had at their vectors.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::{ClientConfig, Message, Offset, TopicPartitionList};

use crate::clock::Moment;
use crate::{COUNTRIES, SETTLE};

/// An entry in the order of the index: number of the country, people descending, number of the id.
pub type Entry = (u8, Reverse<u32>, u32);

/// A query with its answer: the positions of its vector, and its rows.
#[derive(Debug)]
pub struct Answered {
    pub port: u16,
    pub country: Option<u8>,
    pub limit: usize,
    pub vector: Vec<u64>,
    pub rows: Vec<Entry>,
}

struct Change {
    /// The offset of the record plus one.
    seq: u64,
    id: u32,
    document: Option<(u8, u32)>,
}

/// The entries of a partition at a position.
#[derive(Default)]
struct State {
    seq: u64,
    /// Index of the first change that the state does not include.
    next: usize,
    of: HashMap<u32, (u8, u32)>,
    entries: BTreeSet<Entry>,
}

impl State {
    fn advance(&mut self, changes: &[Change], seq: u64) {
        self.seq = seq;
        while let Some(change) = changes.get(self.next).filter(|change| change.seq <= seq) {
            self.next += 1;
            let old = match change.document {
                Some(document) => self.of.insert(change.id, document),
                None => self.of.remove(&change.id),
            };
            let entry = |(country, people)| (country, Reverse(people), change.id);
            if let Some(old) = old {
                self.entries.remove(&entry(old));
            }
            self.entries.extend(change.document.map(entry));
        }
    }
}

/// Returns the name of a document. Names are in the order of the numbers.
pub fn name(id: u32) -> String {
    format!("w{id:08}")
}

/// Returns the number of the document with this name.
pub fn number(name: &str) -> u32 {
    name[1..].parse().unwrap()
}

/// Returns the number of the country with this name.
pub fn country(name: &str) -> u8 {
    COUNTRIES.iter().position(|country| *country == name).expect(name) as u8
}

/// All records of the topic up to now.
pub struct History {
    consumer: BaseConsumer,
    topic: String,
    partitions: Vec<(Vec<Change>, State)>,
}

impl History {
    pub fn new(settings: &ClientConfig, topic: &str, partitions: i32) -> Self {
        let mut settings = settings.clone();
        settings
            .set("group.id", "history")
            .set("isolation.level", "read_committed")
            .set("enable.partition.eof", "true")
            .set("auto.offset.reset", "error")
            // A request for ends waits for the end of a fetch, which waits for records.
            .set("fetch.wait.max.ms", "10")
            .set("enable.auto.commit", "false");
        let consumer: BaseConsumer = settings.create().unwrap();
        let mut list = TopicPartitionList::new();
        list.add_partition_range(topic, 0, partitions - 1);
        list.set_all_offsets(Offset::Beginning).unwrap();
        consumer.assign(&list).unwrap();
        let partitions = (0..partitions).map(|_| Default::default()).collect();
        Self { consumer, topic: topic.to_owned(), partitions }
    }

    /// Returns the ends of all partitions. The topic has no transactions.
    pub fn ends(&self) -> Vec<u64> {
        let began = Moment::now();
        let end = |partition| loop {
            match self.consumer.fetch_watermarks(&self.topic, partition, SETTLE) {
                Ok((_, end)) => return end as u64,
                Err(error) => assert!(began.elapsed() < SETTLE, "ends: {error}"),
            }
        };
        (0..self.partitions.len() as i32).map(end).collect()
    }

    /// Reads until each partition has reached its position. Producers must have flushed before.
    pub fn read_to(&mut self, ends: &[u64]) {
        let began = Moment::now();
        let behind = |all: &[(Vec<Change>, State)]| {
            let seq = |changes: &[Change]| changes.last().map_or(0, |change| change.seq);
            all.iter().zip(ends).any(|((changes, _), end)| seq(changes) < *end)
        };
        while behind(&self.partitions) {
            assert!(began.elapsed() < 2 * SETTLE, "the history does not reach {ends:?}");
            match self.consumer.poll(Duration::from_millis(100)) {
                None | Some(Err(KafkaError::PartitionEOF(_))) => {}
                Some(Err(error)) => eprintln!("history: {error}"),
                Some(Ok(message)) => {
                    let id = number(std::str::from_utf8(message.key().unwrap()).unwrap());
                    let document = message.payload().map(|bytes| {
                        let json: serde_json::Value = serde_json::from_slice(bytes).unwrap();
                        let people = json["people"].as_u64().unwrap() as u32;
                        (country(json["country"].as_str().unwrap()), people)
                    });
                    let seq = message.offset() as u64 + 1;
                    let partition = &mut self.partitions[message.partition() as usize];
                    partition.0.push(Change { seq, id, document });
                }
            }
        }
    }

    /// Checks that each answer has the first rows of the state at its vector, in order.
    pub fn check(&mut self, answers: &[Answered]) {
        let mut expected: Vec<Vec<Entry>> = answers.iter().map(|_| Vec::new()).collect();
        for (partition, (changes, state)) in self.partitions.iter_mut().enumerate() {
            let mut order: Vec<usize> = (0..answers.len()).collect();
            order.sort_by_key(|at| answers[*at].vector[partition]);
            if order.first().is_some_and(|at| answers[*at].vector[partition] < state.seq) {
                // A node that was stopped has answered with an old view.
                *state = State::default();
            }
            for at in order {
                let answer = &answers[at];
                state.advance(changes, answer.vector[partition]);
                let first = (answer.country.unwrap_or_default(), Reverse(u32::MAX), 0);
                let rows = state.entries.range(first..);
                let fits = |entry: &&Entry| answer.country.is_none_or(|c| c == entry.0);
                expected[at].extend(rows.take_while(fits).take(answer.limit));
            }
        }
        for (answer, mut expected) in answers.iter().zip(expected) {
            expected.sort_unstable();
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

    /// Returns the number of records of the topic.
    pub fn records(&self) -> usize {
        self.partitions.iter().map(|(changes, _)| changes.len()).sum()
    }
}
