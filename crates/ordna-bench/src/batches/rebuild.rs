//! Rebuilding: how long it takes, and how long it holds up a writer.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ordna_base::OrderedIndex;
use ordna_papers::pi::cost::Model;

use super::{Experiment, compare, search, value, wrong};
use crate::dram;

/// An insert that took at least so long is looked at.
const LONG: Duration = Duration::from_micros(200);

/// What happens on another thread while one inserts.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Beside {
    Nothing,
    /// Computing, with no memory shared: what the system's scheduler does to the writer.
    Computing,
    /// One rebuild after the other.
    Rebuilds,
    /// Both: on two cores one thread too many.
    RebuildsAndComputing,
}

impl Beside {
    fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Computing => "a computing thread",
            Self::Rebuilds => "rebuilds",
            Self::RebuildsAndComputing => "rebuilds and a computing thread",
        }
    }

    fn rebuilds(self) -> bool {
        matches!(self, Self::Rebuilds | Self::RebuildsAndComputing)
    }

    fn computes(self) -> bool {
        matches!(self, Self::Computing | Self::RebuildsAndComputing)
    }
}

/// Nanoseconds that this thread has waited for a processor, as Linux counts them.
fn waited() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split_whitespace().nth(1).and_then(|text| text.parse().ok()).unwrap_or(0)
}

impl Experiment {
    /// Times rebuilds with nothing beside them, then inserts beside rebuilds.
    ///
    /// # Errors
    /// An answer was wrong.
    pub fn rebuild(&self) -> Result<(), String> {
        let times: Vec<f64> = (0..self.settings.rounds.max(3))
            .map(|_| {
                let begin = Instant::now();
                self.pi.rebuild();
                begin.elapsed().as_secs_f64() * 1e3
            })
            .collect();
        println!(
            "\nRebuild of {} keys, {} nodes, 1 thread: {}",
            self.settings.n,
            self.pi.places(),
            times.iter().map(|ms| format!("{ms:.1} ms")).collect::<Vec<_>>().join(", ")
        );
        let head = [
            "beside the inserts",
            "inserts",
            "M/s",
            "p99.9 us",
            "longest ms",
            "of it waiting for a processor",
            "over 1 ms",
            "over 5 ms",
            "rebuilds",
        ];
        let mut rows = Vec::new();
        for size in [1, self.settings.batch] {
            for beside in
                [Beside::Nothing, Beside::Computing, Beside::Rebuilds, Beside::RebuildsAndComputing]
            {
                rows.push(self.inserts(beside, size)?);
                self.clean(None, self.fresh())?;
            }
        }
        println!("\nInserts beside rebuilds, 1 thread");
        compare::table(&head.map(str::to_owned), &rows);
        Ok(())
    }

    /// Inserts the new keys, so many a call, and times each call.
    fn inserts(&self, beside: Beside, size: usize) -> Result<Vec<String>, String> {
        let (stop, rebuilds) = (AtomicBool::new(false), AtomicUsize::new(0));
        let pairs: Vec<(u64, u64)> = self.fresh().iter().map(|key| (*key, value(*key))).collect();
        let mut times: Vec<Duration> = Vec::with_capacity(pairs.len() / size + 1);
        // The longest call, and how much of it the thread waited for a processor.
        let mut longest = (Duration::ZERO, 0);
        let new: usize = std::thread::scope(|scope| {
            let (stop, rebuilds) = (&stop, &rebuilds);
            if beside.rebuilds() {
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        self.pi.rebuild();
                        rebuilds.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            if beside.computes() {
                scope.spawn(move || {
                    let mut sum = 0_u64;
                    while !stop.load(Ordering::Relaxed) {
                        sum = black_box(sum.wrapping_mul(3).wrapping_add(1));
                    }
                });
            }
            let mut before = waited();
            let mut new = 0;
            for pairs in pairs.chunks(size) {
                let begin = Instant::now();
                new += match pairs {
                    [(key, value)] => usize::from(self.pi.insert(key, value) == Ok(None)),
                    pairs => self.pi.insert_many(pairs).unwrap_or(0),
                };
                let took = begin.elapsed();
                times.push(took);
                if took >= LONG {
                    // Since the last look all others were short: the waiting is this one's.
                    let now = waited();
                    if took > longest.0 {
                        longest = (took, now - before);
                    }
                    before = now;
                }
            }
            stop.store(true, Ordering::Relaxed);
            new
        });
        if new != pairs.len() {
            return Err(wrong(format!("{new} of {} inserts were new", pairs.len())));
        }
        times.sort_unstable();
        let over = |ms: u64| times.iter().filter(|time| time.as_millis() >= ms.into()).count();
        let seconds: f64 = times.iter().map(Duration::as_secs_f64).sum();
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let what = if size == 1 { "single".to_owned() } else { format!("batches of {size}") };
        Ok(vec![
            beside.name().to_owned(),
            what,
            format!("{:.2}", pairs.len() as f64 / seconds / 1e6),
            format!("{:.1}", ms(times[times.len() * 999 / 1000]) * 1e3),
            format!("{:.2}", ms(times[times.len() - 1])),
            format!("{:.2} ms", longest.1 as f64 / 1e6),
            over(1).to_string(),
            over(5).to_string(),
            rebuilds.load(Ordering::Relaxed).to_string(),
        ])
    }

    /// The paper's model (§5) beside measurements.
    ///
    /// # Errors
    /// An answer was wrong.
    pub fn model(&self) -> Result<(), String> {
        let nodes = self.pi.places();
        let (far, near) = (dram::measure(1 << 28), dram::measure(1 << 18));
        let model = Model::of_this(nodes as f64);
        println!(
            "\nModel (§5): {nodes} nodes, {} lines of the layer a search",
            model.layer_lines()
        );
        println!("memory: {far}; a table of 256 KiB: {near}");
        let keys = self.draws(0.0);
        let ns = |batch: usize| -> Result<f64, String> {
            let times = search(&self.pi, &keys, batch)?;
            Ok(times.iter().sum::<u64>() as f64 / keys.len() as f64)
        };
        let begin = Instant::now();
        let bad = keys.iter().filter(|key| self.pi.get(key) != Some(value(**key))).count();
        let single = begin.elapsed().as_nanos() as f64 / keys.len() as f64;
        if bad > 0 {
            return Err(wrong(format!("{bad} single gets")));
        }
        let begin = Instant::now();
        self.pi.rebuild();
        let rebuild = begin.elapsed().as_secs_f64() * 1e3;
        let row = |what: &str, model: f64, measured: f64, unit: &str| {
            let ratio = format!("{:.2}", measured / model);
            vec![
                what.to_owned(),
                format!("{model:.1} {unit}"),
                format!("{measured:.1} {unit}"),
                ratio,
            ]
        };
        let batch = self.settings.batch;
        let overlapped = model.search_ns(0.0, 1.0, near.in_flight_16_ns, far.in_flight_16_ns);
        let alone = model.search_ns(0.0, 1.0, near.dependent_ns, far.dependent_ns);
        let rows = [
            row("single get, misses one after the other", alone, single, "ns"),
            row("search in a batch, 16 misses in flight", overlapped, ns(batch)?, "ns"),
            row(
                "rebuild, 16 misses in flight",
                model.rebuild_ns(far.in_flight_16_ns) / 1e6,
                rebuild,
                "ms",
            ),
        ];
        let head = ["", "model", "measured", "measured / model"];
        compare::table(&head.map(str::to_owned), &rows);
        Ok(())
    }
}
