//! Commands on ranges of a sorted set: by position, score or member.

use std::ops::{Bound, ControlFlow};

use ordna::Direction;

use super::sorted_set::write_scored;
use crate::execution::command::{
    Command, CommandOutcome, Context, READ, READ_SLOW, REMOVE, Result, WRITE_SLOW,
};
use crate::execution::large_reads::{MOST_STORED, too_large};
use crate::keyspace::collections::Body;
use crate::keyspace::sorted_set::{self, EntryBounds, Scored, SortedSet};
use crate::keyspace::value_kind::ValueKind;
use crate::state::command_spec::{Growth, KeyAccess, ONE_KEY, TWO_KEYS};
use crate::wire::double;
use crate::wire::error::CommandError;
use crate::wire::reply::Replies;
use crate::wire::request::{Arguments, number};

pub const COMMANDS: &[Command] = &[
    Command::new(
        "zrange",
        -4,
        READ_SLOW,
        ONE_KEY,
        "Returns the members within a range of positions or scores, or within a lexicographical range.",
        zrange,
    ),
    Command::new(
        "zrangebyscore",
        -4,
        READ_SLOW,
        ONE_KEY,
        "Returns the members within a range of scores.",
        zrangebyscore,
    ),
    Command::new(
        "zrangebylex",
        -4,
        READ_SLOW,
        ONE_KEY,
        "Returns the members within a lexicographical range.",
        zrangebylex,
    ),
    Command::new(
        "zrevrange",
        -4,
        READ_SLOW,
        ONE_KEY,
        "Returns the members within a range of positions, in descending order of scores.",
        zrevrange,
    ),
    Command::new(
        "zrevrangebyscore",
        -4,
        READ_SLOW,
        ONE_KEY,
        "Returns the members within a range of scores, in descending order of scores.",
        zrevrangebyscore,
    ),
    Command::new(
        "zrevrangebylex",
        -4,
        READ_SLOW,
        ONE_KEY,
        "Returns the members within a lexicographical range, in descending order.",
        zrevrangebylex,
    ),
    Command::new(
        "zrangestore",
        -5,
        WRITE_SLOW,
        TWO_KEYS,
        "Stores the members within a range in another key.",
        zrangestore,
    )
    .accesses(KeyAccess::WRITE, KeyAccess::READ)
    .grows(Growth::Copies)
    .exclusive(),
    Command::new(
        "zcount",
        4,
        READ,
        ONE_KEY,
        "Counts the members within a range of scores.",
        zcount,
    ),
    Command::new(
        "zlexcount",
        4,
        READ,
        ONE_KEY,
        "Counts the members within a lexicographical range.",
        zlexcount,
    ),
    Command::new(
        "zremrangebyrank",
        4,
        REMOVE,
        ONE_KEY,
        "Removes the members within a range of positions.",
        |context, arguments, out| remove(context, arguments, out, RangeKind::Position),
    ),
    Command::new(
        "zremrangebyscore",
        4,
        REMOVE,
        ONE_KEY,
        "Removes the members within a range of scores.",
        |context, arguments, out| remove(context, arguments, out, RangeKind::Score),
    ),
    Command::new(
        "zremrangebylex",
        4,
        REMOVE,
        ONE_KEY,
        "Removes the members within a lexicographical range.",
        |context, arguments, out| remove(context, arguments, out, RangeKind::Member),
    ),
];

/// What the bounds of a range refer to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RangeKind {
    Position,
    Score,
    Member,
}

/// The bounds of a range.
#[derive(Debug)]
enum Ends {
    Positions(i64, i64),
    Scores(Bound<f64>, Bound<f64>),
    Members(MemberEnd, MemberEnd),
}

/// A bound of a range of members.
#[derive(Debug, Clone)]
enum MemberEnd {
    Least,
    Most,
    Member(Bound<Vec<u8>>),
}

impl MemberEnd {
    fn read(text: &[u8]) -> Result<Self> {
        match text {
            b"-" => Ok(Self::Least),
            b"+" => Ok(Self::Most),
            [b'[', member @ ..] => Ok(Self::Member(Bound::Included(member.to_vec()))),
            [b'(', member @ ..] => Ok(Self::Member(Bound::Excluded(member.to_vec()))),
            _ => Err("ERR min or max not valid string range item".into()),
        }
    }

    fn bound(&self) -> Bound<&[u8]> {
        match self {
            Self::Least | Self::Most => Bound::Unbounded,
            Self::Member(bound) => bound.as_ref().map(Vec::as_slice),
        }
    }

    /// Returns whether a member is within this lower bound.
    fn is_below(&self, member: &[u8]) -> bool {
        match self {
            Self::Least => true,
            Self::Most => false,
            Self::Member(bound) => {
                !ordna::index::is_below(member, bound.as_ref().map(Vec::as_slice))
            }
        }
    }

    /// Returns whether a member is within this upper bound.
    fn is_above(&self, member: &[u8]) -> bool {
        match self {
            Self::Least => false,
            Self::Most => true,
            Self::Member(bound) => {
                !ordna::index::is_above(member, bound.as_ref().map(Vec::as_slice))
            }
        }
    }
}

fn score_end(text: &[u8]) -> Result<Bound<f64>> {
    let (text, is_open) = match text {
        [b'(', rest @ ..] => (rest, true),
        _ => (text, false),
    };
    let score = double::parse_bound(text).ok_or("ERR min or max is not a float")?;
    Ok(if is_open { Bound::Excluded(score) } else { Bound::Included(score) })
}

impl Ends {
    /// Parses two bounds. In a reversed range the upper bound comes first, unless the bounds are
    /// positions.
    fn read(kind: RangeKind, first: &[u8], second: &[u8], reverse: bool) -> Result<Self> {
        let (lower, upper) = if reverse { (second, first) } else { (first, second) };
        Ok(match kind {
            RangeKind::Position => {
                let position = |text| number(text).ok_or(CommandError::NotAnInteger);
                Self::Positions(position(first)?, position(second)?)
            }
            RangeKind::Score => Self::Scores(score_end(lower)?, score_end(upper)?),
            RangeKind::Member => Self::Members(MemberEnd::read(lower)?, MemberEnd::read(upper)?),
        })
    }
}

/// Returns the first position, and the number of positions, of the range from `start` to `end`
/// inclusive. Negative positions count from the back.
pub fn positions(start: i64, end: i64, len: usize) -> (usize, usize) {
    let len = i64::try_from(len).unwrap_or(i64::MAX);
    let from_front = |at: i64| if at < 0 { at.saturating_add(len) } else { at };
    let (start, end) = (from_front(start).max(0), from_front(end).min(len - 1));
    if start > end || start >= len {
        return (0, 0);
    }
    (start as usize, (end - start + 1) as usize)
}

/// A range and its options.
#[derive(Debug)]
pub struct Query {
    ends: Ends,
    direction: Direction,
    /// Number of members to skip, and maximum number of members to return.
    limit: (usize, usize),
    with_scores: bool,
}

impl Query {
    /// Parses `start end` and the options from position `at` on. If `kind` or `reverse` is `None`,
    /// options determine it.
    ///
    /// # Errors
    /// The same errors as those of Redis.
    pub fn read(
        arguments: Arguments<'_>,
        at: usize,
        mut kind: Option<RangeKind>,
        mut reverse: Option<bool>,
        stores: bool,
    ) -> Result<Self> {
        let (mut limit, mut with_scores) = (None, false);
        let mut options = arguments.iter_from(at + 2);
        while let Some(option) = options.next() {
            match option.to_ascii_lowercase().as_slice() {
                b"withscores" if !stores => with_scores = true,
                b"limit" if options.len() >= 2 => {
                    let mut integer = || {
                        let text = options.next().unwrap_or_default();
                        number(text).ok_or(CommandError::NotAnInteger)
                    };
                    limit = Some((integer()?, integer()?));
                }
                b"rev" if reverse.is_none() => reverse = Some(true),
                b"bylex" if kind.is_none() => kind = Some(RangeKind::Member),
                b"byscore" if kind.is_none() => kind = Some(RangeKind::Score),
                _ => return Err(CommandError::Syntax),
            }
        }
        let kind = kind.unwrap_or(RangeKind::Position);
        let reverse = reverse.unwrap_or(false);
        // In Redis, a count of -1 means that there is no limit.
        if limit.is_some_and(|(_, count)| count != -1) && kind == RangeKind::Position {
            return Err("ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX".into());
        }
        if with_scores && kind == RangeKind::Member {
            return Err(
                "ERR syntax error, WITHSCORES not supported in combination with BYLEX".into()
            );
        }
        let ends = Ends::read(kind, arguments.get(at), arguments.get(at + 1), reverse)?;
        let limit = match limit {
            // As in Redis, the result is empty if the offset is negative.
            Some((offset, _)) if offset < 0 => (0, 0),
            Some((offset, count)) => {
                let count = usize::try_from(count).unwrap_or(usize::MAX);
                (usize::try_from(offset).unwrap_or(usize::MAX), count)
            }
            None => (0, usize::MAX),
        };
        let direction = if reverse { Direction::Descending } else { Direction::Ascending };
        Ok(Self { ends, direction, limit, with_scores })
    }

    /// Calls `each` with the members and scores of the range until it breaks. Returns `false` if it
    /// stopped early because it would have to read more than `most` entries.
    fn visit(
        &self,
        set: SortedSet<'_, '_>,
        most: usize,
        mut each: impl FnMut(&[u8], f64) -> ControlFlow<()>,
    ) -> bool {
        let (mut skip, mut left) = self.limit;
        let mut room = most;
        let mut passes = || {
            let passes = room > 0;
            room = room.saturating_sub(1);
            passes
        };
        let mut is_whole = true;
        if let Ends::Positions(start, end) = self.ends {
            let (start, count) = positions(start, end, set.len());
            set.visit_positions_while(start, count, self.direction, |member, score| {
                is_whole = passes();
                if is_whole { each(member, score) } else { ControlFlow::Break(()) }
            });
            return is_whole;
        }
        if left == 0 {
            return true;
        }
        let mut limited = |member: &[u8], score: f64| {
            is_whole = passes();
            if !is_whole {
                return ControlFlow::Break(());
            }
            if skip > 0 {
                skip -= 1;
                return ControlFlow::Continue(());
            }
            each(member, score)?;
            left -= 1;
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        match &self.ends {
            Ends::Positions(..) => {}
            Ends::Scores(min, max) => {
                set.visit(&EntryBounds::of_scores(*min, *max), self.direction, limited);
            }
            Ends::Members(min, max) => {
                if !visit_members(set, (min, max), self.direction, most, &mut limited) {
                    return false;
                }
            }
        }
        is_whole
    }

    /// Copies the members and scores of the range.
    ///
    /// # Errors
    /// The members have more than [`MOST_STORED`] bytes; [`CommandError::NeedsSnapshot`] if more
    /// than `most` entries would have to be read.
    fn members(&self, set: SortedSet<'_, '_>, most: usize) -> Result<Vec<Scored>> {
        let (mut found, mut left): (Vec<Scored>, _) = (Vec::new(), Some(MOST_STORED));
        let is_whole = self.visit(set, most, |member, score| {
            left = left.and_then(|left| left.checked_sub(member.len() + size_of::<Scored>()));
            if left.is_none() {
                return ControlFlow::Break(());
            }
            found.push((member.to_vec(), score));
            ControlFlow::Continue(())
        });
        match left {
            Some(_) if is_whole => Ok(found),
            Some(_) => Err(CommandError::NeedsSnapshot),
            None => Err(too_large(MOST_STORED)),
        }
    }
}

impl Query {
    /// Writes the members of the range. `read` is called with a function, and calls this function
    /// with the sorted set if the key exists.
    ///
    /// # Errors
    /// An error of `read`, or the reply would be too large.
    pub fn reply(
        &self,
        context: &Context<'_>,
        read: impl FnOnce(&mut dyn FnMut(SortedSet<'_, '_>)) -> Result<Option<()>>,
        out: &mut Replies,
    ) -> Result {
        let most = context.state.settings.reply_limit();
        let (mut count, mut is_whole) = (0, true);
        let mut found = Replies { resp3: out.resp3, ..Replies::default() };
        read(&mut |set| {
            is_whole = self.visit(set, context.most_work(), |member, score| {
                count += 1;
                match self.with_scores {
                    true => write_scored(member, score, &mut found),
                    false => found.bulk(member),
                }
                let fits = found.bytes.len() <= most;
                if fits { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            });
        })?;
        if !is_whole {
            return Err(CommandError::NeedsSnapshot);
        }
        if found.bytes.len() > most {
            return Err(format!("ERR the reply would exceed {most} bytes; ask for less").into());
        }
        out.array(if self.with_scores && !out.resp3 { count * 2 } else { count });
        out.bytes.append(&mut found.bytes);
        Ok(CommandOutcome::Done)
    }
}

/// Calls `each` with the members between two members. If the scores of the members differ, all
/// members are read, and the result is the same as that of a Redis listpack; returns `false` if
/// there are more than `most`.
fn visit_members(
    set: SortedSet<'_, '_>,
    (min, max): (&MemberEnd, &MemberEnd),
    direction: Direction,
    most: usize,
    visit: &mut impl FnMut(&[u8], f64) -> ControlFlow<()>,
) -> bool {
    if matches!(min, MemberEnd::Most) || matches!(max, MemberEnd::Least) {
        return true;
    }
    if let Some(bounds) = set.lex_bounds(min.bound(), max.bound()) {
        set.visit(&bounds, direction, visit);
        return true;
    }
    // Includes all members from the first one at or after the first bound up to the first one past
    // the second bound.
    let (mut has_begun, mut is_over) = (false, false);
    let last = |direction| {
        let mut last = None;
        set.visit_positions(0, 1, direction, |member, _| last = Some(member.to_vec()));
        last.unwrap_or_default()
    };
    if !min.is_below(&last(Direction::Descending)) || !max.is_above(&last(Direction::Ascending)) {
        return true;
    }
    if set.len() > most {
        return false;
    }
    set.visit(&EntryBounds::ALL, direction, |member, score| {
        let (reaches, stays) = match direction {
            Direction::Ascending => (min.is_below(member), max.is_above(member)),
            Direction::Descending => (max.is_above(member), min.is_below(member)),
        };
        has_begun |= reaches;
        if !has_begun {
            return ControlFlow::Continue(());
        }
        is_over |= !stays;
        if is_over { ControlFlow::Break(()) } else { visit(member, score) }
    });
    true
}

/// Runs a command whose range follows the key.
fn range(
    context: &Context<'_>,
    arguments: Arguments<'_>,
    out: &mut Replies,
    kind: Option<RangeKind>,
    reverse: Option<bool>,
) -> Result {
    let query = Query::read(arguments, 2, kind, reverse, false)?;
    let key = arguments.get(1);
    query.reply(context, |read| context.sorted_set(key, read), out)
}

fn zrange(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    range(context, arguments, out, None, None)
}

fn zrangebyscore(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    range(context, arguments, out, Some(RangeKind::Score), Some(false))
}

fn zrangebylex(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    range(context, arguments, out, Some(RangeKind::Member), Some(false))
}

fn zrevrange(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    range(context, arguments, out, Some(RangeKind::Position), Some(true))
}

fn zrevrangebyscore(
    context: &mut Context<'_>,
    arguments: Arguments<'_>,
    out: &mut Replies,
) -> Result {
    range(context, arguments, out, Some(RangeKind::Score), Some(true))
}

fn zrevrangebylex(
    context: &mut Context<'_>,
    arguments: Arguments<'_>,
    out: &mut Replies,
) -> Result {
    range(context, arguments, out, Some(RangeKind::Member), Some(true))
}

/// `ZRANGESTORE destination source start end …`
fn zrangestore(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let query = Query::read(arguments, 3, None, None, true)?;
    context.check_bytes(&[arguments.get(2)])?;
    let most = context.most_work();
    let found = context.sorted_set(arguments.get(2), |set| query.members(set, most))?;
    let found = found.transpose()?.unwrap_or_default();
    store_sorted_set(context, arguments.get(1), found, out)
}

/// Sets a key to a sorted set with these members, of which none may occur twice, or removes the key
/// if there are none. Replies with their number.
pub fn store_sorted_set(
    context: &mut Context<'_>,
    key: &[u8],
    members: Vec<Scored>,
    out: &mut Replies,
) -> Result {
    let count = members.len();
    match count {
        0 => context.put_nothing(key)?,
        _ => {
            let value = context.keys.build_sorted_set(&members)?;
            drop(members);
            context.put_value(key, &value, None)?;
        }
    }
    out.count(count);
    Ok(CommandOutcome::Done)
}

fn zcount(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let (min, max) = (score_end(arguments.get(2))?, score_end(arguments.get(3))?);
    let bounds = EntryBounds::of_scores(min, max);
    out.count(context.sorted_set(arguments.get(1), |set| set.count(&bounds))?.unwrap_or(0));
    Ok(CommandOutcome::Done)
}

fn zlexcount(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let (min, max) = (MemberEnd::read(arguments.get(2))?, MemberEnd::read(arguments.get(3))?);
    let (most, mut count, mut is_whole) = (context.most_work(), 0, true);
    context.sorted_set(arguments.get(1), |set| {
        if matches!(min, MemberEnd::Most) || matches!(max, MemberEnd::Least) {
            return;
        }
        if let Some(bounds) = set.lex_bounds(min.bound(), max.bound()) {
            count = set.count(&bounds);
            return;
        }
        let mut each = |_: &[u8], _| {
            count += 1;
            ControlFlow::Continue(())
        };
        is_whole = visit_members(set, (&min, &max), Direction::Ascending, most, &mut each);
    })?;
    if !is_whole {
        return Err(CommandError::NeedsSnapshot);
    }
    out.count(count);
    Ok(CommandOutcome::Done)
}

/// Runs a command that removes the members of a range.
fn remove(
    context: &mut Context<'_>,
    arguments: Arguments<'_>,
    out: &mut Replies,
    kind: RangeKind,
) -> Result {
    let query = Query {
        ends: Ends::read(kind, arguments.get(2), arguments.get(3), false)?,
        direction: Direction::Ascending,
        limit: (0, usize::MAX),
        with_scores: false,
    };
    let work = context.most_work();
    let removed = context.modify_much(arguments.get(1), ValueKind::ZSet, |body| {
        let most = if matches!(body, Body::Packed(_)) { usize::MAX } else { work };
        let found = query.members(SortedSet(body), most)?;
        found.iter().for_each(|(member, score)| sorted_set::remove(body, member, *score));
        Ok(found.len())
    })?;
    out.count(removed);
    Ok(CommandOutcome::Done)
}
