//! Key sets: deterministic by seed, without duplicates, in random order, in one flat buffer.

use std::collections::HashSet;
use std::str::FromStr;

use ordna_base::entries::{FlatBytes, Sequence};

use crate::suggest::unknown;
use crate::zipf::{Random, Zipf};

/// A key set, as named on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeySet {
    /// Random `u64`.
    Int,
    /// `0..n` in random order.
    IntDense,
    /// Item, user and time of reviews, about 37 bytes; items are Zipf over 500,000.
    Az,
    /// The keys of `Az` with the user first.
    Az2,
    /// A few thousand hosts and nested paths, about 80 bytes.
    Url,
    /// Domain first, 10 to 30 bytes.
    Email,
    /// Random bytes of this length.
    Fixed(usize),
    /// Filler, followed by 4 random bytes.
    Filled(usize),
    /// The lines of a file.
    File(String),
}

/// The values of `--keys`.
pub const KNOWN: [&str; 9] =
    ["int", "int-dense", "az", "az2", "url", "email", "fixed:LENGTH", "filled:LENGTH", "file:PATH"];

impl FromStr for KeySet {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let length = |text: &str, least: usize| {
            let length: usize = text.parse().map_err(|_| format!("{text:?} is no length"))?;
            if (least..=ordna_base::key::MAX_LEN).contains(&length) {
                Ok(length)
            } else {
                Err(format!(
                    "a key has {least} to {} bytes, not {length}",
                    ordna_base::key::MAX_LEN
                ))
            }
        };
        Ok(match text.split_once(':') {
            None if text == "int" => Self::Int,
            None if text == "int-dense" => Self::IntDense,
            None if text == "az" => Self::Az,
            None if text == "az2" => Self::Az2,
            None if text == "url" => Self::Url,
            None if text == "email" => Self::Email,
            Some(("fixed", rest)) => Self::Fixed(length(rest, 4)?),
            Some(("filled", rest)) => Self::Filled(length(rest, 4)?),
            Some(("file", path)) => Self::File(path.to_owned()),
            _ => return Err(unknown("key set", text, KNOWN)),
        })
    }
}

impl std::fmt::Display for KeySet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Int => f.write_str("int"),
            Self::IntDense => f.write_str("int-dense"),
            Self::Az => f.write_str("az"),
            Self::Az2 => f.write_str("az2"),
            Self::Url => f.write_str("url"),
            Self::Email => f.write_str("email"),
            Self::Fixed(length) => write!(f, "fixed:{length}"),
            Self::Filled(length) => write!(f, "filled:{length}"),
            Self::File(path) => write!(f, "file:{path}"),
        }
    }
}

impl KeySet {
    /// Returns whether the keys are native `u64`.
    pub fn is_int(&self) -> bool {
        matches!(self, Self::Int | Self::IntDense)
    }

    /// Returns the approximate average size of a key in bytes, for the check of memory before the
    /// run.
    pub fn mean_bytes(&self) -> usize {
        match self {
            Self::Int | Self::IntDense => 8,
            Self::Az | Self::Az2 => 37,
            Self::Url => 80,
            Self::Email => 22,
            Self::Fixed(length) | Self::Filled(length) => *length,
            Self::File(_) => 64,
        }
    }

    /// Returns an error if the keys cannot be generated, because a file does not exist.
    ///
    /// # Errors
    /// Returns a text with the file and the system's error.
    pub fn check(&self) -> Result<(), String> {
        let Self::File(path) = self else { return Ok(()) };
        if path.is_empty() {
            return Err("file:PATH needs a path".to_owned());
        }
        match std::fs::metadata(path) {
            Ok(found) if found.is_file() => Ok(()),
            Ok(_) => Err(format!("cannot read keys from {path:?}: it is no file")),
            Err(error) => Err(format!("cannot read keys from {path:?}: {error}")),
        }
    }

    /// Returns the number of bytes that are read before keys are generated.
    pub fn bytes_to_read(&self) -> usize {
        let Self::File(path) = self else { return 0 };
        std::fs::metadata(path).map_or(0, |found| found.len() as usize)
    }

    /// Returns `count` integers.
    pub fn integers(&self, count: usize, seed: u64) -> Vec<u64> {
        let mut random = Random::new(seed);
        let mut keys: Vec<u64> = if *self == Self::IntDense {
            (0..count as u64).collect()
        } else {
            // A bijection of the counter, so the numbers are random and without duplicates.
            (0..count as u64).map(|n| Random::mix(n ^ seed.rotate_left(32))).collect()
        };
        random.shuffle(&mut keys);
        keys
    }

    /// Returns up to `count` byte strings. There are fewer only if the set has no more.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, or contains a key that is too long.
    pub fn byte_strings(&self, count: usize, seed: u64) -> Result<FlatBytes, String> {
        let mut random = Random::new(seed);
        // A file may contain far fewer keys.
        let room = if matches!(self, Self::File(_)) { 0 } else { count };
        let mut keys: Vec<Box<[u8]>> = Vec::with_capacity(room);
        let mut seen: HashSet<u128> = HashSet::with_capacity(room);
        let mut take = |key: &[u8], keys: &mut Vec<Box<[u8]>>| {
            if seen.insert(fingerprint(key)) {
                keys.push(key.into());
            }
        };
        if let Self::File(path) = self {
            let text =
                std::fs::read(path).map_err(|e| format!("cannot read keys from {path:?}: {e}"))?;
            for (number, line) in text.split(|byte| *byte == b'\n').enumerate() {
                let line = line.strip_suffix(b"\r").unwrap_or(line);
                if line.len() > ordna_base::key::MAX_LEN {
                    return Err(format!(
                        "{path:?}, line {}: {} bytes, a key has at most {}",
                        number + 1,
                        line.len(),
                        ordna_base::key::MAX_LEN
                    ));
                }
                if !line.is_empty() && keys.len() < count {
                    take(line, &mut keys);
                }
            }
        } else {
            let mut maker = KeyMaker::new(self, seed);
            // Small sets run out of keys: give up when new ones have become rare.
            let mut tries = 0;
            while keys.len() < count && tries < count * 4 + 1000 {
                tries += 1;
                take(maker.next(&mut random), &mut keys);
            }
        }
        random.shuffle(&mut keys);
        let mut flat = FlatBytes::default();
        keys.iter().for_each(|key| flat.push(key));
        Ok(flat)
    }
}

/// Returns a 128-bit hash, so that duplicates are found without a second copy of every key.
fn fingerprint(key: &[u8]) -> u128 {
    let half = |seed: u64| {
        key.chunks(8).fold(seed ^ key.len() as u64, |hash, chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            Random::mix(hash ^ u64::from_le_bytes(word)).wrapping_mul(0x9E37_79B9_7F4A_7C15)
        })
    };
    u128::from(half(1)) << 64 | u128::from(half(0xABCD))
}

/// Generates the keys of a set.
struct KeyMaker<'a> {
    set: &'a KeySet,
    items: Zipf,
    key: Vec<u8>,
}

const WORDS: [&str; 24] = [
    "news", "shop", "blog", "item", "user", "images", "archive", "music", "sport", "world", "tech",
    "review", "forum", "video", "local", "travel", "food", "health", "science", "photo", "list",
    "page", "data", "docs",
];
const DOMAINS: [&str; 8] = ["com", "org", "net", "se", "de", "edu", "co.uk", "io"];

impl<'a> KeyMaker<'a> {
    fn new(set: &'a KeySet, _seed: u64) -> Self {
        Self { set, items: Zipf::new(500_000, 0.99), key: Vec::new() }
    }

    fn word(&mut self, random: &mut Random) {
        let word = WORDS[random.below(WORDS.len() as u64) as usize];
        self.key.extend_from_slice(word.as_bytes());
    }

    fn text(&mut self, text: &str) {
        self.key.extend_from_slice(text.as_bytes());
    }

    fn letters(&mut self, count: u64, random: &mut Random) {
        for _ in 0..count {
            self.key.push(b'a' + random.below(26) as u8);
        }
    }

    fn next(&mut self, random: &mut Random) -> &[u8] {
        self.key.clear();
        match self.set {
            KeySet::Az | KeySet::Az2 => {
                let item = Random::mix(self.items.rank(random)) % 10_000_000_000;
                let user = Random::mix(random.below(2_000_000)) % 100_000_000_000_000;
                let time = 900_000_000 + random.below(800_000_000);
                if *self.set == KeySet::Az {
                    self.text(&format!("{item:010}-A{user:014}-{time:010}"));
                } else {
                    self.text(&format!("A{user:014}-{item:010}-{time:010}"));
                }
            }
            KeySet::Url => {
                let host = random.below(4000);
                let domain = DOMAINS[(host % DOMAINS.len() as u64) as usize];
                let site = Random::mix(host) % 1_000_000;
                self.text(&format!("http://www.site{site}.{domain}"));
                for _ in 0..2 + random.below(4) {
                    self.key.push(b'/');
                    self.word(random);
                    if random.below(2) == 0 {
                        let number = random.below(100);
                        self.text(&format!("-{number}"));
                    }
                }
                let id = random.next_u64() >> 24;
                self.text(&format!("/{id:010x}/index.html"));
            }
            KeySet::Email => {
                let host = Random::mix(random.below(20_000));
                let domain = DOMAINS[(host % DOMAINS.len() as u64) as usize];
                self.text(domain);
                self.key.push(b'.');
                self.text(&format!("{:04x}", host % 65_536));
                self.key.push(b'@');
                let length = 3 + random.below(12);
                self.letters(length, random);
            }
            KeySet::Fixed(length) => {
                while self.key.len() < *length {
                    self.key.extend_from_slice(&random.next_u64().to_le_bytes());
                }
                self.key.truncate(*length);
            }
            KeySet::Filled(length) => {
                self.key.resize(length - 4, b'f');
                let tail = (random.next_u64() as u32).to_be_bytes();
                self.key.extend_from_slice(&tail);
            }
            // Integers and files are handled elsewhere.
            KeySet::Int | KeySet::IntDense | KeySet::File(_) => {}
        }
        &self.key
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_deterministic_without_duplicates_and_of_the_length_they_say() {
        for (name, low, high) in [
            ("az", 36, 38),
            ("url", 50, 110),
            ("email", 10, 30),
            ("fixed:12", 12, 12),
            ("filled:40", 40, 40),
        ] {
            let set: KeySet = name.parse().unwrap();
            assert_eq!(set.to_string(), name);
            let (keys, again) =
                (set.byte_strings(5000, 1).unwrap(), set.byte_strings(5000, 1).unwrap());
            assert_eq!(keys.len(), 5000, "{name}");
            let all: Vec<&[u8]> = (0..5000).filter_map(|at| keys.get(at)).collect();
            assert_eq!(all.iter().collect::<HashSet<_>>().len(), 5000, "{name}");
            assert!((0..5000).all(|at| keys.get(at) == again.get(at)), "{name}");
            assert!(
                all.iter().all(|key| (low..=high).contains(&key.len())),
                "{name}: {:?}",
                all[0].len()
            );
            let other = set.byte_strings(5000, 2).unwrap();
            assert!((0..5000).any(|at| keys.get(at) != other.get(at)), "{name}: the seed counts");
        }
        let ints = KeySet::Int.integers(5000, 1);
        assert_eq!(ints.iter().collect::<HashSet<_>>().len(), 5000);
        let mut dense = KeySet::IntDense.integers(100, 1);
        dense.sort_unstable();
        assert_eq!(dense, (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn unknown_sets_list_the_known_ones() {
        assert!("uuid".parse::<KeySet>().unwrap_err().contains("filled:LENGTH"));
        assert!("ulr".parse::<KeySet>().unwrap_err().contains("did you mean \"url\"?"));
        assert!("fixed:2".parse::<KeySet>().unwrap_err().contains("4 to 65535"));
    }
}
