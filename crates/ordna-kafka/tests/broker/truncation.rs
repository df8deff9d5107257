//! A broker loses the end of a partition: the file of the log is truncated while the broker is
//! down.

use std::fs::OpenOptions;
use std::path::PathBuf;
use std::time::Duration;

use ordna_kafka::{IndexNode, LocalNode};
use rdkafka::consumer::{BaseConsumer, Consumer};

use crate::common::{
    Alone, Writer, alone, backed_up, directory, document, entries, entries_of, node, options,
    recomputed, settings, topic, until,
};

/// Returns the path of the file with all records of a partition.
fn log(topic: &str, partition: u32) -> PathBuf {
    let port = std::env::var("ORDNA_KAFKA_PORT").expect("`cargo xtask kafka test` sets it");
    // The files of the broker are in the directory of the program that starts it.
    let xtask = PathBuf::from(std::env::var_os("ORDNA_XTASK").unwrap());
    let data = xtask.ancestors().nth(2).unwrap().join("kafka").join(port).join("data");
    data.join(format!("{topic}-{partition}")).join("00000000000000000000.log")
}

/// Truncates the log of a partition to a part of its size while the broker is down. Returns the new
/// end.
///
/// The broker gives up its partitions before it stops, so that an election follows its restart.
fn cut(alone: &Alone, running: &IndexNode, topic: &str, part: f64) -> u64 {
    alone.control("stop");
    until("the node notices", || running.trouble().is_some());
    let log = log(topic, 0);
    // As after a crash, the broker searches for the last complete batch.
    let data = log.ancestors().nth(2).unwrap();
    std::fs::remove_file(data.join(".kafka_cleanshutdown")).unwrap();
    let file = OpenOptions::new().write(true).open(log).unwrap();
    let bytes = file.metadata().unwrap().len() as f64;
    file.set_len((bytes * part) as u64).unwrap();
    alone.control("start");
    let asker: BaseConsumer = settings().create().unwrap();
    let mut end = 0;
    until("the broker answers", || {
        let ends = asker.fetch_watermarks(topic, 0, Duration::from_secs(5));
        ends.is_ok_and(|(_, found)| {
            end = found as u64;
            true
        })
    });
    end
}

/// The log loses its end and grows beyond the position of two nodes and of the newest backup. The
/// nodes must remove their records of the lost end, and read the records that replaced them.
#[test]
fn a_log_that_was_cut_and_grew_again_is_read_from_the_newest_backup_that_fits() {
    let alone = alone();
    let topic = topic(1);
    let writer = Writer::new(&topic);
    let fill = |numbers: std::ops::Range<i64>, country: &str| {
        for number in numbers {
            writer.put(Some(0), Some(&format!("d{number}")), Some(&document(country, number)));
            // Flushes in batches of a few records, because a batch is lost as a whole.
            if number % 20 == 19 {
                writer.flush();
            }
        }
    };
    let dir = directory("grown");
    let with_backups = backed_up(&dir, options("grown", &topic, 42));
    // Two backups: one after the first 200 records, and one after all 400.
    for numbers in [0..200, 200..400] {
        fill(numbers.clone(), "SE");
        let node = IndexNode::start(with_backups.clone()).unwrap();
        assert_eq!(entries(&[&node], 1).len() as i64, numbers.end);
        node.stop();
    }
    let running = IndexNode::start(with_backups.clone()).unwrap();
    assert_eq!(entries_of(&running, 0).len(), 400);
    let plain = node("grown-too", &topic, 43);
    assert_eq!(entries_of(&plain, 0).len(), 400);
    // Some batches of the second half are lost. Other documents replace them, and more follow.
    let end = cut(&alone, &running, &topic, 0.8);
    assert!((201..400).contains(&end), "the broker has lost nothing, or too much: {end}");
    fill(1000..1400, "NO");
    until("both nodes continue", || running.trouble().is_none() && plain.trouble().is_none());
    until("the truncation is noticed", || {
        [&running, &plain].iter().all(|node| {
            let info = node.info();
            info.iter().all(|info| info.held.ready && info.rebuilds > 0) && !info.is_empty()
        })
    });
    let expected = recomputed(&topic);
    let assert_right = |node: &IndexNode, what: &str| {
        let found = entries_of(node, 0);
        let differs = found.iter().zip(&expected).find(|(found, right)| found != right);
        assert!(found == expected, "{what}: {} entries, first {differs:?}", found.len());
    };
    assert_right(&plain, "the node without backups");
    assert_right(&running, "the node with backups");
    // Only the records after the first 200, which the older backup contains, were read again.
    let restored = running.info()[0].restored.0;
    assert_eq!(restored, end + 400 - 200, "not from the newest backup that fits");
    running.stop();
    // A node that starts later does not use the backup of the lost end either.
    let later = IndexNode::start(with_backups).unwrap();
    assert_right(&later, "a later node");
    drop((later, plain, running));
    std::fs::remove_dir_all(dir).unwrap();
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
        // Flushes in batches of a few records, because a batch is lost as a whole.
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
    until("the node continues", || running.trouble().is_none());
    let end = running.newest(std::time::Instant::now() + crate::common::PATIENCE).unwrap()[0].seq;
    assert!((1..200).contains(&end), "the broker has lost nothing: {end}");
    // The running node is ahead of its topic. It reads that partition again from the beginning, and
    // no other.
    until("the truncation is noticed", || {
        let info = running.info();
        info.iter().all(|info| info.held.ready) && info[0].rebuilds > 0
    });
    assert_eq!(entries_of(&running, 0).len() as u64, end);
    assert_eq!(entries(&[&running], 2), recomputed(&topic));
    assert_eq!(running.info()[1].rebuilds, 0, "the other partition has lost nothing");
    // The backup is ahead of the topic, too.
    let second = IndexNode::start(with_backups).unwrap();
    assert_eq!(entries(&[&second], 2), recomputed(&topic));
    let restored: Vec<u64> = second.info().iter().map(|info| info.restored.0).collect();
    assert_eq!(restored, [end, 0], "one from its first record, the other from its backup");
    drop(second);
    std::fs::remove_dir_all(dir).unwrap();
}
