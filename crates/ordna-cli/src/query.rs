//! `ordna get` and `ordna scan`.

use std::io::{BufWriter, Write};
use std::process::ExitCode;

use anyhow::bail;
use clap::Parser;
use ordna::tuple::{self, Prefix};
use redis_protocol::resp2::types::{BytesFrame, Resp2Frame};

use crate::client::{ServerAddress, bytes_of};
use crate::text::readable;

/// Number of entries to request at a time; keeps the buffers of client and server small.
const PAGE: u64 = 1000;

/// The error if standard output was closed or a write to it failed.
#[derive(Debug)]
pub struct OutputClosed(pub std::io::Error);

impl std::fmt::Display for OutputClosed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cannot write to standard output: {}", self.0)
    }
}

impl std::error::Error for OutputClosed {}

/// Options of `ordna get`.
#[derive(Debug, Parser)]
pub struct GetOptions {
    /// The key or, with --tuple, its fields
    #[arg(required = true, num_args = 1..)]
    key: Vec<String>,
    /// The arguments are the fields of a key that was loaded with --tuple
    #[arg(long)]
    tuple: bool,
    #[command(flatten)]
    server: ServerAddress,
}

/// Options of `ordna scan`.
#[derive(Debug, Parser)]
pub struct ScanOptions {
    /// Print only keys that begin with this text
    #[arg(default_value = "", hide_default_value = true)]
    prefix: String,
    /// Print only keys that are at least this one
    #[arg(long, conflicts_with = "prefix")]
    from: Option<String>,
    /// Print only keys that are at most this one
    #[arg(long, conflicts_with = "prefix")]
    to: Option<String>,
    /// Maximum number of entries
    #[arg(long)]
    limit: Option<u64>,
    /// Print in descending order
    #[arg(long)]
    rev: bool,
    /// Print keys without values
    #[arg(long)]
    keys: bool,
    /// Print the fields of keys that were loaded with --tuple
    #[arg(long)]
    tuple: bool,
    #[command(flatten)]
    server: ServerAddress,
}

/// Prints the value of a key. The exit code is 1 if the key does not exist.
pub fn get(options: &GetOptions) -> anyhow::Result<ExitCode> {
    let key = match options.key.as_slice() {
        fields if options.tuple => tuple::encode(fields),
        [key] => key.as_bytes().to_vec(),
        _ => bail!("several keys; name one key, or use --tuple if these are the fields of a key"),
    };
    let mut client = options.server.connect()?;
    let reply = client.request(&[b"GET", &key])?;
    if let BytesFrame::Error(text) = reply {
        if text.starts_with("WRONGTYPE") {
            let what = client.describe(&[&key])?.concat();
            bail!("{} is a {what}; `ordna shell` reads it", readable(&key, false));
        }
        bail!("the server says: {text}");
    }
    if matches!(reply, BytesFrame::Null) {
        eprintln!("ordna: no such key: {}", readable(&key, false));
        return Ok(ExitCode::FAILURE);
    }
    let mut out = std::io::stdout().lock();
    out.write_all(&bytes_of(reply)?).and_then(|()| out.write_all(b"\n")).map_err(OutputClosed)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the entries, a page at a time.
pub fn scan(options: &ScanOptions) -> anyhow::Result<ExitCode> {
    scan_to(options, &mut BufWriter::new(std::io::stdout().lock()))?;
    Ok(ExitCode::SUCCESS)
}

fn scan_to(options: &ScanOptions, out: &mut impl Write) -> anyhow::Result<()> {
    let mut client = options.server.connect()?;
    let bound = |key: &[u8], mark: u8| [&[mark], key].concat();
    let begins = |text: &str| {
        let mut key = Vec::new();
        if options.tuple && !text.is_empty() {
            key.push(tuple::code::TUPLE);
            Prefix::<String>::encode_prefix(text, &mut key);
        } else {
            key.extend_from_slice(text.as_bytes());
        }
        key
    };
    let prefix = begins(&options.prefix);
    let mut lower = match &options.from {
        Some(from) => bound(&begins(from), b'['),
        None => bound(&prefix, b'['),
    };
    let mut upper = match &options.to {
        Some(to) if options.tuple => bound(&tuple::encode(&[to]), b'['),
        Some(to) => bound(to.as_bytes(), b'['),
        None => ordna::key::prefix_end(&prefix).map_or(b"+".to_vec(), |end| bound(&end, b'(')),
    };
    let mut left = options.limit.unwrap_or(u64::MAX);
    let mut most = PAGE;
    while left > 0 {
        let page = left.min(most);
        let limit = page.to_string();
        let mut words: Vec<&[u8]> =
            vec![b"ORDNA.RANGE", &lower, &upper, b"LIMIT", limit.as_bytes()];
        if options.rev {
            words.push(b"REV");
        }
        if options.keys {
            words.push(b"KEYS");
        }
        let reply = match client.call(&words) {
            // The values are large, so fewer entries are requested at a time.
            Err(error) if page > 1 && error.to_string().contains("reply would exceed") => {
                most = page / 2;
                continue;
            }
            reply => reply?,
        };
        let BytesFrame::Array(items) = reply else {
            bail!("unexpected reply to ORDNA.RANGE");
        };
        let is_collection = |pair: &&[BytesFrame]| matches!(pair, [_, BytesFrame::Null]);
        let collections = items.chunks(2).filter(|pair| !options.keys && is_collection(pair));
        let collections = collections.filter_map(|pair| pair[0].as_bytes());
        let collections = client.describe(&collections.collect::<Vec<_>>())?;
        let mut collections = collections.into_iter();
        let mut items = items.into_iter();
        let mut seen = 0;
        let mut last = None;
        while let Some(key) = items.next() {
            let key = bytes_of(key)?;
            out.write_all(readable(&key, options.tuple).as_bytes()).map_err(OutputClosed)?;
            if let Some(value) = (!options.keys).then(|| items.next()).flatten() {
                out.write_all(b"\t").map_err(OutputClosed)?;
                let value = match value {
                    BytesFrame::Null => {
                        format!("({})", collections.next().unwrap_or_default()).into_bytes()
                    }
                    value => bytes_of(value)?.to_vec(),
                };
                out.write_all(&value).map_err(OutputClosed)?;
            }
            out.write_all(b"\n").map_err(OutputClosed)?;
            last = Some(key);
            seen += 1;
        }
        let Some(last) = last.filter(|_| seen == page) else { break };
        left -= seen;
        if options.rev {
            upper = bound(&last, b'(');
        } else {
            lower = bound(&last, b'(');
        }
    }
    out.flush().map_err(OutputClosed)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_is_too_large_for_one_reply_is_fetched_in_parts() {
        let config = ordna_server::Config {
            bind: vec![std::net::SocketAddr::from(([127, 0, 0, 1], 0))],
            max_reply: 10_000,
            ..ordna_server::Config::default()
        };
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let server = runtime.block_on(ordna_server::Server::bind(config)).unwrap();
        let port = server.address().port().to_string();
        runtime.spawn(server.run(std::future::pending()));
        let scan = ScanOptions::parse_from(["scan", "--port", &port]);
        let mut client = scan.server.connect().unwrap();
        let mut expected = String::new();
        for at in 0..50 {
            let (key, value) = (format!("k{at:02}"), "v".repeat(1000));
            client.call(&[b"SET", key.as_bytes(), value.as_bytes()]).unwrap();
            expected += &format!("{key}\t{value}\n");
        }
        let mut out = Vec::new();
        scan_to(&scan, &mut out).unwrap();
        assert!(out == expected.as_bytes(), "{} bytes of {}", out.len(), expected.len());
    }
}
