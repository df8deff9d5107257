//! A broker that loses the end of a partition: the log's file is cut while the broker is down.

use std::fs::OpenOptions;
use std::path::PathBuf;

use ordna_kafka::{IndexNode, LocalNode};

use crate::common::{
    Writer, alone, backed_up, directory, document, entries, entries_of, node, options, recomputed,
    topic, until,
};

/// The file with all records of a partition.
fn log(topic: &str, partition: u32) -> PathBuf {
    let port = std::env::var("ORDNA_KAFKA_PORT").expect("`cargo xtask kafka test` sets it");
    // The broker's files are beside those of the program that starts it.
    let xtask = PathBuf::from(std::env::var_os("ORDNA_XTASK").unwrap());
    let data = xtask.ancestors().nth(2).unwrap().join("kafka").join(port).join("data");
    data.join(format!("{topic}-{partition}")).join("00000000000000000000.log")
}

#[test]
#[ignore = "restarts its broker: `cargo xtask kafka test --ignored a_backup_and_a_node`"]
fn a_backup_and_a_node_ahead_of_a_truncated_partition_are_not_believed() {
    let alone = alone();
    let topic = topic(2);
    let writer = Writer::new(&topic);
    for number in 0..400 {
        let partition = Some((number % 2) as i32);
        writer.put(partition, Some(&format!("d{number}")), Some(&document("SE", number)));
        // Batches of some records: a batch is lost as a whole.
        if number % 20 == 19 {
            writer.flush();
        }
    }
    drop(writer);
    let dir = directory("ahead");
    let with_backups = backed_up(&dir, options("ahead", &topic, 40));
    let first = IndexNode::start(with_backups.clone()).unwrap();
    assert_eq!(entries(&[&first], 2).len(), 400);
    first.stop();
    drop(first);
    let running = node("ahead-too", &topic, 41);
    assert_eq!(entries(&[&running], 2).len(), 400);
    alone.control("kill");
    until("the node notices", || running.trouble().is_some());
    let file = OpenOptions::new().write(true).open(log(&topic, 0)).unwrap();
    let bytes = file.metadata().unwrap().len();
    file.set_len(bytes / 2).unwrap();
    alone.control("start");
    until("the node goes on", || running.trouble().is_none());
    let end = running.newest(std::time::Instant::now() + crate::common::PATIENCE).unwrap()[0].seq;
    assert!((1..200).contains(&end), "the broker has lost nothing: {end}");
    // The node that ran is ahead of its topic: it reads that partition anew, and no other.
    until("the truncation is noticed", || {
        let info = running.info();
        info.iter().all(|info| info.held.ready) && info[0].rebuilds > 0
    });
    assert_eq!(entries_of(&running, 0).len() as u64, end);
    assert_eq!(entries(&[&running], 2), recomputed(&topic));
    assert_eq!(running.info()[1].rebuilds, 0, "the other partition has lost nothing");
    // The backup is ahead of it, too.
    let second = IndexNode::start(with_backups).unwrap();
    assert_eq!(entries(&[&second], 2), recomputed(&topic));
    let restored: Vec<u64> = second.info().iter().map(|info| info.restored.0).collect();
    assert_eq!(restored, [end, 0], "one from its first record, the other from its backup");
    drop(second);
    std::fs::remove_dir_all(dir).unwrap();
}
