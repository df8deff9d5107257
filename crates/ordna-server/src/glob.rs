//! Redis' glob patterns: `*`, `?`, `[a-c]`, `[^a]`, and `\` to take the next byte as it is.

/// Whether the pattern matches the whole text. O(len(pattern) * len(text)) at worst, iterative.
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    // Where to go on if what follows the last star does not match here.
    let mut star: Option<(usize, usize)> = None;
    loop {
        let step = match pattern.get(p) {
            Some(b'*') => {
                star = Some((p + 1, t));
                p += 1;
                continue;
            }
            None if t == text.len() => return true,
            Some(_) if t < text.len() => one(&pattern[p..], text[t]),
            _ => None,
        };
        match (step, star) {
            (Some(used), _) => {
                p += used;
                t += 1;
            }
            (None, Some((after, from))) if from < text.len() => {
                star = Some((after, from + 1));
                p = after;
                t = from + 1;
            }
            (None, _) => return false,
        }
    }
}

/// How much of the pattern one byte uses up, if it matches.
fn one(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern {
        [b'?', ..] => Some(1),
        [b'\\', literal, ..] => (*literal == byte).then_some(2),
        [b'[', rest @ ..] => {
            let (negated, mut at) = match rest {
                [b'^', ..] => (true, 1),
                _ => (false, 0),
            };
            let mut found = false;
            loop {
                match &rest[at..] {
                    // An open class ends with the pattern.
                    [] => break,
                    [b']', ..] => {
                        at += 1;
                        break;
                    }
                    [b'\\', literal, ..] => {
                        found |= *literal == byte;
                        at += 2;
                    }
                    [from, b'-', to, ..] => {
                        found |= (*from.min(to)..=*from.max(to)).contains(&byte);
                        at += 3;
                    }
                    [literal, ..] => {
                        found |= *literal == byte;
                        at += 1;
                    }
                }
            }
            (found != negated).then_some(1 + at)
        }
        [literal, ..] => (*literal == byte).then_some(1),
        [] => None,
    }
}

/// The bytes before the first special one: every match starts with them.
pub fn literal_prefix(pattern: &[u8]) -> &[u8] {
    let end = pattern.iter().position(|byte| matches!(byte, b'*' | b'?' | b'[' | b'\\'));
    &pattern[..end.unwrap_or(pattern.len())]
}

#[cfg(test)]
mod tests {
    use super::matches;

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
            ("", ""),
        ];
        let no =
            [("", "a"), ("a", ""), ("h[^e]llo", "hello"), ("a*b", "a"), ("\\*", "a"), ("?", "")];
        for (pattern, text) in yes {
            assert!(matches(pattern.as_bytes(), text.as_bytes()), "{pattern} {text}");
        }
        for (pattern, text) in no {
            assert!(!matches(pattern.as_bytes(), text.as_bytes()), "{pattern} {text}");
        }
    }
}
