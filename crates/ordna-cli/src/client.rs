//! A connection to a running server, which can be split to pipeline requests.

use std::fmt;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::str::FromStr;

use anyhow::{Context, bail};
use bytes::{Bytes, BytesMut};
use clap::Args;
use redis_protocol::resp2::decode::decode_bytes_mut;
use redis_protocol::resp2::types::BytesFrame;

/// Address and password of a running server.
#[derive(Debug, Clone, Args)]
pub struct ServerAddress {
    /// Address of the server; replaces --host and --port
    #[arg(long, value_name = "HOST:PORT", conflicts_with_all = ["host", "port"])]
    server: Option<HostPort>,
    /// Host of the server
    #[arg(long, default_value = "127.0.0.1")]
    host: String,
    /// Port of the server
    #[arg(long, default_value_t = 6380)]
    port: u16,
    /// Password of the default user
    #[arg(long, env = "ORDNA_PASSWORD", hide_env_values = true)]
    password: Option<String>,
}

/// `HOST:PORT`; an IPv6 address is in brackets.
#[derive(Debug, Clone, PartialEq, Eq)]
struct HostPort {
    host: String,
    port: u16,
}

impl FromStr for HostPort {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.rsplit_once(':');
        let parts = parts.and_then(|(host, port)| Some((host, port.parse().ok()?)));
        let (host, port) = parts.ok_or_else(|| format!("{text:?} is not HOST:PORT"))?;
        Ok(Self { host: host.trim_start_matches('[').trim_end_matches(']').to_owned(), port })
    }
}

/// The error if no server answers, or if the connection was lost. The program then exits with a
/// special exit code.
#[derive(Debug)]
pub struct Unreachable(String);

impl fmt::Display for Unreachable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unreachable {}

/// Returns the error of a connection that was lost.
pub fn lost() -> Unreachable {
    Unreachable("the connection to the server was lost".into())
}

/// A type of collections of a server.
struct Kind {
    name: &'static str,
    /// The command that returns the number of elements.
    size: &'static str,
    /// One element.
    element: &'static str,
}

const KINDS: [Kind; 4] = [
    Kind { name: "list", size: "LLEN", element: "value" },
    Kind { name: "hash", size: "HLEN", element: "field" },
    Kind { name: "set", size: "SCARD", element: "member" },
    Kind { name: "zset", size: "ZCARD", element: "member" },
];

/// Returns the type that `TYPE` names.
fn kind_of(name: &[u8]) -> Option<&'static Kind> {
    KINDS.iter().find(|kind| kind.name.as_bytes() == name)
}

impl Kind {
    /// Returns the type with the size in a reply.
    fn of_size(&self, reply: Option<BytesFrame>) -> String {
        let name = if self.name == "zset" { "sorted set" } else { self.name };
        match reply {
            Some(BytesFrame::Integer(1)) => format!("{name} of 1 {}", self.element),
            Some(BytesFrame::Integer(size)) => format!("{name} of {size} {}s", self.element),
            _ => name.to_owned(),
        }
    }
}

/// The half of a connection that reads replies.
#[derive(Debug)]
pub struct Replies {
    stream: TcpStream,
    buffer: BytesMut,
}

/// A connection that waits for the reply of each request.
#[derive(Debug)]
pub struct Client {
    stream: TcpStream,
    replies: Replies,
}

impl ServerAddress {
    /// Sets host and port from a text `HOST:PORT`.
    ///
    /// # Errors
    /// The text does not have this form.
    pub fn set(&mut self, text: &str) -> anyhow::Result<()> {
        self.server = Some(text.parse().map_err(anyhow::Error::msg)?);
        Ok(())
    }

    /// Returns the host and the port.
    pub fn place(&self) -> (&str, u16) {
        match &self.server {
            Some(HostPort { host, port }) => (host, *port),
            None => (&self.host, self.port),
        }
    }

    /// Connects to the server and authenticates.
    pub fn connect(&self) -> anyhow::Result<Client> {
        let (host, port) = self.place();
        let stream = TcpStream::connect((host, port)).with_context(|| {
            let hint = "start one with `ordna serve`";
            Unreachable(format!("no server answers on {host}:{port}; {hint}"))
        })?;
        stream.set_nodelay(true)?;
        let replies = Replies { stream: stream.try_clone()?, buffer: BytesMut::new() };
        let mut client = Client { stream, replies };
        if let Some(password) = &self.password {
            client.call(&[b"AUTH", password.as_bytes()])?;
        }
        Ok(client)
    }
}

impl Client {
    /// Sends a request and waits for its reply. An error reply becomes an `Err`.
    pub fn call(&mut self, words: &[&[u8]]) -> anyhow::Result<BytesFrame> {
        match self.request(words)? {
            BytesFrame::Error(text)
                if text.starts_with("ERR unknown command") && text.contains("ORDNA.") =>
            {
                bail!("the server is not Ordna, or an older one. It says: {text}")
            }
            BytesFrame::Error(text) => bail!("the server says: {text}"),
            reply => Ok(reply),
        }
    }

    /// Sends several requests at once and waits for their replies, which may be errors.
    fn request_all(&mut self, requests: &[[&[u8]; 2]]) -> anyhow::Result<Vec<BytesFrame>> {
        let mut out = Vec::new();
        requests.iter().for_each(|words| write_request(&mut out, words));
        self.stream.write_all(&out).with_context(lost)?;
        requests.iter().map(|_| self.replies.next()).collect()
    }

    /// Returns what each of these keys holds, with its size, such as `list of 3 values`.
    pub fn describe(&mut self, keys: &[&[u8]]) -> anyhow::Result<Vec<String>> {
        /// Keys that are asked for at once: the server sends no more than the sockets buffer.
        const AT_ONCE: usize = 100;
        let mut described = Vec::with_capacity(keys.len());
        for keys in keys.chunks(AT_ONCE) {
            let types = keys.iter().map(|key| [&b"TYPE"[..], key]);
            let types = self.request_all(&types.collect::<Vec<_>>())?;
            let kinds = types.iter().map(|reply| match reply {
                BytesFrame::SimpleString(name) => kind_of(name),
                _ => None,
            });
            let kinds: Vec<_> = kinds.collect();
            let known = kinds.iter().zip(keys);
            let sizes = known.filter_map(|(kind, key)| Some([(*kind)?.size.as_bytes(), key]));
            let mut sizes = self.request_all(&sizes.collect::<Vec<_>>())?.into_iter();
            described.extend(kinds.iter().map(|kind| match kind {
                Some(kind) => kind.of_size(sizes.next()),
                None => "no longer a collection".to_owned(),
            }));
        }
        Ok(described)
    }

    /// Sends a request and waits for its reply, which may be an error.
    pub fn request(&mut self, words: &[&[u8]]) -> anyhow::Result<BytesFrame> {
        let mut request = Vec::new();
        write_request(&mut request, words);
        self.stream.write_all(&request).with_context(lost)?;
        self.replies.next()
    }

    /// Splits the connection into its two halves, for pipelining.
    pub fn split(self) -> (TcpStream, Replies) {
        (self.stream, self.replies)
    }
}

impl Replies {
    /// Waits for the next reply.
    pub fn next(&mut self) -> anyhow::Result<BytesFrame> {
        loop {
            if nests_beyond(&self.buffer, MOST_NESTED) {
                bail!(
                    "the server broke the protocol: its reply nests more than {MOST_NESTED} arrays"
                );
            }
            let decoded = decode_bytes_mut(&mut self.buffer)
                .map_err(|error| anyhow::anyhow!("the server broke the protocol: {error}"))?;
            if let Some((frame, _, _)) = decoded {
                return Ok(frame);
            }
            let mut part = [0; 64 << 10];
            match self.stream.read(&mut part).with_context(lost)? {
                0 => return Err(lost().into()),
                read => self.buffer.extend_from_slice(&part[..read]),
            }
        }
    }
}

/// Maximum nesting of arrays in a reply. The decoder is recursive, so deeper nesting could overflow
/// the stack.
const MOST_NESTED: usize = 64;

/// Returns whether the reply at the start of `bytes` nests more than `most` arrays, as far as the
/// reply has arrived.
fn nests_beyond(mut bytes: &[u8], most: usize) -> bool {
    // For each open array, the number of elements that are still to come.
    let mut open: Vec<i64> = Vec::new();
    while let Some(end) = bytes.windows(2).position(|pair| pair == b"\r\n") {
        let (line, rest) = (&bytes[..end], &bytes[end + 2..]);
        let number = |line: &[u8]| str::from_utf8(line.get(1..)?).ok()?.parse::<i64>().ok();
        bytes = rest;
        match line.first() {
            Some(b'*') if number(line) > Some(0) => {
                open.push(number(line).unwrap_or(1));
                if open.len() > most {
                    return true;
                }
                continue;
            }
            Some(b'$') if number(line) >= Some(0) => {
                let len = usize::try_from(number(line).unwrap_or(0)).unwrap_or(usize::MAX);
                let Some(rest) = rest.get(len.saturating_add(2)..) else { return false };
                bytes = rest;
            }
            _ => {}
        }
        while let Some(left) = open.last_mut() {
            *left -= 1;
            if *left > 0 {
                break;
            }
            open.pop();
        }
        if open.is_empty() {
            return false;
        }
    }
    false
}

/// Appends a request to `out`.
pub fn write_request(out: &mut Vec<u8>, words: &[&[u8]]) {
    // Writing to a vector cannot fail.
    let _ = write!(out, "*{}\r\n", words.len());
    for word in words {
        let _ = write!(out, "${}\r\n", word.len());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
}

/// Returns the bytes of a bulk reply.
pub fn bytes_of(frame: BytesFrame) -> anyhow::Result<Bytes> {
    match frame {
        BytesFrame::BulkString(bytes) | BytesFrame::SimpleString(bytes) => Ok(bytes),
        other => bail!("unexpected reply: {other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deep_replies_are_found_before_they_are_decoded() {
        let deep = |depth: usize| [b"*1\r\n".repeat(depth), b":1\r\n".to_vec()].concat();
        assert!(!nests_beyond(&deep(64), 64) && nests_beyond(&deep(65), 64));
        // A nested array after other elements is found; bytes within a string, or in the next
        // reply, are not mistaken for one.
        let second = [b"*3\r\n$2\r\n*1\r\n*0\r\n".to_vec(), deep(64)].concat();
        assert!(nests_beyond(&second, 64) && !nests_beyond(&second, 65));
        let text = deep(100);
        let string = [format!("*1\r\n${}\r\n", text.len()).into_bytes(), text].concat();
        assert!(!nests_beyond(&string, 64));
        assert!(!nests_beyond(&[b"+OK\r\n".to_vec(), deep(100)].concat(), 64));
        let wide = [b"*1000\r\n".to_vec(), b"*1\r\n:1\r\n".repeat(1000)].concat();
        assert!(!nests_beyond(&wide, 2) && nests_beyond(&wide, 1));
    }
}
