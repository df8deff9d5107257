//! Plug-in peers: any index that implements the C interface of `include/ordna_peer.h`.

mod c_interface;

use std::path::Path;

use crate::entry::{IndexEntry, Maker};
use crate::target::{Session, Target};
use crate::workload::Action;
use c_interface::{Index, Kind, OK, OTHER, Plugin, Thread, UNSUPPORTED};

/// Loads a plug-in as an entry of the registry.
///
/// # Errors
/// Returns an error if the library cannot be loaded, has another version, or lacks a function. The
/// error names the function.
pub fn load(path: &Path) -> Result<IndexEntry, String> {
    let (name, plugin) = Plugin::load(path)?;
    Ok(IndexEntry {
        name,
        ours: false,
        switches: &[],
        integers: Ok(maker::<u64>(plugin.clone())),
        bytes: Ok(maker::<[u8]>(plugin)),
    })
}

fn maker<K: Kind + Example + ?Sized>(plugin: Plugin) -> Maker<K> {
    Box::new(move |_, threads| {
        // The checks open a session while no other one is open.
        let threads = threads as u32;
        let probe = plugin.create::<K>(threads);
        let probe =
            probe.ok_or_else(|| format!("does not take these keys on {threads} threads"))?;
        let lacks = Lacks::of(&probe);
        drop(probe);
        Ok(Box::new(Peer { index: create(&plugin, threads), lacks }))
    })
}

fn create<K: Kind + ?Sized>(plugin: &Plugin, threads: u32) -> Index<K> {
    plugin.create(threads).unwrap_or_else(|| panic!("ordna_peer_create gave one index, then none"))
}

/// A key with which operations are tried before the run.
trait Example {
    fn example() -> &'static Self;
}

impl Example for u64 {
    fn example() -> &'static Self {
        &7
    }
}

impl Example for [u8] {
    fn example() -> &'static Self {
        b"example"
    }
}

/// The operations that a plug-in does not support.
#[derive(Clone, Copy)]
struct Lacks {
    put: bool,
    get: bool,
    remove: bool,
    scan: bool,
}

impl Lacks {
    /// Tries each operation once.
    fn of<K: Kind + Example + ?Sized>(index: &Index<K>) -> Self {
        let thread = index.thread();
        let key = K::example();
        Self {
            put: thread.put(key, 1) == UNSUPPORTED,
            get: thread.get(key).0 == UNSUPPORTED,
            scan: thread.scan(key, 1, &mut |_, _| {}) == UNSUPPORTED,
            remove: thread.remove(key) == UNSUPPORTED,
        }
    }
}

struct Peer<K: Kind + ?Sized> {
    index: Index<K>,
    lacks: Lacks,
}

impl<K: Kind + ?Sized> Target<K> for Peer<K> {
    fn session(&self, _: usize, _: usize) -> Box<dyn Session<K> + '_> {
        Box::new(self.index.thread())
    }

    fn lacks(&self, action: Action) -> Option<String> {
        let Lacks { put, get, remove, scan } = self.lacks;
        let (lacks, name) = match action {
            Action::Read | Action::Latest | Action::Look => (get, "get"),
            Action::ReadUpdate => (get || put, "get or put"),
            Action::Update | Action::Insert => (put, "put"),
            Action::Delete => (remove, "remove"),
            Action::Scan(_) => (scan, "scan"),
        };
        lacks.then(|| format!("does not support {name}"))
    }

    fn on_our_allocator(&self) -> bool {
        false
    }
}

/// Ends the measurement after a violation of the header, which is reported as a failure.
fn refuse(operation: &str, answer: i32) -> ! {
    panic!("ordna_peer_{operation} answered {answer}")
}

impl<K: Kind + ?Sized> Session<K> for Thread<'_, K> {
    fn put(&mut self, key: &K, value: u64) -> Option<bool> {
        match Thread::put(self, key, value) {
            OK => Some(true),
            OTHER => Some(false),
            answer => refuse("put", answer),
        }
    }

    fn get(&mut self, key: &K) -> Option<u64> {
        match Thread::get(self, key) {
            (OK, value) => Some(value),
            (OTHER, _) => None,
            (answer, _) => refuse("get", answer),
        }
    }

    fn remove(&mut self, key: &K) -> bool {
        match Thread::remove(self, key) {
            OK => true,
            OTHER => false,
            answer => refuse("remove", answer),
        }
    }

    fn scan(&mut self, from: &K, limit: usize, each: &mut dyn FnMut(&K, u64)) {
        match Thread::scan(self, from, limit, each) {
            OK => {}
            answer => refuse("scan", answer),
        }
    }
}
