//! Hand-made mistakes: each is put into a copy of the sources, and a test must notice.
//!
//! `crates/xtask/mutations/*.txt` hold them, one file for each structure:
//!
//! ```text
//! package ordna-papers
//! test skiplist
//! file lab/ordna-papers/src/skiplist/raw.rs
//!
//! what the mistake is
//! - text around [[the text to replace]] that occurs once in the file
//! + its replacement
//! ```
//!
//! White space matches any white space. `test` names a test program, or `lib` for the unit tests,
//! and, if wanted, a filter. A line `~ why` behind a mistake says why no test can notice it; such a
//! one is not run.
//!
//! All mistakes stand in one copy, each behind `crate::mutant(number)`: the copy is built once, and
//! `ORDNA_MUTANT` picks one. A build for each would take hours. So both texts are expressions of
//! one type, or statements if they end with `;` or `}`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::faults::{LIB, Part, Verdict, build_in, judge};
use crate::page;
use crate::tools::{Outcome, root};

/// How long no test of a suite without a mistake may end.
const CLEAN_LIMIT: Duration = Duration::from_secs(120);

/// Answers whether a mistake is picked; stands in each package of the copy.
const SWITCH: &str = r#"
/// Whether `ORDNA_MUTANT` is this number.
#[doc(hidden)]
pub fn mutant(number: usize) -> bool {
    static PICKED: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
    let picked = || std::env::var("ORDNA_MUTANT").ok().and_then(|number| number.parse().ok());
    *PICKED.get_or_init(|| picked().unwrap_or(0)) == number
}
"#;

/// The mistakes of one structure, and the tests that look for them.
struct Group {
    name: String,
    package: String,
    /// Test programs and filters.
    tests: Vec<(String, String)>,
    mistakes: Vec<Mistake>,
}

struct Mistake {
    number: usize,
    what: String,
    file: String,
    old: String,
    new: String,
    /// Why it is none.
    equivalent: Option<String>,
}

impl Mistake {
    /// The text of its file, and where the mistake is to stand there.
    fn place(&self) -> Result<(String, Range<usize>), String> {
        let text = read(&root().join(&self.file))?;
        let at = find(&text, &self.old)?;
        Ok((text, at))
    }
}

/// Which mistakes of a group are tried: all, some by their numbers, or so many.
enum Choice {
    All,
    These(Vec<usize>),
    Some(usize),
}

impl Choice {
    /// Whether the nth of a group's mistakes is tried, counted from 1.
    fn takes(&self, nth: usize, of: usize) -> bool {
        match self {
            Self::All => true,
            Self::These(these) => these.contains(&nth),
            // Evenly spread over the group's files.
            Self::Some(count) => nth * count / of != (nth - 1) * count / of,
        }
    }
}

/// The mistakes of the groups whose name contains `part`, or one of its parts between commas: all,
/// those whose numbers stand behind a colon, or as many of each group as stand behind a slash.
pub fn run(part: &str) -> Outcome {
    let number = |text: &str| text.parse().map_err(|_| format!("{text:?} is no number"));
    let (part, choice) = match (part.split_once(':'), part.split_once('/')) {
        (Some((part, these)), _) => {
            (part, Choice::These(these.split(',').map(number).collect::<Result<_, _>>()?))
        }
        (None, Some((part, count))) => (part, Choice::Some(number(count)?)),
        (None, None) => (part, Choice::All),
    };
    let is_wanted = |name: &str| part.split(',').any(|part| name.contains(part));
    let groups: Vec<Group> = groups()?.into_iter().filter(|g| is_wanted(&g.name)).collect();
    if groups.is_empty() {
        return Err(format!("no file of mutations has {part:?} in its name"));
    }
    let copy = root().join("target/mutants/copy");
    std::fs::create_dir_all(&copy).map_err(|error| format!("{}: {error}", copy.display()))?;
    // Another run would plant its mistakes in the copy from which this one is built.
    let lock = std::fs::File::create(copy.with_file_name("lock"));
    let lock = lock.map_err(|error| format!("{}: {error}", copy.display()))?;
    lock.try_lock().map_err(|error| format!("another run is at work: {error}"))?;
    renumber()?;
    count()?;
    plant(&copy, &groups)?;
    let mut missed = Vec::new();
    for group in &groups {
        let mut rows = BTreeMap::new();
        if let Err(why) = judge_group(group, &copy, &choice, &mut rows, &mut missed) {
            missed.push(format!("{}, as {why}", group.name));
            continue;
        }
        let own = format!("{} ", group.name);
        let is_all = matches!(choice, Choice::All);
        page::update("mutations", rows, |key| !is_all || !key.starts_with(&own))?;
    }
    count()?;
    if missed.is_empty() { Ok(()) } else { Err(format!("nothing notices {}", missed.join(", "))) }
}

/// Gives the page's rows the numbers that their mistakes have now: lists change. Drops the rows of
/// mistakes that are no more.
fn renumber() -> Outcome {
    let mut results = BTreeMap::new();
    for (key, cells) in page::rows("mutations")? {
        if let (Some((list, _)), Some((what, result))) =
            (key.split_once(' '), cells.split_once(" | "))
        {
            results.insert((list.to_owned(), what.to_owned()), result.to_owned());
        }
    }
    let mut rows = BTreeMap::new();
    for group in groups()? {
        for (at, mistake) in group.mistakes.iter().enumerate() {
            if let Some(result) = results.remove(&(group.name.clone(), mistake.what.clone())) {
                rows.insert(key(&group, at + 1), vec![mistake.what.clone(), result]);
            }
        }
    }
    page::update("mutations", rows, |_| false)
}

/// Counts the mistakes of each list, and of all, by what became of them.
fn count() -> Outcome {
    let tried = page::rows("mutations")?;
    let mut counts: BTreeMap<String, [usize; 3]> = BTreeMap::new();
    for group in groups()? {
        for nth in 1..=group.mistakes.len() {
            let row = tried.get(&key(&group, nth));
            let result = row.and_then(|row| row.rsplit(" | ").next());
            let column = match result {
                None | Some("**nothing**") => 2,
                Some(result) if result.starts_with("not tried") => 2,
                Some(result) if result.starts_with("equivalent") => 1,
                Some(_) => 0,
            };
            for list in [&*group.name, "all"] {
                counts.entry(list.to_owned()).or_default()[column] += 1;
            }
        }
    }
    let cells = |[noticed, equivalent, unnoticed]: [usize; 3]| {
        let share = 100.0 * noticed as f64 / (noticed + unnoticed).max(1) as f64;
        let counts = [noticed, equivalent, unnoticed].map(|count| count.to_string());
        [&counts[..], &[format!("{share:.1} %")]].concat()
    };
    let rows = counts.into_iter().map(|(list, counts)| (list, cells(counts)));
    page::update("counts of mutations", rows.collect(), |_| false)
}

/// The key of a group's nth mistake on the page.
fn key(group: &Group, nth: usize) -> String {
    format!("{} {nth:02}", group.name)
}

fn judge_group(
    group: &Group,
    copy: &Path,
    choice: &Choice,
    rows: &mut BTreeMap<String, Vec<String>>,
    missed: &mut Vec<String>,
) -> Outcome {
    let programs: BTreeSet<&str> = group.tests.iter().map(|(program, _)| &**program).collect();
    let programs: Vec<&str> = programs.into_iter().collect();
    // The checkout's own: dependencies are built once for both.
    let target = root().join("target").display().to_string();
    let built = build_in(copy, "", &target, &[&group.package], &programs)?;
    let mut suite = Vec::new();
    for (program, filter) in &group.tests {
        let stem = if program == LIB { group.package.replace('-', "_") } else { program.clone() };
        let path = built.iter().find(|built| is_program(&built.path, &stem));
        let path = path.ok_or_else(|| format!("{}: no program {program}", group.name))?;
        suite.push(Part { program: path.path.clone(), filter: filter.clone() });
    }
    let clean = judge(&suite, ("ORDNA_MUTANT", "0"), CLEAN_LIMIT)?;
    let limit = clean.limit();
    println!("{}: {:.1} s without a mistake", group.name, clean.took.as_secs_f64());
    if let Some(what) = clean.verdict.name() {
        return Err(format!("{}: without any mistake already: {what}", group.name));
    }
    for mistake in &group.mistakes {
        let nth = mistake.number - group.mistakes[0].number + 1;
        if !choice.takes(nth, group.mistakes.len()) {
            continue;
        }
        let key = key(group, nth);
        let (result, took) = if let Some(why) = &mistake.equivalent {
            (format!("equivalent: {why}"), 0.0)
        } else if let Err(why) = mistake.place() {
            missed.push(key.clone());
            (format!("not tried: the text {why}"), 0.0)
        } else {
            let picked = mistake.number.to_string();
            let run = judge(&suite, ("ORDNA_MUTANT", picked.as_str()), limit)?;
            if matches!(run.verdict, Verdict::Nothing) {
                missed.push(key.clone());
            }
            let result = run.verdict.name().unwrap_or_else(|| "**nothing**".to_owned());
            (result, run.took.as_secs_f64())
        };
        println!("{key}  {took:>6.1}  {:<60}  {result}", mistake.what);
        rows.insert(key, vec![mistake.what.clone(), result]);
        // At once: what stands there stays if the run breaks off.
        page::update("mutations", rows.clone(), |_| true)?;
    }
    Ok(())
}

/// Whether a built program, `name-hash`, is of this name.
fn is_program(path: &Path, name: &str) -> bool {
    let file = path.file_name().map(|name| name.to_string_lossy().into_owned());
    file.is_some_and(|file| file.rsplit_once('-').is_some_and(|(stem, _)| stem == name))
}

/// Makes the copy hold what the checkout holds, with all mistakes, each behind its number.
fn plant(copy: &Path, groups: &[Group]) -> Outcome {
    let listed = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .map_err(|error| format!("git: {error}"))?;
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let mut files: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    for file in listed.lines() {
        // One that was deleted is still listed.
        if let Ok(text) = std::fs::read(root().join(file)) {
            files.insert(file.to_owned(), text);
        }
    }
    let mut planted: BTreeMap<&str, Vec<(Range<usize>, &Mistake)>> = BTreeMap::new();
    for mistake in groups.iter().flat_map(|group| &group.mistakes) {
        // One whose text was changed is told of by `judge_group`.
        if let Ok((_, at)) = mistake.place() {
            planted.entry(&mistake.file).or_default().push((at, mistake));
        }
    }
    for (file, mut mistakes) in planted {
        // From the end of the file, and those inside another one before it.
        mistakes.sort_by_key(|(at, _)| (std::cmp::Reverse(at.start), at.end));
        let mut text = read(&root().join(file))?;
        let mut done: Vec<(Range<usize>, usize)> = Vec::new();
        for (at, Mistake { number, new, what, .. }) in mistakes {
            let inside = || done.iter().filter(|(other, _)| other.start < at.end);
            if inside().any(|(other, _)| other.end > at.end) {
                return Err(format!("{file}: {what:?} overlaps another mistake"));
            }
            let end = at.end + inside().map(|(_, growth)| growth).sum::<usize>();
            let old = &text[at.start..end];
            let is_statement = old.ends_with([';', '}']);
            let switched = format!("if crate::mutant({number}) {{ {new} }} else {{ {old} }}");
            let switched = if is_statement { switched } else { format!("({switched})") };
            done.push((at.clone(), switched.len() - old.len()));
            text.replace_range(at.start..end, &switched);
        }
        files.insert(file.to_owned(), text.into_bytes());
    }
    if let Some(manifest) = files.get_mut("Cargo.toml") {
        // Cargo tells crates apart by name and version: with the same one it would take programs
        // that were built from the checkout for those of the copy, and the other way round.
        let text = String::from_utf8_lossy(manifest).into_owned();
        *manifest = text.replacen("\"\nedition", "+mutants\"\nedition", 1).into_bytes();
    }
    for package in groups.iter().map(|group| &*group.package).collect::<BTreeSet<_>>() {
        let lib = format!("crates/{package}/src/lib.rs");
        files.entry(lib).or_default().extend(SWITCH.bytes());
    }
    for file in std::fs::read_to_string(copy.join("files")).unwrap_or_default().lines() {
        if !files.contains_key(file) {
            // It may be gone already.
            let _ = std::fs::remove_file(copy.join(file));
        }
    }
    for (file, text) in &files {
        write(&copy.join(file), text)?;
    }
    let names: Vec<&str> = files.keys().map(String::as_str).collect();
    write(&copy.join("files"), names.join("\n").as_bytes())
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// A file that is the same keeps its time, so that cargo does not build it again.
fn write(path: &Path, text: &[u8]) -> Outcome {
    if std::fs::read(path).is_ok_and(|old| old == text) {
        return Ok(());
    }
    let made = path.parent().map_or(Ok(()), std::fs::create_dir_all);
    made.and_then(|()| std::fs::write(path, text))
        .map_err(|error| format!("{}: {error}", path.display()))
}

/// Where the text in `[[…]]` stands, given what is around it.
fn find(text: &str, pattern: &str) -> Result<Range<usize>, String> {
    let (before, rest) = pattern.split_once("[[").ok_or("no [[")?;
    let (target, after) = rest.split_once("]]").ok_or("no ]]")?;
    let mut found = Vec::new();
    for (start, _) in text.char_indices() {
        let Some(from) = skip(text, start, before) else { continue };
        let from = if before.is_empty() { start } else { from };
        let Some(to) = skip(text, from, target) else { continue };
        if skip(text, to, after).is_some() {
            found.push(from..to);
        }
    }
    found.dedup();
    match &found[..] {
        [one] => Ok(one.clone()),
        found => Err(format!("occurs {} times", found.len())),
    }
}

/// Where `pattern`, which begins at `at`, ends. White space stands for any.
fn skip(text: &str, mut at: usize, pattern: &str) -> Option<usize> {
    let mut words = pattern.split_whitespace().peekable();
    if pattern.starts_with(char::is_whitespace) {
        at += text[at..].len() - text[at..].trim_start().len();
    }
    while let Some(word) = words.next() {
        at += text.get(at..)?.starts_with(word).then_some(word.len())?;
        if words.peek().is_some() || pattern.ends_with(char::is_whitespace) {
            at += text[at..].len() - text[at..].trim_start().len();
        }
    }
    Some(at)
}

/// The mistakes of all files.
fn groups() -> Result<Vec<Group>, String> {
    let folder = root().join("crates/xtask/mutations");
    let entries = std::fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    let mut groups = Vec::new();
    let mut number = 0;
    for path in paths {
        groups.push(parse(&path, &mut number)?);
    }
    // A package is built once for all of its groups, the library before the others.
    groups.sort_by(|one, other| one.package.cmp(&other.package));
    Ok(groups)
}

fn parse(path: &Path, number: &mut usize) -> Result<Group, String> {
    let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let (package, tests, mistakes) = (String::new(), Vec::new(), Vec::new());
    let mut group = Group { name, package, tests, mistakes };
    let (mut file, mut open) = (String::new(), None::<Mistake>);
    for line in read(path)?.lines().chain([""]) {
        let (first, rest) = line.split_once(' ').unwrap_or((line, ""));
        match (first, &mut open) {
            ("-", Some(mistake)) => {
                let _ = writeln!(mistake.old, "{rest}");
            }
            ("+", Some(mistake)) => {
                let _ = writeln!(mistake.new, "{rest}");
            }
            ("~", Some(mistake)) => mistake.equivalent = Some(rest.to_owned()),
            ("", _) => {
                if let Some(mut mistake) = open.take() {
                    mistake.old = mistake.old.trim().to_owned();
                    mistake.new = mistake.new.trim().to_owned();
                    group.mistakes.push(mistake);
                }
            }
            ("package", None) => rest.clone_into(&mut group.package),
            ("file", None) => rest.clone_into(&mut file),
            ("test", None) => {
                let (program, filter) = rest.split_once(' ').unwrap_or((rest, ""));
                group.tests.push((program.to_owned(), filter.to_owned()));
            }
            ("#", None) => {}
            (_, None) => {
                *number += 1;
                open = Some(Mistake {
                    number: *number,
                    what: line.to_owned(),
                    file: file.clone(),
                    old: String::new(),
                    new: String::new(),
                    equivalent: None,
                });
            }
            (_, Some(_)) => return Err(format!("{}: {line:?}?", path.display())),
        }
    }
    Ok(group)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_found_by_what_is_around_it() {
        let text = "if a  <\n b { c(a < b) }";
        assert_eq!(find(text, "if [[a < b]] {"), Ok(3..10));
        assert_eq!(find(text, "c([[a < b]])").map(|at| &text[at]), Ok("a < b"));
        assert_eq!(find(text, "[[a]]"), Err("occurs 2 times".to_owned()));
        assert_eq!(find(text, "[[d]]"), Err("occurs 0 times".to_owned()));
    }
}
