//! The indexes by name.
//!
//! An index of the workspace that serves both kinds of keys is one line of [`all`]:
//! `ours!("skiplist", SkipList)`. Options behind the name (`name+switch=value`) are handed to the
//! entry's constructor: that is how an index exposes the switches of its paper's factor analysis.
//! An entry without such switches refuses them.

use ordna::Locked;
use ordna::SkipList;

use crate::run::{Job, Outcome, measure};
use crate::target::Ours;

/// Runs one job on fresh instances of the index.
pub type Runner<K> = fn(&Job<'_, K>, &Switches) -> Outcome;

/// `switch=value` pairs of the command line.
pub type Switches = Vec<(String, String)>;

/// An index, or a peer.
pub struct Entry {
    /// As on the command line.
    pub name: &'static str,
    /// Whether it is of this workspace: a wrong answer then fails the run.
    pub ours: bool,
    /// For integers; the reason if it takes none.
    pub integers: Result<Runner<u64>, &'static str>,
    /// For byte strings.
    pub bytes: Result<Runner<[u8]>, &'static str>,
}

/// An index of the workspace that takes both kinds of keys and has no switches.
macro_rules! ours {
    ($name:literal, $index:ident) => {
        Entry {
            name: $name,
            ours: true,
            integers: Ok(|job, switches| {
                refuse($name, switches, || measure(job, || Ours($index::<u64, u64>::new())))
            }),
            bytes: Ok(|job, switches| {
                refuse($name, switches, || measure(job, || Ours($index::<[u8], u64>::new())))
            }),
        }
    };
}

/// Runs an index that has no switches.
pub(crate) fn refuse(name: &str, switches: &Switches, run: impl FnOnce() -> Outcome) -> Outcome {
    match switches.first() {
        None => run(),
        Some((switch, _)) => Outcome::NotApplicable(format!("{name} has no switch {switch:?}")),
    }
}

/// All that this build can measure.
pub fn all() -> Vec<Entry> {
    #[allow(unused_mut, reason = "with the feature `peers` more are added")]
    let mut entries = vec![ours!("locked", Locked), ours!("skiplist", SkipList)];
    #[cfg(feature = "peers")]
    entries.extend(crate::peers::all());
    entries
}

/// Names that the command line knows and this build has not, and why.
pub fn missing(name: &str) -> Option<&'static str> {
    const PLANNED: [&str; 10] = [
        "art-none",
        "art-coupling",
        "art-olc",
        "art-rowex",
        "hydralist",
        "wormhole",
        "wormhole-faithful",
        "wormhole-unsafe",
        "pi",
        "nitro",
    ];
    const PEERS: [&str; 4] = ["crossbeam-skiplist", "scc", "congee", "dashmap"];
    if PLANNED.contains(&name) {
        Some("it is not built yet")
    } else if PEERS.contains(&name) {
        Some("peers need a build with --features peers")
    } else {
        None
    }
}

/// The entry and switches of `name+switch=value+…`.
///
/// # Errors
/// The name is unknown: lists the known ones.
pub fn find(text: &str) -> Result<(Entry, Switches), String> {
    let mut parts = text.split('+');
    let name = parts.next().unwrap_or_default();
    let switches = parts
        .map(|part| {
            let pair = part.split_once('=');
            pair.map(|(switch, value)| (switch.to_owned(), value.to_owned()))
                .ok_or_else(|| format!("{part:?} in {text:?} is not switch=value"))
        })
        .collect::<Result<_, _>>()?;
    let entries = all();
    let known: Vec<&str> = entries.iter().map(|entry| entry.name).collect();
    let known = known.join(", ");
    if let Some(why) = missing(name).filter(|_| !entries.iter().any(|entry| entry.name == name)) {
        return Err(format!("{name:?} cannot be measured: {why}; this build has {known}"));
    }
    entries
        .into_iter()
        .find(|entry| entry.name == name)
        .map(|entry| (entry, switches))
        .ok_or_else(|| format!("unknown index {name:?}; this build has {known}"))
}
