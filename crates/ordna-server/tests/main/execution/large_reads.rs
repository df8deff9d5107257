//! Tests of commands that read large collections on a snapshot, within memory limits.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::{Client, fresh, request, show, spawn};

/// Number of elements of a collection that is read on a snapshot.
const MANY: usize = 10_000;

/// Fills a key with commands of up to 1,000 elements.
fn fill(client: &mut Client, command: &str, key: &str, count: usize) {
    let mut at = 0;
    while at < count {
        let mut words = vec![command.to_owned(), key.to_owned()];
        let end = count.min(at + 1000);
        for at in at..end {
            match command {
                "HSET" => words.extend([format!("field{at}"), format!("value{at}")]),
                "ZADD" => words.extend([format!("{}", at % 100), format!("member{at}")]),
                _ => words.push(format!("member{at}")),
            }
        }
        let words: Vec<&[u8]> = words.iter().map(String::as_bytes).collect();
        let reply = client.ask(&words);
        assert!(reply.starts_with(':'), "{reply}");
        at = end;
    }
}

/// Returns the reply in a transaction, which reads the current state.
fn within(client: &mut Client, line: &str) -> String {
    client.say("MULTI");
    client.say(line);
    let reply = client.say("EXEC");
    reply.strip_prefix(r"*1\r\n").unwrap().to_owned()
}

#[test]
fn a_snapshot_answers_as_the_present_state_does() {
    let (_server, mut client) = fresh();
    fill(&mut client, "HSET", "h", MANY);
    fill(&mut client, "SADD", "s", MANY);
    fill(&mut client, "SADD", "t", MANY / 2);
    fill(&mut client, "ZADD", "z", MANY);
    fill(&mut client, "ZADD", "y", MANY / 2);
    fill(&mut client, "RPUSH", "l", MANY);
    fill(&mut client, "SADD", "few", 10);
    client.say("SADD few other");
    for line in [
        "HGETALL h",
        "HKEYS h",
        "HVALS h",
        "SMEMBERS s",
        "DUMP h",
        "DUMP s",
        "DUMP z",
        "DUMP l",
        "LRANGE l 0 -1",
        "LRANGE l 10 8000",
        "LPOS l member9999",
        "LPOS l absent",
        "LPOS l member1 RANK -1 COUNT 0",
        "ZRANGE z 0 -1",
        "ZRANGE z 0 -1 WITHSCORES",
        "ZRANGE z 100 9000 REV",
        "ZRANGEBYSCORE z -inf +inf",
        "ZRANGEBYSCORE z 10 (90 LIMIT 5000 10",
        "ZREVRANGEBYSCORE z 90 10 WITHSCORES",
        "ZRANGEBYLEX z - +",
        "ZRANGEBYLEX z [member3 +",
        "ZLEXCOUNT z - +",
        "ZLEXCOUNT z (member3 +",
        "SINTER s t",
        "SINTER t s s t",
        "SINTER s few",
        "SINTER s nothing",
        "SUNION s t few",
        "SUNION s s",
        "SDIFF s t",
        "SDIFF s s",
        "SDIFF few s",
        "SINTERCARD 2 s t",
        "SINTERCARD 2 s t LIMIT 7",
        "ZUNION 2 z y WITHSCORES",
        "ZUNION 3 z z s WEIGHTS 1 2 3 AGGREGATE MAX WITHSCORES",
        "ZINTER 2 z y WITHSCORES",
        "ZINTER 2 nothing z",
        "ZDIFF 2 z y",
        "ZDIFF 2 z z",
        "ZINTERCARD 2 z y",
        "ZINTERCARD 2 z y LIMIT 4000",
        "ZINTERCARD 3 y z y LIMIT 9999",
        "ZINTERCARD 4 z few s z",
        "ZINTERCARD 2 z nothing",
        "ZINTERCARD 2 z l",
        "SINTERCARD 3 s t few LIMIT 9",
        "SINTERCARD 3 s t few LIMIT 11",
        "SINTERCARD 2 t t LIMIT 4999",
        "SINTERCARD 2 t h LIMIT 5",
        "SINTER s h",
        "HGETALL s",
        "SMEMBERS h",
        "ZRANGE l 0 -1",
        "LRANGE z 0 -1",
        "ZUNION 2 z l",
    ] {
        assert_eq!(client.say(line), within(&mut client, line), "{line}");
    }
    for (line, count) in [
        ("SRANDMEMBER s 9000", 9000),
        ("SRANDMEMBER s 20000", MANY),
        ("SRANDMEMBER s -9000", 9000),
        ("HRANDFIELD h 9000", 9000),
        ("ZRANDMEMBER z 200", 200),
    ] {
        let reply = client.say(line);
        assert!(reply.starts_with(&format!(r"*{count}\r\n")), "{line}: {reply:.50}");
        let mut found: Vec<&str> = reply.split(r"\r\n").filter(|it| it.contains('e')).collect();
        assert_eq!(found.len(), count, "{line}");
        found.sort_unstable();
        found.dedup();
        assert!(found.len() == count || line.contains('-') && found.len() > 4000, "{line}");
    }
    // With RESP3, the replies of a pipeline keep their order, too.
    client.resp3 = true;
    client.say("HELLO 3");
    client.send(&[request(&[b"SET", b"a", b"1"]), request(&[b"HGETALL", b"h"])].concat());
    client.send(&[request(&[b"SMEMBERS", b"s"]), request(&[b"GET", b"a"])].concat());
    assert_eq!(client.reply(), b"+OK\r\n");
    assert!(client.reply().starts_with(b"%10000\r\n"));
    assert!(client.reply().starts_with(b"~10000\r\n"));
    assert_eq!(client.reply(), b"$1\r\n1\r\n");
}

/// A read sees all writes that were acknowledged before it, and sees moves between sets completely
/// or not at all.
#[test]
fn large_reads_are_one_step() {
    let (server, mut client) = fresh();
    fill(&mut client, "SADD", "s", MANY);
    fill(&mut client, "SADD", "t", MANY);
    client.say("SREM t member0");
    fill(&mut client, "HSET", "h", MANY);
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for number in 0..2 {
            let (ends, address) = (&ends, server.address);
            scope.spawn(move || {
                let mut client = Client::new(address);
                let field = format!("own{number}");
                let mut at = 0;
                while !ends.load(Ordering::Relaxed) {
                    at += 1;
                    client.say(&format!("HSET h {field} at{at}"));
                    let all = client.say("HVALS h");
                    assert!(all.contains(&format!(r"\r\nat{at}\r\n")), "at{at}");
                }
            });
        }
        let (ends, address) = (&ends, server.address);
        scope.spawn(move || {
            let mut client = Client::new(address);
            while !ends.load(Ordering::Relaxed) {
                client.say("SMOVE s t member0");
                client.say("SMOVE t s member0");
            }
        });
        let end = Instant::now() + Duration::from_secs(2);
        while Instant::now() < end {
            assert_eq!(client.say("SINTERCARD 2 s t"), format!(":{}\\r\\n", MANY - 1));
            let union = client.say("SUNION s t");
            assert!(union.starts_with(&format!(r"*{MANY}\r\n")), "{union:.30}");
        }
        ends.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_key_that_is_named_again_takes_no_memory_and_no_time() {
    let server = spawn("");
    let mut client = Client::new(server.address);
    fill(&mut client, "SADD", "s", 100_000);
    fill(&mut client, "ZADD", "z", 100_000);
    for command in ["SUNION", "SINTER", "SDIFF"] {
        let mut words = vec![&b"s"[..]; 3001];
        words[0] = command.as_bytes();
        std::fs::write(server.proc("clear_refs"), "5").unwrap();
        let before = server.memory("VmRSS:");
        let begin = Instant::now();
        client.send(&request(&words));
        let reply = client.reply_within(Duration::from_secs(20)).expect("a reply in time");
        let count = if command == "SDIFF" { 0 } else { 100_000 };
        assert!(reply.starts_with(format!("*{count}\r\n").as_bytes()), "{command}");
        assert!(begin.elapsed() < Duration::from_secs(10), "{command} took {:?}", begin.elapsed());
        let grown = server.memory("VmHWM:").saturating_sub(before);
        assert!(grown < 200 << 10, "{command} took {grown} KiB");
    }
    let mut words = vec![&b"z"[..]; 3002];
    words[..2].copy_from_slice(&[b"ZUNION", b"3000"]);
    let reply = client.ask(&words);
    assert!(reply.starts_with("-ERR keys that are named again"), "{reply:.200}");
}

/// Elements of 100 KiB, with a reply limit of 1 MiB.
#[test]
fn replies_of_long_elements_are_bounded() {
    let server = spawn("");
    let mut client = Client::new(server.address);
    let value = vec![b'v'; 100 << 10];
    let name = |at: usize| format!("{at:0>60000}").into_bytes();
    for at in 0..2000 {
        let field = at.to_string().into_bytes();
        client.send(&request(&[b"HSET", b"h", &field, &value]));
        client.send(&request(&[b"RPUSH", b"l", &value]));
        client.send(&request(&[b"ZADD", b"z", &field, &name(at)]));
        client.send(&request(&[b"SADD", b"s", &name(at)]));
        (0..4).for_each(|_| assert!(client.reply().starts_with(b":")));
    }
    let limits = client.ask(&[b"CONFIG", b"SET", b"client-output-buffer-limit", b"normal 1mb 0 0"]);
    assert_eq!(limits, r"+OK\r\n");
    for line in [
        "HGETALL h",
        "HVALS h",
        "HRANDFIELD h 1000 WITHVALUES",
        "LRANGE l 0 -1",
        "LPOP l 1000",
        "RPOP l 1000",
        "LMPOP 1 l LEFT COUNT 1000",
        "ZPOPMIN z 1000",
        "ZMPOP 1 z MAX COUNT 1000",
        "ZRANGE z 0 -1",
        "ZRANDMEMBER z 1000",
        "SMEMBERS s",
        "SPOP s 1000",
        "SRANDMEMBER s 1000",
        "SUNION s s",
        "SINTER s s",
        "SDIFF s nothing",
        "ZUNION 2 z s",
        "ZDIFF 1 z",
        "DUMP h",
        "DUMP l",
        "DUMP z",
        "DUMP s",
    ] {
        std::fs::write(server.proc("clear_refs"), "5").unwrap();
        let before = server.memory("VmRSS:");
        let reply = client.say(line);
        assert!(reply.starts_with("-ERR ") && reply.contains("exceed"), "{line}: {reply:.200}");
        let grown = server.memory("VmHWM:").saturating_sub(before);
        assert!(grown < 20 << 10, "{line} took {grown} KiB");
    }
    // Counting does not copy the elements.
    for (line, count) in
        [("ZINTERCARD 2 z s LIMIT 1", 1), ("ZINTERCARD 2 z s", 2000), ("ZINTERCARD 1 z", 2000)]
    {
        std::fs::write(server.proc("clear_refs"), "5").unwrap();
        let before = server.memory("VmRSS:");
        assert_eq!(client.say(line), format!(r":{count}\r\n"), "{line}");
        let grown = server.memory("VmHWM:").saturating_sub(before);
        assert!(grown < 20 << 10, "{line} took {grown} KiB");
    }
    for line in ["HLEN h", "LLEN l", "ZCARD z", "SCARD s"] {
        assert_eq!(client.say(line), r":2000\r\n", "{line}");
    }
    // A single call of a scan returns early, but the scan returns all elements.
    for (command, key, parts) in [("HSCAN", "h", 2), ("SSCAN", "s", 1), ("ZSCAN", "z", 2)] {
        let (mut cursor, mut found) = ("0".to_owned(), 0);
        loop {
            let reply = client.say(&format!("{command} {key} {cursor} COUNT 1000000"));
            assert!(reply.len() < 4 << 20, "{command}: {} bytes", reply.len());
            let words: Vec<&str> = reply.split(r"\r\n").collect();
            cursor = words[2].to_owned();
            found += words[3].strip_prefix('*').unwrap().parse::<usize>().unwrap() / parts;
            if cursor == "0" {
                break;
            }
        }
        assert_eq!(found, 2000, "{command}");
    }
}

#[test]
fn patterns_and_names_of_channels_are_bounded() {
    let (_server, mut client) = fresh();
    let long = [b"*".as_slice(), &[b'x'; 40_000], b"*"].concat();
    client.send(&request(&[b"PSUBSCRIBE", &long]));
    assert!(show(&client.reply()).contains("psubscribe"));
    let other = [b"*".as_slice(), &[b'y'; 40_000], b"*"].concat();
    let reply = client.ask(&[b"PSUBSCRIBE", &other]);
    assert!(
        reply.starts_with("-ERR a client may be subscribed to 65536 bytes of patterns"),
        "{reply}"
    );
    client.send(&request(&[b"PUNSUBSCRIBE"]));
    client.reply();
    client.send(&request(&[b"PSUBSCRIBE", &other]));
    assert!(show(&client.reply()).contains("psubscribe"));
    client.say("RESET");
    let name = vec![b'x'; 1 << 20];
    for words in
        [&[&b"PUBLISH"[..], &name, b"m"][..], &[b"SPUBLISH", &name, b"m"], &[b"SUBSCRIBE", &name]]
    {
        let reply = client.ask(words);
        assert!(reply.starts_with("-ERR the name of a channel has 1048576 bytes"), "{reply:.100}");
    }
}
