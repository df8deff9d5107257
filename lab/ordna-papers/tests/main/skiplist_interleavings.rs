//! Forces rare interleavings. A test is named after a defect of published implementations.

use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};

use ordna_base::OrderedIndex;
use ordna_base::sync::schedule::{Schedule, held, two_at};
use ordna_papers::skiplist::SkipList;
use ordna_testkit::memory::live_here;
use ordna_testkit::shorthand::Shorthand as _;

type Words = SkipList<u64, u64>;

fn keys(index: &Words) -> Vec<(u64, u64)> {
    index.range(..).collect()
}

/// An insert links an upper level after the deleter has unlinked the node. The tower must not be
/// reachable when it is freed.
#[test]
fn insert_links_a_level_of_a_node_that_is_being_removed() {
    for round in 0..40_u64 {
        let index = Words::new();
        let schedule = Schedule::new();
        schedule.hold("inserter", "skiplist.link_upper.before_link");
        let was_held = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let inserter = scope.spawn(|| {
                schedule.enroll("inserter", || {
                    // The first node with a tower above level 0 is held; there are more than
                    // enough. It is the last one, because a later search would unlink what this one
                    // has left.
                    index.put_all(
                        (0..200)
                            .take_while(|_| !was_held.load(Ordering::SeqCst))
                            .map(|n| (n * 2, round)),
                    );
                });
            });
            schedule.wait_held("inserter", "skiplist.link_upper.before_link");
            let half_linked = index.last().unwrap().0;
            assert_eq!(index.remove(&half_linked), Some(round));
            // A new node with the same key must not be before the old one.
            index.insert(&half_linked, &7).unwrap();
            was_held.store(true, Ordering::SeqCst);
            schedule.release("inserter", "skiplist.link_upper.before_link");
            inserter.join().unwrap();
            assert_eq!(index.get(&half_linked), Some(7));
        });
        index.check_invariants().unwrap();
        // Garbage is freed by now, or by the drop, which would find a freed node that is still
        // linked.
        index.remove_all((0..200).map(|n| n * 2));
        assert_eq!(index.check_invariants().unwrap().nodes, 0);
    }
}

/// An inserter that finds its node removed has to retire it, because the remover has left it to the
/// inserter. Only the memory of the participating threads is counted, because concurrent tests have
/// their own.
#[test]
fn a_node_that_is_removed_while_it_is_linked_is_freed() {
    const RACES: u64 = 100;
    let stays = |races: bool| -> i64 {
        let before = live_here();
        let index = Words::new();
        let mut by_inserters = 0;
        for race in 0..RACES {
            let schedule = Schedule::new();
            schedule.hold("inserter", "skiplist.link_upper.before_link");
            let was_held = AtomicBool::new(false);
            by_inserters += std::thread::scope(|scope| {
                let inserter = scope.spawn(|| {
                    let before = live_here();
                    schedule.enroll("inserter", || {
                        // The first node with a tower above level 0 is held.
                        for n in (0..1000).take_while(|_| !was_held.load(Ordering::SeqCst)) {
                            index.insert(&(race * 1000 + n), &race).unwrap();
                        }
                    });
                    live_here() - before
                });
                schedule.wait_held("inserter", "skiplist.link_upper.before_link");
                let half_linked = index.last().unwrap().0;
                if races {
                    assert_eq!(index.remove(&half_linked), Some(race));
                }
                was_held.store(true, Ordering::SeqCst);
                schedule.release("inserter", "skiplist.link_upper.before_link");
                inserter.join().unwrap()
            });
        }
        drop(index);
        live_here() - before + by_inserters
    };
    // What the first threads leave in the process does not belong to the index.
    stays(false);
    let (without, with) = (stays(false), stays(true));
    let node = 32;
    assert!(with < without + node * RACES as i64 / 2, "{with} bytes stay, {without} without races");
}

/// A key is inserted between a node and the predecessor that its remover has found. The remover has
/// to search again, because otherwise the node would still be linked when it is freed.
#[test]
fn a_key_comes_in_front_of_a_node_that_is_being_removed_or_replaced() {
    let index = Words::new();
    let removed = |role| -> Option<u64> {
        let schedule = Schedule::new();
        let (stop, change): (_, fn(&Words) -> Option<u64>) = match role {
            "remover" => ("skiplist.remove.before_mark", |index| index.remove(&5)),
            _ => ("skiplist.replace.before_swap", |index| index.insert(&5, &7).unwrap()),
        };
        schedule.hold(role, stop);
        std::thread::scope(|scope| {
            let changer = scope.spawn(|| schedule.enroll(role, || change(&index)));
            schedule.wait_held(role, stop);
            index.insert(&4, &1).unwrap();
            schedule.release(role, stop);
            changer.join().unwrap()
        })
    };
    for role in ["remover", "replacer"] {
        index.insert(&5, &0).unwrap();
        assert_eq!(removed(role), Some(0));
        // The removed node is still allocated, but no link leads to it.
        index.check_invariants().unwrap();
        index.remove(&4);
    }
    assert_eq!(keys(&index), [(5, 7)]);
}

/// An insert before a node whose remover searches again and is about to unlink it makes the remover
/// search once more.
#[test]
fn a_key_comes_in_front_of_a_node_that_is_being_unlinked() {
    // Heights are random: in most rounds the node is on the lowest level only.
    for _ in 0..10 {
        let index = Words::new();
        index.insert(&10, &0).unwrap();
        let schedule = Schedule::new();
        let stops = ["skiplist.remove.before_mark", "skiplist.find.before_unlink"];
        stops.iter().for_each(|stop| schedule.hold("remover", stop));
        schedule.hold("inserter", "skiplist.insert.before_link");
        std::thread::scope(|scope| {
            let remover = scope.spawn(|| schedule.enroll("remover", || index.remove(&10)));
            schedule.wait_held("remover", stops[0]);
            // The remover's place is no longer current, so it has to search.
            index.insert(&6, &0).unwrap();
            let inserter = scope.spawn(|| schedule.enroll("inserter", || index.insert(&9, &0)));
            schedule.wait_held("inserter", "skiplist.insert.before_link");
            schedule.release("remover", stops[0]);
            schedule.wait_held("remover", stops[1]);
            schedule.release("inserter", "skiplist.insert.before_link");
            assert_eq!(inserter.join().unwrap(), Ok(None));
            schedule.release("remover", stops[1]);
            assert_eq!(remover.join().unwrap(), Some(0));
        });
        // The removed node is not freed yet; the audit would find links to it.
        index.check_invariants().unwrap();
        assert_eq!(keys(&index), [(6, 0), (9, 0)]);
    }
}

/// A search sees a node alive on an upper level and dead below. The new node of its key must not be
/// linked before the dead one on the upper level, because a search for the key would then no longer
/// reach the dead one.
#[test]
fn insert_finds_a_node_that_dies_while_the_search_goes_down() {
    let mut rounds = 0;
    while rounds < 300 {
        let index = Words::new();
        index.insert(&5, &50).unwrap();
        let nodes = index.memory_usage().parts[0].1;
        if nodes == 24 {
            // The node has no level above 0.
            continue;
        }
        rounds += 1;
        let schedule = Schedule::new();
        schedule.hold("inserter", "skiplist.find.below");
        schedule.hold("remover", "skiplist.remove.after_mark");
        std::thread::scope(|scope| {
            let enrolled = |role| {
                let (schedule, index) = (&schedule, &index);
                scope.spawn(move || {
                    schedule.enroll(role, || match role {
                        "remover" => index.remove(&5),
                        _ => index.insert(&5, &51).unwrap(),
                    })
                })
            };
            let inserter = enrolled("inserter");
            schedule.wait_held("inserter", "skiplist.find.below");
            let remover = enrolled("remover");
            schedule.wait_held("remover", "skiplist.remove.after_mark");
            schedule.release("inserter", "skiplist.find.below");
            assert_eq!(inserter.join().unwrap(), None);
            schedule.release("remover", "skiplist.remove.after_mark");
            assert_eq!(remover.join().unwrap(), Some(50));
        });
        index.check_invariants().unwrap();
        assert_eq!(keys(&index), [(5, 51)]);
    }
}

#[test]
fn of_two_racing_removers_exactly_one_wins() {
    let index = Words::new();
    index.insert(&5, &50).unwrap();
    let wins = two_at("skiplist.remove.before_mark", || index.remove(&5));
    assert_eq!(wins.iter().flatten().count(), 1, "{wins:?}");
    assert_eq!(index.check_invariants().unwrap().entries, 0);
}

/// A replacement that was prepared before a removal must notice the removal, and insert again.
#[test]
fn replace_meets_a_removal() {
    let index = Words::new();
    index.insert(&5, &50).unwrap();
    let replacer = held("skiplist.replace.before_swap", || index.insert(&5, &51).unwrap())
        .meanwhile(|| {
            assert_eq!(index.remove(&5), Some(50));
            assert_eq!(index.get(&5), None);
        });
    assert_eq!(replacer, None, "the key was absent by then");
    assert_eq!(keys(&index), [(5, 51)]);
    index.check_invariants().unwrap();
}

/// While the replaced node is still linked, every reader finds the new one, once.
#[test]
fn a_replaced_node_that_is_still_linked_is_invisible() {
    for _ in 0..20 {
        let index = Words::new();
        index.put_all((0..30).map(|key| (key, key)));
        let replacer = held("skiplist.replace.after_swap", || index.insert(&9, &99).unwrap())
            .meanwhile(|| {
                assert_eq!(index.get(&9), Some(99));
                assert_eq!(index.values(&[8, 9, 10]), [Some(8), Some(99), Some(10)]);
                let around = [(8, 8), (9, 99), (10, 10)];
                assert_eq!(index.range(8..=10).collect::<Vec<_>>(), around);
                let bounds = (Bound::Included(8), Bound::Included(10));
                let mut back: Vec<_> = index.range(bounds).rev().collect();
                back.reverse();
                assert_eq!(back, around);
                // Neighbours are removed and inserted in the meantime.
                assert_eq!(index.remove(&8), Some(8));
                assert_eq!(index.remove(&10), Some(10));
            });
        assert_eq!(replacer, Some(9));
        assert_eq!(index.get(&9), Some(99));
        assert_eq!(index.check_invariants().unwrap().entries, 28);
    }
}

/// With an insert after a node that is being replaced, both new nodes must stay.
#[test]
fn replace_meets_an_insert_behind_the_old_node() {
    let index = Words::new();
    index.insert(&5, &50).unwrap();
    let inserter = held("skiplist.insert.before_link", || index.insert(&6, &60))
        .meanwhile(|| assert_eq!(index.insert(&5, &51), Ok(Some(50))));
    assert_eq!(inserter, Ok(None));
    assert_eq!(keys(&index), [(5, 51), (6, 60)]);
    index.check_invariants().unwrap();
}
