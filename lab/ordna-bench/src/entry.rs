//! An index in the registry: its constructor and its switches.

use std::collections::BTreeMap;

use crate::suggest::unknown;
use crate::target::Target;

/// Makes an empty index for so many threads; the reason if that cannot be.
pub type Maker<K> = Box<dyn Fn(&Switches, usize) -> Result<Box<dyn Target<K>>, String>>;

/// A part of an index that can be turned off, or an option of it.
#[derive(Debug, Clone, Copy)]
pub struct Switch {
    /// As on the command line.
    pub name: &'static str,
    /// Its values; the first is the default.
    pub values: &'static [&'static str],
    /// Its effect.
    pub what: &'static str,
}

impl Switch {
    /// A switch with its name, its values and a line about its effect.
    pub const fn new(
        name: &'static str,
        values: &'static [&'static str],
        what: &'static str,
    ) -> Self {
        Self { name, values, what }
    }
}

/// The switches of an index as the command line set them.
#[derive(Debug, Clone, Default)]
pub struct Switches(BTreeMap<&'static str, &'static str>);

impl Switches {
    /// The value of a switch that the entry lists; empty for any other name.
    pub fn get(&self, name: &str) -> &'static str {
        self.0.get(name).copied().unwrap_or_default()
    }

    /// Reads `switch=value` pairs; what is not named has its default.
    ///
    /// # Errors
    /// A switch or its value is unknown: lists the known ones.
    pub fn parse(index: &str, known: &[Switch], pairs: &[&str]) -> Result<Self, String> {
        let mut set: BTreeMap<_, _> = known
            .iter()
            .filter_map(|switch| Some((switch.name, *switch.values.first()?)))
            .collect();
        for pair in pairs {
            let Some((name, value)) = pair.split_once('=') else {
                return Err(format!("{pair:?} in {index}+{pair} is not switch=value"));
            };
            let Some(switch) = known.iter().find(|switch| switch.name == name) else {
                if known.is_empty() {
                    return Err(format!("{index} has no switches, so no {name:?}"));
                }
                let known = known.iter().map(|switch| switch.name);
                return Err(unknown(&format!("switch of {index}"), name, known));
            };
            let Some(value) = switch.values.iter().find(|known| **known == value) else {
                let known = switch.values.iter().copied();
                return Err(unknown(&format!("value of {index}+{name}"), value, known));
            };
            set.insert(switch.name, value);
        }
        Ok(Self(set))
    }
}

/// An index, or a peer.
pub struct IndexEntry {
    /// As on the command line.
    pub name: String,
    /// Whether it is of this workspace: a wrong answer then fails the run.
    pub ours: bool,
    /// Its switches.
    pub switches: &'static [Switch],
    /// For integers; the reason if it takes none.
    pub integers: Result<Maker<u64>, String>,
    /// For byte strings.
    pub bytes: Result<Maker<[u8]>, String>,
}
