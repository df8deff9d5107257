//! A server for a test, and a client that returns replies as they were received.

use std::io::{BufRead, BufReader, ErrorKind, Lines, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ordna_server::{Config, DataConfig, LogSync, Reloader, Server};
use redis_protocol::resp2::decode::decode as decode2;
use redis_protocol::resp3::decode::complete::decode as decode3;
use tokio::sync::oneshot;

/// A server on a port that the system has chosen. It stops on drop.
pub struct Running {
    pub address: SocketAddr,
    pub tls: Option<SocketAddr>,
    pub metrics: Option<SocketAddr>,
    pub console: Option<SocketAddr>,
    pub reloader: Reloader,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Waits until no other server uses a data directory. A backup thread of the former server, or a
/// process that is being started, may hold its lock for a while.
pub fn wait_for_directory(dir: &Path) {
    if let Ok(lock) = std::fs::File::open(dir.join("LOCK")) {
        lock.lock().unwrap();
    }
}

pub fn start(config: Config) -> Running {
    let config = Config { bind: vec![SocketAddr::from(([127, 0, 0, 1], 0))], ..config };
    if let Some(data) = &config.data {
        wait_for_directory(&data.dir);
    }
    let (stop, stopped) = oneshot::channel();
    let (tell, told) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        runtime.unwrap().block_on(async move {
            let server = Server::bind(config).await.unwrap();
            let pages = (server.metrics_address(), server.console_address());
            let reloader = server.reloader();
            tell.send((server.address(), server.tls_address(), pages, reloader)).unwrap();
            server
                .run(async {
                    // Dropping the sender stops the server, too.
                    let _ = stopped.await;
                })
                .await
                .unwrap();
        });
    });
    let told = told.recv_timeout(Duration::from_secs(60)).expect("the server starts");
    let (address, tls, (metrics, console), reloader) = told;
    let (stop, thread) = (Some(stop), Some(thread));
    Running { address, tls, metrics, console, reloader, stop, thread }
}

impl Running {
    /// Stops the server and waits for its end.
    pub fn stop(&mut self) {
        drop(self.stop.take());
        self.wait();
    }

    /// Waits for the end of a server that was told to stop.
    pub fn wait(&mut self) {
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the server ends without a panic");
            // Until a new process executes its program, it has the open files of this process, and
            // thus the lock of the directory.
            drop(BEGINNING.lock());
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stop.take());
    }
}

/// A server in a separate process, for tests that inspect the whole process.
pub struct Child {
    pub address: SocketAddr,
    process: std::process::Child,
    /// Kept open, because the test program writes a message after a minute and would end if it
    /// cannot.
    _lines: Lines<BufReader<ChildStdout>>,
}

/// Held while a child process starts.
static BEGINNING: Mutex<()> = Mutex::new(());

/// Environment variable with the settings of a child, for example `max_memory=1000 collectors=3`.
const SETTINGS: &str = "ORDNA_TEST_CHILD";

/// Starts this test binary again, as a server.
pub fn spawn(settings: &str) -> Child {
    spawn_program(None, settings)
}

/// Starts a test binary as a server: this one, or that of another version. It ends if it requests
/// more than 8 GiB of address space.
pub fn spawn_program(binary: Option<PathBuf>, settings: &str) -> Child {
    let binary = binary.unwrap_or_else(|| std::env::current_exe().unwrap());
    // A file that would exceed its size limit causes an error instead of a signal.
    let begins = BEGINNING.lock();
    let mut process = Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -v 8388608; exec \"$0\" \"$@\""])
        .arg(binary)
        .args(["--exact", "common::is_a_server", "--ignored", "--nocapture"])
        .env(SETTINGS, settings)
        // Free pages are returned at once, because tests compare resident memory.
        .env("MIMALLOC_PURGE_DELAY", "0")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    drop(begins);
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let told = |line: std::io::Result<String>| {
        let line = line.unwrap();
        line.split_once("listens on ").map(|(_, address)| address.parse().unwrap())
    };
    let address = lines.by_ref().find_map(told).expect("the child listens");
    Child { address, process, _lines: lines }
}

impl Child {
    /// Returns the path of a file in `/proc` for the process.
    pub fn proc(&self, file: &str) -> std::path::PathBuf {
        format!("/proc/{}/{file}", self.process.id()).into()
    }

    /// Returns the exit status of the process, or `None` if it runs.
    pub fn has_ended(&mut self) -> Option<ExitStatus> {
        self.process.try_wait().unwrap()
    }

    /// Returns a size from `/proc` in KiB, by its name there.
    pub fn memory(&self, name: &str) -> usize {
        let status = std::fs::read_to_string(self.proc("status")).unwrap();
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // The process may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Not a test, but the server that [`spawn`] starts. It ends when its standard input is closed.
#[test]
#[ignore = "started by other tests"]
fn is_a_server() {
    let Ok(settings) = std::env::var(SETTINGS) else { return };
    let mut config = Config::default();
    for (name, value) in settings.split_whitespace().filter_map(|word| word.split_once('=')) {
        if name == "dir" {
            config.data = Some(DataConfig::new(value.into()));
            continue;
        }
        let number: usize = value.parse().unwrap();
        match name {
            "always" => config.data.as_mut().expect("first a directory").log = LogSync::Always,
            "max_memory" => config.max_memory = Some(number),
            "max_clients" => config.max_clients = number,
            "metrics" => {
                let port = u16::try_from(number).unwrap();
                config.metrics = Some(SocketAddr::from(([127, 0, 0, 1], port)));
            }
            "clients_memory" => config.max_clients_memory = Some(number),
            "collectors" => config.collectors = number.try_into().unwrap(),
            "file_bytes" => {
                rlimit::setrlimit(rlimit::Resource::FSIZE, number as u64, number as u64).unwrap();
            }
            "files" => {
                rlimit::setrlimit(rlimit::Resource::NOFILE, number as u64, number as u64).unwrap();
            }
            other => panic!("{other} is not a setting"),
        }
    }
    let server = start(config);
    println!("\nlistens on {}", server.address);
    let _ = std::io::stdin().read(&mut [0]);
}

pub struct Client {
    pub stream: TcpStream,
    received: Vec<u8>,
    pub resp3: bool,
}

impl Client {
    pub fn new(address: SocketAddr) -> Self {
        Self::of(TcpStream::connect(address).expect("the server listens"))
    }

    pub fn of(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, received: Vec::new(), resp3: false }
    }

    /// Connects a client from this local address.
    pub fn from_address(own: IpAddr, address: SocketAddr) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let stream = runtime.block_on(async {
            let socket = tokio::net::TcpSocket::new_v4().unwrap();
            socket.bind(SocketAddr::new(own, 0)).unwrap();
            socket.connect(address).await.unwrap().into_std().unwrap()
        });
        stream.set_nonblocking(false).unwrap();
        Self::of(stream)
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the server reads");
    }

    pub fn reply_to(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.send(bytes);
        self.reply()
    }

    /// Returns the bytes of the next reply. They are empty if the connection was closed.
    pub fn reply(&mut self) -> Vec<u8> {
        loop {
            let complete = if self.resp3 {
                decode3(&self.received).expect("valid RESP3").map(|(_, used)| used)
            } else {
                decode2(&self.received).expect("valid RESP2").map(|(_, used)| used)
            };
            if let Some(used) = complete {
                return self.received.drain(..used).collect();
            }
            let mut piece = [0; 64 << 10];
            match self.stream.read(&mut piece) {
                Ok(0) => return Vec::new(),
                Ok(read) => self.received.extend_from_slice(&piece[..read]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {
                    return Vec::new();
                }
                Err(error) => panic!("no reply: {error}; so far {:?}", show(&self.received)),
            }
        }
    }

    /// Sends as many bytes as the server accepts. It may have closed the connection.
    pub fn send_if_open(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    /// Returns the bytes of the next RESP2 reply. They are empty if the connection was closed.
    /// Returns `None` if no reply arrives in time. The call itself takes little time even for a
    /// long reply.
    pub fn reply_within(&mut self, time: Duration) -> Option<Vec<u8>> {
        let end = Instant::now() + time;
        let mut piece = vec![0; 256 << 10];
        let mut extent = Extent::default();
        loop {
            if let Some(end) = extent.end(&self.received) {
                return Some(self.received.drain(..end).collect());
            }
            let left = end.checked_duration_since(Instant::now())?;
            self.stream.set_read_timeout(Some(left.max(Duration::from_millis(1)))).unwrap();
            match self.stream.read(&mut piece) {
                Ok(0) => return Some(Vec::new()),
                Ok(read) => self.received.extend_from_slice(&piece[..read]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
                Err(_) => return Some(Vec::new()),
            }
        }
    }

    /// Returns whether the server has closed the connection without a further reply.
    pub fn is_closed(&mut self) -> bool {
        let waits = |error: &std::io::Error| {
            matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
        };
        self.received.is_empty()
            && match self.stream.read(&mut [0; 1]) {
                Ok(read) => read == 0,
                // The timeout of reads belongs to this test.
                Err(error) => !waits(&error),
            }
    }

    pub fn ask(&mut self, arguments: &[&[u8]]) -> String {
        self.send(&request(arguments));
        show(&self.reply())
    }

    /// Sends a command, given as words without quoting.
    pub fn say(&mut self, line: &str) -> String {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        self.ask(&words)
    }
}

/// Finds the end of the first reply in bytes that arrive in pieces. This takes O(bytes) in total;
/// parsing the bytes again for each piece would take O(bytes²).
#[derive(Debug)]
pub struct Extent {
    at: usize,
    /// Number of parts that are still missing.
    parts: usize,
}

impl Default for Extent {
    fn default() -> Self {
        Self { at: 0, parts: 1 }
    }
}

impl Extent {
    /// Returns the end of the reply, or `None` if it is incomplete. `bytes` begins with the bytes
    /// of the last call.
    pub fn end(&mut self, bytes: &[u8]) -> Option<usize> {
        while self.parts > 0 {
            let (next, more) = part(bytes, self.at)?;
            (self.at, self.parts) = (next, self.parts - 1 + more);
        }
        Some(self.at)
    }
}

/// Returns the end of the part of a reply that begins at `at`, and the number of parts that it
/// contains. Returns `None` if it is incomplete.
fn part(bytes: &[u8], at: usize) -> Option<(usize, usize)> {
    let rest = bytes.get(at..)?;
    let line = rest.windows(2).position(|pair| pair == b"\r\n")?;
    let number = || std::str::from_utf8(&rest[1..line]).ok()?.parse::<i64>().ok();
    let end = at + line + 2;
    match rest[0] {
        b'*' | b'~' | b'>' => Some((end, number().map_or(0, |count| count.max(0) as usize))),
        b'%' => Some((end, number().map_or(0, |count| count.max(0) as usize * 2))),
        b'$' | b'=' | b'!' => {
            let end = number().filter(|len| *len >= 0).map_or(end, |len| end + len as usize + 2);
            (end <= bytes.len()).then_some((end, 0))
        }
        _ => Some((end, 0)),
    }
}

/// Encodes a command as clients send it.
pub fn request(arguments: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", arguments.len()).into_bytes();
    for argument in arguments {
        bytes.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
        bytes.extend_from_slice(argument);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

pub fn show(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string().replace("\\'", "'")
}

/// Returns whether two replies to TTL are equal, or differ by no more than the time since `begin`.
/// The deadline was set at or after that time. A slow machine may have lost a second.
pub fn is_ttl(reply: &str, other: &str, begin: Instant) -> bool {
    let seconds = |reply: &str| -> Option<u64> {
        reply.strip_prefix(':')?.strip_suffix(r"\r\n")?.parse().ok()
    };
    let gone = begin.elapsed();
    match (seconds(reply), seconds(other)) {
        // Both values are rounded.
        (Some(one), Some(other)) => one.abs_diff(other) <= (gone.as_millis() as u64 + 500) / 1000,
        _ => reply == other,
    }
}

/// Returns the duration of a test that could run forever: `usual` seconds, or as `ORDNA_SECONDS`
/// says.
pub fn seconds(usual: u64) -> Duration {
    let asked = std::env::var("ORDNA_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(asked.unwrap_or(usual))
}

/// Pseudo-random numbers that are the same in every run (SplitMix64).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns a number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ mixed >> 31) % end as u64) as usize
    }
}

/// Starts a server with the default settings, and connects a client.
pub fn fresh() -> (Running, Client) {
    let server = start(Config::default());
    let client = Client::new(server.address);
    (server, client)
}

/// Sends each line and compares the reply.
pub fn converse(client: &mut Client, lines: &[(&str, &str)]) {
    let begin = Instant::now();
    for (line, expected) in lines {
        let reply = client.say(line);
        if !line.starts_with("TTL ") || !is_ttl(&reply, expected, begin) {
            assert_eq!(reply, *expected, "{line}");
        }
    }
}
