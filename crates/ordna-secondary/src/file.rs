//! The file source, which reads newline-delimited JSON with one operation in each line.
//!
//! # Format
//! ```text
//! {"op":"insert","id":"town:1","doc":{"name":"Lund","people":94393}}
//! {"op":"update","id":"town:1","doc":{"name":"Lund","people":95000}}
//! {"op":"delete","id":"town:1"}
//! ```
//! Both `insert` and `update` contain the whole document. The file is a single partition. The
//! sequence number of a change is the file offset after its line. Lines may be appended while the
//! service runs; an incomplete last line is read once it is complete. The identity of the history
//! is computed from the first line and the file's inode. If another file takes the place of the
//! file, a new history begins as soon as the source reaches the end of the old file and notices.

use std::fs::{File, Metadata};
use std::io::{BufRead, BufReader, Read as _, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use ordna::checksum::crc32;
use serde::Deserialize;

use crate::document::{Document, Mutation};
use crate::error::SourceError;
use crate::source::{ChangeSource, Documents, Feed};
use crate::version_vector::{Position, VersionVector};

/// Maximum number of bytes in a line.
const MAX_LINE: u64 = 64 << 20;
/// Interval at which the source checks whether the file has grown.
const POLL: Duration = Duration::from_millis(10);

#[derive(Deserialize, Clone, Copy, PartialEq)]
#[serde(rename_all = "lowercase")]
enum Operation {
    Insert,
    Update,
    Delete,
}

#[derive(Deserialize)]
struct Line {
    op: Operation,
    id: String,
    #[serde(default)]
    doc: Option<serde_json::Value>,
}

/// A source that reads the changes in a file, and those that are appended to it.
#[derive(Debug)]
pub struct NdjsonFile {
    path: PathBuf,
}

impl NdjsonFile {
    /// Creates a source that reads this file, which need not exist yet.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }
}

/// Parses a line with a change.
fn parse(path: &Path, line: &[u8], end: u64) -> Result<Mutation, SourceError> {
    let bad = |reason: String| failed(path, end - line.len() as u64, reason);
    let parsed: Line = serde_json::from_slice(line).map_err(|error| bad(error.to_string()))?;
    let document = match (parsed.op, parsed.doc) {
        (Operation::Delete, _) => None,
        (_, Some(json @ serde_json::Value::Object(_))) => Some(Document::from_json(&json)),
        _ => return Err(bad("an insert or update without an object \"doc\"".to_owned())),
    };
    Ok(Mutation { partition: 0, seq: end, id: parsed.id.into_bytes().into(), document })
}

/// Returns the device and inode of a file. On systems that have none, all files have the same ones.
#[cfg(unix)]
fn inode(file: &Metadata) -> (u64, u64) {
    use std::os::unix::fs::MetadataExt;
    (file.dev(), file.ino())
}

#[cfg(not(unix))]
fn inode(_: &Metadata) -> (u64, u64) {
    (0, 0)
}

fn failed(path: &Path, offset: u64, reason: impl ToString) -> SourceError {
    SourceError::Failed {
        place: format!("{}:{offset}", path.display()),
        reason: reason.to_string(),
    }
}

/// Reads the lines of a file from an offset on.
struct Lines {
    path: PathBuf,
    input: BufReader<File>,
    line: Vec<u8>,
    /// Offset of the next line.
    at: u64,
}

impl Lines {
    /// Opens the file. Returns `None` if it does not exist yet.
    fn open(path: &Path, at: u64) -> Result<Option<Self>, SourceError> {
        let mut file = match File::open(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            file => file.map_err(|error| failed(path, at, error))?,
        };
        file.seek(SeekFrom::Start(at)).map_err(|error| failed(path, at, error))?;
        let input = BufReader::with_capacity(1 << 20, file);
        Ok(Some(Self { path: path.to_owned(), input, line: Vec::new(), at }))
    }

    /// Returns whether another file has taken the place of this one.
    fn is_replaced(&self) -> bool {
        let (open, found) = (self.input.get_ref().metadata(), std::fs::metadata(&self.path));
        matches!((open, found), (Ok(open), Ok(found)) if inode(&open) != inode(&found))
    }

    /// Reads the next line, including its line ending. Returns `None` if there is no complete one
    /// yet.
    fn next(&mut self) -> Result<Option<&[u8]>, SourceError> {
        let left = MAX_LINE.saturating_sub(self.line.len() as u64);
        let read = (&mut self.input).take(left).read_until(b'\n', &mut self.line);
        read.map_err(|error| failed(&self.path, self.at, error))?;
        if self.line.last() == Some(&b'\n') {
            self.at += self.line.len() as u64;
            return Ok(Some(&self.line));
        }
        if self.line.len() as u64 == MAX_LINE {
            return Err(failed(&self.path, self.at, format!("a line above {MAX_LINE} bytes")));
        }
        Ok(None)
    }

    /// Reads the next change. Returns `None` if there is none yet. Blank lines are skipped.
    fn change(&mut self) -> Result<Option<Mutation>, SourceError> {
        loop {
            if self.next()?.is_none() {
                return Ok(None);
            }
            let blank = self.line.iter().all(u8::is_ascii_whitespace);
            let change = if blank { None } else { Some(parse(&self.path, &self.line, self.at)?) };
            self.line.clear();
            if change.is_some() {
                return Ok(change);
            }
        }
    }
}

impl ChangeSource for NdjsonFile {
    fn partitions(&self) -> u32 {
        1
    }

    fn newest(&self, _: u32) -> Result<Position, SourceError> {
        let Some(mut lines) = Lines::open(&self.path, 0)? else { return Ok(Position::default()) };
        let io = |error| failed(&self.path, 0, error);
        let (_, inode) = inode(&lines.input.get_ref().metadata().map_err(io)?);
        let identity = match lines.next()? {
            None => return Ok(Position::default()),
            Some(first) => {
                let of_file = [first, &inode.to_le_bytes()].concat();
                u64::from(crc32(&of_file)) | 1 << 32
            }
        };
        // The offset after the last complete line.
        let mut seq = lines.at;
        let mut end = std::fs::metadata(&self.path).map_err(io)?.len();
        let mut piece = vec![0; 64 << 10];
        let file = lines.input.get_mut();
        while end > seq {
            let start = end.saturating_sub(piece.len() as u64).max(seq);
            let piece = &mut piece[..(end - start) as usize];
            file.seek(SeekFrom::Start(start)).map_err(io)?;
            file.read_exact(piece).map_err(io)?;
            if let Some(at) = piece.iter().rposition(|byte| *byte == b'\n') {
                seq = start + at as u64 + 1;
            } else {
                end = start;
            }
        }
        Ok(Position { identity, seq })
    }

    fn continues(&self, partition: u32, from: Position) -> Result<bool, SourceError> {
        let newest = self.newest(partition)?;
        if newest.identity != from.identity || newest.seq < from.seq {
            return Ok(false);
        }
        // If the file was rewritten, it is unlikely to have a line ending at exactly this offset.
        let before = from.seq.saturating_sub(1);
        let mut byte = [0];
        let lines = Lines::open(&self.path, before)?;
        let read = lines.map(|mut lines| lines.input.read_exact(&mut byte));
        Ok(matches!(read, Some(Ok(()))) && byte == *b"\n")
    }

    fn documents(&self, at: &VersionVector, _: usize) -> Result<Vec<Documents>, SourceError> {
        let end = at.positions()[0].seq;
        let Some(mut lines) = Lines::open(&self.path, 0)? else { return Ok(Vec::new()) };
        let next = move || {
            if lines.at >= end { None } else { lines.change().transpose() }
        };
        Ok(vec![Box::new(std::iter::from_fn(next).take_while(move |change| {
            change.as_ref().is_ok_and(|change| change.seq <= end) || change.is_err()
        }))])
    }

    fn run(&self, feed: &Feed, from: &VersionVector) -> Result<(), SourceError> {
        let mut at = from.positions()[0].seq;
        let mut identity = from.positions()[0].identity;
        if at == 0 && !feed.has_indexes() {
            let newest = self.newest(0)?;
            (at, identity) = (newest.seq, newest.identity);
            if at > 0 {
                feed.reset(0, identity);
                feed.advance(0, at);
            }
        }
        let mut lines = None;
        while !feed.is_stopped() {
            if lines.is_none() {
                lines = Lines::open(&self.path, at)?;
            }
            let Some(open) = &mut lines else {
                thread::sleep(POLL);
                continue;
            };
            if identity == 0 {
                // The file was empty and has just received its first line.
                identity = self.newest(0)?.identity;
                if identity != 0 {
                    feed.reset(0, identity);
                }
            }
            match open.change()? {
                Some(change) => {
                    feed.push(change)?;
                }
                None if open.is_replaced() => {
                    (at, identity, lines) = (0, self.newest(0)?.identity, None);
                    feed.reset(0, identity);
                }
                None => {
                    let length = std::fs::metadata(&self.path).map_or(0, |found| found.len());
                    if length < open.at {
                        let reason = format!("the file has {length} bytes only");
                        return Err(failed(&self.path, open.at, reason));
                    }
                    thread::sleep(POLL);
                }
            }
        }
        Ok(())
    }
}
