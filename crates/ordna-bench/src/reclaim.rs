//! `ordna bench reclaim`: what the ways to free removed memory cost, and what they hold.
//!
//! `ordna_base::reclaim`, on which the indexes and the store run, beside the access barrier of the Nitro paper (§6) and
//! `crossbeam-epoch`. Each measurement begins with a new one, and ends when all that it retired is freed, or with
//! an error. One thread measures; another is the reader that stalls.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::hint::black_box;
use std::sync::{Barrier, mpsc};
use std::time::Instant;

use serde::Serialize;

use crate::info::RunInfo;
use crate::progress::Progress;
use crate::suggest::unknown;
use crate::table::Spread;

mod schemes;

use schemes::{NODE, Scheme, Tally};

/// Nodes retired after the stalled reader has left, so that who frees late has its chance.
const AFTERWARDS: usize = 1000;

/// One way to free removed memory.
pub struct Entry {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it is.
    pub what: &'static str,
    /// Of the workspace, and not of others.
    pub ours: bool,
    measure: fn(&Settings) -> Result<Round, String>,
}

/// Those of this build.
pub const SCHEMES: &[Entry] = &[
    Entry {
        name: "seize",
        what: "ordna_base::reclaim (seize): the indexes and the store run on it",
        ours: true,
        measure: measure::<schemes::Seize>,
    },
    Entry {
        name: "barrier",
        what: "ordna_papers::barrier: the access barrier of the Nitro paper",
        ours: true,
        measure: measure::<schemes::Sessions>,
    },
    #[cfg(feature = "peers")]
    Entry {
        name: PEER,
        what: "the collector that all users of that library share",
        ours: false,
        measure: measure::<schemes::Epoch>,
    },
];

/// Measured in builds with the feature `peers`.
pub const PEER: &str = "crossbeam-epoch";

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Times that a reading section is entered and left in a round.
    pub entries: usize,
    /// Nodes retired in a round, and once more while a reader stalls.
    pub retires: usize,
    /// Measurements of each.
    pub rounds: usize,
}

impl Settings {
    /// Refuses what cannot be carried out.
    ///
    /// # Errors
    /// Tells what is to be asked for instead.
    pub fn check(&self) -> Result<(), String> {
        let Self { entries, retires, rounds } = *self;
        if entries == 0 || retires == 0 || rounds == 0 {
            return Err("--entries, --retires and --rounds are at least 1".to_owned());
        }
        // So many rounds end.
        if rounds > 1000 || entries > 1 << 40 {
            return Err(format!("--rounds is at most 1000, --entries {}", 1_u64 << 40));
        }
        // All nodes, and what each scheme notes of each.
        let needed = retires.saturating_mul(4 * NODE);
        match crate::memory::available().filter(|free| *free < needed) {
            None => Ok(()),
            Some(free) => Err(format!(
                "about {} MB are needed for {retires} nodes, and {} MB are free; ask for fewer with --retires",
                needed / 1_000_000,
                free / 1_000_000
            )),
        }
    }
}

/// What one round gave.
struct Round {
    enter: f64,
    nested: f64,
    retire: f64,
    held_inside: f64,
    leave: f64,
    held_after: f64,
    held_dropped: f64,
}

/// A figure of a round.
struct Measure {
    /// In the JSON.
    key: &'static str,
    title: &'static str,
    of: fn(&Round) -> f64,
    /// A unit of the table holds so many of those of the JSON.
    scale: f64,
    decimals: usize,
}

const MEASURES: [Measure; 7] = [
    Measure {
        key: "enter_ns",
        title: "enter and leave, ns",
        of: |round| round.enter,
        scale: 1.0,
        decimals: 1,
    },
    Measure {
        key: "nested_ns",
        title: "the same within a reading section, ns",
        of: |round| round.nested,
        scale: 1.0,
        decimals: 1,
    },
    Measure {
        key: "retire_ns",
        title: "allocate, enter, retire, leave, ns",
        of: |round| round.retire,
        scale: 1.0,
        decimals: 1,
    },
    Measure {
        key: "held_while_stalled_bytes",
        title: "held while a reader stalls, MB",
        of: |round| round.held_inside,
        scale: 1e6,
        decimals: 3,
    },
    Measure {
        key: "stalled_leave_ns",
        title: "that reader's leaving, ms",
        of: |round| round.leave,
        scale: 1e6,
        decimals: 3,
    },
    Measure {
        key: "held_after_bytes",
        title: "held after it left, MB",
        of: |round| round.held_after,
        scale: 1e6,
        decimals: 3,
    },
    Measure {
        key: "held_dropped_bytes",
        title: "held after the owner was dropped, MB",
        of: |round| round.held_dropped,
        scale: 1e6,
        decimals: 3,
    },
];

/// What all rounds of one scheme gave.
#[derive(Debug, Serialize)]
pub struct Outcome {
    scheme: &'static str,
    ours: bool,
    node_bytes: usize,
    entries: usize,
    retires: usize,
    rounds: usize,
    /// By the key of the measure; none if it is wrong.
    #[serde(flatten)]
    figures: BTreeMap<&'static str, Spread>,
    /// In every round nothing was freed that a reader could hold, and all in the end.
    checked: bool,
    /// What was wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
    /// Where and when.
    pub info: RunInfo,
}

/// The schemes of these names, each once.
///
/// # Errors
/// There is none of a name.
pub fn find(names: &[String]) -> Result<Vec<&'static Entry>, String> {
    let mut found: Vec<&'static Entry> = Vec::new();
    for name in names {
        let known = SCHEMES.iter().map(|entry| entry.name);
        let Some(entry) = SCHEMES.iter().find(|entry| entry.name == name) else {
            let needs = if name == PEER { " (it needs a build with --features peers)" } else { "" };
            return Err(unknown("--scheme", name, known) + needs);
        };
        if found.iter().all(|other| other.name != entry.name) {
            found.push(entry);
        }
    }
    Ok(found)
}

/// Measures all in interleaved rounds.
pub fn run(
    schemes: &[&'static Entry],
    settings: &Settings,
    info: &RunInfo,
    progress: &Progress,
) -> Vec<Outcome> {
    let mut all: Vec<(Vec<Round>, Option<String>)> =
        schemes.iter().map(|_| (Vec::new(), None)).collect();
    for round in 1..=settings.rounds {
        for (entry, (rounds, detail)) in schemes.iter().zip(&mut all) {
            progress.step(&format!("round {round}"), entry.name);
            if detail.is_none() {
                match (entry.measure)(settings) {
                    Ok(round) => rounds.push(round),
                    Err(what) => *detail = Some(what),
                }
            }
            progress.done();
        }
    }
    let outcome = |(entry, (rounds, detail)): (&&'static Entry, (Vec<Round>, Option<String>))| {
        let spread = |measure: &Measure| {
            let figures: Vec<f64> = rounds.iter().map(measure.of).collect();
            Some((measure.key, Spread::of(&figures)?))
        };
        let figures = match &detail {
            None => MEASURES.iter().filter_map(spread).collect(),
            Some(_) => BTreeMap::new(),
        };
        Outcome {
            scheme: entry.name,
            ours: entry.ours,
            node_bytes: NODE,
            entries: settings.entries,
            retires: settings.retires,
            rounds: settings.rounds,
            figures,
            checked: detail.is_none(),
            detail,
            info: info.clone(),
        }
    };
    schemes.iter().zip(all).map(outcome).collect()
}

/// The figures, a column for each scheme.
pub fn render(outcomes: &[Outcome]) -> String {
    let mut table = format!("{:<38}", "");
    for outcome in outcomes {
        // Writing to a String cannot fail.
        let _ = write!(table, " {:>26}", outcome.scheme);
    }
    for Measure { key, title, scale, decimals, .. } in &MEASURES {
        let _ = write!(table, "\n{title:<38}");
        for outcome in outcomes {
            let cell = outcome.figures.get(key).map_or("wrong".to_owned(), |figure| {
                let [median, min, max] =
                    [figure.median, figure.min, figure.max].map(|figure| figure / scale);
                format!("{median:.decimals$} ({min:.decimals$}–{max:.decimals$})")
            });
            let _ = write!(table, " {cell:>26}");
        }
    }
    table
}

/// Tells of peers that are wrong.
///
/// # Errors
/// One of ours is wrong.
pub fn verdict(outcomes: &[Outcome]) -> Result<(), String> {
    let mut broken = Vec::new();
    for outcome in outcomes {
        match &outcome.detail {
            Some(detail) if outcome.ours => broken.push(format!("{}: {detail}", outcome.scheme)),
            Some(detail) => eprintln!("a peer is wrong: {}: {detail}", outcome.scheme),
            None => {}
        }
    }
    if broken.is_empty() { Ok(()) } else { Err(broken.join("; ")) }
}

/// Nanoseconds of each of so many times.
fn nanos(times: usize, mut body: impl FnMut()) -> f64 {
    let start = Instant::now();
    for _ in 0..times {
        body();
    }
    start.elapsed().as_nanos() as f64 / times as f64
}

fn measure<S: Scheme>(settings: &Settings) -> Result<Round, String> {
    let Settings { entries, retires, .. } = *settings;
    let scheme = S::new();
    // The first entry of a thread may make what the others use.
    scheme.within(|| ());
    let enter = nanos(entries, || scheme.within(|| black_box(())));
    let nested = scheme.within(|| nanos(entries, || scheme.within(|| black_box(()))));
    let (quietly, beside) = (Tally::new(), Tally::new());
    let retire = nanos(retires, || scheme.retire(&quietly));
    // One reader stalls inside while this thread retires.
    let (inside, (leave, told)) = (Barrier::new(2), mpsc::channel::<()>());
    let stalled = std::thread::scope(|scope| {
        let (scheme, inside) = (&scheme, &inside);
        let reader = scope.spawn(move || {
            let told_at = scheme.within(|| {
                inside.wait();
                // An error, too, is a word to leave.
                let _ = told.recv();
                Instant::now()
            });
            told_at.elapsed().as_nanos() as f64
        });
        inside.wait();
        (0..retires).for_each(|_| scheme.retire(&beside));
        let held = beside.held();
        drop(leave);
        reader.join().map(|left| (held, left))
    });
    let (held_inside, leave) = stalled.map_err(|_| "the reader panicked".to_owned())?;
    (0..AFTERWARDS).for_each(|_| scheme.retire(&beside));
    let held = || quietly.held() + beside.held();
    let held_after = held();
    drop(scheme);
    let held_dropped = held();
    S::free_the_rest(|| held() == 0);
    let left = held();
    // Before the error: the counters may go only if no node is left.
    let ended = [quietly, beside].map(Tally::end);
    if left > 0 || ended.contains(&false) {
        return Err(format!("{left} of {} nodes were never freed", 2 * retires + AFTERWARDS));
    }
    if held_inside < retires {
        let early = retires - held_inside;
        return Err(format!("{early} nodes were freed while a reader could hold them"));
    }
    let bytes = |nodes: usize| (nodes * NODE) as f64;
    Ok(Round {
        enter,
        nested,
        retire,
        held_inside: bytes(held_inside),
        leave,
        held_after: bytes(held_after),
        held_dropped: bytes(held_dropped),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Settings = Settings { entries: 1000, retires: 2000, rounds: 2 };

    #[test]
    fn all_is_measured_and_all_is_freed() {
        let schemes: Vec<&Entry> = SCHEMES.iter().collect();
        let outcomes = run(&schemes, &SMALL, &RunInfo::default(), &Progress::hidden());
        verdict(&outcomes).unwrap();
        let table = render(&outcomes);
        assert_eq!(table.lines().count(), 1 + MEASURES.len(), "{table}");
        for outcome in &outcomes {
            assert!(outcome.checked && table.contains(outcome.scheme), "{outcome:?}");
            let json = serde_json::to_value(outcome).unwrap();
            for Measure { key, .. } in &MEASURES {
                let figure = &json[key];
                assert!(figure["min"].as_f64() <= figure["median"].as_f64(), "{json}");
                assert!(figure["median"].as_f64() <= figure["max"].as_f64(), "{json}");
            }
            assert!(json["enter_ns"]["min"].as_f64().unwrap() > 0.0);
            assert_eq!(json["held_while_stalled_bytes"]["min"], (SMALL.retires * NODE) as f64);
        }
    }

    /// Frees at once, or never.
    struct Broken<const AT_ONCE: bool>;

    impl<const AT_ONCE: bool> Scheme for Broken<AT_ONCE> {
        fn new() -> Self {
            Self
        }
        fn within<R>(&self, body: impl FnOnce() -> R) -> R {
            body()
        }
        fn retire(&self, tally: &Tally) {
            let node = tally.node();
            if AT_ONCE { drop(node) } else { std::mem::forget(node) }
        }
    }

    #[test]
    fn what_is_freed_too_early_or_never_is_wrong() {
        let early = measure::<Broken<true>>(&SMALL).err().unwrap();
        assert_eq!(early, "2000 nodes were freed while a reader could hold them");
        let never = measure::<Broken<false>>(&SMALL).err().unwrap();
        assert_eq!(never, "5000 of 5000 nodes were never freed");
        let entry = |ours: bool| -> &'static Entry {
            let measure = measure::<Broken<true>>;
            Box::leak(Box::new(Entry { name: "broken", what: "", ours, measure }))
        };
        let of = |ours: bool| run(&[entry(ours)], &SMALL, &RunInfo::default(), &Progress::hidden());
        assert!(verdict(&of(true)).unwrap_err().starts_with("broken: 2000 nodes"));
        verdict(&of(false)).unwrap();
        assert!(render(&of(false)).contains("wrong"));
    }
}
