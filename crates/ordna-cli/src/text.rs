//! Text on the command line: readable forms of bytes, the words of a line, tables.

use std::io::{self, Write};

use console::{measure_text_width, pad_str, truncate_str};
use ordna::tuple;

/// Returns a readable form of bytes: those that are not UTF-8 text become `\xNN`, and a tuple is
/// shown field by field.
pub fn readable(key: &[u8], is_tuple: bool) -> String {
    if is_tuple && let Ok(fields) = tuple::decode::<Vec<String>>(key) {
        let fields: Vec<_> = fields.iter().map(|field| readable(field.as_bytes(), false)).collect();
        return fields.join(" | ");
    }
    let mut text = String::new();
    for chunk in key.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                '\\' => text.push_str("\\\\"),
                character if character.is_control() => text.extend(character.escape_default()),
                character => text.push(character),
            }
        }
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text
}

/// Returns the text of an error and its causes. A cause that the error's own text already contains
/// is not repeated.
pub fn with_causes(error: &anyhow::Error) -> String {
    let causes = error.chain().skip(1).map(ToString::to_string);
    causes.fold(error.to_string(), |text, cause| {
        if text.contains(&cause) { text } else { format!("{text}: {cause}") }
    })
}

/// Splits a line into words. `"…"` understands `\n`, `\r`, `\t`, `\xNN` and a backslash before any
/// other character; `'…'` understands no escape except `\'`.
///
/// # Errors
/// A quote is not closed, or something other than a space follows it.
pub fn split_words(line: &str) -> Result<Vec<Vec<u8>>, String> {
    let mut words = Vec::new();
    let mut rest = line.chars().peekable();
    loop {
        while rest.next_if(|character| character.is_whitespace()).is_some() {}
        let Some(first) = rest.next() else { return Ok(words) };
        let mut word = Vec::new();
        let push = |character: char, word: &mut Vec<u8>| {
            word.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
        };
        if !matches!(first, '"' | '\'') {
            push(first, &mut word);
            while let Some(character) = rest.next_if(|character| !character.is_whitespace()) {
                push(character, &mut word);
            }
            words.push(word);
            continue;
        }
        loop {
            match rest.next() {
                None => return Err(format!("the quote {first} is not closed")),
                Some(character) if character == first => break,
                Some('\\') if first == '"' => match rest.next() {
                    None => return Err(format!("the quote {first} is not closed")),
                    Some('n') => word.push(b'\n'),
                    Some('r') => word.push(b'\r'),
                    Some('t') => word.push(b'\t'),
                    Some('x') => {
                        let mut digit = || rest.next().and_then(|digit| digit.to_digit(16));
                        let byte = digit().and_then(|high| Some(high * 16 + digit()?));
                        let byte = byte.ok_or("\\x is followed by two digits, as in \\x0a")?;
                        word.push(byte as u8);
                    }
                    Some(other) => push(other, &mut word),
                },
                Some('\\') if rest.peek() == Some(&'\'') => {
                    rest.next();
                    word.push(b'\'');
                }
                Some(other) => push(other, &mut word),
            }
        }
        if rest.peek().is_some_and(|next| !next.is_whitespace()) {
            return Err(format!("a space must follow the closing quote {first}"));
        }
        words.push(word);
    }
}

/// Prints rows of cells. On a terminal with `width` columns the cells are aligned under the column
/// names and cut at the right edge. Elsewhere tabs separate them, and nothing is cut.
pub fn print_table(
    out: &mut dyn Write,
    names: &[&str],
    rows: &[Vec<String>],
    width: Option<usize>,
) -> io::Result<()> {
    let Some(width) = width else {
        return rows.iter().try_for_each(|row| writeln!(out, "{}", row.join("\t")));
    };
    let widest = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(String::as_str);
        cells.chain([names[column]]).map(measure_text_width).max().unwrap_or(0)
    };
    let mut widths: Vec<usize> = (0..names.len()).map(widest).collect();
    let gaps = 2 * names.len().saturating_sub(1);
    // Each column except the last gets at most half of the line.
    let half = (width / 2).max(10);
    let mut left = width.saturating_sub(gaps);
    for (column, cells) in widths.iter_mut().enumerate() {
        *cells = (*cells).min(if column + 1 < names.len() { half } else { left.max(10) });
        left = left.saturating_sub(*cells);
    }
    let mut line = |cells: &mut dyn Iterator<Item = &str>| {
        let cells = cells.zip(&widths).map(|(cell, &width)| {
            pad_str(&truncate_str(cell, width, "…"), width, console::Alignment::Left, None)
                .into_owned()
        });
        writeln!(out, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())
    };
    line(&mut names.iter().copied())?;
    let rules: Vec<String> = widths.iter().map(|&width| "─".repeat(width)).collect();
    line(&mut rules.iter().map(String::as_str))?;
    rows.iter().try_for_each(|row| line(&mut row.iter().map(String::as_str)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_readable() {
        assert_eq!(readable("SE:Åhus".as_bytes(), false), "SE:Åhus");
        assert_eq!(readable(b"a\\\t\xff", false), "a\\\\\\t\\xff");
        assert_eq!(readable(&tuple::encode(&["SE", "Åhus"]), true), "SE | Åhus");
    }

    #[test]
    fn words_are_split_at_spaces_and_quotes() {
        let words = |line: &str| split_words(line).map(|words| words.join(&b'|'));
        assert_eq!(words(" set  k 'a b' "), Ok(b"set|k|a b".to_vec()));
        assert_eq!(
            words(r#""\xff\n\"" 'it\'s' "" Åhus"#),
            Ok(b"\xff\n\"|it's||\xc3\x85hus".to_vec())
        );
        assert_eq!(words("it's"), Ok(b"it's".to_vec()));
        for (line, reason) in [
            ("get 'a", "not closed"),
            ("get \"a\\", "not closed"),
            ("get 'a'b", "a space must follow"),
            ("get \"\\xg0\"", "two digits"),
        ] {
            assert!(split_words(line).unwrap_err().contains(reason), "{line}");
        }
    }

    #[test]
    fn tables_are_aligned_on_terminals_only() {
        let rows = [vec!["a".into(), "1".into()], vec!["Åhus".into(), "x".repeat(100)]];
        let print = |width| {
            let mut out = Vec::new();
            print_table(&mut out, &["key", "value"], &rows, width).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(print(None), format!("a\t1\nÅhus\t{}\n", "x".repeat(100)));
        let expected = "key   value\n────  ──────────────\na     1\nÅhus  xxxxxxxxxxxxx…\n";
        assert_eq!(print(Some(20)), expected);
    }
}
