//! Tests of strings: commands, arbitrary bytes, and the limit of a reply.

use ordna_server::Config;

use crate::common::{Client, converse, fresh, show, start};

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
fn one_large_value_cannot_be_asked_for_without_end() {
    let server = start(Config { max_reply: 1_000_000, ..Config::default() });
    let mut client = Client::new(server.address);
    assert_eq!(client.ask(&[b"SET", b"k", &[b'v'; 300_000]]), r"+OK\r\n");
    assert!(client.say("MGET k nothing k k").starts_with(r"*4\r\n$300000\r\n"));
    let error = r"-ERR the reply would exceed 1000000 bytes; ask for fewer keys\r\n";
    assert_eq!(client.say("MGET k k k k nothing"), error);
    assert_eq!(client.say("PING"), r"+PONG\r\n");
}
