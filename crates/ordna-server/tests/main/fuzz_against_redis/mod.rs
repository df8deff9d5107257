//! Random sequences of commands, sent to Debian's redis-server and to Ordna: replies must be equal,
//! except for the differences that `differences.rs` states. `.ci/run` runs this for a minute, and
//! `.ci/long` for a million commands:
//! `cargo test -p ordna-server --test main -- --ignored random_commands_against_redis`.
//! `ORDNA_SOAK` sets the duration in seconds, and `ORDNA_SEED` repeats a run.

pub mod differences;
pub mod documents;
mod found;
pub mod frame;
pub mod generate;
mod own_commands;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ordna_server::Config;

use crate::commands::against_redis::Redis;
use crate::common::{Extent, request, show, start};
use differences::{LONGER, NEWER, ORDNA};
use documents::{Argument, Document, documents};
use frame::Frame;
use generate::{CLIENTS, Generator, Step};

/// Time after which a reply counts as missing.
const PATIENCE: Duration = Duration::from_secs(10);

/// A connection that parses replies.
pub struct Connection {
    address: SocketAddr,
    stream: TcpStream,
    received: Vec<u8>,
    /// Whether a reply did not arrive in time, so that later replies would belong to earlier
    /// requests.
    is_behind: bool,
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Ends a thread that may still be sending.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

impl Connection {
    pub fn new(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("the server listens");
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { address, stream, received: Vec::new(), is_behind: false }
    }

    pub fn send(&mut self, bytes: &[u8]) {
        // A closed connection is noticed by the missing reply.
        let _ = self.stream.write_all(bytes);
    }

    /// Sends requests on another thread while replies are read, because a server stops reading from
    /// a client that does not read its replies.
    fn send_concurrently(&mut self, bytes: Arc<Vec<u8>>) {
        let mut stream = self.stream.try_clone().expect("a handle of the stream");
        std::thread::spawn(move || stream.write_all(&bytes));
    }

    /// Returns the next reply, or the received part of it, or `None` if the connection was closed.
    pub fn reply(&mut self) -> Option<Frame> {
        let mut extent = Extent::default();
        loop {
            if extent.end(&self.received).is_some() {
                let (frame, used) = Frame::parse(&self.received)?;
                self.received.drain(..used);
                return Some(frame);
            }
            let mut piece = [0; 64 << 10];
            match self.stream.read(&mut piece) {
                Ok(0) => return None,
                Ok(read) => self.received.extend_from_slice(&piece[..read]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => {
                    self.is_behind = true;
                    let begin = &self.received[..self.received.len().min(1000)];
                    let text = format!("no reply: {error}; so far {}", show(begin));
                    return Some(Frame { kind: b'?', text: text.into(), items: Vec::new() });
                }
            }
        }
    }

    /// Returns the next reply if it has arrived, or `Some(None)` if the connection was closed.
    pub fn ready_reply(&mut self) -> Option<Option<Frame>> {
        self.stream.set_nonblocking(true).unwrap();
        let reply = self.reply();
        self.stream.set_nonblocking(false).unwrap();
        let is_late = reply.as_ref().is_some_and(|reply| reply.kind == b'?');
        self.is_behind &= !is_late;
        (!is_late).then_some(reply)
    }

    pub fn ask(&mut self, words: &[&[u8]]) -> Option<Frame> {
        self.send(&request(words));
        self.reply()
    }

    /// Resets the connection to the state of a new one.
    fn reset(&mut self) {
        let is_reset = |frame: Option<Frame>| frame.is_some_and(|frame| frame.text == b"RESET");
        if self.is_behind || !self.received.is_empty() || !is_reset(self.ask(&[b"RESET"])) {
            *self = Self::new(self.address);
        }
    }
}

/// The connections to both servers: to Redis and to Ordna.
struct Pair([[Connection; CLIENTS]; 2]);

/// The first reply that differs.
struct Failure {
    step: usize,
    words: Vec<Vec<u8>>,
    redis: String,
    ours: String,
}

impl Failure {
    /// Returns a text that is equal for failures with the same cause: the command and the
    /// beginnings of the replies.
    fn signature(&self) -> String {
        let begin = |text: &str| text.chars().take(24).collect::<String>();
        let number = |text: &str| text.replace(|character: char| character.is_ascii_digit(), "");
        let name = differences::name_of(&self.words);
        format!("{name} {} {}", number(&begin(&self.redis)), number(&begin(&self.ours)))
    }
}

fn shown(reply: &Option<Frame>) -> String {
    reply.as_ref().map_or_else(|| "(closed)".to_owned(), Frame::show)
}

impl Pair {
    fn new(addresses: [SocketAddr; 2]) -> Self {
        Self(addresses.map(|address| std::array::from_fn(|_| Connection::new(address))))
    }

    /// Executes a sequence on an empty keyspace. Returns the first difference.
    fn run(&mut self, steps: &[Step], pipeline: bool) -> Option<Failure> {
        for clients in &mut self.0 {
            clients.iter_mut().for_each(Connection::reset);
            clients[0].ask(&[b"FLUSHALL"]);
        }
        let requests: Vec<Vec<u8>> = steps
            .iter()
            .map(|step| request(&step.words.iter().map(Vec::as_slice).collect::<Vec<_>>()))
            .collect();
        if pipeline {
            let all = Arc::new(requests.concat());
            self.0.iter_mut().for_each(|clients| clients[0].send_concurrently(all.clone()));
        }
        // The queued commands of each client's transaction.
        let mut queued: [Vec<&[Vec<u8>]>; CLIENTS] = Default::default();
        for (at, step) in steps.iter().enumerate() {
            let client = step.client;
            if !pipeline {
                self.0.iter_mut().for_each(|clients| clients[client].send(&requests[at]));
            }
            let replies = self.0.each_mut().map(|clients| clients[client].reply());
            let is_exec = step.words[0].eq_ignore_ascii_case(b"exec");
            if let [Some(redis), Some(ours)] = &replies
                && is_exec
                && redis.kind == b'*'
                && redis.text != b"-1"
                && (ours.text == b"-1" || ours.kind == b'_')
                && differences::may_be_changed(steps[..at].iter().map(|step| &step.words))
            {
                // From here on, the keyspaces differ.
                if pipeline {
                    self.drain(steps.len() - at - 1);
                }
                return None;
            }
            let agree = match &replies {
                [Some(redis), Some(ours)] if is_exec && !redis.items.is_empty() => {
                    let commands = &queued[client];
                    let one = |(at, (redis, ours)): (usize, (&Frame, &Frame))| {
                        redis == ours
                            || commands
                                .get(at)
                                .is_some_and(|words| self.agree(words, redis, ours, true))
                    };
                    let (all, many) = (&redis.items, redis.items.len() == ours.items.len());
                    many && all.iter().zip(&ours.items).enumerate().all(one)
                }
                [Some(redis), Some(ours)] if redis == ours => true,
                [Some(redis), Some(ours)] => {
                    let (redis, ours) = (redis.clone(), ours.clone());
                    let [redis, ours] = match pipeline {
                        true => [redis, ours],
                        false => self.scan_on(client, &step.words, [redis, ours]),
                    };
                    self.agree(&step.words, &redis, &ours, pipeline)
                }
                [None, None] => return None,
                _ => false,
            };
            if !agree && pipeline {
                self.drain(steps.len() - at - 1);
            }
            if !agree {
                let [redis, ours] = replies.each_ref().map(shown);
                return Some(Failure { step: at, words: step.words.clone(), redis, ours });
            }
            let began = [&b"multi"[..], b"discard", b"reset"]
                .contains(&step.words[0].to_ascii_lowercase().as_slice());
            match &replies[0] {
                Some(reply) if reply.text == b"QUEUED" => queued[client].push(&step.words),
                Some(reply) if is_exec || began && !reply.is_error() => queued[client].clear(),
                _ => {}
            }
        }
        None
    }

    /// Reads the remaining replies of a pipeline, which must not be executed after the next
    /// sequence has begun.
    fn drain(&mut self, replies: usize) {
        for clients in &mut self.0 {
            (0..replies).all(|_| !clients[0].is_behind && clients[0].reply().is_some());
        }
    }

    /// Returns whether the replies agree. Of a scan that has not ended and cannot continue, only
    /// the form is compared.
    fn agree(&self, words: &[Vec<u8>], redis: &Frame, ours: &Frame, may_be_partial: bool) -> bool {
        let is_scan = |frame: &Frame| frame.items.len() == 2 && frame.items[0].kind == b'$';
        if matches!(differences::name_of(words).as_str(), "scan" | "hscan" | "sscan" | "zscan")
            && is_scan(redis)
            && is_scan(ours)
        {
            let is_partial = redis.items[0].text != b"0" || ours.items[0].text != b"0";
            let pairs =
                [&b"hscan"[..], b"zscan"].iter().any(|name| words[0].eq_ignore_ascii_case(name));
            if is_partial && may_be_partial
                || redis.items[1].sorted(pairs) == ours.items[1].sorted(pairs)
            {
                return true;
            }
        }
        differences::agree(words, redis, ours)
    }

    /// Follows the cursors of a scan from its beginning. Returns the replies with all elements.
    fn scan_on(&mut self, client: usize, words: &[Vec<u8>], replies: [Frame; 2]) -> [Frame; 2] {
        let at = match differences::name_of(words).as_str() {
            "scan" => 1,
            "hscan" | "sscan" | "zscan" => 2,
            _ => return replies,
        };
        if words.get(at).is_none_or(|cursor| cursor != b"0") || replies.iter().any(Frame::is_error)
        {
            return replies;
        }
        let mut server = 0;
        replies.map(|mut reply| {
            let connection = &mut self.0[server][client];
            server += 1;
            while reply.items.len() == 2 && reply.items[0].text != b"0" {
                let mut words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
                words[at] = &reply.items[0].text;
                let Some(mut next) = connection.ask(&words).filter(|next| next.items.len() == 2)
                else {
                    return reply;
                };
                next.items[1].items.splice(..0, reply.items[1].items.drain(..));
                reply = next;
            }
            if let Some(found) = reply.items.get_mut(1) {
                // Redis may return an element twice.
                *found = found.sorted(at == 2 && !words[0].eq_ignore_ascii_case(b"sscan"));
                if at == 1 {
                    found.items.dedup();
                }
            }
            reply
        })
    }

    /// Removes commands and words while the failure remains, until `end`.
    fn shrink(
        &mut self,
        steps: Vec<Step>,
        pipeline: bool,
        failure: Failure,
        end: Instant,
    ) -> (Vec<Step>, Failure) {
        let (mut steps, mut failure) = (steps, failure);
        steps.truncate(failure.step + 1);
        if failure.redis.starts_with('?') || failure.ours.starts_with('?') {
            // Each run would take the time until a reply counts as missing.
            return (steps, failure);
        }
        let mut size = steps.len() / 2;
        while size > 0 {
            let mut at = 0;
            while at < steps.len() && Instant::now() < end {
                let mut fewer = steps.clone();
                fewer.drain(at..(at + size).min(steps.len()));
                match self.run(&fewer, pipeline) {
                    Some(other) => {
                        steps = fewer;
                        steps.truncate(other.step + 1);
                        failure = other;
                    }
                    None => at += size,
                }
            }
            size /= 2;
        }
        let mut tries = 0;
        for step in 0..steps.len() {
            let mut word = 1;
            while steps.get(step).is_some_and(|step| word < step.words.len())
                && tries < 300
                && Instant::now() < end
            {
                tries += 1;
                let mut fewer = steps.clone();
                fewer[step].words.remove(word);
                match self
                    .run(&fewer, pipeline)
                    .filter(|other| other.signature() == failure.signature())
                {
                    Some(other) => {
                        steps = fewer;
                        steps.truncate(other.step + 1);
                        failure = other;
                    }
                    None => word += 1,
                }
            }
        }
        (steps, failure)
    }
}

/// Returns the commands that lead to a failure, and the replies. Long commands are truncated.
fn report(steps: &[Step], failure: &Failure) -> String {
    const MOST_WORDS: usize = 40;
    const MOST_BYTES: usize = 200;
    let word = |word: &Vec<u8>| match word.len() {
        ..=MOST_BYTES => format!("{:?}", show(word)),
        len => format!("{:?}… ({len} bytes)", show(&word[..MOST_BYTES])),
    };
    let shown = |step: &Step| {
        let words: Vec<String> = step.words.iter().take(MOST_WORDS).map(word).collect();
        let rest = match step.words.len() {
            ..=MOST_WORDS => String::new(),
            len => format!(" … ({len} words)"),
        };
        format!("  {}> {}{rest}", step.client, words.join(" "))
    };
    let lines: Vec<String> = steps.iter().map(shown).collect();
    let begin = |reply: &String| reply.chars().take(2000).collect::<String>();
    let (redis, ours) = (begin(&failure.redis), begin(&failure.ours));
    format!("{}\n    Redis: {redis}\n    Ordna: {ours}", lines.join("\n"))
}

fn soak(usual: u64) -> Duration {
    let asked = std::env::var("ORDNA_SOAK").ok().and_then(|text| text.parse().ok());
    Duration::from_secs_f64(asked.unwrap_or(usual as f64))
}

/// Returns the documents that the server has.
pub fn documents_of(address: SocketAddr) -> Vec<Document> {
    documents(&Connection::new(address).ask(&[b"COMMAND", b"DOCS"]).expect("a reply"))
}

/// Returns payloads that `DUMP` of Redis has created.
fn payloads(redis: SocketAddr) -> Vec<Vec<u8>> {
    let mut connection = Connection::new(redis);
    let long = [b'x'; 200];
    let mut payloads = vec![Vec::new(), b"x".to_vec()];
    let values: [&[&[u8]]; 12] = [
        &[b"SET", b"k", b"7"],
        &[b"SET", b"k", b"text"],
        &[b"SET", b"k", &long],
        &[b"HSET", b"k", b"f", b"1", b"g", b"x"],
        &[b"HSET", b"k", b"f", &long],
        &[b"SET", b"k", b""],
        &[b"RPUSH", b"k", b"a", b"1", b"a"],
        &[b"SADD", b"k", b"1", b"2", b"-70000"],
        &[b"SADD", b"k", b"a", b"1"],
        &[b"ZADD", b"k", b"1.5", b"a", b"2", b"b"],
        &[b"ZADD", b"k", b"-inf", &long],
        &[b"RPUSH", b"k", &long, b"b"],
    ];
    for value in values {
        connection.ask(&[b"DEL", b"k"]);
        connection.ask(value);
        payloads.push(connection.ask(&[b"DUMP", b"k"]).expect("a reply").text);
    }
    payloads
}

/// Compares the servers for `time`. Returns the number of commands and the differences. A
/// difference is printed as soon as it is found, and then shrunk, which adds up to [`SHRINKING`]
/// and the time of one sequence.
fn compare(addresses: [SocketAddr; 2], seed: u64, time: Duration) -> (u64, Vec<String>) {
    const MOST: usize = 40;
    /// Maximum time for shrinking one difference, because a sequence with huge arguments takes
    /// seconds.
    const SHRINKING: Duration = Duration::from_secs(10);
    let documents = documents_of(addresses[1]);
    let payloads = payloads(addresses[0]);
    let mut generator = Generator::new(&documents, &payloads, seed);
    let mut pair = Pair::new(addresses);
    let begin = Instant::now();
    let (mut commands, mut found) = (0, BTreeMap::new());
    while begin.elapsed() < time && found.len() < MOST {
        let (steps, pipeline) = generator.sequence();
        commands += steps.len() as u64;
        let Some(failure) = pair.run(&steps, pipeline) else { continue };
        // Runs the sequence again, because a difference that depends on the clock does not recur.
        if pair.run(&steps, pipeline).is_none() || found.contains_key(&failure.signature()) {
            continue;
        }
        eprintln!(
            "seed {seed}, not yet made smaller:\n{}",
            report(&steps[..=failure.step], &failure)
        );
        let end = Instant::now() + SHRINKING;
        let (steps, failure) = pair.shrink(steps, pipeline, failure, end);
        found.entry(failure.signature()).or_insert_with(|| report(&steps, &failure));
    }
    (commands, found.into_values().collect())
}

#[test]
#[ignore = "needs redis-server; .ci/run installs it and runs this"]
fn sequences_found_against_redis() {
    let redis = Redis::start();
    let ours = start(Config::default());
    let mut pair = Pair::new([redis.1, ours.address]);
    let mut different = Vec::new();
    for sequence in found::SEQUENCES.split("\n\n") {
        let lines = sequence.lines().filter_map(|line| line.split_once("> "));
        let word = |word: &str| if word == "\"\"" { Vec::new() } else { word.into() };
        let step = |(client, words): (&str, &str)| Step {
            client: client.parse().expect("a client"),
            words: words.split(' ').map(word).collect(),
        };
        let steps: Vec<Step> = lines.map(step).collect();
        assert!(!steps.is_empty());
        if let Some(Failure { words, redis, ours, .. }) = pair.run(&steps, false) {
            let words: Vec<String> = words.iter().map(|word| show(word)).collect();
            different.push(format!("{}\n  Redis: {redis}\n  Ordna: {ours}", words.join(" ")));
        }
    }
    assert!(different.is_empty(), "{}", different.join("\n"));
}

#[test]
#[ignore = "needs redis-server; .ci/run installs it and runs this"]
fn random_commands_against_redis() {
    let redis = Redis::start();
    let ours = start(Config::default());
    let seed = std::env::var("ORDNA_SEED").ok().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.unwrap().as_secs()
    });
    eprintln!("seed {seed}");
    // Makes payloads comparable, and makes Redis check time limits more often than every 100 ms.
    let settings: [&[u8]; 6] = [b"CONFIG", b"SET", b"rdbcompression", b"no", b"hz", b"500"];
    Connection::new(redis.1).ask(&settings);
    let (commands, found) = compare([redis.1, ours.address], seed, soak(60));
    println!("seed {seed}: {commands} commands");
    assert!(found.is_empty(), "seed {seed}, {commands} commands:\n{}", found.join("\n"));
}

/// Returns arguments without those that Ordna adds.
fn of_redis(arguments: &[Argument]) -> Vec<String> {
    let shared = arguments.iter().filter(|argument| argument.since != ORDNA);
    shared
        .map(|argument| {
            let Argument { name, kind, token, since, optional, multiple, multiple_token, nested } =
                argument;
            let token = token.as_ref().map(|token| show(token));
            let nested = of_redis(nested);
            format!(
                "{name} {kind} {token:?} {since} {optional} {multiple} {multiple_token} {nested:?}"
            )
        })
        .collect()
}

#[test]
#[ignore = "needs redis-server; .ci/run installs it and runs this"]
fn descriptions_of_commands_against_redis() {
    let redis = Redis::start();
    let ours = start(Config::default());
    let [redis, ours] = [redis.1, ours.address].map(documents_of);
    // Redis 7.0 does not describe later features, and Ordna supports tracking only with OFF.
    let later = ["client|setinfo", "client|no-touch"];
    assert!(ours.len() > 150, "{} documents", ours.len());
    let mut different = Vec::new();
    for document in ours {
        let name = document.name.as_str();
        let is_ours = document.since == ORDNA || later.contains(&name) || NEWER.contains(&name);
        match redis.iter().find(|other| other.name == document.name) {
            Some(other) => {
                let parts = [&document, other].map(|document| {
                    let Document { group, since, arguments, .. } = document;
                    format!("{group} {since} {:?}", of_redis(arguments))
                });
                if parts[0] != parts[1] {
                    different.push(format!(
                        "{}\n  Ordna: {}\n  Redis: {}",
                        document.name, parts[0], parts[1]
                    ));
                }
            }
            None if is_ours => {}
            None => different.push(format!("{}: Redis does not have it", document.name)),
        }
    }
    assert!(different.is_empty(), "{}", different.join("\n"));
}

/// Returns the description of each command and subcommand in `COMMAND INFO`: arity, flags,
/// positions of the keys, ACL categories, key specifications.
fn infos(frame: &Frame) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for info in &frame.items {
        let parts = &info.items;
        let [flags, categories] = [&parts[2], &parts[6]].map(|frame| frame.sorted(false).show());
        let keys: Vec<String> = parts[3..6].iter().chain(&parts[8..9]).map(Frame::show).collect();
        let name = String::from_utf8_lossy(&parts[0].text).into_owned();
        all.insert(name, format!("{} {flags} {keys:?} {categories}", parts[1].show()));
        all.extend(infos(&parts[9]));
    }
    all
}

/// Removes the notes of key specifications, which are texts of Redis.
fn without_notes(frame: Frame) -> Frame {
    let Frame { kind, text, items } = frame;
    let mut items: Vec<Frame> = items.into_iter().map(without_notes).collect();
    if items.first().is_some_and(|first| first.text == b"notes") {
        items.drain(..2);
    }
    Frame { kind, text, items }
}

#[test]
#[ignore = "needs redis-server; .ci/run installs it and runs this"]
fn infos_of_commands_against_redis() {
    let redis = Redis::start();
    let ours = start(Config::default());
    let [redis, ours] = [redis.1, ours.address].map(|address| {
        let reply = Connection::new(address).ask(&[b"COMMAND"]).expect("a reply");
        infos(&without_notes(reply))
    });
    let shared = ours.iter().filter_map(|(name, info)| Some((name, info, redis.get(name)?)));
    let shared = shared.map(|(name, ours, redis)| match LONGER.contains(&name.as_str()) {
        true => (name, ours, redis.replacen(":3 ", ":-3 ", 1)),
        false => (name, ours, redis.clone()),
    });
    let different: Vec<String> = shared
        .filter(|(_, ours, redis)| *ours != redis)
        .map(|(name, ours, redis)| format!("{name}\n  Ordna: {ours}\n  Redis: {redis}"))
        .collect();
    assert!(different.is_empty(), "{}", different.join("\n"));
    assert!(ours.len() > 180);
}
