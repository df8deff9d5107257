//! Programs, folders and servers of the tests.

#![allow(dead_code, reason = "each test program uses a part")]

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

pub const DONE: i32 = 0;
pub const FAILED: i32 = 1;
pub const WRONG_USAGE: i32 = 2;
pub const UNREACHABLE: i32 = 3;

pub fn ordna(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ordna"));
    command.args(words).env_remove("ORDNA_PASSWORD").env_remove("ORDNA_LOG");
    command
}

pub fn output(words: &[&str]) -> Output {
    ordna(words).stdin(Stdio::null()).output().unwrap()
}

/// Runs a command and checks its exit code. Only a failure may write to standard error, and it
/// must.
pub fn exits(words: &[&str], code: i32) -> Output {
    let output = output(words);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{words:?}: {error}");
    assert_eq!(code == DONE, error.is_empty(), "{words:?}: {error}");
    assert!(code == DONE || output.stdout.is_empty(), "{words:?}");
    output
}

/// A folder for one test, removed when dropped.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("ordna-cli-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    pub fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A server in a separate process, killed when dropped.
pub struct Server {
    pub process: Child,
    pub port: String,
    log: Receiver<String>,
}

impl Server {
    pub fn start(words: &[&str]) -> Self {
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

    /// Returns the next line of the log that contains `text`.
    #[track_caller]
    pub fn line(&self, text: &str) -> String {
        let end = Instant::now() + Duration::from_secs(60);
        let mut others = Vec::new();
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.log.recv_timeout(left) {
                Ok(line) if line.contains(text) => return line,
                Ok(line) => others.push(line),
                Err(error) => panic!("no {text:?}: {error}, after\n{}", others.join("\n")),
            }
        }
    }

    pub fn signal(&self, name: &str) {
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
