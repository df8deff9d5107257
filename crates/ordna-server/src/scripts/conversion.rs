//! Replies of commands as values of Lua, and values of Lua as replies.

use mlua::{Lua, Result, Table, Value};

use crate::wire::reply::Replies;

/// Nesting of tables that a reply may have: beyond it a table that contains itself would never end.
const DEEPEST: usize = 256;

/// The error of a script that returns deeper tables.
const TOO_DEEP: &str = "ERR reached lua stack limit";

/// A reply that is read from its first byte on.
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

/// The value of Lua that a reply becomes. An error becomes a table with the field `err`.
pub fn to_lua(lua: &Lua, reply: &[u8]) -> Result<Value> {
    Reader { bytes: reply }.value(lua)
}

/// Writes a value as the reply of a script. `is_typed`: the script has chosen RESP3, so that booleans are
/// booleans.
pub fn to_reply(value: &Value, is_typed: bool, out: &mut Replies) {
    let start = out.bytes.len();
    if write(value, is_typed, 0, out).is_none() {
        out.bytes.truncate(start);
        out.error(TOO_DEEP);
    }
}

/// Returns `None` if the tables are too deep.
fn write(value: &Value, is_typed: bool, depth: usize, out: &mut Replies) -> Option<()> {
    if depth > DEEPEST {
        return None;
    }
    match value {
        Value::String(text) => out.bulk(&text.as_bytes()),
        Value::Integer(number) => out.integer(*number),
        Value::Number(number) => out.integer(*number as i64),
        Value::Boolean(is_true) if is_typed && out.resp3 => {
            out.bytes.extend_from_slice(if *is_true { b"#t\r\n" } else { b"#f\r\n" });
        }
        Value::Boolean(true) => out.integer(1),
        Value::Table(table) => return write_table(table, is_typed, depth, out),
        _ => out.null(),
    }
    Some(())
}

fn write_table(table: &Table, is_typed: bool, depth: usize, out: &mut Replies) -> Option<()> {
    let field = |name: &str| table.raw_get::<Value>(name).unwrap_or(Value::Nil);
    if let Value::String(text) = field("err") {
        out.error(String::from_utf8_lossy(&text.as_bytes()).trim_start_matches('-'));
        return Some(());
    }
    if let Value::String(text) = field("ok") {
        let text = String::from_utf8_lossy(&text.as_bytes()).into_owned();
        out.simple(&text.replace(['\r', '\n'], " "));
        return Some(());
    }
    if let number @ (Value::Number(_) | Value::Integer(_)) = field("double") {
        let number = match number {
            Value::Number(number) => number,
            Value::Integer(number) => number as f64,
            _ => 0.0,
        };
        let text = super::numbers::general(number, 17);
        match out.resp3 {
            true => out.bytes.extend_from_slice(format!(",{text}\r\n").as_bytes()),
            false => out.bulk(text.as_bytes()),
        }
        return Some(());
    }
    for (name, is_map) in [("map", true), ("set", false)] {
        if let Value::Table(items) = field(name) {
            // Not collected: only some thousand values can be held outside of Lua.
            let pairs = || items.pairs::<Value, Value>().flatten();
            if is_map {
                out.map(pairs().count())
            } else {
                out.set(pairs().count())
            }
            for (key, value) in pairs() {
                write(&key, is_typed, depth + 1, out)?;
                if is_map {
                    write(&value, is_typed, depth + 1, out)?;
                }
            }
            return Some(());
        }
    }
    if let Value::String(text) = field("big_number") {
        let text = String::from_utf8_lossy(&text.as_bytes()).replace(['\r', '\n'], " ");
        match out.resp3 {
            true => out.bytes.extend_from_slice(format!("({text}\r\n").as_bytes()),
            false => out.bulk(text.as_bytes()),
        }
        return Some(());
    }
    if let Value::Table(verbatim) = field("verbatim_string")
        && let Ok(Value::String(text)) = verbatim.raw_get::<Value>("string")
    {
        match str::from_utf8(&text.as_bytes()) {
            Ok(text) => out.text(text),
            Err(_) => out.bulk(&text.as_bytes()),
        }
        return Some(());
    }
    // Up to the first nil.
    let item = |at: usize| table.raw_get::<Value>(at).unwrap_or(Value::Nil);
    let len = (1..).take_while(|at| !item(*at).is_nil()).count();
    out.array(len);
    (1..=len).try_for_each(|at| write(&item(at), is_typed, depth + 1, out))
}
