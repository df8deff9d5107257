//! The public peers, one file each, with the limitations of each.

mod arctic;
mod concurrent_map;
mod congee;
mod crossbeam;
mod dashmap;
mod masstree;
mod scc;

use ordna_base::Key;

use crate::entry::{IndexEntry, Maker};
use crate::target::Target;

/// Returns all peers of this build.
pub fn all() -> Vec<IndexEntry> {
    vec![
        peer("crossbeam-skiplist", maker(crossbeam::new), Ok(maker(crossbeam::new))),
        peer("scc", maker(scc::new), Ok(maker(scc::new))),
        peer("congee", maker(congee::new), Err("takes 8-byte keys only")),
        peer("arctic", maker(arctic::integers), Ok(maker(arctic::bytes))),
        peer("masstree", maker(masstree::new), Ok(maker(masstree::new))),
        peer("concurrent-map", maker(concurrent_map::new), Ok(maker(concurrent_map::new))),
        peer("dashmap", maker(dashmap::new), Ok(maker(dashmap::new))),
    ]
}

fn peer(name: &str, integers: Maker<u64>, bytes: Result<Maker<[u8]>, &str>) -> IndexEntry {
    IndexEntry {
        name: name.to_owned(),
        ours: false,
        switches: &[],
        integers: Ok(integers),
        bytes: bytes.map_err(str::to_owned),
    }
}

fn maker<K: Key + ?Sized, T: Target<K> + 'static>(new: fn() -> T) -> Maker<K> {
    Box::new(move |_, _| Ok(Box::new(new())))
}

#[cfg(test)]
mod tests;
