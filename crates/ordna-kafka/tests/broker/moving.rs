//! Tests of partitions that move between nodes: rebalances, backups, warm copies.

use std::time::{Duration, Instant};

use ordna_kafka::{IndexNode, LocalNode, NodeError, NodeOptions, RequestedState, Role};
use ordna_secondary::Part;

use crate::common::{
    PATIENCE, Writer, backed_up, beside_others, definition, directory, document, entries,
    entries_of, filled, node, options, owned, recomputed, topic, until,
};

#[test]
fn partitions_are_divided_and_come_back() {
    let _broker = beside_others();
    let (topic, _) = filled(4, 400);
    let first = node("divide", &topic, 10);
    until("one node has all", || owned(&[&first]) == [0, 1, 2, 3]);
    let second = node("divide", &topic, 11);
    until("both have two", || {
        owned(&[&first]).len() == 2 && owned(&[&first, &second]) == [0, 1, 2, 3]
    });
    assert_eq!(entries(&[&first, &second], 4), recomputed(&topic));
    // A node does not answer queries for a partition that it has given up.
    let gone = owned(&[&second])[0];
    let refused = first.view(gone, RequestedState::Any, Instant::now() + PATIENCE);
    assert!(matches!(refused, Err(NodeError::NotHeld { partition }) if partition == gone));
    // The owner tables of both nodes have the addresses.
    until("the owner table is told", || {
        let tables = [first.owners(), second.owners()];
        let is_whole = |table: &ordna_kafka::OwnerTable| {
            let addresses: Vec<_> = table.members.iter().map(|one| &one.address[..]).collect();
            let owner = table.owner(gone).map(|owner| &owner.address[..]);
            addresses == ["127.0.0.1:50010", "127.0.0.1:50011"] && owner == Some("127.0.0.1:50011")
        };
        tables.iter().all(is_whole)
    });
    drop(second);
    until("the first has all again", || owned(&[&first]) == [0, 1, 2, 3]);
    assert_eq!(entries(&[&first], 4), recomputed(&topic));
    assert!(first.rebalances().0 >= 3, "{:?}", first.rebalances());
}

#[test]
fn a_node_goes_on_from_the_backup_of_another() {
    let _broker = beside_others();
    let ((topic, writer), dir) = (filled(2, 500), directory("restore"));
    let with_backups = |group: &str, number| backed_up(&dir, options(group, &topic, number));
    let first = IndexNode::start(with_backups("restore", 12)).unwrap();
    assert_eq!(entries(&[&first], 2), recomputed(&topic));
    first.stop();
    // Changes and deletions after the backup.
    (0..100).for_each(|number| writer.delete(&format!("d{number}")));
    writer.fill(100..200, "NO");
    let second = IndexNode::start(with_backups("restore", 13)).unwrap();
    assert_eq!(entries(&[&second], 2), recomputed(&topic));
    let read: u64 = second.info().iter().map(|info| info.restored.0).sum();
    assert_eq!(read, 200, "only what came behind the backup was read");
    second.stop();
    // Another group with other indexes has its own backups, and reads from the first record on.
    let other = IndexNode::start(with_backups("restore-too", 14)).unwrap();
    assert_eq!(entries(&[&other], 2), recomputed(&topic));
    let read: u64 = other.info().iter().map(|info| info.restored.0).sum();
    assert_eq!(read, 700);
    drop(other);
    let more = definition().part(Part::new("name"));
    let changed = NodeOptions { indexes: vec![more], ..with_backups("restore", 15) };
    let changed = IndexNode::start(changed).unwrap();
    until("everything was read", || {
        changed.info().iter().map(|info| info.restored.0).sum::<u64>() == 700
    });
    drop(changed);
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_damaged_backup_costs_time_and_nothing_else() {
    let _broker = beside_others();
    let ((topic, _), dir) = (filled(1, 300), directory("damaged"));
    let options = backed_up(&dir, options("damaged", &topic, 16));
    let first = IndexNode::start(options.clone()).unwrap();
    assert_eq!(entries(&[&first], 1).len(), 300);
    drop(first);
    let mut damaged = 0;
    let mut folders = vec![dir.clone()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_none_or(|end| end != "json") {
                let mut bytes = std::fs::read(&path).unwrap();
                let middle = bytes.len() / 2;
                bytes[middle] ^= 0xFF;
                std::fs::write(&path, bytes).unwrap();
                damaged += 1;
            }
        }
    }
    assert!(damaged > 0);
    let second = IndexNode::start(options).unwrap();
    assert_eq!(entries(&[&second], 1), recomputed(&topic));
    assert_eq!(second.info()[0].restored.0, 300);
    drop(second);
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_warm_copy_answers_at_once_when_its_owner_leaves() {
    let _broker = beside_others();
    let (topic, writer) = filled(2, 500);
    let warm = |number| NodeOptions { standby: 1, ..options("warm", &topic, number) };
    let first = IndexNode::start(warm(17)).unwrap();
    let second = IndexNode::start(warm(18)).unwrap();
    until("each has both, one of them as a copy", || {
        let both = [&first, &second].map(|node| {
            let held = node.held();
            held.len() == 2
                && held.iter().all(|held| held.ready)
                && held.iter().filter(|held| held.role == Role::Owner).count() == 1
        });
        both == [true; 2]
    });
    let copied = first.held().into_iter().find(|held| held.role == Role::Standby).unwrap();
    // A copy indexes new records and answers queries.
    writer.set("new", &document("SE", 1));
    writer.flush();
    let sizes: usize =
        [&first, &second].map(|node| entries_of(node, copied.partition).len()).iter().sum();
    assert_eq!(sizes % 2, 0, "the copy and its original are alike");
    second.stop();
    let shown = first.view(copied.partition, RequestedState::Any, Instant::now());
    assert!(shown.is_ok(), "{shown:?}");
    until("the copy is an original", || owned(&[&first]) == [0, 1]);
    assert_eq!(entries(&[&first], 2), recomputed(&topic));
    let read: u64 = first.info().iter().map(|info| info.restored.0).sum();
    assert_eq!(read, 501, "nothing was read twice");
}

#[test]
fn backups_are_taken_regularly_and_old_ones_go() {
    let _broker = beside_others();
    let (topic, dir) = (topic(1), directory("regular"));
    let every = Some(Duration::from_millis(300));
    let options = NodeOptions {
        backups: Some(dir.clone()),
        backup_every: every,
        backup_keep: 2,
        ..options("regular", &topic, 19)
    };
    let node = IndexNode::start(options).unwrap();
    let writer = Writer::new(&topic);
    let backups = || {
        let partition = dir.join("regular").join(&topic).join("0");
        let writers = std::fs::read_dir(partition).into_iter().flatten().flatten();
        let backups = writers.flat_map(|one| std::fs::read_dir(one.path()).into_iter().flatten());
        let names = backups.flatten().map(|one| one.file_name().into_string().unwrap());
        let mut names: Vec<String> = names.filter(|name| name.starts_with("backup-")).collect();
        names.sort();
        names
    };
    let mut number = 0;
    until("the third backup", || {
        number += 1;
        writer.set(&format!("d{number}"), &document("SE", number));
        writer.flush();
        let names = backups();
        names.len() == 2 && !names.iter().any(|name| name == "backup-1")
    });
    drop(node);
    std::fs::remove_dir_all(dir).unwrap();
}
