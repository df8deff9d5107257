//! What a walk holds does not grow with values that it does not return.
#![cfg(target_os = "linux")]

mod common;

use common::{Client, start};
use ordna_server::Config;

/// Memory of this process in KiB, by its name in `/proc`. The server runs in it, nothing else does.
fn memory(name: &str) -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn walks_do_not_copy_values_that_nobody_sees() {
    const VALUES: usize = 64;
    let server = start(Config::default());
    let mut client = Client::new(server.address);
    let value = vec![b'v'; 1 << 20];
    for at in 0..VALUES {
        assert_eq!(client.ask(&[b"SET", format!("k{at:02}").as_bytes(), &value]), r"+OK\r\n");
    }
    let lines = [
        "ORDNA.COUNT - +",
        "KEYS *9",
        "SCAN 0 COUNT 1000",
        "ORDNA.RANGE - + KEYS",
        "ORDNA.RANGE - + REV LIMIT 2 KEYS",
        "ORDNA.DELRANGE - +",
    ];
    for line in lines {
        // From now on the peak is that of this command.
        std::fs::write("/proc/self/clear_refs", "5").unwrap();
        let before = memory("VmRSS:");
        let reply = client.say(line);
        assert!(!reply.starts_with('-'), "{line}: {reply}");
        let grown = memory("VmHWM:").saturating_sub(before);
        assert!(grown < (VALUES << 10) / 4, "{line} took {grown} KiB");
    }
}
