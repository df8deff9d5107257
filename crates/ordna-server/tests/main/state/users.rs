//! Tests of users: who can connect, what each may do, and the file that stores them.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use base64::Engine;
use ordna_server::{Config, ServeError, Server};

use crate::common::{Client, Random, fresh, start};
use crate::state::operation::http;

/// An ACL file that is removed on drop.
struct UserFile(PathBuf);

impl UserFile {
    fn new(name: &str, text: &str) -> Self {
        let name = format!("ordna-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, text).unwrap();
        Self(path)
    }
}

impl Drop for UserFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Binds a server without serving, and drops it.
fn bind(config: Config) -> Result<(), ServeError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(Server::bind(config)).map(drop)
}

#[test]
fn an_address_that_others_reach_needs_passwords() {
    let everywhere = SocketAddr::from(([0, 0, 0, 0], 0));
    let local = SocketAddr::from(([127, 0, 0, 1], 0));
    let open = Config { bind: vec![local, everywhere], ..Config::default() };
    let refused = |config: Config, name: &str| match bind(config) {
        Err(ServeError::Open { user, .. }) => assert_eq!(user, name),
        Err(error) => panic!("{error}"),
        Ok(()) => panic!("the server would listen, open to user {name}"),
    };
    refused(open.clone(), "default");
    let password = Some("secret".to_owned());
    bind(Config { password: password.clone(), ..open.clone() }).unwrap();
    bind(Config { insecure: true, ..open.clone() }).unwrap();
    bind(Config { bind: vec![local], ..Config::default() }).unwrap();
    let pages = Config { console: Some(everywhere), bind: vec![local], ..Config::default() };
    refused(pages, "default");
    let with_file = |text: &str, password: &Option<String>| {
        let file = UserFile::new("open", text);
        let config =
            Config { acl_file: Some(file.0.clone()), password: password.clone(), ..open.clone() };
        (config, file)
    };
    // The mere existence of an ACL file does not lock anybody out.
    for (text, password, user) in [
        ("", None, "default"),
        ("user bob on >pw ~* +@all\n", None, "default"),
        ("user default on nopass ~* -@all +ping\n", password.clone(), "default"),
        ("user default off\nuser bob on nopass ~b* +get\n", None, "bob"),
    ] {
        let (config, _file) = with_file(text, &password);
        refused(config, user);
    }
    for (text, password) in [
        ("", password.clone()),
        ("user default off\nuser bob on >pw +get\n", None),
        ("user default off nopass ~* +@all\n", None),
    ] {
        let (config, _file) = with_file(text, &password);
        bind(config).unwrap();
    }
    // If the file is missing, its users are lost.
    let (config, file) = with_file("", &password);
    drop(file);
    let missing = bind(config).unwrap_err();
    assert!(matches!(missing, ServeError::Users(_)), "{missing}");
}

#[test]
fn a_server_that_others_reach_stays_closed() {
    let file = UserFile::new("closed", "");
    // A page that other machines can reach is enough; the commands are on 127.0.0.1.
    let config = Config {
        metrics: Some(SocketAddr::from(([0, 0, 0, 0], 0))),
        password: Some("secret".to_owned()),
        acl_file: Some(file.0.clone()),
        ..Config::default()
    };
    let server = start(config);
    let mut admin = Client::new(server.address);
    assert_eq!(admin.say("AUTH secret"), r"+OK\r\n");
    std::fs::write(&file.0, "user default on nopass ~* +@all\n").unwrap();
    for line in [
        "CONFIG SET timeout 7 requirepass ",
        "ACL SETUSER default nopass",
        "ACL SETUSER bob on nopass",
        "ACL LOAD",
    ] {
        let reply = admin.say(line);
        assert!(reply.contains("needs a password") && reply.starts_with("-ERR"), "{line}: {reply}");
    }
    assert!(Client::new(server.address).say("PING").starts_with("-NOAUTH"));
    assert_eq!(admin.say("CONFIG GET timeout"), r"*2\r\n$7\r\ntimeout\r\n$1\r\n0\r\n");
    assert_eq!(admin.say("ACL USERS"), r"*1\r\n$7\r\ndefault\r\n");
    assert_eq!(admin.say("ACL SETUSER bob on >pw"), r"+OK\r\n");
}

/// Returns whether `ACL DRYRUN` allows a call.
fn may(admin: &mut Client, user: &str, call: &str) -> bool {
    let reply = admin.say(&format!("ACL DRYRUN {user} {call}"));
    assert!(!reply.starts_with('-'), "{call}: {reply}");
    reply == r"+OK\r\n"
}

#[test]
fn subcommands_that_govern_others_are_denied_with_their_categories() {
    let (_server, mut admin) = fresh();
    for rules in ["~app:* +@all -@admin -@dangerous", "+@connection -@dangerous", "+@all -@admin"] {
        assert_eq!(admin.say(&format!("ACL SETUSER app reset on nopass {rules}")), r"+OK\r\n");
        for call in [
            "CLIENT PAUSE 9223372036854775807",
            "CLIENT KILL TYPE normal",
            "CLIENT LIST",
            "CLIENT NO-EVICT on",
            "CLIENT UNBLOCK 1",
            "client unpause",
            "CONFIG GET maxmemory",
            "ACL LIST",
            "SLOWLOG GET",
            "LATENCY LATEST",
            "ROLE",
            "LASTSAVE",
            "MONITOR",
            "SHUTDOWN",
        ] {
            assert!(!may(&mut admin, "app", call), "{rules}: {call}");
        }
        for call in ["CLIENT ID", "CLIENT SETNAME a", "CLIENT HELP", "PING"] {
            assert!(may(&mut admin, "app", call), "{rules}: {call}");
        }
    }
    admin.say("ACL SETUSER app reset on nopass +@all -@dangerous");
    assert!(!may(&mut admin, "app", "INFO") && !may(&mut admin, "app", "RESTORE k 0 x"));
    // A pause delays neither a login nor the end of the pause.
    admin.say("ACL SETUSER operator reset on >pw +@all");
    admin.say("CLIENT PAUSE 9223372036854775807");
    let mut operator = Client::new(_server.address);
    assert_eq!(operator.say("AUTH operator pw"), r"+OK\r\n");
    assert_eq!(operator.say("CLIENT UNPAUSE"), r"+OK\r\n");
}

#[test]
fn rules_of_unknown_commands_are_refused_and_those_of_redis_accepted() {
    let (_server, mut admin) = fresh();
    admin.say("ACL SETUSER u on nopass +@all");
    for (rule, why) in [
        ("-config|sett", "Unknown command or category name in ACL"),
        ("-confg", "Unknown command or category name in ACL"),
        ("-@admn", "Unknown command or category name in ACL"),
        ("-select|0", "Unknown command or category name in ACL"),
        ("+config|get|x", "Allowing first-arg of a subcommand is not supported"),
        ("+get|", "Syntax error"),
        ("~a b", "Syntax error"),
        ("%RR~a", "Syntax error"),
    ] {
        let reply = admin.ask(&[b"ACL", b"SETUSER", b"u", rule.as_bytes()]);
        let start = format!("-ERR Error in ACL SETUSER modifier '{rule}': {why}");
        assert!(reply.starts_with(&start), "{rule}: {reply}");
    }
    // Categories and commands of Redis.
    let rules = "~* -@pubsub -@set -@sortedset -@list -@hyperloglog -@geo -@stream -@blocking -debug \
                 -replicaof -cluster|addslots +lpush +xinfo|stream +swapdb|0";
    assert_eq!(admin.say(&format!("ACL SETUSER u {rules}")), r"+OK\r\n");
    assert!(may(&mut admin, "u", "CONFIG SET timeout 1") && may(&mut admin, "u", "HSET h a 1"));
    assert_eq!(admin.say("ACL CAT stream"), r"*0\r\n");
    // A rule with a first argument allows nothing else.
    admin.say("ACL SETUSER v on nopass +select|0 +config|get");
    assert!(may(&mut admin, "v", "SELECT 0") && !may(&mut admin, "v", "SELECT 1"));
    assert!(may(&mut admin, "v", "config get x") && !may(&mut admin, "v", "CONFIG SET timeout 1"));
    // A subcommand that does not exist is an error before permissions are checked.
    let mut client = Client::new(_server.address);
    client.say("AUTH v x");
    assert_eq!(client.say("CLIENT NOPE"), r"-ERR unknown subcommand 'NOPE'. Try CLIENT HELP.\r\n");
    assert_eq!(
        client.say("CONFIG GET"),
        r"-ERR wrong number of arguments for 'config|get' command\r\n"
    );
}

#[test]
fn each_key_needs_the_access_that_the_command_has_to_it() {
    let (_server, mut admin) = fresh();
    admin.say("ACL SETUSER u on nopass ~mine:* %W~in:* %R~out:* +@all");
    for call in [
        "SET in:1 x",
        "SET in:1 x EX 10 NX",
        "HDEL in:1 f",
        "APPEND in:1 x",
        "COPY out:1 in:1",
        "BITOP NOT in:1 out:1",
        "BITFIELD out:1 GET u4 0",
        "EXISTS in:1 out:1 mine:1",
        "TYPE in:1",
        "STRLEN in:1",
        "HLEN in:1",
        "OBJECT ENCODING in:1",
        "MEMORY USAGE in:1",
        "WATCH in:1",
        "GET out:1",
        "RENAME mine:1 in:1",
        "EVAL x 0 other",
    ] {
        assert!(may(&mut admin, "u", call), "{call}");
    }
    for call in [
        "COPY in:1 mine:x",
        "COPY out:1 out:2",
        "BITOP OR mine:x in:1 mine:y",
        "BITOP OR out:x mine:1",
        "SET in:1 x GET",
        "SET in:1 y IFEQ x",
        "SET out:1 x",
        "GETSET in:1 x",
        "GETDEL in:1",
        "GETEX in:1",
        "INCR in:1",
        "SETBIT in:1 0 1",
        "GET in:1",
        "DUMP in:1",
        "BITFIELD in:1 GET u4 0",
        "BITFIELD out:1 SET u4 0 1",
        "BITFIELD out:1 GET u4",
        "RENAME in:1 mine:1",
        "MGET mine:1 in:1",
        "EXISTS other",
        "EVAL x 2 mine:1 other",
        "KEYS *",
    ] {
        assert!(!may(&mut admin, "u", call), "{call}");
    }
    // All keys, read-only.
    admin.say("ACL SETUSER r on nopass %R~* +@all");
    assert!(may(&mut admin, "r", "SCAN 0") && !may(&mut admin, "r", "FLUSHALL"));
}

#[test]
fn a_selector_allows_what_it_allows_as_a_whole() {
    let (_server, mut admin) = fresh();
    let rules = "on nopass ~a* +get (~b* +set) (%R~c* +@read)";
    assert_eq!(admin.say(&format!("ACL SETUSER u {rules}")), r"+OK\r\n");
    for (call, allowed) in [
        ("GET a", true),
        ("SET b x", true),
        ("GET c", true),
        ("SET a x", false),
        ("GET b", false),
        ("SET c x", false),
        ("MGET c1 c2", true),
        ("MGET a c", false),
    ] {
        assert_eq!(may(&mut admin, "u", call), allowed, "{call}");
    }
    let list = admin.say("ACL LIST");
    let line = "user u on nopass ~a* resetchannels -@all +get (~b* resetchannels -@all +set) \
                (%R~c* resetchannels -@all +@read)";
    assert!(list.contains(line), "{list}");
    for (words, error) in [
        (&["(+get"][..], "-ERR Unmatched parenthesis in acl selector starting at '(+get'."),
        // A line in an ACL file could not show where this name ends.
        (
            &["(~foo) +@all +get|x))"][..],
            "-ERR Error in ACL SETUSER modifier '(~foo) +@all +get|x))': Syntax error",
        ),
        (&["(&x) +@all)"][..], "-ERR Error in ACL SETUSER modifier '(&x) +@all)': Syntax error"),
        (&["(on)"], "-ERR Error in ACL SETUSER modifier '(on)': Syntax error"),
        (&["(+nope)"], "-ERR Error in ACL SETUSER modifier '(+nope)': Unknown command"),
        (&["(~'a')"], "-ERR Error in ACL SETUSER modifier '(~'a')': Syntax error"),
    ] {
        let words = words.iter().map(|word| word.as_bytes());
        let call: Vec<&[u8]> = [&b"ACL"[..], b"SETUSER", b"u"].into_iter().chain(words).collect();
        let reply = admin.ask(&call);
        assert!(reply.starts_with(error), "{reply}");
    }
    admin.say("ACL SETUSER u clearselectors");
    assert!(!may(&mut admin, "u", "SET b x") && may(&mut admin, "u", "GET a"));
}

#[test]
fn what_is_saved_is_what_was_said() {
    let file = UserFile::new("saved", "");
    let config = Config { acl_file: Some(file.0.clone()), ..Config::default() };
    let mut server = start(config.clone());
    let mut admin = Client::new(server.address);
    // Names that the file could not store, or would read as something else.
    for name in ["a b", "a\tb", "x\nuser\tevil\ton\tnopass\t~*\t+@all\n#", "a\0", "a\u{b}b", ""] {
        let reply = admin.ask(&[b"ACL", b"SETUSER", name.as_bytes(), b"on"]);
        assert!(reply.starts_with("-ERR Usernames can't"), "{name:?}: {reply}");
    }
    assert!(admin.ask(&[b"ACL", b"SETUSER", b"\xFF", b"on"]).starts_with("-ERR Usernames"));
    for rule in ["~a b", "~a +@all", "&a\nb", "%R~a\tb", "+get|a b", "~\0"] {
        let reply = admin.ask(&[b"ACL", b"SETUSER", b"bob", rule.as_bytes()]);
        assert!(reply.contains("Syntax error"), "{rule:?}: {reply}");
    }
    let rules: [&[u8]; 11] = [
        b"on",
        b">p w\n\xFF",
        b"~\xFF\xFE*",
        b"~\xE2\x80\x83a",
        b"%RW~*",
        b"+@read",
        b"-get",
        b"+select|0",
        b"+config|get",
        b"-lpush",
        b"(%W~b +set)",
    ];
    let call: Vec<&[u8]> = [&b"ACL"[..], b"SETUSER", b"bob"].into_iter().chain(rules).collect();
    assert_eq!(admin.ask(&call), r"+OK\r\n");
    let before = admin.say("ACL LIST");
    assert_eq!(admin.say("ACL SAVE"), r"+OK\r\n");
    assert_eq!(admin.say("ACL LOAD"), r"+OK\r\n");
    assert_eq!(admin.say("ACL LIST"), before);
    drop(admin);
    server.stop();
    let server = start(config);
    let mut bob = Client::new(server.address);
    assert_eq!(bob.ask(&[b"AUTH", b"bob", b"p w\n\xFF"]), r"+OK\r\n");
    assert_eq!(Client::new(server.address).say("ACL LIST"), before);
    let folder = file.0.parent().unwrap();
    let name = file.0.file_name().unwrap().to_str().unwrap();
    let others = std::fs::read_dir(folder).unwrap().filter_map(|entry| {
        let found = entry.unwrap().file_name().into_string().unwrap();
        (found.starts_with(name) && found != name).then_some(found)
    });
    assert_eq!(others.collect::<Vec<_>>(), [""; 0]);
}

#[test]
fn connections_of_users_who_are_gone_end() {
    let file = UserFile::new("gone", "user bob on nopass ~* +@all\nuser ann on nopass +@all\n");
    let server = start(Config { acl_file: Some(file.0.clone()), ..Config::default() });
    let mut admin = Client::new(server.address);
    let [mut bob, mut ann] = [(); 2].map(|()| Client::new(server.address));
    bob.say("AUTH bob x");
    ann.say("AUTH ann x");
    assert_eq!(bob.say("MONITOR"), r"+OK\r\n");
    std::fs::write(&file.0, "user ann on nopass +@all\n").unwrap();
    assert_eq!(admin.say("ACL LOAD"), r"+OK\r\n");
    bob.reply();
    assert!(bob.is_closed());
    assert_eq!(ann.say("PING"), r"+PONG\r\n");
}

#[test]
fn a_transaction_does_not_go_round_the_limit_of_guesses() {
    let (server, mut admin) = fresh();
    admin.say("ACL SETUSER root on >right +@all");
    let mut client = Client::new(server.address);
    client.say("MULTI");
    for _ in 0..30 {
        assert_eq!(client.say("AUTH root wrong"), r"+QUEUED\r\n");
    }
    assert_eq!(client.say("AUTH root right"), r"+QUEUED\r\n");
    let replies = client.say("EXEC");
    assert_eq!(replies.matches("-WRONGPASS").count(), 31, "{replies}");
    assert!(client.is_closed());
    let guesses = admin.say("INFO stats");
    assert!(guesses.contains(r"acl_access_denied_auth:10\r\n"), "{guesses}");
    // The reply is delayed as long as those of the guesses together.
    let mut client = Client::new(server.address);
    client.say("MULTI");
    (0..8).for_each(|_| assert_eq!(client.say("AUTH root wrong"), r"+QUEUED\r\n"));
    let begin = Instant::now();
    client.say("EXEC");
    assert!(begin.elapsed() >= Duration::from_millis(510));
    // A successful login does not allow more guesses.
    let mut client = Client::new(server.address);
    for n in 0..10 {
        assert!(client.say("AUTH root wrong").starts_with("-WRONGPASS"));
        if n < 9 {
            assert_eq!(client.say("AUTH root right"), r"+OK\r\n");
        }
    }
    assert!(client.is_closed());
}

#[test]
fn a_client_that_ends_itself_in_a_transaction_is_closed_after_its_replies() {
    let (_server, mut client) = fresh();
    let id = client.say("CLIENT ID").trim_start_matches(':').replace(r"\r\n", "");
    client.say("MULTI");
    client.say(&format!("CLIENT KILL ID {id} SKIPME no"));
    let begin = Instant::now();
    client.say("PING");
    assert_eq!(client.say("EXEC"), r"*2\r\n:1\r\n+PONG\r\n");
    // The client would give up after 20 seconds.
    assert!(client.is_closed() && begin.elapsed() < Duration::from_secs(15));
}

#[test]
fn commands_that_are_not_allowed_in_a_transaction_end_it() {
    let (_server, mut client) = fresh();
    for command in ["SHUTDOWN NOSAVE", "SAVE"] {
        client.say("MULTI");
        let refused = r"-ERR Command not allowed inside a transaction\r\n";
        assert_eq!(client.say(command), refused, "{command}");
        assert!(client.say("EXEC").starts_with("-EXECABORT"));
    }
    assert_eq!(client.say("PING"), r"+PONG\r\n");
}

#[test]
fn the_console_shows_what_its_user_may_see() {
    let any = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    let server = start(Config { console: any, ..Config::default() });
    let mut admin = Client::new(server.address);
    admin.say("SET secret:1 hidden");
    admin.say("ACL SETUSER all on >pw ~* +@all");
    admin.say("ACL SETUSER reader on >pw %R~* +@read");
    admin.say("ACL SETUSER pinger on >pw ~* +ping");
    // Each user lacks a permission that the page of keys needs: all keys, SCAN, or GET.
    admin.say("ACL SETUSER star on >pw %R~[*]* +@read");
    admin.say("ACL SETUSER getter on >pw ~* +get");
    admin.say("ACL SETUSER scanner on >pw ~* +scan");
    admin.say("ACL SETUSER default resetkeys ~public:* -@all +@read +acl");
    let console = server.console.unwrap();
    let get = |path: &str, login: &str| {
        let login = base64::engine::general_purpose::STANDARD.encode(login);
        let login = match login.is_empty() {
            true => String::new(),
            false => format!("Authorization: Basic {login}\r\n"),
        };
        let head = "Host: localhost\r\nConnection: close\r\n";
        let reply = http(console, &format!("GET {path} HTTP/1.1\r\n{head}{login}\r\n"));
        (reply[9..12].to_owned(), reply)
    };
    for (path, login, status) in [
        ("/keys?prefix=secret", "", "401"),
        ("/state", "", "401"),
        ("/keys", "pinger:pw", "403"),
        ("/state", "pinger:pw", "403"),
        ("/keys", "reader:pw", "200"),
        ("/state", "reader:pw", "403"),
        ("/keys", "star:pw", "403"),
        ("/keys", "getter:pw", "403"),
        ("/keys", "scanner:pw", "403"),
        ("/keys", "all:pw", "200"),
        ("/state", "all:pw", "200"),
        ("/state", "all:wrong", "401"),
        ("/metrics", "", "200"),
    ] {
        let (found, reply) = get(path, login);
        assert_eq!(found, status, "{path} as {login}: {reply}");
        assert_eq!(reply.contains("hidden"), path == "/keys" && status == "200");
    }
    // On one connection, each reply comes later, and then the connection ends. A page of another
    // site gets no faster replies.
    let login = base64::engine::general_purpose::STANDARD.encode("all:wrong");
    for (host, path, status) in
        [("localhost", "/state", "401"), ("evil.example", "/healthz", "421")]
    {
        let mut stream = TcpStream::connect(console).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let wrong =
            format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Basic {login}\r\n\r\n");
        let begin = Instant::now();
        // The server may already have closed the connection.
        let _ = stream.write_all(wrong.repeat(40).as_bytes());
        let mut all = String::new();
        let _ = stream.read_to_string(&mut all);
        assert_eq!(all.matches(&format!("HTTP/1.1 {status}")).count(), 10, "{all}");
        assert!(begin.elapsed() >= Duration::from_millis(1000));
    }
    let mut all = Client::new(server.address);
    all.say("AUTH all pw");
    assert!(all.say("ACL LOG").contains("console"));
}

#[test]
fn a_login_has_its_time() {
    let login_time = Duration::from_millis(700);
    let config = Config { password: Some("secret".to_owned()), login_time, ..Config::default() };
    let server = start(config);
    let mut user = Client::new(server.address);
    assert_eq!(user.say("AUTH secret"), r"+OK\r\n");
    // One client waits, one never pauses, and one does not complete its request.
    let begin = Instant::now();
    assert!(Client::new(server.address).is_closed());
    let mut busy = Client::new(server.address);
    while busy.stream.write_all(b"PING\r\n").is_ok() && begin.elapsed() < Duration::from_secs(15) {
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut slow = Client::new(server.address);
    let mut sent = 0;
    while slow.stream.write_all(b"x").is_ok() && begin.elapsed() < Duration::from_secs(15) {
        sent += 1;
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(
        begin.elapsed() >= login_time * 3 && begin.elapsed() < Duration::from_secs(15),
        "{sent}"
    );
    assert_eq!(user.say("PING"), r"+PONG\r\n", "it has authenticated");
    user.say("RESET");
    std::thread::sleep(login_time / 2);
    assert!(user.say("PING").starts_with("-NOAUTH"));
    assert!(user.is_closed());
}

#[test]
fn a_pause_is_never_weakened() {
    let (server, mut admin) = fresh();
    let waits = |admin: &mut Client, pauses: &[&str], command: &str| {
        let begin = Instant::now();
        for pause in pauses {
            assert_eq!(admin.say(&format!("CLIENT PAUSE {pause}")), r"+OK\r\n");
        }
        let mut other = Client::new(server.address);
        other.send(format!("{command}\r\n").as_bytes());
        other.reply();
        let waited = begin.elapsed();
        admin.say("CLIENT UNPAUSE");
        waited
    };
    let half = Duration::from_millis(500);
    assert!(waits(&mut admin, &["500", "100 WRITE"], "GET a") >= half);
    assert!(waits(&mut admin, &["500 WRITE", "50 WRITE"], "SET a 1") >= half);
    assert!(waits(&mut admin, &["50 WRITE", "500"], "GET a") >= half);
    assert!(waits(&mut admin, &["500 WRITE"], "GET a") < half);
    // A pause that has ended is forgotten.
    admin.say("CLIENT PAUSE 1");
    std::thread::sleep(Duration::from_millis(20));
    assert!(waits(&mut admin, &["500 WRITE"], "GET a") < half);
    // Waiting clients are counted, even if they give up.
    admin.say("CLIENT PAUSE 60000 WRITE");
    let mut others = [(); 2].map(|()| Client::new(server.address));
    let blocked = |count: usize| {
        let mut admin = Client::new(server.address);
        let begin = Instant::now();
        while !admin.say("INFO clients").contains(&format!(r"blocked_clients:{count}\r\n")) {
            assert!(begin.elapsed() < Duration::from_secs(15), "never {count}");
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    others.iter_mut().for_each(|other| other.send(b"SET a 1\r\n"));
    blocked(2);
    admin.say("CLIENT KILL TYPE normal");
    blocked(0);
}

#[test]
fn a_script_may_do_what_its_user_may() {
    let (server, mut admin) = fresh();
    admin.say("SET lock me");
    let script = b"if redis.call('get',KEYS[1]) == ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end";
    for rules in
        ["~* +eval +get", "~* +eval +del", "%R~* +eval +get +del", "~other +eval +get +del"]
    {
        admin.say(&format!("ACL SETUSER u reset on nopass {rules}"));
        let mut client = Client::new(server.address);
        client.say("AUTH u x");
        let reply = client.ask(&[b"EVAL", script, b"1", b"lock", b"me"]);
        let refused = ["-NOPERM", "-ERR The user executing the script can't"];
        assert!(refused.iter().any(|begin| reply.starts_with(begin)), "{rules}: {reply}");
    }
    admin.say("ACL SETUSER u reset on nopass ~lock +eval +get +del");
    let mut client = Client::new(server.address);
    client.say("AUTH u x");
    assert_eq!(client.ask(&[b"EVAL", script, b"1", b"lock", b"me"]), r":1\r\n");
}

#[test]
fn a_range_is_allowed_if_one_pattern_has_all_of_it() {
    let (server, mut admin) = fresh();
    admin.say("ACL SETUSER u on nopass ~app:* %R~log:* %W~in:* ~x[ab]* ~one ~esc\\** +@all");
    for (call, allowed) in [
        ("ORDNA.PREFIX app:", true),
        ("ORDNA.PREFIX app:1 KEYS", true),
        ("ORDNA.PREFIX app", false),
        ("ORDNA.PREFIX log:", true),
        ("ORDNA.PREFIX in:", false),
        ("ORDNA.PREFIX xa", false),
        ("ORDNA.PREFIX one", false),
        ("ORDNA.PREFIX esc*", false),
        ("ORDNA.RANGE [app: (app;", true),
        ("ORDNA.RANGE (app; [app: REV", true),
        // No keys are between the bounds.
        ("ORDNA.RANGE [app: (app; REV", true),
        ("ORDNA.RANGE [app: [app;", false),
        ("ORDNA.RANGE [app [app:z", false),
        ("ORDNA.RANGE [app:a [app:z", true),
        ("ORDNA.RANGE [app:a +", false),
        ("ORDNA.RANGE - [app:z", false),
        ("ORDNA.RANGE [app:a log:b", false),
        ("ORDNA.RANGE nonsense nonsense", false),
        ("ORDNA.SCAN [app:a [app:z", true),
        ("ORDNA.SCAN [app:a [b", false),
        ("ORDNA.COUNT [log:a [log:b", true),
        ("ORDNA.DELRANGE [app:a [app:b", true),
        ("ORDNA.DELRANGE [log:a [log:b", false),
        ("ORDNA.DELRANGE [in:a [in:b", true),
        ("ORDNA.SNAPSHOT RANGE 1 [app:a [app:b", true),
        ("ORDNA.SNAPSHOT RANGE 1 - +", false),
        ("ORDNA.SNAPSHOT GET 1 app:1", true),
        ("ORDNA.SNAPSHOT GET 1 other", false),
        ("KEYS app:*", true),
        ("KEYS app*", false),
        ("KEYS *app:*", false),
        ("SCAN 0 MATCH log:1* COUNT 5", true),
        ("SCAN 0 MATCH app:* MATCH *", false),
        ("SCAN 0 MATCH * STABLE MATCH app:*", true),
        ("SCAN 0 COUNT MATCH app:*", false),
        ("SCAN 0", false),
        ("ORDNA.FIRST", false),
        ("ORDNA.FLOOR app:1", false),
        ("RANDOMKEY", false),
    ] {
        assert_eq!(may(&mut admin, "u", call), allowed, "{call}");
    }
    // A cursor cannot leave the range.
    admin.say("MSET app:1 a app:2 b app:3 c secret s zoo z");
    let mut client = Client::new(server.address);
    client.say("AUTH u x");
    let page = admin.say("ORDNA.SCAN - + COUNT 4");
    let cursor = page.split(r"\r\n").nth(2).unwrap();
    let all = client.say(&format!("ORDNA.SCAN [app: (app; CURSOR {cursor}"));
    assert!(!all.contains("secret") && !all.contains("zoo"), "{all}");
    let page = admin.say("SCAN 0 COUNT 4");
    let cursor = page.split(r"\r\n").nth(2).unwrap();
    let all = client.say(&format!("SCAN {cursor} MATCH app:* COUNT 100"));
    assert!(!all.contains("secret") && !all.contains("zoo"), "{all}");
    assert!(client.say("KEYS app:*").starts_with("*3"));
}

#[test]
fn broken_files_of_users_are_read_or_refused() {
    const USERS: &[u8] = b"# users\n\
        user default on nopass ~* &* +@all\n\
        user bob on #9af15b336e6a9619928537df30b2e6a2376569fcf9d7e773eccede65606529a0 ~a* %R~b \
        resetchannels &c -@all +@read -get +select|0 +config|get -lpush (~x* +set) (%W~y -@all +mset)\n\
        user ann off resetchannels -@all +client|kill\n";
    const PIECES: &[&[u8]] = &[
        b" ",
        b"\n",
        b"\t",
        b"\x0b",
        b"\0",
        b"(",
        b")",
        b"user ",
        b"~",
        b"%W~",
        b"+",
        b"-@",
        b"|",
        b"&",
        b">",
        b"\xFF",
        b"\xE2\x80\x83",
        b"reset",
        b"\"",
        b"#",
        b"*",
    ];
    let file = UserFile::new("broken", "");
    let server = start(Config { acl_file: Some(file.0.clone()), ..Config::default() });
    let mut admin = Client::new(server.address);
    admin.say("ACL SETUSER root on nopass ~* +@all");
    let mut random = Random::new(7);
    let (mut read, mut refused) = (0, 0);
    for _ in 0..800 {
        let mut content = USERS.to_vec();
        for _ in 0..1 + random.below(3) {
            let at = random.below(content.len());
            match random.below(3) {
                0 => content[at] = random.below(256) as u8,
                1 => {
                    drop(content.splice(at..at, PIECES[random.below(PIECES.len())].iter().copied()))
                }
                _ => drop(content.drain(at..(at + 1 + random.below(9)).min(content.len()))),
            }
        }
        // The administrator keeps its permissions.
        content.splice(0..0, b"user root on nopass ~* +@all\n".iter().copied());
        std::fs::write(&file.0, &content).unwrap();
        admin.say("AUTH root x");
        let before = admin.say("ACL LIST");
        let reply = admin.say("ACL LOAD");
        if reply != r"+OK\r\n" {
            assert!(reply.starts_with("-ERR "), "{reply}");
            assert_eq!(admin.say("ACL LIST"), before, "changed by a file that was refused");
            refused += 1;
            continue;
        }
        let loaded = admin.say("ACL LIST");
        assert_eq!(admin.say("ACL SAVE"), r"+OK\r\n");
        assert_eq!(admin.say("ACL LOAD"), r"+OK\r\n", "{loaded}");
        assert_eq!(admin.say("ACL LIST"), loaded);
        read += 1;
    }
    assert!(read > 50 && refused > 50, "read {read}, refused {refused}");
}
