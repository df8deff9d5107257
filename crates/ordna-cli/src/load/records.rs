//! Reads the records of a file of any supported format.

use std::collections::{BTreeMap, HashSet};
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context, bail};
use clap::ValueEnum;
use flate2::bufread::MultiGzDecoder;
use ordna::{key, tuple, value};
use serde_json::error::Category;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// Format of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// One JSON object per line
    Ndjson,
    /// Comma-separated, with a header line and RFC 4180 quotes
    Csv,
    /// Tab-separated, with a header line, no quotes
    Tsv,
    /// Any lines
    Lines,
}

impl Format {
    /// Returns the format that the file's name implies.
    pub fn of(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_str()?.to_ascii_lowercase();
        let name = name.strip_suffix(".gz").unwrap_or(&name);
        match name.rsplit_once('.')?.1 {
            "ndjson" | "jsonl" => Some(Self::Ndjson),
            "csv" => Some(Self::Csv),
            "tsv" => Some(Self::Tsv),
            "txt" => Some(Self::Lines),
            _ => None,
        }
    }
}

/// A field of the key: its name and, for a number, the width to which it is padded with zeroes so
/// that numbers sort.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeySpec {
    field: String,
    width: Option<usize>,
}

impl FromStr for KeySpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (field, width) = match text.rsplit_once('/') {
            None => (text, None),
            Some((field, width)) => match width.parse() {
                Ok(width @ 1..=40) => (field, Some(width)),
                _ => return Err(format!("`{width}` is not a width between 1 and 40")),
            },
        };
        if field.is_empty() {
            return Err("a field of the key has no name".into());
        }
        Ok(Self { field: field.into(), width })
    }
}

impl KeySpec {
    /// Returns a spec that uses the field unchanged.
    pub fn of_field(field: &str) -> Self {
        Self { field: field.to_owned(), width: None }
    }
}

/// The fields of a record from which its key is made, and others that the load needs.
#[derive(Debug, Clone, Copy)]
pub struct Fields<'a> {
    pub key: &'a [KeySpec],
    /// Fields that the header of a CSV or TSV file must have in addition to those of the key.
    pub others: &'a [KeySpec],
    /// Separator between the fields of the key. `None` means that the key is encoded as a tuple.
    pub separator: Option<&'a [u8]>,
}

/// Key and value that are made from one record of the file.
#[derive(Debug, PartialEq, Eq)]
pub struct Record {
    pub key: Vec<u8>,
    pub value: Vec<u8>,
}

/// A record, or the reason why its line is bad.
pub type Item = Result<Record, String>;

/// Calls `each` with the line number and the record of every line, until `each` returns an error.
pub fn read(
    file: impl Read,
    format: Format,
    fields: &Fields<'_>,
    each: impl FnMut(u64, Item) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    if format == Format::Lines && !fields.key.is_empty() {
        bail!("--key has no meaning for --format lines");
    }
    let mut file = BufReader::with_capacity(256 << 10, file);
    if file.fill_buf()?.starts_with(&[0x1F, 0x8B]) {
        parse(BufReader::new(MultiGzDecoder::new(file)), format, fields, each)
    } else {
        parse(file, format, fields, each)
    }
}

fn parse(
    input: impl BufRead,
    format: Format,
    &Fields { key: spec, others, separator }: &Fields<'_>,
    mut each: impl FnMut(u64, Item) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    match format {
        Format::Lines => by_line(input, |line, text| {
            each(line, check(Record { key: text.to_vec(), value: text.to_vec() }))
        }),
        Format::Ndjson => by_line(input, |line, text| {
            let is_blank = text.iter().all(u8::is_ascii_whitespace);
            if is_blank { Ok(()) } else { each(line, from_json(text, spec, separator)) }
        }),
        Format::Csv | Format::Tsv => {
            let tabs = format == Format::Tsv;
            let mut reader = csv::ReaderBuilder::new()
                .delimiter(if tabs { b'\t' } else { b',' })
                .quoting(!tabs)
                .from_reader(Watched { input, last: 0, ended: false, since: 0 });
            let header = reader.headers().context("the header line is not readable")?.clone();
            for KeySpec { field, .. } in spec.iter().chain(others) {
                if !header.iter().any(|name| name == field) {
                    let fields: Vec<_> = header.iter().collect();
                    bail!("there is no field `{field}`; there are: {}", fields.join(", "));
                }
            }
            let mut names = HashSet::new();
            if let Some(twice) = header.iter().find(|name| !names.insert(*name)) {
                bail!("two columns are named `{twice}`: the record would keep only one of them");
            }
            let mut record = csv::StringRecord::new();
            loop {
                let line = reader.position().line();
                reader.get_mut().since = 0;
                match reader.read_record(&mut record) {
                    Ok(false) => return Ok(()),
                    Ok(true) => {
                        let line = record.position().map_or(line, csv::Position::line);
                        if reader.get_ref().ended_in_quotes(&record) {
                            let what =
                                "a quote is not closed: all lines behind it are in one field";
                            each(line, Err(what.into()))?;
                            continue;
                        }
                        let fields =
                            header.iter().zip(&record).map(|(name, v)| (name.into(), v.into()));
                        let object: Map<String, Value> = fields.collect();
                        each(line, from_row(&object, spec, separator))?;
                    }
                    Err(error) if error.is_io_error() => return Err(error.into()),
                    Err(error) => {
                        let line = error.position().map_or(line, csv::Position::line);
                        each(line, Err(reason(&error)))?;
                    }
                }
            }
        }
    }
}

/// Maximum number of bytes of a CSV or TSV record. A quote that is not closed makes all following
/// lines part of one record, which this limit detects.
const MOST_RECORD: usize = if cfg!(test) { 1 << 20 } else { 64 << 20 };

/// A reader that remembers how the input ended, and fails if a record is too long.
struct Watched<R> {
    input: R,
    /// The last byte that was not part of a line ending.
    last: u8,
    ended: bool,
    /// Bytes read since the record began.
    since: usize,
}

impl<R: Read> Read for Watched<R> {
    fn read(&mut self, part: &mut [u8]) -> std::io::Result<usize> {
        if self.since > MOST_RECORD {
            let text =
                format!("a record is longer than {MOST_RECORD} bytes: is a quote not closed?");
            return Err(std::io::Error::new(ErrorKind::InvalidData, text));
        }
        let read = self.input.read(part)?;
        self.since += read;
        let last = part[..read].iter().rev().find(|byte| !matches!(byte, b'\r' | b'\n'));
        self.last = *last.unwrap_or(&self.last);
        self.ended |= read == 0;
        Ok(read)
    }
}

impl<R> Watched<R> {
    /// Returns whether the input ended inside the quotes of the last record. The csv crate treats
    /// such quotes as closed. A field that contains a line break must have been quoted.
    fn ended_in_quotes(&self, record: &csv::StringRecord) -> bool {
        let is_long = record.iter().next_back().is_some_and(|field| field.contains(['\r', '\n']));
        self.ended && is_long && self.last != b'"'
    }
}

fn reason(error: &csv::Error) -> String {
    match error.kind() {
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            format!("{len} fields, but the header has {expected_len}")
        }
        csv::ErrorKind::Utf8 { .. } => "not UTF-8".into(),
        other => format!("{other:?}"),
    }
}

/// Calls `each` with every line, without its line ending. Empty lines are skipped.
fn by_line(
    mut input: impl BufRead,
    mut each: impl FnMut(u64, &[u8]) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut text = Vec::new();
    for line in 1.. {
        text.clear();
        // A longer line could not be stored as a value anyway. The limit prevents a file without
        // line breaks from being read into memory as a whole.
        let limit = value::MAX_LEN as u64 + 2;
        if (&mut input).take(limit).read_until(b'\n', &mut text)? == 0 {
            break;
        }
        if text.len() as u64 == limit && !text.ends_with(b"\n") {
            bail!("line {line} is longer than {} bytes", value::MAX_LEN);
        }
        let trimmed = text.strip_suffix(b"\n").unwrap_or(&text);
        let trimmed = trimmed.strip_suffix(b"\r").unwrap_or(trimmed);
        if !trimmed.is_empty() {
            each(line, trimmed)?;
        }
    }
    Ok(())
}

fn from_json(text: &[u8], spec: &[KeySpec], separator: Option<&[u8]>) -> Item {
    // Raw values keep numbers as they are written. Parsed as `f64`, two long numbers could become
    // the same key.
    let object: BTreeMap<String, &RawValue> =
        serde_json::from_slice(text).map_err(|error| match error.classify() {
            Category::Data => "not a JSON object".to_owned(),
            _ => format!("not JSON: {error}"),
        })?;
    let content_of = |field: &str| {
        let raw = object.get(field).map_or("null", |raw| raw.get());
        match raw.as_bytes().first() {
            Some(b'n') => Err(format!("no field `{field}`")),
            Some(b'[' | b'{') => Err(format!("field `{field}` is neither text nor a number")),
            Some(b'"') => serde_json::from_str(raw).map_err(|error| format!("not JSON: {error}")),
            _ => Ok(raw.to_owned()),
        }
    };
    make(content_of, text.to_vec(), spec, separator)
}

fn from_row(object: &Map<String, Value>, spec: &[KeySpec], separator: Option<&[u8]>) -> Item {
    let value = serde_json::to_vec(object).map_err(|error| error.to_string())?;
    let content_of = |field: &str| {
        let content = object.get(field).and_then(Value::as_str);
        content.map(str::to_owned).ok_or_else(|| format!("no field `{field}`"))
    };
    make(content_of, value, spec, separator)
}

/// Makes a record whose key consists of `content_of` each field.
fn make(
    content_of: impl Fn(&str) -> Result<String, String>,
    value: Vec<u8>,
    spec: &[KeySpec],
    separator: Option<&[u8]>,
) -> Item {
    check(Record { key: join(content_of, spec, separator)?, value })
}

/// Joins `content_of` each field with a separator or, without a separator, encodes them as a tuple.
///
/// # Errors
/// A field is absent, is not a number of the stated width, or holds the separator.
pub fn join(
    content_of: impl Fn(&str) -> Result<String, String>,
    spec: &[KeySpec],
    separator: Option<&[u8]>,
) -> Result<Vec<u8>, String> {
    let mut fields = Vec::with_capacity(spec.len());
    for (at, KeySpec { field, width }) in spec.iter().enumerate() {
        let content = content_of(field)?;
        let content = match width {
            None => content,
            Some(width) => {
                let is_number = !content.is_empty() && content.bytes().all(|b| b.is_ascii_digit());
                if !is_number || content.len() > *width {
                    let what = "is not a number without sign and fraction of at most";
                    return Err(format!("field `{field}`: `{content}` {what} {width} digits"));
                }
                format!("{content:0>width$}")
            }
        };
        // Only the last field may contain the separator; otherwise two different records could have
        // the same key.
        if let Some(separator) = separator.filter(|separator| !separator.is_empty())
            && at + 1 < spec.len()
            && content.as_bytes().windows(separator.len()).any(|part| part == separator)
        {
            let hint = "holds the separator; use another --separator, or --tuple";
            return Err(format!("field `{field}`: `{content}` {hint}"));
        }
        fields.push(content);
    }
    Ok(match separator {
        Some(separator) => fields.iter().map(String::as_bytes).collect::<Vec<_>>().join(separator),
        None => tuple::encode(&fields),
    })
}

/// Returns an error if the server would refuse the record.
fn check(record: Record) -> Item {
    if record.key.len() > key::MAX_LEN {
        let len = record.key.len();
        return Err(format!("the key has {len} bytes; at most {} are allowed", key::MAX_LEN));
    }
    Ok(record)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items(format: Format, key: &str, separator: Option<&str>, text: &[u8]) -> Vec<(u64, Item)> {
        let spec: Vec<KeySpec> =
            key.split(',').filter(|f| !f.is_empty()).map(|f| f.parse().unwrap()).collect();
        let mut items = Vec::new();
        let separator = separator.map(str::as_bytes);
        read(text, format, &Fields { key: &spec, others: &[], separator }, |line, item| {
            items.push((line, item));
            Ok(())
        })
        .unwrap();
        items
    }

    fn record(key: &str, value: &str) -> Item {
        Ok(Record { key: key.into(), value: value.into() })
    }

    fn is_bad(item: &(u64, Item), line: u64, part: &str) {
        let reason = item.1.as_ref().unwrap_err();
        assert!(item.0 == line && reason.contains(part), "{item:?}");
    }

    #[test]
    fn csv_with_bad_lines_keeps_the_numbers() {
        let text =
            b"id,name,pop\n1,\"a, b\",7\n2,x\n3,\"two\nlines\",x\n4,c,12\n5,\xff,1\n6,d:e,1\n";
        let got = items(Format::Csv, "name,pop/4", Some(":"), text);
        let value = r#"{"id":"1","name":"a, b","pop":"7"}"#;
        assert_eq!(got[0], (2, record("a, b:0007", value)));
        is_bad(&got[1], 3, "2 fields");
        is_bad(&got[2], 4, "is not a number");
        assert_eq!(got[3].0, 6);
        assert_eq!(got[3].1.as_ref().unwrap().key, b"c:0012");
        is_bad(&got[4], 7, "UTF-8");
        is_bad(&got[5], 8, "separator");
        assert_eq!(got.len(), 6);
    }

    #[test]
    fn a_quote_that_is_not_closed_takes_no_memory_without_end() {
        let text = b"id,name\n1,\"".chain(std::io::repeat(b'x').take(1 << 30));
        let fields = Fields { key: &["id".parse().unwrap()], others: &[], separator: None };
        let error = read(text, Format::Csv, &fields, |_, _| Ok(())).unwrap_err();
        assert!(format!("{error:#}").contains("is a quote not closed?"), "{error:#}");
    }

    #[test]
    fn tsv_knows_no_quotes() {
        let got = items(Format::Tsv, "a", Some(":"), b"a\tb\n\"x\t1\n");
        assert_eq!(got, [(2, record("\"x", r#"{"a":"\"x","b":"1"}"#))]);
    }

    #[test]
    fn ndjson_keeps_the_line() {
        let text = b"{\"k\": 1}\r\n\n[]\n{\"k\": null}\n{\n{\"k\":[1]}\n{ \"k\" : \"z\" }";
        let got = items(Format::Ndjson, "k", Some(":"), text);
        assert_eq!(got[0], (1, record("1", "{\"k\": 1}")));
        is_bad(&got[1], 3, "object");
        is_bad(&got[2], 4, "no field");
        is_bad(&got[3], 5, "not JSON");
        is_bad(&got[4], 6, "neither");
        assert_eq!(got[5], (7, record("z", "{ \"k\" : \"z\" }")));
    }

    /// Parsed as floating-point numbers, the first two keys would be equal.
    #[test]
    fn a_number_of_a_key_stays_as_it_is_written() {
        let text = b"{\"k\":12345678901234567890123}\n{\"k\":12345678901234567890124}\n\
            {\"k\":1.10}\n{\"k\":1e400}\n{\"k\":true}\n{\"k\":\"\\u0041\"}";
        let got = items(Format::Ndjson, "k", Some(":"), text);
        let keys: Vec<_> = got.iter().map(|(_, item)| item.as_ref().unwrap().key.clone()).collect();
        let expected =
            ["12345678901234567890123", "12345678901234567890124", "1.10", "1e400", "true", "A"];
        assert_eq!(keys, expected.map(|key| key.as_bytes().to_vec()));
    }

    #[test]
    fn an_open_quote_does_not_swallow_the_rest() {
        let got = items(Format::Csv, "k", Some(":"), b"k,v\n1,a\n2,\"open\n3,b\n4,c\n");
        assert_eq!(got[0], (2, record("1", r#"{"k":"1","v":"a"}"#)));
        is_bad(&got[1], 3, "not closed");
        assert_eq!(got.len(), 2);
        for end in ["", "\n", "\r\n"] {
            let closed = format!("k,v\n1,\"a\nb\"{end}");
            let got = items(Format::Csv, "k", Some(":"), closed.as_bytes());
            assert_eq!(got, [(2, record("1", r#"{"k":"1","v":"a\nb"}"#))]);
        }
    }

    #[test]
    fn two_columns_of_one_name_are_refused() {
        let spec = ["a".parse().unwrap()];
        let fields = Fields { key: &spec, others: &[], separator: None };
        let error = read(&b"a,b,b\n1,2,3\n"[..], Format::Csv, &fields, |_, _| Ok(()));
        assert!(error.unwrap_err().to_string().contains("two columns are named `b`"));
    }

    #[test]
    fn lines_and_tuples() {
        let got = items(Format::Lines, "", Some(":"), b"b\n \n\na\n");
        assert_eq!(got, [(1, record("b", "b")), (2, record(" ", " ")), (4, record("a", "a"))]);
        let got = items(Format::Csv, "a,b", None, b"a,b\nx:y,\n");
        assert_eq!(got[0].1.as_ref().unwrap().key, tuple::encode(&["x:y", ""]));
    }

    #[test]
    fn wrong_keys_are_told() {
        let (key, other) = (["a".parse().unwrap()], ["nosuch".parse().unwrap()]);
        for (key, others) in [(&other, &key), (&key, &other)] {
            let fields = Fields { key, others, separator: None };
            let error = read(&b"a,b\n"[..], Format::Csv, &fields, |_, _| Ok(())).unwrap_err();
            assert_eq!(error.to_string(), "there is no field `nosuch`; there are: a, b");
        }
        let fields = Fields { key: &key, others: &[], separator: None };
        assert!(read(&b"a,b\n"[..], Format::Lines, &fields, |_, _| Ok(())).is_err());
        assert!("a/0".parse::<KeySpec>().is_err() && "/3".parse::<KeySpec>().is_err());
    }
}
