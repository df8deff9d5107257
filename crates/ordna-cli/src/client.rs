//! A connection to a running server: pipelined requests out, replies in.

use std::io::{Read, Write};
use std::net::TcpStream;

use anyhow::{Context, bail};
use bytes::{Bytes, BytesMut};
use clap::Args;
use redis_protocol::resp2::decode::decode_bytes_mut;
use redis_protocol::resp2::types::BytesFrame;

/// Address and password of a running server.
#[derive(Debug, Clone, Args)]
pub struct ServerAddress {
    /// Host of the server
    #[arg(long, default_value = "127.0.0.1")]
    host: String,
    /// Port of the server
    #[arg(long, default_value_t = 6380)]
    port: u16,
    /// Password of the server
    #[arg(long, env = "ORDNA_PASSWORD", hide_env_values = true)]
    password: Option<String>,
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
    /// Changes host and port to those of `HOST:PORT`.
    ///
    /// # Errors
    /// The text has another form.
    pub fn set(&mut self, text: &str) -> anyhow::Result<()> {
        let parts = text.rsplit_once(':');
        let parts = parts.and_then(|(host, port)| Some((host, port.parse().ok()?)));
        let (host, port) = parts.with_context(|| format!("{text:?} is not HOST:PORT"))?;
        // An IPv6 address is in brackets.
        host.trim_start_matches('[').trim_end_matches(']').clone_into(&mut self.host);
        self.port = port;
        Ok(())
    }

    /// Connects and logs in.
    pub fn connect(&self) -> anyhow::Result<Client> {
        let Self { host, port, password } = self;
        let stream = TcpStream::connect((host.as_str(), *port)).with_context(|| {
            format!("no server answers on {host}:{port}; start one with `ordna serve`")
        })?;
        stream.set_nodelay(true)?;
        let replies = Replies { stream: stream.try_clone()?, buffer: BytesMut::new() };
        let mut client = Client { stream, replies };
        if let Some(password) = password {
            client.call(&[b"AUTH", password.as_bytes()])?;
        }
        Ok(client)
    }
}

impl Client {
    /// Sends a request and waits for its reply. An error reply becomes an `Err`.
    pub fn call(&mut self, words: &[&[u8]]) -> anyhow::Result<BytesFrame> {
        let mut request = Vec::new();
        write_request(&mut request, words);
        self.stream.write_all(&request).context("the server left")?;
        match self.replies.next()? {
            BytesFrame::Error(text) => bail!("the server says: {text}"),
            reply => Ok(reply),
        }
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
            match self.stream.read(&mut part).context("the server left")? {
                0 => bail!("the server closed the connection"),
                read => self.buffer.extend_from_slice(&part[..read]),
            }
        }
    }
}

/// Arrays of a reply within one another at most: the decoder recurses for each.
const MOST_NESTED: usize = 64;

/// Whether the reply that `bytes` begin with has more than `most` arrays within one another, as far
/// as it is there.
fn nests_beyond(mut bytes: &[u8], most: usize) -> bool {
    // Elements that each open array still has.
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

/// The bytes of a bulk reply.
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
        // Behind other elements; and neither in a string nor in the next reply.
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
