//! The options of a list.

/// How a list is built; the papers' switches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListOptions {
    /// Nodes of a level for each node of the level above: 2, or 4 as in the Nitro paper.
    pub fanout: Fanout,
    /// Whether searches begin at shortcuts; otherwise at the head, as in the paper.
    pub shortcuts: bool,
}

/// Nodes of a level for each node of the level above, on average.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fanout {
    /// Two.
    Two,
    /// Four, as in the Nitro paper.
    Four,
}

impl Default for ListOptions {
    fn default() -> Self {
        Self { fanout: Fanout::Two, shortcuts: true }
    }
}
