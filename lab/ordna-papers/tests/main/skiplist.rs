//! Tests of the lock-free skip list.

use ordna_papers::skiplist::{Fanout, ListOptions, SkipList};

const PUBLISHED: ListOptions = ListOptions { fanout: Fanout::Four, shortcuts: false };

ordna_testkit::conformance! {
    mod u64_words: SkipList<u64, u64> = SkipList::new();
    mod u64_bytes: SkipList<u64, [u8]> = SkipList::new();
    mod bytes_words: SkipList<[u8], u64> = SkipList::new();
    mod bytes_bytes: SkipList<[u8], [u8]> = SkipList::new();
    mod published: SkipList<u64, u64> = SkipList::with(PUBLISHED);
}

/// A list without shortcuts has no table, and keeps no removed nodes for one.
#[test]
fn without_shortcuts_there_is_no_table() {
    use ordna_base::OrderedIndex;
    for (options, has_table) in [(PUBLISHED, false), (ListOptions::default(), true)] {
        let index = SkipList::<u64, u64>::with(options);
        for key in 0..20_000_u64 {
            index.insert(&key.wrapping_mul(0x9E37_79B9_7F4A_7C15), &key).unwrap();
        }
        for key in 0..10_000_u64 {
            assert!(index.remove(&key.wrapping_mul(0x9E37_79B9_7F4A_7C15)).is_some());
        }
        let usage = index.memory_usage();
        let part = |name| usage.parts.iter().find(|part| part.0 == name).map(|part| part.1);
        assert_eq!(part("shortcuts").is_some_and(|bytes| bytes > 0), has_table);
        assert!(has_table || part("held nodes") == Some(0));
        index.check_invariants().unwrap();
    }
}

/// With a ratio of four nodes to one on the next level, there are a third fewer links than with
/// two.
#[test]
fn a_fanout_of_four_has_fewer_links() {
    use ordna_base::OrderedIndex;
    let bytes = |fanout| {
        let index = SkipList::<u64, u64>::with(ListOptions { fanout, shortcuts: false });
        (0..30_000_u64).for_each(|key| drop(index.insert(&key, &key)));
        index.memory_usage().parts.iter().find(|part| part.0 == "nodes").unwrap().1 as f64
            / 30_000.0
    };
    let (two, four) = (bytes(Fanout::Two), bytes(Fanout::Four));
    // Two links per node on average, and one and a third.
    assert!((two - four - 16.0 / 3.0).abs() < 0.5, "{two} {four}");
}
