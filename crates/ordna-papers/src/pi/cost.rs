//! The paper's cost model (§5), as functions.

/// The symbols of the paper's Table 1, as far as the costs depend on them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Model {
    /// P: the share of keys that are in the level above.
    pub p: f64,
    /// M: keys of an entry.
    pub keys_per_entry: f64,
    /// S_e: bytes of an entry with its routing table.
    pub entry_bytes: f64,
    /// S_n: bytes of a data node that a search reads.
    pub node_bytes: f64,
    /// S_l: bytes of a cache line.
    pub line_bytes: f64,
    /// N: data nodes that the index layer was built from.
    pub nodes: f64,
}

impl Model {
    /// The paper's own index: p = 1/4, four 32-bit keys, 48 bytes an entry, 20 a node.
    pub fn of_the_paper(nodes: f64) -> Self {
        let (p, keys_per_entry) = (0.25, 4.0);
        Self { p, keys_per_entry, entry_bytes: 48.0, node_bytes: 20.0, line_bytes: 64.0, nodes }
    }

    /// This index: every ninth of a level is in the one above, eight keys of 64 bits an entry with
    /// no routing table, and of a data node three lines are read.
    pub fn of_this(nodes: f64) -> Self {
        let (p, keys_per_entry) = (1.0 / 9.0, 8.0);
        Self { p, keys_per_entry, entry_bytes: 64.0, node_bytes: 192.0, line_bytes: 64.0, nodes }
    }

    /// H: the height, storage layer included.
    pub fn height(&self) -> f64 {
        (-self.nodes.ln() / self.p.ln()).ceil().max(1.0)
    }

    /// Cache lines that a search reads in the index layer: (H − 1) ⌈S_e/S_l⌉ ⌈(1 + P) / 2PM⌉.
    pub fn layer_lines(&self) -> f64 {
        let entries = ((1.0 + self.p) / (2.0 * self.p * self.keys_per_entry)).ceil();
        (self.height() - 1.0) * (self.entry_bytes / self.line_bytes).ceil() * entries
    }

    /// Data nodes that a search reads after so many nodes were split off behind the layer. The
    /// paper's layer knows one of 1/P nodes, so half as many are read: (1 + n/N)(1 + P) / 2P. Where
    /// it knows each of them (P here being 1 in that place) it is one, and those split off since.
    pub fn nodes_read(&self, new: f64, known: f64) -> f64 {
        (1.0 + new / self.nodes) * (1.0 + known) / (2.0 * known)
    }

    /// Nanoseconds of a search: its lines in the index layer at `cache_ns` each, its lines in the
    /// storage layer at `memory_ns`.
    pub fn search_ns(&self, new: f64, known: f64, cache_ns: f64, memory_ns: f64) -> f64 {
        let node_lines = (self.node_bytes / self.line_bytes).ceil() * self.nodes_read(new, known);
        self.layer_lines() * cache_ns + node_lines * memory_ns
    }

    /// Nanoseconds of a rebuild on one thread: (1 + P) N L / (1 − P) (§5.2).
    pub fn rebuild_ns(&self, memory_ns: f64) -> f64 {
        (1.0 + self.p) * self.nodes * memory_ns / (1.0 - self.p)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_example_comes_out() {
        // §5.1: 512 K keys, nine lines of the index layer, three of the storage layer.
        let model = Model::of_the_paper(524_288.0);
        assert_eq!(model.height(), 10.0);
        assert_eq!(model.layer_lines(), 9.0);
        assert_eq!(model.nodes_read(0.0, model.p).ceil(), 3.0);
        // 450,000 nodes for 10 M keys: six levels of one line, then three lines of a node.
        let model = Model::of_this(450_000.0);
        assert_eq!(model.layer_lines(), 5.0);
        assert_eq!(model.search_ns(0.0, 1.0, 10.0, 20.0), 5.0 * 10.0 + 3.0 * 20.0);
    }
}
