//! Conversion of commands' replies to Lua values, and of Lua values to replies.

use mlua::{Lua, Result, Table, Value};

use crate::scripts::control::Work;
use crate::wire::reply::Replies;

/// Maximum nesting depth of tables in a reply. Without it, a table that contains itself would never
/// end.
const DEEPEST: usize = 256;

/// Error text of a script that returns a deeper table.
const TOO_DEEP: &str = "ERR reached lua stack limit";

/// Reads a reply from its first byte on.
struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    fn line(&mut self) -> (u8, &'a [u8]) {
        let end = self.bytes.windows(2).position(|pair| pair == b"\r\n");
        let end = end.unwrap_or(self.bytes.len());
        let line = &self.bytes[..end];
        self.bytes = self.bytes.get(end + 2..).unwrap_or_default();
        line.split_first().map_or((b'_', &[][..]), |(sign, rest)| (*sign, rest))
    }

    fn take(&mut self, length: usize) -> &'a [u8] {
        let end = length.min(self.bytes.len());
        let taken = &self.bytes[..end];
        self.bytes = self.bytes.get(end + 2..).unwrap_or_default();
        taken
    }

    fn value(&mut self, lua: &Lua) -> Result<Value> {
        let (sign, line) = self.line();
        let number = || std::str::from_utf8(line).ok().and_then(|text| text.parse::<i64>().ok());
        let field = |name: &str, value: Value| -> Result<Value> {
            let table = lua.create_table_with_capacity(0, 1)?;
            table.raw_set(name, value)?;
            Ok(Value::Table(table))
        };
        let text = |bytes: &[u8]| lua.create_string(bytes).map(Value::String);
        match (sign, number()) {
            (b':', Some(number)) => Ok(Value::Number(number as f64)),
            (b'$', Some(length @ 0..)) => text(self.take(length as usize)),
            (b'$' | b'*', _) if line == b"-1" => Ok(Value::Boolean(false)),
            (b'*', Some(count)) => {
                let table = lua.create_table_with_capacity(count.clamp(0, 1 << 16) as usize, 0)?;
                for at in 1..=count {
                    let item = self.value(lua)?;
                    table.raw_set(at, item)?;
                }
                Ok(Value::Table(table))
            }
            (b'%' | b'~', Some(count)) => {
                let table = lua.create_table()?;
                for _ in 0..count {
                    let key = self.value(lua)?;
                    let value = if sign == b'%' { self.value(lua)? } else { Value::Boolean(true) };
                    table.raw_set(key, value)?;
                }
                field(if sign == b'%' { "map" } else { "set" }, Value::Table(table))
            }
            (b'+', _) => field("ok", text(line)?),
            (b'-', _) => field("err", text(line)?),
            (b',', _) => {
                let number = std::str::from_utf8(line).ok().and_then(|text| text.parse().ok());
                field("double", Value::Number(number.unwrap_or(f64::NAN)))
            }
            (b'#', _) => Ok(Value::Boolean(line == b"t")),
            (b'(', _) => field("big_number", text(line)?),
            (b'=', Some(length)) => {
                let all = self.take(usize::try_from(length).unwrap_or(0));
                let table = lua.create_table()?;
                table.raw_set("format", text(all.get(..3).unwrap_or_default())?)?;
                table.raw_set("string", text(all.get(4..).unwrap_or_default())?)?;
                field("verbatim_string", Value::Table(table))
            }
            _ => Ok(Value::Nil),
        }
    }
}

/// Converts a reply to a Lua value. An error becomes a table with the field `err`.
pub fn to_lua(lua: &Lua, reply: &[u8]) -> Result<Value> {
    Reader { bytes: reply }.value(lua)
}

/// Writes a value as the reply of a script, with at most `most` bytes. `is_typed` says that the
/// script has chosen RESP3, so that booleans are written as booleans.
pub fn to_reply(value: &Value, is_typed: bool, most: usize, work: &mut Work, out: &mut Replies) {
    let start = out.bytes.len();
    let mut writer = Writer { is_typed, most, end: start.saturating_add(most), work, out };
    if let Err(error) = writer.write(value, 0) {
        out.bytes.truncate(start);
        out.error(error);
    }
}

type Written = std::result::Result<(), String>;

fn failed(error: mlua::Error) -> String {
    format!("ERR {error}")
}

/// Writes a reply. A table that is referenced many times is written many times.
struct Writer<'a> {
    is_typed: bool,
    most: usize,
    /// Position after which the reply is too large.
    end: usize,
    work: &'a mut Work,
    out: &'a mut Replies,
}

impl Writer<'_> {
    /// Returns an error if there is no room for this number of bytes.
    fn check(&self, bytes: usize) -> Written {
        match self.out.bytes.len().saturating_add(bytes) <= self.end {
            true => Ok(()),
            false => Err(format!("ERR the reply would exceed {} bytes; ask for less", self.most)),
        }
    }

    fn write(&mut self, value: &Value, depth: usize) -> Written {
        if depth > DEEPEST {
            return Err(TOO_DEEP.to_owned());
        }
        self.work.step().map_err(|why| format!("ERR {why}"))?;
        self.check(0)?;
        match value {
            Value::String(text) => self.bulk(&text.as_bytes())?,
            Value::Integer(number) => self.out.integer(*number),
            Value::Number(number) => self.out.integer(*number as i64),
            Value::Boolean(is_true) if self.is_typed && self.out.resp3 => {
                let text: &[u8] = if *is_true { b"#t\r\n" } else { b"#f\r\n" };
                self.out.bytes.extend_from_slice(text);
            }
            Value::Boolean(true) => self.out.integer(1),
            Value::Table(table) => return self.write_table(table, depth),
            _ => self.out.null(),
        }
        Ok(())
    }

    fn bulk(&mut self, text: &[u8]) -> Written {
        self.check(text.len())?;
        self.out.bulk(text);
        Ok(())
    }

    fn write_table(&mut self, table: &Table, depth: usize) -> Written {
        let field = |name: &str| table.raw_get::<Value>(name).map_err(failed);
        if let Value::String(text) = field("err")? {
            self.check(text.as_bytes().len())?;
            self.out.error(String::from_utf8_lossy(&text.as_bytes()).trim_start_matches('-'));
            return Ok(());
        }
        if let Value::String(text) = field("ok")? {
            self.check(text.as_bytes().len())?;
            let text = String::from_utf8_lossy(&text.as_bytes()).into_owned();
            self.out.simple(&text.replace(['\r', '\n'], " "));
            return Ok(());
        }
        if let number @ (Value::Number(_) | Value::Integer(_)) = field("double")? {
            let number = match number {
                Value::Number(number) => number,
                Value::Integer(number) => number as f64,
                _ => 0.0,
            };
            let text = super::numbers::general(number, 17);
            match self.out.resp3 {
                true => self.out.bytes.extend_from_slice(format!(",{text}\r\n").as_bytes()),
                false => self.out.bulk(text.as_bytes()),
            }
            return Ok(());
        }
        for (name, is_map) in [("map", true), ("set", false)] {
            if let Value::Table(items) = field(name)? {
                return self.write_pairs(&items, is_map, depth);
            }
        }
        if let Value::String(text) = field("big_number")? {
            self.check(text.as_bytes().len())?;
            let text = String::from_utf8_lossy(&text.as_bytes()).replace(['\r', '\n'], " ");
            match self.out.resp3 {
                true => self.out.bytes.extend_from_slice(format!("({text}\r\n").as_bytes()),
                false => self.out.bulk(text.as_bytes()),
            }
            return Ok(());
        }
        if let Value::Table(verbatim) = field("verbatim_string")?
            && let Value::String(text) = verbatim.raw_get::<Value>("string").map_err(failed)?
        {
            self.check(text.as_bytes().len())?;
            match str::from_utf8(&text.as_bytes()) {
                Ok(text) => self.out.text(text),
                Err(_) => self.out.bulk(&text.as_bytes()),
            }
            return Ok(());
        }
        // Only items before the first nil count. They are read twice instead of collected, because
        // Lua has room for only some thousand references.
        let mut count = 0;
        while !table.raw_get::<Value>(count + 1).map_err(failed)?.is_nil() {
            self.work.step().map_err(|why| format!("ERR {why}"))?;
            count += 1;
        }
        self.out.array(count);
        for at in 1..=count {
            let item: Value = table.raw_get(at).map_err(failed)?;
            self.write(&item, depth + 1)?;
        }
        Ok(())
    }

    /// Writes the keys of a table or, for a map, its keys and values.
    fn write_pairs(&mut self, items: &Table, is_map: bool, depth: usize) -> Written {
        let mut count = 0;
        for pair in items.pairs::<Value, Value>() {
            pair.map_err(failed)?;
            self.work.step().map_err(|why| format!("ERR {why}"))?;
            count += 1;
        }
        if is_map {
            self.out.map(count);
        } else {
            self.out.set(count);
        }
        for pair in items.pairs::<Value, Value>() {
            let (key, value) = pair.map_err(failed)?;
            self.write(&key, depth + 1)?;
            if is_map {
                self.write(&value, depth + 1)?;
            }
        }
        Ok(())
    }
}
