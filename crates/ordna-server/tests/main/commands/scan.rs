//! Tests of `SCAN` and its cursors.

use std::time::{Duration, Instant};

use ordna_server::Config;

use crate::common::{Client, converse, fresh, start};

#[test]
fn a_scan_reads_one_state_as_long_as_its_lease_lasts() {
    let server = start(Config { scan_lease: Duration::from_secs(3600), ..Config::default() });
    let brief = start(Config { scan_lease: Duration::from_millis(1), ..Config::default() });
    let cursor_of = |reply: &str| reply.split(r"\r\n").nth(2).unwrap().to_owned();
    for (server, lasts) in [(&server, true), (&brief, false)] {
        let mut client = Client::new(server.address);
        client.say("MSET a 1 b 2 c 3 d 4");
        let cursor = cursor_of(&client.say("SCAN 0 COUNT 2"));
        client.say("DEL c");
        client.say("SET cc 5");
        let patience = Instant::now() + Duration::from_secs(20);
        while !lasts && !client.say("INFO snapshots").contains("scan_leases_ended:1") {
            assert!(Instant::now() < patience, "the lease never ends");
        }
        let (stable, keys) = if lasts {
            (client.say(&format!("SCAN {cursor} COUNT 10 STABLE")), ["c", "d"])
        } else {
            let stable = client.say(&format!("SCAN {cursor} COUNT 10 STABLE"));
            assert!(stable.contains("no longer exists"), "{stable}");
            (client.say(&format!("SCAN {cursor} COUNT 10")), ["cc", "d"])
        };
        let expected: String =
            keys.iter().map(|key| format!(r"${}\r\n{key}\r\n", key.len())).collect();
        assert_eq!(stable, format!(r"*2\r\n$1\r\n0\r\n*2\r\n{expected}"));
    }
}

#[test]
fn a_scan_returns_what_stays_while_keys_come_and_go() {
    let (_server, mut client) = fresh();
    for n in 0..500 {
        client.say(&format!("SET stay:{n:03} v"));
    }
    let mut cursor = "0".to_owned();
    let mut seen = Vec::new();
    let mut turn = 0;
    loop {
        let reply = client.say(&format!("SCAN {cursor} COUNT 7 MATCH *:*"));
        let parts: Vec<&str> = reply.split(r"\r\n").collect();
        cursor = parts[2].to_owned();
        seen.extend(parts.iter().filter(|part| part.starts_with("stay:")).map(|s| (*s).to_owned()));
        if cursor == "0" {
            break;
        }
        // Writes keys before and after the cursor, and removes the key at the cursor.
        client.say(&format!("SET a:{turn} v"));
        client.say(&format!("SET z:{turn} v"));
        client.say(&format!("DEL a:{}", turn - 1));
        turn += 1;
    }
    let expected: Vec<String> = (0..500).map(|n| format!("stay:{n:03}")).collect();
    assert_eq!(seen, expected);
    converse(
        &mut client,
        &[
            ("SCAN x", r"-ERR invalid cursor\r\n"),
            ("SCAN 0 COUNT 0", r"-ERR syntax error\r\n"),
            ("SCAN 0 COUNT", r"-ERR syntax error\r\n"),
            ("SCAN 0 TYPE list COUNT 1000", r"*2\r\n$1\r\n0\r\n*0\r\n"),
        ],
    );
    assert!(client.say("SCAN 999999").starts_with("-ERR this cursor is no longer known"));
}

/// Without STABLE, a scan ends after a flush. With STABLE, the client receives an error.
#[test]
fn a_stable_scan_does_not_end_silently_by_a_flush() {
    let (_server, mut client) = fresh();
    client.say("MSET a 1 b 2 c 3");
    let reply = client.say("SCAN 0 COUNT 1 STABLE");
    let cursor = reply.split(r"\r\n").nth(2).unwrap().to_owned();
    client.say("FLUSHALL");
    let reply = client.say(&format!("SCAN {cursor} STABLE"));
    assert!(reply.starts_with("-ERR the state that cursor"), "{reply}");
    assert_eq!(client.say(&format!("SCAN {cursor}")), r"*2\r\n$1\r\n0\r\n*0\r\n");
}

/// A cursor from a former run of the server does not refer to the scan of another client.
#[test]
fn a_cursor_of_another_run_is_refused() {
    let (_server, mut client) = fresh();
    let (_next, mut other) = fresh();
    for client in [&mut client, &mut other] {
        client.say("MSET a 1 b 2 c 3");
    }
    let cursor_of = |client: &mut Client| {
        client.say("SCAN 0 COUNT 1").split(r"\r\n").nth(2).unwrap().to_owned()
    };
    let cursor = cursor_of(&mut client);
    let others = cursor_of(&mut other);
    assert_ne!(cursor, others);
    assert!(
        other.say(&format!("SCAN {cursor}")).starts_with("-ERR this cursor is no longer known")
    );
    // Clients that read numbers as doubles send them back unchanged.
    assert!(cursor.parse::<u64>().unwrap() < 1 << 53, "{cursor}");
}
