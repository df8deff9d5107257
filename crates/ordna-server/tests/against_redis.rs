//! The same conversation with Debian's redis-server and with ours: replies must be equal, byte for
//! byte. Run by `.ci/run`, which installs Redis first:
//! `cargo test -p ordna-server --test against_redis -- --ignored`.

mod common;

use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use common::{Client, is_ttl, request, show, start};
use ordna_server::Config;

/// A redis-server of the test's own; ended when dropped.
struct Redis(Child, SocketAddr);

impl Redis {
    fn start() -> Self {
        // Below the ports that the system hands out by itself: one of those, found free, may be
        // given to somebody else before Redis listens on it.
        static NEXT: AtomicU16 = AtomicU16::new(0);
        let first = 12_000 + (std::process::id() % 1_000) as u16 * 8;
        let patience = Instant::now() + Duration::from_secs(20);
        loop {
            let port = first + NEXT.fetch_add(1, Ordering::Relaxed) % 8;
            let address = SocketAddr::from(([127, 0, 0, 1], port));
            let child = Command::new("redis-server")
                .args(["--port", &port.to_string(), "--save", "", "--databases", "1"])
                .stdout(Stdio::null())
                .spawn()
                .expect("redis-server is installed (Debian: apt-get install redis-server)");
            let mut redis = Self(child, address);
            // It ends by itself if the port is taken.
            while redis.0.try_wait().expect("the child is ours").is_none() {
                assert!(Instant::now() < patience, "redis-server does not listen on {address}");
                if TcpStream::connect(address).is_ok() && redis.0.try_wait().unwrap().is_none() {
                    return redis;
                }
                std::thread::yield_now();
            }
        }
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
#[ignore = "needs redis-server; .ci/run installs it and runs this"]
fn replies_are_those_of_redis() {
    let redis = Redis::start();
    let ours = start(Config::default());
    let mut pair = [Client::new(redis.1), Client::new(ours.address)];
    let long = vec![b'x'; 300];
    let mut commands: Vec<Vec<&[u8]>> = CONVERSATION
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .map(|line| line.split(' ').map(str::as_bytes).collect())
        .collect();
    commands.extend([
        vec![b"SET".as_slice(), b"\0\r\n\xFF", b"\xFE\0"],
        vec![b"GET", b"\0\r\n\xFF"],
        vec![b"SET", b"", b""],
        vec![b"GET", b""],
        vec![b"INCR", b""],
        vec![&long, &long, &long],
        vec![b"nope", b"with\r\nbreaks", b""],
        vec![b"INCRBY", b"n", b" 1"],
        vec![b"INCRBY", b"n", b""],
        vec![b"CONFIG", &long],
        vec![b"SET", b"e", b"1"],
        vec![b"EXPIRE", b"e", b"100", &long],
        vec![b"EXPIRE", b"e", b"x", b"NX", &long],
        vec![b"EXPIRE", b"e", b"100", b"ba\0d"],
        vec![b"EXPIRE", b"e", b"100", b"\0"],
        vec![b"EXPIRE", b"e", b"100", b""],
        vec![b"EXPIRE", b"e", b"100", b"a\r\nb\r\n"],
        vec![b"EXPIRE", b"e", b"100", b"xx\0nx"],
        vec![b"EXPIRE", b"e", b"100", b"nX\0"],
        vec![b"TTL", b"e"],
    ]);
    let begin = Instant::now();
    for command in &commands {
        let replies = pair.each_mut().map(|client| client.ask(command));
        if command[0] == b"TTL" && is_ttl(&replies[0], &replies[1], begin) {
            continue;
        }
        let shown: Vec<String> = command.iter().map(|word| show(word)).collect();
        assert_eq!(replies[0], replies[1], "left Redis, right Ordna: {}", shown.join(" "));
    }
}

#[test]
#[ignore = "needs redis-server; .ci/run installs it and runs this"]
fn broken_requests_end_as_in_redis() {
    let redis = Redis::start();
    let ours = start(Config::default());
    let broken: [&[u8]; 16] = [
        b"*1\r\n:5\r\n",
        b"*x\r\n",
        b"*2147483648\r\n",
        b"*1\r\n$-1\r\n",
        b"*1\r\n$536870913\r\n",
        b"*1\r\n$x\r\n",
        b"PING \"a\r\n",
        b"PING 'a'b\r\n",
        b"PING \"a\\x41\\n\"\r\nQUIT\r\n",
        b"\r\n\r\nPING\r\nQUIT\r\n",
        b"*0\r\n*-1\r\nPING\r\nQUIT\r\n",
        b"ping\nquit\n",
        b"*1\r\n$4\r\nPINGxx*1\r\n$4\r\nQUIT\r\n",
        &[b'a'; 70_000],
        &[b'*'; 70_000],
        b"GET\r\nQUIT\r\n",
    ];
    for bytes in broken {
        let all = [redis.1, ours.address].map(|address| {
            let mut client = Client::new(address);
            client.send(bytes);
            let mut all = Vec::new();
            loop {
                let reply = client.reply();
                if reply.is_empty() {
                    return show(&all);
                }
                all.extend(reply);
            }
        });
        assert_eq!(all[0], all[1], "left Redis, right Ordna: {:.80}", show(bytes));
    }
    // And a pipeline.
    let pipeline = [request(&[b"SET", b"a", b"1"]), request(&[b"INCR", b"a"])].concat();
    for address in [redis.1, ours.address] {
        let mut client = Client::new(address);
        client.send(&pipeline);
        assert_eq!([client.reply(), client.reply()], [b"+OK\r\n".to_vec(), b":2\r\n".to_vec()]);
    }
}

/// One command a line; the words are split at single blanks.
const CONVERSATION: &str = "
    PING
    PING hello
    PING a b
    ECHO hello
    ECHO
    SET a 1
    SET a 2 NX
    SET a 2 XX
    SET a 3 GET
    SET b 3 NX GET
    SET b 4 XX GET
    SET b 4 GET XX NX
    SET b
    SET b 1 BAD
    SETNX b 9
    SETNX c 9
    GETSET c 10
    GETSET d 11
    GETDEL d
    GETDEL d
    GET nothing
    GET
    GET a b
    MSET a 1 b 2
    MSET a 1 b
    MSET
    MSETNX a 1 z 2
    MSETNX x 1 y 2
    MSETNX x
    MGET a b x nothing
    MGET
    STRLEN a
    STRLEN nothing
    APPEND a 99
    APPEND new 1
    INCR a
    INCR x
    INCR word
    SET word hello
    INCR word
    DECR word
    INCRBY a 5
    INCRBY a five
    INCRBY a 9223372036854775808
    INCRBY a 9223372036854775807
    DECRBY a -9223372036854775808
    DECRBY a 1
    DECR fresh
    INCRBY fresh 01
    INCRBY fresh +1
    SET padded 007
    INCR padded
    EXISTS a a nothing
    EXISTS
    TYPE a
    TYPE nothing
    DEL a nothing
    UNLINK b
    DEL
    DBSIZE
    DBSIZE x
    SELECT 0
    SELECT 1
    SELECT -1
    SELECT x
    SELECT 2147483648
    SELECT -9223372036854775808
    AUTH pw
    AUTH default pw
    AUTH nobody pw
    AUTH a b c
    HELLO x
    HELLO 4
    HELLO 2 AUTH
    HELLO 2 SETNAME
    HELLO 2 BAD
    CLIENT GETNAME
    CLIENT SETNAME me
    CLIENT GETNAME
    CLIENT SETNAME
    CLIENT NOPE
    CLIENT
    CONFIG GET appendonly
    CONFIG GET save
    CONFIG GET nonsense
    CONFIG GET
    CONFIG NOPE
    CONFIG
    CONFIG SET nonsense 1
    CONFIG SET port
    COMMAND NOPE
    COMMAND INFO nonsense
    COMMAND COUNT x
    SCAN x
    SCAN 0 COUNT
    SCAN 0 COUNT x
    SCAN 0 COUNT 0
    SCAN 0 BAD 1
    SCAN
    KEYS nothing*
    KEYS [x]
    KEYS
    nope
    NOPE a b c
    FLUSHALL BAD
    FLUSHDB ASYNC
    DBSIZE
    KEYS *
    SCAN 0
    SET only 1
    SCAN 0 MATCH on* COUNT 100
    SCAN 0 TYPE string
    SCAN 0 TYPE list
    FLUSHALL
    SET e 1 EX 100
    TTL e
    EXPIRE e 200
    TTL e
    EXPIRE e 300 NX
    EXPIRE e 300 XX
    EXPIRE e 200 GT
    EXPIRE e 200 LT
    EXPIRE e 400 GT
    EXPIRE e 400 BAD
    EXPIRE e 400 NX XX
    EXPIRE e 400 GT LT
    EXPIRE e x
    EXPIRE e 9223372036854775807
    EXPIRE e -9223372036854775808
    EXPIRE nothing 5
    TTL nothing
    EXPIREAT e 99999999999
    EXPIRETIME e
    PEXPIRETIME e
    PEXPIREAT e 99999999999999
    PEXPIRETIME e
    SET e 2
    EXPIRETIME e
    PTTL e
    TTL e
    SET e 3 PXAT 99999999999999
    SET e 4 KEEPTTL
    PEXPIRETIME e
    INCR e
    APPEND e 0
    PEXPIRETIME e
    GETSET e 9
    PEXPIRETIME e
    PERSIST e
    SET e 4 EXAT 99999999999
    PERSIST e
    PERSIST e
    PERSIST nothing
    SET e 1 EX 0
    SET e 1 EX -5
    SET e 1 EX x
    SET e 1 EX
    SET e 1 EX 5 PX 5
    SET e 1 EX 5 KEEPTTL
    SET e 1 EX 9223372036854775807
    SET e 1 PX 9223372036854775807
    SETEX e 100 v
    TTL e
    SETEX e 0 v
    SETEX e x v
    SETEX e 5
    PSETEX e 100000 v
    PSETEX e -1 v
    TTL e
    GETEX e
    GETEX e PERSIST
    TTL e
    GETEX e EX 100
    TTL e
    GETEX e EX 0
    GETEX e EX
    GETEX e BAD
    GETEX e PERSIST EX 5
    GETEX nothing EX 5
    GETEX nothing EX 0
    GETEX nothing EX many
    GETEX nothing EX 9223372036854775807
    GETEX nothing EX
    GETEX nothing BAD
    GETEX nothing EX 10 PX 10
    GETEX e EX 9223372036854775807
    GETEX e EX many
    GETEX e EX 10 PX 10
    GETEX e EX 10 PERSIST
    GETEX e EX 10 EX 2000
    TTL e
    GETEX e PERSIST PERSIST
    TTL e
    SET e 1 EX 10 EX 2000
    TTL e
    SET e 1 EX 10 PX 20
    SET e 1 KEEPTTL KEEPTTL
    TTL e
    SET e 1 KEEPTTL EX 5
    GETEX e PXAT 1
    EXISTS e
    SET e 1 PXAT 1
    GET e
    EXPIRE e 100
    SET e 1
    EXPIRE e 0
    EXISTS e
    EXEC
    DISCARD
    MULTI
    MULTI
    WATCH a
    SET a 1
    GET a
    INCR a
    EXEC
    MULTI
    SET a 1
    NOPE
    EXEC
    GET a
    MULTI
    SET a
    EXEC
    MULTI
    SET a 7
    DISCARD
    GET a
    WATCH a
    MULTI
    GET a
    EXEC
    WATCH a
    SET a 8
    MULTI
    GET a
    EXEC
    WATCH a
    SET a 9
    UNWATCH
    MULTI
    MSET x 1 y 2
    MGET x y
    APPEND x y
    INCR x
    KEYS [x]
    FLUSHALL
    DBSIZE
    EXEC
    WATCH
    EXEC x
    MULTI
    EXEC
    FLUSHALL SYNC
    RESET
    SET after reset
    GET after
";
