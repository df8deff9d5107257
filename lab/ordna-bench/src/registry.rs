//! The indexes by name.
//!
//! An index of the workspace that supports both types of keys is one line of [`all`]:
//! `ours!("skiplist", SkipList)`. One without synchronization is `alone!("btree", make)`, and
//! refuses more than one thread.
//!
//! # Switches
//!
//! The papers' factor analyses turn off parts of an index. An index exposes this as *switches*:
//! `--index name+switch=value+…`. Its entry lists them ([`Switch`]: name, values with the default
//! first, effect), the command line is checked against the list, and the constructor calls
//! [`Switches::get`]:
//!
//! ```text
//! ours!("hydralist", HydraList, &[
//!     Switch::new("simd", &["on", "off"], "compares fingerprints 16 at a time"),
//! ], hydralist)
//!
//! fn hydralist<K: Key + ?Sized>(switches: &Switches) -> HydraList<K, u64> {
//!     HydraList::with(HydraOptions { simd: switches.get("simd") == "on", ..HydraOptions::default() })
//! }
//! ```

use std::collections::BTreeMap;
use std::rc::Rc;

use ordna::Store;
use ordna_base::Key;
use ordna_base::Locked;
use ordna_base::simd::InstructionSet;
use ordna_papers::hydralist::layer::ArtLayer;
use ordna_papers::hydralist::{HydraOptions, Update};
use ordna_papers::nitro::{NitroOptions, Order};
use ordna_papers::pi::PiOptions;
use ordna_papers::search_layer::SearchLayer;
use ordna_papers::skiplist::{Fanout, ListOptions};
use ordna_papers::topology::Topology;
use ordna_papers::wormhole::layer::TableLayer;
use ordna_papers::{
    ArtCoupling, ArtHtm, ArtNone, ArtOlc, ArtRowex, HydraList, Nitro, Pi, SkipList, Wormhole,
    WormholeFaithful, WormholeUnsafe,
};

use crate::batches::Batched;
use crate::entry::{IndexEntry, Maker, Switch, Switches};
use crate::partitions::Partitions;
use crate::suggest::unknown;
use crate::target::{Alone, Counting, Ours, Shared, Sole, Target};

/// Creates the entry of an index of the workspace, with a constructor for each type of keys.
fn entry<A: Target<u64> + 'static, B: Target<[u8]> + 'static>(
    name: &str,
    switches: &'static [Switch],
    integers: fn(&Switches) -> A,
    bytes: fn(&Switches) -> B,
) -> IndexEntry {
    IndexEntry {
        name: name.to_owned(),
        ours: true,
        switches,
        integers: Ok(Box::new(move |switches, _| Ok(Box::new(integers(switches))))),
        bytes: Ok(Box::new(move |switches, _| Ok(Box::new(bytes(switches))))),
    }
}

/// Creates the entry of an index of the workspace that supports both types of keys. If it has
/// switches, they are passed with the function that builds it from them.
macro_rules! ours {
    ($name:literal, $index:ident) => {{
        let integers = |_: &Switches| Shared(Ours($index::<u64, u64>::new()));
        entry($name, &[], integers, |_| Shared(Ours($index::<[u8], u64>::new())))
    }};
    ($name:literal, $index:ident, $switches:expr, $make:ident) => {{
        let integers = |switches: &Switches| Shared(Ours::<$index<u64, u64>>($make(switches)));
        entry($name, $switches, integers, |switches| {
            Shared(Ours::<$index<[u8], u64>>($make(switches)))
        })
    }};
}

/// Several instances compared with one, as in Figure 9 of the Nitro paper.
const PARTITIONED: Switch =
    Switch::new("partitions", &["1", "4", "16"], "instances that share the keys");

const PARTITIONS: &[Switch] = &[PARTITIONED];

/// Ratio of the numbers of nodes on a level and on the level above.
const FANOUT: Switch = Switch::new("fanout", &["2", "4"], "nodes of a level for each of the next");
const SHORTCUTS: Switch =
    Switch::new("shortcuts", &["on", "off"], "searches begin at a table of tall nodes");

const SKIPLIST: &[Switch] = &[FANOUT, SHORTCUTS];

/// The published variant is `nitro+fanout=4+shortcuts=off+collection=epochs`.
const NITRO: &[Switch] = &[
    PARTITIONED,
    FANOUT,
    SHORTCUTS,
    Switch::new(
        "collection",
        &["live", "epochs"],
        "dead versions are kept for the snapshots that see them, or for all older ones",
    ),
];

fn list_options(switches: &Switches) -> ListOptions {
    ListOptions {
        fanout: if switches.get("fanout") == "4" { Fanout::Four } else { Fanout::Two },
        shortcuts: switches.get("shortcuts") != "off",
    }
}

fn skiplist<K: Key + ?Sized>(switches: &Switches) -> SkipList<K, u64> {
    SkipList::with(list_options(switches))
}

fn nitro<K: Key + ?Sized>(switches: &Switches) -> Nitro<K, u64> {
    let order = if switches.get("collection") == "epochs" { Order::Epochs } else { Order::LiveSet };
    Nitro::with_options(NitroOptions { order, list: list_options(switches), ..Default::default() })
}

fn store<K: Key + ?Sized>(_: &Switches) -> Store<K, u64> {
    Store::new()
}

/// The HTM variant in Figure 5 of the ART paper.
const HTM: &[Switch] =
    &[Switch::new("transactions", &["on", "off"], "hardware transactions, or the lock only")];

fn art_htm() -> IndexEntry {
    fn maker<K: Key + ?Sized>() -> Maker<K> {
        Box::new(|switches, _| {
            let index = match switches.get("transactions") {
                "off" => ArtHtm::without_transactions(),
                _ => ArtHtm::new(),
            };
            let index = Shared(Ours(index));
            Ok(Box::new(Counting { index, counts: transactions::<K> }))
        })
    }
    IndexEntry {
        name: "art-htm".to_owned(),
        ours: true,
        switches: HTM,
        integers: Ok(maker()),
        bytes: Ok(maker()),
    }
}

/// Says whether the figures are those of the fallback.
fn transactions<K: Key + ?Sized>(index: &ArtHtm<K, u64>) -> String {
    let how = if index.has_transactions() {
        "hardware transactions, then one lock"
    } else {
        "no hardware transactions: every operation takes one lock"
    };
    how.to_owned()
}

/// Creates the entry of an index that can be measured as several instances.
macro_rules! partitioned {
    ($name:literal, $switches:expr, $make:ident) => {{
        fn make<K: Key + ?Sized>() -> Maker<K> {
            Box::new(|switches, _| {
                let new = || $make::<K>(switches);
                Ok(match switches.get("partitions").parse() {
                    Ok(count) if count > 1 => Box::new(Shared(Partitions::new(count, new))),
                    _ => Box::new(Shared(Ours(new()))),
                })
            })
        }
        IndexEntry {
            name: $name.to_owned(),
            ours: true,
            switches: $switches,
            integers: Ok(make()),
            bytes: Ok(make()),
        }
    }};
}

/// Creates the entry of an index without synchronization. `$make::<K>()` returns a value that
/// implements [`Session`](crate::target::Session).
macro_rules! alone {
    ($name:literal, $make:ident) => {
        entry($name, &[], |_| Alone::new($make::<u64>()), |_| Alone::new($make::<[u8]>()))
    };
}

fn btree<K: Key + ?Sized>() -> BTreeMap<K::Owned, u64> {
    BTreeMap::new()
}

fn art_none<K: Key + ?Sized>() -> Sole<ArtNone<K, u64>> {
    Sole(ArtNone::new())
}

/// The parts of HydraList in its Figure 9.
const HYDRALIST: &[Switch] = &[
    Switch::new(
        "leaf",
        &["fingerprints", "sorted"],
        "order of the entries in a node, and their search",
    ),
    Switch::new("simd", &["on", "off"], "fingerprints compared 64 at a time, or byte by byte"),
    Switch::new(
        "update",
        &["background", "synchronous", "inside"],
        "when the search layer takes in splits and merges: in the background, by the writer after \
         it has unlocked, or by the writer inside the critical section",
    ),
    Switch::new(
        "replicas",
        &["1", "2", "4", "system"],
        "search layers; system: one for each NUMA node, read by the threads on it",
    ),
    Switch::new("layer", &["art", "table"], "search layer: ART, or Wormhole's hash-encoded trie"),
    Switch::new("backoff", &["on", "off"], "waiting before another try"),
];

fn hydralist() -> IndexEntry {
    fn over<K: Key + ?Sized, L: SearchLayer<K>>(options: &HydraOptions) -> Box<dyn Target<K>> {
        let index = Shared(Ours(HydraList::<K, u64, L>::with(options)));
        Box::new(Counting { index, counts: jumps::<K, L> })
    }
    fn maker<K: Key + ?Sized>() -> Maker<K> {
        Box::new(|switches, _| {
            let options = hydralist_options(switches);
            Ok(match switches.get("layer") {
                "table" => over::<K, TableLayer<K>>(&options),
                _ => over::<K, ArtLayer<K>>(&options),
            })
        })
    }
    IndexEntry {
        name: "hydralist".to_owned(),
        ours: true,
        switches: HYDRALIST,
        integers: Ok(maker()),
        bytes: Ok(maker()),
    }
}

/// Describes how far the search layer lagged behind the data layer, as writers saw it: HydraList's
/// Figure 13.
fn jumps<K: Key + ?Sized, L: SearchLayer<K>>(index: &HydraList<K, u64, L>) -> String {
    let jumps = index.statistics().jumps;
    let all = jumps.iter().sum::<usize>().max(1) as f64;
    let shares = ["0", "1", "2-3", "4-7", "8+"].into_iter().zip(jumps);
    let shares: Vec<String> = shares
        .map(|(nodes, count)| format!("{nodes}: {:.3} %", count as f64 / all * 1e2))
        .collect();
    let replicas = index.statistics().reads.len();
    format!(
        "{replicas} search layer(s); writes by nodes from jump node to target node: {}",
        shares.join(", ")
    )
}

fn hydralist_options(switches: &Switches) -> HydraOptions {
    HydraOptions {
        sorted: switches.get("leaf") == "sorted",
        simd: switches.get("simd") == "on",
        update: match switches.get("update") {
            "synchronous" => Update::Synchronous,
            "inside" => Update::Inside,
            _ => Update::Background,
        },
        topology: match switches.get("replicas") {
            "system" => Topology::system(),
            count => Topology::declared(count.parse().unwrap_or(1)),
        },
        backoff: switches.get("backoff") == "on",
        ..HydraOptions::default()
    }
}

/// The optimizations in PI's Figure 15, and the threads of its batches (Figure 8).
const PI: &[Switch] = &[
    Switch::new("simd", &["on", "off"], "compares eight keys at a time"),
    Switch::new("group", &["32", "1"], "queries that descend together"),
    Switch::new("prefetch", &["on", "off"], "fetches what a group needs next"),
    Switch::new("workers", &["0", "1", "2", "4"], "threads that help the callers"),
    Switch::new(
        "callers",
        &["each", "one"],
        "every thread calls, or one calls with the queries of all, which it shares with a worker \
         for each other thread: the paper's partition",
    ),
];

fn pi() -> IndexEntry {
    fn maker<K: Key + ?Sized>() -> Maker<K> {
        Box::new(|switches, threads| {
            let one_caller = switches.get("callers") == "one";
            let workers = if one_caller { Some(threads.saturating_sub(1)) } else { None };
            let index = Ours(pi_with(switches, workers));
            Ok(Box::new(Batched { index, one_caller }))
        })
    }
    IndexEntry {
        name: "pi".to_owned(),
        ours: true,
        switches: PI,
        integers: Ok(maker()),
        bytes: Ok(maker()),
    }
}

fn pi_with<K: Key + ?Sized>(switches: &Switches, workers: Option<usize>) -> Pi<K, u64> {
    let on = |name| switches.get(name) == "on";
    let number = |name, default| switches.get(name).parse().unwrap_or(default);
    let default = PiOptions::default();
    Pi::with(&PiOptions {
        instructions: if on("simd") { default.instructions } else { InstructionSet::SCALAR },
        group: number("group", default.group),
        prefetch: on("prefetch"),
        workers: workers.unwrap_or_else(|| number("workers", default.workers)),
        ..default
    })
}

/// Wormhole's optimizations, as in its factor analysis.
const WORMHOLE: &[Switch] = &[
    Switch::new("tag-matching", &["on", "off"], "prefixes are compared by a 16-bit tag first"),
    Switch::new(
        "incremental-hashing",
        &["on", "off"],
        "the hash of a prefix continues that of a shorter one",
    ),
    Switch::new("sort-by-tag", &["on", "off"], "leaves are searched by hash tags, not by keys"),
    Switch::new("direct-position", &["on", "off"], "the tag gives the position in the leaf"),
    Switch::new("hints", &["on", "off"], "searches begin at the length kept for the first bytes"),
];

fn wormhole<K: Key + ?Sized>(switches: &Switches) -> Wormhole<K, u64> {
    let on = |name| switches.get(name) == "on";
    Wormhole::with_switches(ordna_papers::wormhole::Switches {
        tag_matching: on("tag-matching"),
        incremental_hashing: on("incremental-hashing"),
        sort_by_tag: on("sort-by-tag"),
        direct_position: on("direct-position"),
        hints: on("hints"),
    })
}

fn wormhole_unsafe<K: Key + ?Sized>() -> Sole<WormholeUnsafe<K, u64>> {
    Sole(WormholeUnsafe::new())
}

/// Returns everything that this build can measure.
pub fn all() -> Vec<IndexEntry> {
    #[allow(unused_mut, reason = "with the feature `peers` more are added")]
    let mut entries = vec![
        ours!("locked", Locked),
        alone!("btree", btree),
        ours!("skiplist", SkipList, SKIPLIST, skiplist),
        hydralist(),
        pi(),
        partitioned!("store", PARTITIONS, store),
        partitioned!("nitro", NITRO, nitro),
        alone!("art-none", art_none),
        art_htm(),
        ours!("art-coupling", ArtCoupling),
        ours!("art-olc", ArtOlc),
        ours!("art-rowex", ArtRowex),
        ours!("wormhole", Wormhole, WORMHOLE, wormhole),
        ours!("wormhole-faithful", WormholeFaithful),
        alone!("wormhole-unsafe", wormhole_unsafe),
    ];
    #[cfg(feature = "peers")]
    entries.extend(crate::peers::all());
    entries
}

/// The baselines among our indexes, which the others have to beat.
pub const BASELINES: [&str; 2] = ["locked", "btree"];

/// Peers without an order, which are upper bounds and not rivals.
pub const UNORDERED: [&str; 1] = ["dashmap"];

/// The peers, which are measured in builds with the feature.
pub const PEERS: [&str; 7] =
    ["crossbeam-skiplist", "scc", "congee", "arctic", "masstree", "concurrent-map", "dashmap"];

/// Returns why this build lacks an index whose name is known.
pub fn missing(name: &str) -> Option<&'static str> {
    PEERS.contains(&name).then_some("peers need a build with --features peers")
}

/// An index as selected on the command line.
#[derive(Clone)]
pub struct Chosen {
    /// Name and switches.
    pub name: String,
    /// The index.
    pub entry: Rc<IndexEntry>,
    /// Switches of the index.
    pub switches: Switches,
}

/// The indexes that this run can measure: those of the build, and plug-ins.
pub struct Registry(Vec<Rc<IndexEntry>>);

impl Default for Registry {
    fn default() -> Self {
        Self::new()
    }
}

impl Registry {
    /// Creates a registry with the build's indexes.
    pub fn new() -> Self {
        Self(all().into_iter().map(Rc::new).collect())
    }

    /// Creates a registry without indexes.
    #[cfg(test)]
    pub fn empty() -> Self {
        Self(Vec::new())
    }

    /// Creates a registry with the build's indexes and these plug-ins.
    ///
    /// # Errors
    /// Returns an error if the name of a plug-in is already in use.
    pub fn with(plugins: Vec<IndexEntry>) -> Result<Self, String> {
        let mut all = Self::new();
        for plugin in plugins {
            if missing(&plugin.name).is_some() || all.entries().any(|e| e.name == plugin.name) {
                return Err(format!(
                    "a plug-in cannot be named {:?}: the name is taken",
                    plugin.name
                ));
            }
            all.0.push(Rc::new(plugin));
        }
        Ok(all)
    }

    /// Returns all entries.
    pub fn entries(&self) -> impl Iterator<Item = &IndexEntry> {
        self.0.iter().map(AsRef::as_ref)
    }

    /// Returns the entry and the switches for `name+switch=value+…`.
    ///
    /// # Errors
    /// Returns an error with the known ones if the name, a switch or its value is unknown.
    pub fn find(&self, text: &str) -> Result<Chosen, String> {
        let mut parts = text.split('+');
        let name = parts.next().unwrap_or_default();
        let Some(entry) = self.0.iter().find(|entry| entry.name == name) else {
            let known: Vec<&str> = self.entries().map(|entry| entry.name.as_str()).collect();
            return Err(match missing(name) {
                Some(why) => format!(
                    "{name:?} cannot be measured: {why}; this build has {}",
                    known.join(", ")
                ),
                None => {
                    let absent = PEERS.into_iter().filter(|name| !known.contains(name));
                    let mut all = known.clone();
                    all.extend(absent);
                    unknown("index", name, all)
                }
            });
        };
        let pairs: Vec<&str> = parts.collect();
        let switches = Switches::parse(name, entry.switches, &pairs)?;
        Ok(Chosen { name: text.to_owned(), entry: entry.clone(), switches })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Job;
    use crate::run::measure;

    fn switched<K: Key + ?Sized>(switches: &Switches) -> Locked<K, u64> {
        // The switch reaches the constructor, and a value that is not listed never does.
        assert!(["on", "off"].contains(&switches.get("simd")));
        assert_eq!(switches.get("levels"), "3");
        Locked::new()
    }

    fn registry() -> Registry {
        const SWITCHES: &[Switch] = &[
            Switch::new("simd", &["on", "off"], "in parallel"),
            Switch::new("levels", &["2", "3"], "how many"),
        ];
        Registry::with(vec![ours!("switched", Locked, SWITCHES, switched)]).unwrap()
    }

    fn error(text: &str) -> String {
        registry().find(text).err().unwrap()
    }

    #[test]
    fn switches_reach_the_index_and_unknown_ones_are_refused() {
        let chosen = registry().find("switched+simd=off+levels=3").unwrap();
        assert_eq!(chosen.switches.get("simd"), "off");
        assert_eq!(registry().find("switched").unwrap().switches.get("levels"), "2");
        let phases = [];
        let keys = vec![3, 1, 2];
        let job = Job {
            keys: &keys,
            loaded: 3,
            threads: 1,
            batch: 1,
            ordered: false,
            phases: &phases,
            ranks: None,
        };
        let make = chosen.entry.integers.as_ref().ok().unwrap();
        assert!(measure(&job, &|| make(&chosen.switches, 1)).load.is_ok());
        let default = registry().find("switched").unwrap().switches;
        let wrong = measure(&job, &|| make(&default, 1)).load.unwrap_err();
        assert!(
            format!("{wrong:?}").contains("Failed"),
            "levels=2 must have reached it: {wrong:?}"
        );
        let text = error("switched+smid=off");
        assert!(text.contains("did you mean \"simd\"?") && text.contains("levels"), "{text}");
        assert!(error("switched+simd=maybe").contains("known are on, off"));
        assert!(error("switched+simd").contains("not switch=value"));
        assert!(error("locked+simd=off").contains("locked has no switches"));
    }

    #[test]
    fn unknown_indexes_list_the_known_ones() {
        let text = error("skiplsit");
        assert!(text.contains("did you mean \"skiplist\"?") && text.contains("locked"), "{text}");
        assert!(text.contains("dashmap"), "{text}");
        assert!(error("").contains("unknown index"));
        assert!(Registry::with(vec![ours!("locked", Locked)]).err().unwrap().contains("taken"));
    }
}
