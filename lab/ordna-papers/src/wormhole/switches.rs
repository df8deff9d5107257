//! The switches of the paper's factor analysis.

/// The paper's optimizations: all are on but in its factor analysis (figure 11).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Switches {
    /// Slots of the table are compared by tag; else every prefix in a bucket is compared in full.
    pub tag_matching: bool,
    /// The hash of a longer prefix goes on from that of a shorter one; else each starts anew.
    pub incremental_hashing: bool,
    /// A leaf is searched by the tags of its entries; else by binary search on the keys.
    pub sort_by_tag: bool,
    /// The tag tells where to look; else all tags are looked at.
    pub direct_position: bool,
    /// A search begins at the length that is kept for the first bytes of the key, and doubles its
    /// steps from there; else by binary search over all lengths, as in the paper (§2.4).
    pub hints: bool,
}

impl Default for Switches {
    fn default() -> Self {
        Self {
            tag_matching: true,
            incremental_hashing: true,
            sort_by_tag: true,
            direct_position: true,
            hints: true,
        }
    }
}
