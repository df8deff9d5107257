//! Tests of connections: protocol versions, passwords, pipelines, slow readers, the end of the
//! server.

use std::io::Write;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use ordna_server::Config;

use crate::common::{Client, converse, fresh, request, show, start};
use crate::state::operation::http;

#[test]
fn the_connection_and_its_protocol() {
    let (_server, mut client) = fresh();
    converse(
        &mut client,
        &[
            ("PING", r"+PONG\r\n"),
            ("PING hi", r"$2\r\nhi\r\n"),
            ("PING a b", r"-ERR wrong number of arguments for 'ping' command\r\n"),
            ("ECHO hi", r"$2\r\nhi\r\n"),
            ("SELECT 0", r"+OK\r\n"),
            (
                "SELECT 1",
                r"-ERR DB index is out of range: Ordna has one database, number 0. Give keys a prefix, or start another server\r\n",
            ),
            ("CLIENT ID", r":1\r\n"),
            ("CLIENT GETNAME", r"$-1\r\n"),
            ("CLIENT SETNAME me", r"+OK\r\n"),
            ("CLIENT GETNAME", r"$2\r\nme\r\n"),
            ("CLIENT NONE", r"-ERR unknown subcommand 'NONE'. Try CLIENT HELP.\r\n"),
            ("CLIENT SETNAME", r"-ERR wrong number of arguments for 'client|setname' command\r\n"),
            ("CONFIG GET save", r"*2\r\n$4\r\nsave\r\n$0\r\n\r\n"),
            (
                "CONFIG SET port 1",
                r"-ERR CONFIG SET failed (possibly related to argument 'port') - can't set immutable config\r\n",
            ),
            ("NOPE a b", r"-ERR unknown command 'NOPE', with args beginning with: 'a' 'b' \r\n"),
            ("GET", r"-ERR wrong number of arguments for 'get' command\r\n"),
            ("HELLO 4", r"-NOPROTO unsupported protocol version\r\n"),
            ("RESET", r"+RESET\r\n"),
        ],
    );
    client.send(b"HELLO 3\r\n");
    client.resp3 = true;
    assert!(show(&client.reply()).starts_with(r"%7\r\n$6\r\nserver\r\n$5\r\nredis\r\n"));
    assert_eq!(client.say("GET nothing"), r"_\r\n");
    assert_eq!(client.say("CONFIG GET save"), r"%1\r\n$4\r\nsave\r\n$0\r\n\r\n");
    assert!(client.say("INFO").contains("# Server"));
    assert_eq!(client.say("QUIT"), r"+OK\r\n");
    assert!(client.is_closed());
}

#[test]
fn a_password_keeps_others_out() {
    let config = Config { password: Some("secret".to_owned()), ..Config::default() };
    let server = start(config);
    let mut client = Client::new(server.address);
    assert_eq!(client.say("GET a"), r"-NOAUTH Authentication required.\r\n");
    assert!(client.say("AUTH wrong").starts_with("-WRONGPASS"));
    assert!(client.say("HELLO 3").starts_with("-NOAUTH HELLO"));
    assert_eq!(client.say("AUTH secret"), r"+OK\r\n");
    assert_eq!(client.say("GET a"), r"$-1\r\n");
    let mut other = Client::new(server.address);
    other.send(b"*11\r\n");
    assert_eq!(show(&other.reply()), r"-ERR Protocol error: unauthenticated multibulk length\r\n");
    assert!(other.is_closed());
}

#[test]
fn wrong_passwords_of_one_address_are_limited_over_all_connections() {
    let any = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    let password = Some("secret".to_owned());
    let server = start(Config { password, console: any, ..Config::default() });
    let wrong = request(&[b"AUTH", b"wrong"]);
    let (begin, mut guesses, mut refused) = (Instant::now(), 0, 0);
    while refused < 20 {
        // After the limit, a correct password does not get a different reply either.
        let mut client = Client::new(server.address);
        client.send(&wrong);
        let reply = show(&client.reply());
        match reply.starts_with("-WRONGPASS") {
            true => guesses += 1,
            false => {
                assert!(reply.starts_with("-ERR too many wrong passwords came from"), "{reply}");
                refused += 1;
                let reply = show(&client.reply_to(b"AUTH secret\r\n"));
                assert!(reply == r"+OK\r\n" || reply.starts_with("-ERR too many"), "{reply}");
            }
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "{guesses} guesses");
    }
    // The burst, and ten attempts per second.
    let most = 101 + (begin.elapsed().as_millis() / 100) as usize;
    assert!((100..=most).contains(&guesses), "{guesses} of {most}");
    // A wrong password over HTTP counts, too.
    let login = "GET / HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic Ondyb25n\r\nConnection: close\r\n\r\n";
    let begin = Instant::now();
    while !http(server.console.unwrap(), login).starts_with("HTTP/1.1 429") {
        assert!(begin.elapsed() < Duration::from_secs(20));
    }
    // Other addresses are not affected, and this one may connect again at once.
    let mut other = Client::from_address([127, 0, 0, 2].into(), server.address);
    assert_eq!(other.say("AUTH secret"), r"+OK\r\n");
    let (mut client, begin) = (Client::new(server.address), Instant::now());
    while client.say("AUTH secret") != r"+OK\r\n" {
        assert!(begin.elapsed() < Duration::from_secs(10));
    }
}

#[test]
fn an_open_address_needs_a_password() {
    let config = Config { bind: vec![([0, 0, 0, 0], 0).into()], ..Config::default() };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let refused = runtime.block_on(ordna_server::Server::bind(config)).unwrap_err();
    assert!(refused.to_string().contains("--password"), "{refused}");
}

#[test]
fn a_pipeline_of_ten_thousand_commands_is_answered_in_order() {
    let (_server, mut client) = fresh();
    let mut bytes = Vec::new();
    for n in 0..10_000 {
        bytes.extend(request(&[b"SET", format!("k{n}").as_bytes(), n.to_string().as_bytes()]));
        bytes.extend(request(&[b"GET", format!("k{n}").as_bytes()]));
    }
    let mut writer = client.stream.try_clone().unwrap();
    let sender = std::thread::spawn(move || writer.write_all(&bytes).unwrap());
    for n in 0..10_000 {
        assert_eq!(client.reply(), b"+OK\r\n");
        let digits = n.to_string();
        assert_eq!(client.reply(), format!("${}\r\n{digits}\r\n", digits.len()).as_bytes());
    }
    sender.join().unwrap();
}

#[test]
fn broken_requests_close_only_their_connection() {
    let (_server, mut client) = fresh();
    for bytes in [
        b"*1\r\n:5\r\n".as_slice(),
        b"*99999999999\r\n",
        b"*1\r\n$-5\r\n",
        b"*1\r\n$999999999999\r\n",
        b"SET \"a\r\n",
    ] {
        let mut broken = Client::new(_server.address);
        broken.send(&request(&[b"SET", b"before", b"v"]));
        broken.send(bytes);
        assert_eq!(broken.reply(), b"+OK\r\n", "what came before is answered");
        let reply = show(&broken.reply());
        assert!(reply.starts_with("-ERR Protocol error"), "{}: {reply}", show(bytes));
        assert!(broken.is_closed(), "{}", show(bytes));
    }
    // A client that disconnects in the middle of a command: nothing of the command is executed.
    let mut half = Client::new(_server.address);
    half.send(b"*3\r\n$3\r\nSET\r\n$4\r\nhalf\r\n$5\r\nval");
    drop(half);
    assert_eq!(client.say("EXISTS half before"), r":1\r\n");
}

/// The server stops reading from a client that requests much and reads nothing. Other clients are
/// not affected.
#[test]
fn a_slow_reader_holds_up_only_itself() {
    let (_server, mut client) = fresh();
    let value = vec![b'v'; 1 << 20];
    client.ask(&[b"SET", b"big", &value]);
    let mut slow = Client::new(_server.address);
    slow.stream.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
    let ask = request(&[b"GET", b"big"]).repeat(200);
    // The client requests 200 MiB of replies. The sockets hold a few MiB, and the server the share
    // of one batch.
    let _ = slow.stream.write_all(&ask);
    let start = Instant::now();
    for _ in 0..100 {
        assert_eq!(client.say("PING"), r"+PONG\r\n");
    }
    // If this client were held up, its requests would not be answered at all.
    assert!(start.elapsed() < Duration::from_secs(20));
    for _ in 0..200 {
        assert_eq!(slow.reply().len(), value.len() + 12);
    }
}

#[test]
fn stopping_answers_what_was_read() {
    let mut server = start(Config::default());
    let mut clients: Vec<Client> = (0..8).map(|_| Client::new(server.address)).collect();
    for client in &mut clients {
        for n in 0..200 {
            client.send(&request(&[b"SET", format!("{n}").as_bytes(), b"v"]));
        }
        assert_eq!(client.reply(), b"+OK\r\n");
    }
    server.stop();
    for client in &mut clients {
        let mut answered = 1;
        while !client.reply().is_empty() {
            answered += 1;
        }
        assert!(answered <= 200);
    }
}

#[test]
fn more_clients_than_allowed_are_told_so() {
    let server = start(Config { max_clients: 2, ..Config::default() });
    let mut first = Client::new(server.address);
    let mut second = Client::new(server.address);
    assert_eq!((first.say("PING"), second.say("PING")), (r"+PONG\r\n".into(), r"+PONG\r\n".into()));
    let mut third = Client::new(server.address);
    assert_eq!(show(&third.reply()), r"-ERR max number of clients reached\r\n");
    assert!(third.is_closed());
}

/// The error for a command that Ordna lacks names the command and an alternative, also in a script.
#[test]
fn commands_of_redis_that_are_missing_have_helpful_errors() {
    let (_server, mut client) = fresh();
    for (name, instead) in [
        ("XADD", "Ordna has no streams; "),
        ("xdelex", "Ordna has no streams; "),
        ("PFADD", "SADD and SCARD count exactly"),
        ("GEOADD", "Ordna has no geographic commands"),
        ("CLUSTER", "Ordna has no clusters; "),
        ("PSYNC", "copies of Ordna are fed by Kafka"),
        ("MIGRATE", "DUMP and RESTORE copy them"),
    ] {
        let error = client.say(&format!("{name} a b"));
        assert!(error.starts_with(&format!("-ERR unknown command '{name}': ")), "{error}");
        assert!(error.contains(instead), "{error}");
        let error = client.say(&format!("EVAL return(redis.call('{name}','a','b')) 0"));
        let unknown = format!("-ERR Unknown Redis command called from script: '{name}': ");
        assert!(error.starts_with(&unknown) && error.contains(instead), "{error}");
    }
    let error = client.say("EVAL return(redis.call('nope')) 0");
    assert!(error.starts_with("-ERR Unknown Redis command called from script script: "), "{error}");
}
