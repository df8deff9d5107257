//! Tests of counters of commands and errors, and of the lines of MONITOR, some compared with
//! redis-server.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::commands::against_redis::Redis;
use crate::common::{Client, request, show, start};
use ordna_server::Config;

/// Records the commands of one client with MONITOR on another. Returns the lines without times and
/// addresses.
fn monitored(address: SocketAddr) -> Vec<String> {
    let mut monitor = Client::new(address);
    assert_eq!(monitor.say("MONITOR"), r"+OK\r\n");
    let mut client = Client::new(address);
    let plain = [
        "SET a 1",
        "MULTI",
        "SET a 2",
        "INCR a",
        "CONFIG GET port",
        "NOPE",
        "EXEC",
        "DISCARD",
        "MULTI",
        "SET a 2",
        "INCR a",
        "EXEC",
        "EXEC",
        "EVAL return(redis.call('incrby','a',5)) 0",
        "AUTH secret",
        "AUTH nobody secret",
        "HELLO 2 AUTH nobody secret SETNAME x",
        "HELLO 2",
        "ACL SETUSER x >secret",
        "CONFIG GET port",
        "CLIENT SETNAME y",
        "INCR a b",
        "LPUSH a",
    ];
    plain.iter().for_each(|line| drop(client.say(line)));
    client.ask(&[b"SET", b"\x07\x08\0\r\n\t'\"\\", b"\xFF"]);
    client.say("GET last");
    let mut lines = Vec::new();
    let mut micros = 0;
    loop {
        let line = show(&monitor.reply());
        let (time, rest) = line.split_once(" [0 ").expect("time and address");
        micros += u64::from(!time.ends_with("000"));
        let (_, command) = rest.split_once("] ").expect("a command");
        if command.contains("last") {
            // Only one time in a thousand ends with 000.
            assert!(micros > 0);
            return lines;
        }
        lines.push(command.to_owned());
    }
}

#[test]
fn a_monitor_sees_scripts_before_and_exec_after_their_commands_and_no_passwords() {
    let server = start(Config::default());
    let lines = monitored(server.address);
    let at = |wanted: &str| lines.iter().rposition(|line| line.contains(wanted)).expect(wanted);
    assert!(at("MULTI") < at("INCR") && at("INCR") < at("EXEC"), "{lines:?}");
    assert!(at("EVAL") < at("incrby"), "{lines:?}");
    assert!(lines.iter().all(|line| !line.contains("secret")), "{lines:?}");
    assert!(lines.iter().any(|line| line.starts_with("\\\"AUTH\\\"")), "{lines:?}");
}

/// A monitor that does not read misses commands, and receives their number.
#[test]
fn a_slow_monitor_learns_how_many_commands_it_did_not_see() {
    let server = start(Config::default());
    let mut monitor = Client::new(server.address);
    assert_eq!(monitor.say("MONITOR"), r"+OK\r\n");
    let mut client = Client::new(server.address);
    // More than the sockets hold.
    const BATCHES: usize = 200;
    let ping = request(&[b"PING", &[b'x'; 1000]]);
    for _ in 0..BATCHES {
        client.send(&ping.repeat(100));
        (0..100).for_each(|_| assert_eq!(client.reply().len(), 1009));
    }
    let mut sent = BATCHES * 100;
    let (mut seen, mut lost) = (0, 0);
    while seen + lost < sent {
        let line = show(&monitor.reply());
        assert!(!line.is_empty(), "{seen} of {sent} commands were seen, {lost} counted as lost");
        match line.split_once(" commands were not shown") {
            None => seen += 1,
            Some((before, _)) => {
                let (place, count) = before.split_once("] \\\"").expect("the form of a command");
                assert!(place.ends_with(" [0 ordna:0"), "{line}");
                lost += count.parse::<usize>().expect("a number");
            }
        }
        if seen == 1 && sent == BATCHES * 100 {
            // Another line after the gap, so that a missing number would be noticed.
            client.say("PING");
            sent += 1;
        }
    }
    assert!(lost > 0 && seen + lost == sent, "{seen} seen, {lost} lost of {sent}");
}

#[test]
#[ignore = "needs redis-server; .ci/run installs it and runs this"]
fn monitored_lines_against_redis() {
    let redis = Redis::start();
    let ours = start(Config::default());
    assert_eq!(monitored(redis.1), monitored(ours.address));
}

/// Returns the names of the fields in sections of INFO, and the values of some.
fn info(client: &mut Client, section: &str) -> Vec<(String, String)> {
    let text = client.say(&format!("INFO {section}"));
    let fields = text.split(r"\r\n").filter_map(|line| line.split_once(':'));
    fields.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

const COUNTED: [&str; 23] = [
    "SET a 1",
    "HGET a f",
    "HGET a f",
    "INCR a b",
    "NOPE",
    "CONFIG GET port",
    "CONFIG GET",
    "CONFIG NOPE",
    "EVALSHA 00 0",
    "EXEC",
    // Errors in scripts are counted once, including those that a script creates.
    r#"EVAL return(redis.call("hget","a","f")) 0"#,
    r#"EVAL return(redis.pcall("hget","a","f")) 0"#,
    r#"EVAL return(redis.call("hget","a")) 0"#,
    r#"EVAL return(redis.pcall("nope")) 0"#,
    r#"EVAL return(redis.pcall("config","nope")) 0"#,
    r#"EVAL return(redis.call("eval","x",0)) 0"#,
    r#"EVAL_RO return(redis.call("set","a",1)) 0"#,
    r#"EVAL return(redis.call()) 0"#,
    r#"EVAL return(redis.error_reply("MY_CODE1\32x")) 0"#,
    r#"EVAL error(redis.pcall("hget","a","f")) 0"#,
    r#"EVAL error("x") 0"#,
    r#"EVAL error(select(2,pcall(redis.call,"hget","a","f"))) 0"#,
    r#"EVAL x( 0"#,
];

#[test]
#[ignore = "needs redis-server; .ci/run installs it and runs this"]
fn counters_of_errors_against_redis() {
    let redis = Redis::start();
    let ours = start(Config::default());
    let [redis, ours] = [redis.1, ours.address].map(|address| {
        let mut client = Client::new(address);
        client.say("CONFIG RESETSTAT");
        COUNTED.iter().for_each(|line| drop(client.say(line)));
        let commands = info(&mut client, "commandstats").into_iter().map(|(name, value)| {
            let counts = value.split(',').filter(|part| !part.contains("usec"));
            (name, counts.collect::<Vec<_>>().join(","))
        });
        let mut all: Vec<_> = commands.chain(info(&mut client, "errorstats")).collect();
        all.extend(
            info(&mut client, "stats")
                .into_iter()
                .filter(|(name, _)| name == "total_error_replies"),
        );
        all.sort();
        all
    });
    assert_eq!(redis, ours);
}

#[test]
fn a_wait_that_ends_with_an_error_counts_as_failed() {
    let server = start(Config::default());
    let [mut client, mut waits] = [(); 2].map(|()| Client::new(server.address));
    let id = waits.say("CLIENT ID").trim_matches(|byte: char| !byte.is_ascii_digit()).to_owned();
    waits.send(b"BLPOP a 0\r\n");
    while client.say(&format!("CLIENT UNBLOCK {id} ERROR")) == r":0\r\n" {}
    assert!(show(&waits.reply()).starts_with("-UNBLOCKED"));
    assert_eq!(info(&mut client, "errorstats"), [("errorstat_UNBLOCKED".into(), "count=1".into())]);
    let commands = info(&mut client, "commandstats");
    let (_, counts) = commands.iter().find(|(name, _)| name == "cmdstat_blpop").unwrap();
    assert!(counts.starts_with("calls=1,") && counts.ends_with("failed_calls=1"), "{counts}");
}

#[test]
fn a_refused_search_counts_as_failed() {
    let server = start(Config::default());
    let mut client = Client::new(server.address);
    client.say("FT.CREATE i SCHEMA a VECTOR");
    client.say("FT.AGGREGATE nothing *");
    let commands = info(&mut client, "commandstats");
    for name in ["cmdstat_ft.create", "cmdstat_ft.aggregate"] {
        let (_, counts) = commands.iter().find(|(field, _)| field == name).expect(name);
        assert!(counts.ends_with("failed_calls=1"), "{name} {counts}");
    }
    let errors = info(&mut client, "errorstats");
    assert_eq!(errors.iter().map(|(_, count)| count.as_str()).collect::<Vec<_>>(), ["count=2"]);
}

/// Fields that exporters read.
#[test]
fn info_has_the_fields_of_redis_that_exporters_read() {
    let server = start(Config::default());
    let mut client = Client::new(server.address);
    let all = info(&mut client, "everything");
    for name in [
        "redis_git_sha1",
        "total_error_replies",
        "master_replid",
        "master_repl_offset",
        "rdb_changes_since_last_save",
        "rdb_last_bgsave_status",
        "rdb_last_save_time",
        "used_memory_overhead",
        "used_memory_startup",
        "lazyfree_pending_objects",
    ] {
        assert!(all.iter().any(|(field, _)| field == name), "{name}");
    }
    client.say("NOPE");
    assert!(client.say("INFO").contains("errorstat_ERR:count=1"));
    client.say("CLIENT SETINFO LIB-NAME mine");
    assert_eq!(client.say("RESET"), r"+RESET\r\n");
    let line = client.say("CLIENT LIST");
    assert!(line.contains(" lib-name=mine ") && line.contains(" cmd=client|list "), "{line}");
    assert!(!line.contains(" fd=-1 ") && line.contains(" qbuf=26 "), "{line}");
    let mut other = Client::new(server.address);
    // Waits until the idle client counts as idle.
    let end = Instant::now() + Duration::from_secs(10);
    let mut line = String::new();
    while !line.contains(" qbuf=0 ") && Instant::now() < end {
        line = other.say("CLIENT LIST TYPE normal");
    }
    assert!(line.contains(" qbuf=0 ") && line.contains(" omem=0 "), "{line}");
    let histogram = client.say("LATENCY HISTOGRAM client");
    assert!(histogram.contains("client|setinfo"), "{histogram}");
}

#[test]
#[cfg(target_os = "linux")]
fn figures_of_info_agree() {
    let server = start(Config::default());
    let mut client = Client::new(server.address);
    client.ask(&[b"SET", b"key", &vec![b'x'; 3 << 20]]);
    let now = || std::time::UNIX_EPOCH.elapsed().unwrap().as_micros() as f64;
    let before = now();
    let all = info(&mut client, "everything");
    let figure = |name: &str| -> f64 {
        let (_, value) = all.iter().find(|(field, _)| field == name).expect(name);
        value.parse().unwrap_or_else(|error| panic!("{name} is {value:?}: {error}"))
    };
    // The time is in whole milliseconds.
    let time = figure("server_time_usec");
    assert!((before - 1000.0..=now()).contains(&time), "{time} after {before}");
    assert_eq!(figure("uptime_in_days"), 0.0);
    assert_eq!(figure("process_id"), f64::from(std::process::id()));
    let [used, peak, resident, system] =
        ["used_memory", "used_memory_peak", "used_memory_rss", "total_system_memory"].map(figure);
    assert!(used > f64::from(3 << 20) && used <= peak, "{used} of {peak}");
    assert!(resident > f64::from(4 << 20) && resident < system, "{resident} of {system}");
    let ratio = figure("mem_fragmentation_ratio");
    assert!((ratio - resident / used).abs() < 0.01, "{ratio} of {resident} by {used}");
}
