//! Tests of the expiry of keys.

use std::time::{Duration, Instant};

use crate::common::{converse, fresh};

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
