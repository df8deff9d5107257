//! A client of a node.

use std::io::{BufRead, BufReader, Error, ErrorKind, Read, Result, Write};
use std::net::TcpStream;
use std::time::Duration;

/// A RESP2 reply.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    Text(Vec<u8>),
    Number(i64),
    Error(String),
    Null,
    Array(Vec<Reply>),
}

impl Reply {
    pub fn text(&self) -> String {
        match self {
            Self::Text(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            other => panic!("no text: {other:?}"),
        }
    }

    pub fn items(&self) -> &[Reply] {
        match self {
            Self::Array(items) => items,
            other => panic!("no array: {other:?}"),
        }
    }
}

pub struct Client(BufReader<TcpStream>);

impl Client {
    pub fn connect(port: u16, timeout: Duration) -> Result<Self> {
        let stream = TcpStream::connect_timeout(&([127, 0, 0, 1], port).into(), timeout)?;
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        stream.set_nodelay(true)?;
        Ok(Self(BufReader::new(stream)))
    }

    pub fn ask(&mut self, words: &[&str]) -> Result<Reply> {
        let mut request = format!("*{}\r\n", words.len());
        for word in words {
            request.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        self.0.get_mut().write_all(request.as_bytes())?;
        self.read()
    }

    fn read(&mut self) -> Result<Reply> {
        let mut line = String::new();
        self.0.read_line(&mut line)?;
        let bad = || Error::new(ErrorKind::InvalidData, format!("no reply: {line:?}"));
        let (kind, rest) = line.trim_end().split_at_checked(1).ok_or_else(bad)?;
        let number = || rest.parse::<i64>().map_err(|_| bad());
        Ok(match kind {
            "+" => Reply::Text(rest.as_bytes().to_vec()),
            "-" => Reply::Error(rest.to_owned()),
            ":" => Reply::Number(number()?),
            "$" | "*" if number()? < 0 => Reply::Null,
            "$" => {
                let mut bytes = vec![0; number()? as usize + 2];
                self.0.read_exact(&mut bytes)?;
                bytes.truncate(bytes.len() - 2);
                Reply::Text(bytes)
            }
            "*" => {
                let count = number()?;
                Reply::Array((0..count).map(|_| self.read()).collect::<Result<_>>()?)
            }
            _ => return Err(bad()),
        })
    }
}
