//! Tests of the skip list's shortcuts: nodes at which searches begin, some of which have been
//! removed.

use std::sync::atomic::{AtomicBool, Ordering};

use ordna_base::OrderedIndex;
use ordna_base::sync::schedule::Schedule;
use ordna_papers::skiplist::SkipList;
use ordna_testkit::shorthand::Shorthand as _;

const KEYS: u64 = 4_000;

/// Creates a list with every other key.
fn filled() -> SkipList<u64, u64> {
    let index = SkipList::new();
    (0..KEYS).for_each(|key| assert_eq!(index.insert(&(key * 2), &key), Ok(None)));
    let parts = index.memory_usage().parts;
    assert!(parts.iter().any(|(name, bytes)| *name == "shortcuts" && *bytes > 0), "{parts:?}");
    index
}

/// The links of a removed node lead to what was after it when it was removed.
#[test]
fn a_search_does_not_begin_at_a_removed_node() {
    let index = filled();
    for key in (0..KEYS).map(|key| key * 2) {
        assert!(index.remove(&key).is_some());
        assert_eq!(index.insert(&(key + 1), &7), Ok(None));
        assert_eq!(index.get(&(key + 1)), Some(7), "behind {key}");
        assert_eq!(index.ceiling(&key), Some((key + 1, 7)));
        assert_eq!(index.values(&[key, key + 1]), [None, Some(7)]);
    }
    assert_eq!(index.check_invariants().unwrap().entries, KEYS as usize);
}

/// Whole parts of the table consist of removed nodes.
#[test]
fn searches_come_past_many_removed_nodes() {
    for kept in [1, 97, KEYS] {
        let index = filled();
        let gone = |key: &u64| !key.is_multiple_of(kept);
        (0..KEYS).filter(gone).for_each(|key| assert_eq!(index.remove(&(key * 2)), Some(key)));
        for key in 0..KEYS {
            assert_eq!(index.get(&(key * 2)), (!gone(&key)).then_some(key));
            assert_eq!(index.floor(&(key * 2)), Some((key / kept * kept * 2, key / kept * kept)));
        }
        index.check_invariants().unwrap();
    }
}

/// The audit searches for each node of the table among those that are linked and those that are
/// kept.
#[test]
fn removed_nodes_stay_in_memory_as_long_as_in_the_table() {
    let index = filled();
    for key in 0..KEYS {
        assert_eq!(index.remove(&(key * 2)), Some(key));
        if key.is_multiple_of(100) {
            index.check_invariants().unwrap();
        }
        assert_eq!(index.insert(&(key * 2), &key), Ok(None));
    }
    index.check_invariants().unwrap();
}

/// Nodes that were collected for the next table are removed before it is published.
#[test]
fn nodes_die_while_a_table_is_made() {
    const COLLECTED: &str = "skiplist.shortcuts.collected";
    let index = filled();
    let schedule = Schedule::new();
    schedule.hold("maker", COLLECTED);
    let was_held = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let maker = scope.spawn(|| {
            schedule.enroll("maker", || {
                // One of these inserts makes a table due.
                index.put_all(
                    (KEYS..KEYS * 4)
                        .take_while(|_| !was_held.load(Ordering::SeqCst))
                        .map(|key| (key * 2, key)),
                );
            });
        });
        schedule.wait_held("maker", COLLECTED);
        (0..KEYS).for_each(|key| assert_eq!(index.remove(&(key * 2)), Some(key)));
        was_held.store(true, Ordering::SeqCst);
        schedule.release("maker", COLLECTED);
        maker.join().unwrap();
    });
    assert!((0..KEYS).all(|key| index.get(&(key * 2)).is_none()));
    index.check_invariants().unwrap();
}

/// The next table is due before all removed nodes that the last one has replaced are retired.
#[test]
fn tables_that_are_due_at_once_lose_no_removed_nodes() {
    // Heights are random: sometimes the first table is due after a few removals.
    let mut rounds = (0..50).map(|_| tables_due_at_once());
    let (begun, left) = rounds.find(|(begun, _)| *begun > 4_000).expect("some table is due late");
    assert!(left < begun / 4, "{left} of {begun} bytes are still held");
}

/// Returns the sizes in bytes of removed nodes that are kept when the second table is due, and at
/// the end.
fn tables_due_at_once() -> (usize, usize) {
    const COLLECTED: &str = "skiplist.shortcuts.collected";
    let index = SkipList::<u64, u64>::new();
    (0..KEYS * 4).for_each(|key| assert_eq!(index.insert(&key, &key), Ok(None)));
    let held = || {
        let parts = index.memory_usage().parts;
        parts.iter().find(|(name, _)| *name == "held nodes").map_or(0, |(_, bytes)| *bytes)
    };
    let schedule = Schedule::new();
    schedule.hold("maker", COLLECTED);
    let was_held = AtomicBool::new(false);
    let begun = std::thread::scope(|scope| {
        let maker = scope.spawn(|| {
            schedule.enroll("maker", || {
                // One of these inserts makes a table due. The nodes removed before are on its
                // stack.
                let kept = (0..KEYS * 4).take_while(|_| !was_held.load(Ordering::SeqCst));
                kept.for_each(|key| assert_eq!(index.remove(&key), Some(key)));
            });
        });
        schedule.wait_held("maker", COLLECTED);
        let begun = held();
        (KEYS * 2..KEYS * 4).for_each(|key| assert_eq!(index.remove(&key), Some(key)));
        was_held.store(true, Ordering::SeqCst);
        schedule.release("maker", COLLECTED);
        maker.join().unwrap();
        begun
    });
    index.remove_all(0..KEYS * 2);
    // Enough changes for many tables of an empty list.
    for key in 0..KEYS {
        assert_eq!(index.insert(&key, &key), Ok(None));
        assert_eq!(index.remove(&key), Some(key));
    }
    index.check_invariants().unwrap();
    (begun, held())
}
