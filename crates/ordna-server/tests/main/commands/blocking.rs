//! Commands that wait for elements: which clients are served, in which order, and which ones leave.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::common::{Client, converse, fresh, request, show, spawn};

/// Returns the value of a field of `INFO`.
pub fn info(client: &mut Client, field: &str) -> usize {
    let text = client.say("INFO clients");
    let field = format!("{field}:");
    let at = text.find(&field).expect("the field is there") + field.len();
    text[at..].split(r"\r\n").next().unwrap().parse().unwrap()
}

/// Waits until this number of clients are blocked.
fn wait_for(client: &mut Client, blocked: usize) {
    let end = Instant::now() + Duration::from_secs(20);
    while info(client, "blocked_clients") != blocked {
        assert!(Instant::now() < end, "{} clients wait", info(client, "blocked_clients"));
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Sends a command, given as words, without reading its reply.
fn begin(client: &mut Client, line: &str) {
    let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
    client.send(&request(&words));
}

/// Returns new clients that are blocked by these commands, in this order.
fn waiting(address: SocketAddr, client: &mut Client, lines: &[&str]) -> Vec<Client> {
    let present = info(client, "blocked_clients");
    let mut all = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let mut new = Client::new(address);
        begin(&mut new, line);
        wait_for(client, present + at + 1);
        all.push(new);
    }
    all
}

fn next(client: &mut Client) -> String {
    show(&client.reply())
}

/// Checks that no client is blocked and no key is awaited.
fn assert_none(client: &mut Client) {
    wait_for(client, 0);
    assert_eq!(info(client, "total_blocking_keys"), 0);
    assert_eq!(info(client, "clients_in_timeout_table"), 0);
}

#[test]
fn what_is_there_is_taken_at_once() {
    let (_server, mut client) = fresh();
    converse(
        &mut client,
        &[
            ("RPUSH l a b c d e", r":5\r\n"),
            ("BLPOP nothing l 0", r"*2\r\n$1\r\nl\r\n$1\r\na\r\n"),
            ("BRPOP l 1", r"*2\r\n$1\r\nl\r\n$1\r\ne\r\n"),
            ("BLMOVE l m LEFT RIGHT 0", r"$1\r\nb\r\n"),
            ("BRPOPLPUSH l m 0", r"$1\r\nd\r\n"),
            ("LRANGE m 0 -1", r"*2\r\n$1\r\nd\r\n$1\r\nb\r\n"),
            ("BLMPOP 0 2 l m RIGHT COUNT 5", r"*2\r\n$1\r\nl\r\n*1\r\n$1\r\nc\r\n"),
            ("EXISTS l", r":0\r\n"),
            ("ZADD z 1 a 2 b 3 c", r":3\r\n"),
            ("BZPOPMIN l z 0", r"*3\r\n$1\r\nz\r\n$1\r\na\r\n$1\r\n1\r\n"),
            ("BZMPOP 0 1 z MAX", r"*2\r\n$1\r\nz\r\n*1\r\n*2\r\n$1\r\nc\r\n$1\r\n3\r\n"),
            ("BZPOPMAX z 0", r"*3\r\n$1\r\nz\r\n$1\r\nb\r\n$1\r\n2\r\n"),
            ("EXISTS z", r":0\r\n"),
            ("SET s x", r"+OK\r\n"),
            (
                "BLPOP nothing s m 0",
                r"-WRONGTYPE Operation against a key holding the wrong kind of value\r\n",
            ),
            ("BLPOP m s 0", r"*2\r\n$1\r\nm\r\n$1\r\nd\r\n"),
            ("BLPOP l x", r"-ERR timeout is not a float or out of range\r\n"),
            ("BLPOP l nan", r"-ERR timeout is not a float or out of range\r\n"),
            ("BLPOP l -0.5", r"-ERR timeout is negative\r\n"),
            ("BLPOP l inf", r"-ERR timeout is negative\r\n"),
            ("BLPOP l 9223372036854775", r"-ERR timeout is out of range\r\n"),
            ("BLPOP l 0.01", r"*-1\r\n"),
            ("BZMPOP 0.01 1 z MIN", r"*-1\r\n"),
            ("BLMPOP 0.01 0 l LEFT", r"-ERR numkeys should be greater than 0\r\n"),
        ],
    );
    assert_none(&mut client);
}

#[test]
fn the_client_that_waited_longest_is_served_first() {
    let (server, mut client) = fresh();
    let lines = ["BLPOP a b 0", "BRPOP b 0", "BLMPOP 0 1 a LEFT COUNT 2", "BLPOP a 0"];
    let mut all = waiting(server.address, &mut client, &lines);
    // There are two values for three clients; the second client takes up to two.
    assert_eq!(client.say("RPUSH a 1 2"), r":2\r\n");
    assert_eq!(next(&mut all[0]), r"*2\r\n$1\r\na\r\n$1\r\n1\r\n");
    assert_eq!(next(&mut all[2]), r"*2\r\n$1\r\na\r\n*1\r\n$1\r\n2\r\n");
    wait_for(&mut client, 2);
    // The remaining value stays in the list.
    assert_eq!(client.say("RPUSH b 1 2 3"), r":3\r\n");
    assert_eq!(next(&mut all[1]), r"*2\r\n$1\r\nb\r\n$1\r\n3\r\n");
    assert_eq!(client.say("LRANGE b 0 -1"), r"*2\r\n$1\r\n1\r\n$1\r\n2\r\n");
    // The client does not see the value that another client received.
    client.send(&[request(&[b"LPUSH", b"a", b"x"]), request(&[b"LPOP", b"a"])].concat());
    assert_eq!(next(&mut client), r":1\r\n");
    assert_eq!(next(&mut client), r"$-1\r\n");
    assert_eq!(next(&mut all[3]), r"*2\r\n$1\r\na\r\n$1\r\nx\r\n");
    assert_none(&mut client);
}

#[test]
fn a_step_is_whole_before_clients_are_served() {
    let (server, mut client) = fresh();
    let mut all = waiting(server.address, &mut client, &["BLPOP a b 0", "BZPOPMIN z 0"]);
    // A client is not served with a key that was removed again, a key of another type, or an
    // intermediate state.
    for step in [&["RPUSH a x", "DEL a"][..], &["RPUSH a x", "DEL a", "SET a y"]] {
        client.say("MULTI");
        step.iter().for_each(|line| drop(client.say(line)));
        client.say("EXEC");
        assert_eq!(info(&mut client, "blocked_clients"), 2);
    }
    client.say("DEL a");
    // The key that was written first counts, with its final value.
    for line in ["MULTI", "RPUSH b 1", "RPUSH a 1", "LPUSH b 2", "LPOP nothing"] {
        client.say(line);
    }
    assert_eq!(client.say("EXEC"), r"*4\r\n:1\r\n:1\r\n:2\r\n$-1\r\n");
    assert_eq!(next(&mut all[0]), r"*2\r\n$1\r\nb\r\n$1\r\n2\r\n");
    assert_eq!(client.say("LRANGE b 0 -1"), r"*1\r\n$1\r\n1\r\n");
    let script = b"redis.call('zadd', 'z', 2, 'a'); redis.call('zadd', 'z', 1, 'b')
        return redis.call('zcard', 'z')";
    assert_eq!(client.ask(&[b"EVAL", script, b"1", b"z"]), r":2\r\n");
    assert_eq!(next(&mut all[1]), r"*3\r\n$1\r\nz\r\n$1\r\nb\r\n$1\r\n1\r\n");
    assert_none(&mut client);
}

#[test]
fn nothing_waits_within_a_step() {
    let (_server, mut client) = fresh();
    let lines = [
        ("BLPOP a 0", r"*-1\r\n"),
        ("BRPOPLPUSH a b 0", r"$-1\r\n"),
        ("BLMOVE a b LEFT LEFT 0", r"$-1\r\n"),
        ("BLMPOP 0 1 a LEFT", r"*-1\r\n"),
        ("BZPOPMAX a 0", r"*-1\r\n"),
        ("BZMPOP 0 1 a MIN", r"*-1\r\n"),
    ];
    client.say("MULTI");
    for (line, _) in lines {
        assert_eq!(client.say(line), r"+QUEUED\r\n", "{line}");
    }
    let replies: String = lines.iter().map(|(_, reply)| *reply).collect();
    assert_eq!(client.say("EXEC"), format!(r"*6\r\n{replies}"));
    let script = b"return redis.call('blmpop', 0, 1, 'a', 'left')";
    assert_eq!(client.ask(&[b"EVAL", script, b"0"]), r"$-1\r\n");
    let refused = client.ask(&[b"EVAL", b"return redis.call('blpop', 'a', 0)", b"0"]);
    assert!(refused.contains("not allowed from script"), "{refused}");
    assert_none(&mut client);
}

#[test]
fn values_that_are_moved_serve_those_who_wait_for_them() {
    let (server, mut client) = fresh();
    let lines =
        ["BLMOVE b c LEFT RIGHT 0", "BRPOPLPUSH a b 0", "BLPOP c 0", "BLMOVE d d LEFT LEFT 0"];
    let mut all = waiting(server.address, &mut client, &lines);
    assert_eq!(client.say("RPUSH a x"), r":1\r\n");
    assert_eq!(next(&mut all[1]), r"$1\r\nx\r\n");
    assert_eq!(next(&mut all[0]), r"$1\r\nx\r\n");
    assert_eq!(next(&mut all[2]), r"*2\r\n$1\r\nc\r\n$1\r\nx\r\n");
    assert_eq!(client.say("EXISTS a b c"), r":0\r\n");
    // If the destination has another type, the command fails and the value stays.
    client.say("RPUSH d y");
    assert_eq!(next(&mut all[3]), r"$1\r\ny\r\n");
    client.say("DEL d");
    client.say("SET s text");
    let mut wrong = waiting(server.address, &mut client, &["BLMOVE a s LEFT LEFT 0", "BLPOP a 0"]);
    client.say("RPUSH a 1 2");
    assert!(next(&mut wrong[0]).starts_with("-WRONGTYPE"));
    assert_eq!(next(&mut wrong[1]), r"*2\r\n$1\r\na\r\n$1\r\n1\r\n");
    assert_eq!(client.say("LRANGE a 0 -1"), r"*1\r\n$1\r\n2\r\n");
    assert_none(&mut client);
}

#[test]
fn every_way_to_make_a_value_serves() {
    let (server, mut client) = fresh();
    client.say("RPUSH other v");
    client.say("ZADD scores 1 m");
    client.send(&request(&[b"DUMP", b"other"]));
    let dump = client.reply();
    let start = dump.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    let payload = dump[start..dump.len() - 2].to_vec();
    let value = r"*2\r\n$1\r\nk\r\n$1\r\nv\r\n";
    let member = r"*3\r\n$1\r\nk\r\n$1\r\nm\r\n$1\r\n1\r\n";
    let ways: &[(&[&[u8]], &str)] = &[
        (&[b"COPY", b"other", b"k"], value),
        (&[b"COPY", b"other", b"k", b"REPLACE"], value),
        (&[b"RESTORE", b"k", b"0", &payload], value),
        (&[b"LINSERT", b"k", b"BEFORE", b"v", b"v"], ""),
        (&[b"RPOPLPUSH", b"other", b"k"], value),
        (&[b"RPUSHX", b"k", b"v"], ""),
        (&[b"COPY", b"scores", b"k"], member),
        (&[b"ZINCRBY", b"k", b"1", b"m"], member),
        (&[b"ZUNIONSTORE", b"k", b"1", b"scores"], member),
        (&[b"ZRANGESTORE", b"k", b"scores", b"0", b"-1"], member),
        (&[b"RENAME", b"scores", b"k"], member),
    ];
    for (command, expected) in ways {
        let mut all = waiting(server.address, &mut client, &["BLPOP k 0", "BZPOPMIN k 0"]);
        let reply = client.ask(command);
        assert!(!reply.starts_with('-'), "{reply}");
        match *expected {
            "" => wait_for(&mut client, 2),
            _ => {
                let served = usize::from(*expected == member);
                assert_eq!(next(&mut all[served]), *expected, "{}", show(command[0]));
                wait_for(&mut client, 1);
            }
        }
        drop(all);
        wait_for(&mut client, 0);
        assert_eq!(client.say("EXISTS k"), r":0\r\n");
    }
    assert_none(&mut client);
}

#[test]
fn clients_that_leave_take_nothing() {
    let (server, mut client) = fresh();
    let ways: &[(&str, &str)] = &[
        ("CLIENT UNBLOCK {id}", r"*-1\r\n"),
        ("CLIENT UNBLOCK {id} TIMEOUT", r"*-1\r\n"),
        ("CLIENT UNBLOCK {id} ERROR", r"-UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n"),
        ("CLIENT KILL ID {id}", ""),
        (
            "ACL SETUSER worker resetkeys ~other",
            r"-NOPERM this user has no permissions to access one of the keys used as arguments\r\n",
        ),
        (
            "ACL SETUSER worker ~* -blpop",
            r"-NOPERM this user has no permissions to run the 'blpop' command\r\n",
        ),
        ("ACL DELUSER worker", ""),
    ];
    for (way, reply) in ways {
        let mut one = Client::new(server.address);
        client.say("ACL SETUSER worker on nopass resetkeys ~* +@all");
        one.say("AUTH worker x");
        let id = one.say("CLIENT ID").replace(r"\r\n", "").replace(':', "");
        begin(&mut one, "BLPOP k j 0");
        wait_for(&mut client, 1);
        let listed = client.say(&format!("CLIENT LIST ID {id}"));
        assert!(listed.contains(" flags=b "), "{listed}");
        let told = client.say(&way.replace("{id}", &id));
        assert!([r":1\r\n", r"+OK\r\n"].contains(&told.as_str()), "{way}: {told}");
        // Immediately, before the client itself has noticed the end.
        client.say("RPUSH k v");
        assert_eq!(client.say("LPOP k"), r"$1\r\nv\r\n", "{way}");
        assert_eq!(next(&mut one), *reply, "{way}");
        assert_none(&mut client);
        assert_eq!(client.say(&format!("CLIENT UNBLOCK {id}")), r":0\r\n");
    }
    // A client that closes its connection.
    let all = waiting(server.address, &mut client, &["BLPOP k 0", "BLPOP k 100"]);
    assert_eq!(info(&mut client, "clients_in_timeout_table"), 1);
    drop(all);
    assert_none(&mut client);
    client.say("RPUSH k v");
    assert_eq!(client.say("LPOP k"), r"$1\r\nv\r\n");
}

#[test]
fn the_time_is_over_when_it_is_over() {
    let (server, mut client) = fresh();
    let mut other = Client::new(server.address);
    let since = Instant::now();
    begin(&mut other, "BRPOPLPUSH a b 0.3");
    wait_for(&mut client, 1);
    assert_eq!(info(&mut client, "clients_in_timeout_table"), 1);
    // These commands do not serve the client.
    client.say("SET a x");
    client.say("DEL a");
    assert_eq!(next(&mut other), r"*-1\r\n");
    assert!(since.elapsed() >= Duration::from_millis(300));
    assert_none(&mut client);
    // The server's time limit for idle clients does not apply to blocked ones.
    client.say("CONFIG SET timeout 1");
    begin(&mut other, "BLPOP a 3");
    assert_eq!(next(&mut other), r"*-1\r\n");
    assert_eq!(other.say("PING"), r"+PONG\r\n");
}

#[test]
fn commands_behind_one_that_waits_wait_too() {
    let (server, mut client) = fresh();
    let mut other = Client::new(server.address);
    other.resp3 = true;
    other.say("HELLO 3");
    other.say("SUBSCRIBE news");
    let big = vec![b'x'; 100_000];
    let mut pipeline = Vec::new();
    for command in [
        &[&b"SET"[..], b"first", b"1"][..],
        &[b"BZPOPMIN", b"z", b"0"],
        &[b"GET", b"first"],
        &[b"CLIENT", b"REPLY", b"SKIP"],
        &[b"BLPOP", b"l", b"0"],
        &[b"APPEND", b"first", &big],
    ] {
        pipeline.extend(request(command));
    }
    other.send(&pipeline);
    // Replies to earlier commands and messages arrive before the wait ends.
    assert_eq!(next(&mut other), r"+OK\r\n");
    wait_for(&mut client, 1);
    client.say("PUBLISH news now");
    assert_eq!(next(&mut other), r">3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n$3\r\nnow\r\n");
    client.say("SET first 2");
    client.say("ZADD z 1.5 m");
    assert_eq!(next(&mut other), r"*3\r\n$1\r\nz\r\n$1\r\nm\r\n,1.5\r\n");
    assert_eq!(next(&mut other), r"$1\r\n2\r\n");
    wait_for(&mut client, 1);
    client.say("RPUSH l v");
    assert_eq!(next(&mut other), r":100001\r\n");
    assert_eq!(client.say("EXISTS l"), r":0\r\n");
    // A client that sends more than the server receives while it is blocked.
    begin(&mut other, "BLPOP l 0");
    wait_for(&mut client, 1);
    let mut writer = other.stream.try_clone().unwrap();
    let writes = std::thread::spawn(move || {
        use std::io::Write;
        let get = request(&[b"APPEND", b"long", &[b'y'; 10_000]]);
        (0..800).for_each(|_| writer.write_all(&get).unwrap());
    });
    std::thread::sleep(Duration::from_millis(100));
    let list = client.say("CLIENT LIST");
    let line = list.split(r"\n").find(|line| line.contains(" flags=Pb ")).expect("it waits");
    let bytes = line.split("tot-mem=").nth(1).unwrap().split(' ').next().unwrap();
    assert!(bytes.parse::<usize>().unwrap() < 5 << 20, "{line}");
    client.say("RPUSH l v");
    assert_eq!(next(&mut other), r"*2\r\n$1\r\nl\r\n$1\r\nv\r\n");
    for count in 1..=800 {
        assert_eq!(next(&mut other), format!(r":{}\r\n", count * 10_000));
    }
    writes.join().unwrap();
    assert_none(&mut client);
}

#[test]
fn what_is_taken_is_seen_by_watchers_and_events() {
    let (server, mut client) = fresh();
    let mut events = Client::new(server.address);
    client.say("CONFIG SET notify-keyspace-events KA");
    let mut watcher = Client::new(server.address);
    watcher.say("WATCH b");
    watcher.say("MULTI");
    watcher.say("PING");
    let mut all = waiting(server.address, &mut client, &["BRPOPLPUSH a b 0", "BZPOPMAX z 0"]);
    events.say("PSUBSCRIBE *");
    client.say("RPUSH a x");
    client.say("ZADD z 1 m");
    assert_eq!(next(&mut all[0]), r"$1\r\nx\r\n");
    assert!(next(&mut all[1]).starts_with("*3"));
    assert_eq!(watcher.say("EXEC"), r"*-1\r\n");
    for (key, event) in [
        ("a", "rpush"),
        ("b", "lpush"),
        ("a", "rpop"),
        ("a", "del"),
        ("z", "zadd"),
        ("z", "zpopmax"),
        ("z", "del"),
    ] {
        let message = next(&mut events);
        let (length, channel) = (event.len(), format!("__keyspace@0__:{key}"));
        assert!(message.ends_with(&format!(r"{channel}\r\n${length}\r\n{event}\r\n")), "{message}");
    }
    assert_none(&mut client);
}

#[test]
fn keys_of_a_wait_are_bounded_and_count() {
    let (server, mut client) = fresh();
    client.say("CONFIG SET client-query-buffer-limit 1mb");
    let keys = |count: usize| -> String { (0..count).map(|at| format!(" key{at}")).collect() };
    let refused = client.say(&format!("BLPOP{} 0", keys(4000)));
    assert!(refused.starts_with("-ERR a client may wait for 1048576 bytes of keys"), "{refused}");
    let mut other = Client::new(server.address);
    begin(&mut other, &format!("BLPOP{} 0", keys(2000)));
    wait_for(&mut client, 1);
    assert_eq!(info(&mut client, "total_blocking_keys"), 2000);
    let list = client.say("CLIENT LIST");
    let line = list.split(r"\n").find(|line| line.contains(" flags=b ")).expect("it waits");
    let bytes = line.split("tot-mem=").nth(1).unwrap().split(' ').next().unwrap();
    assert!(bytes.parse::<usize>().unwrap() > 2000 * 400, "{line}");
    // Blocked clients are closed like any other.
    client.say("CLIENT NO-EVICT on");
    client.say("CONFIG SET maxmemory-clients 500000");
    let mut second = Client::new(server.address);
    begin(&mut second, &format!("BLPOP{} 0", keys(2000)));
    assert_eq!(next(&mut second), "");
    assert_eq!(next(&mut other), "");
    assert_none(&mut client);
}

/// Either the write or the blocking command sees the other if both happen concurrently.
#[test]
fn no_write_is_missed() {
    let (server, mut client) = fresh();
    let mut other = Client::new(server.address);
    let (told, tell) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        for _ in 0..3000 {
            let reply = other.say("BLPOP k 0");
            if told.send(reply).is_err() {
                return;
            }
        }
    });
    for round in 0..3000 {
        client.say("RPUSH k v");
        let reply = tell.recv_timeout(Duration::from_secs(5));
        let reply = reply.unwrap_or_else(|_| panic!("round {round}: the client waits"));
        assert_eq!(reply, r"*2\r\n$1\r\nk\r\n$1\r\nv\r\n");
    }
    reader.join().unwrap();
    assert_none(&mut client);
}

/// No values are lost, whichever clients are served, while clients time out, disconnect and are
/// killed.
#[test]
fn each_value_reaches_one_client_under_contention() {
    let (server, mut client) = fresh();
    let address = server.address;
    const WORKERS: usize = 8;
    const VALUES: usize = 2000;
    let workers: Vec<_> = (0..WORKERS)
        .map(|worker| {
            std::thread::spawn(move || {
                let mut client = Client::new(address);
                let mut got = Vec::new();
                loop {
                    let line = match worker % 4 {
                        0 => "BLPOP q end 0.002",
                        1 => "BLMPOP 0.001 2 q end LEFT COUNT 3",
                        2 => "BRPOP q end 0",
                        _ => "BLMPOP 0 2 q end RIGHT",
                    };
                    let reply = client.say(line);
                    let words: Vec<&str> = reply.split(r"\r\n").collect();
                    let values = words.iter().filter(|word| word.starts_with('v'));
                    got.extend(values.map(|word| word[1..].parse::<usize>().unwrap()));
                    if words.contains(&"end") {
                        return got;
                    }
                }
            })
        })
        .collect();
    let pushers: Vec<_> = (0..2)
        .map(|pusher| {
            std::thread::spawn(move || {
                let mut client = Client::new(address);
                for at in 0..VALUES / 2 {
                    let value = format!("v{}", 2 * at + pusher);
                    match at % 3 {
                        0 => drop(client.say(&format!("RPUSH q {value}"))),
                        1 => drop(client.say(&format!("LPUSH q {value}"))),
                        _ => {
                            let script = b"return redis.call('rpush', KEYS[1], ARGV[1])";
                            client.ask(&[b"EVAL", script, b"1", b"q", value.as_bytes()]);
                        }
                    }
                }
            })
        })
        .collect();
    pushers.into_iter().for_each(|pusher| pusher.join().unwrap());
    let ends: String = (0..WORKERS * 3).map(|_| " x").collect();
    let mut got = Vec::new();
    // Clients that take several values may take those that end the others.
    client.say(&format!("RPUSH end{ends}"));
    for worker in workers {
        while !worker.is_finished() {
            std::thread::sleep(Duration::from_millis(1));
            if client.say("EXISTS end") == r":0\r\n" {
                client.say("RPUSH end x");
            }
        }
        got.extend(worker.join().unwrap());
    }
    got.sort_unstable();
    assert_eq!(got, (0..VALUES).collect::<Vec<_>>());
    assert_none(&mut client);
}

/// Ten thousand blocked clients need no thread each and bounded memory. One command serves all of
/// them.
#[test]
fn ten_thousand_clients_wait() {
    const CLIENTS: usize = 10_000;
    let server = spawn(&format!("max_clients={}", CLIENTS + 10));
    // This process needs as many sockets.
    let limit = rlimit::increase_nofile_limit(CLIENTS as u64 + 500).unwrap();
    let count = CLIENTS.min(limit.saturating_sub(500) as usize);
    let mut client = Client::new(server.address);
    let memory = server.memory("VmRSS");
    let mut all: Vec<Client> = (0..count).map(|_| Client::new(server.address)).collect();
    all.iter_mut().for_each(|client| assert_eq!(client.say("PING"), r"+PONG\r\n"));
    let connected = server.memory("VmRSS");
    all.iter_mut().for_each(|client| begin(client, "BLPOP queue other 600"));
    let since = Instant::now();
    while info(&mut client, "blocked_clients") < count {
        assert!(since.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(info(&mut client, "total_blocking_keys"), 2);
    assert!(server.memory("Threads") < 100);
    let blocked = server.memory("VmRSS");
    eprintln!("{count} clients: {memory} KiB, connected {connected}, blocked {blocked}");
    assert!(blocked.saturating_sub(connected) < 4 * count, "KiB: {connected}, {blocked}");
    let mut push: Vec<Vec<u8>> = vec![b"RPUSH".to_vec(), b"queue".to_vec()];
    push.extend((0..count).map(|at| at.to_string().into_bytes()));
    let since = Instant::now();
    client.ask(&push.iter().map(Vec::as_slice).collect::<Vec<_>>());
    eprintln!("served within {:?}", since.elapsed());
    let last = |reply: String| -> usize {
        reply.trim_end_matches(r"\r\n").rsplit(r"\r\n").next().unwrap().parse().unwrap()
    };
    let mut got: Vec<usize> = all.iter_mut().map(|client| last(next(client))).collect();
    got.sort_unstable();
    assert!(got.iter().copied().eq(0..count));
    assert_none(&mut client);
    assert_eq!(client.say("EXISTS queue"), r":0\r\n");
}

/// After a crash, elements that were taken for a client are gone, and moved ones are at their new
/// place.
#[test]
fn what_clients_were_served_is_durable() {
    let dir = std::env::temp_dir().join(format!("ordna-blocking-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    let settings = format!("dir={} always=1", dir.display());
    {
        let server = spawn(&settings);
        let mut client = Client::new(server.address);
        while client.say("PING") != r"+PONG\r\n" || client.say("DBSIZE") != r":0\r\n" {
            std::thread::sleep(Duration::from_millis(5));
        }
        let lines = ["BLPOP a 0", "BLMOVE b c LEFT LEFT 0"];
        let mut all = waiting(server.address, &mut client, &lines);
        begin(&mut client, "RPUSH a 1 2");
        assert_eq!(next(&mut all[0]), r"*2\r\n$1\r\na\r\n$1\r\n1\r\n");
        assert_eq!(next(&mut client), r":2\r\n");
        begin(&mut client, "RPUSH b x");
        assert_eq!(next(&mut all[1]), r"$1\r\nx\r\n");
        // The drop kills the process.
    }
    let server = spawn(&settings);
    let mut client = Client::new(server.address);
    while client.say("DBSIZE").starts_with('-') {
        std::thread::sleep(Duration::from_millis(5));
    }
    converse(
        &mut client,
        &[
            ("LRANGE a 0 -1", r"*1\r\n$1\r\n2\r\n"),
            ("EXISTS b", r":0\r\n"),
            ("LRANGE c 0 -1", r"*1\r\n$1\r\nx\r\n"),
        ],
    );
    drop(server);
    std::fs::remove_dir_all(&dir).unwrap();
}

/// A server that stops does not wait for blocked clients.
#[test]
fn a_server_that_stops_ends_the_waits() {
    let (mut server, mut client) = fresh();
    let mut all = waiting(server.address, &mut client, &["BLPOP a 0", "BZPOPMIN b 0"]);
    let since = Instant::now();
    server.stop();
    assert!(since.elapsed() < Duration::from_secs(4));
    all.iter_mut().for_each(|client| assert_eq!(next(client), ""));
}
