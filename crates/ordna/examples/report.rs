//! An analytics report over one moment while a writer continues: money moves between accounts, and each report
//! sees the same total. Run it with `cargo run --release -p ordna --example report`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use ordna::{Error, Map};

const ACCOUNTS: u64 = 10_000;

pub(crate) fn main() -> Result<(), Error> {
    // Country and account; an amount in cents.
    let accounts: Map<(String, u64), i64> = Map::new();
    let countries = ["DK", "NO", "SE"];
    for account in 0..ACCOUNTS {
        accounts.put((countries[(account % 3) as usize], account), 1_000)?;
    }
    let ended = AtomicBool::new(false);
    let reports = thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut moves = 0_u64;
            while !ended.load(Ordering::Relaxed) {
                let (from, to) = (moves * 7 % ACCOUNTS, moves * 13 % ACCOUNTS);
                let key = |account: u64| (countries[(account % 3) as usize].to_owned(), account);
                if from != to {
                    accounts.transaction(|tx| {
                        let taken = tx.get(key(from)).unwrap_or(0) - 5;
                        let given = tx.get(key(to)).unwrap_or(0) + 5;
                        tx.put(key(from), taken)?;
                        tx.put(key(to), given)
                    })?;
                }
                moves += 1;
            }
            Ok::<u64, Error>(moves)
        });
        let mut reports = Vec::new();
        for _ in 0..5 {
            let began = Instant::now();
            // Costs the same for any size; the walks below all read this moment.
            let snapshot = accounts.snapshot();
            let sums = countries
                .map(|country| snapshot.prefix((country,)).map(|(_, amount)| amount).sum::<i64>());
            reports.push((sums, began.elapsed()));
        }
        ended.store(true, Ordering::Relaxed);
        let moves = writer.join().expect("the writer does not panic")?;
        println!("{moves} moves while the reports were made");
        Ok::<_, Error>(reports)
    })?;
    for (sums, took) in reports {
        println!("DK {:>9} NO {:>9} SE {:>9} in {took:.1?}", sums[0], sums[1], sums[2]);
        assert_eq!(sums.iter().sum::<i64>(), 1_000 * ACCOUNTS as i64);
    }
    Ok(())
}
