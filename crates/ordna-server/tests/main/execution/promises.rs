//! Properties on which an operator relies: bounded memory, no client blocks others, results of one
//! moment, no open access.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ordna_server::Config;

use crate::common::{Client, converse, fresh, request, show, spawn, start};

/// Returns a number from a reply to INFO.
fn info(client: &mut Client, name: &str) -> usize {
    let info = client.say("INFO everything");
    let (_, rest) =
        info.split_once(&format!("{name}:")).unwrap_or_else(|| panic!("{name}: {info}"));
    rest.split_once('\\').unwrap().0.parse().unwrap()
}

const PATIENCE: Duration = Duration::from_secs(20);

/// Waits until a condition holds.
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let give_up = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < give_up, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
#[cfg(target_os = "linux")]
fn garbage_is_bounded_in_bytes() {
    const LIMIT: usize = 200 << 20;
    let server = spawn(&format!("max_memory={LIMIT}"));
    let mut client = Client::new(server.address);
    let value = vec![b'v'; 10_000_000];
    for _ in 0..100 {
        assert_eq!(client.ask(&[b"SET", b"key", &value]), r"+OK\r\n");
    }
    let peak = server.memory("VmHWM:") << 10;
    assert!(peak <= LIMIT / 10 * 11, "{peak} bytes resident");
}

#[test]
fn what_a_snapshot_keeps_counts_against_the_limit() {
    let server = start(Config { max_memory: Some(100_000), ..Config::default() });
    let mut client = Client::new(server.address);
    assert_eq!(client.ask(&[b"SET", b"one", &[b'v'; 60_000]]), r"+OK\r\n");
    client.say("ORDNA.SNAPSHOT CREATE");
    assert!(client.say("APPEND one x").starts_with("-OOM"));
}

#[test]
fn a_web_page_cannot_write() {
    let server = start(Config::default());
    let posts = [
        "POST / HTTP/1.1\r\nContent-Type: text/plain\r\n\r\nSET pwned 1\r\n",
        "GET / HTTP/1.1\r\nHost: localhost\r\n\r\nSET pwned 1\r\n",
    ];
    for post in posts {
        let mut page = Client::new(server.address);
        page.send(post.as_bytes());
        while !page.reply().is_empty() {}
        assert!(page.is_closed());
    }
    assert_eq!(Client::new(server.address).say("EXISTS pwned"), r":0\r\n");
}

#[test]
fn a_hostile_pattern_holds_up_nobody_and_ends_with_its_client() {
    let server = start(Config::default());
    let mut client = Client::new(server.address);
    let long = vec![b'a'; 60_000];
    for n in 0..1500 {
        let key = [&long[..], format!("{n:05}").as_bytes()].concat();
        assert_eq!(client.ask(&[b"SET", &key, b"v"]), r"+OK\r\n");
    }
    let class = [&b"*["[..], &b"x".repeat(100_000)].concat();
    let slow = [&b"*"[..], &long[..30_000], b"b*"].concat();
    assert_eq!(client.ask(&[b"KEYS", &class]), r"*0\r\n");
    for _ in 0..2 {
        let mut scanner = Client::new(server.address);
        scanner.send(&request(&[b"KEYS", &slow]));
        until("the scan begins", || info(&mut client, "long_scans") == 1);
        for _ in 0..20 {
            let begin = Instant::now();
            client.say("GET a");
            // In a test build, matching one key against the slow pattern takes some tens of
            // milliseconds.
            assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
        }
        drop(scanner);
        until("the scan ends", || info(&mut client, "long_scans") == 0);
    }
}

#[test]
#[cfg(target_os = "linux")]
fn flushed_keyspaces_do_not_gather_threads() {
    let server = spawn("collectors=2");
    let mut client = Client::new(server.address);
    for _ in 0..50 {
        client.say("SET key 1");
        client.say("ORDNA.SNAPSHOT CREATE");
        client.say("SET key 2");
        client.say("ORDNA.SNAPSHOT CREATE");
        client.say("SET key 3");
        client.say("FLUSHALL");
        assert_eq!(client.say("DBSIZE"), r":0\r\n");
    }
    let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm"));
    let tasks =
        std::fs::read_dir(server.proc("task")).unwrap().flatten().filter_map(|t| name(t).ok());
    let collectors = tasks.filter(|name| name.starts_with("ordna collector")).count();
    assert!(collectors <= 2, "{collectors} collectors");
    assert_eq!(client.say("ORDNA.SNAPSHOT GET 100 key"), r"$1\r\n2\r\n");
}

/// Runs two clients: one repeats its commands, while the other one checks for a number of rounds.
fn beside(commands: &[&str], rounds: usize, mut check: impl FnMut(&mut Client)) {
    let server = start(Config::default());
    // A snapshot keeps removed keys between the others, so that a scan past them takes a while.
    let mut keeper = Client::new(server.address);
    let keys: String = (0..3000).map(|n| format!(" b{n:04}")).collect();
    keeper.say(&format!(
        "MSET{}",
        keys.replace(" b", " 1 b").trim_start_matches(" 1").to_owned() + " 1"
    ));
    keeper.say("ORDNA.SNAPSHOT CREATE");
    keeper.say(&format!("DEL{keys}"));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut client = Client::new(server.address);
            let mut n = 0;
            while !stop.load(Ordering::Relaxed) {
                for command in commands {
                    client.send(format!("{}\r\n", command.replace('#', &n.to_string())).as_bytes());
                }
                for command in commands {
                    let reply = client.reply();
                    assert!(!reply.starts_with(b"-"), "{command}: {}", show(&reply));
                }
                n += 1;
            }
        });
        let mut client = Client::new(server.address);
        until("the writer begins", || client.say("DBSIZE") != r":0\r\n");
        let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            (0..rounds).for_each(|_| check(&mut client));
        }));
        stop.store(true, Ordering::Relaxed);
        writer.join().unwrap();
        checked.unwrap();
    });
}

#[test]
fn neighbours_read_one_state() {
    // At any time, at least one of the two keys exists.
    let writes = ["SET a 1", "DEL z", "SET z 1", "DEL a"];
    beside(&writes, 4000, |client| {
        for command in ["ORDNA.FIRST", "ORDNA.LAST", "ORDNA.FLOOR zz", "ORDNA.CEIL a"] {
            assert_ne!(client.say(command), r"*-1\r\n", "{command}");
        }
    });
}

#[test]
fn mget_reads_one_state() {
    // The first key is never older than the second.
    beside(&["SET first #", "SET second #"], 4000, |client| {
        let between = " b".repeat(60);
        let reply = client.say(&format!("MGET first{between} second"));
        let numbers = reply.split(r"\r\n").filter_map(|word| word.parse::<u64>().ok());
        let numbers: Vec<u64> = numbers.collect();
        if let [first, second] = numbers[..] {
            assert!(first >= second, "{reply}");
        }
    });
}

#[test]
fn removing_several_keys_is_one_step() {
    for remove in ["DEL a b c", "UNLINK a b c"] {
        beside(&["MSET a 1 b 1 c 1", remove], 3000, |client| {
            let reply = client.say("EXISTS a b c");
            assert!(matches!(reply.as_str(), r":0\r\n" | r":3\r\n"), "{reply}");
            let reply = client.say("MGET a b c");
            let present = reply.matches(r"$1\r\n1").count();
            assert!(matches!(present, 0 | 3), "{reply}");
        });
    }
}

#[test]
fn a_scan_ends_when_the_keyspace_is_flushed() {
    let server = start(Config::default());
    let mut client = Client::new(server.address);
    client.say("MSET a 1 b 2 c 3 d 4");
    let reply = client.say("SCAN 0 COUNT 2");
    let cursor = reply.split(r"\r\n").nth(2).unwrap().to_owned();
    client.say("FLUSHALL");
    client.say("MSET c 1 d 2 e 3");
    assert_eq!(client.say(&format!("SCAN {cursor}")), r"*2\r\n$1\r\n0\r\n*0\r\n");
    assert!(client.say("SCAN 0").contains("*3"), "a new scan reads the new keys");
    assert!(client.say("SCAN 99").starts_with("-ERR this cursor is no longer known"));
}

#[test]
fn appending_is_amortized() {
    let server = start(Config::default());
    let mut client = Client::new(server.address);
    let append = request(&[b"APPEND", b"log", &[b'x'; 100]]);
    let begin = Instant::now();
    // A copy of the value for each command would move 80 GB.
    for _ in 0..40 {
        client.send(&append.repeat(1000));
        (0..1000).for_each(|_| assert!(client.reply().starts_with(b":")));
    }
    assert!(begin.elapsed() < Duration::from_secs(6), "{:?}", begin.elapsed());
}

#[test]
#[cfg(target_os = "linux")]
fn clients_that_never_read_take_little_memory() {
    let server = spawn("");
    let mut client = Client::new(server.address);
    let value = vec![b'v'; 1 << 20];
    for n in 0..100 {
        assert_eq!(client.ask(&[b"SET", format!("key{n}").as_bytes(), &value]), r"+OK\r\n");
    }
    let before = server.memory("VmRSS:");
    let lazy: Vec<Client> = (0..10)
        .map(|_| {
            let mut client = Client::new(server.address);
            client.send(&request(&[b"ORDNA.RANGE", b"-", b"+"]));
            client
        })
        .collect();
    until("the scans begin", || info(&mut client, "long_scans") == 10);
    std::thread::sleep(Duration::from_millis(300));
    let grown = server.memory("VmRSS:").saturating_sub(before);
    assert!(grown < 50 << 10, "{grown} KiB for ten clients that read nothing");
    assert!(info(&mut client, "mem_clients_normal") > 0);
    drop(lazy);
    until("the scans end", || info(&mut client, "long_scans") == 0);
}

#[test]
#[cfg(target_os = "linux")]
fn requests_that_never_end_take_little_memory() {
    const LIMIT: usize = 64 << 20;
    let server = spawn(&format!("max_memory=100000000 clients_memory={LIMIT}"));
    let mut client = Client::new(server.address);
    let before = server.memory("VmRSS:");
    let piece = vec![b'v'; 1 << 20];
    let mut unfinished: Vec<Client> = (0..4).map(|_| Client::new(server.address)).collect();
    for client in &mut unfinished {
        client.send(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$209715200\r\n");
    }
    for _ in 0..100 {
        for client in &mut unfinished {
            // The server may have closed the largest clients.
            let _ = client.stream.write_all(&piece);
        }
    }
    let grown = server.memory("VmHWM:").saturating_sub(before) << 10;
    assert!(grown < 2 * LIMIT, "{grown} bytes for unfinished requests");
    assert!(info(&mut client, "evicted_clients") >= 3);
    assert_eq!(client.say("PING"), r"+PONG\r\n", "a small client stays");
}

#[test]
fn names_of_clients_are_short() {
    let server = start(Config::default());
    let mut client = Client::new(server.address);
    let name = "n".repeat(100_000);
    assert!(client.say(&format!("CLIENT SETNAME {name}")).starts_with("-ERR Client names have"));
    assert!(client.say(&format!("HELLO 2 SETNAME {name}")).starts_with("-ERR Client names have"));
    assert!(client.say(&format!("CLIENT SETINFO LIB-NAME {name}")).starts_with("-ERR"));
}

#[test]
#[cfg(target_os = "linux")]
fn no_client_hangs_for_want_of_files() {
    let server = spawn("files=256 max_clients=10000");
    let mut first = Client::new(server.address);
    let reply = first.say("CONFIG GET maxclients");
    let most: usize = reply.split(r"\r\n").nth(4).unwrap().parse().unwrap();
    assert!((100..256).contains(&most), "{most} clients with 256 files");
    let mut clients: Vec<Client> = (0..300).map(|_| Client::new(server.address)).collect();
    let (mut served, mut refused) = (0, 0);
    for client in &mut clients {
        // The server may have closed the connection.
        let _ = client.stream.write_all(&request(&[b"PING"]));
        match show(&client.reply()).as_str() {
            r"+PONG\r\n" => served += 1,
            r"-ERR max number of clients reached\r\n" | "" => refused += 1,
            other => panic!("{other}"),
        }
    }
    assert_eq!((served, served + refused), (most - 1, 300));
}

#[test]
fn watching_many_keys_takes_linear_time() {
    let server = start(Config::default());
    let mut client = Client::new(server.address);
    let keys: Vec<Vec<u8>> = (0..80_000).map(|n| format!("key{n}").into_bytes()).collect();
    let mut words: Vec<&[u8]> = vec![b"WATCH"];
    words.extend(keys.iter().map(Vec::as_slice));
    let begin = Instant::now();
    assert_eq!(client.ask(&words), r"+OK\r\n");
    client.say("MULTI");
    client.say("SET a 1");
    assert_eq!(client.say("EXEC"), r"*1\r\n+OK\r\n");
    // Visiting all other keys for each key would take 3 billion steps.
    assert!(begin.elapsed() < Duration::from_secs(12), "{:?}", begin.elapsed());
}

#[test]
fn a_watched_key_that_was_flushed_or_expired_has_changed() {
    let server = start(Config::default());
    let (mut client, mut other) = (Client::new(server.address), Client::new(server.address));
    let cases: [(&[&str], &[&str], bool); 8] = [
        (&["SET a 1"], &["FLUSHALL", "SET a 1"], true),
        (&["SET a 1"], &["FLUSHALL"], true),
        (&["DEL a"], &["FLUSHALL"], false),
        (&["SET a 1"], &["ORDNA.DELRANGE - +", "SET a 1"], true),
        (&["SET a 1"], &["DEL a b"], true),
        (&["SET a 1"], &["EXPIRE a 100"], true),
        (&["SET a 1"], &["RENAME a b"], true),
        (&["SET a 1"], &["GET a", "SETNX a 2", "SET b 1"], false),
    ];
    for (before, between, changed) in cases {
        before.iter().for_each(|line| assert!(!client.say(line).starts_with('-'), "{line}"));
        client.say("WATCH a");
        between.iter().for_each(|line| assert!(!other.say(line).starts_with('-'), "{line}"));
        client.say("MULTI");
        client.say("PING");
        let expected = if changed { r"*-1\r\n" } else { r"*1\r\n+PONG\r\n" };
        assert_eq!(client.say("EXEC"), expected, "{before:?}, then {between:?}");
    }
    client.say("SET a 1 PX 20");
    client.say("WATCH a");
    until("the key expires", || other.say("EXISTS a") == r":0\r\n");
    client.say("MULTI");
    assert_eq!(client.say("EXEC"), r"*-1\r\n", "expired");
}

/// Clients that watch the same key are independent: one that begins after a write does not count
/// that write, and one that ends does not affect the other.
#[test]
fn watchers_of_one_key_do_not_disturb_each_other() {
    let (server, mut first) = fresh();
    let [mut later, mut writer] = [0, 1].map(|_| Client::new(server.address));
    let ping = [("MULTI", r"+OK\r\n"), ("PING", r"+QUEUED\r\n")];
    let (done, refused) = (r"*1\r\n+PONG\r\n", r"*-1\r\n");
    assert_eq!(first.say("WATCH w"), r"+OK\r\n");
    assert_eq!(writer.say("SET w 1"), r"+OK\r\n");
    assert_eq!(later.say("WATCH w"), r"+OK\r\n");
    converse(&mut later, &ping);
    converse(&mut first, &ping);
    assert_eq!((later.say("EXEC"), first.say("EXEC")), (done.to_owned(), refused.to_owned()));
    for client in [&mut first, &mut later] {
        assert_eq!(client.say("WATCH w"), r"+OK\r\n");
    }
    assert_eq!(later.say("UNWATCH"), r"+OK\r\n");
    converse(&mut first, &ping);
    assert_eq!(first.say("EXEC"), done);
}

/// The queued commands of a transaction together have the same limit as a single one.
#[test]
fn a_transaction_cannot_gather_commands_without_end() {
    let (_server, mut client) = fresh();
    converse(
        &mut client,
        &[("CONFIG SET client-query-buffer-limit 1mb", r"+OK\r\n"), ("MULTI", r"+OK\r\n")],
    );
    let mut add = || client.ask(&[b"ECHO", &[b'v'; 400_000]]);
    assert_eq!([add(), add()], [r"+QUEUED\r\n", r"+QUEUED\r\n"]);
    assert_eq!(add(), r"-ERR a transaction may hold 1048576 bytes of commands\r\n");
    assert!(client.say("EXEC").starts_with("-EXECABORT"));
}

#[test]
fn snapshots_end_with_their_connection_unless_kept() {
    let server = start(Config::default());
    let mut client = Client::new(server.address);
    let mut other = Client::new(server.address);
    client.say("ORDNA.SNAPSHOT CREATE");
    other.say("ORDNA.SNAPSHOT CREATE");
    other.say("ORDNA.SNAPSHOT CREATE KEEP");
    other.say("ORDNA.SNAPSHOT CREATE EX 3600");
    assert_eq!(info(&mut client, "snapshots_held"), 4);
    drop(other);
    until("two end", || info(&mut client, "snapshots_held") <= 2);
    for left in ["1", "3"] {
        assert_eq!(client.say(&format!("ORDNA.SNAPSHOT GET {left} a")), r"$-1\r\n", "{left}");
    }
}

#[test]
fn snapshots_have_a_limit() {
    let server = start(Config::default());
    let mut client = Client::new(server.address);
    for n in 1..=1024 {
        assert_eq!(client.say("ORDNA.SNAPSHOT CREATE"), format!(r":{n}\r\n"));
    }
    assert!(client.say("ORDNA.SNAPSHOT CREATE").starts_with("-ERR"));
    assert_eq!(client.say("ORDNA.SNAPSHOT DROP 1"), r":1\r\n");
    assert_eq!(client.say("ORDNA.SNAPSHOT CREATE"), r":1025\r\n");
}

#[test]
fn guesses_of_passwords_are_slow_and_noted() {
    let server = start(Config { password: Some("secret".to_owned()), ..Config::default() });
    let mut client = Client::new(server.address);
    client.send(&request(&[b"AUTH", b"guess"]).repeat(1000));
    let mut guesses = 0;
    while client.reply().starts_with(b"-WRONGPASS") {
        guesses += 1;
    }
    assert!((1..=10).contains(&guesses), "{guesses} guesses on one connection");
    let mut client = Client::new(server.address);
    client.say("AUTH secret");
    assert_eq!(info(&mut client, "acl_access_denied_auth"), guesses);
    let log = client.say("ACL LOG");
    assert!(log.contains(r"$6\r\nreason\r\n$4\r\nauth\r\n"), "{log}");
    assert!(log.contains(&format!(r"count\r\n:{guesses}\r\n")), "{log}");
}

#[test]
fn no_limit_of_memory_is_written_as_zero() {
    let server = start(Config { max_memory: Some(0), ..Config::default() });
    assert_eq!(Client::new(server.address).say("SET a 1"), r"+OK\r\n");
}

#[test]
#[cfg(target_os = "linux")]
fn dead_connections_are_noticed() {
    let server = start(Config::default());
    let mut client = Client::new(server.address);
    client.say("PING");
    // The kernel's table has the local and the remote port in hexadecimal digits, and the active
    // timer.
    let (local, remote) = (server.address.port(), client.stream.local_addr().unwrap().port());
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let of_server = |line: &&str| {
        let mut words = line.split_whitespace().skip(1);
        words.next().is_some_and(|word| word.ends_with(&format!(":{local:04X}")))
            && words.next().is_some_and(|word| word.ends_with(&format!(":{remote:04X}")))
    };
    let line = table.lines().find(of_server).expect("the connection is in the table");
    let timer = line.split_whitespace().nth(5).unwrap();
    assert!(timer.starts_with("02:"), "no keepalive timer: {line}");
}

#[test]
fn aggregations_are_bounded_in_columns_and_bytes() {
    let server = start(Config::default());
    let mut client = Client::new(server.address);
    client.say("FT.CREATE ft PREFIX 1 d: SCHEMA n NUMERIC");
    let fields: String = (0..1025).map(|n| format!(" f{n} 1")).collect();
    client.say(&format!("HSET d:1{fields}"));
    let reply = client.say("FT.AGGREGATE ft * LOAD *");
    assert!(reply.contains("more than 1024 fields together"), "{reply}");
    client.say("DEL d:1");
    let value = vec![b'v'; 1 << 20];
    for n in 0..65_u8 {
        let id = [b"d:", &[b'0' + n / 10, b'0' + n % 10][..]].concat();
        client.ask(&[b"HSET", &id, b"big", &value]);
        if n == 49 {
            for _ in 0..2 {
                let reply = client.say("FT.AGGREGATE ft * LOAD 1 big WITHCURSOR COUNT 1");
                assert!(reply.starts_with('*'), "{reply:.100}");
            }
            let reply = client.say("FT.AGGREGATE ft * LOAD 1 big WITHCURSOR COUNT 1");
            assert!(reply.starts_with("-ERR the cursors would take more than"), "{reply:.100}");
            let held = info(&mut client, "mem_search_cursors");
            assert!((98 << 20..100 << 20).contains(&held), "{held}");
            assert_eq!(client.say("FT.CURSOR DEL ft 1"), r"+OK\r\n");
        }
    }
    for rest in ["LOAD 1 big LIMIT 0 1", "LOAD 1 big GROUPBY 2 @__key @big LIMIT 0 1"] {
        let reply = client.say(&format!("FT.AGGREGATE ft * {rest}"));
        assert!(reply.starts_with("-ERR the aggregation takes more than"), "{rest}: {reply:.100}");
    }
}
