//! Tests of what an operator uses: logs, limits, users, metrics, the console, TLS.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ordna_server::{Config, TlsConfig};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{self, ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::common::{Client, request, show, start};

fn bulk(text: &str) -> String {
    format!(r"${}\r\n{text}\r\n", text.len())
}

#[test]
fn the_slow_log_keeps_what_took_long() {
    let server = start(Config::default());
    let mut client = Client::new(server.address);
    assert_eq!(client.say("CONFIG SET slowlog-log-slower-than 0 slowlog-max-len 3"), r"+OK\r\n");
    client.say("SLOWLOG RESET");
    let long = "v".repeat(200);
    client.say(&format!("SET key {long}"));
    let log = client.say("SLOWLOG GET 1");
    let shown = format!("{}... (72 more bytes)", "v".repeat(128));
    let words = [bulk("SET"), bulk("key"), bulk(&shown)].concat();
    assert!(log.contains(&format!(r"*3\r\n{words}")), "{log}");
    (0..5).for_each(|_| assert_eq!(client.say("GET nothing"), r"$-1\r\n"));
    assert_eq!(client.say("SLOWLOG LEN"), r":3\r\n");
    client.say("AUTH default topsecret");
    assert!(!client.say("SLOWLOG GET -1").contains("topsecret"));
    assert_eq!(client.say("CONFIG SET slowlog-log-slower-than -1"), r"+OK\r\n");
    client.say("SLOWLOG RESET");
    client.say("PING");
    assert_eq!(client.say("SLOWLOG LEN"), r":0\r\n");
    assert_eq!(
        client.say("SLOWLOG GET x"),
        r"-ERR count should be greater than or equal to -1\r\n"
    );
    let histogram = client.say("LATENCY HISTOGRAM get");
    assert!(histogram.contains(r"calls\r\n:5\r\n"), "{histogram}");
    assert_eq!(client.say("LATENCY LATEST"), r"*0\r\n");
}

#[test]
fn a_monitor_sees_the_commands_of_others() {
    let server = start(Config::default());
    let mut monitor = Client::new(server.address);
    assert_eq!(monitor.say("MONITOR"), r"+OK\r\n");
    let mut client = Client::new(server.address);
    client.ask(&[b"SET", b"a\n\"b", b"1"]);
    client.say("AUTH default topsecret");
    client.say("GET x");
    let first = show(&monitor.reply());
    assert!(first.ends_with(r#"] \"SET\" \"a\\n\\\"b\" \"1\"\r\n"#), "{first}");
    let second = show(&monitor.reply());
    assert!(second.ends_with(r#"] \"AUTH\" \"(redacted)\" \"(redacted)\"\r\n"#), "{second}");
    let third = show(&monitor.reply());
    assert!(third.ends_with(r#"\"GET\" \"x\"\r\n"#), "{third}");
    assert_eq!(monitor.say("RESET"), r"+RESET\r\n");
    client.say("GET x");
    assert_eq!(monitor.say("PING"), r"+PONG\r\n");
}

#[test]
fn a_monitor_that_loses_its_right_is_closed() {
    let server = start(Config::default());
    let (mut monitor, mut admin) = (Client::new(server.address), Client::new(server.address));
    assert_eq!(admin.say("ACL SETUSER watcher on >pw ~* &* +@all"), r"+OK\r\n");
    assert_eq!(monitor.say("AUTH watcher pw"), r"+OK\r\n");
    assert_eq!(monitor.say("MONITOR"), r"+OK\r\n");
    assert_eq!(admin.say("ACL SETUSER watcher -get"), r"+OK\r\n");
    admin.say("SET a 1");
    let seen = show(&monitor.reply());
    assert!(seen.contains("SET"), "{seen}");
    assert_eq!(admin.say("ACL SETUSER watcher -monitor"), r"+OK\r\n");
    admin.say("SET secret value");
    while let Some(line) = monitor.reply_within(Duration::from_secs(10)) {
        assert!(!show(&line).contains("value"), "{}", show(&line));
        if line.is_empty() {
            return;
        }
    }
    panic!("the client continues to monitor");
}

#[test]
fn clients_are_listed_killed_paused_and_silenced() {
    let server = start(Config::default());
    let (mut one, mut two) = (Client::new(server.address), Client::new(server.address));
    one.say("CLIENT SETNAME first");
    assert!(one.say("CLIENT INFO").contains(" name=first "));
    let id = two.say("CLIENT ID").trim_start_matches(':').replace(r"\r\n", "");
    let list = one.say(&format!("CLIENT LIST ID {id}"));
    assert!(list.contains(&format!("id={id} ")) && !list.contains("name=first"), "{list}");
    assert_eq!(one.say("CLIENT LIST TYPE pubsub"), r"$0\r\n\r\n");
    assert_eq!(one.say(&format!("CLIENT KILL ID {id}")), r":1\r\n");
    assert!(two.is_closed());
    assert_eq!(one.say("CLIENT KILL TYPE normal"), r":0\r\n", "not itself");
    assert_eq!(one.say("CLIENT KILL 127.0.0.1:1"), r"-ERR No such client\r\n");
    // Replies are turned off, and then skipped for one command.
    one.send(&request(&[b"CLIENT", b"REPLY", b"OFF"]));
    one.send(&request(&[b"SET", b"a", b"1"]));
    assert_eq!(one.say("CLIENT REPLY ON"), r"+OK\r\n");
    one.send(&request(&[b"CLIENT", b"REPLY", b"SKIP"]));
    one.send(&request(&[b"KEYS", b"*"]));
    assert_eq!(one.say("GET a"), r"$1\r\n1\r\n");
    assert!(one.say("CLIENT TRACKING ON").starts_with("-ERR Ordna does not notify"));
    // A pause of writes.
    let mut two = Client::new(server.address);
    two.say("PING");
    assert_eq!(one.say("CLIENT PAUSE 20000 WRITE"), r"+OK\r\n");
    assert_eq!(two.say("GET a"), r"$1\r\n1\r\n");
    two.send(&request(&[b"SET", b"a", b"2"]));
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(one.say("GET a"), r"$1\r\n1\r\n");
    assert_eq!(one.say("CLIENT UNPAUSE"), r"+OK\r\n");
    assert_eq!(show(&two.reply()), r"+OK\r\n");
    assert_eq!(one.say("GET a"), r"$1\r\n2\r\n");
    // A transaction that was queued before a pause waits, too.
    assert_eq!(two.say("MULTI"), r"+OK\r\n");
    assert_eq!(two.say("SET a 3"), r"+QUEUED\r\n");
    assert_eq!(one.say("CLIENT PAUSE 20000 WRITE"), r"+OK\r\n");
    two.send(&request(&[b"EXEC"]));
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(one.say("GET a"), r"$1\r\n2\r\n");
    assert_eq!(one.say("CLIENT UNPAUSE"), r"+OK\r\n");
    assert_eq!(show(&two.reply()), r"*1\r\n+OK\r\n");
    assert_eq!(one.say("CLIENT KILL SKIPME NO"), r":2\r\n");
    assert!(one.is_closed() && two.is_closed());
}

#[test]
fn settings_are_changed_while_the_server_runs() {
    let server = start(Config::default());
    let mut client = Client::new(server.address);
    let lines = [
        ("CONFIG SET maxclients 20", r"+OK\r\n"),
        ("CONFIG GET maxclients", r"*2\r\n$10\r\nmaxclients\r\n$2\r\n20\r\n"),
        ("CLIENT PAUSE -1", r"-ERR timeout is negative\r\n"),
        ("CONFIG SET maxmemory-clients 10%", r"+OK\r\n"),
        ("CONFIG GET maxmemory-clients", r"*2\r\n$17\r\nmaxmemory-clients\r\n$1\r\n0\r\n"),
        ("CONFIG SET maxmemory-clients 1mb", r"+OK\r\n"),
        ("CONFIG GET maxmemory-clients", r"*2\r\n$17\r\nmaxmemory-clients\r\n$7\r\n1048576\r\n"),
        (
            "CONFIG SET maxclients 0",
            r"-ERR CONFIG SET failed (possibly related to argument 'maxclients') - argument must be between 1 and 4294967295 inclusive\r\n",
        ),
        (
            "CONFIG SET timeout x",
            r"-ERR CONFIG SET failed (possibly related to argument 'timeout') - argument couldn't be parsed into an integer\r\n",
        ),
        (
            "CONFIG SET port 1",
            r"-ERR CONFIG SET failed (possibly related to argument 'port') - can't set immutable config\r\n",
        ),
    ];
    for (line, reply) in lines {
        assert_eq!(client.say(line), reply, "{line}");
    }
    // If one of the settings is wrong, none is changed.
    client.say("CONFIG SET timeout 7 port 1");
    assert_eq!(client.say("CONFIG GET timeout"), r"*2\r\n$7\r\ntimeout\r\n$1\r\n0\r\n");
    client.say("CONFIG SET timeout 1");
    let begin = Instant::now();
    assert!(client.is_closed());
    assert!(begin.elapsed() < Duration::from_secs(10));
}

#[test]
fn users_may_do_what_they_are_allowed() {
    let file = std::env::temp_dir().join(format!("ordna-users-{}", std::process::id()));
    std::fs::write(&file, "").unwrap();
    let server = start(Config { acl_file: Some(file.clone()), ..Config::default() });
    let mut admin = Client::new(server.address);
    let set = "ACL SETUSER alice on >pw ~a* %R~b* +@transaction +@read +set -mget +config|get";
    assert_eq!(admin.say(set), r"+OK\r\n");
    let mut alice = Client::new(server.address);
    assert_eq!(alice.say("AUTH alice pw"), r"+OK\r\n");
    let denied_key =
        r"-NOPERM this user has no permissions to access one of the keys used as arguments\r\n";
    let denied = |name: &str| {
        format!(r"-NOPERM this user has no permissions to run the '{name}' command\r\n")
    };
    let lines: [(&str, String); 12] = [
        ("ACL WHOAMI", denied("acl|whoami")),
        ("SET a1 x", r"+OK\r\n".to_owned()),
        ("GET a1", r"$1\r\nx\r\n".to_owned()),
        ("GET b1", r"$-1\r\n".to_owned()),
        ("SET b1 x", denied_key.to_owned()),
        ("GET c", denied_key.to_owned()),
        ("MGET a1 a2", denied("mget")),
        ("FLUSHALL", denied("flushall")),
        // The command would show keys that the user may not read.
        ("ORDNA.FIRST", denied_key.to_owned()),
        ("KEYS *a", denied_key.to_owned()),
        ("CONFIG GET save", r"*2\r\n$4\r\nsave\r\n$0\r\n\r\n".to_owned()),
        ("CONFIG SET timeout 1", denied("config|set")),
    ];
    for (line, reply) in lines {
        assert_eq!(alice.say(line), reply, "{line}");
    }
    assert!(admin.say("ACL LOG").contains("alice"));
    assert_eq!(admin.say("ACL DRYRUN alice get a"), r"+OK\r\n");
    let list = admin.say("ACL GETUSER alice");
    assert!(list.contains("-@all +@transaction +@read +set -mget +config|get"), "{list}");
    assert_eq!(admin.say("ACL SAVE"), r"+OK\r\n");
    // Changes affect existing connections and queued commands.
    alice.say("MULTI");
    alice.say("SET a1 y");
    admin.say("ACL SETUSER alice -set");
    assert!(alice.say("EXEC").starts_with(r"*1\r\n-NOPERM ACLs rules changed between"));
    assert_eq!(alice.say("SET a1 y"), denied("set"));
    assert_eq!(admin.say("ACL LOAD"), r"+OK\r\n");
    assert_eq!(alice.say("SET a1 y"), r"+OK\r\n", "as it was saved");
    assert_eq!(admin.say("ACL DELUSER alice nobody"), r":1\r\n");
    assert!(alice.is_closed());
    assert_eq!(admin.say("ACL DELUSER default"), r"-ERR The 'default' user cannot be removed\r\n");
    // A user that the file no longer contains.
    assert_eq!(admin.say("ACL LOAD"), r"+OK\r\n");
    let mut alice = Client::new(server.address);
    assert_eq!(alice.say("AUTH alice pw"), r"+OK\r\n");
    std::fs::write(&file, "").unwrap();
    assert_eq!(admin.say("ACL LOAD"), r"+OK\r\n");
    assert!(alice.is_closed());
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn locks_of_redis_clients_work() {
    let server = start(Config::default());
    let mut client = Client::new(server.address);
    // The scripts of redis-py, with each run of white space replaced by one space.
    let release = "local token = redis.call('get', KEYS[1]) if not token or token ~= ARGV[1] then return 0 end redis.call('del', KEYS[1]) return 1";
    let renew = "local token = redis.call('get', KEYS[1]) if not token or token ~= ARGV[1] then return 0 end redis.call('pexpire', KEYS[1], ARGV[2]) return 1";
    let mut eval = |script: &str, rest: &[&str]| {
        let mut words: Vec<&[u8]> = vec![b"EVAL", script.as_bytes(), b"1"];
        words.extend(rest.iter().map(|word| word.as_bytes()));
        client.ask(&words)
    };
    assert_eq!(eval(release, &["lock", "me"]), r":0\r\n");
    let mut other = Client::new(server.address);
    other.say("SET lock me PX 60000 NX");
    assert_eq!(eval(release, &["lock", "you"]), r":0\r\n");
    assert_eq!(eval(renew, &["lock", "me", "9000000"]), r":1\r\n");
    let left = other.say("PEXPIRETIME lock");
    assert_eq!(eval(renew, &["lock", "me", "90000000"]), r":1\r\n");
    assert_ne!(other.say("PEXPIRETIME lock"), left);
    assert_eq!(eval(release, &["lock", "me"]), r":1\r\n");
    assert_eq!(other.say("EXISTS lock"), r":0\r\n");
    assert_eq!(eval("return 1", &["lock"]), r":1\r\n");
    let sha = other.ask(&[b"SCRIPT", b"LOAD", release.as_bytes()]);
    let sha = sha.split(r"\r\n").nth(1).unwrap().to_owned();
    assert_eq!(other.say(&format!("EVALSHA {sha} 1 lock me")), r":0\r\n");
    assert!(other.say("EVALSHA 00 1 lock me").starts_with("-NOSCRIPT"));
    // The same operations as commands.
    other.say("SET lock me");
    assert_eq!(other.say("DELIFEQ lock you"), r":0\r\n");
    assert_eq!(other.say("SET lock us IFEQ you"), r"$-1\r\n");
    assert_eq!(other.say("SET lock us IFEQ me"), r"+OK\r\n");
    assert_eq!(other.say("DELIFEQ lock us"), r":1\r\n");
}

/// Returns the server's response to a request over HTTP.
pub fn http(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    reply
}

pub fn page(address: SocketAddr, path: &str) -> String {
    http(address, &format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"))
}

#[test]
fn metrics_and_the_console_are_served() {
    let any = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    let server = start(Config { metrics: any, console: any, ..Config::default() });
    let mut client = Client::new(server.address);
    client.say("MSET a 1 b 2 c/<b> 3");
    client.say("GET a");
    let (metrics, console) = (server.metrics.unwrap(), server.console.unwrap());
    let text = page(metrics, "/metrics");
    for line in [
        "ordna_keys 3\n",
        "ordna_keyspace_hits_total 1\n",
        "ordna_command_duration_seconds_count{command=\"get\"} 1\n",
        "ordna_command_duration_seconds_bucket{command=\"mset\",le=\"+Inf\"} 1\n",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
    assert!(page(metrics, "/healthz").ends_with("\r\n\r\nok\n"));
    assert!(page(metrics, "/readyz").ends_with("\r\n\r\nready\n"));
    assert!(page(metrics, "/").starts_with("HTTP/1.1 404"));
    assert!(page(console, "/").contains("<title>Ordna</title>"));
    assert!(page(console, "/state").contains("\"keys\":3"));
    let keys = page(console, "/keys?prefix=c%2f");
    assert!(keys.contains("\"key\":\"c/<b>\"") && keys.contains("\"below\":\"b\""), "{keys}");
    let many: Vec<String> = (0..60).map(|number| format!("many{number:02} 1")).collect();
    client.say(&format!("MSET {}", many.join(" ")));
    // A page has up to 50 keys, and says whether there may be more.
    for (query, count, is_full, first) in [
        ("prefix=many", 50, true, "many00"),
        ("prefix=many1", 10, false, "many10"),
        ("prefix=many&from=many50", 10, false, "many50"),
        ("prefix=many&before=many55", 50, true, "many05"),
    ] {
        let keys = page(console, &format!("/keys?{query}"));
        assert_eq!(keys.matches("\"key\":").count(), count, "{query}: {keys}");
        assert!(keys.contains(&format!("\"full\":{is_full}")), "{query}: {keys}");
        let (_, rest) = keys.split_once("\"key\":\"").unwrap();
        assert!(rest.starts_with(first), "{query}: {keys}");
    }
    let post = "POST /keys HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    assert!(http(console, post).starts_with("HTTP/1.1 405"));
    // A request from a page of another site whose name resolves to this address.
    let foreign = "GET /state HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n";
    assert!(http(console, foreign).starts_with("HTTP/1.1 421"));
    // If there is a password, the console asks for it.
    client.say("CONFIG SET requirepass secret");
    assert!(page(console, "/keys").starts_with("HTTP/1.1 401"));
    let with = |login: &str| {
        http(
            console,
            &format!(
                "GET /keys HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic {login}\r\nConnection: close\r\n\r\n"
            ),
        )
    };
    assert!(with("OnNlY3JldA==").starts_with("HTTP/1.1 200"), ":secret");
    assert!(with("Ondyb25n").starts_with("HTTP/1.1 401"), ":wrong");
}

#[test]
fn tls_is_spoken_and_certificates_are_asked_for() {
    let folder = std::env::temp_dir().join(format!("ordna-tls-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let (certificate, key) = (folder.join("cert.pem"), folder.join("key.pem"));
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let any = vec![SocketAddr::from(([127, 0, 0, 1], 0))];
    for mutual in [false, true] {
        let tls = TlsConfig {
            bind: any.clone(),
            certificate: certificate.clone(),
            key: key.clone(),
            client_authorities: mutual.then(|| certificate.clone()),
        };
        let server = start(Config { tls: Some(tls), ..Config::default() });
        let address = server.tls.unwrap();
        assert_eq!(ping(address, &certificate, None).is_ok(), !mutual);
        assert!(ping(address, &certificate, Some(&key)).is_ok());
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

pub type TlsStream = StreamOwned<ClientConnection, TcpStream>;

/// Connects over TLS, with a certificate of the client if there is a key.
pub fn connect(
    address: SocketAddr,
    certificate: &std::path::Path,
    key: Option<&std::path::PathBuf>,
) -> std::io::Result<TlsStream> {
    let chain = || CertificateDer::pem_file_iter(certificate).unwrap().map(Result::unwrap);
    let mut roots = RootCertStore::empty();
    chain().for_each(|certificate| roots.add(certificate).unwrap());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let config = match key {
        None => builder.with_no_client_auth(),
        Some(key) => {
            let key = PrivateKeyDer::from_pem_file(key).unwrap();
            builder.with_client_auth_cert(chain().collect(), key).unwrap()
        }
    };
    let name = ServerName::try_from("localhost").unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    Ok(StreamOwned::new(connection, stream))
}

/// Sends PING over TLS.
pub fn ping(
    address: SocketAddr,
    certificate: &std::path::Path,
    key: Option<&std::path::PathBuf>,
) -> std::io::Result<()> {
    let mut stream = connect(address, certificate, key)?;
    stream.write_all(b"PING\r\n")?;
    let mut reply = [0; 7];
    stream.read_exact(&mut reply)?;
    assert_eq!(&reply, b"+PONG\r\n");
    Ok(())
}

#[test]
fn a_client_that_reads_nothing_over_tls_is_closed() {
    let folder = std::env::temp_dir().join(format!("ordna-lazy-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let (certificate, key) = (folder.join("cert.pem"), folder.join("key.pem"));
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    // The connection is closed after a while, or at once by CLIENT KILL.
    for (stall, kills) in [(Duration::from_millis(300), false), (Duration::from_secs(3600), true)] {
        let tls = TlsConfig {
            bind: vec![SocketAddr::from(([127, 0, 0, 1], 0))],
            certificate: certificate.clone(),
            key: key.clone(),
            client_authorities: None,
        };
        let server = start(Config { tls: Some(tls), stall, ..Config::default() });
        let mut lazy = connect(server.tls.unwrap(), &certificate, None).unwrap();
        lazy.write_all(b"PING\r\n").unwrap();
        lazy.sock.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
        // The replies to one read are fewer than TLS accepts without waiting.
        let pings = b"PING\r\n".repeat(1000);
        while lazy.write_all(&pings).is_ok() {}
        let mut admin = Client::new(server.address);
        if kills {
            assert_eq!(admin.say("CLIENT KILL TYPE normal"), r":1\r\n");
        }
        let begin = Instant::now();
        while admin.say("CLIENT LIST").matches("addr=127").count() > 2 {
            assert!(begin.elapsed() < Duration::from_secs(20), "still there, killed: {kills}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn shutdown_stops_the_server() {
    let mut server = start(Config::default());
    let mut client = Client::new(server.address);
    assert!(
        client.say("SHUTDOWN SAVE").starts_with("-ERR this server keeps its keys in memory only")
    );
    client.send(&request(&[b"SHUTDOWN", b"NOSAVE"]));
    assert!(client.is_closed());
    server.wait();
}
