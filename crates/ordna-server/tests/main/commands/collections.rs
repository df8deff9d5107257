//! Tests of all types of collections in both forms: large ones behave like small ones, and the
//! elements of large ones are invisible and are removed with their key.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use ordna_server::{Config, LogSync};

use crate::common::{Client, Random, Running, start};
use crate::state::persistence::{Dir, loaded, say};

/// Returns a field of `INFO`.
fn field(client: &mut Client, name: &str) -> usize {
    let info = say(client, "INFO memory");
    let start = info.find(&format!(" {name}:")).unwrap_or_else(|| panic!("no {name} in {info}"));
    let rest = &info[start + name.len() + 2..];
    rest.split(' ').next().unwrap().parse().unwrap()
}

/// Waits until no collection is being removed. Returns the number of entries that are not keys of
/// users.
pub fn settled(client: &mut Client) -> usize {
    let begin = Instant::now();
    while field(client, "lazyfree_pending_objects") > 0 {
        assert!(begin.elapsed() < Duration::from_secs(20), "elements are not removed");
        std::thread::sleep(Duration::from_millis(5));
    }
    field(client, "ordna_reserved_entries")
}

/// Creates a large collection of each type: `hash`, `set`, `zset` and `list`, with 1,000 elements
/// each.
fn fill(client: &mut Client) {
    for (command, key) in [("HSET", "hash"), ("SADD", "set"), ("ZADD", "zset"), ("RPUSH", "list")] {
        for part in 0..4 {
            let mut words: Vec<Vec<u8>> = vec![command.into(), key.into()];
            for at in part * 250..part * 250 + 250 {
                match key {
                    "hash" => words.extend([format!("f{at}").into(), format!("v{at}").into()]),
                    "zset" => words.extend([format!("{at}").into(), format!("m{at}").into()]),
                    _ => words.push(format!("m{at}").into()),
                }
            }
            let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
            assert!(client.ask(&words).starts_with(':'));
        }
    }
}

/// Number of entries of the four collections of [`fill`]. A sorted set has two for each member, and
/// a list has one for about two hundred values.
const FILLED: usize = 4005;

fn fresh() -> (Running, Client) {
    let server = start(Config::default());
    let client = Client::new(server.address);
    (server, client)
}

/// Options of Redis 7.2 and Valkey 8, on a small and on a large sorted set.
#[test]
fn ranks_come_with_scores_and_scans_without() {
    for protocol in [2, 3] {
        let (_server, mut client) = fresh();
        client.resp3 = protocol == 3;
        client.say(&format!("HELLO {protocol}"));
        fill(&mut client);
        client.say("ZADD small 1.5 a 2 b");
        client.say("SET text x");
        let score = |score: &str| match protocol {
            2 => format!(r"${}\r\n{score}\r\n", score.len()),
            _ => format!(r",{score}\r\n"),
        };
        let pair = |rank: usize, of: &str| format!(r"*2\r\n:{rank}\r\n{}", score(of));
        let (absent, absent_rank) =
            if protocol == 2 { (r"*-1\r\n", r"$-1\r\n") } else { (r"_\r\n", r"_\r\n") };
        for (line, expected) in [
            ("ZRANK small a WITHSCORE", pair(0, "1.5")),
            ("ZREVRANK small a withscore", pair(1, "1.5")),
            ("ZRANK zset m700 WITHSCORE", pair(700, "700")),
            ("ZREVRANK zset m700 WITHSCORE", pair(299, "700")),
            ("ZRANK zset m700", r":700\r\n".to_owned()),
            ("ZRANK small c WITHSCORE", absent.to_owned()),
            ("ZREVRANK nothing a WITHSCORE", absent.to_owned()),
            ("ZRANK small c", absent_rank.to_owned()),
            ("ZRANK small a WITHSCORES", r"-ERR syntax error\r\n".to_owned()),
            (
                "ZREVRANK small a WITHSCORE b",
                r"-ERR wrong number of arguments for 'zrevrank' command\r\n".to_owned(),
            ),
            ("ZSCAN small 0 NOSCORES", r"*2\r\n$1\r\n0\r\n*2\r\n$1\r\na\r\n$1\r\nb\r\n".into()),
            ("ZSCAN small 0 NOSCORES MATCH b", r"*2\r\n$1\r\n0\r\n*1\r\n$1\r\nb\r\n".into()),
            ("ZSCAN small 0 NOVALUES", r"-ERR syntax error\r\n".into()),
            ("HSCAN hash 0 NOSCORES", r"-ERR syntax error\r\n".into()),
        ] {
            assert_eq!(client.say(line), expected, "{protocol} {line}");
        }
        assert!(client.say("ZRANK text a WITHSCORE").starts_with("-WRONGTYPE"));
        let found = client.say("ZSCAN zset 0 COUNT 2000 NOSCORES");
        assert!(found.starts_with(r"*2\r\n$1\r\n0\r\n*1000\r\n$"), "{found}");
    }
}

#[test]
fn elements_of_large_collections_show_nowhere() {
    let (_server, mut client) = fresh();
    fill(&mut client);
    // The lowest and the highest keys, and keys that are stored in another form.
    let keys: [&[u8]; 7] =
        [b"", b"a", b"\xFE", b"\xFE\x00", b"\xFF", b"\xFF\x01\x01x", b"\xFF\xFF"];
    for key in keys {
        assert_eq!(client.ask(&[b"SET", key, b"v"]), r"+OK\r\n");
    }
    assert_eq!(say(&mut client, "DBSIZE"), ":11");
    assert_eq!(say(&mut client, "ORDNA.COUNT - +"), ":11");
    assert!(say(&mut client, "KEYS *").starts_with("*11 "));
    assert!(say(&mut client, "SCAN 0 COUNT 1000").starts_with("*2 $1 0 *11 "));
    assert!(say(&mut client, "ORDNA.RANGE - + KEYS").starts_with("*11 "));
    assert!(say(&mut client, "INFO keyspace").contains("keys=11"));
    assert_eq!(client.say("ORDNA.LAST"), r"*2\r\n$2\r\n\xff\xff\r\n$1\r\nv\r\n");
    assert_eq!(
        client.ask(&[b"ORDNA.FLOOR", b"\xFF\xFE"]),
        r"*2\r\n$4\r\n\xff\x01\x01x\r\n$1\r\nv\r\n"
    );
    assert_eq!(client.ask(&[b"ORDNA.CEIL", b"\xFF\xFF\x00"]), r"*-1\r\n");
    assert_eq!(client.ask(&[b"ORDNA.RANK", b"\xFF\xFF"]), r":10\r\n");
    assert_eq!(client.say("ORDNA.AT -1"), r"*2\r\n$2\r\n\xff\xff\r\n$1\r\nv\r\n");
    assert_eq!(client.say("ORDNA.AT 11"), r"*-1\r\n");
    let mut met = BTreeSet::new();
    for _ in 0..300 {
        met.insert(client.say("RANDOMKEY"));
    }
    assert!(met.len() <= 11 && met.len() > 5, "{met:?}");
    assert_eq!(settled(&mut client), FILLED);
    assert_eq!(say(&mut client, "ORDNA.DELRANGE - +"), ":11");
    assert_eq!(say(&mut client, "DBSIZE"), ":0");
    assert_eq!(settled(&mut client), 0);
}

/// All ways in which a key can lose its value.
#[test]
fn the_elements_go_with_their_key() {
    let (_server, mut client) = fresh();
    let ways = [
        "DEL hash set zset list",
        "UNLINK hash; UNLINK set; UNLINK zset; UNLINK list",
        "SET hash v; SET set v; MSET zset v list v; DEL hash set zset list",
        "RENAME hash h2; COPY set s2; MSET h2 v s2 v zset v list v; DEL h2 set s2 zset list",
        "SET n v; RENAME n hash; SET n v; COPY n set REPLACE; RENAME set zset; RENAME zset list; DEL hash list n",
        "PEXPIRE hash 1; EXPIREAT set 1; PEXPIRE zset 30; PEXPIRE zset 100000; PERSIST zset; \
         PEXPIRE zset 20; PEXPIRE list 10; RENAME list other",
        "MULTI; DEL hash; DEL set; EXPIRE zset -1; DEL list; EXEC",
        "SUNIONSTORE hash none; SADD s x; SUNIONSTORE set s; ZUNIONSTORE zset 1 s; RENAME s list; \
         DEL set zset list",
        "LTRIM list 1 0; ZREMRANGEBYRANK zset 0 -1; SPOP set 2000; RENAME hash zset; DEL zset",
        "GETDEL none; COPY hash h2; COPY set s2; COPY zset z2; COPY list l2; DEL hash set zset list; \
         EXPIRE h2 100; DEL h2 s2 z2 l2",
        "FLUSHALL",
    ];
    for way in ways {
        fill(&mut client);
        assert_eq!(settled(&mut client), FILLED, "before {way}");
        way.split("; ").for_each(|line| drop(client.say(line)));
        let begin = Instant::now();
        while say(&mut client, "DBSIZE") != ":0" || settled(&mut client) > 0 {
            let (size, entries) = (say(&mut client, "DBSIZE"), settled(&mut client));
            let keys = say(&mut client, "KEYS *");
            assert!(
                begin.elapsed() < Duration::from_secs(10),
                "{way}: {size} keys ({keys}), {entries} entries stay"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The contents that the server must have.
#[derive(Default)]
struct Model {
    hash: BTreeMap<String, String>,
    set: BTreeSet<String>,
    zset: BTreeMap<String, i64>,
    list: VecDeque<String>,
}

impl Model {
    fn ordered(&self) -> Vec<(i64, String)> {
        let mut all: Vec<_> =
            self.zset.iter().map(|(member, score)| (*score, member.clone())).collect();
        all.sort();
        all
    }

    fn compare(&self, client: &mut Client, at: usize) {
        let bulk = |reply: String| -> Vec<String> {
            let parts = reply.split(r"\r\n").filter(|part| !part.starts_with(['*', '$', ':']));
            parts.filter(|part| !part.is_empty()).map(str::to_owned).collect()
        };
        let pairs = bulk(client.say("HGETALL hash"));
        let pairs: BTreeMap<String, String> =
            pairs.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect();
        assert_eq!(pairs, self.hash, "step {at}");
        let members: BTreeSet<String> = bulk(client.say("SMEMBERS set")).into_iter().collect();
        assert_eq!(members, self.set, "step {at}");
        let expected: Vec<String> = self.ordered().into_iter().map(|(_, member)| member).collect();
        assert_eq!(bulk(client.say("ZRANGE zset 0 -1")), expected, "step {at}");
        assert_eq!(bulk(client.say("LRANGE list 0 -1")), Vec::from(self.list.clone()), "step {at}");
        let sizes = [self.hash.len(), self.set.len(), self.zset.len(), self.list.len()];
        for (line, size) in ["HLEN hash", "SCARD set", "ZCARD zset", "LLEN list"].iter().zip(sizes)
        {
            assert_eq!(say(client, line), format!(":{size}"), "step {at}");
        }
    }
}

/// Executes a step on one of the collections, in the server and in the model.
fn step(model: &mut Model, client: &mut Client, random: &mut Random, growing: bool) {
    let name = format!("n{}", random.below(700));
    let adds = random.below(10) < if growing { 8 } else { 2 };
    match random.below(4) {
        0 if adds => {
            let number = random.below(1000);
            let value = format!("v{number}{}", "x".repeat(if number < 30 { 70 } else { 0 }));
            let is_new = model.hash.insert(name.clone(), value.clone()).is_none();
            assert_eq!(
                say(client, &format!("HSET hash {name} {value}")),
                format!(":{}", u8::from(is_new))
            );
        }
        0 => {
            let was_there = model.hash.remove(&name).is_some();
            assert_eq!(
                say(client, &format!("HDEL hash {name}")),
                format!(":{}", u8::from(was_there))
            );
        }
        1 if adds => {
            let is_new = model.set.insert(name.clone());
            assert_eq!(say(client, &format!("SADD set {name}")), format!(":{}", u8::from(is_new)));
        }
        1 => {
            let was_there = model.set.remove(&name);
            assert_eq!(
                say(client, &format!("SREM set {name}")),
                format!(":{}", u8::from(was_there))
            );
        }
        2 if adds => {
            let score = random.below(100) as i64 - 50;
            let is_new = model.zset.insert(name.clone(), score).is_none();
            assert_eq!(
                say(client, &format!("ZADD zset {score} {name}")),
                format!(":{}", u8::from(is_new))
            );
            let rank = model.ordered().iter().position(|(_, member)| *member == name).unwrap();
            assert_eq!(say(client, &format!("ZRANK zset {name}")), format!(":{rank}"));
            let found = client.say(&format!("ZRANGE zset {rank} {rank}"));
            assert_eq!(found, format!(r"*1\r\n${}\r\n{name}\r\n", name.len()));
            let rank = model.zset.len() - 1 - rank;
            assert_eq!(say(client, &format!("ZREVRANK zset {name}")), format!(":{rank}"));
        }
        2 if random.below(4) == 0 => {
            let low = random.below(100) as i64 - 50;
            let within = |score: i64| (low..low + 3).contains(&score);
            let count = model.zset.values().filter(|score| within(**score)).count();
            let high = low + 3;
            assert_eq!(say(client, &format!("ZCOUNT zset {low} ({high}")), format!(":{count}"));
            let removed = say(client, &format!("ZREMRANGEBYSCORE zset {low} ({high}"));
            assert_eq!(removed, format!(":{count}"));
            model.zset.retain(|_, score| !within(*score));
        }
        2 => {
            let was_there = model.zset.remove(&name).is_some();
            assert_eq!(
                say(client, &format!("ZREM zset {name}")),
                format!(":{}", u8::from(was_there))
            );
        }
        _ => list_step(model, client, random, adds, name),
    }
}

fn list_step(
    model: &mut Model,
    client: &mut Client,
    random: &mut Random,
    adds: bool,
    name: String,
) {
    let list = &mut model.list;
    let at = random.below(list.len().max(1));
    match random.below(8) {
        0..3 if adds => {
            list.push_front(name.clone());
            say(client, &format!("LPUSH list {name}"));
        }
        3..5 if adds => {
            list.push_back(name.clone());
            say(client, &format!("RPUSH list {name}"));
        }
        5.. if adds && !list.is_empty() => {
            let pivot = list[at].clone();
            let place = list.iter().position(|value| *value == pivot).unwrap();
            list.insert(place + 1, name.clone());
            let len = say(client, &format!("LINSERT list AFTER {pivot} {name}"));
            assert_eq!(len, format!(":{}", list.len()));
        }
        0 => assert_eq!(list.pop_front().is_some(), say(client, "LPOP list") != "$-1"),
        1 => assert_eq!(list.pop_back().is_some(), say(client, "RPOP list") != "$-1"),
        2 if !list.is_empty() => {
            let value = list[at].clone();
            let last = list.iter().rposition(|found| *found == value).unwrap();
            list.remove(last);
            assert_eq!(say(client, &format!("LREM list -1 {value}")), ":1");
        }
        3 if !list.is_empty() => {
            list[at].clone_from(&name);
            assert_eq!(say(client, &format!("LSET list {at} {name}")), "+OK");
        }
        4 if list.len() > 30 => {
            let (from, to) = (random.below(3), list.len() - 1 - random.below(3));
            *list = list.drain(from..=to).collect();
            assert_eq!(say(client, &format!("LTRIM list {from} {to}")), "+OK");
        }
        _ if !list.is_empty() => {
            let shown = format!("${} {}", list[at].len(), list[at]);
            assert_eq!(say(client, &format!("LINDEX list {at}")), shown);
        }
        _ => {}
    }
}

#[test]
fn collections_are_what_was_put_in_them_while_they_grow_and_shrink() {
    let (_server, mut client) = fresh();
    for seed in 0..3 {
        let (mut model, mut random) = (Model::default(), Random::new(seed));
        for at in 0..6000 {
            step(&mut model, &mut client, &mut random, at % 3000 < 2000);
            if at % 500 == 499 {
                model.compare(&mut client, at);
            }
        }
        let encodings =
            ["hash", "set", "zset"].map(|key| say(&mut client, &format!("OBJECT ENCODING {key}")));
        assert_eq!(encodings, ["$9 hashtable", "$9 hashtable", "$8 skiplist"]);
        for key in ["hash", "set", "zset", "list"] {
            // A copy contains everything, and is independent of the source.
            say(&mut client, &format!("COPY {key} copy"));
            say(&mut client, &format!("DEL {key}"));
            say(&mut client, &format!("RENAME copy {key}"));
        }
        settled(&mut client);
        model.compare(&mut client, 9999);
        client.say("DEL hash set zset list");
        assert_eq!(settled(&mut client), 0, "nothing stays");
    }
}

#[test]
fn large_collections_survive_restarts_backups_and_dumps() {
    let dir = Dir::new("collections");
    let mut server = start(dir.config(LogSync::Always));
    let mut client = loaded(&server);
    fill(&mut client);
    say(&mut client, "PEXPIREAT zset 99999999999999");
    say(&mut client, "HSET gone f v");
    let mut random = Random::new(1);
    let mut dumps = BTreeMap::new();
    for round in 0..4 {
        for at in 0..50 {
            let at = (at * 7 + round) % 1000;
            say(&mut client, &format!("HDEL hash f{at}"));
            say(&mut client, &format!("SREM set m{at}"));
            say(&mut client, &format!("ZADD zset {} m{at}", random.below(100)));
            say(&mut client, "LPOP list");
        }
        if round == 1 {
            assert_eq!(say(&mut client, "SAVE"), "+OK");
        }
        // Creates a collection whose elements are still being removed at the restart.
        client.say(&format!("COPY hash other{round}"));
        client.say(&format!("DEL other{round}"));
        for key in ["hash", "set", "zset", "list"] {
            dumps.insert(key, client.ask(&[b"DUMP", key.as_bytes()]));
        }
        server.stop();
        server = start(dir.config(LogSync::Always));
        client = loaded(&server);
        for (key, dump) in &dumps {
            assert_eq!(client.ask(&[b"DUMP", key.as_bytes()]), *dump, "{key}");
        }
        let sizes = ["HLEN hash", "SCARD set", "ZCARD zset", "LLEN list"];
        let sizes: Vec<usize> =
            sizes.iter().map(|line| say(&mut client, line)[1..].parse().unwrap()).collect();
        // Entries for the layout and for the deadline of the sorted set.
        let others = sizes[0] + sizes[1] + 2 * sizes[2] + 2;
        let nodes = settled(&mut client) - others;
        assert!((sizes[3] / 250..sizes[3] / 100).contains(&nodes), "round {round}: {nodes} nodes");
        assert_eq!(say(&mut client, "DBSIZE"), ":5");
    }
    // The heads from before the restart are found, and ids in use are not assigned again.
    client.say("MSET hash v none v");
    client.say("DEL hash none");
    fill(&mut client);
    assert_eq!(say(&mut client, "HLEN hash"), ":1000");
    assert_eq!(say(&mut client, "PEXPIRETIME zset"), ":99999999999999");
    client.say("DEL set zset list hash gone");
    assert_eq!(settled(&mut client), 1, "the layout");
}

/// A server without collections stored keys that begin with FE or FF unchanged.
#[test]
fn a_directory_of_an_older_server_keeps_its_keys() {
    let dir = Dir::new("older-keys");
    let keys: [&[u8]; 6] = [b"a", b"\xFE", b"\xFE\x00", b"\xFE\x01", b"\xFF", b"\xFF\x01\x01"];
    {
        use ordna::durability::OpenOptions;
        let store = ordna::Store::<[u8], [u8]>::open(&dir.0, OpenOptions::new()).unwrap();
        for key in keys {
            ordna::OrderedIndex::insert(&store, key, &[b"v", key].concat()).unwrap();
        }
        store.set_expiry(b"\xFE", Some(99_999_999_999_999)).unwrap();
    }
    crate::common::wait_for_directory(&dir.0);
    for _ in 0..2 {
        let mut server = start(dir.config(LogSync::Always));
        let mut client = loaded(&server);
        assert_eq!(say(&mut client, "DBSIZE"), ":6");
        for key in keys {
            let value = format!("${}", key.len() + 1);
            assert!(client.ask(&[b"GET", key]).starts_with(&value), "{key:?}");
        }
        assert_eq!(client.ask(&[b"PEXPIRETIME", b"\xFE"]), r":99999999999999\r\n");
        server.stop();
    }
}

#[test]
fn a_snapshot_has_a_leaderboard_as_it_was() {
    let (_server, mut client) = fresh();
    fill(&mut client);
    say(&mut client, "ZADD small 1 a 2 b");
    assert_eq!(say(&mut client, "ORDNA.SNAPSHOT CREATE"), ":1");
    for at in 0..1000 {
        say(&mut client, &format!("ZADD zset {} m{at}", 1000 - at));
    }
    client.say("DEL zset small");
    assert_eq!(settled(&mut client), FILLED - 2000);
    let top = client.say("ORDNA.SNAPSHOT ZRANGE 1 zset 0 1 REV WITHSCORES");
    assert_eq!(top, r"*4\r\n$4\r\nm999\r\n$3\r\n999\r\n$4\r\nm998\r\n$3\r\n998\r\n");
    let range = client.say("ORDNA.SNAPSHOT ZRANGE 1 zset (10 12 BYSCORE");
    assert_eq!(range, r"*2\r\n$3\r\nm11\r\n$3\r\nm12\r\n");
    assert_eq!(client.say("ORDNA.SNAPSHOT ZRANGE 1 small 0 -1"), r"*2\r\n$1\r\na\r\n$1\r\nb\r\n");
    assert_eq!(client.say("ORDNA.SNAPSHOT ZRANGE 1 none 0 -1"), r"*0\r\n");
    assert!(client.say("ORDNA.SNAPSHOT ZRANGE 1 hash 0 -1").starts_with("-WRONGTYPE"));
}

/// Several clients concurrently write, read and delete one large hash. No reply shows a state that
/// never existed.
#[test]
fn commands_on_one_large_collection_are_single_steps() {
    let (server, mut client) = fresh();
    fill(&mut client);
    let budget = ordna_testkit::budget().max(Duration::from_millis(500));
    let begin = Instant::now();
    std::thread::scope(|scope| {
        for writer in 0..2 {
            let address = server.address;
            scope.spawn(move || {
                let mut client = Client::new(address);
                let mut number = 0;
                while begin.elapsed() < budget {
                    number += 1;
                    // Both fields always have the same value.
                    let value = format!("{writer}-{number}");
                    say(&mut client, &format!("HSET hash a {value} b {value}"));
                    if number % 50 == 0 {
                        client.say("COPY hash other REPLACE");
                        client.say("DEL hash");
                        client.say("RENAME other hash");
                    }
                    if number % 70 == 0 {
                        client.say("SET hash text");
                        client.say("DEL hash");
                    }
                }
            });
        }
        scope.spawn(|| {
            let mut client = Client::new(server.address);
            while begin.elapsed() < budget {
                let reply = client.say("HMGET hash a b");
                let parts: Vec<&str> = reply.split(r"\r\n").collect();
                let same = parts.len() > 4 && parts[2] == parts[4]
                    || reply.starts_with('-')
                    || reply.matches("$-1").count() == 2;
                assert!(same, "{reply}");
            }
        });
    });
    client.say("DEL hash set zset list other");
    assert_eq!(settled(&mut client), 0);
}

/// The number of keys is correct while the members of a sorted set are removed, which takes about
/// 80 stretches.
#[test]
fn elements_that_are_removed_are_never_taken_for_keys() {
    let (server, mut client) = fresh();
    (0..9).for_each(|at| drop(client.say(&format!("SET k{at} v"))));
    for at in (0..20_000).step_by(2000) {
        let members: String = (at..at + 2000).map(|at| format!(" {at} member{at}")).collect();
        client.say(&format!("ZADD z{members}"));
    }
    assert_eq!(client.say("DBSIZE"), r":10\r\n");
    std::thread::scope(|scope| {
        let address = server.address;
        let deletes = scope.spawn(move || Client::new(address).say("DEL z"));
        let mut is_deleted = false;
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let found = client.say("DBSIZE");
            assert!(found == r":9\r\n" || found == r":10\r\n" && !is_deleted, "{found}");
            is_deleted |= deletes.is_finished();
            if is_deleted && field(&mut client, "lazyfree_pending_objects") == 0 {
                break;
            }
            assert!(Instant::now() < end, "the members are still being removed");
        }
    });
}

/// As in Redis, names and keys that are longer than any stored one are absent, in both forms of a
/// collection.
#[test]
fn names_and_keys_that_are_too_long_are_not_found() {
    let server = start(Config::default());
    let mut client = Client::new(server.address);
    let long = vec![b'x'; 70_000];
    for elements in [10, 3000] {
        for n in 0..elements {
            client.say(&format!("HSET hash {n} 1"));
            client.say(&format!("SADD set {n}"));
        }
        assert_eq!(client.ask(&[b"HDEL", b"hash", &long]), r":0\r\n");
        assert_eq!(client.ask(&[b"SREM", b"set", &long]), r":0\r\n");
    }
    for command in [&b"HDEL"[..], b"SREM", b"ZREM", b"EXPIRE"] {
        assert_eq!(client.ask(&[command, &long, b"1"]), r":0\r\n");
    }
    assert_eq!(client.ask(&[b"SPOP", &long]), r"$-1\r\n");
    assert_eq!(client.ask(&[b"ZPOPMIN", &long]), r"*0\r\n");
    assert_eq!(client.ask(&[b"PERSIST", &long]), r":0\r\n");
    assert_eq!(client.ask(&[b"BLPOP", &long, b"0.01"]), r"*-1\r\n");
    let refused = r"-ERR the key has 70000 bytes; at most 65535 are allowed\r\n";
    assert_eq!(client.ask(&[b"SADD", &long, b"1"]), refused);
}

/// Redis does not define these results; in Ordna they do not depend on the size.
#[test]
fn ranges_by_member_of_different_scores_are_whole() {
    let (_server, mut client) = fresh();
    for count in [5, 3000, 6000] {
        for at in 0..count {
            client.say(&format!("ZADD z {at} m{at:04}"));
        }
        for (range, reversed, expected) in [
            ("- +", "+ -", count),
            ("[m0001 +", "+ [m0001", count - 1),
            ("- (m0003", "(m0003 -", 3),
            ("(m0001 [m0003", "[m0003 (m0001", 2),
            ("[n +", "+ [n", 0),
            ("- [a", "[a -", 0),
            ("+ -", "- +", 0),
        ] {
            assert_eq!(client.say(&format!("ZLEXCOUNT z {range}")), format!(r":{expected}\r\n"));
            for command in [
                format!("ZRANGEBYLEX z {range}"),
                format!("ZREVRANGEBYLEX z {reversed}"),
                format!("ZRANGE z {range} BYLEX"),
            ] {
                let reply = client.say(&command);
                let all = format!(r"*{expected}\r\n");
                assert!(reply.starts_with(&all), "{command} of {count}: {reply:.50}");
            }
        }
        let stored = client.say("ZRANGESTORE stored z - + BYLEX");
        assert_eq!(stored, format!(r":{count}\r\n"));
        assert_eq!(client.say("ZREMRANGEBYLEX z [m0001 (m0003"), r":2\r\n");
        assert_eq!(client.say("ZREMRANGEBYLEX z - +"), format!(r":{}\r\n", count - 2));
    }
}
