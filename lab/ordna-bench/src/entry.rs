//! An index in the registry: its constructor and its switches.

use std::collections::BTreeMap;

use crate::suggest::unknown;
use crate::target::Target;

/// Creates an empty index for a number of threads, or returns the reason why this is impossible.
pub type Maker<K> = Box<dyn Fn(&Switches, usize) -> Result<Box<dyn Target<K>>, String>>;

/// A part of an index that can be turned off, or an option of it.
#[derive(Debug, Clone, Copy)]
pub struct Switch {
    /// Name on the command line.
    pub name: &'static str,
    /// Possible values, with the default first.
    pub values: &'static [&'static str],
    /// Effect of the switch.
    pub what: &'static str,
}

impl Switch {
    /// Creates a switch with its name, its values and a line about its effect.
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
    /// Returns the value of a switch that the entry lists, or an empty string for any other name.
    pub fn get(&self, name: &str) -> &'static str {
        self.0.get(name).copied().unwrap_or_default()
    }

    /// Parses `switch=value` pairs. Switches that are not named have their defaults.
    ///
    /// # Errors
    /// Returns an error with the known ones if a switch or its value is unknown.
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
    /// Name on the command line.
    pub name: String,
    /// Whether the index belongs to this workspace. A wrong answer then fails the run.
    pub ours: bool,
    /// Switches of the index.
    pub switches: &'static [Switch],
    /// Constructor for integer keys, or the reason why there is none.
    pub integers: Result<Maker<u64>, String>,
    /// Constructor for byte strings, or the reason why there is none.
    pub bytes: Result<Maker<[u8]>, String>,
}
