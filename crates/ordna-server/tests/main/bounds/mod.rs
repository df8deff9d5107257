//! Bounds for the cost of every command: time, memory, and the time that other clients wait.
//!
//! A seeded generator sends valid, nearly valid and extreme commands to a server in a separate
//! process. After each command these bounds must hold:
//!
//! | bound | value |
//! |---|---|
//! | process | lives and replies; it closes a connection only if [`may_close`] says so |
//! | reply | no internal error, no value in its stored form |
//! | time | [`TIME`] + [`PER_BYTE`] for each byte of request, reply and touched values |
//! | memory during the command | [`SLACK`] + [`REQUEST`] × request + [`REPLY`] × reply + [`TOUCHED`] × touched values + remaining memory (LCS: + [`TABLE`]) |
//! | memory after the command | [`KEPT`] + 2 × (what the limits of values and clients count) |
//! | wait of another client | like the time, but without touched values |
//!
//! Times are multiplied by [`SLOWER`]. The delay of a sleeping thread of this process in the same
//! time is added several times, because other work on the machine is not a defect. A violation of
//! time or memory counts if it occurs [`AGAIN`] times with the same command.
//!
//! `ORDNA_SECONDS` sets the duration, and `ORDNA_SEED` the seed. `ORDNA_SERVER` names the test
//! program of another version, whose server is then tested; in this case all kinds of violations
//! are listed.

mod grammar;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use self::grammar::Generator;
use crate::common::{Child, Client, request, seconds, show, spawn_program};

/// Time that a command may take and another client may wait, in addition to the cost of bytes.
const TIME: Duration = Duration::from_millis(100);
/// Nanoseconds for each byte of request, reply and touched values.
const PER_BYTE: u64 = 20;
/// Factor by which a build without optimization is slower.
const SLOWER: u32 = if cfg!(debug_assertions) { 6 } else { 1 };
/// Time after which a reply counts as missing: more than twice the maximum for any command.
const NO_REPLY: Duration = Duration::from_secs(15);
/// Number of violations of a bound of time or memory by the same command that count as a defect.
const AGAIN: usize = 3;
/// Memory in bytes that is not counted otherwise: buffers, and pages that the allocator keeps.
const SLACK: usize = 12 << 20;
/// Memory for each byte of the request: the received bytes in a buffer that doubles its size, a
/// copy if the command is queued, and the positions of arguments. The shortest arguments take four
/// bytes, and a position takes 16.
const REQUEST: usize = 8;
/// Memory for each byte of the reply, because the buffer doubles its size.
const REPLY: usize = 3;
/// Memory for each byte of a value that the command names: a copy replaces the value.
const TOUCHED: usize = 3;
/// Memory of the table of LCS, which the server limits.
const TABLE: usize = 64 << 20;
/// Memory that remains in addition to what is counted: allocator, tables, indexes.
const KEPT: usize = 160 << 20;
/// The memory limits of the server.
const MAX_MEMORY: usize = 150_000_000;
const CLIENTS_MEMORY: usize = 100_000_000;
/// Number of commands after which the snapshot that they read is replaced.
const SNAPSHOT: usize = 100;
/// Number of keys in addition to those that the grammar names.
const BULK: usize = 300_000;

/// Another client, which continually sends PING.
struct Probe {
    /// The longest wait since the last query, in microseconds.
    longest: Arc<AtomicU64>,
    /// When the current PING was sent, in microseconds since `begin`, or 0 if no PING is waiting.
    since: Arc<AtomicU64>,
    /// The longest delay of a sleep of a millisecond, in microseconds.
    late: Arc<AtomicU64>,
    is_closed: Arc<AtomicBool>,
    begin: Instant,
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Probe {
    fn new(address: SocketAddr) -> Self {
        let [longest, since, late] = [(); 3].map(|()| Arc::new(AtomicU64::new(0)));
        let [is_closed, over] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let begin = Instant::now();
        let micros = move || begin.elapsed().as_micros() as u64;
        let mut client = Client::new(address);
        client.say("CLIENT SETNAME probe");
        let (wait, sent, closed, end) =
            (longest.clone(), since.clone(), is_closed.clone(), over.clone());
        let asks = std::thread::spawn(move || {
            while !end.load(Ordering::Relaxed) {
                let begin = micros().max(1);
                sent.store(begin, Ordering::Relaxed);
                client.send_if_open(&request(&[b"GET", b"int"]));
                if client.reply_within(Duration::from_secs(60)).is_none_or(|it| it.is_empty()) {
                    closed.store(true, Ordering::Relaxed);
                    return;
                }
                wait.fetch_max(micros() - begin, Ordering::Relaxed);
                sent.store(0, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let (lag, end) = (late.clone(), over.clone());
        let sleeps = std::thread::spawn(move || {
            while !end.load(Ordering::Relaxed) {
                let begin = micros();
                std::thread::sleep(Duration::from_millis(1));
                lag.fetch_max((micros() - begin).saturating_sub(1000), Ordering::Relaxed);
            }
        });
        Self { longest, since, late, is_closed, begin, over, threads: vec![asks, sleeps] }
    }

    fn begin(&self) {
        self.longest.store(0, Ordering::Relaxed);
        self.late.store(0, Ordering::Relaxed);
    }

    /// Returns the longest wait since `begin`, and the longest delay of a sleeping thread in that
    /// time.
    fn end(&self) -> (Duration, Duration) {
        let since = self.since.load(Ordering::Relaxed);
        let now = self.begin.elapsed().as_micros() as u64;
        let waits = if since == 0 { 0 } else { now.saturating_sub(since) };
        let longest = self.longest.load(Ordering::Relaxed).max(waits);
        let late = self.late.load(Ordering::Relaxed);
        (Duration::from_micros(longest), Duration::from_micros(late))
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        // The server may have ended, and the thread with a panic.
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// A server under test, and its clients.
struct Trial {
    server: Child,
    /// The client that sends the queries of the checks.
    watcher: Client,
    app: Client,
    admin: Client,
    probe: Probe,
    /// Size in bytes of keys and values after the last command.
    used: usize,
    /// The number of the snapshot that commands read.
    snapshot: Vec<u8>,
    /// Number of clients closed so far because of their memory.
    evicted: usize,
    /// Queued requests of the transaction that `app` has open.
    queued: Option<Vec<Vec<Vec<u8>>>>,
}

impl Trial {
    fn new() -> Self {
        let program = std::env::var_os("ORDNA_SERVER").map(Into::into);
        let settings = format!("max_memory={MAX_MEMORY} clients_memory={CLIENTS_MEMORY}");
        let server = spawn_program(program, &settings);
        let mut watcher = Client::new(server.address);
        for line in [
            "CLIENT NO-EVICT ON",
            "ACL SETUSER app on >pw ~* +@all -@admin -@dangerous",
            "SET a value",
            "SET b 0123456789",
            "SET int 7",
            "HSET hash n 1 t a f x",
            "FT.CREATE found ON HASH PREFIX 1 doc: SCHEMA n NUMERIC t TAG",
            "ORDNA.INDEX CREATE parts ON doc: PARTS n t",
            "SETBIT big 16777215 1",
        ] {
            let reply = watcher.say(line);
            assert!(!reply.starts_with('-'), "{line}: {reply}");
        }
        let mut all = Vec::new();
        let mut sent = 0;
        let mut push = |words: &[&[u8]]| {
            all.extend(request(words));
            sent += 1;
        };
        for from in (0..BULK).step_by(1000) {
            let words: Vec<_> = (from..from + 1000).map(|at| format!("bulk:{at}")).collect();
            let mut mset: Vec<&[u8]> = vec![b"MSET"];
            words.iter().for_each(|word| mset.extend([word.as_bytes(), b"v"]));
            push(&mset);
        }
        for at in 0..1000 {
            let (key, number) = (format!("doc:{at}"), (at % 100).to_string());
            push(&[b"HSET", key.as_bytes(), b"n", number.as_bytes(), b"t", b"a,b"]);
        }
        let fields: Vec<_> = (0..5000).map(|at| format!("field:{at}")).collect();
        let mut hset: Vec<&[u8]> = vec![b"HSET", b"table"];
        fields.iter().for_each(|field| hset.extend([field.as_bytes(), b"value"]));
        push(&hset);
        watcher.send(&all);
        (0..sent).for_each(|_| drop(watcher.reply()));
        let mut app = Client::new(server.address);
        assert_eq!(app.say("AUTH app pw"), r"+OK\r\n");
        let admin = Client::new(server.address);
        let probe = Probe::new(server.address);
        let mut trial = Self {
            server,
            watcher,
            app,
            admin,
            probe,
            used: 0,
            snapshot: Vec::new(),
            evicted: 0,
            queued: None,
        };
        trial.used = trial.counted()[0];
        trial
    }

    /// Sends a query of the checks. Returns an empty text if the server has ended, is stuck or has
    /// closed the connection.
    fn ask(&mut self, arguments: &[&[u8]]) -> String {
        self.watcher.send_if_open(&request(arguments));
        show(&self.watcher.reply_within(NO_REPLY).unwrap_or_default())
    }

    /// Returns numbers from a section of INFO, or 0 for those that it lacks.
    fn told<const N: usize>(&mut self, section: &str, names: [&str; N]) -> [usize; N] {
        let info = self.ask(&[b"INFO", section.as_bytes()]);
        names.map(|name| {
            let (_, rest) = info.split_once(&format!("{name}:")).unwrap_or_default();
            rest.split_once('\\').map_or(0, |(number, _)| number.parse().unwrap_or(0))
        })
    }

    /// Returns the sizes in bytes of keys and values, and of clients.
    fn counted(&mut self) -> [usize; 2] {
        self.told("memory", ["used_memory", "mem_clients_normal"])
    }

    /// Replaces the snapshot that commands read. Returns the number of the new one.
    fn take_snapshot(&mut self) -> Vec<u8> {
        let former = std::mem::take(&mut self.snapshot);
        self.ask(&[b"ORDNA.SNAPSHOT", b"DROP", &former]);
        let reply = self.ask(&[b"ORDNA.SNAPSHOT", b"CREATE", b"KEEP"]);
        self.snapshot = reply.bytes().filter(u8::is_ascii_digit).collect();
        self.snapshot.clone()
    }

    /// Returns the size in bytes of the values that the arguments name.
    fn touched(&mut self, commands: &[Vec<Vec<u8>>]) -> usize {
        let keys: BTreeSet<&[u8]> = commands
            .iter()
            .flat_map(|words| words.iter().skip(1).take(1000))
            .map(Vec::as_slice)
            .filter(|word| word.len() < 100)
            .collect();
        let bytes = |reply: String| {
            let number = reply.strip_prefix(':').and_then(|rest| rest.strip_suffix(r"\r\n"));
            number.map_or(0, |number| number.parse().unwrap_or(0))
        };
        keys.into_iter().map(|key| bytes(self.ask(&[b"MEMORY", b"USAGE", key]))).sum()
    }
}

/// Returns whether a command may end its connection.
fn may_close(words: &[Vec<u8>]) -> bool {
    let named = |names: &[&[u8]]| {
        words.first().is_some_and(|name| names.iter().any(|it| name.eq_ignore_ascii_case(it)))
    };
    // CLIENT KILL may end its own connection.
    named(&[b"client"])
}

/// Returns whether a command may visit all keys or entries.
fn scans(words: &[Vec<u8>]) -> bool {
    let name = words.first().map(|name| name.to_ascii_lowercase()).unwrap_or_default();
    [&b"ft."[..], b"ordna.", b"keys", b"scan", b"flush", b"memory"]
        .iter()
        .any(|start| name.starts_with(start))
}

/// Returns a short description of a command: names and lengths.
fn brief(words: &[Vec<u8>]) -> String {
    let word = |word: &Vec<u8>| match word.len() {
        ..=40 => word.escape_ascii().to_string(),
        len => format!("<{len} × {}>", word[..4].escape_ascii()),
    };
    let shown: Vec<String> = words.iter().take(12).map(word).collect();
    let more = words.len().saturating_sub(12);
    let rest = if more > 0 { format!(" … {more} more") } else { String::new() };
    format!("{}{rest}", shown.join(" "))
}

/// Sends a command and checks every bound. Returns the violations.
fn check(trial: &mut Trial, words: &[Vec<u8>], is_admin: bool) -> Vec<(&'static str, String)> {
    let mut found = Vec::new();
    let arguments: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
    let bytes = request(&arguments);
    let name = words[0].to_ascii_lowercase();
    std::fs::write(trial.server.proc("clear_refs"), "5").unwrap();
    let before = trial.server.memory("VmRSS:") << 10;
    trial.probe.begin();
    let begin = Instant::now();
    let client = if is_admin { &mut trial.admin } else { &mut trial.app };
    client.send_if_open(&bytes);
    let reply = client.reply_within(NO_REPLY);
    let took = begin.elapsed();
    let (waited, late) = trial.probe.end();
    if reply.as_ref().is_none_or(Vec::is_empty) {
        // The end of a process takes a moment.
        std::thread::sleep(Duration::from_millis(300));
    }
    if let Some(status) = trial.server.has_ended() {
        found.push(("the process is gone", status.to_string()));
        return found;
    }
    let Some(reply) = reply else {
        found.push(("no reply", format!("for {took:?}")));
        return found;
    };
    if trial.probe.is_closed.load(Ordering::Relaxed) {
        found.push(("another client was closed", String::new()));
    }
    let peak = trial.server.memory("VmHWM:") << 10;
    // A client that exceeds the limit of all clients is closed.
    let mut clients_limit = 0;
    if reply.is_empty() {
        let [evicted] = trial.told("stats", ["evicted_clients"]);
        if std::mem::replace(&mut trial.evicted, evicted) < evicted {
            clients_limit = CLIENTS_MEMORY;
        } else if !may_close(words) {
            found.push(("the connection was closed", String::new()));
        }
    }
    if reply.is_empty() {
        let mut again = Client::new(trial.server.address);
        if !is_admin {
            again.say("AUTH app pw");
            trial.queued = None;
        }
        *if is_admin { &mut trial.admin } else { &mut trial.app } = again;
    }
    for sign in [&b"panic"[..], b"internal", b"unwrap", b"snapshot changed"] {
        if reply.starts_with(b"-") && reply.windows(sign.len()).any(|part| part == sign) {
            found.push(("an internal error", String::from_utf8_lossy(&reply).into_owned()));
        }
    }
    if reply.windows(4).any(|part| matches!(part, [b'\r', b'\n', 0xC1, 1 | 2])) {
        found.push(("a value in its stored form", String::new()));
    }
    // The queued commands are executed now.
    let mut commands = vec![words.to_vec()];
    let mut sent = bytes.len();
    match (name.as_slice(), &mut trial.queued) {
        (b"multi", queued) if !is_admin && reply.starts_with(b"+OK") => *queued = Some(Vec::new()),
        (b"exec" | b"discard" | b"reset", queued) if !is_admin => {
            commands.extend(queued.take().unwrap_or_default());
            sent = commands.iter().flatten().map(|word| word.len() + 16).sum();
        }
        (_, Some(queued)) if !is_admin && reply.starts_with(b"+QUEUED") => {
            queued.push(words.to_vec());
        }
        _ => {}
    }
    let [used, clients] = trial.counted();
    if used == 0 {
        let anew = TcpStream::connect(trial.server.address).map(|_| {
            let mut client = Client::new(trial.server.address);
            client.send_if_open(&request(&[b"PING"]));
            client.reply_within(NO_REPLY).map(|reply| show(&reply))
        });
        match trial.server.has_ended() {
            Some(status) => found.push(("the process is gone", status.to_string())),
            None => found.push(("the server is stuck", format!("a new client: {anew:?}"))),
        }
        return found;
    }
    let stays = used.saturating_sub(trial.used);
    let goes = trial.used.saturating_sub(used);
    trial.used = used;
    let own = if name == b"lcs" { TABLE } else { 0 };
    let basic = SLACK + own + REQUEST * sent + REPLY * (reply.len() + clients_limit) + 2 * stays;
    let grown = peak.saturating_sub(before);
    let per_byte = |bytes: usize| Duration::from_nanos(PER_BYTE * u64::from(SLOWER) * bytes as u64);
    // A transaction excludes other clients while its commands run.
    let patience = TIME * SLOWER * commands.len() as u32 + 8 * late;
    if grown > basic || took > patience {
        let mut touched = trial.touched(&commands) + stays + goes;
        if commands.iter().any(|words| scans(words)) {
            touched += used;
        }
        let memory = basic + TOUCHED * touched.min(2 * MAX_MEMORY);
        if grown > memory {
            let text = format!("{} KiB, at most {} KiB", grown >> 10, memory >> 10);
            found.push(("memory", text));
        }
        let most = patience + per_byte(sent + reply.len() + touched);
        if took > most {
            found.push(("time", format!("{took:?}, at most {most:?}")));
        }
    }
    if waited > patience + per_byte(sent + reply.len()) {
        found.push(("others wait", format!("{waited:?}; threads were late by {late:?}")));
    }
    let rest = (trial.server.memory("VmRSS:") << 10).saturating_sub(2 * (used + clients));
    if rest > KEPT + REPLY * reply.len() + REQUEST * sent {
        found.push(("memory that stays", format!("{} KiB", rest >> 10)));
    }
    found
}

/// Returns whether a violation of time or memory occurs again with the same command.
fn is_seen_again(trial: &mut Trial, words: &[Vec<u8>], is_admin: bool, what: &str) -> bool {
    (1..AGAIN).all(|_| check(trial, words, is_admin).iter().any(|(other, _)| *other == what))
}

#[test]
fn every_command_keeps_its_bounds() {
    let seed = std::env::var("ORDNA_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let mut generator = Generator::new(seed);
    let end = Instant::now() + seconds(20);
    let mut found: BTreeMap<(&str, String), (usize, String)> = BTreeMap::new();
    let mut trial = Trial::new();
    let (mut commands, mut servers) = (0_usize, 1_usize);
    while Instant::now() < end {
        let ends = if generator.below(6) == 0 { &b"DISCARD"[..] } else { b"EXEC" };
        let (mut words, is_admin) = match generator.below(24) {
            0 => (vec![b"MULTI".to_vec()], false),
            1..4 if trial.queued.is_some() => (vec![ends.to_vec()], false),
            _ => generator.command(),
        };
        // The name of a missing command has a reply; an empty name has none.
        if words[0].is_empty() {
            words[0] = b"x".to_vec();
        }
        if commands % SNAPSHOT == 0 || trial.snapshot.is_empty() {
            generator.snapshot = trial.take_snapshot();
        }
        commands += 1;
        let queued = trial.queued.clone().unwrap_or_default();
        let mut violations = check(&mut trial, &words, is_admin);
        let resets = |words: &Vec<Vec<u8>>| {
            words.get(1).is_some_and(|word| word.eq_ignore_ascii_case(b"resetstat"))
        };
        if resets(&words) || queued.iter().any(resets) {
            [trial.evicted] = trial.told("stats", ["evicted_clients"]);
        }
        let is_usable = |violations: &[(&str, String)]| {
            !violations.iter().any(|(what, _)| {
                matches!(
                    *what,
                    "no reply"
                        | "the process is gone"
                        | "another client was closed"
                        | "the server is stuck"
                        | "memory that stays"
                )
            })
        };
        if is_usable(&violations) {
            violations.retain(|(what, _)| {
                !matches!(*what, "time" | "others wait" | "memory")
                    || is_seen_again(&mut trial, &words, is_admin, what)
            });
        }
        for (what, more) in &violations {
            let name = String::from_utf8_lossy(&words[0]).chars().take(20).collect();
            let mut text = format!("{} ({more})", brief(&words));
            if words[0] == b"EXEC" {
                queued
                    .iter()
                    .for_each(|words| text.push_str(&format!("\n    of {}", brief(words))));
            }
            found.entry((what, name)).or_insert((0, text)).0 += 1;
        }
        if !is_usable(&violations) || trial.server.has_ended().is_some() {
            drop(trial);
            trial = Trial::new();
            servers += 1;
        }
    }
    println!("seed {seed}: {commands} commands, {servers} servers");
    for ((what, _), (times, text)) in &found {
        println!("{what}, {times} times: {text}");
    }
    assert!(found.is_empty(), "bounds are exceeded, see above");
}

#[test]
fn a_probe_sees_that_others_wait() {
    let trial = Trial::new();
    let mut other = Client::new(trial.server.address);
    trial.probe.begin();
    assert_eq!(other.say("CLIENT PAUSE 300"), r"+OK\r\n");
    std::thread::sleep(Duration::from_millis(250));
    let (waited, _) = trial.probe.end();
    assert!(waited > Duration::from_millis(150), "{waited:?}");
}
