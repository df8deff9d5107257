//! Redis' glob patterns: `*`, `?`, `[a-c]`, `[^a]`, and `\` to escape the next byte.
//!
//! A pattern is compiled once. A match takes O(text), times one for each 64 bytes between two
//! stars; no pattern makes it quadratic. The segments between stars are searched from left to right
//! with Shift-And (Baeza-Yates and Gonnet, 1992). The leftmost match of a segment is always the
//! right one.

use ordna::key;

/// A position of a pattern that matches one byte.
#[derive(Debug, Clone, PartialEq)]
enum One {
    Any,
    Byte(u8),
    /// A set of bytes, one bit each.
    Class(Box<[u64; 4]>),
}

impl One {
    fn takes(&self, byte: u8) -> bool {
        match self {
            Self::Any => true,
            Self::Byte(literal) => *literal == byte,
            Self::Class(set) => set[usize::from(byte >> 6)] >> (byte & 63) & 1 == 1,
        }
    }
}

/// Length up to which a segment is compared position by position.
const SHORT: usize = 8;

/// The part of a pattern between two stars.
#[derive(Debug)]
struct Segment {
    ones: Vec<One>,
    /// For each byte, the positions that match it: 256 groups of `words` words. Empty if the
    /// segment is short.
    masks: Vec<u64>,
    words: usize,
}

impl Segment {
    fn new(ones: Vec<One>, searched: bool) -> Self {
        let words = ones.len().div_ceil(64);
        let mut masks = Vec::new();
        if searched && ones.len() > SHORT {
            masks = vec![0; 256 * words];
            for (at, one) in ones.iter().enumerate() {
                for byte in (0..=255).filter(|byte| one.takes(*byte)) {
                    masks[usize::from(byte) * words + at / 64] |= 1 << (at % 64);
                }
            }
        }
        Self { ones, masks, words }
    }

    fn matches(&self, text: &[u8]) -> bool {
        self.ones.len() == text.len()
            && self.ones.iter().zip(text).all(|(one, byte)| one.takes(*byte))
    }

    /// Returns the end of the leftmost match of the segment in the text.
    fn find(&self, text: &[u8]) -> Option<usize> {
        let len = self.ones.len();
        if self.masks.is_empty() {
            return text.windows(len).position(|window| self.matches(window)).map(|at| at + len);
        }
        let mut state = vec![0_u64; self.words];
        let last = 1_u64 << ((len - 1) % 64);
        for (at, byte) in text.iter().enumerate() {
            let masks = &self.masks[usize::from(*byte) * self.words..][..self.words];
            let mut carry = 1;
            for (word, mask) in state.iter_mut().zip(masks) {
                let next = *word >> 63;
                *word = (*word << 1 | carry) & mask;
                carry = next;
            }
            if state[self.words - 1] & last != 0 {
                return Some(at + 1);
            }
        }
        None
    }
}

/// A compiled pattern.
#[derive(Debug)]
pub struct Pattern {
    /// The segment before the first star.
    head: Segment,
    /// The segments between stars.
    middle: Vec<Segment>,
    /// The segment after the last star; `None` if there is no star.
    tail: Option<Segment>,
    /// Length of the shortest text that can match.
    shortest: usize,
    /// Number of words of the longest segment.
    words: usize,
}

impl Pattern {
    /// Compiles a pattern for keys. A pattern for which any matching text is longer than a key may
    /// be matches nothing and takes no memory, however long it is.
    pub fn new(pattern: &[u8]) -> Self {
        let mut segments = vec![Vec::new()];
        let (mut at, mut shortest) = (0, 0);
        while at < pattern.len() {
            if pattern[at] == b'*' {
                // Several stars in a row mean the same as one.
                if segments.len() == 1 || segments.last().is_some_and(|last| !last.is_empty()) {
                    segments.push(Vec::new());
                }
                at += 1;
                continue;
            }
            shortest += 1;
            if shortest > key::MAX_LEN {
                return Self::nothing();
            }
            let (one, used) = one(&pattern[at..]);
            segments.last_mut().expect("it begins with one").push(one);
            at += used;
        }
        let tail = (segments.len() > 1).then(|| segments.pop()).flatten();
        let mut segments = segments.into_iter();
        let head = Segment::new(segments.next().unwrap_or_default(), false);
        let middle = segments.filter(|ones| !ones.is_empty());
        let middle: Vec<_> = middle.map(|ones| Segment::new(ones, true)).collect();
        let words = middle.iter().map(|segment| segment.words).max().unwrap_or(0);
        Self { head, middle, tail: tail.map(|ones| Segment::new(ones, false)), shortest, words }
    }

    /// Returns a pattern that no text matches.
    fn nothing() -> Self {
        let head = Segment::new(Vec::new(), false);
        Self { head, middle: Vec::new(), tail: None, shortest: usize::MAX, words: 0 }
    }

    /// Returns whether only texts that are longer than any key could match.
    pub fn is_too_long(&self) -> bool {
        self.shortest == usize::MAX
    }

    /// Returns whether the pattern matches the whole text.
    pub fn matches(&self, text: &[u8]) -> bool {
        if text.len() < self.shortest {
            return false;
        }
        let Some(tail) = &self.tail else { return self.head.matches(text) };
        let (head, text) = text.split_at(self.head.ones.len());
        let (mut text, end) = text.split_at(text.len() - tail.ones.len());
        if !self.head.matches(head) || !tail.matches(end) {
            return false;
        }
        self.middle.iter().all(|segment| match segment.find(text) {
            Some(end) => {
                text = &text[end..];
                true
            }
            None => false,
        })
    }

    /// Returns the approximate work of matching a text of this length, in units of some
    /// nanoseconds.
    pub fn work(&self, len: usize) -> usize {
        if len < self.shortest { 1 } else { 1 + len * self.words.max(1) / 8 }
    }
}

/// Returns the position at the front of a pattern, and the number of bytes that it takes there.
fn one(pattern: &[u8]) -> (One, usize) {
    match pattern {
        [b'?', ..] => (One::Any, 1),
        [b'\\', literal, ..] => (One::Byte(*literal), 2),
        [b'[', rest @ ..] => {
            let (negated, mut at) = match rest {
                [b'^', ..] => (true, 1),
                _ => (false, 0),
            };
            let mut set = Box::new([0_u64; 4]);
            let mut add = |from: u8, to: u8| {
                for byte in from..=to {
                    set[usize::from(byte >> 6)] |= 1 << (byte & 63);
                }
            };
            loop {
                match &rest[at..] {
                    // A class without an end extends to the end of the pattern.
                    [] => break,
                    [b']', ..] => {
                        at += 1;
                        break;
                    }
                    [b'\\', literal, ..] => {
                        add(*literal, *literal);
                        at += 2;
                    }
                    [from, b'-', to, ..] => {
                        add(*from.min(to), *from.max(to));
                        at += 3;
                    }
                    [literal, ..] => {
                        add(*literal, *literal);
                        at += 1;
                    }
                }
            }
            if negated {
                set.iter_mut().for_each(|word| *word = !*word);
            }
            (One::Class(set), 1 + at)
        }
        [literal, ..] => (One::Byte(*literal), 1),
        [] => (One::Any, 0),
    }
}

/// Returns the bytes before the first special byte, with which every match starts.
pub fn literal_prefix(pattern: &[u8]) -> &[u8] {
    let end = pattern.iter().position(|byte| matches!(byte, b'*' | b'?' | b'[' | b'\\'));
    &pattern[..end.unwrap_or(pattern.len())]
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use proptest::prelude::*;

    use super::*;

    fn matches(pattern: &[u8], text: &[u8]) -> bool {
        Pattern::new(pattern).matches(text)
    }

    #[test]
    fn patterns_match_as_in_redis() {
        let yes = [
            ("*", ""),
            ("a*c*e", "abcde"),
            ("h?llo", "hello"),
            ("h[ae]llo", "hallo"),
            ("h[^e]llo", "hallo"),
            ("[a-c]x", "bx"),
            ("[c-a]x", "bx"),
            ("\\*", "*"),
            ("a\\[b", "a[b"),
            ("*a*a*a", "aaaa"),
            ("*0123456789*", "x0123456789x"),
            ("", ""),
        ];
        let no = [
            ("", "a"),
            ("a", ""),
            ("h[^e]llo", "hello"),
            ("a*b", "a"),
            ("a*a", "a"),
            ("\\*", "a"),
            ("?", ""),
        ];
        let long = b"a".repeat(key::MAX_LEN + 1);
        assert!(!Pattern::new(&long).matches(&long), "no key is so long");
        assert!(Pattern::new(&long).is_too_long());
        assert!(Pattern::new(&long[1..]).matches(&long[1..]));
        assert!(matches(b"a**b***", b"axxbxx") && !matches(b"**a", b"ab"));
        for (pattern, text) in yes {
            assert!(matches(pattern.as_bytes(), text.as_bytes()), "{pattern} {text}");
        }
        for (pattern, text) in no {
            assert!(!matches(pattern.as_bytes(), text.as_bytes()), "{pattern} {text}");
        }
    }

    /// Returns the definition, which takes exponential time.
    fn by_definition(pattern: &[u8], text: &[u8]) -> bool {
        match pattern {
            [] => text.is_empty(),
            [b'*', rest @ ..] => (0..=text.len()).any(|at| by_definition(rest, &text[at..])),
            pattern => {
                let (one, used) = one(pattern);
                text.split_first().is_some_and(|(first, text)| {
                    one.takes(*first) && by_definition(&pattern[used..], text)
                })
            }
        }
    }

    proptest! {
        #[test]
        fn a_compiled_pattern_matches_by_definition(
            pattern in "[ab*?]{0,14}(\\[\\^?[ab]{0,2}\\])?[ab*]{0,12}",
            text in "[abc]{0,24}",
        ) {
            prop_assert_eq!(
                matches(pattern.as_bytes(), text.as_bytes()),
                by_definition(pattern.as_bytes(), text.as_bytes())
            );
        }

        #[test]
        fn long_segments_are_found(before in "[ab]{0,90}", inner in "[ab]{60,140}", after in "[ab]{0,9}") {
            let pattern = Pattern::new(format!("*{inner}*").as_bytes());
            let text = format!("{before}{inner}{after}");
            prop_assert!(pattern.matches(text.as_bytes()));
            prop_assert!(!pattern.matches(text.replace(&inner, "c").as_bytes()));
        }
    }

    #[test]
    fn no_pattern_is_slow() {
        let text = vec![b'a'; key::MAX_LEN];
        let worst = [
            b"*a".repeat(30_000),
            [&b"*"[..], &b"a".repeat(30_000), b"b*"].concat(),
            [&b"["[..], &b"x".repeat(1_000_000)].concat(),
            b"a*".repeat(1_000_000),
            [&b"*"[..], &b"a?".repeat(8_000), b"b*"].concat(),
        ];
        for pattern in worst {
            let begin = Instant::now();
            let pattern = Pattern::new(&pattern);
            let answer = pattern.matches(&text);
            // A direct implementation of the definition took hours.
            assert!(begin.elapsed() < Duration::from_secs(5), "{:?} {answer}", begin.elapsed());
        }
    }
}
