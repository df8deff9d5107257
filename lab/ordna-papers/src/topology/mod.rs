//! NUMA nodes, as the system reports them or as declared.
//!
//! A structure with one replica per node calls [`Topology::node_of_this_thread`] to choose the one
//! to read. The result is a hint: a thread that has just moved reads a remote replica, which is
//! slower but correct.

mod thread;

use std::cell::Cell;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The NUMA nodes on which the process runs, and the node of each thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    /// The nodes, of which there is at least one.
    nodes: Vec<NumaNode>,
    /// The node of each processor, or empty if threads are distributed in turn.
    node_of_cpu: Vec<usize>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct NumaNode {
    cpus: Vec<usize>,
    /// The system's number of the node, if the node has its own memory.
    memory: Option<usize>,
}

/// Maximum number of processors of a machine, so that an invalid list cannot exhaust the memory.
const MOST_CPUS: usize = 1 << 16;

/// Number of calls for which the node of a thread is assumed not to change.
const REFRESH: u32 = 256;

impl Topology {
    /// Returns a topology with one node, as on a machine without NUMA.
    pub fn single() -> Self {
        Self::declared(1)
    }

    /// Returns the nodes that the system reports and whose processors the calling thread may use.
    /// If there is only one, as for a process that is bound to a node, returns a single node.
    pub fn system() -> Self {
        Self::read(Path::new("/sys/devices/system/node"), thread::allowed_cpus().as_deref())
            .unwrap_or_else(Self::single)
    }

    /// Returns `nodes` nodes (at least one), over which threads are distributed in the order of
    /// their first calls.
    pub fn declared(nodes: usize) -> Self {
        Self { nodes: vec![NumaNode::default(); nodes.max(1)], node_of_cpu: Vec::new() }
    }

    /// Returns a node for each list of processors, with whatever memory the system assigns to
    /// threads that run on them. Without a list, returns one node.
    pub fn with_processors(nodes: &[Vec<usize>]) -> Self {
        let known =
            |cpus: &Vec<usize>| cpus.iter().copied().filter(|cpu| *cpu < MOST_CPUS).collect();
        let node = |cpus: &Vec<usize>| NumaNode { cpus: known(cpus), memory: None };
        match nodes {
            [] => Self::single(),
            nodes => Self::of(nodes.iter().map(node).collect()),
        }
    }

    fn of(nodes: Vec<NumaNode>) -> Self {
        let highest = nodes.iter().flat_map(|node| &node.cpus).max().map_or(0, |cpu| cpu + 1);
        let mut node_of_cpu = vec![0; highest];
        for (number, node) in nodes.iter().enumerate() {
            for cpu in &node.cpus {
                node_of_cpu[*cpu] = number;
            }
        }
        Self { nodes, node_of_cpu }
    }

    /// Reads a folder with one `nodeN` per node that contains the list of its processors, as on
    /// Linux. Nodes without an allowed processor do not count. Returns `None` if fewer than two are
    /// left.
    fn read(folder: &Path, allowed: Option<&[usize]>) -> Option<Self> {
        let mut found: Vec<(usize, Vec<usize>)> = Vec::new();
        for entry in std::fs::read_dir(folder).ok()?.flatten() {
            let name = entry.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix("node"));
            let Some(Ok(number)) = number.map(str::parse) else { continue };
            let list = std::fs::read_to_string(entry.path().join("cpulist")).ok()?;
            let mut cpus = cpus(list.trim())?;
            cpus.retain(|cpu| allowed.is_none_or(|allowed| allowed.contains(cpu)));
            found.push((number, cpus));
        }
        found.retain(|(_, cpus)| !cpus.is_empty());
        found.sort();
        let node = |(number, cpus)| NumaNode { cpus, memory: Some(number) };
        (found.len() > 1).then(|| Self::of(found.into_iter().map(node).collect()))
    }

    /// Binds the calling thread to a node for the rest of its life: it runs on the node's
    /// processors, and the memory that it touches first belongs to the node while the node has free
    /// memory. Returns whether all of this succeeded. With a topology of one node, a declared one,
    /// or a refusal of the system, the thread is partly or completely unchanged, which affects only
    /// the speed.
    pub fn bind_this_thread(&self, node: usize) -> bool {
        let Some(NumaNode { cpus, memory }) = self.nodes.get(node) else { return false };
        if self.nodes.len() < 2 || cpus.is_empty() {
            return false;
        }
        let runs = thread::run_on(cpus);
        runs & memory.is_none_or(thread::prefer_memory_of)
    }

    /// Returns whether the system lets this process choose the node of its memory. In some
    /// containers it does not; memory then comes from the node on which a thread runs when it first
    /// touches it.
    pub fn may_place_memory() -> bool {
        thread::may_place_memory()
    }

    /// Returns the number of nodes.
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// Returns the node of the calling thread, which is below [`Topology::nodes`].
    #[inline]
    pub fn node_of_this_thread(&self) -> usize {
        if self.nodes.len() == 1 {
            return 0;
        }
        if self.node_of_cpu.is_empty() {
            return turn_of_this_thread() % self.nodes.len();
        }
        // A processor that was added later is on no known node.
        self.node_of_cpu.get(cpu_of_this_thread()).copied().unwrap_or(0)
    }
}

impl Default for Topology {
    fn default() -> Self {
        Self::system()
    }
}

/// Parses a list of processors such as `0-3,8,10-11`. Returns `None` if it is not one.
fn cpus(list: &str) -> Option<Vec<usize>> {
    let mut cpus = Vec::new();
    for part in list.split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if last < first || last >= MOST_CPUS {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}

/// Returns the number of this thread, in the order of first calls.
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

/// Returns the processor on which the thread ran at the last check.
fn cpu_of_this_thread() -> usize {
    thread_local! {
        static SEEN: Cell<(usize, u32)> = const { Cell::new((0, 0)) };
    }
    SEEN.with(|seen| {
        let (cpu, uses_left) = seen.get();
        let next =
            if uses_left == 0 { (thread::current_cpu(), REFRESH) } else { (cpu, uses_left - 1) };
        seen.set(next);
        next.0
    })
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
        let read = |allowed| Topology::read(&folder, allowed);
        let (all, one, none) = (read(None), read(Some(&[2, 3][..])), read(Some(&[9][..])));
        let without_4 = read(Some(&[0, 2][..])).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        let all = all.unwrap();
        assert_eq!(all.node_of_cpu, [0, 0, 1, 1, 0]);
        let memory: Vec<_> = all.nodes.iter().map(|node| node.memory).collect();
        assert_eq!((memory, all.nodes[0].cpus.len()), (vec![Some(0), Some(1)], 3));
        assert!(all.node_of_this_thread() < 2);
        assert_eq!(without_4.node_of_cpu, [0, 0, 1]);
        // A process that is restricted to one node has one node.
        assert_eq!((one, none), (None, None));
    }

    #[test]
    fn a_thread_is_bound_to_the_processors_of_its_node() {
        let Some(allowed) = thread::allowed_cpus().filter(|allowed| allowed.len() > 1) else {
            eprintln!("not tested: one processor");
            return;
        };
        let topology = Topology::with_processors(&[vec![allowed[0]], vec![allowed[1]]]);
        for (node, cpu) in allowed.iter().take(2).enumerate() {
            let topology = &topology;
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    assert!(topology.bind_this_thread(node));
                    assert_eq!(thread::allowed_cpus(), Some(vec![*cpu]));
                    assert_eq!(topology.node_of_this_thread(), node);
                });
            });
        }
        assert!(!topology.bind_this_thread(2), "there is no third node");
        assert!(
            !Topology::single().bind_this_thread(0) && !Topology::declared(2).bind_this_thread(0)
        );
        assert_eq!(thread::allowed_cpus(), Some(allowed));
    }

    #[test]
    fn declared_nodes_get_threads_in_turn() {
        let declared = Topology::declared(4);
        let homes: std::collections::HashSet<usize> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..16).map(|_| scope.spawn(|| declared.node_of_this_thread())).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        // Other tests take numbers, too, but never sixteen with the same remainder in a row.
        assert!(homes.len() > 1 && homes.iter().all(|node| *node < 4), "{homes:?}");
        assert_eq!(Topology::declared(0).nodes(), 1);
    }
}
