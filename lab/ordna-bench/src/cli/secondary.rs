//! `ordna-bench secondary`: measures indexes that follow a stream, together with the raw store in
//! the same run.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use ordna::durability::BackupOptions;
use ordna::tuple::{Encode, Value};
use ordna::{OrderedIndex, Store};
use ordna_secondary::{
    ChangeSource, Document, Documents, Feed, IndexDefinition, Mutation, Part, Position, Query,
    Range, Read, Reverse, Service, ServiceOptions, SourceError, VersionVector,
};

use super::common::BenchError;
use crate::memory;

/// A part of the measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Experiment {
    /// One index: insert, scan, backup, recovery, update, freshness.
    One,
    /// Deletion from one index.
    Delete,
    /// A build from a snapshot of the documents.
    Build,
    /// Reverse maps of pointers and of copies.
    Maps,
    /// Many indexes.
    Many,
}

/// `ordna-bench secondary`
#[derive(Debug, Args)]
pub struct Secondary {
    /// Run only these experiments; all by default.
    #[arg(long, value_delimiter = ',')]
    only: Vec<Experiment>,
    /// Number of documents.
    #[arg(long, default_value_t = 1_000_000)]
    n: u64,
    /// Number of threads that feed, and of workers.
    #[arg(long, default_value_t = 2)]
    threads: u64,
    /// Number of indexes in the experiment with many.
    #[arg(long, default_value_t = 15)]
    indexes: u64,
    /// A directory for the backup.
    #[arg(long, default_value = "target/bench-secondary")]
    dir: PathBuf,
}

/// Number of documents that are generated before a measurement, and then passed to the index.
const LOT: u64 = 100_000;
const PARTITIONS: u64 = 64;

fn said(text: impl ToString) -> BenchError {
    BenchError::Request(text.to_string())
}

/// Maps numbers, one to one, to numbers in a scattered order.
fn scatter(number: u64) -> u64 {
    let number = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (number ^ number >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9)
}

/// Returns a text of 25 bytes for a field of a document in a round of updates.
fn text(number: u64, round: u64, field: u64) -> String {
    let first = scatter(number.wrapping_mul(31).wrapping_add(round * 7919 + field * 104_729));
    format!("{first:016x}{:09x}", scatter(first) >> 28)
}

fn id(number: u64) -> Box<[u8]> {
    format!("doc-{number}").into_bytes().into()
}

fn document(number: u64, round: u64, fields: u64) -> Document {
    let mut document = Document::new();
    for field in 0..fields {
        document.push(format!("f{field}"), Value::String(text(number, round, field)));
    }
    document
}

/// The source of the benchmark, which the benchmark's threads feed.
#[derive(Default)]
struct Fed {
    feed: OnceLock<Feed>,
    /// Number of documents of a snapshot, and of their fields.
    snapshot: (u64, u64),
}

impl ChangeSource for Fed {
    fn partitions(&self) -> u32 {
        PARTITIONS as u32
    }
    fn newest(&self, partition: u32) -> Result<Position, SourceError> {
        let fed = self.feed.get().and_then(|feed| feed.position(partition));
        Ok(fed.unwrap_or(Position { identity: 1, seq: 0 }))
    }
    fn continues(&self, _: u32, _: Position) -> Result<bool, SourceError> {
        Ok(true)
    }
    fn documents(&self, _: &VersionVector, parts: usize) -> Result<Vec<Documents>, SourceError> {
        let (n, fields) = self.snapshot;
        let part = |part: u64| -> Documents {
            let numbers = (part..n).step_by(parts);
            Box::new(numbers.map(move |number| {
                let document = Some(document(number, 0, fields));
                Ok(Mutation {
                    partition: (number % PARTITIONS) as u32,
                    seq: 0,
                    id: id(number),
                    document,
                })
            }))
        };
        Ok((0..parts as u64).map(part).collect())
    }
    fn run(&self, feed: &Feed, _: &VersionVector) -> Result<(), SourceError> {
        let _ = self.feed.set(feed.clone());
        Ok(())
    }
}

/// A service and its source.
struct World {
    source: Arc<Fed>,
    service: Service,
    threads: u64,
    n: u64,
    /// Number of changes of each partition so far.
    fed: u64,
}

impl World {
    fn new(
        of: &Secondary,
        options: ServiceOptions,
        snapshot: (u64, u64),
    ) -> Result<Self, BenchError> {
        let source = Arc::new(Fed { snapshot, ..Fed::default() });
        let options = options.workers(of.threads as usize);
        let service = Service::start(options, Arc::clone(&source) as Arc<_>).map_err(said)?;
        source.feed.wait();
        Ok(Self { source, service, threads: of.threads, n: of.n, fed: 0 })
    }

    fn create(&self, indexes: u64) -> Result<(), BenchError> {
        for number in 0..indexes {
            let name = format!("index-{number}");
            let definition =
                IndexDefinition::new(&name, "doc-").part(Part::new(format!("f{number}")));
            self.service.create(definition).map_err(said)?;
        }
        let last = format!("index-{}", indexes - 1);
        self.service.wait_until_built(&last, Duration::MAX).map_err(said)
    }

    /// Passes a change of each document to the index. Returns the time from the first push until a
    /// query sees the last change. The documents are generated before, in lots.
    fn feed_all(
        &mut self,
        change: impl Fn(u64) -> Option<Document> + Sync,
    ) -> Result<Duration, BenchError> {
        let mut took = Duration::ZERO;
        let feed = self.source.feed.wait();
        let (threads, fed) = (self.threads, self.fed);
        for start in (0..self.n).step_by(LOT as usize) {
            let mutation = |number: u64| Mutation {
                partition: (number % PARTITIONS) as u32,
                seq: fed + number / PARTITIONS + 1,
                id: id(number),
                document: change(number),
            };
            // Each partition belongs to one thread: partition modulo threads.
            let numbers = start..(start + LOT).min(self.n);
            let mine = |thread| numbers.clone().filter(move |n| n % PARTITIONS % threads == thread);
            let lots: Vec<Vec<Mutation>> =
                (0..threads).map(|thread| mine(thread).map(mutation).collect()).collect();
            let began = Instant::now();
            thread::scope(|scope| {
                let push =
                    |lot: Vec<Mutation>| lot.into_iter().try_for_each(|m| feed.push(m).map(drop));
                let all: Vec<_> =
                    lots.into_iter().map(|lot| scope.spawn(move || push(lot))).collect();
                all.into_iter()
                    .try_for_each(|one| one.join().map_err(|_| said("panic"))?.map_err(said))
            })?;
            self.service.view(&Read::request_plus()).map_err(said)?;
            took += began.elapsed();
        }
        self.fed += self.n.div_ceil(PARTITIONS);
        Ok(took)
    }

    /// Returns an error unless an index has `count` entries, and the right entry for each sampled
    /// document.
    fn check(&self, index: u64, count: u64, round: u64) -> Result<(), BenchError> {
        let name = format!("index-{index}");
        let view = self.service.view(&Read::request_plus()).map_err(said)?;
        let found = view.count(&name, &[], &Range::All).map_err(said)? as u64;
        if found != count {
            return Err(said(format!("{name} has {found} entries, not {count}")));
        }
        for number in (0..count).step_by((self.n / 1000).max(1) as usize) {
            let one = Query::new().prefix([Value::String(text(number, round, index))]);
            let page = view.query(&name, &one).map_err(said)?;
            if page.entries.len() != 1 || page.entries[0].id != *id(number) {
                return Err(said(format!("{name} lacks document {number}")));
            }
        }
        Ok(())
    }

    /// Returns the sizes in bytes of entries and of reverse maps.
    fn bytes(&self) -> Result<(usize, usize), BenchError> {
        let info = self.service.info("index-0").map_err(said)?;
        Ok((info.bytes, info.reverse_bytes))
    }
}

fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    sorted
        .get((sorted.len() * percent / 100).min(sorted.len().saturating_sub(1)))
        .copied()
        .unwrap_or_default()
}

fn say(what: &str, value: &str, ratio: &str) {
    println!("| {what} | {value} | {ratio} |");
}

impl Secondary {
    pub fn run(&self) -> Result<(), BenchError> {
        use Experiment::{Build, Delete, Many, Maps, One};
        let io = |error: std::io::Error| said(format!("{}: {error}", self.dir.display()));
        if self.dir.exists() {
            std::fs::remove_dir_all(&self.dir).map_err(io)?;
        }
        println!("{} documents, {} threads feed, as many workers\n", self.n, self.threads);
        println!("| figure | value | against the raw store |\n|---|---|---|");
        let wants = |one| self.only.is_empty() || self.only.contains(&one);
        let raw = self.raw()?;
        self.against("raw store, insert", raw, raw);
        if wants(One) {
            self.one(raw)?;
            std::fs::remove_dir_all(&self.dir).map_err(io)?;
        }
        if wants(Delete) {
            let mut world = self.loaded(ServiceOptions::new())?.0;
            self.against("one index, delete", world.feed_all(|_| None)?, raw);
            world.check(0, 0, 0)?;
        }
        if wants(Build) {
            let world = World::new(self, ServiceOptions::new(), (self.n, 1))?;
            let began = Instant::now();
            world.create(1)?;
            let what = "build from a snapshot, its documents made meanwhile";
            self.against(what, began.elapsed(), raw);
            world.check(0, self.n, 0)?;
        }
        if wants(Maps) {
            self.maps(raw)?;
        }
        if wants(Many) {
            self.many()?;
        }
        Ok(())
    }

    /// Prints the rate of changes if every document is changed once.
    fn against(&self, what: &str, took: Duration, raw: Duration) {
        let rate = self.n as f64 / took.as_secs_f64() / 1e6;
        let ratio = raw.as_secs_f64() / took.as_secs_f64();
        say(what, &format!("{rate:.2} M/s"), &format!("{ratio:.2}"));
    }

    /// Creates a world with one index of all documents. Returns it with the duration.
    fn loaded(&self, options: ServiceOptions) -> Result<(World, Duration), BenchError> {
        let mut world = World::new(self, options, (0, 1))?;
        world.create(1)?;
        let took = world.feed_all(|number| Some(document(number, 0, 1)))?;
        world.check(0, self.n, 0)?;
        Ok((world, took))
    }

    fn one(&self, raw: Duration) -> Result<(), BenchError> {
        let n = self.n;
        let options = ServiceOptions::new().backups(&self.dir);
        let (mut world, built) = self.loaded(options.clone())?;
        self.against("one index, insert", built, raw);
        self.scans(&world)?;
        let began = Instant::now();
        world.service.back_up(1, &BackupOptions::new()).map_err(said)?;
        say("backup", &format!("{:.2} s", began.elapsed().as_secs_f64()), "");
        let began = Instant::now();
        let recovered = World::new(self, options, (0, 1))?;
        let recovery = began.elapsed();
        recovered.check(0, n, 0)?;
        drop(recovered);
        let ratio = built.as_secs_f64() / recovery.as_secs_f64();
        say("recovery", &format!("{:.2} s", recovery.as_secs_f64()), "");
        let faster = format!("{ratio:.1} times as fast");
        say("recovery against the stream of all documents", &faster, "");
        let took = world.feed_all(|number| Some(document(number, 1, 1)))?;
        self.against("one index, update", took, raw);
        world.check(0, n, 1)?;
        let took =
            world.feed_all(|number| Some(document(number, 1, 1).with("other", Value::Null)))?;
        self.against("one index, update of other fields", took, raw);
        world.check(0, n, 1)?;
        self.freshness(&world)
    }

    /// Measures the memory of both kinds of reverse maps.
    fn maps(&self, raw: Duration) -> Result<(), BenchError> {
        let measure = |reverse: Reverse| -> Result<(usize, usize, usize), BenchError> {
            let before = memory::allocated();
            let (mut world, took) = self.loaded(ServiceOptions::new().reverse(reverse))?;
            self.against(&format!("one index with maps of {reverse:?}, insert"), took, raw);
            let (entries, map) = world.bytes()?;
            let all = memory::allocated() - before;
            let took = world.feed_all(|number| Some(document(number, 1, 1)))?;
            self.against(&format!("one index with maps of {reverse:?}, update"), took, raw);
            Ok((entries, map, all))
        };
        let (entries, pointers, with_pointers) = measure(Reverse::Pointers)?;
        let (_, copies, with_copies) = measure(Reverse::Copies)?;
        let each = |bytes: usize| bytes as f64 / self.n as f64;
        say("entries", &format!("{:.0} bytes each", each(entries)), "");
        for (what, pointers, copies) in [
            ("reverse maps, pointers against copies", pointers, copies),
            ("allocated for all, pointers against copies", with_pointers, with_copies),
        ] {
            let bytes = format!("{:.0} against {:.0} bytes each", each(pointers), each(copies));
            say(what, &bytes, &format!("{:.2} of copies", pointers as f64 / copies as f64));
        }
        Ok(())
    }

    /// Measures the raw store with the same keys, which are generated before, and as many threads.
    fn raw(&self) -> Result<Duration, BenchError> {
        let store = Store::<[u8], u64>::new();
        let mut took = Duration::ZERO;
        for start in (0..self.n).step_by(LOT as usize) {
            let key = |number: u64| {
                let mut key = Vec::new();
                Value::String(text(number, 0, 0)).encode(&mut key);
                key.extend_from_slice(&id(number));
                key
            };
            let numbers = start..(start + LOT).min(self.n);
            let mine = |thread| numbers.clone().filter(move |n| n % self.threads == thread);
            let lots: Vec<Vec<Vec<u8>>> =
                (0..self.threads).map(|thread| mine(thread).map(key).collect()).collect();
            let began = Instant::now();
            thread::scope(|scope| {
                let insert = |lot: &Vec<Vec<u8>>| {
                    lot.iter().try_for_each(|key| store.insert(key, &1).map(drop))
                };
                let all: Vec<_> = lots.iter().map(|lot| scope.spawn(move || insert(lot))).collect();
                all.into_iter()
                    .try_for_each(|one| one.join().map_err(|_| said("panic"))?.map_err(said))
            })?;
            took += began.elapsed();
        }
        let found = store.approximate_len() as u64;
        if found == self.n { Ok(took) } else { Err(said(format!("{found} keys in the raw store"))) }
    }

    fn scans(&self, world: &World) -> Result<(), BenchError> {
        let mut times = Vec::new();
        for number in 0..20_000 {
            let low = Value::String(text(scatter(number) % self.n, 0, 0));
            let low = std::ops::Bound::Included(low);
            let range = Range::Between(low, std::ops::Bound::Unbounded);
            let query = Query::new().range(range);
            let began = Instant::now();
            let page = world.service.query("index-0", &query, &Read::any()).map_err(said)?;
            times.push(began.elapsed());
            if page.entries.len() != 100 && page.cursor.is_some() {
                return Err(said("a scan is short"));
            }
        }
        times.sort_unstable();
        let (half, most) = (percentile(&times, 50), percentile(&times, 99));
        println!("| scan of 100 entries | p50 {half:.1?}, p99 {most:.1?} | |");
        Ok(())
    }

    /// Measures the time from the return of a push to the first snapshot point that contains the
    /// change, under full load.
    fn freshness(&self, world: &World) -> Result<(), BenchError> {
        let feed = world.source.feed.wait();
        let stop = AtomicBool::new(false);
        let marks: Mutex<VecDeque<(u32, u64, Instant)>> = Mutex::default();
        let lock = || marks.lock().unwrap_or_else(PoisonError::into_inner);
        let mut times = Vec::new();
        let pushed: u64 = thread::scope(|scope| -> Result<u64, BenchError> {
            let push = |thread: u64| -> Result<u64, SourceError> {
                let mut pushed = 0_u64;
                let mut next = world.fed + 1;
                while !stop.load(Ordering::Relaxed) {
                    for partition in
                        (0..PARTITIONS).filter(|partition| partition % self.threads == thread)
                    {
                        let number =
                            (scatter(next) % (self.n / PARTITIONS).max(1)) * PARTITIONS + partition;
                        let document = Some(document(number, next, 1));
                        let partition = partition as u32;
                        feed.push(Mutation { partition, seq: next, id: id(number), document })?;
                        pushed += 1;
                        if pushed.is_multiple_of(512) {
                            lock().push_back((partition, next, Instant::now()));
                        }
                    }
                    next += 1;
                }
                Ok(pushed)
            };
            let all: Vec<_> =
                (0..self.threads).map(|thread| scope.spawn(move || push(thread))).collect();
            let began = Instant::now();
            while began.elapsed() < Duration::from_secs(5) {
                thread::sleep(Duration::from_micros(500));
                let view = world.service.view(&Read::any()).map_err(said)?;
                let now = Instant::now();
                lock().retain(|(partition, seq, at)| {
                    let shown = view.vector().positions()[*partition as usize].seq >= *seq;
                    if shown {
                        times.push(now - *at);
                    }
                    !shown
                });
            }
            stop.store(true, Ordering::Relaxed);
            let mut sum = 0;
            for one in all {
                sum += one.join().map_err(|_| said("panic"))?.map_err(said)?;
            }
            Ok(sum)
        })?;
        times.sort_unstable();
        let (half, most) = (percentile(&times, 50), percentile(&times, 99));
        let rate = pushed as f64 / 5e6;
        println!(
            "| freshness under full load | p50 {half:.1?}, p99 {most:.1?} at {rate:.2} M/s | {} samples |",
            times.len()
        );
        Ok(())
    }

    /// Measures many indexes, as in the paper's Table 1.
    fn many(&self) -> Result<(), BenchError> {
        let fields = self.indexes;
        let mut world = World::new(self, ServiceOptions::new(), (0, fields))?;
        world.create(fields)?;
        let cores =
            thread::available_parallelism().map_or(1, usize::from).min(self.threads as usize);
        let say = |what: &str, took: Duration, paper: f64| {
            let each = (self.n * fields) as f64 / took.as_secs_f64() / cores as f64;
            println!(
                "| {fields} indexes, {what} | {:.0} k entries a second and core | {:.1} times the paper's |",
                each / 1e3,
                each / paper
            );
        };
        // The numbers of the paper's Table 1, divided by its 32 cores.
        say(
            "insert",
            world.feed_all(|number| Some(document(number, 0, fields)))?,
            1_658_031.0 / 32.0,
        );
        world.check(fields - 1, self.n, 0)?;
        say(
            "update",
            world.feed_all(|number| Some(document(number, 1, fields)))?,
            822_680.0 / 32.0,
        );
        world.check(fields - 1, self.n, 1)?;
        say("delete", world.feed_all(|_| None)?, 1_578_316.0 / 32.0);
        world.check(fields - 1, 0, 0)
    }
}
