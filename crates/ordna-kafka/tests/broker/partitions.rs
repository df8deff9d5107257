//! Partitions are added to a topic that nodes index.

use std::time::Duration;

use ordna_kafka::query::{GroupQuery, QueryError};
use ordna_kafka::{LocalNode, RequestedState};
use ordna_secondary::Consistency;
use rdkafka::admin::NewPartitions;

use crate::common::{Writer, admin, beside_others, document, options, recomputed, topic, until};
use crate::served::{Served, ask, rows};

#[test]
fn added_partitions_are_missing_until_a_node_has_them_and_then_indexed() {
    let _broker = beside_others();
    let topic = topic(2);
    let writer = Writer::new(&topic);
    for number in 0..100 {
        let partition = Some((number % 2) as i32);
        writer.put(partition, Some(&format!("d{number}")), Some(&document("SE", number)));
    }
    writer.flush();
    let served = Served::start(options("added", &topic, 0));
    until("both partitions are here", || {
        served.node.held().len() == 2 && served.node.owners().members.len() == 1
    });
    let before = served.nodes.scan(&ask()).unwrap();
    assert_eq!((rows(&before), before.vector.positions().len()), (recomputed(&topic), 2));
    let added = NewPartitions::new(&topic, 4);
    admin(async |admin, options| admin.create_partitions([&added], options).await).unwrap();
    // A producer that does not know the new partitions yet would refuse them.
    let writer = Writer::new(&topic);
    for number in 100..200 {
        let partition = Some((number % 4) as i32);
        writer.put(partition, Some(&format!("d{number}")), Some(&document("NO", number)));
    }
    writer.flush();
    let mut refused = 0;
    until("the node has noticed", || {
        let hasty = GroupQuery { timeout: Duration::from_millis(200), ..ask() };
        match served.nodes.scan(&hasty) {
            // Until the node has noticed the new partitions, the vector has two positions.
            Ok(found) if found.vector.positions().len() == 2 => false,
            Ok(found) => {
                assert_eq!(rows(&found), recomputed(&topic));
                true
            }
            Err(QueryError::Missing { missing, of: 4, .. }) => {
                // On a busy machine, other partitions may be late, too.
                assert!(missing.iter().any(|one| one.partition >= 2), "{missing:?}");
                refused += 1;
                false
            }
            // The machine is busy.
            Err(QueryError::NoEnds(_)) => false,
            Err(other) => panic!("{other}"),
        }
    });
    assert!(refused > 0, "the new partitions were never missing");
    assert_eq!(served.field("node_partitions").as_deref(), Some("4"));
    // An earlier vector and an earlier cursor are still valid.
    let at = GroupQuery { consistency: Consistency::AtPlus(before.vector.clone()), ..ask() };
    let found = served.nodes.scan(&at).unwrap();
    assert_eq!((found.entries.len(), found.vector.positions().len()), (200, 4));
    let shown =
        served.node.view(3, RequestedState::RequestPlus, std::time::Instant::now() + ask().timeout);
    assert_eq!(shown.unwrap().position().seq, 25);
}
