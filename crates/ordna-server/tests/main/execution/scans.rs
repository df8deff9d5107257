//! Tests of replies of scans over many keys.

use ordna_server::Config;

use crate::common::{Client, start};

/// A reply that exceeds the buffer is counted first, and then sent in pieces.
#[test]
fn a_long_reply_is_sent_in_pieces_and_is_whole() {
    let server = start(Config::default());
    let mut client = Client::new(server.address);
    let value = "v".repeat(200);
    for first in (0..10_000).step_by(500) {
        let keys: Vec<String> = (first..first + 500).map(|n| format!("key:{n:05}")).collect();
        let pairs: String = keys.iter().map(|key| format!(" {key} {value}")).collect();
        assert_eq!(client.say(&format!("MSET{pairs}")), r"+OK\r\n");
    }
    let entry = |n: usize| format!(r"$9\r\nkey:{n:05}\r\n$200\r\n{value}\r\n");
    let all: String = (0..10_000).map(entry).collect();
    assert!(client.say("ORDNA.RANGE - +") == format!(r"*20000\r\n{all}"), "upwards");
    let some: String = (100..9_100).rev().map(entry).collect();
    let reply = client.say("ORDNA.RANGE + - REV LIMIT 900 9000");
    assert!(reply == format!(r"*18000\r\n{some}"), "downwards, within limits");
    let even = (0..10_000).filter(|n| n % 10 != 3).map(|n| format!(r"$9\r\nkey:{n:05}\r\n"));
    let even: String = even.collect();
    assert!(client.say("KEYS *[^3]") == format!(r"*9000\r\n{even}"), "by a pattern");
    client.resp3 = true;
    client.say("HELLO 3");
    let pairs: String = (0..10_000).map(|n| format!(r"*2\r\n{}", entry(n))).collect();
    assert!(client.say("ORDNA.RANGE - +") == format!(r"*10000\r\n{pairs}"), "as pairs");
    // In a transaction, the whole is one reply and has a limit.
    let server = start(Config { max_reply: 10_000, ..Config::default() });
    let mut client = Client::new(server.address);
    (0..3000).for_each(|n| assert_eq!(client.say(&format!("SET key:{n} v")), r"+OK\r\n"));
    client.say("MULTI");
    client.say("KEYS *");
    assert!(client.say("EXEC").contains("-ERR the replies of the transaction would exceed"));
    assert_eq!(client.say("ORDNA.COUNT - +"), r":3000\r\n");
    assert_eq!(client.say("ORDNA.DELRANGE - +"), r":3000\r\n");
}
