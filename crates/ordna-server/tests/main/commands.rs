//! Every command, by what goes over the wire; and what goes wrong.

use std::io::Write;
use std::time::{Duration, Instant};

use crate::common::{Client, converse, fresh, is_ttl, request, show, start};
use ordna_server::Config;

#[test]
fn strings() {
    let (_server, mut client) = fresh();
    converse(
        &mut client,
        &[
            ("GET a", r"$-1\r\n"),
            ("SET a 1", r"+OK\r\n"),
            ("get a", r"$1\r\n1\r\n"),
            ("SET a 2 NX", r"$-1\r\n"),
            ("SET a 2 XX GET", r"$1\r\n1\r\n"),
            ("SET b 2 XX", r"$-1\r\n"),
            ("SET b x NX GET", r"$-1\r\n"),
            ("SET b x NX XX", r"-ERR syntax error\r\n"),
            ("SETNX b y", r":0\r\n"),
            ("GETSET b y", r"$1\r\nx\r\n"),
            ("GETDEL b", r"$1\r\ny\r\n"),
            ("GETDEL b", r"$-1\r\n"),
            ("MSET a 1 c 3", r"+OK\r\n"),
            ("MSET a 1 c", r"-ERR wrong number of arguments for 'mset' command\r\n"),
            ("MGET a b c", r"*3\r\n$1\r\n1\r\n$-1\r\n$1\r\n3\r\n"),
            ("MSETNX d 4 a 9", r":0\r\n"),
            ("EXISTS d a a", r":2\r\n"),
            ("MSETNX d 4 e 5", r":1\r\n"),
            ("STRLEN nothing", r":0\r\n"),
            ("APPEND f ab", r":2\r\n"),
            ("APPEND f cd", r":4\r\n"),
            ("STRLEN f", r":4\r\n"),
            ("INCR a", r":2\r\n"),
            ("DECRBY a 12", r":-10\r\n"),
            ("INCRBY a x", r"-ERR value is not an integer or out of range\r\n"),
            ("INCR f", r"-ERR value is not an integer or out of range\r\n"),
            ("SET n 9223372036854775807", r"+OK\r\n"),
            ("INCR n", r"-ERR increment or decrement would overflow\r\n"),
            ("DECRBY n -9223372036854775808", r"-ERR decrement would overflow\r\n"),
            ("GET n", r"$19\r\n9223372036854775807\r\n"),
            ("TYPE n", r"+string\r\n"),
            ("TYPE nothing", r"+none\r\n"),
            ("DEL n f nothing", r":2\r\n"),
            ("UNLINK a c d e", r":4\r\n"),
            ("DBSIZE", r":0\r\n"),
        ],
    );
}

#[test]
fn the_order_of_the_keys() {
    let (_server, mut client) = fresh();
    converse(
        &mut client,
        &[
            ("ORDNA.FIRST", r"*-1\r\n"),
            ("MSET b 2 a 1 bb 22 c 3", r"+OK\r\n"),
            ("ORDNA.FIRST", r"*2\r\n$1\r\na\r\n$1\r\n1\r\n"),
            ("ORDNA.LAST", r"*2\r\n$1\r\nc\r\n$1\r\n3\r\n"),
            ("ORDNA.FLOOR bz", r"*2\r\n$2\r\nbb\r\n$2\r\n22\r\n"),
            ("ORDNA.FLOOR A", r"*-1\r\n"),
            ("ORDNA.CEIL b", r"*2\r\n$1\r\nb\r\n$1\r\n2\r\n"),
            ("ORDNA.RANGE - + KEYS", r"*4\r\n$1\r\na\r\n$1\r\nb\r\n$2\r\nbb\r\n$1\r\nc\r\n"),
            ("ORDNA.RANGE [b (c", r"*4\r\n$1\r\nb\r\n$1\r\n2\r\n$2\r\nbb\r\n$2\r\n22\r\n"),
            ("ORDNA.RANGE - + REV LIMIT 2 KEYS", r"*2\r\n$1\r\nc\r\n$2\r\nbb\r\n"),
            (
                "ORDNA.RANGE + - KEYS",
                r"-ERR the start of the range lies behind its end; say REV to read downwards\r\n",
            ),
            ("ORDNA.RANGE + - REV LIMIT 1 2 KEYS", r"*2\r\n$2\r\nbb\r\n$1\r\nb\r\n"),
            ("ORDNA.RANGE [c (a REV KEYS", r"*3\r\n$1\r\nc\r\n$2\r\nbb\r\n$1\r\nb\r\n"),
            ("ORDNA.RANGE [c [c WITHVALUES", r"*2\r\n$1\r\nc\r\n$1\r\n3\r\n"),
            ("ORDNA.RANGE - - KEYS", r"*0\r\n"),
            (
                "ORDNA.COUNT [b [a",
                r"-ERR the start of the range lies behind its end; say REV to read downwards\r\n",
            ),
            (
                "ORDNA.RANGE - + KEYS WITHVALUES",
                r"-ERR KEYS and WITHVALUES at the same time are not compatible\r\n",
            ),
            ("ORDNA.SCAN - + COUNT 2 KEYS", r"*2\r\n$3\r\nk62\r\n*2\r\n$1\r\na\r\n$1\r\nb\r\n"),
            (
                "ORDNA.SCAN - + CURSOR k62 COUNT 5 KEYS",
                r"*2\r\n$1\r\n0\r\n*2\r\n$2\r\nbb\r\n$1\r\nc\r\n",
            ),
            ("ORDNA.SCAN - + CURSOR k62 REV KEYS", r"*2\r\n$1\r\n0\r\n*1\r\n$1\r\na\r\n"),
            ("ORDNA.SCAN [b + CURSOR k61 COUNT 1 KEYS", r"*2\r\n$3\r\nk62\r\n*1\r\n$1\r\nb\r\n"),
            ("ORDNA.SCAN - + CURSOR x", r"-ERR invalid cursor\r\n"),
            ("ORDNA.RANGE - + LIMIT 0", r"*0\r\n"),
            ("ORDNA.RANGE b c", r"-ERR min or max not valid string range item\r\n"),
            ("ORDNA.RANGE - + LIMIT", r"-ERR syntax error\r\n"),
            ("ORDNA.PREFIX b KEYS", r"*2\r\n$1\r\nb\r\n$2\r\nbb\r\n"),
            ("ORDNA.PREFIX b REV LIMIT 1", r"*2\r\n$2\r\nbb\r\n$2\r\n22\r\n"),
            ("ORDNA.COUNT (a +", r":3\r\n"),
            ("ORDNA.RANK bb", r":2\r\n"),
            ("ORDNA.AT 1", r"*2\r\n$1\r\nb\r\n$1\r\n2\r\n"),
            ("ORDNA.AT -1", r"*2\r\n$1\r\nc\r\n$1\r\n3\r\n"),
            ("ORDNA.AT -5", r"*-1\r\n"),
            ("ORDNA.AT x", r"-ERR value is not an integer or out of range\r\n"),
            ("KEYS b*", r"*2\r\n$1\r\nb\r\n$2\r\nbb\r\n"),
            ("KEYS [ac]", r"*2\r\n$1\r\na\r\n$1\r\nc\r\n"),
            ("ORDNA.DELRANGE [b [bb", r":2\r\n"),
            ("ORDNA.COUNT - +", r":2\r\n"),
            ("FLUSHALL", r"+OK\r\n"),
            ("DBSIZE", r":0\r\n"),
        ],
    );
}

#[test]
fn keys_expire() {
    let (_server, mut client) = fresh();
    converse(
        &mut client,
        &[
            ("SET a 1 EX 100", r"+OK\r\n"),
            ("TTL a", r":100\r\n"),
            ("APPEND a 2", r":2\r\n"),
            ("INCR a", r":13\r\n"),
            ("TTL a", r":100\r\n"),
            ("SET a 2 KEEPTTL", r"+OK\r\n"),
            ("TTL a", r":100\r\n"),
            ("PERSIST a", r":1\r\n"),
            ("PERSIST a", r":0\r\n"),
            ("TTL a", r":-1\r\n"),
            ("EXPIRE a 10 GT", r":0\r\n"),
            ("EXPIRE a 10 LT", r":1\r\n"),
            ("GETEX a PERSIST", r"$1\r\n2\r\n"),
            ("GETEX a EX 0", r"-ERR invalid expire time in 'getex' command\r\n"),
            ("GETEX a EX x", r"-ERR value is not an integer or out of range\r\n"),
            ("GETEX nothing EX 0", r"$-1\r\n"),
            ("GETEX nothing EX x", r"$-1\r\n"),
            ("GETEX nothing EX", r"-ERR syntax error\r\n"),
            ("PTTL a", r":-1\r\n"),
            ("PEXPIREAT a 99999999999999", r":1\r\n"),
            ("PEXPIRETIME a", r":99999999999999\r\n"),
            ("COPY a copy", r":1\r\n"),
            ("PEXPIRETIME copy", r":99999999999999\r\n"),
            ("DEL copy", r":1\r\n"),
            ("SET a 3", r"+OK\r\n"),
            ("PEXPIRETIME a", r":-1\r\n"),
            ("EXPIRE a -1", r":1\r\n"),
            ("GET a", r"$-1\r\n"),
            ("TTL a", r":-2\r\n"),
            ("PSETEX soon 30 x", r"+OK\r\n"),
            ("SET stays y", r"+OK\r\n"),
        ],
    );
    let patience = Instant::now() + Duration::from_secs(10);
    while client.say("EXISTS soon") != r":0\r\n" {
        assert!(Instant::now() < patience, "the key never expires");
    }
    converse(&mut client, &[("KEYS *", r"*1\r\n$5\r\nstays\r\n"), ("SETNX soon z", r":1\r\n")]);
}

#[test]
fn a_transaction_is_one_step_or_nothing() {
    let (server, mut client) = fresh();
    let mut other = Client::new(server.address);
    converse(
        &mut client,
        &[
            ("EXEC", r"-ERR EXEC without MULTI\r\n"),
            ("DISCARD", r"-ERR DISCARD without MULTI\r\n"),
            ("MULTI", r"+OK\r\n"),
            ("MULTI", r"-ERR MULTI calls can not be nested\r\n"),
            ("WATCH a", r"-ERR WATCH inside MULTI is not allowed\r\n"),
            ("MSET a 1 b 2", r"+QUEUED\r\n"),
            ("INCR b", r"+QUEUED\r\n"),
            ("INCR nope nope", r"-ERR wrong number of arguments for 'incr' command\r\n"),
            ("EXEC", r"-EXECABORT Transaction discarded because of previous errors.\r\n"),
            ("EXISTS a", r":0\r\n"),
            ("MULTI", r"+OK\r\n"),
            ("MSET a 1 b 2", r"+QUEUED\r\n"),
            ("INCR b", r"+QUEUED\r\n"),
            ("APPEND a x", r"+QUEUED\r\n"),
            ("INCR a", r"+QUEUED\r\n"),
            ("ORDNA.RANGE - +", r"+QUEUED\r\n"),
            ("FLUSHALL", r"+QUEUED\r\n"),
            ("DBSIZE", r"+QUEUED\r\n"),
        ],
    );
    assert_eq!(other.say("EXISTS a b"), r":0\r\n");
    converse(
        &mut client,
        &[
            (
                "EXEC",
                r"*7\r\n+OK\r\n:3\r\n:2\r\n-ERR value is not an integer or out of range\r\n*4\r\n$1\r\na\r\n$2\r\n1x\r\n$1\r\nb\r\n$1\r\n3\r\n+OK\r\n:0\r\n",
            ),
            ("SET w 1", r"+OK\r\n"),
            ("WATCH w absent", r"+OK\r\n"),
            ("MULTI", r"+OK\r\n"),
            ("SET done yes", r"+QUEUED\r\n"),
        ],
    );
    // The same value again is a change too.
    other.say("SET w 1");
    converse(
        &mut client,
        &[
            ("EXEC", r"*-1\r\n"),
            ("WATCH w absent", r"+OK\r\n"),
            ("MULTI", r"+OK\r\n"),
            ("SET done yes", r"+QUEUED\r\n"),
        ],
    );
    other.say("SET absent 1");
    converse(
        &mut client,
        &[
            ("EXEC", r"*-1\r\n"),
            ("EXISTS done", r":0\r\n"),
            ("WATCH w", r"+OK\r\n"),
            ("GET w", r"$1\r\n1\r\n"),
            ("MULTI", r"+OK\r\n"),
            ("SET done yes", r"+QUEUED\r\n"),
            ("EXEC", r"*1\r\n+OK\r\n"),
            ("WATCH w", r"+OK\r\n"),
        ],
    );
    other.say("FLUSHALL");
    other.say("SET w 1");
    converse(&mut client, &[("MULTI", r"+OK\r\n"), ("PING", r"+QUEUED\r\n"), ("EXEC", r"*-1\r\n")]);
    converse(
        &mut client,
        &[
            ("WATCH w", r"+OK\r\n"),
            ("SET w 2", r"+OK\r\n"),
            ("UNWATCH", r"+OK\r\n"),
            ("MULTI", r"+OK\r\n"),
            ("RESET", r"+RESET\r\n"),
            ("EXEC", r"-ERR EXEC without MULTI\r\n"),
        ],
    );
}

/// A watched key that was absent, came and went has changed; one that was only looked at has not.
#[test]
fn a_watched_key_that_came_and_went_has_changed() {
    let (server, mut client) = fresh();
    let mut other = Client::new(server.address);
    let mut outcome = |between: &[&str]| {
        converse(&mut client, &[("WATCH w", r"+OK\r\n"), ("MULTI", r"+OK\r\n")]);
        client.say("PING");
        between.iter().for_each(|command| drop(other.say(command)));
        client.say("EXEC")
    };
    let (done, refused) = (r"*1\r\n+PONG\r\n", r"*-1\r\n");
    for created in ["SET w 1", "INCR w", "APPEND w x", "MSET a 1 w 2", "SETEX w 9 1", "SETNX w 1"] {
        assert_eq!(outcome(&[created, "DEL w"]), refused, "{created}");
    }
    assert_eq!(outcome(&["MULTI", "SET w 1", "DEL w", "EXEC"]), refused);
    for harmless in ["DEL w", "EXPIRE w 9", "GETEX w", "GETDEL w", "MSET a w b w", "FLUSHALL"] {
        assert_eq!(outcome(&[harmless]), done, "{harmless}");
    }
    for failed in ["SET w 1 BAD", "INCRBY w x", "SETEX w 0 1", "MSET a 1 w"] {
        assert_eq!(outcome(&[failed]), done, "{failed}");
    }
    for unwritten in ["SET w 1 XX", "SET w 1 XX GET", "MSETNX here 1 w 2"] {
        assert_eq!(outcome(&["SET here 1", unwritten]), done, "{unwritten}");
    }
    for written in ["GETSET w 1", "SET w 1 NX", "MSETNX new 1 w 2", "DECRBY w 3", "PSETEX w 9 1"] {
        assert_eq!(outcome(&[written, "DEL w new"]), refused, "{written}");
    }
    // One that is there and is not written.
    assert_eq!(outcome(&["SET w 1"]), refused);
    for unwritten in ["SET w 2 NX", "MSETNX new 1 w 2", "SETNX w 2", "EXPIRE w 9 XX", "INCR here x"]
    {
        assert_eq!(outcome(&[unwritten]), done, "{unwritten}");
    }
    assert_eq!(outcome(&["SET w 2 XX"]), refused);
}

/// All replies of a transaction together are bounded as each of them is.
#[test]
fn a_transaction_cannot_gather_large_replies_without_end() {
    let server = start(Config { max_reply: 1_000_000, ..Config::default() });
    let mut client = Client::new(server.address);
    assert_eq!(client.ask(&[b"SET", b"k", &[b'v'; 300_000]]), r"+OK\r\n");
    client.say("MULTI");
    for _ in 0..3 {
        client.say("GET k");
    }
    client.say("GETDEL k");
    client.say("EXISTS k");
    let replies = client.say("EXEC");
    assert!(replies.starts_with(r"*5\r\n$300000\r\nvvv"));
    let error = r"-ERR the replies of the transaction would exceed 1000000 bytes; this command was executed\r\n";
    let end = &replies[replies.len() - error.len() - 6..];
    assert_eq!(end, format!(r"{error}:0\r\n"));
    assert_eq!(client.say("PING"), r"+PONG\r\n");
}

/// Two clients move an amount between two keys; nobody ever sees it in neither or in both.
#[test]
fn nobody_sees_half_a_transaction() {
    let (server, mut client) = fresh();
    client.say("MSET left 100 right 0");
    std::thread::scope(|scope| {
        let movers = ["left right", "right left"].map(|pair| {
            let address = server.address;
            scope.spawn(move || {
                let (from, to) = pair.split_once(' ').unwrap();
                let mut client = Client::new(address);
                for _ in 0..500 {
                    client.say("MULTI");
                    client.say(&format!("DECR {from}"));
                    client.say(&format!("INCR {to}"));
                    client.say("EXEC");
                }
            })
        });
        while !movers.iter().all(|mover| mover.is_finished()) {
            for look in ["MGET left right", "ORDNA.RANGE - +"] {
                let reply = client.say(look);
                let sum: i64 =
                    reply.split(r"\r\n").filter_map(|part| part.parse::<i64>().ok()).sum();
                assert_eq!(sum, 100, "{reply}");
            }
        }
    });
}

#[test]
fn a_snapshot_stays_as_it_was() {
    let (_server, mut client) = fresh();
    converse(
        &mut client,
        &[
            ("MSET a 1 b 2 c 3", r"+OK\r\n"),
            ("ORDNA.SNAPSHOT CREATE", r":1\r\n"),
            ("SET a 9", r"+OK\r\n"),
            ("DEL b", r":1\r\n"),
            ("SET d 4", r"+OK\r\n"),
            ("ORDNA.SNAPSHOT GET 1 a", r"$1\r\n1\r\n"),
            ("ORDNA.SNAPSHOT GET 1 d", r"$-1\r\n"),
            ("ORDNA.SNAPSHOT RANGE 1 - + KEYS", r"*3\r\n$1\r\na\r\n$1\r\nb\r\n$1\r\nc\r\n"),
            ("ORDNA.SNAPSHOT RANGE 1 (a + REV LIMIT 1", r"*2\r\n$1\r\nc\r\n$1\r\n3\r\n"),
            ("FLUSHALL", r"+OK\r\n"),
            ("ORDNA.SNAPSHOT GET 1 b", r"$1\r\n2\r\n"),
            ("ORDNA.SNAPSHOT DROP 1", r":1\r\n"),
            ("ORDNA.SNAPSHOT DROP 1", r":0\r\n"),
            (
                "ORDNA.SNAPSHOT GET 1 b",
                r"-ERR there is no snapshot 1: it was dropped, or its time is over\r\n",
            ),
            ("ORDNA.SNAPSHOT GET x b", r"-ERR value is not an integer or out of range\r\n"),
            ("ORDNA.SNAPSHOT CREATE EX", r"-ERR syntax error\r\n"),
            ("ORDNA.SNAPSHOT LIST", r"*0\r\n"),
            ("ORDNA.SNAPSHOT CREATE EX 3600", r":2\r\n"),
        ],
    );
    assert!(client.say("ORDNA.SNAPSHOT HELP").starts_with(r"*9\r\n+ORDNA.SNAPSHOT <subcommand>"));
    assert!(client.say("ORDNA.SNAPSHOT LIST").starts_with(r"*1\r\n*8\r\n$2\r\nid\r\n:2\r\n"));
    assert_eq!(client.say("ORDNA.SNAPSHOT DROP 2"), r":1\r\n");
    assert_eq!(client.say("ORDNA.SNAPSHOT CREATE EX 1"), r":3\r\n");
    let patience = Instant::now() + Duration::from_secs(20);
    while client.say("ORDNA.SNAPSHOT LIST") != r"*0\r\n" {
        assert!(Instant::now() < patience, "the snapshot never ends");
        std::thread::yield_now();
    }
}

#[test]
fn a_scan_reads_one_state_as_long_as_its_lease_lasts() {
    let server = start(Config { scan_lease: Duration::from_secs(3600), ..Config::default() });
    let brief = start(Config { scan_lease: Duration::from_millis(1), ..Config::default() });
    let cursor_of = |reply: &str| reply.split(r"\r\n").nth(2).unwrap().to_owned();
    for (server, lasts) in [(&server, true), (&brief, false)] {
        let mut client = Client::new(server.address);
        client.say("MSET a 1 b 2 c 3 d 4");
        let cursor = cursor_of(&client.say("SCAN 0 COUNT 2"));
        client.say("DEL c");
        client.say("SET cc 5");
        let patience = Instant::now() + Duration::from_secs(20);
        while !lasts && !client.say("INFO snapshots").contains("scan_leases_ended:1") {
            assert!(Instant::now() < patience, "the lease never ends");
        }
        let (stable, keys) = if lasts {
            (client.say(&format!("SCAN {cursor} COUNT 10 STABLE")), ["c", "d"])
        } else {
            let stable = client.say(&format!("SCAN {cursor} COUNT 10 STABLE"));
            assert!(stable.contains("is gone"), "{stable}");
            (client.say(&format!("SCAN {cursor} COUNT 10")), ["cc", "d"])
        };
        let expected: String =
            keys.iter().map(|key| format!(r"${}\r\n{key}\r\n", key.len())).collect();
        assert_eq!(stable, format!(r"*2\r\n$1\r\n0\r\n*2\r\n{expected}"));
    }
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
    // Nothing of a batch that does not fit as a whole.
    let batch = client.ask(&[b"MSET", b"x", b"1", b"y", &value]);
    assert_eq!(batch, refused);
    assert_eq!(client.say("EXISTS x y"), r":0\r\n");
    // Nor what needs no more than there was.
    assert_eq!(client.ask(&[b"SET", b"0002", &value]), r"+OK\r\n");
    assert_eq!(client.say("DEL 0000 0001"), r":2\r\n");
    assert_eq!(client.ask(&[b"SET", b"0000", &value]), r"+OK\r\n");
}

/// As in Redis: whoever finds the memory full may have it emptied by expiry.
#[test]
fn beyond_the_memory_limit_expiries_are_set_and_lifted() {
    let server = start(Config { max_memory: Some(100_000), ..Config::default() });
    let mut client = Client::new(server.address);
    let value = vec![b'v'; 1000];
    let fill = |client: &mut Client| {
        let full = (0..).find(|n: &u32| {
            client.ask(&[b"SET", format!("{n:04}").as_bytes(), &value]) != r"+OK\r\n"
        });
        // And the last few bytes.
        while client.say("APPEND 0000 x").starts_with(':') {}
        full.unwrap()
    };
    let full = fill(&mut client);
    // A snapshot keeps the versions without an expiry.
    for snapshot in ["PING", "ORDNA.SNAPSHOT CREATE"] {
        client.say(snapshot);
        for n in 0..full {
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
    // What is beyond the limit is made up for before more is written.
    client.say("ORDNA.SNAPSHOT DROP 1");
    assert_eq!(client.say("EXPIRE 0001 0"), r":1\r\n");
    fill(&mut client);
    let info = client.say("INFO memory");
    let used = info.split_once("used_memory:").unwrap().1.split_once('\\').unwrap().0;
    let used: usize = used.parse().unwrap();
    assert!(used <= 100_000, "{used}");
}

/// The limit refuses a transaction as a whole, when it is queued or when it is to be executed.
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
    // There is room for each, but not for both.
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
    // It was queued while there was room.
    fill(&mut other);
    let aborted = format!(r"-EXECABORT Transaction discarded because of: {reason}\r\n");
    converse(&mut client, &[("EXEC", &aborted), ("EXISTS small", r":0\r\n")]);
    // What is begun is brought to its end: a snapshot keeps the value that is appended to.
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
            ("EXEC", r"*3\r\n+OK\r\n:60001\r\n+OK\r\n"),
            ("SET c 1", &format!(r"-{reason}\r\n")),
            ("ORDNA.SNAPSHOT DROP 1", r":1\r\n"),
            ("SET c 1", r"+OK\r\n"),
        ],
    );
}

/// What snapshots keep of flushed keyspaces counts against the limit until they end.
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
    // Freed at once if nobody keeps it.
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

#[test]
fn keys_and_values_are_any_bytes() {
    let (_server, mut client) = fresh();
    let every: Vec<u8> = (0..=255).collect();
    for (key, value) in [(every.as_slice(), b"".as_slice()), (b"", &every), (b"\0\r\n", b"\r\n$5")]
    {
        assert_eq!(client.ask(&[b"SET", key, value]), r"+OK\r\n");
        let expected = [format!("${}\r\n", value.len()).as_bytes(), value, b"\r\n"].concat();
        assert_eq!(client.ask(&[b"GET", key]), show(&expected));
    }
    let long = vec![b'k'; 65_536];
    let refused = r"-ERR the key has 65536 bytes; at most 65535 are allowed\r\n";
    assert_eq!(client.ask(&[b"SET", &long, b"v"]), refused);
    assert_eq!(client.ask(&[b"MSET", b"other", b"v", &long, b"v"]), refused);
    assert_eq!(client.say("EXISTS other"), r":0\r\n");
    assert_eq!(client.ask(&[b"GET", &long]), r"$-1\r\n");
    assert_eq!(client.ask(&[b"SET", &long[1..], b"v"]), r"+OK\r\n");
}

#[test]
fn a_scan_returns_what_stays_while_keys_come_and_go() {
    let (_server, mut client) = fresh();
    for n in 0..500 {
        client.say(&format!("SET stay:{n:03} v"));
    }
    let mut cursor = "0".to_owned();
    let mut seen = Vec::new();
    let mut turn = 0;
    loop {
        let reply = client.say(&format!("SCAN {cursor} COUNT 7 MATCH *:*"));
        let parts: Vec<&str> = reply.split(r"\r\n").collect();
        cursor = parts[2].to_owned();
        seen.extend(parts.iter().filter(|part| part.starts_with("stay:")).map(|s| (*s).to_owned()));
        if cursor == "0" {
            break;
        }
        // Before and behind the cursor; and the key that the cursor stands on may go.
        client.say(&format!("SET a:{turn} v"));
        client.say(&format!("SET z:{turn} v"));
        client.say(&format!("DEL a:{}", turn - 1));
        turn += 1;
    }
    let expected: Vec<String> = (0..500).map(|n| format!("stay:{n:03}")).collect();
    assert_eq!(seen, expected);
    converse(
        &mut client,
        &[
            ("SCAN x", r"-ERR invalid cursor\r\n"),
            ("SCAN 0 COUNT 0", r"-ERR syntax error\r\n"),
            ("SCAN 0 COUNT", r"-ERR syntax error\r\n"),
            ("SCAN 0 TYPE list COUNT 1000", r"*2\r\n$1\r\n0\r\n*0\r\n"),
        ],
    );
    assert!(client.say("SCAN 999999").starts_with("-ERR this cursor is no longer known"));
}

#[test]
fn the_connection_and_its_protocol() {
    let (_server, mut client) = fresh();
    converse(
        &mut client,
        &[
            ("PING", r"+PONG\r\n"),
            ("PING hi", r"$2\r\nhi\r\n"),
            ("PING a b", r"-ERR wrong number of arguments for 'ping' command\r\n"),
            ("ECHO hi", r"$2\r\nhi\r\n"),
            ("SELECT 0", r"+OK\r\n"),
            ("SELECT 1", r"-ERR DB index is out of range\r\n"),
            ("CLIENT ID", r":1\r\n"),
            ("CLIENT GETNAME", r"$-1\r\n"),
            ("CLIENT SETNAME me", r"+OK\r\n"),
            ("CLIENT GETNAME", r"$2\r\nme\r\n"),
            ("CLIENT NONE", r"-ERR unknown subcommand 'NONE'. Try CLIENT HELP.\r\n"),
            ("CLIENT SETNAME", r"-ERR wrong number of arguments for 'client|setname' command\r\n"),
            ("CONFIG GET save", r"*2\r\n$4\r\nsave\r\n$0\r\n\r\n"),
            (
                "CONFIG SET port 1",
                r"-ERR CONFIG SET failed (possibly related to argument 'port') - can't set immutable config\r\n",
            ),
            ("NOPE a b", r"-ERR unknown command 'NOPE', with args beginning with: 'a' 'b' \r\n"),
            ("GET", r"-ERR wrong number of arguments for 'get' command\r\n"),
            ("HELLO 4", r"-NOPROTO unsupported protocol version\r\n"),
            ("RESET", r"+RESET\r\n"),
        ],
    );
    client.send(b"HELLO 3\r\n");
    client.resp3 = true;
    assert!(show(&client.reply()).starts_with(r"%7\r\n$6\r\nserver\r\n$5\r\nredis\r\n"));
    assert_eq!(client.say("GET nothing"), r"_\r\n");
    assert_eq!(client.say("CONFIG GET save"), r"%1\r\n$4\r\nsave\r\n$0\r\n\r\n");
    assert!(client.say("INFO").contains("# Server"));
    assert_eq!(client.say("QUIT"), r"+OK\r\n");
    assert!(client.is_closed());
}

#[test]
fn a_password_keeps_others_out() {
    let config = Config { password: Some("secret".to_owned()), ..Config::default() };
    let server = start(config);
    let mut client = Client::new(server.address);
    assert_eq!(client.say("GET a"), r"-NOAUTH Authentication required.\r\n");
    assert!(client.say("AUTH wrong").starts_with("-WRONGPASS"));
    assert!(client.say("HELLO 3").starts_with("-NOAUTH HELLO"));
    assert_eq!(client.say("AUTH secret"), r"+OK\r\n");
    assert_eq!(client.say("GET a"), r"$-1\r\n");
    let mut other = Client::new(server.address);
    other.send(b"*11\r\n");
    assert_eq!(show(&other.reply()), r"-ERR Protocol error: unauthenticated multibulk length\r\n");
    assert!(other.is_closed());
}

#[test]
fn an_open_address_needs_a_password() {
    let config = Config { bind: vec![([0, 0, 0, 0], 0).into()], ..Config::default() };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let refused = runtime.block_on(ordna_server::Server::bind(config)).unwrap_err();
    assert!(refused.to_string().contains("--password"), "{refused}");
}

#[test]
fn a_pipeline_of_ten_thousand_commands_is_answered_in_order() {
    let (_server, mut client) = fresh();
    let mut bytes = Vec::new();
    for n in 0..10_000 {
        bytes.extend(request(&[b"SET", format!("k{n}").as_bytes(), n.to_string().as_bytes()]));
        bytes.extend(request(&[b"GET", format!("k{n}").as_bytes()]));
    }
    let mut writer = client.stream.try_clone().unwrap();
    let sender = std::thread::spawn(move || writer.write_all(&bytes).unwrap());
    for n in 0..10_000 {
        assert_eq!(client.reply(), b"+OK\r\n");
        let digits = n.to_string();
        assert_eq!(client.reply(), format!("${}\r\n{digits}\r\n", digits.len()).as_bytes());
    }
    sender.join().unwrap();
}

#[test]
fn broken_requests_close_only_their_connection() {
    let (_server, mut client) = fresh();
    for bytes in [
        b"*1\r\n:5\r\n".as_slice(),
        b"*99999999999\r\n",
        b"*1\r\n$-5\r\n",
        b"*1\r\n$999999999999\r\n",
        b"SET \"a\r\n",
    ] {
        let mut broken = Client::new(_server.address);
        broken.send(&request(&[b"SET", b"before", b"v"]));
        broken.send(bytes);
        assert_eq!(broken.reply(), b"+OK\r\n", "what came before is answered");
        let reply = show(&broken.reply());
        assert!(reply.starts_with("-ERR Protocol error"), "{}: {reply}", show(bytes));
        assert!(broken.is_closed(), "{}", show(bytes));
    }
    // Half a command, then gone: nothing of it is executed.
    let mut half = Client::new(_server.address);
    half.send(b"*3\r\n$3\r\nSET\r\n$4\r\nhalf\r\n$5\r\nval");
    drop(half);
    assert_eq!(client.say("EXISTS half before"), r":1\r\n");
}

/// A client that asks much and reads nothing is not read from any more; others do not notice.
#[test]
fn a_slow_reader_holds_up_only_itself() {
    let (_server, mut client) = fresh();
    let value = vec![b'v'; 1 << 20];
    client.ask(&[b"SET", b"big", &value]);
    let mut slow = Client::new(_server.address);
    slow.stream.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
    let ask = request(&[b"GET", b"big"]).repeat(200);
    // 200 MiB of replies are asked for; the sockets hold a few, and the server one batch's share.
    let _ = slow.stream.write_all(&ask);
    let start = Instant::now();
    for _ in 0..100 {
        assert_eq!(client.say("PING"), r"+PONG\r\n");
    }
    // Held up, they would not be answered at all.
    assert!(start.elapsed() < Duration::from_secs(20));
    for _ in 0..200 {
        assert_eq!(slow.reply().len(), value.len() + 12);
    }
}

#[test]
fn stopping_answers_what_was_read() {
    let mut server = start(Config::default());
    let mut clients: Vec<Client> = (0..8).map(|_| Client::new(server.address)).collect();
    for client in &mut clients {
        for n in 0..200 {
            client.send(&request(&[b"SET", format!("{n}").as_bytes(), b"v"]));
        }
        assert_eq!(client.reply(), b"+OK\r\n");
    }
    server.stop();
    for client in &mut clients {
        let mut answered = 1;
        while !client.reply().is_empty() {
            answered += 1;
        }
        assert!(answered <= 200);
    }
}

#[test]
fn more_clients_than_allowed_are_told_so() {
    let server = start(Config { max_clients: 2, ..Config::default() });
    let mut first = Client::new(server.address);
    let mut second = Client::new(server.address);
    assert_eq!((first.say("PING"), second.say("PING")), (r"+PONG\r\n".into(), r"+PONG\r\n".into()));
    let mut third = Client::new(server.address);
    assert_eq!(show(&third.reply()), r"-ERR max number of clients reached\r\n");
    assert!(third.is_closed());
}

#[test]
fn one_large_value_cannot_be_asked_for_without_end() {
    let server = start(Config { max_reply: 1_000_000, ..Config::default() });
    let mut client = Client::new(server.address);
    assert_eq!(client.ask(&[b"SET", b"k", &[b'v'; 300_000]]), r"+OK\r\n");
    assert!(client.say("MGET k nothing k k").starts_with(r"*4\r\n$300000\r\n"));
    let error = r"-ERR the reply would exceed 1000000 bytes; ask for fewer keys\r\n";
    assert_eq!(client.say("MGET k k k k nothing"), error);
    assert_eq!(client.say("PING"), r"+PONG\r\n");
}
