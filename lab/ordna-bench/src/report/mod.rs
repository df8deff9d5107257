//! `--report DIR`: the results as one HTML page with plots, without external resources.

mod svg;

use std::collections::BTreeSet;

use crate::info::RunInfo;
use crate::noise::{runs, told};
use crate::page::notes;
use crate::registry::BASELINES;
use crate::table::{Cell, render};
use svg::{Axis, Bar, Line, Scale, bars, escape, lines, number};

/// Returns the page.
pub fn render_report(cells: &[Cell], baseline: &str) -> String {
    let all = runs(cells);
    let blocks: String = all.iter().map(|run| block(cells, run, all.len() > 1)).collect();
    let wrong = notes(cells);
    let wrong: String = wrong.iter().map(|note| format!("<li>{}</li>", escape(note))).collect();
    let wrong = if wrong.is_empty() {
        String::new()
    } else {
        format!("<h2>Wrong answers</h2><ul>{wrong}</ul>")
    };
    format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\"><title>ordna-bench</title><style>{}</style>\
         </head><body><main><h1>ordna-bench</h1>{}{blocks}{wrong}<details><summary>All figures\
         </summary>{}</details></main></body></html>\n",
        include_str!("page.css"),
        head(cells, baseline),
        all.iter().map(|run| figures(cells, run, baseline)).collect::<String>(),
    )
}

/// Formats the plots of one run, which contain no figures of other runs.
fn block(cells: &[Cell], run: &RunInfo, named: bool) -> String {
    let own: Vec<Cell> = cells.iter().filter(|cell| cell.info == *run).cloned().collect();
    let plots =
        [throughput(&own), memory(&own), scaling(&own), growth(&own), lengths(&own), latency(&own)];
    let name = escape(&format!("{} {}", run.started, run.command));
    let name = if named { format!("<h2>Run of {name}</h2>") } else { String::new() };
    format!("{name}{}", plots.concat())
}

fn figures(cells: &[Cell], run: &RunInfo, baseline: &str) -> String {
    let own: Vec<Cell> = cells.iter().filter(|cell| cell.info == *run).cloned().collect();
    format!("<pre>{}\n\n{}</pre>", escape(&run.command), escape(&render(&own, baseline)))
}

fn head(cells: &[Cell], baseline: &str) -> String {
    let Some(first) = cells.first() else {
        return "<p>Nothing was measured.</p>".to_owned();
    };
    let dram = cells.iter().find_map(|cell| cell.info.dram);
    let dram = dram.map(|dram| format!("<dt>DRAM</dt><dd>{dram}</dd>")).unwrap_or_default();
    let noise = told(cells, baseline);
    let noise: String = noise.iter().map(|text| format!("<li>{}</li>", escape(text))).collect();
    let runs = runs(cells).into_iter().map(|run| {
        let [command, started, version] =
            [&run.command, &run.started, &run.version].map(|text| escape(text));
        let own = || cells.iter().filter(|cell| cell.info == *run);
        let seed = own().map(|cell| cell.seed).next().unwrap_or(0);
        let rounds = own().map(|cell| cell.rounds).max().unwrap_or(0);
        format!(
            "<dt>Run</dt><dd>{started}, {version}, seed {seed}, {rounds} rounds: \
             <code>{command}</code></dd>"
        )
    });
    let runs: String = runs.collect();
    format!(
        "<dl>{runs}<dt>Machine</dt><dd>{}</dd><dt>Allocator</dt><dd>{}, of the whole program</dd>{dram}\
         <dt>Keys of the operations</dt><dd>{}</dd><dt>Loads</dt><dd>{}</dd>\
         <dt>Rounds</dt><dd>interleaved over the indexes; medians, with lowest and highest</dd>\
         <dt>Baseline</dt><dd>{}</dd><dt>Colours</dt><dd><i class=\"key ours\">\
         </i> Ordna's indexes &nbsp; <i class=\"key peer\"></i> peers and plain B-trees</dd></dl>\
         <p>Every answer was checked, and after every run what the index holds; an index that answered \
         wrongly has no figure.</p><ul>{noise}</ul>",
        escape(&first.info.machine),
        escape(&first.info.allocator),
        escape(&first.info.key_order),
        escape(&first.info.loads),
        escape(baseline),
    )
}

fn is_ours(cell: &Cell) -> bool {
    cell.ours && !BASELINES.contains(&cell.index.as_str())
}

/// Returns the distinct values of `of`, in the order of the cells.
fn distinct<'a, T: PartialEq>(cells: &[&'a Cell], of: impl Fn(&'a Cell) -> T) -> Vec<T> {
    let mut found = Vec::new();
    for cell in cells {
        let value = of(cell);
        if !found.contains(&value) {
            found.push(value);
        }
    }
    found
}

fn section(title: &str, text: &str, groups: Vec<(String, String)>) -> String {
    let groups: String = groups
        .into_iter()
        .filter(|(_, plots)| !plots.is_empty())
        .map(|(title, plots)| {
            let title = if title.is_empty() {
                String::new()
            } else {
                format!("<h3>{}</h3>", escape(&title))
            };
            format!("{title}<div class=\"plots\">{plots}</div>")
        })
        .collect();
    if groups.is_empty() {
        return String::new();
    }
    format!("<h2>{}</h2><p>{}</p>{groups}", escape(title), escape(text))
}

/// Describes a group of plots: the experiment, then keys, size, threads and keys per call.
fn circumstances(cell: &Cell) -> String {
    let experiment = cell.experiment.as_ref().map(|text| format!("{text}: ")).unwrap_or_default();
    let threads =
        if cell.threads == 1 { "1 thread".to_owned() } else { format!("{} threads", cell.threads) };
    let batch =
        if cell.batch > 1 { format!(", {} keys per call", cell.batch) } else { String::new() };
    format!("{experiment}{}, {} keys, {threads}{batch}", cell.keys, number(cell.n as f64))
}

fn bar(cell: &Cell, value: Option<f64>) -> Bar {
    let none = cell.note.clone().unwrap_or_else(|| "not measured".to_owned());
    let none = if none.len() > 40 {
        format!("{}…", none.chars().take(38).collect::<String>())
    } else {
        none
    };
    Bar {
        label: cell.index.clone(),
        class: if is_ours(cell) { "ours" } else { "peer" },
        value: value.ok_or(none),
        range: None,
        tick: None,
    }
}

fn throughput(cells: &[Cell]) -> String {
    let all: Vec<&Cell> = cells.iter().collect();
    let groups = distinct(&all, circumstances).into_iter().map(|group| {
        let group_cells: Vec<&Cell> =
            all.iter().copied().filter(|cell| circumstances(cell) == group).collect();
        let plots = distinct(&group_cells, |cell| &cell.workload).into_iter().map(|workload| {
            let rows: Vec<Bar> = group_cells
                .iter()
                .filter(|cell| cell.workload == *workload)
                .map(|cell| Bar {
                    range: cell.mops.map(|mops| (mops.min, mops.max)),
                    ..bar(cell, cell.mops.map(|mops| mops.median))
                })
                .collect();
            bars(workload, "million operations per second", &rows)
        });
        (group, plots.collect())
    });
    section(
        "Throughput",
        "By index and workload. Longer is better; the thin line is the spread of the rounds.",
        groups.collect(),
    )
}

fn memory(cells: &[Cell]) -> String {
    let mut seen = BTreeSet::new();
    // One load is used for all workloads of a case, so the first is sufficient.
    let loads: Vec<&Cell> = cells
        .iter()
        .filter(|cell| cell.batch == 1 || cells.iter().all(|other| other.batch > 1))
        .filter(|cell| cell.bytes_per_key.is_some() || cell.rss_per_key.is_some())
        .filter(|cell| seen.insert((&cell.keys, cell.n, &cell.index)))
        .collect();
    let text = "Shorter is better. The bar is what the allocator handed out, the tick by how much \
                the resident set grew; of few keys that is more than they take, as the first ones bring \
                pages of the allocator and the threads. Plug-ins have an allocator of their own: resident set only.";
    plots(
        ("Memory", text),
        &loads,
        |cell| (&cell.keys, cell.n),
        |(keys, n), chosen| {
            let row = |cell: &&Cell| Bar {
                tick: cell.rss_per_key,
                ..bar(cell, cell.bytes_per_key.or(cell.rss_per_key))
            };
            let rows: Vec<Bar> = chosen.iter().map(row).collect();
            bars(
                &format!("{keys}, {} keys", number(n as f64)),
                "bytes per key after the load",
                &rows,
            )
        },
    )
}

/// Returns the class of an index. Ours have colours in the order of their first appearance.
fn class(cells: &[Cell], index: &str) -> String {
    let all: Vec<&Cell> = cells.iter().filter(|cell| is_ours(cell)).collect();
    let ours = distinct(&all, |cell| cell.index.as_str());
    match ours.iter().position(|ours| *ours == index) {
        Some(at) => format!("s{}", at % 8),
        None => "peer".to_owned(),
    }
}

/// Returns a line per index through the cells for which `figure` returns a point, if there are at
/// least two.
fn series(
    cells: &[Cell],
    chosen: &[&Cell],
    figure: impl Fn(&Cell) -> Option<(f64, f64)>,
) -> Vec<Line> {
    let line = |index: &String| {
        let mut points: Vec<(f64, f64)> = chosen
            .iter()
            .filter(|cell| cell.index == *index)
            .filter_map(|cell| figure(cell))
            .collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Line { label: index.clone(), class: class(cells, index), points }
    };
    let mut lines: Vec<Line> = distinct(chosen, |cell| &cell.index).into_iter().map(line).collect();
    lines.retain(|line| line.points.len() > 1);
    // Our indexes are drawn last, on top.
    lines.sort_by_key(|line| line.class != "peer");
    lines
}

fn whole(values: impl Iterator<Item = usize>) -> Vec<(f64, String)> {
    let values: BTreeSet<usize> = values.collect();
    values.into_iter().map(|value| (value as f64, number(value as f64))).collect()
}

/// Formats a section with a plot for each case, from the cells of that case.
fn plots<'a, T: PartialEq>(
    (title, text): (&str, &str),
    cells: &[&'a Cell],
    of: impl Fn(&'a Cell) -> T,
    mut plot: impl FnMut(T, &[&'a Cell]) -> String,
) -> String {
    let plots = distinct(cells, &of).into_iter().map(|case| {
        let chosen: Vec<&Cell> = cells.iter().copied().filter(|cell| of(cell) == case).collect();
        plot(case, &chosen)
    });
    section(title, text, vec![(String::new(), plots.collect())])
}

fn axis(title: &str, scale: Scale, marks: Vec<(f64, String)>) -> Axis<'_> {
    Axis { title, scale, marks }
}

fn per_call(batch: usize) -> String {
    if batch > 1 { format!(", {batch} per call") } else { String::new() }
}

fn scaling(cells: &[Cell]) -> String {
    let all: Vec<&Cell> = cells.iter().collect();
    let of = |cell: &Cell| {
        (cell.experiment.clone(), cell.keys.clone(), cell.n, cell.workload.clone(), cell.batch)
    };
    let head = ("Scaling with threads", "Higher is better.");
    plots(head, &all, of, |(_, keys, n, workload, batch), chosen| {
        let found = series(cells, chosen, |cell| Some((cell.threads as f64, cell.mops?.median)));
        let marks = whole(chosen.iter().map(|cell| cell.threads));
        let (x, y) = (axis("threads", Scale::Linear, marks), axis("Mops/s", Scale::Linear, vec![]));
        let title = format!("{keys}, {}, {workload}{}", number(n as f64), per_call(batch));
        lines(&title, &x, &y, &found)
    })
}

fn growth(cells: &[Cell]) -> String {
    let all: Vec<&Cell> = cells.iter().collect();
    let of = |cell: &Cell| (cell.keys.clone(), cell.workload.clone(), cell.threads, cell.batch);
    // Bytes per key belong to the load, so there is one plot per key set.
    let mut sized = BTreeSet::new();
    let head = ("Growth with n", "Lower is better.");
    plots(head, &all, of, |(keys, workload, threads, batch), chosen| {
        let sizes = whole(chosen.iter().map(|cell| cell.n));
        let ends = sizes.first().map(|s| s.0).zip(sizes.last().map(|s| s.0));
        let n = axis("keys", Scale::Log, sizes);
        let mut speed =
            series(cells, chosen, |cell| Some((cell.n as f64, cell.ns_per_operation()?)));
        let mut bytes = series(cells, chosen, |cell| Some((cell.n as f64, cell.bytes_per_key?)));
        let dram = cells.iter().find_map(|cell| cell.info.dram).filter(|_| !speed.is_empty());
        if let Some((dram, (low, high))) = dram.zip(ends) {
            let level = |label: &str, ns: f64| Line {
                label: label.to_owned(),
                class: "mark".to_owned(),
                points: vec![(low, ns), (high, ns)],
            };
            speed.push(level("one DRAM miss", dram.dependent_ns));
            speed.push(level("one of 16 misses", dram.in_flight_16_ns));
        }
        if !bytes.is_empty() && !sized.insert(keys.clone()) {
            bytes.clear();
        }
        let ns = axis("ns per operation and thread", Scale::Log, vec![]);
        let title = format!("{keys}, {workload}, x{threads}{}", per_call(batch));
        let of_bytes = axis("bytes per key", Scale::Linear, vec![]);
        lines(&title, &n, &ns, &speed) + &lines(&keys, &n, &of_bytes, &bytes)
    })
}

/// Formats the cost for different lengths of the keys, if key sets of one kind differ only in the
/// length.
fn lengths(cells: &[Cell]) -> String {
    let length = |cell: &Cell| -> Option<usize> { cell.keys.split_once(':')?.1.parse().ok() };
    let all: Vec<&Cell> = cells.iter().filter(|cell| length(cell).is_some()).collect();
    let of = |cell: &Cell| {
        let kind = cell.keys.split(':').next().unwrap_or_default().to_owned();
        (kind, cell.n, cell.workload.clone(), cell.threads, cell.batch)
    };
    let text = "Lower is better. What grows with the logarithm of the length is a straight line.";
    plots(("Length of the keys", text), &all, of, |(kind, n, workload, threads, batch), chosen| {
        let found =
            series(cells, chosen, |cell| Some((length(cell)? as f64, cell.ns_per_operation()?)));
        let marks = whole(chosen.iter().filter_map(|cell| length(cell)));
        let bytes = axis("bytes of a key", Scale::Log, marks);
        let ns = axis("ns per operation and thread", Scale::Linear, vec![]);
        let (n, batch) = (number(n as f64), per_call(batch));
        lines(&format!("{kind}, {n} keys, {workload}, x{threads}{batch}"), &bytes, &ns, &found)
    })
}

fn latency(cells: &[Cell]) -> String {
    let all: Vec<&Cell> = cells.iter().filter(|cell| !cell.latency.is_empty()).collect();
    let marks =
        [("50 %", 0.5), ("90 %", 0.9), ("99 %", 0.99), ("99.9 %", 0.999), ("99.99 %", 0.9999)];
    let marks = marks.map(|(name, share)| (1.0 / (1.0 - share), name.to_owned())).to_vec();
    let text = "Lower is better. From a pass of its own with the clock in every operation; an \
                operation in a group takes as long as the group.";
    plots(("Latency", text), &all, Cell::case, |_, chosen| {
        let line = |cell: &&Cell| Line {
            label: cell.index.clone(),
            class: class(cells, &cell.index),
            points: cell
                .latency
                .iter()
                .filter(|(share, _)| *share >= 0.5)
                .map(|(share, ns)| (1.0 / (1.0 - share), *ns as f64))
                .collect(),
        };
        let found: Vec<Line> = chosen.iter().filter(|cell| cell.note.is_none()).map(line).collect();
        let share = axis("of the operations are done within", Scale::Log, marks.clone());
        let Cell { keys, workload, threads, batch, .. } = chosen[0];
        let title = format!("{keys}, {workload}, x{threads}{}", per_call(*batch));
        lines(&title, &share, &axis("ns", Scale::Log, vec![]), &found)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dram::Dram;
    use crate::table::{Spread, sample};

    /// Checks that opened tags are closed, in order.
    fn assert_well_formed(html: &str) {
        let mut open: Vec<&str> = Vec::new();
        for tag in html.split('<').skip(1) {
            let (tag, _) = tag.split_once('>').unwrap();
            let name = tag.split([' ', '/']).find(|part| !part.is_empty()).unwrap();
            if tag.starts_with('/') {
                assert_eq!(open.pop(), Some(name), "{tag}");
            } else if !tag.ends_with('/') && !["!doctype", "meta"].contains(&name) {
                open.push(name);
            }
        }
        assert!(open.is_empty(), "{open:?}");
    }

    #[test]
    fn the_page_has_every_plot_and_nothing_from_elsewhere() {
        let mut cells = Vec::new();
        for (index, ours) in [("locked", true), ("skiplist", true), ("dash<map>", false)] {
            for threads in [1, 2] {
                for n in [1000, 10_000] {
                    let mut cell = sample(index);
                    (cell.ours, cell.threads, cell.n) = (ours, threads, n);
                    cell.workload = "c".to_owned();
                    cell.mops = Spread::of(&[1.0, threads as f64]);
                    cell.latency = vec![(0.5, 100), (0.999, 4000)];
                    cell.info.dram = Some(Dram { dependent_ns: 160.0, in_flight_16_ns: 11.0 });
                    cells.push(cell);
                }
            }
        }
        cells[3].mops = None;
        (cells[3].note, cells[3].detail) = (Some("wrong".to_owned()), Some("a & b".to_owned()));
        let page = render_report(&cells, "locked");
        assert_well_formed(&page);
        for title in ["Throughput", "Memory", "Scaling", "Growth", "Latency", "Wrong answers"] {
            assert!(page.contains(&format!("<h2>{title}")), "{title}");
        }
        assert!(page.contains("one DRAM miss") && page.contains("dash&lt;map&gt;"));
        assert!(page.contains("prefers-color-scheme: dark"));
        for outside in ["http", "src=", "<script", "@import", "url("] {
            assert!(!page.contains(outside), "{outside}");
        }
        assert!(!page.contains("NaN") && !page.contains("inf"));
        assert!(!page.contains("bytes of a key"));
        for (cell, keys) in cells.iter_mut().zip(["fixed:8", "fixed:8", "fixed:64", "fixed:64"]) {
            (cell.keys, cell.n, cell.threads) = (keys.to_owned(), 1000, 1);
        }
        let page = render_report(&cells, "locked");
        assert_well_formed(&page);
        assert!(page.contains("<h2>Length of the keys") && page.contains("bytes of a key"));
        assert!(!page.contains("<h2>Run of"));
        assert_well_formed(&render_report(&[], "locked"));
        // No plot combines figures of two runs.
        let mut two = vec![sample("skiplist"), sample("locked")];
        two[1].info.started = "later".to_owned();
        let page = render_report(&two, "locked");
        assert_well_formed(&page);
        assert_eq!(page.matches("<h2>Run of").count(), 2);
        assert_eq!(page.matches("<h2>Throughput").count(), 2);
        assert_well_formed(&render_report(&cells[..1], "locked"));
    }
}
