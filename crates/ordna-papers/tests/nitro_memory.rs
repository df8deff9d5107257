//! Memory of versions that collectors free: counted for the whole process, so this file has one
//! test.

use std::collections::VecDeque;
use std::time::Duration;

use ordna_base::OrderedIndex;
use ordna_papers::Nitro;
use ordna_papers::nitro::Order;
use ordna_testkit::memory::live_everywhere;

ordna_testkit::count_memory!();

const ALIVE: usize = 10;

/// After churn with snapshots the process holds the bytes of an index that was filled once with the
/// live entries, within 5 %.
#[test]
fn memory_after_churn_is_that_of_the_live_data() {
    const ITEMS: u64 = 100_000;
    let spread = |n: u64| n.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let start = live_everywhere();
    let fresh = Nitro::<u64, u64>::with(2, Order::LiveSet);
    (0..ITEMS).for_each(|n| drop(fresh.insert(&spread(n), &n)));
    fresh.collect_garbage();
    let live = live_everywhere() - start;
    drop(fresh);
    let start = live_everywhere();
    let index = Nitro::<u64, u64>::with(2, Order::LiveSet);
    for round in 0..6 {
        let mut alive = VecDeque::new();
        std::thread::scope(|scope| {
            for writer in 0..2 {
                let index = &index;
                scope.spawn(move || {
                    for n in (writer..ITEMS).step_by(2) {
                        index.insert(&spread(n), &(n + round)).unwrap();
                        // Comes and goes.
                        index.insert(&spread(n + ITEMS), &n).unwrap();
                        if n % 3 == 0 {
                            index.remove(&spread(n));
                        }
                        index.remove(&spread(n + ITEMS));
                        index.insert(&spread(n), &n).unwrap();
                    }
                });
            }
            for _ in 0..30 {
                alive.push_back(index.snapshot());
                if alive.len() > ALIVE {
                    alive.pop_front();
                }
                std::thread::sleep(Duration::from_millis(2));
            }
        });
    }
    index.collect_garbage();
    assert_eq!(index.validate().unwrap().nodes as u64, ITEMS);
    let after = live_everywhere() - start;
    println!("{live} bytes of live data, {after} after churn: {:.4}", after as f64 / live as f64);
    assert!(after <= live + live / 20, "{after} bytes after churn, {live} of live data");
}
