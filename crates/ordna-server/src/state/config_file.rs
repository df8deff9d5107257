//! The table `[settings]` of a configuration file, which `CONFIG REWRITE` changes.
//!
//! Only lines of that table are changed or added. Everything else in the file, including comments,
//! stays as it is.

use std::collections::BTreeMap;

/// Name of the table.
const TABLE: &str = "settings";

/// Returns the name of the table that a line begins.
fn table(line: &str) -> Option<&str> {
    let name = line.trim_start().strip_prefix('[')?;
    Some(name.split(']').next().unwrap_or_default().trim())
}

/// Returns the key of a line `key = value`, and the value with what follows it.
fn pair(line: &str) -> Option<(&str, &str)> {
    let (key, rest) = line.split_once('=')?;
    let key = key.trim();
    let bare = key.trim_matches(|c| c == '"' || c == '\'');
    (!key.starts_with('#')).then_some((bare, rest.trim_start()))
}

/// Returns the comment after a value, with its `#`.
fn comment(value: &str) -> Option<&str> {
    let mut quote = None;
    let mut escaped = false;
    for (at, c) in value.char_indices() {
        match (quote, c) {
            (None, '#') => return value.get(at..),
            (None, '"' | '\'') => quote = Some(c),
            (Some('"'), '\\') if !escaped => {
                escaped = true;
                continue;
            }
            (Some(open), close) if open == close && !escaped => quote = None,
            _ => {}
        }
        escaped = false;
    }
    None
}

/// Returns a TOML string.
fn quoted(text: &str) -> String {
    let mut quoted = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => quoted.push_str(&format!("\\u{:04X}", u32::from(c))),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

/// Returns the text of a file with these settings.
///
/// # Errors
/// The file contains multi-line strings.
pub fn rewritten(text: &str, settings: &BTreeMap<String, String>) -> Result<String, String> {
    if text.contains("\"\"\"") || text.contains("'''") {
        return Err("the file has strings of several lines, which CONFIG REWRITE cannot keep; \
                    write them on one line"
            .to_owned());
    }
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let begin = lines.iter().position(|line| table(line) == Some(TABLE));
    let begin = begin.unwrap_or_else(|| {
        if !settings.is_empty() {
            if lines.last().is_some_and(|line| !line.trim().is_empty()) {
                lines.push(String::new());
            }
            lines.push(format!("[{TABLE}]"));
        }
        lines.len().saturating_sub(1)
    });
    let rest = lines.iter().skip(begin + 1);
    let end = begin + 1 + rest.take_while(|line| table(line).is_none()).count();
    let mut missing = settings.clone();
    for line in lines.iter_mut().take(end).skip(begin + 1) {
        let Some((key, value)) = pair(line) else { continue };
        let Some(wanted) = missing.remove(&key.to_ascii_lowercase()) else { continue };
        let after = comment(value).map_or(String::new(), |comment| format!(" {comment}"));
        *line = format!("{key} = {}{after}", quoted(&wanted));
    }
    // New lines are inserted before the blank lines that separate the next table.
    let filled = lines.iter().take(end).rposition(|line| !line.trim().is_empty());
    let at = filled.map_or(end, |last| last + 1).min(lines.len());
    let new = missing.iter().map(|(name, value)| format!("{name} = {}", quoted(value)));
    lines.splice(at..at, new);
    lines.push(String::new());
    Ok(lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn only_lines_of_the_table_change() {
        let text = "# mine\nport = 7000 # not redis\'\nmaxmemory = 1\n\n[settings]\n\
                    timeout = 300   # five minutes\n # hz = 3\n\"Save\" = \"a # \\\" b\"# c\n\n[other]\ntimeout = 3\n";
        let wanted = settings(&[("timeout", "7"), ("save", ""), ("requirepass", "a\"\\\n")]);
        let new = rewritten(text, &wanted).unwrap();
        assert_eq!(
            new,
            "# mine\nport = 7000 # not redis\'\nmaxmemory = 1\n\n[settings]\n\
             timeout = \"7\" # five minutes\n # hz = 3\nSave = \"\" # c\n\
             requirepass = \"a\\\"\\\\\\u000A\"\n\n[other]\ntimeout = 3\n"
        );
        assert_eq!(rewritten(&new, &wanted).unwrap(), new);
    }

    #[test]
    fn a_file_without_the_table_gets_it() {
        let wanted = settings(&[("maxmemory", "100")]);
        let table = "[settings]\nmaxmemory = \"100\"\n";
        assert_eq!(rewritten("", &wanted).unwrap(), table);
        assert_eq!(rewritten("port = 1", &wanted).unwrap(), format!("port = 1\n\n{table}"));
        assert_eq!(rewritten("port = 1\n", &settings(&[])).unwrap(), "port = 1\n");
        assert!(rewritten("a = \"\"\"\n[settings]\n\"\"\"", &wanted).is_err());
    }
}
