//! Tests of commands at the memory limit.

use std::time::{Duration, Instant};

use ordna_server::Config;

use crate::common::{Client, converse, fresh, is_ttl, start};

/// Returns the used memory that the server reports.
fn used(client: &mut Client) -> usize {
    let text = client.say("INFO memory");
    let after = text.split("used_memory:").nth(1).unwrap();
    after.split(|digit: char| !digit.is_ascii_digit()).next().unwrap().parse().unwrap()
}

#[test]
fn beyond_the_memory_limit_reads_and_deletes_go_on() {
    let server = start(Config { max_memory: Some(100_000), ..Config::default() });
    let mut client = Client::new(server.address);
    let value = vec![b'v'; 1000];
    let refused = r"-OOM command not allowed when used memory > 'maxmemory'.\r\n";
    let full = (0..).find(|n: &u32| {
        let reply = client.ask(&[b"SET", format!("{n:04}").as_bytes(), &value]);
        assert!(reply == r"+OK\r\n" || reply == refused, "{reply}");
        reply == refused
    });
    let full = full.unwrap();
    assert!((50..100).contains(&full), "{full}");
    assert_eq!(client.say("STRLEN 0000"), r":1000\r\n");
    // A batch that does not fit as a whole has no effect.
    let batch = client.ask(&[b"MSET", b"x", b"1", b"y", &value]);
    assert_eq!(batch, refused);
    assert_eq!(client.say("EXISTS x y"), r":0\r\n");
    // A write that needs no additional memory is accepted.
    assert_eq!(client.ask(&[b"SET", b"0002", &value]), r"+OK\r\n");
    assert_eq!(client.say("DEL 0000 0001"), r":2\r\n");
    assert_eq!(client.ask(&[b"SET", b"0000", &value]), r"+OK\r\n");
}

/// As in Redis, a client that finds the memory full can still set deadlines, so that expiry frees
/// memory.
#[test]
fn beyond_the_memory_limit_expiries_are_set_and_lifted() {
    let server = start(Config { max_memory: Some(100_000), ..Config::default() });
    let mut client = Client::new(server.address);
    let value = vec![b'v'; 1000];
    let fill = |client: &mut Client| {
        let full = (0..).find(|n: &u32| {
            client.ask(&[b"SET", format!("{n:04}").as_bytes(), &value]) != r"+OK\r\n"
        });
        // Uses the last few bytes as well.
        while client.say("APPEND 0000 x").starts_with(':') {}
        full.unwrap()
    };
    let full = fill(&mut client);
    // A snapshot keeps the versions without a deadline.
    for snapshot in ["PING", "ORDNA.SNAPSHOT CREATE"] {
        client.say(snapshot);
        // The first value has grown, and a copy of it for the snapshot may be refused.
        for n in 1..full {
            converse(
                &mut client,
                &[
                    (&format!("EXPIRE {n:04} 100"), r":1\r\n"),
                    (&format!("TTL {n:04}"), r":100\r\n"),
                    (&format!("PERSIST {n:04}"), r":1\r\n"),
                ],
            );
            let begin = Instant::now();
            client.say(&format!("GETEX {n:04} EX 200"));
            let left = client.say(&format!("TTL {n:04}"));
            assert!(is_ttl(&left, r":200\r\n", begin), "{left}");
        }
        assert!(client.say("SET more 1").starts_with("-OOM"), "{snapshot}");
    }
    // Memory beyond the limit must be freed before more is written.
    client.say("ORDNA.SNAPSHOT DROP 1");
    assert_eq!(client.say("EXPIRE 0001 0"), r":1\r\n");
    fill(&mut client);
    let info = client.say("INFO memory");
    let used = info.split_once("used_memory:").unwrap().1.split_once('\\').unwrap().0;
    let used: usize = used.parse().unwrap();
    assert!(used <= 100_000, "{used}");
}

/// A snapshot needs the value with its former deadline. Each `SCAN` takes a snapshot when it
/// begins, and must not make the store keep a copy beyond the limit.
#[test]
fn at_the_memory_limit_no_deadline_copies_a_large_value() {
    const MOST: usize = 1_000_000;
    let server = start(Config { max_memory: Some(MOST), ..Config::default() });
    let mut client = Client::new(server.address);
    client.say("MSET a 1 b 2");
    assert_eq!(client.ask(&[b"SET", b"large", &vec![b'v'; 100_000]]), r"+OK\r\n");
    for n in 0..20 {
        for change in [format!("EXPIRE large {}", 1000 + n), "PERSIST large".to_owned()] {
            client.say("SCAN 0 COUNT 1");
            assert_eq!(client.say(&change), r":1\r\n", "{n}");
        }
        client.say("SCAN 0 COUNT 1");
        client.say("MULTI");
        client.say(&format!("EXPIRE large {}", 2000 + n));
        assert_eq!(client.say("EXEC"), r"*1\r\n:1\r\n", "{n}");
        let used = used(&mut client);
        assert!(used <= MOST + 150_000, "{used}");
    }
    // Snapshots that do not end by themselves.
    let mut replies = Vec::new();
    for n in 0..20 {
        client.say("ORDNA.SNAPSHOT CREATE");
        replies.push(client.say(&format!("EXPIRE large {}", 3000 + n)));
        client.say("MULTI");
        client.say(&format!("EXPIRE large {}", 4000 + n));
        replies.push(client.say("EXEC"));
    }
    let refused = "-OOM command not allowed when used memory > 'maxmemory'.";
    assert_eq!(replies[38..], [format!(r"{refused}\r\n"), format!(r"*1\r\n{refused}\r\n")]);
    assert_eq!(client.say("EXPIRE a 100"), r":1\r\n", "nothing large is copied");
    assert!(used(&mut client) <= MOST + 150_000);
    assert_eq!(client.say("EXPIRE large 0"), r":1\r\n");
}

/// Deadlines of many small values, or of the records of large collections, copy few bytes as well.
#[test]
fn at_the_memory_limit_deadlines_copy_a_bounded_number_of_bytes() {
    const MOST: usize = 2_000_000;
    const EXCESS: usize = 256 << 10;
    let item = "x".repeat(100);
    let items = vec![item.as_bytes(); 45];
    for words in [vec![&b"SET"[..], b"", &[b'v'; 1000]], [&[b"RPUSH", &b""[..]], &*items].concat()]
    {
        let server = start(Config { max_memory: Some(MOST), ..Config::default() });
        let mut client = Client::new(server.address);
        let key = |n: u32| format!("{n:06}");
        let full = (0..).find(|n| {
            let (key, mut words) = (key(*n), words.clone());
            words[1] = key.as_bytes();
            client.ask(&words).starts_with("-OOM")
        });
        let full = full.unwrap();
        // Many snapshots of values, and one of each list.
        let mut refused = 0;
        for round in 1..40 {
            client.say("ORDNA.SNAPSHOT CREATE");
            for n in 0..full.min(100) {
                let reply = client.say(&format!("EXPIRE {} {}", key(n), 1000 + round));
                assert!(reply == r":1\r\n" || reply.starts_with("-OOM"), "{reply}");
                refused += usize::from(reply.starts_with("-OOM"));
            }
        }
        let used = used(&mut client);
        // The last number is for the entries of deadlines.
        assert!(used <= MOST + EXCESS + 20_000, "{used}, {refused} refused");
        assert!(refused > 1000, "{refused}");
        assert_eq!(client.say(&format!("EXPIRE {} -1", key(0))), r":1\r\n");
        for id in 1..40 {
            client.say(&format!("ORDNA.SNAPSHOT DROP {id}"));
        }
        assert_eq!(client.say(&format!("EXPIRE {} 100", key(1))), r":1\r\n", "nothing is copied");
    }
}

/// A transaction beyond the limit is refused as a whole, when it is queued or when it is executed.
#[test]
fn beyond_the_memory_limit_no_half_of_a_transaction_is_executed() {
    let server = start(Config { max_memory: Some(100_000), ..Config::default() });
    let (mut client, mut other) = (Client::new(server.address), Client::new(server.address));
    let value = vec![b'v'; 1000];
    let fill = |client: &mut Client| {
        let full = |n: &u32| client.ask(&[b"SET", &n.to_be_bytes(), &value]) != r"+OK\r\n";
        (0..).find(full).unwrap();
        while client.say("APPEND pad x").starts_with(':') {}
    };
    let reason = "OOM command not allowed when used memory > 'maxmemory'.";
    client.say("MSET small 1 pad 1");
    fill(&mut other);
    converse(
        &mut client,
        &[
            ("MULTI", r"+OK\r\n"),
            ("EXPIRE small 100", r"+QUEUED\r\n"),
            ("SET more 1", &format!(r"-{reason}\r\n")),
            ("SET small 2", &format!(r"-{reason}\r\n")),
            ("EXEC", r"-EXECABORT Transaction discarded because of previous errors.\r\n"),
            ("TTL small", r":-1\r\n"),
            ("MULTI", r"+OK\r\n"),
            ("EXPIRE small 100", r"+QUEUED\r\n"),
            ("EXEC", r"*1\r\n:1\r\n"),
            ("FLUSHALL", r"+OK\r\n"),
            ("MULTI", r"+OK\r\n"),
            ("SET small 3", r"+QUEUED\r\n"),
        ],
    );
    // There is room for each command, but not for both.
    let half = vec![b'v'; 60_000];
    assert_eq!(client.ask(&[b"SET", b"one", &half]), r"+QUEUED\r\n");
    assert_eq!(client.ask(&[b"SET", b"two", &half]), format!(r"-{reason}\r\n"));
    converse(
        &mut client,
        &[
            ("DISCARD", r"+OK\r\n"),
            ("MULTI", r"+OK\r\n"),
            ("DEL 1", r"+QUEUED\r\n"),
            ("SET small 3", r"+QUEUED\r\n"),
            ("INCR small", r"+QUEUED\r\n"),
        ],
    );
    // The commands were queued while there was room.
    fill(&mut other);
    let aborted = format!(r"-EXECABORT Transaction discarded because of: {reason}\r\n");
    converse(&mut client, &[("EXEC", &aborted), ("EXISTS small", r":0\r\n")]);
    // A snapshot keeps the value before the APPEND.
    other.say("FLUSHALL");
    assert_eq!(client.ask(&[b"SET", b"one", &half]), r"+OK\r\n");
    converse(
        &mut client,
        &[
            ("ORDNA.SNAPSHOT CREATE", r":1\r\n"),
            ("MULTI", r"+OK\r\n"),
            ("SET a 1", r"+QUEUED\r\n"),
            ("APPEND one x", r"+QUEUED\r\n"),
            ("SET b 1", r"+QUEUED\r\n"),
            ("EXEC", &aborted),
            ("EXISTS a b", r":0\r\n"),
            ("ORDNA.SNAPSHOT DROP 1", r":1\r\n"),
            ("MULTI", r"+OK\r\n"),
            ("SET a 1", r"+QUEUED\r\n"),
            ("APPEND one x", r"+QUEUED\r\n"),
            ("EXEC", r"*2\r\n+OK\r\n:60001\r\n"),
        ],
    );
}

/// Commands of a transaction that need more memory than they declare do not exceed the limit
/// together.
#[test]
fn scripts_and_copies_of_a_transaction_stay_within_the_memory_limit() {
    const LIMIT: usize = 8_000_000;
    const SIZE: usize = 1_000_000;
    let server = start(Config { max_memory: Some(LIMIT), ..Config::default() });
    let mut client = Client::new(server.address);
    let mut members: Vec<String> =
        (0..20_000).map(|number| format!("member:{number:06}")).collect();
    members.splice(0..0, ["SADD".to_owned(), "set".to_owned()]);
    let members: Vec<&[u8]> = members.iter().map(String::as_bytes).collect();
    client.ask(&members);
    client.ask(&[b"RPUSH", b"list", &vec![b'x'; SIZE]]);
    let script =
        "for i = 1, 100 do redis.call('SET', 'of script:' .. i, string.rep('x', 1000000)) end";
    for (copies, line) in [
        (1, vec![b"EVAL".as_slice(), script.as_bytes(), b"0"]),
        (30, vec![b"SUNIONSTORE", b"copy:", b"set", b"none"]),
        (30, vec![b"COPY", b"set", b"copy:"]),
        (
            10,
            vec![
                b"SORT", b"list", b"BY", b"nosort", b"GET", b"#", b"GET", b"#", b"STORE", b"copy:",
            ],
        ),
    ] {
        assert_eq!(client.say("MULTI"), r"+OK\r\n");
        for at in 0..copies {
            let key = format!("copy:{at}");
            let line: Vec<&[u8]> = line
                .iter()
                .map(|part| if *part == b"copy:" { key.as_bytes() } else { part })
                .collect();
            client.ask(&line);
        }
        let reply = client.say("EXEC");
        assert!(reply.contains("OOM"), "{line:?}: {reply:.300}");
        let used = used(&mut client);
        assert!(used < LIMIT + 3 * SIZE, "{used} bytes after {copies} times {line:?}");
        client.say("ORDNA.DELRANGE copy: copy;");
        client.say("ORDNA.DELRANGE of of;");
    }
}

/// What snapshots keep of flushed keyspaces counts against the limit until the snapshots end.
#[test]
fn flushing_does_not_lead_past_the_memory_limit() {
    let server = start(Config { max_memory: Some(1_000_000), ..Config::default() });
    let mut client = Client::new(server.address);
    let value = vec![b'v'; 1000];
    let fill = |client: &mut Client| {
        let full = |n: &u32| client.ask(&[b"SET", &n.to_be_bytes(), &value]) != r"+OK\r\n";
        (0..).find(full).unwrap()
    };
    let most = fill(&mut client);
    // The memory is freed at once if no snapshot keeps it.
    client.say("FLUSHALL");
    assert_eq!(fill(&mut client), most);
    converse(&mut client, &[("ORDNA.SNAPSHOT CREATE", r":1\r\n"), ("FLUSHALL", r"+OK\r\n")]);
    assert_eq!(fill(&mut client), 0);
    let info = client.say("INFO");
    let count = |name: &str| {
        let (_, rest) = info.split_once(&format!("{name}:")).unwrap();
        rest.split_once('\\').unwrap().0.parse::<usize>().unwrap()
    };
    assert!((990_000..=1_000_000).contains(&count("used_memory")), "{info}");
    assert_eq!((count("snapshots_alive"), count("versions")), (1, most as usize), "{info}");
    converse(&mut client, &[("DBSIZE", r":0\r\n"), ("ORDNA.SNAPSHOT DROP 1", r":1\r\n")]);
    assert_eq!(fill(&mut client), most);
    assert!(client.say("INFO").contains("snapshots_alive:0"));
}

/// After a write of one byte, a snapshot keeps the old long value.
#[test]
fn old_values_that_a_transaction_keeps_stay_within_the_memory_limit() {
    const LIMIT: usize = 8_000_000;
    const SIZE: usize = 1_000_000;
    let server = start(Config { max_memory: Some(LIMIT), ..Config::default() });
    let mut client = Client::new(server.address);
    client.ask(&[b"SET", b"long", &vec![b'x'; SIZE]]);
    assert_eq!(client.say("MULTI"), r"+OK\r\n");
    for _ in 0..30 {
        client.say("ORDNA.SNAPSHOT CREATE");
        client.say("SETRANGE long 0 y");
    }
    let reply = client.say("EXEC");
    assert!(reply.contains("OOM"), "{reply:.300}");
    let used = used(&mut client);
    assert!(used < LIMIT + 2 * SIZE, "{used} bytes");
}

/// A write that the limit refuses changes nothing, so the counts of a sorted set for ranks stay
/// valid.
#[test]
fn a_refused_write_does_not_make_ranks_slow() {
    let (_server, mut client) = fresh();
    let fill = b"for at = 1, 20000 do redis.call('ZADD', 'z', at, 'member' .. at) end return 1";
    assert_eq!(client.ask(&[b"EVAL", fill, b"0"]), r":1\r\n");
    let rank = |client: &mut Client| {
        let begin = Instant::now();
        assert_eq!(client.say("ZRANK z member10000"), r":9999\r\n");
        begin.elapsed()
    };
    // The first query counts all members.
    let counted = rank(&mut client);
    assert_eq!(client.say("CONFIG SET maxmemory 1"), r"+OK\r\n");
    let mut took = Duration::ZERO;
    for _ in 0..40 {
        assert!(client.say("ZADD z 5 another").starts_with("-OOM"));
        took += rank(&mut client);
    }
    assert!(
        took < 20 * counted,
        "40 ranks after refused writes took {took:?}, the first {counted:?}"
    );
}
