//! Index nodes as separate processes, and the broker.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::clock::Moment;
use crate::{SETTLE, needed};

pub struct Cluster {
    pub topic: String,
    dir: PathBuf,
    pub first_port: u16,
    nodes: Vec<Option<Child>>,
    backups_every: &'static str,
}

fn signal(child: &Child, name: &str) {
    let done = Command::new("kill").args([name, &child.id().to_string()]).status().unwrap();
    assert!(done.success(), "kill {name}: {done}");
}

impl Cluster {
    /// Creates nodes that are not started yet.
    pub fn new(topic: &str, nodes: u16, backups_every: &'static str) -> Self {
        let topic = topic.to_owned();
        let dir = std::env::temp_dir().join(format!("ordna-{topic}"));
        std::fs::create_dir_all(&dir).unwrap();
        // The tests of a process run one after the other.
        let first_port = 21_000 + (std::process::id() % 10_000) as u16;
        let nodes = (0..nodes).map(|_| None).collect();
        Self { topic, dir, first_port, nodes, backups_every }
    }

    pub fn numbers(&self) -> std::ops::Range<u16> {
        0..self.nodes.len() as u16
    }

    pub fn port(&self, number: u16) -> u16 {
        self.first_port + number
    }

    fn log(&self, number: u16) -> PathBuf {
        self.dir.join(format!("node-{number}.log"))
    }

    fn start(&mut self, number: u16) {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(self.log(number));
        let child = Command::new(needed("ORDNA_BIN"))
            .args(["index-node", "--brokers", &needed("ORDNA_BROKER"), "--group", &self.topic])
            .args(["--topic", &self.topic, "--port", &self.port(number).to_string()])
            .args(["--index", "by_size ON * PARTS country TEXT people NUMERIC DESC"])
            .args(["--session-timeout", "6s", "--standby", "1", "--backups-on-revoke"])
            .args(["--backups-every", self.backups_every, "--threads", "2", "--backups"])
            .arg(self.dir.join("backups"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log.unwrap())
            .spawn()
            .unwrap();
        self.nodes[usize::from(number)] = Some(child);
    }

    /// Ends a node with a signal.
    pub fn stop(&mut self, number: u16, name: &str) {
        let Some(mut child) = self.nodes[usize::from(number)].take() else { return };
        signal(&child, name);
        let began = Moment::now();
        while child.try_wait().unwrap().is_none() {
            assert!(began.elapsed() < SETTLE, "node {number} does not end after {name}");
            thread::sleep(Duration::from_millis(10));
        }
    }

    pub fn signal(&self, number: u16, name: &str) {
        if let Some(child) = &self.nodes[usize::from(number)] {
            signal(child, name);
        }
    }

    /// Starts the stopped nodes. No other node may have ended.
    pub fn mend(&mut self) {
        for number in self.numbers() {
            match &mut self.nodes[usize::from(number)] {
                None => self.start(number),
                Some(child) => {
                    if let Some(status) = child.try_wait().unwrap() {
                        let log = self.log(number);
                        panic!("node {number} ended on its own: {status}; see {}", log.display());
                    }
                }
            }
        }
    }

    /// Ends all nodes, and removes their files unless a test fails. No node may have panicked.
    pub fn end(mut self) {
        for number in self.numbers() {
            self.stop(number, "-TERM");
            let log = self.log(number);
            let text = String::from_utf8_lossy(&std::fs::read(&log).unwrap()).into_owned();
            assert!(!text.contains("panicked at"), "node {number} panicked: {}", log.display());
        }
        std::fs::remove_dir_all(&self.dir).unwrap();
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for child in self.nodes.iter_mut().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Runs `cargo xtask kafka WORD`. Retries if a suspension of the process has exceeded a time limit.
pub fn broker(word: &str) {
    let run = || Command::new(needed("ORDNA_XTASK")).args(["kafka", word]).status().unwrap();
    let suspensions = crate::clock::suspensions();
    let mut done = run();
    while !done.success() && crate::clock::suspensions() > suspensions {
        done = run();
    }
    assert!(done.success(), "kafka {word}: {done}");
}
