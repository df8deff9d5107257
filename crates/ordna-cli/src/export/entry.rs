//! Entries as text: one line of JSON, or one record of a table.

use std::borrow::Cow;
use std::io::{self, Write};
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// Format of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// One JSON object per line
    Jsonl,
    /// Comma-separated, with a header line
    Csv,
    /// Tab-separated, with a header line, no quotes
    Tsv,
}

impl Format {
    /// Returns the format that the extension of a file's name indicates.
    pub fn of(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "jsonl" | "ndjson" => Some(Self::Jsonl),
            "csv" => Some(Self::Csv),
            "tsv" => Some(Self::Tsv),
            _ => None,
        }
    }
}

/// Columns of a table.
pub const COLUMNS: [&str; 6] =
    ["key", "value", "key_base64", "value_base64", "dump_base64", "expires_at"];

/// An entry of a store or a server.
#[derive(Debug, Clone, Copy)]
pub struct Entry<'a> {
    pub key: &'a [u8],
    pub value: &'a [u8],
    /// Whether the value is what `DUMP` returns.
    pub is_dump: bool,
    /// Milliseconds since 1970.
    pub expires_at: Option<u64>,
}

/// The fields of an entry in its text form. Either the text or the base64 form of key and value is
/// present.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EntryFields<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key_base64: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value_base64: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dump_base64: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<Deadline<'a>>,
}

/// A number in JSON, text in a table.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum Deadline<'a> {
    Number(u64),
    Text(Cow<'a, str>),
}

/// An entry that was read from text.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct OwnedEntry {
    pub key: Vec<u8>,
    pub value: Vec<u8>,
    pub is_dump: bool,
    pub expires_at: Option<u64>,
}

impl EntryFields<'_> {
    /// Parses a line of JSON.
    ///
    /// # Errors
    /// The reason as text, if the line is not a valid entry.
    pub fn parse(json: &[u8]) -> Result<OwnedEntry, String> {
        let fields: EntryFields<'_> = serde_json::from_slice(json)
            .map_err(|error| format!("not an entry of `ordna export`: {error}"))?;
        fields.entry()
    }

    fn entry(&self) -> Result<OwnedEntry, String> {
        // A table has all columns; absent fields are empty.
        let bytes = |text: &Option<Cow<'_, str>>, name: &str| match text.as_deref() {
            None | Some("") => Ok(None),
            Some(text) => STANDARD
                .decode(text)
                .map(Some)
                .map_err(|error| format!("field `{name}` is not base64: {error}")),
        };
        let text =
            |text: &Option<Cow<'_, str>>| text.as_deref().map(|text| text.as_bytes().to_vec());
        let key = bytes(&self.key_base64, "key_base64")?.or_else(|| text(&self.key));
        let key = key.ok_or("no field `key` or `key_base64`")?;
        let dump = bytes(&self.dump_base64, "dump_base64")?;
        let is_dump = dump.is_some();
        let value = match dump {
            Some(dump) => Some(dump),
            None => bytes(&self.value_base64, "value_base64")?.or_else(|| text(&self.value)),
        };
        let value = value.ok_or("no field `value`, `value_base64` or `dump_base64`")?;
        let expires_at = match &self.expires_at {
            None => None,
            Some(Deadline::Number(number)) => Some(*number),
            Some(Deadline::Text(text)) if text.is_empty() => None,
            Some(Deadline::Text(text)) => {
                let number = text.parse();
                Some(number.map_err(|_| format!("field `expires_at`: `{text}` is not a number"))?)
            }
        };
        Ok(OwnedEntry { key, value, is_dump, expires_at })
    }
}

/// Returns the bytes as text if possible, and otherwise as base64.
fn text_or_base64(bytes: &[u8], is_tsv: bool) -> (Option<Cow<'_, str>>, Option<Cow<'_, str>>) {
    match str::from_utf8(bytes) {
        Ok(text) if !(is_tsv && text.contains(['\t', '\n', '\r'])) => (Some(text.into()), None),
        _ => (None, Some(STANDARD.encode(bytes).into())),
    }
}

/// A writer of entries.
pub struct Writer<W> {
    out: W,
    format: Format,
    line: Vec<u8>,
    bytes: u64,
}

impl<W: Write> Writer<W> {
    /// Creates a writer of a format. If `is_new`, a table begins with its header.
    pub fn new(out: W, format: Format, is_new: bool) -> io::Result<Self> {
        let mut writer = Self { out, format, line: Vec::new(), bytes: 0 };
        if is_new && format != Format::Jsonl {
            writer.record(&COLUMNS)?;
        }
        Ok(writer)
    }

    /// Returns the number of bytes written so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Writes an entry.
    pub fn write(&mut self, entry: &Entry<'_>) -> io::Result<()> {
        let is_tsv = self.format == Format::Tsv;
        let (key, key_base64) = text_or_base64(entry.key, is_tsv);
        let (value, value_base64, dump_base64) = if entry.is_dump {
            (None, None, Some(STANDARD.encode(entry.value).into()))
        } else {
            let (value, value_base64) = text_or_base64(entry.value, is_tsv);
            (value, value_base64, None)
        };
        if self.format == Format::Jsonl {
            let expires_at = entry.expires_at.map(Deadline::Number);
            let fields =
                EntryFields { key, key_base64, value, value_base64, dump_base64, expires_at };
            self.line.clear();
            serde_json::to_writer(&mut self.line, &fields)?;
            self.line.push(b'\n');
            return self.end_line();
        }
        let expires_at = entry.expires_at.map(|deadline| deadline.to_string().into());
        let fields = [key, value, key_base64, value_base64, dump_base64, expires_at];
        self.record(&fields.each_ref().map(|field| field.as_deref().unwrap_or_default()))
    }

    fn record(&mut self, fields: &[&str; 6]) -> io::Result<()> {
        self.line.clear();
        for (at, field) in fields.iter().enumerate() {
            let is_csv = self.format == Format::Csv;
            if at > 0 {
                self.line.push(if is_csv { b',' } else { b'\t' });
            }
            if is_csv && field.contains(['"', ',', '\n', '\r']) {
                self.line.push(b'"');
                self.line.extend(field.replace('"', "\"\"").bytes());
                self.line.push(b'"');
            } else {
                self.line.extend(field.bytes());
            }
        }
        self.line.push(b'\n');
        self.end_line()
    }

    fn end_line(&mut self) -> io::Result<()> {
        self.bytes += self.line.len() as u64;
        self.out.write_all(&self.line)
    }

    /// Passes all buffered text to the file.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_become_the_entry_again() {
        let parse = |text: &str| EntryFields::parse(text.as_bytes());
        let entry = parse(r#"{"key":"a","value":"","expires_at":5}"#).unwrap();
        let expected = OwnedEntry { key: b"a".into(), expires_at: Some(5), ..Default::default() };
        assert_eq!(entry, expected);
        let row = r#"{"key":"","value":"","key_base64":"/w==","value_base64":"","dump_base64":"AA==","expires_at":""}"#;
        let entry = parse(row).unwrap();
        assert!(entry.key == [0xFF] && entry.value == [0] && entry.is_dump, "{entry:?}");
        for (text, reason) in [
            ("1", "not an entry"),
            (r#"{"value":"a"}"#, "no field `key`"),
            (r#"{"key":"a"}"#, "no field `value`"),
            (r#"{"key":"a","value":"b","vlaue":1}"#, "unknown field `vlaue`"),
            (r#"{"key":"a","value_base64":"?"}"#, "`value_base64` is not base64"),
            (r#"{"key":"a","value":"b","expires_at":"soon"}"#, "`soon` is not a number"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
