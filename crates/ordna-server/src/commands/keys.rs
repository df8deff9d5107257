//! Commands on keys.

use std::ops::{Bound, ControlFlow};

use ordna::entries::{FlatBytes, Sequence};
use ordna::key::prefix_end;
use ordna::{Direction, OrderedIndex};

use super::{NOT_AN_INTEGER, Outcome, Result, SYNTAX};
use crate::connection::Session;
use crate::glob;
use crate::reply::Replies;
use crate::request::{Arguments, number};
use crate::state::Keyspace;
use crate::walk::{Purpose, Walk};

pub fn dbsize(session: &mut Session, _: Arguments<'_>, out: &mut Replies) -> Result {
    out.count(session.state.keys().approximate_len());
    Ok(Outcome::Done)
}

pub fn del(session: &mut Session, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let keys: Vec<&[u8]> = arguments.iter_from(1).collect();
    out.count(session.state.keys().remove_many(&keys));
    Ok(Outcome::Done)
}

pub fn exists(session: &mut Session, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let keys = session.state.keys();
    out.count(arguments.iter_from(1).filter(|key| keys.contains(key)).count());
    Ok(Outcome::Done)
}

pub fn type_of(session: &mut Session, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let present = session.state.keys().contains(arguments.get(1));
    out.simple(if present { "string" } else { "none" });
    Ok(Outcome::Done)
}

pub fn flush(session: &mut Session, arguments: Arguments<'_>, out: &mut Replies) -> Result {
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
    let old = std::mem::replace(&mut *session.state.keys_alone(), Keyspace::new());
    // Freeing millions of keys takes a while: not on a thread that serves others.
    tokio::task::spawn_blocking(move || drop(old));
    out.simple("OK");
    Ok(Outcome::Done)
}

pub fn keys(_: &mut Session, arguments: Arguments<'_>, _: &mut Replies) -> Result {
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

/// `SCAN cursor [MATCH pattern] [COUNT count] [TYPE type]`: keys in order, `count` looked at a
/// call. Every key that is there throughout is returned, once per full walk.
pub fn scan(session: &mut Session, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    const MOST: usize = 10_000;
    let cursor = std::str::from_utf8(arguments.get(1)).ok().and_then(|text| text.parse().ok());
    let cursor: u64 = cursor.ok_or("ERR invalid cursor")?;
    let (mut pattern, mut count, mut strings) = (None, 10, true);
    let mut at = 2;
    while at < arguments.len() {
        let option = arguments.get(at);
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
    if cursor != 0 {
        let behind = session.state.cursors.recall(cursor);
        let behind = behind.ok_or("ERR this cursor is no longer known; start again with SCAN 0")?;
        lower = Bound::Excluded(behind);
    }
    let count = usize::try_from(count).unwrap_or(MOST).min(MOST);
    let (mut met, mut last, mut matching) = (0, None, FlatBytes::default());
    let bounds = (lower.as_ref().map(Vec::as_slice), upper.as_ref().map(Vec::as_slice));
    session.state.keys().visit(bounds.0, bounds.1, Direction::Ascending, |key, _| {
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
    let next = last.map_or(0, |key| session.state.cursors.remember(key));
    out.array(2);
    out.bulk(next.to_string().as_bytes());
    out.array(matching.len());
    (0..matching.len()).filter_map(|at| matching.get(at)).for_each(|key| out.bulk(key));
    Ok(Outcome::Done)
}
