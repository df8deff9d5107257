//! Forces rare interleavings of the radix trees: of writers with each other, and with readers that
//! validate. The tests are named after defects of published implementations.

use std::time::Duration;

use crate::art_trees::{Bytes, FORK, keys, scan, under, with};
use ordna_base::sync::schedule::{Schedule, held};
use ordna_base::{Change, Direction, OrderedIndex};
use ordna_papers::art::{Art, Concurrent, Coupling, Olc, Rowex};
use ordna_testkit::shorthand::Shorthand as _;

mod pitfall_1_a_level_is_skipped {
    use super::*;

    /// A remover that has read a node and its parent must not drop a level that was inserted
    /// between them.
    fn a_removal_keeps_a_level_put_in_between<P: Concurrent>() {
        let index = with::<P>(&FORK);
        let removed = held("art.modify.decided", || index.remove(b"abc1"))
            .meanwhile(|| assert_eq!(index.insert(b"ax", &9), Ok(None)));
        assert_eq!(removed, Some(0));
        let all = scan(&index, b"", Direction::Ascending);
        assert_eq!(keys(&all), [b"abc2".as_slice(), b"ax"], "an acknowledged insert is gone");
        index.check_invariants().unwrap();
    }

    /// The same for an inserter that replaces a full node, and for one that splits a prefix.
    fn an_insert_keeps_a_level_put_in_between<P: Concurrent>() {
        let full: [&[u8]; 4] = [b"abc1", b"abc2", b"abc3", b"abc4"];
        for new in [b"abc5", b"abd1"] {
            let index = with::<P>(&full);
            held("art.modify.decided", || assert_eq!(index.insert(new, &8), Ok(None)))
                .meanwhile(|| assert_eq!(index.insert(b"ax", &9), Ok(None)));
            for key in full.into_iter().chain([new.as_slice(), b"ax"]) {
                assert!(index.contains(key), "{key:?} is gone");
            }
            index.check_invariants().unwrap();
        }
    }

    /// The basis of a writer's decision has changed when it takes its lock.
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
        for (what, first, second, expected) in cases {
            // Enough entries, so that the node neither grows nor disappears.
            let index = with::<P>(&FORK);
            index.insert(b"ab", &5).unwrap();
            held("art.modify.decided", || first(&index)).meanwhile(|| second(&index));
            let all = scan(&index, b"", Direction::Ascending);
            assert_eq!(keys(&all), expected, "{what}");
            index.check_invariants().unwrap_or_else(|broken| panic!("{what}: {broken}"));
        }
    }

    #[test]
    fn writers_of_one_node_under_coupling() {
        // An upgrade requires that no other thread is in the node, so the second writer goes first,
        // or the first one repeats.
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
        index.check_invariants().unwrap();
    }

    /// Two writers add one to the same word, and no update is lost.
    fn no_update_is_lost<P: Concurrent>() {
        let index = with::<P>(&FORK);
        let add = || index.update(b"abc1", |value| value + 1).unwrap();
        held("art.modify.decided", add).meanwhile(add);
        assert_eq!(index.get(b"abc1"), Some(2));
    }

    /// A removal returns the value that it has removed.
    fn a_removal_returns_the_value_it_removed<P: Concurrent>() {
        // Enough entries, so that the node stays.
        let index = with::<P>(&[b"ab", b"abc", b"abd", b"abe"]);
        let removed = held("art.modify.decided", || index.remove(b"abd"))
            .meanwhile(|| assert_eq!(index.insert(b"abd", &9), Ok(Some(2))));
        assert_eq!(removed, Some(9));
        index.check_invariants().unwrap();
    }

    /// A merge waits for the writer in the node whose prefix it extends.
    fn a_merge_waits_for_a_writer_below<P: Concurrent>() {
        let index = with::<P>(&[b"abc1", b"abc2", b"ax"]);
        let schedule = Schedule::new();
        schedule.hold("writer", "art.expand.locked");
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| schedule.enroll("writer", || index.insert(b"abc1z", &9)));
            schedule.wait_held("writer", "art.expand.locked");
            let merger = scope.spawn(|| schedule.enroll("merger", || index.remove(b"ax")));
            schedule.wait_waiting("merger");
            schedule.release("writer", "art.expand.locked");
            assert_eq!(writer.join().unwrap(), Ok(None));
            assert_eq!(merger.join().unwrap(), Some(2));
        });
        let all = scan(&index, b"", Direction::Ascending);
        assert_eq!(keys(&all), [b"abc1".as_slice(), b"abc1z", b"abc2"]);
        index.check_invariants().unwrap();
    }

    /// A writer determines where its key differs from a prefix, and then finds another prefix
    /// there.
    fn a_writer_that_was_misled_twice_restarts<P: Concurrent>() {
        // The prefixes differ after the bytes that a node stores.
        let (old, new): ([&[u8]; 2], [&[u8]; 2]) =
            ([b"abcdefgh1", b"abcdefgh2"], [b"abcdefgx2", b"abcdefgx3"]);
        let index = with::<P>(&old);
        held("art.modify.misled", || assert_eq!(index.insert(b"abcdefgx1", &9), Ok(None)))
            .meanwhile(|| {
                old.iter().for_each(|key| assert!(index.remove(key).is_some()));
                new.iter().for_each(|key| assert_eq!(index.insert(key, &8), Ok(None)));
            });
        let all = scan(&index, b"", Direction::Ascending);
        assert_eq!(keys(&all), [b"abcdefgx1".as_slice(), new[0], new[1]]);
        index.check_invariants().unwrap();
    }

    /// A change that keeps the value is based on one moment, too.
    fn a_value_that_is_kept_is_the_current_one<P: Concurrent>() {
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
        held("art.modify.decided", keep).meanwhile(|| index.insert(b"abc1", &5).unwrap());
        assert_eq!(seen, [Some(0), Some(5)], "kept a value that was replaced meanwhile");
    }

    under! {
        a_removal_keeps_a_level_put_in_between: Olc, Rowex;
        an_insert_keeps_a_level_put_in_between: Olc, Rowex;
        a_writer_notices_that_its_place_changed: Olc, Rowex;
        no_update_is_lost: Olc, Rowex;
        a_removal_returns_the_value_it_removed: Olc, Rowex;
        a_merge_waits_for_a_writer_below: Olc, Rowex;
        a_writer_that_was_misled_twice_restarts: Olc, Rowex;
        a_value_that_is_kept_is_the_current_one: Olc, Rowex;
    }
}

mod pitfall_2_second_validation_of_the_parent {
    use super::*;

    /// The link to the node is read; then an insert above the node shortens its prefix.
    fn split(index: &Bytes<Olc>) {
        assert_eq!(index.insert(b"ax", &9), Ok(None));
    }

    #[test]
    fn a_lookup_finds_the_key() {
        let index = with::<Olc>(&FORK);
        let found =
            held("art.descend.before_child", || index.get(b"abc1")).meanwhile(|| split(&index));
        assert_eq!(found, Some(0), "levels misaligned");
    }

    #[test]
    fn a_removal_removes_the_key() {
        let index = with::<Olc>(&FORK);
        let removed =
            held("art.locate.before_child", || index.remove(b"abc1")).meanwhile(|| split(&index));
        assert_eq!((removed, index.get(b"abc1")), (Some(0), None), "the key is still there");
    }

    #[test]
    fn a_scan_starts_at_its_bound() {
        // More entries than a scan takes from a node at once.
        let all: Vec<[u8; 4]> = (0..40).map(|last| [b'a', b'b', b'c', last]).collect();
        let index = with::<Olc>(&all.iter().map(<[u8; 4]>::as_slice).collect::<Vec<_>>());
        let from = all[3].as_slice();
        let scanned = || scan(&index, from, Direction::Ascending);
        let found = held("art.scan.before_child", scanned).meanwhile(|| split(&index));
        assert!(keys(&found).starts_with(&[from]), "{found:?}");
    }

    /// The node is entered; then a merge extends its prefix.
    #[test]
    fn a_merge_is_noticed_below() {
        let index = with::<Olc>(&[b"abc1", b"abc2", b"ax"]);
        let found = held("art.descend.entered_child", || index.get(b"abc1"))
            .meanwhile(|| assert_eq!(index.remove(b"ax"), Some(2)));
        assert_eq!(found, Some(0));
    }

    /// Runs `write` until half of a node's entries are moved. Meanwhile, continues `read` from
    /// `point`, at which it has entered the node.
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
            schedule.wait_waiting("reader");
            schedule.release("writer", moved);
            writer.join().unwrap();
            assert!(reader.join().unwrap(), "read a node in the middle of a change: {point}");
        });
        index.check_invariants().unwrap();
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
                    let all = scan(index, b"", Direction::Ascending);
                    all.windows(2).all(|pair| pair[0].0 < pair[1].0) && all.len() >= 2
                },
                "art.scan.before_inner_chunk",
            ),
            (
                |index| keys(&scan(index, b"ac", Direction::Ascending)) == [b"ac"],
                "art.scan.entered_child",
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
                |index| keys(&scan(index, b"ac", Direction::Ascending)) == [b"ac", b"ad"],
                "art.scan.entered_child",
            ),
        ];
        for read in reads {
            let remove = |index: &Bytes<Olc>| assert_eq!(index.remove(b"ab"), Some(0));
            reads_while_entries_move(&[b"ab", b"ac", b"ad"], (remove, "art.remove.shifted"), read);
        }
    }

    /// The record in the slot of the bound is before the bound. While the scan continues, others
    /// are inserted in between.
    #[test]
    fn a_scan_that_restarts_stays_behind_its_bound() {
        let index = with::<Olc>(&[b"ab1", b"ac"]);
        let found = held("art.collect.before_slots", || scan(&index, b"ab5", Direction::Ascending))
            .meanwhile(|| assert_eq!(index.insert(b"ab3", &9), Ok(None)));
        assert_eq!(keys(&found), [b"ac"]);
    }

    /// A seek compares its bound with a prefix that is being shortened. The rest of the prefix is
    /// smaller than the bound in one case, and larger in the other.
    #[test]
    fn a_seek_compares_with_a_prefix_of_one_moment() {
        let cases: [([&[u8]; 2], &[u8]); 2] = [(FORK, b"abc"), ([b"aca1", b"aca2"], b"aca")];
        for (fork, from) in cases {
            let index = with::<Olc>(&fork);
            let scanned = || scan(&index, from, Direction::Ascending);
            let found = held("art.scan.entered_child", scanned).meanwhile(|| split(&index));
            assert!(keys(&found).starts_with(&fork), "{found:?}");
        }
    }

    /// Another writer of the same node invalidates each optimistic attempt; after the last one,
    /// this writer waits.
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

mod pitfall_6_epochs {
    use super::*;

    /// A reader in a section keeps alive what it may read; a reader that has left keeps nothing
    /// alive.
    fn a_reader_keeps_the_record_it_found<P: Concurrent>() {
        let index = Art::<u64, [u8], P>::new();
        let value = |n: u8| vec![n; 40];
        index.put_all((0..4).map(|n| (n, value(n as u8))));
        let found = held("art.get.before_record", || index.get(&2)).meanwhile(|| {
            assert_eq!(index.remove(&2), Some(value(2)));
            // These inserts would reuse the memory of the record if it were free.
            index.put_all((100..200).map(|n| (n, value(99))));
        });
        assert_eq!(found, Some(value(2)));
    }

    /// The record from which a prefix is completed is removed concurrently, and must outlive the
    /// reader.
    fn a_record_that_is_read_is_not_freed<P: Concurrent>() {
        const LONG: [&[u8]; 2] = [b"abcdefghijklm1", b"abcdefghijklm2"];
        let index = with::<P>(&LONG);
        let from = b"abcdefghijklm2".as_slice();
        let found = held("art.scan.before_record", || scan(&index, from, Direction::Ascending))
            .meanwhile(|| {
                // Both are replaced by others of the same size, which would reuse their memory if
                // it were free.
                LONG.iter().for_each(|key| assert!(index.remove(key).is_some()));
                for n in 0..64_u8 {
                    index.insert(&[b'z', n, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13], &7).unwrap();
                }
                index.insert(from, &1).unwrap();
            });
        assert_eq!(keys(&found).first(), Some(&from), "{found:?}");
    }

    under! {
        a_reader_keeps_the_record_it_found: Olc, Rowex, Coupling;
        a_record_that_is_read_is_not_freed: Olc, Rowex;
    }
}
