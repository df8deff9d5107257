//! Tests of PI's batches: compared with the oracle, cut into pieces, and concurrent with each other
//! and with rebuilds.

use std::borrow::Borrow;
use std::fmt::Write as _;
use std::ops::{Bound, ControlFlow};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use ordna_base::Locked;
use ordna_base::{Direction, Entries, Error, Key, OrderedIndex, Value};
use ordna_papers::Pi;
use ordna_papers::pi::{Answer, PiOptions, Query};
use ordna_testkit::kinds::{TestKey, TestValue};
use ordna_testkit::random::Random;
use ordna_testkit::shorthand::Shorthand as _;

/// Nodes of four entries and pieces of three queries, so that every batch is cut, splits and
/// merges.
fn small() -> PiOptions {
    PiOptions { node_entries: 4, piece: 3, rebuild_in_background: false, ..PiOptions::default() }
}

/// A query whose keys are numbers.
#[derive(Debug, Clone, PartialEq)]
enum Op {
    Search(u64),
    Insert(u64, u64),
    Delete(u64),
    Range(Bound<u64>, Bound<u64>, usize),
}

fn bound<K: TestKey + ?Sized>(number: &Bound<u64>) -> Bound<K::Owned> {
    number.as_ref().map(|n| K::number(*n))
}

/// Returns the answers of the oracle, which executes one query after the other.
fn expected<K: TestKey + ?Sized, V: TestValue + ?Sized>(
    oracle: &Locked<K, V>,
    ops: &[Op],
) -> String {
    let mut text = String::new();
    for op in ops {
        let answer: Answer<K, V> = match op {
            Op::Search(n) => Answer::Value(oracle.get(K::number(*n).borrow())),
            Op::Insert(n, word) => Answer::Value(
                oracle.insert(K::number(*n).borrow(), V::dress(*word).borrow()).unwrap(),
            ),
            Op::Delete(n) => Answer::Value(oracle.remove(K::number(*n).borrow())),
            Op::Range(lower, upper, limit) => {
                let (lower, upper) = (bound::<K>(lower), bound::<K>(upper));
                let mut entries = Entries::new();
                oracle.collect(
                    lower.as_ref().map(Borrow::borrow),
                    upper.as_ref().map(Borrow::borrow),
                    Direction::Ascending,
                    *limit,
                    &mut entries,
                );
                Answer::Entries(entries)
            }
        };
        writeln!(text, "{op:?} {answer:?}").unwrap();
    }
    text
}

/// Returns the answers of one batch with all queries.
fn answered<K: TestKey + ?Sized, V: TestValue + ?Sized>(index: &Pi<K, V>, ops: &[Op]) -> String {
    struct Owned<K: Key + ?Sized, V: Value + ?Sized>(
        Bound<K::Owned>,
        Bound<K::Owned>,
        Option<V::Owned>,
    );
    let owned: Vec<Owned<K, V>> = ops
        .iter()
        .map(|op| match op {
            Op::Search(n) | Op::Delete(n) => {
                Owned(Bound::Included(K::number(*n)), Bound::Unbounded, None)
            }
            Op::Insert(n, word) => {
                Owned(Bound::Included(K::number(*n)), Bound::Unbounded, Some(V::dress(*word)))
            }
            Op::Range(lower, upper, _) => Owned(bound::<K>(lower), bound::<K>(upper), None),
        })
        .collect();
    let queries: Vec<Query<'_, K, V>> = ops
        .iter()
        .zip(&owned)
        .map(|(op, Owned(lower, upper, value))| {
            let lower = lower.as_ref().map(Borrow::borrow);
            let upper = upper.as_ref().map(Borrow::borrow);
            match (op, lower, value) {
                (Op::Search(_), Bound::Included(key), _) => Query::Search(key),
                (Op::Delete(_), Bound::Included(key), _) => Query::Delete(key),
                (Op::Insert(..), Bound::Included(key), Some(value)) => {
                    Query::Insert(key, value.borrow())
                }
                (Op::Range(_, _, limit), ..) => Query::Range { lower, upper, limit: *limit },
                _ => unreachable!("points have a key"),
            }
        })
        .collect();
    let mut text = String::new();
    for (op, answer) in ops.iter().zip(index.execute(&queries).unwrap()) {
        writeln!(text, "{op:?} {answer:?}").unwrap();
    }
    text
}

fn ops(random: &mut Random, keys: u64, count: usize) -> Vec<Op> {
    let end = |random: &mut Random| match random.below(5) {
        0 => Bound::Unbounded,
        1 | 2 => Bound::Included(random.below(keys)),
        _ => Bound::Excluded(random.below(keys)),
    };
    (0..count)
        .map(|_| {
            let n = random.below(keys);
            match random.below(10) {
                0..=1 => Op::Search(n),
                2..=4 => Op::Insert(n, random.next_u64() >> 24),
                5..=7 => Op::Delete(n),
                _ => {
                    let limit = [0, 1, 3, 1000][random.below(4) as usize];
                    Op::Range(end(random), end(random), limit)
                }
            }
        })
        .collect()
}

/// Executes random batches of all sizes with few keys, so that keys occur several times in a batch.
fn machine<K: TestKey + ?Sized, V: TestValue + ?Sized>(options: &PiOptions, seed: u64) {
    let mut random = Random::new(seed);
    for round in 0..12 {
        let index: Pi<K, V> = Pi::with(options);
        let oracle = Locked::<K, V>::new();
        for step in 0..40 {
            let keys = [3, 30, 300][random.below(3) as usize];
            let count = [0, 1, 2, 7, 40, 400][random.below(6) as usize];
            let ops = ops(&mut random, keys, count);
            let (found, expected) = (answered(&index, &ops), expected(&oracle, &ops));
            let differs = found.lines().zip(expected.lines()).find(|(one, other)| one != other);
            assert_eq!(differs, None, "seed {seed}, round {round}, step {step}");
            assert_eq!(found.lines().count(), ops.len(), "seed {seed}, round {round}, step {step}");
            index
                .check_invariants()
                .unwrap_or_else(|broken| panic!("round {round}, step {step}: {broken}"));
        }
        let found: Vec<_> =
            index.range::<(Bound<&K>, Bound<&K>)>((Bound::Unbounded, Bound::Unbounded)).collect();
        let left: Vec<_> =
            oracle.range::<(Bound<&K>, Bound<&K>)>((Bound::Unbounded, Bound::Unbounded)).collect();
        assert_eq!(found, left);
    }
}

#[test]
fn machine_in_the_calling_thread() {
    machine::<u64, u64>(&small(), 1);
    machine::<[u8], u64>(&small(), 2);
    machine::<[u8], [u8]>(&small(), 3);
    machine::<u64, [u8]>(&small(), 4);
}

#[test]
fn machine_with_workers_and_rebuilds_in_the_background() {
    let options = PiOptions { workers: 2, rebuild_in_background: true, ..small() };
    machine::<u64, u64>(&options, 5);
    machine::<[u8], [u8]>(&options, 6);
}

#[test]
fn machine_with_every_switch_off_and_every_instruction_set() {
    let plain = PiOptions { group: 1, prefetch: false, ..small() };
    machine::<u64, u64>(&plain, 7);
    for instructions in ordna_base::simd::InstructionSet::available() {
        machine::<u64, u64>(&PiOptions { instructions, ..small() }, 8);
        machine::<[u8], u64>(&PiOptions { instructions, ..small() }, 9);
    }
}

/// Insert, delete and search of one key in every order of five, for both initial states.
#[test]
fn one_key_in_every_order() {
    for orders in 0..3_u64.pow(5) {
        for there in [false, true] {
            let (index, oracle) = (Pi::<u64, u64>::with(&small()), Locked::<u64, u64>::new());
            if there {
                index.insert(&7, &70).unwrap();
                oracle.insert(&7, &70).unwrap();
            }
            let ops: Vec<Op> = (0..5)
                .map(|at| match orders / 3_u64.pow(at) % 3 {
                    0 => Op::Search(7),
                    1 => Op::Insert(7, u64::from(at)),
                    _ => Op::Delete(7),
                })
                .collect();
            // The same key as a number, so that both sides format it alike.
            assert_eq!(answered(&index, &ops), expected(&oracle, &ops), "{there}");
        }
    }
}

/// A range over all pieces, submitted between writes, sees the earlier ones and none of the later
/// ones.
#[test]
fn a_range_across_all_pieces_sees_what_was_submitted_before_it() {
    for workers in [0, 2] {
        let index: Pi<u64, u64> = Pi::with(&PiOptions { workers, ..small() });
        index.put_all((0..300_u64).map(|key| (key * 2, key)));
        index.rebuild();
        let before: Vec<u64> = (0..300).map(|n| n * 2 + 1).collect();
        let mut batch: Vec<Query<'_, u64, u64>> = Vec::new();
        batch.extend(before.iter().map(|key| Query::Insert(key, key)));
        batch.push(Query::Range { lower: Bound::Unbounded, upper: Bound::Unbounded, limit: 1000 });
        batch.extend(before.iter().map(Query::Delete));
        batch.push(Query::Range {
            lower: Bound::Included(&100),
            upper: Bound::Excluded(&200),
            limit: 7,
        });
        let answers = index.execute(&batch).unwrap();
        let entries = |at: usize| match &answers[at] {
            Answer::Entries(entries) => entries.iter().map(|(key, _)| *key).collect::<Vec<_>>(),
            Answer::Value(value) => panic!("a range answered {value:?}"),
        };
        assert_eq!(entries(300), (0..600).collect::<Vec<_>>());
        assert_eq!(entries(601), (50..57).map(|n| n * 2).collect::<Vec<_>>());
        assert_eq!(index.check_invariants().unwrap().entries, 300);
    }
}

/// Each thread of a rebuild processes a part of the old layer, whose first node may have died.
#[test]
fn threads_share_a_rebuild() {
    let index: Pi<u64, u64> = Pi::with(&PiOptions { rebuild_threads: 2, ..small() });
    index.put_all((0..40_000).map(|key| (key, key)));
    index.rebuild();
    assert_eq!(index.check_invariants().unwrap().nodes, 10_000);
    // The first node of the second part is among those that die.
    for key in 19_960..20_040 {
        assert_eq!(index.remove(&key), Some(key));
    }
    index.rebuild();
    assert_eq!(index.check_invariants().unwrap().entries, 40_000 - 80);
    assert_eq!(index.get(&20_040), Some(20_040));
}

#[test]
fn too_long_a_key_refuses_the_whole_batch() {
    let index: Pi<[u8], u64> = Pi::with(&small());
    let long = vec![0; 70_000];
    let refused = index.execute(&[Query::Insert(b"a", &1), Query::Insert(&long, &1)]);
    assert_eq!(refused.err(), Some(Error::KeyTooLong { len: 70_000 }));
    assert_eq!(index.get(b"a"), None);
    // Such a key is always absent, which is not an error.
    let answers = index.execute(&[Query::Search(&long), Query::Delete(&long)]).unwrap();
    assert!(answers.iter().all(|answer| matches!(answer, Answer::Value(None))));
}

/// Concurrent callers use disjoint keys, so every answer is known, whichever thread has done the
/// work.
#[test]
fn concurrent_batches_answer_their_own_callers() {
    for workers in [0, 1] {
        let options = PiOptions { workers, rebuild_in_background: true, ..small() };
        let index: Pi<u64, u64> = Pi::with(&options);
        std::thread::scope(|scope| {
            for caller in 0..3_u64 {
                let index = &index;
                scope.spawn(move || {
                    let mut random = Random::new(caller);
                    let mut content = std::collections::BTreeMap::new();
                    for _ in 0..150 {
                        let ops: Vec<(u64, u64)> = (0..random.below(120))
                            .map(|_| (random.below(90) * 3 + caller, random.below(4)))
                            .collect();
                        let batch: Vec<Query<'_, u64, u64>> = ops
                            .iter()
                            .map(|(key, kind)| match kind {
                                0 => Query::Search(key),
                                1 => Query::Delete(key),
                                _ => Query::Insert(key, kind),
                            })
                            .collect();
                        let answers = index.execute(&batch).unwrap();
                        for ((key, kind), answer) in ops.iter().zip(answers) {
                            let before = match kind {
                                0 => content.get(key).copied(),
                                1 => content.remove(key),
                                _ => content.insert(*key, *kind),
                            };
                            let Answer::Value(found) = answer else { panic!("not a point") };
                            assert_eq!(found, before, "key {key}");
                        }
                        let keys: Vec<u64> = content.keys().copied().collect();
                        assert!(
                            index.values(&keys).into_iter().eq(content.values().copied().map(Some))
                        );
                    }
                });
            }
        });
        index.check_invariants().unwrap();
    }
}

/// No query needs the lock of a rebuild: queries of all kinds complete while it is held and a
/// rebuild is always due.
#[test]
fn queries_run_while_the_rebuild_lock_is_held() {
    for rebuild_in_background in [false, true] {
        let index: Pi<u64, u64> =
            Pi::with(&PiOptions { workers: 1, rebuild_in_background, ..small() });
        let (done, ended) = mpsc::channel();
        std::thread::scope(|scope| {
            let index = &index;
            index.while_rebuild_is_locked(|| {
                scope.spawn(move || {
                    for round in 0..20_u64 {
                        let keys: Vec<u64> = (0..200).map(|n| n * 20 + round).collect();
                        let batch: Vec<_> =
                            keys.iter().map(|key| Query::Insert(key, key)).collect();
                        index.execute(&batch).unwrap();
                        index.insert(&(round + 100_000), &round).unwrap();
                        assert_eq!(index.get(&keys[7]), Some(keys[7]));
                        assert!(index.range(..).take(10).count() == 10);
                        index.remove_many(&keys[..50]);
                    }
                    done.send(()).unwrap();
                });
                ended
                    .recv_timeout(Duration::from_secs(20))
                    .expect("a query waits for the rebuild lock");
            });
        });
        index.check_invariants().unwrap();
    }
}

/// The daemon rebuilds while batches run, and stops with the index.
#[test]
fn the_layer_is_rebuilt_in_the_background() {
    let index: Pi<u64, u64> =
        Pi::with(&PiOptions { rebuild_in_background: true, ..PiOptions::default() });
    let keys: Vec<(u64, u64)> =
        (0..100_000_u64).map(|n| (n.wrapping_mul(0x9E37_79B9_7F4A_7C15), n)).collect();
    for chunk in keys.chunks(1000) {
        assert_eq!(index.insert_many(chunk).unwrap(), 1000);
    }
    // The last rebuild that was due may be in progress, and only one more can follow it.
    index.rebuild();
    let (nodes, places) = (index.check_invariants().unwrap().nodes, index.places());
    assert_eq!(nodes, places, "a rebuild without writers names every node");
    drop(index);
}

/// The whole suite with workers and the daemon, except for the memory test, which counts one
/// thread.
#[test]
fn the_contract_holds_with_workers_and_the_daemon() {
    let options = PiOptions { workers: 1, rebuild_in_background: true, ..small() };
    ordna_testkit::model::check(|| Pi::<u64, u64>::with(&options));
    ordna_testkit::concurrent::check_owners(|| Pi::<u64, u64>::with(&options));
    ordna_testkit::concurrent::check_scans(|| Pi::<[u8], u64>::with(&options));
    ordna_testkit::history::check(|| Pi::<u64, [u8]>::with(&options));
}

/// With two declared NUMA nodes, every piece is done once, by a thread of its own node or
/// offloaded. A batch with keys of one node is shared nevertheless.
#[test]
fn pieces_go_to_their_numa_node_and_are_offloaded() {
    let topology = ordna_papers::topology::Topology::declared(2);
    let index: Pi<u64, u64> = Pi::with(&PiOptions { workers: 2, topology, ..small() });
    let keys: Vec<(u64, u64)> = (0..4000).map(|n| (n, n)).collect();
    assert_eq!(index.insert_many(&keys), Ok(4000));
    index.rebuild();
    let before = index.pieces_done();
    for keys in [&keys[..], &keys[..1000], &keys[3000..]] {
        assert_eq!(index.insert_many(keys), Ok(0));
    }
    let (own, offloaded) = index.pieces_done();
    // At most 64 pieces per batch, and a cut at the border.
    let done = own + offloaded - before.0 - before.1;
    assert!((3 * 32..=3 * 65).contains(&done), "{done} pieces");
    assert_eq!(index.check_invariants().unwrap().entries, 4000);
}

/// Creates 750 full nodes that the layer names. The keys are those below 3000.
fn full_nodes(options: &PiOptions) -> Pi<u64, u64> {
    let index = Pi::with(options);
    (0..3000).for_each(|key| assert_eq!(index.insert(&key, &key), Ok(None)));
    index.rebuild();
    assert_eq!((index.places(), index.check_invariants().unwrap().nodes), (750, 750));
    index
}

/// There are more dead places than the maximum number of retries. Going back over them does not
/// count as a retry.
#[test]
fn a_reader_goes_back_over_any_number_of_dead_places() {
    let index = Arc::new(full_nodes(&small()));
    // One by one: the owner's part is the whole list, and one node absorbs all nodes that become
    // empty.
    index.while_rebuild_is_locked(|| {
        (300..1900).for_each(|key| assert_eq!(index.remove(&key), Some(key)));
    });
    assert_eq!((index.places(), index.check_invariants().unwrap().nodes), (750, 350));
    let (done, ended) = mpsc::channel();
    let reader = index.clone();
    // Not joined, in case it blocks.
    let reading = std::thread::spawn(move || {
        done.send(reader.get(&1899)).unwrap();
        let mut first = None;
        let from = Bound::Included(&1899);
        reader.visit(from, Bound::Unbounded, Direction::Ascending, |key, _| {
            first = Some(*key);
            ControlFlow::Break(())
        });
        done.send(first).unwrap();
        done.send(reader.floor(&1899).map(|(key, _)| key)).unwrap();
    });
    for expected in [None, Some(1900), Some(299)] {
        assert_eq!(ended.recv_timeout(Duration::from_secs(20)), Ok(expected));
    }
    reading.join().unwrap();
}

/// Steps back over dead places are a cost of a stale layer. They make a rebuild due long before the
/// share of changed nodes does.
#[test]
fn dead_places_side_by_side_make_a_rebuild_due() {
    let index = full_nodes(&PiOptions { rebuild_threshold: usize::MAX, ..small() });
    let mut most = 0;
    for key in 300..1900 {
        assert_eq!(index.remove(&key), Some(key));
        most = most.max(index.places() - index.check_invariants().unwrap().nodes);
    }
    assert!((8..100).contains(&most), "{most} dead places");
}
