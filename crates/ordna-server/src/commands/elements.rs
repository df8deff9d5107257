//! Helpers that the commands on hashes, sets and sorted sets share: scans, random elements,
//! operations on several keys.

use ordna::key::MAX_LEN;

use crate::execution::command::{CommandOutcome, Result};
use crate::keyspace::collections::names::Named;
use crate::keyspace::glob::Pattern;
use crate::keyspace::sample::MOST_DRAWN;
use crate::wire::error::CommandError;
use crate::wire::reply::Replies;
use crate::wire::request::{Arguments, number};

/// Maximum work of matching a pattern in one call, in units of some nanoseconds: some tenths of a
/// second. Only fields that are far longer than keys reach it.
const MOST_WORK: usize = 1 << 26;

/// The options of HSCAN, SSCAN and ZSCAN.
pub struct ElementScan<'a> {
    pattern: Option<&'a [u8]>,
    pub count: usize,
    pub no_values: bool,
}

impl<'a> ElementScan<'a> {
    /// Parses the options from the third argument on. The word `no_values` omits the values.
    pub fn read(arguments: Arguments<'a>, no_values: Option<&[u8]>) -> Result<Self> {
        let mut scan = Self { pattern: None, count: 10, no_values: false };
        let mut options = arguments.iter_from(3);
        while let Some(option) = options.next() {
            if no_values.is_some_and(|word| option.eq_ignore_ascii_case(word)) {
                scan.no_values = true;
                continue;
            }
            let value = options.next().ok_or(CommandError::Syntax)?;
            match option.to_ascii_lowercase().as_slice() {
                b"match" => scan.pattern = Some(value),
                b"count" => {
                    let wanted = number(value).ok_or(CommandError::NotAnInteger)?;
                    scan.count = usize::try_from(wanted)
                        .ok()
                        .filter(|n| *n > 0)
                        .ok_or(CommandError::Syntax)?;
                }
                _ => return Err(CommandError::Syntax),
            }
        }
        Ok(scan)
    }

    /// Keeps the elements whose names match.
    pub fn filter<T>(&self, found: &mut Vec<T>, name: impl Fn(&T) -> &[u8]) -> Result<()> {
        let Some(pattern) = self.pattern.map(Pattern::new) else { return Ok(()) };
        // Names may be longer than any key.
        let work: usize = found.iter().map(|entry| pattern.work(name(entry).len())).sum();
        if work > MOST_WORK
            || pattern.is_too_long() && found.iter().any(|entry| name(entry).len() > MAX_LEN)
        {
            return Err("ERR the pattern is too long for fields of this length".into());
        }
        found.retain(|entry| pattern.matches(name(entry)));
        Ok(())
    }
}

/// Ends the reply to HSCAN, SSCAN or ZSCAN. `done` is `None` if the key is absent.
///
/// # Errors
/// The error of the scan.
pub fn end_scan(done: Option<Result<()>>, out: &mut Replies) -> Result {
    match done {
        Some(done) => done?,
        None => {
            out.array(2);
            out.bulk(b"0");
            out.array(0);
        }
    }
    Ok(CommandOutcome::Done)
}

/// Returns the count of HRANDFIELD and similar commands, and whether `word` requests values.
///
/// # Errors
/// Those of Redis, and more repetitions than [`MOST_DRAWN`].
fn sample_size(arguments: Arguments<'_>, word: &[u8]) -> Result<(i64, bool)> {
    let values = arguments.len() == 4 && arguments.get(3).eq_ignore_ascii_case(word);
    let count = number(arguments.get(2)).ok_or(CommandError::NotAnInteger)?;
    if count == i64::MIN {
        let most = i64::MAX;
        return Err(
            format!("ERR value is out of range, value must between -{most} and {most}").into()
        );
    }
    if arguments.len() > 3 && !values {
        return Err(CommandError::Syntax);
    }
    if values && count.unsigned_abs() > i64::MAX as u64 / 2 {
        return Err("ERR value is out of range".into());
    }
    if count < 0 && count.unsigned_abs() > MOST_DRAWN as u64 {
        return Err(format!("ERR '{count}' is out of range: at least -{MOST_DRAWN}").into());
    }
    Ok((count, values))
}

/// Replies to HRANDFIELD, SRANDMEMBER or ZRANDMEMBER with the elements that `draw` returns for a
/// count. `draw` returns `None` for an absent key, and `Some(None)` if the elements have more than
/// `most` bytes. `write` writes an element, with its value if the call has `word` after the count.
///
/// # Errors
/// Those of the arguments and of `draw`; the reply would be too long.
pub fn reply_random(
    arguments: Arguments<'_>,
    out: &mut Replies,
    most: usize,
    word: &[u8],
    draw: impl Fn(i64) -> Result<Option<Option<Vec<Named>>>>,
    write: impl Fn(&Named, bool, &mut Replies),
) -> Result {
    if arguments.len() == 2 {
        let found = draw(1)?.flatten().unwrap_or_default();
        out.bulk_or_null(found.first().map(|(name, _)| name.as_slice()));
        return Ok(CommandOutcome::Done);
    }
    let (count, has_values) = sample_size(arguments, word)?;
    let found = draw(count)?.unwrap_or_else(|| Some(Vec::new()));
    let found = found.ok_or_else(|| format!("ERR the reply would exceed {most} bytes"))?;
    out.array(if has_values && !out.resp3 { found.len() * 2 } else { found.len() });
    found.iter().for_each(|element| write(element, has_values, out));
    Ok(CommandOutcome::Done)
}

/// An operation on several sets or sorted sets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Operation {
    Union,
    Intersection,
    Difference,
}

/// Parses the option LIMIT of SINTERCARD and ZINTERCARD from a position on. Without it, or with 0,
/// there is no limit.
///
/// # Errors
/// There is another option, or the number is negative.
pub fn limit_option(arguments: Arguments<'_>, at: usize) -> Result<usize> {
    let mut limit = 0;
    let mut options = arguments.iter_from(at);
    while let Some(option) = options.next() {
        if !option.eq_ignore_ascii_case(b"limit") {
            return Err(CommandError::Syntax);
        }
        let value = number(options.next().ok_or(CommandError::Syntax)?);
        let value = value.and_then(|value| usize::try_from(value).ok());
        limit = value.ok_or("ERR LIMIT can't be negative")?;
    }
    Ok(if limit == 0 { usize::MAX } else { limit })
}
