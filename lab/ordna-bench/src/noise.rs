//! The reliability of a run's figures, which is computed from the figures themselves.

use crate::info::RunInfo;
use crate::table::Cell;

/// Returns the runs to which the cells belong, each once.
pub fn runs(cells: &[Cell]) -> Vec<&RunInfo> {
    let mut runs: Vec<&RunInfo> = Vec::new();
    for cell in cells {
        if !runs.contains(&&cell.info) {
            runs.push(&cell.info);
        }
    }
    runs
}

/// The median, the ninth decile and the maximum.
struct Shares {
    median: f64,
    ninth: f64,
    most: f64,
}

fn shares(mut all: Vec<f64>) -> Option<Shares> {
    all.sort_by(f64::total_cmp);
    let last = all.len().checked_sub(1)?;
    let at = |tenths: usize| all[last * tenths / 10];
    Some(Shares { median: at(5), ninth: at(9), most: at(10) })
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// Describes the load of the machine during a run, if it is known.
pub fn told_of(run: &RunInfo) -> Option<String> {
    let busy = run.was_busy()?;
    let load = run.load_average.map(|load| format!("load average {load:.2} at its start"));
    let shares = run.shares.map(|shares| {
        let (others, stolen) = (shares.others * 100.0, shares.stolen * 100.0);
        format!(
            "other processes and the system took {others:.1} % of the processors, the host {stolen:.1} %"
        )
    });
    let figures: Vec<String> = load.into_iter().chain(shares).collect();
    let verdict = if busy { "BUSY: do not rely on its figures" } else { "quiet" };
    let (run, figures) = (&run.started, figures.join("; "));
    Some(format!("In the run of {run} the machine was {verdict} ({figures})."))
}

/// Describes the conditions of the runs, with a sentence for each: load of the machine, spread of
/// the rounds, drift of the baseline.
pub fn told(cells: &[Cell], baseline: &str) -> Vec<String> {
    let mut told: Vec<String> = runs(cells).into_iter().filter_map(told_of).collect();
    let figures = cells.iter().filter(|cell| cell.mops.is_some()).count();
    let known: Vec<&Cell> = cells.iter().filter(|cell| cell.noise().is_some()).collect();
    let once = figures - known.len();
    if let Some(all) = shares(known.iter().filter_map(|cell| cell.noise()).collect()) {
        told.push(format!(
            "The slowest and the fastest round differ by {} of the median in the middle cell, by {} in \
             nine of ten cells, and by {} at most. Smaller differences between indexes are noise.",
            percent(all.median),
            percent(all.ninth),
            percent(all.most)
        ));
    }
    if once > 0 && !known.is_empty() {
        told.push(format!(
            "{once} of {figures} figures are of one round (a quick run loads once), so their spread is \
             not known."
        ));
    } else if once > 0 {
        told.push(
            "One round only: the spread is not known, and interleaving does not even out a machine \
             that drifts. Do not rely on small ratios."
                .to_owned(),
        );
    }
    let drift = |cell: &&&Cell| cell.index == baseline;
    let drift = known.iter().filter(drift).filter_map(|cell| {
        let (first, last) = (cell.each.first()?, cell.each.last()?);
        Some(last / first - 1.0)
    });
    let drift: Vec<f64> = drift.collect();
    if let Some(all) = shares(drift.clone()) {
        let least = drift.iter().copied().fold(f64::INFINITY, f64::min);
        told.push(format!(
            "From the first round to the last, the baseline `{baseline}` changed by {:+.0} % in the middle \
             case ({:+.0} % to {:+.0} %). This is the drift of the machine.",
            all.median * 100.0,
            least * 100.0,
            all.most * 100.0
        ));
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{Spread, sample};

    fn cell(each: &[f64]) -> Cell {
        Cell { each: each.to_vec(), mops: Spread::of(each), rounds: each.len(), ..sample("locked") }
    }

    #[test]
    fn spread_drift_and_load_are_told() {
        let mut cells = vec![cell(&[1.0, 1.1, 0.9]), cell(&[2.0, 2.0, 1.0])];
        cells[0].info.load_average = Some(3.0);
        cells[1].info.load_average = Some(0.1);
        let text = told(&cells, "locked").join("\n");
        assert!(text.contains("BUSY") && text.contains("quiet"), "{text}");
        assert!(text.contains("20 % of the median in the middle cell, by 20 % in"), "{text}");
        assert!(text.contains("50 % at most"), "{text}");
        assert!(text.contains("-50 % to -10 %"), "{text}");
        assert!(!told(&cells, "skiplist").iter().any(|line| line.contains("baseline")));
    }

    #[test]
    fn one_round_is_told() {
        let text = told(&[cell(&[1.0])], "locked").join("\n");
        assert!(text.contains("One round only") && !text.contains("baseline"), "{text}");
        let text = told(&[cell(&[1.0]), cell(&[1.0, 1.0])], "locked").join("\n");
        assert!(text.contains("1 of 2 figures are of one round"), "{text}");
        assert_eq!(told(&[], "locked"), [""; 0]);
    }
}
