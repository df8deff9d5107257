//! The public peers, one file each, with what each cannot do.

mod arctic;
mod concurrent_map;
mod congee;
mod crossbeam;
mod dashmap;
mod masstree;
mod scc;

use ordna::Key;

use crate::registry::{Entry, Runner};
use crate::run::measure;
use crate::target::Target;

/// All peers of this build.
pub fn all() -> Vec<Entry> {
    vec![
        peer("crossbeam-skiplist", runner(crossbeam::new), Ok(runner(crossbeam::new))),
        peer("scc", runner(scc::new), Ok(runner(scc::new))),
        peer("congee", runner(congee::new), Err("takes 8-byte keys only")),
        peer("arctic", runner(arctic::integers), Ok(runner(arctic::bytes))),
        peer("masstree", runner(masstree::new), Ok(runner(masstree::new))),
        peer("concurrent-map", runner(concurrent_map::new), Ok(runner(concurrent_map::new))),
        peer("dashmap", runner(dashmap::new), Ok(runner(dashmap::new))),
    ]
}

fn peer(name: &str, integers: Runner<u64>, bytes: Result<Runner<[u8]>, &str>) -> Entry {
    Entry {
        name: name.to_owned(),
        ours: false,
        switches: &[],
        integers: Ok(integers),
        bytes: bytes.map_err(str::to_owned),
    }
}

fn runner<K: Key + ?Sized, T: Target<K> + 'static>(new: fn() -> T) -> Runner<K> {
    Box::new(move |job, _| measure(job, new))
}

#[cfg(test)]
mod tests;
