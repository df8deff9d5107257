//! Tests of commands that use the order of the keys.

use std::collections::BTreeMap;

use crate::common::{converse, fresh};

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
            (
                "ORDNA.RANGE b c",
                r"-ERR min or max not valid string range item; a bound is [key, (key, - or +\r\n",
            ),
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

/// Random choices reach all keys and fields.
#[test]
fn random_keys_and_fields_are_all_of_them() {
    let (_server, mut client) = fresh();
    client.say("HSET a f1 1 f2 1 f3 1 f4 1 f5 1 f6 1 f7 1 f8 1");
    client.say("MSET b 1 c 1 d 1 e 1 f 1 g 1 h 1");
    for command in ["RANDOMKEY", "HRANDFIELD a", "HRANDFIELD a 1", "HRANDFIELD a -1"] {
        let mut counts = BTreeMap::new();
        for _ in 0..800 {
            *counts.entry(client.say(command)).or_insert(0) += 1;
        }
        // The mean is 100 each; 40 is six standard deviations below.
        assert!(counts.len() == 8 && counts.values().all(|count| *count >= 40), "{counts:?}");
    }
}
