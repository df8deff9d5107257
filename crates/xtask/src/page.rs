//! Tables of `docs/correctness.md` that commands make: rows by key, between two marks.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::tools::{Outcome, root};

/// The rows of a table: what stands in the cell behind each key.
pub fn rows(table: &str) -> Result<BTreeMap<String, String>, String> {
    let (_, _, inside, _) = parts(table)?;
    let lines = inside.lines().filter(|line| line.starts_with('|')).skip(2);
    let cells = lines.filter_map(|line| line.strip_prefix('|')?.strip_suffix('|')?.split_once('|'));
    Ok(cells.map(|(key, rest)| (key.trim().to_owned(), rest.trim().to_owned())).collect())
}

/// Replaces or adds rows of a table. `rows` holds the cells behind the key; `keeps` tells which of
/// the other keys stay.
pub fn update(
    table: &str,
    rows: BTreeMap<String, Vec<String>>,
    keeps: impl Fn(&str) -> bool,
) -> Outcome {
    let (path, before, inside, after) = parts(table)?;
    let (begin, end) = marks(table);
    let mut lines = inside.lines().filter(|line| line.starts_with('|'));
    let head: Vec<&str> = lines.by_ref().take(2).collect();
    let mut all: BTreeMap<String, String> = BTreeMap::new();
    for line in lines {
        let key = line.split('|').nth(1).unwrap_or_default().trim().to_owned();
        if keeps(&key) {
            all.insert(key, line.to_owned());
        }
    }
    for (key, cells) in rows {
        let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
        all.insert(key.clone(), format!("| {key} | {} |", cells.join(" | ")));
    }
    let table: Vec<&str> = head.into_iter().chain(all.values().map(String::as_str)).collect();
    let text = format!("{before}{begin}{}\n{end}{after}", table.join("\n"));
    std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))
}

/// Where a table begins, and where it ends.
fn marks(table: &str) -> (String, String) {
    (format!("<!-- {table} -->\n"), format!("<!-- end of {table} -->"))
}

/// The page's path, and its text before, in and behind a table.
fn parts(table: &str) -> Result<(PathBuf, String, String, String), String> {
    let path = root().join("docs/correctness.md");
    let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let (begin, end) = marks(table);
    let parts = text.split_once(&begin).and_then(|(before, rest)| {
        rest.split_once(&end).map(|(inside, after)| (before.into(), inside.into(), after.into()))
    });
    let (before, inside, after) =
        parts.ok_or_else(|| format!("{}: no {begin:?}, or no {end:?}", path.display()))?;
    Ok((path, before, inside, after))
}
