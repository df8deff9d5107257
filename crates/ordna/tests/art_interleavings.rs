//! Rare interleavings of the radix trees, forced; and what breaks in published implementations.
//!
//! Not with `pessimistic`: there a reader keeps out the writer that these tests let in.
#![cfg(not(feature = "pessimistic"))]

use std::ops::{Bound, ControlFlow};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ordna::index::art::{Art, Concurrent, Coupling, Minimal, Olc, Rowex, restarts, steps};
use ordna::sync::schedule::Schedule;
use ordna::{ArtOlc, ArtRowex, Change, Direction, OrderedIndex};

type Bytes<P> = Art<[u8], u64, P>;
type Pairs = Vec<(Vec<u8>, u64)>;

fn with<P: Concurrent>(keys: &[&[u8]]) -> Bytes<P> {
    let index = Bytes::<P>::new();
    for (key, value) in keys.iter().zip(0..) {
        assert_eq!(index.insert(key, &value), Ok(None));
    }
    index
}

fn walk<P: Concurrent>(index: &Bytes<P>, from: &[u8], direction: Direction) -> Pairs {
    let (lower, upper) = match direction {
        Direction::Ascending => (Bound::Included(from), Bound::Unbounded),
        Direction::Descending => (Bound::Unbounded, Bound::Included(from)),
    };
    let mut found = Vec::new();
    index.visit(lower, upper, direction, |key, value| {
        found.push((key.to_vec(), *value));
        ControlFlow::Continue(())
    });
    found
}

fn keys(pairs: &Pairs) -> Vec<&[u8]> {
    pairs.iter().map(|(key, _)| key.as_slice()).collect()
}

/// Runs `held` under the role "held" until it stands at `point`, then `meanwhile`, then lets it end.
fn interleave<R: Send>(
    point: &'static str,
    held: impl FnOnce() -> R + Send,
    meanwhile: impl FnOnce(),
) -> R {
    let schedule = Schedule::new();
    schedule.hold("held", point);
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| schedule.enroll("held", held));
        schedule.wait_held("held", point);
        meanwhile();
        schedule.release("held", point);
        thread.join().unwrap()
    })
}

/// Two leaves below a node with the prefix "bc", below the root's slot "a".
const FORK: [&[u8]; 2] = [b"abc1", b"abc2"];

mod pitfall_1_a_level_is_skipped {
    use super::*;

    /// A remover that has read node and parent must not drop a level that was put in between.
    fn a_removal_keeps_a_level_put_in_between<P: Concurrent>() {
        let index = with::<P>(&FORK);
        let removed = interleave(
            "art.modify.decided",
            || index.remove(b"abc1"),
            || assert_eq!(index.insert(b"ax", &9), Ok(None)),
        );
        assert_eq!(removed, Some(0));
        let all = walk(&index, b"", Direction::Ascending);
        assert_eq!(keys(&all), [b"abc2".as_slice(), b"ax"], "an acknowledged insert is gone");
        index.validate().unwrap();
    }

    /// The same for an inserter that replaces a full node, and one that splits a prefix.
    fn an_insert_keeps_a_level_put_in_between<P: Concurrent>() {
        let full: [&[u8]; 4] = [b"abc1", b"abc2", b"abc3", b"abc4"];
        for new in [b"abc5", b"abd1"] {
            let index = with::<P>(&full);
            interleave(
                "art.modify.decided",
                || assert_eq!(index.insert(new, &8), Ok(None)),
                || assert_eq!(index.insert(b"ax", &9), Ok(None)),
            );
            for key in full.into_iter().chain([new.as_slice(), b"ax"]) {
                assert!(index.contains(key), "{key:?} is gone");
            }
            index.validate().unwrap();
        }
    }

    #[test]
    fn removal_rowex() {
        a_removal_keeps_a_level_put_in_between::<Rowex>();
    }

    #[test]
    fn removal_olc() {
        a_removal_keeps_a_level_put_in_between::<Olc>();
    }

    #[test]
    fn insert_rowex() {
        an_insert_keeps_a_level_put_in_between::<Rowex>();
    }

    #[test]
    fn insert_olc() {
        an_insert_keeps_a_level_put_in_between::<Olc>();
    }

    /// What a writer decided upon is gone when it takes its lock.
    fn a_writer_notices_that_its_place_changed<P: Concurrent>() {
        type Act<P> = fn(&Bytes<P>);
        type Case<P> = (&'static str, Act<P>, Act<P>, &'static [&'static [u8]]);
        let cases: [Case<P>; 4] = [
            (
                "the same key twice",
                |i| put(i, b"abc3"),
                |i| put(i, b"abc3"),
                &[b"ab", b"abc1", b"abc2", b"abc3"],
            ),
            (
                "a leaf expanded twice",
                |i| put(i, b"abc1x"),
                |i| put(i, b"abc1y"),
                &[b"ab", b"abc1", b"abc1x", b"abc1y", b"abc2"],
            ),
            ("removed twice", |i| take(i, b"ab"), |i| take(i, b"ab"), &[b"abc1", b"abc2"]),
            (
                "set after its removal",
                |i| put(i, b"ab"),
                |i| take(i, b"ab"),
                &[b"ab", b"abc1", b"abc2"],
            ),
        ];
        fn put<P: Concurrent>(index: &Bytes<P>, key: &[u8]) {
            index.insert(key, &7).unwrap();
        }
        fn take<P: Concurrent>(index: &Bytes<P>, key: &[u8]) {
            index.remove(key);
        }
        for (what, held, meanwhile, expected) in cases {
            // Enough entries that the node neither grows nor goes.
            let index = with::<P>(&FORK);
            index.insert(b"ab", &5).unwrap();
            interleave("art.modify.decided", || held(&index), || meanwhile(&index));
            let all = walk(&index, b"", Direction::Ascending);
            assert_eq!(keys(&all), expected, "{what}");
            index.validate().unwrap_or_else(|broken| panic!("{what}: {broken}"));
        }
    }

    #[test]
    fn changed_place_rowex() {
        a_writer_notices_that_its_place_changed::<Rowex>();
    }

    #[test]
    fn changed_place_olc() {
        a_writer_notices_that_its_place_changed::<Olc>();
    }

    #[test]
    fn changed_place_coupling() {
        // Upgrades need to be alone in the node: the second writer goes first, or the first again.
        let index = with::<Coupling>(&FORK);
        std::thread::scope(|scope| {
            for writer in 0..3_u8 {
                let index = &index;
                scope.spawn(move || {
                    for n in 0..2000_u64 {
                        let key = [b'a', b'b', writer, n as u8 % 7];
                        index.insert(&key, &n).unwrap();
                        index.remove(&[b'a', b'b', writer, (n / 2) as u8 % 7]);
                    }
                });
            }
        });
        index.validate().unwrap();
    }

    /// Two that add one to the same word: no update is lost.
    #[test]
    fn no_update_is_lost() {
        fn check<P: Concurrent>() {
            let index = with::<P>(&FORK);
            let add = || index.update(b"abc1", |value| value + 1).unwrap();
            interleave("art.modify.decided", add, || {
                add();
            });
            assert_eq!(index.get(b"abc1"), Some(2));
        }
        check::<Olc>();
        check::<Rowex>();
    }

    /// What a removal returns is what it removed.
    #[test]
    fn a_removal_returns_the_value_it_removed() {
        fn check<P: Concurrent>() {
            // Enough entries that the node stays.
            let index = with::<P>(&[b"ab", b"abc", b"abd", b"abe"]);
            let removed = interleave(
                "art.modify.decided",
                || index.remove(b"abd"),
                || assert_eq!(index.insert(b"abd", &9), Ok(Some(2))),
            );
            assert_eq!(removed, Some(9));
            index.validate().unwrap();
        }
        check::<Olc>();
        check::<Rowex>();
    }

    /// A merge waits for the writer that is inside the node whose prefix it makes longer.
    #[test]
    fn a_merge_waits_for_a_writer_below() {
        fn check<P: Concurrent>() {
            let index = with::<P>(&[b"abc1", b"abc2", b"ax"]);
            let schedule = Schedule::new();
            schedule.hold("writer", "art.expand.locked");
            std::thread::scope(|scope| {
                let writer =
                    scope.spawn(|| schedule.enroll("writer", || index.insert(b"abc1z", &9)));
                schedule.wait_held("writer", "art.expand.locked");
                let merger = scope.spawn(|| index.remove(b"ax"));
                // Time for the merger to go on where it should not.
                std::thread::sleep(Duration::from_millis(50));
                schedule.release("writer", "art.expand.locked");
                assert_eq!(writer.join().unwrap(), Ok(None));
                assert_eq!(merger.join().unwrap(), Some(2));
            });
            let all = walk(&index, b"", Direction::Ascending);
            assert_eq!(keys(&all), [b"abc1".as_slice(), b"abc1z", b"abc2"]);
            index.validate().unwrap();
        }
        check::<Olc>();
        check::<Rowex>();
    }

    /// A change that keeps the value is as of one moment too.
    #[test]
    fn a_value_that_is_kept_is_the_current_one() {
        fn check<P: Concurrent>() {
            let index = with::<P>(&FORK);
            let mut seen = Vec::new();
            let keep = || {
                index
                    .modify(b"abc1", |value| {
                        seen.push(value.copied());
                        Change::<u64>::Keep
                    })
                    .unwrap();
            };
            interleave("art.modify.decided", keep, || {
                index.insert(b"abc1", &5).unwrap();
            });
            assert_eq!(seen, [Some(0), Some(5)], "kept a value that was replaced meanwhile");
        }
        check::<Olc>();
        check::<Rowex>();
    }
}

mod pitfall_2_second_validation_of_the_parent {
    use super::*;

    /// The link to the node was read, then its prefix is cut by an insert above it.
    fn split(index: &Bytes<Olc>) {
        assert_eq!(index.insert(b"ax", &9), Ok(None));
    }

    #[test]
    fn a_lookup_finds_the_key() {
        let index = with::<Olc>(&FORK);
        let found = interleave("art.descend.before_child", || index.get(b"abc1"), || split(&index));
        assert_eq!(found, Some(0), "levels misaligned");
    }

    #[test]
    fn a_removal_removes_the_key() {
        let index = with::<Olc>(&FORK);
        let removed =
            interleave("art.locate.before_child", || index.remove(b"abc1"), || split(&index));
        assert_eq!((removed, index.get(b"abc1")), (Some(0), None), "the key is still there");
    }

    #[test]
    fn a_walk_starts_at_its_bound() {
        // More entries than a walk takes from a node at once.
        let all: Vec<[u8; 4]> = (0..40).map(|last| [b'a', b'b', b'c', last]).collect();
        let index = with::<Olc>(&all.iter().map(<[u8; 4]>::as_slice).collect::<Vec<_>>());
        let from = all[3].as_slice();
        let walked = || walk(&index, from, Direction::Ascending);
        let found = interleave("art.walk.before_child", walked, || split(&index));
        assert!(keys(&found).starts_with(&[from]), "{found:?}");
    }

    /// The node was entered, then a merge makes its prefix longer.
    #[test]
    fn a_merge_is_noticed_below() {
        let index = with::<Olc>(&[b"abc1", b"abc2", b"ax"]);
        let found = interleave(
            "art.descend.entered_child",
            || index.get(b"abc1"),
            || assert_eq!(index.remove(b"ax"), Some(2)),
        );
        assert_eq!(found, Some(0));
    }

    /// Runs `write` until it stands with half of a node's entries moved, and meanwhile lets `read` go
    /// on from `point`, at which it has entered the node.
    fn reads_while_entries_move(
        keys: &[&[u8]],
        (write, moved): (fn(&Bytes<Olc>), &'static str),
        (read, point): (fn(&Bytes<Olc>) -> bool, &'static str),
    ) {
        let index = with::<Olc>(keys);
        let schedule = Schedule::new();
        schedule.hold("reader", point);
        schedule.hold("writer", moved);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| schedule.enroll("reader", || read(&index)));
            schedule.wait_held("reader", point);
            let writer = scope.spawn(|| schedule.enroll("writer", || write(&index)));
            schedule.wait_held("writer", moved);
            schedule.release("reader", point);
            // Time for the reader to answer from what it saw; a right one waits for the writer.
            std::thread::sleep(Duration::from_millis(50));
            schedule.release("writer", moved);
            writer.join().unwrap();
            assert!(reader.join().unwrap(), "read a node in the middle of a change: {point}");
        });
        index.validate().unwrap();
    }

    #[test]
    fn a_node_read_while_entries_move_up_is_read_again() {
        type Read = (fn(&Bytes<Olc>) -> bool, &'static str);
        let reads: [Read; 5] = [
            (|index| index.get(b"ac") == Some(1), "art.descend.entered_child"),
            (|index| index.insert(b"ac", &7) == Ok(Some(1)), "art.locate.entered_child"),
            (|index| index.remove(b"ac") == Some(1), "art.locate.entered_child"),
            (
                |index| {
                    let all = walk(index, b"", Direction::Ascending);
                    all.windows(2).all(|pair| pair[0].0 < pair[1].0) && all.len() >= 2
                },
                "art.walk.before_inner_chunk",
            ),
            (
                |index| keys(&walk(index, b"ac", Direction::Ascending)) == [b"ac"],
                "art.walk.entered_child",
            ),
        ];
        for read in reads {
            let insert = |index: &Bytes<Olc>| assert_eq!(index.insert(b"aa", &9), Ok(None));
            reads_while_entries_move(&[b"ab", b"ac"], (insert, "art.add.shifted"), read);
        }
    }

    #[test]
    fn a_node_read_while_entries_move_down_is_read_again() {
        type Read = (fn(&Bytes<Olc>) -> bool, &'static str);
        let reads: [Read; 2] = [
            (|index| index.get(b"ac") == Some(1), "art.descend.entered_child"),
            (
                |index| keys(&walk(index, b"ac", Direction::Ascending)) == [b"ac", b"ad"],
                "art.walk.entered_child",
            ),
        ];
        for read in reads {
            let remove = |index: &Bytes<Olc>| assert_eq!(index.remove(b"ab"), Some(0));
            reads_while_entries_move(&[b"ab", b"ac", b"ad"], (remove, "art.remove.shifted"), read);
        }
    }

    /// The record in the slot of the bound stands before the bound; while the walk goes on, others come
    /// in between.
    #[test]
    fn a_walk_that_restarts_stays_behind_its_bound() {
        let index = with::<Olc>(&[b"ab1", b"ac"]);
        let found = interleave(
            "art.collect.before_slots",
            || walk(&index, b"ab5", Direction::Ascending),
            || assert_eq!(index.insert(b"ab3", &9), Ok(None)),
        );
        assert_eq!(keys(&found), [b"ac"]);
    }

    /// A seek compares its bound with a prefix that is being cut: what is left of it is smaller than
    /// the bound in one case, larger in the other.
    #[test]
    fn a_seek_compares_with_a_prefix_of_one_moment() {
        let cases: [([&[u8]; 2], &[u8]); 2] = [(FORK, b"abc"), ([b"aca1", b"aca2"], b"aca")];
        for (fork, from) in cases {
            let index = with::<Olc>(&fork);
            let walked = || walk(&index, from, Direction::Ascending);
            let found = interleave("art.walk.entered_child", walked, || split(&index));
            assert!(keys(&found).starts_with(&fork), "{found:?}");
        }
    }

    /// Another writer of the same node foils each optimistic attempt; behind the last one it waits.
    #[test]
    fn restarts_are_bounded_and_then_locks_are_taken() {
        let index = &with::<Olc>(&FORK);
        let mut calls = 0;
        std::thread::scope(|scope| {
            let change = |_: Option<&u64>| {
                calls += 1;
                if calls <= 24 {
                    let value = calls;
                    let other = scope.spawn(move || index.insert(b"abc2", &value).unwrap());
                    if calls <= 16 {
                        other.join().unwrap();
                    } else {
                        std::thread::sleep(Duration::from_millis(60));
                    }
                }
                Change::Put(100 + calls)
            };
            index.modify(b"abc1", change).unwrap();
        });
        assert_eq!(calls, 17, "the lock was not taken after 16 restarts");
        assert_eq!((index.get(b"abc1"), index.get(b"abc2")), (Some(117), Some(17)));
    }
}

mod pitfall_3_range_bounds {
    use super::*;

    #[test]
    fn the_whole_key_of_a_leaf_is_compared_with_both_bounds() {
        fn check<P: Concurrent>() {
            let index = Art::<u64, u64, P>::new();
            let keys = [0x0105, 0x0205, 0x0305, 0x0405, 0x0505].map(|key: u64| key << 48);
            keys.iter().for_each(|key| {
                index.insert(key, key).unwrap();
            });
            let (low, high) = (0x0209 << 48, 0x0409 << 48);
            let expected = [keys[2], keys[3]];
            let found: Vec<u64> = index.range(low..=high).map(|(key, _)| key).collect();
            assert_eq!(found, expected);
            let mut found: Vec<u64> = index.range(low..=high).rev().map(|(key, _)| key).collect();
            found.reverse();
            assert_eq!(found, expected);
            // An empty slot, or a leaf, on the path that both bounds share.
            assert_eq!(index.range((0x06 << 56)..=(0x06 << 56 | 9)).count(), 0);
            assert_eq!(index.range(keys[2]..=keys[2]).count(), 1);
            assert_eq!(index.range(keys[2] + 1..=keys[2] + 9).count(), 0);
        }
        check::<Olc>();
        check::<Rowex>();
        check::<Coupling>();
        check::<Minimal<Rowex>>();
    }
}

mod pitfall_4_prefixes_longer_than_stored {
    use super::*;

    const LONG: [&[u8]; 2] = [b"abcdefghijklm1", b"abcdefghijklm2"];

    #[test]
    fn a_difference_in_the_part_that_is_not_stored_is_found() {
        fn check<P: Concurrent>() {
            let others: [&[u8]; 5] =
                [b"abcdefghiX", b"abcdefghijklX1", b"abcdefghi", b"abcdefghijk", b"abcdefghXjklm1"];
            for other in others {
                let index = with::<P>(&LONG);
                assert_eq!((index.get(other), index.remove(other)), (None, None));
                let mut all = [LONG[0], LONG[1], other];
                all.sort_unstable();
                let ceiling = all.iter().find(|key| **key > other);
                assert_eq!(
                    index.ceiling(other).map(|(key, _)| key),
                    ceiling.map(|key| key.to_vec())
                );
                assert_eq!(index.insert(other, &9), Ok(None), "{other:?}");
                assert_eq!(keys(&walk(&index, b"", Direction::Ascending)), all);
                index.validate().unwrap();
                assert_eq!(index.remove(other), Some(9));
                index.validate().unwrap();
            }
        }
        check::<Olc>();
        check::<Rowex>();
        check::<Coupling>();
    }

    /// A chain of nodes, each with a prefix that is not stored in full: one record tells of all.
    #[test]
    fn a_chain_of_long_prefixes_costs_the_length_of_the_key() {
        fn check<P: Concurrent>(len: usize) {
            let index = Bytes::<P>::new();
            let base = vec![b'a'; len];
            index.insert(&base, &0).unwrap();
            for end in (8..len).step_by(8) {
                let mut key = base[..end].to_vec();
                key[end - 1] = b'b';
                index.insert(&key, &1).unwrap();
            }
            let steps_of = |act: &dyn Fn()| {
                let before = steps::of_this_thread();
                act();
                steps::of_this_thread() - before
            };
            // Leaves a prefix where its bytes are not stored: near the top, in the middle, at the end.
            for at in [len - len % 8 - 10, len / 2 / 8 * 8 + 6, 14] {
                let mut key = base.clone();
                key[at] = b'c';
                let costs = [
                    steps_of(&|| assert_eq!(index.ceiling(&base), Some((base.clone(), 0)))),
                    steps_of(&|| assert!(index.floor(&key).is_some_and(|(key, _)| key > base))),
                    steps_of(&|| assert_eq!(index.remove(&key), None)),
                    steps_of(&|| assert_eq!(index.insert(&key, &7), Ok(None))),
                    steps_of(&|| assert_eq!(index.insert(&key, &8), Ok(Some(7)))),
                    steps_of(&|| assert_eq!(index.remove(&key), Some(8))),
                ];
                assert!(
                    costs.iter().all(|steps| *steps <= 6 * len),
                    "{len} bytes: {costs:?} steps"
                );
            }
            index.validate().unwrap();
        }
        for len in [500, 4000] {
            check::<Olc>(len);
            check::<Rowex>(len);
            check::<Coupling>(len);
        }
    }

    /// A jump too.
    #[test]
    fn a_jump_along_long_prefixes_costs_the_length_of_the_key() {
        let len = 4000;
        let index = ArtRowex::<[u8], u64>::new();
        let base = vec![b'a'; len];
        index.insert(&base, &0).unwrap();
        for end in (8..len).step_by(8) {
            let mut key = base[..end].to_vec();
            key[end - 1] = b'b';
            index.insert(&key, &1).unwrap();
        }
        for at in [len - 10, len / 2 / 8 * 8 + 6, 14] {
            let mut key = base.clone();
            key[at] = b'c';
            let above = index.floor(&key);
            let before = steps::of_this_thread();
            let found = index.jump(&key, |key, value| (key.to_vec(), *value));
            let steps = steps::of_this_thread() - before;
            assert_eq!(found, above);
            assert!(steps <= 6 * len, "{steps} steps");
        }
    }

    /// The record from which a prefix is completed is removed meanwhile: it must outlive the reader.
    #[test]
    fn a_record_that_is_read_is_not_freed() {
        fn check<P: Concurrent>() {
            let index = with::<P>(&LONG);
            let from = b"abcdefghijklm2".as_slice();
            let found = interleave(
                "art.walk.before_record",
                || walk(&index, from, Direction::Ascending),
                || {
                    // Both are replaced by others of the same size, in the memory of the old ones if
                    // that were free.
                    LONG.iter().for_each(|key| assert!(index.remove(key).is_some()));
                    for n in 0..64_u8 {
                        index
                            .insert(&[b'z', n, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13], &7)
                            .unwrap();
                    }
                    index.insert(from, &1).unwrap();
                },
            );
            assert_eq!(keys(&found).first(), Some(&from), "{found:?}");
        }
        check::<Olc>();
        check::<Rowex>();
    }
}

mod pitfall_5_keys_that_are_prefixes {
    use super::*;

    #[test]
    fn any_key_may_be_a_prefix_of_another() {
        fn check<P: Concurrent>() {
            let keys: [&[u8]; 9] = [
                b"",
                b"\0",
                b"\0\0",
                b"\0\0\xff",
                b"a",
                b"a\0",
                b"a\0\0",
                b"aa",
                b"aaaaaaaaaaaaaaaa",
            ];
            for rotation in 0..keys.len() {
                let mut order = keys;
                order.rotate_left(rotation);
                let index = with::<P>(&order);
                assert_eq!(index.insert(order[0], &77), Ok(Some(0)), "a duplicate");
                assert_eq!(super::keys(&walk(&index, b"", Direction::Ascending)), keys);
                let mut back = walk(&index, &[0xFF; 3], Direction::Descending);
                back.reverse();
                assert_eq!(super::keys(&back), keys);
                index.validate().unwrap();
                for (at, key) in order.iter().enumerate() {
                    assert!(index.remove(key).is_some());
                    assert_eq!(index.validate().unwrap().entries, keys.len() - at - 1);
                }
            }
        }
        check::<Olc>();
        check::<Rowex>();
        check::<Minimal<Coupling>>();
    }
}

mod pitfall_6_epochs {
    use super::*;

    /// A reader inside keeps what it may read, and a reader that left keeps nothing.
    #[test]
    fn a_reader_keeps_the_record_it_found() {
        fn check<P: Concurrent>() {
            let index = Art::<u64, [u8], P>::new();
            let value = |n: u8| vec![n; 40];
            (0..4).for_each(|n| {
                index.insert(&n, &value(n as u8)).unwrap();
            });
            let found = interleave(
                "art.get.before_record",
                || index.get(&2),
                || {
                    assert_eq!(index.remove(&2), Some(value(2)));
                    // Takes the memory of the record, if that were free.
                    (100..200).for_each(|n| {
                        index.insert(&n, &value(99)).unwrap();
                    });
                },
            );
            assert_eq!(found, Some(value(2)));
        }
        check::<Olc>();
        check::<Rowex>();
        check::<Coupling>();
    }
}

mod rowex {
    use super::*;

    fn check_all(index: &ArtRowex<[u8], u64>, expected: &[&[u8]]) {
        for key in expected {
            assert!(index.contains(key), "{key:?}");
        }
        for (at, key) in expected.iter().enumerate() {
            let up = walk(index, key, Direction::Ascending);
            assert_eq!(keys(&up), expected[at..], "up from {key:?}");
            let mut down = walk(index, key, Direction::Descending);
            down.reverse();
            assert_eq!(keys(&down), expected[..=at], "down from {key:?}");
        }
    }

    /// Figure 4 of the paper: the new node is there, the old one's prefix is not cut yet.
    #[test]
    fn readers_pass_a_prefix_that_is_being_split() {
        let index = with::<Rowex>(&FORK);
        interleave(
            "art.split.before_prefix",
            || index.insert(b"ax", &9).unwrap(),
            || {
                check_all(&index, &[b"abc1", b"abc2", b"ax"]);
                // Bounds beside the prefix.
                let up = walk(&index, b"abb", Direction::Ascending);
                assert_eq!(keys(&up), [b"abc1".as_slice(), b"abc2", b"ax"]);
                let up = walk(&index, b"ac", Direction::Ascending);
                assert_eq!(keys(&up), [b"ax"]);
                assert_eq!(index.get(b"abc"), None);
            },
        );
        check_all(&index, &[b"abc1", b"abc2", b"ax"]);
        index.validate().unwrap();
    }

    /// The other way round: the prefix is joined, the node above still there.
    #[test]
    fn readers_pass_a_prefix_that_is_being_merged() {
        let index = with::<Rowex>(&[b"abc1", b"abc2", b"ax"]);
        interleave(
            "art.merge.before_link",
            || assert_eq!(index.remove(b"ax"), Some(2)),
            || check_all(&index, &[b"abc1", b"abc2", b"ax"]),
        );
        check_all(&index, &FORK);
        index.validate().unwrap();
    }

    /// A reader has found an unused slot for byte 0, which a writer then fills for another byte.
    #[test]
    fn a_slot_filled_meanwhile_is_not_taken_for_byte_0() {
        let index = with::<Rowex>(&[b"ab", b"ac"]);
        let found = interleave(
            "art.child.before_slot",
            || walk(&index, b"a\0", Direction::Ascending),
            || {
                index.insert(b"ad", &2).unwrap();
            },
        );
        assert_eq!(keys(&found)[..2], [b"ab", b"ac"], "{found:?}");
        assert!(found.windows(2).all(|pair| pair[0].0 < pair[1].0), "{found:?}");
    }

    /// A walk collects a node while a writer appends to it.
    #[test]
    fn a_slot_filled_meanwhile_has_its_byte() {
        let index = with::<Rowex>(&[b"ab", b"ac"]);
        let found = interleave(
            "art.collect.before_slots",
            || walk(&index, b"", Direction::Ascending),
            || {
                index.insert(b"ad", &2).unwrap();
            },
        );
        assert!(found.windows(2).all(|pair| pair[0].0 < pair[1].0), "{found:?}");
        assert!(keys(&found).starts_with(&[b"ab", b"ac"]), "{found:?}");
    }

    /// Each slot is empty when the reader comes there: one behind it is filled, those ahead are emptied.
    fn looks_again(index: &Bytes<Rowex>) {
        for key in [b"abcdefghijk".as_slice(), b"abcdefghijka"] {
            index.insert(key, &9).unwrap();
        }
        for key in [b"abcdefghijkb", b"abcdefghijkc"] {
            assert!(index.remove(key.as_slice()).is_some());
        }
    }

    /// What a jump or a seek meets nothing in has changed meanwhile: it looks once more, and that counts.
    #[test]
    fn a_node_in_which_nothing_was_met_is_looked_at_again() {
        type Read = fn(&Bytes<Rowex>) -> Option<Vec<u8>>;
        let reads: [(Read, &'static str); 2] = [
            (|index| index.jump(b"abb", |key, _| key.to_vec()), "art.nearest.slot"),
            // The byte has no slot, so that any record has to tell of the prefix.
            (|index| index.ceiling(b"abcdefghij0").map(|(key, _)| key), "art.some_leaf.empty_slot"),
        ];
        for (read, at) in reads {
            let index = with::<Rowex>(&[b"abcdefghijkb", b"abcdefghijka", b"abcdefghijkc"]);
            // In the first slot of the node: of two records the one that came later is put first.
            assert!(index.remove(b"abcdefghijka").is_some());
            let (found, looks) = interleave(
                at,
                || (read(&index), restarts::of_this_thread()),
                || looks_again(&index),
            );
            assert_eq!(looks, 1, "{at}");
            assert!(found.is_some_and(|key| key.starts_with(b"abcdefghijk")), "{at}");
            index.validate().unwrap();
        }
    }

    /// Lookups and batches never restart, whatever writers do, nor do walks where each prefix is stored
    /// in full; writers restart and finish.
    #[test]
    fn reads_never_restart() {
        let index = Art::<u64, u64, Minimal<Rowex>>::new();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for writer in 0..2_u64 {
                let (index, done) = (&index, &done);
                scope.spawn(move || {
                    let mut n = writer;
                    while !done.load(Ordering::Relaxed) {
                        n += 1;
                        index.insert(&(n * 7 % 50), &n).unwrap();
                        index.remove(&(n * 13 % 50));
                    }
                });
            }
            let reader = scope.spawn(|| {
                let many: Vec<u64> = (0..50).collect();
                let mut out = Vec::new();
                for round in 0..3000_u64 {
                    index.get(&(round % 50));
                    index.get_many(&many, &mut out);
                    out.clear();
                    index.visit(
                        Bound::Included(&(round % 50)),
                        Bound::Unbounded,
                        Direction::Ascending,
                        |_, _| ControlFlow::Continue(()),
                    );
                    index.floor(&(round % 50));
                }
                restarts::of_this_thread()
            });
            let restarts = reader.join().unwrap();
            done.store(true, Ordering::Relaxed);
            assert_eq!(restarts, 0);
        });
        index.validate().unwrap();
    }

    /// A reader does not wait for a lock either: the writer holds it and stands still.
    #[test]
    fn reads_never_wait() {
        let index = with::<Rowex>(&FORK);
        interleave(
            "art.split.before_prefix",
            || index.insert(b"ax", &9).unwrap(),
            || {
                // On this thread, so that a wait would last forever.
                assert_eq!(index.get(b"abc2"), Some(1));
                assert_eq!(index.first().map(|(_, value)| value), Some(0));
            },
        );
    }

    /// The counter counts: the same interleaving restarts an optimistic reader once.
    #[test]
    fn an_optimistic_reader_restarts() {
        let index: ArtOlc<[u8], u64> = with::<Olc>(&FORK);
        let restarted = interleave(
            "art.descend.before_child",
            || {
                index.get(b"abc1");
                restarts::of_this_thread()
            },
            || assert_eq!(index.insert(b"ax", &9), Ok(None)),
        );
        assert_eq!(restarted, 1);
    }
}
