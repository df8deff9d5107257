//! Fills a topic with the documents of a TSV file: `produce BROKERS TOPIC FILE.tsv.gz [TIMES]`.
//!
//! The topic is created with six partitions and compaction. Each line becomes a document, whose id
//! is `place:` and the first field. TIMES is how often the file is written (default 1), each time
//! with new ids.

use std::error::Error;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{BaseRecord, Producer, ThreadedProducer};
use serde_json::{Map, Value};

type Done = Result<(), Box<dyn Error>>;

fn create(settings: &ClientConfig, topic: &str) -> Done {
    let admin: AdminClient<DefaultClientContext> = settings.create()?;
    let new = NewTopic::new(topic, 6, TopicReplication::Fixed(1)).set("cleanup.policy", "compact");
    let options = AdminOptions::new().operation_timeout(Some(Duration::from_secs(10)));
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    for made in runtime.block_on(admin.create_topics([&new], &options))? {
        match made {
            Ok(_) | Err((_, RDKafkaErrorCode::TopicAlreadyExists)) => {}
            Err((topic, code)) => return Err(format!("cannot create {topic}: {code}").into()),
        }
    }
    Ok(())
}

fn main() -> Done {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [brokers, topic, file, rest @ ..] = &words[..] else {
        return Err("produce BROKERS TOPIC FILE.tsv.gz [TIMES]".into());
    };
    let times: u64 = rest.first().map_or(Ok(1), |times| times.parse())?;
    let mut settings = ClientConfig::new();
    settings
        .set("bootstrap.servers", brokers)
        .set("compression.type", "lz4")
        .set("linger.ms", "20")
        .set("enable.idempotence", "true")
        // The partitioner of Kafka's Java clients.
        .set("partitioner", "murmur2_random");
    create(&settings, topic)?;
    let producer: ThreadedProducer<_> = settings.create()?;
    let mut told = 0;
    for time in 0..times {
        let input = flate2::read::GzDecoder::new(std::fs::File::open(file)?);
        let mut lines =
            csv::ReaderBuilder::new().delimiter(b'\t').quoting(false).from_reader(input);
        let heads = lines.headers()?.clone();
        for line in lines.records() {
            let line = line?;
            let value = |text: &str| match text.parse::<f64>() {
                Ok(_) => serde_json::from_str(text).unwrap_or_else(|_| Value::from(text)),
                Err(_) => Value::from(text),
            };
            let fields = heads.iter().zip(&line);
            let fields: Map<String, Value> =
                fields.map(|(head, text)| (head.to_owned(), value(text))).collect();
            let id = line.get(0).unwrap_or_default();
            let key = if time == 0 { format!("place:{id}") } else { format!("place:{id}:{time}") };
            let value = Value::Object(fields).to_string();
            let mut record = BaseRecord::to(topic).key(&key).payload(&value);
            loop {
                match producer.send(record) {
                    Ok(()) => break,
                    Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), back)) => {
                        record = back;
                        std::thread::sleep(Duration::from_millis(10));
                    }
                    Err((error, _)) => return Err(error.into()),
                }
            }
            told += 1;
        }
    }
    producer.flush(Duration::from_secs(60))?;
    println!("{told} documents in the topic {topic} at {brokers}");
    Ok(())
}
