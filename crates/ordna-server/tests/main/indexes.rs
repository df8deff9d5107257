//! Indexes over hashes: `ORDNA.INDEX` and the forms of RediSearch.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::{Child, Client, Random, spawn, start};
use ordna_server::{Config, Data, LogSync};

fn client() -> (crate::common::Running, Client) {
    let server = start(Config::default());
    let client = Client::new(server.address);
    (server, client)
}

/// The bulk strings of a reply, without its lengths.
fn words(reply: &str) -> Vec<String> {
    let parts =
        reply.split(r"\r\n").filter(|part| !part.starts_with(['*', '$']) && !part.is_empty());
    parts.map(str::to_owned).collect()
}

fn ids(reply: &str) -> Vec<String> {
    words(reply).into_iter().skip(1).collect()
}

fn towns(client: &mut Client) {
    for line in [
        "HSET t:1 country SE population 1515017 name Stockholm tags capital,port",
        "HSET t:2 country SE population 608462 name Gothenburg tags port",
        "HSET t:3 country NO population 580000 name Oslo tags capital,port",
        "HSET t:4 country SE population 362133 name Malmo",
        "HSET t:5 country SE population unknown name Nowhere tags Lost",
        "HSET other:1 country SE population 1 name Elsewhere tags port",
        "SET t:text SE",
    ] {
        client.say(line);
    }
}

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
    // Each kind of change is in the next query.
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
        ("SCAN names LIMIT x", "LIMIT: 'x' is no number"),
        ("SCAN names FROM 5", "a bound begins with"),
        ("SCAN names PREFIX a TO [b", "PREFIX goes without"),
        ("SCAN names NOPE", "'NOPE' is not supported"),
        ("SCAN names AT nonsense", "is no vector"),
        ("CREATE names ON t: PARTS a", "an index named 'names' exists"),
        ("CREATE more ON t: PARTS", "0 parts"),
        ("CREATE more ON t: PARTS a WHERE b ~ 5", "filter, at byte"),
        ("CREATE more PARTS a", "lacks ON"),
        ("CREATE more ON t: PARTS a WHERE", "WHERE lacks a filter"),
        ("CREATE more\0 ON t: PARTS a", "has a byte 0"),
        ("CREATE more ON t: PARTS a\0", "has a byte 0"),
        ("NOPE", "unknown subcommand 'nope'"),
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
fn searches_find_what_passes() {
    let (_server, mut client) = client();
    towns(&mut client);
    let create = "FT.CREATE towns ON HASH PREFIX 1 t: SCHEMA country TAG SORTABLE \
                  population AS people NUMERIC SORTABLE tags TAG";
    assert_eq!(client.say(create), r"+OK\r\n");
    assert_eq!(client.say(create), r"-ERR Index already exists\r\n");
    let mut find = |query: &str, rest: &str| {
        let mut command: Vec<&[u8]> = vec![b"FT.SEARCH", b"towns", query.as_bytes()];
        command.extend(rest.split(' ').filter(|word| !word.is_empty()).map(str::as_bytes));
        client.ask(&command)
    };
    for (query, found) in [
        ("*", vec!["t:1", "t:2", "t:3", "t:4", "t:5"]),
        ("@country:{se}", vec!["t:1", "t:2", "t:4", "t:5"]),
        ("@country:{no|dk}", vec!["t:3"]),
        ("@tags:{capital|port}", vec!["t:1", "t:2", "t:3"]),
        ("@tags:{ca*}", vec!["t:1", "t:3"]),
        ("@tags:{lost}", vec!["t:5"]),
        ("-@tags:{port}", vec!["t:4", "t:5"]),
        ("@country:{SE} -@tags:{capital}", vec!["t:2", "t:4", "t:5"]),
        ("@people:[580000 (608462]", vec!["t:3"]),
        ("@people:[-inf +inf]", vec!["t:1", "t:2", "t:3", "t:4"]),
        ("@people:[(362133 inf] @country:{SE}", vec!["t:1", "t:2"]),
        ("@country:{NO} | @people:[0 400000]", vec!["t:3", "t:4"]),
        ("(@country:{NO} | @tags:{port}) @people:[600000 inf]", vec!["t:1", "t:2"]),
        ("@country:{xx}", vec![]),
    ] {
        let reply = find(query, "NOCONTENT LIMIT 0 100");
        let mut ids = ids(&reply);
        ids.sort();
        assert_eq!(ids, found, "{query}: {reply}");
        assert_eq!(words(&reply)[0], format!(":{}", found.len()), "{query}");
        assert_eq!(find(query, "LIMIT 0 0"), format!(r"*1\r\n:{}\r\n", found.len()), "{query}");
    }
    let sorted = find("@country:{SE}", "NOCONTENT SORTBY people DESC LIMIT 1 2 WITHCOUNT");
    assert_eq!(words(&sorted), [":4", "t:2", "t:4"]);
    let sorted = find("*", "NOCONTENT SORTBY people DIALECT 2");
    assert_eq!(ids(&sorted), ["t:4", "t:3", "t:2", "t:1", "t:5"], "without the field: last");
    let returned = find("@country:{NO}", "RETURN 4 people AS p name");
    assert_eq!(words(&returned), [":1", "t:3", "p", "580000", "name", "Oslo"]);
    let filtered = find("@country:{SE}", "NOCONTENT FILTER people (362133 1000000");
    assert_eq!(ids(&filtered), ["t:2"]);
    for (query, rest, part) in [
        ("@nope:{a}", "", "Unknown field 'nope'"),
        ("@people:{5}", "", "is NUMERIC"),
        ("@country:[1 2]", "", "is TAG"),
        ("words", "", "full-text search for words"),
        ("*", "WITHSCORES", "'WITHSCORES' is not supported"),
        ("*", "HIGHLIGHT", "'HIGHLIGHT' is not supported"),
        ("*", "SORTBY nope", "Unknown field 'nope'"),
        ("*", "LIMIT 0 1000000", "LIMIT"),
        ("*", "DIALECT 5", "DIALECT"),
    ] {
        let reply = find(query, rest);
        assert!(reply.starts_with("-ERR ") && reply.contains(part), "{query} {rest}: {reply}");
    }
    assert_eq!(client.say("FT.SEARCH nope *"), r"-ERR nope: no such index\r\n");
    let explained = client.ask(&[b"FT.EXPLAIN", b"towns", b"@country:{SE} @people:[1000000 inf]"]);
    assert!(explained.contains("INDEX towns.people BOUNDS @people:[1000000 inf]"), "{explained}");
    assert!(explained.contains("ENTRIES 1"), "{explained}");
    assert_eq!(client.say("FT.ALTER towns SCHEMA ADD name TAG"), r"+OK\r\n");
    let by_name = client.ask(&[b"FT.SEARCH", b"towns", b"@name:{os*}", b"NOCONTENT"]);
    assert_eq!(ids(&by_name), ["t:3"]);
    assert!(client.say("FT.ALTER towns SCHEMA ADD name TAG").contains("Duplicate field"));
    for (line, part) in [
        ("FT.CREATE x SCHEMA a TEXT", "'TEXT' is not supported"),
        ("FT.CREATE x SCHEMA a VECTOR", "'VECTOR' is not supported"),
        ("FT.CREATE x ON JSON SCHEMA a TAG", "'JSON' is not supported"),
        ("FT.CREATE x FILTER y SCHEMA a TAG", "'FILTER' is not supported"),
        ("FT.CREATE x SCHEMA a TAG a TAG", "Duplicate field"),
        ("FT.CREATE x SCHEMA a TAG WITHSUFFIXTRIE", "'WITHSUFFIXTRIE' is not supported"),
        ("FT.CREATE x\0 SCHEMA a TAG", "has a byte 0"),
        ("FT.CREATE x SCHEMA \0 TAG", "has a byte 0"),
        ("FT.CREATE x SCHEMA a AS b\0 TAG", "has a byte 0"),
        ("FT.INFO nope", "no such index"),
        ("FT.DROPINDEX nope", "no such index"),
        ("FT.CURSOR READ towns 77", "Cursor not found, id: 77"),
    ] {
        let reply = client.say(line);
        assert!(reply.starts_with("-ERR ") && reply.contains(part), "{line}: {reply}");
    }
    for [command, name, rest @ ..] in [
        ["FT.CREATE", "", "SCHEMA", "a", "TAG", "SORTABLE"],
        ["ORDNA.INDEX CREATE", "", "ON", "t:", "PARTS", "a"],
    ] {
        let mut asked: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
        asked.push(name.as_bytes());
        asked.extend(rest.map(str::as_bytes));
        assert_eq!(client.ask(&asked), r"-ERR the name of the index is empty\r\n");
    }
    assert_eq!(words(&client.say("FT._LIST")), ["towns"]);
    assert!(client.say("FT.INFO towns").contains(r"num_docs\r\n:5\r\n"));
    assert_eq!(client.say("FT.DROPINDEX towns DD"), r"+OK\r\n");
    assert_eq!(client.say("EXISTS t:1 t:2 t:text other:1"), r":2\r\n");
    assert_eq!(client.say("FT._LIST"), r"*0\r\n");
}

#[test]
fn aggregations_group_and_count() {
    let (_server, mut client) = client();
    towns(&mut client);
    client.say("FT.CREATE towns ON HASH PREFIX 1 t: SCHEMA country TAG population NUMERIC");
    let reply = client.say(
        "FT.AGGREGATE towns * GROUPBY 1 @country REDUCE COUNT 0 AS n REDUCE SUM 1 @population AS sum \
         REDUCE MAX 1 @population AS max REDUCE AVG 1 @population AS avg SORTBY 2 @n DESC",
    );
    let avg = (1_515_017.0 + 608_462.0 + 362_133.0) / 3.0_f64;
    let expected = format!(
        ":2 country SE n 4 sum 2485612 max 1515017 avg {avg} country NO n 1 sum 580000 max 580000 avg 580000"
    );
    assert_eq!(words(&reply).join(" "), expected);
    let loaded =
        client.say("FT.AGGREGATE towns @country:{SE} LOAD 1 @name SORTBY 1 @name LIMIT 1 2");
    assert_eq!(words(&loaded), [":4", "name", "Malmo", "name", "Nowhere"]);
    let first = client.say("FT.AGGREGATE towns * LOAD 1 name WITHCURSOR COUNT 3");
    let cursor = first.trim_end_matches(r"\r\n").rsplit(':').next().unwrap().to_owned();
    assert_eq!(words(&first).iter().filter(|word| *word == "name").count(), 3);
    let rest = client.say(&format!("FT.CURSOR READ towns {cursor}"));
    assert_eq!(words(&rest).iter().filter(|word| *word == "name").count(), 2);
    assert!(rest.ends_with(r":0\r\n"), "{rest}");
    assert!(client.say(&format!("FT.CURSOR READ towns {cursor}")).contains("Cursor not found"));
    let first = client.say("FT.AGGREGATE towns * LOAD 1 name WITHCURSOR COUNT 1");
    let cursor = first.trim_end_matches(r"\r\n").rsplit(':').next().unwrap().to_owned();
    client.say("FT.DROPINDEX towns");
    client.say("FT.CREATE towns ON HASH PREFIX 1 t: SCHEMA country TAG population NUMERIC");
    let stale = client.say(&format!("FT.CURSOR READ towns {cursor}"));
    assert_eq!(stale, format!(r"-ERR Cursor not found, id: {cursor}\r\n"));
    for (rest, part) in [
        ("APPLY x AS y", "'APPLY' is not supported"),
        ("FILTER x", "'FILTER' is not supported"),
        ("GROUPBY 1 @country REDUCE TOLIST 1 @x", "'TOLIST' is not supported"),
        ("GROUPBY 1 @country REDUCE SUM 0", "takes 1 arguments"),
        ("GROUPBY 1 @country SORTBY 1 @nope", "Property 'nope' is not there"),
        ("SORTBY 1 @nope", "Property 'nope' is not there"),
        ("GROUPBY 1 @nope", "Property 'nope' is not there"),
        ("GROUPBY 1 @country REDUCE SUM 1 @nope", "Property 'nope' is not there"),
        ("SORTBY 1 @country GROUPBY 1 @nope", "Property 'nope' is not there"),
        ("LOAD * GROUPBY 1 @nope", "Property 'nope' is not there"),
    ] {
        let reply = client.say(&format!("FT.AGGREGATE towns * {rest}"));
        assert!(reply.starts_with("-ERR ") && reply.contains(part), "{rest}: {reply}");
    }
}

/// Random hashes, and queries against what they must find.
#[test]
fn indexes_agree_with_a_recomputation() {
    let (_server, mut client) = client();
    let mut random = Random::new(7);
    client.say("ORDNA.INDEX CREATE both ON d: PARTS tag n DESC");
    client.say("FT.CREATE ft PREFIX 1 d: SCHEMA tag TAG n NUMERIC");
    let mut model: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for round in 0..60 {
        for _ in 0..random.below(40) {
            let id = format!("d:{:03}", random.below(120));
            if random.below(4) == 0 {
                client.say(&format!("DEL {id}"));
                model.remove(&id);
            } else {
                let (tag, n) = (random.below(5), random.below(50));
                client.say(&format!("HSET {id} tag g{tag} n {n}"));
                model.insert(id, (tag, n));
            }
        }
        let (tag, low) = (random.below(5), random.below(50));
        let mut expected: Vec<(usize, &String)> = model
            .iter()
            .filter(|(_, value)| value.0 == tag && value.1 >= low)
            .map(|(id, value)| (value.1, id))
            .collect();
        expected.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(b.1)));
        let expected: Vec<&String> = expected.into_iter().map(|(_, id)| id).collect();
        let scan = format!("ORDNA.INDEX SCAN both EQ g{tag} FROM [{low} LIMIT 1000");
        let found = ids(&client.say(&scan));
        assert_eq!(found.iter().collect::<Vec<_>>(), expected, "round {round}");
        let query = format!("@tag:{{g{tag}}} @n:[{low} inf]");
        let search: Vec<&[u8]> = vec![
            b"FT.SEARCH",
            b"ft",
            query.as_bytes(),
            b"NOCONTENT",
            b"SORTBY",
            b"n",
            b"DESC",
            b"LIMIT",
            b"0",
            b"1000",
        ];
        let found = ids(&client.ask(&search));
        assert_eq!(found.iter().collect::<Vec<_>>(), expected, "round {round}");
    }
}

/// Many connections write the same hashes: the entries are those of the final hashes.
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

/// A million and one hashes: what would look at all of them, or return too many, is refused.
#[test]
fn a_query_that_would_sort_everything_is_refused() {
    let (_server, mut client) = client();
    client.say("FT.CREATE ft PREFIX 1 d: SCHEMA n NUMERIC");
    const LOT: usize = 10_000;
    for start in (0..=1_000_000).step_by(LOT) {
        let ids = start..(start + LOT).min(1_000_001);
        let mut lot = Vec::new();
        for id in ids.clone() {
            let id = id.to_string();
            let key = format!("d:{id}");
            lot.extend(crate::common::request(&[b"HSET", key.as_bytes(), b"n", id.as_bytes()]));
        }
        client.send(&lot);
        ids.for_each(|_| assert_eq!(client.reply(), b":1\r\n"));
    }
    for query in ["FT.SEARCH ft * SORTBY n", "FT.SEARCH ft -@n:[5,5]", "FT.AGGREGATE ft *"] {
        let words: Vec<String> = query.split(' ').map(|word| word.replace(',', " ")).collect();
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        let reply = client.ask(&words);
        assert!(reply.starts_with("-ERR the query would look at more than"), "{query}: {reply}");
    }
    let reply = client.ask(&[b"FT.SEARCH", b"ft", b"@n:[5 7]", b"NOCONTENT", b"SORTBY", b"n"]);
    assert_eq!(ids_of(&reply), ["d:5", "d:6", "d:7"]);
    let reply = client.say("FT.SEARCH ft * LIMIT 0 100001");
    assert!(reply.starts_with("-ERR LIMIT"), "{reply}");
}

fn durable(dir: &Path) -> Config {
    let data = Data { log: LogSync::Always, ..Data::new(dir.to_owned()) };
    Config { data: Some(data), ..Config::default() }
}

#[test]
fn indexes_come_back_after_a_restart() {
    let dir = std::env::temp_dir().join(format!("ordna-indexes-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    let cursor;
    {
        let mut server = start(durable(&dir));
        let mut client = Client::new(server.address);
        while client.say("PING").contains("LOADING") || client.say("DBSIZE").contains("LOADING") {}
        client.say("ORDNA.INDEX CREATE gone ON t: PARTS name");
        client.say(
            "ORDNA.INDEX CREATE size ON t: PARTS country population DESC WHERE population > 5",
        );
        client.say("FT.CREATE towns PREFIX 1 t: SCHEMA country TAG");
        towns(&mut client);
        client.say("ORDNA.INDEX DROP gone");
        client.say("HSET t:1 population 10");
        cursor = words(&client.say("ORDNA.INDEX SCAN size LIMIT 1"))[0].clone();
        drop(client);
        server.stop();
    }
    let mut server = start(durable(&dir));
    let mut client = Client::new(server.address);
    while client.say("DBSIZE").contains("LOADING") {}
    assert_eq!(words(&client.say("ORDNA.INDEX LIST")), ["size"]);
    assert_eq!(words(&client.say("ORDNA.INDEX SCAN size EQ SE")), ["0", "t:2", "t:4", "t:1"]);
    let next = client.say(&format!("ORDNA.INDEX SCAN size LIMIT 1 CURSOR {cursor}"));
    assert_eq!(words(&next)[1..], ["t:2"], "{next}");
    let found = client.ask(&[b"FT.SEARCH", b"towns", b"@country:{SE}", b"LIMIT", b"0", b"0"]);
    assert_eq!(found, r"*1\r\n:4\r\n");
    client.say("HSET t:9 country SE population 99999999");
    assert_eq!(words(&client.say("ORDNA.INDEX SCAN size EQ SE LIMIT 1"))[1..], ["t:9"]);
    drop(client);
    server.stop();
    // A damaged file is told, and stays as it is.
    let file = dir.join("indexes.json");
    std::fs::write(&file, "{ damaged").unwrap();
    let server = start(durable(&dir));
    let mut client = Client::new(server.address);
    while client.say("DBSIZE").contains("LOADING") {}
    let refused = client.say("ORDNA.INDEX CREATE more ON t: PARTS name");
    assert!(refused.contains("indexes.json"), "{refused}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "{ damaged");
    let _ = std::fs::remove_dir_all(&dir);
}

/// A transaction of one client writes two hashes: no query of another one sees the first alone.
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
            // The cursor, and one hash with its number.
            assert!(values == 1 || values == 3, "{reply}");
            let reply = client.say("ORDNA.INDEX SCAN n DISTINCT 1");
            assert!(words(&reply).len() <= 2, "{reply}");
            let reply = client.ask(&[b"FT.SEARCH", b"ft", b"@g:{a}", b"LIMIT", b"0", b"0"]);
            assert!([r"*1\r\n:0\r\n", r"*1\r\n:10\r\n"].contains(&reply.as_str()), "{reply}");
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

/// A number in `ORDNA.INDEX INFO`.
fn number(client: &mut Client, index: &str, field: &str) -> u64 {
    let info = words(&client.say(&format!("ORDNA.INDEX INFO {index}")));
    let at = info.iter().position(|word| word == field).unwrap();
    info[at + 1].trim_start_matches(':').parse().unwrap()
}

fn killed_and_started(child: Child, dir: &Path) -> (Child, Client) {
    // SIGKILL.
    drop(child);
    let child = spawn(&format!("dir={}", dir.display()));
    let mut client = Client::new(child.address);
    while client.say("DBSIZE").contains("LOADING") {}
    (child, client)
}

/// What each index must hold, from the hashes.
fn assert_current(client: &mut Client, ids: std::ops::Range<usize>) {
    let mut expected: Vec<(i64, String)> = Vec::new();
    for id in ids {
        let id = format!("d:{id:04}");
        if let Some(Ok(n)) = words(&client.say(&format!("HGET {id} n"))).first().map(|n| n.parse())
        {
            expected.push((n, id));
        }
    }
    expected.sort();
    let expected: Vec<String> = expected.into_iter().map(|(_, id)| id).collect();
    assert_eq!(words(&client.say("ORDNA.INDEX SCAN n LIMIT 10000"))[1..], expected);
    let search = "FT.SEARCH ft * SORTBY n LIMIT 0 10000 NOCONTENT";
    assert_eq!(ids_of(&client.say(search)), expected);
}

fn ids_of(reply: &str) -> Vec<String> {
    words(reply).into_iter().filter(|word| !word.starts_with(':')).collect()
}

/// Kills a server that has backed up and gone on: the indexes go on from their backup.
#[test]
fn indexes_go_on_from_their_backup_after_a_kill() {
    let dir = std::env::temp_dir().join(format!("ordna-resume-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    let child = spawn(&format!("dir={}", dir.display()));
    let mut client = Client::new(child.address);
    while client.say("DBSIZE").contains("LOADING") {}
    client.say("ORDNA.INDEX CREATE n ON d: PARTS n NUMERIC");
    client.say("ORDNA.INDEX CREATE dropped ON d: PARTS n");
    client.say("FT.CREATE ft PREFIX 1 d: SCHEMA n NUMERIC SORTABLE tag TAG");
    let write = |client: &mut Client, ids: std::ops::Range<usize>, shift: usize| {
        ids.for_each(|id| {
            client.say(&format!("HSET d:{id:04} n {} tag t", id * 7 % 1000 + shift));
        });
    };
    write(&mut client, 0..1000, 0);
    // Two of them expire: one before the restart, one later.
    client.say("PEXPIRE d:0001 1500");
    client.say("PEXPIRE d:0002 4000");
    let backup = |client: &mut Client| {
        client.say("BGSAVE");
        while client.say("INFO persistence").contains("rdb_bgsave_in_progress:1") {}
    };
    backup(&mut client);
    let changes = |client: &mut Client, shift| {
        write(client, 100..150, shift);
        client.say("DEL d:0200 d:0201");
        client.say("RENAME d:0202 d:1000");
        client.say("HSET d:0203 n 777");
    };
    changes(&mut client, 5000);
    client.say("ORDNA.INDEX DROP dropped");
    client.say("ORDNA.INDEX CREATE late ON d: PARTS tag n");
    let cursor = words(&client.say("ORDNA.INDEX SCAN n LIMIT 1"))[0].clone();
    let vector = words(&client.say("ORDNA.INDEX INFO n"));
    let vector = vector[vector.iter().position(|word| word == "vector").unwrap() + 1].clone();
    std::thread::sleep(Duration::from_millis(1600));
    let (child, mut client) = killed_and_started(child, &dir);
    assert_current(&mut client, 0..1001);
    assert_eq!(number(&mut client, "n", "built"), 0, "it was built again");
    client.say("ORDNA.INDEX COUNT late");
    assert!(number(&mut client, "late", "built") > 900, "it was not built");
    assert_eq!(words(&client.say("ORDNA.INDEX LIST")), ["late", "n"]);
    let next = client.say(&format!("ORDNA.INDEX SCAN n LIMIT 1 CURSOR {cursor}"));
    assert_eq!(words(&next).len(), 2, "{next}");
    // The position goes on behind the one from before.
    let later = client.say(&format!("ORDNA.INDEX COUNT n AT {vector} TIMEOUT 10000"));
    assert!(later.starts_with(':'), "{later}");
    let patience = Instant::now() + Duration::from_secs(20);
    while client.say("EXISTS d:0002") != r":0\r\n" {
        assert!(Instant::now() < patience);
    }
    while number(&mut client, "n", "entries") > 996 {
        assert!(Instant::now() < patience, "an expired hash stays in its index");
    }
    assert_current(&mut client, 0..1001);
    // Again without a new backup.
    changes(&mut client, 9000);
    let (child, mut client) = killed_and_started(child, &dir);
    assert_current(&mut client, 0..1001);
    assert_eq!(number(&mut client, "n", "built"), 0);
    // A backup of the keyspace alone: that of the indexes lacks what came before it.
    std::fs::rename(dir.join("indexes"), dir.join("kept")).unwrap();
    write(&mut client, 300..320, 20_000);
    backup(&mut client);
    let _ = std::fs::remove_dir_all(dir.join("indexes"));
    std::fs::rename(dir.join("kept"), dir.join("indexes")).unwrap();
    let (child, mut client) = killed_and_started(child, &dir);
    assert_current(&mut client, 0..1001);
    assert!(number(&mut client, "n", "built") > 900);
    backup(&mut client);
    client.say("ORDNA.DELRANGE [d:0400 [d:0500");
    let (child, mut client) = killed_and_started(child, &dir);
    assert_current(&mut client, 0..1001);
    backup(&mut client);
    client.say("FLUSHALL");
    write(&mut client, 0..10, 0);
    let (child, mut client) = killed_and_started(child, &dir);
    assert_current(&mut client, 0..1001);
    // A damaged backup of the indexes is not used.
    write(&mut client, 0..500, 0);
    backup(&mut client);
    let newest = std::fs::read_dir(dir.join("indexes")).unwrap().map(|entry| entry.unwrap().path());
    let newest = newest.filter(|path| path.is_dir()).max().unwrap();
    std::fs::write(newest.join("SERVICE.json"), "{").unwrap();
    let (child, mut client) = killed_and_started(child, &dir);
    assert_current(&mut client, 0..1001);
    assert_eq!(number(&mut client, "n", "entries"), 500);
    drop(child);
    let _ = std::fs::remove_dir_all(&dir);
}

/// Kills a server at random moments of a load with backups; the entries are those of the hashes.
#[test]
fn kills_under_load_leave_current_indexes() {
    let dir = std::env::temp_dir().join(format!("ordna-kills-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    let mut random = Random::new(3);
    let mut child = spawn(&format!("dir={}", dir.display()));
    let mut client = Client::new(child.address);
    while client.say("DBSIZE").contains("LOADING") {}
    client.say("ORDNA.INDEX CREATE n ON d: PARTS n NUMERIC");
    client.say("FT.CREATE ft PREFIX 1 d: SCHEMA n NUMERIC SORTABLE");
    for _ in 0..6 {
        for _ in 0..1 + random.below(3) {
            let mut commands = Vec::new();
            for _ in 0..random.below(3000) {
                let id = format!("d:{:04}", random.below(800));
                let n = random.below(1_000_000).to_string();
                match random.below(8) {
                    0 => commands.extend(crate::common::request(&[b"DEL", id.as_bytes()])),
                    1 => commands.extend(crate::common::request(&[
                        b"PEXPIRE",
                        id.as_bytes(),
                        &n.as_bytes()[..n.len().min(3)],
                    ])),
                    _ => commands.extend(crate::common::request(&[
                        b"HSET",
                        id.as_bytes(),
                        b"n",
                        n.as_bytes(),
                    ])),
                }
            }
            client.send(&commands);
            client.send(&crate::common::request(&[b"BGSAVE"]));
            std::thread::sleep(Duration::from_millis(random.below(60) as u64));
        }
        (child, client) = killed_and_started(child, &dir);
        // No key may expire while hashes and entries are compared.
        for id in 0..800 {
            client.say(&format!("PERSIST d:{id:04}"));
        }
        assert_current(&mut client, 0..800);
    }
    drop(child);
    let _ = std::fs::remove_dir_all(&dir);
}

/// An index shows no hash that `EXISTS` no longer finds.
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
    // Hashes come and go: each that is returned has its field.
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
fn tags_without_case_know_the_sigma_at_the_end() {
    let (_server, mut client) = client();
    client.say("FT.CREATE ft PREFIX 1 d: SCHEMA tag TAG");
    client.ask(&[b"HSET", b"d:1", b"tag", "ΟΔΟΣΑ".as_bytes()]);
    client.ask(&[b"HSET", b"d:2", b"tag", "οδος".as_bytes()]);
    for (query, found) in [("@tag:{ΟΔΟΣ*}", vec!["d:1", "d:2"]), ("@tag:{ΟΔΟΣ}", vec!["d:2"])]
    {
        let reply = client.ask(&[b"FT.SEARCH", b"ft", query.as_bytes(), b"NOCONTENT"]);
        let mut found_ids = ids(&reply);
        found_ids.sort();
        assert_eq!(found_ids, found, "{query}");
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

#[test]
fn aggregations_know_keys_and_types() {
    let (_server, mut client) = client();
    towns(&mut client);
    client.say("FT.CREATE towns PREFIX 1 t: SCHEMA country TAG population AS people NUMERIC");
    let sorted = client.say("FT.AGGREGATE towns * LOAD 1 @__key SORTBY 2 @people DESC MAX 3");
    let keys: Vec<String> =
        words(&sorted).into_iter().filter(|word| word.starts_with("t:")).collect();
    assert_eq!(keys, ["t:1", "t:2", "t:3"], "a text is no number: {sorted}");
    let grouped = client.say("FT.AGGREGATE towns @country:{NO} GROUPBY 1 @__key");
    assert_eq!(words(&grouped), [":1", "__key", "t:3"]);
    let grouped = client.say("FT.AGGREGATE towns @country:{NO} LOAD * GROUPBY 1 @people");
    assert_eq!(words(&grouped), [":1", "people", "580000"]);
    let returned = client.say("FT.SEARCH towns @country:{NO} RETURN 2 @__key name");
    assert_eq!(words(&returned), [":1", "t:3", "__key", "t:3", "name", "Oslo"]);
    let loaded = client.say("FT.AGGREGATE towns @country:{NO} LOAD *");
    assert_eq!(words(&loaded).len(), 1 + 8, "{loaded}");
}
