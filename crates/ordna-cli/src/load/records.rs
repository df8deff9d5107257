//! Records of a file, whatever its format.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context, bail};
use clap::ValueEnum;
use flate2::bufread::MultiGzDecoder;
use ordna::{key, value};
use serde_json::{Map, Value};

/// Format of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// One JSON object a line
    Ndjson,
    /// Comma-separated, with a header line and RFC 4180 quotes
    Csv,
    /// Tab-separated, with a header line, no quotes
    Tsv,
    /// Any lines
    Lines,
}

impl Format {
    /// The format that the file's name tells.
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

/// One field of the key: its name and, for a number that is to sort, its digits.
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
                _ => return Err(format!("`{width}` is no width between 1 and 40")),
            },
        };
        if field.is_empty() {
            return Err("a field of the key has no name".into());
        }
        Ok(Self { field: field.into(), width })
    }
}

/// What becomes an entry.
#[derive(Debug, PartialEq, Eq)]
pub struct Record {
    pub key: Vec<u8>,
    pub value: Vec<u8>,
}

/// A record, or what is wrong with its line.
pub type Item = Result<Record, String>;

/// Calls `each` with the number and the record of every line, until it fails.
pub fn read(
    file: impl Read,
    format: Format,
    spec: &[KeySpec],
    separator: Option<&[u8]>,
    each: impl FnMut(u64, Item) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    match (format, spec.is_empty()) {
        (Format::Lines, false) => bail!("--key has no meaning for --format lines"),
        (Format::Lines, true) | (_, false) => {}
        (_, true) => bail!("--key FIELD[,FIELD…] is needed"),
    }
    let mut file = BufReader::with_capacity(256 << 10, file);
    if file.fill_buf()?.starts_with(&[0x1F, 0x8B]) {
        parse(BufReader::new(MultiGzDecoder::new(file)), format, spec, separator, each)
    } else {
        parse(file, format, spec, separator, each)
    }
}

fn parse(
    input: impl BufRead,
    format: Format,
    spec: &[KeySpec],
    separator: Option<&[u8]>,
    mut each: impl FnMut(u64, Item) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    match format {
        Format::Lines => by_line(input, |line, text| {
            each(line, check(Record { key: text.to_vec(), value: text.to_vec() }))
        }),
        Format::Ndjson => by_line(input, |line, text| each(line, from_json(text, spec, separator))),
        Format::Csv | Format::Tsv => {
            let tabs = format == Format::Tsv;
            let mut reader = csv::ReaderBuilder::new()
                .delimiter(if tabs { b'\t' } else { b',' })
                .quoting(!tabs)
                .from_reader(input);
            let header = reader.headers().context("the header line is not readable")?.clone();
            for KeySpec { field, .. } in spec {
                if !header.iter().any(|name| name == field) {
                    let fields: Vec<_> = header.iter().collect();
                    bail!("there is no field `{field}`; there are: {}", fields.join(", "));
                }
            }
            let mut record = csv::StringRecord::new();
            loop {
                let line = reader.position().line();
                match reader.read_record(&mut record) {
                    Ok(false) => return Ok(()),
                    Ok(true) => {
                        let line = record.position().map_or(line, csv::Position::line);
                        let fields =
                            header.iter().zip(&record).map(|(name, v)| (name.into(), v.into()));
                        let object: Map<String, Value> = fields.collect();
                        each(line, make(&object, None, spec, separator))?;
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

fn reason(error: &csv::Error) -> String {
    match error.kind() {
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            format!("{len} fields, but the header has {expected_len}")
        }
        csv::ErrorKind::Utf8 { .. } => "not UTF-8".into(),
        other => format!("{other:?}"),
    }
}

/// Calls `each` with the lines, without their ends. Blank ones are no records.
fn by_line(
    mut input: impl BufRead,
    mut each: impl FnMut(u64, &[u8]) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut text = Vec::new();
    for line in 1.. {
        text.clear();
        // A longer line is no value anyway; the limit keeps a file without line ends out of memory.
        let limit = value::MAX_LEN as u64 + 2;
        if (&mut input).take(limit).read_until(b'\n', &mut text)? == 0 {
            break;
        }
        if text.len() as u64 == limit && !text.ends_with(b"\n") {
            bail!("line {line} is longer than {} bytes", value::MAX_LEN);
        }
        let trimmed = text.strip_suffix(b"\n").unwrap_or(&text);
        let trimmed = trimmed.strip_suffix(b"\r").unwrap_or(trimmed);
        if !trimmed.iter().all(u8::is_ascii_whitespace) {
            each(line, trimmed)?;
        }
    }
    Ok(())
}

fn from_json(text: &[u8], spec: &[KeySpec], separator: Option<&[u8]>) -> Item {
    match serde_json::from_slice(text) {
        Ok(Value::Object(object)) => make(&object, Some(text), spec, separator),
        Ok(_) => Err("not a JSON object".into()),
        Err(error) => Err(format!("not JSON: {error}")),
    }
}

/// The record of an object; its value is `text`, or the object written as JSON.
fn make(
    object: &Map<String, Value>,
    text: Option<&[u8]>,
    spec: &[KeySpec],
    separator: Option<&[u8]>,
) -> Item {
    let mut fields = Vec::with_capacity(spec.len());
    for (at, KeySpec { field, width }) in spec.iter().enumerate() {
        let content = match object.get(field) {
            None | Some(Value::Null) => return Err(format!("no field `{field}`")),
            Some(Value::String(text)) => text.clone(),
            Some(Value::Array(_) | Value::Object(_)) => {
                return Err(format!("field `{field}` is neither text nor a number"));
            }
            Some(other) => other.to_string(),
        };
        let content = match width {
            None => content,
            Some(width) => {
                let is_number = !content.is_empty() && content.bytes().all(|b| b.is_ascii_digit());
                if !is_number || content.len() > *width {
                    let what = "is no number without sign and fraction of at most";
                    return Err(format!("field `{field}`: `{content}` {what} {width} digits"));
                }
                format!("{content:0>width$}")
            }
        };
        // Only the last field may hold the separator; otherwise two records could share a key.
        if let Some(separator) = separator.filter(|separator| !separator.is_empty())
            && at + 1 < spec.len()
            && content.as_bytes().windows(separator.len()).any(|part| part == separator)
        {
            let hint = "holds the separator; use another --separator, or --tuple";
            return Err(format!("field `{field}`: `{content}` {hint}"));
        }
        fields.push(content.into_bytes());
    }
    let key = match separator {
        Some(separator) => fields.join(separator),
        None => key::tuple::encode(&fields),
    };
    let value = match text {
        Some(text) => text.to_vec(),
        None => serde_json::to_vec(object).map_err(|error| error.to_string())?,
    };
    check(Record { key, value })
}

/// Refuses what the server would refuse.
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
        read(text, format, &spec, separator.map(str::as_bytes), |line, item| {
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
        is_bad(&got[2], 4, "is no number");
        assert_eq!(got[3].0, 6);
        assert_eq!(got[3].1.as_ref().unwrap().key, b"c:0012");
        is_bad(&got[4], 7, "UTF-8");
        is_bad(&got[5], 8, "separator");
        assert_eq!(got.len(), 6);
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

    #[test]
    fn lines_and_tuples() {
        let got = items(Format::Lines, "", Some(":"), b"b\na\n");
        assert_eq!(got, [(1, record("b", "b")), (2, record("a", "a"))]);
        let got = items(Format::Csv, "a,b", None, b"a,b\nx:y,\n");
        assert_eq!(got[0].1.as_ref().unwrap().key, key::tuple::encode(["x:y", ""]));
    }

    #[test]
    fn wrong_keys_are_told() {
        let spec = ["nosuch".parse().unwrap()];
        let error = read(&b"a,b\n"[..], Format::Csv, &spec, None, |_, _| Ok(())).unwrap_err();
        assert_eq!(error.to_string(), "there is no field `nosuch`; there are: a, b");
        assert!(read(&b"a,b\n"[..], Format::Csv, &[], None, |_, _| Ok(())).is_err());
        assert!("a/0".parse::<KeySpec>().is_err() && "/3".parse::<KeySpec>().is_err());
    }
}
