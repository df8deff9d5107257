//! Tests of the time within scripts and transactions.

use std::time::{Duration, Instant};

use crate::common::fresh;

/// The time does not advance within a script or EXEC: a key that one of their commands finds is
/// found by the next one, too.
#[test]
fn keys_do_not_expire_between_the_commands_of_one_step() {
    let (_server, mut client) = fresh();
    let step = "local since = os.clock() redis.call('SET', KEYS[1], 5, 'PX', 20) while os.clock() < since + 0.05 do end \
                return {redis.call('EXISTS', KEYS[1]), redis.call('INCR', KEYS[1]), redis.call('PTTL', KEYS[1]) > 0}";
    let reply = client.ask(&[b"EVAL", step.as_bytes(), b"1", b"k"]);
    assert_eq!(reply, r"*3\r\n:1\r\n:6\r\n:1\r\n");
    assert_eq!(client.say("GET k"), r"$-1\r\n", "it expires afterwards");
    let wait = "local since = os.clock() while os.clock() < since + 0.05 do end return 1";
    client.say("MULTI");
    client.say("SET m 5 PX 20");
    client.ask(&[b"EVAL", wait.as_bytes(), b"0"]);
    client.say("INCR m");
    assert_eq!(client.say("EXEC"), r"*3\r\n+OK\r\n:1\r\n:6\r\n");
    assert_eq!(client.say("GET m"), r"$-1\r\n");
    client.say("SET later 1 PX 60");
    let begin = Instant::now();
    while client.say("DBSIZE") != r":0\r\n" {
        assert!(begin.elapsed() < Duration::from_secs(20), "keys expire no more");
    }
}
