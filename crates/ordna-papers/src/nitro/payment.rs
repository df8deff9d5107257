//! Whether a write must reserve memory.

/// Whether a write's bytes must still be reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Payment {
    Due,
    /// Beyond the limit if need be.
    Forced,
    /// The batch reserved them all.
    Done,
}
