//! Tests of the jump of a search layer, which ends next to the key.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};

use ordna_base::OrderedIndex;
use ordna_papers::ArtRowex;
use ordna_papers::art::{Art, Concurrent, Minimal, Rowex};
use ordna_testkit::kinds::TestKey;
use ordna_testkit::random::Random;

/// Returns the neighbours of `key` in `all`, or `key` itself.
fn around(all: &BTreeSet<Vec<u8>>, key: &[u8]) -> (Option<Vec<u8>>, Option<Vec<u8>>) {
    let below = all.range::<[u8], _>((Bound::Unbounded, Bound::Included(key))).next_back();
    let above = all.range::<[u8], _>((Bound::Included(key), Bound::Unbounded)).next();
    (below.cloned(), above.cloned())
}

fn jump_to(index: &ArtRowex<[u8], u64>, key: &[u8]) -> Option<Vec<u8>> {
    index.jump(key, |key, _| key.to_vec())
}

#[test]
fn an_empty_index_has_nowhere_to_jump() {
    assert_eq!(jump_to(&ArtRowex::new(), b"key"), None);
}

#[test]
fn the_example_of_the_paper() {
    let index = ArtRowex::<[u8], u64>::new();
    for (anchor, node) in [(b"AAA".as_slice(), 1), (b"BBB", 2), (b"CAB", 3)] {
        index.insert(anchor, &node).unwrap();
    }
    // Figure 3: BAA leads to the leaf of BBB, which is above it. Here the jump continues to AAA,
    // whose range contains the key.
    assert_eq!(jump_to(&index, b"BAA"), Some(b"AAA".to_vec()));
    assert_eq!(index.jump(b"AAC", |_, node| *node), Some(1));
    assert_eq!(index.jump(b"D", |_, node| *node), Some(3), "nearest smaller");
    assert_eq!(index.jump(b"0", |_, node| *node), Some(1), "else nearest larger");
}

#[test]
fn a_jump_ends_at_the_key_or_a_neighbour() {
    let index = ArtRowex::<[u8], u64>::new();
    let mut all = BTreeSet::new();
    let mut random = Random::new(5);
    for round in 0..400_u64 {
        let key = <[u8] as TestKey>::number(random.below(600));
        if random.below(4) == 0 {
            index.remove(&key);
            all.remove(&key);
        } else {
            index.insert(&key, &round).unwrap();
            all.insert(key);
        }
        for n in 0..40 {
            let mut key = <[u8] as TestKey>::number(n * 15 + round % 15);
            if n % 3 == 0 {
                key.extend([b'a'; 9]);
            }
            let found = jump_to(&index, &key);
            let (below, above) = around(&all, &key);
            let next_to = found.is_some() && (found == below || found == above);
            assert!(next_to || all.is_empty(), "{key:?}: {found:?}, not {below:?} or {above:?}");
            assert!(!all.contains(&key) || found.as_ref() == Some(&key), "not the key itself");
        }
    }
}

/// With one writer and several readers, no anchor that stays is between the key and the end of the
/// jump.
fn readers_beside_a_writer<P: Concurrent>(
    jump: impl Fn(&Art<[u8], u64, P>, &[u8]) -> Option<Vec<u8>> + Sync,
) {
    let index = Art::<[u8], u64, P>::new();
    let staying: BTreeSet<Vec<u8>> = (0..300).step_by(3).map(<[u8] as TestKey>::number).collect();
    staying.iter().for_each(|key| {
        index.insert(key, &0).unwrap();
    });
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for reader in 0..2 {
            let (index, staying, done, jump) = (&index, &staying, &done, &jump);
            scope.spawn(move || {
                let mut random = Random::new(reader);
                while !done.load(Ordering::Relaxed) {
                    let key = <[u8] as TestKey>::number(random.below(300));
                    let found = jump(index, &key).expect("never empty");
                    let (below, above) = around(staying, &key);
                    assert!(below.is_none_or(|below| below <= found), "{key:?}: {found:?}");
                    assert!(above.is_none_or(|above| found <= above), "{key:?}: {found:?}");
                }
            });
        }
        let mut random = Random::new(99);
        for round in 0..60_000_u64 {
            let n = random.below(300);
            let key = <[u8] as TestKey>::number(n);
            if n.is_multiple_of(3) || round % 2 == 0 {
                index.insert(&key, &round).unwrap();
            } else {
                index.remove(&key);
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    index.check_invariants().unwrap();
}

#[test]
fn readers_jump_beside_a_writer() {
    readers_beside_a_writer::<Rowex>(|index, key| index.jump(key, |key, _| key.to_vec()));
}

#[test]
fn readers_jump_beside_a_writer_minimal() {
    readers_beside_a_writer::<Minimal<Rowex>>(|index, key| index.jump(key, |key, _| key.to_vec()));
}
