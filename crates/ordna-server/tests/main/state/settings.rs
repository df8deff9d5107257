//! Tests of `CONFIG SET` and `CONFIG REWRITE`.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ordna_server::{Config, DataConfig, LogLevelSwitch, LogSync};

use crate::common::{Client, converse, start};

/// Returns a path in the directory for temporary files that no other test uses.
fn temporary(name: &str) -> PathBuf {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("ordna-settings-{}-{number}-{name}", std::process::id()))
}

/// Returns the values that `CONFIG GET` lists.
fn values(client: &mut Client, pattern: &str) -> Vec<String> {
    let reply = client.say(&format!("CONFIG GET {pattern}"));
    let words = reply.split(r"\r\n").skip(1).collect::<Vec<_>>();
    words.chunks_exact(4).map(|pair| pair[3].to_owned()).collect()
}

fn value(client: &mut Client, name: &str) -> String {
    values(client, name).pop().unwrap_or_default()
}

fn wait_until_loaded(client: &mut Client) {
    while client.say("GET nothing").starts_with("-LOADING") {
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn refused(name: &str, why: &str) -> String {
    format!(r"-ERR CONFIG SET failed (possibly related to argument '{name}') - {why}\r\n")
}

#[test]
fn a_value_in_force_is_never_an_error() {
    let dir = temporary("same");
    for data in [None, Some(DataConfig::new(dir.clone()))] {
        let server = start(Config { data, ..Config::default() });
        let mut client = Client::new(server.address);
        wait_until_loaded(&mut client);
        let reply = client.ask(&[b"CONFIG", b"GET", b"*"]);
        let words: Vec<_> = reply.split(r"\r\n").skip(1).collect();
        let pairs = words.chunks_exact(4).map(|pair| (pair[1], pair[3]));
        let mut request: Vec<&[u8]> = vec![b"CONFIG", b"SET"];
        for (name, value) in pairs {
            let set = [b"CONFIG".as_slice(), b"SET", name.as_bytes(), value.as_bytes()];
            assert_eq!(client.ask(&set), r"+OK\r\n", "{name} {value}");
            request.extend([name.as_bytes(), value.as_bytes()]);
        }
        assert!(request.len() > 80, "{}", request.len());
        assert_eq!(client.ask(&request), r"+OK\r\n", "all at once");
        assert_eq!(client.ask(&[b"CONFIG", b"GET", b"*"]), reply, "nothing changed");
        for set in ["hz 1", "MAXMEMORY-policy noeviction", "maxmemory 0b", "databases 1"] {
            assert_eq!(client.say(&format!("CONFIG SET {set}")), r"+OK\r\n");
        }
    }
    std::fs::remove_dir_all(dir).unwrap();
}

/// The settings of the size up to which `OBJECT ENCODING` reports a compact form have the values of
/// Redis and cannot be changed.
#[test]
fn the_sizes_of_small_collections_are_shown() {
    let server = start(Config::default());
    let mut client = Client::new(server.address);
    for (name, expected) in [
        ("hash-max-listpack-entries", "512"),
        ("zset-max-listpack-entries", "128"),
        ("zset-max-listpack-value", "64"),
        ("zset-max-ziplist-entries", "128"),
        ("zset-max-ziplist-value", "64"),
        ("set-max-intset-entries", "512"),
        ("list-max-listpack-size", "-2"),
        ("list-max-ziplist-size", "-2"),
        ("list-compress-depth", "0"),
    ] {
        assert_eq!(value(&mut client, name), expected, "{name}");
        assert_eq!(client.say(&format!("CONFIG SET {name} {expected}")), r"+OK\r\n");
        let reply = client.say(&format!("CONFIG SET {name} 7"));
        assert!(reply.ends_with(r"can't set immutable config\r\n"), "{reply}");
    }
}

#[test]
fn the_time_of_a_script_has_two_names() {
    let server = start(Config::default());
    let mut client = Client::new(server.address);
    for (set, other) in
        [("lua-time-limit", "busy-reply-threshold"), ("busy-reply-threshold", "lua-time-limit")]
    {
        let time = set.len().to_string();
        assert_eq!(client.say(&format!("CONFIG SET {set} {time}")), r"+OK\r\n");
        assert_eq!([value(&mut client, set), value(&mut client, other)], [time.clone(), time]);
    }
}

#[test]
fn all_pairs_are_set_or_none() {
    let server = start(Config::default());
    let mut client = Client::new(server.address);
    let set = |client: &mut Client, pairs: &str| client.say(&format!("CONFIG SET {pairs}"));
    for (pairs, name, why) in [
        ("timeout 7 port 1", "port", "can't set immutable config"),
        ("timeout 7 TIMEOUT 7", "TIMEOUT", "duplicate parameter"),
        ("timeout 7 maxmemory x", "maxmemory", "argument must be a memory value"),
        ("timeout 7 maxmemory -1", "maxmemory", "argument must be a memory value"),
        ("timeout 7 save 900", "save", "Invalid save parameters"),
        (
            "timeout 7 appendfsync often",
            "appendfsync",
            "argument(s) must be one of the following: everysec, always, no",
        ),
        (
            "timeout 7 appendfsync always",
            "appendfsync",
            "this server keeps its keys in memory only; start it with --dir",
        ),
        (
            "timeout 7 loglevel loud",
            "loglevel",
            "argument(s) must be one of the following: debug, verbose, notice, warning",
        ),
        (
            "timeout 7 notify-keyspace-events KEq",
            "notify-keyspace-events",
            "Invalid event class character. Use 'Ag$lshzxeKEtmdn'.",
        ),
        (
            "timeout 7 maxmemory-clients 101%",
            "maxmemory-clients",
            "percentage argument must be less or equal to 100",
        ),
        (
            "timeout 7 maxmemory-clients x",
            "maxmemory-clients",
            "argument must be a memory or percent value",
        ),
    ] {
        let reply = set(&mut client, pairs);
        assert_eq!(reply.replace(r#"\""#, "\""), refused(name, why).replace(r#"\""#, "\""));
        assert_eq!(value(&mut client, "timeout"), "0", "{pairs}");
    }
    let unknown = r"-ERR Unknown option or number of arguments for CONFIG SET - 'Nope'\r\n";
    assert_eq!(set(&mut client, "timeout 7 Nope 1"), unknown);
    assert_eq!(set(&mut client, "timeout 7 port"), r"-ERR syntax error\r\n");
    assert_eq!(value(&mut client, "timeout"), "0");
    assert_eq!(set(&mut client, "timeout 7 maxmemory 1gb"), r"+OK\r\n");
    assert_eq!(values(&mut client, "timeout maxmemory"), ["1073741824", "7"]);
    assert_eq!(
        client.say("CONFIG REWRITE"),
        r"-ERR The server is running without a config file\r\n"
    );
}

#[test]
fn limits_of_buffers_are_those_of_each_class() {
    let server = start(Config::default());
    let mut client = Client::new(server.address);
    let name = "client-output-buffer-limit";
    let set = |client: &mut Client, limits: &str| {
        let reply = client.ask(&[b"CONFIG", b"SET", name.as_bytes(), limits.as_bytes()]);
        (reply, value(client, name))
    };
    let first = "normal 536870912 0 0 slave 268435456 67108864 60 pubsub 33554432 8388608 60";
    for (limits, why) in [
        ("normal 0", "Wrong number of arguments in buffer limit configuration."),
        ("normal 0 0 0 foo 0 0 0", "Invalid client class specified in buffer limit configuration."),
        (
            "pubsub 1 x 0",
            "Error in hard, soft or soft_seconds setting in buffer limit configuration.",
        ),
        (
            "pubsub 1 1 -1",
            "Error in hard, soft or soft_seconds setting in buffer limit configuration.",
        ),
    ] {
        assert_eq!(set(&mut client, limits), (refused(name, why), first.to_owned()));
    }
    let ok = || r"+OK\r\n".to_owned();
    let all = "normal 0 0 0 slave 1048576 0 0 pubsub 33554432 8388608 7";
    assert_eq!(
        set(&mut client, "pubsub 32mb 8mb 7 REPLICA 1mb 0 0 normal 0 0 0"),
        (ok(), all.to_owned())
    );
    assert_eq!(set(&mut client, ""), (ok(), all.to_owned()));
    assert_eq!(client.say("SET key value"), r"+OK\r\n");
    let mget = "MULTI\r\nGET key\r\nEXEC";
    let reply = |client: &mut Client| mget.split("\r\n").map(|line| client.say(line)).last();
    assert_eq!(reply(&mut client).unwrap(), r"*1\r\n$5\r\nvalue\r\n", "0 is no limit");
    let limits: &[u8] = b"normal 1 0 0";
    assert_eq!(client.ask(&[b"CONFIG", b"SET", name.as_bytes(), limits]), r"+OK\r\n");
    assert!(reply(&mut client).unwrap().contains("ERR"), "a limit of one byte");
}

#[test]
fn the_memory_limit_changes_while_the_server_runs() {
    let server = start(Config::default());
    let mut client = Client::new(server.address);
    let value = "v".repeat(1000);
    for key in 0..200 {
        assert_eq!(client.say(&format!("SET key:{key} {value}")), r"+OK\r\n");
    }
    assert_eq!(client.say("CONFIG SET maxmemory 100kb"), r"+OK\r\n");
    assert!(client.say(&format!("SET more {value}")).starts_with("-OOM"));
    assert!(client.say("INFO memory").contains("maxmemory:102400"));
    assert_eq!(client.say("CONFIG SET maxmemory 1mb"), r"+OK\r\n");
    assert_eq!(client.say(&format!("SET more {value}")), r"+OK\r\n");
    assert_eq!(client.say("CONFIG SET maxmemory 100kb"), r"+OK\r\n");
    (0..150).for_each(|key| drop(client.say(&format!("DEL key:{key}"))));
    client.say("MEMORY PURGE");
    assert_eq!(client.say(&format!("SET again {value}")), r"+OK\r\n");
    assert_eq!(client.say("CONFIG SET maxmemory 0"), r"+OK\r\n");
    for key in 0..200 {
        assert_eq!(client.say(&format!("SET key:{key} {value}")), r"+OK\r\n");
    }
}

#[test]
fn the_log_level_is_the_programs() {
    let levels: Arc<Mutex<Vec<String>>> = Arc::default();
    let seen = Arc::clone(&levels);
    let switch = move |level: tracing::Level| {
        if level == tracing::Level::WARN {
            return Err("no".to_owned());
        }
        seen.lock().unwrap().push(level.to_string());
        Ok(())
    };
    let level = tracing::Level::DEBUG;
    let log_level = Some(LogLevelSwitch { level, switch: Arc::new(switch) });
    let server = start(Config { log_level, ..Config::default() });
    let mut client = Client::new(server.address);
    assert_eq!(value(&mut client, "loglevel"), "verbose");
    assert_eq!(client.say("CONFIG SET loglevel NOTICE"), r"+OK\r\n");
    assert_eq!(client.say("CONFIG SET loglevel debug timeout 9"), r"+OK\r\n");
    assert_eq!(*levels.lock().unwrap(), ["INFO", "TRACE"]);
    // If one of several changes fails, the earlier ones are undone.
    let reply = client.say("CONFIG SET timeout 11 maxmemory 1mb loglevel warning");
    assert_eq!(reply, refused("loglevel", "no"));
    assert_eq!(values(&mut client, "timeout maxmemory loglevel"), ["debug", "0", "9"]);
}

#[test]
fn the_log_is_synced_as_told() {
    let dir = temporary("sync");
    let data = DataConfig { log: LogSync::Never, ..DataConfig::new(dir.clone()) };
    let server = start(Config { data: Some(data), ..Config::default() });
    let mut client = Client::new(server.address);
    wait_until_loaded(&mut client);
    let field = |client: &mut Client, name: &str| -> u64 {
        let info = client.say("INFO persistence");
        let at = info.split(&format!(r"\r\n{name}:")).nth(1).unwrap().to_owned();
        at.split(r"\r\n").next().unwrap().parse().unwrap()
    };
    assert_eq!(client.say("SET a 1"), r"+OK\r\n");
    assert_eq!(field(&mut client, "ordna_log_durable_position"), 0);
    // Writes that were made under the former policy become durable.
    assert_eq!(client.say("CONFIG SET appendfsync always"), r"+OK\r\n");
    let position = field(&mut client, "ordna_log_position");
    assert_eq!(field(&mut client, "ordna_log_durable_position"), position);
    for key in 0..3 {
        assert_eq!(client.say(&format!("SET key:{key} 1")), r"+OK\r\n");
        let position = field(&mut client, "ordna_log_position");
        assert_eq!(field(&mut client, "ordna_log_durable_position"), position);
    }
    assert!(client.say("INFO persistence").contains("ordna_log:always"));
    assert_eq!(client.say("CONFIG SET appendfsync no"), r"+OK\r\n");
    let durable = field(&mut client, "ordna_log_durable_position");
    assert_eq!(client.say("SET a 2"), r"+OK\r\n");
    assert_eq!(field(&mut client, "ordna_log_durable_position"), durable);
    assert_eq!(client.say("CONFIG SET appendfsync everysec"), r"+OK\r\n");
    assert_eq!(client.say("SET a 3"), r"+OK\r\n");
    let position = field(&mut client, "ordna_log_position");
    let begin = Instant::now();
    while field(&mut client, "ordna_log_durable_position") < position {
        assert!(begin.elapsed() < Duration::from_secs(20), "a sync each second");
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(server);
    crate::common::wait_for_directory(&dir);
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn backups_follow_the_schedule() {
    let dir = temporary("save");
    let data = Some(DataConfig::new(dir.clone()));
    let server = start(Config { data, ..Config::default() });
    let mut client = Client::new(server.address);
    wait_until_loaded(&mut client);
    assert_eq!(client.ask(&[b"CONFIG", b"SET", b"save", b"900 1 1 3"]), r"+OK\r\n");
    assert_eq!(value(&mut client, "save"), "900 1 1 3");
    (0..2).for_each(|key| drop(client.say(&format!("SET key:{key} 1"))));
    std::thread::sleep(Duration::from_millis(2500));
    assert!(client.say("INFO persistence").contains(r"rdb_saves:0\r\n"), "two writes of three");
    client.say("SET key:2 1");
    let begin = Instant::now();
    while client.say("INFO persistence").contains(r"rdb_saves:0\r\n") {
        assert!(begin.elapsed() < Duration::from_secs(20), "three writes");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(client.ask(&[b"CONFIG", b"SET", b"save", b""]), r"+OK\r\n");
    assert_eq!(value(&mut client, "save"), "");
    drop(server);
    crate::common::wait_for_directory(&dir);
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn changed_settings_are_written_to_the_file() {
    let file = temporary("ordna.toml");
    std::fs::write(&file, "port = 1 # one\n[settings]\nhz = 1\nmaxclients = '7' # few\n").unwrap();
    let pairs = [("maxclients", "7"), ("hz", "1")];
    let settings = pairs.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let config =
        || Config { file: Some(file.clone()), settings: settings.to_vec(), ..Config::default() };
    let server = start(config());
    let mut client = Client::new(server.address);
    assert_eq!(value(&mut client, "maxclients"), "7");
    assert_eq!(client.say("CONFIG SET maxmemory 64mb timeout 300"), r"+OK\r\n");
    assert_eq!(client.say("CONFIG SET maxclients 8 timeout 60"), r"+OK\r\n");
    assert_eq!(client.say("CONFIG REWRITE"), r"+OK\r\n");
    let text = "port = 1 # one\n[settings]\nhz = 1\nmaxclients = \"8\" # few\n\
                maxmemory = \"67108864\"\ntimeout = \"60\"\n";
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
    std::fs::remove_file(&file).unwrap();
    assert!(client.say("CONFIG REWRITE").starts_with("-ERR Rewriting config file /"));
}

#[test]
fn counters_are_reset() {
    let server = start(Config::default());
    let mut client = Client::new(server.address);
    client.say("GET nothing");
    client.say("AUTH nobody wrong");
    let fields = ["keyspace_misses", "acl_access_denied_auth"];
    let info = client.say("INFO stats");
    assert!(fields.iter().all(|field| info.contains(&format!(r"{field}:1\r\n"))), "{info}");
    assert_eq!(client.say("CONFIG RESETSTAT"), r"+OK\r\n");
    let info = client.say("INFO stats");
    assert!(fields.iter().all(|field| info.contains(&format!(r"{field}:0\r\n"))), "{info}");
}

/// `CONFIG SET` in a transaction does not take a lock that the transaction already holds.
#[test]
fn settings_change_in_a_transaction() {
    let dir = temporary("transaction");
    let data = Some(DataConfig::new(dir.clone()));
    let mut server = start(Config { data, ..Config::default() });
    let mut client = Client::new(server.address);
    wait_until_loaded(&mut client);
    converse(
        &mut client,
        &[
            ("MULTI", r"+OK\r\n"),
            ("CONFIG RESETSTAT", r"+QUEUED\r\n"),
            ("CONFIG SET appendfsync always", r"+QUEUED\r\n"),
            ("EXEC", r"*2\r\n+OK\r\n+OK\r\n"),
        ],
    );
    server.stop();
    std::fs::remove_dir_all(dir).unwrap();
}
