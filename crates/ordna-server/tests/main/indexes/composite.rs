//! Tests of `ORDNA.INDEX`.

use std::time::{Duration, Instant};

use crate::common::{Client, Random};
use crate::indexes::{client, ids, towns, words};

#[test]
fn a_composite_index_follows_the_hashes() {
    let (_server, mut client) = client();
    towns(&mut client);
    let create = "ORDNA.INDEX CREATE by_size ON t: PARTS country population DESC";
    assert_eq!(client.say(create), r"+OK\r\n");
    let scan = "ORDNA.INDEX SCAN by_size EQ SE FROM [0";
    assert_eq!(words(&client.say(scan)), ["0", "t:1", "t:2", "t:4"]);
    assert_eq!(client.say("ORDNA.INDEX COUNT by_size EQ SE"), r":4\r\n");
    assert_eq!(client.say("ORDNA.INDEX COUNT by_size EQ SE FROM (362133 TO [608462"), r":1\r\n");
    // The next query sees each kind of change.
    client.say("HSET t:4 population 2000000");
    assert_eq!(words(&client.say(scan)), ["0", "t:4", "t:1", "t:2"]);
    client.say("HINCRBY t:2 population 5000000");
    assert_eq!(words(&client.say(scan)), ["0", "t:2", "t:4", "t:1"]);
    client.say("HDEL t:2 population");
    assert_eq!(words(&client.say(scan)), ["0", "t:4", "t:1"]);
    client.say("RENAME t:4 gone:4");
    assert_eq!(words(&client.say(scan)), ["0", "t:1"]);
    client.say("RENAME gone:4 t:6");
    assert_eq!(words(&client.say(scan)), ["0", "t:6", "t:1"]);
    client.say("COPY t:6 t:7");
    assert_eq!(words(&client.say(scan)), ["0", "t:6", "t:7", "t:1"]);
    client.say("SET t:6 text");
    assert_eq!(words(&client.say(scan)), ["0", "t:7", "t:1"]);
    client.say("DEL t:7 t:6");
    assert_eq!(words(&client.say(scan)), ["0", "t:1"]);
    client.say("MULTI");
    client.say("HSET t:8 country SE population 7");
    client.say("HSET t:9 country SE population 8");
    client.say("ORDNA.INDEX COUNT by_size EQ SE FROM [0");
    assert!(client.say("EXEC").ends_with(r":3\r\n"));
    client.say("ORDNA.DELRANGE [t:8 [t:9");
    assert_eq!(words(&client.say(scan)), ["0", "t:1"]);
    let dump = "PEXPIRE t:1 30";
    assert_eq!(client.say(dump), r":1\r\n");
    let patience = Instant::now() + Duration::from_secs(20);
    while words(&client.say(scan)) != ["0"] {
        assert!(Instant::now() < patience, "an expired hash stays in its index");
    }
    client.say("FLUSHALL");
    assert_eq!(client.say("ORDNA.INDEX COUNT by_size"), r":0\r\n");
    client.say("HSET t:1 country SE population 9");
    assert_eq!(words(&client.say(scan)), ["0", "t:1"]);
    assert_eq!(words(&client.say("ORDNA.INDEX LIST")), ["by_size"]);
    assert_eq!(client.say("ORDNA.INDEX DROP by_size"), r"+OK\r\n");
    assert_eq!(client.say(scan), r"-ERR no index is named 'by_size'\r\n");
}

#[test]
fn pages_prefixes_values_and_filters() {
    let (_server, mut client) = client();
    towns(&mut client);
    client.say("ORDNA.INDEX CREATE names ON t: PARTS country name TEXT WHERE population >= 500000");
    let page = client.say("ORDNA.INDEX SCAN names EQ SE LIMIT 1");
    let cursor = &words(&page)[0];
    assert_eq!(words(&page)[1..], ["t:2"]);
    let next = client.say(&format!("ORDNA.INDEX SCAN names EQ SE LIMIT 1 CURSOR {cursor}"));
    assert_eq!(words(&next), ["0", "t:1"]);
    assert_eq!(words(&client.say("ORDNA.INDEX SCAN names EQ SE PREFIX Sto")), ["0", "t:1"]);
    assert_eq!(words(&client.say("ORDNA.INDEX SCAN names REV LIMIT 1 1")).len(), 2);
    assert_eq!(
        words(&client.say("ORDNA.INDEX SCAN names EQ NO VALUES")),
        ["0", "t:3", "NO", "Oslo"]
    );
    assert_eq!(words(&client.say("ORDNA.INDEX SCAN names DISTINCT 1")), ["0", "t:3", "t:2"]);
    for (line, part) in [
        ("SCAN nope", "no index is named 'nope'"),
        ("SCAN names EQ a EQ b EQ c", "has 2 parts only"),
        ("SCAN names CURSOR xyz", "cursor"),
        ("SCAN names LIMIT x", "LIMIT: 'x' is not a number"),
        ("SCAN names FROM 5", "a bound begins with"),
        ("SCAN names PREFIX a TO [b", "PREFIX goes without"),
        ("SCAN names NOPE", "'NOPE' is not supported"),
        ("SCAN names AT nonsense", "is not a vector"),
        ("CREATE names ON t: PARTS a", "an index named 'names' exists"),
        ("CREATE more ON t: PARTS", "0 parts"),
        ("CREATE more ON t: PARTS a WHERE b ~ 5", "filter, at byte"),
        ("CREATE more PARTS a", "lacks ON"),
        ("CREATE more ON t: PARTS a WHERE", "WHERE lacks a filter"),
        ("CREATE more\0 ON t: PARTS a", "has a byte 0"),
        ("CREATE more ON t: PARTS a\0", "has a byte 0"),
        ("NOPE", "unknown subcommand 'NOPE'"),
    ] {
        let reply = client.say(&format!("ORDNA.INDEX {line}"));
        assert!(reply.starts_with("-ERR ") && reply.contains(part), "{line}: {reply}");
    }
    client.say("ORDNA.INDEX CREATE other ON t: PARTS name");
    client.say("ORDNA.INDEX DROP names");
    client.say("ORDNA.INDEX CREATE names ON t: PARTS country");
    let stale = client.say(&format!("ORDNA.INDEX SCAN names CURSOR {cursor}"));
    assert!(stale.contains("dropped"), "{stale}");
    let foreign = words(&client.say("ORDNA.INDEX SCAN other LIMIT 1"))[0].clone();
    let reply = client.say(&format!("ORDNA.INDEX SCAN names CURSOR {foreign}"));
    assert!(reply.contains("of another index"), "{reply}");
}

#[test]
fn types_split_texts_null_and_missing() {
    let (_server, mut client) = client();
    client.say("HSET h:1 tags Red;blue on true");
    client.say("HSET h:2 tags blue on maybe");
    client.say("HSET h:3 other 1");
    client.say("ORDNA.INDEX CREATE tags ON h: PARTS tags LOWER SPLIT ; DESC");
    client.say("ORDNA.INDEX CREATE on ON h: PARTS on BOOL tags TEXT");
    let mut found = |query: &str| words(&client.say(&format!("ORDNA.INDEX SCAN {query}")));
    assert_eq!(found("tags"), ["0", "h:1", "h:1", "h:2", "h:3"]);
    assert_eq!(found("tags EQ BLUE"), ["0", "h:1", "h:2"]);
    assert_eq!(found("tags EQ red"), ["0", "h:1"]);
    assert_eq!(found("tags IS missing"), ["0", "h:3"]);
    // A hash has texts only.
    assert_eq!(found("on IS TRUE"), ["0"]);
    assert_eq!(found("on IS NULL"), ["0", "h:1", "h:2"]);
    assert_eq!(found("on IS NULL EQ blue"), ["0", "h:2"]);
    assert_eq!(client.say("ORDNA.INDEX COUNT on IS MISSING IS MISSING"), r":1\r\n");
    let parts = client.say("ORDNA.INDEX INFO tags");
    assert!(parts.contains("tags LOWER SPLIT ; DESC"), "{parts}");
    for (line, part) in [
        ("SCAN on EQ 1", "the part on holds truth values: TRUE or FALSE"),
        ("SCAN on IS 1", "IS takes TRUE, FALSE, NULL or MISSING"),
        ("SCAN on IS NULL IS NULL IS NULL", "has 2 parts only"),
        ("CREATE more ON h: PARTS a SPLIT ab", "SPLIT takes one character, not 'ab'"),
        ("CREATE more ON h: PARTS a ARRAY b SPLIT ,", "2 parts are exploded"),
    ] {
        let reply = client.say(&format!("ORDNA.INDEX {line}"));
        assert!(reply.starts_with("-ERR ") && reply.contains(part), "{line}: {reply}");
    }
}

/// Many connections write the same hashes. The entries must be those of the final hashes.
#[test]
fn the_last_write_of_a_hash_is_what_its_index_has() {
    let (server, mut client) = client();
    client.say("ORDNA.INDEX CREATE last ON d: PARTS n NUMERIC");
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let address = server.address;
            scope.spawn(move || {
                let mut client = Client::new(address);
                let mut random = Random::new(writer);
                for n in 0..2000 {
                    let id = random.below(8);
                    match random.below(10) {
                        0 => client.say(&format!("DEL d:{id}")),
                        1 => client.say(&format!("HINCRBY d:{id} n 1")),
                        _ => client.say(&format!("HSET d:{id} n {}", n * 4 + writer)),
                    };
                }
            });
        }
    });
    let mut expected: Vec<(i64, String)> = Vec::new();
    for id in 0..8 {
        let id = format!("d:{id}");
        let n = words(&client.say(&format!("HGET {id} n"))).first().map(|n| n.parse());
        if let Some(Ok(n)) = n {
            expected.push((n, id));
        }
    }
    expected.sort();
    let found = ids(&client.say("ORDNA.INDEX SCAN last"));
    assert_eq!(found, expected.into_iter().map(|(_, id)| id).collect::<Vec<_>>());
}

/// One client writes two hashes in a transaction. No query of another client sees only the first.
#[test]
fn a_query_sees_all_of_a_transaction_or_nothing() {
    let (server, mut client) = client();
    client.say("ORDNA.INDEX CREATE n ON d: PARTS n NUMERIC");
    client.say("FT.CREATE ft PREFIX 1 d: SCHEMA g TAG");
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = Client::new(server.address);
            for n in 0.. {
                client.say("MULTI");
                for id in 0..20 {
                    let group = ["a", "b"][(id + n) % 2];
                    client.say(&format!("HSET d:{id} n {n} g {group}"));
                }
                client.say("EXEC");
                if stop.load(std::sync::atomic::Ordering::Relaxed) {
                    return;
                }
            }
        });
        for _ in 0..400 {
            let reply = client.say("ORDNA.INDEX SCAN n DISTINCT 1 ANY VALUES");
            let values = words(&reply).len();
            // The cursor alone, or with one hash and its number.
            assert!(values == 1 || values == 3, "{reply}");
            let reply = client.say("ORDNA.INDEX SCAN n DISTINCT 1");
            assert!(words(&reply).len() <= 2, "{reply}");
            let reply = client.ask(&[b"FT.SEARCH", b"ft", b"@g:{a}", b"LIMIT", b"0", b"0"]);
            assert!([r"*1\r\n:0\r\n", r"*1\r\n:10\r\n"].contains(&reply.as_str()), "{reply}");
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

/// An index does not return a hash that `EXISTS` no longer finds.
#[test]
fn queries_find_nothing_expired_or_removed() {
    let (server, mut client) = client();
    client.say("ORDNA.INDEX CREATE n ON d: PARTS n");
    client.say("FT.CREATE ft PREFIX 1 d: SCHEMA n NUMERIC");
    for _ in 0..30 {
        for query in ["ORDNA.INDEX COUNT n", "FT.SEARCH ft * LIMIT 0 0"] {
            client.say("HSET d:1 n 1");
            client.say("PEXPIRE d:1 5");
            while client.say("EXISTS d:1") != r":0\r\n" {}
            let reply = client.say(query);
            assert!([r":0\r\n", r"*1\r\n:0\r\n"].contains(&reply.as_str()), "{query}: {reply}");
        }
    }
    // Hashes are created and removed, and each returned one has its field.
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = Client::new(server.address);
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                for id in 0..20 {
                    client.send(format!("HSET d:{id} n 1\r\nDEL d:{id}\r\n").as_bytes());
                }
                (0..40).for_each(|_| drop(client.reply()));
            }
        });
        for _ in 0..2000 {
            let reply = client.say("FT.SEARCH ft *");
            if reply.contains(r"*0\r\n") {
                stop.store(true, std::sync::atomic::Ordering::Relaxed);
                panic!("a hash without fields: {reply}");
            }
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

#[test]
fn a_reader_defines_no_index() {
    let (server, mut client) = client();
    client.say("ORDNA.INDEX CREATE kept ON d: PARTS n");
    for (rules, may) in [
        ("+@read", false),
        ("+@read +@write", true),
        ("+ordna.index", true),
        ("+ordna.index -@write", false),
        ("+@write -@read", true),
        ("+@read +ordna.index|create +ordna.index|drop", true),
    ] {
        client.say("ACL DELUSER ann");
        client.say(&format!("ACL SETUSER ann on nopass ~* {rules}"));
        let mut ann = Client::new(server.address);
        ann.say("AUTH ann x");
        for line in ["ORDNA.INDEX create more ON d: PARTS n", "ORDNA.INDEX DROP more"] {
            let reply = ann.say(line);
            assert_eq!(reply == r"+OK\r\n", may, "{rules}: {line}: {reply}");
        }
        let reads = ann.say("ORDNA.INDEX COUNT kept") == r":0\r\n";
        assert_eq!(reads, rules.contains("+@read") || rules.contains("+ordna.index"), "{rules}");
    }
}

#[test]
fn a_page_has_at_least_one_row() {
    let (_server, mut client) = client();
    towns(&mut client);
    client.say("FT.CREATE towns PREFIX 1 t: SCHEMA country TAG");
    let first = client.say("FT.AGGREGATE towns * LOAD 1 name WITHCURSOR COUNT 0");
    assert_eq!(words(&first).iter().filter(|word| *word == "name").count(), 1, "{first}");
    let cursor = first.trim_end_matches(r"\r\n").rsplit(':').next().unwrap().to_owned();
    let next = client.say(&format!("FT.CURSOR READ towns {cursor} COUNT 0"));
    assert_eq!(words(&next).iter().filter(|word| *word == "name").count(), 1, "{next}");
}
