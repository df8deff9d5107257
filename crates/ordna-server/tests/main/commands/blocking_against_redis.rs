//! Compares blocked clients with those of Redis under random schedules. The results are determined,
//! because each step begins only after all clients that can be served are served.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use ordna_server::Config;

use super::against_redis::Redis;
use crate::common::{Random, request, start};
use crate::fuzz_against_redis::Connection;
use crate::fuzz_against_redis::frame::Frame;

const CLIENTS: usize = 5;

/// The connections of one server.
struct Side {
    address: SocketAddr,
    /// Executes the commands that do not block.
    driver: Connection,
    events: Connection,
    clients: Vec<Connection>,
    ids: Vec<i64>,
    /// Whether the command of each client has no reply yet.
    wait: [bool; CLIENTS],
}

impl Side {
    fn new(address: SocketAddr) -> Self {
        let mut side = Self {
            address,
            driver: Connection::new(address),
            events: Connection::new(address),
            clients: (0..CLIENTS).map(|_| Connection::new(address)).collect(),
            ids: vec![0; CLIENTS],
            wait: [false; CLIENTS],
        };
        side.driver.ask(&[b"CONFIG", b"SET", b"notify-keyspace-events", b"KA"]);
        side.driver.ask(&[b"FLUSHALL"]);
        side.events.ask(&[b"PSUBSCRIBE", b"__key*"]);
        (0..CLIENTS).for_each(|at| side.learn_id(at));
        side
    }

    fn learn_id(&mut self, at: usize) {
        let id = self.clients[at].ask(&[b"CLIENT", b"ID"]);
        self.ids[at] = id.and_then(|id| id.integer()).expect("a number");
    }

    fn blocked(&mut self) -> usize {
        let text = self.driver.ask(&[b"INFO", b"clients"]).expect("a reply").text;
        let text = String::from_utf8(text).unwrap();
        let line = text.lines().find(|line| line.starts_with("blocked_clients:")).unwrap();
        line["blocked_clients:".len()..].parse().unwrap()
    }

    /// Waits until all clients without a reply are blocked, and a killed client is closed. Returns
    /// the replies to the other clients, with `None` for a closed connection.
    fn settle(&mut self, killed: Option<usize>) -> BTreeMap<usize, Option<Frame>> {
        let mut replies = BTreeMap::new();
        let end = Instant::now() + Duration::from_secs(10);
        loop {
            let waiting = self.wait.iter().filter(|waits| **waits).count();
            let blocked = self.blocked();
            if blocked == waiting && killed.is_none_or(|killed| replies.contains_key(&killed)) {
                return replies;
            }
            assert!(Instant::now() < end, "{blocked} clients are blocked, {waiting} not answered");
            for at in 0..CLIENTS {
                if self.wait[at]
                    && let Some(reply) = self.clients[at].ready_reply()
                {
                    self.wait[at] = false;
                    if reply.is_none() {
                        self.clients[at] = Connection::new(self.address);
                        self.learn_id(at);
                    }
                    replies.insert(at, reply);
                }
            }
        }
    }

    /// Returns the events since the last call.
    fn events(&mut self) -> Vec<String> {
        self.events.send(&request(&[b"PING", b"the end"]));
        let mut events = Vec::new();
        loop {
            let frame = self.events.reply().expect("the subscription continues");
            if frame.items.iter().any(|item| item.text == b"the end") {
                return events;
            }
            events.push(frame.show());
        }
    }
}

fn words(line: &str) -> Vec<Vec<u8>> {
    line.split(' ').map(|word| word.as_bytes().to_vec()).collect()
}

/// Returns a command that writes.
fn write(random: &mut Random) -> String {
    let key = |random: &mut Random| ["a", "b", "c", "d"][random.below(4)];
    let (one, other) = (key(random), key(random));
    let values = |random: &mut Random| -> String {
        (0..1 + random.below(3)).map(|_| format!(" {}", random.below(100))).collect()
    };
    match random.below(20) {
        0..3 => format!("RPUSH {one}{}", values(random)),
        3..5 => format!("LPUSH {one}{}", values(random)),
        5..8 => format!("ZADD {one} {} m{}", random.below(5), random.below(5)),
        8 => format!("ZADD {one} 1 a 2 b 3 c"),
        9 => format!("SET {one} text"),
        10..12 => format!("DEL {one}"),
        12 => format!("RENAME {one} {other}"),
        13 => format!("COPY {one} {other} REPLACE"),
        14 => format!("LMOVE {one} {other} LEFT RIGHT"),
        15 => format!("RPOPLPUSH {one} {other}"),
        16 => format!("LPOP {one}"),
        17 => format!("ZPOPMAX {one}"),
        18 => format!("LMPOP 2 {one} {other} RIGHT COUNT 2"),
        _ => format!("ZMPOP 2 {one} {other} MIN COUNT 2"),
    }
}

/// Returns a command that blocks forever if it finds nothing.
fn blocking(random: &mut Random) -> String {
    let key = |random: &mut Random| ["a", "b", "c", "d"][random.below(4)];
    let end = |random: &mut Random| ["LEFT", "RIGHT"][random.below(2)];
    let (one, other, third) = (key(random), key(random), key(random));
    match random.below(12) {
        0..2 => format!("BLPOP {one} 0"),
        2 => format!("BLPOP {one} {other} {third} 0"),
        3 => format!("BRPOP {one} {other} 0"),
        4..6 => format!("BLMOVE {one} {other} {} {} 0", end(random), end(random)),
        6 => format!("BRPOPLPUSH {one} {other} 0"),
        7 => format!("BLMPOP 0 2 {one} {other} {} COUNT {}", end(random), 1 + random.below(3)),
        8..10 => format!("{} {one} {other} 0", ["BZPOPMIN", "BZPOPMAX"][random.below(2)]),
        10 => format!("BZPOPMIN {one} 0"),
        _ => {
            let way = ["MIN", "MAX"][random.below(2)];
            format!("BZMPOP 0 2 {one} {other} {way} COUNT {}", 1 + random.below(3))
        }
    }
}

#[test]
#[ignore = "needs redis-server; .ci/run installs it and runs this"]
fn blocked_clients_against_redis() {
    let seed = std::env::var("ORDNA_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let redis = Redis::start();
    let ours = start(Config::default());
    let mut random = Random::new(seed);
    let end = Instant::now() + crate::common::seconds(5);
    let mut latest = VecDeque::new();
    let (mut steps, mut served) = (0, 0);
    while Instant::now() < end {
        let mut sides = [redis.1, ours.address].map(Side::new);
        for _ in 0..150 {
            steps += 1;
            let idle: Vec<usize> = (0..CLIENTS).filter(|at| !sides[0].wait[*at]).collect();
            let mut note = |line: String| {
                latest.push_back(line);
                if latest.len() > 30 {
                    latest.pop_front();
                }
            };
            let client = random.below(CLIENTS);
            let mut killed = None;
            match random.below(12) {
                0..6 if !idle.is_empty() => {
                    let client = idle[random.below(idle.len())];
                    let line = blocking(&mut random);
                    note(format!("{client}: {line}"));
                    let words = words(&line);
                    let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
                    for side in &mut sides {
                        side.clients[client].send(&request(&words));
                        side.wait[client] = true;
                    }
                }
                6 => {
                    let way = ["", " TIMEOUT", " ERROR"][random.below(3)];
                    note(format!("CLIENT UNBLOCK {client}{way}"));
                    let replies = sides.each_mut().map(|side| {
                        let line = format!("CLIENT UNBLOCK {}{way}", side.ids[client]);
                        let words = words(&line);
                        side.driver.ask(&words.iter().map(Vec::as_slice).collect::<Vec<_>>())
                    });
                    assert_eq!(replies[0], replies[1], "seed {seed}, {latest:#?}");
                }
                7 if random.below(3) == 0 => {
                    note(format!("CLIENT KILL {client}"));
                    killed = Some(client);
                    for side in &mut sides {
                        let id = side.ids[client].to_string();
                        side.driver.ask(&[b"CLIENT", b"KILL", b"ID", id.as_bytes()]);
                        // An idle client is closed as well.
                        side.wait[client] = true;
                    }
                }
                8 if !idle.is_empty() => {
                    let client = idle[random.below(idle.len())];
                    let version = ["2", "3"][random.below(2)];
                    note(format!("{client}: HELLO {version}"));
                    for side in &mut sides {
                        side.clients[client].ask(&[b"HELLO", version.as_bytes()]);
                    }
                }
                9 => {
                    let lines: Vec<String> =
                        (0..1 + random.below(5)).map(|_| write(&mut random)).collect();
                    note(format!("MULTI {}", lines.join("; ")));
                    let replies = sides.each_mut().map(|side| {
                        side.driver.ask(&[b"MULTI"]);
                        for line in &lines {
                            let words = words(line);
                            side.driver.ask(&words.iter().map(Vec::as_slice).collect::<Vec<_>>());
                        }
                        side.driver.ask(&[b"EXEC"])
                    });
                    assert_eq!(replies[0], replies[1], "seed {seed}, {latest:#?}");
                }
                10 => {
                    let lines: Vec<String> =
                        (0..1 + random.below(4)).map(|_| write(&mut random)).collect();
                    note(format!("EVAL {}", lines.join("; ")));
                    let calls = lines.iter().map(|line| {
                        let words: Vec<String> =
                            line.split(' ').map(|word| format!("'{word}'")).collect();
                        format!("redis.pcall({})\n", words.join(","))
                    });
                    let script: String = calls.collect();
                    for side in &mut sides {
                        side.driver.ask(&[b"EVAL", script.as_bytes(), b"0"]);
                    }
                }
                _ => {
                    let line = write(&mut random);
                    note(line.clone());
                    let words = words(&line);
                    let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
                    let replies = sides.each_mut().map(|side| side.driver.ask(&words));
                    assert_eq!(replies[0], replies[1], "seed {seed}, {latest:#?}");
                }
            }
            let replies = sides.each_mut().map(|side| side.settle(killed));
            assert_eq!(replies[0], replies[1], "seed {seed}, {latest:#?}");
            served += replies[0].len();
            let events = sides.each_mut().map(Side::events);
            assert_eq!(events[0], events[1], "seed {seed}, {latest:#?}");
        }
        for key in [b"a", b"b", b"c", b"d"] {
            let all: [&[&[u8]]; 3] = [
                &[b"TYPE", key],
                &[b"LRANGE", key, b"0", b"-1"],
                &[b"ZRANGE", key, b"0", b"-1", b"WITHSCORES"],
            ];
            for command in all {
                let replies = sides.each_mut().map(|side| side.driver.ask(command));
                assert_eq!(replies[0], replies[1], "seed {seed}, {latest:#?}");
            }
        }
        drop(sides);
    }
    // No client is left.
    let mut last = Connection::new(ours.address);
    let patience = Instant::now() + Duration::from_secs(10);
    loop {
        let text = last.ask(&[b"INFO", b"clients"]).expect("a reply").text;
        let text = String::from_utf8(text).unwrap();
        if text.contains("blocked_clients:0\r\n") && text.contains("total_blocking_keys:0\r\n") {
            break;
        }
        assert!(Instant::now() < patience, "{text}");
    }
    assert!(served > steps / 20, "{served} of {steps} steps served somebody");
    eprintln!("{steps} steps, {served} replies to those who waited");
}
