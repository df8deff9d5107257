//! Commands of one client that other clients must not wait for, and whose results must stay
//! consistent.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ordna_server::{Answer, Config, DataConfig, Extension};

use crate::common::{Client, fresh, request, start};

fn count_of(reply: &str) -> usize {
    reply.trim_start_matches(':').trim_end_matches(r"\r\n").parse().unwrap()
}

/// Indexes that take a long time for every command.
#[derive(Debug)]
struct Slow;

impl Extension for Slow {
    fn execute(&self, _: &[&[u8]]) -> Result<Answer, String> {
        std::thread::sleep(Duration::from_secs(4));
        Ok(Answer::Null)
    }

    fn info(&self) -> String {
        String::new()
    }

    fn metrics(&self) -> String {
        String::new()
    }

    fn console(&self) -> serde_json::Value {
        serde_json::Value::Null
    }
}

/// Tokio has 512 threads for blocking work, and a worker that blocks hands its place over to one of
/// them. If all of them are in use, the server does not respond.
#[test]
fn more_waiting_queries_than_threads_leave_the_server_responsive() {
    let config = Config { extension: Some(Arc::new(Slow)), max_clients: 2000, ..Config::default() };
    let server = start(config);
    let mut other = Client::new(server.address);
    let mut clients: Vec<_> = (0..600).map(|_| Client::new(server.address)).collect();
    for client in &mut clients {
        client.send(&request(&[b"ORDNA.NODE", b"x"]));
    }
    let end = Instant::now() + Duration::from_secs(3);
    while Instant::now() < end {
        let begin = Instant::now();
        assert_eq!(other.say("PING"), r"+PONG\r\n");
        assert!(begin.elapsed() < Duration::from_secs(2), "PING took {:?}", begin.elapsed());
        std::thread::sleep(Duration::from_millis(1));
    }
    for client in &mut clients {
        assert_eq!(client.reply(), b"$-1\r\n");
    }
}

/// The entries of all documents are removed at once, not one for each document and bucket.
#[test]
fn a_query_after_a_flush_does_not_wait_for_each_entry() {
    const DOCUMENTS: usize = 40_000;
    let (_server, mut client) = fresh();
    client.say("ORDNA.INDEX CREATE i ON d: PARTS s");
    let load = |client: &mut Client| {
        let mut all = Vec::new();
        for at in 0..DOCUMENTS {
            let (key, value) = (format!("d:{at}"), format!("value {}", at % 1000));
            all.extend(request(&[b"HSET", key.as_bytes(), b"s", value.as_bytes()]));
        }
        let begin = Instant::now();
        client.send(&all);
        (0..DOCUMENTS).for_each(|_| assert_eq!(client.reply(), b":1\r\n"));
        assert_eq!(count_of(&client.say("ORDNA.INDEX COUNT i")), DOCUMENTS);
        begin.elapsed()
    };
    load(&mut client);
    // One of three attempts suffices, because the machine may have other work.
    let quickest = (0..3).map(|_| {
        assert_eq!(client.say("FLUSHALL"), r"+OK\r\n");
        let begin = Instant::now();
        assert_eq!(client.say("ORDNA.INDEX COUNT i"), r":0\r\n");
        let took = begin.elapsed();
        (took.as_secs_f64() / load(&mut client).as_secs_f64(), took)
    });
    let (share, took) = quickest.min_by(|a, b| a.0.total_cmp(&b.0)).unwrap();
    assert!(share < 0.33, "{took:?}, {share} of the time of a load");
}

/// A query in a transaction must not wait long for an index, because all other clients wait as
/// well.
#[test]
fn a_transaction_does_not_wait_for_the_build_of_an_index() {
    const DOCUMENTS: usize = 100_000;
    let (server, mut client) = fresh();
    let mut all = Vec::new();
    for at in 0..DOCUMENTS {
        let (key, value) = (format!("d:{at}"), format!("{at}"));
        all.extend(request(&[b"HSET", key.as_bytes(), b"n", value.as_bytes(), b"m", b"1"]));
    }
    client.send(&all);
    (0..DOCUMENTS).for_each(|_| assert_eq!(client.reply(), b":2\r\n"));
    for line in [
        "MULTI",
        "FT.CREATE i ON HASH PREFIX 1 d: SCHEMA n NUMERIC m NUMERIC",
        "FT.SEARCH i @n:[5 6]",
        "ORDNA.INDEX CREATE j ON d: PARTS n m",
        "ORDNA.INDEX COUNT j",
    ] {
        assert!(client.say(line).starts_with('+'), "{line}");
    }
    client.send(&request(&[b"EXEC"]));
    std::thread::sleep(Duration::from_millis(20));
    let begin = Instant::now();
    assert_eq!(Client::new(server.address).say("GET x"), r"$-1\r\n");
    let took = begin.elapsed();
    let reply = client.reply();
    assert!(reply.starts_with(b"*4\r\n+OK\r\n"), "{}", crate::common::show(&reply));
    // Half a second for each query, and the build's own share of the machine.
    assert!(took < Duration::from_secs(2), "GET took {took:?}");
}

/// A DEL of many collections visits each of them once, and does not compare each with all others.
#[test]
fn a_removal_of_many_collections_costs_as_much_for_each() {
    const MANY: usize = 20_000;
    const FEW: usize = MANY / 16;
    let (_server, mut client) = fresh();
    let mut remove = |count: usize| {
        let keys: Vec<Vec<u8>> = (0..count).map(|at| format!("h{at}").into_bytes()).collect();
        // Fields that expire make a collection large.
        let make = |key: &Vec<u8>| {
            request(&[b"HSETEX", key, b"EX", b"10000", b"FIELDS", b"1", b"f", b"v"])
        };
        client.send(&keys.iter().flat_map(make).collect::<Vec<u8>>());
        keys.iter().for_each(|_| assert_eq!(client.reply(), b":1\r\n"));
        let words = [&b"DEL"[..]].into_iter().chain(keys.iter().map(Vec::as_slice));
        let words: Vec<&[u8]> = words.collect();
        let begin = Instant::now();
        assert_eq!(count_of(&client.ask(&words)), count);
        begin.elapsed().as_secs_f64()
    };
    // One of three attempts suffices, because the machine may have other work.
    let mut ratio = || remove(MANY) / remove(FEW);
    let ratios: Vec<f64> = (0..3).map(|_| ratio()).take_while(|ratio| *ratio > 40.0).collect();
    assert!(ratios.len() < 3, "{ratios:?} times as long for 16 times as many");
}

/// Peers that request pages and do not read them occupy connections only for a while.
#[test]
fn peers_that_read_no_page_give_up_their_places() {
    let config = Config {
        metrics: Some(SocketAddr::from(([127, 0, 0, 1], 0))),
        stall: Duration::from_millis(500),
        ..Config::default()
    };
    let server = start(config);
    let address = server.metrics.unwrap();
    let requests = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(2000);
    let peers: Vec<TcpStream> = (0..64)
        .map(|_| {
            let mut peer = TcpStream::connect(address).unwrap();
            peer.set_write_timeout(Some(Duration::from_millis(10))).unwrap();
            // The server accepts only a part of the requests.
            let _ = peer.write_all(&requests);
            peer
        })
        .collect();
    let mut health = TcpStream::connect(address).unwrap();
    health.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    health.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut reply = [0; 12];
    health.read_exact(&mut reply).expect("a place becomes free");
    assert_eq!(&reply, b"HTTP/1.1 200");
    drop(peers);
}

/// SAVE blocks only its own client, and not the clients that need only the keyspace.
#[test]
fn a_backup_in_the_foreground_holds_up_nobody_else() {
    let dir = std::env::temp_dir().join(format!("ordna-server-save-{}", std::process::id()));
    // A failed test may have left the directory.
    let _ = std::fs::remove_dir_all(&dir);
    let server = start(Config { data: Some(DataConfig::new(dir.clone())), ..Config::default() });
    let (mut saver, mut other) = (Client::new(server.address), Client::new(server.address));
    while saver.say("PING") != r"+PONG\r\n" {
        std::thread::sleep(Duration::from_millis(2));
    }
    let piece: Vec<u8> =
        (0..1_u32 << 18).flat_map(|n| (n.wrapping_mul(n) >> 7).to_le_bytes()).collect();
    for at in 0..150 {
        let reply = saver.ask(&[b"SET", format!("k{at}").as_bytes(), &piece]);
        assert_eq!(reply, r"+OK\r\n");
    }
    let over = AtomicBool::new(false);
    let (took, waits) = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut waits = Vec::new();
            while !over.load(Ordering::Relaxed) {
                let begin = Instant::now();
                assert_eq!(other.say("MSET x 1 y 2"), r"+OK\r\n");
                waits.push(begin.elapsed());
            }
            waits
        });
        let begin = Instant::now();
        assert_eq!(saver.say("SAVE"), r"+OK\r\n");
        let took = begin.elapsed();
        over.store(true, Ordering::Relaxed);
        (took, writer.join().unwrap())
    });
    drop(server);
    // The files are removed even if other threads still write to them.
    let _ = std::fs::remove_dir_all(&dir);
    let longest = waits.into_iter().max().unwrap();
    assert!(longest < took / 2, "MSET took {longest:?} beside a SAVE of {took:?}");
}
