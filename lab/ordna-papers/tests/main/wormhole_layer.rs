//! The MetaTrieHT as HydraList's search layer: it conforms to the same contract, and jumps end
//! where they should.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::ops::Bound;

use ordna_base::{Key, OrderedIndex};
use ordna_papers::HydraList;
use ordna_papers::hydralist::{HydraOptions, Update};
use ordna_papers::search_layer::{AnchorAddress, LayerStep, SearchLayer};
use ordna_papers::topology::Topology;
use ordna_papers::wormhole::layer::TableLayer;
use ordna_testkit::random::Random;

/// Addresses are numbers in these tests, as this layer treats them.
fn apply<K: Key + ?Sized>(
    layer: &TableLayer<K>,
    anchor: &K,
    step: LayerStep,
) -> Option<AnchorAddress> {
    #[expect(unsafe_code, reason = "places are followed by other layers")]
    // SAFETY: this layer does not follow addresses.
    unsafe {
        layer.apply(anchor, step)
    }
}

type Small<K, V> = HydraList<K, V, TableLayer<K>, 4>;

fn at_once() -> HydraOptions {
    HydraOptions { update: Update::Synchronous, ..HydraOptions::default() }
}

fn two_replicas() -> HydraOptions {
    HydraOptions { topology: Topology::declared(2), ..HydraOptions::default() }
}

ordna_testkit::conformance! {
    mod u64_words: Small<u64, u64> = HydraList::with(&at_once());
    mod bytes_bytes: Small<[u8], [u8]> = HydraList::with(&at_once());
}

// Two tables that are updated in the background.
ordna_testkit::conformance_in_background! {
    mod words_behind: Small<u64, u64> = HydraList::with(&two_replicas());
    mod bytes_behind: Small<[u8], [u8]> = HydraList::new();
}

/// Checks that a jump returns the address of the largest anchor not above the key, or of the next
/// one.
fn check_jump<K: Key + ?Sized>(
    layer: &TableLayer<K>,
    model: &BTreeMap<K::Owned, AnchorAddress>,
    key: &K,
) -> bool {
    let at = model.range::<K, _>((Bound::Unbounded, Bound::Included(key)));
    let at = at.last().map(|(_, place)| *place);
    let next = model.range::<K, _>((Bound::Excluded(key), Bound::Unbounded));
    let next = next.map(|(_, place)| *place).next();
    let jump = layer.jump(key);
    assert!(jump == at || jump == next, "{key:?}: {jump:?}, not {at:?} or {next:?}");
    jump == at
}

fn against_a_model<K: Key + ?Sized>(mut key: impl FnMut(&mut Random) -> K::Owned, keys: usize) {
    let layer = TableLayer::<K>::default();
    let mut model = BTreeMap::new();
    let mut random = Random::new(9);
    let mut place = 0;
    let mut exact = 0;
    for round in 0..200 {
        let mut left = Vec::new();
        let mut expected = Vec::new();
        for _ in 0..keys / 100 {
            let key = key(&mut random);
            let step = if round < 100 || random.below(4) == 0 {
                place += 8;
                expected.extend(model.insert(key.clone(), place));
                LayerStep::Insert(place)
            } else {
                // An anchor near the key, if the address is the one in the model, or nothing.
                let there = model
                    .range::<K, _>((Bound::Included(key.borrow()), Bound::Unbounded))
                    .next()
                    .map(|(key, place)| (key.clone(), *place));
                let (key, place) = there.unwrap_or((key, 1));
                expected.extend(model.remove(key.borrow()));
                left.extend(apply(&layer, key.borrow(), LayerStep::Remove(place + 1)));
                left.extend(apply(&layer, key.borrow(), LayerStep::Remove(place)));
                continue;
            };
            left.extend(apply(&layer, key.borrow(), step));
        }
        layer.publish(|place| left.push(place));
        assert_eq!(left, expected, "places that left in round {round}");
        let probes: Vec<K::Owned> = (0..64).map(|_| key(&mut random)).collect();
        let mut jumps = vec![None; probes.len()];
        layer.jump_many(&probes, &mut jumps);
        for (probe, jump) in probes.iter().zip(jumps) {
            assert_eq!(layer.jump(probe.borrow()), jump);
            exact += usize::from(check_jump(&layer, &model, probe.borrow()));
        }
        for probe in model.keys().step_by(keys / 500 + 1) {
            assert!(check_jump(&layer, &model, probe.borrow()), "{probe:?} is an anchor");
        }
    }
    let mut all = Vec::new();
    layer.for_each(|key, place| all.push((key.to_owned(), place)));
    assert!(all.iter().map(|(key, place)| (key, place)).eq(model.iter()));
    assert!(exact > 200 * 64 / 2, "{exact} of {} jumps are exact", 200 * 64);
}

#[test]
fn jumps_end_at_the_key_s_anchor_or_the_next() {
    against_a_model::<u64>(Random::next_u64, 20_000);
    against_a_model::<u64>(|random| random.below(3000), 5000);
    against_a_model::<[u8]>(
        |random| (0..random.below(40)).map(|_| random.below(3) as u8).collect(),
        20_000,
    );
    against_a_model::<[u8]>(
        |random| {
            [b"one long prefix of all keys ", &vec![0; random.below(300) as usize][..]].concat()
        },
        2000,
    );
}

/// There are many prefixes, so that some searches rely on a wrong tag.
#[test]
fn jumps_that_end_too_long_fall_back() {
    let layer = TableLayer::<[u8]>::default();
    let mut model = BTreeMap::new();
    let mut random = Random::new(11);
    let mut key =
        || -> Vec<u8> { (0..3 + random.below(12)).map(|_| random.below(4) as u8).collect() };
    for place in 1..60_000 {
        let anchor = key();
        model.insert(anchor.clone(), place);
        apply(&layer, &anchor, LayerStep::Insert(place));
    }
    layer.publish(|_| ());
    for _ in 0..200_000 {
        check_jump(&layer, &model, &*key());
    }
}

/// One jump stalls in each of the two tables. The updater continues with a copy, and the jumps
/// return correct results.
#[cfg(debug_assertions)]
#[test]
fn jumps_that_stall_in_both_tables_stop_no_update() {
    let layer = TableLayer::<u64>::default();
    let round = |place: AnchorAddress| {
        for anchor in 0..100_u64 {
            apply(&layer, &(anchor << 40), LayerStep::Insert(place + anchor as usize));
        }
        for anchor in (1..100_u64).step_by(2) {
            apply(&layer, &(anchor << 40), LayerStep::Remove(place + anchor as usize));
        }
        layer.publish(|_| ());
    };
    round(1000);
    let schedule = ordna_base::sync::schedule::Schedule::new();
    let roles = ["first", "second", "third"];
    for role in roles {
        schedule.hold(role, "wormhole.layer.table");
    }
    std::thread::scope(|scope| {
        let jumps = (1..).zip(roles).map(|(number, role)| {
            let (schedule, layer) = (&schedule, &layer);
            let jump = scope.spawn(move || schedule.enroll(role, || layer.jump(&(51 << 40))));
            schedule.wait_held(role, "wormhole.layer.table");
            round(1000 * (number + 1));
            assert_eq!(layer.jump(&(51 << 40)), Some(1000 * (number + 1) + 50));
            jump
        });
        let jumps: Vec<_> = jumps.collect();
        for role in roles {
            schedule.release(role, "wormhole.layer.table");
        }
        for jump in jumps {
            // Its signpost still exists, and leads to its latest address.
            assert_eq!(jump.join().unwrap(), Some(4050));
        }
    });
}

/// Threads jump while nodes are split and merged, and the nodes that they reach are alive.
#[test]
fn readers_jump_while_the_table_follows() {
    let index = Small::<u64, u64>::new();
    let keys: Vec<u64> = (0..3000_u64).map(|n| n.wrapping_mul(0x9E37_79B9_7F4A_7C15)).collect();
    for key in keys.iter().step_by(2) {
        index.insert(key, &!key).unwrap();
    }
    std::thread::scope(|scope| {
        let readers = [0, 1].map(|_| {
            scope.spawn(|| {
                for key in keys.iter().step_by(2).cycle().take(60_000) {
                    assert_eq!(index.get(key), Some(!key));
                }
            })
        });
        while !readers.iter().all(|reader| reader.is_finished()) {
            for key in keys.iter().skip(1).step_by(2) {
                index.insert(key, &!key).unwrap();
            }
            for key in keys.iter().skip(1).step_by(2) {
                assert_eq!(index.remove(key), Some(!key));
            }
        }
    });
    assert_eq!(index.check_invariants().unwrap().entries, 1500);
}
