//! Tests of fields of hashes that expire. Redis 7.0 has no such commands, so the expected replies
//! come from the documentation of Redis 7.4 and 8. Random histories are tested in
//! `keyspace/edits/expiry_tests.rs`.

use std::time::{Duration, Instant};

use ordna_server::LogSync;

use super::collections::settled;
use crate::common::{Client, converse, fresh, show, spawn, start};
use crate::state::persistence::{Dir, loaded, say};

/// A deadline that is not reached during a test.
const FAR: &str = "9999999999999";

/// Creates the hash `h` with the fields `a`, `b` and `c` and, if it has to be large, with 1,000
/// more.
fn hash(client: &mut Client, is_large: bool) {
    client.say("DEL h");
    client.say("HSET h a 1 b 2 c 3");
    if is_large {
        let more = (0..1000).map(|at| format!(" more{at} x")).collect::<String>();
        client.say(&format!("HSET h{more}"));
    }
}

fn wait_until(client: &mut Client, line: &str, expected: &str) {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        let found = say(client, line);
        if found == expected {
            return;
        }
        assert!(Instant::now() < end, "{line}: {found}, not {expected}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn replies_are_those_of_the_documentation() {
    let (_server, mut client) = fresh();
    for is_large in [false, true] {
        hash(&mut client, is_large);
        client.say("DEL none s");
        client.say("SET s text");
        converse(
            &mut client,
            &[
                ("HTTL none FIELDS 2 a b", r"*2\r\n:-2\r\n:-2\r\n"),
                ("HEXPIRE none 10 FIELDS 1 a", r"*1\r\n:-2\r\n"),
                ("HPERSIST none FIELDS 1 a", r"*1\r\n:-2\r\n"),
                ("HGETEX none EX 10 FIELDS 1 a", r"*1\r\n$-1\r\n"),
                ("HGETDEL none FIELDS 1 a", r"*1\r\n$-1\r\n"),
                ("EXISTS none", r":0\r\n"),
                ("HEXPIRE h 100 FIELDS 3 a b nope", r"*3\r\n:1\r\n:1\r\n:-2\r\n"),
                ("HTTL h FIELDS 4 a b c nope", r"*4\r\n:100\r\n:100\r\n:-1\r\n:-2\r\n"),
                ("HEXPIRE h 10 NX FIELDS 2 a c", r"*2\r\n:0\r\n:1\r\n"),
                ("HEXPIRE h 200 XX FIELDS 2 a c", r"*2\r\n:1\r\n:1\r\n"),
                ("HEXPIRE h 150 GT FIELDS 2 a b", r"*2\r\n:0\r\n:1\r\n"),
                ("HEXPIRE h 100 LT FIELDS 2 a b", r"*2\r\n:1\r\n:1\r\n"),
                ("HPERSIST h FIELDS 4 a b c nope", r"*4\r\n:1\r\n:1\r\n:1\r\n:-2\r\n"),
                ("HPERSIST h FIELDS 1 a", r"*1\r\n:-1\r\n"),
                ("HEXPIRE h 10 GT FIELDS 1 a", r"*1\r\n:0\r\n"),
                ("HEXPIRE h 10 XX FIELDS 1 a", r"*1\r\n:0\r\n"),
                ("HEXPIRE h 10 LT FIELDS 1 a", r"*1\r\n:1\r\n"),
                ("HPEXPIREAT h 9999999999999 FIELDS 1 a", r"*1\r\n:1\r\n"),
                ("HPEXPIRETIME h FIELDS 2 a b", r"*2\r\n:9999999999999\r\n:-1\r\n"),
                ("HEXPIRETIME h FIELDS 1 a", r"*1\r\n:10000000000\r\n"),
                ("HEXPIREAT h 9999999999 FIELDS 1 b", r"*1\r\n:1\r\n"),
                ("HPEXPIRETIME h FIELDS 1 b", r"*1\r\n:9999999999000\r\n"),
                // Increments keep a deadline, and HSET removes it.
                ("HINCRBY h a 1", r":2\r\n"),
                ("HINCRBYFLOAT h a 1.5", r"$3\r\n3.5\r\n"),
                ("HSETNX h a 9", r":0\r\n"),
                ("HPEXPIRETIME h FIELDS 1 a", r"*1\r\n:9999999999999\r\n"),
                ("HSET h a 1", r":0\r\n"),
                ("HTTL h FIELDS 1 a", r"*1\r\n:-1\r\n"),
            ],
        );
        // A deadline in the past removes the field.
        converse(
            &mut client,
            &[
                ("HPEXPIREAT h 1 FIELDS 2 a nope", r"*2\r\n:2\r\n:-2\r\n"),
                ("HEXISTS h a", r":0\r\n"),
                ("HEXPIRE h 0 FIELDS 1 b", r"*1\r\n:2\r\n"),
                ("HGET h b", r"$-1\r\n"),
                ("HEXPIRE h -1 FIELDS 1 c", r"-ERR invalid expire time, must be >= 0\r\n"),
                ("HEXPIRE h x FIELDS 1 c", r"-ERR value is not an integer or out of range\r\n"),
                (
                    "HPEXPIREAT h 70368744177664 FIELDS 1 c",
                    r"-ERR invalid expire time in 'hpexpireat' command\r\n",
                ),
                (
                    "HEXPIRE h 9223372036854775807 FIELDS 1 c",
                    r"-ERR invalid expire time in 'hexpire' command\r\n",
                ),
                (
                    "HEXPIRE h 10 ZZ FIELDS 1 c",
                    r"-ERR Mandatory argument FIELDS is missing or not at the right position\r\n",
                ),
                ("HTTL h FIELDS 0 c", r"-ERR Number of fields must be a positive integer\r\n"),
                (
                    "HTTL h FIELDS 2 c",
                    r"-ERR The `numfields` parameter must match the number of arguments\r\n",
                ),
                (
                    "HSETEX h FIELDS 2 c 1 d",
                    r"-ERR The `numfields` parameter must match the number of arguments\r\n",
                ),
                (
                    "HSETEX h EX 1 PX 1 FIELDS 1 c 1",
                    r"-ERR Only one of EX, PX, EXAT, PXAT or KEEPTTL arguments can be specified\r\n",
                ),
                (
                    "HSETEX h KEEPTTL EX 1 FIELDS 1 c 1",
                    r"-ERR Only one of EX, PX, EXAT, PXAT or KEEPTTL arguments can be specified\r\n",
                ),
                (
                    "HSETEX h FNX FXX FIELDS 1 c 1",
                    r"-ERR Only one of FXX or FNX arguments can be specified\r\n",
                ),
                ("HSETEX h NX FIELDS 1 c 1", r"-ERR unknown argument: NX\r\n"),
                ("HSETEX h FNX KEEPTTL c PX", r"-ERR unknown argument: c\r\n"),
                (
                    "HSETEX h FNX KEEPTTL FXX PX",
                    r"-ERR Only one of FXX or FNX arguments can be specified\r\n",
                ),
                ("HSETEX h FNX FXX1 c EX", r"-ERR unknown argument: FXX1\r\n"),
            ],
        );
        for line in [
            "HTTL s FIELDS 1 a",
            "HEXPIRE s 1 FIELDS 1 a",
            "HPERSIST s FIELDS 1 a",
            "HGETEX s FIELDS 1 a",
            "HGETDEL s FIELDS 1 a",
            "HSETEX s FIELDS 1 a 1",
        ] {
            assert!(client.say(line).starts_with("-WRONGTYPE"), "{line}");
        }
        converse(
            &mut client,
            &[
                ("HGETEX h FIELDS 2 c nope", r"*2\r\n$1\r\n3\r\n$-1\r\n"),
                ("HGETEX h EX 100 FIELDS 1 c", r"*1\r\n$1\r\n3\r\n"),
                ("HTTL h FIELDS 1 c", r"*1\r\n:100\r\n"),
                ("HGETEX h PERSIST FIELDS 1 c", r"*1\r\n$1\r\n3\r\n"),
                ("HTTL h FIELDS 1 c", r"*1\r\n:-1\r\n"),
                ("HGETEX h PXAT 9999999999999 FIELDS 1 c", r"*1\r\n$1\r\n3\r\n"),
                ("HPEXPIRETIME h FIELDS 1 c", r"*1\r\n:9999999999999\r\n"),
                ("HSETEX h KEEPTTL FIELDS 1 c 4", r":1\r\n"),
                ("HPEXPIRETIME h FIELDS 1 c", r"*1\r\n:9999999999999\r\n"),
                ("HSETEX h FNX EX 9 FIELDS 2 c 5 d 5", r":0\r\n"),
                ("HSETEX h FXX EX 9 FIELDS 2 c 5 d 5", r":0\r\n"),
                ("HEXISTS h d", r":0\r\n"),
                ("HSETEX h FNX EX 100 FIELDS 2 d 5 e 6", r":1\r\n"),
                ("HSETEX h FXX EX 200 FIELDS 2 c 7 d 8", r":1\r\n"),
                ("HTTL h FIELDS 3 c d e", r"*3\r\n:200\r\n:200\r\n:100\r\n"),
                ("HSETEX h FIELDS 1 d 9", r":1\r\n"),
                ("HTTL h FIELDS 1 d", r"*1\r\n:-1\r\n"),
                ("HSETEX h EXAT 1 FIELDS 2 d 1 new 1", r":1\r\n"),
                ("HMGET h d new", r"*2\r\n$-1\r\n$-1\r\n"),
                ("HGETEX h EX 0 FIELDS 1 e", r"*1\r\n$1\r\n6\r\n"),
                ("HGETDEL h FIELDS 3 c e c", r"*3\r\n$1\r\n7\r\n$-1\r\n$-1\r\n"),
            ],
        );
        let left = if is_large { ":1000" } else { ":0" };
        assert_eq!(say(&mut client, "HLEN h"), left);
        assert_eq!(say(&mut client, "EXISTS h"), if is_large { ":1" } else { ":0" });
        // The last field expires.
        client.say("DEL h");
        assert_eq!(say(&mut client, "HSETEX h PX 1 FIELDS 1 a 1"), ":1");
        wait_until(&mut client, "EXISTS h", ":0");
    }
    assert_eq!(settled(&mut client), 0);
}

#[test]
fn an_expired_field_shows_in_no_read() {
    let (_server, mut client) = fresh();
    for is_large in [false, true] {
        hash(&mut client, is_large);
        let others = if is_large { 1000 } else { 0 };
        say(&mut client, "HPEXPIRE h 15 FIELDS 2 a b");
        let end = Instant::now() + Duration::from_millis(15);
        while Instant::now() < end {}
        // The background task runs every 20 ms, so some of these run before it and some after it.
        for _ in 0..15 {
            assert_eq!(say(&mut client, "HLEN h"), format!(":{}", others + 1));
            assert_eq!(say(&mut client, "HMGET h a b c"), "*3 $-1 $-1 $1 3");
            assert_eq!(say(&mut client, "HEXISTS h a"), ":0");
            assert_eq!(say(&mut client, "HSTRLEN h a"), ":0");
            assert_eq!(say(&mut client, "HTTL h FIELDS 2 a c"), "*2 :-2 :-1");
            let fields = say(&mut client, "HKEYS h");
            assert!(fields.starts_with(&format!("*{} ", others + 1)));
            assert!(!fields.contains("$1 a") && fields.contains("$1 c"));
            assert!(!say(&mut client, "HGETALL h").contains("$1 b"));
            assert!(!say(&mut client, "HSCAN h 0 COUNT 5000").contains("$1 b"));
            let drawn = say(&mut client, "HRANDFIELD h 5000");
            assert!(drawn.starts_with(&format!("*{} ", others + 1)) && !drawn.contains("$1 a"));
        }
        assert_eq!(say(&mut client, "HSET h a 9"), ":1", "a new field");
        assert_eq!(say(&mut client, "HTTL h FIELDS 1 a"), "*1 :-1");
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(
            say(&mut client, "HGET h a"),
            "$1 9",
            "it is not removed in place of the old one"
        );
    }
}

#[test]
fn a_hash_keeps_its_deadlines_when_it_moves_or_grows() {
    let (_server, mut client) = fresh();
    for is_large in [false, true] {
        hash(&mut client, is_large);
        say(&mut client, &format!("HPEXPIREAT h {FAR} FIELDS 1 a"));
        say(&mut client, "PEXPIREAT h 99999999999999");
        say(&mut client, "COPY h copy");
        say(&mut client, "RENAME copy moved");
        assert_eq!(say(&mut client, "PEXPIRETIME moved"), ":99999999999999");
        let far = format!("*2 :{FAR} :-1");
        assert_eq!(say(&mut client, "HPEXPIRETIME moved FIELDS 2 a b"), far);
        let payload = client.reply_to(b"DUMP moved\r\n");
        let start = payload.iter().position(|byte| *byte == b'\n').unwrap() + 1;
        let payload = &payload[start..payload.len() - 2];
        assert_eq!(client.ask(&[b"RESTORE", b"restored", b"0", payload]), r"+OK\r\n");
        assert_eq!(say(&mut client, "HPEXPIRETIME restored FIELDS 2 a b"), far);
        assert_eq!(say(&mut client, "HMGET restored a b c"), "*3 $1 1 $1 2 $1 3");
        assert_eq!(client.say("DUMP restored").len(), client.say("DUMP h").len());
        let encoding = if is_large { "$9 hashtable" } else { "$10 listpackex" };
        assert_eq!(say(&mut client, "OBJECT ENCODING restored"), encoding);
        // The small hash becomes a large one.
        let more = (0..1000).map(|at| format!(" other{at} x")).collect::<String>();
        say(&mut client, &format!("HSET restored{more}"));
        assert_eq!(say(&mut client, "OBJECT ENCODING restored"), "$9 hashtable");
        assert_eq!(say(&mut client, "HPEXPIRETIME restored FIELDS 2 a other1"), far);
        say(&mut client, "PERSIST moved");
        assert_eq!(say(&mut client, "HPEXPIRETIME moved FIELDS 2 a b"), far);
        // Without deadlines, a small hash is stored as a single record again.
        say(&mut client, "HPERSIST moved FIELDS 1 a");
        if !is_large {
            assert_eq!(say(&mut client, "OBJECT ENCODING moved"), "$8 listpack");
        }
        client.say("SET moved text");
        client.say("DEL moved restored h");
        assert_eq!(settled(&mut client), 0, "nothing stays");
    }
}

/// Payloads that Redis 7.4 wrote for a hash with the fields `a`, which has a deadline, and `b`.
#[test]
fn payloads_with_deadlines_are_read() {
    let (_server, mut client) = fresh();
    let far: u64 = FAR.parse().unwrap();
    let list: Vec<u8> = {
        // A listpack with the elements a, 1, deadline, b, 2, 0.
        let mut list = vec![0; 6];
        list.extend([0x81, b'a', 2, 1, 1]);
        list.push(0xF4);
        list.extend(far.to_le_bytes());
        list.push(9);
        list.extend([0x81, b'b', 2, 2, 1, 0, 1]);
        list.push(0xFF);
        let len = list.len() as u32;
        list[..4].copy_from_slice(&len.to_le_bytes());
        list[4] = 6;
        list
    };
    let mut compact = vec![25];
    compact.extend(far.to_le_bytes());
    compact.push(list.len() as u8);
    compact.extend(list);
    let mut table = vec![24];
    table.extend(far.to_le_bytes());
    table.extend([2, 1, 1, b'a', 0xC0, 1, 0, 1, b'b', 0xC0, 2]);
    for (payload, version, fits) in [
        (&compact, 12_u16, true),
        (&table, 12, true),
        (&table, 13, false),
        (&vec![0, 1, b'x'], 12, false),
    ] {
        let mut payload = payload.clone();
        payload.extend(version.to_le_bytes());
        payload.extend(ordna::checksum::crc64_redis(&payload).to_le_bytes());
        let reply = client.ask(&[b"RESTORE", b"h", b"0", &payload, b"REPLACE"]);
        if !fits {
            assert!(reply.contains("version or checksum"), "{reply}");
            continue;
        }
        assert_eq!(reply, r"+OK\r\n");
        assert_eq!(say(&mut client, "HPEXPIRETIME h FIELDS 2 a b"), format!("*2 :{FAR} :-1"));
        assert_eq!(say(&mut client, "HMGET h a b"), "*2 $1 1 $1 2");
    }
}

#[test]
fn an_expiry_of_a_field_is_told() {
    let (server, mut client) = fresh();
    let mut subscriber = Client::new(server.address);
    client.say("CONFIG SET notify-keyspace-events KEA");
    subscriber.say("PSUBSCRIBE __keyevent@0__:*");
    let mut events = |expected: &[&str]| {
        for event in expected {
            let message = show(&subscriber.reply());
            let (_, told) = message.split_once("__keyevent@0__:*").unwrap();
            assert!(told.contains(&format!("__keyevent@0__:{event}\\r")), "{event}: {told}");
        }
    };
    client.say("HSET h a 1 b 2 c 3");
    events(&["hset"]);
    client.say("HEXPIRE h 100 FIELDS 2 a nope");
    events(&["hexpire"]);
    client.say("HPERSIST h FIELDS 1 a");
    events(&["hpersist"]);
    client.say("HPERSIST h FIELDS 1 a");
    client.say("HGETEX h FIELDS 1 a");
    client.say("HGETEX h EX 100 FIELDS 1 a");
    events(&["hexpire"]);
    client.say("HGETEX h PERSIST FIELDS 1 a");
    events(&["hpersist"]);
    client.say("HSETEX h EX 100 FIELDS 1 a 1");
    events(&["hset", "hexpire"]);
    client.say("HGETDEL h FIELDS 1 a");
    events(&["hdel"]);
    client.say("HSETEX h FIELDS 1 a 1");
    events(&["hset"]);
    client.say("HSETEX h EXAT 1 FIELDS 1 a 2");
    events(&["hset", "hdel"]);
    client.say("HPEXPIRE h 0 FIELDS 1 b");
    events(&["hdel"]);
    client.say("HPEXPIRE h 1 FIELDS 1 c");
    events(&["hexpire", "hexpired", "del"]);
    assert_eq!(say(&mut client, "EXISTS h"), ":0");
    assert!(say(&mut client, "INFO stats").contains(" expired_subkeys:1 "));
}

#[test]
fn a_transaction_fails_if_a_field_of_a_watched_key_expires() {
    let (server, mut client) = fresh();
    let mut other = Client::new(server.address);
    for is_large in [false, true] {
        hash(&mut client, is_large);
        say(&mut client, "HPEXPIRE h 5 FIELDS 1 a");
        say(&mut client, "WATCH h");
        let end = Instant::now() + Duration::from_millis(6);
        while Instant::now() < end {}
        say(&mut client, "MULTI");
        say(&mut client, "HSET h b 1");
        assert_eq!(say(&mut client, "EXEC"), "*-1");
        say(&mut client, "WATCH h");
        say(&mut other, "HPEXPIRE h 100000 FIELDS 1 b");
        say(&mut client, "MULTI");
        assert_eq!(say(&mut client, "EXEC"), "*-1");
        wait_until(&mut client, "HEXISTS h a", ":0");
    }
}

#[test]
fn an_index_has_no_field_that_has_expired() {
    let (_server, mut client) = fresh();
    client.say("FT.CREATE i ON HASH PREFIX 1 d: SCHEMA n NUMERIC");
    for is_large in [false, true] {
        let more = match is_large {
            true => (0..1000).map(|at| format!(" f{at} x")).collect::<String>(),
            false => " other x".to_owned(),
        };
        client.say("DEL d:1");
        say(&mut client, &format!("HSET d:1 n 5{more}"));
        assert_eq!(
            client.ask(&[b"FT.SEARCH", b"i", b"@n:[5 5]", b"LIMIT", b"0", b"0"]),
            r"*1\r\n:1\r\n"
        );
        say(&mut client, "HPEXPIRE d:1 10 FIELDS 1 n");
        let end = Instant::now() + Duration::from_millis(11);
        while Instant::now() < end {}
        for _ in 0..20 {
            let reply = client.ask(&[b"FT.SEARCH", b"i", b"@n:[5 5]", b"LIMIT", b"0", b"0"]);
            assert_eq!(reply, r"*1\r\n:0\r\n");
        }
        assert_eq!(client.ask(&[b"FT.SEARCH", b"i", b"*", b"LIMIT", b"0", b"0"]), r"*1\r\n:1\r\n");
    }
}

#[test]
fn deadlines_survive_restarts_and_kills() {
    let dir = Dir::new("field-expiry");
    let settings = format!("dir={}", dir.0.display());
    let mut server = spawn(&settings);
    let mut client = Client::new(server.address);
    while say(&mut client, "DBSIZE") != ":0" {}
    for (key, more) in [("small", 0), ("large", 1000)] {
        let more = (0..more).map(|at| format!(" more{at} x")).collect::<String>();
        say(&mut client, &format!("HSET {key} gone 1 stays 2 forever 3{more}"));
        say(&mut client, &format!("HSET {key}2 gone 1"));
        say(&mut client, &format!("HPEXPIREAT {key} {FAR} FIELDS 1 stays"));
    }
    assert_eq!(say(&mut client, "SAVE"), "+OK");
    for key in ["small", "large", "small2", "large2"] {
        assert_eq!(say(&mut client, &format!("HPEXPIRE {key} 300 FIELDS 1 gone")), "*1 :1");
    }
    // Kills the process.
    drop(server);
    std::thread::sleep(Duration::from_millis(310));
    for round in 0..2 {
        server = spawn(&settings);
        client = Client::new(server.address);
        while say(&mut client, "DBSIZE").starts_with("-LOADING") {}
        for key in ["small", "large"] {
            assert_eq!(say(&mut client, &format!("HMGET {key} gone stays")), "*2 $-1 $1 2");
            let line = format!("HPEXPIRETIME {key} FIELDS 3 gone stays forever");
            assert_eq!(say(&mut client, &line), format!("*3 :-2 :{FAR} :-1"));
        }
        let len = if round == 0 { 1002 } else { 1003 };
        assert_eq!(say(&mut client, "HLEN large"), format!(":{len}"));
        wait_until(&mut client, "EXISTS small2 large2", ":0");
        // The ids of hashes with a head are not used again.
        say(&mut client, "HSETEX large EX 1000 FIELDS 1 new 1");
        say(&mut client, &format!("HSETEX another{round} PXAT {FAR} FIELDS 1 new 1"));
        drop(server);
    }
    let server = start(dir.config(LogSync::Always));
    let mut client = loaded(&server);
    for key in ["small", "large", "another0", "another1"] {
        assert_eq!(say(&mut client, &format!("DEL {key}")), ":1");
    }
    assert_eq!(settled(&mut client), 1, "the version of the layout");
}

/// The deadlines of a hash may be more than 2^32 milliseconds apart.
#[test]
fn a_dump_has_deadlines_at_any_distance() {
    let (_server, mut client) = fresh();
    client.say("HSET h a 1 b 2 c 3 d 4");
    let first: u64 = FAR.parse().unwrap();
    let apart = [0, (1 << 32) - 2, (1 << 32) - 1, 1 << 36];
    for (field, apart) in ["a", "b", "c", "d"].into_iter().zip(apart) {
        client.say(&format!("HPEXPIREAT h {} FIELDS 1 {field}", first + apart));
    }
    let payload = client.reply_to(b"DUMP h\r\n");
    let start = payload.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    client.ask(&[b"RESTORE", b"restored", b"0", &payload[start..payload.len() - 2]]);
    let ask = "HPEXPIRETIME restored FIELDS 4 a b c d";
    assert_eq!(client.say(ask), client.say(&ask.replace("restored", "h")));
    assert!(client.say(ask).contains(&(first + (1 << 36)).to_string()));
    // The last deadline that Redis supports, and a later one.
    for (deadline, is_read) in [((1_u64 << 46) - 1, true), (1 << 46, false)] {
        let mut payload = vec![24];
        payload.extend_from_slice(&deadline.to_le_bytes());
        payload.extend_from_slice(b"\x01\x01\x01f\x01v");
        payload.extend(12_u16.to_le_bytes());
        payload.extend(ordna::checksum::crc64_redis(&payload).to_le_bytes());
        let reply = client.ask(&[b"RESTORE", b"late", b"0", &payload, b"REPLACE"]);
        assert_eq!(reply == r"+OK\r\n", is_read, "{deadline}: {reply}");
    }
}
