//! Two tables that follow a list of anchors, one of them some steps behind the other, as in `twin`.

#![expect(unsafe_code, reason = "a leaf as a word")]

use std::collections::VecDeque;

use ordna_testkit::random::Random;

use super::search::Stage;
use super::{Table, TableLeaf, TableStep};
use crate::wormhole::switches::Switches;

/// A place that consists only of its anchor.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Anchor(*mut Vec<u8>);

impl TableLeaf for Anchor {
    fn word(self) -> u64 {
        self.0.expose_provenance() as u64
    }

    unsafe fn from_word(word: u64) -> Self {
        Self(std::ptr::with_exposed_provenance_mut(word as usize))
    }

    fn anchor(&self) -> &[u8] {
        // SAFETY: boxed by `Anchor::new`, and freed only when neither table has it.
        unsafe { &*self.0 }
    }
}

impl Anchor {
    fn new(anchor: Vec<u8>) -> Self {
        Self(Box::into_raw(Box::new(anchor)))
    }

    fn free(self) {
        // SAFETY: boxed by `new`, and the callers do not use it any more.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

/// Both tables and their expected contents.
struct Lists {
    leaves: Vec<Anchor>,
    tables: [Table<Anchor>; 2],
    /// Steps that the second table lacks.
    behind: VecDeque<TableStep<Anchor>>,
    version: [u64; 2],
}

impl Lists {
    fn new(switches: Switches) -> Self {
        let first = Anchor::new(Vec::new());
        let table = Table::new(first, switches);
        let tables = [table.clone(), table];
        Self { leaves: vec![first], tables, behind: VecDeque::new(), version: [0; 2] }
    }

    /// Returns the number of anchors that are not above the key.
    fn rank(&self, key: &[u8]) -> usize {
        self.leaves.partition_point(|leaf| leaf.anchor() <= key)
    }

    /// Adds an absent anchor, or removes an existing one, as requested.
    fn change(&mut self, anchor: &[u8], come: bool, ended: usize) {
        let at = self.rank(anchor);
        let there = self.leaves[at - 1].anchor() == anchor;
        if there == come || anchor.is_empty() {
            return;
        }
        let (place, left) = if come {
            (Anchor::new(anchor.to_vec()), at - 1)
        } else {
            (self.leaves.remove(at - 1), at - 2)
        };
        let right = self.leaves.get(left + 1).copied();
        let outer = left.checked_sub(1).map(|outer| self.leaves[outer]);
        if come {
            self.leaves.insert(at, place);
        }
        let step = TableStep { place, came: come, left: self.leaves[left], right, outer, ended };
        self.version[0] += 1;
        self.tables[0].apply(&step, self.version[0]);
        self.behind.push_back(step);
    }

    /// Applies the missing steps to the second table, and frees what is in neither table.
    fn follow(&mut self) {
        for step in &self.behind {
            self.version[1] += 1;
            self.tables[1].apply(step, self.version[1]);
        }
        self.behind.drain(..).filter(|step| !step.came).for_each(|step| step.place.free());
    }

    /// Searches for the keys. Returns how often tags were wrong.
    fn check(&self, keys: &[Vec<u8>]) -> usize {
        let mut lies = 0;
        let table = &self.tables[0];
        let groups = keys.as_chunks::<4>().0;
        let many = groups.iter().flat_map(|g| table.search_many(g.each_ref().map(|k| Some(&**k))));
        for (key, many) in keys.iter().zip(many) {
            let right = self.leaves[self.rank(key) - 1];
            for found in [table.search(key), many] {
                let found = found.filter(|found| found.agrees(key));
                lies += usize::from(found.is_none());
                assert!(found.is_none_or(|found| found.place == right), "{key:?}");
            }
            let found = table.search_by_comparing(key).filter(|found| found.agrees(key));
            assert_eq!(found.map(|found| found.place), Some(right), "{key:?} by comparing");
        }
        lies
    }

    fn free(self) {
        let gone = self.behind.iter().filter(|step| !step.came).map(|step| step.place);
        gone.chain(self.leaves).for_each(Anchor::free);
    }
}

/// Adds and removes anchors, in phases of growth and shrinkage. Returns how often tags were wrong.
fn comes_and_goes(
    seed: u64,
    steps: usize,
    most: usize,
    mut key: impl FnMut(&mut Random) -> Vec<u8>,
) -> usize {
    let mut random = Random::new(seed);
    let mut lies = 0;
    for tag_matching in [true, false] {
        let mut lists = Lists::new(Switches { tag_matching, ..Switches::default() });
        let mut grows = true;
        for _ in 0..steps {
            let len = lists.leaves.len();
            grows = if grows { len < most } else { len < 3 };
            let come = random.below(4) > if grows { 0 } else { 2 };
            let (anchor, ended) = (key(&mut random), random.below(80) as usize);
            let anchor = if come {
                anchor
            } else {
                lists.leaves[random.below(len as u64) as usize].anchor().to_vec()
            };
            lists.change(&anchor, come, ended);
            lists.tables[0].check_invariants(&lists.leaves).unwrap();
            if random.below(12) == 0 {
                lists.follow();
                lists.tables[1].check_invariants(&lists.leaves).unwrap();
                if random.below(2) == 0 {
                    lists.tables.swap(0, 1);
                    lists.version.swap(0, 1);
                }
            }
            let mut probes: Vec<Vec<u8>> = (0..6).map(|_| key(&mut random)).collect();
            probes.extend([Vec::new(), anchor]);
            lies += lists.check(&probes);
        }
        lists.free();
    }
    lies
}

fn letters(random: &mut Random, length: u64, letters: u64) -> Vec<u8> {
    (0..random.below(length + 1)).map(|_| (random.below(letters) * 7) as u8).collect()
}

#[test]
fn tables_follow_their_list() {
    // Chains and ends, items with more children than they know, and all bytes.
    comes_and_goes(1, 1000, 60, |random| letters(random, 14, 2));
    comes_and_goes(2, 1000, 60, |random| letters(random, 4, 13));
    comes_and_goes(3, 1000, 40, |random| letters(random, 2, 30));
    comes_and_goes(4, 600, 300, |random| letters(random, 3, 256));
    comes_and_goes(5, 500, 40, |random| {
        [vec![b'p'; 20 + random.below(3) as usize * 9], letters(random, 12, 12)].concat()
    });
    comes_and_goes(6, 60, 9, |random| {
        [vec![b'p'; random.below(2) as usize * 1500], letters(random, 4, 3)].concat()
    });
}

/// The strings have the same length and the same hash, whatever precedes them: CRC is linear, and
/// they differ by its polynomial.
#[test]
fn tables_whose_hashes_collide_follow_their_list() {
    let one = *b"abcde";
    let polynomial = (0x82F6_3B78_u64 << 1 | 1).to_le_bytes();
    let other: [u8; 5] = std::array::from_fn(|at| one[at] ^ polynomial[at]);
    let hash = |bytes: &[u8]| crate::wormhole::hash::extend(crate::wormhole::hash::EMPTY, bytes);
    assert_eq!(hash(&one), hash(&other));
    assert_eq!(hash(&[b"xy", &one[..]].concat()), hash(&[b"xy", &other[..]].concat()));
    let key = |random: &mut Random| {
        let mut key = Vec::new();
        for _ in 0..random.below(5) {
            match random.below(5) {
                0 | 1 => key.extend(one),
                2 | 3 => key.extend(other),
                _ => key.push(b"ab"[random.below(2) as usize]),
            }
        }
        key.truncate(key.len() - (random.below(3) as usize).min(key.len()));
        key.extend(letters(random, 1, 14));
        key
    };
    let lies = comes_and_goes(7, 1000, 60, key) + comes_and_goes(8, 600, 400, key);
    assert!(lies > 1000, "{lies} searches went wrong");
}

/// Returns four bytes that do not change the hash of what precedes them.
fn neutral(before: &[u8]) -> [u8; 4] {
    let hash = crate::wormhole::hash::extend(crate::wormhole::hash::EMPTY, before);
    // Four bytes are mixed into the hash, which then takes 32 steps. This reverses these steps.
    let back = (0..32).fold(hash, |hash, _| match hash >> 31 {
        0 => hash << 1,
        _ => (hash ^ 0x82F6_3B78) << 1 | 1,
    });
    (hash ^ back).to_le_bytes()
}

/// A prefix and an anchor that starts with it have the same hash, so a search for the leaf of the
/// prefix may find the longer anchor.
#[test]
fn tables_whose_prefixes_collide_with_longer_ones_follow_their_list() {
    let hash = |bytes: &[u8]| crate::wormhole::hash::extend(crate::wormhole::hash::EMPTY, bytes);
    let longer = [&b"pA"[..], &neutral(b"pA")].concat();
    assert_eq!(hash(b"pA"), hash(&longer));
    let key = |random: &mut Random| {
        // More children than an item knows.
        let mut key = vec![b'p', b'A' + random.below(20) as u8];
        if random.below(2) == 0 {
            let bytes = neutral(&key);
            key.extend(bytes);
        }
        if random.below(3) == 0 {
            key.push(0xFF - random.below(2) as u8);
        }
        key
    };
    for seed in 10..16 {
        comes_and_goes(seed, 1000, 40, key);
    }
}

/// Returns the number of buckets and items that a search reads.
fn steps(table: &Table<Anchor>, key: &[u8]) -> usize {
    let (mut search, mut steps) = (table.begin(key), 0);
    while !matches!(search.stage, Stage::Done(_)) {
        table.step(&mut search, key, false);
        steps += 1;
    }
    steps
}

/// Where searches begin does not affect results, but only the number of steps, which this test
/// counts. Keys of one kind differ in their third byte, those of the other in their twentieth. With
/// only the first kind, all lengths would be short, and their mean would be sufficient.
#[test]
fn searches_begin_where_they_end() {
    let key = |random: &mut Random, kind: u64| {
        let mut key = vec![b'a' + kind as u8, random.below(9) as u8, random.below(9) as u8];
        key.extend([b'-'; 17].iter().take(if kind == 1 { 17 } else { 0 }));
        key.extend((0..3).map(|_| random.below(8) as u8));
        key
    };
    let mut random = Random::new(9);
    for kinds in [1, 2] {
        let mut lists = Lists::new(Switches::default());
        for _ in 0..1500 * kinds {
            let kind = random.below(kinds);
            let mut anchor = key(&mut random, kind);
            anchor.pop();
            let ended = lists.tables[0].search(&anchor).map_or(0, |found| found.item_length());
            lists.change(&anchor, true, ended);
        }
        for kind in 0..kinds {
            let keys: Vec<_> = (0..2000).map(|_| key(&mut random, kind)).collect();
            lists.check(&keys);
            let steps = keys.iter().map(|key| steps(&lists.tables[0], key)).sum::<usize>();
            // At best three steps: the root, a bucket and its item.
            assert!(
                steps * 10 < 36 * keys.len(),
                "{} steps for {}, of {kinds} kinds",
                steps,
                keys.len()
            );
        }
        lists.free();
    }
}
