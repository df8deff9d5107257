//! The library `cjson`: values of Lua as JSON.

use mlua::{Lua, MultiValue, Table, Value};

use crate::scripts::bits::{LibraryFunction, check_length, number_at, one};
use crate::scripts::control::Work;
use crate::scripts::numbers::general;

/// Maximum nesting depth of arrays and objects, as in Redis. Settings cannot exceed it, because the
/// encoder and the parser are recursive.
const DEEPEST: usize = 1000;
/// Number of significant digits with which numbers are written.
const DIGITS: usize = 14;

/// Treatment of numbers that JSON does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InvalidNumbers {
    Refused,
    Allowed,
    /// Encode them as `null`.
    Null,
}

/// The settings of the library. They apply to the script that changes them.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    encode_depth: usize,
    decode_depth: usize,
    digits: usize,
    encode_invalid: InvalidNumbers,
    decode_invalid: bool,
    keep_buffer: bool,
    /// Whether sparse arrays are encoded as objects.
    sparse_convert: bool,
    /// Ratio of length to elements above which an array is sparse. With 0, no array is sparse.
    sparse_ratio: usize,
    /// Length up to which no array is sparse.
    sparse_safe: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            encode_depth: DEEPEST,
            decode_depth: DEEPEST,
            digits: DIGITS,
            encode_invalid: InvalidNumbers::Refused,
            decode_invalid: true,
            keep_buffer: true,
            sparse_convert: false,
            sparse_ratio: 2,
            sparse_safe: 10,
        }
    }
}

impl Settings {
    fn of(lua: &Lua) -> Self {
        lua.app_data_ref::<Self>().map(|settings| *settings).unwrap_or_default()
    }
}

/// Returns the result of `change`, which changes settings by the arguments of a function. The
/// function has at most `most` arguments.
fn configure<const N: usize>(
    lua: &Lua,
    all: &MultiValue,
    change: impl FnOnce(&mut Settings, [Option<&Value>; N]) -> Result<[Value; N], String>,
) -> Result<MultiValue, String> {
    if all.len() > N {
        return Err(format!("bad argument #{} (found too many arguments)", N + 1));
    }
    let given = std::array::from_fn(|at| all.get(at).filter(|value| !value.is_nil()));
    let mut settings = Settings::of(lua);
    let values = change(&mut settings, given)?;
    if let Some(mut present) = lua.app_data_mut::<Settings>() {
        *present = settings;
    }
    Ok(MultiValue::from_iter(values))
}

/// Changes a setting to an integer within bounds, if one is given. Returns the setting.
fn integer(
    setting: &mut usize,
    given: Option<&Value>,
    bounds: std::ops::RangeInclusive<usize>,
) -> Result<Value, String> {
    if let Some(value) = given {
        let number = number_at(&MultiValue::from_iter([value.clone()]), 0)?;
        let number = number.trunc();
        let (least, most) = (*bounds.start(), *bounds.end());
        if !(least as f64..=most as f64).contains(&number) {
            return Err(format!("bad argument #1 (expected integer between {least} and {most})"));
        }
        *setting = number as usize;
    }
    Ok(Value::Integer(*setting as i64))
}

/// Returns whether an argument turns a setting on, or `None` if it turns it neither on nor off.
fn switch(value: &Value) -> Option<bool> {
    match value {
        Value::Boolean(on) => Some(*on),
        Value::String(text) if &*text.as_bytes() == b"on" => Some(true),
        Value::String(text) if &*text.as_bytes() == b"off" => Some(false),
        _ => None,
    }
}

/// Changes a boolean setting, if an argument is given. Returns the setting.
fn boolean(setting: &mut bool, given: Option<&Value>) -> Result<Value, String> {
    if let Some(value) = given {
        *setting = switch(value).ok_or("bad argument #1 (invalid option)")?;
    }
    Ok(Value::Boolean(*setting))
}

/// Upper bound of integer settings.
const MOST_INTEGER: usize = i32::MAX as usize;

pub const FUNCTIONS: &[(&str, LibraryFunction)] = &[
    ("encode", |lua, all| {
        let value = all.front().filter(|_| all.len() == 1);
        let value = value.ok_or("bad argument #1 to 'encode' (expected 1 argument)")?;
        let mut text = Vec::new();
        encode(&Settings::of(lua), value, 0, &mut Work::of(lua), &mut text)?;
        lua.create_string(text)
            .map(|text| one(Value::String(text)))
            .map_err(|error| error.to_string())
    }),
    ("decode", |lua, all| {
        let text = match all.front() {
            Some(Value::String(text)) if all.len() == 1 => text.as_bytes().to_vec(),
            Some(Value::Integer(number)) if all.len() == 1 => number.to_string().into_bytes(),
            Some(Value::Number(number)) if all.len() == 1 => general(*number, DIGITS).into_bytes(),
            _ => return Err("bad argument #1 to 'decode' (string expected)".to_owned()),
        };
        let mut parser =
            Parser { lua, text: &text, at: 0, settings: Settings::of(lua), work: Work::of(lua) };
        let value = parser.value(0)?;
        parser.skip();
        if parser.at < text.len() {
            return Err(parser.unexpected("the end"));
        }
        Ok(one(value))
    }),
    ("encode_max_depth", |lua, all| {
        configure::<1>(lua, &all, |settings, [given]| {
            Ok([integer(&mut settings.encode_depth, given, 1..=MOST_INTEGER)?])
        })
    }),
    ("decode_max_depth", |lua, all| {
        configure::<1>(lua, &all, |settings, [given]| {
            Ok([integer(&mut settings.decode_depth, given, 1..=MOST_INTEGER)?])
        })
    }),
    ("encode_number_precision", |lua, all| {
        configure::<1>(lua, &all, |settings, [given]| {
            Ok([integer(&mut settings.digits, given, 1..=DIGITS)?])
        })
    }),
    ("encode_keep_buffer", |lua, all| {
        configure::<1>(lua, &all, |settings, [given]| {
            Ok([boolean(&mut settings.keep_buffer, given)?])
        })
    }),
    ("decode_invalid_numbers", |lua, all| {
        configure::<1>(lua, &all, |settings, [given]| {
            Ok([boolean(&mut settings.decode_invalid, given)?])
        })
    }),
    ("encode_invalid_numbers", |lua, all| {
        let null = lua.create_string("null").map_err(|error| error.to_string())?;
        configure::<1>(lua, &all, |settings, [given]| {
            let setting = &mut settings.encode_invalid;
            match given.map(|value| (value, switch(value))) {
                None => {}
                Some((_, Some(true))) => *setting = InvalidNumbers::Allowed,
                Some((_, Some(false))) => *setting = InvalidNumbers::Refused,
                Some((Value::String(text), None)) if *text == null => {
                    *setting = InvalidNumbers::Null;
                }
                Some(_) => return Err("bad argument #1 (invalid option)".to_owned()),
            }
            Ok([match *setting {
                InvalidNumbers::Null => Value::String(null),
                other => Value::Boolean(other == InvalidNumbers::Allowed),
            }])
        })
    }),
    ("encode_sparse_array", |lua, all| {
        configure::<3>(lua, &all, |settings, [convert, ratio, safe]| {
            Ok([
                boolean(&mut settings.sparse_convert, convert)?,
                integer(&mut settings.sparse_ratio, ratio, 0..=MOST_INTEGER)?,
                integer(&mut settings.sparse_safe, safe, 0..=MOST_INTEGER)?,
            ])
        })
    }),
];

fn escape(text: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    for byte in text {
        match byte {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'/' => out.extend_from_slice(b"\\/"),
            0x08 => out.extend_from_slice(b"\\b"),
            b'\t' => out.extend_from_slice(b"\\t"),
            b'\n' => out.extend_from_slice(b"\\n"),
            0x0C => out.extend_from_slice(b"\\f"),
            b'\r' => out.extend_from_slice(b"\\r"),
            0..=0x1F | 0x7F => out.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
            byte => out.push(*byte),
        }
    }
    out.push(b'"');
}

fn encode_number(settings: &Settings, number: f64, out: &mut Vec<u8>) -> Result<(), String> {
    match settings.encode_invalid {
        _ if number.is_finite() => {}
        InvalidNumbers::Refused => {
            return Err("Cannot serialise number: must not be NaN or Inf".to_owned());
        }
        InvalidNumbers::Null => {
            out.extend_from_slice(b"null");
            return Ok(());
        }
        InvalidNumbers::Allowed => {}
    }
    let number = if number.is_nan() { f64::NAN.abs() } else { number };
    out.extend_from_slice(general(number, settings.digits).as_bytes());
    Ok(())
}

/// Returns the length of a table that is an array, which is its largest key if all keys are
/// positive integers. If the array is sparse, returns an error or, depending on the settings,
/// `None`.
fn array_length(
    settings: &Settings,
    table: &Table,
    work: &mut Work,
) -> Result<Option<usize>, String> {
    let (mut most, mut count) = (0.0, 0.0);
    for pair in table.pairs::<Value, Value>() {
        work.step()?;
        let (key, _) = pair.map_err(|error| error.to_string())?;
        let key = match key {
            Value::Integer(key) => key as f64,
            Value::Number(key) => key,
            _ => return Ok(None),
        };
        if key < 1.0 || key.fract() != 0.0 {
            return Ok(None);
        }
        most = f64::max(most, key);
        count += 1.0;
    }
    if count == 0.0 {
        return Ok(None);
    }
    let ratio = settings.sparse_ratio as f64;
    if ratio > 0.0 && most > settings.sparse_safe as f64 && most > count * ratio {
        return match settings.sparse_convert {
            true => Ok(None),
            false => Err("Cannot serialise table: excessively sparse array".to_owned()),
        };
    }
    Ok(Some(most as usize))
}

fn encode(
    settings: &Settings,
    value: &Value,
    depth: usize,
    work: &mut Work,
    out: &mut Vec<u8>,
) -> Result<(), String> {
    work.step()?;
    check_length(out.len())?;
    match value {
        Value::Nil => out.extend_from_slice(b"null"),
        value if value.is_null() => out.extend_from_slice(b"null"),
        Value::Boolean(true) => out.extend_from_slice(b"true"),
        Value::Boolean(false) => out.extend_from_slice(b"false"),
        Value::Integer(number) => encode_number(settings, *number as f64, out)?,
        Value::Number(number) => encode_number(settings, *number, out)?,
        Value::String(text) => {
            check_length(text.as_bytes().len())?;
            escape(&text.as_bytes(), out);
        }
        Value::Table(table) => {
            if depth >= settings.encode_depth.min(DEEPEST) {
                return Err(format!("Cannot serialise, excessive depth ({})", depth + 1));
            }
            match array_length(settings, table, work)? {
                Some(length) => {
                    out.push(b'[');
                    for at in 1..=length {
                        if at > 1 {
                            out.push(b',');
                        }
                        let item: Value = table.raw_get(at).map_err(|error| error.to_string())?;
                        encode(settings, &item, depth + 1, work, out)?;
                    }
                    out.push(b']');
                }
                None => {
                    out.push(b'{');
                    let start = out.len();
                    for pair in table.pairs::<Value, Value>() {
                        let (key, item) = pair.map_err(|error| error.to_string())?;
                        if out.len() > start {
                            out.push(b',');
                        }
                        match key {
                            Value::String(key) => {
                                check_length(key.as_bytes().len())?;
                                escape(&key.as_bytes(), out);
                            }
                            Value::Integer(key) => escape(key.to_string().as_bytes(), out),
                            Value::Number(key) => escape(general(key, DIGITS).as_bytes(), out),
                            _ => {
                                return Err(
                                    "Cannot serialise table: table key must be a number or string"
                                        .to_owned(),
                                );
                            }
                        }
                        out.push(b':');
                        encode(settings, &item, depth + 1, work, out)?;
                    }
                    out.push(b'}');
                }
            }
        }
        other => {
            return Err(format!("Cannot serialise {}: type not supported", other.type_name()));
        }
    }
    Ok(())
}

struct Parser<'a> {
    lua: &'a Lua,
    text: &'a [u8],
    at: usize,
    settings: Settings,
    work: Work,
}

impl Parser<'_> {
    fn skip(&mut self) {
        while matches!(self.text.get(self.at), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn unexpected(&self, expected: &str) -> String {
        let found = match self.text.get(self.at) {
            None => "T_END".to_owned(),
            Some(b'{') => "T_OBJ_BEGIN".to_owned(),
            Some(b'}') => "T_OBJ_END".to_owned(),
            Some(b'[') => "T_ARR_BEGIN".to_owned(),
            Some(b']') => "T_ARR_END".to_owned(),
            Some(b',') => "T_COMMA".to_owned(),
            Some(b':') => "T_COLON".to_owned(),
            Some(b'"') => "T_STRING".to_owned(),
            Some(_) => "invalid token".to_owned(),
        };
        format!("Expected {expected} but found {found} at character {}", self.at + 1)
    }

    fn word(&mut self, word: &str, value: Value) -> Result<Value, String> {
        if self.text[self.at..].starts_with(word.as_bytes()) {
            self.at += word.len();
            return Ok(value);
        }
        Err(self.unexpected("value"))
    }

    fn value(&mut self, depth: usize) -> Result<Value, String> {
        self.work.step()?;
        self.skip();
        let opens = matches!(self.text.get(self.at), Some(b'[' | b'{'));
        if opens && depth >= self.settings.decode_depth.min(DEEPEST) {
            return Err(format!("Found too many nested data structures ({})", depth + 1));
        }
        let failed = |error: mlua::Error| error.to_string();
        match self.text.get(self.at) {
            Some(b'n') if self.text[self.at..].starts_with(b"null") => {
                self.word("null", Value::NULL)
            }
            Some(b't') => self.word("true", Value::Boolean(true)),
            Some(b'f') => self.word("false", Value::Boolean(false)),
            Some(b'"') => {
                let text = self.string()?;
                self.lua.create_string(text).map(Value::String).map_err(failed)
            }
            Some(b'[') => {
                self.at += 1;
                let table = self.lua.create_table().map_err(failed)?;
                self.skip();
                if self.text.get(self.at) == Some(&b']') {
                    self.at += 1;
                    return Ok(Value::Table(table));
                }
                for at in 1.. {
                    let item = self.value(depth + 1)?;
                    table.raw_set(at, item).map_err(failed)?;
                    self.skip();
                    match self.text.get(self.at) {
                        Some(b',') => self.at += 1,
                        Some(b']') => break,
                        _ => return Err(self.unexpected("comma or array end")),
                    }
                }
                self.at += 1;
                Ok(Value::Table(table))
            }
            Some(b'{') => {
                self.at += 1;
                let table = self.lua.create_table().map_err(failed)?;
                self.skip();
                if self.text.get(self.at) == Some(&b'}') {
                    self.at += 1;
                    return Ok(Value::Table(table));
                }
                loop {
                    self.skip();
                    if self.text.get(self.at) != Some(&b'"') {
                        return Err(self.unexpected("object key string"));
                    }
                    let key = self.string()?;
                    self.skip();
                    if self.text.get(self.at) != Some(&b':') {
                        return Err(self.unexpected("colon"));
                    }
                    self.at += 1;
                    let item = self.value(depth + 1)?;
                    let key = self.lua.create_string(key).map_err(failed)?;
                    table.raw_set(key, item).map_err(failed)?;
                    self.skip();
                    match self.text.get(self.at) {
                        Some(b',') => self.at += 1,
                        Some(b'}') => break,
                        _ => return Err(self.unexpected("comma or object end")),
                    }
                }
                self.at += 1;
                Ok(Value::Table(table))
            }
            _ => self.number(),
        }
    }

    fn number(&mut self) -> Result<Value, String> {
        let rest = &self.text[self.at..];
        let is_part =
            |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
        let end = rest.iter().position(|byte| !is_part(byte)).unwrap_or(rest.len());
        let text = std::str::from_utf8(&rest[..end]).unwrap_or_default();
        let unsigned = text.trim_start_matches('-');
        let begins = unsigned.starts_with(|first: char| first.is_ascii_digit());
        let is_word = ["nan", "inf", "infinity"].contains(&unsigned.to_ascii_lowercase().as_str());
        let is_invalid = is_word || unsigned.starts_with("0x") || unsigned.starts_with("0X");
        if is_invalid && !self.settings.decode_invalid {
            return Err(self.unexpected("value"));
        }
        let number = match unsigned.strip_prefix("0x").or(unsigned.strip_prefix("0X")) {
            Some(digits) => u64::from_str_radix(digits, 16).ok().map(|number| number as f64),
            None => text.parse::<f64>().ok().filter(|_| begins || is_word),
        };
        let number = number.ok_or_else(|| self.unexpected("value"))?;
        self.at += end;
        Ok(Value::Number(number))
    }

    fn hex(&mut self) -> Result<u32, String> {
        let digits = self.text.get(self.at..self.at + 4).and_then(|it| str::from_utf8(it).ok());
        let value = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok());
        self.at += 4;
        value.ok_or_else(|| "Expected value but found invalid unicode escape".to_owned())
    }

    fn string(&mut self) -> Result<Vec<u8>, String> {
        self.at += 1;
        let mut text = Vec::new();
        loop {
            let Some(byte) = self.text.get(self.at).copied() else {
                return Err(format!(
                    "Expected value but found unexpected end of string at character {}",
                    self.at + 1
                ));
            };
            self.at += 1;
            match byte {
                b'"' => return Ok(text),
                b'\\' => {
                    let escaped = self.text.get(self.at).copied();
                    self.at += 1;
                    match escaped {
                        Some(same @ (b'"' | b'\\' | b'/')) => text.push(same),
                        Some(b'b') => text.push(0x08),
                        Some(b'f') => text.push(0x0C),
                        Some(b'n') => text.push(b'\n'),
                        Some(b'r') => text.push(b'\r'),
                        Some(b't') => text.push(b'\t'),
                        Some(b'u') => {
                            let mut code = self.hex()?;
                            if (0xD800..0xDC00).contains(&code)
                                && self.text[self.at.min(self.text.len())..].starts_with(b"\\u")
                            {
                                self.at += 2;
                                let low = self.hex()?;
                                code = 0x10000
                                    + ((code - 0xD800) << 10)
                                    + (low.wrapping_sub(0xDC00) & 0x3FF);
                            }
                            let letter = char::from_u32(code);
                            let letter =
                                letter.ok_or("Expected value but found invalid unicode escape")?;
                            text.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes());
                        }
                        _ => return Err("Expected value but found invalid escape code".to_owned()),
                    }
                }
                byte => text.push(byte),
            }
        }
    }
}
