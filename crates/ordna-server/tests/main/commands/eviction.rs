//! Tests of `maxmemory-policy`: which keys are evicted at the memory limit, and which clients are
//! notified.

use std::time::{Duration, Instant};

use ordna_server::{Config, LogSync};

use crate::common::{Client, Running, start};
use crate::state::persistence::{Dir, loaded};

const LIMIT: usize = 200_000;

fn server(policy: &str) -> (Running, Client) {
    let settings = vec![("maxmemory-policy".to_owned(), policy.to_owned())];
    let server = start(Config { max_memory: Some(LIMIT), settings, ..Config::default() });
    let client = Client::new(server.address);
    (server, client)
}

fn figure(client: &mut Client, name: &str) -> usize {
    let info = client.say("INFO all");
    let at = info.find(&format!(r"\n{name}:")).unwrap_or_else(|| panic!("no {name} in {info}"));
    let rest = &info[at + name.len() + 3..];
    rest[..rest.find('\\').unwrap()].parse().unwrap()
}

/// Sets `count` keys with values of a kilobyte.
fn fill(client: &mut Client, prefix: &str, count: usize) {
    let value = "v".repeat(1000);
    for key in 0..count {
        assert_eq!(client.say(&format!("SET {prefix}:{key} {value}")), r"+OK\r\n", "{key}");
    }
}

fn is_there(client: &mut Client, key: &str) -> bool {
    client.say(&format!("EXISTS {key}")) == r":1\r\n"
}

#[test]
fn what_was_not_used_for_longest_is_evicted() {
    let (_server, mut client) = server("allkeys-lru");
    fill(&mut client, "old", 50);
    for round in 0..40 {
        (0..10).for_each(|key| drop(client.say(&format!("GET old:{key}"))));
        fill(&mut client, &format!("new{round}"), 25);
    }
    let kept = (0..10).filter(|key| is_there(&mut client, &format!("old:{key}"))).count();
    assert!(kept >= 8, "{kept} of 10 that were used");
    let kept = (10..50).filter(|key| is_there(&mut client, &format!("old:{key}"))).count();
    assert_eq!(kept, 0, "of those that were not");
    assert!(figure(&mut client, "evicted_keys") > 800);
    assert!(figure(&mut client, "used_memory") <= LIMIT);
    assert!(client.say("INFO memory").contains("maxmemory_policy:allkeys-lru"));
    assert_eq!(client.say("CONFIG SET maxmemory-policy noeviction"), r"+OK\r\n");
    let value = "v".repeat(1000);
    let refused = |key: usize| client.say(&format!("SET more:{key} {value}")).starts_with("-OOM");
    assert!((0..1000).any(refused), "nothing is evicted any more");
}

#[test]
fn what_is_used_least_often_is_evicted() {
    let (_server, mut client) = server("allkeys-lfu");
    fill(&mut client, "old", 50);
    for _ in 0..200 {
        (0..10).for_each(|key| drop(client.say(&format!("GET old:{key}"))));
    }
    fill(&mut client, "new", 1000);
    let kept = (0..10).filter(|key| is_there(&mut client, &format!("old:{key}"))).count();
    assert!(kept >= 8, "{kept} of 10 that are used often");
    let key = (0..10).find(|key| is_there(&mut client, &format!("old:{key}"))).unwrap();
    let reply = client.say(&format!("OBJECT FREQ old:{key}"));
    let frequency: usize = reply[1..].trim_end_matches(r"\r\n").parse().unwrap();
    assert!(frequency > 8, "{frequency}");
}

#[test]
fn new_keys_and_uses_count_as_in_redis() {
    let (_server, mut client) = server("allkeys-lfu");
    let mut frequency = |lines: &[&str]| {
        lines.iter().for_each(|line| drop(client.say(line)));
        client.say("OBJECT FREQ key")
    };
    assert_eq!(frequency(&["GET key", "GET key", "SET key 1"]), r":5\r\n", "misses are not uses");
    assert_eq!(frequency(&["GET key"]), r":6\r\n", "the first use always counts");
    let mut frequency = |line: &str| {
        client.say(line);
        client.say("OBJECT FREQ other")
    };
    assert_eq!(frequency("HSET other a 1"), r":5\r\n");
    assert_eq!(frequency("HSET other a 2"), r":6\r\n", "a change is a use");
}

#[test]
fn the_idle_time_is_known_under_a_policy_of_recency() {
    for (policy, expected) in [
        ("allkeys-lru", r":0\r\n"),
        ("volatile-lru", r":0\r\n"),
        ("allkeys-lfu", "-ERR An LFU maxmemory policy is selected, idle time not tracked."),
        ("noeviction", "-ERR idle time is tracked under the policies allkeys-lru"),
    ] {
        let (_server, mut client) = server(policy);
        client.say("SET a 1");
        let reply = client.say("OBJECT IDLETIME a");
        assert!(reply.starts_with(expected), "{policy}: {reply}");
        assert_eq!(client.say("OBJECT IDLETIME b"), r"$-1\r\n");
    }
}

#[test]
fn only_keys_with_a_deadline_are_evicted_under_a_volatile_policy() {
    for policy in ["volatile-lru", "volatile-lfu", "volatile-random", "volatile-ttl"] {
        let (_server, mut client) = server(policy);
        fill(&mut client, "stays", 100);
        let value = "v".repeat(1000);
        for key in 0..500 {
            let seconds = 1000 - key;
            let line = format!("SET goes:{key} {value} EX {seconds}");
            assert_eq!(client.say(&line), r"+OK\r\n", "{policy} {key}");
        }
        let kept = (0..100).filter(|key| is_there(&mut client, &format!("stays:{key}"))).count();
        assert_eq!(kept, 100, "{policy}");
        if policy == "volatile-ttl" {
            // The keys with the earliest deadlines are evicted. The last key may remain.
            assert!(is_there(&mut client, "goes:0") && !is_there(&mut client, "goes:400"));
        }
        // Without keys that expire, nothing can be evicted.
        let count = client.say("DBSIZE");
        let full = (0..1000)
            .find(|key| client.say(&format!("SET more:{key} {value}")).starts_with("-OOM"));
        assert!(full.is_some_and(|full| full > 20), "{policy} {count} {full:?}");
        assert_eq!(client.say("DEL stays:1"), r":1\r\n");
        assert_eq!(client.say(&format!("SET more {value}")), r"+OK\r\n");
    }
}

#[test]
fn any_key_is_evicted_at_random() {
    let (_server, mut client) = server("allkeys-random");
    fill(&mut client, "key", 1000);
    let kept = (0..900).filter(|key| is_there(&mut client, &format!("key:{key}"))).count();
    assert!((20..180).contains(&kept), "{kept}");
}

#[test]
fn commands_that_need_more_than_their_arguments_find_room() {
    let (_server, mut client) = server("allkeys-lru");
    fill(&mut client, "key", 300);
    // The choice is random, so the source itself may be evicted.
    let copied = (0..50).any(|_| {
        assert_eq!(client.say("SETRANGE long 60000 x"), r":60001\r\n");
        client.say("COPY long other REPLACE") == r":1\r\n"
    });
    assert!(copied);
    assert!(client.say("SETRANGE long 300000 x").starts_with("-OOM"), "more than the limit");
    fill(&mut client, "more", 300);
    let value = "v".repeat(20_000);
    let pairs: Vec<String> = (0..5).map(|key| format!("pair:{key} {value}")).collect();
    assert_eq!(client.say(&format!("MSET {}", pairs.join(" "))), r"+OK\r\n");
    fill(&mut client, "again", 300);
    assert_eq!(client.say("MULTI"), r"+OK\r\n");
    for key in 0..5 {
        assert_eq!(client.say(&format!("SET queued:{key} {value}")), r"+QUEUED\r\n");
    }
    let reply = client.say("EXEC");
    assert_eq!(reply, format!(r"*5\r\n{}", r"+OK\r\n".repeat(5)));
    fill(&mut client, "end", 300);
    assert!(figure(&mut client, "used_memory") <= LIMIT);
}

#[test]
fn watchers_and_indexes_learn_of_an_eviction() {
    let (server, mut client) = server("allkeys-lru");
    // Indexes are updated after the writes.
    let limit = 10 * LIMIT;
    assert_eq!(client.say(&format!("CONFIG SET maxmemory {limit}")), r"+OK\r\n");
    assert_eq!(client.say("ORDNA.INDEX CREATE by_a ON doc: PARTS a"), r"+OK\r\n");
    let mut watcher = Client::new(server.address);
    for key in 0..20 {
        assert_eq!(client.say(&format!("HSET doc:first{key} a 1")), r":1\r\n");
        assert_eq!(watcher.say(&format!("WATCH doc:first{key}")), r"+OK\r\n");
    }
    let long = "v".repeat(500);
    for key in 0..6000 {
        assert_eq!(client.say(&format!("HSET doc:{key} a {key} b {long}")), r":2\r\n");
    }
    let kept = (0..20).filter(|key| is_there(&mut client, &format!("doc:first{key}"))).count();
    assert!(kept <= 10, "{kept} of 20 that were not used");
    watcher.say("MULTI");
    watcher.say("PING");
    assert_eq!(watcher.say("EXEC"), r"*-1\r\n");
    let begin = Instant::now();
    loop {
        let (count, keys) = (client.say("ORDNA.INDEX COUNT by_a"), client.say("DBSIZE"));
        if count == keys {
            break;
        }
        assert!(begin.elapsed() < Duration::from_secs(20), "{count} {keys}");
    }
    assert!(figure(&mut client, "used_memory") <= limit);
    assert_eq!(figure(&mut client, "indexes_failed"), 0);
}

#[test]
fn a_snapshot_does_not_empty_the_store_and_a_scan_does_not_stop_evictions() {
    let (_server, mut client) = server("allkeys-lru");
    fill(&mut client, "key", 300);
    // The lease of a scan ends early, but the scan continues.
    let reply = client.say("SCAN 0 COUNT 2");
    let cursor = reply.split(r"\r\n").nth(2).unwrap().to_owned();
    let value = "v".repeat(1000);
    let begin = Instant::now();
    for key in 0..300 {
        while client.say(&format!("SET more:{key} {value}")).starts_with("-OOM") {
            assert!(begin.elapsed() < Duration::from_secs(20));
        }
    }
    assert!(client.say(&format!("SCAN {cursor} COUNT 2")).starts_with("*2"));
    assert_eq!(client.say("ORDNA.SNAPSHOT CREATE"), r":1\r\n");
    let full = (0..300).find(|key| client.say(&format!("SET x:{key} {value}")).starts_with("-OOM"));
    assert!(full.is_some(), "the snapshot keeps the memory");
    let size = |reply: String| -> usize { reply[1..].trim_end_matches(r"\r\n").parse().unwrap() };
    let keys = size(client.say("DBSIZE"));
    assert!(keys > 80, "{keys}: few keys were evicted in vain");
    assert_eq!(client.say("ORDNA.SNAPSHOT DROP 1"), r":1\r\n");
    std::thread::sleep(Duration::from_millis(150));
    fill(&mut client, "again", 300);
}

#[test]
fn a_limit_that_is_lowered_is_reached_without_writes() {
    let (_server, mut client) = server("allkeys-lru");
    fill(&mut client, "key", 300);
    assert_eq!(client.say("CONFIG SET maxmemory 100kb"), r"+OK\r\n");
    let begin = Instant::now();
    while figure(&mut client, "used_memory") > 102_400 {
        assert!(begin.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(client.say("SET key value"), r"+OK\r\n");
}

#[test]
fn stored_keys_are_evicted_only_if_that_is_allowed() {
    let dir = Dir::new("evicted");
    let mut server = start(dir.config(LogSync::Always));
    let mut client = loaded(&server);
    let reply = client.say("CONFIG SET maxmemory 100kb maxmemory-policy allkeys-lru");
    assert!(reply.contains("--evict-stored"), "{reply}");
    assert!(client.say("CONFIG GET maxmemory").contains(r"$1\r\n0\r\n"));
    server.stop();
    let config = || Config { evict_stored: true, ..dir.config(LogSync::Always) };
    let mut server = start(config());
    let mut client = loaded(&server);
    let reply = client.say("CONFIG SET maxmemory 100kb maxmemory-policy allkeys-lru");
    assert_eq!(reply, r"+OK\r\n");
    fill(&mut client, "key", 300);
    let keys = client.say("DBSIZE");
    let kept = (0..150).filter(|key| is_there(&mut client, &format!("key:{key}"))).count();
    assert!(kept < 50, "{kept} of the first 150 of 300");
    server.stop();
    let server = start(config());
    let mut client = loaded(&server);
    assert_eq!(client.say("DBSIZE"), keys, "they stay evicted");
}

#[test]
fn expired_keys_are_counted() {
    let server = start(Config::default());
    let mut client = Client::new(server.address);
    (0..10).for_each(|key| drop(client.say(&format!("SET key:{key} 1 PX 10"))));
    let begin = Instant::now();
    while figure(&mut client, "expired_keys") < 10 {
        assert!(begin.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(5));
    }
    client.say("FLUSHALL");
    assert_eq!(figure(&mut client, "expired_keys"), 10);
    assert_eq!(client.say("CONFIG RESETSTAT"), r"+OK\r\n");
    assert_eq!(figure(&mut client, "expired_keys"), 0);
}

/// If a collection is evicted while a write to it waits for memory, the write creates the
/// collection again.
#[test]
fn a_large_collection_that_is_evicted_by_its_own_writes_grows_anew() {
    let (_server, mut client) = server("allkeys-lru");
    assert_eq!(client.say("CONFIG SET maxmemory 2mb"), r"+OK\r\n");
    let values: Vec<String> = (0..1000).map(|at| format!("{at:040}")).collect();
    let names: Vec<&[u8]> = values.iter().map(String::as_bytes).collect();
    for (command, is_pair) in [("RPUSH", false), ("SADD", false), ("ZADD", true), ("HSET", true)] {
        for round in 0..200 {
            let key = format!("{command}:{}", round % 3);
            let mut line = vec![command.as_bytes(), key.as_bytes()];
            for name in &names {
                if is_pair {
                    line.push(b"7");
                }
                line.push(name);
            }
            if command == "HSET" {
                line[2..].chunks_mut(2).for_each(|pair| pair.swap(0, 1));
            }
            let reply = client.ask(&line);
            assert!(reply.starts_with(':'), "{command}, round {round}: {reply}");
        }
    }
    assert!(figure(&mut client, "evicted_keys") > 0);
}

#[test]
fn no_more_is_evicted_while_a_large_collection_is_freed() {
    let (_server, mut client) = server("allkeys-random");
    assert_eq!(client.say("CONFIG SET maxmemory 4mb"), r"+OK\r\n");
    let values: Vec<String> = (0..1000).map(|at| format!("{at:040}")).collect();
    for key in 0.. {
        let key = format!("set:{key}");
        let mut line = vec![b"SADD".as_slice(), key.as_bytes()];
        line.extend(values.iter().map(String::as_bytes));
        assert_eq!(client.ask(&line), r":1000\r\n", "{key}");
        if figure(&mut client, "used_memory") > 3_900_000 {
            break;
        }
    }
    for key in 0.. {
        assert_eq!(client.say(&format!("SET {key} {}", "v".repeat(10_000))), r"+OK\r\n");
        if figure(&mut client, "evicted_keys") > 0 {
            break;
        }
    }
    // Evicting one set is enough. Some small keys may be chosen before it.
    let evicted = figure(&mut client, "evicted_keys");
    assert!(evicted <= 12, "{evicted}");
}
