//! Tests of keyspace notifications.

use std::time::{Duration, Instant};

use ordna_server::Config;

use super::against_redis::Redis;
use crate::common::{Client, fresh, request, show, start};

/// Commands whose events are compared. They set no deadline that passes during the test.
const CONVERSATION: &str = "
    SET a 1
    SET a 2 EX 100
    SET a 3 KEEPTTL
    SET a 4 NX
    SET a 5 PX 100000 GET
    GET a
    GET nothing
    HGET nothing f
    STRLEN nothing
    SETNX b 1
    SETEX c 100 1
    PSETEX c 100000 1
    GETSET a 6
    INCR a
    DECRBY a 2
    INCRBYFLOAT a 1.5
    APPEND a 7
    APPEND new 7
    SETRANGE a 1 x
    SETRANGE d 1 x
    SETRANGE a 1 x
    SETBIT e 7 1
    BITFIELD e SET u8 0 1 GET u8 0
    BITFIELD e GET u8 0
    BITOP AND f e e
    BITOP AND f none none
    GETEX a EX 100
    GETEX a PERSIST
    GETEX a PERSIST
    GETEX a
    EXPIRE a 100
    PERSIST a
    PERSIST a
    PEXPIREAT a 99999999999999
    EXPIRE a -1
    EXPIRE a 10
    HSET h f 1 g 2
    HSETNX h f 1
    HSETNX h i 1
    HMSET h f 2
    HINCRBY h f 2
    HINCRBYFLOAT h f 2.5
    HDEL h nothing
    HDEL h f
    HDEL h g i
    HSET h f 1
    COPY h h2
    COPY h h2 REPLACE
    RENAME h h3
    RENAMENX h3 h2
    RENAMENX h3 h4
    DEL h2
    DEL b c nothing
    UNLINK d
    SET g 1
    GETDEL g
    GETDEL g
    MULTI
    SET x 1
    DEL x
    EXEC
    TOUCH e
    TYPE e
    FLUSHALL
    INCR n
    SET w x
    INCR w
    HSET w f x
    RPUSH numbers 3 1 2
    SORT numbers STORE sorted
    SORT nothing STORE sorted
    LMOVE numbers moved LEFT RIGHT
    RPOPLPUSH numbers numbers
    BRPOPLPUSH numbers moved 0
    LMPOP 1 numbers LEFT COUNT 9
    BRPOP moved 0
    BLMPOP 0 1 moved LEFT
    ZADD scores 1 a 2 b 3 c
    ZADD scores INCR 1 a
    ZADD scores NX INCR 1 a
    ZMPOP 1 scores MAX
    BZPOPMIN scores 0
    BZMPOP 0 1 scores MIN
    SADD members a b
    SMOVE members others a
    SMOVE others members a
    SMOVE members members a
    SUNIONSTORE stored members
    SINTERSTORE stored members nothing
    ZADD scores 1 a
    ZUNIONSTORE stored 1 scores
    ZINTERSTORE stored 2 scores nothing
    ZRANGESTORE stored scores 0 -1
    ZRANGESTORE stored scores 5 6
    FLUSHALL
    SET past 1
    EXPIRE past 0
    SET past 1
    PEXPIRE past -5
    SET past 1
    EXPIREAT past 1
    SET past 1
    PEXPIREAT past 1
    SET past 1
    PEXPIREAT past -1
    SET past 1
    GETEX past EXAT 1
    SET past 1
    GETEX past PXAT 1
    SET past 1
    EXPIRE past -1 XX
    EXPIRE past -1 GT
    EXPIRE past -1 NX
    SET past 1 EX 100
    EXPIRE past -1 NX
    EXPIRE past -1 GT
    EXPIRE past -1 LT
    EXPIRE past -1
    HSET h f 1
    EXPIRE h -1
    SADD members a
    EXPIRE members -1
    ZADD scores 1 a
    PEXPIREAT scores 1
    RPUSH numbers 1
    EXPIREAT numbers 1
    RPUSH numbers 1
    MULTI
    EXPIRE numbers -1
    EXEC
    SET other 1
    EVAL return(redis.call('RESTORE',KEYS[1],0,redis.call('DUMP',KEYS[2]),'REPLACE')) 2 past other
    EVAL return(redis.call('RESTORE',KEYS[1],0,redis.call('DUMP',KEYS[2]),'REPLACE')) 2 past other
    COPY other past REPLACE
    RENAME other past
    SET past 1
    EVAL return(redis.call('EXPIRE',KEYS[1],-1)) 1 past
";

#[test]
#[ignore = "needs redis-server; .ci/run installs it and runs this"]
fn events_are_those_of_redis() {
    let redis = Redis::start();
    let ours = start(Config::default());
    for classes in ["KEA", "Kg$", "Ehx", "KElszn", "Ed", "KAn", "gx$", "K", "E", "Knt", "KEgxe"] {
        let told = [redis.1, ours.address].map(|address| {
            let mut client = Client::new(address);
            let mut subscriber = Client::new(address);
            client.say("FLUSHALL");
            assert_eq!(
                client.say(&format!("CONFIG SET notify-keyspace-events {classes}")),
                r"+OK\r\n"
            );
            subscriber.say("PSUBSCRIBE __key*@0__:*");
            let mut all = Vec::new();
            for line in CONVERSATION.lines().map(str::trim).filter(|line| !line.is_empty()) {
                client.say(line);
                subscriber.send(&request(&[b"PING", b"the end"]));
                let mut events = Vec::new();
                loop {
                    let event = show(&subscriber.reply());
                    assert!(!event.is_empty());
                    if event.contains("the end") {
                        break;
                    }
                    events.push(event);
                }
                all.push((line, events));
            }
            all
        });
        let mut differences = Vec::new();
        for (redis, ours) in told[0].iter().zip(&told[1]) {
            if redis != ours {
                differences
                    .push(format!("{}\n  Redis {:?}\n  Ordna {:?}", redis.0, redis.1, ours.1));
            }
        }
        assert!(differences.is_empty(), "{classes}\n{}", differences.join("\n"));
    }
}

#[test]
fn keys_that_expire_or_are_evicted_are_reported() {
    let (server, mut client) = fresh();
    let mut subscriber = Client::new(server.address);
    client.say("CONFIG SET notify-keyspace-events Exe");
    subscriber.say("PSUBSCRIBE *");
    let mut next = |event: &str| {
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            assert!(Instant::now() < end);
            let message = show(&subscriber.reply());
            if message.contains(&format!("__keyevent@0__:{event}")) {
                return message;
            }
        }
    };
    client.say("SET a 1 PX 20");
    assert!(next("expired").ends_with(r"$1\r\na\r\n"));
    // The keyspace after a flush sends notifications, too.
    client.say("FLUSHALL");
    client.say("HSET h f 1");
    client.say("PEXPIRE h 20");
    assert!(next("expired").ends_with(r"$1\r\nh\r\n"));
    client.say("CONFIG SET maxmemory-policy allkeys-random maxmemory 1mb");
    let value = "x".repeat(10_000);
    for key in 0..200 {
        client.say(&format!("SET k{key} {value}"));
    }
    assert!(next("evicted").contains(r"\r\nk"));
    // No notifications are sent any more.
    client.say("CONFIG SET notify-keyspace-events ");
    assert!(client.say("CONFIG GET notify-keyspace-events").ends_with(r"$0\r\n\r\n"));
}
