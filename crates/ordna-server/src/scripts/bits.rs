//! The library `bit`: operations on the lower 32 bits of numbers.

use mlua::{Lua, MultiValue, Value};

/// A function of a library. It receives its arguments, and returns its results or an error text.
pub type LibraryFunction = fn(&Lua, MultiValue) -> Result<MultiValue, String>;

/// Maximum size in bytes of a text that a function of a library builds outside of Lua's memory. A
/// script may pass the same string or table many times.
pub const LONGEST: usize = 64 << 20;

/// Checks the length of a text that a function builds.
///
/// # Errors
/// Returns an error if the text is longer than [`LONGEST`].
pub fn check_length(bytes: usize) -> Result<(), String> {
    match bytes <= LONGEST {
        true => Ok(()),
        false => Err(format!("the result would exceed {LONGEST} bytes")),
    }
}

/// Returns a list with one result.
pub fn one(value: Value) -> MultiValue {
    MultiValue::from_iter([value])
}

pub const FUNCTIONS: &[(&str, LibraryFunction)] = &[
    ("tobit", |_, all| Ok(signed(number(&all, 0)?))),
    ("bnot", |_, all| Ok(signed(!number(&all, 0)?))),
    ("band", |_, all| fold(&all, |a, b| a & b)),
    ("bor", |_, all| fold(&all, |a, b| a | b)),
    ("bxor", |_, all| fold(&all, |a, b| a ^ b)),
    ("lshift", |_, all| shift(&all, |a, by| a << by)),
    ("rshift", |_, all| shift(&all, |a, by| a >> by)),
    ("arshift", |_, all| shift(&all, |a, by| (a as i32 >> by) as u32)),
    ("rol", |_, all| shift(&all, u32::rotate_left)),
    ("ror", |_, all| shift(&all, u32::rotate_right)),
    ("bswap", |_, all| Ok(signed(number(&all, 0)?.swap_bytes()))),
    ("tohex", |lua, all| {
        let value = number(&all, 0)?;
        let digits = if all.len() > 1 { number(&all, 1)? as i32 } else { 8 };
        let width = digits.unsigned_abs().min(8) as usize;
        let text = match digits < 0 {
            true => format!("{value:08X}"),
            false => format!("{value:08x}"),
        };
        lua.create_string(&text[8 - width..])
            .map(|text| one(Value::String(text)))
            .map_err(|error| error.to_string())
    }),
];

/// Maximum length in bytes of a text that is read as a number. A function may have thousands of
/// arguments, and reading one of megabytes takes milliseconds.
pub const LONGEST_NUMBER: usize = 64 << 10;

/// Returns the argument at a position as a number. Strings of digits count as numbers.
pub fn number_at(arguments: &MultiValue, at: usize) -> Result<f64, String> {
    match arguments.get(at) {
        Some(Value::Integer(number)) => Ok(*number as f64),
        Some(Value::Number(number)) => Ok(*number),
        Some(Value::String(text)) if text.as_bytes().len() > LONGEST_NUMBER => Err(format!(
            "bad argument #{} (number expected, got a text of more than {LONGEST_NUMBER} bytes)",
            at + 1
        )),
        Some(Value::String(text)) => {
            let text = String::from_utf8_lossy(&text.as_bytes()).trim().to_owned();
            text.parse()
                .map_err(|_| format!("bad argument #{} (number expected, got string)", at + 1))
        }
        other => {
            let kind = other.map_or("no value", Value::type_name);
            Err(format!("bad argument #{} (number expected, got {kind})", at + 1))
        }
    }
}

/// Returns the lower 32 bits of a number, after rounding.
fn number(arguments: &MultiValue, at: usize) -> Result<u32, String> {
    let number = number_at(arguments, at)?.round_ties_even();
    // Computed modulo 2^32, so that numbers of more than 64 bits work as well.
    Ok(number.rem_euclid(4_294_967_296.0) as u32)
}

fn signed(number: u32) -> MultiValue {
    one(Value::Number(f64::from(number as i32)))
}

fn fold(all: &MultiValue, operation: fn(u32, u32) -> u32) -> Result<MultiValue, String> {
    let mut result = number(all, 0)?;
    for at in 1..all.len() {
        result = operation(result, number(all, at)?);
    }
    Ok(signed(result))
}

fn shift(all: &MultiValue, operation: fn(u32, u32) -> u32) -> Result<MultiValue, String> {
    Ok(signed(operation(number(all, 0)?, number(all, 1)? & 31)))
}
