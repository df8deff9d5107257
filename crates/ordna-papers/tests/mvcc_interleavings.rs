//! Rare interleavings of the store with versions, forced. Those of the design's list of what breaks
//! in published implementations carry its number.
#![cfg(debug_assertions)]

use std::ops::{Bound, ControlFlow};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use ordna_base::sync::schedule::Schedule;
use ordna_base::{Direction, OrderedIndex};
use ordna_papers::nitro::{Options, Removed, Snapshot, Store, Write};

type Words = Store<u64, u64>;

/// A store on which the calling threads collect.
fn words() -> Words {
    Store::with_options(Options::new().collectors(0))
}

fn fill(store: &Words, keys: impl Iterator<Item = u64>, value: u64) {
    for key in keys {
        store.insert(&key, &value).unwrap();
    }
}

fn clear(store: &Words, keys: impl Iterator<Item = u64>) {
    for key in keys {
        store.remove(&key);
    }
}

fn walked(snapshot: &Snapshot<u64, u64>) -> Vec<(u64, u64)> {
    walked_in(snapshot, Direction::Ascending)
}

/// In ascending order, whichever way it was walked.
fn walked_in(snapshot: &Snapshot<u64, u64>, direction: Direction) -> Vec<(u64, u64)> {
    let mut walked = Vec::new();
    snapshot.visit(Bound::Unbounded, Bound::Unbounded, direction, |key, value| {
        walked.push((*key, *value));
        ControlFlow::Continue(())
    });
    if matches!(direction, Direction::Descending) {
        walked.reverse();
    }
    walked
}

/// Long enough for a thread that is not held back to do its part; a test that waits so long in vain
/// has shown that it is.
fn a_moment() {
    std::thread::sleep(Duration::from_millis(60));
}

/// 1: a walk that leaves and enters its reading section goes on behind the version it passed last,
/// whatever became of that meanwhile.
#[test]
fn n1_a_refreshed_walk_neither_repeats_nor_loses_nor_shows_what_is_dead() {
    refreshed_walk(Direction::Ascending);
    refreshed_walk(Direction::Descending);
}

fn refreshed_walk(direction: Direction) {
    const KEYS: u64 = 1500;
    let store = words();
    fill(&store, 0..KEYS, 0);
    let old = store.snapshot();
    // Several versions per key, so that a section ends between two versions of one.
    for round in 1..4 {
        fill(&store, (0..KEYS).filter(|key| key % 3 != 0), round);
        if round < 3 {
            clear(&store, (0..KEYS).step_by(7));
        }
    }
    let now = store.snapshot();
    let right: Vec<_> = store.range(..).collect();
    let schedule = Schedule::new();
    schedule.hold("walker", "mvcc.walk.refreshes");
    std::thread::scope(|scope| {
        let walker = scope.spawn(|| {
            schedule.enroll("walker", || [&now, &old, &now].map(|of| walked_in(of, direction)))
        });
        schedule.wait_held("walker", "mvcc.walk.refreshes");
        // Everything around the place changes, and what only the present state needs is collected.
        for key in 0..KEYS {
            store.insert(&key, &9).unwrap();
            store.remove(&key);
        }
        store.collect_garbage();
        schedule.release("walker", "mvcc.walk.refreshes");
        let [first, oldest, second] = walker.join().unwrap();
        assert!(first == right, "{} entries, not {}", first.len(), right.len());
        assert!(second == right);
        assert_eq!(oldest, (0..KEYS).map(|key| (key, 0)).collect::<Vec<_>>());
    });
    store.validate().unwrap();
}

/// 1: the version passed last was just exchanged for one of the same rank, which stands behind it.
#[test]
fn n1_a_refreshed_walk_meets_what_was_exchanged_where_it_left() {
    const LAST_OF_SECTION: u64 = 63;
    let store = words();
    fill(&store, 0..1000, 0);
    let schedule = Schedule::new();
    // The old version is unlinked logically, and still stands there.
    schedule.hold("writer", "skiplist.replace.after_swap");
    std::thread::scope(|scope| {
        scope.spawn(|| schedule.enroll("writer", || store.insert(&LAST_OF_SECTION, &1).unwrap()));
        schedule.wait_held("writer", "skiplist.replace.after_swap");
        let keys: Vec<u64> = live_walk(&store).into_iter().map(|(key, _)| key).collect();
        schedule.release("writer", "skiplist.replace.after_swap");
        assert_eq!(keys, (0..1000).collect::<Vec<_>>());
    });
}

/// 1: keys are inserted behind the place that the walk has found to go on from, and in front of the
/// key that it goes on with.
#[test]
fn n1_a_refreshed_walk_does_not_go_back_to_what_was_inserted_before_its_place() {
    const SECTION: u64 = 64;
    let store = words();
    fill(&store, 0..1000, 0);
    // The last ones of the first section, but for the very last.
    let gap = SECTION - 4..SECTION - 1;
    let schedule = Schedule::new();
    schedule.hold("walker", "mvcc.walk.refreshes");
    std::thread::scope(|scope| {
        let walker = scope.spawn(|| schedule.enroll("walker", || live_walk(&store)));
        schedule.wait_held("walker", "mvcc.walk.refreshes");
        clear(&store, gap.start..SECTION);
        schedule.hold("walker", "skiplist.locate.found_before");
        schedule.release("walker", "mvcc.walk.refreshes");
        schedule.wait_held("walker", "skiplist.locate.found_before");
        fill(&store, gap.clone(), 1);
        schedule.release("walker", "skiplist.locate.found_before");
        let walked = walker.join().unwrap();
        assert_eq!(walked, (0..1000).map(|key| (key, 0)).collect::<Vec<_>>());
    });
}

fn live_walk(store: &Words) -> Vec<(u64, u64)> {
    let mut walked = Vec::new();
    store.visit(Bound::Unbounded, Bound::Unbounded, Direction::Ascending, |key, value| {
        walked.push((*key, *value));
        ControlFlow::Continue(())
    });
    walked
}

/// 2: a version that is removed, and one whose snapshot goes, while its upper levels are linked.
#[test]
fn n2_a_version_is_removed_while_its_tower_is_being_linked() {
    for round in 0..20_u64 {
        let store = words();
        let schedule = Schedule::new();
        schedule.hold("inserter", "skiplist.link_upper.before_link");
        std::thread::scope(|scope| {
            let inserter = scope.spawn(|| {
                schedule.enroll("inserter", || {
                    fill(&store, (0..400).step_by(2), round);
                });
            });
            schedule.wait_held("inserter", "skiplist.link_upper.before_link");
            let half_linked = store.last().unwrap().0;
            assert_eq!(store.remove(&half_linked), Some(round));
            store.insert(&half_linked, &7).unwrap();
            schedule.release("inserter", "skiplist.link_upper.before_link");
            inserter.join().unwrap();
            assert_eq!(store.get(&half_linked), Some(7));
        });
        store.validate().unwrap();
        clear(&store, (0..400).step_by(2));
        assert_eq!(store.validate().unwrap().nodes, 0);
    }
}

/// 3: of two removers of an item that a snapshot sees, one wins, and it is collected once.
#[test]
fn n3_of_two_racing_removers_exactly_one_wins() {
    let store = words();
    store.insert(&5, &50).unwrap();
    let snapshot = store.snapshot();
    let schedule = Schedule::new();
    for role in ["a", "b"] {
        schedule.hold(role, "mvcc.remove.before_death");
    }
    let wins: Vec<Option<u64>> = std::thread::scope(|scope| {
        let removers = ["a", "b"].map(|role| {
            let (schedule, store) = (&schedule, &store);
            scope.spawn(move || schedule.enroll(role, || store.remove(&5)))
        });
        for role in ["a", "b"] {
            schedule.wait_held(role, "mvcc.remove.before_death");
        }
        for role in ["a", "b"] {
            schedule.release(role, "mvcc.remove.before_death");
        }
        removers.into_iter().map(|remover| remover.join().unwrap()).collect()
    });
    assert_eq!(wins.iter().flatten().count(), 1, "{wins:?}");
    let statistics = store.statistics();
    assert_eq!((statistics.items, statistics.dead), (0, 1));
    assert_eq!(snapshot.get(&5), Some(50));
    drop(snapshot);
    assert_eq!(store.validate().unwrap().nodes, 0);
}

/// 4: two snapshots of one term. The end of one is not the end of the other.
#[test]
fn n4_a_snapshot_that_shares_its_term_outlives_the_other() {
    let store = words();
    store.insert(&1, &10).unwrap();
    let schedule = Schedule::new();
    schedule.hold("writer", "mvcc.batch.between_writes");
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            schedule.enroll("writer", || {
                store.write_batch(&[Write::put(&2, &20), Write::put(&3, &30)]).unwrap();
            });
        });
        schedule.wait_held("writer", "mvcc.batch.between_writes");
        let one = store.snapshot();
        let other = store.snapshot();
        assert_eq!(one.term(), other.term(), "nothing can have been written between them");
        drop(one);
        schedule.release("writer", "mvcc.batch.between_writes");
        writer.join().unwrap();
        clear(&store, 1..4);
        store.collect_garbage();
        assert_eq!(walked(&other), [(1, 10), (2, 20), (3, 30)]);
        assert_eq!(other.len(), 3);
        // Clones share it too.
        let clone = other.clone();
        drop(other);
        store.collect_garbage();
        assert_eq!(walked(&clone), [(1, 10), (2, 20), (3, 30)]);
    });
    store.collect_garbage();
    assert_eq!(store.validate().unwrap().nodes, 0);
}

/// 5: a collector finishes while another snapshot ends.
#[test]
fn n5_a_trigger_that_meets_a_finishing_collector_is_not_lost() {
    let store = words();
    let schedule = Schedule::new();
    fill(&store, 0..2, 0);
    let snapshots: Vec<_> = (0..2)
        .map(|key| {
            let snapshot = store.snapshot();
            store.remove(&key);
            snapshot
        })
        .collect();
    let [first, second] = <[_; 2]>::try_from(snapshots).unwrap();
    schedule.hold("first", "mvcc.collect.examined");
    std::thread::scope(|scope| {
        let dropper = scope.spawn(|| schedule.enroll("first", || drop(first)));
        schedule.wait_held("first", "mvcc.collect.examined");
        // It has looked at the live set, and believes that key 1 is kept by the second snapshot.
        drop(second);
        schedule.release("first", "mvcc.collect.examined");
        dropper.join().unwrap();
    });
    assert_eq!(store.statistics().dead, 0);
    assert_eq!(store.validate().unwrap().nodes, 0);
}

/// 5: the same with the store's own threads: nobody else triggers anything.
#[test]
fn n5_background_collectors_lose_nothing() {
    let store: Words = Store::with_options(Options::new().collectors(2));
    for round in 0..200 {
        store.insert(&round, &0).unwrap();
        let snapshots = [store.snapshot(), store.snapshot()];
        store.remove(&round);
        std::thread::scope(|scope| {
            snapshots.into_iter().for_each(|snapshot| drop(scope.spawn(|| drop(snapshot))));
        });
    }
    let give_up = Instant::now() + Duration::from_secs(20);
    while store.statistics().dead > 0 {
        assert!(Instant::now() < give_up, "{:?}", store.statistics());
        std::thread::yield_now();
    }
    store.collect_garbage();
    assert_eq!(store.validate().unwrap().nodes, 0);
}

/// 5: the last snapshot that sees a version ends between the remover's look and its list.
#[test]
fn n5_a_snapshot_ends_while_a_version_it_sees_is_being_buried() {
    let store = words();
    store.insert(&1, &0).unwrap();
    let snapshot = store.snapshot();
    let schedule = Schedule::new();
    schedule.hold("remover", "mvcc.bury.seen");
    std::thread::scope(|scope| {
        let remover = scope.spawn(|| schedule.enroll("remover", || store.remove(&1)));
        schedule.wait_held("remover", "mvcc.bury.seen");
        drop(snapshot);
        schedule.release("remover", "mvcc.bury.seen");
        remover.join().unwrap();
    });
    assert_eq!(store.statistics().dead, 0, "nobody is left to trigger a collection");
    assert_eq!(store.validate().unwrap().nodes, 0);
}

/// 7: a batch is under way when the snapshot is taken. Who reads it waits, and sees all of it.
#[test]
fn n7_a_batch_under_way_is_wholly_in_the_snapshot() {
    let store = words();
    let schedule = Schedule::new();
    schedule.hold("writer", "mvcc.batch.between_writes");
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            schedule.enroll("writer", || {
                store.write_batch(&[Write::put(&1, &1), Write::put(&2, &1)]).unwrap();
            });
        });
        schedule.wait_held("writer", "mvcc.batch.between_writes");
        let snapshot = store.snapshot();
        let reader = scope.spawn({
            let snapshot = snapshot.clone();
            move || (snapshot.get(&1), snapshot.get(&2), walked(&snapshot).len())
        });
        a_moment();
        schedule.release("writer", "mvcc.batch.between_writes");
        writer.join().unwrap();
        assert_eq!(reader.join().unwrap(), (Some(1), Some(1), 2));
        assert_eq!(snapshot.len(), 2);
    });
}

/// 7: writes that begin after the snapshot wait for those that are in it: the order of writes is
/// the order of terms.
#[test]
fn n7_a_later_write_does_not_overtake_one_that_is_in_the_snapshot() {
    let store = words();
    let schedule = Schedule::new();
    schedule.hold("earlier", "mvcc.batch.between_writes");
    let overtaken = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let earlier = scope.spawn(|| {
            schedule.enroll("earlier", || {
                store.write_batch(&[Write::put(&1, &1), Write::put(&2, &1)]).unwrap();
            });
        });
        schedule.wait_held("earlier", "mvcc.batch.between_writes");
        let snapshot = store.snapshot();
        let later = scope.spawn(|| {
            // The same key: its versions would stand in the wrong order.
            store.insert(&2, &2).unwrap();
            overtaken.store(store.get(&1).is_none() || store.get(&2) == Some(1), Ordering::SeqCst);
            !schedule.is_held("earlier", "mvcc.batch.between_writes")
        });
        a_moment();
        schedule.release("earlier", "mvcc.batch.between_writes");
        earlier.join().unwrap();
        assert!(later.join().unwrap(), "it did not wait");
        assert!(!overtaken.load(Ordering::SeqCst));
        assert_eq!((snapshot.get(&2), store.get(&2)), (Some(1), Some(2)));
    });
    store.validate().unwrap();
}

/// 7: a writer that read the term before a snapshot and announced itself after it.
#[test]
fn n7_a_writer_that_comes_late_writes_in_the_new_term() {
    for point in ["store.enter.before_announcement", "store.enter.before_second_look"] {
        let store = words();
        store.insert(&1, &10).unwrap();
        let schedule = Schedule::new();
        schedule.hold("writer", point);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| schedule.enroll("writer", || store.insert(&1, &11)));
            schedule.wait_held("writer", point);
            let snapshot = store.snapshot();
            if point == "store.enter.before_announcement" {
                // Nobody is announced: the snapshot can be read, and must not change from now on.
                assert_eq!(snapshot.get(&1), Some(10));
            }
            schedule.release("writer", point);
            writer.join().unwrap().unwrap();
            assert_eq!((snapshot.get(&1), store.get(&1)), (Some(10), Some(11)));
        });
    }
}

/// A put and a removal of one version: one of them, not both, got its value.
#[test]
fn a_removal_waits_for_a_put_that_has_claimed_its_version() {
    let store = words();
    store.insert(&1, &10).unwrap();
    let _snapshot = store.snapshot();
    let schedule = Schedule::new();
    schedule.hold("putter", "mvcc.put.claimed");
    std::thread::scope(|scope| {
        let putter = scope.spawn(|| schedule.enroll("putter", || store.insert(&1, &11).unwrap()));
        schedule.wait_held("putter", "mvcc.put.claimed");
        assert_eq!(store.get(&1), Some(10), "claimed, not ended");
        assert_eq!(live_walk(&store), [(1, 10)]);
        let remover = scope.spawn(|| store.remove(&1));
        a_moment();
        schedule.release("putter", "mvcc.put.claimed");
        assert_eq!((putter.join().unwrap(), remover.join().unwrap()), (Some(10), Some(11)));
    });
    store.validate().unwrap();
}

/// While both stand there, the claimed version is the latest no more.
#[test]
fn a_claimed_version_with_one_behind_it_is_not_shown() {
    // Heights are random, and with them which version a search meets first.
    for _ in 0..20 {
        let store = words();
        store.insert(&1, &10).unwrap();
        let _snapshot = store.snapshot();
        let schedule = Schedule::new();
        schedule.hold("putter", "mvcc.put.inserted");
        std::thread::scope(|scope| {
            let putter = scope.spawn(|| schedule.enroll("putter", || store.insert(&1, &11)));
            schedule.wait_held("putter", "mvcc.put.inserted");
            assert_eq!(store.get(&1), Some(11));
            assert_eq!(live_walk(&store), [(1, 11)]);
            assert_eq!(store.last(), Some((1, 11)));
            // Removed in the same term: the claimed one must not rise again.
            assert_eq!(store.remove(&1), Some(11));
            assert_eq!(store.get(&1), None);
            assert_eq!(live_walk(&store), []);
            schedule.release("putter", "mvcc.put.inserted");
            assert_eq!(putter.join().unwrap(), Ok(Some(10)));
        });
        assert_eq!(store.get(&1), None);
        store.validate().unwrap();
    }
}

/// The version behind a claimed one comes before the walk, and goes before the walk looks there.
#[test]
fn a_claimed_version_does_not_rise_when_the_one_behind_it_is_removed() {
    let store = words();
    store.insert(&5, &0).unwrap();
    let _snapshot = store.snapshot();
    let schedule = Schedule::new();
    schedule.hold("writer", "mvcc.put.inserted");
    schedule.hold("walker", "mvcc.read.claimed");
    std::thread::scope(|scope| {
        scope.spawn(|| schedule.enroll("writer", || store.insert(&5, &1).unwrap()));
        schedule.wait_held("writer", "mvcc.put.inserted");
        assert_eq!(store.get(&5), Some(1), "the old value is gone before the walk begins");
        let walker = scope.spawn(|| schedule.enroll("walker", || live_walk(&store)));
        schedule.wait_held("walker", "mvcc.read.claimed");
        assert_eq!(store.remove(&5), Some(1));
        schedule.release("walker", "mvcc.read.claimed");
        let walked = walker.join().unwrap();
        schedule.release("writer", "mvcc.put.inserted");
        assert!(walked.is_empty() || walked == [(5, 1)], "{walked:?}");
    });
    store.validate().unwrap();
}

/// A writer whose list of dead versions is long has them examined after its write, not within it.
#[test]
fn nobody_waits_for_a_writer_that_collects() {
    let store = words();
    fill(&store, 0..600, 0);
    let _old = store.snapshot();
    let schedule = Schedule::new();
    schedule.hold("writer", "mvcc.collect.examined");
    std::thread::scope(|scope| {
        scope.spawn(|| schedule.enroll("writer", || fill(&store, 0..600, 1)));
        schedule.wait_held("writer", "mvcc.collect.examined");
        let (tell, told) = mpsc::channel();
        let store = &store;
        scope.spawn(move || {
            let snapshot = store.snapshot();
            store.insert(&1000, &1).unwrap();
            tell.send(snapshot.get(&0)).unwrap();
        });
        let read = told.recv_timeout(Duration::from_secs(20));
        schedule.release("writer", "mvcc.collect.examined");
        assert_eq!(read, Ok(Some(1)), "it waited for the collection");
    });
    store.validate().unwrap();
}

/// A key that is overwritten all the time is never absent: what was the last version when it was
/// found may be dead when it is looked at.
#[test]
fn a_read_goes_on_from_a_version_that_was_overwritten_under_it() {
    let mut forced = 0;
    // Only reads that meet an old version first come to the point: heights are random.
    for _ in 0..40 {
        let store = words();
        store.insert(&1, &10).unwrap();
        let _oldest = store.snapshot();
        store.insert(&1, &11).unwrap();
        let _old = store.snapshot();
        let schedule = Schedule::new();
        schedule.hold("reader", "mvcc.get.found_last");
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let found = schedule.enroll("reader", || store.get(&1));
                done.store(true, Ordering::SeqCst);
                found
            });
            while !done.load(Ordering::SeqCst) && !schedule.is_held("reader", "mvcc.get.found_last")
            {
                std::thread::yield_now();
            }
            forced += u64::from(!done.load(Ordering::SeqCst));
            store.insert(&1, &12).unwrap();
            schedule.release("reader", "mvcc.get.found_last");
            let found = reader.join().unwrap();
            assert!([Some(11), Some(12)].contains(&found), "{found:?}");
        });
    }
    assert!(forced > 0, "the interleaving never happened");
}

/// A conditional write that finds nothing and does nothing: nothing must have been there.
#[test]
fn a_write_that_does_nothing_saw_that_nothing_was_there() {
    let store = words();
    store.insert(&1, &10).unwrap();
    let _snapshot = store.snapshot();
    let schedule = Schedule::new();
    schedule.hold("updater", "mvcc.apply.found_older");
    std::thread::scope(|scope| {
        let updater =
            scope.spawn(|| schedule.enroll("updater", || store.update(&1, |value| value + 1)));
        schedule.wait_held("updater", "mvcc.apply.found_older");
        assert_eq!(store.insert(&1, &20), Ok(Some(10)));
        schedule.release("updater", "mvcc.apply.found_older");
        assert_eq!(updater.join().unwrap(), Ok(Some(21)));
    });
    assert_eq!(store.get(&1), Some(21));
    store.validate().unwrap();
}

/// A store whose clock stands still, and the hands of the clock.
fn with_clock(options: Options) -> (Words, Arc<AtomicU64>) {
    let clock = Arc::new(AtomicU64::new(0));
    let hands = Arc::clone(&clock);
    (Store::with_options(options.clock(move || hands.load(Ordering::SeqCst))), clock)
}

/// Has a collector of the store's own remove a version, and stand in the hook until what this returns is
/// dropped.
fn hold_collector(store: &Words) -> mpsc::Sender<()> {
    store.insert(&1000, &0).unwrap();
    let snapshot = store.snapshot();
    store.remove(&1000);
    let (tell, told) = mpsc::channel();
    let (go_on, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    store.on_removal(Some(move |_: &Removed<'_, u64, u64>| {
        // Nobody listens any more after the first.
        let _ = tell.send(());
        // Ends when the other side is dropped.
        let _ = wait.lock().unwrap().recv();
    }));
    drop(snapshot);
    told.recv_timeout(Duration::from_secs(20)).expect("the collector removes it");
    go_on
}

/// Who collects while another is about to remove what has expired finds it gone.
#[test]
fn who_collects_waits_for_who_removes_expired_keys() {
    let (store, clock) = with_clock(Options::new().collectors(0));
    store.insert_until(&1, &0, 10).unwrap();
    clock.store(10, Ordering::SeqCst);
    let schedule = Schedule::new();
    schedule.hold("first", "mvcc.expire.due");
    std::thread::scope(|scope| {
        scope.spawn(|| schedule.enroll("first", || store.collect_garbage()));
        schedule.wait_held("first", "mvcc.expire.due");
        let second = scope.spawn(|| {
            store.collect_garbage();
            store.statistics().items
        });
        a_moment();
        schedule.release("first", "mvcc.expire.due");
        assert_eq!(second.join().unwrap(), 0, "it did not wait");
    });
    store.validate().unwrap();
}

/// A collector looks for the next deadline while another has set it to none, to look for what is due:
/// it is woken for the deadline all the same.
#[test]
fn a_collector_does_not_sleep_beyond_a_deadline() {
    // Hours away.
    const FAR: u64 = 10_000_000;
    let (store, clock) = with_clock(Options::new().collectors(1));
    let collector = hold_collector(&store);
    store.insert_until(&1, &0, FAR).unwrap();
    store.insert_until(&2, &0, FAR + 20).unwrap();
    clock.store(FAR, Ordering::SeqCst);
    let schedule = Schedule::new();
    schedule.hold("caller", "store.due.looks");
    std::thread::scope(|scope| {
        scope.spawn(|| schedule.enroll("caller", || store.collect_garbage()));
        schedule.wait_held("caller", "store.due.looks");
        // It is done with its batch, and looks at the deadlines.
        drop(collector);
        a_moment();
        schedule.release("caller", "store.due.looks");
    });
    clock.store(FAR + 20, Ordering::SeqCst);
    let give_up = Instant::now() + Duration::from_secs(20);
    while store.statistics().items > 0 {
        assert!(Instant::now() < give_up, "{:?}", store.statistics());
        std::thread::yield_now();
    }
}

/// An audit counts what a collector of the store's own has in hand.
#[test]
fn an_audit_waits_for_the_collectors() {
    let store: Words = Store::with_options(Options::new().collectors(1));
    let collector = hold_collector(&store);
    std::thread::scope(|scope| {
        let audit = scope.spawn(|| store.validate());
        a_moment();
        drop(collector);
        assert_eq!(audit.join().unwrap().map(|audit| audit.nodes), Ok(0));
    });
}
