//! Commands concurrent with failures of the log and changes of users; transactions at the memory
//! limit.

use std::io::{self, Read};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ordna::durability::{Disk, OutFile, Storage, SyncPolicy};
use ordna::sync::schedule::{Schedule, held};
use ordna_secondary::{IndexDefinition, Part, Range};

use crate::commands::table;
use crate::execution::command::CommandOutcome;
use crate::execution::{acknowledgement, backups, dispatch, eviction, large_reads};
use crate::indexes::{library_name, read_latest};
use crate::keyspace::stored_key::id_of_element;
use crate::state::ServerState;
use crate::state::acl::Acl;
use crate::state::clients::Client;
use crate::state::config::{Config, DataConfig};
use crate::state::session::Session;
use crate::wire::reply::Replies;
use crate::wire::request::OwnedRequest;

/// A disk whose files accept no more bytes while it is full.
#[derive(Debug, Clone, Default)]
struct Full(Arc<AtomicBool>);

#[derive(Debug)]
struct FullFile(Box<dyn OutFile>, Full);

impl OutFile for FullFile {
    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self.1.0.load(Ordering::SeqCst) {
            true => Err(io::ErrorKind::StorageFull.into()),
            false => self.0.write(bytes),
        }
    }
    fn sync(&self) -> io::Result<()> {
        self.0.sync()
    }
}

impl Storage for Full {
    fn create(&self, path: &Path) -> io::Result<Box<dyn OutFile>> {
        Ok(Box::new(FullFile(Disk.create(path)?, self.clone())))
    }
    fn open(&self, path: &Path) -> io::Result<(Box<dyn Read + Send>, u64)> {
        Disk.open(path)
    }
    fn truncate(&self, path: &Path, len: u64) -> io::Result<()> {
        Disk.truncate(path, len)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        Disk.rename(from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        Disk.remove(path)
    }
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        Disk.create_dir(path)
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        Disk.list(dir)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        Disk.sync_dir(dir)
    }
    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn Send + Sync>>> {
        Disk.lock(path)
    }
}

const ADDRESS: ([u8; 4], u16) = ([127, 0, 0, 1], 1);

fn state(config: Config) -> ServerState {
    let acl = Acl::new(&config, &table().catalog);
    ServerState::new(config, SocketAddr::from(ADDRESS), &table().catalog, acl)
}

fn session(state: &ServerState) -> Session {
    let address = SocketAddr::from(ADDRESS);
    // A test that waits opens several sessions, one after the other.
    let client = state.clients.enter(address, address, -1, 100_000).unwrap();
    Session::new(client, &state.acl)
}

fn say(state: &ServerState, session: &mut Session, line: &str) -> String {
    let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
    let request = OwnedRequest::of(&words);
    let mut out = Replies::default();
    let _ = dispatch::execute(state, table(), session, request.arguments(), &mut out);
    out.bytes.escape_ascii().to_string()
}

fn wait_until(what: &str, is_true: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_true() {
        assert!(begin.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn set_other(state: &ServerState) -> String {
    say(state, &mut session(state), "SET other 1")
}

/// A write is refused after it has changed the memory, because the log fails at that moment. The
/// log then recovers, and the write stays. `WATCH` and the indexes must be notified.
/// Loads the data directory, and lets commands use it.
fn load(state: &ServerState) {
    let directory = state.data_directory.as_ref().unwrap();
    backups::load(state, directory).unwrap();
    directory.loaded();
}

#[test]
fn a_write_that_stays_after_a_failure_of_the_log_is_reported() {
    let dir = std::env::temp_dir().join(format!("ordna-late-write-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    let disk = Full::default();
    let data =
        DataConfig { storage: Arc::new(disk.clone()), reserve: 0, ..DataConfig::new(dir.clone()) };
    let state = &state(Config { data: Some(data), ..Config::default() });
    load(state);
    {
        let _exclusive = state.keys_exclusive();
        let definition = IndexDefinition::new("i", b"d:").part(Part::new("n"));
        state.indexes.create("i", definition).unwrap();
    }
    let (mut writer, mut watcher) = (session(state), session(state));
    assert_eq!(say(state, &mut writer, "HSET d:1 n 1"), r":1\r\n");
    assert_eq!(say(state, &mut watcher, "WATCH d:1"), r"+OK\r\n");
    assert_eq!(say(state, &mut watcher, "HGET d:1 n"), r"$1\r\n1\r\n");
    let told = held("log.write.done", || say(state, &mut writer, "HSET d:1 n 2")).meanwhile(|| {
        disk.0.store(true, Ordering::SeqCst);
        wait_until("the log does not fail", || set_other(state).starts_with('-'));
    });
    assert!(told.starts_with('-'), "{told}");
    disk.0.store(false, Ordering::SeqCst);
    wait_until("the log does not heal", || set_other(state) == r"+OK\r\n");
    let found = say(state, &mut writer, "HGET d:1 n");
    let service = state.indexes.service().unwrap();
    let read = read_latest(Duration::from_secs(20));
    let count = |n: &str| {
        let value = ordna::tuple::Value::String(n.to_owned());
        service.count(&library_name("i"), &[value], &Range::All, &read).unwrap()
    };
    let indexed = (count("1"), count("2"));
    say(state, &mut watcher, "MULTI");
    say(state, &mut watcher, "HSET d:2 was 1");
    let executed = say(state, &mut watcher, "EXEC");
    let _ = std::fs::remove_dir_all(&dir);
    assert_eq!(found, r"$1\r\n2\r\n", "the write stays");
    assert_eq!(
        (indexed, executed.as_str()),
        ((0, 1), r"*-1\r\n"),
        "entries with 1 and 2, and EXEC"
    );
}

/// The write of one client serves another client, whose command waits, and the log refuses the
/// whole group. The log then is as durable as before, but the client that was served must not be
/// told that its command succeeded.
#[test]
fn a_client_that_a_refused_write_has_served_gets_an_error() {
    let dir = std::env::temp_dir().join(format!("ordna-served-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    let data = DataConfig { log: SyncPolicy::Always, ..DataConfig::new(dir.clone()) };
    let state = &state(Config { data: Some(data), ..Config::default() });
    load(state);
    assert_eq!(set_other(state), r"+OK\r\n");
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let settled = |was_served| {
        runtime.block_on(acknowledgement::wait_until_durable(state, was_served)).is_ok()
    };
    assert!(settled(false) && settled(true));
    state.keys().store().close_log().unwrap();
    let (own, served) = (settled(false), settled(true));
    let _ = std::fs::remove_dir_all(&dir);
    assert!(own, "what was written before is durable");
    assert!(!served, "the client is told of a write that the log has refused");
}

/// The log fails at a step of the removal of a large collection, which stays in memory. When the
/// log works again, the removal is completed, and the counts are right.
#[test]
fn a_removal_that_the_log_fails_comes_to_its_end() {
    // First the batch that removes the head, then the entry of the list, after the elements.
    for (step, passes) in [("DEL", 2), ("end", 1)] {
        let dir = std::env::temp_dir().join(format!("ordna-failed-{step}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        let disk = Full::default();
        let data = DataConfig {
            storage: Arc::new(disk.clone()),
            reserve: 0,
            ..DataConfig::new(dir.clone())
        };
        let state = &state(Config { data: Some(data), ..Config::default() });
        load(state);
        let mut client = session(state);
        let members: String = (0..400).map(|at| format!(" m{at}")).collect();
        assert_eq!(say(state, &mut client, &format!("SADD big{members}")), r":400\r\n");
        let schedule = &Schedule::new();
        schedule.hold_after("held", "log.write.done", passes);
        if step != "DEL" {
            assert_eq!(say(state, &mut client, "DEL big"), r":1\r\n");
        }
        std::thread::scope(|scope| {
            let held = scope.spawn(move || {
                schedule.enroll("held", || match step {
                    "DEL" => say(state, &mut client, "DEL big"),
                    _ => format!("{:?}", state.keys().remove_elements()),
                })
            });
            schedule.wait_held("held", "log.write.done");
            disk.0.store(true, Ordering::SeqCst);
            wait_until("the log does not fail", || set_other(state).starts_with('-'));
            schedule.release("held", "log.write.done");
            let told = held.join().unwrap();
            assert!(told.starts_with('-') || told.starts_with("Err("), "{step}: {told}");
        });
        disk.0.store(false, Ordering::SeqCst);
        wait_until("the log does not heal", || set_other(state) == r"+OK\r\n");
        let keys = state.keys();
        while keys.remove_elements().unwrap() > 0 {}
        let collections = keys.collections();
        let found = (keys.count_reserved(), collections.reserved.sum(), collections.removals.sum());
        let _ = std::fs::remove_dir_all(&dir);
        assert_eq!(found, (1, 1, 0), "{step}: reserved entries, their count, removals");
        assert_eq!(keys.approximate_len(), 1, "{step}");
    }
}

/// A client connects while its user changes.
#[test]
fn a_client_that_connects_while_its_user_changes_gets_the_new_rights() {
    let state = &state(Config::default());
    let rules: [&[u8]; 1] = [b"-set"];
    let mut session = held("acl.connect.user_read", || session(state)).meanwhile(|| {
        state.acl.set(b"default", rules.into_iter(), &table().catalog).unwrap();
    });
    let told = say(state, &mut session, "SET x 1");
    assert!(told.starts_with("-NOPERM"), "{told}");
}

/// No key disappears between two commands of a transaction.
#[test]
fn a_transaction_evicts_nothing_between_its_commands() {
    let state = &state(Config::default());
    {
        let _exclusive = state.keys_exclusive();
        let definition = IndexDefinition::new("i", b"d:").part(Part::new("n"));
        state.indexes.create("i", definition).unwrap();
    }
    let mut session = session(state);
    let value = "v".repeat(1000);
    for number in 0..1000 {
        say(state, &mut session, &format!("SET k{number} {value}"));
    }
    say(state, &mut session, "CONFIG SET maxmemory-policy allkeys-random");
    let limit = state.used_memory() + 20_000;
    say(state, &mut session, &format!("CONFIG SET maxmemory {limit}"));
    let mut transaction = || {
        say(state, &mut session, "MULTI");
        for number in 0..1000 {
            say(state, &mut session, &format!("GET k{number}"));
        }
        // The second write finds less free room than the indexes need.
        say(state, &mut session, &format!("SET large {}", "v".repeat(50_000)));
        say(state, &mut session, "SET new 1");
        say(state, &mut session, "DBSIZE");
        say(state, &mut session, "EXEC")
    };
    // While a snapshot of the index keeps memory, nothing is evicted, and the write is refused.
    let end = Instant::now() + Duration::from_secs(20);
    let mut told = transaction();
    while told.starts_with("-EXECABORT") && Instant::now() < end {
        told = transaction();
    }
    let values = told.matches(&value).count();
    let size = told.rsplit(':').next().unwrap().trim_end_matches(r"\r\n").to_owned();
    assert_eq!(size, (values + 2).to_string(), "keys at the end; read at the beginning: {values}");
}

/// A value that is much larger than the keys evicts as many of them as necessary, however long that
/// takes.
#[test]
fn a_large_value_evicts_small_keys_until_there_is_room() {
    let state = &state(Config::default());
    let mut session = session(state);
    for number in 0..20_000 {
        say(state, &mut session, &format!("SET k{number} {number:040}"));
    }
    say(state, &mut session, "CONFIG SET maxmemory-policy allkeys-lru");
    say(state, &mut session, &format!("CONFIG SET maxmemory {}", state.used_memory() + 20_000));
    let value = "v".repeat(512 << 10);
    assert_eq!(say(state, &mut session, &format!("SET big {value}")), r"+OK\r\n");
    // The same in a transaction.
    say(state, &mut session, &format!("CONFIG SET maxmemory {}", state.used_memory() + 20_000));
    say(state, &mut session, "MULTI");
    say(state, &mut session, &format!("SET more {value}"));
    assert_eq!(say(state, &mut session, "EXEC"), r"*1\r\n+OK\r\n");
    assert!(state.used_memory() <= state.settings.max_memory.size(), "the limit is kept");
}

/// A copy of a large set is about to be committed when clients are paused, its client is closed, or
/// its user loses the permission. Nothing is written afterwards.
#[test]
fn a_prepared_write_ends_with_the_rights_of_its_client() {
    let paused = Duration::from_millis(400);
    for case in ["paused", "closed", "forbidden"] {
        let state = &state(Config::default());
        let (mut admin, mut client) = (session(state), session(state));
        assert_eq!(say(state, &mut admin, "ACL SETUSER copier on nopass ~* +@all"), r"+OK\r\n");
        for at in 0..50 {
            let members: String = (0..100).map(|member| format!(" {at}:{member}")).collect();
            say(state, &mut admin, &format!("SADD from{members}"));
        }
        assert_eq!(say(state, &mut client, "AUTH copier any"), r"+OK\r\n");
        let request = OwnedRequest::of(&[b"COPY", b"from", b"to"]);
        let mut out = Replies::default();
        let outcome = dispatch::execute(state, table(), &mut client, request.arguments(), &mut out);
        let CommandOutcome::Read(read) = outcome else { panic!("it is not prepared") };
        let own = Arc::clone(&client.client);
        let (reply, took) = held("prepared_writes.commit", || {
            let begin = Instant::now();
            large_reads::run(*read, state, table(), &mut client, &mut out);
            (out.bytes.escape_ascii().to_string(), begin.elapsed())
        })
        .meanwhile(|| match case {
            "paused" => state.pause(paused, true),
            "closed" => own.end(),
            _ => drop(say(state, &mut admin, "ACL SETUSER copier -copy")),
        });
        let exists = say(state, &mut admin, "EXISTS to");
        if case == "paused" {
            assert_eq!((reply.as_str(), exists.as_str()), (r":1\r\n", r":1\r\n"));
            assert!(took >= paused / 2, "{took:?}");
        } else {
            assert!(reply.starts_with('-') && exists == r":0\r\n", "{case}: {reply} {exists}");
        }
    }
}

/// A few long elements count as as much work as many short ones.
#[test]
fn results_of_few_long_elements_are_prepared() {
    let state = &state(Config::default());
    let mut client = session(state);
    for at in 0..40 {
        let long = "x".repeat(50_000);
        say(state, &mut client, &format!("SADD set {at}{long}"));
        say(state, &mut client, &format!("ZADD zset {at} {at}{long}"));
        say(state, &mut client, &format!("RPUSH list {at}{long}"));
    }
    for (line, is_prepared) in [
        ("SUNIONSTORE to set none", true),
        ("SDIFFSTORE to set none", true),
        ("ZUNIONSTORE to 2 zset none", true),
        ("ZRANGESTORE to zset 0 -1", true),
        ("SORT list ALPHA STORE to", true),
        ("COPY set to REPLACE", true),
        ("SUNIONSTORE to none other", false),
    ] {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        let (request, mut out) = (OwnedRequest::of(&words), Replies::default());
        let outcome = dispatch::execute(state, table(), &mut client, request.arguments(), &mut out);
        assert_eq!(matches!(outcome, CommandOutcome::Read(_)), is_prepared, "{line}");
    }
}

/// A sort by other keys is prepared. In one step it stores the values that they had when its
/// snapshot was taken.
#[test]
fn a_stored_sort_by_other_keys_is_prepared() {
    const COUNT: usize = 4200;
    let state = &state(Config::default());
    let (mut client, mut other) = (session(state), session(state));
    for at in 0..COUNT {
        say(state, &mut other, &format!("RPUSH list e{at}"));
        say(state, &mut other, &format!("MSET w_e{at} {} v_e{at} value{at}", at * 7919 % COUNT));
    }
    let line = "SORT list BY w_* GET # GET v_* STORE to";
    say(state, &mut other, "MULTI");
    say(state, &mut other, &line.replace("to", "same"));
    let within = say(state, &mut other, "EXEC");
    let same = say(state, &mut other, "LRANGE same 0 -1");
    let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
    let (request, mut out) = (OwnedRequest::of(&words), Replies::default());
    let outcome = dispatch::execute(state, table(), &mut client, request.arguments(), &mut out);
    let CommandOutcome::Read(read) = outcome else { panic!("it is not prepared") };
    let reply = held("prepared_writes.commit", || {
        large_reads::run(*read, state, table(), &mut client, &mut out);
        out.bytes.escape_ascii().to_string()
    })
    .meanwhile(|| {
        say(state, &mut other, "SET w_e1 999999");
        assert_eq!(say(state, &mut other, "EXISTS to"), r":0\r\n");
    });
    assert_eq!((format!(r"*1\r\n{reply}"), reply), (within, format!(r":{}\r\n", 2 * COUNT)));
    assert!(say(state, &mut other, "LRANGE to 0 -1") == same);
}

/// A command that has found no pause and an open client gets the lock after `CLIENT PAUSE` or
/// `CLIENT KILL` was answered.
#[test]
fn nothing_is_written_after_a_pause_or_an_end_of_the_client() {
    let state = &state(Config::default());
    let mut client = session(state);
    let mut call = |line: &str| {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        let (request, mut out) = (OwnedRequest::of(&words), Replies::default());
        dispatch::execute(state, table(), &mut client, request.arguments(), &mut out)
    };
    state.pause(Duration::from_secs(1000), true);
    assert!(matches!(call("SET a 1"), CommandOutcome::Paused));
    assert!(matches!(call("GET a"), CommandOutcome::Done));
    assert!(matches!(call("MULTI"), CommandOutcome::Done));
    assert!(matches!(call("SET a 1"), CommandOutcome::Done));
    assert!(matches!(call("EXEC"), CommandOutcome::Paused));
    assert_eq!(say(state, &mut session(state), "EXISTS a"), r":0\r\n");
    state.unpause();
    assert!(matches!(call("EXEC"), CommandOutcome::Done));
    assert_eq!(say(state, &mut session(state), "EXISTS a"), r":1\r\n");
    state.pause(Duration::from_secs(1000), false);
    assert!(matches!(call("GET a"), CommandOutcome::Paused));
    state.unpause();
    let mut client = session(state);
    client.client.end();
    let request = OwnedRequest::of(&[b"SET", b"b", b"1"]);
    let mut out = Replies::default();
    let outcome = dispatch::execute(state, table(), &mut client, request.arguments(), &mut out);
    assert!(matches!(outcome, CommandOutcome::Close));
    assert_eq!(say(state, &mut session(state), "EXISTS b"), r":0\r\n");
}

/// Events that end or delay a command whose rights were already checked.
const STOPS: [&str; 3] = ["paused", "closed", "forbidden"];

/// A session of a user with all rights, whose commands [`stop`] ends.
fn stoppable(state: &ServerState) -> Session {
    let mut client = session(state);
    say(state, &mut client, "ACL SETUSER writer on nopass ~* +@all");
    assert_eq!(say(state, &mut client, "AUTH writer any"), r"+OK\r\n");
    client
}

fn stop(state: &ServerState, client: &Client, how: &str) {
    match how {
        "paused" => state.pause(Duration::from_secs(1000), true),
        // Like `CLIENT KILL`, which waits for the commands in progress.
        "closed" => {
            let _exclusive = state.keys_exclusive();
            client.end();
        }
        _ => {
            let done = say(state, &mut session(state), "ACL SETUSER writer -@all");
            assert_eq!(done, r"+OK\r\n");
        }
    }
}

fn assert_stopped(outcome: &CommandOutcome, out: &Replies, how: &str) {
    let is_stopped = match how {
        "paused" => matches!(outcome, CommandOutcome::Paused) && out.bytes.is_empty(),
        "closed" => matches!(outcome, CommandOutcome::Close),
        _ => out.bytes.starts_with(b"-NOPERM"),
    };
    assert!(is_stopped, "{how}: {}", out.bytes.escape_ascii());
}

/// A set becomes large, for which its command locks the keyspace again.
#[test]
fn a_command_that_waits_to_be_alone_is_stopped() {
    for how in STOPS {
        let state = &state(Config::default());
        let mut client = stoppable(state);
        let members: Vec<String> = (0..2000).map(|at| format!("member{at}")).collect();
        let mut words = vec![&b"SADD"[..], b"set"];
        words.extend(members.iter().map(String::as_bytes));
        let (request, own) = (OwnedRequest::of(&words), Arc::clone(&client.client));
        let (outcome, out) = held("command.execute.released", || {
            let mut out = Replies::default();
            let call = request.arguments();
            (dispatch::execute(state, table(), &mut client, call, &mut out), out)
        })
        .meanwhile(|| stop(state, &own, how));
        assert_stopped(&outcome, &out, how);
        assert_eq!(say(state, &mut session(state), "EXISTS set"), r":0\r\n", "{how}");
    }
}

/// A value as large as thousands of keys evicts them in several calls.
#[test]
fn a_command_that_evicts_is_stopped() {
    for how in STOPS {
        let state = &state(Config::default());
        let mut client = stoppable(state);
        for number in 0..40_000 {
            say(state, &mut client, &format!("SET {number} {number:0100}"));
        }
        say(state, &mut client, "CONFIG SET maxmemory-policy allkeys-random");
        let used = state.used_memory();
        say(state, &mut client, &format!("CONFIG SET maxmemory {}", used + 20_000));
        let value = vec![b'v'; used - used / 8];
        let request = OwnedRequest::of(&[b"SET", b"big", &value]);
        let own = Arc::clone(&client.client);
        let (outcome, out) = held("command.evict.released", || {
            let mut out = Replies::default();
            let call = request.arguments();
            (dispatch::execute(state, table(), &mut client, call, &mut out), out)
        })
        .meanwhile(|| stop(state, &own, how));
        assert_stopped(&outcome, &out, how);
        let mut other = session(state);
        let left = say(state, &mut other, "DBSIZE");
        assert_eq!(say(state, &mut other, "EXISTS big"), r":0\r\n", "{how}");
        if how == "paused" {
            // During the pause, no other command evicts either, although a smaller limit would
            // require it.
            state.set_max_memory(1 << 20);
            eviction::evict(state, &state.keys(), 0);
            assert_eq!(say(state, &mut other, "DBSIZE"), left);
        }
    }
}

/// A range of keys is removed in several steps.
#[test]
fn a_removal_of_a_range_is_stopped() {
    for how in STOPS {
        let state = &state(Config::default());
        let mut client = stoppable(state);
        for at in 0..5000 {
            say(state, &mut client, &format!("SET {at} v"));
        }
        let (request, mut out) =
            (OwnedRequest::of(&[b"ORDNA.DELRANGE", b"-", b"+"]), Replies::default());
        let outcome = dispatch::execute(state, table(), &mut client, request.arguments(), &mut out);
        let CommandOutcome::LongScan(mut scan) = outcome else { panic!("no scan") };
        assert!(!scan.step(state, None, &mut out).unwrap());
        let mut other = session(state);
        stop(state, &client.client, how);
        let left = say(state, &mut other, "DBSIZE");
        let is_over = scan.step(state, None, &mut out).unwrap();
        assert_eq!(is_over, how != "paused", "{how}");
        assert_eq!(out.bytes.starts_with(b"-"), is_over, "{how}");
        assert_eq!(say(state, &mut other, "DBSIZE"), left, "{how}");
        state.unpause();
        if how == "paused" {
            while !scan.step(state, None, &mut out).unwrap() {}
            assert_eq!(out.bytes, b":5000\r\n");
        }
    }
}

/// Otherwise a client would wait for the missing elements and mistake the next reply for one of
/// them.
#[test]
fn a_collection_that_counts_more_than_it_has_is_an_error() {
    let state = &state(Config::default());
    let mut session = session(state);
    for number in 0..600 {
        let value = format!("{number:0200}");
        for line in ["RPUSH list", "SADD set", &format!("HSET hash {number}"), "ZADD zset 1"] {
            say(state, &mut session, &format!("{line} {value}"));
        }
    }
    // The head of a collection and every other element are kept.
    let mut elements = 0;
    let mut is_kept = |key: &[u8]| {
        elements += usize::from(id_of_element(key).is_some());
        id_of_element(key).is_none() || elements % 2 == 0
    };
    state.keys().store().retain(|key, _| is_kept(key)).unwrap();
    for line in ["LRANGE list 0 -1", "SMEMBERS set", "HGETALL hash", "HKEYS hash", "HVALS hash"] {
        let reply = say(state, &mut session, line);
        let name = line.split(' ').nth(1).unwrap();
        let error = format!(r"-ERR \'{name}\' counts 600 elements in this range, and has 300\r\n");
        assert_eq!(reply, error, "{line}");
    }
    assert!(say(state, &mut session, "ZRANGE zset 0 -1").starts_with('*'));
}
