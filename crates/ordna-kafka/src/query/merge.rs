//! Merges the rows of several answers in order.
//!
//! # Invariants
//! Every input is sorted in the direction of the scan and contains the first rows of its
//! partitions; `more` says that further rows follow its last one. The merge takes the first row of
//! all inputs, but only while each input either has a row left or has no further rows. Otherwise, a
//! row that an input did not send could come before the rows of the others.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use ordna::sync::fault;

use crate::query::rows::Run;

/// The result of a merge.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Merged {
    /// For each row, the input that it comes from, and its index there.
    pub rows: Vec<(usize, usize)>,
    /// Whether further rows follow.
    pub more: bool,
}

/// The next row of an input.
struct Head<'k> {
    key: &'k [u8],
    input: usize,
    row: usize,
    reverse: bool,
}

impl Ord for Head<'_> {
    /// The heap returns its greatest element first, so the first row must compare as the greatest.
    fn cmp(&self, other: &Self) -> Ordering {
        let order = self.key.cmp(other.key);
        // Of equal keys, the one of the earlier input comes first.
        (if self.reverse { order } else { order.reverse() }).then(other.input.cmp(&self.input))
    }
}

impl PartialOrd for Head<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Head<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Head<'_> {}

/// Merges rows in order, without duplicates, up to `limit` rows or `bytes` bytes of keys. The first
/// row is taken whatever its length. Of several rows with the same `group` only the first is taken.
/// O(rows · log inputs).
pub fn merge(
    inputs: &[&Run],
    reverse: bool,
    (limit, bytes): (usize, usize),
    group: impl Fn(&[u8]) -> &[u8],
) -> Merged {
    let head = |input: usize, row: usize| {
        let rows = &inputs[input].rows;
        (row < rows.len()).then(|| Head { key: rows.key(row), input, row, reverse })
    };
    let mut merged = Merged::default();
    let mut heads: BinaryHeap<Head<'_>> = (0..inputs.len()).filter_map(|n| head(n, 0)).collect();
    let (mut last, mut taken): (Option<&[u8]>, usize) = (None, 0);
    while let Some(Head { key, input, row, .. }) = heads.pop() {
        let is_new = last.is_none_or(|last| group(last) != group(key));
        if is_new || fault!("queries.group_comes_once") {
            let is_full = merged.rows.len() == limit;
            if is_full || !merged.rows.is_empty() && taken + key.len() > bytes {
                merged.more = true;
                break;
            }
            taken += key.len();
            merged.rows.push((input, row));
            last = Some(key);
        }
        match head(input, row + 1) {
            Some(next) => heads.push(next),
            None if inputs[input].more && !fault!("queries.cut_is_no_end") => {
                merged.more = true;
                break;
            }
            None => {}
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::query::rows::Rows;

    fn run(keys: &[Vec<u8>], more: bool) -> Run {
        let mut rows = Rows::default();
        keys.iter().for_each(|key| rows.push(key, 0));
        Run { rows, more }
    }

    proptest! {
        /// For any inputs, and wherever they are cut off, the merge returns the first of all keys
        /// in order. It ends early only if an input was cut off, and it reports this.
        #[test]
        fn a_merge_is_a_prefix_of_all_keys_in_order(
            inputs in prop::collection::vec((
                prop::collection::btree_set(prop::collection::vec(0..3_u8, 1..4), 0..12),
                1..12_usize,
            ), 0..5),
            reverse: bool,
            limit in 0..30_usize,
            bytes in 1..60_usize,
            prefix in 1..5_usize,
        ) {
            let group = |key: &'_ [u8]| -> usize { key.len().min(prefix) };
            let sorted = |keys: &BTreeSet<Vec<u8>>| {
                let mut keys: Vec<_> = keys.iter().cloned().collect();
                if reverse { keys.reverse() }
                keys
            };
            let union: BTreeSet<Vec<u8>> =
                inputs.iter().flat_map(|(keys, _)| keys.iter().cloned()).collect();
            let mut all = sorted(&union);
            all.dedup_by(|next, kept| next[..group(next)] == kept[..group(kept)]);
            let runs: Vec<Run> = inputs
                .iter()
                .map(|(keys, cut)| {
                    let keys = sorted(keys);
                    let cut = keys.len().min(*cut);
                    run(&keys[..cut], cut < keys.len())
                })
                .collect();
            let refs: Vec<&Run> = runs.iter().collect();
            let merged = merge(&refs, reverse, (limit, bytes), |key| &key[..group(key)]);
            let keys: Vec<&[u8]> =
                merged.rows.iter().map(|(input, row)| runs[*input].rows.key(*row)).collect();
            let expected: Vec<&[u8]> = all.iter().map(|key| &key[..]).take(keys.len()).collect();
            prop_assert_eq!(&keys, &expected);
            let sum: usize = keys.iter().map(|key| key.len()).sum();
            prop_assert!(keys.len() <= limit && (sum <= bytes || keys.len() == 1));
            prop_assert!(merged.more || keys.len() == all.len());
            let was_cut = runs.iter().any(|run| run.more);
            let is_full = keys.len() == limit
                || sum + all.get(keys.len()).map_or(0, Vec::len) > bytes;
            prop_assert!(!merged.more || was_cut || is_full);
            // A scan makes progress.
            prop_assert!(!keys.is_empty() || all.is_empty() || limit == 0);
        }
    }

    #[test]
    fn equal_keys_of_two_inputs_come_once() {
        let keys = [b"a".to_vec(), b"b".to_vec()];
        let (one, two) = (run(&keys, false), run(&keys[1..], false));
        let merged = merge(&[&one, &two], false, (10, 100), |key| key);
        assert_eq!(merged, Merged { rows: vec![(0, 0), (0, 1)], more: false });
    }
}
