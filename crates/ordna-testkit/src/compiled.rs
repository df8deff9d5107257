//! The suite for each type of keys and values, compiled here once for all test programs.

use crate::erased::Erased;

type Check<K, V> = fn(&dyn Fn() -> Erased<K, V>);

macro_rules! compiled {
    ($($(#[$doc:meta])* $name:ident: $key:ty, $value:ty;)+) => {
        $($(#[$doc])* pub fn $name() -> [Check<$key, $value>; 6] {
            [
                crate::model::run,
                crate::adversarial::run,
                crate::concurrent::run_owners,
                crate::concurrent::run_scans,
                crate::history::run,
                crate::memory::run,
            ]
        })+
    };
}

compiled! {
    /// The checks of words as keys and values.
    u64_words: u64, u64;
    /// The checks of words as keys, bytes as values.
    u64_bytes: u64, [u8];
    /// The checks of bytes as keys, words as values.
    bytes_words: [u8], u64;
    /// The checks of bytes as keys and values.
    bytes_bytes: [u8], [u8];
}
