//! Requests: arrays of bulk strings, or inline commands, parsed as their bytes arrive.
//!
//! This parser is not taken from the protocol crate, because clients depend on the limits and error
//! texts of Redis. It also parses a command of a million arguments that arrives in small pieces
//! only once, and not once per piece. It allocates no memory for a length that was only declared.

use std::ops::Range;

/// Maximum length of a bulk string, in bytes; `proto-max-bulk-len` of Redis.
const MAX_BULK: i64 = 512 << 20;
/// Maximum number of arguments of a command.
const MAX_ARGUMENTS: i64 = i32::MAX as i64;
/// Maximum length of a line, which is an inline command or a length.
const MAX_LINE: usize = 64 << 10;
/// Maximum number of bytes of an incomplete command, unless [`Requests::limit`] sets another one.
const MAX_COMMAND: usize = 1 << 30;
/// The limits for a client that has not authenticated are lower.
const MAX_ARGUMENTS_BEFORE_AUTH: i64 = 10;
const MAX_BULK_BEFORE_AUTH: i64 = 16_384;

/// A violation of the protocol. The text is that of Redis, and the connection is closed after the
/// error is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProtocolError(pub String);

const TOO_LARGE: &str = "too big query buffer";

impl ProtocolError {
    /// Returns whether the request exceeded the maximum size of a command.
    pub(crate) fn is_too_large(&self) -> bool {
        self.0.ends_with(TOO_LARGE)
    }
}

fn broken<T>(what: impl Into<String>) -> Result<T, ProtocolError> {
    Err(ProtocolError(format!("ERR Protocol error: {}", what.into())))
}

/// Bytes that were received and have not been executed.
#[derive(Debug)]
pub(crate) struct Requests {
    buffer: Vec<u8>,
    /// Maximum size of an incomplete command, in bytes.
    most: usize,
    /// Where the incomplete command starts, and the position up to which it is parsed.
    start: usize,
    at: usize,
    /// Number of missing arguments, and the declared length of the next one.
    missing: usize,
    bulk: Option<usize>,
    arguments: Vec<Range<usize>>,
    /// The arguments of an inline command, without quotes and escapes.
    unquoted: Vec<u8>,
}

/// The arguments of one command, which begin with its name. Never empty.
#[derive(Default, Debug, Clone, Copy)]
pub(crate) struct Arguments<'a> {
    bytes: &'a [u8],
    ranges: &'a [Range<usize>],
}

/// A request with its own copy of the bytes, independent of the buffer.
#[derive(Debug)]
pub(crate) struct OwnedRequest {
    bytes: Vec<u8>,
    ranges: Vec<Range<usize>>,
}

impl OwnedRequest {
    /// Creates a request with these arguments.
    pub fn of(arguments: &[&[u8]]) -> Self {
        let bytes = arguments.concat();
        let mut end = 0;
        let range = |argument: &&[u8]| {
            end += argument.len();
            end - argument.len()..end
        };
        Self { bytes, ranges: arguments.iter().map(range).collect() }
    }

    pub fn arguments(&self) -> Arguments<'_> {
        Arguments { bytes: &self.bytes, ranges: &self.ranges }
    }

    /// Returns the memory that the request occupies, in bytes.
    pub fn size(&self) -> usize {
        self.bytes.len() + size_of_val(self.ranges.as_slice()) + size_of::<Self>()
    }
}

impl<'a> Arguments<'a> {
    pub fn to_owned_request(self) -> OwnedRequest {
        let mut bytes = Vec::new();
        let ranges = self.iter_from(0).map(|argument| {
            let start = bytes.len();
            bytes.extend_from_slice(argument);
            start..bytes.len()
        });
        let ranges = ranges.collect();
        OwnedRequest { bytes, ranges }
    }

    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Returns the argument at `at`, which the command's arity must guarantee.
    pub fn get(&self, at: usize) -> &'a [u8] {
        self.ranges.get(at).map_or(&[], |range| &self.bytes[range.clone()])
    }

    /// Returns the arguments from `from` on as a request. There must be at least one.
    pub fn tail(self, from: usize) -> Self {
        Self { ranges: self.ranges.get(from..).unwrap_or(&[]), ..self }
    }

    pub fn iter_from(&self, from: usize) -> impl ExactSizeIterator<Item = &'a [u8]> {
        let bytes = self.bytes;
        self.ranges[from.min(self.ranges.len())..].iter().map(move |range| &bytes[range.clone()])
    }
}

impl Default for Requests {
    fn default() -> Self {
        Self {
            buffer: Vec::new(),
            most: MAX_COMMAND,
            start: 0,
            at: 0,
            missing: 0,
            bulk: None,
            arguments: Vec::new(),
            unquoted: Vec::new(),
        }
    }
}

impl Requests {
    /// Sets the maximum number of bytes of a command.
    pub fn limit(&mut self, most: usize) {
        self.most = most;
    }

    /// Returns the memory that the requests occupy, in bytes.
    pub fn size(&self) -> usize {
        self.buffer.capacity() + self.arguments.capacity() * size_of::<Range<usize>>()
    }

    /// Returns the number of received bytes that belong to requests that have not been executed.
    pub fn unread(&self) -> usize {
        self.buffer.len() - self.start.min(self.buffer.len())
    }

    /// Returns the buffer to append received bytes to. Drops executed requests.
    pub fn receive(&mut self) -> &mut Vec<u8> {
        const READ: usize = 16 << 10;
        const KEEP: usize = 1 << 20;
        self.discard();
        if self.buffer.is_empty() && self.buffer.capacity() > KEEP {
            self.buffer = Vec::new();
        }
        // A large bulk string gets room in proportion to the bytes that have arrived, not for its
        // declared length.
        let room = self.buffer.len().clamp(READ, KEEP);
        self.buffer.reserve(room);
        &mut self.buffer
    }

    /// Moves the incomplete command to the front.
    fn discard(&mut self) {
        if self.missing == 0 {
            // The previous command has been executed.
            self.start = self.at;
            self.arguments.clear();
        }
        if self.start > 0 {
            self.buffer.drain(..self.start);
            self.at -= self.start;
            for range in &mut self.arguments {
                *range = range.start - self.start..range.end - self.start;
            }
            self.start = 0;
        }
    }

    /// Returns the next complete command; `None` if more bytes are needed.
    ///
    /// # Errors
    /// The bytes are not a request. The caller must close the connection.
    pub fn next(&mut self, authenticated: bool) -> Result<Option<Arguments<'_>>, ProtocolError> {
        while self.missing == 0 {
            // The previous command has been executed.
            self.start = self.at;
            self.arguments.clear();
            let Some(&first) = self.buffer.get(self.at) else { return Ok(None) };
            if first != b'*' {
                match self.inline()? {
                    None => return Ok(None),
                    Some(true) => {
                        return Ok(Some(Arguments {
                            bytes: &self.unquoted,
                            ranges: &self.arguments,
                        }));
                    }
                    Some(false) => continue,
                }
            }
            let count = match self.short_length(b'*') {
                // The number has at most two digits.
                Some(count) => count as i64,
                None => {
                    let Some(line) = self.line("too big mbulk count string")? else {
                        return Ok(None);
                    };
                    let count = number(&self.buffer[line]).filter(|n| *n <= MAX_ARGUMENTS);
                    let Some(count) = count else { return broken("invalid multibulk length") };
                    count
                }
            };
            if !authenticated && count > MAX_ARGUMENTS_BEFORE_AUTH {
                return broken("unauthenticated multibulk length");
            }
            // As in Redis, an array with zero or fewer elements is ignored.
            self.missing = usize::try_from(count).unwrap_or(0);
        }
        while self.missing > 0 {
            let length = match self.bulk.or_else(|| self.short_length(b'$')) {
                Some(length) => length,
                None => match self.long_length(authenticated)? {
                    Some(length) => length,
                    None => return self.wait_for_more(),
                },
            };
            if self.buffer.len() - self.at < length + 2 {
                self.bulk = Some(length);
                return self.wait_for_more();
            }
            self.arguments.push(self.at..self.at + length);
            // Like Redis, the parser does not check the two bytes after a bulk string.
            self.at += length + 2;
            self.bulk = None;
            self.missing -= 1;
        }
        Ok(Some(Arguments { bytes: &self.buffer, ranges: &self.arguments }))
    }

    /// Returns the command that [`next`](Self::next) has returned last.
    pub fn current(&self) -> Arguments<'_> {
        let is_inline = self.buffer.get(self.start) != Some(&b'*');
        let bytes = if is_inline { &self.unquoted } else { &self.buffer };
        Arguments { bytes, ranges: &self.arguments }
    }

    /// Returns whether the next command begins with the same bytes as the [current](Self::current)
    /// one: number of arguments, name and first argument.
    pub fn repeats(&self) -> bool {
        let Some(first) = self.arguments.get(1) else { return false };
        let present = self.buffer.get(self.start..first.end).unwrap_or_default();
        let next = self.buffer.get(self.at..).unwrap_or_default();
        self.missing == 0 && present.first() == Some(&b'*') && next.starts_with(present)
    }

    /// Returns how many complete commands follow that [repeat](Self::repeats) the current one, but
    /// at most `most`.
    pub fn repetitions(&self, most: usize) -> usize {
        let Some(first) = self.arguments.get(1) else { return 0 };
        let present = self.buffer.get(self.start..first.end).unwrap_or_default();
        let mut rest = self.buffer.get(self.at..).unwrap_or_default();
        let mut found = 0;
        if self.missing > 0 || present.first() != Some(&b'*') {
            return 0;
        }
        while found < most
            && rest.starts_with(present)
            && let Some((count, mut at)) = length(rest, b'*')
        {
            for _ in 0..count {
                let argument = rest.get(at..).and_then(|rest| length(rest, b'$'));
                let Some((length, used)) = argument else { return found };
                at = at.saturating_add(used + 2).saturating_add(length);
            }
            let Some(behind) = rest.get(at..) else { return found };
            rest = behind;
            found += 1;
        }
        found
    }

    /// Called if the command is incomplete: more bytes are needed, unless it is too large already.
    fn wait_for_more(&self) -> Result<Option<Arguments<'_>>, ProtocolError> {
        if self.buffer.len() - self.start > self.most { broken(TOO_LARGE) } else { Ok(None) }
    }

    /// Stores the first argument of each of the following complete commands in `keys`, as far as
    /// there is room, and returns their number. Consumes nothing. Stops at the first command that
    /// is incomplete or invalid. Before the client has authenticated, stores nothing.
    pub fn ahead<'a>(&'a self, authenticated: bool, keys: &mut [&'a [u8]]) -> usize {
        self.ahead_at(1, authenticated, keys)
    }

    /// Works like [`ahead`](Self::ahead), for the argument at a position. Commands that have fewer
    /// arguments are passed over.
    pub fn ahead_at<'a>(
        &'a self,
        position: usize,
        authenticated: bool,
        keys: &mut [&'a [u8]],
    ) -> usize {
        let mut found = 0;
        let mut rest = self.buffer.get(self.at..).unwrap_or_default();
        if self.missing > 0 || !authenticated {
            return 0;
        }
        while let Some(place) = keys.get_mut(found)
            && let Some((count, mut at)) = length(rest, b'*')
        {
            for number in 0..count {
                let Some((length, used)) = length(&rest[at..], b'$') else { return found };
                let start = at + used;
                let Some(argument) = rest.get(start..start.saturating_add(length)) else {
                    return found;
                };
                if number == position {
                    *place = argument;
                }
                at = start + length + 2;
                if at > rest.len() {
                    return found;
                }
            }
            found += usize::from(count > position);
            rest = &rest[at..];
        }
        found
    }

    /// Parses the number after this sign if it has only few digits, as is usual. All other cases
    /// are left to [`line`](Self::line).
    #[inline]
    fn short_length(&mut self, sign: u8) -> Option<usize> {
        let rest = self.buffer.get(self.at..)?;
        let (length, used) = match rest {
            [first, one @ b'0'..=b'9', b'\r', _, ..] if *first == sign => {
                (usize::from(one - b'0'), 4)
            }
            [first, ten @ b'1'..=b'9', one @ b'0'..=b'9', b'\r', _, ..] if *first == sign => {
                (usize::from(ten - b'0') * 10 + usize::from(one - b'0'), 5)
            }
            _ => return None,
        };
        self.at += used;
        Some(length)
    }

    /// Returns the length of the bulk string that begins here; `None` if its line is incomplete.
    fn long_length(&mut self, authenticated: bool) -> Result<Option<usize>, ProtocolError> {
        let first = self.buffer.get(self.at).copied();
        if let Some(other) = first.filter(|byte| *byte != b'$') {
            return broken(format!("expected '$', got '{}'", char::from(other)));
        }
        let Some(line) = self.line("too big bulk count string")? else { return Ok(None) };
        let length = number(&self.buffer[line]).filter(|n| (0..=MAX_BULK).contains(n));
        let Some(length) = length else { return broken("invalid bulk length") };
        if !authenticated && length > MAX_BULK_BEFORE_AUTH {
            return broken("unauthenticated bulk length");
        }
        Ok(Some(usize::try_from(length).unwrap_or(0)))
    }

    /// Returns the range of the number after `*` or `$`, up to the end of its line.
    fn line(&mut self, too_long: &str) -> Result<Option<Range<usize>>, ProtocolError> {
        let rest = &self.buffer[self.at..];
        let Some(end) = rest.iter().take(MAX_LINE).position(|byte| *byte == b'\r') else {
            return if rest.len() >= MAX_LINE { broken(too_long) } else { Ok(None) };
        };
        if rest.len() < end + 2 {
            return Ok(None);
        }
        let line = self.at + 1..self.at + end;
        self.at += end + 2;
        Ok(Some(line))
    }

    /// Parses an inline command. Returns `Some(false)` for an empty line.
    fn inline(&mut self) -> Result<Option<bool>, ProtocolError> {
        let rest = &self.buffer[self.at..];
        let Some(end) = rest.iter().take(MAX_LINE).position(|byte| *byte == b'\n') else {
            return if rest.len() >= MAX_LINE {
                broken("too big inline request")
            } else {
                Ok(None)
            };
        };
        let line = rest[..end].strip_suffix(b"\r").unwrap_or(&rest[..end]);
        self.unquoted.clear();
        let Some(words) = split_words(line, &mut self.unquoted) else {
            return broken("unbalanced quotes in request");
        };
        self.arguments = words;
        self.at += end + 1;
        Ok(Some(!self.arguments.is_empty()))
    }
}

/// Parses all commands in `bytes` up to the first error, as if the bytes arrived in pieces of
/// `piece` bytes. For tests and the fuzz target: the result must not depend on `piece`.
pub fn parse_in_pieces(bytes: &[u8], piece: usize) -> (Vec<Vec<Vec<u8>>>, Option<ProtocolError>) {
    let mut requests = Requests::default();
    let mut commands = Vec::new();
    for piece in bytes.chunks(piece.max(1)) {
        requests.receive().extend_from_slice(piece);
        loop {
            match requests.next(true) {
                Ok(Some(arguments)) => {
                    commands.push(arguments.iter_from(0).map(<[u8]>::to_vec).collect());
                }
                Ok(None) => break,
                Err(error) => return (commands, Some(error)),
            }
        }
    }
    (commands, None)
}

/// Parses a short length after a sign, and returns it with the number of bytes of its line.
fn length(bytes: &[u8], sign: u8) -> Option<(usize, usize)> {
    const DIGITS: usize = 6;
    // Most lengths have one or two digits.
    match bytes {
        [first, ..] if *first != sign => return None,
        [_, one @ b'0'..=b'9', b'\r', _, ..] => return Some((usize::from(one - b'0'), 4)),
        [_, ten @ b'0'..=b'9', one @ b'0'..=b'9', b'\r', _, ..] => {
            return Some((usize::from(ten - b'0') * 10 + usize::from(one - b'0'), 5));
        }
        _ => {}
    }
    let mut length = 0;
    for (at, byte) in bytes.iter().enumerate().skip(1).take(DIGITS + 1) {
        match byte {
            b'0'..=b'9' => length = length * 10 + usize::from(byte - b'0'),
            b'\r' => return Some((length, at + 2)).filter(|(_, used)| *used <= bytes.len()),
            _ => return None,
        }
    }
    None
}

/// Parses a decimal number like Redis: without blanks, leading zeroes or a plus sign.
pub(crate) fn number(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let plain = match digits {
        [b'0'] => digits.len() == text.len(),
        [b'1'..=b'9', rest @ ..] => rest.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    if !plain {
        return None;
    }
    /// Maximum number of digits with which a number cannot overflow.
    const SAFE: usize = 18;
    if digits.len() > SAFE {
        return std::str::from_utf8(text).ok()?.parse().ok();
    }
    let number = digits.iter().fold(0, |number, digit| number * 10 + i64::from(digit - b'0'));
    Some(if digits.len() < text.len() { -number } else { number })
}

/// Splits a line into words like Redis' inline protocol: blanks separate words, `"…"` quotes with
/// escapes, `'…'` quotes without. Appends the words to `out` and returns their ranges; `None` if a
/// quote is not closed.
fn split_words(line: &[u8], out: &mut Vec<u8>) -> Option<Vec<Range<usize>>> {
    let mut words = Vec::new();
    let mut at = 0;
    loop {
        while line.get(at).is_some_and(u8::is_ascii_whitespace) {
            at += 1;
        }
        if at == line.len() {
            return Some(words);
        }
        let start = out.len();
        let mut quote = None;
        loop {
            let Some(&byte) = line.get(at) else {
                if quote.is_some() {
                    return None;
                }
                break;
            };
            match (quote, byte) {
                (None, b'"' | b'\'') => quote = Some(byte),
                (None, byte) if byte.is_ascii_whitespace() => break,
                (Some(b'"'), b'\\') if at + 1 < line.len() => {
                    let (byte, used) = escaped(&line[at + 1..]);
                    out.push(byte);
                    at += used;
                }
                (Some(b'\''), b'\\') if line.get(at + 1) == Some(&b'\'') => {
                    out.push(b'\'');
                    at += 1;
                }
                (Some(open), byte) if byte == open => {
                    // A closing quote must end the word.
                    if line.get(at + 1).is_some_and(|next| !next.is_ascii_whitespace()) {
                        return None;
                    }
                    quote = None;
                }
                (_, byte) => out.push(byte),
            }
            at += 1;
        }
        words.push(start..out.len());
    }
}

/// Returns the byte for the escape sequence that follows a backslash, and the length of the
/// sequence.
fn escaped(rest: &[u8]) -> (u8, usize) {
    let hex = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    if let [b'x', high, low, ..] = rest
        && let (Some(high), Some(low)) = (hex(*high), hex(*low))
    {
        return (high * 16 + low, 3);
    }
    let byte = match rest[0] {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'b' => 8,
        b'a' => 7,
        other => other,
    };
    (byte, 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(bytes: &[u8], piece: usize) -> Result<Vec<Vec<Vec<u8>>>, ProtocolError> {
        let (commands, error) = parse_in_pieces(bytes, piece);
        error.map_or(Ok(commands), Err)
    }

    #[test]
    fn commands_are_the_same_in_any_pieces() {
        let bytes = b"*2\r\n$3\r\nGET\r\n$2\r\na\n\r\n*0\r\n\r\nPING \"a \\x41\\n\" 'b\\'c'\r\n*1\r\n$0\r\n\r\n*-1\r\n*1\r\n$4\r\nPING\r\n";
        let whole = parse(bytes, bytes.len()).unwrap();
        let expected: [&[&[u8]]; 4] =
            [&[b"GET", b"a\n"], &[b"PING", b"a A\n", b"b'c"], &[b""], &[b"PING"]];
        assert_eq!(whole, expected);
        for piece in 1..20 {
            assert_eq!(parse(bytes, piece).unwrap(), whole, "in pieces of {piece}");
        }
    }

    #[test]
    fn repetitions_are_whole_commands_with_the_same_name_and_first_argument() {
        let add = |key: &str, member: &str| {
            let len = member.len();
            format!("*3\r\n$4\r\nSADD\r\n$1\r\n{key}\r\n${len}\r\n{member}\r\n").into_bytes()
        };
        let (one, all) = (add("k", "a"), [("k", "b"), ("k", "cde"), ("l", "f"), ("k", "g")]);
        let all = all.map(|(key, member)| add(key, member)).concat();
        let same = [one.len() + one.len(), one.len() + one.len() + one.len() + 2];
        for cut in one.len()..=one.len() + all.len() {
            let mut requests = Requests::default();
            requests.receive().extend_from_slice(&[&one[..], &all].concat()[..cut]);
            assert_eq!(requests.repetitions(9), 0, "no command is taken");
            assert!(requests.next(true).unwrap().is_some());
            let found = same.iter().filter(|end| **end <= cut).count();
            assert_eq!(requests.repetitions(9), found, "cut at {cut}");
            assert_eq!(requests.repetitions(1), found.min(1));
        }
    }

    #[test]
    fn a_look_ahead_finds_the_first_arguments_of_whole_commands() {
        let bytes = b"*2\r\n$3\r\nGET\r\n$2\r\nk1\r\n*1\r\n$4\r\nPING\r\n*3\r\n$3\r\nSET\r\n$2\r\nk2\r\n$1\r\nv\r\n";
        let mut requests = Requests::default();
        let mut whole = Vec::new();
        for cut in 0..=bytes.len() {
            requests = Requests::default();
            requests.receive().extend_from_slice(&bytes[..cut]);
            let mut keys = [&[][..]; 4];
            let found = requests.ahead(true, &mut keys);
            whole.push(found);
            assert_eq!(keys[..found], [b"k1".as_slice(), b"k2"][..found], "cut at {cut}");
        }
        assert_eq!(whole.last(), Some(&2));
        assert!(whole.is_sorted());
        assert_eq!(requests.ahead(true, &mut [&[][..]; 1]), 1);
        assert_eq!(requests.ahead(false, &mut [&[][..]; 1]), 0);
        // After a command that was taken, not within one.
        assert!(requests.next(true).unwrap().is_some());
        assert_eq!(requests.ahead(true, &mut [&[][..]; 4]), 1);
        for broken in ["*2\r\n$x", "*99999999\r\n", "GET a\r\n", "*2\r\n$999999\r\na", "*2\r"] {
            let mut requests = Requests::default();
            requests.receive().extend_from_slice(broken.as_bytes());
            assert_eq!(requests.ahead(true, &mut [&[][..]; 4]), 0, "{broken:?}");
            let _ = requests.next(true);
            assert_eq!(requests.ahead(true, &mut [&[][..]; 4]), 0, "{broken:?}");
        }
    }

    #[test]
    fn an_incomplete_command_waits_up_to_the_limit() {
        for (len, is_refused) in [(49, false), (50, false), (51, true), (200, true)] {
            let mut requests = Requests::default();
            requests.limit(50);
            let mut bytes = b"*1\r\n$400\r\n".to_vec();
            bytes.resize(len, b'x');
            requests.receive().extend_from_slice(&bytes);
            match requests.next(true) {
                Ok(found) => assert!(!is_refused && found.is_none(), "{len} bytes"),
                Err(error) => assert!(is_refused && error.0.ends_with(TOO_LARGE), "{len} bytes"),
            }
        }
    }

    #[test]
    fn broken_requests_get_redis_words() {
        let cases: [(&[u8], &str); 11] = [
            (b"*x\r\n", "invalid multibulk length"),
            (b"*01\r\n", "invalid multibulk length"),
            (b"*1x\r\n", "invalid multibulk length"),
            (b"*1\r\n$01\r\na", "invalid bulk length"),
            (b"*1\r\n$1x\r\na", "invalid bulk length"),
            (b"*2147483648\r\n", "invalid multibulk length"),
            (b"*1\r\n:1\r\n", "expected '$', got ':'"),
            (b"*1\r\n$-1\r\n", "invalid bulk length"),
            (b"*1\r\n$536870913\r\n", "invalid bulk length"),
            (b"get \"a\r\n", "unbalanced quotes in request"),
            (&[b'a'; 70_000], "too big inline request"),
        ];
        for (bytes, words) in cases {
            let error = parse(bytes, bytes.len()).unwrap_err();
            assert_eq!(error.0, format!("ERR Protocol error: {words}"));
        }
    }

    #[test]
    fn a_declared_length_allocates_nothing() {
        let mut requests = Requests::default();
        requests.receive().extend_from_slice(b"*1000000\r\n$536870912\r\nab");
        assert!(requests.next(true).unwrap().is_none());
        assert!(requests.receive().capacity() < 1 << 20);
    }

    #[test]
    fn numbers_are_as_strict_as_redis() {
        assert_eq!(number(b"-12"), Some(-12));
        assert_eq!(number(b"0"), Some(0));
        for most in [i64::MAX, i64::MIN, 999_999_999_999_999_999, -999_999_999_999_999_999, 10, -1]
        {
            assert_eq!(number(most.to_string().as_bytes()), Some(most));
        }
        for text in ["", "-", "+1", " 1", "01", "-0", "1a", "9223372036854775808"] {
            assert_eq!(number(text.as_bytes()), None, "{text:?}");
        }
    }
}
