//! Tests of `ordna shell` and `ordna export`, and of `ordna load` with exported files.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Output, Stdio};

use common::{DONE, FAILED, Folder, Server, UNREACHABLE, WRONG_USAGE, ordna, output};

mod common;

/// Runs a command with a standard input.
fn with_input(words: &[&str], input: &[u8]) -> Output {
    let mut command = ordna(words);
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // The command may end before it has read all input.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
}

/// Runs a shell; returns its exit code, output and errors.
fn shell(words: &[&str], input: &str) -> (Option<i32>, String, String) {
    let output = with_input(&[&["shell"], words].concat(), input.as_bytes());
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn a_shell_reads_and_writes_a_directory() {
    let folder = Folder::new("shell-dir");
    let dir = folder.path("store");
    let (code, _, error) = shell(&[&dir], "first\n");
    assert!(code == Some(FAILED) && error.contains("there is no directory"), "{error}");
    let lines = "# towns\nput SE:Lund 94393\nput 'SE:Umeå' \"a\\x00b\"\nput NO:Oslo 1 for 100\n\
                 get SE:Lund\nget nothing\ncount\nput x 1\ndel x y\n";
    let (code, out, error) = shell(&[&dir, "--create"], lines);
    assert_eq!((code, error.as_str()), (Some(DONE), ""));
    assert_eq!(out, "OK\nOK\nOK\n94393\n(absent)\n3\nOK\n1\n");
    let lines = "prefix SE: limit 1\nrange - + rev keys\nrange NO: SE:\ncount NO SE:M\nfirst\nlast\nttl SE:Lund\n\
                 export F SE:\nstats\nhelp del\nexit\nget after\n";
    let file = folder.path("out.tsv");
    let (code, out, error) = shell(&[&dir], &lines.replace('F', &file));
    assert_eq!((code, error.as_str()), (Some(DONE), ""));
    let (before, after) = out.split_once("entries\t").unwrap();
    let expected = "SE:Lund\t94393\nSE:Umeå\nSE:Lund\nNO:Oslo\nNO:Oslo\t1\n2\nNO:Oslo\t1\n\
                    SE:Umeå\ta\\u{0}b\n(never)\n2 entries\n";
    assert_eq!(before, expected);
    assert!(
        after.starts_with("3\n")
            && after.ends_with("del KEY [KEY …]\nRemove keys; prints how many there were\n"),
        "{after}"
    );
    let exported = std::fs::read_to_string(&file).unwrap();
    assert!(exported.ends_with("SE:Lund\t94393\t\t\t\t\nSE:Umeå\ta\0b\t\t\t\t\n"), "{exported}");
    for (line, reason) in [
        ("nonsense", "there is no command `nonsense`; `help` lists all"),
        ("get", "usage: get KEY"),
        ("get 'a", "not closed"),
        ("prefix a limit many", "`many` is not a number"),
        ("prefix a backwards", "there are LIMIT N, REV, KEYS"),
        ("export F", "already exists"),
    ] {
        let lines = format!("count\n{}\nput never 1\n", line.replace('F', &file));
        let (code, out, error) = shell(&[&dir], &lines);
        assert_eq!((code, out.as_str()), (Some(FAILED), "3\n"), "{error}");
        assert!(error.contains("line 2: ") && error.contains(reason), "{error}");
    }
    // Only one shell can open a directory at a time.
    let mut other = ordna(&["shell", &dir]);
    let mut other = other.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    other.stdin.as_mut().unwrap().write_all(b"sync\n").unwrap();
    // Each answer is printed at once, not only at the end of the input.
    let mut answer = [0; 3];
    other.stdout.as_mut().unwrap().read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"OK\n");
    let (code, _, error) = shell(&[&dir], "count\n");
    assert!(code == Some(FAILED) && error.contains("in use"), "{error}");
    drop(other.stdin.take());
    assert!(other.wait().unwrap().success());
}

#[test]
fn a_shell_talks_to_a_server() {
    let server = Server::start(&[]);
    let at = format!("127.0.0.1:{}", server.port);
    let lines = "set a 1\nhset h f v g 2\nhgetall h\nget none\nordna.range - + keys\n\
                 ordna.snapshot create keep\nhelp ordna.snapshot drop\ninfo snapshots\n";
    let (code, out, error) = shell(&["--server", &at], lines);
    assert_eq!((code, error.as_str()), (Some(DONE), ""));
    let expected = "OK\n2\nf\tv\ng\t2\n(absent)\na\nh\n1\nordna.snapshot drop id\nDrops a snapshot.\n# Snapshots\n";
    assert!(out.starts_with(expected) && out.contains("\nsnapshots_held:1\n"), "{out}");
    for (line, reason) in [
        ("hgett", "there are hget, hgetall"),
        ("hget h", "usage: hget key field"),
        ("hgetall a", "`type a` says what the key holds"),
        ("monitor", "use redis-cli"),
        ("client reply off", "use redis-cli"),
    ] {
        let (code, out, error) = shell(&["--server", &at], &format!("get a\n{line}\nset a 2\n"));
        assert_eq!((code, out.as_str()), (Some(FAILED), "1\n"), "{error}");
        assert!(error.contains("line 2: ") && error.contains(reason), "{error}");
    }
    let top = output(&["top", "--once", "--interval", "0.2", "--server", &at]);
    let text = String::from_utf8(top.stdout).unwrap();
    assert!(text.contains("keys\t2, 0 expire") && text.contains("\nhset\t"), "{text}");
    let (code, _, _) = shell(&["--server", &at], "shutdown nosave\n");
    assert_eq!(code, Some(UNREACHABLE));
    let (code, _, error) = shell(&["--server", &at], "get a\n");
    assert!(code == Some(UNREACHABLE) && error.contains("no server answers"), "{error}");
    let (code, _, _) = shell(&["--server", "nowhere"], "");
    assert_eq!(code, Some(WRONG_USAGE));
}

#[test]
fn a_directory_of_a_server_is_refused() {
    let folder = Folder::new("server-dir");
    let dir = folder.path("data");
    let server = Server::start(&["--dir", &dir, "--log", "always"]);
    ask(&server, &[b"SET", b"\xff", b"a key of a form of its own"]);
    drop(server);
    let (code, _, error) = shell(&[&dir], "count\n");
    assert!(code == Some(FAILED) && error.contains("is the directory of a server"), "{error}");
}

/// Sends a request and returns the part of the reply that arrives in one read.
fn ask(server: &Server, words: &[&[u8]]) -> Vec<u8> {
    let mut request = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        request.extend(format!("${}\r\n", word.len()).bytes());
        request.extend([word, &b"\r\n"[..]].concat());
    }
    let mut stream = TcpStream::connect(format!("127.0.0.1:{}", server.port)).unwrap();
    stream.write_all(&request).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply).unwrap();
    reply
}

/// Fills a server with values of every type, with binary keys and values, and with deadlines.
fn fill(server: &Server) {
    let set = |words: &[&[u8]]| assert_ne!(ask(server, words)[0], b'-', "{words:?}");
    let far = b"4102444800000";
    for key in [
        &b""[..],
        b"plain",
        b"a,\"b\"",
        b"tab\there",
        b"line\nend\r\n",
        b"\xff\x00",
        "Å".as_bytes(),
    ] {
        for value in [&b""[..], b"text", b"\"quoted\", and\ttabs", b"\r\n\xff", b"\n"] {
            set(&[b"SET", &[key, value].concat(), value]);
        }
        set(&[b"SET", &[key, b"!"].concat(), b"expires", b"PXAT", far]);
        set(&[b"ZADD", &[key, b"-z"].concat(), b"1.5", key, b"2", b"b\xff"]);
        set(&[b"HSET", &[key, b"-h"].concat(), key, key, b"f", b"\x00"]);
    }
    set(&[b"RPUSH", b"list", b"a", b"\xff", b"a"]);
    set(&[b"SADD", b"set", b"a", b"\xff"]);
    set(&[b"PEXPIREAT", b"set", far]);
    for at in 0..3000 {
        set(&[b"SET", format!("many:{at:04}").as_bytes(), at.to_string().as_bytes()]);
    }
}

/// Returns the whole content of a server: for each key, in order, its deadline and its `DUMP`
/// payload.
fn state(server: &Server) -> Vec<u8> {
    let done = output(&["export", "--port", &server.port]);
    assert!(done.status.success(), "{done:?}");
    done.stdout
}

#[test]
fn a_load_of_an_export_makes_the_same_entries() {
    let folder = Folder::new("export");
    let (from, to) = (Server::start(&[]), Server::start(&[]));
    fill(&from);
    let expected = state(&from);
    assert_eq!(expected.iter().filter(|&&byte| byte == b'\n').count(), 3000 + 7 * 8 + 2);
    for name in ["a.jsonl", "a.csv", "a.tsv"] {
        let file = folder.path(name);
        let done = output(&["export", "--port", &from.port, "-o", &file]);
        assert_eq!(done.status.code(), Some(DONE), "{done:?}");
        ask(&to, &[b"FLUSHALL"]);
        let loaded = output(&["load", &file, "--entries", "--port", &to.port]);
        assert_eq!(loaded.status.code(), Some(DONE), "{name}: {loaded:?}");
        assert!(state(&to) == expected, "{name}");
        // The same through standard input, for a part of the keys.
        ask(&to, &[b"FLUSHALL"]);
        let format = ["--format", if name == "a.jsonl" { "ndjson" } else { &name[2..] }];
        let words = ["load", "-", "--entries", "--port", &to.port];
        let bytes = std::fs::read(&file).unwrap();
        let loaded = with_input(&[&words[..], &format].concat(), &bytes);
        assert_eq!(loaded.status.code(), Some(DONE), "{name}: {loaded:?}");
        assert!(state(&to) == expected, "{name}");
    }
    let part =
        output(&["export", "--port", &from.port, "--from", "many:0010", "--to", "many:0012"]);
    assert_eq!(part.stdout.iter().filter(|&&byte| byte == b'\n').count(), 3, "{part:?}");
    let strings = output(&["export", "--port", &from.port, "--strings", "--format", "csv"]);
    assert!(
        String::from_utf8_lossy(&strings.stderr).contains("16 lists, hashes, sets"),
        "{strings:?}"
    );
}

#[test]
fn an_export_that_was_cut_is_continued_at_its_snapshot() {
    let folder = Folder::new("resume");
    let server = Server::start(&[]);
    fill(&server);
    assert_eq!(ask(&server, &[b"ORDNA.SNAPSHOT", b"CREATE", b"KEEP"]), b":1\r\n");
    let file = |name: &str| folder.path(name);
    let export = |name: &str, resume: &[&str]| {
        let file = file(name);
        let words = ["export", "--port", &server.port, "--snapshot", "1", "-o", &file];
        output(&[&words[..], resume].concat())
    };
    for name in ["a.jsonl", "a.csv", "a.tsv"] {
        assert!(export(name, &[]).status.success());
        let whole = std::fs::read(file(name)).unwrap();
        // The keys change, but the snapshot does not.
        ask(&server, &[b"SET", b"many:9", name.as_bytes()]);
        ask(&server, &[b"DEL", b"many:0007"]);
        let again = export(name, &[]);
        assert_eq!(again.status.code(), Some(FAILED), "the file already exists: {again:?}");
        for cut in [0, 1, 30, 77, 300, 1000, whole.len() / 2, whole.len() - 1, whole.len()] {
            std::fs::write(file(name), &whole[..cut]).unwrap();
            let resumed = export(name, &["--resume"]);
            assert!(resumed.status.success(), "{name} at {cut}: {resumed:?}");
            assert!(std::fs::read(file(name)).unwrap() == whole, "{name} at {cut}");
        }
    }
    std::fs::write(file("a.csv"), "id,name\n1,a\n2,b\n").unwrap();
    let other = export("a.csv", &["--resume"]);
    let error = String::from_utf8_lossy(&other.stderr);
    assert!(!other.status.success() && error.contains("is not that of an export"), "{error}");
    assert!(std::fs::read(file("a.csv")).unwrap().len() == 16, "it is untouched");
    ask(&server, &[b"ORDNA.SNAPSHOT", b"DROP", b"1"]);
    let error = export("a.jsonl", &["--resume"]);
    let error = String::from_utf8_lossy(&error.stderr);
    assert!(error.contains("there is no snapshot 1"), "{error}");
}
