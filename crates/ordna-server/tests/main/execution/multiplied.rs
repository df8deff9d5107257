//! Requests that name the same thing many times. What the server builds from them is bounded
//! nevertheless.

use std::time::{Duration, Instant};

use super::limits::{SLACK, borrowed, grown, numbered};
use crate::common::{Child, Client, request, spawn};

/// Starts a server with a reply limit, an index, and one document with a long field.
fn with_long_document(length: usize) -> (Child, Client) {
    let server = spawn("");
    let mut client = Client::new(server.address);
    client.say("FT.CREATE i ON HASH PREFIX 1 d: SCHEMA t TAG");
    client.ask(&[b"HSET", b"d:1", b"f", &vec![b'v'; length]]);
    let limit: [&[u8]; 4] =
        [b"CONFIG", b"SET", b"client-output-buffer-limit", b"normal 1048576 0 0"];
    assert_eq!(client.ask(&limit), r"+OK\r\n");
    (server, client)
}

/// The fields of a document count against the limit while they are written.
#[test]
fn a_field_that_is_returned_many_times_is_bounded_by_the_reply() {
    let (server, mut client) = with_long_document(1 << 20);
    let words = numbered("FT.SEARCH i * RETURN 100", &[b"f"], 100);
    let (reply, grown) = grown(&server, &mut client, &borrowed(&words));
    assert!(reply.starts_with("-ERR the reply would exceed 1048576 bytes"), "{reply}");
    assert!(grown < SLACK, "{grown} KiB");
}

/// The cells of a row count before they are copied, and their number is limited.
#[test]
fn a_field_that_is_loaded_many_times_is_bounded() {
    let (server, mut client) = with_long_document(4 << 20);
    let mut words = numbered("FT.AGGREGATE i *", &[], 0);
    for at in 0..40 {
        words.extend(numbered(&format!("LOAD 3 f AS a{at}"), &[], 0));
    }
    let (reply, used) = grown(&server, &mut client, &borrowed(&words));
    assert!(reply.starts_with("-ERR the aggregation takes more than"), "{reply}");
    assert!(used < SLACK, "{used} KiB");
    // The same field as the key of a group.
    words.extend(numbered("GROUPBY 40", &[], 0));
    words.extend((0..40).map(|at| format!("@a{at}").into_bytes()));
    let (reply, used) = grown(&server, &mut client, &borrowed(&words));
    assert!(reply.starts_with("-ERR the aggregation takes more than"), "{reply}");
    assert!(used < SLACK, "{used} KiB");
    let mut words = numbered("FT.AGGREGATE i *", &[], 0);
    for at in 0..30_000 {
        words.extend(numbered(&format!("LOAD 1 a{at}"), &[], 0));
    }
    let begin = Instant::now();
    let reply = client.ask(&borrowed(&words));
    assert_eq!(reply, r"-ERR LOAD names more than 1024 fields\r\n");
    assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
}

/// The names of columns count as memory of a cursor, like its cells.
#[test]
fn the_columns_of_a_cursor_count() {
    let server = spawn("");
    let mut client = Client::new(server.address);
    client.say("FT.CREATE i ON HASH PREFIX 1 d: SCHEMA t TAG");
    for key in ["d:1", "d:2"] {
        let names: Vec<Vec<u8>> =
            (0..200).map(|at| [format!("{at}:").as_bytes(), &[b'n'; 50_000]].concat()).collect();
        let mut words: Vec<&[u8]> = vec![b"HSET", key.as_bytes()];
        names.iter().for_each(|name| words.extend([name.as_slice(), b""]));
        assert_eq!(client.ask(&words), r":200\r\n");
    }
    let replies: Vec<String> = (0..20)
        .map(|_| {
            let reply = client.say("FT.AGGREGATE i * LOAD * WITHCURSOR COUNT 1");
            reply.chars().take(60).collect()
        })
        .collect();
    assert!(replies[0].starts_with(r"*2\r\n"), "{}", replies[0]);
    // 10 MB each, within a limit of 128 MiB.
    assert!(replies[19].starts_with("-ERR the cursors would take more than"), "{}", replies[19]);
}

/// The descriptions of a command that is named many times end at the limit of a reply.
#[test]
fn descriptions_of_commands_are_bounded_by_the_reply() {
    let server = spawn("");
    let mut client = Client::new(server.address);
    let limit: [&[u8]; 4] =
        [b"CONFIG", b"SET", b"client-output-buffer-limit", b"normal 1048576 0 0"];
    assert_eq!(client.ask(&limit), r"+OK\r\n");
    for command in ["COMMAND DOCS", "COMMAND INFO", "LATENCY HISTOGRAM"] {
        client.say("CLIENT ID");
        let words = numbered(command, &[b"client"], 20_000);
        let (reply, used) = grown(&server, &mut client, &borrowed(&words));
        assert_eq!(
            reply, r"-ERR the reply would exceed 1048576 bytes; ask for less\r\n",
            "{command}"
        );
        assert!(used < SLACK, "{command} took {used} KiB");
        let reply = client.ask(&borrowed(&numbered(command, &[b"client"], 3)));
        assert!(!reply.starts_with('-'), "{command}: {reply:.200}");
    }
}

/// The reply limit applies to the replies of a transaction. Replies before it in a pipeline do not
/// count.
#[test]
fn a_transaction_has_the_whole_limit_of_replies() {
    let server = spawn("");
    let mut client = Client::new(server.address);
    let limit: [&[u8]; 4] =
        [b"CONFIG", b"SET", b"client-output-buffer-limit", b"normal 1048576 0 0"];
    assert_eq!(client.ask(&limit), r"+OK\r\n");
    client.ask(&[b"SET", b"before", &vec![b'v'; 30_000]]);
    for (length, fits) in [(1_030_000, true), (1_048_600, false)] {
        client.ask(&[b"SET", b"long", &vec![b'v'; length]]);
        client.send(b"GET before\r\nMULTI\r\nMGET long\r\nPING\r\nEXEC\r\n");
        let replies = [(); 5].map(|()| client.reply());
        assert!(replies[0].len() > 30_000, "the reply before");
        let executed = String::from_utf8_lossy(&replies[4]);
        let wanted = if fits { "*2\r\n*1\r\n$1030000\r\n" } else { "*2\r\n-ERR " };
        assert!(executed.starts_with(wanted), "{executed:.200}");
        assert!(executed.ends_with("+PONG\r\n"), "the next command is executed");
    }
}

/// A short payload contains a listpack that expands to many short texts.
#[test]
fn texts_of_a_payload_are_bounded() {
    let server = spawn("");
    let mut client = Client::new(server.address);
    // A listpack of 64 MB, with two bytes for each number 1.
    let copies = 254_000_u32;
    let length = 8 + copies * 264 + 1;
    let mut packed = vec![7];
    packed.extend(length.to_le_bytes());
    packed.extend([0xFF, 0xFF, 1, 1]);
    packed.extend([0xE0, 0xFF, 1].repeat(copies as usize));
    packed.extend([0, 0xFF]);
    let mut payload = vec![16, 0xC3, 0x80];
    payload.extend((packed.len() as u32).to_be_bytes());
    payload.push(0x80);
    payload.extend(length.to_be_bytes());
    payload.extend(&packed);
    payload.extend([10, 0]);
    let sum = ordna::checksum::crc64_redis(&payload);
    payload.extend(sum.to_le_bytes());
    let (reply, used) = grown(&server, &mut client, &[b"RESTORE", b"k", b"0", &payload]);
    assert_eq!(reply, r"-ERR Bad data format\r\n");
    assert!(used < SLACK, "{} bytes of payload took {used} KiB", payload.len());
}

/// Replies that clients do not read count against the memory of clients.
#[test]
fn replies_that_wait_for_their_client_count() {
    let server = spawn("clients_memory=134217728");
    let mut admin = Client::new(server.address);
    assert_eq!(admin.say("SETBIT k 167772159 1"), r":0\r\n");
    let mut clients: Vec<Client> = (0..20).map(|_| Client::new(server.address)).collect();
    let get = request(&[b"GET", b"k"]);
    clients.iter_mut().for_each(|client| client.send(&get));
    let end = Instant::now() + Duration::from_secs(20);
    let evicted = loop {
        let info = admin.say("INFO stats");
        let count = info.split("evicted_clients:").nth(1).and_then(|text| text.split('\\').next());
        let count: usize = count.unwrap().parse().unwrap();
        if count >= 12 || Instant::now() > end {
            break count;
        }
        std::thread::sleep(Duration::from_millis(100));
    };
    // Six clients with 20 MiB each fit.
    assert!(evicted >= 12, "{evicted} were closed; {} KiB", server.memory("VmRSS:"));
}

/// Names, fields and prefixes of indexes are kept in memory, so they are limited.
#[test]
fn definitions_of_indexes_are_bounded() {
    let server = spawn("");
    let mut client = Client::new(server.address);
    let long = vec![b'x'; 5 << 20];
    let commands: [&[&[u8]]; 6] = [
        &[b"ORDNA.INDEX", b"CREATE", &long, b"ON", b"p", b"PARTS", b"f"],
        &[b"ORDNA.INDEX", b"CREATE", b"a", b"ON", &long, b"PARTS", b"f"],
        &[b"ORDNA.INDEX", b"CREATE", b"b", b"ON", b"p", b"PARTS", &long],
        &[b"FT.CREATE", &long, b"SCHEMA", b"t", b"TAG"],
        &[b"FT.CREATE", b"c", b"PREFIX", b"1", &long, b"SCHEMA", b"t", b"TAG"],
        &[b"FT.CREATE", b"d", b"SCHEMA", &long, b"AS", b"t", b"TAG"],
    ];
    for command in commands {
        let (reply, used) = grown(&server, &mut client, command);
        assert!(reply.starts_with("-ERR names and prefixes of all indexes would take"), "{reply}");
        assert!(used < SLACK + 4 * (5 << 10), "{used} KiB");
    }
    assert_eq!(client.say("FT.CREATE c PREFIX 1 d: SCHEMA t TAG"), r"+OK\r\n");
    assert_eq!(client.say("FT.DROPINDEX c"), r"+OK\r\n");
}

/// Each query of a transaction may wait for its index, while all other clients wait.
#[test]
fn queries_of_a_transaction_are_bounded_together() {
    let server = spawn("");
    let mut client = Client::new(server.address);
    client.say("ORDNA.INDEX CREATE i ON h PARTS n");
    client.say("HSET h1 n 1");
    // A query waits until the index has applied the write; INFO does not wait.
    assert!(client.say("ORDNA.INDEX SCAN i").contains("h1"));
    let info = client.say("ORDNA.INDEX INFO i");
    let vector = info.split(r"$6\r\nvector\r\n").nth(1).and_then(|rest| rest.split(r"\r\n").nth(1));
    // A version vector that no write has reached.
    let vector = vector.expect("a vector");
    let far = vector.replace("-1", "-2");
    assert_ne!(far, vector);
    client.say("MULTI");
    for _ in 0..12 {
        let reply = client.say(&format!("ORDNA.INDEX SCAN i AT {far}"));
        assert_eq!(reply, r"+QUEUED\r\n");
    }
    client.say("SET k v");
    let begin = Instant::now();
    let reply = client.say("EXEC");
    let took = begin.elapsed();
    assert!(reply.contains("is not there after"), "{reply}");
    assert!(reply.contains("took more than 2s together"), "{reply}");
    assert!(reply.ends_with(r"+OK\r\n"), "{reply}");
    assert!(took < Duration::from_secs(5), "{took:?}");
}
