//! Evictions concurrently with transactions, snapshots, indexes and expiry. No reply is wrong, and
//! the memory stays within its limit.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ordna_server::Config;

use crate::common::{Client, Random, seconds, start};

/// Memory limit in bytes, large enough for the share of the indexes.
const LIMIT: usize = 12 << 20;
const KEYS: usize = 4000;
const POLICIES: [&str; 4] = ["allkeys-lru", "allkeys-lfu", "allkeys-random", "volatile-lru"];

/// Returns a value that names its key.
fn value(key: usize, random: &mut Random) -> String {
    format!("{key}:{}", "v".repeat(random.below(1500)))
}

/// Checks that a value read for a key was written to it.
fn check_value(key: usize, reply: &str) {
    let is_absent = reply == r"$-1\r\n";
    assert!(is_absent || reply.contains(&format!(r"\r\n{key}:")), "key {key}: {reply:.100}");
}

/// Checks that a reply is either `done` or a refusal for lack of memory. Counts the former.
fn check_done(reply: &str, done: &str, count: &AtomicUsize) {
    assert!(reply == done || reply.starts_with("-OOM"), "{reply:.200}");
    count.fetch_add(usize::from(reply == done), Ordering::Relaxed);
}

fn figure(client: &mut Client, name: &str) -> usize {
    let info = client.say("INFO all");
    let at = info.find(&format!(r"\n{name}:")).unwrap_or_else(|| panic!("no {name} in {info}"));
    let rest = &info[at + name.len() + 3..];
    rest[..rest.find('\\').unwrap()].parse().unwrap()
}

/// Sets, reads and deletes strings.
fn strings(client: &mut Client, random: &mut Random, done: &AtomicUsize) {
    let key = random.below(KEYS);
    match random.below(8) {
        0..4 => check_value(key, &client.say(&format!("GET s:{key}"))),
        4 => drop(client.say(&format!("DEL s:{key}"))),
        _ => {
            let text = value(key, random);
            let line = format!("SET s:{key} {text} EX {}", 1000 + random.below(1000));
            check_done(&client.say(&line), r"+OK\r\n", done);
        }
    }
}

/// Writes documents of an index.
fn documents(client: &mut Client, random: &mut Random) {
    let key = random.below(KEYS);
    let pad = "p".repeat(random.below(300));
    let reply = match random.below(5) {
        0 => client.say(&format!("DEL doc:{key}")),
        _ => client.say(&format!("HSET doc:{key} a {key} pad p{pad}")),
    };
    assert!(reply.starts_with(':') || reply.starts_with("-OOM"), "{reply}");
}

/// Executes a transaction and checks that all of its commands took effect or, if it was refused,
/// none.
fn transaction(client: &mut Client, random: &mut Random, done: &AtomicUsize) {
    let (key, size) = (random.below(KEYS), random.below(20_000));
    let text = format!("{key}:{}", "t".repeat(size));
    let other = client.say(&format!("GET t:{key}:a"));
    client.say("MULTI");
    for line in [
        format!("SET t:{key}:a {text} EX 5000"),
        format!("SET t:{key}:b {text} EX 5000"),
        format!("GET t:{key}:a"),
        format!("GET t:{key}:b"),
    ] {
        client.say(&line);
    }
    let reply = client.say("EXEC");
    let got = format!(r"${}\r\n{text}\r\n", text.len());
    let whole = format!(r"*4\r\n+OK\r\n+OK\r\n{got}{got}");
    if reply != whole {
        assert!(reply.starts_with("-EXECABORT"), "{reply:.300}");
        let now = client.say(&format!("GET t:{key}:a"));
        assert!(now == other || now == r"$-1\r\n", "{now:.100} {other:.100}");
    }
    done.fetch_add(usize::from(reply == whole), Ordering::Relaxed);
}

/// Checks that a snapshot shows the same values each time, whatever is evicted.
fn snapshot(client: &mut Client) {
    let reply = client.say("ORDNA.SNAPSHOT CREATE");
    let Some(id) = reply.strip_prefix(':').map(|id| id.trim_end_matches(r"\r\n").to_owned()) else {
        assert!(reply.starts_with("-OOM"), "{reply}");
        return;
    };
    let line = format!("ORDNA.SNAPSHOT RANGE {id} [s: (s; KEYS");
    let (first, begin) = (client.say(&line), Instant::now());
    assert!(first.starts_with('*'), "{first}");
    while begin.elapsed() < Duration::from_millis(50) {
        assert_eq!(client.say(&line), first);
    }
    assert_eq!(client.say(&format!("ORDNA.SNAPSHOT DROP {id}")), r":1\r\n");
}

#[test]
fn evictions_beside_everything_else_give_no_wrong_answer() {
    for policy in POLICIES {
        let settings = vec![("maxmemory-policy".to_owned(), policy.to_owned())];
        let server = start(Config { max_memory: Some(LIMIT), settings, ..Config::default() });
        let mut admin = Client::new(server.address);
        assert_eq!(admin.say("ORDNA.INDEX CREATE by_a ON doc: PARTS a"), r"+OK\r\n");
        let is_over = AtomicBool::new(false);
        let (sets, wholes) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (is_over, sets, wholes, address) = (&is_over, &sets, &wholes, server.address);
                scope.spawn(move || {
                    let mut random = Random::new(thread + 1);
                    let mut client = Client::new(address);
                    while !is_over.load(Ordering::Relaxed) {
                        match thread {
                            0 | 1 => strings(&mut client, &mut random, sets),
                            2 => transaction(&mut client, &mut random, wholes),
                            _ => documents(&mut client, &mut random),
                        }
                    }
                });
            }
            let (begin, mut evicted) = (Instant::now(), 0);
            let least = seconds(8) / POLICIES.len() as u32;
            // On a busy machine it takes a while to reach the limit.
            while begin.elapsed() < least
                || evicted <= 100 && begin.elapsed() < Duration::from_secs(60)
            {
                evicted = figure(&mut admin, "evicted_keys");
                let used = figure(&mut admin, "used_memory");
                assert!(used <= LIMIT, "{policy}: {used}");
                snapshot(&mut admin);
                std::thread::sleep(Duration::from_millis(150));
            }
            is_over.store(true, Ordering::Relaxed);
        });
        assert!(figure(&mut admin, "evicted_keys") > 100, "{policy}");
        assert!(
            sets.load(Ordering::Relaxed) > 100 && wholes.load(Ordering::Relaxed) > 0,
            "{policy}"
        );
        // The index agrees with the keyspace.
        assert_eq!(figure(&mut admin, "indexes_failed"), 0, "{policy}");
        let begin = Instant::now();
        loop {
            let (indexed, keys) =
                (admin.say("ORDNA.INDEX COUNT by_a"), admin.say("ORDNA.COUNT [doc: (doc;"));
            if indexed == keys {
                break;
            }
            assert!(begin.elapsed() < Duration::from_secs(20), "{policy}: {indexed} {keys}");
        }
    }
}
