//! Lua functions with any number of numeric arguments, which refuse long texts.
//!
//! Lua accepts a text of digits as a number. Reading one of a hundred megabytes takes a tenth of a
//! second, and these functions read all of their arguments, possibly thousands, without an
//! instruction in between at which the script could be ended. So they refuse long texts as numbers.

use std::collections::HashSet;

use mlua::{Function, Lua, MultiValue, Table, Value};

use crate::scripts::bits::{LONGEST_NUMBER, LibraryFunction};

pub const OF_MATH: &[(&str, LibraryFunction)] =
    &[("max", |lua, all| call(lua, "max", all)), ("min", |lua, all| call(lua, "min", all))];

pub const OF_STRING: &[(&str, LibraryFunction)] = &[
    ("char", |lua, all| call(lua, "char", all)),
    ("format", |lua, all| {
        // `%s` and `%q` accept texts of any length.
        let format =
            all.front().and_then(Value::as_string).map(|format| format.as_bytes().to_vec());
        if all.iter().skip(1).any(is_long) {
            let numbers = numbers_of(&format.unwrap_or_default());
            check(&all, "format", (1..all.len()).filter(|at| numbers.contains(at)))?;
        }
        call_unchecked(lua, "format", all)
    }),
];

/// Stores the Lua functions that these functions replace.
///
/// # Errors
/// Returns an error if there is not enough memory.
pub fn keep(lua: &Lua) -> mlua::Result<()> {
    for (library, functions) in [("math", OF_MATH), ("string", OF_STRING)] {
        let library: Table = lua.globals().get(library)?;
        for (name, _) in functions {
            lua.set_named_registry_value(&registered(name), library.get::<Function>(*name)?)?;
        }
    }
    Ok(())
}

fn registered(name: &str) -> String {
    format!("ordna.{name}")
}

fn is_long(value: &Value) -> bool {
    value.as_string().is_some_and(|text| text.as_bytes().len() > LONGEST_NUMBER)
}

/// Returns an error if there is a long text at one of these positions.
fn check(
    arguments: &MultiValue,
    name: &str,
    mut numbers: impl Iterator<Item = usize>,
) -> Result<(), String> {
    match numbers.find(|at| arguments.get(*at).is_some_and(is_long)) {
        None => Ok(()),
        Some(at) => Err(format!(
            "bad argument #{} to '{name}' (number expected, got a text of more than {LONGEST_NUMBER} bytes)",
            at + 1
        )),
    }
}

/// Returns the positions of the arguments that a format shows as numbers. The format itself is
/// argument 0.
fn numbers_of(format: &[u8]) -> HashSet<usize> {
    let (mut numbers, mut at) = (HashSet::new(), 0);
    let mut bytes = format.iter();
    while bytes.any(|byte| *byte == b'%') {
        let is_option =
            |byte: &&u8| !matches!(byte, b'-' | b'+' | b' ' | b'#' | b'.' | b'0'..=b'9');
        match bytes.find(is_option) {
            Some(b'%') => {}
            kind => {
                at += 1;
                if !matches!(kind, Some(b's' | b'q')) {
                    numbers.insert(at);
                }
            }
        }
    }
    numbers
}

fn call(lua: &Lua, name: &str, arguments: MultiValue) -> Result<MultiValue, String> {
    check(&arguments, name, 0..arguments.len())?;
    call_unchecked(lua, name, arguments)
}

/// Calls the Lua function. Adds its name to an error, because Lua does not know the name here.
fn call_unchecked(lua: &Lua, name: &str, arguments: MultiValue) -> Result<MultiValue, String> {
    let function = lua.named_registry_value::<Function>(&registered(name));
    function.and_then(|function| function.call(arguments)).map_err(|error| match error {
        mlua::Error::RuntimeError(text) => {
            let text = text.split("\nstack traceback:").next().unwrap_or_default();
            text.replace("'?'", &format!("'{name}'"))
        }
        mlua::Error::MemoryError(_) => "not enough memory".to_owned(),
        other => other.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_format_names_its_numbers() {
        for (format, numbers) in [
            ("%d", &[1][..]),
            ("%s%%%5.2f %q%x", &[2, 4]),
            ("%", &[1]),
            ("a%-10sb%c", &[2]),
            ("%%", &[]),
        ] {
            let mut found: Vec<_> = numbers_of(format.as_bytes()).into_iter().collect();
            found.sort_unstable();
            assert_eq!(found, numbers, "{format}");
        }
    }
}
