//! Runs the same conversation about hashes with Debian's redis-server and with Ordna.

use crate::commands::against_redis::Redis;
use crate::common::{Client, Random, request, show, start};
use ordna_server::Config;

/// Sends a command to both servers, and returns the replies if they differ. The order of a hash
/// that Redis stores as a table is random.
fn difference(pair: &mut [Client; 2], command: &[&[u8]]) -> Option<String> {
    let [redis, ours] = pair.each_mut().map(|client| client.ask(command));
    let has_order = !["HGETALL", "HKEYS", "HVALS", "HSCAN", "HRANDFIELD"]
        .iter()
        .any(|name| command[0].eq_ignore_ascii_case(name.as_bytes()));
    let sorted = |reply: &str| {
        let mut parts: Vec<String> = reply.split(r"\r\n").map(str::to_owned).collect();
        parts.sort();
        parts
    };
    let mut is_table =
        || pair.each_mut().map(|client| client.ask(&[b"OBJECT", b"ENCODING", command[1]]));
    let is_table = !has_order && command.len() > 1 && is_table() == [r"$9\r\nhashtable\r\n"; 2];
    let same = redis == ours || is_table && sorted(&redis) == sorted(&ours);
    let shown: Vec<String> = command.iter().map(|word| show(word)).collect();
    (!same)
        .then(|| format!("{:.300}\n  Redis: {redis:.600}\n  Ordna: {ours:.600}", shown.join(" ")))
}

#[test]
#[ignore = "needs redis-server; .ci/run installs it and runs this"]
fn hashes_are_those_of_redis() {
    let redis = Redis::start();
    let ours = start(Config::default());
    let mut differences = Vec::new();
    for resp3 in [false, true] {
        let mut pair = [Client::new(redis.1), Client::new(ours.address)];
        if resp3 {
            for client in &mut pair {
                client.resp3 = true;
                client.say("HELLO 3");
            }
        }
        let lines = CONVERSATION.lines().map(str::trim).filter(|line| !line.is_empty());
        for line in lines {
            let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
            differences.extend(difference(&mut pair, &words));
        }
        let (at, beyond) = ([b'v'; 64], [b'v'; 65]);
        let names: Vec<String> = (0..513).map(|n| format!("f{n}")).collect();
        let mut many: Vec<&[u8]> = vec![b"HSET", b"many"];
        names[..512].iter().for_each(|name| many.extend([name.as_bytes(), b"v"]));
        let more = [&many[..], &[names[512].as_bytes(), b"v"]].concat();
        let encoding = |key| vec![b"OBJECT".as_slice(), b"ENCODING", key];
        let commands: Vec<Vec<&[u8]>> = vec![
            vec![b"DEL", b"h"],
            vec![b"HSET", b"h", b"f", &at],
            encoding(b"h"),
            vec![b"HSETNX", b"h", b"f", &beyond],
            encoding(b"h"),
            vec![b"HGETALL", b"h"],
            vec![b"HSET", b"h", &at, b"v"],
            encoding(b"h"),
            vec![b"HSET", b"h", &beyond, b"v"],
            encoding(b"h"),
            vec![b"HDEL", b"h", &beyond],
            encoding(b"h"),
            vec![b"HGETALL", b"h"],
            vec![b"HSCAN", b"h", b"0", b"COUNT", b"100"],
            vec![b"HSET", b"\0\r\n", b"\xC1\xC1", b"\xFF"],
            vec![b"HGETALL", b"\0\r\n"],
            vec![b"HSET", b"empty", b"", b""],
            vec![b"HGETALL", b"empty"],
            vec![b"HGET", b"empty", b""],
            vec![b"DUMP", b"empty"],
            vec![b"HINCRBY", b"empty", b"", b"1"],
            vec![b"SET", b"marked", b"\xC1"],
            vec![b"GET", b"marked"],
            vec![b"TYPE", b"marked"],
            vec![b"APPEND", b"marked", b"\x01\x00\x00"],
            vec![b"GET", b"marked"],
            vec![b"STRLEN", b"marked"],
            vec![b"TYPE", b"marked"],
            vec![b"MSET", b"marked", b"\xC1\x02", b"other", b"\xC1"],
            vec![b"MGET", b"marked", b"other", b"h"],
            vec![b"GETRANGE", b"marked", b"0", b"0"],
            vec![b"SETRANGE", b"marked", b"1", b"\xC1"],
            vec![b"GET", b"marked"],
            vec![b"DUMP", b"marked"],
            vec![b"GETSET", b"marked", b"\xC1\xC1"],
            vec![b"GETDEL", b"marked"],
            many.clone(),
            encoding(b"many"),
            more,
            encoding(b"many"),
            vec![b"HLEN", b"many"],
            vec![b"HDEL", b"many", b"f0", b"f0", b"f512"],
            encoding(b"many"),
            vec![b"HGETALL", b"many"],
        ];
        for command in &commands {
            differences.extend(difference(&mut pair, command));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[test]
#[ignore = "needs redis-server; .ci/run installs it and runs this"]
fn random_hashes_are_those_of_redis() {
    const STEPS: usize = 20_000;
    let redis = Redis::start();
    let ours = start(Config::default());
    let mut pair = [Client::new(redis.1), Client::new(ours.address)];
    let mut random = Random::new(16);
    let keys: [&[u8]; 3] = [b"a", b"b", b"c"];
    let fields: Vec<String> = (0..12).map(|n| format!("{n}")).collect();
    let values: [&[u8]; 8] =
        [b"1", b"-70000", b"9223372036854775807", b"1.5", b"text", b"", &[b'x'; 64], &[b'y'; 65]];
    for step in 0..STEPS {
        let key = keys[random.below(keys.len())];
        let field = || fields[random.below(fields.len())].as_bytes();
        let mut field = field;
        let (one, two) = (field(), field());
        // A long value makes Redis use a table; most hashes should stay listpacks.
        let longest = if step % 64 == 0 { values.len() } else { values.len() - 1 };
        let value = values[random.below(longest)];
        let other = keys[random.below(keys.len())];
        let command: Vec<&[u8]> = match random.below(24) {
            0..=4 => vec![b"HSET", key, one, value, two, b"v"],
            5..=7 => vec![b"HDEL", key, one, two],
            8 => vec![b"HSETNX", key, one, value],
            9 => vec![b"HINCRBY", key, one, b"7"],
            10 => vec![b"HINCRBYFLOAT", key, one, b"0.25"],
            11 => vec![b"HGET", key, one],
            12 => vec![b"HMGET", key, one, two, one],
            13 => vec![b"HGETALL", key],
            14 => vec![b"HKEYS", key],
            15 => vec![b"HVALS", key],
            16 => vec![b"HLEN", key],
            17 => vec![b"OBJECT", b"ENCODING", key],
            18 if random.below(8) == 0 => vec![b"DEL", key],
            18 => vec![b"HEXISTS", key, one],
            19 => vec![b"RENAME", key, other],
            20 => vec![b"COPY", key, other, b"REPLACE"],
            21 => vec![b"HSCAN", key, b"0", b"COUNT", b"100"],
            22 => vec![b"HRANDFIELD", key, b"100", b"WITHVALUES"],
            _ => vec![b"HSTRLEN", key, one],
        };
        if let Some(difference) = difference(&mut pair, &command) {
            panic!("step {step}: {difference}");
        }
    }
}

/// The dumps of each server are restored by the other.
#[test]
#[ignore = "needs redis-server; .ci/run installs it and runs this"]
fn hashes_move_from_one_to_the_other() {
    let redis = Redis::start();
    let ours = start(Config::default());
    let mut pair = [Client::new(redis.1), Client::new(ours.address)];
    let long = [b'z'; 5000];
    let names: Vec<String> = (0..600).map(|n| format!("field {n}")).collect();
    let mut many: Vec<&[u8]> = Vec::new();
    names.iter().for_each(|name| many.extend([name.as_bytes(), b"12345"]));
    let numbers = "0 127 128 -1 4095 -4096 4096 32767 -32768 32768 8388607 -8388608 8388608 \
                   2147483647 -2147483648 2147483648 9223372036854775807 -9223372036854775808";
    let numbers: Vec<&[u8]> = numbers.split_whitespace().map(str::as_bytes).collect();
    let hashes: [&[&[u8]]; 5] =
        [&[b"f", b"v"], &numbers, &many, &[b"f", &long], &[&[b'a'; 64], &[b'b'; 64]]];
    for hash in hashes {
        for (from, to) in [(0, 1), (1, 0)] {
            pair[from].ask(&[b"DEL", b"key"]);
            pair[from].ask(&[&[b"HSET".as_slice(), b"key"], hash].concat());
            pair[from].send(&request(&[b"DUMP", b"key"]));
            let reply = pair[from].reply();
            let start = reply.iter().position(|byte| *byte == b'\n').unwrap() + 1;
            let payload = &reply[start..reply.len() - 2];
            let restored = pair[to].ask(&[b"RESTORE", b"key", b"0", payload, b"REPLACE"]);
            assert_eq!(restored, r"+OK\r\n", "{}", show(payload));
            for question in [["HGETALL", "key"], ["TYPE", "key"], ["HLEN", "key"]] {
                let words = question.map(str::as_bytes);
                assert_eq!(difference(&mut pair, &words), None);
            }
        }
    }
}

#[test]
fn a_hash_has_no_limit_but_its_names_have() {
    let server = start(Config::default());
    let mut client = Client::new(server.address);
    let piece = vec![b'x'; 5 << 20];
    for field in [b"a", b"b", b"c"] {
        assert_eq!(client.ask(&[b"HSET", b"key", field, &piece]), r":1\r\n");
    }
    assert_eq!(client.ask(&[b"HSET", b"key", b"d", &piece]), r":1\r\n");
    let refused = client.ask(&[b"HSET", b"key", b"e", b"1", &piece[..65_504], b"2"]);
    assert_eq!(
        refused,
        r"-ERR element of 65504 bytes exceeds maximum allowed size (65503 bytes)\r\n"
    );
    assert_eq!(client.say("HKEYS key").matches(r"$1\r\n").count(), 4, "nothing was set");
    assert_eq!(client.ask(&[b"HSET", b"key", &piece[..65_503], b"2"]), r":1\r\n");
    assert_eq!(client.ask(&[b"HDEL", b"key", &piece[..65_503]]), r":1\r\n");
    assert_eq!(client.say("HDEL key a b c d"), r":4\r\n");
    assert_eq!(client.say("EXISTS key"), r":0\r\n");
}

#[test]
fn scans_show_hashes_without_a_value_and_scans_find_them_by_type() {
    let server = start(Config::default());
    let mut client = Client::new(server.address);
    client.say("HSET a f v");
    client.say("SET b text");
    assert_eq!(client.say("ORDNA.RANGE - +"), r"*4\r\n$1\r\na\r\n$-1\r\n$1\r\nb\r\n$4\r\ntext\r\n");
    assert_eq!(client.say("ORDNA.FIRST"), r"*2\r\n$1\r\na\r\n$-1\r\n");
    assert_eq!(client.say("SCAN 0 TYPE hash"), r"*2\r\n$1\r\n0\r\n*1\r\n$1\r\na\r\n");
    assert_eq!(client.say("SCAN 0 TYPE STRING"), r"*2\r\n$1\r\n0\r\n*1\r\n$1\r\nb\r\n");
    assert_eq!(client.say("SCAN 0 TYPE list"), r"*2\r\n$1\r\n0\r\n*0\r\n");
}

/// One command per line. Words are separated by single spaces.
const CONVERSATION: &str = "
    FLUSHALL
    HSET h a 1 b 2
    HSET h a 3 c 4
    HSET h
    HSET h a
    HSET h a 1 b
    HMSET h d 5
    HMSET h d
    HMSET h d 5 e
    HSETNX h a 9
    HSETNX h z 9
    HSETNX fresh z 9
    HSETNX h z
    HGET h a
    HGET h nope
    HGET nothing a
    HGET h
    HMGET h a nope b
    HMGET nothing a b
    HMGET h
    HGETALL h
    HGETALL nothing
    HGETALL
    HKEYS h
    HKEYS nothing
    HVALS h
    HVALS nothing
    HLEN h
    HLEN nothing
    HEXISTS h a
    HEXISTS h nope
    HEXISTS nothing a
    HSTRLEN h a
    HSTRLEN h nope
    HSTRLEN nothing a
    HDEL h z nope z
    HDEL h
    HDEL nothing a
    HGETALL h
    HINCRBY h a 5
    HINCRBY h a -50
    HINCRBY h fresh 7
    HINCRBY fresher a 1
    HINCRBY h a x
    HINCRBY h a 9223372036854775808
    HINCRBY h a 1.5
    HINCRBY h a
    HSET h text abc float 10.50 max 9223372036854775807 spaced 01
    HINCRBY h text 1
    HINCRBY h float 1
    HINCRBY h max 1
    HINCRBY h max -1
    HINCRBY h spaced 1
    HINCRBYFLOAT h float 0.1
    HINCRBYFLOAT h float 5.0e3
    HINCRBYFLOAT h fresh 1.25
    HINCRBYFLOAT h newer 3
    HINCRBYFLOAT freshest a -1.5
    HINCRBYFLOAT h text 1
    HINCRBYFLOAT h float x
    HINCRBYFLOAT h float inf
    HINCRBYFLOAT h float nan
    HINCRBYFLOAT h float
    HGETALL h
    HSET large huge 1.7e308
    HINCRBYFLOAT large huge 1e4932
    HINCRBYFLOAT large huge 1.1e4932
    HGETALL large
    HSCAN h 0
    HSCAN h 0 MATCH f*
    HSCAN h 0 COUNT 2
    HSCAN h 0 COUNT 0
    HSCAN h 0 COUNT x
    HSCAN h 0 NOPE 1
    HSCAN h 0 MATCH
    HSCAN h x
    HSCAN nothing 0
    HSCAN nothing x
    HSCAN nothing 0 NOPE
    HSCAN h
    HRANDFIELD nothing
    HRANDFIELD nothing 5
    HRANDFIELD nothing -5
    HRANDFIELD h 0
    HRANDFIELD h 100
    HRANDFIELD h 100 WITHVALUES
    HRANDFIELD freshest
    HRANDFIELD freshest 1
    HRANDFIELD freshest -3
    HRANDFIELD freshest -3 WITHVALUES
    HRANDFIELD h x
    HRANDFIELD h 1 NOPE
    HRANDFIELD h 1 WITHVALUES x
    HRANDFIELD h -9223372036854775808
    HRANDFIELD h -9223372036854775807 WITHVALUES
    HRANDFIELD h 9223372036854775807 WITHVALUES
    HRANDFIELD
    TYPE h
    OBJECT ENCODING h
    OBJECT REFCOUNT h
    OBJECT FREQ h
    GET h
    SET s text
    HGET s a
    HSET s a 1
    HMSET s a 1
    HSETNX s a 1
    HDEL s a
    HLEN s
    HGETALL s
    HKEYS s
    HVALS s
    HMGET s a
    HEXISTS s a
    HSTRLEN s a
    HINCRBY s a 1
    HINCRBYFLOAT s a 1
    HSCAN s 0
    HRANDFIELD s
    HRANDFIELD s 1
    GET s
    STRLEN h
    APPEND h x
    GETRANGE h 0 1
    SUBSTR h 0 1
    SETRANGE h 0 x
    SETRANGE h 0
    INCR h
    DECR h
    INCRBY h 1
    INCRBYFLOAT h 1
    GETSET h x
    GETDEL h
    GETEX h
    GETEX h PERSIST
    GETEX h EX 100
    TTL h
    SETNX h x
    MSETNX h x other y
    MGET h s nothing
    SETBIT h 0 1
    GETBIT h 0
    BITCOUNT h
    BITPOS h 1
    BITFIELD h GET u8 0
    BITFIELD h SET u8 0 1
    BITFIELD_RO h GET u8 0
    BITOP AND dest s h
    BITOP NOT dest h
    LCS h s
    LCS s nothing
    SET h x GET
    SET h x NX
    SET h x NX GET
    EXISTS h
    HLEN h
    EXPIRE h 100
    TTL h
    HSET h more 1
    TTL h
    HDEL h more
    TTL h
    PERSIST h
    RENAME h h2
    TYPE h
    TYPE h2
    HLEN h2
    COPY h2 h3
    COPY h2 s
    COPY h2 s REPLACE
    HLEN s
    HSET h3 only here
    HEXISTS h2 only
    RENAMENX h2 h3
    RENAME s h3
    TYPE s
    HEXISTS h3 only
    SET h2 string
    TYPE h2
    BITOP NOT h3 h2
    TYPE h3
    HSET d a 1 b -70000 c text
    DUMP d
    DEL d
    HSET d x y
    DUMP d
    HSET d x yy
    HDEL d x
    EXISTS d
    TYPE d
    HSET d x 1
    UNLINK d
    HSET d a 1
    RESTORE d 0 x
    MULTI
    HSET m a 1
    HGET m a
    HINCRBY m a x
    HGETALL m
    HSET m
    EXEC
    MULTI
    HSET m a 1
    HGET m a
    HINCRBY m a x
    HGETALL m
    GET m
    EXEC
    WATCH m
    HSET m a 2
    MULTI
    HGET m a
    EXEC
    WATCH m
    HDEL m nope
    MULTI
    HGET m a
    EXEC
    EXPIRE m 0
    EXISTS m
    HSET m a 1
    EXPIREAT m 1
    HGETALL m
    SCAN 0 TYPE hash COUNT 1000 MATCH nope*
    COMMAND GETKEYS HSET a b c
    FLUSHALL
    HLEN h3
";
