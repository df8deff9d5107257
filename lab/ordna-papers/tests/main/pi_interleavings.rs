//! PI's rare interleavings, forced: readers, owners and rebuilds are held at stops.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ordna_base::sync::schedule::{PATIENCE, Schedule, held};
use ordna_base::{Direction, OrderedIndex};
use ordna_papers::Pi;
use ordna_papers::pi::{PiOptions, Query};
use ordna_papers::topology::Topology;
use ordna_testkit::shorthand::Shorthand as _;

type Words = Pi<u64, u64>;

/// Creates an index with nodes of four entries, whose layer changes only when a test calls
/// `rebuild`.
fn index(keys: impl IntoIterator<Item = u64>) -> Words {
    let index = Words::with(&PiOptions {
        node_entries: 4,
        piece: 2,
        rebuild_threshold: usize::MAX,
        rebuild_in_background: false,
        ..PiOptions::default()
    });
    index.put_all(keys.into_iter().map(|key| (key, key * 10)));
    index.rebuild();
    index
}

/// Entries shift between the search of a lookup and its read.
#[test]
fn a_lookup_does_not_take_its_neighbours_value() {
    let index = index([10, 20, 30]);
    let found =
        held("pi.get.before_entry", || index.get(&20)).meanwhile(|| index.insert(&5, &50).unwrap());
    assert_eq!(found, Some(200));
}

/// The node is split after the lookup has found it and before it searches it.
#[test]
fn a_lookup_follows_its_key_into_the_new_half() {
    let index = index([10, 20, 30, 40]);
    let found = held("pi.get.before_find", || index.get(&40))
        .meanwhile(|| index.insert(&35, &350).unwrap());
    assert_eq!(found, Some(400));
    assert_eq!(index.check_invariants().unwrap().nodes, 2);
}

/// The node is split while a lookup decides whether to follow the list: it has read the link before
/// the split and reads the border after it.
#[test]
fn a_lookup_does_not_scan_past_a_node_that_appears() {
    let index = index((1..=16).map(|n| n * 10));
    let nodes = index.check_invariants().unwrap().nodes;
    // Full nodes: ascending inserts leave four entries in each node but the last.
    let found = held("pi.beyond.after_next", || index.get(&40))
        .meanwhile(|| index.insert(&35, &350).unwrap());
    assert_eq!(found, Some(400));
    assert_eq!(index.check_invariants().unwrap().nodes, nodes + 1);
}

/// The layer names a node that was absorbed. Its keys are found in the node that absorbed it.
#[test]
fn an_absorbed_node_is_not_read() {
    let index = index((0..40).map(|n| n * 10));
    let before = index.check_invariants().unwrap().nodes;
    // Leaves one entry in each node.
    index.remove_all((0..40).filter(|n| n % 4 != 1).map(|n| n * 10));
    assert!(index.check_invariants().unwrap().nodes < before, "nothing was absorbed");
    for n in (0..40).filter(|n| n % 4 == 1) {
        assert_eq!(index.insert(&(n * 10), &n), Ok(Some(n * 100)));
        assert_eq!(index.get(&(n * 10)), Some(n));
        assert_eq!(index.get(&(n * 10 + 10)), None);
        assert_eq!(index.floor(&(n * 10 + 9)), Some((n * 10, n)));
    }
    index.rebuild();
    assert_eq!(index.check_invariants().unwrap().nodes, index.places());
}

/// A node is absorbed after the scan of a rebuild has recorded it. It must outlive that layer.
#[test]
fn a_node_that_dies_after_the_scan_outlives_the_new_layer() {
    let index = index((0..64).map(|n| n * 10));
    held("pi.rebuild.after_scan", || index.rebuild()).meanwhile(|| {
        // Merges and splits, by single writes and in a batch, while the layer is built. Single
        // writes, because a piece of a batch this small owns one node, which then has no neighbour
        // to merge with.
        for n in (0..64).filter(|n| n % 4 != 0) {
            assert_eq!(index.remove(&(n * 10)), Some(n * 100));
        }
        let new: Vec<(u64, u64)> = (0..64).map(|n| (n * 10 + 5, n)).collect();
        assert_eq!(index.insert_many(&new), Ok(64));
    });
    // Checks that each place of the layer names a live node or one that is kept.
    index.check_invariants().unwrap();
    for n in 0..64 {
        assert_eq!(index.get(&(n * 10)), (n % 4 == 0).then_some(n * 100));
        assert_eq!(index.get(&(n * 10 + 5)), Some(n));
    }
    index.rebuild();
    assert_eq!(index.check_invariants().unwrap().nodes, index.places());
}

/// A batch that began on the old layer continues with it when another layer is swapped in.
#[test]
fn a_batch_outlives_the_layer_that_it_began_with() {
    let index = index((0..64).map(|n| n * 10));
    let schedule = Schedule::new();
    schedule.hold("batch", "pi.modify.before_insert");
    std::thread::scope(|scope| {
        let batch = scope.spawn(|| {
            let new: Vec<(u64, u64)> = (0..64).map(|n| (n * 10 + 5, n)).collect();
            schedule.enroll("batch", || index.insert_many(&new))
        });
        schedule.wait_held("batch", "pi.modify.before_insert");
        // The batch blocks neither readers nor rebuilds.
        index.rebuild();
        assert_eq!(index.get(&630), Some(6300));
        index.rebuild();
        schedule.release("batch", "pi.modify.before_insert");
        assert_eq!(batch.join().unwrap(), Ok(64));
    });
    assert_eq!(index.check_invariants().unwrap().entries, 128);
}

/// Writes continue while the layer is rebuilt, and end before the rebuild does. They make another
/// rebuild due.
#[test]
fn a_rebuild_that_is_due_when_another_ends_is_not_forgotten() {
    let index = Words::with(&PiOptions { node_entries: 4, ..PiOptions::default() });
    let schedule = Schedule::new();
    // The background thread that rebuilds has the role of the thread that started it.
    schedule.hold("writer", "pi.rebuild.after_scan");
    let insert = |key| assert_eq!(index.insert(&key, &key), Ok(None));
    schedule.enroll("writer", || (0..40).for_each(insert));
    schedule.wait_held("writer", "pi.rebuild.after_scan");
    (40..1000).for_each(insert);
    assert_eq!(index.places(), 1);
    schedule.release("writer", "pi.rebuild.after_scan");
    let rebuilt = |places| {
        let give_up = Instant::now() + PATIENCE;
        while index.places() < places {
            assert!(Instant::now() < give_up, "{} of {places} places", index.places());
            std::thread::yield_now();
        }
    };
    rebuilt(250);
    assert_eq!(index.check_invariants().unwrap().nodes, 250);
    // No rebuild is due, so the thread sleeps until one is.
    let sleeps = (0..40).any(|_| {
        schedule.hold("writer", "pi.rebuild.after_scan");
        std::thread::sleep(Duration::from_millis(20));
        let sleeps = !schedule.is_held("writer", "pi.rebuild.after_scan");
        schedule.release("writer", "pi.rebuild.after_scan");
        sleeps
    });
    assert!(sleeps, "it rebuilds all the time");
    (1000..2000).for_each(insert);
    rebuilt(400);
}

/// Dropping an index waits for the thread that rebuilds.
#[test]
fn an_index_is_dropped_while_it_is_rebuilt() {
    let index = Words::with(&PiOptions { node_entries: 4, ..PiOptions::default() });
    let (schedule, released) = (Schedule::new(), AtomicBool::new(false));
    schedule.hold("writer", "pi.rebuild.after_scan");
    schedule.enroll("writer", || index.put_all((0..100).map(|key| (key, key))));
    schedule.wait_held("writer", "pi.rebuild.after_scan");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(50));
            released.store(true, Ordering::Relaxed);
            schedule.release("writer", "pi.rebuild.after_scan");
        });
        drop(index);
        assert!(released.load(Ordering::Relaxed), "it is rebuilt");
    });
}

/// A scan is between two nodes when the first absorbs the second.
#[test]
fn an_ascending_scan_does_not_repeat_what_was_absorbed_behind_it() {
    let index = index((0..12).map(|n| n * 10));
    let scanned =
        held("pi.scan.before_next", || index.range(..).map(|(key, _)| key).collect::<Vec<_>>())
            .meanwhile(|| {
                index.remove_all([0, 10, 20, 50, 60]);
                assert_eq!(index.remove(&30), Some(300), "empty: takes the next one in");
            });
    let staying = [40, 70, 80, 90, 100, 110];
    assert!(scanned.windows(2).all(|pair| pair[0] < pair[1]), "{scanned:?}");
    assert!(staying.iter().all(|key| scanned.contains(key)), "{scanned:?}");
}

/// The node with which a scan would continue is absorbed. The node that absorbed it splits before
/// the scan copies it, and the new node begins with keys that the scan has passed.
#[test]
fn an_ascending_scan_does_not_go_back_to_what_was_split_off() {
    let index = index((0..12).map(|n| n * 10));
    let schedule = Schedule::new();
    schedule.hold("scan", "pi.scan.before_next");
    schedule.hold("scan", "pi.scan.found_again");
    let all = || index.range(..).map(|(key, _)| key).collect::<Vec<_>>();
    let scanned = std::thread::scope(|scope| {
        let scan = scope.spawn(|| schedule.enroll("scan", all));
        schedule.wait_held("scan", "pi.scan.before_next");
        index.remove_all([0, 10, 20, 50, 60]);
        assert_eq!(index.remove(&30), Some(300), "empty: takes the next one in");
        schedule.release("scan", "pi.scan.before_next");
        schedule.wait_held("scan", "pi.scan.found_again");
        (21..27).for_each(|key| _ = index.insert(&key, &key).unwrap());
        schedule.release("scan", "pi.scan.found_again");
        scan.join().unwrap()
    });
    assert_eq!(scanned, [0, 10, 20, 30, 40, 70, 80, 90, 100, 110]);
}

/// A node is split after its entries are copied and before its link is.
#[test]
fn a_scan_does_not_see_the_upper_half_twice() {
    let index = index([10, 20, 30, 40]);
    let scanned =
        held("pi.scan.before_link", || index.range(..).map(|(key, _)| key).collect::<Vec<_>>())
            .meanwhile(|| index.insert(&35, &350).unwrap());
    assert_eq!(scanned, [10, 20, 30, 35, 40]);
}

/// The next node of a descending scan is split before the scan reaches it.
#[test]
fn a_descending_scan_does_not_skip_what_was_split_off() {
    let index = index((0..12).map(|n| n * 10));
    let scanned = held("pi.scan.before_next", || index.scanned_keys(Direction::Descending))
        .meanwhile(|| {
            index.insert(&45, &1).unwrap();
            index.insert(&5, &1).unwrap();
        });
    let staying: Vec<u64> = (0..12).rev().map(|n| n * 10).collect();
    let staying_scanned: Vec<u64> = scanned.iter().copied().filter(|key| key % 10 == 0).collect();
    assert_eq!(staying_scanned, staying);
    assert!(scanned.windows(2).all(|pair| pair[0] > pair[1]), "{scanned:?}");
}

/// If a cut fell in the middle of a node's queries, the node would have two owners. One owner is
/// held between its search of the node and its insert; all other threads have finished by then.
#[test]
fn no_node_is_written_by_two_threads() {
    let index = index((0..8).map(|n| n * 10));
    let keys = [41, 42, 43, 44];
    let batch = keys.each_ref().map(|key| Query::<u64, u64>::Insert(key, key));
    let schedule = Schedule::new();
    schedule.hold("leader", "pi.modify.before_insert");
    schedule.hold("helper", "pi.enter.before_park");
    std::thread::scope(|scope| {
        let leader = scope.spawn(|| schedule.enroll("leader", || index.execute(&batch).map(drop)));
        schedule.wait_held("leader", "pi.modify.before_insert");
        // The helper waits for its turn and in the meantime works for the batch in progress.
        let helper = scope.spawn(|| schedule.enroll("helper", || index.insert(&1000, &1)));
        schedule.wait_held("helper", "pi.enter.before_park");
        schedule.release("helper", "pi.enter.before_park");
        schedule.release("leader", "pi.modify.before_insert");
        assert_eq!(leader.join().unwrap(), Ok(()));
        assert_eq!(helper.join().unwrap(), Ok(None));
    });
    index.check_invariants().unwrap();
    assert!(keys.iter().all(|key| index.get(key) == Some(*key)));
}

/// If the last node of an owner becomes empty, the owner must not absorb the first node of the next
/// owner, which is being written.
#[test]
fn an_owner_does_not_absorb_the_next_ones_node() {
    let index = index((0..16).map(|n| n * 10));
    let (gone, new) = ([0, 10, 20, 30], [41, 42, 43, 44]);
    let deletes = gone.iter().map(Query::<u64, u64>::Delete);
    let batch: Vec<_> = deletes.chain(new.iter().map(|key| Query::Insert(key, key))).collect();
    let schedule = Schedule::new();
    schedule.hold("leader", "pi.modify.before_remove");
    schedule.hold("leader", "pi.run.before_wait");
    schedule.hold("helper", "pi.modify.before_insert");
    std::thread::scope(|scope| {
        let leader = scope.spawn(|| schedule.enroll("leader", || index.execute(&batch).map(drop)));
        schedule.wait_held("leader", "pi.modify.before_remove");
        let helper = scope.spawn(|| schedule.enroll("helper", || index.insert(&1000, &1)));
        schedule.wait_held("helper", "pi.modify.before_insert");
        schedule.release("leader", "pi.modify.before_remove");
        schedule.wait_held("leader", "pi.run.before_wait");
        schedule.release("helper", "pi.modify.before_insert");
        schedule.release("leader", "pi.run.before_wait");
        assert_eq!(leader.join().unwrap(), Ok(()));
        assert_eq!(helper.join().unwrap(), Ok(None));
    });
    index.check_invariants().unwrap();
    assert!(new.iter().all(|key| index.get(key) == Some(*key)));
    assert!(gone.iter().all(|key| index.get(key).is_none()));
}

/// Runs `body` on a thread that belongs to `node`. Threads are assigned to NUMA nodes in turn.
fn on_node<R: Send>(topology: &Topology, node: usize, body: impl FnOnce() -> R + Send) -> R {
    let mut body = Some(body);
    loop {
        let done = std::thread::scope(|scope| {
            let run = || {
                let is_there = topology.node_of_this_thread() == node;
                is_there.then(|| body.take().map(|body| body())).flatten()
            };
            scope.spawn(run).join().unwrap()
        });
        if let Some(done) = done {
            return done;
        }
    }
}

/// Runs a batch of inserts with a leader of node 0, which is held in its first piece, and a helper
/// of node 1, which does everything else. Returns the numbers of pieces done by threads of their
/// own node and by other threads.
fn pieces_of(nodes: impl IntoIterator<Item = u64>) -> (usize, usize) {
    let topology = Topology::declared(2);
    let index = Words::with(&PiOptions {
        node_entries: 4,
        piece: 2,
        rebuild_threshold: usize::MAX,
        rebuild_in_background: false,
        topology: topology.clone(),
        ..PiOptions::default()
    });
    // 32 full data nodes, the first 16 of which belong to NUMA node 0.
    (0..128).for_each(|n| assert_eq!(index.insert(&(n * 10), &n), Ok(None)));
    index.rebuild();
    assert_eq!((index.places(), index.pieces_done()), (32, (0, 0)));
    let keys: Vec<u64> = nodes.into_iter().map(|node| node * 40 + 1).collect();
    let batch: Vec<_> = keys.iter().map(|key| Query::<u64, u64>::Insert(key, key)).collect();
    let schedule = Schedule::new();
    schedule.hold("leader", "pi.modify.before_insert");
    schedule.hold("helper", "pi.enter.before_park");
    std::thread::scope(|scope| {
        let (schedule, index, topology) = (&schedule, &index, &topology);
        let leader = scope.spawn(|| {
            on_node(topology, 0, || schedule.enroll("leader", || index.execute(&batch).map(drop)))
        });
        schedule.wait_held("leader", "pi.modify.before_insert");
        let helper = scope.spawn(move || {
            on_node(topology, 1, || schedule.enroll("helper", || index.insert(&100_000, &1)))
        });
        schedule.wait_held("helper", "pi.enter.before_park");
        schedule.release("helper", "pi.enter.before_park");
        schedule.release("leader", "pi.modify.before_insert");
        assert_eq!((leader.join().unwrap(), helper.join().unwrap()), (Ok(()), Ok(None)));
        assert!(keys.iter().all(|key| index.get(key) == Some(*key)));
        assert_eq!(index.check_invariants().unwrap().entries, 129 + keys.len());
        // The helper has left no other piece to the leader.
        index.pieces_done()
    })
}

/// A thread of the NUMA node that holds a piece's part of the keys does the piece, unless the
/// threads of that node are busy.
#[test]
fn pieces_are_done_by_threads_of_their_numa_node() {
    assert_eq!(pieces_of([0, 1].into_iter().chain(16..24)), (1 + 4, 0));
}

/// If all threads of a node are busy, threads of other nodes do its pieces after their own.
#[test]
fn work_of_a_numa_node_whose_threads_are_used_up_is_offloaded() {
    assert_eq!(pieces_of(0..10), (1, 4));
    assert_eq!(pieces_of((0..4).chain(20..24)), (1 + 2, 1));
}
