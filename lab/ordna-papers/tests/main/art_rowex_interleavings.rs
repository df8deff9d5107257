//! Rare interleavings of the radix tree whose readers look at no version (ROWEX), forced.

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

/// Figure 4 of the paper: the new node is there, the old one's prefix is not cut yet.
#[test]
fn readers_pass_a_prefix_that_is_being_split() {
    let index = with::<Rowex>(&FORK);
    held("art.split.before_prefix", || index.insert(b"ax", &9).unwrap()).meanwhile(|| {
        check_all(&index, &[b"abc1", b"abc2", b"ax"]);
        // Bounds beside the prefix.
        let up = scan(&index, b"abb", Direction::Ascending);
        assert_eq!(keys(&up), [b"abc1".as_slice(), b"abc2", b"ax"]);
        let up = scan(&index, b"ac", Direction::Ascending);
        assert_eq!(keys(&up), [b"ax"]);
        assert_eq!(index.get(b"abc"), None);
    });
    check_all(&index, &[b"abc1", b"abc2", b"ax"]);
    index.check_invariants().unwrap();
}

/// The other way round: the prefix is joined, the node above still there.
#[test]
fn readers_pass_a_prefix_that_is_being_merged() {
    let index = with::<Rowex>(&[b"abc1", b"abc2", b"ax"]);
    held("art.merge.before_link", || assert_eq!(index.remove(b"ax"), Some(2)))
        .meanwhile(|| check_all(&index, &[b"abc1", b"abc2", b"ax"]));
    check_all(&index, &FORK);
    index.check_invariants().unwrap();
}

/// A reader has found an unused slot for byte 0, which a writer then fills for another byte.
#[test]
fn a_slot_filled_meanwhile_is_not_taken_for_byte_0() {
    let index = with::<Rowex>(&[b"ab", b"ac"]);
    let found = held("art.child.before_slot", || scan(&index, b"a\0", Direction::Ascending))
        .meanwhile(|| index.insert(b"ad", &2).unwrap());
    assert_eq!(keys(&found)[..2], [b"ab", b"ac"], "{found:?}");
    assert!(found.windows(2).all(|pair| pair[0].0 < pair[1].0), "{found:?}");
}

/// A scan collects a node while a writer appends to it.
#[test]
fn a_slot_filled_meanwhile_has_its_byte() {
    let index = with::<Rowex>(&[b"ab", b"ac"]);
    let found = held("art.collect.before_slots", || scan(&index, b"", Direction::Ascending))
        .meanwhile(|| index.insert(b"ad", &2).unwrap());
    assert!(found.windows(2).all(|pair| pair[0].0 < pair[1].0), "{found:?}");
    assert!(keys(&found).starts_with(&[b"ab", b"ac"]), "{found:?}");
}

/// Each slot is empty when the reader comes there: one behind it is filled, those ahead are
/// emptied.
fn looks_again(index: &Bytes<Rowex>) {
    for key in [b"abcdefghijk".as_slice(), b"abcdefghijka"] {
        index.insert(key, &9).unwrap();
    }
    for key in [b"abcdefghijkb", b"abcdefghijkc"] {
        assert!(index.remove(key.as_slice()).is_some());
    }
}

/// What a jump or a seek meets nothing in has changed meanwhile: it looks once more, and that
/// counts.
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
        let (found, looks) = held(at, || (read(&index), restarts::of_this_thread()))
            .meanwhile(|| looks_again(&index));
        assert_eq!(looks, 1, "{at}");
        assert!(found.is_some_and(|key| key.starts_with(b"abcdefghijk")), "{at}");
        index.check_invariants().unwrap();
    }
}

/// The slot that a seek looks at is emptied behind it: it has seen a record there, and looks no
/// further.
#[test]
fn a_slot_that_was_seen_filled_tells_though_it_is_emptied() {
    let index = with::<Rowex>(&[b"abcdefghijka", b"abcdefghijkb", b"abcdefghijkc"]);
    // In the first slot of the node stands the second key.
    let (found, looks) = held("art.some_leaf.filled_slot", || {
        (index.ceiling(b"abcdefghij0").map(|(key, _)| key), restarts::of_this_thread())
    })
    .meanwhile(|| assert!(index.remove(b"abcdefghijkb").is_some()));
    assert_eq!((found, looks), (Some(b"abcdefghijka".to_vec()), 0));
}

/// The entries of a node have moved from the larger side of the key to the smaller one, behind the
/// jump: it does not say that the tree is empty.
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

/// What misled a jump is gone when it comes there again from the root: it goes to a neighbour of
/// the gap, and not to the end of the node, beyond entries that stay.
#[test]
fn a_jump_that_was_misled_ends_beside_the_gap() {
    let gone: [&[u8]; 2] = [b"abcdefghijkb", b"abcdefghijkc"];
    let index = with::<Rowex>(&[b"A", gone[0], gone[1], b"b", b"z"]);
    let found =
        held("art.scan.before_record", || index.jump(b"abcdefghzjkb", |key, _| key.to_vec()))
            .meanwhile(|| gone.iter().for_each(|key| assert!(index.remove(key).is_some())));
    assert_eq!(found, Some(b"A".to_vec()));
}

/// All is gone when a jump that was misled by a prefix comes to the root again: it does not wait
/// there for an entry.
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
        // Lets it end if it waits.
        index.insert(b"z", &0).unwrap();
        found
    });
    assert_eq!(found, Ok(None));
}

/// Where keys of [`long`] may differ: with more bytes between than a node stores of its prefix.
const PLACES: [usize; 3] = [10, 19, 28];

/// Two bytes, and zeroes but for the byte at one of the places.
fn long(pair: [u8; 2], place: usize, byte: u8) -> Vec<u8> {
    let mut key = vec![0; PLACES[2] + 1];
    key[..2].copy_from_slice(&pair);
    key[PLACES[place]] = byte;
    key
}

/// Reads as `read` says while writers split and join the prefixes on its way; returns how often the
/// reader restarted or looked again. Each node has entries that stay: there is always one to be
/// met.
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

/// Whatever writers do, neither lookups nor batches nor scans nor jumps restart, and where an entry
/// of each node stays none looks at a node again; writers restart and finish.
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
    // Each time the places were come to in which second looks are counted: no prefix gets so short
    // that nodes store all of it.
    assert_eq!((scans_looked, jumps_looked), (8000, 8000));
}

/// The same writers are in the way of a reader that validates.
#[test]
fn the_same_reads_restart_an_optimistic_reader() {
    let read = |index: &Bytes<Olc>, key: &[u8]| {
        index.get(key);
        scan(index, key, Direction::Ascending);
    };
    assert!(restarts_beside_writers(read, |_, restarts| restarts > 0) > 0);
}

/// A reader does not wait for a lock either: the writer holds it and stands still.
#[test]
fn reads_never_wait() {
    let index = with::<Rowex>(&FORK);
    held("art.split.before_prefix", || index.insert(b"ax", &9).unwrap()).meanwhile(|| {
        // On this thread, so that a wait would last forever.
        assert_eq!(index.get(b"abc2"), Some(1));
        assert_eq!(index.first().map(|(_, value)| value), Some(0));
    });
}

/// The counter counts: the same interleaving restarts an optimistic reader once.
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
