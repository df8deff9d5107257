//! Commands on keys.

use std::ops::{Bound, ControlFlow};

use ordna::entries::{FlatBytes, Sequence};
use ordna::key::prefix_end;
use ordna::{Direction, OrderedIndex};

use super::{Context, NOT_AN_INTEGER, Outcome, Result, SYNTAX};
use crate::glob;
use crate::reply::Replies;
use crate::request::{Arguments, number};
use crate::walk::{Purpose, Walk};

pub fn dbsize(context: &mut Context<'_>, _: Arguments<'_>, out: &mut Replies) -> Result {
    out.count(context.keys.approximate_len());
    Ok(Outcome::Done)
}

pub fn del(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let keys: Vec<&[u8]> = arguments.iter_from(1).collect();
    out.count(context.keys.remove_many(&keys));
    Ok(Outcome::Done)
}

pub fn exists(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    out.count(arguments.iter_from(1).filter(|key| context.keys.contains(key)).count());
    Ok(Outcome::Done)
}

pub fn type_of(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let present = context.keys.contains(arguments.get(1));
    out.simple(if present { "string" } else { "none" });
    Ok(Outcome::Done)
}

pub fn flush(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let fits = match arguments.len() {
        1 => true,
        2 => ["sync", "async"]
            .iter()
            .any(|way| arguments.get(1).eq_ignore_ascii_case(way.as_bytes())),
        _ => false,
    };
    if !fits {
        return Err(SYNTAX.to_owned());
    }
    let freeing = context.state.flush(&mut context.keys)?.release();
    out.simple("OK");
    Ok(freeing.map_or(Outcome::Done, Outcome::Freeing))
}

pub fn keys(_: &mut Context<'_>, arguments: Arguments<'_>, _: &mut Replies) -> Result {
    let pattern = arguments.get(1).to_vec();
    let (lower, upper) = span_of(&pattern);
    Ok(Outcome::Walk(Box::new(Walk::new(lower, upper, Purpose::Matching(pattern)))))
}

/// The bounds within which all matches of a pattern lie: those of its literal prefix.
fn span_of(pattern: &[u8]) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
    let prefix = glob::literal_prefix(pattern);
    let upper = prefix_end(prefix).map_or(Bound::Unbounded, Bound::Excluded);
    (Bound::Included(prefix.to_vec()), upper)
}

/// `SCAN cursor [MATCH pattern] [COUNT count] [TYPE type] [STABLE]`: keys in order, `count` looked
/// at a call, all of them in the state that the first call found. If the client lets the lease of
/// that state run out, the scan goes on from the same key in the present one, or, with STABLE, says
/// so.
pub fn scan(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    const MOST: usize = 10_000;
    let cursor = std::str::from_utf8(arguments.get(1)).ok().and_then(|text| text.parse().ok());
    let cursor: u64 = cursor.ok_or("ERR invalid cursor")?;
    let (mut pattern, mut count, mut strings, mut stable) = (None, 10, true, false);
    let mut at = 2;
    while at < arguments.len() {
        let option = arguments.get(at);
        if option.eq_ignore_ascii_case(b"stable") {
            stable = true;
            at += 1;
            continue;
        }
        if at + 1 == arguments.len() {
            return Err(SYNTAX.to_owned());
        }
        let value = arguments.get(at + 1);
        if option.eq_ignore_ascii_case(b"match") {
            pattern = Some(value);
        } else if option.eq_ignore_ascii_case(b"count") {
            count = number(value).ok_or(NOT_AN_INTEGER)?;
            if count < 1 {
                return Err(SYNTAX.to_owned());
            }
        } else if option.eq_ignore_ascii_case(b"type") {
            strings = value.eq_ignore_ascii_case(b"string");
        } else {
            return Err(SYNTAX.to_owned());
        }
        at += 2;
    }
    let (mut lower, upper) = pattern.map_or((Bound::Unbounded, Bound::Unbounded), span_of);
    let (mut position, mut snapshot) = (None, None);
    if cursor != 0 {
        let found = context.state.cursors.recall(cursor);
        let found = found.ok_or("ERR this cursor is no longer known; start again with SCAN 0")?;
        if stable && found.1.is_none() {
            return Err(format!(
                "ERR the state that cursor {cursor} reads is gone; without STABLE it goes on in the present one"
            ));
        }
        lower = Bound::Excluded(found.0.key.clone());
        (position, snapshot) = (Some(found.0), found.1);
    }
    let snapshot = snapshot.unwrap_or_else(|| context.keys.snapshot());
    let count = usize::try_from(count).unwrap_or(MOST).min(MOST);
    let (mut met, mut last, mut matching) = (0, None, FlatBytes::default());
    let (lower, upper) = (lower.as_ref().map(Vec::as_slice), upper.as_ref().map(Vec::as_slice));
    snapshot.visit(lower, upper, Direction::Ascending, |key, _| {
        met += 1;
        if strings && pattern.is_none_or(|pattern| glob::matches(pattern, key)) {
            matching.push(key);
        }
        if met < count {
            return ControlFlow::Continue(());
        }
        last = Some(key.to_vec());
        ControlFlow::Break(())
    });
    let next = match last {
        Some(key) => context.state.cursors.remember(key, position.as_ref(), snapshot),
        None => {
            context.state.cursors.finish(position.as_ref());
            0
        }
    };
    out.array(2);
    out.bulk(next.to_string().as_bytes());
    out.array(matching.len());
    (0..matching.len()).filter_map(|at| matching.get(at)).for_each(|key| out.bulk(key));
    Ok(Outcome::Done)
}
