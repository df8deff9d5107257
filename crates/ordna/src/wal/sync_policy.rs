//! When the log is made durable.

use std::time::Duration;

/// Longest time that records wait for an fsync under [`SyncPolicy::EverySecond`].
pub const SECOND: Duration = Duration::from_secs(1);
/// Duration of a sync under [`SyncPolicy::EverySecond`] after which writes wait for it, as in
/// Redis. So a crash of the machine loses at most about three seconds of acknowledged writes.
pub const STALLED: Duration = Duration::from_secs(2);

/// When the log is made durable.
///
/// ```
/// use ordna::{OpenOptions, SyncPolicy};
///
/// assert_eq!(SyncPolicy::default(), SyncPolicy::EverySecond);
/// let options = OpenOptions::new().sync(SyncPolicy::Always);
/// # let _ = options;
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum SyncPolicy {
    /// Before a write is acknowledged. One fsync serves all waiting writes.
    Always,
    /// Once a second. A crash of the machine may lose the last second. A crash of the process loses
    /// nothing if [`survives_kill`](super::reports::Durability::survives_kill) is true, and
    /// otherwise the last few milliseconds. While a sync takes more than two seconds, writes wait
    /// for its end.
    #[default]
    EverySecond,
    /// When the operating system decides. A crash of the process loses as much as under
    /// `EverySecond`.
    Never,
}

impl SyncPolicy {
    /// Returns the policy with this number.
    pub(super) fn from_number(number: u8) -> Self {
        match number {
            always if always == Self::Always as u8 => Self::Always,
            never if never == Self::Never as u8 => Self::Never,
            _ => Self::EverySecond,
        }
    }
}
