//! Random histories of a server that is killed or loses power.
//!
//! The server runs on a model of a disk. Clients send commands of all kinds, including
//! transactions, flushes, backups and changes of indexes; file operations fail, and scheduled
//! backups run concurrently. The keys are read after each reply, so a history is a list of states.
//! Each start must find one of the last states of the list (see
//! `crates/ordna/tests/durability/histories`). The indexes must be those whose creation was
//! acknowledged, and must agree with the keys.
//!
//! `ORDNA_SOAK=seconds` sets how long the test runs, `ORDNA_HISTORY_FROM` sets the first seed, and
//! `ORDNA_HISTORY_SEED` runs a single history.

#[path = "../../../../ordna/tests/durability/disk.rs"]
#[allow(dead_code, reason = "tests of the library use the rest")]
pub mod disk;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use ordna::durability::Storage;
use ordna_server::{Config, DataConfig, LogSync, Server};
use ordna_testkit::random::Random;
use tokio::sync::oneshot;

use crate::common::{request, show};
use crate::fuzz_against_redis::documents::Document;
use crate::fuzz_against_redis::frame::Frame;
use crate::fuzz_against_redis::generate::Generator;
use crate::fuzz_against_redis::{Connection, documents_of};
use disk::{Fault, Model};

/// Minimum number of histories in a run.
const LEAST: u64 = 4;
/// A deadline of a field that does not pass during the test.
const FAR: u64 = 9_999_999_999_999;
/// Milliseconds before a deadline within which it may pass while states are read.
const SOON: i64 = 3000;
/// Maximum number of runs that try to make a failing history shorter.
const SHRINKING: usize = 60;

/// Threads that run histories. Each waits for its server most of the time.
const THREADS: usize = 4;

/// The results of all histories.
#[derive(Default)]
struct All {
    histories: u64,
    commands: u64,
    /// Failures by their kind: how many there were, and the first seed with its message.
    failures: BTreeMap<String, (u64, u64, String)>,
}

/// The commands that a client sends in one write.
pub type Step = Vec<Vec<Vec<u8>>>;

#[derive(Debug, Clone, Copy)]
pub enum End {
    Stop,
    Kill,
    PowerFailure(u64),
}

#[derive(Clone)]
pub struct Session {
    pub log: LogSync,
    pub fault: Option<(u64, Fault)>,
    /// The interval of backups, if there are any.
    pub backups: Option<Duration>,
    pub steps: Vec<Step>,
    pub end: End,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (log, fault, backups) = (self.log, self.fault, self.backups);
        writeln!(f, "log {log:?}, fault {fault:?}, backups {backups:?}")?;
        for step in &self.steps {
            let words = |words: &Vec<Vec<u8>>| {
                let shown: Vec<String> = words.iter().map(|word| show(word)).collect();
                shown.join(" ")
            };
            writeln!(f, "    {}", step.iter().map(words).collect::<Vec<_>>().join("; "))?;
        }
        write!(f, "  {:?}", self.end)
    }
}

pub fn words(line: &str) -> Vec<Vec<u8>> {
    line.split(' ').map(|word| word.as_bytes().to_vec()).collect()
}

/// Returns a command that the general generator does not make.
fn special(random: &mut Random, number: &mut u64) -> Step {
    *number += 1;
    let document = random.below(6);
    match random.below(12) {
        0..4 => return collection(random),
        4 => return script(random, *number),
        _ => {}
    }
    let line = match random.below(22) {
        0 => "SAVE".to_owned(),
        1..4 => format!("BGSAVE@{}", random.below(40)),
        4 => "BGSAVE@0; FLUSHALL".to_owned(),
        5 => format!("BGSAVE@{}; FLUSHALL", random.below(20)),
        6 => "BGREWRITEAOF".to_owned(),
        7 => "FLUSHALL".to_owned(),
        8 => "ORDNA.DELRANGE [a (b".to_owned(),
        9 => "FT.CREATE i ON HASH PREFIX 1 d: SCHEMA n NUMERIC".to_owned(),
        10 => "ORDNA.INDEX CREATE j ON d: PARTS n".to_owned(),
        11 => ["FT.DROPINDEX i", "ORDNA.INDEX DROP j"][random.below(2) as usize].to_owned(),
        12 => format!("DEL d:{document} a"),
        13 => "ORDNA.DELRANGE [d:2 (d:5".to_owned(),
        14 => "MULTI; SET a 1; FLUSHALL; SET b 2; EXEC".to_owned(),
        15 => format!("MULTI; HSET d:{document} n {number}; INCR count; EXEC"),
        16 | 17 => format!("SET a {number}"),
        _ => format!("HSET d:{document} n {number} text {}", "x".repeat(random.below(60) as usize)),
    };
    line.split("; ").map(words).collect()
}

/// Returns a command on a collection that is large, grows large, or loses its key.
fn collection(random: &mut Random) -> Step {
    let names = ["big:0", "big:1", "big:2"];
    let key = names[random.below(3) as usize];
    let other = names[random.below(3) as usize];
    let random_bit = random.below(2) == 0;
    let mut elements = |form: &dyn Fn(u64) -> String| -> String {
        let count = [3, 150, 700][random.below(3) as usize];
        (0..count).map(|_| form(random.below(1000))).collect()
    };
    let line = match document_of(key) {
        // Documents are always hashes.
        0 if random_bit => format!("HSET d:0{}", elements(&|at| format!(" f{at} value:{at}"))),
        0 => format!("HSET {key}{}", elements(&|at| format!(" f{at} value:{at}"))),
        1 => format!("ZADD {key}{}", elements(&|at| format!(" {} m{at}", at % 7))),
        _ => format!("RPUSH {key}{}", elements(&|at| format!(" v{at}"))),
    };
    let line = match random.below(20) {
        0 => format!("DEL {key}"),
        1 => format!("SET {key} text"),
        2 => format!("RENAME {key} {other}"),
        3 => format!("COPY {key} {other} REPLACE"),
        4 => format!("PEXPIREAT {key} {}", 99_999_999_999_999_u64),
        5 => format!("PERSIST {key}"),
        6 => format!("MULTI; DEL {key}; {line}; EXEC"),
        7 => format!("MULTI; {line}; RENAME {key} {other}; DEL d:0; EXEC"),
        8 => format!("HDEL {key} f1 f2 f3; ZREMRANGEBYRANK {key} 0 3; LTRIM {key} 2 -2"),
        9 => format!("DEL {key} {other}"),
        // Outside of a transaction it would remove the large collections one at a time.
        10 => "MULTI; ORDNA.DELRANGE [big (bih; EXEC".to_owned(),
        11 => format!("HPEXPIREAT {key} {FAR} FIELDS 3 f1 f2 f3"),
        12 => format!("HPERSIST {key} FIELDS 1 f1"),
        13 if random_bit => format!("HSETEX {key} PXAT {FAR} FIELDS 2 f4 x f5 y"),
        13 => format!("HSET {key} f4 z f5 z"),
        14 => format!("HPEXPIRE {key} 0 FIELDS 2 f6 f7"),
        _ => line,
    };
    line.split("; ").map(words).collect()
}

/// Returns a script, alone or in a transaction. Its writes are one step even if it fails after some
/// of them.
fn script(random: &mut Random, number: u64) -> Step {
    const SCRIPTS: [&str; 6] = [
        "redis.call('SET', 'a', ARGV[1]) redis.call('HSET', 'd:1', 'n', ARGV[1]) return redis.call('INCR', 'count')",
        "redis.call('DEL', 'big:0', 'big:1') for i = 1, 700 do redis.call('HSET', 'big:0', 'f' .. i, ARGV[1]) end",
        "redis.call('SET', 'a', ARGV[1]) redis.call('FLUSHALL') redis.call('SET', 'b', ARGV[1])",
        "redis.call('SET', 'a', ARGV[1]) redis.call('DEL', 'd:1', 'd:2') error('ends here')",
        "redis.pcall('RENAME', 'big:2', 'big:1') redis.call('SADD', 'big:2', 1, 2, ARGV[1]) return redis.call('DBSIZE')",
        "for i = 1, 5 do redis.call('RPUSH', 'big:2', i, ARGV[1]) redis.pcall('LPOP', 'big:2') end",
    ];
    let text = SCRIPTS[random.below(SCRIPTS.len() as u64) as usize];
    let call = vec![b"EVAL".to_vec(), text.into(), b"0".to_vec(), number.to_string().into()];
    match random.below(3) {
        0 => vec![words("MULTI"), words(&format!("SET a {number}")), call, words("EXEC")],
        1 => vec![words(&format!("BGSAVE@{}", random.below(20))), call],
        _ => vec![call],
    }
}

/// Returns whether a command removes all keys.
fn clears(words: &[Vec<u8>]) -> bool {
    words[0].to_ascii_lowercase().starts_with(b"flush") || clears_in_script(words)
}

fn clears_in_script(words: &[Vec<u8>]) -> bool {
    words[0] == b"EVAL" && words[1].windows(8).any(|part| part == b"FLUSHALL")
}

/// Returns the usual type of the collection at a key: hash, sorted set or list.
fn document_of(key: &str) -> usize {
    match key {
        "big:0" => 0,
        "big:1" => 1,
        _ => 2,
    }
}

fn plan(seed: u64, documents: &[Document]) -> Vec<Session> {
    let random = &mut Random::new(seed);
    // The payloads of DUMP for an empty value and for a text.
    let payloads = vec![Vec::new(), b"x".to_vec()];
    let mut generator = Generator::new(documents, &payloads, seed);
    let mut number = 0;
    let mut session = |random: &mut Random| {
        let log = match random.below(4) {
            0 => LogSync::EverySecond,
            1 => LogSync::Never,
            _ => LogSync::Always,
        };
        let fault = (random.below(3) == 0).then(|| {
            let fault = if random.below(2) == 0 { Fault::Fails } else { Fault::PowerCut };
            let most = if random.below(2) == 0 { 25 } else { 120 };
            (1 + random.below(most), fault)
        });
        let backups = (random.below(3) == 0).then(|| Duration::from_millis(1 + random.below(30)));
        let mut steps = Vec::new();
        if random.below(4) > 0 {
            for _ in 0..1 + random.below(5) {
                if random.below(2) == 0 {
                    let (made, _) = generator.sequence();
                    let made = made.into_iter().filter(|step| step.client == 0);
                    // A transaction is one step: either all or none of its commands take effect.
                    let mut open: Option<Step> = None;
                    for step in made.take(12) {
                        let name = step.words[0].to_ascii_lowercase();
                        match &mut open {
                            None if name == b"multi" => open = Some(vec![step.words]),
                            None => steps.push(vec![step.words]),
                            Some(all) => {
                                all.push(step.words);
                                if name == b"exec" {
                                    steps.extend(open.take());
                                }
                            }
                        }
                    }
                } else {
                    let count = 1 + random.below(6);
                    steps.extend((0..count).map(|_| special(random, &mut number)));
                }
            }
        }
        let end = match random.below(10) {
            0..4 => End::Kill,
            4..8 => End::PowerFailure(random.next_u64()),
            _ => End::Stop,
        };
        Session { log, fault, backups, steps, end }
    };
    let count = 1 + random.below(4);
    (0..count).map(|_| session(random)).collect()
}

/// The keys, each with its `DUMP` payload and its deadline.
type State = BTreeMap<Vec<u8>, (Vec<u8>, i64)>;

fn now() -> i64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis() as i64
}

/// Returns the entries whose deadlines are not near.
fn visible(state: &State, now: i64) -> State {
    let lives = |deadline: i64| deadline < 0 || deadline > now + SOON;
    let entries = state.iter().filter(|(_, (_, deadline))| lives(*deadline));
    entries.map(|(key, entry)| (key.clone(), entry.clone())).collect()
}

fn dump(client: &mut Connection) -> Result<State, String> {
    let keys = client.ask(&[b"KEYS", b"*"]).ok_or("the server closed the connection")?;
    let mut requests = Vec::new();
    for key in &keys.items {
        requests.extend(request(&[b"DUMP", &key.text]));
        requests.extend(request(&[b"PEXPIRETIME", &key.text]));
    }
    client.send(&requests);
    let mut state = State::new();
    for key in keys.items {
        let value = client.reply().ok_or("no reply to DUMP")?;
        let deadline = client.reply().and_then(|reply| reply.integer());
        if value.kind == b'$' {
            state.insert(key.text, (value.text, deadline.unwrap_or(-1)));
        }
    }
    Ok(state)
}

/// A server under test.
pub struct Running {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

/// Starts a server. Returns an error if it cannot load its directory.
pub fn start(config: Config) -> Result<Running, String> {
    let config = Config { bind: vec![SocketAddr::from(([127, 0, 0, 1], 0))], ..config };
    let (stop, stopped) = oneshot::channel();
    let (tell, told) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async move {
            let server = Server::bind(config).await.unwrap();
            let (address, ready) = (server.address(), tell.clone());
            let server = server.on_ready(move || _ = ready.send(Ok(address)));
            let stopped = async {
                let _ = stopped.await;
            };
            if let Err(error) = server.run(stopped).await {
                let _ = tell.send(Err(error.to_string()));
            }
        });
    });
    let address =
        told.recv_timeout(Duration::from_secs(60)).map_err(|error| error.to_string())??;
    Ok(Running { address, stop, thread })
}

impl Running {
    pub fn stop(self) -> Result<(), String> {
        drop(self.stop);
        self.thread.join().map_err(|_| "the server panicked".to_owned())
    }
}

/// Copies a directory whose files may be removed concurrently. Any other error is reported, because
/// the copy would look as if the server had lost a file.
fn copy(from: &Path, to: &Path) {
    let is_gone = |error: &std::io::Error| error.kind() == std::io::ErrorKind::NotFound;
    std::fs::create_dir_all(to).unwrap();
    let entries = match std::fs::read_dir(from) {
        Err(error) if is_gone(&error) => return,
        entries => entries.unwrap(),
    };
    for entry in entries {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else if let Err(error) = std::fs::copy(entry.path(), target)
            && !is_gone(&error)
        {
            panic!("{}: {error}", entry.path().display());
        }
    }
}

/// The state of a running history.
struct Life {
    disk: Model,
    /// The directory of all sessions' files.
    root: PathBuf,
    dir: PathBuf,
    sessions: u64,
    states: Vec<State>,
    acknowledged: usize,
    durable: usize,
    lower: usize,
    /// Whether the log has failed, so that the last states may be missing in it.
    is_uncertain: bool,
    /// The replies that list the indexes, as last acknowledged.
    indexes: Option<Vec<Frame>>,
    commands: u64,
}

impl Life {
    fn new(seed: u64) -> Self {
        let name = format!("ordna-crashes-{}-{seed}", std::process::id());
        let root = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&root);
        let dir = root.join("0");
        std::fs::create_dir_all(&dir).unwrap();
        Self {
            disk: Model::new(),
            root,
            dir,
            sessions: 0,
            states: vec![State::new()],
            acknowledged: 0,
            durable: 0,
            lower: 0,
            is_uncertain: false,
            indexes: None,
            commands: 0,
        }
    }

    fn last(&self) -> usize {
        self.states.len() - 1
    }

    fn find(&self, found: &State, lower: usize) -> Option<usize> {
        let now = now();
        let found = visible(found, now);
        (lower..self.states.len()).rev().find(|at| visible(&self.states[*at], now) == found)
    }

    fn describe(&self, found: &State) -> String {
        let (lower, last) = (self.lower, self.last());
        if let Some(at) = self.find(found, 0) {
            return format!("state {at} was found, not one of {lower}..={last}: writes are lost");
        }
        let shown = |state: &State| {
            let one = |(key, (value, deadline)): (&Vec<u8>, &(Vec<u8>, i64))| {
                let value = show(&value[..value.len().min(40)]);
                format!("{}={value} {deadline}", show(key))
            };
            state.iter().map(one).collect::<Vec<_>>().join(", ")
        };
        let newest = shown(&self.states[last]);
        format!(
            "a state was found that never was: {{{}}}; the newest of {lower}..={last}: {{{newest}}}",
            shown(found)
        )
    }

    /// Reads from INFO whether the log works. `accepted` says that no reply reported a failed log.
    fn look(&mut self, client: &mut Connection, accepted: bool) {
        let info = client.ask(&[b"INFO", b"persistence"]).map(|reply| reply.text);
        let info = String::from_utf8_lossy(&info.unwrap_or_default()).into_owned();
        let field = |name: &str| {
            let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.and_then(|text| text.parse::<u64>().ok())
        };
        // A log that works again contains everything that is in memory.
        let works = info.contains("aof_last_write_status:ok");
        self.is_uncertain = !accepted || self.is_uncertain && !works;
        if !self.is_uncertain {
            self.acknowledged = self.last();
            let end = field("ordna_log_position");
            if end.is_some() && end == field("ordna_log_durable_position") {
                self.durable = self.acknowledged;
            }
        }
    }

    fn session(&mut self, session: &Session, is_last: bool) -> Result<(), String> {
        self.sessions += 1;
        let disk = self.disk.clone();
        if let Some((number, fault)) = session.fault {
            let _ = disk.clone().fault(number, fault);
        }
        let data = DataConfig {
            log: session.log,
            backup_every: session.backups,
            reserve: 0,
            storage: Arc::new(disk.clone()),
            ..DataConfig::new(self.dir.clone())
        };
        let running = match start(Config { data: Some(data), ..Config::default() }) {
            Ok(running) => running,
            Err(_) if disk.hit().is_some() => {
                self.after(&disk, session.end);
                return Ok(());
            }
            Err(error) => return Err(format!("the start is refused: {error}")),
        };
        let client = &mut Connection::new(running.address);
        let reader = &mut Connection::new(running.address);
        let found = dump(reader)?;
        let at = self.find(&found, self.lower);
        let at = at.ok_or_else(|| format!("after a start: {}", self.describe(&found)))?;
        self.states.truncate(at + 1);
        (self.acknowledged, self.lower, self.is_uncertain) = (at, at, false);
        self.durable = self.durable.min(at);
        self.look(reader, true);
        self.check_indexes(reader, &found)?;
        for step in &session.steps {
            if disk.is_off() {
                break;
            }
            let done = self.step(step, client, reader, running.address, &disk)?;
            if !done {
                break;
            }
        }
        if is_last {
            check_leaks(client, &found)?;
        }
        let stopped = match session.end {
            End::Stop => {
                disk.resume();
                let stopped = running.stop();
                // The thread of a backup may still hold the directory's lock.
                let began = Instant::now();
                while disk.is_locked() && began.elapsed() < Duration::from_secs(10) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                self.after(&disk, session.end);
                stopped
            }
            End::Kill | End::PowerFailure(_) => {
                // The old server's threads may still write to the old files.
                let next = self.root.join(format!("{}", self.sessions));
                copy(&self.dir, &next);
                self.after(&disk, session.end);
                if self.disk.rename(&self.dir, &next).is_ok() {
                    self.disk.sync_dir(&self.root).unwrap();
                }
                self.dir = next;
                disk.resume();
                running.stop()
            }
        };
        // A failing disk may also make the shutdown fail, which is not an error here.
        stopped.or_else(|error| if disk.hit().is_some() { Ok(()) } else { Err(error) })
    }

    fn after(&mut self, disk: &Model, end: End) {
        self.disk = match end {
            End::Stop | End::Kill => {
                self.lower = self.lower.max(self.acknowledged);
                disk.after_exit()
            }
            End::PowerFailure(seed) => {
                self.lower = self.durable;
                self.acknowledged = self.durable;
                disk.after_power_cut(&mut Random::new(seed))
            }
        };
    }

    /// Runs a step and returns whether the session can continue.
    fn step(
        &mut self,
        step: &Step,
        client: &mut Connection,
        reader: &mut Connection,
        address: SocketAddr,
        disk: &Model,
    ) -> Result<bool, String> {
        let mut bytes = Vec::new();
        for words in step {
            let mut words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
            // `SLEEP@time` waits, and `BGSAVE@stop` makes the backup stop before a given operation.
            let text = std::str::from_utf8(words[0]).unwrap_or_default();
            if let Some(time) = text.strip_prefix("SLEEP@") {
                std::thread::sleep(Duration::from_millis(time.parse().unwrap()));
                words[0] = b"PING";
            } else if let Some(stop) = text.strip_prefix("BGSAVE@") {
                disk.pause_backup(stop.parse().unwrap());
                words[0] = b"BGSAVE";
            } else if words[0] == b"SAVE" {
                disk.resume();
            }
            bytes.extend(request(&words));
        }
        client.send(&bytes);
        let mut refused = false;
        for words in step {
            self.commands += 1;
            let Some(reply) = client.reply() else {
                *client = Connection::new(address);
                refused = true;
                break;
            };
            if reply.kind == b'?' {
                return Err(format!("{}: {}", show(&words[0]), reply.show()));
            }
            let text = reply.show();
            let log_failed = text.contains("MISCONF");
            refused |= log_failed;
            if text.contains("MISCONF") && disk.hit().is_none() {
                return Err(format!("{}: {text}", show(&words[0])));
            }
            let name = words[0].to_ascii_lowercase();
            // FLUSHALL drops the indexes that FT.CREATE made.
            let is_index = [&b"ft."[..], b"ordna.index", b"flush", b"exec", b"eval"]
                .iter()
                .any(|start| name.starts_with(start));
            // A command that drops an index with its documents may fail after the first document.
            if is_index && (!reply.is_error() || log_failed) {
                self.indexes = Some(list(reader)?);
            }
        }
        let state = dump(reader)?;
        if refused && state == self.states[self.last()] {
            let many = step.len() > 1 || step.iter().any(|words| clears_in_script(words));
            if many && step.iter().any(|words| clears(words)) {
                // The log may contain part of the step.
                return Ok(false);
            }
            if step.iter().any(|words| clears(words)) {
                self.states.extend([State::new(), state]);
            }
        } else if state != self.states[self.last()] {
            self.states.push(state);
        }
        self.look(reader, !refused);
        Ok(true)
    }

    fn check_indexes(&mut self, client: &mut Connection, state: &State) -> Result<(), String> {
        let lists = list(client)?;
        if let Some(expected) = &self.indexes
            && *expected != lists
        {
            let shown = |lists: &[Frame]| lists.iter().map(Frame::show).collect::<Vec<_>>();
            // The server keeps the reason why the indexes were not restored.
            let create: Vec<&[u8]> = b"FT.CREATE probe PREFIX 1 p: SCHEMA n NUMERIC"
                .split(|byte| *byte == b' ')
                .collect();
            let why = client.ask(&create).map(|reply| reply.show());
            let (lists, expected) = (shown(&lists), shown(expected));
            return Err(format!("the indexes are {lists:?}, not {expected:?}; FT.CREATE: {why:?}"));
        }
        let keys: BTreeSet<&[u8]> =
            state.keys().map(Vec::as_slice).filter(|key| key.starts_with(b"d:")).collect();
        if lists[0].items.iter().any(|item| item.text == b"i") {
            let query: [&[u8]; 7] = [b"FT.SEARCH", b"i", b"*", b"NOCONTENT", b"LIMIT", b"0", b"99"];
            let reply = client.ask(&query).ok_or("no reply to FT.SEARCH")?;
            let found = reply.items.iter().skip(1).map(|item| item.text.as_slice());
            let found: BTreeSet<&[u8]> = found.collect();
            if found != keys {
                return Err(format!("FT.SEARCH finds {}, and there are {keys:?}", reply.show()));
            }
        }
        if lists[1].items.iter().any(|item| item.text == b"j") {
            let reply = client.ask(&[b"ORDNA.INDEX", b"COUNT", b"j"]).ok_or("no reply to COUNT")?;
            if reply.integer() != Some(keys.len() as i64) {
                return Err(format!("COUNT finds {}, and there are {keys:?}", reply.show()));
            }
        }
        Ok(())
    }
}

/// Removes all keys and checks that no element of any collection remains.
fn check_leaks(client: &mut Connection, state: &State) -> Result<(), String> {
    for key in state.keys() {
        client.ask(&[b"DEL", key]).ok_or("no reply to DEL")?;
    }
    let began = Instant::now();
    loop {
        let info = client.ask(&[b"INFO", b"memory"]).ok_or("no reply to INFO")?.text;
        let info = String::from_utf8_lossy(&info).into_owned();
        let field = |name: &str| {
            let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.and_then(|text| text.parse::<u64>().ok())
        };
        // One entry, the version of the layout, always remains.
        let (pending, entries) =
            (field("lazyfree_pending_objects"), field("ordna_reserved_entries"));
        if pending == Some(0) && entries <= Some(1) {
            return Ok(());
        }
        if began.elapsed() > Duration::from_secs(20) {
            return Err(format!("elements leak: {pending:?} removals, {entries:?} entries"));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn list(client: &mut Connection) -> Result<Vec<Frame>, String> {
    let queries: [&[&[u8]]; 2] = [&[b"FT._LIST"], &[b"ORDNA.INDEX", b"LIST"]];
    let ask = |query: &&[&[u8]]| {
        let reply = client.ask(query).ok_or_else(|| "no list of the indexes".to_owned());
        reply.map(|reply| reply.sorted(false))
    };
    queries.iter().map(ask).collect()
}

/// Runs a history and returns the number of its commands.
pub fn run(sessions: &[Session], seed: u64) -> Result<u64, String> {
    let mut life = Life::new(seed);
    let last = Session {
        log: LogSync::Always,
        fault: None,
        backups: None,
        steps: Vec::new(),
        end: End::Stop,
    };
    let mut all = sessions.iter().chain([&last]).enumerate();
    let done = all.try_for_each(|(number, session)| {
        let is_last = number == sessions.len();
        life.session(session, is_last).map_err(|error| format!("session {number}: {error}"))
    });
    let _ = std::fs::remove_dir_all(&life.root);
    done.map(|()| life.commands)
}

/// Returns the kind of a failure: its text without numbers.
fn class(text: &str) -> String {
    let text = text.split_once(": ").map_or(text, |(_, rest)| rest);
    let text = text.split(['{', '[', '"']).next().unwrap_or(text);
    text.chars().filter(|char| !char.is_ascii_digit()).take(60).collect()
}

/// Searches for a shorter history that fails in the same way.
fn shrink(mut sessions: Vec<Session>, seed: u64, mut text: String) -> (Vec<Session>, String) {
    let wanted: String = class(&text).chars().take(24).collect();
    let fails = |sessions: &[Session]| {
        let failed = |_| run(sessions, seed).err().filter(|text| class(text).starts_with(&wanted));
        (0..2).find_map(failed)
    };
    let mut tries = 0;
    let mut at = 0;
    while at < sessions.len() && sessions.len() > 1 {
        let mut shorter = sessions.clone();
        shorter.remove(at);
        match fails(&shorter) {
            Some(failed) => (sessions, text) = (shorter, failed),
            None => at += 1,
        }
    }
    for at in 0..sessions.len() {
        let mut size = (sessions[at].steps.len() / 2).max(1);
        loop {
            let mut step = 0;
            while step < sessions[at].steps.len() && tries < SHRINKING {
                let mut shorter = sessions.clone();
                let end = (step + size).min(shorter[at].steps.len());
                shorter[at].steps.drain(step..end);
                tries += 1;
                match fails(&shorter) {
                    Some(failed) => (sessions, text) = (shorter, failed),
                    None => step += size,
                }
            }
            if size == 1 {
                break;
            }
            size /= 2;
        }
    }
    (sessions, text)
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn no_crash_loses_what_the_server_has_acknowledged() {
    let began = Instant::now();
    let documents = {
        let server = crate::common::start(Config::default());
        documents_of(server.address)
    };
    let one = variable("ORDNA_HISTORY_SEED");
    let first = one.or(variable("ORDNA_HISTORY_FROM")).unwrap_or(0);
    let (begun, all) = (AtomicU64::new(0), Mutex::new(All::default()));
    let work = || {
        loop {
            let number = begun.fetch_add(1, Ordering::Relaxed);
            let is_wanted = number < LEAST || began.elapsed() < ordna_testkit::budget();
            if number > 0 && (one.is_some() || !is_wanted) {
                break;
            }
            let seed = first + number;
            let ran = run(&plan(seed, &documents), seed);
            let mut all = all.lock().unwrap();
            all.histories += 1;
            match ran {
                Ok(ran) => all.commands += ran,
                Err(text) => {
                    println!("seed {seed}: {}", text.chars().take(600).collect::<String>());
                    all.failures.entry(class(&text)).or_insert((seed, 0, text)).1 += 1;
                }
            }
        }
    };
    std::thread::scope(|scope| (0..THREADS).for_each(|_| drop(scope.spawn(work))));
    let All { histories, commands, failures } = all.into_inner().unwrap();
    println!("{histories} histories, {commands} commands, {:?}", began.elapsed());
    for (kind, (seed, count, text)) in &failures {
        let text: String = text.chars().take(1500).collect();
        println!("{count} times, first by seed {seed}: {kind}\n    {text}");
    }
    let Some((seed, _, text)) = failures.into_values().min_by_key(|(seed, ..)| *seed) else {
        return;
    };
    let (sessions, text) = shrink(plan(seed, &documents), seed, text);
    panic!(
        "seed {seed}, made shorter: {sessions:#?}\n{text}\n\nTo run it again:\n    \
         ORDNA_HISTORY_SEED={seed} cargo test -p ordna-server --test main -- no_crash_loses"
    );
}
