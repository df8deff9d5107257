//! Tests of what monitoring reads about the log, the backups and the indexes: `/metrics`,
//! `/readyz`, `INFO`.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use ordna_server::{Config, LogSync};

use crate::common::{Client, spawn, start};
use crate::state::operation::page;
use crate::state::persistence::{Dir, loaded, say};

/// Returns the value of a sample of `/metrics`.
fn sample(text: &str, name: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
    line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
}

#[test]
fn the_log_and_the_backups_are_reported() {
    let dir = Dir::new("monitored");
    let metrics = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    let config = || Config { metrics, ..dir.config(LogSync::Always) };
    let mut server = start(config());
    let mut client = loaded(&server);
    (0..10).for_each(|key| drop(say(&mut client, &format!("SET key:{key} 1"))));
    let text = page(server.metrics.unwrap(), "/metrics");
    assert_eq!(sample(&text, "ordna_log_failed"), 0.0);
    assert_eq!(sample(&text, "ordna_log_failures_total"), 0.0);
    assert_eq!(sample(&text, "ordna_log_unsynced_bytes"), 0.0);
    assert!(sample(&text, "ordna_log_bytes_since_backup") > 50.0);
    let syncs = sample(&text, "ordna_log_sync_duration_seconds_count");
    assert!(syncs >= 10.0, "each write is synced: {syncs}");
    let bucket = "ordna_log_sync_duration_seconds_bucket{le=\"+Inf\"}";
    assert_eq!(sample(&text, bucket), syncs);
    assert!(sample(&text, "ordna_log_sync_duration_seconds_sum") > 0.0);
    assert!(!text.contains("ordna_backup_age_seconds"), "there is none");
    let info = say(&mut client, "INFO persistence");
    for field in ["ordna_backup_age_sec:-1", "ordna_log_failures:0", "ordna_loaded_log_cuts:0"] {
        assert!(info.contains(field), "{field} in {info}");
    }
    assert!(!info.contains("ordna_log_fsync_usec_p99:0 "), "{info}");

    assert_eq!(say(&mut client, "SAVE"), "+OK");
    let text = page(server.metrics.unwrap(), "/metrics");
    assert_eq!(sample(&text, "ordna_log_bytes_since_backup"), 0.0);
    assert_eq!(sample(&text, "ordna_backups_total"), 1.0);
    assert_eq!(sample(&text, "ordna_backup_last_failed"), 0.0);
    assert!((0.0..20.0).contains(&sample(&text, "ordna_backup_age_seconds")));
    assert!(sample(&text, "ordna_backup_last_bytes") > 100.0);

    // The start truncates a torn log.
    say(&mut client, "SET key 1");
    server.stop();
    let files = std::fs::read_dir(&dir.0).unwrap().map(|entry| entry.unwrap().path());
    let is_segment =
        |path: &std::path::PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with("log-");
    let newest = files.filter(is_segment).max().unwrap();
    let mut file = std::fs::OpenOptions::new().append(true).open(newest).unwrap();
    file.write_all(&[7; 100]).unwrap();
    let server = start(config());
    let mut client = loaded(&server);
    let text = page(server.metrics.unwrap(), "/metrics");
    assert_eq!(sample(&text, "ordna_log_truncations"), 1.0, "{text}");
    assert_eq!(sample(&text, "ordna_log_truncated_bytes"), 100.0);
    assert!((0.0..60.0).contains(&sample(&text, "ordna_backup_age_seconds")), "the loaded one");
    let info = say(&mut client, "INFO persistence");
    for field in ["ordna_loaded_log_cuts:1", "ordna_loaded_log_dropped_bytes:100"] {
        assert!(info.contains(field), "{field} in {info}");
    }
    assert!(info.contains("ordna_loaded_log_durable_cuts:0"), "{info}");
}

#[test]
fn a_server_that_refuses_writes_is_not_ready() {
    let dir = Dir::new("unready");
    // Another process could take the port before the server does. The test would then fail.
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let port = free.port();
    let server = spawn(&format!("file_bytes=20000 metrics={port} dir={}", dir.0.display()));
    let mut client = Client::new(server.address);
    while say(&mut client, "SET a 1") != "+OK" {}
    assert!(page(free, "/readyz").ends_with("\r\n\r\nready\n"));
    client.ask(&[b"SET", b"b", &[b'x'; 40_000]]);
    assert!(say(&mut client, "SET a 2").starts_with("-MISCONF"));
    let reply = page(free, "/readyz");
    assert!(reply.starts_with("HTTP/1.1 503"), "{reply}");
    assert!(reply.contains("\r\n\r\nwrites are refused: "), "{reply}");
    let text = page(free, "/metrics");
    assert_eq!(sample(&text, "ordna_log_failed"), 1.0);
    assert!(sample(&text, "ordna_log_failures_total") >= 1.0);
}

#[test]
fn indexes_are_reported() {
    let metrics = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    let server = start(Config { metrics, ..Config::default() });
    let mut client = Client::new(server.address);
    assert!(say(&mut client, "INFO indexes").contains("indexes:0 "));
    say(&mut client, "HSET doc:1 a 1");
    assert_eq!(say(&mut client, "ORDNA.INDEX CREATE by_a ON doc: PARTS a"), "+OK");
    say(&mut client, "HSET doc:2 a 2");
    let begin = Instant::now();
    loop {
        let info = say(&mut client, "INFO indexes");
        let text = page(server.metrics.unwrap(), "/metrics");
        if info.contains("index_entries:2 index_lag_changes:0") {
            assert!(info.contains("indexes:1 indexes_building:0 indexes_failed:0"), "{info}");
            assert_eq!(sample(&text, "ordna_index_lag_changes"), 0.0);
            let state = text.lines().filter(|line| line.starts_with("ordna_index_state{"));
            assert!(state.clone().all(|line| line.ends_with("state=\"ready\"} 1")), "{text}");
            assert_eq!(state.count(), 1);
            return;
        }
        assert!(begin.elapsed() < Duration::from_secs(20), "{info}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn connections_that_send_half_a_request_or_read_nothing_keep_no_probe_out() {
    let metrics = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    let server = start(Config { metrics, ..Config::default() });
    let address = server.metrics.unwrap();
    let half = b"GET /readyz HTTP/1.1\r\nHost: loc".to_vec();
    // More replies than both sockets hold.
    let unread = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(1000);
    for bytes in [half, unread] {
        let connect = || {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            stream.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
            // The server stops reading from a client that reads nothing.
            let _ = stream.write_all(&bytes);
            stream
        };
        let mut idle: Vec<TcpStream> = (0..80).map(|_| connect()).collect();
        for _ in 0..5 {
            let asked = Instant::now();
            let reply = page(address, "/readyz");
            assert!(reply.ends_with("\r\n\r\nready\n"), "{reply}");
            assert!(asked.elapsed() < Duration::from_secs(5), "{:?}", asked.elapsed());
        }
        // The oldest connection was closed in favour of a newer one.
        let _ = idle[0].read_to_end(&mut Vec::new()).map_err(|error| {
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
        });
    }
}
