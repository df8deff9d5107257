//! Tests of `SORT` and `SORT_RO` that cannot be compared with Redis call by call.

use crate::common::{Client, converse, fresh, request, show};

#[test]
fn elements_are_sorted_by_themselves_or_by_other_keys() {
    let (_server, mut client) = fresh();
    converse(
        &mut client,
        &[
            ("RPUSH l 3 1 10 2", r":4\r\n"),
            ("MSET w1 9 w2 8 w3 7 w10 6", r"+OK\r\n"),
            ("HSET h1 f a", r":1\r\n"),
            ("HSET h10 f b", r":1\r\n"),
            ("SORT l", r"*4\r\n$1\r\n1\r\n$1\r\n2\r\n$1\r\n3\r\n$2\r\n10\r\n"),
            ("SORT l DESC LIMIT 1 2", r"*2\r\n$1\r\n3\r\n$1\r\n2\r\n"),
            ("SORT l ALPHA LIMIT 0 2", r"*2\r\n$1\r\n1\r\n$2\r\n10\r\n"),
            ("SORT_RO l BY w* LIMIT 0 2", r"*2\r\n$2\r\n10\r\n$1\r\n3\r\n"),
            (
                "SORT l LIMIT 3 9 GET # GET w* GET h*->f GET nothing",
                r"*4\r\n$2\r\n10\r\n$1\r\n6\r\n$1\r\nb\r\n$-1\r\n",
            ),
            ("SORT l BY nosort LIMIT 0 2", r"*2\r\n$1\r\n3\r\n$1\r\n1\r\n"),
            ("SORT l BY nosort DESC LIMIT 0 1", r"*1\r\n$1\r\n2\r\n"),
            ("SORT l BY h*->f ALPHA DESC LIMIT 0 2 STORE s", r":2\r\n"),
            ("LRANGE s 0 -1", r"*2\r\n$2\r\n10\r\n$1\r\n1\r\n"),
            ("SORT l GET h*->f STORE s", r":4\r\n"),
            ("LRANGE s 0 -1", r"*4\r\n$1\r\na\r\n$0\r\n\r\n$0\r\n\r\n$1\r\nb\r\n"),
            ("SORT nothing STORE s", r":0\r\n"),
            ("EXISTS s", r":0\r\n"),
            ("RPUSH l x", r":5\r\n"),
            ("SORT l", r"-ERR One or more scores can't be converted into double\r\n"),
            ("SORT h1", r"-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
            ("SORT_RO l STORE s", r"-ERR syntax error\r\n"),
        ],
    );
}

/// Patterns can name any key, so they require permission to read all keys.
#[test]
fn patterns_need_the_right_to_all_keys() {
    let (server, mut client) = fresh();
    client.say("RPUSH l 1");
    client.say("SET secret1 x");
    let by = r"-ERR BY option of SORT denied due to insufficient ACL permissions.\r\n";
    let get = r"-ERR GET option of SORT denied due to insufficient ACL permissions.\r\n";
    let value = r"*1\r\n$1\r\nx\r\n";
    let stored = r":1\r\n";
    let no_key =
        r"-NOPERM this user has no permissions to access one of the keys used as arguments\r\n";
    for (rules, replies) in [
        ("+@all ~l", [by, get, no_key]),
        ("+@all ~l ~t", [by, get, stored]),
        ("+@all %R~* %W~t", [r"*1\r\n$1\r\n1\r\n", value, stored]),
        ("+@all ~*", [r"*1\r\n$1\r\n1\r\n", value, stored]),
        // Another selector allows all keys, but not the command.
        ("+@all ~l (~* +get)", [by, get, no_key]),
        ("+get ~l (%R~* +sort)", [r"*1\r\n$1\r\n1\r\n", value, no_key]),
    ] {
        client.say("ACL DELUSER u");
        let rules = rules.replace("(~* +get)", "(~*_+get)").replace("(%R~* +sort)", "(%R~*_+sort)");
        let mut words = vec!["ACL".to_owned(), "SETUSER".into(), "u".into(), "on".into()];
        words.push("nopass".into());
        words.extend(rules.split(' ').map(|rule| rule.replace('_', " ")));
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        assert_eq!(client.ask(&words), r"+OK\r\n");
        let mut user = Client::new(server.address);
        user.say("AUTH u x");
        for (line, reply) in
            ["SORT l BY secret* ALPHA", "SORT l GET secret*", "SORT l STORE t"].iter().zip(replies)
        {
            assert_eq!(user.say(line), reply, "{rules}: {line}");
        }
        assert_eq!(user.say("SORT l LIMIT 0 0 BY nosort"), r"*0\r\n", "{rules}");
    }
}

/// The memory of SORT is bounded by the limit of replies. Large results become large lists.
#[test]
fn the_memory_of_a_sort_is_bounded() {
    let (_server, mut client) = fresh();
    let mut push: Vec<Vec<u8>> = vec![b"RPUSH".to_vec(), b"l".to_vec()];
    push.extend((0..5000).rev().map(|at| at.to_string().into_bytes()));
    client.ask(&push.iter().map(Vec::as_slice).collect::<Vec<_>>());
    client.send(&request(&[b"SORT", b"l"]));
    let sorted = show(&client.reply());
    let numbers = sorted.split(r"\r\n").skip(2).step_by(2).filter(|number| !number.is_empty());
    assert!(numbers.map(|number| number.parse::<usize>().unwrap()).eq(0..5000));
    assert_eq!(client.say("SORT l DESC STORE s"), r":5000\r\n");
    assert_eq!(client.say("LRANGE s 0 0"), r"*1\r\n$4\r\n4999\r\n");
    client.say("MULTI");
    client.say("RPUSH l -1");
    client.say("SORT l LIMIT 0 2");
    assert_eq!(client.say("EXEC"), r"*2\r\n:5001\r\n*2\r\n$2\r\n-1\r\n$1\r\n0\r\n");
    let limit: &[&[u8]] = &[b"CONFIG", b"SET", b"client-output-buffer-limit", b"normal 100000 0 0"];
    assert_eq!(client.ask(limit), r"+OK\r\n");
    for line in ["SORT l", "SORT l BY x* LIMIT 0 1", "SORT l STORE t"] {
        let refused = client.say(line);
        let refused = &refused[..60.min(refused.len())];
        assert!(refused.starts_with("-ERR SORT would take more than"), "{line}: {refused}");
    }
    client.say("DEL l");
    client.say("RPUSH l a b c d");
    client.ask(&[b"SET", b"long", &[b'x'; 60_000]]);
    let refused = client.say("SORT l BY nosort GET # GET l*ng GET long GET *");
    assert!(refused.starts_with("*16"), "{}", refused.len());
    client.ask(&[b"MSET", b"va", &[b'x'; 60_000], b"vb", &[b'x'; 60_000]]);
    let refused = client.say("SORT l BY nosort GET v*");
    assert!(refused.starts_with("-ERR the reply would exceed"), "{}", refused.len());
    assert_eq!(client.say("PING"), r"+PONG\r\n");
}

/// Permissions are checked for the key that is actually written.
#[test]
fn the_key_of_the_last_store_counts() {
    let (_server, mut client) = fresh();
    for (call, keys) in [
        ("SORT a STORE b", r"*2\r\n$1\r\na\r\n$1\r\nb\r\n"),
        ("SORT a STORE b LIMIT 0 1 store c ALPHA", r"*2\r\n$1\r\na\r\n$1\r\nc\r\n"),
        ("SORT a STORE get STORE x", r"*2\r\n$1\r\na\r\n$1\r\nx\r\n"),
        ("SORT a GET store DESC", r"*1\r\n$1\r\na\r\n"),
        // Redis returns the same, although the call is refused.
        ("SORT a store store e", r"*2\r\n$1\r\na\r\n$1\r\ne\r\n"),
    ] {
        assert_eq!(client.say(&format!("COMMAND GETKEYS {call}")), keys, "{call}");
    }
}
