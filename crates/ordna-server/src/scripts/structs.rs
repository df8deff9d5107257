//! The library `struct`: numbers and strings as the bytes of a C structure.

use mlua::{Lua, MultiValue, Value};

use crate::scripts::bits::{LONGEST, LibraryFunction, check_length, number_at, one};

pub const FUNCTIONS: &[(&str, LibraryFunction)] = &[
    ("pack", |lua, all| {
        let bytes = pack(&all)?;
        lua.create_string(bytes)
            .map(|text| one(Value::String(text)))
            .map_err(|error| error.to_string())
    }),
    ("unpack", unpack),
    ("size", |_, all| {
        let format = string(&all, 0)?;
        let mut size = 0;
        for item in Format::new(&format) {
            let item = item?;
            match item.kind {
                Kind::Text => return Err("variable-size format in size".to_owned()),
                Kind::Bytes(0) => return Err("variable-length format".to_owned()),
                _ => size += item.padding(size) + item.size,
            }
        }
        Ok(one(Value::Number(size as f64)))
    }),
];

/// Maximum number of results of a call, because the stack of Lua holds only some thousand.
const MOST_RESULTS: usize = 7000;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Signed,
    Unsigned,
    Float,
    /// A string that ends with a zero byte.
    Text,
    /// A string of this number of bytes. With 0, the whole string is packed, and the preceding
    /// number is the length to unpack.
    Bytes(usize),
    Padding,
}

struct Item {
    kind: Kind,
    size: usize,
    /// Alignment: the position is a multiple of this.
    align: usize,
    is_little: bool,
}

impl Item {
    fn padding(&self, at: usize) -> usize {
        if self.align > 1 { (self.align - at % self.align) % self.align } else { 0 }
    }
}

/// Iterator over the items of a format.
struct Format<'a> {
    text: &'a [u8],
    is_little: bool,
    align: usize,
}

impl<'a> Format<'a> {
    fn new(text: &'a [u8]) -> Self {
        Self { text, is_little: cfg!(target_endian = "little"), align: 1 }
    }

    /// Reads a number at the beginning of the format, or returns `usual` if there is none.
    fn number(&mut self, usual: usize) -> Result<usize, String> {
        let end = self.text.iter().position(|byte| !byte.is_ascii_digit());
        let (digits, rest) = self.text.split_at(end.unwrap_or(self.text.len()));
        self.text = rest;
        if digits.is_empty() {
            return Ok(usual);
        }
        let number = std::str::from_utf8(digits).ok().and_then(|text| text.parse().ok());
        number
            .filter(|number| *number <= LONGEST)
            .ok_or_else(|| "integral size overflow".to_owned())
    }

    fn item(&mut self) -> Result<Option<Item>, String> {
        while let Some((letter, rest)) = self.text.split_first() {
            self.text = rest;
            let (kind, size) = match letter {
                b' ' => continue,
                b'>' => {
                    self.is_little = false;
                    continue;
                }
                b'<' => {
                    self.is_little = true;
                    continue;
                }
                b'=' => {
                    self.is_little = cfg!(target_endian = "little");
                    continue;
                }
                b'!' => {
                    self.align = self.number(8)?;
                    if !self.align.is_power_of_two() {
                        return Err("alignment is not a power of 2".to_owned());
                    }
                    continue;
                }
                b'b' => (Kind::Signed, 1),
                b'B' => (Kind::Unsigned, 1),
                b'h' => (Kind::Signed, 2),
                b'H' => (Kind::Unsigned, 2),
                b'l' => (Kind::Signed, 8),
                b'L' | b'T' => (Kind::Unsigned, 8),
                b'i' | b'I' => {
                    let size = self.number(4)?;
                    if !(1..=32).contains(&size) {
                        return Err(format!("integral size {size} is larger than limit of 32"));
                    }
                    (if *letter == b'i' { Kind::Signed } else { Kind::Unsigned }, size)
                }
                b'f' => (Kind::Float, 4),
                b'd' | b'n' => (Kind::Float, 8),
                b's' => (Kind::Text, 0),
                b'c' => {
                    let size = self.number(1)?;
                    (Kind::Bytes(size), size)
                }
                b'x' => (Kind::Padding, 1),
                other => return Err(format!("invalid format option '{}'", char::from(*other))),
            };
            let aligned = matches!(kind, Kind::Signed | Kind::Unsigned | Kind::Float);
            let align = if aligned && size.is_power_of_two() { size.min(self.align) } else { 1 };
            return Ok(Some(Item { kind, size, align, is_little: self.is_little }));
        }
        Ok(None)
    }
}

impl Iterator for Format<'_> {
    type Item = Result<Item, String>;

    fn next(&mut self) -> Option<Self::Item> {
        self.item().transpose()
    }
}

fn string(all: &MultiValue, at: usize) -> Result<Vec<u8>, String> {
    match all.get(at) {
        Some(Value::String(text)) => Ok(text.as_bytes().to_vec()),
        Some(Value::Integer(number)) => Ok(number.to_string().into_bytes()),
        Some(Value::Number(number)) => Ok(super::numbers::general(*number, 14).into_bytes()),
        other => {
            let kind = other.map_or("no value", Value::type_name);
            Err(format!("bad argument #{} (string expected, got {kind})", at + 1))
        }
    }
}

/// Appends the lower bytes of a number, with sign extension.
fn push(number: i128, item: &Item, out: &mut Vec<u8>) {
    let byte = |at: usize| (number >> (8 * at.min(15))) as u8;
    match item.is_little {
        true => out.extend((0..item.size).map(byte)),
        false => out.extend((0..item.size).rev().map(byte)),
    }
}

fn pack(all: &MultiValue) -> Result<Vec<u8>, String> {
    let format = string(all, 0)?;
    let (mut out, mut next) = (Vec::new(), 1);
    for item in Format::new(&format) {
        let item = item?;
        out.resize(out.len() + item.padding(out.len()), 0);
        match item.kind {
            Kind::Padding => out.push(0),
            Kind::Signed | Kind::Unsigned => {
                push(number_at(all, next)? as i128, &item, &mut out);
                next += 1;
            }
            Kind::Float => {
                let number = number_at(all, next)?;
                next += 1;
                let mut bytes = match item.size {
                    4 => (number as f32).to_le_bytes().to_vec(),
                    _ => number.to_le_bytes().to_vec(),
                };
                if !item.is_little {
                    bytes.reverse();
                }
                out.extend_from_slice(&bytes);
            }
            Kind::Text => {
                out.extend_from_slice(&string(all, next)?);
                out.push(0);
                next += 1;
            }
            Kind::Bytes(size) => {
                let text = string(all, next)?;
                next += 1;
                let size = if size == 0 { text.len() } else { size };
                let bytes = text.get(..size);
                out.extend_from_slice(
                    bytes.ok_or_else(|| {
                        format!("bad argument #{next} to 'pack' (string too short)")
                    })?,
                );
            }
        }
        check_length(out.len())?;
    }
    Ok(out)
}

/// Returns the values and the position after them.
fn unpack(lua: &Lua, all: MultiValue) -> Result<MultiValue, String> {
    let format = string(&all, 0)?;
    let data = string(&all, 1)?;
    let from = if all.len() > 2 { number_at(&all, 2)? } else { 1.0 };
    if from < 1.0 {
        return Err("offset must be 1 or greater".to_owned());
    }
    let mut at = from as usize - 1;
    let failed = |error: mlua::Error| error.to_string();
    let (mut values, mut last) = (Vec::new(), None);
    for item in Format::new(&format) {
        let item = item?;
        at = at.saturating_add(item.padding(at));
        let short = || "data string too short".to_owned();
        let take =
            |size: usize| at.checked_add(size).and_then(|end| data.get(at..end)).ok_or_else(short);
        let value = match item.kind {
            Kind::Padding => {
                take(1)?;
                at += 1;
                continue;
            }
            Kind::Signed | Kind::Unsigned => {
                let mut bytes = take(item.size)?.to_vec();
                at += item.size;
                if item.is_little {
                    bytes.reverse();
                }
                let is_negative = item.kind == Kind::Signed && bytes[0] & 0x80 != 0;
                let start = if is_negative { -1_i128 } else { 0 };
                let number =
                    bytes.iter().fold(start, |number, byte| number << 8 | i128::from(*byte));
                last = usize::try_from(number).ok();
                Value::Number(number as f64)
            }
            Kind::Float => {
                let mut bytes = take(item.size)?.to_vec();
                at += item.size;
                if !item.is_little {
                    bytes.reverse();
                }
                let number = match <[u8; 4]>::try_from(bytes.as_slice()) {
                    Ok(short) => f64::from(f32::from_le_bytes(short)),
                    Err(_) => f64::from_le_bytes(bytes.try_into().unwrap_or_default()),
                };
                Value::Number(number)
            }
            Kind::Text => {
                let rest = data.get(at..).unwrap_or_default();
                let end = rest.iter().position(|byte| *byte == 0);
                let end = end.ok_or("unfinished string in data")?;
                at += end + 1;
                Value::String(lua.create_string(&rest[..end]).map_err(failed)?)
            }
            Kind::Bytes(size) => {
                let size = match size {
                    0 => {
                        let size = last.take().filter(|_| !values.is_empty());
                        let size = size.ok_or("format 'c0' needs a previous size")?;
                        // The length itself is not returned.
                        values.pop();
                        size
                    }
                    size => size,
                };
                let bytes = take(size)?;
                let text = lua.create_string(bytes).map_err(failed)?;
                at += size;
                Value::String(text)
            }
        };
        if values.len() >= MOST_RESULTS {
            return Err("too many results to unpack".to_owned());
        }
        values.push(value);
    }
    values.push(Value::Number((at + 1) as f64));
    Ok(MultiValue::from_iter(values))
}
