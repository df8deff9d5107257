//! Keyspace notifications: messages about the keys that were written, expired or evicted.
//!
//! Nothing is sent unless `notify-keyspace-events` enables it; without it, a write costs one
//! additional relaxed load. An event follows its write. If two clients write one key concurrently,
//! the events may have another order than the writes.

use std::sync::atomic::{AtomicU32, Ordering};

/// Classes of events, one bit each, as `notify-keyspace-events` names them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Classes(u32);

/// The letters of the classes in the order in which Redis shows them, by bit.
const LETTERS: &[u8] = b"g$lshzxetdnKEm";
/// `A`: the first ten classes.
const ALL: u32 = (1 << 10) - 1;

impl Classes {
    pub const GENERIC: Self = Self(1 << 0);
    pub const STRING: Self = Self(1 << 1);
    pub const LIST: Self = Self(1 << 2);
    pub const SET: Self = Self(1 << 3);
    pub const HASH: Self = Self(1 << 4);
    pub const SORTED_SET: Self = Self(1 << 5);
    pub const EXPIRED: Self = Self(1 << 6);
    pub const EVICTED: Self = Self(1 << 7);
    pub const NEW: Self = Self(1 << 10);
    /// Channels named after the key.
    const KEYSPACE: Self = Self(1 << 11);
    /// Channels named after the event.
    const KEYEVENT: Self = Self(1 << 12);
    pub const MISS: Self = Self(1 << 13);

    /// Parses a value of `notify-keyspace-events`.
    pub fn parse(text: &str) -> Option<Self> {
        let bit = |letter: u8| match letter {
            b'A' => Some(ALL),
            letter => LETTERS.iter().position(|known| *known == letter).map(|at| 1 << at),
        };
        text.bytes().try_fold(0, |all, letter| Some(all | bit(letter)?)).map(Self)
    }

    /// Returns the classes in the form of `CONFIG GET`.
    pub fn letters(self) -> String {
        let (first, hidden) = if self.0 & ALL == ALL { ("A", ALL | Self::NEW.0) } else { ("", 0) };
        let shown = LETTERS.iter().enumerate();
        let shown = shown.filter(|(bit, _)| (self.0 & !hidden) >> bit & 1 == 1);
        first.chars().chain(shown.map(|(_, letter)| char::from(*letter))).collect()
    }

    /// Returns the class of the commands of a group.
    pub fn of_group(group: &str) -> Self {
        match group {
            "string" | "bitmap" => Self::STRING,
            "hash" => Self::HASH,
            "list" => Self::LIST,
            "set" => Self::SET,
            "sorted-set" => Self::SORTED_SET,
            _ => Self::GENERIC,
        }
    }
}

/// The enabled classes of events.
#[derive(Debug, Default)]
pub struct Events(AtomicU32);

impl Events {
    /// Returns whether any events are sent. One relaxed load.
    #[inline]
    pub fn are_on(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    pub fn classes(&self) -> Classes {
        Classes(self.0.load(Ordering::Relaxed))
    }

    pub fn set(&self, classes: Classes) {
        self.0.store(classes.0, Ordering::Relaxed);
    }

    /// Returns the messages to send for an event, each with channel and payload.
    pub fn messages<'a>(
        &self,
        class: Classes,
        event: &'a str,
        key: &'a [u8],
    ) -> impl Iterator<Item = (Vec<u8>, &'a [u8])> + use<'a> {
        let on = self.0.load(Ordering::Relaxed);
        let is_on = |class: Classes| on & class.0 != 0;
        let wanted = is_on(class);
        let of_key = (wanted && is_on(Classes::KEYSPACE))
            .then(|| ([b"__keyspace@0__:", key].concat(), event.as_bytes()));
        let of_event = (wanted && is_on(Classes::KEYEVENT))
            .then(|| ([b"__keyevent@0__:", event.as_bytes()].concat(), key));
        of_key.into_iter().chain(of_event)
    }
}

/// The effect of a command on a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wrote {
    /// The key has a new value.
    Value { is_new: bool, new_deadline: bool },
    /// The key has the same value. Whether it now has a deadline.
    Deadline(bool),
    /// The key was removed.
    Removal,
}

/// Returns the event of a command that has written a value: its own name, or that of an equivalent
/// command.
pub fn event_of(command: &'static str) -> &'static str {
    match command {
        "decr" | "incr" | "decrby" => "incrby",
        "setnx" | "setex" | "psetex" | "getset" | "mset" | "msetnx" | "bitop" => "set",
        "bitfield" => "setbit",
        "hmset" | "hsetnx" => "hset",
        "expireat" | "pexpire" | "pexpireat" => "expire",
        "copy" => "copy_to",
        "sort" => "sortstore",
        "lpushx" => "lpush",
        "rpushx" => "rpush",
        "zincrby" => "zincr",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_are_shown_as_redis_shows_them() {
        for (text, shown) in
            [("KEAnm", "AKEm"), ("mEn$zK", "$znKEm"), ("", ""), ("g$lshzxetdE", "AE"), ("Kx", "xK")]
        {
            assert_eq!(Classes::parse(text).unwrap().letters(), shown);
        }
        assert_eq!(Classes::parse("Kq"), None);
    }
}
