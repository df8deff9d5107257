//! Tests of `MULTI`, `EXEC` and `WATCH`.

use std::time::Duration;

use ordna_server::{Config, DataConfig};

use crate::common::{Client, converse, fresh, request, start, wait_for_directory};

#[test]
fn a_transaction_is_one_step_or_nothing() {
    let (server, mut client) = fresh();
    let mut other = Client::new(server.address);
    converse(
        &mut client,
        &[
            ("EXEC", r"-ERR EXEC without MULTI\r\n"),
            ("DISCARD", r"-ERR DISCARD without MULTI\r\n"),
            ("MULTI", r"+OK\r\n"),
            ("MULTI", r"-ERR MULTI calls can not be nested\r\n"),
            ("WATCH a", r"-ERR WATCH inside MULTI is not allowed\r\n"),
            ("MSET a 1 b 2", r"+QUEUED\r\n"),
            ("INCR b", r"+QUEUED\r\n"),
            ("INCR nope nope", r"-ERR wrong number of arguments for 'incr' command\r\n"),
            ("EXEC", r"-EXECABORT Transaction discarded because of previous errors.\r\n"),
            ("EXISTS a", r":0\r\n"),
            ("MULTI", r"+OK\r\n"),
            ("MSET a 1 b 2", r"+QUEUED\r\n"),
            ("INCR b", r"+QUEUED\r\n"),
            ("APPEND a x", r"+QUEUED\r\n"),
            ("INCR a", r"+QUEUED\r\n"),
            ("ORDNA.RANGE - +", r"+QUEUED\r\n"),
            ("FLUSHALL", r"+QUEUED\r\n"),
            ("DBSIZE", r"+QUEUED\r\n"),
        ],
    );
    assert_eq!(other.say("EXISTS a b"), r":0\r\n");
    converse(
        &mut client,
        &[
            (
                "EXEC",
                r"*7\r\n+OK\r\n:3\r\n:2\r\n-ERR value is not an integer or out of range\r\n*4\r\n$1\r\na\r\n$2\r\n1x\r\n$1\r\nb\r\n$1\r\n3\r\n+OK\r\n:0\r\n",
            ),
            ("SET w 1", r"+OK\r\n"),
            ("WATCH w absent", r"+OK\r\n"),
            ("MULTI", r"+OK\r\n"),
            ("SET done yes", r"+QUEUED\r\n"),
        ],
    );
    // Setting the same value again is a change, too.
    other.say("SET w 1");
    converse(
        &mut client,
        &[
            ("EXEC", r"*-1\r\n"),
            ("WATCH w absent", r"+OK\r\n"),
            ("MULTI", r"+OK\r\n"),
            ("SET done yes", r"+QUEUED\r\n"),
        ],
    );
    other.say("SET absent 1");
    converse(
        &mut client,
        &[
            ("EXEC", r"*-1\r\n"),
            ("EXISTS done", r":0\r\n"),
            ("WATCH w", r"+OK\r\n"),
            ("GET w", r"$1\r\n1\r\n"),
            ("MULTI", r"+OK\r\n"),
            ("SET done yes", r"+QUEUED\r\n"),
            ("EXEC", r"*1\r\n+OK\r\n"),
            ("WATCH w", r"+OK\r\n"),
        ],
    );
    other.say("FLUSHALL");
    other.say("SET w 1");
    converse(&mut client, &[("MULTI", r"+OK\r\n"), ("PING", r"+QUEUED\r\n"), ("EXEC", r"*-1\r\n")]);
    converse(
        &mut client,
        &[
            ("WATCH w", r"+OK\r\n"),
            ("SET w 2", r"+OK\r\n"),
            ("UNWATCH", r"+OK\r\n"),
            ("MULTI", r"+OK\r\n"),
            ("RESET", r"+RESET\r\n"),
            ("EXEC", r"-ERR EXEC without MULTI\r\n"),
        ],
    );
}

/// Every way of changing an existing key counts as a change for clients that watch it.
#[test]
fn every_way_of_writing_breaks_a_watch() {
    let (server, mut client) = fresh();
    let mut other = Client::new(server.address);
    let ways = [
        "SET w 2",
        "SETEX w 9 1",
        "GETSET w 2",
        "GETEX w EX 9",
        "GETDEL w",
        "MSET a 1 w 2",
        "INCR w",
        "DECRBY w 1",
        "INCRBYFLOAT w 1",
        "APPEND w x",
        "SETRANGE w 0 x",
        "SETBIT w 0 1",
        "BITFIELD w SET u4 0 1",
        "BITOP NOT w w",
        "DEL w",
        "UNLINK w",
        "EXPIRE w 9",
        "EXPIRE w -1",
        "PEXPIREAT w 1",
        "RENAME w z",
        "RENAME z w",
        "COPY z w REPLACE",
        "FLUSHALL",
        "FLUSHDB",
        "ORDNA.DELRANGE [w [w",
        "ORDNA.DELRANGE - +",
        "ORDNA.DELRANGE [v [x",
    ];
    for way in ways {
        other.say("MSET v 1 w 1 z 1");
        converse(&mut client, &[("WATCH w", r"+OK\r\n"), ("MULTI", r"+OK\r\n")]);
        client.say("PING");
        let reply = other.say(way);
        let outcome = client.say("EXEC");
        assert!(!reply.starts_with('-'), "{way}: {reply}");
        assert_eq!(outcome, r"*-1\r\n", "{way}: {reply}");
    }
}

/// A watched key that was absent, created and removed has changed. A key that was only looked up
/// has not.
#[test]
fn a_watched_key_that_came_and_went_has_changed() {
    let (server, mut client) = fresh();
    let mut other = Client::new(server.address);
    let mut outcome = |between: &[&str]| {
        converse(&mut client, &[("WATCH w", r"+OK\r\n"), ("MULTI", r"+OK\r\n")]);
        client.say("PING");
        between.iter().for_each(|command| drop(other.say(command)));
        client.say("EXEC")
    };
    let (done, refused) = (r"*1\r\n+PONG\r\n", r"*-1\r\n");
    for created in ["SET w 1", "INCR w", "APPEND w x", "MSET a 1 w 2", "SETEX w 9 1", "SETNX w 1"] {
        assert_eq!(outcome(&[created, "DEL w"]), refused, "{created}");
    }
    assert_eq!(outcome(&["MULTI", "SET w 1", "DEL w", "EXEC"]), refused);
    for harmless in ["DEL w", "EXPIRE w 9", "GETEX w", "GETDEL w", "MSET a w b w", "FLUSHALL"] {
        assert_eq!(outcome(&[harmless]), done, "{harmless}");
    }
    for failed in ["SET w 1 BAD", "INCRBY w x", "SETEX w 0 1", "MSET a 1 w"] {
        assert_eq!(outcome(&[failed]), done, "{failed}");
    }
    for unwritten in ["SET w 1 XX", "SET w 1 XX GET", "MSETNX here 1 w 2"] {
        assert_eq!(outcome(&["SET here 1", unwritten]), done, "{unwritten}");
    }
    for written in ["GETSET w 1", "SET w 1 NX", "MSETNX new 1 w 2", "DECRBY w 3", "PSETEX w 9 1"] {
        assert_eq!(outcome(&[written, "DEL w new"]), refused, "{written}");
    }
    // A key that exists and is not written has not changed.
    assert_eq!(outcome(&["SET w 1"]), refused);
    for unwritten in ["SET w 2 NX", "MSETNX new 1 w 2", "SETNX w 2", "EXPIRE w 9 XX", "INCR here x"]
    {
        assert_eq!(outcome(&[unwritten]), done, "{unwritten}");
    }
    assert_eq!(outcome(&["SET w 2 XX"]), refused);
}

/// All replies of a transaction together have the same limit as a single one.
#[test]
fn a_transaction_cannot_gather_large_replies_without_end() {
    let server = start(Config { max_reply: 1_000_000, ..Config::default() });
    let mut client = Client::new(server.address);
    assert_eq!(client.ask(&[b"SET", b"k", &[b'v'; 300_000]]), r"+OK\r\n");
    client.say("MULTI");
    for _ in 0..3 {
        client.say("GET k");
    }
    client.say("GETDEL k");
    client.say("EXISTS k");
    let replies = client.say("EXEC");
    assert!(replies.starts_with(r"*5\r\n$300000\r\nvvv"));
    let error = r"-ERR the replies of the transaction would exceed 1000000 bytes; this command was executed\r\n";
    let end = &replies[replies.len() - error.len() - 6..];
    assert_eq!(end, format!(r"{error}:0\r\n"));
    assert_eq!(client.say("PING"), r"+PONG\r\n");
}

/// Two clients move an amount between two keys. No client ever sees it in neither or in both.
#[test]
fn nobody_sees_half_a_transaction() {
    let (server, mut client) = fresh();
    client.say("MSET left 100 right 0");
    std::thread::scope(|scope| {
        let movers = ["left right", "right left"].map(|pair| {
            let address = server.address;
            scope.spawn(move || {
                let (from, to) = pair.split_once(' ').unwrap();
                let mut client = Client::new(address);
                for _ in 0..500 {
                    client.say("MULTI");
                    client.say(&format!("DECR {from}"));
                    client.say(&format!("INCR {to}"));
                    client.say("EXEC");
                }
            })
        });
        while !movers.iter().all(|mover| mover.is_finished()) {
            for look in ["MGET left right", "ORDNA.RANGE - +"] {
                let reply = client.say(look);
                let sum: i64 =
                    reply.split(r"\r\n").filter_map(|part| part.parse::<i64>().ok()).sum();
                assert_eq!(sum, 100, "{reply}");
            }
        }
    });
}

/// After the errors of EXEC and DISCARD without MULTI, keys are still watched.
#[test]
fn keys_stay_watched_without_a_transaction() {
    let (server, mut client) = fresh();
    let mut other = Client::new(server.address);
    for word in ["EXEC", "DISCARD"] {
        assert_eq!(client.say("WATCH a"), r"+OK\r\n");
        assert_eq!(other.say("SET a 1"), r"+OK\r\n");
        assert_eq!(client.say(word), format!(r"-ERR {word} without MULTI\r\n"));
        assert_eq!(client.say("MULTI"), r"+OK\r\n");
        assert_eq!(client.say("EXEC"), r"*-1\r\n", "a was changed, and {word} does not forget it");
    }
    // A command that changes nothing does not count as a change.
    other.say("SETBIT b 1 1");
    client.say("WATCH a b");
    for line in ["RENAME a a", "SETBIT b 1 1", "BITFIELD b SET u8 0 64"] {
        other.say(line);
    }
    client.say("MULTI");
    assert_eq!(client.say("EXEC"), r"*0\r\n");
}

/// EXEC holds the lock of the keyspace. If a command took it again, the server would not answer any
/// more.
#[test]
fn commands_on_the_whole_server_end_inside_of_a_transaction() {
    let folder = std::env::temp_dir().join(format!("ordna-whole-{}", std::process::id()));
    let server = start(Config { data: Some(DataConfig::new(folder.clone())), ..Config::default() });
    let mut client = Client::new(server.address);
    while client.say("DBSIZE").contains("LOADING") {}
    for line in [
        "CONFIG RESETSTAT",
        "CONFIG SET appendfsync always",
        "CONFIG SET appendfsync everysec maxmemory 100mb",
        "CONFIG SET save 3600 maxmemory 0",
        "CONFIG GET *",
        "INFO everything",
        "MEMORY STATS",
        "MEMORY DOCTOR",
        "DBSIZE",
        "LASTSAVE",
        "BGSAVE",
        "ORDNA.BACKUP OPEN",
        "CLIENT LIST",
        "CLIENT KILL ID 12345",
        "ACL SETUSER other on nopass +@all ~*",
        "ACL DELUSER other",
        "ORDNA.SNAPSHOT CREATE s",
        "ORDNA.SNAPSHOT RANGE s - +",
        "ORDNA.SNAPSHOT DROP s",
        "ORDNA.INDEX CREATE i PREFIX d: FIELD n",
        "HSET d:1 n 1",
        "ORDNA.INDEX LIST",
        "ORDNA.INDEX SCAN i",
        "ORDNA.INDEX DROP i",
        "FT.CREATE f ON HASH PREFIX 1 d: SCHEMA n NUMERIC",
        "FT.SEARCH f *",
        "FT.AGGREGATE f *",
        "FT.INFO f",
        "FT.DROPINDEX f DD",
        "ORDNA.RANGE - +",
        "ORDNA.DELRANGE - +",
        "SCAN 0",
        "KEYS *",
        "RANDOMKEY",
        "SLOWLOG GET",
        "LATENCY RESET",
        "COMMAND DOCS",
        "FLUSHALL",
    ] {
        assert_eq!(client.say("MULTI"), r"+OK\r\n");
        let queued = client.say(line);
        assert!(queued.starts_with("+QUEUED"), "{line}: {queued}");
        client.send(&request(&[b"EXEC"]));
        let answer = client.reply_within(Duration::from_secs(20));
        assert!(answer.is_some(), "{line} inside of a transaction is not answered");
        assert_eq!(client.say("PING"), r"+PONG\r\n", "{line}");
    }
    drop(server);
    wait_for_directory(&folder);
    std::fs::remove_dir_all(&folder).unwrap();
}
