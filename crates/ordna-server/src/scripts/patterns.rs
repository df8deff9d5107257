//! Lua patterns for the functions `find`, `match`, `gmatch` and `gsub` of the library `string`.
//!
//! Lua's own functions recurse in C for each item of a pattern, without a limit, and cannot be
//! interrupted. The functions of this module limit the depth of the recursion, as later versions of
//! Lua do, and end when the script is ended.

use std::ops::Deref;

use mlua::{BorrowedBytes, Lua, MultiValue, Value};

use crate::scripts::bits::{LibraryFunction, check_length, number_at, one};
use crate::scripts::control::Work;
use crate::scripts::numbers::general;

/// Maximum number of captures of a pattern, as in Lua 5.1.
const MOST_CAPTURES: usize = 32;
/// Maximum depth of the recursion of a match. Each repeated item of the pattern and each capture
/// adds a level. The limit of later versions of Lua is 200.
const DEEPEST: usize = 1001;
/// Number of bytes of a class that count as one step when they are read.
const CLASS_STEP: usize = 64;
/// Number of bytes that count as one step when they are compared.
const COMPARED_STEP: usize = 1024;
/// Bytes with a special meaning in a pattern.
const SPECIAL: &[u8] = b"^$*+?.([%-";

pub const FUNCTIONS: &[(&str, LibraryFunction)] = &[
    ("find", |lua, all| find(lua, &all, true)),
    ("match", |lua, all| find(lua, &all, false)),
    ("search", search),
    ("substitute", substitute),
];

/// A text that Lua holds, or one that was formatted from a number.
enum Text {
    Borrowed(BorrowedBytes),
    Owned(Vec<u8>),
}

impl Deref for Text {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Borrowed(bytes) => bytes,
            Self::Owned(bytes) => bytes,
        }
    }
}

fn text(all: &MultiValue, at: usize, function: &str) -> Result<Text, String> {
    match all.get(at) {
        Some(Value::String(text)) => Ok(Text::Borrowed(text.as_bytes())),
        Some(Value::Integer(number)) => Ok(Text::Owned(number.to_string().into_bytes())),
        Some(Value::Number(number)) => Ok(Text::Owned(general(*number, 14).into_bytes())),
        other => {
            let kind = other.map_or("no value", Value::type_name);
            Err(format!("bad argument #{} to '{function}' (string expected, got {kind})", at + 1))
        }
    }
}

fn failed(error: mlua::Error) -> String {
    error.to_string()
}

/// Returns the part of a pattern that Lua 5.1 reads, which ends at the first zero byte.
fn before_zero(pattern: &[u8]) -> &[u8] {
    pattern.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// Length of a capture.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Length {
    /// The capture is not closed yet.
    Open,
    /// The capture is a position.
    Position,
    Bytes(usize),
}

/// A match in progress. The pattern reads as the byte 0 at and after its end.
struct Matcher<'a> {
    source: &'a [u8],
    pattern: &'a [u8],
    captures: Vec<(usize, Length)>,
    depth: usize,
    work: Work,
}

/// The end of a match, or `None` if there is no match.
type Matched = Result<Option<usize>, String>;

impl<'a> Matcher<'a> {
    fn new(source: &'a [u8], pattern: &'a [u8], work: Work) -> Self {
        Self { source, pattern: before_zero(pattern), captures: Vec::new(), depth: 0, work }
    }

    /// Finds the first match that begins at or after a position. If the pattern begins with `^` and
    /// `is_anchor` is set, the match must begin at the position. Returns the bounds of the match.
    fn find(&mut self, from: usize, is_anchor: bool) -> Result<Option<(usize, usize)>, String> {
        let is_anchored = is_anchor && self.pattern.first() == Some(&b'^');
        let last = if is_anchored { from } else { self.source.len() };
        for start in from..=last {
            self.captures.clear();
            self.depth = 0;
            if let Some(end) = self.matches(start, usize::from(is_anchored))? {
                return Ok(Some((start, end)));
            }
        }
        Ok(None)
    }

    fn item(&self, at: usize) -> u8 {
        self.pattern.get(at).copied().unwrap_or(0)
    }

    /// Returns the position after the class that begins at `at`.
    fn class_end(&self, mut at: usize) -> Result<usize, String> {
        let first = self.item(at);
        at += 1;
        match first {
            b'%' if at >= self.pattern.len() => Err("malformed pattern (ends with '%')".to_owned()),
            b'%' => Ok(at + 1),
            b'[' => {
                at += usize::from(self.item(at) == b'^');
                loop {
                    if at >= self.pattern.len() {
                        return Err("malformed pattern (missing ']')".to_owned());
                    }
                    let is_escape = self.item(at) == b'%';
                    at += 1;
                    if is_escape && at < self.pattern.len() {
                        at += 1;
                    }
                    if self.item(at) == b']' {
                        return Ok(at + 1);
                    }
                }
            }
            _ => Ok(at),
        }
    }

    /// Returns whether the class from `at` to `end` contains the byte at a position of the source.
    fn is_single(&self, source: usize, at: usize, end: usize) -> bool {
        let Some(byte) = self.source.get(source).copied() else { return false };
        match self.item(at) {
            b'.' => true,
            b'%' => is_in_class(byte, self.item(at + 1)),
            b'[' => self.is_in_set(byte, at, end - 1),
            literal => literal == byte,
        }
    }

    /// Returns whether the set between the brackets at `at` and `end` contains a byte.
    fn is_in_set(&self, byte: u8, mut at: usize, end: usize) -> bool {
        let is_wanted = self.item(at + 1) != b'^';
        at += usize::from(!is_wanted) + 1;
        while at < end {
            if self.item(at) == b'%' {
                at += 1;
                if is_in_class(byte, self.item(at)) {
                    return is_wanted;
                }
            } else if self.item(at + 1) == b'-' && at + 2 < end {
                if (self.item(at)..=self.item(at + 2)).contains(&byte) {
                    return is_wanted;
                }
                at += 2;
            } else if self.item(at) == byte {
                return is_wanted;
            }
            at += 1;
        }
        !is_wanted
    }

    /// Matches the rest of the pattern from `at` on against the rest of the source from `source`
    /// on.
    fn matches(&mut self, source: usize, at: usize) -> Matched {
        if self.depth >= DEEPEST {
            return Err("pattern too complex".to_owned());
        }
        self.depth += 1;
        let end = self.matches_items(source, at)?;
        self.depth -= 1;
        Ok(end)
    }

    fn matches_items(&mut self, mut source: usize, mut at: usize) -> Matched {
        loop {
            self.work.step()?;
            if at >= self.pattern.len() {
                return Ok(Some(source));
            }
            match (self.item(at), self.item(at + 1)) {
                (b'(', b')') => return self.capture(source, at + 2, Length::Position),
                (b'(', _) => return self.capture(source, at + 1, Length::Open),
                (b')', _) => return self.end_capture(source, at + 1),
                (b'%', b'b') => {
                    let Some(end) = self.balance(source, at + 2)? else { return Ok(None) };
                    source = end;
                    at += 4;
                    continue;
                }
                (b'%', b'f') => {
                    at += 2;
                    if self.item(at) != b'[' {
                        return Err("missing '[' after '%f' in pattern".to_owned());
                    }
                    let end = self.class_end(at)?;
                    self.work.steps((end - at) / CLASS_STEP)?;
                    let before = source.checked_sub(1).and_then(|at| self.source.get(at));
                    let before = before.copied().unwrap_or(0);
                    let next = self.source.get(source).copied().unwrap_or(0);
                    if self.is_in_set(before, at, end - 1) || !self.is_in_set(next, at, end - 1) {
                        return Ok(None);
                    }
                    at = end;
                    continue;
                }
                (b'%', digit) if digit.is_ascii_digit() => {
                    let Some(end) = self.repeated(source, digit)? else { return Ok(None) };
                    source = end;
                    at += 2;
                    continue;
                }
                (b'$', _) if at + 1 == self.pattern.len() => {
                    return Ok((source == self.source.len()).then_some(source));
                }
                _ => {}
            }
            let end = self.class_end(at)?;
            self.work.steps((end - at) / CLASS_STEP)?;
            let is_single = self.is_single(source, at, end);
            match self.item(end) {
                b'?' => {
                    if is_single && let Some(end) = self.matches(source + 1, end + 1)? {
                        return Ok(Some(end));
                    }
                    at = end + 1;
                }
                b'*' => return self.most(source, at, end),
                b'+' if is_single => return self.most(source + 1, at, end),
                b'+' => return Ok(None),
                b'-' => return self.fewest(source, at, end),
                _ if is_single => {
                    source += 1;
                    at = end;
                }
                _ => return Ok(None),
            }
        }
    }

    /// Matches as many repetitions of a class as possible.
    fn most(&mut self, source: usize, at: usize, end: usize) -> Matched {
        let (mut count, mut bytes) = (0, 0);
        while self.is_single(source + count, at, end) {
            count += 1;
            bytes += end - at;
            if bytes >= CLASS_STEP {
                self.work.steps(bytes / CLASS_STEP)?;
                bytes = 0;
            }
        }
        for count in (0..=count).rev() {
            let end = self.matches(source + count, end + 1)?;
            if end.is_some() {
                return Ok(end);
            }
        }
        Ok(None)
    }

    /// Matches as few repetitions of a class as possible.
    fn fewest(&mut self, mut source: usize, at: usize, end: usize) -> Matched {
        loop {
            let found = self.matches(source, end + 1)?;
            if found.is_some() {
                return Ok(found);
            }
            self.work.steps((end - at) / CLASS_STEP)?;
            if !self.is_single(source, at, end) {
                return Ok(None);
            }
            source += 1;
        }
    }

    fn capture(&mut self, source: usize, at: usize, length: Length) -> Matched {
        if self.captures.len() >= MOST_CAPTURES {
            return Err("too many captures".to_owned());
        }
        let level = self.captures.len();
        self.captures.push((source, length));
        let end = self.matches(source, at)?;
        if end.is_none() {
            self.captures.truncate(level);
        }
        Ok(end)
    }

    fn end_capture(&mut self, source: usize, at: usize) -> Matched {
        let open = self.captures.iter().rposition(|capture| capture.1 == Length::Open);
        let open = open.ok_or("invalid pattern capture")?;
        self.captures[open].1 = Length::Bytes(source - self.captures[open].0);
        let end = self.matches(source, at)?;
        if end.is_none() {
            self.captures[open].1 = Length::Open;
        }
        Ok(end)
    }

    /// Returns the end of a balanced part (`%b`). The pattern has its two delimiters at `at`.
    fn balance(&mut self, source: usize, at: usize) -> Matched {
        if at + 1 >= self.pattern.len() {
            return Err("unbalanced pattern".to_owned());
        }
        let (open, close) = (self.item(at), self.item(at + 1));
        if self.source.get(source) != Some(&open) {
            return Ok(None);
        }
        let mut depth = 1_usize;
        for (passed, byte) in self.source[source + 1..].iter().enumerate() {
            if passed % 64 == 63 {
                self.work.step()?;
            }
            if *byte == close {
                depth -= 1;
                if depth == 0 {
                    return Ok(Some(source + passed + 2));
                }
            } else if *byte == open {
                depth += 1;
            }
        }
        Ok(None)
    }

    /// Returns the end of a part that equals the capture with this digit.
    fn repeated(&mut self, source: usize, digit: u8) -> Matched {
        let capture = digit.checked_sub(b'1').and_then(|at| self.captures.get(usize::from(at)));
        let Some((start, length)) = capture.filter(|capture| capture.1 != Length::Open) else {
            return Err("invalid capture index".to_owned());
        };
        // Lua treats a position as a length that no text has.
        let Length::Bytes(length) = *length else { return Ok(None) };
        self.work.steps(length / COMPARED_STEP)?;
        let wanted = &self.source[*start..start + length];
        Ok(self.source[source..].starts_with(wanted).then_some(source + length))
    }

    /// Returns the capture with a number, or the whole match if the pattern has no captures.
    fn value(&self, lua: &Lua, at: usize, whole: (usize, usize)) -> Result<Value, String> {
        let bytes = match self.captures.get(at) {
            None if at == 0 => &self.source[whole.0..whole.1],
            None => return Err("invalid capture index".to_owned()),
            Some((_, Length::Open)) => return Err("unfinished capture".to_owned()),
            Some((start, Length::Position)) => return Ok(Value::Number((start + 1) as f64)),
            Some((start, Length::Bytes(length))) => &self.source[*start..start + length],
        };
        lua.create_string(bytes).map(Value::String).map_err(failed)
    }

    /// Adds all captures to `values`, or the whole match if there are none and `or_whole` is set.
    fn values(
        &self,
        lua: &Lua,
        whole: (usize, usize),
        or_whole: bool,
        values: &mut Vec<Value>,
    ) -> Result<(), String> {
        let count = self.captures.len().max(usize::from(or_whole));
        for at in 0..count {
            values.push(self.value(lua, at, whole)?);
        }
        Ok(())
    }
}

/// Returns whether a byte is in a class such as `a`. If `class` is not a class, compares the bytes.
fn is_in_class(byte: u8, class: u8) -> bool {
    let is_in = match class.to_ascii_lowercase() {
        b'a' => byte.is_ascii_alphabetic(),
        b'c' => byte.is_ascii_control(),
        b'd' => byte.is_ascii_digit(),
        b'l' => byte.is_ascii_lowercase(),
        b'p' => byte.is_ascii_punctuation(),
        b's' => matches!(byte, b' ' | 0x09..=0x0D),
        b'u' => byte.is_ascii_uppercase(),
        b'w' => byte.is_ascii_alphanumeric(),
        b'x' => byte.is_ascii_hexdigit(),
        b'z' => byte == 0,
        _ => return byte == class,
    };
    is_in == class.is_ascii_lowercase()
}

/// Finds the first occurrence of a text in another one.
fn find_plain(text: &[u8], wanted: &[u8], work: &mut Work) -> Matched {
    let Some(first) = wanted.first() else { return Ok(Some(0)) };
    let mut at = 0;
    while let Some(next) = text[at..].iter().position(|byte| byte == first) {
        at += next;
        if text.len() - at < wanted.len() {
            break;
        }
        work.steps(1 + wanted.len() / COMPARED_STEP)?;
        if text[at..].starts_with(wanted) {
            return Ok(Some(at));
        }
        at += 1;
    }
    Ok(None)
}

/// Implements `string.find(text, pattern [, from [, plain]])` and
/// `string.match(text, pattern [, from])`.
fn find(lua: &Lua, all: &MultiValue, bounds: bool) -> Result<MultiValue, String> {
    let name = if bounds { "find" } else { "match" };
    let (source, pattern) = (text(all, 0, name)?, text(all, 1, name)?);
    let from = match all.get(2) {
        None | Some(Value::Nil) => 1,
        Some(_) => number_at(all, 2)? as i64,
    };
    let len = i64::try_from(source.len()).unwrap_or(i64::MAX);
    let from = if from < 0 { from.saturating_add(len).saturating_add(1) } else { from };
    let from = (from.max(1) - 1).min(len) as usize;
    let mut work = Work::of(lua);
    let is_plain = !matches!(all.get(3), None | Some(Value::Nil | Value::Boolean(false)));
    let has_special = before_zero(&pattern).iter().any(|byte| SPECIAL.contains(byte));
    if bounds && (is_plain || !has_special) {
        let found = find_plain(&source[from..], &pattern, &mut work)?;
        let Some(start) = found.map(|at| from + at) else { return Ok(one(Value::Nil)) };
        let ends = [start + 1, start + pattern.len()];
        return Ok(MultiValue::from_iter(ends.map(|at| Value::Number(at as f64))));
    }
    let mut matcher = Matcher::new(&source, &pattern, work);
    let Some(whole) = matcher.find(from, true)? else { return Ok(one(Value::Nil)) };
    let mut values = Vec::new();
    if bounds {
        values.extend([whole.0 + 1, whole.1].map(|at| Value::Number(at as f64)));
    }
    matcher.values(lua, whole, !bounds, &mut values)?;
    Ok(MultiValue::from_iter(values))
}

/// Implements `search(text, pattern, from, is_anchor, name)`. Returns the bounds of the first match
/// from a position on, and its captures, or nothing. The prelude implements `gmatch` and `gsub`
/// with it. `name` is the name of the function that was called.
fn search(lua: &Lua, all: MultiValue) -> Result<MultiValue, String> {
    let name = match all.get(4) {
        Some(Value::String(name)) => String::from_utf8_lossy(&name.as_bytes()).into_owned(),
        _ => String::new(),
    };
    let (source, pattern) = (text(&all, 0, &name)?, text(&all, 1, &name)?);
    let from = number_at(&all, 2)? as usize - 1;
    if from > source.len() {
        return Ok(MultiValue::new());
    }
    let mut matcher = Matcher::new(&source, &pattern, Work::of(lua));
    let is_anchor = matches!(all.get(3), Some(Value::Boolean(true)));
    let Some(whole) = matcher.find(from, is_anchor)? else { return Ok(MultiValue::new()) };
    let mut values: Vec<Value> = [whole.0 + 1, whole.1].map(|at| Value::Number(at as f64)).to_vec();
    matcher.values(lua, whole, true, &mut values)?;
    Ok(MultiValue::from_iter(values))
}

/// Implements `string.gsub(text, pattern, replacement [, most])` with a text as the replacement.
fn substitute(lua: &Lua, all: MultiValue) -> Result<MultiValue, String> {
    let (source, pattern) = (text(&all, 0, "gsub")?, text(&all, 1, "gsub")?);
    let replacement = text(&all, 2, "gsub")?;
    let most = match all.get(3) {
        None | Some(Value::Nil) => f64::INFINITY,
        Some(_) => number_at(&all, 3)?.trunc(),
    };
    let is_anchored = pattern.first() == Some(&b'^');
    let mut matcher = Matcher::new(&source, &pattern, Work::of(lua));
    let (mut out, mut from, mut count) = (Vec::new(), 0, 0_usize);
    while (count as f64) < most {
        let Some((start, end)) = matcher.find(from, true)? else { break };
        count += 1;
        out.extend_from_slice(&source[from..start]);
        matcher.work.steps(replacement.len() / CLASS_STEP)?;
        replace(&matcher, &replacement, (start, end), &mut out)?;
        check_length(out.len())?;
        from = end;
        if start == end {
            let Some(byte) = source.get(end) else { break };
            out.push(*byte);
            from += 1;
        }
        if is_anchored {
            break;
        }
    }
    out.extend_from_slice(source.get(from..).unwrap_or_default());
    let text = lua.create_string(out).map_err(failed)?;
    Ok(MultiValue::from_iter([Value::String(text), Value::Number(count as f64)]))
}

/// Adds a replacement, in which `%1` stands for the first capture and `%0` for the whole match.
fn replace(
    matcher: &Matcher<'_>,
    replacement: &[u8],
    whole: (usize, usize),
    out: &mut Vec<u8>,
) -> Result<(), String> {
    let mut bytes = replacement.iter();
    while let Some(byte) = bytes.next() {
        if *byte != b'%' {
            out.push(*byte);
            continue;
        }
        // After the end, the text reads as zero.
        let next = bytes.next().copied().unwrap_or(0);
        if !next.is_ascii_digit() {
            out.push(next);
            continue;
        }
        let capture = match next.checked_sub(b'1').map(usize::from) {
            None => None,
            Some(at) => match matcher.captures.get(at) {
                None if at == 0 => None,
                None => return Err("invalid capture index".to_owned()),
                Some(capture) => Some(capture),
            },
        };
        match capture {
            None => out.extend_from_slice(&matcher.source[whole.0..whole.1]),
            Some((_, Length::Open)) => return Err("unfinished capture".to_owned()),
            Some((start, Length::Position)) => {
                out.extend_from_slice((start + 1).to_string().as_bytes());
            }
            Some((start, Length::Bytes(length))) => {
                out.extend_from_slice(&matcher.source[*start..start + length]);
            }
        }
        check_length(out.len())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(source: &str, pattern: &str) -> Result<Option<(usize, usize)>, String> {
        Matcher::new(source.as_bytes(), pattern.as_bytes(), Work::default()).find(0, true)
    }

    #[test]
    fn patterns_match_as_in_lua() {
        for (source, pattern, found) in [
            ("hello world", "o w", Some((4, 7))),
            ("hello", "l+", Some((2, 4))),
            ("hello", "l-o", Some((2, 5))),
            ("hello", "^e", None),
            ("key = value", "(%w+) = (%w+)", Some((0, 11))),
            ("f(a(b)c)d", "%b()", Some((1, 8))),
            ("THE (quick) fox", "%f[%a]%a+", Some((0, 3))),
            ("aa bb", "(%a)%1$", Some((3, 5))),
            ("a]b", "[]]", Some((1, 2))),
            ("x-1", "[%-]", Some((1, 2))),
            ("abc", "[^a-b]", Some((2, 3))),
            ("", ".*", Some((0, 0))),
        ] {
            assert_eq!(first(source, pattern), Ok(found), "{pattern}");
        }
        for (pattern, error) in [
            ("%", "ends with"),
            ("[a", "missing ']'"),
            ("(", "unfinished"),
            (")", "invalid pattern capture"),
            ("%1", "invalid capture index"),
            ("%b", "unbalanced"),
            ("%f", "missing '['"),
        ] {
            let found = first("a1", pattern);
            let has_failed = matches!(&found, Err(text) if text.contains(error));
            assert!(has_failed || pattern == "(", "{pattern}: {found:?}");
        }
    }

    /// The bytes of a long set or text count as steps, so a script can be ended while it matches
    /// them.
    #[test]
    fn long_sets_and_texts_are_many_steps() {
        let set = format!("[{}a]", "b".repeat(640));
        let frontier = format!("%f{set}");
        for (pattern, sets) in [(format!("{set}*c"), 22), (frontier, 1), (format!("{set}-c"), 20)] {
            let mut matcher = Matcher::new(b"aaaaaaaaaa", pattern.as_bytes(), Work::default());
            matcher.find(0, true).unwrap();
            let counted = matcher.work.counted();
            assert!(counted >= sets * 10, "{counted} steps of {sets} sets: {:.10}", pattern);
        }
        let mut work = Work::default();
        let wanted = "a".repeat(100 * COMPARED_STEP) + "b";
        find_plain("a".repeat(100 * COMPARED_STEP + 4).as_bytes(), wanted.as_bytes(), &mut work)
            .unwrap();
        assert!(work.counted() >= 4 * 100, "{}", work.counted());
    }

    #[test]
    fn the_depth_of_a_match_is_bounded() {
        let source = "a".repeat(100_000);
        assert_eq!(first(&source, &"a?".repeat(1000)), Ok(Some((0, 1000))));
        assert!(first(&source, &"a?".repeat(100_000)).is_err());
        assert!(first(&source, &"a".repeat(100_000)).is_ok());
    }
}
