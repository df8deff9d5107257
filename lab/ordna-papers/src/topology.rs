//! NUMA nodes: as the system reports them, or as declared.
//!
//! A structure that keeps one replica per node asks [`Topology::node_of_this_thread`] which one to
//! read. The answer is a hint: a thread that has just moved reads a remote replica, which is slower
//! and as right.

use std::cell::Cell;
use std::path::Path;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The node of each thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    nodes: usize,
    /// The node of each processor; empty if threads are dealt out in turn.
    node_of_cpu: Vec<usize>,
}

/// How many calls a thread's node is taken for unchanged.
const REFRESH: u32 = 256;

impl Topology {
    /// One node: what a machine without NUMA has.
    pub fn single() -> Self {
        Self { nodes: 1, node_of_cpu: Vec::new() }
    }

    /// As the system reports it; one node where it reports none.
    pub fn system() -> Self {
        Self::read(Path::new("/sys/devices/system/node")).unwrap_or_else(Self::single)
    }

    /// `nodes` nodes (at least one), to which threads are dealt out in turn as they first ask.
    pub fn declared(nodes: usize) -> Self {
        Self { nodes: nodes.max(1), node_of_cpu: Vec::new() }
    }

    /// From a folder with one `nodeN` per node and in it the list of its processors, as Linux has
    /// it. Nodes without processors count for none.
    fn read(folder: &Path) -> Option<Self> {
        let mut found: Vec<(usize, Vec<usize>)> = Vec::new();
        for entry in std::fs::read_dir(folder).ok()?.flatten() {
            let name = entry.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix("node"));
            let Some(Ok(number)) = number.map(str::parse) else { continue };
            let list = std::fs::read_to_string(entry.path().join("cpulist")).ok()?;
            found.push((number, cpus(list.trim())?));
        }
        found.retain(|(_, cpus)| !cpus.is_empty());
        found.sort();
        if found.len() < 2 {
            return None;
        }
        let highest = *found.iter().flat_map(|(_, cpus)| cpus).max()?;
        let mut node_of_cpu = vec![0; highest + 1];
        for (node, (_, cpus)) in found.iter().enumerate() {
            for cpu in cpus {
                node_of_cpu[*cpu] = node;
            }
        }
        Some(Self { nodes: found.len(), node_of_cpu })
    }

    /// How many nodes there are.
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// The node of the calling thread, below [`Topology::nodes`].
    #[inline]
    pub fn node_of_this_thread(&self) -> usize {
        if self.nodes == 1 {
            return 0;
        }
        if self.node_of_cpu.is_empty() {
            return turn_of_this_thread() % self.nodes;
        }
        // A processor that came later is on no node that is known.
        self.node_of_cpu.get(cpu_of_this_thread()).copied().unwrap_or(0)
    }
}

impl Default for Topology {
    fn default() -> Self {
        Self::system()
    }
}

/// The processors of a list such as `0-3,8,10-11`; `None` if it is none.
fn cpus(list: &str) -> Option<Vec<usize>> {
    let mut cpus = Vec::new();
    for part in list.split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        // No machine has more; a broken file must not fill the memory.
        if last < first || last > 1 << 16 {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}

/// Threads are numbered as they first ask.
fn turn_of_this_thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static TURN: Cell<Option<usize>> = const { Cell::new(None) };
    }
    TURN.with(|turn| {
        let mine = turn.get().unwrap_or_else(|| NEXT.fetch_add(1, Ordering::Relaxed));
        turn.set(Some(mine));
        mine
    })
}

/// The processor that the thread ran on when it last looked.
fn cpu_of_this_thread() -> usize {
    thread_local! {
        static SEEN: Cell<(usize, u32)> = const { Cell::new((0, 0)) };
    }
    SEEN.with(|seen| {
        let (cpu, uses_left) = seen.get();
        let next = if uses_left == 0 { (current_cpu(), REFRESH) } else { (cpu, uses_left - 1) };
        seen.set(next);
        next.0
    })
}

/// The processor number that Linux keeps in the register beside the time-stamp counter.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
#[expect(unsafe_code, reason = "an instruction without a safe name")]
fn current_cpu() -> usize {
    use std::arch::x86_64::{__cpuid, __rdtscp};
    const RDTSCP: u32 = 1 << 27;
    const CPU: u32 = 0xFFF;
    // Asked once: under a hypervisor `cpuid` costs microseconds.
    static HAS_RDTSCP: OnceLock<bool> = OnceLock::new();
    if !HAS_RDTSCP.get_or_init(|| __cpuid(0x8000_0001).edx & RDTSCP != 0) {
        return 0;
    }
    let mut tag = 0;
    // SAFETY: the processor has the instruction; it writes to `tag` only.
    unsafe { __rdtscp(&raw mut tag) };
    (tag & CPU) as usize
}

/// Elsewhere every thread reads the first node's replica.
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
fn current_cpu() -> usize {
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_as_linux_writes_them() {
        assert_eq!(cpus("0-3,8,10-11"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
        assert_eq!(cpus(""), Some(vec![]));
        for broken in ["x", "3-1", "0-99999999", "1-"] {
            assert_eq!(cpus(broken), None, "{broken}");
        }
    }

    #[test]
    fn nodes_are_read_from_a_folder() {
        let folder = std::env::temp_dir().join(format!("ordna-nodes-{}", std::process::id()));
        for (node, list) in [("node0", "0-1,4\n"), ("node1", "2-3\n"), ("node2", "\n")] {
            std::fs::create_dir_all(folder.join(node)).unwrap();
            std::fs::write(folder.join(node).join("cpulist"), list).unwrap();
        }
        let read = Topology::read(&folder);
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(read, Some(Topology { nodes: 2, node_of_cpu: vec![0, 0, 1, 1, 0] }));
        assert!(read.unwrap().node_of_this_thread() < 2);
    }

    #[test]
    fn declared_nodes_get_threads_in_turn() {
        let declared = Topology::declared(4);
        let homes: std::collections::HashSet<usize> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..16).map(|_| scope.spawn(|| declared.node_of_this_thread())).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        // Other tests take turns too, but never sixteen of one residue in a row.
        assert!(homes.len() > 1 && homes.iter().all(|node| *node < 4), "{homes:?}");
        assert_eq!(Topology::declared(0).nodes(), 1);
    }
}
