//! Measures `rank`, `select` and `count`, without writes and alternating with writes.
//!
//! `cargo run --release -p ordna-bench --example ranks -- [ENTRIES]…` prints nanoseconds per call.
//! `… -- writes ENTRIES` only inserts and removes, for instruction counts of stores that never
//! count. `… -- counted-writes ENTRIES` does the same after a count.

use std::hint::black_box;
use std::ops::Bound;
use std::time::Instant;

use ordna::Store;

/// Number of calls of each kind.
const CALLS: usize = 20_000;

/// Maps numbers to keys in a scattered order, one to one.
fn scattered(number: u64) -> u64 {
    number.wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

fn filled(entries: u64) -> Store<u64, u64> {
    let store = Store::new();
    for number in 0..entries {
        store.insert(&scattered(number), &number).expect("no limit is set");
    }
    store
}

fn nanoseconds(mut call: impl FnMut(u64)) -> f64 {
    let begun = Instant::now();
    (0..CALLS as u64).for_each(&mut call);
    begun.elapsed().as_nanos() as f64 / CALLS as f64
}

fn measure(entries: u64) {
    let store = filled(entries);
    let begun = Instant::now();
    black_box(store.rank(&u64::MAX));
    let first = begun.elapsed().as_micros();
    let any = |number: u64| scattered(number.wrapping_mul(7919) % entries);
    let get = nanoseconds(|number| _ = black_box(store.get(&any(number))));
    let rank = nanoseconds(|number| _ = black_box(store.rank(&any(number))));
    let count = nanoseconds(|number| {
        let (one, other) = (any(number), any(number + 1));
        let (lower, upper) = (one.min(other), one.max(other));
        black_box(store.count(Bound::Included(&lower), Bound::Included(&upper)));
    });
    let select = nanoseconds(|number| {
        black_box(store.select(((u128::from(any(number)) * u128::from(entries)) >> 64) as usize));
    });
    let new = |number: u64| scattered(entries + number);
    let insert = nanoseconds(|number| _ = store.insert(&new(number), &number));
    let in_turns = nanoseconds(|number| {
        store.remove(&new(number)).expect("no log");
        black_box(store.rank(&any(number)));
    });
    println!(
        "{entries:>9} entries: first rank {first} us; ns: get {get:.0}, rank {rank:.0}, count \
         {count:.0}, select {select:.0}, insert {insert:.0}, remove and rank {in_turns:.0}"
    );
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let entries = |text: &String| text.parse().expect("a number of entries");
    match arguments.as_slice() {
        [what, number] if what.ends_with("writes") => {
            let number: u64 = entries(number);
            let store = filled(number);
            if what == "counted-writes" {
                black_box(store.rank(&u64::MAX));
            }
            for key in (0..number).map(scattered) {
                store.remove(&key).expect("no log");
            }
        }
        [] => [100_000, 1_000_000, 10_000_000].into_iter().for_each(measure),
        all => all.iter().map(entries).for_each(measure),
    }
}
