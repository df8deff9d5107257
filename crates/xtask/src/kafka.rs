//! Runs a Kafka broker on this machine, from the artifacts of Maven Central, for tests and for
//! experiments with index nodes.
//!
//! The broker runs in KRaft mode on 127.0.0.1 with the machine's Java. Its files are in
//! `target/kafka/PORT`; the artifacts, which `kafka.jars` lists with their SHA-256, are in
//! `target/kafka/lib`. The port is 19092, and 19192 for tests; `ORDNA_KAFKA_PORT` chooses another.

use std::fs::{self, File};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::tools::{Outcome, cargo, must, root, target};

const JARS: &str = include_str!("kafka.jars");
const CENTRAL: &str = "https://repo1.maven.org/maven2";
/// Id of the cluster: 16 bytes in base 64.
const CLUSTER: &str = "T3JkbmFUZXN0Q2x1c3Rlcg";
/// Maximum time for a start or a stop of the broker. A broker that was killed first reads its logs.
const PATIENCE: Duration = Duration::from_secs(180);
/// Port of the separate broker for tests.
const TEST_PORT: u16 = 19192;

pub fn run(words: &[&str]) -> Outcome {
    let port = port(19092)?;
    let broker = Broker::new(port);
    match words {
        [] | ["start"] => {
            broker.start()?;
            broker.tell();
            Ok(())
        }
        ["sample"] => {
            broker.start()?;
            sample(port)?;
            broker.tell();
            Ok(())
        }
        ["stop"] => broker.stop("-TERM"),
        ["kill"] => broker.stop("-KILL"),
        ["wipe"] => {
            broker.stop("-TERM")?;
            remove(&broker.dir)
        }
        ["test", rest @ ..] => test(rest),
        _ => Err("cargo xtask kafka [start|sample|stop|kill|wipe|test]".to_owned()),
    }
}

/// Returns the port that the environment sets, or the default.
fn port(default: u16) -> Result<u16, String> {
    match std::env::var("ORDNA_KAFKA_PORT") {
        Ok(port) => port.parse().map_err(|_| format!("ORDNA_KAFKA_PORT: {port:?} is not a port")),
        Err(_) => Ok(default),
    }
}

/// Kills and stops index nodes and the broker this number of times, and checks every answer. Also
/// measures failovers and merged scans. `profile` applies to the program, because tests are built
/// anyway.
pub fn kills(number: &str, profile: &str) -> Outcome {
    must(cargo().args(["build", "--profile", profile, "--locked"]).args([
        "-p",
        "ordna-cli",
        "--features",
        "kafka",
    ]))?;
    let folder = if profile == "dev" { "debug" } else { profile };
    with_test_broker(
        cargo()
            .args(["test", "-p", "ordna-kafka", "--features", "kafka", "--locked"])
            .args(["--test", "kills", "--", "--nocapture", "--ignored"])
            .args(["--test-threads", "1"])
            .env("ORDNA_BIN", target(folder).join("ordna"))
            .env("ORDNA_KILLS", number),
    )
}

/// Runs the tests that need a broker. `rest` is passed to the tests.
fn test(rest: &[&str]) -> Outcome {
    let mut tests = cargo();
    tests.args(["test", "-p", "ordna-kafka", "--features", "kafka", "--locked", "--"]).args(rest);
    with_test_broker(&mut tests)?;
    let mut servers = cargo();
    servers.args(["test", "-p", "ordna-cli", "--features", "kafka", "--locked"]);
    servers.args(["--test", "replication", "--"]).args(rest);
    with_test_broker(&mut servers)
}

/// Runs a command with a new broker, which the command may control: `ORDNA_BROKER` and
/// `ORDNA_XTASK`.
fn with_test_broker(command: &mut Command) -> Outcome {
    let broker = Broker::new(port(TEST_PORT)?);
    broker.stop("-KILL")?;
    remove(&broker.dir)?;
    broker.start()?;
    let xtask = std::env::current_exe().map_err(|error| error.to_string())?;
    let done = must(
        command
            .env("ORDNA_BROKER", broker.address())
            .env("ORDNA_XTASK", xtask)
            .env("ORDNA_KAFKA_PORT", broker.port.to_string()),
    );
    broker.stop("-KILL")?;
    done
}

/// Fills the topic `places` with the documents of the file in the README.
fn sample(port: u16) -> Outcome {
    must(
        cargo()
            .args(["run", "--release", "-p", "ordna-kafka", "--features", "kafka"])
            .args(["--example", "produce", "--", &format!("127.0.0.1:{port}"), "places"])
            .arg(root().join("data/places.tsv.gz")),
    )
}

fn remove(dir: &Path) -> Outcome {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(format!("cannot remove {}: {error}", dir.display()))
        }
        _ => Ok(()),
    }
}

/// A broker, which may be running, and its files.
struct Broker {
    port: u16,
    dir: PathBuf,
}

impl Broker {
    fn new(port: u16) -> Self {
        Self { port, dir: target("kafka").join(port.to_string()) }
    }

    fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Returns the id of the broker's process, if it runs.
    fn process(&self) -> Option<String> {
        let process = fs::read_to_string(self.dir.join("pid")).ok()?;
        // The id may now belong to another process.
        let line = fs::read(format!("/proc/{process}/cmdline")).ok()?;
        String::from_utf8_lossy(&line).contains("kafka.Kafka").then_some(process)
    }

    fn tell(&self) {
        println!("broker at {}; its log: {}", self.address(), self.dir.join("log").display());
        println!("stop it: cargo xtask kafka stop; remove its topics: cargo xtask kafka wipe");
    }

    fn start(&self) -> Outcome {
        if self.process().is_some() {
            return Ok(());
        }
        let path = download()?;
        let io = |error: std::io::Error| format!("{}: {error}", self.dir.display());
        fs::create_dir_all(&self.dir).map_err(io)?;
        let settings = self.dir.join("server.properties");
        fs::write(&settings, self.settings()).map_err(io)?;
        if !self.dir.join("data/meta.properties").exists() {
            must(
                Command::new("java")
                    .args(["-cp", &path, "kafka.tools.StorageTool", "format"])
                    .args(["-t", CLUSTER, "-c"])
                    .arg(&settings)
                    .stdout(Stdio::null())
                    .stderr(Stdio::null()),
            )
            .map_err(|error| format!("{error}\n(Java 17 is needed: openjdk-17-jre-headless)"))?;
        }
        let log = File::create(self.dir.join("log")).map_err(io)?;
        let child = Command::new("setsid")
            .args(["java", "-Xmx768m", "-XX:+UseSerialGC", "-cp", &path, "kafka.Kafka"])
            .arg(&settings)
            .stdin(Stdio::null())
            .stderr(log.try_clone().map_err(io)?)
            .stdout(log)
            .spawn()
            .map_err(|error| format!("cannot start java: {error}"))?;
        fs::write(self.dir.join("pid"), child.id().to_string()).map_err(io)?;
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            let log = fs::read_to_string(self.dir.join("log")).map_err(io)?;
            if log.contains("Kafka Server started") && TcpStream::connect(self.address()).is_ok() {
                return Ok(());
            }
            if self.process().is_none() && began.elapsed() > Duration::from_secs(2) {
                break;
            }
            sleep(Duration::from_millis(100));
        }
        Err(format!("the broker did not start: see {}", self.dir.join("log").display()))
    }

    fn stop(&self, signal: &str) -> Outcome {
        let Some(process) = self.process() else { return Ok(()) };
        must(Command::new("kill").args([signal, &process]))?;
        let began = Instant::now();
        while self.process().is_some() {
            if began.elapsed() > PATIENCE {
                return Err(format!("the broker, process {process}, does not stop"));
            }
            sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    fn settings(&self) -> String {
        let (port, control) = (self.port, self.port + 1);
        let data = self.dir.join("data");
        format!(
            "process.roles=broker,controller\n\
             node.id=1\n\
             controller.quorum.voters=1@127.0.0.1:{control}\n\
             listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{control}\n\
             advertised.listeners=PLAINTEXT://127.0.0.1:{port}\n\
             controller.listener.names=CONTROLLER\n\
             listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT\n\
             log.dirs={}\n\
             auto.create.topics.enable=false\n\
             offsets.topic.num.partitions=1\n\
             offsets.topic.replication.factor=1\n\
             transaction.state.log.num.partitions=1\n\
             transaction.state.log.replication.factor=1\n\
             transaction.state.log.min.isr=1\n\
             group.initial.rebalance.delay.ms=0\n\
             group.min.session.timeout.ms=1000\n",
            data.display()
        )
    }
}

/// Downloads missing artifacts, checks all of them, and returns the class path.
fn download() -> Result<String, String> {
    let lib = target("kafka/lib");
    let list = lib.join("SHA256SUMS");
    fs::create_dir_all(&lib).map_err(|error| format!("{}: {error}", lib.display()))?;
    fs::write(&list, JARS).map_err(|error| format!("{}: {error}", list.display()))?;
    let jars: Vec<&str> = JARS.lines().filter_map(|line| line.split_whitespace().nth(1)).collect();
    let missing = || jars.iter().filter(|jar| !lib.join(jar).exists());
    if missing().next().is_some() {
        eprintln!("fetching {} artifacts of Kafka from {CENTRAL}", missing().count());
    }
    for jar in missing() {
        let part = lib.join(format!("{jar}.part"));
        must(
            Command::new("curl")
                .args(["-fsSL", "--retry", "3", "--create-dirs", "-o"])
                .arg(&part)
                .arg(format!("{CENTRAL}/{jar}")),
        )?;
        fs::rename(&part, lib.join(jar)).map_err(|error| format!("{jar}: {error}"))?;
    }
    must(Command::new("sha256sum").args(["--check", "--quiet", "SHA256SUMS"]).current_dir(&lib))?;
    let paths: Vec<_> = jars.iter().map(|jar| lib.join(jar).display().to_string()).collect();
    Ok(paths.join(":"))
}
