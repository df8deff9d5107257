//! Checks the links of the pages: files and headings must exist. Files that pages name in code
//! spans must exist, too. Links to other sites are not followed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

/// Returns the top folder of the repository.
fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns all pages below a folder, except in folders of builds and hidden folders other than
/// `.github`.
fn pages(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a readable folder") {
        let path = entry.expect("a readable folder").path();
        let name = path.file_name().expect("an entry has a name").to_string_lossy().into_owned();
        if path.is_dir() {
            let is_hidden = name.starts_with('.') && name != ".github";
            if !is_hidden && name != "target" {
                found.extend(pages(&path));
            }
        } else if name.ends_with(".md") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Returns the lines of a page that are outside of code blocks.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut inside = false;
    text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        inside ^= is_fence;
        !inside && !is_fence
    })
}

/// Returns the parts of a line outside of code spans, and the code spans.
fn spans(line: &str) -> (String, Vec<&str>) {
    let parts: Vec<&str> = line.split('`').collect();
    // A span needs a second backtick.
    let closed = parts.len() - 1 - (parts.len() - 1) % 2;
    let (mut text, mut code) = (String::new(), Vec::new());
    for (at, part) in parts.into_iter().enumerate() {
        if at % 2 == 1 && at < closed {
            code.push(part);
        } else {
            text.push_str(part);
        }
    }
    (text, code)
}

/// Returns the targets of the links of a text.
fn targets(text: &str) -> Vec<&str> {
    let links = text.split("](").skip(1);
    links.filter_map(|rest| rest.split([')', ' ']).next()).collect()
}

/// Returns the anchor that code hosts assign to a heading.
fn anchor(heading: &str) -> String {
    let mut text = heading.replace('`', "");
    // The text of a link is part of the anchor.
    while let Some((before, rest)) = text.split_once("](") {
        let after = rest.split_once(')').map_or("", |(_, after)| after);
        text = format!("{before}{after}");
    }
    let kept = text.trim().chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

/// Returns the anchors of the headings of a page. Equal ones are numbered.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut counts = BTreeMap::<String, usize>::new();
    let headings = prose(text).filter(|line| line.starts_with('#'));
    let each = headings.map(|line| {
        let anchor = anchor(line.trim_start_matches('#'));
        let count = counts.entry(anchor.clone()).or_default();
        *count += 1;
        if *count == 1 { anchor } else { format!("{anchor}-{}", *count - 1) }
    });
    each.collect()
}

/// Returns a path without `..` and `.`, which need not exist.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(plain.pop()),
            Component::CurDir => {}
            part => plain.push(part),
        }
    }
    plain
}

#[test]
fn links_lead_somewhere() {
    let top = top().canonicalize().expect("the repository");
    let pages = pages(&top);
    assert!(pages.len() > 40, "only {} pages found", pages.len());
    let text = |path: &Path| std::fs::read_to_string(path).expect("a readable page");
    let (mut dead, mut count) = (Vec::new(), 0);
    for page in &pages {
        let content = text(page);
        for line in prose(&content) {
            let line = spans(line).0;
            for target in targets(&line) {
                if target.contains("://") || target.starts_with("mailto:") {
                    continue;
                }
                count += 1;
                let (path, fragment) = target.split_once('#').unwrap_or((target, ""));
                let of = match path {
                    "" => page.clone(),
                    path => plain(&page.parent().expect("a page is in a folder").join(path)),
                };
                let is_page = of.extension().is_some_and(|end| end == "md");
                let why = match of.exists() {
                    false => "no such file",
                    true if !fragment.is_empty() && is_page => {
                        if anchors(&text(&of)).contains(fragment) {
                            continue;
                        }
                        "no such heading"
                    }
                    true => continue,
                };
                let page = page.strip_prefix(&top).expect("a page of the repository");
                dead.push(format!("{}: {target}: {why}", page.display()));
            }
        }
    }
    assert!(count > 200, "only {count} links found");
    assert!(dead.is_empty(), "dead links:\n{}", dead.join("\n"));
}

/// If a page names a file by its path from the top or from `crates`, the file must exist. The
/// changelog and the papers' pages also name former files.
#[test]
fn files_that_pages_name_exist() {
    let top = top().canonicalize().expect("the repository");
    let is_path = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
    let mut missing = Vec::new();
    for page in pages(&top) {
        let page = page.strip_prefix(&top).expect("a page of the repository");
        if page == Path::new("CHANGELOG.md") || page.starts_with("docs/papers") {
            continue;
        }
        let content = std::fs::read_to_string(top.join(page)).expect("a readable page");
        for line in prose(&content) {
            for span in spans(line).1 {
                let is_file = span.ends_with(".rs") || span.ends_with('/');
                let Some((first, _)) = span.split_once('/') else { continue };
                // `NAME` represents a name that the reader chooses.
                let is_form = span.contains("NAME");
                if !is_file || is_form || !span.chars().all(is_path) || first.is_empty() {
                    continue;
                }
                let mut places = [top.clone(), top.join("crates"), top.join("lab")].into_iter();
                // Other paths begin in a crate.
                let Some(place) = places.find(|place| place.join(first).is_dir()) else { continue };
                if !place.join(span).exists() {
                    missing.push(format!("{}: {span}", page.display()));
                }
            }
        }
    }
    assert!(missing.is_empty(), "files that do not exist:\n{}", missing.join("\n"));
}

#[test]
fn anchors_are_those_of_code_hosts() {
    assert_eq!(anchor(" The log, and BGSAVE, beside Redis"), "the-log-and-bgsave-beside-redis");
    assert_eq!(anchor(" `SET`s [here](a.md)"), "sets-here");
    assert_eq!(spans("a `b` c `d").1, ["b"]);
    assert_eq!(targets("[a](b.md) and [c](d#e)"), ["b.md", "d#e"]);
    let twice = anchors("# One\n```\n# no\n```\n# One\n");
    assert_eq!(twice.into_iter().collect::<Vec<_>>(), ["one", "one-1"]);
}
