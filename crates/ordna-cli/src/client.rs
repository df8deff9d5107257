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
