//! A server of the test's own, and a client that shows replies as they came.
#![allow(dead_code, reason = "each test file uses its part")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ordna_server::{Config, Server};
use redis_protocol::resp2::decode::decode as decode2;
use redis_protocol::resp3::decode::complete::decode as decode3;
use tokio::sync::oneshot;

/// A server on a port that the system chose; stops when dropped.
pub struct Running {
    pub address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

pub fn start(config: Config) -> Running {
    let config = Config { bind: SocketAddr::from(([127, 0, 0, 1], 0)), ..config };
    let (stop, stopped) = oneshot::channel();
    let (tell, told) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        runtime.unwrap().block_on(async move {
            let server = Server::bind(config).await.unwrap();
            tell.send(server.address()).unwrap();
            server
                .run(async {
                    // Dropping the sender stops it too.
                    let _ = stopped.await;
                })
                .await;
        });
    });
    let address = told.recv_timeout(Duration::from_secs(60)).expect("the server starts");
    Running { address, stop: Some(stop), thread: Some(thread) }
}

impl Running {
    /// Stops the server and waits for its end.
    pub fn stop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the server ends without a panic");
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stop.take());
    }
}

pub struct Client {
    pub stream: TcpStream,
    received: Vec<u8>,
    pub resp3: bool,
}

impl Client {
    pub fn new(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("the server listens");
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, received: Vec::new(), resp3: false }
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the server reads");
    }

    /// The next reply, raw; empty if the connection was closed.
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

    /// Whether the server has closed, with nothing more to say.
    pub fn is_closed(&mut self) -> bool {
        self.received.is_empty() && matches!(self.stream.read(&mut [0; 1]), Ok(0) | Err(_))
    }

    pub fn ask(&mut self, arguments: &[&[u8]]) -> String {
        self.send(&request(arguments));
        show(&self.reply())
    }

    /// A command in words, without quoting.
    pub fn say(&mut self, line: &str) -> String {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        self.ask(&words)
    }
}

/// A command as clients send it.
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

/// Whether a reply to TTL is the other one, or differs by no more than the time since `begin`, at or after
/// which the deadline was set: on a machine that was held up, a second has gone.
pub fn is_ttl(reply: &str, other: &str, begin: Instant) -> bool {
    let seconds = |reply: &str| -> Option<u64> {
        reply.strip_prefix(':')?.strip_suffix(r"\r\n")?.parse().ok()
    };
    let gone = begin.elapsed();
    match (seconds(reply), seconds(other)) {
        // Both are rounded.
        (Some(one), Some(other)) => one.abs_diff(other) <= (gone.as_millis() as u64 + 500) / 1000,
        _ => reply == other,
    }
}
