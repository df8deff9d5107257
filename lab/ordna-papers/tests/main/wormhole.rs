//! Tests of Wormhole with leaf versions and with the paper's locks.

use ordna_papers::{Wormhole, WormholeFaithful};

ordna_testkit::conformance! {
    mod u64_words: Wormhole<u64, u64> = Wormhole::new();
    mod bytes_words: Wormhole<[u8], u64> = Wormhole::new();
    mod small_u64_words: Wormhole<u64, u64, 4> = Wormhole::new();
    mod small_u64_bytes: Wormhole<u64, [u8], 4> = Wormhole::new();
    mod small_bytes_words: Wormhole<[u8], u64, 4> = Wormhole::new();
    mod small_bytes_bytes: Wormhole<[u8], [u8], 4> = Wormhole::new();
    mod faithful_u64_words: WormholeFaithful<u64, u64, 4> = WormholeFaithful::new();
    mod faithful_bytes_bytes: WormholeFaithful<[u8], [u8], 4> = WormholeFaithful::new();
}

/// Keys that are difficult for hashes, tags and anchors.
mod keys {
    use std::collections::HashMap;
    use std::ops::Bound;
    use std::ops::ControlFlow;

    use ordna_base::{Direction, Key, OrderedIndex, Value};
    use ordna_papers::Wormhole;
    use ordna_papers::wormhole::Switches;
    use ordna_testkit::adversarial;
    use ordna_testkit::random::Random;
    use ordna_testkit::shorthand::Shorthand as _;

    /// Computes CRC32C bit by bit, with the initial value that the index uses.
    fn crc(key: &[u8]) -> u32 {
        key.iter().fold(u32::MAX, |hash, byte| {
            (0..8).fold(hash ^ u32::from(*byte), |hash, _| {
                if hash & 1 == 1 { hash >> 1 ^ 0x82F6_3B78 } else { hash >> 1 }
            })
        })
    }

    fn spread(key: &[u8]) -> u64 {
        (u64::from(crc(key)) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)
    }

    /// An audit visits each prefix of each anchor, so it may process all of their bytes only to
    /// compare them. Creating a text for each prefix took minutes here.
    #[test]
    fn the_audit_of_the_longest_anchors_ends_soon() {
        let index = Wormhole::<[u8], u64, 4>::new();
        let key = |n: u8| [[b'a' + n % 4; 65_534].as_slice(), &[n]].concat();
        (0..40).for_each(|n| assert_eq!(index.insert(&key(n), &u64::from(n)), Ok(None)));
        let began = std::time::Instant::now();
        let report = index.check_invariants().unwrap();
        assert!(report.entries == 40 && report.nodes >= 10, "{report:?}");
        assert!(began.elapsed().as_secs() < 40, "{:?}", began.elapsed());
    }

    /// A leaf with one prefix and 0 to 300 zero bytes has no split point in the paper's trie. Here
    /// every leaf is split when it is full.
    #[test]
    fn one_prefix_and_up_to_300_zero_bytes() {
        fn check<const LEAF: usize>() {
            for prefix in [b"".as_slice(), b"p", b"\0", b"longer than a head"] {
                let index = Wormhole::<[u8], u64, LEAF>::new();
                let key = |zeroes: usize| [prefix, &vec![0; zeroes]].concat();
                for zeroes in (0..=300).rev().step_by(2).chain((0..=300).skip(1).step_by(2)) {
                    assert_eq!(index.insert(&key(zeroes), &(zeroes as u64)), Ok(None));
                }
                let report = index.check_invariants().unwrap();
                assert_eq!(report.entries, 301);
                assert!(report.nodes >= 301_usize.div_ceil(LEAF), "{} leaves", report.nodes);
                for zeroes in 0..=300 {
                    assert_eq!(index.get(&key(zeroes)), Some(zeroes as u64));
                }
                let scanned: Vec<u64> = index.prefix(prefix).map(|(_, value)| value).collect();
                assert_eq!(scanned, (0..=300).collect::<Vec<_>>());
                for zeroes in 0..=300 {
                    assert_eq!(index.remove(&key(zeroes)), Some(zeroes as u64));
                }
                assert_eq!(index.check_invariants().unwrap().nodes, 1);
            }
        }
        check::<4>();
        check::<128>();
    }

    /// Keys with the same tag in a leaf, and keys with the same whole hash.
    #[test]
    fn tags_and_hashes_that_collide() {
        let leaf_tag = adversarial::collisions(|key| spread(key) >> 48, 14, 300);
        let table_tag = adversarial::collisions(|key| spread(key) >> 16, 14, 300);
        let mut same_crc: Vec<Vec<u8>> = Vec::new();
        let mut by_crc: HashMap<u32, Vec<u8>> = HashMap::new();
        let mut random = Random::new(5);
        while same_crc.len() < 40 {
            let key = random.next_u64().to_le_bytes()[..6].to_vec();
            if let Some(other) = by_crc.insert(crc(&key), key.clone()).filter(|o| *o != key) {
                // Equal suffixes keep the hashes equal.
                for end in [b"".as_slice(), b"x", b"yz"] {
                    same_crc.extend([[&key, end].concat(), [&other, end].concat()]);
                }
            }
        }
        for keys in [leaf_tag, table_tag, same_crc] {
            adversarial::check_keys(Wormhole::<[u8], u64, 4>::new, keys.clone());
            adversarial::check_keys(Wormhole::<[u8], u64>::new, keys);
        }
    }

    /// There are so many prefixes that some searches rely on a wrong tag.
    #[test]
    fn searches_that_end_too_long_fall_back() {
        let index = Wormhole::<[u8], u64, 4>::new();
        let mut random = Random::new(11);
        let keys: Vec<Vec<u8>> = (0..60_000)
            .map(|_| (0..3 + random.below(12)).map(|_| random.below(4) as u8).collect())
            .collect();
        for key in &keys {
            index.insert(key, &7).unwrap();
        }
        index.check_invariants().unwrap();
        for key in &keys {
            assert_eq!(index.get(key), Some(7), "{key:?}");
        }
        assert!(index.values(&keys).iter().all(Option::is_some));
    }

    fn life<K, V>(
        switches: Switches,
        keys: &[K::Owned],
        value: impl Fn(u64) -> V::Owned,
        word: impl Fn(&V) -> u64,
    ) where
        K: Key + ?Sized,
        V: Value + ?Sized,
    {
        use std::borrow::Borrow;
        let index = Wormhole::<K, V, 4>::with_switches(switches);
        for (n, key) in (0..).zip(keys) {
            assert_eq!(index.insert(key.borrow(), value(n).borrow()), Ok(None));
        }
        index.check_invariants().unwrap();
        for (n, key) in (0..).zip(keys) {
            assert_eq!(index.get_with(key.borrow(), &word), Some(n), "{switches:?}: {key:?}");
        }
        let mut scanned = 0;
        index.visit(Bound::Unbounded, Bound::Unbounded, Direction::Descending, |_, _| {
            scanned += 1;
            ControlFlow::Continue(())
        });
        assert_eq!(scanned, keys.len());
        index.get_many_with(keys, |at, value| assert_eq!(value.map(&word), Some(at as u64)));
        for key in keys.iter().step_by(2) {
            assert!(index.remove(key.borrow()).is_some());
        }
        index.check_invariants().unwrap();
        for (at, key) in keys.iter().enumerate() {
            assert_eq!(index.contains(key.borrow()), at % 2 == 1, "{switches:?}: {key:?}");
        }
    }

    /// Every combination of the paper's optimizations has the same results.
    #[test]
    fn all_switches() {
        let mut random = Random::new(3);
        let words: Vec<u64> = (0..700).map(|_| random.next_u64()).collect();
        let mut bytes: Vec<Vec<u8>> = (0..400)
            .map(|_| (0..random.below(12)).map(|_| random.below(3) as u8).collect())
            .collect();
        bytes.sort();
        bytes.dedup();
        random.shuffle(&mut bytes);
        for bits in 0..32 {
            let on = |bit: u32| bits >> bit & 1 == 1;
            let switches = Switches {
                tag_matching: on(0),
                incremental_hashing: on(1),
                sort_by_tag: on(2),
                direct_position: on(3),
                hints: on(4),
            };
            life::<u64, u64>(switches, &words, |n| n, |value| *value);
            life::<[u8], [u8]>(
                switches,
                &bytes,
                |n| n.to_le_bytes().to_vec(),
                |value| u64::from_le_bytes(value.try_into().unwrap()),
            );
        }
    }
}

#[cfg(debug_assertions)]
mod interleavings {
    //! Forces rare interleavings. The tests are named after defects of published implementations.

    use std::sync::mpsc;

    use ordna_base::OrderedIndex;
    use ordna_base::sync::schedule::{Schedule, held};
    use ordna_papers::Wormhole;
    use ordna_testkit::shorthand::Shorthand as _;

    type Words = Wormhole<u64, u64, 4>;

    fn with(keys: &[u64]) -> Words {
        let index = Words::new();
        for key in keys {
            index.insert(key, &(key * 10)).unwrap();
        }
        index
    }

    /// Holds a lookup at a point while `meanwhile` runs.
    fn lookup(index: &Words, key: u64, at: &'static str, meanwhile: impl FnOnce()) -> Option<u64> {
        let found = held(at, || index.get(&key)).meanwhile(meanwhile);
        index.check_invariants().unwrap();
        found
    }

    /// The entry moves to the right half while the reader reads the left one.
    #[test]
    fn a_split_of_the_leaf_that_is_read() {
        let index = with(&[10, 20, 30, 40]);
        let found = lookup(&index, 40, "wormhole.get.covered", || {
            index.insert(&50, &500).unwrap();
            assert_eq!(index.check_invariants().unwrap().nodes, 2);
        });
        assert_eq!(found, Some(400));
    }

    /// The reader reaches the left half through an older table.
    #[test]
    fn a_split_between_table_and_leaf() {
        for at in ["wormhole.search.table", "wormhole.search.done"] {
            let index = with(&[10, 20, 30, 40]);
            let found = lookup(&index, 40, at, || {
                index.insert(&50, &500).unwrap();
                assert_eq!(index.check_invariants().unwrap().nodes, 2);
            });
            assert_eq!(found, Some(400), "{at}");
        }
    }

    /// The leaf that the reader reaches was merged into its neighbour, and that one into another.
    #[test]
    fn a_merge_between_table_and_leaf() {
        for at in ["wormhole.search.table", "wormhole.search.done"] {
            let index = with(&[10, 20, 30, 40, 50, 60, 70, 80]);
            assert!(index.check_invariants().unwrap().nodes > 2);
            let found = lookup(&index, 80, at, || {
                for key in [70, 60, 50, 40, 30, 20] {
                    assert_eq!(index.remove(&key), Some(key * 10));
                }
                assert_eq!(index.check_invariants().unwrap().nodes, 1);
            });
            assert_eq!(found, Some(800), "{at}");
        }
    }

    /// The writer reaches the left half of a leaf, but its key belongs to the right one.
    #[test]
    fn an_insert_after_a_split() {
        let index = with(&[10, 20, 30, 40]);
        let writer = held("wormhole.search.done", || index.insert(&45, &450))
            .meanwhile(|| index.insert(&50, &500).unwrap());
        assert_eq!(writer, Ok(None));
        assert_eq!(index.check_invariants().unwrap().entries, 6);
        assert_eq!(index.get(&45), Some(450));
    }

    /// Between the guess and the lock, the left neighbour is split, and is no longer the neighbour.
    #[test]
    fn a_merge_to_the_left_meets_a_split() {
        let index = with(&[10, 20, 30, 40, 50]);
        assert_eq!(index.remove(&50), Some(500));
        let remover = held("wormhole.merge.before_left", || index.remove(&40)).meanwhile(|| {
            index.put_all([11, 12, 13].map(|key| (key, key * 10)));
        });
        assert_eq!(remover, Some(400));
        assert_eq!(index.check_invariants().unwrap().entries, 6);
        let keys: Vec<u64> = index.range(..).map(|(key, _)| key).collect();
        assert_eq!(keys, [10, 11, 12, 13, 20, 30]);
    }

    /// A neighbour is filled up between the check of its size and its lock.
    #[test]
    fn a_merge_meets_inserts() {
        let cases = [
            ("wormhole.merge.before_right", 10, [41, 42], [20, 30, 40, 41, 42]),
            ("wormhole.merge.before_left", 40, [11, 12], [10, 11, 12, 20, 30]),
        ];
        for (at, removed, inserted, left) in cases {
            let index = with(&[10, 20, 30, 40, 50]);
            assert_eq!(index.remove(&50), Some(500));
            let remover = held(at, || index.remove(&removed)).meanwhile(|| {
                index.put_all(inserted.map(|key| (key, key * 10)));
            });
            assert_eq!(remover, Some(removed * 10));
            index.check_invariants().unwrap();
            let keys: Vec<u64> = index.range(..).map(|(key, _)| key).collect();
            assert_eq!(keys, left, "{at}");
        }
    }

    /// A leaf is split between a writer's search and its lock, and again between following the
    /// links and the lock there.
    #[test]
    fn a_writer_meets_two_splits() {
        let index = with(&[10, 20, 30]);
        let schedule = Schedule::new();
        let stops = ["wormhole.search.done", "wormhole.list.settled"];
        stops.iter().for_each(|stop| schedule.hold("writer", stop));
        std::thread::scope(|scope| {
            scope.spawn(|| schedule.enroll("writer", || index.insert(&39, &1)));
            schedule.wait_held("writer", stops[0]);
            index.put_all([40, 50, 60].map(|key| (key, key)));
            schedule.release("writer", stops[0]);
            schedule.wait_held("writer", stops[1]);
            index.put_all([31, 32, 33, 34, 35, 36].map(|key| (key, key)));
            schedule.release("writer", stops[1]);
        });
        index.check_invariants().unwrap();
        assert_eq!(index.get(&39), Some(1));
    }

    /// A scan has the order of a leaf; then other entries are stored at those positions.
    #[test]
    fn a_scan_meets_a_leaf_that_is_refilled() {
        for round in 1..40_u64 {
            let key = |n: u64| round * 1000 + n;
            let index = with(&[key(1), key(2), key(3)]);
            let scanned: Vec<u64> =
                held("wormhole.scan.ordered", || index.range(..).map(|(key, _)| key).collect())
                    .meanwhile(|| {
                        for n in [1, 3] {
                            assert!(index.remove(&key(n)).is_some());
                        }
                        index.put_all([5, 0].map(|n| (key(n), 7)));
                    });
            assert!(scanned.windows(2).all(|pair| pair[0] < pair[1]), "{scanned:?}");
            assert!(scanned.contains(&key(2)), "{scanned:?}");
            index.check_invariants().unwrap();
        }
    }

    /// Splits and merges after, at and before the position of a scan repeat nothing and skip
    /// nothing.
    #[test]
    fn a_scan_meets_splits_and_merges() {
        for descending in [false, true] {
            let staying: Vec<u64> = (0..40).map(|n| n * 10).collect();
            let index = with(&staying);
            let scanned: Vec<u64> = held("wormhole.scan.ordered", || {
                let range = index.range(..).map(|(key, _)| key);
                if descending { range.rev().collect() } else { range.collect() }
            })
            .meanwhile(|| {
                index.put_all((0..400).map(|n| (n, n * 10)));
                index.remove_all((0..400).filter(|n| n % 10 != 0));
            });
            let mut kept: Vec<u64> = scanned.iter().copied().filter(|n| n % 10 == 0).collect();
            kept.sort_unstable();
            assert_eq!(kept, staying);
            let mut sorted = scanned.clone();
            sorted.sort_unstable();
            sorted.dedup();
            assert_eq!(sorted.len(), scanned.len(), "a key was returned twice: {scanned:?}");
        }
    }

    /// One reader stalls in each of the two tables. Neither table is changed while it is read, and
    /// no thread waits.
    #[test]
    fn a_reader_stalls_in_each_table() {
        let index = with(&[]);
        index.put_all((0..400).map(|key| (key, key * 10)));
        let schedule = Schedule::new();
        let roles = ["first", "second", "third"];
        for role in roles {
            schedule.hold(role, "wormhole.search.table");
        }
        std::thread::scope(|scope| {
            let readers = roles.map(|role| {
                let (schedule, index) = (&schedule, &index);
                let reader =
                    scope.spawn(move || schedule.enroll(role, || [3, 399].map(|k| index.get(&k))));
                schedule.wait_held(role, "wormhole.search.table");
                index.put_all((400..3000).map(|key| (key, key * 10)));
                index.remove_all(400..3000);
                reader
            });
            for role in roles {
                schedule.release(role, "wormhole.search.table");
            }
            for reader in readers {
                assert_eq!(reader.join().unwrap(), [Some(30), Some(3990)]);
            }
        });
        assert_eq!(index.check_invariants().unwrap().entries, 400);
    }

    /// A sleeping thread does not prevent splits, whether it has used the index and is idle, or
    /// sleeps in a reading section. The table keeps up with the list.
    #[test]
    fn a_thread_that_sleeps_stops_no_split() {
        for inside in [false, true] {
            let index = Words::new();
            let (wake, asleep) = mpsc::channel::<()>();
            let (ready, is_ready) = mpsc::channel();
            std::thread::scope(|scope| {
                let index = &index;
                scope.spawn(move || {
                    index.insert(&u64::MAX, &1).unwrap();
                    let pinned = if inside { index.pin() } else { None };
                    ready.send(()).unwrap();
                    // Ends when the other side is dropped.
                    assert!(asleep.recv().is_err());
                    drop(pinned);
                });
                is_ready.recv().unwrap();
                index.put_all((0..20_000).map(|key| (key, key)));
                let leaves = index.check_invariants().unwrap().nodes as u64;
                assert!(leaves > 4000);
                let most = if inside { leaves / 2 } else { 200 };
                assert!(index.table_lag() < most, "{} of {leaves} steps wait", index.table_lag());
                drop(wake);
            });
            assert!((0..20_000).all(|key| index.get(&key) == Some(key)));
        }
    }

    /// The visitor reads the leaf that is being scanned, while a writer waits for its lock. (A
    /// shared lock admits no reader when a writer waits, not even one that already holds it.)
    #[test]
    fn a_visitor_reads_while_a_writer_waits() {
        use std::ops::{Bound, ControlFlow};
        use std::sync::Arc;
        use std::time::Duration;
        for direction in [ordna_base::Direction::Ascending, ordna_base::Direction::Descending] {
            let index = Arc::new(ordna_papers::WormholeFaithful::<u64, u64, 4>::new());
            index.put_all((0..4).map(|key| (key, key)));
            let (tell, told) = mpsc::channel();
            // Not in a scope, which would wait for threads that block.
            std::thread::spawn(move || {
                let mut seen = 0;
                index.visit(Bound::Unbounded, Bound::Unbounded, direction, |_, _| {
                    if seen == 0 {
                        let writer = Arc::clone(&index);
                        std::thread::spawn(move || writer.insert(&3, &9).unwrap());
                        // Gives the writer time to reach the lock.
                        std::thread::sleep(Duration::from_millis(200));
                        assert_eq!(index.get(&1), Some(1));
                    }
                    seen += 1;
                    ControlFlow::Continue(())
                });
                tell.send(seen).unwrap();
            });
            assert_eq!(told.recv_timeout(Duration::from_secs(10)), Ok(4));
        }
    }

    /// Leaves of all sizes have vacant positions.
    #[test]
    fn leaves_of_every_size_work() {
        fn fill_and_empty<const LEAF: usize>() {
            let index = Wormhole::<u64, u64, LEAF>::new();
            for key in 0..2000_u64 {
                assert_eq!(index.insert(&key.reverse_bits(), &key), Ok(None));
            }
            assert_eq!(index.check_invariants().unwrap().entries, 2000);
            for key in 0..2000_u64 {
                assert_eq!(index.remove(&key.reverse_bits()), Some(key));
            }
            assert_eq!(index.check_invariants().unwrap().entries, 0);
        }
        // The smallest size, one with a group that is not full, and the largest.
        fill_and_empty::<4>();
        fill_and_empty::<13>();
        fill_and_empty::<200>();
    }

    /// The other mode has the same two tables.
    #[test]
    fn the_paper_s_locks_keep_the_same_contract_while_leaves_split() {
        let index = ordna_papers::WormholeFaithful::<u64, u64, 4>::new();
        index.put_all((0..5000_u64).map(|key| (key.reverse_bits(), key)));
        for key in 0..5000_u64 {
            assert_eq!(index.get(&key.reverse_bits()), Some(key));
        }
        index.check_invariants().unwrap();
    }
}
