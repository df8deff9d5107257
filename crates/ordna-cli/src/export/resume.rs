//! Finds the place where an interrupted export continues.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use anyhow::{Context, bail};

use super::entry::{COLUMNS, EntryFields, Format};

/// Opens the file of an interrupted export to continue it. Cuts off the last record, which may be
/// incomplete, and returns the key of the record before it. If there is no complete record, the
/// file is emptied.
pub fn open(path: &Path, format: Format) -> anyhow::Result<(File, Option<Vec<u8>>)> {
    let shown = path.display();
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
    let mut file = file.with_context(|| format!("cannot open {shown}"))?;
    let (end, last) = match format {
        Format::Jsonl => whole_lines(&file),
        Format::Csv | Format::Tsv => whole_records(&file, format),
    }
    .with_context(|| format!("cannot continue {shown}"))?;
    let end = if last.is_some() { end } else { 0 };
    file.set_len(end).and_then(|()| file.seek(SeekFrom::Start(end)))?;
    Ok((file, last))
}

/// Returns where the last line but one ends, and its key.
fn whole_lines(file: &File) -> anyhow::Result<(u64, Option<Vec<u8>>)> {
    let mut input = BufReader::with_capacity(256 << 10, file);
    let (mut start, mut end) = (0, 0);
    let (mut before, mut last, mut line) = (Vec::new(), Vec::new(), Vec::new());
    loop {
        line.clear();
        let read = input.read_until(b'\n', &mut line)? as u64;
        if read == 0 {
            break;
        }
        (start, end) = (end, end + read);
        std::mem::swap(&mut before, &mut last);
        std::mem::swap(&mut last, &mut line);
    }
    if before.is_empty() {
        return Ok((0, None));
    }
    let entry = EntryFields::parse(&before).map_err(anyhow::Error::msg)?;
    Ok((start, Some(entry.key)))
}

/// Returns where the last record but one ends, and its key.
fn whole_records(file: &File, format: Format) -> anyhow::Result<(u64, Option<Vec<u8>>)> {
    let tabs = format == Format::Tsv;
    let header = COLUMNS.join(if tabs { "\t" } else { "," }) + "\n";
    let (mut input, mut begin) = (file, Vec::new());
    input.take(header.len() as u64).read_to_end(&mut begin)?;
    if begin != header.as_bytes() {
        // Even the header is incomplete.
        return match header.as_bytes().starts_with(&begin) {
            true => Ok((0, None)),
            false => bail!("its header is not that of an export"),
        };
    }
    input.seek(SeekFrom::Start(0))?;
    let mut reader = csv::ReaderBuilder::new()
        .delimiter(if tabs { b'\t' } else { b',' })
        .quoting(!tabs)
        .flexible(true)
        .from_reader(BufReader::with_capacity(256 << 10, file));
    let (mut record, mut before) = (csv::ByteRecord::new(), csv::ByteRecord::new());
    let (mut end, mut found) = (0, None);
    while reader.read_byte_record(&mut record)? {
        // Another record follows, so the previous one is complete.
        if !before.is_empty() {
            found = Some((end, before.clone()));
        }
        end = reader.position().byte();
        std::mem::swap(&mut record, &mut before);
    }
    let Some((end, record)) = found else { return Ok((0, None)) };
    let fields = COLUMNS
        .iter()
        .zip(&record)
        .map(|(name, field)| (*name, serde_json::Value::from(String::from_utf8_lossy(field))));
    let json = serde_json::to_vec(&fields.collect::<std::collections::BTreeMap<_, _>>())?;
    let key = EntryFields::parse(&json).map_err(anyhow::Error::msg)?.key;
    Ok((end, Some(key)))
}
