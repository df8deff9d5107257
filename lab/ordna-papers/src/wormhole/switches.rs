//! The switches of the paper's factor analysis.

/// The paper's optimizations. All are enabled except in its factor analysis (figure 11).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Switches {
    /// Whether slots of the table are compared by tag; otherwise every prefix in a bucket is
    /// compared completely.
    pub tag_matching: bool,
    /// Whether the hash of a longer prefix is computed from that of a shorter one; otherwise each
    /// is computed from the start.
    pub incremental_hashing: bool,
    /// Whether a leaf is searched by the tags of its entries; otherwise by binary search on the
    /// keys.
    pub sort_by_tag: bool,
    /// Whether the tag determines where to look; otherwise all tags are examined.
    pub direct_position: bool,
    /// Whether a search begins at the length that is stored for the first bytes of the key and
    /// doubles its steps from there; otherwise it is a binary search over all lengths, as in the
    /// paper (§2.4).
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
