//! What Redis does not have: the order of the keys.

use std::ops::Bound;

use ordna::key::prefix_end;
use ordna::{Direction, OrderedIndex};

use super::{Context, NOT_AN_INTEGER, Outcome, Result, SYNTAX};
use crate::reply::Replies;
use crate::request::{Arguments, number};
use crate::walk::{Purpose, Walk};

/// Lower and upper end of a range of keys.
type Bounds = (Bound<Vec<u8>>, Bound<Vec<u8>>);

type Entry = Option<(Vec<u8>, Vec<u8>)>;

fn entry(entry: Entry, out: &mut Replies) -> Result {
    match entry {
        Some((key, value)) => {
            out.array(2);
            out.bulk(&key);
            out.bulk(&value);
        }
        None => out.null_array(),
    }
    Ok(Outcome::Done)
}

pub fn first(context: &mut Context<'_>, _: Arguments<'_>, out: &mut Replies) -> Result {
    entry(context.keys.first(), out)
}

pub fn last(context: &mut Context<'_>, _: Arguments<'_>, out: &mut Replies) -> Result {
    entry(context.keys.last(), out)
}

pub fn floor(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    entry(context.keys.floor(arguments.get(1)), out)
}

pub fn ceil(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    entry(context.keys.ceiling(arguments.get(1)), out)
}

/// A bound as Redis writes those of ZRANGEBYLEX: `[a` with, `(a` without, `-` and `+` for the ends.
fn bounds(low: &[u8], high: &[u8]) -> std::result::Result<Bounds, String> {
    let one = |text: &[u8], open: &[u8], never: &[u8]| match text {
        [b'[', key @ ..] => Ok(Some(Bound::Included(key.to_vec()))),
        [b'(', key @ ..] => Ok(Some(Bound::Excluded(key.to_vec()))),
        text if text == open => Ok(Some(Bound::Unbounded)),
        text if text == never => Ok(None),
        _ => Err("ERR min or max not valid string range item".to_owned()),
    };
    // From `+`, or up to `-`, there is nothing: below the empty key.
    let nothing = (Bound::Excluded(Vec::new()), Bound::Excluded(Vec::new()));
    match (one(low, b"-", b"+")?, one(high, b"+", b"-")?) {
        (Some(low), Some(high)) => Ok((low, high)),
        _ => Ok(nothing),
    }
}

/// Reads `[REV] [LIMIT n] [KEYS]` from position `from` on.
fn options(
    walk: &mut Walk,
    arguments: Arguments<'_>,
    from: usize,
) -> std::result::Result<(), String> {
    let mut rest = arguments.iter_from(from);
    while let Some(option) = rest.next() {
        if option.eq_ignore_ascii_case(b"rev") {
            walk.direction = Direction::Descending;
        } else if option.eq_ignore_ascii_case(b"keys") {
            walk.purpose = Purpose::Return { values: false };
        } else if option.eq_ignore_ascii_case(b"limit") {
            let limit = number(rest.next().ok_or(SYNTAX)?).ok_or(NOT_AN_INTEGER)?;
            // Negative: all, as in Redis.
            walk.limit = usize::try_from(limit).unwrap_or(usize::MAX);
        } else {
            return Err(SYNTAX.to_owned());
        }
    }
    Ok(())
}

/// The walk that `start end [REV] [LIMIT n] [KEYS]`, from position `from` on, asks for.
pub fn range_of(arguments: Arguments<'_>, from: usize) -> std::result::Result<Walk, String> {
    let (lower, upper) = bounds(arguments.get(from), arguments.get(from + 1))?;
    let mut walk = Walk::new(lower, upper, Purpose::Return { values: true });
    options(&mut walk, arguments, from + 2)?;
    Ok(walk)
}

pub fn range(_: &mut Context<'_>, arguments: Arguments<'_>, _: &mut Replies) -> Result {
    Ok(Outcome::Walk(Box::new(range_of(arguments, 1)?)))
}

pub fn prefix(_: &mut Context<'_>, arguments: Arguments<'_>, _: &mut Replies) -> Result {
    let prefix = arguments.get(1);
    let upper = prefix_end(prefix).map_or(Bound::Unbounded, Bound::Excluded);
    let lower = Bound::Included(prefix.to_vec());
    let mut walk = Walk::new(lower, upper, Purpose::Return { values: true });
    options(&mut walk, arguments, 2)?;
    Ok(Outcome::Walk(Box::new(walk)))
}

pub fn count(_: &mut Context<'_>, arguments: Arguments<'_>, _: &mut Replies) -> Result {
    let (lower, upper) = bounds(arguments.get(1), arguments.get(2))?;
    Ok(Outcome::Walk(Box::new(Walk::new(lower, upper, Purpose::Count))))
}

pub fn delrange(_: &mut Context<'_>, arguments: Arguments<'_>, _: &mut Replies) -> Result {
    let (lower, upper) = bounds(arguments.get(1), arguments.get(2))?;
    Ok(Outcome::Walk(Box::new(Walk::new(lower, upper, Purpose::Delete))))
}
