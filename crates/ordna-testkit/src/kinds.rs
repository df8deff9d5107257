//! Converts numbers to keys and values of each type, so that one suite works for all types.

use std::borrow::Borrow;

use ordna_base::{Key, Value};

/// Keys for tests, which are created from numbers.
pub trait TestKey: Key {
    /// Returns the key of a number. Different numbers have different keys, and the order differs
    /// from that of the numbers.
    fn number(n: u64) -> <Self as ToOwned>::Owned;

    /// Returns keys that are designed to break trees.
    fn adversarial() -> Vec<<Self as ToOwned>::Owned>;

    /// Returns a key that exceeds the limit, if the type has one.
    fn too_long() -> Option<<Self as ToOwned>::Owned>;
}

impl TestKey for u64 {
    fn number(n: u64) -> u64 {
        match n {
            0 => 0,
            1 => u64::MAX,
            // Clusters that share 7, 6, … leading bytes, so that radix trees branch on every level.
            n => (n / 3).rotate_right((n % 3) as u32 * 20).wrapping_mul(3).wrapping_add(n % 3 + 1),
        }
    }

    fn adversarial() -> Vec<u64> {
        let mut keys: Vec<u64> = vec![0, 1, u64::MAX, u64::MAX - 1, 1 << 63, (1 << 63) - 1];
        for shift in 0..64 {
            keys.extend([1 << shift, u64::MAX << shift, !(1_u64 << shift)]);
        }
        // All bytes at each position, for nodes of every size.
        for position in 0..8 {
            keys.extend((0..256).map(|byte| byte << (position * 8)));
        }
        keys
    }

    fn too_long() -> Option<u64> {
        None
    }
}

impl TestKey for [u8] {
    fn number(n: u64) -> Vec<u8> {
        // Strings over four letters in bijective numeration: the empty key, prefixes of each other,
        // trailing zeros, runs of 0xFF. Odd numbers share a prefix longer than a head.
        const LETTERS: [u8; 4] = [0, b'a', b'b', 0xFF];
        let mut key = if n.is_multiple_of(2) { Vec::new() } else { b"common prefix ".to_vec() };
        let mut rest = n / 2;
        while rest > 0 {
            rest -= 1;
            key.push(LETTERS[(rest % 4) as usize]);
            rest /= 4;
        }
        key
    }

    fn adversarial() -> Vec<Vec<u8>> {
        let mut keys: Vec<Vec<u8>> = vec![Vec::new(), vec![0x5A; 65_535], vec![0; 65_535]];
        keys.extend((0..=255_u8).map(|byte| vec![byte]));
        // Keys of which each is a prefix of the next; one prefix with many zeros; runs of 0xFF.
        for len in 0..=200 {
            keys.push(vec![b'p'; len]);
            keys.push([b"anchor".as_slice(), &vec![0; len]].concat());
            keys.push(vec![0; len]);
            keys.push(vec![0xFF; len]);
        }
        // Equal heads followed by every byte, and long equal prefixes that differ at the end.
        for byte in 0..=255_u8 {
            keys.push([b"equalheads".as_slice(), &[byte]].concat());
            keys.push([[b'x'; 300].as_slice(), &[byte]].concat());
            keys.push([[b'x'; 300].as_slice(), &[byte, 0]].concat());
        }
        keys.push([vec![0x5A; 65_534], vec![0x59]].concat());
        keys
    }

    fn too_long() -> Option<Vec<u8>> {
        Some(vec![b'k'; 65_536])
    }
}

/// Values for tests, which are created from words so that a torn or wrong value is detected.
pub trait TestValue: Value {
    /// Returns the value of a word.
    fn dress(word: u64) -> <Self as ToOwned>::Owned;

    /// Returns the word of a value.
    ///
    /// # Panics
    /// Panics if [`TestValue::dress`] did not create the value, because the index has torn it.
    fn word(&self) -> u64;
}

impl TestValue for u64 {
    fn dress(word: u64) -> u64 {
        word
    }

    fn word(&self) -> u64 {
        *self
    }
}

impl TestValue for [u8] {
    fn dress(word: u64) -> Vec<u8> {
        // The length depends on the word, too: 8 to 127 bytes.
        word.to_le_bytes().repeat(1 + (word % 15) as usize)
    }

    fn word(&self) -> u64 {
        let first = self.first_chunk::<8>().expect("a value has at least 8 bytes");
        let word = u64::from_le_bytes(*first);
        assert_eq!(self, Self::dress(word), "a torn value");
        word
    }
}

/// Returns a word that identifies its key and writer.
pub fn stamp(key: u64, writer: u64, sequence: u64) -> u64 {
    (key & 0xFFFF) << 48 | (writer & 0xFF) << 40 | (sequence & 0xFF_FFFF_FFFF)
}

/// Returns whether the word was stamped for the key.
pub fn is_stamped_for(word: u64, key: u64) -> bool {
    word >> 48 == key & 0xFFFF
}

/// Borrows an owned key, so that callers need no type annotation.
pub fn borrow<K: ToOwned + ?Sized>(owned: &K::Owned) -> &K {
    owned.borrow()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn different_numbers_have_different_keys() {
        let words: HashSet<_> = (0..10_000).map(<u64 as TestKey>::number).collect();
        let bytes: HashSet<_> = (0..10_000).map(<[u8] as TestKey>::number).collect();
        assert_eq!((words.len(), bytes.len()), (10_000, 10_000));
    }
}
