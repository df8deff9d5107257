//! When the log is made durable.

use std::time::Duration;

/// Longest time that records wait for an fsync under [`SyncPolicy::EverySecond`].
pub const SECOND: Duration = Duration::from_secs(1);
/// Time that a sync may take under [`SyncPolicy::EverySecond`] before writes wait for it, as in
/// Redis: a crash of the machine loses no more than about three seconds of acknowledged writes.
pub const STALLED: Duration = Duration::from_secs(2);

/// When the log is made durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum SyncPolicy {
    /// Before a write is acknowledged; one fsync serves all writes that wait.
    Always,
    /// Once a second. A crash of the machine may lose the last second. A crash of the process loses
    /// nothing where [`survives_kill`](super::reports::Durability::survives_kill) is true, and the
    /// last few milliseconds elsewhere. While a sync takes more than two seconds, writes wait for
    /// its end.
    #[default]
    EverySecond,
    /// When the system likes. A crash of the process is as under `EverySecond`.
    Never,
}

impl SyncPolicy {
    /// The policy with this number, as `as u8` gives it.
    pub(super) fn from_number(number: u8) -> Self {
        match number {
            always if always == Self::Always as u8 => Self::Always,
            never if never == Self::Never as u8 => Self::Never,
            _ => Self::EverySecond,
        }
    }
}
