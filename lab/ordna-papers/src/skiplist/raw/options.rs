//! Options of a list.

/// Options of a list, which correspond to variants in the papers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListOptions {
    /// Ratio of the numbers of nodes on a level and on the level above.
    pub fanout: Fanout,
    /// Whether searches begin at shortcuts; otherwise they begin at the head, as in the paper.
    pub shortcuts: bool,
}

/// Average ratio of the numbers of nodes on a level and on the level above.
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
