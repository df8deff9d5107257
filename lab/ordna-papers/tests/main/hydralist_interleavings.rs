//! Forces rare interleavings of HydraList. The tests are named after defects of published
//! implementations.

use std::sync::Mutex;

use ordna_base::reclaim::{Collector, Guard};
use ordna_base::sync::schedule::held;
use ordna_base::{Direction, Key, OrderedIndex, Value};
use ordna_papers::HydraList;
use ordna_papers::hydralist::layer::ArtLayer;
use ordna_papers::hydralist::updates::{Anchored, NodeEvent, Updates};
use ordna_papers::hydralist::{HydraOptions, Update};
use ordna_papers::search_layer::{AnchorAddress, LayerStep, SearchLayer};
use ordna_testkit::shorthand::Shorthand as _;

use crate::locked_layer::LockedLayer;

type Small<K, V> = HydraList<K, V, ArtLayer<K>, 4>;

fn small<K: Key + ?Sized, V: Value + ?Sized>() -> Small<K, V> {
    HydraList::with(&HydraOptions { update: Update::Synchronous, ..HydraOptions::default() })
}

/// Creates the nodes {10, 20}, {30, 40, 50}.
fn two_nodes() -> Small<u64, u64> {
    let index = small();
    index.put_all([50, 10, 20, 30, 40].map(|key| (key, key + 1)));
    assert_eq!(index.check_invariants().unwrap().nodes, 2);
    index
}

fn keys(index: &Small<u64, u64>) -> Vec<u64> {
    index.range(..).map(|(key, _)| key).collect()
}

/// The node is split between the scan to it and the lock, so the key belongs to the new node.
#[test]
fn a_writer_meets_a_split() {
    let index = two_nodes();
    held("hydralist.write.before_lock", || index.insert(&55, &56).unwrap()).meanwhile(|| {
        index.insert(&70, &71).unwrap();
        index.insert(&60, &61).unwrap();
    });
    assert_eq!(keys(&index), [10, 20, 30, 40, 50, 55, 60, 70]);
    index.check_invariants().unwrap();
    assert_eq!(index.get(&55), Some(56));
}

/// The node is merged into another one between the scan to it and the lock.
#[test]
fn a_writer_meets_a_merge() {
    let index = two_nodes();
    let old =
        held("hydralist.write.before_lock", || index.insert(&50, &51).unwrap()).meanwhile(|| {
            index.remove_all([40, 20, 30, 10]);
            assert_eq!(index.check_invariants().unwrap().nodes, 1);
        });
    assert_eq!((old, keys(&index)), (Some(51), vec![50]));
    index.check_invariants().unwrap();
}

#[test]
fn a_reader_meets_a_split() {
    let index = two_nodes();
    let found = held("hydralist.read.before_version", || index.get(&50)).meanwhile(|| {
        index.insert(&70, &71).unwrap();
        index.insert(&60, &61).unwrap();
        assert_eq!(index.check_invariants().unwrap().nodes, 3);
    });
    assert_eq!(found, Some(51));
}

#[test]
fn a_reader_meets_a_merge() {
    let index = two_nodes();
    let found = held("hydralist.read.before_version", || index.get(&50)).meanwhile(|| {
        index.remove_all([40, 20, 30, 10]);
        assert_eq!(index.check_invariants().unwrap().nodes, 1);
    });
    assert_eq!(found, Some(51));
}

/// Between the reads of key and value, the slot gets another entry, whose value does not belong to
/// this key.
#[test]
fn a_slot_is_used_again_under_a_reader() {
    let index = small::<u64, u64>();
    index.insert(&10, &11).unwrap();
    let found = held("hydralist.find.head_matched", || index.get(&10)).meanwhile(|| {
        index.remove(&10);
        index.insert(&20, &21).unwrap();
    });
    assert!(found.is_none_or(|value| value == 11), "{found:?}");
}

/// A removed record lives until the reader is done, even if others of its size are created in the
/// meantime.
#[test]
fn a_record_outlives_its_readers() {
    let index = small::<[u8], [u8]>();
    for round in 0..20_u8 {
        index.insert(b"key", &[round; 40]).unwrap();
        let found = held("hydralist.get.before_value", || index.get(b"key")).meanwhile(|| {
            index.remove(b"key");
            for other in 0..3_u8 {
                index.insert(&[b'o', b't', other], &[0xEE; 40]).unwrap();
            }
        });
        assert_eq!(found, Some(vec![round; 40]));
        for other in 0..3_u8 {
            index.remove(&[b'o', b't', other]);
        }
    }
}

/// PITFALLS, HydraList 2: the following nodes are split, merged with the one that the scan has
/// read, and emptied.
#[test]
fn a_scan_meets_splits_and_merges() {
    for direction in [Direction::Ascending, Direction::Descending] {
        for upset in 0..3 {
            let index = small::<u64, u64>();
            // After the last key, nodes are not halved.
            index.put_all(std::iter::once(39).chain(0..39).map(|n| (n * 10, n)));
            let scanned = held("hydralist.visit.copied", || index.scanned_keys(direction))
                .meanwhile(|| {
                    match upset {
                        // Splits the node that was just read, and the following ones.
                        0 => index.put_all((0..40).map(|n| (n * 10 + 5, n))),
                        // Removes all but one of every ten keys, so the rest of the list is merged.
                        1 => index.remove_all((0..40).filter(|n| n % 10 != 4).map(|n| n * 10)),
                        // Merges the node that was read with the next one.
                        _ => index.remove_all(
                            (0..38).filter(|n| ![1, 3, 36].contains(n)).map(|n| n * 10),
                        ),
                    }
                });
            index.check_invariants().unwrap();
            let in_order =
                |a: &u64, b: &u64| (direction == Direction::Ascending) == (a < b) && a != b;
            assert!(scanned.is_sorted_by(in_order), "{direction:?}: {scanned:?}");
            let stayed = keys(&index).into_iter().filter(|key| key % 10 == 0);
            for key in stayed {
                assert!(
                    scanned.contains(&key),
                    "{direction:?}, {upset}: {key} was there throughout"
                );
            }
        }
    }
}

/// A scan has returned a part of a node when the rest is changed: slots are used for other keys, or
/// the node is split.
#[test]
fn a_scan_finds_the_rest_of_its_node_changed() {
    for direction in [Direction::Ascending, Direction::Descending] {
        for split in [false, true] {
            let index: HydraList<u64, u64> = HydraList::with(&HydraOptions {
                update: Update::Synchronous,
                ..HydraOptions::default()
            });
            index.put_all((0..50).map(|n| (100 + n * 7 % 50 * 10, n)));
            assert_eq!(index.check_invariants().unwrap().nodes, 1);
            let scanned = held("hydralist.visit.copied", || index.scanned_keys(direction))
                .meanwhile(|| {
                    // Slots of keys in the middle are reused for keys at the ends.
                    for n in 20..30 {
                        index.remove(&(100 + n * 10));
                        index.insert(&(n - 20), &n).unwrap();
                        index.insert(&(n + 980), &n).unwrap();
                    }
                    if split {
                        index.put_all((0..50).map(|n| (105 + n * 10, n)));
                    }
                });
            assert_eq!(index.check_invariants().unwrap().nodes > 1, split);
            let in_order =
                |a: &u64, b: &u64| (direction == Direction::Ascending) == (a < b) && a != b;
            assert!(scanned.is_sorted_by(in_order), "{direction:?}: {scanned:?}");
            for n in (0..20).chain(30..50) {
                let key = 100 + n * 10;
                assert!(
                    scanned.contains(&key),
                    "{direction:?}, {split}: {key} was there throughout"
                );
            }
        }
    }
}

/// PITFALLS, HydraList 4: a node is inserted between the neighbours after the decision to merge and
/// before the locks.
#[test]
fn a_merge_finds_its_neighbours_parted() {
    let index = small::<u64, u64>();
    index.put_all([50, 10, 20, 30, 40].map(|key| (key, key)));
    index.remove(&40);
    index.remove(&50);
    // {10, 20}, {30}: without 10, they fit into half a node.
    held("hydralist.merge.before_locks", || index.remove(&10)).meanwhile(|| {
        index.put_all([21, 22, 23, 24].map(|key| (key, key)));
        index.remove_all([22, 21]);
    });
    assert_eq!(keys(&index), [20, 23, 24, 30]);
    index.check_invariants().unwrap();
}

/// PITFALLS, HydraList 4: a neighbour fills up after the decision to merge and before the locks.
#[test]
fn a_merge_finds_its_neighbour_full() {
    let index = small::<u64, u64>();
    index.put_all([50, 10, 20, 30, 40].map(|key| (key, key)));
    index.remove(&40);
    index.remove(&50);
    held("hydralist.merge.before_locks", || index.remove(&10)).meanwhile(|| {
        index.put_all((31..34).map(|key| (key, key)));
    });
    assert_eq!(keys(&index), [20, 30, 31, 32, 33]);
    index.check_invariants().unwrap();
}

/// Readers reach the new node from its successor before its predecessor is linked to it.
#[test]
fn a_half_linked_node_is_whole() {
    let index = two_nodes();
    held("hydralist.split.half_linked", || {
        // {30, 40, 50, 70} is full.
        index.insert(&70, &71).unwrap();
        index.insert(&60, &61).unwrap();
    })
    .meanwhile(|| {
        assert_eq!(index.last(), Some((70, 71)));
        // A scan from 50 on does not need the node that the split has locked.
        let above = (std::ops::Bound::Included(&50), std::ops::Bound::Unbounded);
        let mut seen = Vec::new();
        index.visit(above.0, above.1, Direction::Descending, |key, _| {
            seen.push(*key);
            std::ops::ControlFlow::Continue(())
        });
        assert_eq!(seen, [70, 60, 50]);
    });
    index.check_invariants().unwrap();
}

/// A replacement of a data node.
struct Toy {
    anchor: u64,
    dead: Mutex<bool>,
    references: Mutex<usize>,
}

impl Toy {
    fn new(anchor: u64) -> Box<Self> {
        Box::new(Self { anchor, dead: Mutex::new(false), references: Mutex::new(2) })
    }

    /// Marks the node dead. The list's reference becomes that of the log line about it.
    fn die(&self) {
        *self.dead.lock().unwrap() = true;
    }

    fn references(&self) -> usize {
        *self.references.lock().unwrap()
    }
}

#[expect(unsafe_code, reason = "a stand-in that outlives the logs")]
// SAFETY: the tests create the toys before the logs, so they are dropped after them.
unsafe impl Anchored for Toy {
    type Key = u64;

    fn anchor(&self) -> &u64 {
        &self.anchor
    }

    fn place(&self) -> usize {
        std::ptr::from_ref(self).expose_provenance() + std::mem::offset_of!(Toy, anchor)
    }

    fn at_place(place: usize) -> usize {
        place - std::mem::offset_of!(Toy, anchor)
    }

    fn is_dead(&self) -> bool {
        *self.dead.lock().unwrap()
    }

    unsafe fn release(&self, times: usize, _: &Guard<'_>) {
        let mut references = self.references.lock().unwrap();
        *references = references.checked_sub(times).expect("a reference was given up twice");
    }
}

fn content(layer: &impl SearchLayer<u64>) -> Vec<(u64, AnchorAddress)> {
    let mut content = Vec::new();
    layer.for_each(|anchor, place| content.push((*anchor, place)));
    content
}

/// PITFALLS, HydraList 3: the lines about one anchor are applied in every order in which they can
/// come out of the logs, separately or together.
#[test]
fn steps_of_one_anchor_in_any_order() {
    let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
    // The first node may die before anything about it is logged. It must die before its death or
    // its successor is logged.
    for (order, (rounds, dies_first)) in orders
        .into_iter()
        .flat_map(|order| [(1, true), (3, true), (3, false)].map(|case| (order, case)))
    {
        let case = format!("{order:?}, {rounds} rounds, dies first: {dies_first}");
        let collector = Collector::new();
        let guard = collector.pin();
        // One node was created and merged into another, and then a second one with the same anchor
        // was created.
        let toys = (Toy::new(7), Toy::new(7));
        let (first, second) = (&*toys.0, &*toys.1);
        let updates = Updates::<Toy, LockedLayer<u64>>::new(1, 100);
        let lines = [
            (1, NodeEvent::Made, first),
            (2, NodeEvent::Died, first),
            (3, NodeEvent::Made, second),
        ];
        for at in order {
            let (time, event, node) = lines[at];
            if dies_first || time > 1 {
                first.die();
            }
            #[expect(unsafe_code, reason = "gives up a reference")]
            // SAFETY: toys count references, and outlive all of them.
            unsafe {
                updates.log(time, event, node);
            }
            if rounds == 3 {
                updates.run(&guard);
            }
        }
        updates.run(&guard);
        let layer = updates.layers().next().unwrap();
        assert_eq!(content(layer), [(7, second.place())], "{case}");
        // The live one has references of the list and of the layer, the dead one has none.
        assert_eq!((first.references(), second.references()), (0, 2), "{case}");
        assert_eq!(updates.lag(), 0);
    }
}

/// A layer that records its updates.
#[derive(Default)]
struct Diary(Mutex<Vec<(u64, LayerStep)>>);

#[expect(unsafe_code, reason = "promises what places it tells")]
// SAFETY: it returns no addresses.
unsafe impl SearchLayer<u64> for Diary {
    fn jump(&self, _: &u64) -> Option<AnchorAddress> {
        None
    }
    unsafe fn apply(&self, anchor: &u64, step: LayerStep) -> Option<AnchorAddress> {
        self.0.lock().unwrap().push((*anchor, step));
        None
    }
    fn for_each(&self, _: impl FnMut(&u64, AnchorAddress)) {}
    fn memory_usage(&self) -> usize {
        0
    }
}

#[test]
fn a_merged_log_is_in_the_order_of_its_times() {
    let collector = Collector::new();
    let lines = [(0, 5), (1, 1), (1, 4), (0, 6), (2, 2), (2, 3)];
    let toys = lines.map(|(_, time)| Toy::new(time));
    let updates = Updates::<Toy, Diary>::new(2, 100);
    for ((log, time), toy) in lines.into_iter().zip(&toys) {
        #[expect(unsafe_code, reason = "gives up references")]
        // SAFETY: as above.
        unsafe {
            updates.log_at(log, time, NodeEvent::Made, toy);
        }
    }
    updates.run(&collector.pin());
    for diary in updates.layers() {
        let anchors: Vec<u64> = diary.0.lock().unwrap().iter().map(|(anchor, _)| *anchor).collect();
        assert_eq!(anchors, [1, 2, 3, 4, 5, 6]);
    }
}

/// A write that changes nothing keeps the versions of concurrent readers, and the sorted order.
#[test]
fn a_write_that_changes_nothing_disturbs_no_reader() {
    let index: HydraList<u64, u64> = HydraList::new();
    index.insert(&7, &70).unwrap();
    let found = held("hydralist.find.head_matched", || index.get(&7)).meanwhile(|| {
        assert_eq!(index.remove(&9), None);
        assert_eq!(index.insert_if_absent(&7, &71), Ok(Some(70)));
        assert!(index.compare_exchange(&7, Some(&1), Some(&2)).unwrap().is_err());
    });
    assert_eq!((found, index.statistics().retries), (Some(70), 0));
}

/// Retiring records may free a batch of them, so it happens without the lock of their node.
#[test]
fn a_record_is_retired_without_the_lock_of_its_node() {
    let index: HydraList<u64, [u8]> = HydraList::new();
    index.insert(&7, b"seven").unwrap();
    held("hydralist.change.before_retire", || index.insert(&7, b"a longer value"))
        .meanwhile(|| {
            index.insert(&8, b"eight").unwrap();
        })
        .unwrap();
    held("hydralist.change.before_retire", || index.remove(&7)).meanwhile(|| {
        index.insert(&9, b"nine").unwrap();
    });
    assert_eq!(index.check_invariants().unwrap().entries, 2);
}
