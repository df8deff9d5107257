//! The commands of the shell for the store in a directory.

use std::ops::Bound;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use ordna::{Store, key};

use super::target::{Description, Screen, Target};
use crate::directory;
use crate::text::readable;

/// Maximum number of entries to print on a terminal, unless `LIMIT` is given.
const SHOWN: usize = 50;
/// Number of rows to print at a time if columns are not aligned.
const ROWS: usize = 1000;

const COMMANDS: [(&str, &str, &str, &[&str]); 12] = [
    ("get", "KEY", "Print the value of a key", &[]),
    ("put", "KEY VALUE [FOR SECONDS]", "Set a key, which may expire", &["FOR"]),
    ("del", "KEY [KEY …]", "Remove keys; prints how many there were", &[]),
    (
        "range",
        "FROM TO [LIMIT N] [REV] [KEYS]",
        "Print the entries from FROM to below TO; - and + are the ends",
        OPTIONS,
    ),
    (
        "prefix",
        "PREFIX [LIMIT N] [REV] [KEYS]",
        "Print the entries whose keys begin with PREFIX",
        OPTIONS,
    ),
    ("count", "[FROM TO]", "Count the keys from FROM to below TO", &[]),
    ("first", "", "Print the first entry", &[]),
    ("last", "", "Print the last entry", &[]),
    ("ttl", "KEY", "Print the seconds until a key expires", &[]),
    ("stats", "", "Print numbers of entries and bytes, and the state of the log", &[]),
    ("sync", "", "Make all writes durable", &[]),
    ("export", "FILE [PREFIX]", "Write entries to a new file: .jsonl, .csv or .tsv", &[]),
];
const OPTIONS: &[&str] = &["LIMIT", "REV", "KEYS"];

type Range = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// An opened store.
pub struct Directory {
    store: Store<[u8], [u8]>,
    name: String,
    commands: Vec<Description>,
}

impl Directory {
    /// Opens the store of a directory.
    pub fn open(path: &Path, create: bool) -> anyhow::Result<Self> {
        let store = directory::open(path, create)?;
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        let describe = |(name, arguments, summary, options): (&str, &str, &str, &[&str])| {
            let options = options.iter().map(ToString::to_string).collect();
            let (arguments, summary) = (arguments.to_owned(), summary.to_owned());
            Description { name: name.to_owned(), arguments, summary, options }
        };
        Ok(Self { store, name, commands: COMMANDS.map(describe).into() })
    }

    fn print_entries(
        &self,
        (lower, upper): Range,
        options: &[Vec<u8>],
        screen: &mut Screen<'_>,
    ) -> anyhow::Result<()> {
        let (mut limit, mut reverse, mut keys) = (None, false, false);
        let mut words = options.iter();
        while let Some(word) = words.next() {
            match word.to_ascii_lowercase().as_slice() {
                b"limit" => limit = Some(number(words.next())?),
                b"rev" => reverse = true,
                b"keys" => keys = true,
                _ => {
                    bail!(
                        "`{}` is not an option; there are LIMIT N, REV, KEYS",
                        readable(word, false)
                    )
                }
            }
        }
        let most = limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
        let shown = if screen.width.is_some() && limit.is_none() { SHOWN } else { most };
        let names: &[&str] = if keys { &["key"] } else { &["key", "value"] };
        let mut range = self.store.range((lower, upper));
        let mut rows = Vec::new();
        let mut count = 0;
        loop {
            let next = if reverse { range.next_back_ref() } else { range.next_ref() };
            let Some((key, value)) = next else { break };
            if count == shown {
                if shown < most {
                    screen.table(names, &rows)?;
                    return screen.line("… there are more; LIMIT N sets their number");
                }
                break;
            }
            count += 1;
            let mut row = vec![readable(key, false)];
            if !keys {
                row.push(readable(value, false));
            }
            rows.push(row);
            // Output to a file or pipe is not aligned, so it need not wait for all rows.
            if screen.width.is_none() && rows.len() == ROWS {
                screen.table(names, &rows)?;
                rows.clear();
            }
        }
        if count == 0 {
            return screen.line("(empty)");
        }
        screen.table(names, &rows)
    }

    fn print_one(
        &self,
        entry: Option<(Vec<u8>, Vec<u8>)>,
        screen: &mut Screen<'_>,
    ) -> anyhow::Result<()> {
        match entry {
            None => screen.line("(empty)"),
            Some((key, value)) => {
                let row = vec![readable(&key, false), readable(&value, false)];
                screen.table(&["key", "value"], &[row])
            }
        }
    }

    fn stats(&self, screen: &mut Screen<'_>) -> anyhow::Result<()> {
        let statistics = self.store.statistics();
        let mut rows = vec![
            ("entries", statistics.items.to_string()),
            ("undo records", statistics.dead.to_string()),
            ("bytes", statistics.bytes.to_string()),
            ("entries that expire", statistics.expiring.0.to_string()),
        ];
        if let Some(log) = self.store.durability() {
            rows.push(("bytes of the log since the last backup", log.since_backup.to_string()));
            rows.push(("bytes that are not durable", (log.appended - log.synced).to_string()));
            let failure = log.failure.map_or_else(|| "none".to_owned(), |text| text.to_string());
            rows.push(("failure of the log", failure));
        }
        let rows = rows.into_iter().map(|(name, value)| vec![name.to_owned(), value]);
        screen.table(&["what", "value"], &rows.collect::<Vec<_>>())
    }
}

fn number(word: Option<&Vec<u8>>) -> anyhow::Result<u64> {
    let text = word.context("a number is missing")?;
    let number = str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    number.with_context(|| format!("`{}` is not a number", readable(text, false)))
}

/// Returns the range from `from` to below `to`; `-` and `+` stand for the ends of the key space.
fn range(from: &[u8], to: &[u8]) -> Range {
    let lower = if from == b"-" { Bound::Unbounded } else { Bound::Included(from.to_vec()) };
    let upper = if to == b"+" { Bound::Unbounded } else { Bound::Excluded(to.to_vec()) };
    (lower, upper)
}

fn prefix_range(prefix: &[u8]) -> Range {
    let end = key::prefix_end(prefix).map_or(Bound::Unbounded, Bound::Excluded);
    (Bound::Included(prefix.to_vec()), end)
}

impl Target for Directory {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn commands(&self) -> &[Description] {
        &self.commands
    }

    fn run(&mut self, words: &[Vec<u8>], screen: &mut Screen<'_>) -> anyhow::Result<()> {
        let name = String::from_utf8_lossy(&words[0]).to_lowercase();
        let store = &self.store;
        match (name.as_str(), &words[1..]) {
            ("get", [key]) => match store.get(key) {
                Some(value) => screen.line(&readable(&value, false)),
                None => screen.line("(absent)"),
            },
            ("put", [key, value]) => {
                store.put(key, value)?;
                screen.line("OK")
            }
            ("put", [key, value, unit, seconds]) if unit.eq_ignore_ascii_case(b"for") => {
                store.insert_for(key, value, Duration::from_secs(number(Some(seconds))?))?;
                screen.line("OK")
            }
            ("del", keys @ [_, ..]) => {
                let removed = store.remove_many(keys)?;
                screen.line(&removed.to_string())
            }
            ("range", [from, to, options @ ..]) => {
                self.print_entries(range(from, to), options, screen)
            }
            ("prefix", [prefix, options @ ..]) => {
                self.print_entries(prefix_range(prefix), options, screen)
            }
            ("count", []) => screen.line(&store.snapshot().len().to_string()),
            ("count", [from, to]) => {
                let (lower, upper) = range(from, to);
                let (lower, upper) = (lower.as_ref(), upper.as_ref());
                let count =
                    store.snapshot().count(lower.map(Vec::as_slice), upper.map(Vec::as_slice));
                screen.line(&count.to_string())
            }
            ("first", []) => self.print_one(store.first(), screen),
            ("last", []) => self.print_one(store.last(), screen),
            ("ttl", [key]) => screen.line(&match store.expires_in(key) {
                None => "(absent)".to_owned(),
                Some(None) => "(never)".to_owned(),
                Some(Some(left)) => format!("{:.3}", left.as_secs_f64()),
            }),
            ("stats", []) => self.stats(screen),
            ("sync", []) => {
                store.sync_log()?;
                screen.line("OK")
            }
            ("export", [file, rest @ ..]) if rest.len() < 2 => {
                let file = str::from_utf8(file).context("the name of the file is not UTF-8")?;
                let prefix = rest.first().map_or(&[][..], Vec::as_slice);
                let entries = crate::export::store_to_file(store, prefix, Path::new(file))?;
                screen.line(&format!("{entries} entries"))
            }
            _ => match self.commands.iter().find(|command| command.name == name) {
                Some(command) => bail!("usage: {} {}", command.name, command.arguments),
                None => bail!("there is no command `{name}`; `help` lists all"),
            },
        }
    }
}
