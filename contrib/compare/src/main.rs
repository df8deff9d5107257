//! Compares Ordna with other embedded stores: transactions (redb, fjall) and memtables (crossbeam-skiplist).
//!
//! ```console
//! $ cd contrib/compare && cargo run --release -- transactions
//! $ cargo run --release -- memtable
//! ```
//! Candidates run in turn in each round, and the tables contain the medians of the rounds. Each run
//! checks its results: a wrong sum, order or count ends the program with an error.

mod memtable;
mod random;
mod transactions;

use std::error::Error;

/// An error of any candidate.
pub type Failure = Box<dyn Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [what, options @ ..] = arguments.as_slice() else {
        return Err(
            "usage: ordna-compare transactions|memtable [SECONDS] [ENTRIES] [ROUNDS]".into()
        );
    };
    let number = |at: usize, default: u64| -> Result<u64, Failure> {
        let text = options.get(at);
        text.map_or(Ok(default), |text| {
            text.parse().map_err(|_| format!("{text:?} is not a number").into())
        })
    };
    let (seconds, entries, rounds) = (number(0, 3)?, number(1, 1_000_000)?, number(2, 3)?);
    match what.as_str() {
        "transactions" => transactions::run(seconds, entries, rounds),
        "memtable" => memtable::run(entries, rounds),
        other => Err(format!("{other:?} is neither transactions nor memtable").into()),
    }
}

/// Returns the median of some figures.
pub fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}
