//! Tests of clients that wait for a script or for the end of a pause. However many there are, the
//! script can be ended, and no command is executed for a client that was closed.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use ordna_server::Config;

use crate::common::{Client, fresh, request, show, start};

/// More than the maximum number of blocking threads.
const MANY: usize = 560;

/// Maximum time, on a slow machine, for a reply that does not wait for anything.
const PATIENCE: Duration = Duration::from_secs(10);

/// Each page needs the keyspace, but takes no thread while a script uses the keyspace.
#[test]
fn pages_leave_threads_to_end_a_script() {
    let metrics = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    let server = start(Config { metrics, ..Config::default() });
    let mut looping = Client::new(server.address);
    looping.send(&request(&[b"EVAL", b"while true do end", b"0"]));
    std::thread::sleep(Duration::from_millis(100));
    for at in 0..MANY {
        let page = ["/metrics", "/readyz"][at % 2];
        let mut probe = TcpStream::connect(server.metrics.unwrap()).unwrap();
        write!(probe, "GET {page} HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        // The server reads the request before the connection ends.
        let _ = probe.set_read_timeout(Some(Duration::from_millis(5)));
        let _ = probe.read(&mut [0; 1]);
    }
    let mut operator = Client::new(server.address);
    operator.send(&request(&[b"SCRIPT", b"KILL"]));
    assert_eq!(operator.reply_within(PATIENCE).as_deref(), Some(&b"+OK\r\n"[..]));
    assert!(show(&looping.reply()).starts_with("-ERR Script killed"));
    assert_eq!(operator.say("PING"), r"+PONG\r\n");
}

/// A server that stops closes the clients that wait for a script, and then ends the script.
#[test]
fn a_server_ends_beside_a_script_for_which_many_wait() {
    let (mut server, mut client) = fresh();
    assert_eq!(client.say("CONFIG SET busy-reply-threshold 600000"), r"+OK\r\n");
    let mut looping = Client::new(server.address);
    looping.send(&request(&[b"EVAL", b"redis.call('SET', 'a', 1) while true do end", b"0"]));
    std::thread::sleep(Duration::from_millis(300));
    let mut waiting: Vec<Client> = (0..MANY).map(|_| Client::new(server.address)).collect();
    waiting.iter_mut().for_each(|client| client.send(&request(&[b"SET", b"b", b"1"])));
    std::thread::sleep(Duration::from_millis(500));
    let (ended, told) = channel();
    std::thread::spawn(move || {
        server.stop();
        let _ = ended.send(());
    });
    told.recv_timeout(Duration::from_secs(30)).expect("the server ends");
}

/// A client is closed while its commands wait for the end of a pause.
#[test]
fn nothing_is_executed_for_a_client_that_was_closed_in_a_pause() {
    let set = request(&[b"SET", b"a", b"1"]);
    let transaction = [request(&[b"MULTI"]), set.clone(), request(&[b"EXEC"])].concat();
    let script = request(&[b"EVAL", b"redis.call('SET', 'a', 1)", b"0"]);
    for commands in [set.clone(), set.repeat(100), transaction, script] {
        let (server, mut admin) = fresh();
        let mut client = Client::new(server.address);
        let id = client.say("CLIENT ID").trim_start_matches(':').replace(r"\r\n", "");
        assert_eq!(admin.say("CLIENT PAUSE 100000 WRITE"), r"+OK\r\n");
        client.send(&commands);
        let begin = Instant::now();
        while !admin.say("INFO clients").contains("blocked_clients:1") {
            assert!(begin.elapsed() < PATIENCE, "it does not wait: {}", admin.say("INFO clients"));
        }
        assert_eq!(admin.say(&format!("CLIENT KILL ID {id}")), r":1\r\n");
        // Reads the replies of `MULTI` and to queued commands, up to the end of the connection.
        while client.reply_within(PATIENCE).is_none_or(|reply| !reply.is_empty()) {
            assert!(begin.elapsed() < PATIENCE, "the client is not closed");
        }
        assert_eq!(admin.say("CLIENT UNPAUSE"), r"+OK\r\n");
        assert_eq!(admin.say("EXISTS a"), r":0\r\n");
    }
}

/// A client that waits for the end of a pause does not count as idle.
#[test]
fn a_pause_is_longer_than_the_timeout_of_clients() {
    let (server, mut admin) = fresh();
    assert_eq!(admin.say("CONFIG SET timeout 1"), r"+OK\r\n");
    assert_eq!(admin.say("CLIENT PAUSE 100000 WRITE"), r"+OK\r\n");
    let mut client = Client::new(server.address);
    client.send(&request(&[b"SET", b"a", b"1"]));
    for _ in 0..35 {
        assert_eq!(admin.say("EXISTS a"), r":0\r\n");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(admin.say("CLIENT UNPAUSE"), r"+OK\r\n");
    assert_eq!(show(&client.reply()), r"+OK\r\n");
}

/// A pause of writes delays only those transactions that write.
#[test]
fn a_transaction_that_reads_is_executed_in_a_pause_of_writes() {
    let (_server, mut client) = fresh();
    assert_eq!(client.say("CLIENT PAUSE 100000 WRITE"), r"+OK\r\n");
    client.say("MULTI");
    client.say("GET a");
    client.send(&request(&[b"EXEC"]));
    let reply = client.reply_within(PATIENCE).map(|reply| show(&reply));
    assert_eq!(reply.as_deref(), Some(r"*1\r\n$-1\r\n"));
}
