//! PI's rebuilds concurrent with batches, under a random scheduler that switches threads at every
//! atomic operation and every lock.
//!
//! `cargo xtask shuttle` runs it. The collector is not modelled: it considers all threads as one,
//! so it frees late and never early. The model checks the transfer of layers, dead nodes and turns:
//! every answer, and the whole structure at the end.

use std::ops::Bound;

use ordna_base::OrderedIndex;
use ordna_papers::Pi;
use ordna_papers::pi::{Answer, PiOptions, Query};
use shuttle::sync::Arc;
use shuttle::thread;

type Words = Pi<u64, u64>;

/// Nodes of four entries and pieces of two queries, so that there are many splits, merges and cuts.
/// Only the test's own threads rebuild, because the scheduler does not control those of the system.
fn index() -> Arc<Words> {
    let index = Words::with(&PiOptions {
        node_entries: 4,
        piece: 2,
        rebuild_threshold: usize::MAX / 1000,
        rebuild_in_background: false,
        ..PiOptions::default()
    });
    (0..24).for_each(|n| assert_eq!(index.insert(&(n * 10), &n), Ok(None)));
    index.rebuild();
    Arc::new(index)
}

/// Deletes a node's worth of keys of one kind, and inserts twice as many next to them.
fn batch(index: &Words, kind: u64) {
    let gone: Vec<u64> = (0..24).filter(|n| n % 2 == kind).map(|n| n * 10).collect();
    let new: Vec<u64> = gone.iter().flat_map(|key| [key + 3 + kind, key + 5 + kind]).collect();
    let deletes = gone.iter().map(Query::<u64, u64>::Delete);
    let inserts = new.iter().map(|key| Query::Insert(key, key));
    let all = Query::Range { lower: Bound::Unbounded, upper: Bound::Unbounded, limit: 1000 };
    let queries: Vec<_> = deletes.chain(inserts).chain([all]).collect();
    let mut answers = index.execute(&queries).unwrap();
    // The range was submitted last, so it sees the writes of this batch.
    let Some(Answer::Entries(seen)) = answers.pop() else { panic!("no entries") };
    let seen: Vec<u64> = seen.iter().map(|(key, _)| *key).collect();
    assert!(seen.is_sorted() && new.iter().all(|key| seen.contains(key)), "{seen:?}");
    assert!(gone.iter().all(|key| !seen.contains(key)), "{seen:?}");
    for (at, answer) in answers.into_iter().enumerate() {
        let before = gone.get(at).map(|key| key / 10);
        assert!(matches!(answer, Answer::Value(found) if found == before), "{at}");
    }
}

fn race() {
    let index = index();
    let batches = (0..2).map(|kind| {
        let index = index.clone();
        thread::spawn(move || batch(&index, kind))
    });
    let mut threads: Vec<_> = batches.collect();
    let rebuilt = index.clone();
    threads.push(thread::spawn(move || (0..2).for_each(|_| rebuilt.rebuild())));
    let read = index.clone();
    threads.push(thread::spawn(move || {
        for key in [1000, 234, 0] {
            // A key that never exists, one that may exist, and one that exists until it is deleted.
            let found = read.get(&key);
            let possible: &[Option<u64>] = if key == 1000 { &[None] } else { &[None, Some(key)] };
            assert!(possible.contains(&found), "{key}: {found:?}");
        }
        let keys: Vec<u64> = read.range(..).map(|(key, _)| key).collect();
        assert!(keys.windows(2).all(|pair| pair[0] < pair[1]), "{keys:?}");
    }));
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    // No thread writes any more: every place of the layer is a live node or one that is kept.
    assert_eq!(index.check_invariants().unwrap().entries, 48);
    index.rebuild();
    assert_eq!(index.check_invariants().unwrap().nodes, index.places());
    for n in 0..24 {
        let (gone, kind) = (n * 10, n % 2);
        assert_eq!(index.get(&gone), None);
        for key in [gone + 3 + kind, gone + 5 + kind] {
            assert_eq!(index.get(&key), Some(key));
        }
    }
}

/// Random schedules.
#[test]
fn rebuilds_raced_with_batches_at_random() {
    shuttle::check_random(race, 300);
}

/// Schedules with few, badly placed switches (probabilistic concurrency testing).
#[test]
fn rebuilds_raced_with_batches_with_few_switches() {
    shuttle::check_pct(race, 300, 3);
}
