//! Tests of snapshots that clients hold.

use std::time::{Duration, Instant};

use crate::common::{converse, fresh};

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
    assert!(client.say("ORDNA.SNAPSHOT HELP").starts_with(r"*12\r\n+ORDNA.SNAPSHOT <subcommand>"));
    assert!(client.say("ORDNA.SNAPSHOT LIST").starts_with(r"*1\r\n*8\r\n$2\r\nid\r\n:2\r\n"));
    assert_eq!(client.say("ORDNA.SNAPSHOT DROP 2"), r":1\r\n");
    assert_eq!(client.say("ORDNA.SNAPSHOT CREATE EX 1"), r":3\r\n");
    let patience = Instant::now() + Duration::from_secs(20);
    while client.say("ORDNA.SNAPSHOT LIST") != r"*0\r\n" {
        assert!(Instant::now() < patience, "the snapshot never ends");
        std::thread::yield_now();
    }
}

/// Commands on a snapshot behave like others: a hash has no value, and a string is returned without
/// the mark that its stored form may have.
#[test]
fn a_snapshot_shows_values_as_they_were_set() {
    let (_server, mut client) = fresh();
    client.say("HSET h f v");
    client.ask(&[b"SET", b"k", b"\xC1abc"]);
    converse(
        &mut client,
        &[
            ("ORDNA.SNAPSHOT CREATE", r":1\r\n"),
            ("ORDNA.SNAPSHOT GET 1 h", r"$-1\r\n"),
            ("ORDNA.SNAPSHOT GET 1 k", r"$4\r\n\xc1abc\r\n"),
        ],
    );
}

#[test]
fn deadlines_stay_as_they_were() {
    let (_server, mut client) = fresh();
    converse(
        &mut client,
        &[
            ("SET a 1 PXAT 4102444800000", r"+OK\r\n"),
            ("SET b 1", r"+OK\r\n"),
            ("ORDNA.SNAPSHOT CREATE", r":1\r\n"),
            ("PERSIST a", r":1\r\n"),
            ("DEL b", r":1\r\n"),
            ("ORDNA.SNAPSHOT PEXPIRETIME 1 a b c", r"*3\r\n:4102444800000\r\n:-1\r\n:-2\r\n"),
            (
                "ORDNA.SNAPSHOT PEXPIRETIME 1",
                r"-ERR wrong number of arguments for 'ordna.snapshot|pexpiretime' command\r\n",
            ),
        ],
    );
}
