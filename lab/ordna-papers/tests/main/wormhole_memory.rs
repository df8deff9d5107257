//! Memory of leaves in slabs, counted for the whole process.

use std::borrow::Borrow;

use ordna_base::{Key, OrderedIndex};
use ordna_papers::Wormhole;
use ordna_testkit::memory::live_everywhere;

use crate::own_process::in_own_process;

/// Number of bytes that a collector may keep for a batch of frees, and that the allocator adds.
const SLACK: i64 = 1 << 20;

/// There are more leaves than are allocated individually. Freed ones are reused, and slabs are
/// freed.
fn check<K: Key + ?Sized>(keys: u64, key: impl Fn(u64) -> K::Owned) {
    let before = live_everywhere();
    let index = Wormhole::<K, u64>::new();
    let told = || index.memory_usage().total() as i64;
    let mut full = Vec::new();
    for _ in 0..2 {
        for n in 0..keys {
            index.insert(key(n).borrow(), &n).unwrap();
        }
        let bytes = live_everywhere() - before;
        assert!((bytes - told()).abs() < SLACK, "{bytes} bytes, and {} told", told());
        full.push(bytes);
        assert!((0..keys).all(|n| index.get(key(n).borrow()) == Some(n)));
        for n in 0..keys {
            assert_eq!(index.remove(key(n).borrow()), Some(n));
        }
        assert_eq!(index.check_invariants().unwrap().nodes, 1);
    }
    // Merged leaves that are not freed yet keep slabs, which the index must report.
    let empty = live_everywhere() - before;
    assert!((empty - told()).abs() < SLACK, "{empty} bytes, and {} told", told());
    assert!(empty < full[0] / 2, "{empty} bytes of {full:?} stay");
    assert!(full.iter().all(|bytes| *bytes < full[0] + full[0] / 5 + SLACK), "{full:?}");
    drop((index, full));
    let left = live_everywhere() - before;
    assert!(left.abs() < 4096, "{left} bytes are left after the drop");
}

#[test]
fn leaves_come_back() {
    in_own_process("wormhole_memory::leaves_come_back", || {
        let mixed = |n: u64| n.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        check::<u64>(600_000, mixed);
        // Anchors for leaves of two sizes that come from slabs, and for one that does not.
        check::<[u8]>(1_000_000, |n| {
            let shared = [0, 110, 400][[0, 1, 0, 1, 0, 1, 0, 1, 0, 2][n as usize % 10]];
            [&[shared as u8][..], &vec![b'p'; shared], &mixed(n).to_be_bytes()].concat()
        });
    });
}
