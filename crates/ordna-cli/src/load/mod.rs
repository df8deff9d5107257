//! `ordna load`: writes the records of a file to a running server, with pipelined requests.
//!
//! One thread parses the file and sends requests, another one reads the replies. For each request
//! the first thread sends its line number to the second one through a bounded channel. The channel
//! limits the number of requests in flight, and tells the second thread which line a refused
//! request came from.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Instant;

use anyhow::{Context, bail};
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use redis_protocol::resp2::types::BytesFrame;
use serde_json::value::RawValue;

use crate::client::{Client, Replies, ServerAddress, lost, write_request};
use crate::export::entry::{COLUMNS, EntryFields};

mod records;

use records::{Fields, Format, KeySpec, Record};

/// Approximate number of bytes that are sent in one write.
const WRITE: usize = 64 << 10;
/// Maximum number of requests in flight.
const IN_FLIGHT: usize = 16_384;
/// Number of bad lines that are printed. Further ones are only counted.
const SHOWN: u64 = 100;

/// Options of `ordna load`.
#[derive(Debug, Parser)]
pub struct LoadOptions {
    /// File to load, or - for standard input; may be compressed with gzip
    file: PathBuf,
    /// Format of the file [default: by its extension]
    ///
    /// csv and tsv require a header line; the value is the record as JSON. ndjson has one object per
    /// line; the value is the line. In lines, key and value are the line; empty lines are skipped.
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// Fields of the key, in order; FIELD/WIDTH pads a number with zeros, so that keys sort by it
    #[arg(long, value_delimiter = ',', value_name = "FIELD[/WIDTH]")]
    key: Vec<KeySpec>,
    /// Separator between the fields of the key
    #[arg(long, default_value = ":", conflicts_with = "tuple")]
    separator: String,
    /// Encode the key so that keys sort field by field, whatever bytes the fields contain
    #[arg(long)]
    tuple: bool,
    /// Store each record as a hash with its fields (HSET), instead of JSON text
    ///
    /// Fields that are null are left out; arrays and objects are stored as JSON text. A hash that
    /// already exists keeps its other fields.
    #[arg(long)]
    hash: bool,
    /// Add each record to a sorted set (ZADD), with the number in this field as the score
    ///
    /// --member names the fields of the member, and --key the fields of the sorted set's key. Without
    /// --key, all records go to one sorted set, whose key is --prefix.
    #[arg(long, value_name = "FIELD", requires = "member", conflicts_with = "hash")]
    zset: Option<String>,
    /// Fields of the member of a sorted set, in the form of --key
    #[arg(long, value_delimiter = ',', value_name = "FIELD[/WIDTH]", requires = "zset")]
    member: Vec<KeySpec>,
    /// Load entries that `ordna export` wrote, with their deadlines
    #[arg(long, conflicts_with_all = ["key", "tuple", "hash", "zset", "separator"])]
    entries: bool,
    /// Text that is put before each key
    #[arg(long, default_value = "", hide_default_value = true)]
    prefix: String,
    /// Stop at the first invalid line
    #[arg(long)]
    strict: bool,
    #[command(flatten)]
    server: ServerAddress,
}

/// Counts bad lines and prints the first ones.
#[derive(Debug)]
struct Rejects {
    count: u64,
    bar: ProgressBar,
}

impl Rejects {
    fn add(&mut self, line: u64, reason: &str) {
        self.count += 1;
        if self.count <= SHOWN {
            // The reason may quote the file. Control characters are escaped, as they could control
            // the terminal.
            let shown: String = reason.chars().flat_map(shown).collect();
            self.bar.suspend(|| eprintln!("line {line}: {shown}"));
        } else if self.count == SHOWN + 1 {
            self.bar.suspend(|| eprintln!("more bad lines follow; they are counted"));
        }
    }
}

/// Returns the characters to print for `character`: control characters are escaped.
fn shown(character: char) -> impl Iterator<Item = char> {
    let is_control = character.is_control();
    let number = is_control.then(|| character.escape_default());
    number.into_iter().flatten().chain((!is_control).then_some(character))
}

/// Loads the file. The exit code is 1 if a line was bad.
pub fn run(options: &LoadOptions) -> anyhow::Result<ExitCode> {
    let path = options.file.display();
    let is_input = options.file.as_os_str() == "-";
    let (file, size): (Box<dyn Read>, _) = if is_input {
        (Box::new(std::io::stdin().lock()), 0)
    } else {
        let file = File::open(&options.file).with_context(|| format!("cannot open {path}"))?;
        let size = file.metadata()?.len();
        (Box::new(file), size)
    };
    let format = match options.format {
        Some(format) => format,
        None if is_input => bail!("standard input has no name: give --format"),
        None => Format::of(&options.file)
            .with_context(|| format!("the name of {path} does not imply a format; add --format"))?,
    };
    let given = [
        ("--hash", options.hash),
        ("--zset", options.zset.is_some()),
        ("--entries", options.entries),
    ];
    for (option, is_given) in given {
        if is_given && format == Format::Lines {
            bail!("{option} has no meaning for --format lines: a line has no fields");
        }
    }
    let needs_key = format != Format::Lines && options.zset.is_none() && !options.entries;
    if options.key.is_empty() && needs_key {
        bail!("--key FIELD[,FIELD…] is needed");
    }
    if options.zset.is_some() && options.key.is_empty() && options.prefix.is_empty() {
        bail!("--zset needs --key FIELD[,FIELD…], or --prefix KEY for one sorted set");
    }
    let score = options.zset.as_ref().map(|field| KeySpec::of_field(field));
    let columns = options.entries.then_some(COLUMNS).into_iter().flatten().map(KeySpec::of_field);
    let others = options.member.iter().cloned().chain(score).chain(columns);
    let others: Vec<KeySpec> = others.collect();
    let mut client = options.server.connect()?;
    let before = keys(&mut client)?;
    let bar = ProgressBar::new(size).with_style(ProgressStyle::with_template(if size > 0 {
        "{bar:30} {percent}% {bytes}/{total_bytes} {msg} eta {eta}"
    } else {
        "{spinner} {bytes} {msg}"
    })?);
    let started = Instant::now();
    let (mut stream, replies) = client.split();
    let (sent, awaited) = sync_channel(IN_FLIGHT);
    let bad_replies = std::thread::spawn(move || take_replies(replies, &awaited));

    let mut rejects = Rejects { count: 0, bar: bar.clone() };
    let mut out = Vec::with_capacity(2 * WRITE);
    let mut records = 0_u64;
    let mut pending = Vec::new();
    let separator = (!options.tuple).then_some(options.separator.as_bytes());
    let spec = Fields { key: &options.key, others: &others, separator };
    let read = records::read(bar.wrap_read(file), format, &spec, |line, item| {
        let item = item.and_then(|record| {
            let of_hash = options.hash.then(|| fields(&record.value)).transpose();
            let of_hash = of_hash.map_err(|error| format!("{error:#}"))?;
            if options.entries {
                let entry = EntryFields::parse(&record.value)?;
                let record = Record { key: entry.key, value: entry.value };
                return Ok((record, None, None, Some((entry.is_dump, entry.expires_at))));
            }
            let Some(score) = &options.zset else { return Ok((record, of_hash, None, None)) };
            let scored = scored(&record.value, score, &options.member, separator)?;
            Ok((record, None, Some(scored), None))
        });
        match item {
            Ok((Record { key, value }, of_hash, scored, entry)) => {
                let key = [options.prefix.as_bytes(), &key].concat();
                if let Some((is_dump, expires_at)) = entry {
                    write_entry(&mut out, &key, &value, is_dump, expires_at);
                } else if let Some((score, member)) = scored {
                    write_request(&mut out, &[b"ZADD", &key, score.as_bytes(), &member]);
                } else if let Some(fields) = of_hash {
                    let parts = fields.iter().flat_map(|(name, value)| [name, value]);
                    let parts = parts.map(String::as_bytes);
                    let request: Vec<&[u8]> =
                        [&b"HSET"[..], &key].into_iter().chain(parts).collect();
                    write_request(&mut out, &request);
                } else {
                    write_request(&mut out, &[b"SET", &key, &value]);
                }
                pending.push(line);
                records += 1;
            }
            Err(reason) if options.strict => bail!("line {line}: {reason} (stopped by --strict)"),
            Err(reason) => rejects.add(line, &reason),
        }
        if out.len() >= WRITE {
            send(&mut stream, &sent, &mut out, &mut pending)?;
            let rate = records as f64 / started.elapsed().as_secs_f64().max(0.001);
            bar.set_message(format!("{records} records, {rate:.0}/s"));
        }
        Ok(())
    });
    // The records that were read before a stop are sent, so that the number printed below is right.
    let flushed = send(&mut stream, &sent, &mut out, &mut pending);
    drop(sent);
    let Ok(refused) = bad_replies.join() else { bail!("the thread that takes replies broke") };
    bar.finish_and_clear();
    let Refused { lines, stored, known, lost } = refused;
    for (line, reason) in &lines {
        rejects.add(*line, reason);
    }
    let seconds = started.elapsed().as_secs_f64();
    let mut after = None;
    if lost.is_none() {
        after = options.server.connect().and_then(|mut client| keys(&mut client)).ok();
    }
    eprintln!(
        "{stored} records stored in {seconds:.1} s ({:.0}/s), {} bad lines",
        stored as f64 / seconds.max(0.001),
        rejects.count
    );
    if options.zset.is_some() && known > 0 {
        eprintln!("{known} records changed the score of an existing member");
    }
    if let Some(after) = after {
        let new = after - before;
        eprintln!("the server now has {after} keys, {new} more than before");
        // Not for a sorted set, as all records have the same key.
        if options.zset.is_none() && new >= 0 && (new as u64) < stored {
            let replaced = stored - new as u64;
            eprintln!("so {replaced} records replaced one with the same key (or others wrote too)");
        }
    }
    read.with_context(|| format!("cannot load {path}"))?;
    flushed?;
    if let Some(error) = lost {
        return Err(error);
    }
    if options.strict && !lines.is_empty() {
        bail!("the server refused {} records", lines.len());
    }
    Ok(if rejects.count == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Appends the request that writes an entry of an export.
fn write_entry(out: &mut Vec<u8>, key: &[u8], value: &[u8], is_dump: bool, deadline: Option<u64>) {
    let time = deadline.unwrap_or(0).to_string();
    let time = time.as_bytes();
    match (is_dump, deadline) {
        (true, _) => write_request(out, &[b"RESTORE", key, time, value, b"REPLACE", b"ABSTTL"]),
        (false, Some(_)) => write_request(out, &[b"SET", key, value, b"PXAT", time]),
        (false, None) => write_request(out, &[b"SET", key, value]),
    }
}

/// Returns the fields of a record for a hash. Values that are not texts stay in JSON form.
fn fields(value: &[u8]) -> anyhow::Result<Vec<(String, String)>> {
    let object: BTreeMap<String, &RawValue> =
        serde_json::from_slice(value).context("a record is not a JSON object")?;
    let present = object.into_iter().filter(|(_, value)| value.get() != "null");
    let text = |(name, value): (String, &RawValue)| match value.get() {
        text if text.starts_with('"') => Ok((name, serde_json::from_str(text)?)),
        other => Ok((name, other.to_owned())),
    };
    present.map(text).collect()
}

/// Returns score and member of a record for a sorted set.
///
/// # Errors
/// A field is absent, or the score is not a number.
fn scored(
    value: &[u8],
    score: &str,
    member: &[KeySpec],
    separator: Option<&[u8]>,
) -> Result<(String, Vec<u8>), String> {
    let fields: BTreeMap<String, String> =
        fields(value).map_err(|error| format!("{error:#}"))?.into_iter().collect();
    let content_of =
        |field: &str| fields.get(field).cloned().ok_or_else(|| format!("no field `{field}`"));
    let text = content_of(score)?;
    let is_number = text.parse::<f64>().is_ok_and(|number| !number.is_nan());
    if !is_number {
        return Err(format!("field `{score}`: `{text}` is not a number"));
    }
    let member = records::join(content_of, member, separator)?;
    Ok((text, member))
}

fn keys(client: &mut Client) -> anyhow::Result<i64> {
    match client.call(&[b"DBSIZE"])? {
        BytesFrame::Integer(keys) => Ok(keys),
        other => bail!("unexpected reply to DBSIZE: {other:?}"),
    }
}

fn send(
    stream: &mut std::net::TcpStream,
    sent: &SyncSender<u64>,
    out: &mut Vec<u8>,
    pending: &mut Vec<u64>,
) -> anyhow::Result<()> {
    stream.write_all(out).with_context(lost)?;
    out.clear();
    for line in pending.drain(..) {
        sent.send(line).with_context(lost)?;
    }
    Ok(())
}

/// What the replies said.
#[derive(Debug)]
struct Refused {
    lines: Vec<(u64, String)>,
    stored: u64,
    /// Number of requests after which the server replied that it had added nothing.
    known: u64,
    lost: Option<anyhow::Error>,
}

fn take_replies(mut replies: Replies, awaited: &Receiver<u64>) -> Refused {
    let mut refused = Refused { lines: Vec::new(), stored: 0, known: 0, lost: None };
    for line in awaited {
        match replies.next() {
            Ok(BytesFrame::Error(text)) => {
                refused.lines.push((line, format!("the server says: {text}")));
            }
            Ok(reply) => {
                refused.stored += 1;
                refused.known += u64::from(matches!(reply, BytesFrame::Integer(0)));
            }
            Err(error) => {
                let context = format!("the connection broke at line {line}");
                refused.lost = Some(error.context(context));
                break;
            }
        }
    }
    refused
}

#[cfg(test)]
mod tests {
    use super::{fields, scored};

    #[test]
    fn a_record_has_a_score_and_a_member() {
        let spec = ["name".parse().unwrap(), "id/4".parse().unwrap()];
        let read = |text: &str| scored(text.as_bytes(), "n", &spec, Some(b":"));
        let found = read(r#"{"name":"a","id":7,"n":-1.50}"#).unwrap();
        assert_eq!(found, ("-1.50".to_owned(), b"a:0007".to_vec()));
        let found = read(r#"{"name":"a","id":"7","n":"inf","x":[1]}"#).unwrap();
        assert_eq!(found, ("inf".to_owned(), b"a:0007".to_vec()));
        for (text, reason) in [
            (r#"{"name":"a","id":7,"n":"many"}"#, "field `n`: `many` is not a number"),
            (r#"{"name":"a","id":7,"n":"nan"}"#, "is not a number"),
            (r#"{"name":"a","id":7,"n":""}"#, "`` is not a number"),
            (r#"{"name":"a","id":7,"n":null}"#, "no field `n`"),
            (r#"{"name":"a","id":7}"#, "no field `n`"),
            (r#"{"id":7,"n":1}"#, "no field `name`"),
            (r#"{"name":"a:b","id":7,"n":1}"#, "holds the separator"),
            (r#"{"name":"a","id":"x","n":1}"#, "is not a number without sign"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
        let tuple = scored(br#"{"name":"a:b","id":7,"n":1}"#, "n", &spec, None).unwrap();
        assert_eq!(tuple.1, ordna::tuple::encode(&["a:b", "0007"]));
    }

    #[test]
    fn a_record_becomes_fields() {
        let text = br#"{"name":"G\u00f6teborg","n":1.50,"none":null,"list":[1, 2],"yes":true}"#;
        let fields = fields(text).unwrap();
        let fields: Vec<_> = fields.iter().map(|(name, value)| (&name[..], &value[..])).collect();
        let expected =
            [("list", "[1, 2]"), ("n", "1.50"), ("name", "G\u{f6}teborg"), ("yes", "true")];
        assert_eq!(fields, expected);
        assert!(super::fields(b"[]").is_err());
    }
}
