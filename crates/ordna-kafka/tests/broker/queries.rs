//! Queries to the nodes of a real group: unresponsive nodes, copies, and partitions that move.

use std::time::{Duration, Instant};

use ordna_kafka::query::{GroupQuery, QueryError, QuestionError};
use ordna_kafka::{LocalNode, NodeOptions};
use ordna_secondary::{Consistency, Position};

use crate::client::Reply;
use crate::common::{
    Entry, beside_others, document, entries_of, filled, options, owned, recomputed, until,
};
use crate::served::{Served, ask, rows};

/// Returns two nodes that own half of four partitions each, and have the owner table.
fn two(group: &str, topic: &str, standby: usize) -> [Served; 2] {
    let start = || Served::start(NodeOptions { standby, ..options(group, topic, 0) });
    let both = [start(), start()];
    until("each node has its half, and its copies", || {
        both.iter().all(|served| {
            let held = served.node.held();
            owned(&[&served.node]).len() == 2
                && held.iter().all(|held| held.ready)
                && held.len() == if standby == 0 { 2 } else { 4 }
                && served.node.owners().members.iter().all(|one| one.partitions.len() == 2)
        })
    });
    both
}

#[test]
fn a_silent_node_is_named_with_its_partitions_and_partial_results_leave_them_out() {
    let _broker = beside_others();
    let (topic, _) = filled(4, 400);
    let expected = recomputed(&topic);
    let [first, mut second] = two("silent", &topic, 0);
    for served in [&first, &second] {
        let found = served.nodes.scan(&ask()).unwrap();
        assert_eq!((rows(&found), found.missing.len()), (expected.clone(), 0));
    }
    let gone = owned(&[&second.node]);
    second.fall_silent();
    let hasty = GroupQuery { timeout: Duration::from_millis(600), ..ask() };
    match first.nodes.scan(&hasty) {
        Err(QueryError::Missing { missing, of: 4, .. }) => {
            let named: Vec<u32> = missing.iter().map(|one| one.partition).collect();
            assert_eq!(named, gone);
            for one in missing {
                assert_eq!(one.member, Some(second.address.to_string()));
                assert!(matches!(one.trouble, QuestionError::Unreachable(_)), "{one}");
            }
        }
        other => panic!("{other:?}"),
    }
    let found = first.nodes.scan(&GroupQuery { partial: true, ..hasty }).unwrap();
    let named: Vec<u32> = found.missing.iter().map(|one| one.partition).collect();
    assert_eq!(named, gone);
    let mut here: Vec<Entry> =
        owned(&[&first.node]).iter().flat_map(|at| entries_of(&first.node, *at)).collect();
    here.sort();
    assert_eq!(rows(&found), here);
    for (partition, position) in (0..).zip(found.vector.positions()) {
        assert_eq!(*position == Position::default(), gone.contains(&partition));
    }
    // In the same way as a client.
    let scan = ["ORDNA.INDEX", "SCAN", "by_size", "TIMEOUT", "600"];
    let refused = first.say(&scan);
    let Reply::Error(why) = &refused else { panic!("{refused:?}") };
    assert!(why.starts_with("MISSING 2 of 4 partitions are missing"), "{why}");
    assert!(gone.iter().all(|at| why.contains(&format!("partition {at} on {}", second.address))));
    let reply = first.say(&[&scan[..], &["PARTIAL"]].concat());
    let named = gone.iter().map(|at| Reply::Number(i64::from(*at))).collect();
    assert_eq!(reply.items()[3], Reply::Array(named));
    let failed = first.field("node_queries_failed").unwrap();
    let partial = first.field("node_queries_partial").unwrap();
    assert_eq!((&failed[..], &partial[..]), ("2", "2"));
    // The partitions move while a query waits for them.
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| first.nodes.scan(&ask()).unwrap());
        std::thread::sleep(Duration::from_millis(300));
        assert!(!waiting.is_finished());
        second.node.stop();
        assert_eq!(rows(&waiting.join().unwrap()), expected);
    });
    assert_eq!(owned(&[&first.node]).len(), 4);
}

#[test]
fn a_warm_copy_answers_for_a_silent_node() {
    let _broker = beside_others();
    let (topic, writer) = filled(4, 400);
    let [first, mut second] = two("copies", &topic, 1);
    second.fall_silent();
    // A copy continues to read.
    writer.set("new", &document("AT", 1));
    writer.flush();
    let expected = recomputed(&topic);
    let began = Instant::now();
    assert_eq!(rows(&first.nodes.scan(&ask()).unwrap()), expected);
    let any = GroupQuery { consistency: Consistency::Any, ..ask() };
    assert_eq!(rows(&first.nodes.scan(&any).unwrap()), expected);
    // The query ends long before the group notices the failure.
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    assert_eq!(owned(&[&first.node]).len(), 2);
}

#[test]
fn arrays_truth_values_null_and_missing_can_be_asked_for() {
    let _broker = beside_others();
    let (topic, writer) = filled(1, 0);
    for (id, value) in [
        ("a", r#"{"on":true,"items":[{"sku":"x","n":1},{"sku":"y"}]}"#),
        ("b", r#"{"on":false,"items":[{"sku":"y"}]}"#),
        ("c", r#"{"on":null,"items":[]}"#),
        ("d", r#"{"on":"true"}"#),
    ] {
        writer.set(id, value);
    }
    writer.flush();
    let define = |line: &str| {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        ordna_server::parse_definition(&words).unwrap()
    };
    let indexes = vec![define("by_sku ON  PARTS items.sku ARRAY"), define("by_on ON  PARTS on")];
    let served = Served::start(NodeOptions { indexes, ..options("typed", &topic, 0) });
    until("it has the partition", || owned(&[&served.node]).len() == 1);
    let ids = |query: &str| -> Vec<String> {
        let line = format!("ORDNA.INDEX SCAN {query}");
        let reply = served.say(&line.split(' ').collect::<Vec<_>>());
        reply.items()[1].items().iter().map(Reply::text).collect()
    };
    assert_eq!(ids("by_sku EQ y"), ["a", "b"]);
    assert_eq!(ids("by_sku EQ x"), ["a"]);
    assert_eq!(ids("by_sku IS MISSING"), ["c", "d"]);
    assert_eq!(ids("by_on IS TRUE"), ["a"]);
    assert_eq!(ids("by_on IS FALSE"), ["b"]);
    assert_eq!(ids("by_on IS NULL"), ["c"]);
    assert_eq!(ids("by_on EQ true"), ["d"]);
}
