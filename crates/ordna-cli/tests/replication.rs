//! Servers that replicate a keyspace, on the broker of `ORDNA_BROKER` (`cargo xtask kafka test`).

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use common::{Folder, Server, ordna};

mod common;

const PATIENCE: Duration = Duration::from_secs(30);

/// A topic that no other test has; `None` without a broker.
fn topic() -> Option<String> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let broker = std::env::var("ORDNA_BROKER").ok()?;
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    Some(format!("kafka://{broker}/keys-{}-{number}", std::process::id()))
}

/// A connection. Replies are text: elements of arrays in lines.
struct Client(BufReader<TcpStream>);

impl Client {
    fn of(server: &Server) -> Self {
        let stream = TcpStream::connect(format!("127.0.0.1:{}", server.port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(BufReader::new(stream))
    }

    fn call(&mut self, words: &str) -> String {
        self.call_words(&words.split(' ').collect::<Vec<_>>())
    }

    fn call_words(&mut self, words: &[&str]) -> String {
        let mut request = format!("*{}\r\n", words.len());
        for word in words {
            request += &format!("${}\r\n{word}\r\n", word.len());
        }
        self.0.get_mut().write_all(request.as_bytes()).unwrap();
        self.reply()
    }

    fn reply(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        let line = line.trim_end();
        let (kind, rest) = line.split_at_checked(1).unwrap_or_else(|| panic!("no reply: {line:?}"));
        match (kind, rest.parse::<i64>()) {
            ("$" | "*", Ok(-1)) => "nil".to_owned(),
            ("$", Ok(len)) => {
                let mut bytes = vec![0; len as usize + 2];
                self.0.read_exact(&mut bytes).unwrap();
                String::from_utf8_lossy(&bytes[..len as usize]).into_owned()
            }
            ("*", Ok(len)) => (0..len).map(|_| self.reply()).collect::<Vec<_>>().join("\n"),
            ("-", _) => line.to_owned(),
            _ => rest.to_owned(),
        }
    }

    /// Waits until a follower has all that a primary has written.
    fn follows(&mut self, primary: &mut Client) {
        let offset = primary.call("ORDNA.OFFSET");
        assert_eq!(self.call(&format!("ORDNA.AFTER {offset} 30000")), "OK");
    }

    /// Waits until this server has the keys and values of another one. Keys expire here a second
    /// later.
    #[track_caller]
    fn has_state_of(&mut self, other: &mut Client) {
        let began = Instant::now();
        loop {
            let (found, expected) = (self.state(), other.state());
            if found == expected {
                return;
            }
            if began.elapsed() > PATIENCE {
                for (found, expected) in found.lines().zip(expected.lines()) {
                    assert_eq!(found, expected);
                }
                panic!("{} bytes, not {}", found.len(), expected.len());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// The number of keys, then all keys and values.
    fn state(&mut self) -> String {
        let keys = self.call("KEYS *");
        let mut keys: Vec<&str> = keys.lines().collect();
        keys.sort_unstable();
        let mut state = format!("{} keys\n", self.call("DBSIZE"));
        for key in keys {
            let value = match self.call(&format!("TYPE {key}")).as_str() {
                "string" => self.call(&format!("GET {key}")),
                "list" => self.call(&format!("LRANGE {key} 0 -1")),
                "zset" => {
                    let all = self.call(&format!("ZRANGE {key} 0 -1 WITHSCORES"));
                    let middle = self.call(&format!("ZRANGE {key} 1500 1502"));
                    format!("{all}\n{middle}\n{}", self.call(&format!("ZRANK {key} m2000")))
                }
                "set" => {
                    let all = self.call(&format!("SMEMBERS {key}"));
                    let mut all: Vec<&str> = all.lines().collect();
                    all.sort_unstable();
                    all.join("\n")
                }
                "hash" => {
                    let all = self.call(&format!("HGETALL {key}"));
                    let mut all: Vec<_> = all.lines().collect();
                    all.sort_unstable();
                    all.join("\n")
                }
                // It has expired since.
                "none" => continue,
                other => panic!("{key} is a {other}"),
            };
            let deadline = self.call(&format!("PEXPIRETIME {key}"));
            state += &format!("{key} until {deadline}: {value}\n");
        }
        state
    }
}

fn primary(dir: &str, topic: &str, log: &str) -> (Server, Client) {
    let server = Server::start(&["--dir", dir, "--log", log, "--replicate", topic]);
    let client = Client::of(&server);
    (server, client)
}

fn follower(dir: Option<&str>, topic: &str) -> (Server, Client) {
    let dir: &[&str] = match &dir {
        Some(dir) => &["--dir", dir],
        None => &[],
    };
    let server = Server::start(&[dir, &["--follow", topic]].concat());
    let client = Client::of(&server);
    (server, client)
}

/// Writes of all kinds.
fn write_all_kinds(client: &mut Client) {
    for number in 0..20 {
        client.call(&format!("SET s{number} {number}"));
    }
    client.call("APPEND s1 more");
    client.call("INCRBY s2 40");
    client.call("DEL s3 s4");
    client.call("SET soon 1 PX 1");
    client.call("SET later 1 EX 1000");
    client.call("SET kept 1 EX 1000");
    client.call("PERSIST kept");
    let members: Vec<String> = (0..3000).map(|number| format!("m{number}")).collect();
    let scored: Vec<String> =
        members.iter().enumerate().flat_map(|(at, it)| [at.to_string(), it.clone()]).collect();
    let with = |name: &'static str, key: &'static str, rest: &[String]| {
        let rest = rest.iter().map(String::as_str);
        [name, key].into_iter().chain(rest).map(str::to_owned).collect::<Vec<_>>()
    };
    for words in [
        with("RPUSH", "large-list", &members),
        with("SADD", "large-set", &members),
        with("ZADD", "large-zset", &scored),
        with("HSET", "large-hash", &scored),
        with("HSET", "small-hash", &scored[..6]),
    ] {
        client.call_words(&words.iter().map(String::as_str).collect::<Vec<_>>());
    }
    client.call("HEXPIRE small-hash 1000 FIELDS 1 0");
    client.call("ZREM large-zset m7");
    client.call("LPOP large-list");
    client.call("MULTI");
    client.call("SET in-multi 1");
    client.call("RENAME large-set renamed-set");
    assert_eq!(client.call("EXEC"), "OK\nOK");
    let script = "redis.call('SET', KEYS[1], 'lua') redis.call('INCR', 's5') return 1";
    assert_eq!(client.call_words(&["EVAL", script, "1", "scripted"]), "1");
}

#[test]
fn followers_have_what_a_primary_writes_and_refuse_writes() {
    let Some(topic) = topic() else { return };
    let folder = Folder::new("replicated");
    let (server, mut writes) = primary(&folder.path("primary"), &topic, "everysec");
    // One follows from the beginning, with a directory; one begins later, in memory.
    let (first, mut reads) = follower(Some(&folder.path("follower")), &topic);
    write_all_kinds(&mut writes);
    assert_eq!(writes.call("WAIT 1 30000"), "1");
    reads.follows(&mut writes);
    reads.has_state_of(&mut writes);
    let expected = reads.state();
    assert!(expected.contains("scripted until -1: lua") && expected.contains("s5 until -1: 6"));
    let (_second, mut late) = follower(None, &topic);
    late.follows(&mut writes);
    late.has_state_of(&mut writes);

    let refused = "-READONLY You can't write against a read only replica.";
    for words in ["SET a 1", "DEL s1", "FLUSHALL", "BLPOP a 1", "EXPIRE s1 1", "ORDNA.DELRANGE - +"]
    {
        assert_eq!(reads.call(words), refused, "{words}");
    }
    let script = reads.call_words(&["EVAL", "return redis.call('SET', 'a', 1)", "0"]);
    assert!(script.contains("READONLY"), "{script}");
    assert_eq!(reads.call_words(&["EVAL", "return redis.call('GET', 's6')", "0"]), "6");
    assert!(reads.call("ROLE").starts_with("slave\n") && writes.call("ROLE").starts_with("master"));
    assert!(reads.call("INFO replication").contains("role:slave"));
    assert!(reads.call("WAIT 1 0").starts_with("-ERR WAIT cannot be used with replica"));

    // The follower that starts again continues; a flush reaches it, and what follows.
    first.signal("-KILL");
    drop(first);
    assert_eq!(writes.call("FLUSHALL"), "OK");
    write_all_kinds(&mut writes);
    let (_first, mut reads) = follower(Some(&folder.path("follower")), &topic);
    reads.follows(&mut writes);
    reads.has_state_of(&mut writes);
    late.follows(&mut writes);
    late.has_state_of(&mut writes);
    drop(server);
}

#[test]
fn a_primary_that_is_killed_loses_nothing_acknowledged() {
    for log in ["everysec", "always"] {
        let Some(topic) = topic() else { return };
        let folder = Folder::new(&format!("killed-{log}"));
        let dir = folder.path("primary");
        let mut acknowledged = 0;
        for round in 0..3 {
            let (server, mut client) = primary(&dir, &topic, log);
            let found = client.call("STRLEN appended");
            assert_eq!(found, acknowledged.to_string(), "after round {round} with {log}");
            let until = Instant::now() + Duration::from_millis(700);
            while Instant::now() < until {
                assert_eq!(client.call("APPEND appended +"), (acknowledged + 1).to_string());
                acknowledged += 1;
            }
            server.signal("-KILL");
        }
        let (_server, mut client) = primary(&dir, &topic, log);
        let (_follower, mut reads) = follower(None, &topic);
        reads.follows(&mut client);
        assert_eq!(reads.call("STRLEN appended"), acknowledged.to_string());
        reads.has_state_of(&mut client);
    }
}

/// Cuts bytes off the newest segment of the log that has as many.
fn cut_log(dir: &str, bytes: u64) {
    let files = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let is_segment = |name: &str| name.starts_with("log-");
    let mut segments: Vec<_> = files
        .filter(|path| path.file_name().is_some_and(|name| is_segment(&name.to_string_lossy())))
        .filter(|path| path.metadata().unwrap().len() > bytes)
        .collect();
    segments.sort();
    let newest = segments.last().expect("a segment");
    let file = std::fs::OpenOptions::new().write(true).open(newest).unwrap();
    file.set_len(file.metadata().unwrap().len() - bytes).unwrap();
}

/// The length of the value when a server without replication starts in a copy of a directory.
fn length_in_copy(dir: &str, copy: &str) -> u32 {
    std::fs::create_dir(copy).unwrap();
    for entry in std::fs::read_dir(dir).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_file() {
            std::fs::copy(entry.path(), format!("{copy}/{}", entry.file_name().display())).unwrap();
        }
    }
    let server = Server::start(&["--dir", copy]);
    Client::of(&server).call("STRLEN appended").parse().unwrap()
}

#[test]
fn a_log_that_lost_its_end_takes_it_from_the_topic() {
    let Some(topic) = topic() else { return };
    let folder = Folder::new("cut-log");
    let dir = folder.path("primary");
    let (server, mut client) = primary(&dir, &topic, "no");
    for number in 1..=300 {
        assert_eq!(client.call("APPEND appended +"), number.to_string());
    }
    assert_eq!(client.call("WAIT 1 30000"), "1");
    server.signal("-KILL");
    drop(server);
    cut_log(&dir, 2_000);
    assert!(length_in_copy(&dir, &folder.path("copy")) < 300, "nothing was cut");
    let (_server, mut client) = primary(&dir, &topic, "no");
    assert_eq!(client.call("STRLEN appended"), "300");
    assert_eq!(client.call("APPEND appended +"), "301");
    let (_follower, mut reads) = follower(None, &topic);
    reads.follows(&mut client);
    assert_eq!(reads.call("STRLEN appended"), "301");
    reads.has_state_of(&mut client);
}

#[test]
fn a_promotion_fences_a_living_primary() {
    let Some(topic) = topic() else { return };
    let folder = Folder::new("promoted");
    let dir = folder.path("old");
    let (old, mut old_client) = primary(&dir, &topic, "always");
    let (new, mut new_client) = follower(Some(&folder.path("new")), &topic);
    let (_third, mut third) = follower(None, &topic);
    write_all_kinds(&mut old_client);
    // The key that expires is gone.
    std::thread::sleep(Duration::from_millis(100));
    let acknowledged = old_client.state();
    let offset = old_client.call("ORDNA.OFFSET");
    let (term, end) = offset.split_once('-').unwrap();
    let lost = format!("{term}-{}", end.parse::<u64>().unwrap() + 1);
    let began = Instant::now();
    assert_eq!(new_client.call("REPLICAOF NO ONE"), "OK");
    println!("promoted within {:?}", began.elapsed());
    let late = old_client.call("SET late 1");
    assert!(late.starts_with('-'), "{late}");
    assert!(new_client.state() == acknowledged, "what was acknowledged is there");
    while !old_client.call("SET later 1").starts_with("-READONLY") {
        assert!(began.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(old_client.call("REPLICAOF NO ONE").starts_with("-ERR not promoted"));
    // The new primary writes, and the other follower follows it.
    assert_eq!(new_client.call("SET new 1"), "OK");
    write_all_kinds(&mut new_client);
    third.follows(&mut new_client);
    third.has_state_of(&mut new_client);
    assert_eq!(third.call("GET new"), "1");
    assert_eq!(third.call("EXISTS late later-than-that"), "0");
    // Offsets of the run that has ended.
    for client in [&mut new_client, &mut third] {
        assert_eq!(client.call(&format!("ORDNA.AFTER {offset} 0")), "OK");
        let reply = client.call(&format!("ORDNA.AFTER {lost} 0"));
        assert_eq!(
            reply,
            format!("-ERR offset {lost} is lost: another primary has taken over after {offset}")
        );
    }
    // The new one starts again; the old one refuses.
    new.signal("-KILL");
    drop((new, old));
    let (_new, mut new_client) = primary(&folder.path("new"), &topic, "always");
    assert_eq!(new_client.call("GET new"), "1");
    assert_eq!(new_client.call("SET again 1"), "OK");
    third.follows(&mut new_client);
    third.has_state_of(&mut new_client);
    for flag in ["--replicate", "--follow"] {
        let words = ["serve", "--port", "0", "--dir", &dir, flag, &topic];
        let output = ordna(&words).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains("empty directory"), "{flag}: {error}");
    }
}

/// Runs a server that must refuse to start. Returns what it prints.
fn refused(words: &[&str]) -> String {
    let output = ordna(&[&["serve", "--port", "0"], words].concat()).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{words:?}: {error}");
    error
}

#[test]
fn what_is_refused_leaves_the_primary_as_it_is() {
    let Some(topic) = topic() else { return };
    let folder = Folder::new("refused");
    let (_server, mut writes) = primary(&folder.path("primary"), &topic, "always");
    write_all_kinds(&mut writes);
    // A second primary.
    let error = refused(&["--dir", &folder.path("other"), "--replicate", &topic]);
    assert!(error.contains("last written by another primary"), "{error}");
    assert_eq!(writes.call("SET a 1"), "OK");

    // A promotion that cannot note its run.
    let dir = folder.path("follower");
    let (server, mut reads) = follower(Some(&dir), &topic);
    reads.follows(&mut writes);
    let noted = format!("{dir}/REPLICA.json.new");
    std::fs::create_dir(&noted).unwrap();
    let reply = reads.call("REPLICAOF NO ONE");
    assert!(reply.starts_with("-ERR not promoted: the run cannot be noted"), "{reply}");
    assert_eq!(writes.call("SET a 2"), "OK");
    reads.follows(&mut writes);
    std::fs::remove_dir(&noted).unwrap();

    // Commands that wait end with their clients.
    for _ in 0..200 {
        let mut waiting = Client::of(&server);
        waiting.0.get_mut().write_all(b"ORDNA.AFTER 99-0 0\r\n").unwrap();
    }
    let began = Instant::now();
    while !reads.call("INFO clients").contains("connected_clients:1\r") {
        assert!(began.elapsed() < PATIENCE, "{}", reads.call("INFO clients"));
        std::thread::sleep(Duration::from_millis(20));
    }

    // A follower's directory that was served alone.
    drop(server);
    let alone = Server::start(&["--dir", &dir]);
    assert_eq!(Client::of(&alone).call("SET foreign 1"), "OK");
    drop(alone);
    let error = refused(&["--dir", &dir, "--follow", &topic]);
    assert!(error.contains("keys of another history"), "{error}");
}
