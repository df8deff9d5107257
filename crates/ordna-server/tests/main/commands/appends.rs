//! Tests of strings that grow, and of a server that stops during scans.

use std::time::{Duration, Instant};

use ordna_server::Config;

use crate::common::{Client, request, spawn, start};

/// 1,200 APPENDs to a value of 12 MB leave no garbage of its size, and DEL frees all memory that
/// they used.
#[test]
fn appends_to_a_large_value_leave_no_garbage() {
    const MIB: usize = 1 << 10;
    let server = spawn("");
    let mut client = Client::new(server.address);
    client.ask(&[b"SET", b"small", b"1"]);
    let before = server.memory("VmRSS:");
    client.ask(&[b"SET", b"large", &vec![b'x'; 12_000_000]]);
    // From here on, the peak is the one during the APPENDs.
    std::fs::write(server.proc("clear_refs"), "5").unwrap();
    let piece = [b'y'; 1000];
    for round in 1..=1200 {
        let length = 12_000_000 + round * piece.len();
        assert_eq!(client.ask(&[b"APPEND", b"large", &piece]), format!(r":{length}\r\n"));
    }
    let peak = server.memory("VmHWM:") - before;
    // The peak includes the value, its successor with more room, and the request buffer of the SET.
    assert!(peak < 60 * MIB, "{peak} KiB for a value of 13 MB");
    client.say("DEL large");
    let patience = Instant::now() + Duration::from_secs(20);
    while server.memory("VmRSS:").saturating_sub(before) > 12 * MIB {
        assert!(Instant::now() < patience, "{} KiB are held", server.memory("VmRSS:") - before);
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The cost of APPEND, SETRANGE and SETBIT at the end of a value does not depend on the value's
/// length.
#[test]
fn writes_at_the_end_of_a_long_value_cost_what_they_write() {
    const PIECES: usize = 5000;
    let server = start(Config::default());
    let mut client = Client::new(server.address);
    // If each write copied the value, this would copy 40 GB.
    client.ask(&[b"SET", b"long", &vec![0; 8 << 20]]);
    let begin = Instant::now();
    let mut length = 8 << 20;
    let mut batch = Vec::new();
    for _ in 0..PIECES {
        batch.extend(request(&[b"APPEND", b"long", &[1; 100]]));
        length += 100;
        let at = (length + 5).to_string();
        batch.extend(request(&[b"SETRANGE", b"long", at.as_bytes(), b"0123"]));
        length += 9;
        let bit = (length * 8 + 7).to_string();
        batch.extend(request(&[b"SETBIT", b"long", bit.as_bytes(), b"1"]));
        length += 1;
    }
    client.send(&batch);
    (0..3 * PIECES).for_each(|_| assert!(!client.reply().is_empty()));
    assert_eq!(client.say("STRLEN long"), format!(r":{length}\r\n"));
    let took = begin.elapsed();
    assert!(took < Duration::from_secs(10), "{took:?}");
}

/// The server stops quickly even if clients scan everything, match patterns, and do not read the
/// replies.
#[test]
fn the_end_does_not_wait_for_scans() {
    let mut server = start(Config::default());
    let mut client = Client::new(server.address);
    for from in (0..200_000).step_by(1000) {
        let words: Vec<String> = (from..from + 1000).map(|n| format!("key:{n:09} value")).collect();
        let reply = client.say(&format!("MSET {}", words.join(" ")));
        assert_eq!(reply, r"+OK\r\n");
    }
    let pattern = format!("KEYS *[{}", "x".repeat(100_000));
    let lines = [pattern.as_str(), "ORDNA.RANGE - +", "ORDNA.COUNT - +", "KEYS *9*9*9*9*x"];
    let scanners: Vec<Client> = (0..12)
        .map(|at| {
            let mut scanner = Client::new(server.address);
            // Repeated, so that some scan is in progress at any time.
            let one = request(&lines[at % 4].split(' ').map(str::as_bytes).collect::<Vec<_>>());
            let times = if at % 4 == 0 { 4 } else { 200 };
            scanner.send(&one.repeat(times));
            scanner
        })
        .collect();
    std::thread::sleep(Duration::from_millis(200));
    let begin = Instant::now();
    server.stop();
    let took = begin.elapsed();
    assert!(took < Duration::from_secs(2), "{took:?}");
    drop(scanners);
}
