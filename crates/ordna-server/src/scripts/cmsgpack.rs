//! The library `cmsgpack`: values of Lua as MessagePack.

use mlua::{Lua, MultiValue, Table, Value};

use crate::scripts::bits::{LibraryFunction, check_length, number_at, one};
use crate::scripts::control::Work;

/// Maximum nesting depth of packed tables. Deeper ones are packed as nil, as in Redis.
const PACKED_DEPTH: usize = 16;
/// Maximum number of results of a call, because the stack of Lua holds only some thousand.
const MOST_RESULTS: usize = 7000;
/// Maximum nesting depth of unpacked values.
const UNPACKED_DEPTH: usize = 1000;

pub const FUNCTIONS: &[(&str, LibraryFunction)] = &[
    ("pack", |lua, all| {
        if all.is_empty() {
            return Err("bad argument #0 to 'pack' (MessagePack pack needs input.)".to_owned());
        }
        let mut out = Vec::new();
        let mut work = Work::of(lua);
        for value in &all {
            pack(value, 0, &mut work, &mut out)?;
        }
        lua.create_string(out).map(|text| one(Value::String(text))).map_err(failed)
    }),
    ("unpack", |lua, all| unpack_all(lua, &text(&all)?, None, 0)),
    ("unpack_one", |lua, all| {
        let at = if all.len() > 1 { number_at(&all, 1)? as i64 } else { 0 };
        unpack_all(lua, &text(&all)?, Some(1), at)
    }),
    ("unpack_limit", |lua, all| {
        let limit = number_at(&all, 1)? as i64;
        let at = if all.len() > 2 { number_at(&all, 2)? as i64 } else { 0 };
        let limit = usize::try_from(limit)
            .map_err(|_| "Invalid request to unpack with a negative limit")?;
        unpack_all(lua, &text(&all)?, Some(limit), at)
    }),
];

fn failed(error: mlua::Error) -> String {
    error.to_string()
}

fn text(all: &MultiValue) -> Result<Vec<u8>, String> {
    match all.front() {
        Some(Value::String(text)) => Ok(text.as_bytes().to_vec()),
        other => {
            let kind = other.map_or("no value", Value::type_name);
            Err(format!("bad argument #1 (string expected, got {kind})"))
        }
    }
}

/// Writes a type byte and a length. A short length is part of the type byte; a longer one follows
/// one of three other type bytes.
fn length(length: usize, short: Option<(u8, usize)>, signs: [Option<u8>; 3], out: &mut Vec<u8>) {
    match (short, signs) {
        (Some((sign, most)), _) if length <= most => out.push(sign | length as u8),
        (_, [Some(sign), ..]) if length < 1 << 8 => out.extend_from_slice(&[sign, length as u8]),
        (_, [_, Some(sign), _]) if length < 1 << 16 => {
            out.push(sign);
            out.extend_from_slice(&(length as u16).to_be_bytes());
        }
        (_, [.., sign]) => {
            out.push(sign.unwrap_or_default());
            out.extend_from_slice(&(length as u32).to_be_bytes());
        }
    }
}

fn integer(number: i64, out: &mut Vec<u8>) {
    match number {
        0..=0x7F => out.push(number as u8),
        -32..0 => out.push(number as u8),
        0x80..=0xFF => out.extend_from_slice(&[0xCC, number as u8]),
        0x100..=0xFFFF => {
            out.push(0xCD);
            out.extend_from_slice(&(number as u16).to_be_bytes());
        }
        0x1_0000..=0xFFFF_FFFF => {
            out.push(0xCE);
            out.extend_from_slice(&(number as u32).to_be_bytes());
        }
        0x1_0000_0000.. => {
            out.push(0xCF);
            out.extend_from_slice(&number.to_be_bytes());
        }
        -0x80..-32 => out.extend_from_slice(&[0xD0, number as u8]),
        -0x8000..-0x80 => {
            out.push(0xD1);
            out.extend_from_slice(&(number as i16).to_be_bytes());
        }
        -0x8000_0000..-0x8000 => {
            out.push(0xD2);
            out.extend_from_slice(&(number as i32).to_be_bytes());
        }
        _ => {
            out.push(0xD3);
            out.extend_from_slice(&number.to_be_bytes());
        }
    }
}

fn float(number: f64, out: &mut Vec<u8>) {
    let short = number as f32;
    if number.fract() == 0.0 && number.abs() < 9.2e18 {
        integer(number as i64, out);
    } else if f64::from(short) == number {
        out.push(0xCA);
        out.extend_from_slice(&short.to_be_bytes());
    } else {
        out.push(0xCB);
        out.extend_from_slice(&number.to_be_bytes());
    }
}

/// Returns the number of entries if the keys are 1, 2, … without a gap.
fn is_array(table: &Table, work: &mut Work) -> Result<Option<usize>, String> {
    let (mut count, mut most) = (0_usize, 0.0);
    for pair in table.pairs::<Value, Value>() {
        work.step()?;
        let key = match pair.map_err(failed)?.0 {
            Value::Integer(key) => key as f64,
            Value::Number(key) => key,
            _ => return Ok(None),
        };
        if key < 1.0 || key.fract() != 0.0 {
            return Ok(None);
        }
        count += 1;
        most = f64::max(most, key);
    }
    Ok((most == count as f64).then_some(count))
}

fn pack(value: &Value, depth: usize, work: &mut Work, out: &mut Vec<u8>) -> Result<(), String> {
    work.step()?;
    check_length(out.len())?;
    match value {
        Value::Boolean(is_true) => out.push(if *is_true { 0xC3 } else { 0xC2 }),
        Value::Integer(number) => integer(*number, out),
        Value::Number(number) => float(*number, out),
        Value::String(text) => {
            let bytes = text.as_bytes();
            check_length(bytes.len())?;
            length(bytes.len(), Some((0xA0, 31)), [Some(0xD9), Some(0xDA), Some(0xDB)], out);
            out.extend_from_slice(&bytes);
        }
        Value::Table(table) if depth < PACKED_DEPTH => match is_array(table, work)? {
            Some(count) => {
                length(count, Some((0x90, 15)), [None, Some(0xDC), Some(0xDD)], out);
                for at in 1..=count {
                    pack(&table.raw_get(at).map_err(failed)?, depth + 1, work, out)?;
                }
            }
            None => {
                // The pairs are iterated twice instead of collected, because Lua has room for only
                // some thousand references.
                let mut count = 0;
                for pair in table.pairs::<Value, Value>() {
                    pair.map_err(failed)?;
                    work.step()?;
                    count += 1;
                }
                length(count, Some((0x80, 15)), [None, Some(0xDE), Some(0xDF)], out);
                for pair in table.pairs::<Value, Value>() {
                    let (key, value) = pair.map_err(failed)?;
                    pack(&key, depth + 1, work, out)?;
                    pack(&value, depth + 1, work, out)?;
                }
            }
        },
        _ => out.push(0xC0),
    }
    Ok(())
}

/// Unpacks all values from an offset on, or up to a limit. With a limit, the first result is the
/// next offset, or -1 at the end.
fn unpack_all(
    lua: &Lua,
    bytes: &[u8],
    limit: Option<usize>,
    at: i64,
) -> Result<MultiValue, String> {
    let start = usize::try_from(at).map_err(|_| {
        format!(
            "Invalid request to unpack with offset of {at} and limit of {}.",
            limit.unwrap_or(0)
        )
    })?;
    if start > bytes.len() {
        return Err(format!("Start offset {start} greater than input length {}.", bytes.len()));
    }
    let mut reader = Reader { lua, bytes, at: start, work: Work::of(lua) };
    let limited = limit.filter(|limit| *limit > 0).unwrap_or(usize::MAX);
    let mut all = Vec::new();
    while reader.at < bytes.len() && all.len() < limited {
        if all.len() >= MOST_RESULTS {
            return Err("too many results to unpack".to_owned());
        }
        all.push(reader.value(0)?);
    }
    if limit.is_some() {
        let next = if reader.at < bytes.len() { reader.at as f64 } else { -1.0 };
        all.insert(0, Value::Number(next));
    }
    Ok(MultiValue::from_iter(all))
}

struct Reader<'a> {
    lua: &'a Lua,
    bytes: &'a [u8],
    at: usize,
    work: Work,
}

impl Reader<'_> {
    fn take(&mut self, count: usize) -> Result<&[u8], String> {
        let taken = self.at.checked_add(count).and_then(|end| self.bytes.get(self.at..end));
        self.at = self.at.saturating_add(count);
        taken.ok_or_else(|| "Missing bytes in input.".to_owned())
    }

    fn unsigned(&mut self, bytes: usize) -> Result<u64, String> {
        Ok(self.take(bytes)?.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn value(&mut self, depth: usize) -> Result<Value, String> {
        if depth > UNPACKED_DEPTH {
            return Err("Bad data format in input.".to_owned());
        }
        self.work.step()?;
        let sign = self.take(1)?[0];
        let number = |number: f64| Ok(Value::Number(number));
        match sign {
            0..=0x7F => number(f64::from(sign)),
            0xE0.. => number(f64::from(sign as i8)),
            0xC0 => Ok(Value::Nil),
            0xC2 | 0xC3 => Ok(Value::Boolean(sign == 0xC3)),
            0xCA => number(f64::from(f32::from_bits(self.unsigned(4)? as u32))),
            0xCB => number(f64::from_bits(self.unsigned(8)?)),
            0xCC..=0xCF => number(self.unsigned(1 << (sign - 0xCC))? as f64),
            0xD0 => number(f64::from(self.unsigned(1)? as i8)),
            0xD1 => number(f64::from(self.unsigned(2)? as i16)),
            0xD2 => number(f64::from(self.unsigned(4)? as i32)),
            0xD3 => number(self.unsigned(8)? as i64 as f64),
            0xA0..=0xBF => self.text(usize::from(sign & 31)),
            0xC4 | 0xD9 => self.long(1, Self::text),
            0xC5 | 0xDA => self.long(2, Self::text),
            0xC6 | 0xDB => self.long(4, Self::text),
            0x90..=0x9F => self.array(usize::from(sign & 15), depth),
            0xDC => self.long(2, |reader, count| reader.array(count, depth)),
            0xDD => self.long(4, |reader, count| reader.array(count, depth)),
            0x80..=0x8F => self.map(usize::from(sign & 15), depth),
            0xDE => self.long(2, |reader, count| reader.map(count, depth)),
            0xDF => self.long(4, |reader, count| reader.map(count, depth)),
            _ => Err("Bad data format in input.".to_owned()),
        }
    }

    fn long(
        &mut self,
        bytes: usize,
        read: impl FnOnce(&mut Self, usize) -> Result<Value, String>,
    ) -> Result<Value, String> {
        let length = self.unsigned(bytes)? as usize;
        read(self, length)
    }

    fn text(&mut self, length: usize) -> Result<Value, String> {
        let lua = self.lua;
        lua.create_string(self.take(length)?).map(Value::String).map_err(failed)
    }

    fn array(&mut self, count: usize, depth: usize) -> Result<Value, String> {
        let table = self.lua.create_table().map_err(failed)?;
        for at in 1..=count {
            let item = self.value(depth + 1)?;
            table.raw_set(at, item).map_err(failed)?;
        }
        Ok(Value::Table(table))
    }

    fn map(&mut self, count: usize, depth: usize) -> Result<Value, String> {
        let table = self.lua.create_table().map_err(failed)?;
        for _ in 0..count {
            let key = self.value(depth + 1)?;
            let value = self.value(depth + 1)?;
            table.raw_set(key, value).map_err(failed)?;
        }
        Ok(Value::Table(table))
    }
}
