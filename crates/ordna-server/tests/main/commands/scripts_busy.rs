//! Tests of commands that other clients may execute while a script runs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ordna_server::{Config, DataConfig};

use crate::common::{Client, Running, fresh, request, show, start};

/// A script that does not end. It has written, so blocked clients must be served when it is ended.
const WRITES: &[u8] = b"redis.call('RPUSH', 'q', 'x') while true do end";

/// Maximum time, on a slow machine, for a reply that does not wait for anything.
const PATIENCE: Duration = Duration::from_secs(3);

/// Starts a script, and waits until other clients have to wait for it.
fn run(server: &Running, script: &[u8]) -> Client {
    let mut looping = Client::new(server.address);
    looping.send(&request(&[b"EVAL", script, b"0"]));
    let answers = |reply: Option<Vec<u8>>| reply.is_some_and(|reply| reply.starts_with(b"+"));
    loop {
        let mut other = Client::new(server.address);
        other.send(&request(&[b"PING"]));
        if !answers(other.reply_within(Duration::from_millis(200))) {
            return looping;
        }
    }
}

/// Returns the reply to a command on a new connection, or "none" if it does not arrive in time.
fn on_a_new_connection(server: &Running, line: &str) -> String {
    let mut client = Client::new(server.address);
    let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
    client.send(&request(&words));
    let reply = client.reply_within(PATIENCE);
    reply.map_or_else(|| "none".to_owned(), |reply| show(&reply))
}

/// Each command has a new connection. It is sent before the script is busy, and when it is busy and
/// has written.
#[test]
fn what_needs_no_keys_is_executed_while_a_script_runs() {
    for (script, settings) in [
        (&b"while true do end"[..], "busy-reply-threshold 60000 maxmemory-policy allkeys-lfu"),
        (WRITES, "busy-reply-threshold 1"),
    ] {
        let (server, mut client) = fresh();
        client.say("ACL SETUSER op on >pw +@all ~*");
        client.say(&format!("CONFIG SET maxmemory 1gb {settings}"));
        let mut waiting = Client::new(server.address);
        waiting.send(&request(&[b"BLPOP", b"q", b"0"]));
        let mut watching = Client::new(server.address);
        watching.say("WATCH a");
        let mut looping = run(&server, script);
        for (line, expected) in [
            ("AUTH op pw", "+OK"),
            ("AUTH op wrong", "-WRONGPASS"),
            ("HELLO 2", "*14"),
            ("HELLO 2 AUTH op pw SETNAME me", "*14"),
            ("MULTI", "+OK"),
            ("DISCARD", "-ERR DISCARD without MULTI"),
            ("UNWATCH", "+OK"),
            ("RESET", "+RESET"),
            ("QUIT", "+OK"),
            ("NOPE", "-ERR unknown command"),
        ] {
            let reply = on_a_new_connection(&server, line);
            assert!(reply.starts_with(expected), "{line}, {settings}: {reply}");
        }
        watching.send(&request(&[b"UNWATCH"]));
        assert_eq!(watching.reply_within(PATIENCE).as_deref(), Some(&b"+OK\r\n"[..]));
        // Takes more than one turn of a connection.
        let mut many = Client::new(server.address);
        many.send(&[request(&[b"MULTI"]), request(&[b"DISCARD"])].concat().repeat(2000));
        for _ in 0..4000 {
            assert_eq!(many.reply_within(PATIENCE).as_deref(), Some(&b"+OK\r\n"[..]));
        }
        // A client that has to log in first.
        let mut operator = Client::new(server.address);
        operator
            .send(&[request(&[b"AUTH", b"op", b"pw"]), request(&[b"SCRIPT", b"KILL"])].concat());
        assert_eq!(operator.reply_within(PATIENCE).as_deref(), Some(&b"+OK\r\n"[..]));
        let killed = operator.reply_within(PATIENCE).map(|reply| show(&reply)).unwrap_or_default();
        if script == WRITES {
            assert!(killed.starts_with("-UNKILLABLE"), "{killed}");
            let watch = on_a_new_connection(&server, "WATCH a");
            assert!(watch.starts_with("-BUSY"), "it reads the key: {watch}");
        } else {
            assert_eq!(killed, r"+OK\r\n");
            assert!(show(&looping.reply()).starts_with("-ERR Script killed"));
        }
    }
}

/// Only `SHUTDOWN NOSAVE` ends a busy script that has written, together with the server.
#[test]
fn a_server_with_a_busy_script_is_ended_by_shutdown_nosave() {
    let dir = std::env::temp_dir().join(format!("ordna-busy-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    let data = || Some(DataConfig::new(dir.clone()));
    let mut server = start(Config { data: data(), ..Config::default() });
    let mut client = Client::new(server.address);
    while client.say("DBSIZE").contains("LOADING") {}
    client.say("CONFIG SET busy-reply-threshold 300");
    client.say("SET before 1");
    let mut looping = run(&server, WRITES);
    for line in ["SHUTDOWN", "SHUTDOWN SAVE", "SHUTDOWN NOW FORCE"] {
        let reply = on_a_new_connection(&server, line);
        assert!(reply.starts_with("-BUSY Redis is busy running a script"), "{line}: {reply}");
    }
    let begin = Instant::now();
    assert_eq!(on_a_new_connection(&server, "SHUTDOWN NOSAVE"), "", "closed");
    server.wait();
    // A server that stops in another way waits 5 s for a script.
    assert!(begin.elapsed() < Duration::from_secs(4), "it ended after {:?}", begin.elapsed());
    let reply = show(&looping.reply());
    assert!(reply.is_empty() || reply.starts_with('-'), "{reply}");
    let mut server = start(Config { data: data(), ..Config::default() });
    let mut client = Client::new(server.address);
    while client.say("DBSIZE").contains("LOADING") {}
    assert_eq!(client.say("GET before"), r"$1\r\n1\r\n");
    assert_eq!(client.say("EXISTS q"), r":0\r\n");
    server.stop();
    let _ = std::fs::remove_dir_all(&dir);
}

/// Lua converts a text of digits to a number, and would execute two billion steps.
#[test]
fn nothing_is_repeated_in_no_time() {
    let (_server, mut client) = fresh();
    for count in ["2147483647", "'2147483647'", "' 0x7fffffff '", "2^30"] {
        let script = format!("return string.rep('', {count}) .. 'end'");
        client.send(&request(&[b"EVAL", script.as_bytes(), b"0"]));
        let reply = client.reply_within(PATIENCE).expect("it ends");
        assert_eq!(show(&reply), r"$3\r\nend\r\n", "{count}");
    }
}

/// A script that is not busy yet ends by itself before the server does.
#[test]
fn shutdown_waits_for_a_short_script() {
    for line in ["SHUTDOWN", "SHUTDOWN NOSAVE"] {
        let (mut server, _client) = fresh();
        let script = "redis.call('SET', 'a', 1) local since = os.clock() while os.clock() < since + 1.5 do end return 7";
        let mut looping = run(&server, script.as_bytes());
        assert_eq!(on_a_new_connection(&server, line), "", "closed");
        assert_eq!(show(&looping.reply()), r":7\r\n", "{line}");
        server.wait();
    }
}

/// Other clients can execute commands while a script is read and compiled.
#[test]
fn others_do_not_wait_while_a_script_is_compiled() {
    let (server, mut client) = fresh();
    let mut other = Client::new(server.address);
    let text = [&b"do return 1 end "[..], &b"x=1 ".repeat(2_000_000)].concat();
    let over = AtomicBool::new(false);
    let (took, longest) = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut longest = Duration::ZERO;
            while !over.load(Ordering::Relaxed) {
                let begin = Instant::now();
                assert_eq!(other.say("GET a"), r"$-1\r\n");
                longest = longest.max(begin.elapsed());
                std::thread::sleep(Duration::from_millis(1));
            }
            longest
        });
        let begin = Instant::now();
        client.send(&request(&[b"EVAL", &text, b"0"]));
        let reply = client.reply_within(Duration::from_secs(120)).expect("a reply");
        let took = begin.elapsed();
        over.store(true, Ordering::Relaxed);
        assert_eq!(reply, b":1\r\n");
        (took, reader.join().unwrap())
    });
    assert!(longest < took / 3, "GET took {longest:?} beside EVAL of {took:?}");
}

/// Returns a chain of conditions, for which Lua's compile time is quadratic in the length.
fn chain(count: usize) -> Vec<u8> {
    [&b"if x then "[..], &b"elseif y then ".repeat(count), b" end"].concat()
}

/// During any step of a library, other clients are served and the script can be ended.
#[test]
fn long_steps_of_libraries_are_interrupted() {
    let (server, mut client) = fresh();
    client.say("CONFIG SET busy-reply-threshold 200");
    let scripts: [&[u8]; 15] = [
        b"local n = string.rep('1', 6e7) local t = {} for i = 1, 3000 do t[i] = n end while true do pcall(math.max, unpack(t)) end",
        b"local n = string.rep('1', 6e7) local t = {} for i = 1, 3000 do t[i] = n end while true do pcall(bit.bor, unpack(t)) end",
        b"local n = string.rep('0', 6e7) .. '65' local t = {} for i = 1, 3000 do t[i] = n end while true do pcall(string.char, unpack(t)) end",
        b"local n = string.rep('1', 6e7) local t = {} for i = 1, 3000 do t[i] = n end while true do pcall(string.format, string.rep('%d', 3000), unpack(t)) end",
        b"local n = string.rep('1', 6e7) local x = 0 while true do x = n + n x = n * n x = -n x = n - n x = n % n x = n ^ n end",
        b"local n = string.rep('1', 6e7) while true do for i = n, n, n do end tonumber(n) tostring(n) n:rep(0) end",
        b"return string.find(string.rep('a', 1e6), '[' .. string.rep('b', 2e7) .. 'a]*b')",
        b"return string.find(string.rep('a', 1e6), '%f[' .. string.rep('b', 1e7) .. ']')",
        b"return string.find(string.rep('a', 6e7), string.rep('a', 3e7) .. 'b', 1, true)",
        b"return string.gsub(string.rep('a', 1e6), '(b*)', string.rep('%1', 1e7))",
        b"local t = {} for i = 1, 4e6 do t[i] = i end while true do table.foreach(t, math.randomseed) end",
        b"local t = {} for i = 1, 4e6 do t[i] = i end while true do table.foreachi(t, math.randomseed) end",
        b"local t = {} for i = 1, 4e6 do t[i] = i % 7 end while true do pcall(table.sort, t, rawequal) end",
        b"local a = string.rep('a\\0', 1e7) local b = a .. 'b' while true do local x = a < b end",
        b"loadstring('if x then ' .. string.rep('elseif y then ', 3e5) .. ' end')",
    ];
    for script in scripts {
        let name = String::from_utf8_lossy(&script[..script.len().min(90)]).into_owned();
        let mut looping = Client::new(server.address);
        looping.send(&request(&[b"EVAL", script, b"0"]));
        std::thread::sleep(Duration::from_millis(100));
        // More clients than the server has threads.
        let mut others: Vec<Client> = (0..20).map(|_| Client::new(server.address)).collect();
        others.iter_mut().for_each(|other| other.send(&request(&[b"GET", b"a"])));
        for other in &mut others {
            let reply = other.reply_within(Duration::from_secs(10));
            let reply = reply.map_or_else(|| "none".to_owned(), |reply| show(&reply));
            assert!(reply.starts_with("-BUSY Redis is busy running a script"), "{name}: {reply}");
        }
        assert_eq!(on_a_new_connection(&server, "SCRIPT KILL"), r"+OK\r\n", "{name}");
        let reply = looping.reply_within(Duration::from_secs(10));
        let reply = reply.map_or_else(|| "none".to_owned(), |reply| show(&reply));
        assert!(reply.starts_with("-ERR Script killed by user"), "{name}: {reply}");
    }
}

/// Functions that read thousands of numbers refuse long texts, and nothing else changes.
#[test]
fn long_texts_are_no_numbers_to_functions_of_many() {
    let (_server, mut client) = fresh();
    let reason = "(number expected, got a text of more than 65536 bytes)";
    let long = "string.rep('1', 65537)";
    for (call, expected) in [
        (
            format!("math.max(1, {long})"),
            format!("user_script:1: bad argument #2 to 'max' {reason}"),
        ),
        (
            format!("math.min({long}, 1)"),
            format!("user_script:1: bad argument #1 to 'min' {reason}"),
        ),
        (
            format!("string.char({long})"),
            format!("user_script:1: bad argument #1 to 'char' {reason}"),
        ),
        (
            format!("string.format('%s%%%d', {long}, {long})"),
            format!("bad argument #3 to 'format' {reason}"),
        ),
        (format!("bit.bor(1, {long})"), format!("bad argument #2 {reason}")),
        (format!("#string.format('%s%d%q', {long}, 5, {long})"), ":131077".to_owned()),
        ("math.max(1, '0x10', 3)".to_owned(), ":16".to_owned()),
        ("math.max(1, string.rep('1', 300))".to_owned(), ":".to_owned()),
        ("string.char(65, '66')".to_owned(), "AB".to_owned()),
        (
            "math.max()".to_owned(),
            "-ERR user_script:1: bad argument #1 to 'max' (number expected, got no value)"
                .to_owned(),
        ),
        (
            "string.char(300)".to_owned(),
            "-ERR user_script:1: bad argument #1 to 'char' (invalid value)".to_owned(),
        ),
        (
            "string.format('%y', 1)".to_owned(),
            "-ERR user_script:1: invalid option '%y' to 'format'".to_owned(),
        ),
        (
            "string.format('%d', {})".to_owned(),
            "-ERR user_script:1: bad argument #2 to 'format' (number expected, got table)"
                .to_owned(),
        ),
    ] {
        for script in [format!("return {call}"), format!("local x = {call} return x")] {
            let reply = client.ask(&[b"EVAL", script.as_bytes(), b"0"]);
            assert!(reply.contains(&expected), "{script}: {reply}");
        }
    }
}

/// The length of a table may be much larger than the number of its values.
#[test]
fn sparse_tables_are_not_moved() {
    let (_server, mut client) = fresh();
    for call in ["remove(t, 1)", "insert(t, 1, 5)", "sort(t, rawequal)", "sort(t)"] {
        let script = format!(
            "local t = {{}} t[1], t[2], t[4] = 1, 1, 1 for k = 0, 27 do t[5 * 2 ^ k] = 1 end table.{call}"
        );
        client.send(&request(&[b"EVAL", script.as_bytes(), b"0"]));
        let reply = client.reply_within(PATIENCE).map(|reply| show(&reply)).unwrap_or_default();
        assert!(reply.contains("user_script:1: the table is too sparse"), "{call}: {reply}");
    }
    for (script, expected) in [
        ("local t = {1, 2} table.insert(t, 2147483648, 1)", "position out of bounds"),
        ("local t = {3, 1, 2} table.sort(t, rawequal) return t", r":3\r\n:1\r\n:2"),
        ("table.sort({1, 2}, tonumber)", "-ERR bad argument #2"),
        (
            "return {table.foreach({a = 'b'}, function(...) return {...} end)}",
            r"$1\r\na\r\n$1\r\nb",
        ),
        ("return table.foreachi({5, 6}, function(i, v) if i == 2 then return v end end)", ":6"),
        ("table.foreach(1)", "bad argument #1 to 'foreach' (table expected, got number)"),
        ("table.foreachi({})", "bad argument #2 to 'foreachi' (function expected, got nil)"),
    ] {
        let reply = client.ask(&[b"EVAL", script.as_bytes(), b"0"]);
        assert!(reply.contains(expected), "{script}: {reply}");
    }
}

/// No thread waits while a script is compiled, and the compilation can be ended.
#[test]
fn a_script_that_is_compiled_is_ended() {
    let (server, _client) = fresh();
    let patience = Duration::from_secs(10);
    let (long, loaded) = (chain(300_000), chain(70_000));
    let load: [&[u8]; 3] = [b"SCRIPT", b"LOAD", &loaded];
    let eval: [&[u8]; 3] = [b"EVAL", &long, b"0"];
    for words in [eval, load] {
        let mut compiling = Client::new(server.address);
        compiling.send(&request(&words));
        std::thread::sleep(Duration::from_millis(500));
        let mut others: Vec<Client> = (0..20).map(|_| Client::new(server.address)).collect();
        others.iter_mut().for_each(|other| other.send(&request(&[b"GET", b"a"])));
        for other in &mut others {
            assert_eq!(other.reply_within(patience).as_deref(), Some(&b"$-1\r\n"[..]));
        }
        let mut flushing = Client::new(server.address);
        flushing.send(&request(&[b"SCRIPT", b"FLUSH"]));
        let mut running = Client::new(server.address);
        running.send(&request(&[b"EVAL", b"return 7", b"0"]));
        // The text is read first; compiling it takes a minute.
        let begin = Instant::now();
        let is_eval = words[0] == b"EVAL";
        while on_a_new_connection(&server, "SCRIPT KILL") != r"+OK\r\n" && is_eval {
            assert!(begin.elapsed() < patience, "it is not ended");
        }
        let reply = compiling.reply_within(patience).map(|reply| show(&reply)).unwrap_or_default();
        assert!(reply.contains("Script killed by user") || !is_eval, "{reply}");
        assert_eq!(flushing.reply_within(patience).as_deref(), Some(&b"+OK\r\n"[..]));
        assert_eq!(running.reply_within(patience).as_deref(), Some(&b":7\r\n"[..]));
    }
}
