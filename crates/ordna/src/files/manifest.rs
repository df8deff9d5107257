//! The manifest of a backup: it lists the backup's files and their contents, and is written last.
//!
//! # Format
//! The line `ORDNA-MANIFEST 2 <crc32c>`, followed by one JSON object, [`Manifest`]. The checksum,
//! eight lower-case hex digits, covers the line's first 17 bytes and the JSON text.

use std::io::Read;
use std::path::Path;

use serde_json::{Map, Value, json};

use ordna_base::checksum;
use ordna_base::sync::{fault, notice};

use crate::files::blocks::VERSION;
use crate::files::error::BackupError;
use crate::files::storage::{Storage, write_all};
use ordna_base::encoding::Encoding;

/// Name of the manifest in a backup's directory.
pub const FILE: &str = "MANIFEST";
const TITLE: &str = "ORDNA-MANIFEST ";

/// Prefix of a shard's name, before its number.
pub const SHARD: &str = "shard-";
/// Prefix of a delta's name, before its number.
pub const DELTA: &str = "delta-";

/// Number of the delta file with the states of several ranges.
pub const COMMON_DELTA: usize = 0;

/// Returns the number of the delta file of a range, whose shard has the range's number.
pub const fn delta_of(range: usize) -> usize {
    range + 1
}

/// Returns the number in the name of a shard or delta: four digits, or more for larger numbers.
pub fn number_in(name: &str, prefix: &str) -> Option<u64> {
    let digits = name.strip_prefix(prefix)?;
    let number = digits.parse().ok()?;
    (format!("{number:04}") == digits).then_some(number)
}

/// Returns whether a backup may have a file of this name.
pub fn is_name_in_backup(name: &str) -> bool {
    name == FILE || [SHARD, DELTA].iter().any(|prefix| number_in(name, prefix).is_some())
}

/// A file of the backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileEntry {
    /// Name within the backup's directory.
    pub file: String,
    /// Number of records.
    pub entries: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// Checksum of all payloads.
    pub crc32c: u32,
    /// Encoded lower bound of the shard's keys, in hex; `None` for the first shard and for deltas.
    pub from: Option<String>,
}

/// The contents of a backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// Format version of all files of the backup.
    pub version: u32,
    /// Version of the program that wrote the backup.
    pub program: String,
    /// When the backup's snapshot was taken, in milliseconds since 1970.
    pub taken_ms: u64,
    /// Type of the keys.
    pub keys: String,
    /// Type of the values.
    pub values: String,
    /// Records in all shards. With deltas, the snapshot may have fewer or more.
    pub entries: u64,
    /// The store's memory limit in bytes, if it had one.
    pub memory_limit: Option<u64>,
    /// The first segment of the log that the backup does not contain; `None` without a log.
    pub log_segment: Option<u64>,
    /// Position of the log at which the snapshot was taken.
    pub log_position: u64,
    /// The caller's metadata, in hex.
    pub metadata: String,
    /// Sorted runs of entries, in order of their keys.
    pub shards: Vec<FileEntry>,
    /// States that the shards may have missed.
    pub deltas: Vec<FileEntry>,
}

impl Manifest {
    /// Writes the manifest into a backup's directory and makes it durable.
    pub fn write(&self, storage: &dyn Storage, dir: &Path) -> Result<u64, BackupError> {
        let path = dir.join(FILE);
        let json = format!("{:#}", self.to_json());
        let text = format!("{}\n{json}", first_line(VERSION, &json));
        let file = storage.create(&path).map_err(BackupError::io(&path, "create"))?;
        write_all(&*file, text.as_bytes()).map_err(BackupError::io(&path, "write"))?;
        if !fault!("faults.manifest.sync") {
            file.sync().map_err(BackupError::io(&path, "sync"))?;
        }
        Ok(text.len() as u64)
    }

    /// Reads and checks the manifest of a backup's directory.
    pub fn read(storage: &dyn Storage, dir: &Path) -> Result<Self, BackupError> {
        let path = dir.join(FILE);
        let (mut input, _) = storage.open(&path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => {
                BackupError::Missing { path: path.clone(), needed_by: dir.to_owned() }
            }
            _ => BackupError::io(&path, "open")(error),
        })?;
        let mut bytes = Vec::new();
        input.read_to_end(&mut bytes).map_err(BackupError::io(&path, "read"))?;
        let damaged = |offset: u64, what: &str| BackupError::damaged(&path, offset, what);
        let text = str::from_utf8(&bytes)
            .map_err(|error| damaged(error.valid_up_to() as u64, "no text"))?;
        let (first, json) =
            text.split_once('\n').ok_or_else(|| damaged(0, "the first line is cut short"))?;
        let version = first
            .strip_prefix(TITLE)
            .and_then(|rest| rest.split(' ').next()?.parse::<u32>().ok())
            .ok_or_else(|| damaged(0, "the first line is not that of a manifest"))?;
        if notice!("damage.manifest.crc", first != first_line(version, json)) {
            return Err(damaged(0, "the checksum differs"));
        }
        if notice!("damage.manifest.version", version > VERSION) {
            return Err(BackupError::NewerFormat { path, found: version, known: VERSION });
        }
        let parsed: Value = serde_json::from_str(json).map_err(|error| {
            let line = json.split_inclusive('\n').take(error.line().saturating_sub(1));
            let before: usize = line.map(str::len).sum();
            let offset = first.len() + 1 + before + error.column();
            damaged(offset as u64, &error.to_string())
        })?;
        let begin = (first.len() + 1) as u64;
        let manifest = Self::from_json(parsed).map_err(|what| damaged(begin, &what))?;
        // The checksum is not a signature, so a name must not lead out of the directory.
        for (files, prefix) in [(&manifest.shards, SHARD), (&manifest.deltas, DELTA)] {
            let is_wrong = |entry: &&FileEntry| number_in(&entry.file, prefix).is_none();
            if let Some(entry) = files.iter().find(is_wrong)
                && !fault!("damage.manifest.names")
            {
                let what = format!("{:?} is not the name of a file `{prefix}0000`", entry.file);
                return Err(damaged(0, &what));
            }
        }
        Ok(manifest)
    }

    fn to_json(&self) -> Value {
        let files = |files: &[FileEntry]| files.iter().map(FileEntry::to_json).collect::<Vec<_>>();
        json!({
            "version": self.version,
            "program": self.program,
            "taken_ms": self.taken_ms,
            "keys": self.keys,
            "values": self.values,
            "entries": self.entries,
            "memory_limit": self.memory_limit,
            "log_segment": self.log_segment,
            "log_position": self.log_position,
            "metadata": self.metadata,
            "shards": files(&self.shards),
            "deltas": files(&self.deltas),
        })
    }

    /// Decodes the JSON object. The error names the wrong field.
    fn from_json(json: Value) -> Result<Self, String> {
        let mut fields = Fields::new(json)?;
        let manifest = Self {
            version: fields.number("version")?,
            program: fields.text("program")?,
            taken_ms: fields.number("taken_ms")?,
            keys: fields.text("keys")?,
            values: fields.text("values")?,
            entries: fields.number("entries")?,
            memory_limit: fields.optional("memory_limit", Fields::number)?,
            log_segment: fields.optional("log_segment", Fields::number)?,
            log_position: fields.number("log_position")?,
            metadata: fields.text("metadata")?,
            shards: fields.files("shards")?,
            deltas: fields.files("deltas")?,
        };
        fields.finish().map(|()| manifest)
    }

    /// Returns an error if the backup has other types of keys or values.
    pub fn check_kinds<K: Encoding + ?Sized, V: Encoding + ?Sized>(
        &self,
        dir: &Path,
    ) -> Result<(), BackupError> {
        if self.keys == K::KIND_NAME && self.values == V::KIND_NAME {
            return Ok(());
        }
        Err(BackupError::OtherKind {
            path: dir.join(FILE),
            found: format!("{} by {}", self.values, self.keys),
            expected: format!("{} by {}", V::KIND_NAME, K::KIND_NAME),
        })
    }

    /// Returns the caller's metadata.
    pub fn metadata(&self, dir: &Path) -> Result<Vec<u8>, BackupError> {
        from_hex(&self.metadata)
            .ok_or_else(|| BackupError::damaged(&dir.join(FILE), 0, "the metadata is not hex"))
    }
}

impl FileEntry {
    fn to_json(&self) -> Value {
        json!({
            "file": self.file,
            "entries": self.entries,
            "bytes": self.bytes,
            "crc32c": self.crc32c,
            "from": self.from,
        })
    }

    fn from_json(json: Value) -> Result<Self, String> {
        let mut fields = Fields::new(json)?;
        let entry = Self {
            file: fields.text("file")?,
            entries: fields.number("entries")?,
            bytes: fields.number("bytes")?,
            crc32c: fields.number("crc32c")?,
            from: fields.optional("from", Fields::text)?,
        };
        fields.finish().map(|()| entry)
    }

    /// Returns the lower bound of a shard's keys.
    pub fn lower_bound<K: Encoding + ?Sized>(
        &self,
        dir: &Path,
    ) -> Result<Option<K::Owned>, BackupError> {
        let Some(hex) = &self.from else { return Ok(None) };
        let damaged =
            || BackupError::damaged(&dir.join(FILE), 0, format!("{hex:?} is not an encoded key"));
        let bytes = from_hex(hex).ok_or_else(damaged)?;
        let span = K::range_at(&bytes, &mut 0).ok_or_else(damaged)?;
        let view = K::decode(&bytes, span);
        let key: &K = std::borrow::Borrow::borrow(&view);
        Ok(Some(key.to_owned()))
    }
}

/// The fields of a JSON object that have not been read yet.
struct Fields(Map<String, Value>);

impl Fields {
    fn new(json: Value) -> Result<Self, String> {
        match json {
            Value::Object(fields) => Ok(Self(fields)),
            other => Err(format!("{other} is not an object")),
        }
    }

    fn take(&mut self, name: &str) -> Result<Value, String> {
        self.0.remove(name).ok_or_else(|| format!("the field `{name}` is absent"))
    }

    /// Reads an integer in the range of its type.
    fn number<T: TryFrom<u64>>(&mut self, name: &str) -> Result<T, String> {
        let value = self.take(name)?;
        let number = value.as_u64().and_then(|number| T::try_from(number).ok());
        number.ok_or_else(|| format!("the field `{name}` is {value}, which is not a valid number"))
    }

    fn text(&mut self, name: &str) -> Result<String, String> {
        match self.take(name)? {
            Value::String(text) => Ok(text),
            other => Err(format!("the field `{name}` is {other}, which is not a string")),
        }
    }

    /// Reads a field that may be absent or null.
    fn optional<T>(
        &mut self,
        name: &str,
        read: impl FnOnce(&mut Self, &str) -> Result<T, String>,
    ) -> Result<Option<T>, String> {
        match self.0.get(name) {
            None => Ok(None),
            Some(Value::Null) => self.take(name).map(|_| None),
            Some(_) => read(self, name).map(Some),
        }
    }

    fn files(&mut self, name: &str) -> Result<Vec<FileEntry>, String> {
        match self.take(name)? {
            Value::Array(files) => files.into_iter().map(FileEntry::from_json).collect(),
            other => Err(format!("the field `{name}` is {other}, which is not an array")),
        }
    }

    /// Returns an error if there are fields that were not read.
    fn finish(self) -> Result<(), String> {
        match self.0.keys().next() {
            None => Ok(()),
            Some(name) => Err(format!("the field `{name}` is unknown")),
        }
    }
}

/// Returns the first line of a manifest: the version, and the checksum of title, version and JSON.
fn first_line(version: u32, json: &str) -> String {
    let title = format!("{TITLE}{version} ");
    let crc = checksum::crc32c_append(checksum::crc32c(title.as_bytes()), json.as_bytes());
    format!("{title}{crc:08x}")
}

/// Returns lower-case hex digits.
pub fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(hex: &str) -> Option<Vec<u8>> {
    let digits = hex.as_bytes();
    let digit = |at: usize| (*digits.get(at)? as char).to_digit(16);
    (0..digits.len()).step_by(2).map(|at| Some((digit(at)? * 16 + digit(at + 1)?) as u8)).collect()
}

/// Returns the encoded form of a key, in hex.
pub fn key_to_hex<K: Encoding + ?Sized>(key: &K) -> String {
    let mut bytes = Vec::new();
    key.encode_to(&mut bytes);
    to_hex(&bytes)
}
