//! Commands on the order of keys, which Redis lacks.

use std::ops::Bound;
use std::sync::Arc;

use ordna::Direction;
use ordna::key::prefix_end;

use crate::execution::command::{Command, CommandOutcome, Context, READ_ALL, REMOVE_ALL, Result};
use crate::execution::long_scan::{
    Caller, LongScan, ReplyForm, ScanBounds, ScanPurpose, key_of_token,
};
use crate::keyspace::snapshot::KeyspaceSnapshot;
use crate::keyspace::stored_value;
use crate::state::command_spec::{CommandFlags, NO_KEY};
use crate::wire::error::CommandError;
use crate::wire::reply::Replies;
use crate::wire::request::{Arguments, number};

const NEAR: CommandFlags = READ_ALL.or(CommandFlags::FAST);

pub const COMMANDS: &[Command] = &[
    Command::new("ordna.first", 1, NEAR, NO_KEY, "Returns the entry with the smallest key.", first)
        .exclusive(),
    Command::new("ordna.last", 1, NEAR, NO_KEY, "Returns the entry with the largest key.", last)
        .exclusive(),
    Command::new(
        "ordna.floor",
        2,
        NEAR,
        NO_KEY,
        "Returns the entry with the largest key that is at most the given key.",
        floor,
    )
    .exclusive(),
    Command::new(
        "ordna.ceil",
        2,
        NEAR,
        NO_KEY,
        "Returns the entry with the smallest key that is at least the given key.",
        ceil,
    )
    .exclusive(),
    Command::new(
        "ordna.range",
        -3,
        READ_ALL,
        NO_KEY,
        "Returns the entries between two bounds, in order.",
        range,
    )
    .range(|arguments| range_of(arguments, 1).ok().map(LongScan::into_bounds)),
    Command::new(
        "ordna.prefix",
        -2,
        READ_ALL,
        NO_KEY,
        "Returns the entries whose keys begin with a prefix, in order.",
        prefix,
    )
    .range(|arguments| Some(keys_with(arguments.get(1)))),
    Command::new(
        "ordna.scan",
        -3,
        READ_ALL,
        NO_KEY,
        "Iterates over the entries between two bounds with a cursor.",
        scan,
    )
    .range(|arguments| scan_of(arguments).ok().map(LongScan::into_bounds)),
    Command::new("ordna.count", 3, READ_ALL, NO_KEY, "Counts the keys between two bounds.", count)
        .range(|arguments| bounds(arguments.get(1), arguments.get(2), false).ok()),
    Command::new(
        "ordna.rank",
        2,
        READ_ALL,
        NO_KEY,
        "Returns the number of keys that are smaller than the given key.",
        rank,
    ),
    Command::new(
        "ordna.at",
        2,
        READ_ALL,
        NO_KEY,
        "Returns the entry at a position, counted from the smallest key or, if negative, from the largest.",
        at,
    ),
    Command::new(
        "ordna.delrange",
        3,
        REMOVE_ALL,
        NO_KEY,
        "Removes the keys between two bounds. Returns the number of removed keys.",
        delrange,
    )
    .range(|arguments| bounds(arguments.get(1), arguments.get(2), false).ok()),
];

type KeyValue = Option<(Vec<u8>, Vec<u8>)>;

fn entry(entry: KeyValue, out: &mut Replies) -> Result {
    match entry {
        Some((key, value)) => {
            out.array(2);
            out.bulk(&key);
            out.bulk_or_null(stored_value::string(&value));
        }
        None => out.null_array(),
    }
    Ok(CommandOutcome::Done)
}

fn first(context: &mut Context<'_>, _: Arguments<'_>, out: &mut Replies) -> Result {
    entry(context.keys.first(), out)
}

fn last(context: &mut Context<'_>, _: Arguments<'_>, out: &mut Replies) -> Result {
    entry(context.keys.last(), out)
}

fn floor(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    entry(context.keys.floor(arguments.get(1)), out)
}

fn ceil(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    entry(context.keys.ceiling(arguments.get(1)), out)
}

/// An end of a range, written as for ZRANGEBYLEX in Redis: `[a` includes the key, `(a` excludes it,
/// `-` and `+` are below and above all keys.
#[derive(Debug, PartialEq)]
enum RangeEnd {
    Least,
    Most,
    Key { key: Vec<u8>, included: bool },
}

impl RangeEnd {
    fn read(text: &[u8]) -> Result<Self> {
        match text {
            b"-" => Ok(Self::Least),
            b"+" => Ok(Self::Most),
            [b'[', key @ ..] => Ok(Self::Key { key: key.to_vec(), included: true }),
            [b'(', key @ ..] => Ok(Self::Key { key: key.to_vec(), included: false }),
            _ => {
                Err("ERR min or max not valid string range item; a bound is [key, (key, - or +"
                    .into())
            }
        }
    }

    /// Returns whether this end is above the other.
    fn is_above(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Least, _) | (_, Self::Most) => false,
            (Self::Most, _) | (_, Self::Least) => true,
            (Self::Key { key, .. }, Self::Key { key: other, .. }) => key > other,
        }
    }

    fn bound(self) -> Bound<Vec<u8>> {
        match self {
            Self::Least | Self::Most => Bound::Unbounded,
            Self::Key { key, included: true } => Bound::Included(key),
            Self::Key { key, included: false } => Bound::Excluded(key),
        }
    }
}

/// The options after the bounds of a range.
#[derive(Default)]
struct RangeOptions {
    reverse: bool,
    only_keys: bool,
    with_values: bool,
    limit: Option<(usize, usize)>,
}

impl RangeOptions {
    /// Reads `[REV] [LIMIT [offset] count] [KEYS | WITHVALUES]` from position `from` on.
    fn read(arguments: Arguments<'_>, from: usize) -> Result<Self> {
        let mut options = Self::default();
        let mut rest = arguments.iter_from(from).peekable();
        while let Some(option) = rest.next() {
            match option.to_ascii_lowercase().as_slice() {
                b"rev" => options.reverse = true,
                b"keys" => options.only_keys = true,
                b"withvalues" => options.with_values = true,
                b"limit" => {
                    let first = number(rest.next().ok_or(CommandError::Syntax)?)
                        .ok_or(CommandError::NotAnInteger)?;
                    let second = rest.next_if(|text| number(text).is_some());
                    let (offset, count) = match second.and_then(number) {
                        Some(count) => (first, count),
                        None => (0, first),
                    };
                    let offset = usize::try_from(offset)
                        .map_err(|_| "ERR the offset of LIMIT must not be negative")?;
                    // As in Redis, a negative count means all.
                    let count = usize::try_from(count).unwrap_or(usize::MAX);
                    options.limit = Some((offset, count));
                }
                _ => return Err(CommandError::Syntax),
            }
        }
        if options.only_keys && options.with_values {
            return Err("ERR KEYS and WITHVALUES at the same time are not compatible".into());
        }
        Ok(options)
    }

    fn into_scan(self, lower: Bound<Vec<u8>>, upper: Bound<Vec<u8>>) -> LongScan {
        let mut scan = LongScan::new(lower, upper, ScanPurpose::Return { values: !self.only_keys });
        if self.reverse {
            scan.direction = Direction::Descending;
        }
        (scan.skip, scan.limit) = self.limit.unwrap_or((0, usize::MAX));
        scan
    }
}

/// Returns the bounds from `start` to `end`. With `REV`, either may come first.
///
/// # Errors
/// The start is above the end, which can only be a mistake.
fn bounds(start: &[u8], end: &[u8], reverse: bool) -> Result<ScanBounds> {
    let (mut start, mut end) = (RangeEnd::read(start)?, RangeEnd::read(end)?);
    if start.is_above(&end) {
        if !reverse {
            return Err(
                "ERR the start of the range lies behind its end; say REV to read downwards".into(),
            );
        }
        std::mem::swap(&mut start, &mut end);
    }
    Ok(match (start, end) {
        // Nothing is below the least end or above the greatest end.
        (RangeEnd::Least, RangeEnd::Least) | (RangeEnd::Most, RangeEnd::Most) => {
            (Bound::Excluded(Vec::new()), Bound::Excluded(Vec::new()))
        }
        (start, end) => (start.bound(), end.bound()),
    })
}

/// Returns the scan that `start end [REV] [LIMIT [offset] count] [KEYS | WITHVALUES]` describes,
/// from position `from` on.
pub fn range_of(arguments: Arguments<'_>, from: usize) -> Result<LongScan> {
    let options = RangeOptions::read(arguments, from + 2)?;
    let (lower, upper) = bounds(arguments.get(from), arguments.get(from + 1), options.reverse)?;
    Ok(options.into_scan(lower, upper))
}

fn range(_: &mut Context<'_>, arguments: Arguments<'_>, _: &mut Replies) -> Result {
    Ok(CommandOutcome::LongScan(Box::new(range_of(arguments, 1)?)))
}

fn prefix(_: &mut Context<'_>, arguments: Arguments<'_>, _: &mut Replies) -> Result {
    let (lower, upper) = keys_with(arguments.get(1));
    let options = RangeOptions::read(arguments, 2)?;
    Ok(CommandOutcome::LongScan(Box::new(options.into_scan(lower, upper))))
}

/// Returns the bounds of the keys with a prefix.
pub fn keys_with(prefix: &[u8]) -> ScanBounds {
    let upper = prefix_end(prefix).map_or(Bound::Unbounded, Bound::Excluded);
    (Bound::Included(prefix.to_vec()), upper)
}

/// `ORDNA.SCAN start end [CURSOR cursor] [COUNT count] [REV] [KEYS]`: returns some entries and a
/// cursor for the next ones. A cursor contains its position, so it stays valid after a restart.
/// Each call reads the present state.
fn scan(_: &mut Context<'_>, arguments: Arguments<'_>, _: &mut Replies) -> Result {
    Ok(CommandOutcome::LongScan(Box::new(scan_of(arguments)?)))
}

fn scan_of(arguments: Arguments<'_>) -> Result<LongScan> {
    const MOST: usize = 10_000;
    let (mut cursor, mut count, mut options) = (None, 100, RangeOptions::default());
    let mut rest = arguments.iter_from(3);
    while let Some(option) = rest.next() {
        match option.to_ascii_lowercase().as_slice() {
            b"cursor" => {
                cursor =
                    Some(rest.next().ok_or(CommandError::Syntax)?).filter(|cursor| *cursor != b"0")
            }
            b"count" => {
                let wanted = number(rest.next().ok_or(CommandError::Syntax)?)
                    .ok_or(CommandError::NotAnInteger)?;
                count = usize::try_from(wanted)
                    .ok()
                    .filter(|n| *n > 0)
                    .ok_or(CommandError::Syntax)?
                    .min(MOST);
            }
            b"rev" => options.reverse = true,
            b"keys" => options.only_keys = true,
            _ => return Err(CommandError::Syntax),
        }
    }
    let (mut lower, mut upper) = bounds(arguments.get(1), arguments.get(2), options.reverse)?;
    if let Some(cursor) = cursor {
        let key = key_of_token(cursor).ok_or("ERR invalid cursor")?;
        // A cursor with a key outside of the bounds returns nothing, and never leaves them.
        let end = if options.reverse { &mut upper } else { &mut lower };
        let is_within = match &*end {
            Bound::Unbounded => true,
            Bound::Included(bound) | Bound::Excluded(bound) if options.reverse => key <= *bound,
            Bound::Included(bound) | Bound::Excluded(bound) => key >= *bound,
        };
        if is_within {
            *end = Bound::Excluded(key);
        }
    }
    options.limit = Some((0, count));
    let mut scan = options.into_scan(lower, upper);
    scan.form = ReplyForm::Token;
    Ok(scan)
}

fn count(_: &mut Context<'_>, arguments: Arguments<'_>, _: &mut Replies) -> Result {
    let (lower, upper) = bounds(arguments.get(1), arguments.get(2), false)?;
    Ok(CommandOutcome::LongScan(Box::new(LongScan::new(lower, upper, ScanPurpose::Count))))
}

/// `ORDNA.RANK key`: reads the state of one moment.
fn rank(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    out.count(KeyspaceSnapshot::of(&context.keys).rank(arguments.get(1)));
    Ok(CommandOutcome::Done)
}

/// `ORDNA.AT position`: 0 is the first key, -1 the last one. Reads the state of one moment.
fn at(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let position = number(arguments.get(1)).ok_or(CommandError::NotAnInteger)?;
    let snapshot = KeyspaceSnapshot::of(&context.keys);
    let from_front = match usize::try_from(position) {
        Ok(position) => Some(position),
        Err(_) => usize::try_from(position.unsigned_abs())
            .ok()
            .and_then(|back| snapshot.len().checked_sub(back)),
    };
    entry(from_front.and_then(|position| snapshot.select(position)), out)
}

fn delrange(context: &mut Context<'_>, arguments: Arguments<'_>, _: &mut Replies) -> Result {
    let (lower, upper) = bounds(arguments.get(1), arguments.get(2), false)?;
    let session = &*context.session;
    let caller = Caller {
        client: Arc::clone(&session.client),
        user: session.user.as_ref().map(|user| user.name.clone()),
        request: arguments.to_owned_request(),
        acl_version: session.acl_version,
    };
    let mut scan = LongScan::new(lower, upper, ScanPurpose::Delete);
    scan.caller = Some(caller);
    Ok(CommandOutcome::LongScan(Box::new(scan)))
}
