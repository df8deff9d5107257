//! Event logs: slow commands, latencies, refusals by ACL.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ordna::sync::Lock;

/// Returns the present time in milliseconds since 1970.
pub fn unix_millis() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

/// Returns the present time in microseconds since 1970.
pub fn unix_micros() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros()
}

/// Bytes that a log keeps of an argument, as Redis' SLOWLOG does.
const KEPT_BYTES: usize = 128;

/// Returns the beginning of an argument, and the number of bytes that are left out.
pub fn shorten(argument: &[u8], most: usize) -> (&[u8], usize) {
    let kept = argument.len().min(most);
    (&argument[..kept], argument.len() - kept)
}

/// Returns the beginning of an argument as text.
pub fn shown(argument: &[u8]) -> String {
    let (kept, more) = shorten(argument, KEPT_BYTES);
    let text = String::from_utf8_lossy(kept).into_owned();
    if more > 0 { format!("{text}... ({more} more bytes)") } else { text }
}

/// Returns the beginning of a text, cut at the end of a character.
fn shortened(text: String) -> String {
    if text.len() <= KEPT_BYTES {
        return text;
    }
    let end = (0..=KEPT_BYTES).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    format!("{}... ({} more bytes)", &text[..end], text.len() - end)
}

/// An entry of `SLOWLOG`.
#[derive(Debug, Clone)]
pub struct SlowCommand {
    pub id: u64,
    pub at: u64,
    pub took: Duration,
    pub arguments: Vec<Vec<u8>>,
    pub peer: String,
    pub client: Vec<u8>,
}

/// The latest slow commands, as `SLOWLOG` lists them.
#[derive(Debug, Default)]
pub struct SlowLog(Lock<(u64, VecDeque<SlowCommand>)>);

impl SlowLog {
    /// Returns the first arguments of a command, each cut to a limit, like Redis.
    pub fn shorten<'a>(arguments: impl ExactSizeIterator<Item = &'a [u8]>) -> Vec<Vec<u8>> {
        const ARGUMENTS: usize = 32;
        let count = arguments.len();
        let mut kept: Vec<Vec<u8>> = Vec::new();
        for (at, argument) in arguments.enumerate() {
            if count > ARGUMENTS && at == ARGUMENTS - 1 {
                let more = count - ARGUMENTS + 1;
                kept.push(format!("... ({more} more arguments)").into_bytes());
                break;
            }
            let (shown, more) = shorten(argument, KEPT_BYTES);
            let mut shown = shown.to_vec();
            if more > 0 {
                shown.extend(format!("... ({more} more bytes)").into_bytes());
            }
            kept.push(shown);
        }
        kept
    }

    pub fn push(&self, slow: SlowCommand, most: usize) {
        let mut log = self.0.lock();
        let id = log.0;
        log.0 += 1;
        log.1.push_front(SlowCommand { id, ..slow });
        log.1.truncate(most);
    }

    /// Returns up to `most` entries, latest first.
    pub fn list(&self, most: usize) -> Vec<SlowCommand> {
        self.0.lock().1.iter().take(most).cloned().collect()
    }

    pub fn len(&self) -> usize {
        self.0.lock().1.len()
    }

    pub fn clear(&self) {
        self.0.lock().1.clear();
    }
}

/// Latencies by event, for `LATENCY`.
#[derive(Debug, Default)]
pub struct Latencies(Lock<BTreeMap<&'static str, LatencyHistory>>);

/// Latencies of one event.
#[derive(Debug, Default, Clone)]
pub struct LatencyHistory {
    /// Pairs of second since 1970 and milliseconds, oldest first.
    pub samples: VecDeque<(u64, u64)>,
    pub highest: u64,
}

impl Latencies {
    pub fn add(&self, event: &'static str, milliseconds: u64) {
        const KEPT: usize = 160;
        let second = unix_millis() / 1000;
        let mut events = self.0.lock();
        let history = events.entry(event).or_default();
        history.highest = history.highest.max(milliseconds);
        match history.samples.back_mut() {
            // Only the highest latency of a second is kept.
            Some((at, highest)) if *at == second => *highest = milliseconds.max(*highest),
            _ => history.samples.push_back((second, milliseconds)),
        }
        if history.samples.len() > KEPT {
            history.samples.pop_front();
        }
    }

    pub fn all(&self) -> Vec<(&'static str, LatencyHistory)> {
        self.0.lock().iter().map(|(event, history)| (*event, history.clone())).collect()
    }

    /// Removes the named events, or all if none is named. Returns how many were removed.
    pub fn reset<'a>(&self, named: impl ExactSizeIterator<Item = &'a [u8]>) -> usize {
        let names: Vec<String> =
            named.map(|name| String::from_utf8_lossy(name).into_owned()).collect();
        let mut events = self.0.lock();
        let before = events.len();
        let is_named = |event: &str| names.iter().any(|name| name.eq_ignore_ascii_case(event));
        events.retain(|event, _| !names.is_empty() && !is_named(event));
        before - events.len()
    }
}

/// An entry of `ACL LOG`.
#[derive(Debug, Clone)]
pub struct Denial {
    pub id: u64,
    pub count: u64,
    pub reason: &'static str,
    pub context: &'static str,
    pub object: String,
    pub user: String,
    pub created: u64,
    pub updated: u64,
    pub client: String,
}

/// The latest refusals.
#[derive(Debug, Default)]
pub struct Denials(Lock<(u64, VecDeque<Denial>)>);

impl Denials {
    /// Adds a refusal, or counts one that repeats within a minute. Keeps only the beginning of a
    /// long user name; the object is already [shown].
    pub fn push(&self, mut denial: Denial, most: usize) {
        const GROUP: u64 = 60_000;
        denial.user = shortened(denial.user);
        let mut log = self.0.lock();
        let now = unix_millis();
        let same = |other: &&mut Denial| {
            (other.reason, other.context, &other.object, &other.user)
                == (denial.reason, denial.context, &denial.object, &denial.user)
                && now.saturating_sub(other.updated) < GROUP
        };
        if let Some(other) = log.1.iter_mut().find(same) {
            other.count += 1;
            other.updated = now;
            other.client = denial.client;
            return;
        }
        let id = log.0;
        log.0 += 1;
        log.1.push_front(Denial { id, count: 1, created: now, updated: now, ..denial });
        log.1.truncate(most);
    }

    pub fn list(&self, most: usize) -> Vec<Denial> {
        self.0.lock().1.iter().take(most).cloned().collect()
    }

    pub fn clear(&self) {
        self.0.lock().1.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_of_slow_commands_are_cut_as_redis_does() {
        let shorten = |words: &[Vec<u8>]| {
            let kept = SlowLog::shorten(words.iter().map(Vec::as_slice));
            kept.into_iter().map(|word| String::from_utf8(word).unwrap()).collect::<Vec<_>>()
        };
        for count in [0, 1, 31, 32] {
            assert_eq!(shorten(&vec![b"a".to_vec(); count]), vec!["a"; count]);
        }
        for count in [33, 40, 1000] {
            let kept = shorten(&vec![b"a".to_vec(); count]);
            assert_eq!((kept.len(), &kept[..31]), (32, &vec!["a".to_owned(); 31][..]));
            assert_eq!(kept[31], format!("... ({} more arguments)", count - 31));
        }
        let kept = shorten(&[vec![b'x'; 128], vec![b'x'; 129], vec![b'x'; 1000]]);
        let long = "x".repeat(128);
        let cut = |more: usize| format!("{long}... ({more} more bytes)");
        assert_eq!(kept, [long.clone(), cut(1), cut(872)]);
    }
}
