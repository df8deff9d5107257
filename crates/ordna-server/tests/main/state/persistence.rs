//! Tests of the data directory over the wire: nothing acknowledged is lost, and transactions are
//! atomic.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ordna::durability::Compression;
use ordna_server::{Config, DataConfig, LogSync};

use crate::common::{Client, Running, request, show, spawn, start, wait_for_directory};
use crate::state::operation::page;

/// A data directory that is removed on drop.
pub struct Dir(pub PathBuf);

impl Dir {
    pub fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("ordna-server-{name}-{}", std::process::id()));
        // A failed test may have left the directory.
        let _ = std::fs::remove_dir_all(&dir);
        Self(dir)
    }

    pub fn config(&self, log: LogSync) -> Config {
        let data = DataConfig { log, ..DataConfig::new(self.0.clone()) };
        Config { data: Some(data), ..Config::default() }
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns the reply without line ends.
pub fn say(client: &mut Client, line: &str) -> String {
    client.say(line).replace("\\r\\n", " ").trim_end().to_owned()
}

/// Returns a client of a server that has finished loading.
pub fn loaded(server: &Running) -> Client {
    let mut client = Client::new(server.address);
    let begin = Instant::now();
    while say(&mut client, "DBSIZE").starts_with("-LOADING") {
        assert!(begin.elapsed() < Duration::from_secs(20), "it loads for too long");
        std::thread::sleep(Duration::from_millis(2));
    }
    client
}

fn field(client: &mut Client, name: &str) -> String {
    let info = say(client, "INFO persistence");
    let start = info.find(&format!("{name}:")).unwrap_or_else(|| panic!("no {name} in {info}"));
    let rest = &info[start + name.len() + 1..];
    rest[..rest.find(' ').unwrap_or(rest.len())].to_owned()
}

fn wait_for_backup(client: &mut Client) {
    while field(client, "rdb_bgsave_in_progress") == "1" {
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn what_was_acknowledged_is_there_after_a_restart() {
    for log in [LogSync::Always, LogSync::EverySecond] {
        let dir = Dir::new(&format!("restart-{log:?}"));
        let mut server = start(dir.config(log));
        let mut client = loaded(&server);
        assert_eq!(say(&mut client, "SET a 1"), "+OK");
        assert_eq!(say(&mut client, "SET gone 1 PX 1"), "+OK");
        assert_eq!(say(&mut client, "SET late 1 EX 1000"), "+OK");
        assert_eq!(say(&mut client, "PERSIST late"), ":1");
        assert_eq!(say(&mut client, "MSET b 2 c 3"), "+OK");
        assert_eq!(say(&mut client, "DEL b nothing"), ":1");
        assert_eq!(say(&mut client, "SAVE"), "+OK");
        assert_eq!(say(&mut client, "MULTI"), "+OK");
        say(&mut client, "INCR a");
        say(&mut client, "SET d 4 EX 1000");
        say(&mut client, "EXEC");
        assert_eq!(say(&mut client, "BGSAVE"), "+Background saving started");
        wait_for_backup(&mut client);
        assert_eq!(field(&mut client, "rdb_last_bgsave_status"), "ok");
        assert_eq!(field(&mut client, "rdb_saves"), "2");
        assert_eq!(say(&mut client, "APPEND a x"), ":2");
        server.stop();
        let server = start(dir.config(log));
        let mut client = loaded(&server);
        let found = ["GET a", "GET b", "GET c", "GET gone", "TTL late", "DBSIZE"];
        let found: Vec<String> = found.iter().map(|line| say(&mut client, line)).collect();
        assert_eq!(found, ["$2 2x", "$-1", "$1 3", "$-1", ":-1", ":4"], "{log:?}");
        assert!(say(&mut client, "LASTSAVE").starts_with(':'));
    }
}

#[test]
fn a_flush_is_logged_even_inside_a_transaction() {
    let dir = Dir::new("flush");
    let mut server = start(dir.config(LogSync::Always));
    let mut client = loaded(&server);
    for line in [
        "SET a 1", "FLUSHALL", "SET b 2", "MULTI", "SET c 3", "FLUSHALL", "SET d 4", "EXEC",
        "SET e 5",
    ] {
        say(&mut client, line);
    }
    server.stop();
    let server = start(dir.config(LogSync::Always));
    let mut client = loaded(&server);
    assert_eq!(say(&mut client, "EXISTS a b c"), ":0");
    assert_eq!(say(&mut client, "EXISTS d e"), ":2");
}

/// The backup begins on a separate thread, possibly after the flush.
#[test]
fn a_flush_beside_the_beginning_of_a_backup_stays_a_flush() {
    for round in 0..20 {
        let dir = Dir::new(&format!("flush-backup-{round}"));
        let mut server = start(dir.config(LogSync::Always));
        let mut client = loaded(&server);
        assert_eq!(say(&mut client, "SET old 1"), "+OK");
        let lines: [&[&[u8]]; 3] = [&[b"BGSAVE"], &[b"FLUSHALL"], &[b"SET", b"new", b"1"]];
        client.send(&lines.map(request).concat());
        assert!(show(&client.reply()).starts_with("+Background saving started"));
        assert!(show(&client.reply()).starts_with("+OK"));
        assert!(show(&client.reply()).starts_with("+OK"));
        wait_for_backup(&mut client);
        assert_eq!(field(&mut client, "rdb_last_bgsave_status"), "ok");
        assert_eq!(field(&mut client, "rdb_saves"), "1");
        server.stop();
        let server = start(dir.config(LogSync::Always));
        let mut client = loaded(&server);
        assert_eq!(say(&mut client, "EXISTS old"), ":0", "round {round}");
        assert_eq!(say(&mut client, "EXISTS new"), ":1", "round {round}");
    }
}

#[test]
fn without_a_directory_there_is_nothing_to_save_to() {
    let server = start(Config::default());
    let mut client = Client::new(server.address);
    for command in ["SAVE", "BGSAVE", "BGREWRITEAOF"] {
        assert!(
            say(&mut client, command).starts_with("-ERR this server keeps its keys in memory only")
        );
    }
    assert_eq!(field(&mut client, "aof_enabled"), "0");
}

#[test]
fn a_pipeline_under_always_is_answered_in_order_and_durable() {
    let dir = Dir::new("pipeline");
    let server = start(dir.config(LogSync::Always));
    let mut client = loaded(&server);
    let mut batch = Vec::new();
    for number in 0..500 {
        let key = format!("k{number}");
        batch.extend(request(&[b"SET", key.as_bytes(), b"v"]));
        batch.extend(request(&[b"GET", key.as_bytes()]));
    }
    client.send(&batch);
    for _ in 0..500 {
        assert!(show(&client.reply()).starts_with("+OK"));
        assert!(show(&client.reply()).contains('v'));
    }
    assert_eq!(
        field(&mut client, "ordna_log_durable_position"),
        field(&mut client, "ordna_log_position")
    );
}

#[test]
fn a_server_that_loads_says_so() {
    let dir = Dir::new("loads");
    let server = spawn(&format!("dir={}", dir.0.display()));
    let mut client = Client::new(server.address);
    while say(&mut client, "DBSIZE") != ":0" {}
    for from in (0..300_000).step_by(1000) {
        let pairs = (from..from + 1000).map(|n| format!(" key:{n:09} value"));
        assert_eq!(say(&mut client, &format!("MSET{}", pairs.collect::<String>())), "+OK");
    }
    drop(server);
    let metrics = Some(([127, 0, 0, 1], 0).into());
    let server = start(Config { metrics, ..dir.config(LogSync::Never) });
    let metrics = server.metrics.unwrap();
    assert!(page(metrics, "/readyz").starts_with("HTTP/1.1 503"));
    let mut client = Client::new(server.address);
    assert!(say(&mut client, "PING").starts_with("-LOADING"));
    let mut info = say(&mut client, "INFO persistence");
    // Waits until the files are listed.
    while info.contains("loading_total_bytes:0 ") {
        info = say(&mut client, "INFO persistence");
    }
    let field = |name: &str| -> f64 {
        let (_, rest) = info.split_once(&format!("{name}:")).unwrap_or_else(|| panic!("{info}"));
        rest.split(' ').next().unwrap().parse().unwrap()
    };
    // 300,000 keys of 13 bytes each.
    assert!(field("loading_total_bytes") > 3_900_000.0, "{info}");
    assert!(field("loading_loaded_perc") <= 100.0, "{info}");
    let mut client = loaded(&server);
    assert_eq!(say(&mut client, "DBSIZE"), ":300000");
    assert_eq!(say(&mut client, "PING"), "+PONG");
    assert!(page(metrics, "/readyz").ends_with("ready\n"));
}

/// If the log cannot grow, writes are refused, but reads continue.
#[test]
fn a_failed_log_refuses_writes_only() {
    let dir = Dir::new("failed-log");
    let server = spawn(&format!("file_bytes=20000 dir={}", dir.0.display()));
    let mut client = Client::new(server.address);
    while say(&mut client, "SET a 1") != "+OK" {}
    client.ask(&[b"SET", b"b", &[b'x'; 40_000]]);
    let transaction = |client: &mut Client, lines: &[&str]| {
        ["MULTI"].iter().chain(lines).for_each(|line| drop(say(client, line)));
        say(client, "EXEC")
    };
    assert!(say(&mut client, "SET a 2").starts_with("-MISCONF"));
    assert!(transaction(&mut client, &["GET a", "SET a 2"]).starts_with("-MISCONF"));
    assert!(transaction(&mut client, &["GETEX a PERSIST"]).starts_with("-MISCONF"));
    assert!(say(&mut client, "GETEX a EX 9").starts_with("-MISCONF"));
    assert_eq!(say(&mut client, "GETEX a"), "$1 1");
    assert_eq!(transaction(&mut client, &["GET a", "GETEX a"]), "*2 $1 1 $1 1");
}

/// A small separate file system, which is unmounted on drop.
struct Mount(Dir);

impl Mount {
    /// Mounts a file system. Returns `None` if this process has no permission to mount.
    fn new(name: &str, megabytes: usize) -> Option<Self> {
        let dir = Dir::new(name);
        std::fs::create_dir_all(&dir.0).unwrap();
        let size = format!("size={megabytes}m");
        let mount = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", &size, "tmpfs"])
            .arg(&dir.0)
            .stderr(std::process::Stdio::null())
            .status();
        mount.is_ok_and(|status| status.success()).then(|| Self(dir))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(&self.0.0).status();
    }
}

/// The log fills the disk. Its reserve lets it continue, and a backup frees the space of the log.
#[test]
fn a_full_disk_heals_without_an_operator() {
    let Some(mount) = Mount::new("full-disk", 64) else {
        eprintln!("skipped: this process may not mount a file system");
        return;
    };
    let mut server = start(mount.0.config(LogSync::Always));
    let mut client = loaded(&server);
    let (value, mut refused, mut last) = ([b'x'; 100_000], 0, 0);
    let begin = Instant::now();
    for number in 0_u64.. {
        let text = number.to_string();
        let value = [text.as_bytes(), b" ", &value].concat();
        if client.ask(&[b"SET", b"key", &value]).starts_with("+OK") {
            last = number;
            if refused > 0 && field(&mut client, "rdb_saves") != "0" {
                break;
            }
        } else {
            refused += 1;
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "{refused} writes refused");
    }
    let found = client.ask(&[b"GETRANGE", b"key", b"0", b"19"]);
    server.stop();
    let server = start(mount.0.config(LogSync::Always));
    let mut client = loaded(&server);
    assert_eq!(client.ask(&[b"GETRANGE", b"key", b"0", b"19"]), found);
    assert!(found.contains(&format!("{last} ")));
    drop(client);
    drop(server);
}

/// Only the changed bytes of a long value are logged, even if they include the first one.
#[test]
fn writes_within_a_long_value_log_what_they_write() {
    let dir = Dir::new("within");
    let mut server = start(dir.config(LogSync::EverySecond));
    let mut client = loaded(&server);
    client.ask(&[b"SET", b"long", &[b'x'; 100_000]]);
    let position = |client: &mut Client| field(client, "ordna_log_position").parse().unwrap();
    let before: usize = position(&mut client);
    for number in 0..20 {
        say(&mut client, &format!("SETBIT long 3 {}", number % 2));
        say(&mut client, &format!("SETRANGE long 0 {number}"));
        say(&mut client, &format!("BITFIELD long SET u8 0 65 INCRBY u8 #50 {number}"));
    }
    let after: usize = position(&mut client);
    assert!(after - before < 20_000, "{} bytes", after - before);
    // The first byte of a hash's encoding is written and read as a string.
    for first in [0_u8, 0xC1, 0xC1, b'y', 0xC1] {
        client.ask(&[b"SETRANGE", b"long", b"0", &[first, 1, first]]);
        let number = usize::from(first).to_string();
        let begin = client.ask(&[b"BITFIELD", b"long", b"GET", b"u8", b"0"]);
        assert_eq!(begin, format!(r"*1\r\n:{number}\r\n"));
    }
    let value = client.ask(&[b"GET", b"long"]);
    server.stop();
    let server = start(dir.config(LogSync::EverySecond));
    assert_eq!(loaded(&server).ask(&[b"GET", b"long"]), value);
}

#[test]
fn a_damaged_directory_stops_the_server_with_its_name() {
    let dir = Dir::new("damaged");
    let mut server = start(dir.config(LogSync::Always));
    let mut client = loaded(&server);
    say(&mut client, "SET a 1");
    say(&mut client, "SAVE");
    server.stop();
    let shard = find(&dir.0, "shard-0000");
    let mut bytes = std::fs::read(&shard).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&shard, bytes).unwrap();
    wait_for_directory(&dir.0);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let failed = runtime.block_on(async {
        let bind = vec![([127, 0, 0, 1], 0).into()];
        let config = Config { bind, ..dir.config(LogSync::Always) };
        let server = ordna_server::Server::bind(config).await.unwrap();
        server.run(std::future::pending()).await.unwrap_err()
    });
    let text = failed.to_string();
    assert!(text.contains("shard-0000: damaged at byte"), "{text}");
}

fn find(dir: &Path, name: &str) -> PathBuf {
    let mut open = vec![dir.to_owned()];
    while let Some(dir) = open.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else if path.ends_with(name) {
                return path;
            }
        }
    }
    panic!("no {name}");
}

#[test]
fn a_long_log_is_backed_up_and_as_many_backups_are_kept_as_asked() {
    let dir = Dir::new("long-log");
    let data = DataConfig {
        backup_log: 2000,
        keep: 2,
        compression: Compression::Lz4,
        ..DataConfig::new(dir.0.clone())
    };
    let config = Config { data: Some(data), ..Config::default() };
    let mut server = start(config.clone());
    let mut client = loaded(&server);
    for saves in 1..=3 {
        for number in 0..100 {
            say(&mut client, &format!("SET k{number} a-value-of-some-length-{saves}"));
        }
        let begin = Instant::now();
        while field(&mut client, "rdb_saves") != saves.to_string() {
            assert!(begin.elapsed() < Duration::from_secs(20), "no backup {saves}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    server.stop();
    let names = std::fs::read_dir(&dir.0).unwrap().map(|entry| entry.unwrap().file_name());
    let backups = names.filter(|name| name.to_str().unwrap().starts_with("backup-")).count();
    assert_eq!(backups, 2);
    let server = start(config);
    let mut client = loaded(&server);
    assert_eq!(say(&mut client, "DBSIZE"), ":100");
    assert_eq!(say(&mut client, "GET k7"), "$24 a-value-of-some-length-3");
}

/// The removal takes several stretches. A kill right after the reply loses none of them.
#[test]
fn a_range_that_was_removed_stays_removed_after_a_kill() {
    for settings in ["", " always=1"] {
        let dir = Dir::new("killed");
        let settings = format!("dir={}{settings}", dir.0.display());
        for round in 0..4 {
            let child = spawn(&settings);
            let mut client = Client::new(child.address);
            while client.say("DBSIZE").contains("LOADING") {}
            assert_eq!(say(&mut client, "DBSIZE"), ":0", "round {round}");
            let keys: String = (0..1500).map(|n| format!(" key{n} 1")).collect();
            assert_eq!(say(&mut client, &format!("MSET{keys}")), "+OK");
            // The replies before and after it belong to their commands.
            client.send(b"PING\r\nORDNA.DELRANGE - +\r\nKEYS *\r\nPING\r\n");
            let replies: Vec<String> = (0..4).map(|_| show(&client.reply())).collect();
            let expected = [r"+PONG\r\n", r":1500\r\n", r"*0\r\n", r"+PONG\r\n"];
            assert_eq!(replies, expected, "round {round}");
        }
    }
}

/// The stop ends a script that has written. Neither the script nor its transaction has any effect.
#[test]
#[cfg(feature = "scripts")]
fn a_stop_keeps_no_half_of_a_script() {
    let dir = Dir::new("half-script");
    let config = dir.config(LogSync::Always);
    let mut server = start(config.clone());
    let mut client = loaded(&server);
    assert_eq!(say(&mut client, "MSET a 100 b 0 n 0"), "+OK");
    let script = b"redis.call('DECRBY', 'a', 30) while true do end";
    let requests = [
        request(&[b"MULTI"]),
        request(&[b"INCR", b"n"]),
        request(&[b"EVAL", script, b"0"]),
        request(&[b"INCR", b"n"]),
        request(&[b"EXEC"]),
    ];
    client.send(&requests.concat());
    std::thread::sleep(Duration::from_millis(300));
    server.stop();
    let server = start(config);
    let mut client = loaded(&server);
    assert_eq!(client.say("MGET a b n"), r"*3\r\n$3\r\n100\r\n$1\r\n0\r\n$1\r\n0\r\n");
}
