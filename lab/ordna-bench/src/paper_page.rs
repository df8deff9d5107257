//! Generates a part of `docs/papers/NAME.md` from results: verdicts, figures, where we lose.
//!
//! A [`Claim`] is a shape that the paper shows: a ratio between two selections of cells. It holds if
//! the geometric mean of our ratios is within its bounds.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use crate::paper::{Claim, Figure, Paper, Side, Size, Threads};
use crate::registry::{BASELINES, UNORDERED};
use crate::table::Cell;

/// The lines around the part of the page that is replaced.
pub const MARKS: [&str; 2] = ["<!-- generated: begin -->", "<!-- generated: end -->"];

/// Returns the page with a new generated part.
///
/// # Errors
/// Returns an error if the page has no marks.
pub fn renew(page: &str, paper: &Paper, cells: &[Cell]) -> Result<String, String> {
    let missing = || format!("the page has no lines {:?} and {:?}", MARKS[0], MARKS[1]);
    let (before, rest) = page.split_once(MARKS[0]).ok_or_else(missing)?;
    let (_, after) = rest.split_once(MARKS[1]).ok_or_else(missing)?;
    Ok([before, MARKS[0], "\n", &render(paper, cells), MARKS[1], after].concat())
}

/// Returns the generated part.
fn render(paper: &Paper, cells: &[Cell]) -> String {
    let of = |figure: &Figure| -> Vec<&Cell> {
        let name = paper.experiment(figure);
        cells.iter().filter(|cell| cell.experiment.as_ref() == Some(&name)).collect()
    };
    let all: Vec<&Cell> = paper.figures.iter().flat_map(of).collect();
    let mut text = conditions(&all);
    text += "\n### Each figure and table\n\n\
             | figure | the paper shows | here | same shape |\n|---|---|---|---|\n";
    for figure in &paper.figures {
        rows(&mut text, figure, &of(figure));
    }
    text += "\n### Claims of abstract and conclusion\n\n\
             | claim | here | verdict |\n|---|---|---|\n";
    for promise in &paper.promises {
        let figure =
            paper.figures.iter().find(|figure| Some(&figure.name) == promise.figure.as_ref());
        let (ours, verdict) = match (figure, &promise.claim) {
            (Some(figure), Some(claim)) => {
                let (ours, verdict) = judge(claim, &of(figure));
                (ours, format!("{verdict} ({})", label(figure)))
            }
            _ => (String::new(), promise.verdict.clone().unwrap_or_default()),
        };
        let _ = writeln!(text, "| {} | {ours} | {verdict} |", promise.says);
    }
    text += "\n### The figures\n\nMillion operations a second, all threads together; the median of the \
             rounds. A dash: the index has no such operation.\n";
    for figure in &paper.figures {
        let cells = of(figure);
        if !cells.is_empty() {
            let _ = write!(text, "\n**{}: {}.**", label(figure), figure.title);
            if !figure.note.is_empty() {
                let _ = write!(text, " {}.", capital(&figure.note));
            }
            text += "\n\n";
            text += &table(&cells, |cell| Some(cell.mops?.median), 3);
            if cells.iter().all(|cell| cell.workload == "load") {
                text += "\nBytes per key after the load:\n\n";
                text += &table(&cells, |cell| cell.bytes_per_key, 1);
            }
            for told in counts(&cells) {
                let _ = writeln!(text, "\n{told}");
            }
        }
    }
    text + &losses(paper, &all)
}

fn label(figure: &Figure) -> String {
    if figure.name.starts_with(|first: char| first.is_ascii_digit()) {
        format!("Figure {}", figure.name)
    } else {
        capital(&figure.name)
    }
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| {
        first.to_uppercase().collect::<String>() + letters.as_str()
    })
}

/// Describes the machine and the settings of the runs.
fn conditions(cells: &[&Cell]) -> String {
    let Some(first) = cells.first() else { return "No run is recorded.\n".to_owned() };
    let rounds = cells.iter().map(|cell| cell.rounds).max().unwrap_or(0);
    let most = cells.iter().map(|cell| cell.n).max().unwrap_or(0);
    let info = &first.info;
    let mut text = format!(
        "Run of {}: {}; {}; seed {}; up to {most} keys and {rounds} rounds; every answer checked. \
         Version {}. Command: `{}`.\n",
        info.started, info.machine, info.allocator, first.seed, info.version, info.command
    );
    let busy: BTreeSet<_> = cells.iter().map(|cell| cell.info.was_busy()).collect();
    if busy.contains(&Some(true)) {
        text += "\n**Other programs ran at the same time:** ratios of cells that were measured in turn \
                 say something, absolute rates do not.\n";
    }
    if most < 1_000_000 {
        text += "\n**This is a small run:** most of an index is in the processor's caches, where the \
                 papers' indexes are in memory. Verdicts are of this run.\n";
    }
    for limit in &info.limits {
        let _ = writeln!(text, "\n- {limit}");
    }
    text
}

/// Appends the rows of a figure in the table of verdicts.
fn rows(text: &mut String, figure: &Figure, cells: &[&Cell]) {
    let name = format!("{}: {}", label(figure), figure.title);
    if figure.claims.is_empty() {
        let verdict = match (&figure.runs, cells.is_empty()) {
            (None, _) => format!("not shown: {}", figure.note),
            (Some(_), true) => "not shown: no run is recorded".to_owned(),
            (Some(_), false) => "see the figures".to_owned(),
        };
        let _ = writeln!(text, "| {name} | {} | | {verdict} |", figure.shows);
        return;
    }
    let _ = writeln!(text, "| {name} | {} | | |", figure.shows);
    for claim in &figure.claims {
        let (ours, verdict) = judge(claim, cells);
        let _ = writeln!(text, "| | {} | {ours} | {verdict} |", claim.says);
    }
}

/// Returns our ratio, and whether it has the paper's shape.
fn judge(claim: &Claim, cells: &[&Cell]) -> (String, String) {
    let figure = |cell: &Cell| {
        let mops = cell.mops.map(|mops| mops.median);
        if claim.bytes { cell.bytes_per_key } else { mops }.filter(|_| cell.checked)
    };
    let ends = Ends::of(cells);
    let mut logs = Vec::new();
    for cell in cells.iter().filter(|cell| selects(&claim.of, cell, &ends)) {
        let other = cells.iter().find(|other| is_counterpart(&claim.over, cell, other, &ends));
        if let (Some(one), Some(other)) = (figure(cell), other.and_then(|other| figure(other))) {
            logs.push((one / other).ln());
        }
    }
    if logs.is_empty() {
        return (String::new(), "not shown: no cells to compare".to_owned());
    }
    let ratio = (logs.iter().sum::<f64>() / logs.len() as f64).exp();
    let fits = claim.least.is_none_or(|least| ratio >= least)
        && claim.most.is_none_or(|most| ratio <= most);
    let bound = match (claim.least, claim.most) {
        (Some(least), Some(most)) => format!("{least} to {most}"),
        (Some(least), None) => format!("{least} or more"),
        (None, Some(most)) => format!("{most} or less"),
        (None, None) => "any".to_owned(),
    };
    let verdict = if fits { "yes" } else { "no" };
    (format!("{ratio:.2} times (shape: {bound})"), verdict.to_owned())
}

/// The ends of the axes of a figure.
struct Ends {
    threads: usize,
    sizes: (usize, usize),
}

impl Ends {
    fn of(cells: &[&Cell]) -> Self {
        let sizes = || cells.iter().map(|cell| cell.n);
        Self {
            threads: cells.iter().map(|cell| cell.threads).max().unwrap_or(1),
            sizes: (sizes().min().unwrap_or(0), sizes().max().unwrap_or(0)),
        }
    }

    fn threads(&self, threads: Threads) -> usize {
        if threads == Threads::One { 1 } else { self.threads }
    }

    fn size(&self, size: Size) -> usize {
        if size == Size::Least { self.sizes.0 } else { self.sizes.1 }
    }
}

/// Returns whether two numbers of keys count as the same size, because workloads that insert load a
/// few keys less.
fn is_size(one: usize, other: usize) -> bool {
    one.abs_diff(other) * 10 <= one.max(other)
}

fn selects(side: &Side, cell: &Cell, ends: &Ends) -> bool {
    side.index.as_ref().is_none_or(|index| *index == cell.index)
        && side.workload.as_ref().is_none_or(|workload| *workload == cell.workload)
        && side.keys.as_ref().is_none_or(|keys| *keys == cell.keys)
        && side.batch.is_none_or(|batch| batch == cell.batch)
        && side.threads.is_none_or(|threads| ends.threads(threads) == cell.threads)
        && side.size.is_none_or(|size| is_size(ends.size(size), cell.n))
}

/// Returns whether `other` is a different cell with the properties of `over`, and otherwise those
/// of `cell`.
fn is_counterpart(over: &Side, cell: &Cell, other: &Cell, ends: &Ends) -> bool {
    selects(over, other, ends)
        && (over.index.is_some() || cell.index == other.index)
        && (over.workload.is_some() || cell.workload == other.workload)
        && (over.keys.is_some() || cell.keys == other.keys)
        && (over.batch.is_some() || cell.batch == other.batch)
        && (over.threads.is_some() || cell.threads == other.threads)
        && (over.size.is_some() || is_size(cell.n, other.n))
        && !std::ptr::eq(cell, other)
}

/// Formats a table with one row for each case and one column for each index.
fn table(cells: &[&Cell], figure: impl Fn(&Cell) -> Option<f64>, digits: usize) -> String {
    let mut indexes: Vec<&str> = Vec::new();
    let mut rows: Vec<Vec<&Cell>> = Vec::new();
    for cell in cells {
        if !indexes.contains(&cell.index.as_str()) {
            indexes.push(&cell.index);
        }
        match rows.iter_mut().find(|row| row.iter().all(|other| other.case() == cell.case())) {
            Some(row) => row.push(cell),
            None => rows.push(vec![cell]),
        }
    }
    let mut text =
        format!("| keys | n | workload | threads | per call | {} |\n", indexes.join(" | "));
    text += &("|---".repeat(indexes.len() + 5) + "|\n");
    for row in rows {
        let Some(first) = row.first() else { continue };
        let Cell { keys, n, workload, threads, batch, .. } = first;
        let _ = write!(text, "| {keys} | {n} | {workload} | {threads} | {batch} |");
        for index in &indexes {
            let found = row.iter().find(|cell| cell.index == *index);
            let found = found.and_then(|cell| figure(cell).filter(|_| cell.checked));
            let found = found.map_or_else(|| "–".to_owned(), |found| format!("{found:.digits$}"));
            let _ = write!(text, " {found} |");
        }
        text.push('\n');
    }
    text
}

/// Returns the counts of indexes: the last ones of each index and key set.
fn counts(cells: &[&Cell]) -> Vec<String> {
    let mut last: BTreeMap<(&str, &str), &str> = BTreeMap::new();
    for cell in cells {
        if let Some(counts) = &cell.counts {
            last.insert((&cell.index, &cell.keys), counts);
        }
    }
    last.into_iter()
        .map(|((index, keys), counts)| format!("`{index}`, {keys}: {counts}."))
        .collect()
}

/// Formats the cases in which another ordered index is faster than the paper's, by that index.
fn losses(paper: &Paper, cells: &[&Cell]) -> String {
    let mops = |cell: &Cell| cell.mops.filter(|_| cell.checked).map(|mops| mops.median);
    // For each rival: the number of common cases, of cases lost, the worst ratio and its case.
    let mut rivals: BTreeMap<&str, (usize, usize, f64, String)> = BTreeMap::new();
    for ours in cells.iter().filter(|cell| cell.index == paper.index) {
        let Some(have) = mops(ours) else { continue };
        for rival in cells.iter().filter(|rival| rival.case() == ours.case()) {
            let base = rival.index.split('+').next().unwrap_or_default();
            // Variants of the paper's own index do not count, nor do indexes without an order or
            // without a lock.
            let own = base == paper.index || BASELINES[1] == base;
            let Some(theirs) = mops(rival).filter(|_| !own && !UNORDERED.contains(&base)) else {
                continue;
            };
            let entry = rivals.entry(&rival.index).or_insert((0, 0, 0.0, String::new()));
            entry.0 += 1;
            entry.1 += usize::from(theirs > have);
            if theirs / have > entry.2 {
                let Cell { keys, workload, threads, n, .. } = ours;
                let case = format!("{keys}, {n} keys, {workload}, {threads} thread(s)");
                (entry.2, entry.3) = (theirs / have, case);
            }
        }
    }
    let mut text = "\n### Where we lose\n\n".to_owned();
    if rivals.is_empty() {
        return text + "No other ordered index was measured in the same cases.\n";
    }
    let _ = writeln!(
        text,
        "`{}` beside each other ordered index in the cases above.\n\n\
         | index | cases | it is faster in | at most | in the case |\n|---|---|---|---|---|",
        paper.index
    );
    for (index, (cases, lost, worst, case)) in rivals {
        let case = if worst > 1.0 { case } else { String::new() };
        let _ = writeln!(text, "| `{index}` | {cases} | {lost} | {worst:.2} times | {case} |");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{Spread, sample};

    fn cell(index: &str, workload: &str, threads: usize, mops: f64) -> Cell {
        Cell {
            experiment: Some("A paper, Fig. 6".to_owned()),
            workload: workload.to_owned(),
            threads,
            mops: Spread::of(&[mops]),
            ..sample(index)
        }
    }

    fn paper(claims: &str) -> Paper {
        let text = format!(
            r#"{{"name": "a", "title": "A paper", "index": "pi", "promises": [
                {{"says": "fast", "verdict": "yes"}}], "figures": [
                {{"name": "6", "title": "size", "shows": "PI wins", "indexes": ["pi"],
                  "runs": {{"keys": ["int"], "thousands": [1], "workloads": ["c"], "threads": "all"}},
                  "claims": [{claims}]}},
                {{"name": "7", "title": "nodes", "shows": "it scales", "note": "needs 4 nodes"}}]}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn claims_are_judged_by_the_ratio_of_the_cells() {
        let claim = r#"{"says": "faster", "of": {"index": "pi"}, "over": {"index": "skiplist"}, "least": 2},
            {"says": "scales", "of": {"index": "pi", "threads": "all"}, "over": {"threads": "one"}, "least": 1.5},
            {"says": "others", "of": {"index": "masstree"}, "over": {"index": "pi"}}"#;
        let cells = [
            cell("pi", "c", 1, 4.0),
            cell("skiplist", "c", 1, 1.0),
            cell("pi", "c", 2, 5.0),
            cell("skiplist", "c", 2, 5.0),
        ];
        let page = renew(
            "top\n<!-- generated: begin -->\nold\n<!-- generated: end -->\nend",
            &paper(claim),
            &cells,
        );
        let page = page.unwrap();
        assert!(page.starts_with("top\n") && page.ends_with("end") && !page.contains("old"));
        // Ratios of 4 and 1 have the geometric mean 2.
        assert!(page.contains("| | faster | 2.00 times (shape: 2 or more) | yes |"), "{page}");
        assert!(page.contains("| | scales | 1.25 times (shape: 1.5 or more) | no |"), "{page}");
        assert!(page.contains("| | others |  | not shown: no cells to compare |"), "{page}");
        assert!(page.contains("not shown: needs 4 nodes"), "{page}");
        assert!(page.contains("| `skiplist` | 2 | 0 | 1.00 times |  |"), "{page}");
        assert!(page.contains("This is a small run"), "{page}");
    }

    #[test]
    fn a_page_without_marks_is_refused() {
        assert!(renew("no marks", &paper(""), &[]).unwrap_err().contains("no lines"));
        let page =
            renew("<!-- generated: begin --><!-- generated: end -->", &paper(""), &[]).unwrap();
        assert!(page.contains("No run is recorded."), "{page}");
        assert!(page.contains("not shown: no run is recorded"), "{page}");
    }
}
