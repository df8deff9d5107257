//! The library `cjson`: values of Lua as JSON.

use mlua::{Lua, Table, Value};

use crate::scripts::bits::{LibraryFunction, one};
use crate::scripts::numbers::general;

/// Nesting of arrays and objects, as in Redis.
const DEEPEST: usize = 1000;
/// Digits of a number.
const DIGITS: usize = 14;

pub const FUNCTIONS: &[(&str, LibraryFunction)] = &[
    ("encode", |lua, all| {
        let value = all.front().filter(|_| all.len() == 1);
        let value = value.ok_or("bad argument #1 to 'encode' (expected 1 argument)")?;
        let mut text = Vec::new();
        encode(value, 0, &mut text)?;
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
        let mut parser = Parser { lua, text: &text, at: 0 };
        let value = parser.value(0)?;
        parser.skip();
        if parser.at < text.len() {
            return Err(parser.unexpected("the end"));
        }
        Ok(one(value))
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

fn encode_number(number: f64, out: &mut Vec<u8>) -> Result<(), String> {
    if !number.is_finite() {
        return Err("Cannot serialise number: must not be NaN or Inf".to_owned());
    }
    out.extend_from_slice(general(number, DIGITS).as_bytes());
    Ok(())
}

/// The length of a table that is an array: its greatest key, if all keys are positive integers. One that is
/// mostly holes is refused.
fn array_length(table: &Table) -> Result<Option<usize>, String> {
    let (mut most, mut count) = (0.0, 0.0);
    for pair in table.pairs::<Value, Value>() {
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
    if most > 10.0 && most > count * 2.0 {
        return Err("Cannot serialise table: excessively sparse array".to_owned());
    }
    Ok(Some(most as usize))
}

fn encode(value: &Value, depth: usize, out: &mut Vec<u8>) -> Result<(), String> {
    match value {
        Value::Nil => out.extend_from_slice(b"null"),
        value if value.is_null() => out.extend_from_slice(b"null"),
        Value::Boolean(true) => out.extend_from_slice(b"true"),
        Value::Boolean(false) => out.extend_from_slice(b"false"),
        Value::Integer(number) => encode_number(*number as f64, out)?,
        Value::Number(number) => encode_number(*number, out)?,
        Value::String(text) => escape(&text.as_bytes(), out),
        Value::Table(table) => {
            if depth >= DEEPEST {
                return Err(format!("Cannot serialise, excessive depth ({})", depth + 1));
            }
            match array_length(table)? {
                Some(length) => {
                    out.push(b'[');
                    for at in 1..=length {
                        if at > 1 {
                            out.push(b',');
                        }
                        let item: Value = table.raw_get(at).map_err(|error| error.to_string())?;
                        encode(&item, depth + 1, out)?;
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
                            Value::String(key) => escape(&key.as_bytes(), out),
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
                        encode(&item, depth + 1, out)?;
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
        if depth > DEEPEST {
            return Err(format!("Found too many nested data structures ({depth})"));
        }
        self.skip();
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
