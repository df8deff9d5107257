//! Histories of random transactions, checked for serializability.
//!
//! Each value is the list of the operations that appended to it. So a read shows which appends
//! preceded it, and the lists at the end show the order of all appends to a key. This determines
//! the dependencies between operations, as Adya defines them: an append depends on the append
//! before it, a read depends on the last append that it saw, and an append depends on each read
//! that did not see it yet. The history is serializable if and only if the dependencies have no
//! cycle. An operation that reads a range depends on each key in it, including absent ones.

use std::collections::{BTreeMap, BTreeSet};
use std::thread;
use std::time::Instant;

use ordna::{Change, Error, Options, Store, Transaction};
use ordna_testkit::budget;
use ordna_testkit::random::Random;

type Lists = Store<u64, [u8]>;
type Reads = Vec<(u64, Vec<u32>)>;

const KEYS: u64 = 6;

/// What an operation read, and where it appended.
#[derive(Debug)]
struct Operation {
    number: u32,
    reads: Reads,
    appends: BTreeSet<u64>,
}

fn numbers(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|four| u32::from_le_bytes(four.try_into().unwrap())).collect()
}

fn appended(bytes: Option<&[u8]>, number: u32) -> Vec<u8> {
    [bytes.unwrap_or_default(), &number.to_le_bytes()].concat()
}

/// Adds the keys that the read of a range did not find, as absent ones.
fn of_range(keys: std::ops::Range<u64>, found: impl Iterator<Item = (u64, Vec<u8>)>) -> Reads {
    let found: BTreeMap<u64, Vec<u8>> = found.collect();
    keys.map(|key| (key, numbers(found.get(&key).map_or(&[], Vec::as_slice)))).collect()
}

/// Runs the steps of a transaction, which are the same in each attempt.
fn steps(
    tx: &Transaction<'_, u64, [u8]>,
    number: u32,
    plan: &[(u64, u64)],
) -> Result<Operation, Error> {
    let mut operation = Operation { number, reads: Vec::new(), appends: BTreeSet::new() };
    for (what, key) in plan {
        match what {
            0..4 => {
                let value = tx.get(*key);
                operation.reads.push((*key, numbers(value.as_deref().unwrap_or_default())));
            }
            4..8 => {
                let value = tx.get(*key);
                tx.put(*key, appended(value.as_deref(), number))?;
                operation.reads.push((*key, numbers(value.as_deref().unwrap_or_default())));
                operation.appends.insert(*key);
            }
            8 => {
                let range = *key..KEYS;
                operation.reads.extend(of_range(range.clone(), tx.range(range)));
            }
            _ => {
                let range = 0..*key;
                operation.reads.extend(of_range(range.clone(), tx.range(range).rev()));
            }
        }
        thread::yield_now();
    }
    // Later reads also saw the operation's own appends.
    for (_, list) in &mut operation.reads {
        list.retain(|other| *other != number);
    }
    // Several appends to the same key count as one.
    Ok(operation)
}

/// Returns a plan in which no key is appended to twice.
fn plan(random: &mut Random) -> Vec<(u64, u64)> {
    let mut appends = BTreeSet::new();
    let steps = (0..1 + random.below(4)).map(|_| (random.below(10), random.below(KEYS)));
    steps.filter(|(what, key)| !(4..8).contains(what) || appends.insert(*key)).collect()
}

/// Runs operations of all kinds on three threads, and returns those that succeeded.
fn history(store: &Lists, seed: u64, each: u32) -> Vec<Operation> {
    let run = |thread: u32| {
        let mut random = Random::new(seed * 16 + u64::from(thread));
        let mut done = Vec::new();
        for at in 0..each {
            let number = 1 + thread * each + at;
            match random.below(8) {
                0 => {
                    let (key, mut saw) = (random.below(KEYS), Vec::new());
                    store
                        .modify(key, |list| {
                            saw = numbers(list.unwrap_or_default());
                            Change::Put(appended(list, number))
                        })
                        .unwrap();
                    let (reads, appends) = (vec![(key, saw)], BTreeSet::from([key]));
                    done.push(Operation { number, reads, appends });
                }
                1 => {
                    let snapshot = store.snapshot();
                    let reads = of_range(0..KEYS, snapshot.iter());
                    done.push(Operation { number, reads, appends: BTreeSet::new() });
                }
                _ => {
                    let plan = plan(&mut random);
                    match store.transaction(|tx| steps(tx, number, &plan)) {
                        Ok(operation) => done.push(operation),
                        Err(Error::Conflict { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            }
        }
        done
    };
    thread::scope(|scope| {
        let run = &run;
        let threads: Vec<_> = (0..3).map(|thread| scope.spawn(move || run(thread))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    })
}

/// Checks a history against the lists at its end.
fn check(operations: &[Operation], ends: &BTreeMap<u64, Vec<u32>>) -> Result<(), String> {
    let by_number: BTreeMap<u32, &Operation> =
        operations.iter().map(|operation| (operation.number, operation)).collect();
    let mut after: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
    for (key, list) in ends {
        let distinct: BTreeSet<&u32> = list.iter().collect();
        let wanted: BTreeSet<&u32> = operations
            .iter()
            .filter(|operation| operation.appends.contains(key))
            .map(|operation| &operation.number)
            .collect();
        if distinct.len() != list.len() || distinct != wanted {
            return Err(format!("key {key} has the appends {list:?} of {wanted:?}"));
        }
        for pair in list.windows(2) {
            after.entry(pair[0]).or_default().insert(pair[1]);
        }
    }
    for operation in operations {
        for (key, saw) in &operation.reads {
            let list = ends.get(key).map_or(&[][..], Vec::as_slice);
            // The operation's own append must directly follow what it read.
            if !list.starts_with(saw) {
                return Err(format!(
                    "{operation:?} saw something that is not a prefix of {list:?}"
                ));
            }
            if let Some(last) = saw.last() {
                after.entry(*last).or_default().insert(operation.number);
            }
            let next = list.get(saw.len()).filter(|next| **next != operation.number);
            let next = next.or_else(|| list.get(saw.len() + 1).filter(|_| next.is_none()));
            if let Some(next) = next {
                after.entry(operation.number).or_default().insert(*next);
            }
        }
    }
    // Operations without a predecessor are removed, again and again. If some remain, there is a
    // cycle.
    let mut before: BTreeMap<u32, usize> = by_number.keys().map(|number| (*number, 0)).collect();
    for (number, nexts) in &after {
        for next in nexts.iter().filter(|next| *next != number) {
            *before.entry(*next).or_default() += 1;
        }
    }
    let mut free: Vec<u32> =
        before.iter().filter(|(_, count)| **count == 0).map(|(number, _)| *number).collect();
    while let Some(number) = free.pop() {
        before.remove(&number);
        for next in after.get(&number).into_iter().flatten().filter(|next| **next != number) {
            let count = before.get_mut(next).ok_or("an operation is its own predecessor")?;
            *count -= 1;
            if *count == 0 {
                free.push(*next);
            }
        }
    }
    if before.is_empty() {
        return Ok(());
    }
    let cycle: Vec<_> = before.keys().filter_map(|number| by_number.get(number)).collect();
    Err(format!("these operations have a cycle: {cycle:#?}"))
}

#[test]
fn random_transactions_are_serializable() {
    let end = Instant::now() + budget() * 4;
    let (mut seed, mut done) = (0, 0);
    while Instant::now() < end || seed < 40 {
        seed += 1;
        // Tiny leaves, so that ranges span several leaves, which are split and merged.
        let store: Lists = Store::with_options(Options::new().sizes(2 + seed as usize % 4, 4));
        let operations = history(&store, seed, 30);
        let ends: BTreeMap<u64, Vec<u32>> =
            store.iter().map(|(key, list)| (key, numbers(&list))).collect();
        check(&operations, &ends).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        store.check_invariants().unwrap();
        done += operations.len();
    }
    assert!(done > seed as usize * 60, "{done} operations of {seed} histories: too many conflicts");
}

#[test]
fn the_check_finds_write_skew_and_lost_updates() {
    let read = |key: u64, list: &[u32]| (key, list.to_vec());
    let operation = |number, reads: Reads, appends: &[u64]| Operation {
        number,
        reads,
        appends: appends.iter().copied().collect(),
    };
    // Each operation read the key to which the other one appended.
    let skew = [
        operation(1, vec![read(0, &[]), read(1, &[])], &[0]),
        operation(2, vec![read(0, &[]), read(1, &[])], &[1]),
    ];
    let ends = BTreeMap::from([(0, vec![1]), (1, vec![2])]);
    assert!(check(&skew, &ends).unwrap_err().contains("cycle"));
    assert!(check(&skew[..1], &BTreeMap::from([(0, vec![1])])).is_ok());
    // Both operations read the same list, and one of the appends is lost.
    let lost = [operation(1, vec![read(0, &[])], &[0]), operation(2, vec![read(0, &[])], &[0])];
    assert!(check(&lost, &BTreeMap::from([(0, vec![2])])).unwrap_err().contains("appends"));
    // A reader saw the second append, but not the first one, which was to another key.
    let torn = [
        operation(1, vec![read(0, &[]), read(1, &[])], &[0, 1]),
        operation(2, vec![read(0, &[1]), read(1, &[])], &[]),
    ];
    let ends = BTreeMap::from([(0, vec![1]), (1, vec![1])]);
    assert!(check(&torn, &ends).unwrap_err().contains("cycle"));
}
