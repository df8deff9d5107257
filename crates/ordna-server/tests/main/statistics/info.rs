//! Tests of INFO while other clients run commands.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::{Client, start};
use ordna_server::Config;

/// INFO reports long scans, during which other clients run commands, until they end.
#[test]
fn info_tells_of_long_scans() {
    let server = start(Config::default());
    let mut client = Client::new(server.address);
    let words: Vec<Vec<u8>> = (0..20_000).map(|n| format!("key{n}").into_bytes()).collect();
    for words in words.chunks(1000) {
        let mut command: Vec<&[u8]> = vec![b"MSET"];
        command.extend(words.iter().flat_map(|key| [key.as_slice(), b"value"]));
        assert_eq!(client.ask(&command), r"+OK\r\n");
    }
    let told = |client: &mut Client, name: &str| {
        let info = client.say("INFO snapshots");
        let (_, rest) = info.split_once(&format!("{name}:")).unwrap();
        rest.split_once('\\').unwrap().0.parse::<usize>().unwrap()
    };
    assert_eq!(told(&mut client, "long_scans"), 0);
    let seen = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut scanner = Client::new(server.address);
            let give_up = Instant::now() + Duration::from_secs(20);
            while !seen.load(Ordering::Relaxed) && Instant::now() < give_up {
                assert_eq!(scanner.say("ORDNA.COUNT - +"), r":20000\r\n");
            }
        });
        let give_up = Instant::now() + Duration::from_secs(20);
        while !seen.load(Ordering::Relaxed) && Instant::now() < give_up {
            let under_way = told(&mut client, "long_scans");
            assert!(under_way <= 1, "there is one at a time");
            seen.store(under_way == 1, Ordering::Relaxed);
        }
    });
    assert!(seen.into_inner(), "no scan was ever reported");
    for name in ["long_scans", "oldest_long_scan_seconds", "scans_reading"] {
        assert_eq!(told(&mut client, name), 0, "{name}");
    }
}

/// Loaded scripts use memory before any of them has run.
#[test]
fn info_tells_of_the_memory_of_scripts() {
    let server = start(Config::default());
    let mut client = Client::new(server.address);
    let told = |client: &mut Client, name: &str| {
        let info = client.say("INFO memory");
        let (_, rest) = info.split_once(&format!("{name}:")).expect(name);
        rest.split_once('\\').unwrap().0.parse::<usize>().unwrap()
    };
    let text = format!("return '{}'", "x".repeat(500_000));
    for script in [&text, &text.replace('x', "y")] {
        assert!(client.ask(&[b"SCRIPT", b"LOAD", script.as_bytes()]).starts_with("$40"));
    }
    assert_eq!(told(&mut client, "number_of_cached_scripts"), 2);
    let lua = told(&mut client, "used_memory_vm_total");
    assert!(lua > 1_000_000, "two constants of 500,000 bytes: {lua}");
    let texts = told(&mut client, "used_memory_scripts_eval");
    assert_eq!(texts, 2 * text.len());
    assert_eq!(told(&mut client, "used_memory_scripts"), lua + texts);
    assert_eq!(client.say("SCRIPT FLUSH"), r"+OK\r\n");
    let left = told(&mut client, "used_memory_scripts");
    assert!(left < 1_000_000, "{left}");
}
