//! Limits of the cost of a single request: memory in addition to its bytes and those of its reply,
//! and the time of other clients.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::{Child, Client, request, spawn};

/// Memory in KiB that any command may use in addition to its request and reply: buffers, and pages
/// that the allocator keeps.
pub const SLACK: usize = 24 << 10;

/// Sends a request. Returns the start of its reply, and the largest growth of the server's memory
/// during the command in KiB.
pub fn grown(server: &Child, client: &mut Client, arguments: &[&[u8]]) -> (String, usize) {
    std::fs::write(server.proc("clear_refs"), "5").unwrap();
    let before = server.memory("VmRSS:");
    let reply = client.ask(arguments);
    (reply.chars().take(200).collect(), server.memory("VmHWM:").saturating_sub(before))
}

pub fn numbered(start: &str, words: &[&[u8]], times: usize) -> Vec<Vec<u8>> {
    let first = start.split(' ').map(|word| word.as_bytes().to_vec());
    first.chain((0..times).flat_map(|_| words.iter().map(|word| word.to_vec()))).collect()
}

pub fn borrowed(words: &[Vec<u8>]) -> Vec<&[u8]> {
    words.iter().map(Vec::as_slice).collect()
}

/// Each FILTER is one clause of the same conjunction. In a former version, nested clauses
/// overflowed the stack.
#[test]
fn filters_of_a_search_are_limited_like_clauses() {
    let server = spawn("");
    let mut client = Client::new(server.address);
    client.say("FT.CREATE i ON HASH PREFIX 1 d: SCHEMA n NUMERIC");
    client.say("HSET d:1 n 1");
    let filter: [&[u8]; 4] = [b"FILTER", b"n", b"0", b"1"];
    for command in ["FT.SEARCH", "FT.EXPLAIN"] {
        let some = numbered(&format!("{command} i *"), &filter, 1000);
        let reply = client.ask(&borrowed(&some));
        assert!(!reply.starts_with('-') && !reply.is_empty(), "{command}: {reply:.200}");
        let many = numbered(&format!("{command} i *"), &filter, 50_000);
        let reply = client.ask(&borrowed(&many));
        assert_eq!(reply, r"-ERR the query has more than 1024 clauses\r\n", "{command}");
    }
    assert_eq!(client.say("PING"), r"+PONG\r\n");
}

#[test]
fn the_length_of_a_query_is_limited() {
    let server = spawn("");
    let mut client = Client::new(server.address);
    client.say("FT.CREATE i ON HASH PREFIX 1 d: SCHEMA t TAG");
    for (len, expected) in [
        ((1 << 20) - 5, r"*1\r\n:0\r\n"),
        ((1 << 20) - 4, "-ERR a query has at most 1048576 bytes, not 1048577"),
        (50_000_000, "-ERR a query has at most 1048576 bytes, not 50000005"),
    ] {
        let query = format!("@t:{{{}}}", "a".repeat(len));
        let arguments: [&[u8]; 3] = [b"FT.SEARCH", b"i", query.as_bytes()];
        let (reply, grown) = grown(&server, &mut client, &arguments);
        assert!(reply.starts_with(expected), "{reply}");
        assert!(grown < SLACK + 2 * len / 1024, "{grown} KiB for {len} bytes");
    }
}

#[test]
fn the_conditions_of_an_index_are_limited() {
    let server = spawn("");
    let mut client = Client::new(server.address);
    let start = "ORDNA.INDEX CREATE i ON d: PARTS n WHERE n = 1";
    let few = numbered(start, &[b"OR n = 1"], 1023);
    assert_eq!(client.ask(&borrowed(&few)), r"+OK\r\n");
    let many = numbered(&start.replace(" i ", " j "), &[b"OR n = 1"], 1024);
    let reply = client.ask(&borrowed(&many));
    assert!(reply.starts_with("-ERR") && reply.contains("1024"), "{reply:.300}");
}

/// The sources of BITOP are read one after the other.
#[test]
fn bitop_holds_one_value_at_a_time() {
    let server = spawn("");
    let mut client = Client::new(server.address);
    assert_eq!(client.say("SETBIT a 8388607 1"), r":0\r\n");
    client.say("SET b x");
    for operation in ["AND", "OR", "XOR"] {
        let words = numbered(&format!("BITOP {operation} d b a"), &[b"a"], 80);
        let (reply, grown) = grown(&server, &mut client, &borrowed(&words));
        assert_eq!(reply, r":1048576\r\n", "{operation}");
        // The memory for the result, a copy for the store, and the replaced value.
        assert!(grown < SLACK + 3 * (1 << 10), "{operation} took {grown} KiB");
    }
}

/// If a reply would be refused, its elements are not drawn.
#[test]
fn random_fields_are_bounded_by_their_reply() {
    let server = spawn("");
    let mut client = Client::new(server.address);
    client.say("HSET h f v");
    let words: [&[u8]; 4] =
        [b"CONFIG", b"SET", b"client-output-buffer-limit", b"normal 1048576 0 0"];
    assert_eq!(client.ask(&words), r"+OK\r\n");
    let begin = Instant::now();
    let (reply, grown) = grown(&server, &mut client, &[b"HRANDFIELD", b"h", b"-1000000"]);
    assert_eq!(reply, r"-ERR the reply would exceed 1048576 bytes\r\n");
    assert!(grown < SLACK / 4, "{grown} KiB");
    assert!(begin.elapsed() < Duration::from_millis(300), "{:?}", begin.elapsed());
    let (reply, _) = self::grown(&server, &mut client, &[b"HRANDFIELD", b"h", b"-1048577"]);
    assert_eq!(reply, r"-ERR '-1048577' is out of range: at least -1048576\r\n");
    // The largest reply that fits.
    let reply = client.ask(&[b"HRANDFIELD", b"h", b"-100000"]);
    assert_eq!(reply.len(), r"*100000\r\n".len() + 100_000 * r"$1\r\nf\r\n".len());
}

/// Replies that are longer than their requests, with one part for each argument.
#[test]
fn replies_about_many_names_are_bounded() {
    let server = spawn("");
    let mut client = Client::new(server.address);
    let words: [&[u8]; 4] =
        [b"CONFIG", b"SET", b"client-output-buffer-limit", b"normal 1048576 0 0"];
    assert_eq!(client.ask(&words), r"+OK\r\n");
    for (start, name) in [
        ("COMMAND DOCS", "get"),
        ("COMMAND INFO", "get"),
        ("COMMAND GETKEYS MGET", "k"),
        ("COMMAND GETKEYSANDFLAGS MGET", "k"),
        ("PUBSUB NUMSUB", "c"),
        ("PUBSUB SHARDNUMSUB", "c"),
        ("SCRIPT EXISTS", "s"),
    ] {
        let words = numbered(start, &[name.as_bytes()], 400_000);
        let (reply, grown) = grown(&server, &mut client, &borrowed(&words));
        assert!(reply.starts_with("-ERR the reply would exceed 1048576 bytes"), "{start}: {reply}");
        // The request has 4 MB.
        assert!(grown < SLACK, "{start}: {grown} KiB");
    }
}

/// A reply that contains the same long value many times is not built if it would be refused.
#[test]
fn a_reply_that_is_refused_is_not_built() {
    let server = spawn("clients_memory=50000000");
    let mut client = Client::new(server.address);
    client.ask(&[b"HSET", b"h", b"f", &[b'x'; 1 << 20]]);
    let words = numbered("HMGET h", &[b"f"], 48);
    let (reply, grown) = grown(&server, &mut client, &borrowed(&words));
    assert_eq!(reply, r"-ERR the reply would exceed 50000000 bytes; ask for fewer fields\r\n");
    assert!(grown < SLACK / 2, "{grown} KiB");
    let words = numbered("HMGET h", &[b"f", b"g"], 4);
    assert_eq!(client.ask(&borrowed(&words)).matches(r"$1048576\r\n").count(), 4);
}

/// A pattern that is longer than any key is not compiled.
#[test]
fn a_pattern_takes_no_more_memory_than_its_bytes() {
    let server = spawn("");
    let mut client = Client::new(server.address);
    client.say("SET k v");
    client.say("HSET h f v");
    let mut patterns: Vec<Vec<u8>> = vec![vec![b'x'; 8 << 20], b"[a]".repeat(2 << 20)];
    patterns.push(b"[a".repeat(4 << 20));
    for pattern in &patterns {
        let commands: [&[&[u8]]; 4] = [
            &[b"SCAN", b"0", b"MATCH", pattern],
            &[b"KEYS", pattern],
            &[b"HSCAN", b"h", b"0", b"MATCH", pattern],
            &[b"COMMAND", b"LIST", b"FILTERBY", b"PATTERN", pattern],
        ];
        for command in commands {
            let (reply, grown) = grown(&server, &mut client, command);
            assert!(reply.starts_with('*'), "{reply}");
            let name = String::from_utf8_lossy(command[0]);
            // The size of the request, twice because its buffer grows.
            assert!(grown < SLACK + 3 * (8 << 10), "{name} took {grown} KiB");
        }
    }
    // Patterns with any number of stars and literals match as before.
    let stars = b"*".repeat(1 << 20);
    assert_eq!(client.ask(&[b"KEYS", &stars]), r"*2\r\n$1\r\nh\r\n$1\r\nk\r\n");
}

/// The watched keys of a client count against the memory of clients, and have a separate limit.
#[test]
fn watched_keys_count_as_memory_of_their_client() {
    let server = spawn("clients_memory=33554432");
    let (mut client, mut other) = (Client::new(server.address), Client::new(server.address));
    let mut closed = false;
    for at in 0..40_u32 {
        let keys: Vec<Vec<u8>> = (0..32_u32)
            .map(|key| [&at.to_be_bytes()[..], &key.to_be_bytes(), &[b'k'; 60_000]].concat())
            .collect();
        let mut words: Vec<&[u8]> = vec![b"WATCH"];
        words.extend(keys.iter().map(Vec::as_slice));
        // The client is closed while it sends, or before it reads the reply.
        client.send_if_open(&request(&words));
        let reply = client.reply_within(Duration::from_secs(20)).expect("a reply");
        if reply.is_empty() {
            closed = true;
            break;
        }
        assert_eq!(reply, b"+OK\r\n");
    }
    assert!(closed, "the client watches 76 MB, of 32 MiB for all");
    assert_eq!(other.say("PING"), r"+PONG\r\n");
    // A key that is watched twice counts once.
    for _ in 0..2000 {
        assert_eq!(other.ask(&[b"WATCH", &[b'k'; 60_000]]), r"+OK\r\n");
    }
    other.say("CONFIG SET maxmemory-clients 0");
    other.say("CONFIG SET client-query-buffer-limit 1mb");
    assert_eq!(other.say("UNWATCH"), r"+OK\r\n");
    let replies: Vec<String> = (0..40_u32)
        .map(|at| other.ask(&[b"WATCH", &[&at.to_be_bytes()[..], &[b'k'; 60_000]].concat()]))
        .collect();
    assert_eq!(replies[0], r"+OK\r\n");
    assert!(replies[39].starts_with("-ERR"), "{}", replies[39]);
}

/// The logs of the server keep only the beginning of what clients send.
#[test]
fn logs_keep_the_begin_of_long_arguments() {
    let server = spawn("");
    let (mut admin, mut client) = (Client::new(server.address), Client::new(server.address));
    let mut monitor = Client::new(server.address);
    admin.say("ACL SETUSER app on >pw ~app:* +@all");
    assert_eq!(monitor.say("MONITOR"), r"+OK\r\n");
    client.say("AUTH app pw");
    let long = vec![0xFF; 4 << 20];
    let (reply, grown) = grown(&server, &mut client, &[b"GET", &long]);
    assert!(reply.starts_with("-NOPERM"), "{reply}");
    assert!(grown < SLACK + 3 * (4 << 10), "a refused key took {grown} KiB");
    let log = admin.say("ACL LOG");
    assert!(log.len() < 10_000, "ACL LOG has {} bytes", log.len());
    admin.ask(&[b"GET", &long]);
    admin.say("ECHO end");
    let mut longest = 0;
    loop {
        let line = monitor.reply();
        longest = longest.max(line.len());
        if line.ends_with(b"\"end\"\r\n") {
            break;
        }
    }
    assert!(longest < 64 << 10, "a line of MONITOR has {longest} bytes");
}

/// Choosing the index for a query takes time, too, and ends at the query's timeout.
#[test]
fn choosing_an_index_looks_at_the_time() {
    let server = spawn("");
    let mut client = Client::new(server.address);
    client.say("FT.CREATE i ON HASH PREFIX 1 d: SCHEMA n NUMERIC");
    let mut load = Vec::new();
    for at in 0..20_000 {
        let key = format!("d:{at}");
        load.extend(request(&[b"HSET", key.as_bytes(), b"n", b"1"]));
    }
    client.send(&load);
    (0..20_000).for_each(|_| assert_eq!(client.reply(), b":1\r\n"));
    client.say("FT.SEARCH i @n:[7 8]");
    let query = "@n:[-inf +inf]".repeat(1000);
    let begin = Instant::now();
    let reply = client.ask(&[b"FT.SEARCH", b"i", query.as_bytes(), b"TIMEOUT", b"50"]);
    let took = begin.elapsed();
    // On a busy machine, the timeout may be reached before the index is queried.
    let is_late = reply.starts_with("-ERR Timeout") || reply.contains("is not there after");
    assert!(is_late || reply.starts_with("*21"), "{reply:.200}");
    assert!(took < Duration::from_secs(2), "{took:?} for 50 ms");
}

/// A value that would not fit is refused before its memory is allocated.
#[test]
fn a_length_beyond_the_memory_limit_is_refused_before_it_is_allocated() {
    let server = spawn("max_memory=100000000");
    let mut client = Client::new(server.address);
    client.say("SET short x");
    // 2 MB of a run that LZF expands to 180 MB.
    let run = [&[0x00, b'a'][..], &[0xE0, 0xFF, 0x00].repeat(680_000)].concat();
    let expanded = 1 + 680_000 * 264_u32;
    let mut payload = vec![0, 0xC3, 0x80];
    payload.extend((run.len() as u32).to_be_bytes());
    payload.push(0x80);
    payload.extend(expanded.to_be_bytes());
    payload.extend(&run);
    payload.extend([10, 0]);
    let sum = ordna::checksum::crc64_redis(&payload);
    payload.extend(sum.to_le_bytes());
    let commands: [&[&[u8]]; 7] = [
        &[b"SETRANGE", b"new", b"536870900", b"1"],
        &[b"SETRANGE", b"short", b"200000000", b"1"],
        &[b"SETBIT", b"new", b"4294967295", b"1"],
        &[b"BITFIELD", b"new", b"SET", b"u8", b"4294967280", b"1"],
        &[b"BITFIELD", b"short", b"INCRBY", b"u8", b"4294967280", b"1"],
        &[b"BITFIELD", b"new", b"SET", b"u8", b"0", b"1", b"SET", b"u8", b"4294967280", b"1"],
        &[b"RESTORE", b"new", b"0", &payload],
    ];
    for command in commands {
        let (reply, grown) = grown(&server, &mut client, command);
        let name = String::from_utf8_lossy(command[0]);
        assert!(reply.starts_with("-OOM"), "{name}: {reply}");
        assert!(grown < SLACK, "{name} took {grown} KiB");
    }
    assert_eq!(client.say("EXISTS new"), r":0\r\n");
    assert_eq!(client.say("GET short"), r"$1\r\nx\r\n");
}

/// A client that sends long commands in a pipeline does not delay other clients much.
#[test]
fn a_pipeline_of_long_commands_gives_others_their_turn() {
    let server = spawn("");
    let mut client = Client::new(server.address);
    let fields: Vec<String> = (0..3000).map(|at| format!("field:{at}")).collect();
    let mut words: Vec<&[u8]> = vec![b"HSET", b"h"];
    for field in &fields {
        words.extend([field.as_bytes(), b"value"]);
    }
    assert_eq!(client.ask(&words), r":3000\r\n");
    let begin = Instant::now();
    client.say("HSET h field:7 other");
    let alone = begin.elapsed();
    let over = AtomicBool::new(false);
    let pipeline = request(&[b"HSET", b"h", b"field:8", b"other"]).repeat(64);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut client = Client::new(server.address);
                while !over.load(Ordering::Relaxed) {
                    client.send(&pipeline);
                    (0..64).for_each(|_| assert_eq!(client.reply(), b":0\r\n"));
                }
            });
        }
        let mut waits = Vec::new();
        for _ in 0..20 {
            std::thread::sleep(Duration::from_millis(20));
            let begin = Instant::now();
            assert_eq!(client.say("PING"), r"+PONG\r\n");
            waits.push(begin.elapsed());
        }
        over.store(true, Ordering::Relaxed);
        waits.sort();
        // Each of the four clients has one command in progress, and the machine may have other
        // work.
        let most = 16 * alone + Duration::from_millis(50);
        assert!(waits[10] < most, "{waits:?}, a command alone takes {alone:?}");
    });
}

/// What queued commands declare is checked before the transaction begins, because it cannot be
/// stopped afterwards.
#[test]
fn a_transaction_does_not_grow_beyond_the_memory_limit() {
    let server = spawn("max_memory=100000000");
    let mut client = Client::new(server.address);
    client.say("SETBIT big 239999999 1");
    let refused = "-OOM";
    for line in [
        "SETRANGE new 536870900 1",
        "SETBIT new 4294967295 1",
        "BITFIELD new GET u8 0 SET u8 4294967280 1",
    ] {
        assert_eq!(client.say("MULTI"), r"+OK\r\n");
        let reply = client.say(line);
        assert!(reply.starts_with(refused), "{line}: {reply}");
        assert!(client.say("EXEC").starts_with("-EXECABORT"));
    }
    // Copies of 30 MB, three times in addition to the original.
    for copy in ["COPY big", "BITOP OR"] {
        assert_eq!(client.say("MULTI"), r"+OK\r\n");
        for at in 0..3 {
            let line = match copy {
                "COPY big" => format!("COPY big new:{at}"),
                _ => format!("BITOP OR new:{at} big"),
            };
            assert_eq!(client.say(&line), r"+QUEUED\r\n");
        }
        let (reply, grown) = grown(&server, &mut client, &[b"EXEC"]);
        assert!(reply.starts_with("-EXECABORT") && reply.contains("OOM"), "{reply}");
        assert!(grown < SLACK, "{copy} took {grown} KiB");
    }
    assert_eq!(client.say("MULTI"), r"+OK\r\n");
    client.say("COPY big new:0");
    client.say("SETRANGE small 100 x");
    assert_eq!(client.say("EXEC"), r"*2\r\n:1\r\n:101\r\n");
}

/// A page of an aggregation that is too large for a reply is kept for a smaller request.
#[test]
fn a_page_that_does_not_fit_is_not_lost() {
    let server = spawn("");
    let mut client = Client::new(server.address);
    client.say("FT.CREATE i ON HASH PREFIX 1 d: SCHEMA n NUMERIC");
    for at in 0..50 {
        let key = format!("d:{at}");
        client.ask(&[b"HSET", key.as_bytes(), b"n", b"1", b"long", &[b'x'; 1000]]);
    }
    let reply = client.say("FT.AGGREGATE i * LOAD 1 long WITHCURSOR COUNT 1");
    let cursor = reply.trim_end_matches(r"\r\n").rsplit(':').next().unwrap().to_owned();
    assert_ne!(cursor, "0", "{reply:.200}");
    let limit: [&[u8]; 4] = [b"CONFIG", b"SET", b"client-output-buffer-limit", b"normal 10000 0 0"];
    assert_eq!(client.ask(&limit), r"+OK\r\n");
    let reply = client.say(&format!("FT.CURSOR READ i {cursor} COUNT 49"));
    assert!(reply.starts_with("-ERR the reply would exceed"), "{reply:.200}");
    let mut rows = 0;
    loop {
        let reply = client.say(&format!("FT.CURSOR READ i {cursor} COUNT 5"));
        assert!(reply.starts_with(r"*2\r\n"), "{reply:.200}");
        rows += reply.matches(r"$1000\r\n").count();
        if reply.ends_with(r":0\r\n") {
            break;
        }
    }
    assert_eq!(rows, 49);
}

/// The keys of many results are not copied for a reply that would be refused.
#[test]
fn pages_of_indexes_and_searches_are_bounded_like_their_replies() {
    const KEYS: usize = 1500;
    let server = spawn("");
    let mut client = Client::new(server.address);
    client.say("ORDNA.INDEX CREATE i ON d: PARTS n");
    client.say("FT.CREATE f PREFIX 1 d: SCHEMA n NUMERIC");
    let long = "k".repeat(50_000);
    for n in 0..KEYS {
        assert_eq!(client.say(&format!("HSET d:{long}{n} n {n}")), r":1\r\n");
    }
    assert_eq!(client.say("ORDNA.INDEX COUNT i"), format!(r":{KEYS}\r\n"));
    let limit: [&[u8]; 4] = [b"CONFIG", b"SET", b"client-output-buffer-limit", b"normal 1mb 0 0"];
    assert_eq!(client.ask(&limit), r"+OK\r\n");
    for line in [
        "ORDNA.INDEX SCAN i LIMIT 10000",
        "ORDNA.INDEX SCAN i REV LIMIT 10000 VALUES",
        "FT.SEARCH f * LIMIT 0 100000 NOCONTENT",
        "FT.SEARCH f -@n:[7,7] LIMIT 0 100000 NOCONTENT",
    ] {
        let words: Vec<String> = line.split(' ').map(|word| word.replace(',', " ")).collect();
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        let (reply, grown) = grown(&server, &mut client, &words);
        let refused = r"-ERR the reply would exceed 1048576 bytes; ask for less\r\n";
        assert_eq!(reply, refused, "{line}");
        assert!(grown < SLACK, "{line} took {grown} KiB");
    }
    // Results that fit are returned.
    let reply = client.say("ORDNA.INDEX SCAN i LIMIT 15");
    assert_eq!(reply.matches("d:kkk").count(), 15, "{reply:.200}");
    assert!(client.say("FT.SEARCH f * LIMIT 7 20 NOCONTENT").starts_with(r"*21\r\n:1500\r\n"));
}

/// Each empty string takes two bytes of a payload, and much more memory as a value of a list.
#[test]
fn a_payload_with_too_many_values_is_refused() {
    let server = spawn("");
    let mut client = Client::new(server.address);
    // A list whose nodes have one value each, which is empty.
    let count = 3_000_000_u32;
    let mut payload = vec![18, 0x80];
    payload.extend(count.to_be_bytes());
    payload.extend([1, 0].repeat(count as usize));
    payload.extend([10, 0]);
    payload.extend(ordna::checksum::crc64_redis(&payload).to_le_bytes());
    let (reply, _) = grown(&server, &mut client, &[b"RESTORE", b"list", b"0", &payload]);
    assert!(reply.starts_with("-ERR Bad data format"), "{reply}");
}
