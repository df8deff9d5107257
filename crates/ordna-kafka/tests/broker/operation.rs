//! Tests of what operators use: `INFO`, metrics, the console, and the commands of a node.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ordna_kafka::NodeOptions;

use crate::client::Reply;
use crate::common::{beside_others, document, entries, filled, options, recomputed, until};
use crate::served::Served;

/// Returns the samples of a page of metrics. Each family has one header, which precedes its
/// samples.
fn samples(text: &str) -> BTreeMap<String, f64> {
    let (mut samples, mut families) = (BTreeMap::new(), BTreeSet::new());
    let mut family = String::new();
    for line in text.lines() {
        if let Some(head) = line.strip_prefix("# TYPE ") {
            let (name, kind) = head.split_once(' ').unwrap();
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            assert!(families.insert(name.to_owned()), "{name} twice");
            family = name.to_owned();
        } else if !line.starts_with("# HELP ") {
            let (name, value) = line.rsplit_once(' ').unwrap();
            assert!(name.starts_with(&family), "{name} below the head of {family}");
            let before = samples.insert(name.to_owned(), value.parse().unwrap());
            assert_eq!(before, None, "{name} twice");
        }
    }
    samples
}

/// Returns the sum of a family.
fn sum(samples: &BTreeMap<String, f64>, family: &str) -> f64 {
    let of = format!("{family}{{");
    let mine = samples.iter().filter(|(name, _)| *name == family || name.starts_with(&of));
    mine.map(|(_, value)| value).sum()
}

#[test]
fn info_metrics_and_the_console_show_the_same_partitions_owners_and_counts() {
    let _broker = beside_others();
    let (topic, writer) = filled(2, 300);
    writer.put(Some(1), Some("poison"), Some("x"));
    writer.flush();
    let first = Served::start(options("operation", &topic, 0));
    assert_eq!(entries(&[&first.node], 2).len(), 300);
    first.say(&["ORDNA.INDEX", "SCAN", "by_size", "LIMIT", "5"]).items();
    until("the ends and the owners are known", || {
        first.node.info().iter().all(|info| info.held.lag == Some(0))
            && first.field("member_0") == Some(format!("address={},owns=0 1", first.address))
    });
    let info: BTreeMap<String, String> = first.info().into_iter().collect();
    let count = |name: &str| info[name].parse::<f64>().unwrap();
    assert_eq!((&info["node_group"][..], &info["node_topic"]), ("operation", &topic));
    assert_eq!((count("node_partitions"), count("node_poison")), (2.0, 1.0));
    assert_eq!((count("node_queries"), count("node_queries_failed")), (1.0, 0.0));
    assert!(count("node_rebalances") >= 1.0 && info["node_brokers"] == "ok", "{info:?}");
    let (mut entries, mut restored) = (0.0, 0.0);
    for partition in ["partition_0", "partition_1"] {
        let fields: BTreeMap<&str, &str> =
            info[partition].split(',').map(|field| field.split_once('=').unwrap()).collect();
        assert_eq!((fields["role"], fields["ready"], fields["lag"]), ("owner", "1", "0"));
        let (read, all) = fields["restored"].split_once('/').unwrap();
        assert_eq!(read, all, "{fields:?}");
        restored += read.parse::<f64>().unwrap();
        entries += fields["entries"].parse::<f64>().unwrap();
    }
    assert_eq!((entries, restored), (300.0, 301.0));

    let metrics = samples(&first.page("/metrics"));
    assert_eq!(metrics["ordna_partition_lag{partition=\"0\",role=\"owner\"}"], 0.0);
    let owner =
        |at| format!("ordna_partition_owner{{partition=\"{at}\",owner=\"{}\"}}", first.address);
    assert_eq!((metrics[&owner(0)], metrics[&owner(1)]), (1.0, 1.0));
    for (family, expected) in [
        ("ordna_partition_entries", 300.0),
        ("ordna_partition_restored", 301.0),
        ("ordna_partition_to_restore", 301.0),
        ("ordna_partition_ready", 2.0),
        ("ordna_partition_poison_total", 1.0),
        ("ordna_node_poison_total", 1.0),
        ("ordna_node_rebalances_total", count("node_rebalances")),
        ("ordna_node_queries_total", 1.0),
        ("ordna_node_brokers_away_seconds", 0.0),
        ("ordna_topic_partitions", 2.0),
        ("ordna_group_members", 1.0),
    ] {
        assert_eq!(sum(&metrics, family), expected, "{family}");
    }

    let state: serde_json::Value = serde_json::from_str(&first.page("/state")).unwrap();
    let table = |at: usize, title: &str| {
        let table = &state["nodes"][at];
        assert_eq!(table["title"], title);
        let rows = table["rows"].as_array().unwrap().clone();
        let columns = table["head"].as_array().unwrap().len();
        assert!(rows.iter().all(|row| row.as_array().unwrap().len() == columns), "{rows:?}");
        rows
    };
    let partitions = table(0, "Partitions here");
    assert_eq!(
        (&partitions[1][0], &partitions[1][1], &partitions[1][7]),
        (&"1".into(), &"owner".into(), &"1".into())
    );
    assert_eq!(table(1, "Owners"), [serde_json::json!([first.address.to_string(), "0 1"])]);
    let counts = table(2, "Node");
    assert!(
        counts.contains(&serde_json::json!(["rebalances", info["node_rebalances"]])),
        "{counts:?}"
    );
    assert!(first.page("/").contains("state.nodes"));

    // A second node causes a rebalance. Both nodes then report two owners.
    let second = Served::start(options("operation", &topic, 0));
    until("both know both owners", || {
        [&first, &second].iter().all(|asked| {
            let members = [asked.field("member_0"), asked.field("member_1")];
            [&first, &second].iter().all(|of| {
                let owns = |at: u32| Some(format!("address={},owns={at}", of.address));
                members.contains(&owns(0)) || members.contains(&owns(1))
            })
        })
    });
    let after = first.field("node_rebalances").unwrap().parse::<f64>().unwrap();
    assert!(after > count("node_rebalances"), "{after}");
}

#[test]
fn a_restore_shows_its_progress_and_its_lag() {
    let _broker = beside_others();
    let (topic, _) = filled(1, 100_000);
    let served = Served::start(options("progress", &topic, 0));
    let (mut last, mut seen) = (0, 0);
    until("the partition is ready", || {
        let Some(info) = served.node.info().pop() else { return false };
        let (read, all) = info.restored;
        assert!(read >= last, "{read} after {last}");
        last = read;
        if all == 100_000 && read > 0 && read < all {
            assert!(!info.held.ready);
            // The ends are known half a second after the start.
            seen += u32::from(info.held.lag.is_some_and(|lag| lag > 0));
        }
        info.held.ready
    });
    assert!(seen > 0, "no state between the first and the last record");
    assert_eq!(last, 100_000);
    assert_eq!(entries(&[&served.node], 1), recomputed(&topic));
}

#[test]
fn at_its_memory_limit_a_node_reads_nothing_until_another_one_takes_partitions() {
    const LIMIT: usize = 4 << 20;
    let _broker = beside_others();
    let (topic, writer) = filled(4, 0);
    let limited =
        |number| NodeOptions { memory_limit: Some(LIMIT), ..options("limited", &topic, number) };
    let first = Served::start(limited(0));
    let rows = |from: i64, to: i64| {
        (from..to).for_each(|number| writer.set(&format!("d{number}"), &document("SE", number)));
        writer.flush();
    };
    let mut written = 0;
    while !first.node.memory().1 {
        rows(written, written + 5_000);
        written += 5_000;
        let read = || first.node.info().iter().map(|info| info.held.position.seq).sum::<u64>();
        until("it has read them", || first.node.memory().1 || read() == written as u64);
    }
    // What was read before the node noticed.
    assert!(first.node.memory().0 < 2 * LIMIT, "{:?} after {written}", first.node.memory());
    rows(written, written + 5_000);
    written += 5_000;
    until("the lag is seen", || first.node.info().iter().any(|info| info.held.lag > Some(0)));
    let memory = first.node.memory().0;
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(first.node.memory(), (memory, true), "it reads nothing");
    assert_eq!(first.field("node_paused_by_memory").as_deref(), Some("1"));
    assert_eq!(first.field("node_memory_limit"), Some(LIMIT.to_string()));
    // Queries go on, but not for what it has not read.
    let any = first.say(&["ORDNA.INDEX", "SCAN", "by_size", "ANY", "LIMIT", "1"]);
    assert_eq!(any.items().len(), 5, "{any:?}");
    let newest = first.say(&["ORDNA.INDEX", "SCAN", "by_size", "TIMEOUT", "300", "LIMIT", "1"]);
    assert!(matches!(newest, Reply::Error(_)), "{newest:?}");

    // Another node takes partitions, so the first one has room again.
    let second = Served::start(NodeOptions { memory_limit: None, ..limited(1) });
    until("it reads on", || !first.node.memory().1 && first.node.info().len() == 2);
    assert_eq!(entries(&[&first.node, &second.node], 4).len(), written as usize);
}
