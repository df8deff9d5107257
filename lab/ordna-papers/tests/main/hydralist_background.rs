//! HydraList with its default options: background threads update the search layers, or they follow
//! on demand. There is one search layer per declared NUMA node.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use ordna_base::OrderedIndex;
use ordna_papers::HydraList;
use ordna_papers::hydralist::layer::ArtLayer;
use ordna_papers::hydralist::{HydraOptions, Update};
use ordna_papers::pi::{Pi, PiOptions};
use ordna_papers::search_layer::{AnchorAddress, LayerStep, SearchLayer};
use ordna_papers::topology::Topology;
use ordna_papers::wormhole::layer::TableLayer;
use ordna_testkit::shorthand::Shorthand as _;

type Small<K, V> = HydraList<K, V, ArtLayer<K>, 4>;

/// Maximum duration of an operation that must not wait.
const SOON: Duration = Duration::from_secs(30);

fn nodes(nodes: usize) -> HydraOptions {
    HydraOptions { topology: Topology::declared(nodes), ..HydraOptions::default() }
}

fn tight() -> HydraOptions {
    HydraOptions { lag_limit: 2, ..HydraOptions::default() }
}

ordna_testkit::conformance_in_background! {
    mod normal_u64_words: HydraList<u64, u64> = HydraList::new();
    mod normal_bytes_bytes: HydraList<[u8], [u8]> = HydraList::new();
    mod small_u64_words: Small<u64, u64> = HydraList::new();
    mod small_bytes_bytes: Small<[u8], [u8]> = HydraList::new();
    mod four_nodes_u64_words: Small<u64, u64> = HydraList::with(&nodes(4));
    mod tight_bytes_words: Small<[u8], u64> = HydraList::with(&tight());
}

/// Fails if `body` does not end.
fn must_end(body: impl FnOnce() + Send + 'static) {
    let (done, ended) = channel();
    let thread = std::thread::spawn(move || {
        body();
        let _ = done.send(());
    });
    match ended.recv_timeout(SOON) {
        Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("it does not end"),
        _ => thread.join().expect("it failed"),
    }
}

#[test]
fn each_thread_reads_the_replica_of_its_node() {
    // One read in 64 is counted, and stands for all of them.
    const READS: usize = 640;
    let options = nodes(4);
    let index: Small<u64, u64> = HydraList::with(&options);
    index.put_all((0..1000).map(|n| (n, n)));
    let mut homes = HashSet::new();
    // One thread at a time, so that the counts during its reads belong to it.
    for _ in 0..16 {
        let before = index.statistics().reads;
        let home = std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                (0..READS as u64).for_each(|n| assert_eq!(index.get(&n), Some(n)));
                options.topology.node_of_this_thread()
            });
            reader.join().unwrap()
        });
        let mut expected = before;
        expected[home] += READS;
        assert_eq!(index.statistics().reads, expected, "a thread of node {home}");
        homes.insert(home);
    }
    assert_eq!(homes.len(), 4);
}

/// Threads that apply updates run on the node of their search layer. Workers of PI do the same.
#[cfg(target_os = "linux")]
#[test]
fn threads_in_the_background_are_bound_to_their_node() {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let bound_to = |status: &str| -> String {
        let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        line.unwrap().trim().to_owned()
    };
    if !bound_to(&status).starts_with("0-") {
        eprintln!("not tested: the first two processors are not both allowed");
        return;
    }
    let topology = Topology::with_processors(&[vec![0], vec![1]]);
    let options = HydraOptions { topology: topology.clone(), ..HydraOptions::default() };
    let index: Small<u64, u64> = HydraList::with(&options);
    let batches: Pi<u64, u64> =
        Pi::with(&PiOptions { workers: 2, topology, ..PiOptions::default() });
    for (name, cpu) in
        [("hydralist", "0"), ("hydralist", "1"), ("ordna-pi-0", "0"), ("ordna-pi-1", "1")]
    {
        // Threads of other tests have the same names and are not bound.
        let is_there = || {
            let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
            tasks.into_iter().any(|task| {
                let read =
                    |file| std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
                let status = read("status");
                read("comm").trim() == name && !status.is_empty() && bound_to(&status) == cpu
            })
        };
        let began = std::time::Instant::now();
        while !is_there() {
            assert!(began.elapsed().as_secs() < 20, "no {name} is bound to processor {cpu}");
            std::thread::yield_now();
        }
    }
    index.put_all((0..1000).map(|n| (n, n)));
    batches.put_all((0..1000).map(|n| (n, n)));
    assert_eq!((index.get(&7), batches.get(&7)), (Some(7), Some(7)));
}

#[test]
fn all_replicas_are_read_and_converge() {
    let index: Small<u64, u64> = HydraList::with(&nodes(4));
    std::thread::scope(|scope| {
        for thread in 0..16_u64 {
            let index = &index;
            scope.spawn(move || {
                index.put_all((0..500).map(|n| (n * 16 + thread, n)));
                index.remove_all((0..500).step_by(3).map(|n| n * 16 + thread));
            });
        }
    });
    let report = index.check_invariants().unwrap();
    assert_eq!(report.entries, 16 * 333);
    let statistics = index.statistics();
    assert_eq!(statistics.reads.len(), 4);
    assert!(statistics.reads.iter().all(|reads| *reads > 0), "{:?}", statistics.reads);
    assert_eq!(statistics.lag, 0);
}

#[test]
fn an_idle_index_is_brought_up_to_date_by_itself() {
    must_end(|| {
        let index: Small<u64, u64> = HydraList::new();
        for round in 0..20 {
            index.put_all((0..50).map(|n| (round * 100 + n, n)));
            while index.statistics().lag > 0 {
                std::thread::yield_now();
            }
        }
        assert!(index.statistics().splits > 100);
    });
}

/// The search layer contains no node, so everything is found by scanning.
#[test]
fn a_search_layer_that_never_follows_does_not_matter() {
    let options =
        HydraOptions { update: Update::OnDemand, lag_limit: usize::MAX, ..HydraOptions::default() };
    let index: Small<u64, u64> = HydraList::with(&options);
    index.put_all((0..300).map(|n| (n * 7 % 300, n)));
    for n in 0..300 {
        assert_eq!(index.get(&(n * 7 % 300)), Some(n));
    }
    assert_eq!(index.floor(&1000).unwrap().0, 299);
    assert_eq!(index.range(..).count(), 300);
    assert_eq!(index.range(..).rev().count(), 300);
    for n in 0..300 {
        assert_eq!(index.remove(&(n * 7 % 300)), Some(n));
    }
    assert!(index.statistics().lag > 100);
    index.check_invariants().unwrap();
}

/// PITFALLS, HydraList 1: the search layer leads to nodes that were merged into others.
#[test]
fn a_stale_jump_node_hands_on() {
    must_end(|| {
        let options = HydraOptions {
            update: Update::OnDemand,
            lag_limit: usize::MAX,
            ..HydraOptions::default()
        };
        let index: Small<u64, u64> = HydraList::with(&options);
        index.put_all((0..200).map(|n| (n, n)));
        index.follow();
        // Most keys are removed, and with them nearly all nodes; the layer still has their anchors.
        for n in (0..200).filter(|n| n % 50 != 0) {
            assert_eq!(index.remove(&n), Some(n));
        }
        assert!(index.statistics().merges > 20);
        for n in 0..200 {
            assert_eq!(index.get(&n), (n % 50 == 0).then_some(n), "{n}");
        }
        for n in 0..200 {
            index.insert(&n, &(n + 1)).unwrap();
            assert_eq!(OrderedIndex::update(&index, &n, |value| value + 1), Ok(Some(n + 2)));
        }
        let keys: Vec<u64> = (0..200).collect();
        assert_eq!(index.values(&keys), (2..202).map(Some).collect::<Vec<_>>());
        assert_eq!(index.range(..).rev().count(), 200);
        index.check_invariants().unwrap();
    });
}

/// PITFALLS, HydraList 5: an updater stalls. Results are correct, the lag is bounded, and the
/// writers continue when the updater does.
#[test]
fn a_stalled_updater_holds_writers_back_and_loses_nothing() {
    const LIMIT: usize = 10;
    const WRITERS: u64 = 3;
    let options =
        HydraOptions { update: Update::OnDemand, lag_limit: LIMIT, ..HydraOptions::default() };
    let index: Arc<Small<u64, u64>> = Arc::new(HydraList::with(&options));
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let index = index.clone();
            std::thread::spawn(move || {
                index.put_all((0..2000).map(|n| (n * WRITERS + writer, n)));
            })
        })
        .collect();
    must_end({
        let index = index.clone();
        move || {
            while index.statistics().stalls < WRITERS as usize {
                std::thread::yield_now();
            }
        }
    });
    // All writers wait. Each of them entered while the lag was within the limit, and added one
    // line.
    let statistics = index.statistics();
    assert!(statistics.lag <= LIMIT + WRITERS as usize, "{statistics:?}");
    let there: Vec<(u64, u64)> = index.range(..).collect();
    assert_eq!(there.len(), index.approximate_len());
    for (key, value) in &there {
        assert_eq!((index.get(key), key / WRITERS), (Some(*value), *value));
    }
    must_end({
        let index = index.clone();
        move || {
            while writers.iter().any(|writer| !writer.is_finished()) {
                index.follow();
                let lag = index.statistics().lag;
                assert!(lag <= LIMIT + WRITERS as usize, "{lag}");
            }
            writers.into_iter().for_each(|writer| writer.join().unwrap());
        }
    });
    assert_eq!(index.check_invariants().unwrap().entries, 2000 * WRITERS as usize);
}

#[test]
fn a_writer_waits_for_the_thread_in_the_background() {
    let options =
        HydraOptions { update: Update::Background, lag_limit: 0, ..HydraOptions::default() };
    let index: Small<u64, u64> = HydraList::with(&options);
    must_end(move || {
        for n in 0..1000 {
            index.insert(&n, &n).unwrap();
            assert_eq!(index.statistics().lag, 0, "after the insert of {n}");
        }
        assert!(index.statistics().stalls > 0);
    });
}

/// Threads stop on drop, even if updates are still logged.
#[test]
fn an_index_is_dropped_right_after_its_last_write() {
    for round in 0..200 {
        let index: Small<[u8], [u8]> = HydraList::with(&nodes(1 + round % 3));
        std::thread::scope(|scope| {
            for writer in 0..2_u8 {
                let index = &index;
                scope.spawn(move || {
                    for n in 0..60_u8 {
                        index.insert(&[n, writer], &[n; 30]).unwrap();
                    }
                    for n in 0..50_u8 {
                        index.remove(&[n, writer]);
                    }
                });
            }
        });
    }
}

/// A search layer that panics in updates of the anchor `AT` or, if that is 0, in every fifth one.
#[derive(Default)]
struct Fragile<L, const AT: u64> {
    inner: L,
    steps: AtomicUsize,
}

#[expect(unsafe_code, reason = "promises what places it tells")]
// SAFETY: the addresses are those of the inner layer, and it panics before an update, not after.
unsafe impl<L: SearchLayer<u64>, const AT: u64> SearchLayer<u64> for Fragile<L, AT> {
    fn jump(&self, key: &u64) -> Option<AnchorAddress> {
        self.inner.jump(key)
    }

    unsafe fn apply(&self, anchor: &u64, step: LayerStep) -> Option<AnchorAddress> {
        let fifth = self.steps.fetch_add(1, Ordering::Relaxed) % 5 == 4;
        assert!(if AT == 0 { !fifth } else { *anchor != AT }, "this panic is part of the test");
        // SAFETY: the caller upholds the contract.
        unsafe { self.inner.apply(anchor, step) }
    }

    fn publish(&self, left: impl FnMut(AnchorAddress)) {
        self.inner.publish(left);
    }

    fn for_each(&self, each: impl FnMut(&u64, AnchorAddress)) {
        self.inner.for_each(each);
    }

    fn memory_usage(&self) -> usize {
        self.inner.memory_usage()
    }
}

/// A panic in the updater loses an update, but the updater continues, and so do writers under
/// back-pressure.
#[test]
fn an_updater_that_panics_leaves_nobody_waiting() {
    panics::<ArtLayer<u64>>();
    panics::<TableLayer<u64>>();
}

fn panics<L: SearchLayer<u64> + 'static>() {
    for replicas in [1, 2] {
        must_end(move || {
            let options = HydraOptions { lag_limit: 2, ..nodes(replicas) };
            let index: HydraList<u64, u64, Fragile<L, 0>, 4> = HydraList::with(&options);
            index.put_all((0..400).map(|n| (n * 7 % 400, n)));
            for n in (0..400).filter(|n| n % 3 == 0) {
                assert!(index.remove(&n).is_some());
            }
            while index.statistics().lag > 0 {
                std::thread::yield_now();
            }
            for n in 0..400 {
                assert_eq!(index.get(&n).is_some(), n % 3 != 0, "{n}");
            }
            assert_eq!(index.range(..).count(), 266);
            let statistics = index.statistics();
            assert!(statistics.skipped > 20, "{statistics:?}");
            // The drop applies the remaining updates, despite the panic.
            let on_demand =
                HydraOptions { update: Update::OnDemand, lag_limit: 1000, ..nodes(replicas) };
            let index: HydraList<u64, u64, Fragile<L, 0>, 4> = HydraList::with(&on_demand);
            index.put_all((0..400).map(|n| (n, n)));
            assert!(index.statistics().lag > 20);
        });
    }
}

/// A panic in the very last update does not prevent the publication of those before it. The layer
/// collects updates until they are published.
#[test]
fn steps_before_a_panic_in_the_last_one_are_published() {
    for (replicas, update) in
        [(1, Update::Background), (2, Update::Background), (1, Update::OnDemand)]
    {
        must_end(move || {
            let options = HydraOptions { update, ..nodes(replicas) };
            let index: HydraList<u64, u64, Fragile<TableLayer<u64>, 12>, 4> =
                HydraList::with(&options);
            // Four keys per node: the updates are those of 4, 8 and 12.
            index.put_all((0..=12).map(|n| (n, n)));
            if update == Update::OnDemand {
                assert!(catch_unwind(AssertUnwindSafe(|| index.follow())).is_err());
                assert_eq!(index.statistics().lag, 1);
                index.follow();
            }
            while index.statistics().lag > 0 {
                std::thread::yield_now();
            }
            let before = index.statistics().jumps[0];
            assert_eq!(index.insert(&9, &0), Ok(Some(9)));
            let statistics = index.statistics();
            assert_eq!(statistics.jumps[0], before + 1, "{statistics:?}");
            assert_eq!(statistics.skipped, replicas);
        });
    }
}

/// The threads do no work while no thread writes.
#[test]
fn threads_of_an_idle_index_sleep() {
    let index: Small<u64, u64> = HydraList::with(&nodes(3));
    index.put_all((0..1000).map(|n| (n, n)));
    index.check_invariants().unwrap();
    // After the last round, each of them sleeps again.
    let mut before = index.statistics().looks;
    let idle = (0..20).any(|_| {
        std::thread::sleep(Duration::from_millis(50));
        let looks = index.statistics().looks;
        std::mem::replace(&mut before, looks) == looks
    });
    assert!(idle, "they look for work all the time");
    assert!(before > 3);
}

/// Inserts with ascending keys leave full nodes.
#[test]
fn an_ascending_load_fills_its_nodes() {
    let index: HydraList<u64, u64> = HydraList::new();
    index.put_all((0..64 * 100).map(|n| (n, n)));
    assert_eq!(index.check_invariants().unwrap().nodes, 100);
}
