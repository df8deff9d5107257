//! Replies of both protocols, parsed without changes.

/// A reply: its first byte, the rest of its line or its bytes, and its elements.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Frame {
    pub kind: u8,
    pub text: Vec<u8>,
    pub items: Vec<Frame>,
}

impl Frame {
    /// Parses one reply. Returns it and its length, or `None` if it is incomplete.
    pub fn parse(bytes: &[u8]) -> Option<(Self, usize)> {
        let end = bytes.windows(2).position(|pair| pair == b"\r\n")?;
        let (kind, text) = (bytes[0], bytes[1..end].to_vec());
        let mut used = end + 2;
        let mut frame = Self { kind, text, items: Vec::new() };
        let count = || -> Option<usize> { std::str::from_utf8(&frame.text).ok()?.parse().ok() };
        match (kind, count()) {
            (b'$' | b'=' | b'!', Some(length)) => {
                frame.text = bytes.get(used..used + length)?.to_vec();
                used += length + 2;
                if bytes.len() < used {
                    return None;
                }
            }
            // The text of a null remains -1.
            (b'*' | b'~' | b'>' | b'%', Some(count)) => {
                frame.text.clear();
                for _ in 0..count * if kind == b'%' { 2 } else { 1 } {
                    let (item, length) = Self::parse(&bytes[used..])?;
                    frame.items.push(item);
                    used += length;
                }
            }
            _ => {}
        }
        Some((frame, used))
    }

    pub fn is_error(&self) -> bool {
        self.kind == b'-'
    }

    /// Returns the integer, if the reply is one.
    pub fn integer(&self) -> Option<i64> {
        (self.kind == b':').then(|| std::str::from_utf8(&self.text).ok()?.parse().ok())?
    }

    /// Returns the reply with sorted elements; with `pairs`, sorts pairs of elements.
    pub fn sorted(&self, pairs: bool) -> Self {
        let mut frame = self.clone();
        if pairs || self.kind == b'%' {
            let mut all: Vec<_> = frame.items.chunks(2).map(<[Self]>::to_vec).collect();
            all.sort();
            frame.items = all.concat();
        } else {
            frame.items.sort();
        }
        frame
    }

    /// Returns the value of a field of a map, which is an array in RESP2.
    pub fn field(&self, name: &str) -> Option<&Self> {
        let mut pairs = self.items.chunks_exact(2);
        pairs.find(|pair| pair[0].text == name.as_bytes()).map(|pair| &pair[1])
    }

    pub fn show(&self) -> String {
        let mut shown = format!("{}{}", self.kind as char, self.text.escape_ascii());
        if shown.len() > 300 {
            shown.truncate(300);
            shown.push_str(&format!("… ({} bytes)", self.text.len()));
        }
        if !self.items.is_empty() {
            let items: Vec<String> = self.items.iter().map(Self::show).collect();
            shown.push_str(&format!("[{}]", items.join(", ")));
        }
        shown
    }
}

#[test]
fn frames_are_parsed_as_a_whole_or_not_at_all() {
    use crate::common::Extent;
    let bytes = b"*3\r\n$2\r\n\r\n\r\n%1\r\n+a\r\n:-1\r\n*-1\r\n";
    let (frame, used) = Frame::parse(bytes).unwrap();
    assert_eq!(used, bytes.len());
    assert_eq!(frame.items[0].text, b"\r\n");
    assert_eq!(frame.items[1].field("a").and_then(Frame::integer), Some(-1));
    assert_eq!((frame.items[2].kind, frame.items[2].text.as_slice()), (b'*', b"-1".as_slice()));
    let mut extent = Extent::default();
    for end in 0..bytes.len() {
        assert!(Frame::parse(&bytes[..end]).is_none(), "{end}");
        assert_eq!(extent.end(&bytes[..end]), None, "{end}");
    }
    assert_eq!(extent.end(&[&bytes[..], b"+OK\r\n"].concat()), Some(bytes.len()));
}
