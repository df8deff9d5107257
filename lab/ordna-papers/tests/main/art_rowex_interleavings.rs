//! Rare interleavings in the radix tree whose readers validate no version (ROWEX), forced by stops.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Instant;

use crate::art_trees::{Bytes, FORK, keys, scan, with};
use ordna_base::sync::schedule::{PATIENCE, Schedule, held};
use ordna_base::{Direction, OrderedIndex};
use ordna_papers::art::{Concurrent, Olc, Rowex, restarts, steps};
use ordna_papers::{ArtOlc, ArtRowex};
use ordna_testkit::shorthand::Shorthand as _;

fn check_all(index: &ArtRowex<[u8], u64>, expected: &[&[u8]]) {
    for key in expected {
        assert!(index.contains(key), "{key:?}");
    }
    for (at, key) in expected.iter().enumerate() {
        let up = scan(index, key, Direction::Ascending);
        assert_eq!(keys(&up), expected[at..], "up from {key:?}");
        let mut down = scan(index, key, Direction::Descending);
        down.reverse();
        assert_eq!(keys(&down), expected[..=at], "down from {key:?}");
    }
}

/// Figure 4 of the paper: the new node is linked, and the old node's prefix is not yet shortened.
#[test]
fn readers_pass_a_prefix_that_is_being_split() {
    let index = with::<Rowex>(&FORK);
    held("art.split.before_prefix", || index.insert(b"ax", &9).unwrap()).meanwhile(|| {
        check_all(&index, &[b"abc1", b"abc2", b"ax"]);
        // Bounds that lie below and above the keys with the prefix.
        let up = scan(&index, b"abb", Direction::Ascending);
        assert_eq!(keys(&up), [b"abc1".as_slice(), b"abc2", b"ax"]);
        let up = scan(&index, b"ac", Direction::Ascending);
        assert_eq!(keys(&up), [b"ax"]);
        assert_eq!(index.get(b"abc"), None);
    });
    check_all(&index, &[b"abc1", b"abc2", b"ax"]);
    index.check_invariants().unwrap();
}

/// The reverse: the prefix is already joined, and the node above is still linked.
#[test]
fn readers_pass_a_prefix_that_is_being_merged() {
    let index = with::<Rowex>(&[b"abc1", b"abc2", b"ax"]);
    held("art.merge.before_link", || assert_eq!(index.remove(b"ax"), Some(2)))
        .meanwhile(|| check_all(&index, &[b"abc1", b"abc2", b"ax"]));
    check_all(&index, &FORK);
    index.check_invariants().unwrap();
}

/// A reader has found an unused slot for byte 0, and a writer then fills the slot for another byte.
#[test]
fn a_slot_filled_meanwhile_is_not_taken_for_byte_0() {
    let index = with::<Rowex>(&[b"ab", b"ac"]);
    let found = held("art.child.before_slot", || scan(&index, b"a\0", Direction::Ascending))
        .meanwhile(|| index.insert(b"ad", &2).unwrap());
    assert_eq!(keys(&found)[..2], [b"ab", b"ac"], "{found:?}");
    assert!(found.windows(2).all(|pair| pair[0].0 < pair[1].0), "{found:?}");
}

/// A scan collects a node's entries while a writer appends to the node.
#[test]
fn a_slot_filled_meanwhile_has_its_byte() {
    let index = with::<Rowex>(&[b"ab", b"ac"]);
    let found = held("art.collect.before_slots", || scan(&index, b"", Direction::Ascending))
        .meanwhile(|| index.insert(b"ad", &2).unwrap());
    assert!(found.windows(2).all(|pair| pair[0].0 < pair[1].0), "{found:?}");
    assert!(keys(&found).starts_with(&[b"ab", b"ac"]), "{found:?}");
}

/// Makes each slot appear empty to the reader: fills one that it has passed and empties those that
/// it has not yet reached.
fn looks_again(index: &Bytes<Rowex>) {
    for key in [b"abcdefghijk".as_slice(), b"abcdefghijka"] {
        index.insert(key, &9).unwrap();
    }
    for key in [b"abcdefghijkb", b"abcdefghijkc"] {
        assert!(index.remove(key.as_slice()).is_some());
    }
}

/// A jump or seek that found nothing in a node, because the node changed concurrently, reads the
/// node once more. The counter of restarts includes this.
#[test]
fn a_node_in_which_nothing_was_met_is_looked_at_again() {
    type Read = fn(&Bytes<Rowex>) -> Option<Vec<u8>>;
    let reads: [(Read, &'static str); 2] = [
        (|index| index.jump(b"abb", |key, _| key.to_vec()), "art.nearest.slot"),
        // The searched byte has no slot, so any record below the node serves to read the prefix.
        (|index| index.ceiling(b"abcdefghij0").map(|(key, _)| key), "art.some_leaf.empty_slot"),
    ];
    for (read, at) in reads {
        let index = with::<Rowex>(&[b"abcdefghijkb", b"abcdefghijka", b"abcdefghijkc"]);
        // This moves the key into the node's first slot: the later of two records is stored first.
        assert!(index.remove(b"abcdefghijka").is_some());
        let (found, looks) = held(at, || (read(&index), restarts::of_this_thread()))
            .meanwhile(|| looks_again(&index));
        assert_eq!(looks, 1, "{at}");
        assert!(found.is_some_and(|key| key.starts_with(b"abcdefghijk")), "{at}");
        index.check_invariants().unwrap();
    }
}

/// The slot that a seek has read is emptied afterwards. The seek has seen a record in it and does
/// not read the node again.
#[test]
fn a_slot_that_was_seen_filled_tells_though_it_is_emptied() {
    let index = with::<Rowex>(&[b"abcdefghijka", b"abcdefghijkb", b"abcdefghijkc"]);
    // The node's first slot holds the second key.
    let (found, looks) = held("art.some_leaf.filled_slot", || {
        (index.ceiling(b"abcdefghij0").map(|(key, _)| key), restarts::of_this_thread())
    })
    .meanwhile(|| assert!(index.remove(b"abcdefghijkb").is_some()));
    assert_eq!((found, looks), (Some(b"abcdefghijka".to_vec()), 0));
}

/// The entries of a node move from the larger side of the key to the smaller side, after the jump
/// has passed there. The jump must not report an empty tree.
#[test]
fn a_jump_looks_again_at_a_node_whose_entries_have_moved() {
    let index = with::<Rowex>(&[b"a5", b"a7", b"b"]);
    let (found, looks) = held("art.jump.nothing_below", || {
        (index.jump(b"a3", |key, _| key.to_vec()), restarts::of_this_thread())
    })
    .meanwhile(|| {
        for key in [b"a1", b"a2"] {
            index.insert(key, &9).unwrap();
        }
        for key in [b"a5", b"a7"] {
            assert!(index.remove(key).is_some());
        }
    });
    assert_eq!((found, looks), (Some(b"a1".to_vec()), 1));
}

/// The changes that misled a jump are undone when it begins again at the root. It must return a
/// neighbour of the gap, and not an entry at the end of the node, beyond entries that stay.
#[test]
fn a_jump_that_was_misled_ends_beside_the_gap() {
    let gone: [&[u8]; 2] = [b"abcdefghijkb", b"abcdefghijkc"];
    let index = with::<Rowex>(&[b"A", gone[0], gone[1], b"b", b"z"]);
    let found =
        held("art.scan.before_record", || index.jump(b"abcdefghzjkb", |key, _| key.to_vec()))
            .meanwhile(|| gone.iter().for_each(|key| assert!(index.remove(key).is_some())));
    assert_eq!(found, Some(b"A".to_vec()));
}

/// The tree is empty when a jump that a prefix misled begins again at the root. The jump must not
/// wait for an entry.
#[test]
fn a_jump_ends_in_a_tree_that_was_emptied() {
    let all: [&[u8]; 2] = [b"abcdefghijkb", b"abcdefghijkc"];
    let index = with::<Rowex>(&all);
    let schedule = Schedule::new();
    schedule.hold("jump", "art.scan.before_record");
    let (tell, told) = mpsc::channel();
    let found = std::thread::scope(|scope| {
        scope.spawn(|| {
            let found = schedule.enroll("jump", || index.jump(b"abcdefghXjkb", |_, _| ()));
            tell.send(found).unwrap();
        });
        schedule.wait_held("jump", "art.scan.before_record");
        all.iter().for_each(|key| assert!(index.remove(key).is_some()));
        schedule.release("jump", "art.scan.before_record");
        let found = told.recv_timeout(PATIENCE);
        // Ends the jump if it does wait.
        index.insert(b"z", &0).unwrap();
        found
    });
    assert_eq!(found, Ok(None));
}

/// Positions at which keys of [`long`] may differ. The distances between them are longer than the
/// part of a prefix that a node stores.
const PLACES: [usize; 3] = [10, 19, 28];

/// Returns a key of `pair` followed by zeroes, except for `byte` at one of the positions.
fn long(pair: [u8; 2], place: usize, byte: u8) -> Vec<u8> {
    let mut key = vec![0; PLACES[2] + 1];
    key[..2].copy_from_slice(&pair);
    key[PLACES[place]] = byte;
    key
}

/// Runs `read` while writers split and join the prefixes on its path, and returns how often the
/// reader restarted or read a node again. Each node has entries that stay, so the reader always
/// finds one.
fn restarts_beside_writers<P: Concurrent>(
    mut read: impl FnMut(&Bytes<P>, &[u8]) + Send,
    is_enough: impl Fn(u64, u64) -> bool + Sync,
) -> u64 {
    let index = Bytes::<P>::new();
    let pairs = || (0..4_u8).map(|n| [b'a', n]);
    for pair in pairs() {
        index.put_all([1, 2].map(|byte| (long(pair, 2, byte), 0)));
    }
    let done = AtomicBool::new(false);
    let restarts = std::thread::scope(|scope| {
        for writer in 0..2_u8 {
            let (index, done) = (&index, &done);
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    for (pair, place) in pairs().zip((0..PLACES.len()).cycle()) {
                        let key = long(pair, place, 8 + writer);
                        index.insert(&key, &1).unwrap();
                        index.remove(&key);
                    }
                }
            });
        }
        let reader = scope.spawn(|| {
            let (before, begin) = (restarts::of_this_thread(), Instant::now());
            let mut round = 0;
            loop {
                for pair in pairs() {
                    read(&index, &long(pair, round as usize % 3, round as u8 % 12));
                }
                round += 1;
                let restarts = restarts::of_this_thread() - before;
                if is_enough(round, restarts) || begin.elapsed() > PATIENCE {
                    return restarts;
                }
            }
        });
        let restarts = reader.join();
        done.store(true, Ordering::Relaxed);
        restarts.unwrap()
    });
    index.check_invariants().unwrap();
    restarts
}

/// Lookups, batches, scans and jumps never restart, whatever writers do, and read no node again if
/// one entry of each node stays. Writers restart and finish.
#[test]
fn reads_never_restart() {
    let (mut scans_looked, mut jumps_looked) = (0, 0);
    let restarts = restarts_beside_writers::<Rowex>(
        |index, key| {
            index.get(key);
            let many: Vec<&[u8]> = vec![key; 20];
            index.get_many_with(&many, |_, _| {});
            let begin = steps::of_this_thread();
            assert!(index.floor(key).is_some() || index.ceiling(key).is_some());
            scan(index, key, Direction::Ascending);
            let between = steps::of_this_thread();
            assert!(index.jump(key, |_, _| ()).is_some());
            index.jump_many(&many, |_, found| assert!(found.is_some()));
            scans_looked += u64::from(between > begin);
            jumps_looked += u64::from(steps::of_this_thread() > between);
        },
        |round, _| round == 2000,
    );
    assert_eq!(restarts, 0);
    // Each read reached the places where second reads are counted: no prefix becomes so short that
    // its node stores all of it.
    assert_eq!((scans_looked, jumps_looked), (8000, 8000));
}

/// The same writers make a reader that validates restart.
#[test]
fn the_same_reads_restart_an_optimistic_reader() {
    let read = |index: &Bytes<Olc>, key: &[u8]| {
        index.get(key);
        scan(index, key, Direction::Ascending);
    };
    assert!(restarts_beside_writers(read, |_, restarts| restarts > 0) > 0);
}

/// A reader does not wait for a lock: here a writer holds the lock and is stopped.
#[test]
fn reads_never_wait() {
    let index = with::<Rowex>(&FORK);
    held("art.split.before_prefix", || index.insert(b"ax", &9).unwrap()).meanwhile(|| {
        // Runs on this thread, so that a wait would never end.
        assert_eq!(index.get(b"abc2"), Some(1));
        assert_eq!(index.first().map(|(_, value)| value), Some(0));
    });
}

/// Checks the counter itself: the same interleaving restarts an optimistic reader once.
#[test]
fn an_optimistic_reader_restarts() {
    let index: ArtOlc<[u8], u64> = with::<Olc>(&FORK);
    let restarted = held("art.descend.before_child", || {
        index.get(b"abc1");
        restarts::of_this_thread()
    })
    .meanwhile(|| assert_eq!(index.insert(b"ax", &9), Ok(None)));
    assert_eq!(restarted, 1);
}
