//! Records of every kind and their entries: updates, deletions, transactions, poison records.

use std::time::{Duration, Instant};

use ordna_kafka::{LocalNode, RequestedState};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};

use crate::common::{
    PATIENCE, Writer, beside_others, document, entries, entries_of, node, recomputed, settings,
    topic,
};

#[test]
fn entries_equal_a_recomputation_after_updates_and_deletions_of_several_producers() {
    let _broker = beside_others();
    let topic = topic(3);
    let node = node("updates", &topic, 1);
    std::thread::scope(|scope| {
        for writer in 0..3 {
            let topic = &topic;
            scope.spawn(move || {
                let producer = Writer::new(topic);
                for round in 0..2000_i64 {
                    let id = format!("w{writer}:{}", round * 7 % 300);
                    let country = ["SE", "DK", "NO"][(round % 3) as usize];
                    match round % 5 {
                        4 => producer.delete(&id),
                        _ => producer.set(&id, &document(country, round)),
                    }
                }
                producer.flush();
            });
        }
    });
    let found = entries(&[&node], 3);
    let expected = recomputed(&topic);
    assert!(expected.len() > 100, "{} entries only", expected.len());
    assert_eq!(found, expected);
    // The entries of each partition are in the order of the index.
    assert!((0..3).all(|partition| entries_of(&node, partition).is_sorted()));
}

#[test]
fn transactions_are_shown_whole_once_they_are_committed() {
    let _broker = beside_others();
    let topic = topic(1);
    let node = node("transactions", &topic, 2);
    let mut settings = settings();
    settings.set("transactional.id", format!("{topic}-writer"));
    let producer: BaseProducer = settings.create().unwrap();
    producer.init_transactions(PATIENCE).unwrap();
    let put = |id: &str, people| {
        let value = document("SE", people);
        let record = BaseRecord::to(&topic).partition(0).key(id).payload(&value);
        producer.send(record).map_err(|(error, _)| error).unwrap();
    };
    let ids = || -> Vec<String> { entries_of(&node, 0).into_iter().map(|(_, _, id)| id).collect() };
    producer.begin_transaction().unwrap();
    put("aborted", 9);
    producer.flush(PATIENCE).unwrap();
    producer.abort_transaction(PATIENCE).unwrap();
    // The end is after the marker of the aborted transaction, and only markers were read.
    crate::common::until("the marker is there", || {
        node.newest(Instant::now() + PATIENCE).unwrap()[0].seq == 2
    });
    assert_eq!(ids(), [""; 0]);
    producer.begin_transaction().unwrap();
    put("a", 2);
    put("b", 1);
    producer.flush(PATIENCE).unwrap();
    // During the transaction, the end for readers of committed records is before its records.
    assert_eq!(ids(), [""; 0]);
    producer.commit_transaction(PATIENCE).unwrap();
    // The commit is acknowledged before its marker is written.
    crate::common::until("the transaction is shown", || ids() == ["a", "b"]);
    let at = node.newest(Instant::now() + PATIENCE).unwrap()[0];
    let shown = node.view(0, RequestedState::AtPlus(at), Instant::now() + PATIENCE).unwrap();
    assert_eq!(shown.position(), at, "the position is behind the marker");
    assert_eq!(at.seq, 5, "three records and two markers");
}

#[test]
fn poison_records_are_kept_aside_and_the_partition_goes_on() {
    let _broker = beside_others();
    // Compacted topics refuse records without keys, so this topic is not compacted.
    let topic = topic(2);
    crate::common::admin(async |admin, options| {
        use rdkafka::admin::{AlterConfig, ResourceSpecifier};
        let change = AlterConfig::new(ResourceSpecifier::Topic(&topic));
        let change = change.set("cleanup.policy", "delete");
        admin.alter_configs([&change], options).await.unwrap()[0].as_ref().unwrap();
    });
    let node = node("poison", &topic, 3);
    let writer = Writer::new(&topic);
    writer.put(Some(0), Some("old"), Some(&document("SE", 5)));
    writer.put(Some(0), Some("old"), Some("{\"country\":"));
    writer.put(Some(0), Some("list"), Some("[1, 2]"));
    writer.put(Some(0), None, Some(&document("SE", 1)));
    writer.put(Some(1), Some("other"), Some(&document("NO", 1)));
    writer.flush();
    let ids: Vec<_> = entries_of(&node, 0).into_iter().map(|(_, _, id)| id).collect();
    assert_eq!(ids, ["old"], "a poison record leaves the document as it was");
    assert_eq!(entries_of(&node, 1).len(), 1);
    let (count, list) = node.poison(10);
    let offsets: Vec<u64> = list.iter().map(|poison| poison.offset).collect();
    assert_eq!((count, offsets), (3, vec![3, 2, 1]));
    assert!(list[2].reason.contains("not JSON") && list[2].key == b"old", "{list:?}");
    assert!(list[0].reason.contains("no key"), "{list:?}");
    let info = node.info();
    assert_eq!((info[0].poison, info[1].poison), (3, 0));
    // The last record of a partition is a poison record, and the position is after it.
    writer.put(Some(1), Some("x"), Some("x"));
    writer.flush();
    assert_eq!(entries_of(&node, 1).len(), 1);
}

#[test]
fn a_view_of_any_state_says_how_old_it_may_be() {
    let _broker = beside_others();
    let topic = topic(1);
    let node = node("age", &topic, 4);
    Writer::new(&topic).set("a", &document("SE", 1));
    crate::common::until("the partition is ready", || {
        node.info().iter().any(|info| info.held.ready && info.held.lag == Some(0))
    });
    // The first states have no known age, because no end was known before them.
    crate::common::until("the age is known", || {
        let shown = node.view(0, RequestedState::Any, Instant::now()).unwrap();
        shown.age < Duration::from_secs(5)
    });
}
