//! Runs the same conversation with Debian's redis-server and with Ordna: replies must be equal byte
//! for byte. `.ci/run` installs Redis and then runs
//! `cargo test -p ordna-server --test main -- --ignored against_redis`.

use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use crate::common::{Client, is_ttl, request, show, start};
use ordna_server::Config;

/// A redis-server of this test, which ends on drop.
pub struct Redis(Child, pub SocketAddr);

impl Redis {
    pub fn start() -> Self {
        // Below the ports that the system assigns automatically: such a port, although found free,
        // could be assigned to another process before Redis listens on it.
        static NEXT: AtomicU16 = AtomicU16::new(0);
        let first = 12_000 + (std::process::id() % 1_000) as u16 * 16;
        let patience = Instant::now() + Duration::from_secs(20);
        loop {
            let port = first + NEXT.fetch_add(1, Ordering::Relaxed) % 16;
            let address = SocketAddr::from(([127, 0, 0, 1], port));
            let child = Command::new("redis-server")
                .args(["--port", &port.to_string(), "--save", "", "--databases", "1"])
                .stdout(Stdio::null())
                .spawn()
                .expect("redis-server is installed (Debian: apt-get install redis-server)");
            let mut redis = Self(child, address);
            // The process ends by itself if the port is in use.
            while redis.0.try_wait().expect("the child is ours").is_none() {
                assert!(Instant::now() < patience, "redis-server does not listen on {address}");
                // The server of another test may listen there, and this process may not have
                // noticed it yet.
                if redis.is_answered_by(redis.0.id()) {
                    return redis;
                }
                std::thread::yield_now();
            }
        }
    }

    /// Returns whether this process answers at the address.
    fn is_answered_by(&self, process: u32) -> bool {
        let Ok(stream) = TcpStream::connect(self.1) else { return false };
        let info = Client::of(stream).reply_to(b"INFO server\r\n");
        String::from_utf8_lossy(&info).contains(&format!("process_id:{process}\r\n"))
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        // The process may have ended by itself.
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
        vec![b"SETRANGE", b"piece", b"0", b""],
        vec![b"SETRANGE", b"s", b"9999999", b""],
        vec![b"DUMP", &long[..20]],
        vec![b"EVAL", RELEASE, b"1", b"lock", b"me"],
        vec![b"EVAL", RELEASE, b"2", b"lock"],
        vec![b"EVAL", RELEASE, b"-1", b"lock"],
        vec![b"EVAL", RELEASE, b"x", b"lock"],
        vec![b"SCRIPT", b"LOAD", RELEASE],
    ]);
    let begin = Instant::now();
    let mut differences = Vec::new();
    for command in &commands {
        let replies = pair.each_mut().map(|client| client.ask(command));
        if command[0] == b"TTL" && is_ttl(&replies[0], &replies[1], begin) {
            continue;
        }
        let shown: Vec<String> = command.iter().map(|word| show(word)).collect();
        if replies[0] != replies[1] {
            let [redis, ours] = replies;
            differences.push(format!("{}\n  Redis: {redis}\n  Ordna: {ours}", shown.join(" ")));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

/// Redis compresses its dumps; Ordna does not.
#[test]
#[ignore = "needs redis-server; .ci/run installs it and runs this"]
fn dumps_are_restored_by_the_other() {
    let redis = Redis::start();
    let ours = start(Config::default());
    let mut pair = [Client::new(redis.1), Client::new(ours.address)];
    let values: [&[u8]; 6] = [
        &[b'a'; 5000],
        &b"some text, some more text, and some text again and again".repeat(40),
        b"-32769",
        b"short",
        b"",
        &[b'x'; 20_000],
    ];
    for value in values {
        for (from, to) in [(0, 1), (1, 0)] {
            pair[from].ask(&[b"SET", b"key", value]);
            pair[from].send(&request(&[b"DUMP", b"key"]));
            let reply = pair[from].reply();
            let start = reply.iter().position(|byte| *byte == b'\n').unwrap() + 1;
            let payload = &reply[start..reply.len() - 2];
            let restore = pair[to].ask(&[b"RESTORE", b"other", b"0", payload, b"REPLACE"]);
            assert_eq!(restore, r"+OK\r\n", "{}", show(payload));
            let expected = format!(r"${}\r\n{}\r\n", value.len(), show(value));
            assert_eq!(pair[to].ask(&[b"GET", b"other"]), expected);
            let mut broken = payload.to_vec();
            broken[0] ^= 1;
            let refused = pair[to].ask(&[b"RESTORE", b"new", b"0", &broken]);
            assert!(refused.starts_with("-ERR DUMP payload version"), "{refused}");
        }
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
    // The same in a pipeline.
    let pipeline = [request(&[b"SET", b"a", b"1"]), request(&[b"INCR", b"a"])].concat();
    for address in [redis.1, ours.address] {
        let mut client = Client::new(address);
        client.send(&pipeline);
        assert_eq!([client.reply(), client.reply()], [b"+OK\r\n".to_vec(), b":2\r\n".to_vec()]);
    }
}

/// The script that the documentation of Redis recommends for releasing a lock.
const RELEASE: &[u8] =
    b"if redis.call(\"get\",KEYS[1]) == ARGV[1] then return redis.call(\"del\",KEYS[1]) else return 0 end";

/// One command per line. Words are separated by single spaces.
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
    SELECT 16
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
    FLUSHALL
    SET s hello
    GETRANGE s 0 -1
    GETRANGE s 1 3
    GETRANGE s -3 -2
    GETRANGE s 3 1
    GETRANGE s -1 -3
    GETRANGE s 0 100
    GETRANGE s -100 0
    GETRANGE s 9 10
    GETRANGE s 0
    GETRANGE s a b
    GETRANGE nothing 0 -1
    SUBSTR s 1 2
    SUBSTR s 1
    SETRANGE s 1 EY
    GET s
    SETRANGE s 7 x
    GET s
    SETRANGE s -1 x
    SETRANGE s x y
    SETRANGE s 536870912 x
    SETRANGE fresh 3 ab
    GET fresh
    SETRANGE s
    STRLEN s
    INCRBYFLOAT f 10.5
    INCRBYFLOAT f 0.1
    INCRBYFLOAT f -5.0e1
    INCRBYFLOAT f 1e-17
    INCRBYFLOAT f x
    INCRBYFLOAT f nan
    INCRBYFLOAT f inf
    INCRBYFLOAT f 1e5000
    INCRBYFLOAT f 0x10
    INCRBYFLOAT big 1e30
    INCRBYFLOAT big 1e4000
    INCRBYFLOAT big -1e4000
    INCRBYFLOAT s 1
    INCRBYFLOAT third 0.333333333333333333333
    INCRBYFLOAT third 0.1
    INCRBYFLOAT third 3.3e-10
    INCRBYFLOAT f
    SETBIT b 7 1
    SETBIT b 7 0
    SETBIT b 100 1
    SETBIT b 3 1
    SETBIT b -1 1
    SETBIT b x 1
    SETBIT b 1 2
    SETBIT b 1 x
    SETBIT b 4294967296 1
    SETBIT b
    GETBIT b 100
    GETBIT b 3
    GETBIT b 4
    GETBIT b 5000
    GETBIT b -1
    GETBIT nothing 1
    GET b
    BITCOUNT b
    BITCOUNT b 0 0
    BITCOUNT b 0 -1 BIT
    BITCOUNT b 3 100 BIT
    BITCOUNT b 4 99 BIT
    BITCOUNT b -5 -1
    BITCOUNT b 5 2
    BITCOUNT b 0
    BITCOUNT b 0 1 NOPE
    BITCOUNT b x 1
    BITCOUNT nothing
    BITCOUNT nothing 0 1
    BITPOS b 1
    BITPOS b 0
    BITPOS b 1 1
    BITPOS b 1 1 -1
    BITPOS b 1 4 99 BIT
    BITPOS b 1 4 100 BIT
    BITPOS b 0 3 3 BIT
    BITPOS b 1 20
    BITPOS b 0 20
    BITPOS b 1 -5 -100
    BITPOS b 1 -1 -2
    BITPOS b 0 -50 -100 BIT
    BITCOUNT b -5 -100
    CLIENT PAUSE -1
    BITPOS b 2
    BITPOS b x
    BITPOS b 1 x
    BITPOS b 1 0 1 NOPE
    BITPOS nothing 0
    BITPOS nothing 1
    BITPOS nothing 0 3 4
    SETRANGE ones 0 ~
    BITOP NOT ones ones
    BITPOS ones 0
    BITPOS ones 0 0 -1
    BITOP AND d s b
    BITOP OR d s b
    GET d
    BITOP XOR d s b nothing
    GET d
    BITOP NOT d s
    BITOP NOT d nothing
    EXISTS d
    BITOP NOT d s b
    BITOP NOPE d s
    BITOP AND d
    BITFIELD bf SET u8 0 255 GET u8 0 GET i8 0
    BITFIELD bf INCRBY u8 0 10
    BITFIELD bf OVERFLOW SAT INCRBY u8 0 250
    BITFIELD bf OVERFLOW FAIL INCRBY u8 0 1
    BITFIELD bf INCRBY i5 100 1 GET u4 0
    BITFIELD bf SET i64 #1 -1 GET i64 #1 GET u63 64
    BITFIELD bf OVERFLOW SAT INCRBY i8 #3 -200 INCRBY i8 #3 -200
    BITFIELD bf OVERFLOW WRAP INCRBY i8 #3 -200
    BITFIELD bf SET u4 0 -1
    BITFIELD bf OVERFLOW FAIL SET u4 0 16 GET u4 0
    BITFIELD bf OVERFLOW SAT SET i4 0 100 GET i4 0
    BITFIELD bf
    BITFIELD bf GET u64 0
    BITFIELD bf GET i65 0
    BITFIELD bf GET u8 -1
    BITFIELD bf GET u8 x
    BITFIELD bf GET x8 0
    BITFIELD bf OVERFLOW NOPE
    BITFIELD bf SET u8 0
    BITFIELD bf INCRBY u8 0 x
    BITFIELD bf NOPE
    BITFIELD_RO bf GET u8 0
    BITFIELD_RO bf SET u8 0 1
    BITFIELD_RO nothing GET u8 0
    STRLEN bf
    GET bf
    SET one ohmytext
    SET two mynewtext
    LCS one two
    LCS one two LEN
    LCS one two IDX
    LCS one two IDX MINMATCHLEN 4
    LCS one two IDX MINMATCHLEN 4 WITHMATCHLEN
    LCS one two LEN IDX
    LCS one two NOPE
    LCS one two MINMATCHLEN x
    LCS one nothing
    LCS nothing nothing IDX
    SET one aabbcc
    SET two abcabc
    LCS one two
    LCS one two IDX WITHMATCHLEN
    RENAME nothing x
    RENAME one uno
    EXISTS one uno
    SET uno 1 EX 100
    RENAME uno un
    TTL un
    RENAME un un
    RENAMENX nothing x
    RENAMENX un two
    RENAMENX un unique
    RENAMENX unique unique
    COPY unique two
    COPY unique two REPLACE
    TTL two
    COPY unique third
    COPY unique unique
    COPY nothing x
    COPY unique x DB 0
    COPY unique x DB 99
    COPY unique x DB y
    COPY unique x NOPE
    TOUCH two nothing unique
    TOUCH
    OBJECT ENCODING two
    OBJECT ENCODING nothing
    OBJECT ENCODING
    OBJECT REFCOUNT s
    OBJECT FREQ s
    OBJECT FREQ nothing
    OBJECT NOPE
    OBJECT
    MEMORY USAGE nothing
    MEMORY USAGE two SAMPLES -1
    MEMORY USAGE two NOPE
    MEMORY NOPE
    SET short 12
    DUMP short
    SET short -7000
    DUMP short
    SET short 2147483647
    DUMP short
    SET short 2147483648
    DUMP short
    SET short word
    DUMP short
    DUMP nothing
    RESTORE s 0 x
    RESTORE fresher 0 x
    RESTORE fresher -1 x
    RESTORE fresher x x
    RESTORE fresher 0 x NOPE
    RESTORE fresher 0 x IDLETIME -1
    RESTORE fresher 0 x FREQ 256
    WAIT 0 0
    WAIT x 0
    WAIT 0 -1
    WAIT 0 x
    SLOWLOG
    SLOWLOG NOPE
    SLOWLOG GET -2
    SLOWLOG GET x
    SLOWLOG RESET
    LATENCY NOPE
    LATENCY LATEST
    LATENCY HISTORY nothing
    LATENCY RESET
    LATENCY RESET a b
    ACL WHOAMI
    ACL NOPE
    ACL LIST
    ACL USERS
    ACL SETUSER alice on >pw ~a* %R~b* +@read +@write -set allchannels
    ACL GETUSER alice
    ACL SETUSER bob
    ACL GETUSER bob
    ACL LIST
    ACL GETUSER nobody
    ACL SETUSER dave foo
    ACL SETUSER dave +nope
    ACL SETUSER dave +@nope
    ACL SETUSER dave <nope
    ACL SETUSER dave #nope
    ACL SETUSER alice ~* ~b
    ACL DRYRUN alice set a 1
    ACL DRYRUN alice get c
    ACL DRYRUN alice get a
    ACL DRYRUN alice get
    ACL DRYRUN alice nope
    ACL DRYRUN nobody get c
    ACL CAT nope
    ACL CAT transaction x
    ACL GENPASS x
    ACL LOG x
    ACL LOG RESET
    ACL LOG
    ACL DELUSER default
    ACL DELUSER alice bob nobody
    CONFIG SET maxclients 100 port
    CONFIG SET timeout x
    CONFIG SET timeout -1
    CONFIG SET slowlog-max-len x
    CONFIG GET timeout
    CONFIG GET slowlog-max-len
    CONFIG SET timeout 100
    CONFIG GET TIME*
    CONFIG SET timeout 0
    CONFIG RESETSTAT
    CLIENT REPLY NOPE
    CLIENT NO-EVICT on
    CLIENT NO-EVICT x
    CLIENT GETREDIR
    CLIENT TRACKINGINFO
    CLIENT PAUSE x
    CLIENT PAUSE 1 NOPE
    CLIENT UNPAUSE
    CLIENT KILL nope
    CLIENT KILL ID 0
    CLIENT KILL ID x
    CLIENT KILL TYPE nope
    CLIENT KILL USER nope
    CLIENT KILL ID 1 NOPE 2
    CLIENT KILL ID 99999
    CLIENT LIST TYPE nope
    CLIENT LIST ID x
    CLIENT LIST NOPE
    CLIENT UNBLOCK 99
    SCRIPT EXISTS abc
    SCRIPT FLUSH
    SCRIPT NOPE
    EVALSHA abc 1 key
    COMMAND GETKEYS MSET a 1 b 2
    COMMAND GETKEYS GET
    COMMAND GETKEYS NOPE x
    COMMAND GETKEYS PING x
    ROLE
    WATCH a
    FLUSHALL
    MULTI
    PING
    EXEC
    FLUSHALL SYNC
    RESET
    SET after reset
    GET after
";
