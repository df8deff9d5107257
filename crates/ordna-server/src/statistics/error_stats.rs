//! Counters of error replies, by their codes.

use std::collections::BTreeMap;

use ordna::sync::Lock;

/// Maximum number of codes that are counted separately. The server has about twenty; an extension may
/// have more.
const MOST_CODES: usize = 128;
/// Maximum length of a code in bytes. A longer first word is not a code.
const LONGEST_CODE: usize = 32;

/// Counts of error replies.
#[derive(Debug, Default)]
pub struct ErrorStats(Lock<ErrorCounts>);

/// A copy of the counts.
#[derive(Debug, Default, Clone)]
pub struct ErrorCounts {
    pub total: u64,
    /// Number of errors by code, such as `WRONGTYPE`.
    pub by_code: BTreeMap<String, u64>,
}

impl ErrorStats {
    /// Counts an error, written as `-CODE text`.
    #[cold]
    pub fn count(&self, reply: &[u8]) {
        let text = reply.strip_prefix(b"-").unwrap_or(reply);
        let end = text.iter().position(|byte| matches!(byte, b' ' | b'\r'));
        let code = &text[..end.unwrap_or(text.len())];
        let is_code = !code.is_empty()
            && code.len() <= LONGEST_CODE
            && code.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
        let code = if is_code { String::from_utf8_lossy(code).into() } else { "ERR".to_owned() };
        let mut counts = self.0.lock();
        counts.total += 1;
        if counts.by_code.len() < MOST_CODES || counts.by_code.contains_key(&code) {
            *counts.by_code.entry(code).or_default() += 1;
        }
    }

    pub fn counts(&self) -> ErrorCounts {
        self.0.lock().clone()
    }

    /// Sets all counts to 0, for `CONFIG RESETSTAT`.
    pub fn reset(&self) {
        *self.0.lock() = ErrorCounts::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_counted_by_their_codes() {
        let stats = ErrorStats::default();
        for reply in
            ["-ERR a\r\n", "-ERR b\r\n", "-OOM c\r\n", "-EXECABORT\r\n", "-no code\r\n", "-\r\n"]
        {
            stats.count(reply.as_bytes());
        }
        let counts = stats.counts();
        let by_code: Vec<_> =
            counts.by_code.iter().map(|(code, count)| (&**code, *count)).collect();
        let expected = vec![("ERR", 3), ("EXECABORT", 1), ("OOM", 1), ("no", 1)];
        assert_eq!((counts.total, by_code), (6, expected));
        for code in 0..2 * MOST_CODES as u32 {
            let [first, second] = [code / 26, code % 26].map(|letter| b'A' + letter as u8);
            stats.count(&[b'-', first, second, b'X', b' ']);
        }
        assert_eq!(stats.counts().by_code.len(), MOST_CODES);
        stats.reset();
        assert_eq!(stats.counts().total, 0);
    }
}
