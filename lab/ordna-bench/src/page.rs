//! Generates `docs/benchmarks.md` from the results of one or more runs.

use crate::noise::{runs, told};
use crate::registry::{BASELINES, UNORDERED};
use crate::table::{Cell, render};

/// A case in which a peer beats every index of the workspace.
struct Loss<'a> {
    peer: &'a Cell,
    best: &'a Cell,
    /// The ratio of the peer's figure to ours.
    factor: f64,
}

/// Returns the cases in which a peer's `figure` exceeds that of our best index, worst first.
fn losses<'a>(cells: &'a [Cell], figure: impl Fn(&Cell) -> Option<f64>) -> Vec<Loss<'a>> {
    // Baselines count as peers, because our indexes have to beat them.
    let is_ours = |cell: &Cell| cell.ours && !BASELINES.contains(&cell.index.as_str());
    let figure = |cell: &Cell| figure(cell).filter(|_| cell.checked);
    let mut losses: Vec<Loss<'a>> = Vec::new();
    for peer in cells.iter().filter(|cell| !is_ours(cell)) {
        let ours = cells.iter().filter(|cell| is_ours(cell) && cell.case() == peer.case());
        let best = ours.filter_map(|cell| Some((cell, figure(cell)?)));
        let best = best.max_by(|(_, a), (_, b)| a.total_cmp(b));
        if let (Some((best, have)), Some(theirs)) = (best, figure(peer))
            && theirs > have
        {
            losses.push(Loss { peer, best, factor: theirs / have });
        }
    }
    losses.sort_by(|a, b| b.factor.total_cmp(&a.factor));
    losses
}

/// Comparison of one of our indexes with the best ordered peer.
struct Standing<'a> {
    index: &'a str,
    cases: usize,
    behind: usize,
    /// The case in which a peer is ahead by the largest factor.
    worst: Option<Loss<'a>>,
}

/// Returns the comparisons of all our indexes, those that are behind most often first.
fn standings(cells: &[Cell]) -> Vec<Standing<'_>> {
    let mops = |cell: &Cell| cell.mops.filter(|_| cell.checked).map(|mops| mops.median);
    let is_ours = |cell: &Cell| cell.ours && !BASELINES.contains(&cell.index.as_str());
    let mut standings: Vec<Standing<'_>> = Vec::new();
    for cell in cells.iter().filter(|cell| is_ours(cell)) {
        let rivals = cells.iter().filter(|rival| {
            !is_ours(rival)
                && !UNORDERED.contains(&rival.index.as_str())
                && rival.case() == cell.case()
        });
        let best = rivals.filter_map(|rival| Some((rival, mops(rival)?)));
        let best = best.max_by(|(_, a), (_, b)| a.total_cmp(b));
        let (Some(have), Some((peer, theirs))) = (mops(cell), best) else { continue };
        let at = standings.iter().position(|standing| standing.index == cell.index);
        let at = at.unwrap_or_else(|| {
            standings.push(Standing { index: &cell.index, cases: 0, behind: 0, worst: None });
            standings.len() - 1
        });
        let standing = &mut standings[at];
        standing.cases += 1;
        let factor = theirs / have;
        if factor > 1.0 {
            standing.behind += 1;
            if standing.worst.as_ref().is_none_or(|worst| worst.factor < factor) {
                standing.worst = Some(Loss { peer, best: cell, factor });
            }
        }
    }
    let share = |standing: &Standing<'_>| standing.behind as f64 / standing.cases as f64;
    standings.sort_by(|a, b| share(b).total_cmp(&share(a)));
    standings
}

fn list_standings(standings: &[Standing<'_>]) -> String {
    let line = |standing: &Standing<'_>| {
        let Standing { index, cases, behind, worst } = standing;
        let worst = worst.as_ref().map(|Loss { peer, factor, .. }| {
            let Cell { index, keys, workload, threads, batch, .. } = peer;
            let groups = if *batch > 1 { format!(" in groups of {batch}") } else { String::new() };
            format!("{index} is {factor:.2} times as fast at {keys} {workload} x{threads}{groups}")
        });
        format!("| {index} | {behind} of {cases} | {} |\n", worst.unwrap_or_default())
    };
    let lines: String = standings.iter().map(line).collect();
    format!("| index | behind in | worst |\n|---|---|---|\n{lines}")
}

/// Formats a list of losses. `what` is the title of the factor's column; `spread` returns further
/// columns.
fn list(
    losses: &[Loss<'_>],
    what: &str,
    more: &str,
    spread: impl Fn(&Cell, &Cell) -> String,
) -> String {
    if losses.is_empty() {
        return "In no case of this run.\n".to_owned();
    }
    let line = |Loss { peer, best, factor }: &Loss<'_>| {
        format!(
            "| {} | {} | {} | {} | {} | {} | {factor:.2} |{}\n",
            peer.keys,
            peer.workload,
            peer.threads,
            peer.batch,
            best.index,
            peer.index,
            spread(peer, best),
        )
    };
    let lines: String = losses.iter().map(line).collect();
    format!(
        "| keys | workload | threads | batch | our best | peer | {what} |{more}\n\
         |---|---|---|---|---|---|---|{}\n{lines}",
        if more.is_empty() { "" } else { "---|" }
    )
}

/// Returns whether the peer's slowest round is faster than our fastest.
fn clear(peer: &Cell, best: &Cell) -> String {
    let Some((theirs, ours)) = peer.mops.zip(best.mops) else { return " |".to_owned() };
    let known = peer.rounds > 1 && best.rounds > 1;
    let clear = match theirs.min > ours.max {
        _ if !known => "not known",
        true => "yes",
        false => "no",
    };
    format!(" {clear} |")
}

/// Returns the cells with wrong results, one line per index and kind of error.
pub fn notes(cells: &[Cell]) -> Vec<String> {
    let mut notes: Vec<(&str, &str, Vec<String>)> = Vec::new();
    for cell in cells {
        let Some(detail) = &cell.detail else { continue };
        let place = format!("{} {}", cell.keys, cell.workload);
        // Errors that differ only in the key count as the same kind.
        let sort = |detail: &str| detail.split(" of ").next().unwrap_or_default().to_owned();
        match notes.iter_mut().find(|(i, d, _)| *i == cell.index && sort(d) == sort(detail)) {
            Some((_, _, places)) if places.contains(&place) => {}
            Some((_, _, places)) => places.push(place),
            None => notes.push((&cell.index, detail, vec![place])),
        }
    }
    let line = |(index, detail, places): (&str, &str, Vec<String>)| {
        format!("{index} ({}): {detail}", places.join(", "))
    };
    notes.into_iter().map(line).collect()
}

/// Returns the page.
pub fn render_page(cells: &[Cell], baseline: &str) -> String {
    let Some(first) = cells.first() else {
        return "# Benchmarks\n\nNothing was measured.\n".to_owned();
    };
    let speed = losses(cells, |cell| cell.mops.map(|mops| mops.median));
    let dram = cells.iter().find_map(|cell| cell.info.dram);
    let dram = dram.map(|dram| format!("- DRAM: {dram}.\n")).unwrap_or_default();
    let runs = of_runs(cells);
    let commands: String = runs.iter().map(|run| format!("{}\n", run[0].info.command)).collect();
    let told_runs: String = runs.iter().map(|run| about(run)).collect();
    let noise: String = told(cells, baseline).iter().map(|text| format!("- {text}\n")).collect();
    let results: String = runs.iter().map(|run| results(run, baseline)).collect();
    format!(
        "# Benchmarks\n\n\
         Comparisons of ordered indexes with each other and with other maps. [How to measure]\
         (benchmarks/running.md) explains the commands; the figures of the store itself are in \
         [The store](benchmarks/store.md). This page was generated by `ordna-bench docs` from the \
         results of\n\n\
         ```text\n{commands}```\n\n\
         {told_runs}\
         - Allocator of the whole program: {}; bytes per key are from its statistics. RSS per key is \
         the growth of the process's resident set during the load, divided by the number of keys. With \
         few keys it is too high, because it includes the first pages of the allocator and the \
         threads.\n\
         - Keys of the operations: {}. Loads: {}.\n{dram}\
         - Rounds of the indexes alternate. The tables have the median, the lowest and the highest \
         round; ratios are relative to `{baseline}`.\n\
         - Every answer was checked, and so were the contents of the index after every run. An index \
         that gave a wrong answer has no figure.\n\n\
         Compare figures of one run only.\n\n\
         ## Reliability of the figures\n\n{noise}\n\
         ## Where we lose\n\n\
         Cases in which a peer is ahead of the best of our indexes, from the figures below. \
         `locked` (a B-tree behind one lock) and `btree` (the same without a lock, on one thread) \
         count as peers; `dashmap` keeps no order.\n\n\
         Throughput. Beyond the spread means that the peer's slowest round is faster than our fastest.\n\n{}\n\
         Memory after the load:\n\n{}\n\
         Each of our indexes against the fastest peer that keeps keys in order, by number of throughput cases:\n\n{}\n\
         ## Wrong answers, and operations that are missing\n\n{}\n\
         ## Results\n\n{results}",
        first.info.allocator,
        first.info.key_order,
        first.info.loads,
        list(&speed, "times as fast", " beyond the spread |", clear),
        list_memory(cells),
        list_standings(&standings(cells)),
        faults(cells),
    )
}

/// Groups the cells by run.
fn of_runs(cells: &[Cell]) -> Vec<Vec<Cell>> {
    let all = runs(cells).into_iter();
    all.map(|run| cells.iter().filter(|cell| cell.info == *run).cloned().collect()).collect()
}

/// Describes date, machine and settings of a run.
fn about(run: &[Cell]) -> String {
    let Some(Cell { info, seed, .. }) = run.first() else { return String::new() };
    let rounds = run.iter().map(|cell| cell.rounds).max().unwrap_or(0);
    let at = [&info.started, &info.version, &info.machine].map(|text| text.as_str());
    let at: Vec<&str> = at.into_iter().filter(|text| !text.is_empty()).collect();
    format!("- {}; seed {seed}; {rounds} rounds.\n", at.join("; "))
}

/// Formats the figures of one run.
fn results(run: &[Cell], baseline: &str) -> String {
    let Some(Cell { info, .. }) = run.first() else { return String::new() };
    let head = [&info.started, &info.command].map(|text| text.as_str());
    let head: Vec<&str> = head.into_iter().filter(|text| !text.is_empty()).collect();
    format!("```text\n{}\n\n{}```\n\n", head.join(": "), render(run, baseline))
}

/// Returns the same list for bytes per key, where fewer are better. All cells of an index after one
/// load have the same figure, so only its `load` cell is listed.
fn list_memory(cells: &[Cell]) -> String {
    let loads: Vec<Cell> = cells.iter().filter(|cell| cell.workload == "load").cloned().collect();
    if loads.is_empty() {
        return "Not compared: no run had the workload `load`.\n".to_owned();
    }
    let memory = losses(&loads, |cell| cell.bytes_per_key.filter(|b| *b > 0.0).map(f64::recip));
    list(&memory, "times as small", "", |_, _| String::new())
}

/// Known causes of wrong results of peers.
const EXPLAINED: [(&str, &str); 2] = [
    (
        "crossbeam-skiplist",
        "its `insert` over a present key removes the entry and then inserts a new one, as its \
         documentation says; a `get` of another thread between the two finds nothing, although \
         no thread removed the key. So it is wrong where one thread overwrites and another reads. A \
         test of this benchmark (`crossbeam_shows_a_gap_while_it_overwrites`) shows it with one key.",
    ),
    (
        "masstree",
        "its range scans leave out keys that are there where keys are longer than eight bytes and \
         share prefixes; reads of the same keys find them. Point workloads have their figures, \
         those with scans and the load, after which the whole index is scanned, have none.",
    ),
];

fn faults(cells: &[Cell]) -> String {
    let notes = notes(cells);
    if notes.is_empty() {
        return "Every index answered rightly wherever it was asked.\n".to_owned();
    }
    let lines: String = notes.iter().map(|note| format!("- {note}\n")).collect();
    let known = EXPLAINED.iter().filter(|(name, _)| notes.iter().any(|n| n.starts_with(name)));
    let known: String = known.map(|(name, why)| format!("\n`{name}`: {why}\n")).collect();
    format!("{lines}{known}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{Spread, sample};

    fn cell(index: &str, ours: bool, mops: f64, bytes: f64) -> Cell {
        Cell { ours, mops: Spread::of(&[mops]), bytes_per_key: Some(bytes), ..sample(index) }
    }

    #[test]
    fn losses_are_against_our_best_and_name_only_right_answers() {
        let mut cells = vec![
            cell("locked", true, 1.0, 30.0),
            cell("skiplist", true, 2.0, 40.0),
            cell("slower", false, 1.5, 60.0),
            cell("faster", false, 5.0, 20.0),
            cell("liar", false, 50.0, 1.0),
        ];
        cells[4].checked = false;
        let speed = losses(&cells, |cell| cell.mops.map(|mops| mops.median));
        let names: Vec<_> = speed.iter().map(|l| (&*l.best.index, &*l.peer.index)).collect();
        assert_eq!(names, [("skiplist", "faster")]);
        assert!((speed[0].factor - 2.5).abs() < 1e-9);
        let page = render_page(&cells, "locked");
        assert!(page.contains("| skiplist | locked | 1.33 |\n"), "{page}");
        let behind = "| skiplist | 1 of 1 | faster is 2.50 times as fast at int load x1 |";
        assert!(page.contains(behind), "{page}");
        assert!(page.contains("| skiplist | faster | 2.50 | yes |"), "{page}");
        assert!(page.contains("a machine; seed 7; 3 rounds"), "{page}");
        assert!(!page.contains("| liar |"), "{page}");
        assert!(page.contains("Every index answered rightly"), "{page}");
    }

    #[test]
    fn what_was_wrong_is_told_once_with_all_its_places() {
        let mut cells = vec![cell("crossbeam-skiplist", false, 1.0, 30.0); 3];
        for (cell, key) in cells.iter_mut().zip([5, 6, 7]) {
            cell.workload = format!("mix:{key}");
            cell.note = Some("wrong".to_owned());
            cell.detail = Some(format!("a read of {key}: None"));
        }
        assert_eq!(
            notes(&cells),
            ["crossbeam-skiplist (int mix:5, int mix:6, int mix:7): a read of 5: None"]
        );
        let page = render_page(&cells, "locked");
        assert!(page.contains("removes the entry and then inserts"), "{page}");
    }

    #[test]
    fn a_run_without_losses_says_so() {
        let cells = [cell("skiplist", true, 2.0, 40.0), cell("slower", false, 1.0, 50.0)];
        assert_eq!(render_page(&cells, "skiplist").matches("In no case").count(), 2);
        assert!(render_page(&[], "skiplist").contains("Nothing was measured"));
        let reads = cells.map(|cell| Cell { workload: "c".to_owned(), ..cell });
        let page = render_page(&reads, "skiplist");
        assert!(page.matches("In no case").count() == 1 && page.contains("Not compared"), "{page}");
    }

    /// Figures of runs that differ in seed or number of operations are not compared.
    #[test]
    fn a_table_is_of_one_run() {
        let cells = [cell("skiplist", true, 2.0, 40.0), cell("faster", false, 3.0, 40.0)];
        assert_eq!(losses(&cells, |cell| cell.mops.map(|mops| mops.median)).len(), 1);
        for change in [
            |cell: &mut Cell| cell.seed = 8,
            |cell: &mut Cell| cell.ops = 11,
            |cell: &mut Cell| cell.info.started = "later".to_owned(),
        ] {
            let mut cells = cells.clone();
            change(&mut cells[1]);
            let page = render_page(&cells, "skiplist");
            assert!(page.contains("In no case") && !page.contains("1.50x"), "{page}");
        }
        let mut cells = cells.to_vec();
        cells.extend(cells.clone());
        cells[2..].iter_mut().for_each(|cell| {
            cell.seed = 8;
            cell.info.command = "ordna-bench run --seed 8".to_owned();
        });
        let page = render_page(&cells, "skiplist");
        assert!(page.contains("seed 7; 3 rounds") && page.contains("seed 8; 3 rounds"), "{page}");
        assert_eq!(page.matches("1.50x").count(), 2);
        assert_eq!(page.matches("Mops/s").count(), 2, "two tables");
    }
}
