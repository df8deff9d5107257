//! The exit codes that `ordna --help` states, and the signals of the server.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

const DONE: i32 = 0;
const FAILED: i32 = 1;
const WRONG_USAGE: i32 = 2;

fn ordna(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ordna"));
    command.args(words).env_remove("ORDNA_PASSWORD").env_remove("ORDNA_LOG");
    command
}

fn output(words: &[&str]) -> Output {
    ordna(words).stdin(Stdio::null()).output().unwrap()
}

/// Runs a command and checks its exit code. An error is told on standard error, and on nothing else.
fn exits(words: &[&str], code: i32) -> Output {
    let output = output(words);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{words:?}: {error}");
    assert_eq!(code == DONE, error.is_empty(), "{words:?}: {error}");
    assert!(code == DONE || output.stdout.is_empty(), "{words:?}");
    output
}

/// A folder of the test's own, removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("ordna-cli-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A server in a process of its own, killed when dropped.
struct Server {
    process: Child,
    port: String,
    log: Receiver<String>,
}

impl Server {
    fn start(words: &[&str]) -> Self {
        let words = [&["serve", "--port", "0"], words].concat();
        let mut process = ordna(&words).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(process.stderr.take().unwrap()).lines();
        let (tell, log) = channel();
        std::thread::spawn(move || {
            lines.map_while(Result::ok).try_for_each(|line| tell.send(line))
        });
        let mut server = Self { process, port: String::new(), log };
        let line = server.line("address=127.0.0.1:");
        let port = line.split("address=127.0.0.1:").nth(1).unwrap();
        server.port = port.chars().take_while(char::is_ascii_digit).collect();
        server.line(" ready ");
        server
    }

    /// The next line of the log that contains a text.
    fn line(&self, text: &str) -> String {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let line = self.log.recv_timeout(left).unwrap_or_else(|_| panic!("no {text:?}"));
            if line.contains(text) {
                return line;
            }
        }
    }

    fn signal(&self, name: &str) {
        let id = self.process.id().to_string();
        assert!(Command::new("kill").args([name, &id]).status().unwrap().success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

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
    exits(&["get", "1", "--port", "1"], FAILED);
    exits(&["scan", "--port", "1"], FAILED);

    let saved = output(&["backup", "--port", port]);
    assert_eq!(saved.status.code(), Some(DONE), "{saved:?}");
    exits(&["serve", "--port", port], FAILED);
    exits(&["serve", "--config", &folder.path("absent")], FAILED);
    drop(server);
    let verified = output(&["verify", &data]);
    assert_eq!(verified.status.code(), Some(DONE), "{verified:?}");
    exits(&["verify", &folder.path("absent")], FAILED);
    exits(&["restore", &folder.path("absent"), "--dir", &folder.path("new")], FAILED);
    // Damage in the backup.
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
    // A file with an error changes nothing, and stops nothing.
    write("+@none");
    server.signal("-HUP");
    let line = server.line("ERROR");
    assert!(line.contains("line 1: '+@none'"), "{line}");
    exits(&["scan", "--port", &port], FAILED);
    exits(&["get", "absent", "--port", &port], FAILED);
    server.signal("-TERM");
    assert_eq!(server.process.wait().unwrap().code(), Some(DONE));
}

/// Sends an inline command; returns the reply, whose last line is `end`.
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
    let found = ask(port, "ZRANGE top:SE 0 -1 WITHSCORES", "94703");
    assert_eq!(found, "*4 $6 Kiruna $3 7.5 $4 Lund $5 94703", "the later record stays");
    // One sorted set of all, with members of two fields.
    let (_, error) =
        load(&["--zset", "id", "--member", "land,name", "--prefix", "all", "--separator", "/"]);
    assert!(error.contains("5 records stored"), "{error}");
    assert_eq!(ask(port, "ZRANGE all 0 1", "SE/Visby"), "*2 $7 NO/Oslo $8 SE/Visby");
    // The server refuses what is no sorted set; the line is named.
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
