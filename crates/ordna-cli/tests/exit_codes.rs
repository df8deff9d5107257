//! The exit codes that `ordna --help` states, and the signals of the server.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::time::Duration;

use common::{DONE, FAILED, Folder, Server, UNREACHABLE, WRONG_USAGE, exits, output};

mod common;

#[test]
fn each_command_exits_with_the_code_of_its_outcome() {
    let folder = Folder::new("codes");
    let data = folder.path("data");
    let server = Server::start(&["--dir", &data, "--log", "always"]);
    let port = server.port.as_str();

    let help = exits(&["--help"], DONE);
    let help = String::from_utf8(help.stdout).unwrap();
    assert!(help.contains("Exit codes:"), "{help}");
    exits(&["--version"], DONE);
    for words in [
        &["no-such-command"][..],
        &["serve", "--no-such-flag"],
        &["serve", "--port", "70000"],
        &["get"],
        &["scan", "a", "--from", "b"],
        &["verify"],
    ] {
        exits(words, WRONG_USAGE);
    }

    let lines = folder.path("lines.tsv");
    std::fs::write(&lines, "id\tname\n1\tone\n2\ttwo\n").unwrap();
    let loaded = output(&["load", &lines, "--key", "id", "--port", port]);
    assert_eq!(loaded.status.code(), Some(DONE), "{loaded:?}");
    std::fs::write(&lines, "id\tname\n3\tthree\n4\n").unwrap();
    let loaded = output(&["load", &lines, "--key", "id,name", "--port", port]);
    assert_eq!(loaded.status.code(), Some(FAILED), "a bad line: {loaded:?}");
    exits(&["load", &folder.path("absent"), "--key", "id", "--port", port], FAILED);

    exits(&["get", "1", "--port", port], DONE);
    exits(&["get", "absent", "--port", port], FAILED);
    exits(&["scan", "--port", port], DONE);
    exits(&["scan", "absent", "--port", port], DONE);
    exits(&["get", "1", "--port", "1"], UNREACHABLE);
    exits(&["scan", "--server", "127.0.0.1:1"], UNREACHABLE);
    exits(&["load", &lines, "--key", "id", "--port", "1"], UNREACHABLE);
    exits(&["get", "1", "--server", &format!("127.0.0.1:{port}")], DONE);
    exits(&["get", "1", "--server", "nowhere"], WRONG_USAGE);
    exits(&["get", "1", "--server", "a:1", "--port", port], WRONG_USAGE);

    let saved = output(&["backup", "--port", port]);
    assert_eq!(saved.status.code(), Some(DONE), "{saved:?}");
    exits(&["serve", "--port", port], FAILED);
    exits(&["serve", "--config", &folder.path("absent")], FAILED);
    drop(server);
    let verified = output(&["verify", &data]);
    assert_eq!(verified.status.code(), Some(DONE), "{verified:?}");
    exits(&["verify", &folder.path("absent")], FAILED);
    exits(&["restore", &folder.path("absent"), "--dir", &folder.path("new")], FAILED);
    // Damages the backup.
    let backup = std::fs::read_dir(&data).unwrap().map(|entry| entry.unwrap().path());
    let is_backup =
        |path: &PathBuf| path.file_name().unwrap().to_string_lossy().starts_with("backup-");
    let backup = backup.filter(is_backup).max().unwrap();
    let files = std::fs::read_dir(backup).unwrap().map(|entry| entry.unwrap().path());
    let largest = files.max_by_key(|path| path.metadata().unwrap().len()).unwrap();
    let mut bytes = std::fs::read(&largest).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&largest, bytes).unwrap();
    let verified = output(&["verify", &data]);
    assert_eq!(verified.status.code(), Some(FAILED), "{verified:?}");
}

/// The completions and the man pages mention every command, and the man page every exit code.
#[test]
fn completions_and_man_pages_know_every_command() {
    let text = |words: &[&str]| String::from_utf8(exits(words, DONE).stdout).unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let script = text(&["completions", shell]);
        for word in ["restore", "load", "separator"] {
            assert!(script.contains(word), "{shell}: no {word}");
        }
    }
    exits(&["completions", "cmd.exe"], WRONG_USAGE);
    let page = text(&["man"]);
    assert!(page.contains(".TH ordna 1") && page.contains("Exit codes:"), "{page}");
    let folder = Folder::new("man");
    exits(&["man", "--dir", &folder.path("pages")], DONE);
    let page = std::fs::read_to_string(folder.path("pages/ordna-load.1")).unwrap();
    assert!(page.contains("separator"), "{page}");
    exits(&["man", "--dir", "/dev/null/pages"], FAILED);
}

#[test]
fn a_server_reloads_on_sighup_and_exits_with_0_on_sigterm() {
    let folder = Folder::new("signals");
    let users = folder.path("users");
    let write = |rights: &str| {
        let mut file = std::fs::File::create(&users).unwrap();
        writeln!(file, "user default on nopass ~* &* {rights}").unwrap();
    };
    write("+@all");
    let mut server = Server::start(&["--acl-file", &users]);
    let port = server.port.clone();
    exits(&["scan", "--port", &port], DONE);
    write("+@all -ordna.range");
    server.signal("-HUP");
    server.line("the users were read again");
    exits(&["scan", "--port", &port], FAILED);
    // A file with an error changes nothing, and the server continues.
    write("+@none");
    server.signal("-HUP");
    let line = server.line("ERROR");
    assert!(line.contains("line 1: '+@none'"), "{line}");
    exits(&["scan", "--port", &port], FAILED);
    exits(&["get", "absent", "--port", &port], FAILED);
    server.signal("-TERM");
    assert_eq!(server.process.wait().unwrap().code(), Some(DONE));
}

/// Sends an inline command and returns the lines of the reply up to `end`.
fn ask(port: &str, line: &str, end: &str) -> String {
    let mut stream = std::net::TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(format!("{line}\r\n").as_bytes()).unwrap();
    let mut reply = String::new();
    let mut reader = BufReader::new(stream);
    while !reply.ends_with(&format!("{end}\r\n")) {
        assert!(reader.read_line(&mut reply).unwrap() > 0, "{reply}");
    }
    reply.replace("\r\n", " ").trim_end().to_owned()
}

#[test]
fn a_bad_line_does_not_end_a_load_of_hashes() {
    let folder = Folder::new("hashes");
    let server = Server::start(&[]);
    let port = server.port.as_str();
    let file = folder.path("h.ndjson");
    let text = "{\"k\":\"a\",\"v\":1}\n{\"k\":\"b\",\"v\":\"\\ud800\"}\n{\"k\":\"\u{1b}]0;\"}\n\
                {\"k\":\"c\",\"v\":\"last\"}\n";
    std::fs::write(&file, text).unwrap();
    let loaded = output(&["load", &file, "--key", "k", "--hash", "--port", port]);
    let error = String::from_utf8(loaded.stderr).unwrap();
    assert_eq!(loaded.status.code(), Some(FAILED), "{error}");
    assert!(error.contains("line 2: ") && !error.contains('\u{1b}'), "{error}");
    assert_eq!(ask(port, "HGET c v", "last"), "$4 last");
}

#[test]
fn records_are_loaded_into_sorted_sets() {
    let folder = Folder::new("zset");
    let server = Server::start(&[]);
    let port = server.port.as_str();
    let file = folder.path("towns.tsv");
    let text = "id\tland\tname\tpeople\n1\tSE\tKiruna\t22841\n2\tNO\tOslo\t580000\n\
                3\tSE\tVisby\tunknown\n4\tSE\tLund\t94703\n5\tSE\tKiruna\t7.5\n";
    std::fs::write(&file, text).unwrap();
    let load = |words: &[&str]| {
        let all = [&["load", &file, "--port", port], words].concat();
        let output = output(&all);
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let zset = ["--zset", "people", "--member", "name"];
    let (code, error) = load(&[&zset[..], &["--key", "land", "--prefix", "top:"]].concat());
    assert_eq!(code, Some(FAILED));
    assert!(error.contains("line 4: field `people`: `unknown` is not a number"), "{error}");
    assert!(error.contains("4 records stored") && !error.contains("replaced"), "{error}");
    let again = "1 records changed the score of an existing member";
    assert!(error.contains(again), "{error}");
    let found = ask(port, "ZRANGE top:SE 0 -1 WITHSCORES", "94703");
    assert_eq!(found, "*4 $6 Kiruna $3 7.5 $4 Lund $5 94703", "the later record stays");
    // All records become members of one sorted set; each member consists of two fields.
    let (_, error) =
        load(&["--zset", "id", "--member", "land,name", "--prefix", "all", "--separator", "/"]);
    assert!(error.contains("5 records stored") && error.contains(again), "{error}");
    assert_eq!(ask(port, "ZRANGE all 0 1", "SE/Visby"), "*2 $7 NO/Oslo $8 SE/Visby");
    // The server refuses to add to a key that is not a sorted set; the error names the line.
    ask(port, "SET top:NO text", "OK");
    let (code, error) = load(&[&zset[..], &["--key", "land", "--prefix", "top:"]].concat());
    assert!(
        code == Some(FAILED) && error.contains("line 3: the server says: WRONGTYPE"),
        "{error}"
    );
    for (words, code, reason) in [
        (&["--zset", "people", "--key", "id"][..], WRONG_USAGE, "--member"),
        (&["--member", "name", "--key", "id"], WRONG_USAGE, "--zset"),
        (&zset, FAILED, "--zset needs --key"),
        (&["--zset", "people", "--member", "nope", "--key", "id"], FAILED, "no field `nope`"),
        (&["--zset", "nope", "--member", "name", "--key", "id"], FAILED, "no field `nope`"),
        (&[], FAILED, "--key FIELD"),
    ] {
        let (found, error) = load(words);
        assert!(found == Some(code) && error.contains(reason), "{words:?}: {found:?} {error}");
    }
}

/// A server that knows `PING`, `DBSIZE`, `INFO` and `BGSAVE` of Redis and nothing else.
fn other_server() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let (mut stream, mut line) = (stream, String::new());
            let mut words = Vec::new();
            while reader.read_line(&mut line).is_ok_and(|read| read > 0) {
                match line.trim_end() {
                    start if start.starts_with('*') => words.clear(),
                    length if length.starts_with('$') => {}
                    word => words.push(word.to_owned()),
                }
                line.clear();
                let reply = match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
                    ["DBSIZE"] => ":1\r\n".to_owned(),
                    ["INFO", _] => "$8\r\n# Server\r\n".to_owned(),
                    ["BGSAVE"] => panic!("it writes a file that nobody can use"),
                    // Its arguments are the rest of the request; the client does not wait for more.
                    [name] if name.starts_with("ORDNA.") => {
                        format!("-ERR unknown command '{name}', with args beginning with: \r\n")
                    }
                    _ => continue,
                };
                stream.write_all(reply.as_bytes()).unwrap();
            }
        }
    });
    port
}

#[test]
fn a_server_that_is_not_ordna_is_named_as_such() {
    let folder = Folder::new("other");
    let port = other_server().to_string();
    let (file, copy) = (folder.path("a.jsonl"), folder.path("copy"));
    for words in [
        &["backup"][..],
        &["backup", "--to", &copy],
        &["export"],
        &["export", "-o", &file],
        &["scan"],
    ] {
        let failed = exits(&[words, &["--port", &port]].concat(), FAILED);
        let error = String::from_utf8(failed.stderr).unwrap();
        assert!(error.contains("is not Ordna"), "{words:?}: {error}");
        assert!(!std::path::Path::new(&copy).exists());
    }
}

/// Its keys would seem to be lost.
#[test]
fn files_of_redis_in_the_data_directory_are_reported() {
    let folder = Folder::new("redis-files");
    let data = folder.path("data");
    std::fs::create_dir_all(folder.0.join("data/appendonlydir")).unwrap();
    std::fs::write(folder.0.join("data/dump.rdb"), "REDIS0011").unwrap();
    let mut process = common::ordna(&["serve", "--port", "0", "--dir", &data]);
    let mut process = process.stderr(std::process::Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(process.stderr.take().unwrap()).lines().map_while(Result::ok);
    let log = lines.take_while(|line| !line.contains(" ready ")).collect::<Vec<_>>().join("\n");
    let _ = process.kill();
    let _ = process.wait();
    for name in ["dump.rdb", "appendonlydir"] {
        assert!(log.contains(&format!("{name} is of Redis and is ignored")), "{log}");
    }
    assert!(!log.contains("appendonly.aof") && log.contains("docs/how-to/from-redis.md"), "{log}");
}

#[test]
fn collections_are_shown_with_type_and_size() {
    let server = Server::start(&[]);
    let port = server.port.as_str();
    let add =
        "local c = redis.call c('SET', 'a', 1) c('RPUSH', 'l', 1, 2, 3) c('HSET', 'h', 'f', 1)
        c('SADD', 's', 1, 2) c('ZADD', 'z', 1, 'm')";
    let text = |words: &[&str]| String::from_utf8(exits(words, DONE).stdout).unwrap();
    assert_eq!(ask(port, &format!("EVAL \"{}\" 0", add.replace('\n', " ")), "$-1"), "$-1");
    let shown = "a\t1\nh\t(hash of 1 field)\nl\t(list of 3 values)\ns\t(set of 2 members)\n\
                 z\t(sorted set of 1 member)\n";
    assert_eq!(text(&["scan", "--port", port]), shown);
    assert_eq!(text(&["scan", "--keys", "--port", port]), "a\nh\nl\ns\nz\n");
    let failed = exits(&["get", "l", "--port", port], FAILED);
    let error = String::from_utf8(failed.stderr).unwrap();
    assert_eq!(error, "ordna: l is a list of 3 values; `ordna shell` reads it\n");
    for (line, expected) in
        [("ordna.range - +", shown), ("ordna.last", "z\t(sorted set of 1 member)\n")]
    {
        let mut shell = common::ordna(&["shell", "--server", &format!("127.0.0.1:{port}")]);
        let piped = std::process::Stdio::piped;
        let mut shell = shell.stdin(piped()).stdout(piped()).spawn().unwrap();
        writeln!(shell.stdin.take().unwrap(), "{line}").unwrap();
        let output = shell.wait_with_output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), expected, "{line}");
    }
}
