//! Tests of `FT.SEARCH` and `FT.AGGREGATE`.

use std::collections::BTreeMap;

use crate::common::Random;
use crate::indexes::{client, ids, ids_of, towns, words};

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

/// Random hashes and queries. The results are compared with a direct computation.
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

/// With 1,000,001 hashes, queries that would visit all of them or return too many are refused.
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
fn aggregations_know_keys_and_types() {
    let (_server, mut client) = client();
    towns(&mut client);
    client.say("FT.CREATE towns PREFIX 1 t: SCHEMA country TAG population AS people NUMERIC");
    let sorted = client.say("FT.AGGREGATE towns * LOAD 1 @__key SORTBY 2 @people DESC MAX 3");
    let keys: Vec<String> =
        words(&sorted).into_iter().filter(|word| word.starts_with("t:")).collect();
    assert_eq!(keys, ["t:1", "t:2", "t:3"], "a text is not a number: {sorted}");
    let grouped = client.say("FT.AGGREGATE towns @country:{NO} GROUPBY 1 @__key");
    assert_eq!(words(&grouped), [":1", "__key", "t:3"]);
    let grouped = client.say("FT.AGGREGATE towns @country:{NO} LOAD * GROUPBY 1 @people");
    assert_eq!(words(&grouped), [":1", "people", "580000"]);
    let returned = client.say("FT.SEARCH towns @country:{NO} RETURN 2 @__key name");
    assert_eq!(words(&returned), [":1", "t:3", "__key", "t:3", "name", "Oslo"]);
    let loaded = client.say("FT.AGGREGATE towns @country:{NO} LOAD *");
    assert_eq!(words(&loaded).len(), 1 + 8, "{loaded}");
}

#[test]
fn there_are_1024_indexes_at_most() {
    const MOST: usize = 1024;
    let (_server, mut client) = client();
    let create = |number| format!("FT.CREATE i{number} PREFIX 1 p{number}: SCHEMA n NUMERIC");
    for number in 0..MOST {
        assert_eq!(client.say(&create(number)), r"+OK\r\n", "{number}");
    }
    assert_eq!(client.say(&create(MOST)), r"-ERR there are 1024 indexes already\r\n");
    assert_eq!(client.say("FT.DROPINDEX i7"), r"+OK\r\n");
    assert_eq!(client.say(&create(MOST)), r"+OK\r\n");
}

/// `TIMEOUT 0` means no limit: the search waits for the earlier writes.
#[test]
fn a_timeout_of_0_waits() {
    let (_server, mut client) = client();
    client.say("FT.CREATE i PREFIX 1 d: SCHEMA n NUMERIC");
    for number in 1..=50 {
        client.say(&format!("HSET d:{number} n {number}"));
        let found = client.say("FT.SEARCH i * LIMIT 0 0 TIMEOUT 0");
        assert_eq!(found, format!(r"*1\r\n:{number}\r\n"));
    }
}
