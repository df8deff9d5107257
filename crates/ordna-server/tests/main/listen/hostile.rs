//! Tests of hostile or defective clients: they send invalid requests, never read, never finish, or
//! connect and disconnect all the time. `cargo xtask wire` runs more of this.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ordna_server::Config;

use crate::common::{Client, Random, request, seconds, spawn, start};

/// Returns a request with random words, sometimes for a known command, sometimes invalid.
fn request_of(random: &mut Random, names: &[String]) -> Vec<u8> {
    const WORDS: [&[u8]; 24] = [
        b"key",
        b"key2",
        b"0",
        b"1",
        b"-1",
        b"9223372036854775807",
        b"536870912",
        b"x",
        b"",
        b"*",
        b"[a",
        b"(z",
        b"-",
        b"+",
        b"LIMIT",
        b"REV",
        b"COUNT",
        b"GET",
        b"SET",
        b"u8",
        b"EX",
        b"NX",
        b"\xFF\0\r\n",
        b"k61",
    ];
    let name = &names[random.below(names.len())];
    let mut words: Vec<&[u8]> = vec![name.as_bytes()];
    (0..random.below(6)).for_each(|_| words.push(WORDS[random.below(WORDS.len())]));
    let mut bytes = match random.below(8) {
        0 => [words.join(&b' '), b"\r\n".to_vec()].concat(),
        _ => request(&words),
    };
    if random.below(6) == 0 {
        for _ in 0..=random.below(3) {
            let at = random.below(bytes.len());
            match random.below(3) {
                0 => bytes[at] = random.below(256) as u8,
                1 => bytes.truncate(at.max(1)),
                _ => bytes.insert(at, b"*$\r\n-09"[random.below(7)]),
            }
        }
    }
    bytes
}

/// Commands that would stop the server, wait, or lock out the test's own clients.
const LEFT_OUT: [&str; 6] = ["shutdown", "acl", "auth", "config", "client", "monitor"];

#[test]
fn broken_requests_harm_nobody() {
    let server = start(Config { max_memory: Some(64 << 20), ..Config::default() });
    let mut witness = Client::new(server.address);
    let list = witness.say("COMMAND LIST");
    let names =
        list.split(r"\r\n").filter(|word| !word.starts_with(['$', '*']) && !word.is_empty());
    let names: Vec<String> =
        names.filter(|name| !LEFT_OUT.contains(name)).map(str::to_owned).collect();
    assert!(names.len() > 80, "{names:?}");
    let begin = Instant::now();
    let sent = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (names, sent, address) = (&names, &sent, server.address);
            scope.spawn(move || {
                let mut random = Random::new(thread + 1);
                let mut rounds = 0;
                while rounds < 100 || begin.elapsed() < seconds(2) {
                    let mut bytes = Vec::new();
                    while bytes.len() < 16 << 10 {
                        bytes.extend(request_of(&mut random, names));
                    }
                    sent.fetch_add(bytes.len(), Ordering::Relaxed);
                    let mut stream = TcpStream::connect(address).unwrap();
                    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
                    let mut reading = stream.try_clone().unwrap();
                    // The server may close the connection early; everything that it sends is read.
                    let reader = std::thread::spawn(move || {
                        let mut replies = Vec::new();
                        let _ = reading.read_to_end(&mut replies);
                        replies
                    });
                    for piece in bytes.chunks(1 + random.below(5000)) {
                        if stream.write_all(piece).is_err() {
                            break;
                        }
                    }
                    let _ = stream.shutdown(std::net::Shutdown::Write);
                    let replies = reader.join().unwrap();
                    assert!(replies.is_empty() || b"+-:$*%~_=".contains(&replies[0]));
                    rounds += 1;
                }
            });
        }
        let watch = scope.spawn(|| {
            while begin.elapsed() < seconds(2) {
                let asked = Instant::now();
                assert_eq!(witness.say("PING"), r"+PONG\r\n");
                assert!(asked.elapsed() < Duration::from_secs(5), "{:?}", asked.elapsed());
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        watch.join().unwrap();
    });
    println!("{} bytes of requests", sent.into_inner());
    assert_eq!(witness.say("PING"), r"+PONG\r\n");
}

#[test]
#[cfg(target_os = "linux")]
fn bad_clients_neither_fill_the_memory_nor_hold_others_up() {
    const LIMIT: usize = 32 << 20;
    let server = spawn(&format!("max_memory=200000000 clients_memory={LIMIT}"));
    let mut witness = Client::new(server.address);
    let value = vec![b'v'; 100_000];
    for n in 0..500 {
        assert_eq!(witness.ask(&[b"SET", format!("key{n}").as_bytes(), &value]), r"+OK\r\n");
    }
    let before = server.memory("VmRSS:");
    let stop = AtomicBool::new(false);
    let address = server.address;
    std::thread::scope(|scope| {
        // A client that never reads.
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let lazy: Vec<TcpStream> = (0..20)
                    .map(|_| {
                        let mut stream = TcpStream::connect(address).unwrap();
                        let _ = stream.write_all(&request(&[b"ORDNA.RANGE", b"-", b"+"]));
                        stream
                    })
                    .collect();
                std::thread::sleep(Duration::from_millis(200));
                drop(lazy);
            }
        });
        // A client that never finishes its request.
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let mut stream = TcpStream::connect(address).unwrap();
                let _ = stream.write_all(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$400000000\r\n");
                while stream.write_all(&[b'v'; 1 << 16]).is_ok() {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                }
            }
        });
        // Clients that connect and disconnect.
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let mut stream = TcpStream::connect(address).unwrap();
                let _ = stream.write_all(&request(&[b"ORDNA.SNAPSHOT", b"CREATE"]));
            }
        });
        let begin = Instant::now();
        let (mut asked, mut longest) = (0, Duration::ZERO);
        while begin.elapsed() < seconds(3) {
            let ask = Instant::now();
            let answer = witness.say("STRLEN key7");
            // Stops the other threads before this one fails.
            stop.store(answer != r":100000\r\n", Ordering::Relaxed);
            assert_eq!(answer, r":100000\r\n");
            longest = longest.max(ask.elapsed());
            asked += 1;
        }
        stop.store(true, Ordering::Relaxed);
        let grown = server.memory("VmHWM:").saturating_sub(before) << 10;
        println!("{asked} commands, the longest {longest:?}; {grown} bytes more");
        assert!(longest < Duration::from_secs(2), "{longest:?}");
        assert!(grown < 4 * LIMIT, "{grown} bytes more");
    });
    let give_up = Instant::now() + Duration::from_secs(20);
    while !witness.say("INFO snapshots").contains(r"snapshots_held:0\r\n") {
        assert!(Instant::now() < give_up, "snapshots of dead clients stay");
    }
}
