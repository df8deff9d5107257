//! Keys and bounds for which published radix trees fail, and the cost of long prefixes.

use crate::art_trees::{Bytes, keys, scan, under, with};
use ordna_base::{Direction, OrderedIndex};
use ordna_papers::art::{Art, Concurrent, Coupling, Olc, Rowex, steps};

mod pitfall_3_range_bounds {
    use super::*;

    fn the_whole_key_of_a_leaf_is_compared_with_both_bounds<P: Concurrent>() {
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
        // There is an empty slot, or a leaf, on the path that both bounds share.
        assert_eq!(index.range((0x06 << 56)..=(0x06 << 56 | 9)).count(), 0);
        assert_eq!(index.range(keys[2]..=keys[2]).count(), 1);
        assert_eq!(index.range(keys[2] + 1..=keys[2] + 9).count(), 0);
    }

    under! {
        the_whole_key_of_a_leaf_is_compared_with_both_bounds: Olc, Rowex, Coupling;
    }
}

mod pitfall_4_prefixes_longer_than_stored {
    use super::*;

    const LONG: [&[u8]; 2] = [b"abcdefghijklm1", b"abcdefghijklm2"];

    fn a_difference_in_the_part_that_is_not_stored_is_found<P: Concurrent>() {
        let others: [&[u8]; 5] =
            [b"abcdefghiX", b"abcdefghijklX1", b"abcdefghi", b"abcdefghijk", b"abcdefghXjklm1"];
        for other in others {
            let index = with::<P>(&LONG);
            assert_eq!((index.get(other), index.remove(other)), (None, None));
            let mut all = [LONG[0], LONG[1], other];
            all.sort_unstable();
            let ceiling = all.iter().find(|key| **key > other);
            assert_eq!(index.ceiling(other).map(|(key, _)| key), ceiling.map(|key| key.to_vec()));
            assert_eq!(index.insert(other, &9), Ok(None), "{other:?}");
            assert_eq!(keys(&scan(&index, b"", Direction::Ascending)), all);
            index.check_invariants().unwrap();
            assert_eq!(index.remove(other), Some(9));
            index.check_invariants().unwrap();
        }
    }

    /// Returns a chain of nodes, each with a prefix that is not stored completely, and the key at
    /// its end.
    fn chain<P: Concurrent>(len: usize) -> (Bytes<P>, Vec<u8>) {
        let index = Bytes::<P>::new();
        let base = vec![b'a'; len];
        index.insert(&base, &0).unwrap();
        for end in (8..len).step_by(8) {
            let mut key = base[..end].to_vec();
            key[end - 1] = b'b';
            index.insert(&key, &1).unwrap();
        }
        (index, base)
    }

    /// Returns keys that differ from a prefix at bytes that are not stored: near the top, in the
    /// middle, at the end.
    fn beside(base: &[u8]) -> impl Iterator<Item = Vec<u8>> {
        let len = base.len();
        [len - len % 8 - 10, len / 2 / 8 * 8 + 6, 14].into_iter().map(|at| {
            let mut key = base.to_vec();
            key[at] = b'c';
            key
        })
    }

    /// Checks that `act` takes a number of steps proportional to the length of the key, and at
    /// least `least`.
    fn assert_is_linear(len: usize, what: &str, least: usize, act: impl FnOnce()) {
        let before = steps::of_this_thread();
        act();
        let steps = steps::of_this_thread() - before;
        assert!((least..=6 * len).contains(&steps), "{what}, {len} bytes: {steps} steps");
    }

    /// One record is sufficient to check all prefixes.
    fn a_chain_of_long_prefixes_costs_the_length_of_the_key<P: Concurrent>() {
        for len in [500, 4000] {
            let (index, base) = chain::<P>(len);
            let is_linear =
                |what: &str, least, act: &dyn Fn()| assert_is_linear(len, what, least, act);
            for key in beside(&base) {
                let own = Some((base.clone(), 0));
                is_linear("ceiling", len, &|| assert_eq!(index.ceiling(&base), own));
                is_linear("floor", 1, &|| assert!(index.floor(&key).is_some_and(|f| f.0 > base)));
                is_linear("vain removal", 1, &|| assert_eq!(index.remove(&key), None));
                is_linear("insert", 1, &|| assert_eq!(index.insert(&key, &7), Ok(None)));
                // There are none if the prefixes above it are now short.
                is_linear("update", 0, &|| assert_eq!(index.insert(&key, &8), Ok(Some(7))));
                is_linear("removal", 0, &|| assert_eq!(index.remove(&key), Some(8)));
            }
            index.check_invariants().unwrap();
        }
    }

    /// The same for a jump.
    #[test]
    fn a_jump_along_long_prefixes_costs_the_length_of_the_key() {
        let (index, base) = chain::<Rowex>(4000);
        for key in beside(&base) {
            let above = index.floor(&key);
            assert_is_linear(base.len(), "jump", 1, || {
                assert_eq!(index.jump(&key, |key, value| (key.to_vec(), *value)), above);
            });
        }
    }

    under! {
        a_difference_in_the_part_that_is_not_stored_is_found: Olc, Rowex, Coupling;
        a_chain_of_long_prefixes_costs_the_length_of_the_key: Olc, Rowex, Coupling;
    }
}

mod pitfall_5_keys_that_are_prefixes {
    use super::*;

    fn any_key_may_be_a_prefix_of_another<P: Concurrent>() {
        let keys: [&[u8]; 9] =
            [b"", b"\0", b"\0\0", b"\0\0\xff", b"a", b"a\0", b"a\0\0", b"aa", b"aaaaaaaaaaaaaaaa"];
        for rotation in 0..keys.len() {
            let mut order = keys;
            order.rotate_left(rotation);
            let index = with::<P>(&order);
            assert_eq!(index.insert(order[0], &77), Ok(Some(0)), "a duplicate");
            assert_eq!(super::keys(&scan(&index, b"", Direction::Ascending)), keys);
            let mut back = scan(&index, &[0xFF; 3], Direction::Descending);
            back.reverse();
            assert_eq!(super::keys(&back), keys);
            index.check_invariants().unwrap();
            for (at, key) in order.iter().enumerate() {
                assert!(index.remove(key).is_some());
                assert_eq!(index.check_invariants().unwrap().entries, keys.len() - at - 1);
            }
        }
    }

    under! {
        any_key_may_be_a_prefix_of_another: Olc, Rowex, Coupling;
    }
}
