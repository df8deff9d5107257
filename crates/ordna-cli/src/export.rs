//! `ordna export`: writes the entries of a server or a directory, as of one moment, to a file.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::ops::{Bound, ControlFlow};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, bail};
use clap::Parser;
use indicatif::{HumanBytes, ProgressBar, ProgressStyle};
use ordna::{Direction, Snapshot, Store, key};
use redis_protocol::resp2::types::BytesFrame;

use crate::client::{Client, ServerAddress, bytes_of};
use crate::directory;
use crate::query::OutputClosed;

pub mod entry;
mod resume;

use entry::{Entry, Format, Writer};

/// Maximum number of entries to read at a time, and of their bytes.
const PAGE: usize = 1000;
const PAGE_BYTES: usize = 1 << 20;

/// Options of `ordna export`.
#[derive(Debug, Parser)]
#[command(after_help = FIELDS)]
pub struct ExportOptions {
    /// Directory of the store to read; without it, the entries of a server are read
    dir: Option<PathBuf>,
    /// Export only keys that begin with this text
    #[arg(long, default_value = "", hide_default_value = true)]
    prefix: String,
    /// Export only keys that are at least this one
    #[arg(long, conflicts_with = "prefix")]
    from: Option<String>,
    /// Export only keys that are at most this one
    #[arg(long, conflicts_with = "prefix")]
    to: Option<String>,
    /// Format of the export [default: by the extension of the file; jsonl for standard output]
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// File to create; without it, the entries are printed
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Continue the file of an export that was interrupted
    ///
    /// The added entries are those of the moment of this call, unless both calls read the same
    /// --snapshot.
    #[arg(long, requires = "output")]
    resume: bool,
    /// Replace the file if it exists
    #[arg(long, requires = "output", conflicts_with = "resume")]
    force: bool,
    /// Number of the server's snapshot to read, which ORDNA.SNAPSHOT CREATE KEEP has returned
    #[arg(long, value_name = "ID", conflicts_with = "dir")]
    snapshot: Option<u64>,
    /// Export strings only: leave out lists, hashes, sets and sorted sets
    #[arg(long)]
    strings: bool,
    #[command(flatten)]
    server: ServerAddress,
}

const FIELDS: &str = "\
Fields of an entry (columns of csv and tsv):
  key, value         text
  key_base64, value_base64
                     bytes that are not UTF-8; in tsv also those with tabs or line breaks
  dump_base64        a list, hash, set or sorted set of a server, as DUMP returns it
  expires_at         milliseconds since 1970, if the entry expires

`ordna load --entries FILE` restores the entries. Strings and deadlines are those of one moment,
the start of the export. Each list, hash, set or sorted set is read at a later moment of its own.";

type Range = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// An entry that was read from the source of the export.
#[derive(Debug)]
struct Found {
    key: Vec<u8>,
    value: Vec<u8>,
    is_dump: bool,
    expires_at: Option<u64>,
}

/// A source of entries, which are read page by page.
trait Pages {
    /// Appends the next entries to `page`, and moves the lower bound of the range past them.
    /// Appends nothing at the end.
    fn next_page(&mut self, range: &mut Range, page: &mut Vec<Found>) -> anyhow::Result<End>;
}

/// Whether there may be more entries after a page.
#[derive(Debug, PartialEq, Eq)]
enum End {
    More,
    Last,
}

/// Exports the entries and prints their number.
pub fn run(options: &ExportOptions) -> anyhow::Result<ExitCode> {
    let named = options.output.as_deref().and_then(Format::of);
    let format = match (options.format.or(named), &options.output) {
        (Some(format), _) => format,
        (None, None) => Format::Jsonl,
        (None, Some(path)) => {
            bail!("the name of {} does not imply a format; add --format", path.display())
        }
    };
    let mut range = match (&options.from, &options.to) {
        (None, None) => prefix_range(options.prefix.as_bytes()),
        (from, to) => {
            let end = |key: &Option<String>| {
                key.as_ref().map_or(Bound::Unbounded, |key| Bound::Included(key.clone().into()))
            };
            (end(from), end(to))
        }
    };
    let (mut source, total): (Box<dyn Pages>, _) = match &options.dir {
        Some(dir) => {
            let store = directory::open(dir, false)?;
            let snapshot = store.snapshot();
            let (lower, upper) = (range.0.as_ref(), range.1.as_ref());
            let total = snapshot.count(lower.map(Vec::as_slice), upper.map(Vec::as_slice));
            // The snapshot keeps all entries that it shows in memory.
            (Box::new(StorePages(snapshot)), total as u64)
        }
        None => {
            let mut client = options.server.connect()?;
            let total = match client.call(&[b"DBSIZE"])? {
                BytesFrame::Integer(keys)
                    if matches!(range, (Bound::Unbounded, Bound::Unbounded)) =>
                {
                    keys.max(0).cast_unsigned()
                }
                _ => 0,
            };
            (Box::new(ServerPages::new(client, options.snapshot, options.strings)?), total)
        }
    };
    let (out, is_new): (Box<dyn Write>, _) = match &options.output {
        None => (Box::new(std::io::stdout().lock()), true),
        Some(path) if options.resume => {
            let (file, last) = resume::open(path, format)?;
            let is_new = last.is_none();
            if let Some(last) = last {
                range.0 = Bound::Excluded(last);
            }
            (Box::new(file), is_new)
        }
        Some(path) => (Box::new(create(path, options.force)?), true),
    };
    let bar = ProgressBar::new(total).with_style(ProgressStyle::with_template(if total > 0 {
        "{bar:30} {percent}% {pos} of {len} entries, {per_sec} eta {eta}"
    } else {
        "{spinner} {pos} entries, {per_sec}"
    })?);
    let mut writer = Writer::new(BufWriter::with_capacity(256 << 10, out), format, is_new)?;
    let started = Instant::now();
    let copied = copy(&mut *source, range, &mut writer, &bar);
    bar.finish_and_clear();
    let seconds = started.elapsed().as_secs_f64();
    let Copied { entries, skipped } = copied.with_context(|| match &options.output {
        Some(path) => format!("{} is not complete; --resume continues it", path.display()),
        None => "the export is not complete".to_owned(),
    })?;
    eprintln!(
        "{entries} entries, {} in {seconds:.1} s ({:.0}/s)",
        HumanBytes(writer.bytes()),
        entries as f64 / seconds.max(0.001)
    );
    if skipped > 0 {
        eprintln!("{skipped} lists, hashes, sets or sorted sets were left out");
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes the entries of a store whose keys begin with `prefix` to a new file.
pub fn store_to_file(store: &Store<[u8], [u8]>, prefix: &[u8], path: &Path) -> anyhow::Result<u64> {
    let format = Format::of(path)
        .with_context(|| format!("{} does not end with .jsonl, .csv or .tsv", path.display()))?;
    let out = BufWriter::new(create(path, false)?);
    let mut writer = Writer::new(out, format, true)?;
    let mut source = StorePages(store.snapshot());
    let copied = copy(&mut source, prefix_range(prefix), &mut writer, &ProgressBar::hidden())?;
    Ok(copied.entries)
}

fn prefix_range(prefix: &[u8]) -> Range {
    if prefix.is_empty() {
        return (Bound::Unbounded, Bound::Unbounded);
    }
    let end = key::prefix_end(prefix).map_or(Bound::Unbounded, Bound::Excluded);
    (Bound::Included(prefix.to_vec()), end)
}

fn create(path: &Path, replace: bool) -> anyhow::Result<File> {
    let file = if replace { File::create(path) } else { File::create_new(path) };
    file.map_err(|error| {
        let shown = path.display();
        if error.kind() == std::io::ErrorKind::AlreadyExists {
            anyhow::anyhow!("{shown} already exists; --force replaces it, --resume continues it")
        } else {
            anyhow::Error::new(error).context(format!("cannot write {shown}"))
        }
    })
}

/// Number of entries that were written, and of collections that were left out.
#[derive(Debug, Default)]
struct Copied {
    entries: u64,
    skipped: u64,
}

fn copy(
    source: &mut dyn Pages,
    mut range: Range,
    writer: &mut Writer<impl Write>,
    bar: &ProgressBar,
) -> anyhow::Result<Copied> {
    let mut page = Vec::new();
    let mut copied = Copied::default();
    loop {
        page.clear();
        let end = source.next_page(&mut range, &mut page)?;
        for Found { key, value, is_dump, expires_at } in &page {
            // The collection is left out, or it has been deleted.
            if *is_dump && value.is_empty() {
                copied.skipped += 1;
                continue;
            }
            let entry = Entry { key, value, is_dump: *is_dump, expires_at: *expires_at };
            writer.write(&entry).map_err(OutputClosed)?;
            copied.entries += 1;
        }
        bar.inc(page.len() as u64);
        if end == End::Last {
            writer.flush().map_err(OutputClosed)?;
            return Ok(copied);
        }
    }
}

/// The entries of a store in this process.
struct StorePages(Snapshot<[u8], [u8]>);

impl Pages for StorePages {
    fn next_page(&mut self, range: &mut Range, page: &mut Vec<Found>) -> anyhow::Result<End> {
        let (lower, upper) = (range.0.as_ref(), range.1.as_ref());
        let (lower, upper) = (lower.map(Vec::as_slice), upper.map(Vec::as_slice));
        let (mut bytes, mut end) = (0, End::Last);
        self.0.visit_entries(lower, upper, Direction::Ascending, |key, put| {
            if page.len() == PAGE || bytes > PAGE_BYTES {
                end = End::More;
                return ControlFlow::Break(());
            }
            bytes += key.len() + put.value.len();
            let (key, value) = (key.to_vec(), put.value.to_vec());
            page.push(Found { key, value, is_dump: false, expires_at: put.expires_at });
            ControlFlow::Continue(())
        });
        if let Some(last) = page.last() {
            range.0 = Bound::Excluded(last.key.clone());
        }
        Ok(end)
    }
}

/// The entries of a server, read through a snapshot on the server.
struct ServerPages {
    client: Client,
    snapshot: String,
    strings_only: bool,
    /// Maximum number of entries to request at a time; it is halved when a reply would be too
    /// large.
    most: usize,
}

impl ServerPages {
    /// Uses the snapshot with this number, or takes one that ends with the connection.
    fn new(mut client: Client, snapshot: Option<u64>, strings_only: bool) -> anyhow::Result<Self> {
        let snapshot = match snapshot {
            Some(id) => id.to_string(),
            None => match client.call(&[b"ORDNA.SNAPSHOT", b"CREATE"])? {
                BytesFrame::Integer(id) => id.to_string(),
                other => bail!("unexpected reply to ORDNA.SNAPSHOT CREATE: {other:?}"),
            },
        };
        Ok(Self { client, snapshot, strings_only, most: PAGE })
    }

    /// Returns the present value of a collection, as a payload of `DUMP`, and its deadline.
    fn dump(&mut self, key: &[u8]) -> anyhow::Result<(Vec<u8>, Option<u64>)> {
        let payload = match self.client.call(&[b"DUMP", key]) {
            Ok(BytesFrame::Null) => return Ok((Vec::new(), None)),
            payload => bytes_of(payload.with_context(|| {
                format!(
                    "cannot export {:?} (--strings leaves it out)",
                    String::from_utf8_lossy(key)
                )
            })?)?,
        };
        let deadline = match self.client.call(&[b"PEXPIRETIME", key])? {
            BytesFrame::Integer(-2) => return Ok((Vec::new(), None)),
            BytesFrame::Integer(deadline) => u64::try_from(deadline).ok(),
            other => bail!("unexpected reply to PEXPIRETIME: {other:?}"),
        };
        Ok((payload.to_vec(), deadline))
    }
}

fn bound(mark_unbounded: &[u8], bound: &Bound<Vec<u8>>) -> Vec<u8> {
    match bound {
        Bound::Unbounded => mark_unbounded.to_vec(),
        Bound::Included(key) => [b"[", key.as_slice()].concat(),
        Bound::Excluded(key) => [b"(", key.as_slice()].concat(),
    }
}

impl Pages for ServerPages {
    fn next_page(&mut self, range: &mut Range, page: &mut Vec<Found>) -> anyhow::Result<End> {
        let id = self.snapshot.clone();
        let (lower, upper) = (bound(b"-", &range.0), bound(b"+", &range.1));
        let items = loop {
            let most = self.most.to_string();
            let words: [&[u8]; 7] = [
                b"ORDNA.SNAPSHOT",
                b"RANGE",
                id.as_bytes(),
                &lower,
                &upper,
                b"LIMIT",
                most.as_bytes(),
            ];
            match self.client.call(&words) {
                Err(error) if self.most > 1 && error.to_string().contains("reply would exceed") => {
                    self.most /= 2;
                }
                Ok(BytesFrame::Array(items)) => break items,
                Ok(other) => bail!("unexpected reply to ORDNA.SNAPSHOT RANGE: {other:?}"),
                Err(error) => return Err(error),
            }
        };
        let mut items = items.into_iter();
        while let (Some(key), Some(value)) = (items.next(), items.next()) {
            let key = bytes_of(key)?.to_vec();
            let is_dump = matches!(value, BytesFrame::Null);
            let value = if is_dump { Vec::new() } else { bytes_of(value)?.to_vec() };
            page.push(Found { key, value, is_dump, expires_at: None });
        }
        let Some(last) = page.last() else { return Ok(End::Last) };
        range.0 = Bound::Excluded(last.key.clone());
        let mut words: Vec<&[u8]> = vec![b"ORDNA.SNAPSHOT", b"PEXPIRETIME", id.as_bytes()];
        words.extend(page.iter().map(|found| found.key.as_slice()));
        let BytesFrame::Array(deadlines) = self.client.call(&words)? else {
            bail!("unexpected reply to ORDNA.SNAPSHOT PEXPIRETIME");
        };
        for (found, deadline) in page.iter_mut().zip(deadlines) {
            if let BytesFrame::Integer(deadline) = deadline {
                found.expires_at = u64::try_from(deadline).ok();
            }
            if found.is_dump && !self.strings_only {
                (found.value, found.expires_at) = self.dump(&found.key)?;
            }
        }
        Ok(if page.len() < self.most { End::Last } else { End::More })
    }
}
